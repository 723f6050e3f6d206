//! Tables and where their columns lie.
//!
//! Every column has a fixed width, so a column is a constant offset and an instruction reaches it in one step, in
//! software and in hardware. The offsets count from the first byte of the row *in memory*, header included:
//!
//! ```text
//! offset 0                16                        aligned
//! +-----------------------+-------------------------+--------------------------+---------+
//! | row header, 16 bytes  | key columns, in order   | value columns, in order  | padding |
//! | (the engine's own)    | (never written again)   |                          | to 64   |
//! +-----------------------+-------------------------+--------------------------+---------+
//! ```
//!
//! Integers are little-endian and aligned to their size. `char` and `bytes` columns of 64 bytes and more begin on a
//! cache line, shorter ones are not aligned. The *key image*, as it stands in a block, has the same
//! layout as the key columns in the row, counted from 16.
//!
//! Invariant: a [`TableSchema`] that exists is sound: names are unique, offsets rise, the key is 1 to 32 bytes.

use std::fmt;
use std::ops::Range;

use crate::partitioning::Partitioning;

/// Bytes at the start of every row that belong to storage and engine and that no procedure can reach.
pub const ROW_HEADER_BYTES: u32 = 16;
/// The widest key image, in bytes.
pub const MAX_KEY_BYTES: u32 = 32;
/// The widest row, header included, in bytes.
pub const MAX_ROW_BYTES: u32 = 64 * 1024;
/// The most columns a table may have: the instruction set names a column in one byte and keeps 0 for "all".
pub const MAX_COLUMNS: usize = 254;

/// The type of a column, a parameter or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Signed integer of one byte.
    I8,
    /// Signed integer of two bytes.
    I16,
    /// Signed integer of four bytes.
    I32,
    /// Signed integer of eight bytes.
    I64,
    /// Unsigned integer of one byte.
    U8,
    /// Unsigned integer of two bytes.
    U16,
    /// Unsigned integer of four bytes. (There is no u64: every integer fits a signed 64-bit register.)
    U32,
    /// Text of exactly `n` bytes, padded with zero bytes.
    Char(u32),
    /// Exactly `n` bytes.
    Bytes(u32),
}

impl ColumnType {
    /// Width in bytes.
    #[must_use]
    pub const fn width(self) -> u32 {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::I64 => 8,
            Self::Char(n) | Self::Bytes(n) => n,
        }
    }

    /// Alignment in bytes, counted from the start of a row or a block.
    #[must_use]
    pub const fn align(self) -> u32 {
        match self {
            Self::Char(n) | Self::Bytes(n) if n >= 64 => 64,
            Self::Char(_) | Self::Bytes(_) => 1,
            _ => self.width(),
        }
    }

    /// Whether values are integers, that is, fit a register.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !matches!(self, Self::Char(_) | Self::Bytes(_))
    }

    /// Whether values are integers with a sign.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Smallest and largest value of an integer type; `None` for bytes and text.
    #[must_use]
    pub const fn range(self) -> Option<(i64, i64)> {
        Some(match self {
            Self::I8 => (i8::MIN as i64, i8::MAX as i64),
            Self::I16 => (i16::MIN as i64, i16::MAX as i64),
            Self::I32 => (i32::MIN as i64, i32::MAX as i64),
            Self::I64 => (i64::MIN, i64::MAX),
            Self::U8 => (0, u8::MAX as i64),
            Self::U16 => (0, u16::MAX as i64),
            Self::U32 => (0, u32::MAX as i64),
            Self::Char(_) | Self::Bytes(_) => return None,
        })
    }

    /// Reads the notation that [`fmt::Display`] writes: `i64`, `u8`, `char(16)`, `bytes(64)`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let sized = |prefix: &str| -> Option<u32> {
            let digits = text.strip_prefix(prefix)?.strip_suffix(')')?;
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            digits.parse().ok().filter(|&n| n > 0)
        };
        Some(match text {
            "i8" => Self::I8,
            "i16" => Self::I16,
            "i32" => Self::I32,
            "i64" => Self::I64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            _ => match sized("char(") {
                Some(n) => Self::Char(n),
                None => Self::Bytes(sized("bytes(")?),
            },
        })
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::I8 => f.write_str("i8"),
            Self::I16 => f.write_str("i16"),
            Self::I32 => f.write_str("i32"),
            Self::I64 => f.write_str("i64"),
            Self::U8 => f.write_str("u8"),
            Self::U16 => f.write_str("u16"),
            Self::U32 => f.write_str("u32"),
            Self::Char(n) => write!(f, "char({n})"),
            Self::Bytes(n) => write!(f, "bytes({n})"),
        }
    }
}

/// One column: a name, a type and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Unique in its table.
    pub name: String,
    /// What it holds.
    pub column_type: ColumnType,
    /// Bytes from the start of the row, header included.
    pub offset: u32,
}

/// Why a table cannot be as it was described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The name is empty, too long, or has characters other than letters, digits and `_`.
    #[error("'{0}' is no name: use 1 to 63 letters, digits and '_', not beginning with a digit")]
    BadName(String),
    /// Two columns share a name.
    #[error("table '{table}' has two columns named '{column}'; give each a name of its own")]
    DuplicateColumn {
        /// The table.
        table: String,
        /// The name that stands twice.
        column: String,
    },
    /// No key column, or more key columns than columns.
    #[error("table '{table}' has {columns} columns and names {key} of them as its key; a key needs at least one")]
    BadKeyCount {
        /// The table.
        table: String,
        /// How many columns there are.
        columns: usize,
        /// How many were to be the key.
        key: usize,
    },
    /// The key is wider than [`MAX_KEY_BYTES`].
    #[error("the key of table '{table}' is {bytes} bytes wide; at most {MAX_KEY_BYTES} are possible")]
    KeyTooWide {
        /// The table.
        table: String,
        /// Width of the key image in bytes.
        bytes: u32,
    },
    /// The row is wider than [`MAX_ROW_BYTES`].
    #[error("a row of table '{table}' would be {bytes} bytes wide; at most {MAX_ROW_BYTES} are possible")]
    RowTooWide {
        /// The table.
        table: String,
        /// Width of the row in bytes.
        bytes: u64,
    },
    /// More than [`MAX_COLUMNS`] columns.
    #[error("table '{table}' has {columns} columns; at most {MAX_COLUMNS} are possible")]
    TooManyColumns {
        /// The table.
        table: String,
        /// How many columns there are.
        columns: usize,
    },
    /// The column that should say where a row lies is not in the key, so a key would not say it.
    #[error("table '{table}' cannot be partitioned by '{column}', which is no key column; possible: {key}")]
    BadPartitionColumn {
        /// The table.
        table: String,
        /// The column that was named.
        column: String,
        /// The columns that could be, in quotes.
        key: String,
    },
}

/// Whether `name` can name a table, column, parameter, label or procedure.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && name.len() <= 63 && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A table: its columns, its key, whether its keys are kept in order for scans, and how it is partitioned.
///
/// It is displayed as the assembler reads it: `accounts (id: i64 key, balance: i64) partition by hash(id)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSchema {
    name: String,
    columns: Vec<Column>,
    key_columns: usize,
    key_bytes: u32,
    row_bytes: u32,
    ordered: bool,
    partitioning: Option<Partitioning>,
}

impl TableSchema {
    /// Lays out a table whose first `key_columns` columns are its key. `ordered` keeps its keys in order, so that
    /// procedures can SCAN it.
    ///
    /// # Errors
    /// [`SchemaError`] names what is wrong and what would be right.
    pub fn new(
        name: &str,
        columns: &[(&str, ColumnType)],
        key_columns: usize,
        ordered: bool,
    ) -> Result<Self, SchemaError> {
        if !is_name(name) {
            return Err(SchemaError::BadName(name.to_string()));
        }
        let table = || name.to_string();
        if key_columns == 0 || key_columns > columns.len() {
            return Err(SchemaError::BadKeyCount { table: table(), columns: columns.len(), key: key_columns });
        }
        if columns.len() > MAX_COLUMNS {
            return Err(SchemaError::TooManyColumns { table: table(), columns: columns.len() });
        }
        let mut laid_out: Vec<Column> = Vec::with_capacity(columns.len());
        let mut end = u64::from(ROW_HEADER_BYTES);
        let mut key_end = end;
        for (index, &(column, column_type)) in columns.iter().enumerate() {
            if !is_name(column) {
                return Err(SchemaError::BadName(column.to_string()));
            }
            if laid_out.iter().any(|other| other.name == column) {
                return Err(SchemaError::DuplicateColumn { table: table(), column: column.to_string() });
            }
            // A key column keeps the alignment of its type but never a whole line: the key image stays compact.
            let align = if index < key_columns { column_type.align().min(8) } else { column_type.align() };
            let offset = end.next_multiple_of(u64::from(align));
            end = offset + u64::from(column_type.width());
            if end > u64::from(MAX_ROW_BYTES) {
                return Err(SchemaError::RowTooWide { table: table(), bytes: end });
            }
            if index < key_columns {
                key_end = end;
            }
            laid_out.push(Column { name: column.to_string(), column_type, offset: offset as u32 });
        }
        let key_bytes = key_end as u32 - ROW_HEADER_BYTES;
        if key_bytes > MAX_KEY_BYTES {
            return Err(SchemaError::KeyTooWide { table: table(), bytes: key_bytes });
        }
        let (columns, row_bytes) = (laid_out, end as u32);
        Ok(Self { name: table(), columns, key_columns, key_bytes, row_bytes, ordered, partitioning: None })
    }

    /// The same table, each row of which lies in the partition that `column` gives.
    ///
    /// # Errors
    /// [`SchemaError::BadPartitionColumn`] when `column` is no column of the key.
    pub fn partition_by_hash(self, column: &str) -> Result<Self, SchemaError> {
        match self.key().iter().position(|key| key.name == column) {
            Some(position) => Ok(Self { partitioning: Some(Partitioning::Hash(position)), ..self }),
            None => Err(SchemaError::BadPartitionColumn {
                key: self.key().iter().map(|key| format!("'{}'", key.name)).collect::<Vec<_>>().join(", "),
                table: self.name,
                column: column.to_string(),
            }),
        }
    }

    /// The same table, with all rows in every partition: for what is read and not written.
    #[must_use]
    pub fn replicate(self) -> Self {
        Self { partitioning: Some(Partitioning::Replicated), ..self }
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All columns, key columns first.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The key columns.
    #[must_use]
    pub fn key(&self) -> &[Column] {
        &self.columns[..self.key_columns]
    }

    /// The column of this name, with its position.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<(usize, &Column)> {
        self.columns.iter().enumerate().find(|(_, column)| column.name == name)
    }

    /// Width of the key image in bytes, 1 to [`MAX_KEY_BYTES`].
    #[must_use]
    pub fn key_bytes(&self) -> u32 {
        self.key_bytes
    }

    /// Where the row's own bytes end, header included and trailing padding not: offsets below this one may be read.
    #[must_use]
    pub fn row_bytes(&self) -> u32 {
        self.row_bytes
    }

    /// The bytes of a row image, which begins behind the row's header, that lie between columns.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut end = 0;
        self.columns().iter().filter_map(move |column| {
            let start = (column.offset - ROW_HEADER_BYTES) as usize;
            let gap = end..start;
            end = start + column.column_type.width() as usize;
            (!gap.is_empty()).then_some(gap)
        })
    }

    /// Where the bytes that a procedure may write begin: the end of the key.
    #[must_use]
    pub fn values_start(&self) -> u32 {
        ROW_HEADER_BYTES + self.key_bytes
    }

    /// Bytes from one row to the next in memory: [`Self::row_bytes`] rounded up to a cache line.
    #[must_use]
    pub fn stride(&self) -> usize {
        (self.row_bytes as usize).next_multiple_of(64)
    }

    /// Whether keys are kept in order.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// How rows are divided among partitions; `None` when that was not declared. Engines without partitions do not ask.
    #[must_use]
    pub fn partitioning(&self) -> Option<Partitioning> {
        self.partitioning
    }
}

impl fmt::Display for TableSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.name)?;
        for (position, Column { name, column_type, .. }) in self.columns.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            let key = if position < self.key_columns { " key" } else { "" };
            write!(f, "{comma}{name}: {column_type}{key}")?;
        }
        f.write_str(if self.ordered { ") ordered" } else { ")" })?;
        match self.partitioning {
            None => Ok(()),
            Some(Partitioning::Hash(column)) => write!(f, " partition by hash({})", self.columns[column].name),
            Some(Partitioning::Replicated) => f.write_str(" replicated"),
        }
    }
}

/// Where the assembler and the verifier look up tables by name.
pub trait Catalog {
    /// The table of this name, with the number that an engine knows it by.
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)>;
    /// The names of all tables, for an error that says what would be right.
    fn table_names(&self) -> Vec<String>;
}

/// A list of schemas is a catalogue; a table's number is its position.
impl Catalog for [TableSchema] {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        let position = self.iter().position(|schema| schema.name() == name)?;
        Some((u16::try_from(position).ok()?, &self[position]))
    }

    fn table_names(&self) -> Vec<String> {
        self.iter().map(|schema| schema.name().to_string()).collect()
    }
}

impl Catalog for Vec<TableSchema> {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        self.as_slice().table(name)
    }

    fn table_names(&self) -> Vec<String> {
        self.as_slice().table_names()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hobbes_row_has_every_field_on_a_line_of_its_own() {
        let mut columns = vec![("key", ColumnType::I64)];
        let names: Vec<String> = (0..8).map(|i| format!("field{i}")).collect();
        columns.extend(names.iter().map(|name| (name.as_str(), ColumnType::Bytes(64))));
        let schema = TableSchema::new("usertable", &columns, 1, false).unwrap();
        assert_eq!(schema.key()[0].offset, 16);
        assert_eq!(schema.columns()[1].offset, 64);
        assert_eq!((schema.row_bytes(), schema.stride(), schema.key_bytes()), (576, 576, 8));
    }

    #[test]
    fn bad_tables_are_refused_by_name() {
        let i64 = ColumnType::I64;
        let refused = |columns: &[(&str, ColumnType)], key| TableSchema::new("t", columns, key, false).unwrap_err();
        assert!(matches!(refused(&[], 1), SchemaError::BadKeyCount { .. }));
        assert!(matches!(refused(&[("a", i64), ("a", i64)], 1), SchemaError::DuplicateColumn { .. }));
        assert!(matches!(refused(&[("a", ColumnType::Char(33))], 1), SchemaError::KeyTooWide { bytes: 33, .. }));
        assert!(matches!(
            refused(&[("a", i64), ("b", ColumnType::Bytes(u32::MAX))], 1),
            SchemaError::RowTooWide { .. }
        ));
        assert!(matches!(refused(&[("4", i64)], 1), SchemaError::BadName(_)));
    }

    #[test]
    fn a_table_is_partitioned_by_a_column_of_its_key() {
        let columns = [("w", ColumnType::U16), ("d", ColumnType::U8), ("tax", ColumnType::U16)];
        let table = TableSchema::new("district", &columns, 2, false).unwrap();
        assert_eq!(table.partitioning(), None);
        let by_second = table.clone().partition_by_hash("d").unwrap();
        assert_eq!(by_second.partitioning(), Some(Partitioning::Hash(1)));
        assert_ne!(by_second, table);
        assert_eq!(by_second.replicate().partitioning(), Some(Partitioning::Replicated));
        for column in ["tax", "nowhere"] {
            let error = table.clone().partition_by_hash(column).unwrap_err().to_string();
            let expected = format!(
                "table 'district' cannot be partitioned by '{column}', which is no key column; possible: 'w', 'd'"
            );
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn types_read_what_they_write() {
        for text in ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "char(7)", "bytes(64)"] {
            assert_eq!(ColumnType::parse(text).unwrap().to_string(), text);
        }
        for text in ["u64", "char()", "char(0)", "bytes(-1)", "bytes(4", "bytes(99999999999)", "char(+4)"] {
            assert_eq!(ColumnType::parse(text), None, "{text}");
        }
    }
}
