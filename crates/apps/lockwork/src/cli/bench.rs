//! `lockwork bench WORKLOAD`: engines one after the other, in one process, on identical input.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockwork_engine::{ConflictPlan, EngineKind, Interleave, LockPolicy, Options, Settings};
use lockwork_memory::Pages;
use lockwork_workload::properties::{Properties, YcsbRun, parse};
use lockwork_workload::ycsb::{ReadScope, Ycsb, YcsbConfig};
use lockwork_workload::{Repeat, WorkloadError};
use serde_json::json;

use super::engines::{self, EngineOptions};
use super::progress::Live;
use super::report::{Environment, Output, Report, prepare_folder};
use super::run::{AHEAD, Plan, check_memory, check_rows, run, table_bytes};
use super::workloads::{Make, NAMES, boxed, named};
use super::{
    Failure, Outcome, alone, durability, figures, fisslock, lock_peers, lock_service, lock_transactions, near_data,
    opencl, partitions, print,
};

/// Bytes of blocks that one pass may take when the number of transactions is not given.
const PASS_BYTES: usize = 512 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// 8 fields of 64 bytes, one operation a transaction
    Hobbes,
    /// 1 KiB rows, 16 operations a transaction
    Bionicdb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Read {
    Field,
    Row,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// one after the other, nothing prefetched
    None,
    /// groups, each begun as a whole and then ended in order; deterministic takes it for dynamic
    Batch,
    /// each left wherever it would wait for memory or for a lock
    Dynamic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    NoWait,
    WaitDie,
    Ordered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Conflicts {
    Measured,
    Graph,
    InOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    Prepared,
    Recycled,
}

#[derive(Clone, Debug, Args)]
// Without it the whole would count as an argument that was given.
#[group(skip)]
pub(super) struct Arguments {
    /// ycsb-a to ycsb-f, ycsb (with -P), transfer, smallbank, tatp, tpcc, tpcc-np (NewOrder and Payment alone), locks,
    /// lock-service, lock-peers, durability, cluster, partitions, memory, copy; opencl, bionicdb, fpga, near-data,
    /// fisslock, lock-tatp, lock-tpcc, lock-recovery (figures of papers), engines (all of them beside each other)
    pub(super) workload: String,
    /// Engines, with commas: serial, two-phase, optimistic, timestamp, deterministic-queue, deterministic,
    /// opencl-deterministic, opencl-two-phase, fpga, network-two-phase, network-deterministic
    /// [default: two-phase,deterministic-queue,deterministic; for engines all
    /// that run on the CPU]
    #[arg(long, value_delimiter = ',')]
    engine: Vec<String>,
    /// Sizes of a paper
    #[arg(long, value_enum, default_value = "hobbes")]
    preset: Preset,
    /// Worker threads [default: threadcount of -P, or the cores; for memory 1]
    #[arg(long, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,
    /// Rows; for transfer accounts, for smallbank customers, for tatp and lock-tatp subscribers, for tpcc, tpcc-np and
    /// lock-tpcc warehouses [default: the preset's; bionicdb: 300,000 a thread; transfer, smallbank and locks:
    /// 1,000,000; tatp and lock-tatp: 100,000; tpcc and tpcc-np: one a thread; lock-tpcc: 1,200;
    /// lock-peers: 10,000 locks, with --bank 1,000,000 accounts]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(super) records: Option<u64>,
    /// Skew, 0 to below 1 [default: 0.5, or zipfianconstant of -P]
    #[arg(long)]
    pub(super) theta: Option<f64>,
    /// For smallbank: share of the choices that go to 100 hot customers, 0 to 1
    #[arg(long)]
    pub(super) hot: Option<f64>,
    /// For tpcc: share of payments and of order lines that are remote [default: 0.15 and 0.01]; for tpcc-np: share of
    /// payments and of orders that are [default: 0.15 and 0.01]; for ycsb: share of accesses outside the partition of
    /// their transaction's first one, 0 to (n - 1) / n for n operations [default: all accesses go to the whole table]
    #[arg(long)]
    pub(super) remote: Option<f64>,
    /// For ycsb with --remote: partitions that keys are chosen in [default: one a thread]
    #[arg(long)]
    partitions: Option<u32>,
    /// Operations of a transaction
    #[arg(long)]
    ops: Option<u32>,
    /// Fields of a row
    #[arg(long)]
    fields: Option<u32>,
    /// Whether a read is of one field or of all
    #[arg(long, value_enum)]
    read: Option<Read>,
    /// Transactions of a batch, no more than a pass has [default: 1 MiB of them, 256 to 8192; for locks 131,072]
    #[arg(long)]
    pub(super) batch: Option<usize>,
    /// How transactions of one worker overlap
    #[arg(long, value_enum, default_value = "dynamic")]
    interleave: Mode,
    /// Row accesses in flight in each worker
    #[arg(long, default_value_t = 16)]
    window: usize,
    /// What two-phase does when a lock is held
    #[arg(long, value_enum, default_value = "ordered")]
    policy: Policy,
    /// All batches prepared before the clock starts, or a few that are filled again while it runs, as a client would
    #[arg(long, value_enum, default_value = "prepared")]
    input: Source,
    /// How deterministic runs transactions of several records that cannot be cut into pieces
    #[arg(long, value_enum, default_value = "measured")]
    plan: Conflicts,
    /// Seconds to run each engine for, in whole passes; one pass where calls insert, which cannot be made twice
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Transactions of one pass over the input [default: as many as fit in 512 MiB, at most 2,000,000; for locks
    /// 8,388,608]
    #[arg(long)]
    pub(super) txns: Option<usize>,
    /// Passes before measuring
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// For bionicdb, engines, lock-service, lock-peers, lock-recovery, lock-tatp, lock-tpcc and durability: rounds of
    /// measuring (for the first two after one that warms up); figures are their medians
    #[arg(long, default_value_t = 3)]
    pub(super) passes: usize,
    /// For bionicdb, engines, fpga, near-data and durability: a tenth of the work, and one short round
    #[arg(long)]
    pub(super) quick: bool,
    /// Everything random follows from it [default: 1]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// A YCSB property file, or KEY=VALUE; may stand several times. For ycsb the rest is as YCSB has it, for ycsb-a to
    /// ycsb-f as that workload and its preset have it; other options win over properties
    #[arg(short = 'P', visible_short_alias = 'p', value_name = "FILE or KEY=VALUE")]
    property: Vec<String>,
    /// For locks: queue, batch
    #[arg(long, value_delimiter = ',', default_value = "queue,batch")]
    pub(super) manager: Vec<String>,
    /// For locks: a (half exclusive) or b (one in twenty)
    #[arg(long, default_value = "a")]
    pub(super) mix: String,
    #[command(flatten)]
    engine_options: EngineOptions,
    /// Also print what OpenCL engines spent on planning, transfers and kernels for each batch
    #[arg(long)]
    profile: bool,
    /// Plain pages instead of huge ones
    #[arg(long)]
    plain_pages: bool,
    /// How results are printed
    #[arg(long, value_enum, default_value = "text")]
    pub(super) output: Output,
    /// A folder for result.json, result.csv and throughput.svg, or the charts of all figures [default: none;
    /// out/NAME for opencl, bionicdb, engines, fpga and near-data]
    #[arg(long)]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) service: lock_service::Arguments,
    #[command(flatten)]
    pub(super) peers: lock_peers::Arguments,
    #[command(flatten)]
    pub(super) recovery: lock_peers::RecoveryArguments,
    #[command(flatten)]
    pub(super) near_data: near_data::Arguments,
    #[command(flatten)]
    pub(super) fpga: figures::FpgaArguments,
}

/// Reads a number; what else was given is told what is possible. Workloads have further limits.
fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("whole numbers from 0 to {} are possible", u64::MAX))
}

/// What a list with nothing between two commas is told.
pub(super) fn empty_entry(option: &str, example: &str) -> Failure {
    Failure::usage(format!("{option} has an empty entry; write names with single commas between, as in {example}"))
}

impl Arguments {
    pub(super) fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }
}

pub(super) fn command(arguments: &Arguments) -> Outcome {
    match arguments.workload.as_str() {
        "locks" => return alone::bench_locks(arguments),
        "fisslock" => return fisslock::bench_fisslock(arguments),
        "lock-service" => return lock_service::bench_lock_service(arguments),
        "lock-tatp" => return lock_transactions::bench(arguments, lock_transactions::Benchmark::Tatp),
        "lock-tpcc" => return lock_transactions::bench(arguments, lock_transactions::Benchmark::Tpcc),
        "lock-recovery" => return lock_peers::bench_lock_recovery(arguments),
        "lock-peers" => return lock_peers::bench_lock_peers(arguments),
        "near-data" => return near_data::bench_near_data(arguments),
        "partitions" => return partitions::bench_partitions(arguments),
        "durability" => return durability::bench_durability(arguments),
        "cluster" => return durability::bench_cluster(arguments),
        "memory" => return alone::bench_memory(arguments),
        "copy" => return opencl::bench_copy(arguments),
        "opencl" => return opencl::bench_opencl(arguments),
        "bionicdb" => return figures::bench_bionicdb(arguments),
        "engines" => return figures::bench_engines(arguments),
        "fpga" => return figures::bench_fpga(arguments),
        _ => {}
    }
    let fixed = named(arguments)?;
    let ycsb = if fixed.is_some() { None } else { Some(ycsb(arguments)?) };
    let options = options(arguments, ycsb.as_ref().and_then(|run| run.thread_count))?;
    let seed = ycsb.as_ref().map_or(arguments.seed(), |run| run.config.seed);
    let kinds = kinds(arguments, &[EngineKind::TWO_PHASE, EngineKind::DETERMINISTIC_QUEUE, EngineKind::DETERMINISTIC])?;
    arguments.engine_options.settings(&kinds)?;
    let (make, mut plan, description) = workload(arguments, &kinds, fixed, ycsb)?;
    plan.warmup = arguments.warmup;
    let settings = json!({
        "workload": arguments.workload, "effective": description, "threads": options.threads,
        "batch": plan.batch, "transactions_per_pass": plan.transactions, "time_s": plan.time.as_secs_f64(),
        "warmup_passes": plan.warmup, "interleave": format!("{:?}", options.interleave).to_lowercase(),
        "window": options.window, "policy": format!("{:?}", options.policy).to_lowercase(),
        "input": if plan.recycled { "recycled" } else { "prepared" },
        "plan": format!("{:?}", options.plan).to_lowercase(),
        "pages": format!("{:?}", options.pages).to_lowercase(), "seed": seed,
        "opencl_device": opencl_device(&kinds, &options.settings),
    });
    let mut report = Report { schema: 1, environment: Environment::read(), settings, runs: Vec::new() };
    prepare_folder(arguments.out.as_deref())?;
    let live = Live::new(kinds.iter().map(|kind| kind.name()));
    for (row, &kind) in kinds.iter().enumerate() {
        report.runs.push(run(kind, &options, make()?, &plan, &mut |what| live.show(row, what))?);
    }
    drop(live);
    report.forms().give(arguments.output, arguments.out.as_deref())?;
    if arguments.profile && arguments.output == Output::Text {
        print(&report.profile())?;
    }
    match report.runs.iter().find(|run| !run.verified) {
        Some(run) => Err(Failure::Check(format!("{}: {}", run.engine, run.verification))),
        None => Ok(()),
    }
}

/// The engines that were asked for, or else these.
pub(super) fn kinds(arguments: &Arguments, default: &[EngineKind]) -> Result<Vec<EngineKind>, Failure> {
    if arguments.engine.is_empty() {
        return Ok(default.to_vec());
    }
    let parse = |name: &String| match name.as_str() {
        "" => Err(empty_entry("--engine", "--engine serial,deterministic")),
        name => engines::find(name),
    };
    arguments.engine.iter().map(parse).collect()
}

/// The options of engines where no property file has a say.
pub(super) fn base_options(arguments: &Arguments) -> Result<Options, Failure> {
    options(arguments, None)
}

/// Every way in which transactions can overlap, by name; other options as they were given.
pub(super) fn interleavings(arguments: &Arguments) -> Result<Vec<(String, Options)>, Failure> {
    let named = |&mode: &Mode| {
        let name = mode.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string());
        Ok((name, base_options(&Arguments { interleave: mode, ..arguments.clone() })?))
    };
    Mode::value_variants().iter().map(named).collect()
}

/// `threads` is what a property says.
fn options(arguments: &Arguments, threads: Option<u32>) -> Result<Options, Failure> {
    let default = Options::default();
    Ok(Options {
        settings: arguments.engine_options.settings(&engines::all())?,
        threads: arguments.threads.or(threads.map(|count| count as usize)).unwrap_or(default.threads),
        interleave: match arguments.interleave {
            Mode::None => Interleave::None,
            Mode::Batch => Interleave::Batch,
            Mode::Dynamic => Interleave::Dynamic,
        },
        window: arguments.window,
        policy: match arguments.policy {
            Policy::NoWait => LockPolicy::NoWait,
            Policy::WaitDie => LockPolicy::WaitDie,
            Policy::Ordered => LockPolicy::Ordered,
        },
        plan: match arguments.plan {
            Conflicts::Measured => ConflictPlan::Measured,
            Conflicts::Graph => ConflictPlan::Graph,
            Conflicts::InOrder => ConflictPlan::InOrder,
        },
        pages: if arguments.plain_pages { Pages::Plain } else { Pages::Huge },
        ..default
    })
}

/// What OpenCL engines run on, if there are any among `kinds`.
fn opencl_device(kinds: &[EngineKind], settings: &Settings) -> Option<String> {
    if !kinds.iter().any(|kind| lockwork_opencl::ENGINES.contains(kind)) {
        return None;
    }
    let device = lockwork_opencl::chosen(lockwork_opencl::device(settings).ok()?).ok()?;
    Some(format!("{} '{}', {}", device.kind.name(), device.name, device.version))
}

/// The number of the OpenCL device that was asked for.
pub(super) fn device(arguments: &Arguments) -> Result<Option<u16>, Failure> {
    let settings = arguments.engine_options.settings(lockwork_opencl::ENGINES)?;
    Ok(lockwork_opencl::device(&settings)?)
}

/// The workload that was asked for: how to make it afresh for every engine, its plan, and its effective parameters.
fn workload(
    arguments: &Arguments,
    kinds: &[EngineKind],
    fixed: Option<Make>,
    ycsb: Option<YcsbRun>,
) -> Result<(Make, Plan, String), Failure> {
    let (make, count): (Make, Option<u64>) = match (fixed, ycsb) {
        (Some(make), _) => (make, None),
        (None, Some(YcsbRun { config, operation_count, .. })) => {
            let count = operation_count.map(|wanted| wanted.div_ceil(u64::from(config.operations)).max(1));
            (Box::new(move || boxed(Ycsb::new(config.clone()))), count)
        }
        (None, None) => unreachable!("what is not named otherwise is YCSB, or was refused"),
    };
    let first = make()?;
    let stride = (first.block_bytes() as usize).next_multiple_of(64);
    let most = (PASS_BYTES / stride).clamp(1, 2_000_000);
    let transactions = arguments.txns.or(count.map(|count| count as usize)).unwrap_or(most);
    let batch = arguments.batch.unwrap_or_else(|| ((1 << 20) / stride).clamp(256, 8192)).min(transactions);
    for (option, value) in [("--txns", Some(transactions)), ("--batch", arguments.batch)] {
        if value == Some(0) {
            return Err(Failure::usage(format!("{option} is 0; 1 or more is possible")));
        }
    }
    if !(arguments.time.is_finite() && (0.0..=86_400.0).contains(&arguments.time)) {
        // As the debugger has it: 1e300 would be three hundred digits.
        return Err(Failure::usage(format!("--time is {:?}; 0 to 86400 seconds are possible", arguments.time)));
    }
    if arguments.warmup > 86_400 {
        return Err(Failure::usage(format!("--warmup is {}; 0 to 86400 passes are possible", arguments.warmup)));
    }
    let time = Duration::from_secs_f64(arguments.time);
    let recycled = arguments.input == Source::Recycled;
    if recycled && first.repeat() != Repeat::Freely {
        let why = if first.repeat() == Repeat::Never { "inserts" } else { "checks what every call did" };
        return Err(Failure::usage(format!(
            "--input recycled is not possible for a workload that {why}: use prepared"
        )));
    }
    let schemas = first.schemas();
    let tables = schemas.iter().enumerate();
    // Engines on devices and in other processes keep tables here and there, which may be the same memory.
    let copies = 1 + u128::from(kinds.iter().any(|kind| kind.runs_on_device()));
    let rows = tables.map(|(number, schema)| {
        let grown = (transactions as f64 * first.growth(number)) as u64;
        copies * table_bytes(schema, first.row_count(number).saturating_add(grown))
    });
    let rows: u128 = rows.sum();
    // Recycled input keeps its calls beside the batches that it is made from.
    let calls = transactions as u128 * stride as u128 * if recycled { 2 } else { 1 };
    check_memory(&format!("the rows and {transactions} transactions"), rows + calls, "--txns or --records")?;
    let plan = Plan { transactions, batch, time, warmup: 0, recycled, ahead: AHEAD };
    Ok((make, plan, first.describe()))
}

/// The YCSB workload that was named, changed by properties, changed by options.
fn ycsb(arguments: &Arguments) -> Result<YcsbRun, Failure> {
    let name = arguments.workload.as_str();
    if name == "ycsb" && arguments.property.is_empty() {
        return Err(Failure::usage("'bench ycsb' wants a property file: -P FILE, and -p KEY=VALUE for changes"));
    }
    let properties = properties(&arguments.property)?;
    let run = if name == "ycsb" {
        properties.to_run()
    } else {
        let letter = name.strip_prefix("ycsb-").unwrap_or_default().chars();
        let (Some(letter @ 'a'..='f'), None) = (letter.clone().next(), letter.clone().nth(1)) else {
            return Err(Failure::usage(format!(
                "no workload is called '{name}'; there are ycsb-a to ycsb-f, ycsb (with -P), transfer, smallbank, tatp, \
                 tpcc, tpcc-np, locks, lock-service, lock-peers, lock-recovery, lock-tatp, lock-tpcc, fisslock, \
                 near-data, durability, cluster, partitions, memory, copy, opencl, bionicdb, fpga, engines"
            )));
        };
        let config = match arguments.preset {
            Preset::Hobbes => YcsbConfig::hobbes(letter),
            Preset::Bionicdb => YcsbConfig::bionicdb(letter),
        };
        properties.over(config.map_err(Failure::usage)?)
    };
    let mut run = run.map_err(refused)?;
    run.warnings.iter().for_each(|warning| eprintln!("lockwork: warning: {warning}"));
    let config = &mut run.config;
    let threads = arguments.threads.or(run.thread_count.map(|count| count as usize));
    let threads = threads.unwrap_or(Options::default().threads);
    if name != "ycsb" && arguments.preset == Preset::Bionicdb && properties.get("recordcount").is_none() {
        config.records = 300_000_u64.saturating_mul(threads as u64);
    }
    config.seed = arguments.seed.unwrap_or(config.seed);
    config.records = arguments.records.unwrap_or(config.records);
    config.theta = arguments.theta.unwrap_or(config.theta);
    config.operations = arguments.ops.unwrap_or(config.operations);
    config.fields = arguments.fields.unwrap_or(config.fields);
    match arguments.read {
        Some(Read::Field) => config.read_scope = ReadScope::Field,
        Some(Read::Row) => config.read_scope = ReadScope::Row,
        None => {}
    }
    match (arguments.remote, arguments.partitions) {
        (None, None) => {}
        (None, Some(_)) => return Err(Failure::usage("--partitions means something with --remote; give it, 0 to 1")),
        (Some(remote), partitions) => {
            config.remote = remote;
            config.partitions = partitions.unwrap_or(u32::try_from(threads.max(1)).unwrap_or(u32::MAX));
        }
    }
    config.validate().map_err(refused)?;
    check_rows(&config.schema().map_err(Failure::usage)?, config.records)?;
    Ok(run)
}

/// An error of a workload, in the words of this command.
pub(super) fn refused(error: WorkloadError) -> Failure {
    match &error {
        WorkloadError::Option { option, value, expected } => match NAMES.iter().find(|(name, _)| name == option) {
            Some((_, name)) => Failure::usage(format!("{name} is {value}; {expected}")),
            None => Failure::usage(error),
        },
        _ => Failure::usage(error),
    }
}

fn properties(given: &[String]) -> Result<Properties, Failure> {
    let mut properties = Properties::default();
    let (files, settings): (Vec<_>, Vec<_>) = given.iter().partition(|text| !text.contains('='));
    for (number, file) in files.iter().enumerate() {
        if number > 0 {
            return Err(Failure::usage("one property file is possible; make changes with -p KEY=VALUE"));
        }
        if file.is_empty() {
            return Err(Failure::usage("-P is empty; give it a property file, or KEY=VALUE"));
        }
        let bytes = std::fs::read(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or_else(|| {
            Failure::usage(format!("{file}: no text (UTF-8), and a property file has lines of KEY=VALUE"))
        })?;
        properties = parse(&text, file).map_err(Failure::usage)?;
    }
    for setting in settings {
        properties.set(setting).map_err(Failure::usage)?;
    }
    Ok(properties)
}
