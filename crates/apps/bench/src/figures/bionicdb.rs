//! `lockwork-bench paper bionicdb`: figures 10 to 13 of the BionicDB paper (sections 5.5 to 5.7) with its architecture
//! in software, the engine `timestamp`.
//!
//! The coprocessor's requests in flight are the row accesses of a worker's window here, and a chip's workers are
//! threads. As in the paper all transactions are local in figures 10 to 12, TPC-C has one warehouse for each worker,
//! YCSB 300,000 rows of 1 KiB, and figure 13 draws keys evenly. A software worker starts all look-ups of a transaction
//! at once, so what the window limits is how many transactions are in flight, of which there are two at least: figures
//! 10 and 11 go up in transactions, from one alone (`none`: nothing is fetched ahead), and the keys of figures 10a and
//! 11a come one a transaction instead of 60. Look-ups go through the hash index in ordered tables as well. Scans beside
//! other indexes (figure 11d) are `crates/core/storage/examples/scan.rs`, which needs those crates.
//!
//! An engine counts a transaction as its widest registered procedure. Workloads that differ in that share no tables, or
//! are registered in ascending order.

use clap::ValueEnum;
use lockwork_engine::{EngineKind, Interleave, Options};
use lockwork_workload::statistics::median;
use lockwork_workload::tpcc::{Mix, Tpcc, TpccConfig};
use lockwork_workload::ycsb::YcsbConfig;
use lockwork_workload::zipf::Distribution;

use super::super::options::{Overlap, name_of};
use super::super::progress::Live;
use super::super::workloads::{Boxed, boxed};
use super::super::{Failure, Outcome};
use super::race::{Make, Rates};
use super::{ACCESSES, Arguments, Figure, MANY, ORDERS, REMOTE, Study, ycsb};

const ENGINE: EngineKind = EngineKind::TIMESTAMP;
/// Transactions in flight.
const IN_FLIGHT: [usize; 8] = [1, 2, 4, 8, 12, 16, 24, 32];
/// The accesses that the engine reckons a transaction of TPC-C with: Payment's, whose keys are all arguments.
const TPCC: usize = 4;
/// Calls of a round where each inserts a row.
const INSERTS: usize = 200_000;

struct Paper<'a> {
    arguments: &'a Arguments,
    study: Study<'a>,
}

impl Paper<'_> {
    fn config(&self, letter: char) -> Result<YcsbConfig, Failure> {
        config(self.arguments, &self.study.options, letter)
    }

    /// One insert or search a transaction, of rows of a key and eight bytes.
    fn single(&self, insert: bool, ordered: bool) -> Result<YcsbConfig, Failure> {
        let share = f64::from(u8::from(insert));
        let (read, name) = (1.0 - share, if insert { "inserts" } else { "searches" }.to_string());
        let row = YcsbConfig { fields: 1, field_bytes: 8, operations: 1, ordered, ..self.config('c')? };
        let records = if insert { self.study.options.threads as u64 } else { row.records };
        Ok(YcsbConfig { name, insert: share, read, records, ..row })
    }

    fn tpcc(&self, mix: Mix) -> Boxed {
        let config = TpccConfig { remote_payment: 0.0, remote_order: 0.0, ..self.study.tpcc(mix) };
        boxed(Tpcc::new(config))
    }

    /// The rates of a workload, which the engine reckons with `accesses` accesses a transaction, for every number of
    /// transactions in flight.
    fn windows(&self, calls: usize, accesses: usize, make: &Make<'_>) -> Result<Vec<Rates>, Failure> {
        let race = self.study.race(calls);
        let side = |transactions: usize| {
            let interleave = if transactions == 1 { Interleave::None } else { self.study.options.interleave };
            let window = transactions * accesses;
            (format!("window {window}"), ENGINE, Options { interleave, window, ..self.study.options.clone() })
        };
        let mut contestants = race.contestants(&IN_FLIGHT.map(side), make)?;
        let entries = (0..IN_FLIGHT.len()).map(|at| Ok((at, make()?))).collect::<Result<_, Failure>>()?;
        race.run(&mut contestants, entries)
    }

    fn window_figure(id: &'static str, title: &str, unit: &'static str, accesses: usize) -> Figure {
        let window = |&transactions: &usize| match transactions {
            1 => "none".to_string(),
            _ => (transactions * accesses).to_string(),
        };
        let labels: Vec<String> = IN_FLIGHT.iter().map(window).collect();
        Figure::new(id, title, unit, "row accesses in flight", &labels)
    }
    /// Figure 10: the hash index.
    fn hash(&mut self) -> Outcome {
        let mut figure = Self::window_figure("Figure 10a", "hash index, one access a transaction", "accesses", 1);
        for (insert, calls) in [(true, INSERTS), (false, MANY)] {
            let config = self.single(insert, false)?;
            figure.add(&config.name, self.windows(calls, 1, &|| ycsb(&config))?);
        }
        self.study.keep(figure)?;
        let config = self.config('c')?;
        let accesses = config.operations as usize;
        let mut figure = Self::window_figure("Figure 10b", "hash index, YCSB C, 16 accesses", "transactions", accesses);
        figure.add("YCSB C", self.windows(MANY, accesses, &|| ycsb(&config))?);
        self.study.keep(figure)?;
        for (id, name, mix) in [("Figure 10c", "NewOrder", Mix::NewOrder), ("Figure 10d", "Payment", Mix::Payment)] {
            let mut figure = Self::window_figure(id, &format!("hash index, TPC-C {name}"), "transactions", TPCC);
            figure.add(name, self.windows(ORDERS, TPCC, &|| self.tpcc(mix))?);
            self.study.keep(figure)?;
        }
        Ok(())
    }

    /// Figure 11: the ordered index.
    fn ordered(&mut self) -> Outcome {
        let ordered = [
            ("Figure 11a", "ordered index, sequential inserts", "inserts", INSERTS, self.single(true, true)?),
            ("Figure 11b", "ordered table, point look-ups", "look-ups", MANY, self.single(false, true)?),
            ("Figure 11c", "ordered index, YCSB E, scans of 50 rows alone", "scans", MANY, self.config('e')?),
        ];
        for (id, title, unit, calls, config) in ordered {
            let mut figure = Self::window_figure(id, title, unit, 1);
            figure.add(unit, self.windows(calls, 1, &|| ycsb(&config))?);
            self.study.keep(figure)?;
        }
        Ok(())
    }

    /// Figure 12: how transactions overlap.
    fn interleaving(&mut self) -> Outcome {
        let mode = |&overlap: &Overlap| {
            (name_of(overlap), Options { interleave: overlap.into(), ..self.study.options.clone() })
        };
        let modes: Vec<_> = Overlap::value_variants().iter().map(mode).collect();
        let sides: Vec<_> = modes.iter().map(|(name, options)| (name.clone(), ENGINE, options.clone())).collect();
        let compare = |figure: &mut Figure| {
            modes.iter().filter(|(name, _)| name != "none").for_each(|(name, _)| figure.compare(name, "none"));
        };
        let config = self.config('c')?;
        let race = self.study.race(MANY);
        let mut contestants = race.contestants(&sides, &|| ycsb(&config))?;
        let mut points = vec![Vec::new(); sides.len()];
        for operations in ACCESSES {
            let config = YcsbConfig { operations, ..config.clone() };
            let entries = (0..sides.len()).map(|at| Ok((at, ycsb(&config)?))).collect::<Result<_, Failure>>()?;
            for (points, rates) in points.iter_mut().zip(race.run(&mut contestants, entries)?) {
                points.push(rates);
            }
        }
        drop(contestants);
        let title = "interleaving, YCSB C";
        let mut figure = Figure::new("Figure 12a", title, "transactions", "accesses a transaction", &ACCESSES);
        modes.iter().zip(points).for_each(|((name, _), points)| figure.add(name, points));
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
        if self.study.options.threads == 1 {
            figure.labels.clear();
            figure.notes.push("one worker has no other to ask: left out (--threads 2)".into());
            return self.study.keep(figure);
        }
        let race = self.study.race(MANY);
        let alone = Options { interleave: Interleave::None, ..self.study.options.clone() };
        let sides = [
            ("interleaved".to_string(), ENGINE, self.study.options.clone()),
            ("one by one".to_string(), ENGINE, alone),
        ];
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
        let time = |rate: &f64| self.study.options.threads as f64 / rate * 1e9;
        let added: Vec<f64> = pair[1].iter().zip(&pair[0]).map(|(far, near)| time(far) - time(near)).collect();
        figure.notes.push(format!(
            "a message and its answer: {:.0} ns (what a remote access adds to a transaction of two, one after the other)",
            median(added)
        ));
        self.study.keep(figure)
    }
}

/// YCSB `letter` as the paper has it, with accesses in the home partition only: a partition for each worker.
fn config(arguments: &Arguments, options: &Options, letter: char) -> Result<YcsbConfig, Failure> {
    let each: u64 = if arguments.quick { 30_000 } else { 300_000 };
    let records = arguments.records.unwrap_or(each.saturating_mul(options.threads as u64));
    let partitions = u32::try_from(options.threads).unwrap_or(u32::MAX);
    let preset = YcsbConfig::bionicdb(letter).map_err(Failure::usage)?;
    Ok(YcsbConfig { records, partitions, seed: arguments.seed, ..preset })
}

/// Everything, one figure after the other.
pub(in super::super) fn command(arguments: &Arguments) -> Outcome {
    let options = arguments.workers.apply(Options::default());
    let widest = YcsbConfig { operations: ACCESSES[ACCESSES.len() - 1], ..config(arguments, &options, 'c')? };
    let live = Live::new(std::iter::once("bionicdb"));
    let mut paper =
        Paper { arguments, study: Study::begin(arguments.scope("bionicdb"), options, &live, &[ENGINE], &widest)? };
    paper.hash()?;
    paper.ordered()?;
    paper.interleaving()?;
    paper.sites()?;
    paper.study.end()
}
