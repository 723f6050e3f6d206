//! A host whose storage died gets another one on the same file.
//!
//! The host still has every commit that the storage did not have. What it does not know is what the storage managed to
//! store before it died: flushes and the commit of a bulk update whose answers were lost. The version numbers tell: a
//! version that the storage has is stored, and an update whose new versions it has took place.
//!
//! Invariant: while an update is in doubt nothing that writes commits, whoever has the locks of the dead, so its
//! versions are still the next ones when the doubt ends. Its timestamp, reserved far ahead, is above all that was
//! issued since.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::error::{Conflict, HostError};
use super::sessions::Event;
use super::table::{HostTable, is_place};
use super::{Host, open_table};
use crate::device::{Device, DeviceError, Modified, TableId, TransactionId, Tuple};
use crate::record::{RecordId, Timestamp, Vid, VidEntry};

/// A bulk update of which nobody knows whether it was committed.
#[derive(Debug)]
pub(super) struct Doubt {
    pub(super) table: TableId,
    pub(super) transaction: TransactionId,
    pub(super) timestamp: Timestamp,
    pub(super) modified: Vec<Modified>,
}

impl Doubt {
    /// Why nothing can be committed.
    pub(super) fn refusal(&self) -> HostError {
        let timestamp = self.timestamp;
        HostError::InDoubt { timestamp, why: "its end is not known yet".into() }
    }
}

impl Host {
    /// Why nothing can be committed now.
    #[cold]
    pub(super) fn refuse_in_doubt(&self) -> HostError {
        let doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.as_ref().map_or(HostError::Conflict(Conflict::Busy), Doubt::refusal)
    }

    /// Goes on with another storage over the same file: one that was started anew. Nothing that was committed is lost,
    /// and an update that was in doubt is known to be committed or to be gone: answers its timestamp if it was
    /// committed.
    ///
    /// Call it while no other call is under way; what was under way when the storage died has failed.
    ///
    /// # Errors
    /// The storage fails too, or is not the same one; then the host goes on without.
    pub fn reattach(&self, device: Arc<dyn Device>) -> Result<Option<Timestamp>, HostError> {
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = device.tables()?;
        if !tables.starts_with(&self.tables()) {
            return Err(HostError::BadRequest("the storage has other tables than the host".into()));
        }
        let mut committed = false;
        for table in self.all_tables() {
            let open = doubt.as_ref().filter(|doubt| doubt.table == table.id);
            committed |= self.compare(table, &*device, open.map_or(&[], |doubt| &doubt.modified))?;
        }
        // It may have died between making a table and saying so.
        for (id, schema) in tables.into_iter().enumerate().skip(self.all_tables().count()) {
            let (table, _) = open_table(id, schema, &self.maps, &self.shared_bytes, &*device)?;
            assert!(self.tables[id].set(table).is_ok(), "nobody else makes tables");
        }
        *self.device.write().unwrap_or_else(PoisonError::into_inner) = device;
        let Some(Doubt { table, transaction, timestamp, modified }) = doubt.take() else { return Ok(None) };
        if committed {
            let table = self.table(table)?;
            for Modified { vid, number, record } in modified {
                table.install_stored(vid, number, record, &self.cache);
            }
            self.clock.jump(timestamp);
        }
        self.in_doubt.store(false, Ordering::SeqCst);
        self.locks.release_transaction(transaction);
        let line = self.sessions.join();
        line.count(if committed { Event::BulkCommitted } else { Event::BulkAborted }, 1);
        self.sessions.leave(&line);
        Ok(committed.then_some(timestamp))
    }

    /// Takes note of what the storage has of a table, and answers whether it has the versions in doubt.
    fn compare(&self, table: &HostTable, device: &dyn Device, doubt: &[Modified]) -> Result<bool, HostError> {
        let _alone = table.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let doubt: HashMap<Vid, u32> = doubt.iter().map(|modified| (modified.vid, modified.number)).collect();
        let is_stored = |vid: &Vid| is_place(table.vids.get(*vid).record());
        let mut missing = (0..table.vids_taken()).map(Vid).filter(is_stored).count();
        let (mut found, mut unknown, mut older) = (0, None, None);
        device.tuples(table.id, &mut |Tuple { vid, number, record, .. }| {
            let entry = table.vids.get(vid);
            missing -= usize::from(is_place(entry.record()));
            if is_place(entry.record()) && table.number_of(entry) > number {
                older = Some(vid);
            }
            if doubt.get(&vid) == Some(&number) {
                found += 1;
            } else if table.number_of(entry) < number || !is_place(record) {
                unknown = Some(vid);
            } else {
                let (fresh, placed) = (VidEntry::new(number, RecordId::HOST), VidEntry::new(number, record));
                table.recent.stored(vid, number, || {
                    if table.vids.replace(vid, fresh, placed) {
                        return;
                    }
                    // Places may have changed when the storage was opened.
                    if entry.is_version(number) {
                        table.vids.replace(vid, entry, placed);
                    }
                });
            }
        })?;
        let name = table.schema.name();
        if let Some(vid) = unknown {
            let text = format!("table '{name}', tuple {}: the storage has a version that the host never made", vid.0);
            return Err(HostError::Device(DeviceError::Corrupt(text)));
        }
        if older.is_some() || missing > 0 {
            let (what, tuple) =
                (older.map_or(missing, |_| 1), older.map_or(String::new(), |vid| format!(", of tuple {}", vid.0)));
            let text =
                format!("table '{name}': the storage lacks {what} versions that it had{tuple}; is it an older file?");
            return Err(HostError::Device(DeviceError::Corrupt(text)));
        }
        if found != 0 && found != doubt.len() {
            let wanted = doubt.len();
            let text = format!("table '{name}': the storage has {found} of {wanted} versions of one update");
            return Err(HostError::Device(DeviceError::Corrupt(text)));
        }
        Ok(found != 0)
    }
}
