//! SQL compiled to procedures.
//!
//! Text goes through these modules, and comes out as a verified [`Procedure`] with its metadata:
//!
//! | module | idea |
//! |---|---|
//! | `parse` | sqlparser's tokens and expressions; statements, bodies and definitions are read here, with places |
//! | `bind` | names are resolved and types checked; FOR, aggregates and ranges become what they stand for |
//! | `lower` | blocks of instructions on values: keys, look-ups, indexes, texts |
//! | `ir` | constants folded, values reused, look-ups early and row writes late, registers, instructions |
//! | [`Catalogue`] | tables with SQL types, indexes, which procedures write what |
//! | [`statements`] | scripts, definitions, and single statements as procedures |
//!
//! What is supported, and what to do instead of what is not, is told in `docs/sql.md`. There is no I/O here and no
//! engine: the caller creates tables, registers procedures and runs blocks.
//!
//! ```
//! use lockwork_sql::{Catalogue, Definition, statements};
//!
//! let mut catalogue = Catalogue::new();
//! let script = "
//!     CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance DECIMAL(12, 2) NOT NULL);
//!     CREATE PROCEDURE deposit(account BIGINT, amount DECIMAL(12, 2), OUT left DECIMAL(12, 2)) AS BEGIN
//!         UPDATE accounts SET balance = balance + amount WHERE id = account;
//!         SELECT balance INTO left FROM accounts WHERE id = account;
//!     END;";
//! for statement in statements(script) {
//!     if let Definition::Procedure(deposit) = catalogue.define(&statement?)? {
//!         assert_eq!(deposit.procedure.name, "deposit");
//!     }
//! }
//! # Ok::<(), lockwork_sql::SqlError>(())
//! ```
//!
//! Invariant: no text makes it panic, and everything it returns has passed the verifier.
//!
//! [`Procedure`]: lockwork_procedure::program::Procedure

mod bind;
mod catalogue;
mod compile;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod ir;
mod lower;
mod parse;
mod script;
mod single;
mod syntax;
mod text;
mod tree;
mod types;
mod value;

pub use catalogue::{Catalogue, Index, Table};
pub use compile::{Compiled, Field, explain};
pub use error::{SqlError, Subject, pointed};
pub use lockwork_procedure::program::STATEMENT;
pub use script::{Definition, Kind, LIST_SIZES, Single, Statement, Statements, is_ended, statements};
pub use single::{Arguments, Inserted};
pub use syntax::{Control, Place};
pub use text::array_elements;
pub use tree::Abort;
pub use types::SqlType;
pub use value::Value;
