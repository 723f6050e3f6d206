//! Memory with random latency: a request takes effect at some time between being asked and being answered, and answers
//! come in any order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::random::Random;

/// When memory answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// Percentage of cycles in which it takes no request.
    pub(crate) busy: u32,
}

impl Timing {
    pub(crate) fn steady(latency: u64) -> Self {
        Self { least: latency, most: latency, busy: 0 }
    }

    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5EED);
        let least = random.of(1..60);
        Self { least, most: least + random.of(0..120), busy: random.of(0..50) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) write: bool,
    pub(crate) address: u64,
    pub(crate) data: u64,
    pub(crate) strobe: u64,
    pub(crate) tag: u64,
}

#[derive(Debug)]
pub(crate) struct Memory {
    words: Vec<u64>,
    timing: Timing,
    random: Random,
    now: u64,
    accesses: Vec<(Access, u64, bool)>,
    /// Places in `accesses`.
    free: Vec<usize>,
    effects: BinaryHeap<Reverse<(u64, u64, usize)>>,
    answers: BinaryHeap<Reverse<(u64, u64, usize)>>,
    refused: u32,
    pub(crate) asked: u64,
}

impl Memory {
    pub(crate) fn new(bytes: u64, seed: u64, timing: Timing) -> Self {
        Self {
            words: vec![0; bytes as usize / 8],
            timing,
            random: Random::new(seed),
            now: 0,
            accesses: Vec::new(),
            free: Vec::new(),
            effects: BinaryHeap::new(),
            answers: BinaryHeap::new(),
            refused: 0,
            asked: 0,
        }
    }

    /// Refuses so many of a thousand requests.
    pub(crate) fn refuse(&mut self, of_thousand: u32) {
        self.refused = of_thousand;
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        assert_eq!(address % 8, 0, "address {address:#x}");
        self.words[address as usize / 8]
    }

    pub(crate) fn set_word(&mut self, address: u64, value: u64) {
        assert_eq!(address % 8, 0, "address {address:#x}");
        self.words[address as usize / 8] = value;
    }

    pub(crate) fn byte(&self, address: u64) -> u8 {
        (self.words[address as usize / 8] >> (address % 8 * 8)) as u8
    }

    pub(crate) fn set_byte(&mut self, address: u64, value: u8) {
        let shift = address % 8 * 8;
        let word = &mut self.words[address as usize / 8];
        *word = *word & !(0xFF << shift) | u64::from(value) << shift;
    }

    /// Whether a request is taken in this cycle.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.random.of(0..100) >= self.timing.busy
    }

    pub(crate) fn ask(&mut self, access: Access) {
        let words = self.words.len() as u64;
        assert!(access.address / 8 < words && access.address >= 64, "access outside of memory: {access:x?}");
        let refused = self.random.of(0..1_000) < self.refused;
        let answer = self.now + self.random.of(self.timing.least..=self.timing.most);
        let effect = if self.timing.least == self.timing.most { answer } else { self.random.of(self.now..=answer) };
        let place = self.free.pop().unwrap_or_else(|| {
            self.accesses.push((access, 0, false));
            self.accesses.len() - 1
        });
        self.accesses[place] = (access, 0, refused);
        let order = if self.timing.least == self.timing.most { self.asked } else { self.random.any() };
        self.effects.push(Reverse((effect, order, place)));
        self.answers.push(Reverse((answer, order, place)));
        self.asked += 1;
    }

    /// Lets a cycle pass; returns (tag, data, refused) of an answer.
    pub(crate) fn step(&mut self) -> Option<(u64, u64, bool)> {
        while let Some(&Reverse((at, _, place))) = self.effects.peek() {
            if at > self.now {
                break;
            }
            self.effects.pop();
            let (access, data, refused) = &mut self.accesses[place];
            let word = &mut self.words[access.address as usize / 8];
            *data = *word;
            if access.write && !*refused {
                let mask = (0..8).filter(|i| access.strobe >> i & 1 == 1).fold(0, |mask, i| mask | 0xFF_u64 << (8 * i));
                *word = *word & !mask | access.data & mask;
            }
        }
        let come = self.answers.peek().is_some_and(|Reverse((at, ..))| *at <= self.now);
        self.now += 1;
        if !come {
            return None;
        }
        let Reverse((_, _, place)) = self.answers.pop()?;
        let (access, data, refused) = self.accesses[place];
        self.free.push(place);
        let data = if access.write || refused { self.random.any() } else { data };
        Some((access.tag, data, refused))
    }
}
