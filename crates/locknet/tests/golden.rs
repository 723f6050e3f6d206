//! The golden lock scripts over UDP, on loopback: against a daemon in this process, with a machine for every session,
//! and with all sessions on one machine.
//!
//! Time in scripts is stretched, so that ten milliseconds are long against a round trip. After every step the manager
//! looks until nothing has happened for some time; what happens later would be missed here and found by the next step.

use lockwork_locking::conformance::{Capability, Event, Manager, NotHeld, Session, golden, run_all};
use lockwork_locking::{LockId, LockMode, Outcome, Request};
use lockwork_locknet::client::{Acquiring, Guard, LockError, Locks, Options};
use lockwork_locknet::lockd::{self, Lockd};
use lockwork_locknet::plane::InProcess;
use lockwork_lockservice::packet::Key;
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A millisecond of a script.
const MS: Duration = Duration::from_millis(20);
/// Nothing more will happen if nothing has for so long.
const QUIET: Duration = Duration::from_millis(15);
const LEASE_MS: u32 = 500;

struct Daemon {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Daemon {
    fn start(key: Option<Key>) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let options = lockd::Options { lease_ms: LEASE_MS, writers_first: true, key, ..lockd::Options::new(any) };
        let mut lockd = Lockd::bind(&options, InProcess::new(64).expect("a kilobyte")).expect("a free port");
        let address = lockd.address().expect("it is bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || lockd.run(&stopped).expect("the socket works"));
        Self { address, stop }
    }
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
    daemon: Daemon,
    key: Option<Key>,
    /// All sessions are tasks of one machine.
    one_machine: bool,
    machines: HashMap<u32, Locks>,
    entries: Vec<Entry>,
    start: Instant,
    /// What the script has let pass.
    passed: Duration,
}

impl Udp {
    fn new(one_machine: bool, key: Option<Key>) -> Self {
        Self {
            daemon: Daemon::start(key),
            key,
            one_machine,
            machines: HashMap::new(),
            entries: Vec::new(),
            start: Instant::now(),
            passed: Duration::ZERO,
        }
    }

    fn machine(&mut self, session: Session) -> Locks {
        let number = if self.one_machine { 0 } else { session.0 };
        let (address, key) = (self.daemon.address.to_string(), self.key);
        let join = || Locks::connect_with(&address, Options { key, ..Options::default() }).expect("the daemon answers");
        self.machines.entry(number).or_insert_with(join).clone()
    }

    /// Looks at all that wait until nothing happens any more.
    fn settle(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
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
        format!("lock service over UDP ({machines}{key})")
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Crash, Fifo, Groups, Timeout, Waits, Withdraw};
        vec![Waits, Fifo, Groups, Withdraw, Timeout, Crash]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        let Request { id: lock, mode } = requests[0];
        let locks = self.machine(session);
        let request = if mode == LockMode::Exclusive { locks.exclusive(lock.0) } else { locks.shared(lock.0) };
        let request = match timeout_ms {
            Some(time_ms) => {
                let end = self.start + self.passed + MS * u32::try_from(time_ms).expect("scripts are short");
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
        std::thread::sleep(Duration::from_millis(u64::from(LEASE_MS) + 100));
        self.settle()
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.passed += MS * u32::try_from(time_ms).expect("scripts are short");
        std::thread::sleep((self.start + self.passed).saturating_duration_since(Instant::now()));
        self.settle()
    }
}

fn passes(one_machine: bool, key: Option<Key>) {
    let report = run_all(&golden(), || Udp::new(one_machine, key));
    assert!(report.is_clean(), "{report}");
    assert!(report.passed() >= 10, "{report}");
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
