//! The lock service as its users meet it: its commands, each in a process of its own.
//!
//! Tests whose names begin with `privileged` need root. Elsewhere they say that they are skipped.

mod beyond;
mod capacity;
#[path = "../common/command.rs"]
mod command;
mod daemon;
mod kernel;
mod kernel_recovery;
mod names;
mod protocol;
mod racks;
mod reconnect;
mod recovery;
mod sections;
mod watchdog;

use lockwork_locks::client::LockError;

/// Whether a request was refused because another session holds the lock; any other refusal fails the test.
#[track_caller]
fn is_busy<T>(asked: Result<T, LockError>) -> bool {
    match asked {
        Ok(_) => false,
        Err(LockError::Busy(_)) => true,
        Err(other) => panic!("{other}"),
    }
}

/// Whether a request was not granted in its time; any other refusal fails the test.
#[track_caller]
fn is_late<T>(asked: Result<T, LockError>) -> bool {
    match asked {
        Ok(_) => false,
        Err(LockError::TimedOut(_)) => true,
        Err(other) => panic!("{other}"),
    }
}
