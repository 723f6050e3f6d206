//! All tables of one engine.

use std::sync::Arc;

use lockwork_memory::Pages;
use lockwork_procedure::schema::{Catalog, TableSchema};

use crate::digest::Digest;
use crate::error::StorageError;
use crate::table::{Table, TableMemory};

/// Tables by number and by name. Numbers are dense and never change.
#[derive(Debug, Default)]
pub struct Database {
    tables: Vec<Arc<Table>>,
    pages: Pages,
}

impl Database {
    /// An empty database whose tables ask for these pages.
    #[must_use]
    pub fn new(pages: Pages) -> Self {
        Self { tables: Vec::new(), pages }
    }

    /// Creates a table with room for `hint` rows and returns its number.
    ///
    /// # Errors
    /// A name that is taken, too many tables, or no memory; then nothing has changed.
    pub fn create_table(&mut self, schema: TableSchema, hint: usize) -> Result<u16, StorageError> {
        if self.table_id(schema.name()).is_some() {
            return Err(StorageError::DuplicateTable(schema.name().to_string()));
        }
        let id =
            u16::try_from(self.tables.len()).ok().filter(|&id| id < u16::MAX).ok_or(StorageError::TooManyTables)?;
        self.tables.push(Arc::new(Table::new(Arc::new(schema), hint, self.pages)?));
        Ok(id)
    }

    /// How many tables there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there is no table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Table number `id`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[inline]
    pub fn table(&self, id: u16) -> &Arc<Table> {
        &self.tables[usize::from(id)]
    }

    /// The number of the table of this name.
    #[must_use]
    pub fn table_id(&self, name: &str) -> Option<u16> {
        self.tables.iter().position(|table| table.schema().name() == name).map(|id| id as u16)
    }

    /// Inserts a row into the table of this name, by its image as [`Table::load`] takes it.
    ///
    /// # Errors
    /// [`StorageError::UnknownTable`], or what [`Table::load`] refuses; then nothing has changed.
    pub fn load(&self, table: &str, image: &[u8]) -> Result<(), StorageError> {
        let Some(id) = self.table_id(table) else {
            let names = self.table_names();
            let known =
                if names.is_empty() { "there are none".into() } else { format!("there are: {}", names.join(", ")) };
            return Err(StorageError::UnknownTable { table: table.to_string(), known });
        };
        self.table(id).load(image)?;
        Ok(())
    }

    /// Digest of all tables. Call it while nobody writes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.tables.iter().fold(Digest::default(), |sum, table| sum.combine(table.digest()))
    }

    /// Calls `f` with every live row, as (table name, row image). Call it while nobody writes.
    pub fn export(&self, mut f: impl FnMut(&str, &[u8])) {
        for table in &self.tables {
            // SAFETY: nobody writes, by the caller's promise.
            table.for_each(|row| f(table.schema().name(), unsafe { table.row_image(row) }));
        }
    }

    /// Bytes of all tables.
    #[must_use]
    pub fn memory(&self) -> TableMemory {
        self.tables.iter().map(|table| table.memory()).fold(TableMemory::default(), |a, b| TableMemory {
            rows_bytes: a.rows_bytes + b.rows_bytes,
            index_bytes: a.index_bytes + b.index_bytes,
            ordered_bytes: a.ordered_bytes + b.ordered_bytes,
        })
    }

    /// Frees what removals left behind.
    ///
    /// # Safety
    /// No transaction is running.
    pub unsafe fn reclaim(&self) {
        for table in &self.tables {
            // SAFETY: as the caller's.
            unsafe { table.reclaim() }
        }
    }
}

impl Catalog for Database {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        let id = self.table_id(name)?;
        Some((id, self.tables[usize::from(id)].schema()))
    }

    fn table_names(&self) -> Vec<String> {
        self.tables.iter().map(|table| table.schema().name().to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::LIVE;
    use crate::table::Inserted;
    use lockwork_procedure::schema::ColumnType;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::Ordering;

    fn schema(ordered: bool) -> TableSchema {
        let columns = [("a", ColumnType::I32), ("b", ColumnType::Char(12)), ("v", ColumnType::I64)];
        TableSchema::new("t", &columns, 2, ordered).unwrap()
    }

    fn image(a: i32, b: u8, v: i64) -> Vec<u8> {
        let mut image = a.to_le_bytes().to_vec();
        image.extend([b; 12]);
        image.extend(v.to_le_bytes());
        image
    }

    proptest! {
        #[test]
        fn a_table_is_a_sorted_map(steps in prop::collection::vec((-6_i32..6, 0_u8..8, 0_u8..3), 0..200)) {
            let mut database = Database::new(Pages::Plain);
            database.create_table(schema(true), 1).unwrap();
            let table = database.table(0);
            let mut model = BTreeMap::new();
            for (number, (a, b, what)) in steps.into_iter().enumerate() {
                let image = image(a, b, number as i64);
                let key = table.key_format().encode(&image);
                match what {
                    0 | 1 => prop_assert_eq!(table.load(&image).is_ok(), model.insert((a, b), image.clone()).is_none()
                        || { model.get_mut(&(a, b)).unwrap().clone_from(&read(table, &key).unwrap()); false }),
                    // SAFETY: this thread is alone with the table.
                    _ => prop_assert_eq!(unsafe { table.remove(key.hash(), &key) }, model.remove(&(a, b)).is_some()),
                }
            }
            prop_assert_eq!(table.len(), model.len() as u64);
            let mut scanned = Vec::new();
            let first = table.key_format().encode(&image(-2, 3, 0));
            // SAFETY: this thread is alone with the table.
            table.scan(&first, 10, 0..64, |row| scanned.push(unsafe { table.row_image(row) }.to_vec()));
            let expected: Vec<Vec<u8>> = model.range((-2, 3)..).take(10).map(|(_, image)| image.clone()).collect();
            prop_assert_eq!(scanned, expected);
        }
    }

    fn read(table: &Table, key: &lockwork_procedure::key::Key) -> Option<Vec<u8>> {
        // SAFETY: tests that read are alone with the table.
        table.find(key.hash(), key).map(|row| unsafe { table.row_image(row) }.to_vec())
    }

    #[test]
    fn the_digest_tells_contents_not_order() {
        let filled = |order: &mut dyn Iterator<Item = i32>| {
            let mut database = Database::new(Pages::Plain);
            database.create_table(schema(false), 1).unwrap();
            for a in order {
                database.table(0).load(&image(a, 1, i64::from(a))).unwrap();
            }
            database.digest()
        };
        let forwards = filled(&mut (0..500));
        assert_eq!(forwards, filled(&mut (0..500).rev()));
        assert_ne!(forwards, filled(&mut (0..499)));
        assert_eq!(forwards.to_string().len(), 32);
    }

    #[test]
    fn pieces_of_a_table_are_all_of_it_and_rows_keep_their_places() {
        let mut database = Database::new(Pages::Plain);
        database.create_table(schema(false), 10).unwrap();
        let table = database.table(0);
        (0..3000).for_each(|a| assert!(table.load(&image(a, 1, 7)).is_ok()));
        for a in (0..3000).step_by(3) {
            let key = table.key_format().encode(&image(a, 1, 0));
            // SAFETY: this thread is alone with the table.
            assert!(unsafe { table.remove(key.hash(), &key) });
        }
        for count in [1, 7, 640, 1 << 20] {
            let (mut start, mut images, mut places) = (0, Vec::new(), Vec::new());
            loop {
                let next = table.for_some(start, count, |place, row| {
                    // SAFETY: this thread is alone with the table.
                    images.extend_from_slice(unsafe { table.row_image(row) });
                    places.push(place);
                    assert_eq!(table.place(row), Some(place));
                    assert!((start..start + count).contains(places.last().unwrap()));
                });
                match next {
                    Some(next) => start = next,
                    None => break,
                }
            }
            assert!(places.is_sorted() && places.len() == 2000, "{count}");
            assert_eq!(Digest::of_rows("t", 24, &images), database.digest());
        }
    }

    #[test]
    fn refusals_name_the_table_and_what_is_right() {
        let mut database = Database::new(Pages::Plain);
        database.create_table(schema(false), 1).unwrap();
        assert!(database.create_table(schema(true), 1).unwrap_err().to_string().contains("'t' already"));
        let table = database.table(0);
        assert!(table.load(&[0; 3]).unwrap_err().to_string().contains("24 bytes"));
        assert!(table.load(&image(-1, b'x', 1)).is_ok());
        let error = table.load(&image(-1, b'x', 2)).unwrap_err().to_string();
        assert!(error.contains("'t' has a row with key (-1, 'xxxxxxxxxxxx') already"), "{error}");
        assert!(database.load("x", &[]).unwrap_err().to_string().contains("there are: t"));
    }

    #[test]
    fn a_row_that_comes_back_is_clean() {
        let mut database = Database::new(Pages::Plain);
        database.create_table(schema(false), 1).unwrap();
        let table = database.table(0);
        let row = table.load(&image(1, 1, 77)).unwrap();
        row.word().store(9, Ordering::Relaxed);
        let key = table.key_format().encode(&image(1, 1, 0));
        // SAFETY: this thread is alone with the table.
        assert!(unsafe { table.remove(key.hash(), &key) });
        let Inserted::New(again) = table.insert(key.hash(), &key, &image(1, 1, 0)[..16], LIVE).unwrap() else {
            panic!()
        };
        assert_eq!((again, again.word().load(Ordering::Relaxed)), (row, 0));
        assert_eq!(read(table, &key).unwrap(), image(1, 1, 0));
    }

    #[test]
    fn a_million_hobbes_rows_cost_little_more_than_their_bytes() {
        let names: Vec<String> = (0..8).map(|field| format!("field{field}")).collect();
        let mut columns = vec![("key", ColumnType::I64)];
        columns.extend(names.iter().map(|name| (name.as_str(), ColumnType::Bytes(64))));
        let schema = TableSchema::new("usertable", &columns, 1, false).unwrap();
        let mut database = Database::new(Pages::Huge);
        database.create_table(schema, 1_000_000).unwrap();
        let memory = database.memory();
        assert!(memory.rows_bytes as f64 <= 1.25 * 520.0 * 1e6, "{memory:?}");
        assert!(memory.index_bytes <= 40_000_000, "{memory:?}");
    }
}
