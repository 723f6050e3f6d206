//! Figures of several series over one axis, measured in one run: `lockwork-bench paper bionicdb`, `lockwork-bench
//! engines`.
//!
//! A [`Figure`] is what was measured; a [`Study`] prints all of them as text that can go into a document as it is, as
//! JSON with every round, or as CSV, and saves the three and an SVG chart for each figure. A series has its trend drawn
//! behind it, in eighths of the largest value of the figure (or of the series, where series are not comparable).
//!
//! The rooms: `race` (measuring), `bionicdb` (figures 10 to 13 of the paper), `engines` (engines beside each other),
//! `fpga` (the paper's figures on the simulated transaction processor, by its cycles).

mod bionicdb;
mod engines;
mod fpga;
mod race;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lockwork_engine::{EngineKind, Options, contract};
use lockwork_workload::statistics::median;
use lockwork_workload::tpcc::{Mix, TpccConfig};
use lockwork_workload::ycsb::{Ycsb, YcsbConfig};
use serde::Serialize;
use serde_json::json;

pub(super) use bionicdb::command as bionicdb;
pub(super) use engines::{Arguments as EnginesArguments, command as engines};
pub(super) use fpga::{Arguments as FpgaArguments, command as fpga};
use race::{Race, Rates, ratio};

use super::chart::{grouped, lines};
use super::measure::check_rows;
use super::options::{Results, Workers, check_rounds, whole};
use super::progress::Live;
use super::report::prepare_folder;
use super::workloads::{Boxed, boxed, refused};
use super::{Environment, Failure, Outcome, Output, print};

/// Accesses of a transaction, where they change.
const ACCESSES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Shares of remote accesses, where they change.
const REMOTE: [f64; 4] = [0.0, 0.25, 0.5, 0.75];
/// Calls of a round: as many as fit in memory, or fewer where each of them inserts many rows.
const MANY: usize = 1_000_000;
const ORDERS: usize = 40_000;

fn ycsb(config: &YcsbConfig) -> Boxed {
    boxed(Ycsb::new(config.clone()))
}

/// What is measured over an axis.
#[derive(Debug, Serialize)]
struct Figure {
    /// Its number in the paper, or its name in the document.
    id: &'static str,
    title: String,
    /// What is counted a second.
    unit: &'static str,
    /// What changes along the axis, and its values.
    axis: &'static str,
    labels: Vec<String>,
    series: Vec<Series>,
    /// What one series is to another, point by point.
    ratios: Vec<Ratio>,
    notes: Vec<String>,
    /// Whether each series is drawn by its own scale, the points of an axis having no order: then, as without series,
    /// there is no chart.
    apart: bool,
}

#[derive(Debug, Serialize)]
struct Series {
    name: String,
    /// The medians of the rounds.
    values: Vec<f64>,
    /// All rounds of every point.
    rounds: Vec<Rates>,
}

#[derive(Debug, Serialize)]
struct Ratio {
    name: String,
    values: Vec<f64>,
}

impl Series {
    fn new(name: &str, rounds: Vec<Rates>) -> Self {
        Self {
            name: name.to_string(),
            values: rounds.iter().map(|rates| median(rates.iter().copied())).collect(),
            rounds,
        }
    }
}

impl Figure {
    fn new<T: ToString>(id: &'static str, title: &str, unit: &'static str, axis: &'static str, labels: &[T]) -> Self {
        let labels = labels.iter().map(T::to_string).collect();
        let (series, ratios, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, title: title.to_string(), unit, axis, labels, series, ratios, notes, apart: false }
    }

    /// Adds a series, a point for each label.
    fn add(&mut self, name: &str, rounds: Vec<Rates>) {
        assert_eq!(rounds.len(), self.labels.len(), "{name}: a point for each of {:?}", self.labels);
        self.series.push(Series::new(name, rounds));
    }

    /// Adds what the series `over` is to the series `under`.
    fn compare(&mut self, over: &str, under: &str) {
        let find = |name: &str| self.series.iter().find(|series| series.name == name);
        if let (Some(a), Some(b)) = (find(over), find(under)) {
            let values = a.rounds.iter().zip(&b.rounds).map(|(a, b)| ratio(a, b)).collect();
            self.ratios.push(Ratio { name: format!("{over} / {under}"), values });
        }
    }

    fn text(&self) -> String {
        let most = |series: &Series| series.values.iter().fold(f64::MIN_POSITIVE, |most, value| most.max(*value));
        let largest = self.series.iter().map(most).fold(f64::MIN_POSITIVE, f64::max);
        let names = self.series.iter().map(|series| &series.name).chain(self.ratios.iter().map(|ratio| &ratio.name));
        let wide = names.map(|name| name.chars().count()).chain([self.axis.len()]).max().unwrap_or(0);
        let column = self.labels.iter().map(|label| label.chars().count() + 2).max().unwrap_or(0).max(9);
        let row = |name: &str, cells: Vec<String>| {
            let cells: String = cells.iter().map(|cell| format!("{cell:>column$}")).collect();
            format!("  {name:<wide$}{cells}")
        };
        let mut text = format!("{}: {}; thousands of {} a second\n", self.id, self.title, self.unit);
        text.push_str(&format!("{}\n", row(self.axis, self.labels.clone())));
        for series in &self.series {
            let cells = series.values.iter().map(|value| thousands(*value)).collect();
            let scale = if self.apart { most(series) } else { largest };
            let trend: String = series.values.iter().map(|value| eighths(value / scale)).collect();
            text.push_str(&format!("{}  {trend}\n", row(&series.name, cells)));
        }
        for ratio in &self.ratios {
            let cells = ratio.values.iter().map(|value| format!("{value:.2}")).collect();
            text.push_str(&format!("{}\n", row(&ratio.name, cells)));
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("  {note}\n")));
        text
    }

    fn chart(&self) -> Option<String> {
        let series: Vec<_> = self.series.iter().map(|series| (series.name.clone(), series.values.clone())).collect();
        let unit = format!("{} a second, against {}", self.unit, self.axis);
        (!self.apart && !series.is_empty())
            .then(|| lines(&format!("{}: {}", self.id, self.title), &unit, &self.labels, &series))
    }

    /// Lines of figure, series, point, median, least and most.
    fn csv(&self) -> String {
        let mut text = String::new();
        for series in &self.series {
            for (label, (value, rounds)) in self.labels.iter().zip(series.values.iter().zip(&series.rounds)) {
                let (least, most) = rounds.iter().fold((f64::MAX, 0.0_f64), |(a, b), &r| (a.min(r), b.max(r)));
                text.push_str(&format!("{},{},{label},{value:.0},{least:.0},{most:.0}\n", self.id, series.name));
            }
        }
        text
    }
}

/// A rate in thousands: whole ones, or three digits of few.
fn thousands(rate: f64) -> String {
    match rate / 1e3 {
        k if k < 10.0 => format!("{k:.2}"),
        k if k < 100.0 => format!("{k:.1}"),
        k => grouped(k),
    }
}

/// A bar of this height, 0 to 1, in one character.
fn eighths(height: f64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    BARS[((height * 8.0).ceil() as usize).clamp(1, 8) - 1]
}

/// Options of figures that are measured in rounds.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Arguments {
    #[command(flatten)]
    workers: Workers,
    /// Rows [default: bionicdb 300,000 a thread, engines 1,000,000]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: Option<u64>,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// A tenth of the work, and one short round
    #[arg(long)]
    quick: bool,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// What the user wants of a study, whatever it measures.
#[derive(Clone, Copy)]
struct Scope<'a> {
    /// The study's name.
    name: &'static str,
    passes: usize,
    quick: bool,
    seed: u64,
    results: &'a Results,
}

impl Arguments {
    fn scope(&self, name: &'static str) -> Scope<'_> {
        Scope { name, passes: self.passes, quick: self.quick, seed: self.seed, results: &self.results }
    }
}

/// What all studies share: what they were asked for, how they measure, and what they have found so far.
struct Study<'a> {
    scope: Scope<'a>,
    options: Options,
    live: &'a Live,
    environment: Environment,
    settings: serde_json::Value,
    folder: PathBuf,
    figures: Vec<Figure>,
}

impl<'a> Study<'a> {
    /// Refuses what cannot be, makes the folder for what will be found, and prints what is going to be measured: YCSB
    /// of so many `records` laid out like `widest`, the configuration with the most accesses a transaction.
    fn begin(
        scope: Scope<'a>,
        options: Options,
        live: &'a Live,
        kinds: &[EngineKind],
        widest: &YcsbConfig,
    ) -> Result<Self, Failure> {
        contract::check(&options).map_err(Failure::usage)?;
        check_rounds(scope.passes)?;
        widest.validate().map_err(refused)?;
        check_rows(&widest.schema().map_err(Failure::usage)?, widest.records)?;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let settings = json!({
            "workload": scope.name, "engines": kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
            "threads": options.threads, "records": widest.records, "warehouses": options.threads,
            "window": options.window, "passes": if scope.quick { 1 } else { scope.passes },
            "quick": scope.quick, "seed": scope.seed,
            // Runnable threads on average over a minute: how busy others kept the machine.
            "load_before": load.split_whitespace().next().unwrap_or("unknown"),
        });
        Self::open(scope, options, live, settings)
    }

    /// As [`Self::begin`], where cycles are counted and not time, on the machine that is described.
    fn begin_cycles(scope: Scope<'a>, options: Options, live: &'a Live, machine: &str) -> Result<Self, Failure> {
        let settings = json!({
            "workload": scope.name, "machine": machine, "threads": options.threads, "quick": scope.quick,
            "seed": scope.seed,
        });
        Self::open(scope, options, live, settings)
    }

    /// Makes the folder, and prints what is going to be measured.
    fn open(scope: Scope<'a>, options: Options, live: &'a Live, settings: serde_json::Value) -> Result<Self, Failure> {
        let folder = scope.results.out.clone().unwrap_or_else(|| PathBuf::from("out").join(scope.name));
        prepare_folder(Some(&folder))?;
        let environment = Environment::read();
        let study = Self { scope, options, live, environment, settings, folder, figures: Vec::new() };
        if scope.results.output == Output::Text {
            print(&study.head())?;
        }
        Ok(study)
    }

    fn head(&self) -> String {
        let Environment { cpu, cores, kernel, commit, .. } = &self.environment;
        format!("{cpu}, {cores} cores, kernel {kernel}, commit {commit}\nsettings {}\n", self.settings)
    }

    /// TPC-C with a warehouse for each worker, a small one where it is to be quick.
    fn tpcc(&self, mix: Mix) -> TpccConfig {
        let warehouses = self.options.threads as u64;
        let whole = mix == Mix::Standard;
        let config = if whole { TpccConfig::standard(warehouses) } else { TpccConfig::new_order_payment(warehouses) };
        let config = TpccConfig { mix, seed: self.scope.seed, ..config };
        if self.scope.quick { TpccConfig { customers: 300, items: 10_000, ..config } } else { config }
    }

    /// A race of as many rounds as were asked for, of at most `calls` calls each.
    fn race(&self, calls: usize) -> Race<'a> {
        let quick = self.scope.quick;
        let (passes, slice) = if quick { (1, 50) } else { (self.scope.passes, 200) };
        let calls = if quick { calls / 4 } else { calls };
        Race { passes, slice: Duration::from_millis(slice), calls, live: self.live }
    }

    /// Keeps a figure, and shows it at once to whoever reads.
    fn keep(&mut self, figure: Figure) -> Outcome {
        if self.scope.results.output == Output::Text {
            print(&format!("\n{}", figure.text()))?;
        }
        self.figures.push(figure);
        Ok(())
    }

    /// Saves everything, and prints what has not been printed yet.
    fn end(self) -> Outcome {
        let text = self.figures.iter().fold(self.head(), |text, figure| format!("{text}\n{}", figure.text()));
        let csv = self.figures.iter().map(Figure::csv).collect::<String>();
        let csv = format!("figure,series,point,median_per_s,least_per_s,most_per_s\n{csv}");
        let Self { scope, environment, settings, figures, folder, .. } = self;
        let report = json!({ "schema": 1, "environment": environment, "settings": settings, "figures": figures });
        let json = format!("{report:#}\n");
        let file = |id: &str| id.to_lowercase().replace(' ', "-") + ".svg";
        let charts = figures.iter().filter_map(|figure| Some((file(figure.id), figure.chart()?)));
        let files = [("result.txt", &text), ("result.json", &json), ("result.csv", &csv)];
        let files = files.map(|(name, text)| (name.to_string(), text.clone()));
        for (name, text) in charts.chain(files) {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        }
        match scope.results.output {
            Output::Text => print(&format!("\nCharts and this text: {}\n", folder.display())),
            Output::Json => print(&json),
            Output::Csv => print(&csv),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let mut figure = Figure::new("7", "things", "transactions", "window", &[1, 2]);
        figure.add("slow", vec![vec![1e3, 3e3, 2e3], vec![4e3, 4e3, 5e3]]);
        figure.add("fast", vec![vec![2e3, 6e3, 8e3], vec![16e6, 8e3, 16e6]]);
        figure.compare("fast", "slow");
        figure
    }

    #[test]
    fn medians_ratios_within_rounds_and_trends_are_printed() {
        let expected = "\
7: things; thousands of transactions a second
  window             1        2
  slow            2.00     4.00  ▁▁
  fast            6.00   16,000  ▁█
  fast / slow     2.00  3200.00
";
        assert_eq!(figure().text(), expected);
    }

    #[test]
    fn csv_has_the_range_of_the_rounds_and_charts_are_of_what_has_an_order() {
        assert!(figure().csv().starts_with("7,slow,1,2000,1000,3000\n7,slow,2,4000,4000,5000\n"));
        assert!(figure().chart().is_some());
        assert!(Figure { apart: true, ..figure() }.chart().is_none());
        assert!(Figure { series: Vec::new(), ..figure() }.chart().is_none());
    }

    #[test]
    fn bars_reach_from_one_eighth_to_the_whole() {
        assert_eq!([0.0, 0.125, 0.2, 0.95, 1.0].map(eighths), ['▁', '▁', '▂', '█', '█']);
    }
}
