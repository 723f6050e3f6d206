//! The `deterministic` engine: batches planned in parallel, executed without locks, equivalent to batch order.
//!
//! A batch says beforehand what its transactions will touch (their access sets), so all conflicts can be settled
//! before anything runs. HOBBES (section 3.3.3) puts transactions that conflict into later batches, which loses order
//! and starves writers of hot records. Here order is kept, and a conflict costs nothing but its order. The cheapest
//! plan that a batch allows is taken:
//!
//! | plan | when | how |
//! |---|---|---|
//! | in order | one worker | the batch as it is, look-ups running ahead (`pipeline.rs`) |
//! | free | nothing writes | workers take pieces of the batch; no plan |
//! | partitioned | every transaction has one access, or is separable | records are dealt out to partitions by hash; each partition runs its operations in batch order on one worker (`partition.rs`) |
//! | graph or in order | anything else | a dependency graph over records, planned by partition; a transaction runs when what is before it has run (`graph.rs`); or one worker for all, whichever has been faster lately (`tuner.rs`) |
//!
//! In the first three, nothing is locked, counted or waited for while transactions execute; a hot record is simply a
//! busy partition. For a graph, what a *dependent* transaction touches and where a scan ends is found by reconnaissance
//! (`reconnaissance.rs`), and compared by claims on records and ranges (`read_write_set.rs`). Where an earlier
//! transaction of the batch may change what was found, the batch is cut, and the rest is planned when that one has run;
//! so the order stays that of the batch, whatever was found. How often that happens is counted as conflicts.
//!
//! Nothing waits, so nothing is interleaved: look-ups run ahead of transactions in groups, of as many accesses as the
//! window says, unless [`Interleave::None`] forbids it.
//!
//! Serial order: the order of the blocks in the batch.

mod filter;
mod graph;
mod partition;
mod pipeline;
mod read_write_set;
mod reconnaissance;
mod tuner;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use lockwork_memory::prefetch;
use lockwork_procedure::block::Batch;

use crate::blocks::Blocks;
use crate::conflicts::Cause;
use crate::contract::{BatchReport, ConflictPlan, Interleave, Options, SerialOrder};
use crate::exclusive::Executor;
use crate::host_engine::{Core, Scheme};
use crate::team::{Team, share};
use graph::Graph;
use partition::Partitions;
use pipeline::Pipeline;
pub(crate) use read_write_set::{Claim, Granules, ReadWriteSet};
use tuner::Tuner;

/// Bytes of blocks that are partitioned at a time: about what the caches nearest to the workers hold, because a block
/// that was dealt out is soon read again.
const PARTITIONED_BYTES: usize = 1 << 20;

/// A graph plan that is cut after fewer transactions has cost more than it was worth.
const FEW: usize = 64;

/// Shorter batches are surveyed sooner than other workers wake up.
const SURVEYED_ALONE: usize = 2048;

/// How far ahead of a walk over blocks their headers are prefetched.
const AHEAD: usize = 16;

/// A worker's own things, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Worker {
    executor: Executor,
    pipeline: Pipeline,
}

/// See the module.
#[derive(Debug)]
pub struct Deterministic {
    /// Row accesses in flight in each worker; zero means: no interleaving.
    window: usize,
    workers: Vec<Mutex<Worker>>,
    partitions: Partitions,
    graph: Graph,
    tuner: Tuner,
    /// How often a part of the batch was cut because a transaction could not be planned with those before it.
    cuts: u64,
    /// What all procedures together contain, and [`crate::registry::Registry::changes`] then.
    contained: (u64, u32),
}

/// What a part of a batch contains, as bits.
mod contains {
    pub(super) const WRITES: u32 = 1;
    pub(super) const STRUCTURAL: u32 = 2;
    pub(super) const CHANGES_KEYS: u32 = 4;
    pub(super) const NOT_SINGLE: u32 = 8;
    pub(super) const NOT_SEPARABLE: u32 = 16;
}

impl Deterministic {
    /// An engine with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let window = if options.interleave == Interleave::None { 0 } else { options.window };
        let workers = (0..options.threads).map(|_| Mutex::default()).collect();
        Self {
            window,
            workers,
            partitions: Partitions::default(),
            graph: Graph::default(),
            tuner: Tuner::new(options.plan),
            cuts: 0,
            contained: (0, 0),
        }
    }

    /// Runs blocks `range` of the batch by the cheapest plan. `kinds` says what they contain.
    fn run_part(&mut self, core: &Core, team: &Team, blocks: Blocks, range: Range<usize>, kinds: u32) -> u64 {
        let stable = kinds & contains::CHANGES_KEYS == 0;
        let single = kinds & contains::NOT_SINGLE == 0;
        let separable = kinds & (contains::NOT_SEPARABLE | contains::STRUCTURAL) == 0;
        if team.size() == 1 {
            self.run_in_order(core, blocks, range, stable)
        } else if kinds & contains::WRITES == 0 {
            run_free(&self.workers, core, team, blocks, range, self.window, stable);
            0
        } else if single || separable {
            let length = (PARTITIONED_BYTES / blocks.stride).max(64 * team.size());
            let starts = range.clone().step_by(length);
            let pieces = starts.map(|start| start..(start + length).min(range.end));
            let run =
                |piece| self.partitions.run(&self.workers, core, team, blocks, piece, self.window, stable, single);
            pieces.map(run).sum()
        } else {
            let (plan, length, start) = (self.tuner.choose(), range.len(), Instant::now());
            let planning_ns = match plan {
                ConflictPlan::InOrder => self.run_in_order(core, blocks, range, stable),
                _ => self.run_graph(core, team, blocks, range, stable),
            };
            self.tuner.learn(plan, length, start.elapsed());
            planning_ns
        }
    }

    /// Runs blocks `range` by as many graph plans as they are cut into.
    fn run_graph(&mut self, core: &Core, team: &Team, blocks: Blocks, range: Range<usize>, stable: bool) -> u64 {
        let (mut start, mut ahead, mut planning_ns) = (range.start, range.len(), 0);
        while start < range.end {
            let piece = start..range.end.min(start + ahead);
            let length = piece.len();
            let planned = self.graph.run(&self.workers, core, team, blocks, piece, self.window, stable);
            planning_ns += planned.planning_ns;
            let ran = planned.ran.max(1);
            if planned.ran == 0 {
                self.run_in_order(core, blocks, start..start + 1, stable);
            }
            if planned.ran < length {
                self.cuts += 1;
            }
            start += ran;
            if ran < FEW && length > ran && !self.tuner.is_told() {
                self.run_in_order(core, blocks, start..range.end, stable);
                break;
            }
            // What lies behind a cut was planned in vain.
            ahead = if ran == length { 2 * ahead } else { (2 * ran).max(FEW) };
        }
        planning_ns
    }

    /// Runs blocks `range` on this thread.
    fn run_in_order(&mut self, core: &Core, blocks: Blocks, range: Range<usize>, stable: bool) -> u64 {
        let worker = self.workers[0].get_mut().expect("no worker panicked");
        worker.pipeline.run(core, &mut worker.executor, blocks, range, self.window, stable);
        0
    }
}

/// Transactions that do not write cannot conflict: workers take pieces.
fn run_free(
    workers: &[Mutex<Worker>],
    core: &Core,
    team: &Team,
    blocks: Blocks,
    range: Range<usize>,
    window: usize,
    stable: bool,
) {
    // Long enough for looking ahead to get going, short enough that nobody waits for the last one.
    let length = (range.len() / (8 * team.size())).clamp(16, 512);
    let next = AtomicUsize::new(range.start);
    team.run(&|number| {
        let worker = &mut *workers[number].lock().expect("no worker panicked");
        loop {
            let start = next.fetch_add(length, Ordering::Relaxed);
            if start >= range.end {
                return;
            }
            let piece = start..(start + length).min(range.end);
            worker.pipeline.run(core, &mut worker.executor, blocks, piece, window, stable);
        }
    });
}

/// What blocks `range` contain; `all` is what blocks of any procedure would, so that nothing else is to be learnt.
fn survey(core: &Core, blocks: Blocks, range: Range<usize>, all: u32) -> u32 {
    let mut kinds = 0;
    let mut last = (u32::MAX, 0);
    for index in range {
        if kinds == all {
            break;
        }
        prefetch(blocks.at(index + AHEAD));
        let id = blocks.procedure(index);
        if id != last.0 {
            last = (id, core.registry.get(id).map_or(contains::NOT_SINGLE, |p| kinds_of(p.traits)));
        }
        kinds |= last.1;
    }
    kinds
}

fn kinds_of(traits: crate::registry::Traits) -> u32 {
    let bit = |is: bool, bit: u32| if is { bit } else { 0 };
    bit(traits.writes, contains::WRITES)
        | bit(traits.structural, contains::STRUCTURAL)
        | bit(traits.changes_keys, contains::CHANGES_KEYS)
        | bit(!traits.single, contains::NOT_SINGLE)
        | bit(!traits.separable && !traits.single, contains::NOT_SEPARABLE)
}

impl Scheme for Deterministic {
    const NAME: &'static str = "deterministic";
    const ORDER: SerialOrder = SerialOrder::Batch;

    fn run(&mut self, core: &Core, team: &Team, batch: &mut Batch) -> BatchReport {
        for worker in &mut self.workers {
            let worker = worker.get_mut().expect("no worker panicked");
            worker.executor.prepare(&core.registry);
            worker.pipeline.prepare(&core.registry, self.window);
        }
        let blocks = Blocks::of(core, batch);
        let whole = 0..batch.len();
        let start = Instant::now();
        let kinds = AtomicU32::new(0);
        if self.contained.0 != core.registry.changes() {
            let all = core.registry.all().map(|procedure| kinds_of(procedure.traits));
            self.contained = (core.registry.changes(), all.fold(0, std::ops::BitOr::bitor));
        }
        let all = self.contained.1;
        let alone = Team::solo();
        let surveyors = if batch.len() < SURVEYED_ALONE { &alone } else { team };
        surveyors.run(&|number| {
            let mine = share(&whole, number, surveyors.size());
            kinds.fetch_or(survey(core, blocks, mine, all), Ordering::Relaxed);
        });
        let kinds = kinds.into_inner();
        let mut planning_ns = start.elapsed().as_nanos() as u64;
        planning_ns += self.run_part(core, team, blocks, whole, kinds);
        let mut report = BatchReport { planning_ns, ..BatchReport::default() };
        report.tally.conflicts.count(Cause::Replanned, std::mem::take(&mut self.cuts));
        for worker in &mut self.workers {
            report.tally.add(&worker.get_mut().expect("no worker panicked").executor.tally);
        }
        report
    }
}
