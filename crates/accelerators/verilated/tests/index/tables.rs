//! Tables of a machine: how they lie in memory and what the host writes about them.

use lockwork_procedure::key::{Key, KeyFormat};
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_random::Random;

use super::memory::Memory;

/// Which worker has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The low bits of this byte of the image.
    Byte(u64),
    /// Bits of the hash.
    Hash,
    /// Always this one.
    Home(u64),
    /// All have it.
    Everywhere,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) number: u64,
    pub(crate) schema: TableSchema,
    pub(crate) format: KeyFormat,
    pub(crate) placed: Placed,
    pub(crate) head_bits: u64,
    /// Where the heads of all workers lie, those of worker 0 first.
    pub(crate) head_base: u64,
    /// Bytes from one row to the next.
    pub(crate) stride: u64,
    /// From a row's address to its place's beginning, for key words that lie before.
    pub(crate) before: u64,
    /// Keys are 0 to `keys`.
    pub(crate) keys: u64,
    /// Rows that there is room for.
    pub(crate) rows: u64,
    /// Whether it has a skiplist instead of chains.
    pub(crate) ordered: bool,
}

/// CRC-32C, bit by bit.
pub(crate) fn crc32c(words: &[u64]) -> u64 {
    let mut crc = u32::MAX;
    for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
        }
    }
    u64::from(!crc)
}

impl Table {
    pub(crate) fn new(
        number: u64,
        columns: &[(&str, ColumnType)],
        key_columns: usize,
        placed: Placed,
        keys: u64,
    ) -> Self {
        let schema = TableSchema::new("t", columns, key_columns, false).expect("a sound table");
        let format = KeyFormat::of(&schema);
        let mut table = Self {
            number,
            schema,
            format,
            placed,
            head_bits: 6,
            head_base: 0,
            stride: 0,
            before: 0,
            keys,
            rows: 2 * keys,
            ordered: false,
        };
        table.before = if table.words() > 1 { 64 } else { 0 };
        table.stride = table.before + u64::from(table.schema.row_bytes()).next_multiple_of(64);
        table
    }

    /// The same table with a skiplist.
    pub(crate) fn order(self) -> Self {
        Self { ordered: true, ..self }
    }

    /// Words of the normal form.
    pub(crate) fn words(&self) -> usize {
        let bytes: u32 = self.schema.key().iter().map(|column| column.column_type.width()).sum();
        bytes.div_ceil(8) as usize
    }

    /// The image of key number `number`: different ones for different numbers, gaps not zero.
    pub(crate) fn image(&self, number: u64) -> Vec<u8> {
        let mut image = vec![0xEE; self.format.image_bytes()];
        let mut random = Random(number);
        for (i, column) in self.schema.key().iter().enumerate() {
            let at = column.offset as usize - 16;
            let width = column.column_type.width() as usize;
            image[at..at + width].fill_with(|| random.next_u64() as u8);
            if i == 0 {
                image[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
            }
        }
        image
    }

    pub(crate) fn key(&self, number: u64) -> Key {
        self.format.encode(&self.image(number))
    }

    pub(crate) fn hash(&self, number: u64) -> u64 {
        crc32c(&self.key(number).0[..self.words()])
    }

    pub(crate) fn owner(&self, number: u64, worker: u64, workers: u64) -> u64 {
        let mask = workers - 1;
        match self.placed {
            Placed::Byte(at) => u64::from(self.image(number)[at as usize]) & mask,
            Placed::Hash => self.hash(number) >> 24 & mask,
            Placed::Home(home) => home & mask,
            Placed::Everywhere => worker,
        }
    }

    /// What the host writes about the table: (address, data).
    pub(crate) fn config(&self, workers: u64) -> Vec<(u64, u64)> {
        let base = 0xA000 + 8 * self.number;
        let schema = &self.schema;
        let mut flags = 1 | u64::from(self.ordered) << 2 | u64::from(self.format.is_one_integer()) << 3;
        match self.placed {
            Placed::Byte(at) => flags |= at << 10,
            Placed::Hash => flags |= 1 << 4,
            Placed::Home(home) if workers > 1 => flags |= 1 << 5 | home << 6,
            Placed::Home(_) => {}
            Placed::Everywhere => flags |= 1 << 1,
        }
        flags |= (self.format.image_bytes() as u64 - 1) << 16 | (self.words() as u64) << 24;
        let row = self.stride | u64::from(schema.values_start()) << 16 | u64::from(schema.row_bytes()) << 32;
        let mut config = vec![(base, self.head_base | self.head_bits << 40), (base + 1, row), (base + 2, flags)];
        let mut map = Vec::new();
        for column in schema.key() {
            let (at, width) = (u64::from(column.offset) - 16, u64::from(column.column_type.width()));
            for i in 0..width {
                let integer = column.column_type.is_integer();
                let byte = if integer { at + width - 1 - i } else { at + i };
                let flip = integer && column.column_type.is_signed() && i == 0;
                map.push(0x80 | u64::from(flip) << 5 | byte);
            }
        }
        map.resize(32, 0);
        for (word, bytes) in map.chunks(8).enumerate() {
            let data = bytes.iter().rev().fold(0, |data, byte| data << 8 | byte);
            config.push((0xB000 + 4 * self.number + word as u64, data));
        }
        config
    }

    /// Where the head of a bucket of a worker is.
    pub(crate) fn head(&self, worker: u64, bucket: u64) -> u64 {
        let worker = if self.placed == Placed::Everywhere { 0 } else { worker };
        self.head_base + 8 * ((worker << self.head_bits) + bucket)
    }

    /// The bucket of a key.
    pub(crate) fn bucket(&self, number: u64) -> u64 {
        self.hash(number) & ((1 << self.head_bits) - 1)
    }

    /// Puts a row into a worker's memory as the host does.
    pub(crate) fn load(&self, memory: &mut Memory, worker: u64, row: u64, number: u64, value: u64) {
        let key = self.key(number);
        let head = self.head(worker, self.bucket(number));
        memory.set_word(row, memory.word(head) | 1 << 56);
        memory.set_word(head, row);
        memory.set_word(row + 8, key.0[0]);
        (1..self.words()).for_each(|word| memory.set_word(row - 8 * word as u64, key.0[word]));
        for (i, byte) in self.clean_image(number).into_iter().enumerate() {
            memory.set_byte(row + 16 + i as u64, byte);
        }
        self.set_values(memory, row, value);
    }

    /// The image as it is to lie in rows: gaps are zero.
    pub(crate) fn clean_image(&self, number: u64) -> Vec<u8> {
        let image = self.image(number);
        let mut clean = vec![0; image.len()];
        for column in self.schema.key() {
            let from = column.offset as usize - 16;
            let to = from + column.column_type.width() as usize;
            clean[from..to].copy_from_slice(&image[from..to]);
        }
        clean
    }

    /// Writes `value` into the first eight bytes of the values, and something that depends on it into the others.
    pub(crate) fn set_values(&self, memory: &mut Memory, row: u64, value: u64) {
        let (from, to) = (u64::from(self.schema.values_start()), u64::from(self.schema.row_bytes()));
        for i in 0..to - from {
            memory.set_byte(row + from + i, (value >> (8 * (i % 8))) as u8 ^ (i / 8) as u8);
        }
    }

    /// The value of a row, if all bytes are those of one.
    pub(crate) fn values(&self, memory: &Memory, row: u64) -> Option<u64> {
        let (from, to) = (u64::from(self.schema.values_start()), u64::from(self.schema.row_bytes()));
        let value = (0..8).fold(0, |value, i| value | u64::from(memory.byte(row + from + i)) << (8 * i));
        let sound =
            (0..to - from).all(|i| memory.byte(row + from + i) == (value >> (8 * (i % 8))) as u8 ^ (i / 8) as u8);
        sound.then_some(value)
    }

    pub(crate) fn are_values_zero(&self, memory: &Memory, row: u64) -> bool {
        let (from, to) = (u64::from(self.schema.values_start()), u64::from(self.schema.row_bytes()));
        (from..to).all(|at| memory.byte(row + at) == 0)
    }
}
