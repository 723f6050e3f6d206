//! A table as the host has it: key index, VID map, shared state, and how a version is found among them.
//!
//! ```text
//! key --index--> VID --shared state--> recent version
//!                 |---VID map--> number of the newest --cache--> cold row
//!                 `---device---> any version that is stored
//! ```
//!
//! Invariant: a look-up goes from the host to the storage, as versions do. A version that leaves the shared state
//! while it is looked for is in the storage already.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

use super::Host;
use super::cache::Cache;
use super::error::HostError;
use super::guard::Guards;
use super::index::KeyIndex;
use super::recent::{Recent, Row, Seen};
use super::sessions::{Event, Line, Views};
use super::vid_map::VidMap;
use crate::device::{Device, DeviceError, TableId, Tuple};
use crate::record::{RecordId, Timestamp, Vid, VidEntry};

/// See the module.
#[derive(Debug)]
pub(super) struct HostTable {
    pub(super) id: TableId,
    pub(super) schema: TableSchema,
    pub(super) index: KeyIndex,
    pub(super) vids: VidMap,
    pub(super) recent: Recent,
    /// What bulk updates that are under way are going to change.
    pub(super) guards: Guards,
    /// One flush at a time.
    pub(super) flushing: Mutex<()>,
    /// VIDs from here on were never used.
    next: AtomicU32,
    /// VIDs that were taken and not needed.
    spare: Mutex<Vec<Vid>>,
    /// The highest version number there ever was.
    highest: AtomicU32,
    /// Bytes of a row image that belong to no column.
    gaps: Vec<Range<usize>>,
}

impl HostTable {
    /// Opens table `id` of the storage, whose tuples are told to the index and to the VID map. Also answers
    /// the newest timestamp met.
    ///
    /// # Errors
    /// No memory, a failing storage, or tuples that cannot be.
    pub(super) fn open(
        id: TableId,
        schema: TableSchema,
        vids: VidMap,
        bytes: Arc<AtomicUsize>,
        device: &dyn Device,
    ) -> Result<(Self, Timestamp), HostError> {
        let index = KeyIndex::new(&schema, vids.capacity())?;
        vids.clear();
        let table = Self {
            id,
            index,
            vids,
            recent: Recent::new(bytes),
            guards: Guards::default(),
            flushing: Mutex::default(),
            next: AtomicU32::new(0),
            spare: Mutex::default(),
            highest: AtomicU32::new(0),
            gaps: schema.gaps().collect(),
            schema,
        };
        let (mut newest, mut wrong) = (0, None);
        device.tuples(id, &mut |tuple| {
            newest = newest.max(tuple.created);
            if wrong.is_none() {
                wrong = table.take_in(&tuple).err();
            }
        })?;
        wrong.map_or(Ok((table, newest)), Err)
    }

    /// Takes in a tuple that the storage has.
    fn take_in(&self, tuple: &Tuple<'_>) -> Result<(), HostError> {
        let wrong = |what: &str| {
            let Tuple { vid, number, .. } = tuple;
            let text = format!("table '{}', tuple {}, version {number}: {what}", self.schema.name(), vid.0);
            HostError::Device(DeviceError::Corrupt(text))
        };
        if tuple.vid.0 as usize >= self.vids.capacity() {
            return Err(HostError::TooManyTuples { table: self.schema.name().into(), capacity: self.vids.capacity() });
        }
        if tuple.number == 0 || !is_place(tuple.record) || self.vids.get(tuple.vid) != VidEntry::default() {
            return Err(wrong("told twice, or with no number or no place"));
        }
        if !tuple.key.is_empty() {
            if tuple.key.len() != self.schema.key_bytes() as usize {
                return Err(wrong("its key is of another length than the table's"));
            }
            if self.index.insert(&self.index.key(tuple.key), tuple.key, tuple.vid)?.is_some() {
                return Err(wrong("another tuple has the same key"));
            }
        }
        self.vids.set(tuple.vid, VidEntry::new(tuple.number, tuple.record));
        self.next.fetch_max(tuple.vid.0.saturating_add(1), Ordering::Relaxed);
        self.highest.fetch_max(tuple.number, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of a row image.
    pub(super) fn image_bytes(&self) -> usize {
        (self.schema.row_bytes() - ROW_HEADER_BYTES) as usize
    }

    /// Makes the bytes of an image that belong to no column zero.
    pub(super) fn clear_gaps(&self, image: &mut [u8]) {
        self.gaps.iter().for_each(|gap| image[gap.clone()].fill(0));
    }

    /// A VID that nobody has; `None` when the map is full.
    pub(super) fn take_vid(&self) -> Option<Vid> {
        if let Some(vid) = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Some(vid);
        }
        let within = |next: u32| ((next as usize) < self.vids.capacity()).then_some(next + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).ok().map(Vid)
    }

    /// Gives back a VID that was taken and that no key got.
    pub(super) fn give_back_vid(&self, vid: Vid) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(vid);
    }

    /// How many VIDs were ever taken.
    pub(super) fn vids_taken(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// The version of a tuple that a snapshot sees, if there is one.
    ///
    /// # Errors
    /// A failing storage.
    #[inline]
    pub(super) fn read(
        &self,
        vid: Vid,
        snapshot: Timestamp,
        host: &Host,
        line: &Line,
    ) -> Result<Option<Row>, DeviceError> {
        match self.recent.read(vid, snapshot) {
            Seen::Row(row) => return Ok(Some(row)),
            Seen::Older(false) => return Ok(None),
            Seen::Older(true) | Seen::Unknown => {}
        }
        let entry = self.vids.get(vid);
        if entry == VidEntry::default() {
            return Ok(None);
        }
        if let Some(row) = host.cache.newest(self.id, vid, entry).filter(|row| row.created <= snapshot) {
            line.count(Event::CacheHit, 1);
            return Ok(Some(row));
        }
        line.count(Event::DeviceRead, 1);
        let Some(version) = host.device().read(self.id, vid, snapshot)? else { return Ok(None) };
        let lengths = version.image.as_ref().is_none_or(|image| image.len() == self.image_bytes());
        if version.vid != vid || version.created > snapshot || version.number == 0 || !lengths {
            let text = format!("table '{}', tuple {}: the storage answered another one", self.schema.name(), vid.0);
            return Err(DeviceError::Corrupt(text));
        }
        let image = version.image.map(Arc::from);
        let row = Row { number: version.number, created: version.created, image, bulk: false };
        if self.vids.get(vid).is_version(row.number) {
            host.cache.keep(self.id, vid, row.clone());
        }
        Ok(Some(row))
    }

    /// Makes `row` the newest version of a tuple that the caller has locked.
    pub(super) fn install(&self, vid: Vid, row: Row, views: &Views, cache: &Cache) {
        let number = row.number;
        self.highest.fetch_max(number, Ordering::Relaxed);
        self.recent.install(vid, row, views);
        self.vids.set(vid, VidEntry::new(number, RecordId::HOST));
        cache.forget(self.id, vid);
    }

    /// Makes version `number`, which the storage has made, the newest of a tuple that is locked.
    pub(super) fn install_stored(&self, vid: Vid, number: u32, record: RecordId, cache: &Cache) {
        self.highest.fetch_max(number, Ordering::Relaxed);
        self.vids.set(vid, VidEntry::new(number, record));
        cache.forget(self.id, vid);
    }

    /// A number that is not below that of a tuple's newest version, and equal to it in the bits that an entry of the
    /// VID map keeps: that one itself, unless numbers of this table have outgrown those.
    pub(super) fn number_of(&self, entry: VidEntry) -> u32 {
        let highest = self.highest.load(Ordering::Relaxed);
        let kept = (entry.0 >> (64 - VidEntry::VERSION_BITS)) as u32;
        highest - (highest.wrapping_sub(kept) & ((1 << VidEntry::VERSION_BITS) - 1))
    }
}

/// Whether a record id names a place in the storage.
pub(super) fn is_place(record: RecordId) -> bool {
    record != RecordId::NONE && record != RecordId::HOST
}
