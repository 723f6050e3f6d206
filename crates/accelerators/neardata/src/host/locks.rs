//! Locks, as the host asks for them.
//!
//! The lock table itself is behind two traits: one session for each worker ([`HostLocks`]), and what all of them share
//! ([`LockTable`]). The real one lies in memory shared with the storage; [`crate::host::in_process`] is one for a
//! single process.
//!
//! | lock | who takes it |
//! |---|---|
//! | tuple, exclusive | whoever gives the tuple a new version, host or storage, at every isolation |
//! | tuple, shared | whoever reads it, if serializable |
//! | absent key | readers shared and inserters exclusive, if serializable: a key that no tuple stands for yet |
//! | gate of a table | writers with intent, scans shared, bulk updates exclusive, if serializable: no phantoms |
//!
//! Invariant: a lock is held until the versions made under it are visible (or forgotten). Locks are re-entrant by
//! owner; a stronger mode is joined with the one held.

use std::time::Duration;

use lockwork_locking::LockMode;

use crate::device::{TableId, TransactionId};
use crate::record::Vid;

/// What can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockKey {
    /// A tuple.
    Tuple {
        /// Its table.
        table: TableId,
        /// Which one.
        vid: Vid,
    },
    /// A table as a whole.
    Gate {
        /// The table.
        table: TableId,
    },
    /// A key that no tuple has, by its hash ([`lockwork_procedure::key::Key::hash`]).
    Absent {
        /// The table.
        table: TableId,
        /// The key's hash. Keys that share it share the lock.
        hash: u64,
    },
}

/// Why a lock was not granted. The session keeps the locks that it holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An older transaction holds it: who waited for it could wait in a circle.
    #[error("an older transaction holds the lock")]
    Busy,
    /// It was not free within the time given.
    #[error("the lock was not free in time")]
    TimedOut,
    /// The lock table is not usable; the text says why.
    #[error("the lock table failed: {0}")]
    Failed(String),
}

/// The locks of one worker, which has one transaction at a time.
pub trait HostLocks: Send {
    /// Begins a transaction, which holds nothing. A smaller `age` is older; no two transactions that run at the same
    /// time have the same one, bulk updates ([`TransactionId`] is their age) included. If the age is not taken, all
    /// locks of the transaction are refused ([`Refusal::Failed`]).
    fn begin(&mut self, age: u64);

    /// Locks, waiting for at most `timeout` if only younger transactions are in the way.
    ///
    /// # Errors
    /// [`Refusal`].
    fn lock(&mut self, key: LockKey, mode: LockMode, timeout: Duration) -> Result<(), Refusal>;

    /// Releases all that was locked since [`Self::begin`].
    fn release_all(&mut self);
}

/// The lock table, as all workers of a host share it.
pub trait LockTable: Send + Sync {
    /// A session for a new worker. It releases what it holds when it is dropped.
    ///
    /// # Errors
    /// [`Refusal::Failed`].
    fn session(&self) -> Result<Box<dyn HostLocks>, Refusal>;

    /// Releases what the storage locked for a bulk update that has ended: committed, aborted, or died with the storage.
    fn release_transaction(&self, transaction: TransactionId);
}
