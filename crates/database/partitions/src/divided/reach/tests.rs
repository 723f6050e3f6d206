//! Whom a call concerns is held against what its procedure uses when it runs.

use lockwork_conformance::engines::{PROCEDURES, Random, accounts};
use lockwork_conformance::procedures::{self as random_procedures, schemas};
use lockwork_engine::registry::Registry;
use lockwork_memory::Pages;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_storage::Database;

use super::*;
use crate::access::Access as Used;
use crate::fetch::{LocalPartition, Windows, fetched};
use crate::layout::Layout;

/// Tables with a few rows, procedures, and what is known of them.
struct World {
    database: Database,
    registry: Registry,
    windows: Windows,
    layout: Layout,
}

impl World {
    fn new(database: Database, registry: Registry) -> Self {
        let mut windows = Windows::default();
        windows.widen(registry.widest_windows());
        // One worker, who has everything.
        let layout = Layout::new(&database, &registry, vec![Vec::new(); database.len()], 1, 1 << 30);
        Self { database, registry, windows, layout }
    }

    fn spreads(&self) -> Vec<Spread> {
        (0..self.database.len()).map(|id| Spread::of(self.database.table(id as u16).schema())).collect()
    }

    fn reaches(&self, parts: usize) -> Vec<Reach> {
        let all = (0..self.registry.all().len() as u32).filter_map(|id| self.registry.get(id));
        all.map(|registered| Reach::new(registered.clone(), &self.spreads(), parts)).collect()
    }

    /// What a call uses.
    fn uses(&mut self, procedure: u32, block: &[u8]) -> Vec<Used> {
        let registered = self.registry.get(procedure).unwrap().clone();
        let end = registered.arguments_end;
        let mut words = vec![0_u64; registered.block_bytes.div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(block[..end].chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        let mut used = Vec::new();
        loop {
            // SAFETY: the block is as long as the procedure's.
            let (_, lacks) = unsafe { self.windows.attempt(&registered, words.as_mut_ptr().cast(), &mut used) };
            if !lacks.fetch {
                return used;
            }
            let here = LocalPartition { layout: &self.layout, database: &self.database, me: 0 };
            used.iter_mut().filter(|access| !access.fetched).for_each(|access| here.copy(access));
            fetched(&mut used);
        }
    }

    /// Holds all calls of a batch, and counts those of which arguments tell, those of several parts, and those of one.
    fn hold(&mut self, batch: &Batch, parts: usize) -> [usize; 3] {
        let (reaches, spreads, mut scratch) = (self.reaches(parts), self.spreads(), Scratch::default());
        let mut counts = [0; 3];
        for (number, block) in batch.blocks().enumerate() {
            let (procedure, stamp) = (block.procedure(), 1000 + number as u64);
            let reach = &reaches[procedure as usize];
            let end = reach.registered.arguments_end;
            let arguments = &block.bytes()[HEADER..end];
            let told = reach.of_block(block.bytes(), stamp, &mut scratch);
            let calls = Calls { procedure, stamp, count: 1, arguments };
            let mut chosen = 0_u64;
            for part in 0..parts {
                let mut places = Vec::new();
                reach.choose(&calls, part, &mut scratch, &mut places);
                assert!(places.len() <= 1);
                chosen |= (places.len() as u64) << part;
            }
            let everybody = u64::MAX >> (64 - parts);
            let Some(told) = told else {
                assert_eq!(chosen, everybody);
                continue;
            };
            assert_eq!(chosen, told.all, "it is the same in a log and in a block");
            assert!(told.active != 0 && told.active & !told.all == 0 && told.all & !everybody == 0);
            counts[0] += 1;
            counts[if told.all.is_power_of_two() { 2 } else { 1 }] += 1;
            for used in self.uses(procedure, block.bytes()) {
                assert!(used.scan.is_none(), "a range may be everybody's");
                let Some(owner) = spreads[usize::from(used.table)].owner(&used.key, parts) else { continue };
                let among = |set: u64| set & 1 << owner != 0;
                assert!(among(told.all) && (!used.write || among(told.active)), "{procedure}: {told:?}, {used:?}");
            }
        }
        counts
    }
}

#[test]
fn whoever_has_a_row_that_a_random_procedure_uses_is_concerned() {
    let mut total = [0; 3];
    for seed in 0..12 {
        let mut database = Database::new(Pages::Plain);
        for (number, schema) in schemas().into_iter().enumerate() {
            let (name, bytes) = (schema.name().to_string(), (schema.row_bytes() - ROW_HEADER_BYTES) as usize);
            database.create_table(schema, 4).unwrap();
            for row in 0..5_u8 {
                let mut image = vec![row.wrapping_mul(37); bytes];
                let key = random_procedures::key(number, row);
                image[..key.len()].copy_from_slice(&key);
                database.load(&name, &image).unwrap();
            }
        }
        let mut registry = Registry::default();
        for procedure in random_procedures::procedures(20 * seed..20 * seed + 20) {
            registry.register(procedure, &database).unwrap();
        }
        let stride = registry.all().map(|registered| registered.block_bytes).max().unwrap();
        let count = registry.all().len();
        let mut world = World::new(database, registry);
        for parts in [1, 2, 3, 5, 8, 64] {
            let batch = random_procedures::calls(count, 200, stride as u32, &mut Random(seed));
            let counts = world.hold(&batch, parts);
            (0..3).for_each(|at| total[at] += counts[at]);
        }
    }
    assert!(total.iter().all(|&count| count > 300), "{total:?}");
}

#[test]
fn whoever_has_an_account_that_a_procedure_uses_is_concerned() {
    let mut database = Database::new(Pages::Plain);
    let schema = accounts(true);
    database.create_table(schema.clone(), 64).unwrap();
    for id in 0..24_i64 {
        let next = (id * 7 + 3) % 24;
        database
            .load(
                "accounts",
                &[&id.to_le_bytes()[..], &[100, 0, 0, 0, 0, 0, 0, 0], &next.to_le_bytes(), &[7; 16]].concat(),
            )
            .unwrap();
    }
    let (mut registry, catalog) = (Registry::default(), [schema]);
    for source in PROCEDURES {
        registry.register(assemble(source, catalog.as_slice()).unwrap().procedure, &database).unwrap();
    }
    let stride = registry.all().map(|registered| registered.block_bytes).max().unwrap();
    let (mut world, mut random, mut total) = (World::new(database, registry), Random(3), [0; 3]);
    for parts in [2, 3, 5] {
        let mut batch = Batch::new(stride as u32, 2000).unwrap();
        for _ in 0..2000 {
            let mut block = batch.push(random.below(PROCEDURES.len() as u64) as u32).unwrap();
            for at in 0..3 {
                let id = random.below(30) as i64 - 3;
                block.bytes()[32 + 8 * at..40 + 8 * at].copy_from_slice(&id.to_le_bytes());
            }
        }
        let counts = world.hold(&batch, parts);
        (0..3).for_each(|at| total[at] += counts[at]);
    }
    assert!(total.iter().all(|&count| count > 500), "{total:?}");
}

/// One row of a table with this key, by an argument; nothing else.
fn looks(columns: &[(&str, ColumnType)], by: &str) -> (Database, Registry) {
    let schema = TableSchema::new("t", columns, 1, false).unwrap();
    let schema = if by == "replicated" { schema.replicate() } else { schema.partition_by_hash(by).unwrap() };
    let mut database = Database::new(Pages::Plain);
    let source = format!("procedure look\ntable t\nparam id: {}\nsearch c0, t, [id]\nret r1, c0\ncommit", columns[0].1);
    let procedure = assemble(&source, [schema.clone()].as_slice()).unwrap().procedure;
    database.create_table(schema, 4).unwrap();
    let mut registry = Registry::default();
    registry.register(procedure, &database).unwrap();
    (database, registry)
}

#[test]
fn integers_of_all_widths_lead_where_their_keys_do() {
    use ColumnType::{Bytes, Char, I8, I16, I32, I64, U8, U16, U32};
    for column in [I8, U8, I16, U16, I32, U32, I64, Char(5), Bytes(9)] {
        let (database, registry) = looks(&[("id", column), ("v", I64)], "id");
        let world = World::new(database, registry);
        let (format, spread) = (world.database.table(0).key_format().clone(), world.spreads()[0]);
        let mut random = Random(9);
        for parts in [1, 2, 3, 7, 16, 64] {
            let reach = &world.reaches(parts)[0];
            for _ in 0..200 {
                let mut image = [random.below(u64::MAX).to_le_bytes(), random.below(u64::MAX).to_le_bytes()].concat();
                image.truncate(column.width() as usize);
                let calls = Calls { procedure: 0, stamp: 1, count: 1, arguments: &image };
                let owner = spread.owner(&format.encode(&image), parts).unwrap();
                for part in 0..parts {
                    let mut chosen = Vec::new();
                    reach.choose(&calls, part, &mut Scratch::default(), &mut chosen);
                    assert_eq!(chosen.len(), usize::from(part == owner), "{column:?}, {parts} parts");
                }
            }
        }
    }
}

#[test]
fn what_everybody_has_is_read_by_whose_turn_it_is() {
    let (database, registry) = looks(&[("id", ColumnType::I64), ("v", ColumnType::I64)], "replicated");
    let world = World::new(database, registry);
    let reach = &world.reaches(3)[0];
    let arguments = [5_i64.to_le_bytes(), 6_i64.to_le_bytes(), 7_i64.to_le_bytes(), 5_i64.to_le_bytes()].concat();
    let calls = Calls { procedure: 0, stamp: 3 << 20 | 1, count: 4, arguments: &arguments };
    let mut seen = [0; 4];
    for part in 0..3 {
        let mut chosen = Vec::new();
        reach.choose(&calls, part, &mut Scratch::default(), &mut chosen);
        for at in chosen {
            assert_eq!(turn(calls.stamp + u64::from(at), 3), part);
            seen[at as usize] += 1;
        }
    }
    assert_eq!(seen, [1; 4]);
}
