//! Which partition a row belongs to.
//!
//! A table says how it is divided ([`Partitioning`]); an engine that divides its tables says into how many partitions,
//! and a [`Partitioner`] then gives the partition of a row from its key image alone. The column must be one of the key
//! for that reason: whoever holds a key knows where its row is, without asking.
//!
//! An integer is its own hash: value modulo partitions. A mixer would spread any set of values about evenly, which is
//! worse than evenly for what is partitioned by in practice, small dense numbers: warehouses 1 to 8 on 4 partitions are
//! two on each, where random hashing leaves a partition empty in three cases out of eight. The price: keys in steps of
//! the number of partitions all lie in one. Text and bytes have no such order and are mixed.
//!
//! Invariant: the partition depends on the column's value and the number of partitions only, not on the table, so rows
//! of several tables that agree in their integer columns lie together, whatever the width of these columns.
//!
//! Source: BionicDB, section 5, divides TPC-C by warehouse and replicates the read-only items; it does not say by which
//! function.

use crate::key::mix;
use crate::schema::{ColumnType, ROW_HEADER_BYTES, TableSchema};

/// How the rows of a table are divided among the partitions of an engine that has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// A row lies in the partition that the column with this index gives. It is a column of the key.
    Hash(usize),
    /// Every partition has all rows. Procedures read them and, by the verifier, do not write them.
    Replicated,
}

/// Finds the partition of a row by its key image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitioner {
    partitions: u64,
    /// Where the column lies in the key image.
    offset: usize,
    column_type: ColumnType,
}

impl Partitioner {
    /// The partitioner of a table that is divided by hash; `None` if this one is not.
    ///
    /// # Panics
    /// When there are no partitions.
    #[must_use]
    pub fn new(schema: &TableSchema, partitions: usize) -> Option<Self> {
        assert!(partitions > 0, "table '{}' cannot be divided into no partitions", schema.name());
        let Some(Partitioning::Hash(column)) = schema.partitioning() else { return None };
        let column = &schema.key()[column];
        let offset = (column.offset - ROW_HEADER_BYTES) as usize;
        Some(Self { partitions: partitions as u64, offset, column_type: column.column_type })
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.partitions as usize
    }

    /// The partition of the row with this key, from 0 to [`Self::partitions`] - 1.
    ///
    /// # Panics
    /// When `key_image` ends before the column does.
    #[inline(always)]
    #[must_use]
    pub fn partition(&self, key_image: &[u8]) -> usize {
        let image = &key_image[self.offset..];
        let value = match self.column_type {
            ColumnType::I64 => i64::from_le_bytes(first(image)),
            ColumnType::U32 => i64::from(u32::from_le_bytes(first(image))),
            ColumnType::I32 => i64::from(i32::from_le_bytes(first(image))),
            ColumnType::U16 => i64::from(u16::from_le_bytes(first(image))),
            ColumnType::I16 => i64::from(i16::from_le_bytes(first(image))),
            ColumnType::U8 => i64::from(image[0]),
            ColumnType::I8 => i64::from(image[0] as i8),
            ColumnType::Char(width) | ColumnType::Bytes(width) => fold(&image[..width as usize]),
        };
        // Two's complement makes the mask the Euclidean remainder, also of what is below zero.
        let partition = if self.partitions.is_power_of_two() {
            value as u64 & (self.partitions - 1)
        } else {
            value.rem_euclid(self.partitions as i64) as u64
        };
        partition as usize
    }
}

#[inline(always)]
fn first<const N: usize>(image: &[u8]) -> [u8; N] {
    *image.first_chunk().expect("the key image is as long as the table's keys")
}

/// A hash of text or bytes, below 2^63 so that it is no negative value.
#[inline(never)]
fn fold(bytes: &[u8]) -> i64 {
    let hash = bytes.chunks(8).fold(0, |hash, chunk| {
        let mut word = [0_u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash ^ u64::from_le_bytes(word)).wrapping_add(0x9E37_79B9_7F4A_7C15)
    });
    (hash >> 1) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ColumnType as T;
    use proptest::prelude::*;

    fn schema(key: &[(&str, ColumnType)], column: &str) -> TableSchema {
        TableSchema::new("t", key, key.len(), false).unwrap().partition_by_hash(column).unwrap()
    }

    fn counts(schema: &TableSchema, partitions: usize, keys: impl Iterator<Item = Vec<u8>>) -> Vec<usize> {
        let partitioner = Partitioner::new(schema, partitions).unwrap();
        let mut counts = vec![0; partitions];
        keys.for_each(|key| counts[partitioner.partition(&key)] += 1);
        counts
    }

    #[test]
    fn consecutive_integers_go_round_the_partitions() {
        let warehouse = schema(&[("w", T::U16)], "w");
        assert_eq!(counts(&warehouse, 4, (1..=8_u16).map(|w| w.to_le_bytes().to_vec())), [2; 4]);
        assert_eq!(counts(&warehouse, 3, (1..=9_u16).map(|w| w.to_le_bytes().to_vec())), [3; 3]);
        let signed = schema(&[("w", T::I16)], "w");
        assert_eq!(counts(&signed, 5, (-10..10_i16).map(|w| w.to_le_bytes().to_vec())), [4; 5]);
    }

    #[test]
    fn text_spreads() {
        let names = schema(&[("name", T::Char(20))], "name");
        let name = |number: usize| format!("{number:020}").into_bytes();
        for partitions in [2, 3, 7, 8] {
            let counts = counts(&names, partitions, (0..10_000).map(name));
            let even = 10_000 / partitions;
            assert!(counts.iter().all(|count| count.abs_diff(even) < even / 5), "{counts:?}");
        }
    }

    #[test]
    fn only_the_column_counts_and_a_table_without_partitions_has_no_partitioner() {
        let table = schema(&[("d", T::U8), ("w", T::U32), ("o", T::I64)], "w");
        let partitioner = Partitioner::new(&table, 6).unwrap();
        let key = |d: u8, w: u32, o: i64| [&[d, 0, 0, 0][..], &w.to_le_bytes(), &o.to_le_bytes()].concat();
        assert_eq!(partitioner.partition(&key(1, 4_000_000_000, -3)), 4);
        assert_eq!(partitioner.partition(&key(255, 4_000_000_000, 9)), 4);
        assert_eq!(partitioner.partitions(), 6);
        let plain = TableSchema::new("t", &[("w", T::U32)], 1, false).unwrap();
        assert_eq!(Partitioner::new(&plain, 2), None);
        assert_eq!(Partitioner::new(&plain.replicate(), 2), None);
    }

    proptest! {
        #[test]
        fn integers_of_every_width_agree(value: i8, partitions in 1_usize..100) {
            let partition = |column_type: ColumnType| {
                let image = &i64::from(value).to_le_bytes()[..column_type.width() as usize];
                Partitioner::new(&schema(&[("w", column_type)], "w"), partitions).unwrap().partition(image)
            };
            let expected = i64::from(value).rem_euclid(partitions as i64) as usize;
            for column_type in [T::I8, T::I16, T::I32, T::I64] {
                prop_assert_eq!(partition(column_type), expected);
            }
            if value >= 0 {
                for column_type in [T::U8, T::U16, T::U32] {
                    prop_assert_eq!(partition(column_type), expected);
                }
            }
        }

        #[test]
        fn every_value_has_a_partition(value: i64, partitions in 1_usize..1000) {
            let table = schema(&[("k", T::I64)], "k");
            let partition = Partitioner::new(&table, partitions).unwrap().partition(&value.to_le_bytes());
            prop_assert_eq!(partition as i64, value.rem_euclid(partitions as i64));
        }
    }
}
