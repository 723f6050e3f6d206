//! `lockwork demo`: the point of Lockwork in half a minute, without privileges, devices or ports.
//!
//! Transfers between skewed accounts, then YCSB B, on every engine of the CPU and, where there is a device, of OpenCL:
//! first a short run whose every result is checked against serial replay, then a measured one whose data are checked.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{EngineKind, Options};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::ycsb::{Ycsb, YcsbConfig};

use super::progress::Live;
use super::report::{Environment, Run};
use super::run::{AHEAD, Plan, input, prepare, run};
use super::workloads::{Boxed, boxed};
use super::{Failure, Outcome, chart, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Everything random follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A folder for the charts
    #[arg(long, default_value = "out/demo")]
    out: PathBuf,
}

/// Seconds each engine is measured for in each of the two scenes.
const SECONDS: f64 = 0.8;

/// Makes a workload on one of so many parts of its rows.
type Make<'a> = &'a dyn Fn(u64) -> Boxed;

pub(super) fn run_demo(arguments: &Arguments) -> Outcome {
    let start = Instant::now();
    let options = Options::default();
    let environment = Environment::read();
    print(&format!(
        "{}, {} cores, huge pages {}, commit {}, seed {}\n",
        environment.cpu, environment.cores, environment.huge_pages, environment.commit, arguments.seed
    ))?;
    let transfers =
        TransferConfig { accounts: 100_000, theta: 0.9, audit: 0.2, seed: arguments.seed, ..Default::default() };
    let mut ycsb = YcsbConfig::hobbes('b').map_err(Failure::usage)?;
    (ycsb.records, ycsb.seed) = (300_000, arguments.seed);
    // A tenth of the rows is compared with serial replay: quicker, and more calls meet.
    let transfer: Make<'_> = &|share| {
        let config = TransferConfig { accounts: transfers.accounts / share, ..transfers.clone() };
        boxed(Transfer::new(config))
    };
    let reads: Make<'_> = &|share| {
        let config = YcsbConfig { records: ycsb.records / share, ..ycsb.clone() };
        boxed(Ycsb::new(config))
    };
    let mut kinds = EngineKind::CPU.to_vec();
    match lockwork_opencl::chosen(None) {
        Ok(device) => {
            kinds.extend(lockwork_opencl::ENGINES);
            let found = lockwork_opencl::devices()?.len();
            print(&format!("OpenCL device: {} '{}' ({found} found)\n", device.kind.name(), device.name))?;
        }
        Err(absent) => print(&format!("Without the OpenCL engines: {absent}\n"))?,
    }
    let mut failed = Vec::new();
    let scenes = [
        ("transfer", "Money between 100,000 accounts, some of them hot (theta 0.9)", transfer, 400_000),
        ("ycsb-b", "YCSB B: 300,000 rows of 8 x 64 bytes, 95 % reads, theta 0.5", reads, 600_000),
    ];
    for (name, title, make, transactions) in scenes {
        print(&format!("\n{title}\n"))?;
        print(&format!("{:<20} {:>14} {:>10} {:>10}  checks\n", "engine", "txn/s", "p50 us", "p99 us"))?;
        let mut runs = Vec::new();
        let live = Live::new(kinds.iter().map(|kind| kind.name()));
        let mut lines = String::new();
        for (row, &kind) in kinds.iter().enumerate() {
            let plan = Plan {
                transactions,
                batch: 16_384,
                time: Duration::from_secs_f64(SECONDS),
                warmup: 1,
                recycled: false,
                ahead: AHEAD,
            };
            live.show(row, "comparing with serial replay");
            let replayed = equivalent(kind, &options, make)?;
            let run = run(kind, &options, make(1)?, &plan, &mut |what| live.show(row, what))?;
            let line = line(&run, &replayed);
            live.show(row, line[20..].trim_end());
            lines.push_str(&line);
            if !run.verified {
                failed.push(format!("{name} on {}: {}", run.engine, run.verification));
            }
            if let Err(problem) = replayed {
                failed.push(format!("{name} on {}: {problem}", run.engine));
            }
            runs.push(run);
        }
        drop(live);
        print(&lines)?;
        save(arguments, name, title, &runs)?;
    }
    print(&format!(
        "\nCharts: {}. {:.0} s.\n\nNext:\n  lockwork bench ycsb-a --theta 0.9\n  lockwork bench ycsb-c --preset bionicdb\n  \
         lockwork bench memory\n  lockwork procedure check examples/transfer.lw\n",
        arguments.out.display(),
        start.elapsed().as_secs_f64()
    ))?;
    if failed.is_empty() { Ok(()) } else { Err(Failure::Check(failed.join("; "))) }
}

fn line(run: &Run, replayed: &Result<u64, String>) -> String {
    let replayed = match replayed {
        Ok(count) => format!("{} calls equal to serial replay", chart::grouped(*count as f64)),
        Err(_) => "NOT equal to serial replay".into(),
    };
    let data = if run.verified { &run.verification } else { "DATA WRONG" };
    format!(
        "{:<20} {:>14} {:>10.0} {:>10.0}  {replayed}; {data}\n",
        run.engine,
        chart::grouped(run.throughput_txn_per_s),
        run.latency_us.p50,
        run.latency_us.p99
    )
}

/// Runs some batches on an engine and, in the order it is equivalent to, on the serial one; every outcome, every result
/// and the digests must be equal. Returns the calls compared, or the first difference.
fn equivalent(kind: EngineKind, options: &Options, make: Make<'_>) -> Result<Result<u64, String>, Failure> {
    const BATCHES: usize = 8;
    let plan = Plan {
        transactions: BATCHES * 2000,
        batch: 2000,
        time: Duration::ZERO,
        warmup: 0,
        recycled: false,
        ahead: AHEAD,
    };
    let (mut workload, mut same) = (make(10)?, make(10)?);
    let mut silent = |_: &str| {};
    let mut engine = prepare(kind, options, &mut *workload, plan.transactions, &mut silent)?;
    let mut oracle = prepare(EngineKind::SERIAL, options, &mut *same, plan.transactions, &mut silent)?;
    for (number, batch) in input(&mut *workload, &plan)?.into_iter().enumerate() {
        engine.submit(batch).map_err(|refused| Failure::from(refused.error))?;
        let completed = engine.complete()?.expect("a batch was submitted");
        if let Err(difference) = replay(&mut *oracle, &completed.batch, number, engine.serial_order()) {
            return Ok(Err(difference.to_string()));
        }
    }
    match compare_digests(&*engine, &*oracle) {
        Ok(_) => Ok(Ok(plan.transactions as u64)),
        Err(difference) => Ok(Err(difference.to_string())),
    }
}

fn save(arguments: &Arguments, name: &str, title: &str, runs: &[Run]) -> Outcome {
    let bars: Vec<(String, f64)> = runs.iter().map(|run| (run.engine.clone(), run.throughput_txn_per_s)).collect();
    let path = arguments.out.join(format!("{name}.svg"));
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(&arguments.out).map_err(failed)?;
    std::fs::write(&path, chart::bars(title, "transactions a second", &bars)).map_err(failed)
}
