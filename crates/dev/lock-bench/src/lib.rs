//! The benchmark of lock services: client machines in namespaces of their own, one decider or lock server, and a
//! watcher of every critical section.
//!
//! All systems are driven by the same load generator, over the same kind of socket, through the same veth pairs; they
//! differ in who decides: a lock server (`srvlock`), a switch with room for few locks and a lock server (`netlock`),
//! client machines (`parlock`), or the lock service's decider as a process or in the kernel.
//!
//! Everything is on one host: clients, kernel and server share its processors. So a system is faster here if it takes
//! less of them for a lock; on a network each machine would have its own.

pub mod checker;
pub mod histogram;
pub mod link;
mod load;
pub mod machine;
mod manager;
mod micro;
mod netlock;
mod parlock;
mod srvlock;
mod systems;
mod table;
pub mod transactions;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockwork_workload::WorkloadError;

use lockwork_locks::kernel::MAX_INTERFACES;
use lockwork_locks::namespace::{Network, NetworkError};
use micro::Choice;

pub use load::Measured;
pub use micro::Hotspot;
pub use systems::System;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A system broke its promise.
    #[error("{0}")]
    Check(String),
    /// A setting is impossible.
    #[error("{0}")]
    Usage(String),
    /// So is a setting of how locks are chosen.
    #[error(transparent)]
    Choice(#[from] WorkloadError),
    /// Something that is needed is not on this machine.
    #[error("{0}")]
    Absent(String),
    /// No namespaces.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Somebody wants it to end.
    #[error("interrupted")]
    Interrupted,
}

/// What client machines send and receive with, whatever they talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A UDP socket.
    Udp,
    /// An AF_XDP socket.
    AfXdp,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Client machines.
    pub machines: u16,
    /// Tasks of each machine, each with one request at a time.
    pub clients: u32,
    /// Locks.
    pub locks: u64,
    /// Objects that they protect, as many each: objects are chosen. As many as locks, or more.
    pub objects: u64,
    /// What is chosen instead.
    pub hotspot: Option<Hotspot>,
    /// How long a slice of the time is in which grants are counted apart.
    pub slice: Option<Duration>,
    /// Share of exclusive locks, 0 to 1.
    pub writes: f64,
    /// Skew of Zipf's distribution; `None` is uniform.
    pub theta: Option<f64>,
    /// Everything random follows from it.
    pub seed: u64,
    /// What client machines send and receive with.
    pub client: Client,
    /// How long to measure.
    pub measured: Duration,
}

/// Most tasks of all machines together. Each has a packet under way, and the decider's socket has room for some five
/// thousand (4 MiB): where more are sent, requests are lost and repeated faster than they are answered, and renewals
/// of sessions with them.
pub const MAX_CLIENTS: u32 = 1 << 12;

impl Settings {
    /// Whether these systems can have such clients.
    ///
    /// # Errors
    /// [`BenchError::Usage`] where something is impossible.
    pub fn check(&self, systems: &[System]) -> Result<(), BenchError> {
        let in_kernel = systems.iter().find(|system| matches!(system, System::Xdp | System::XdpLocal | System::Tc));
        if let Some(system) = in_kernel.filter(|_| usize::from(self.machines) > MAX_INTERFACES) {
            return Err(BenchError::Usage(format!(
                "{} machines; {} serves at most {MAX_INTERFACES}, one on each interface that its programs have room for",
                self.machines,
                system.name()
            )));
        }
        if self.clients == 0 || u32::from(self.machines).saturating_mul(self.clients) > MAX_CLIENTS {
            return Err(BenchError::Usage(format!(
                "{} clients on each of {} machines; 1 to {MAX_CLIENTS} are possible together, as the decider's socket has \
                 room for a packet of each",
                self.clients, self.machines
            )));
        }
        Ok(())
    }
}

/// Machines, ready for rounds of any system.
pub struct Bench {
    network: Network,
    settings: Settings,
    choice: Choice,
}

impl Bench {
    /// Makes the namespaces.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn new(settings: Settings) -> Result<Self, BenchError> {
        settings.check(&[])?;
        let choice = Choice::new(&settings)?;
        Ok(Self { network: Network::new(settings.machines)?, settings, choice })
    }

    /// The same machines, ready for rounds with other settings.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn with(self, settings: Settings) -> Result<Self, BenchError> {
        settings.check(&[])?;
        let machines = self.settings.machines;
        if settings.machines != machines {
            return Err(BenchError::Usage(format!("{} machines; the network has {machines}", settings.machines)));
        }
        Ok(Self { choice: Choice::new(&settings)?, settings, ..self })
    }

    /// All machines with all their clients, on a system that is started afresh.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn round(&self, system: System) -> Result<Measured, BenchError> {
        self.drive(system, self.settings.machines, self.settings.clients, false)
    }

    /// One client of one machine: the latency of a lock that nobody else wants.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn alone(&self, system: System) -> Result<Measured, BenchError> {
        self.drive(system, 1, 1, true)
    }

    fn drive(&self, system: System, machines: u16, tasks: u32, alone: bool) -> Result<Measured, BenchError> {
        let settings = &self.settings;
        settings.check(&[system])?;
        // Its locks are on all machines, also if only one of them asks.
        let machines = if system == System::ParLock { settings.machines } else { machines };
        let slices = settings.slice.map(|slice| load::Slices {
            length: (slice.as_nanos() as u64).max(1),
            align: settings.hotspot.map_or(1, Hotspot::round),
        });
        let load = load::Load {
            locks: settings.locks,
            tasks,
            most: 1,
            types: 0,
            inside: 0,
            first_only: alone,
            one_by_one: alone,
            warmup: settings.measured / 5,
            measured: settings.measured,
            drain: DRAIN,
            slices,
        };
        let hot = if system == System::NetLock { self.choice.profile(settings, machines) } else { Vec::new() };
        let &Settings { locks, client, .. } = settings;
        let size = systems::Size { locks, machines, tasks, client, homes: [0; 2], hot: &hot };
        let scripts = (0..machines).map(|machine| self.choice.of(settings, machine)).collect();
        measure(system, &self.network, size, scripts, &load)
    }
}

/// How long at most for the first grant, and at the end for all.
const DRAIN: Duration = Duration::from_secs(10);

/// Starts a system, lets its machines work, and ends it.
fn measure<S: load::Script>(
    system: System,
    network: &Network,
    size: systems::Size<'_>,
    scripts: Vec<S>,
    load: &load::Load,
) -> Result<Measured, BenchError> {
    let running = systems::start(system, network, size)?;
    let measured = load::drive(running.sites, scripts, load)?;
    let held = running.deciders.into_iter().map(systems::Decider::finish).sum::<Result<u64, _>>()?;
    match held {
        0 => Ok(measured),
        held => Err(BenchError::Check(format!("{held} locks are not free, and nobody has one"))),
    }
}

/// Set by signals.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Nanoseconds on the clock of all machines of a benchmark.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is ours; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether such a wish was heard, since [`end_on_signals`].
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// From now on Ctrl-C and other wishes for an end let rounds end with [`BenchError::Interrupted`], so that namespaces
/// are removed.
pub fn end_on_signals() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// What a thread that polls does when there is nothing: a little patience, then whoever shares its processor is let in.
#[derive(Debug, Default)]
struct Idle(u32);

impl Idle {
    fn round(&mut self, anything: bool) {
        self.0 = if anything { 0 } else { self.0.saturating_add(1) };
        if self.0 > 4 {
            std::thread::yield_now();
        }
    }
}
