//! The memory arbiter and the AXI4 master against a memory that takes its time, changes the order and refuses: every
//! request arrives once, every answer goes to who asked, and nobody starves.

mod support;

use std::collections::{HashMap, VecDeque};

use lockwork_verilated::{Model, Port};
use support::{Random, module, port, seed};

const ADDR_MASK: u64 = (1 << 37) - 1;

/// A request of a unit: tag 10 bits, strobe 8, data 64, address 37, write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    unit: u32,
    tag: u64,
    write: bool,
    addr: u64,
    data: u64,
    strobe: u64,
}

const UNIT_BITS: u32 = 120;

/// Writes a request of a unit (`extended`: as it is at the port, with the unit's number).
fn put(model: &mut Model, at: Port, base: u32, request: &Request, extended: bool) {
    model.set_bits(at, base, 10, request.tag);
    let low = if extended {
        model.set_bits(at, base + 10, 3, request.unit.into());
        base + 13
    } else {
        base + 10
    };
    model.set_bits(at, low, 8, request.strobe);
    model.set_bits(at, low + 8, 64, request.data);
    model.set_bits(at, low + 72, 37, request.addr);
    model.set_bits(at, low + 109, 1, request.write.into());
}

/// A request at the port.
fn get(model: &Model, at: Port) -> Request {
    Request {
        tag: model.get_bits(at, 0, 10),
        unit: model.get_bits(at, 10, 3) as u32,
        strobe: model.get_bits(at, 13, 8),
        data: model.get_bits(at, 21, 64),
        addr: model.get_bits(at, 85, 37),
        write: model.get_bits(at, 122, 1) == 1,
    }
}

fn any(chance: &mut Random, unit: u32, tag: u64) -> Request {
    Request {
        unit,
        tag,
        write: chance.percent(40),
        addr: chance.next_u64() & ADDR_MASK,
        data: chance.next_u64(),
        strobe: chance.below(256),
    }
}

/// What memory answers to a request in the arbiter's test.
fn answer_of(request: &Request) -> (u64, bool) {
    (request.addr.wrapping_mul(0x9E37_79B9) ^ request.data, request.addr.is_multiple_of(11))
}

#[test]
fn units_share_a_memory_port_fairly_and_get_their_own_answers() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    const UNITS: u32 = 5;
    const INFLIGHT: usize = 12;
    let mut model = module("lw_mem_arbiter", &[("Units", UNITS.into()), ("Inflight", INFLIGHT as u64)]);
    let named = |name: &str| port(&model, name);
    let [valid_i, ready_o, req_i, rsp_valid_o, rsp_o] =
        ["valid_i", "ready_o", "req_i", "rsp_valid_o", "rsp_o"].map(named);
    let [port_valid, port_ready, port_req] = ["port_valid_o", "port_ready_i", "port_req_o"].map(named);
    let [port_rsp_valid, port_rsp, quiet, hold] = ["port_rsp_valid_i", "port_rsp_i", "quiet_o", "hold_i"].map(named);
    let mut chance = Random(seed(11));
    let mut offers: Vec<Option<Request>> = vec![None; UNITS as usize];
    let mut waited = [0_u32; UNITS as usize];
    let mut on_way: VecDeque<Request> = VecDeque::new();
    let mut pending: Vec<Request> = Vec::new();
    let mut tags: Vec<VecDeque<u64>> = (0..UNITS).map(|_| (0..1024).collect()).collect();
    let (mut asked, mut answered, mut most, mut longest) = (0_u64, 0_u64, 0, 0);
    for cycle in 0..40_000_u64 {
        let phase = cycle / 1000 % 4;
        let last = cycle > 39_000;
        for unit in 0..UNITS {
            let offer = &mut offers[unit as usize];
            if offer.is_none() && !last && chance.percent([100, 20, 60, 90][phase as usize]) {
                let tag = tags[unit as usize].pop_front().expect("a free tag");
                let request = any(&mut chance, unit, tag);
                *offer = Some(request);
                put(&mut model, req_i, unit * UNIT_BITS, &request, false);
                model.set_bits(valid_i, unit, 1, 1);
            }
        }
        model.set(hold, u64::from(phase == 1 && chance.percent(10)));
        model.set(port_ready, u64::from(phase == 0 || chance.percent([100, 80, 30, 90][phase as usize])));
        let answers = !pending.is_empty() && chance.percent([100, 50, 90, 20][phase as usize]);
        let answer = answers.then(|| pending.swap_remove(chance.below(pending.len() as u64) as usize));
        model.set(port_rsp_valid, answers.into());
        if let Some(request) = answer {
            let (data, error) = answer_of(&request);
            model.set_bits(port_rsp, 0, 10, request.tag);
            model.set_bits(port_rsp, 10, 3, request.unit.into());
            model.set_bits(port_rsp, 13, 64, data);
            model.set_bits(port_rsp, 77, 1, error.into());
        }
        model.eval();
        let told = model.get(rsp_valid_o);
        match answer {
            None => assert_eq!(told, 0),
            Some(request) => {
                let (data, error) = answer_of(&request);
                assert_eq!(told, 1 << request.unit, "cycle {cycle}: the answer goes to another unit");
                assert_eq!(model.get_bits(rsp_o, 0, 10), request.tag);
                assert_eq!((model.get_bits(rsp_o, 10, 64), model.get_bits(rsp_o, 74, 1)), (data, error.into()));
                tags[request.unit as usize].push_back(request.tag);
                answered += 1;
            }
        }
        if model.get(port_valid) == 1 && model.get(port_ready) == 1 {
            let found = get(&model, port_req);
            assert_eq!(Some(found), on_way.pop_front(), "cycle {cycle}");
            pending.push(found);
        }
        let ready = model.get(ready_o);
        let taken = ready & model.get(valid_i);
        assert!(taken.count_ones() <= 1);
        for unit in 0..UNITS as usize {
            if taken & 1 << unit != 0 {
                on_way.extend(offers[unit].take());
                asked += 1;
                waited[unit] = 0;
            } else if offers[unit].is_some() && taken != 0 {
                waited[unit] += 1;
                assert!(waited[unit] < UNITS, "cycle {cycle}: unit {unit} starves");
                longest = longest.max(waited[unit]);
            }
        }
        model.tick();
        (0..UNITS).filter(|&unit| offers[unit as usize].is_none()).for_each(|unit| model.set_bits(valid_i, unit, 1, 0));
        let outstanding = on_way.len() + pending.len();
        assert!(outstanding <= INFLIGHT, "cycle {cycle}: {outstanding} wait");
        assert_eq!(model.get(quiet) == 1, outstanding == 0, "cycle {cycle}");
        most = most.max(outstanding);
    }
    assert_eq!((asked, on_way.len() + pending.len()), (answered, 0));
    assert_eq!((most, longest), (INFLIGHT, UNITS - 1), "the bounds are never reached");
    assert!(asked > 10_000, "{asked}");
}

#[test]
fn a_lone_unit_gets_a_word_a_cycle() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut model = module("lw_mem_arbiter", &[("Units", 4), ("Inflight", 128)]);
    let [valid, ready, port_ready, port_valid] =
        ["valid_i", "ready_o", "port_ready_i", "port_valid_o"].map(|name| port(&model, name));
    model.set(valid, 0b0100);
    model.set(port_ready, 1);
    for cycle in 0..100 {
        model.eval();
        assert_eq!(model.get(ready), 0b0100, "cycle {cycle}");
        assert_eq!(model.get(port_valid), u64::from(cycle > 0));
        model.tick();
    }
}

/// The AXI slave of the test: words of memory, and what waits to be answered.
#[derive(Default)]
struct Slave {
    words: HashMap<u64, u64>,
    addresses: VecDeque<(u64, u64)>,
    data: VecDeque<(u64, u64)>,
    reads: Vec<(u64, u64)>,
    writes: Vec<(u64, bool)>,
}

/// The response code that an address gets: mostly OKAY or EXOKAY, else SLVERR or DECERR.
fn code(addr: u64) -> u64 {
    match addr / 8 % 13 {
        0 => 2,
        1 => 3,
        2 => 1,
        _ => 0,
    }
}

#[test]
fn requests_become_axi_bursts_of_one_and_answers_find_back() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut model = module("lw_axi_master", &[]);
    let named = |name: &str| port(&model, name);
    let [valid_i, ready_o, req_i, rsp_valid, rsp] = ["valid_i", "ready_o", "req_i", "rsp_valid_o", "rsp_o"].map(named);
    let [awvalid, awready, awid, awaddr] = ["awvalid_o", "awready_i", "awid_o", "awaddr_o"].map(named);
    let [wvalid, wready, wdata, wstrb, wlast] = ["wvalid_o", "wready_i", "wdata_o", "wstrb_o", "wlast_o"].map(named);
    let [bvalid, bready, bid, bresp] = ["bvalid_i", "bready_o", "bid_i", "bresp_i"].map(named);
    let [arvalid, arready, arid, araddr] = ["arvalid_o", "arready_i", "arid_o", "araddr_o"].map(named);
    let [rvalid, rready, rid, rdata, rresp] = ["rvalid_i", "rready_o", "rid_i", "rdata_i", "rresp_i"].map(named);
    for (length, size, burst) in [("awlen_o", "awsize_o", "awburst_o"), ("arlen_o", "arsize_o", "arburst_o")] {
        assert_eq!([length, size, burst].map(|name| model.get(named(name))), [0, 3, 1]);
    }
    assert_eq!(model.get(wlast), 1);
    let mut chance = Random(seed(13));
    let mut slave = Slave::default();
    // By ID: what must be answered, and with which word.
    let mut open: HashMap<u64, Request> = HashMap::new();
    let mut shadow: HashMap<u64, u64> = HashMap::new();
    let mut busy: HashMap<u64, u64> = HashMap::new();
    let mut offer: Option<Request> = None;
    let (mut asked, mut answered, mut errors, mut id) = (0, 0, 0, 0_u64);
    let mut offered_read: Option<(u64, u64)> = None;
    let mut offered_write: Option<(u64, bool)> = None;
    for cycle in 0..60_000_u64 {
        let phase = cycle / 1000 % 4;
        if offer.is_none() && cycle < 59_000 && open.len() < 200 && chance.percent([100, 30, 90, 95][phase as usize]) {
            id = (id + 1) % 8192;
            let mut request = any(&mut chance, (id >> 10) as u32, id & 1023);
            // Few addresses, so that reads see writes; one request of each at a time, as they are not ordered.
            request.addr = 0x12_3456_7000 + chance.below(300);
            if !busy.contains_key(&request.addr) && !open.contains_key(&id) {
                busy.insert(request.addr, id);
                put(&mut model, req_i, 0, &request, true);
                offer = Some(request);
            }
        }
        model.set(valid_i, offer.is_some().into());
        let percent = [100, 70, 25, 90][phase as usize];
        for ready in [awready, wready, arready] {
            model.set(ready, chance.percent(percent).into());
        }
        // What is offered stays until it is taken.
        if offered_read.is_none() && !slave.reads.is_empty() && chance.percent(percent) {
            offered_read = Some(slave.reads.swap_remove(chance.below(slave.reads.len() as u64) as usize));
        }
        if offered_write.is_none() && !slave.writes.is_empty() && chance.percent(percent) {
            offered_write = Some(slave.writes.swap_remove(chance.below(slave.writes.len() as u64) as usize));
        }
        model.set(rvalid, offered_read.is_some().into());
        if let Some((id, addr)) = offered_read {
            model.set(rid, id);
            model.set(rresp, code(addr));
            model.set(rdata, slave.words.get(&addr).copied().unwrap_or(!addr));
        }
        model.set(bvalid, offered_write.is_some().into());
        if let Some((id, refused)) = offered_write {
            model.set(bid, id);
            model.set(bresp, if refused { 2 + (id & 1) } else { id & 1 });
        }
        model.eval();
        if model.get(rsp_valid) == 1 {
            let id = model.get_bits(rsp, 0, 13);
            let request = open.remove(&id).unwrap_or_else(|| panic!("cycle {cycle}: nobody waits for {id}"));
            let byte_addr = request.addr << 3;
            let error = code(byte_addr) >= 2;
            assert_eq!(model.get_bits(rsp, 77, 1) == 1, error, "cycle {cycle}: {request:x?}");
            if !request.write && !error {
                let expected = shadow.get(&byte_addr).copied().unwrap_or(!byte_addr);
                assert_eq!(model.get_bits(rsp, 13, 64), expected, "cycle {cycle}: {request:x?}");
            }
            errors += u64::from(error);
            answered += 1;
            busy.remove(&request.addr);
        }
        if let Some(request) = offer
            && model.get(ready_o) == 1
        {
            asked += 1;
            if request.write && code(request.addr << 3) < 2 {
                let word = shadow.entry(request.addr << 3).or_insert(!(request.addr << 3));
                *word = merge(*word, request.data, request.strobe);
            }
            open.insert(u64::from(request.unit) << 10 | request.tag, request);
            offer = None;
        }
        if model.get(awvalid) & model.get(awready) == 1 {
            slave.addresses.push_back((model.get(awid), model.get(awaddr)));
        }
        if model.get(wvalid) & model.get(wready) == 1 {
            slave.data.push_back((model.get(wdata), model.get(wstrb)));
        }
        if model.get(arvalid) & model.get(arready) == 1 {
            slave.reads.push((model.get(arid), model.get(araddr)));
        }
        if model.get(rready) == 1 {
            offered_read = None;
        }
        if model.get(bready) == 1 {
            offered_write = None;
        }
        while !slave.addresses.is_empty() && !slave.data.is_empty() {
            let ((id, addr), (data, strobe)) = (slave.addresses.remove(0).unwrap(), slave.data.remove(0).unwrap());
            let refused = code(addr) >= 2;
            if !refused {
                let word = slave.words.entry(addr).or_insert(!addr);
                *word = merge(*word, data, strobe);
            }
            slave.writes.push((id, refused));
        }
        model.tick();
    }
    assert_eq!((asked, open.len()), (answered, 0), "something was lost");
    assert!(asked > 10_000 && errors > 500, "{asked} requests, {errors} errors");
}

/// `old` with those bytes of `new` whose strobe is set.
fn merge(old: u64, new: u64, strobe: u64) -> u64 {
    let mask = (0..8).filter(|byte| strobe >> byte & 1 == 1).fold(0, |mask, byte| mask | 0xFF << (8 * byte));
    old & !mask | new & mask
}
