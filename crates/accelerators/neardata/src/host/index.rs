//! The key index of a table: from key to VID, in the host's memory.
//!
//! It is a table of [`lockwork_storage`] whose rows are keys and nothing else: the point index, and for ordered tables
//! the ordered one, are as the engines have them. The row's word holds the VID plus one; zero: none yet.
//!
//! Invariant: a key keeps its VID for life, whether the tuple exists or was removed, so every snapshot finds its
//! versions by the same entry. Trade-off: a removed key stays here until the host is opened anew; its VID is spent
//! either way.

use std::sync::atomic::Ordering;

use lockwork_memory::Pages;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::TableSchema;
use lockwork_storage::{Inserted, LIVE, StorageError, Table};

use crate::record::Vid;

/// See the module.
#[derive(Debug)]
pub(super) struct KeyIndex(Table);

impl KeyIndex {
    /// An empty index for the keys of a table, with room for about `keys` of them; it grows.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(schema: &TableSchema, keys: usize) -> Result<Self, StorageError> {
        let columns: Vec<_> = schema.key().iter().map(|key| (key.name.as_str(), key.column_type)).collect();
        let keys_only = TableSchema::new(schema.name(), &columns, columns.len(), schema.is_ordered());
        let keys_only = keys_only.expect("the key of a sound table is a sound table");
        Ok(Self(Table::new(keys_only.into(), keys, Pages::Huge)?))
    }

    /// The normal form of a key image.
    #[inline]
    pub(super) fn key(&self, image: &[u8]) -> Key {
        self.0.key_format().encode(image)
    }

    /// The tuple of a key.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<Vid> {
        vid(self.0.find(key.hash(), key)?.word().load(Ordering::Acquire))
    }

    /// Gives a key its tuple, unless it has one: then that one is the answer.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn insert(&self, key: &Key, image: &[u8], new: Vid) -> Result<Option<Vid>, StorageError> {
        let (Inserted::New(row) | Inserted::Exists(row)) = self.0.insert(key.hash(), key, image, LIVE)?;
        let word = u64::from(new.0) + 1;
        match row.word().compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(None),
            Err(other) => Ok(vid(other)),
        }
    }

    /// Calls `f` with the tuples from a key on, in the order of their keys, until it says no. `expected` is about how
    /// many it will take.
    ///
    /// # Panics
    /// When the table is not ordered.
    pub(super) fn scan(&self, from: &Key, expected: usize, mut f: impl FnMut(Vid) -> bool) {
        self.0.scan_all(from, expected, 0..0, |row| vid(row.word().load(Ordering::Acquire)).is_none_or(&mut f));
    }
}

fn vid(word: u64) -> Option<Vid> {
    u32::try_from(word.checked_sub(1)?).ok().map(Vid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::schema::ColumnType;

    #[test]
    fn the_first_tuple_of_a_key_stays_its_tuple() {
        let columns = [("a", ColumnType::I16), ("b", ColumnType::Char(3)), ("v", ColumnType::I64)];
        let index = KeyIndex::new(&TableSchema::new("t", &columns, 2, true).unwrap(), 4).unwrap();
        let image = |number: i16| [number.to_le_bytes().as_slice(), b"xyz"].concat();
        for number in [3, -1, 7, 2] {
            let key = index.key(&image(number));
            assert_eq!(index.insert(&key, &image(number), Vid(number as u32 & 0xFF)), Ok(None));
            assert_eq!(index.insert(&key, &image(number), Vid(99)), Ok(Some(Vid(number as u32 & 0xFF))));
        }
        let mut seen = Vec::new();
        index.scan(&index.key(&image(-5)), 10, |vid| {
            seen.push(vid.0);
            seen.len() < 3
        });
        assert_eq!((seen, index.find(&index.key(&image(5)))), (vec![255, 2, 3], None));
    }
}
