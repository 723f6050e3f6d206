//! Random numbers of a run: splitmix64 (Steele, Lea and Flood, OOPSLA 2014), which a seed of a bug report gives again
//! for ever.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 to `n` - 1. A bias of n / 2^64 does not matter here.
    pub(super) const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// True `times` times in a million.
    pub(super) const fn in_a_million(&mut self, times: u32) -> bool {
        self.below(1_000_000) < times as u64
    }
}
