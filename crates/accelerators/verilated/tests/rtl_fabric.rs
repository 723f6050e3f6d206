//! The message fabric as crossbar and as ring: what is sent arrives once, unchanged and in order between any two
//! workers, under every back-pressure, and how many cycles it takes.

mod support;

use std::collections::VecDeque;

use lockwork_verilated::{Model, Port};
use support::{Random, module, port, seed};

const CROSSBAR: u64 = 0;
const RING: u64 = 1;
const REQUEST_BITS: u32 = 156;
const RESPONSE_BITS: u32 = 82;
/// Where `ret.worker` of a response is.
const RESPONSE_DEST: u32 = 78;

/// One channel: its ports, and bits of a message.
struct Channel {
    valid_i: Port,
    ready_o: Port,
    data_i: Port,
    dest_i: Option<Port>,
    valid_o: Port,
    ready_i: Port,
    data_o: Port,
    bits: u32,
}

impl Channel {
    fn requests(model: &Model) -> Self {
        Self::new(model, "request", REQUEST_BITS, Some(port(model, "request_dest_i")))
    }

    fn responses(model: &Model) -> Self {
        Self::new(model, "response", RESPONSE_BITS, None)
    }

    fn new(model: &Model, name: &str, bits: u32, dest_i: Option<Port>) -> Self {
        let named = |suffix: &str| port(model, &format!("{name}_{suffix}"));
        Self {
            valid_i: named("valid_i"),
            ready_o: named("ready_o"),
            data_i: named("i"),
            dest_i,
            valid_o: named("valid_o"),
            ready_i: named("ready_i"),
            data_o: named("o"),
            bits,
        }
    }

    /// Offers a message: all its bits follow from `word`, but for the receiver.
    fn offer(&self, model: &mut Model, from: u32, to: u32, word: &[u64; 3]) {
        let base = from * self.bits;
        model.set_bits(self.valid_i, from, 1, 1);
        for (part, low, bits) in parts(self.bits) {
            model.set_bits(self.data_i, base + low, bits, word[part] & (u64::MAX >> (64 - bits)));
        }
        match self.dest_i {
            Some(dest) => model.set_bits(dest, 4 * from, 4, u64::from(to)),
            None => model.set_bits(self.data_i, base + RESPONSE_DEST, 4, u64::from(to)),
        }
    }

    /// The message at `to` as it was offered there.
    fn arrived(&self, model: &Model, to: u32, word: &[u64; 3]) -> bool {
        parts(self.bits).all(|(part, low, bits)| {
            let keep = if self.dest_i.is_none() && low + bits > RESPONSE_DEST { u64::MAX >> 50 } else { u64::MAX };
            let found = model.get_bits(self.data_o, to * self.bits + low, bits);
            found & keep == word[part] & keep & (u64::MAX >> (64 - bits))
        })
    }
}

/// Part, first bit, bits.
fn parts(bits: u32) -> impl Iterator<Item = (usize, u32, u32)> {
    (0..bits.div_ceil(64)).map(move |part| (part as usize, 64 * part, (bits - 64 * part).min(64)))
}

/// A message of this sender with this number.
fn message(from: u32, number: u64) -> [u64; 3] {
    // The sender is in bits that no channel cuts off, for the receiver to know.
    let mut chance = Random(number << 8 | u64::from(from));
    [chance.next_u64() & !0xF | u64::from(from), chance.next_u64(), chance.next_u64()]
}

fn random(topology: u64, workers: u32, requests: bool) {
    let mut model = module("lw_fabric", &[("Topology", topology), ("Workers", workers.into())]);
    let channel = if requests { Channel::requests(&model) } else { Channel::responses(&model) };
    let mut chance = Random(seed(7));
    let size = workers as usize;
    let mut sent = 0_u64;
    let mut received = 0_u64;
    let mut offers: Vec<Option<(u32, [u64; 3])>> = vec![None; size];
    let mut expected: Vec<Vec<VecDeque<[u64; 3]>>> = vec![vec![VecDeque::new(); size]; size];
    let mut quiet_cycles = 0;
    for cycle in 0..30_000_u64 {
        // Phases: everything open, everything tight, one receiver closed, silence.
        let phase = cycle / 500 % 4;
        let silent = phase == 3 || cycle > 28_000;
        for from in 0..workers {
            if offers[from as usize].is_none() && !silent && chance.percent([90, 40, 70, 0][phase as usize]) {
                let to = (from + 1 + chance.below(u64::from(workers) - 1) as u32) % workers;
                let word = message(from, sent);
                sent += 1;
                offers[from as usize] = Some((to, word));
                channel.offer(&mut model, from, to, &word);
            }
        }
        let mut taking = 0_u64;
        for to in 0..workers {
            let open = match phase {
                0 => true,
                1 => chance.percent(30),
                2 => u64::from(to) != cycle / 2000 % u64::from(workers) && chance.percent(80),
                _ => true,
            };
            taking |= u64::from(open) << to;
        }
        model.set(channel.ready_i, taking);
        model.eval();
        let (ready, valid) = (model.get(channel.ready_o), model.get(channel.valid_o));
        for to in 0..workers {
            if valid & taking & 1 << to != 0 {
                let from = (model.get_bits(channel.data_o, to * channel.bits, 4)) as usize;
                let first = expected[from][to as usize].pop_front();
                let first = first.unwrap_or_else(|| panic!("cycle {cycle}: {to} got what {from} never sent it"));
                assert!(channel.arrived(&model, to, &first), "cycle {cycle}: {from} to {to}: not the next, or changed");
                received += 1;
            }
        }
        for from in 0..workers {
            if let Some((to, word)) = offers[from as usize]
                && ready & 1 << from != 0
            {
                expected[from as usize][to as usize].push_back(word);
                offers[from as usize] = None;
            }
        }
        quiet_cycles = if silent && phase != 2 { quiet_cycles + 1 } else { 0 };
        let waiting: usize = expected.iter().flatten().map(VecDeque::len).sum();
        // All that fits into the queues may be for the same receiver, which takes one a cycle.
        if quiet_cycles > 90 * u64::from(workers) {
            assert_eq!(waiting + offers.iter().flatten().count(), 0, "cycle {cycle}: it does not drain");
        }
        model.tick();
        for (from, offer) in offers.iter().enumerate() {
            if offer.is_none() {
                model.set_bits(channel.valid_i, from as u32, 1, 0);
            }
        }
    }
    assert_eq!(sent, received);
    assert!(sent > 3000 * u64::from(workers), "only {sent} were sent");
    println!("topology {topology}, {workers} workers: {sent} messages");
}

#[test]
fn a_crossbar_delivers_once_and_in_order() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    random(CROSSBAR, 2, true);
    random(CROSSBAR, 4, true);
    random(CROSSBAR, 4, false);
}

#[test]
fn a_ring_delivers_once_and_in_order() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    random(RING, 2, true);
    random(RING, 4, true);
    random(RING, 4, false);
    random(RING, 8, true);
}

/// Cycles from the one in which a request is offered to the one in which the answer, given at once, is there.
fn round_trip(topology: u64, workers: u32, from: u32, to: u32) -> u64 {
    let mut model = module("lw_fabric", &[("Topology", topology), ("Workers", workers.into())]);
    let (requests, responses) = (Channel::requests(&model), Channel::responses(&model));
    model.set(requests.ready_i, (1 << workers) - 1);
    model.set(responses.ready_i, (1 << workers) - 1);
    requests.offer(&mut model, from, to, &message(from, 1));
    model.eval();
    let begin = model.cycles();
    loop {
        assert!(model.cycles() - begin < 100, "no answer");
        if model.get(responses.valid_o) & 1 << from != 0 {
            assert!(responses.arrived(&model, from, &message(to, 2)));
            return model.cycles() - begin;
        }
        if model.get(requests.valid_o) & 1 << to != 0 {
            assert!(requests.arrived(&model, to, &message(from, 1)));
            responses.offer(&mut model, to, from, &message(to, 2));
            model.eval();
        }
        let taken = (model.get(requests.ready_o), model.get(responses.ready_o));
        model.tick();
        if taken.0 & 1 << from != 0 {
            model.set(requests.valid_i, 0);
        }
        if taken.1 & 1 << to != 0 && model.get_bits(responses.valid_i, to, 1) == 1 {
            model.set(responses.valid_i, 0);
        }
        model.eval();
    }
}

#[test]
fn a_request_to_a_neighbour_and_its_answer_take_four_cycles() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for (topology, workers) in [(CROSSBAR, 4), (RING, 4), (RING, 8)] {
        for from in 0..workers {
            for to in [(from + 1) % workers, (from + workers - 1) % workers] {
                assert_eq!(round_trip(topology, workers, from, to), 4, "{topology}: {from} to {to}");
            }
        }
    }
    // On a ring every further hop is a cycle each way.
    assert_eq!(round_trip(RING, 8, 1, 5), 10);
}

#[test]
fn neighbours_exchange_a_message_a_cycle() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for topology in [CROSSBAR, RING] {
        let mut model = module("lw_fabric", &[("Topology", topology), ("Workers", 4)]);
        let channel = Channel::requests(&model);
        model.set(channel.ready_i, 0xF);
        let mut received = 0;
        for number in 0..1000 {
            (0..4).for_each(|from| channel.offer(&mut model, from, (from + 1) % 4, &message(from, number)));
            model.eval();
            received += model.get(channel.valid_o).count_ones();
            model.tick();
        }
        assert!(received >= 4 * 997, "topology {topology}: {received} of 4000");
    }
}

/// Messages a worker receives in 100 cycles when all send whenever they can, to any other, and a receiver takes a
/// message a cycle in one of `closed` + 1 spells of eight cycles, drawn at random.
fn saturated(topology: u64, closed: u64) -> f64 {
    const CYCLES: u64 = 20_000;
    let mut model = module("lw_fabric", &[("Topology", topology), ("Workers", 4)]);
    let channel = Channel::requests(&model);
    let mut chance = Random(seed(11));
    let mut offered = [false; 4];
    let (mut received, mut taking) = ([0_u64; 4], 0);
    for cycle in 0..CYCLES {
        for from in 0..4_u32 {
            if !offered[from as usize] {
                let to = (from + 1 + chance.below(3) as u32) % 4;
                channel.offer(&mut model, from, to, &message(from, cycle));
                offered[from as usize] = true;
            }
        }
        if cycle % 8 == 0 {
            taking = (0..4).fold(0, |taking, to| taking | u64::from(chance.below(closed + 1) == 0) << to);
        }
        model.set(channel.ready_i, taking);
        model.eval();
        let (ready, taken) = (model.get(channel.ready_o), model.get(channel.valid_o) & taking);
        for worker in 0..4 {
            received[worker] += taken >> worker & 1;
            offered[worker] &= ready >> worker & 1 == 0;
        }
        model.tick();
    }
    let least = *received.iter().min().expect("four workers");
    println!("topology {topology}, closed {closed}: {received:?} in {CYCLES} cycles");
    100.0 * least as f64 / CYCLES as f64
}

/// Nobody gets less than so many messages in 100 cycles. Whoever is closed for a while must not keep others from what
/// they are sent: of spells of which one in four is open, most of the possible 25 messages come.
#[test]
fn random_receivers_get_most_of_what_they_can_take() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for (topology, open, one_in_four) in [(CROSSBAR, 66.0, 20.5), (RING, 85.0, 22.0)] {
        let (all, some) = (saturated(topology, 0), saturated(topology, 3));
        println!("topology {topology}: {all:.1} and {some:.1} messages in 100 cycles");
        assert!(all >= open && some >= one_in_four, "topology {topology}: {all:.1}, {some:.1}");
    }
}
