//! The simulated processor against `serial`: every mix, every mode, whatever memory does.
//!
//! Needs Verilator and a C++ compiler (`scripts/rtl-tools`).

use lockwork_conformance::engines::{MIXES, Random, check, check_replaced, fill, prepared};
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineError, EngineKind, Interleave, Options, create};
use lockwork_fpga::card::Card;
use lockwork_fpga::configurations::Configuration;
use lockwork_fpga::engine::{FpgaEngine, settings};
use lockwork_fpga::memory::Behaviour;
use lockwork_fpga::simulated::{SimulatedCard, Simulation};
use lockwork_procedure::block::abort;

fn simulation(name: &str, workers: usize, behaviour: Behaviour) -> Simulation {
    Simulation {
        behaviour,
        assertions: true,
        memory_bytes: 64 << 20,
        sources: std::env::var_os(lockwork_fpga::create::RTL).map(Into::into),
        ..Simulation::new(Configuration::named(name).unwrap().with_workers(workers).unwrap())
    }
}

fn engine(simulation: &Simulation, interleave: Interleave) -> Result<Box<dyn Engine>, EngineError> {
    let workers = simulation.configuration.number("workers").unwrap() as usize;
    let options = Options { threads: workers, interleave, ..Options::default() };
    let card = SimulatedCard::new(simulation)?;
    Ok(Box::new(FpgaEngine::new(Box::new(card), options.clone(), settings(&options))?))
}

const MODES: [Interleave; 3] = [Interleave::None, Interleave::Batch, Interleave::Dynamic];

/// Mixes that the processor can run, with their numbers: those that scan need a skiplist.
fn mixes() -> Vec<(usize, &'static [&'static str], bool)> {
    let mut card = SimulatedCard::new(&simulation("small", 1, Behaviour::paper())).unwrap();
    let scans = card.read_register(lockwork_fpga::registers::LEVELS).unwrap() > 0;
    let mixes = MIXES.iter().enumerate().map(|(number, (names, ordered))| (number, *names, *ordered));
    mixes.filter(|(_, _, ordered)| scans || !ordered).collect()
}

/// Runs batches of these calls, all submitted before the first is completed, and compares them with serial replay.
fn run(
    what: &str,
    simulation: &Simulation,
    interleave: Interleave,
    (names, ordered): (&[&str], bool),
    seed: u64,
    sizes: &[usize],
) {
    let what = format!("{what}, {interleave:?}, {names:?}, seed {seed}");
    let mut engine = prepared(&|| engine(simulation, interleave), ordered);
    let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), ordered);
    let mut random = Random(seed);
    for &size in sizes {
        let batch = fill(&*engine, &mut random, names, size);
        engine.submit(batch).unwrap_or_else(|refused| panic!("{what}: {refused}"));
    }
    let mut cycles = 0;
    for (number, &size) in sizes.iter().enumerate() {
        let completed = engine.complete().unwrap().unwrap();
        assert_eq!(completed.report.tally.transactions(), size as u64, "{what}");
        if !completed.report.tally.failed.is_empty() {
            while let Ok(Some(_)) = engine.complete() {}
            panic!("{what}, batch {number}: {:?}: {:?}", completed.report.tally, engine.start());
        }
        cycles += completed.report.device.map_or(0, |device| device.cycles);
        let same = replay(&mut *oracle, &completed.batch, number, engine.serial_order());
        same.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{what}: {error}"));
    println!("{what}: {cycles} cycles for {} transactions", sizes.iter().sum::<usize>());
}

#[test]
fn every_mix_ends_as_it_would_one_after_the_other() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for (number, names, ordered) in mixes() {
        for (mode, interleave) in MODES.into_iter().enumerate() {
            let workers = [1, 2, 4][(number + mode) % 3];
            let simulation = simulation("small", workers, Behaviour::paper());
            run(
                &format!("{workers} workers"),
                &simulation,
                interleave,
                (names, ordered),
                number as u64,
                &[1, 3, 70, 250],
            );
        }
    }
}

#[test]
fn it_passes_what_every_engine_passes() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let (_, names, ordered) = mixes().pop().unwrap();
    let simulation = Simulation { assertions: false, ..simulation("small", 2, Behaviour::paper()) };
    check("fpga", &|| engine(&simulation, Interleave::Dynamic), names, ordered, 11);
}

#[test]
fn one_batch_of_reads_and_writes() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let simulation = simulation("small", 1, Behaviour::paper());
    let make = || engine(&simulation, Interleave::None);
    let mut engine = prepared(&make, false);
    let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), false);
    let mut random = Random(3);
    for (number, name) in
        ["look", "deposit", "transfer", "open", "close", "swap", "sweep", "paint", "hasty", "follow", "dab"]
            .into_iter()
            .enumerate()
    {
        let batch = fill(&*engine, &mut random, &[name], 20);
        engine.submit(batch).unwrap();
        let completed = engine.complete().unwrap().unwrap();
        println!("{name}: {:?} {:?}", completed.report.tally, completed.report.device.map(|device| device.cycles));
        replay(&mut *oracle, &completed.batch, number, engine.serial_order()).unwrap();
        compare_digests(&*engine, &*oracle).unwrap();
    }
}

#[test]
fn results_do_not_depend_on_what_memory_does() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = numbers("LOCKWORK_SEED", &[1])[0];
    println!("LOCKWORK_SEED={seed}");
    for round in 0..6 {
        let seed = seed.wrapping_mul(1000).wrapping_add(round);
        let mut random = Random(seed);
        let mixes = mixes();
        let (_, names, ordered) = mixes[random.below(mixes.len() as u64) as usize];
        let workers = 1 << random.below(3);
        let interleave = MODES[random.below(3) as usize];
        let simulation = Simulation { seed, ..simulation("small", workers, Behaviour::random(seed)) };
        run(
            &format!("{workers} workers, {:?}", simulation.behaviour),
            &simulation,
            interleave,
            (names, ordered),
            seed,
            &[150, 1, 150],
        );
    }
}

#[test]
fn whatever_request_memory_refuses_every_block_ends_and_others_are_not_held_up() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = numbers("LOCKWORK_SEED", &[1])[0];
    println!("LOCKWORK_SEED={seed}");
    let (names, ordered) = MIXES[MIXES.len() - 1];
    let mut random = Random(seed);
    let (mut alone, mut lost) = (0, 0);
    for round in 0..12 {
        let bad = 1 + random.below(3000);
        let interleave = MODES[round % 3];
        let behaviour = Behaviour { bad_request: Some(bad), ..Behaviour::paper() };
        let mut engine = prepared(&|| engine(&simulation("small", 1, behaviour.clone()), interleave), ordered);
        let batch = fill(&*engine, &mut random, names, 60);
        engine.submit(batch).unwrap();
        let tally = engine.complete().unwrap().unwrap().report.tally;
        let what = format!("{interleave:?}, request {bad}: {tally:?}, {:?}", engine.start());
        assert_eq!(tally.transactions(), 60, "{what}");
        if tally.failed.contains_key(&abort::DEVICE_LOST) {
            // Nobody knows what a ring said that could not be read, or how a block ended that could not be written.
            let why = ["memory refused a ring", "without an outcome"];
            assert!(why.iter().any(|why| what.contains(why)) && !what.contains("watchdog"), "{what}");
            lost += 1;
        } else {
            let failed: u64 =
                tally.failed.iter().map(|(&code, &count)| count * u64::from(code == abort::MEMORY_ERROR)).sum();
            assert!(failed <= 1 && failed == tally.failed.values().sum::<u64>(), "{what}");
            alone += failed;
        }
    }
    println!("{alone} transactions failed alone, {lost} cards were lost");
    assert!(alone > 4, "{alone}");
}

#[test]
fn a_scan_and_those_who_write_its_rows_do_not_hinder_each_other_for_ever() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let simulation = Simulation { seed: 3, ..simulation("small", 1, Behaviour::paper()) };
    run("1 worker", &simulation, Interleave::Dynamic, MIXES[MIXES.len() - 1], 3, &[1, 3, 70, 250]);
}

/// Numbers of a variable, or these.
fn numbers(name: &str, otherwise: &[u64]) -> Vec<u64> {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{name}: '{text}' is no number"));
    std::env::var(name).map_or(otherwise.to_vec(), |text| text.split(',').map(number).collect())
}

/// What to run is said by variables, each some numbers with commas between: `WORKERS`, `MIXES`, `MODES` (0 to 2),
/// `SIZES` of batches, `LOCKWORK_SEED` and how many `SEEDS` from there; `RANDOM=1`: memory does anything.
#[test]
#[ignore = "as long as one likes"]
fn every_mix_in_every_mode_with_many_seeds() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let all: Vec<u64> = (0..MIXES.len() as u64).collect();
    let (first, seeds) = (numbers("LOCKWORK_SEED", &[1])[0], numbers("SEEDS", &[1])[0]);
    let sizes: Vec<usize> = numbers("SIZES", &[1, 3, 70, 250]).into_iter().map(|size| size as usize).collect();
    let anything = numbers("RANDOM", &[0]) != [0];
    let mut failures = Vec::new();
    for workers in numbers("WORKERS", &[1, 2, 4]) {
        for mix in numbers("MIXES", &all) {
            for mode in numbers("MODES", &[0, 1, 2]) {
                for seed in first..first + seeds {
                    let behaviour = if anything { Behaviour::random(seed) } else { Behaviour::paper() };
                    let simulation = Simulation { seed, ..simulation("small", workers as usize, behaviour) };
                    let what = format!("{workers} workers, mix {mix}, mode {mode}");
                    let ended = std::panic::catch_unwind(|| {
                        run(&what, &simulation, MODES[mode as usize], MIXES[mix as usize], seed, &sizes);
                    });
                    if ended.is_err() {
                        failures.push(format!("{what}, seed {seed}"));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn a_procedure_takes_the_place_of_another_one() {
    let simulation = simulation("small", 2, Behaviour::paper());
    check_replaced("fpga", &|| engine(&simulation, Interleave::Dynamic));
}
