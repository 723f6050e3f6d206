//! An engine that cannot run calls in the order of the log, as on some devices, gets the rows of one that can.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::*;
use lockwork_engine::registry::Registered;
use lockwork_engine::{Completed, Engine, EngineError, EngineKind, Refused, SerialOrder};
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_sequencer::Sequencer;
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_storage::Database;

/// An engine of its own order, and of no other.
struct OwnOrder(Box<dyn Engine>);

impl Engine for OwnOrder {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn serial_order(&self) -> SerialOrder {
        SerialOrder::Stamp
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        self.0.create_table(schema, rows)
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        self.0.register(procedure)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        self.0.replace(id, procedure)
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        self.0.accepts(procedure, tables, old)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        self.0.procedure(id)
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        self.0.procedure_id(name)
    }

    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        self.0.with_database(read)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        self.0.submit(batch)
    }

    fn submit_in_order(&mut self, _: Batch) -> Result<(), Box<Refused>> {
        panic!("this engine has said that it cannot")
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        self.0.complete()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.0.load(table, image)
    }
}

#[test]
fn an_engine_of_another_order_gets_rows_and_outcomes() {
    let disk = SimulatedDisk::new(1);
    let open = || {
        let engine = Box::new(OwnOrder(engine(EngineKind::TWO_PHASE)));
        Sequencer::open(Arc::new(disk.clone()), Path::new("/db"), options(), engine, &mut |_| ()).unwrap()
    };
    let mut random = Random(6);
    let mut oracle = Oracle::new();
    // What the call with each request id answered first.
    let mut first: Vec<Vec<u8>> = Vec::new();
    for life in 0..4_u64 {
        let (sequencer, report) = open();
        if life == 0 {
            furnish(&sequencer).unwrap();
        } else {
            assert!(report.calls > 100 && report.definitions.len() == 5, "{report:?}");
            // A retry of what another life has run.
            let retried = sequencer.call_batch(batch(&[(0, life, vec![1, 2, 7])])).unwrap();
            assert_eq!(retried.block(0).bytes()[56..64], first[life as usize - 1]);
        }
        assert_eq!(sequencer.digest().unwrap(), oracle.digest());
        for _ in 0..5 {
            let ran = sequencer.call_batch(batch(&random.calls(100))).unwrap();
            oracle.follow(&ran, SerialOrder::Stamp);
        }
        let ran = sequencer.call_batch(batch(&[(0, life + 1, vec![1, 2, 7])])).unwrap();
        oracle.follow(&ran, SerialOrder::Stamp);
        first.push(ran.block(0).bytes()[56..64].to_vec());
        if life == 1 {
            sequencer.checkpoint().unwrap();
            let ran = sequencer.call_batch(batch(&random.calls(300))).unwrap();
            oracle.follow(&ran, SerialOrder::Stamp);
        }
        assert_eq!(sequencer.digest().unwrap(), oracle.digest());
    }
}
