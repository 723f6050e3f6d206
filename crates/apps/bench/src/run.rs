//! `lockwork-bench run WORKLOAD`: engines one after the other, in one process, on identical input.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use lockwork_engine::{ConflictPlan, EngineKind, LockPolicy, Options, Settings};
use lockwork_workload::Repeat;
use lockwork_workload::properties::{Properties, YcsbRun, parse};
use lockwork_workload::ycsb::{ReadScope, Ycsb, YcsbConfig};
use serde_json::json;

use super::measure::{AHEAD, Plan, check_memory, check_rows, run, table_bytes};
use super::options::{Engines, Overlap, Results, Workers, name_of, whole};
use super::progress::Live;
use super::report::Report;
use super::workloads::{self, Make, Sizes, boxed, refused};
use super::{Environment, Failure, Outcome, Output, print};

/// Bytes of blocks that one pass may take when the number of transactions is not given.
const PASS_BYTES: usize = 512 << 20;

/// What is run.
#[derive(Debug, Subcommand)]
pub(super) enum Workload {
    /// YCSB A: half reads, half updates
    YcsbA(Preset),
    /// YCSB B: 95 % reads, 5 % updates
    YcsbB(Preset),
    /// YCSB C: reads
    YcsbC(Preset),
    /// YCSB D: 95 % reads of what is new, 5 % inserts
    YcsbD(Preset),
    /// YCSB E: 95 % scans, 5 % inserts
    YcsbE(Preset),
    /// YCSB F: half reads, half read-modify-writes
    YcsbF(Preset),
    /// YCSB as a property file describes it
    Ycsb(YcsbOptions),
    /// Transfers of money between accounts
    Transfer(Transfer),
    /// SmallBank
    Smallbank(Smallbank),
    /// TATP
    Tatp(Tatp),
    /// TPC-C: all five transactions
    Tpcc(Tpcc),
    /// TPC-C: NewOrder and Payment alone
    TpccNp(Tpcc),
}

/// How an engine runs whatever workload.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Common {
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    workers: Workers,
    /// Transactions of a batch, at most those of a pass [default: 1 MiB of them, 256 to 8192]
    #[arg(long)]
    batch: Option<usize>,
    /// How transactions of one worker overlap
    #[arg(long, value_enum, default_value = "dynamic")]
    interleave: Overlap,
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
    /// Transactions of one pass over the input [default: as many as fit in 512 MiB, at most 2,000,000]
    #[arg(long)]
    txns: Option<usize>,
    /// Passes before measuring
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// Determines everything random [default: 1]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Also print what OpenCL engines spent on planning, transfers and kernels for each batch
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    results: Results,
}

/// Options of YCSB.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct YcsbOptions {
    #[command(flatten)]
    common: Common,
    /// Rows [default: the preset's, or recordcount of -P; preset bionicdb: 300,000 a thread]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Skew, 0 to below 1 [default: 0.5, or zipfianconstant of -P]
    #[arg(long)]
    theta: Option<f64>,
    /// Operations of a transaction
    #[arg(long)]
    ops: Option<u32>,
    /// Fields of a row
    #[arg(long)]
    fields: Option<u32>,
    /// Whether a read is of one field or of all
    #[arg(long, value_enum)]
    read: Option<Read>,
    /// Share of accesses outside the partition of their transaction's first one, 0 to (n - 1) / n for n operations
    /// [default: all accesses go to the whole table]
    #[arg(long)]
    remote: Option<f64>,
    /// With --remote: partitions that keys are chosen in [default: one a thread]
    #[arg(long)]
    partitions: Option<u32>,
    /// A YCSB property file, or KEY=VALUE; may stand several times. Other options win over properties
    #[arg(short = 'P', visible_short_alias = 'p', value_name = "FILE or KEY=VALUE")]
    property: Vec<String>,
}

/// Options of a YCSB workload with a letter.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Preset {
    /// Sizes of a paper
    #[arg(long, value_enum, default_value = "hobbes")]
    preset: Paper,
    #[command(flatten)]
    options: YcsbOptions,
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Transfer {
    #[command(flatten)]
    common: Common,
    /// Accounts [default: 1,000,000]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Skew, 0 to below 1 [default: 0.5]
    #[arg(long)]
    theta: Option<f64>,
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Smallbank {
    #[command(flatten)]
    common: Common,
    /// Customers [default: 1,000,000]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Skew, 0 to below 1
    #[arg(long)]
    theta: Option<f64>,
    /// Share of the choices that go to 100 hot customers, 0 to 1
    #[arg(long)]
    hot: Option<f64>,
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Tatp {
    #[command(flatten)]
    common: Common,
    /// Subscribers [default: 100,000]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
}

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Tpcc {
    #[command(flatten)]
    common: Common,
    /// Warehouses [default: one a thread]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Share of payments and of order lines (tpcc) or orders (tpcc-np) that are remote [default: 0.15 and 0.01]
    #[arg(long)]
    remote: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Paper {
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

impl Common {
    fn sizes(&self, records: Option<u64>) -> Sizes {
        Sizes { records, seed: self.seed.unwrap_or(1), ..Sizes::default() }
    }

    /// The engines, and their options; `threads` is the number of a property file.
    fn engines(&self, threads: Option<u32>) -> Result<(Vec<EngineKind>, Options), Failure> {
        let default = [EngineKind::TWO_PHASE, EngineKind::DETERMINISTIC_QUEUE, EngineKind::DETERMINISTIC];
        let (kinds, options) = self.engines.choose(&default)?;
        let threads = threads.map_or(options.threads, |count| count as usize);
        let options = Options {
            interleave: self.interleave.into(),
            policy: match self.policy {
                Policy::NoWait => LockPolicy::NoWait,
                Policy::WaitDie => LockPolicy::WaitDie,
                Policy::Ordered => LockPolicy::Ordered,
            },
            plan: match self.plan {
                Conflicts::Measured => ConflictPlan::Measured,
                Conflicts::Graph => ConflictPlan::Graph,
                Conflicts::InOrder => ConflictPlan::InOrder,
            },
            ..self.workers.apply(Options { threads, ..options })
        };
        Ok((kinds, options))
    }
}

/// A workload, understood.
struct Wanted<'a> {
    name: &'static str,
    common: &'a Common,
    make: Make,
    seed: u64,
    /// Of a property file: threads, and transactions of a pass.
    threads: Option<u32>,
    transactions: Option<u64>,
}

impl Workload {
    fn wanted(&self) -> Result<Wanted<'_>, Failure> {
        let plain = |name, common, sizes: Sizes, make: fn(&Sizes) -> Result<Make, Failure>| {
            Ok(Wanted { name, common, make: make(&sizes)?, seed: sizes.seed, threads: None, transactions: None })
        };
        match self {
            Self::YcsbA(preset) => preset.wanted("ycsb-a", 'a'),
            Self::YcsbB(preset) => preset.wanted("ycsb-b", 'b'),
            Self::YcsbC(preset) => preset.wanted("ycsb-c", 'c'),
            Self::YcsbD(preset) => preset.wanted("ycsb-d", 'd'),
            Self::YcsbE(preset) => preset.wanted("ycsb-e", 'e'),
            Self::YcsbF(preset) => preset.wanted("ycsb-f", 'f'),
            Self::Ycsb(options) if options.property.is_empty() => {
                Err(Failure::usage("'run ycsb' needs a property file: -P FILE, and -p KEY=VALUE for changes"))
            }
            Self::Ycsb(options) => {
                let properties = properties(&options.property)?;
                options.wanted("ycsb", properties.to_run().map_err(refused)?)
            }
            Self::Transfer(Transfer { common, records, theta }) => {
                let sizes = Sizes { theta: *theta, ..common.sizes(*records) };
                plain("transfer", common, sizes, workloads::transfer)
            }
            Self::Smallbank(Smallbank { common, records, theta, hot }) => {
                let sizes = Sizes { theta: *theta, hot: *hot, ..common.sizes(*records) };
                plain("smallbank", common, sizes, workloads::smallbank)
            }
            Self::Tatp(Tatp { common, records }) => plain("tatp", common, common.sizes(*records), workloads::tatp),
            Self::Tpcc(options) => plain("tpcc", &options.common, options.sizes(), workloads::tpcc),
            Self::TpccNp(options) => plain("tpcc-np", &options.common, options.sizes(), workloads::tpcc_np),
        }
    }
}

impl Tpcc {
    fn sizes(&self) -> Sizes {
        let threads = self.common.workers.threads.unwrap_or(Options::default().threads) as u64;
        Sizes { remote: self.remote, ..self.common.sizes(Some(self.records.unwrap_or(threads))) }
    }
}

impl Preset {
    fn wanted(&self, name: &'static str, letter: char) -> Result<Wanted<'_>, Failure> {
        let properties = properties(&self.options.property)?;
        let config = match self.preset {
            Paper::Hobbes => YcsbConfig::hobbes(letter),
            Paper::Bionicdb => YcsbConfig::bionicdb(letter),
        };
        let mut run = properties.over(config.map_err(Failure::usage)?).map_err(refused)?;
        if self.preset == Paper::Bionicdb && properties.get("recordcount").is_none() {
            run.config.records = 300_000_u64.saturating_mul(self.options.threads(&run) as u64);
        }
        self.options.wanted(name, run)
    }
}

impl YcsbOptions {
    fn threads(&self, run: &YcsbRun) -> usize {
        let threads = self.common.workers.threads.or(run.thread_count.map(|count| count as usize));
        threads.unwrap_or(Options::default().threads)
    }

    /// The workload `run` of properties, changed by options.
    fn wanted(&self, name: &'static str, mut run: YcsbRun) -> Result<Wanted<'_>, Failure> {
        run.warnings.iter().for_each(|warning| eprintln!("lockwork-bench: warning: {warning}"));
        let threads = self.threads(&run);
        let config = &mut run.config;
        config.seed = self.common.seed.unwrap_or(config.seed);
        config.records = self.records.unwrap_or(config.records);
        config.theta = self.theta.unwrap_or(config.theta);
        config.operations = self.ops.unwrap_or(config.operations);
        config.fields = self.fields.unwrap_or(config.fields);
        match self.read {
            Some(Read::Field) => config.read_scope = ReadScope::Field,
            Some(Read::Row) => config.read_scope = ReadScope::Row,
            None => {}
        }
        match (self.remote, self.partitions) {
            (None, None) => {}
            (None, Some(_)) => {
                return Err(Failure::usage("--partitions means something with --remote; give it, 0 to 1"));
            }
            (Some(remote), partitions) => {
                config.remote = remote;
                config.partitions = partitions.unwrap_or(u32::try_from(threads.max(1)).unwrap_or(u32::MAX));
            }
        }
        config.validate().map_err(refused)?;
        check_rows(&config.schema().map_err(Failure::usage)?, config.records)?;
        let YcsbRun { config, operation_count, thread_count, .. } = run;
        let transactions = operation_count.map(|wanted| wanted.div_ceil(u64::from(config.operations)).max(1));
        let seed = config.seed;
        let make: Make = Box::new(move || boxed(Ycsb::new(config.clone())));
        Ok(Wanted { name, common: &self.common, make, seed, threads: thread_count, transactions })
    }
}

/// Measures, prints, and returns whether everything was verified.
pub(super) fn command(workload: &Workload) -> Outcome {
    let wanted = workload.wanted()?;
    let common = wanted.common;
    let (kinds, options) = common.engines(wanted.threads)?;
    let (plan, description) = plan(&wanted, &kinds)?;
    let settings = json!({
        "workload": wanted.name, "effective": description, "threads": options.threads,
        "batch": plan.batch, "transactions_per_pass": plan.transactions, "time_s": plan.time.as_secs_f64(),
        "warmup_passes": plan.warmup, "interleave": name_of(common.interleave),
        "window": options.window, "policy": format!("{:?}", options.policy).to_lowercase(),
        "input": name_of(common.input),
        "plan": format!("{:?}", options.plan).to_lowercase(),
        "pages": format!("{:?}", options.pages).to_lowercase(), "seed": wanted.seed,
        "opencl_device": opencl_device(&kinds, &options.settings),
    });
    let mut report = Report { schema: 1, environment: Environment::read(), settings, runs: Vec::new() };
    common.results.prepare()?;
    let live = Live::new(kinds.iter().map(|kind| kind.name()));
    for (row, &kind) in kinds.iter().enumerate() {
        report.runs.push(run(kind, &options, (wanted.make)()?, &plan, &mut |what| live.show(row, what))?);
    }
    drop(live);
    common.results.give(&report.forms())?;
    if common.profile && common.results.output == Output::Text {
        print(&report.profile())?;
    }
    match report.runs.iter().find(|run| !run.verified) {
        Some(run) => Err(Failure::Check(format!("{}: {}", run.engine, run.verification))),
        None => Ok(()),
    }
}

/// What OpenCL engines run on, if there are any among `kinds`.
fn opencl_device(kinds: &[EngineKind], settings: &Settings) -> Option<String> {
    if !kinds.iter().any(|kind| lockwork_opencl::ENGINES.contains(kind)) {
        return None;
    }
    let device = lockwork_opencl::chosen(lockwork_opencl::device(settings).ok()?).ok()?;
    Some(format!("{} '{}', {}", device.kind.name(), device.name, device.version))
}

/// How to measure the workload on these engines, and its effective parameters.
fn plan(wanted: &Wanted<'_>, kinds: &[EngineKind]) -> Result<(Plan, String), Failure> {
    let common = wanted.common;
    let first = (wanted.make)()?;
    let stride = (first.block_bytes() as usize).next_multiple_of(64);
    let most = (PASS_BYTES / stride).clamp(1, 2_000_000);
    let transactions = common.txns.or(wanted.transactions.map(|count| count as usize)).unwrap_or(most);
    let batch = common.batch.unwrap_or_else(|| ((1 << 20) / stride).clamp(256, 8192)).min(transactions);
    for (option, value) in [("--txns", Some(transactions)), ("--batch", common.batch)] {
        if value == Some(0) {
            return Err(Failure::usage(format!("{option} is 0; 1 or more is possible")));
        }
    }
    if !(common.time.is_finite() && (0.0..=86_400.0).contains(&common.time)) {
        // As the debugger has it: 1e300 would be three hundred digits.
        return Err(Failure::usage(format!("--time is {:?}; 0 to 86400 seconds are possible", common.time)));
    }
    if common.warmup > 86_400 {
        return Err(Failure::usage(format!("--warmup is {}; 0 to 86400 passes are possible", common.warmup)));
    }
    let time = Duration::from_secs_f64(common.time);
    let recycled = common.input == Source::Recycled;
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
    let plan = Plan { transactions, batch, time, warmup: common.warmup, recycled, ahead: AHEAD };
    Ok((plan, first.describe()))
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
