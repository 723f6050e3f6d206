//! The storage side of the near-data engine, over a disk in memory that fails on demand and over files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lockwork_neardata::device::{
    Device, DeviceError, Fold, LockRefusal, LockSource, Operation, Piece, Purpose, RowLocks, TableId, TransactionId,
    Version,
};
use lockwork_neardata::record::{Timestamp, Vid};
use lockwork_neardata::storage::disk::MemoryDisk;
use lockwork_neardata::storage::{Store, StoreConfig};
use lockwork_procedure::assembly::{assemble, encode};
use lockwork_procedure::block::{BlockMut, HEADER_BYTES};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};

mod concurrency;
mod faults;
mod files;
mod model;
mod operations;

/// Grants every lock, or refuses those of one tuple.
struct TestLocks(Mutex<Option<(Vid, LockRefusal)>>);

impl LockSource for TestLocks {
    fn open(&self, _: TransactionId, _: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        Ok(Box::new(Granted(self.0.lock().unwrap().clone())))
    }
}

struct Granted(Option<(Vid, LockRefusal)>);

impl RowLocks for Granted {
    fn lock(&mut self, _: TableId, vid: Vid, _: u32) -> Result<(), LockRefusal> {
        match &self.0 {
            Some((refused, why)) if *refused == vid => Err(why.clone()),
            _ => Ok(()),
        }
    }
}

/// Two elements, a file that grows by 16 pages, and every lock granted but that of the given tuple.
fn config(refused: Option<(Vid, LockRefusal)>) -> StoreConfig {
    StoreConfig { growth_pages: 16, ..StoreConfig::new(2, Arc::new(TestLocks(Mutex::new(refused)))) }
}

/// Rows of which eight fit a page.
fn schema() -> TableSchema {
    let columns = [
        ("id", ColumnType::I64),
        ("balance", ColumnType::I64),
        ("small", ColumnType::I8),
        ("pad", ColumnType::Bytes(900)),
    ];
    TableSchema::new("accounts", &columns, 1, false).unwrap()
}

/// The image of a row.
fn image(id: i64, balance: i64) -> Box<[u8]> {
    let schema = schema();
    let mut row = vec![0; schema.row_bytes() as usize];
    row[16..24].copy_from_slice(&id.to_le_bytes());
    row[24..32].copy_from_slice(&balance.to_le_bytes());
    let pad = schema.column("pad").unwrap().1.offset as usize;
    row[pad..].fill(id as u8 ^ balance as u8);
    row[16..].into()
}

/// The balance in an image.
fn balance(image: &[u8]) -> i64 {
    i64::from_le_bytes(image[8..16].try_into().unwrap())
}

fn version(vid: u32, number: u32, created: Timestamp, balance: i64) -> Version {
    Version { vid: Vid(vid), number, created, image: Some(image(i64::from(vid), balance)) }
}

/// A store over a disk in memory, with the table.
fn store_over(disk: &MemoryDisk) -> Store {
    let store = Store::over(Arc::new(disk.clone()), &config(None)).unwrap();
    if store.tables().unwrap().is_empty() {
        assert_eq!(store.create_table(&schema()), Ok(0));
    }
    store
}

/// Takes rows with at least `limit`, and says their balance.
const RICH: &str = "
procedure rich
table accounts
param limit: i64
result balance: i64
    search  c0, accounts, [limit]
    ret     r1, c0
    loadr   r2, r1[accounts.balance]
    load    r3, [limit]
    cmp     r2, r3
    bl      no
    store   r2, [balance]
    commit
no:
    abort   1
";

/// Adds `amount` to rows with at least `limit`.
const RAISE: &str = "
procedure raise
table accounts
param limit: i64
param amount: i64
    update  c0, accounts, [limit]
    ret     r1, c0
    loadr   r2, r1[accounts.balance]
    load    r3, [limit]
    cmp     r2, r3
    bl      no
    load    r4, [amount]
    add     r2, r2, r4
    storer  r2, r1[accounts.balance]
    commit
no:
    abort   1
";

fn procedure(source: &str) -> Procedure {
    assemble(source, [schema()].as_slice()).unwrap().procedure
}

fn operation(source: &str, arguments: &[i64], purpose: Purpose, snapshot: Timestamp) -> Operation {
    let procedure = procedure(source);
    let mut block = vec![0; procedure.layout().block_bytes as usize];
    BlockMut::new(&mut block).reset(0);
    for (index, argument) in arguments.iter().enumerate() {
        let at = HEADER_BYTES as usize + index * 8;
        block[at..at + 8].copy_from_slice(&argument.to_le_bytes());
    }
    Operation { table: 0, purpose, program: encode(&procedure), block, snapshot }
}

/// The rows with at least `limit` that a snapshot sees.
fn filter(store: &Store, limit: i64, snapshot: Timestamp) -> Result<BTreeMap<u32, Vec<u8>>, DeviceError> {
    let length = image(0, 0).len();
    let mut rows = BTreeMap::new();
    let ran = store.run(&operation(RICH, &[limit], Purpose::Filter, snapshot), &mut |piece| {
        let Piece::Rows { vids, images } = piece else { panic!("a filter gives rows") };
        assert_eq!(images.len(), vids.len() * length);
        for (vid, image) in vids.iter().zip(images.chunks(length)) {
            assert!(rows.insert(vid.0, image.to_vec()).is_none(), "a row came twice");
        }
    })?;
    assert_eq!(ran.taken as usize, rows.len());
    Ok(rows)
}

/// A bulk update; answers how many rows it took.
fn raise(store: &Store, id: u64, limit: i64, amount: i64, snapshot: Timestamp) -> Result<u64, DeviceError> {
    let mut modified = 0;
    let purpose = Purpose::Update(TransactionId(id));
    let ran = store.run(&operation(RAISE, &[limit, amount], purpose, snapshot), &mut |piece| {
        let Piece::Modified(tuples) = piece else { panic!("an update gives modified tuples") };
        modified += tuples.len() as u64;
    })?;
    assert_eq!(ran.taken, modified);
    Ok(modified)
}

/// Sum of balances and number of rows.
fn total(store: &Store, snapshot: Timestamp) -> Result<(u64, Option<i64>), DeviceError> {
    let mut found = None;
    let purpose = Purpose::Aggregate(vec![("balance".into(), Fold::Sum)]);
    store.run(&operation(RICH, &[i64::MIN], purpose, snapshot), &mut |piece| {
        let Piece::Folded { rows, values } = piece else { panic!("an aggregate gives folded results") };
        assert_eq!(found.replace((rows, values.map(|values| values[0]))), None);
    })?;
    Ok(found.expect("folded results come once"))
}

/// Everything that snapshots `from..=to` see of tuples below `vids`, by single reads.
type Seen = Vec<Option<Version>>;

fn everything(store: &Store, vids: u32, from: Timestamp, to: Timestamp) -> Seen {
    let mut seen = Vec::new();
    for snapshot in from..=to {
        let rows = filter(store, i64::MIN, snapshot).unwrap();
        for vid in 0..vids {
            let version = store.read(0, Vid(vid), snapshot).unwrap();
            let image = version.as_ref().and_then(|version| version.image.as_deref());
            assert_eq!(image, rows.get(&vid).map(Vec::as_slice), "tuple {vid} at {snapshot}");
            seen.push(version);
        }
    }
    seen
}
