//! What was measured, as tables, JSON, CSV and charts.

use std::collections::BTreeMap;

use lockwork_lock_bench::{Hotspot, Measured, Settings, System};
use lockwork_workload::statistics::median;
use serde::Serialize;
use serde_json::json;

use super::{Arguments, Case, IN_100_MS, PERIOD, SLICE, Which};
use crate::chart::{bars, cumulative, grouped, lines};
use crate::lock_service::{Latency, yes};
use crate::{Environment, Failure, Outcome, Output, print};

/// What the others are compared with, as far as they are measured.
const BASELINES: [&str; 3] = ["srvlock", "netlock", "parlock"];

/// A system in a case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    case: String,
    pub(super) system: &'static str,
    locks: u64,
    throughput_locks_per_s: f64,
    /// To that of each baseline.
    ratios: BTreeMap<&'static str, f64>,
    grant_us: Latency,
    /// Microseconds that 1, 2, ... 99 percent of grants did not exceed.
    percentiles_us: Vec<f64>,
    /// Packets of clients, sent and received, to locks granted.
    packets_per_lock: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    moving: Option<Moving>,
    rounds_locks_per_s: Vec<f64>,
    grants: u64,
    verified: bool,
    #[serde(skip)]
    buckets: Vec<(u64, u64)>,
}

/// How even a system is while a hotspot moves.
#[derive(Clone, Debug, Serialize)]
struct Moving {
    /// Of all intervals of 100 ms in a row, the lowest to the median.
    lowest_to_median: f64,
    /// The same in the worst of all rounds.
    worst_round: f64,
    /// The interval of 25 ms in which the hotspot moves, on average, to the median interval.
    after_a_move: f64,
    /// Locks a second while the first set is hot, which is what a profile has seen, and otherwise.
    first_set_locks_per_s: f64,
    other_sets_locks_per_s: f64,
    /// Locks a second in each interval of 25 ms. Every twelfth begins with a move; the first set is hot in the first
    /// twelve of every 48.
    slices_locks_per_s: Vec<f64>,
}

fn rate(measured: &Measured) -> f64 {
    measured.grants as f64 / measured.seconds
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// The lowest interval of 100 ms to the median one.
fn evenness(slices: &[f64]) -> f64 {
    let intervals: Vec<f64> = slices.chunks_exact(IN_100_MS).map(|slices| mean(slices.iter().copied())).collect();
    let lowest = intervals.iter().copied().fold(f64::MAX, f64::min);
    lowest / median(intervals).max(f64::MIN_POSITIVE)
}

impl Moving {
    fn of(slices: Vec<f64>, worst_round: f64) -> Self {
        let in_period = (PERIOD.as_millis() / SLICE.as_millis()) as usize;
        let sets = |first: bool| {
            let is_first = move |at: usize| (at / in_period).is_multiple_of(Hotspot::SETS as usize);
            mean(slices.iter().enumerate().filter(move |(at, _)| is_first(*at) == first).map(|(_, value)| *value))
        };
        let moves = slices.iter().step_by(in_period).copied();
        Self {
            lowest_to_median: evenness(&slices),
            worst_round,
            after_a_move: mean(moves) / median(slices.clone()).max(f64::MIN_POSITIVE),
            first_set_locks_per_s: sets(true),
            other_sets_locks_per_s: sets(false),
            slices_locks_per_s: slices,
        }
    }
}

impl Cell {
    /// The median round.
    pub(super) fn of(case: &Case, system: System, mut rounds: Vec<Measured>) -> Self {
        let rounds_locks_per_s = rounds.iter().map(rate).collect();
        let per_s = |measured: &Measured| -> Vec<f64> {
            measured.slices.iter().map(|count| *count as f64 / SLICE.as_secs_f64()).collect()
        };
        let worst = rounds.iter().map(|round| evenness(&per_s(round))).fold(f64::MAX, f64::min);
        rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let measured = &rounds[rounds.len() / 2];
        let at = |percent: u32| measured.latency.quantile(f64::from(percent) / 100.0) as f64 / 1e3;
        Self {
            case: case.name.clone(),
            system: system.name(),
            locks: case.settings.locks,
            throughput_locks_per_s: rate(measured),
            ratios: BTreeMap::new(),
            grant_us: Latency::of(&measured.latency),
            percentiles_us: (1..100).map(at).collect(),
            packets_per_lock: measured.packets.iter().sum::<u64>() as f64 / measured.grants.max(1) as f64,
            moving: case.settings.slice.map(|_| Moving::of(per_s(measured), worst)),
            rounds_locks_per_s,
            grants: measured.grants,
            verified: rounds.iter().all(|round| round.verified),
            buckets: measured.latency.buckets().collect(),
        }
    }

    /// Tells each of a case how it is to the baselines there.
    pub(super) fn compare(cells: &mut [Self]) {
        for baseline in BASELINES {
            let base = cells.iter().find(|cell| cell.system == baseline).map(|cell| cell.throughput_locks_per_s);
            for cell in cells.iter_mut().filter(|cell| cell.system != baseline) {
                base.into_iter().for_each(|base| {
                    cell.ratios.insert(baseline, cell.throughput_locks_per_s / base);
                });
            }
        }
    }
}

/// What a figure found.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    id: &'static str,
    title: &'static str,
    cells: Vec<Cell>,
    #[serde(skip)]
    which: Which,
}

impl Figure {
    /// The system of each cell, and whether all its rounds were verified.
    pub(super) fn verified(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.cells.iter().map(|cell| (cell.system, cell.verified))
    }

    pub(super) fn new(which: Which, cells: Vec<Cell>) -> Self {
        let title = match which {
            Which::Grants => "grant times and throughput (figures 13, and 14 left)",
            Which::Moving => "a hotspot that moves every 300 ms (figure 16, left)",
            Which::Scale => "grant times by the number of locks (figure 16, right)",
            Which::Granularity => "throughput by how many locks protect the objects (figure 17, left)",
        };
        Self { id: which.id(), title, cells, which }
    }

    fn text(&self) -> String {
        let wide = self.cells.iter().map(|cell| cell.case.len()).max().unwrap_or(0);
        let mut text = format!(
            "{}: {}\n{:<wide$} {:<13} {:>11} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}  verified\n",
            self.id,
            self.title,
            "",
            "system",
            "locks/s",
            "/ srvlock",
            "/ netlock",
            "/ parlock",
            "p20 us",
            "p50 us",
            "p90 us",
            "p99 us",
            "packets"
        );
        let mut before = "";
        for cell in &self.cells {
            let case = if cell.case == before { "" } else { cell.case.as_str() };
            before = &cell.case;
            let ratio = |name| cell.ratios.get(name).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
            let at = |percent: usize| cell.percentiles_us[percent - 1];
            text.push_str(&format!(
                "{case:<wide$} {:<13} {:>11} {:>9} {:>9} {:>9} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.2}  {}\n",
                cell.system,
                grouped(cell.throughput_locks_per_s),
                ratio("srvlock"),
                ratio("netlock"),
                ratio("parlock"),
                at(20),
                at(50),
                at(90),
                at(99),
                cell.packets_per_lock,
                yes(cell.verified)
            ));
        }
        let moving: Vec<_> = self.cells.iter().filter_map(|cell| Some((cell, cell.moving.as_ref()?))).collect();
        if !moving.is_empty() {
            text.push_str(&format!(
                "{:<13} {:>28} {:>12} {:>19} {:>20} {:>14}\n",
                "", "lowest 100 ms / median", "worst round", "25 ms after a move", "first set, locks/s", "other sets"
            ));
        }
        for (cell, moving) in moving {
            text.push_str(&format!(
                "{:<13} {:>28.2} {:>12.2} {:>19.2} {:>20} {:>14}\n",
                cell.system,
                moving.lowest_to_median,
                moving.worst_round,
                moving.after_a_move,
                grouped(moving.first_set_locks_per_s),
                grouped(moving.other_sets_locks_per_s)
            ));
        }
        text
    }

    fn csv(&self) -> String {
        let mut csv = String::new();
        for cell in &self.cells {
            let at = |percent: usize| cell.percentiles_us[percent - 1];
            let lowest = cell.moving.as_ref().map_or_else(String::new, |m| format!("{:.3}", m.lowest_to_median));
            csv.push_str(&format!(
                "{},\"{}\",{},{},{:.0},{:.2},{:.2},{:.2},{:.2},{lowest},{}\n",
                self.id,
                cell.case,
                cell.system,
                cell.locks,
                cell.throughput_locks_per_s,
                at(20),
                at(50),
                at(90),
                at(99),
                cell.verified
            ));
        }
        csv
    }

    /// The name of each chart's file, and the chart.
    fn charts(&self) -> Vec<(String, String)> {
        let id = self.id;
        let cumulated = |title: &str, cells: &[&Cell], named: &dyn Fn(&Cell) -> String| {
            let series: Vec<_> = cells.iter().map(|cell| (named(cell), cell.buckets.clone())).collect();
            cumulative(title, "grants", &series)
        };
        let of_case: Vec<Vec<&Cell>> =
            self.cells.chunk_by(|a, b| a.case == b.case).map(|cells| cells.iter().collect()).collect();
        match self.which {
            Which::Grants => {
                let charts = of_case.iter().map(|cells| {
                    let title = format!("grant time, {}", cells[0].case);
                    let chart = cumulated(&title, cells, &|cell| cell.system.to_string());
                    (format!("figure-13-{}.svg", cells[0].case.to_lowercase().replace(' ', "-")), chart)
                });
                let named = |cell: &Cell| (format!("{}, {}", cell.system, cell.case), cell.throughput_locks_per_s);
                let values: Vec<_> = self.cells.iter().map(named).collect();
                let chart = bars("throughput", "locks a second, namespaces on one host", &values);
                charts.chain([("figure-14-left.svg".into(), chart)]).collect()
            }
            Which::Scale => {
                let cells: Vec<&Cell> = self.cells.iter().collect();
                let named = |cell: &Cell| format!("{}, {}", cell.system, cell.case);
                vec![(format!("figure-{id}.svg"), cumulated("grant time, RM uniform", &cells, &named))]
            }
            Which::Moving => vec![(format!("figure-{id}.svg"), self.over_time())],
            Which::Granularity => ["uniform", "zipf"].map(|how| self.over_locks(how)).into(),
        }
    }

    fn over_time(&self) -> String {
        let series = self.cells.iter().filter_map(|cell| {
            let slices = cell.moving.as_ref()?.slices_locks_per_s.clone();
            Some((cell.system.to_string(), slices))
        });
        let series: Vec<(String, Vec<f64>)> = series.collect();
        let count = series.iter().map(|(_, slices)| slices.len()).max().unwrap_or(0);
        let at = |slice: usize| match SLICE.as_millis() * slice as u128 {
            ms if ms % PERIOD.as_millis() == 0 => format!("{:.1}", ms as f64 / 1e3),
            _ => String::new(),
        };
        let labels: Vec<String> = (0..count).map(at).collect();
        lines("a hotspot moves every 300 ms", "locks a second in each 25 ms, against seconds", &labels, &series)
    }

    fn over_locks(&self, how: &str) -> (String, String) {
        let cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.case.ends_with(how)).collect();
        let mut series: Vec<(String, Vec<f64>)> = Vec::new();
        let mut labels: Vec<String> = Vec::new();
        for cell in cells {
            let label = grouped(cell.locks as f64);
            if !labels.contains(&label) {
                labels.push(label);
            }
            match series.iter_mut().find(|(name, _)| name == cell.system) {
                Some((_, values)) => values.push(cell.throughput_locks_per_s),
                None => series.push((cell.system.to_string(), vec![cell.throughput_locks_per_s])),
            }
        }
        let chart = lines(&format!("throughput, RM {how}"), "locks a second, against locks", &labels, &series);
        (format!("figure-{}-{how}.svg", self.id), chart)
    }
}

/// All figures that were measured.
pub(super) struct Report<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) base: &'a Settings,
    pub(super) theta: f64,
    pub(super) figures: Vec<Figure>,
}

impl Report<'_> {
    /// Prints one form, and saves all if there is a folder for them.
    pub(super) fn give(&self) -> Outcome {
        let environment = Environment::read();
        let (arguments, base) = (self.arguments, self.base);
        let settings = json!({
            "workload": "fisslock", "figures": self.figures.iter().map(|figure| figure.id).collect::<Vec<_>>(),
            "locks": base.locks, "theta": self.theta, "machines": base.machines, "clients_per_machine": base.clients,
            "client": arguments.service.client().1, "seconds": base.measured.as_secs_f64(),
            "rounds": arguments.passes, "seed": base.seed, "network": "namespaces of one host, joined by veth",
        });
        let e = &environment;
        let mut text = format!(
            "{}, {} cores, kernel {}, commit {}\nsettings {settings}\n\
             all between namespaces of this one host: clients, kernel and servers share its cores; the switch of \
             netlock is a thread,\nthat of lockwork-xdp and lockwork-tc the kernel's data plane\n",
            e.cpu, e.cores, e.kernel, e.commit
        );
        let mut csv = String::from(
            "figure,case,system,locks,locks_per_s,p20_us,p50_us,p90_us,p99_us,lowest_to_median,verified\n",
        );
        for figure in &self.figures {
            text.push_str(&format!("\n{}", figure.text()));
            csv.push_str(&figure.csv());
        }
        text.push_str(
            "\npackets: sent and received by client machines, for each lock. Verified: writers alone, tokens grew, every \
             lock was granted and given back\n",
        );
        let report = json!({ "schema": 1, "environment": environment, "settings": settings, "figures": self.figures });
        let json = format!("{report:#}\n");
        print(match arguments.results.output {
            Output::Text => &text,
            Output::Json => &json,
            Output::Csv => &csv,
        })?;
        let Some(folder) = arguments.results.out.as_deref() else { return Ok(()) };
        let forms = [("result.txt", text), ("result.json", json), ("result.csv", csv)];
        let forms = forms.map(|(name, text)| (name.to_string(), text));
        for (name, text) in self.figures.iter().flat_map(Figure::charts).chain(forms) {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_100_ms_is_told_and_what_a_profile_has_seen() {
        // Two rounds of four sets; the first set is twice as fast, and moves cost half an interval.
        let value = |at: usize| match (at / 12 % 4, at % 12) {
            (0, _) => 2000.0,
            (_, 0) => 500.0,
            _ => 1000.0,
        };
        let moving = Moving::of((0..96).map(value).collect(), 0.5);
        assert_eq!((moving.lowest_to_median, moving.first_set_locks_per_s), (0.875, 2000.0));
        assert_eq!(moving.after_a_move, 0.875);
        assert!((958.0..959.0).contains(&moving.other_sets_locks_per_s), "{moving:?}");
    }
}
