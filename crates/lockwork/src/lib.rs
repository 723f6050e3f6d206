//! Serializable stored-procedure transactions at hardware speed.
//!
//! Write a transaction once, as a procedure; run it on engines with different concurrency control; get the same answer.
//!
//! ```
//! use lockwork::{EngineKind, Lockwork, Status, Value};
//!
//! let mut lockwork = Lockwork::open_in_memory(EngineKind::Deterministic)?;
//! lockwork.register(
//!     "procedure deposit
//!      table accounts (id: i64 key, balance: i64)
//!      param id: i64
//!      param amount: i64
//!      result balance: i64
//!          update  c0, accounts, [id]
//!          ret     r1, c0
//!          loadr   r2, r1[accounts.balance]
//!          load    r3, [amount]
//!          add     r2, r2, r3
//!          storer  r2, r1[accounts.balance]
//!          store   r2, [balance]
//!          commit",
//! )?;
//! lockwork.insert("accounts", &[("id", Value::Integer(7)), ("balance", Value::Integer(100))])?;
//!
//! let answer = lockwork.call("deposit", &[("id", Value::Integer(7)), ("amount", Value::Integer(5))])?;
//! assert_eq!(answer.status(), Status::Committed);
//! assert_eq!(answer.integer("balance")?, 105);
//! # Ok::<(), lockwork::Error>(())
//! ```
//!
//! A batch of calls goes in as one piece ([`Lockwork::batch`], [`Lockwork::call_batch`]) and is what the engines are
//! fast at.

mod engines;
mod value;

/// The example of the README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

use std::sync::Arc;

use lockwork_engine::registry::Registered;
pub use lockwork_engine::{BatchReport, ConflictPlan, EngineKind, Interleave, LockPolicy, Options, Tally};
use lockwork_engine::{Engine, EngineError};
/// The client of the lock service: [`Locks::connect`](locks::Locks::connect).
pub use lockwork_locknet::client as locks;
use lockwork_procedure::assembly::{AssemblyError, assemble};
pub use lockwork_procedure::block::{Batch, Block, Status, abort};
use lockwork_procedure::program::Field;
use lockwork_procedure::schema::{Catalog, ROW_HEADER_BYTES, TableSchema};
pub use lockwork_storage::Digest;
pub use value::Value;

/// Rows that a table is given room for when it is created; it grows beyond that.
const EXPECTED_ROWS: usize = 1024;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source does not assemble.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no such procedure, parameter, result or column.
    #[error("{what} '{name}' does not exist; {known}")]
    Unknown {
        /// What was asked for.
        what: &'static str,
        /// Its name.
        name: String,
        /// What there is, in words.
        known: String,
    },
    /// A parameter or column was given no value, or two.
    #[error("'{name}' needs exactly one value")]
    Missing {
        /// The parameter or column.
        name: String,
    },
    /// A value does not fit its parameter or column.
    #[error("{value} does not fit '{name}', which is {wanted}")]
    Type {
        /// The parameter or column.
        name: String,
        /// The value.
        value: String,
        /// What it should be.
        wanted: String,
    },
    /// A batch was made before the procedure was registered, and its blocks are too short for it.
    #[error("the batch has blocks of {have} bytes and procedure '{procedure}' needs {needed}; make the batch after it")]
    ShortBatch {
        /// The procedure.
        procedure: String,
        /// Bytes of a block of the batch.
        have: usize,
        /// Bytes of a call.
        needed: usize,
    },
}

impl Error {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Busy(_)))
    }
}

/// An embedded database on one engine.
pub struct Lockwork {
    engine: Box<dyn Engine>,
}

/// What a call answered.
#[derive(Clone, Debug)]
pub struct Answer {
    bytes: Vec<u8>,
    registered: Arc<Registered>,
}

/// The tables of an engine, for the assembler.
struct Tables(Vec<TableSchema>);

impl Catalog for Tables {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        self.0.as_slice().table(name)
    }

    fn table_names(&self) -> Vec<String> {
        self.0.as_slice().table_names()
    }
}

impl Lockwork {
    /// An empty database in memory with default [`Options`].
    ///
    /// # Errors
    /// When the system starts no threads.
    pub fn open_in_memory(kind: EngineKind) -> Result<Self, Error> {
        Self::open_in_memory_with(kind, Options::default())
    }

    /// An empty database in memory.
    ///
    /// # Errors
    /// Options that are not possible, or no threads.
    pub fn open_in_memory_with(kind: EngineKind, options: Options) -> Result<Self, Error> {
        Ok(Self { engine: engines::create(kind, options)? })
    }

    /// The engine underneath.
    pub fn engine(&mut self) -> &mut dyn Engine {
        &mut *self.engine
    }

    /// Creates an empty table.
    ///
    /// # Errors
    /// A name that is taken, or no memory.
    pub fn create_table(&mut self, schema: TableSchema) -> Result<(), Error> {
        self.engine.create_table(schema, EXPECTED_ROWS)?;
        Ok(())
    }

    fn tables(&self) -> Result<Tables, Error> {
        let mut schemas = Vec::new();
        self.engine.with_database(&mut |database| {
            schemas = (0..database.len()).map(|id| database.table(id as u16).schema().clone()).collect();
        })?;
        Ok(Tables(schemas))
    }

    /// Assembles, verifies and registers a procedure (`docs/assembly.md` has the language). Tables that it declares
    /// with their columns are created if they do not exist.
    ///
    /// # Errors
    /// What is wrong with it, and where; then neither procedure nor tables were added. Only when memory runs out
    /// underneath, tables may have been.
    pub fn register(&mut self, source: &str) -> Result<(), Error> {
        let tables = self.tables()?;
        let assembled = assemble(source, &tables)?;
        // Verified against the tables as they will be, so that a refusal leaves nothing behind.
        let mut future = Tables(tables.0);
        let fresh: Vec<TableSchema> =
            assembled.schemas.into_iter().filter(|schema| future.table(schema.name()).is_none()).collect();
        future.0.extend(fresh.iter().cloned());
        self.engine.accepts(&assembled.procedure, &future)?;
        for schema in fresh {
            self.create_table(schema)?;
        }
        self.engine.register(assembled.procedure)?;
        Ok(())
    }

    /// Inserts a row outside any procedure, for loading.
    ///
    /// # Errors
    /// No such table or column, a column without a value, a value that does not fit, a key that exists.
    pub fn insert(&mut self, table: &str, values: &[(&str, Value)]) -> Result<(), Error> {
        let tables = self.tables()?;
        let Some((_, schema)) = tables.table(table) else {
            return Err(unknown("table", table, &tables.table_names()));
        };
        let mut image = vec![0; (schema.row_bytes() - ROW_HEADER_BYTES) as usize];
        let columns: Vec<String> = schema.columns().iter().map(|column| column.name.clone()).collect();
        only_known("column", values, &columns)?;
        for column in schema.columns() {
            let at = (column.offset - ROW_HEADER_BYTES) as usize;
            one(values, &column.name)?.write(&column.name, column.column_type, &mut image[at..])?;
        }
        self.engine.load(table, &image)?;
        Ok(())
    }

    /// Calls a procedure and waits for its answer.
    ///
    /// # Errors
    /// No such procedure or parameter, a parameter without a value, a value that does not fit. That the procedure
    /// aborted is no error: [`Answer::status`] tells.
    pub fn call(&mut self, procedure: &str, arguments: &[(&str, Value)]) -> Result<Answer, Error> {
        let mut batch = self.batch(1)?;
        self.push(&mut batch, procedure, arguments)?;
        let batch = self.call_batch(batch)?.0;
        Ok(self.answer(&batch, 0))
    }

    /// An empty batch for up to `calls` calls of any registered procedure.
    ///
    /// # Errors
    /// No memory.
    pub fn batch(&self, calls: usize) -> Result<Batch, Error> {
        let procedures = (0..).map_while(|id| self.engine.procedure(id));
        let bytes = procedures.map(|registered| registered.block_bytes).max().unwrap_or(0);
        Ok(Batch::new(bytes as u32, calls).map_err(EngineError::from)?)
    }

    /// Adds a call to a batch of [`Self::batch`]; `false`, and nothing added, when the batch is full.
    ///
    /// # Errors
    /// As [`Self::call`], and [`Error::ShortBatch`]; nothing is added.
    pub fn push(&self, batch: &mut Batch, procedure: &str, arguments: &[(&str, Value)]) -> Result<bool, Error> {
        let Some(id) = self.engine.procedure_id(procedure) else {
            let known: Vec<String> = (0..)
                .map_while(|id| self.engine.procedure(id))
                .map(|registered| registered.verified.procedure().name.clone())
                .collect();
            return Err(unknown("procedure", procedure, &known));
        };
        let registered = self.engine.procedure(id).expect("it has an id");
        if batch.stride() < registered.block_bytes {
            let (have, needed) = (batch.stride(), registered.block_bytes);
            return Err(Error::ShortBatch { procedure: procedure.to_string(), have, needed });
        }
        let parameters = &registered.verified.procedure().parameters;
        only_known("parameter", arguments, &parameters.iter().map(|field| field.name.clone()).collect::<Vec<_>>())?;
        let mut image = vec![0_u8; registered.block_bytes];
        for field in parameters {
            let value = one(arguments, &field.name)?;
            value.write_field(field, &mut image)?;
        }
        let Some(mut block) = batch.push(id) else { return Ok(false) };
        let arguments = 32..registered.verified.procedure().layout().arguments_end as usize;
        block.bytes()[arguments.clone()].copy_from_slice(&image[arguments]);
        Ok(true)
    }

    /// Runs a batch and gives it back with every call's answer ([`Self::answer`]).
    ///
    /// # Errors
    /// When a worker thread died.
    pub fn call_batch(&mut self, batch: Batch) -> Result<(Batch, BatchReport), Error> {
        self.engine.submit(batch).map_err(|refused| refused.error)?;
        let completed = self.engine.complete()?.expect("a batch was submitted");
        Ok((completed.batch, completed.report))
    }

    /// The answer of call `index` of a batch that was run.
    ///
    /// # Panics
    /// When there is no such call, or it is none of this database's procedures.
    #[must_use]
    pub fn answer(&self, batch: &Batch, index: usize) -> Answer {
        let block = batch.block(index);
        let registered = self.engine.procedure(block.procedure()).expect("a call of a registered procedure");
        Answer { bytes: block.bytes().to_vec(), registered }
    }

    /// Digest of all tables: equal contents have equal digests, on every engine.
    ///
    /// # Errors
    /// While a batch is in flight.
    pub fn digest(&self) -> Result<Digest, Error> {
        Ok(self.engine.digest()?)
    }
}

impl Answer {
    /// What became of the call.
    #[must_use]
    pub fn status(&self) -> Status {
        Block::new(&self.bytes).status().expect("an engine wrote it")
    }

    /// The abort code; zero if it committed.
    #[must_use]
    pub fn abort_code(&self) -> u16 {
        Block::new(&self.bytes).abort_code()
    }

    /// An integer result.
    ///
    /// # Errors
    /// There is no such result, or it is no integer, or an array.
    pub fn integer(&self, name: &str) -> Result<i64, Error> {
        let field = self.field(name)?;
        let value = Value::read_integer(field.column_type, &self.bytes[field.offset as usize..]);
        value.filter(|_| field.count == 1).ok_or_else(|| mistaken(field, "an integer"))
    }

    /// All elements of a result that is an array of integers; one for a plain integer.
    ///
    /// # Errors
    /// There is no such result, or it is not of integers.
    pub fn integers(&self, name: &str) -> Result<Vec<i64>, Error> {
        let field = self.field(name)?;
        let elements = self.bytes[field.offset as usize..field.end() as usize].chunks(field.element_stride() as usize);
        let values: Option<_> = elements.map(|element| Value::read_integer(field.column_type, element)).collect();
        values.ok_or_else(|| mistaken(field, "an array of integers"))
    }

    /// The bytes of a result. Those of an array are all its elements, with what lies between them: texts and bytes from
    /// 64 bytes on each begin at a multiple of 64.
    ///
    /// # Errors
    /// There is no such result.
    pub fn bytes(&self, name: &str) -> Result<&[u8], Error> {
        let field = self.field(name)?;
        let start = field.offset as usize;
        let end = if field.count == 1 { start + field.column_type.width() as usize } else { field.end() as usize };
        Ok(&self.bytes[start..end])
    }

    fn field(&self, name: &str) -> Result<&Field, Error> {
        let procedure = self.registered.verified.procedure();
        let known = || procedure.results.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
        procedure.result(name).ok_or_else(|| unknown("result", name, &known()))
    }
}

fn unknown(what: &'static str, name: &str, known: &[String]) -> Error {
    let known = if known.is_empty() { "there is none".into() } else { format!("there are: {}", known.join(", ")) };
    Error::Unknown { what, name: name.to_string(), known }
}

fn mistaken(field: &Field, read_as: &str) -> Error {
    let wanted = value::type_name(field.column_type, field.count);
    Error::Type { name: field.name.clone(), value: read_as.into(), wanted }
}

fn only_known(what: &'static str, values: &[(&str, Value)], known: &[String]) -> Result<(), Error> {
    match values.iter().find(|(name, _)| !known.iter().any(|known| known == name)) {
        Some((name, _)) => Err(unknown(what, name, known)),
        None => Ok(()),
    }
}

fn one<'a>(values: &'a [(&str, Value)], name: &str) -> Result<&'a Value, Error> {
    let mut found = values.iter().filter(|(given, _)| *given == name);
    match (found.next(), found.next()) {
        (Some((_, value)), None) => Ok(value),
        _ => Err(Error::Missing { name: name.to_string() }),
    }
}
