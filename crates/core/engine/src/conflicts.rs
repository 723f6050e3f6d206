//! Conflicts of transactions, counted by what caused them.

use std::fmt;

/// Why a transaction met a conflict, so that it had to begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Another one had a lock on a row (`two-phase`).
    RowLock,
    /// Another one had read a row that was to be written after it was read (`two-phase`).
    Upgrade,
    /// Another one had a lock on a table: one of them scans it, and the other inserts or removes (`two-phase`).
    TableLock,
    /// A row that was read had changed, or was being written (`optimistic`).
    RowChanged,
    /// A range that was scanned had changed (`optimistic`).
    RangeChanged,
    /// A younger one had written a row that was to be read, or it had as many readers as can be noted (`timestamp`).
    LateRead,
    /// A younger one had read or written a row that was to be written (`timestamp`).
    LateWrite,
    /// A younger one had scanned the range that a key was to be inserted into (`timestamp`).
    LateInsert,
    /// A row that keys were planned by had changed (`deterministic`).
    Replanned,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 9] = [
        Self::RowLock,
        Self::Upgrade,
        Self::TableLock,
        Self::RowChanged,
        Self::RangeChanged,
        Self::LateRead,
        Self::LateWrite,
        Self::LateInsert,
        Self::Replanned,
    ];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RowLock => "a row was locked",
            Self::Upgrade => "a row to be written had been read by others too",
            Self::TableLock => "a table was locked",
            Self::RowChanged => "a row that was read had changed",
            Self::RangeChanged => "a range that was scanned had changed",
            Self::LateRead => "a row was read too late",
            Self::LateWrite => "a row was written too late",
            Self::LateInsert => "a key was inserted too late",
            Self::Replanned => "what keys were planned by had changed",
        })
    }
}

/// How many conflicts there were, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts([u64; Cause::ALL.len()]);

impl Conflicts {
    /// Counts so many more.
    #[inline(always)]
    pub fn count(&mut self, cause: Cause, more: u64) {
        self.0[cause as usize] += more;
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The causes that there were, each with its number of conflicts.
    pub fn by_cause(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.0).filter(|&(_, count)| count > 0)
    }

    /// Adds others to these.
    pub fn add(&mut self, other: &Self) {
        other.by_cause().for_each(|(cause, count)| self.count(cause, count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_counted_apart_and_together() {
        assert!(Cause::ALL.iter().enumerate().all(|(at, &cause)| cause as usize == at));
        let mut conflicts = Conflicts::default();
        conflicts.count(Cause::LateWrite, 2);
        let mut more = Conflicts::default();
        more.count(Cause::RowLock, 1);
        more.count(Cause::LateWrite, 3);
        conflicts.add(&more);
        let found: Vec<_> = conflicts.by_cause().collect();
        assert_eq!((found, conflicts.total()), (vec![(Cause::RowLock, 1), (Cause::LateWrite, 5)], 6));
    }
}
