//! A two-phase worker: several transactions in flight, one step of each in turn.
//!
//! A transaction is its slot: a program counter, register windows, and what it holds. A step runs it until it ends or
//! has to wait, for memory or for a lock. After a conflict it begins again some turns later, longer each time, keeping
//! its age, so that under wait-die it becomes the oldest at last.

use std::sync::atomic::{AtomicUsize, Ordering};

use lockwork_procedure::block::{Status, abort};
use lockwork_procedure::interpreter::{Context, Stop, run};

use super::TableLock;
use super::host::{Cp, Effects, LockingHost};
use crate::contract::{Interleave, Options, Tally};
use crate::exclusive::{answer_abort, close};
use crate::ghosts::Ghosts;
use crate::host_engine::Core;
use crate::registry::Registered;

/// Transactions that a worker takes from the batch at a time.
const PIECE: usize = 32;
/// The most turns that a transaction sits out after a conflict.
const MOST_TURNS: u32 = 64;

/// What the workers of one batch share.
pub(super) struct Shared<'a> {
    pub(super) core: &'a Core,
    pub(super) options: &'a Options,
    pub(super) tables: &'a [TableLock],
    pub(super) start: *mut u8,
    pub(super) stride: usize,
    pub(super) len: usize,
    /// First block that no worker has taken.
    pub(super) next: AtomicUsize,
}

// SAFETY: every block is taken by one worker.
unsafe impl Sync for Shared<'_> {}

/// A transaction in flight.
#[derive(Debug)]
struct Slot {
    /// Its block; `None`: the slot is free.
    index: Option<usize>,
    procedure: u32,
    context: Context,
    registers: Vec<i64>,
    cps: Vec<Cp>,
    effects: Effects,
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
            cps: Vec::new(),
            effects: Effects::default(),
            retries: 0,
            turns: 0,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Worker {
    slots: Vec<Slot>,
    pub(super) ghosts: Ghosts,
    pub(super) tally: Tally,
}

impl Worker {
    /// Runs blocks of the batch until there are no more.
    pub(super) fn run(&mut self, shared: &Shared<'_>) {
        let registry = &shared.core.registry;
        let interleave = shared.options.interleave == Interleave::Dynamic;
        let in_flight = if interleave { (shared.options.window / registry.most_accesses()).max(2) } else { 1 };
        let (gp, cp) = registry.widest_windows();
        self.slots.resize_with(in_flight, Slot::default);
        for slot in &mut self.slots {
            slot.registers.resize(gp.max(slot.registers.len()), 0);
            slot.cps.resize(cp.max(slot.cps.len()), Cp::default());
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
                if self.step(shared, number, interleave) {
                    running -= 1;
                }
            }
            if running == 0 && piece.is_empty() && shared.next.load(Ordering::Relaxed) >= shared.len {
                return;
            }
        }
    }

    /// Puts the next block of the batch that can be executed into a free slot.
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
    fn step(&mut self, shared: &Shared<'_>, number: usize, interleave: bool) -> bool {
        let Self { slots, ghosts, tally } = self;
        let slot = &mut slots[number];
        if slot.turns > 0 {
            slot.turns -= 1;
            return false;
        }
        let index = slot.index.expect("the slot is taken");
        let registered = shared.core.registry.get(slot.procedure).expect("it was taken with its procedure");
        let block = shared.start.wrapping_add(index * shared.stride);
        let mut host = LockingHost {
            registered,
            tables: shared.tables,
            policy: shared.options.policy,
            interleave,
            age: index as u64 + 1,
            effects: &mut slot.effects,
            ghosts,
        };
        // SAFETY: the windows are wide enough, the block is this worker's, and the host answers with rows it has
        // locked.
        let stop = unsafe {
            run(&registered.program, &mut slot.context, &mut slot.registers, &mut slot.cps, block, &mut host)
        };
        let sequence = shared.core.first_sequence + index as u64;
        match stop {
            Stop::Waiting => return false,
            Stop::Committed => {
                // SAFETY: as above.
                unsafe { registered.program.run_commit_handler(&mut slot.registers, block) };
                let stamp = slot.effects.commit(shared.tables);
                tally.committed += 1;
                // SAFETY: the block is this worker's.
                unsafe { close(block, Status::Committed, 0, sequence, stamp) };
            }
            Stop::Aborted(code) => {
                let stamp = slot.effects.roll_back(shared.tables, true);
                *tally.aborted.entry(code).or_default() += 1;
                // SAFETY: the block is this worker's.
                unsafe { give_up(registered, slot, block, (Status::Aborted, code), sequence, stamp) };
            }
            Stop::Failed(code) => {
                slot.effects.roll_back(shared.tables, false);
                *tally.failed.entry(code).or_default() += 1;
                // SAFETY: the block is this worker's.
                unsafe { give_up(registered, slot, block, (Status::Failed, code), sequence, 0) };
            }
            Stop::Conflict => {
                slot.effects.roll_back(shared.tables, false);
                tally.conflicts += 1;
                slot.retries += 1;
                if slot.retries <= shared.options.max_retries {
                    let start = registered.results.0;
                    // What the attempt left in results and scratch must not shine through the next one.
                    // SAFETY: the block is this worker's and at least as long as its procedure's layout.
                    unsafe { block.add(start).write_bytes(0, registered.block_bytes - start) };
                    slot.context = Context::at(0);
                    slot.turns = (1 << slot.retries.min(6)).min(MOST_TURNS);
                    return false;
                }
                let code = abort::TOO_MANY_RETRIES;
                *tally.failed.entry(code).or_default() += 1;
                // SAFETY: the block is this worker's.
                unsafe { give_up(registered, slot, block, (Status::Failed, code), sequence, 0) };
            }
        }
        slot.index = None;
        true
    }
}

/// Closes the block of a transaction that did not commit.
///
/// # Safety
/// The block is the slot's.
#[cold]
unsafe fn give_up(
    registered: &Registered,
    slot: &mut Slot,
    block: *mut u8,
    outcome: (Status, u16),
    sequence: u64,
    stamp: u64,
) {
    // SAFETY: as the caller's.
    unsafe {
        answer_abort(registered, &mut slot.registers, block);
        close(block, outcome.0, outcome.1, sequence, stamp);
    }
}
