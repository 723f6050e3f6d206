//! Memory as the index sees it: words, answers late and in any order, ports that are sometimes busy.

use lockwork_random::Random;

/// How memory behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    /// Cycles from the request to its answer, at least and at most.
    pub(crate) latency: (u64, u64),
    /// How many of 100 cycles a port takes no request in.
    pub(crate) busy: u64,
    /// How many of 10,000 requests memory refuses, except those that take an install back.
    pub(crate) refused: u64,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    due: u64,
    write: bool,
    word: usize,
    data: u64,
    strobe: u64,
    tag: u64,
}

/// What a request of a port is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) write: bool,
    pub(crate) word: u64,
    pub(crate) data: u64,
    pub(crate) strobe: u64,
    pub(crate) tag: u64,
}

#[derive(Debug)]
pub(crate) struct Memory {
    words: Vec<u64>,
    behaviour: Behaviour,
    ports: Vec<Vec<Pending>>,
}

impl Memory {
    pub(crate) fn new(bytes: usize, ports: usize, behaviour: Behaviour) -> Self {
        Self { words: vec![0; bytes / 8], behaviour, ports: vec![Vec::new(); ports] }
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        assert_eq!(address % 8, 0, "an aligned address");
        self.words[address as usize / 8]
    }

    pub(crate) fn set_word(&mut self, address: u64, value: u64) {
        assert_eq!(address % 8, 0, "an aligned address");
        self.words[address as usize / 8] = value;
    }

    pub(crate) fn byte(&self, address: u64) -> u8 {
        self.words[address as usize / 8].to_le_bytes()[address as usize % 8]
    }

    pub(crate) fn set_byte(&mut self, address: u64, value: u8) {
        let word = &mut self.words[address as usize / 8];
        let mut bytes = word.to_le_bytes();
        bytes[address as usize % 8] = value;
        *word = u64::from_le_bytes(bytes);
    }

    pub(crate) fn is_ready(&self, random: &mut Random) -> bool {
        self.behaviour.busy == 0 || random.below(100) >= self.behaviour.busy
    }

    pub(crate) fn take(&mut self, port: usize, now: u64, request: Request, random: &mut Random) {
        let (least, most) = self.behaviour.latency;
        let due = now + least + if most > least { random.below(most - least + 1) } else { 0 };
        let Request { write, word, data, strobe, tag } = request;
        assert!((word as usize) < self.words.len(), "word {word:#x} is outside of memory");
        self.ports[port].push(Pending { due, write, word: word as usize, data, strobe, tag });
    }

    /// An answer for a port, if one is due: (refused, data, tag). What a request does, it does now.
    pub(crate) fn answer(&mut self, port: usize, now: u64, random: &mut Random) -> Option<(bool, u64, u64)> {
        let pending = &mut self.ports[port];
        let due: Vec<usize> = (0..pending.len()).filter(|&at| pending[at].due <= now).collect();
        let ordered = self.behaviour.latency.0 == self.behaviour.latency.1;
        let at = *due.get(if ordered || due.is_empty() { 0 } else { random.below(due.len() as u64) as usize })?;
        let Pending { write, word, data, strobe, tag, .. } = pending.remove(at);
        let undo = tag & 0x207 == 3;
        if self.behaviour.refused > 0 && !undo && random.below(10_000) < self.behaviour.refused {
            return Some((true, 0xBAD0_BAD0_BAD0_BAD0, tag));
        }
        if write {
            let mask = (0..8).filter(|bit| strobe >> bit & 1 == 1).fold(0, |mask, bit| mask | 0xFF_u64 << (8 * bit));
            self.words[word] = self.words[word] & !mask | data & mask;
            return Some((false, 0x5555_AAAA_5555_AAAA, tag));
        }
        Some((false, self.words[word], tag))
    }
}
