//! Engines: what runs transaction blocks.
//!
//! Every engine keeps one contract ([`Engine`]): load tables, register procedures, submit batches, complete them in
//! order, tell a digest. What differs is the concurrency control, and with it the serial order that the engine is
//! equivalent to:
//!
//! | engine | concurrency control | serial order | module |
//! |---|---|---|---|
//! | `serial` | none: one transaction after the other | batch order | [`serial`]; the oracle of all others |
//! | `two-phase` | strict two-phase locking on words in the rows | commit stamps | [`two_phase`] |
//! | `optimistic` | validation of what was read at commit, writes in private copies (Silo) | commit stamps | [`optimistic`] |
//! | `timestamp` | timestamp ordering by the owners of partitions, who exchange messages (BionicDB) | times | [`timestamp`] |
//! | `deterministic-queue` | ordered lock queues, one scheduler (Calvin, HOBBES 3.2.1) | batch order | [`deterministic_queue`] |
//! | `deterministic` | batches planned in parallel by key range | batch order | [`deterministic`] |
//!
//! Shared by all of them: the registry of procedures ([`registry`]) and their inner-loop form ([`recipe`]), the worker
//! team ([`team`]), execution of a transaction that has its rows for itself ([`exclusive`]), several calls as one
//! transaction ([`Compound`]), calls that only read, beside all of that ([`read()`]), and the check that makes every
//! engine trustworthy, replay in its own serial order ([`replay`]). What engines of several machines promise each
//! other is in [`divided`].

// The suite of `lockwork-conformance`, compiled once more with the types of the crate under test.
#[cfg(test)]
extern crate self as lockwork_engine;
#[cfg(test)]
#[allow(dead_code, unreachable_pub)]
#[path = "../../../dev/conformance/src/engines.rs"]
mod conformance;

mod blocks;
mod compound;
pub mod conflicts;
pub mod contract;
pub mod deterministic;
pub mod deterministic_queue;
pub mod divided;
pub mod exclusive;
mod host_engine;
mod interleaved;
mod key_images;
mod kinds;
mod lines;
pub mod optimistic;
mod reading;
pub mod recipe;
pub mod registry;
pub mod replay;
pub mod serial;
mod tally;
pub mod team;
pub mod timestamp;
mod tombstones;
pub mod two_phase;

pub use compound::{Compound, Savepoint};
pub use conflicts::{Cause, Conflicts};
pub use contract::{
    BatchReport, Completed, ConflictPlan, Constructor, DeviceTimes, Engine, EngineError, EngineKind, Interleave,
    LockPolicy, Options, Refused, SerialOrder, Settings, create,
};
pub use divided::{Calls, Divided, Gathered, Images, Interrupt, Loaded, Place};
pub use reading::read;
pub use tally::Tally;
