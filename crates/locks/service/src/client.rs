//! Locks for Rust programs, blocking and asynchronous.
//!
//! ```no_run
//! use lockwork_locks::client::Locks;
//! use std::time::Duration;
//!
//! let locks = Locks::connect("127.0.0.1:7400")?;
//! let guard = locks.exclusive(17).timeout(Duration::from_secs(5)).acquire()?;
//! println!("writing with token {}", guard.token());
//! drop(guard);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One [`Locks`] is one machine of the service, whatever the number of its threads and tasks; clones are the same
//! machine. Among its own tasks a lock goes from hand to hand without a packet.
//!
//! A guard is held until it is dropped, or *lost*: when its lease has run out because the process was stopped, or the
//! service was not reached, for longer than that. [`Guard::is_lost`] says so, also directly after the process goes on.
//! Between the question and what is done next a process can be stopped again, so whatever must not be written by a
//! former holder has to compare [`Guard::token`] with the largest that it has seen.
//!
//! A session belongs to the process that connected. In a child that it forks, guards are lost, requests fail with
//! [`LockError::Forked`], and dropping releases nothing: the parent goes on holding what it holds. A child that needs
//! locks connects anew.

mod core;
mod directory;
mod driver;
mod error;
mod fork;
mod guard;
mod join;
mod racks;
#[cfg(test)]
mod tests;
mod wait;

use self::core::Core;
use crate::clock::{Clock, nanos};
use driver::Shared;
use error::no_such_lock;
pub use error::{ConnectError, LockError, LockName};
use fork::Owner;
pub use guard::{Guard, Lost};
use join::Role;
use lockwork_lock_protocol::client::Ask;
use lockwork_lock_protocol::names::LONGEST;
use lockwork_lock_protocol::node::{AcquireError, Counters};
use lockwork_lock_protocol::packet::{Key, Problem};
use lockwork_locking::LockMode;
use racks::{Followed, Racks, Search, SessionStart, Unmet};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use wait::{Answer, Slot, Wait};

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster's key, if the service has one.
    pub key: Option<Key>,
    /// How long to try. A service that was started anew answers when the leases of before are over, after 2 s unless it
    /// was told otherwise; so this should be longer than a lease.
    pub connect_timeout: Duration,
    /// How long a task that waits looks at the socket without sleeping.
    pub spin: Duration,
    /// What people see of a task (`lockwork locks show`); the process by default.
    pub task: u32,
    /// This process offers to keep locks beyond those that the decider has words for, its share of them, for as long as
    /// it is connected; see [`Locks::is_beyond`]. Meant for processes that live long and seldom pause.
    pub manages: bool,
    /// How many names stay known that no lock of this process is held or asked for by; at least one.
    pub most_names: usize,
    /// For how long a lock that was given back stays with this process, in case that one of its tasks asks for it
    /// again, which takes no packet then: between this time and twice it after the last use, a lease at most. For
    /// locks that mostly one process uses. Others get it as soon as they ask, by two packets more, unless this process
    /// is stopped or dies: then they wait for its lease, as for what it holds. Zero, which is the default: it goes back
    /// at once.
    pub stay: Duration,
    /// With more than so many locks that are held or stay, none stays; each takes some 150 bytes.
    pub most_stay: usize,
}

impl Default for Options {
    /// Five seconds to connect, no key; 50 us without sleeping where there is a core to spare.
    fn default() -> Self {
        let spare = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Self {
            key: None,
            connect_timeout: Duration::from_secs(5),
            spin: if spare { Duration::from_micros(50) } else { Duration::ZERO },
            task: std::process::id(),
            manages: false,
            most_names: 1 << 16,
            stay: Duration::ZERO,
            most_stay: 1 << 16,
        }
    }
}

/// A session with a lock service. Cheap to clone; the session ends when the last clone and the last guard are gone.
#[derive(Clone, Debug)]
pub struct Locks(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    address: SocketAddr,
    options: Options,
    driver: Option<JoinHandle<()>>,
    owner: Owner,
    /// End without a farewell.
    abandon: AtomicBool,
    racks: Racks,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // The thread is not in this process, and its handle leads nowhere.
            return std::mem::forget(self.driver.take());
        }
        self.shared.stop(self.abandon.load(Ordering::Acquire));
        // A task that is dropped by the background thread may have held the last clone.
        if let Some(driver) = self.driver.take().filter(|driver| driver.thread().id() != std::thread::current().id()) {
            _ = driver.join();
        }
    }
}

impl Locks {
    /// Joins the service at `HOST:PORT`. Of a name with several addresses, the first that answers.
    ///
    /// # Errors
    /// [`ConnectError`] if there is no such address, nobody answers in time, or the service is full.
    pub fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, Options::default())
    }

    /// Joins the service at `HOST:PORT`.
    ///
    /// # Errors
    /// As for [`Locks::connect`].
    pub fn connect_with(address: &str, options: Options) -> Result<Self, ConnectError> {
        let wrong = |error| ConnectError::Address { address: address.to_string(), error };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(wrong)?.collect();
        if addresses.is_empty() {
            return Err(wrong(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        }
        Self::join(&addresses, options)
    }

    fn join(addresses: &[SocketAddr], options: Options) -> Result<Self, ConnectError> {
        let clock = Clock::new();
        let joined =
            join::connect(addresses, options.key.as_ref(), clock, options.connect_timeout, Role::new(&options))?;
        let address = joined.server;
        let core = Core::new(joined, &options);
        let system = |error| ConnectError::System { address, error };
        let shared = Arc::new(Shared::new(core, clock, options.spin).map_err(system)?);
        let owner = Owner::new().map_err(system)?;
        let driven = Arc::clone(&shared);
        let driver = std::thread::Builder::new().name("lockwork-locks".to_string()).spawn(move || driven.run());
        let driver = Some(driver.map_err(system)?);
        let abandon = AtomicBool::new(false);
        let racks = Racks::default();
        Ok(Self(Arc::new(Handle { shared, address, options, driver, owner, abandon, racks })))
    }

    /// A request for a lock that nobody else holds meanwhile.
    pub fn exclusive(&self, lock: u64) -> Acquire<'_> {
        self.mode(Target::Lock(lock), LockMode::Exclusive)
    }

    /// A request for the lock that `name` means, 1 to 255 bytes, that nobody else holds meanwhile. Different names
    /// never mean the same lock.
    pub fn exclusive_named<'a>(&'a self, name: &'a str) -> Acquire<'a> {
        self.mode(Target::Name(name), LockMode::Exclusive)
    }

    /// A request for a lock that others may hold shared too.
    pub fn shared(&self, lock: u64) -> Acquire<'_> {
        self.mode(Target::Lock(lock), LockMode::Shared)
    }

    /// A request for the lock that `name` means, 1 to 255 bytes, that others may hold shared too.
    pub fn shared_named<'a>(&'a self, name: &'a str) -> Acquire<'a> {
        self.mode(Target::Name(name), LockMode::Shared)
    }

    fn mode<'a>(&'a self, target: Target<'a>, mode: LockMode) -> Acquire<'a> {
        Acquire { locks: self, target, mode, timeout: None, task: self.0.options.task, detect_deadlock: false }
    }

    /// How many locks with numbers the service has.
    #[must_use]
    pub fn count(&self) -> u64 {
        let service = self.0.shared.core().service;
        service.locks - service.names
    }

    /// Whether a session is there. When it has ended, the next request begins a new one.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.shared.has_lease()
    }

    /// Whether `lock` is beyond those that the decider has words for: a lock too, which a manager keeps, and slower.
    /// False where the service has no such locks.
    #[must_use]
    pub fn is_beyond(&self, lock: u64) -> bool {
        self.0.shared.core().node.config().is_beyond(lock)
    }

    /// How many parts of those locks this process keeps at present, of 64.
    #[must_use]
    pub fn managed_parts(&self) -> usize {
        self.0.shared.core().node.pool().parts()
    }

    /// How many locks the service has for names.
    #[must_use]
    pub fn count_named(&self) -> u64 {
        self.0.shared.core().service.names
    }

    /// For how long a session lives after its last renewal. An eighth of that before, guards are lost.
    #[must_use]
    pub fn lease(&self) -> Duration {
        Duration::from_nanos(self.0.shared.core().node.config().lease)
    }

    /// Where the service is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Number of this machine in the service.
    #[must_use]
    pub fn machine(&self) -> u16 {
        self.0.shared.core().node.identity().machine.0
    }

    /// What this machine has done so far, in the present session.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.shared.core().node.counters()
    }

    /// How many datagrams were no packets for this process: of another key, version or length. They change nothing.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.0.shared.core().malformed
    }

    /// Ends the session without a word, as if the process had been killed: the service finds out when the lease is
    /// over. Guards are void. For tests of what others see then, in this crate and beside it.
    #[doc(hidden)]
    pub fn abandon(self) {
        self.0.abandon.store(true, Ordering::Release);
        self.0.shared.stop(true);
    }

    /// Asks for a lock, in a new session if the last one has ended.
    fn begin(&self, name: LockName, mode: LockMode, ask: Ask, late: bool) -> Result<Pending, LockError> {
        let Handle { shared, options, owner, .. } = &*self.0;
        if !owner.is_here() {
            return Err(LockError::Forked);
        }
        let mut core = if late { shared.core_late() } else { shared.core() };
        let service = core.service;
        match &name {
            LockName::Name(name) if !(1..=LONGEST).contains(&name.len()) => return Err(LockError::BadName(name.len())),
            LockName::Number(lock) => {
                let (lock, locks) = (*lock, service.locks - service.names);
                if lock >= locks && !core.node.config().is_beyond(lock) {
                    return Err(no_such_lock(lock, &service));
                }
            }
            LockName::Name(_) => {}
        }
        let wait = core.begin(shared.now(), name.clone(), mode, ask, nanos(options.connect_timeout));
        drop(core);
        let wait = wait.map_err(|error| match error {
            AcquireError::NoSuchLock { lock, .. } => no_such_lock(lock, &service),
            _ => LockError::Disconnected(name.clone()),
        })?;
        Ok(Pending { locks: self.clone(), name, mode, wait, late })
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
enum Target<'a> {
    Lock(u64),
    Name(&'a str),
}

impl Target<'_> {
    fn owned(self) -> LockName {
        match self {
            Self::Lock(lock) => LockName::Number(lock),
            Self::Name(name) => LockName::Name(name.into()),
        }
    }
}

/// A request that is not made yet.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is asked for before acquire, try_acquire or acquire_async"]
pub struct Acquire<'a> {
    locks: &'a Locks,
    target: Target<'a>,
    mode: LockMode,
    timeout: Option<Duration>,
    task: u32,
    detect_deadlock: bool,
}

impl Acquire<'_> {
    /// Waits no longer than this, for a new session too if the last one has ended. Without it, a request waits as long
    /// as the session lives, and for a new one as long as [`Options::connect_timeout`] says.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Number of the task that asks: what people see of it (`lockwork locks show`), and what
    /// [`detect_deadlock`](Self::detect_deadlock) goes by.
    pub const fn task(mut self, task: u32) -> Self {
        self.task = task;
        self
    }

    /// Gives up with [`LockError::Deadlock`] when, after some 20 ms, it waits in a circle: its task holds a lock that a
    /// task waits for which holds a lock ... that this one waits for. Of a circle one task gives up. Only requests with
    /// this set are seen, on all machines, those that hold included; and what runs at the same time, threads and async
    /// tasks alike, must have a [`task`](Self::task) number of its own within its [`Locks`].
    pub const fn detect_deadlock(mut self) -> Self {
        self.detect_deadlock = true;
        self
    }

    fn ask(&self, try_only: bool) -> Ask {
        let timeout = self.timeout.map(nanos);
        Ask { task: self.task, timeout, try_only, detect_deadlock: self.detect_deadlock }
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`LockError`]; the request does not wait any more then.
    pub fn acquire(self) -> Result<Guard, LockError> {
        self.wait(false)
    }

    /// Takes the lock if that is possible without waiting for somebody who holds it. If the last session has ended, it
    /// waits for a new one for 100 ms at most; the process goes on asking for one, so it may be there the next time.
    ///
    /// # Errors
    /// [`LockError::Busy`] if it is not, and as for [`Acquire::acquire`].
    pub fn try_acquire(self) -> Result<Guard, LockError> {
        self.wait(true)
    }

    fn wait(self, try_only: bool) -> Result<Guard, LockError> {
        let (name, mut search) = (self.target.owned(), Search::new(self.timeout, !try_only));
        loop {
            let rack = self.locks.rack_of(&name, &search);
            let rack = rack.as_ref().unwrap_or(self.locks);
            let ask = Ask { timeout: search.left().map(nanos), ..self.ask(try_only) };
            let answer = rack.begin(name.clone(), self.mode, ask, false).map_err(Unmet::Failed).and_then(|pending| {
                rack.0.shared.wait(&pending.wait);
                pending.finish()
            });
            match self.locks.follow(&mut search, &name, answer)? {
                Followed::Granted(guard) => return Ok(guard),
                Followed::Next => search.pause().into_iter().for_each(std::thread::sleep),
                Followed::Meet { lock, to } => self.locks.meet_and_route(&mut search, &name, lock, to)?,
            }
        }
    }

    /// Waits for the lock without a thread: the request is made when this is first polled, and withdrawn when it is
    /// dropped. Any executor will do.
    pub fn acquire_async(self) -> Acquiring {
        let Self { locks, target, mode, timeout, .. } = self;
        let (name, ask, search) = (target.owned(), self.ask(false), Search::new(timeout, true));
        Acquiring { locks: locks.clone(), name, mode, ask, search, stage: Stage::Begins }
    }
}

/// A request that was made.
#[derive(Debug)]
struct Pending {
    locks: Locks,
    name: LockName,
    mode: LockMode,
    wait: Arc<Wait>,
    late: bool,
}

impl Pending {
    /// The guard, or why there is none; it must be answered.
    fn finish(self) -> Result<Guard, Unmet> {
        let Self { locks, name, mode, wait, late } = self;
        let meaning = wait.meaning().cloned();
        let (lock, unresolved) = match (&name, &meaning) {
            (LockName::Number(lock), _) | (LockName::Name(_), Some((_, lock))) => (*lock, None),
            // No request is granted, refused or sent elsewhere before its lock is known.
            (LockName::Name(name), None) => (u64::MAX, Some(name)),
        };
        Err(Unmet::Failed(match wait.answer() {
            Some(Answer::Granted { token }) => {
                let guard = Guard::new(locks, lock, mode, token, wait, late);
                // The lease may have run out since.
                if guard.is_lost() { LockError::Disconnected(name) } else { return Ok(guard) }
            }
            Some(Answer::Moved { to }) => return Err(Unmet::Moved { lock, to }),
            Some(Answer::Busy | Answer::TimedOut) if let Some(name) = unresolved => {
                LockError::NotResolved(name.to_string())
            }
            Some(Answer::Failed(Problem::NoNames)) => LockError::NoNames,
            Some(Answer::Failed(Problem::NamesFull)) => LockError::NamesFull(locks.count_named()),
            Some(Answer::Busy) => LockError::Busy(name),
            Some(Answer::TimedOut) => LockError::TimedOut(name),
            Some(Answer::Deadlock) => LockError::Deadlock(name),
            Some(Answer::NotJoined { error, waited_ms }) => error.after(waited_ms, &[locks.address()]).into(),
            Some(Answer::Failed(Problem::NoSuchLock)) => no_such_lock(lock, &locks.0.shared.core().service),
            Some(Answer::Failed(_)) | None => LockError::Disconnected(name),
        }))
    }
}

/// The future of [`Acquire::acquire_async`].
#[derive(Debug)]
pub struct Acquiring {
    locks: Locks,
    name: LockName,
    mode: LockMode,
    ask: Ask,
    search: Search,
    stage: Stage,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    Begins,
    Waits(Pending),
    Meets(Arc<SessionStart>),
}

#[cfg(test)]
impl Acquiring {
    fn pending(&self) -> &Pending {
        let Stage::Waits(pending) = &self.stage else { panic!("it does not wait") };
        pending
    }
}

impl Future for Acquiring {
    type Output = Result<Guard, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { locks, name, mode, ask, search, stage } = &mut *self;
        if !locks.0.owner.is_here() {
            return Poll::Ready(Err(LockError::Forked));
        }
        loop {
            let answer = match std::mem::replace(stage, Stage::Begins) {
                Stage::Begins => {
                    let rack = locks.rack_of(name, search);
                    let ask = Ask { timeout: search.left().map(nanos), ..*ask };
                    match rack.as_ref().unwrap_or(locks).begin(name.clone(), *mode, ask, true) {
                        Ok(pending) => {
                            *stage = Stage::Waits(pending);
                            continue;
                        }
                        Err(error) => Err(Unmet::Failed(error)),
                    }
                }
                Stage::Waits(pending) => {
                    if !pending.wait.is_done_or_wakes(Slot::ANSWER, context.waker(), Wait::is_answered) {
                        *stage = Stage::Waits(pending);
                        return Poll::Pending;
                    }
                    pending.finish()
                }
                Stage::Meets(meeting) => match meeting.poll(context) {
                    Poll::Pending => {
                        *stage = Stage::Meets(meeting);
                        return Poll::Pending;
                    }
                    Poll::Ready(met) => match search.met(name, met) {
                        Ok(()) => continue,
                        Err(error) => return Poll::Ready(Err(error)),
                    },
                },
            };
            match locks.follow(search, name, answer) {
                Ok(Followed::Granted(guard)) => return Poll::Ready(Ok(guard)),
                Ok(Followed::Next) => {}
                Ok(Followed::Meet { lock, to }) => *stage = Stage::Meets(locks.meeting(search, lock, to)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let Stage::Waits(pending) = &self.stage {
            guard::give_back(&pending.locks, &pending.wait, true);
        }
    }
}
