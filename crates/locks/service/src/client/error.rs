//! What can go wrong, as its users see it.

use lockwork_lock_protocol::beyond::MAX_LOCKS;
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::names::LONGEST;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// No session could be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A name that leads to no address, or nothing of the form HOST:PORT.
    #[error("'{address}' is no address of a lock service: {error}; write HOST:PORT")]
    Address {
        /// What was given.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// Nobody answers.
    #[error(
        "no answer from {} in {waited_ms} ms{hint}; is 'lockwork lockd' running there, with the same key?",
        list(addresses)
    )]
    NoAnswer {
        /// Who was asked.
        addresses: Vec<SocketAddr>,
        /// For how long.
        waited_ms: u64,
        /// What else is known.
        hint: &'static str,
    },
    /// The service has as many machines as its profile allows.
    #[error("the lock service at {address} has no machine number left; try again when others have left")]
    Full {
        /// Which service.
        address: SocketAddr,
    },
    /// The system refuses a socket or a thread.
    #[error("cannot talk to {address}: {error}")]
    System {
        /// Which service.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
}

/// The end of what says which locks there are.
fn from(beyond: Option<u64>) -> String {
    beyond.map_or(String::new(), |first| format!(", and those from {first} to {}", MAX_LOCKS - 1))
}

pub(super) fn no_such_lock(lock: u64, service: &Service) -> LockError {
    let beyond = service.beyond.then_some(service.locks);
    LockError::NoSuchLock { lock, locks: service.locks - service.names, beyond }
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// A lock as the caller named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LockName {
    /// A lock that has only a number.
    Number(u64),
    /// A lock that the service finds by this name.
    Name(Arc<str>),
}

impl fmt::Display for LockName {
    /// Writes a number as it is, and a name in quotes, without characters that a terminal takes for commands.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Name(name) => write!(formatter, "'{}'", name.escape_debug()),
        }
    }
}

/// A lock was not granted. Nothing is held and nobody waits any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// There are fewer locks.
    #[error("there is no lock {lock}: the service has {locks}, numbered from 0{}", from(*beyond))]
    NoSuchLock {
        /// The one that was asked for.
        lock: u64,
        /// How many there are.
        locks: u64,
        /// The first number of those that managers keep, if the service has such locks.
        beyond: Option<u64>,
    },
    /// Somebody else holds it, and the request was not to wait.
    #[error("lock {0} is held by another session; retry, or wait for it")]
    Busy(LockName),
    /// It was not granted in time.
    #[error("lock {0} was not granted in time; retry, or wait longer")]
    TimedOut(LockName),
    /// It waits in a circle with others. Releasing what is held and trying again helps.
    #[error("waiting for lock {0} would never end: its holder waits for a lock that is held here")]
    Deadlock(LockName),
    /// The session has ended while the request waited: everything that was held is lost.
    #[error("the session with the lock service ended while lock {0} was waited for; all locks held are lost")]
    Disconnected(LockName),
    /// The session had ended, and no new one could be had.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session belongs to the process that connected, not to those that it forks.
    #[error("this process was forked after it connected, and the session is its parent's: connect anew")]
    Forked,
    /// Two readers that both want to become writers would wait for each other for ever.
    #[error("a shared lock cannot become exclusive: release it and acquire it anew")]
    NoUpgrade,
    /// What is asked of the guard needs an exclusive lock that is still held.
    #[error("lock {0} is not held exclusively any more")]
    NotExclusive(LockName),
    /// A name that is empty or too long.
    #[error("a name has 1 to {LONGEST} bytes, and this one has {0}")]
    BadName(usize),
    /// The service gives no names.
    #[error("the lock service has no locks for names; start 'lockwork lockd' with --names, or use numbers")]
    NoNames,
    /// All locks for names have one.
    #[error("all {0} locks for names have a name that is in use; start 'lockwork lockd' with more --names")]
    NamesFull(u64),
    /// What a name means was not said in time.
    #[error("which lock '{0}' means was not known in time; can the lock service reach its etcd?")]
    NotResolved(String),
}

impl LockError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Busy(_)
                | Self::TimedOut(_)
                | Self::Deadlock(_)
                | Self::Disconnected(_)
                | Self::Connect(_)
                | Self::NamesFull(_)
                | Self::NotResolved(_)
        )
    }
}
