//! `lockwork bench bionicdb`: figures 10 to 13 of the BionicDB paper (sections 5.5 to 5.7) with its architecture in
//! software, the engine `timestamp`.
//!
//! The coprocessor's requests in flight are the row accesses of a worker's window here, and a chip's workers are
//! threads. As in the paper all transactions are local in figures 10 to 12, TPC-C has one warehouse for each worker,
//! YCSB 300,000 rows of 1 KiB, and figure 13 draws keys evenly. Instead of one transaction of 60 instructions that is
//! repeated, as in figure 10a, there are many of 60 each. Look-ups go through the hash index in ordered tables as well.
//! Scans beside other indexes (figure 11d) are `crates/storage/examples/scan.rs`, which needs those crates.

use lockwork_engine::{EngineKind, Options};
use lockwork_workload::Workload;
use lockwork_workload::tpcc::{Mix, Tpcc, TpccConfig};
use lockwork_workload::ycsb::{Ycsb, YcsbConfig};
use lockwork_workload::zipf::Distribution;
use serde_json::json;

use super::super::bench::{Arguments, base_options, interleavings};
use super::super::progress::Live;
use super::super::report::Environment;
use super::super::run::check_rows;
use super::super::{Failure, Outcome};
use super::race::{Make, Rates, median};
use super::{Figure, Study, head, load};

const ENGINE: EngineKind = EngineKind::Timestamp;
/// Row accesses in flight.
const WINDOWS: [usize; 8] = [1, 2, 4, 8, 12, 16, 24, 32];
/// Accesses of a transaction.
const ACCESSES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Instructions of a transaction that does nothing but insert or search.
const BULK: u32 = 60;
/// Shares of remote accesses.
const REMOTE: [f64; 4] = [0.0, 0.25, 0.5, 0.75];
/// Calls of a round: as many as fit in memory, or fewer where each inserts rows.
const MANY: usize = 1_000_000;
const INSERTS: usize = 4_000;
const ORDERS: usize = 40_000;

type Boxed = Result<Box<dyn Workload>, Failure>;

struct Paper<'a> {
    study: Study<'a>,
    options: Options,
    /// Rows of YCSB.
    records: u64,
    seed: u64,
}

fn ycsb(config: &YcsbConfig) -> Boxed {
    Ok(Box::new(Ycsb::new(config.clone()).map_err(Failure::usage)?))
}

impl Paper<'_> {
    /// One partition for each worker.
    fn partitions(&self) -> u32 {
        self.options.threads as u32
    }

    /// YCSB `letter` as the paper has it, with accesses in the home partition only.
    fn config(&self, letter: char) -> Result<YcsbConfig, Failure> {
        let preset = YcsbConfig::bionicdb(letter).map_err(Failure::usage)?;
        Ok(YcsbConfig { records: self.records, partitions: self.partitions(), seed: self.seed, ..preset })
    }

    /// Sixteen reads; on request from a table that keeps its keys in order.
    fn reads(&self, ordered: bool) -> Result<YcsbConfig, Failure> {
        Ok(YcsbConfig { ordered, ..self.config('c')? })
    }

    /// 60 inserts or searches a transaction, of rows of a key and eight bytes.
    fn bulk(&self, insert: bool, ordered: bool) -> Result<YcsbConfig, Failure> {
        let share = f64::from(u8::from(insert));
        let (read, name) = (1.0 - share, if insert { "inserts" } else { "searches" }.to_string());
        let row = YcsbConfig { fields: 1, field_bytes: 8, operations: BULK, ordered, ..self.config('c')? };
        // An insert wants an empty table, but there is none of fewer rows than a transaction has accesses.
        let records = if insert { u64::from(BULK * self.partitions()) } else { row.records };
        Ok(YcsbConfig { name, insert: share, read, records, ..row })
    }

    fn tpcc(&self, mix: Mix) -> Boxed {
        let local = TpccConfig::new_order_payment(self.options.threads as u64);
        let config = TpccConfig { mix, remote_payment: 0.0, remote_order: 0.0, seed: self.seed, ..local };
        Ok(Box::new(Tpcc::new(config).map_err(Failure::usage)?))
    }

    /// Workloads over the same tables, each with every window: for each workload, for each window, its rates.
    fn windows(&self, calls: usize, makes: &[&Make<'_>]) -> Result<Vec<Vec<Rates>>, Failure> {
        let race = self.study.race(calls);
        let side = |window| (format!("window {window}"), ENGINE, Options { window, ..self.options });
        let mut contestants = race.contestants(&WINDOWS.map(side), makes[0])?;
        let mut entries = Vec::new();
        for make in makes {
            for contestant in 0..WINDOWS.len() {
                entries.push((contestant, make()?));
            }
        }
        let rates = race.run(&mut contestants, entries)?;
        Ok(rates.chunks(WINDOWS.len()).map(<[Rates]>::to_vec).collect())
    }

    /// Of a transaction of so many accesses, the rates of its accesses.
    fn accesses(rates: Vec<Rates>, count: u32) -> Vec<Rates> {
        rates.into_iter().map(|point| point.iter().map(|rate| rate * f64::from(count)).collect()).collect()
    }

    fn window_figure(id: &'static str, title: &str, unit: &'static str) -> Figure {
        Figure::new(id, title, unit, "row accesses in flight", &WINDOWS)
    }

    /// Figure 10: the hash index.
    fn hash(&mut self) -> Outcome {
        let mut figure = Self::window_figure("Figure 10a", "hash index, 60 instructions a transaction", "instructions");
        for (insert, calls) in [(true, INSERTS), (false, MANY)] {
            let config = self.bulk(insert, false)?;
            let rates = self.windows(calls, &[&|| ycsb(&config)])?.remove(0);
            figure.add(&config.name, Self::accesses(rates, BULK));
        }
        self.study.keep(figure)?;
        let config = self.reads(false)?;
        let mut figure = Self::window_figure("Figure 10b", "hash index, YCSB C, 16 accesses", "transactions");
        figure.add("YCSB C", self.windows(MANY, &[&|| ycsb(&config)])?.remove(0));
        self.study.keep(figure)?;
        for (id, name, mix) in [("Figure 10c", "NewOrder", Mix::NewOrder), ("Figure 10d", "Payment", Mix::Payment)] {
            let mut figure = Self::window_figure(id, &format!("hash index, TPC-C {name}"), "transactions");
            figure.add(name, self.windows(ORDERS, &[&|| self.tpcc(mix)])?.remove(0));
            self.study.keep(figure)?;
        }
        Ok(())
    }

    /// Figure 11: the ordered index.
    fn ordered(&mut self) -> Outcome {
        let config = self.bulk(true, true)?;
        let title = "ordered index, 60 sequential inserts a transaction";
        let mut figure = Self::window_figure("Figure 11a", title, "inserts");
        let rates = self.windows(INSERTS, &[&|| ycsb(&config)])?.remove(0);
        figure.add("sequential inserts", Self::accesses(rates, BULK));
        self.study.keep(figure)?;
        let (reads, scans) = (self.reads(true)?, self.config('e')?);
        let [points, ranges]: [Vec<Rates>; 2] = self
            .windows(MANY, &[&|| ycsb(&reads), &|| ycsb(&scans)])?
            .try_into()
            .expect("two workloads give two lists");
        let mut figure = Self::window_figure("Figure 11b", "ordered table, point look-ups", "look-ups");
        figure.add("look-ups", Self::accesses(points, reads.operations));
        self.study.keep(figure)?;
        let mut figure = Self::window_figure("Figure 11c", "ordered index, YCSB E, scans of 50 rows alone", "scans");
        figure.add("scans", ranges);
        figure.notes.push("Figure 11d: cargo run --release -p lockwork-storage --example scan".into());
        self.study.keep(figure)
    }

    /// Figure 12: how transactions overlap.
    fn interleaving(&mut self) -> Outcome {
        let modes = interleavings(self.study.arguments)?;
        let sides: Vec<_> = modes.iter().map(|(name, options)| (name.clone(), ENGINE, *options)).collect();
        let compare = |figure: &mut Figure| {
            modes.iter().filter(|(name, _)| name != "none").for_each(|(name, _)| figure.compare(name, "none"));
        };
        let config = self.reads(false)?;
        let race = self.study.race(MANY);
        let mut contestants = race.contestants(&sides, &|| ycsb(&config))?;
        let mut entries = Vec::new();
        for contestant in 0..sides.len() {
            for operations in ACCESSES {
                entries.push((contestant, ycsb(&YcsbConfig { operations, ..config.clone() })?));
            }
        }
        let rates = race.run(&mut contestants, entries)?;
        drop(contestants);
        let title = "interleaving, YCSB C";
        let mut figure = Figure::new("Figure 12a", title, "transactions", "accesses a transaction", &ACCESSES);
        for ((name, _), rates) in modes.iter().zip(rates.chunks(ACCESSES.len())) {
            figure.add(name, rates.to_vec());
        }
        compare(&mut figure);
        self.study.keep(figure)?;

        let mixes = [("NewOrder", Mix::NewOrder), ("Payment", Mix::Payment), ("both", Mix::NewOrderPayment)];
        let race = self.study.race(ORDERS);
        let mut points = vec![Vec::new(); sides.len()];
        for (_, mix) in mixes {
            let mut contestants = race.contestants(&sides, &|| self.tpcc(mix))?;
            let entries = (0..sides.len()).map(|at| Ok((at, self.tpcc(mix)?))).collect::<Result<_, Failure>>()?;
            for (points, rates) in points.iter_mut().zip(race.run(&mut contestants, entries)?) {
                points.push(rates);
            }
        }
        let title = "interleaving, TPC-C";
        let mut figure = Figure::new("Figure 12b", title, "transactions", "transaction", &mixes.map(|(name, _)| name));
        modes.iter().zip(points).for_each(|((name, _), points)| figure.add(name, points));
        compare(&mut figure);
        figure.apart = true;
        self.study.keep(figure)
    }

    /// Figure 13: transactions of one site and of several.
    fn sites(&mut self) -> Outcome {
        let config = YcsbConfig { distribution: Distribution::Uniform, ..self.config('c')? };
        let mut figure = Figure::new("Figure 13", "sites, YCSB C, even", "transactions", "remote accesses", &REMOTE);
        if self.options.threads == 1 {
            figure.labels.clear();
            figure.notes.push("one worker has no other to ask: left out (--threads 2)".into());
            return self.study.keep(figure);
        }
        let race = self.study.race(MANY);
        let alone = Options { interleave: lockwork_engine::Interleave::None, ..self.options };
        let sides = [("interleaved".to_string(), ENGINE, self.options), ("one by one".to_string(), ENGINE, alone)];
        let mut contestants = race.contestants(&sides, &|| ycsb(&config))?;
        let mut entries = Vec::new();
        for remote in REMOTE {
            entries.push((0, ycsb(&YcsbConfig { remote, ..config.clone() })?));
        }
        // Two accesses, the second one at home or surely not: what that adds to a transaction that waits for it.
        for remote in [0.0, 0.5] {
            entries.push((1, ycsb(&YcsbConfig { remote, operations: 2, ..config.clone() })?));
        }
        let mut rates = race.run(&mut contestants, entries)?;
        let pair = rates.split_off(REMOTE.len());
        let to_local = rates.iter().map(|remote| super::ratio(remote, &rates[0])).collect();
        figure.add("timestamp", rates);
        figure.ratios.push(super::Ratio { name: "to all local".into(), values: to_local });
        let time = |rate: &f64| self.options.threads as f64 / rate * 1e9;
        let added: Vec<f64> = pair[1].iter().zip(&pair[0]).map(|(far, near)| time(far) - time(near)).collect();
        figure.notes.push(format!(
            "a message and its answer: {:.0} ns (what a remote access adds to a transaction of two, one after the other)",
            median(&added)
        ));
        self.study.keep(figure)
    }
}

/// Everything, one figure after the other.
pub(in super::super) fn bench_bionicdb(arguments: &Arguments) -> Outcome {
    let options = base_options(arguments)?;
    lockwork_engine::contract::check(&options).map_err(Failure::usage)?;
    let environment = Environment::read();
    let each = if arguments.quick { 30_000 } else { 300_000 };
    let records = arguments.records.unwrap_or(each * options.threads as u64);
    let live = Live::new(std::iter::once("bionicdb"));
    let study = Study::new(arguments, &live)?;
    let mut paper = Paper { study, options, records, seed: arguments.seed() };
    // The most accesses of a transaction, each in its home partition.
    let widest = YcsbConfig { operations: ACCESSES[ACCESSES.len() - 1], ..paper.reads(true)? };
    widest.validate().map_err(super::super::bench::refused)?;
    check_rows(&widest.schema().map_err(Failure::usage)?, records)?;
    let settings = json!({
        "workload": "bionicdb", "engine": ENGINE.name(), "threads": options.threads, "records": records,
        "warehouses": options.threads, "window": options.window, "passes": arguments.passes,
        "quick": arguments.quick, "seed": paper.seed, "load_before": load(),
    });
    let head = head(&environment, &settings);
    let folder = paper.study.begin("bionicdb", &head)?;
    paper.hash()?;
    paper.ordered()?;
    paper.interleaving()?;
    paper.sites()?;
    paper.study.end(&folder, &head, &environment, &settings)
}
