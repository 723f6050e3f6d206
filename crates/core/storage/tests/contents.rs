//! Tables by one thread, against maps of the standard library, and what their digests say.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockwork_memory::Pages;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::{Inserted, LIVE, Table};
use proptest::prelude::*;

fn table(columns: &[(&str, ColumnType)], keys: usize, ordered: bool) -> Table {
    let schema = TableSchema::new("t", columns, keys, ordered).unwrap();
    Table::new(Arc::new(schema), 1, Pages::Plain).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Insert(i64),
    Remove(i64),
    Find(i64),
    Scan(i64, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop_oneof![3 => -40_i64..40, 1 => any::<i64>()];
    let step = prop_oneof![
        4 => key().prop_map(Step::Insert),
        3 => key().prop_map(Step::Remove),
        2 => key().prop_map(Step::Find),
        1 => (key(), 0_usize..20).prop_map(|(from, limit)| Step::Scan(from, limit)),
    ];
    prop::collection::vec(step, 0..400)
}

/// Key image of `n`: one integer, or an integer, a gap and another integer whose order is that of `n`.
fn image_of(n: i64, composite: bool) -> Vec<u8> {
    if !composite {
        return n.to_le_bytes().to_vec();
    }
    let mut image = ((n >> 60) as i8).to_le_bytes().to_vec();
    image.resize(8, 0);
    image.extend(n.to_le_bytes());
    image
}

proptest! {
    #[test]
    fn a_table_is_a_sorted_map_for_keys_of_every_shape(steps in steps(), composite: bool) {
        let (i8, i64) = (ColumnType::I8, ColumnType::I64);
        let table = if composite {
            table(&[("a", i8), ("b", i64), ("v", i64)], 2, true)
        } else {
            table(&[("a", i64), ("v", i64)], 1, true)
        };
        let key_of = |n: i64| table.key_format().encode(&image_of(n, composite));
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(n) => {
                    let key = key_of(n);
                    match table.insert(key.hash(), &key, &image_of(n, composite), LIVE).unwrap() {
                        Inserted::New(row) => prop_assert_eq!(model.insert(n, row), None),
                        Inserted::Exists(row) => prop_assert_eq!(model.get(&n), Some(&row)),
                    }
                }
                Step::Remove(n) => {
                    let key = key_of(n);
                    // SAFETY: this thread is alone with the table.
                    let removed = unsafe { table.remove(key.hash(), &key) };
                    prop_assert_eq!(removed, model.remove(&n).is_some());
                }
                Step::Find(n) => prop_assert_eq!(table.find(key_of(n).hash(), &key_of(n)), model.get(&n).copied()),
                Step::Scan(from, limit) => {
                    let mut scanned = Vec::new();
                    table.scan(&key_of(from), limit, 0..64, |row| scanned.push(row));
                    let expected: Vec<_> = model.range(from..).take(limit).map(|(_, row)| *row).collect();
                    prop_assert_eq!(scanned, expected);
                }
            }
        }
        prop_assert_eq!(table.len(), model.len() as u64);
    }
}

#[test]
fn bytes_between_columns_are_no_contents() {
    let columns = [
        ("a", ColumnType::I8),
        ("b", ColumnType::I64),
        ("c", ColumnType::I8),
        ("d", ColumnType::I32),
        ("e", ColumnType::Bytes(64)),
    ];
    let filled = |gap: u8| {
        let table = table(&columns, 2, false);
        let mut image = vec![gap; (table.schema().row_bytes() - 16) as usize];
        for column in table.schema().columns() {
            let start = (column.offset - 16) as usize;
            image[start..start + column.column_type.width() as usize].fill(3);
        }
        table.load(&image).unwrap();
        image[0] = 4;
        let key = table.key_format().encode(&image);
        table.insert(key.hash(), &key, &image[..16], LIVE).unwrap();
        table.digest()
    };
    assert_eq!(filled(0), filled(0xEE));
}

#[test]
fn a_key_image_of_the_wrong_length_is_refused_by_name() {
    let table = table(&[("a", ColumnType::I64)], 1, true);
    for length in [0, 7, 9] {
        let error = table.insert(0, &Key([0; 4]), &vec![0; length], LIVE).unwrap_err().to_string();
        assert!(error.contains("'t'") && error.contains('8') && error.contains(&length.to_string()), "{error}");
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn a_table_that_cannot_be_is_refused_by_name() {
    let columns = [("a", ColumnType::I64), ("v", ColumnType::Bytes(60_000))];
    for hint in [usize::MAX, u32::MAX as usize] {
        let schema = Arc::new(TableSchema::new("huge", &columns, 1, false).unwrap());
        let error = Table::new(schema, hint, Pages::Plain).unwrap_err().to_string();
        assert!(error.contains("'huge'"), "{error}");
    }
}
