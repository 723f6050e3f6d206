//! Several calls as one transaction mean what they mean one after the other, and what is taken back was never there:
//! every other batch of the conformance suite runs as one transaction, after it has run twice and been taken back.

use std::collections::VecDeque;
use std::sync::Arc;

use lockwork_conformance::engines::{self as conformance, MIXES};
use lockwork_conformance::procedures as random_procedures;
use lockwork_engine::contract::Refused;
use lockwork_engine::registry::Registered;
use lockwork_engine::{
    BatchReport, Completed, Compound, Engine, EngineError, EngineKind, Options, SerialOrder, Tally, create,
};
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

/// An engine that runs every other batch as one transaction.
struct Alternating {
    inner: Box<dyn Engine>,
    turn: usize,
    finished: VecDeque<Completed>,
}

fn alternating(kind: EngineKind, threads: usize) -> Result<Box<dyn Engine>, EngineError> {
    let inner = create(kind, Options { threads, ..Options::default() })?;
    Ok(Box::new(Alternating { inner, turn: 0, finished: VecDeque::new() }))
}

fn copy(batch: &Batch) -> Batch {
    let mut copy = Batch::new(batch.stride() as u32, batch.len()).unwrap();
    for block in batch.blocks() {
        copy.push(block.procedure()).unwrap().bytes().copy_from_slice(block.bytes());
    }
    copy
}

impl Alternating {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let before = self.inner.digest()?;
        let mut other = copy(batch);
        let kept = self.inner.compound(&mut |compound| {
            compound.call(&mut other);
            false
        })?;
        assert!(!kept);
        assert_eq!(self.inner.digest()?, before, "what was not kept was never there");
        let mut again = copy(batch);
        self.inner.compound(&mut |compound| {
            let start = compound.savepoint();
            compound.call(&mut again);
            compound.roll_back_to(start);
            compound.call(batch);
            let end = compound.savepoint();
            compound.call(&mut copy(&again));
            compound.roll_back_to(end);
            true
        })?;
        for ((first, second), third) in other.blocks().zip(again.blocks()).zip(batch.blocks()) {
            assert_eq!(first.bytes(), second.bytes());
            assert_eq!(first.bytes(), third.bytes());
        }
        Ok(())
    }
}

impl Engine for Alternating {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn serial_order(&self) -> SerialOrder {
        self.inner.serial_order()
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        self.inner.create_table(schema, rows)
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        self.inner.register(procedure)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        self.inner.replace(id, procedure)
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        self.inner.accepts(procedure, tables, old)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        self.inner.procedure(id)
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        self.inner.procedure_id(name)
    }

    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        self.inner.with_database(read)
    }

    fn submit(&mut self, mut batch: Batch) -> Result<(), Box<Refused>> {
        self.turn += 1;
        if self.turn.is_multiple_of(2) {
            self.inner.submit(batch)?;
            self.finished.push_back(self.inner.complete().unwrap().expect("a batch was submitted"));
            return Ok(());
        }
        match self.run(&mut batch) {
            Ok(()) => {
                let report = BatchReport { tally: Tally::of(&batch), ..BatchReport::default() };
                self.finished.push_back(Completed { batch, report });
                Ok(())
            }
            Err(error) => Err(Box::new(Refused { batch, error })),
        }
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        Ok(self.finished.pop_front())
    }

    fn in_flight(&self) -> usize {
        self.finished.len()
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.inner.load(table, image)
    }
}

#[test]
fn calls_together_are_calls_one_after_the_other() {
    for &kind in EngineKind::CPU {
        for (number, (names, ordered)) in MIXES.iter().enumerate() {
            let what = format!("{kind} together");
            conformance::check(&what, &|| alternating(kind, 2), names, *ordered, number as u64);
        }
    }
}

#[test]
fn random_procedures_together_are_those_procedures_one_after_the_other() {
    for &kind in EngineKind::CPU {
        random_procedures::check(&format!("{kind} together"), &|| alternating(kind, 2), 0..30);
    }
}

#[test]
fn a_transaction_that_panics_is_taken_back() {
    let mut engine = conformance::prepared(&|| create(EngineKind::TWO_PHASE, Options::default()), true);
    let before = engine.digest().unwrap();
    let mut batch = Batch::new(256, 1).unwrap();
    let open = engine.procedure_id("open").unwrap();
    batch.push(open).unwrap().bytes()[32..40].copy_from_slice(&1_i64.to_le_bytes());
    let mut panics = |compound: &mut Compound<'_>| -> bool {
        compound.call(&mut batch);
        panic!("on purpose")
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.compound(&mut panics)));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(engine.digest().unwrap(), before);
}

#[test]
fn nothing_is_made_while_a_batch_is_in_flight() {
    let mut engine = conformance::prepared(&|| create(EngineKind::DETERMINISTIC, Options::default()), true);
    let batch = conformance::fill(&*engine, &mut conformance::Random(1), &["look"], 1000);
    engine.submit(batch).unwrap();
    assert!(matches!(engine.compound(&mut |_| true), Err(EngineError::Busy(1))));
    engine.complete().unwrap();
    assert!(engine.compound(&mut |_| true).unwrap());
}
