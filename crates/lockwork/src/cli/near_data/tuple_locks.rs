//! Experiment (c): a million lock requests, in the order of the keys and at random, beside PostgreSQL's own tuple
//! locks in the same run (neoDBMS, figure 6).
//!
//! Ours are two figures: taking a lock, while earlier ones are still held for a while as in a transaction of 64 rows,
//! and a lock with its release. PostgreSQL's row lock is compared with the first, its lock manager's pair with the
//! second.

use lockwork_locknet::bench::histogram::Histogram;
use lockwork_sharedlocks::{LockMode, Placement};
use lockwork_workload::random::Random;
use serde_json::json;

use super::super::Failure;
use super::super::bench::Arguments as Bench;
use super::super::chart::distribution;
use super::clock::{Clock, ticks};
use super::postgres::{self, Latency, Lock, Order, PostgresError};
use super::{Files, Quantiles, Section, requests};

/// Locks of a transaction.
const HELD: usize = 64;

/// Ours.
struct Ours {
    order: Order,
    taken: Histogram,
    pairs: Histogram,
}

pub(super) fn run(bench: &Bench, show: &mut dyn FnMut(&str)) -> Result<Section, Failure> {
    let requests = requests(bench);
    let clock = Clock::new();
    let mut ours = Vec::new();
    let mut wrong = Vec::new();
    for order in [Order::Sequential, Order::Random] {
        show(&format!("shared lock table, {order}"));
        ours.push(measure(bench, order, requests, &clock, &mut wrong)?);
    }
    show("PostgreSQL");
    let baseline = match postgres::measure(requests, bench.seed()) {
        Ok(baseline) => Ok(baseline),
        Err(absent @ PostgresError::Absent { .. }) => Err(absent.to_string()),
        Err(error @ PostgresError::Check { .. }) => return Err(Failure::Check(error.to_string())),
        Err(error) => return Err(Failure::BackEnd(error.to_string())),
    };
    let mut text = format!(
        "(c) {requests} lock requests, nanoseconds; {} lines\n{:<34} {:<11} {:>7} {:>7} {:>7} {:>8} {:>10}\n",
        bench.near_data.lock_lines, "", "order", "p50", "p90", "p99", "p99.9", "longest"
    );
    let line = |name: &str, order: Order, histogram: &Histogram| {
        let q = Quantiles::of(histogram);
        format!("{name:<34} {order:<11} {:>7} {:>7} {:>7} {:>8} {:>10}\n", q.p50, q.p90, q.p99, q.p999, q.longest)
    };
    let mut rows = Vec::new();
    for Ours { order, taken, pairs } in &ours {
        text.push_str(&line("shared lock table, lock", *order, taken));
        text.push_str(&line("shared lock table, lock + release", *order, pairs));
        for (what, histogram) in [("lock", taken), ("lock and release", pairs)] {
            let ns = Quantiles::of(histogram);
            rows.push(json!({ "system": "shared lock table", "what": what, "order": order.to_string(), "ns": ns }));
        }
    }
    let mut charts = Vec::new();
    for Ours { order, taken, pairs } in &ours {
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
        charts.push((format!("c-{order}.svg"), distribution(&format!("{requests} lock requests, {order}"), &series)));
    }
    match &baseline {
        Err(absent) => text.push_str(&format!("{absent}\n")),
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
                        text.push_str(&format!("{name:<34} {:<11} {mean:>7.0} (mean)\n", run.order));
                        rows.push(json!({ "system": "PostgreSQL", "what": lock, "order": order, "mean_ns": mean }));
                    }
                }
            }
            for Ours { order, taken, pairs } in &ours {
                let p50 = |lock: Lock| {
                    let run = baseline.runs.iter().find(|run| run.lock == lock && run.order == *order)?;
                    Some(match &run.latency {
                        Latency::Each(histogram) => histogram.quantile(0.5) as f64,
                        Latency::Mean(mean) => *mean,
                    })
                };
                if let (Some(row), Some(manager)) = (p50(Lock::Row), p50(Lock::Manager)) {
                    text.push_str(&format!(
                        "{order}: PostgreSQL's row lock takes {:.1} times our lock, its lock manager {:.1} times our pair\n",
                        row / taken.quantile(0.5).max(1) as f64,
                        manager / pairs.quantile(0.5).max(1) as f64
                    ));
                }
            }
            let clock =
                baseline.clock_ns.map_or_else(String::new, |ns| format!("; its clock's {ns} ns are subtracted"));
            text.push_str(&format!("{}; {}{clock}\n", baseline.version, baseline.method));
        }
    }
    text.push_str(&format!(
        "verified: every lock was granted, held and given back; our clock's {:.1} ns are subtracted, as PostgreSQL's are\n\
         neoDBMS, figure 6: 80-100 ns, PostgreSQL about 520 ns\n",
        clock.empty_ns()
    ));
    let settings = baseline.as_ref().map(
        |baseline| json!({ "version": baseline.version, "settings": baseline.settings, "method": baseline.method }),
    );
    let json = json!({ "rows": rows, "postgresql": settings.unwrap_or_else(|absent| json!({ "absent": absent })) });
    Ok(Section { text, json, charts, wrong })
}

fn measure(
    bench: &Bench,
    order: Order,
    requests: u64,
    clock: &Clock,
    wrong: &mut Vec<String>,
) -> Result<Ours, Failure> {
    let files = Files::new();
    let (locks, _) = files.make(bench.near_data.lock_lines, Placement::Spread, 1)?;
    let mut session = locks.session().map_err(Failure::usage)?;
    let mut keys: Vec<u64> = (0..requests).collect();
    if order == Order::Random {
        let mut random = Random::new(bench.seed());
        (1..keys.len()).rev().for_each(|at| keys.swap(at, random.below(at as u64 + 1) as usize));
    }
    let (mut taken, mut pairs) = (Histogram::default(), Histogram::default());
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
    let number = session.number();
    if locks.table().touched(number) != 0 {
        wrong.push("experiment c: locks are left that were given back".into());
    }
    Ok(Ours { order, taken, pairs })
}
