//! `lockwork-bench sim locks` as people use it.

use std::process::{Command, Output};

fn sim(arguments: &str) -> Output {
    let lockwork = env!("CARGO_BIN_EXE_lockwork-bench");
    Command::new(lockwork).args(["sim", "locks"]).args(arguments.split_whitespace()).output().expect("the command runs")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn the_printed_command_gives_the_run_again() {
    let given =
        sim("--seed 11 --operations 3000 --machines 3 --locks 2 --lean --writers-first --lost 50000 --crashes 0");
    assert!(given.status.success(), "{given:?}");
    let text = out(&given);
    let command = text.lines().next().expect("the first line is the command");
    let again = sim(command.strip_prefix("lockwork-bench sim locks").expect("the command"));
    assert_eq!(out(&again), text);
}

#[test]
fn json_has_figures_and_verdict_of_every_run() {
    let output = sim("--seed 5 --runs 2 --operations 2000 --output json");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for (run, seed) in runs.iter().zip([5, 6]) {
        assert_eq!(run["seed"], seed);
        assert_eq!(run["passed"], true);
        assert_eq!(run["counters"]["operations"], 2000);
        assert!(run["counters"]["packets_lost"].as_u64().expect("a number") > 0);
    }
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        ("--machines 0", "0 is not in 1..=64"),
        ("--lost 600000", "600000 is not in 0..=500000"),
        ("--operations x", "invalid value 'x'"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}
