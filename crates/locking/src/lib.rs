//! Who may go.
//!
//! Every lock of Lockwork is the same object cut in two: a **decision**, a word of fixed size that answers "may it
//! go now?", and **participants**, of any number, that answer "who holds, who waits?":
//!
//! | manager | decision | participants |
//! |---|---|---|
//! | [`batch`] | one epoch-stamped word a record, good for one batch | none: the batch is the participant; chains for hot records |
//! | [`queue`] | mode and holders | an ordered list of requests |
//! | [`word`] | holders and serial stamp, in the row's header | none: a transaction knows what it holds and polls |
//!
//! [`vocabulary`] is what all of them speak. This crate takes no clock, no randomness and no I/O.

pub mod batch;
pub mod queue;
mod sync;
pub mod vocabulary;
pub mod word;

pub use vocabulary::{LockId, LockMode, Outcome, Owner, Request, compatible};
