//! Tables in the card's memory: every row is where the layout says, and comes back.

use std::collections::{BTreeMap, BTreeSet};

use lockwork_fpga::capabilities::Capabilities;
use lockwork_fpga::card::CardMemory;
use lockwork_fpga::key_words::{crc32c, height};
use lockwork_fpga::layout::{ADDRESS_MASK, Placed, Shape};
use lockwork_fpga::memory::{Behaviour, Memory};
use lockwork_fpga::memory_map::MemoryMap;
use lockwork_memory::Pages;
use lockwork_procedure::partitioning::Partitioner;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::Database;
use proptest::prelude::*;

fn card(workers: usize) -> Capabilities {
    Capabilities {
        workers,
        contexts: 8,
        entries: 64,
        key_words: 4,
        instructions: 64,
        procedures: 8,
        tables: 8,
        sources: 8,
        grants: 8,
        registers: 256,
        levels: 6,
    }
}

/// Schemas with keys of one to four words, partitioned by integers and by text.
fn schemas() -> Vec<TableSchema> {
    let make = |columns: &[(&str, ColumnType)], keys: usize, by: &str| {
        TableSchema::new("t", columns, keys, true).unwrap().partition_by_hash(by).unwrap()
    };
    let (i64, i16, u8) = (ColumnType::I64, ColumnType::I16, ColumnType::U8);
    vec![
        make(&[("a", i64), ("v", i64)], 1, "a"),
        make(&[("a", i16), ("b", u8), ("v", ColumnType::Bytes(70))], 2, "b"),
        make(&[("a", ColumnType::Char(11)), ("v", u8)], 1, "a"),
        make(&[("a", u8), ("b", ColumnType::Bytes(24)), ("c", i16), ("v", i64)], 3, "c"),
        make(&[("a", u8), ("b", ColumnType::Char(31)), ("v", i64)], 2, "b"),
    ]
}

struct Loaded {
    database: Database,
    memory: Memory,
    map: MemoryMap,
    placed: Placed,
    workers: usize,
}

/// A table with rows of these bytes (for keys) and these numbers (for values), in memory.
fn load(schema: &TableSchema, keys: &BTreeSet<[u8; 4]>, workers: usize, scanned: bool) -> Loaded {
    let mut database = Database::new(Pages::Plain);
    database.create_table(schema.clone(), 1).unwrap();
    for key in keys {
        database.table(0).load(&image(schema, *key, 7)).unwrap();
    }
    let mut memory = Memory::new(8 << 20, 1, Behaviour::paper()).unwrap();
    memory.zero(0, 1 << 20).unwrap();
    memory.write(4096, &[0xA5; 1 << 16]).unwrap();
    let mut map = MemoryMap::new(memory.bytes());
    let shape = Shape::new(1, schema, keys.len() as u64, scanned, true, &card(workers)).unwrap();
    let placed = Placed::load(shape, database.table(0), 5, workers, &mut map, &mut memory).unwrap();
    Loaded { database, memory, map, placed, workers }
}

/// A row image: four bytes go round the key columns, and the value fills the rest.
fn image(schema: &TableSchema, key: [u8; 4], value: u8) -> Vec<u8> {
    let mut image = vec![0; schema.row_bytes() as usize - 16];
    let gaps: Vec<_> = schema.gaps().collect();
    for (at, byte) in image.iter_mut().enumerate() {
        if !gaps.iter().any(|gap| gap.contains(&at)) {
            *byte = if at < schema.key_bytes() as usize { key[at % 4] } else { value };
        }
    }
    image
}

fn link(placed: &Placed, memory: &mut Memory, row: u64, level: u32) -> u64 {
    let below = if level == 0 { 0 } else { 8 * (placed.shape.words as u64 - 1) + 8 * u64::from(level) };
    memory.read_word(row - below).unwrap() & ADDRESS_MASK
}

/// The words of the key before and in the header of a row.
fn words(placed: &Placed, memory: &mut Memory, row: u64) -> Vec<u64> {
    let mut words = vec![memory.read_word(row + 8).unwrap()];
    words.extend((1..placed.shape.words as u64).map(|number| memory.read_word(row - 8 * number).unwrap()));
    words
}

fn check(schema: &TableSchema, keys: &BTreeSet<[u8; 4]>, loaded: &mut Loaded, scanned: bool) {
    let Loaded { memory, placed, workers, .. } = loaded;
    let mut found = BTreeMap::new();
    let mut at = Vec::new();
    placed
        .walk(*workers, memory, |row| {
            assert!(row.live && row.address.is_multiple_of(64));
            found.insert(row.image.to_vec(), row.address);
            at.push((row.address, row.head, row.image.to_vec()));
        })
        .unwrap();
    let expected: BTreeSet<Vec<u8>> = keys.iter().map(|key| image(schema, *key, 7)).collect();
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(at.len(), expected.len());
    let partitioner = Partitioner::new(schema, *workers).unwrap();
    let by_integer = matches!(schema.partitioning(), Some(lockwork_procedure::partitioning::Partitioning::Hash(column))
        if schema.key()[column].column_type.is_integer());
    for (address, (set, bucket), image) in &at {
        let words = words(placed, memory, *address);
        let key = placed.shape.format.encode(&image[..placed.shape.format.image_bytes()]);
        assert_eq!(words[..], key.0[..placed.shape.words]);
        assert!(key.0[placed.shape.words..].iter().all(|&word| word == 0));
        if !scanned {
            let hash = crc32c(&words);
            assert_eq!(*bucket, u64::from(hash) % (1 << placed.shape.head_bits));
            if by_integer && *workers > 1 {
                assert_eq!(*set, partitioner.partition(image));
            } else if *workers > 1 {
                assert_eq!(*set, (hash >> 24) as usize % *workers);
            }
        }
        assert!(placed.free.iter().all(|free| !(free.next..free.end).contains(address)));
    }
    if scanned {
        for level in 0..placed.shape.levels {
            let mut on_level = Vec::new();
            let mut row = link(placed, memory, placed.head_node, level);
            while row != 0 {
                on_level.push(words(placed, memory, row));
                row = link(placed, memory, row, level);
            }
            let mut expected: Vec<Vec<u64>> = at.iter().map(|(row, ..)| words(placed, memory, *row)).collect();
            expected.retain(|words| height(crc32c(words), placed.shape.levels) > level);
            expected.sort();
            assert_eq!(on_level, expected, "level {level}");
        }
    }
    for free in placed.free.clone() {
        let mut bytes = vec![1; (free.end - free.next) as usize];
        memory.read(free.next - placed.shape.prefix, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "free rows are zeros");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn every_row_is_found_where_the_layout_says_and_comes_back(
        keys in prop::collection::btree_set(prop::array::uniform4(0_u8..12), 0..150),
        schema in 0_usize..5,
        workers in prop::sample::select(vec![1_usize, 2, 4]),
        scanned: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..3, 10_u8..99), 0..20),
    ) {
        let schema = &schemas()[schema];
        // What the columns do not hold of the four bytes makes equal keys of different ones.
        let mut seen = BTreeSet::new();
        let keys: BTreeSet<_> = keys.into_iter().filter(|key| seen.insert(image(schema, *key, 7))).collect();
        let mut loaded = load(schema, &keys, workers, scanned);
        check(schema, &keys, &mut loaded, scanned);

        let Loaded { database, memory, placed, .. } = &mut loaded;
        let mut model: BTreeMap<Vec<u8>, (u64, u8, bool)> = BTreeMap::new();
        let key_bytes = schema.key_bytes() as usize;
        placed
            .walk(workers, memory, |row| {
                model.insert(row.image[..key_bytes].to_vec(), (row.address, 7, true));
            })
            .unwrap();
        let rows: Vec<Vec<u8>> = model.keys().cloned().collect();
        for (index, what, value) in changes.into_iter().filter(|_| !rows.is_empty()) {
            let (address, known, live) = model.get_mut(index.get(&rows)).unwrap();
            match what {
                0 => {
                    memory.write(*address + 7, &[0]).unwrap();
                    *live = false;
                }
                1 => {
                    memory.write(*address + 7, &[1]).unwrap();
                    *live = true;
                }
                _ => {
                    let mut image = vec![value; schema.row_bytes() as usize - 16 - key_bytes];
                    let gaps: Vec<_> = schema.gaps().filter(|gap| gap.start >= key_bytes).collect();
                    gaps.iter().for_each(|gap| image[gap.start - key_bytes..gap.end - key_bytes].fill(0));
                    memory.write(*address + u64::from(schema.values_start()), &image).unwrap();
                    *known = value;
                }
            }
        }
        // Twice: rows leave the mirror and come back to it.
        for _ in 0..2 {
            placed.download(workers, database.table(0), memory).unwrap();
            let mut images = BTreeMap::new();
            let last = schema.columns().last().unwrap().offset as usize - 16;
            database.export(|_, image| {
                images.insert(image[..key_bytes].to_vec(), image[last]);
            });
            let expected: BTreeMap<_, _> = model
                .iter()
                .filter(|(_, (_, _, live))| *live)
                .map(|(key, (_, value, _))| (key.clone(), *value))
                .collect();
            prop_assert_eq!(images, expected);
            for (address, _, live) in model.values_mut() {
                *live = !*live;
                memory.write(*address + 7, &[u8::from(*live)]).unwrap();
            }
        }
    }
}

#[test]
fn rows_that_were_handed_out_are_counted_even_if_they_are_absent() {
    let schema = &schemas()[0];
    let keys = (0..20).map(|key| [key, 0, 0, 0]).collect();
    let Loaded { mut memory, mut map, mut placed, .. } = load(schema, &keys, 2, false);
    let (free, stride) = (placed.free[1], placed.shape.stride);
    assert_eq!(free.rows(stride), 5);
    // The second free row has been handed out, taken back, and has a key of zeros: one more is taken for used.
    memory.write(free.next + stride + 8, &[3]).unwrap();
    placed.recount(1, &mut memory).unwrap();
    assert_eq!((placed.free[1].next, placed.free[1].end), (free.next + 3 * stride, free.end));
    placed.recount(0, &mut memory).unwrap();
    assert_eq!(placed.free[0].rows(stride), 4);
    let more = placed.extend(1, 9, &mut map, &mut memory).unwrap();
    assert_eq!((placed.free[1], more.rows(stride), placed.given[1]), (more, 9, more.next));
    let left = map.left();
    let error = placed.extend(1, 1 << 40, &mut map, &mut memory).unwrap_err().to_string();
    assert!(error.contains("new rows of table"), "{error}");
    assert_eq!((map.left(), placed.free[1]), (left, more));
}

#[test]
fn a_broken_chain_is_an_error_and_no_endless_walk() {
    let schema = &schemas()[0];
    let keys: BTreeSet<_> = (0..20).map(|key| [key, 0, 0, 0]).collect();
    let Loaded { mut memory, placed, .. } = load(schema, &keys, 1, false);
    let mut rows = Vec::new();
    placed.walk(1, &mut memory, |row| rows.push(row.address)).unwrap();
    let refused = |memory: &mut Memory| placed.walk(1, memory, |_| {}).unwrap_err().to_string();
    memory.write(rows[3], &rows[3].to_le_bytes()[..5]).unwrap();
    assert!(refused(&mut memory).contains("table 't' is broken") && refused(&mut memory).contains("in a circle"));
    memory.write(rows[3], &(rows[3] + 8).to_le_bytes()[..5]).unwrap();
    assert!(refused(&mut memory).contains("there is no row at this address"));
    memory.write(rows[3], &(1_u64 << 39).to_le_bytes()[..5]).unwrap();
    assert!(refused(&mut memory).contains("address 0x8000000000"));
}
