//! Seeded random numbers.
//!
//! The generator is xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021), its
//! state filled by splitmix64 (Steele, Lea and Flood, OOPSLA 2014) so that similar seeds give unrelated
//! sequences. It is written here because a seed in a bug report must give the same input for ever, whatever a
//! library decides.
//!
//! Invariant: one (seed, stream) gives one sequence on every machine. It is not for secrets.

use lockwork_random::STEP;
pub use lockwork_random::mix;

/// A sequence of random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Four outputs of splitmix64 are never all zero, because its outputs of one period differ.
        Self { state: std::array::from_fn(|i| mix(seed.wrapping_add(STEP.wrapping_mul(i as u64 + 1)))) }
    }

    /// One of many unrelated sequences of a seed; stream 0 is not the same as [`Self::new`].
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(mix(seed ^ mix(stream.wrapping_add(STEP))))
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number from 0 to `n` - 1, every one equally likely; 0 when `n` is 0.
    ///
    /// Lemire, "Fast random integer generation in an interval", 2019: a product's high half, with the few low halves
    /// refused that would favour some numbers.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            let refused = n.wrapping_neg() % n;
            while (product as u64) < refused {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// A number in [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_gives_the_published_outputs() {
        // The reference implementation from state 1, 2, 3, 4.
        let mut random = Random { state: [1, 2, 3, 4] };
        let outputs: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(outputs, [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn below_is_even_and_stays_below() {
        let mut random = Random::new(7);
        let mut seen = [0_u32; 6];
        (0..60_000).for_each(|_| seen[random.below(6) as usize] += 1);
        assert!(seen.iter().all(|&count| (9_600..10_400).contains(&count)), "{seen:?}");
        // A range for which one draw in four is refused: its thirds must be even too.
        let n = 3_u64 << 62;
        let mut thirds = [0_u32; 3];
        (0..30_000).for_each(|_| thirds[(random.below(n) >> 62) as usize] += 1);
        assert!(thirds.iter().all(|&count| (9_600..10_400).contains(&count)), "{thirds:?}");
        assert_eq!((random.below(0), random.below(1)), (0, 0));
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |mut random: Random| random.next_u64();
        assert_eq!(first(Random::stream(1, 2)), first(Random::stream(1, 2)));
        let all: std::collections::HashSet<u64> =
            (0..100).map(|i| first(Random::stream(i / 10, i % 10))).chain([first(Random::new(0))]).collect();
        assert_eq!(all.len(), 101);
    }

    #[test]
    fn unit_stays_in_its_interval_and_has_its_mean() {
        let mut random = Random::new(3);
        let draws: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        assert!((draws.iter().sum::<f64>() / 10_000.0 - 0.5).abs() < 0.01);
    }
}
