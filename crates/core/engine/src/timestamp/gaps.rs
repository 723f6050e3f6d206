//! Read times of ranges of keys: what keeps phantoms away.
//!
//! A scan reads the rows in its range, and that there are no others. BionicDB stamps the rows and so misses a key that
//! comes between them; here the scan leaves its time on the whole range, up to the last key that it saw or the end of
//! the table, with the owner of the partition. An insert of an older transaction into the range came too late.
//!
//! Only inserts that are older than the latest scan of their table look at ranges at all. Of those the most recent ones
//! are kept one by one; times of others become one time for all keys, below which every insert is rejected.

use lockwork_procedure::key::Key;

/// Ranges kept one by one.
const RANGES: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Range {
    from: Key,
    to: Key,
    time: u64,
}

/// The scanned ranges of one table in one partition.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    ranges: Vec<Range>,
    /// Where the next range goes when there are as many as are kept.
    oldest: usize,
    /// The time of all keys.
    everywhere: u64,
    latest: u64,
}

impl Gaps {
    /// Leaves a time on all keys from `from` to `to`, both included.
    #[inline]
    pub(super) fn cover(&mut self, from: Key, to: Key, time: u64) {
        self.latest = self.latest.max(time);
        let range = Range { from, to, time };
        if self.ranges.len() < RANGES {
            self.ranges.push(range);
            return;
        }
        let replaced = std::mem::replace(&mut self.ranges[self.oldest], range);
        self.everywhere = self.everywhere.max(replaced.time);
        self.oldest = (self.oldest + 1) % RANGES;
    }

    /// The time of a range with `key` in it that is above `time`, if there is one.
    #[inline]
    pub(super) fn above(&self, key: &Key, time: u64) -> Option<u64> {
        if self.latest <= time {
            return None;
        }
        let covers = |range: &&Range| range.time > time && range.from <= *key && *key <= range.to;
        let found = self.ranges.iter().filter(covers).map(|range| range.time).max();
        found.max((self.everywhere > time).then_some(self.everywhere))
    }

    /// Forgets all ranges; transactions to come are younger than all scans.
    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        (self.oldest, self.everywhere, self.latest) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(word: u64) -> Key {
        Key([word, 0, 0, 0])
    }

    #[test]
    fn an_older_insert_into_a_scanned_range_is_told() {
        let mut gaps = Gaps::default();
        gaps.cover(key(10), key(20), 100);
        gaps.cover(key(15), key(30), 200);
        assert_eq!(gaps.above(&key(10), 99), Some(100));
        assert_eq!(gaps.above(&key(20), 100), Some(200), "the later of two");
        assert_eq!((gaps.above(&key(9), 1), gaps.above(&key(31), 1)), (None, None));
        assert_eq!(gaps.above(&key(20), 200), None, "its own scan");
        gaps.clear();
        assert_eq!(gaps.above(&key(20), 0), None);
    }

    #[test]
    fn ranges_that_are_not_kept_count_everywhere() {
        let mut gaps = Gaps::default();
        for time in 1..=RANGES as u64 + 5 {
            gaps.cover(key(time * 10), key(time * 10 + 1), time);
        }
        assert_eq!((gaps.above(&key(5), 4), gaps.above(&key(5), 5)), (Some(5), None));
        assert_eq!(gaps.above(&key(600), 5), Some(60));
    }
}
