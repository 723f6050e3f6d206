//! Every instruction means the same on a device as in the interpreter: random procedures that the verifier accepts run
//! on both, with random arguments, and end the same, answer the same, and leave the same rows.
//!
//! Needs an OpenCL device (`make verify` installs PoCL).

use lockwork_conformance::procedures::check;
use lockwork_engine::{EngineKind, Options};

fn compare(kind: EngineKind, start: u64) {
    check(kind.name(), &|| lockwork_engine::create(kind, Options::default()), start..start + 30);
}

#[test]
fn random_procedures_mean_the_same_on_the_device() {
    for start in [0, 100, 200] {
        compare(lockwork_opencl::OPENCL_DETERMINISTIC, start);
    }
}

#[test]
fn random_procedures_mean_the_same_under_locks() {
    compare(lockwork_opencl::OPENCL_TWO_PHASE, 300);
}
