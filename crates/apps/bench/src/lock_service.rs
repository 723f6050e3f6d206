//! `lockwork-bench lock-service`: lock services and a lock server beside each other, between namespaces of this host.
//!
//! Systems take turns, round by round, so that whatever else the machine does meets them alike; figures are those of
//! the median round. Every round starts a system afresh, and fails the command if a lock was granted to two who
//! conflict, or was lost.

use std::time::Duration;

use clap::{Args, ValueEnum};
use lockwork_lock_bench::histogram::Histogram;
use lockwork_lock_bench::{Bench, BenchError, Client, Measured, Settings, System, end_on_signals};
use lockwork_locks::namespace::NetworkError;
use serde::Serialize;
use serde_json::json;

use super::chart::grouped;
use super::measure::check_memory;
use super::options::{Results, check_passes, empty_entry, name_of, whole};
use super::progress::Live;
use super::report::Forms;
use super::workloads::refused;
use super::{Environment, Failure, Outcome};

/// What everything is compared with.
const BASELINE: System = System::SrvLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mix {
    /// update-heavy: half of the locks exclusive
    Uh,
    /// read-mostly: one in ten exclusive
    Rm,
    /// read-only
    Ro,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Distribution {
    Uniform,
    Zipf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Socket {
    Udp,
    /// AF_XDP: frames past the network stack
    Afxdp,
}

/// Systems, and the clients that ask them.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Clients {
    /// Systems, with commas: lockwork-xdp, lockwork-tc, lockwork-udp, netlock, parlock, srvlock, for lock-transactions
    /// tpcc lockwork-xdp-local too [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(super) system: Vec<String>,
    /// Client machines, each a thread in a namespace of its own [default: the cores, 2 to 16]
    #[arg(long)]
    machines: Option<u16>,
    /// Clients of each machine, each with one request at a time; at most 4096 on all machines [default: 64; for
    /// fisslock and lock-transactions tatp 160 on all machines, for tpcc 1200]
    #[arg(long)]
    pub(super) clients: Option<u32>,
    /// What all clients send and receive with, whatever system they ask
    #[arg(long, value_enum, default_value = "udp")]
    client: Socket,
    /// Seconds to measure each system for, in each of --passes rounds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// Options of `lock-service`.
#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    service: Clients,
    /// How many requests are exclusive
    #[arg(long = "workload", value_enum, default_value = "rm")]
    lock_workload: Mix,
    /// Which locks are requested; the skew of zipf is --theta
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Skew of zipf, 0 to below 1 [default: 0.99]
    #[arg(long)]
    theta: Option<f64>,
    /// Locks
    #[arg(long, default_value_t = 1_000_000)]
    locks: u64,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

impl Clients {
    /// Clients of each machine.
    pub(super) fn clients(&self) -> u32 {
        self.clients.unwrap_or(64)
    }

    /// How long to measure, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Client machines.
    pub(super) fn machines(&self) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.machines.unwrap_or(cores.clamp(2, 16) as u16)
    }

    /// How long to measure.
    pub(super) fn measured(&self) -> Result<Duration, Failure> {
        match self.seconds {
            seconds if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
            seconds => Err(Failure::usage(format!("--seconds is {seconds:?}; more than 0, up to 86400 are possible"))),
        }
    }

    /// What clients send and receive with, and its name.
    pub(super) fn client(&self) -> (Client, &'static str) {
        match self.client {
            Socket::Udp => (Client::Udp, "udp"),
            Socket::Afxdp => (Client::AfXdp, "afxdp"),
        }
    }
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Latency {
    pub(super) fn of(histogram: &Histogram) -> Self {
        let at = |share| histogram.quantile(share) as f64 / 1e3;
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// One system.
#[derive(Clone, Debug, Serialize)]
struct Run {
    system: &'static str,
    throughput_locks_per_s: f64,
    latency_us: Latency,
    /// One client of one machine.
    uncontended_us: Latency,
    /// Throughput to that of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    throughput_ratio: Option<f64>,
    /// Median latency of one client to that of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    uncontended_ratio: Option<f64>,
    grants: u64,
    rounds_locks_per_s: Vec<f64>,
    verified: bool,
}

pub(super) fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Check(_) => Failure::Check(error.to_string()),
        BenchError::Interrupted => Failure::Interrupted,
        BenchError::Choice(error) => refused(error),
        BenchError::Network(NetworkError::Machines(_)) => Failure::Usage(error.to_string()),
        BenchError::Absent(_) | BenchError::Network(_) => Failure::BackEnd(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    }
}

/// Why a system has no result.
pub(super) fn failure_of(system: System, error: BenchError) -> Failure {
    match error {
        BenchError::Check(what) => Failure::Check(format!("{}: {what}", system.name())),
        error => failure(error),
    }
}

/// The systems that were named, of those that there are, or all.
pub(super) fn systems(names: &[String], all: &[System]) -> Result<Vec<System>, Failure> {
    let known = || all.iter().map(|system| system.name()).collect::<Vec<_>>().join(", ");
    let parse = |name: &String| match all.iter().find(|system| system.name() == name) {
        Some(system) => Ok(*system),
        None if name.is_empty() => Err(empty_entry("--system", "--system lockwork-xdp,srvlock")),
        None => Err(Failure::usage(format!("no system is called '{name}'; there are {}", known()))),
    };
    if let Some(twice) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
        return Err(Failure::usage(format!("--system has '{}' twice", names[twice])));
    }
    if names.is_empty() { Ok(all.to_vec()) } else { names.iter().map(parse).collect() }
}

fn settings(arguments: &Arguments, systems: &[System]) -> Result<Settings, Failure> {
    let clients = &arguments.service;
    let measured = clients.measured()?;
    let theta = match arguments.distribution {
        Distribution::Zipf => Some(arguments.theta.unwrap_or(0.99)),
        Distribution::Uniform if arguments.theta.is_some() => {
            return Err(Failure::usage("--theta means nothing for uniform; add --distribution zipf"));
        }
        Distribution::Uniform => None,
    };
    let writes = match arguments.lock_workload {
        Mix::Uh => 0.5,
        Mix::Rm => 0.1,
        Mix::Ro => 0.0,
    };
    if arguments.locks == 0 {
        return Err(Failure::usage("--locks is 0; 1 or more is possible"));
    }
    let settings = Settings {
        machines: clients.machines(),
        clients: clients.clients(),
        locks: arguments.locks,
        objects: arguments.locks,
        hotspot: None,
        slice: None,
        writes,
        theta,
        seed: arguments.seed,
        client: clients.client().0,
        measured,
    };
    settings.check(systems).map_err(failure)?;
    check_locks(settings.locks)?;
    Ok(settings)
}

/// Whether so many locks fit into memory.
pub(super) fn check_locks(locks: u64) -> Outcome {
    // A line of a lock server, and what watches critical sections.
    check_memory(&format!("{locks} locks"), u128::from(locks) * (64 + 16), "--locks")
}

/// Measures, prints, and says whether everything was as promised.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    let systems = systems(&arguments.service.system, System::ALL)?;
    let settings = settings(arguments, &systems)?;
    check_passes(arguments.passes)?;
    arguments.results.prepare()?;
    end_on_signals();
    let bench = Bench::new(settings.clone()).map_err(failure)?;
    let live = Live::new(systems.iter().map(|system| system.name()));
    let mut rounds: Vec<Vec<[Measured; 2]>> = vec![Vec::new(); systems.len()];
    for pass in 1..=arguments.passes {
        for (row, &system) in systems.iter().enumerate() {
            let named = |error| failure_of(system, error);
            live.show(row, &format!("round {pass} of {}", arguments.passes));
            let crowd = bench.round(system).map_err(named)?;
            let rate = grouped(crowd.grants as f64 / crowd.seconds);
            live.show(row, &format!("round {pass} of {}: {rate} locks/s; one client", arguments.passes));
            let alone = bench.alone(system).map_err(named)?;
            live.show(row, &format!("round {pass} of {}: {rate} locks/s", arguments.passes));
            rounds[row].push([crowd, alone]);
        }
    }
    drop(live);
    drop(bench);
    let mut runs: Vec<Run> = systems.iter().zip(rounds).map(|(system, rounds)| run(*system, rounds)).collect();
    if let Some(base) = runs.iter().find(|run| run.system == BASELINE.name()).cloned() {
        for run in &mut runs {
            run.throughput_ratio = Some(run.throughput_locks_per_s / base.throughput_locks_per_s);
            run.uncontended_ratio = Some(run.uncontended_us.p50 / base.uncontended_us.p50);
        }
    }
    arguments.results.give(&forms(arguments, &settings, &runs))?;
    all_verified(runs.iter().map(|run| (run.system, run.verified)))
}

/// An error that names the first system whose rounds were not all verified.
pub(super) fn all_verified<'a>(mut runs: impl Iterator<Item = (&'a str, bool)>) -> Outcome {
    match runs.find(|(_, verified)| !verified) {
        None => Ok(()),
        Some((system, _)) => Err(Failure::Check(format!("{system}: not all of its rounds were verified"))),
    }
}

/// Whether something was verified, in a table.
pub(super) const fn yes(verified: bool) -> &'static str {
    if verified { "yes" } else { "NO" }
}

/// The median rounds of a system.
fn run(system: System, rounds: Vec<[Measured; 2]>) -> Run {
    let rate = |measured: &Measured| measured.grants as f64 / measured.seconds;
    let rounds_locks_per_s = rounds.iter().map(|[crowd, _]| rate(crowd)).collect();
    let (mut crowds, mut alones): (Vec<Measured>, Vec<Measured>) = rounds.into_iter().map(<(_, _)>::from).unzip();
    crowds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    alones.sort_by_key(|alone| alone.latency.quantile(0.5));
    let (crowd, alone) = (&crowds[crowds.len() / 2], &alones[alones.len() / 2]);
    Run {
        system: system.name(),
        throughput_locks_per_s: rate(crowd),
        latency_us: Latency::of(&crowd.latency),
        uncontended_us: Latency::of(&alone.latency),
        throughput_ratio: None,
        uncontended_ratio: None,
        grants: crowd.grants,
        rounds_locks_per_s,
        verified: crowds.iter().chain(&alones).all(|round| round.verified),
    }
}

fn forms(arguments: &Arguments, settings: &Settings, runs: &[Run]) -> Forms {
    let environment = Environment::read();
    let service = &arguments.service;
    let (mix, distribution) = (name_of(arguments.lock_workload), name_of(arguments.distribution));
    let client = service.client().1;
    let effective = json!({
        "workload": "lock-service", "mix": mix, "writes": settings.writes, "distribution": distribution,
        "theta": settings.theta, "locks": settings.locks, "machines": settings.machines,
        "clients_per_machine": settings.clients, "client": client, "seconds": settings.measured.as_secs_f64(),
        "rounds": arguments.passes, "seed": settings.seed, "network": "namespaces of one host, joined by veth",
    });
    let report = json!({ "schema": 1, "environment": environment, "settings": effective, "runs": runs });
    let mut csv = String::from(
        "system,throughput_locks_per_s,p50_us,p95_us,p99_us,p999_us,max_us,uncontended_p50_us,uncontended_p99_us,verified\n",
    );
    let e = &environment;
    let mut text = format!(
        "{}, {} cores, kernel {}, commit {}\nsettings {effective}\n\
         all between namespaces of this one host: clients, kernel and servers share its cores\n\n\
         {:<13} {:>11} {:>6} {:>9} {:>9} {:>9} {:>9} {:>10}   {:>9} {:>9} {:>6}  {}\n",
        e.cpu,
        e.cores,
        e.kernel,
        e.commit,
        "system",
        "locks/s",
        "ratio",
        "p50 us",
        "p95 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "alone p50",
        "alone p99",
        "ratio",
        "verified"
    );
    for run in runs {
        let (l, alone, rate) = (&run.latency_us, &run.uncontended_us, run.throughput_locks_per_s);
        csv.push_str(&format!(
            "{},{rate:.0},{:.2},{:.2},{:.2},{:.2},{:.2},{:.2},{:.2},{}\n",
            run.system, l.p50, l.p95, l.p99, l.p999, l.max, alone.p50, alone.p99, run.verified
        ));
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        text.push_str(&format!(
            "{:<13} {:>11} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>10.1}   {:>9.2} {:>9.2} {:>6}  {}\n",
            run.system,
            grouped(rate),
            ratio(run.throughput_ratio),
            l.p50,
            l.p95,
            l.p99,
            l.p999,
            l.max,
            alone.p50,
            alone.p99,
            ratio(run.uncontended_ratio),
            yes(run.verified)
        ));
    }
    text.push_str(&format!(
        "\nratios to {}; alone: one client of one machine. Verified: writers alone, tokens grew, every lock was granted \
         and given back\n",
        BASELINE.name()
    ));
    Forms {
        text,
        json: format!("{report:#}\n"),
        csv,
        title: format!("lock service, {mix}, {distribution}, {} locks", settings.locks),
        unit: "locks a second, namespaces on one host",
        bars: runs.iter().map(|run| (run.system.to_string(), run.throughput_locks_per_s)).collect(),
    }
}
