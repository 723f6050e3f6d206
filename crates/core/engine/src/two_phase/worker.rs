//! A two-phase worker: several transactions in flight, one step of each in turn.
//!
//! A transaction is its slot: a program counter, register windows, and what it holds. A step runs it until it ends or
//! has to wait, for memory or for a lock. After a conflict it begins again some turns later, longer each time, keeping
//! its age, so that under wait-die it becomes the oldest at last.

use std::ops::Range;

use lockwork_procedure::block::{Status, abort};
use lockwork_procedure::interpreter::{Context, Stop, run};

use super::TableLock;
use super::host::{Cp, Effects, LockingHost};
use crate::conflicts::Cause;
use crate::contract::Options;
use crate::exclusive::{close, give_up};
use crate::host_engine::Core;
use crate::interleaved::{BlockSupply, Turn, in_flight, turns_after, wipe};
use crate::tally::Tally;
use crate::tombstones::Tombstones;

/// What the workers of one batch share.
pub(super) struct Shared<'a> {
    pub(super) core: &'a Core,
    pub(super) options: &'a Options,
    pub(super) tables: &'a [TableLock],
    pub(super) supply: BlockSupply,
}

/// A transaction in flight.
#[derive(Debug, Default)]
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

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Worker {
    slots: Vec<Slot>,
    pub(super) tombstones: Tombstones,
    pub(super) tally: Tally,
}

impl Worker {
    /// Runs blocks of the batch until there are no more.
    pub(super) fn run(&mut self, shared: &Shared<'_>) {
        let registry = &shared.core.registry;
        let (gp, cp) = registry.widest_windows();
        self.slots.resize_with(in_flight(shared.options, registry), Slot::default);
        for slot in &mut self.slots {
            slot.registers.resize(gp.max(slot.registers.len()), 0);
            slot.cps.resize(cp.max(slot.cps.len()), Cp::default());
        }
        let mut piece = 0..0;
        let interleave = shared.options.interleave;
        let mut next = Some(Turn::first(interleave));
        while let Some(turn) = next {
            let mut busy = false;
            for number in 0..self.slots.len() {
                if self.slots[number].index.is_none() && !(turn.take && self.take(shared, number, &mut piece)) {
                    continue;
                }
                busy = true;
                self.step(shared, number, turn);
            }
            next = turn.next(interleave, busy);
        }
    }

    /// Puts the next block of the batch that can be executed into a free slot.
    fn take(&mut self, shared: &Shared<'_>, number: usize, piece: &mut Range<usize>) -> bool {
        let Some(index) = shared.supply.take(shared.core, piece, &mut self.tally) else { return false };
        let slot = &mut self.slots[number];
        (slot.index, slot.context) = (Some(index), Context::at(0));
        slot.procedure = shared.supply.blocks.procedure(index);
        (slot.retries, slot.turns) = (0, 0);
        true
    }

    /// Runs one transaction as far as it comes. If it ends, its slot is free again.
    #[inline(always)]
    fn step(&mut self, shared: &Shared<'_>, number: usize, turn: Turn) {
        let Self { slots, tombstones, tally } = self;
        let slot = &mut slots[number];
        if slot.turns > 0 {
            slot.turns -= 1;
            return;
        }
        let index = slot.index.expect("the slot is taken");
        let blocks = &shared.supply.blocks;
        let registered = &**shared.core.registry.get(slot.procedure).expect("it was admitted");
        let (block, sequence) = (blocks.at(index), blocks.sequence(index));
        let mut host = LockingHost {
            registered,
            tables: shared.tables,
            policy: shared.options.policy,
            turn,
            age: index as u64 + 1,
            effects: &mut slot.effects,
            tombstones,
        };
        // SAFETY: the windows are wide enough, the block is this worker's, and the host answers with rows it has
        // locked.
        let stop = unsafe {
            run(&registered.program, &mut slot.context, &mut slot.registers, &mut slot.cps, block, &mut host)
        };
        let (outcome, stamp) = match stop {
            Stop::Waiting => return,
            Stop::Committed => {
                // SAFETY: as above.
                unsafe { registered.program.run_commit_handler(&mut slot.registers, block) };
                let stamp = slot.effects.commit(shared.tables);
                tally.committed += 1;
                // SAFETY: the block is this worker's.
                unsafe { close(block, Status::Committed, 0, sequence, stamp) };
                slot.index = None;
                return;
            }
            Stop::Aborted(code) => ((Status::Aborted, code), slot.effects.roll_back(shared.tables, true)),
            Stop::Failed(code) => ((Status::Failed, code), slot.effects.roll_back(shared.tables, false)),
            Stop::Conflict => {
                slot.effects.roll_back(shared.tables, false);
                tally.conflicts.count(slot.effects.refused.take().unwrap_or(Cause::RowLock), 1);
                slot.retries += 1;
                if slot.retries <= shared.options.max_retries {
                    // SAFETY: the block is this worker's.
                    unsafe { wipe(registered, block) };
                    slot.context = Context::at(0);
                    slot.turns = turns_after(slot.retries);
                    return;
                }
                ((Status::Failed, abort::TOO_MANY_RETRIES), 0)
            }
        };
        // SAFETY: the block is this worker's.
        unsafe { give_up(registered, &mut slot.registers, block, outcome, (sequence, stamp), tally) };
        slot.index = None;
    }
}
