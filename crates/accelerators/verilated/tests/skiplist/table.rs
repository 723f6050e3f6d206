//! Tables as the machine sees them.

/// Bytes of a row: header, 32 bytes that a key image fits into, values.
pub(crate) const ROW_BYTES: u64 = 85;
/// Where the values start.
pub(crate) const VALUES: u64 = 51;

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) number: u64,
    pub(crate) words: usize,
    pub(crate) levels: u64,
    pub(crate) single: bool,
    /// For each byte of the normal form: where it is in the image, whether its top bit is flipped.
    pub(crate) image: Vec<Option<(u64, bool)>>,
    pub(crate) head: u64,
    pub(crate) first: u64,
    pub(crate) rows: u64,
}

impl Table {
    /// One 64-bit integer as key.
    pub(crate) fn single(number: u64, levels: u64) -> Self {
        let image = (0..8).map(|i| Some((7 - i, i == 0))).collect();
        Self { number, words: 1, levels, single: true, image, head: 0, first: 0, rows: 300 }
    }

    /// Several words; the image is in another order and has holes.
    pub(crate) fn long(number: u64, words: usize, levels: u64) -> Self {
        let bytes = words as u64 * 8;
        let exists = |i| i % 8 != 7 || i + 1 == bytes;
        let image = (0..bytes).map(|i| exists(i).then_some(((i * 5 + 3) % 31, i % 3 == 0))).collect();
        Self { number, words, levels, single: false, image, head: 0, first: 0, rows: 300 }
    }

    pub(crate) fn rows(self, rows: u64) -> Self {
        Self { rows, ..self }
    }

    /// Bytes before a row's address.
    pub(crate) fn before(&self) -> u64 {
        ((self.words as u64 - 1 + self.levels - 1) * 8).next_multiple_of(64)
    }

    pub(crate) fn stride(&self) -> u64 {
        self.before() + ROW_BYTES.next_multiple_of(64)
    }

    pub(crate) fn link(&self, row: u64, level: u64) -> u64 {
        if level == 0 { row } else { row - 8 * (self.words as u64 - 1) - 8 * level }
    }

    pub(crate) fn height(&self, hash: u32) -> u64 {
        (u64::from(hash.leading_zeros()) / 2 + 1).min(self.levels)
    }

    /// (address, data) on the configuration bus.
    pub(crate) fn config(&self) -> Vec<(u64, u64)> {
        let at = 0xA000 + 8 * self.number;
        let flags = 1 | 1 << 2 | u64::from(self.single) << 3 | (self.words as u64) << 24 | self.levels << 32;
        let mut config = vec![
            (at + 1, self.stride() | VALUES << 16 | ROW_BYTES << 32),
            (at + 2, flags),
            (at + 3, self.head),
            (0xC000 + 32 * self.number, self.first),
            (0xC000 + 32 * self.number + 1, self.first + self.rows * self.stride()),
        ];
        for word in 0..self.words {
            let byte = |j| match self.image[8 * word + j] {
                Some((place, flip)) => place | u64::from(flip) << 5 | 0x80,
                None => 0,
            };
            let data = (0..8).fold(0, |data, j| data | byte(j) << (8 * j));
            config.push((0xB000 + 4 * self.number + word as u64, data));
        }
        config
    }
}

/// CRC-32C of the words, low byte first.
pub(crate) fn hash(words: &[u64]) -> u32 {
    let step = |crc: u32, byte: u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 })
    };
    !words.iter().flat_map(|word| word.to_le_bytes()).fold(u32::MAX, step)
}
