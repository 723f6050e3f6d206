//! Graph plans: for transactions that touch several records and cannot be cut into pieces.
//!
//! Every record has a queue of *groups* in batch order: neighbours that may hold it together (readers, say) are one
//! group, a writer is a group alone. A transaction may run when it is in the first group of every one of its records;
//! when it has run it leaves its groups, and when a group is empty the next one moves up. This is the ordered lock
//! queue of Calvin with all requests known beforehand, so that it is built by every worker for its own partition of
//! the records without a lock, and taken down with one atomic decrement an access.
//!
//! Five steps, with a barrier after each of the first four. *Find*: each worker finds the claims of its share and notes
//! them in its filter (`filter.rs`). *Add up*: the filters are merged, so that claims without a conflict are left out.
//! *Deal*: each worker deals its other claims out by record. *Plan*: each worker builds the queues of its partition.
//! *Execute*: each worker runs ready transactions; a worker that makes a transaction ready runs it next, because its
//! cache holds the record.
//!
//! Invariants: a transaction's count is one (taken by whoever scans the batch) plus the groups it is in that are not
//! first, so it comes to zero once. A transaction touches each record once: access sets are merged when they are found.
//! Granules of tables are records, too (`read_write_set.rs`), so that a scan sees all or nothing of a transaction, rows
//! that come and go included.
//!
//! **Predictions are always valid.** Accesses of dependent transactions, and ends of scans, are found on the database
//! as it is before the plan (`reconnaissance.rs`); a transaction before them in the batch may change what they were
//! found by. The planner of that record sees it: the queue is in batch order, and says what was to be done to the
//! record so far. The part is *cut* before the first such transaction: what is before it runs, and the rest is planned
//! again, on what the database is then. The first transaction of a plan has nothing before it, so every plan runs at
//! least one. What is before the cut was found rightly (by induction: every change to what it was found by would be
//! claimed by a transaction before it), so nothing is verified while transactions run and nothing taken back, and batch
//! order stays. A transaction whose claims are unknown runs alone: the part is cut before and behind it.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::Worker;
use super::filter::Filter;
use super::pipeline::execute;
use super::read_write_set::{Claim, Granules, Hold, ReadWriteSet};
use super::reconnaissance::Reconnaissance;
use crate::blocks::Blocks;
use crate::host_engine::Core;
use crate::recipe::{Lines, Recipe};
use crate::team::{Backoff, Barrier, Team, share};

const NONE: u32 = u32::MAX;
/// How often a worker without a transaction looks again before it lets others run.
const SPINS: u32 = 1_000;
/// Transactions that a worker takes from the batch at a time.
const PIECE: usize = 64;

/// Transactions that a worker explores, before it deals out what they claim.
const EXPLORED_AT_ONCE: usize = 128;

/// A claim on its way from the worker that found it to the one that plans its record.
#[derive(Clone, Copy, Debug)]
struct DealtClaim {
    record: u64,
    /// Transaction, counted from the start of the part.
    transaction: u32,
    hold: Hold,
    changes: u8,
    invalidated_by: u8,
}

/// A transaction's place in a group.
#[derive(Clone, Copy, Debug)]
struct Member {
    transaction: u32,
    group: u32,
    next_of_group: u32,
    next_of_transaction: u32,
}

/// Transactions that hold a record together.
#[derive(Debug)]
struct Group {
    /// Members that have not run yet.
    running: AtomicU32,
    first_member: u32,
    next_group: u32,
    /// Another group of the record came before it.
    follows: bool,
}

/// The last group of a record, in the planner's table, and what all of them do to it.
#[derive(Clone, Copy, Debug)]
struct Tail {
    record: u64,
    epoch: u32,
    group: u32,
    hold: Hold,
    changes: u8,
}

impl Tail {
    const NONE: Self = Self { record: 0, epoch: 0, group: 0, hold: Hold::ReadWithin, changes: 0 };
}

/// The queues of one partition.
#[derive(Debug, Default)]
struct Plan {
    tails: Vec<Tail>,
    epoch: u32,
    groups: Vec<Group>,
    members: Vec<Member>,
    /// For each transaction, its first member here.
    first: Vec<u32>,
}

/// What one worker deals out: a list for each partition.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Lane(UnsafeCell<Vec<DealtClaim>>);

// SAFETY: one worker writes it when it deals, and one reads it when it plans, with a barrier between.
unsafe impl Sync for Lane {}

/// What a worker needs to find claims.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Finder {
    read_write_set: ReadWriteSet,
    reconnaissance: Reconnaissance,
    /// All claims of its share, in batch order.
    claims: Vec<DealtClaim>,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Shared<T>(UnsafeCell<T>);

// SAFETY: written by its own worker in the second phase and only read, but for atomics, in the third.
unsafe impl<T: Send> Sync for Shared<T> {}

#[derive(Debug, Default)]
pub(super) struct Graph {
    lanes: Vec<Lane>,
    plans: Vec<Shared<Plan>>,
    waits: Vec<AtomicU32>,
    finders: Vec<Mutex<Finder>>,
    filter: Filter,
    granules: Granules,
}

/// What became of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    /// Transactions that ran: all of them, or those before the cut.
    pub(super) ran: usize,
    /// Nanoseconds of the first two phases.
    pub(super) planning_ns: u64,
}

impl Plan {
    fn begin(&mut self, claims: usize, transactions: usize) {
        self.groups.clear();
        self.members.clear();
        self.first.clear();
        self.first.resize(transactions, NONE);
        self.epoch = self.epoch.wrapping_add(1);
        let size = (2 * claims + 16).next_power_of_two();
        if self.tails.len() < size || self.epoch == 0 {
            self.tails.clear();
            self.tails.resize(size, Tail::NONE);
            self.epoch = 1;
        }
    }

    /// Appends a wish to the queue of its record. Returns whether the transaction has to wait for that record, or
    /// nothing if what it minds may have been done by then.
    #[inline(always)]
    fn append(&mut self, wish: DealtClaim) -> Option<bool> {
        let mask = self.tails.len() - 1;
        // Partitions take the top bits, so the low ones spread within a partition.
        let mut slot = wish.record as usize & mask;
        while self.tails[slot].epoch == self.epoch && self.tails[slot].record != wish.record {
            slot = (slot + 1) & mask;
        }
        let mut tail = self.tails[slot];
        let known = tail.epoch == self.epoch;
        if !known {
            tail = Tail { record: wish.record, epoch: self.epoch, ..Tail::NONE };
        }
        if wish.invalidated_by & tail.changes != 0 {
            return None;
        }
        tail.changes |= wish.changes;
        let joins = known && wish.hold.compatible(tail.hold);
        let number = self.members.len() as u32;
        let group = if joins {
            let group = &mut self.groups[tail.group as usize];
            *group.running.get_mut() += 1;
            tail.hold = tail.hold.join(wish.hold);
            tail.group
        } else {
            let group = self.groups.len() as u32;
            let running = AtomicU32::new(1);
            self.groups.push(Group { running, first_member: NONE, next_group: NONE, follows: known });
            if known {
                self.groups[tail.group as usize].next_group = group;
            }
            (tail.group, tail.hold) = (group, wish.hold);
            group
        };
        self.tails[slot] = tail;
        let first = &mut self.first[wish.transaction as usize];
        let next_of_group = self.groups[group as usize].first_member;
        self.members.push(Member { transaction: wish.transaction, group, next_of_group, next_of_transaction: *first });
        *first = number;
        self.groups[group as usize].first_member = number;
        Some(self.groups[group as usize].follows)
    }
}

/// Everything the workers share while one part of a batch runs.
struct Job<'a> {
    graph: &'a Graph,
    core: &'a Core,
    blocks: Blocks,
    range: Range<usize>,
    size: usize,
    window: usize,
    stable: bool,
    barrier: Barrier,
    /// The first transaction that must not run yet.
    cut: AtomicUsize,
    next: AtomicUsize,
    finished: AtomicUsize,
    planning_ns: AtomicU64,
}

impl Graph {
    /// Runs the blocks of `range` up to the first that cannot be planned with those before it. None at all if that is
    /// the first one; then it can only run alone.
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    pub(super) fn run(
        &mut self,
        workers: &[Mutex<Worker>],
        core: &Core,
        team: &Team,
        blocks: Blocks,
        range: Range<usize>,
        window: usize,
        stable: bool,
    ) -> Planned {
        let size = team.size();
        self.granules.prepare(&core.registry, &core.database);
        self.finders.resize_with(self.finders.len().max(size), Mutex::default);
        let claims = |finder: &mut Mutex<Finder>| finder.get_mut().expect("no worker panicked").claims.len();
        let claims = self.finders.iter_mut().map(claims).sum::<usize>();
        self.filter.prepare(size, claims.max(2 * range.len()));
        self.lanes.resize_with(self.lanes.len().max(size * size), Lane::default);
        self.plans.resize_with(self.plans.len().max(size), Shared::default);
        self.waits.resize_with(self.waits.len().max(range.len()), AtomicU32::default);
        for waits in &mut self.waits[..range.len()] {
            *waits.get_mut() = 1;
        }
        let job = Job {
            graph: self,
            core,
            blocks,
            range,
            size,
            window,
            stable,
            barrier: Barrier::new(size),
            cut: AtomicUsize::new(usize::MAX),
            next: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            planning_ns: AtomicU64::new(0),
        };
        team.run(&|number| {
            let _watch = job.barrier.watch();
            let worker = &mut *workers[number].lock().expect("no worker panicked");
            let start = Instant::now();
            job.find(number);
            job.barrier.wait();
            // SAFETY: all claims were noted, and nobody asks before the next barrier.
            unsafe { job.graph.filter.add_up(number, size) };
            job.barrier.wait();
            job.deal(number);
            job.barrier.wait();
            job.plan(number);
            job.barrier.wait();
            job.planning_ns.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            Runner { job: &job, worker, ready: VecDeque::new(), flying: VecDeque::new(), lines: Lines::default() }
                .run();
        });
        let planned = Planned { ran: job.total(), planning_ns: job.planning_ns.load(Ordering::Relaxed) };
        let finders = self.finders.iter_mut().map(|finder| finder.get_mut().expect("no worker panicked"));
        self.granules.follow(finders.map(|finder| &mut finder.read_write_set));
        planned
    }
}

impl Job<'_> {
    /// How many transactions of the part run. Settled when the second phase is over.
    fn total(&self) -> usize {
        self.cut.load(Ordering::Relaxed).min(self.range.len())
    }

    /// First phase: the claims of this worker's share.
    fn find(&self, number: usize) {
        // SAFETY: this is that worker.
        let bits = unsafe { self.graph.filter.begin(number) };
        let finder = &mut *self.graph.finders[number].lock().expect("no worker panicked");
        finder.claims.clear();
        let mine = share(&(0..self.range.len()), number, self.size);
        let mut dependent = Vec::with_capacity(EXPLORED_AT_ONCE);
        for start in mine.clone().step_by(EXPLORED_AT_ONCE) {
            let chunk = start..(start + EXPLORED_AT_ONCE).min(mine.end);
            let call = |transaction: usize| {
                let index = self.range.start + transaction;
                Some((self.blocks.registered(self.core, index)?, self.blocks.at(index).cast_const()))
            };
            dependent.clear();
            dependent
                .extend(chunk.clone().filter_map(call).filter(|(registered, _)| registered.needs_reconnaissance()));
            // SAFETY: blocks are their procedures', and nobody writes anything before the third phase.
            unsafe { finder.reconnaissance.explore(&dependent, self.window) };
            let mut explored = 0;
            for transaction in chunk {
                let Some((registered, block)) = call(transaction) else { continue };
                finder.read_write_set.clear();
                let read_write_set = &mut finder.read_write_set;
                let known = if registered.needs_reconnaissance() {
                    explored += 1;
                    finder.reconnaissance.claim(explored - 1, &self.graph.granules, registered, read_write_set)
                } else {
                    // SAFETY: as above.
                    unsafe { read_write_set.collect(&self.graph.granules, registered, block) }
                };
                if !known {
                    // It runs alone, or at least first.
                    self.cut.fetch_min(transaction, Ordering::Relaxed);
                    return;
                }
                for &Claim { record, hold, changes, invalidated_by } in read_write_set.claims() {
                    self.graph.filter.note(bits, record, hold);
                    finder.claims.push(DealtClaim {
                        record,
                        transaction: transaction as u32,
                        hold,
                        changes,
                        invalidated_by,
                    });
                }
            }
        }
    }

    /// The third step: deals out by record the claims that may conflict.
    fn deal(&self, number: usize) {
        let lanes = &self.graph.lanes[number * self.size..][..self.size];
        let mut dealt: Vec<_> = lanes
            .iter()
            .map(|lane| {
                // SAFETY: until the barrier behind this step a worker's lanes are its own.
                let lane = unsafe { &mut *lane.0.get() };
                lane.clear();
                lane
            })
            .collect();
        let finder = self.graph.finders[number].lock().expect("no worker panicked");
        for wish in &finder.claims {
            // SAFETY: the bits were added up.
            if unsafe { self.graph.filter.may_conflict(wish.record) } {
                // The top bits choose the partition.
                let partition = ((u128::from(wish.record) * self.size as u128) >> 64) as usize;
                dealt[partition].push(*wish);
            }
        }
    }

    /// Second phase: the queues of this worker's partition, in batch order.
    fn plan(&self, number: usize) {
        // SAFETY: in the second phase a plan is its own worker's.
        let plan = unsafe { &mut *self.graph.plans[number].0.get() };
        // SAFETY: the first phase is over; lanes are only read.
        let lane = |from: usize| unsafe { &*self.graph.lanes[from * self.size + number].0.get() };
        plan.begin((0..self.size).map(|from| lane(from).len()).sum(), self.range.len());
        for wish in (0..self.size).flat_map(lane) {
            match plan.append(*wish) {
                Some(true) => {
                    self.graph.waits[wish.transaction as usize].fetch_add(1, Ordering::Relaxed);
                }
                Some(false) => {}
                None => {
                    self.cut.fetch_min(wish.transaction as usize, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    /// The transaction has run: it leaves its groups. Whoever can run now is appended to `ready`.
    fn leave(&self, transaction: u32, ready: &mut VecDeque<u32>) {
        for plan in &self.graph.plans[..self.size] {
            // SAFETY: the second phase is over; plans are only read, but for atomics.
            let plan = unsafe { &*plan.0.get() };
            let mut number = plan.first[transaction as usize];
            while number != NONE {
                let member = plan.members[number as usize];
                number = member.next_of_transaction;
                let group = &plan.groups[member.group as usize];
                if group.running.fetch_sub(1, Ordering::AcqRel) == 1 && group.next_group != NONE {
                    self.admit(plan, group.next_group, ready);
                }
            }
        }
    }

    /// A group has become the first of its record.
    fn admit(&self, plan: &Plan, group: u32, ready: &mut VecDeque<u32>) {
        let mut number = plan.groups[group as usize].first_member;
        while number != NONE {
            let member = plan.members[number as usize];
            number = member.next_of_group;
            if self.count_down(member.transaction) {
                ready.push_back(member.transaction);
            }
        }
    }

    #[inline(always)]
    fn count_down(&self, transaction: u32) -> bool {
        self.graph.waits[transaction as usize].fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A ready transaction on its way through the stages of looking ahead.
struct Flying {
    transaction: u32,
    looked_up: bool,
    words: [u64; Flying::WIDTH],
}

impl Flying {
    /// Accesses of a transaction that are looked up ahead; further ones are left to execution.
    const WIDTH: usize = 16;
}

/// Third phase of one worker.
struct Runner<'a> {
    job: &'a Job<'a>,
    worker: &'a mut Worker,
    /// Transactions that this worker made ready.
    ready: VecDeque<u32>,
    flying: VecDeque<Flying>,
    lines: Lines,
}

impl Runner<'_> {
    fn run(mut self) {
        let job = self.job;
        let distance = (job.window / 2).clamp(1, 16);
        let (mut piece, mut backoff) = (0..0, Backoff::of(job.size, SPINS));
        loop {
            match self.next(&mut piece) {
                Some(transaction) => {
                    backoff.renew();
                    self.take_off(transaction);
                    if self.flying.len() > distance {
                        let middle = self.flying.len() - 1 - distance;
                        self.look_up(middle);
                    }
                    if self.flying.len() > 2 * distance || job.window == 0 {
                        self.land();
                    }
                }
                None if !self.flying.is_empty() => {
                    (0..self.flying.len()).for_each(|number| self.look_up(number));
                    self.land();
                }
                None if job.finished.load(Ordering::Acquire) == job.total() => return,
                // Perhaps for somebody whom the system does not let run.
                None => {
                    job.barrier.check();
                    backoff.wait();
                }
            }
        }
    }

    /// The next transaction that can run, if there is one now.
    fn next(&mut self, piece: &mut Range<usize>) -> Option<u32> {
        if let Some(transaction) = self.ready.pop_front() {
            return Some(transaction);
        }
        let total = self.job.total();
        loop {
            for transaction in piece.by_ref() {
                if self.job.count_down(transaction as u32) {
                    return Some(transaction as u32);
                }
            }
            if self.job.next.load(Ordering::Relaxed) >= total {
                return None;
            }
            let start = self.job.next.fetch_add(PIECE, Ordering::Relaxed);
            *piece = start.min(total)..(start + PIECE).min(total);
        }
    }

    /// The procedure of a transaction, if its rows are looked up ahead, and whether they are found for good.
    #[inline(always)]
    fn looked_up<'a>(job: &'a Job<'_>, transaction: u32) -> Option<(&'a Recipe, bool)> {
        let registered = job.blocks.registered(job.core, job.range.start + transaction as usize)?;
        Some((registered.recipe()?, job.stable || registered.is_steady()))
    }

    /// First stage: buckets.
    fn take_off(&mut self, transaction: u32) {
        let mut flying = Flying { transaction, looked_up: self.job.window == 0, words: [0; Flying::WIDTH] };
        let index = self.job.range.start + transaction as usize;
        if self.job.window > 0
            && let Some((recipe, stable)) = Self::looked_up(self.job, transaction)
        {
            // SAFETY: the block is the procedure's.
            unsafe { recipe.start(self.job.blocks.at(index), &mut flying.words, stable, &mut self.lines) }
            self.lines.fetch();
        }
        self.flying.push_back(flying);
    }

    /// Second stage: rows.
    fn look_up(&mut self, number: usize) {
        let flying = &mut self.flying[number];
        if std::mem::replace(&mut flying.looked_up, true) {
            return;
        }
        let index = self.job.range.start + flying.transaction as usize;
        if let Some((recipe, stable)) = Self::looked_up(self.job, flying.transaction) {
            // SAFETY: the block is the procedure's; where it is stable, keys neither come nor go.
            unsafe {
                let lines = Some(&mut self.lines);
                recipe.look_up(self.job.blocks.at(index), &mut flying.words, stable, lines);
            }
            self.lines.fetch();
        }
    }

    /// Third stage: execution, and what it makes ready.
    fn land(&mut self) {
        let flying = self.flying.pop_front().expect("somebody is flying");
        let known = self.job.window > 0 && Self::looked_up(self.job, flying.transaction).is_some_and(|found| found.1);
        let hints = if known { &flying.words[..] } else { &[] };
        let index = self.job.range.start + flying.transaction as usize;
        execute(self.job.core, &mut self.worker.executor, self.job.blocks, index, hints);
        self.job.leave(flying.transaction, &mut self.ready);
        self.job.finished.fetch_add(1, Ordering::Release);
    }
}
