//! The rows of a table as SQLite sees them: a virtual table over their images, of which nothing is copied.
//!
//! Columns are called `c0`, `c1` and so on, in the order of the schema. A table that is looked up by the same columns
//! for the second time, as the inner one of a join is, gets an index of them: hashes of values and numbers of rows.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use lockwork::sql::{SqlType, Value};
use rusqlite::types::ValueRef;
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor, sqlite3_vtab,
    sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Error, Result};

use crate::limits::{Limits, Reserved, spend};

/// The most bytes of the indexes of a table.
const MAX_INDEX_BYTES: usize = 160 << 20;
/// What a row of an index costs, in bytes that are read or written.
const WORK: usize = 64;

/// A column in a row's image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: usize,
    pub(super) width: usize,
    pub(super) sql: SqlType,
    pub(super) is_key: bool,
}

/// Rows by the hash of some columns.
struct Index {
    /// Hashes and rows, in the order of the hashes.
    rows: Vec<(u64, u32)>,
    /// Where those begin whose hashes have the same first bits.
    starts: Vec<u32>,
}

impl Index {
    /// As many first bits as make about one row for each value of them.
    fn new(hash: impl Fn(u32) -> u64, count: u32) -> Result<Self> {
        let bits = count.max(2).ilog2();
        let bucket = |hash: u64| (hash >> (64 - bits)) as usize;
        // Two passes over the rows put them into their buckets, and a look at the clock stands between pieces of each.
        let mut starts = vec![0_u32; (1 << bits) + 1];
        for row in 0..count {
            spend(WORK)?;
            starts[bucket(hash(row)) + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut rows, mut next) = (vec![(0, 0); count as usize], starts.clone());
        for row in 0..count {
            spend(WORK)?;
            let hash = hash(row);
            let place = &mut next[bucket(hash)];
            rows[*place as usize] = (hash, row);
            *place += 1;
        }
        for at in 1..starts.len() {
            let rows = &mut rows[starts[at - 1] as usize..starts[at] as usize];
            spend(WORK * rows.len())?;
            rows.sort_unstable();
        }
        Ok(Self { rows, starts })
    }

    fn find(&self, hash: u64) -> Range<usize> {
        let bits = (self.starts.len() - 1).ilog2();
        let bucket = (hash >> (64 - bits)) as usize;
        let (first, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        let rows = &self.rows[first..end];
        let skipped = rows.iter().take_while(|(other, _)| *other < hash).count();
        let found = rows[skipped..].iter().take_while(|(other, _)| *other == hash).count();
        first + skipped..first + skipped + found
    }
}

/// The rows of a table.
pub(super) struct Image {
    places: Vec<Place>,
    row_bytes: usize,
    rows: usize,
    bytes: Vec<u8>,
    hasher: RandomState,
    /// By columns: none where it was asked once.
    indexes: Mutex<HashMap<Vec<usize>, Option<Arc<Index>>>>,
    limits: Arc<Limits>,
    /// The memory of the indexes, beside the rows, which are bounded by themselves.
    held: Mutex<Vec<Reserved>>,
}

impl Image {
    pub(super) fn new(places: Vec<Place>, row_bytes: usize, bytes: Vec<u8>, limits: Arc<Limits>) -> Self {
        let rows = bytes.len() / row_bytes.max(1);
        let (hasher, indexes, held) = (RandomState::new(), Mutex::default(), Mutex::default());
        Self { places, row_bytes, rows, bytes, hasher, indexes, limits, held }
    }

    fn cell(&self, row: usize, column: usize) -> &[u8] {
        let place = &self.places[column];
        &self.bytes[row * self.row_bytes + place.offset..][..place.width]
    }

    /// The number of a cell that is one.
    fn number(&self, row: usize, column: usize) -> Option<i64> {
        match Value::read(self.places[column].sql, self.cell(row, column)) {
            Value::Integer(number) | Value::Decimal(number, _) | Value::Timestamp(number) => Some(number),
            Value::Boolean(truth) => Some(truth.into()),
            _ => None,
        }
    }

    /// A text without the zero bytes that fill it up.
    fn text(&self, row: usize, column: usize) -> Cow<'_, str> {
        let cell = self.cell(row, column);
        String::from_utf8_lossy(&cell[..cell.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)])
    }

    fn hash(&self, row: usize, columns: &[usize]) -> u64 {
        columns.iter().fold(0, |hash, &column| match self.places[column].sql {
            SqlType::Text(_) => self.hasher.hash_one((hash, self.text(row, column).as_bytes())),
            SqlType::Bytes(_) => self.hasher.hash_one((hash, self.cell(row, column))),
            _ => self.hasher.hash_one((hash, self.number(row, column))),
        })
    }

    /// The hash of rows that have these values; nothing for values of other kinds, which SQLite compares itself.
    fn hash_of(&self, columns: &[usize], values: &Filters<'_>) -> Option<u64> {
        columns.iter().zip(values.iter()).try_fold(0, |hash, (&column, value)| match (self.places[column].sql, value) {
            (SqlType::Text(_), ValueRef::Text(bytes)) | (SqlType::Bytes(_), ValueRef::Blob(bytes)) => {
                Some(self.hasher.hash_one((hash, bytes)))
            }
            (SqlType::Text(_) | SqlType::Bytes(_), _) => None,
            (_, ValueRef::Integer(number)) => Some(self.hasher.hash_one((hash, Some(number)))),
            _ => None,
        })
    }

    /// The index of some columns, if it is worth it and there is memory for it.
    fn index(&self, columns: &[usize]) -> Result<Option<Arc<Index>>> {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        match indexes.get(columns) {
            Some(Some(index)) => return Ok(Some(index.clone())),
            Some(None) => {}
            None => {
                indexes.insert(columns.to_vec(), None);
                return Ok(None);
            }
        }
        let made = indexes.values().flatten().count() + 1;
        // Of each row its entry and, at most, the begin of a bucket, which is there twice while the index is made.
        let bytes = self.rows * (size_of::<(u64, u32)>() + 2 * size_of::<u32>());
        let Ok(count) = u32::try_from(self.rows) else { return Ok(None) };
        if made * bytes > MAX_INDEX_BYTES {
            return Ok(None);
        }
        let Some(reserved) = self.limits.reserve_spare(bytes) else { return Ok(None) };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(reserved);
        let index = Arc::new(Index::new(|row| self.hash(row as usize, columns), count)?);
        indexes.insert(columns.to_vec(), Some(index.clone()));
        Ok(Some(index))
    }
}

/// Makes a table known to a database.
pub(super) fn register(connection: &Connection, name: &str, image: Arc<Image>) -> Result<()> {
    const MODULE: Module<'_, Images> = Module::eponymous_only_module();
    connection.create_module(name, &MODULE, Some(image))
}

#[repr(C)]
struct Images {
    /// SQLite's part, which comes first.
    base: sqlite3_vtab,
    image: Arc<Image>,
}

// SAFETY: `Images` is laid out as in C, with SQLite's part first.
unsafe impl<'vtab> VTab<'vtab> for Images {
    type Aux = Arc<Image>;
    type Cursor = Rows;

    fn connect(
        database: &mut VTabConnection,
        image: Option<&Arc<Image>>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        let image = image.ok_or_else(|| Error::ModuleError("there are no rows".into()))?.clone();
        database.config(VTabConfig::Innocuous)?;
        let columns: Vec<String> = (0..image.places.len()).map(|column| format!("c{column}")).collect();
        let declared = CString::new(format!("CREATE TABLE x({})", columns.join(", ")))?;
        Ok((Cow::Owned(declared), Self { base: sqlite3_vtab::default(), image }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut columns = Vec::new();
        let mut used = Vec::new();
        for (at, constraint) in info.constraints().enumerate() {
            let Ok(column) = usize::try_from(constraint.column()) else { continue };
            let is_equal = constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ;
            if is_equal && constraint.is_usable() && !columns.contains(&column) {
                columns.push(column);
                used.push(at);
            }
        }
        for (number, &at) in used.iter().enumerate() {
            info.constraint_usage(at).set_argv_index(number as c_int + 1);
        }
        let rows = self.image.rows as i64;
        let mut keys = self.image.places.iter().enumerate().filter(|(_, place)| place.is_key).peekable();
        let has_key = keys.peek().is_some() && keys.all(|(column, _)| columns.contains(&column));
        let (cost, found) = match columns.len() {
            0 => (rows as f64, rows),
            _ if has_key => (3.0, 1),
            _ => (20.0, 10.min(rows)),
        };
        info.set_estimated_cost(cost);
        info.set_estimated_rows(found);
        let names: Vec<String> = columns.iter().map(usize::to_string).collect();
        info.set_idx_str(&names.join(","));
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Rows> {
        let image = self.image.clone();
        let (name, columns, index, base) = (String::new(), Vec::new(), None, sqlite3_vtab_cursor::default());
        Ok(Rows { base, image, name, columns, index, is_found: false, left: 0..0 })
    }
}

#[repr(C)]
struct Rows {
    /// SQLite's part, which comes first.
    base: sqlite3_vtab_cursor,
    image: Arc<Image>,
    /// What rows are looked up by, as SQLite says it, and as numbers of columns.
    name: String,
    columns: Vec<usize>,
    index: Option<Arc<Index>>,
    /// Whether `left` counts in the index, not in all rows.
    is_found: bool,
    left: Range<usize>,
}

impl Rows {
    fn row(&self) -> usize {
        let found = self.index.as_ref().filter(|_| self.is_found);
        found.map_or(self.left.start, |index| index.rows[self.left.start].1 as usize)
    }
}

// SAFETY: `Rows` is laid out as in C, with SQLite's part first.
unsafe impl VTabCursor for Rows {
    fn filter(&mut self, _: c_int, columns: Option<&str>, values: &Filters<'_>) -> Result<()> {
        let name = columns.unwrap_or_default();
        if self.name != name {
            // The rows of a RIGHT JOIN that nothing was found for come through the same cursor.
            self.columns = name.split(',').filter_map(|column| column.parse().ok()).collect();
            (self.name, self.index) = (name.into(), None);
        }
        (self.is_found, self.left) = (false, 0..self.image.rows);
        if self.columns.is_empty() {
            return Ok(());
        }
        if values.iter().any(|value| value == ValueRef::Null) {
            // Nothing is equal to it.
            self.left = 0..0;
            return Ok(());
        }
        let Some(hash) = self.image.hash_of(&self.columns, values) else { return Ok(()) };
        if self.index.is_none() {
            self.index = self.image.index(&self.columns)?;
        }
        if let Some(index) = &self.index {
            (self.is_found, self.left) = (true, index.find(hash));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.left.start += 1;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.left.is_empty()
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let (row, column) = (self.row(), column as usize);
        match self.image.places[column].sql {
            SqlType::Text(_) => context.set_result(&*self.image.text(row, column)),
            SqlType::Bytes(_) => context.set_result(self.image.cell(row, column)),
            _ => context.set_result(self.image.number(row, column)),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.row() as i64)
    }
}
