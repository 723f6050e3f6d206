//! A partition worker: its own transactions and the requests of others, a step of each in turn.
//!
//! ```text
//! turn:  take in messages -> move background requests on -> step the transactions, and hand over what each has to say
//! ```
//!
//! A transaction is its slot. It goes the short way (`straight.rs`) if it can, else runs instruction by instruction
//! (`host.rs`), and is not looked at while it waits for nothing but other workers. One that conflicts lets everything
//! go, at once or when all that it sent is answered, and begins again under a new time.
//!
//! A worker that panics takes the others with it, who look for that whenever nothing moves: its partition would never
//! answer them.
//!
//! A worker that has nothing left of its own goes on serving the others until all are done. Nothing of a worker's is
//! under way then: it says that it is done only when everything that it sent is answered, or handed over.

use std::sync::atomic::{AtomicUsize, Ordering};

use lockwork_procedure::block::{Status, abort};
use lockwork_procedure::interpreter::{Answer, Context, Stop, run};

use super::bundle::Bundles;
use super::calm::Calm;
use super::clock::Clock;
use super::header::Ending;
use super::host::{Flight, TimestampHost};
use super::message::{Mail, Message, Return};
use super::partition::Partition;
use super::placement::Placement;
use super::straight::{self, Straight, Work};
use super::transaction::Transaction;
use crate::blocks::Blocks;
use crate::conflicts::Cause;
use crate::contract::{MAX_WINDOW, Options};
use crate::exclusive::{Executor, close, give_up};
use crate::host_engine::Core;
use crate::interleaved::{Concurrency, Turn, in_flight, turns_after, wipe};
use crate::recipe::Lines;
use crate::team::{Backoff, Barrier};

/// Turns in which nothing moved before a worker lets others run.
const SPINS: u32 = 200;
/// Transactions in flight for each that waits for nothing but memory: the others wait for other workers.
const FAR: usize = 8;

/// What the workers of one batch share.
pub(super) struct Shared<'a> {
    pub(super) core: &'a Core,
    pub(super) options: &'a Options,
    pub(super) blocks: Blocks,
    pub(super) placement: &'a Placement,
    pub(super) routes: super::Routes,
    /// All blocks are routed. It breaks when a worker panics, whenever that is.
    pub(super) routed: Barrier,
    pub(super) calm: Calm,
    /// Workers that still have transactions of their own.
    pub(super) busy: AtomicUsize,
}

/// A transaction in flight.
#[derive(Debug, Default)]
struct Slot {
    /// Its block; `None`: the slot is free.
    index: Option<usize>,
    procedure: u32,
    context: Context,
    registers: Vec<i64>,
    straight: Straight,
    flight: Flight,
    transaction: Transaction,
    /// What it ends with when everything that it sent is answered.
    ending: Option<Stop>,
    /// Turns to sit out.
    turns: u32,
    /// Whether it holds nothing yet, and may be told not to begin.
    fresh: bool,
}

/// A set of slots.
#[derive(Debug, Default)]
struct SlotSet(Vec<u64>);

impl SlotSet {
    /// All of so many slots, or none.
    fn reset(&mut self, slots: usize, all: bool) {
        self.0.clear();
        self.0.resize(slots.div_ceil(64), 0);
        (0..slots).filter(|_| all).for_each(|slot| self.put(slot));
    }

    #[inline(always)]
    fn put(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    #[inline(always)]
    fn take(&mut self, slot: usize) {
        self.0[slot / 64] &= !(1 << (slot % 64));
    }

    /// The first one from `from` on.
    #[inline(always)]
    fn next(&self, from: usize) -> Option<usize> {
        let mut bits = self.0.get(from / 64)? & u64::MAX << (from % 64);
        let mut word = from / 64;
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Worker {
    slots: Vec<Slot>,
    free: SlotSet,
    /// Slots whose transactions may have something to do: the others wait for nothing but other workers.
    awake: SlotSet,
    /// How many transactions wait for no other worker.
    near: usize,
    /// A CP window; what is in flight is kept in the slot.
    cps: Vec<()>,
    lines: Lines,
    concurrency: Concurrency,
    bundles: Bundles,
    pub(super) executor: Executor,
    pub(super) partition: Partition,
    pub(super) mail: Mail,
    pub(super) clock: Clock,
}

impl Worker {
    /// Prepares for a batch: `me` of `workers`, all of whose times are above `after`.
    pub(super) fn begin(&mut self, core: &Core, me: usize, workers: usize, after: u64) {
        self.clock = Clock::new(me, workers, after);
        self.executor.prepare(&core.registry);
        self.partition.begin(core.database.len());
        self.bundles.begin(workers);
    }

    /// Runs the blocks whose home is worker `me`, and what others want of its partition.
    pub(super) fn run(&mut self, shared: &Shared<'_>, me: usize) {
        let _watch = shared.routed.watch();
        let registry = &shared.core.registry;
        shared.route(me, &mut self.executor.tally);
        shared.routed.wait();
        let mut mine = shared.routes.take(me).into_iter();
        let (gp, cp) = registry.widest_windows();
        let most_near = in_flight(shared.options, registry);
        let far = if shared.placement.workers() > 1 && most_near > 1 { FAR } else { 1 };
        let most = (most_near * far).min(MAX_WINDOW);
        self.slots.resize_with(most, Slot::default);
        self.concurrency.begin(most);
        self.cps.resize(cp.max(self.cps.len()), ());
        for slot in &mut self.slots {
            slot.registers.resize(gp.max(slot.registers.len()), 0);
            slot.flight.widen(cp);
        }
        self.free.reset(most, true);
        self.awake.reset(most, false);
        self.near = 0;
        let interleave = shared.options.interleave;
        let mut turn = Turn::first(interleave);
        let (mut running, mut busy) = (0, true);
        let mut backoff = Backoff::of(shared.placement.workers(), SPINS);
        loop {
            let mut moved = self.take_in(shared);
            turn.fetch(&mut self.lines);
            self.partition.move_on(&shared.core.database, &mut self.mail);
            let before = running;
            let mut from = 0;
            while let Some(number) = self.awake.next(from) {
                from = number + 1;
                if self.advance(shared, me, number, turn) {
                    running -= 1;
                    moved = true;
                }
            }
            let mut takes = if turn.take { most_near } else { 0 };
            while takes > 0 && self.near < most_near && self.concurrency.has_room(running) {
                takes -= 1;
                let Some(number) = self.free.next(0) else { break };
                let Some(index) = mine.next() else { break };
                self.slots[number].begin(shared.blocks, index as usize);
                self.free.take(number);
                self.awake.put(number);
                self.near += 1;
                moved = true;
                running += usize::from(!self.advance(shared, me, number, turn));
            }
            turn = turn.next(interleave, before + running > 0 || moved).unwrap_or(turn);
            let handed_over = self.mail.flush();
            if busy && running == 0 && handed_over {
                busy = mine.len() > 0;
                if !busy {
                    // Releases what was handed over before.
                    shared.busy.fetch_sub(1, Ordering::Release);
                }
            }
            if !busy && shared.busy.load(Ordering::Acquire) == 0 {
                break;
            }
            if moved {
                backoff.renew();
            } else {
                shared.routed.check();
                backoff.wait();
            }
        }
        // What the others let go at last.
        self.take_in(shared);
        debug_assert!(self.partition.is_idle());
    }

    /// Runs one transaction as far as it comes, and notes what it waits for. Returns whether its slot is free again.
    #[inline(always)]
    fn advance(&mut self, shared: &Shared<'_>, me: usize, number: usize, turn: Turn) -> bool {
        self.near -= usize::from(self.slots[number].is_near());
        let ended = self.step(shared, me, number, turn);
        self.mail.flush();
        let slot = &self.slots[number];
        if ended {
            shared.calm.leave(me, number, slot.transaction.conflicts);
            self.concurrency.ended();
            self.free.put(number);
            self.awake.take(number);
        } else if slot.is_near() {
            self.near += 1;
        } else if slot.waits_for_others(shared.placement) {
            self.awake.take(number);
        }
        ended
    }

    /// Takes in what has arrived. Returns whether anything has.
    #[inline(always)]
    fn take_in(&mut self, shared: &Shared<'_>) -> bool {
        let Self { slots, awake, near, mail, partition, lines, bundles, .. } = self;
        lines.forget();
        let mut answered = |slot: &mut Slot, number: u16| {
            slot.transaction.outstanding -= 1;
            let all = slot.transaction.outstanding == 0;
            *near += usize::from(all);
            if all || !slot.is_straight(shared.placement) {
                awake.put(usize::from(number));
            }
        };
        mail.receive(|from, message| {
            let mut tell = |to: Return, answer: Answer| {
                let slot = &mut slots[usize::from(to.slot)];
                answered(slot, to.slot);
                if slot.is_straight(shared.placement) {
                    slot.straight.refused(from, answer, bundles);
                } else {
                    slot.flight.answered(from, to.cp, answer, &mut slot.transaction.held);
                }
            };
            match message {
                Message::Granted { slot, count, cps, rows } => {
                    let granted = cps.into_iter().zip(rows).take(usize::from(count));
                    granted.for_each(|(cp, row)| tell(Return { slot, cp }, Answer::Ready(row)));
                }
                Message::Fetched { slot: number } => {
                    let slot = &mut slots[usize::from(number)];
                    answered(slot, number);
                    let recipe = shared.core.registry.get(slot.procedure).expect("it runs").known();
                    let block = shared.blocks.at(slot.index.expect("it runs"));
                    // SAFETY: the block is this worker's, and of the procedure.
                    unsafe { slot.straight.fetched(from, recipe, block, lines, bundles) }
                }
                Message::Seen { to, row } => {
                    tell(to, Answer::Ready(row));
                    // It was noted as pinned once more.
                    slots[usize::from(to.slot)].transaction.held.pop();
                }
                Message::Missing { to, code } => tell(to, Answer::Missing(code)),
                Message::Conflict { to, above, cause } => {
                    tell(to, Answer::Conflict);
                    slots[usize::from(to.slot)].transaction.too_late(above, cause);
                }
                Message::Failed { to, code } => tell(to, Answer::Failed(code)),
                _ => partition.arrive(&shared.core.database, from, message),
            }
        })
    }

    /// Runs one transaction as far as it comes. Returns whether its slot is free again.
    #[inline(always)]
    fn step(&mut self, shared: &Shared<'_>, me: usize, number: usize, turn: Turn) -> bool {
        let Self { slots, cps, lines, concurrency, executor, partition, mail, clock, bundles, .. } = self;
        let slot = &mut slots[number];
        let Some(index) = slot.index else { return false };
        if slot.turns > 0 {
            slot.turns -= 1;
            return false;
        }
        if slot.fresh {
            if !shared.calm.admits(me, number, slot.transaction.conflicts) {
                return false;
            }
            slot.fresh = false;
        }
        let registered = &**shared.core.registry.get(slot.procedure).expect("it was taken with its procedure");
        let (block, sequence) = (shared.blocks.at(index), shared.blocks.sequence(index));
        let number = number as u16;
        if slot.ending.is_none() && slot.is_straight(shared.placement) {
            let transaction = &mut slot.transaction;
            let placement = shared.placement;
            let mut work = Work {
                placement,
                registered,
                block,
                sequence,
                me,
                slot: number,
                turn,
                transaction,
                mail,
                clock,
                executor,
                lines,
                bundles,
            };
            // SAFETY: the block is this worker's, and the executor is prepared.
            match unsafe { slot.straight.step(&mut work) } {
                straight::Step::Waiting => return false,
                straight::Step::Done => {
                    slot.end();
                    return true;
                }
                straight::Step::Conflict => slot.ending = Some(Stop::Conflict),
                straight::Step::Left => slot.transaction.clear(),
            }
        }
        let stop = match slot.ending {
            Some(stop) => stop,
            None => {
                let mut host = TimestampHost {
                    placement: shared.placement,
                    registered,
                    me,
                    slot: number,
                    turn,
                    transaction: &mut slot.transaction,
                    flight: &mut slot.flight,
                    partition,
                    mail,
                    clock,
                };
                // SAFETY: the windows are wide enough, the block is this worker's, and the host answers with rows that
                // are pinned or held until the transaction ends.
                unsafe { run(&registered.program, &mut slot.context, &mut slot.registers, cps, block, &mut host) }
            }
        };
        if stop == Stop::Waiting {
            return false;
        }
        if slot.transaction.outstanding > 0 {
            slot.ending = Some(stop);
            return false;
        }
        let stop = match slot.flight.doom() {
            Some(Answer::Failed(code)) => Stop::Failed(code),
            Some(_) => Stop::Conflict,
            None => stop,
        };
        let tally = &mut executor.tally;
        let place = (sequence, slot.transaction.time(clock, 0));
        if stop == Stop::Committed {
            // SAFETY: the window is wide enough, and the block is this worker's.
            unsafe {
                registered.program.run_commit_handler(&mut slot.registers, block);
                close(block, Status::Committed, 0, place.0, place.1);
            }
            tally.count(Status::Committed, 0);
            slot.transaction.let_go(Ending::Commit, me, partition, mail);
            slot.end();
            return true;
        }
        // SAFETY: what was written is still held.
        unsafe { slot.flight.undo.roll_back() };
        slot.flight.scan.let_go(mail);
        slot.transaction.let_go(Ending::Abort, me, partition, mail);
        let outcome = match stop {
            Stop::Aborted(code) => (Status::Aborted, code),
            Stop::Failed(code) => (Status::Failed, code),
            _ => {
                tally.conflicts.count(slot.transaction.cause.unwrap_or(Cause::LateRead), 1);
                concurrency.conflicted();
                if slot.transaction.conflicts < shared.options.max_retries {
                    // SAFETY: the block is this worker's.
                    unsafe { wipe(registered, block) };
                    slot.begin_again();
                    return false;
                }
                (Status::Failed, abort::TOO_MANY_RETRIES)
            }
        };
        // SAFETY: the window is wide enough, and the block is this worker's.
        unsafe { give_up(registered, &mut slot.registers, block, outcome, place, tally) };
        slot.end();
        true
    }
}

impl Slot {
    /// Whether it has a transaction that waits for no other worker.
    #[inline(always)]
    fn is_near(&self) -> bool {
        self.index.is_some() && self.transaction.outstanding == 0
    }

    /// Whether it goes the short way.
    #[inline(always)]
    fn is_straight(&self, placement: &Placement) -> bool {
        placement.is_straight(self.procedure) && !self.straight.has_left()
    }

    /// Whether a transaction that is not near can do nothing before it is answered.
    #[inline(always)]
    fn waits_for_others(&self, placement: &Placement) -> bool {
        let goes_on = if self.is_straight(placement) { !self.straight.is_found() } else { !self.flight.is_in_order() };
        self.ending.is_some() || !goes_on
    }

    fn begin(&mut self, blocks: Blocks, index: usize) {
        (self.index, self.procedure, self.context) = (Some(index), blocks.procedure(index), Context::at(0));
        (self.turns, self.fresh) = (0, true);
        self.straight.clear();
        (self.transaction.above, self.transaction.conflicts) = (0, 0);
    }

    #[inline(always)]
    fn end(&mut self) {
        (self.index, self.ending) = (None, None);
        self.transaction.clear();
        self.flight.clear();
    }

    #[cold]
    fn begin_again(&mut self) {
        (self.context, self.ending, self.fresh) = (Context::at(0), None, true);
        self.transaction.clear();
        self.transaction.conflicts += 1;
        self.flight.clear();
        self.straight.clear();
        // The first time it is enough to know what to be above.
        let conflicts = self.transaction.conflicts;
        self.turns = if conflicts == 1 { 0 } else { turns_after(conflicts) };
    }
}
