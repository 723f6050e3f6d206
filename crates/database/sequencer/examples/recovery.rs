//! Recovery against writing: transfers are made durable in batches of several sizes, then the directory is opened
//! again, and the same calls run on the engine without any log, which is the most that recovery can reach.
//!
//! `cargo run --release -p lockwork-sequencer --example recovery -- DIR [ACCOUNTS] [ROUNDS]`
//!
//! DIR must not exist, and should lie on a real disk: a file system in memory does not sync.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_engine::{Engine, EngineKind, Options as EngineOptions, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_sequencer::io::Disk;
use lockwork_sequencer::{Definition, Options, RecoveryReport, Sequencer};
use lockwork_workload::Workload;
use lockwork_workload::statistics::median;
use lockwork_workload::transfer::{Transfer, TransferConfig};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// For how long each measurement writes.
const LONG: Duration = Duration::from_secs(3);
/// So much that no account runs dry: what aborts is not written.
const BALANCE: i64 = 1_000_000_000;
/// Calls that run as one batch on the engine alone, and how many of them in all.
const LARGE: usize = 16_384;
const MANY: usize = 512;

struct Bench {
    accounts: u64,
    procedures: Vec<Procedure>,
    workload: Transfer,
}

fn engine() -> Outcome<Box<dyn Engine>> {
    Ok(create(EngineKind::DETERMINISTIC, EngineOptions { threads: 1, ..EngineOptions::default() })?)
}

fn open(path: &Path) -> Outcome<(Sequencer, RecoveryReport)> {
    let options = Options { checkpoint_bytes: 0, ..Options::default() };
    Ok(Sequencer::open(Arc::new(Disk::new()), path, options, engine()?, &mut |_| ())?)
}

impl Bench {
    fn new(accounts: u64) -> Outcome<Self> {
        let even = TransferConfig { accounts, theta: 0.0, audit: 0.0, balance: BALANCE, ..Default::default() };
        let mut workload = Transfer::new(even)?;
        let tables = [Transfer::schema()];
        let assembled = workload.sources().into_iter().map(|(_, text)| assemble(&text, tables.as_slice()));
        let procedures: Vec<Procedure> = assembled.map(|a| a.map(|a| a.procedure)).collect::<Result<_, _>>()?;
        workload.bind(&mut |name| {
            let id = procedures.iter().position(|known| known.name == name)?;
            Some((id as u32, procedures[id].clone()))
        })?;
        Ok(Self { accounts, procedures, workload })
    }

    fn images(&self) -> Vec<u8> {
        let (mut images, mut image) = (Vec::new(), Vec::new());
        for row in 0..self.accounts {
            self.workload.row_image(0, row, &mut image);
            images.extend_from_slice(&image);
        }
        images
    }

    fn batches(&mut self, calls: usize) -> Outcome<Vec<Batch>> {
        let fresh = |_| {
            let mut batch = Batch::new(self.workload.block_bytes(), calls)?;
            self.workload.fill(&mut batch, calls)?;
            Ok(batch)
        };
        (0..(8 * LARGE / calls).min(1024)).map(fresh).collect()
    }

    /// Calls a second on the engine alone, two batches on the way, as replay has them.
    fn bare(&mut self) -> Outcome<f64> {
        let mut engine = engine()?;
        engine.create_table(Transfer::schema(), self.accounts as usize)?;
        for procedure in &self.procedures {
            engine.register(procedure.clone())?;
        }
        engine.load_rows("accounts", 16, &self.images())?;
        let mut batches = self.batches(LARGE)?;
        let (start, mut flying) = (Instant::now(), 0);
        for number in 0..MANY {
            engine.submit_in_order(batches.pop().ok_or("no batch")?).map_err(|refused| refused.error)?;
            flying += 1;
            while flying > 1 || (flying > 0 && number + 1 == MANY) {
                batches.insert(0, engine.complete()?.ok_or("no batch")?.batch);
                flying -= 1;
            }
        }
        Ok((LARGE * MANY) as f64 / start.elapsed().as_secs_f64())
    }

    /// Calls a second of writing, batch after batch, and of recovery.
    fn round(&mut self, path: &Path, calls: usize) -> Outcome<(f64, f64, RecoveryReport)> {
        let (sequencer, _) = open(path)?;
        let table = format!("table {}", Transfer::schema());
        sequencer.define(Definition::new(table, ""))?;
        for (_, assembly) in self.workload.sources() {
            sequencer.define(Definition::new(assembly, ""))?;
        }
        sequencer.load("accounts", self.images())?;
        sequencer.checkpoint()?;
        sequencer.close()?;
        let (sequencer, _) = open(path)?;
        let mut batches = self.batches(calls)?;
        let (start, mut made, mut at) = (Instant::now(), 0, 0);
        while start.elapsed() < LONG {
            let batch = std::mem::replace(&mut batches[at], Batch::new(0, 0)?);
            batches[at] = sequencer.call_batch(batch)?;
            made += calls;
            at = (at + 1) % batches.len();
        }
        let written = made as f64 / start.elapsed().as_secs_f64();
        let digest = sequencer.digest()?;
        sequencer.close()?;
        let (sequencer, report) = open(path)?;
        if sequencer.digest()? != digest || report.calls != made as u64 {
            return Err("recovery gives another database".into());
        }
        sequencer.close()?;
        std::fs::remove_dir_all(path)?;
        Ok((written, report.calls as f64 / report.log_took.as_secs_f64(), report))
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(root) = arguments.first() else { return Err("usage: recovery DIR [ACCOUNTS] [ROUNDS]".into()) };
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let root = PathBuf::from(root);
    std::fs::create_dir(&root).map_err(|error| format!("'{}': {error}", root.display()))?;
    let (mut bench, rounds) = (Bench::new(number(1, 1_000_000)?)?, number(2, 3)?.max(1));
    println!("transfers, fsync, a batch at a time, {} accounts, one worker, median of {rounds}", bench.accounts);
    let bare: Outcome<Vec<f64>> = (0..rounds).map(|_| bench.bare()).collect();
    let bare = median(bare?);
    println!("engine alone, batches of {LARGE}, two on the way: {bare:.0} calls/s");
    println!("   batch    written/s   replayed/s    ratio  of engine alone  engine running  log MB");
    for calls in [1, 64, 1024, LARGE] {
        let (mut written, mut replayed, mut running, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            let (write, replay, report) = bench.round(&root.join("db"), calls)?;
            written.push(write);
            replayed.push(replay);
            running.push(report.engine_took.as_secs_f64() / report.log_took.as_secs_f64());
            bytes = report.log_bytes;
        }
        let (write, replay) = (median(written), median(replayed));
        let (ratio, ceiling, bytes) = (replay / write, replay / bare, bytes as f64 / 1e6);
        let running = median(running);
        println!("{calls:>8} {write:>12.0} {replay:>12.0} {ratio:>8.2} {ceiling:>16.2} {running:>15.2} {bytes:>8.1}");
    }
    std::fs::remove_dir_all(&root)?;
    Ok(())
}
