//! Procedures as text, as values, and as bytes.
//!
//! [`assemble`] turns text into a [`Procedure`], [`disassemble()`] turns it back into text that assembles to the same
//! procedure, and [`encode`] and [`decode`] do the same with bytes (`binary.rs` has the format). The language is
//! described in `docs/assembly.md`; in short, one statement a line, `;` before comments:
//!
//! ```text
//! procedure deposit
//! table accounts (id: i64 key, balance: i64)
//! param id: i64
//! param amount: i64
//! result balance: i64
//!     update  c0, accounts, [id]
//!     ret     r1, c0
//!     loadr   r2, r1[accounts.balance]
//!     load    r3, [amount]
//!     add     r2, r2, r3
//!     storer  r2, r1[accounts.balance]
//!     store   r2, [balance]
//!     commit
//! ```
//!
//! The assembler knows names, offsets and widths. Whether a procedure is *sound* is the verifier's to say
//! ([`crate::verify`]): the assembler lets through whatever can be written down. What has no name can still be written,
//! as a number (an offset, `#7` for a table slot, `@12` for an instruction, `.w3` for a width that is no type's),
//! because the disassembler must be able to show a procedure that the verifier refuses.
//!
//! Invariant: for every procedure `p` that [`assemble`] or [`decode`] has made, and any catalogue `c`,
//! `assemble(disassemble(p, c), c) == p` and `decode(encode(p)) == p`. Neither way in panics, and neither takes more
//! memory than a constant multiple of what it reads.

mod binary;
mod declarations;
mod disassemble;
#[doc(hidden)]
pub mod fuzz;
mod handles;
mod instructions;
mod lexer;
mod nearest;
mod operands;
mod parser;
#[cfg(test)]
mod tests;
mod widths;

use crate::program::Procedure;
use crate::schema::TableSchema;

pub use binary::{FormatError, decode, encode};
pub use disassemble::disassemble;
pub use parser::{assemble, assemble_tables};

/// A procedure, and the tables that its source declares with columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// The procedure.
    pub procedure: Procedure,
    /// Tables declared with their columns, in order.
    pub schemas: Vec<TableSchema>,
}

/// What is wrong with a source, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct AssemblyError {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
    /// What is wrong, and what would be right.
    pub message: String,
}
