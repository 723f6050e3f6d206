//! The simulated processor against a golden model that follows its order: every decision of admission, every answer,
//! every register, every outcome and every row; and against `serial` in the order of its times.
//!
//! Needs Verilator and a C++ compiler (`scripts/rtl-tools`).

#[path = "golden/follow.rs"]
mod follow;
#[path = "golden/interpret.rs"]
mod interpret;
#[path = "golden/rows.rs"]
mod rows;
#[path = "golden/stepper.rs"]
mod stepper;
#[path = "golden/words.rs"]
mod words;

use follow::{Golden, Seen};
use lockwork_conformance::engines::{MIXES, Random, fill, prepared};
use lockwork_conformance::procedures::{calls, key, procedures, schemas};
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineKind, Interleave, Options, create};
use lockwork_fpga::configurations::Configuration;
use lockwork_fpga::engine::{FpgaEngine, settings};
use lockwork_fpga::memory::Behaviour;
use lockwork_fpga::simulated::{SimulatedCard, Simulation};
use lockwork_fpga::trace::Trace;
use lockwork_procedure::block::{Batch, abort};
use rows::Table;

const MODES: [Interleave; 3] = [Interleave::None, Interleave::Batch, Interleave::Dynamic];

/// Few decision words and few places of everything, so that all of it fills; but keys of every width, and code of many
/// procedures.
fn configuration(workers: usize) -> Configuration {
    let small = Configuration::named("small").unwrap().with_workers(workers).unwrap();
    let wide = small.with("key_words", 4).unwrap().with("code_words", 8192).unwrap();
    wide.with("grants", 256).unwrap()
}

fn seed() -> u64 {
    let seed = std::env::var("LOCKWORK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("LOCKWORK_SEED={seed}");
    seed
}

fn engine(simulation: &Simulation, interleave: Interleave) -> Box<dyn Engine> {
    let workers = simulation.configuration.number("workers").unwrap() as usize;
    let options = Options { threads: workers, interleave, ..Options::default() };
    let card = SimulatedCard::new(simulation).unwrap();
    Box::new(FpgaEngine::new(Box::new(card), options.clone(), settings(&options)).unwrap())
}

/// Runs batches on an engine and compares everything with the golden model and with the oracle.
fn run(
    what: &str,
    engine: &mut dyn Engine,
    oracle: &mut dyn Engine,
    (trace, entries): (&Trace, u64),
    batches: impl Iterator<Item = Batch>,
) -> Seen {
    let all: Vec<_> = (0..).map_while(|id| engine.procedure(id)).collect();
    let procedure = |id: u32| all.get(id as usize).cloned();
    let mut golden = Golden::new(what, Table::all_of(engine), entries, &procedure);
    for (number, batch) in batches.enumerate() {
        engine.submit(batch).unwrap_or_else(|refused| panic!("{what}: {refused}"));
        let completed = engine.complete().unwrap().unwrap();
        let lost = completed.report.tally.failed.contains_key(&abort::DEVICE_LOST);
        assert!(!lost, "{what}: {:?}", engine.start());
        // The mirror is read between batches, and the card keeps the tables.
        golden.follow(&trace.take());
        let same = replay(oracle, &completed.batch, number, engine.serial_order());
        same.unwrap_or_else(|error| panic!("{what}: {error}"));
        Table::check_all(&golden.tables, engine, what);
    }
    compare_digests(engine, oracle).unwrap_or_else(|error| panic!("{what}: {error}"));
    golden.seen
}

fn add(sum: &mut Seen, seen: Seen) {
    sum.committed += seen.committed;
    sum.aborted += seen.aborted;
    sum.failed += seen.failed;
    sum.conflicts += seen.conflicts;
    sum.granted += seen.granted;
    sum.waits += seen.waits;
    sum.late += seen.late;
    sum.rows += seen.rows;
    sum.writes += seen.writes;
    sum.answers += seen.answers;
}

/// Random procedures of one seed, as many as fit, with a few rows in each table.
fn random_procedures(seed: u64, mut engine: Box<dyn Engine>, oracle: &mut dyn Engine) -> (Box<dyn Engine>, usize) {
    let mut rows = Vec::new();
    for (number, schema) in schemas().into_iter().enumerate() {
        let (name, bytes) = (schema.name().to_string(), (schema.row_bytes() - 16) as usize);
        for row in 0..5_u8 {
            let mut image = vec![row.wrapping_mul(37); bytes];
            let key = key(number, row);
            image[..key.len()].copy_from_slice(&key);
            rows.push((name.clone(), image));
        }
        engine.create_table(schema.clone(), 4).unwrap();
        oracle.create_table(schema, 4).unwrap();
    }
    for (name, image) in rows {
        engine.load(&name, &image).unwrap();
        oracle.load(&name, &image).unwrap();
    }
    let mut registered = 0;
    for procedure in procedures(seed * 100..seed * 100 + 20) {
        if engine.register(procedure.clone()).is_ok() {
            oracle.register(procedure).unwrap();
            registered += 1;
        }
    }
    assert!(registered >= 15, "seed {seed}: only {registered} procedures fit");
    (engine, registered)
}

fn random_run(seed: u64, workers: usize, interleave: Interleave, behaviour: Behaviour) -> Seen {
    let what = format!("{workers} workers, {interleave:?}, seed {seed}, {behaviour:?}");
    let trace = Trace::default();
    let simulation = Simulation {
        behaviour,
        assertions: true,
        memory_bytes: 64 << 20,
        seed,
        trace: Some(trace.clone()),
        sources: std::env::var_os(lockwork_fpga::create::RTL).map(Into::into),
        ..Simulation::new(configuration(workers))
    };
    let entries = simulation.configuration.number("entries").unwrap();
    let mut oracle = create(EngineKind::SERIAL, Options::default()).unwrap();
    let (mut engine, count) = random_procedures(seed, engine(&simulation, interleave), &mut *oracle);
    let stride = (0..count as u32).map(|id| engine.procedure(id).unwrap().block_bytes).max().unwrap() as u32;
    let mut random = Random(seed);
    let batches = [60, 1, 150].map(|size| calls(count, size, stride, &mut random));
    let seen = run(&what, &mut *engine, &mut *oracle, (&trace, entries), batches.into_iter());
    println!("{what}: {seen:?}");
    seen
}

#[test]
fn random_procedures_write_the_same_registers_blocks_and_rows_in_serial_mode() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = seed();
    let mut sum = Seen::default();
    for round in 0..4 {
        let seed = seed.wrapping_mul(1000).wrapping_add(round);
        let behaviour = if round == 0 { Behaviour::paper() } else { Behaviour::random(seed) };
        add(&mut sum, random_run(seed, 1, Interleave::None, behaviour));
    }
    println!("{sum:?}");
    assert!(sum.committed > 150 && sum.aborted > 100 && sum.writes > 5_000 && sum.rows > 20, "{sum:?}");
    assert_eq!((sum.failed, sum.conflicts, sum.waits), (0, 0, 0), "{sum:?}");
}

#[test]
fn random_procedures_follow_the_traced_order_in_the_interleaved_modes() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = seed();
    let mut sum = Seen::default();
    for round in 0..8 {
        let seed = seed.wrapping_mul(1000).wrapping_add(100 + round);
        let behaviour = if round < 2 { Behaviour::paper() } else { Behaviour::random(seed) };
        add(&mut sum, random_run(seed, 1 + round as usize % 2, MODES[1 + round as usize / 2 % 2], behaviour));
    }
    println!("{sum:?}");
    assert!(sum.committed > 300 && sum.aborted > 200 && sum.conflicts > 100 && sum.waits > 50, "{sum:?}");
}

#[test]
fn mixes_follow_the_traced_order_in_every_mode() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = seed();
    let mut random = Random(seed);
    let mut sum = Seen::default();
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        let (workers, interleave) = (1 + number % 2, MODES[(number / 2) % 3]);
        let trace = Trace::default();
        let simulation = Simulation {
            behaviour: if number % 4 == 0 { Behaviour::paper() } else { Behaviour::random(seed + number as u64) },
            assertions: true,
            memory_bytes: 64 << 20,
            trace: Some(trace.clone()),
            sources: std::env::var_os(lockwork_fpga::create::RTL).map(Into::into),
            ..Simulation::new(configuration(workers))
        };
        let entries = simulation.configuration.number("entries").unwrap();
        let what = format!("{workers} workers, {interleave:?}, {names:?}, seed {seed}, {:?}", simulation.behaviour);
        let mut subject = prepared(&|| Ok(engine(&simulation, interleave)), *ordered);
        let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), *ordered);
        let batches = [1, 60, 150].map(|size| fill(&*subject, &mut random, names, size));
        let seen = run(&what, &mut *subject, &mut *oracle, (&trace, entries), batches.into_iter());
        println!("{what}: {seen:?}");
        add(&mut sum, seen);
    }
    println!("{sum:?}");
    assert!(sum.committed > 1_000 && sum.conflicts > 40 && sum.waits > 100 && sum.rows > 100, "{sum:?}");
}
