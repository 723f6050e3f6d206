//! A database in a folder: what is acknowledged is there after a crash ([`lockwork_sequencer`], `docs/durability.md`).

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::time::Duration;

use lockwork_engine::{Engine, EngineKind, Options};
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation};
use lockwork_procedure::block::Batch;
use lockwork_procedure::key::{Key, KeyFormat};
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};
use lockwork_sequencer::{self as sequencer, GatheredTables, Handle, Refused, RequestId};
use lockwork_sql as sql;
use lockwork_storage::{Database, Table};

use crate::cache::{Versions, named};
use crate::calls::{Answer, Procedures, set_request};
use crate::columns::Procedure;
use crate::prepared::Prepared;
use crate::value::Value;
use crate::{Error, SqlAnswer, unknown};

/// How a folder is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The engine that runs the calls. A folder can be opened with any one, whichever wrote it.
    pub engine: EngineKind,
    /// How it works.
    pub engine_options: Options,
    /// Order and durability.
    pub sequencer: sequencer::Options,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            engine: EngineKind::DETERMINISTIC,
            engine_options: Options::default(),
            sequencer: sequencer::Options::default(),
        }
    }
}

/// Procedures that callers of several threads look up.
pub(crate) type Known = Arc<RwLock<Procedures>>;

// Nothing panics while it changes them, so what a thread that panicked has left behind is whole.
pub(crate) fn read(known: &Known) -> RwLockReadGuard<'_, Procedures> {
    known.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write(known: &Known) -> RwLockWriteGuard<'_, Procedures> {
    known.write().unwrap_or_else(PoisonError::into_inner)
}

/// A way to call procedures of a database in a folder, for any number of threads ([`crate::Lockwork::caller`]). Calls
/// of several threads share a write and a sync of the log.
#[derive(Clone)]
pub struct Caller {
    pub(crate) handle: Handle,
    pub(crate) procedures: Known,
    pub(crate) versions: Versions,
}

impl Caller {
    /// Calls a procedure and waits until its answer is durable.
    ///
    /// # Errors
    /// As [`crate::Lockwork::call`], and what [`sequencer::Error`] has.
    pub fn call(&self, procedure: &str, arguments: &[(&str, Value)]) -> Result<Answer, Error> {
        self.call_block(procedure, arguments, None)
    }

    /// As [`Self::call`], but when a call with this id was made before, returns the first answer and runs nothing, also
    /// after a crash: for a call of which it is not known whether it was made. Make an id with [`crate::request_id`]
    /// before the first call. Ids are remembered for [`sequencer::Options::request_window`]; an older one is refused.
    ///
    /// # Errors
    /// As [`Self::call`]; [`sequencer::Error::RequestReused`] when the call with this id was another one,
    /// [`sequencer::Error::RequestTooOld`] and [`sequencer::Error::RequestInFuture`].
    pub fn call_once(&self, request: RequestId, procedure: &str, arguments: &[(&str, Value)]) -> Result<Answer, Error> {
        self.call_block(procedure, arguments, Some(request))
    }

    fn call_block(
        &self,
        procedure: &str,
        arguments: &[(&str, Value)],
        request: Option<RequestId>,
    ) -> Result<Answer, Error> {
        let (mut bytes, registered) = {
            let procedures = read(&self.procedures);
            let (bytes, registered) = procedures.block(procedure, arguments)?;
            (bytes, registered.clone())
        };
        set_request(&mut bytes, request);
        self.handle.call(&mut bytes)?;
        Ok(Answer { bytes, registered })
    }

    /// Runs a prepared statement with values for `$1` and so on, and waits until its answer is durable.
    ///
    /// # Errors
    /// As [`crate::Lockwork::run`].
    pub fn run(&self, prepared: &Prepared, values: &[sql::Value]) -> Result<SqlAnswer, Error> {
        let Some(block) = prepared.block(values)? else { return Ok(prepared.nothing()) };
        let (sender, ran) = mpsc::sync_channel(1);
        self.run_then(block, move |block| drop(sender.send(block)))?;
        prepared.answer(&ran.recv().map_err(|_| sequencer::Error::Closed)??)
    }

    /// As [`Self::run`] without waiting, by the block ([`Prepared::block`]): `then` gets it when it has run
    /// ([`Prepared::answer`]), on a thread of the database, and must neither wait nor panic. It is dropped when the
    /// database is closed before it knows.
    ///
    /// # Errors
    /// When the database is closed, and [`Error::Outdated`].
    pub fn run_then(
        &self,
        mut block: Vec<u8>,
        then: impl FnOnce(Result<Vec<u8>, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let _admitted = self.versions.admit_block(&mut block)?;
        Ok(self.handle.call_then(block, move |outcome| then(outcome.map_err(Error::from)))?)
    }

    /// Whether a prepared statement can still be called: neither has its table got an index since, nor has another
    /// statement taken its place in the cache.
    #[must_use]
    pub fn is_current(&self, prepared: &Prepared) -> bool {
        prepared.calls().all(|call| self.versions.is_current(call))
    }

    /// The most steps that a call of a procedure can take, as the verifier has proved: an instruction each.
    #[must_use]
    pub fn steps(&self, procedure: &Procedure) -> u64 {
        let procedures = read(&self.procedures);
        procedures.all().get(procedure.id as usize).map_or(0, |known| known.verified.step_bound())
    }

    /// As [`sequencer::Handle::busy_for`].
    #[must_use]
    pub fn busy_for(&self) -> Duration {
        self.handle.busy_for()
    }

    /// The rows that a call of this block asks for, table and key, as far as its arguments tell: no ranges, and none
    /// whose key is read from the database.
    #[must_use]
    pub fn keys(&self, block: &[u8]) -> Vec<(String, String)> {
        let Some((id, _)) = named(block) else { return Vec::new() };
        let registered = read(&self.procedures).all().get(id as usize).cloned();
        let Some(registered) = registered.filter(|registered| registered.block_bytes <= block.len()) else {
            return Vec::new();
        };
        let mut accesses = Vec::new();
        match (&registered.access, &registered.cover) {
            (AccessSet::Straight(straight), _) => straight.collect(&registered.verified, block, &mut accesses),
            (AccessSet::Sliced(slice), _) | (_, Some(slice)) => slice.collect(block, &mut accesses),
            _ => {}
        }
        accesses.retain(|access| access.known == Key::BYTES && access.operation != Operation::Scan);
        let named = |access: &KeyAccess| {
            let table = &registered.verified.tables()[usize::from(access.slot)];
            (registered.verified.procedure().tables[usize::from(access.slot)].clone(), table.key.text(&access.key))
        };
        accesses.iter().map(named).collect()
    }

    /// Copies all rows of some tables as of one moment between two batches. Calls wait while it copies, not longer.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::TooLarge`] when they take more than `most` bytes, and when the database is closed.
    pub fn rows(&self, tables: &[&str], most: u64) -> Result<Vec<Rows>, Error> {
        Ok(self.rows_at(tables, most)?.1)
    }

    /// As [`Self::rows`], with the number of the last record of the log that the rows have seen.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When copying does, which it never should.
    pub fn rows_at(&self, tables: &[&str], most: u64) -> Result<(u64, Vec<Rows>), Error> {
        let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
        if self.handle.is_divided() {
            return self.gathered(names, most);
        }
        let (sender, copied) = mpsc::sync_channel(1);
        let copy = move |engine: &dyn Engine, record| {
            let mut copied = Ok(Vec::new());
            engine.with_database(&mut |database| copied = Rows::copy(database, &names, most))?;
            copied.map(|rows| (record, rows))
        };
        self.handle.read_then(copy, move |outcome| drop(sender.send(outcome)))?;
        let copied = copied.recv().map_err(|_| sequencer::Error::Closed)??;
        copied.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Whether this process has a part of every table only, and other nodes the rest.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.handle.is_divided()
    }

    /// The same, where other nodes have the other parts of the tables.
    fn gathered(&self, tables: Vec<String>, most: u64) -> Result<(u64, Vec<Rows>), Error> {
        let (sender, gathered) = mpsc::sync_channel(1);
        self.handle.gather_then(tables, most, move |outcome| drop(sender.send(outcome)))?;
        let GatheredTables { record, bytes, tables } = gathered.recv().map_err(|_| sequencer::Error::Closed)??;
        if bytes > most {
            return Err(Error::TooLarge { bytes, most });
        }
        Ok((record, tables.into_iter().map(|(schema, images)| Rows { schema, images }).collect()))
    }

    /// What was done since the database was opened.
    #[must_use]
    pub fn statistics(&self) -> sequencer::Statistics {
        self.handle.statistics()
    }

    /// As [`crate::Lockwork::batch`].
    ///
    /// # Errors
    /// As there.
    pub fn batch(&self, calls: usize) -> Result<Batch, Error> {
        read(&self.procedures).batch(calls)
    }

    /// As [`crate::Lockwork::push`].
    ///
    /// # Errors
    /// As there.
    pub fn push(&self, batch: &mut Batch, procedure: &str, arguments: &[(&str, Value)]) -> Result<bool, Error> {
        read(&self.procedures).push(batch, procedure, arguments)
    }

    /// Hands over a batch, to be waited for later ([`sequencer::Ticket::wait`]): the way to keep the engine busy while
    /// the log is written. The batches of one thread run in their order.
    ///
    /// # Errors
    /// When the database is closed.
    pub fn submit(&self, batch: Batch) -> Result<sequencer::Ticket, Box<Refused>> {
        self.handle.submit(batch)
    }

    /// As [`Self::submit`] without waiting: `then` gets the batch when it has run ([`crate::Procedure::outcomes`]), on
    /// a thread of the database, and must neither wait nor panic. It is dropped when the database is closed before it
    /// knows.
    ///
    /// # Errors
    /// When the database is closed.
    pub fn submit_then(
        &self,
        batch: Batch,
        then: impl FnOnce(Result<Batch, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let then = move |outcome: Result<Batch, Box<Refused>>| then(outcome.map_err(|refused| refused.error.into()));
        Ok(self.handle.submit_then(batch, then).map_err(|refused| refused.error)?)
    }

    /// The answer of call `index` of a batch that was run.
    ///
    /// # Panics
    /// As [`crate::Lockwork::answer`].
    #[must_use]
    pub fn answer(&self, batch: &Batch, index: usize) -> Answer {
        read(&self.procedures).answer(batch, index)
    }
}

/// The rows of a table as they were at one moment ([`Caller::rows`]).
#[derive(Clone, Debug)]
pub struct Rows {
    /// The table; offsets of columns count the header of a row, [`ROW_HEADER_BYTES`], that images do not have.
    pub schema: TableSchema,
    /// The images of the rows, one behind the other, in no particular order.
    pub images: Vec<u8>,
}

impl Rows {
    /// Bytes of an image.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        (self.schema.row_bytes() - ROW_HEADER_BYTES) as usize
    }

    /// Where a column of the schema lies in an image.
    ///
    /// # Panics
    /// When there is no such column.
    #[must_use]
    pub fn range(&self, column: usize) -> Range<usize> {
        let column = &self.schema.columns()[column];
        let start = (column.offset - ROW_HEADER_BYTES) as usize;
        start..start + column.column_type.width() as usize
    }

    /// Where the images lie in ascending order of the primary key, counted in rows.
    #[must_use]
    pub fn by_key(&self) -> Vec<u32> {
        let (width, format) = (self.row_bytes(), KeyFormat::of(&self.schema));
        let mut order: Vec<u32> = (0..(self.images.len() / width) as u32).collect();
        let key = |row: u32| format.encode(&self.images[row as usize * width..]);
        order.sort_unstable_by_key(|&row| key(row));
        order
    }

    pub(crate) fn copy(database: &Database, names: &[String], most: u64) -> Result<Vec<Self>, Error> {
        let known = || (0..database.len()).map(|id| database.table(id as u16).schema().name().to_string());
        let find = |name: &String| {
            let id = database.table_id(name).ok_or_else(|| unknown("table", name, &known().collect::<Vec<_>>()))?;
            Ok(database.table(id))
        };
        let tables = names.iter().map(find).collect::<Result<Vec<_>, Error>>()?;
        let bytes = |table: &Table| table.len() * u64::from(table.schema().row_bytes() - ROW_HEADER_BYTES);
        let needed = tables.iter().map(|table| bytes(table)).sum();
        if needed > most {
            return Err(Error::TooLarge { bytes: needed, most });
        }
        let copy = |table: &Arc<Table>| {
            let mut images = Vec::with_capacity(bytes(table) as usize);
            // SAFETY: nothing runs, so nobody writes the row.
            table.for_each(|row| images.extend_from_slice(unsafe { table.row_image(row) }));
            Self { schema: table.schema().clone(), images }
        };
        Ok(tables.into_iter().map(copy).collect())
    }
}
