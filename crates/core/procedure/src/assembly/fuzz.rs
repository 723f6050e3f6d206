//! What must hold of any input whatever: one function for each way in, so that a fuzz target is one line.
//!
//! They panic when a promise of this module is broken, and do nothing when the input is refused.

use super::{AssemblyError, FormatError, assemble, decode, disassemble, encode};
use crate::program::Procedure;
use crate::schema::{Catalog, ColumnType, TableSchema};

/// Any bytes as a source: no panic; what assembles comes back from text and from bytes.
///
/// # Panics
/// When that does not hold.
pub fn source(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let catalog = catalog();
    match assemble(text, catalog.as_slice()) {
        Ok(assembled) => comes_back(&assembled.procedure, catalog.as_slice()),
        Err(AssemblyError { line, column, message }) => {
            assert!(line >= 1 && column >= 1 && !message.is_empty(), "an error has a place and a message");
        }
    }
}

/// Any bytes as a procedure: no panic; what decodes is written as the same bytes, and comes back from text.
///
/// # Panics
/// When that does not hold.
pub fn binary(bytes: &[u8]) {
    match decode(bytes) {
        Ok(procedure) => {
            assert_eq!(encode(&procedure), bytes, "one procedure has one binary form");
            comes_back(&procedure, catalog().as_slice());
            comes_back(&procedure, [].as_slice());
        }
        Err(FormatError { offset, problem }) => {
            assert!(offset <= bytes.len() && !problem.is_empty(), "an error has a place and a message");
        }
    }
}

fn comes_back(procedure: &Procedure, catalog: &(impl Catalog + ?Sized)) {
    let text = disassemble(procedure, catalog);
    let again = assemble(&text, catalog).map(|assembled| assembled.procedure);
    assert_eq!(again.as_ref(), Ok(procedure), "{text}");
    assert_eq!(decode(&encode(procedure)).as_ref(), Ok(procedure));
}

/// Two tables for sources to name.
///
/// # Panics
/// Never: the tables are sound.
#[must_use]
pub fn catalog() -> Vec<TableSchema> {
    let accounts = [("id", ColumnType::I64), ("balance", ColumnType::I64), ("note", ColumnType::Char(20))];
    let orders =
        [("id", ColumnType::I64), ("line", ColumnType::U8), ("amount", ColumnType::I32), ("r1", ColumnType::U16)];
    let table = |name, columns, key, ordered| TableSchema::new(name, columns, key, ordered).expect("a sound table");
    vec![table("accounts", &accounts, 1, false), table("orders", &orders, 2, true)]
}
