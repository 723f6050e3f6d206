//! `lockwork bench WORKLOAD`: engines one after the other, in one process, on identical input.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockwork_engine::{ConflictPlan, EngineKind, Interleave, LockPolicy, Options};
use lockwork_locking::batch::Access;
use lockwork_memory::Pages;
use lockwork_workload::Workload;
use lockwork_workload::properties::{Properties, YcsbRun, parse};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::ycsb::{Kind, ReadScope, Ycsb, YcsbConfig};
use serde_json::json;

use super::progress::Live;
use super::report::{Environment, Output, Report};
use super::run::{Plan, check_memory, check_rows, run, table_bytes};
use super::{Failure, Outcome, chart, locks, memory, print};

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
    None,
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

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// ycsb-a to ycsb-f, ycsb (with -P), transfer, locks, memory
    workload: String,
    /// Engines, with commas: serial, two-phase, deterministic-queue, deterministic
    #[arg(long, value_delimiter = ',', default_value = "two-phase,deterministic-queue,deterministic")]
    engine: Vec<String>,
    /// Sizes of a paper
    #[arg(long, value_enum, default_value = "hobbes")]
    preset: Preset,
    /// Worker threads [default: threadcount of -P, or the cores; for memory 1]
    #[arg(long)]
    threads: Option<usize>,
    /// Rows, or accounts [default: the preset's; bionicdb: 300,000 a thread]
    #[arg(long)]
    records: Option<u64>,
    /// Skew, 0 to below 1
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
    /// Transactions of a batch
    #[arg(long)]
    batch: Option<usize>,
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
    /// Seconds to run each engine for
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Transactions of one pass over the input [default: as many as fit in 512 MiB, at most 2,000,000]
    #[arg(long)]
    txns: Option<usize>,
    /// Passes before measuring
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// Everything random follows from it [default: 1]
    #[arg(long)]
    seed: Option<u64>,
    /// A YCSB property file, or KEY=VALUE; may stand several times. For ycsb the rest is as YCSB has it, for ycsb-a to
    /// ycsb-f as that workload and its preset have it; other options win over properties
    #[arg(short = 'P', short_alias = 'p', value_name = "FILE or KEY=VALUE")]
    property: Vec<String>,
    /// For locks: queue, batch
    #[arg(long, value_delimiter = ',', default_value = "queue,batch")]
    manager: Vec<String>,
    /// For locks: a (half exclusive) or b (one in twenty)
    #[arg(long, default_value = "a")]
    mix: String,
    /// Plain pages instead of huge ones
    #[arg(long)]
    plain_pages: bool,
    /// How results are printed
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
    /// A folder for result.json, result.csv and throughput.svg
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Arguments {
    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }
}

pub(super) fn command(arguments: &Arguments) -> Outcome {
    match arguments.workload.as_str() {
        "locks" => return bench_locks(arguments),
        "memory" => return bench_memory(arguments),
        _ => {}
    }
    let ycsb = if arguments.workload == "transfer" { None } else { Some(ycsb(arguments)?) };
    let options = options(arguments, ycsb.as_ref().and_then(|run| run.thread_count));
    let seed = ycsb.as_ref().map_or(arguments.seed(), |run| run.config.seed);
    let kinds = arguments.engine.iter().map(|name| name.parse::<EngineKind>().map_err(Failure::usage));
    let kinds: Vec<EngineKind> = kinds.collect::<Result<_, _>>()?;
    let (make, mut plan, description) = workload(arguments, ycsb)?;
    plan.warmup = arguments.warmup;
    let settings = json!({
        "workload": arguments.workload, "effective": description, "threads": options.threads,
        "batch": plan.batch, "transactions_per_pass": plan.transactions, "time_s": plan.time.as_secs_f64(),
        "warmup_passes": plan.warmup, "interleave": format!("{:?}", options.interleave).to_lowercase(),
        "window": options.window, "policy": format!("{:?}", options.policy).to_lowercase(),
        "input": if plan.recycled { "recycled" } else { "prepared" },
        "plan": format!("{:?}", options.plan).to_lowercase(),
        "pages": format!("{:?}", options.pages).to_lowercase(), "seed": seed,
    });
    let mut report = Report { schema: 1, environment: Environment::read(), settings, runs: Vec::new() };
    // Before minutes of work, not after.
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).map_err(|error| Failure::usage(format!("{}: {error}", folder.display())))?;
    }
    let live = Live::new(kinds.iter().map(|kind| kind.name()));
    for (row, &kind) in kinds.iter().enumerate() {
        report.runs.push(run(kind, options, make()?, &plan, &mut |what| live.show(row, what))?);
    }
    drop(live);
    print(&report.render(arguments.output))?;
    if let Some(folder) = &arguments.out {
        save(folder, &report)?;
    }
    match report.runs.iter().find(|run| !run.verified) {
        Some(run) => Err(Failure::Check(format!("{}: {}", run.engine, run.verification))),
        None => Ok(()),
    }
}

fn save(folder: &PathBuf, report: &Report) -> Outcome {
    let bars: Vec<(String, f64)> =
        report.runs.iter().map(|run| (run.engine.clone(), run.throughput_txn_per_s)).collect();
    let title = report.settings["workload"].as_str().unwrap_or("benchmark");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    std::fs::create_dir_all(folder).map_err(|error| Failure::usage(format!("{}: {error}", folder.display())))?;
    write("result.json", report.render(Output::Json))?;
    write("result.csv", report.render(Output::Csv))?;
    write("throughput.svg", chart::bars(title, "transactions a second", &bars))
}

/// `threads` is what a property says.
fn options(arguments: &Arguments, threads: Option<u32>) -> Options {
    let default = Options::default();
    Options {
        threads: arguments.threads.or(threads.map(|count| count as usize)).unwrap_or(default.threads),
        interleave: if arguments.interleave == Mode::None { Interleave::None } else { Interleave::Dynamic },
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
    }
}

type Make = Box<dyn Fn() -> Result<Box<dyn Workload>, Failure>>;

/// The workload that was asked for: how to make it afresh for every engine, its plan, and its effective parameters.
fn workload(arguments: &Arguments, ycsb: Option<YcsbRun>) -> Result<(Make, Plan, String), Failure> {
    let (make, operations, inserts, count): (Make, u32, f64, Option<u64>) = if let Some(run) = ycsb {
        let config = run.config;
        let (operations, inserts) = (config.operations, config.share(Kind::Insert));
        let count = run.operation_count.map(|wanted| wanted.div_ceil(u64::from(operations)).max(1));
        (
            Box::new(move || Ok(Box::new(Ycsb::new(config.clone()).map_err(Failure::usage)?))),
            operations,
            inserts * f64::from(operations),
            count,
        )
    } else {
        let default = TransferConfig::default();
        let config = TransferConfig {
            accounts: arguments.records.unwrap_or(default.accounts),
            theta: arguments.theta.unwrap_or(default.theta),
            seed: arguments.seed(),
            ..default
        };
        config.validate().map_err(Failure::usage)?;
        check_rows(&Transfer::schema(), config.accounts)?;
        (Box::new(move || Ok(Box::new(Transfer::new(config.clone()).map_err(Failure::usage)?))), 2, 0.0, None)
    };
    let repeatable = inserts == 0.0;
    let first = make()?;
    let stride = (first.block_bytes() as usize).next_multiple_of(64);
    let most = (PASS_BYTES / stride).clamp(1, 2_000_000);
    let transactions = arguments.txns.or(count.map(|count| count as usize)).unwrap_or(most);
    let batch = arguments.batch.unwrap_or_else(|| ((1 << 20) / stride).clamp(256, 8192));
    for (option, value) in [("--txns", transactions), ("--batch", batch)] {
        if value == 0 {
            return Err(Failure::usage(format!("{option} is 0; 1 or more is possible")));
        }
    }
    if !(arguments.time.is_finite() && (0.0..=86_400.0).contains(&arguments.time)) {
        return Err(Failure::usage(format!("--time is {}; 0 to 86400 seconds are possible", arguments.time)));
    }
    let time = Duration::from_secs_f64(arguments.time);
    let recycled = arguments.input == Source::Recycled;
    if recycled && !repeatable {
        return Err(Failure::usage("--input recycled is not possible for a workload that inserts: use prepared"));
    }
    // Shares need not sum to one, so this counts too many inserts rather than too few.
    let grown = (transactions as f64 * inserts) as u64;
    let schemas = first.schemas();
    let tables = schemas.iter().enumerate();
    let rows: u128 =
        tables.map(|(number, schema)| table_bytes(schema, first.row_count(number).saturating_add(grown))).sum();
    // Recycled input keeps its calls beside the batches that it is made from.
    let calls = transactions as u128 * stride as u128 * if recycled { 2 } else { 1 };
    check_memory(&format!("the rows and {transactions} transactions"), rows + calls, "--txns or --records")?;
    let plan = Plan { transactions, batch, time, warmup: 0, operations, repeatable, recycled };
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
                "no workload is called '{name}'; there are ycsb-a to ycsb-f, ycsb (with -P), transfer, locks, memory"
            )));
        };
        let config = match arguments.preset {
            Preset::Hobbes => YcsbConfig::hobbes(letter),
            Preset::Bionicdb => YcsbConfig::bionicdb(letter),
        };
        properties.over(config.map_err(Failure::usage)?)
    };
    let mut run = run.map_err(Failure::usage)?;
    run.warnings.iter().for_each(|warning| eprintln!("lockwork: warning: {warning}"));
    let config = &mut run.config;
    if name != "ycsb" && arguments.preset == Preset::Bionicdb && properties.get("recordcount").is_none() {
        let threads = arguments.threads.or(run.thread_count.map(|count| count as usize));
        config.records = 300_000_u64.saturating_mul(threads.unwrap_or(Options::default().threads) as u64);
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
    config.validate().map_err(Failure::usage)?;
    check_rows(&config.schema().map_err(Failure::usage)?, config.records)?;
    Ok(run)
}

fn properties(given: &[String]) -> Result<Properties, Failure> {
    let mut properties = Properties::default();
    let (files, settings): (Vec<_>, Vec<_>) = given.iter().partition(|text| !text.contains('='));
    for (number, file) in files.iter().enumerate() {
        if number > 0 {
            return Err(Failure::usage("one property file is possible; make changes with -p KEY=VALUE"));
        }
        let text = std::fs::read_to_string(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
        properties = parse(&text, file).map_err(Failure::usage)?;
    }
    for setting in settings {
        properties.set(setting).map_err(Failure::usage)?;
    }
    Ok(properties)
}

fn bench_memory(arguments: &Arguments) -> Outcome {
    let threads = arguments.threads.unwrap_or(1);
    if threads == 0 || threads > lockwork_engine::contract::MAX_THREADS {
        return Err(Failure::usage(format!("--threads is {threads}; 1 to 256 are possible")));
    }
    check_memory(&format!("random reads on {threads} threads"), memory::bytes(threads), "--threads")?;
    let limits = [Pages::Plain, Pages::Huge].map(|pages| memory::measure(pages, threads, arguments.seed()));
    let [plain, huge] = limits;
    let (limits, environment) = ([plain?, huge?], Environment::read());
    let settings = json!({ "workload": "memory", "threads": threads, "seed": arguments.seed() });
    let text = match arguments.output {
        Output::Json => {
            let report = json!({ "schema": 1, "environment": environment, "settings": settings, "limits": limits });
            format!("{report:#}\n")
        }
        Output::Csv => limits.iter().fold(
            "pages,dependent_ns,one_line_m_per_s,two_lines_m_per_s,sixteen_lines_m_per_s\n".to_string(),
            |text, l| {
                let (one, two, sixteen) = (l.one_line_m_per_s, l.two_lines_m_per_s, l.sixteen_lines_m_per_s);
                format!("{text}{},{:.1},{one:.2},{two:.2},{sixteen:.2}\n", l.pages, l.dependent_ns)
            },
        ),
        Output::Text => limits.iter().fold(
            format!(
                "{}, commit {}\nrandom reads of 1 GiB, {threads} cores at once, for each core\n\n\
                 pages   dependent ns   1 line M/s   2 lines M/s   16 lines M/s\n",
                environment.cpu, environment.commit
            ),
            |text, l| {
                let (one, two, sixteen) = (l.one_line_m_per_s, l.two_lines_m_per_s, l.sixteen_lines_m_per_s);
                format!("{text}{:<7} {:>12.1} {one:>12.1} {two:>13.1} {sixteen:>14.2}\n", l.pages, l.dependent_ns)
            },
        ),
    };
    print(&text)
}

fn bench_locks(arguments: &Arguments) -> Outcome {
    let writes = match arguments.mix.as_str() {
        "a" => 0.5,
        "b" => 0.05,
        other => return Err(Failure::usage(format!("no mix is called '{other}'; there are a and b"))),
    };
    let most = u64::from(u32::MAX);
    let records = arguments.records.unwrap_or(1_000_000);
    let batch = arguments.batch.unwrap_or(131_072) as u64;
    let transactions = arguments.txns.unwrap_or(8_388_608) as u64;
    for (option, value) in [("--records", records), ("--batch", batch), ("--txns", transactions)] {
        if value == 0 || value >= most {
            return Err(Failure::usage(format!("{option} is {value}; 1 to {} are possible", most - 1)));
        }
    }
    // Shared with the random reads; two forms of every request; words, queues and checks of every record.
    let bytes = memory::bytes(1) + u128::from(transactions) * 24 + u128::from(records) * 48;
    check_memory(&format!("{transactions} locks on {records} records"), bytes, "--txns or --records")?;
    let settings = locks::Settings {
        records: records as u32,
        transactions: transactions as u32,
        batch: batch as u32,
        theta: arguments.theta.unwrap_or(0.5),
        writes,
        seed: arguments.seed(),
    };
    type Measure = fn(&locks::Settings, &[Access]) -> Result<f64, Failure>;
    let managers = arguments.manager.iter().map(|name| match name.as_str() {
        "queue" => Ok((name, locks::queue as Measure)),
        "batch" => Ok((name, locks::batch as Measure)),
        other => Err(Failure::usage(format!("no lock manager is called '{other}'; there are queue and batch"))),
    });
    let managers: Vec<(&String, Measure)> = managers.collect::<Result<_, _>>()?;
    let accesses = locks::stream(&settings)?;
    let limit = memory::measure(Pages::Huge, 1, arguments.seed())?.one_line_m_per_s * 1e6;
    let mut runs = Vec::new();
    for (manager, rate) in managers {
        let mut rates = (0..3).map(|_| rate(&settings, &accesses)).collect::<Result<Vec<f64>, _>>()?;
        rates.sort_by(f64::total_cmp);
        runs.push((manager.clone(), rates[1]));
    }
    let environment = Environment::read();
    let text = match arguments.output {
        Output::Json => {
            let runs: Vec<_> = runs
                .iter()
                .map(|(manager, rate)| json!({
                    "manager": manager, "throughput_locks_per_s": rate, "share_of_line_reads": rate / limit, "verified": true
                }))
                .collect();
            let settings = json!({
                "workload": "locks", "mix": arguments.mix, "theta": settings.theta, "records": records, "batch": batch,
                "transactions": transactions, "seed": arguments.seed(), "line_reads_per_s": limit
            });
            format!("{:#}\n", json!({ "schema": 1, "environment": environment, "settings": settings, "runs": runs }))
        }
        Output::Csv => {
            runs.iter().fold("manager,throughput_locks_per_s,share_of_line_reads\n".to_string(), |text, (m, rate)| {
                format!("{text}{m},{rate:.0},{:.3}\n", rate / limit)
            })
        }
        Output::Text => runs.iter().fold(
            format!(
                "{}, commit {}\nmix {}, theta {}, {records} records, batch {batch}, {transactions} locks, seed {}; \
                 one core; median of 3\nindependent random line reads: {}/s\n\n",
                environment.cpu,
                environment.commit,
                arguments.mix,
                settings.theta,
                arguments.seed(),
                chart::grouped(limit)
            ),
            |text, (manager, rate)| {
                format!(
                    "{text}{manager:<8} {:>14} locks/s   {:.2} of the line reads\n",
                    chart::grouped(*rate),
                    rate / limit
                )
            },
        ),
    };
    print(&text)
}
