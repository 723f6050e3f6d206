//! Memory for the private copies of one transaction, used again by the next.
//!
//! A row lies in its copy as procedures see it: sixteen bytes of header, which mean nothing here, then its image.
//!
//! Invariant: what was handed out stays where it is until [`Copies::clear`].

use lockwork_memory::{Buffer, LINE, OutOfMemory, Pages};

/// Bytes of a piece, unless a row needs more.
const PIECE_BYTES: usize = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pieces: Vec<Buffer>,
    /// The piece that is handed out from, and how many of its bytes were.
    current: usize,
    used: usize,
}

impl Copies {
    /// At least `bytes` bytes that hold anything, on a cache line of their own.
    ///
    /// # Errors
    /// The system gave no memory.
    pub(super) fn take(&mut self, bytes: usize) -> Result<*mut u8, OutOfMemory> {
        let bytes = bytes.next_multiple_of(LINE);
        while self.pieces.get(self.current).is_some_and(|piece| self.used + bytes > piece.capacity()) {
            (self.current, self.used) = (self.current + 1, 0);
        }
        if self.current == self.pieces.len() {
            self.pieces.push(Buffer::zeroed(bytes.max(PIECE_BYTES), Pages::Plain, "copies of rows")?);
        }
        let start = self.pieces[self.current].as_ptr().wrapping_add(self.used);
        self.used += bytes;
        Ok(start)
    }

    /// Takes everything back.
    pub(super) fn clear(&mut self) {
        (self.current, self.used) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_do_not_overlap_and_their_memory_is_used_again() {
        let mut copies = Copies::default();
        let sizes = [1, 16_384, 65, 70_000, 128];
        let mut take = || {
            copies.clear();
            sizes.map(|bytes| copies.take(bytes).unwrap() as usize)
        };
        let (first, second) = (take(), take());
        assert_eq!(first, second);
        let mut places: Vec<_> = first.into_iter().zip(sizes).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    }
}
