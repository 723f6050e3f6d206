//! The registers over AXI4-Lite: what the map says, what is refused, states, watchdog and counters; then the whole
//! machine with its rings in memory.

mod support;

use std::collections::HashMap;

use lockwork_verilated::{Model, Port};
use support::{Random, module, port, seed};

const STATE_STOPPED: u64 = 0;
const STATE_RUNNING: u64 = 1;
const STATE_DRAINING: u64 = 3;
const CONTROL: u64 = 0x80;
const STATUS: u64 = 0x84;
const ERROR: u64 = 0x88;
const REFUSED: u64 = 0x8C;
const WORKER: u64 = 0x2000;

/// The AXI4-Lite side of a module.
struct Host {
    model: Model,
    ports: HashMap<&'static str, Port>,
    memory: Option<Memory>,
}

/// Words of memory for the whole machine, with answers on their way.
struct Memory {
    words: HashMap<u64, u64>,
    answers: Vec<(u64, u32, u64, bool, u64)>,
    chance: Random,
    refuse: Option<u64>,
}

const NAMES: [&str; 14] = [
    "awvalid_i",
    "awready_o",
    "awaddr_i",
    "wvalid_i",
    "wready_o",
    "wdata_i",
    "wstrb_i",
    "bvalid_o",
    "bready_i",
    "bresp_o",
    "arvalid_i",
    "araddr_i",
    "rvalid_o",
    "rready_i",
];

impl Host {
    fn new(model: Model) -> Self {
        let more = ["arready_o", "rdata_o", "rresp_o", "interrupt_o"];
        let ports = NAMES.iter().chain(&more).map(|&name| (name, port(&model, name))).collect();
        let mut host = Self { model, ports, memory: None };
        host.set("bready_i", 1);
        host.set("rready_i", 1);
        host
    }

    fn get(&self, name: &str) -> u64 {
        self.model.get(self.ports[name])
    }

    fn set(&mut self, name: &str, value: u64) {
        self.model.set(self.ports[name], value);
    }

    fn tick(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.cycle(&mut self.model);
        }
        self.model.tick();
    }

    /// Writes a register; whether it was let.
    fn write_bytes(&mut self, addr: u64, value: u64, strobe: u64) -> bool {
        for (name, value) in [("awaddr_i", addr), ("wdata_i", value), ("wstrb_i", strobe)] {
            self.set(name, value);
        }
        self.set("awvalid_i", 1);
        self.set("wvalid_i", 1);
        for _ in 0..20 {
            self.model.eval();
            let taken = self.get("awready_o") & self.get("wready_o") == 1;
            let done = self.get("bvalid_o") == 1;
            let response = self.get("bresp_o");
            self.tick();
            if taken {
                self.set("awvalid_i", 0);
                self.set("wvalid_i", 0);
            }
            if done {
                return response == 0;
            }
        }
        panic!("no answer to a write of {addr:#x}");
    }

    fn write(&mut self, addr: u64, value: u64) -> bool {
        self.write_bytes(addr, value, 0xF)
    }

    /// Reads a register; `None` if it is refused.
    fn read(&mut self, addr: u64) -> Option<u64> {
        self.set("araddr_i", addr);
        self.set("arvalid_i", 1);
        for _ in 0..20 {
            self.model.eval();
            let taken = self.get("arready_o") == 1;
            let done = self.get("rvalid_o") == 1;
            let (value, response) = (self.get("rdata_o"), self.get("rresp_o"));
            self.tick();
            if taken {
                self.set("arvalid_i", 0);
            }
            if done {
                return (response == 0).then_some(value);
            }
        }
        panic!("no answer to a read of {addr:#x}");
    }

    fn state(&mut self) -> u64 {
        self.read(STATUS).expect("a status") & 7
    }

    fn wait_for(&mut self, state: u64) {
        assert!((0..20_000).any(|_| self.state() == state), "never in state {state}, but in {}", self.state());
    }
}

impl Memory {
    fn cycle(&mut self, model: &mut Model) {
        let named = |name: &str| port(model, name);
        let [valid, ready, req, rsp_valid, rsp] =
            ["mem_valid_o", "mem_ready_i", "mem_req_o", "mem_rsp_valid_i", "mem_rsp_i"].map(named);
        let now = model.cycles();
        let (mut told, mut taking) = (0, 0);
        for worker in 0..valid.bits {
            let due = self.answers.iter().position(|answer| answer.1 == worker && answer.0 <= now);
            if let Some((_, _, tag, error, data)) = due.map(|at| self.answers.swap_remove(at)) {
                told |= 1 << worker;
                model.set_bits(rsp, worker * 78, 13, tag);
                model.set_bits(rsp, worker * 78 + 13, 64, data);
                model.set_bits(rsp, worker * 78 + 77, 1, error.into());
            }
            taking |= u64::from(self.chance.percent(80)) << worker;
        }
        model.set(rsp_valid, told);
        model.set(ready, taking);
        model.eval();
        for worker in (0..valid.bits).filter(|worker| model.get(valid) & taking & 1 << worker != 0) {
            let bits = |low: u32, width: u32| model.get_bits(req, worker * 123 + low, width);
            let (tag, strobe, data, addr) = (bits(0, 13), bits(13, 8), bits(21, 64), bits(85, 37) << 3);
            let error = self.refuse == Some(addr);
            let word = self.words.entry(addr).or_insert(0);
            let answer = *word;
            if bits(122, 1) == 1 && !error {
                for byte in (0..8).filter(|byte| strobe >> byte & 1 == 1) {
                    *word = *word & !(0xFF << (8 * byte)) | data & 0xFF << (8 * byte);
                }
            }
            self.answers.push((now + 1 + self.chance.below(40), worker, tag, error, answer));
        }
    }
}

/// `lw_regs` alone with two workers that are idle and quiet.
fn registers() -> (Host, Port) {
    let mut host = Host::new(module("lw_regs", &[("Workers", 2), ("Contexts", 8)]));
    let status = port(&host.model, "status_i");
    (0..2).for_each(|worker| set_status(&mut host, status, worker, 0, 0, 0b11));
    let ready = port(&host.model, "ready_i");
    host.model.set(ready, 1);
    host.wait_for(STATE_STOPPED);
    (host, status)
}

/// What a worker tells: ring indices, and idle (1) and quiet (2).
fn set_status(host: &mut Host, status: Port, worker: u32, tail: u64, head: u64, flags: u64) {
    let base = worker * 104;
    host.model.set_bits(status, base, 64, 0xABCD_0000 + u64::from(worker));
    host.model.set_bits(status, base + 64, 6, 0);
    host.model.set_bits(status, base + 70, 1, flags >> 1);
    host.model.set_bits(status, base + 71, 1, flags & 1);
    host.model.set_bits(status, base + 72, 16, head);
    host.model.set_bits(status, base + 88, 16, tail);
}

#[test]
fn registers_read_as_the_map_says() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let (mut host, _) = registers();
    for (addr, value) in [(0, 0x4C57_5450), (4, 0x1_0000), (8, 2), (0xC, 8), (0x10, 1024), (0x30, 0), (0x38, 128)] {
        assert_eq!(host.read(addr), Some(value), "{addr:#x}");
    }
    let kept = [
        (0xA0, 1),
        (0xA4, 2047),
        (0xA8, 65_535),
        (0xAC, 77),
        (0xB0, 0xF_FFF0),
        (0xB4, 3),
        (0xC0, 0xA008),
        (0xC4, 0x1234_5678),
        (WORKER + 0x100, 0xFFFF_FFF8),
        (WORKER + 0x104, 0xFF),
        (WORKER + 0x08, 15),
        (WORKER + 0x120, 0x1000),
        (WORKER + 0x124, 1),
        (WORKER + 0x28, 7),
        (WORKER + 0x138, 0xFFFF_FFF0),
        (WORKER + 0x3C, 0xFF),
    ];
    for (addr, value) in kept {
        assert!(host.write(addr, value), "{addr:#x}");
    }
    for (addr, value) in kept {
        assert_eq!(host.read(addr), Some(value), "{addr:#x}");
    }
    assert_eq!(host.read(ERROR), Some(0));
}

#[test]
fn what_means_nothing_is_refused_and_changes_nothing() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let (mut host, _) = registers();
    // Address, value, error bit.
    let bad = [
        (0x000, 1, 1),
        (0x03C, 0, 1),
        (0x0A0, 3, 3),
        (0x0A4, 2048, 3),
        (0x0A8, 65_536, 3),
        (0x0B0, 8, 3),
        (0x0B0, 1 << 20, 3),
        (CONTROL, 0, 3),
        (CONTROL, 3, 3),
        (CONTROL, 32, 3),
        (WORKER, 4, 3),
        (WORKER + 4, 256, 3),
        (WORKER + 8, 16, 3),
        (WORKER + 0x38, 8, 3),
        (WORKER + 0x10, 0, 1),
        (WORKER + 0x200, 0, 1),
        (0x1000, 0, 1),
        (WORKER + 0x0C, 2, 4),
        (WORKER + 0x0C, 0x1_0000, 3),
        (WORKER + 0x30, 1, 4),
        (CONTROL, 2, 0),
        (CONTROL, 4, 0),
    ];
    for (addr, value, bit) in bad {
        let before = host.read(addr);
        host.write(ERROR, 0xFF);
        assert!(!host.write(addr, value), "{addr:#x} takes {value:#x}");
        assert_eq!(host.read(ERROR), Some(1 << bit), "{addr:#x} {value:#x}");
        assert_eq!(host.read(REFUSED), Some(addr), "{addr:#x}");
        assert_eq!(host.read(addr), before, "{addr:#x} has changed");
        assert!(host.write(ERROR, 1 << bit));
    }
    assert!(!host.write_bytes(0xA0, 1, 0x7));
    assert_eq!(host.read(ERROR), Some(4));
    assert_eq!(host.read(0xFFC), None);
    assert_eq!(host.read(ERROR), Some(4 | 2));
    assert!(host.write(ERROR, 4));
    assert_eq!(host.read(ERROR), Some(2));
}

#[test]
fn a_running_machine_is_not_set_up_and_stops_when_all_is_done() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let (mut host, status) = registers();
    assert!(host.write(WORKER + 8, 3) && host.write(WORKER + 0x0C, 8), "a full ring of eight");
    assert!(!host.write(WORKER + 0x0C, 9), "nine in a ring of eight");
    assert!(host.write(ERROR, 0xFF) && host.write(CONTROL, 1));
    host.wait_for(STATE_RUNNING);
    for addr in [0xA0, 0xA4, 0xA8, 0xAC, 0xB0, 0xC0, 0xC4, 0xC8, WORKER, WORKER + 8, WORKER + 0x20, WORKER + 0x38] {
        assert!(!host.write(addr, 0), "{addr:#x} while running");
        assert_eq!((host.read(ERROR), host.write(ERROR, 0xFF)), (Some(1), true));
    }
    // The worker takes five of eight, then the host rings in two more, and drains.
    set_status(&mut host, status, 0, 5, 3, 0b10);
    assert!(host.write(WORKER + 0x0C, 10) && host.write(WORKER + 0x30, 3));
    assert!(host.write(CONTROL, 4));
    host.wait_for(STATE_DRAINING);
    assert!(!host.write(WORKER + 0x0C, 11), "a doorbell while draining");
    set_status(&mut host, status, 0, 9, 9, 0b11);
    (0..20).for_each(|_| assert_eq!(host.state(), STATE_DRAINING));
    set_status(&mut host, status, 0, 10, 10, 0b01);
    (0..20).for_each(|_| assert_eq!(host.state(), STATE_DRAINING));
    set_status(&mut host, status, 0, 10, 10, 0b11);
    host.wait_for(STATE_STOPPED);
    let cycles = host.read(0xD0).unwrap() + (host.read(0xD4).unwrap() << 32);
    assert!(cycles > 100);
    (0..50).for_each(|_| host.tick());
    assert_eq!(host.read(0xD0), Some(cycles), "cycles go on while it is stopped");
    assert!(host.write(CONTROL, 8));
    set_status(&mut host, status, 0, 0, 0, 0b11);
    host.wait_for(STATE_STOPPED);
    assert_eq!([0x0C, 0x30].map(|at| host.read(WORKER + at)), [Some(0), Some(0)]);
    assert_eq!(host.read(0xD0), Some(0));
}

#[test]
fn a_worker_without_progress_is_stuck_and_keeps_its_state() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let (mut host, status) = registers();
    assert!(host.write(0xAC, 4) && host.write(0xB4, 2) && host.write(CONTROL, 1));
    set_status(&mut host, status, 1, 0, 0, 0b10);
    (0..500).for_each(|_| host.tick());
    assert_eq!((host.read(ERROR), host.read(0x90)), (Some(0), Some(0)), "too early");
    (0..1200).for_each(|_| host.tick());
    assert_eq!((host.read(ERROR), host.read(0x90)), (Some(0x40), Some(0b10)));
    assert_eq!(host.get("interrupt_o"), 1);
    host.model.set_bits(status, 104, 64, 0);
    assert_eq!(host.read(WORKER + 0x160), Some(0xABCD_0001), "the state when it barked");
    set_status(&mut host, status, 1, 0, 0, 0b11);
    assert!(host.write(ERROR, 0x40));
    assert_eq!((host.read(0x90), host.get("interrupt_o")), (Some(0), 0));
    // Events are counted, each by itself.
    host.model.set_bits(status, 64, 5, 0b10110);
    (0..7).for_each(|_| host.tick());
    host.model.set_bits(status, 64, 5, 0);
    let counts = [0x40, 0x44, 0x48, 0x4C, 0x50].map(|at| host.read(WORKER + at));
    assert_eq!(counts, [Some(7), Some(0), Some(7), Some(7), Some(0)]);
}

#[test]
fn the_machine_takes_blocks_from_its_rings_and_reports_them() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    const ENTRIES: u64 = 4;
    let seed = seed(17);
    let parameters = [("Workers", 2), ("Contexts", 4), ("Entries", 64), ("KeyWords", 1), ("HashSlots", 48)];
    let mut host = Host::new(module("lw_top_mem", &parameters));
    let memory = Memory { words: HashMap::new(), answers: Vec::new(), chance: Random(seed), refuse: None };
    host.memory = Some(memory);
    host.wait_for(STATE_STOPPED);
    let (submit, complete, block) = (0x1000_u64, 0x2000_u64, 0x10_0000_u64);
    for worker in 0..2 {
        let at = WORKER + 0x100 * worker;
        let rings = [(0x00, submit + 0x100 * worker), (0x08, 2), (0x20, complete + 0x100 * worker), (0x28, 2)];
        for (register, value) in rings {
            assert!(host.write(at + register, value));
        }
        assert!(host.write(at + 0x38, 0x8_0000 + 0x4000 * worker));
    }
    // One transaction at a time, so that they end in order.
    assert!(host.write(0xA0, 0) && host.write(0xB0, 0x400) && host.write(CONTROL, 1));
    // Blocks of a procedure that nobody has loaded, more than the rings hold at once; the host reads slowly.
    let (mut head, mut tail) = ([0_u64; 2], [0_u64; 2]);
    let (mut rounds, total) = (0, 23);
    while tail != [total; 2] {
        rounds += 1;
        assert!(rounds < 4000, "{head:?} were rung in, {tail:?} came back");
        for worker in 0..2_u64 {
            let at = WORKER + 0x100 * worker;
            let index = worker as usize;
            let free = ENTRIES - (head[index] - host.read(at + 0x10).unwrap());
            let words = &mut host.memory.as_mut().unwrap().words;
            for entry in head[index]..(head[index] + free).min(total) {
                words.insert(submit + 0x100 * worker + 8 * (entry % ENTRIES), block + 0x100 * entry + 0x8000 * worker);
                words.insert(block + 0x100 * entry + 0x8000 * worker, 5);
                head[index] = entry + 1;
            }
            assert!(host.write(at + 0x0C, head[index]));
            if rounds % 7 == 0 {
                let done = host.read(at + 0x2C).unwrap();
                assert!(done - tail[index] <= ENTRIES, "more completions than the ring holds");
                for entry in tail[index]..done {
                    let word =
                        host.memory.as_ref().unwrap().words[&(complete + 0x100 * worker + 8 * (entry % ENTRIES))];
                    assert_eq!(word & ((1 << 40) - 1), block + 0x100 * entry + 0x8000 * worker);
                    assert_eq!((word >> 40 & 0xFFFF, word >> 56 & 0x7F), (0xFF20, 3), "unknown procedure");
                    assert_eq!(word >> 63, 1 - entry / ENTRIES % 2, "lap of entry {entry}");
                }
                tail[index] = done;
                assert!(host.write(at + 0x30, done));
            }
        }
    }
    assert_eq!(host.read(WORKER + 0x40), Some(total));
    assert!(host.write(CONTROL, 4));
    host.wait_for(STATE_STOPPED);
    assert_eq!(host.read(ERROR), Some(0));
    assert_eq!(host.read(STATUS), Some(0x300));
    // Memory refuses a ring entry: an error, and the machine goes on with the next.
    let entry = submit + 8 * (total % ENTRIES);
    host.memory.as_mut().unwrap().refuse = Some(entry);
    host.memory.as_mut().unwrap().words.insert(submit + 8 * ((total + 1) % ENTRIES), block);
    assert!(host.write(WORKER + 0x0C, total + 2) && host.write(CONTROL, 1) && host.write(CONTROL, 4));
    host.wait_for(STATE_STOPPED);
    assert_eq!((host.read(ERROR), host.read(WORKER + 0x2C)), (Some(0x20), Some(total + 1)));
    // A reset in the middle of work ends with a machine that works.
    host.memory.as_mut().unwrap().refuse = None;
    assert!(host.write(WORKER + 0x30, total + 1) && host.write(ERROR, 0xFF));
    assert!(host.write(WORKER + 0x0C, total + 4) && host.write(CONTROL, 1) && host.write(CONTROL, 8));
    host.wait_for(STATE_STOPPED);
    assert!(host.write(WORKER + 0x0C, 1) && host.write(CONTROL, 1) && host.write(CONTROL, 4));
    host.wait_for(STATE_STOPPED);
    assert_eq!((host.read(WORKER + 0x2C), host.read(ERROR)), (Some(1), Some(0)));
}
