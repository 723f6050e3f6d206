//! Experiment (a): how long a lock and its release take on one side, while the other side requests none to all of the
//! time (neoDBMS, figure 4).
//!
//! Both sides choose among a few keys, so that they fight for lines all the time and for locks often. Each increments
//! the counter of the key that it holds in two steps; the sum tells whether anybody was there who should not have been.

use lockwork_sharedlocks::Placement;
use serde_json::json;

use super::super::Failure;
use super::super::chart::{grouped, lines};
use super::clock::Clock;
use super::contend::{Load, contend};
use super::peer::{Job, Peer};
use super::{Arguments, Files, Quantiles, Section, verdict};

/// Shares of the time in which the other side requests.
const PERCENT: [u32; 5] = [0, 25, 50, 75, 100];
/// Keys: many that are hardly ever wanted twice, some, one that both want.
const KEYS: [u32; 3] = [4096, 8, 1];
/// A lock and its release are measured one by one, without what is done between them.
const MEASURED: u64 = 2;

pub(super) fn run(bench: &Arguments, show: &mut dyn FnMut(&str)) -> Result<Section, Failure> {
    let arguments = bench;
    let ms = if bench.quick { 40 } else { 400 };
    let lock_lines = arguments.lock_lines.max(KEYS[0]);
    let (locks, shared, files) = Files::make(lock_lines, Placement::Spread, KEYS[0] as usize)?;
    let mut session = locks.session().map_err(Failure::usage)?;
    let mut peer = Peer::start(bench, &files, arguments.link)?;
    let clock = Clock::new();
    let group = |side: &str| format!("{:>12} {:>12} {:>12} {:>12} {:>9}", side, "", "", "", "");
    let columns = format!("{:>12} {:>12} {:>12} {:>12} {:>9}", "p50", "p99", "p99.9", "longest", "locks/ms");
    let mut text = format!(
        "(a) lock and release on one side, nanoseconds, while the other side requests locks for a share of the time\n\
         link {}, {} lock lines, {ms} ms each\n\
         {:>6} {:>7}   {}   {}\n{:>6} {:>7}   {columns}   {columns}\n",
        arguments.link,
        grouped(lock_lines.into()),
        "",
        "other",
        group("host"),
        group("storage").trim_end(),
        "keys",
        "side"
    );
    let (mut rows, mut charts, mut locked) = (Vec::new(), Vec::new(), 0);
    for keys in KEYS {
        let (mut host_line, mut storage_line) = (Vec::new(), Vec::new());
        for percent in PERCENT {
            show(&format!("{keys} keys, the other side {percent} %"));
            let mut measured = Vec::new();
            for (own, other) in [(100, percent), (percent, 100)] {
                let load = |percent, seed| Load { percent, ms, keys, seed: bench.seed.wrapping_add(seed) };
                peer.tell(Job::Contend(load(other, 1)))?;
                let host = contend(&mut session, &shared, &clock, load(own, 2)).map_err(Failure::usage)?;
                let storage = peer.report()?.histogram();
                locked += host.count() + storage.count();
                measured.push((host, storage));
            }
            let (host, storage) = (Quantiles::of(&measured[0].0), Quantiles::of(&measured[1].1));
            let cells = |q: &Quantiles| {
                let [p50, p99, p999, longest] = [q.p50, q.p99, q.p999, q.longest].map(|ns| clock.cell(ns, MEASURED));
                format!("{p50:>12} {p99:>12} {p999:>12} {longest:>12} {:>9}", q.count / ms)
            };
            text.push_str(&format!("{keys:>6} {percent:>6}%   {}   {}\n", cells(&host), cells(&storage)));
            rows.push(json!({ "keys": keys, "other_percent": percent, "host_ns": host, "storage_ns": storage }));
            host_line.push(host.p50 as f64);
            storage_line.push(storage.p50 as f64);
        }
        let labels: Vec<_> = PERCENT.iter().map(|percent| format!("{percent} %")).collect();
        let noun = if keys == 1 { "key" } else { "keys" };
        let title = format!("Lock and release with requests from the other side, {keys} {noun}");
        let series = [("host".to_string(), host_line), (format!("storage, link {}", arguments.link), storage_line)];
        let note = clock.chart_note(series.iter().flat_map(|(_, values)| values.clone()), MEASURED);
        let unit = format!("p50, nanoseconds, against the share of the time in which the other side requests{note}");
        charts.push((format!("a-{keys}-keys.svg"), lines(&title, &unit, &labels, &series)));
    }
    let sum = shared.sum();
    let mut wrong = Vec::new();
    if sum != locked {
        wrong.push(format!("experiment a: {locked} increments under locks give {sum}"));
    }
    text.push_str(&format!(
        "{}\npaper (neoDBMS, figure 4): host 80-100 ns alone, about 400 ns contended; storage 800 ns over CCIX\n{}",
        clock.words(),
        verdict(&wrong, &format!("{} locks, as many increments", grouped(locked as f64)))
    ));
    let json = json!({
        "rows": rows, "lock_lines": lock_lines, "ms_each": ms, "clock": clock.json(), "locks": locked,
        "verified": sum == locked,
    });
    Ok(Section { text, json, charts, wrong })
}
