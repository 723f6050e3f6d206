//! The same bulk update, run on the host: the way of a storage that only stores, to compare with.
//!
//! The whole table comes from the storage, row by row; the host evaluates the row program, locks and checks what it
//! changes, installs the new versions as one host transaction, and flushes them back. It keeps the same rules as a bulk
//! update in the storage: first updater wins, and all or nothing.
//!
//! Which version of a tuple the snapshot saw is told by a copy of the VID map, taken together with the snapshot
//! while nothing newer can get into the storage: what has a place there is what the snapshot sees. Trade-off: the
//! new versions are all in the host's memory until they are flushed, whatever the limits of the shared state.

use std::sync::{Arc, PoisonError};

use lockwork_locking::LockMode;
use lockwork_procedure::program::Procedure;

use super::Worker;
use super::bulk::{nonsense, operation};
use super::error::{Conflict, HostError};
use super::locks::LockKey;
use super::recent::Row;
use super::session::Session;
use super::sessions::{Event, Views};
use super::table::{HostTable, is_place};
use crate::device::{DeviceError, Operation, Piece, Purpose, Ran, TableId, TransactionId};
use crate::record::{Timestamp, Vid, VidEntry};
use crate::row_program::{Evaluator, RowProgram};

impl Worker<'_> {
    /// As [`Self::bulk_update`] and its commit, but the rows are evaluated on the host. Answers rows looked at and
    /// updated, and the timestamp. Durable when it returns.
    ///
    /// # Errors
    /// As [`Self::bulk_update`], and [`HostError::Conflict`]; then nothing has changed. If only the flush at the end
    /// fails, the update is committed and visible but not durable.
    pub fn bulk_update_on_host(
        &mut self,
        table: TableId,
        program: &Procedure,
        block: &[u8],
    ) -> Result<(Ran, Timestamp), HostError> {
        let host = self.session.host;
        let age = self.bulk_age.take().unwrap_or_else(|| host.next_age());
        let (_, program) = operation(host, table, Purpose::Update(TransactionId(age)), program, block)?;
        let table = host.table(table)?;
        self.session.begin(age);
        let done = self.session.update_here(table, &program);
        self.session.end();
        let event = if done.is_ok() { Event::BulkCommitted } else { Event::BulkAborted };
        self.session.line.count(event, 1);
        let again = &mut self.bulk_age;
        let (ran, timestamp) = done.inspect_err(|error| *again = error.is_retryable().then_some(age))?;
        host.flush_table(table)?;
        Ok((ran, timestamp))
    }
}

impl<'h> Session<'h> {
    fn update_here(&mut self, table: &'h HostTable, program: &RowProgram) -> Result<(Ran, Timestamp), HostError> {
        let host = self.host;
        self.gate(table.id, LockMode::Exclusive)?;
        let (snapshot, entries) = self.see(table)?;
        let (ran, changed) = evaluate(self, table, program, snapshot)?;
        for &(vid, _) in &changed {
            let seen = entries.get(vid.0 as usize).copied().unwrap_or_default();
            self.lock(LockKey::Tuple { table: table.id, vid }, LockMode::Exclusive)?;
            if !is_place(seen.record()) || !table.vids.get(vid).is_same_version(seen) {
                return Err(HostError::Conflict(Conflict::Superseded));
            }
        }
        let doubt = host.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(doubt) = &*doubt {
            return Err(doubt.refusal());
        }
        let (created, views) = (host.clock.reserve(), Views::default());
        for (vid, image) in changed {
            let number = table.number_of(table.vids.get(vid)) + 1;
            table.install(vid, Row { number, created, image: Some(image), bulk: true }, &views, &host.cache);
        }
        host.clock.jump(created);
        Ok((ran, created))
    }
}

impl<'h> Session<'h> {
    /// Takes the snapshot, stores what it sees, and copies the VID map: what has a place there is what it sees.
    fn see(&mut self, table: &'h HostTable) -> Result<(Timestamp, Vec<VidEntry>), HostError> {
        let host = self.host;
        // Neither a bulk update nor a flush may place what is newer.
        let _no_commit = host.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        let _no_flush = table.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.renew();
        host.store_up_to(table, snapshot, &self.line)?;
        Ok((snapshot, (0..table.vids_taken()).map(|vid| table.vids.get(Vid(vid))).collect()))
    }
}

type Changed = Vec<(Vid, Arc<[u8]>)>;

/// Streams the table and evaluates the program on every row.
fn evaluate(
    session: &Session<'_>,
    table: &HostTable,
    program: &RowProgram,
    snapshot: Timestamp,
) -> Result<(Ran, Changed), HostError> {
    let (everything, block) = RowProgram::everything(&table.schema);
    let (filter, _) = operation(session.host, table.id, Purpose::Filter, &everything, &block)?;
    let mut evaluator = Evaluator::new(program);
    let (mut changed, mut failure, mut rows, mut sound) = (Vec::<(Vid, Arc<[u8]>)>::new(), None, 0, true);
    let ran = session.host.device().run(&Operation { snapshot, ..filter }, &mut |piece| {
        let Piece::Rows { vids, images } = piece else { return sound = false };
        sound &= images.len() == vids.len() * table.image_bytes();
        rows += vids.len() as u64;
        for (&vid, image) in vids.iter().zip(images.chunks_exact(table.image_bytes())) {
            match evaluator.change(image) {
                Ok(Some(image)) => changed.push((vid, image.into())),
                Ok(None) => {}
                Err(code) => failure = Some(DeviceError::RowFailed { table: table.id, vid, code }),
            }
        }
    })?;
    changed.sort_unstable_by_key(|(vid, _)| *vid);
    if !sound || ran.taken != rows || changed.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(nonsense("rows that do not fit the question"));
    }
    let taken = changed.len() as u64;
    failure.map_or(Ok((Ran { rows: ran.rows, taken }, changed)), |failure| Err(failure.into()))
}
