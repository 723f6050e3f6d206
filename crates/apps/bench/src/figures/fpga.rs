//! `lockwork-bench fpga`: figures 10 to 13 of the BionicDB paper (sections 5.5 to 5.7) on the transaction processor,
//! simulated cycle by cycle.
//!
//! Cycles are counted by the processor and are the same on every machine; rates are those of 125 MHz, the paper's
//! clock, and say nothing more. One round is enough, because a round is the same every time. A word of memory takes 80
//! cycles and every worker gets one word a cycle, unless options say otherwise.
//!
//! The paper's peaks (7 M searches and 8.5 M inserts a second) can be read for one worker or for all four; both
//! readings stand under the figure.

mod probe;

use std::time::Instant;

use lockwork_engine::{Engine, Interleave, Options};
use lockwork_fpga::configurations::Configuration;
use lockwork_fpga::driver::Settings;
use lockwork_fpga::engine::{FpgaEngine, settings};
use lockwork_fpga::memory::Behaviour;
use lockwork_fpga::simulated::{SimulatedCard, Simulation};
use lockwork_workload::Workload;
use lockwork_workload::tpcc::{Mix, Tpcc};

use super::super::measure::{Plan, input, load, verify};
use super::super::options::{Results, empty_entry, whole};
use super::super::progress::Live;
use super::super::workloads::boxed;
use super::super::{Failure, Outcome};
use super::{ACCESSES, Figure, Ratio, Scope, Study};
use probe::{Operation, Probe};

/// The clock that the paper's machine has.
const CLOCK_HZ: f64 = 125e6;
/// DB instructions in flight in a worker.
const IN_FLIGHT: [u32; 10] = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48];
const MODES: [(&str, Interleave); 3] =
    [("serial", Interleave::None), ("batch", Interleave::Batch), ("dynamic", Interleave::Dynamic)];

/// Options of `fpga`.
#[derive(Clone, Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// Workers of the processor
    #[arg(long, default_value_t = 4, value_parser = whole::<usize>, allow_negative_numbers = true)]
    threads: usize,
    /// A tenth of the work, and one short round
    #[arg(long)]
    quick: bool,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
    /// Figures or parts of them, with commas, such as 10, 11, 12b, 13 [default: all]
    #[arg(long, value_delimiter = ',')]
    figure: Vec<String>,
    /// The processor, as hardware/rtl/configurations.toml names them; with other values of fields if wanted,
    /// as in paper,entries=4096
    #[arg(long, default_value = "paper")]
    configuration: String,
    /// Cycles from a word's request to its answer, 1 to 1000
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=1000))]
    latency: u32,
    /// Words of memory in a cycle for all workers together [default: one for each]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    words: Option<u32>,
    /// Writes a waveform (VCD) of the last machine that was measured to this file; large
    #[arg(long)]
    waveform: Option<std::path::PathBuf>,
}

/// A processor to be, but for what is measured.
#[derive(Clone)]
struct Machine {
    configuration: Configuration,
    behaviour: Behaviour,
    workers: usize,
    interleave: Interleave,
    in_flight: u32,
    waveform: Option<std::path::PathBuf>,
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    cycles: u64,
    transactions: usize,
    /// How often transactions began again.
    restarts: u64,
    /// Of this machine's time, by the simulator and the driver.
    seconds: f64,
}

impl Machine {
    fn engine(&self) -> Result<Box<dyn Engine>, Failure> {
        let options = Options { threads: self.workers, interleave: self.interleave, ..Options::default() };
        let (behaviour, waveform) = (self.behaviour.clone(), self.waveform.clone());
        let simulation = Simulation { behaviour, waveform, ..Simulation::new(self.configuration.clone()) };
        let card = Box::new(SimulatedCard::new(&simulation)?);
        let settings = Settings { inflight: self.in_flight, ..settings(&options) };
        Ok(Box::new(FpgaEngine::new(card, options, settings)?))
    }
}

/// Runs `transactions` calls of a workload as one batch and checks everything afterwards.
fn run(engine: &mut dyn Engine, workload: &mut dyn Workload, transactions: usize) -> Result<Taken, Failure> {
    let plan = Plan {
        transactions,
        batch: transactions,
        time: std::time::Duration::ZERO,
        warmup: 0,
        recycled: false,
        ahead: 1,
    };
    let mut done = Vec::new();
    let (mut cycles, mut restarts, mut seconds) = (0, 0, 0.0);
    for batch in input(workload, &plan)? {
        // Tables and procedures go to the card before.
        engine.start()?;
        let begin = Instant::now();
        engine.submit(batch).map_err(|refused| refused.error)?;
        let completed = engine.complete()?.expect("a batch was submitted");
        seconds += begin.elapsed().as_secs_f64();
        cycles += completed.report.device.map_or(0, |device| device.cycles);
        restarts += completed.report.tally.conflicts.total();
        workload.observe(&completed.batch);
        done.push(completed.batch);
    }
    // If the card was lost, this says why.
    engine.digest()?;
    verify(engine, workload, &done)?;
    Ok(Taken { cycles, transactions, restarts, seconds })
}

struct Paper<'a> {
    study: Study<'a>,
    machine: Machine,
    /// Cycles that were simulated since the last figure, and the seconds that this took.
    simulated: (u64, f64),
}

/// Whether a part of a figure was asked for: `12` is all of it, `12b` the part; nothing is everything.
fn is_wanted(wanted: &[String], part: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|name| part.starts_with(name.as_str()))
}

/// Figures, with their parts.
const FIGURES: [&str; 10] = ["10a", "10b", "10c", "10d", "11a", "11b", "11c", "12a", "12b", "13"];

impl Paper<'_> {
    fn quick(&self, count: usize) -> usize {
        if self.study.scope.quick { (count / 8).max(1) } else { count }
    }

    fn show(&self, what: &str) {
        self.study.live.show(0, what);
    }

    /// Transactions of `workload` on a machine that is made for it.
    fn measure(
        &mut self,
        machine: &Machine,
        workload: &mut dyn Workload,
        transactions: usize,
    ) -> Result<Taken, Failure> {
        let mut progress = |what: &str| self.show(&format!("{}: {what}", workload_name(what)));
        let mut engine = load(machine.engine()?, workload, transactions, &mut progress)?;
        self.show(&format!("{} transactions", transactions));
        let taken = run(&mut *engine, workload, transactions)?;
        self.simulated.0 += taken.cycles;
        self.simulated.1 += taken.seconds;
        Ok(taken)
    }

    /// Keeps a figure, and says how fast it was simulated.
    fn keep(&mut self, mut figure: Figure) -> Outcome {
        let (cycles, seconds) = std::mem::take(&mut self.simulated);
        if seconds > 0.0 {
            let rate = (cycles as f64 / seconds).round();
            figure.notes.push(format!("simulated by this machine at {rate} cycles a second"));
        }
        self.study.keep(figure)
    }

    /// A series, of `each` things a transaction: rates, and cycles a thing and a worker.
    fn add(&self, figure: &mut Figure, name: &str, each: usize, taken: &[Taken]) {
        let workers = self.machine.workers as f64;
        let things = |taken: &Taken| (taken.transactions * each) as f64;
        let rate = |taken: &Taken| vec![things(taken) / taken.cycles as f64 * CLOCK_HZ];
        figure.add(name, taken.iter().map(rate).collect());
        let values = taken.iter().map(|taken| taken.cycles as f64 * workers / things(taken)).collect();
        figure.ratios.push(Ratio { name: format!("{name}: cycles of a worker"), values });
    }

    fn in_flight(&mut self, figure: &mut Figure, probe: &Probe, transactions: usize) -> Outcome {
        let mut taken = Vec::new();
        for in_flight in IN_FLIGHT {
            let machine = match probe.what {
                Operation::Insert => self.one_by_one(in_flight),
                _ => Machine { in_flight, ..self.machine.clone() },
            };
            taken.push(self.measure(&machine, &mut probe.clone(), transactions)?);
        }
        self.add(figure, &probe.name(), probe.each, &taken);
        Ok(())
    }

    /// A machine that runs one transaction after the other. Transactions that wait for each other must not share a
    /// limit of instructions in flight: those that wait would use it up.
    fn one_by_one(&self, in_flight: u32) -> Machine {
        Machine { in_flight, interleave: Interleave::None, ..self.machine.clone() }
    }

    fn probe(&self, what: Operation, each: usize, records: u64) -> Probe {
        let records = if self.study.scope.quick { records / 8 } else { records };
        Probe::new(what, each, self.machine.workers, records, self.study.scope.seed)
    }

    fn tpcc(&self, mix: Mix) -> super::Boxed {
        let mut config = self.study.tpcc(mix);
        (config.remote_payment, config.remote_order) = (0.0, 0.0);
        // Pages of simulated memory are slow to fill, and the depth of the index does not depend on how many customers
        // there are. How often NewOrders meet at an item's stock does depend on how many items there are.
        config.customers = 300;
        boxed(Tpcc::new(config))
    }

    /// Figure 10a: the hash index alone.
    fn hash(&mut self) -> Outcome {
        let workers = self.machine.workers;
        let axis = "DB instructions in flight in a worker";
        let title = "hash index, 60 a transaction, nothing else";
        let mut figure = Figure::new("Figure 10a", title, "operations", axis, &IN_FLIGHT);
        let calls = self.quick(workers * 160);
        self.in_flight(&mut figure, &self.probe(Operation::Search, 60, 40_000), calls)?;
        self.in_flight(&mut figure, &self.probe(Operation::Insert, 60, 0), calls)?;
        figure.notes.push("inserts: one transaction after the other".into());
        figure.notes.push("the paper's peaks, read for one worker: searches 17.9 cycles, inserts 14.7".into());
        figure
            .notes
            .push("the paper's peaks, read for four workers: searches 71 cycles of a worker, inserts 59".into());
        self.keep(figure)
    }

    /// Figure 10b: YCSB C.
    fn ycsb(&mut self) -> Outcome {
        let (workers, axis) = (self.machine.workers, "DB instructions in flight in a worker");
        let probe = Probe { payload: 1000, ..self.probe(Operation::Search, 16, 20_000) };
        let mut figure = Figure::new("Figure 10b", "hash index, YCSB C, 16 accesses", "transactions", axis, &IN_FLIGHT);
        let mut taken = Vec::new();
        for in_flight in IN_FLIGHT {
            let machine = Machine { in_flight, ..self.machine.clone() };
            taken.push(self.measure(&machine, &mut probe.clone(), self.quick(workers * 600))?);
        }
        self.add(&mut figure, "YCSB C", 1, &taken);
        self.keep(figure)
    }

    /// Figures 10c and 10d: transactions of TPC-C.
    fn tpcc_alone(&mut self, id: &'static str, name: &str, mix: Mix) -> Outcome {
        let (workers, axis) = (self.machine.workers, "DB instructions in flight in a worker");
        let mut figure = Figure::new(id, &format!("hash index, TPC-C {name}"), "transactions", axis, &IN_FLIGHT[2..]);
        let mut taken = Vec::new();
        for in_flight in &IN_FLIGHT[2..] {
            let machine = self.one_by_one(*in_flight);
            taken.push(self.measure(&machine, &mut *self.tpcc(mix)?, self.quick(workers * 100))?);
        }
        self.add(&mut figure, name, 1, &taken);
        self.keep(figure)
    }

    /// Figures 11a and 11b: the skiplist.
    fn ordered(&mut self, id: &'static str, title: &str, what: Operation, records: u64) -> Outcome {
        let (workers, axis) = (self.machine.workers, "DB instructions in flight in a worker");
        let places = self.machine.configuration.number("skiplist_slots").unwrap_or_default();
        let mut figure = Figure::new(id, title, "operations", axis, &IN_FLIGHT);
        let probe = Probe { ordered: true, ..self.probe(what, 60, records) };
        self.in_flight(&mut figure, &probe, self.quick(workers * 24))?;
        if what == Operation::Insert {
            figure.notes.push("one transaction after the other".into());
        }
        figure.notes.push(format!("the skiplist works on {places} at once (skiplist_slots)"));
        figure.notes.push("the paper: steep to 4 in flight, flatter to 8, then no more; look-ups are faster".into());
        self.keep(figure)
    }

    /// Figure 11c: scans.
    fn scans(&mut self) -> Outcome {
        let (workers, axis) = (self.machine.workers, "DB instructions in flight in a worker");
        let mut figure =
            Figure::new("Figure 11c", "skiplist, YCSB E, scans of 50 rows alone", "scans", axis, &IN_FLIGHT);
        for scanners in [1, 8] {
            let configuration = self.machine.configuration.clone().with("scanners", scanners)?;
            let mut taken = Vec::new();
            for in_flight in IN_FLIGHT {
                let machine = Machine { in_flight, configuration: configuration.clone(), ..self.machine.clone() };
                let mut probe = self.probe(Operation::Scan, 1, 10_000);
                // So many that the last ones, which have the scanners for themselves, do not count.
                taken.push(self.measure(&machine, &mut probe, self.quick(workers * 160).max(workers * 64))?);
            }
            let name = format!("{scanners} scanner{}", if scanners == 1 { "" } else { "s" });
            self.add(&mut figure, &name, 1, &taken);
        }
        figure.compare("8 scanners", "1 scanner");
        figure.notes.push("a scanner waits for memory once a row, to know which is next".into());
        figure.notes.push("the paper: its one scanner is what bounds; 5 would equal a skiplist in software".into());
        self.keep(figure)
    }

    /// Figure 12a: how transactions overlap.
    fn interleaving(&mut self) -> Outcome {
        let workers = self.machine.workers;
        let mut figure =
            Figure::new("Figure 12a", "interleaving, YCSB C", "transactions", "accesses a transaction", &ACCESSES);
        for (name, interleave) in MODES {
            let mut taken = Vec::new();
            for accesses in ACCESSES {
                let machine = Machine { interleave, ..self.machine.clone() };
                let mut probe = self.probe(Operation::Search, accesses as usize, 20_000);
                let calls = self.quick(workers * (4800 / accesses as usize).clamp(100, 1200));
                taken.push(self.measure(&machine, &mut probe, calls)?);
            }
            self.add(&mut figure, name, 1, &taken);
        }
        figure.compare("batch", "serial");
        figure.compare("dynamic", "serial");
        figure.notes.push("the paper: batch / serial 3 with one access, less with more".into());
        self.keep(figure)
    }

    /// Figure 12b: how transactions of TPC-C overlap.
    fn interleaved_tpcc(&mut self) -> Outcome {
        let workers = self.machine.workers;
        let mixes = [("NewOrder", Mix::NewOrder), ("Payment", Mix::Payment), ("both", Mix::NewOrderPayment)];
        let names = mixes.map(|(name, _)| name);
        let mut figure = Figure::new("Figure 12b", "interleaving, TPC-C", "transactions", "transaction", &names);
        for (name, interleave) in MODES {
            let mut taken = Vec::new();
            for (_, mix) in mixes {
                let machine = Machine { interleave, ..self.machine.clone() };
                taken.push(self.measure(&machine, &mut *self.tpcc(mix)?, self.quick(workers * 150))?);
            }
            self.add(&mut figure, name, 1, &taken);
            let values = taken.iter().map(|taken| taken.restarts as f64 / taken.transactions as f64).collect();
            figure.ratios.push(Ratio { name: format!("{name}: begun again, a transaction"), values });
        }
        figure.compare("batch", "serial");
        figure.compare("dynamic", "batch");
        figure.notes.push("the paper: batch / serial 1, nothing gained".into());
        figure.apart = true;
        self.keep(figure)
    }

    /// Figure 13: transactions of one site and of several.
    fn sites(&mut self) -> Outcome {
        let workers = self.machine.workers;
        let names = ["all local", "75 % remote"];
        let mut figure = Figure::new("Figure 13", "sites, YCSB C, 16 accesses", "transactions", "accesses", &names);
        if workers == 1 {
            figure.labels.clear();
            figure.notes.push("one worker has no other to ask: left out (--threads 4)".into());
            return self.keep(figure);
        }
        figure.labels[1] = format!("{} % remote", 100 - 100 / workers);
        for topology in ["crossbar", "ring"] {
            let configuration = self.machine.configuration.clone().with_topology(topology)?;
            let machine = Machine { configuration, ..self.machine.clone() };
            let mut taken = Vec::new();
            for remote in [false, true] {
                let mut probe = Probe { remote, payload: 1000, ..self.probe(Operation::Search, 16, 20_000) };
                taken.push(self.measure(&machine, &mut probe, self.quick(workers * 600))?);
            }
            let to_local = taken.iter().map(|all| taken[0].cycles as f64 / all.cycles as f64).collect();
            self.add(&mut figure, topology, 1, &taken);
            figure.ratios.push(Ratio { name: format!("{topology}: to all local"), values: to_local });
        }
        figure.apart = true;
        figure.notes.push("the paper (crossbar): almost the same".into());
        self.keep(figure)
    }
}

fn workload_name(what: &str) -> &str {
    what.split(' ').next().unwrap_or_default()
}

/// Everything that was asked for, one figure after the other.
pub(in super::super) fn command(arguments: &Arguments) -> Outcome {
    let wanted = &arguments.figure;
    for name in wanted {
        if name.is_empty() {
            return Err(empty_entry("--figure", "--figure 10,13"));
        }
        if name.len() < 2 || !FIGURES.iter().any(|part| part.starts_with(name.as_str())) {
            return Err(Failure::usage(format!(
                "--figure is '{name}'; 10, 11, 12 and 13 are possible, and their parts {}",
                FIGURES[..9].join(", ")
            )));
        }
    }
    let workers = arguments.threads;
    let options = Options { threads: workers, ..Options::default() };
    let configuration = Configuration::named(&arguments.configuration).and_then(|named| named.with_workers(workers));
    let configuration = configuration?;
    let mut behaviour = Behaviour::paper_each();
    behaviour.latency = arguments.latency;
    if let Some(words) = arguments.words {
        behaviour.words_all = f64::from(words);
    }
    let live = Live::new(std::iter::once("fpga"));
    let waveform = arguments.waveform.clone();
    let machine =
        Machine { configuration, behaviour, workers, interleave: Interleave::Dynamic, in_flight: 0, waveform };
    // A machine that cannot be is told before anything is printed.
    drop(machine.engine()?);
    let Arguments { quick, seed, ref results, .. } = *arguments;
    let scope = Scope { name: "fpga", passes: 1, quick, seed, results };
    let study = Study::begin_cycles(scope, options, &live, &machine.describe())?;
    let mut paper = Paper { study, machine, simulated: (0, 0.0) };
    for part in FIGURES.into_iter().filter(|part| is_wanted(wanted, part)) {
        match part {
            "10a" => paper.hash(),
            "10b" => paper.ycsb(),
            "10c" => paper.tpcc_alone("Figure 10c", "NewOrder", Mix::NewOrder),
            "10d" => paper.tpcc_alone("Figure 10d", "Payment", Mix::Payment),
            "11a" => {
                paper.ordered("Figure 11a", "skiplist, sequential inserts, 60 a transaction", Operation::Insert, 0)
            }
            "11b" => paper.ordered("Figure 11b", "skiplist, look-ups, 60 a transaction", Operation::Search, 40_000),
            "11c" => paper.scans(),
            "12a" => paper.interleaving(),
            "12b" => paper.interleaved_tpcc(),
            _ => paper.sites(),
        }?;
    }
    paper.study.end()
}

impl Machine {
    /// What is simulated, in words.
    fn describe(&self) -> String {
        let Behaviour { latency, words_each, words_all, .. } = self.behaviour;
        let count = |count: f64, what: &str| format!("{count} {what}{}", if count == 1.0 { "" } else { "s" });
        format!(
            "configuration {}, {}, simulated; memory {}, {} a cycle for a worker, {words_all} for all; rates at {} MHz",
            self.configuration.name,
            count(self.workers as f64, "worker"),
            count(f64::from(latency), "cycle"),
            count(words_each, "word"),
            CLOCK_HZ / 1e6
        )
    }
}
