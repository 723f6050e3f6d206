//! A transaction that is driven step by step instead of by a procedure.
//!
//! It obeys the same rules as a procedure's ([`super`]). A step that fails with a conflict has doomed it: all that
//! follow fail alike, and so does commit. A transaction that is dropped is aborted.

use lockwork_procedure::schema::ROW_HEADER_BYTES;

use super::error::HostError;
use super::session::Session;
use super::sessions::Event;
use super::table::HostTable;
use crate::device::TableId;
use crate::record::Timestamp;

const HEADER: usize = ROW_HEADER_BYTES as usize;

/// See the module. [`super::Worker::begin`] gives one.
pub struct Transaction<'w, 'h> {
    session: &'w mut Session<'h>,
    failure: Option<HostError>,
}

impl<'w, 'h> Transaction<'w, 'h> {
    pub(super) fn new(session: &'w mut Session<'h>) -> Self {
        Self { session, failure: None }
    }

    /// The image of the row with this key: key columns, then values ([`lockwork_procedure::schema`], from offset 16).
    ///
    /// # Errors
    /// [`HostError::Conflict`], a key of the wrong length, no such table, a failing storage; so for all steps.
    pub fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<&[u8]>, HostError> {
        let row = self.step(table, key, |session, table| session.search(table, key))?;
        let length = self.session.host.table(table)?.image_bytes();
        // SAFETY: the copy is as long as a row and stays until the transaction ends.
        Ok((!row.is_null()).then(|| unsafe { std::slice::from_raw_parts(row.add(HEADER), length) }))
    }

    /// The values of the row with this key, to be written: what follows its key columns.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn update(&mut self, table: TableId, key: &[u8]) -> Result<Option<&mut [u8]>, HostError> {
        let row = self.step(table, key, |session, table| session.update(table, key))?;
        self.values(table, row)
    }

    /// Inserts a row with this key and answers its values, all zero, to be written; `None` if there is one already.
    ///
    /// # Errors
    /// As [`Self::get`], and [`HostError::Full`].
    pub fn insert(&mut self, table: TableId, key: &[u8]) -> Result<Option<&mut [u8]>, HostError> {
        let row = self.step(table, key, |session, table| session.insert(table, key))?;
        self.values(table, row)
    }

    /// Removes the row with this key when the transaction commits, and answers whether there is one.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn remove(&mut self, table: TableId, key: &[u8]) -> Result<bool, HostError> {
        self.step(table, key, |session, table| session.remove(table, key))
    }

    /// Calls `f` with the images of the first `limit` rows from a key on, in the order of their keys.
    ///
    /// # Errors
    /// As [`Self::get`], and a table that is not ordered.
    pub fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        limit: usize,
        f: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, HostError> {
        self.step(table, from, |session, table| {
            if !table.schema.is_ordered() {
                let text = format!("table '{}' is not ordered and cannot be scanned", table.schema.name());
                return Err(HostError::BadRequest(text));
            }
            session.scan(table, from, limit, f)
        })
    }

    /// Commits, and answers the serial stamp: twice the commit timestamp, or, if nothing was written, one more than
    /// twice the last timestamp that it saw.
    ///
    /// # Errors
    /// What doomed it, or [`HostError::Full`]; then nothing has changed.
    pub fn commit(mut self) -> Result<u64, HostError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let stamp = self.session.commit()?;
        self.session.line.count(Event::Committed, 1);
        self.session.host.flush_if_due();
        Ok(stamp)
    }

    /// Takes everything back.
    pub fn abort(self) {
        self.session.line.count(Event::Aborted, 1);
    }

    fn step<T>(
        &mut self,
        table: TableId,
        key: &[u8],
        step: impl FnOnce(&mut Session<'h>, &'h HostTable) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let table = self.session.host.table(table)?;
        let (name, wanted, found) = (table.schema.name(), table.schema.key_bytes() as usize, key.len());
        if found != wanted {
            let text = format!("a key of table '{name}' has {wanted} bytes, and {found} were given");
            return Err(HostError::BadRequest(text));
        }
        step(self.session, table).inspect_err(|error| self.failure = Some(error.clone()))
    }

    fn values(&mut self, table: TableId, row: *mut u8) -> Result<Option<&mut [u8]>, HostError> {
        if row.is_null() {
            return Ok(None);
        }
        let schema = &self.session.host.table(table)?.schema;
        let (start, end) = (schema.values_start() as usize, schema.row_bytes() as usize);
        // SAFETY: the copy is as long as a row, and nobody else has it while the transaction is borrowed.
        Ok(Some(unsafe { std::slice::from_raw_parts_mut(row.add(start), end - start) }))
    }

    /// The last timestamp whose commit the transaction saw when it began.
    #[must_use]
    pub fn snapshot(&self) -> Timestamp {
        self.session.snapshot()
    }
}

impl Drop for Transaction<'_, '_> {
    fn drop(&mut self) {
        self.session.end();
    }
}
