//! Which rows a transaction touches, partition by partition.
//!
//! Keys go round the partitions (the table is partitioned by its key: key modulo partitions), so key `p + i * n` is the
//! i-th of partition `p` of `n`, and a key is drawn as a partition and a place in it. Every partition has a chooser
//! of its own: the skew within a partition is that of the whole table, however the accesses are shared out. Call
//! number `i` of a batch has partition `i` modulo `n` as its home, and its first access lies there, because that is
//! what an engine goes by; each of the others is remote so much more often that the share of all is what was asked for.
//! With one partition, which is the default, this is YCSB as it always was.
//!
//! New keys take the next place of their partition, so what exists is, for every partition, its first places.
//!
//! Source: BionicDB, section 5 (figure 13: three accesses out of four lie outside the home partition). It does not say
//! which of the other partitions they are in; here each is as likely.

use super::config::YcsbConfig;
use crate::WorkloadError;
use crate::random::Random;
use crate::zipf::Chooser;

/// The keys of one partition, by their places.
#[derive(Clone, Debug)]
struct Part {
    chooser: Chooser,
    /// How many there are, those counted that were given to calls.
    len: u64,
}

/// Draws keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    parts: Vec<Part>,
    /// Share of the accesses after a transaction's first one that are remote.
    remote: f64,
}

impl Keys {
    /// The loaded keys of a valid configuration.
    pub(super) fn new(config: &YcsbConfig) -> Result<Self, WorkloadError> {
        let partitions = u64::from(config.partitions);
        let part = |partition: u64| {
            let len = (config.records - partition).div_ceil(partitions);
            Ok(Part { chooser: Chooser::new(config.distribution, len, config.theta)?, len })
        };
        let parts = (0..partitions).map(part).collect::<Result<_, WorkloadError>>()?;
        let (all, others) = (f64::from(config.operations), f64::from(config.operations - 1));
        Ok(Self { parts, remote: if others > 0.0 { config.remote * all / others } else { 0.0 } })
    }

    fn partitions(&self) -> u64 {
        self.parts.len() as u64
    }

    /// The home of the call with this number in its batch.
    #[inline]
    pub(super) fn home(&self, call: usize) -> u64 {
        call as u64 % self.partitions()
    }

    /// The partition of access number `access` of a transaction.
    #[inline]
    fn partition(&self, random: &mut Random, home: u64, access: usize) -> u64 {
        let others = self.partitions() - 1;
        if others == 0 || access == 0 || random.unit() >= self.remote {
            return home;
        }
        let other = random.below(others);
        other + u64::from(other >= home)
    }

    /// A key that exists, for a transaction of this home that has `taken` so far; it is none of those.
    #[inline]
    pub(super) fn draw(&self, random: &mut Random, home: u64, taken: &[u64]) -> u64 {
        let (partition, partitions) = (self.partition(random, home, taken.len()), self.partitions());
        let key = |place| partition + place * partitions;
        key(self.parts[partition as usize].chooser.next_other(random, |place| taken.contains(&key(place))))
    }

    /// A new key for access number `access` of a transaction of this home. It is drawn after the next [`Self::grow`].
    #[inline]
    pub(super) fn insert(&mut self, random: &mut Random, home: u64, access: usize) -> u64 {
        let (partition, partitions) = (self.partition(random, home, access), self.partitions());
        let part = &mut self.parts[partition as usize];
        part.len += 1;
        partition + (part.len - 1) * partitions
    }

    /// Makes new keys known.
    pub(super) fn grow(&mut self) {
        self.parts.iter_mut().for_each(|part| part.chooser.grow(part.len));
    }

    /// Whether a key was loaded or given to a call.
    pub(super) fn contain(&self, key: u64) -> bool {
        key / self.partitions() < self.parts[(key % self.partitions()) as usize].len
    }

    /// All keys are below this.
    pub(super) fn end(&self) -> u64 {
        self.parts.iter().map(|part| part.len).max().unwrap_or(0) * self.partitions()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zipf::{Distribution, Zipf, scatter};

    fn keys(config: YcsbConfig) -> Keys {
        config.validate().unwrap();
        Keys::new(&config).unwrap()
    }

    fn config(partitions: u32, remote: f64) -> YcsbConfig {
        let preset = YcsbConfig::hobbes('c').unwrap();
        YcsbConfig { records: 1000, partitions, remote, theta: 0.9, operations: 4, ..preset }
    }

    /// The keys of call number `call`, of four accesses.
    fn transaction(keys: &Keys, random: &mut Random, call: usize) -> impl Iterator<Item = u64> {
        let mut taken = Vec::new();
        (0..4).for_each(|_| taken.push(keys.draw(random, keys.home(call), &taken)));
        taken.into_iter()
    }

    #[test]
    fn every_loaded_key_is_drawn_and_no_other() {
        for (partitions, records) in [(1, 20), (3, 20), (7, 30)] {
            let distribution = Distribution::Uniform;
            let keys = keys(YcsbConfig {
                records,
                distribution,
                ..config(partitions, 0.5_f64.min(f64::from(partitions) - 1.0))
            });
            let mut random = Random::new(1);
            let mut seen = vec![false; records as usize];
            (0..2000).for_each(|call| transaction(&keys, &mut random, call).for_each(|key| seen[key as usize] = true));
            assert!(seen.iter().all(|&seen| seen), "{partitions} {records}: {seen:?}");
            assert!((0..records).all(|key| keys.contain(key)) && !keys.contain(records));
            assert_eq!(keys.end(), records.next_multiple_of(partitions.into()));
        }
    }

    #[test]
    fn the_share_that_is_asked_for_is_remote_but_no_first_access_and_other_partitions_come_alike() {
        for (remote, partitions) in [(0.0, 4), (0.3, 4), (0.75, 4), (0.75, 2)] {
            let keys = keys(config(partitions, remote));
            let mut random = Random::new(2);
            let calls = 10_000;
            let mut away = vec![0_u32; partitions as usize];
            for call in 0..calls {
                let home = keys.home(call);
                for (access, key) in transaction(&keys, &mut random, call).enumerate() {
                    let partition = key % u64::from(partitions);
                    assert!(access > 0 || partition == home, "call {call} begins in {partition}, not in {home}");
                    // Counted from home, so that all homes add up.
                    away[((partition + u64::from(partitions) - home) % u64::from(partitions)) as usize] += 1;
                }
            }
            let near = |count: u32, share: f64| (f64::from(count) / (4 * calls) as f64 - share).abs() < 0.01;
            assert!(near(away[0], 1.0 - remote), "{remote}: {away:?}");
            assert!(away[1..].iter().all(|&count| near(count, remote / f64::from(partitions - 1))), "{away:?}");
        }
    }

    #[test]
    fn the_skew_within_a_partition_is_that_of_a_table_of_its_size() {
        let keys = keys(config(4, 0.5));
        let zipf = Zipf::new(250, 0.9).unwrap();
        let mut random = Random::new(3);
        let mut seen = vec![0_u32; 1000];
        let draws = 100_000;
        // Second accesses, which may be anywhere, next to a first one that takes nothing away.
        let first = [u64::MAX];
        (0..draws).for_each(|call| seen[keys.draw(&mut random, keys.home(call), &first) as usize] += 1);
        for partition in 0..4 {
            let hottest = seen[(partition + 4 * scatter(0, 250)) as usize];
            let expected = zipf.probability(0) * f64::from(draws as u32) / 4.0;
            // Another rank may be scattered to the same key, so more is possible.
            assert!(f64::from(hottest) > 0.9 * expected, "{partition}: {hottest} of {expected}");
        }
    }

    #[test]
    fn new_keys_follow_their_partition_and_are_drawn_when_known() {
        let mut keys =
            keys(YcsbConfig { records: 10, operations: 3, distribution: Distribution::Latest, ..config(3, 0.0) });
        let mut random = Random::new(4);
        let new: Vec<u64> = [0, 0, 1, 2].iter().map(|&home| keys.insert(&mut random, home, 0)).collect();
        assert_eq!(new, [12, 15, 10, 11]);
        assert!(new.iter().all(|&key| keys.contain(key)) && !keys.contain(13) && keys.end() == 18);
        assert!((0..500).all(|call| keys.draw(&mut random, keys.home(call), &[]) < 10));
        keys.grow();
        assert!((0..500).any(|_| keys.draw(&mut random, 0, &[]) == 15));
    }

    #[test]
    fn a_partition_of_as_many_rows_as_operations_gives_them_all() {
        let keys = keys(YcsbConfig { records: 48, operations: 16, ..config(3, 0.0) });
        let mut random = Random::new(5);
        let mut taken = Vec::new();
        (0..16).for_each(|_| taken.push(keys.draw(&mut random, 2, &taken)));
        taken.sort_unstable();
        assert_eq!(taken, (0..16).map(|place| 2 + 3 * place).collect::<Vec<u64>>());
    }
}
