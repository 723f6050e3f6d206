//! Workloads: what clients ask of a database, made from a seed, and the proof afterwards that it was done.
//!
//! A workload says which tables it needs, which procedures (as assembly text) and which rows to begin with; it fills
//! batches with calls, and it checks results and final contents. It knows nothing of engines: the caller
//! assembles and registers the procedures, loads the rows and moves the batches. So one workload is a benchmark, a
//! test of serial equivalence and a demonstration.
//!
//! | module | idea |
//! |---|---|
//! | [`random`] | a seeded generator with independent streams |
//! | [`zipf`] | skewed ranks after Gray et al. |
//! | [`value`] | values that show when they were torn |
//! | [`transfer`] | money between accounts: the total never changes |
//! | [`smallbank`] | customers with two accounts each, six short transactions |
//! | [`tatp`] | a telephone register, asked by very short transactions |
//! | [`tpcc`] | wholesale: the standard benchmark of transactions, or NewOrder and Payment alone |
//! | [`ycsb`] | the YCSB core workloads, with one or more operations a transaction |
//! | [`properties`] | YCSB property files |
//! | [`statistics`] | the median of measurements |
//! | [`lock_trace`] | which locks the transactions of TATP and TPC-C take under two-phase locking |
//!
//! SmallBank, TATP and TPC-C also exist in SQL ([`Source`]).
//!
//! Invariant: everything generated is a function of the configuration alone, seed included; the sizes of the batches
//! matter only where a workload inserts rows, since new keys are used from the next [`Workload::fill`] on.

mod fields;
mod from_sql;
pub mod lock_trace;
pub mod properties;
pub mod random;
pub mod smallbank;
pub mod statistics;
pub mod tatp;
#[cfg(test)]
mod testing;
pub mod tpcc;
pub mod transfer;
pub mod value;
pub mod ycsb;
pub mod zipf;

use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{SchemaError, TableSchema};

/// Why a workload cannot be, or was not done right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// An option has a value that is not possible.
    #[error("option '{option}' is {value}; {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is possible.
        expected: String,
    },
    /// A property has a value that is not possible.
    #[error("{file}:{line}: property '{key}' is '{value}'; {expected}")]
    Property {
        /// The file, or `-p` for the command line.
        file: String,
        /// The line, from 1; for the command line, which `-p` it was; 0 when the value is a default.
        line: usize,
        /// The property.
        key: String,
        /// Its value.
        value: String,
        /// What is possible.
        expected: String,
    },
    /// A line of a property file cannot be read.
    #[error("{file}:{line}: {problem}")]
    Syntax {
        /// The file, or `-p` for the command line.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The rows do not fit a table.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A procedure is not registered.
    #[error("procedure '{0}' is not registered; register all of the workload's sources, then bind it")]
    Unbound(String),
    /// A procedure of the right name is not the workload's own.
    #[error("procedure '{procedure}' has no field '{field}' of the type and size that the workload's own one has")]
    Foreign {
        /// The procedure.
        procedure: String,
        /// The parameter or result.
        field: String,
    },
    /// The blocks of a batch are too short.
    #[error("the batch has blocks of {stride} bytes; the workload needs {needed}")]
    ShortBlocks {
        /// Bytes of a block of the batch.
        stride: usize,
        /// Bytes that the longest call needs.
        needed: u32,
    },
    /// The data is wrong: something of what the workload promises does not hold.
    #[error("check failed: {0}")]
    Violation(String),
}

/// What language the procedures of a workload are written in. Both have the same parameters, results and abort codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Assembly, written by hand.
    #[default]
    Assembly,
    /// SQL; what [`Workload::sources`] gives is the assembly that it compiles to.
    Sql,
}

/// Finds a registered procedure by name: its id, and the procedure itself.
pub type Lookup<'a> = dyn FnMut(&str) -> Option<(u32, Procedure)> + 'a;
/// Calls what it is given for every row of the database: table name, row image (the row after its header).
pub type Export<'a> = dyn FnMut(&mut dyn FnMut(&str, &[u8])) + 'a;

/// Whether calls that have run can run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// No: they insert keys that exist by then. New calls make the tables grow.
    Never,
    /// Yes, but they may end differently than new calls, of which there can be as many as wanted; and
    /// [`Workload::check`] has to have observed every run of every batch.
    Observed,
    /// Yes; observing the last run of each batch is enough.
    Freely,
}

/// A workload; see the module. The order of use is: create [`Self::schemas`], load every [`Self::row_image`], register
/// [`Self::sources`], [`Self::bind`], then [`Self::fill`], run and [`Self::observe`] batches, then check.
pub trait Workload: Send {
    /// Its name, as on the command line.
    fn name(&self) -> String;

    /// Its effective parameters, in one line.
    fn describe(&self) -> String;

    /// Its tables.
    fn schemas(&self) -> Vec<TableSchema>;

    /// How many rows to load into table number `table` of [`Self::schemas`]; 0 for a table it does not have.
    fn row_count(&self, table: usize) -> u64;

    /// Writes row `row` (from 0) of table number `table` into `image`, which is cleared first: the row's bytes
    /// after its header, as the schema lays them out, padding zero.
    ///
    /// # Panics
    /// When there is no such row.
    fn row_image(&self, table: usize, row: u64, image: &mut Vec<u8>);

    /// Its procedures: name and assembly text.
    fn sources(&self) -> Vec<(String, String)>;

    /// Learns ids and layouts of the registered procedures. On an error the workload is as it was.
    ///
    /// # Errors
    /// [`WorkloadError::Unbound`] and [`WorkloadError::Foreign`].
    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError>;

    /// Appends up to `transactions` calls to `batch`, fewer when it is full, and says how many.
    ///
    /// # Errors
    /// [`WorkloadError::Unbound`] before [`Self::bind`], and [`WorkloadError::ShortBlocks`]; the batch is unchanged.
    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError>;

    /// Bytes of the longest block.
    fn block_bytes(&self) -> u32;

    /// Bytes of rows that a transaction reads and writes, on average, keys not counted.
    fn payload_bytes(&self) -> u32;

    /// Rows that a transaction looks up, inserts, removes or scans, on average, rounded.
    fn accesses(&self) -> u32;

    /// Rows by which a transaction makes table number `table` grow, on average.
    fn growth(&self, table: usize) -> f64;

    /// Whether the same batches can run again.
    fn repeat(&self) -> Repeat;

    /// Learns what a completed batch did, for [`Self::check`]. To be called once for every run of every batch, or as
    /// [`Self::repeat`] says.
    fn observe(&mut self, batch: &Batch);

    /// Checks the results of the committed transactions of a batch, and says how many values it looked at.
    ///
    /// # Errors
    /// [`WorkloadError::Violation`] names the first wrong one.
    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError>;

    /// Checks the whole contents, when nothing is in flight and everything was observed, and says in words what holds.
    ///
    /// # Errors
    /// [`WorkloadError::Violation`] names the first thing that is wrong.
    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError>;
}

/// How many of `transactions` calls, of up to `block_bytes` each, there is room for in `batch`, which is refused if its
/// blocks are too short.
pub(crate) fn room(batch: &Batch, transactions: usize, block_bytes: u32) -> Result<usize, WorkloadError> {
    if batch.stride() < block_bytes as usize {
        return Err(WorkloadError::ShortBlocks { stride: batch.stride(), needed: block_bytes });
    }
    Ok(transactions.min(batch.capacity() - batch.len()))
}

/// Appends `room` calls to `batch`, which has room for them: `draw`, given the place in the batch, says what is called
/// there, and by which id, and `write` writes the arguments into the block. Returns `room`.
pub(crate) fn fill<W, C>(
    workload: &mut W,
    batch: &mut Batch,
    room: usize,
    draw: impl Fn(&mut W, usize) -> (C, u32),
    write: impl Fn(&mut W, C, &mut [u8]),
) -> usize {
    for at in batch.len()..batch.len() + room {
        let (call, id) = draw(workload, at);
        let mut block = batch.push(id).expect("there is room");
        write(workload, call, block.bytes());
    }
    room
}

/// An option that is not possible.
pub(crate) fn refuse<T>(
    option: &'static str,
    value: impl ToString,
    expected: impl Into<String>,
) -> Result<T, WorkloadError> {
    Err(WorkloadError::Option { option, value: value.to_string(), expected: expected.into() })
}

/// Requires `lo <= value <= hi` of an option.
pub(crate) fn within(option: &'static str, value: u64, lo: u64, hi: u64) -> Result<(), WorkloadError> {
    if (lo..=hi).contains(&value) { Ok(()) } else { refuse(option, value, format!("{lo} to {hi} is possible")) }
}
