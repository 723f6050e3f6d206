//! What the tests of engines share: an engine beside the oracle, calls of both, and the comparison.
#![allow(dead_code, reason = "every test takes what it needs")]

use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineKind, Interleave, Options, Tally, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::schema::{ColumnType, TableSchema};

/// An engine, and the serial one that replays what it did.
pub(crate) type Pair = [Box<dyn Engine>; 2];

pub(crate) fn schema(columns: &[(&str, ColumnType)], ordered: bool) -> TableSchema {
    TableSchema::new("t", columns, 1, ordered).unwrap().partition_by_hash("id").unwrap()
}

pub(crate) fn simple() -> TableSchema {
    schema(&[("id", ColumnType::I64), ("value", ColumnType::I64)], true)
}

/// Engines with these tables and rows, and these procedures: one of `kind`, and the oracle.
pub(crate) fn engines_with(
    kind: EngineKind,
    options: Options,
    tables: &[(TableSchema, Vec<Vec<u8>>)],
    sources: &[&str],
) -> Pair {
    let catalog: Vec<TableSchema> = tables.iter().map(|table| table.0.clone()).collect();
    [kind, EngineKind::SERIAL].map(|kind| {
        let mut engine = create(kind, options.clone()).unwrap();
        for (schema, images) in tables {
            engine.create_table(schema.clone(), 4).unwrap();
            images.iter().for_each(|image| engine.load(schema.name(), image).unwrap());
        }
        for source in sources {
            let assembled = assemble(source, catalog.as_slice()).unwrap_or_else(|error| panic!("{error}\n{source}"));
            engine.register(assembled.procedure).unwrap();
        }
        engine
    })
}

/// As [`engines_with`], with one table.
pub(crate) fn engines(
    kind: EngineKind,
    options: Options,
    schema: &TableSchema,
    images: &[Vec<u8>],
    sources: &[&str],
) -> Pair {
    engines_with(kind, options, &[(schema.clone(), images.to_vec())], sources)
}

pub(crate) fn pairs(keys: std::ops::Range<i64>) -> Vec<Vec<u8>> {
    keys.map(|key| [key.to_le_bytes(), (key * 10).to_le_bytes()].concat()).collect()
}

/// Calls with these arguments, as bytes behind the header.
pub(crate) fn calls(engine: &dyn Engine, name: &str, arguments: impl Iterator<Item = Vec<u8>>) -> Batch {
    let id = engine.procedure_id(name).unwrap();
    let arguments: Vec<Vec<u8>> = arguments.collect();
    let mut batch = Batch::new(engine.procedure(id).unwrap().verified.block_stride(), arguments.len()).unwrap();
    for bytes in arguments {
        batch.push(id).unwrap().bytes()[32..32 + bytes.len()].copy_from_slice(&bytes);
    }
    batch
}

/// Runs a batch, compares it with its replay, and returns it with what became of it.
pub(crate) fn run(engines: &mut Pair, batch: Batch) -> (Batch, Tally) {
    let [engine, oracle] = engines;
    engine.submit(batch).unwrap();
    let completed = engine.complete().unwrap().unwrap();
    replay(&mut **oracle, &completed.batch, 0, engine.serial_order()).unwrap();
    compare_digests(&**engine, &**oracle).unwrap();
    (completed.batch, completed.report.tally)
}

/// No interleaving, groups, and the narrowest and a wide window.
pub(crate) fn every_way(threads: usize) -> impl Iterator<Item = Options> {
    let wide = Options { threads, window: 64, ..Options::default() };
    let of = |interleave| Options { interleave, ..wide.clone() };
    [of(Interleave::None), of(Interleave::Batch), Options { window: 1, ..wide.clone() }, wide.clone()].into_iter()
}
