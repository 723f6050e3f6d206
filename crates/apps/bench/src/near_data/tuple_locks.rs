//! Experiment (c): a million lock requests, in the order of the keys and at random, beside PostgreSQL's own tuple
//! locks in the same run (neoDBMS, figure 6).
//!
//! Ours are two figures: taking a lock, while earlier ones are still held for a while as in a transaction of 64 rows,
//! and a lock with its release. PostgreSQL's row lock is compared with the first, its lock manager's pair with the
//! second.
//!
//! Our locks may take no longer than a reading of the clock. So each figure is measured twice: each lock by itself, for
//! the distribution, and 64 locks between two readings, for the ratios.

use lockwork_lock_bench::histogram::Histogram;
use lockwork_sharedlocks::{LockMode, Placement};
use lockwork_workload::random::Random;
use serde_json::json;

use super::super::Failure;
use super::super::chart::{distribution, grouped};
use super::clock::{Clock, ticks};
use super::postgres::{self, Latency, Lock, Order, PostgresError};
use super::{Arguments, Files, Quantiles, Section, requests, verdict};

/// Locks of a transaction.
const HELD: usize = 64;

/// Ours.
struct Ours {
    order: Order,
    taken: Histogram,
    pairs: Histogram,
    /// The same by [`HELD`] locks, in tenths of nanoseconds a lock.
    taken_each: Histogram,
    pairs_each: Histogram,
}

/// The median of the means of [`HELD`] locks in nanoseconds, if the clock resolves it.
fn median_of_means(tenths: &Histogram, clock: &Clock) -> Option<f64> {
    clock.mean(tenths.quantile(0.5), HELD)
}

/// How many times as long as ours a time is, if ours is known.
fn ratio(theirs: Option<f64>, ours: Option<f64>) -> String {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) => format!("{:.1}", theirs / ours),
        (Some(_), None) => "an unknown number of (the clock does not resolve ours)".into(),
        (None, _) => "an unknown number of (it was not measured)".into(),
    }
}

pub(super) fn run(bench: &Arguments, show: &mut dyn FnMut(&str)) -> Result<Section, Failure> {
    let requests = requests(bench);
    let clock = Clock::new();
    let mut ours = Vec::new();
    let mut wrong = Vec::new();
    for order in [Order::Sequential, Order::Random] {
        show(&format!("shared lock table, {order}"));
        ours.push(measure(bench, order, requests, &clock, &mut wrong)?);
    }
    show("PostgreSQL");
    let baseline = match postgres::measure(requests, bench.seed) {
        Ok(baseline) => Ok(baseline),
        // What was measured of ours is there without it.
        Err(error) => {
            if matches!(error, PostgresError::Check { .. }) {
                wrong.push(format!("experiment c: {error}"));
            }
            Err(error.to_string())
        }
    };
    let mut text = format!(
        "(c) {} lock requests, nanoseconds; {} lock lines\n\
         lock: up to {HELD} are held, then all are given back; lock + release: each is given back at once\n\
         by {HELD}: {HELD} of them between two readings of the clock, the mean of each\n\
         {:<34} {:<11} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
        grouped(requests as f64),
        grouped(bench.lock_lines.into()),
        "",
        "order",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "longest"
    );
    let line = |name: &str, order: Order, histogram: &Histogram| {
        let q = Quantiles::of(histogram);
        let [p50, p90, p99, p999, longest] = [q.p50, q.p90, q.p99, q.p999, q.longest].map(|ns| clock.cell(ns, 1));
        format!("{name:<34} {order:<11} {p50:>12} {p90:>12} {p99:>12} {p999:>12} {longest:>12}\n")
    };
    let mut rows = Vec::new();
    for Ours { order, taken, pairs, taken_each, pairs_each } in &ours {
        for (name, what, histogram, each) in
            [("lock", "lock", taken, taken_each), ("lock + release", "lock and release", pairs, pairs_each)]
        {
            let tenths = each.quantile(0.5);
            text.push_str(&line(&format!("shared lock table, {name}"), *order, histogram));
            let mean = clock.cell_of_mean(tenths, HELD);
            text.push_str(&format!("{:<34} {order:<11} {mean:>12}\n", format!("  by {HELD}, {name}")));
            rows.push(json!({
                "system": "shared lock table", "what": what, "order": order.to_string(), "ns": Quantiles::of(histogram),
                "by_64_p50_ns": median_of_means(each, &clock),
            }));
        }
    }
    let mut charts = Vec::new();
    for Ours { order, taken, pairs, .. } in &ours {
        let mut series = vec![("shared lock table, lock", taken), ("shared lock table, lock + release", pairs)];
        let theirs = baseline.iter().flat_map(|baseline| &baseline.runs);
        for run in theirs.filter(|run| run.order == *order) {
            if let Latency::Each(histogram) = &run.latency {
                let name = if run.lock == Lock::Row { "PostgreSQL, row lock" } else { "PostgreSQL, lock manager pair" };
                if run.lock != Lock::RowUnlogged {
                    series.push((name, histogram));
                }
            }
        }
        let series: Vec<_> =
            series.into_iter().map(|(name, histogram)| (name.to_string(), histogram.buckets().collect())).collect();
        charts.push((
            format!("c-{order}.svg"),
            distribution(&format!("{} lock requests, {order}", grouped(requests as f64)), &series),
        ));
    }
    match &baseline {
        Err(why) => text.push_str(&format!("PostgreSQL's tuple locks were not measured: {why}\n")),
        Ok(baseline) => {
            for run in &baseline.runs {
                let name = format!("PostgreSQL, {}", run.lock);
                let (lock, order) = (run.lock.to_string(), run.order.to_string());
                match &run.latency {
                    Latency::Each(histogram) => {
                        text.push_str(&line(&name, run.order, histogram));
                        let ns = Quantiles::of(histogram);
                        rows.push(json!({ "system": "PostgreSQL", "what": lock, "order": order, "ns": ns }));
                    }
                    Latency::Mean(mean) => {
                        text.push_str(&format!("{name:<34} {:<11} {mean:>12.0} (mean)\n", run.order));
                        rows.push(json!({ "system": "PostgreSQL", "what": lock, "order": order, "mean_ns": mean }));
                    }
                }
            }
            for Ours { order, taken_each, pairs_each, .. } in &ours {
                let p50 = |lock: Lock| {
                    let run = baseline.runs.iter().find(|run| run.lock == lock && run.order == *order)?;
                    Some(match &run.latency {
                        Latency::Each(histogram) => histogram.quantile(0.5) as f64,
                        Latency::Mean(mean) => *mean,
                    })
                };
                let row = ratio(p50(Lock::Row), median_of_means(taken_each, &clock));
                let pair = ratio(p50(Lock::Manager), median_of_means(pairs_each, &clock));
                text.push_str(&format!(
                    "{order}, p50: PostgreSQL's row lock takes {row} times as long as our lock by {HELD},\n\
                     a lock in its lock manager, with its release, {pair} times as long as our lock + release\n",
                ));
            }
            text.push_str(&format!("PostgreSQL {}:\n{}\n", baseline.version, baseline.method));
        }
    }
    text.push_str(&format!(
        "{}\npaper (neoDBMS, figure 6): 80-100 ns, PostgreSQL about 520 ns\n{}",
        clock.words(),
        verdict(&wrong, "every lock was granted, held and given back")
    ));
    let settings = baseline
        .as_ref()
        .map(|b| json!({ "version": b.version, "settings": b.settings, "method": b.method, "clock_ns": b.clock_ns }));
    let json = json!({
        "rows": rows, "clock": clock.json(), "verified": wrong.is_empty(),
        "postgresql": settings.unwrap_or_else(|why| json!({ "not_measured": why })),
    });
    Ok(Section { text, json, charts, wrong })
}

fn measure(
    bench: &Arguments,
    order: Order,
    requests: u64,
    clock: &Clock,
    wrong: &mut Vec<String>,
) -> Result<Ours, Failure> {
    let (locks, _, _) = Files::make(bench.lock_lines, Placement::Spread, 1)?;
    let mut session = locks.session().map_err(Failure::usage)?;
    let mut keys: Vec<u64> = (0..requests).collect();
    if order == Order::Random {
        let mut random = Random::new(bench.seed);
        (1..keys.len()).rev().for_each(|at| keys.swap(at, random.below(at as u64 + 1) as usize));
    }
    let (mut taken, mut pairs) = (Histogram::default(), Histogram::default());
    let (mut taken_each, mut pairs_each) = (Histogram::default(), Histogram::default());
    // The first round warms caches and pages up.
    for round in 0..2 {
        (taken, pairs) = (Histogram::default(), Histogram::default());
        for keys in keys.chunks(HELD) {
            for &key in keys {
                let begin = ticks();
                session.lock(key, LockMode::Exclusive).map_err(Failure::usage)?;
                taken.record(clock.ns(begin, ticks()));
            }
            if round == 1 && keys.iter().any(|key| !session.holds(*key)) {
                wrong.push(format!("experiment c: a granted lock among {keys:?} is not held"));
            }
            session.unlock_all().map_err(Failure::usage)?;
        }
        for &key in &keys {
            let begin = ticks();
            session.lock(key, LockMode::Exclusive).map_err(Failure::usage)?;
            session.unlock(key).map_err(Failure::usage)?;
            pairs.record(clock.ns(begin, ticks()));
        }
    }
    for keys in keys.chunks(HELD) {
        let begin = ticks();
        keys.iter().try_for_each(|key| session.lock(*key, LockMode::Exclusive)).map_err(Failure::usage)?;
        taken_each.record(clock.tenths_each(begin, ticks(), keys.len()));
        session.unlock_all().map_err(Failure::usage)?;
    }
    for keys in keys.chunks(HELD) {
        let begin = ticks();
        for &key in keys {
            session.lock(key, LockMode::Exclusive).map_err(Failure::usage)?;
            session.unlock(key).map_err(Failure::usage)?;
        }
        pairs_each.record(clock.tenths_each(begin, ticks(), keys.len()));
    }
    let number = session.number();
    if locks.table().touched(number) != 0 {
        wrong.push("experiment c: locks are left that were given back".into());
    }
    Ok(Ours { order, taken, pairs, taken_each, pairs_each })
}
