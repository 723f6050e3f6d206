//! How fast the storage scans, folds and updates: rows a second over a file, with its settings.
//!
//! `scan_rate [ROWS [ELEMENTS [FILE]]]`; the file is created and removed. Answers are checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lockwork_neardata::device::{
    Device, DeviceError, Fold, LockRefusal, LockSource, Operation, Piece, Purpose, RowLocks, TableId, TransactionId,
    Version,
};
use lockwork_neardata::record::Vid;
use lockwork_neardata::storage::{Store, StoreConfig};
use lockwork_procedure::assembly::{assemble, encode};
use lockwork_procedure::schema::{ColumnType, TableSchema};

/// Nobody else is there.
struct Alone;

impl LockSource for Alone {
    fn open(&self, _: TransactionId, _: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        Ok(Box::new(Self))
    }
}

impl RowLocks for Alone {
    fn lock(&mut self, _: TableId, _: Vid, _: u32) -> Result<(), LockRefusal> {
        Ok(())
    }
}

const SELECT: &str = "procedure s\ntable t\nparam limit: i64\nresult v: i64
    search c0, t, [limit]\nret r1, c0\nloadr r2, r1[t.v]\nload r3, [limit]\ncmp r2, r3\nbge no\nstore r2, [v]\ncommit
no:\nabort 1\n";
const UPDATE: &str = "procedure u\ntable t\nparam limit: i64\nresult v: i64
    update c0, t, [limit]\nret r1, c0\nloadr r2, r1[t.v]\nload r3, [limit]\ncmp r2, r3\nbge no\nadd r2, r2, 10
    storer r2, r1[t.v]\ncommit\nno:\nabort 1\n";

fn run(
    store: &Store,
    source: &str,
    limit: i64,
    purpose: Purpose,
    snapshot: u64,
    what: &str,
) -> Result<(u64, Option<i64>), DeviceError> {
    let schemas = store.tables()?;
    let procedure = assemble(source, schemas.as_slice()).map_err(|error| DeviceError::Refused(error.to_string()))?;
    let procedure = procedure.procedure;
    let mut block = vec![0; procedure.layout().block_bytes as usize];
    block[32..40].copy_from_slice(&limit.to_le_bytes());
    let operation = Operation { table: 0, purpose, program: encode(&procedure), block, snapshot };
    let (start, mut folded) = (Instant::now(), None);
    let ran = store.run(&operation, &mut |piece| {
        if let Piece::Folded { values, .. } = piece {
            folded = values.map(|values| values[0]);
        }
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let (rows, million) = (ran.rows, ran.rows as f64 / seconds / 1e6);
    println!("{what:<44} {rows:>10} rows {seconds:>8.3} s {million:>8.2} million rows/s, {} taken", ran.taken);
    Ok((ran.taken, folded))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rows: u32 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let elements: usize = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let folder = std::env::temp_dir();
    let path = arguments.next().map_or(folder.join(format!("scan-rate-{}", std::process::id())), PathBuf::from);
    let columns =
        [("id", ColumnType::I64), ("v", ColumnType::I64), ("pad", ColumnType::Char(56)), ("x", ColumnType::Bytes(32))];
    let schema = TableSchema::new("t", &columns, 1, false)?;
    let config = StoreConfig::new(elements, Arc::new(Alone));
    let store = Store::open(&path, &config)?;
    println!("{rows} rows of {} bytes, {}, {}", schema.row_bytes() - 16, store.describe(), path.display());
    store.create_table(&schema)?;
    let start = Instant::now();
    for first in (0..rows).step_by(200_000) {
        let versions: Vec<Version> = (first..rows.min(first + 200_000))
            .map(|vid| {
                let mut image = vec![0; schema.row_bytes() as usize - 16];
                image[..8].copy_from_slice(&i64::from(vid).to_le_bytes());
                image[8..16].copy_from_slice(&i64::from(vid % 10).to_le_bytes());
                Version { vid: Vid(vid), number: 1, created: 1, image: Some(image.into()) }
            })
            .collect();
        store.flush(0, &versions, 1)?;
    }
    println!("{:<44} {:>8.3} s", "flush of all rows", start.elapsed().as_secs_f64());
    let sum = || Purpose::Aggregate(vec![("v".into(), Fold::Sum)]);
    let all: i64 = (0..i64::from(rows)).map(|row| row % 10).sum();
    assert_eq!(run(&store, SELECT, 100, sum(), 1, "aggregate, all rows")?.1, Some(all));
    assert_eq!(run(&store, SELECT, 100, sum(), 1, "aggregate, all rows, again")?.1, Some(all));
    run(&store, SELECT, 1, Purpose::Filter, 1, "filter, one row in ten")?;
    run(&store, SELECT, 100, Purpose::Filter, 1, "filter, every row")?;
    let (taken, _) = run(&store, UPDATE, 1, Purpose::Update(TransactionId(1)), 1, "update, one row in ten")?;
    let start = Instant::now();
    store.commit(TransactionId(1), 2)?;
    println!("{:<44} {:>8.3} s", "its commit", start.elapsed().as_secs_f64());
    let raised = all + 10 * taken as i64;
    assert_eq!(run(&store, SELECT, 100, sum(), 2, "aggregate after the update")?.1, Some(raised));
    assert_eq!(run(&store, SELECT, 100, sum(), 1, "aggregate at the snapshot before")?.1, Some(all));
    let start = Instant::now();
    let freed = store.collect(2)?;
    println!("{:<44} {:>8.3} s, {freed} freed", "collect", start.elapsed().as_secs_f64());
    drop(store);
    let start = Instant::now();
    let store = Store::open(&path, &config)?;
    println!("{:<44} {:>8.3} s, {:?}", "open", start.elapsed().as_secs_f64(), store.status()?);
    assert_eq!(run(&store, SELECT, 100, sum(), 2, "aggregate after opening")?.1, Some(raised));
    std::fs::remove_file(&path)?;
    Ok(())
}
