//! `lockwork-bench lock-transactions tatp` and `tpcc`: transactions by lock manager, between namespaces of this host.
//! Figures 14 (right) and 15 of FissLock's evaluation: transactions a second, and how long each type of transaction
//! takes.
//!
//! Systems take turns as in `lockwork-bench lock-service`, and every critical section is watched. All replay the same
//! lock requests, which are the workload's own: its procedures run on its first rows, once, before anything is
//! measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockwork_lock_bench::histogram::Histogram;
use lockwork_lock_bench::transactions::{Clients, Transactions};
use lockwork_lock_bench::{BenchError, Measured, System, end_on_signals};
use lockwork_workload::lock_trace::LockTrace;
use lockwork_workload::tatp::TatpConfig;
use lockwork_workload::tpcc::TpccConfig;
use serde::Serialize;
use serde_json::json;

use super::chart::{cumulative, grouped};
use super::lock_service::{self, Latency, all_verified, failure, systems, yes};
use super::measure::check_memory;
use super::options::{Results, check_passes, whole};
use super::progress::Live;
use super::report::Forms;
use super::workloads::refused;
use super::{Environment, Failure, Outcome};

/// What the others are compared with, as far as they are measured.
const BASELINES: [&str; 2] = ["srvlock", "netlock"];

/// Whose transactions run.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Benchmark {
    /// TATP (figure 14, right)
    Tatp(Arguments),
    /// TPC-C (figure 15)
    Tpcc(Arguments),
}

/// Options of `lock-transactions`.
#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    service: lock_service::Clients,
    /// Subscribers, or warehouses [default: tatp 100,000, tpcc 1,200]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

impl Benchmark {
    fn arguments(&self) -> &Arguments {
        let (Self::Tatp(arguments) | Self::Tpcc(arguments)) = self;
        arguments
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Tatp(_) => "tatp",
            Self::Tpcc(_) => "tpcc",
        }
    }

    /// How long a transaction would run for (section 7.1).
    const fn inside(&self) -> Duration {
        match self {
            Self::Tatp(_) => Duration::from_micros(2),
            Self::Tpcc(_) => Duration::from_micros(10),
        }
    }

    /// Clients of all machines, as in the paper.
    const fn clients(&self) -> u32 {
        match self {
            Self::Tatp(_) => 160,
            Self::Tpcc(_) => 1200,
        }
    }

    /// Subscribers or warehouses: together about a million locks.
    const fn records(&self) -> u64 {
        match self {
            Self::Tatp(_) => 100_000,
            Self::Tpcc(_) => 1200,
        }
    }

    /// Locks of each.
    const fn locks(&self) -> u64 {
        match self {
            Self::Tatp(_) => 10,
            Self::Tpcc(_) => 831,
        }
    }

    fn trace(&self, records: u64, seed: u64) -> Result<LockTrace, Failure> {
        let trace = match self {
            Self::Tatp(_) => {
                LockTrace::tatp(TatpConfig { subscribers: records, seed, ..TatpConfig::default() }, 1 << 16)
            }
            // Some twenty for each warehouse.
            Self::Tpcc(_) => {
                let transactions = records.saturating_mul(20).min(1 << 17) as usize;
                LockTrace::tpcc(TpccConfig { seed, ..TpccConfig::standard(records) }, transactions)
            }
        };
        trace.map_err(refused)
    }
}

/// A type of transaction on a system.
#[derive(Clone, Debug, Serialize)]
struct Type {
    name: &'static str,
    transactions: u64,
    latency_us: Latency,
    /// Microseconds that 1, 2, ... 99 percent of them did not exceed.
    percentiles_us: Vec<f64>,
}

/// One system.
#[derive(Clone, Debug, Serialize)]
struct Run {
    system: &'static str,
    throughput_txn_per_s: f64,
    /// To that of each baseline.
    ratios: BTreeMap<&'static str, f64>,
    locks_per_s: f64,
    /// From asking to the grant.
    grant_us: Latency,
    /// Packets of clients, sent and received, to locks granted.
    packets_per_lock: f64,
    types: Vec<Type>,
    rounds_txn_per_s: Vec<f64>,
    verified: bool,
    #[serde(skip)]
    buckets: Vec<Vec<(u64, u64)>>,
}

/// Transactions a second.
fn rate(measured: &Measured) -> f64 {
    measured.transactions.iter().map(|latency| latency.count()).sum::<u64>() as f64 / measured.seconds
}

/// The median round of a system.
fn run(system: System, mut rounds: Vec<Measured>, types: &[&'static str]) -> Run {
    let rounds_txn_per_s = rounds.iter().map(rate).collect();
    rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let measured = &rounds[rounds.len() / 2];
    let of_type = |(&name, latency): (&&'static str, &Histogram)| {
        let at = |percent: u32| latency.quantile(f64::from(percent) / 100.0) as f64 / 1e3;
        let percentiles_us = (1..100).map(at).collect();
        Type { name, transactions: latency.count(), latency_us: Latency::of(latency), percentiles_us }
    };
    Run {
        system: system.name(),
        throughput_txn_per_s: rate(measured),
        ratios: BTreeMap::new(),
        locks_per_s: measured.grants as f64 / measured.seconds,
        grant_us: Latency::of(&measured.latency),
        packets_per_lock: measured.packets.iter().sum::<u64>() as f64 / measured.grants.max(1) as f64,
        types: types.iter().zip(&measured.transactions).map(of_type).collect(),
        rounds_txn_per_s,
        verified: rounds.iter().all(|round| round.verified),
        buckets: measured.transactions.iter().map(|latency| latency.buckets().collect()).collect(),
    }
}

/// Measures, prints, and says whether everything was as promised.
pub(super) fn command(benchmark: &Benchmark) -> Outcome {
    let arguments = benchmark.arguments();
    let service = &arguments.service;
    let mut all = System::ALL.to_vec();
    if matches!(benchmark, Benchmark::Tpcc(_)) {
        all.insert(1, System::XdpLocal);
    }
    let systems = systems(&service.system, &all)?;
    check_passes(arguments.passes)?;
    let records = arguments.records.unwrap_or(benchmark.records());
    let machines = service.machines();
    let clients = Clients {
        machines,
        clients: service.clients.unwrap_or(benchmark.clients() / u32::from(machines.max(1))),
        client: service.client().0,
        inside: benchmark.inside(),
        measured: service.measured()?,
    };
    // A line of the lock server, and what watches critical sections.
    let bytes = u128::from(records) * u128::from(benchmark.locks()) * (64 + 16);
    check_memory(&format!("the locks of {records} records"), bytes, "--records")?;
    arguments.results.prepare()?;
    let trace = benchmark.trace(records, arguments.seed)?;
    debug_assert_eq!(trace.locks(), records * benchmark.locks());
    clients.check(&systems, &trace).map_err(failure)?;
    end_on_signals();
    let bench = Transactions::new(clients.clone(), trace).map_err(failure)?;
    let live = Live::new(systems.iter().map(|system| system.name()));
    let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); systems.len()];
    for pass in 1..=arguments.passes {
        for (row, &system) in systems.iter().enumerate() {
            live.show(row, &format!("round {pass} of {}", arguments.passes));
            let measured = bench.round(system).map_err(|error| match error {
                BenchError::Check(what) => Failure::Check(format!("{}: {what}", system.name())),
                error => failure(error),
            })?;
            let rate = grouped(rate(&measured));
            live.show(row, &format!("round {pass} of {}: {rate} transactions/s", arguments.passes));
            rounds[row].push(measured);
        }
    }
    drop(live);
    let types = bench.trace().types();
    let mut runs: Vec<Run> = systems.iter().zip(rounds).map(|(system, rounds)| run(*system, rounds, types)).collect();
    for baseline in BASELINES {
        if let Some(base) = runs.iter().find(|run| run.system == baseline).map(|run| run.throughput_txn_per_s) {
            for run in &mut runs {
                run.ratios.insert(baseline, run.throughput_txn_per_s / base);
            }
        }
    }
    let report = Report { arguments, benchmark, records, clients: &clients, trace: bench.trace(), runs: &runs };
    arguments.results.give(&report.forms())?;
    arguments.results.out.as_deref().map_or(Ok(()), |folder| report.save_charts(folder))?;
    all_verified(runs.iter().map(|run| (run.system, run.verified)))
}

struct Report<'a> {
    arguments: &'a Arguments,
    benchmark: &'a Benchmark,
    records: u64,
    clients: &'a Clients,
    trace: &'a LockTrace,
    runs: &'a [Run],
}

impl Report<'_> {
    /// Mean number of locks of each type, and of all transactions.
    fn locks(&self) -> (Vec<(&'static str, f64)>, f64) {
        let counts = self.trace.counts();
        let mean = |transactions: u64, locks: u64| locks as f64 / transactions.max(1) as f64;
        let types = self.trace.types().iter().zip(&counts).map(|(&name, count)| (name, mean(count.0, count.1)));
        (types.collect(), mean(self.trace.len() as u64, counts.iter().map(|count| count.1).sum()))
    }

    fn forms(&self) -> Forms {
        let environment = Environment::read();
        let Clients { machines, clients, inside, measured, .. } = self.clients;
        let name = self.benchmark.name();
        let (locks, mean) = self.locks();
        let settings = json!({
            "workload": format!("lock-{name}"), "records": self.records, "locks": self.trace.locks(),
            "machines": machines, "clients_per_machine": clients, "client": self.arguments.service.client().1,
            "inside_us": inside.as_micros() as u64, "transactions_in_trace": self.trace.len(),
            "seconds": measured.as_secs_f64(), "rounds": self.arguments.passes, "seed": self.arguments.seed,
            "network": "namespaces of one host, joined by veth",
        });
        let locks_of: BTreeMap<_, _> = locks.iter().copied().collect();
        let report = json!({
            "schema": 1, "environment": environment, "settings": settings,
            "locks_per_transaction": { "all": mean, "types": locks_of }, "runs": self.runs,
        });
        let e = &environment;
        let locks: Vec<String> = locks.iter().map(|(name, mean)| format!("{name} {mean:.1}")).collect();
        let text = format!(
            "{}, {} cores, kernel {}, commit {}\nsettings {settings}\n\
             all between namespaces of this one host: clients, kernel and servers share its cores\n\
             locks of a transaction: {mean:.2}; {}\n\n{}\n{}\n\
             Verified: writers alone, tokens grew, every lock was granted and given back; no transaction gave up, as \
             locks are taken in order\n",
            e.cpu,
            e.cores,
            e.kernel,
            e.commit,
            locks.join(", "),
            self.throughput(),
            self.latencies()
        );
        Forms {
            text,
            json: format!("{report:#}\n"),
            csv: self.csv(),
            title: format!("{name}, {} locks, by lock manager", grouped(self.trace.locks() as f64)),
            unit: "transactions a second, namespaces on one host",
            bars: self.runs.iter().map(|run| (run.system.to_string(), run.throughput_txn_per_s)).collect(),
        }
    }

    /// Figure 14, right.
    fn throughput(&self) -> String {
        let mut text = format!(
            "{:<18} {:>11} {:>10} {:>10} {:>11} {:>10} {:>10} {:>9}  {}\n",
            "system", "txn/s", "/ srvlock", "/ netlock", "locks/s", "grant p50", "p99 us", "packets", "verified"
        );
        for run in self.runs {
            let ratio = |name| run.ratios.get(name).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
            text.push_str(&format!(
                "{:<18} {:>11} {:>10} {:>10} {:>11} {:>10.1} {:>10.1} {:>9.2}  {}\n",
                run.system,
                grouped(run.throughput_txn_per_s),
                ratio("srvlock"),
                ratio("netlock"),
                grouped(run.locks_per_s),
                run.grant_us.p50,
                run.grant_us.p99,
                run.packets_per_lock,
                yes(run.verified)
            ));
        }
        text + "packets: sent and received by clients, for each lock\n"
    }

    /// Figure 15, in numbers.
    fn latencies(&self) -> String {
        let mut text = format!("{:<22}", "p50 / p99 us");
        self.trace.types().iter().for_each(|name| text.push_str(&format!(" {name:>19}")));
        for run in self.runs {
            text.push_str(&format!("\n{:<22}", run.system));
            for of_type in &run.types {
                let Latency { p50, p99, .. } = of_type.latency_us;
                text.push_str(&format!(" {:>19}", format!("{p50:.0} / {p99:.0}")));
            }
        }
        text + "\n"
    }

    fn csv(&self) -> String {
        let mut csv = String::from("system,type,locks,txn_per_s,p50_us,p95_us,p99_us,p999_us,max_us,verified\n");
        let (locks, mean) = self.locks();
        for run in self.runs {
            let all: u64 = run.types.iter().map(|of_type| of_type.transactions).sum();
            let total = run.throughput_txn_per_s;
            csv.push_str(&format!("{},all,{mean:.2},{total:.0},,,,,,{}\n", run.system, run.verified));
            for (of_type, (name, locks)) in run.types.iter().zip(&locks) {
                let (l, share) = (&of_type.latency_us, of_type.transactions as f64 / all.max(1) as f64);
                csv.push_str(&format!(
                    "{},{name},{locks:.2},{:.0},{:.2},{:.2},{:.2},{:.2},{:.2},{}\n",
                    run.system,
                    total * share,
                    l.p50,
                    l.p95,
                    l.p99,
                    l.p999,
                    l.max,
                    run.verified
                ));
            }
        }
        csv
    }

    /// Figure 15: a chart for each type.
    fn save_charts(&self, folder: &Path) -> Outcome {
        for (at, name) in self.trace.types().iter().enumerate() {
            let series: Vec<_> =
                self.runs.iter().map(|run| (run.system.to_string(), run.buckets[at].clone())).collect();
            let title = format!("{}: latency of {name}", self.benchmark.name());
            let path = folder.join(format!("latency-{}.svg", name.to_lowercase()));
            let chart = cumulative(&title, "transactions", &series);
            std::fs::write(&path, chart).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}
