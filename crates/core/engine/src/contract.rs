//! The contract that every engine keeps.
//!
//! A caller creates tables, loads rows and registers procedures while nothing is in flight, then submits batches and
//! takes them back completed, in the order in which they were submitted. Submitting overlaps with running: the
//! engine works on one batch while the caller fills the next.
//!
//! Guarantees: the effects and results of all committed transactions are those of running them one after the other
//! in the engine's serial order, which is ascending (serial stamp, sequence number) within a batch, and batch after
//! batch. An aborted or failed transaction leaves no effect in the database and zeros in its results, unless its abort
//! handler wrote them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use lockwork_memory::{OutOfMemory, Pages};
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_procedure::verify::VerifyError;
use lockwork_storage::{Database, Digest, StorageError};

use crate::compound::Compound;
use crate::registry::Registered;
use crate::tally::Tally;

/// How transactions of one worker overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Interleave {
    /// One after the other, no prefetching.
    None,
    /// Many in flight, in groups: a worker begins each transaction of a group and leaves it where it would first wait
    /// for memory, then ends them one after the other, and only then begins the next group (BionicDB, section 4.5).
    /// `deterministic` looks ahead in groups anyway and takes it for [`Self::Dynamic`].
    Batch,
    /// Many in flight; a worker turns to another one wherever it would wait for memory or for a lock.
    #[default]
    Dynamic,
}

/// What a two-phase transaction does when a lock is held by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LockPolicy {
    /// Takes everything back and begins again.
    NoWait,
    /// Waits if it is older than the holder, else begins again (keeping its age).
    WaitDie,
    /// Takes locks in ascending order and waits; a lock that comes out of order is taken without waiting.
    #[default]
    Ordered,
}

/// How `deterministic` runs transactions that touch several records and cannot be cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ConflictPlan {
    /// Whichever of the other two has taken less time for a transaction lately. Results do not depend on it.
    #[default]
    Measured,
    /// All workers, by a dependency graph: pays when transactions are long or workers many.
    Graph,
    /// One worker, in batch order: nothing is planned and nothing waited for.
    InOrder,
}

/// How an engine is to work.
#[derive(Clone, Debug)]
pub struct Options {
    /// Worker threads, at least 1; worker processes of engines that have some. `deterministic-queue` uses the first of
    /// several as its scheduler.
    pub threads: usize,
    /// How transactions of one worker overlap.
    pub interleave: Interleave,
    /// How many row accesses a worker keeps in flight when it interleaves, at least 1.
    pub window: usize,
    /// Lock policy of `two-phase`.
    pub policy: LockPolicy,
    /// Plan of `deterministic` for transactions that neither stand alone nor can be cut into pieces.
    pub plan: ConflictPlan,
    /// How often `two-phase`, `optimistic` and `timestamp` begin a transaction again before they give up with
    /// `TOO_MANY_RETRIES`.
    pub max_retries: u32,
    /// Pages for tables.
    pub pages: Pages,
    /// What single engines have beside these options.
    pub settings: Settings,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            interleave: Interleave::Dynamic,
            window: 16,
            policy: LockPolicy::Ordered,
            plan: ConflictPlan::Measured,
            max_retries: 1_000_000,
            pages: Pages::Huge,
            settings: Settings::default(),
        }
    }
}

/// Which order an engine is equivalent to, within a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SerialOrder {
    /// The order of the blocks in the batch. All serial stamps are zero.
    Batch,
    /// Ascending serial stamp; transactions with equal stamps do not conflict.
    Stamp,
}

/// Why an engine refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The procedure did not verify.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A table or row was refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// There is not enough memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Two procedures of one name.
    #[error("a procedure '{0}' is registered already; choose another name")]
    DuplicateProcedure(String),
    /// An engine that works on partitions does not know where the rows of a table are.
    #[error(
        "procedure '{procedure}' uses table '{table}', which changes not say how it is partitioned, as the engine needs to \
         know; declare it `partition by hash(column)`, where the column is one of {keys}, or, if no procedure writes \
         it, `replicated`"
    )]
    NotPartitioned {
        /// Name of the procedure.
        procedure: String,
        /// Name of the table.
        table: String,
        /// Its key columns.
        keys: String,
    },
    /// Procedure ids have 16 bits where they are counted by the million.
    #[error("there are {MAX_PROCEDURES} procedures already, the most that an engine takes; '{0}' was not registered")]
    TooManyProcedures(String),
    /// A procedure is to take the place of one that there is not.
    #[error("there is no procedure with the id {0} that could be replaced")]
    UnknownProcedure(u32),
    /// Tables and procedures change only while nothing is in flight.
    #[error("{0} batches are in flight; complete them before tables or procedures change")]
    Busy(usize),
    /// Zero threads, or more than the machine could use.
    #[error("{0} threads are not possible; use 1 to {MAX_THREADS}")]
    Threads(usize),
    /// A window of zero, or absurdly many.
    #[error("a window of {0} accesses is not possible; use 1 to {MAX_WINDOW}")]
    Window(usize),
    /// The name of no engine.
    #[error("no engine is called '{name}'; there are {offered}")]
    UnknownEngine {
        /// The name.
        name: String,
        /// The names of the engines that the program offers.
        offered: String,
    },
    /// The engine's back end is not on this machine; the text says what is missing and how to get it.
    #[error("{0}")]
    BackEndAbsent(String),
    /// The engine's back end cannot do it: a procedure that does not fit on it, code that does not build, too little
    /// memory, a device that was lost.
    #[error("{0}")]
    BackEnd(String),
    /// A setting of the back end, by an option or a variable, is not possible; the text says what would be.
    #[error("{0}")]
    Setting(String),
    /// The engine runs calls one by one only.
    #[error(
        "engine '{0}' runs no transactions of several calls; make a procedure of them, or take an engine of the CPU"
    )]
    NotTogether(&'static str),
    /// A call that is to read only, of a procedure that may write.
    #[error("procedure '{0}' may write, and this is for calls that only read")]
    Writes(String),
    /// A worker thread could not be started, or died.
    #[error("a worker thread {0}; the engine cannot go on")]
    Worker(String),
}

/// The most procedures of an engine.
pub const MAX_PROCEDURES: usize = 1 << 16;
/// The most worker threads of an engine.
pub const MAX_THREADS: usize = 256;
/// The widest window.
pub const MAX_WINDOW: usize = 1024;

/// What an engine tells of one batch.
#[derive(Clone, Debug, Default)]
pub struct BatchReport {
    /// What became of its transactions.
    pub tally: Tally,
    /// Nanoseconds of planning, wall clock; zero for engines that do not plan.
    pub planning_ns: u64,
    /// Nanoseconds from the first to the last step of this batch, wall clock, planning included.
    pub total_ns: u64,
    /// What a device spent on it, for engines that run on one.
    pub device: Option<DeviceTimes>,
}

/// What a device spent on a batch, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// Nanoseconds of moving blocks and plan to the device.
    pub transfer_in_ns: u64,
    /// Nanoseconds of its kernels.
    pub execution_ns: u64,
    /// Nanoseconds of moving blocks back.
    pub transfer_out_ns: u64,
    /// How many parts of the batch had to run one after the other.
    pub waves: u32,
    /// Cycles of its clock while it executed, if it counts them; else 0.
    pub cycles: u64,
}

/// A batch that an engine has finished.
#[derive(Debug)]
pub struct Completed {
    /// The batch; every block has its status, results and serial stamp.
    pub batch: Batch,
    /// What became of it.
    pub report: BatchReport,
}

/// A batch that an engine did not take; nothing of it ran.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The batch, unchanged.
    pub batch: Batch,
    /// Why.
    pub error: EngineError,
}

/// An engine. See the module for what it guarantees.
pub trait Engine: Send {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// The order that it is equivalent to.
    fn serial_order(&self) -> SerialOrder;

    /// Creates an empty table and returns its number. `rows` is how many rows are expected; more are possible.
    ///
    /// # Errors
    /// [`EngineError::Busy`], or what storage refuses.
    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError>;

    /// Verifies and registers a procedure and returns the id that blocks call it by. On an error nothing has changed.
    ///
    /// # Errors
    /// [`EngineError::Busy`], [`EngineError::DuplicateProcedure`], or what the verifier refuses.
    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError>;

    /// Verifies a procedure and puts it in the place of the one with this id, which is forgotten. On an error nothing
    /// has changed.
    ///
    /// # Errors
    /// Those of [`Self::register`], and [`EngineError::UnknownProcedure`].
    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError>;

    /// Whether [`Self::register`], or [`Self::replace`] with this id, would take a procedure if these were the tables,
    /// as far as that can be told before there are: only the memory of a device, or of this machine, may still be too
    /// little.
    ///
    /// # Errors
    /// Those of the two.
    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError>;

    /// The procedure registered under `id`.
    fn procedure(&self, id: u32) -> Option<std::sync::Arc<Registered>>;

    /// The id of the procedure of this name.
    fn procedure_id(&self, name: &str) -> Option<u32>;

    /// The database. Read it only while nothing is in flight.
    ///
    /// # Errors
    /// [`EngineError::Busy`].
    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError>;

    /// Does now what the first batch would have to wait for: an engine on a device builds its kernels and moves tables.
    /// Calling it is never necessary.
    ///
    /// # Errors
    /// [`EngineError::Busy`], or what the back end refuses; then the first batch would be refused too.
    fn start(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Hands over a batch. Returns at once, or after running it if it is small and nothing else is in flight.
    ///
    /// # Errors
    /// [`Refused`] gives the batch back.
    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>>;

    /// Whether it runs on a device or in other processes, to which it copies the tables.
    fn runs_on_device(&self) -> bool {
        false
    }

    /// Whether [`Self::compound`] runs several calls as one transaction.
    fn runs_compounds(&self) -> bool {
        false
    }

    /// Whether [`Self::submit_in_order`] runs batches in the order of their blocks. If it does not, whoever replays
    /// calls does so on another engine and loads the rows.
    fn runs_in_order(&self) -> bool {
        self.serial_order() == SerialOrder::Batch
    }

    /// As [`Self::submit`], but the batch runs in the order of its blocks, whatever order the engine is equivalent to
    /// otherwise: for the replay of calls that have run before. Means nothing unless [`Self::runs_in_order`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn submit_in_order(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        self.submit(batch)
    }

    /// Runs several calls as one transaction: `transaction` makes them, and says whether what they did stays. Blocks
    /// have no serial stamps: nothing else runs meanwhile. Returns what it said.
    ///
    /// # Errors
    /// [`EngineError::Busy`], and [`EngineError::NotTogether`] on devices.
    fn compound(&mut self, transaction: &mut dyn FnMut(&mut Compound<'_>) -> bool) -> Result<bool, EngineError> {
        let _never_called = transaction;
        Err(EngineError::NotTogether(self.name()))
    }

    /// The oldest batch that was submitted and not yet completed, waiting for it to finish; `None` when there is none.
    ///
    /// # Errors
    /// [`EngineError::Worker`] when a worker died.
    fn complete(&mut self) -> Result<Option<Completed>, EngineError>;

    /// How many batches are in flight.
    fn in_flight(&self) -> usize;

    /// Digest of the logical contents, independent of memory layout.
    ///
    /// # Errors
    /// [`EngineError::Busy`].
    fn digest(&self) -> Result<Digest, EngineError> {
        let mut digest = None;
        self.with_database(&mut |database| digest = Some(database.digest()))?;
        Ok(digest.expect("the closure ran"))
    }

    /// Every row, as (table name, row image), in no particular order; for checkpoints and checks.
    ///
    /// # Errors
    /// [`EngineError::Busy`].
    fn export(&self, row: &mut dyn FnMut(&str, &[u8])) -> Result<(), EngineError> {
        self.with_database(&mut |database| database.export(|table, image| row(table, image)))
    }

    /// Inserts one row by its image (the row's bytes after the header), outside any transaction.
    ///
    /// # Errors
    /// [`EngineError::Busy`], or what storage refuses: no such table, wrong length, a key that exists.
    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError>;

    /// [`Self::load`] of many rows, `width` (not zero) bytes each, one behind the other.
    ///
    /// # Errors
    /// As for [`Self::load`]; the rows before the one that is refused are there.
    fn load_rows(&mut self, table: &str, width: usize, images: &[u8]) -> Result<(), EngineError> {
        images.chunks(width).try_for_each(|image| self.load(table, image))
    }
}

/// An engine that can be made. The crate of each engine has a constant of this type; a program lists those that it
/// offers.
#[derive(Clone, Copy)]
pub struct EngineKind(&'static Constructor);

/// How an engine is made.
pub struct Constructor {
    /// Its name on the command line.
    pub name: &'static str,
    /// Whether it runs on a device or in other processes, to which it copies the tables.
    pub on_device: bool,
    /// Its own settings, beside [`Options`]: names, and what they mean.
    pub settings: &'static [(&'static str, &'static str)],
    /// Makes an engine over an empty database.
    pub create: fn(Options) -> Result<Box<dyn Engine>, EngineError>,
}

impl EngineKind {
    /// The engine that `constructor` makes.
    #[must_use]
    pub const fn new(constructor: &'static Constructor) -> Self {
        Self(constructor)
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether it runs on a device or in other processes, to which it copies the tables.
    #[must_use]
    pub const fn runs_on_device(self) -> bool {
        self.0.on_device
    }

    /// Returns the names of the engine's own settings, with their meaning.
    #[must_use]
    pub const fn settings(self) -> &'static [(&'static str, &'static str)] {
        self.0.settings
    }

    /// Finds an engine by its name.
    ///
    /// # Errors
    /// [`EngineError::UnknownEngine`] lists the names in `offered`.
    pub fn find(name: &str, offered: &[Self]) -> Result<Self, EngineError> {
        let found = offered.iter().find(|kind| kind.name() == name);
        found.copied().ok_or_else(|| EngineError::UnknownEngine {
            name: name.to_string(),
            offered: offered.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

impl fmt::Debug for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl PartialEq for EngineKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for EngineKind {}

/// Settings of single engines, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Adds a setting, or replaces its value.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// Returns the value of a setting, if there is one.
    ///
    /// # Errors
    /// [`EngineError::Setting`] when it cannot be read as a `T`; `wanted` says what would be right.
    pub fn get<T: FromStr>(&self, name: &str, wanted: &str) -> Result<Option<T>, EngineError> {
        let refused = |value: &String| EngineError::Setting(format!("{name}={value} is not possible: {wanted}"));
        self.0.get(name).map(|value| value.parse().map_err(|_| refused(value))).transpose()
    }

    /// The settings of one engine among these.
    #[must_use]
    pub fn of(&self, kind: EngineKind) -> Self {
        let own = |name: &String| kind.settings().iter().any(|(known, _)| known == name);
        Self(self.0.iter().filter(|(name, _)| own(name)).map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// Checks that each setting is one of an engine in `kinds`.
    ///
    /// # Errors
    /// [`EngineError::Setting`] names one that is not, and those that there are.
    pub fn check(&self, kinds: &[EngineKind]) -> Result<(), EngineError> {
        let known = || kinds.iter().flat_map(|kind| kind.settings().iter().map(move |(name, _)| (kind.name(), *name)));
        let Some(name) = self.0.keys().find(|name| !known().any(|(_, known)| known == *name)) else { return Ok(()) };
        let all: Vec<String> = known().map(|(engine, name)| format!("{name} of {engine}")).collect();
        let all = if all.is_empty() { "they have none".into() } else { format!("there are {}", all.join(", ")) };
        Err(EngineError::Setting(format!("no engine that is used has a setting '{name}'; {all}")))
    }
}

/// Creates an engine over an empty database.
///
/// # Errors
/// [`EngineError::Threads`] and [`EngineError::Window`]; [`EngineError::Setting`] for a setting that is not the
/// engine's; threads or processes that cannot be started, and [`EngineError::BackEndAbsent`].
pub fn create(kind: EngineKind, options: Options) -> Result<Box<dyn Engine>, EngineError> {
    check(&options)?;
    options.settings.check(&[kind])?;
    (kind.0.create)(options)
}

/// Refuses options that no engine could work with.
///
/// # Errors
/// [`EngineError::Threads`] and [`EngineError::Window`].
pub fn check(options: &Options) -> Result<(), EngineError> {
    if options.threads == 0 || options.threads > MAX_THREADS {
        return Err(EngineError::Threads(options.threads));
    }
    if options.window == 0 || options.window > MAX_WINDOW {
        return Err(EngineError::Window(options.window));
    }
    Ok(())
}
