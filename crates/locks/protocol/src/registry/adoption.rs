//! The scan over all decision words for those of machines that are gone.
//!
//! It runs in steps, so that packets are decided on in between, and covers every machine that was gone when it began;
//! who dies meanwhile waits for the next. It begins only when no decision that still knew the machine can be under way
//! ([`Config::grace_ns`](super::Config::grace_ns)): from then on no word can come to name the machine, and one pass
//! finds all.
//!
//! | word of a machine that is gone | becomes | because |
//! |---|---|---|
//! | exclusive | free, next incarnation | the holder was there, and is gone; who waits asks again |
//! | shared, led | led by the registry, next incarnation | others may hold it, and nobody knows who until they enrol |

use crate::decider::Store;
use crate::word::{Machine, State, Word};

/// A lock whose agent was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adopted {
    /// The lock.
    pub lock: u64,
    /// Its new incarnation.
    pub incarnation: u32,
    /// Its token.
    pub token: u64,
}

/// A set of machines.
#[derive(Debug)]
struct Gone(Box<[u64; 1024]>);

impl Gone {
    fn of(machines: &[Machine]) -> Self {
        let mut bits = Box::new([0; 1024]);
        machines.iter().for_each(|machine| bits[machine.0 as usize / 64] |= 1 << (machine.0 % 64));
        Self(bits)
    }

    fn has(&self, machine: Machine) -> bool {
        self.0[machine.0 as usize / 64] >> (machine.0 % 64) & 1 == 1
    }
}

/// A scan under way.
#[derive(Debug)]
pub(super) struct Scan {
    gone: Gone,
    next: u64,
    pub(super) freed: u64,
    pub(super) adopted: Vec<(Machine, Adopted)>,
}

impl Scan {
    pub(super) fn new(machines: &[Machine]) -> Self {
        Self { gone: Gone::of(machines), next: 0, freed: 0, adopted: Vec::new() }
    }

    /// Looks at `most` locks. Whether that was all.
    pub(super) fn step(&mut self, store: &impl Store, most: u64) -> bool {
        let end = store.locks().min(self.next.saturating_add(most));
        for lock in self.next..end {
            self.settle(store, lock);
        }
        self.next = end;
        end == store.locks()
    }

    fn settle(&mut self, store: &impl Store, lock: u64) {
        // Readers may join while it is looked at, so it may take more than one attempt.
        loop {
            let old = store.load(lock);
            if old.state == State::Free || !self.gone.has(old.machine) {
                return;
            }
            let incarnation = store.profile().add(old.incarnation, 1);
            let state = if old.state == State::Exclusive { State::Free } else { State::Led };
            if store.swap(lock, old, Word { state, machine: Machine::REGISTRY, incarnation }) {
                if state == State::Free {
                    self.freed += 1;
                } else {
                    self.adopted.push((old.machine, Adopted { lock, incarnation, token: store.token(lock) }));
                }
                return;
            }
        }
    }
}
