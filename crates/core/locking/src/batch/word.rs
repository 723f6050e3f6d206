//! The decision word of the batch lock manager: all that a batch knows about one record.
//!
//! ```text
//! bits  0..24   chain       the chain that holds the record: the position of its first transaction in the batch
//! bit   24      many        several chains hold it, side by side, in one compatible mode; `chain` means nothing then
//! bits 25..27   held        the join of the modes granted in this batch; 0 = nobody
//! bits 27..29   reserved    the join of the modes that deferred transactions will want; 0 = nobody
//! bit   29      written     somebody asked for more than shared in this batch
//! bits 30..32   heat        0 = cold; else how many batches without a writer until the record is cold again
//! bits 32..64   epoch       the batch for which bits 0..30 hold
//! ```
//!
//! A word whose epoch is not the current one reads as "nobody, nothing reserved", and only `heat` lives on. That is
//! what makes the release of a whole batch one addition.
//!
//! Invariant: `many` implies that `held` is shared or intent; `held` exclusive implies that `chain` is the only chain
//! whose transactions touched the record in this batch.

use crate::LockMode;

/// Largest number of transactions in one batch: what the `chain` field can tell apart.
pub const CHAIN_LIMIT: u32 = 1 << 24;

const CHAIN_MASK: u32 = CHAIN_LIMIT - 1;
const MANY: u32 = 1 << 24;
const HELD_SHIFT: u32 = 25;
const RESERVED_SHIFT: u32 = 27;
const WRITTEN_SHIFT: u32 = 29;
const HEAT_SHIFT: u32 = 30;
const MODE_MASK: u32 = 3;
const HOTTEST: u32 = 3;

/// The lower half of a decision word, valid for the current epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u32);

/// Whether the two-bit modes `a` (0 = none) and `b` exclude each other.
#[inline(always)]
const fn clash(a: u32, b: u32) -> bool {
    a != 0 && (a != b || b == MODE_MASK)
}

impl State {
    /// Reads a stored word as of `epoch`. A word of another epoch cools by one if its last batch had no writer.
    #[inline(always)]
    pub(super) const fn read(word: u64, epoch: u32) -> Self {
        let state = word as u32;
        let heat = state >> HEAT_SHIFT;
        let quiet = 1 - ((state >> WRITTEN_SHIFT) & 1);
        let cooled = heat.saturating_sub(quiet) << HEAT_SHIFT;
        Self(if (word >> 32) as u32 == epoch { state } else { cooled })
    }

    /// The word to store.
    #[inline(always)]
    pub(super) const fn write(self, epoch: u32) -> u64 {
        (epoch as u64) << 32 | self.0 as u64
    }

    #[inline(always)]
    const fn held(self) -> u32 {
        self.0 >> HELD_SHIFT & MODE_MASK
    }

    /// The mode in which `mode` is granted here: a hot record is taken exclusively by readers too, so that readers and
    /// writers form one chain.
    #[inline(always)]
    const fn effective(self, mode: LockMode) -> u32 {
        mode.bits() | if self.is_hot() { MODE_MASK } else { 0 }
    }

    /// Whether a deferred transaction reserved the record against `mode`.
    #[inline(always)]
    pub(super) const fn is_reserved_against(self, mode: LockMode) -> bool {
        clash(self.0 >> RESERVED_SHIFT & MODE_MASK, mode.bits())
    }

    /// Whether `mode` must come after somebody who holds the record in this batch.
    #[inline(always)]
    pub(super) const fn is_held_against(self, mode: LockMode) -> bool {
        clash(self.held(), self.effective(mode))
    }

    /// Whether several chains hold the record side by side.
    #[inline(always)]
    pub(super) const fn is_held_by_many(self) -> bool {
        self.0 & MANY != 0
    }

    /// Whether readers of this record are chained with its writers.
    #[inline(always)]
    pub(super) const fn is_hot(self) -> bool {
        self.0 >> HEAT_SHIFT != 0
    }

    /// The one chain that holds the record; means something only if somebody holds it and not many do.
    #[inline(always)]
    pub(super) const fn chain(self) -> u32 {
        self.0 & CHAIN_MASK
    }

    /// After a transaction of `chain` was granted `mode`.
    #[inline(always)]
    pub(super) const fn granted(self, chain: u32, mode: LockMode) -> Self {
        let bits = self.0 & !CHAIN_MASK | self.effective(mode) << HELD_SHIFT | Self::written(mode);
        let beside = self.held() != 0 && self.chain() != chain;
        Self(bits | chain | if beside { MANY } else { 0 })
    }

    /// After a transaction that wants `mode` was deferred. One that was refused because many hold the record heats it.
    #[inline(always)]
    pub(super) const fn reserved(self, mode: LockMode) -> Self {
        let hot = self.is_held_by_many() && clash(self.held(), mode.bits());
        let heat = if hot { HOTTEST << HEAT_SHIFT } else { 0 };
        Self(self.0 | mode.bits() << RESERVED_SHIFT | Self::written(mode) | heat)
    }

    #[inline(always)]
    const fn written(mode: LockMode) -> u32 {
        (mode.bits() >> 1) << WRITTEN_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockMode::{Exclusive, IntentExclusive, Shared};

    const NEW: State = State(0);

    #[test]
    fn the_next_epoch_forgets_all_but_the_heat() {
        let state = NEW.granted(5, Shared).granted(6, Shared).reserved(Exclusive);
        assert!(state.is_hot() && state.is_held_by_many() && state.is_reserved_against(Shared));
        let next = State::read(state.write(7), 8);
        assert!(next.is_hot() && !next.is_held_by_many());
        assert!(!next.is_reserved_against(Exclusive) && !next.is_held_against(Exclusive));
    }

    #[test]
    fn heat_fades_after_three_batches_without_a_writer_and_stays_with_one() {
        let mut state = NEW.granted(5, Shared).granted(6, Shared).reserved(Exclusive);
        for epoch in 2..20 {
            state = State::read(state.write(epoch - 1), epoch).granted(1, Exclusive);
            assert!(state.is_hot());
        }
        let mut hot = 0;
        for epoch in 20..30 {
            state = State::read(state.write(epoch - 1), epoch).granted(1, Shared);
            hot += u32::from(state.is_hot());
        }
        assert_eq!(hot, 3, "the batch after the last writer still counts as written");
    }

    #[test]
    fn one_chain_may_hold_all_modes_and_another_only_a_compatible_one() {
        let state = NEW.granted(9, Shared);
        assert!(!state.is_held_against(Shared) && state.is_held_against(Exclusive));
        assert!(state.is_held_against(IntentExclusive));
        let both = state.granted(9, IntentExclusive);
        assert!(both.is_held_against(Shared) && both.is_held_against(IntentExclusive) && both.chain() == 9);
        assert!(!both.is_held_by_many());
        assert!(state.granted(10, Shared).is_held_by_many());
    }
}
