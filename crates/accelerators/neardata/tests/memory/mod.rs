//! A device in memory, which answers as much as it is asked for, for tests of the channel.

#![allow(unreachable_pub, dead_code, reason = "every test takes what it needs of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockwork_neardata::device::{
    Device, DeviceError, DeviceStatus, Modified, Operation, Piece, Purpose, Ran, TableId, TransactionId, Tuple, Version,
};
use lockwork_neardata::record::{RecordId, Timestamp, Vid};
use lockwork_procedure::schema::{ColumnType, TableSchema};

/// Bytes of an image of the rows that a filter makes up.
pub const IMAGE_BYTES: usize = 24;

/// Two tables' worth of columns.
pub fn schema(name: &str) -> TableSchema {
    TableSchema::new(name, &[("id", ColumnType::I64), ("text", ColumnType::Char(16))], 1, false).expect("it is sound")
}

/// An operation that answers with `rows` rows, in pieces of `piece` rows, sleeping between them.
pub fn operation(purpose: Purpose, rows: u64, piece: u32, sleep: Duration) -> Operation {
    let block = [piece.to_le_bytes(), (sleep.as_micros() as u32).to_le_bytes()].concat();
    Operation { table: 0, purpose, program: rows.to_le_bytes().into(), block, snapshot: 1 }
}

#[derive(Default)]
struct State {
    tables: Vec<TableSchema>,
    versions: BTreeMap<(TableId, u32), Vec<Version>>,
    begun: BTreeSet<u64>,
    stored: u64,
}

/// See above.
#[derive(Default)]
pub struct Memory {
    state: Mutex<State>,
    /// Where begun and committed bulk updates are noted, a line each.
    journal: Option<PathBuf>,
}

impl Memory {
    /// One that notes bulk updates in a file.
    pub fn with_journal(journal: PathBuf) -> Self {
        Self { journal: Some(journal), ..Self::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, line: String) {
        if let Some(journal) = &self.journal {
            let mut file = std::fs::File::options().append(true).create(true).open(journal).expect("a test's own file");
            writeln!(file, "{line}").expect("a test's own file");
        }
    }
}

/// The images of rows `from..to`.
pub fn images(from: u64, to: u64) -> Vec<u8> {
    (from..to).flat_map(|row| [row, !row, row * 7]).flat_map(u64::to_le_bytes).collect()
}

impl Device for Memory {
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError> {
        let mut state = self.state();
        if state.tables.iter().any(|other| other.name() == schema.name()) {
            return Err(DeviceError::Refused(format!("there is a table '{}'", schema.name())));
        }
        state.tables.push(schema.clone());
        Ok(state.tables.len() as u16 - 1)
    }

    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        Ok(self.state().tables.clone())
    }

    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        let state = self.state();
        for ((_, vid), versions) in state.versions.range((table, 0)..=(table, u32::MAX)) {
            let newest = versions.last().expect("at least one");
            let key = newest.image.as_ref().map_or(&[][..], |image| &image[..8.min(image.len())]);
            let (number, created) = (newest.number, newest.created);
            each(Tuple { vid: Vid(*vid), number, created, record: RecordId::new(vid + 1, 3), key });
        }
        Ok(())
    }

    fn flush(&self, table: TableId, versions: &[Version], _watermark: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        let mut state = self.state();
        state.stored += versions.len() as u64;
        for version in versions {
            state.versions.entry((table, version.vid.0)).or_default().push(version.clone());
        }
        Ok(versions.iter().map(|version| RecordId::new(version.vid.0 + 1, version.number as u8)).collect())
    }

    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError> {
        match vid.0 {
            0xffff_fff0 => panic!("asked for the tuple that panics"),
            0xffff_fff1 => std::process::exit(7),
            0xffff_fff2 => return Err(DeviceError::Corrupt("page 9".into())),
            _ => {}
        }
        let state = self.state();
        let versions = state.versions.get(&(table, vid.0));
        Ok(versions.and_then(|all| all.iter().rev().find(|version| version.created <= snapshot)).cloned())
    }

    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        let Some((rows, _)) = operation.program.split_first_chunk() else {
            return Err(DeviceError::Refused("a program of 8 bytes is possible".into()));
        };
        let rows = u64::from_le_bytes(*rows);
        let number = |at: usize| u32::from_le_bytes(operation.block[at..at + 4].try_into().expect("four bytes"));
        let (most, sleep) = (u64::from(number(0)), Duration::from_micros(number(4).into()));
        let ran = Ran { rows: 2 * rows, taken: rows };
        if let Purpose::Aggregate(folds) = &operation.purpose {
            let values = (0..folds.len() as i64).collect::<Vec<_>>();
            piece(Piece::Folded { rows, values: (rows > 0).then_some(&values) });
            return Ok(ran);
        }
        if let Purpose::Update(TransactionId(number)) = operation.purpose {
            self.state().begun.insert(number);
            self.note(format!("begun {number}"));
        }
        for from in (0..rows).step_by(most as usize) {
            let to = rows.min(from + most);
            let vids = (from..to).map(|row| Vid(row as u32));
            if matches!(operation.purpose, Purpose::Filter) {
                piece(Piece::Rows { vids: &vids.collect::<Vec<_>>(), images: &images(from, to) });
            } else {
                let modified = |vid: Vid| Modified { vid, number: 2, record: RecordId::new(vid.0 + 1, 9) };
                piece(Piece::Modified(&vids.map(modified).collect::<Vec<_>>()));
            }
            if !sleep.is_zero() {
                std::thread::sleep(sleep);
            }
        }
        Ok(ran)
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError> {
        if !self.state().begun.remove(&transaction.0) {
            return Err(DeviceError::Refused(format!("there is no transaction {}", transaction.0)));
        }
        self.note(format!("committed {} at {timestamp}", transaction.0));
        Ok(())
    }

    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError> {
        self.state().begun.remove(&transaction.0);
        Ok(())
    }

    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError> {
        Ok(watermark / 2)
    }

    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        Ok(DeviceStatus { pages: 1, free_pages: 2, versions: self.state().stored, newest: u64::MAX })
    }
}
