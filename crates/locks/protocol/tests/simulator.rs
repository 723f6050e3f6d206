//! Runs of the simulator.

use lockwork_lock_protocol::branches::{Branch, Branches};
use lockwork_lock_protocol::simulator::{Faults, Settings, run};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// `SIM_OPERATIONS` operations, a million if nothing else is said, from `SIM_SEED` on.
#[test]
fn a_million_operations_under_all_faults() {
    let seed = variable("SIM_SEED").unwrap_or(1);
    // Without optimisation a tenth of it takes as long.
    let usual = if cfg!(debug_assertions) { 100_000 } else { 1_050_000 };
    let all = Settings::standard(seed, variable("SIM_OPERATIONS").unwrap_or(usual) / 12);
    let mut branches = Branches::default();
    for settings in all {
        let report = run(settings);
        println!("{settings:?}\n{:?}\n", report.counters);
        report.verdict().unwrap_or_else(|why| panic!("{why}"));
        branches.add(&report.counters.branches);
    }
    if !cfg!(debug_assertions) {
        let missed: Vec<Branch> = branches.missed().collect();
        assert!(missed.is_empty(), "ways that were never taken: {missed:?}");
    }
}

#[test]
fn agents_that_stay_break_nothing() {
    for settings in Settings::standard(200, 20_000) {
        let settings = Settings { near: settings.locks.div_ceil(2), ..settings };
        run(settings).verdict().unwrap_or_else(|why| panic!("{}: {why}", settings.command()));
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let settings = Settings { operations: 5_000, ..Settings::new(7) };
    assert_eq!(run(settings), run(settings));
}

#[test]
fn without_faults_nothing_is_lost_and_nobody_waits_long() {
    let report = run(Settings { operations: 20_000, faults: Faults::NONE, ..Settings::new(3) });
    report.verdict().unwrap_or_else(|why| panic!("{why}"));
    let counters = report.counters;
    assert_eq!((counters.lost, counters.ended, counters.packets_lost, counters.expired), (0, 0, 0, 0));
    assert!(counters.longest_wait < 20_000_000, "{} ns", counters.longest_wait);
}
