//! Tables under many threads: what an index promises beside writers, without any lock of an engine.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockwork_memory::Pages;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::{ABSENT, Inserted, LIVE, RowPtr, Table};

fn table(composite: bool, ordered: bool) -> Table {
    let columns = [("a", ColumnType::I64), ("b", ColumnType::I64), ("v", ColumnType::Bytes(64))];
    let schema = TableSchema::new("t", &columns, if composite { 2 } else { 1 }, ordered).unwrap();
    Table::new(Arc::new(schema), 1, Pages::Plain).unwrap()
}

/// The key image of number `n`, and its key.
fn key(table: &Table, n: i64) -> (Vec<u8>, Key) {
    let mut image = (n / 7).to_le_bytes().to_vec();
    if table.schema().key().len() == 1 {
        image = n.to_le_bytes().to_vec();
    } else {
        image.extend(n.to_le_bytes());
    }
    let key = table.key_format().encode(&image);
    (image, key)
}

fn insert(table: &Table, n: i64, state: u8) -> Inserted {
    let (image, key) = key(table, n);
    table.insert(key.hash(), &key, &image, state).unwrap()
}

fn find(table: &Table, n: i64) -> Option<RowPtr> {
    let (_, key) = key(table, n);
    table.find(key.hash(), &key)
}

#[test]
fn rows_stay_found_while_other_keys_come_and_go() {
    for composite in [false, true] {
        let table = table(composite, false);
        (0..500).for_each(|n| {
            insert(&table, n, LIVE);
        });
        let rows: Vec<_> = (0..500).map(|n| find(&table, n).unwrap()).collect();
        let writers_left = AtomicU64::new(2);
        std::thread::scope(|scope| {
            for writer in 0..2_i64 {
                let (table, writers_left) = (&table, &writers_left);
                scope.spawn(move || {
                    for n in 0..40_000 {
                        let n = 1_000 + writer * 1_000_000 + n;
                        assert!(matches!(insert(table, n, LIVE), Inserted::New(_)));
                        if n % 4 != 0 {
                            let (_, key) = key(table, n);
                            // SAFETY: no other thread knows of this row.
                            assert!(unsafe { table.remove(key.hash(), &key) });
                        }
                    }
                    writers_left.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let mut rounds = 0;
            while writers_left.load(Ordering::Relaxed) > 0 || rounds == 0 {
                for (n, row) in rows.iter().enumerate() {
                    assert_eq!(find(&table, n as i64), Some(*row));
                    assert_eq!(find(&table, -1 - n as i64), None);
                }
                rounds += 1;
            }
        });
        assert_eq!(table.len(), 500 + 20_000);
    }
}

#[test]
fn of_many_inserts_of_one_key_exactly_one_is_new_and_all_see_its_row() {
    for composite in [false, true] {
        let table = table(composite, true);
        let outcomes: Vec<Vec<Inserted>> = std::thread::scope(|scope| {
            let work = || (0..5_000).map(|n| insert(&table, n, LIVE)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut distinct = HashSet::new();
        for n in 0..5_000 {
            let new = outcomes.iter().filter(|of| matches!(of[n], Inserted::New(_))).count();
            assert_eq!(new, 1, "key {n}");
            let rows: HashSet<_> = outcomes
                .iter()
                .map(|of| match of[n] {
                    Inserted::New(row) | Inserted::Exists(row) => row,
                })
                .collect();
            assert_eq!(rows.len(), 1, "key {n}");
            distinct.extend(rows);
        }
        assert_eq!((distinct.len(), table.len()), (5_000, 5_000));
    }
}

/// An engine inserts a ghost, and another thread may find, lock, fill and commit it before the insert returns. If a
/// scan could miss that row, it would miss a committed one.
#[test]
fn what_find_finds_a_scan_finds_too() {
    let table = table(false, true);
    const ROWS: i64 = 30_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..ROWS).for_each(|n| {
                insert(&table, n, ABSENT);
            })
        });
        for n in 0..ROWS {
            let row = loop {
                if let Some(row) = find(&table, n) {
                    break row;
                }
            };
            row.state().store(u64::from(LIVE), Ordering::Release);
            let mut scanned = None;
            table.scan(&key(&table, n).1, 1, 0..64, |row| scanned = Some(row));
            assert_eq!(scanned, Some(row), "row {n} was found and not scanned");
        }
    });
}

#[test]
fn a_key_can_be_inserted_again_the_moment_it_is_gone() {
    let table = table(false, true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let inserter = scope.spawn(|| {
            let mut new = 0;
            while !stop.load(Ordering::Relaxed) {
                new += u64::from(matches!(insert(&table, 5, LIVE), Inserted::New(_)));
            }
            new
        });
        let mut removed = 0;
        while removed < 5_000 && !inserter.is_finished() {
            let (_, key) = key(&table, 5);
            // SAFETY: the other thread inserts and never touches a row.
            removed += u64::from(unsafe { table.remove(key.hash(), &key) });
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(inserter.join().unwrap(), removed + table.len());
    });
    let mut scanned = 0;
    table.scan(&Key([0; 4]), 10, 0..64, |_| scanned += 1);
    assert_eq!(scanned, table.len());
}
