//! The daemon: a data plane and the registry on one UDP socket.
//!
//! One thread takes a batch of packets, decides, and sends the answers as a batch; between batches it does what is due
//! in the registry. While packets come it looks for more without sleeping, for a few microseconds at least: to be woken
//! up costs more than a decision, and more than a round trip on one host.
//!
//! *Invariant*: a packet is checked (length, version, tag, fields) before anything else is read of it, and answers only
//! go to machines that have joined, or back to where the packet came from.
//!
//! *Trade-off*: one thread. A decision takes some tens of nanoseconds and the system calls of its packet some
//! microseconds, so what limits this daemon is the socket; the data planes in the kernel are for those who need more.

mod counters;
pub mod map;
mod metrics;
mod names;
pub mod racks;
pub mod records;
mod recovery;
mod successors;
#[cfg(test)]
mod tests;

use crate::plane::{DataPlane, Decided};
use crate::query::UNCOUNTED;
use crate::spinner::Spinner;
use crate::udp::{BATCH, Endpoint};
use counters::{Counters, MACHINE_GONE, NO_ADDRESS, NOT_BACK, NOT_REGISTRY, Slow, TOO_EARLY};
use lockwork_lock_protocol::control::{ALL_LOCKS, Service};
use lockwork_lock_protocol::decider::{Outputs, Sessions, Settings, Store, To, decide};
use lockwork_lock_protocol::packet::{GRANTED, HEADER, Key, Kind, Packet, Problem, body, datagram, parse};
use lockwork_lock_protocol::registry::{Change, Config, Registry, Tally};
use lockwork_lock_protocol::word::Machine;
use lockwork_locking::LockMode;
use metrics::Responder;
use names::Naming;
use racks::OneOfSeveral;
use records::MemberLog;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use successors::Successors;

/// Words that are looked at between two batches while a dead machine's locks are searched: about 50 us.
const SCAN_LOCKS: u64 = 1 << 15;
/// The longest sleep: how soon a daemon notices that it has to stop.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// For how long it looks for packets before it lets others have its core: they may keep it for milliseconds, and
/// packets of one batch come some microseconds after each other.
const TIMEOUT: Duration = Duration::from_micros(10);
/// How soon it is seen that who joins is written down.
const POLL_INTERVAL_NS: u64 = 500_000;
/// How often gauges are refreshed.
const REFRESH_NS: u64 = 200_000_000;

/// Settings of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub udp: SocketAddr,
    /// Where it answers `GET /metrics`, if at all.
    pub metrics: Option<SocketAddr>,
    /// For how long a session lives after its last renewal.
    pub lease_ms: u32,
    /// Readers do not pass a writer that waits.
    pub writers_first: bool,
    /// The cluster's key.
    pub key: Option<Key>,
    /// For how long it looks for packets without sleeping after the last one.
    pub spin: Duration,
    /// No daemon ran for these clients before, so nobody can still hold what it granted. Else nobody is let in for
    /// one lease, after which all leases of a daemon before with leases no longer than these have ended.
    pub fresh: bool,
    /// How many locks, the last ones, are for names.
    pub names: u64,
    /// Numbers beyond those are locks too, which managers keep; see `lockwork_lock_protocol::beyond`.
    pub beyond: bool,
    /// Where names are kept, each HOST:PORT. Without etcd they live as long as the daemon.
    pub etcd: Vec<String>,
    /// With what all keys in etcd begin: another service has another one.
    pub etcd_prefix: String,
}

impl Options {
    /// Leases of two seconds, read-preferring, no key; it looks for packets for 50 us where there is a core to spare.
    #[must_use]
    pub fn new(udp: SocketAddr) -> Self {
        let spare = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        let spin = if spare { Duration::from_micros(50) } else { Duration::ZERO };
        Self {
            udp,
            metrics: None,
            lease_ms: 2000,
            writers_first: false,
            key: None,
            spin,
            fresh: false,
            names: 0,
            beyond: false,
            etcd: Vec::new(),
            etcd_prefix: "lockwork/".to_string(),
        }
    }
}

/// No token is larger in a service that started earlier: the milliseconds since 2025 in the upper 41 bits, so that they
/// are positive numbers of 64 bits until 2059. A lock would have to be granted exclusively 128,000 times a second, from
/// the start on, to run ahead of them.
fn first_token(now: SystemTime) -> u64 {
    const IN_2025: Duration = Duration::from_secs(1_735_689_600);
    let since = now.duration_since(SystemTime::UNIX_EPOCH + IN_2025).unwrap_or_default();
    u64::try_from(since.as_millis()).map_or(0, |ms| (ms & ((1 << 41) - 1)) << 23)
}

/// Where sessions begin, which is to be elsewhere than with the daemon before, and the key of their order.
fn random_sessions() -> (u32, u128) {
    // The system's random numbers, through SipHash.
    let random = || RandomState::new().build_hasher().finish();
    (random() as u32, u128::from(random()) << 64 | u128::from(random()))
}

/// A daemon does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot bind {what} {address}: {error}{}", advice(.error))]
    Bind {
        /// Which one.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// A lease of less than 100 ms, or of more than an hour.
    #[error("a lease of {0} ms is of no use: give 100 ms to 1 hour")]
    Lease(u32),
    /// More locks for names than locks.
    #[error("{names} of {locks} locks cannot be for names: give fewer names, or more locks")]
    Names {
        /// How many were to be for names.
        names: u64,
        /// How many there are.
        locks: u64,
    },
}

/// What would be right.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another process has it, perhaps another lockd",
        io::ErrorKind::AddrNotAvailable => "; give an address that an interface of this machine has",
        io::ErrorKind::PermissionDenied => "; give a port above 1023",
        _ => "",
    }
}

/// A daemon, bound and ready to run.
#[derive(Debug)]
pub struct Lockd<P> {
    plane: P,
    endpoint: Endpoint,
    registry: Registry<SocketAddr>,
    settings: Settings,
    key: Option<Key>,
    spin: Duration,
    spinner: Spinner,
    /// Nobody joins before.
    opens: u64,
    counters: Arc<Counters>,
    responder: Option<Responder>,
    successors: Successors,
    service: Service,
    /// Tokens begin above.
    first_token: u64,
    roll: Option<MemberLog>,
    /// The data plane is not told of machines before all words are back.
    holds_back: bool,
    /// When words began to come back.
    recovery_began: Option<u64>,
    naming: Naming,
    /// Other daemons decide on the rest of the locks.
    several: Option<OneOfSeveral>,
    /// Somebody waits for a packet of the batch.
    hurry: bool,
    start: Instant,
    now: u64,
    refreshed: u64,
}

impl<P: DataPlane> Lockd<P> {
    /// Binds the addresses.
    ///
    /// # Errors
    /// [`StartError`] if an address is taken, not of this machine or not permitted, or the lease makes no sense.
    pub fn bind(options: &Options, plane: P) -> Result<Self, StartError> {
        if !(100..=3_600_000).contains(&options.lease_ms) {
            return Err(StartError::Lease(options.lease_ms));
        }
        let failed = |what, address| move |error| StartError::Bind { what, address, error };
        let endpoint = Endpoint::bind(options.udp).map_err(failed("UDP address", options.udp))?;
        let counters = Arc::new(Counters::default());
        let responder = match options.metrics {
            Some(address) => {
                let started = Responder::start(address, Arc::clone(&counters));
                Some(started.map_err(failed("TCP address for metrics", address))?)
            }
            None => None,
        };
        let store = plane.store();
        let service = Service {
            locks: store.locks(),
            lease_ms: options.lease_ms,
            profile: store.profile(),
            writers_first: options.writers_first,
            names: options.names,
            beyond: options.beyond,
        };
        if service.names > service.locks {
            return Err(StartError::Names { names: service.names, locks: service.locks });
        }
        counters.locks.set(service.locks - service.names);
        let first_token = first_token(SystemTime::now());
        plane.begin_tokens(first_token);
        let opens = if options.fresh { 0 } else { u64::from(options.lease_ms) * 1_000_000 };
        let (first_session, session_key) = random_sessions();
        let config = Config { first_token, session_key, ..Config::new(options.lease_ms, first_session) };
        Ok(Self {
            successors: Successors::new(service),
            naming: Naming::new(options, service),
            endpoint,
            registry: Registry::new(config, service),
            settings: Settings { writers_first: options.writers_first },
            key: options.key,
            spin: options.spin,
            spinner: Spinner::default(),
            opens,
            several: None,
            hurry: false,
            counters,
            responder,
            service,
            first_token,
            roll: None,
            holds_back: false,
            recovery_began: None,
            start: Instant::now(),
            now: 0,
            refreshed: 0,
            plane,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.endpoint.socket().local_addr()
    }

    /// Where it answers `GET /metrics`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.responder.as_ref().map(|responder| responder.address)
    }

    /// What decides.
    #[must_use]
    pub fn plane(&self) -> &P {
        &self.plane
    }

    /// What decides, to have it begin: it should decide on no packet before the address is this daemon's.
    pub fn plane_mut(&mut self) -> &mut P {
        &mut self.plane
    }

    /// Serves until `stop` is set; then answers what has arrived, and tells all machines that their sessions have
    /// ended, so that they know at once that their guards are void; unless another lockd may go on with them.
    ///
    /// # Errors
    /// What the system says if the socket breaks.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut last_packet = Instant::now();
        let (mut due, mut long) = (0, false);
        while !stop.load(Ordering::Relaxed) {
            let count = self.endpoint.receive()?;
            if std::mem::take(&mut long) && count <= 1 {
                self.spinner.note_crowded();
            }
            let now = Instant::now();
            self.now = (now - self.start).as_nanos() as u64;
            for at in 0..count {
                self.datagram(at);
            }
            if count > 0 {
                last_packet = now;
                self.after();
            }
            // That a lock was given back is confirmed with the next answer, or as soon as nothing more comes.
            if self.hurry || count == 0 || self.spin.is_zero() {
                self.hurry = false;
                self.endpoint.flush();
            }
            self.look_at_recovery()?;
            if self.now >= due {
                due = self.tick();
                continue;
            }
            let idle = now - last_packet;
            if count < BATCH && (idle >= self.spin || (idle >= TIMEOUT && !self.spinner.pays())) {
                let sleep = Duration::from_nanos(due.saturating_sub(self.now)).min(LONGEST_SLEEP);
                self.endpoint.wait(sleep);
            } else if idle >= TIMEOUT {
                // Where cores are fewer than those who want them, a client may need this one.
                long = self.spinner.let_others();
            }
            if count > 0 {
                due = due.min(self.next_tick());
            }
        }
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        for _ in 0..1000 {
            let count = self.endpoint.receive()?;
            if count == 0 {
                break;
            }
            (0..count).for_each(|at| self.datagram(at));
            self.after();
        }
        self.endpoint.flush();
        if self.roll.is_none() {
            self.end_sessions();
        }
        // Otherwise the next lockd goes on with them.
        Ok(())
    }

    /// Does what is due, and tells when to come again.
    fn tick(&mut self) -> u64 {
        let recorded = self.roll.as_mut().map(MemberLog::recorded).unwrap_or_default();
        recorded.iter().for_each(|member| self.registry.recorded(member));
        let more = self.registry.tick(self.now, self.plane.store(), SCAN_LOCKS);
        self.successors.tick(self.now);
        self.naming.tick(self.now, self.plane.store());
        self.after();
        let again = self.tick_racks();
        self.after();
        self.endpoint.flush();
        if self.now >= self.refreshed + REFRESH_NS {
            self.refreshed = self.now;
            self.refresh();
        }
        let joins = self.roll.as_ref().is_some_and(MemberLog::is_waited_for);
        let longest = if joins { POLL_INTERVAL_NS } else { REFRESH_NS };
        if more { self.now } else { self.next_tick().min(self.now + longest).min(again) }
    }

    fn next_tick(&self) -> u64 {
        let all = [self.registry.next_tick(), self.successors.next_tick(), self.naming.next_tick(self.now)];
        all.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    fn refresh(&mut self) {
        if let Some(roll) = &mut self.roll {
            let answer = roll.look();
            self.counters.records.set(u64::from(answer));
            self.registry.set_records(answer);
        }
        self.counters.recovering.set(self.registry.recovering().unwrap_or(0) as u64);
        self.counters.set_unsent(self.endpoint.unsent());
        if let Ok(mut slow) = self.counters.slow.lock() {
            *slow = Slow { registry: self.registry.counters(), plane: self.plane.counters() };
        }
        let summary = self.registry.summary();
        self.counters.machines.set(summary.machines);
        self.counters.gone.set(summary.gone);
        self.counters.joining.set(summary.joining);
        self.counters.adopted.set(self.successors.count());
        self.naming.count(&self.counters);
    }

    fn datagram(&mut self, at: usize) {
        let Self { endpoint, registry, plane, key, counters, naming, roll, several, .. } = self;
        let Some((bytes, from)) = endpoint.datagram(at) else { return counters.dropped(NO_ADDRESS) };
        let (packet, payload) = match parse(bytes, key.as_ref()) {
            Ok(parsed) => parsed,
            Err(malformed) => return counters.malformed(malformed),
        };
        counters.received(packet.kind);
        if packet.kind == Kind::Join && self.now < self.opens {
            // Who wants to join asks again.
            return counters.dropped(TOO_EARLY);
        }
        if packet.kind.is_control() {
            if let Some(at) = several.as_ref().and_then(|several| several.asked_elsewhere(&packet)) {
                return self.push(from, &at.0, &at.1);
            }
            if packet.kind == Kind::Status && packet.lock == ALL_LOCKS {
                let away_ms = roll.as_ref().map_or(0, |roll| roll.away().as_millis() as u64);
                let names_under_way = naming.under_way();
                registry.set_tally(Tally { away_ms, names_under_way, ..tally(counters, plane.tally()) });
            }
            match body(bytes, key.as_ref()) {
                Ok(body) if matches!(packet.kind, Kind::Name | Kind::Unname) => {
                    naming.receive(self.now, plane.store(), registry, from, &packet, body);
                }
                Ok(body) => registry.receive(self.now, plane.store(), from, &packet, body),
                Err(malformed) => return counters.malformed(malformed),
            }
            if packet.kind == Kind::Renew {
                self.learn_again(from, &packet);
                return;
            }
            if packet.kind == Kind::Status && self.successors.has(packet.lock) {
                let (packet, body) = self.successors.status(&packet);
                self.after();
                self.push(from, &packet, &body);
            }
            return;
        }
        if packet.sender == Machine::REGISTRY {
            // The registry's agents are in this process.
            return counters.dropped(NOT_REGISTRY);
        }
        if !registry.admits(plane.store(), &packet) {
            // It comes again.
            return counters.dropped(NOT_BACK);
        }
        let payload = payload.to_vec();
        self.decide(Some(from), &packet, &payload);
    }

    /// A machine may have got another interface or router since it joined.
    fn learn_again(&mut self, from: SocketAddr, renew: &Packet) {
        let (machine, session) = (renew.sender, renew.session);
        if self.registry.session(machine) == Some(session)
            && self.registry.address(machine) == Some(from)
            && let Err(error) = self.plane.set_machine(machine, session, from)
        {
            tracing::warn!(machine = machine.0, "cannot learn the way to {from} again: {error}");
        }
    }

    /// Decides on a packet from `from`, or from one of the registry's agents.
    fn decide(&mut self, from: Option<SocketAddr>, packet: &Packet, payload: &[u8]) {
        let outputs = decide(self.plane.store(), &self.registry, self.settings, packet);
        self.counters.decisions.add(1);
        if granted(packet, &outputs) {
            self.counters.granted[usize::from(packet.mode() == Some(LockMode::Exclusive))].add(1);
        }
        let payload = if outputs.payload { payload } else { &[] };
        for (to, packet) in outputs.packets.into_iter().flatten() {
            if packet.kind == Kind::Error
                && let Some(problem) = Problem::of_number(packet.token)
            {
                self.counters.problem(problem);
            }
            let address = match (to, from) {
                (To::Source, Some(from)) => Some(from),
                (To::Machine(Machine::REGISTRY), _) => {
                    if !self.divert(&packet) {
                        let body = self.brought(&packet, payload);
                        self.successors.routed(self.now, self.plane.store(), &packet, &body);
                    }
                    continue;
                }
                (To::Machine(machine), _) => self.registry.address(machine),
                (To::Source, None) => {
                    self.successors.receive(self.now, &packet);
                    continue;
                }
            };
            self.hurry |= packet.kind != Kind::Done;
            match address {
                // The payload's tag covers nothing that a decider changes, so it goes along as it is.
                Some(to) => self.endpoint.push(to, [&packet.header(payload.len(), self.key.as_ref()), payload]),
                None => self.counters.dropped(MACHINE_GONE),
            }
        }
    }

    /// Decides on what the registry's agents have to say.
    fn hear_heirs(&mut self) {
        while let Some((packet, body)) = self.successors.poll_packet() {
            match packet.kind {
                Kind::Sweep => self.registry.sweep_own(self.now, &packet),
                kind if kind.is_control() => {}
                _ => {
                    let bytes = datagram(&packet, &body, self.key.as_ref());
                    self.decide(None, &packet, &bytes[HEADER..]);
                }
            }
        }
    }

    /// Carries what the registry says into the data plane and onto the network.
    fn after(&mut self) {
        while let Some(change) = self.registry.poll_change() {
            match change {
                Change::Record(member) => self.roll.as_mut().expect("it writes down").record(member),
                Change::Forget { machine, .. } => self.roll.as_mut().expect("it writes down").forget(machine),
                Change::Joined { machine, session, address } if !self.holds_back => {
                    self.take_in(machine, session, address);
                }
                Change::Joined { .. } => {}
                Change::Gone { machine, session } => {
                    self.plane.remove_machine(machine);
                    self.successors.gone(self.now, machine, session);
                    self.naming.gone(session);
                }
                Change::Adopted(adopted) => self.successors.adopt(adopted),
                Change::Settled(adopted) => self.successors.settle(self.now, adopted),
                Change::Swept(packet) => self.successors.receive(self.now, &packet),
                Change::Relieved { lock, generation, to } => self.successors.relieve(lock, generation, to),
            }
        }
        self.hear_heirs();
        self.tell_moved();
        while let Some((address, packet, body)) =
            self.registry.poll_packet().or_else(|| self.naming.poll_packet(&self.registry))
        {
            self.push(address, &packet, &body);
        }
    }

    fn push(&mut self, address: SocketAddr, packet: &Packet, body: &[u8]) {
        let bytes = datagram(packet, body, self.key.as_ref());
        self.endpoint.push(address, bytes.split_at(HEADER).into());
        self.hurry = true;
    }
}

/// What daemon and data plane have done together.
fn tally(counters: &Counters, plane: Decided) -> Tally {
    let granted: u64 = counters.granted.iter().map(counters::Counter::get).sum();
    Tally {
        decisions: counters.decisions.get() + plane.decisions,
        grants: plane.grants.map_or(UNCOUNTED, |grants| granted + grants),
        dropped: counters.all_dropped() + plane.dropped,
        ..Tally::default()
    }
}

/// Whether a decision has granted a lock.
fn granted(asked: &Packet, outputs: &Outputs) -> bool {
    let says = |packet: &Packet| packet.kind == Kind::Grant || (packet.kind == Kind::Acquire && packet.has(GRANTED));
    let asks = asked.kind == Kind::Acquire && !asked.has(GRANTED);
    asks && outputs.packets.iter().flatten().any(|(_, packet)| says(packet))
}
