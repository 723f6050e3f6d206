//! Keys in a normal form.
//!
//! A key image (the key columns as they lie in a block or a row, [`crate::schema`]) is turned into a [`Key`]: four
//! 64-bit words that compare, word by word and unsigned, in the order of the columns. Integers lose their sign by
//! flipping its bit and become big-endian; text and bytes stand as they are; the columns follow each other without
//! gaps. A key of up to eight bytes, by far the most common, is one word, which an index can hold whole.
//!
//! Invariant: for two key images of one table, `Key` equality is column-wise equality and `Key` order is the
//! lexicographic order of the columns.

pub use lockwork_random::mix;

use crate::schema::{ColumnType, ROW_HEADER_BYTES, TableSchema};

/// A key in normal form: compare and hash it as words. Unused trailing bytes are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u64; 4]);

impl Key {
    /// Bytes of a key.
    pub const BYTES: u8 = 32;

    /// No key is above it.
    pub const MAX: Self = Self([u64::MAX; 4]);

    /// The first and the last key that begin with the first `known` bytes of this one.
    #[must_use]
    pub fn span(&self, known: u8) -> (Self, Self) {
        let unknown: [u64; 4] = std::array::from_fn(|word| match u32::from(known).saturating_sub(8 * word as u32) {
            bytes @ 0..8 => u64::MAX >> (8 * bytes),
            _ => 0,
        });
        let first = std::array::from_fn(|word| self.0[word] & !unknown[word]);
        let last = std::array::from_fn(|word| self.0[word] | unknown[word]);
        (Self(first), Self(last))
    }

    /// A 64-bit hash in which every bit depends on every bit of the key. A key of one word is hashed without loss:
    /// two different ones never share a hash.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u64 {
        let [first, rest @ ..] = self.0;
        let mut hash = mix(first);
        if rest != [0; 3] {
            for word in rest {
                hash = mix(hash ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
            }
        }
        hash
    }
}

/// How the key image of one table becomes a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFormat {
    parts: Vec<(u32, ColumnType)>,
    image_bytes: u32,
    single: bool,
}

impl KeyFormat {
    /// The format of a table's key.
    #[must_use]
    pub fn of(schema: &TableSchema) -> Self {
        let parts: Vec<_> =
            schema.key().iter().map(|column| (column.offset - ROW_HEADER_BYTES, column.column_type)).collect();
        let single = matches!(parts[..], [(0, ColumnType::I64)]);
        Self { parts, image_bytes: schema.key_bytes(), single }
    }

    /// Bytes of the key image.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        self.image_bytes as usize
    }

    /// How many leading bytes of the normal form the columns up to the first one make up that `knows` does not know;
    /// it is asked with the bytes of a column in a key image.
    #[must_use]
    pub fn leading_bytes(&self, knows: impl Fn(std::ops::Range<u32>) -> bool) -> u8 {
        let width = |&(_, column_type): &(u32, ColumnType)| column_type.width();
        let known = self.parts.iter().take_while(|part| knows(part.0..part.0 + width(part)));
        known.map(width).sum::<u32>() as u8
    }

    /// Whether every key is one word, so that the word alone identifies it.
    #[must_use]
    pub fn fits_one_word(&self) -> bool {
        self.parts.iter().map(|(_, column_type)| column_type.width()).sum::<u32>() <= 8
    }

    /// Whether the key is one column of 64-bit integers, whose normal form is the integer with its sign bit flipped.
    #[must_use]
    pub fn is_one_integer(&self) -> bool {
        self.single
    }

    /// The key for people: its columns with commas between them, a text without the zero bytes that fill it up, and
    /// bytes in hexadecimal digits.
    #[must_use]
    pub fn text(&self, key: &Key) -> String {
        let packed: Vec<u8> = key.0.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut rest = packed.as_slice();
        let column = |&(_, column_type): &(u32, ColumnType)| {
            let (bytes, behind) = rest.split_at(column_type.width() as usize);
            rest = behind;
            match column_type {
                ColumnType::Char(_) => String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string(),
                _ if column_type.is_integer() => {
                    let (shift, unsigned) = (64 - 8 * bytes.len(), bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
                    match column_type.is_signed() {
                        // The sign bit was flipped, and is brought to the top to be spread.
                        true => ((((unsigned << shift) ^ (1 << 63)) as i64) >> shift).to_string(),
                        false => unsigned.to_string(),
                    }
                }
                _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            }
        };
        self.parts.iter().map(column).collect::<Vec<_>>().join(", ")
    }

    /// The normal form of a key image.
    ///
    /// # Panics
    /// When `image` is shorter than [`Self::image_bytes`].
    #[inline]
    #[must_use]
    pub fn encode(&self, image: &[u8]) -> Key {
        if self.single {
            let word = u64::from_le_bytes(image[..8].try_into().expect("eight bytes"));
            return Key([word ^ (1 << 63), 0, 0, 0]);
        }
        self.encode_parts(image)
    }

    #[inline(never)]
    fn encode_parts(&self, image: &[u8]) -> Key {
        let mut packed = [0_u8; 32];
        let mut at = 0;
        for &(offset, column_type) in &self.parts {
            let width = column_type.width() as usize;
            let source = &image[offset as usize..offset as usize + width];
            let target = &mut packed[at..at + width];
            target.copy_from_slice(source);
            if column_type.is_integer() {
                target.reverse();
                if column_type.is_signed() {
                    target[0] ^= 0x80;
                }
            }
            at += width;
        }
        let word = |i: usize| u64::from_be_bytes(packed[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
        Key([word(0), word(1), word(2), word(3)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(columns: &[(&str, ColumnType)]) -> KeyFormat {
        KeyFormat::of(&TableSchema::new("t", columns, columns.len(), true).unwrap())
    }

    #[test]
    fn texts_and_bytes_of_a_key_can_be_read() {
        let format = format(&[("a", ColumnType::Char(4)), ("b", ColumnType::Bytes(2))]);
        assert_eq!(format.text(&format.encode(b"ab\0\0\x01\xff")), "ab, 01ff");
    }

    proptest! {
        #[test]
        fn order_and_equality_are_those_of_the_columns(a: (i32, u8, i16), b: (i32, u8, i16)) {
            let format = format(&[("a", ColumnType::I32), ("b", ColumnType::U8), ("c", ColumnType::I16)]);
            let image = |(x, y, z): (i32, u8, i16)| {
                let mut image = vec![0_u8; format.image_bytes()];
                image[..4].copy_from_slice(&x.to_le_bytes());
                image[4] = y;
                image[6..8].copy_from_slice(&z.to_le_bytes());
                image
            };
            prop_assert_eq!(format.encode(&image(a)).cmp(&format.encode(&image(b))), a.cmp(&b));
            prop_assert!(format.fits_one_word());
            prop_assert_eq!(format.text(&format.encode(&image(a))), format!("{}, {}, {}", a.0, a.1, a.2));
        }

        #[test]
        fn a_span_is_what_begins_alike(words: [u64; 4], other: [u64; 4], known in 0..=Key::BYTES) {
            let (key, other) = (Key(words), Key(other));
            let bytes = |key: &Key| key.0.map(u64::to_be_bytes).concat();
            let (first, last) = key.span(known);
            prop_assert!(first <= key && key <= last);
            prop_assert_eq!(
                first <= other && other <= last,
                bytes(&key)[..usize::from(known)] == bytes(&other)[..usize::from(known)]
            );
        }

        #[test]
        fn one_integer_takes_the_short_way_to_the_same_order(a: i64, b: i64) {
            let format = format(&[("a", ColumnType::I64)]);
            let key = |value: i64| format.encode(&value.to_le_bytes());
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
            prop_assert_eq!(key(a), format.encode_parts(&a.to_le_bytes()));
            prop_assert_eq!(format.text(&key(a)), a.to_string());
        }
    }
}
