//! A host over a storage in memory, and one table of numbers, for all tests of the host.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockwork_neardata::device::{DeviceError, TableId};
use lockwork_neardata::host::in_process::InProcessLocks;
use lockwork_neardata::host::memory_device::MemoryDevice;
use lockwork_neardata::host::vid_map::VidMap;
use lockwork_neardata::host::{Config, Host, HostError, Isolation, VidMaps};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};

/// Tuples that fit into a table.
pub(crate) const CAPACITY: usize = 1_000;

/// Locks, storage, and what a host is opened with.
pub(crate) struct Setup {
    pub(crate) locks: InProcessLocks,
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) config: Config,
    maps: Arc<Mutex<HashMap<TableId, VidMap>>>,
}

impl Setup {
    pub(crate) fn new(isolation: Isolation, timeout: Duration) -> Self {
        let locks = InProcessLocks::new(timeout);
        let device = Arc::new(MemoryDevice::new(Arc::new(locks.clone())));
        Self { locks, device, config: Config { isolation, timeout, ..Config::default() }, maps: Arc::default() }
    }

    /// Opens a host. The memory of the VID maps is the same each time, as shared memory is.
    pub(crate) fn open(&self) -> Result<Host, HostError> {
        Host::open(self.config.clone(), self.device.clone(), Arc::new(self.locks.clone()), self.maps())
    }

    fn maps(&self) -> VidMaps {
        let (locks, maps) = (self.locks.clone(), self.maps.clone());
        Box::new(move |table, _| {
            let map = maps.lock().unwrap().entry(table).or_insert_with(|| VidMap::in_process(CAPACITY)).clone();
            locks.add_map(table, map.clone());
            Ok(map)
        })
    }

    /// What the storage has of the numbers.
    pub(crate) fn stored(&self, table: TableId) -> BTreeMap<i64, i64> {
        self.device.contents(table, u64::MAX).values().map(|image| (number(image, 0), number(image, 8))).collect()
    }
}

/// Keys and values are integers; keys are in order.
pub(crate) fn numbers() -> TableSchema {
    let columns = [("id", ColumnType::I64), ("value", ColumnType::I64), ("note", ColumnType::Bytes(20))];
    TableSchema::new("numbers", &columns, 1, true).unwrap()
}

/// The eight bytes of an image from `at` on.
pub(crate) fn number(image: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

/// All numbers, as a new transaction sees them.
pub(crate) fn all(host: &Host) -> BTreeMap<i64, i64> {
    let (mut worker, mut found) = (host.worker().unwrap(), BTreeMap::new());
    let mut transaction = worker.begin();
    let mut note = |image: &[u8]| assert_eq!(found.insert(number(image, 0), number(image, 8)), None);
    transaction.scan(0, &i64::MIN.to_le_bytes(), CAPACITY, &mut note).unwrap();
    transaction.commit().unwrap();
    found
}

/// Inserts numbers in one transaction.
pub(crate) fn insert(host: &Host, rows: impl IntoIterator<Item = (i64, i64)>) {
    let mut worker = host.worker().unwrap();
    let mut transaction = worker.begin();
    for (id, value) in rows {
        let values = transaction.insert(0, &id.to_le_bytes()).unwrap().expect("the key is new");
        values[..8].copy_from_slice(&value.to_le_bytes());
    }
    transaction.commit().unwrap();
}

/// Rows 0 to 9 with value 10 times the key, half of them in the storage.
pub(crate) fn filled(setup: &Setup) -> Host {
    let host = setup.open().unwrap();
    host.create_table(&numbers()).unwrap();
    insert(&host, (0..5).map(|id| (id, id * 10)));
    host.flush_all().unwrap();
    insert(&host, (5..10).map(|id| (id, id * 10)));
    host
}

/// Sets one number in a transaction of its own.
pub(crate) fn set(host: &Host, id: i64, value: i64) -> Result<u64, HostError> {
    let mut worker = host.worker()?;
    let mut transaction = worker.begin();
    let values = transaction.update(0, &id.to_le_bytes())?.expect("the row exists");
    values[..8].copy_from_slice(&value.to_le_bytes());
    transaction.commit()
}

/// How a storage ends that a test kills.
pub(crate) fn gone() -> DeviceError {
    DeviceError::Gone("killed by the test".into())
}

/// A procedure on the numbers.
pub(crate) fn procedure(source: &str) -> Procedure {
    assemble(source, [numbers()].as_slice()).unwrap().procedure
}

/// `UPDATE numbers SET value = value + by WHERE value >= least`, and a block with both.
pub(crate) fn raise(least: i64, by: i64) -> (Procedure, Vec<u8>) {
    let source = "procedure raise\ntable numbers\nparam id: i64\nparam least: i64\nparam by: i64
        update c0, numbers, [id]\nret r1, c0\nloadr r2, r1[numbers.value]\nload r3, [least]\ncmp r2, r3\nbl no
        load r4, [by]\nadd r2, r2, r4\nstorer r2, r1[numbers.value]\ncommit\nno:\nabort 1";
    (procedure(source), block(&[0, least, by], 64))
}

/// Rows with `value >= least`; the value is a result.
pub(crate) fn at_least(least: i64) -> (Procedure, Vec<u8>) {
    let source = "procedure at_least\ntable numbers\nparam id: i64\nparam least: i64\nresult value: i64
        search c0, numbers, [id]\nret r1, c0\nloadr r2, r1[numbers.value]\nstore r2, [value]\nload r3, [least]
        cmp r2, r3\nbl no\ncommit\nno:\nabort 1";
    (procedure(source), block(&[0, least], 64))
}

/// A block with these arguments.
pub(crate) fn block(arguments: &[i64], bytes: usize) -> Vec<u8> {
    let mut block = vec![0; bytes];
    for (at, argument) in arguments.iter().enumerate() {
        block[32 + 8 * at..40 + 8 * at].copy_from_slice(&argument.to_le_bytes());
    }
    block
}
