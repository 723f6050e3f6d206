//! Bulk operations that the storage runs: filter, aggregate, update.
//!
//! | step of an update | where | what |
//! |---|---|---|
//! | 1 | host | guard, gate (if serializable), snapshot, flush: the storage has all that the snapshot sees |
//! | 2 | storage | for each row that the program takes: lock the tuple, check its version, make a new one |
//! | 3 | host | reserve a timestamp; the storage seals the new versions with it, durably |
//! | 4 | host | VID map, cached copies; then the timestamp becomes visible |
//! | 5 | host | the storage's locks, the gate and the guard go |
//!
//! Between 2 and 3 the update is a [`BulkUpdate`] in the caller's hands, to commit or to abort. Invariant: until 3
//! has happened, whatever goes wrong leaves the data as before, and the locks go. If the storage dies in the middle of
//! 3, nobody knows: the host commits nothing until it has a storage again (`reattach.rs`).
//!
//! Source: neoDBMS, section 3.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use lockwork_locking::LockMode;
use lockwork_procedure::assembly::encode;
use lockwork_procedure::program::Procedure;

use super::error::HostError;
use super::guard::Guard;
use super::reattach::Doubt;
use super::session::Session;
use super::sessions::Event;
use super::table::{HostTable, is_place};
use super::{Host, Worker};
use crate::device::{DeviceError, Fold, Modified, Operation, Piece, Purpose, Ran, TableId, TransactionId};
use crate::record::{Timestamp, Vid};
use crate::row_program::RowProgram;

/// The answer of an aggregate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregated {
    /// Rows looked at, and rows folded.
    pub ran: Ran,
    /// One value for each fold, in order; `None` if no row was taken.
    pub values: Option<Vec<i64>>,
}

impl<'h> Worker<'h> {
    /// Calls `row` with tuple and image of every row of a table for which the row program commits, in no particular
    /// order. `block` is a block of the program with its arguments. The rows are those of one snapshot, or, if
    /// serializable, of the moment: no writer is in the table meanwhile.
    ///
    /// # Errors
    /// [`HostError::RowProgram`] before anything is done; else what the storage says, and then what was given to
    /// `row` means nothing.
    pub fn filter(
        &mut self,
        table: TableId,
        program: &Procedure,
        block: &[u8],
        row: &mut dyn FnMut(Vid, &[u8]),
    ) -> Result<Ran, HostError> {
        self.read_in_bulk(table, program, block, Purpose::Filter, |table, piece| match piece {
            Piece::Rows { vids, images } if images.len() == vids.len() * table.image_bytes() => {
                vids.iter().zip(images.chunks(table.image_bytes())).for_each(|(&vid, image)| row(vid, image));
                true
            }
            _ => false,
        })
    }

    /// Folds results of the row program over all rows for which it commits; otherwise as [`Self::filter`].
    ///
    /// # Errors
    /// As [`Self::filter`]; a sum that overflows too.
    pub fn aggregate(
        &mut self,
        table: TableId,
        program: &Procedure,
        block: &[u8],
        folds: &[(String, Fold)],
    ) -> Result<Aggregated, HostError> {
        let (mut answer, purpose) = (None, Purpose::Aggregate(folds.to_vec()));
        let ran = self.read_in_bulk(table, program, block, purpose, |_, piece| match piece {
            Piece::Folded { values, .. } if values.is_none_or(|values| values.len() == folds.len()) => {
                answer.replace(values.map(<[i64]>::to_vec)).is_none()
            }
            _ => false,
        })?;
        answer.map(|values| Aggregated { ran, values }).ok_or_else(|| nonsense("no answer to an aggregate"))
    }

    /// Lets the storage make a new version of every row of a table for which the row program commits. They become
    /// visible with [`BulkUpdate::commit`].
    ///
    /// # Errors
    /// As [`Self::filter`]; [`DeviceError::Conflict`] and [`DeviceError::Busy`], which are worth another try: it keeps
    /// the age of this one. Then the data is as before and nothing is locked.
    pub fn bulk_update(
        &mut self,
        table: TableId,
        program: &Procedure,
        block: &[u8],
    ) -> Result<BulkUpdate<'_, 'h>, HostError> {
        let host = self.session.host;
        let transaction = TransactionId(self.bulk_age.take().unwrap_or_else(|| host.next_age()));
        let (operation, program) = operation(host, table, Purpose::Update(transaction), program, block)?;
        let again = &mut self.bulk_age;
        let done = BulkUpdate::run(&mut self.session, host.table(table)?, transaction, operation, program);
        done.inspect_err(|error| *again = error.is_retryable().then_some(transaction.0))
    }

    fn read_in_bulk(
        &mut self,
        table: TableId,
        program: &Procedure,
        block: &[u8],
        purpose: Purpose,
        mut take: impl FnMut(&HostTable, Piece<'_>) -> bool,
    ) -> Result<Ran, HostError> {
        let host = self.session.host;
        let (operation, _) = operation(host, table, purpose, program, block)?;
        let table = host.table(table)?;
        self.session.begin(host.next_age());
        // However the caller's code ends.
        let reading = Ending(&mut self.session);
        let operation = prepare(reading.0, table, operation, LockMode::Shared)?;
        let mut sound = true;
        let ran = host.device().run(&operation, &mut |piece| sound = sound && take(table, piece))?;
        if sound { Ok(ran) } else { Err(nonsense("pieces of an answer that do not fit the question")) }
    }
}

/// Ends the transaction of a session when it goes.
struct Ending<'s, 'h>(&'s mut Session<'h>);

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An operation whose program was checked, but for its snapshot.
pub(super) fn operation(
    host: &Host,
    table: TableId,
    purpose: Purpose,
    program: &Procedure,
    block: &[u8],
) -> Result<(Operation, RowProgram), HostError> {
    host.table(table)?;
    let operation = Operation { table, purpose, program: encode(program), block: block.to_vec(), snapshot: 0 };
    let program = RowProgram::new(&operation, &host.tables())?;
    Ok((operation, program))
}

/// Closes the gate, takes the snapshot, and lets the storage have what it sees.
fn prepare(
    session: &mut Session<'_>,
    table: &HostTable,
    operation: Operation,
    gate: LockMode,
) -> Result<Operation, HostError> {
    session.gate(table.id, gate)?;
    let snapshot = session.renew();
    let _alone = table.flushing.lock().unwrap_or_else(PoisonError::into_inner);
    session.host.store_up_to(table, snapshot, &session.line)?;
    Ok(Operation { snapshot, ..operation })
}

pub(super) fn nonsense(what: &str) -> HostError {
    HostError::Device(DeviceError::Corrupt(format!("the storage answered {what}")))
}

/// A bulk update that the storage has made and that nobody sees yet. Dropped, it is aborted.
pub struct BulkUpdate<'w, 'h> {
    session: &'w mut Session<'h>,
    table: &'h HostTable,
    transaction: TransactionId,
    guard: Arc<Guard>,
    modified: Vec<Modified>,
    ran: Ran,
    /// It is still to be taken back when it is dropped.
    open: bool,
}

impl<'w, 'h> BulkUpdate<'w, 'h> {
    /// Runs it up to the decision.
    fn run(
        session: &'w mut Session<'h>,
        table: &'h HostTable,
        transaction: TransactionId,
        operation: Operation,
        program: RowProgram,
    ) -> Result<Self, HostError> {
        let host = session.host;
        let (guard, (modified, ran)) = (table.guards.add(program), Default::default());
        let mut update = Self { session, table, transaction, guard, modified, ran, open: true };
        // From here on, whatever fails drops the update, which takes it back.
        host.sessions.wait_for_others(&update.session.line, host.config.timeout);
        update.session.begin(transaction.0);
        let operation = prepare(update.session, table, operation, LockMode::Exclusive)?;
        update.guard.set_snapshot(operation.snapshot);
        let (mut modified, mut sound) = (Vec::new(), true);
        let ran = host.device().run(&operation, &mut |piece| match piece {
            Piece::Modified(more) => modified.extend_from_slice(more),
            _ => sound = false,
        })?;
        modified.sort_unstable_by_key(|modified: &Modified| modified.vid);
        let twice = modified.windows(2).any(|pair| pair[0].vid == pair[1].vid);
        let follows = |Modified { vid, number, record }: &Modified| {
            *number > 1 && is_place(*record) && table.vids.get(*vid).is_version(*number - 1)
        };
        if !sound || twice || ran.taken != modified.len() as u64 || !modified.iter().all(follows) {
            return Err(nonsense("new versions that do not follow on the newest ones"));
        }
        (update.ran, update.modified) = (ran, modified);
        Ok(update)
    }

    /// Rows looked at, and rows updated.
    #[must_use]
    pub fn ran(&self) -> Ran {
        self.ran
    }

    /// What it saw: the rows as of this timestamp.
    #[must_use]
    pub fn snapshot(&self) -> Timestamp {
        self.session.snapshot()
    }

    /// Makes it durable, then visible to every snapshot that begins after this returns, and answers its timestamp. The
    /// timestamp lies far above those before it.
    ///
    /// # Errors
    /// What the storage says; then the update is aborted. [`HostError::InDoubt`] if the storage died meanwhile.
    pub fn commit(mut self) -> Result<Timestamp, HostError> {
        let (host, table) = (self.session.host, self.table);
        let mut doubt = host.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(doubt) = &*doubt {
            return Err(doubt.refusal());
        }
        let timestamp = host.clock.reserve();
        match host.device().commit(self.transaction, timestamp) {
            Ok(()) => {}
            Err(DeviceError::Gone(why)) => {
                let (transaction, modified) = (self.transaction, std::mem::take(&mut self.modified));
                *doubt = Some(Doubt { table: table.id, transaction, timestamp, modified });
                host.in_doubt.store(true, Ordering::SeqCst);
                self.open = false;
                return Err(HostError::InDoubt { timestamp, why });
            }
            Err(error) => return Err(error.into()),
        }
        for &Modified { vid, number, record } in &self.modified {
            table.install_stored(vid, number, record, &host.cache);
        }
        host.stored.fetch_max(timestamp, Ordering::SeqCst);
        host.clock.jump(timestamp);
        drop(doubt);
        host.locks.release_transaction(self.transaction);
        self.session.line.count(Event::BulkCommitted, 1);
        self.open = false;
        Ok(timestamp)
    }

    /// Takes it back.
    pub fn abort(self) {}
}

impl Drop for BulkUpdate<'_, '_> {
    fn drop(&mut self) {
        if self.open {
            let host = self.session.host;
            // A storage that is gone has forgotten it too.
            let _gone = host.device().abort(self.transaction);
            host.locks.release_transaction(self.transaction);
            self.session.line.count(Event::BulkAborted, 1);
        }
        self.table.guards.remove(&self.guard);
        self.session.end();
    }
}
