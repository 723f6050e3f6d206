//! What every transaction in flight has, whichever way it runs: its time, and what it holds.

use lockwork_procedure::key::Key;
use lockwork_storage::{RowPtr, Table};

use super::clock::Clock;
use super::header::Ending;
use super::message::{Mail, Message};
use super::partition::Partition;

/// Where rows of a table are, by their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the worker's own partition.
    Here,
    /// In that of another worker.
    There(usize),
    /// Everywhere, because the table is replicated and nobody writes it.
    Everywhere,
}

/// A row that a transaction has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) row: RowPtr,
    /// The worker in whose partition it is.
    pub(super) owner: usize,
    /// Whether it is held for writing, not pinned.
    pub(super) write: bool,
}

/// What a transaction asks the partition of another worker for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    table: u16,
    hash: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// Its time; zero: it has none yet.
    pub(super) time: u64,
    /// Its next time is above this one.
    pub(super) above: u64,
    /// Conflicts that it has met.
    pub(super) conflicts: u32,
    pub(super) held: Vec<Held>,
    /// Messages that wait for an answer.
    pub(super) outstanding: u32,
    /// Searches in partitions of others: each may have pinned a row.
    searched: Vec<Sent>,
}

impl Transaction {
    /// Its time, taken from the clock and above `above` if it had none.
    #[inline(always)]
    pub(super) fn time(&mut self, clock: &mut Clock, above: u64) -> u64 {
        if self.time == 0 {
            self.time = clock.again(self.above.max(above), self.conflicts);
        }
        self.time
    }

    /// Notes that it came too late and has to be above this time.
    #[inline(always)]
    pub(super) fn too_late(&mut self, above: u64) {
        self.above = self.above.max(above);
    }

    /// Notes a search in a partition of another worker.
    #[inline(always)]
    pub(super) fn searches(&mut self, table: u16, hash: u64) {
        self.searched.push(Sent { table, hash });
    }

    /// How often it may have pinned a row in a partition of another worker.
    #[inline(always)]
    pub(super) fn pins_there(&self, table: u16, hash: u64) -> u64 {
        let same = self.searched.iter().filter(|sent| sent.hash == hash && sent.table == table);
        same.count() as u64
    }

    /// Whether it holds a row for writing.
    #[inline(always)]
    pub(super) fn holds_for_writing(&self) -> bool {
        self.held.iter().any(|held| held.write)
    }

    /// How often it has pinned a row of its own worker's partition.
    #[inline(always)]
    pub(super) fn pins_here(&self, row: RowPtr) -> u64 {
        self.held.iter().filter(|held| held.row == row && !held.write).count() as u64
    }

    /// Lets everything go that it holds. `me` is its worker.
    #[inline(always)]
    pub(super) fn let_go(&mut self, ending: Ending, me: usize, partition: &mut Partition, mail: &mut Mail) {
        let time = self.time;
        for Held { row, owner, write } in self.held.drain(..) {
            match (owner == me, write) {
                (true, true) => partition.settle(row, time, ending),
                (true, false) => partition.unpin(row),
                (false, true) => mail.send(owner, Message::Settle { row: row.as_ptr() as u64, time, ending }),
                (false, false) => mail.unpin(owner, row),
            }
        }
        self.searched.clear();
    }

    /// Forgets its time: it ended, or begins again.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        debug_assert!(self.held.is_empty() && self.outstanding == 0);
        self.time = 0;
        self.searched.clear();
    }
}

/// The word that stands for a key in a message.
#[inline(always)]
pub(super) fn key_word(table: &Table, key: &Key, hash: u64) -> u64 {
    if table.key_format().fits_one_word() { key.0[0] } else { hash }
}
