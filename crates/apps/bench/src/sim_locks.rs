//! `lockwork-bench sim locks`: the lock service under every fault, in one thread with a clock of its own, checked at
//! every step.
//!
//! A seed gives a run again, bit for bit, so what fails here is replayed by the command that the failure prints.

use clap::{Args, value_parser};
use lockwork_lock_protocol::branches::Branch;
use lockwork_lock_protocol::simulator::{Counters, Faults, Report, Settings, run as simulate};
use serde_json::json;

use super::progress::Live;
use super::{Failure, Outcome, Output, print};

/// More than half of all packets lost is no network.
const MOST: i64 = 500_000;
const USUAL: Settings = Settings::new(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Gives everything that is random
    #[arg(long, default_value_t = USUAL.seed)]
    seed: u64,
    /// Runs with this seed and those that follow
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=1_000_000))]
    runs: u64,
    /// Requests of each run
    #[arg(long, default_value_t = USUAL.operations, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    operations: u64,
    /// Processes that take part
    #[arg(long, default_value_t = USUAL.machines, value_parser = value_parser!(u32).range(1..=64))]
    machines: u32,
    /// Tasks of each of them, with one request at a time
    #[arg(long, default_value_t = USUAL.tasks, value_parser = value_parser!(u32).range(1..=256))]
    tasks: u32,
    /// Locks; the first are asked for most
    #[arg(long, default_value_t = USUAL.locks, value_parser = value_parser!(u64).range(1..=1_000_000))]
    locks: u64,
    /// Locks beyond those, which managers keep
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u64).range(0..=1_000_000))]
    overflow_locks: u64,
    /// How many of the processes offer to manage; if none is there, the service does
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u32).range(0..=64), requires = "overflow_locks")]
    managers: u32,
    /// The lean profile, and only such delays as its 8-bit incarnations allow
    #[arg(long)]
    lean: bool,
    /// Readers do not pass a writer that waits
    #[arg(long)]
    writers_first: bool,
    /// Agents of the first so many locks stay for a while where somebody has asked for them
    #[arg(long, default_value_t = 0)]
    near: u64,
    /// Nothing goes wrong; packets still overtake each other
    #[arg(long)]
    no_faults: bool,
    /// Packets lost, of a million [default: 20000]
    #[arg(long, value_parser = value_parser!(u32).range(0..=MOST))]
    lost: Option<u32>,
    /// Packets doubled, of a million [default: 20000]
    #[arg(long, value_parser = value_parser!(u32).range(0..=MOST))]
    doubled: Option<u32>,
    /// Packets damaged, of a million [default: 1000]
    #[arg(long, value_parser = value_parser!(u32).range(0..=MOST))]
    damaged: Option<u32>,
    /// Packets that come late, of a million [default: 20000]
    #[arg(long, value_parser = value_parser!(u32).range(0..=MOST))]
    late: Option<u32>,
    /// How late they come at most [default: 80000000, lean 500000]
    #[arg(long, value_parser = value_parser!(u64).range(0..=10_000_000_000))]
    latest_ns: Option<u64>,
    /// Times a second that a machine is cut off [default: 1]
    #[arg(long, value_parser = value_parser!(u32).range(0..=1000))]
    cuts: Option<u32>,
    /// Times a second that a machine stands still [default: 1, lean 0]
    #[arg(long, value_parser = value_parser!(u32).range(0..=1000))]
    pauses: Option<u32>,
    /// Times a second that a machine crashes [default: 1]
    #[arg(long, value_parser = value_parser!(u32).range(0..=1000))]
    crashes: Option<u32>,
    /// Times a second that the service crashes, and is restored from its machines [default: 0]
    #[arg(long, value_parser = value_parser!(u32).range(0..=1000))]
    restarts: Option<u32>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl Arguments {
    fn settings(&self) -> Settings {
        let &Self { seed, operations, machines, tasks, locks, overflow_locks, managers, writers_first, near, .. } =
            self;
        let faults = if self.no_faults { Faults::NONE } else { Faults::ALL };
        let of_locks = Settings { locks, beyond: overflow_locks, managers, ..USUAL };
        let mut settings = Settings { seed, operations, machines, tasks, writers_first, near, faults, ..of_locks };
        if self.lean {
            settings = settings.lean();
        }
        let Faults { lost, doubled, damaged, late, latest, cuts, pauses, crashes, restarts } = settings.faults;
        settings.faults = Faults {
            lost: self.lost.unwrap_or(lost),
            doubled: self.doubled.unwrap_or(doubled),
            damaged: self.damaged.unwrap_or(damaged),
            late: self.late.unwrap_or(late),
            latest: self.latest_ns.unwrap_or(latest),
            cuts: self.cuts.unwrap_or(cuts),
            pauses: self.pauses.unwrap_or(pauses),
            crashes: self.crashes.unwrap_or(crashes),
            restarts: self.restarts.unwrap_or(restarts),
        };
        settings
    }
}

/// Runs simulations by number from 0, at most `count`, until one has failed; the reports of all, the failed one last.
pub(super) fn until_failure<R>(
    name: &str,
    count: u64,
    run: impl Fn(u64) -> R,
    has_failed: impl Fn(&R) -> bool,
) -> Vec<R> {
    let live = Live::new([name]);
    let mut reports = Vec::new();
    for number in 0..count {
        live.show(0, &format!("run {} of {count}", number + 1));
        reports.push(run(number));
        if reports.last().is_some_and(&has_failed) {
            break;
        }
    }
    reports
}

pub(super) fn command(arguments: &Arguments) -> Outcome {
    let settings = arguments.settings();
    let run = |number| simulate(Settings { seed: settings.seed.wrapping_add(number), ..settings });
    let reports = until_failure("sim locks", arguments.runs, run, |report: &Report| report.failure.is_some());
    print(&match arguments.output {
        Output::Text => reports.iter().map(text).collect::<Vec<_>>().join("\n"),
        Output::Json => format!("{:#}\n", json!({ "schema": 1, "runs": reports.iter().map(json).collect::<Vec<_>>() })),
        Output::Csv => csv(&reports),
    })?;
    let last = reports.last().expect("there is one run at least");
    last.verdict().map_err(|why| Failure::Check(format!("the lock service failed\n{why}")))
}

/// Name and figure of what has been counted.
fn figures(counters: &Counters) -> [(&'static str, u64); 22] {
    let of = counters;
    [
        ("operations", of.operations),
        ("writers", of.writers),
        ("readers", of.readers),
        ("busy", of.busy),
        ("timed_out", of.timed_out),
        ("withdrawn", of.withdrawn),
        ("downgraded", of.downgraded),
        ("lost", of.lost),
        ("ended", of.ended),
        ("packets", of.packets),
        ("packets_lost", of.packets_lost),
        ("packets_doubled", of.packets_doubled),
        ("packets_late", of.packets_late),
        ("packets_damaged", of.packets_damaged),
        ("cuts", of.cuts),
        ("pauses", of.pauses),
        ("crashes", of.crashes),
        ("restarts", of.restarts),
        ("restored", of.restored),
        ("expired", of.expired),
        ("simulated_us", of.time / 1000),
        ("longest_wait_us", of.longest_wait / 1000),
    ]
}

fn text(report: &Report) -> String {
    use std::fmt::Write;
    let mut text = format!("{}\n", report.settings.command());
    for (name, figure) in figures(&report.counters) {
        writeln!(text, "  {name:<16} {figure:>12}").expect("a string takes it");
    }
    let taken =
        Branch::ALL.iter().map(|branch| (branch, report.counters.branches.count(*branch))).filter(|(_, n)| *n > 0);
    let taken: Vec<_> = taken.map(|(branch, times)| format!("{branch:?} {times}")).collect();
    writeln!(text, "rare ways taken: {}", if taken.is_empty() { "none".into() } else { taken.join(", ") })
        .expect("as above");
    let verdict = match &report.failure {
        None => "passed: writers were alone, tokens grew, everybody was served, every lock is free".to_string(),
        Some(failure) => format!("FAILED: {}", failure.what),
    };
    writeln!(text, "{verdict}").expect("as above");
    text
}

fn json(report: &Report) -> serde_json::Value {
    let figures: serde_json::Map<_, _> =
        figures(&report.counters).into_iter().map(|(name, figure)| (name.into(), figure.into())).collect();
    let branches = Branch::ALL.iter().map(|branch| (format!("{branch:?}"), report.counters.branches.count(*branch)));
    json!({
        "command": report.settings.command(),
        "seed": report.settings.seed,
        "passed": report.failure.is_none(),
        "failure": report.failure.as_ref().map(|failure| failure.what.clone()),
        "counters": figures,
        "branches": branches.collect::<std::collections::BTreeMap<_, _>>(),
    })
}

fn csv(reports: &[Report]) -> String {
    let names = figures(&Counters::default()).map(|(name, _)| name).join(",");
    let mut text = format!("seed,passed,{names}\n");
    for report in reports {
        let figures = figures(&report.counters).map(|(_, figure)| figure.to_string()).join(",");
        text += &format!("{},{},{figures}\n", report.settings.seed, report.failure.is_none());
    }
    text
}
