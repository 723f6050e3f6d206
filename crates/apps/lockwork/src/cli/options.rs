//! Which options of `lockwork bench` mean something for which workload: whoever gives another one is told, instead of
//! believing that it was used.

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{Failure, Outcome};

/// Options of every workload that runs on engines.
const ENGINES: &[&str] = &[
    "engine",
    "threads",
    "records",
    "batch",
    "interleave",
    "window",
    "policy",
    "input",
    "plan",
    "time",
    "txns",
    "warmup",
    "seed",
    "plain_pages",
    "output",
    "out",
    "engine_option",
    "profile",
];

/// Options of YCSB; presets are for the workloads with a letter.
const YCSB: &[&str] = &["theta", "ops", "fields", "read", "property", "remote", "partitions", "preset"];

/// Options of figures that are measured in rounds.
const FIGURES: &[&str] = &["threads", "records", "window", "passes", "quick", "plain_pages", "seed", "output", "out"];

/// Options of the lock service alone.
const SERVICE: &[&str] =
    &["system", "lock_workload", "distribution", "locks", "machines", "clients", "client", "seconds"];

/// Options of the figures of grants.
const FISSLOCK: &[&str] = &["figure", "system", "locks", "machines", "clients", "client", "seconds"];

/// Options of transactions on lock managers.
const LOCK_TRANSACTIONS: &[&str] = &["system", "machines", "clients", "client", "seconds", "records"];
/// Options of the lock service beside others.
const PEERS: &[&str] = &["system", "clients", "seconds", "bank", "retry", "crowds", "servers"];

/// Options of the near-data experiments alone.
const NEAR_DATA: &[&str] = &["experiment", "link", "lock_lines", "requests", "elements", "overlap", "data", "patience"];

/// Options of the figures of the transaction processor.
const FPGA: &[&str] =
    &["figure", "configuration", "latency", "words", "waveform", "threads", "quick", "seed", "output", "out"];

/// Options that mean something for a workload; `None` when there is no such workload.
fn used(workload: &str) -> Option<[&'static [&'static str]; 2]> {
    Some(match workload {
        "transfer" => [ENGINES, &["theta"]],
        "smallbank" => [ENGINES, &["theta", "hot"]],
        "tatp" => [ENGINES, &[]],
        "tpcc" | "tpcc-np" => [ENGINES, &["remote"]],
        "locks" => [&["records", "theta", "batch", "txns", "seed"], &["manager", "mix", "output", "out"]],
        "lock-service" => [SERVICE, &["theta", "passes", "seed", "output", "out"]],
        "fisslock" => [FISSLOCK, &["theta", "passes", "seed", "output", "out"]],
        "lock-tatp" | "lock-tpcc" => [LOCK_TRANSACTIONS, &["passes", "seed", "output", "out"]],
        "lock-recovery" => [&["machine_dies", "records"], &["passes", "output", "out"]],
        "lock-peers" => [PEERS, &["records", "theta", "passes", "seed", "output", "out"]],
        "near-data" => [NEAR_DATA, &["records", "threads", "quick", "seed", "output", "out"]],
        "partitions" => [&["records", "batch", "txns", "passes", "quick", "seed"], &["output", "out"]],
        "durability" => [&["threads", "records", "batch", "passes", "quick", "seed"], &["output", "out"]],
        "cluster" => [&["records", "batch", "passes", "quick", "seed"], &["output", "out"]],
        "memory" => [&["threads", "seed"], &["output", "out"]],
        "copy" => [&["engine_option"], &["output", "out"]],
        "opencl" => [&["engine_option", "records", "seed"], &["out"]],
        "bionicdb" => [FIGURES, &[]],
        "fpga" => [FPGA, &[]],
        "engines" => [FIGURES, &["engine", "engine_option"]],
        "ycsb" => [ENGINES, &YCSB[..YCSB.len() - 1]],
        name if name.starts_with("ycsb-") => [ENGINES, YCSB],
        _ => return None,
    })
}

/// Refuses what was given and means nothing for the workload.
pub(super) fn check(workload: &str, given: &ArgMatches) -> Outcome {
    let Some(used) = used(workload) else { return Ok(()) };
    let ids = given.ids().map(clap::Id::as_str);
    let mut explicit = ids.filter(|id| given.value_source(id) == Some(ValueSource::CommandLine));
    match explicit.find(|id| *id != "workload" && !used.concat().contains(id)) {
        Some("property") => Err(Failure::usage(format!("-P means nothing for 'bench {workload}'; leave it out"))),
        Some("lock_workload") => {
            Err(Failure::usage(format!("--workload means nothing for 'bench {workload}'; leave it out")))
        }
        Some(id) => {
            let option = id.replace('_', "-");
            Err(Failure::usage(format!("--{option} means nothing for 'bench {workload}'; leave it out")))
        }
        None => Ok(()),
    }
}
