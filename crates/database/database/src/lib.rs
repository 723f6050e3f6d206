//! Serializable stored-procedure transactions at hardware speed.
//!
//! Write a transaction once, as a procedure; run it on engines with different concurrency control, in memory or in a
//! folder; get the same answer.
//!
//! ```
//! use lockwork::{EngineKind, Lockwork, Status, Value};
//!
//! let mut lockwork = Lockwork::open_in_memory(EngineKind::DETERMINISTIC)?;
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
//!
//! | module | idea |
//! |---|---|
//! | `cache` | compiled statements: a bounded cache of procedures that nobody has named |
//! | `calls` | calls by name: arguments into blocks, answers out of them |
//! | `columns` | many calls of one procedure: columns of values in, columns of results out |
//! | `value` | values as a program has them, and as they lie in blocks and rows |
//! | `statements` | SQL: definitions, calls, single statements |
//! | `prepared` | statements that are understood once and run often |
//! | `loading` | rows that come outside of calls, and their rows in indexes |
//! | `durable` | a database in a folder, for many threads |
//! | `node` | a database whose log several nodes share |
//! | `transaction` | several calls and statements as one transaction |

mod cache;
mod calls;
mod columns;
mod durable;
mod loading;
mod node;
mod prepared;
mod statements;
mod transaction;
mod value;

use std::path::Path;

use lockwork_engine::Engine;
pub use lockwork_engine::EngineError;
use lockwork_engine::create;
pub use lockwork_engine::{ConflictPlan, EngineKind, Interleave, LockPolicy, Options, Settings, Tally};
/// Engines that have a part of every table ([`Node::join_divided`]).
pub use lockwork_partitions::divided;
use lockwork_procedure::assembly::{AssemblyError, assemble};
pub use lockwork_procedure::block::{Batch, Block, Status, abort};
use lockwork_procedure::program::STATEMENT;
/// Bytes that offsets of columns count before the image of a row.
pub use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_procedure::schema::TableSchema;
/// Order and durability of a database in a folder.
pub use lockwork_sequencer as sequencer;
use lockwork_sequencer::io::{Disk, NullIo};
use lockwork_sequencer::{CheckpointReport, Definition, Progress, RecoveryReport, Sequencer};
/// Request ids, by which a call that is repeated is made once ([`Caller::call_once`]).
pub use lockwork_sequencer::{RequestId, RequestIdError, request_id};
/// SQL: types, values and statements.
pub use lockwork_sql as sql;
pub use lockwork_storage::Digest;
use lockwork_storage::StorageError;

pub use cache::{MAX_STATEMENTS, MAX_STATEMENTS_OF_USER};
pub use calls::{Answer, own_request};
pub use columns::{Column, Columns, Procedure};
pub use durable::{Caller, OpenOptions, Rows};
pub use node::Node;
pub use prepared::Prepared;
pub use statements::{ProcedureDefinition, SqlAnswer};
pub use transaction::Transaction;
pub use value::Value;

/// The example of the README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;

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
    /// A folder could not be opened, or a call not be made durable.
    #[error(transparent)]
    Durability(#[from] lockwork_sequencer::Error),
    /// A statement is wrong.
    #[error(transparent)]
    Sql(Box<lockwork_sql::SqlError>),
    /// A statement was taken back.
    #[error("error {sqlstate}: {message}")]
    Aborted {
        /// The abort code of the procedure.
        code: u16,
        /// Five characters that say what kind of error it is.
        sqlstate: String,
        /// What was raised.
        message: String,
        /// What it is about, of a key that exists.
        subject: Option<Box<lockwork_sql::Subject>>,
    },
    /// An index of a table that some procedure writes without knowing of it.
    #[error(
        "error 55006: procedure '{procedure}' writes table '{table}' and does not know of this index; make indexes before \
         procedures that write their table (one that was replaced counts as well)"
    )]
    IndexTooLate {
        /// The table.
        table: String,
        /// The procedure.
        procedure: String,
    },
    /// A name that Lockwork uses itself.
    #[error("'{name}' begins as names do that Lockwork gives itself; choose another one")]
    Reserved {
        /// The name.
        name: String,
    },
    /// It is only there for a database in a folder.
    #[error("{0} needs a database in a folder: Lockwork::open")]
    InMemory(&'static str),
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
    /// A prepared INSERT, UPDATE or DELETE of a table that has an index since; nothing has happened.
    #[error(
        "since this statement was prepared its table has got an index, or many other statements were prepared; prepare \
         it again"
    )]
    Outdated,
    /// As many statements of different shapes as are kept compiled, where none takes the place of another one.
    #[error(
        "there are as many statements of different shapes as are kept compiled, and with several sequencers none is \
         forgotten; make this one a procedure"
    )]
    TooManyStatements,
    /// A statement that may write, where another node leads.
    #[error("'{0}' may write, and this is for what only reads")]
    Writes(String),
    /// An index whose rows the leader of a cluster has not all put into the log yet. Reading again works soon.
    #[error("index '{0}' is being made, and not all of its rows are here yet; read again")]
    Unfilled(String),
    /// A transaction that an error has ended.
    #[error("the transaction has ended by an error; begin it again")]
    Ended,
    /// A batch is of calls, and this statement is none.
    #[error("only a CALL is made many times at once; write a procedure that does what this statement does")]
    NoCall,
    /// A call with the id of a request is a transaction of its own.
    #[error("a CALL with the id of a request cannot be part of a transaction; commit before it")]
    RequestInside,
    /// Columns of values that are no calls, because they have different lengths.
    #[error("a column of {other} values stands beside one of {calls}; each call needs a value of each column")]
    Uneven {
        /// Values of the first column.
        calls: usize,
        /// Values of another one.
        other: usize,
    },
    /// A copy of rows that was bounded.
    #[error("the rows take {bytes} bytes, and at most {most} are copied")]
    TooLarge {
        /// Bytes of all rows asked for.
        bytes: u64,
        /// The bound.
        most: u64,
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

impl From<lockwork_sql::SqlError> for Error {
    fn from(error: lockwork_sql::SqlError) -> Self {
        Self::Sql(Box::new(error))
    }
}

impl Error {
    /// As [`sequencer::Error::of_request`].
    #[must_use]
    pub fn of_request(self, id: RequestId) -> Self {
        match self {
            Self::Durability(error) => Self::Durability(error.of_request(id)),
            other => other,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Engine(EngineError::Busy(_)) | Self::Unfilled(_) => true,
            Self::Durability(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Of a load that met a row it cannot take: how many rows before it are there, and whether it is because its key
    /// exists.
    #[must_use]
    pub fn refused_row(&self) -> Option<(usize, bool)> {
        match self {
            Self::Durability(lockwork_sequencer::Error::Load { loaded, error }) => {
                let exists = matches!(**error, EngineError::Storage(StorageError::Duplicate { .. }));
                Some((*loaded, exists))
            }
            _ => None,
        }
    }
}

/// An embedded database on one engine, in memory or in a folder.
pub struct Lockwork {
    sequencer: Sequencer,
    /// Whether nothing is written.
    in_memory: bool,
    /// By number.
    tables: Vec<TableSchema>,
    procedures: durable::Known,
    sql: statements::State,
    /// How many definitions of the log it has learnt of, as long as it follows.
    learnt: usize,
}

impl Lockwork {
    /// An empty database in memory, on an engine with default [`Options`]. All of it ends with the process.
    ///
    /// # Errors
    /// When the system starts no threads.
    pub fn open_in_memory(kind: EngineKind) -> Result<Self, Error> {
        Self::open_in_memory_with(&OpenOptions { engine: kind, ..OpenOptions::default() })
    }

    /// An empty database in memory, with options; those of durability mean nothing.
    ///
    /// # Errors
    /// Options that are not possible, or no threads.
    pub fn open_in_memory_with(options: &OpenOptions) -> Result<Self, Error> {
        let engine = create(options.engine, options.engine_options.clone())?;
        let sequencer = sequencer::Options { durability: sequencer::Durability::None, ..options.sequencer.clone() };
        let io = std::sync::Arc::new(NullIo::new());
        let (sequencer, _) = Sequencer::open(io, Path::new("/"), sequencer, engine, &mut |_| {})?;
        Ok(Self { in_memory: true, ..Self::empty(sequencer) })
    }

    fn empty(sequencer: Sequencer) -> Self {
        Self {
            sequencer,
            in_memory: false,
            tables: Vec::new(),
            procedures: durable::Known::default(),
            sql: statements::State::default(),
            learnt: 0,
        }
    }

    /// The database in a folder, which is made if it is not there: what was acknowledged is there again. Calls return
    /// when they are durable.
    ///
    /// # Errors
    /// Another process has it open, it is damaged, or the system refuses.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Self::open_with(folder, &OpenOptions::default(), |_| {})?.0)
    }

    /// As [`Self::open`], with options. `progress` is told how far recovery has come; what it found comes back.
    ///
    /// # Errors
    /// As [`Self::open`], and options that are not possible.
    pub fn open_with(
        folder: impl AsRef<Path>,
        options: &OpenOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<(Self, RecoveryReport), Error> {
        let engine = create(options.engine, options.engine_options.clone())?;
        let io = std::sync::Arc::new(Disk::new());
        let (sequencer, report) =
            Sequencer::open(io, folder.as_ref(), options.sequencer.clone(), engine, &mut progress)?;
        let mut lockwork = Self::empty(sequencer);
        lockwork.refresh()?;
        lockwork.remember(&report.definitions)?;
        Ok((lockwork, report))
    }

    /// Runs `read` with the engine while no batch runs.
    ///
    /// # Errors
    /// When the database is closed.
    pub fn read<T: Send + 'static>(&self, read: impl FnOnce(&dyn Engine) -> T + Send + 'static) -> Result<T, Error> {
        Ok(self.sequencer.read(read)?)
    }

    /// Learns of tables and procedures that the engine has and that are not known here.
    fn refresh(&mut self) -> Result<(), Error> {
        let (tables, procedures) = (self.tables.len(), durable::read(&self.procedures).len());
        let (new_tables, new_procedures) = self.read(move |engine| {
            let mut schemas = Vec::new();
            let seen = engine.with_database(&mut |database| {
                schemas = (tables..database.len()).map(|id| database.table(id as u16).schema().clone()).collect();
            });
            let procedures: Vec<_> = (procedures as u32..).map_while(|id| engine.procedure(id)).collect();
            seen.map(|()| (schemas, procedures))
        })??;
        self.tables.extend(new_tables);
        let mut known = durable::write(&self.procedures);
        for (id, registered) in (procedures as u32..).zip(new_procedures) {
            let procedure = registered.verified.procedure();
            if procedure.name.starts_with(STATEMENT) {
                self.sql.statements.add(id, procedure);
            }
            known.add(registered);
        }
        Ok(())
    }

    /// Creates an empty table.
    ///
    /// # Errors
    /// A name that is taken, or no memory.
    pub fn create_table(&mut self, schema: TableSchema) -> Result<(), Error> {
        let assembly = format!("table {schema}");
        self.create_with(schema, "")?;
        self.remember_assembly(&assembly)
    }

    /// The tables, by number.
    #[must_use]
    pub fn tables(&self) -> &[TableSchema] {
        &self.tables
    }

    /// Assembles, verifies and registers a procedure (`docs/assembly.md` has the language). Tables that it declares
    /// with their columns are created if they do not exist.
    ///
    /// # Errors
    /// What is wrong with it, and where; then neither procedure nor tables were added. Only when memory runs out
    /// underneath, tables may have been.
    pub fn register(&mut self, source: &str) -> Result<(), Error> {
        let assembled = assemble(source, &self.tables)?;
        if assembled.procedure.name.starts_with(STATEMENT) {
            return Err(Error::Reserved { name: assembled.procedure.name });
        }
        self.accepts_assembly(&assembled)?;
        self.sequencer.define(Definition::new(source, ""))?;
        self.refresh()?;
        self.remember_assembly(source)
    }

    /// Calls a procedure and waits for its answer; in a folder, until it is durable.
    ///
    /// # Errors
    /// No such procedure or parameter, a parameter without a value, a value that does not fit. That the procedure
    /// aborted is no error: [`Answer::status`] tells.
    pub fn call(&self, procedure: &str, arguments: &[(&str, Value)]) -> Result<Answer, Error> {
        self.caller().call(procedure, arguments)
    }

    /// A way to call procedures from other threads; calls that many threads make at once share writes of the log.
    #[must_use]
    pub fn caller(&self) -> Caller {
        let (procedures, versions) = (self.procedures.clone(), self.sql.statements.versions.clone());
        Caller { handle: self.sequencer.handle(), procedures, versions }
    }

    /// An empty batch for up to `calls` calls of any registered procedure.
    ///
    /// # Errors
    /// No memory.
    pub fn batch(&self, calls: usize) -> Result<Batch, Error> {
        durable::read(&self.procedures).batch(calls)
    }

    /// Adds a call to a batch of [`Self::batch`]; `false`, and nothing added, when the batch is full.
    ///
    /// # Errors
    /// As [`Self::call`], and [`Error::ShortBatch`]; nothing is added.
    pub fn push(&self, batch: &mut Batch, procedure: &str, arguments: &[(&str, Value)]) -> Result<bool, Error> {
        durable::read(&self.procedures).push(batch, procedure, arguments)
    }

    /// Runs a batch and returns it with every call's answer ([`Self::answer`]) and their count; in a folder, when all
    /// are durable.
    ///
    /// # Errors
    /// When a worker thread died; in a folder, why the calls are not durable.
    pub fn call_batch(&self, batch: Batch) -> Result<(Batch, Tally), Error> {
        let batch = self.sequencer.call_batch(batch).map_err(|refused| refused.error)?;
        let tally = Tally::of(&batch);
        Ok((batch, tally))
    }

    /// The answer of call `index` of a batch that was run.
    ///
    /// # Panics
    /// When there is no such call, or it is none of this database's procedures.
    #[must_use]
    pub fn answer(&self, batch: &Batch, index: usize) -> Answer {
        durable::read(&self.procedures).answer(batch, index)
    }

    /// Digest of all tables: equal contents have equal digests, on every engine.
    ///
    /// # Errors
    /// When the database is closed.
    pub fn digest(&self) -> Result<Digest, Error> {
        Ok(self.sequencer.digest()?)
    }

    /// Writes all tables to the folder, so that opening it need not replay what came before, and the log can be cut.
    /// Calls go on meanwhile. It is done by itself when the log has grown.
    ///
    /// # Errors
    /// [`Error::InMemory`], or why it could not be written; the checkpoint before stays.
    pub fn checkpoint(&self) -> Result<CheckpointReport, Error> {
        if self.in_memory { Err(Error::InMemory("a checkpoint")) } else { Ok(self.sequencer.checkpoint()?) }
    }

    /// Waits until everything is durable and closes the database. Dropping it does the same, but cannot say that
    /// something went wrong.
    ///
    /// # Errors
    /// Why something is not durable.
    pub fn close(self) -> Result<(), Error> {
        Ok(self.sequencer.close()?)
    }
}

fn unknown(what: &'static str, name: &str, known: &[String]) -> Error {
    let known = if known.is_empty() { "there is none".into() } else { format!("there are: {}", known.join(", ")) };
    Error::Unknown { what, name: name.to_string(), known }
}
