//! `lockwork-bench server`: calls of PostgreSQL's protocol to `lockwork serve`, durable in a folder and in memory.
//!
//! The server is a process of its own on loopback; clients are connections of this one, so both share the processors.
//! Every client calls a prepared procedure that moves one unit between two accounts, and waits for `--pipeline` answers
//! at a time. Afterwards the accounts hold as many units as before. `scripts/serve-bench` measures PostgreSQL beside
//! the server.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use futures::future::try_join_all;
use lockwork_lock_bench::histogram::Histogram;
use lockwork_random::Random;
use lockwork_workload::statistics::median;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Client, NoTls, Statement};

use super::chart::grouped;
use super::durability::Folder;
use super::lock_peers::{Server, program};
use super::options::{Results, check_rounds, whole};
use super::progress::Live;
use super::report::Forms;
use super::{Environment, Failure, Outcome};

/// Units on each account at first: none runs dry.
const BALANCE: i64 = 1_000_000_000;
/// Rows of one INSERT that fills the accounts.
const ROWS: u64 = 100;

/// Options of `server`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Connections
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Calls that a client sends before it waits for their answers
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u16).range(1..=4096))]
    pipeline: u16,
    /// Accounts, 2 to 1,000,000
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u64).range(2..=1_000_000))]
    records: u64,
    /// The engine of the server
    #[arg(long, default_value = "deterministic")]
    engine: String,
    /// Seconds to measure in each round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// One durability.
#[derive(Debug, Serialize)]
struct Run {
    durability: &'static str,
    calls_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    rounds_calls_per_s: Vec<f64>,
    verified: bool,
}

/// Measures, prints, and returns whether all money is there.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    check_rounds(arguments.passes)?;
    let seconds = arguments.seconds;
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::usage(format!("--seconds is {seconds:?}; more than 0, up to 3600 are possible")));
    }
    arguments.results.prepare()?;
    let folder = Folder(std::env::temp_dir().join(format!("lockwork-server-{}", std::process::id())));
    let failed = |error| Failure::usage(format!("{}: {error}; set TMPDIR to another folder", folder.0.display()));
    std::fs::create_dir_all(&folder.0).map_err(failed)?;
    let init = folder.0.join("init.sql");
    std::fs::write(&init, script(arguments.records)).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::connect)?;
    let live = Live::new(["fsync", "memory"]);
    let mut runs = Vec::new();
    for (row, durability) in ["fsync", "memory"].into_iter().enumerate() {
        live.show(row, "starting the server");
        let server = start(arguments, durability, &folder.0, &init)?;
        let mut rounds = Vec::new();
        let mut latency = Histogram::default();
        let clients = runtime.block_on(connect(&server, arguments.clients))?;
        for pass in 1..=arguments.passes {
            live.show(row, &format!("round {pass} of {}", arguments.passes));
            let (rate, measured) = runtime.block_on(round(&clients, arguments, pass as u64))?;
            rounds.push(rate);
            latency.add(&measured);
        }
        let money = runtime.block_on(money(&clients[0].0))?;
        let at = |share| latency.quantile(share) as f64 / 1e3;
        let calls_per_s = median(rounds.iter().copied());
        let verified = money == arguments.records as i64 * BALANCE;
        runs.push(Run {
            durability,
            calls_per_s,
            p50_us: at(0.5),
            p99_us: at(0.99),
            rounds_calls_per_s: rounds,
            verified,
        });
    }
    drop(live);
    arguments.results.give(&forms(arguments, &runs))?;
    match runs.iter().find(|run| !run.verified) {
        Some(run) => Err(Failure::Check(format!("{}: the accounts hold another sum than before", run.durability))),
        None => Ok(()),
    }
}

/// The schema, the procedure and the accounts.
fn script(accounts: u64) -> String {
    let mut script = String::from(
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL) PARTITION BY HASH (id);
CREATE PROCEDURE transfer(from_id BIGINT, to_id BIGINT) AS $$
BEGIN
    UPDATE accounts SET balance = balance - 1 WHERE id = from_id;
    UPDATE accounts SET balance = balance + 1 WHERE id = to_id;
END $$;
",
    );
    for first in (0..accounts).step_by(ROWS as usize) {
        let rows: Vec<String> = (first..accounts.min(first + ROWS)).map(|id| format!("({id}, {BALANCE})")).collect();
        script.push_str(&format!("INSERT INTO accounts VALUES {};\n", rows.join(", ")));
    }
    script
}

/// Starts a server, and waits until it is ready.
fn start(arguments: &Arguments, durability: &str, folder: &Path, init: &Path) -> Result<Server, Failure> {
    let mut command = vec![program()?.display().to_string()];
    let words = ["serve", "--listen", "127.0.0.1:0", "--engine", &arguments.engine, "--init"];
    command.extend(words.map(String::from));
    command.push(init.display().to_string());
    if durability == "fsync" {
        command.extend(["--data".to_string(), folder.join("data").display().to_string()]);
    }
    // The line that says that it is ready ends with the port.
    Server::start(&command, 0, |mut address, log| {
        let line = log.lines().find(|line| line.starts_with("ready: "))?;
        address.set_port(line.rsplit(' ').next()?.parse().ok()?);
        Some(address)
    })
}

async fn connect(server: &Server, clients: u16) -> Result<Vec<(Client, Statement)>, Failure> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        let address = format!("host=127.0.0.1 port={} user=bench dbname=bench", server.address().port());
        let (client, connection) = tokio_postgres::connect(&address, NoTls).await.map_err(Failure::connect)?;
        tokio::spawn(connection);
        let statement = client.prepare("CALL transfer($1, $2)").await.map_err(Failure::connect)?;
        connected.push((client, statement));
    }
    Ok(connected)
}

/// Calls a second, and the time of each call, of all clients at once.
async fn round(
    clients: &[(Client, Statement)],
    arguments: &Arguments,
    number: u64,
) -> Result<(f64, Histogram), Failure> {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(arguments.seconds);
    let one = |client: usize| {
        let (connection, statement) = &clients[client];
        let mut random = Random(arguments.seed.wrapping_add(number << 32).wrapping_add(client as u64));
        async move {
            let mut latency = Histogram::default();
            while Instant::now() < end {
                let pairs: Vec<(i64, i64)> = (0..arguments.pipeline).map(|_| pair(&mut random, arguments)).collect();
                let calls = pairs.iter().map(|(from, to)| {
                    let begin = Instant::now();
                    async move { connection.execute(statement, &[from, to]).await.map(|_| begin.elapsed()) }
                });
                let times = try_join_all(calls).await;
                times.map_err(Failure::connect)?.iter().for_each(|time| latency.record(time.as_nanos() as u64));
            }
            Ok::<_, Failure>(latency)
        }
    };
    let measured = try_join_all((0..clients.len()).map(one)).await?;
    let mut latency = Histogram::default();
    measured.iter().for_each(|of_client| latency.add(of_client));
    Ok((latency.count() as f64 / begin.elapsed().as_secs_f64(), latency))
}

/// Two different accounts.
fn pair(random: &mut Random, arguments: &Arguments) -> (i64, i64) {
    let from = random.below(arguments.records);
    let to = (from + 1 + random.below(arguments.records - 1)) % arguments.records;
    (from as i64, to as i64)
}

async fn money(client: &Client) -> Result<i64, Failure> {
    let row = client.query_one("SELECT CAST(sum(balance) AS BIGINT) FROM accounts", &[]).await;
    Ok(row.map_err(Failure::connect)?.get(0))
}

fn forms(arguments: &Arguments, runs: &[Run]) -> Forms {
    let e = Environment::read();
    let settings = json!({
        "workload": "server", "engine": arguments.engine, "clients": arguments.clients, "pipeline": arguments.pipeline,
        "records": arguments.records, "seconds": arguments.seconds, "passes": arguments.passes, "seed": arguments.seed,
        "network": "loopback; clients and server share the processors",
    });
    let report = json!({ "schema": 1, "environment": e, "settings": settings, "runs": runs });
    let mut text = format!(
        "{}, {} cores, kernel {}, commit {}\nsettings {settings}\n\n{:<10} {:>12} {:>10} {:>10}  verified\n",
        e.cpu, e.cores, e.kernel, e.commit, "durability", "calls/s", "p50 us", "p99 us"
    );
    let mut csv = String::from("durability,calls_per_s,p50_us,p99_us,verified\n");
    for Run { durability, calls_per_s, p50_us, p99_us, verified, .. } in runs {
        let yes = if *verified { "yes" } else { "NO" };
        text.push_str(&format!(
            "{durability:<10} {:>12} {p50_us:>10.0} {p99_us:>10.0}  {yes}\n",
            grouped(*calls_per_s)
        ));
        csv.push_str(&format!("{durability},{calls_per_s:.0},{p50_us:.1},{p99_us:.1},{verified}\n"));
    }
    Forms {
        text,
        json: format!("{report:#}\n"),
        csv,
        title: format!("calls of {} clients over the network", arguments.clients),
        unit: "calls a second",
        bars: runs.iter().map(|run| (run.durability.to_string(), run.calls_per_s)).collect(),
    }
}
