//! Memory of a card as the driver fills it: from the bottom up, in pieces that are never given back. When there is no
//! room, the driver brings the mirror up to date and begins again.

use lockwork_engine::EngineError;

use crate::capabilities::MAX_MEMORY_BYTES;

/// Everything begins at a multiple of this.
const LINE: u64 = 64;

/// Which memory is taken.
#[derive(Clone, Debug)]
pub struct MemoryMap {
    next: u64,
    end: u64,
}

impl MemoryMap {
    /// Memory of so many bytes, nothing of which is taken but its first line: address 0 stands for no row.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { next: LINE, end: bytes.min(MAX_MEMORY_BYTES) }
    }

    /// Takes `bytes` bytes for `what`; the start is a multiple of 64.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when there are not so many left; then nothing is taken.
    pub fn take(&mut self, bytes: u64, what: &str) -> Result<u64, EngineError> {
        let start = self.next;
        let end = bytes.checked_next_multiple_of(LINE).and_then(|bytes| start.checked_add(bytes));
        match end.filter(|&end| end <= self.end) {
            Some(end) => {
                self.next = end;
                Ok(start)
            }
            None => Err(EngineError::BackEnd(format!(
                "{what} need {bytes} bytes of the card's memory, and {} of {} are left: load less, or take a card with \
                 more",
                self.end - start,
                self.end
            ))),
        }
    }

    /// As [`Self::take`], at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn take_aligned(&mut self, bytes: u64, align: u64, what: &str) -> Result<u64, EngineError> {
        let gap = self.next.next_multiple_of(align.max(LINE)) - self.next;
        Ok(self.take(gap.saturating_add(bytes), what)? + gap)
    }

    /// Where the memory that is taken ends.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.next
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.end - self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_end_with_the_memory() {
        let mut map = MemoryMap::new(1024);
        assert_eq!(map.take(1, "a").unwrap(), 64);
        assert_eq!(map.take(0, "b").unwrap(), 128);
        assert_eq!(map.take(65, "c").unwrap(), 128);
        let error = map.take(800, "rows of table 't'").unwrap_err().to_string();
        assert!(error.contains("rows of table 't' need 800 bytes") && error.contains("768 of 1024"), "{error}");
        assert_eq!(map.clone().take_aligned(64, 512, "aligned").unwrap(), 512);
        assert_eq!((map.take(768, "d").unwrap(), map.left()), (256, 0));
        let error = map.take(u64::MAX, "e").unwrap_err().to_string();
        assert!(error.contains("e need 18446744073709551615 bytes"), "{error}");
        assert_eq!(map.left(), 0);
    }
}
