//! A run whose engine fails at each of its calls in turn.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use lockwork_engine::{Completed, Refused, SerialOrder};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::Catalog;
use lockwork_storage::Database;
use lockwork_workload::transfer::{Transfer, TransferConfig};

use super::*;

/// An engine whose back end fails at one call, and is sound before and after.
struct Failing {
    engine: Box<dyn Engine>,
    calls: Cell<u32>,
    at: u32,
}

impl Failing {
    fn call(&self, what: &str) -> Result<(), EngineError> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() == self.at { Err(EngineError::BackEnd(what.into())) } else { Ok(()) }
    }
}

impl Engine for Failing {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn serial_order(&self) -> SerialOrder {
        self.engine.serial_order()
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        self.call("create_table")?;
        self.engine.create_table(schema, rows)
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        self.call("register")?;
        self.engine.register(procedure)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        self.engine.replace(id, procedure)
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        self.engine.accepts(procedure, tables, old)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        self.engine.procedure(id)
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        self.engine.procedure_id(name)
    }

    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        self.call("with_database")?;
        self.engine.with_database(read)
    }

    fn start(&mut self) -> Result<(), EngineError> {
        self.call("start")?;
        self.engine.start()
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        match self.call("submit") {
            Ok(()) => self.engine.submit(batch),
            Err(error) => Err(Box::new(Refused { batch, error })),
        }
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        self.call("complete")?;
        self.engine.complete()
    }

    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    fn digest(&self) -> Result<lockwork_storage::Digest, EngineError> {
        self.call("digest")?;
        self.engine.digest()
    }

    fn export(&self, row: &mut dyn FnMut(&str, &[u8])) -> Result<(), EngineError> {
        self.call("export")?;
        self.engine.export(row)
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.call("load")?;
        self.engine.load(table, image)
    }
}

#[test]
fn a_back_end_that_fails_at_any_call_is_exit_code_6() {
    let time = Duration::ZERO;
    let plan = Plan { transactions: 40, batch: 10, time, warmup: 1, recycled: false, ahead: AHEAD };
    let mut failed = BTreeSet::new();
    for at in 1.. {
        let create = || -> Result<Box<dyn Engine>, EngineError> {
            let engine = create(EngineKind::SERIAL, &Options::default())?;
            Ok(Box::new(Failing { engine, calls: Cell::new(0), at }))
        };
        let config = TransferConfig { accounts: 4, ..TransferConfig::default() };
        let workload = Box::new(Transfer::new(config).expect("it is possible"));
        match run_on(create, workload, &plan, &mut |_| {}) {
            Ok(run) => {
                assert!(run.verified, "no call failed: {}", run.verification);
                break;
            }
            Err(failure) => {
                assert_eq!(failure.exit_code(), 6, "call {at}: {failure:?}");
                failed.insert(failure.to_string());
            }
        }
    }
    let calls =
        ["complete", "create_table", "digest", "export", "load", "register", "start", "submit", "with_database"];
    assert!(failed.iter().eq(&calls), "{failed:?}");
}
