//! Every engine, with every number of threads, policy and way of interleaving, is equivalent to its serial order:
//! replayed one after the other in that order, every call ends the same, answers the same, and leaves the same
//! database.

use lockwork_conformance::engines::{MIXES, Random, check, check_replaced, fill, prepared};
use lockwork_engine::contract::MAX_PROCEDURES;
use lockwork_engine::{ConflictPlan, EngineError, EngineKind, Interleave, LockPolicy, Options, Tally, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::TableSchema;

fn check_all(kind: EngineKind, variants: &[Options]) {
    for options in variants {
        for threads in [1, 2, 3] {
            for (number, (names, ordered)) in MIXES.iter().enumerate() {
                for seed in 0..2 {
                    let options = Options { threads, ..options.clone() };
                    let what = format!("{kind} {options:?}");
                    check(&what, &|| create(kind, options.clone()), names, *ordered, seed * 100 + number as u64);
                }
            }
        }
    }
}

fn interleaving() -> Vec<Options> {
    let none = Options { interleave: Interleave::None, ..Options::default() };
    let group = |window| Options { interleave: Interleave::Batch, window, ..Options::default() };
    let narrow = Options { window: 1, ..Options::default() };
    vec![none, group(1), group(16), narrow, Options { window: 7, ..Options::default() }, Options::default()]
}

#[test]
fn serial_is_its_own_replay() {
    check_all(EngineKind::SERIAL, &[Options::default()]);
}

#[test]
fn deterministic_is_equivalent_to_batch_order() {
    let graph = |options| Options { plan: ConflictPlan::Graph, ..options };
    check_all(EngineKind::DETERMINISTIC, &interleaving().into_iter().map(graph).collect::<Vec<_>>());
    check_all(EngineKind::DETERMINISTIC, &[Options::default()]);
}

#[test]
fn deterministic_queue_is_equivalent_to_batch_order() {
    check_all(EngineKind::DETERMINISTIC_QUEUE, &[Options::default()]);
    // So many workers that the scheduler does most of the work.
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        let options = Options { threads: 40, ..Options::default() };
        let kind = EngineKind::DETERMINISTIC_QUEUE;
        check(kind.name(), &|| create(kind, options.clone()), names, *ordered, number as u64);
    }
}

#[test]
fn two_phase_is_equivalent_to_stamp_order_under_every_policy() {
    for policy in [LockPolicy::NoWait, LockPolicy::WaitDie, LockPolicy::Ordered] {
        let variants: Vec<Options> = interleaving().into_iter().map(|options| Options { policy, ..options }).collect();
        check_all(EngineKind::TWO_PHASE, &variants);
    }
}

#[test]
fn timestamp_is_equivalent_to_stamp_order() {
    check_all(EngineKind::TIMESTAMP, &interleaving());
}

#[test]
fn optimistic_is_equivalent_to_stamp_order() {
    check_all(EngineKind::OPTIMISTIC, &interleaving());
}

#[test]
fn engines_that_promise_batch_order_agree_to_the_bit() {
    let digests: Vec<_> = [EngineKind::SERIAL, EngineKind::DETERMINISTIC_QUEUE, EngineKind::DETERMINISTIC]
        .into_iter()
        .map(|kind| {
            let mut engine = prepared(&|| create(kind, Options { threads: 2, ..Options::default() }), true);
            let mut random = Random(42);
            for _ in 0..5 {
                let batch = fill(&*engine, &mut random, MIXES[10].0, 1_000);
                engine.submit(batch).unwrap();
                engine.complete().unwrap().unwrap();
            }
            engine.digest().unwrap()
        })
        .collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

#[test]
fn a_procedure_takes_the_place_of_another_one() {
    for &kind in EngineKind::CPU {
        for threads in [1, 3] {
            let options = Options { threads, ..Options::default() };
            check_replaced(&format!("{kind} {options:?}"), &|| create(kind, options.clone()));
        }
    }
}

#[test]
fn there_is_a_last_procedure() {
    let mut engine = create(EngineKind::SERIAL, Options::default()).unwrap();
    let none: &[TableSchema] = &[];
    let procedure =
        assemble("procedure p\nresult one: i64\nmov r1, 1\nstore r1, [one]\ncommit", none).unwrap().procedure;
    for number in 0..MAX_PROCEDURES {
        engine.register(Procedure { name: format!("p{number}"), ..procedure.clone() }).unwrap();
    }
    let refused = engine.register(Procedure { name: "more".into(), ..procedure.clone() }).unwrap_err();
    assert!(refused.to_string().contains("'more' was not registered"), "{refused}");
    assert_eq!(engine.procedure_id("more"), None);
    let other = |name: &str| Procedure { name: name.into(), ..procedure.clone() };
    engine.replace(7, other("more")).unwrap();
    assert_eq!((engine.procedure_id("more"), engine.procedure_id("p7")), (Some(7), None));
    let absent = engine.replace(MAX_PROCEDURES as u32, other("another")).unwrap_err();
    assert!(matches!(absent, EngineError::UnknownProcedure(id) if id as usize == MAX_PROCEDURES), "{absent}");
}

#[test]
fn a_block_that_cannot_be_executed_fails_alone() {
    for &kind in EngineKind::CPU {
        let mut engine = prepared(&|| create(kind, Options { threads: 2, ..Options::default() }), false);
        let mut batch = Batch::new(64, 200).unwrap();
        for number in 0..200_u32 {
            let id = if number % 3 == 0 { 999 } else { engine.procedure_id("look").unwrap() };
            batch.push(id).unwrap();
        }
        engine.submit(batch).unwrap();
        let tally = engine.complete().unwrap().unwrap().report.tally;
        assert_eq!((tally.committed, tally.failed.values().sum::<u64>()), (133, 67), "{kind}");
    }
}

#[test]
fn a_report_counts_its_own_batch_and_no_other() {
    for &kind in EngineKind::CPU {
        for threads in [1, 2, 3] {
            let options = Options { threads, ..Options::default() };
            let mut engine = prepared(&|| create(kind, options.clone()), true);
            let mut random = Random(5);
            // A small batch that finds the engine idle involves one worker, whatever the others did before.
            for size in [2_000, 1, 64, 700, 3, 65] {
                let batch = fill(&*engine, &mut random, MIXES[13].0, size);
                engine.submit(batch).unwrap();
                let completed = engine.complete().unwrap().unwrap();
                let tally = completed.report.tally;
                let seen = Tally { conflicts: tally.conflicts.clone(), ..Tally::of(&completed.batch) };
                assert_eq!((tally.transactions(), &tally), (size as u64, &seen), "{kind}, {threads} threads");
            }
        }
    }
}
