//! The transactions in SQL are those in assembly: on one engine of batch order the same calls end the same, with the
//! same results, and leave the same data.

use lockwork_engine::{Engine, EngineKind, Options, create};
use lockwork_memory::Pages;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Batch, Status};
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Mix, Tpcc, TpccConfig};
use lockwork_workload::{Source, Workload};

fn prepared(kind: EngineKind, workload: &mut dyn Workload) -> Box<dyn Engine> {
    let options = Options { threads: 1, pages: Pages::Plain, ..Options::default() };
    let mut engine = create(kind, options.clone()).unwrap();
    let schemas = workload.schemas();
    let mut image = Vec::new();
    for (table, schema) in schemas.iter().enumerate() {
        engine.create_table(schema.clone(), workload.row_count(table) as usize).unwrap();
        for row in 0..workload.row_count(table) {
            workload.row_image(table, row, &mut image);
            engine.load(schema.name(), &image).unwrap();
        }
    }
    for (name, source) in workload.sources() {
        let assembled = assemble(&source, schemas.as_slice()).unwrap_or_else(|error| panic!("{name}: {error}"));
        engine.register(assembled.procedure).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut lookup = |name: &str| {
        let id = engine.procedure_id(name)?;
        Some((id, engine.procedure(id)?.verified.procedure().clone()))
    };
    workload.bind(&mut lookup).unwrap();
    engine
}

/// Runs batches of both and compares them block by block; returns how many transactions committed, and aborted.
fn same(kind: EngineKind, pair: [&mut dyn Workload; 2], batches: usize, calls: usize) -> [u64; 2] {
    let [assembly, sql] = pair;
    let mut engines = [prepared(kind, assembly), prepared(kind, sql)];
    let mut ends = [0; 2];
    for _ in 0..batches {
        let bytes = assembly.block_bytes().max(sql.block_bytes());
        let mut done = Vec::new();
        for (engine, workload) in engines.iter_mut().zip([&mut *assembly, &mut *sql]) {
            let mut batch = Batch::new(bytes, calls).unwrap();
            assert_eq!(workload.fill(&mut batch, calls), Ok(calls));
            engine.submit(batch).unwrap_or_else(|refused| panic!("{}", refused.error));
            let batch = engine.complete().unwrap().unwrap().batch;
            workload.observe(&batch);
            workload.check_results(&batch).unwrap();
            done.push(batch);
        }
        for at in 0..calls {
            let (a, b) = (done[0].block(at), done[1].block(at));
            let procedure = engines[0].procedure(a.procedure()).unwrap();
            let (name, layout) = (&procedure.verified.procedure().name, procedure.verified.procedure().layout());
            assert_eq!((a.status(), a.abort_code()), (b.status(), b.abort_code()), "block {at}, {name}");
            let end = if a.status() == Some(Status::Committed) { layout.results_end } else { layout.arguments_end };
            let range = 32..end as usize;
            assert_eq!(a.bytes()[range.clone()], b.bytes()[range], "block {at}, {name}");
            ends[usize::from(a.status() != Some(Status::Committed))] += 1;
        }
    }
    let digests = engines.each_ref().map(|engine| engine.digest().unwrap());
    assert_eq!(digests[0], digests[1]);
    for (engine, workload) in engines.iter().zip([assembly, sql]) {
        workload.check(&mut |each| engine.export(each).unwrap()).unwrap();
    }
    ends
}

const KINDS: [EngineKind; 2] = [EngineKind::SERIAL, EngineKind::DETERMINISTIC];

#[test]
fn smallbank_in_sql_does_what_its_assembly_does() {
    for seed in 1..=3 {
        let config = SmallbankConfig { accounts: 40, balance: 20_000, seed, ..SmallbankConfig::default() };
        let make = |source| Smallbank::new(SmallbankConfig { source, ..config.clone() }).unwrap();
        for kind in KINDS {
            let [committed, aborted] = same(kind, [&mut make(Source::Assembly), &mut make(Source::Sql)], 3, 3000);
            assert!(committed > 6000 && aborted > 10, "seed {seed}: {committed} committed, {aborted} aborted");
        }
    }
}

#[test]
fn tatp_in_sql_does_what_its_assembly_does() {
    for seed in 1..=3 {
        let make = |source| Tatp::new(TatpConfig { subscribers: 200, seed, source }).unwrap();
        for kind in KINDS {
            let [committed, aborted] = same(kind, [&mut make(Source::Assembly), &mut make(Source::Sql)], 3, 3000);
            assert!(committed > 5000 && aborted > 1000, "seed {seed}: {committed} committed, {aborted} aborted");
        }
    }
}

#[test]
fn tpcc_in_sql_does_what_its_assembly_does() {
    for mix in [Mix::Standard, Mix::NewOrderPayment] {
        for seed in 1..=3 {
            let whole = if mix == Mix::Standard { TpccConfig::standard(2) } else { TpccConfig::new_order_payment(2) };
            let small = TpccConfig { districts: 3, customers: 60, items: 200, rollback: 0.05, seed, ..whole };
            let make = |source| Tpcc::new(TpccConfig { source, ..small.clone() }).unwrap();
            for kind in KINDS {
                let [committed, aborted] = same(kind, [&mut make(Source::Assembly), &mut make(Source::Sql)], 3, 500);
                assert!(committed > 1000 && aborted > 10, "seed {seed}: {committed} committed, {aborted} aborted");
            }
        }
    }
}
