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

use lockwork_memory::prefetch;

use super::Blocks;
use crate::exclusive::Executor;
use crate::host_engine::Core;
use crate::registry::{Registered, Registry};

/// What is known of the transactions between the first and the third stage, one word an access: see [`crate::recipe::Recipe::start`] and
/// [`crate::recipe::Recipe::look_up`].
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

/// Prefetches a block, up to a few kilobytes of it.
#[inline(always)]
pub(super) fn prefetch_block(block: *const u8, block_bytes: usize) {
    const MOST_BYTES: usize = 2048;
    let mut line = 0;
    while line < block_bytes.min(MOST_BYTES) {
        prefetch(block.wrapping_add(line));
        line += 64;
    }
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
        let (distance, width, mask) = (self.distance, self.width, self.slots - 1);
        let mut flying: Vec<Option<&Registered>> = vec![None; self.slots];
        for index in range.start..range.end.min(range.start + distance) {
            prefetch_block(blocks.at(index), blocks.stride);
        }
        for step in range.start..range.end + 2 * distance {
            if step < range.end {
                if step + distance < range.end {
                    prefetch_block(blocks.at(step + distance), blocks.stride);
                }
                let slot = step & mask;
                flying[slot] = blocks.registered(core, step);
                if let Some(recipe) = flying[slot].and_then(Registered::recipe) {
                    // SAFETY: the block is the procedure's.
                    unsafe { recipe.start(blocks.at(step), &mut self.words[slot * width..][..width], stable) }
                }
            }
            let Some(index) = step.checked_sub(distance).filter(|&index| index >= range.start) else { continue };
            if index < range.end {
                let slot = index & mask;
                if let Some(recipe) = flying[slot].and_then(Registered::recipe) {
                    let words = &mut self.words[slot * width..][..width];
                    // SAFETY: the block is the procedure's, and `stable` says that keys neither come nor go.
                    unsafe { recipe.look_up(blocks.at(index), words, stable, true) }
                }
            }
            let Some(index) = index.checked_sub(distance).filter(|&index| index >= range.start) else { continue };
            let slot = index & mask;
            match flying[slot] {
                Some(registered) if stable && registered.recipe.is_some() => {
                    let hints = &self.words[slot * width..][..width];
                    // SAFETY: the plan gave this worker the block and everything the transaction touches.
                    unsafe { executor.call(registered, blocks.at(index), blocks.sequence(index), hints) }
                }
                _ => execute(core, executor, blocks, index, &[]),
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
            executor.call(registered, block, sequence, hints);
        }
    }
}
