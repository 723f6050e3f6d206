//! Key images that look-ups in flight read; see [`KeyImages`].
//!
//! A key that is an argument stays in its block as it is. Any other one may be overwritten by the procedure before the
//! look-up is made, or before another worker has read it, so it is copied.
//!
//! Invariant: a copy stays where it is, unchanged, until all are let go. Each has a box of its own, which is used
//! again: in the long run nothing is allocated. Trade-off: a box has room for the longest key.

use lockwork_procedure::schema::MAX_KEY_BYTES;

/// The key images of one transaction that are no arguments.
#[derive(Debug, Default)]
pub(crate) struct KeyImages {
    #[expect(clippy::vec_box, reason = "instructions and messages keep the addresses")]
    images: Vec<Box<[u8; MAX_KEY_BYTES as usize]>>,
    /// How many of those are in use.
    kept: usize,
}

impl KeyImages {
    /// Keeps a key image until all are let go and returns where.
    #[inline]
    pub(crate) fn keep(&mut self, image: &[u8]) -> *const u8 {
        if self.kept == self.images.len() {
            self.images.push(Box::default());
        }
        let kept = &mut self.images[self.kept];
        self.kept += 1;
        kept[..image.len()].copy_from_slice(image);
        kept.as_ptr()
    }

    /// Lets all go: nothing that reads them is in flight.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.kept = 0;
    }
}
