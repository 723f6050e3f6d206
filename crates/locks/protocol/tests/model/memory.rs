//! What the decider decides with: one lock, and a fixed set of machines.
//!
//! A decision is one step of the model, so nobody else swaps between.

use lockwork_lock_protocol::decider::{Sessions, Store, TOKEN_STEP};
use lockwork_lock_protocol::word::{Machine, Profile, Word};
use std::cell::Cell;

/// The decider's memory: one lock, for the time of one decision.
pub(crate) struct Memory {
    pub(crate) word: Cell<Word>,
    pub(crate) token: Cell<u64>,
}

impl Store for Memory {
    fn locks(&self) -> u64 {
        1
    }
    fn profile(&self) -> Profile {
        Profile::Wide
    }
    fn load(&self, _: u64) -> Word {
        self.word.get()
    }
    fn swap(&self, _: u64, old: Word, new: Word) -> bool {
        assert_eq!(self.word.get(), old, "nobody else decides");
        self.word.set(new);
        true
    }
    fn token(&self, _: u64) -> u64 {
        self.token.get()
    }
    fn next_token(&self, _: u64) -> u64 {
        self.token.set(self.token.get() + TOKEN_STEP);
        self.token.get()
    }
}

/// As many machines as there are; the session of each is its number and 100.
pub(crate) struct Members(pub(crate) usize);

impl Sessions for Members {
    fn session(&self, machine: Machine) -> Option<u32> {
        match machine.0 {
            0 => Some(Machine::REGISTRY_SESSION),
            number => (usize::from(number) <= self.0).then(|| session(machine)),
        }
    }
}

pub(crate) fn session(machine: Machine) -> u32 {
    100 + u32::from(machine.0)
}

pub(crate) fn machine(host: usize) -> Machine {
    Machine(host as u16 + 1)
}
