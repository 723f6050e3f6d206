//! `lockwork-bench sim cluster`: nodes, the servers of their log and clients in one process, with a clock of its own,
//! under every fault, checked at every message, answer and read.
//!
//! A seed gives a run again, byte for byte, so what fails here is replayed by the command that the failure prints.

use clap::{Args, value_parser};
use lockwork_sequencer::simulator::{Broken, Counters, Damage, Report, Seen, Settings, run as simulate};
use serde_json::json;

use super::sim_locks::until_failure;
use super::{Failure, Outcome, Output, print};

const USUAL: Settings = Settings::new(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Gives everything that is random
    #[arg(long, default_value_t = USUAL.seed)]
    seed: u64,
    /// Runs with this seed and those that follow
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Nodes
    #[arg(long, default_value_t = USUAL.nodes as u64, value_parser = value_parser!(u64).range(1..=16))]
    nodes: u64,
    /// Calls, reads and definitions of each run
    #[arg(long, default_value_t = USUAL.steps, value_parser = value_parser!(u64).range(1..=100_000))]
    steps: u64,
    /// Nothing goes wrong
    #[arg(long)]
    no_faults: bool,
    /// The log does what none should, and every reader has to stop: loss, reordering, fork or alteration
    #[arg(long, value_parser = str::parse::<Damage>)]
    damage: Option<Damage>,
    /// Breaks a rule, which the simulator should find out: fencing, acknowledgement or requests
    #[arg(long = "break", value_parser = str::parse::<Broken>)]
    broken: Option<Broken>,
    /// Also prints what happened, line by line
    #[arg(long)]
    trace: bool,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl Arguments {
    fn settings(&self) -> Settings {
        let &Self { seed, steps, no_faults, damage, broken, .. } = self;
        Settings { seed, nodes: self.nodes as usize, steps, faults: !no_faults, damage, broken }
    }
}

pub(super) fn command(arguments: &Arguments) -> Outcome {
    let settings = arguments.settings();
    let run = |number| simulate(Settings { seed: settings.seed.wrapping_add(number), ..settings });
    let reports = until_failure("sim cluster", arguments.seeds, run, |report: &Report| report.failure.is_some());
    print(&match arguments.output {
        Output::Text => text(&reports, arguments.trace),
        Output::Json => format!("{:#}\n", json!({ "schema": 1, "runs": reports.iter().map(json).collect::<Vec<_>>() })),
        Output::Csv => csv(&reports),
    })?;
    let last = reports.last().expect("there is one run at least");
    last.verdict().map_err(|why| Failure::Check(format!("the cluster failed\n{why}")))
}

fn text(reports: &[Report], trace: bool) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut counters = Counters::default();
    let written = "a string takes it";
    for report in reports {
        counters.merge(&report.counters);
        if trace {
            text += &report.trace;
        }
        let Report { settings, simulated_ns, records, epochs, stopped, failure, .. } = report;
        let seconds = simulated_ns / 1_000_000_000;
        writeln!(text, "{}: {seconds} s, {records} records, {epochs} epochs", settings.command()).expect(written);
        stopped.iter().for_each(|why| writeln!(text, "  stopped: {why}").expect(written));
        if let Some(failure) = failure {
            writeln!(text, "FAILED: {failure}").expect(written);
        }
    }
    for seen in Seen::ALL.iter().filter(|&&seen| counters.count(seen) > 0) {
        writeln!(text, "  {:<20} {:>10}", format!("{seen:?}"), counters.count(*seen)).expect(written);
    }
    if reports.iter().all(|report| report.failure.is_none()) {
        text += match reports[0].settings.damage {
            None => "passed: what was acknowledged is there once, money is conserved, all nodes have the same\n",
            Some(_) => "passed: every reader has stopped\n",
        };
    }
    text
}

fn json(report: &Report) -> serde_json::Value {
    let seen = Seen::ALL.iter().map(|&seen| (format!("{seen:?}"), report.counters.count(seen)));
    json!({
        "command": report.settings.command(),
        "seed": report.settings.seed,
        "passed": report.failure.is_none(),
        "failure": report.failure,
        "simulated_us": report.simulated_ns / 1000,
        "records": report.records,
        "epochs": report.epochs,
        "stopped": report.stopped,
        "seen": seen.collect::<std::collections::BTreeMap<_, _>>(),
    })
}

fn csv(reports: &[Report]) -> String {
    let names: Vec<_> = Seen::ALL.iter().map(|seen| format!("{seen:?}").to_lowercase()).collect();
    let mut text = format!("seed,passed,simulated_us,records,epochs,{}\n", names.join(","));
    for Report { settings, counters, simulated_ns, records, epochs, failure, .. } in reports {
        let seen: Vec<_> = Seen::ALL.iter().map(|&seen| counters.count(seen).to_string()).collect();
        let (passed, micros) = (failure.is_none(), simulated_ns / 1000);
        text += &format!("{},{passed},{micros},{records},{epochs},{}\n", settings.seed, seen.join(","));
    }
    text
}
