//! `lockwork-bench sim cluster` as people use it.

use std::process::{Command, Output};

fn sim(arguments: &str) -> Output {
    let lockwork = env!("CARGO_BIN_EXE_lockwork-bench");
    let words = arguments.split_whitespace();
    Command::new(lockwork).args(["sim", "cluster"]).args(words).output().expect("the command runs")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn the_printed_command_gives_the_run_again() {
    let given = sim("--seed 11 --steps 60 --nodes 4 --trace");
    assert!(given.status.success(), "{given:?}");
    let text = out(&given);
    let line = text.lines().find(|line| line.starts_with("lockwork-bench sim cluster")).expect("the command");
    let command = line.split_once(':').expect("figures behind it").0;
    let again = sim(&format!("{} --trace", command.strip_prefix("lockwork-bench sim cluster").expect("the command")));
    assert_eq!(out(&again), text);
}

#[test]
fn json_has_figures_and_verdict_of_every_run() {
    let output = sim("--seed 5 --seeds 2 --steps 40 --output json");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for (run, seed) in runs.iter().zip([5, 6]) {
        assert_eq!((&run["seed"], &run["passed"]), (&seed.into(), &true.into()));
        assert!(run["records"].as_u64().expect("a number") > 10);
        assert!(run["seen"]["Committed"].as_u64().expect("a number") > 0);
    }
}

#[test]
fn a_damaged_log_stops_every_node_and_a_broken_rule_fails() {
    let output = sim("--seed 3 --steps 40 --damage fork");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(out(&output).matches("stopped: ").count(), 3);
    let output = sim("--seed 3 --break acknowledgement");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("replay: lockwork-bench sim cluster --seed 3") && error.contains("--break"), "{error}");
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        ("--nodes 0", "0 is not in 1..=16"),
        ("--damage fire", "'fire' is no damage; there are: loss, reordering, fork, alteration"),
        ("--break law", "'law' is no rule; there are: fencing, acknowledgement, requests"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}
