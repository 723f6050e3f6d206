//! How often something took how long: counts in buckets that grow with what they count.
//!
//! Below 64 ns each nanosecond has a bucket; above, each power of two has 32. So a value is known to about 3 %,
//! whatever its size, and recording is one addition to memory that stays in the first cache.

/// Bits that tell buckets of one power of two apart.
const BITS: u32 = 5;
const BUCKETS: usize = (65 - BITS as usize) << BITS;

/// Counts of nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], most: 0 }
    }
}

fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - BITS - 1).saturating_sub(ns.leading_zeros());
    ((shift as usize) << BITS) + (ns >> shift) as usize
}

/// The largest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1);
    let first = (bucket - (shift << BITS)) as u64;
    (first << shift) + ((1 << shift) - 1)
}

impl Histogram {
    /// Counts one.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.most = self.most.max(ns);
    }

    /// Counts what another has counted, too.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.most = self.most.max(other.most);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What `share` of all did not exceed, in nanoseconds; 1 is the largest of all, exactly. 0 without any.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, |bucket| last_of(bucket).min(self.most))
    }

    /// For each bucket that is not empty its largest value, in nanoseconds, and how many were counted in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.counts.iter().enumerate().map(|(bucket, &count)| (last_of(bucket), count));
        buckets.filter(|&(_, count)| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_end_with_the_largest_number() {
        let mut before = None;
        for number in 0..BUCKETS {
            let last = last_of(number);
            assert_eq!(bucket(last), number);
            let first = before.map_or(0, |before: u64| before + 1);
            assert_eq!(bucket(first), number);
            assert!(first < 64 || last - first <= first / 32, "{first} {last}");
            before = Some(last);
        }
        assert_eq!(before, Some(u64::MAX));
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.count(), histogram.quantile(0.5)), (0, 0));
        (1..=1000).for_each(|n| histogram.record(n * 100));
        let mut both = Histogram::default();
        both.record(5);
        both.record(5);
        assert_eq!(both.buckets().collect::<Vec<_>>(), [(5, 2)]);
        both.add(&histogram);
        assert_eq!((both.count(), both.quantile(0.0), both.quantile(1.0)), (1002, 5, 100_000));
        for (share, exact) in [(0.5, 50_000), (0.99, 99_000)] {
            let found = histogram.quantile(share);
            assert!((exact..exact + exact / 30).contains(&found), "{share}: {found}");
        }
    }
}
