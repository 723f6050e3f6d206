//! What a host refuses, and what can go wrong with it.

use lockwork_procedure::verify::VerifyError;
use lockwork_storage::StorageError;

use super::locks::Refusal;
use crate::device::DeviceError;
use crate::record::Timestamp;
use crate::row_program::RowProgramError;

/// Why the host did not do it. Unless it says otherwise, nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The storage refused or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The lock table failed.
    #[error(transparent)]
    Locks(#[from] Refusal),
    /// No memory for an index.
    #[error(transparent)]
    Memory(#[from] StorageError),
    /// A procedure is not sound.
    #[error(transparent)]
    Unsound(#[from] VerifyError),
    /// A procedure cannot be a row program.
    #[error(transparent)]
    RowProgram(#[from] RowProgramError),
    /// A name is taken.
    #[error("there is a procedure '{0}' already; choose another name")]
    DuplicateProcedure(String),
    /// A table has no VID map of its own, or one that is too small.
    #[error("table '{table}' has more than {capacity} tuples, the capacity of its VID map; give it a larger one")]
    TooManyTuples {
        /// The table.
        table: String,
        /// Entries of its map.
        capacity: usize,
    },
    /// Too many tables.
    #[error("a host has at most {0} tables")]
    TooManyTables(usize),
    /// The VID map of a table could not be had.
    #[error("no VID map for table {table}: {problem}")]
    NoVidMap {
        /// The table's number.
        table: u16,
        /// Why not.
        problem: String,
    },
    /// Another transaction was first: run it again.
    #[error("the transaction met a conflict ({0}); run it again")]
    Conflict(Conflict),
    /// A table or the shared state is full.
    #[error("no room for another version: {0}")]
    Full(String),
    /// No such table.
    #[error("there is no table number {0}")]
    NoTable(u16),
    /// A key or row of the wrong length, or a table that is not ordered.
    #[error("{0}")]
    BadRequest(String),
    /// The storage died while it committed. Whether the update took place is known when the host has a storage
    /// again ([`super::Host::reattach`]); until then nothing that writes commits.
    #[error(
        "the storage died while it committed the update of timestamp {timestamp}: {why}; reattach one to know more"
    )]
    InDoubt {
        /// The timestamp that it has if it took place.
        timestamp: Timestamp,
        /// What the storage's end looked like.
        why: String,
    },
}

impl HostError {
    /// Whether the same request can go well when it is made again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Device(DeviceError::Conflict { .. } | DeviceError::Busy { .. }))
    }
}

/// Who was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// Another transaction has updated a tuple since the snapshot.
    Superseded,
    /// An older transaction has it locked.
    Busy,
    /// It was locked for longer than the transaction may wait.
    TimedOut,
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Superseded => "another one has updated a tuple since the snapshot",
            Self::Busy => "an older one has a lock",
            Self::TimedOut => "a lock was not free in time",
        })
    }
}
