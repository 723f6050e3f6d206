//! Sessions with several racks, each of which decides on its part of the locks; see `lockwork_lock_protocol::racks`.
//!
//! A [`Locks`] is connected to one rack. When that one says that another decides on a lock, a session with that one is
//! begun too, and is kept: from then on locks of the part are asked for there, until it says otherwise.

use super::{ConnectError, Guard, LockError, LockName, Locks, Options};
use lockwork_lock_protocol::beyond::{PARTS, part};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// After so many racks that know better one waits: what is written down may have reached one and not the other.
const HOPS: usize = 8;
/// So long.
const PAUSE: Duration = Duration::from_millis(1);

/// Why a request was not granted by the rack that was asked.
#[derive(Debug)]
pub(super) enum Unmet {
    /// Another one decides.
    Moved {
        lock: u64,
        to: SocketAddr,
    },
    Failed(LockError),
}

/// The racks beside the one that was connected to.
#[derive(Debug)]
pub(super) struct Racks {
    /// Whom to ask for a part: 0 is the one that was connected to, the others follow.
    routes: [AtomicUsize; PARTS as usize],
    others: Mutex<Vec<Locks>>,
    /// How many others there are.
    known: AtomicUsize,
}

impl Default for Racks {
    fn default() -> Self {
        let routes = [const { AtomicUsize::new(0) }; PARTS as usize];
        Self { routes, others: Mutex::default(), known: AtomicUsize::new(0) }
    }
}

impl Racks {
    fn others(&self) -> MutexGuard<'_, Vec<Locks>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way of a request from rack to rack.
#[derive(Debug)]
pub(super) struct Search {
    /// The request's time, and when it is over.
    timeout: Option<Duration>,
    until: Option<Instant>,
    waits: bool,
    hops: usize,
    /// Racks that could not be asked, since the last that could.
    failed: usize,
    /// Racks that were named and could not be met, since the last that could.
    unmet: usize,
}

impl Search {
    /// `waits` says that a rack that is not there is waited for.
    pub(super) fn new(timeout: Option<Duration>, waits: bool) -> Self {
        // No moment can be told that is centuries away.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { timeout, until, waits, hops: 0, failed: 0, unmet: 0 }
    }

    /// What is left of the request's time, if it is limited.
    pub(super) fn left(&self) -> Option<Duration> {
        match self.until {
            Some(until) if self.hops + self.failed > 0 => Some(until.saturating_duration_since(Instant::now())),
            _ => self.timeout,
        }
    }

    /// A rack that was named was met, or not: it may be there in a moment, or another one be named, so it is asked
    /// again who decides while there is time.
    pub(super) fn met(&mut self, name: &LockName, met: Result<(), ConnectError>) -> Result<(), LockError> {
        match met {
            Ok(()) => self.unmet = 0,
            Err(_) if self.left() == Some(Duration::ZERO) => return Err(LockError::TimedOut(name.clone())),
            // Without a request's own time it is waited for as for a lock that is held: without end.
            Err(ConnectError::NoAnswer { .. }) if self.waits => self.unmet += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Whether it is time to wait before the next rack is asked.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.hops > HOPS || self.unmet > 0).then_some(PAUSE)
    }
}

impl Locks {
    /// The session with the rack that decides on what is asked for, as far as is known: nothing if it is this one. If
    /// that session has ended, another one's, which knows whether it is still to be asked.
    pub(super) fn rack_of(&self, name: &LockName, search: &Search) -> Option<Self> {
        let LockName::Number(lock) = name else { return None };
        if self.0.racks.known.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let rack = match self.0.racks.routes[part(*lock) as usize].load(Ordering::Relaxed) {
            0 => None,
            at => self.0.racks.others().get(at - 1).cloned(),
        };
        if search.hops + search.failed > 0 || rack.as_ref().unwrap_or(self).is_connected() {
            return rack;
        }
        let others: Vec<_> = self.0.racks.others().clone();
        others.into_iter().find(Self::is_connected).or(rack)
    }

    /// Asks the rack at `to` for the part of this lock from now on, if there is a session with it.
    pub(super) fn route(&self, lock: u64, to: SocketAddr) -> bool {
        let others = self.0.racks.others();
        let at = match others.iter().position(|other| other.0.address == to) {
            _ if to == self.0.address => 0,
            Some(at) => at + 1,
            None => return false,
        };
        self.0.racks.routes[part(lock) as usize].store(at, Ordering::Relaxed);
        true
    }

    /// Begins a session with the rack at `to`, unless there is one.
    fn meet(&self, to: SocketAddr, left: Option<Duration>) -> Result<(), ConnectError> {
        let options = &self.0.options;
        let connect_timeout = left.unwrap_or(options.connect_timeout).min(options.connect_timeout);
        let met = Self::join(&[to], Options { connect_timeout, ..options.clone() })?;
        let mut others = self.0.racks.others();
        if others.iter().all(|other| other.0.address != to) {
            others.push(met);
            self.0.racks.known.store(others.len(), Ordering::Relaxed);
        } else {
            // Somebody else was faster. It is dropped after unlocking.
            drop(others);
            drop(met);
        }
        Ok(())
    }

    /// What comes of a rack's answer: the guard, or the next rack is to be asked; `Err` if there is none.
    pub(super) fn follow(
        &self,
        search: &mut Search,
        name: &LockName,
        answer: Result<Guard, Unmet>,
    ) -> Result<Followed, LockError> {
        match answer {
            Ok(guard) => Ok(Followed::Granted(guard)),
            Err(Unmet::Moved { lock, to }) => {
                search.hops += 1;
                search.failed = 0;
                match search.left() {
                    Some(Duration::ZERO) => Err(LockError::TimedOut(name.clone())),
                    _ if self.route(lock, to) => Ok(Followed::Next),
                    _ => Ok(Followed::Meet { lock, to }),
                }
            }
            Err(Unmet::Failed(error)) => {
                let gone = matches!(error, LockError::Connect(_) | LockError::Disconnected(_));
                let racks = self.0.racks.others().len() + 1;
                search.failed += usize::from(gone);
                match name {
                    // It may be gone for good, and another one know who decides now.
                    LockName::Number(lock) if gone && search.failed < racks => {
                        let route = &self.0.racks.routes[part(*lock) as usize];
                        route.store((route.load(Ordering::Relaxed) + 1) % racks, Ordering::Relaxed);
                        Ok(Followed::Next)
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// [`Followed::Meet`], by a thread that may wait.
    pub(super) fn meet_and_route(
        &self,
        search: &mut Search,
        name: &LockName,
        lock: u64,
        to: SocketAddr,
    ) -> Result<(), LockError> {
        let met = self.meet(to, search.left());
        search.met(name, met)?;
        self.route(lock, to);
        Ok(())
    }

    /// The same for a task, by a thread of its own.
    pub(super) fn meeting(&self, search: &Search, lock: u64, to: SocketAddr) -> Arc<SessionStart> {
        let meeting = Arc::new(SessionStart::default());
        let (locks, left, told) = (self.clone(), search.left(), Arc::clone(&meeting));
        let met = move || {
            let met = locks.meet(to, left);
            locks.route(lock, to);
            // The session may end with this clone, before anybody is told.
            drop(locks);
            told.tell(met);
        };
        let spawned = std::thread::Builder::new().name("lockwork-rack".to_string()).spawn(met);
        if let Err(error) = spawned {
            meeting.tell(Err(ConnectError::System { address: to, error }));
        }
        meeting
    }
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Followed {
    Granted(Guard),
    Next,
    /// A session with this rack is to be begun first.
    Meet {
        lock: u64,
        to: SocketAddr,
    },
}

/// A session that a thread begins for a task.
#[derive(Debug, Default)]
pub(super) struct SessionStart(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    result: Option<Result<(), ConnectError>>,
    waker: Option<Waker>,
}

impl SessionStart {
    fn tell(&self, met: Result<(), ConnectError>) {
        let waker = {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            inner.result = Some(met);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        let waker = context.waker().clone();
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = inner.result.take();
        let before = if done.is_none() { inner.waker.replace(waker) } else { Some(waker) };
        drop(inner);
        drop(before);
        done.map_or(Poll::Pending, Poll::Ready)
    }
}
