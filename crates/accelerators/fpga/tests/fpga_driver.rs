//! Layout, catalogue and driver against a transaction processor in software.

mod software;

use lockwork_conformance::engines::{MIXES, Random, check, check_prepared, fill, prepared};
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineError, EngineKind, Options, SerialOrder, create};
use lockwork_fpga::engine::{FpgaEngine, settings};
use lockwork_procedure::block::abort;
use lockwork_procedure::schema::{Catalog, TableSchema};
use software::{Faults, SoftwareCard};

fn options(workers: usize) -> Options {
    Options { threads: workers, ..Options::default() }
}

fn on(card: SoftwareCard) -> Result<Box<dyn Engine>, EngineError> {
    let options = options(card.capabilities.workers);
    Ok(Box::new(FpgaEngine::new(Box::new(card), options.clone(), settings(&options))?))
}

#[test]
fn every_mix_ends_as_it_would_one_after_the_other() {
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        for workers in [1, 4] {
            let make = || on(SoftwareCard::new(workers, Faults::default()));
            check(&format!("fpga on {workers} workers"), &make, names, *ordered, number as u64);
        }
    }
}

#[test]
fn times_that_run_low_begin_another_epoch() {
    let card = SoftwareCard::new(2, Faults { times_after: 97, ..Faults::default() });
    let log = card.log.clone();
    let (names, ordered) = MIXES[MIXES.len() - 1];
    let cell = std::cell::RefCell::new(Some(card));
    let make = || on(cell.borrow_mut().take().unwrap());
    check("fpga with few times", &make, names, ordered, 5);
    assert!(log.lock().unwrap().clears > 30, "{log:?}");
}

#[test]
fn blocks_that_met_too_many_conflicts_come_again_as_often_as_asked() {
    let (names, ordered) = MIXES[4];
    let faults = || Faults { fail_every: 7, fail_code: abort::TOO_MANY_RETRIES, ..Faults::default() };
    let make = || on(SoftwareCard::new(1, faults()));
    check("fpga with conflicts", &make, names, ordered, 6);
    let options = Options { max_retries: 0, ..options(1) };
    let card = SoftwareCard::new(1, faults());
    let mut engine: Box<dyn Engine> = prepared(
        &|| Ok(Box::new(FpgaEngine::new(Box::new(card_of(&card)), options.clone(), settings(&options))?)),
        false,
    );
    let batch = fill(&*engine, &mut Random(1), &["look"], 70);
    engine.submit(batch).unwrap();
    let completed = engine.complete().unwrap().unwrap();
    assert_eq!(completed.report.tally.failed.get(&abort::TOO_MANY_RETRIES), Some(&10));
}

fn card_of(card: &SoftwareCard) -> SoftwareCard {
    SoftwareCard::new(card.capabilities.workers, card.faults.clone())
}

#[test]
fn tables_grow_as_inserts_need_it_and_begin_anew_when_memory_is_full() {
    for memory in [64 << 20, 2 << 20] {
        let card = SoftwareCard::with_memory(2, Faults::default(), memory);
        let cell = std::cell::RefCell::new(Some(card));
        let mut engine = prepared(&|| on(cell.borrow_mut().take().unwrap()), false);
        let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), false);
        let id = engine.procedure_id("open").unwrap();
        for round in 0..12_i64 {
            let mut batch = lockwork_procedure::block::Batch::new(256, 700).unwrap();
            for number in 0..700 {
                let mut block = batch.push(id).unwrap();
                // Half of them are there already.
                let key = 100 + round * 350 + number;
                block.bytes()[32..40].copy_from_slice(&key.to_le_bytes());
                block.bytes()[40..48].copy_from_slice(&round.to_le_bytes());
            }
            engine.submit(batch).unwrap();
            let completed = engine.complete().unwrap().unwrap();
            assert_eq!(completed.report.tally.failed.len(), 0, "{memory} bytes, round {round}: {:?}", completed.report);
            replay(&mut *oracle, &completed.batch, round as usize, SerialOrder::Stamp).unwrap();
        }
        compare_digests(&*engine, &*oracle).unwrap();
    }
}

#[test]
fn a_card_that_hangs_is_told_with_its_stages_and_takes_no_more_work() {
    let card = SoftwareCard::new(2, Faults { hang_after: 120, ..Faults::default() });
    let cell = std::cell::RefCell::new(Some(card));
    let mut engine = prepared(&|| on(cell.borrow_mut().take().unwrap()), false);
    let (mut lost, mut texts) = (0, 0);
    for seed in 0..3 {
        let batch = fill(&*engine, &mut Random(seed), &["deposit"], 100);
        let Err(refused) = engine.submit(batch) else {
            let completed = engine.complete().unwrap().unwrap();
            lost += completed.report.tally.failed.get(&abort::DEVICE_LOST).copied().unwrap_or(0);
            continue;
        };
        let text = refused.to_string();
        assert!(text.contains("the watchdog barked (workers 0)") && text.contains("worker 1: "), "{text}");
        texts += 1;
    }
    assert_eq!((lost, texts), (100, 1), "the second batch is lost, and the third refused");
    let error = engine.digest().unwrap_err().to_string();
    assert!(error.contains("the watchdog barked"), "{error}");
}

#[test]
fn what_is_no_card_or_not_the_wanted_one_is_refused() {
    let error = on(SoftwareCard::new(1, Faults { other_device: true, ..Faults::default() })).err().unwrap().to_string();
    assert!(error.contains("0x00000007") && error.contains("another device"), "{error}");
    let options = options(4);
    let card = Box::new(SoftwareCard::new(2, Faults::default()));
    let error = FpgaEngine::new(card, options.clone(), settings(&options)).err().unwrap().to_string();
    assert!(error.contains("has 2 workers, not 4"), "{error}");
}

struct Tables<'a>(&'a [TableSchema]);

impl Catalog for Tables<'_> {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        self.0.table(name)
    }

    fn table_names(&self) -> Vec<String> {
        self.0.table_names()
    }
}

#[test]
fn what_does_not_fit_is_refused_when_it_is_registered_and_changes_nothing() {
    let refused = |change: &dyn Fn(&mut SoftwareCard), expected: &str| {
        let mut card = SoftwareCard::new(2, Faults::default());
        change(&mut card);
        let mut engine = on(card).unwrap();
        let schema = lockwork_conformance::engines::accounts(true);
        let catalog = [schema.clone()];
        engine.create_table(schema, 4).unwrap();
        let assemble =
            |source: &str| lockwork_procedure::assembly::assemble(source, catalog.as_slice()).unwrap().procedure;
        let tally = assemble(lockwork_conformance::engines::PROCEDURES[10]);
        let error = engine.accepts(&tally, &Tables(&catalog), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(engine.register(tally).unwrap_err().to_string(), error);
        assert_eq!(engine.procedure_id("tally"), None);
    };
    refused(&|card| card.capabilities.instructions = 8, "instructions of all procedures are needed");
    refused(&|card| card.capabilities.registers = 3, "general-purpose registers are needed");
    refused(&|card| card.capabilities.grants = 1, "2 grants in a call are needed");
    refused(&|card| card.capabilities.sources = 0, "1 kinds of scanned columns");
    refused(&|card| card.capabilities.levels = 0, "the card has no skiplist");
}

#[test]
fn transactions_run_where_their_first_row_is() {
    let card = SoftwareCard::new(4, Faults::default());
    let log = card.log.clone();
    let cell = std::cell::RefCell::new(Some(card));
    let engine = prepared(&|| on(cell.borrow_mut().take().unwrap()), false);
    check_prepared("fpga", engine, &["look", "deposit", "open", "close"], false, 9);
    let log = log.lock().unwrap();
    assert_eq!(log.remote, 0, "{log:?}");
    assert!(log.transactions.iter().all(|&transactions| transactions > 500), "{log:?}");
}
