//! How many point look-ups a second one core does, with and without a window of prefetches.
//!
//! `cargo run --release -p lockwork-storage --example lookup [KEYS]`
//!
//! Prints, for one million keys or as many as asked, look-ups alone and look-ups that read the row's first field, one
//! after the other and sixteen at a time. Best of five rounds each; seed and settings are printed.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use lockwork_memory::{Pages, prefetch};
use lockwork_procedure::key::{Key, mix};
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::{LIVE, RowPtr, Table};

const WINDOW: usize = 16;
const LOOKUPS: usize = 4_000_000;
const SEED: u64 = 42;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    if keys == 0 {
        return Err("give at least one key".into());
    }
    let names: Vec<String> = (0..8).map(|field| format!("field{field}")).collect();
    let mut columns = vec![("key", ColumnType::I64)];
    columns.extend(names.iter().map(|name| (name.as_str(), ColumnType::Bytes(64))));
    let schema = Arc::new(TableSchema::new("usertable", &columns, 1, false)?);
    let table = Table::new(schema, usize::try_from(keys)?, Pages::Huge)?;
    for n in 0..keys {
        let image = n.to_le_bytes();
        let key = table.key_format().encode(&image);
        table.insert(key.hash(), &key, &image, LIVE)?;
    }
    let wanted: Vec<(u64, Key)> = (0..LOOKUPS as u64)
        .map(|i| table.key_format().encode(&(mix(i ^ SEED) % keys).to_le_bytes()))
        .map(|key| (key.hash(), key))
        .collect();
    println!("keys={keys} lookups={LOOKUPS} window={WINDOW} seed={SEED} memory={:?}", table.memory());
    for (name, run) in [
        ("find, one after the other", single as fn(&Table, &[(u64, Key)]) -> u64),
        ("find, window", window),
        ("find and read a field, one after the other", single_read),
        ("find and read a field, window", window_read),
    ] {
        let best = (0..5).map(|_| time(|| run(&table, &wanted))).fold(f64::MAX, f64::min);
        println!("{:8.1} M/s  {name}", LOOKUPS as f64 / best / 1e6);
    }
    Ok(())
}

fn time(run: impl FnOnce() -> u64) -> f64 {
    let start = Instant::now();
    black_box(run());
    start.elapsed().as_secs_f64()
}

/// Reads the first word of the first field.
fn field(row: RowPtr) -> u64 {
    // SAFETY: rows of this table are 576 bytes long, and nothing writes them.
    unsafe { row.as_ptr().add(64).cast::<u64>().read() }
}

fn single(table: &Table, wanted: &[(u64, Key)]) -> u64 {
    // The next key depends on the row found, so that the processor cannot overlap look-ups by itself.
    let mut carry = 0_usize;
    for at in 0..wanted.len() {
        let (hash, key) = &wanted[at ^ (carry & 1)];
        let row = table.find(*hash, key).expect("every key is there");
        carry = (row.as_ptr() as usize) >> 6;
    }
    carry as u64
}

fn single_read(table: &Table, wanted: &[(u64, Key)]) -> u64 {
    let mut carry = 0_u64;
    for at in 0..wanted.len() {
        let (hash, key) = &wanted[at ^ (carry & 1) as usize];
        carry = field(table.find(*hash, key).expect("every key is there"));
    }
    carry
}

fn window(table: &Table, wanted: &[(u64, Key)]) -> u64 {
    let mut sum = 0_u64;
    for group in wanted.chunks(WINDOW) {
        group.iter().for_each(|(hash, _)| table.prefetch(*hash));
        for (hash, key) in group {
            sum = sum.wrapping_add(table.find(*hash, key).expect("every key is there").as_ptr() as u64);
        }
    }
    sum
}

fn window_read(table: &Table, wanted: &[(u64, Key)]) -> u64 {
    let mut sum = 0_u64;
    let mut rows = Vec::with_capacity(WINDOW);
    for group in wanted.chunks(WINDOW) {
        group.iter().for_each(|(hash, _)| table.prefetch(*hash));
        rows.clear();
        for (hash, key) in group {
            let row = table.find(*hash, key).expect("every key is there");
            prefetch(row.as_ptr().wrapping_add(64));
            rows.push(row);
        }
        sum = rows.iter().fold(sum, |sum, row| sum.wrapping_add(field(*row)));
    }
    sum
}
