//! What host and peer share besides the lock table: plain memory that the locks protect, and a mailbox for transfers.
//!
//! ```text
//! word 0            turn: even, the host may write the page; odd, the peer may read it
//! word 8            64 words apart: one counter for each key, written by whoever holds the key's lock
//! then              a page of 8 KiB
//! ```

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use lockwork_memory::shared::anonymous_file;
use memmap2::MmapRaw;

/// Bytes of the larger transfer.
pub(super) const PAGE: usize = 8192;
const COUNTERS_AT: usize = 8;
const COUNTER_STRIDE: usize = 8;

/// The shared memory.
pub(super) struct Shared {
    map: MmapRaw,
    counters: usize,
}

impl Shared {
    fn bytes(counters: usize) -> usize {
        (COUNTERS_AT + counters * COUNTER_STRIDE) * 8 + 2 * PAGE
    }

    /// Makes it, with zeros, and gives the file by which the other process can open it.
    pub(super) fn create(counters: usize) -> io::Result<(Self, File)> {
        let file = anonymous_file(c"lockwork-bench")?;
        file.set_len(Self::bytes(counters) as u64)?;
        Ok((Self::open(&file, counters)?, file))
    }

    /// Opens what the other process has made.
    pub(super) fn open(file: &File, counters: usize) -> io::Result<Self> {
        let (bytes, found) = (Self::bytes(counters), file.metadata()?.len());
        if found != bytes as u64 {
            return Err(io::Error::other(format!("{found} bytes of shared memory where {bytes} should be")));
        }
        let map = memmap2::MmapOptions::new().len(bytes).map_raw(file)?;
        Ok(Self { map, counters })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: all callers stay inside the mapping, which is aligned to pages.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(at)) }
    }

    /// Whose turn it is with the page.
    pub(super) fn turn(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Adds one to a counter in two steps, which another one in between would spoil.
    #[inline(always)]
    pub(super) fn bump(&self, counter: usize) {
        let word = self.word(COUNTERS_AT + counter * COUNTER_STRIDE);
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// All counters together.
    pub(super) fn sum(&self) -> u64 {
        (0..self.counters)
            .map(|counter| self.word(COUNTERS_AT + counter * COUNTER_STRIDE).load(Ordering::Acquire))
            .sum()
    }

    /// The page, as words.
    pub(super) fn page(&self) -> &[AtomicU64] {
        let first = (Self::bytes(self.counters) - PAGE) / 8 / 512 * 512;
        // SAFETY: the last whole page of the mapping, which is a page longer than the counters need; access is atomic.
        unsafe { std::slice::from_raw_parts(self.word(first), PAGE / 8) }
    }
}
