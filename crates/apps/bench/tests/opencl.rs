//! The command with OpenCL engines: results, and what is said when something is missing. Needs an OpenCL device
//! (`make verify` installs PoCL).

#[path = "common/command.rs"]
mod command;

use command::run;
use serde_json::Value;

/// Platforms are looked for where there are none.
const NOWHERE: &str = "OCL_ICD_VENDORS=/nonexistent";

#[test]
fn both_deterministic_engines_leave_the_same_digest() {
    for workload in ["ycsb-a --theta 0.99 --ops 4", "ycsb-b", "ycsb-d", "ycsb-e --batch 500", "transfer --theta 0.9"] {
        let engines = "--engine deterministic,opencl-deterministic,opencl-two-phase";
        let line = format!("run {workload} {engines} --records 2000 --txns 3000 --time 0 --warmup 0 --output json");
        let output = run(&line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let runs = report["runs"].as_array().expect("runs");
        assert!(runs.len() == 3 && runs.iter().all(|run| run["verified"] == true), "{line}");
        assert_eq!(runs[0]["digest"], runs[1]["digest"], "{line}");
        assert!(runs[0]["device"].is_null());
        for run in &runs[1..] {
            let device = &run["device"];
            assert!(device["execution_ms"].as_f64().expect("a time") > 0.0, "{line}: {device}");
            assert!(device["waves"].as_f64().expect("a number") >= 1.0, "{line}: {device}");
        }
    }
}

#[test]
fn every_workload_verifies_on_opencl_engines() {
    for workload in ["smallbank --records 1000", "tatp --records 1000", "tpcc-np --records 1"] {
        let line =
            format!("run {workload} --engine opencl-deterministic,opencl-two-phase --txns 3000 --time 0 --warmup 0");
        let output = run(&line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {}: {error}", output.status);
    }
}

#[test]
fn a_profile_is_a_table() {
    let output = run("run ycsb-b --engine opencl-deterministic --records 1000 --txns 1000 --time 0 --profile");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("per batch, ms") && text.contains("plan/device"), "{text}");
}

#[test]
fn copies_are_timed_for_every_batch_size() {
    let output = run("copy --output csv");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 10, "{text}");
    assert!(lines[1].starts_with("1024,") && lines[9].starts_with("262144,"), "{text}");
}

#[test]
fn a_missing_platform_is_exit_code_6_and_says_how_to_get_one() {
    for line in [
        "run ycsb-b --engine opencl-deterministic --records 10 --txns 10",
        "run ycsb-b --engine opencl-two-phase,serial --engine-option device=0",
        "copy",
        "opencl",
    ] {
        let output = run(&format!("{NOWHERE} {line}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{line}: {text}");
        assert!(text.contains("no OpenCL platform") && text.contains("pocl-opencl-icd"), "{line}: {text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let output = run("run ycsb-b --engine opencl-deterministic --engine-option device=no-such-device");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains("'no-such-device'; there are 0 ("), "{text}");
}

#[test]
fn kernels_that_do_not_build_come_with_the_log_and_the_generated_lines() {
    let broken = "LOCKWORK_OPENCL_FLAGS=-Dlw_find_0=7";
    let output = run(&format!("{broken} run ycsb-b --engine opencl-deterministic --records 100 --txns 100"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{text}");
    for part in ["does not build the kernels", "LOCKWORK_OPENCL_FLAGS='-Dlw_find_0=7'", "generated line", "more lines"]
    {
        assert!(text.contains(part), "'{part}' is missing: {text}");
    }
}
