//! The lock table as the storage sees it: across a link.
//!
//! The table lies in the host's memory, so every swap of the storage is a remote atomic operation, and so is a load, if
//! the word has changed since the storage looked at it last; else its own copy answers, which coherence keeps good
//! (neoDBMS, section 3: device waiters poll their copy without disturbing anybody; section 4: the device uses non-local
//! atomic reads and writes). Stores are posted and not waited for.
//!
//! The copies are known by their words: a load that gives the value of the last one is taken for a hit. That errs
//! only where a word has changed and changed back, in favour of the link.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lockwork_locking::shared::memory::Memory;
use lockwork_sharedlocks::SharedMemory;

use crate::link::Link;

/// Bytes of a remote compare-and-swap: what is expected, what is to be, what was.
pub const ATOMIC_BYTES: u64 = 24;
/// Bytes of a remote read of a word: its address, the word.
pub const READ_BYTES: u64 = 16;
/// Words whose last value is known, a power of two.
const COPIES: usize = 1 << 16;

/// Memory of the other side.
#[derive(Debug)]
pub struct Linked<M> {
    memory: M,
    link: Link,
    copies: Box<[AtomicU64]>,
    swaps: AtomicU64,
    reads: AtomicU64,
}

impl<M> Linked<M> {
    /// The memory behind this link.
    pub fn new(memory: M, link: Link) -> Self {
        let copies = (0..COPIES).map(|_| AtomicU64::new(0)).collect();
        Self { memory, link, copies, swaps: AtomicU64::new(0), reads: AtomicU64::new(0) }
    }

    /// Bytes that have crossed the link: swaps, and reads of what had changed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed) * ATOMIC_BYTES + self.reads.load(Ordering::Relaxed) * READ_BYTES
    }

    /// What a copy of this word is kept as: with the word, so that another one of the same place is no hit.
    fn mark(word: usize, value: u64) -> u64 {
        value ^ (word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1 << 63
    }
}

impl<M: Memory> Memory for Linked<M> {
    fn words(&self) -> usize {
        self.memory.words()
    }

    #[inline]
    fn load(&self, word: usize) -> u64 {
        let value = self.memory.load(word);
        let (copy, mark) = (&self.copies[word % COPIES], Self::mark(word, value));
        if copy.load(Ordering::Relaxed) != mark {
            copy.store(mark, Ordering::Relaxed);
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.link.atomic();
        }
        value
    }

    fn store(&self, word: usize, value: u64) {
        self.memory.store(word, value);
        self.copies[word % COPIES].store(Self::mark(word, value), Ordering::Relaxed);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.link.atomic();
        self.swaps.fetch_add(1, Ordering::Relaxed);
        let swapped = self.memory.swap(word, old, new);
        let now = swapped.err().unwrap_or(new);
        self.copies[word % COPIES].store(Self::mark(word, now), Ordering::Relaxed);
        swapped
    }

    fn fence(&self) {
        self.memory.fence();
    }
}

impl<M: SharedMemory> SharedMemory for Linked<M> {
    fn half(&self, word: usize) -> &AtomicU32 {
        self.memory.half(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_locking::shared::memory::Private;

    #[test]
    fn what_has_not_changed_crosses_the_link_once() {
        let linked = Linked::new(Private::new(COPIES * 2), Link::None);
        for _ in 0..3 {
            assert_eq!(linked.load(5), 0);
        }
        assert_eq!(linked.bytes(), READ_BYTES);
        assert_eq!(linked.load(5 + COPIES), 0, "another word of the same place");
        assert_eq!(linked.bytes(), 2 * READ_BYTES);
        assert_eq!(linked.swap(7, 1, 2), Err(0));
        assert_eq!(linked.swap(7, 0, 2), Ok(()));
        assert_eq!(linked.load(7), 2, "its own change is in its copy");
        linked.store(8, 3);
        assert_eq!(linked.load(8), 3);
        assert_eq!(linked.bytes(), 2 * (READ_BYTES + ATOMIC_BYTES));
    }
}
