//! `lockwork-bench durability`: what durability costs, and what others make of the same transfers on the same disk.
//!
//! A transfer looks whether there is enough money, and moves one unit from one account to another. All systems do it
//! in their own process, with a sync of the disk before it is acknowledged, one client. Two ways to batch: `each`
//! transfer durable by itself, and so many in one unit of durability: in Lockwork a batch of calls, each a transaction
//! of its own that may abort alone; in the others one transaction, the most favourable they have. Rounds of all
//! systems take turns; figures are medians. Afterwards the money is counted everywhere, and the folder is opened again
//! and compared.
//!
//! Everything lies in the folder for temporary files (`TMPDIR`); one in memory makes syncs free, and is told.

mod cluster;
mod postgres;
mod sqlite;

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lockwork::sequencer::Durability;
use lockwork::{Batch, EngineKind, Error, Lockwork, OpenOptions, Options, Status, Value};
use lockwork_random::Random;
use lockwork_workload::statistics::median;
use serde_json::json;

use super::near_data::postgres::PostgresError;
use super::options::{Results, check_rounds, whole};
use super::progress::Live;
use super::report::Forms;
use super::{Environment, Failure, Outcome};
pub(super) use cluster::command as cluster;
use postgres::Postgres;
use sqlite::Sqlite;

/// Most transfers of others between two looks at the clock.
const YIELD: usize = 1 << 20;
/// Units on each account at first: none runs dry.
const BALANCE: i64 = 1_000_000_000;
/// Batches in flight when they are submitted ahead.
const AHEAD: usize = 4;

/// Options of transfers on one system or several: those of `cluster`, and most of `durability`.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct TransferArguments {
    /// Accounts
    #[arg(long, default_value_t = 100_000, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: u64,
    /// Transfers of a batch
    #[arg(long, default_value_t = 16_384)]
    batch: usize,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// A tenth of the work, and one short round
    #[arg(long)]
    quick: bool,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// Options of `durability`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Worker threads of the engine
    #[arg(long, default_value_t = 1, value_parser = whole::<usize>, allow_negative_numbers = true)]
    threads: usize,
    #[command(flatten)]
    transfers: TransferArguments,
}

const TRANSFER: &str = "procedure transfer
table accounts (id: i64 key, balance: i64) partition by hash(id)
param from: i64
param to: i64
param amount: i64
    update  c0, accounts, [from]
    update  c1, accounts, [to]
    ret     r1, c0
    ret     r2, c1
    load    r3, [amount]
    loadr   r4, r1[accounts.balance]
    cmp     r4, r3
    bl      poor
    sub     r4, r4, r3
    storer  r4, r1[accounts.balance]
    loadr   r5, r2[accounts.balance]
    add     r5, r5, r3
    storer  r5, r2[accounts.balance]
    commit
poor:
    abort   1";

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: i64,
    to: i64,
    amount: i64,
}

/// Transfers between different accounts, without end.
fn transfers(accounts: u64, seed: u64) -> impl Iterator<Item = Transfer> {
    let mut random = Random(seed);
    std::iter::repeat_with(move || {
        let from = random.below(accounts);
        let to = (from + 1 + random.below(accounts - 1)) % accounts;
        Transfer { from: from as i64, to: to as i64, amount: 1 }
    })
}

/// A row of the result: who, how, and transfers a second in each round.
struct Line {
    name: &'static str,
    how: String,
    rates: Vec<f64>,
}

impl Line {
    fn median(&self) -> f64 {
        median(self.rates.iter().copied())
    }
}

impl From<PostgresError> for Failure {
    fn from(error: PostgresError) -> Self {
        Self::BackEnd(error.to_string())
    }
}

/// The folder of the run, which goes with it.
pub(super) struct Folder(pub(super) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is found by its name.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A database with accounts, in a folder or in memory, and batches that are used again.
struct Ours {
    database: Lockwork,
    spare: Vec<Batch>,
}

impl Ours {
    fn new(mut database: Lockwork, accounts: u64) -> Result<Self, Failure> {
        database.register(TRANSFER)?;
        let rows: Vec<_> =
            (0..accounts as i64).map(|id| [("id", Value::Integer(id)), ("balance", Value::Integer(BALANCE))]).collect();
        for rows in rows.chunks(65_536) {
            let rows: Vec<&[(&str, Value)]> = rows.iter().map(<[_; 2]>::as_slice).collect();
            database.insert_all("accounts", &rows)?;
        }
        Ok(Self { database, spare: Vec::new() })
    }

    /// A batch of the next transfers.
    fn batch(&mut self, transfers: &mut dyn Iterator<Item = Transfer>, calls: usize) -> Result<Batch, Failure> {
        let mut batch = match self.spare.pop() {
            Some(mut batch) => {
                batch.clear();
                batch
            }
            None => self.database.batch(calls)?,
        };
        for Transfer { from, to, amount } in transfers.take(calls) {
            // The only procedure there is; its arguments begin behind the header.
            let mut block = batch.push(0).expect("room for all");
            for (place, value) in block.bytes()[32..56].chunks_exact_mut(8).zip([from, to, amount]) {
                place.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(batch)
    }

    fn done(&mut self, batch: Batch) -> Result<u64, Failure> {
        let committed = batch.blocks().filter(|block| block.status() == Some(Status::Committed)).count();
        if committed != batch.len() {
            return Err(Failure::Check(format!(
                "{} transfers of {} did not commit",
                batch.len() - committed,
                batch.len()
            )));
        }
        let made = batch.len() as u64;
        self.spare.push(batch);
        Ok(made)
    }

    /// Batch after batch.
    fn batches(
        &mut self,
        calls: usize,
        seconds: f64,
        source: &mut dyn Iterator<Item = Transfer>,
    ) -> Result<f64, Failure> {
        let (begin, mut made) = (Instant::now(), 0);
        while begin.elapsed().as_secs_f64() < seconds {
            let batch = self.batch(source, calls)?;
            let batch = self.database.call_batch(batch)?.0;
            made += self.done(batch)?;
        }
        Ok(made as f64 / begin.elapsed().as_secs_f64())
    }

    /// Batches of which a few are on the way.
    fn ahead(
        &mut self,
        calls: usize,
        seconds: f64,
        source: &mut dyn Iterator<Item = Transfer>,
    ) -> Result<f64, Failure> {
        let caller = self.database.caller();
        let (begin, mut made, mut waiting) = (Instant::now(), 0, VecDeque::new());
        let refused = |refused: Box<lockwork::sequencer::Refused>| Failure::from(Error::from(refused.error));
        while begin.elapsed().as_secs_f64() < seconds {
            let batch = self.batch(source, calls)?;
            waiting.push_back(caller.submit(batch).map_err(refused)?);
            if waiting.len() == AHEAD {
                let batch = waiting.pop_front().expect("there are several").wait().map_err(refused)?;
                made += self.done(batch)?;
            }
        }
        for ticket in waiting {
            let batch = ticket.wait().map_err(refused)?;
            made += self.done(batch)?;
        }
        Ok(made as f64 / begin.elapsed().as_secs_f64())
    }
}

/// Batches' worth of bytes a second that the disk takes by itself, one after the other, each with a sync, in transfers.
fn disk(folder: &Path, calls: usize, seconds: f64) -> Result<f64, Failure> {
    let path = folder.join("disk");
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    let bytes = vec![0x5A; (calls * 24).next_multiple_of(4096)];
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    // As large as it gets, so that a sync is of data alone.
    let room = 64;
    (0..room).try_for_each(|_| file.write_all(&bytes)).and_then(|()| file.sync_all()).map_err(failed)?;
    let (begin, mut written) = (Instant::now(), 0_u64);
    while begin.elapsed().as_secs_f64() < seconds {
        let at = (written % room) * bytes.len() as u64;
        file.write_all_at(&bytes, at).and_then(|()| file.sync_data()).map_err(failed)?;
        written += 1;
    }
    Ok(written as f64 * calls as f64 / begin.elapsed().as_secs_f64())
}

pub(super) fn command(arguments: &Arguments) -> Outcome {
    let accounts = arguments.transfers.records;
    let calls = arguments.transfers.batch;
    for (option, value, most) in [("--records", accounts, 100_000_000), ("--batch", calls as u64, 1 << 20)] {
        if !(2..=most).contains(&value) {
            return Err(Failure::usage(format!("{option} is {value}; 2 to {most} are possible")));
        }
    }
    check_rounds(arguments.transfers.passes)?;
    arguments.transfers.results.prepare()?;
    let (rounds, seconds) = if arguments.transfers.quick { (1, 0.3) } else { (arguments.transfers.passes, 1.5) };
    let folder = Folder(std::env::temp_dir().join(format!("lockwork-durability-{}", std::process::id())));
    let made = std::fs::create_dir_all(&folder.0);
    made.map_err(|error| Failure::usage(format!("{}: {error}; set TMPDIR to another folder", folder.0.display())))?;
    let live = Live::new(std::iter::once("durability"));
    let engine_options = Options { threads: arguments.threads, ..Options::default() };
    let open = |name: &str, durability| {
        let sequencer = lockwork::sequencer::Options { durability, ..Default::default() };
        let options =
            OpenOptions { engine: EngineKind::DETERMINISTIC, engine_options: engine_options.clone(), sequencer };
        Lockwork::open_with(folder.0.join(name), &options, |_| {}).map(|(database, _)| database)
    };
    live.show(0, "making the accounts");
    let memory = OpenOptions { engine_options: engine_options.clone(), ..OpenOptions::default() };
    let memory = Lockwork::open_in_memory_with(&OpenOptions { engine: EngineKind::DETERMINISTIC, ..memory })?;
    let mut memory = Ours::new(memory, accounts)?;
    let mut durable = Ours::new(open("lockwork", Durability::Fsync)?, accounts)?;
    let sqlite = Sqlite::new(&folder.0, accounts, BALANCE);
    let postgres = Postgres::new(accounts, BALANCE);
    let mut absent: Vec<String> = sqlite.as_ref().err().cloned().into_iter().collect();
    absent.extend(postgres.as_ref().err().map(ToString::to_string));
    let batch = format!("batches of {calls}");
    let line = |name, how: &str| Line { name, how: how.to_string(), rates: Vec::new() };
    let mut lines = vec![
        line("memory alone", &format!("{batch}, without a log")),
        line("disk alone", &format!("{} bytes and a sync for {calls}", calls * 24)),
        line("lockwork", &batch),
        line("lockwork", &format!("{batch}, {AHEAD} on the way")),
        line("lockwork", "each durable by itself"),
        line("SQLite", "each durable by itself"),
        line("SQLite", &format!("{calls} in a transaction")),
        line("PostgreSQL", "each durable by itself"),
        line("PostgreSQL", &format!("{calls} in a transaction")),
    ];
    let mut source = transfers(accounts, arguments.transfers.seed);
    for round in 0..rounds {
        live.show(0, &format!("round {} of {rounds}", round + 1));
        let mut rates = vec![
            memory.batches(calls, seconds, &mut source)?,
            disk(&folder.0, calls, seconds)?,
            durable.batches(calls, seconds, &mut source)?,
            durable.ahead(calls, seconds, &mut source)?,
            durable.batches(1, seconds, &mut source)?,
        ];
        for each in [1, calls] {
            rates.push(match &sqlite {
                Ok(sqlite) => {
                    let begin = Instant::now();
                    let mut is_over = || begin.elapsed().as_secs_f64() >= seconds;
                    let made = sqlite.transfers(&mut source, each, &mut is_over).map_err(Failure::BackEnd)?;
                    made as f64 / begin.elapsed().as_secs_f64()
                }
                Err(_) => 0.0,
            });
        }
        for each in [1, calls] {
            rates.push(match &postgres {
                Ok(postgres) => {
                    let begin = Instant::now();
                    postgres.transfers(seconds, each)? as f64 / begin.elapsed().as_secs_f64()
                }
                Err(_) => 0.0,
            });
        }
        lines.iter_mut().zip(rates).for_each(|(line, rate)| line.rates.push(rate));
    }
    live.show(0, "counting the money");
    let all = accounts as i64 * BALANCE;
    let mut problems = Vec::new();
    let digest = durable.database.digest()?;
    durable.database.close()?;
    let again = open("lockwork", Durability::Fsync)?;
    if again.digest()? != digest {
        problems.push("Lockwork opened again has another digest".to_string());
    }
    for (name, database) in [("in memory", &memory.database), ("in the folder", &again)] {
        let total = database.read(|engine| {
            let mut total = 0_i64;
            let read = engine.export(&mut |_, row| {
                total += row[8..16].try_into().map_or(0, i64::from_le_bytes);
            });
            read.map(|()| total)
        })??;
        if total != all {
            problems.push(format!("Lockwork {name} has {total} units of {all}"));
        }
    }
    again.checkpoint()?;
    again.close()?;
    if let Ok(sqlite) = &sqlite {
        let total = sqlite.total().map_err(Failure::BackEnd)?;
        if total != all {
            problems.push(format!("SQLite has {total} units of {all}"));
        }
    }
    if let Ok(postgres) = postgres {
        let total = postgres.total()?;
        if total != all as u64 {
            problems.push(format!("PostgreSQL has {total} units of {all}"));
        }
        postgres.stop()?;
    }
    drop(live);
    let settings = json!({
        "workload": "durability", "accounts": accounts, "batch": calls, "rounds": rounds, "seconds": seconds,
        "threads": engine_options.threads, "seed": arguments.transfers.seed, "folder": std::env::temp_dir(),
        "kind_of_disk": kind_of(&std::env::temp_dir()),
    });
    report(&arguments.transfers, &lines, &settings, &absent)?;
    if problems.is_empty() { Ok(()) } else { Err(Failure::Check(problems.join("; "))) }
}

/// What file system a folder lies on.
fn kind_of(folder: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let under = fields.filter(|fields| fields.len() > 2 && folder.starts_with(fields[1]));
    under.max_by_key(|fields| fields[1].len()).map_or_else(|| "unknown".into(), |fields| fields[2].to_string())
}

fn report(arguments: &TransferArguments, lines: &[Line], settings: &serde_json::Value, absent: &[String]) -> Outcome {
    let environment = Environment::read();
    let median =
        |name: &str, at: usize| lines.iter().filter(|line| line.name == name).nth(at).map_or(0.0, Line::median);
    let (ours, alone) = (median("lockwork", 0), lines[0].median());
    let lower = (0.6 * alone).min(lines[1].median());
    let mut text = format!(
        "{}, {} cores, commit {}\nsettings {settings}\n\n",
        environment.cpu, environment.cores, environment.commit
    );
    text.push_str(&format!(
        "{:<13} {:<36} {:>14} {:>12}\n",
        "", "transfers, all durable but 'alone'", "a second", "lockwork is"
    ));
    for line in lines.iter().filter(|line| line.median() > 0.0) {
        let times = if line.name == "lockwork" { String::new() } else { format!("{:.2}x", ours / line.median()) };
        let rate = super::chart::grouped(line.median());
        text.push_str(&format!("{:<13} {:<36} {rate:>14} {times:>12}\n", line.name, line.how));
    }
    text.push_str(&format!(
        "\nlockwork in batches has {:.2} of the rate in memory; asked: 0.6, or what the disk takes: {}\n",
        ours / alone,
        if ours >= lower { "met" } else { "not met" }
    ));
    absent.iter().for_each(|why| text.push_str(&format!("left out: {why}\n")));
    let csv = lines.iter().fold("system,how,transfers_per_s\n".to_string(), |text, line| {
        format!("{text}{},\"{}\",{:.0}\n", line.name, line.how, line.median())
    });
    let rows: Vec<_> = lines
        .iter()
        .map(|line| json!({ "system": line.name, "how": line.how, "per_s": line.median(), "rounds": line.rates }))
        .collect();
    let json = json!({
        "schema": 1, "environment": environment, "settings": settings, "lines": rows, "left_out": absent,
    });
    let bars = lines.iter().map(|line| (format!("{}, {}", line.name, line.how), line.median())).collect();
    let forms = Forms {
        text,
        json: format!("{json:#}\n"),
        csv,
        title: "durable transfers".into(),
        unit: "transfers a second",
        bars,
    };
    arguments.results.give(&forms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_between_different_accounts_and_follow_the_seed() {
        let some: Vec<Transfer> = transfers(7, 3).take(1000).collect();
        assert!(some.iter().all(|t| t.from != t.to && (0..7).contains(&t.from) && (0..7).contains(&t.to)));
        assert!((0..7).all(|id| some.iter().any(|t| t.from == id) && some.iter().any(|t| t.to == id)));
        let again: Vec<i64> = transfers(7, 3).take(1000).map(|t| t.from).collect();
        assert_eq!(again, some.iter().map(|t| t.from).collect::<Vec<_>>());
    }

    #[test]
    fn sqlite_moves_money_and_loses_none() {
        let folder = Folder(std::env::temp_dir().join(format!("lockwork-sqlite-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        let sqlite = match Sqlite::new(&folder.0, 10, 5) {
            Err(why) if why.starts_with("no SQLite here") => return lockwork_testkit::skip(&why),
            sqlite => sqlite.unwrap(),
        };
        let mut looks = 0;
        let made = sqlite.transfers(&mut transfers(10, 1), 3, &mut || {
            looks += 1;
            looks > 4
        });
        assert_eq!((made, sqlite.total()), (Ok(12), Ok(50)));
    }
}
