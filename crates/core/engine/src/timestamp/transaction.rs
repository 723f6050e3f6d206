//! What every transaction in flight has, whichever way it runs: its time and its conflicts; and what it holds on the
//! long way. On the short way it holds its bundles.

use lockwork_procedure::key::Key;
use lockwork_storage::{RowPtr, Table};

use super::clock::Clock;
use super::header::Ending;
use super::message::{Mail, Message};
use super::partition::Partition;
use crate::conflicts::Cause;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    table: u16,
    key: Key,
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
    /// What caused the last one.
    pub(super) cause: Option<Cause>,
    pub(super) held: Vec<Held>,
    /// Messages that wait for an answer.
    pub(super) outstanding: u32,
    /// Searches in partitions of others, one for each key: each has pinned its row, if there is one.
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
    pub(super) fn too_late(&mut self, above: u64, cause: Cause) {
        self.above = self.above.max(above);
        self.cause = Some(cause);
    }

    /// How often it will have pinned the row of a key in a partition of another worker, once or not at all, when what
    /// it has sent is served. `search`: it is about to search the key there.
    #[inline(always)]
    pub(super) fn pins_there(&mut self, table: u16, key: &Key, search: bool) -> u64 {
        let sent = Sent { table, key: *key };
        let pinned = self.searched.contains(&sent);
        if search && !pinned {
            self.searched.push(sent);
        }
        u64::from(pinned)
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

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::key::mix;

    #[test]
    fn a_pin_counts_for_its_own_key_whatever_the_hashes() {
        let searched = Key([1, 2, 0, 0]);
        // Of one hash: the first words differ, and the second ones by what makes up for it.
        let other = Key([7, mix(1) ^ 2 ^ mix(7), 0, 0]);
        assert_eq!(searched.hash(), other.hash());
        let mut transaction = Transaction::default();
        assert_eq!(transaction.pins_there(3, &searched, true), 0);
        let mut pins = |table, key| transaction.pins_there(table, key, false);
        assert_eq!((pins(3, &searched), pins(3, &other), pins(4, &searched)), (1, 0, 0));
    }
}
