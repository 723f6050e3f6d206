//! Errors, as Python gets them: classes of `lockwork._errors`.

use lockwork::{Error, sequencer};
use pyo3::prelude::*;

/// An error on its way to Python.
#[derive(Debug)]
pub(crate) struct Failure {
    class: &'static str,
    sqlstate: String,
    message: String,
    hint: String,
    /// Characters from the beginning of the statement, from 1.
    position: Option<usize>,
    retryable: bool,
}

impl Failure {
    pub(crate) fn new(class: &'static str, sqlstate: &str, message: impl Into<String>) -> Self {
        let (sqlstate, message) = (sqlstate.to_string(), message.into());
        Self { class, sqlstate, message, hint: String::new(), position: None, retryable: false }
    }

    /// A value that is not of its type.
    pub(crate) fn value(sqlstate: &str, message: impl Into<String>) -> Self {
        Self::new("DataError", sqlstate, message)
    }

    pub(crate) fn closed(message: impl Into<String>) -> Self {
        Self::new("Closed", "08003", message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Characters from the beginning of the statement, from 1.
    pub(crate) fn at(mut self, position: usize) -> Self {
        self.position = Some(position);
        self
    }

    pub(crate) fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Says more about what has happened.
    pub(crate) fn after(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    /// An error of a database in this process; `source` is the text of the statement, if there is one.
    pub(crate) fn of(error: Error, source: &str) -> Self {
        let retryable = error.is_retryable();
        let message = error.to_string();
        let failure = match error {
            Error::Sql(error) => {
                let class = if is_of_value(error.sqlstate, &error.message) { "DataError" } else { "SqlError" };
                let mut failure = Self::new(class, error.sqlstate, error.message.clone()).hint(error.hint.clone());
                if !source.is_empty() {
                    let lines = source.split('\n').take(error.line.saturating_sub(1) as usize);
                    let before: usize = lines.map(|line| line.chars().count() + 1).sum();
                    failure.position = Some(before + error.column as usize);
                }
                failure
            }
            Error::Aborted { sqlstate, message, .. } => {
                let retryable = sqlstate == "40001";
                return Self::new("Abort", &sqlstate, message).retryable(retryable);
            }
            Error::Unknown { .. } => Self::new("SqlError", "42704", message),
            Error::IndexTooLate { .. } => Self::new("SqlError", "55006", message),
            Error::Reserved { .. } => Self::new("SqlError", "42939", message),
            Error::Uneven { .. } => Self::value("22023", message),
            Error::Missing { .. } => Self::value("22023", message),
            Error::Type { .. } => Self::value("22003", message),
            Error::Durability(error) => match error {
                sequencer::Error::Locked { .. } => Self::new("Locked", "55006", message).retryable(true),
                sequencer::Error::Damaged { .. } => Self::new("Damaged", "XX001", message),
                sequencer::Error::Full(_) => Self::new("DiskFull", "53100", message),
                sequencer::Error::Closed => Self::closed(message),
                sequencer::Error::RequestReused { .. } => Self::new("SqlError", "22R01", message),
                sequencer::Error::RequestTooOld { .. } => Self::new("SqlError", "22R02", message),
                sequencer::Error::RequestInFuture { .. } => Self::new("SqlError", "22R03", message),
                sequencer::Error::Option { .. } => Self::value("22023", message),
                _ => Self::new("Error", "58030", message),
            },
            Error::Engine(_) => Self::new("Error", "58000", message),
            _ => Self::new("Error", "XX000", message),
        };
        Self { retryable: retryable || failure.retryable, ..failure }
    }

    /// An error that a server has sent: its SQLSTATE says what kind it is.
    pub(crate) fn of_server(
        sqlstate: &str,
        message: impl Into<String>,
        hint: Option<&str>,
        position: Option<usize>,
    ) -> Self {
        let message = message.into();
        let (class, retryable) = match sqlstate {
            "40001" => ("Abort", true),
            "53100" => ("DiskFull", true),
            "53300" => ("ConnectError", true),
            "57P01" => ("Closed", false),
            "22R01" | "22R02" | "22R03" => ("SqlError", false),
            state if is_of_value(state, &message) => ("DataError", false),
            state if state.starts_with("58") || state.starts_with("XX") => ("Error", false),
            state if position.is_some() || ["08", "0A", "26", "34", "42", "54", "55"].contains(&&state[..2]) => {
                ("SqlError", false)
            }
            _ => ("Abort", false),
        };
        let mut failure = Self::new(class, sqlstate, message).hint(hint.unwrap_or_default()).retryable(retryable);
        failure.position = position;
        failure
    }
}

/// Whether it is an error that only values which came from outside have, never a procedure that runs.
fn is_of_value(sqlstate: &str, message: &str) -> bool {
    // What is wrong with a value is said by its number, before anything runs.
    let is_named = sqlstate.starts_with("22") && message.starts_with("parameter $");
    let states = ["08P01", "22004", "22008", "22021", "22023", "22P02", "22P03", "23502", "42804", "42846"];
    is_named || states.contains(&sqlstate)
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| {
            let Failure { class, sqlstate, message, hint, position, retryable } = failure;
            let made = py
                .import("lockwork._errors")
                .and_then(|module| module.getattr(class))
                .and_then(|class| class.call1((message, sqlstate, hint, position, retryable)));
            made.map_or_else(|error| error, Self::from_value)
        })
    }
}
