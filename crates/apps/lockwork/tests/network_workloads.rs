//! Every workload, and random procedures, on several worker processes: each call ends as in the engine's serial order
//! replayed one after the other, the databases are the same afterwards, and the workloads' own checks hold.

#[path = "common/network.rs"]
mod network;

use lockwork_conformance::procedures as random_procedures;
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineKind, Options, create};
use lockwork_memory::Pages;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_workload::Workload;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Tpcc, TpccConfig};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::ycsb::{Ycsb, YcsbConfig};
use network::{KINDS, make};

fn options(threads: usize) -> Options {
    Options { threads, pages: Pages::Plain, ..Options::default() }
}

fn prepared(mut engine: Box<dyn Engine>, workload: &mut dyn Workload) -> Box<dyn Engine> {
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

/// Runs it with 1, 2 and 4 processes and compares.
fn check<W: Workload + 'static>(new: impl Fn() -> W) {
    check_sizes(new, &[1, 3, 400, 700, 90]);
}

fn check_sizes<W: Workload + 'static>(new: impl Fn() -> W, sizes: &[usize]) {
    for (kind, threads) in KINDS.iter().copied().flat_map(|kind| [1, 2, 4].map(|threads| (kind, threads))) {
        let (mut workload, mut same) = (new(), new());
        let what = format!("{} on {threads} workers of {kind}", workload.name());
        let mut engine = prepared(make(kind, options(threads)).unwrap(), &mut workload);
        let mut oracle = prepared(create(EngineKind::SERIAL, options(1)).unwrap(), &mut same);
        for &size in sizes {
            let mut batch = Batch::new(workload.block_bytes(), size).unwrap();
            assert_eq!(workload.fill(&mut batch, size), Ok(size));
            engine.submit(batch).unwrap_or_else(|refused| panic!("{what}: {}", refused.error));
        }
        for number in 0..sizes.len() {
            let completed = engine.complete().unwrap().unwrap();
            let same = replay(&mut *oracle, &completed.batch, number, engine.serial_order());
            same.unwrap_or_else(|error| panic!("{what}: {error}"));
            workload.check_results(&completed.batch).unwrap();
            workload.observe(&completed.batch);
        }
        compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{what}: {error}"));
        let checked = workload.check(&mut |each| engine.export(each).unwrap());
        checked.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn ycsb() {
    for letter in ['a', 'b', 'c', 'd', 'e', 'f'] {
        let config = YcsbConfig::hobbes(letter).unwrap();
        check(|| Ycsb::new(YcsbConfig { records: 500, theta: 0.9, ..config.clone() }).unwrap());
    }
}

#[test]
fn transfer() {
    check(|| Transfer::new(TransferConfig { accounts: 100, theta: 0.9, ..Default::default() }).unwrap());
    // Many that wait, and many of one worker that can go on at once.
    for remote in [0.01, 0.3] {
        let config = TransferConfig { accounts: 3000, theta: 0.0, partitions: 2, remote, ..Default::default() };
        check_sizes(|| Transfer::new(config.clone()).unwrap(), &[5000, 5000]);
    }
}

#[test]
fn smallbank() {
    let config = SmallbankConfig { accounts: 200, balance: 20_000, hot: 0.5, hot_accounts: 5, ..Default::default() };
    check(|| Smallbank::new(config.clone()).unwrap());
}

#[test]
fn tatp() {
    check(|| Tatp::new(TatpConfig { subscribers: 60, ..Default::default() }).unwrap());
}

#[test]
fn tpcc() {
    let all = TpccConfig { districts: 3, customers: 40, items: 150, ..TpccConfig::standard(2) };
    check(|| Tpcc::new(all.clone()).unwrap());
    let two = TpccConfig { districts: 2, customers: 20, items: 100, ..TpccConfig::new_order_payment(2) };
    check(|| Tpcc::new(TpccConfig { remote_order: 0.15, rollback: 0.05, ..two.clone() }).unwrap());
}

#[test]
fn random_procedures_mean_the_same() {
    for (number, threads) in [1, 2, 3].into_iter().enumerate() {
        let (first, options) = (number as u64 * 30, Options { threads, ..Options::default() });
        for &kind in KINDS {
            let what = format!("{threads} workers of {kind}");
            random_procedures::check(&what, &|| make(kind, options.clone()), first..first + 30);
        }
    }
}
