//! A model of the card's memory, cycle by cycle.
//!
//! Every worker has a port that takes one 64-bit request a cycle and gives one answer a cycle. A request takes effect
//! when it is answered, so that two that are in flight together happen in the order of their answers, whatever that is:
//! a processor that relies on another order is found out.
//!
//! Each port is a wheel of cycles, and an answer stands in the cycle in which it is due or the first free one behind:
//! taking a request and giving an answer are a load and a store, and nothing is allocated while the clock runs.

use lockwork_memory::{Buffer, OutOfMemory, Pages};

use crate::card::{CardError, CardMemory, place};

/// Cycles of a wheel: the longest time that a request can take, with all that is in front of it.
const WHEEL: usize = 4096;
/// Requests of a port that may be in flight. Half a wheel stays free, so a place for an answer is near.
const MAX_IN_FLIGHT: usize = WHEEL / 4;
/// The longest latency, random part included.
pub const MAX_LATENCY: u32 = WHEEL as u32 / 2;
/// The parts of a word that bandwidth is counted in.
const PARTS: i64 = 1000;

/// How the memory behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// Cycles from a request to its answer.
    pub latency: u32,
    /// At most so many more, drawn anew for each request.
    pub extra: u32,
    /// Answers come when they are due, not in the order of the requests.
    pub reorder: bool,
    /// Words a cycle of each worker.
    pub words_each: f64,
    /// Words a cycle of all workers together.
    pub words_all: f64,
    /// How often in a thousand cycles a port takes nothing, whatever bandwidth there is.
    pub busy: u32,
    /// Answers an error for words in this range of addresses.
    pub bad_addresses: Option<(u64, u64)>,
    /// Answers an error to this request, counted from 1 over all ports.
    pub bad_request: Option<u64>,
    /// Answers this request, counted from 1 over all ports, so many cycles later than it should: [`NEVER`] is never.
    pub late_request: Option<(u64, u64)>,
    /// What random numbers begin with.
    pub seed: u64,
}

/// A delay of [`Behaviour::late_request`] that no simulation sees the end of.
pub const NEVER: u64 = u64::MAX;

impl Behaviour {
    /// The paper's machine (Convey HC-2: 80 cycles at 125 MHz), its 10 GB/s read as the peak of all workers together.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            latency: 80,
            extra: 0,
            reorder: false,
            words_each: 1.0,
            words_all: 10.0,
            busy: 0,
            bad_addresses: None,
            bad_request: None,
            late_request: None,
            seed: 1,
        }
    }

    /// The paper's machine, its peak read as that of each worker.
    #[must_use]
    pub fn paper_each() -> Self {
        Self { words_all: 16.0, ..Self::paper() }
    }

    /// Everything that may happen, by a seed: another latency, other gaps and another order for every request.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            latency: 1 + random.below(90) as u32,
            extra: random.below(120) as u32,
            reorder: random.below(4) > 0,
            words_each: 0.25 + random.below(4) as f64 / 4.0,
            words_all: 1.0 + random.below(10) as f64,
            busy: [0, 100, 500, 900][random.below(4) as usize],
            bad_addresses: None,
            bad_request: None,
            late_request: None,
            seed,
        }
    }
}

impl Default for Behaviour {
    fn default() -> Self {
        Self::paper()
    }
}

/// A request of a worker: a word at an address that is a multiple of 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Writes the bytes of `strobe`; else reads.
    pub write: bool,
    /// Byte address.
    pub address: u64,
    /// What to write.
    pub data: u64,
    /// Which bytes.
    pub strobe: u8,
    /// What the answer carries.
    pub tag: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Memory refused.
    pub error: bool,
    /// What was read; the word as it was before, for a write.
    pub data: u64,
    /// The tag of the request.
    pub tag: u64,
}

/// A small generator (xorshift64*).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    #[inline(always)]
    fn below(&mut self, n: u64) -> u64 {
        // Zero would stay zero.
        let mut word = self.0 | 1 << 63;
        word ^= word >> 12;
        word ^= word << 25;
        word ^= word >> 27;
        self.0 = word;
        ((u128::from(word.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(n)) >> 64) as u64
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Due {
    request: Request,
    taken: bool,
    error: bool,
}

#[derive(Debug)]
struct Port {
    wheel: Box<[Due]>,
    in_flight: usize,
    /// The cycle of the answer that was given a place last.
    last: u64,
    tokens: i64,
    words: u64,
    stalled: bool,
    /// What is held back, and until when.
    late: Option<(u64, Due)>,
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    bytes: Buffer,
    length: u64,
    behaviour: Behaviour,
    ports: Vec<Port>,
    random: Random,
    cycle: u64,
    requests: u64,
    tokens: i64,
    each: i64,
    all: i64,
    log: Option<Vec<Request>>,
}

impl Memory {
    /// Zeroed memory of `bytes` bytes, of which only those cost something that are used, behind so many ports.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the system refuses.
    pub fn new(bytes: u64, ports: usize, behaviour: Behaviour) -> Result<Self, OutOfMemory> {
        let port = || Port {
            wheel: vec![Due::default(); WHEEL].into(),
            in_flight: 0,
            last: 0,
            tokens: 0,
            words: 0,
            stalled: false,
            late: None,
        };
        let length = bytes & !7;
        let mut memory = Self {
            bytes: Buffer::zeroed(length as usize, Pages::Plain, "the memory of a simulated card")?,
            length,
            behaviour: Behaviour::paper(),
            ports: (0..ports).map(|_| port()).collect(),
            random: Random(0),
            cycle: 0,
            requests: 0,
            tokens: 0,
            each: 0,
            all: 0,
            log: None,
        };
        memory.behave(behaviour);
        Ok(memory)
    }

    /// Behaves so from now on. Values out of range are taken as the nearest possible ones.
    pub fn behave(&mut self, behaviour: Behaviour) {
        let parts = |words: f64| (words * PARTS as f64).clamp(1.0, 1e9) as i64;
        self.random = Random(behaviour.seed);
        (self.each, self.all) = (parts(behaviour.words_each), parts(behaviour.words_all));
        let latency = behaviour.latency.clamp(1, MAX_LATENCY - 1);
        let extra = behaviour.extra.min(MAX_LATENCY - 1 - latency);
        self.behaviour = Behaviour { latency, extra, ..behaviour };
        self.requests = 0;
    }

    /// How it behaves.
    #[must_use]
    pub fn behaviour(&self) -> &Behaviour {
        &self.behaviour
    }

    /// Keeps all requests from now on. Returns those that were kept so far.
    pub fn log(&mut self) -> Vec<Request> {
        self.log.replace(Vec::new()).unwrap_or_default()
    }

    /// Begins a cycle: gives every port its share of the bandwidth.
    #[inline]
    pub fn begin(&mut self) {
        self.cycle += 1;
        // What is not used is lost, and what was used too much is owed.
        self.tokens = (self.tokens + self.all).min(self.all.max(PARTS));
        let busy = self.behaviour.busy;
        for port in &mut self.ports {
            port.tokens = (port.tokens + self.each).min(self.each.max(PARTS));
            port.stalled = busy > 0 && self.random.below(1000) < u64::from(busy);
        }
    }

    /// Whether `port` takes a request in this cycle.
    #[inline]
    #[must_use]
    pub fn is_ready(&self, port: usize) -> bool {
        let Port { tokens, stalled, in_flight, .. } = self.ports[port];
        self.tokens >= PARTS.min(self.all) && tokens >= PARTS.min(self.each) && !stalled && in_flight < MAX_IN_FLIGHT
    }

    /// Takes a request, in a cycle in which the port is ready.
    #[inline]
    pub fn take(&mut self, port: usize, request: Request) {
        self.requests += 1;
        self.tokens -= PARTS;
        if let Some(log) = &mut self.log {
            log.push(request);
        }
        let behaviour = &self.behaviour;
        let extra = if behaviour.extra > 0 { self.random.below(u64::from(behaviour.extra) + 1) } else { 0 };
        let bad = |(from, to): (u64, u64)| (from..to).contains(&request.address);
        let error = behaviour.bad_request == Some(self.requests)
            || behaviour.bad_addresses.is_some_and(bad)
            || !request.address.is_multiple_of(8)
            || request.address >= self.length;
        let port = &mut self.ports[port];
        debug_assert!(port.in_flight < MAX_IN_FLIGHT, "a port that is not ready takes nothing");
        port.tokens -= PARTS;
        port.words += 1;
        port.in_flight += 1;
        let mut due = self.cycle + u64::from(behaviour.latency) + extra;
        if let Some((_, delay)) = behaviour.late_request.filter(|(number, _)| *number == self.requests) {
            port.late = Some((due.saturating_add(delay), Due { request, taken: true, error }));
            return;
        }
        if !behaviour.reorder {
            due = due.max(port.last + 1);
        }
        while port.wheel[due as usize % WHEEL].taken {
            due += 1;
        }
        port.last = port.last.max(due);
        port.wheel[due as usize % WHEEL] = Due { request, taken: true, error };
    }

    /// The answer that `port` gives in this cycle. Ask once a cycle, before [`Self::take`].
    #[inline]
    pub fn answer(&mut self, port: usize) -> Option<Answer> {
        let port = &mut self.ports[port];
        let due = &mut port.wheel[self.cycle as usize % WHEEL];
        let Due { request, error, .. } = if due.taken {
            due.taken = false;
            *due
        } else {
            // It comes in the first cycle that is free.
            port.late.take_if(|(when, _)| *when <= self.cycle)?.1
        };
        port.in_flight -= 1;
        if error {
            return Some(Answer { error, data: u64::MAX, tag: request.tag });
        }
        // SAFETY: the address is a multiple of 8 below the length, which is one too, so the word lies in the buffer.
        let data = unsafe {
            let word = self.bytes.as_ptr().add(request.address as usize).cast::<u64>();
            let before = u64::from_le(word.read());
            if request.write {
                let mask = MASKS[usize::from(request.strobe)];
                word.write((before & !mask | request.data & mask).to_le());
            }
            before
        };
        Some(Answer { error: false, data, tag: request.tag })
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ports.iter().all(|port| port.in_flight == 0)
    }

    /// Cycles so far.
    #[must_use]
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Words that each port has asked for.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        self.ports.iter().map(|port| port.words).collect()
    }
}

/// All bits of the bytes that each strobe names.
const MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    let mut at = 0;
    while at < 8 * 256 {
        let (strobe, byte) = (at / 8, at % 8);
        if strobe >> byte & 1 == 1 {
            masks[strobe] |= 0xFF << (8 * byte);
        }
        at += 1;
    }
    masks
};

impl CardMemory for Memory {
    fn bytes(&self) -> u64 {
        self.length
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), CardError> {
        let start = place(address, into.len(), self.length)?;
        // SAFETY: the range lies in the buffer, which is borrowed.
        unsafe { self.bytes.as_ptr().add(start).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CardError> {
        let start = place(address, bytes.len(), self.length)?;
        // SAFETY: as above.
        unsafe { self.bytes.as_ptr().add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: usize = 4;

    fn memory(behaviour: Behaviour) -> Memory {
        Memory::new(1 << 16, PORTS, behaviour).unwrap()
    }

    fn read(address: u64, tag: u64) -> Request {
        Request { address, tag, ..Request::default() }
    }

    /// Offers a request at every port in every cycle; gives back, for each port, the cycle and tag of every answer.
    fn run(memory: &mut Memory, cycles: u64) -> Vec<Vec<(u64, u64)>> {
        let mut answers = vec![Vec::new(); PORTS];
        for cycle in 0..cycles {
            memory.begin();
            for (port, answers) in answers.iter_mut().enumerate() {
                answers.extend(memory.answer(port).map(|answer| (cycle, answer.tag)));
                if memory.is_ready(port) {
                    memory.take(port, read(8 * cycle % 4096, cycle));
                }
            }
        }
        answers
    }

    #[test]
    fn the_papers_memory_answers_every_request_after_80_cycles_in_order() {
        let answers = run(&mut memory(Behaviour::paper()), 1000);
        for port in answers {
            let expected: Vec<_> = (80..1000).map(|cycle| (cycle, cycle - 80)).collect();
            assert_eq!(port, expected);
        }
    }

    #[test]
    fn bandwidth_is_what_was_said_each_and_together() {
        for (each, all, expected) in
            [(1.0, 10.0, 4.0), (0.5, 10.0, 2.0), (1.0, 3.0, 3.0), (0.3, 1.0, 1.0), (1.0, 0.1, 0.1)]
        {
            let mut memory = memory(Behaviour { words_each: each, words_all: all, ..Behaviour::paper() });
            run(&mut memory, 10_000);
            let words = memory.words();
            let rate = words.iter().sum::<u64>() as f64 / 10_000.0;
            assert!((rate - expected).abs() < 0.02, "{each} {all}: {rate} words a cycle");
        }
    }

    #[test]
    fn every_request_is_answered_once_whatever_happens() {
        for seed in 0..40 {
            let behaviour = Behaviour::random(seed);
            let mut memory = memory(behaviour.clone());
            let mut tags: Vec<Vec<bool>> = vec![Vec::new(); PORTS];
            let (mut answers, mut reordered) = (0, false);
            for cycle in 0..20_000 {
                memory.begin();
                for (port, tags) in tags.iter_mut().enumerate() {
                    if let Some(answer) = memory.answer(port) {
                        assert!(std::mem::take(&mut tags[answer.tag as usize]), "seed {seed}: answered twice");
                        reordered |= tags[..answer.tag as usize].iter().any(|waiting| *waiting);
                        answers += 1;
                    }
                    if cycle < 15_000 && memory.is_ready(port) {
                        memory.take(port, read(0, tags.len() as u64));
                        tags.push(true);
                    }
                }
            }
            assert!(memory.is_idle() && tags.iter().flatten().all(|waiting| !waiting), "seed {seed}");
            assert!(answers > 1000, "seed {seed}: {answers}");
            assert_eq!(reordered, behaviour.reorder && behaviour.extra > 0, "seed {seed}: {behaviour:?}");
        }
    }

    #[test]
    fn a_write_changes_the_bytes_of_its_strobe_when_it_is_answered() {
        let mut memory = memory(Behaviour { latency: 3, ..Behaviour::paper() });
        memory.write(16, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        memory.begin();
        memory.take(0, Request { write: true, address: 16, data: u64::MAX, strobe: 0b1000_0101, tag: 7 });
        for cycle in 1..=3 {
            assert_eq!(memory.read_word(16).unwrap(), 0x0807_0605_0403_0201, "cycle {cycle}");
            memory.begin();
            assert_eq!(memory.answer(0).is_some(), cycle == 3);
        }
        assert_eq!(memory.read_word(16).unwrap(), 0xFF07_0605_04FF_02FF);
    }

    #[test]
    fn errors_come_where_they_were_asked_for() {
        let behaviour =
            Behaviour { bad_addresses: Some((64, 72)), bad_request: Some(3), latency: 1, ..Behaviour::paper() };
        let mut memory = memory(behaviour);
        let errors =
            [(0, false), (64, true), (8, true), (72, false), (4, true), (1 << 16, true), ((1 << 16) - 8, false)];
        for (address, error) in errors {
            memory.begin();
            memory.take(2, read(address, 1));
            memory.begin();
            assert_eq!(memory.answer(2).map(|answer| answer.error), Some(error), "{address}");
        }
        assert!(memory.write(65_530, &[0; 8]).unwrap_err().to_string().contains("ends at 0x10000"));
    }

    #[test]
    fn an_answer_that_is_late_comes_once_and_holds_up_no_other() {
        for (delay, expected) in [(100, Some(181)), (NEVER, None)] {
            let mut memory = memory(Behaviour { late_request: Some((2, delay)), ..Behaviour::paper() });
            let mut answers = Vec::new();
            for cycle in 0..400_u64 {
                memory.begin();
                answers.extend(memory.answer(0).map(|answer| (answer.tag, cycle)));
                if cycle < 100 {
                    memory.take(0, read(8 * cycle, cycle));
                }
            }
            let late = answers.iter().find(|(tag, _)| *tag == 1).map(|(_, cycle)| *cycle);
            assert_eq!(late, expected);
            let others = answers.iter().filter(|(tag, _)| *tag != 1);
            assert!(others.clone().all(|(tag, cycle)| *cycle == tag + 80) && others.count() == 99);
            assert_eq!(memory.is_idle(), expected.is_some());
        }
    }
}
