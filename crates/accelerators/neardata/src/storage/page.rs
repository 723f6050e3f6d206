//! Pages of the file: their headers, records and checksums.
//!
//! All integers are little-endian. A page is 8 KiB:
//!
//! ```text
//! offset  bytes  field
//!      0      4  "LWND"
//!      4      2  kind: 1 head of the file, 2 part of a schema, 3 rows, 4 part of a seal
//!      6      2  table
//!      8      8  checksum: xxh3 of bytes 16 to 8192, seeded with bytes 0 to 8
//!     16      4  logical page, or zero
//!     20      2  rows: bytes from one record to the next
//!     22      2  rows: slots
//!     24      8  zero
//!     32      -  records, one behind the other
//!
//! record: 0 vid, 4 version number (0: the slot is free), 8 created (0: see the seal), 16 previous record,
//!         24 flags (1: the tuple was removed), 28 zero, 32 row image
//! ```
//!
//! Invariant: nothing is used of a page whose checksum is wrong or not the one that its seal names. A record is
//! padded to 8 bytes, so a row image is aligned as far as a row's columns are.

use std::ops::{Deref, DerefMut};

use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::device::TableId;
use crate::record::{RecordId, Timestamp, Vid};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 8192;
/// Bytes before the body of a page.
pub(super) const HEADER_BYTES: usize = 32;
/// Bytes before the row image of a record.
pub(super) const RECORD_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"LWND";
const REMOVED: u32 = 1;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    Head = 1,
    Schema = 2,
    Rows = 3,
    Seal = 4,
}

/// One page in memory, aligned as direct I/O wants it.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page([u8; PAGE_BYTES]);

impl Page {
    /// A page of zeros.
    pub const ZERO: Self = Self([0; PAGE_BYTES]);

    /// The bytes of pages that lie side by side.
    #[must_use]
    pub fn bytes(pages: &[Self]) -> &[u8] {
        // SAFETY: a page is its bytes, without padding: its size is a multiple of its alignment.
        unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * PAGE_BYTES) }
    }

    /// The bytes of pages that lie side by side, to write.
    #[must_use]
    pub fn bytes_mut(pages: &mut [Self]) -> &mut [u8] {
        // SAFETY: as above; every value of the bytes is a page.
        unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), pages.len() * PAGE_BYTES) }
    }

    /// As many pages of zeros.
    #[must_use]
    pub(super) fn zeros(count: usize) -> Vec<Self> {
        vec![Self::ZERO; count]
    }
}

impl Deref for Page {
    type Target = [u8; PAGE_BYTES];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// How the records of a table lie in its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes from one record to the next.
    pub(super) stride: usize,
    /// Records of a page.
    pub(super) slots: usize,
    /// Bytes of a row image.
    pub(super) image: usize,
}

impl Shape {
    /// The shape of a table, if a row fits into a page.
    pub(super) fn of(schema: &TableSchema) -> Option<Self> {
        let image = (schema.row_bytes() - ROW_HEADER_BYTES) as usize;
        let stride = (RECORD_BYTES + image).next_multiple_of(8);
        let slots = ((PAGE_BYTES - HEADER_BYTES) / stride).min(RecordId::SLOTS);
        (slots > 0).then_some(Self { stride, slots, image })
    }
}

/// What stands in a page's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) table: TableId,
    pub(super) logical: u32,
    pub(super) stride: usize,
    pub(super) slots: usize,
}

impl Header {
    /// The header of a page of a kind, with nothing else to say.
    pub(super) fn plain(kind: Kind) -> Self {
        Self { kind, table: 0, logical: 0, stride: 0, slots: 0 }
    }

    /// Whether the page claims to be of this kind, before anything is checked.
    pub(super) fn claims(page: &Page, kind: Kind) -> bool {
        page[..4] == MAGIC && u16_at(&page[..], 4) == kind as u16
    }

    /// Reads the header of a page with a right checksum.
    pub(super) fn read(page: &Page) -> Option<Self> {
        let kind = match u16_at(&page[..], 4) {
            1 => Kind::Head,
            2 => Kind::Schema,
            3 => Kind::Rows,
            4 => Kind::Seal,
            _ => return None,
        };
        let (stride, slots) = (usize::from(u16_at(&page[..], 20)), usize::from(u16_at(&page[..], 22)));
        let fits = HEADER_BYTES + stride * slots <= PAGE_BYTES && slots <= RecordId::SLOTS;
        let is_page = page[..4] == MAGIC && (kind != Kind::Rows || stride > RECORD_BYTES && fits);
        let (table, logical) = (u16_at(&page[..], 6), u32_at(&page[..], 16));
        is_page.then_some(Self { kind, table, logical, stride, slots })
    }

    /// Writes the header and gives the page its checksum, which comes back.
    pub(super) fn write(&self, page: &mut Page) -> u64 {
        let bytes = &mut page[..];
        put(bytes, 0, &MAGIC);
        put(bytes, 4, &(self.kind as u16).to_le_bytes());
        put(bytes, 6, &self.table.to_le_bytes());
        put(bytes, 16, &self.logical.to_le_bytes());
        put(bytes, 20, &(self.stride as u16).to_le_bytes());
        put(bytes, 22, &(self.slots as u16).to_le_bytes());
        put(bytes, 24, &[0; 8]);
        let checksum = compute(page);
        put(&mut page[..], 8, &checksum.to_le_bytes());
        checksum
    }
}

fn compute(page: &Page) -> u64 {
    xxh3_64_with_seed(&page[16..], u64_at(&page[..], 0))
}

/// The page's checksum, if it is the right one.
pub(super) fn checksum(page: &Page) -> Option<u64> {
    let checksum = compute(page);
    (u64_at(&page[..], 8) == checksum).then_some(checksum)
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) vid: Vid,
    pub(super) number: u32,
    pub(super) created: Timestamp,
    pub(super) previous: RecordId,
    pub(super) removed: bool,
}

/// Where the record at `slot` begins.
#[inline(always)]
pub(super) fn record_at(stride: usize, slot: usize) -> usize {
    HEADER_BYTES + slot * stride
}

impl RecordHeader {
    /// Reads the record that begins at `at`; `None` if the slot is free. Ids that are none read as the end of a chain:
    /// a page with a right checksum has none of them.
    #[inline(always)]
    pub(super) fn read(page: &Page, at: usize) -> Option<Self> {
        let bytes = &page[at..at + RECORD_BYTES];
        let number = u32_at(bytes, 4);
        (number != 0).then(|| Self {
            vid: Vid(u32_at(bytes, 0)),
            number,
            created: u64_at(bytes, 8),
            previous: RecordId::from_bits(u64_at(bytes, 16)).unwrap_or(RecordId::NONE),
            removed: u32_at(bytes, 24) & REMOVED != 0,
        })
    }

    /// Writes the record that begins at `at`. Without an image, its bytes are zero.
    #[inline]
    pub(super) fn write(&self, page: &mut Page, at: usize, shape: &Shape, image: Option<&[u8]>) {
        let bytes = &mut page[at..at + shape.stride];
        put(bytes, 0, &self.vid.0.to_le_bytes());
        put(bytes, 4, &self.number.to_le_bytes());
        put(bytes, 8, &self.created.to_le_bytes());
        put(bytes, 16, &self.previous.bits().to_le_bytes());
        put(bytes, 24, &u32::from(self.removed).to_le_bytes());
        bytes[28..].fill(0);
        if let Some(image) = image {
            put(bytes, RECORD_BYTES, image);
        }
    }
}

/// Fills in the created times that the page's seal gave, and takes out what lies in free slots.
pub(super) fn settle(page: &mut Page, shape: &Shape, created: Timestamp, free: &Slots) {
    for slot in 0..shape.slots {
        let at = record_at(shape.stride, slot);
        if free.contains(slot) {
            page[at..at + shape.stride].fill(0);
        } else if u64_at(&page[..], at + 8) == 0 {
            put(&mut page[..], at + 8, &created.to_le_bytes());
        }
    }
}

/// A set of slots of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots([u64; RecordId::SLOTS / 64]);

impl Slots {
    /// The first `count` slots.
    pub(super) fn first(count: usize) -> Self {
        let mut slots = Self::default();
        (0..count).for_each(|slot| slots.insert(slot));
        slots
    }

    pub(super) fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    pub(super) fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; RecordId::SLOTS / 64]
    }

    /// Takes the lowest slot out.
    pub(super) fn pop(&mut self) -> Option<usize> {
        let (index, word) = self.0.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(index * 64 + bit)
    }

    pub(super) fn union(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_noticed_wherever_it_is() {
        let mut page = Page::ZERO;
        page[5000] = 7;
        let header = Header { kind: Kind::Rows, table: 3, logical: 9, stride: 136, slots: 60 };
        let sum = header.write(&mut page);
        assert_eq!((checksum(&page), Header::read(&page)), (Some(sum), Some(header)));
        for at in (0..PAGE_BYTES).step_by(61).chain(0..HEADER_BYTES) {
            page[at] ^= 0x10;
            assert_eq!(checksum(&page), None, "byte {at}");
            page[at] ^= 0x10;
        }
        assert_eq!(checksum(&Page::ZERO), None);
    }

    #[test]
    fn slots_come_lowest_first_and_once() {
        let mut slots = Slots::first(3).union(Slots::default());
        slots.insert(255);
        assert!(slots.contains(255) && !slots.contains(3));
        assert_eq!(slots.len(), 4);
        assert_eq!(std::iter::from_fn(|| slots.pop()).collect::<Vec<_>>(), [0, 1, 2, 255]);
        assert!(slots.is_empty());
    }

    #[test]
    fn a_rewritten_page_keeps_what_counts_and_knows_its_times() {
        let shape = Shape { stride: 40, slots: 204, image: 8 };
        let mut page = Page::ZERO;
        let record =
            |created| RecordHeader { vid: Vid(5), number: 2, created, previous: RecordId::new(1, 1), removed: false };
        record(0).write(&mut page, record_at(40, 0), &shape, Some(&[1; 8]));
        record(3).write(&mut page, record_at(40, 1), &shape, Some(&[2; 8]));
        record(4).write(&mut page, record_at(40, 2), &shape, None);
        let mut free = Slots::default();
        free.insert(2);
        settle(&mut page, &shape, 77, &free);
        assert_eq!(RecordHeader::read(&page, record_at(40, 0)), Some(record(77)));
        assert_eq!(RecordHeader::read(&page, record_at(40, 1)), Some(record(3)));
        assert_eq!(RecordHeader::read(&page, record_at(40, 2)), None);
    }
}
