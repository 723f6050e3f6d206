//! The `deterministic-queue` engine: ordered lock queues and one scheduler, as in Calvin and HOBBES (section 3.2.1).
//!
//! The scheduler asks for all locks of a transaction at once, in batch order, from [`lockwork_locking::queue`]; a
//! transaction that has all of them goes to a worker; when it has run, the scheduler releases its locks and sends out
//! whoever got the last of theirs. Because requests are queued in batch order, the execution is equivalent to it.
//!
//! This is the engine that the thesis starts from, built without its overheads (no allocation for a request, workers
//! fed through rings); its limit is the one scheduling thread, which is what [`crate::deterministic`] does away with.
//! With one thread the scheduler executes by itself, and so it does while no worker has anything to give back: a worker
//! that the system does not let run holds up what it has been sent and nothing else, and many workers are sent little
//! each.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use lockwork_locking::queue::QueueLocks;
use lockwork_locking::{LockId, Owner, Request};
use lockwork_procedure::block::Batch;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::blocks::Blocks;
use crate::contract::{BatchReport, Options, SerialOrder};
use crate::deterministic::{Claim, Granules, ReadWriteSet};
use crate::exclusive::Executor;
use crate::host_engine::{Core, Scheme};
use crate::team::{Backoff, Barrier, Team};

/// The most transactions that a ring to or from a worker holds.
const RING: usize = 256;
/// The most transactions that all rings to workers hold together, at least one each.
const SENT: usize = 512;
/// Transactions that may hold or wait for locks at the same time.
const ADMITTED: usize = 4096;
/// How often a thread that waits looks again before it lets others run.
const SPINS: u32 = 200;

/// See the module.
#[derive(Debug)]
pub struct DeterministicQueue {
    locks: QueueLocks,
    granules: Granules,
    executors: Vec<Mutex<Executor>>,
}

impl DeterministicQueue {
    /// An engine with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let executors = (0..options.threads).map(|_| Mutex::default()).collect();
        Self { locks: QueueLocks::hashed(1 << 16), granules: Granules::whole_tables(), executors }
    }
}

/// A worker's ends of its rings, until it takes them.
type Ends = Mutex<Option<(Consumer<u32>, Producer<u32>)>>;

/// Executes a transaction that holds the locks of everything it touches, or one that cannot be executed at all.
fn execute(core: &Core, executor: &mut Executor, blocks: Blocks, index: usize) {
    // SAFETY: no two transactions hold locks that conflict, so block and rows are this thread's alone.
    unsafe { blocks.execute(core, executor, index, &[]) }
}

impl Scheme for DeterministicQueue {
    const NAME: &'static str = "deterministic-queue";
    const ORDER: SerialOrder = SerialOrder::Batch;

    fn run(&mut self, core: &Core, team: &Team, batch: &mut Batch) -> BatchReport {
        for executor in &mut self.executors {
            executor.get_mut().expect("no worker panicked").prepare(&core.registry);
        }
        self.granules.prepare(&core.registry, &core.database);
        let blocks = Blocks::of(core, batch);
        let (mut to, mut work, mut from, mut done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let ring = (SENT / team.size()).clamp(1, RING);
        for _ in 1..team.size() {
            let (producer, consumer) = RingBuffer::<u32>::new(ring);
            to.push(producer);
            work.push(consumer);
            let (producer, consumer) = RingBuffer::<u32>::new(ring);
            done.push(producer);
            from.push(consumer);
        }
        let ends: Vec<Ends> = work.into_iter().zip(done).map(|ends| Mutex::new(Some(ends))).collect();
        let shared = Shared {
            core,
            blocks,
            stop: AtomicBool::new(false),
            barrier: Barrier::new(team.size()),
            backoff: Backoff::of(team.size(), SPINS),
        };
        let scheduler = Scheduler {
            shared: &shared,
            locks: &mut self.locks,
            wanted: ReadWriteSet::default(),
            granules: &self.granules,
            requests: Vec::new(),
            ready: VecDeque::new(),
            to,
            from,
            outstanding: 0,
            next_worker: 0,
        };
        let scheduler = Mutex::new(scheduler);
        let executors = &self.executors;
        team.run(&|number| {
            let _watch = shared.barrier.watch();
            let executor = &mut *executors[number].lock().expect("no worker panicked");
            if number == 0 {
                scheduler.lock().expect("one scheduler").run(executor);
                shared.stop.store(true, Ordering::Release);
            } else {
                let ends = ends[number - 1].lock().expect("one worker").take();
                let (work, done) = ends.expect("one worker takes them");
                shared.serve(executor, work, done);
            }
        });
        let mut report = BatchReport::default();
        for executor in &mut self.executors {
            report.tally.add(&executor.get_mut().expect("no worker panicked").tally);
        }
        report
    }
}

/// What the scheduler and the workers of one batch share.
struct Shared<'a> {
    core: &'a Core,
    blocks: Blocks,
    /// Whether nothing more comes.
    stop: AtomicBool,
    /// Tells of panics; nobody meets at it.
    barrier: Barrier,
    /// What everybody begins to wait with.
    backoff: Backoff,
}

impl Shared<'_> {
    /// A worker: executes what comes until the scheduler stops.
    fn serve(&self, executor: &mut Executor, mut work: Consumer<u32>, mut done: Producer<u32>) {
        let mut backoff = self.backoff;
        loop {
            let Ok(index) = work.pop() else {
                if self.stop.load(Ordering::Acquire) {
                    return;
                }
                self.wait(&mut backoff);
                continue;
            };
            backoff.renew();
            execute(self.core, executor, self.blocks, index as usize);
            // The scheduler empties this ring whenever it waits, so there is room soon.
            while done.push(index).is_err() {
                self.wait(&mut backoff);
            }
        }
    }

    /// Waits a little for the others.
    fn wait(&self, backoff: &mut Backoff) {
        self.barrier.check();
        backoff.wait();
    }
}

struct Scheduler<'a> {
    shared: &'a Shared<'a>,
    locks: &'a mut QueueLocks,
    wanted: ReadWriteSet,
    granules: &'a Granules,
    requests: Vec<Request>,
    /// Transactions that hold all their locks and have not been sent to a worker.
    ready: VecDeque<u32>,
    to: Vec<Producer<u32>>,
    from: Vec<Consumer<u32>>,
    /// Transactions that hold or wait for locks.
    outstanding: usize,
    next_worker: usize,
}

impl Scheduler<'_> {
    fn run(&mut self, executor: &mut Executor) {
        for index in 0..self.shared.blocks.len {
            match self.shared.blocks.registered(self.shared.core, index) {
                // Cannot be executed: closed as failed, touches nothing.
                None => execute(self.shared.core, executor, self.shared.blocks, index),
                Some(registered) if registered.traits.dependent => {
                    self.drain(executor, 0);
                    execute(self.shared.core, executor, self.shared.blocks, index);
                }
                Some(_) => {
                    self.admit(index as u32);
                    self.dispatch(executor);
                    self.collect();
                    self.drain(executor, ADMITTED);
                }
            }
        }
        self.drain(executor, 0);
    }

    /// Asks for all locks of a transaction.
    fn admit(&mut self, index: u32) {
        let registered =
            self.shared.blocks.registered(self.shared.core, index as usize).expect("it was looked at before");
        self.wanted.clear();
        // SAFETY: the block is the procedure's.
        let fits = unsafe { self.wanted.collect(self.granules, registered, self.shared.blocks.at(index as usize)) };
        debug_assert!(fits, "whole tables are never too wide");
        self.requests.clear();
        let request = |claim: &Claim| Request { id: LockId(claim.record), mode: claim.hold.lock_mode() };
        self.requests.extend(self.wanted.claims().iter().map(request));
        let granted = self.locks.lock(Owner(index), &self.requests).expect("a transaction asks once");
        if granted {
            self.ready.push_back(index);
        }
        self.outstanding += 1;
    }

    /// Sends ready transactions to workers, or executes them when there are none.
    fn dispatch(&mut self, executor: &mut Executor) {
        let workers = self.to.len();
        while workers == 0 && self.run_one(executor) {}
        while let Some(&index) = self.ready.front() {
            let sent = (0..workers).any(|turn| {
                let worker = (self.next_worker + turn) % workers;
                let sent = self.to[worker].push(index).is_ok();
                if sent {
                    self.next_worker = (worker + 1) % workers;
                }
                sent
            });
            if !sent {
                return;
            }
            self.ready.pop_front();
        }
    }

    /// Executes one ready transaction here. Returns whether there was one.
    fn run_one(&mut self, executor: &mut Executor) -> bool {
        let Some(index) = self.ready.pop_front() else { return false };
        execute(self.shared.core, executor, self.shared.blocks, index as usize);
        self.release(index);
        true
    }

    /// Takes back what workers have finished.
    fn collect(&mut self) {
        for worker in 0..self.from.len() {
            while let Ok(index) = self.from[worker].pop() {
                self.release(index);
            }
        }
    }

    fn release(&mut self, index: u32) {
        let ready = &mut self.ready;
        self.locks.release(Owner(index), |owner| ready.push_back(owner.0)).expect("it holds its locks");
        self.outstanding -= 1;
    }

    /// Waits until at most `most` transactions are outstanding.
    fn drain(&mut self, executor: &mut Executor, most: usize) {
        let mut backoff = self.shared.backoff;
        while self.outstanding > most {
            self.dispatch(executor);
            let before = self.outstanding;
            self.collect();
            if self.outstanding < before {
                backoff.renew();
            } else if !self.run_one(executor) {
                self.shared.wait(&mut backoff);
            }
        }
    }
}
