//! Time, threads, and waiting, as a node asks for them: the system's, or a simulator's.
//!
//! A node is a few threads that wait for each other, for a while, or for its journal. Whatever waits does it here, and
//! whoever looks at a clock does it here. With the system's threads each of these is the call of the standard library
//! that it looks like. With a [`Scheduler`] one thread of a simulation runs at a time: one that would wait gives its
//! turn away, and looks again when something has happened. So the code of a node is the same in both, and what runs
//! next, and how late it is, is the scheduler's to say.
//!
//! Invariant: nothing that a thread holds a lock for waits here, and what it waits for is changed by threads of the
//! same scheduler alone.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use lockwork_engine::EngineError;

use crate::error::Error;
use crate::shared::lock;

/// What runs threads one at a time.
pub(crate) trait Scheduler: Send + Sync {
    /// The time of the calling thread's node.
    fn now(&self) -> Instant;

    /// The time of day of the calling thread's node, in milliseconds since 1970.
    fn unix_ms(&self) -> u64;

    /// Gives the turn away until then, or until a thread of its node may have changed something, if that is what it
    /// waits for. `has_acted` says whether the thread has done anything since it had its turn that others may wait for.
    /// Says whether the thread goes on: if not, it unwinds already, and waits for nothing.
    fn wait(&self, until: Option<Instant>, has_acted: bool, what: Waits) -> bool;

    /// Lets others have a turn, or not.
    fn pass(&self);

    /// Something was sent that others of the node may wait for.
    fn acted(&self);

    /// Starts a thread of the calling thread's node.
    fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>;

    /// A number that no other call has got.
    fn fresh(&self) -> u64;
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Other threads of its node.
    Threads,
    /// A time, or somebody else, who wakes it.
    Time,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Threads(Option<Arc<dyn Scheduler>>);

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "simulated threads" } else { "the system's threads" })
    }
}

/// Looks until there is something, or it is too late, or the thread has to end.
fn poll<T>(scheduler: &dyn Scheduler, until: Option<Instant>, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut has_acted = true;
    loop {
        let found = look();
        if found.is_some() || until.is_some_and(|until| scheduler.now() >= until) {
            return found;
        }
        if !scheduler.wait(until, has_acted, Waits::Threads) {
            return None;
        }
        has_acted = false;
    }
}

impl Threads {
    /// Those of a simulation.
    pub(crate) fn of(scheduler: Arc<dyn Scheduler>) -> Self {
        Self(Some(scheduler))
    }

    pub(crate) fn now(&self) -> Instant {
        self.0.as_ref().map_or_else(Instant::now, |scheduler| scheduler.now())
    }

    /// The time of day in milliseconds since 1970-01-01 00:00 UTC.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.0.as_ref().map_or_else(unix_ms, |scheduler| scheduler.unix_ms())
    }

    /// A number that nobody else has.
    pub(crate) fn fresh(&self) -> u64 {
        self.0.as_ref().map_or_else(crate::sequencer::fresh_id, |scheduler| scheduler.fresh())
    }

    /// [`Receiver::recv`], or [`Receiver::recv_timeout`] where there is a most to wait.
    pub(crate) fn receive<T>(&self, from: &Receiver<T>, most: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let Some(scheduler) = &self.0 else {
            return match most {
                None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(most) => from.recv_timeout(most),
            };
        };
        scheduler.pass();
        let until = most.map(|most| scheduler.now() + most);
        let received = poll(&**scheduler, until, || match from.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvTimeoutError::Disconnected)),
            Err(TryRecvError::Empty) => None,
        });
        let late = if most.is_some() { RecvTimeoutError::Timeout } else { RecvTimeoutError::Disconnected };
        received.unwrap_or(Err(late))
    }

    /// [`SyncSender::send`].
    pub(crate) fn send<T>(&self, to: &SyncSender<T>, value: T) -> Result<(), SendError<T>> {
        let Some(scheduler) = &self.0 else { return to.send(value) };
        scheduler.pass();
        let mut value = Some(value);
        let sent = poll(&**scheduler, None, || match to.try_send(value.take()?) {
            Ok(()) => {
                scheduler.acted();
                Some(Ok(()))
            }
            Err(TrySendError::Disconnected(value)) => Some(Err(SendError(value))),
            Err(TrySendError::Full(full)) => {
                value = Some(full);
                None
            }
        });
        match (sent, value) {
            (Some(sent), _) => sent,
            (None, Some(value)) => Err(SendError(value)),
            (None, None) => Ok(()),
        }
    }

    pub(crate) fn sleep(&self, time: Duration) {
        match &self.0 {
            None => std::thread::sleep(time),
            Some(scheduler) => {
                let until = scheduler.now() + time;
                // It says so when there is no use in waiting.
                while scheduler.now() < until && scheduler.wait(Some(until), true, Waits::Time) {}
            }
        }
    }

    /// Waits while `holds`, which `changed` says may have changed, and `most` at most.
    pub(crate) fn wait_while<'a, T>(
        &self,
        (mutex, changed): (&'a Mutex<T>, &Condvar),
        most: Option<Duration>,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        if let Some(scheduler) = &self.0 {
            let until = most.map(|most| scheduler.now() + most);
            poll(&**scheduler, until, || (!holds(&mut lock(mutex))).then_some(()));
            return lock(mutex);
        }
        let guard = lock(mutex);
        match most {
            None => changed.wait_while(guard, holds).unwrap_or_else(PoisonError::into_inner),
            Some(most) => changed.wait_timeout_while(guard, most, holds).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Starts a thread.
    pub(crate) fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<Thread, Error> {
        let ended = Arc::new(AtomicBool::new(false));
        let started = match &self.0 {
            None => std::thread::Builder::new().name(name.into()).spawn(run),
            Some(scheduler) => {
                let ended = ended.clone();
                let run = move || {
                    run();
                    ended.store(true, Ordering::Release);
                };
                scheduler.start(name, Box::new(run))
            }
        };
        let failed = |error: std::io::Error| EngineError::Worker(format!("could not be started: {error}")).into();
        started.map_err(failed).map(|handle| Thread { handle, ended, threads: self.clone() })
    }
}

fn unix_ms() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A thread that was started.
pub(crate) struct Thread {
    handle: JoinHandle<()>,
    /// Whether it has come to its end, where that is not the system's to say.
    ended: Arc<AtomicBool>,
    threads: Threads,
}

impl Thread {
    pub(crate) fn is_finished(&self) -> bool {
        match &self.threads.0 {
            None => self.handle.is_finished(),
            Some(_) => self.ended.load(Ordering::Acquire),
        }
    }

    /// Waits until it has ended, however it has.
    pub(crate) fn join(self) {
        if let Some(scheduler) = &self.threads.0
            && poll(&**scheduler, None, || self.is_finished().then_some(())).is_none()
        {
            return;
        }
        drop(self.handle.join());
    }
}
