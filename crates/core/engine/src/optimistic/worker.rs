//! An optimistic worker: several transactions in flight, one step of each in turn.
//!
//! A transaction is its slot: a program counter, register windows, and what it has read. A step runs it until it ends
//! or has to wait for memory. One that finds at its end that what it read has changed begins again, at first at
//! once, then some turns later, longer each time.
//!
//! **Progress.** Of transactions that meet on a row and write nothing else, one always commits. Two that each read what
//! the other writes can fail together, and a long one can fail again and again because short ones are faster. So one
//! that has failed [`CONFLICTS_BEFORE_GATE`] times passes the *gate*: it runs alone on its worker, and no other worker
//! begins to commit a transaction that writes. What can still get in its way are commits that had begun before, at most
//! one a worker.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockwork_locking::tid::Tids;
use lockwork_procedure::block::{Status, abort};
use lockwork_procedure::interpreter::{Context, Stop, run};

use super::host::{InFlight, OptimisticHost};
use super::reader::{self, Reader};
use super::transaction::Transaction;
use crate::conflicts::Cause;
use crate::contract::Options;
use crate::exclusive::{close, give_up};
use crate::host_engine::Core;
use crate::interleaved::{BlockSupply, Concurrency, Turn, in_flight, turns_after, wipe};
use crate::recipe::Lines;
use crate::tally::Tally;
use crate::team::wait_until;
use crate::tombstones::Tombstones;

/// Conflicts after which a transaction passes the gate.
const CONFLICTS_BEFORE_GATE: u32 = 10;

/// What the workers of one batch share.
pub(super) struct Shared<'a> {
    pub(super) core: &'a Core,
    pub(super) options: &'a Options,
    pub(super) tids: &'a Tids,
    pub(super) supply: BlockSupply,
    /// The worker, plus one, whose transaction alone may write now; zero: all may.
    pub(super) gate: AtomicUsize,
}

impl Shared<'_> {
    /// Waits until worker `me` may commit a transaction that writes.
    #[inline(always)]
    fn wait_at_gate(&self, me: usize) {
        let holder = self.gate.load(Ordering::Relaxed);
        if holder != 0 && holder != me + 1 {
            wait_until(self.options.threads, || self.gate.load(Ordering::Relaxed) == 0);
        }
    }

    /// Closes the gate behind worker `me`, if nobody else did.
    fn pass_gate(&self, me: usize) -> bool {
        self.gate.compare_exchange(0, me + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A transaction in flight.
#[derive(Debug, Default)]
struct Slot {
    /// Its block; `None`: the slot is free.
    index: Option<usize>,
    procedure: u32,
    context: Context,
    registers: Vec<i64>,
    transaction: Transaction,
    in_flight: InFlight,
    reader: Reader,
    retries: u32,
    /// Turns to sit out.
    turns: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Worker {
    slots: Vec<Slot>,
    /// A CP window; what is in flight is kept in the slot.
    cps: Vec<()>,
    lines: Lines,
    concurrency: Concurrency,
    pub(super) tombstones: Tombstones,
    pub(super) tally: Tally,
}

impl Worker {
    /// Runs blocks of the batch until there are no more. `me` is this worker's number.
    pub(super) fn run(&mut self, shared: &Shared<'_>, me: usize) {
        let registry = &shared.core.registry;
        let (gp, cp) = registry.widest_windows();
        self.slots.resize_with(in_flight(shared.options, registry), Slot::default);
        self.concurrency.begin(self.slots.len());
        self.cps.resize(cp.max(self.cps.len()), ());
        for slot in &mut self.slots {
            slot.registers.resize(gp.max(slot.registers.len()), 0);
            slot.in_flight.widen(cp);
        }
        let mut piece = 0..0;
        let interleave = shared.options.interleave;
        let mut next = Some(Turn::first(interleave));
        let mut running = 0;
        while let Some(turn) = next {
            let mut busy = false;
            for number in 0..self.slots.len() {
                if self.slots[number].index.is_none() {
                    if !(turn.take && self.concurrency.has_room(running) && self.take(shared, number, &mut piece)) {
                        continue;
                    }
                    running += 1;
                }
                busy = true;
                let slot = &mut self.slots[number];
                let ended = if slot.turns > 0 {
                    slot.turns -= 1;
                    false
                } else if slot.retries >= CONFLICTS_BEFORE_GATE && shared.pass_gate(me) {
                    while !self.step(shared, me, number, Turn { pause: false, ..turn }) {}
                    shared.gate.store(0, Ordering::Relaxed);
                    true
                } else {
                    self.step(shared, me, number, turn)
                };
                if ended {
                    running -= 1;
                    self.concurrency.ended();
                }
            }
            next = turn.next(interleave, busy);
        }
    }

    /// Puts the next block of the batch that can be executed into a free slot.
    #[inline(always)]
    fn take(&mut self, shared: &Shared<'_>, number: usize, piece: &mut Range<usize>) -> bool {
        let Some(index) = shared.supply.take(shared.core, piece, &mut self.tally) else { return false };
        let slot = &mut self.slots[number];
        (slot.index, slot.context) = (Some(index), Context::at(0));
        slot.procedure = shared.supply.blocks.procedure(index);
        (slot.retries, slot.turns) = (0, 0);
        slot.reader.clear();
        true
    }

    /// Runs one transaction as far as it comes. Returns whether its slot is free again.
    #[inline(always)]
    fn step(&mut self, shared: &Shared<'_>, me: usize, number: usize, turn: Turn) -> bool {
        let Self { slots, cps, lines, concurrency, tombstones, tally } = self;
        let slot = &mut slots[number];
        let index = slot.index.expect("the slot is taken");
        let blocks = &shared.supply.blocks;
        let registered = &**shared.core.registry.get(slot.procedure).expect("it was admitted");
        let (block, sequence) = (blocks.at(index), blocks.sequence(index));
        let mut step = reader::Step::Left;
        if let Some(recipe) = reader::recipe(registered).filter(|_| !slot.reader.has_left()) {
            // SAFETY: the block is this worker's.
            step = unsafe { slot.reader.step(recipe, block, turn.pause, &mut slot.transaction, lines) };
            if step == reader::Step::Left {
                // SAFETY: as above.
                unsafe { wipe(registered, block) }
            }
        }
        let stop = match step {
            reader::Step::Waiting => Stop::Waiting,
            reader::Step::Done => Stop::Committed,
            reader::Step::Left => {
                let (transaction, in_flight) = (&mut slot.transaction, &mut slot.in_flight);
                let mut host = OptimisticHost { registered, block, turn, transaction, in_flight, tombstones };
                // SAFETY: the windows are wide enough, the block is this worker's, and the host answers with copies of
                // rows, which are the transaction's own until it ends.
                unsafe { run(&registered.program, &mut slot.context, &mut slot.registers, cps, block, &mut host) }
            }
        };
        let tables = &registered.tables;
        let placed = match stop {
            Stop::Waiting => return false,
            Stop::Committed if slot.transaction.writes() => {
                shared.wait_at_gate(me);
                slot.transaction.commit(tables, shared.tids, tombstones).ok()
            }
            Stop::Committed | Stop::Aborted(_) if !slot.in_flight.is_doomed() => slot.transaction.place(tables).ok(),
            // What failed has no place in the serial order, and what it read does not matter.
            Stop::Failed(_) => Some(0),
            _ => None,
        };
        slot.transaction.clear();
        slot.in_flight.clear();
        let outcome = match (stop, placed) {
            (Stop::Committed, Some(stamp)) => {
                tally.committed += 1;
                // SAFETY: the windows are wide enough, and the block is this worker's.
                unsafe {
                    registered.program.run_commit_handler(&mut slot.registers, block);
                    close(block, Status::Committed, 0, sequence, stamp);
                }
                slot.index = None;
                return true;
            }
            (Stop::Aborted(code), Some(_)) => (Status::Aborted, code),
            (Stop::Failed(code), _) => (Status::Failed, code),
            _ => {
                concurrency.conflicted();
                tally.conflicts.count(slot.transaction.changed.take().unwrap_or(Cause::RowChanged), 1);
                slot.retries += 1;
                if slot.retries <= shared.options.max_retries {
                    // SAFETY: the block is this worker's.
                    unsafe { wipe(registered, block) };
                    slot.context = Context::at(0);
                    slot.reader.clear();
                    // The first time it is enough to look at what the other one left.
                    slot.turns = if slot.retries == 1 { 0 } else { turns_after(slot.retries) };
                    return false;
                }
                (Status::Failed, abort::TOO_MANY_RETRIES)
            }
        };
        let place = (sequence, placed.unwrap_or(0));
        // SAFETY: the window is wide enough, and the block is this worker's.
        unsafe { give_up(registered, &mut slot.registers, block, outcome, place, tally) };
        slot.index = None;
        true
    }
}
