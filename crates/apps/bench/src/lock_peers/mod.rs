//! `lockwork-bench lock-peers`: the lock service beside the lock services that people use, Redis, RedLock and etcd;
//! with `--bank` a bank that takes its locks from each.
//!
//! Every server is a process of its own on loopback, started here with nothing on a disk and ended here; every client
//! is a thread with a connection of its own and a client library that is in common use. Systems take turns, round by
//! round, so that whatever else the machine does meets them alike; figures are medians of the rounds. A grant to two
//! at once, or a token that does not grow, fails the command.

mod bank;
mod etcd;
mod growth;
mod load;
mod lockwork;
mod recovery;
mod redis;
mod server;

pub(super) use recovery::{Arguments as RecoveryArguments, command as recovery};
use std::time::Duration;

use clap::Args;
use lockwork_lock_bench::end_on_signals;
use lockwork_lock_bench::histogram::Histogram;
use lockwork_workload::random::Random;
use lockwork_workload::statistics::median;
use lockwork_workload::zipf::{Chooser, Distribution};
use serde::Serialize;
use serde_json::json;

use super::chart::{self, grouped};
use super::lock_service::all_verified;
use super::measure::check_memory;
use super::options::{Results, check_passes, empty_entry, whole};
use super::progress::Live;
use super::report::Forms;
use super::workloads::refused;
use super::{Environment, Failure, Outcome};
use load::{Load, Measured};
pub(super) use lockwork::program;
pub(super) use server::Server;

/// Clients that measure how many locks a second there are.
const PAIRS: u32 = 16;

#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    /// Systems, with commas: lockwork, lockwork-stay, lockwork-shared, redis, redlock, redlock-at-once, etcd; with
    /// --bank also none [default: all]
    #[arg(long, value_delimiter = ',')]
    system: Vec<String>,
    /// Clients
    #[arg(long, default_value_t = 64)]
    clients: u32,
    /// Seconds to measure each system for, in each of --passes rounds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Locks, or accounts of the bank [default: 10,000 locks, 1,000,000 accounts]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Skew, 0 to below 1
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
    /// A bank in Redis that takes its locks from each system, with more and more clients
    #[arg(long)]
    bank: bool,
    /// A client that Redis refuses waits a random time up to this many milliseconds
    #[arg(long, default_value_t = 2.0)]
    retry: f64,
    /// With --bank: numbers of clients, with commas
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256,1024")]
    crowds: Vec<u32>,
    /// With --bank: application servers that share the clients
    #[arg(long, default_value_t = 2)]
    servers: u32,
}

/// A client of a lock service.
trait Peer: Send {
    /// Waits for an exclusive lock; its fencing token if it has one.
    fn acquire(&mut self, lock: u64) -> Result<Option<u64>, String>;

    /// Gives it back.
    fn release(&mut self, lock: u64) -> Result<(), String>;
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    /// The lock service, a session for each client.
    Lockwork,
    /// The same, and locks stay for a while with the client that has used them.
    LockworkStay,
    /// The lock service, one session for all clients.
    LockworkShared,
    /// One instance.
    Redis,
    /// The majority of three, one after the other.
    RedLock,
    /// The majority of three, all at the same time.
    RedLockAtOnce,
    Etcd,
}

impl System {
    const ALL: [Self; 7] = [
        Self::Lockwork,
        Self::LockworkStay,
        Self::LockworkShared,
        Self::Redis,
        Self::RedLock,
        Self::RedLockAtOnce,
        Self::Etcd,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Lockwork => "lockwork",
            Self::LockworkStay => "lockwork-stay",
            Self::LockworkShared => "lockwork-shared",
            Self::Redis => "redis",
            Self::RedLock => "redlock",
            Self::RedLockAtOnce => "redlock-at-once",
            Self::Etcd => "etcd",
        }
    }

    const fn is_ours(self) -> bool {
        matches!(self, Self::Lockwork | Self::LockworkStay | Self::LockworkShared)
    }

    /// Instances of Redis that it needs.
    const fn instances(self) -> usize {
        match self {
            Self::Redis => 1,
            Self::RedLock | Self::RedLockAtOnce => 3,
            Self::Lockwork | Self::LockworkStay | Self::LockworkShared | Self::Etcd => 0,
        }
    }
}

/// Something that is needed does not do what it should.
fn outside(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::BackEnd(format!("{what}: {error}"))
}

/// Those of `all` that are asked for by name, or all.
fn chosen<S: Copy>(given: &[String], all: &[S], name: impl Fn(S) -> &'static str) -> Result<Vec<S>, Failure> {
    let known = || all.iter().map(|system| name(*system)).collect::<Vec<_>>().join(", ");
    let parse = |given: &String| match all.iter().find(|system| name(**system) == given) {
        Some(system) => Ok(*system),
        None if given.is_empty() => Err(empty_entry("--system", "--system lockwork,redis")),
        None => Err(Failure::usage(format!("no system is called '{given}'; there are {}", known()))),
    };
    if let Some(twice) = (1..given.len()).find(|at| given[..*at].contains(&given[*at])) {
        return Err(Failure::usage(format!("--system has '{}' twice", given[twice])));
    }
    if given.is_empty() { Ok(all.to_vec()) } else { given.iter().map(parse).collect() }
}

/// Settings that both benchmarks have, looked through.
struct Settings {
    /// Locks, or accounts.
    records: u64,
    theta: f64,
    retry: Duration,
    measured: Duration,
}

impl Settings {
    fn of(arguments: &Arguments, records: u64) -> Result<Self, Failure> {
        let (records, seconds) = (arguments.records.unwrap_or(records), arguments.seconds);
        let retry = arguments.retry;
        if !(seconds > 0.0 && seconds <= 3600.0) {
            return Err(Failure::usage(format!("--seconds is {seconds:?}; more than 0, up to 3600 are possible")));
        }
        if !(retry > 0.0 && retry <= 10_000.0) {
            return Err(Failure::usage(format!("--retry is {retry:?}; more than 0, up to 10000 ms are possible")));
        }
        check_passes(arguments.passes)?;
        if !(2..=10_000_000).contains(&records) {
            return Err(Failure::usage(format!("--records is {records}; 2 to 10000000 are possible")));
        }
        // A word of the lock service, what watches critical sections, and an account in Redis.
        check_memory(&format!("{records} locks or accounts"), u128::from(records) * (16 + 16 + 150), "--records")?;
        let (retry, measured) = (Duration::from_secs_f64(retry / 1e3), Duration::from_secs_f64(seconds));
        Ok(Self { records, theta: arguments.theta, retry, measured })
    }

    fn zipf(&self) -> Result<Chooser, Failure> {
        Chooser::new(Distribution::Zipfian, self.records, self.theta).map_err(refused)
    }
}

/// Servers of the systems that are asked for.
struct Servers {
    lockd: Option<Server>,
    redis: Vec<Server>,
    etcd: Option<Server>,
    /// What they say of their versions.
    versions: Vec<String>,
}

impl Servers {
    fn start(systems: &[System], locks: u64) -> Result<Self, Failure> {
        let instances = systems.iter().map(|system| system.instances()).max().unwrap_or(0);
        let mut versions = Vec::new();
        // Before anything is started: what is absent is told at once.
        if instances > 0 {
            versions.push(server::find("redis-server", "redis-server")?.1);
        }
        if systems.contains(&System::Etcd) {
            versions.push(server::find("etcd", "etcd-server")?.1);
        }
        let ours = systems.iter().any(|system| system.is_ours());
        Ok(Self {
            lockd: ours.then(|| lockwork::start(locks)).transpose()?,
            redis: (0..instances).map(|_| redis::start()).collect::<Result<_, _>>()?,
            etcd: systems.contains(&System::Etcd).then(etcd::start).transpose()?,
            versions,
        })
    }

    /// Connects clients of a system.
    fn clients(
        &self,
        system: System,
        count: u32,
        settings: &Settings,
        seed: u64,
    ) -> Result<Vec<Box<dyn Peer>>, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A client, a daemon: each has a core to look at its socket without sleeping.
        let spins = (count as usize) < cores;
        let lockd = || self.lockd.as_ref().ok_or_else(|| "no lock service runs".to_string());
        let shared = match system {
            System::LockworkShared => lockd().and_then(|lockd| lockwork::session(lockd, spins, false)).map(Some),
            _ => Ok(None),
        };
        let shared = shared.map_err(|error| outside(system.name(), error))?;
        let life = 2 * settings.measured + Duration::from_secs(60);
        let one = |number: u32| -> Result<Box<dyn Peer>, String> {
            // Other numbers than those that choose locks.
            let random = Random::stream(seed, u64::from(number) | 1 << 32);
            Ok(match (system, &shared) {
                (_, Some(locks)) => Box::new(lockwork::Client::new(locks.clone())),
                (System::Lockwork | System::LockworkStay | System::LockworkShared, None) => {
                    let stay = system == System::LockworkStay;
                    Box::new(lockwork::Client::new(lockwork::session(lockd()?, spins, stay)?))
                }
                (System::Redis | System::RedLock | System::RedLockAtOnce, _) => {
                    let (instances, at_once) = (&self.redis[..system.instances()], system == System::RedLockAtOnce);
                    Box::new(redis::Redis::new(instances, at_once, settings.retry, random)?)
                }
                (System::Etcd, _) => Box::new(etcd::Etcd::new(self.etcd.as_ref().ok_or("no etcd runs")?, life)?),
            })
        };
        (0..count).map(one).collect::<Result<_, _>>().map_err(|error| outside(system.name(), error))
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
}

impl Percentiles {
    fn of(histogram: &Histogram) -> Self {
        let at = |share| histogram.quantile(share) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99) }
    }

    /// Of several rounds: of each percentile the median.
    fn median<'a>(rounds: impl Iterator<Item = &'a Histogram>) -> Self {
        let rounds: Vec<Self> = rounds.map(Self::of).collect();
        let median = |value: fn(&Self) -> f64| median(rounds.iter().map(value));
        Self { p50: median(|round| round.p50), p99: median(|round| round.p99) }
    }
}

/// One system; ratios are to the lock service with a session for each client.
#[derive(Clone, Debug, Serialize)]
struct Run {
    system: &'static str,
    /// One client: acquire and release.
    alone_us: Percentiles,
    /// One client: until the grant.
    alone_grant_us: Percentiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    alone_ratio: Option<f64>,
    /// 16 clients, any lock as likely as another.
    pairs_per_s: f64,
    /// All clients, Zipf: pairs a second.
    crowd_per_s: f64,
    /// All clients, Zipf: until the grant.
    crowd_grant_us: Percentiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    crowd_p99_ratio: Option<f64>,
    rounds_alone_p50_us: Vec<f64>,
    rounds_crowd_p99_us: Vec<f64>,
    verified: bool,
}

impl Run {
    fn of(system: System, rounds: &[[Measured; 3]]) -> Self {
        let [alone, pairs, crowd] = [0, 1, 2].map(|at| rounds.iter().map(move |round| &round[at]));
        let p50 = |measured: &Measured| Percentiles::of(&measured.pair).p50;
        let p99 = |measured: &Measured| Percentiles::of(&measured.grant).p99;
        Self {
            system: system.name(),
            alone_us: Percentiles::median(alone.clone().map(|measured| &measured.pair)),
            alone_grant_us: Percentiles::median(alone.clone().map(|measured| &measured.grant)),
            alone_ratio: None,
            pairs_per_s: median(pairs.map(Measured::rate)),
            crowd_per_s: median(crowd.clone().map(Measured::rate)),
            crowd_grant_us: Percentiles::median(crowd.clone().map(|measured| &measured.grant)),
            crowd_p99_ratio: None,
            rounds_alone_p50_us: alone.map(p50).collect(),
            rounds_crowd_p99_us: crowd.map(p99).collect(),
            verified: rounds.iter().flatten().all(|measured| measured.verified),
        }
    }
}

/// Measures, prints, and says whether everything was as promised.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    if arguments.bank {
        return growth::bench_bank(arguments);
    }
    let systems = chosen(&arguments.system, &System::ALL, System::name)?;
    let settings = Settings::of(arguments, 10_000)?;
    let clients = arguments.clients;
    if !(1..=200).contains(&clients) {
        return Err(Failure::usage(format!("--clients is {clients}; 1 to 200 are possible, each with a thread")));
    }
    let uniform = Chooser::new(Distribution::Uniform, settings.records, 0.0).map_err(refused)?;
    let zipf = settings.zipf()?;
    arguments.results.prepare()?;
    end_on_signals();
    let servers = Servers::start(&systems, settings.records)?;
    let live = Live::new(systems.iter().map(|system| system.name()));
    let mut rounds: Vec<Vec<[Measured; 3]>> = vec![Vec::new(); systems.len()];
    for pass in 1..=arguments.passes {
        for (row, &system) in systems.iter().enumerate() {
            let measure = |count, chooser| {
                live.show(row, &format!("round {pass} of {}: {count} clients", arguments.passes));
                let clients = servers.clients(system, count, &settings, arguments.seed)?;
                let (seed, measured) = (arguments.seed.wrapping_add(pass as u64), settings.measured);
                load::drive(clients, &Load { chooser, locks: settings.records, seed, measured })
                    .map_err(|failure| failure.reworded(|what| format!("{}: {what}", system.name())))
            };
            let round = [measure(1, &uniform)?, measure(PAIRS, &uniform)?, measure(clients, &zipf)?];
            rounds[row].push(round);
        }
    }
    drop(live);
    let mut runs: Vec<Run> = systems.iter().zip(&rounds).map(|(system, rounds)| Run::of(*system, rounds)).collect();
    if let Some(ours) = runs.iter().find(|run| run.system == System::Lockwork.name()).cloned() {
        for run in &mut runs {
            run.alone_ratio = Some(run.alone_us.p50 / ours.alone_us.p50);
            run.crowd_p99_ratio = Some(run.crowd_grant_us.p99 / ours.crowd_grant_us.p99);
        }
    }
    arguments.results.give(&forms(arguments, &settings, &servers, &runs))?;
    all_verified(runs.iter().map(|run| (run.system, run.verified)))
}

fn forms(arguments: &Arguments, settings: &Settings, servers: &Servers, runs: &[Run]) -> Forms {
    let e = Environment::read();
    let clients = arguments.clients;
    let effective = json!({
        "workload": "lock-peers", "locks": settings.records, "theta": settings.theta, "clients": clients,
        "pairs_clients": PAIRS, "retry_ms": arguments.retry, "seconds": settings.measured.as_secs_f64(),
        "rounds": arguments.passes, "seed": arguments.seed, "servers": servers.versions,
        "data": server::parent().display().to_string(), "network": "loopback",
    });
    let mut text = format!(
        "{}, {} cores, kernel {}, commit {}\nsettings {effective}\n\
         clients and servers share these cores; 1 client and {PAIRS} clients: any lock; {clients} clients: Zipf\n\n\
         {:<15} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>10} {:>10} {:>7}  {}\n\
         {:<15} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>10} {:>10} {:>7}\n",
        e.cpu,
        e.cores,
        e.kernel,
        e.commit,
        "",
        "1 client",
        "pair",
        "grant",
        "",
        format!("{PAIRS}"),
        format!("{clients}"),
        "grant",
        "grant",
        "",
        "",
        "system",
        "p50 us",
        "p99 us",
        "p50 us",
        "ratio",
        "pairs/s",
        "pairs/s",
        "p50 us",
        "p99 us",
        "ratio",
    );
    let mut csv = String::from(
        "system,alone_p50_us,alone_p99_us,alone_grant_p50_us,pairs_per_s,crowd_per_s,crowd_grant_p50_us,crowd_grant_p99_us,verified\n",
    );
    for run in runs {
        let (alone, grant, crowd) = (&run.alone_us, &run.alone_grant_us, &run.crowd_grant_us);
        csv.push_str(&format!(
            "{},{:.2},{:.2},{:.2},{:.0},{:.0},{:.2},{:.2},{}\n",
            run.system,
            alone.p50,
            alone.p99,
            grant.p50,
            run.pairs_per_s,
            run.crowd_per_s,
            crowd.p50,
            crowd.p99,
            run.verified
        ));
        let two = |ratio: f64| if ratio < 0.95 { format!("{ratio:.2}") } else { format!("{ratio:.1}") };
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), two);
        text.push_str(&format!(
            "{:<15} {:>9.1} {:>9.1} {:>9.1} {:>7} {:>9} {:>9} {:>10.1} {:>10.1} {:>7}\n",
            run.system,
            alone.p50,
            alone.p99,
            grant.p50,
            ratio(run.alone_ratio),
            grouped(run.pairs_per_s),
            grouped(run.crowd_per_s),
            crowd.p50,
            crowd.p99,
            ratio(run.crowd_p99_ratio),
        ));
    }
    text.push_str(
        "every critical section was watched; ratios are to lockwork: of p50 of a pair, and of p99 of a grant\n\
         lockwork-stay: the same client takes the same lock again, without a packet unless another one has had it\n",
    );
    let report = json!({ "schema": 1, "environment": e, "settings": effective, "runs": runs });
    Forms {
        text,
        json: format!("{report:#}\n"),
        csv,
        title: "one client, no contention".into(),
        unit: "acquire and release, microseconds, median",
        bars: runs.iter().map(|run| (run.system.to_string(), run.alone_us.p50)).collect(),
    }
}
