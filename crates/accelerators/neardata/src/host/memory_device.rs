//! A storage in memory, as plain as can be: the oracle of tests, and a storage that fails when it is told to.
//!
//! Every call is one step or more; [`MemoryDevice::fail_at`] lets the nth from now fail. A failure of
//! [`DeviceError::Gone`] is the death of the storage: everything fails from there on until [`MemoryDevice::revive`],
//! which finds what was committed and forgets the rest. A commit and a flush have one step before they take effect and
//! one after, so that a death can lose the answer alone.
//!
//! Invariant: versions of a tuple lie in the order of their numbers and of their timestamps.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

use crate::device::{
    Device, DeviceError, DeviceStatus, LockRefusal, LockSource, Modified, Operation, Piece, Purpose, Ran, TableId,
    TransactionId, Tuple, Version,
};
use crate::record::{RecordId, Timestamp, Vid};
use crate::row_program::{Evaluator, Folded, RowProgram};

/// Rows in a piece of an answer.
const PIECE: usize = 3;

#[derive(Clone, Debug)]
struct Stored {
    version: Version,
    record: RecordId,
}

#[derive(Debug)]
struct Table {
    schema: TableSchema,
    tuples: BTreeMap<Vid, Vec<Stored>>,
}

#[derive(Debug, Default)]
struct State {
    tables: Vec<Table>,
    staged: HashMap<TransactionId, Vec<(TableId, Stored)>>,
    records: u64,
    newest: Timestamp,
    /// Steps until a failure, and which.
    failure: Option<(u64, DeviceError)>,
    dead: bool,
}

impl State {
    fn step(&mut self) -> Result<(), DeviceError> {
        if self.dead {
            return Err(DeviceError::Gone("it died before".into()));
        }
        match &mut self.failure {
            Some((0, _)) => {
                let (_, error) = self.failure.take().expect("there is one");
                self.dead = matches!(error, DeviceError::Gone(_));
                Err(error)
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A step after something took effect: only a death is possible there.
    fn answer(&mut self) -> Result<(), DeviceError> {
        match &self.failure {
            Some((0, error)) if !matches!(error, DeviceError::Gone(_)) => Ok(()),
            _ => self.step(),
        }
    }

    fn table(&self, table: TableId) -> Result<&Table, DeviceError> {
        self.tables.get(usize::from(table)).ok_or_else(|| DeviceError::Refused(format!("there is no table {table}")))
    }

    fn place(&mut self) -> RecordId {
        self.records += 1;
        RecordId::new((1 + self.records / 256) as u32, (self.records % 256) as u8)
    }

    fn add(&mut self, table: TableId, stored: Stored) {
        self.newest = self.newest.max(stored.version.created);
        self.tables[usize::from(table)].tuples.entry(stored.version.vid).or_default().push(stored);
    }
}

fn visible(versions: &[Stored], snapshot: Timestamp) -> Option<&Stored> {
    versions.iter().rev().find(|stored| stored.version.created <= snapshot)
}

/// See the module.
pub struct MemoryDevice {
    state: Mutex<State>,
    locks: Arc<dyn LockSource>,
}

impl MemoryDevice {
    /// An empty one, whose bulk updates lock by `locks`.
    #[must_use]
    pub fn new(locks: Arc<dyn LockSource>) -> Self {
        Self { state: Mutex::default(), locks }
    }

    /// Lets step number `step` from now, counted from zero, fail with `error`.
    pub fn fail_at(&self, step: u64, error: DeviceError) {
        self.state().failure = Some((step, error));
    }

    /// Whether a failure is still to come.
    #[must_use]
    pub fn will_fail(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Starts the storage again on what it has stored.
    pub fn revive(&self) {
        let mut state = self.state();
        (state.dead, state.failure) = (false, None);
        state.staged.clear();
    }

    /// The rows of a table that a snapshot sees, by key image.
    ///
    /// # Panics
    /// If there is no such table.
    #[must_use]
    pub fn contents(&self, table: TableId, snapshot: Timestamp) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let state = self.state();
        let table = &state.tables[usize::from(table)];
        let seen = table.tuples.values().filter_map(|versions| visible(versions, snapshot)?.version.image.as_deref());
        seen.map(|image| (image[..table.schema.key_bytes() as usize].to_vec(), image.to_vec())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an update up to its last row.
    fn update(
        &self,
        operation: &Operation,
        transaction: TransactionId,
        rows: &[(Stored, Box<[u8]>)],
        evaluator: &mut Evaluator<'_>,
    ) -> Result<Vec<Modified>, DeviceError> {
        let table = operation.table;
        let refused = |vid: Vid, refusal| match refusal {
            LockRefusal::Superseded => DeviceError::Conflict { table, vid },
            LockRefusal::Busy => DeviceError::Busy { table, vid },
            LockRefusal::Failed(why) => DeviceError::Io(why),
        };
        let mut locks = self.locks.open(transaction, 0).map_err(|refusal| refused(Vid(0), refusal))?;
        let mut modified = Vec::new();
        for (stored, image) in rows {
            let Version { vid, number, .. } = stored.version;
            let taken = evaluator.change(image).map_err(|code| DeviceError::RowFailed { table, vid, code })?;
            let Some(new) = taken.map(Box::from) else { continue };
            self.state().step()?;
            locks.lock(table, vid, number).map_err(|refusal| refused(vid, refusal))?;
            let mut state = self.state();
            let record = state.place();
            let version = Version { vid, number: number + 1, created: 0, image: Some(new) };
            state.staged.entry(transaction).or_default().push((table, Stored { version, record }));
            modified.push(Modified { vid, number: number + 1, record });
        }
        let mut state = self.state();
        state.step()?;
        state.staged.entry(transaction).or_default();
        Ok(modified)
    }
}

impl Device for MemoryDevice {
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError> {
        let mut state = self.state();
        state.step()?;
        if state.tables.iter().any(|table| table.schema.name() == schema.name()) {
            return Err(DeviceError::Refused(format!("there is a table '{}' already", schema.name())));
        }
        state.tables.push(Table { schema: schema.clone(), tuples: BTreeMap::new() });
        Ok(state.tables.len() as TableId - 1)
    }

    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        let mut state = self.state();
        state.step()?;
        Ok(state.tables.iter().map(|table| table.schema.clone()).collect())
    }

    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.step()?;
        let table = state.table(table)?;
        for Stored { version, record } in table.tuples.values().filter_map(|versions| versions.last()) {
            let key = version.image.as_deref().map_or(&[][..], |image| &image[..table.schema.key_bytes() as usize]);
            let &Version { vid, number, created, .. } = version;
            each(Tuple { vid, number, created, record: *record, key });
        }
        Ok(())
    }

    fn flush(&self, table: TableId, versions: &[Version], _: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        let mut state = self.state();
        state.step()?;
        let known = state.table(table)?;
        let image_bytes = (known.schema.row_bytes() - ROW_HEADER_BYTES) as usize;
        let mut newest: HashMap<Vid, (u32, Timestamp)> = HashMap::new();
        for Version { vid, number, created, image } in versions {
            let stored = known.tuples.get(vid).and_then(|versions| versions.last());
            let before = stored.map_or((0, 0), |stored| (stored.version.number, stored.version.created));
            let before = newest.insert(*vid, (*number, *created)).unwrap_or(before);
            if *number <= before.0 || *created <= before.1 {
                let text = format!("tuple {}: version {number} of {created} does not follow {before:?}", vid.0);
                return Err(DeviceError::Refused(text));
            }
            if image.as_ref().is_some_and(|image| image.len() != image_bytes) {
                return Err(DeviceError::Refused(format!("tuple {}: its row is not {image_bytes} bytes long", vid.0)));
            }
        }
        let mut records = Vec::new();
        for version in versions {
            let record = state.place();
            records.push(record);
            state.add(table, Stored { version: version.clone(), record });
        }
        state.answer()?;
        Ok(records)
    }

    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError> {
        let mut state = self.state();
        state.step()?;
        let versions = state.table(table)?.tuples.get(&vid);
        Ok(versions.and_then(|versions| visible(versions, snapshot)).map(|stored| stored.version.clone()))
    }

    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        // The rows first, so that flushes, reads and waiting for locks do not stop each other.
        let (schemas, rows) = {
            let mut state = self.state();
            state.step()?;
            let tuples = state.table(operation.table)?.tuples.values();
            let seen = tuples.filter_map(|versions| visible(versions, operation.snapshot));
            let rows = seen.filter_map(|stored| Some((stored.clone(), stored.version.image.clone()?)));
            let rows: Vec<(Stored, Box<[u8]>)> = rows.collect();
            (state.tables.iter().map(|table| table.schema.clone()).collect::<Vec<_>>(), rows)
        };
        let program = RowProgram::new(operation, &schemas)?;
        let mut evaluator = Evaluator::new(&program);
        let mut ran = Ran { rows: rows.len() as u64, taken: 0 };
        if let Purpose::Update(transaction) = operation.purpose {
            let modified = self.update(operation, transaction, &rows, &mut evaluator).inspect_err(|_| {
                self.state().staged.remove(&transaction);
            })?;
            modified.chunks(PIECE).for_each(|modified| piece(Piece::Modified(modified)));
            ran.taken = modified.len() as u64;
            return Ok(ran);
        }
        let (mut vids, mut images) = (Vec::new(), Vec::new());
        let mut folded = Folded::default();
        for (stored, image) in &rows {
            let vid = stored.version.vid;
            let failed = |code| DeviceError::RowFailed { table: operation.table, vid, code };
            if evaluator.change(image).map_err(failed)?.is_none() {
                continue;
            }
            folded.add(&evaluator);
            ran.taken += 1;
            if operation.purpose == Purpose::Filter {
                vids.push(vid);
                images.extend_from_slice(image);
                if vids.len() == PIECE {
                    piece(Piece::Rows { vids: &vids, images: &images });
                    (vids, images) = Default::default();
                }
            }
        }
        match &operation.purpose {
            Purpose::Aggregate(folds) => {
                piece(Piece::Folded { rows: ran.taken, values: folded.values(folds)?.as_deref() });
            }
            _ if vids.is_empty() => {}
            _ => piece(Piece::Rows { vids: &vids, images: &images }),
        }
        self.state().step()?;
        Ok(ran)
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.step()?;
        let staged = state.staged.remove(&transaction);
        let staged = staged.ok_or_else(|| DeviceError::Refused(format!("there is no update {}", transaction.0)))?;
        state.newest = state.newest.max(timestamp);
        for (table, mut stored) in staged {
            stored.version.created = timestamp;
            state.add(table, stored);
        }
        state.answer()
    }

    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.staged.remove(&transaction);
        if state.dead { Err(DeviceError::Gone("it died before".into())) } else { Ok(()) }
    }

    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError> {
        let mut state = self.state();
        state.step()?;
        let mut freed = 0;
        for versions in state.tables.iter_mut().flat_map(|table| table.tuples.values_mut()) {
            let seen = versions.partition_point(|stored| stored.version.created <= watermark).saturating_sub(1);
            freed += versions.drain(..seen).len() as u64;
        }
        Ok(freed)
    }

    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        let mut state = self.state();
        state.step()?;
        let tuples = state.tables.iter().flat_map(|table| table.tuples.values());
        let versions = tuples.map(|versions| versions.len() as u64).sum();
        Ok(DeviceStatus { versions, newest: state.newest, ..DeviceStatus::default() })
    }
}
