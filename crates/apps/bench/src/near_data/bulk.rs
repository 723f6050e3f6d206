//! Experiment (d): short host updates beside a bulk update of a tenth of the table, run in storage and run on the host.
//! It is what the shared lock table exists for.
//!
//! ```text
//! host workers   +1 to one row, chosen at random in a hot hundredth of the table, not of the region
//! bulk update    +1 to every row of one region, every tenth row                 in storage | on the host
//! ```
//!
//! Workers run alone, beside the update in storage, alone again, beside the same update on the host. Bytes are counted
//! for each update without workers, whose own flushes would be among them: what crosses the channel, and what the
//! storage reads and swaps of lock table and VID maps. In the end the storage adds up all balances, which tells whether
//! any update of any side was lost or made twice.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork_lock_bench::histogram::Histogram;
use lockwork_neardata::coherent::{NearData, NearDataConfig};
use lockwork_neardata::device::{Fold, TableId};
use lockwork_neardata::host::{Config, HostError};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{BlockMut, Status};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_workload::random::Random;
use lockwork_workload::statistics::median;
use serde_json::json;

use super::super::Failure;
use super::super::chart::{bars, grouped};
use super::data_file::{DataFile, fill};
use super::watch::Watch;
use super::{Arguments, Section, timeout, verdict};

/// Every one in so many rows is of the region that is updated.
pub(super) const REGIONS: i64 = 10;
const REGION: i64 = 3;
/// The hot part of the table: one in so many rows. The host keeps copies of all of them.
const HOT: u64 = 100;
pub(super) const BEGINNING: i64 = 1000;
/// How often a bulk update that meets a conflict is tried.
const TRIES: u32 = 20;
/// Bytes of a row besides key, region and balance.
pub(super) const FILLER: u32 = 48;
/// What the file takes for each row, with the versions of the updates.
pub(super) const FILE_BYTES: u64 = 250;

/// Where the bulk update runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Storage,
    Host,
}

/// What a phase gave.
struct Phase {
    commits: u64,
    refused: u64,
    seconds: f64,
    latency: Histogram,
}

impl Phase {
    fn rate(&self) -> f64 {
        self.commits as f64 / self.seconds
    }
}

/// One bulk update.
struct Update {
    seconds: f64,
    taken: u64,
    tries: u32,
}

pub(super) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::BackEnd(error.to_string())
}

/// Rows, as they were asked for.
pub(super) fn records(bench: &Arguments) -> u64 {
    bench.records.unwrap_or(10_000_000)
}

/// Rows, as they are.
pub(super) fn rows(bench: &Arguments) -> u64 {
    let rows = records(bench) / if bench.quick { 10 } else { 1 };
    rows / (REGIONS as u64) * REGIONS as u64
}

/// Where the storage's file is to be.
pub(super) fn folder(bench: &Arguments) -> PathBuf {
    bench.data.clone().unwrap_or_else(std::env::temp_dir)
}

fn accounts() -> TableSchema {
    let columns = [
        ("id", ColumnType::I64),
        ("region", ColumnType::I64),
        ("balance", ColumnType::I64),
        ("filler", ColumnType::Bytes(FILLER)),
    ];
    TableSchema::new("accounts", &columns, 1, false).expect("a good schema")
}

/// The procedures: what a worker calls, the bulk update, and the sum of all balances.
struct Programs {
    deposit: Procedure,
    interest: Procedure,
    sum: Procedure,
}

impl Programs {
    fn new(schema: &TableSchema) -> Self {
        let make = |source: &str| assemble(source, std::slice::from_ref(schema)).expect("a good procedure").procedure;
        Self {
            deposit: make(
                "procedure deposit
                 table accounts
                 param id: i64
                     update  c0, accounts, [id]
                     ret     r1, c0
                     loadr   r2, r1[accounts.balance]
                     add     r2, r2, 1
                     storer  r2, r1[accounts.balance]
                     commit",
            ),
            interest: make(
                "procedure interest
                 table accounts
                 param id: i64
                 param region: i64
                     update  c0, accounts, [id]
                     ret     r1, c0
                     loadr   r2, r1[accounts.region]
                     load    r3, [region]
                     cmp     r2, r3
                     be      hit
                     abort   1
                 hit:
                     loadr   r2, r1[accounts.balance]
                     add     r2, r2, 1
                     storer  r2, r1[accounts.balance]
                     commit",
            ),
            sum: make(
                "procedure sum
                 table accounts
                 param id: i64
                 result balance: i64
                 result of_region: i64
                     search  c0, accounts, [id]
                     ret     r1, c0
                     loadr   r2, r1[accounts.balance]
                     store   r2, [balance]
                     loadr   r3, r1[accounts.region]
                     cmp     r3, 3
                     bne     other
                     store   r2, [of_region]
                     commit
                 other:
                     mov     r4, 0
                     store   r4, [of_region]
                     commit",
            ),
        }
    }

    /// A block of the bulk update for the region.
    fn interest_block(&self) -> Vec<u8> {
        let mut block = vec![0; self.interest.layout().block_bytes as usize];
        put(&mut block, &self.interest, "region", REGION);
        block
    }
}

fn put(block: &mut [u8], procedure: &Procedure, name: &str, value: i64) {
    let offset = procedure.parameter(name).expect("it has this parameter").offset as usize;
    block[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// The rows that a worker chooses from: hot ones outside the region, or, by `overlap` percent, any of the region.
fn choose(random: &mut Random, rows: u64, overlap: u32) -> i64 {
    let regions = REGIONS as u64;
    if overlap > 0 && random.below(100) < u64::from(overlap) {
        return (random.below(rows / regions) * regions) as i64 + REGION;
    }
    let hot = (rows / HOT / regions).max(1);
    let of_region = random.below(regions - 1);
    let region = if of_region >= REGION as u64 { of_region + 1 } else { of_region };
    (random.below(hot) * regions + region) as i64
}

struct Study<'a> {
    engine: &'a NearData,
    programs: &'a Programs,
    deposit: u32,
    table: TableId,
    rows: u64,
    threads: usize,
    overlap: u32,
    seed: u64,
    deposits: AtomicU64,
    updates: AtomicU64,
}

impl Study<'_> {
    /// Updates every hot row once, so that the host has all of them.
    fn touch_hot_rows(&self) -> Result<(), Failure> {
        let procedure = &self.programs.deposit;
        let mut worker = self.engine.host().worker().map_err(failed)?;
        let mut block = vec![0; procedure.layout().block_bytes as usize];
        for id in (0..(self.rows / HOT) as i64).filter(|id| id % REGIONS != REGION) {
            BlockMut::new(&mut block).reset(self.deposit);
            put(&mut block, procedure, "id", id);
            let done = worker.call(&mut block).map_err(failed)?;
            self.deposits.fetch_add(u64::from(done == Status::Committed), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Lets workers work while `beside` runs.
    fn phase<T>(&self, beside: impl FnOnce() -> Result<T, Failure>) -> Result<(Phase, T), Failure> {
        let (stop, start) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|number| {
                    scope.spawn({
                        let stop = &stop;
                        move || self.work(number as u64, stop)
                    })
                })
                .collect();
            let done = beside();
            let seconds = start.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            let mut phase = Phase { commits: 0, refused: 0, seconds, latency: Histogram::default() };
            for worker in workers {
                let (commits, refused, latency) = worker.join().map_err(|_| failed("a worker panicked"))??;
                phase.commits += commits;
                phase.refused += refused;
                phase.latency.add(&latency);
            }
            self.deposits.fetch_add(phase.commits, Ordering::Relaxed);
            Ok((phase, done?))
        })
    }

    fn work(&self, number: u64, stop: &AtomicBool) -> Result<(u64, u64, Histogram), Failure> {
        let procedure = &self.programs.deposit;
        let mut worker = self.engine.host().worker().map_err(failed)?;
        let mut block = vec![0; procedure.layout().block_bytes as usize];
        let mut random = Random::stream(self.seed, number + self.deposits.load(Ordering::Relaxed));
        let (mut commits, mut refused, mut latency) = (0, 0, Histogram::default());
        while !stop.load(Ordering::Relaxed) {
            BlockMut::new(&mut block).reset(self.deposit);
            put(&mut block, procedure, "id", choose(&mut random, self.rows, self.overlap));
            let begin = Instant::now();
            match worker.call(&mut block) {
                Ok(Status::Committed) => commits += 1,
                Ok(_) | Err(HostError::Conflict(_)) => refused += 1,
                Err(error) => return Err(failed(error)),
            }
            latency.record(begin.elapsed().as_nanos() as u64);
        }
        Ok((commits, refused, latency))
    }

    /// Runs the bulk update, again if it met a conflict.
    fn update(&self, place: Place) -> Result<Update, Failure> {
        let (interest, block) = (&self.programs.interest, self.programs.interest_block());
        let mut worker = self.engine.host().worker().map_err(failed)?;
        let (begin, mut last) = (Instant::now(), String::new());
        for tries in 1..=TRIES {
            let done = match place {
                Place::Storage => worker.bulk_update(self.table, interest, &block).and_then(|update| {
                    let taken = update.ran().taken;
                    update.commit().map(|_| taken)
                }),
                Place::Host => worker.bulk_update_on_host(self.table, interest, &block).map(|(ran, _)| ran.taken),
            };
            match done {
                Ok(taken) => {
                    self.updates.fetch_add(1, Ordering::Relaxed);
                    return Ok(Update { seconds: begin.elapsed().as_secs_f64(), taken, tries });
                }
                Err(error) if error.is_retryable() => last = error.to_string(),
                Err(error) => return Err(failed(error)),
            }
        }
        // On the host nobody keeps workers off the rows: with overlap the first updater wins every time.
        if place == Place::Host && self.overlap > 0 {
            return Ok(Update { seconds: begin.elapsed().as_secs_f64(), taken: 0, tries: TRIES });
        }
        Err(failed(format!("{TRIES} tries of the bulk update ({place:?}) met a conflict, the last one: {last}")))
    }

    /// Bytes between the two sides so far.
    fn bytes(&self) -> u64 {
        let traffic = self.engine.traffic();
        traffic.to_host + traffic.to_storage + self.engine.coherent_bytes()
    }

    /// What a bulk update without workers moves, and how long it takes.
    fn alone(&self, place: Place) -> Result<(u64, Update), Failure> {
        self.engine.host().flush_all().map_err(failed)?;
        let before = self.bytes();
        let update = self.update(place)?;
        self.engine.host().flush_all().map_err(failed)?;
        Ok((self.bytes() - before, update))
    }

    /// What is wrong with the balances.
    fn verify(&self) -> Result<Vec<String>, Failure> {
        let mut worker = self.engine.host().worker().map_err(failed)?;
        let block = vec![0; self.programs.sum.layout().block_bytes as usize];
        let folds = [("balance".to_string(), Fold::Sum), ("of_region".to_string(), Fold::Sum)];
        let found = worker.aggregate(self.table, &self.programs.sum, &block, &folds).map_err(failed)?;
        let values = found.values.unwrap_or_default();
        let of_region = self.rows as i64 / REGIONS;
        let updates = self.updates.load(Ordering::Relaxed) as i64 * of_region;
        let deposits = self.deposits.load(Ordering::Relaxed) as i64;
        let expected = self.rows as i64 * BEGINNING + updates + deposits;
        let mut wrong = Vec::new();
        if found.ran.rows != self.rows || values.first() != Some(&expected) {
            wrong.push(format!(
                "experiment d: {} rows with balances {values:?} in all; {} rows and {expected} should be",
                found.ran.rows, self.rows
            ));
        }
        if self.overlap == 0 && values.get(1) != Some(&(of_region * BEGINNING + updates)) {
            wrong.push(format!("experiment d: the region has {:?}, not what its updates make", values.get(1)));
        }
        Ok(wrong)
    }
}

pub(super) fn run(bench: &Arguments, show: &mut dyn FnMut(&str)) -> Result<Section, Failure> {
    let mut watch = None;
    measure(bench, show, &mut watch).map_err(|error| {
        // Why it failed otherwise is what came of that.
        watch.as_ref().and_then(|watch| watch.verdict("the storage process")).unwrap_or(error)
    })
}

fn measure(bench: &Arguments, show: &mut dyn FnMut(&str), watch: &mut Option<Watch>) -> Result<Section, Failure> {
    let arguments = bench;
    let rows = rows(bench);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = bench.threads.unwrap_or((cores / 2).max(1));
    let elements = arguments.elements.unwrap_or((cores - cores / 2).max(1));
    let seconds = if bench.quick { 0.5 } else { 4.0 };
    let folder = folder(bench);
    let in_folder = |error: &dyn std::fmt::Display| failed(format!("the file in {}: {error}", folder.display()));
    let data = DataFile::new(&folder).map_err(|error| in_folder(&error))?;
    let schema = accounts();
    fill(&data.path(), &schema, rows, show).map_err(|error| in_folder(&error))?;
    show("opening");
    let config = NearDataConfig {
        elements,
        link: arguments.link,
        lock_lines: u32::try_from(rows * 2).unwrap_or(u32::MAX / 2).next_power_of_two(),
        tables: 1,
        tuples: rows as u32,
        host: Config { max_retries: 2, timeout: Duration::from_millis(2), flush_bytes: 256 << 20, ..Config::default() },
        ..NearDataConfig::new(data.path())
    };
    let mut program = Command::new(std::env::current_exe().map_err(failed)?);
    program.arg("smart-storage");
    let engine = NearData::start(program, config.clone()).map_err(failed)?;
    *watch = Some(Watch::over(engine.storage_id(), timeout(bench))?);
    let programs = Programs::new(&schema);
    let deposit = engine.host().register(programs.deposit.clone()).map_err(failed)?;
    let table = engine.host().table_id("accounts").ok_or_else(|| failed("the table is gone"))?;
    let study = Study {
        engine: &engine,
        programs: &programs,
        deposit,
        table,
        rows,
        threads,
        overlap: arguments.overlap,
        seed: bench.seed,
        deposits: AtomicU64::new(0),
        updates: AtomicU64::new(0),
    };
    let wait = || {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        Ok(())
    };
    show("warming up");
    study.touch_hot_rows()?;
    study.phase(wait)?;
    let rounds = if bench.quick { 1 } else { 3 };
    let mut shares: [Vec<f64>; 2] = Default::default();
    let mut lines = Vec::new();
    for round in 1..=rounds {
        for (number, place) in [Place::Storage, Place::Host].into_iter().enumerate() {
            let name = if place == Place::Storage { "in storage" } else { "on the host" };
            show(&format!("round {round} of {rounds}: host alone"));
            let (alone, ()) = study.phase(wait)?;
            show(&format!("round {round} of {rounds}: bulk update {name}"));
            let (beside, update) = study.phase(|| study.update(place))?;
            show(&format!("round {round} of {rounds}: host alone"));
            let (after, ()) = study.phase(wait)?;
            let base = (alone.rate() + after.rate()) / 2.0;
            shares[number].push(beside.rate() / base);
            lines.push((name, base, beside, update));
            engine.host().flush_all().map_err(failed)?;
            engine.host().collect().map_err(failed)?;
        }
    }
    show("bytes of an update in storage");
    let (storage_bytes, storage_alone) = study.alone(Place::Storage)?;
    show("bytes of an update on the host");
    let (host_bytes, host_alone) = study.alone(Place::Host)?;
    show("verifying");
    let wrong = study.verify()?;
    let kept = [0, 1].map(|at| median(shares[at].iter().copied()));
    let mut text = format!(
        "(d) {} rows of {} bytes; a bulk update of every tenth row, {elements} processing element(s), {} lock lines, link {}\n\
         {threads} host worker(s) beside it update one hot row each call, {} % of them one of the bulk update (overlap)\n\
         alone: before and after the update; beside: during it; p50 to refused: calls of the workers beside it\n\
         {:<12} {:>12} {:>12} {:>7} {:>9} {:>9} {:>10} {:>9} {:>10} {:>6}\n",
        grouped(rows as f64),
        24 + FILLER,
        grouped(config.lock_lines.into()),
        arguments.link,
        arguments.overlap,
        "bulk update",
        "alone txn/s",
        "beside txn/s",
        "kept",
        "p50 us",
        "p99 us",
        "longest us",
        "refused",
        "bulk s",
        "tries"
    );
    for (name, base, beside, update) in &lines {
        let us = |share| beside.latency.quantile(share) as f64 / 1e3;
        text.push_str(&format!(
            "{name:<12} {:>12} {:>12} {:>6.0}% {:>9.1} {:>9.1} {:>10.0} {:>9} {:>10.3} {:>6}\n",
            grouped(*base),
            grouped(beside.rate()),
            beside.rate() / base * 100.0,
            us(0.5),
            us(0.99),
            us(1.0),
            beside.refused,
            update.seconds,
            if update.taken > 0 { update.tries.to_string() } else { format!("{TRIES}, none went through") }
        ));
    }
    let ratio = storage_bytes as f64 / host_bytes as f64;
    let sums = format!(
        "{} rows, {} deposits and {} bulk updates of {} rows add up",
        grouped(rows as f64),
        grouped(study.deposits.load(Ordering::Relaxed) as f64),
        study.updates.load(Ordering::Relaxed),
        grouped(storage_alone.taken as f64)
    );
    text.push_str(&format!(
        "host transactions keep {:.0} % beside the update in storage, {:.0} % beside the one on the host (medians)\n\
         bytes between the processes for one update without workers: in storage {} (in {:.3} s),\n\
         on the host {} (in {:.3} s); the former are {:.1} % of the latter\n\
         {}",
        kept[0] * 100.0,
        kept[1] * 100.0,
        grouped(storage_bytes as f64),
        storage_alone.seconds,
        grouped(host_bytes as f64),
        host_alone.seconds,
        ratio * 100.0,
        verdict(&wrong, &sums)
    ));
    let rounds: Vec<_> = lines
        .iter()
        .map(|(name, base, beside, update)| {
            json!({
                "bulk_update": name, "alone_txn_per_s": base, "beside_txn_per_s": beside.rate(),
                "refused": beside.refused, "bulk_seconds": update.seconds, "tries": update.tries,
                "p50_ns": beside.latency.quantile(0.5), "p99_ns": beside.latency.quantile(0.99),
                "longest_ns": beside.latency.quantile(1.0),
            })
        })
        .collect();
    let json = json!({
        "rows": rows, "row_bytes": 24 + FILLER, "threads": threads, "elements": elements,
        "lock_lines": config.lock_lines, "overlap_percent": arguments.overlap, "rounds": rounds,
        "kept_beside_storage": kept[0], "kept_beside_host": kept[1], "bytes_in_storage": storage_bytes,
        "bytes_on_host": host_bytes, "bytes_ratio": ratio, "verified": wrong.is_empty(),
    });
    let kept_bars = [("update in storage".into(), kept[0] * 100.0), ("update on the host".into(), kept[1] * 100.0)];
    let byte_bars =
        [("update in storage".into(), storage_bytes as f64), ("update on the host".into(), host_bytes as f64)];
    let charts = vec![
        ("d-kept.svg".into(), bars("Host transactions beside a bulk update", "percent of the rate alone", &kept_bars)),
        ("d-bytes.svg".into(), bars("Bytes between the processes", "bytes for one bulk update", &byte_bars)),
    ];
    Ok(Section { text, json, charts, wrong })
}
