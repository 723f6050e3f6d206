//! What storage refuses.

/// What storage refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The system gave no memory; the text names the table and what the memory was for.
    #[error("out of memory: {0}")]
    Memory(String),
    /// More rows than there are row numbers, wanted at once or one by one.
    #[error("table '{table}' can hold 4,294,967,295 rows and no more; ask for fewer, or divide them among tables")]
    TooManyRows {
        /// The table.
        table: String,
    },
    /// A row image of the wrong length.
    #[error("a row of table '{table}' has {wanted} bytes after its header, and {found} were given")]
    RowLength {
        /// The table.
        table: String,
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// A key image of the wrong length.
    #[error("a key of table '{table}' has {wanted} bytes, and {found} were given")]
    KeyLength {
        /// The table.
        table: String,
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// A row with this key exists.
    #[error("table '{table}' has a row with key ({key}) already; a key may stand once")]
    Duplicate {
        /// The table.
        table: String,
        /// The key, column by column.
        key: String,
    },
    /// Two tables of one name.
    #[error("there is a table '{0}' already; choose another name")]
    DuplicateTable(String),
    /// More tables than numbers for them.
    #[error("there are 65,535 tables, the most possible")]
    TooManyTables,
    /// No such table.
    #[error("no table is called '{table}'; {known}")]
    UnknownTable {
        /// The name that was asked for.
        table: String,
        /// The tables there are, in words.
        known: String,
    },
}
