//! The VID maps of all tables, in one segment of shared memory.
//!
//! ```text
//! word 0     magic with format, tables, entries of a table, bytes that have crossed the link for the storage
//! word 512   the map of table 0, then that of table 1, ...
//! ```
//!
//! Memory is taken as tuples come, so maps may be generous. The host writes them, the storage only reads; both know the
//! version numbers of all tuples at once, without a message.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockwork_memory::shared::{anonymous_file, give_back};
use memmap2::{MmapOptions, MmapRaw};

use crate::device::TableId;
use crate::host::vid_map::{VidMap, VidMemory};

const MAGIC: u64 = u64::from_le_bytes(*b"LWVIDS01");
const HEADER_WORDS: usize = 512;
/// The most entries of all tables together: 64 GiB.
pub const MAX_ENTRIES: u64 = 1 << 33;

/// A segment that cannot be made, or is none.
#[derive(Debug, thiserror::Error)]
pub enum MapsError {
    /// Dimensions that cannot be.
    #[error("{tables} tables of {tuples} tuples are not possible; 1 to {MAX_ENTRIES} tuples in all are")]
    Dimensions {
        /// Tables asked for.
        tables: u16,
        /// Tuples of each.
        tuples: u32,
    },
    /// The segment of another program or version, or a part of one.
    #[error("the segment of VID maps {0}")]
    Foreign(String),
    /// The system refuses.
    #[error("the segment of VID maps cannot be made or mapped: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
struct Segment {
    file: File,
    map: MmapRaw,
    tables: u16,
    tuples: u32,
}

/// The VID maps of a host. Clones are the same.
#[derive(Clone, Debug)]
pub struct Maps(Arc<Segment>);

impl Maps {
    /// Makes room for `tables` tables of `tuples` tuples, and gives the descriptor for the storage.
    ///
    /// # Errors
    /// [`MapsError`].
    pub fn create(tables: u16, tuples: u32) -> Result<(Self, OwnedFd), MapsError> {
        let entries = u64::from(tables) * u64::from(tuples);
        if entries == 0 || entries > MAX_ENTRIES {
            return Err(MapsError::Dimensions { tables, tuples });
        }
        let file = anonymous_file(c"lockwork-vids")?;
        let words = HEADER_WORDS + entries as usize;
        file.set_len(words as u64 * 8)?;
        let map = MmapOptions::new().len(words * 8).map_raw(&file)?;
        let descriptor = file.try_clone()?.into();
        let segment = Segment { file, map, tables, tuples };
        for (word, value) in [(1, u64::from(tables)), (2, u64::from(tuples)), (0, MAGIC)] {
            segment.words(word, 1)[0].store(value, Ordering::Release);
        }
        Ok((Self(Arc::new(segment)), descriptor))
    }

    /// The VID maps of the segment that the host has handed over.
    ///
    /// # Errors
    /// [`MapsError`].
    pub fn attach(descriptor: BorrowedFd<'_>) -> Result<Self, MapsError> {
        let foreign = |what: String| MapsError::Foreign(what);
        let file = File::from(descriptor.try_clone_to_owned()?);
        let bytes = file.metadata()?.len();
        if bytes < HEADER_WORDS as u64 * 8 {
            return Err(foreign(format!("has {bytes} bytes; its header alone has {}", HEADER_WORDS * 8)));
        }
        let map = MmapOptions::new().len(bytes as usize).map_raw(file.as_raw_fd())?;
        let segment = Segment { file, map, tables: 0, tuples: 0 };
        let header: Vec<u64> = segment.words(0, 3).iter().map(|word| word.load(Ordering::Acquire)).collect();
        if header[0] != MAGIC {
            return Err(foreign(format!(
                "begins with {:#018x}, not {MAGIC:#018x}: another program or version",
                header[0]
            )));
        }
        let (tables, tuples) = (u16::try_from(header[1]), u32::try_from(header[2]));
        let (Ok(tables), Ok(tuples)) = (tables, tuples) else {
            return Err(foreign("names dimensions that cannot be".into()));
        };
        let expected = (HEADER_WORDS as u64 + u64::from(tables) * u64::from(tuples)) * 8;
        if bytes != expected {
            return Err(foreign(format!("has {bytes} bytes; {tables} tables of {tuples} tuples have {expected}")));
        }
        Ok(Self(Arc::new(Segment { tables, tuples, ..segment })))
    }

    /// The map of a table; `None` if there are not so many.
    #[must_use]
    pub fn table(&self, table: TableId) -> Option<VidMap> {
        let slice = Slice { segment: self.0.clone(), table };
        (table < self.0.tables).then(|| VidMap::new(Arc::new(slice)))
    }

    /// The storage tells how much of lock table and maps has crossed the link on its behalf.
    pub fn tell_storage_bytes(&self, bytes: u64) {
        self.0.words(3, 1)[0].store(bytes, Ordering::Release);
    }

    /// What the storage has told last.
    #[must_use]
    pub fn storage_bytes(&self) -> u64 {
        self.0.words(3, 1)[0].load(Ordering::Acquire)
    }

    /// How many tables there are.
    #[must_use]
    pub fn tables(&self) -> u16 {
        self.0.tables
    }

    /// The most tuples of a table.
    #[must_use]
    pub fn tuples(&self) -> u32 {
        self.0.tuples
    }
}

impl Segment {
    fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        assert!((first + count) * 8 <= self.map.len(), "{count} words from {first} on");
        // SAFETY: inside the mapping, which begins at a page and lives as long as `self`; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>().add(first), count) }
    }
}

struct Slice {
    segment: Arc<Segment>,
    table: TableId,
}

impl VidMemory for Slice {
    fn words(&self) -> &[AtomicU64] {
        let tuples = self.segment.tuples as usize;
        self.segment.words(HEADER_WORDS + usize::from(self.table) * tuples, tuples)
    }

    fn clear(&self) {
        let bytes = u64::from(self.segment.tuples) * 8;
        let start = HEADER_WORDS as u64 * 8 + u64::from(self.table) * bytes;
        // Memory that tuples have not reached is not taken to be cleared.
        if give_back(&self.segment.file, start, bytes).is_err() {
            self.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::record::{RecordId, Vid, VidEntry};

    #[test]
    fn both_sides_see_one_map_for_each_table() {
        let (host, descriptor) = Maps::create(3, 10).unwrap();
        let storage = Maps::attach(descriptor.as_fd()).unwrap();
        let entry = VidEntry::new(4, RecordId::new(5, 6));
        host.table(2).unwrap().set(Vid(9), entry);
        assert_eq!(storage.table(2).unwrap().get(Vid(9)), entry);
        assert_eq!(storage.table(1).unwrap().get(Vid(9)), VidEntry(0));
        assert_eq!((storage.table(2).unwrap().capacity(), storage.tables(), storage.tuples()), (10, 3, 10));
        assert!(storage.table(3).is_none());
        host.table(1).unwrap().set(Vid(0), entry);
        host.table(1).unwrap().clear();
        let seen = |table, vid| storage.table(table).unwrap().get(Vid(vid));
        assert_eq!((seen(1, 0), seen(2, 9)), (VidEntry(0), entry), "one map is cleared, in the middle of a page");
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        assert!(matches!(Maps::create(0, 10), Err(MapsError::Dimensions { .. })));
        assert!(matches!(Maps::create(u16::MAX, u32::MAX), Err(MapsError::Dimensions { .. })));
        let (host, descriptor) = Maps::create(1, 10).unwrap();
        let refused = || Maps::attach(descriptor.as_fd()).unwrap_err().to_string();
        host.0.words(2, 1)[0].store(11, Ordering::Relaxed);
        assert!(refused().contains("has 4176 bytes; 1 tables of 11 tuples have 4184"), "{}", refused());
        host.0.words(0, 1)[0].store(7, Ordering::Relaxed);
        assert!(refused().contains("another program or version"), "{}", refused());
        File::from(descriptor.try_clone().unwrap()).set_len(100).unwrap();
        assert!(refused().contains("has 100 bytes; its header alone has 4096"), "{}", refused());
    }
}
