//! The `network-two-phase` engine: strict two-phase locking over the network lock service, on several processes.
//!
//! The coordinator, the program that has the engine, starts worker processes. Each owns a partition of every table
//! ([`layout`](crate)), and is one machine of the lock service. A batch's calls go to the workers that own most of what
//! they touch; a worker takes the locks of a call from the service, in ascending order, fetches copies of the rows from
//! their owners, runs the procedure on them, has the owners write what it wrote, and only then releases the locks.
//! What a call touches is known from its arguments, or found by running it without locks first, and checked under them.
//!
//! Many calls are in flight at each worker, so that a round trip to the service is one of many at the same time.
//!
//! Serial order: ascending stamps, which a counter in shared memory gives while all locks are held.
//!
//! Invariants: between processes there is nothing but messages, locks and that counter, so nothing here needs shared
//! memory but the counter. A row is changed by its owner alone, between the grant and the release of its lock.
//!
//! Trade-off: every record costs a message to the lock service and its answer, which no batching within one machine
//! makes as cheap as a word in memory. In return nobody plans, and processes that share no memory agree.

mod access;
mod bell;
mod core;
mod dispatch;
pub mod divided;
mod engine;
mod exchange;
mod fetch;
mod layout;
mod links;
mod member;
mod message;
mod ordered;
mod partition;
mod processes;
mod program;
mod service;
mod stamps;
mod stream;
mod transaction;
mod wire;
mod worker;

pub use engine::NetworkEngine;
pub use program::{PROGRAM, find, worker_if_asked};

use lockwork_engine::{Constructor, EngineKind};

/// The setting that names a lock service.
pub(crate) const LOCKD: &str = "lockd";

/// Two-phase locking over the network lock service, on as many worker processes as there are threads (FissLock).
pub const NETWORK_TWO_PHASE: EngineKind = EngineKind::new(&Constructor {
    name: "network-two-phase",
    on_device: true,
    settings: &[(LOCKD, "the address of a lock service [default: one of its own]")],
    create: |options| Ok(Box::new(NetworkEngine::two_phase(options, find()?)?)),
});
/// Planned order, executed by as many worker processes as there are threads (Calvin).
pub const NETWORK_DETERMINISTIC: EngineKind = EngineKind::new(&Constructor {
    name: "network-deterministic",
    on_device: true,
    settings: &[],
    create: |options| Ok(Box::new(NetworkEngine::deterministic(options, find()?)?)),
});
/// The engines of several processes.
pub const ENGINES: &[EngineKind] = &[NETWORK_TWO_PHASE, NETWORK_DETERMINISTIC];
