//! What must hold of any text whatever: one function for the fuzz target.

use lockwork_procedure::assembly::fuzz::catalog;

use crate::{Catalogue, Kind, SqlError, statements};

/// Any bytes as a script: no panic; every error has a place in the text, and what compiles passes the verifier. Returns
/// the first error.
///
/// # Panics
/// When that does not hold.
pub fn script(bytes: &[u8]) -> Option<SqlError> {
    let Ok(text) = std::str::from_utf8(bytes) else { return None };
    // A script with tables has all that it needs.
    let tables = if text.contains("CREATE TABLE") { Vec::new() } else { catalog() };
    let mut catalogue = Catalogue::of_schemas(&tables);
    let mut first = None;
    let mut check = |error: SqlError| {
        let SqlError { sqlstate, message, line, column, .. } = &error;
        assert!(*line >= 1 && *column >= 1 && !message.is_empty(), "an error has a place and a message");
        assert!(sqlstate.len() == 5 && *sqlstate != "XX000", "{error}");
        assert!(!error.to_string().is_empty());
        first.get_or_insert(error);
    };
    for statement in statements(text) {
        let statement = match statement {
            Ok(statement) => statement,
            Err(error) => {
                check(error);
                break;
            }
        };
        let result = match statement.kind() {
            Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure => catalogue.define(&statement).map(|_| ()),
            kind if kind.is_single() => catalogue.single(&statement).map(|_| ()),
            _ => Ok(()),
        };
        if let Err(error) = result {
            check(error);
        }
    }
    first
}
