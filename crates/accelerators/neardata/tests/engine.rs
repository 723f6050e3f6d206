//! The engine as a whole: a host here, a storage process beside it, one lock table between them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockwork_neardata::coherent::{NearData, NearDataConfig};
use lockwork_neardata::device::{DeviceError, TableId};
use lockwork_neardata::host::{HostError, Worker};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};

const ROWS: i64 = 2_000;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lockwork-smart-storage"))
}

/// A folder that goes when this does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwork-engine-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn config(&self) -> NearDataConfig {
        NearDataConfig { lock_lines: 1 << 14, tables: 2, tuples: 1 << 14, ..NearDataConfig::new(self.0.join("data")) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends what goes on beside, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn accounts() -> TableSchema {
    let columns = [("id", ColumnType::I64), ("region", ColumnType::I64), ("balance", ColumnType::I64)];
    TableSchema::new("accounts", &columns, 1, false).unwrap()
}

fn procedure(source: &str, engine: &NearData) -> Procedure {
    assemble(source, &engine.host().tables()[..]).unwrap().procedure
}

/// Adds one to every balance of a region.
fn interest(engine: &NearData) -> (Procedure, Vec<u8>) {
    let procedure = procedure(
        "procedure interest
         table accounts
         param id: i64
         param region: i64
             update  c0, accounts, [id]
             ret     r1, c0
             loadr   r2, r1[accounts.region]
             load    r3, [region]
             cmp     r2, r3
             be      hit
             abort   1
         hit:
             loadr   r2, r1[accounts.balance]
             add     r2, r2, 1
             storer  r2, r1[accounts.balance]
             commit",
        engine,
    );
    let block = vec![0; procedure.layout().block_bytes as usize];
    (procedure, block)
}

fn put(block: &mut [u8], procedure: &Procedure, name: &str, value: i64) {
    let offset = procedure.parameter(name).unwrap().offset as usize;
    block[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

fn fill(engine: &NearData) -> TableId {
    let table = engine.host().create_table(&accounts()).unwrap();
    let mut worker = engine.host().worker().unwrap();
    for id in 0..ROWS {
        let mut transaction = worker.begin();
        let row = transaction.insert(table, &id.to_le_bytes()).unwrap().unwrap();
        row[..8].copy_from_slice(&(id % 10).to_le_bytes());
        row[8..16].copy_from_slice(&100i64.to_le_bytes());
        transaction.commit().unwrap();
    }
    table
}

fn balance(worker: &mut Worker<'_>, table: TableId, id: i64) -> i64 {
    let mut transaction = worker.begin();
    let row = transaction.get(table, &id.to_le_bytes()).unwrap().unwrap();
    let balance = i64::from_le_bytes(row[16..24].try_into().unwrap());
    transaction.commit().unwrap();
    balance
}

#[test]
fn host_transactions_go_on_beside_a_bulk_update_in_storage() {
    let folder = Folder::new("beside");
    let engine = NearData::start(program(), folder.config()).unwrap();
    let table = fill(&engine);
    let (interest, mut block) = interest(&engine);
    put(&mut block, &interest, "region", 3);
    let (stop, added) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut worker = engine.host().worker().unwrap();
            // Regions that the bulk update leaves alone.
            for id in (0..ROWS).filter(|id| id % 10 != 3).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let mut transaction = worker.begin();
                let row = transaction.update(table, &id.to_le_bytes()).unwrap().unwrap();
                let balance = i64::from_le_bytes(row[8..16].try_into().unwrap());
                row[8..16].copy_from_slice(&(balance + 1).to_le_bytes());
                transaction.commit().unwrap();
                added.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stop = Stop(&stop);
        let mut worker = engine.host().worker().unwrap();
        for round in 1..=5 {
            let update = worker.bulk_update(table, &interest, &block).unwrap();
            assert_eq!(update.ran().taken, ROWS as u64 / 10, "round {round}");
            update.commit().unwrap();
        }
    });
    let mut worker = engine.host().worker().unwrap();
    let sum: i64 = (0..ROWS).map(|id| balance(&mut worker, table, id)).sum();
    let added = added.into_inner() as i64;
    assert!(added > 0, "no host transaction went on");
    assert_eq!(sum, ROWS * 100 + ROWS / 10 * 5 + added);
    assert!(engine.coherent_bytes() > 0);
}

#[test]
fn what_is_flushed_is_there_again_and_a_killed_storage_loses_nothing() {
    let folder = Folder::new("restart");
    let mut engine = NearData::start(program(), folder.config()).unwrap();
    let table = fill(&engine);
    let (interest, mut block) = interest(&engine);
    put(&mut block, &interest, "region", 7);
    let mut worker = engine.host().worker().unwrap();
    let update = worker.bulk_update(table, &interest, &block).unwrap();
    // SAFETY: a signal to a process that this test has started.
    unsafe { libc::kill(engine.storage_id() as i32, libc::SIGKILL) };
    std::thread::sleep(Duration::from_millis(50));
    let doubtful = update.commit().unwrap_err();
    assert!(matches!(doubtful, HostError::InDoubt { .. } | HostError::Device(DeviceError::Gone(_))), "{doubtful}");
    drop(worker);
    assert_eq!(engine.restart_storage(program()).unwrap(), None, "its commit never reached the storage");
    let mut worker = engine.host().worker().unwrap();
    assert!((0..ROWS).all(|id| balance(&mut worker, table, id) == 100));
    // Its locks are gone: the same rows can be updated, on the host and in the storage.
    let mut transaction = worker.begin();
    transaction.update(table, &7i64.to_le_bytes()).unwrap().unwrap();
    transaction.commit().unwrap();
    worker.bulk_update(table, &interest, &block).unwrap().commit().unwrap();
    drop(worker);
    engine.host().flush_all().unwrap();
    drop(engine);
    let engine = NearData::start(program(), folder.config()).unwrap();
    let table = engine.host().table_id("accounts").unwrap();
    let mut worker = engine.host().worker().unwrap();
    assert!((0..ROWS).all(|id| balance(&mut worker, table, id) == 100 + i64::from(id % 10 == 7)));
}

#[test]
fn a_storage_that_cannot_open_its_file_says_so() {
    let folder = Folder::new("foreign");
    std::fs::write(folder.0.join("data"), vec![7u8; 100_000]).unwrap();
    let error = NearData::start(program(), folder.config()).unwrap_err().to_string();
    assert!(error.contains("the storage process did not start"), "{error}");
    assert!(error.contains("smart storage:"), "{error}");
}
