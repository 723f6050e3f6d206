//! The tables of the golden model: rows by key, as committed, and those that a transaction has inserted and still
//! holds.

use std::collections::BTreeMap;

use lockwork_engine::Engine;
use lockwork_fpga::key_words;
use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::schema::TableSchema;

/// A key in normal form.
pub(crate) type Key = [u64; 4];

/// Bytes of a row before its image: nobody reads them.
pub(crate) const HEADER: usize = 16;

pub(crate) struct Table {
    pub(crate) schema: TableSchema,
    words: usize,
    /// Whole rows, header and image.
    pub(crate) rows: BTreeMap<Key, Vec<u8>>,
    /// Where the hardware has the row of a key, once that is known.
    pub(crate) addresses: BTreeMap<Key, u64>,
}

impl Table {
    /// Its rows as an engine has them.
    pub(crate) fn all_of(engine: &dyn Engine) -> Vec<Self> {
        let mut tables = Vec::new();
        let mut read = |database: &lockwork_storage::Database| {
            for number in 0..database.len() {
                let table = database.table(number as u16);
                let schema = table.schema().clone();
                let format = KeyFormat::of(&schema);
                let mut rows = BTreeMap::new();
                table.for_each(|row| {
                    // SAFETY: nothing runs on the mirror.
                    let image = unsafe { table.row_image(row) };
                    let key = format.encode(&image[..format.image_bytes()]).0;
                    rows.insert(key, [&[0; HEADER], image].concat());
                });
                let words = key_words::words(&schema);
                tables.push(Self { schema, words, rows, addresses: BTreeMap::new() });
            }
        };
        engine.with_database(&mut read).unwrap();
        tables
    }

    /// Key images and values must be those of an engine.
    pub(crate) fn check_all(golden: &[Self], engine: &dyn Engine, what: &str) {
        for (number, (golden, found)) in golden.iter().zip(Self::all_of(engine)).enumerate() {
            let keys = |table: &Self| table.rows.keys().copied().collect::<Vec<_>>();
            assert_eq!(keys(&found), keys(golden), "{what}: keys of table {number}");
            for (key, row) in &golden.rows {
                // What lies between columns means nothing.
                for column in golden.schema.columns() {
                    let bytes = column.offset as usize..(column.offset + column.column_type.width()) as usize;
                    let (found, expected) = (&found.rows[key][bytes.clone()], &row[bytes]);
                    assert_eq!(found, expected, "{what}: table {number}, key {key:x?}, column {}", column.name);
                }
            }
        }
    }

    pub(crate) fn hash(&self, key: &Key) -> u32 {
        key_words::crc32c(&key[..self.words])
    }

    /// The live row whose key has this hash.
    pub(crate) fn by_hash(&self, hash: u32) -> Option<Key> {
        let mut keys = self.rows.keys().filter(|key| self.hash(key) == hash);
        let key = keys.next().copied();
        assert!(keys.next().is_none(), "two keys of one hash: take others");
        key
    }

    /// Adds an empty row of this key.
    pub(crate) fn insert(&mut self, key: Key) {
        let mut row = vec![0; self.schema.row_bytes() as usize];
        let normal: Vec<u8> = key.iter().flat_map(|word| word.to_be_bytes()).collect();
        for (byte, source) in normal.into_iter().zip(key_words::sources(&self.schema)) {
            if let Some((at, flip)) = source {
                row[HEADER + usize::from(at)] = byte ^ if flip { 0x80 } else { 0 };
            }
        }
        self.rows.insert(key, row);
    }
}
