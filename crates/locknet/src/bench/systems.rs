//! The systems that are compared: how each is started in a network, and ended.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::BenchError;
use super::link::UdpBatch;
use super::load::Site;
use super::machine::ServerClient;
use super::srvlock::{Server, ServerConfig, Shared};
use crate::namespace::Network;

/// Where deciders and servers listen, and clients too.
const PORT: u16 = 7600;

/// A lock service, or the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A lock server in user space.
    SrvLock,
}

impl System {
    /// All of them.
    pub const ALL: &[Self] = &[Self::SrvLock];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SrvLock => "srvlock",
        }
    }
}

/// What decides, while it runs. Dropped, it ends.
pub(super) trait Decider {
    /// Ends it, and tells how many locks are not free.
    fn finish(self: Box<Self>) -> Result<u64, BenchError>;
}

/// A system, and client machines that wait for work.
pub(super) struct Running {
    pub(super) decider: Box<dyn Decider>,
    pub(super) sites: Vec<Site>,
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> BenchError {
    let what = what.to_string();
    move |error| BenchError::Absent(format!("{what}: {error}"))
}

/// The sockets of client machines, connected to the decider.
fn links(network: &Network, machines: u16) -> Result<Vec<UdpBatch>, BenchError> {
    let decider = SocketAddrV4::new(Network::DECIDER, PORT);
    let connect = |machine: &crate::namespace::Machine| {
        let own = SocketAddrV4::new(machine.near.address, PORT);
        machine.namespace.within(|| UdpBatch::connect(own, decider))?.map_err(failed("a client's socket"))
    };
    network.machines.iter().take(machines.into()).map(connect).collect()
}

/// Starts a system for machines 1 to `machines` with tasks 0 to `tasks` - 1 each.
pub(super) fn start(
    system: System,
    network: &Network,
    locks: u64,
    machines: u16,
    tasks: u32,
) -> Result<Running, BenchError> {
    match system {
        System::SrvLock => srvlock(network, ServerConfig { locks, machines, tasks }),
    }
}

struct ServerThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<std::io::Result<u64>>>,
}

fn srvlock(network: &Network, config: ServerConfig) -> Result<Running, BenchError> {
    let address = SocketAddrV4::new(Network::DECIDER, PORT);
    let link = network.switch.within(|| UdpBatch::bind(address))?.map_err(failed("the lock server's socket"))?;
    let server = Server::new(config, link);
    let shared = server.shared();
    let thread = std::thread::Builder::new().name("srvlock".into()).spawn(move || server.run());
    let decider = Box::new(ServerThread { shared, thread: Some(thread.map_err(failed("a thread"))?) });
    let site =
        |(link, number)| Site { machine: Box::new(ServerClient::new(number, config.tasks)), link: Box::new(link) };
    Ok(Running { decider, sites: links(network, config.machines)?.into_iter().zip(1..).map(site).collect() })
}

impl ServerThread {
    fn end(&mut self) -> Result<u64, BenchError> {
        self.shared.stop();
        let Some(thread) = self.thread.take() else { return Ok(0) };
        let ended = thread.join().map_err(|_| BenchError::Check("the lock server panicked".into()))?;
        ended.map_err(failed("the lock server's socket"))
    }
}

impl Decider for ServerThread {
    fn finish(mut self: Box<Self>) -> Result<u64, BenchError> {
        let held = self.end()?;
        match self.shared.dropped() {
            0 => Ok(held),
            count => Err(BenchError::Check(format!("the lock server could not read {count} packets"))),
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::{Bench, Settings};

    #[test]
    fn privileged_every_system_keeps_its_promise_on_hot_locks() {
        let settings = Settings {
            machines: 2,
            clients: 16,
            locks: 8,
            writes: 0.5,
            theta: Some(0.9),
            seed: 1,
            measured: Duration::from_millis(300),
        };
        let bench = match Bench::new(settings) {
            Err(error @ BenchError::Network(_)) => return eprintln!("SKIPPED: {error}"),
            bench => bench.expect("as root"),
        };
        for &system in System::ALL {
            for measured in [bench.round(system), bench.alone(system)] {
                let measured = measured.unwrap_or_else(|error| panic!("{}: {error}", system.name()));
                assert!(measured.grants > 0 && measured.grants == measured.latency.count(), "{}", system.name());
            }
        }
    }
}
