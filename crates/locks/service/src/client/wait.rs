//! One request as its task sees it: the answer, and whether what was granted has been lost since.
//!
//! A task looks at one byte while it polls, sleeps on a condition variable when it has polled long enough, or leaves a
//! waker.
//!
//! *Invariant*: no code of the user runs while anything is locked, here or in the session. To wake, to clone or to drop
//! a waker may run or drop a task, which may come back to the very same lock; so wakers are cloned before locking, and
//! handed out to be woken or dropped after unlocking.
//!
//! *Trade-off*: a future has one slot for its waker, found by a number, so that an executor that gives another waker
//! with every poll replaces the last one instead of adding to it.

use super::join::JoinError;
use lockwork_lock_protocol::packet::Problem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted { token: u64 },
    Busy,
    TimedOut,
    Failed(Problem),
    Deadlock,
    Moved { to: SocketAddr },
    NotJoined { error: JoinError, waited_ms: u64 },
}

const OPEN: u8 = 0;
const ANSWERED: u8 = 1;
const LOST: u8 = 2;

/// Place of one future's waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

impl Slot {
    /// Of the one future that waits for the answer.
    pub(super) const ANSWER: Self = Self(0);
}

#[derive(Debug, Default)]
struct Inner {
    answer: Option<Answer>,
    wakers: Vec<(Slot, Waker)>,
    slots: u32,
    /// Threads that sleep: without any, there is no system call to wake them.
    asleep: u32,
}

/// Tasks to be woken when nothing is locked any more.
#[derive(Debug, Default)]
#[must_use = "tasks sleep until they are woken"]
pub(super) struct Sleepers(Vec<(Slot, Waker)>);

impl Sleepers {
    pub(super) fn wake(self) {
        self.0.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(super) fn add(&mut self, more: Self) {
        self.0.extend(more.0);
    }
}

#[derive(Debug, Default)]
pub(super) struct Wait {
    state: AtomicU8,
    /// Request, and the session as it began, once it is part of one.
    number: OnceLock<(u64, u32)>,
    /// Of a request for a name: what was found out about it.
    meaning: OnceLock<(Arc<str>, u64)>,
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Wait {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name that a request is for, and its lock, once that is known.
    pub(super) fn meaning(&self) -> Option<&(Arc<str>, u64)> {
        self.meaning.get()
    }

    pub(super) fn set_meaning(&self, name: Arc<str>, lock: u64) {
        _ = self.meaning.set((name, lock));
    }

    pub(super) fn number(&self) -> Option<(u64, u32)> {
        self.number.get().copied()
    }

    /// It is part of a session from now on, for ever.
    pub(super) fn set_number(&self, request: u64, session: u32) {
        self.number.set((request, session)).expect("no request moves from session to session");
    }

    /// The answer, if there is one.
    pub(super) fn answer(&self) -> Option<Answer> {
        if self.state.load(Ordering::Acquire) == OPEN { None } else { self.inner().answer }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    pub(super) fn set_answer(&self, answer: Answer) -> Sleepers {
        self.change(ANSWERED, Some(answer))
    }

    pub(super) fn set_lost(&self) -> Sleepers {
        self.change(LOST, None)
    }

    fn change(&self, state: u8, answer: Option<Answer>) -> Sleepers {
        let mut inner = self.inner();
        inner.answer = inner.answer.or(answer);
        self.state.store(state, Ordering::Release);
        let wakers = std::mem::take(&mut inner.wakers);
        let asleep = inner.asleep;
        drop(inner);
        if asleep > 0 {
            self.changed.notify_all();
        }
        Sleepers(wakers)
    }

    /// Sleeps until `done`, or until the time is over.
    pub(super) fn sleep(&self, time: Duration, done: impl Fn(&Self) -> bool) {
        let mut inner = self.inner();
        if !done(self) {
            inner.asleep += 1;
            // Woken early or for nothing: the caller looks again.
            let woken = self.changed.wait_timeout(inner, time);
            woken.unwrap_or_else(PoisonError::into_inner).0.asleep -= 1;
        }
    }

    /// A slot for one more future.
    pub(super) fn slot(&self) -> Slot {
        let mut inner = self.inner();
        inner.slots += 1;
        Slot(inner.slots)
    }

    /// Leaves a waker, instead of the last one in this slot, unless it is `done`: whether it is.
    pub(super) fn is_done_or_wakes(&self, slot: Slot, waker: &Waker, done: impl Fn(&Self) -> bool) -> bool {
        if done(self) {
            return true;
        }
        let new = waker.clone();
        // Dropped after unlocking.
        let _unused = {
            let mut inner = self.inner();
            if done(self) {
                return true;
            }
            match inner.wakers.iter_mut().find(|(of, _)| *of == slot) {
                Some((_, known)) if known.will_wake(waker) => Some(new),
                Some((_, known)) => Some(std::mem::replace(known, new)),
                None => {
                    inner.wakers.push((slot, new));
                    None
                }
            }
        };
        false
    }

    /// The future of this slot is gone.
    pub(super) fn leave(&self, slot: Slot) {
        let mut inner = self.inner();
        let at = inner.wakers.iter().position(|(of, _)| *of == slot);
        let waker = at.map(|at| inner.wakers.swap_remove(at));
        drop(inner);
        drop(waker);
    }

    /// Whether there is an answer.
    pub(super) fn is_answered(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    #[cfg(test)]
    pub(super) fn wakers(&self) -> usize {
        self.inner().wakers.len()
    }
}
