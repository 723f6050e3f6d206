//! Experiment (b): how long it takes until 64 bytes and 8 KiB that the host has written are on the storage side
//! (neoDBMS, figure 5), by link.
//!
//! Without a link it is the memory of this machine: lines come from the cache of the core that wrote them. The links
//! add what the paper, or what stands for it, says.

use lockwork_neardata::link::Link;
use lockwork_sharedlocks::Placement;
use serde_json::json;

use super::super::Failure;
use super::super::chart::{bars, grouped};
use super::clock::Clock;
use super::peer::{Job, Peer, serve_fetches};
use super::shared::PAGE;
use super::{Arguments, Files, Quantiles, Section, verdict};

pub(super) fn run(bench: &Arguments, show: &mut dyn FnMut(&str)) -> Result<Section, Failure> {
    let times = if bench.quick { 2_000 } else { 20_000 };
    let clock = Clock::new();
    let mut text = format!(
        "(b) the storage fetches what the host has just written, nanoseconds; {} times each\n{:>6} {:>8} {:>12} {:>12} {:>12} {:>12}   {}\n",
        grouped(times as f64),
        "link",
        "bytes",
        "p50",
        "p99",
        "p99.9",
        "longest",
        "simulated part"
    );
    let (mut rows, mut values, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for link in Link::ALL {
        for bytes in [64, PAGE] {
            show(&format!("link {link}, {bytes} bytes"));
            let (_locks, shared, files) = Files::make(64, Placement::Spread, 1)?;
            let mut peer = Peer::start(bench, &files, link)?;
            peer.tell(Job::Fetch { bytes, times })?;
            if !serve_fetches(&shared, bytes, times, &mut || peer.is_alive()) {
                return Err(peer.gone());
            }
            let report = peer.report()?;
            let q = Quantiles::of(&report.histogram());
            if report.wrong > 0 || q.count != times {
                wrong.push(format!("experiment b: {} of {times} fetches of {bytes} bytes were wrong", report.wrong));
            }
            let simulated = link.transfer_ns(bytes);
            text.push_str(&format!(
                "{:>6} {bytes:>8} {:>12} {:>12} {:>12} {:>12}   {simulated} ns\n",
                link.name(),
                clock.cell(q.p50, 1),
                clock.cell(q.p99, 1),
                clock.cell(q.p999, 1),
                clock.cell(q.longest, 1)
            ));
            rows.push(json!({ "link": link.name(), "bytes": bytes, "ns": q, "simulated_ns": simulated }));
            values.push((format!("{link}, {bytes} bytes"), q.p50 as f64));
        }
    }
    text.push_str(&format!("{}\n{}", clock.words(), verdict(&wrong, "every fetch had the bytes of its turn")));
    let unit = format!("p50, nanoseconds{}", clock.chart_note(values.iter().map(|(_, value)| *value), 1));
    let charts = vec![("b-transfers.svg".to_string(), bars("Transfers to the storage, by link", &unit, &values))];
    let json = json!({ "rows": rows, "times": times, "clock": clock.json(), "verified": wrong.is_empty() });
    Ok(Section { text, json, charts, wrong })
}
