//! Results: one structure, printed as a table, JSON or CSV.

use std::collections::BTreeMap;
use std::path::Path;

use lockwork_procedure::block::abort;
use serde::Serialize;

use lockwork_console::chart::{self, grouped};
use lockwork_console::{Environment, Failure, Outcome, Output, print};

/// Latencies in microseconds, from the hand-over of a transaction's batch to its completion.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Latency {
    /// From (nanoseconds, transactions) of every batch.
    pub(super) fn of(mut batches: Vec<(u64, u64)>) -> Self {
        batches.sort_unstable();
        let total: u64 = batches.iter().map(|(_, count)| count).sum();
        let at = |share: f64| {
            let wanted = (total as f64 * share).ceil() as u64;
            let mut seen = 0;
            let found = batches.iter().find(|(_, count)| {
                seen += count;
                seen >= wanted
            });
            found.map_or(0.0, |(ns, _)| *ns as f64 / 1e3)
        };
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// Memory of the tables after loading, in MiB.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Memory {
    /// Keys and values alone.
    pub(super) row_images: f64,
    /// Reserved for rows, headers and alignment included.
    pub(super) rows: f64,
    /// Reserved for indexes.
    pub(super) index: f64,
    /// By how much loading made the process grow.
    pub(super) resident: f64,
}

/// What a device spent on batches: medians of whole batches in milliseconds, and shares of the whole run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DeviceRun {
    pub(super) batches: usize,
    /// Blocks of a whole batch.
    pub(super) blocks: usize,
    pub(super) planning_ms: f64,
    pub(super) transfer_in_ms: f64,
    pub(super) execution_ms: f64,
    pub(super) transfer_out_ms: f64,
    /// Parts of a batch that ran one after the other, on average.
    pub(super) waves: f64,
    /// Planning to execution and transfers; below 1 planning does not keep the device waiting.
    pub(super) planning_share: f64,
    /// How much of the four times lay behind another one.
    pub(super) hidden_share: f64,
    pub(super) kernel_txn_per_s: f64,
}

/// What one engine did.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) engine: String,
    pub(super) throughput_txn_per_s: f64,
    pub(super) accesses_per_s: f64,
    pub(super) latency_us: Latency,
    pub(super) transactions: u64,
    pub(super) committed: u64,
    pub(super) aborts: BTreeMap<String, u64>,
    pub(super) conflicts: u64,
    pub(super) conflict_causes: BTreeMap<String, u64>,
    pub(super) planning_share: f64,
    pub(super) payload_bytes_per_txn: u32,
    pub(super) memory_mib: Memory,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<DeviceRun>,
    pub(super) verified: bool,
    pub(super) verification: String,
    pub(super) digest: String,
}

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: u32,
    pub(super) environment: Environment,
    pub(super) settings: serde_json::Value,
    pub(super) runs: Vec<Run>,
}

/// An abort code in words.
pub(super) fn abort_name(code: u16) -> String {
    abort::describe(code).map_or_else(|| format!("code {code}"), str::to_string)
}

/// A result in every form that it is printed or saved in.
pub(super) struct Forms {
    pub(super) text: String,
    pub(super) json: String,
    pub(super) csv: String,
    /// Of the chart.
    pub(super) title: String,
    /// What the bars count.
    pub(super) unit: &'static str,
    pub(super) bars: Vec<(String, f64)>,
}

impl Forms {
    /// Prints one form, and saves the others if there is a folder for them.
    pub(super) fn give(&self, output: Output, folder: Option<&Path>) -> Outcome {
        print(match output {
            Output::Text => &self.text,
            Output::Json => &self.json,
            Output::Csv => &self.csv,
        })?;
        let Some(folder) = folder else { return Ok(()) };
        prepare_folder(Some(folder))?;
        let chart = chart::bars(&self.title, self.unit, &self.bars);
        for (name, text) in [("result.json", &self.json), ("result.csv", &self.csv), ("throughput.svg", &chart)] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

/// Makes the folder for results, and tries whether it takes some: before minutes of work, not after.
pub(super) fn prepare_folder(folder: Option<&Path>) -> Outcome {
    let Some(folder) = folder else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| {
        let problem = if folder.exists() && !folder.is_dir() {
            "is a file; --out wants a folder".into()
        } else {
            error.to_string()
        };
        Failure::usage(format!("{}: {problem}", folder.display()))
    })?;
    let refused = |error| format!("{}: {error}; --out wants a folder that takes files", folder.display());
    probe(folder).map_err(|error| Failure::usage(refused(error)))
}

/// Writes a file into a folder, as large as results are, and removes it.
pub(super) fn probe(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".lockwork-probe-{}", std::process::id()));
    let written = std::fs::write(&path, vec![0x5a; 256 << 10]);
    // Half of it may be there.
    let removed = std::fs::remove_file(&path);
    written.and(removed)
}

impl Report {
    /// The times of devices, a line for each run on one.
    pub(super) fn profile(&self) -> String {
        let mut text = format!(
            "\n{:<20} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>6} {:>13} {:>7} {:>14}\n",
            "per batch, ms",
            "batches",
            "blocks",
            "planning",
            "in",
            "kernels",
            "out",
            "waves",
            "plan/device",
            "hidden",
            "kernel txn/s"
        );
        let on_device = self.runs.iter().filter_map(|run| Some((run, run.device.as_ref()?)));
        for (run, d) in on_device {
            text.push_str(&format!(
                "{:<20} {:>8} {:>8} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>6.1} {:>13.2} {:>6.0}% {:>14}\n",
                run.engine,
                d.batches,
                d.blocks,
                d.planning_ms,
                d.transfer_in_ms,
                d.execution_ms,
                d.transfer_out_ms,
                d.waves,
                d.planning_share,
                d.hidden_share * 100.0,
                grouped(d.kernel_txn_per_s)
            ));
        }
        text
    }

    /// The result in every form.
    pub(super) fn forms(&self) -> Forms {
        Forms {
            text: self.text(),
            json: serde_json::to_string_pretty(self).expect("plain data") + "\n",
            csv: self.csv(),
            title: self.settings["workload"].as_str().unwrap_or("benchmark").to_string(),
            unit: "transactions a second",
            bars: self.runs.iter().map(|run| (run.engine.clone(), run.throughput_txn_per_s)).collect(),
        }
    }

    fn csv(&self) -> String {
        let mut text = String::from(
            "engine,throughput_txn_per_s,accesses_per_s,p50_us,p99_us,p999_us,max_us,committed,aborted,conflicts,verified,digest\n",
        );
        for run in &self.runs {
            let (l, aborted) = (&run.latency_us, run.aborts.values().sum::<u64>());
            text.push_str(&format!(
                "{},{:.0},{:.0},{:.1},{:.1},{:.1},{:.1},{},{aborted},{},{},{}\n",
                run.engine,
                run.throughput_txn_per_s,
                run.accesses_per_s,
                l.p50,
                l.p99,
                l.p999,
                l.max,
                run.committed,
                run.conflicts,
                run.verified,
                run.digest
            ));
        }
        text
    }

    fn text(&self) -> String {
        let e = &self.environment;
        let mut text = format!("{}, {} cores, kernel {}, commit {}\n", e.cpu, e.cores, e.kernel, e.commit);
        text.push_str(&format!("settings {}\n\n", self.settings));
        text.push_str(&format!(
            "{:<20} {:>12} {:>12} {:>9} {:>9} {:>10} {:>10} {:>9}  {}\n",
            "engine", "txn/s", "accesses/s", "p50 us", "p99 us", "aborted", "conflicts", "plan", "verified"
        ));
        for run in &self.runs {
            text.push_str(&format!(
                "{:<20} {:>12.0} {:>12.0} {:>9.0} {:>9.0} {:>10} {:>10} {:>8.0}%  {}\n",
                run.engine,
                run.throughput_txn_per_s,
                run.accesses_per_s,
                run.latency_us.p50,
                run.latency_us.p99,
                run.aborts.values().sum::<u64>(),
                run.conflicts,
                run.planning_share * 100.0,
                if run.verified { &run.verification } else { "NO" },
            ));
        }
        if let Some(run) = self.runs.first() {
            let (bytes, m) = (run.payload_bytes_per_txn, &run.memory_mib);
            text.push_str(&format!(
                "{bytes} payload bytes read or written a transaction; {:.0} MiB of row images, {:.0} MiB of indexes, \
                 {:.0} MiB resident: {:.2} times\n",
                m.row_images,
                m.index,
                m.resident,
                m.resident / (m.row_images + m.index)
            ));
        }
        match self.runs.as_slice() {
            [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|run| run.digest == first.digest) => {
                text.push_str(&format!("digest {} on all engines\n", first.digest));
            }
            runs => {
                runs.iter().for_each(|run| text.push_str(&format!("  {}: digest {}\n", run.engine, run.digest)));
            }
        }
        for run in &self.runs {
            for (cause, count) in &run.aborts {
                text.push_str(&format!("  {}: {count} aborted: {cause}\n", run.engine));
            }
            for (cause, count) in &run.conflict_causes {
                text.push_str(&format!("  {}: {count} began again: {cause}\n", run.engine));
            }
        }
        text
    }
}
