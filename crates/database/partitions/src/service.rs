//! The lock service of a `network-two-phase` engine: its own, in this process, or one that runs elsewhere.

use std::net::SocketAddr;

use lockwork_engine::EngineError;
use lockwork_locking::service::LockService;

/// See the module.
pub(crate) struct Service {
    address: SocketAddr,
    /// Stops the engine's own service on drop.
    _own: Option<Box<dyn Send>>,
}

impl Service {
    /// Returns the service at `address`, or else starts one.
    pub(crate) fn new<S: LockService>(address: Option<SocketAddr>) -> Result<Self, EngineError> {
        let failed = |error: String| EngineError::BackEnd(format!("a lock service of its own: {error}"));
        match address {
            Some(address) => Ok(Self { address, _own: None }),
            None => S::start().map(|(address, own)| Self { address, _own: Some(own) }).map_err(failed),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}
