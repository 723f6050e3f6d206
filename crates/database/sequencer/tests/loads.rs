//! Rows that are loaded with those of their indexes: wherever the process dies, both are there or neither.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use common::*;
use lockwork_engine::{Engine, EngineKind};
use lockwork_sequencer::io::simulated::{Fault, SimulatedDisk};
use lockwork_sequencer::{Error, Sequencer};

/// Rows of each load; many small ones, so that loads share writes and do not.
const ROWS: u64 = 3;

fn open(disk: &SimulatedDisk) -> Result<Sequencer, Error> {
    open_with(Arc::new(disk.clone()), Path::new("/db"), options(), EngineKind::SERIAL).map(|(sequencer, _)| sequencer)
}

/// Loads accounts and their entries in an index; how many loads were acknowledged.
fn scenario(disk: &SimulatedDisk, acknowledged: &mut u64) -> Result<(), Error> {
    let sequencer = open(disk)?;
    sequencer.define(definition(TABLES))?;
    sequencer.define(definition("table by_balance (id: i64 key, balance: i64) partition by hash(id)"))?;
    for load in 0..8 {
        let images: Vec<u8> = (load * ROWS..(load + 1) * ROWS).flat_map(image).collect();
        let tables = vec![("accounts".to_string(), images.clone()), ("by_balance".to_string(), images)];
        let (sender, loaded) = sync_channel(1);
        sequencer.handle().load_then(tables, move |outcome| drop(sender.send(outcome)))?;
        assert_eq!(loaded.recv().map_err(|_| Error::Closed)?? as u64, ROWS);
        *acknowledged += 1;
    }
    sequencer.close()
}

/// Rows of a table.
fn rows(sequencer: &Sequencer, table: &'static str) -> u64 {
    let count = move |engine: &dyn Engine| {
        let mut count = 0;
        engine.export(&mut |found, _| count += u64::from(found == table)).unwrap();
        count
    };
    sequencer.read(count).unwrap()
}

#[test]
fn a_row_and_its_row_in_an_index_are_there_together_or_not_at_all() {
    for fault in [Fault::Crash, Fault::Tear, Fault::Fail] {
        for call in 0.. {
            let disk = SimulatedDisk::new(call);
            disk.inject(call, fault);
            let mut acknowledged = 0;
            let outcome = scenario(&disk, &mut acknowledged);
            let Some(fired) = disk.fired() else {
                outcome.unwrap();
                assert_eq!(acknowledged, 8);
                break;
            };
            let killed = disk.copy(1);
            disk.crash();
            for disk in [disk, killed] {
                let sequencer = open(&disk).unwrap();
                let counts = (rows(&sequencer, "accounts"), rows(&sequencer, "by_balance"));
                assert_eq!(counts.0, counts.1, "{fired}");
                assert!(counts.0 >= acknowledged * ROWS && counts.0.is_multiple_of(ROWS), "{fired}: {counts:?}");
            }
        }
    }
}
