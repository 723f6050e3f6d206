//! SQLite, as the server has it: databases in memory that are bounded in memory and in time.

use std::time::Duration;

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Error, ErrorCode, Result};

use crate::error::{Refusal, refuse};

/// The most bytes that all of them may have together: the catalog, and what queries sort and group.
const MOST_MEMORY: i64 = 384 << 20;
/// Instructions of SQLite between looks whether it is over.
const LOOK: i32 = 10_000;

/// An empty database, whose statements end when `is_over` says so.
pub(crate) fn open(is_over: impl FnMut() -> bool + Send + 'static) -> Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch(&format!(
        "PRAGMA hard_heap_limit = {MOST_MEMORY}; PRAGMA temp_store = MEMORY; PRAGMA case_sensitive_like = ON;
         PRAGMA trusted_schema = OFF"
    ))?;
    connection.progress_handler(LOOK, Some(is_over))?;
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("lw_pattern", 2, flags, |context| {
        let (Some(pattern), Some(escape)) = (context.get::<Option<String>>(0)?, context.get::<Option<String>>(1)?)
        else {
            return Ok(None);
        };
        let wrong = || "22025: LIKE pattern must not end with escape character";
        escaped(&pattern, &escape).map(Some).ok_or_else(|| Error::UserFunctionError(wrong().into()))
    })?;
    Ok(connection)
}

/// A pattern of LIKE whose escape character is a backslash; nothing if it ends with the one that it has.
fn escaped(pattern: &str, escape: &str) -> Option<String> {
    let mut made = String::new();
    let mut chars = pattern.chars();
    while let Some(next) = chars.next() {
        let is_escape = escape.chars().eq([next]);
        if is_escape || next == '\\' {
            made.push('\\');
        }
        made.push(if is_escape { chars.next()? } else { next });
    }
    Some(made)
}

/// What SQLite says of an error.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, .. } => msg.clone(),
        Error::SqliteFailure(_, Some(message)) => message.clone(),
        Error::UserFunctionError(inner) => inner.to_string(),
        other => other.to_string(),
    }
}

/// An error of a function of ours, which says its SQLSTATE itself.
pub(crate) fn stated(message: &str) -> Option<Refusal> {
    let (sqlstate, message) = message.split_once(": ")?;
    let is_state = sqlstate.len() == 5 && sqlstate.bytes().all(|b| b.is_ascii_alphanumeric());
    is_state.then(|| refuse(sqlstate, message))
}

/// The refusal of what ran for too long, or needed too much memory; nothing for other errors.
pub(crate) fn beyond(error: &Error, what: &str, limit: Duration) -> Option<Refusal> {
    let refusal = match error.sqlite_error_code()? {
        ErrorCode::OperationInterrupted => {
            refuse("57014", format!("{what} ran for more than {} s", limit.as_secs())).hint("ask for less")
        }
        ErrorCode::OutOfMemory | ErrorCode::TooBig => {
            refuse("53200", format!("{what} needs too much memory")).hint("ask for less")
        }
        _ => return None,
    };
    Some(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_does_not_end_with_its_escape_character() {
        for (pattern, escape, expected) in [
            ("a%\\_", "\\", Some("a%\\_")),
            ("a\\\\", "\\", Some("a\\\\")),
            ("a\\", "\\", None),
            ("\\", "!", Some("\\\\")),
            ("!%!!!\\", "!", Some("\\%\\!\\\\")),
            ("!!!", "!", None),
            ("", "!", Some("")),
        ] {
            assert_eq!(escaped(pattern, escape).as_deref(), expected, "{pattern} {escape}");
        }
    }
}
