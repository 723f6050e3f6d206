//! What a client is asked, and what it tells.

use crate::packet::Problem;
use lockwork_locking::LockMode;
use std::net::SocketAddr;

/// How a task asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Which task of this machine; the upper half of the request's number. The largest number is taken for the one
    /// before it.
    pub task: u32,
    /// Give up after this many nanoseconds.
    pub timeout: Option<u64>,
    /// Do not wait for anybody who holds; only, and not for long, for an answer.
    pub try_only: bool,
    /// Give up when it waits in a cycle with others that ask for this too. Tasks that do things at one time must have
    /// numbers of their own then.
    pub detect_deadlock: bool,
}

/// The task that a request is of.
#[must_use]
pub const fn task_of(request: u64) -> u32 {
    (request >> 32) as u32
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The task holds the lock.
    Granted {
        /// Whose.
        request: u64,
        /// Which lock.
        lock: u64,
        /// In which mode.
        mode: LockMode,
        /// The fencing token: larger than that of every exclusive grant before, and not smaller than that of any grant
        /// before.
        token: u64,
    },
    /// It would have had to wait.
    Busy {
        /// Whose.
        request: u64,
    },
    /// It has waited as long as it may, and no longer does.
    TimedOut {
        /// Whose.
        request: u64,
    },
    /// The service cannot grant it.
    Failed {
        /// Whose.
        request: u64,
        /// Why.
        problem: Problem,
    },
    /// Another decider decides on the lock, and it waits no longer; see [`crate::racks`].
    Moved {
        /// Whose.
        request: u64,
        /// Where to ask.
        to: SocketAddr,
    },
    /// It waits in a cycle with others, and no longer does.
    Deadlock {
        /// Whose.
        request: u64,
    },
    /// What was held is held no longer: the lease has run out, or the service does not know of it.
    Lost {
        /// Whose.
        request: u64,
        /// Which lock.
        lock: u64,
    },
}

/// A request that is not among those that hold or wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {0} neither holds nor waits")]
pub struct NotHeld(pub u64);
