//! Contended transfers on every engine of the CPU and, where there is a device, of OpenCL.

use std::time::{Duration, Instant};

use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineKind, Options};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::schema::TableSchema;

use super::{Arguments, Random};
use crate::cli::progress::Live;
use crate::cli::{Failure, chart, engines, print};

const SOURCE: &str = include_str!("../../../../../../examples/transfer.lw");
const ACCOUNTS: u64 = 100_000;
/// Half of all transfers take their money from one of these.
const HOT: u64 = 16;
/// Enough that no account runs dry.
const BALANCE: i64 = 1_000_000_000;
/// Calls of a batch, and batches that are measured again and again.
const CALLS: usize = 16_384;
const BATCHES: usize = 16;
/// Calls and batches that are compared with serial replay.
const REPLAYED: (usize, usize) = (2_000, 8);
/// How long each engine is measured.
const MEASURED: Duration = Duration::from_millis(800);

/// What an engine did.
struct Run {
    rate: f64,
    /// What is wrong with its data, or nothing.
    wrong: Option<String>,
}

/// Measures every engine, prints a table, and saves a chart; returns what failed.
pub(super) fn show(arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut kinds = EngineKind::CPU.to_vec();
    match lockwork_opencl::chosen(None) {
        Ok(device) => {
            kinds.extend(lockwork_opencl::ENGINES);
            print(&format!("OpenCL device: {} '{}'\n", device.kind.name(), device.name))?;
        }
        Err(absent) => print(&format!("Without the OpenCL engines: {absent}\n"))?,
    }
    print(&format!(
        "\nMoney moves between 100,000 accounts, half of it from {HOT} of them, in batches of {CALLS} transactions\n\
         {:<22} {:>14}   checks\n",
        "engine", "transactions/s"
    ))?;
    let live = Live::new(kinds.iter().map(|kind| kind.name()));
    let (mut lines, mut bars, mut failed) = (String::new(), Vec::new(), Vec::new());
    for (row, &kind) in kinds.iter().enumerate() {
        live.show(row, "comparing with serial replay");
        let replayed = equivalent(kind, arguments.seed)?;
        live.show(row, "measuring");
        let run = measure(kind, arguments.seed)?;
        let problem = replayed.err().or(run.wrong);
        let checks = match &problem {
            None => format!("{} calls equal to serial replay; no money is lost", REPLAYED.0 * REPLAYED.1),
            Some(problem) => format!("WRONG: {problem}"),
        };
        let rate = chart::grouped(run.rate);
        live.show(row, &rate);
        lines.push_str(&format!("{:<22} {rate:>14}   {checks}\n", kind.name()));
        bars.push((kind.name().to_string(), run.rate));
        failed.extend(problem.map(|problem| format!("transfers on {kind}: {problem}")));
    }
    drop(live);
    print(&lines)?;
    let path = arguments.out.join("transfers.svg");
    let refused = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(&arguments.out).map_err(refused)?;
    std::fs::write(&path, chart::bars("Contended transfers, in memory", "transactions a second", &bars))
        .map_err(refused)?;
    Ok(failed)
}

/// An engine with the accounts and the procedure, which is its only one.
fn prepare(kind: EngineKind) -> Result<Box<dyn Engine>, Failure> {
    let mut engine = engines::create(kind, &Options::default())?;
    let none: &[TableSchema] = &[];
    let assembled = assemble(SOURCE, none).map_err(Failure::usage)?;
    for schema in assembled.schemas {
        engine.create_table(schema, ACCOUNTS as usize)?;
    }
    for id in 0..ACCOUNTS {
        engine.load("accounts", &[id.to_le_bytes(), BALANCE.to_le_bytes()].concat())?;
    }
    engine.register(assembled.procedure)?;
    Ok(engine)
}

/// A batch of transfers between different accounts.
fn batch(engine: &dyn Engine, random: &mut Random, calls: usize) -> Result<Batch, Failure> {
    let registered = engine.procedure(0).expect("it was registered first");
    let layout = registered.verified.procedure().layout();
    let mut batch = Batch::new(layout.block_bytes, calls).map_err(Failure::usage)?;
    for _ in 0..calls {
        let choice = if random.below(2) == 0 { HOT } else { ACCOUNTS };
        let from = random.below(choice);
        let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
        let mut block = batch.push(0).expect("room for all");
        let arguments = layout.arguments_end as usize - 24..layout.arguments_end as usize;
        for (place, value) in block.bytes()[arguments].chunks_exact_mut(8).zip([from, to, 1]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
    Ok(batch)
}

/// Runs some batches on an engine and, in the order that it is equivalent to, on the serial one: outcomes, results and
/// digests must be equal. The inner error is the first difference.
fn equivalent(kind: EngineKind, seed: u64) -> Result<Result<(), String>, Failure> {
    let (mut engine, mut oracle) = (prepare(kind)?, prepare(EngineKind::SERIAL)?);
    let mut random = Random(seed);
    for number in 0..REPLAYED.1 {
        let batch = batch(&*engine, &mut random, REPLAYED.0)?;
        engine.submit(batch).map_err(|refused| refused.error)?;
        let completed = engine.complete()?.expect("a batch was submitted");
        if let Err(difference) = replay(&mut *oracle, &completed.batch, number, engine.serial_order()) {
            return Ok(Err(difference.to_string()));
        }
    }
    Ok(compare_digests(&*engine, &*oracle).map(drop).map_err(|difference| difference.to_string()))
}

/// Runs the same batches again and again, two under way, and counts the money afterwards.
fn measure(kind: EngineKind, seed: u64) -> Result<Run, Failure> {
    let mut engine = prepare(kind)?;
    let mut random = Random(seed);
    let mut batches = (0..BATCHES).map(|_| batch(&*engine, &mut random, CALLS)).collect::<Result<Vec<_>, _>>()?;
    engine.start()?;
    let (begin, mut calls, mut refused) = (Instant::now(), 0, 0);
    while begin.elapsed() < MEASURED || engine.in_flight() > 0 {
        while engine.in_flight() < 2 && begin.elapsed() < MEASURED {
            engine.submit(batches.pop().expect("more batches than are in flight")).map_err(|refused| refused.error)?;
        }
        let Some(completed) = engine.complete()? else { break };
        calls += completed.batch.len();
        refused += completed.batch.blocks().filter(|block| block.status() == Some(Status::Failed)).count();
        batches.push(completed.batch);
    }
    let rate = calls as f64 / begin.elapsed().as_secs_f64();
    let mut money = 0;
    engine.export(&mut |_, image| money += image[8..16].try_into().map_or(0, i64::from_le_bytes))?;
    let expected = ACCOUNTS as i64 * BALANCE;
    let wrong = match (money == expected, refused) {
        (true, 0) => None,
        (true, refused) => Some(format!("{refused} transfers failed")),
        (false, _) => Some(format!("{money} units of money, {expected} at first")),
    };
    Ok(Run { rate, wrong })
}
