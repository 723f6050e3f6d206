//! Random procedures mean the same on every engine, whatever it interleaves them with.

use lockwork_conformance::procedures::check;
use lockwork_engine::{EngineKind, Interleave, Options, create};

/// Seeds of a run: the environment may ask for more of them than a test has time for, as `SOAK=first..end`.
fn soak() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("SOAK").ok()?;
    let (first, end) = text.split_once("..").expect("SOAK is first..end");
    Some(first.parse().expect("a number")..end.parse().expect("a number"))
}

fn check_all(kind: EngineKind, threads: &[usize]) {
    for number in soak().unwrap_or(0..4) {
        for &threads in threads {
            let dynamic = Interleave::Dynamic;
            for (interleave, window) in [(Interleave::None, 1), (Interleave::Batch, 64), (dynamic, 1), (dynamic, 64)] {
                let options = Options { threads, interleave, window, ..Options::default() };
                let what = format!("{kind} {options:?}");
                check(&what, &|| create(kind, options.clone()), number * 30..number * 30 + 30);
            }
        }
    }
}

#[test]
fn on_timestamp() {
    check_all(EngineKind::TIMESTAMP, &[1, 2, 3, 8]);
}

#[test]
fn on_optimistic() {
    check_all(EngineKind::OPTIMISTIC, &[1, 3]);
}

#[test]
fn on_two_phase() {
    check_all(EngineKind::TWO_PHASE, &[1, 3]);
}

#[test]
fn on_deterministic() {
    check_all(EngineKind::DETERMINISTIC, &[1, 3]);
    check_all(EngineKind::DETERMINISTIC_QUEUE, &[3]);
}
