//! What the host may ask of smart storage, and what it gets.
//!
//! [`Device`] is the seam between the two processes: the store implements it for itself, and the channel carries
//! it from one process to the other. Everything is plain data, so that a call can become bytes in shared memory and
//! back. Calls may come from many threads at once; short ones are served while a bulk operation runs.

use lockwork_procedure::schema::TableSchema;

use crate::record::{RecordId, Timestamp, Vid};

/// The number of a table, from zero, in order of creation.
pub type TableId = u16;

/// A bulk update in progress, named by the host: its age. Used again only for another try, after the one before was
/// taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

/// A version of a tuple as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Which tuple.
    pub vid: Vid,
    /// Its number among the tuple's versions, from 1.
    pub number: u32,
    /// When it was committed.
    pub created: Timestamp,
    /// The row's bytes after its header ([`lockwork_procedure::schema::ROW_HEADER_BYTES`]); `None`: it was removed.
    pub image: Option<Box<[u8]>>,
}

/// A tuple as a host learns of it when it opens a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'a> {
    /// Which tuple.
    pub vid: Vid,
    /// Number of its newest version.
    pub number: u32,
    /// When that was committed.
    pub created: Timestamp,
    /// Where it is.
    pub record: RecordId,
    /// The key's bytes; empty if the newest version says that it was removed.
    pub key: &'a [u8],
}

/// How the results of a row program are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Their sum. An overflow fails the operation.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// What a bulk operation does with the rows for which its program commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Gives them back, by [`Piece::Rows`].
    Filter,
    /// Folds integer results of the program, named by result field and in this order; [`Piece::Folded`] gives them
    /// back.
    Aggregate(Vec<(String, Fold)>),
    /// Makes a new version of each; [`Piece::Modified`] tells which.
    Update(TransactionId),
}

/// A bulk operation.
///
/// The *row program* is a verified procedure with one table and one DB instruction (SEARCH, or UPDATE for an update),
/// which is answered with the current row whatever key it names. COMMIT takes the row, ABORT leaves it; an abort that
/// the procedure did not ask for, such as an overflow, fails the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which table.
    pub table: TableId,
    /// What to do with its rows.
    pub purpose: Purpose,
    /// The row program ([`lockwork_procedure::assembly::encode`]).
    pub program: Vec<u8>,
    /// A block of the program with its arguments.
    pub block: Vec<u8>,
    /// What it sees.
    pub snapshot: Timestamp,
}

/// Part of the answer of a bulk operation. Pieces come in no particular order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Rows: VIDs, and their images one after the other.
    Rows {
        /// Which tuples.
        vids: &'a [Vid],
        /// As many images of [`TableSchema::row_bytes`] minus the header.
        images: &'a [u8],
    },
    /// The folded results, once, at the end; zero rows give `None`.
    Folded {
        /// How many rows were taken.
        rows: u64,
        /// One for each fold, in order.
        values: Option<&'a [i64]>,
    },
    /// Tuples with a new version.
    Modified(&'a [Modified]),
}

/// A tuple that a bulk update has given a new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modified {
    /// Which tuple.
    pub vid: Vid,
    /// Number of the new version.
    pub number: u32,
    /// Where it is.
    pub record: RecordId,
}

/// What became of a bulk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ran {
    /// Visible rows that were looked at.
    pub rows: u64,
    /// Those for which the program committed.
    pub taken: u64,
}

/// How full the storage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceStatus {
    /// Pages of the file.
    pub pages: u64,
    /// Of these, free ones.
    pub free_pages: u64,
    /// Versions that are stored and not freed.
    pub versions: u64,
    /// The newest timestamp of a sealed unit, or zero.
    pub newest: Timestamp,
}

/// Why the storage did not do it. Whatever was asked has had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// First updater wins: somebody else gave the tuple a new version after the snapshot.
    #[error("table {table}: tuple {vid} was updated after the snapshot of this operation; run it again", vid = vid.0)]
    Conflict {
        /// The table.
        table: TableId,
        /// The tuple.
        vid: Vid,
    },
    /// A tuple is locked, and waiting for it could be waiting in a circle, or lasted too long.
    #[error("table {table}: tuple {vid} is locked by a transaction that this one must not wait for", vid = vid.0)]
    Busy {
        /// The table.
        table: TableId,
        /// The tuple.
        vid: Vid,
    },
    /// The row program ended on a row in a way that it did not ask for.
    #[error("table {table}: the row program failed on tuple {vid} with code {code} ({})", describe(*code), vid = vid.0)]
    RowFailed {
        /// The table.
        table: TableId,
        /// The tuple.
        vid: Vid,
        /// See [`lockwork_procedure::block::abort`].
        code: u16,
    },
    /// The request makes no sense; the text says what would.
    #[error("{0}")]
    Refused(String),
    /// There is no room for it.
    #[error("the storage is full: {0}")]
    Full(String),
    /// The file could not be read or written.
    #[error("the storage failed: {0}")]
    Io(String),
    /// The file contains what nobody wrote.
    #[error("the storage is corrupt: {0}")]
    Corrupt(String),
    /// The storage process is gone.
    #[error("the storage process is gone: {0}")]
    Gone(String),
}

fn describe(code: u16) -> &'static str {
    lockwork_procedure::block::abort::describe(code).unwrap_or("a code of the procedure's own")
}

/// Smart storage, as the host sees it.
pub trait Device: Send + Sync {
    /// Creates an empty table; durable when it returns.
    ///
    /// # Errors
    /// A table of that name, no room, or a failing disk.
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError>;

    /// The tables there are, by number.
    ///
    /// # Errors
    /// Only when the storage is gone.
    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError>;

    /// Every tuple of a table with its newest version.
    ///
    /// # Errors
    /// No such table, or a failing disk.
    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError>;

    /// Stores committed versions of one table: of each tuple, oldest first, with higher numbers than what is stored.
    /// Numbers may be left out: of versions that no snapshot saw and that were superseded before they were stored. All
    /// of them or none; durable when it returns. Answers where they are, in the order given. No snapshot below
    /// `watermark` is in use.
    ///
    /// # Errors
    /// No room, a failing disk, or versions that do not follow on those stored.
    fn flush(&self, table: TableId, versions: &[Version], watermark: Timestamp) -> Result<Vec<RecordId>, DeviceError>;

    /// The version of a tuple that a snapshot sees, if there is one.
    ///
    /// # Errors
    /// No such table, or a failing disk.
    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError>;

    /// Runs a bulk operation and hands over its answer in pieces. An update that ends with an error has left
    /// nothing behind but its locks and its transaction id; one that ends well waits for [`Self::commit`] or
    /// [`Self::abort`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError>;

    /// Makes the versions of a bulk update permanent, as of `timestamp`. Durable when it returns.
    ///
    /// # Errors
    /// No such transaction, no room, or a failing disk; then it is still to be aborted.
    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError>;

    /// Forgets the versions of a bulk update. Without effect if there is no such transaction.
    ///
    /// # Errors
    /// Only when the storage is gone.
    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError>;

    /// Frees versions that no snapshot from `watermark` on sees, and answers how many.
    ///
    /// # Errors
    /// A failing disk.
    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError>;

    /// How full it is.
    ///
    /// # Errors
    /// Only when the storage is gone.
    fn status(&self) -> Result<DeviceStatus, DeviceError>;
}

/// Why a bulk update may not have a tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockRefusal {
    /// A newer version than the one named has been committed.
    Superseded,
    /// It would have to wait for somebody whom it must not wait for.
    Busy,
    /// The lock table is not usable.
    Failed(String),
}

/// The lock table as a bulk update on the storage sees it: one for each processing element. Locks stay until the host
/// has committed or aborted the transaction, and the host releases them.
pub trait RowLocks: Send {
    /// Locks a tuple exclusively, waiting if need be, and checks that its newest version is still number `number`.
    ///
    /// # Errors
    /// [`LockRefusal`].
    fn lock(&mut self, table: TableId, vid: Vid, number: u32) -> Result<(), LockRefusal>;
}

/// Gives each processing element its [`RowLocks`] when a bulk update begins.
pub trait LockSource: Send + Sync {
    /// The locks of processing element `element` for this transaction.
    ///
    /// # Errors
    /// [`LockRefusal::Failed`].
    fn open(&self, transaction: TransactionId, element: usize) -> Result<Box<dyn RowLocks>, LockRefusal>;
}
