//! Why a command fails, and the exit code that follows.

use std::fmt::Display;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::process::ExitCode;

use lockwork::{EngineError, sequencer};

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A check failed: exit code 1.
    #[error("{0}")]
    Check(String),
    /// The input is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A server does not answer, or an address is in use: exit code 3.
    #[error("{0}")]
    Connect(String),
    /// Data on disk are damaged: exit code 5.
    #[error("{0}")]
    Damaged(String),
    /// A back end is absent from this machine, or failed, or the disk is full: exit code 6.
    #[error("{0}")]
    BackEnd(String),
    /// Standard output cannot be written: exit code 7.
    #[error("standard output: {0}")]
    Output(Error),
    /// The user or the system interrupted the command, and it has cleaned up: exit code 130, as of shells.
    #[error("interrupted")]
    Interrupted,
}

/// What a command returns.
pub type Outcome = Result<(), Failure>;

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::BackEndAbsent(_) | EngineError::BackEnd(_) => Self::BackEnd(error.to_string()),
            _ => Self::Usage(error.to_string()),
        }
    }
}

impl From<lockwork::Error> for Failure {
    fn from(error: lockwork::Error) -> Self {
        match error {
            lockwork::Error::Durability(error) => error.into(),
            lockwork::Error::Engine(error) => error.into(),
            lockwork::Error::Aborted { .. } => Self::Check(error.to_string()),
            error => Self::Usage(error.to_string()),
        }
    }
}

impl From<sequencer::Error> for Failure {
    fn from(error: sequencer::Error) -> Self {
        if error.is_corruption() { Self::Damaged(error.to_string()) } else { Self::Usage(error.to_string()) }
    }
}

impl Failure {
    /// A [`Failure::Usage`] with the text of an error.
    pub fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// A [`Failure::Connect`] with the text of an error.
    pub fn connect(error: impl Display) -> Self {
        Self::Connect(error.to_string())
    }

    /// The failure of a command that needs more disk space before it can begin.
    pub fn no_room(error: impl Display) -> Self {
        Self::BackEnd(format!("the disk is full: {error}; make room and start again"))
    }

    /// The failure of an operation on a database's file before the database was open.
    #[must_use]
    pub fn of_file(file: &Path, error: &Error) -> Self {
        let text = format!("{}: {error}", file.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::no_room(text),
            _ => Self::Usage(text),
        }
    }

    /// The failure of another process of this command, by its exit code.
    #[must_use]
    pub fn of_exit_code(code: i32, text: String) -> Self {
        match code {
            2 => Self::Usage(text),
            3 => Self::Connect(text),
            5 => Self::Damaged(text),
            _ => Self::BackEnd(text),
        }
    }

    /// The exit code of a command that fails so.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Check(_) => 1,
            Self::Usage(_) => 2,
            Self::Connect(_) => 3,
            Self::Damaged(_) => 5,
            Self::BackEnd(_) => 6,
            Self::Output(_) => 7,
            Self::Interrupted => 130,
        }
    }

    /// Prints the failure of a program to standard error, and returns its exit code.
    #[must_use]
    pub fn exit(&self, program: &str) -> ExitCode {
        eprintln!("{program}: {self}");
        ExitCode::from(self.exit_code())
    }

    /// The same kind of failure with another text.
    #[must_use]
    pub fn reworded(self, words: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Check(text) => Self::Check(words(text)),
            Self::Usage(text) => Self::Usage(words(text)),
            Self::Connect(text) => Self::Connect(words(text)),
            Self::Damaged(text) => Self::Damaged(words(text)),
            Self::BackEnd(text) => Self::BackEnd(words(text)),
            other @ (Self::Output(_) | Self::Interrupted) => other,
        }
    }
}
