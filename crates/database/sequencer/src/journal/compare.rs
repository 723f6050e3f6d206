//! Digests of the whole database: when the leader puts one into the journal, and which a follower compares.
//!
//! A digest reads every row, and calls wait meanwhile. So the leader spends a hundredth of its time on them at most,
//! and none where one would stop the calls for long; a node that catches up, which may meet many in a second, a tenth.

use std::time::{Duration, Instant};

/// The time between two digests is at least so many times as long as one takes: at the leader, and when catching up.
const LEADER: u32 = 100;
const CATCHING_UP: u32 = 10;
/// The longest that calls wait for a digest.
const LONGEST: Duration = Duration::from_millis(250);
/// What the digest of a row takes, as long as none was made: some times more than that of a short one.
const ROW: Duration = Duration::from_nanos(25);

/// See the module.
#[derive(Debug)]
pub(crate) struct Comparing {
    /// The least time between two digests of the leader; zero for none at all.
    interval: Duration,
    /// When the last one was made, or put off, and what it took, with how many rows.
    last: Instant,
    took: Duration,
    rows: u64,
    /// The number of the record behind the last one.
    behind: u64,
}

impl Comparing {
    pub(crate) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, last: now, took: Duration::ZERO, rows: 0, behind: 0 }
    }

    /// A digest of so many rows was made.
    pub(crate) fn made(&mut self, took: Duration, rows: u64, now: Instant) {
        (self.last, self.took, self.rows) = (now, took, rows);
    }

    /// The record of a digest was written, and `next` is the one behind it.
    pub(crate) fn wrote(&mut self, next: u64, now: Instant) {
        (self.behind, self.last) = (next, now);
    }

    /// What the digest of so many rows will take, about; a table that has grown takes longer than the one before.
    fn estimate(&self, rows: u64) -> Duration {
        match self.rows {
            0 => ROW.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX)),
            known => self.took.mul_f64(rows as f64 / known as f64),
        }
    }

    /// Whether there is something that no digest is of, before record `next`.
    pub(crate) fn has_changed(&self, next: u64) -> bool {
        next > self.behind
    }

    /// When the leader should look whether a digest is due; never as long as nothing has changed.
    pub(crate) fn looks_at(&self, next: u64) -> Option<Instant> {
        let wanted = !self.interval.is_zero() && self.has_changed(next);
        wanted.then(|| self.last + self.interval.max(self.took * LEADER))
    }

    /// Whether calls can wait for the digest of so many rows.
    pub(crate) fn fits(&self, rows: u64) -> bool {
        self.estimate(rows) <= LONGEST
    }

    /// The same, where digests are wanted.
    pub(crate) fn is_short(&self, rows: u64) -> bool {
        !self.interval.is_zero() && self.fits(rows)
    }

    /// Whether the leader makes a digest of so many rows now. If not, it looks again later.
    pub(crate) fn is_due(&mut self, rows: u64, now: Instant) -> bool {
        if self.is_short(rows) && now >= self.last + self.interval.max(self.estimate(rows) * LEADER) {
            return true;
        }
        if self.is_short(rows) {
            // What it will take is a guess, to be waited for all the same.
            (self.took, self.rows) = (self.estimate(rows), rows.max(1));
        } else {
            self.last = now;
        }
        false
    }

    /// Whether a node that catches up compares a digest now.
    pub(crate) fn has_time(&self, now: Instant) -> bool {
        now >= self.last + self.took * CATCHING_UP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_leader_spends_a_hundredth_of_its_time_and_none_on_what_takes_long() {
        let start = Instant::now();
        let mut comparing = Comparing::new(10 * SECOND, start);
        assert_eq!(comparing.looks_at(5), Some(start + 10 * SECOND));
        assert!(!comparing.is_due(1000, start + 9 * SECOND) && comparing.is_due(1000, start + 10 * SECOND));
        comparing.made(SECOND / 5, 1000, start + 10 * SECOND);
        comparing.wrote(6, start + 10 * SECOND);
        assert_eq!(comparing.looks_at(6), None);
        // 20 s behind one that took 0.2 s; 22 s for a tenth more.
        assert_eq!(comparing.looks_at(7), Some(start + 30 * SECOND));
        assert!(!comparing.is_due(1100, start + 30 * SECOND));
        assert_eq!(comparing.looks_at(7), Some(start + 32 * SECOND));
        assert!(comparing.is_due(1100, start + 32 * SECOND));
        // Half as much again would be too long.
        assert!(!comparing.is_due(1500, start + 100 * SECOND) && !comparing.is_short(1500));
        assert!(comparing.looks_at(7).unwrap() > start + 100 * SECOND);
        // Without a measure a row counts for 25 ns.
        let fresh = Comparing::new(SECOND, start);
        assert!(fresh.is_short(10_000_000) && !fresh.is_short(11_000_000));
    }

    #[test]
    fn an_interval_of_zero_is_for_none() {
        let comparing = Comparing::new(Duration::ZERO, Instant::now());
        assert!(comparing.looks_at(9).is_none() && !comparing.is_short(0));
    }

    #[test]
    fn who_catches_up_spends_a_tenth_of_the_time() {
        let start = Instant::now();
        let mut comparing = Comparing::new(SECOND, start);
        assert!(comparing.has_time(start));
        comparing.made(SECOND, 1000, start);
        assert!(!comparing.has_time(start + 9 * SECOND) && comparing.has_time(start + 10 * SECOND));
    }
}
