//! Scans of fifty records over a million, one core: the ordered index of a table beside ordered crates.
//!
//! `cargo run --release -p lockwork-storage --example scan [KEYS] [LENGTH]`
//!
//! Keys are inserted in random order; every scan begins at a random key and adds up one field of each row that it
//! meets, from the same rows for all. Medians of five rounds, the contestants in turn; the sums must agree.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use lockwork_memory::Pages;
use lockwork_procedure::key::{Key, mix};
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::{RowPtr, Table};

const SCANS: u64 = 100_000;
const SEED: u64 = 42;
const ROUNDS: usize = 5;

/// The field of a row that is added up: the first behind the key.
fn field(row: RowPtr) -> u64 {
    // SAFETY: rows are 64 bytes long, and nobody writes them here.
    unsafe { row.as_ptr().add(24).cast::<u64>().read() }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let length: usize = arguments.next().map_or(Ok(50), |text| text.parse())?;
    if keys == 0 || length == 0 {
        return Err("give at least one key and a length of at least one".into());
    }
    let columns = [("key", ColumnType::I64), ("field", ColumnType::I64)];
    let schema = Arc::new(TableSchema::new("scanned", &columns, 1, true)?);
    let table = Table::new(schema, usize::try_from(keys)?, Pages::Huge)?;
    let (mut tree, list) = (BTreeMap::new(), crossbeam_skiplist::SkipMap::new());
    let (leaves, art) = (scc::TreeIndex::new(), congee::Congee::<usize, usize>::default());
    let guard = art.pin();
    // An order that hits every key once: multiplication by an odd number, modulo a power of two.
    let slots = keys.next_power_of_two();
    for key in (0..slots).map(|n| n.wrapping_mul(0x9E37_79B1) % slots).filter(|key| *key < keys) {
        let image = [key.to_le_bytes(), mix(key).to_le_bytes()].concat();
        let row = table.load(&image)?;
        let address = row.as_ptr() as usize;
        tree.insert(key, row);
        list.insert(key, row);
        leaves.insert_sync(key, row).map_err(|_| "a key twice")?;
        art.insert(key as usize, address, &guard).map_err(|_| "no memory for the radix tree")?;
    }
    let starts: Vec<u64> = (0..SCANS).map(|n| mix(n ^ SEED) % keys).collect();
    let image = |key: u64| table.key_format().encode(&key.to_le_bytes());
    let mut buffer = vec![(0_usize, 0_usize); length];
    type Scan<'a> = Box<dyn FnMut(u64) -> u64 + 'a>;
    let mut contestants: Vec<(&str, Scan<'_>)> = vec![
        (
            "this table",
            Box::new(|start| {
                let (from, mut sum): (Key, u64) = (image(start), 0);
                table.scan(&from, length, 24..32, |row| sum = sum.wrapping_add(field(row)));
                sum
            }),
        ),
        (
            "std BTreeMap",
            Box::new(|start| {
                tree.range(start..).take(length).fold(0_u64, |sum, (_, row)| sum.wrapping_add(field(*row)))
            }),
        ),
        (
            "crossbeam-skiplist",
            Box::new(|start| {
                list.range(start..).take(length).fold(0_u64, |sum, entry| sum.wrapping_add(field(*entry.value())))
            }),
        ),
        (
            "scc TreeIndex",
            Box::new(|start| {
                let guard = scc::Guard::new();
                leaves.range(start.., &guard).take(length).fold(0_u64, |sum, (_, row)| sum.wrapping_add(field(*row)))
            }),
        ),
        (
            "congee (ART)",
            Box::new(|start| {
                let found = art.range(&(start as usize), &usize::MAX, &mut buffer, &guard);
                buffer[..found].iter().fold(0_u64, |sum, (_, address)| {
                    // SAFETY: the addresses are those of rows of the table, which are never freed here.
                    sum.wrapping_add(unsafe { (*address as *const u8).add(24).cast::<u64>().read() })
                })
            }),
        ),
    ];
    println!("keys={keys} length={length} scans={SCANS} seed={SEED}; medians of {ROUNDS}, one core");
    let mut times = vec![Vec::new(); contestants.len()];
    let mut sums = Vec::new();
    for _ in 0..ROUNDS {
        for (at, (_, scan)) in contestants.iter_mut().enumerate() {
            let start = Instant::now();
            let sum = starts.iter().fold(0_u64, |sum, start| sum.wrapping_add(black_box(scan(*start))));
            times[at].push(start.elapsed().as_secs_f64());
            sums.push(sum);
        }
    }
    if sums.iter().any(|sum| *sum != sums[0]) {
        return Err(format!("the sums differ: {sums:?}").into());
    }
    for ((name, _), times) in contestants.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let rate = SCANS as f64 / times[ROUNDS / 2];
        println!("  {name:<20} {:>8.0} k scans/s  {:>7.1} M records/s", rate / 1e3, rate * length as f64 / 1e6);
    }
    Ok(())
}
