//! The golden lock scripts over UDP: on loopback against a daemon in this process, with a machine for every session,
//! and with all sessions on one machine; and between network namespaces with the decider in the kernel.
//!
//! Time in scripts is stretched, so that ten milliseconds are long against a round trip. After every step the manager
//! looks until nothing has happened for some time; what happens later would be missed here and found by the next step.
//! On a machine that is busy with something else that can be too short, so what fails is tried again, more slowly.

use lockwork_conformance::locks::{Capability, Event, Manager, NotHeld, Session, golden, run_all};
use lockwork_lock_protocol::decider::Settings;
use lockwork_lock_protocol::packet::Key;
use lockwork_locking::{LockId, LockMode, Outcome, Request};
use lockwork_locks::client::{Acquiring, Guard, LockError, Locks, Options};
use lockwork_locks::kernel::error::KernelError;
use lockwork_locks::kernel::{self, Hook, KernelDecider};
use lockwork_locks::lockd::{self, Lockd};
use lockwork_locks::namespace::{Network, NetworkError};
use lockwork_locks::plane::{DataPlane, InKernel, InProcess};
use lockwork_testkit::or_skip;
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A millisecond of a script.
const MS: Duration = Duration::from_millis(20);
/// Nothing more will happen if nothing has for so long.
const QUIET: Duration = Duration::from_millis(15);
const LEASE_MS: u32 = 500;
/// How much longer all of this takes, at the first try and at the next ones.
const PACES: [u32; 3] = [1, 4, 16];
/// Locks of a script.
const A_SCRIPT: u64 = 16;
/// Sessions of the largest script.
const SESSIONS: u16 = 5;
const PORT: u16 = 7400;

struct Daemon {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// What its data plane has counted, when it has ended.
    thread: Option<JoinHandle<Vec<(String, u64)>>>,
    /// Where the machines are, if not here.
    network: Option<Network>,
}

impl Daemon {
    fn start(key: Option<Key>, pace: u32) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let lockd =
            Lockd::bind(&options(any, key, pace), InProcess::new(64).expect("a kilobyte")).expect("a free port");
        Self::serve(lockd, None)
    }

    /// With the decider in the kernel, and namespaces for the machines; `None` where nobody may have that.
    fn in_kernel(hook: Hook, pace: u32) -> Option<Self> {
        let network = or_skip(Network::new(SESSIONS), NetworkError::is_unavailable)?;
        let start = || {
            let settings = Settings { writers_first: true };
            let options =
                kernel::Options { locks: 1024, port: PORT, address: None, beyond: false, settings, key: None };
            let mut decider = KernelDecider::load(&options)?;
            for machine in 1..=SESSIONS {
                decider.attach(hook, &Network::port(machine))?;
            }
            Ok(InKernel::new(decider))
        };
        let plane: Result<InKernel, KernelError> = network.switch.within(start).expect("it is there");
        let plane = match plane {
            Err(error @ KernelError::NoPermission { .. }) => {
                lockwork_testkit::skip(&error.to_string());
                return None;
            }
            plane => plane.expect("the programs are attached"),
        };
        let address = SocketAddr::from((Network::DECIDER, PORT));
        let bind = || Lockd::bind(&self::options(address, None, pace), plane);
        let lockd = network.switch.within(bind).expect("it is there").expect("a free port");
        Some(Self::serve(lockd, Some(network)))
    }

    fn serve<P: DataPlane + Send + 'static>(mut lockd: Lockd<P>, network: Option<Network>) -> Self {
        let address = lockd.address().expect("it is bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            lockd.run(&stopped).expect("the socket works");
            lockd.plane().counters()
        });
        Self { address, stop, thread: Some(thread), network }
    }

    /// Ends it, and gives what was counted.
    fn end(mut self) -> Vec<(String, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("it ends")
    }

    /// Joins from where a machine is.
    fn join(&self, number: u32, key: Option<Key>) -> Locks {
        let options = Options { key, ..Options::default() };
        let address = self.address.to_string();
        let join = || Locks::connect_with(&address, options).expect("the daemon answers");
        match &self.network {
            Some(network) => network.machines[number as usize - 1].namespace.within(join).expect("it is there"),
            None => join(),
        }
    }
}

fn options(udp: SocketAddr, key: Option<Key>, pace: u32) -> lockd::Options {
    lockd::Options { lease_ms: LEASE_MS * pace, writers_first: true, key, fresh: true, ..lockd::Options::new(udp) }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

enum State {
    Waits(Pin<Box<Acquiring>>),
    Holds { _until_dropped: Guard },
}

struct Entry {
    session: Session,
    lock: LockId,
    state: State,
}

/// The lock service as scripts see it.
struct Udp {
    daemon: Arc<Daemon>,
    /// Where the locks of this script begin: scripts in the kernel share a daemon.
    first_lock: u64,
    key: Option<Key>,
    /// All sessions are tasks of one machine.
    one_machine: bool,
    pace: u32,
    machines: HashMap<u32, Locks>,
    entries: Vec<Entry>,
    start: Instant,
    /// What the script has let pass.
    passed: Duration,
}

impl Udp {
    fn new(daemon: Arc<Daemon>, first_lock: u64, one_machine: bool, key: Option<Key>, pace: u32) -> Self {
        Self {
            daemon,
            first_lock,
            key,
            one_machine,
            pace,
            machines: HashMap::new(),
            entries: Vec::new(),
            start: Instant::now(),
            passed: Duration::ZERO,
        }
    }

    fn machine(&mut self, session: Session) -> Locks {
        let number = if self.one_machine { 0 } else { session.0 };
        let Self { daemon, key, .. } = self;
        self.machines.entry(number).or_insert_with(|| daemon.join(number, *key)).clone()
    }

    /// Looks at all that wait until nothing happens any more.
    fn settle(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut last = Instant::now();
        while last.elapsed() < QUIET * self.pace {
            std::thread::sleep(Duration::from_millis(1));
            let mut refused = Vec::new();
            for (at, entry) in self.entries.iter_mut().enumerate() {
                let State::Waits(future) = &mut entry.state else { continue };
                let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                    continue;
                };
                last = Instant::now();
                let (session, lock) = (entry.session, entry.lock);
                events.push(Event { session, lock, granted: answer.is_ok() });
                match answer {
                    Ok(guard) => entry.state = State::Holds { _until_dropped: guard },
                    Err(LockError::TimedOut(_)) => refused.push(at),
                    Err(error) => panic!("s{} {lock:?}: {error}", session.0),
                }
            }
            refused.into_iter().rev().for_each(|at| drop(self.entries.remove(at)));
        }
        events
    }
}

impl Manager for Udp {
    fn name(&self) -> String {
        let machines = if self.one_machine { "one machine" } else { "a machine for each session" };
        let key = if self.key.is_some() { ", with a key" } else { "" };
        let place = if self.daemon.network.is_some() { ", in the kernel" } else { "" };
        format!("lock service over UDP ({machines}{key}{place})")
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Crash, Fifo, Groups, Timeout, Waits, Withdraw};
        vec![Waits, Fifo, Groups, Withdraw, Timeout, Crash]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        let Request { id: lock, mode } = requests[0];
        let locks = self.machine(session);
        let number = self.first_lock + lock.0;
        let request = if mode == LockMode::Exclusive { locks.exclusive(number) } else { locks.shared(number) };
        let request = match timeout_ms {
            Some(time_ms) => {
                let end =
                    self.start + self.passed + MS * self.pace * u32::try_from(time_ms).expect("scripts are short");
                request.timeout(end - Instant::now())
            }
            None => request,
        };
        let state = State::Waits(Box::pin(request.acquire_async()));
        self.entries.push(Entry { session, lock, state });
        match self.settle()[..] {
            [] => Outcome::Waiting,
            [Event { session: of, lock: about, granted: true }] if of == session && about == lock => Outcome::Granted,
            ref events => panic!("an acquire of s{} caused {events:?}", session.0),
        }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let is_it = |entry: &Entry| entry.session == session && locks == [entry.lock];
        let at = self.entries.iter().position(is_it).ok_or(NotHeld)?;
        drop(self.entries.remove(at));
        Ok(self.settle())
    }

    fn crash(&mut self, session: Session) -> Vec<Event> {
        let gone = self.entries.extract_if(.., |entry| entry.session == session);
        if self.one_machine {
            // A task is gone, and the process lives: what the task had goes out of scope.
            drop(gone.collect::<Vec<_>>());
            return self.settle();
        }
        let gone: Vec<_> = gone.collect();
        if let Some(locks) = self.machines.remove(&session.0) {
            locks.abandon();
        }
        drop(gone);
        std::thread::sleep(Duration::from_millis(u64::from(LEASE_MS * self.pace) + 100));
        self.settle()
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.passed += MS * self.pace * u32::try_from(time_ms).expect("scripts are short");
        std::thread::sleep((self.start + self.passed).saturating_duration_since(Instant::now()));
        self.settle()
    }
}

/// Runs `test`, and again more slowly if it fails, which the slowest time is a failure.
fn at_some_pace(test: impl Fn(u32)) {
    let [tries @ .., slowest] = PACES;
    if !tries.iter().any(|pace| std::panic::catch_unwind(AssertUnwindSafe(|| test(*pace))).is_ok()) {
        test(slowest);
    }
}

fn passes(one_machine: bool, key: Option<Key>) {
    at_some_pace(|pace| {
        let report = run_all(&golden(), || Udp::new(Arc::new(Daemon::start(key, pace)), 0, one_machine, key, pace));
        assert!(report.is_clean(), "{report}");
        assert!(report.passed() >= 10, "{report}");
    });
}

#[test]
fn scripts_pass_with_a_machine_for_every_session() {
    passes(false, None);
}

#[test]
fn scripts_pass_with_all_sessions_on_one_machine() {
    passes(true, None);
}

#[test]
fn scripts_pass_with_a_key() {
    passes(false, Some(Key(*b"sixteen bytes...")));
}

fn passes_in_kernel(hook: Hook, pace: u32) {
    let Some(daemon) = Daemon::in_kernel(hook, pace).map(Arc::new) else { return };
    let mut next_lock = 0;
    let report = run_all(&golden(), || {
        next_lock += A_SCRIPT;
        Udp::new(Arc::clone(&daemon), next_lock - A_SCRIPT, false, None, pace)
    });
    assert!(report.is_clean(), "{report}");
    assert!(report.passed() >= 10, "{report}");
    let counters = Arc::into_inner(daemon).expect("all managers are gone").end();
    let count = |name: &str| counters.iter().find(|(is, _)| is == name).map_or(0, |(_, count)| *count);
    assert!(
        count("acquire") >= 40 && count("release") > 0 && count("free") >= 10 && count("move") >= 10,
        "{counters:?}"
    );
}

#[test]
fn privileged_scripts_pass_with_the_decider_at_native_xdp() {
    at_some_pace(|pace| passes_in_kernel(Hook::Xdp, pace));
}

#[test]
fn privileged_scripts_pass_with_the_decider_at_tc() {
    at_some_pace(|pace| passes_in_kernel(Hook::Tc, pace));
}
