//! TATP's transactions succeed as often as the rules of the specification make them.

mod common;

use common::{prepared, submit};
use lockwork_engine::{EngineKind, LockPolicy};
use lockwork_procedure::block::{Batch, Status};
use lockwork_workload::Workload;
use lockwork_workload::tatp::{Tatp, TatpConfig};

#[test]
fn the_specified_share_of_each_transaction_commits() {
    let mut tatp = Tatp::new(TatpConfig { subscribers: 20_000, ..TatpConfig::default() }).unwrap();
    let mut engine = prepared(EngineKind::SERIAL, LockPolicy::Ordered, &mut tatp);
    let mut batch = Batch::new(tatp.block_bytes(), 60_000).unwrap();
    tatp.fill(&mut batch, 60_000).unwrap();
    submit(&mut *engine, batch);
    let batch = engine.complete().unwrap().unwrap().batch;
    let expected = [
        ("get_subscriber_data", 1.0),
        ("get_new_destination", 0.155),
        ("get_access_data", 0.625),
        ("update_subscriber_data", 0.625),
        ("update_location", 1.0),
        ("insert_call_forwarding", 0.3125),
        ("delete_call_forwarding", 0.3125),
    ];
    for (name, expected) in expected {
        let id = engine.procedure_id(name).unwrap();
        let ends = batch.blocks().filter(|block| block.procedure() == id).map(|block| block.status());
        let ends: Vec<bool> = ends.map(|status| status == Some(Status::Committed)).collect();
        let share = ends.iter().filter(|&&committed| committed).count() as f64 / ends.len() as f64;
        // Five standard deviations of so many calls, and a little for what inserts and deletes change on the way.
        let slack =
            5.0 * (expected * (1.0 - expected) / ends.len() as f64).sqrt() + if expected < 1.0 { 0.01 } else { 0.0 };
        assert!((share - expected).abs() <= slack, "{name}: {share} of {expected}, slack {slack}");
    }
}
