//! Versions go from the shared state to the storage.
//!
//! A flush of a table stores what a snapshot sees that it takes for itself: a consistent state, since everything up to
//! there is in place. Of each tuple it sends the versions that some snapshot sees, as of that timestamp too; the
//! storage makes them durable together. Then the VID map gets their places, by compare-and-swap on the version, so that
//! commits go on meanwhile, and the rows stay as cached copies, but for those of bulk updates, which would drive out
//! all others.
//!
//! Invariant: a version leaves the shared state only after it is durable. A flush that fails has changed nothing on the
//! host; what it was to store is still here, and is stored by the next one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Host;
use super::error::HostError;
use super::sessions::{Event, Line, Views};
use super::table::{HostTable, is_place};
use crate::device::{DeviceError, TableId, Version};
use crate::record::{RecordId, Timestamp, VidEntry};

impl Host {
    /// Makes all that was committed in a table before the call durable.
    ///
    /// # Errors
    /// No such table, or what the storage says; then nothing has changed.
    pub fn flush(&self, table: TableId) -> Result<(), HostError> {
        self.flush_table(self.table(table)?)
    }

    /// Makes all that was committed before the call durable, table by table.
    ///
    /// # Errors
    /// What the storage says; tables before the one that failed are flushed.
    pub fn flush_all(&self) -> Result<(), HostError> {
        self.all_tables().try_for_each(|table| self.flush_table(table))
    }

    /// As [`Self::flush`].
    pub(super) fn flush_table(&self, table: &HostTable) -> Result<(), HostError> {
        let _alone = table.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        /// Ends the snapshot of a flush, however that ends.
        struct Joined<'h>(&'h Host, Arc<Line>);
        impl Drop for Joined<'_> {
            fn drop(&mut self) {
                self.0.sessions.leave(&self.1);
            }
        }
        let joined = Joined(self, self.sessions.join(true));
        // A snapshot in use, so that nobody drops what it sees before it is stored.
        let until = joined.1.begin(&self.clock, false);
        self.store_up_to(table, until, &joined.1)
    }

    /// Stores what `until` sees of a table, a snapshot in use of whoever holds the table's flush lock.
    pub(super) fn store_up_to(&self, table: &HostTable, until: Timestamp, line: &Line) -> Result<(), HostError> {
        let mut views = Views::default();
        self.sessions.views(&self.clock, &mut views);
        let versions = table.recent.collect(until, &views);
        if versions.is_empty() {
            return Ok(());
        }
        let records = self.device().flush(table.id, &versions, views.oldest())?;
        if records.len() != versions.len() || !records.iter().copied().all(is_place) {
            let (name, wanted, found) = (table.schema.name(), versions.len(), records.len());
            let text = format!("table '{name}': {found} places for {wanted} versions, or places that are none");
            return Err(HostError::Device(DeviceError::Corrupt(text)));
        }
        let newest = versions.iter().map(|version| version.created).max().unwrap_or_default();
        self.stored.fetch_max(newest, Ordering::SeqCst);
        for (at, (version, record)) in versions.iter().zip(records).enumerate() {
            // Versions of a tuple stand together, the newest last.
            if versions.get(at + 1).is_none_or(|next| next.vid != version.vid) {
                self.stored(table, version, record);
            }
        }
        line.count(Event::Flush, 1);
        line.count(Event::FlushedVersion, versions.len() as u64);
        Ok(())
    }

    /// Takes note that a version, and those before it, are in the storage.
    fn stored(&self, table: &HostTable, version: &Version, record: RecordId) {
        let &Version { vid, number, .. } = version;
        let (fresh, placed) = (VidEntry::new(number, RecordId::HOST), VidEntry::new(number, record));
        let mut newest = false;
        let row = table.recent.stored(vid, number, || newest = table.vids.replace(vid, fresh, placed));
        if let Some(row) = row.filter(|row| newest && !row.bulk) {
            self.cache.keep(table.id, vid, row);
        }
    }

    /// Flushes if there is enough to flush and nobody else is at it. If it fails, the commits that wait for it are
    /// here, and it is tried again when there are some more.
    pub(super) fn flush_if_due(&self) {
        if self.shared_bytes() < self.flush_at.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(_alone) = self.flushing_all.try_lock() {
            let failed = self.flush_all().is_err();
            let more = if failed { self.shared_bytes() + self.config.flush_bytes / 8 } else { self.config.flush_bytes };
            self.flush_at.store(more, Ordering::Relaxed);
        }
    }

    /// Makes sure that a commit has room.
    ///
    /// # Errors
    /// [`HostError::Full`]: the shared state is full, and flushing it failed.
    pub(super) fn make_room(&self) -> Result<(), HostError> {
        let limit = self.config.shared_bytes;
        if self.shared_bytes() < limit {
            return Ok(());
        }
        let _alone = self.flushing_all.lock().unwrap_or_else(PoisonError::into_inner);
        for table in self.all_tables() {
            if self.shared_bytes() < limit {
                break;
            }
            self.flush_table(table).map_err(|error| {
                let bytes = self.shared_bytes();
                HostError::Full(format!("{bytes} bytes of versions are not stored, and storing them failed: {error}"))
            })?;
        }
        Ok(())
    }
}
