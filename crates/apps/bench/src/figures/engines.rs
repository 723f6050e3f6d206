//! `lockwork-bench engines`: all engines on all workloads, and on YCSB A against skew, remote accesses and accesses of
//! a transaction.
//!
//! The three figures, and the single records of YCSB A, B and C, are measured on tables that every engine loads once.
//! Transactions of figures have 16 accesses unless that is what changes: those of one access hardly ever conflict. The
//! last point of the skew is a table of 64 rows, where every transaction conflicts with every other one.
//!
//! Engines count a transaction as the widest registered procedure when they fill their windows, so transactions of more
//! accesses are registered after those of fewer have been measured.

use lockwork_engine::EngineKind;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Mix, Tpcc};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::ycsb::YcsbConfig;

use super::super::options::Engines;
use super::super::progress::Live;
use super::super::workloads::boxed;
use super::super::{Failure, Outcome};
use super::race::{Contestant, Make, Rates};
use super::{ACCESSES, Arguments as Common, Figure, MANY, ORDERS, REMOTE, Study, ycsb};

const SKEWS: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.9, 0.99];
const HOT_ROWS: u64 = 64;
/// Accesses of a transaction where they do not change.
const SEVERAL: u32 = 16;
/// Calls of a round where each conflicts with every other: a slice ends with a batch, which must not take minutes.
const STORM: usize = 1_000;

struct Side<'a> {
    common: &'a Common,
    study: Study<'a>,
    kinds: Vec<EngineKind>,
}

impl Side<'_> {
    fn names(&self) -> Vec<&'static str> {
        self.kinds.iter().map(|kind| kind.name()).collect()
    }

    fn config(&self, letter: char) -> Result<YcsbConfig, Failure> {
        config(self.common, letter)
    }

    fn contestants(&self, calls: usize, make: &Make<'_>) -> Result<Vec<Contestant>, Failure> {
        let side = |&kind: &EngineKind| (kind.name().to_string(), kind, self.study.options.clone());
        let sides: Vec<_> = self.kinds.iter().map(side).collect();
        self.study.race(calls).contestants(&sides, make)
    }

    /// The rates of a workload on every engine.
    fn rates(&self, calls: usize, on: &mut [Contestant], make: &Make<'_>) -> Result<Vec<Rates>, Failure> {
        let entries = (0..on.len()).map(|at| Ok((at, make()?))).collect::<Result<_, Failure>>()?;
        self.study.race(calls).run(on, entries)
    }

    /// Puts the rates of (point, engine) into a figure, a series for each engine.
    fn fill(&self, figure: &mut Figure, points: &[Vec<Rates>]) {
        for (at, kind) in self.kinds.iter().enumerate() {
            figure.add(kind.name(), points.iter().map(|engines| engines[at].clone()).collect());
        }
    }

    /// One point after the other, each a YCSB A that differs in what `change` does.
    fn points<T: Copy>(
        &self,
        on: &mut [Contestant],
        axis: &[T],
        change: impl Fn(&mut YcsbConfig, T),
    ) -> Result<Vec<Vec<Rates>>, Failure> {
        let mut points = Vec::new();
        for &value in axis {
            let mut config = YcsbConfig { operations: SEVERAL, ..self.config('a')? };
            change(&mut config, value);
            points.push(self.rates(MANY, on, &|| ycsb(&config))?);
        }
        Ok(points)
    }

    /// The figures, and the first rows of the table of workloads.
    fn ycsb(&mut self) -> Result<Figure, Failure> {
        let base = self.config('a')?;
        let mut on = self.contestants(MANY, &|| ycsb(&base))?;
        let mut table = Figure::new("workloads", "every workload", "transactions", "engine", &self.names());
        table.apart = true;
        for letter in ['a', 'b', 'c'] {
            let config = self.config(letter)?;
            table.add(&format!("ycsb-{letter}"), self.rates(MANY, &mut on, &|| ycsb(&config))?);
        }

        let (few, most) = ACCESSES.split_at(ACCESSES.iter().take_while(|&&count| count <= SEVERAL).count());
        let count = |config: &mut YcsbConfig, count| config.operations = count;
        let mut accesses = self.points(&mut on, few, count)?;

        let labels: Vec<String> = SKEWS.iter().map(f64::to_string).chain([format!("{HOT_ROWS} rows")]).collect();
        let mut figure = Figure::new("skew", "YCSB A, 16 accesses, against skew", "transactions", "theta", &labels);
        let mut points = self.points(&mut on, &SKEWS, |config, theta| config.theta = theta)?;
        let hot = YcsbConfig { records: HOT_ROWS, operations: SEVERAL, ..self.config('a')? };
        let mut crowded = self.contestants(STORM, &|| ycsb(&hot))?;
        points.push(self.rates(STORM, &mut crowded, &|| ycsb(&hot))?);
        drop(crowded);
        self.fill(&mut figure, &points);
        self.study.keep(figure)?;

        let partitions = self.study.options.threads as u32;
        if partitions > 1 {
            let title = "YCSB A, 16 accesses, against remote ones";
            let mut figure = Figure::new("remote", title, "transactions", "share of remote", &REMOTE);
            let points = self.points(&mut on, &REMOTE, |config, remote| {
                (config.partitions, config.remote) = (partitions, remote);
            })?;
            self.fill(&mut figure, &points);
            self.study.keep(figure)?;
        }

        accesses.extend(self.points(&mut on, most, count)?);
        for (point, count) in accesses.iter_mut().zip(ACCESSES) {
            point.iter_mut().flatten().for_each(|rate| *rate *= f64::from(count));
        }
        let title = "YCSB A, against accesses of a transaction; transactions times accesses";
        let mut figure = Figure::new("accesses", title, "accesses", "accesses", &ACCESSES);
        self.fill(&mut figure, &accesses);
        self.study.keep(figure)?;
        Ok(table)
    }

    /// The other rows of the table.
    fn workloads(&mut self, mut table: Figure) -> Outcome {
        let (quick, seed) = (self.common.quick, self.common.seed);
        let scans = self.config('e')?;
        let accounts = scans.records;
        let subscribers = if quick { 10_000 } else { TatpConfig::default().subscribers };
        let [standard, pair] = [Mix::Standard, Mix::NewOrderPayment].map(|mix| self.study.tpcc(mix));
        let makes: [(&str, usize, &Make<'_>); 6] = [
            ("ycsb-e", MANY, &|| ycsb(&scans)),
            ("transfer", MANY, &|| {
                let config = TransferConfig { accounts, seed, ..TransferConfig::default() };
                boxed(Transfer::new(config))
            }),
            ("smallbank", MANY, &|| {
                let config = SmallbankConfig { accounts, seed, ..SmallbankConfig::default() };
                boxed(Smallbank::new(config))
            }),
            ("tatp", MANY, &|| boxed(Tatp::new(TatpConfig { subscribers, seed, ..TatpConfig::default() }))),
            ("tpcc", ORDERS, &|| boxed(Tpcc::new(standard.clone()))),
            ("tpcc-np", ORDERS, &|| boxed(Tpcc::new(pair.clone()))),
        ];
        for (name, calls, make) in makes {
            let mut on = self.contestants(calls, make)?;
            table.add(name, self.rates(calls, &mut on, make)?);
        }
        self.study.keep(table)
    }
}

/// Options of `engines`.
#[derive(Clone, Debug, clap::Args)]
pub(in super::super) struct Arguments {
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    common: Common,
}

/// YCSB `letter` as HOBBES has it.
fn config(arguments: &Common, letter: char) -> Result<YcsbConfig, Failure> {
    let records = arguments.records.unwrap_or(if arguments.quick { 100_000 } else { 1_000_000 });
    let preset = YcsbConfig::hobbes(letter).map_err(Failure::usage)?;
    Ok(YcsbConfig { records, seed: arguments.seed, ..preset })
}

/// Everything, one figure after the other, and the table.
pub(in super::super) fn command(arguments: &Arguments) -> Outcome {
    let common = &arguments.common;
    let (kinds, options) = arguments.engines.choose(EngineKind::CPU)?;
    let options = common.workers.apply(options);
    let partitions = u32::try_from(options.threads).unwrap_or(u32::MAX);
    let widest = YcsbConfig { operations: ACCESSES[ACCESSES.len() - 1], partitions, ..config(common, 'a')? };
    let live = Live::new(std::iter::once("engines"));
    let study = Study::begin(common.scope("engines"), options, &live, &kinds, &widest)?;
    let mut side = Side { common, study, kinds };
    let table = side.ycsb()?;
    side.workloads(table)?;
    side.study.end()
}
