//! Reconnaissance and ranges of the `deterministic` engine: what was found before a plan must hold when it runs, and
//! whatever the plan and the number of workers, results are those of the serial engine, to the bit.

use lockwork_conformance::engines::Random;
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{ConflictPlan, Engine, EngineKind, Interleave, Options, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::schema::{ColumnType, TableSchema};

const PROCEDURES: &[&str] = &[
    "procedure look\ntable places\nparam id: i64\nresult value: i64
     search c0, places, [id]\nret r1, c0\nloadr r2, r1[places.value]\nstore r2, [value]\ncommit",
    "procedure add\ntable places\nparam id: i64\nparam other: i64\nresult value: i64
     update c0, places, [id]\nupdate c1, places, [other]\nret r1, c0\nret r2, c1\nloadr r3, r1[places.value]
     add r3, r3, 1\nstorer r3, r1[places.value]\nloadr r4, r2[places.value]\nadd r4, r4, 1\nstorer r4, r2[places.value]
     store r3, [value]\ncommit",
    // Dependent: the second key stands in the first row, or the third in the second.
    "procedure follow\ntable signs\ntable places\nparam id: i64\nresult value: i64\nscratch to: i64
     search c0, signs, [id]\nret r1, c0\nloadr r2, r1[signs.to]\nstore r2, [to]\nupdate c1, places, [to]\nret r3, c1
     loadr r4, r3[places.value]\nmul r4, r4, 3\nadd r4, r4, 1\nmov r5, 1000003\ndiv r6, r4, r5\nmul r6, r6, r5
     sub r4, r4, r6\nstorer r4, r3[places.value]\nstore r4, [value]\ncommit",
    "procedure follow_twice\ntable signs\ntable places\nparam id: i64\nresult value: i64\nscratch to: i64
     search c0, signs, [id]\nret r1, c0\nloadr r2, r1[signs.to]\nstore r2, [to]\nsearch c1, signs, [to]\nret r3, c1
     loadr r4, r3[signs.to]\nstore r4, [to]\nupdate c2, places, [to]\nret r5, c2\nloadr r6, r5[places.value]
     add r6, r6, 7\nstorer r6, r5[places.value]\nstore r6, [value]\ncommit",
    // Dependent, but of the first row it only asks whether it is there.
    "procedure follow_if\ntable signs\ntable places\nparam id: i64\nresult value: i64
     search c0, signs, [id]\nret c0, none\nupdate c1, places, [id]\nret r3, c1\nloadr r4, r3[places.value]
     add r4, r4, 11\nstorer r4, r3[places.value]\nstore r4, [value]\ncommit\nnone:\nupdate c2, places, [value]
     ret r5, c2\nmov r6, 4\nstorer r6, r5[places.value]\ncommit",
    "procedure raze\ntable signs\nparam id: i64\nremove c0, signs, [id]\nret c0\ncommit",
    "procedure turn\ntable signs\nparam id: i64\nparam to: i64
     update c0, signs, [id]\nret r1, c0\nload r2, [to]\nstorer r2, r1[signs.to]\ncommit",
    // Reads its own write before it goes on: cannot be said without running it.
    "procedure turn_and_follow\ntable signs\ntable places\nparam id: i64\nparam to: i64\nresult value: i64
     scratch at: i64\nupdate c0, signs, [id]\nret r1, c0\nload r2, [to]\nstorer r2, r1[signs.to]\nsearch c1, signs, [id]\nret r3, c1
     loadr r4, r3[signs.to]\nstore r4, [at]\nupdate c2, places, [at]\nret r5, c2\nloadr r6, r5[places.value]
     add r6, r6, 1\nstorer r6, r5[places.value]\nstore r6, [value]\ncommit",
    // Dependent with a cover: the number stands in the row, whose list it is for is an argument.
    "procedure append\ntable places\ntable items\nparam id: i64\nresult at: i64\nscratch list: i64\nscratch number: i64
     load r9, [id]\nstore r9, [list]\nupdate c0, places, [id]\nret r1, c0\nloadr r2, r1[places.count]
     store r2, [number]\nadd r3, r2, 1\nstorer r3, r1[places.count]\ninsert c1, items, [list]\nret r4, c1\nstorer r2, r4[items.value]
     store r2, [at]\ncommit",
    "procedure list\ntable items\nparam id: i64\nparam from: i64\nresult count: i64\nresult found: i64[6]
     scan c0, items.value, [id], [found], 6\nret r1, c0\nstore r1, [count]\ncommit",
    "procedure drop\ntable items\nparam id: i64\nparam number: i64
     remove c0, items, [id]\nret c0\ncommit",
    "procedure put\ntable items\nparam id: i64\nparam number: i64\nresult done: i64
     insert c0, items, [id]\nret r1, c0\nmov r2, 77\nstorer r2, r1[items.value]\nstore r2, [done]\ncommit",
    // Scans for the first item of a list and removes what it has found.
    "procedure take\ntable items\nparam id: i64\nparam from: i64\nresult taken: i64
     scratch first: bytes(24)[1]\nscratch list: i64\nscratch number: i64
     scan c0, items, [id], [first], 1\nret r1, c0\ncmp r1, 1\nbne none\nload.i64 r2, [first]\nstore r2, [list]
     load.i64 r3, [first + 8]\nstore r3, [number]\nremove c1, items, [list]\nret c1
     store r3, [taken]\ncommit\nnone:\nabort 3",
];

/// An engine with `rows` places and signs; sign n says n + 1, place n has no items.
fn prepared(kind: EngineKind, options: Options, rows: i64) -> Box<dyn Engine> {
    let mut engine = create(kind, options.clone()).unwrap();
    let int = ColumnType::I64;
    let schemas = [
        TableSchema::new("places", &[("id", int), ("value", int), ("count", int)], 1, false).unwrap(),
        TableSchema::new("signs", &[("id", int), ("to", int)], 1, false).unwrap(),
        TableSchema::new("items", &[("list", int), ("number", int), ("value", int)], 2, true).unwrap(),
    ];
    for schema in &schemas {
        engine.create_table(schema.clone(), rows as usize).unwrap();
    }
    for source in PROCEDURES {
        engine.register(assemble(source, schemas.as_slice()).unwrap().procedure).unwrap();
    }
    let image = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    for id in 0..rows {
        engine.load("places", &image(&[id, 100, 0])).unwrap();
        engine.load("signs", &image(&[id, (id + 1) % rows])).unwrap();
    }
    engine
}

/// A batch of calls, each a name and two arguments.
fn batch(engine: &dyn Engine, calls: &[(&str, i64, i64)]) -> Batch {
    let mut batch = Batch::new(192, calls.len()).unwrap();
    for (name, first, second) in calls {
        let id = engine.procedure_id(name).unwrap();
        let arguments = engine.procedure(id).unwrap().verified.procedure().layout().arguments_end as usize;
        let mut block = batch.push(id).unwrap();
        let values = [first.to_le_bytes(), second.to_le_bytes()].concat();
        block.bytes()[32..arguments].copy_from_slice(&values[..arguments - 32]);
    }
    batch
}

/// Every plan and several numbers of workers.
fn variants() -> Vec<Options> {
    let mut variants = Vec::new();
    for plan in [ConflictPlan::Graph, ConflictPlan::InOrder, ConflictPlan::Measured] {
        for threads in [1, 2, 3, 8] {
            variants.push(Options { plan, threads, ..Options::default() });
        }
    }
    variants.push(Options {
        plan: ConflictPlan::Graph,
        threads: 2,
        interleave: Interleave::None,
        ..Options::default()
    });
    variants
}

/// Runs batches of calls under every variant and compares them with the serial engine. Returns how often plans of two
/// workers were cut.
fn check(rows: i64, batches: &[Vec<(&str, i64, i64)>]) -> u64 {
    let mut conflicts = 0;
    for options in variants() {
        let mut engine = prepared(EngineKind::DETERMINISTIC, options.clone(), rows);
        let mut oracle = prepared(EngineKind::SERIAL, Options::default(), rows);
        for (number, calls) in batches.iter().enumerate() {
            engine.submit(batch(&*engine, calls)).unwrap();
            let completed = engine.complete().unwrap().unwrap();
            replay(&mut *oracle, &completed.batch, number, engine.serial_order())
                .unwrap_or_else(|error| panic!("{options:?}: {error}"));
            if (options.plan, options.threads) == (ConflictPlan::Graph, 2) && options.interleave != Interleave::None {
                conflicts += completed.report.tally.conflicts.total();
            }
        }
        compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{options:?}: {error}"));
    }
    conflicts
}

/// Calls that write elsewhere, so that a batch is long enough for a team and has more than readers.
fn filler(from: i64) -> Vec<(&'static str, i64, i64)> {
    (0..100).map(|number| ("add", from + 2 * number, from + 2 * number + 1)).collect()
}

#[test]
fn what_an_earlier_transaction_redirects_is_found_again() {
    let mut calls = filler(100);
    calls.insert(20, ("turn", 5, 50));
    calls.insert(60, ("follow", 5, 0));
    assert_eq!(check(400, &[calls.clone()]), 1);
    // Two hops, of which the second is redirected; and once more behind the first cut.
    calls.insert(70, ("turn", 9, 60));
    calls.insert(80, ("follow_twice", 8, 0));
    assert_eq!(check(400, &[calls]), 2);
}

#[test]
fn who_redirects_later_or_elsewhere_disturbs_nobody() {
    let mut calls = filler(100);
    calls.insert(10, ("turn", 7, 50));
    calls.insert(20, ("follow", 5, 0));
    calls.insert(21, ("follow", 5, 0));
    calls.insert(60, ("turn", 5, 50));
    assert_eq!(check(400, &[calls]), 0);
}

#[test]
fn who_asks_only_whether_a_row_is_there_minds_no_change_of_it() {
    let mut calls = filler(100);
    calls.insert(10, ("turn", 5, 50));
    calls.insert(20, ("follow_if", 5, 0));
    assert_eq!(check(400, &[calls.clone()]), 0);
    calls.insert(15, ("raze", 5, 0));
    calls.insert(30, ("follow_if", 5, 0));
    assert_eq!(check(400, &[calls]), 1);
}

#[test]
fn one_that_meets_its_own_effects_runs_alone() {
    let mut calls = filler(100);
    calls.insert(20, ("follow", 5, 0));
    calls.insert(30, ("turn_and_follow", 5, 50));
    calls.insert(40, ("follow", 5, 0));
    assert!(check(400, &[calls]) > 0);
}

#[test]
fn a_scan_sees_what_was_inserted_before_it_and_not_behind_it() {
    let mut calls = filler(100);
    calls.extend([("put", 5, 1), ("put", 5, 9), ("put", 6, 2)]);
    let mut again = filler(100);
    again.insert(10, ("list", 5, 0));
    again.insert(20, ("put", 5, 3));
    again.insert(30, ("list", 5, 0));
    again.insert(31, ("list", 5, 4));
    again.insert(40, ("put", 5, 7));
    // Insertions make a scan shorter than it was planned: nothing is found again.
    assert_eq!(check(400, &[calls, again.clone()]), 0);
    // A removal would make it longer.
    again.insert(25, ("drop", 5, 9));
    let mut calls = filler(100);
    calls.extend((0..12).map(|number| ("put", 5, number)));
    assert!(check(400, &[calls, again]) > 0);
}

#[test]
fn a_dependent_scan_is_found_again_when_its_range_has_changed() {
    let mut calls = filler(100);
    calls.extend((0..12).map(|number| ("put", 5, 10 + number)));
    let mut again = filler(100);
    again.insert(10, ("take", 5, 0));
    again.insert(20, ("take", 5, 0));
    again.insert(30, ("put", 5, 1));
    again.insert(40, ("take", 5, 0));
    assert!(check(400, &[calls, again]) >= 2);
}

#[test]
fn what_a_cover_says_is_enough() {
    let engine = prepared(EngineKind::DETERMINISTIC, Options::default(), 10);
    let covered = |name: &str| {
        let registered = engine.procedure(engine.procedure_id(name).unwrap()).unwrap();
        assert!(registered.traits.dependent, "{name}");
        registered.cover.is_some()
    };
    assert!(covered("append") && !covered("follow") && !covered("take"));
    // Appends to one list follow each other; nothing is found, so nothing is found again.
    let mut calls = filler(100);
    for number in 0..40 {
        calls.insert(2 * number, ("append", number as i64 % 3, 0));
    }
    calls.insert(50, ("list", 1, 0));
    calls.insert(60, ("put", 2, 1_000));
    assert_eq!(check(400, &[calls.clone()]), 0);
    calls.insert(70, ("drop", 1, 2));
    calls.insert(77, ("list", 1, 0));
    assert!(check(400, &[calls]) > 0);
}

#[test]
fn random_batches_are_equivalent_to_batch_order_under_every_plan() {
    let common = ["follow", "follow_twice", "follow_if", "look", "add", "append", "list", "put"];
    let rare = ["raze", "turn", "turn_and_follow", "drop", "take"];
    for (seed, rows, one_in) in [(1, 12, 4), (2, 300, 20), (3, 300, 200), (4, 3_000, 400)] {
        let mut random = Random(seed);
        let mut call = |_| {
            let names: &[&str] = if random.below(one_in) == 0 { &rare } else { &common };
            let name = names[random.below(names.len() as u64) as usize];
            (name, random.below(rows) as i64, random.below(rows.min(40)) as i64)
        };
        let batches: Vec<Vec<_>> = [700, 1, 90, 2_500].iter().map(|&size| (0..size).map(&mut call).collect()).collect();
        check(rows as i64, &batches);
    }
}

#[test]
fn calls_that_commit_are_most_of_a_random_batch() {
    let mut engine = prepared(EngineKind::SERIAL, Options::default(), 300);
    let calls: Vec<_> =
        (0..500).map(|number| (["follow", "append", "take"][number % 3], number as i64 % 40, 0)).collect();
    engine.submit(batch(&*engine, &calls)).unwrap();
    let completed = engine.complete().unwrap().unwrap();
    let committed = completed.batch.blocks().filter(|block| block.status() == Some(Status::Committed)).count();
    assert!(committed > 400, "{committed}");
}
