//! One request as its task sees it: the answer, and whether what was granted has been lost since.
//!
//! A task looks at one byte while it polls, sleeps on a condition variable when it has polled long enough, or leaves a
//! waker.

use lockwork_lockservice::packet::Problem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
}

const OPEN: u8 = 0;
const ANSWERED: u8 = 1;
const LOST: u8 = 2;

#[derive(Debug, Default)]
struct Inner {
    answer: Option<Answer>,
    wakers: Vec<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Wait {
    state: AtomicU8,
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Wait {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if there is one.
    pub(super) fn answer(&self) -> Option<Answer> {
        if self.state.load(Ordering::Acquire) == OPEN { None } else { self.inner().answer }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    pub(super) fn set_answer(&self, answer: Answer) {
        self.change(ANSWERED, Some(answer));
    }

    pub(super) fn set_lost(&self) {
        self.change(LOST, None);
    }

    fn change(&self, state: u8, answer: Option<Answer>) {
        let mut inner = self.inner();
        inner.answer = inner.answer.or(answer);
        self.state.store(state, Ordering::Release);
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Sleeps until `done`, or until the time is over.
    pub(super) fn sleep(&self, time: Duration, done: impl Fn(&Self) -> bool) {
        let inner = self.inner();
        if !done(self) {
            // Woken early or for nothing: the caller looks again.
            drop(self.changed.wait_timeout(inner, time));
        }
    }

    /// Leaves a waker, unless it is `done`: whether it is.
    pub(super) fn is_done_or_wakes(&self, waker: &Waker, done: impl Fn(&Self) -> bool) -> bool {
        let mut inner = self.inner();
        if done(self) {
            return true;
        }
        if !inner.wakers.iter().any(|known| known.will_wake(waker)) {
            inner.wakers.push(waker.clone());
        }
        false
    }

    /// Whether there is an answer.
    pub(super) fn is_answered(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }
}
