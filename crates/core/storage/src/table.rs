//! A table: rows, the point index, and the ordered index if the schema asks for one.
//!
//! Indexes are safe to use from many threads at once. The *contents* of rows are not guarded here: who reads or writes
//! them has made sure, by locks or by planning, that it may.
//!
//! Invariant: a row that [`Table::find`] gives is in the ordered index too. An engine may lock, fill and commit a row
//! that another thread's [`Table::insert`] has not returned yet; a scan must not miss it. So an insert links the
//! ordered index first, and a removal unlinks it first, while the point index still says that the key is taken.
//! Invariant: bytes between columns are zero, so a row image is a function of the columns' values.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use lockwork_memory::{LINE, Pages, prefetch};
use lockwork_procedure::key::{Key, KeyFormat};
use lockwork_procedure::schema::{ColumnType, MAX_KEY_BYTES, ROW_HEADER_BYTES, TableSchema};

use crate::digest::{Digest, Digester};
use crate::error::StorageError;
use crate::hash::HashIndex;
use crate::ordered::OrderedIndex;
use crate::row::{FREE, LIVE, RowPtr, STATE_MASK};
use crate::slab::{Allocated, NoRow, Slab};

/// The most lines of one row that a scan fetches ahead; longer runs the hardware follows by itself.
const MAX_LINES: usize = 8;

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// A new row.
    New(RowPtr),
    /// There was one with this key, in whatever state.
    Exists(RowPtr),
}

/// Bytes that a table takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableMemory {
    /// Bytes reserved for rows.
    pub rows_bytes: usize,
    /// Bytes of the point index.
    pub index_bytes: usize,
    /// Bytes of the ordered index.
    pub ordered_bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    schema: Arc<TableSchema>,
    format: KeyFormat,
    slab: Slab,
    hash: HashIndex,
    ordered: Option<OrderedIndex>,
    exact: bool,
    /// Bytes of a row image that belong to no column.
    gaps: Vec<Range<usize>>,
}

impl Table {
    /// An empty table with room for `capacity_hint` rows; it grows beyond that.
    ///
    /// # Errors
    /// [`StorageError::Memory`] and [`StorageError::TooManyRows`].
    pub fn new(schema: Arc<TableSchema>, capacity_hint: usize, pages: Pages) -> Result<Self, StorageError> {
        let format = KeyFormat::of(&schema);
        let exact = format.fits_one_word();
        let slab = Slab::new(schema.stride(), capacity_hint, pages).map_err(|error| no_row(error, &schema))?;
        let refused = |error| no_row(NoRow::Memory(error), &schema);
        let hash = HashIndex::new(capacity_hint, exact, pages).map_err(refused)?;
        let ordered = schema.is_ordered().then(|| OrderedIndex::new(exact, pages)).transpose().map_err(refused)?;
        let gaps = schema.gaps().collect();
        Ok(Self { schema, format, slab, hash, ordered, exact, gaps })
    }

    /// Its schema.
    #[must_use]
    #[inline]
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// How its key images become keys.
    #[must_use]
    #[inline(always)]
    pub fn key_format(&self) -> &KeyFormat {
        &self.format
    }

    /// Rows in the index, whatever their state; exact when nobody is changing it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.hash.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What stands for a key in the point index.
    #[inline(always)]
    fn tag(&self, hash: u64, key: &Key) -> u64 {
        if self.exact { key.0[0] } else { hash }
    }

    /// Whether row `number` has this key; asked only where tags are not whole keys.
    #[inline]
    fn has_key(&self, number: u32, key: &Key) -> bool {
        // SAFETY: the number stands, or stood a moment ago, in the index, so it was allocated.
        let row = unsafe { self.slab.row(number) };
        self.format.encode(&row.read_key(self.format.image_bytes())) == *key
    }

    /// Brings the index bucket of a key's hash into cache.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.hash.prefetch(hash);
    }

    /// The row of a key, in whatever state. `hash` is the key's.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, hash: u64, key: &Key) -> Option<RowPtr> {
        let number = self.hash.find(hash, self.tag(hash, key), |row| self.has_key(row, key))?;
        // SAFETY: numbers in the index are allocated.
        Some(unsafe { self.slab.row(number) })
    }

    /// Where the point index will be looked at for a key of this hash. Prefetch it.
    #[inline(always)]
    #[must_use]
    pub fn bucket(&self, hash: u64) -> *const u8 {
        self.hash.bucket_line(hash)
    }

    /// As [`Self::find`] while keys neither come nor go, with no regard for writers.
    ///
    /// # Safety
    /// `bucket` is the [`Self::bucket`] of the key's hash, and the table has had no insert or removal since.
    #[inline(always)]
    #[must_use]
    pub unsafe fn find_in(&self, bucket: *const u8, key: &Key) -> Option<RowPtr> {
        let tag = if self.exact { key.0[0] } else { key.hash() };
        // SAFETY: as the caller's; numbers in the index are allocated.
        unsafe {
            let number = self.hash.find_in(bucket, tag, |row| self.has_key(row, key))?;
            Some(self.slab.row(number))
        }
    }

    /// As [`Self::find_in`] in a table whose keys are one integer ([`KeyFormat::is_one_integer`]), for the key of this
    /// one word.
    ///
    /// # Safety
    /// As for [`Self::find_in`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn find_word_in(&self, bucket: *const u8, word: u64) -> Option<RowPtr> {
        debug_assert!(self.exact);
        // SAFETY: as the caller's; numbers in the index are allocated.
        unsafe { Some(self.slab.row(self.hash.find_in(bucket, word, |_| true)?)) }
    }

    /// Creates a row: its values and its word zero, its key `key_image`, its state `state`. Of several inserts of one
    /// key at the same time exactly one creates it.
    ///
    /// # Errors
    /// [`StorageError::KeyLength`], [`StorageError::Memory`] and [`StorageError::TooManyRows`]; then nothing has
    /// changed.
    pub fn insert(&self, hash: u64, key: &Key, key_image: &[u8], state: u8) -> Result<Inserted, StorageError> {
        let wanted = self.format.image_bytes();
        if key_image.len() != wanted {
            let table = self.schema.name().to_string();
            return Err(StorageError::KeyLength { table, found: key_image.len(), wanted });
        }
        self.insert_row(hash, key, key_image, &[], state)
    }

    /// Inserts a row with these values, or with zeros for none.
    fn insert_row(
        &self,
        hash: u64,
        key: &Key,
        key_image: &[u8],
        values: &[u8],
        state: u8,
    ) -> Result<Inserted, StorageError> {
        debug_assert_eq!(hash, key.hash(), "a key comes with its own hash");
        let make = || {
            let allocated = self.slab.allocate()?;
            self.fill(allocated, key_image, values, state);
            match self.ordered.as_ref().map_or(Ok(()), |ordered| ordered.insert(key, allocated.number)) {
                Ok(()) => Ok(allocated.number),
                Err(error) => {
                    // SAFETY: the row was allocated just now, and no index has it.
                    unsafe { self.give_back(allocated.number) };
                    Err(NoRow::Memory(error))
                }
            }
        };
        let inserted = self.hash.insert(hash, self.tag(hash, key), |row| self.has_key(row, key), make);
        // SAFETY: numbers in the index are allocated.
        let row = |number| unsafe { self.slab.row(number) };
        Ok(match inserted.map_err(|error| no_row(error, &self.schema))? {
            Err(number) => Inserted::Exists(row(number)),
            Ok(number) => Inserted::New(row(number)),
        })
    }

    fn fill(&self, allocated: Allocated, key_image: &[u8], values: &[u8], state: u8) {
        // SAFETY: the row was allocated for us alone.
        let row = unsafe { self.slab.row(allocated.number) };
        let (start, end) = (self.schema.values_start() as usize, self.schema.row_bytes() as usize);
        let (header, key_bytes) = (ROW_HEADER_BYTES as usize, key_image.len());
        let mut key = [0; MAX_KEY_BYTES as usize];
        key[..key_bytes].copy_from_slice(key_image);
        self.gaps.iter().filter(|gap| gap.end <= key_bytes).for_each(|gap| key[gap.clone()].fill(0));
        // A reader that meets this key in a row that it knew under another one must see that the row was taken out.
        fence(Ordering::Release);
        row.write_key(&key[..key_bytes]);
        if !values.is_empty() {
            assert_eq!(values.len(), end - start, "all values or none");
            // SAFETY: values and the gaps among them lie in the row behind its key, and the row is ours alone.
            unsafe {
                row.as_ptr().add(start).copy_from_nonoverlapping(values.as_ptr(), values.len());
                for gap in self.gaps.iter().filter(|gap| gap.start >= key_bytes) {
                    row.as_ptr().add(header + gap.start).write_bytes(0, gap.len());
                }
            }
        } else if !allocated.zeroed {
            // SAFETY: the values lie in the row, which is ours alone.
            unsafe { row.as_ptr().add(start).write_bytes(0, end - start) };
        }
        row.word().store(0, Ordering::Relaxed);
        row.state().store(u64::from(state), Ordering::Release);
    }

    /// Takes the row of a key out of all indexes and gives its memory back. Returns whether there was one.
    ///
    /// # Safety
    /// Nobody else uses the row, nor will by an address found before.
    pub unsafe fn remove(&self, hash: u64, key: &Key) -> bool {
        if self.ordered.as_ref().is_some_and(|ordered| !ordered.remove(key)) {
            return false;
        }
        let removed = self.hash.remove(hash, self.tag(hash, key), |row| self.has_key(row, key));
        let Some(number) = removed else { return false };
        // SAFETY: the number was in the index, so it is allocated; the caller promises that nobody uses the row.
        unsafe { self.give_back(number) };
        true
    }

    /// # Safety
    /// The row is allocated, in no index, and used by nobody.
    unsafe fn give_back(&self, number: u32) {
        // SAFETY: as the caller's.
        unsafe {
            self.slab.row(number).state().store(u64::from(FREE), Ordering::Release);
            self.slab.free(number);
        }
    }

    /// Calls `f` with the first `limit` live rows from key `from` on, in ascending order of their keys. Bytes `touched`
    /// of the rows are brought into cache some rows ahead.
    ///
    /// # Panics
    /// When the table is not ordered; the verifier refuses procedures that scan such a table.
    #[inline]
    pub fn scan(&self, from: &Key, limit: usize, touched: Range<usize>, mut f: impl FnMut(RowPtr)) {
        let mut left = limit;
        if left == 0 {
            return;
        }
        self.scan_all(from, limit, touched, |row| {
            if row.is_live() {
                f(row);
                left -= 1;
            }
            left > 0
        });
    }

    /// Calls `f` with every row from key `from` on, in whatever state, in ascending order of their keys, until it says
    /// no. Bytes `touched` of the first `expected` rows are brought into cache some rows ahead.
    ///
    /// # Panics
    /// As [`Self::scan`].
    #[inline]
    pub fn scan_all(&self, from: &Key, expected: usize, touched: Range<usize>, mut f: impl FnMut(RowPtr) -> bool) {
        let ordered = self.ordered.as_ref().expect("only ordered tables are scanned");
        // SAFETY: numbers in the index are allocated.
        let row = |number| unsafe { self.slab.row(number) };
        let near = |number| {
            let start = row(number).as_ptr();
            prefetch(start);
            let lines = touched.start.max(LINE) / LINE..touched.end.div_ceil(LINE);
            lines.take(MAX_LINES).for_each(|line| prefetch(start.wrapping_add(line * LINE)));
        };
        ordered.scan(from, expected, near, |number| f(row(number)));
    }

    /// Brings the place in the ordered index where a scan from key `from` on begins into cache.
    pub fn prefetch_scan(&self, from: &Key) {
        self.ordered.iter().for_each(|ordered| ordered.prefetch_from(from));
    }

    /// The key of the `limit`-th row from key `from` on, in whatever state, by the ordered index alone; `None` if there
    /// are fewer rows.
    ///
    /// # Panics
    /// As [`Self::scan`], and when `limit` is zero.
    #[must_use]
    pub fn nth_key(&self, from: &Key, limit: usize) -> Option<Key> {
        assert!(limit > 0, "there is no zeroth row");
        self.ordered.as_ref().expect("only ordered tables are scanned").nth(from, limit)
    }

    /// The last key of an ordered table. `None` if it has no rows, and sometimes when the last ones were removed.
    #[must_use]
    pub fn last_key(&self) -> Option<Key> {
        self.ordered.as_ref().and_then(OrderedIndex::last)
    }

    /// How many keys were ever put into the ordered index; zero in a table that has none. A key is counted before
    /// [`Self::find`] gives its row: who acts on a row that was found has made sure that a scan which missed it can
    /// tell.
    #[inline]
    #[must_use]
    pub fn keys_ordered(&self) -> u64 {
        self.ordered.as_ref().map_or(0, OrderedIndex::linked)
    }

    /// Calls `f` with every live row, in no particular order. Call it while nobody inserts or removes.
    pub fn for_each(&self, mut f: impl FnMut(RowPtr)) {
        self.slab.for_each(|row| {
            if row.state().load(Ordering::Acquire) & STATE_MASK == u64::from(LIVE) {
                f(row);
            }
        });
    }

    /// As [`Self::for_each`], with place and row, of up to `count` places for rows from place `start` on. A row keeps
    /// its place as long as it lives, and new rows may come before or behind. Returns the next place; `None` at the
    /// end.
    pub fn for_some(&self, start: u64, count: u64, mut f: impl FnMut(u64, RowPtr)) -> Option<u64> {
        self.slab.for_some(start, count, |place, row| {
            if row.state().load(Ordering::Acquire) & STATE_MASK == u64::from(LIVE) {
                f(place, row);
            }
        })
    }

    /// The place of a row in the sense of [`Self::for_some`]; `None` for a row of another table.
    #[must_use]
    pub fn place(&self, row: RowPtr) -> Option<u64> {
        self.slab.place(row)
    }

    /// Inserts a row by its image: its bytes from offset 16 to the end.
    ///
    /// # Errors
    /// [`StorageError::RowLength`], [`StorageError::Duplicate`], or no memory; then nothing has changed.
    pub fn load(&self, image: &[u8]) -> Result<RowPtr, StorageError> {
        let wanted = (self.schema.row_bytes() - ROW_HEADER_BYTES) as usize;
        if image.len() != wanted {
            let table = self.schema.name().to_string();
            return Err(StorageError::RowLength { table, found: image.len(), wanted });
        }
        let (key_image, values) = image.split_at(self.format.image_bytes());
        let key = self.format.encode(key_image);
        match self.insert_row(key.hash(), &key, key_image, values, LIVE)? {
            Inserted::New(row) => Ok(row),
            Inserted::Exists(_) => {
                let table = self.schema.name().to_string();
                Err(StorageError::Duplicate { table, key: describe_key(&self.schema, key_image) })
            }
        }
    }

    /// The row's bytes after its header.
    ///
    /// # Safety
    /// The row is this table's, and nobody writes it while the slice is used.
    #[must_use]
    pub unsafe fn row_image(&self, row: RowPtr) -> &[u8] {
        // SAFETY: as the caller's.
        unsafe { &*row.image(&self.schema) }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn memory(&self) -> TableMemory {
        TableMemory {
            rows_bytes: self.slab.bytes(),
            index_bytes: self.hash.bytes(),
            ordered_bytes: self.ordered.as_ref().map_or(0, OrderedIndex::bytes),
        }
    }

    /// Digest of its live rows. Call it while nobody writes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut digester = Digester::new(self.schema.name());
        // SAFETY: nobody writes, by the caller's promise.
        self.for_each(|row| digester.add(unsafe { self.row_image(row) }));
        digester.finish()
    }

    /// Frees what removals left behind in the ordered index.
    ///
    /// # Safety
    /// Nobody is scanning.
    pub unsafe fn reclaim(&self) {
        if let Some(ordered) = &self.ordered {
            // SAFETY: as the caller's.
            unsafe { ordered.reclaim() }
        }
    }
}

fn no_row(error: NoRow, schema: &TableSchema) -> StorageError {
    match error {
        NoRow::Full => StorageError::TooManyRows { table: schema.name().to_string() },
        NoRow::Memory(error) => StorageError::Memory(format!("table '{}': {error}", schema.name())),
    }
}

/// A key image in words: its columns, separated by commas.
fn describe_key(schema: &TableSchema, image: &[u8]) -> String {
    let column = |column: &lockwork_procedure::schema::Column| {
        let start = (column.offset - ROW_HEADER_BYTES) as usize;
        let bytes = &image[start..start + column.column_type.width() as usize];
        match column.column_type {
            ColumnType::Char(_) => {
                let text = String::from_utf8_lossy(bytes);
                format!("'{}'", text.trim_end_matches('\0').escape_debug())
            }
            ColumnType::Bytes(_) => bytes.iter().fold("0x".to_string(), |text, byte| format!("{text}{byte:02x}")),
            integer => {
                let negative = integer.is_signed() && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
                let mut wide = [if negative { 0xFF } else { 0 }; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                i64::from_le_bytes(wide).to_string()
            }
        }
    };
    schema.key().iter().map(column).collect::<Vec<_>>().join(", ")
}
