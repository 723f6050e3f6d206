//! A team of worker threads that run one job together.
//!
//! The threads live as long as the team. Between jobs they spin for a moment and then sleep, so that batches that
//! follow each other closely cost no system call and an idle engine costs nothing. The thread that calls [`Team::run`]
//! is worker 0.
//!
//! Invariant: [`Team::run`] returns only when every worker has left the job, so a job may borrow from its caller.
//! A panic of a worker is passed on to the caller. Workers that wait for each other can watch a barrier
//! ([`Barrier::watch`]), so that nobody waits for one that panicked.

use std::cell::UnsafeCell;
use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};

/// How often a waiting thread looks again before it lets others run.
const SPINS: u32 = 2_000;
/// How often a worker without a job lets others run before it sleeps.
const YIELDS: u32 = 50;

type Job<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// Number of the current job; a change starts the workers.
    generation: AtomicUsize,
    /// Workers still in the job.
    running: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    asleep: Vec<AtomicBool>,
    job: UnsafeCell<Option<*const Job<'static>>>,
}

// SAFETY: `job` is written only by the caller of `run` while no worker is in a job, and read only by workers
// after they have seen the generation that was stored after the write.
unsafe impl Sync for Shared {}
// SAFETY: the job behind the pointer is Sync.
unsafe impl Send for Shared {}

/// Worker threads. [`Team::solo`] has none but its caller.
pub struct Team {
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
}

impl Team {
    /// A team of `size` workers, the caller of [`Self::run`] included.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn new(size: usize) -> std::io::Result<Self> {
        if size <= 1 {
            return Ok(Self::solo());
        }
        let shared = Arc::new(Shared {
            generation: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            asleep: (0..size).map(|_| AtomicBool::new(false)).collect(),
            job: UnsafeCell::new(None),
        });
        let mut team = Self { shared: Some(shared.clone()), threads: Vec::new(), handles: Vec::new() };
        for worker in 1..size {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("lockwork-{worker}"));
            let thread = builder.spawn(move || work(&shared, worker))?;
            team.handles.push(thread.thread().clone());
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// The caller alone.
    #[must_use]
    pub const fn solo() -> Self {
        Self { shared: None, threads: Vec::new(), handles: Vec::new() }
    }

    /// How many workers there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job(worker)` once for every worker number from 0 to `size`, at the same time, and waits for all.
    ///
    /// # Panics
    /// When a worker panics.
    pub fn run(&self, job: &Job<'_>) {
        let Some(shared) = &self.shared else { return job(0) };
        // SAFETY: the lifetime is forgotten only until this function returns, which it does after every worker has left
        // the job.
        let forgotten: *const Job<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(job)) };
        // SAFETY: no worker is in a job, so nobody reads.
        unsafe { *shared.job.get() = Some(forgotten) };
        shared.running.store(self.threads.len(), Ordering::Relaxed);
        // Sequentially consistent with the sleepers' flag: either the worker sees the new generation, or we see it
        // asleep.
        shared.generation.fetch_add(1, Ordering::SeqCst);
        for (thread, asleep) in self.handles.iter().zip(&shared.asleep[1..]) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        wait_until(self.size(), || shared.running.load(Ordering::Acquire) == 0);
        match mine {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => assert!(!shared.panicked.load(Ordering::Relaxed), "a worker thread panicked"),
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.stop.store(true, Ordering::SeqCst);
            shared.generation.fetch_add(1, Ordering::SeqCst);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker that panicked has told its caller already.
            drop(thread.join());
        }
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        wait_for_job(shared, worker, seen);
        seen = shared.generation.load(Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the generation was stored after the job, and the caller keeps the job alive until `running` is zero.
        let job = unsafe { &*(*shared.job.get()).expect("a job goes with every generation") };
        if catch_unwind(AssertUnwindSafe(|| job(worker))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

fn wait_for_job(shared: &Shared, worker: usize, seen: usize) {
    let changed = || shared.generation.load(Ordering::SeqCst) != seen;
    for _ in 0..YIELDS {
        for _ in 0..SPINS {
            if changed() {
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
    shared.asleep[worker].store(true, Ordering::SeqCst);
    while !changed() {
        std::thread::park();
    }
    shared.asleep[worker].store(false, Ordering::SeqCst);
}

/// The share of worker `number` when `team` workers divide `range` in order.
#[must_use]
pub fn share(range: &Range<usize>, number: usize, team: usize) -> Range<usize> {
    let at = |number: usize| range.start + range.len() * number / team;
    at(number)..at(number + 1)
}

/// Waits, without sleeping, until `ready`, for others of a job of so many workers.
pub fn wait_until(workers: usize, ready: impl Fn() -> bool) {
    let mut backoff = Backoff::of(workers, SPINS);
    while !ready() {
        backoff.wait();
    }
}

/// How often somebody who waits looks again before letting others run, perhaps those that are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    spins: u32,
    most: u32,
}

impl Backoff {
    /// So many looks where every worker of a job can have a core. Where they are more than the cores, those that are
    /// waited for perhaps do not run because others look; so then none.
    #[must_use]
    pub fn of(workers: usize, looks: u32) -> Self {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get));
        Self { spins: 0, most: if workers <= cores { looks } else { 0 } }
    }

    /// Waits a little between two looks.
    #[inline]
    pub fn wait(&mut self) {
        if self.spins < self.most {
            self.spins += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// Begins anew: what was waited for has come.
    #[inline]
    pub fn renew(&mut self) {
        self.spins = 0;
    }
}

/// A barrier for the workers of one job.
#[derive(Debug)]
pub struct Barrier {
    size: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
}

/// See [`Barrier::watch`].
#[derive(Debug)]
pub struct Watch<'a>(&'a Barrier);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Relaxed: no data hangs on it, and who sees it leaves the job.
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

impl Barrier {
    /// A barrier for `size` workers.
    #[must_use]
    pub const fn new(size: usize) -> Self {
        Self { size, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }

    /// Breaks the barrier if the worker panics before it drops what this returns.
    #[must_use]
    pub const fn watch(&self) -> Watch<'_> {
        Watch(self)
    }

    /// Leaves the job, by a panic without a message of its own, if it is broken. Whoever waits for another worker by
    /// other means than [`Self::wait`] asks now and then.
    ///
    /// # Panics
    /// When the barrier is broken.
    #[inline]
    pub fn check(&self) {
        if self.broken.load(Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new("a worker thread panicked"));
        }
    }

    /// Waits for all the others. What any worker did before, every worker sees afterwards.
    ///
    /// # Panics
    /// When the barrier is broken.
    pub fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.fetch_add(1, Ordering::Release);
        } else {
            wait_until(self.size, || {
                self.check();
                self.round.load(Ordering::Acquire) != round
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_worker_runs_every_job_once_and_barriers_hold() {
        let team = Team::new(3).unwrap();
        for round in 0..200 {
            if round % 50 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let (count, barrier) = (AtomicU64::new(0), Barrier::new(3));
            team.run(&|worker| {
                count.fetch_add(1 << (worker * 8), Ordering::Relaxed);
                barrier.wait();
                assert_eq!(count.load(Ordering::Relaxed), 0x1_0101);
                barrier.wait();
            });
        }
    }

    #[test]
    #[should_panic(expected = "a worker thread panicked")]
    fn nobody_waits_at_a_barrier_for_a_worker_that_panicked() {
        let barrier = Barrier::new(3);
        Team::new(3).unwrap().run(&|worker| {
            let _watch = barrier.watch();
            assert_ne!(worker, 2, "the last one does not come");
            barrier.wait();
        });
    }

    #[test]
    #[should_panic(expected = "a worker thread panicked")]
    fn a_panic_of_a_worker_reaches_the_caller() {
        Team::new(2).unwrap().run(&|worker| assert_eq!(worker, 0));
    }
}
