//! What can go wrong with a shared lock table.

use std::io;
use std::path::{Path, PathBuf};

use lockwork_locking::shared::{Damage, LayoutError, TableError};

/// Why a lock table could not be made, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No name for a table.
    #[error(
        "{0:?} cannot be the name of a lock table; use 1 to {most} of the letters a to z and A to Z, digits, '.', '_' and \
         '-', not '.' first; or the path of a file, with a slash in it and no control characters",
        most = crate::segment::NAME_BYTES
    )]
    Name(String),
    /// There is one already.
    #[error("there is a lock table '{0}' already; attach to it, or remove it first")]
    Exists(PathBuf),
    /// There is something else already.
    #[error("'{0}' is there already and is no lock table; choose another name, or remove that file")]
    Taken(PathBuf),
    /// There is none.
    #[error("there is no lock table '{0}'; create it first (lockwork shared-locks create)")]
    Missing(PathBuf),
    /// The file is no lock table of this version.
    #[error("'{place}': {error}")]
    Segment {
        /// Which file.
        place: PathBuf,
        /// What is wrong with it.
        error: LayoutError,
    },
    /// Dimensions that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The system refuses.
    #[error("cannot {what} '{place}': {source}")]
    Io {
        /// What was tried.
        what: String,
        /// On which file.
        place: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// All sessions are in use.
    #[error("all {0} sessions of the lock table are in use; close some, or create it with more")]
    Sessions(u16),
    /// All sessions are in use, but for those that dead processes have left and that cannot be cleaned up after.
    #[error(
        "all {sessions} sessions of the lock table are in use, but for {damaged} that processes which have died in them \
         left damaged; close some, or stop all that use the table and create it anew; the first damage: {first}"
    )]
    Damaged {
        /// All.
        sessions: u16,
        /// Those that cannot be used.
        damaged: u16,
        /// What is wrong with the first of them.
        first: Box<Damage>,
    },
    /// Somebody else has it, and the request was not to wait.
    #[error("the lock is held by somebody else")]
    Busy,
    /// The lock was not granted in time.
    #[error("the lock was not to be had in time")]
    TimedOut,
    /// Waiting could be waiting in a circle (wait-die).
    #[error("waiting for the lock could be waiting in a circle; release all locks, then begin again with the same age")]
    WouldDeadlock,
    /// The table itself refuses.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Error {
    pub(crate) fn io(what: &str, place: &Path, source: io::Error) -> Self {
        Self::Io { what: what.to_string(), place: place.to_path_buf(), source }
    }

    pub(crate) fn segment(place: &Path, error: LayoutError) -> Self {
        Self::Segment { place: place.to_path_buf(), error }
    }

    /// Whether the same request can go well later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy | Self::TimedOut | Self::WouldDeadlock | Self::Sessions(_) => true,
            Self::Damaged { sessions, damaged, .. } => damaged < sessions,
            _ => false,
        }
    }
}
