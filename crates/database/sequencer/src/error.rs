//! What can go wrong, with the file, the place in it and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockwork_engine::EngineError;
use lockwork_procedure::assembly::AssemblyError;
use lockwork_procedure::block::Batch;
use lockwork_procedure::request::RequestId;

use crate::io::is_full;
use crate::transaction::{MAX_ARGUMENT_BYTES, MAX_CALLS, MAX_CALLS_AT_ONCE, MAX_STEPS_AT_ONCE};

/// An action on a file that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was tried, as a verb: "write", "sync".
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// Where in the file, in bytes.
    pub offset: Option<u64>,
    /// The system's error.
    pub error: Arc<io::Error>,
}

impl Failure {
    pub(crate) fn new(action: &'static str, path: &Path, offset: Option<u64>, error: io::Error) -> Self {
        Self { action, path: path.to_path_buf(), offset, error: Arc::new(error) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} '{}'", self.action, self.path.display())?;
        if let Some(offset) = self.offset {
            write!(f, " at offset {offset}")?;
        }
        write!(f, ": {}", self.error)
    }
}

fn other_call(first: &str, now: &str, is_same_procedure: bool) -> String {
    match (is_same_procedure, first == now) {
        (true, _) => format!("a call of procedure '{first}' with other arguments"),
        (false, true) => format!("a call of an earlier definition of procedure '{first}'"),
        (false, false) => format!("a call of procedure '{first}', and this one is of procedure '{now}'"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// What can go wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine refused.
    #[error("{0}")]
    Engine(Arc<EngineError>),
    /// A definition does not assemble.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The system refused something, and nothing was lost by it.
    #[error("{0}")]
    Io(Failure),
    /// There is no room for the log. Nothing of the call has happened; the same call works when there is room again.
    #[error(
        "the disk is full: {0}; nothing of this call has happened; make room and call again, reads go on meanwhile"
    )]
    Full(Failure),
    /// Somebody else has the directory open.
    #[error("'{path}' is in use by {owner}; one process at a time can open it")]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Who, as far as that is known.
        owner: String,
    },
    /// The directory has what is none of a database's, and no database.
    #[error(
        "'{path}' is no database, and not empty: it has '{found}'; name a folder that is empty, or is not there yet"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// A name in it.
        found: String,
    },
    /// What was durable is damaged.
    #[error("'{path}' is damaged at offset {offset}: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// A file has another format version.
    #[error(
        "'{path}' has format version {found}, and this program reads and writes version {wanted} only; open it with the \
         program that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that there is.
        wanted: u32,
    },
    /// A write or sync of the log failed, and nothing more is accepted.
    #[error(
        "{0}; whether the calls that were waiting for it are durable is not known, and no further one is accepted; open \
         the directory again: recovery tells"
    )]
    Poisoned(Failure),
    /// The engine and the log went apart; nothing more is accepted.
    #[error(
        "{0}; the calls since the last answer are not in the log, and no further one is accepted; open the directory again"
    )]
    Stopped(String),
    /// Other transactions have changed what one of several calls has answered.
    #[error(
        "what statement {call} of this transaction has answered would be another answer now; begin the transaction again"
    )]
    Conflict {
        /// Which call of the transaction, from 1 on.
        call: usize,
    },
    /// A transaction of too many calls.
    #[error(
        "a transaction has at most {MAX_CALLS} statements, a pipeline that is one {MAX_CALLS_AT_ONCE}, and both \
         {MAX_ARGUMENT_BYTES} bytes of values and {MAX_STEPS_AT_ONCE} steps of procedures; make it shorter, or a procedure"
    )]
    TooLong,
    /// Another node runs calls; this one answers reads.
    #[error("this node follows, and answers reads only; calls are for the leader: {leader}")]
    Follower {
        /// Its address, or "nobody".
        leader: String,
    },
    /// This node takes calls of procedures that there are, and this is for the node that leads.
    #[error("this node takes calls of procedures that there are; everything else is for the node that leads: {leader}")]
    ForLeader {
        /// Its address, or "nobody".
        leader: String,
    },
    /// This node did lead, and another one does now, or may.
    #[error("this node does not lead any more; nothing of this call has happened; call the leader")]
    Superseded,
    /// This node could not make sure that it still leads. The call has read, and changed nothing.
    #[error("this node could not make sure that it leads still, so it does not answer; call again")]
    Lapsed,
    /// The journal has no room.
    #[error("the journal is full: {0}; nothing of this call has happened; make room there, and call again")]
    JournalFull(String),
    /// The journal has not answered, or not for all of a batch.
    #[error(
        "{0}; whether this call has happened is not known; with a request id, calling it again tells, and makes it once"
    )]
    Unknown(String),
    /// The journal cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The sequencer was closed.
    #[error("the database is closed; open the directory again")]
    Closed,
    /// A request id was used before, for another call.
    #[error(
        "request id {request} was used before, for {}; an id is for repeating one call: make another one for this call",
        other_call(first, now, *is_same_procedure)
    )]
    RequestReused {
        /// The id.
        request: RequestId,
        /// The procedure that was called first.
        first: String,
        /// The procedure that is called now.
        now: String,
        /// Whether it is the same definition of the same procedure, and the arguments differ.
        is_same_procedure: bool,
    },
    /// A request id is so old that a call with it may have been made and forgotten.
    #[error(
        "request id {request} is too old: it was made {} ago, and this database remembers ids for {}; whether a call \
         was made with it is not known; look for what the call does, and if it was not made, call with a new id",
        seconds(*age), seconds(*window)
    )]
    RequestTooOld {
        /// The id.
        request: RequestId,
        /// How long ago it was made.
        age: Duration,
        /// How long ids are remembered now: the window, or less where memory is used up.
        window: Duration,
    },
    /// The time in a request id lies in the future.
    #[error(
        "request id {request} is of a time {} ahead of this server's clock, and at most 60 s is possible; nothing of \
         this call has happened; set the clocks of client and server",
        seconds(*ahead)
    )]
    RequestInFuture {
        /// The id.
        request: RequestId,
        /// How far its time is ahead.
        ahead: Duration,
    },
    /// Rows were loaded up to one that was refused. Those before it are there, and durable.
    #[error("{loaded} rows were loaded, and the next was refused: {error}")]
    Load {
        /// How many rows are there.
        loaded: usize,
        /// Why not more.
        error: Arc<EngineError>,
    },
    /// A call in the log did not run as it did the first time.
    #[error("replaying record {record}: {problem}")]
    Replay {
        /// Number of the record.
        record: u64,
        /// What happened.
        problem: String,
    },
    /// A node differs from the one that led when the journal was written; or, where tables are divided, from another
    /// one of its part, or from what it was before it began again.
    #[error("record {record}: {problem}; one of the two has computed something wrong")]
    Differs {
        /// The first record that shows it.
        record: u64,
        /// What differs.
        problem: String,
    },
    /// An option has a value that is not possible.
    #[error("option '{option}' is {value}; {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is possible.
        expected: String,
    },
}

impl Error {
    /// Whether what was durable is damaged, or what was computed from it; the command ends with exit code 5 then.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Differs { .. })
    }

    /// The same error of the request with this id, if it is one of a request: who has given it knows the request by it
    /// ([`RequestId::of_user`]).
    #[must_use]
    pub fn of_request(mut self, id: RequestId) -> Self {
        if let Self::RequestReused { request, .. }
        | Self::RequestTooOld { request, .. }
        | Self::RequestInFuture { request, .. } = &mut self
        {
            *request = id;
        }
        self
    }

    /// What there was no room for, if that is what is wrong: of whatever file of the directory.
    #[must_use]
    pub fn no_room(&self) -> Option<&Failure> {
        match self {
            Self::Full(failure) => Some(failure),
            Self::Io(failure) | Self::Poisoned(failure) => Some(failure).filter(|failure| is_full(&failure.error)),
            _ => None,
        }
    }

    /// Whether the same call, or transaction, may succeed later on the same sequencer.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Conflict { .. } | Self::Follower { .. } | Self::Lapsed)
    }

    pub(crate) fn damaged(path: &Path, offset: u64, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), offset, problem: problem.into() }
    }

    pub(crate) fn io(action: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Io(Failure::new(action, path, None, error))
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Self::Engine(Arc::new(error))
    }
}

/// A batch that was not acknowledged.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The batch, unchanged, if nothing of it has happened.
    pub batch: Option<Batch>,
    /// Why.
    pub error: Error,
}
