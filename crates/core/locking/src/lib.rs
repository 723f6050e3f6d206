//! Who may go: the second narrow waist of Lockwork, and the lock managers on it.
//!
//! Every lock is one object cut in two. The **decision word** has a fixed size and answers "may it go now?". The
//! **participant line** has a variable size and answers "who holds, who waits?". The managers differ in where they put
//! the two, and in how much of the second they need:
//!
//! | | decision word | participant line |
//! |---|---|---|
//! | [`batch`] | 64 bits per record: held and reserved mode, chain, epoch | none: the batch is the participant, its end the release |
//! | [`queue`] | granted count and the mode of the head | ordered request list per record |
//! | [`word`] | 64 bits in the row header: holder count and serial stamp | none: who waits asks again; for wait-die one more word with the age of the oldest holder |
//! | [`tid`] | 64 bits in the row header: lock bit and the number of the transaction that wrote the row last | none: readers leave no trace, who meets a writer asks again |
//! | [`shared`] | first word of a 64-byte line: owner, ring, version | the other seven words of the line |
//! | lock service | mode, machine, incarnation in the data plane | agent on the holder's machine |
//! | hazard table of a hardware pipeline | key hashes in flight | the stalled instruction |
//!
//! The last two live elsewhere; [`service`] is the lock service as an engine uses it. All use one [`vocabulary`], and
//! the crate `lockwork-conformance` runs one set of golden scripts on all.
//!
//! Which one: [`batch`] if transactions arrive in batches with known access sets (fastest, deterministic, parallel
//! without atomics); [`queue`] if they arrive one by one and order must be kept; [`word`] if access sets are not known
//! beforehand; [`tid`] if, besides, most of them only read; [`shared`] if those who lock
//! are processes, or a processor and a device.
//!
//! This crate is part of the deep core: no clock, no randomness, no I/O, no threads. Callers poll.

pub mod batch;
pub mod queue;
pub mod service;
pub mod shared;
mod sync;
pub mod tid;
pub mod vocabulary;
pub mod word;

pub use vocabulary::{LockId, LockMode, Outcome, Owner, Request, compatible};
