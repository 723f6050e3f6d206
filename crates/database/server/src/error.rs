//! Errors, as clients get them.

use std::fmt;

use lockwork::sequencer::{self, HOW_TO_MAKE};
use lockwork::sql::Subject;
use lockwork::{EngineError, Error};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::response::ErrorResponse;

/// A request id was used for another call: a state of our own, in the class of wrong values.
const REQUEST_REUSED: &str = "22R01";
/// A request id is so old that a call with it may have been made and forgotten: as above.
const REQUEST_TOO_OLD: &str = "22R02";
/// A request id is of the future; the call has not been made: as above.
const REQUEST_IN_FUTURE: &str = "22R03";

/// Why a message is refused: SQLSTATE, what is wrong, where in the statement, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) sqlstate: String,
    pub(crate) message: String,
    pub(crate) hint: String,
    pub(crate) more: Option<Box<ErrorFields>>,
    /// Characters from the beginning of the statement, from 1; 0 for none.
    pub(crate) position: usize,
    /// Whether the message is that of an abort, which stands in a definition or in this program, and so has no values.
    pub(crate) is_abort: bool,
}

/// Fields of an error about a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorFields {
    /// Its table, column and constraint, as far as they are known.
    pub(crate) subject: Subject,
    /// Where in what a COPY sends something is wrong.
    pub(crate) context: String,
    /// What has become of what stood before.
    pub(crate) detail: String,
}

pub(crate) fn refuse(sqlstate: &str, message: impl Into<String>) -> Refusal {
    let (sqlstate, message) = (sqlstate.into(), message.into());
    Refusal { sqlstate, message, hint: String::new(), more: None, position: 0, is_abort: false }
}

impl Refusal {
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    pub(crate) fn context(mut self, context: String) -> Self {
        self.more.get_or_insert_default().context = context;
        self
    }

    pub(crate) fn detail(mut self, detail: String) -> Self {
        self.more.get_or_insert_default().detail = detail;
        self
    }

    /// What it is about, if that is known.
    pub(crate) fn about(mut self, subject: Option<Box<Subject>>) -> Self {
        if let Some(subject) = subject {
            self.more.get_or_insert_default().subject = *subject;
        }
        self
    }

    /// An error of a statement whose text is `source`.
    pub(crate) fn of(error: Error, source: &str) -> Self {
        match error {
            Error::Sql(error) => {
                let lines = source.split('\n').take(error.line.saturating_sub(1) as usize);
                let before: usize = lines.map(|line| line.chars().count() + 1).sum();
                let position = if source.is_empty() { 0 } else { before + error.column as usize };
                refuse(error.sqlstate, error.message.clone())
                    .hint(error.hint.clone())
                    .about(error.subject.clone())
                    .at(position)
            }
            Error::Aborted { sqlstate, message, subject, .. } => {
                Self { is_abort: true, ..refuse(&sqlstate, message).about(subject) }
            }
            Error::Unknown { .. } => refuse("42704", error.to_string()),
            Error::Outdated => refuse("0A000", error.to_string()),
            Error::TooManyStatements => refuse("54000", error.to_string()),
            Error::Unfilled(_) => refuse("40001", error.to_string()),
            Error::IndexTooLate { .. } => refuse("55006", error.to_string()),
            Error::Type { .. } | Error::Uneven { .. } => refuse("22023", error.to_string()),
            Error::Reserved { .. } => refuse("42939", error.to_string()),
            Error::Durability(sequencer::Error::Full { .. }) => refuse("53100", error.to_string()),
            Error::Durability(sequencer::Error::Conflict { .. }) => refuse("40001", error.to_string()),
            Error::Durability(sequencer::Error::TooLong) => refuse("54000", error.to_string()),
            Error::Durability(sequencer::Error::RequestReused { .. }) => {
                refuse(REQUEST_REUSED, error.to_string()).hint(HOW_TO_MAKE)
            }
            Error::Durability(sequencer::Error::RequestTooOld { .. }) => {
                refuse(REQUEST_TOO_OLD, error.to_string()).hint("docs/operations.md, Calls that are repeated")
            }
            Error::Durability(sequencer::Error::RequestInFuture { .. }) => {
                refuse(REQUEST_IN_FUTURE, error.to_string()).hint("docs/operations.md, Calls that are repeated")
            }
            Error::Durability(sequencer::Error::ForLeader { .. }) => {
                refuse("25006", error.to_string()).hint("connect to it")
            }
            Error::Durability(sequencer::Error::Lapsed) => refuse("40001", error.to_string()),
            Error::Durability(sequencer::Error::JournalFull(_)) => refuse("53100", error.to_string()),
            // Who connects again finds the leader.
            Error::Durability(sequencer::Error::Superseded | sequencer::Error::Follower { .. }) => {
                refuse("57P01", error.to_string())
            }
            Error::Durability(sequencer::Error::Unknown(_)) => refuse("08007", error.to_string()),
            Error::Durability(sequencer::Error::Closed) => refuse("57P01", "the server is ending"),
            Error::Durability(sequencer::Error::Engine(ref engine))
                if matches!(**engine, EngineError::TooManyProcedures(_)) =>
            {
                refuse("54000", error.to_string())
            }
            Error::Durability(_) => refuse("58030", error.to_string()),
            other => refuse("XX000", other.to_string()),
        }
    }

    /// The same error of a statement that stands so many characters behind the beginning of its text.
    pub(crate) fn behind(mut self, characters: usize) -> Self {
        if self.position > 0 {
            self.position += characters;
        }
        self
    }

    /// What counts call it: the message of an abort, and of what else happens to calls its kind, with the table;
    /// nothing for what is wrong with what was typed. A message of another kind may name keys and values: those would
    /// make a cause each, and everybody on the machine could read them.
    pub(crate) fn cause(&self) -> String {
        let kind =
            if self.is_abort { self.message.chars().take(100).collect() } else { kind(&self.sqlstate).to_string() };
        match self.more.as_ref().map_or("", |more| &more.subject.table) {
            table if table.is_empty() || kind.is_empty() => kind,
            table => format!("{kind} ({table})"),
        }
    }

    fn at(mut self, position: usize) -> Self {
        self.position = position;
        self
    }
}

/// What PostgreSQL calls the condition of a state that statements can end with through no mistake in their text.
fn kind(sqlstate: &str) -> &'static str {
    match sqlstate {
        "08007" => "transaction resolution unknown",
        "08P01" => "protocol violation",
        "0A000" => "feature not supported",
        "22001" => "string data right truncation",
        "22003" => "numeric value out of range",
        "22004" => "null value not allowed",
        "22007" => "invalid datetime format",
        "22008" => "datetime field overflow",
        "22012" => "division by zero",
        "22021" => "character not in repertoire",
        "22023" => "invalid parameter value",
        REQUEST_REUSED => "request id of another call",
        REQUEST_TOO_OLD => "request id too old",
        REQUEST_IN_FUTURE => "request id of the future",
        "23502" => "not null violation",
        "23505" => "unique violation",
        "25001" => "active sql transaction",
        "25006" => "read only sql transaction",
        "25P01" => "no active sql transaction",
        "25P02" => "in failed sql transaction",
        "40001" => "serialization failure",
        "53000" => "insufficient resources",
        "53100" => "disk full",
        "53200" => "out of memory",
        "53300" => "too many connections",
        "53400" => "configuration limit exceeded",
        "54000" | "54001" | "54011" => "program limit exceeded",
        "55000" => "object not in prerequisite state",
        "55006" => "object in use",
        "55P03" => "lock not available",
        "57014" => "query canceled",
        "57P01" => "admin shutdown",
        "58030" => "io error",
        "XX000" => "internal error",
        _ => "",
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.sqlstate, self.message)
    }
}

impl From<Refusal> for ErrorInfo {
    fn from(refusal: Refusal) -> Self {
        let mut info = Self::new("ERROR".into(), refusal.sqlstate, refusal.message);
        if let Some(more) = refusal.more {
            let some = |text: String| (!text.is_empty()).then_some(text);
            let Subject { table, column, constraint, detail } = more.subject;
            info.schema = (!table.is_empty()).then(|| "public".into());
            (info.table, info.column, info.constraint) = (some(table), some(column), some(constraint));
            let details = [detail, more.detail];
            info.detail = some(details.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" "));
            info.where_context = some(more.context);
        }
        info.hint = (!refusal.hint.is_empty()).then_some(refusal.hint);
        info.position = (refusal.position > 0).then(|| refusal.position.to_string());
        info
    }
}

/// An error as it is written. A zero byte would end its field, and make what stands behind it another one: it is shown
/// instead.
pub(crate) fn response(mut error: ErrorInfo) -> ErrorResponse {
    error.severity_nonlocalized.get_or_insert_with(|| error.severity.clone());
    let mut response = ErrorResponse::from(error);
    for (_, text) in response.fields.iter_mut().filter(|(_, text)| text.contains('\0')) {
        *text = text.replace('\0', "\\0");
    }
    response
}

impl From<Refusal> for PgWireError {
    fn from(refusal: Refusal) -> Self {
        Self::UserError(Box::new(refusal.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_no_keys_or_values_in_them() {
        let on = |table: &str| {
            let detail = "Key (id)=(17) already exists.".into();
            Some(Box::new(Subject { table: table.into(), detail, ..Subject::default() }))
        };
        for (refusal, expected) in [
            (refuse("23505", "duplicate key 17").about(on("accounts")), "unique violation (accounts)"),
            (refuse("22003", "40000 is out of the range of SMALLINT"), "numeric value out of range"),
            (refuse("22001", "'secret' is too long"), "string data right truncation"),
            (refuse("40001", "record 8 came before"), "serialization failure"),
            (refuse("42703", "no column is called 'secret'"), ""),
            (refuse("22P02", "'secret' is no BIGINT").about(on("accounts")), ""),
        ] {
            assert_eq!(refusal.cause(), expected, "{refusal}");
        }
        // What a procedure says of itself stands in its definition.
        let (sqlstate, message) = ("BK001".to_string(), "not enough money".to_string());
        let abort = Refusal::of(Error::Aborted { code: 1000, sqlstate, message, subject: None }, "");
        assert_eq!(abort.cause(), "not enough money");
    }

    #[test]
    fn no_text_makes_fields_of_an_error() {
        let forged = "a\0C40001\0Mfake";
        let refusal = refuse("22021", forged).hint(forged).context(forged.into()).detail(forged.into());
        let shown = "a\\0C40001\\0Mfake".to_string();
        let fields = response(refusal.into()).fields;
        assert!(fields.iter().all(|(_, text)| !text.contains('\0')), "{fields:?}");
        for kind in *b"MHWD" {
            assert!(fields.contains(&(kind, shown.clone())), "{} {fields:?}", char::from(kind));
        }
    }
}
