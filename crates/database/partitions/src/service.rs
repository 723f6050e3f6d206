//! The lock service of an engine: one of its own, in this process, or one that runs somewhere.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use lockwork_engine::EngineError;
use lockwork_locks::lockd::{Lockd, Options};
use lockwork_locks::plane::InProcess;

/// Locks of a service of its own: 16 MiB, of which those cost memory that are used.
const LOCKS: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Service {
    address: SocketAddr,
    own: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Service {
    /// The service at this address, else a new one on a free port of the loopback interface.
    pub(crate) fn new(address: Option<SocketAddr>) -> Result<Self, EngineError> {
        if let Some(address) = address {
            return Ok(Self { address, own: None });
        }
        let failed =
            |error: &dyn std::fmt::Display| EngineError::BackEnd(format!("a lock service of its own: {error}"));
        let plane = InProcess::new(LOCKS).map_err(|error| failed(&error))?;
        let options = Options { fresh: true, ..Options::new((Ipv4Addr::LOCALHOST, 0).into()) };
        let mut daemon = Lockd::bind(&options, plane).map_err(|error| failed(&error))?;
        let address = daemon.address().map_err(|error| failed(&error))?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        // Clients notice when it ends: their leases run out, and they say so.
        let run = move || _ = daemon.run(&seen);
        let thread = std::thread::Builder::new().name("lockwork-lockd".into()).spawn(run);
        Ok(Self { address, own: Some((stop, thread.map_err(|error| failed(&error))?)) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.own.take() {
            stop.store(true, Ordering::Relaxed);
            drop(thread.join());
        }
    }
}
