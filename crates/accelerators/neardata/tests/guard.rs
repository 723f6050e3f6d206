//! A bulk update gets done although the host goes on writing to its table.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{CAPACITY, all, insert, numbers, raise, set};
use lockwork_neardata::device::{LockRefusal, LockSource, RowLocks, TransactionId};
use lockwork_neardata::host::in_process::InProcessLocks;
use lockwork_neardata::host::memory_device::MemoryDevice;
use lockwork_neardata::host::vid_map::VidMap;
use lockwork_neardata::host::{Config, Conflict, Host, HostError};

type Hook = Box<dyn FnOnce() + Send>;

/// Lets something happen when a bulk update has its snapshot and no lock yet.
#[derive(Default)]
struct Meanwhile {
    locks: InProcessLocks,
    hook: Mutex<Option<Hook>>,
}

impl LockSource for Meanwhile {
    fn open(&self, transaction: TransactionId, element: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        if let Some(hook) = self.hook.lock().unwrap().take() {
            hook();
        }
        self.locks.open(transaction, element)
    }
}

#[test]
fn the_host_writes_around_the_rows_of_a_bulk_update_before_they_are_locked() {
    let source = Arc::new(Meanwhile::default());
    let device = Arc::new(MemoryDevice::new(source.clone()));
    let (locks, maps) = (source.locks.clone(), source.locks.clone());
    let map = move |table, _: &_| {
        let map = VidMap::in_process(CAPACITY);
        maps.add_map(table, map.clone());
        Ok(map)
    };
    let config = Config { timeout: Duration::ZERO, ..Config::default() };
    let host: &'static Host = Box::leak(Box::new(Host::open(config, device, Arc::new(locks), Box::new(map)).unwrap()));
    host.create_table(&numbers()).unwrap();
    insert(host, (0..6).map(|id| (id, id * 10)));
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    *source.hook.lock().unwrap() = Some(Box::new(move || {
        // Will be taken; will not be, even if it then looks so; a row that is newer than the snapshot.
        let outcomes = [set(host, 4, 1), set(host, 1, 99), set(host, 1, 98)];
        insert(host, [(7, 70)]);
        tell.lock().unwrap().extend(outcomes.map(|outcome| outcome.err()));
    }));
    let (program, block) = raise(30, 1);
    let mut worker = host.worker().unwrap();
    let update = worker.bulk_update(0, &program, &block).unwrap();
    assert_eq!(*told.lock().unwrap(), [Some(HostError::Conflict(Conflict::Busy)), None, None]);
    assert_eq!(update.ran().taken, 3);
    update.commit().unwrap();
    let values: Vec<i64> = all(host).into_values().collect();
    assert_eq!(values, [0, 98, 20, 31, 41, 51, 70]);
    set(host, 4, 1).unwrap();
    assert_eq!(source.locks.held(), 0);
}
