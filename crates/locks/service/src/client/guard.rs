//! A lock that is held.

use super::wait::{Slot, Wait};
use super::{LockError, LockName, Locks};
use lockwork_locking::LockMode;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A lock that is held until this is dropped, or until it is lost.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    locks: Locks,
    lock: u64,
    mode: LockMode,
    token: u64,
    pub(super) wait: Arc<Wait>,
    /// Asked for asynchronously: nobody sleeps until it is given back.
    late: bool,
}

/// How long one who waits for a loss sleeps at most before it looks at the lease itself.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Guard {
    pub(super) fn new(locks: Locks, lock: u64, mode: LockMode, token: u64, wait: Arc<Wait>, late: bool) -> Self {
        Self { locks, lock, mode, token, wait, late }
    }

    /// Which lock.
    #[must_use]
    pub const fn lock(&self) -> u64 {
        self.lock
    }

    /// By which name it was asked for, if by one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.wait.meaning().map(|(name, _)| &**name)
    }

    /// The lock as the caller named it.
    #[must_use]
    pub fn asked_for(&self) -> LockName {
        self.wait.meaning().map_or(LockName::Number(self.lock), |(name, _)| LockName::Name(name.clone()))
    }

    /// When this lock is lost unless the lease is renewed before, as a time of CLOCK_BOOTTIME; zero once it is lost.
    /// Another process can compare it with that clock, and end what must not run without the lock.
    #[must_use]
    pub fn held_until(&self) -> Duration {
        // Read first: once the lock is lost, the lease may be that of a later session.
        let until = self.locks.0.shared.lease_until();
        if self.is_lost() { Duration::ZERO } else { until }
    }

    /// In which mode.
    #[must_use]
    pub const fn mode(&self) -> LockMode {
        self.mode
    }

    /// The fencing token: larger than the token of every exclusive grant of this lock before, and not smaller than that
    /// of any grant before. Whoever is written to should refuse a token smaller than the largest it has seen.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Whether it is no longer held, as far as this process can know. Once true, it stays so.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        if !self.locks.0.owner.is_here() {
            return true;
        }
        if !self.wait.is_lost() && !self.locks.0.shared.has_lease() {
            self.wait.set_lost().wake();
        }
        self.wait.is_lost()
    }

    /// Waits until it is lost, or until the time is over: whether it is lost.
    #[must_use]
    pub fn wait_lost(&self, time: Duration) -> bool {
        let began = Instant::now();
        while !self.is_lost() {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            self.wait.sleep(left.min(POLL_INTERVAL), Wait::is_lost);
        }
        true
    }

    /// Is ready when the lock is lost.
    pub fn lost(&self) -> Lost<'_> {
        Lost { guard: self, slot: self.wait.slot() }
    }

    /// Makes an exclusive lock a shared one, without letting go: no writer comes between.
    ///
    /// # Errors
    /// [`LockError::NotExclusive`] if it is shared already, or lost.
    pub fn downgrade(&mut self) -> Result<(), LockError> {
        if !self.locks.0.owner.is_here() {
            return Err(LockError::NotExclusive(self.asked_for()));
        }
        let shared = &self.locks.0.shared;
        let mut core = shared.core();
        let request = core.number(&self.wait).filter(|_| self.mode == LockMode::Exclusive);
        let done = request.is_some_and(|request| core.node.downgrade(shared.now(), request).is_ok());
        drop(core);
        if !done {
            return Err(LockError::NotExclusive(self.asked_for()));
        }
        self.mode = LockMode::Shared;
        Ok(())
    }

    /// Refused: two readers that both become writers would wait for each other for ever.
    ///
    /// # Errors
    /// Always [`LockError::NoUpgrade`]; the guard holds what it held.
    pub const fn upgrade(&mut self) -> Result<(), LockError> {
        Err(LockError::NoUpgrade)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        give_back(&self.locks, &self.wait, self.late);
    }
}

/// Releases or withdraws a request, `late` if that may go out with what others send.
pub(super) fn give_back(locks: &Locks, wait: &Arc<Wait>, late: bool) {
    if locks.0.owner.is_here() && !locks.0.abandon.load(Ordering::Acquire) {
        let shared = &locks.0.shared;
        let mut core = if late { shared.core_late() } else { shared.core() };
        core.give_back(shared.now(), wait);
    }
}

/// The future of [`Guard::lost`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Lost<'a> {
    guard: &'a Guard,
    slot: Slot,
}

impl Future for Lost<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { guard, slot } = &*self;
        if guard.is_lost() || guard.wait.is_done_or_wakes(*slot, context.waker(), Wait::is_lost) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if self.guard.locks.0.owner.is_here() {
            self.guard.wait.leave(self.slot);
        }
    }
}
