//! `lockwork bench near-data`: the evaluation of neoDBMS's shared lock table (section 4), and what the table is for.
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
mod clock;
mod contend;
pub(crate) mod peer;
mod postgres;
mod shared;
mod sides;
mod transfers;
mod tuple_locks;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lockwork_locknet::bench::histogram::Histogram;
use lockwork_neardata::link::Link;
use lockwork_sharedlocks::{Layout, Options, Placement, SharedLocks, segment};
use serde_json::json;

use super::bench::Arguments as Bench;
use super::progress::Live;
use super::report::{Environment, Output, prepare_folder};
use super::{Failure, Outcome, print};
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

#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Arguments {
    /// For near-data: experiments, with commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    experiment: Vec<Experiment>,
    /// For near-data: the link between host and storage: none, ccix, cxl, pcie
    #[arg(long, default_value = "none")]
    link: Link,
    /// For near-data: lines of the lock table in experiments a and c, a power of two
    #[arg(long, default_value_t = 1 << 16)]
    lock_lines: u32,
    /// For near-data: lock requests of experiment c
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// For near-data: processing elements of the storage in experiment d [default: half of the cores]
    #[arg(long)]
    elements: Option<usize>,
    /// For near-data: percent of the host's transactions in experiment d that want a row of the bulk update
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    overlap: u32,
    /// For near-data: the folder for the storage's file in experiment d, about 250 bytes a row [default: the folder for
    /// temporary files]
    #[arg(long)]
    data: Option<PathBuf>,
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

/// Names of files in memory that go when this does.
struct Files {
    table: PathBuf,
    memory: PathBuf,
}

impl Files {
    fn new() -> Self {
        let name = |what: &str| PathBuf::from(format!("/dev/shm/lockwork-bench-{}-{what}", std::process::id()));
        Self { table: name("locks"), memory: name("memory") }
    }

    /// The table and the memory of an experiment; `counters` of the first keys are protected by locks.
    fn make(&self, lines: u32, placement: Placement, counters: usize) -> Result<(SharedLocks, Shared), Failure> {
        self.remove();
        let layout = Layout { held: lines.min(4096), placement, ..Layout::new(lines, 64) };
        let name = self.table.to_str().expect("it is of ASCII");
        let locks = SharedLocks::create(name, &Options { layout, reserve: true }).map_err(Failure::usage)?;
        let shared = Shared::create(&self.memory, counters)
            .map_err(|error| Failure::usage(format!("{}: {error}", self.memory.display())))?;
        Ok((locks, shared))
    }

    fn remove(&self) {
        // Neither has to be there.
        drop(segment::remove(self.table.to_str().unwrap_or_default()));
        drop(std::fs::remove_file(&self.memory));
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Measures, prints, and says whether the data are what they should be.
pub(super) fn bench_near_data(bench: &Bench) -> Outcome {
    let arguments = &bench.near_data;
    let mut experiments = arguments.experiment.clone();
    if experiments.is_empty() {
        experiments = Experiment::value_variants().to_vec();
    }
    experiments.sort();
    experiments.dedup();
    if bench.output == Output::Csv {
        return Err(Failure::usage("near-data has no CSV form; use --output json"));
    }
    if !(1_000..=postgres::MOST_ROWS).contains(&arguments.requests) {
        let requests = arguments.requests;
        return Err(Failure::usage(format!("--requests is {requests}; 1000 to {} are possible", postgres::MOST_ROWS)));
    }
    Layout::new(arguments.lock_lines, 64).check().map_err(|error| Failure::usage(format!("--lock-lines: {error}")))?;
    if experiments.contains(&Experiment::D) {
        bulk::check(bench)?;
    }
    let folder = bench.out.clone().unwrap_or_else(|| PathBuf::from("out/near-data"));
    prepare_folder(Some(&folder))?;
    let environment = Environment::read();
    let settings = json!({
        "workload": "near-data", "link": arguments.link.name(), "lock_lines": arguments.lock_lines,
        "requests": requests(bench), "seed": bench.seed(), "quick": bench.quick,
        "two_sides": "processes of this machine; what a link adds is simulated by waiting",
    });
    let e = &environment;
    let head = format!("{}, {} cores, kernel {}, commit {}\nsettings {settings}\n", e.cpu, e.cores, e.kernel, e.commit);
    let names: Vec<_> = experiments.iter().map(|experiment| format!("experiment {}", letter(*experiment))).collect();
    let live = Live::new(names.iter().map(String::as_str));
    let mut sections = Vec::new();
    for (row, experiment) in experiments.iter().enumerate() {
        let mut show = |what: &str| live.show(row, what);
        sections.push(match experiment {
            Experiment::A => sides::run(bench, &mut show)?,
            Experiment::B => transfers::run(bench, &mut show)?,
            Experiment::C => tuple_locks::run(bench, &mut show)?,
            Experiment::D => bulk::run(bench, &mut show)?,
        });
        live.show(row, "done");
    }
    drop(live);
    let text: String = sections.iter().map(|section| format!("\n{}", section.text)).collect();
    let found: serde_json::Map<_, _> =
        experiments.iter().zip(&sections).map(|(e, section)| (letter(*e).to_string(), section.json.clone())).collect();
    let report = json!({ "schema": 1, "environment": environment, "settings": settings, "experiments": found });
    let text = head + &text + &format!("\ncharts and result.json are in {}\n", folder.display());
    match bench.output {
        Output::Json => print(&format!("{report:#}\n"))?,
        Output::Text => print(&text)?,
        Output::Csv => unreachable!("it was refused before anything was measured"),
    }
    let save = |name: &str, content: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    save("result.json", &format!("{report:#}\n"))?;
    save("result.txt", &text)?;
    for (name, svg) in sections.iter().flat_map(|section| &section.charts) {
        save(name, svg)?;
    }
    let wrong: Vec<_> = sections.into_iter().flat_map(|section| section.wrong).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Check(wrong.join("; "))) }
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
fn requests(bench: &Bench) -> u64 {
    if bench.quick { (bench.near_data.requests / 10).max(1_000) } else { bench.near_data.requests }
}
