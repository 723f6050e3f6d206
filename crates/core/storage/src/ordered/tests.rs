//! The ordered index beside a sorted map, alone and with readers while it changes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn key(value: u64) -> Key {
    Key([value, 0, 0, 0])
}

/// A wide key whose order is that of the value, decided in its last words.
fn wide(value: u64) -> Key {
    Key([7, value / 50, 0, value % 50])
}

fn check(exact: bool, steps: &[(u64, bool)], from: u64, limit: usize) -> Result<(), TestCaseError> {
    let key = if exact { key } else { wide };
    let (index, mut model) = (OrderedIndex::new(exact, Pages::Plain).unwrap(), BTreeMap::new());
    for (number, &(value, insert)) in steps.iter().enumerate() {
        if insert && !model.contains_key(&value) {
            index.insert(&key(value), number as u32).unwrap();
            model.insert(value, number as u32);
        } else if !insert {
            prop_assert_eq!(index.remove(&key(value)), model.remove(&value).is_some());
        }
        if number % 500 == 499 {
            // SAFETY: this thread is alone with the index.
            unsafe { index.reclaim() }
        }
    }
    let mut found = Vec::new();
    index.scan(
        &key(from),
        limit,
        |_| (),
        |row| {
            found.push(row);
            found.len() < limit
        },
    );
    let expected: Vec<u32> = model.range(from..).map(|(_, row)| *row).take(limit).collect();
    prop_assert_eq!(found, expected);
    let nth = model.range(from..).nth(limit - 1).map(|(value, _)| key(*value));
    prop_assert_eq!(index.nth(&key(from), limit), nth);
    let last = model.last_key_value().map(|(value, _)| key(*value));
    prop_assert!(index.last().is_none_or(|found| Some(found) == last), "{:?} is not {last:?}", index.last());
    Ok(())
}

proptest! {
    #[test]
    fn it_is_a_sorted_map(
        steps in prop::collection::vec((0_u64..400, any::<bool>()), 0..3_000),
        from in 0_u64..420,
        limit in 1_usize..300,
        exact: bool,
    ) {
        check(exact, &steps, from, limit)?;
    }

    /// Runs of keys up and down fill nodes to the brim, split several levels, and empty them again.
    #[test]
    fn it_is_a_sorted_map_under_runs(
        runs in prop::collection::vec((0_u64..20_000, 1_u64..4_000, any::<bool>(), any::<bool>()), 1..12),
        from in 0_u64..25_000,
        exact: bool,
    ) {
        let mut steps = Vec::new();
        for (start, length, down, insert) in runs {
            let values: Vec<u64> = (start..start + length).collect();
            let ordered: Box<dyn Iterator<Item = u64>> =
                if down { Box::new(values.into_iter().rev()) } else { Box::new(values.into_iter()) };
            steps.extend(ordered.map(|value| (value, insert)));
        }
        check(exact, &steps, from, usize::MAX)?;
    }
}

#[test]
fn a_queue_of_keys_takes_no_more_memory_with_time() {
    let index = OrderedIndex::new(true, Pages::Plain).unwrap();
    let mut most = 0;
    for value in 0..400_000_u64 {
        index.insert(&key(value), value as u32).unwrap();
        if value >= 1_000 {
            assert!(index.remove(&key(value - 1_000)));
        }
        if value % 1_000 == 0 {
            // SAFETY: this thread is alone with the index.
            unsafe { index.reclaim() }
            let mut first = None;
            index.scan(
                &key(0),
                1,
                |_| (),
                |row| {
                    first = Some(row);
                    false
                },
            );
            assert_eq!(first, Some((value as u32).saturating_sub(999)));
        }
        most = most.max(index.bytes());
    }
    assert!(most <= 1 << 20, "{most} bytes for a thousand keys");
}

#[test]
fn readers_see_every_row_that_stays_while_a_writer_works() {
    for exact in [true, false] {
        let key = if exact { key } else { wide };
        let index = OrderedIndex::new(exact, Pages::Plain).unwrap();
        let insert = |value: u64| index.insert(&key(value), value as u32).unwrap();
        (0..1_000).for_each(|value| insert(value * 2));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..40 {
                    (0..1_000).for_each(|value| insert(value * 2 + 1));
                    (0..1_000).for_each(|value| assert!(index.remove(&key(value * 2 + 1))));
                }
            });
            while !writer.is_finished() {
                let mut last = None;
                let mut even = 0;
                index.scan(
                    &key(0),
                    usize::MAX,
                    |_| (),
                    |row| {
                        assert!(last < Some(row), "out of order");
                        last = Some(row);
                        even += u32::from(row % 2 == 0);
                        true
                    },
                );
                assert_eq!(even, 1_000, "a scan missed a row that was always there");
            }
        });
    }
}
