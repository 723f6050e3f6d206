//! Guards: host transactions keep off the rows that a bulk update is going to change.
//!
//! A bulk update takes its snapshot first and comes to its rows much later. If the host updated one of them in between,
//! the first updater would win and the whole bulk update would have been for nothing; beside a busy host it would never
//! get done. But the host knows the row program. So while a bulk update runs, a host transaction that wants to write a
//! row of the table evaluates the program on it: a row that the bulk update will take is treated as if it were locked
//! already.
//!
//! A guard stands before the snapshot is taken, and the snapshot waits for the transactions that had begun before the
//! guard stood, for as long as they may wait for a lock. Invariant: none; a guard only spares conflicts. What protects
//! the rows are the locks, which the storage takes all the same.
//!
//! Trade-off: a write to the table costs one evaluation of the program while a bulk update runs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::record::Timestamp;
use crate::row_program::{Evaluator, RowProgram};

/// The bulk update has no snapshot yet.
const ALL: Timestamp = u64::MAX;

/// The row program of a bulk update that is under way.
#[derive(Debug)]
pub(super) struct Guard {
    program: RowProgram,
    snapshot: AtomicU64,
}

impl Guard {
    /// Says what the bulk update sees; rows that were changed later are none of its business.
    pub(super) fn set_snapshot(&self, snapshot: Timestamp) {
        self.snapshot.store(snapshot, Ordering::SeqCst);
    }
}

/// The guards of a table.
#[derive(Debug, Default)]
pub(super) struct Guards {
    count: AtomicUsize,
    guards: RwLock<Vec<Arc<Guard>>>,
}

impl Guards {
    /// Puts up a guard.
    pub(super) fn add(&self, program: RowProgram) -> Arc<Guard> {
        let guard = Arc::new(Guard { program, snapshot: AtomicU64::new(ALL) });
        self.guards.write().unwrap_or_else(PoisonError::into_inner).push(guard.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        guard
    }

    /// Takes a guard away.
    pub(super) fn remove(&self, guard: &Arc<Guard>) {
        self.guards.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, guard));
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a bulk update is going to change a row, whose newest version was `created` then.
    #[inline]
    pub(super) fn forbid(&self, created: Timestamp, image: &[u8]) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && self.any_takes(created, image)
    }

    #[cold]
    fn any_takes(&self, created: Timestamp, image: &[u8]) -> bool {
        let guards = self.guards.read().unwrap_or_else(PoisonError::into_inner);
        guards.iter().any(|guard| {
            let seen = created <= guard.snapshot.load(Ordering::SeqCst);
            // A program that fails on the row fails the bulk update, unless the row is changed first.
            seen && matches!(Evaluator::new(&guard.program).change(image), Ok(Some(_)))
        })
    }
}
