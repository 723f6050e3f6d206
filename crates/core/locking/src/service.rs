//! A lock service in other processes, as an engine uses it that takes its locks from one.
//!
//! The engine is part of the database and the service is part of the locks; neither depends on the other. Both depend
//! on this trait: the engine is generic over it, the client of the service implements it, and the application that has
//! both names the type once.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use crate::LockMode;

/// A session with a lock service. Its locks have the numbers from 0 to [`count`](Self::count) - 1.
pub trait LockService: Sized + 'static {
    /// A held lock. It is released on drop.
    type Guard;
    /// A request that is polled until the lock is granted. It is withdrawn on drop.
    type Request: Future<Output = Result<Self::Guard, Self::Error>> + Unpin;
    /// Why a lock was not granted.
    type Error: Display;

    /// Starts a service in this process, on a free port of the loopback interface. It stops when the second value is
    /// dropped.
    ///
    /// # Errors
    /// Why it does not start.
    fn start() -> Result<(SocketAddr, Box<dyn Send>), String>;

    /// Opens a session with the service at `HOST:PORT`.
    ///
    /// # Errors
    /// Why there is no session.
    fn connect(address: &str) -> Result<Self, String>;

    /// Returns how many locks there are.
    fn count(&self) -> u64;

    /// Requests a lock in the mode shared or exclusive, and waits for it at most for `timeout` if there is one.
    fn request(&self, lock: u64, mode: LockMode, timeout: Option<Duration>) -> Self::Request;

    /// Returns whether the caller may release its locks and request them again: the timeout has expired, or the session
    /// has ended and the next request opens another one.
    fn may_retry(error: &Self::Error) -> bool;

    /// Returns whether a granted lock was lost, because the session has ended since.
    fn is_lost(guard: &Self::Guard) -> bool;
}
