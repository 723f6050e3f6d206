//! What all parts of the store share: the disk, the maps in memory, the space, and the snapshots in use.
//!
//! Locks are taken in this order, and none is held during a read or write of rows: head, state, space. So
//! short calls go on while a bulk operation waits for the disk.
//!
//! Invariant: no slot becomes free that a call under way may still want: the watermark of the host is lowered to the
//! oldest snapshot that is being worked on ([`Core::watermark`]).
//!
//! After a sync that failed nobody knows what of the pages written before it will ever be durable, and the next one may
//! succeed without them. So syncs are counted that failed ([`Core::failed_syncs`]), and no seal names a page that was
//! written before the last of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::StoreConfig;
use super::disk::{Disk, Page};
use super::error::{corrupt, disk_error, sync_error};
use super::head::Head;
use super::page::{Header, checksum};
use super::space::{Pin, Space, lock};
use super::state::{Place, State};
use crate::device::DeviceError;
use crate::record::Timestamp;

/// What all parts of the store share.
pub(super) struct Core {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) space: Mutex<Space>,
    state: RwLock<State>,
    head: Mutex<Head>,
    snapshots: Mutex<BTreeMap<Timestamp, u32>>,
    /// Held during a sync, so that one that fails is counted before the next one succeeds.
    syncing: Mutex<()>,
    failed_syncs: AtomicU64,
    /// Why nothing can be written any more.
    broken: OnceLock<DeviceError>,
    growth: u32,
    most: u32,
    /// The most tuples of a table.
    pub(super) tuples: u32,
}

/// A snapshot that is being worked on.
pub(super) struct Watch<'c> {
    core: &'c Core,
    snapshot: Timestamp,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut snapshots = lock(&self.core.snapshots);
        let count = snapshots.get_mut(&self.snapshot).expect("the snapshot is counted");
        *count -= 1;
        if *count == 0 {
            snapshots.remove(&self.snapshot);
        }
    }
}

impl Core {
    pub(super) fn new(disk: Arc<dyn Disk>, head: Head, space: Space, state: State, config: &StoreConfig) -> Self {
        let (space, state, head) = (Mutex::new(space), RwLock::new(state), Mutex::new(head));
        Self {
            disk,
            space,
            state,
            head,
            snapshots: Mutex::default(),
            syncing: Mutex::default(),
            failed_syncs: AtomicU64::new(0),
            broken: OnceLock::new(),
            growth: config.growth_pages.max(1),
            most: config.most_pages,
            tuples: config.tuples,
        }
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what `snapshot` sees until the result is dropped.
    pub(super) fn watch(&self, snapshot: Timestamp) -> Watch<'_> {
        *lock(&self.snapshots).entry(snapshot).or_default() += 1;
        Watch { core: self, snapshot }
    }

    /// The watermark of the host, or the oldest snapshot being worked on if that is older.
    pub(super) fn watermark(&self, asked: Timestamp) -> Timestamp {
        lock(&self.snapshots).keys().next().copied().unwrap_or(asked).min(asked)
    }

    /// Keeps physical pages from being written until the result is dropped.
    pub(super) fn pin(&self) -> Pin<'_> {
        Pin::new(&self.space)
    }

    /// Physical pages to write to; the file grows if need be.
    pub(super) fn allocate(&self, count: usize) -> Result<Vec<u32>, DeviceError> {
        loop {
            if let Some(error) = self.broken.get() {
                return Err(error.clone());
            }
            if let Some(pages) = lock(&self.space).take(count) {
                return Ok(pages);
            }
            self.grow(count as u32)?;
        }
    }

    /// How many syncs have failed: to be asked before a page is written.
    pub(super) fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Ordering::SeqCst)
    }

    /// Makes durable what was written since the last sync that failed.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        let _alone = lock(&self.syncing);
        self.disk.sync().map_err(|error| {
            self.failed_syncs.fetch_add(1, Ordering::SeqCst);
            sync_error(&error)
        })
    }

    /// A write failed and taking it back failed too: pages that look free may count after all.
    pub(super) fn close_for_writing(&self, error: &DeviceError) {
        let text = "a write failed and could not be taken back; open the storage again to go on writing";
        self.broken.get_or_init(|| DeviceError::Io(format!("{text} ({error})")));
    }

    /// Whether nothing more is written.
    pub(super) fn is_closed_for_writing(&self) -> bool {
        self.broken.get().is_some()
    }

    fn grow(&self, count: u32) -> Result<(), DeviceError> {
        let mut head = lock(&self.head);
        let free = lock(&self.space).free_pages();
        let Some(missing) = count.checked_sub(free).filter(|&missing| missing > 0) else { return Ok(()) };
        let pages = head.pages.saturating_add(self.growth.max(missing)).min(self.most);
        let least = head.pages.saturating_add(missing);
        if pages < least {
            return Err(DeviceError::Full(format!(
                "{count} pages are wanted, {free} of {} are free, and it may have at most {}; collect old versions, or \
                 allow it more",
                head.pages, self.most
            )));
        }
        let grown = match self.disk.grow(pages) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull && pages > least => {
                self.disk.grow(least).map(|()| least)
            }
            other => other.map(|()| pages),
        };
        let pages = grown.map_err(|error| disk_error("allocating", head.pages, &error))?;
        head.write(&*self.disk, pages, || self.sync())?;
        lock(&self.space).lengthen(pages);
        Ok(())
    }

    /// Reads the page at `place` and checks that it is what its seal says.
    pub(super) fn read(&self, logical: u32, place: &Place, page: &mut [Page; 1]) -> Result<Header, DeviceError> {
        self.disk.read(place.physical, page).map_err(|error| disk_error("reading", place.physical, &error))?;
        check(&page[0], logical, place)
    }
}

/// Checks that a page is the one that its seal says is there.
pub(super) fn check(page: &Page, logical: u32, place: &Place) -> Result<Header, DeviceError> {
    let physical = place.physical;
    match checksum(page) {
        None => return Err(corrupt(physical, "its checksum is wrong; restore the file from a copy")),
        Some(sum) if sum != place.checksum => {
            return Err(corrupt(physical, "it holds something else than was written there last; restore the file"));
        }
        Some(_) => {}
    }
    let header = Header::read(page).filter(|header| header.logical == logical);
    header.ok_or_else(|| corrupt(physical, format_args!("it is not logical page {logical}; restore the file")))
}
