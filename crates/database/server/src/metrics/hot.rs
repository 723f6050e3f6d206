//! The keys that calls ask for most often, of a stream too long to keep.

use std::collections::HashMap;

/// Keys that are counted at a time.
const PLACES: usize = 256;
/// When so many have been counted, all counts are halved: what was hot long ago gives way.
const HALVED: u64 = 1 << 16;

/// The space-saving sketch (Metwally, Agrawal and El Abbadi, 2005): a key that is not counted takes the place of the
/// rarest, and its count. So a count is too high by at most the lowest one, and no key above it is missing.
#[derive(Debug, Default)]
pub(super) struct Hot {
    counts: HashMap<(String, String), u64>,
    total: u64,
}

impl Hot {
    pub(super) fn count(&mut self, key: (String, String)) {
        self.total += 1;
        if self.total >= HALVED {
            self.total /= 2;
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        if let Some(count) = self.counts.get_mut(&key) {
            *count += 1;
            return;
        }
        let mut before = 0;
        if self.counts.len() == PLACES {
            let rarest = self.counts.iter().min_by_key(|&(_, count)| *count).map(|(key, _)| key.clone());
            before = rarest.and_then(|rarest| self.counts.remove(&rarest)).unwrap_or(0);
        }
        self.counts.insert(key, before + 1);
    }

    /// The hottest keys, each with its share of all that were counted.
    pub(super) fn top(&self, most: usize) -> Vec<(&(String, String), f64)> {
        let mut all: Vec<_> = self.counts.iter().collect();
        all.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let share = |count: &u64| *count as f64 / self.total.max(1) as f64;
        all.into_iter().take(most).map(|(key, count)| (key, share(count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_keys_are_found_among_many_and_forgotten_in_time() {
        let mut hot = Hot::default();
        let key = |number: u64| ("t".to_string(), number.to_string());
        for round in 0..20_000 {
            hot.count(key(1_000_000 + round));
            hot.count(key(round % 2));
        }
        let top = hot.top(3);
        assert_eq!([top[0].0, top[1].0], [&key(0), &key(1)]);
        assert!(top[..2].iter().all(|(_, share)| (0.25..0.27).contains(share)) && top[2].1 < 0.01, "{top:?}");
        assert!(hot.counts.len() <= PLACES);
        (0..400_000).for_each(|_| hot.count(key(7)));
        assert!(hot.top(1)[0].0 == &key(7) && hot.top(1)[0].1 > 0.9, "{:?}", hot.top(2));
    }
}
