//! Every workload on every CPU engine: each call ends as in the engine's serial order replayed one after the other, the
//! databases are the same afterwards, and the workload's own checks hold.

mod common;

use common::{prepared, submit};
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineKind, LockPolicy};
use lockwork_procedure::block::Batch;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Tpcc, TpccConfig};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::ycsb::{Ycsb, YcsbConfig};
use lockwork_workload::{Repeat, Workload, WorkloadError};

type Make = fn() -> Box<dyn Workload>;

/// Each small, with many conflicts.
const WORKLOADS: &[(&str, Make)] = &[
    ("smallbank", smallbank),
    ("tatp", tatp),
    ("tpcc", tpcc),
    ("tpcc-np", tpcc_np),
    ("transfer", transfer),
    ("ycsb-e", ycsb),
];

fn smallbank() -> Box<dyn Workload> {
    let config = SmallbankConfig { accounts: 200, balance: 20_000, hot: 0.5, hot_accounts: 5, ..Default::default() };
    Box::new(Smallbank::new(config).unwrap())
}

fn tatp() -> Box<dyn Workload> {
    Box::new(Tatp::new(TatpConfig { subscribers: 60, ..Default::default() }).unwrap())
}

fn tpcc() -> Box<dyn Workload> {
    let config = TpccConfig { districts: 3, customers: 40, items: 150, ..TpccConfig::standard(2) };
    Box::new(Tpcc::new(config).unwrap())
}

fn tpcc_np() -> Box<dyn Workload> {
    let config = TpccConfig { districts: 2, customers: 20, items: 100, ..TpccConfig::new_order_payment(2) };
    Box::new(Tpcc::new(TpccConfig { remote_order: 0.15, rollback: 0.05, ..config }).unwrap())
}

fn transfer() -> Box<dyn Workload> {
    Box::new(Transfer::new(TransferConfig { accounts: 100, theta: 0.9, ..Default::default() }).unwrap())
}

fn ycsb() -> Box<dyn Workload> {
    Box::new(Ycsb::new(YcsbConfig { records: 500, theta: 0.9, ..YcsbConfig::hobbes('e').unwrap() }).unwrap())
}

/// Checks the contents.
fn check(engine: &dyn Engine, workload: &mut dyn Workload) -> Result<String, WorkloadError> {
    workload.check(&mut |each| engine.export(each).unwrap())
}

#[test]
fn every_workload_is_serially_equivalent_on_every_engine() {
    let policies = [LockPolicy::NoWait, LockPolicy::WaitDie, LockPolicy::Ordered];
    for (name, make) in WORKLOADS {
        for &kind in EngineKind::CPU {
            // Policies are those of two-phase alone.
            let policies = if kind == EngineKind::TWO_PHASE { &policies[..] } else { &policies[2..] };
            for &policy in policies {
                let (mut workload, mut same) = (make(), make());
                let mut engine = prepared(kind, policy, &mut *workload);
                let mut oracle = prepared(EngineKind::SERIAL, policy, &mut *same);
                let sizes = [1, 3, 400, 700, 90];
                for &size in &sizes {
                    let mut batch = Batch::new(workload.block_bytes(), size).unwrap();
                    assert_eq!(workload.fill(&mut batch, size), Ok(size));
                    submit(&mut *engine, batch);
                }
                for number in 0..sizes.len() {
                    let completed = engine.complete().unwrap().unwrap();
                    let replayed = replay(&mut *oracle, &completed.batch, number, engine.serial_order());
                    replayed.unwrap_or_else(|error| panic!("{name} on {kind}, {policy:?}: {error}"));
                    workload.check_results(&completed.batch).unwrap();
                    workload.observe(&completed.batch);
                }
                compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{name} on {kind}: {error}"));
                let checked = check(&*engine, &mut *workload);
                checked.unwrap_or_else(|error| panic!("{name} on {kind}, {policy:?}: {error}"));
            }
        }
    }
}

#[test]
fn two_thousand_transactions_pass_all_checks_twice_where_they_can_run_twice() {
    for (name, make) in WORKLOADS {
        let mut workload = make();
        let mut engine = prepared(EngineKind::SERIAL, LockPolicy::Ordered, &mut *workload);
        let mut batch = Batch::new(workload.block_bytes(), 2000).unwrap();
        workload.fill(&mut batch, 2000).unwrap();
        let runs = if workload.repeat() == Repeat::Never { 1 } else { 2 };
        for _ in 0..runs {
            submit(&mut *engine, batch);
            let completed = engine.complete().unwrap().unwrap();
            assert!(completed.report.tally.committed > 1000, "{name}: {:?}", completed.report.tally);
            batch = completed.batch;
            assert!(workload.check_results(&batch).unwrap() > 1000, "{name}");
            workload.observe(&batch);
        }
        let words = check(&*engine, &mut *workload).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!words.is_empty());
    }
}
