//! `lockwork sim locks`: the lock service in one thread, where everything goes wrong; a seed gives a run again.

use clap::{Args, Subcommand};
use lockwork_lockservice::branches::Branch;
use lockwork_lockservice::simulator::{Counters, Faults, Settings, run};

use super::chart::grouped;
use super::{Failure, Outcome, print};

/// A millionth part; what is more is always.
const ALWAYS: i64 = 1_000_000;

#[derive(Debug, Subcommand)]
pub(super) enum Arguments {
    /// The lock service, with packets lost, doubled, damaged and late, and machines cut off, standing still and crashing
    Locks(LockArguments),
}

#[derive(Debug, Args)]
pub(super) struct LockArguments {
    /// Gives everything that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests of all tasks together
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// Machines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=200))]
    machines: u32,
    /// Tasks of each machine
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// Locks; the first ones are asked for most
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    locks: u64,
    /// Words of 18 bits, with delays that they allow
    #[arg(long)]
    lean: bool,
    /// Readers do not pass a writer that waits
    #[arg(long)]
    writers_first: bool,
    /// A perfect network and machines that live for ever, but for what the next options say
    #[arg(long)]
    no_faults: bool,
    /// Packets in a million that are lost
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=ALWAYS))]
    lost: Option<u32>,
    /// Packets in a million that come twice
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=ALWAYS))]
    doubled: Option<u32>,
    /// Packets in a million with a wrong bit
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=ALWAYS))]
    damaged: Option<u32>,
    /// Packets in a million that come late
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=ALWAYS))]
    late: Option<u32>,
    /// How late at most, in nanoseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    latest: Option<u64>,
    /// Times a second that a machine is cut off
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=100))]
    cuts: Option<u32>,
    /// Times a second that a machine stands still
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=100))]
    pauses: Option<u32>,
    /// Times a second that a machine crashes, or leaves without giving back
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=100))]
    crashes: Option<u32>,
}

impl LockArguments {
    fn settings(&self) -> Settings {
        let &Self { seed, operations, machines, tasks, locks, writers_first, .. } = self;
        let all = Settings { operations, machines, tasks, locks, writers_first, ..Settings::new(seed) };
        let usual = if self.lean { all.lean() } else { all };
        let faults = if self.no_faults { Faults::NONE } else { usual.faults };
        let faults = Faults {
            lost: self.lost.unwrap_or(faults.lost),
            doubled: self.doubled.unwrap_or(faults.doubled),
            damaged: self.damaged.unwrap_or(faults.damaged),
            late: self.late.unwrap_or(faults.late),
            latest: self.latest.unwrap_or(faults.latest),
            cuts: self.cuts.unwrap_or(faults.cuts),
            pauses: self.pauses.unwrap_or(faults.pauses),
            crashes: self.crashes.unwrap_or(faults.crashes),
        };
        Settings { faults, ..usual }
    }
}

pub(super) fn simulate(arguments: &Arguments) -> Outcome {
    let Arguments::Locks(arguments) = arguments;
    let settings = arguments.settings();
    print(&format!("{}\n\n", settings.command()))?;
    let report = run(settings);
    print(&table(&report.counters))?;
    match report.failure {
        None => print("\nNobody was granted what another held, tokens grew, and everybody was served.\n"),
        Some(failure) => {
            print(&format!("\n{}", failure.trace))?;
            Err(Failure::Check(format!("{}; replay: {}", failure.what, settings.command())))
        }
    }
}

fn table(counters: &Counters) -> String {
    let Counters { time, longest_wait, .. } = *counters;
    let mut text = format!("{:>14.3}  simulated seconds\n", time as f64 / 1e9);
    text += &format!("{:>14.3}  longest wait, simulated milliseconds\n", longest_wait as f64 / 1e6);
    let lines = [
        ("requests", counters.operations),
        ("exclusive grants", counters.writers),
        ("shared grants", counters.readers),
        ("told that they would have to wait", counters.busy),
        ("waited as long as they could", counters.timed_out),
        ("taken back while they waited", counters.withdrawn),
        ("downgraded", counters.downgraded),
        ("lost while held", counters.lost),
        ("ended with their session", counters.ended),
        ("packets", counters.packets),
        ("packets lost", counters.packets_lost),
        ("packets doubled", counters.packets_doubled),
        ("packets late", counters.packets_late),
        ("packets damaged", counters.packets_damaged),
        ("machines cut off", counters.cuts),
        ("machines that stood still", counters.pauses),
        ("machines that crashed", counters.crashes),
        ("leases that ran out", counters.expired),
    ];
    let line = |name: &str, count: u64| format!("{:>14}  {name}\n", grouped(count as f64));
    text.extend(lines.map(|(name, count)| line(name, count)));
    text.push('\n');
    text.extend(Branch::ALL.iter().map(|branch| line(&format!("{branch:?}"), counters.branches.count(*branch))));
    text
}
