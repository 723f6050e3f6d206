//! With any number of worker processes, the engine is equivalent to its serial order: what every engine passes.

#[path = "common/network.rs"]
mod network;

use lockwork_conformance::engines::{MIXES, Random, check, fill, prepared};
use lockwork_engine::{EngineKind, Interleave, Options, Tally};
use lockwork_procedure::block::Batch;
use network::{KINDS, make};

fn every_mix(kind: EngineKind, threads: usize) {
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        let wide = Options { threads, ..Options::default() };
        // One transaction at a time in each process, a few, and many.
        let narrow =
            if number % 2 == 0 { Options { interleave: Interleave::None, ..wide.clone() } } else { wide.clone() };
        for (seed, options) in [narrow, Options { window: 1, ..wide.clone() }, wide].into_iter().enumerate() {
            let what = format!("{kind}, {threads} workers, window {}, {:?}", options.window, options.interleave);
            check(&what, &|| make(kind, options.clone()), names, *ordered, (seed * 100 + number) as u64);
        }
    }
}

#[test]
fn one_process_is_equivalent_to_stamp_order() {
    KINDS.iter().copied().for_each(|kind| every_mix(kind, 1));
}

#[test]
fn two_processes_are_equivalent_to_stamp_order() {
    KINDS.iter().copied().for_each(|kind| every_mix(kind, 2));
}

#[test]
fn four_processes_are_equivalent_to_stamp_order() {
    KINDS.iter().copied().for_each(|kind| every_mix(kind, 4));
}

#[test]
fn a_block_that_cannot_be_executed_fails_alone() {
    for &kind in KINDS {
        let mut engine = prepared(&|| make(kind, Options { threads: 2, ..Options::default() }), false);
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
fn a_report_counts_its_own_batch_and_rows_may_come_between_batches() {
    for &kind in KINDS {
        let mut engine = prepared(&|| make(kind, Options { threads: 3, ..Options::default() }), true);
        let mut random = Random(5);
        for size in [1, 700, 64] {
            let batch = fill(&*engine, &mut random, MIXES[13].0, size);
            engine.submit(batch).unwrap();
            let completed = engine.complete().unwrap().unwrap();
            let tally = completed.report.tally;
            let seen = Tally { conflicts: tally.conflicts.clone(), ..Tally::of(&completed.batch) };
            assert_eq!((tally.transactions(), &tally), (size as u64, &seen));
            let before = engine.digest().unwrap();
            let mut image = vec![0; 40];
            image[..8].copy_from_slice(&(1000 + size as i64).to_le_bytes());
            engine.load("accounts", &image).unwrap();
            assert_ne!(engine.digest().unwrap(), before);
        }
    }
}
