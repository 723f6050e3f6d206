//! Tables grow beyond what was announced, by what batches insert and not by what their loops could insert.
//!
//! Needs an OpenCL device (`make verify` installs PoCL).

use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineError, EngineKind, Options, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::StorageError;

/// Inserts `count` of at most 300 rows, then removes the first of them.
const FILL: &str = "procedure fill\ntable rows\nparam base: i64\nparam count: i64\nscratch key: i64
     load r1, [base]\nload r2, [count]\nmov r3, 0\nagain:\ncmp r3, r2\nbge skip
     add r4, r1, r3\nstore r4, [key]\ninsert c0, rows, [key]\nret r5, c0\nstorer r3, r5[rows.value]
     skip:\nadd r3, r3, 1\ncmp r3, 300\nbl again
     store r1, [key]\nremove c1, rows, [key]\nret c1\ncommit";

fn prepared(mut engine: Box<dyn Engine>, ordered: bool) -> Box<dyn Engine> {
    let columns = [("key", ColumnType::I64), ("value", ColumnType::I64)];
    let schema = TableSchema::new("rows", &columns, 1, ordered).unwrap();
    engine.create_table(schema.clone(), 10).unwrap();
    engine.register(assemble(FILL, [schema].as_slice()).unwrap().procedure).unwrap();
    engine
}

fn calls(number: i64, blocks: i64) -> Batch {
    let mut batch = Batch::new(64, blocks as usize).unwrap();
    for at in 0..blocks {
        let mut block = batch.push(0).unwrap();
        let (base, count) = ((number * blocks + at) * 1_000, 1 + (at * 7 + number) % 9);
        block.bytes()[32..40].copy_from_slice(&base.to_le_bytes());
        block.bytes()[40..48].copy_from_slice(&count.to_le_bytes());
    }
    batch
}

#[test]
fn tables_grow_while_batches_insert() {
    for kind in [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE] {
        for ordered in [false, true] {
            let mut engine = prepared(lockwork_engine::create(kind, Options::default()).unwrap(), ordered);
            let mut oracle = prepared(create(EngineKind::SERIAL, Options::default()).unwrap(), ordered);
            for number in 0..12 {
                engine.submit(calls(number, 50)).unwrap();
            }
            for number in 0..12 {
                let completed = engine.complete().unwrap().unwrap();
                assert_eq!(completed.report.tally.committed, 50, "{kind}, batch {number}");
                let same = replay(&mut *oracle, &completed.batch, number, engine.serial_order());
                same.unwrap_or_else(|error| panic!("{kind}, ordered {ordered}: {error}"));
            }
            compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{kind}, ordered {ordered}: {error}"));
        }
    }
}

#[test]
fn tables_and_procedures_come_and_rows_are_loaded_between_batches() {
    for kind in [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE] {
        let make = |engine| prepared(engine, false);
        let mut engine = make(lockwork_engine::create(kind, Options::default()).unwrap());
        let mut oracle = make(create(EngineKind::SERIAL, Options::default()).unwrap());
        for round in 0..3_i64 {
            engine.submit(calls(round, 20)).unwrap();
            let completed = engine.complete().unwrap().unwrap();
            replay(&mut *oracle, &completed.batch, round as usize, engine.serial_order()).unwrap();
            for engine in [&mut engine, &mut oracle] {
                let row = [(-1 - round).to_le_bytes(), round.to_le_bytes()].concat();
                engine.load("rows", &row).unwrap();
                let twice = engine.load("rows", &row).unwrap_err();
                assert!(matches!(twice, EngineError::Storage(StorageError::Duplicate { .. })), "{twice:?}");
                let name = format!("more{round}");
                let schema = TableSchema::new(&name, &[("key", ColumnType::Char(9))], 1, true).unwrap();
                engine.create_table(schema, 1).unwrap();
                engine.load(&name, b"some text").unwrap();
                let text = format!(
                    "procedure p{round}\ntable {name} (key: char(9) key) ordered\nparam key: char(9)
                     search c0, {name}, [key]\nret c0\ncommit"
                );
                engine.register(assemble(&text, &[] as &[TableSchema]).unwrap().procedure).unwrap();
            }
            compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{kind}, round {round}: {error}"));
        }
    }
}

#[test]
fn an_engine_without_tables_and_an_empty_batch_are_nothing_special() {
    for kind in [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE] {
        let mut engine = lockwork_engine::create(kind, Options::default()).unwrap();
        engine.submit(Batch::new(64, 0).unwrap()).unwrap();
        assert_eq!(engine.complete().unwrap().unwrap().batch.len(), 0);
        let mut batch = Batch::new(64, 3).unwrap();
        for id in [0, 7, u32::MAX] {
            batch.push(id).unwrap();
        }
        engine.submit(batch).unwrap();
        let tally = engine.complete().unwrap().unwrap().report.tally;
        assert_eq!(tally.failed.values().sum::<u64>(), 3, "{kind}: procedures that nobody registered");
        assert!(engine.complete().unwrap().is_none());
        assert_eq!(engine.digest().unwrap(), create(EngineKind::SERIAL, Options::default()).unwrap().digest().unwrap());
    }
}
