//! Starvation: a transaction that meets conflict after conflict runs exclusively.
//!
//! Under timestamp ordering transactions can go on making each other come too late: whoever begins again is younger,
//! and may have touched a row before an older one gets there. Boosts (`clock.rs`) break most of such rings, but those
//! who are all boosted alike can go round in one for ever.
//!
//! So a transaction that has met [`STORM`] conflicts asks for calm: until it has ended, no other one begins, for the
//! first time or again. Those in flight end, because they wait for older ones only. Then it is alone, and each
//! conflict that it still meets, with times that others have left on rows, tells it a time to be above.
//!
//! Invariant: at most one transaction has calm, and whoever is not admitted holds nothing. Trade-off: workers run dry
//! for as long as one transaction takes; but without it they would be busy with conflicts.

use std::sync::atomic::{AtomicU32, Ordering};

/// Conflicts after which a transaction wants to be alone.
const STORM: u32 = 20;

/// Who is to be alone, if anybody is. See the module.
#[derive(Debug, Default)]
pub(super) struct Calm(AtomicU32);

/// How the transaction in a slot of a worker is called; not zero.
fn name(worker: usize, slot: usize) -> u32 {
    (worker << 16 | slot) as u32 + 1
}

impl Calm {
    /// Whether the transaction in this slot of this worker, which has met so many conflicts, may begin now.
    // No data hangs on the word, only who begins; so relaxed loads and stores do.
    #[inline(always)]
    pub(super) fn admits(&self, worker: usize, slot: usize, conflicts: u32) -> bool {
        let alone = self.0.load(Ordering::Relaxed);
        if alone == 0 && conflicts < STORM {
            return true;
        }
        alone == name(worker, slot) || alone == 0 && self.ask(worker, slot)
    }

    #[cold]
    fn ask(&self, worker: usize, slot: usize) -> bool {
        self.0.compare_exchange(0, name(worker, slot), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes that the transaction in this slot has ended.
    #[inline(always)]
    pub(super) fn leave(&self, worker: usize, slot: usize, conflicts: u32) {
        if conflicts >= STORM && self.0.load(Ordering::Relaxed) == name(worker, slot) {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_is_alone() {
        let calm = Calm::default();
        assert!(calm.admits(0, 0, 0) && calm.admits(1, 3, STORM - 1));
        assert!(calm.admits(1, 3, STORM), "who asks first");
        assert!(!calm.admits(0, 0, 0) && !calm.admits(1, 4, STORM + 9));
        assert!(calm.admits(1, 3, STORM + 1), "it begins again");
        calm.leave(1, 4, STORM + 9);
        assert!(!calm.admits(0, 0, 0), "another one ended");
        calm.leave(1, 3, STORM + 2);
        assert!(calm.admits(0, 0, 0) && calm.admits(255, 1_023, STORM));
    }
}
