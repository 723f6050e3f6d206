//! Nothing that a client or an engine does ends the thread that runs everything, and nothing in a block but its
//! arguments has a say in what its call does.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use common::*;
use lockwork_engine::registry::Registered;
use lockwork_engine::{Completed, Engine, EngineError, EngineKind, Refused as EngineRefused, SerialOrder};
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::{Error, Sequencer};
use lockwork_storage::Database;

fn furnished(disk: &SimulatedDisk) -> Sequencer {
    let (sequencer, report) =
        open_with(Arc::new(disk.clone()), Path::new("/db"), options(), EngineKind::DETERMINISTIC).unwrap();
    if report.created {
        furnish(&sequencer).unwrap();
    }
    sequencer
}

#[test]
fn a_block_too_short_fails_and_is_never_remembered() {
    let disk = SimulatedDisk::new(1);
    let sequencer = furnished(&disk);
    sequencer.call_batch(batch(&[(0, 7, vec![1, 2, 5])])).unwrap();
    let digest = sequencer.digest().unwrap();
    for ids in [&[7][..], &[8, 8], &[8], &[9, 7, 9, 0]] {
        // A transfer takes 72 bytes.
        let mut short = Batch::new(64, ids.len()).unwrap();
        for (at, &number) in ids.iter().enumerate() {
            short.push(0).unwrap();
            if number > 0 {
                short.set_request(at, id(number));
            }
        }
        let ran = sequencer.call_batch(short).unwrap();
        let outcomes: Vec<_> = ran.blocks().map(|block| (block.status(), block.abort_code())).collect();
        assert_eq!(outcomes, vec![(Some(Status::Failed), abort::BLOCK_TOO_SHORT); ids.len()], "{ids:?}");
    }
    assert_eq!(sequencer.digest().unwrap(), digest);
    let ran = sequencer.call_batch(batch(&[(0, 7, vec![1, 2, 5]), (0, 8, vec![1, 2, 5])])).unwrap();
    let balances = |moved: i64| [(BALANCE - moved).to_le_bytes(), (BALANCE + moved).to_le_bytes()].concat();
    let told = [5, 10].map(|moved| (Some(Status::Committed), 0, balances(moved)));
    assert_eq!(answers(&ran), told);
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    assert_eq!(furnished(&disk).digest().unwrap(), digest);
}

#[test]
fn a_read_that_panics_panics_where_it_was_asked_for() {
    let sequencer = furnished(&SimulatedDisk::new(1));
    let digest = sequencer.digest().unwrap();
    for inside in [false, true] {
        let read = || {
            sequencer.read(move |engine| {
                if inside {
                    engine.export(&mut |_, _| panic!("as asked")).unwrap();
                }
                panic!("as asked")
            })
        };
        let panic = catch_unwind(AssertUnwindSafe(read)).map(Result::<(), _>::unwrap).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"as asked"));
        assert_eq!(sequencer.digest().unwrap(), digest);
    }
    sequencer.call_batch(batch(&[(0, 0, vec![1, 2, 5])])).unwrap();
    assert_eq!(total(&sequencer), ACCOUNTS as i64 * BALANCE);
    sequencer.close().unwrap();
}

#[test]
fn what_stands_behind_the_arguments_has_no_effect() {
    const ADD: &str = "\
procedure add
table accounts
param id: i64
result seen: i64
scratch kept: i64
    update  c0, accounts, [id]
    ret     r1, c0
    load    r2, [seen]
    load    r3, [kept]
    add     r2, r2, r3
    loadr   r4, r1[accounts.balance]
    add     r4, r4, r2
    add     r4, r4, 1
    storer  r4, r1[accounts.balance]
    store   r4, [seen]
    store   r4, [kept]
    commit
";
    let disk = SimulatedDisk::new(1);
    let sequencer = furnished(&disk);
    sequencer.define(definition(ADD)).unwrap();
    let seen = |block: &[u8]| i64::from_le_bytes(block[40..48].try_into().unwrap());
    let mut ran = batch(&[(4, 0, vec![1, 77, 78]), (4, 0, vec![2]), (4, 5, vec![3, 99])]);
    for round in 1..=3 {
        // What was answered is handed over again.
        ran = sequencer.call_batch(ran).unwrap();
        let told: Vec<_> = ran.blocks().map(|block| seen(block.bytes())).collect();
        assert_eq!(told, [BALANCE + round, BALANCE + round, BALANCE + 1]);
    }
    let mut block = batch(&[(4, 0, vec![4, 5, 6])]).block(0).bytes().to_vec();
    for round in 1..=3 {
        sequencer.handle().call(&mut block).unwrap();
        assert_eq!(seen(&block), BALANCE + round);
    }
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    assert_eq!(furnished(&disk).digest().unwrap(), digest);
}

/// A serial engine that is lost when it is told to.
struct Mortal(Box<dyn Engine>, Arc<AtomicBool>);

impl Engine for Mortal {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn serial_order(&self) -> SerialOrder {
        self.0.serial_order()
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

    fn submit(&mut self, batch: Batch) -> Result<(), Box<EngineRefused>> {
        self.0.submit(batch)
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        let completed = self.0.complete();
        if self.1.load(Ordering::Relaxed) { Err(EngineError::Worker("is lost".into())) } else { completed }
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.0.load(table, image)
    }
}

/// Keeps the order thread busy until something is sent, so that what is asked meanwhile waits behind.
fn hold(sequencer: &Sequencer) -> Sender<()> {
    let (release, released) = channel::<()>();
    let (began, begun) = channel();
    let handle = sequencer.handle();
    std::thread::spawn(move || {
        handle.read(move |_| {
            began.send(()).unwrap();
            released.recv().unwrap();
        })
    });
    begun.recv().unwrap();
    release
}

#[test]
fn an_engine_that_is_lost_ends_calls_but_not_reads_and_leaves_the_directory_as_it_was_logged() {
    let calls = || batch(&vec![(0, 0, vec![1, 2, 1]); 120]);
    for with_checkpoint in [false, true] {
        let disk = SimulatedDisk::new(1);
        let lost = Arc::new(AtomicBool::new(false));
        let mortal = Box::new(Mortal(engine(EngineKind::SERIAL), lost.clone()));
        let opened = Sequencer::open(Arc::new(disk.clone()), Path::new("/db"), options(), mortal, &mut |_| ());
        let sequencer = opened.unwrap().0;
        furnish(&sequencer).unwrap();
        let digest = sequencer.digest().unwrap();
        let release = hold(&sequencer);
        lost.store(true, Ordering::Relaxed);
        let first = sequencer.submit(calls()).unwrap();
        if with_checkpoint {
            let handle = sequencer.handle();
            let asked = std::thread::spawn(move || handle.checkpoint());
            std::thread::sleep(Duration::from_millis(50));
            release.send(()).unwrap();
            let made = asked.join().unwrap();
            assert!(matches!(made, Err(Error::Stopped(_))), "{made:?}");
        } else {
            // Two of them do not fit into one segment, so the second waits for the first one's end.
            let second = sequencer.submit(calls()).unwrap();
            release.send(()).unwrap();
            let refused = second.wait().unwrap_err();
            assert!(matches!(refused.error, Error::Stopped(_)), "{}", refused.error);
            assert_eq!(refused.batch.map(|batch| batch.len()), Some(120));
        }
        assert!(matches!(first.wait().unwrap_err().error, Error::Stopped(_)));
        let again = sequencer.call_batch(calls()).unwrap_err();
        assert!(matches!(again.error, Error::Stopped(_)) && again.batch.is_some());
        assert!(matches!(sequencer.define(definition(TABLES)), Err(Error::Stopped(_))));
        assert_eq!(sequencer.read(|_| 5).unwrap(), 5);
        assert!(matches!(sequencer.close(), Err(Error::Stopped(_))));
        assert_eq!(furnished(&disk).digest().unwrap(), digest);
    }
}

#[test]
fn what_waits_behind_closing_comes_back_whole() {
    let sequencer = furnished(&SimulatedDisk::new(1));
    let handle = sequencer.handle();
    let release = hold(&sequencer);
    let closing = std::thread::spawn(move || sequencer.close());
    std::thread::sleep(Duration::from_millis(50));
    let waiting = handle.submit(batch(&[(0, 3, vec![1, 2, 5])])).unwrap();
    release.send(()).unwrap();
    closing.join().unwrap().unwrap();
    let late = handle.submit(batch(&vec![(0, 3, vec![1, 2, 5]); 2])).map(|_| ()).unwrap_err();
    for (refused, calls) in [(waiting.wait().unwrap_err(), 1), (late, 2)] {
        assert!(matches!(refused.error, Error::Closed));
        let batch = refused.batch.unwrap();
        assert_eq!((batch.len(), batch.request(0)), (calls, Some(id(3))));
    }
}
