//! The memory that the table lies in, as the protocol sees it: words of 64 bits, by index.
//!
//! Every step of the protocol is one call of this trait. So the same protocol runs on mapped memory that processes
//! share, on loom's and shuttle's atomics when schedules are explored, on memory behind a link whose latency is
//! simulated, and on memory that kills its process at the Nth step.

use std::ops::Deref;

/// Words of 64 bits, all zero in the beginning, in native byte order.
pub trait Memory {
    /// How many.
    fn words(&self) -> usize;

    /// Reads a word; what its writer had written before is seen too (acquire).
    fn load(&self, word: usize) -> u64;

    /// Writes a word; what was written before is seen by who reads it (release).
    fn store(&self, word: usize, value: u64);

    /// Replaces a word if it is `old` (acquire and release). Never fails for no reason.
    ///
    /// # Errors
    /// What the word is instead.
    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64>;

    /// Orders everything before it against everything behind it, as all threads see it.
    fn fence(&self);
}

impl<M: Memory + ?Sized, P: Deref<Target = M>> Memory for P {
    #[inline(always)]
    fn words(&self) -> usize {
        (**self).words()
    }

    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        (**self).load(word)
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        (**self).store(word, value);
    }

    #[inline(always)]
    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        (**self).swap(word, old, new)
    }

    #[inline(always)]
    fn fence(&self) {
        (**self).fence();
    }
}

/// Memory of this process alone, for tests and for callers that need a table among threads only.
#[derive(Debug)]
pub struct Private(Box<[crate::sync::AtomicU64]>);

impl Private {
    /// As many zero words.
    #[must_use]
    pub fn new(words: usize) -> Self {
        Self((0..words).map(|_| crate::sync::AtomicU64::new(0)).collect())
    }
}

impl Memory for Private {
    fn words(&self) -> usize {
        self.0.len()
    }

    fn load(&self, word: usize) -> u64 {
        self.0[word].load(crate::sync::Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u64) {
        self.0[word].store(value, crate::sync::Ordering::Release);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        use crate::sync::Ordering::{AcqRel, Acquire};
        self.0[word].compare_exchange(old, new, AcqRel, Acquire).map(drop)
    }

    fn fence(&self) {
        crate::sync::fence(crate::sync::Ordering::SeqCst);
    }
}
