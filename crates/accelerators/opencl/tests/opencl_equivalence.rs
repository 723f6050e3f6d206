//! The OpenCL engines are equivalent to their serial order, on the suite that every engine runs.
//!
//! Needs an OpenCL device (`make verify` installs PoCL).

use lockwork_conformance::engines::{MIXES, Random, check, check_replaced, fill, prepared};
use lockwork_engine::{EngineKind, Options, create};

fn check_all(kind: EngineKind) {
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        for seed in 0..2 {
            let make = || create(kind, Options::default());
            check(kind.name(), &make, names, *ordered, seed * 100 + number as u64);
        }
    }
}

#[test]
fn opencl_deterministic_is_equivalent_to_batch_order() {
    check_all(lockwork_opencl::OPENCL_DETERMINISTIC);
}

#[test]
fn opencl_two_phase_is_equivalent_to_stamp_order() {
    check_all(lockwork_opencl::OPENCL_TWO_PHASE);
}

#[test]
fn a_procedure_takes_the_place_of_another_one() {
    for kind in [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE] {
        check_replaced(kind.name(), &|| create(kind, Options::default()));
    }
}

#[test]
fn both_deterministic_engines_agree_to_the_bit() {
    let digests: Vec<_> = [EngineKind::DETERMINISTIC, lockwork_opencl::OPENCL_DETERMINISTIC]
        .into_iter()
        .map(|kind| {
            let make = || create(kind, Options::default());
            let mut engine = prepared(&make, true);
            let mut random = Random(42);
            for _ in 0..5 {
                let batch = fill(&*engine, &mut random, MIXES[MIXES.len() - 1].0, 1_000);
                engine.submit(batch).unwrap();
                engine.complete().unwrap().unwrap();
            }
            engine.digest().unwrap()
        })
        .collect();
    assert_eq!(digests[0], digests[1]);
}
