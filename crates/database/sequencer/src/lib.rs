//! Order and durability: what is acknowledged is there after a crash.
//!
//! ```text
//! calls -> order thread: reserve space -> engine runs the batch -> records in serial order -> writer: write, sync
//!                |                                                                                  -> answers
//!                +-- checkpoint: a snapshot between two batches, copied in slices -> file, rename, log truncated
//! ```
//!
//! There is one path for every engine. Space for a batch is reserved in a segment of the log before the batch runs, so
//! a full disk is found before anything has happened. Then the engine runs it. What ran is written in the engine's
//! serial order, so replay is plain batch order, whatever the engine. Calls that failed did not happen, and calls that
//! only read, or aborted, leave nothing in the database: without a request id they are not written. Answers go out in
//! order, when what they may have seen is durable. The engine runs a batch while the log of the one before is written.
//!
//! A write or sync of the log that fails is final: callers that waited get an error that says that the outcome is not
//! known, later ones that nothing is accepted, and opening the directory again tells. Reads go on.
//!
//! | module | idea |
//! |---|---|
//! | [`io`] | the file system as a trait; the real one, and a simulated one that fails |
//! | `directory` | what lies where |
//! | `format` | bytes on disk |
//! | [`journal`] | a log that several nodes share: one leads, the others replay |
//! | `log` | segments: space, the writing thread, reading and telling torn from damaged |
//! | `checkpoint` | snapshots, files, reading |
//! | `order` | the thread that runs everything in order |
//! | `transaction` | several calls as one transaction |
//! | `requests` | the dedup table: request ids and what became of their calls |
//! | `threads` | time, threads and waiting: the system's, or a simulator's |
//! | [`simulator`] | nodes, their log and their clients in one process, by a seed |
//! | `decode` | records into batches and other work for an engine |
//! | `recovery` | checkpoint and log back into an engine |
//! | [`inspect`] | looks at a log or checkpoint without touching it |
//!
//! `docs/durability.md` has the guarantees, the formats byte by byte and the recovery argument.

mod begin;
mod catalogue;
mod checkpoint;
mod decode;
mod directory;
mod divided;
mod error;
mod format;
#[doc(hidden)]
pub mod fuzz;
pub mod inspect;
pub mod io;
pub mod journal;
mod log;
mod node;
mod options;
mod order;
mod recovery;
mod requests;
mod sequencer;
mod shared;
pub mod simulator;
mod threads;
mod transaction;

pub use checkpoint::write::CheckpointReport;
pub use divided::{GatheredTables, Journals};
pub use error::{Error, Failure, Refused};
pub use format::VERSION;
pub use format::frame::RecordKind;
pub use format::items::Definition;
pub use journal::election::{NodeOptions, NodeStatus, Role, StreamStatus};
pub use lockwork_procedure::request::{HOW_TO_MAKE, RequestId, RequestIdError};
pub use log::reader::Torn;
pub use options::{Durability, Options};
pub use recovery::{Progress, RecoveryReport};
pub use requests::request_id;
pub use sequencer::{Handle, Sequencer, Ticket};
pub use shared::Statistics;
pub use threads::Threads;
pub use transaction::{MAX_ARGUMENT_BYTES, MAX_CALLS, MAX_CALLS_AT_ONCE, Mark, Transaction};
