//! What durability costs: transfers on `deterministic`, durable and not, against what the disk does by itself; recovery
//! against writing; checkpoints; bytes of log. Medians of several rounds of one run, and the data is verified.
//!
//! `cargo run --release -p lockwork-sequencer --example durability -- DIR [CALLS A BATCH] [ACCOUNTS] [ROUNDS]`
//!
//! DIR must not exist, and should lie on a real disk: a file system in memory does not sync.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_engine::{Engine, EngineKind, Options as EngineOptions, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_sequencer::io::{Disk, Io, Mode};
use lockwork_sequencer::{Definition, Durability, Options, RecoveryReport, Sequencer};
use lockwork_workload::Workload;
use lockwork_workload::statistics::median;
use lockwork_workload::transfer::{Transfer, TransferConfig};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// For how long each measurement runs, at least.
const LONG: Duration = Duration::from_millis(1500);
/// So much that no account runs dry, however often the same transfers run: what aborts is not written.
const BALANCE: i64 = 1_000_000_000;
/// Batches in flight when they are submitted ahead.
const AHEAD: usize = 4;

struct Bench {
    root: PathBuf,
    calls: usize,
    accounts: u64,
    rounds: usize,
    procedures: Vec<lockwork_procedure::program::Procedure>,
}

fn engine() -> Outcome<Box<dyn Engine>> {
    Ok(create(EngineKind::DETERMINISTIC, EngineOptions { threads: 1, ..EngineOptions::default() })?)
}

impl Bench {
    fn workload(&self, seed: u64) -> Outcome<Transfer> {
        let even = TransferConfig { theta: 0.0, audit: 0.0, balance: BALANCE, ..Default::default() };
        let config = TransferConfig { accounts: self.accounts, seed, ..even };
        let mut workload = Transfer::new(config)?;
        let names: Vec<&str> = self.procedures.iter().map(|procedure| procedure.name.as_str()).collect();
        workload.bind(&mut |name| {
            let id = names.iter().position(|known| *known == name)?;
            Some((id as u32, self.procedures[id].clone()))
        })?;
        Ok(workload)
    }

    /// Batches to be used again and again; a call can run any number of times.
    fn batches(&self, workload: &mut Transfer) -> Outcome<VecDeque<Batch>> {
        let mut batches = VecDeque::new();
        for _ in 0..8 {
            let mut batch = Batch::new(workload.block_bytes(), self.calls)?;
            workload.fill(&mut batch, self.calls)?;
            batches.push_back(batch);
        }
        Ok(batches)
    }

    fn open(&self, path: &Path, io: Arc<dyn Io>, options: Options) -> Outcome<(Sequencer, RecoveryReport)> {
        Ok(Sequencer::open(io, path, options, engine()?, &mut |_| ())?)
    }

    fn furnish(&self, sequencer: &Sequencer, workload: &Transfer) -> Outcome<()> {
        let table = format!("table {}", Transfer::schema());
        sequencer.define(Definition::new(table, ""))?;
        for (_, assembly) in workload.sources() {
            sequencer.define(Definition::new(assembly, ""))?;
        }
        let (mut images, mut image) = (Vec::new(), Vec::new());
        for row in 0..self.accounts {
            workload.row_image(0, row, &mut image);
            images.extend_from_slice(&image);
        }
        sequencer.load("accounts", images)?;
        Ok(())
    }

    /// With a checkpoint, closed and open again: tables then have the room that they need in one piece, as those of the
    /// engine alone do.
    fn again(&self, sequencer: Sequencer, path: &Path, io: Arc<dyn Io>, options: Options) -> Outcome<Sequencer> {
        sequencer.checkpoint()?;
        sequencer.close()?;
        Ok(self.open(path, io, options)?.0)
    }

    fn check(&self, sequencer: &Sequencer, workload: &mut Transfer) -> Outcome<()> {
        let rows = sequencer.read(|engine| {
            let mut rows: Vec<(String, Vec<u8>)> = Vec::new();
            engine.export(&mut |table, image| rows.push((table.to_string(), image.to_vec()))).map(|()| rows)
        })??;
        workload.check(&mut |each| rows.iter().for_each(|(table, image)| each(table, image)))?;
        Ok(())
    }

    /// Calls a second, one batch after the other or several submitted ahead.
    fn rate(&self, sequencer: &Sequencer, batches: &mut VecDeque<Batch>, ahead: usize) -> Outcome<f64> {
        let (start, mut calls) = (Instant::now(), 0);
        let mut tickets = VecDeque::new();
        while start.elapsed() < LONG || !tickets.is_empty() {
            if start.elapsed() < LONG
                && let Some(batch) = batches.pop_front()
            {
                tickets.push_back(sequencer.submit(batch)?);
                if tickets.len() < ahead {
                    continue;
                }
            }
            if let Some(ticket) = tickets.pop_front() {
                let batch: Batch = lockwork_sequencer::Ticket::wait(ticket)?;
                calls += batch.len();
                batches.push_back(batch);
            }
        }
        Ok(calls as f64 / start.elapsed().as_secs_f64())
    }

    /// Calls a second on the engine itself.
    fn bare(&self, batches: &mut VecDeque<Batch>) -> Outcome<f64> {
        let mut engine = engine()?;
        engine.create_table(Transfer::schema(), self.accounts as usize)?;
        for procedure in &self.procedures {
            engine.register(procedure.clone())?;
        }
        for id in 0..self.accounts {
            engine.load("accounts", &[id.to_le_bytes(), (BALANCE as u64).to_le_bytes()].concat())?;
        }
        let mut rates = Vec::new();
        for _ in 0..self.rounds {
            let (start, mut calls) = (Instant::now(), 0);
            while start.elapsed() < LONG {
                let batch = batches.pop_front().ok_or("no batch")?;
                engine.submit(batch).map_err(|refused| refused.error)?;
                let batch = engine.complete()?.ok_or("no batch")?.batch;
                calls += batch.len();
                batches.push_back(batch);
            }
            rates.push(calls as f64 / start.elapsed().as_secs_f64());
        }
        Ok(median(rates))
    }

    /// Bytes a second, and microseconds a write, of writes with syncs of this size.
    fn disk(&self, io: &dyn Io, bytes: usize) -> Outcome<(f64, f64)> {
        let path = self.root.join("probe");
        let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
        let (mut rates, mut times) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            let file = io.open(&path, Mode::Create)?;
            file.allocate(64 << 20)?;
            file.sync()?;
            let (start, mut written, mut at) = (Instant::now(), 0, 0);
            while start.elapsed() < LONG {
                let one = Instant::now();
                if at + bytes as u64 > 64 << 20 {
                    at = 0;
                }
                file.write_and_sync(at, &content)?;
                at += bytes as u64;
                written += bytes;
                times.push(one.elapsed().as_secs_f64() * 1e6);
            }
            rates.push(written as f64 / start.elapsed().as_secs_f64());
            io.remove(&path)?;
        }
        Ok((median(rates), median(times)))
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(root) = arguments.first() else { return Err("usage: durability DIR [CALLS] [ACCOUNTS] [ROUNDS]".into()) };
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let root = PathBuf::from(root);
    std::fs::create_dir(&root).map_err(|error| format!("'{}': {error}", root.display()))?;
    let tables = [Transfer::schema()];
    let sources = Transfer::new(TransferConfig { accounts: 2, ..Default::default() })?.sources();
    let procedures = sources.iter().map(|(_, text)| assemble(text, tables.as_slice()).map(|a| a.procedure));
    let bench = Bench {
        root: root.clone(),
        calls: number(1, 16_384)? as usize,
        accounts: number(2, 1_000_000)?,
        rounds: number(3, 3)? as usize,
        procedures: procedures.collect::<Result<_, _>>()?,
    };
    println!(
        "transfers in batches of {}, {} accounts, seed 1, median of {}",
        bench.calls, bench.accounts, bench.rounds
    );
    let mut workload = bench.workload(1)?;
    let mut batches = bench.batches(&mut workload)?;
    let bare = bench.bare(&mut batches)?;
    println!("engine alone, a batch at a time        {:9.0} calls/s", bare);
    let bytes = 64 + bench.calls * 24;
    for io in [Arc::new(Disk::plain()), Arc::new(Disk::new())] {
        let (rate, time) = bench.disk(&*io, bytes)?;
        println!(
            "disk alone, {bytes} bytes and sync       {:9.0} calls/s  {:.0} MB/s, {time:.0} us ({})",
            rate / 24.0,
            rate / 1e6,
            io.describe()
        );
    }
    let quiet = Options { checkpoint_bytes: 0, ..Options::default() };
    for (name, durability, ring) in [
        ("none", Durability::None, false),
        ("async", Durability::Async, false),
        ("fsync", Durability::Fsync, false),
        ("fsync, io_uring", Durability::Fsync, true),
    ] {
        let io: Arc<dyn Io> = if ring { Arc::new(Disk::new()) } else { Arc::new(Disk::plain()) };
        let path = root.join(format!("{durability}{ring}"));
        let options = Options { durability, ..quiet.clone() };
        let (sequencer, _) = bench.open(&path, io.clone(), options.clone())?;
        bench.furnish(&sequencer, &workload)?;
        let sequencer = bench.again(sequencer, &path, io.clone(), options.clone())?;
        let before = sequencer.statistics();
        for (how, ahead) in [("call_batch", 1), ("submitted ahead", AHEAD)] {
            let rates: Outcome<Vec<f64>> =
                (0..bench.rounds).map(|_| bench.rate(&sequencer, &mut batches, ahead)).collect();
            let rate = median(rates?);
            println!("{name:15} {how:15}        {rate:9.0} calls/s  {:.2} of the engine alone", rate / bare);
        }
        let after = sequencer.statistics();
        if after.log_bytes > before.log_bytes {
            let syncs = after.syncs - before.syncs;
            println!(
                "{name:15} log {:.3} bytes an argument byte, {syncs} syncs, {:.0} us each, longest {:.0} us",
                (after.log_bytes - before.log_bytes) as f64 / (after.argument_bytes - before.argument_bytes) as f64,
                (after.sync_ns - before.sync_ns) as f64 / 1e3 / syncs.max(1) as f64,
                after.sync_longest_ns as f64 / 1e3,
            );
        }
        bench.check(&sequencer, &mut workload)?;
        let digest = sequencer.digest()?;
        sequencer.close()?;
        if durability == Durability::Fsync {
            let written = after.log_bytes as f64;
            let (sequencer, report) = bench.open(&path, io, options)?;
            if sequencer.digest()? != digest {
                return Err("recovery gives another digest".into());
            }
            let rate = report.calls as f64 / report.log_took.as_secs_f64();
            println!(
                "{name:15} recovery               {rate:9.0} calls/s  {:.0} MB in {:.2} s",
                written / 1e6,
                report.log_took.as_secs_f64()
            );
            sequencer.close()?;
        }
        std::fs::remove_dir_all(&path)?;
    }
    checkpoints(&bench, &mut workload, &mut batches)?;
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

/// Rates with the checkpoints of the default interval and without any, in turns, so that both meet the same disk.
fn checkpoints(bench: &Bench, workload: &mut Transfer, batches: &mut VecDeque<Batch>) -> Outcome<()> {
    let mut rates = [Vec::new(), Vec::new()];
    let mut last = None;
    for _ in 0..bench.rounds {
        for (at, bytes) in [(0, 0), (1, Options::default().checkpoint_bytes)] {
            let path = bench.root.join("checkpoints");
            let options = Options { checkpoint_bytes: bytes, ..Options::default() };
            let (sequencer, _) = bench.open(&path, Arc::new(Disk::plain()), options.clone())?;
            bench.furnish(&sequencer, workload)?;
            let sequencer = bench.again(sequencer, &path, Arc::new(Disk::plain()), options)?;
            let (start, mut calls) = (Instant::now(), 0.0);
            while start.elapsed() < 6 * LONG {
                calls += bench.rate(&sequencer, batches, AHEAD)? * LONG.as_secs_f64();
            }
            rates[at].push(calls / start.elapsed().as_secs_f64());
            bench.check(&sequencer, workload)?;
            if bytes > 0 {
                last = Some((sequencer.statistics(), start.elapsed()));
            }
            sequencer.close()?;
            std::fs::remove_dir_all(&path)?;
        }
    }
    let [without, with] = rates.map(median);
    println!("no checkpoints                         {without:9.0} calls/s");
    println!("checkpoints at the default interval    {with:9.0} calls/s  {:.3} of that", with / without);
    if let Some((statistics, took)) = last {
        println!(
            "in {:.1} s {} checkpoints of {:.1} MB; calls stood still for {:.1} ms each, {:.2} ms at a time at most",
            took.as_secs_f64(),
            statistics.checkpoints,
            statistics.checkpoint_bytes as f64 / 1e6,
            statistics.checkpoint_pause_ns as f64 / 1e6 / statistics.checkpoints.max(1) as f64,
            statistics.checkpoint_longest_ns as f64 / 1e6,
        );
    }
    Ok(())
}
