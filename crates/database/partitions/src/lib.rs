//! Engines over partitioned tables: in worker processes of one machine, or on the nodes of a cluster.
//!
//! | engine | order of conflicting calls | where partitions are |
//! |---|---|---|
//! | [`network_two_phase`] | locks of a lock service (FissLock) | worker processes |
//! | [`NETWORK_DETERMINISTIC`] | order chosen by the coordinator (Calvin) | worker processes |
//! | [`divided`] | order of the cluster's log | nodes of a cluster |
//!
//! **`network-two-phase`**. The coordinator, the program that has the engine, starts worker processes. Each worker owns
//! a partition of every table, and is one machine of the lock service. The coordinator sends a call to the worker that
//! owns most of what the call touches. The worker acquires the call's locks in ascending order, fetches copies of the
//! rows from their owners, runs the procedure on the copies, sends what it wrote to the owners, and only then releases
//! the locks. What a call touches is known from its arguments, or found by running it without locks first, and is
//! checked again under the locks. Many calls are in flight at each worker, so that their round trips to the service
//! overlap.
//!
//! Serial order: ascending stamps. A worker takes the stamp of a call from a counter in shared memory while it holds
//! all locks of the call.
//!
//! Invariants: processes share only messages, locks and that counter. Only the owner of a row changes it, between the
//! grant and the release of its lock.
//!
//! Trade-off: every record costs a message to the lock service and its answer, which no batching within one machine
//! makes as cheap as a word in memory. In return nobody plans, and processes that share no memory agree.
//!
//! **Why one crate.** The three engines share everything but the choice of the order: layout of partitions, messages,
//! copies of rows, worker processes. Were `network-two-phase` in a crate of its own, beside the lock service, all of
//! that would have to be public in a third crate. So it is here, and generic over the trait
//! [`LockService`], which the client of the lock service implements: an
//! application that offers the engine names that type, and no other program depends on the lock service.

mod access;
mod bell;
mod coordinator;
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
use lockwork_locking::service::LockService;

/// The setting that names a lock service.
pub(crate) const LOCKD: &str = "lockd";

/// Returns `network-two-phase`: two-phase locking over the lock service `S`, on as many worker processes as there are
/// threads (FissLock).
#[must_use]
pub const fn network_two_phase<S: LockService>() -> EngineKind {
    EngineKind::new(
        const {
            &Constructor {
                name: program::TWO_PHASE,
                on_device: true,
                settings: &[(LOCKD, "the address of a lock service [default: one of its own]")],
                create: |options| Ok(Box::new(NetworkEngine::two_phase::<S>(options, find()?)?)),
            }
        },
    )
}

/// Planned order, executed by as many worker processes as there are threads (Calvin).
pub const NETWORK_DETERMINISTIC: EngineKind = EngineKind::new(&Constructor {
    name: program::DETERMINISTIC,
    on_device: true,
    settings: &[],
    create: |options| Ok(Box::new(NetworkEngine::deterministic(options, find()?)?)),
});
