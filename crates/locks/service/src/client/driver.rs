//! Who drives a session: the thread that waits for an answer, or else the background thread.
//!
//! A wake-up costs more than a round trip to the decider, so a task that waits looks at the socket itself: without
//! sleeping for some microseconds, then asleep in `ppoll`. While tasks do that, the background thread keeps away from
//! the socket, naps, and sees to what has no other reader: acknowledgements of what was given back, repetitions,
//! renewals.
//!
//! Where many asynchronous requests are under way, their packets go out together: the first wakes the background
//! thread, and what is added before it runs is of the same batch. So a packet costs its share of a system call and of a
//! wake-up at the other end, for the time that it takes to wake a thread.
//!
//! *Invariants*: whoever unlocks the session has sent what was to be sent, or has the background thread send it, and
//! told who waits, and wakes tasks after unlocking ([`Locked`]). At any time somebody will drive the session when its
//! next timer is due: a waiting task, the background thread in its nap, or the background thread in `ppoll` with that
//! time as its limit; who sets an earlier timer wakes it.

use super::core::Core;
use super::wait::Wait;
use crate::clock::Clock;
use crate::spinner::Spinner;
use crate::udp::wait_for;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long the background thread naps while tasks drive.
const BACKOFF: Duration = Duration::from_micros(100);
/// And while one of them sleeps at the socket.
const LONG_NAP: Duration = Duration::from_millis(1);
/// How long after the last task that drove, it looks at the socket itself again.
const QUIET_NS: u64 = 1_000_000;
/// The longest sleep of a task: after this it looks whether it should drive.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
/// Up to so many requests, each is sent at once.
const FEW: usize = 4;
/// How much later than a timer the background thread may notice it.
const LATE_NS: u64 = 1_000_000;
/// How long one who leaves waits for what is under way.
const FAREWELL: Duration = Duration::from_millis(50);
/// And without hearing of the service. If it is there, the end of the session frees what was held.
const SILENCE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
    clock: Clock,
    spin: Duration,
    spinner: Spinner,
    /// Until when guards are certainly held.
    lease_until: AtomicU64,
    /// When a task last drove.
    active: AtomicU64,
    /// A task sleeps at the socket.
    socket_waiter: AtomicBool,
    /// Until when the background thread sleeps, 0 while it does not.
    asleep_until: AtomicU64,
    /// The bell was rung for a batch since the background thread last woke up.
    rung: AtomicBool,
    stop: AtomicBool,
    abandon: AtomicBool,
    bell: OwnedFd,
}

impl Shared {
    pub(super) fn new(core: Core, clock: Clock, spin: Duration) -> std::io::Result<Self> {
        // SAFETY: a plain system call; its result is checked.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            lease_until: AtomicU64::new(core.node.lease_until()),
            core: Mutex::new(core),
            clock,
            spin,
            spinner: Spinner::default(),
            active: AtomicU64::new(0),
            socket_waiter: AtomicBool::new(false),
            asleep_until: AtomicU64::new(0),
            rung: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            abandon: AtomicBool::new(false),
            // SAFETY: just made, and nobody else's.
            bell: unsafe { OwnedFd::from_raw_fd(bell) },
        })
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    pub(super) fn core(&self) -> Locked<'_> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, core: Some(core), late: false }
    }

    /// As [`Shared::core`], for one who does not wait for what is sent: it may go out with what others send.
    pub(super) fn core_late(&self) -> Locked<'_> {
        let mut core = self.core();
        core.late = true;
        core
    }

    /// Whether the background thread will look after a batch soon; if so, it knows.
    fn takes_batch(&self, core: &Core) -> bool {
        if core.requests() <= FEW || self.socket_waiter.load(Ordering::Acquire) || !self.is_quiet() {
            return false;
        }
        // While the core is locked: if it is awake now, it locks the core again before it sleeps.
        if self.asleep_until.load(Ordering::SeqCst) != 0 && !self.rung.swap(true, Ordering::SeqCst) {
            self.ring();
        }
        !self.stop.load(Ordering::SeqCst)
    }

    /// No task has driven lately.
    fn is_quiet(&self) -> bool {
        self.now().saturating_sub(self.active.load(Ordering::Relaxed)) > QUIET_NS
    }

    fn try_core(&self) -> Option<Locked<'_>> {
        match self.core.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(core)) => {
                Some(Locked { shared: self, core: Some(core.into_inner()), late: false })
            }
            Ok(core) => Some(Locked { shared: self, core: Some(core), late: false }),
        }
    }

    /// Whether the lease certainly still runs.
    pub(super) fn has_lease(&self) -> bool {
        self.now() < self.lease_until.load(Ordering::Acquire)
    }

    /// When the lease ends unless it is renewed before, as a time of CLOCK_BOOTTIME.
    pub(super) fn lease_until(&self) -> Duration {
        self.clock.boot_time(self.lease_until.load(Ordering::Acquire))
    }

    /// What others see of the core without locking it, before it is unlocked.
    fn publish(&self, core: &Core) {
        let until = if core.node.is_over() { 0 } else { core.node.lease_until() };
        self.lease_until.store(until, Ordering::Release);
        let next = core.next_tick().unwrap_or(u64::MAX);
        if self.asleep_until.load(Ordering::SeqCst) > next.saturating_add(LATE_NS) {
            self.ring();
        }
    }

    fn try_drive(&self) {
        if let Some(mut core) = self.try_core() {
            core.drive(self.now());
        }
    }

    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes that live during the call, to a file that is open. If it fails the bell has rung already.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Waits until there is an answer: drives, then sleeps.
    pub(super) fn wait(&self, wait: &Wait) {
        let began = Instant::now();
        while self.spinner.pays() {
            if wait.is_answered() {
                return;
            }
            self.active.store(self.now(), Ordering::Relaxed);
            self.try_drive();
            // Where cores are fewer than those who want them, the decider may need this one.
            let long = self.spinner.let_others();
            if long && !self.spin.is_zero() {
                self.spinner.note_crowded();
            }
            if began.elapsed() >= self.spin {
                break;
            }
        }
        while !wait.is_answered() {
            if !self.socket_waiter.swap(true, Ordering::AcqRel) {
                self.lead(wait);
                self.socket_waiter.store(false, Ordering::Release);
            } else {
                wait.sleep(LONGEST_SLEEP, Wait::is_answered);
            }
        }
    }

    /// Sleeps at the socket until there is an answer.
    fn lead(&self, wait: &Wait) {
        while !wait.is_answered() {
            let (file, due) = {
                let mut core = self.core();
                core.drive(self.now());
                (core.endpoint.socket().as_raw_fd(), core.next_tick().unwrap_or(u64::MAX))
            };
            if wait.is_answered() {
                return;
            }
            let now = self.now();
            self.active.store(now, Ordering::Relaxed);
            sleep_at(file, Duration::from_nanos(due.saturating_sub(now)).min(LONGEST_SLEEP));
        }
    }

    /// The background thread, until it is stopped.
    pub(super) fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let socket_waiter = self.socket_waiter.load(Ordering::Acquire);
            if socket_waiter || !self.is_quiet() {
                std::thread::sleep(if socket_waiter { LONG_NAP } else { BACKOFF });
                self.try_drive();
                continue;
            }
            let (file, due) = {
                let mut core = self.core();
                core.drive(self.now());
                let due = core.next_tick().unwrap_or_else(|| self.now() + 1_000_000_000);
                // While the core is locked: who sets an earlier timer afterwards sees this.
                self.asleep_until.store(due, Ordering::SeqCst);
                (core.endpoint.socket().as_raw_fd(), due)
            };
            if !self.stop.load(Ordering::SeqCst) {
                self.sleep_until(file, due);
            }
            self.asleep_until.store(0, Ordering::SeqCst);
            self.rung.store(false, Ordering::SeqCst);
        }
        if !self.abandon.load(Ordering::Acquire) {
            self.leave();
        }
    }

    fn sleep_until(&self, file: RawFd, due: u64) {
        let bell = self.bell.as_raw_fd();
        let mut polls = [file, bell].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let time = Duration::from_nanos(due.saturating_sub(self.now()));
        let time = libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: two pollfds and a time, all alive during the call; no signal mask.
        unsafe { libc::ppoll(polls.as_mut_ptr(), 2, &raw const time, std::ptr::null()) };
        if polls[1].revents != 0 {
            let mut count = 0_u64;
            // SAFETY: eight bytes that live during the call, from a file that is open and does not block.
            unsafe { libc::read(bell, (&raw mut count).cast(), 8) };
        }
    }

    /// Ends the background thread, with a farewell; without one if `abandon`, as if the process had been killed.
    pub(super) fn stop(&self, abandon: bool) {
        self.abandon.store(abandon, Ordering::Release);
        self.stop.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Gives back what is on its way back, and ends the session.
    fn leave(&self) {
        let mut core = self.core();
        if core.node.is_over() {
            return;
        }
        let file = core.endpoint.socket().as_raw_fd();
        let began = Instant::now();
        let (mut heard, mut last) = (0, began);
        loop {
            core.drive(self.now());
            core.flush();
            let received = core.node.counters().received;
            if received != heard {
                (heard, last) = (received, Instant::now());
            }
            if core.is_idle() || last.elapsed() >= SILENCE || began.elapsed() >= FAREWELL {
                break;
            }
            sleep_at(file, Duration::from_millis(2));
        }
        for _ in 0..5 {
            core.leave();
            sleep_at(file, Duration::from_millis(5));
            core.drive(self.now());
            if core.left {
                break;
            }
        }
    }
}

/// The session, locked. Unlocking sends, tells who waits, and then wakes tasks, who may lock it again.
pub(super) struct Locked<'a> {
    shared: &'a Shared,
    /// `None` while it is dropped.
    core: Option<MutexGuard<'a, Core>>,
    /// What is to be sent may go out with what others send.
    late: bool,
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core.as_ref().expect("locked until dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("locked until dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.late && self.shared.takes_batch(self) {
            self.collect();
        } else {
            self.flush();
        }
        self.shared.publish(self);
        let sleepers = std::mem::take(&mut self.sleepers);
        self.core = None;
        sleepers.wake();
    }
}

fn sleep_at(file: RawFd, time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() };
    wait_for(file, libc::POLLIN, &time);
}
