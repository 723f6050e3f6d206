//! `lockwork-bench partitions`: what a transaction costs where tables are divided over nodes, by how many transactions
//! touch two of them.
//!
//! All nodes share the cores of one machine, so what is compared is processor time of the worker processes for each
//! transaction, not transactions a second.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use lockwork_engine::{Completed, Engine, Options};
use lockwork_partitions::NetworkEngine;
use lockwork_procedure::block::Batch;
use lockwork_workload::Workload;
use lockwork_workload::statistics::median;
use lockwork_workload::transfer::{Transfer, TransferConfig};
use serde::Serialize;
use serde_json::json;

use super::measure::{check_memory, load, table_bytes, verify};
use super::options::{Results, whole};
use super::report::Forms;
use super::{Environment, Failure, Outcome};

/// Batches that the engine has while the oldest is waited for.
const AHEAD: usize = 3;
/// Nodes, and shares of transfers between two of them.
const CASES: [(u64, f64); 9] =
    [(1, 0.0), (2, 0.0), (2, 0.01), (2, 0.1), (2, 0.5), (2, 1.0), (4, 0.0), (4, 0.1), (4, 1.0)];

/// Options of `partitions`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Accounts [default: 1,000,000]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Transactions of a batch
    #[arg(long, default_value_t = 16_384)]
    batch: usize,
    /// Transactions of a pass [default: 1,000,000]
    #[arg(long)]
    txns: Option<usize>,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// A tenth of the work, and one short round
    #[arg(long)]
    quick: bool,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// One case, measured.
#[derive(Clone, Debug, Serialize)]
struct Case {
    nodes: u64,
    /// Share of transfers between two nodes.
    remote: f64,
    txn_per_s: f64,
    /// Processor time of all workers for one transaction.
    workers_ns: f64,
    /// Of the process that orders, and takes the results.
    coordinator_ns: f64,
    /// Work of the workers beside that of a single node that has everything.
    work: f64,
    verification: String,
}

/// Nanoseconds that all threads of a process have run.
fn processor_ns(process: &str) -> Result<u64, Failure> {
    let tasks = Path::new("/proc").join(process).join("task");
    let failed = |error| Failure::BackEnd(format!("processor times of process {process}: {error}"));
    let mut sum = 0;
    for task in std::fs::read_dir(tasks).map_err(failed)? {
        // A thread may have ended meanwhile.
        let text = std::fs::read_to_string(task.map_err(failed)?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// What one case is to do.
struct Plan {
    accounts: u64,
    transactions: usize,
    batch: usize,
    passes: usize,
    seed: u64,
}

fn measure(plan: &Plan, (nodes, remote): (u64, f64)) -> Result<Case, Failure> {
    let config = TransferConfig {
        accounts: plan.accounts,
        theta: 0.0,
        audit: 0.0,
        partitions: nodes,
        remote,
        seed: plan.seed,
        ..TransferConfig::default()
    };
    let mut workload = Transfer::new(config).map_err(Failure::usage)?;
    let options = Options { threads: nodes as usize, ..Options::default() };
    let engine = Box::new(NetworkEngine::deterministic(options, lockwork_partitions::find()?)?);
    let mut engine = load(engine, &mut workload, plan.transactions, &mut |_| ())?;
    engine.start()?;
    let workers: Vec<String> = engine.processes().iter().map(u32::to_string).collect();
    let all = || workers.iter().map(|worker| processor_ns(worker)).sum::<Result<u64, _>>();
    let mut runs = Vec::new();
    let mut last = Vec::new();
    // The first pass warms up.
    for pass in 0..=plan.passes {
        let mut input = Vec::new();
        while input.iter().map(Batch::len).sum::<usize>() < plan.transactions {
            let mut batch = Batch::new(workload.block_bytes(), plan.batch).map_err(Failure::usage)?;
            workload.fill(&mut batch, plan.batch).map_err(Failure::usage)?;
            input.push(batch);
        }
        let count = input.iter().map(Batch::len).sum::<usize>() as f64;
        let (workers_before, own_before, start) = (all()?, processor_ns("self")?, Instant::now());
        last.clear();
        for batch in input {
            engine.submit(batch).map_err(|refused| refused.error)?;
            while engine.in_flight() > AHEAD {
                last.extend(engine.complete()?.map(|Completed { batch, .. }| batch));
            }
        }
        while let Some(Completed { batch, .. }) = engine.complete()? {
            last.push(batch);
        }
        let spent = start.elapsed().as_secs_f64();
        if pass > 0 {
            let own = (processor_ns("self")? - own_before) as f64;
            runs.push((count / spent, (all()? - workers_before) as f64 / count, own / count));
        }
        last.iter().for_each(|batch| workload.observe(batch));
    }
    let median = |of: fn(&(f64, f64, f64)) -> f64| median(runs.iter().map(of));
    let (txn_per_s, workers_ns) = (median(|run| run.0), median(|run| run.1));
    let verification = verify(&*engine, &mut workload, &last)?;
    Ok(Case { nodes, remote, txn_per_s, workers_ns, coordinator_ns: median(|run| run.2), work: 0.0, verification })
}

/// Measures every case, and prints.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    let small = if arguments.quick { 10 } else { 1 };
    let plan = Plan {
        accounts: arguments.records.unwrap_or(1_000_000 / small),
        transactions: arguments.txns.unwrap_or(1_000_000 / small as usize),
        batch: arguments.batch,
        passes: if arguments.quick { 1 } else { arguments.passes },
        seed: arguments.seed,
    };
    for (option, value) in [("--txns", plan.transactions), ("--batch", plan.batch), ("--passes", plan.passes)] {
        if value == 0 || value > 1 << 24 {
            return Err(Failure::usage(format!("{option} is {value}; 1 to {} are possible", 1 << 24)));
        }
    }
    if plan.accounts < 8 {
        return Err(Failure::usage(format!("--records is {}; 8 or more are possible", plan.accounts)));
    }
    // The mirror, and the workers' rows.
    let bytes = table_bytes(&Transfer::schema(), plan.accounts) * 2 + plan.transactions as u128 * 128;
    check_memory(&format!("{} accounts, twice, and {} calls", plan.accounts, plan.transactions), bytes, "--records")?;
    arguments.results.prepare()?;
    let mut cases = Vec::new();
    for case in CASES {
        cases.push(measure(&plan, case)?);
    }
    let alone = cases[0].workers_ns;
    cases.iter_mut().for_each(|case| case.work = case.workers_ns / alone);
    let environment = Environment::read();
    let settings = json!({
        "workload": "partitions", "accounts": plan.accounts, "transactions": plan.transactions, "batch": plan.batch,
        "passes": plan.passes, "seed": plan.seed,
    });
    let report = json!({ "schema": 1, "environment": environment, "settings": settings, "cases": cases });
    let name = |case: &Case| format!("{} nodes, {:.0} %", case.nodes, case.remote * 100.0);
    let header = format!(
        "{}, commit {}\ntransfers between {} accounts, {} a pass in batches of {}, median of {} passes, seed {};\n\
         processor time for each transaction; all nodes on this machine\n\n\
         nodes  between two      txn/s   workers ns   work   coordinator ns\n",
        environment.cpu, environment.commit, plan.accounts, plan.transactions, plan.batch, plan.passes, plan.seed
    );
    let line = |text: String, case: &Case| {
        let (remote, rate) = (case.remote * 100.0, case.txn_per_s);
        let (workers, coordinator) = (case.workers_ns, case.coordinator_ns);
        format!(
            "{text}{:>5} {remote:>10.0} % {rate:>10.0} {workers:>12.0} {:>6.2} {coordinator:>16.0}\n",
            case.nodes, case.work
        )
    };
    let checked = format!("\nverified: {}\n", cases.last().map_or("", |case| &case.verification));
    let comma = |text: String, case: &Case| {
        let Case { nodes, remote, txn_per_s, workers_ns, coordinator_ns, work, .. } = case;
        format!("{text}{nodes},{remote},{txn_per_s:.0},{workers_ns:.1},{work:.3},{coordinator_ns:.1}\n")
    };
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: cases.iter().fold("nodes,remote,txn_per_s,workers_ns,work,coordinator_ns\n".to_string(), comma),
        text: cases.iter().fold(header, line) + &checked,
        title: "partitions".into(),
        unit: "processor time of all workers for a transaction, in nanoseconds",
        bars: cases.iter().map(|case| (name(case), case.workers_ns)).collect(),
    };
    arguments.results.give(&forms)
}
