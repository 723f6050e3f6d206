//! Keys as the card sees them: the words of their normal form, and the hash of these.
//!
//! The hash is CRC-32C: a row of exclusive-ors for each of its bits in hardware, and in x86 an instruction.

use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

/// The remainders of all bytes, for the polynomial 0x1EDC6F41 with its bits reversed.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = if remainder & 1 == 1 { (remainder >> 1) ^ 0x82F6_3B78 } else { remainder >> 1 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// CRC-32C of the words, each with its low byte first.
#[must_use]
pub fn crc32c(words: &[u64]) -> u32 {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    !bytes.fold(u32::MAX, |crc, byte| (crc >> 8) ^ REMAINDERS[usize::from(crc as u8 ^ byte)])
}

/// How many words the normal form of a table's keys has, 1 to 4.
#[must_use]
pub fn words(schema: &TableSchema) -> usize {
    let bytes: u32 = schema.key().iter().map(|column| column.column_type.width()).sum();
    bytes.div_ceil(8) as usize
}

/// The hash of a key image.
#[must_use]
pub fn hash(format: &KeyFormat, words: usize, image: &[u8]) -> u32 {
    crc32c(&format.encode(image).0[..words])
}

/// How many levels of the skiplist a key of this hash is on, at most `levels`.
#[must_use]
pub fn height(hash: u32, levels: u32) -> u32 {
    (1 + hash.leading_zeros() / 2).min(levels)
}

/// For every byte of the normal form, most significant first, where it comes from: the byte of the image, and whether
/// its top bit is flipped; 32 places, `None` where the key has ended.
#[must_use]
pub fn sources(schema: &TableSchema) -> [Option<(u8, bool)>; 32] {
    let mut sources = [None; 32];
    let mut places = sources.iter_mut();
    for column in schema.key() {
        let (start, width) = ((column.offset - ROW_HEADER_BYTES) as u8, column.column_type.width() as u8);
        for byte in 0..width {
            let from = if column.column_type.is_integer() { width - 1 - byte } else { byte };
            let flip = byte == 0 && column.column_type.is_signed();
            if let Some(place) = places.next() {
                *place = Some((start + from, flip));
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::schema::ColumnType;
    use proptest::prelude::*;

    #[test]
    fn the_check_value_of_crc32c_is_the_published_one() {
        // The check value is defined over "123456789"; words have no ninth byte, so the byte loop is checked alone.
        let crc =
            b"123456789".iter().fold(u32::MAX, |crc, &byte| (crc >> 8) ^ REMAINDERS[usize::from(crc as u8 ^ byte)]);
        assert_eq!(!crc, 0xE306_9283);
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 4]), 0x8A91_36AA);
        assert_eq!(crc32c(&[u64::MAX; 4]), 0x62A8_AB43);
    }

    proptest! {
        #[test]
        fn the_sources_make_the_normal_form(image: [u8; 32]) {
            let columns = [
                ("a", ColumnType::I16), ("b", ColumnType::U8), ("c", ColumnType::Char(5)), ("d", ColumnType::I64),
                ("e", ColumnType::U32),
            ];
            let schema = TableSchema::new("t", &columns, columns.len(), false).unwrap();
            let format = KeyFormat::of(&schema);
            let key = format.encode(&image[..format.image_bytes()]);
            let bytes = sources(&schema).map(|source| match source {
                Some((from, flip)) => image[usize::from(from)] ^ if flip { 0x80 } else { 0 },
                None => 0,
            });
            let made: Vec<u64> = bytes.chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
            prop_assert_eq!(&made[..], &key.0[..]);
            prop_assert_eq!(words(&schema), 3);
        }
    }

    #[test]
    fn heights_are_bounded_by_the_table() {
        assert_eq!(
            [height(u32::MAX, 20), height(0x3000_0000, 20), height(0x0C00_0000, 20), height(0, 20)],
            [1, 2, 3, 17]
        );
        assert_eq!(height(0, 4), 4);
    }
}
