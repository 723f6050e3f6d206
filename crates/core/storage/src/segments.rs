//! Cache lines by index, in memory that grows and never moves.
//!
//! The first segment has a power of two of lines, each further one as many as all before it together, so an index
//! becomes a segment and an offset with one count of leading zeros, and with one comparison while nothing has grown.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use lockwork_memory::{Buffer, LINE, OutOfMemory, Pages};

/// Segments there can be.
const SEGMENTS: usize = 33;

/// See the module. Lines are zero until written.
#[derive(Debug)]
pub(crate) struct Segments {
    first_bits: u32,
    starts: [AtomicPtr<u8>; SEGMENTS],
    buffers: Mutex<Vec<Buffer>>,
    pages: Pages,
    what: &'static str,
}

impl Segments {
    /// `2 ^ first_bits` lines for `what`.
    pub(crate) fn new(first_bits: u32, pages: Pages, what: &'static str) -> Result<Self, OutOfMemory> {
        let buffers = Mutex::new(Vec::new());
        let starts = [const { AtomicPtr::new(std::ptr::null_mut()) }; SEGMENTS];
        let segments = Self { first_bits, starts, buffers, pages, what };
        segments.reserve(0)?;
        Ok(segments)
    }

    /// Makes sure that line `index` has memory.
    pub(crate) fn reserve(&self, index: u64) -> Result<(), OutOfMemory> {
        let (segment, _) = self.place(index);
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        while buffers.len() <= segment {
            let number = buffers.len() as u32;
            let bits = if number == 0 { self.first_bits } else { self.first_bits + number - 1 };
            let buffer = Buffer::zeroed(LINE << bits, self.pages, self.what)?;
            self.starts[number as usize].store(buffer.as_ptr(), Ordering::Release);
            buffers.push(buffer);
        }
        Ok(())
    }

    #[inline(always)]
    fn place(&self, index: u64) -> (usize, u64) {
        if index < 1 << self.first_bits {
            return (0, index);
        }
        let bits = index.ilog2();
        ((bits - self.first_bits + 1) as usize, index - (1 << bits))
    }

    /// The address of line `index`; meaningful once [`Self::reserve`] has made sure of it.
    #[inline(always)]
    pub(crate) fn line(&self, index: u64) -> *mut u8 {
        let (segment, offset) = self.place(index);
        self.starts[segment].load(Ordering::Acquire).wrapping_add(offset as usize * LINE)
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> usize {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().map(Buffer::capacity).sum()
    }
}
