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
        // Everything is judged before anything is changed.
        let found: Vec<Found<'_>> = self
            .all_tables()
            .map(|table| {
                let open = doubt.as_ref().filter(|doubt| doubt.table == table.id);
                judge(table, &*device, open)
            })
            .collect::<Result<_, _>>()?;
        let (newest, known) = (device.status()?.newest, self.stored.load(Ordering::SeqCst));
        if newest < known {
            let text = format!("the storage's last commit is {newest}, and it had {known}; is it an older file?");
            return Err(HostError::Device(DeviceError::Corrupt(text)));
        }
        // It may have died between making a table and saying so.
        let more: Vec<(usize, HostTable)> = (tables.into_iter().enumerate().skip(found.len()))
            .map(|(id, schema)| Ok((id, open_table(id, schema, &self.maps, &self.shared_bytes, &*device)?.0)))
            .collect::<Result<_, HostError>>()?;
        let committed = found.iter().any(|found| found.committed);
        found.iter().for_each(Found::take_note);
        for (id, table) in more {
            assert!(self.tables[id].set(table).is_ok(), "nobody else makes tables");
        }
        *self.device.write().unwrap_or_else(PoisonError::into_inner) = device;
        let Some(Doubt { table, transaction, timestamp, modified }) = doubt.take() else { return Ok(None) };
        if committed {
            let table = self.table(table)?;
            for Modified { vid, number, record } in modified {
                table.install_stored(vid, number, record, &self.cache);
            }
            self.stored.fetch_max(timestamp, Ordering::SeqCst);
            self.clock.jump(timestamp);
        }
        self.in_doubt.store(false, Ordering::SeqCst);
        self.locks.release_transaction(transaction);
        let line = self.sessions.join(false);
        line.count(if committed { Event::BulkCommitted } else { Event::BulkAborted }, 1);
        self.sessions.leave(&line);
        Ok(committed.then_some(timestamp))
    }
}

/// What the storage has of a table.
struct Found<'h> {
    table: &'h HostTable,
    /// Versions whose places the host does not know: stored by a call whose answer was lost, or elsewhere than before.
    placed: Vec<(Vid, u32, RecordId)>,
    /// Whether it has the versions in doubt.
    committed: bool,
}

impl Found<'_> {
    fn take_note(&self) {
        let table = self.table;
        let _alone = table.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        for &(vid, number, record) in &self.placed {
            let entry = table.vids.get(vid);
            let (fresh, placed) = (VidEntry::new(number, RecordId::HOST), VidEntry::new(number, record));
            table.recent.stored(vid, number, || {
                if !table.vids.replace(vid, fresh, placed) && entry.is_version(number) {
                    table.vids.replace(vid, entry, placed);
                }
            });
        }
    }
}

/// Whether the storage can be the one that the host had, and what it has.
fn judge<'h>(table: &'h HostTable, device: &dyn Device, doubt: Option<&Doubt>) -> Result<Found<'h>, HostError> {
    let _alone = table.flushing.lock().unwrap_or_else(PoisonError::into_inner);
    let doubt: HashMap<Vid, u32> =
        doubt.iter().flat_map(|doubt| &doubt.modified).map(|modified| (modified.vid, modified.number)).collect();
    let mut told = vec![false; table.vids_taken() as usize];
    let (mut placed, mut in_doubt, mut problem) = (Vec::new(), 0, None);
    device.tuples(table.id, &mut |Tuple { vid, number, created, record, .. }| {
        let entry = table.vids.get(vid);
        let mut wrong = |what: &str| {
            problem.get_or_insert_with(|| format!(", tuple {}: the storage {what}", vid.0));
        };
        match told.get_mut(vid.0 as usize) {
            Some(told) if !*told => *told = true,
            Some(_) => return wrong("tells of it twice"),
            None => return wrong("has a version that the host never made"),
        }
        if doubt.get(&vid) == Some(&number) {
            in_doubt += 1;
        } else if table.number_of(entry) < number || !is_place(record) {
            wrong("has a version that the host never made");
        } else if table.recent.created(vid, number).is_some_and(|own| own != created) {
            wrong("has another version than the host made; is it another file?");
        } else if is_place(entry.record()) && !entry.is_version(number) {
            wrong("lacks a version that it had; is it an older file?");
        } else if entry != VidEntry::new(number, record) {
            placed.push((vid, number, record));
        }
    })?;
    let name = table.schema.name();
    let is_stored = |vid: &u32| is_place(table.vids.get(Vid(*vid)).record());
    let missing = (0..told.len() as u32).filter(|&vid| !told[vid as usize]).find(is_stored);
    if let Some(vid) = missing {
        problem.get_or_insert(format!(", tuple {vid}: the storage lacks a version that it had; is it an older file?"));
    }
    if in_doubt != 0 && in_doubt != doubt.len() {
        let wanted = doubt.len();
        problem.get_or_insert(format!(": the storage has {in_doubt} of {wanted} versions of one update"));
    }
    match problem {
        Some(problem) => Err(HostError::Device(DeviceError::Corrupt(format!("table '{name}'{problem}")))),
        None => Ok(Found { table, placed, committed: in_doubt != 0 }),
    }
}
