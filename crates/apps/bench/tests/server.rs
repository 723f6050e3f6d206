//! `lockwork-bench server` as people use it: both durabilities have their figures, and the money is counted.

#[path = "common/command.rs"]
mod command;

use command::run;
use serde_json::Value;

#[test]
fn both_durabilities_are_measured_and_verified() {
    for pipeline in [1, 8] {
        let options =
            format!("--clients 3 --pipeline {pipeline} --records 2500 --seconds 0.2 --passes 2 --output json");
        let output = run(&format!("server {options}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let runs = report["runs"].as_array().expect("runs");
        assert_eq!(runs.iter().map(|run| &run["durability"]).collect::<Vec<_>>(), ["fsync", "memory"]);
        for run in runs {
            assert!(run["verified"] == true && run["calls_per_s"].as_f64().unwrap() > 0.0, "{run}");
            assert!(run["p50_us"].as_f64().unwrap() <= run["p99_us"].as_f64().unwrap(), "{run}");
            assert_eq!(run["rounds_calls_per_s"].as_array().unwrap().len(), 2, "{run}");
        }
    }
}

#[test]
fn mistakes_are_named_and_refused() {
    for (line, named) in [
        ("server --clients 0", "--clients"),
        ("server --seconds 0", "--seconds is 0.0"),
        ("server --records 1", "--records"),
        ("server --passes 101", "--passes is 101"),
        ("server --engine warp", "warp"),
    ] {
        let output = run(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(named), "{line}: {error}");
    }
}
