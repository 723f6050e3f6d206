//! `lockwork-bench lock-peers --bank`: throughput and latency of the bank as its clients become more.

use lockwork_lock_bench::end_on_signals;
use lockwork_workload::statistics::median;
use serde::Serialize;
use serde_json::json;

use super::super::lock_service::all_verified;
use super::super::progress::Live;
use super::super::report::Forms;
use super::bank::{Bank, Locking, Measured};
use super::chart::{self, grouped};
use super::{Arguments, Environment, Failure, Outcome, Percentiles, Settings, chosen, lockwork, redis, server};

/// One system with one number of clients.
#[derive(Clone, Debug, Serialize)]
struct Run {
    system: &'static str,
    clients: u32,
    operations_per_s: f64,
    latency_us: Percentiles,
    /// Share of the time in which the store's process had a core.
    store_busy: f64,
    rounds_operations_per_s: Vec<f64>,
    /// Exclusion was watched, and all money was counted afterwards.
    verified: bool,
}

impl Run {
    fn of(locking: Locking, clients: u32, rounds: &[Measured]) -> Self {
        let rates: Vec<f64> = rounds.iter().map(|round| round.operations as f64 / round.seconds).collect();
        Self {
            system: locking.name(),
            clients,
            operations_per_s: median(rates.iter().copied()),
            latency_us: Percentiles::median(rounds.iter().map(|round| &round.latency)),
            store_busy: median(rounds.iter().map(|round| round.store_busy)),
            rounds_operations_per_s: rates,
            verified: rounds.iter().all(|round| round.verified),
        }
    }
}

/// Measures, prints, and says whether all money is there.
pub(super) fn bench_bank(arguments: &Arguments) -> Outcome {
    let systems = chosen(&arguments.system, &Locking::ALL, Locking::name)?;
    let settings = Settings::of(arguments, 1_000_000)?;
    let (crowds, servers) = (&arguments.crowds, arguments.servers);
    if let Some(wrong) = crowds.iter().find(|clients| !(1..=65_536).contains(*clients)) {
        return Err(Failure::usage(format!("--crowds has {wrong}; 1 to 65536 clients are possible")));
    }
    if !(1..=200).contains(&servers) {
        return Err(Failure::usage(format!("--servers is {servers}; 1 to 200 are possible, each with a thread")));
    }
    let chooser = settings.zipf()?;
    arguments.results.prepare()?;
    end_on_signals();
    let (_, version) = server::find("redis-server", "redis-server")?;
    let instances = match () {
        () if systems.contains(&Locking::RedLock) => 3,
        () => usize::from(systems.contains(&Locking::Redis)),
    };
    let bank = Bank {
        store: redis::start()?,
        instances: (0..instances).map(|_| redis::start()).collect::<Result<_, _>>()?,
        lockd: systems.contains(&Locking::Lockwork).then(|| lockwork::start(settings.records)).transpose()?,
        accounts: settings.records,
        servers,
        chooser,
        seed: arguments.seed,
        retry: settings.retry,
        measured: settings.measured,
    };
    bank.open()?;
    let live = Live::new(systems.iter().map(|system| system.name()));
    let mut rounds: Vec<Vec<Vec<Measured>>> = vec![vec![Vec::new(); crowds.len()]; systems.len()];
    for pass in 1..=arguments.passes {
        for (step, &clients) in crowds.iter().enumerate() {
            for (row, &locking) in systems.iter().enumerate() {
                live.show(row, &format!("round {pass} of {}: {clients} clients", arguments.passes));
                let round = bank.round(locking, clients);
                let named = |what| format!("{}, {clients} clients: {what}", locking.name());
                rounds[row][step].push(round.map_err(|failure| failure.reworded(named))?);
            }
        }
    }
    drop(live);
    drop(bank);
    let of_system = |(&locking, rounds): (&Locking, &Vec<Vec<Measured>>)| -> Vec<Run> {
        crowds.iter().zip(rounds).map(|(&clients, rounds)| Run::of(locking, clients, rounds)).collect()
    };
    let runs: Vec<Vec<Run>> = systems.iter().zip(&rounds).map(of_system).collect();
    let forms = forms(arguments, &settings, &version, &runs);
    arguments.results.give(&forms)?;
    // The store alone has no locks that could be checked.
    let locking = runs.iter().flatten().filter(|run| run.system != Locking::None.name());
    let checked = all_verified(locking.map(|run| (run.system, run.verified)));
    let Some(folder) = arguments.results.out.as_deref() else { return checked };
    let labels: Vec<String> = crowds.iter().map(u32::to_string).collect();
    let series = |value: fn(&Run) -> f64| -> Vec<(String, Vec<f64>)> {
        runs.iter().map(|runs| (runs[0].system.to_string(), runs.iter().map(value).collect())).collect()
    };
    let charts = [
        ("bank-throughput.svg", "operations a second, by clients", series(|run| run.operations_per_s)),
        ("bank-latency.svg", "median latency of an operation, microseconds, by clients", {
            series(|run| run.latency_us.p50)
        }),
    ];
    for (name, unit, series) in charts {
        let path = folder.join(name);
        let chart = chart::lines("bank", unit, &labels, &series);
        std::fs::write(&path, chart).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    }
    checked
}

/// The best of a system, whatever the number of its clients.
fn peak(runs: &[Run]) -> &Run {
    runs.iter()
        .max_by(|a, b| a.operations_per_s.total_cmp(&b.operations_per_s))
        .expect("one number of clients at least")
}

fn forms(arguments: &Arguments, settings: &Settings, version: &str, runs: &[Vec<Run>]) -> Forms {
    let e = Environment::read();
    let effective = json!({
        "workload": "lock-peers", "bank": true, "accounts": settings.records, "theta": settings.theta,
        "transfers": 0.1, "servers": arguments.servers, "retry_ms": arguments.retry,
        "seconds": settings.measured.as_secs_f64(), "rounds": arguments.passes, "seed": arguments.seed,
        "store": version, "network": "loopback",
    });
    let mut text = format!(
        "{}, {} cores, kernel {}, commit {}\nsettings {effective}\n\
         clients, store and lock services share these cores; store-alone takes no locks and may lose money\n\n\
         {:<12} {:>8} {:>13} {:>10} {:>10} {:>11}  {}\n",
        e.cpu,
        e.cores,
        e.kernel,
        e.commit,
        "system",
        "clients",
        "operations/s",
        "p50 us",
        "p99 us",
        "store busy",
        "verified"
    );
    let mut csv = String::from("system,clients,operations_per_s,p50_us,p99_us,store_busy,verified\n");
    for run in runs.iter().flatten() {
        let (rate, l) = (run.operations_per_s, &run.latency_us);
        csv.push_str(&format!(
            "{},{},{rate:.0},{:.1},{:.1},{:.3},{}\n",
            run.system, run.clients, l.p50, l.p99, run.store_busy, run.verified
        ));
        text.push_str(&format!(
            "{:<12} {:>8} {:>13} {:>10.1} {:>10.1} {:>10.0}%  {}\n",
            run.system,
            run.clients,
            grouped(rate),
            l.p50,
            l.p99,
            run.store_busy * 100.0,
            if run.verified { "exclusion, money" } else { "-" }
        ));
    }
    text.push('\n');
    let ours = runs.iter().find(|runs| runs[0].system == Locking::Lockwork.name()).map(|runs| peak(runs));
    for best in runs.iter().map(|runs| peak(runs)) {
        let ratio = ours.map_or_else(String::new, |ours| {
            format!("; lockwork's is {:.2} times that", ours.operations_per_s / best.operations_per_s)
        });
        let rate = grouped(best.operations_per_s);
        text.push_str(&format!("peak of {}: {rate} operations/s with {} clients{ratio}\n", best.system, best.clients));
    }
    let report = json!({ "schema": 1, "environment": e, "settings": effective, "runs": runs.concat() });
    Forms {
        text,
        json: format!("{report:#}\n"),
        csv,
        title: "bank, most of any number of clients".into(),
        unit: "operations a second",
        bars: runs.iter().map(|runs| peak(runs)).map(|run| (run.system.to_string(), run.operations_per_s)).collect(),
    }
}
