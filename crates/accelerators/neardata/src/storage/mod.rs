//! Smart storage: a file of versions that processing elements read, filter and update where it lies (neoDBMS).
//!
//! ```text
//!  tuple --VID map--> record id (logical page, slot) --page map--> page of the file
//!                       |
//!                       +-- previous --> record id of the version before --> ...    (new to old)
//! ```
//!
//! The file is written like a log: a page is written to a free place, and what it replaces becomes free when a *seal*
//! has made the new one count. Example, a file with tuples 0 and 1 in logical page 2, and a bulk update of tuple 1:
//!
//! ```text
//! place    2       3            4        5                6
//! flushed  schema  seal 1: 1>2  0v1 1v1  seal 2: 1>2 2>4
//! updated  schema               0v1 1v1  seal 2           1v2, created at 0
//! at 9     schema               0v1 1v1                   1v2, created at 0   seal 3: 1>2 2>4, and 3>6 as of 9
//! ```
//!
//! (Seals are written twice.) Seal 2 has taken over what seal 1 listed, whose place is free then. After a crash in the
//! third line no seal names place 6, so it is free as well. In the last line seal 3 puts logical page 3 there, and says
//! that versions in it without a time were created at 9. A snapshot at 8 still finds 1v1 through the `previous` of 1v2;
//! once the watermark is 9, the slot of 1v1 is free.
//!
//! | module | idea |
//! |---|---|
//! | `disk` | pages in and out; a file with direct I/O, a memory that fails on demand |
//! | `page`, `head` | what the bytes mean |
//! | `seal`, `unit`, `write` | how pages come to count, all at once |
//! | `recovery` | what counts after opening |
//! | `space`, `state`, `core` | what is free, where things are, and who may wait for whom |
//! | `sweep`, `walk` | many pages in one go; the version that a snapshot sees |
//! | `bulk` | the processing elements that run row programs |
//!
//! Invariant: what a call has done is durable when it returns; what it has not done has left no trace. Trade-offs:
//! opening reads the file twice, since there is no checkpoint; a removed tuple keeps one record, because its VID is
//! never used again and a host that opens the table must know; a snapshot that needs old versions reads their pages
//! once more in each window, because which they are is known only when the new ones have been seen.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex};

use lockwork_procedure::schema::TableSchema;

use crate::device::{Device, DeviceError, DeviceStatus, LockSource, Operation, Piece, Purpose, Ran, TableId};
use crate::device::{TransactionId, Tuple, Version};
use crate::record::{RecordId, Timestamp, Vid};

mod bulk;
mod core;
pub mod disk;
mod error;
mod head;
mod page;
mod recovery;
mod seal;
mod space;
mod state;
mod sweep;
mod unit;
mod walk;
mod write;

use bulk::Changes;
use core::Core;
use disk::{DirectDisk, Disk};
use head::Head;
use recovery::{Recovered, recover};
use seal::Seals;
use space::lock;
use unit::forget;
use walk::{WINDOW, Walker};

/// What a store is given.
#[derive(Clone)]
pub struct StoreConfig {
    /// Processing elements: threads of a bulk operation.
    pub elements: usize,
    /// Locks for bulk updates.
    pub locks: Arc<dyn LockSource>,
    /// Pages by which the file grows.
    pub growth_pages: u32,
    /// The most pages it may have.
    pub most_pages: u32,
    /// The most tuples of a table: so many words of memory a map can take.
    pub tuples: u32,
}

impl StoreConfig {
    /// The usual: growth by 64 MiB, tables of 2^28 tuples, no limit but the file system's.
    #[must_use]
    pub fn new(elements: usize, locks: Arc<dyn LockSource>) -> Self {
        Self { elements, locks, growth_pages: 8192, most_pages: u32::MAX, tuples: 1 << 28 }
    }
}

/// A bulk update that has not been decided.
enum Pending {
    /// Its processing elements are at work.
    Running,
    /// It waits.
    Ready { table: TableId, snapshot: Timestamp, changes: Changes },
}

/// Smart storage over one disk.
pub struct Store {
    core: Core,
    seals: Mutex<Seals>,
    pending: Mutex<HashMap<TransactionId, Pending>>,
    elements: usize,
    locks: Arc<dyn LockSource>,
}

impl Store {
    /// Opens a file, creating it if it is not there.
    ///
    /// # Errors
    /// Another opener, a file that is none of ours, truncated or corrupt, or a failing disk.
    pub fn open(path: &Path, config: &StoreConfig) -> Result<Self, DeviceError> {
        let named = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let disk = DirectDisk::open(path).map_err(|error| DeviceError::Io(named(&error)))?;
        Self::over(Arc::new(disk), config).map_err(|error| match error {
            DeviceError::Io(text) => DeviceError::Io(named(&text)),
            DeviceError::Full(text) => DeviceError::Full(named(&text)),
            DeviceError::Corrupt(text) => DeviceError::Corrupt(named(&text)),
            other => other,
        })
    }

    /// Opens a disk, which nobody else has open.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over(disk: Arc<dyn Disk>, config: &StoreConfig) -> Result<Self, DeviceError> {
        let elements = config.elements;
        if !(1..=1024).contains(&elements) {
            let text = format!("{elements} processing elements are not possible; give 1 to 1024");
            return Err(DeviceError::Refused(text));
        }
        let head = Head::open(&*disk)?;
        let Recovered { state, space, seals } = recover(&*disk, &head)?;
        let core = Core::new(disk, head, space, state, config);
        let (seals, pending, locks) = (Mutex::new(seals), Mutex::default(), config.locks.clone());
        Ok(Self { core, seals, pending, elements, locks })
    }

    /// How the disk is reached, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}, {} processing elements", self.core.disk.describe(), self.elements)
    }

    /// Takes an update that waits off the list.
    fn take_ready(&self, transaction: TransactionId) -> Option<(TableId, Timestamp, Changes)> {
        let mut pending = lock(&self.pending);
        match pending.remove(&transaction)? {
            Pending::Ready { table, snapshot, changes } => Some((table, snapshot, changes)),
            Pending::Running => {
                pending.insert(transaction, Pending::Running);
                None
            }
        }
    }

    /// Runs an update and keeps its changes until they are decided on.
    fn update(
        &self,
        transaction: TransactionId,
        operation: &Operation,
        piece: &mut dyn FnMut(Piece<'_>),
    ) -> Result<Ran, DeviceError> {
        /// Takes the transaction off the list unless its changes have come.
        struct Entered<'s>(&'s Store, TransactionId);
        impl Drop for Entered<'_> {
            fn drop(&mut self) {
                let mut pending = lock(&self.0.pending);
                if matches!(pending.get(&self.1), Some(Pending::Running)) {
                    pending.remove(&self.1);
                }
            }
        }
        match lock(&self.pending).entry(transaction) {
            Entry::Vacant(entry) => drop(entry.insert(Pending::Running)),
            Entry::Occupied(_) => {
                let text = format!("transaction {} has run already; commit or abort it", transaction.0);
                return Err(DeviceError::Refused(text));
            }
        }
        let _entered = Entered(self, transaction);
        let (ran, changes) = bulk::run(&self.core, &*self.locks, self.elements, operation, piece)?;
        let ready = Pending::Ready { table: operation.table, snapshot: operation.snapshot, changes };
        lock(&self.pending).insert(transaction, ready);
        Ok(ran)
    }
}

impl Device for Store {
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError> {
        write::create_table(&self.core, &mut lock(&self.seals), schema)
    }

    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        Ok(self.core.state().tables.iter().map(|table| table.schema.clone()).collect())
    }

    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        // The newest versions are wanted, whatever snapshots there are; nothing is collected meanwhile.
        let _watch = self.core.watch(0);
        let (count, key_bytes) = {
            let state = self.core.state();
            let table = state.table(table)?;
            (table.vids.len() as u32, table.schema.key_bytes() as usize)
        };
        let mut walker = Walker::new(&self.core);
        for first in (0..count).step_by(WINDOW as usize) {
            let vids = first..first.saturating_add(WINDOW).min(count);
            walker.window(table, vids, Timestamp::MAX, |found, shape| {
                let key = if found.removed { &[] } else { &found.image(shape)[..key_bytes] };
                let (vid, number, created, record) = (found.vid, found.number, found.created, found.record);
                each(Tuple { vid, number, created, record, key });
                Ok(())
            })?;
        }
        Ok(())
    }

    fn flush(&self, table: TableId, versions: &[Version], watermark: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        write::flush(&self.core, &mut lock(&self.seals), table, versions, watermark)
    }

    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError> {
        walk::find(&self.core, table, vid, snapshot, |found, shape| {
            let image = (!found.removed).then(|| found.image(shape).into());
            Version { vid, number: found.number, created: found.created, image }
        })
    }

    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        match operation.purpose {
            Purpose::Update(transaction) => self.update(transaction, operation, piece),
            _ => bulk::run(&self.core, &*self.locks, self.elements, operation, piece).map(|(ran, _)| ran),
        }
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError> {
        let mut seals = lock(&self.seals);
        let Some((table, snapshot, changes)) = self.take_ready(transaction) else {
            let text = format!("transaction {} is not waiting to be committed; run an update first", transaction.0);
            return Err(DeviceError::Refused(text));
        };
        let closed_before = self.core.is_closed_for_writing();
        let result = if timestamp > snapshot {
            write::commit(&self.core, &mut seals, table, &changes, timestamp)
        } else {
            let text = format!("timestamp {timestamp} is not after the snapshot of the transaction, {snapshot}");
            Err(DeviceError::Refused(text))
        };
        result.map_err(|error| {
            lock(&self.pending).insert(transaction, Pending::Ready { table, snapshot, changes });
            if closed_before || !self.core.is_closed_for_writing() {
                return error;
            }
            // The seal may have become durable and could not be taken back: only who opens the file again will know.
            DeviceError::Gone(format!("whether the update was committed is not known: {error}"))
        })
    }

    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError> {
        if let Some((_, _, changes)) = self.take_ready(transaction) {
            forget(&self.core, changes.targets);
        }
        Ok(())
    }

    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError> {
        write::collect(&self.core, &mut lock(&self.seals), watermark)
    }

    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        let (versions, newest) = {
            let state = self.core.state();
            (state.versions, state.newest)
        };
        let space = lock(&self.core.space);
        let (pages, free_pages) = (u64::from(space.pages()), u64::from(space.unused_pages()));
        Ok(DeviceStatus { pages, free_pages, versions, newest })
    }
}
