//! What became of transactions, counted.

use std::collections::BTreeMap;

use lockwork_procedure::block::{Batch, Status};

use crate::conflicts::Conflicts;

/// What became of the transactions of one or more batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Transactions committed.
    pub committed: u64,
    /// Transactions aborted, by abort code.
    pub aborted: BTreeMap<u16, u64>,
    /// Transactions failed, by abort code.
    pub failed: BTreeMap<u16, u64>,
    /// How often transactions met a conflict and began again.
    pub conflicts: Conflicts,
}

impl Tally {
    /// Adds another tally to this one.
    pub fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.conflicts.add(&other.conflicts);
        for (mine, theirs) in [(&mut self.aborted, &other.aborted), (&mut self.failed, &other.failed)] {
            for (&code, &count) in theirs {
                *mine.entry(code).or_default() += count;
            }
        }
    }

    /// Counts one transaction that ended with this status and abort code.
    pub fn count(&mut self, status: Status, code: u16) {
        let counts = match status {
            Status::Committed => return self.committed += 1,
            Status::Aborted => &mut self.aborted,
            Status::Failed | Status::Pending => &mut self.failed,
        };
        *counts.entry(code).or_default() += 1;
    }

    /// What the blocks of a completed batch say; conflicts do not stand there.
    #[must_use]
    pub fn of(batch: &Batch) -> Self {
        let mut tally = Self::default();
        for block in batch.blocks() {
            tally.count(block.status().unwrap_or(Status::Failed), block.abort_code());
        }
        tally
    }

    /// All transactions in it.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.committed + self.aborted.values().sum::<u64>() + self.failed.values().sum::<u64>()
    }
}
