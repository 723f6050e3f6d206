//! Numbers, keys and schemas as bytes: little-endian, one after the other.
//!
//! Invariant: [`Reader`] never looks past the end, and believes no length before it has seen that many bytes.

use std::fmt;

use lockwork_procedure::key::Key;
use lockwork_procedure::partitioning::Partitioning;
use lockwork_procedure::schema::{ColumnType, TableSchema};

/// Bytes from another process that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of another process is malformed: {0}; do all run the same build of the program?")]
pub(crate) struct Malformed(pub(crate) String);

impl Malformed {
    pub(crate) fn new(problem: impl fmt::Display) -> Self {
        Self(problem.to_string())
    }
}

/// Takes fields off the front of a message.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes there are still.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        match self.0.split_at_checked(count) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => Err(Malformed(format!("{count} more bytes should follow, and {} do", self.0.len()))),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    #[inline]
    pub(crate) fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.counted()?).map_err(Malformed::new)
    }

    /// A key: how many of its words are not zeros at the end, and these.
    pub(crate) fn key(&mut self) -> Result<Key, Malformed> {
        let words = usize::from(self.u8()?);
        let mut key = Key([0; 4]);
        let places = key.0.get_mut(..words).ok_or_else(|| Malformed::new(format_args!("a key of {words} words")))?;
        for word in places {
            *word = self.u64()?;
        }
        Ok(key)
    }

    pub(crate) fn schema(&mut self) -> Result<TableSchema, Malformed> {
        let name = self.text()?;
        let (ordered, key, count) = (self.u8()? != 0, self.u8()?, self.u8()?);
        let mut columns = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (column, column_type) = (self.text()?, self.text()?);
            let unknown = || Malformed::new(format_args!("no column type is called '{column_type}'"));
            columns.push((column, ColumnType::parse(column_type).ok_or_else(unknown)?));
        }
        let schema = TableSchema::new(name, &columns, key.into(), ordered).map_err(Malformed::new)?;
        match self.u8()? {
            0 => Ok(schema),
            1 => Ok(schema.replicate()),
            column => match columns.get(usize::from(column) - 2) {
                Some((column, _)) => schema.partition_by_hash(column).map_err(Malformed::new),
                None => Err(Malformed::new(format_args!("a table of {count} columns is divided by another one"))),
            },
        }
    }
}

/// Appends fields to a message.
pub(crate) trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    #[inline]
    fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    #[inline]
    fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    #[inline]
    fn counted(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes(bytes);
    }

    fn key(&mut self, key: &Key) {
        let words = key.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.u8(words as u8);
        key.0[..words].iter().for_each(|word| self.u64(*word));
    }

    fn schema(&mut self, schema: &TableSchema) {
        self.counted(schema.name().as_bytes());
        self.u8(u8::from(schema.is_ordered()));
        self.u8(schema.key().len() as u8);
        self.u8(schema.columns().len() as u8);
        for column in schema.columns() {
            self.counted(column.name.as_bytes());
            self.counted(column.column_type.to_string().as_bytes());
        }
        self.u8(match schema.partitioning() {
            None => 0,
            Some(Partitioning::Replicated) => 1,
            Some(Partitioning::Hash(column)) => column as u8 + 2,
        });
    }
}

impl Put for Vec<u8> {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read() {
        let columns = [("w", ColumnType::U16), ("name", ColumnType::Char(9)), ("v", ColumnType::I64)];
        let plain = TableSchema::new("t", &columns, 2, true).unwrap();
        let divided = plain.clone().partition_by_hash("name").unwrap();
        let keys = [Key([0; 4]), Key([0, 7, 0, 0]), Key::MAX];
        let mut bytes = Vec::new();
        let schemas = [plain.clone(), plain.replicate(), divided];
        schemas.iter().for_each(|schema| bytes.schema(schema));
        keys.iter().for_each(|key| bytes.key(key));
        let mut reader = Reader::new(&bytes);
        schemas.iter().for_each(|schema| assert_eq!(reader.schema().as_ref(), Ok(schema)));
        keys.iter().for_each(|key| assert_eq!(reader.key().as_ref(), Ok(key)));
        assert!(reader.is_empty());
    }

    #[test]
    fn whatever_is_cut_off_or_changed_is_an_error_or_another_schema() {
        let schema = TableSchema::new("t", &[("id", ColumnType::I64)], 1, false).unwrap();
        let mut bytes = Vec::new();
        bytes.schema(&schema);
        for end in 0..bytes.len() {
            assert!(Reader::new(&bytes[..end]).schema().is_err());
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0xFF;
            assert_ne!(Reader::new(&changed).schema(), Ok(schema.clone()));
        }
        assert!(Reader::new(&[5]).key().is_err());
    }
}
