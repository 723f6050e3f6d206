//! Tables as the words of the catalogue describe them.

use lockwork_fpga::card::CardMemory;
use lockwork_fpga::key_words::{crc32c, height};

use super::SoftwareCard;

/// What the words of a table say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) number: usize,
    pub(crate) head_base: u64,
    pub(crate) head_bits: u32,
    pub(crate) stride: u64,
    pub(crate) values_start: u64,
    pub(crate) row_bytes: u64,
    pub(crate) replicated: bool,
    pub(crate) single: bool,
    pub(crate) by_hash: bool,
    pub(crate) home: Option<usize>,
    pub(crate) offset: usize,
    pub(crate) image_bytes: usize,
    pub(crate) words: usize,
    pub(crate) levels: u32,
    pub(crate) head_node: u64,
}

fn field(word: u64, low: u32, bits: u32) -> u64 {
    word >> low & ((1 << bits) - 1)
}

impl SoftwareCard {
    pub(crate) fn table(&self, number: usize) -> Table {
        let w = |at: usize| self.config[0xA000 + 8 * number + at];
        assert_eq!(field(w(2), 0, 1), 1, "table {number} is valid");
        let levels = field(w(2), 32, 5) as u32;
        assert_eq!(field(w(2), 2, 1) == 1, levels > 0);
        Table {
            number,
            head_base: field(w(0), 0, 40),
            head_bits: field(w(0), 40, 5) as u32,
            stride: field(w(1), 0, 16),
            values_start: field(w(1), 16, 16),
            row_bytes: field(w(1), 32, 16),
            replicated: field(w(2), 1, 1) == 1,
            single: field(w(2), 3, 1) == 1,
            by_hash: field(w(2), 4, 1) == 1,
            home: (field(w(2), 5, 1) == 1).then(|| field(w(2), 6, 4) as usize),
            offset: field(w(2), 10, 5) as usize,
            image_bytes: field(w(2), 16, 5) as usize + 1,
            words: field(w(2), 24, 3) as usize,
            levels,
            head_node: field(w(3), 0, 40),
        }
    }

    /// The normal form of the image at `address`.
    pub(crate) fn key(&mut self, table: &Table, address: u64) -> (Vec<u64>, Vec<u8>) {
        let mut image = vec![0; table.image_bytes];
        self.memory.read(address, &mut image).unwrap();
        if table.single {
            assert!(address.is_multiple_of(8), "a key of one integer at {address:#x}");
        }
        let word = |number: usize| {
            let sources = self.config[0xB000 + 4 * table.number + number];
            let byte = |at: u32| {
                let source = sources >> (8 * at) as u8;
                let flip = if source >> 5 & 1 == 1 { 0x80 } else { 0 };
                if source >> 7 & 1 == 1 { u64::from(image[(source & 31) as usize] ^ flip) } else { 0 }
            };
            (0..8).fold(0, |word, at| word << 8 | byte(at))
        };
        ((0..table.words).map(word).collect(), image)
    }

    pub(crate) fn owner(&self, table: &Table, image: &[u8], hash: u32, worker: usize) -> usize {
        let mask = self.capabilities.workers - 1;
        match table.home {
            _ if table.replicated => worker,
            Some(home) => home,
            None if table.by_hash => (hash >> 24) as usize & mask,
            None => usize::from(image[table.offset]) & mask,
        }
    }

    fn link(&self, table: &Table, row: u64, level: u32) -> u64 {
        if level == 0 { row } else { row - 8 * (table.words as u64 - 1) - 8 * u64::from(level) }
    }

    fn next(&mut self, table: &Table, row: u64, level: u32) -> u64 {
        self.memory.read_word(self.link(table, row, level)).unwrap() & ((1 << 40) - 1)
    }

    fn set_next(&mut self, table: &Table, row: u64, level: u32, to: u64) {
        let at = self.link(table, row, level);
        self.memory.write(at, &to.to_le_bytes()[..5]).unwrap();
    }

    fn row_key(&mut self, table: &Table, row: u64) -> Vec<u64> {
        let word = |number: usize| if number == 0 { row + 8 } else { row - 8 * number as u64 };
        (0..table.words).map(|number| self.memory.read_word(word(number)).unwrap()).collect()
    }

    pub(crate) fn is_live(&mut self, row: u64) -> bool {
        self.memory.read_word(row).unwrap() >> 56 == 1
    }

    pub(crate) fn set_live(&mut self, row: u64, live: bool) {
        self.memory.write(row + 7, &[u8::from(live)]).unwrap();
    }

    fn head(&self, table: &Table, owner: usize, hash: u32) -> u64 {
        let set = if table.replicated { 0 } else { (owner as u64) << table.head_bits };
        table.head_base + 8 * (set + (u64::from(hash) & ((1 << table.head_bits) - 1)))
    }

    /// The row of a key, live or not, and the rows before its place on every level of a skiplist.
    pub(crate) fn find(&mut self, table: &Table, owner: usize, key: &[u64]) -> (Option<u64>, Vec<u64>) {
        let hash = crc32c(key);
        if table.levels == 0 {
            let mut row = self.memory.read_word(self.head(table, owner, hash)).unwrap();
            while row != 0 {
                if self.row_key(table, row) == key {
                    return (Some(row), Vec::new());
                }
                row = self.next(table, row, 0);
            }
            return (None, Vec::new());
        }
        let mut at = table.head_node;
        let mut before = vec![at; table.levels as usize];
        for level in (0..table.levels).rev() {
            loop {
                let next = self.next(table, at, level);
                if next == 0 || self.row_key(table, next).as_slice() >= key {
                    break;
                }
                at = next;
            }
            before[level as usize] = at;
        }
        let next = self.next(table, at, 0);
        ((next != 0 && self.row_key(table, next) == key).then_some(next), before)
    }

    /// A new live row of this key; `None` when there is no room.
    pub(crate) fn insert(&mut self, table: &Table, owner: usize, key: &[u64], image: &[u8]) -> Option<u64> {
        let rows = 0xC000 + 32 * table.number + 2 * owner;
        let (row, end) = (self.config[rows], self.config[rows + 1]);
        if row == end {
            return None;
        }
        self.config[rows] += table.stride;
        let hash = crc32c(key);
        for (number, word) in key.iter().enumerate() {
            let at = if number == 0 { row + 8 } else { row - 8 * number as u64 };
            self.memory.write(at, &word.to_le_bytes()).unwrap();
        }
        self.memory.write(row + 16, image).unwrap();
        if table.levels == 0 {
            let head = self.head(table, owner, hash);
            let first = self.memory.read_word(head).unwrap();
            self.set_next(table, row, 0, first);
            self.memory.write(head, &row.to_le_bytes()).unwrap();
        } else {
            let before = self.find(table, owner, key).1;
            for level in 0..height(hash, table.levels) {
                let next = self.next(table, before[level as usize], level);
                self.set_next(table, row, level, next);
                self.set_next(table, before[level as usize], level, row);
            }
        }
        self.set_live(row, true);
        Some(row)
    }

    /// Live rows from a key on.
    pub(crate) fn scan(&mut self, table: &Table, key: &[u64], limit: usize) -> Vec<u64> {
        let before = self.find(table, 0, key).1;
        let mut rows = Vec::new();
        let mut row = self.next(table, before[0], 0);
        while row != 0 && rows.len() < limit {
            if self.is_live(row) {
                rows.push(row);
            }
            row = self.next(table, row, 0);
        }
        rows
    }
}
