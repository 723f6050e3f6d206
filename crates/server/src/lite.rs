//! SQLite, as the server has it: databases in memory that are bounded in memory and in time.

use std::time::Duration;

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
    Ok(connection)
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
