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
use crate::recipe::Recipe;
use crate::registry::Registry;

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

/// Prefetches a block, up to a few kilobytes of it.
#[inline(always)]
pub(super) fn prefetch_block(block: *const u8, block_bytes: usize) {
    const MOST_BYTES: usize = 2048;
    for line in (0..block_bytes.min(MOST_BYTES)).step_by(64) {
        prefetch(block.wrapping_add(line));
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
        let distance = self.distance;
        for index in range.start..range.end.min(range.start + distance) {
            prefetch_block(blocks.at(index), blocks.stride);
        }
        for step in range.start..range.end + 2 * distance {
            if step < range.end {
                if step + distance < range.end {
                    prefetch_block(blocks.at(step + distance), blocks.stride);
                }
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

    #[inline(always)]
    fn hash(&mut self, core: &Core, blocks: Blocks, index: usize) {
        let at = self.at(index);
        let words = &mut self.words[at..at + self.width];
        let Some(recipe) = blocks.recipe(core, index) else { return words.fill(0) };
        for (number, word) in words[..recipe.len()].iter_mut().enumerate() {
            // SAFETY: the block is the procedure's.
            *word = unsafe { recipe.hash(number, blocks.at(index)) };
            recipe.prefetch_bucket(number, *word);
        }
    }

    #[inline(always)]
    fn look_up(&mut self, core: &Core, blocks: Blocks, index: usize) {
        let at = self.at(index);
        let words = &mut self.words[at..at + self.width];
        let Some(recipe) = blocks.recipe(core, index) else { return };
        look_up(recipe, blocks.at(index), words);
    }
}

/// Second stage of one transaction: `words` holds hashes of keys before, addresses of rows, or zeros, after.
#[inline(always)]
pub(super) fn look_up(recipe: &Recipe, block: *const u8, words: &mut [u64]) {
    for (number, word) in words.iter_mut().enumerate().take(recipe.len()) {
        // SAFETY: the block is the procedure's.
        unsafe {
            *word = recipe.find(number, block, *word);
            if *word != 0 {
                recipe.prefetch_row(number, block, *word);
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
