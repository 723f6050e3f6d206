//! The lock service as engines use it that take their locks from one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockwork_locking::LockMode;
use lockwork_locking::service::LockService;

use crate::client::{Acquiring, Guard, LockError, Locks};
use crate::lockd::{Lockd, Options};
use crate::plane::InProcess;

/// Locks of a service that an engine starts: 16 MiB, of which only those in use take memory.
const LOCKS: usize = 1 << 20;

impl LockService for Locks {
    type Guard = Guard;
    type Request = Acquiring;
    type Error = LockError;

    fn start() -> Result<(SocketAddr, Box<dyn Send>), String> {
        let plane = InProcess::new(LOCKS).map_err(|error| error.to_string())?;
        let options = Options { fresh: true, ..Options::new((Ipv4Addr::LOCALHOST, 0).into()) };
        let mut daemon = Lockd::bind(&options, plane).map_err(|error| error.to_string())?;
        let address = daemon.address().map_err(|error| error.to_string())?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        // Clients notice an error of the daemon: their leases expire, and they report it.
        let run = move || _ = daemon.run(&seen);
        let thread = std::thread::Builder::new().name("lockwork-lockd".into()).spawn(run);
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok((address, Box::new(Running { stop, thread })))
    }

    fn connect(address: &str) -> Result<Self, String> {
        Self::connect(address).map_err(|error| error.to_string())
    }

    fn count(&self) -> u64 {
        self.count()
    }

    /// # Panics
    /// In the mode [`LockMode::IntentExclusive`], which the service does not have.
    fn request(&self, lock: u64, mode: LockMode, timeout: Option<Duration>) -> Acquiring {
        let request = match mode {
            LockMode::Shared => self.shared(lock),
            LockMode::Exclusive => self.exclusive(lock),
            LockMode::IntentExclusive => panic!("the lock service has no intent locks"),
        };
        match timeout {
            Some(timeout) => request.timeout(timeout).acquire_async(),
            None => request.acquire_async(),
        }
    }

    fn may_retry(error: &LockError) -> bool {
        matches!(error, LockError::Disconnected(_) | LockError::TimedOut(_))
    }

    fn is_lost(guard: &Guard) -> bool {
        guard.is_lost()
    }
}

/// A daemon on a thread of its own, which ends on drop.
struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}
