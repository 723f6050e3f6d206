//! The VID map of a table: for each tuple the number and place of its newest version.
//!
//! It is one array of words in memory that the storage reads too: processing elements look there whether the version
//! that they lock is still the newest. So the memory is the caller's; this module only says how it is used.
//!
//! Invariant: only the host writes it, and the version number of an entry changes only under an exclusive lock on the
//! tuple. A flush changes places but no numbers, by compare-and-swap, and needs no lock. Trade-off: the array is as
//! long as the table may ever have tuples, because it is shared and cannot move.
//!
//! Source: neoDBMS, section 2.3.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::{Vid, VidEntry};

/// Memory for the entries of one table, in this process or shared with another.
pub trait VidMemory: Send + Sync {
    /// The words: always the same ones.
    fn words(&self) -> &[AtomicU64];

    /// Makes all words zero.
    fn clear(&self) {
        self.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

impl VidMemory for Box<[AtomicU64]> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// See the module. A clone is the same map.
#[derive(Clone)]
pub struct VidMap(Arc<dyn VidMemory>);

impl fmt::Debug for VidMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VidMap of {} entries", self.capacity())
    }
}

impl VidMap {
    /// The map in this memory. [`Self::clear`] it before first use, unless it is known to be zero.
    #[must_use]
    pub fn new(memory: Arc<dyn VidMemory>) -> Self {
        Self(memory)
    }

    /// An empty map in memory of this process, for at most `capacity` tuples.
    #[must_use]
    pub fn in_process(capacity: usize) -> Self {
        let words: Box<[AtomicU64]> = (0..capacity).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(words))
    }

    /// How many tuples the table may have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.words().len()
    }

    /// The entry of a tuple; that of no tuple for a VID beyond the map.
    #[inline]
    #[must_use]
    pub fn get(&self, vid: Vid) -> VidEntry {
        self.0.words().get(vid.0 as usize).map_or(VidEntry::default(), |word| VidEntry(word.load(Ordering::Acquire)))
    }

    /// Writes the entry of a tuple that the caller has locked.
    ///
    /// # Panics
    /// If the VID is beyond the map.
    #[inline]
    pub fn set(&self, vid: Vid, entry: VidEntry) {
        self.0.words()[vid.0 as usize].store(entry.0, Ordering::Release);
    }

    /// Writes `to` if the entry is still `from`, and says whether it was.
    #[inline]
    pub fn replace(&self, vid: Vid, from: VidEntry, to: VidEntry) -> bool {
        let word = self.0.words().get(vid.0 as usize);
        word.is_some_and(|word| word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Makes all entries those of no tuple.
    pub fn clear(&self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordId;

    #[test]
    fn an_entry_is_replaced_only_where_it_still_stands() {
        let map = VidMap::in_process(2);
        let (fresh, stored) = (VidEntry::new(7, RecordId::HOST), VidEntry::new(7, RecordId::new(3, 4)));
        map.set(Vid(1), fresh);
        assert!(map.replace(Vid(1), fresh, stored) && !map.replace(Vid(1), fresh, stored));
        assert_eq!((map.get(Vid(1)), map.get(Vid(0)), map.get(Vid(2))), (stored, VidEntry(0), VidEntry(0)));
        map.clear();
        assert_eq!(map.get(Vid(1)), VidEntry(0));
    }
}
