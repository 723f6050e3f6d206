//! Serial equivalence as a suite for every engine: mixes of procedures that lead to every plan and every conflict, on
//! few keys, some of them absent. Each call must end as in the engine's serial order replayed one after the other,
//! answer the same, and leave the same database.
//!
//! The tests of the engine crate run it on the CPU engines, those of other back ends on theirs.

use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};
pub use lockwork_random::Random;

use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineError, EngineKind, Options, create};

/// Procedures of every kind, on one table of accounts.
pub const PROCEDURES: &[&str] = &[
    // 0: one read
    "procedure look\ntable accounts\nparam id: i64\nresult balance: i64
     search c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balance]\nstore r2, [balance]\ncommit",
    // 1: one write
    "procedure deposit\ntable accounts\nparam id: i64\nparam amount: i64\nresult balance: i64
     update c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balance]\nload r3, [amount]\nadd r2, r2, r3
     storer r2, r1[accounts.balance]\nstore r2, [balance]\ncommit",
    // 2: two writes, may abort
    "procedure transfer\ntable accounts\nparam id: i64\nparam other: i64\nparam amount: i64\nresult left: i64
     update c0, accounts, [id]\nupdate c1, accounts, [other]\nret r1, c0\nret r2, c1
     loadr r3, r1[accounts.balance]\nload r4, [amount]\ncmp r3, r4\nbl poor\nsub r3, r3, r4
     storer r3, r1[accounts.balance]\nloadr r5, r2[accounts.balance]\nadd r5, r5, r4
     storer r5, r2[accounts.balance]\nstore r3, [left]\ncommit\npoor:\nabort 1",
    // 3: separable: two blind writes and a read
    "procedure paint\ntable accounts\nparam id: i64\nparam other: i64\nparam third: i64\nparam colour: bytes(16)\nresult seen: bytes(16)
     update c0, accounts, [id]\nupdate c1, accounts, [other]\nsearch c2, accounts, [third]\nret r1, c0\nret r2, c1\nret r3, c2
     copy r1[accounts.colour], [colour]\ncopy r2[accounts.colour], [colour]\ncopy [seen], r3[accounts.colour]\ncommit",
    // 4: writes first, then looks for a row that may be missing: the write is taken back
    "procedure hasty\ntable accounts\nparam id: i64\nparam other: i64\nresult seen: i64
     update c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balance]\nadd r2, r2, 7\nstorer r2, r1[accounts.balance]
     search c1, accounts, [other]\nret r3, c1\nloadr r4, r3[accounts.balance]\nstore r4, [seen]\ncommit
     on abort:\nmov r1, -1\nstore r1, [seen]\ncommit",
    // 5: dependent: follows a reference
    "procedure follow\ntable accounts\nparam id: i64\nresult balance: i64\nscratch next: i64
     search c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.next]\nstore r2, [next]
     update c1, accounts, [next]\nret r3, c1, gone\nloadr r4, r3[accounts.balance]\nadd r4, r4, 1
     storer r4, r3[accounts.balance]\nstore r4, [balance]\ncommit\ngone:\nabort 9",
    // 6: inserts
    "procedure open\ntable accounts\nparam id: i64\nparam balance: i64\nresult fresh: i64
     insert c0, accounts, [id]\nret r1, c0\nload r2, [balance]\nstorer r2, r1[accounts.balance]\nstore r2, [fresh]\ncommit",
    // 7: removes
    "procedure close\ntable accounts\nparam id: i64\nresult zero: i64
     remove c0, accounts, [id]\nret c0\ncommit",
    // 8: removes and inserts again in one go
    "procedure swap\ntable accounts\nparam id: i64\nparam other: i64\nresult seen: i64
     remove c0, accounts, [id]\nret c0\ninsert c1, accounts, [other]\nret r1, c1\nmov r2, 5
     storer r2, r1[accounts.balance]\nstore r2, [seen]\ncommit",
    // 9: scans
    "procedure range\ntable accounts\nparam id: i64\nresult count: i64\nresult found: i64[8]
     scan c0, accounts.balance, [id], [found], 8\nret r1, c0\nstore r1, [count]\ncommit",
    // 10: scans and then writes what is next to it
    "procedure tally\ntable accounts\nparam id: i64\nparam other: i64\nresult count: i64\nresult found: i64[4]
     scan c0, accounts.id, [id], [found], 4\nupdate c1, accounts, [other]\nret r1, c0\nret r2, c1
     loadr r3, r2[accounts.balance]\nadd r3, r3, r1\nstorer r3, r2[accounts.balance]\nstore r1, [count]\ncommit",
    // 11: a loop over computed keys
    "procedure sweep\ntable accounts\nparam id: i64\nresult sum: i64\nscratch key: i64
     load r1, [id]\nmov r2, 0\nmov r5, 0\nagain:\nadd r3, r1, r2\nstore r3, [key]\nsearch c0, accounts, [key]\nret r4, c0, skip
     loadr r6, r4[accounts.balance]\nadd r5, r5, r6\nskip:\nadd r2, r2, 1\ncmp r2, 4\nbl again\nstore r5, [sum]\ncommit",
    // 12: copies only, at a place that the arguments choose and that may be none
    "procedure dab\ntable accounts\nparam id: i64\nparam other: i64\nparam part: u8\nparam colour: bytes(8)\nresult seen: bytes(8)
     load r3, [part]\ncheck r3, 2\nmul r3, r3, 8\nupdate c0, accounts, [id]\nsearch c1, accounts, [other]\nret r1, c0\nret r2, c1
     copy r1[accounts.colour + r3], [colour], 8\ncopy [seen], r2[accounts.colour + r3], 8\ncommit",
];

/// The table of [`PROCEDURES`].
///
/// # Panics
/// Never.
#[must_use]
pub fn accounts(ordered: bool) -> TableSchema {
    let columns = [
        ("id", ColumnType::I64),
        ("balance", ColumnType::I64),
        ("next", ColumnType::I64),
        ("colour", ColumnType::Bytes(16)),
    ];
    let schema = TableSchema::new("accounts", &columns, 1, ordered).expect("a sound schema");
    schema.partition_by_hash("id").expect("the key is a column")
}

/// Keys are below this; even ones exist at first.
pub const ROWS: u64 = 24;

/// Makes an empty engine.
pub type Make<'a> = &'a dyn Fn() -> Result<Box<dyn Engine>, EngineError>;

/// An engine with the accounts and all procedures; those that scan need an ordered table.
///
/// # Panics
/// When the engine refuses.
#[must_use]
pub fn prepared(make: Make<'_>, ordered: bool) -> Box<dyn Engine> {
    let mut engine = make().unwrap();
    define(&mut *engine, ordered);
    for id in (0..ROWS).step_by(2) {
        let mut image = Vec::new();
        image.extend((id as i64).to_le_bytes());
        image.extend(100_i64.to_le_bytes());
        image.extend((((id * 7 + 3) % ROWS) as i64).to_le_bytes());
        image.extend([id as u8; 16]);
        engine.load("accounts", &image).unwrap();
    }
    engine
}

/// Gives an empty engine the table and all procedures, and no rows.
///
/// # Panics
/// When the engine refuses.
pub fn define(engine: &mut dyn Engine, ordered: bool) {
    let schema = accounts(ordered);
    let catalog = [schema.clone()];
    engine.create_table(schema, 4).unwrap();
    for source in PROCEDURES {
        let scans = source.contains("scan c0");
        if !scans || ordered {
            engine.register(assemble(source, catalog.as_slice()).unwrap().procedure).unwrap();
        }
    }
}

/// A batch of calls of procedures drawn from `names`, with random arguments.
///
/// # Panics
/// When a procedure is not registered.
pub fn fill(engine: &dyn Engine, random: &mut Random, names: &[&str], blocks: usize) -> Batch {
    let mut batch = Batch::new(256, blocks).unwrap();
    for _ in 0..blocks {
        let name = names[random.below(names.len() as u64) as usize];
        let id = engine.procedure_id(name).unwrap();
        let arguments_end = engine.procedure(id).unwrap().verified.procedure().layout().arguments_end as usize;
        let mut block = batch.push(id).unwrap();
        let bytes = block.bytes();
        // Few keys, some of them absent: conflicts of every kind.
        let keys: Vec<i64> = (0..3).map(|_| random.below(ROWS) as i64).collect();
        for (number, key) in keys.iter().enumerate() {
            bytes[32 + number * 8..40 + number * 8].copy_from_slice(&key.to_le_bytes());
        }
        if matches!(name, "deposit" | "open") {
            bytes[40..48].copy_from_slice(&(random.below(50) as i64).to_le_bytes());
        }
        if name == "transfer" {
            bytes[48..56].copy_from_slice(&(random.below(150) as i64).to_le_bytes());
        }
        if name == "paint" {
            let colour = random.below(256) as u8;
            bytes[56..72].fill(colour);
        }
        if name == "dab" {
            bytes[48] = random.below(3) as u8;
            bytes[49..57].fill(random.below(256) as u8);
        }
        bytes[arguments_end..].fill(0);
    }
    batch
}

/// Runs batches of calls of `names` and compares them with serial replay.
///
/// # Panics
/// At the first difference; `what` is in the text.
pub fn check(what: &str, make: Make<'_>, names: &[&str], ordered: bool, seed: u64) {
    let engine = prepared(make, ordered);
    check_prepared(what, engine, names, ordered, seed);
}

/// As [`check`], on an engine that is [`prepared`] and has run nothing; returns it.
///
/// # Panics
/// As [`check`].
pub fn check_prepared(
    what: &str,
    mut engine: Box<dyn Engine>,
    names: &[&str],
    ordered: bool,
    seed: u64,
) -> Box<dyn Engine> {
    let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), ordered);
    let mut random = Random(seed);
    let sizes = [1, 3, 70, 500, 2_000, 65, 700];
    // All batches are submitted before the first is completed, so submitting overlaps with running.
    for &size in &sizes {
        let batch = fill(&*engine, &mut random, names, size);
        engine.submit(batch).unwrap_or_else(|refused| panic!("{what}: {refused}"));
    }
    for (number, &size) in sizes.iter().enumerate() {
        let completed = engine.complete().unwrap().unwrap();
        assert_eq!(completed.batch.len(), size);
        assert_eq!(completed.report.tally.transactions(), size as u64);
        let same = replay(&mut *oracle, &completed.batch, number, engine.serial_order());
        same.unwrap_or_else(|error| panic!("{what} {names:?} seed {seed}: {error}"));
    }
    assert!(engine.complete().unwrap().is_none());
    compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{what} {names:?} seed {seed}: {error}"));
    engine
}

/// Puts other procedures in the place of two, one of them with a longer block, and compares calls before and after with
/// serial replay.
///
/// # Panics
/// At the first difference; `what` is in the text.
pub fn check_replaced(what: &str, make: Make<'_>) {
    let mut engine = prepared(make, false);
    let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), false);
    let names = ["look", "deposit", "transfer"];
    let mut random = Random(1);
    let mut calls = |engine: &mut dyn Engine, oracle: &mut dyn Engine| {
        for (number, size) in [200, 1].into_iter().enumerate() {
            let batch = fill(engine, &mut random, &names, size);
            engine.submit(batch).unwrap_or_else(|refused| panic!("{what}: {refused}"));
            let batch = engine.complete().unwrap().unwrap().batch;
            let same = replay(oracle, &batch, number, engine.serial_order());
            same.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        compare_digests(engine, oracle).unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    calls(&mut *engine, &mut *oracle);
    let catalog = [accounts(false)];
    // What `hasty` and `sweep` do, under the names and ids of others.
    for (old, new) in [("look", 4), ("transfer", 11)] {
        let procedure = assemble(PROCEDURES[new], catalog.as_slice()).unwrap().procedure;
        let id = engine.procedure_id(old).unwrap();
        for engine in [&mut *engine, &mut *oracle] {
            let taken = engine.replace(id, procedure.clone()).unwrap_err();
            assert!(matches!(taken, EngineError::DuplicateProcedure(_)), "{what}: {taken}");
            let procedure = Procedure { name: old.into(), ..procedure.clone() };
            engine.replace(id, procedure).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(engine.procedure_id(old), Some(id), "{what}");
        }
        calls(&mut *engine, &mut *oracle);
    }
}

/// Mixes that lead to every plan of every engine.
pub const MIXES: &[(&[&str], bool)] = &[
    (&["look"], false),
    (&["look", "deposit"], false),
    (&["look", "deposit", "open", "close"], false),
    (&["paint"], false),
    (&["paint", "look", "deposit"], false),
    (&["dab"], false),
    (&["dab", "look", "deposit", "paint"], false),
    (&["dab", "open", "close"], false),
    (&["transfer", "look"], false),
    (&["transfer", "hasty", "paint", "sweep"], false),
    (&["transfer", "open", "close", "swap", "paint", "sweep", "hasty"], false),
    (&["follow", "transfer", "open", "close", "deposit"], false),
    (&["range", "deposit", "open", "close"], true),
    (&["range", "tally", "transfer", "open", "close", "swap", "follow", "sweep", "look", "paint", "hasty"], true),
];
