//! Partitioned plans: every operation runs where its record belongs, in batch order, and nobody waits.
//!
//! Records belong to partitions by the top bits of their key's hash. In a first phase every worker goes through
//! its share of the batch and deals operations out to partitions; in the second, workers take whole partitions and run
//! them, each in batch order. A transaction with one access goes to its partition whole. A *separable*
//! one ([`lockwork_procedure::access::Fragment`]) goes there in pieces, one for each access, so that a transaction of
//! sixteen operations on hot records is no more of an obstacle than sixteen of one.
//!
//! Pieces must not abort, so what could make a separable transaction abort (a missing row, an argument
//! out of range) is looked at in the first phase, before anything of the batch has run. That is sound because a batch
//! with such transactions changes no keys (`stable`). One that aborts is executed on the spot: it writes no
//! row before its abort, because none of a separable procedure's writes ever has to be taken back.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use lockwork_procedure::block::Status;

use super::pipeline::{MAX_BYTES, execute, prefetch_block};
use super::{AHEAD, Worker};
use crate::blocks::Blocks;
use crate::exclusive::{Executor, close};
use crate::host_engine::Core;
use crate::recipe::Lines;
use crate::registry::Registered;
use crate::team::{Barrier, Team, share};

/// Partitions a worker, so that one who is interrupted does not hold up the others at the end.
const PARTITIONS_PER_WORKER: usize = 4;
/// In [`Item::access`]: the whole transaction.
const WHOLE: u16 = u16::MAX;

/// An operation, or a whole transaction, in the queue of a partition.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// The key's hash (whole transactions) or the row's address (pieces).
    word: u64,
    /// Index of the block.
    block: u32,
    /// Procedure id, for look-ups before the block is in cache.
    procedure: u16,
    /// Number of the access, or [`WHOLE`].
    access: u16,
}

/// Queues from every worker to every partition: written by the worker in the first phase, read by whoever has the
/// partition in the second.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    queues: Vec<Lane>,
    partitions: usize,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Lane(UnsafeCell<Vec<Item>>);

// SAFETY: a lane is touched by one worker in the first phase and by one in the second, with a barrier between.
unsafe impl Sync for Lane {}

impl Partitions {
    /// Runs blocks `range`; returns the nanoseconds of the first phase.
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
        single: bool,
    ) -> u64 {
        let size = team.size();
        self.partitions = (size * PARTITIONS_PER_WORKER).next_power_of_two();
        self.queues.resize_with(self.queues.len().max(size * self.partitions), Lane::default);
        let (barrier, next, planning_ns) = (Barrier::new(size), AtomicUsize::new(0), AtomicU64::new(0));
        let this = &*self;
        team.run(&|number| {
            let _watch = barrier.watch();
            let worker = &mut *workers[number].lock().expect("no worker panicked");
            let start = Instant::now();
            let lanes = &this.queues[number * this.partitions..][..this.partitions];
            for lane in lanes {
                // SAFETY: in the first phase a worker's lanes are its own.
                unsafe { (*lane.0.get()).clear() };
            }
            let mine = share(&range, number, size);
            let mut deal = Deal { core, blocks, lanes, shift: 64 - this.partitions.trailing_zeros() };
            if single {
                deal.singles(&mut worker.executor, mine);
            } else {
                deal.pieces(worker, mine, window);
            }
            barrier.wait();
            planning_ns.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            loop {
                let partition = next.fetch_add(1, Ordering::Relaxed);
                if partition >= this.partitions {
                    return;
                }
                for from in 0..size {
                    // SAFETY: the first phase is over, and this worker alone has the partition.
                    let items = unsafe { &*this.queues[from * this.partitions + partition].0.get() };
                    run_items(core, worker, blocks, items, window, stable);
                }
            }
        });
        planning_ns.into_inner()
    }
}

/// The first phase of one worker.
struct Deal<'a> {
    core: &'a Core,
    blocks: Blocks,
    lanes: &'a [Lane],
    shift: u32,
}

impl Deal<'_> {
    #[inline(always)]
    fn push(&mut self, hash: u64, item: Item) {
        let lane = &self.lanes[(hash >> self.shift) as usize];
        // SAFETY: in the first phase a worker's lanes are its own.
        unsafe { (*lane.0.get()).push(item) };
    }

    /// Transactions of one access each.
    fn singles(&mut self, executor: &mut Executor, range: Range<usize>) {
        for index in range {
            prefetch_block(self.blocks.at(index + AHEAD), self.blocks.stride);
            let block = self.blocks.at(index);
            // SAFETY: in the first phase a block belongs to the worker whose share it is in.
            let admitted = unsafe { self.blocks.admit(self.core, index, &mut executor.tally) };
            let Some(registered) = admitted else { continue };
            // SAFETY: the block is the procedure's.
            let word = unsafe { registered.known().hash(0, block) };
            self.push(word, Item { word, block: index as u32, procedure: procedure_of(block), access: WHOLE });
        }
    }

    /// Separable transactions: looked up ahead in three stages, as in [`super::pipeline`].
    fn pieces(&mut self, worker: &mut Worker, range: Range<usize>, window: usize) {
        let width = self.core.registry.most_accesses();
        let distance = (window / width).max(1);
        let slots = (2 * distance + 1).next_power_of_two();
        let mut hashes = vec![0_u64; slots * width];
        let mut rows = vec![0_u64; slots * width];
        let mut lines = Lines::default();
        let at = |index: usize| (index & (slots - 1)) * width..((index & (slots - 1)) + 1) * width;
        for step in range.start..range.end + 2 * distance {
            if step + distance < range.end {
                prefetch_block(self.blocks.at(step + distance), self.blocks.stride);
            }
            if step < range.end
                && let Some(recipe) = self.blocks.recipe(self.core, step)
            {
                // SAFETY: the block is the procedure's.
                unsafe {
                    let (rows, hashes) = (&mut rows[at(step)], &mut hashes[at(step)]);
                    recipe.start_with_hashes(self.blocks.at(step), rows, hashes, &mut lines);
                }
                lines.fetch();
            }
            if let Some(index) = step.checked_sub(distance).filter(|index| range.contains(index))
                && let Some(recipe) = self.blocks.recipe(self.core, index)
            {
                // SAFETY: the block is the procedure's, and in a part with pieces keys neither come nor go.
                unsafe { recipe.look_up(self.blocks.at(index), &mut rows[at(index)], true, None) }
            }
            if let Some(index) = step.checked_sub(2 * distance).filter(|index| range.contains(index)) {
                self.deal_one(&mut worker.executor, index, &hashes[at(index)], &rows[at(index)]);
            }
        }
    }

    /// Deals one transaction out, in pieces if it can be, or settles it if it aborts.
    fn deal_one(&mut self, executor: &mut Executor, index: usize, hashes: &[u64], rows: &[u64]) {
        let (block, sequence) = (self.blocks.at(index), self.blocks.sequence(index));
        // SAFETY: in the first phase a block belongs to the worker whose share it is in.
        let admitted = unsafe { self.blocks.admit(self.core, index, &mut executor.tally) };
        let Some(registered) = admitted else { return };
        let recipe = registered.known();
        let (procedure, block_number) = (procedure_of(block), index as u32);
        if !registered.traits.separable {
            let item = Item { word: hashes[0], block: block_number, procedure, access: WHOLE };
            return self.push(hashes[0], item);
        }
        let count = recipe.len();
        // SAFETY: the block is the procedure's.
        let passes = unsafe { recipe.passes(block) };
        if !passes || rows[..count].contains(&0) {
            // It aborts, and writes no row before it does.
            return execute(self.core, executor, self.blocks, index, &[]);
        }
        // SAFETY: the block is this worker's in the first phase; pieces never touch the header.
        unsafe { close(block, Status::Committed, 0, sequence, 0) };
        executor.tally.committed += 1;
        for number in 0..count {
            let item = Item { word: rows[number], block: block_number, procedure, access: number as u16 };
            self.push(hashes[number], item);
        }
    }
}

/// The procedure id of a block that was admitted; ids are dense, and there are at most
/// [`crate::contract::MAX_PROCEDURES`].
#[inline(always)]
fn procedure_of(block: *mut u8) -> u16 {
    // SAFETY: a block begins with its procedure id.
    u32::from_le(unsafe { block.cast::<u32>().read() }) as u16
}

/// Runs one queue of a partition, looking ahead in groups as [`super::pipeline`] does.
fn run_items(core: &Core, worker: &mut Worker, blocks: Blocks, items: &[Item], window: usize, stable: bool) {
    let executor = &mut worker.executor;
    if window == 0 {
        for item in items {
            run_item(core, executor, blocks, item, &[]);
        }
        return;
    }
    let words = vec![0_u64; (3 * window).next_power_of_two()];
    let mut stages = Stages { core, blocks, items, stable, mask: words.len() - 1, words, lines: Lines::default() };
    let part = |base: usize, behind: usize| {
        let at = |base: usize| base.saturating_sub(behind * window).min(items.len());
        at(base)..at(base + window)
    };
    for base in (0..items.len() + 2 * window).step_by(window) {
        stages.start(part(base, 0));
        stages.look_up(part(base, 1));
        stages.execute(executor, part(base, 2));
    }
}

/// What the stages work on; see [`super::pipeline`].
struct Stages<'a> {
    core: &'a Core,
    blocks: Blocks,
    items: &'a [Item],
    stable: bool,
    mask: usize,
    words: Vec<u64>,
    lines: Lines,
}

impl Stages<'_> {
    #[inline(never)]
    fn start(&mut self, part: Range<usize>) {
        for index in part {
            let word = start(self.core, self.blocks, &self.items[index], self.stable, &mut self.lines);
            self.words[index & self.mask] = word;
        }
        self.lines.fetch();
    }

    #[inline(never)]
    fn look_up(&mut self, part: Range<usize>) {
        for index in part {
            let word = &mut self.words[index & self.mask];
            *word = find_row(self.core, self.blocks, &self.items[index], *word, self.stable, &mut self.lines);
        }
        self.lines.fetch();
    }

    #[inline(never)]
    fn execute(&mut self, executor: &mut Executor, part: Range<usize>) {
        for index in part {
            let hints = if self.stable { &self.words[index & self.mask..][..1] } else { &[] };
            run_item(self.core, executor, self.blocks, &self.items[index], hints);
        }
    }
}

/// First stage of an item: prefetches its bucket and its part of the block. Returns the bucket's address, the key's
/// hash if it is not `stable`, or the row of a piece.
#[inline(always)]
fn start(core: &Core, blocks: Blocks, item: &Item, stable: bool, lines: &mut Lines) -> u64 {
    let registered = registered(core, item);
    let block = blocks.at(item.block as usize);
    if item.access != WHOLE {
        registered.known().collect_block(usize::from(item.access), block, lines);
        return item.word;
    }
    for line in (0..registered.block_bytes.min(MAX_BYTES)).step_by(64) {
        lines.push(block as u64 + line as u64);
    }
    registered.known().start_one(0, item.word, stable, lines)
}

/// Second stage of an item: finds its row and prefetches what will be touched of it.
#[inline(always)]
fn find_row(core: &Core, blocks: Blocks, item: &Item, word: u64, stable: bool, lines: &mut Lines) -> u64 {
    let recipe = registered(core, item).known();
    let block = blocks.at(item.block as usize);
    // SAFETY: the block is the procedure's; if the part is stable, keys neither come nor go while it runs.
    unsafe {
        let (number, row) = match item.access {
            WHOLE => (0, recipe.find(0, block, word, stable)),
            piece => (usize::from(piece), word),
        };
        if row != 0 {
            recipe.collect_row(number, block, row, lines);
        }
        row
    }
}

#[inline(always)]
fn run_item(core: &Core, executor: &mut Executor, blocks: Blocks, item: &Item, hints: &[u64]) {
    let registered = registered(core, item);
    let block = blocks.at(item.block as usize);
    // SAFETY: whole transactions: the plan gave this worker the block and its record. Pieces: the plan gave this
    // worker the record, and pieces of one transaction touch different bytes of the block.
    unsafe {
        if item.access == WHOLE {
            executor.call(registered, block, blocks.sequence(item.block as usize), hints, &mut Lines::default());
        } else {
            executor.call_fragment(registered, usize::from(item.access), block, item.word);
        }
    }
}

#[inline(always)]
fn registered<'a>(core: &'a Core, item: &Item) -> &'a Registered {
    core.registry.get(u32::from(item.procedure)).expect("only admitted blocks are dealt out")
}
