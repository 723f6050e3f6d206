//! Transactions in order on one worker, with look-ups running ahead.
//!
//! Three stages work on the same sequence at a distance: the first computes keys and prefetches index buckets, the
//! second finds rows and prefetches the lines that will be touched, the third executes, strictly in order. So the misses
//! of many transactions overlap while their effects do not, and no context is ever switched. It is what a planner's knowledge
//! of access sets buys: BionicDB (section 4.5) and coroutine engines must suspend transactions instead.
//!
//! A row found ahead is passed on to execution only if no transaction of the batch changes which keys exist (`stable`);
//! otherwise it is a prefetch, and execution looks the row up again, now in cache.

use std::ops::Range;
use std::sync::Arc;

use lockwork_memory::prefetch;
use lockwork_procedure::access::{Access, Operation, Straight};

use super::Blocks;
use crate::exclusive::Executor;
use crate::host_engine::Core;
use crate::registry::{Registered, Registry};

/// What is known of the transactions between the first and the third stage: for each, one word an access, which is
/// the key's hash after the first stage and the row's address, or zero, after the second.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    words: Vec<u64>,
    /// Words a transaction has room for.
    width: usize,
    /// Transactions there is room for: a power of two.
    slots: usize,
    /// Transactions from one stage to the next.
    distance: usize,
}

/// The key image of an access in a block.
#[inline(always)]
pub(super) fn key_hash(registered: &Registered, access: &Access, block: *const u8) -> u64 {
    let format = registered.tables[usize::from(access.slot)].key_format();
    // SAFETY: the verifier proved that the key image lies in the block.
    let image = unsafe { std::slice::from_raw_parts(block.add(access.key_offset as usize), format.image_bytes()) };
    format.encode(image).hash()
}

/// The row that an access finds, by its key's hash.
#[inline(always)]
pub(super) fn find(registered: &Registered, access: &Access, block: *const u8, hash: u64) -> u64 {
    let table = &registered.tables[usize::from(access.slot)];
    let format = table.key_format();
    // SAFETY: the verifier proved that the key image lies in the block.
    let image = unsafe { std::slice::from_raw_parts(block.add(access.key_offset as usize), format.image_bytes()) };
    table.find(hash, &format.encode(image)).map_or(0, |row| row.as_ptr() as u64)
}

/// Prefetches the lines of a row that an access will touch.
#[inline(always)]
pub(crate) fn prefetch_touches(access: &Access, block: *const u8, block_bytes: usize, row: u64) {
    // SAFETY: the block is the procedure's and at least as long as its layout says.
    let block = unsafe { std::slice::from_raw_parts(block, block_bytes) };
    for touch in &access.touches {
        let start = (row as i64 + touch.start(block)) as u64 & !63;
        let end = (row as i64 + touch.start(block)) as u64 + u64::from(touch.length);
        let mut line = start;
        while line < end {
            prefetch(line as *const u8);
            line += 64;
        }
    }
}

/// Prefetches a block, up to a few kilobytes of it.
#[inline(always)]
pub(super) fn prefetch_block(block: *const u8, block_bytes: usize) {
    const MOST_BYTES: usize = 2048;
    for line in (0..block_bytes.min(MOST_BYTES)).step_by(64) {
        prefetch(block.wrapping_add(line));
    }
}

/// Whether an access may be looked up ahead of its turn.
#[inline(always)]
pub(super) fn looks_up(access: &Access) -> bool {
    matches!(access.operation, Operation::Search | Operation::Update)
}

impl Pipeline {
    /// Makes room for the procedures of `registry` with `window` row accesses in flight.
    pub(super) fn prepare(&mut self, registry: &Registry, window: usize) {
        self.width = registry.most_accesses();
        self.distance = (window / self.width).max(1);
        self.slots = (2 * self.distance + 1).next_power_of_two();
        self.words.resize(self.slots * self.width, 0);
    }

    /// Executes blocks `range`; the caller has them, and all they touch, for itself. `window` zero: without looking ahead.
    pub(super) fn run(
        &mut self,
        core: &Core,
        executor: &mut Executor,
        blocks: Blocks,
        range: Range<usize>,
        window: usize,
        stable: bool,
    ) {
        if window == 0 {
            for index in range {
                execute(core, executor, blocks, index, &[]);
            }
            return;
        }
        let distance = self.distance;
        for step in range.start..range.end + 2 * distance {
            if step < range.end {
                self.hash(core, blocks, step);
            }
            if let Some(index) = step.checked_sub(distance)
                && range.contains(&index)
            {
                self.look_up(core, blocks, index);
            }
            if let Some(index) = step.checked_sub(2 * distance)
                && range.contains(&index)
            {
                let at = self.at(index);
                let hints = if stable { &self.words[at..at + self.width] } else { &[] };
                execute(core, executor, blocks, index, hints);
            }
        }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> usize {
        (index & (self.slots - 1)) * self.width
    }

    /// The procedure of a block that can be looked up ahead.
    #[inline(always)]
    fn straight(core: &Core, blocks: Blocks, index: usize) -> Option<(&Arc<Registered>, &Straight)> {
        // SAFETY: a block begins with its procedure id.
        let id = u32::from_le(unsafe { blocks.at(index).cast::<u32>().read() });
        let registered = core.registry.get(id)?;
        if registered.block_bytes > blocks.stride {
            return None;
        }
        Some((registered, registered.straight()?))
    }

    #[inline(always)]
    fn hash(&mut self, core: &Core, blocks: Blocks, index: usize) {
        let at = self.at(index);
        let Some((registered, straight)) = Self::straight(core, blocks, index) else {
            self.words[at..at + self.width].fill(0);
            return;
        };
        prefetch_block(blocks.at(index), registered.block_bytes);
        for (number, access) in straight.accesses.iter().enumerate() {
            let hash = key_hash(registered, access, blocks.at(index));
            registered.tables[usize::from(access.slot)].prefetch(hash);
            self.words[at + number] = hash;
        }
    }

    #[inline(always)]
    fn look_up(&mut self, core: &Core, blocks: Blocks, index: usize) {
        let at = self.at(index);
        let Some((registered, straight)) = Self::straight(core, blocks, index) else { return };
        let block = blocks.at(index);
        for (number, access) in straight.accesses.iter().enumerate() {
            let hash = self.words[at + number];
            let row = if looks_up(access) { find(registered, access, block, hash) } else { 0 };
            self.words[at + number] = row;
            if row != 0 {
                prefetch_touches(access, block, registered.block_bytes, row);
            }
        }
    }
}

/// Executes one block, or closes it as failed.
#[inline(always)]
pub(super) fn execute(core: &Core, executor: &mut Executor, blocks: Blocks, index: usize, hints: &[u64]) {
    let (block, sequence) = (blocks.at(index), blocks.sequence(index));
    // SAFETY: the plan gave this worker the block and everything the transaction touches.
    unsafe {
        if let Some(registered) = executor.admit(&core.registry, block, blocks.stride, sequence) {
            executor.execute(registered, block, sequence, hints);
        }
    }
}
