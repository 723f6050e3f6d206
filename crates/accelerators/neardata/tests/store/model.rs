//! Random histories against a model: a list of versions for each tuple.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Tuples, each by a number that chooses one; new balance, or removal.
    Flush(Vec<(u32, Option<i64>)>),
    /// Rows with at least this much get that much; committed or not.
    Raise(i64, i64, bool),
    /// The watermark moves on by so much, at most to now.
    Collect(u64),
    Reopen(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let change = (any::<u32>(), prop::option::weighted(0.9, -50_i64..50));
    prop_oneof![
        4 => vec(change, 1..30).prop_map(Step::Flush),
        3 => (-60_i64..60, -9_i64..9, prop::bool::weighted(0.7)).prop_map(|(a, b, c)| Step::Raise(a, b, c)),
        2 => (0_u64..6).prop_map(Step::Collect),
        1 => any::<u64>().prop_map(Step::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    tuples: Vec<Vec<Version>>,
    now: Timestamp,
    watermark: Timestamp,
}

impl Model {
    fn at(&self, vid: usize, snapshot: Timestamp) -> Option<&Version> {
        self.tuples[vid].iter().rev().find(|version| version.created <= snapshot)
    }

    fn check(&self, store: &Store, snapshot: Timestamp) {
        let mut rows = BTreeMap::new();
        for vid in 0..self.tuples.len() {
            let expected = self.at(vid, snapshot);
            let found = store.read(0, Vid(vid as u32), snapshot).unwrap();
            assert_eq!(found.as_ref(), expected, "tuple {vid} at {snapshot}");
            if let Some(image) = expected.and_then(|version| version.image.as_ref()) {
                rows.insert(vid as u32, image.to_vec());
            }
        }
        assert!(filter(store, i64::MIN, snapshot).unwrap() == rows, "filter at {snapshot}");
        let sum = rows.values().map(|row| balance(row)).sum();
        let sum = (!rows.is_empty()).then_some(sum);
        assert_eq!(total(store, snapshot), Ok((rows.len() as u64, sum)));
        assert_eq!(store.read(0, Vid(self.tuples.len() as u32), snapshot), Ok(None));
    }

    fn check_tuples(&self, store: &Store) {
        let mut seen = BTreeMap::new();
        store
            .tuples(0, &mut |tuple| {
                seen.insert(tuple.vid.0, (tuple.number, tuple.created, tuple.key.len()));
            })
            .unwrap();
        let newest = |versions: &Vec<Version>| {
            let newest = versions.last().unwrap();
            (newest.number, newest.created, if newest.image.is_some() { 8 } else { 0 })
        };
        let expected: BTreeMap<u32, _> = (0..).zip(self.tuples.iter().map(newest)).collect();
        assert_eq!(seen, expected);
    }

    fn flush(&mut self, store: &Store, changes: &[(u32, Option<i64>)]) {
        let mut versions = Vec::new();
        for (choice, balance) in changes {
            self.now += 1;
            // One beyond the last is a new tuple.
            let vid = *choice as usize % (self.tuples.len() + 2).min(60);
            let vid = vid.min(self.tuples.len());
            if vid == self.tuples.len() {
                self.tuples.push(Vec::new());
            }
            let versions_of = &mut self.tuples[vid];
            let number = versions_of.len() as u32 + 1;
            let image = balance.map(|balance| image(vid as i64, balance));
            let version = Version { vid: Vid(vid as u32), number, created: self.now, image };
            versions_of.push(version.clone());
            versions.push(version);
        }
        let records = store.flush(0, &versions, self.watermark).unwrap();
        let distinct: std::collections::HashSet<_> = records.iter().collect();
        assert_eq!(distinct.len(), versions.len());
    }

    fn raise(&mut self, store: &Store, id: u64, (limit, amount): (i64, i64), commit: bool) {
        let rich = |version: &&Version| version.image.as_ref().is_some_and(|image| balance(image) >= limit);
        let now = self.now;
        let taken: Vec<Version> =
            (0..self.tuples.len()).filter_map(|vid| self.at(vid, now)).filter(rich).cloned().collect();
        assert_eq!(raise(store, id, limit, amount, now), Ok(taken.len() as u64));
        self.check(store, now);
        if !commit {
            return store.abort(TransactionId(id)).unwrap();
        }
        self.now += 1;
        store.commit(TransactionId(id), self.now).unwrap();
        for mut version in taken {
            let image = version.image.as_mut().unwrap();
            let new = balance(image) + amount;
            image[8..16].copy_from_slice(&new.to_le_bytes());
            (version.number, version.created) = (version.number + 1, self.now);
            self.tuples[version.vid.0 as usize].push(version);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn random_histories_agree_with_the_model(steps in vec(step(), 1..24)) {
        let mut disk = MemoryDisk::new();
        let mut store = store_over(&disk);
        let mut model = Model::default();
        for (index, step) in steps.iter().enumerate() {
            match step {
                Step::Flush(changes) => model.flush(&store, changes),
                Step::Raise(limit, amount, commit) => {
                    model.raise(&store, index as u64, (*limit, *amount), *commit);
                }
                Step::Collect(forward) => {
                    model.watermark = (model.watermark + forward).min(model.now);
                    store.collect(model.watermark).unwrap();
                    prop_assert_eq!(store.collect(model.watermark), Ok(0));
                }
                Step::Reopen(seed) => {
                    // What is durable must not depend on a tidy end.
                    drop(store);
                    disk = disk.after_crash(*seed);
                    store = store_over(&disk);
                }
            }
            let middle = u64::midpoint(model.watermark, model.now);
            for snapshot in [model.watermark, middle, model.now] {
                model.check(&store, snapshot);
            }
            model.check_tuples(&store);
        }
        let now = model.now;
        store.collect(now).unwrap();
        model.check(&store, now);
        prop_assert_eq!(store.status().unwrap().versions, model.tuples.len() as u64);
    }
}
