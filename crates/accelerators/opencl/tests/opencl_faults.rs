//! What goes wrong on a device is reported, and nothing is acknowledged that may not have happened.
//!
//! Needs an OpenCL device (`make verify` installs PoCL).

use lockwork_conformance::engines::{PROCEDURES, Random, accounts, fill};
use lockwork_engine::create;
use lockwork_engine::{Engine, EngineError, EngineKind, Options, Settings};
use lockwork_opencl::{create_failing, find};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Status;
use lockwork_procedure::block::abort::DEVICE_LOST;
use lockwork_procedure::schema::{ColumnType, TableSchema};

const KINDS: [EngineKind; 2] = [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE];

/// Deposits and inserts into 40 accounts, in three batches that are all submitted before the first is completed.
/// Returns what the engine said of each batch, or the first error; `submitted` counts the batches that it took.
fn run(engine: &mut dyn Engine, submitted: &mut usize) -> Result<Vec<(usize, usize)>, EngineError> {
    engine.create_table(accounts(false), 4)?;
    for source in [PROCEDURES[1], PROCEDURES[6]] {
        engine.register(assemble(source, [accounts(false)].as_slice()).unwrap().procedure)?;
    }
    for id in 0..40_i64 {
        engine.load("accounts", &[&id.to_le_bytes()[..], &[0; 32]].concat())?;
    }
    let mut random = Random(7);
    for size in [5, 300, 90] {
        let batch = fill(engine, &mut random, &["deposit", "open"], size);
        match engine.submit(batch) {
            Ok(()) => *submitted += 1,
            Err(_) if *submitted > 0 => break,
            Err(refused) => return Err(refused.error),
        }
    }
    let mut counts = Vec::new();
    while let Some(completed) = engine.complete()? {
        let lost = |code: u16, status| code == DEVICE_LOST && status == Some(Status::Failed);
        let blocks = completed.batch.blocks();
        counts.push((completed.batch.len(), blocks.filter(|block| lost(block.abort_code(), block.status())).count()));
    }
    assert_eq!(counts.len(), *submitted, "every batch comes back");
    engine.digest()?;
    Ok(counts)
}

#[test]
fn a_device_that_is_lost_at_any_call_loses_whole_batches_and_ends_the_engine() {
    for kind in KINDS {
        let mut call = 0;
        loop {
            call += 1;
            assert!(call < 1_000, "a run has fewer calls");
            let Ok(mut engine) = create_failing(kind, Options::default(), call) else { continue };
            let mut submitted = 0;
            match run(&mut *engine, &mut submitted) {
                Ok(counts) => {
                    assert!(counts.iter().all(|&(_, lost)| lost == 0), "no call failed: {counts:?}");
                    break;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("failed while") || text.contains("takes no more work"), "{text}");
                }
            }
            // An engine that took a batch does nothing any more; one that could not begin has lost nothing.
            match engine.digest() {
                Ok(_) => assert_eq!(submitted, 0, "{kind}, call {call}"),
                Err(refused) => assert!(refused.to_string().contains("takes no more work"), "{kind}: {refused}"),
            }
        }
        assert!(call > 20, "{kind}: {call} calls");
    }
}

#[test]
fn a_batch_is_lost_whole_or_not_at_all() {
    for kind in KINDS {
        let mut seen = 0;
        for call in 1..120 {
            let Ok(mut engine) = create_failing(kind, Options::default(), call) else { continue };
            engine.create_table(accounts(false), 64).unwrap();
            engine.register(assemble(PROCEDURES[6], [accounts(false)].as_slice()).unwrap().procedure).unwrap();
            let mut counts = Vec::new();
            for seed in 0..3 {
                let batch = fill(&*engine, &mut Random(seed), &["open"], 40);
                if engine.submit(batch).is_err() {
                    break;
                }
                let completed = engine.complete().unwrap().unwrap();
                counts.push(completed.batch.blocks().filter(|block| block.abort_code() == DEVICE_LOST).count());
            }
            assert!(counts.iter().all(|&lost| lost == 0 || lost == 40), "{kind}, call {call}: {counts:?}");
            assert!(counts.windows(2).all(|pair| pair[0] == 0), "nothing runs on a lost device: {counts:?}");
            seen += usize::from(counts.contains(&40));
        }
        assert!(seen > 3, "{kind}: {seen} batches were lost");
    }
}

#[test]
fn a_procedure_that_needs_too_much_private_memory_is_refused_with_the_numbers() {
    let mut engine = create(KINDS[0], Options::default()).unwrap();
    engine.create_table(accounts(false), 4).unwrap();
    let source = "procedure wild\ntable accounts\nparam id: i64\nparam other: i64
         mov r1, 0\nagain:\nupdate c0, accounts, [id]\nret r2, c0\nstorer r1, r2[accounts.balance]
         add r1, r1, 1\ncmp r1, 5000\nbl again\nsearch c1, accounts, [other]\nret c1\ncommit";
    let procedure = assemble(source, [accounts(false)].as_slice()).unwrap().procedure;
    let refused = engine.register(procedure).unwrap_err().to_string();
    assert!(refused.contains("'wild' may need") && refused.contains("16384"), "{refused}");
    assert_eq!(engine.procedure_id("wild"), None);
}

#[test]
fn tables_beyond_the_memory_of_the_device_are_refused_with_the_numbers() {
    let mut engine = create(KINDS[0], Options::default()).unwrap();
    engine.create_table(accounts(false), 4).unwrap();
    // Announced, not loaded: the host's memory is touched when rows come.
    let wide = [("id", ColumnType::I64), ("bytes", ColumnType::Bytes(65_000))];
    engine.create_table(TableSchema::new("wide", &wide, 1, false).unwrap(), 140_000).unwrap();
    engine.register(assemble(PROCEDURES[1], [accounts(false)].as_slice()).unwrap().procedure).unwrap();
    let batch = fill(&*engine, &mut Random(1), &["deposit"], 3);
    let refused = engine.submit(batch).unwrap_err();
    assert_eq!(refused.batch.len(), 3, "the batch comes back");
    let text = refused.to_string();
    assert!(text.contains("need") && text.contains("MiB in one buffer") && text.contains("fewer rows"), "{text}");
}

#[test]
fn devices_are_found_by_number_and_by_name() {
    let first = find("0").unwrap();
    assert_eq!(find(&first.name[..4].to_uppercase()).unwrap(), first);
    let missing = find("no such device").unwrap_err();
    assert!(matches!(missing, EngineError::BackEndAbsent(_)));
    assert!(missing.to_string().contains("there are 0 ("), "{missing}");
    let mut settings = Settings::default();
    settings.set("device", "999");
    let options = Options { settings, ..Options::default() };
    assert!(create(KINDS[0], options).err().unwrap().to_string().contains("no OpenCL device is '999'; there are 0 ("));
}
