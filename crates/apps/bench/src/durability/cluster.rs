//! `lockwork-bench cluster`: what it costs to have the log replicated, beside a log in a folder and beside memory
//! alone.
//!
//! Three NATS servers with a sync of the disk before each acknowledgement, and three nodes, all on this machine: one
//! leads and has the calls, two follow and run them again. So three disks and three machines are one, and figures are
//! lower than they would be on several.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork::sequencer::journal::Journal;
use lockwork::sequencer::{NodeOptions, Role};
use lockwork::{Digest, EngineKind, Lockwork, Node, OpenOptions, Options};
use lockwork_nats::NatsJournal;
use lockwork_nats::local::Servers;
use lockwork_workload::statistics::median;
use serde_json::json;

use super::{AHEAD, BALANCE, Folder, Line, Ours, Transfer, TransferArguments, transfers};
use crate::options::check_rounds;
use crate::progress::Live;
use crate::report::Forms;
use crate::{Environment, Failure, Outcome};

/// How long something is waited for that takes moments.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a message with one transfer, about.
const ONE: usize = 160;

/// Waits until something is so.
fn until(what: &str, mut so: impl FnMut() -> Result<bool, Failure>) -> Outcome {
    let begin = Instant::now();
    while !so()? {
        if begin.elapsed() > TIMEOUT {
            return Err(Failure::BackEnd(format!("{what} within {TIMEOUT:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Messages of so many bytes, one after the other; how many a second, and the time of each.
struct Log {
    journal: NatsJournal,
    next: u64,
}

impl Log {
    fn append(&mut self, bytes: usize, seconds: f64) -> Result<(f64, Vec<f64>), Failure> {
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed().as_secs_f64() < seconds {
            let start = Instant::now();
            let (appended, outcome) = self.journal.append(self.next, &[vec![0x5A; bytes]]);
            outcome.map_err(|why| Failure::BackEnd(why.to_string()))?;
            self.next += appended as u64;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok((times.len() as f64 / begin.elapsed().as_secs_f64(), times))
    }
}

/// Returns the median in microseconds, 0 of none.
fn median_us(times: Vec<f64>) -> f64 {
    if times.is_empty() { 0.0 } else { median(times) * 1e6 }
}

/// Transfers one after the other, each acknowledged before the next; the time of each.
fn singles(ours: &mut Ours, seconds: f64, source: &mut dyn Iterator<Item = Transfer>) -> Result<Vec<f64>, Failure> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed().as_secs_f64() < seconds {
        let batch = ours.batch(source, 1)?;
        let start = Instant::now();
        let batch = ours.database.call_batch(batch)?.0;
        times.push(start.elapsed().as_secs_f64());
        ours.done(batch)?;
    }
    Ok(times)
}

struct Nodes {
    leader: Ours,
    followers: Vec<Node>,
    servers: Servers,
}

impl Nodes {
    fn start(folder: &Path, options: &OpenOptions, accounts: u64) -> Result<Self, Failure> {
        let servers = Servers::start(&folder.join("nats"), 3).map_err(Failure::BackEnd)?;
        let join = |name: &str, may_lead| -> Result<Node, Failure> {
            let journal = NatsJournal::open(&servers.options("bench")).map_err(Failure::usage)?;
            let node = NodeOptions { may_lead, ..NodeOptions::new(name) };
            Ok(Node::join(Arc::new(journal), folder.join(name), options, node, |_| {})?.0)
        };
        let first = join("leader", true)?;
        until("nobody leads", || Ok(first.status().role == Role::Leading))?;
        let followers = vec![join("second", false)?, join("third", false)?];
        Ok(Self { leader: Ours::new(first.lead()?, accounts)?, followers, servers })
    }

    /// The digest that all nodes have, once they have come as far as the leader.
    fn digest(&self) -> Result<Digest, Failure> {
        let digest = self.leader.database.digest()?;
        for (number, node) in (2..).zip(&self.followers) {
            until(&format!("node {number} does not come to the leader's digest"), || {
                if let Some(trouble) = node.status().trouble.filter(|_| node.status().role == Role::Ended) {
                    return Err(Failure::Check(trouble));
                }
                Ok(node.digest()? == digest)
            })?;
        }
        Ok(digest)
    }
}

fn total(database: &Lockwork) -> Result<i64, Failure> {
    Ok(database.read(|engine| {
        let mut total = 0_i64;
        let read = engine.export(&mut |_, row| total += row[8..16].try_into().map_or(0, i64::from_le_bytes));
        read.map(|()| total)
    })??)
}

/// Measures every case, and prints.
pub(crate) fn command(arguments: &TransferArguments) -> Outcome {
    let accounts = arguments.records;
    let calls = arguments.batch;
    for (option, value, most) in [("--records", accounts, 100_000_000), ("--batch", calls as u64, 1 << 17)] {
        if !(2..=most).contains(&value) {
            return Err(Failure::usage(format!("{option} is {value}; 2 to {most} are possible")));
        }
    }
    check_rounds(arguments.passes)?;
    arguments.results.prepare()?;
    let (rounds, seconds) = if arguments.quick { (1, 0.5) } else { (arguments.passes, 2.0) };
    let folder = Folder(std::env::temp_dir().join(format!("lockwork-cluster-{}", std::process::id())));
    let made = std::fs::create_dir_all(&folder.0);
    made.map_err(|error| Failure::usage(format!("{}: {error}; set TMPDIR to another folder", folder.0.display())))?;
    let live = Live::new(std::iter::once("cluster"));
    let engine_options = Options { threads: 1, ..Options::default() };
    let options = OpenOptions { engine: EngineKind::DETERMINISTIC, engine_options, sequencer: Default::default() };
    live.show(0, "starting servers and nodes");
    let (local, _) = Lockwork::open_with(folder.0.join("folder"), &options, |_| {})?;
    let mut local = Ours::new(local, accounts)?;
    let mut nodes = Nodes::start(&folder.0, &options, accounts)?;
    let journal = NatsJournal::open(&nodes.servers.options("alone")).map_err(Failure::usage)?;
    let mut log = Log { journal, next: 1 };
    let batch = format!("batches of {calls}");
    let line = |name, how: &str| Line { name, how: how.to_string(), rates: Vec::new() };
    let mut lines = [
        line("a folder", &batch),
        line("a folder", &format!("{batch}, {AHEAD} on the way")),
        line("a cluster", &batch),
        line("a cluster", &format!("{batch}, {AHEAD} on the way")),
        line("NATS alone", &format!("messages of {} bytes for {calls}", calls * 24)),
    ];
    let (mut one_local, mut one_cluster, mut one_log) = (Vec::new(), Vec::new(), Vec::new());
    let mut source = transfers(accounts, arguments.seed);
    for round in 0..rounds {
        live.show(0, &format!("round {} of {rounds}", round + 1));
        let rates = [
            local.batches(calls, seconds, &mut source)?,
            local.ahead(calls, seconds, &mut source)?,
            nodes.leader.batches(calls, seconds, &mut source)?,
            nodes.leader.ahead(calls, seconds, &mut source)?,
            log.append(calls * 24, seconds)?.0 * calls as f64,
        ];
        lines.iter_mut().zip(rates).for_each(|(line, rate)| line.rates.push(rate));
        // Nobody is behind any more.
        nodes.digest()?;
        one_local.extend(singles(&mut local, seconds, &mut source)?);
        one_cluster.extend(singles(&mut nodes.leader, seconds, &mut source)?);
        one_log.extend(log.append(ONE, seconds)?.1);
    }
    live.show(0, "counting the money");
    let digest = nodes.digest()?;
    for (name, database) in [("folder", &local.database), ("cluster", &nodes.leader.database)] {
        let (total, all) = (total(database)?, accounts as i64 * BALANCE);
        if total != all {
            return Err(Failure::Check(format!("the {name} has {total} units of {all}")));
        }
    }
    drop(live);
    let (folder_us, cluster_us, log_us) = (median_us(one_local), median_us(one_cluster), median_us(one_log));
    let share = |at: usize| lines[at + 2].median() / lines[at].median().max(1.0);
    let environment = Environment::read();
    let singles = json!({ "folder_us": folder_us, "cluster_us": cluster_us, "log_us": log_us });
    let settings = json!({
        "workload": "cluster", "accounts": accounts, "batch": calls, "passes": rounds, "seed": arguments.seed,
    });
    let rows: Vec<_> = lines.iter().map(|l| json!({ "log": l.name, "how": l.how, "txn_per_s": l.rates })).collect();
    let report = json!({
        "schema": 1, "environment": environment, "settings": settings, "batches": rows, "singles": singles,
        "digest": digest.to_string(),
    });
    let header = format!(
        "{}, commit {}\ntransfers between {accounts} accounts, every one durable before it is acknowledged; medians of \
         {rounds} rounds, seed {}\nthree NATS servers and three nodes on this machine\n\nlog          {:<44} {:>12}\n",
        environment.cpu, environment.commit, arguments.seed, "how", "txn/s"
    );
    let text = lines
        .iter()
        .fold(header, |text, line| format!("{text}{:<12} {:<44} {:>12.0}\n", line.name, line.how, line.median()));
    let text = format!(
        "{text}\na cluster beside a folder: {:.2}, {:.2} with {AHEAD} on the way\n\none at a time, median until it is \
         acknowledged: folder {folder_us:.0} us, cluster {cluster_us:.0} us, NATS alone {log_us:.0} us ({:.2} times)\n\
         verified: no money is lost, and all nodes have digest {digest}\n",
        share(0),
        share(1),
        cluster_us / log_us.max(1.0)
    );
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: lines.iter().fold("log,how,txn_per_s\n".to_string(), |text, line| {
            format!("{text}{},\"{}\",{:.0}\n", line.name, line.how, line.median())
        }),
        text,
        title: "cluster".into(),
        unit: "transfers a second, each durable before it is acknowledged",
        bars: lines.iter().map(|line| (format!("{}, {}", line.name, line.how), line.median())).collect(),
    };
    arguments.results.give(&forms)
}
