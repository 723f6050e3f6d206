//! The systems that are compared: how each is started in a network, and ended.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockwork_lock_protocol::decider::{Settings, Store};
use lockwork_lock_protocol::word::State;

use super::link::{Link, Steered, Udp};
use super::load::Site;
use super::machine::{NodeClient, ServerClient};
use super::manager::Place;
use super::netlock::Hot;
use super::parlock::{PartitionClient, Share};
use super::srvlock::{self, Server};
use super::{BenchError, Client};
use lockwork_locks::kernel::error::KernelError;
use lockwork_locks::kernel::{self, Hook, KernelDecider, Mode};
use lockwork_locks::lockd::{Lockd, Options};
use lockwork_locks::namespace::{Machine, Network};
use lockwork_locks::plane::{DataPlane, InKernel, InProcess};
use lockwork_locks::udp::Endpoint;
use lockwork_locks::xsk::{Route, Xsk};

/// Where deciders and servers listen, and clients too.
const PORT: u16 = 7600;
/// Where the server of NetLock listens for what the switch has no room for.
const REST_PORT: u16 = 7601;
/// Whoever cannot renew for so long has really stopped: the processors are shared.
const LEASE_MS: u32 = 10_000;

/// A lock service, or the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The decider as an eBPF program at XDP.
    Xdp,
    /// The decider as an eBPF program at TC.
    Tc,
    /// The decider at XDP, and agents that stay with the machine that mostly asks for their locks.
    XdpLocal,
    /// The decider as a process.
    Udp,
    /// Hot locks at a lock manager in the switch, the others at a lock server.
    NetLock,
    /// A lock manager on each client machine, with its share of the locks.
    ParLock,
    /// A lock server in user space.
    SrvLock,
}

impl System {
    /// All of them for which no lock is nearer to one machine than to another.
    pub const ALL: &[Self] = &[Self::Xdp, Self::Tc, Self::Udp, Self::NetLock, Self::ParLock, Self::SrvLock];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "lockwork-xdp",
            Self::XdpLocal => "lockwork-xdp-local",
            Self::Tc => "lockwork-tc",
            Self::Udp => "lockwork-udp",
            Self::NetLock => "netlock",
            Self::ParLock => "parlock",
            Self::SrvLock => "srvlock",
        }
    }
}

/// A system, and client machines that wait for work.
pub(super) struct Running {
    /// Whoever decides, apart from the machines themselves.
    pub(super) deciders: Vec<Decider>,
    pub(super) sites: Vec<Site>,
}

/// A thread that decides. Dropped, it ends.
pub(super) struct Decider {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64, BenchError>>>,
    /// Locks that are not free at whoever decides elsewhere.
    held: Arc<AtomicU64>,
}

impl Decider {
    /// `work` runs until the flag is set, and returns how many locks are not free then.
    fn start(
        name: &str,
        work: impl FnOnce(&AtomicBool) -> Result<u64, BenchError> + Send + 'static,
    ) -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&flag));
        Ok(Self { stop, thread: Some(thread.map_err(failed("a thread"))?), held: Arc::default() })
    }

    /// No thread: machines decide, and have told in the end how many locks are not free.
    fn elsewhere(held: Arc<AtomicU64>) -> Self {
        Self { stop: Arc::default(), thread: None, held }
    }

    /// Ends it, and tells how many locks are not free.
    pub(super) fn finish(mut self) -> Result<u64, BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<u64, BenchError> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(self.held.load(Ordering::SeqCst)) };
        thread.join().unwrap_or_else(|_| Err(BenchError::Check("whatever decides has panicked".into())))
    }
}

impl Drop for Decider {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn failed(what: &str) -> impl Fn(io::Error) -> BenchError {
    let what = what.to_string();
    move |error| BenchError::Absent(format!("{what}: {error}"))
}

/// Where a decider or server listens.
fn decider_address() -> SocketAddr {
    SocketAddr::from((Network::DECIDER, PORT))
}

/// How large a system is, and how machines are connected to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size<'a> {
    pub(super) locks: u64,
    /// Machines, from 1.
    pub(super) machines: u16,
    /// Numbers of requests under way that each machine may use, from 0: as many as tasks have locks at once.
    pub(super) tasks: u32,
    pub(super) client: Client,
    /// How many homes there are, and locks of each; machines have about as many homes, one behind the other.
    pub(super) homes: [u64; 2],
    /// The locks that a switch with little room has: the hottest of a profile.
    pub(super) hot: &'a [u64],
}

impl Size<'_> {
    /// The locks of the homes of a machine, numbered from 0: the first, and the one behind the last.
    pub(super) fn near(&self, machine: u16) -> [u64; 2] {
        let [homes, locks] = self.homes;
        [machine, machine + 1].map(|at| (u64::from(at) * homes).div_ceil(self.machines.into()) * locks)
    }
}

/// The socket of a client machine, connected to the decider.
fn link(client: Client, machine: &Machine) -> Result<Box<dyn Link>, BenchError> {
    let own = SocketAddrV4::new(machine.near.address, PORT);
    match client {
        Client::Udp => {
            let udp = machine.namespace.within(|| Udp::connect(own.into(), decider_address()))?;
            Ok(Box::new(udp.map_err(failed("a client's socket"))?))
        }
        Client::AfXdp => Ok(Box::new(af_xdp(machine)?)),
    }
}

/// The socket of a client machine that sends each datagram where `way` says.
fn steered<W>(client: Client, machine: &Machine, way: W) -> Result<Box<dyn Link>, BenchError>
where
    W: Fn(&[u8]) -> SocketAddrV4 + Send + 'static,
{
    let own = SocketAddrV4::new(machine.near.address, PORT);
    match client {
        Client::Udp => {
            let socket = machine.namespace.within(|| Udp::bind(own.into()))?;
            Ok(Box::new(Steered { socket: socket.map_err(failed("a client's socket"))?, way }))
        }
        Client::AfXdp => {
            let mut socket = af_xdp(machine)?;
            socket.take_from_all();
            Ok(Box::new(Steered { socket, way }))
        }
    }
}

fn af_xdp(machine: &Machine) -> Result<Xsk, BenchError> {
    let Machine { namespace, near, far } = machine;
    let (address, peer) = (SocketAddrV4::new(near.address, PORT), SocketAddrV4::new(Network::DECIDER, PORT));
    let route = Route { interface: near.index, mac: near.mac, address, peer_mac: far.mac, peer };
    namespace.within(|| Xsk::open(route))?.map_err(failed("a client's AF_XDP socket"))
}

/// Starts a system.
pub(super) fn start(system: System, network: &Network, size: Size<'_>) -> Result<Running, BenchError> {
    let options = Options { lease_ms: LEASE_MS, fresh: true, ..Options::new(decider_address()) };
    let near = matches!(system, System::XdpLocal | System::ParLock);
    let size = if near { size } else { Size { homes: [0; 2], ..size } };
    match system {
        System::SrvLock => srvlock(network, size),
        System::NetLock => netlock(network, size),
        System::ParLock => parlock(network, size),
        System::Udp => {
            let plane = InProcess::new(size.locks as usize).map_err(|error| BenchError::Usage(error.to_string()))?;
            // The lock server does not sleep between packets either.
            lockwork(network, size, &Options { spin: Duration::from_secs(1), ..options }, plane, |_| Ok(()))
        }
        System::Xdp | System::XdpLocal => {
            lockwork(network, size, &options, in_kernel(network, size, Hook::Xdp)?, check_kernel)
        }
        System::Tc => lockwork(network, size, &options, in_kernel(network, size, Hook::Tc)?, check_kernel),
    }
}

/// A lock server with these locks, behind a port of the decider's address.
fn server(network: &Network, size: &Size<'_>, port: u16, place: Place) -> Result<Server, BenchError> {
    let endpoint = network.switch.within(|| Endpoint::bind((Network::DECIDER, port).into()))?;
    Ok(Server::new(place, size, endpoint.map_err(failed("a lock server's socket"))?))
}

/// A thread for some servers.
fn serving(mut servers: Vec<Server>) -> Result<Decider, BenchError> {
    Decider::start("lock server", move |stop| {
        srvlock::run(&mut servers, stop).map_err(failed("a lock server's socket"))?;
        match servers.iter().map(Server::dropped).sum() {
            0 => Ok(servers.iter().map(Server::held).sum()),
            count => Err(BenchError::Check(format!("the lock server could not read {count} packets"))),
        }
    })
}

fn srvlock(network: &Network, size: Size<'_>) -> Result<Running, BenchError> {
    let decider = serving(vec![server(network, &size, PORT, Place::All(size.locks))?])?;
    let site = |(number, machine)| {
        let link = link(size.client, machine)?;
        Ok(Site { machine: Box::new(ServerClient::new(number)), link })
    };
    let machines = (1..=size.machines).zip(&network.machines);
    Ok(Running { deciders: vec![decider], sites: machines.map(site).collect::<Result<_, BenchError>>()? })
}

fn netlock(network: &Network, size: Size<'_>) -> Result<Running, BenchError> {
    let hot = Hot::new(size.hot);
    let switch = server(network, &size, PORT, Place::Hot(hot.clone()))?;
    let rest = server(network, &size, REST_PORT, Place::All(size.locks))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = match usize::from(size.machines) + 2 {
        needed if needed <= cores => vec![vec![switch], vec![rest]],
        // One more thread would only take turns with the others; hot locks come first.
        _ => vec![vec![switch, rest]],
    };
    let deciders = threads.into_iter().map(serving).collect::<Result<_, _>>()?;
    let site = |(number, machine)| {
        let hot = hot.clone();
        let way = move |datagram: &[u8]| {
            let lock = u64::from_le_bytes(datagram[8..16].try_into().expect("eight bytes"));
            SocketAddrV4::new(Network::DECIDER, if hot.place(lock).is_some() { PORT } else { REST_PORT })
        };
        Ok(Site { machine: Box::new(ServerClient::new(number)), link: steered(size.client, machine, way)? })
    };
    let machines = (1..=size.machines).zip(&network.machines);
    Ok(Running { deciders, sites: machines.map(site).collect::<Result<_, BenchError>>()? })
}

fn parlock(network: &Network, size: Size<'_>) -> Result<Running, BenchError> {
    network.forward()?;
    let held = Arc::new(AtomicU64::new(0));
    let addresses: Arc<[_]> = network.machines.iter().map(|machine| machine.near.address).collect();
    let site = |(number, machine)| {
        let addresses = Arc::clone(&addresses);
        let way = move |datagram: &[u8]| {
            let target = u16::from_le_bytes(datagram[42..44].try_into().expect("two bytes"));
            SocketAddrV4::new(addresses[usize::from(target) - 1], PORT)
        };
        let share = Share::of(size.locks, size.machines, number, size.homes);
        let client = PartitionClient::new(share, size.tasks, Arc::clone(&held));
        Ok(Site { machine: Box::new(client), link: steered(size.client, machine, way)? })
    };
    let machines = (1..=size.machines).zip(&network.machines);
    let sites = machines.map(site).collect::<Result<_, BenchError>>()?;
    Ok(Running { deciders: vec![Decider::elsewhere(held)], sites })
}

/// The decider in the kernel, attached to the machines' ports.
fn in_kernel(network: &Network, size: Size<'_>, hook: Hook) -> Result<InKernel, BenchError> {
    let absent = |error: KernelError| BenchError::Absent(error.to_string());
    let locks = u32::try_from(size.locks).map_err(|_| {
        BenchError::Usage(format!("{} locks; the decider in the kernel has room for {}", size.locks, u32::MAX))
    })?;
    let settings = Settings { writers_first: false };
    let options =
        kernel::Options { locks, port: PORT, address: Some(Network::DECIDER), beyond: false, settings, key: None };
    network.switch.within(|| {
        let mut decider = KernelDecider::load(&options).map_err(absent)?;
        for number in 1..=size.machines {
            let attached = decider.attach(hook, &Network::port(number)).map_err(absent)?;
            if let Mode::Generic(why) = attached.mode {
                return Err(BenchError::Absent(format!("native XDP: {why}")));
            }
        }
        Ok(InKernel::new(decider))
    })?
}

/// What a data plane must have counted.
type Check = fn(&[(String, u64)]) -> Result<(), BenchError>;

/// Whether the kernel has decided, and not the daemon behind it.
fn check_kernel(counters: &[(String, u64)]) -> Result<(), BenchError> {
    let count = |wanted: &str| match counters.iter().find(|(name, _)| name == wanted) {
        Some((_, count)) => Ok(*count),
        None => Err(BenchError::Check(format!("the data plane counts no '{wanted}'"))),
    };
    let (decided, left) = (count("acquire")?, count("left_unreached")? + count("left_contended")?);
    if left <= decided / 100 {
        return Ok(());
    }
    Err(BenchError::Check(format!("the kernel decided on {decided} requests, and left {left} packets to the daemon")))
}

fn lockwork<P>(
    network: &Network,
    size: Size<'_>,
    options: &Options,
    plane: P,
    check: Check,
) -> Result<Running, BenchError>
where
    P: DataPlane + Send + 'static,
{
    let daemon = network.switch.within(|| Lockd::bind(options, plane))?;
    let mut daemon = daemon.map_err(|error| BenchError::Absent(error.to_string()))?;
    let decider = Decider::start("lockd", move |stop| {
        daemon.run(stop).map_err(failed("the daemon's socket"))?;
        check(&daemon.plane().counters())?;
        let store = daemon.plane().store();
        Ok((0..store.locks()).filter(|lock| store.load(*lock).state != State::Free).count() as u64)
    })?;
    let site = |(number, machine)| {
        let mut link = link(size.client, machine)?;
        let machine = Box::new(NodeClient::join(&mut *link, size.near(number))?);
        Ok(Site { machine, link })
    };
    let machines = (0..size.machines).zip(&network.machines);
    Ok(Running { deciders: vec![decider], sites: machines.map(site).collect::<Result<_, BenchError>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bench, Settings};
    use lockwork_locks::kernel::counters::{Counters, NAMES};
    use lockwork_locks::namespace::NetworkError;

    #[test]
    fn a_kernel_that_leaves_the_work_to_the_daemon_is_found_out() {
        let count = |counted: &[(&str, u64)]| {
            let mut counters = Counters::default();
            for (name, count) in counted {
                counters.0[NAMES.iter().position(|is| is == name).expect("it is counted")] = *count;
            }
            check_kernel(&counters.iter().map(|(name, count)| (name.to_string(), count)).collect::<Vec<_>>())
        };
        assert!(count(&[("acquire", 1000), ("left_unreached", 5), ("left_contended", 5)]).is_ok());
        for left in [("left_unreached", 11), ("left_contended", 11)] {
            let error = count(&[("acquire", 1000), left]).expect_err(left.0).to_string();
            assert!(error.contains("left 11 packets"), "{error}");
        }
        let error = count(&[("left_unreached", 1)]).expect_err("it decided on nothing").to_string();
        assert!(error.contains("decided on 0 requests, and left 1 packets"), "{error}");
        let error = check_kernel(&[]).expect_err("no counter is there").to_string();
        assert!(error.contains("counts no 'acquire'"), "{error}");
    }

    #[test]
    fn privileged_every_system_keeps_its_promise_on_hot_locks() {
        keep_their_promise(8, System::ALL);
    }

    #[test]
    fn privileged_locks_that_are_not_hot_are_the_servers_and_those_elsewhere_their_homes() {
        keep_their_promise(20_000, &[System::NetLock, System::ParLock]);
    }

    fn keep_their_promise(locks: u64, systems: &[System]) {
        let settings = |client| Settings {
            machines: 2,
            clients: 16,
            locks,
            objects: locks,
            hotspot: None,
            slice: None,
            writes: 0.5,
            theta: Some(0.9),
            seed: 1,
            client,
            measured: Duration::from_millis(200),
        };
        for client in [Client::Udp, Client::AfXdp] {
            let bench = match Bench::new(settings(client)) {
                Err(BenchError::Network(error @ (NetworkError::NotPermitted | NetworkError::NoIp))) => {
                    return lockwork_testkit::skip(&error.to_string());
                }
                bench => bench.expect("as root"),
            };
            for &system in systems {
                for measured in [bench.round(system), bench.alone(system)] {
                    let measured = measured.unwrap_or_else(|error| panic!("{}, {client:?}: {error}", system.name()));
                    assert!(measured.grants > 0 && measured.grants == measured.latency.count(), "{}", system.name());
                }
            }
        }
    }
}
