//! Where tables lie in the card's memory: see "Memory layout" of `hardware/rtl/README.md`.
//!
//! A row has an address A, a multiple of 64. Its bytes are those of [`lockwork_storage`]'s rows with another header;
//! what a wide key or a skiplist needs besides lies before A:
//!
//! ```text
//! A - 8(K-1) - 8l   next row on level l >= 1           (tables that are scanned)
//! A - 8k            word k of the key's normal form     (keys of K > 1 words)
//! A + 0             next row of the chain, or on level 0: 40 bits; the top byte is 1 in a live row
//! A + 8             word 0 of the key's normal form
//! A + 16            key image, values
//! ```
//!
//! A table that some procedure scans is a skiplist, and lives on one worker, its home: a range has no partition. Every
//! other one, ordered or not, is chains of rows by hash. Each worker has heads and rows of its own, so no two workers
//! write one chain.
//!
//! Invariant: a chain has one decision word, because there are at least as many heads as decision words.

use lockwork_engine::EngineError;
use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::partitioning::Partitioning;
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

use crate::capabilities::Capabilities;
use crate::key_words;

/// Rows begin at multiples of this.
pub const LINE: u64 = 64;
/// Bits of an address.
pub const ADDRESS_MASK: u64 = (1 << 40) - 1;
/// Where the byte that says whether a row is live begins.
pub const LIVE_SHIFT: u32 = 56;
/// Bits of a head's number that the catalogue can tell.
const MAX_HEAD_BITS: u32 = 28;
/// The longest row stride that the catalogue can tell.
const MAX_STRIDE: u64 = u16::MAX as u64;

/// Which worker has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Every worker reads the one copy.
    Replicated,
    /// This one has all of them.
    Home(usize),
    /// The low bits of this byte of the key image say.
    Byte(u32),
    /// The bits of the hash from [`HASH_SHIFT`] on say.
    Hash,
}

/// Bits of the hash from here on are the worker, for tables that are divided by text.
pub const HASH_SHIFT: u32 = 24;

/// What the driver decides of a table before any of its rows has a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name, for errors.
    pub name: String,
    /// How key images become keys.
    pub format: KeyFormat,
    /// Words of the normal form.
    pub words: usize,
    /// Levels of the skiplist; 0: hash chains.
    pub levels: u32,
    /// Which worker has a row.
    pub spread: Spread,
    /// Bits of a head's number.
    pub head_bits: u32,
    /// Bytes before a row's address that belong to it.
    pub prefix: u64,
    /// Bytes from one row to the next.
    pub stride: u64,
    /// Bytes of a row that count, header included.
    pub row_bytes: u32,
    /// Where the values begin.
    pub values_start: u32,
    /// Every key is one 64-bit integer, which procedures keep where a word begins.
    pub single: bool,
}

impl Shape {
    /// Decides for table `number`. `rows` are expected; `scanned`: some procedure scans it; `aligned`: no procedure has
    /// a key of it across two words of the block.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card cannot keep such a table.
    pub fn new(
        number: usize,
        schema: &TableSchema,
        rows: u64,
        scanned: bool,
        aligned: bool,
        card: &Capabilities,
    ) -> Result<Self, EngineError> {
        let name = schema.name();
        let refuse = |text: String| Err(EngineError::BackEnd(format!("table '{name}' {text}")));
        let format = KeyFormat::of(schema);
        let words = key_words::words(schema);
        if words > card.key_words {
            let most = card.key_words;
            return refuse(format!(
                "has keys of {words} words, and the card takes {most}: take a configuration with key_words={words}, as in \
                 LOCKWORK_FPGA_CONFIGURATION=paper,key_words={words}, or shorter key columns"
            ));
        }
        if scanned && card.levels == 0 {
            return refuse("is scanned, and the card has no skiplist: take a configuration with one".into());
        }
        let levels = if scanned { levels(rows, card.levels) } else { 0 };
        let prefix = 8 * (words as u64 - 1 + u64::from(levels.saturating_sub(1)));
        let prefix = prefix.next_multiple_of(LINE);
        let stride = prefix + schema.stride() as u64;
        if stride > MAX_STRIDE {
            return refuse(format!(
                "has rows of {stride} bytes with what the card keeps with them; at most {MAX_STRIDE}"
            ));
        }
        let spread = match schema.partitioning() {
            Some(Partitioning::Replicated) => Spread::Replicated,
            _ if scanned || card.workers == 1 => Spread::Home(number % card.workers),
            Some(Partitioning::Hash(column)) => {
                let column = &schema.key()[column];
                if column.column_type.is_integer() {
                    Spread::Byte(column.offset - ROW_HEADER_BYTES)
                } else {
                    Spread::Hash
                }
            }
            None => {
                return refuse("does not say how it is partitioned, as a card of several workers needs to know".into());
            }
        };
        let share = match spread {
            Spread::Byte(_) | Spread::Hash => rows.div_ceil(card.workers as u64),
            Spread::Replicated | Spread::Home(_) => rows,
        };
        let head_bits = share.max(1).next_power_of_two().trailing_zeros().clamp(card.entry_bits(), MAX_HEAD_BITS);
        Ok(Self {
            name: name.to_string(),
            single: format.is_one_integer() && aligned,
            format,
            words,
            levels,
            spread,
            head_bits,
            prefix,
            stride,
            row_bytes: schema.row_bytes(),
            values_start: schema.values_start(),
        })
    }

    /// The worker that has the row of this key; for replicated tables, 0, whose copy all workers read.
    #[must_use]
    pub fn owner(&self, image: &[u8], hash: u32, workers: usize) -> usize {
        match self.spread {
            Spread::Replicated => 0,
            Spread::Home(home) => home,
            Spread::Byte(offset) => usize::from(image[offset as usize]) & (workers - 1),
            Spread::Hash => (hash >> HASH_SHIFT) as usize & (workers - 1),
        }
    }

    /// Whether a worker may have rows.
    #[must_use]
    pub fn may_own(&self, worker: usize) -> bool {
        match self.spread {
            Spread::Replicated => worker == 0,
            Spread::Home(home) => worker == home,
            Spread::Byte(_) | Spread::Hash => true,
        }
    }

    /// How many sets of heads there are.
    #[must_use]
    pub fn head_sets(&self, workers: usize) -> usize {
        match self.spread {
            _ if self.levels > 0 => 0,
            Spread::Replicated | Spread::Home(_) => 1,
            Spread::Byte(_) | Spread::Hash => workers,
        }
    }

    /// The set of heads of a worker's rows.
    #[must_use]
    pub fn head_set(&self, worker: usize) -> usize {
        match self.spread {
            Spread::Replicated | Spread::Home(_) => 0,
            Spread::Byte(_) | Spread::Hash => worker,
        }
    }

    /// Bytes of all heads.
    #[must_use]
    pub fn heads_bytes(&self, workers: usize) -> u64 {
        (self.head_sets(workers) as u64) << (self.head_bits + 3)
    }

    /// Where the link on level `level` of a row lies, counted down from its address; 0 for level 0.
    #[must_use]
    pub fn link_below(&self, level: u32) -> u64 {
        if level == 0 { 0 } else { 8 * (self.words as u64 - 1 + u64::from(level)) }
    }

    /// The bytes of a row, from its first to its last: what lies before its address, header (of a live row that is
    /// linked to none), and image.
    pub fn write_row(&self, image: &[u8], bytes: &mut [u8]) {
        let key = self.format.encode(&image[..self.format.image_bytes()]).0;
        let at = self.prefix as usize;
        bytes.fill(0);
        bytes[at + 7] = 1;
        bytes[at + 8..at + 16].copy_from_slice(&key[0].to_le_bytes());
        for (number, word) in key.iter().enumerate().take(self.words).skip(1) {
            bytes[at - 8 * number..at - 8 * number + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[at + 16..at + 16 + image.len()].copy_from_slice(image);
    }
}

/// Levels for so many rows: a quarter of the rows of each level is on the next one.
fn levels(rows: u64, most: usize) -> u32 {
    let rows = rows.max(1).next_power_of_two().trailing_zeros();
    (rows.div_ceil(2) + 2).min(most as u32)
}

/// A table in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What was decided before.
    pub shape: Shape,
    /// The first head.
    pub head_base: u64,
    /// The head node of the skiplist.
    pub head_node: u64,
    /// Rows that are free at least, by worker.
    pub free: Vec<Free>,
    /// The first of those that each worker was given last.
    pub given: Vec<u64>,
    /// Places for rows that the table was given so far, taken or free.
    pub places: u64,
}

/// Free rows of a worker: the first, and where they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Address of the first one.
    pub next: u64,
    /// Address behind the last one: `next` plus a multiple of the stride.
    pub end: u64,
}

impl Free {
    /// How many they are.
    #[must_use]
    pub fn rows(&self, stride: u64) -> u64 {
        (self.end - self.next) / stride
    }
}

impl Placed {
    /// The head of the chain of a hash, for rows of `worker`.
    #[must_use]
    pub fn head(&self, worker: usize, hash: u32) -> u64 {
        let bits = self.shape.head_bits;
        let bucket = u64::from(hash) & ((1 << bits) - 1);
        self.head_base + 8 * (((self.shape.head_set(worker) as u64) << bits) | bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::schema::ColumnType;

    fn card() -> Capabilities {
        Capabilities {
            workers: 4,
            contexts: 8,
            entries: 256,
            key_words: 4,
            instructions: 1024,
            procedures: 16,
            tables: 8,
            sources: 8,
            grants: 32,
            registers: 256,
            levels: 20,
        }
    }

    fn wide() -> TableSchema {
        let columns = [("w", ColumnType::U16), ("name", ColumnType::Char(20)), ("v", ColumnType::I64)];
        TableSchema::new("wide", &columns, 2, true).unwrap()
    }

    #[test]
    fn a_wide_key_and_links_lie_before_the_row() {
        let schema = wide().partition_by_hash("w").unwrap();
        let shape = Shape::new(6, &schema, 1000, true, true, &card()).unwrap();
        assert_eq!((shape.words, shape.levels, shape.prefix, shape.stride), (3, 7, 64, 128));
        assert_eq!((shape.spread, shape.link_below(0), shape.link_below(1)), (Spread::Home(2), 0, 24));
        let mut image = vec![0; 40 - 16 + 8];
        image[..2].copy_from_slice(&[3, 1]);
        image[2..22].copy_from_slice(b"abcdefghijklmnopqrst");
        let mut bytes = vec![9; 128];
        shape.write_row(&image, &mut bytes);
        assert_eq!(bytes[64..72], [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[72..80], *b"fedcba\x03\x01");
        assert_eq!(bytes[56..64], *b"nmlkjihg");
        assert_eq!(bytes[48..56], *b"\0\0tsrqpo");
        assert_eq!(bytes[80..112], image[..]);
        assert!(bytes[..48].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn partitions_are_those_of_the_procedure_crate() {
        let schema = TableSchema::new("t", &[("a", ColumnType::I64), ("b", ColumnType::I16)], 2, false).unwrap();
        let schema = schema.partition_by_hash("b").unwrap();
        let shape = Shape::new(0, &schema, 1000, false, true, &card()).unwrap();
        let partitioner = lockwork_procedure::partitioning::Partitioner::new(&schema, 4).unwrap();
        for b in -9_i16..9 {
            let image = [&7_i64.to_le_bytes()[..], &b.to_le_bytes()].concat();
            assert_eq!(shape.owner(&image, 0, 4), partitioner.partition(&image));
        }
        assert_eq!((shape.head_bits, shape.heads_bytes(4)), (8, 4 * 8 * 256));
    }

    #[test]
    fn what_the_card_cannot_keep_is_refused_by_name() {
        let refused = |schema: &TableSchema, scanned, card: &Capabilities| {
            Shape::new(0, schema, 10, scanned, true, card).unwrap_err().to_string()
        };
        let narrow = Capabilities { key_words: 2, ..card() };
        assert!(refused(&wide(), false, &narrow).contains("'wide' has keys of 3 words, and the card takes 2"));
        assert!(refused(&wide(), true, &Capabilities { levels: 0, ..card() }).contains("no skiplist"));
        assert!(refused(&wide(), false, &card()).contains("how it is partitioned"));
        let long = [("a", ColumnType::I64), ("b", ColumnType::Bytes(65_000)), ("c", ColumnType::Bytes(400))];
        let long = TableSchema::new("long", &long, 1, false).unwrap().partition_by_hash("a").unwrap();
        assert!(refused(&long, true, &card()).contains("rows of"));
    }
}
