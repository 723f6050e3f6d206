//! What host and storage both name: tuples, versions, records, and the entry of the VID map.
//!
//! ```text
//! VID map entry   bits 0..40   record id of the newest version, or HOST
//!                 bits 40..64  its version number, modulo 2^24
//! ```
//!
//! A tuple keeps its VID for life; its versions are numbered from 1. A record id is a *logical* place (page and slot),
//! which the storage resolves through its logical-to-physical map, so pages move without anybody being told (neoDBMS,
//! section 2.3). The version number stands beside the record id so that a version that merely moves from the host to
//! the storage is not taken for a new one.

/// Commit time, issued by the host, from 1. A snapshot is the newest timestamp that it sees.
pub type Timestamp = u64;

/// A tuple of a table: dense from zero, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vid(pub u32);

impl Vid {
    /// Which of so many shards, a power of two, has it. Regular patterns of tuples are spread evenly.
    pub(crate) fn shard(self, shards: usize) -> usize {
        let mixed = u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (u64::BITS - shards.trailing_zeros())) as usize
    }
}

/// Where a version is: logical page and slot, 40 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId(u64);

impl RecordId {
    /// No record: the end of a version chain.
    pub const NONE: Self = Self(0);
    /// The version has not been stored yet; the host has it.
    pub const HOST: Self = Self((1 << 40) - 1);
    /// The most slots of a page.
    pub const SLOTS: usize = 1 << 8;

    /// The record at `slot` of logical page `page`, which is not zero.
    ///
    /// # Panics
    /// If the page is zero, or the place is that of [`Self::HOST`].
    #[must_use]
    pub fn new(page: u32, slot: u8) -> Self {
        let id = Self(u64::from(page) << 8 | u64::from(slot));
        assert!(page != 0 && id != Self::HOST, "page {page}, slot {slot} is no place for a record");
        id
    }

    /// The record id in these bits, if it is one: [`Self::NONE`], [`Self::HOST`], or a place.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Self> {
        (bits == 0 || (1 << 8..1 << 40).contains(&bits)).then_some(Self(bits))
    }

    /// As it is stored.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The logical page.
    #[must_use]
    pub const fn page(self) -> u32 {
        (self.0 >> 8) as u32
    }

    /// The slot in the page.
    #[must_use]
    pub const fn slot(self) -> u8 {
        self.0 as u8
    }
}

/// One entry of a VID map. Zero: there is no tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VidEntry(pub u64);

impl VidEntry {
    /// Bits of the version number that an entry keeps.
    pub const VERSION_BITS: u32 = 24;

    /// The entry of a tuple whose newest version has this number and place.
    #[must_use]
    pub const fn new(version: u32, record: RecordId) -> Self {
        Self((version as u64) << 40 | record.bits())
    }

    /// Whether the tuple's newest version is number `version`, as far as [`Self::VERSION_BITS`] tell.
    #[must_use]
    pub const fn is_version(self, version: u32) -> bool {
        self.0 >> 40 == (version as u64) & ((1 << Self::VERSION_BITS) - 1) && self.0 != 0
    }

    /// Whether both name the same version of the tuple, wherever it is, as far as [`Self::VERSION_BITS`] tell.
    #[must_use]
    pub const fn is_same_version(self, other: Self) -> bool {
        self.0 >> 40 == other.0 >> 40 && (self.0 == 0) == (other.0 == 0)
    }

    /// Whether version `number` can be a later one than the tuple's newest. A tuple can have had millions of versions
    /// that nobody saw and nobody stored, so it is refused only if it is the same or less than 2^20 behind, as far as
    /// [`Self::VERSION_BITS`] tell.
    #[must_use]
    pub const fn is_older_than(self, number: u32) -> bool {
        let mask = (1 << Self::VERSION_BITS) - 1;
        let ahead = (number as u64).wrapping_sub(self.0 >> 40) & mask;
        ahead != 0 && ahead <= mask - (1 << 20)
    }

    /// Where the newest version is.
    #[must_use]
    pub const fn record(self) -> RecordId {
        RecordId(self.0 & ((1 << 40) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_give_back_what_was_put_in() {
        for (version, page, slot) in [(1, 1, 0), (0xFF_FFFF, u32::MAX, 254), (0x0100_0001, 7, 255)] {
            let entry = VidEntry::new(version, RecordId::new(page, slot));
            assert!(entry.is_version(version) && !entry.is_version(version + 1));
            assert_eq!((entry.record().page(), entry.record().slot()), (page, slot));
        }
        assert_eq!(VidEntry::new(3, RecordId::HOST).record(), RecordId::HOST);
        assert!(!VidEntry::default().is_version(0));
        let entry = VidEntry::new(0xFF_FFFE, RecordId::HOST);
        assert!(entry.is_older_than(0xFF_FFFF) && entry.is_older_than(0x0100_0005));
        assert!(!entry.is_older_than(0xFF_FFFE) && !entry.is_older_than(0xFF_FFF0));
        assert!(VidEntry::new(1, RecordId::HOST).is_older_than(8_388_609 + 5_000_000), "a hot tuple");
    }

    #[test]
    fn tuples_of_any_regular_pattern_are_spread_over_all_shards() {
        for step in [1, 2, 10, 16, 64, 4096] {
            let mut counts = [0; 16];
            (0..16_000).for_each(|at| counts[Vid(3 + at * step).shard(16)] += 1);
            assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{step}: {counts:?}");
        }
    }

    #[test]
    fn bits_that_are_no_record_are_refused() {
        for bits in [1, 255, 1 << 40, u64::MAX] {
            assert_eq!(RecordId::from_bits(bits), None);
        }
        for id in [RecordId::NONE, RecordId::HOST, RecordId::new(1, 0)] {
            assert_eq!(RecordId::from_bits(id.bits()), Some(id));
        }
    }
}
