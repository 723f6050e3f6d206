//! Runs a workload on an engine: prepare, run, verify.
//!
//! All calls are made before the clock starts, as in HOBBES (section 3.2), so that what is measured is the engine. If
//! the time is not over when the input is, the same batches run again, or, where a call leaves something behind that
//! makes it end differently the second time, as many new ones; a workload that inserts rows runs once, because its
//! tables would grow as long as the clock runs. What a pass did is observed, and new calls are made, while the clock
//! stands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockwork_engine::registry::Registered;
use lockwork_engine::{DeviceTimes, Engine, EngineError, EngineKind, Options, Tally};
use lockwork_memory::bytes_resident;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Batch, HEADER_BYTES};
use lockwork_procedure::schema::TableSchema;
use lockwork_workload::{Repeat, Workload, WorkloadError};

use super::Failure;
use super::chart::grouped;
use super::engines::create;
use super::report::{DeviceRun, Latency, Memory, Run, abort_name};

/// Batches handed over before the first is taken back.
pub(super) const AHEAD: usize = 3;

/// How long and in what pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Transactions of one pass.
    pub(super) transactions: usize,
    /// Transactions of a batch.
    pub(super) batch: usize,
    /// Passes go on until this is over; at least one.
    pub(super) time: Duration,
    /// Passes that are not counted, first.
    pub(super) warmup: usize,
    /// Whether a few batches are used again and again, instead of all being prepared.
    pub(super) recycled: bool,
    /// Batches handed over before the first is taken back; [`AHEAD`] unless nothing is to overlap.
    pub(super) ahead: usize,
}

/// The calls of one pass.
enum Input {
    /// As batches, ready to be handed over.
    Prepared(Vec<Batch>),
    /// As arguments alone, which a few batches are filled with when they come back: the clock runs meanwhile.
    Recycled(Calls, Vec<Batch>),
}

/// Procedure ids and arguments, one call after the other.
struct Calls {
    bytes: Vec<u8>,
    /// Bytes of a call: four of procedure id, then arguments.
    stride: usize,
    count: usize,
    /// Where a procedure's arguments end in its block.
    ends: Vec<usize>,
}

impl Calls {
    /// The calls in `batches`.
    fn new(engine: &dyn Engine, batches: &[Batch]) -> Self {
        let end = |registered: &Registered| registered.verified.procedure().layout().arguments_end as usize;
        let ends: Vec<usize> = (0..).map_while(|id| Some(end(&*engine.procedure(id)?))).collect();
        let stride = 4 + ends.iter().max().map_or(0, |end| end - HEADER_BYTES as usize);
        let count = batches.iter().map(Batch::len).sum();
        let mut bytes = vec![0; stride * count];
        for (call, block) in bytes.chunks_mut(stride).zip(batches.iter().flat_map(Batch::blocks)) {
            let arguments = &block.bytes()[HEADER_BYTES as usize..ends[block.procedure() as usize]];
            call[..4].copy_from_slice(&block.procedure().to_le_bytes());
            call[4..4 + arguments.len()].copy_from_slice(arguments);
        }
        Self { bytes, stride, count, ends }
    }

    /// Fills a batch with calls from `start` on; returns where it stopped.
    fn fill(&self, batch: &mut Batch, start: usize) -> usize {
        batch.clear();
        let end = self.count.min(start + batch.capacity());
        for call in self.bytes[start * self.stride..end * self.stride].chunks(self.stride) {
            let procedure = u32::from_le_bytes(call[..4].try_into().expect("four bytes"));
            let length = self.ends[procedure as usize] - HEADER_BYTES as usize;
            let mut block = batch.push(procedure).expect("as many as there is room for");
            block.bytes()[HEADER_BYTES as usize..][..length].copy_from_slice(&call[4..4 + length]);
        }
        end
    }
}

impl Input {
    fn new(engine: &dyn Engine, workload: &mut dyn Workload, plan: &Plan) -> Result<Self, Failure> {
        let mut batches = input(workload, plan)?;
        if !plan.recycled {
            return Ok(Self::Prepared(batches));
        }
        let calls = Calls::new(engine, &batches);
        batches.truncate(plan.ahead + 1);
        Ok(Self::Recycled(calls, batches))
    }

    /// Other calls of the same workload in place of these.
    fn renew(&mut self, engine: &dyn Engine, workload: &mut dyn Workload, plan: &Plan) -> Result<(), Failure> {
        // First of all the memory of the old ones.
        *self = Self::Prepared(Vec::new());
        *self = Self::new(engine, workload, plan)?;
        Ok(())
    }

    /// Batches whose results can be looked at: all, or the last ones.
    fn batches(&self) -> &[Batch] {
        let (Self::Prepared(batches) | Self::Recycled(_, batches)) = self;
        batches
    }
}

/// An engine with the workload's tables, rows and procedures, and room for the rows that `transactions` calls insert.
pub(super) fn prepare(
    kind: EngineKind,
    options: &Options,
    workload: &mut dyn Workload,
    transactions: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Box<dyn Engine>, Failure> {
    load(create(kind, options)?, workload, transactions, progress)
}

/// As [`prepare`], into an engine that was made.
pub(super) fn load<E: Engine + ?Sized>(
    mut engine: Box<E>,
    workload: &mut dyn Workload,
    transactions: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Box<E>, Failure> {
    let schemas = workload.schemas();
    let mut image = Vec::new();
    for (number, schema) in schemas.iter().enumerate() {
        let rows = workload.row_count(number);
        check_rows(schema, rows)?;
        let grown = (transactions as f64 * workload.growth(number)) as usize;
        engine.create_table(schema.clone(), rows as usize + grown)?;
        for row in 0..rows {
            if row % 100_000 == 0 {
                progress(&format!("loading {} {row} of {rows}", schema.name()));
            }
            workload.row_image(number, row, &mut image);
            engine.load(schema.name(), &image)?;
        }
    }
    register(&mut *engine, workload, &schemas)?;
    Ok(engine)
}

/// Registers the procedures of a workload, but for those that are there already, and tells it where they are.
pub(super) fn register<E: Engine + ?Sized>(
    engine: &mut E,
    workload: &mut dyn Workload,
    schemas: &[TableSchema],
) -> Result<(), Failure> {
    for (name, source) in workload.sources() {
        if engine.procedure_id(&name).is_none() {
            let assembled = assemble(&source, schemas).map_err(Failure::usage)?;
            engine.register(assembled.procedure)?;
        }
    }
    let mut lookup = |name: &str| {
        let id = engine.procedure_id(name)?;
        Some((id, engine.procedure(id)?.verified.procedure().clone()))
    };
    workload.bind(&mut lookup).map_err(Failure::usage)
}

/// Bytes of the indexes for one row, by point and by order: about what they are after loading.
const INDEX_BYTES: (u128, u128) = (36, 48);

/// Bytes of `rows` rows in a table, indexes included.
pub(super) fn table_bytes(schema: &TableSchema, rows: u64) -> u128 {
    let ordered = if schema.is_ordered() { INDEX_BYTES.1 } else { 0 };
    (schema.stride() as u128 + INDEX_BYTES.0 + ordered) * u128::from(rows)
}

/// Refuses rows that cannot fit, before anything is computed for them.
pub(super) fn check_rows(schema: &TableSchema, rows: u64) -> Result<(), Failure> {
    let what = format!("{rows} rows of table '{}'", schema.name());
    check_memory(&what, table_bytes(schema, rows), "--records")
}

/// Refuses what takes more bytes than are free; `option` is what to use less of.
pub(super) fn check_memory(what: &str, wanted: u128, option: &str) -> Result<(), Failure> {
    let have = available_memory();
    if wanted <= u128::from(have) {
        return Ok(());
    }
    let (wanted, have) = (wanted >> 20, have >> 20);
    Err(Failure::usage(format!("{what} need {wanted} MiB and {have} MiB are free; use fewer {option}")))
}

/// Bytes that the system says are free.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

/// The calls of one pass.
pub(super) fn input(workload: &mut dyn Workload, plan: &Plan) -> Result<Vec<Batch>, Failure> {
    let mut batches = Vec::new();
    let mut left = plan.transactions;
    while left > 0 {
        let size = left.min(plan.batch);
        let mut batch = Batch::new(workload.block_bytes(), size).map_err(Failure::usage)?;
        let filled = workload.fill(&mut batch, size).map_err(Failure::usage)?;
        assert_eq!(filled, size, "a fresh batch has room");
        batches.push(batch);
        left -= size;
    }
    Ok(batches)
}

/// What one pass took.
struct Pass {
    elapsed: Duration,
    planning_ns: u64,
    total_ns: u64,
    tally: Tally,
    latencies: Vec<(u64, u64)>,
    /// Of each batch that ran on a device: nanoseconds of planning, the device's times, and its blocks.
    device: Vec<(u64, DeviceTimes, usize)>,
}

fn pass(engine: &mut dyn Engine, input: &mut Input, ahead: usize) -> Result<Pass, Failure> {
    let (calls, batches) = match input {
        Input::Prepared(batches) => (None, batches),
        Input::Recycled(calls, batches) => (Some(calls), batches),
    };
    let mut waiting: std::collections::VecDeque<Batch> = std::mem::take(batches).into();
    let mut filled = 0;
    let mut started = std::collections::VecDeque::new();
    let mut pass = Pass {
        elapsed: Duration::ZERO,
        planning_ns: 0,
        total_ns: 0,
        tally: Tally::default(),
        latencies: Vec::with_capacity(waiting.len()),
        device: Vec::new(),
    };
    let start = Instant::now();
    loop {
        while started.len() < ahead
            && calls.as_ref().is_none_or(|calls| filled < calls.count)
            && let Some(mut batch) = waiting.pop_front()
        {
            if let Some(calls) = &calls {
                filled = calls.fill(&mut batch, filled);
            }
            started.push_back(Instant::now());
            engine.submit(batch).map_err(|refused| Failure::from(refused.error))?;
        }
        let Some(handed_over) = started.pop_front() else { break };
        let completed = engine.complete()?.expect("a batch is in flight");
        pass.latencies.push((handed_over.elapsed().as_nanos() as u64, completed.batch.len() as u64));
        pass.planning_ns += completed.report.planning_ns;
        pass.total_ns += completed.report.total_ns;
        pass.tally.add(&completed.report.tally);
        if let Some(times) = completed.report.device {
            pass.device.push((completed.report.planning_ns, times, completed.batch.len()));
        }
        if calls.is_some() {
            waiting.push_back(completed.batch);
        } else {
            batches.push(completed.batch);
        }
    }
    batches.extend(waiting);
    pass.elapsed = start.elapsed();
    Ok(pass)
}

/// Runs the workload on one engine and verifies what it did.
pub(super) fn run(
    kind: EngineKind,
    options: &Options,
    workload: Box<dyn Workload>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Run, Failure> {
    run_on(|| create(kind, options), workload, plan, progress)
}

/// As [`run`], on an engine that is made when memory has been measured.
fn run_on(
    create: impl FnOnce() -> Result<Box<dyn Engine>, EngineError>,
    mut workload: Box<dyn Workload>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Run, Failure> {
    let before = bytes_resident().unwrap_or(0);
    let mut engine = load(create()?, &mut *workload, plan.transactions, progress)?;
    let resident = bytes_resident().unwrap_or(0).saturating_sub(before);
    let mut memory = lockwork_storage::TableMemory::default();
    engine.with_database(&mut |database| memory = database.memory())?;
    progress("making calls");
    let mut input = Input::new(&*engine, &mut *workload, plan)?;
    engine.start()?;
    let (repeatable, afresh) = (workload.repeat() != Repeat::Never, workload.repeat() == Repeat::Observed);
    let warmup = if repeatable { plan.warmup } else { 0 };
    for _ in 0..warmup {
        pass(&mut *engine, &mut input, plan.ahead)?;
        input.batches().iter().for_each(|batch| workload.observe(batch));
        if afresh {
            input.renew(&*engine, &mut *workload, plan)?;
        }
    }
    let mut passes: Vec<Pass> = Vec::new();
    let mut spent = Duration::ZERO;
    while passes.is_empty() || (repeatable && spent < plan.time) {
        if let Some(last) = passes.last() {
            let rate = plan.transactions as f64 / last.elapsed.as_secs_f64();
            progress(&format!("{:>14} txn/s, running for {:.1} s", grouped(rate), spent.as_secs_f64()));
            if afresh {
                input.renew(&*engine, &mut *workload, plan)?;
            }
        } else {
            progress("running");
        }
        let done = pass(&mut *engine, &mut input, plan.ahead)?;
        input.batches().iter().for_each(|batch| workload.observe(batch));
        spent += done.elapsed;
        passes.push(done);
    }
    progress("verifying");
    let (verified, verification) = match verify(&*engine, &mut *workload, input.batches()) {
        Ok(words) => (true, words),
        Err(Failure::Check(problem)) => (false, problem),
        Err(failure) => return Err(failure),
    };
    let mut rates: Vec<f64> = passes.iter().map(|pass| plan.transactions as f64 / pass.elapsed.as_secs_f64()).collect();
    rates.sort_by(f64::total_cmp);
    let rate = rates[rates.len() / 2];
    let mut tally = Tally::default();
    passes.iter().for_each(|pass| tally.add(&pass.tally));
    let mut aborts: BTreeMap<String, u64> = BTreeMap::new();
    for (&code, &count) in tally.aborted.iter().chain(&tally.failed) {
        *aborts.entry(abort_name(code)).or_default() += count;
    }
    let sum = |of: fn(&Pass) -> u64| passes.iter().map(of).sum::<u64>();
    let schemas = workload.schemas().into_iter().enumerate();
    let bytes = |schema: &TableSchema| -> u64 {
        schema.columns().iter().map(|column| u64::from(column.column_type.width())).sum()
    };
    let images = schemas.map(|(table, schema)| workload.row_count(table) * bytes(&schema)).sum();
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    Ok(Run {
        engine: engine.name().to_string(),
        throughput_txn_per_s: rate,
        accesses_per_s: rate * f64::from(workload.accesses()),
        latency_us: Latency::of(passes.iter().flat_map(|pass| pass.latencies.clone()).collect()),
        transactions: tally.transactions(),
        committed: tally.committed,
        aborts,
        conflicts: tally.conflicts.total(),
        conflict_causes: tally.conflicts.by_cause().map(|(cause, count)| (cause.to_string(), count)).collect(),
        planning_share: sum(|pass| pass.planning_ns) as f64 / sum(|pass| pass.total_ns).max(1) as f64,
        payload_bytes_per_txn: workload.payload_bytes(),
        memory_mib: Memory {
            row_images: mib(images),
            rows: mib(memory.rows_bytes as u64),
            index: mib((memory.index_bytes + memory.ordered_bytes) as u64),
            resident: mib(resident),
        },
        device: device_run(&passes),
        verified,
        verification,
        digest: engine.digest()?.to_string(),
    })
}

/// What a device spent on the batches of a run; `None` if there was none.
fn device_run(passes: &[Pass]) -> Option<DeviceRun> {
    let all = || passes.iter().flat_map(|pass| &pass.device);
    let largest = all().map(|(_, _, blocks)| *blocks).max()?;
    // The last batch of a pass can be shorter; it would only blur the medians.
    let whole = || all().filter(|(_, _, blocks)| *blocks == largest);
    let median = |of: fn(&(u64, DeviceTimes, usize)) -> u64| {
        let mut values: Vec<u64> = whole().map(of).collect();
        values.sort_unstable();
        values[values.len() / 2] as f64 / 1e6
    };
    let sum = |of: fn(&(u64, DeviceTimes, usize)) -> u64| all().map(of).sum::<u64>() as f64;
    let (planning, into) = (sum(|batch| batch.0), sum(|batch| batch.1.transfer_in_ns));
    let (execution, out) = (sum(|batch| batch.1.execution_ns), sum(|batch| batch.1.transfer_out_ns));
    let wall = passes.iter().map(|pass| pass.elapsed.as_nanos() as f64).sum::<f64>();
    let busy = planning + into + execution + out;
    Some(DeviceRun {
        batches: all().count(),
        blocks: largest,
        planning_ms: median(|batch| batch.0),
        transfer_in_ms: median(|batch| batch.1.transfer_in_ns),
        execution_ms: median(|batch| batch.1.execution_ns),
        transfer_out_ms: median(|batch| batch.1.transfer_out_ns),
        waves: sum(|batch| batch.1.waves.into()) / all().count() as f64,
        planning_share: planning / (into + execution + out).max(1.0),
        hidden_share: (1.0 - wall / busy.max(1.0)).max(0.0),
        kernel_txn_per_s: all().map(|batch| batch.2 as f64).sum::<f64>() * 1e9 / execution.max(1.0),
    })
}

/// Checks results of the last pass and contents of the database.
///
/// # Errors
/// [`Failure::Check`] says what is wrong with them; any other failure, why the engine does not tell them.
pub(super) fn verify(engine: &dyn Engine, workload: &mut dyn Workload, batches: &[Batch]) -> Result<String, Failure> {
    let wrong = |error: WorkloadError| Failure::Check(error.to_string());
    for batch in batches {
        workload.check_results(batch).map_err(wrong)?;
    }
    let mut refused = None;
    let mut export = |row: &mut dyn FnMut(&str, &[u8])| refused = engine.export(row).err().or(refused.take());
    let checked = workload.check(&mut export);
    // What was not told looks as if it were not there.
    match refused {
        Some(error) => Err(error.into()),
        None => checked.map_err(wrong),
    }
}

#[cfg(test)]
mod tests;
