//! Locks of etcd: its lock service (v3), which is its concurrency recipe within the server. A lock is a key below the
//! lock's name, attached to the client's lease; the one with the smallest create revision holds it, and each of the
//! others waits until the one before it is deleted.
//!
//! *Trade-off*: one node, its data in memory, so that a lock waits for no other node and no disk: the fastest that etcd
//! can be, and less than anybody runs it for.

use std::time::Duration;

use etcd_client::{Client, LockOptions};
use tokio::runtime::Runtime;

use super::server::{Server, find, free_port};
use super::{Failure, Peer};

/// Starts a cluster of one.
pub(super) fn start() -> Result<Server, Failure> {
    let (program, _) = find("etcd", "etcd-server")?;
    let (port, peers) = (free_port()?, free_port()?);
    let mut command = vec![program.display().to_string()];
    let line = format!(
        "--data-dir data --listen-client-urls http://127.0.0.1:{port} --advertise-client-urls http://127.0.0.1:{port} \
         --listen-peer-urls http://127.0.0.1:{peers} --initial-advertise-peer-urls http://127.0.0.1:{peers} \
         --initial-cluster default=http://127.0.0.1:{peers} --logger zap --log-level warn"
    );
    command.extend(line.split(' ').map(String::from));
    let runtime = runtime().map_err(Failure::BackEnd)?;
    Server::start(&command, port, |at, _| {
        let status = async {
            let mut client = Client::connect([at.to_string()], None).await.ok()?;
            client.status().await.ok().filter(|status| status.leader() != 0)
        };
        let wait = async { tokio::time::timeout(Duration::from_secs(1), status).await.ok().flatten() };
        runtime.block_on(wait).map(|_| at)
    })
}

fn runtime() -> Result<Runtime, String> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())
}

/// A client with a connection, a lease and a thread.
pub(super) struct Etcd {
    runtime: Runtime,
    client: Client,
    lease: i64,
    key: Vec<u8>,
}

impl Etcd {
    /// A client whose lease lives for `life` without being renewed.
    pub(super) fn new(server: &Server, life: Duration) -> Result<Self, String> {
        let runtime = runtime()?;
        let connected = runtime.block_on(async {
            let mut client = Client::connect([server.address.to_string()], None).await?;
            let lease = client.lease_grant(life.as_secs() as i64, None).await?.id();
            Ok((client, lease))
        });
        let (client, lease) = connected.map_err(|error: etcd_client::Error| error.to_string())?;
        Ok(Self { runtime, client, lease, key: Vec::new() })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // The server goes on without it; what was held is void when the lease is over.
        _ = self.runtime.block_on(self.client.lease_revoke(self.lease));
    }
}

impl Peer for Etcd {
    fn acquire(&mut self, lock: u64) -> Result<Option<u64>, String> {
        let options = LockOptions::new().with_lease(self.lease);
        let granted = self.runtime.block_on(self.client.lock(format!("locks/{lock}"), Some(options)));
        self.key = granted.map_err(|error| error.to_string())?.key().to_vec();
        Ok(None)
    }

    fn release(&mut self, _: u64) -> Result<(), String> {
        let key = std::mem::take(&mut self.key);
        self.runtime.block_on(self.client.unlock(key)).map(|_| ()).map_err(|error| error.to_string())
    }
}
