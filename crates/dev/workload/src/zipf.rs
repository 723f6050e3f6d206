//! Skewed ranks: Zipf's distribution as databases are measured with it.
//!
//! Source: Gray, Sundaresan, Englert, Baclawski, Weinberger, "Quickly generating billion-record synthetic databases",
//! SIGMOD 1994, section 3.2. Rank i (from 0) has weight 1 / (i + 1)^theta. Ranks 0 and 1 come out with exactly their
//! probabilities, the others by a continuous approximation: one uniform number and one power a draw, no table.
//! Theta must be below 1, where the approximation ends; 0 is uniform.
//!
//! YCSB draws ranks this way and then scatters them over the keys with a hash ([`scatter`]), so that the popular keys
//! are not neighbours. As there, two ranks may meet in one key and some keys are never drawn.
//!
//! The trade-off: the sum of all weights costs one pass over `n` at the start; it then grows with `n` at the price of
//! the new ranks alone. Powers come from the platform's mathematics library, so another platform may
//! round a draw in many millions differently.

use crate::random::Random;
use crate::{WorkloadError, refuse};

/// The sum of 1 / i^theta for i from 1 to `n`.
#[must_use]
pub fn zeta(n: u64, theta: f64) -> f64 {
    extend(0.0, 0, n, theta)
}

/// Adds to `sum` the weights from `from` + 1 to `to`.
fn extend(sum: f64, from: u64, to: u64, theta: f64) -> f64 {
    (from + 1..=to).fold(sum, |sum, i| sum + (i as f64).powf(-theta))
}

/// Draws ranks from 0 to n - 1.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    zeta_n: f64,
    alpha: f64,
    eta: f64,
    /// 1 + 0.5^theta: where rank 1 ends.
    second: f64,
}

impl Zipf {
    /// Ranks 0 to `n` - 1 with skew `theta`.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] when `n` is 0 or `theta` is not in [0, 1).
    pub fn new(n: u64, theta: f64) -> Result<Self, WorkloadError> {
        check_theta(theta)?;
        if n == 0 {
            return refuse("records", n, "1 or more is possible");
        }
        let alpha = 1.0 / (1.0 - theta);
        let mut zipf = Self { n, theta, zeta_n: zeta(n, theta), alpha, eta: 0.0, second: 1.0 + 0.5_f64.powf(theta) };
        zipf.eta = zipf.eta();
        Ok(zipf)
    }

    fn eta(&self) -> f64 {
        (1.0 - (2.0 / self.n as f64).powf(1.0 - self.theta)) / (1.0 - self.second / self.zeta_n)
    }

    /// Makes it ranks 0 to `n` - 1; nothing happens when `n` is no larger than before.
    pub fn grow(&mut self, n: u64) {
        if n > self.n {
            self.zeta_n = extend(self.zeta_n, self.n, n, self.theta);
            self.n = n;
            self.eta = self.eta();
        }
    }

    /// How many ranks there are.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// The probability that the paper's distribution gives `rank`; 0 for one that there is not.
    #[must_use]
    pub fn probability(&self, rank: u64) -> f64 {
        if rank < self.n { ((rank + 1) as f64).powf(-self.theta) / self.zeta_n } else { 0.0 }
    }

    /// A rank; 0 is the most popular.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let place = u * self.zeta_n;
        if place < 1.0 || self.n == 1 {
            return 0;
        }
        if place < self.second || self.n == 2 {
            return 1;
        }
        let rank = self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.n - 1)
    }
}

/// Requires 0 <= theta < 1.
pub(crate) fn check_theta(theta: f64) -> Result<(), WorkloadError> {
    if (0.0..1.0).contains(&theta) {
        Ok(())
    } else {
        refuse("theta", format!("{theta:?}"), "0 (uniform) to below 1 is possible")
    }
}

/// Scatters ranks over 0 to `n` - 1: FNV-1a, 64 bits, of the rank's eight little-endian bytes, modulo `n`; 0 when `n`
/// is 0.
#[must_use]
#[inline]
pub fn scatter(rank: u64, n: u64) -> u64 {
    fnv1a(&rank.to_le_bytes()).checked_rem(n).unwrap_or(0)
}

/// FNV-1a, 64 bits.
#[must_use]
#[inline]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Every key equally likely.
    Uniform,
    /// Zipf's distribution, scattered over the keys that were loaded.
    Zipfian,
    /// Zipf's distribution with the newest key the most popular.
    Latest,
}

impl Distribution {
    /// All distributions.
    pub const ALL: &[Self] = &[Self::Uniform, Self::Zipfian, Self::Latest];

    /// Its name in property files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
        }
    }

    /// The distribution of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|distribution| distribution.name() == name)
    }
}

/// Chooses keys after a [`Distribution`].
#[derive(Clone, Debug)]
pub struct Chooser {
    distribution: Distribution,
    loaded: u64,
    visible: u64,
    zipf: Option<Zipf>,
}

impl Chooser {
    /// Chooses among keys 0 to `loaded` - 1.
    ///
    /// # Errors
    /// As [`Zipf::new`].
    pub fn new(distribution: Distribution, loaded: u64, theta: f64) -> Result<Self, WorkloadError> {
        check_theta(theta)?;
        if loaded == 0 {
            return refuse("records", loaded, "1 or more is possible");
        }
        let zipf = if distribution == Distribution::Uniform { None } else { Some(Zipf::new(loaded, theta)?) };
        Ok(Self { distribution, loaded, visible: loaded, zipf })
    }

    /// Makes keys 0 to `visible` - 1 known. Zipfian goes on to choose among the loaded ones.
    pub fn grow(&mut self, visible: u64) {
        self.visible = self.visible.max(visible);
        if let (Distribution::Latest, Some(zipf)) = (self.distribution, &mut self.zipf) {
            zipf.grow(self.visible);
        }
    }

    /// How many keys are known.
    #[must_use]
    pub fn visible(&self) -> u64 {
        self.visible
    }

    /// A key.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        match (self.distribution, &self.zipf) {
            (Distribution::Zipfian, Some(zipf)) => scatter(zipf.next(random), self.loaded),
            (Distribution::Latest, Some(zipf)) => self.visible - 1 - zipf.next(random),
            _ => random.below(self.visible),
        }
    }

    /// A key that is not `taken`, of which there must be one. After a few draws it takes the next free key, so that
    /// strong skew over few keys ends too.
    #[inline]
    pub fn next_other(&self, random: &mut Random, taken: impl Fn(u64) -> bool) -> u64 {
        let mut key = self.next(random);
        for _ in 0..16 {
            if !taken(key) {
                return key;
            }
            key = self.next(random);
        }
        while taken(key) {
            key = (key + 1) % self.visible;
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs()
    }

    #[test]
    fn zeta_has_its_known_values_and_grows_to_the_same() {
        assert!(near(zeta(10, 0.0), 10.0));
        assert!(near(zeta(3, 0.5), 1.0 + 1.0 / 2_f64.sqrt() + 1.0 / 3_f64.sqrt()));
        assert!(near(zeta(2, 0.99), 1.0 + 0.5_f64.powf(0.99)));
        let mut grown = Zipf::new(10, 0.9).unwrap();
        grown.grow(1000);
        grown.grow(5);
        let whole = Zipf::new(1000, 0.9).unwrap();
        assert_eq!((grown.zeta_n, grown.eta, grown.n()), (whole.zeta_n, whole.eta, 1000));
    }

    #[test]
    fn the_most_popular_rank_comes_as_often_as_the_paper_says() {
        for theta in [0.0, 0.5, 0.9, 0.99] {
            let zipf = Zipf::new(1000, theta).unwrap();
            let mut random = Random::new(11);
            let draws = 200_000;
            let mut seen = vec![0_u32; 1000];
            (0..draws).for_each(|_| seen[zipf.next(&mut random) as usize] += 1);
            for (rank, &count) in seen[..2].iter().enumerate() {
                let expected = zipf.probability(rank as u64) * f64::from(draws);
                let slack = 5.0 * expected.sqrt();
                assert!((f64::from(count) - expected).abs() < slack, "{theta} {rank}: {count} of {expected}");
            }
            assert!(seen[0] >= seen[500] || theta == 0.0);
        }
        assert!(near(Zipf::new(1000, 0.5).unwrap().probability(0), 1.0 / zeta(1000, 0.5)));
    }

    #[test]
    fn seed_1_gives_these_ranks() {
        let zipf = Zipf::new(1000, 0.99).unwrap();
        let mut random = Random::new(1);
        let ranks: Vec<u64> = (0..20).map(|_| zipf.next(&mut random)).collect();
        assert_eq!(ranks, GOLDEN_RANKS);
    }

    const GOLDEN_RANKS: [u64; 20] = [105, 25, 39, 9, 101, 1, 0, 8, 368, 33, 603, 725, 604, 81, 47, 439, 0, 20, 0, 0];

    #[test]
    fn few_ranks_and_every_distribution_stay_in_range() {
        let mut random = Random::new(5);
        for n in 1..5 {
            for &distribution in Distribution::ALL {
                let mut chooser = Chooser::new(distribution, n, 0.99).unwrap();
                assert!((0..200).all(|_| chooser.next(&mut random) < n));
                chooser.grow(n + 3);
                assert!((0..200).all(|_| chooser.next(&mut random) < n + 3));
                assert_eq!(Distribution::parse(distribution.name()), Some(distribution));
            }
        }
    }

    #[test]
    fn the_newest_key_is_the_most_popular_of_latest() {
        let mut chooser = Chooser::new(Distribution::Latest, 100, 0.99).unwrap();
        chooser.grow(150);
        let mut random = Random::new(5);
        let mut seen = [0_u32; 150];
        (0..20_000).for_each(|_| seen[chooser.next(&mut random) as usize] += 1);
        assert_eq!(seen.iter().max(), Some(&seen[149]));
    }

    #[test]
    fn taken_keys_are_not_chosen_again() {
        let chooser = Chooser::new(Distribution::Zipfian, 8, 0.999).unwrap();
        let mut random = Random::new(2);
        let mut taken = Vec::new();
        (0..8).for_each(|_| taken.push(chooser.next_other(&mut random, |key| taken.contains(&key))));
        taken.sort_unstable();
        assert_eq!(taken, (0..8).collect::<Vec<u64>>());
    }

    #[test]
    fn impossible_skew_is_refused_by_name() {
        for theta in [1.0, -0.1, f64::NAN, f64::INFINITY] {
            let error = Zipf::new(10, theta).unwrap_err();
            assert!(matches!(error, WorkloadError::Option { option: "theta", .. }), "{error}");
        }
        assert!(matches!(Zipf::new(0, 0.5), Err(WorkloadError::Option { option: "records", .. })));
    }

    #[test]
    fn fnv1a_has_its_published_values() {
        assert_eq!(fnv1a(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_F739_67E8);
        assert_eq!(scatter(5, 0), 0);
    }
}
