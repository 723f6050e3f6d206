//! Seeded random numbers for simulators, conformance suites and tests.
//!
//! The generator is splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
//! It is written here because a seed in a bug report must repeat its run for ever, whatever a library decides.
//!
//! *Invariant*: one seed gives one sequence on every machine. *Trade-off*: 64 bits of state, so that a generator is
//! copied and stored with ease; it is not for secrets, nor for more than 2^32 numbers of statistics. Workloads have a
//! generator with a longer period (`lockwork_workload::random`).

/// The step of splitmix64: the odd number nearest 2^64 divided by the golden ratio.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes 64 bits so that every input bit reaches every output bit; a bijection. The finalizer of splitmix64, which is
/// that of MurmurHash3 with Stafford's constants, variant 13.
#[must_use]
#[inline(always)]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A sequence of random numbers, by its state. The first state is the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number from 0 to `n` - 1: the remainder of a division by `n`. Its bias of `n` / 2^64 is too small for
    /// tests to see.
    ///
    /// # Panics
    /// `n` is 0.
    #[inline]
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// Returns an index of something with `length` elements, as [`Self::below`] does.
    ///
    /// # Panics
    /// `length` is 0.
    #[inline]
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a number from 0 to `n` - 1, or 0 if `n` is 0: the high half of a product. Its sequence is another one
    /// than that of [`Self::below`], and seeds of the lock protocol's simulator depend on it.
    #[inline]
    pub const fn scaled(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// Returns true `times` times in a million, by [`Self::scaled`].
    #[inline]
    pub const fn in_a_million(&mut self, times: u64) -> bool {
        self.scaled(1_000_000) < times
    }

    /// Returns true in `percent` of a hundred cases.
    #[inline]
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns true in one of `n` cases.
    ///
    /// # Panics
    /// `n` is 0.
    #[inline]
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of these.
    ///
    /// # Panics
    /// There are none.
    #[inline]
    pub const fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Returns a number in [0, 1), a multiple of 2^-53.
    #[inline]
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_numbers() {
        // As listed with the reference implementation.
        let mut random = Random(1_234_567);
        let outputs = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(outputs.map(|_| random.next_u64()), outputs);
    }

    #[test]
    fn ranges_are_met_evenly() {
        let mut random = Random(7);
        let mut seen = [[0_u32; 6]; 2];
        for _ in 0..60_000 {
            seen[0][random.below(6) as usize] += 1;
            seen[1][random.scaled(6) as usize] += 1;
        }
        assert!(seen.as_flattened().iter().all(|count| (9_600..10_400).contains(count)), "{seen:?}");
        let cases = |mut happens: Box<dyn FnMut() -> bool>| (0..100_000).filter(|_| happens()).count();
        let (mut one, mut two, mut three) = (random, random, random);
        assert!((29_000..31_000).contains(&cases(Box::new(move || one.percent(30)))));
        assert!((29_000..31_000).contains(&cases(Box::new(move || two.in_a_million(300_000)))));
        assert!((49_000..51_000).contains(&cases(Box::new(move || three.unit() < 0.5))));
        assert_eq!((random.scaled(0), random.pick(&[5]), random.one_in(1)), (0, 5, true));
    }
}
