//! Where data lives.
//!
//! | module | idea |
//! |---|---|
//! | `row` | a row in memory: engine word, state, key, values |
//! | `slab` | extents of equal rows, row numbers |
//! | `segments` | cache lines by index, in memory that grows and never moves |
//! | `hash` | the point index: one line a look-up, cut into prefetch and find |
//! | `ordered` | the ordered index: a B-link tree |
//! | `table`, `database` | all of it together, by name |
//! | `digest` | contents in 128 bits, whatever the layout |
//!
//! Memory is huge pages where the system gives them ([`lockwork_memory`]). Nothing here knows about transactions: what
//! may be read and written when is the engine's to decide, and each row has a word of the engine's own for it.

mod database;
mod digest;
mod error;
mod hash;
mod ordered;
mod row;
mod segments;
mod slab;
mod stripe;
mod table;

pub use database::Database;
pub use digest::Digest;
pub use error::StorageError;
pub use row::{ABSENT, FREE, LIVE, REMOVED, RowPtr, STATE_MASK};
pub use table::{Inserted, Table, TableMemory};
