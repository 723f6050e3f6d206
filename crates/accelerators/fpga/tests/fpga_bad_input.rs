//! Bad input through driver and machine: each is told by name, and the machine works afterwards.
//!
//! Needs Verilator and a C++ compiler (`scripts/rtl-tools`).

#[path = "fpga_bad_input/machine.rs"]
mod machine;
#[path = "fpga_bad_input/memory_errors.rs"]
mod memory_errors;
#[path = "fpga_bad_input/states.rs"]
mod states;

use lockwork_conformance::engines::{Random, accounts, fill, prepared};
use lockwork_engine::{Engine, EngineKind, Options, create, replay};
use lockwork_fpga::driver::Settings;
use lockwork_fpga::memory::{Behaviour, NEVER};
use lockwork_fpga::registers as at;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Batch, abort};
use lockwork_procedure::schema::{ColumnType, TableSchema};
use machine::{Shared, works};

/// A procedure over the accounts.
fn procedure(source: &str) -> lockwork_procedure::program::Procedure {
    assemble(source, [accounts(false)].as_slice()).unwrap().procedure
}

#[test]
fn a_procedure_larger_than_the_catalogue_is_refused_and_a_shorter_one_taken() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let mut engine = prepared(&|| Ok(card.engine(Settings::default())), false);
    let additions = "add r2, r2, 1\n".repeat(600);
    let source = format!(
        "procedure long\ntable accounts\nparam id: i64\nresult sum: i64\nmov r2, 0\n{additions}store r2, [sum]\ncommit"
    );
    let error = engine.register(procedure(&source)).unwrap_err().to_string();
    assert!(error.contains("procedure 'long' does not fit") && error.contains("room for 512"), "{error}");
    assert!(error.contains("instructions of all procedures are needed"), "{error}");
    assert_eq!(engine.procedure_id("long"), None);
    let short = source.replacen(&"add r2, r2, 1\n".repeat(500), "", 1);
    let id = engine.register(procedure(&short)).unwrap();
    let mut batch = Batch::new(64, 3).unwrap();
    (0..3).for_each(|_| _ = batch.push(id).unwrap());
    engine.submit(batch).unwrap();
    let batch = engine.complete().unwrap().unwrap().batch;
    assert!(batch.blocks().all(|block| block.bytes()[40..48] == 100_i64.to_le_bytes()));
    works(&mut *engine);
}

#[test]
fn transactions_that_want_more_registers_than_are_free_wait_and_those_that_want_too_many_fail() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let mut engine = prepared(&|| Ok(card.engine(Settings::default())), false);
    let code: String = (1..200).map(|register| format!("add r{register}, r{}, {register}\n", register - 1)).collect();
    let source = format!(
        "procedure wide\ntable accounts\nparam id: i64\nresult sum: i64\nmov r1, 0\n{code}store r199, [sum]\ncommit"
    );
    let source = source.replace("add r1, r0, 1\n", "mov r1, 1\n");
    let id = engine.register(procedure(&source)).unwrap();
    let run = |engine: &mut dyn Engine| {
        let mut batch = Batch::new(64, 40).unwrap();
        (0..40).for_each(|_| _ = batch.push(id).unwrap());
        engine.submit(batch).unwrap();
        engine.complete().unwrap().unwrap()
    };
    // Two windows of 200 do not fit into 256 registers: one after the other.
    let sum = (1..200_i64).sum::<i64>();
    assert!(run(&mut *engine).batch.blocks().all(|block| block.bytes()[40..48] == sum.to_le_bytes()));
    // No card has 300 registers: this is not what the driver would write.
    let window = 0x8000 + 8 * id + 1;
    card.configure(window, 300);
    let tally = run(&mut *engine).report.tally;
    assert_eq!(tally.failed.get(&abort::UNKNOWN_PROCEDURE), Some(&40), "{tally:?}");
    card.configure(window, 200);
    assert_eq!(run(&mut *engine).report.tally.committed, 40);
    works(&mut *engine);
}

#[test]
fn more_blocks_than_a_ring_holds_wait_and_a_doorbell_beyond_it_is_refused() {
    let Some(card) = Shared::new(Behaviour { latency: 2, ..Behaviour::paper() }) else { return };
    let mut engine = prepared(&|| Ok(card.engine(Settings::default())), false);
    let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), false);
    let batch = fill(&*engine, &mut Random(5), &["look", "deposit"], 5_000);
    engine.submit(batch).unwrap();
    let completed = engine.complete().unwrap().unwrap();
    assert_eq!(completed.report.tally.transactions(), 5_000);
    assert!(completed.report.tally.failed.is_empty(), "{:?}", completed.report.tally);
    replay::replay(&mut *oracle, &completed.batch, 0, engine.serial_order()).unwrap();
    replay::compare_digests(&*engine, &*oracle).unwrap();
    let doorbell = at::WORKER + at::SUBMIT_HEAD;
    let rung = card.read(doorbell);
    let beyond = (rung + (1 << card.read(at::WORKER + at::SUBMIT_SIZE)) + 1) & 0xFFFF;
    card.write(doorbell, beyond);
    assert_eq!((card.read(at::ERROR), card.read(at::REFUSED)), (at::ERROR_DOORBELL, doorbell));
    assert_eq!(card.read(doorbell), rung, "a doorbell that was refused changes nothing");
    card.write(at::ERROR, at::ERROR_DOORBELL);
    works(&mut *engine);
}

#[test]
fn a_key_longer_than_supported_is_refused_by_name() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let mut engine = prepared(&|| Ok(card.engine(Settings::default())), false);
    let columns = [("name", ColumnType::Char(20)), ("v", ColumnType::I64)];
    let long = TableSchema::new("long", &columns, 1, false).unwrap().partition_by_hash("name").unwrap();
    let catalog = [accounts(false), long.clone()];
    engine.create_table(long, 4).unwrap();
    let source = "procedure far\ntable long\nparam name: char(20)\nresult v: i64\nsearch c0, long, [name]\nret r1, c0
         loadr r2, r1[long.v]\nstore r2, [v]\ncommit";
    let far = assemble(source, catalog.as_slice()).unwrap().procedure;
    let error = engine.register(far).unwrap_err().to_string();
    assert!(error.contains("table 'long' has keys of 3 words, and the card takes 2"), "{error}");
    assert_eq!(engine.procedure_id("far"), None);
}

#[test]
fn a_hang_is_told_with_every_stage_and_the_card_works_after_a_reset() {
    for (number, stage) in
        [(4, "context 0 waits for an answer"), (1, "the rings are busy"), (7, "context 0 waits for a load")]
    {
        let Some(card) = Shared::new(Behaviour::paper()) else { return };
        let settings = Settings { watchdog: 16, ..Settings::default() };
        let mut engine = prepared(&|| Ok(card.engine(settings)), false);
        engine.start().unwrap();
        // This request is answered when everybody has given up: the ring's entry, a chain's head, a load of the row.
        card.behave(Behaviour { late_request: Some((number, 60_000)), ..Behaviour::paper() });
        let batch = fill(&*engine, &mut Random(2), &["look"], 1);
        engine.submit(batch).unwrap();
        let tally = engine.complete().unwrap().unwrap().report.tally;
        assert_eq!(tally.failed.get(&abort::DEVICE_LOST), Some(&1), "{tally:?}");
        let text = engine.start().unwrap_err().to_string();
        println!("{text}");
        assert!(text.contains("the watchdog barked (workers 0)") && text.contains("worker 0: "), "{text}");
        assert!(text.contains(stage) && text.contains("memory has not answered everything"), "{text}");
        assert_eq!(card.read(at::STUCK), 1);
        drop(engine);
        works(&mut *prepared(&|| Ok(card.engine(Settings::default())), false));
        assert_eq!((card.read(at::STUCK), card.read(at::ERROR)), (0, 0));
    }
}

#[test]
fn a_memory_that_never_answers_keeps_the_card_from_being_reset_and_the_driver_says_so() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let timeout = std::time::Duration::from_millis(200);
    let settings = Settings { watchdog: 16, timeout, ..Settings::default() };
    let mut engine = prepared(&|| Ok(card.engine(settings)), false);
    engine.start().unwrap();
    card.behave(Behaviour { late_request: Some((4, NEVER)), ..Behaviour::paper() });
    let batch = fill(&*engine, &mut Random(2), &["look"], 1);
    engine.submit(batch).unwrap();
    engine.complete().unwrap().unwrap();
    let error = card.try_engine(settings).err().unwrap().to_string();
    assert!(error.contains("it does not stop after a reset; it is resetting"), "{error}");
    assert!(error.contains("memory has not answered everything"), "{error}");
}
