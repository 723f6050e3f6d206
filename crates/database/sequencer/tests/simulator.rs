//! Runs of the simulator: all rules hold under all faults, everything that may happen does, and a rule that is broken
//! is found out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockwork_sequencer::simulator::{Broken, Counters, Damage, Report, Seen, Settings, run};

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().map_or(usual, |value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
}

/// Runs of many settings, on two threads.
fn all(settings: impl Iterator<Item = Settings>) -> Vec<Report> {
    let settings: Vec<_> = settings.collect();
    let (next, reports) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(settings) = settings.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let report = run(*settings);
                    reports.lock().unwrap().push(report);
                }
            });
        }
    });
    reports.into_inner().unwrap()
}

/// `CLUSTER_SIM_SEEDS` seeds from `CLUSTER_SIM_SEED` on.
#[test]
fn all_rules_hold_under_all_faults_and_everything_happens() {
    let first = variable("CLUSTER_SIM_SEED", 1);
    let seeds = variable("CLUSTER_SIM_SEEDS", if cfg!(debug_assertions) { 40 } else { 120 });
    let reports = all((first..first + seeds).map(Settings::new));
    let mut counters = Counters::default();
    for report in &reports {
        report.verdict().unwrap_or_else(|why| panic!("{why}"));
        counters.merge(&report.counters);
    }
    for seen in Seen::ALL {
        println!("{seen:?} {}", counters.count(*seen));
    }
    if seeds >= 100 {
        let missed: Vec<Seen> = counters.missed().filter(|&seen| seen != Seen::Stopped).collect();
        assert!(missed.is_empty(), "never seen: {missed:?}");
    }
}

#[test]
fn a_rule_that_is_broken_is_found_out() {
    for &broken in Broken::ALL {
        let reports = all((1..=20).map(|seed| Settings { broken: Some(broken), ..Settings::new(seed) }));
        let found: Vec<_> = reports.iter().filter_map(|report| report.failure.as_ref()).collect();
        println!("{broken}: {} of {}: {found:#?}", found.len(), reports.len());
        assert!(!found.is_empty(), "{broken}");
    }
}

#[test]
fn a_log_that_loses_reorders_forks_or_alters_stops_every_reader() {
    for &damage in Damage::ALL {
        let settings = |seed| Settings { damage: Some(damage), steps: 60, ..Settings::new(seed) };
        for report in all((1..=8).map(settings)) {
            report.verdict().unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(report.stopped.len(), 3, "{}", report.settings.command());
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [3, 4] {
        let settings = Settings { steps: 150, ..Settings::new(seed) };
        let (one, other) = (run(settings), run(settings));
        assert!(one.trace.len() > 10_000, "{}", one.trace.len());
        let differs = one.trace.lines().zip(other.trace.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None);
        assert_eq!(one, other);
    }
}

#[test]
fn without_faults_nobody_is_killed_and_one_leads_all_the_time() {
    let report = run(Settings { faults: false, ..Settings::new(5) });
    report.verdict().unwrap_or_else(|why| panic!("{why}"));
    let never = [Seen::Killed, Seen::Lost, Seen::Unknown, Seen::Lapsed, Seen::Superseded, Seen::BeganAgain];
    assert!(never.iter().all(|&seen| report.counters.count(seen) == 0), "{:?}", report.counters);
    assert_eq!(report.epochs, 1);
}
