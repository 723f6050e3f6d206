//! Transactions in order on one worker, with look-ups running ahead.
//!
//! Transactions go through three stages in groups: the first computes keys and prefetches index buckets, the second
//! finds rows and prefetches the lines that will be touched, the third executes, strictly in order. While a group is
//! executed the next one's rows and the buckets of the one after it are on their way. So the misses of many
//! transactions overlap while their effects do not, and no context is ever switched. It is what a planner's knowledge
//! of access sets buys: BionicDB (section 4.5) and coroutine engines must suspend transactions instead.
//!
//! Stages take whole groups in turn, not transactions, because a processor overlaps only what is within its reorder
//! window: translations of addresses above all, which a prefetch waits for.
//!
//! A row found ahead is passed on to execution only if no transaction of the batch changes which keys exist (`stable`),
//! or no procedure at all does in the tables of this one ([`Registered::is_steady`]); otherwise it is a prefetch, and
//! execution looks the row up again, now in cache.

use std::ops::Range;

use lockwork_memory::prefetch;

use crate::blocks::Blocks;
use crate::exclusive::Executor;
use crate::host_engine::Core;
use crate::recipe::Lines;
use crate::registry::{Registered, Registry};

/// What is known of the transactions between the first and the third stage, one word an access: see
/// [`crate::recipe::Recipe::start`] and [`crate::recipe::Recipe::look_up`].
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    words: Vec<u64>,
    /// Words a transaction has room for.
    width: usize,
    /// Transactions there is room for: a power of two.
    slots: usize,
    /// Transactions of a group.
    group: usize,
}

/// How much of a block is prefetched.
pub(super) const MAX_BYTES: usize = 2048;

/// Prefetches a block.
#[inline(always)]
pub(super) fn prefetch_block(block: *const u8, block_bytes: usize) {
    let mut line = 0;
    while line < block_bytes.min(MAX_BYTES) {
        prefetch(block.wrapping_add(line));
        line += 64;
    }
}

impl Pipeline {
    /// Makes room for the procedures of `registry` with `window` row accesses in flight.
    pub(super) fn prepare(&mut self, registry: &Registry, window: usize) {
        self.width = registry.most_accesses();
        self.group = (window / self.width).max(1);
        self.slots = (3 * self.group).next_power_of_two();
        self.words.resize(self.slots * self.width, 0);
    }

    /// Executes blocks `range`; the caller has them, and all they touch, for itself. `window` zero: without looking
    /// ahead.
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
        let group = self.group;
        let mut stages = Stages {
            core,
            blocks,
            stable,
            words: &mut self.words,
            width: self.width,
            mask: self.slots - 1,
            flying: vec![None; self.slots],
            lines: Lines::default(),
        };
        // The group that was started `behind` groups before the one at `base`.
        let part = |base: usize, behind: usize| {
            let at = |base: usize| base.saturating_sub(behind * group).clamp(range.start, range.end);
            at(base)..at(base + group)
        };
        let prefetch_blocks =
            |part: Range<usize>| part.for_each(|index| prefetch_block(blocks.at(index), blocks.stride));
        prefetch_blocks(part(range.start, 0));
        for base in (range.start..range.end + 2 * group).step_by(group) {
            prefetch_blocks(part(base + group, 0));
            stages.start(part(base, 0));
            stages.look_up(part(base, 1));
            stages.execute(executor, part(base, 2));
        }
    }
}

/// What the stages work on. Each is a function of its own, not inlined, so that its loop has the registers for itself.
struct Stages<'a> {
    core: &'a Core,
    blocks: Blocks,
    stable: bool,
    words: &'a mut [u64],
    width: usize,
    mask: usize,
    flying: Vec<Option<&'a Registered>>,
    lines: Lines,
}

impl Stages<'_> {
    #[inline(never)]
    fn start(&mut self, part: Range<usize>) {
        for index in part {
            let slot = index & self.mask;
            self.flying[slot] = self.blocks.registered(self.core, index);
            if let Some(registered) = self.flying[slot]
                && let Some(recipe) = registered.recipe()
            {
                let stable = self.stable || registered.is_steady();
                let words = &mut self.words[slot * self.width..][..self.width];
                // SAFETY: the block is the procedure's.
                unsafe { recipe.start(self.blocks.at(index), words, stable, &mut self.lines) }
            }
        }
        self.lines.fetch();
    }

    #[inline(never)]
    fn look_up(&mut self, part: Range<usize>) {
        for index in part {
            let slot = index & self.mask;
            if let Some(registered) = self.flying[slot]
                && let Some(recipe) = registered.recipe()
            {
                let stable = self.stable || registered.is_steady();
                let words = &mut self.words[slot * self.width..][..self.width];
                // SAFETY: the block is the procedure's, and `stable` says that keys neither come nor go.
                unsafe { recipe.look_up(self.blocks.at(index), words, stable, Some(&mut self.lines)) }
            }
        }
        self.lines.fetch_short();
    }

    #[inline(never)]
    fn execute(&mut self, executor: &mut Executor, part: Range<usize>) {
        for index in part {
            let slot = index & self.mask;
            match self.flying[slot] {
                Some(registered) if registered.recipe.is_some() && (self.stable || registered.is_steady()) => {
                    let hints = &self.words[slot * self.width..][..self.width];
                    // SAFETY: the plan gave this worker the block and everything the transaction touches.
                    unsafe {
                        let (block, sequence) = (self.blocks.at(index), self.blocks.sequence(index));
                        executor.call(registered, block, sequence, hints, &mut self.lines);
                    }
                }
                _ => execute(self.core, executor, self.blocks, index, &[]),
            }
        }
        self.lines.fetch();
    }
}

/// Executes one block, which the plan gave this worker with everything that its transaction touches, or closes it as
/// failed.
#[inline(always)]
pub(super) fn execute(core: &Core, executor: &mut Executor, blocks: Blocks, index: usize, hints: &[u64]) {
    // SAFETY: the plan says so.
    unsafe { blocks.execute(core, executor, index, hints) }
}
