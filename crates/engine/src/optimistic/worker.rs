//! An optimistic worker: several transactions in flight, one step of each in turn.
//!
//! A transaction is its slot: a program counter, register windows, and what it has read. A step runs it until it ends
//! or has to wait for memory. One that finds at its end that what it read has changed begins again, at first at
//! once, then some turns later, longer each time.
//!
//! **Progress.** Of transactions that meet on a row and write nothing else, one always commits. Two that each read what
//! the other writes can fail together, and a long one can fail again and again because short ones are faster. So one
//! that has failed [`PATIENCE`] times passes the *gate*: it runs alone on its worker, and no other worker begins to
//! commit a transaction that writes. What can still get in its way are commits that had begun before, at most one a
//! worker.

use std::sync::atomic::{AtomicUsize, Ordering};

use lockwork_locking::tid::Tids;
use lockwork_procedure::block::{Status, abort};
use lockwork_procedure::interpreter::{Context, Stop, run};

use super::host::{InFlight, OptimisticHost};
use super::reader::{self, Reader};
use super::transaction::Transaction;
use crate::contract::{Interleave, Options, Tally};
use crate::exclusive::{answer_abort, close};
use crate::ghosts::Ghosts;
use crate::host_engine::Core;
use crate::recipe::Lines;
use crate::registry::Registered;
use crate::team::wait_until;

/// Transactions that a worker takes from the batch at a time.
const PIECE: usize = 32;
/// The most turns that a transaction sits out after a conflict.
const MOST_TURNS: u32 = 64;
/// Conflicts after which a transaction passes the gate.
const PATIENCE: u32 = 10;

/// What the workers of one batch share.
pub(super) struct Shared<'a> {
    pub(super) core: &'a Core,
    pub(super) options: &'a Options,
    pub(super) tids: &'a Tids,
    pub(super) start: *mut u8,
    pub(super) stride: usize,
    pub(super) len: usize,
    /// First block that no worker has taken.
    pub(super) next: AtomicUsize,
    /// The worker, plus one, whose transaction alone may write now; zero: all may.
    pub(super) gate: AtomicUsize,
}

// SAFETY: every block is taken by one worker.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    /// Waits until worker `me` may commit a transaction that writes.
    #[inline(always)]
    fn wait_at_gate(&self, me: usize) {
        let holder = self.gate.load(Ordering::Relaxed);
        if holder != 0 && holder != me + 1 {
            wait_until(|| self.gate.load(Ordering::Relaxed) == 0);
        }
    }

    /// Closes the gate behind worker `me`, if nobody else did.
    fn pass_gate(&self, me: usize) -> bool {
        self.gate.compare_exchange(0, me + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A transaction in flight.
#[derive(Debug)]
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

impl Default for Slot {
    fn default() -> Self {
        Self {
            index: None,
            procedure: 0,
            context: Context::at(0),
            registers: Vec::new(),
            transaction: Transaction::default(),
            in_flight: InFlight::default(),
            reader: Reader::default(),
            retries: 0,
            turns: 0,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Worker {
    slots: Vec<Slot>,
    /// A CP window; what is in flight is kept in the slot.
    cps: Vec<()>,
    lines: Lines,
    pub(super) ghosts: Ghosts,
    pub(super) tally: Tally,
}

impl Worker {
    /// Runs blocks of the batch until there are no more. `me` is this worker's number.
    pub(super) fn run(&mut self, shared: &Shared<'_>, me: usize) {
        let registry = &shared.core.registry;
        let interleave = shared.options.interleave == Interleave::Dynamic;
        let in_flight = if interleave { (shared.options.window / registry.most_accesses()).max(2) } else { 1 };
        let (gp, cp) = registry.widest_windows();
        self.slots.resize_with(in_flight, Slot::default);
        self.cps.resize(cp.max(self.cps.len()), ());
        for slot in &mut self.slots {
            slot.registers.resize(gp.max(slot.registers.len()), 0);
            slot.in_flight.widen(cp);
        }
        let mut piece = 0..0;
        let mut running = 0;
        loop {
            for number in 0..self.slots.len() {
                if self.slots[number].index.is_none() {
                    if !self.take(shared, number, &mut piece) {
                        continue;
                    }
                    running += 1;
                }
                let slot = &mut self.slots[number];
                if slot.turns > 0 {
                    slot.turns -= 1;
                    continue;
                }
                let ended = if slot.retries >= PATIENCE && shared.pass_gate(me) {
                    while !self.step(shared, me, number, false) {}
                    shared.gate.store(0, Ordering::Relaxed);
                    true
                } else {
                    self.step(shared, me, number, interleave)
                };
                running -= usize::from(ended);
            }
            if running == 0 && piece.is_empty() && shared.next.load(Ordering::Relaxed) >= shared.len {
                return;
            }
        }
    }

    /// Puts the next block of the batch that can be executed into a free slot.
    #[inline(always)]
    fn take(&mut self, shared: &Shared<'_>, number: usize, piece: &mut std::ops::Range<usize>) -> bool {
        loop {
            let Some(index) = piece.next() else {
                if shared.next.load(Ordering::Relaxed) >= shared.len {
                    return false;
                }
                let start = shared.next.fetch_add(PIECE, Ordering::Relaxed).min(shared.len);
                *piece = start..(start + PIECE).min(shared.len);
                continue;
            };
            let block = shared.start.wrapping_add(index * shared.stride);
            // SAFETY: a block begins with its procedure id.
            let procedure = u32::from_le(unsafe { block.cast::<u32>().read() });
            let code = match shared.core.registry.get(procedure) {
                Some(registered) if registered.block_bytes <= shared.stride => {
                    let slot = &mut self.slots[number];
                    (slot.index, slot.procedure, slot.context) = (Some(index), procedure, Context::at(0));
                    (slot.retries, slot.turns) = (0, 0);
                    slot.reader.clear();
                    return true;
                }
                Some(_) => abort::BLOCK_TOO_SHORT,
                None => abort::UNKNOWN_PROCEDURE,
            };
            // SAFETY: this worker has taken the block.
            unsafe { close(block, Status::Failed, code, shared.core.first_sequence + index as u64, 0) };
            *self.tally.failed.entry(code).or_default() += 1;
        }
    }

    /// Runs one transaction as far as it comes. Returns whether its slot is free again.
    #[inline(always)]
    fn step(&mut self, shared: &Shared<'_>, me: usize, number: usize, interleave: bool) -> bool {
        let Self { slots, cps, lines, ghosts, tally } = self;
        let slot = &mut slots[number];
        let index = slot.index.expect("the slot is taken");
        let registered = &**shared.core.registry.get(slot.procedure).expect("it was taken with its procedure");
        let block = shared.start.wrapping_add(index * shared.stride);
        let mut step = reader::Step::Left;
        if let Some(recipe) = reader::recipe(registered).filter(|_| !slot.reader.has_left()) {
            // SAFETY: the block is this worker's.
            step = unsafe { slot.reader.step(recipe, block, interleave, &mut slot.transaction, lines) };
            if step == reader::Step::Left {
                wipe(registered, block);
            }
        }
        let stop = match step {
            reader::Step::Waiting => Stop::Waiting,
            reader::Step::Done => Stop::Committed,
            reader::Step::Left => {
                let (transaction, in_flight) = (&mut slot.transaction, &mut slot.in_flight);
                let mut host = OptimisticHost { registered, block, interleave, transaction, in_flight, ghosts };
                // SAFETY: the windows are wide enough, the block is this worker's, and the host answers with copies of
                // rows, which are the transaction's own until it ends.
                unsafe { run(&registered.program, &mut slot.context, &mut slot.registers, cps, block, &mut host) }
            }
        };
        let sequence = shared.core.first_sequence + index as u64;
        let tables = &registered.tables;
        let placed = match stop {
            Stop::Waiting => return false,
            Stop::Committed if slot.transaction.writes() => {
                shared.wait_at_gate(me);
                slot.transaction.commit(tables, shared.tids, ghosts).ok()
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
                tally.conflicts += 1;
                slot.retries += 1;
                if slot.retries <= shared.options.max_retries {
                    begin_again(registered, slot, block);
                    return false;
                }
                (Status::Failed, abort::TOO_MANY_RETRIES)
            }
        };
        let counts = if outcome.0 == Status::Failed { &mut tally.failed } else { &mut tally.aborted };
        *counts.entry(outcome.1).or_default() += 1;
        // SAFETY: the window is wide enough, and the block is this worker's.
        unsafe {
            answer_abort(registered, &mut slot.registers, block);
            close(block, outcome.0, outcome.1, sequence, placed.unwrap_or(0));
        }
        slot.index = None;
        true
    }
}

/// Takes back what an attempt left in results and scratch: it must not shine through the next one.
#[cold]
fn wipe(registered: &Registered, block: *mut u8) {
    let start = registered.results.0;
    // SAFETY: the block is this worker's and at least as long as its procedure's layout.
    unsafe { block.add(start).write_bytes(0, registered.block_bytes - start) };
}

/// Prepares a slot whose transaction met a conflict for its next attempt.
#[cold]
fn begin_again(registered: &Registered, slot: &mut Slot, block: *mut u8) {
    wipe(registered, block);
    slot.context = Context::at(0);
    slot.reader.clear();
    // The first time it is enough to look at what the other one left.
    slot.turns = if slot.retries == 1 { 0 } else { (1 << slot.retries.min(6)).min(MOST_TURNS) };
}
