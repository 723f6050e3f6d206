//! `lockwork-bench near-data`: the evaluation of neoDBMS's shared lock table (section 4), and what the table is for.
//!
//! | experiment | what is measured | module |
//! |---|---|---|
//! | a (figure 4) | a lock and its release on host and storage, while the other side requests too | `sides` |
//! | b (figure 5) | moving 64 bytes and 8 KiB between the two, by link | `transfers` |
//! | c (figure 6) | a million lock requests, beside PostgreSQL's tuple locks | `tuple_locks`, `postgres` |
//! | d | short host updates beside a long bulk update, in storage and on the host | `bulk` |
//!
//! The two sides are processes. What a link adds is simulated by waiting ([`lockwork_neardata::link`]); everything else
//! is the memory of this machine.

mod bulk;
pub(super) mod clock;
mod contend;
mod data_file;
pub(crate) mod peer;
pub(crate) mod postgres;
mod results;
mod settings;
mod shared;
mod sides;
mod transfers;
mod tuple_locks;
mod watch;

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockwork_lock_bench::histogram::Histogram;
use lockwork_neardata::link::Link;
use lockwork_sharedlocks::{Layout, Options, Placement, SharedLocks};
use serde_json::json;

use super::options::{Results, whole};
use super::progress::Live;
use super::report::prepare_folder;
use super::{Failure, Outcome, Output};
use shared::Shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Experiment {
    /// lock latency on host and storage, with requests from the other side
    A,
    /// transfers by link
    B,
    /// a million lock requests, beside PostgreSQL
    C,
    /// short host updates beside a bulk update, in storage and on the host
    D,
}

/// Options of `near-data`.
#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    /// Rows of the bulk update of experiment d [default: 10,000,000]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Threads of the host in experiment d [default: half of the cores]
    #[arg(long, value_parser = whole::<usize>, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// A tenth of the work, and one short round
    #[arg(long)]
    quick: bool,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,

    /// Experiments, with commas, each once: a is figure 4, b figure 5, c figure 6 [default: all]
    #[arg(long, visible_alias = "figure", value_enum, value_delimiter = ',')]
    experiment: Vec<Experiment>,
    /// The link between host and storage: none, ccix, cxl, pcie
    #[arg(long, default_value = "none")]
    link: Link,
    /// Lines of the lock table in experiments a (at least 4096 there) and c, a power of two
    #[arg(long, default_value_t = 1 << 16, value_parser = settings::lock_lines, allow_negative_numbers = true)]
    lock_lines: u32,
    /// Lock requests of experiment c, 1000 to 10,000,000
    #[arg(long, default_value_t = 1_000_000, value_parser = settings::requests, allow_negative_numbers = true)]
    requests: u64,
    /// Processing elements of the storage in experiment d, 1 to 64 [default: half of the cores]
    #[arg(long, value_parser = settings::elements, allow_negative_numbers = true)]
    elements: Option<usize>,
    /// Percent of the host's transactions in experiment d that want a row of the bulk update
    #[arg(long, default_value_t = 0, value_parser = settings::overlap, allow_negative_numbers = true)]
    overlap: u32,
    /// The folder for the storage's file in experiment d, about 250 bytes a row [default: the folder for
    /// temporary files]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Seconds that the process of the other side may be stopped for before its experiment fails
    #[arg(long, default_value_t = 60, value_parser = settings::timeout, allow_negative_numbers = true)]
    timeout: u64,
}

/// What came of an experiment.
struct Section {
    text: String,
    json: serde_json::Value,
    /// File name and SVG.
    charts: Vec<(String, String)>,
    /// What was promised of the data and does not hold; none if all holds.
    wrong: Vec<String>,
}

/// Some quantiles in nanoseconds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Quantiles {
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    longest: u64,
    count: u64,
}

impl Quantiles {
    fn of(histogram: &Histogram) -> Self {
        let at = |share| histogram.quantile(share);
        let count = histogram.count();
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), longest: at(1.0), count }
    }
}

/// What the other side is handed. Nothing of it has a name, so it goes with the last of both sides.
struct Files {
    table: File,
    memory: File,
    counters: usize,
}

impl Files {
    /// The table and the memory of an experiment; `counters` of the first keys are protected by locks.
    fn make(lines: u32, placement: Placement, counters: usize) -> Result<(SharedLocks, Shared, Self), Failure> {
        let failed = |what: &str, error: String| Failure::BackEnd(format!("{what}: {error}"));
        let layout = Layout { placement, ..layout(lines) };
        let locks = SharedLocks::anonymous(&Options { layout, reserve: true });
        let (locks, table) = locks.map_err(|error| failed("the lock table", error.to_string()))?;
        let (shared, memory) =
            Shared::create(counters).map_err(|error| failed("memory for both sides", error.to_string()))?;
        Ok((locks, shared, Self { table, memory, counters }))
    }
}

/// A table for 64 sessions.
fn layout(lines: u32) -> Layout {
    Layout { held: lines.min(4096), ..Layout::new(lines, 64) }
}

/// Measures, prints, and says whether the data are what they should be.
pub(super) fn command(bench: &Arguments) -> Outcome {
    let arguments = bench;
    let experiments = settings::experiments(&arguments.experiment)?;
    if bench.results.output == Output::Csv {
        return Err(Failure::usage("near-data has no CSV form; use --output json"));
    }
    settings::check(bench, &experiments)?;
    let folder = bench.results.out.clone().unwrap_or_else(|| PathBuf::from("out/near-data"));
    prepare_folder(Some(&folder))?;
    let settings = json!({
        "workload": "near-data", "link": arguments.link.name(), "lock_lines": arguments.lock_lines,
        "requests": requests(bench), "records": bulk::rows(bench), "seed": bench.seed, "quick": bench.quick,
        "two_sides": "processes of this machine; what a link adds is simulated by waiting",
    });
    let names: Vec<_> = experiments.iter().map(|experiment| format!("experiment {}", letter(*experiment))).collect();
    let mut results = results::Results::new(bench.results.output, folder, settings, experiments.clone());
    results.begin()?;
    let live = Live::new(names.iter().map(String::as_str));
    let mut failure = None;
    for (row, experiment) in experiments.iter().enumerate() {
        let mut show = |what: &str| live.show(row, what);
        let ran = match experiment {
            Experiment::A => sides::run(bench, &mut show),
            Experiment::B => transfers::run(bench, &mut show),
            Experiment::C => tuple_locks::run(bench, &mut show),
            Experiment::D => bulk::run(bench, &mut show),
        };
        match ran {
            Ok(section) => live.aside(|| results.add(section))?,
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
        live.show(row, "done");
    }
    drop(live);
    results.end(failure)
}

/// How long the other side may be stopped.
fn timeout(bench: &Arguments) -> Duration {
    Duration::from_secs(bench.timeout)
}

/// The last line of an experiment: whether its data are what they should be.
fn verdict(wrong: &[String], verified: &str) -> String {
    if wrong.is_empty() { format!("verified: {verified}\n") } else { format!("WRONG: {}\n", wrong.join("; ")) }
}

fn letter(experiment: Experiment) -> char {
    match experiment {
        Experiment::A => 'a',
        Experiment::B => 'b',
        Experiment::C => 'c',
        Experiment::D => 'd',
    }
}

/// The lock requests of experiment c.
fn requests(bench: &Arguments) -> u64 {
    if bench.quick { (bench.requests / 10).max(1_000) } else { bench.requests }
}
