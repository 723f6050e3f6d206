//! A digest of logical contents: the same rows give the same digest, wherever and in whatever order they lie.
//!
//! Every live row is hashed (XXH3, 128 bits, seeded by the table's name) and the hashes are added up. Equal digests
//! mean equal contents but for an accident; the digest is no defence against an adversary.

use std::fmt;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub u128);

impl Digest {
    /// The digest of `table` if it held just the rows with these images, `image_bytes` (not zero) each.
    #[must_use]
    pub fn of_rows(table: &str, image_bytes: usize, images: &[u8]) -> Self {
        let mut digester = Digester::new(table);
        images.chunks_exact(image_bytes).for_each(|image| digester.add(image));
        digester.finish()
    }

    /// The digest of the contents of both.
    #[must_use]
    pub const fn combine(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Adds up the rows of one table.
#[derive(Debug)]
pub(crate) struct Digester {
    seed: u64,
    sum: u128,
}

impl Digester {
    pub(crate) fn new(table: &str) -> Self {
        Self { seed: xxh3_64(table.as_bytes()), sum: 0 }
    }

    pub(crate) fn add(&mut self, image: &[u8]) {
        self.sum = self.sum.wrapping_add(xxh3_128_with_seed(image, self.seed));
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.sum)
    }
}
