//! Keys whose rows may be tombstones, for engines that lock or validate keys without rows.
//!
//! Such an engine gives a key that it needs a row in state absent, a *tombstone*, and finds it under its key from then
//! on. Whoever runs at the same time may hold the tombstone's address, so it stays until nobody runs: at the end of the
//! batch each worker unlinks the tombstones that it has noted and that nobody has turned into rows.
//!
//! Trade-off: a batch that looks for many absent keys takes memory for all of them until it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockwork_procedure::key::Key;
use lockwork_storage::{ABSENT, RowPtr, STATE_MASK, Table};

/// A key whose index entry may be a tombstone.
#[derive(Debug)]
struct Ghost {
    table: Arc<Table>,
    hash: u64,
    key: Key,
    row: RowPtr,
}

/// The tombstones that one worker has made, or has made of rows.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    noted: Vec<Ghost>,
}

impl Tombstones {
    /// Notes a key and its row, perhaps more than once.
    pub(crate) fn note(&mut self, table: &Arc<Table>, hash: u64, key: Key, row: RowPtr) {
        self.noted.push(Ghost { table: table.clone(), hash, key, row });
    }

    /// Takes over what another one has noted.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.noted.append(&mut other.noted);
    }

    /// Forgets what was noted.
    pub(crate) fn clear(&mut self) {
        self.noted.clear();
    }

    /// Unlinks those of them that are no rows.
    ///
    /// # Safety
    /// No transaction runs.
    pub(crate) unsafe fn unlink(&mut self) {
        for tombstone in self.noted.drain(..) {
            // A row that was unlinked is free, no tombstone, and nobody makes another one of it here.
            if tombstone.row.state().load(Ordering::Relaxed) & STATE_MASK == u64::from(ABSENT) {
                // SAFETY: no transaction runs, so nobody uses the row.
                unsafe { tombstone.table.remove(tombstone.hash, &tombstone.key) };
            }
        }
    }
}

/// Writes the liveness bits of a row's state and leaves the others.
pub(crate) fn set_state(row: RowPtr, state: u8) {
    let change = |word: u64| Some((word & !STATE_MASK) | u64::from(state));
    row.state().fetch_update(Ordering::AcqRel, Ordering::Relaxed, change).expect("it always changes");
}
