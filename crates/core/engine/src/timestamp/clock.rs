//! The times of a worker's transactions.
//!
//! ```text
//! time = ticks | worker | boosted
//! ```
//!
//! No two transactions have the same time: the low bits are the worker's own. Clocks of different workers run apart;
//! who meets a row that is stamped with a later time is told it and goes above it. A transaction takes its time as late
//! as it can, with its first grant, so that most are granted in the order of their times and nothing conflicts.
//!
//! **Boosts.** A transaction that needs many rows can be too late again and again, because short ones get at its rows
//! first. So one that has met several conflicts takes a time *in the future*, further ahead each time: it comes before
//! nobody who runs meanwhile. Boosted times are drawn beside the others, which go on as before. The furthest boost is
//! small against all times, of which a storm must not use up many; who is not helped by it asks for calm (`calm.rs`).
//!
//! Times go on from batch to batch: at the end of one all clocks are set to the latest time of any.

use super::header::MAX_TIME;

/// Conflicts before a transaction's time is boosted.
const CONFLICTS_BEFORE_BOOST: u32 = 3;
/// The furthest boost, as a power of two.
const FURTHEST: u32 = 12;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// Ticks of the last time without a boost, and of the last one with.
    ticks: u64,
    boosted: u64,
    /// Low bits of a time, and what stands there.
    low_bits: u32,
    low: u64,
    latest: u64,
}

impl Clock {
    /// The clock of worker `me` of `workers`, all of whose times are above `after`.
    pub(super) fn new(me: usize, workers: usize, after: u64) -> Self {
        let low_bits = workers.next_power_of_two().trailing_zeros() + 1;
        let ticks = after >> low_bits;
        Self { ticks, boosted: ticks, low_bits, low: (me as u64) << 1, latest: after }
    }

    /// A time above all that this clock gave without a boost, and above `above`.
    #[inline(always)]
    pub(super) fn next(&mut self, above: u64) -> u64 {
        self.ticks = self.ticks.max(above >> self.low_bits) + 1;
        self.taken(self.ticks << self.low_bits | self.low)
    }

    /// As [`Self::next`], for a transaction that has met `conflicts` conflicts.
    pub(super) fn again(&mut self, above: u64, conflicts: u32) -> u64 {
        if conflicts <= CONFLICTS_BEFORE_BOOST {
            return self.next(above);
        }
        let boost = 1 << (conflicts - CONFLICTS_BEFORE_BOOST).min(FURTHEST);
        self.boosted = (self.boosted + 1).max(self.ticks.max(above >> self.low_bits) + boost);
        self.taken(self.boosted << self.low_bits | self.low | 1)
    }

    fn taken(&mut self, time: u64) -> u64 {
        assert!(time <= MAX_TIME, "the clock has run out of times");
        self.latest = self.latest.max(time);
        time
    }

    /// The latest time that it ever gave.
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_times_are_equal_and_each_is_above_what_it_must_be() {
        let mut clocks: Vec<Clock> = (0..3).map(|me| Clock::new(me, 3, 77)).collect();
        let mut times = HashSet::new();
        for round in 0..3_000_u64 {
            let clock = &mut clocks[round as usize % 3];
            let above = if round % 7 == 0 { clock.latest() } else { 77 };
            let time = clock.again(above, (round % 11) as u32);
            assert!(time > above && times.insert(time), "{time} above {above}");
        }
    }

    #[test]
    fn a_boost_moves_the_others_not() {
        let mut clock = Clock::new(0, 2, 0);
        let before = clock.next(0);
        assert!(clock.again(0, 10) > before + 100);
        assert_eq!(clock.next(0), before + 4);
    }
}
