//! `lockwork-bench copy`: the cost of copying blocks to a device. `lockwork-bench opencl`: the evaluation of HOBBES on
//! this machine, figure by figure, as tables and charts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use lockwork_engine::{EngineKind, Options, Settings};
use lockwork_opencl::{CopyTimes, copies, random_lines};
use lockwork_procedure::block::Batch;
use lockwork_workload::Workload;
use lockwork_workload::statistics::median;
use lockwork_workload::ycsb::{Ycsb, YcsbConfig};

use super::chart::{bars, grouped, lines};
use super::measure::{AHEAD, Plan, prepare, run};
use super::options::{Results, whole};
use super::progress::Live;
use super::report::{DeviceRun, Forms, Run, prepare_folder};
use super::workloads::{Boxed, boxed};
use super::{EngineOptions, Environment, Failure, Outcome, locks, print};

/// Batches from 1 k to 256 k blocks.
const SIZES: [usize; 9] = [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18];
/// The batch of HOBBES (section 3.3.2).
const BATCH: usize = 131_072;
const OPENCL: [EngineKind; 2] = [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE];

/// Options of `copy`.
#[derive(Debug, Args)]
pub(super) struct CopyArguments {
    #[command(flatten)]
    engine_options: EngineOptions,
    #[command(flatten)]
    results: Results,
}

/// Options of `opencl`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    engine_options: EngineOptions,
    /// Records of YCSB
    #[arg(long, default_value_t = 1_000_000, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: u64,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    /// A folder for the charts
    #[arg(long, default_value = "out/opencl")]
    out: PathBuf,
}

/// The number of the OpenCL device that the user names.
fn device(options: &EngineOptions) -> Result<Option<u16>, Failure> {
    Ok(lockwork_opencl::device(&options.settings(lockwork_opencl::ENGINES)?)?)
}

/// Bytes of a YCSB block: one that carries a key, a field to write and a field read.
fn stride() -> Result<usize, Failure> {
    let workload = Ycsb::new(YcsbConfig { records: 1, ..YcsbConfig::hobbes('b').map_err(Failure::usage)? });
    Ok((workload.map_err(Failure::usage)?.block_bytes() as usize).next_multiple_of(64))
}

fn per_thousand(copy: &CopyTimes) -> [f64; 2] {
    [copy.in_ns, copy.out_ns].map(|ns| ns as f64 / copy.blocks as f64)
}

/// Time for a thousand blocks against batch size (HOBBES, figure 3.4).
pub(super) fn copy(arguments: &CopyArguments) -> Outcome {
    let device = device(&arguments.engine_options)?;
    let stride = stride()?;
    arguments.results.prepare()?;
    let times = copies(device, stride, &SIZES)?;
    let environment = Environment::read();
    let rows: Vec<_> = times
        .iter()
        .map(|copy| {
            let [into, out] = per_thousand(copy);
            serde_json::json!({ "blocks": copy.blocks, "in_us_per_1000": into, "out_us_per_1000": out })
        })
        .collect();
    let settings = serde_json::json!({ "workload": "copy", "block_bytes": stride });
    let report = serde_json::json!({ "schema": 1, "environment": environment, "settings": settings, "runs": rows });
    let table = |text: String, copy: &CopyTimes| {
        let [into, out] = per_thousand(copy);
        format!("{text}{:>8} {into:>22.1} {out:>22.1}\n", copy.blocks)
    };
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: times.iter().fold("blocks,in_us_per_1000,out_us_per_1000\n".to_string(), |text, copy| {
            let [into, out] = per_thousand(copy);
            format!("{text}{},{into:.2},{out:.2}\n", copy.blocks)
        }),
        text: times.iter().fold(
            format!(
                "{}, commit {}\nblocks of {stride} bytes, one copy after the other, medians of 5\n\n\
                 {:>8} {:>22} {:>22}\n",
                environment.cpu, environment.commit, "blocks", "to, us a thousand", "from, us a thousand"
            ),
            table,
        ),
        title: "copies to and from the device".into(),
        unit: "microseconds for a thousand blocks, to the device",
        bars: times.iter().map(|copy| (grouped(copy.blocks as f64), per_thousand(copy)[0])).collect(),
    };
    arguments.results.give(&forms)
}

/// What the whole evaluation needs.
struct Evaluation<'a> {
    device: u16,
    options: Options,
    records: u64,
    time: Duration,
    seed: u64,
    folder: PathBuf,
    live: &'a Live,
}

impl Evaluation<'_> {
    fn ycsb(&self, letter: char, theta: f64) -> Boxed {
        let preset = YcsbConfig::hobbes(letter).map_err(Failure::usage)?;
        let config = YcsbConfig { records: self.records, theta, seed: self.seed, ..preset };
        boxed(Ycsb::new(config))
    }

    /// Runs YCSB `letter` in batches of `batch`, with `ahead` of them under way.
    fn run(&self, kind: EngineKind, letter: char, theta: f64, batch: usize, ahead: usize) -> Result<Run, Failure> {
        let plan = Plan {
            transactions: (8 * batch).clamp(BATCH, 8 * BATCH),
            batch,
            time: self.time,
            warmup: 1,
            recycled: false,
            ahead,
        };
        let mut show = |what: &str| self.live.show(0, &format!("{kind}, YCSB {letter}, batch {batch}: {what}"));
        let run = run(kind, &self.options, self.ycsb(letter, theta)?, &plan, &mut show)?;
        if run.verified { Ok(run) } else { Err(Failure::Check(format!("{kind}: {}", run.verification))) }
    }

    fn save(&self, name: &str, chart: &str) -> Outcome {
        let path = self.folder.join(name);
        std::fs::write(&path, chart).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    }

    /// Figure 3.4: transfer time against batch size.
    fn transfers(&self) -> Outcome {
        let times = copies(Some(self.device), stride()?, &SIZES)?;
        print("\nFigure 3.4: microseconds of copying for a thousand blocks, against blocks of a batch\n")?;
        for copy in &times {
            let [into, out] = per_thousand(copy);
            print(&format!("  {:>8} blocks {into:>8.1} to the device {out:>8.1} back\n", copy.blocks))?;
        }
        let labels: Vec<String> = times.iter().map(|copy| format!("{}k", copy.blocks >> 10)).collect();
        let column = |at: usize| times.iter().map(|copy| per_thousand(copy)[at]).collect();
        let series = [("to the device".to_string(), column(0)), ("back".to_string(), column(1))];
        self.save("3.4.svg", &lines("Transfer time", "microseconds for a thousand blocks", &labels, &series))
    }

    /// Figure 3.9: lock managers.
    fn managers(&self) -> Outcome {
        print("\nFigure 3.9: locks granted and released a second, one core, theta 0.5\n")?;
        let mut values = Vec::new();
        for (mix, writes) in [('a', 0.5), ('b', 0.05)] {
            let settings = locks::Settings {
                records: self.records as u32,
                transactions: 4 << 20,
                batch: BATCH as u32,
                theta: 0.5,
                writes,
                seed: self.seed,
            };
            let accesses = locks::stream(&settings)?;
            for (name, measured) in
                [("queue", locks::queue(&settings, &accesses)?), ("batch", locks::batch(&settings, &accesses)?)]
            {
                let rate = measured.verified(name)?;
                print(&format!("  mix {mix}, {name:<6} {:>14}\n", grouped(rate)))?;
                values.push((format!("{name}, mix {mix}"), rate));
            }
        }
        self.save("3.9.svg", &bars("Lock managers", "locks a second on one core, theta 0.5", &values))
    }

    /// Figures 4.3 and 4.4: kernels and transfers, one batch at a time; the engines in turn, medians of three.
    fn kernels(&self, theta: f64) -> Outcome {
        print(&format!(
            "\nFigures 4.3 and 4.4: YCSB B, theta {theta}, batches of {BATCH}, one at a time; milliseconds\n"
        ))?;
        let mut rounds = OPENCL.map(|_| Vec::new());
        for _ in 0..3 {
            for (kind, rounds) in OPENCL.into_iter().zip(&mut rounds) {
                rounds.push(*device_of(&self.run(kind, 'b', theta, BATCH, 1)?)?);
            }
        }
        let (mut kernel, mut all) = (Vec::new(), Vec::new());
        for (kind, rounds) in OPENCL.into_iter().zip(&rounds) {
            let of = |of: fn(&DeviceRun) -> f64| median(rounds.iter().map(of));
            let (into, kernels, back) = (of(|d| d.transfer_in_ms), of(|d| d.execution_ms), of(|d| d.transfer_out_ms));
            let planning = of(|d| d.planning_ms);
            let name = kind.name();
            print(&format!(
                "  {name:<22} to the device {into:>6.2}  kernels {kernels:>6.2}  back {back:>6.2}  planning \
                 {planning:>6.2} ({:.2} of the others)\n",
                planning / (into + kernels + back)
            ))?;
            kernel.push((name.to_string(), kernels));
            let parts = [("in", into), ("kernels", kernels), ("back", back)];
            all.extend(parts.map(|(what, time)| (format!("{name}: {what}"), time)));
        }
        let ratios: Vec<f64> =
            rounds[0].iter().zip(&rounds[1]).map(|(d, t)| t.execution_ms / d.execution_ms.max(1e-9)).collect();
        let ratio = median(ratios.iter().copied());
        print(&format!("  two-phase kernel to deterministic kernel: {ratio:.2} (in turn: {ratios:.2?})\n"))?;
        self.save(&format!("4.3-theta-{theta}.svg"), &bars("Kernel time", "milliseconds a batch", &kernel))?;
        self.save(&format!("4.4-theta-{theta}.svg"), &bars("Time on the device", "milliseconds a batch", &all))
    }

    /// Figure 4.5: throughput.
    fn throughput(&self) -> Outcome {
        print(&format!("\nFigure 4.5: transactions a second, theta 0.1, batches of {BATCH}\n"))?;
        let mut values = Vec::new();
        for letter in ['a', 'b'] {
            for kind in [EngineKind::TWO_PHASE, EngineKind::DETERMINISTIC, OPENCL[1], OPENCL[0]] {
                let run = self.run(kind, letter, 0.1, BATCH, AHEAD)?;
                print(&format!("  YCSB {letter}, {:<22} {:>14}\n", run.engine, grouped(run.throughput_txn_per_s)))?;
                values.push((format!("{letter}: {}", run.engine), run.throughput_txn_per_s));
            }
        }
        self.save("4.5.svg", &bars("Throughput", "transactions a second", &values))
    }

    /// Figure 4.6: latency of one read, from the first block of its batch to its result.
    fn latency(&self) -> Outcome {
        print("\nFigure 4.6: microseconds of one read, the filling of its batch included\n")?;
        let mut values = Vec::new();
        for (kind, blocks) in
            [(EngineKind::TWO_PHASE, 1), (EngineKind::DETERMINISTIC, 1), (OPENCL[1], BATCH), (OPENCL[0], BATCH)]
        {
            let median = self.one_latency(kind, blocks)?;
            print(&format!("  {:<22} {median:>12.1}  (batch of {blocks})\n", kind.name()))?;
            values.push((kind.name().to_string(), median));
        }
        self.save("4.6.svg", &bars("Latency of a read", "microseconds, the filling of the batch included", &values))
    }

    fn one_latency(&self, kind: EngineKind, blocks: usize) -> Result<f64, Failure> {
        let mut workload = self.ycsb('c', 0.1)?;
        let mut show = |what: &str| self.live.show(0, &format!("{kind}, latency: {what}"));
        let mut engine = prepare(kind, &self.options, &mut *workload, 0, &mut show)?;
        let repeats = if blocks == 1 { 20_000 } else { 8 };
        let mut times = Vec::new();
        let mut batch = Batch::new(workload.block_bytes(), blocks).map_err(Failure::usage)?;
        for _ in 0..repeats {
            batch.clear();
            let start = Instant::now();
            workload.fill(&mut batch, blocks).map_err(Failure::usage)?;
            engine.submit(batch).map_err(|refused| Failure::from(refused.error))?;
            batch = engine.complete()?.expect("a batch is in flight").batch;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        workload.check_results(&batch).map_err(|error| Failure::Check(format!("{kind}: {error}")))?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Batch size against throughput and latency.
    fn batches(&self) -> Outcome {
        print("\nBatch size, opencl-deterministic, YCSB B, theta 0.1\n")?;
        print("     blocks          txn/s       p50 us   plan/device   hidden\n")?;
        let (mut rates, mut delays) = (Vec::new(), Vec::new());
        for size in SIZES {
            let run = self.run(OPENCL[0], 'b', 0.1, size, AHEAD)?;
            let (rate, p50, d) = (run.throughput_txn_per_s, run.latency_us.p50, device_of(&run)?);
            let (share, hidden) = (d.planning_share, d.hidden_share * 100.0);
            print(&format!("   {size:>8} {:>14} {p50:>12.0} {share:>13.2} {hidden:>7.0}%\n", grouped(rate)))?;
            rates.push(rate);
            delays.push(p50);
        }
        let labels: Vec<String> = SIZES.iter().map(|size| format!("{}k", size >> 10)).collect();
        let rate = [("opencl-deterministic".to_string(), rates)];
        self.save(
            "batch-throughput.svg",
            &lines("Batch size and throughput", "transactions a second", &labels, &rate),
        )?;
        let delay = [("opencl-deterministic, p50".to_string(), delays)];
        self.save("batch-latency.svg", &lines("Batch size and latency", "microseconds", &labels, &delay))
    }
}

fn device_of(run: &Run) -> Result<&DeviceRun, Failure> {
    run.device.as_ref().ok_or_else(|| Failure::Check(format!("{} reported no times of a device", run.engine)))
}

/// Everything, one figure after the other.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    let used = lockwork_opencl::chosen(device(&arguments.engine_options)?)?;
    let mut settings = Settings::default();
    settings.set("device", used.number.to_string());
    let records = arguments.records;
    if !(1_000..=100_000_000).contains(&records) {
        return Err(Failure::usage(format!("--records is {records}; 1000 to 100000000 are possible")));
    }
    let folder = arguments.out.clone();
    prepare_folder(Some(&folder))?;
    let live = Live::new(std::iter::once("opencl"));
    let evaluation = Evaluation {
        device: used.number,
        options: Options { settings, ..Options::default() },
        records,
        time: Duration::from_secs_f64(0.7),
        seed: arguments.seed,
        folder,
        live: &live,
    };
    let environment = Environment::read();
    print(&format!(
        "{}, {} cores, commit {}, seed {}; {} records\ndevice: {} '{}', {} compute units; {}\n",
        environment.cpu,
        environment.cores,
        environment.commit,
        evaluation.seed,
        evaluation.records,
        used.kind.name(),
        used.name,
        used.compute_units,
        used.version
    ))?;
    let random = random_lines(Some(used.number))?;
    let copy = copies(Some(used.number), 1 << 10, &[1 << 16])?[0];
    let rate = |ns: u64| (copy.blocks << 10) as f64 / ns.max(1) as f64;
    print(&format!(
        "limits: {} random lines a second; copies of 64 MiB {:.1} GB/s to the device, {:.1} GB/s back\n",
        grouped(random),
        rate(copy.in_ns),
        rate(copy.out_ns)
    ))?;
    evaluation.transfers()?;
    evaluation.managers()?;
    evaluation.kernels(0.1)?;
    evaluation.kernels(0.5)?;
    evaluation.throughput()?;
    evaluation.latency()?;
    evaluation.batches()?;
    print(&format!("\nCharts: {}\n", evaluation.folder.display()))
}
