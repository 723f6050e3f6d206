//! placeholder

#[path = "model/memory.rs"]
mod memory;
#[path = "model/service.rs"]
mod service;

use lockwork_locking::LockMode::{self, Exclusive, Shared};
use lockwork_lockservice::branches::Branch;
use service::{Limits, Service, Task, WORKFLOWS};
use stateright::{Checker, HasDiscoveries, Model};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

fn check(name: &str, limits: Limits, workflows: &[usize], branches: &[Branch]) {
    let service = Service::new(limits);
    let (reached, taken) = (service.workflows.clone(), service.branches.clone());
    let start = Instant::now();
    let checker = service.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{name}: {} states ({} steps), at most {} deep, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    let taken = *taken.lock().expect("nobody panicked");
    let ways: Vec<_> = Branch::ALL.iter().filter(|branch| taken.count(**branch) > 0).collect();
    let flows: Vec<_> = (1..=WORKFLOWS.len()).filter(|flow| reached[flow - 1].load(Relaxed) > 0).collect();
    println!("  workflows {flows:?}, {ways:?}");
    for (property, path) in checker.discoveries() {
        if property == "a run ends" {
            continue;
        }
        let mut lines = Vec::new();
        let last = path.last_state().describe();
        for (state, action) in path.into_vec() {
            lines.extend(action.map(|action| state.subject(action)));
        }
        panic!("{name}: not so: {property}\n{}\n{last}", lines.join("\n"));
    }
    checker.assert_any_discovery("a run ends");
    let missed: Vec<_> =
        workflows.iter().filter(|flow| !flows.contains(flow)).map(|flow| WORKFLOWS[flow - 1]).collect();
    assert!(missed.is_empty(), "{name}: never reached: {missed:?}");
    let missed: Vec<_> = branches.iter().filter(|branch| !ways.contains(branch)).collect();
    assert!(missed.is_empty(), "{name}: never taken: {missed:?}");
}

fn task(machine: usize, mode: LockMode) -> Task {
    Task { machine, mode, times: variable("MODEL_TIMES", 1) }
}

fn variable(name: &str, usual: u8) -> u8 {
    std::env::var(name).map_or(usual, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
}

/// What goes wrong, unless the environment says otherwise.
fn limits(tasks: &[Task], losses: u8, duplicates: u8) -> Limits {
    Limits {
        tasks: tasks.to_vec(),
        writers_first: false,
        losses: variable("MODEL_LOSSES", losses),
        duplicates: variable("MODEL_COPIES", duplicates),
        early: variable("MODEL_EARLY", 0),
        withdrawals: variable("MODEL_WITHDRAWALS", 0),
    }
}

#[test]
fn reader_and_reader() {
    let tasks = [task(0, Shared), task(1, Shared)];
    check("reader, reader, nothing goes wrong", limits(&tasks, 0, 0), &[], &[]);
    check("reader, reader, a loss", limits(&tasks, 1, 0), &[], &[]);
    check("reader, reader, a copy", limits(&tasks, 0, 1), &[], &[]);
}

#[test]
fn reader_and_writer() {
    let tasks = [task(0, Shared), task(1, Exclusive)];
    check("reader, writer, nothing goes wrong", limits(&tasks, 0, 0), &[], &[]);
    check("reader, writer, a loss", limits(&tasks, 1, 0), &[], &[]);
    check("reader, writer, a copy", limits(&tasks, 0, 1), &[], &[]);
    let withdrawn = Limits { withdrawals: 1, ..limits(&tasks, 0, 0) };
    check("reader, writer, a withdrawal", withdrawn, &[], &[]);
}

#[test]
fn writer_and_writer() {
    let tasks = [task(0, Exclusive), task(1, Exclusive)];
    check("writer, writer, a loss", limits(&tasks, 1, 0), &[], &[]);
    check("writer, writer, a copy", limits(&tasks, 0, 1), &[], &[]);
    let withdrawn = Limits { withdrawals: 1, ..limits(&tasks, 0, 0) };
    check("writer, writer, a withdrawal", withdrawn, &[], &[]);
    check("writer, writer, a loss and a copy", limits(&tasks, 1, 1), &[], &[]);
}

#[test]
fn two_of_one_machine_and_one_of_another() {
    let tasks = [task(0, Exclusive), task(0, Exclusive), task(1, Exclusive)];
    check("two writers, writer, nothing goes wrong", limits(&tasks, 0, 0), &[], &[]);
    let tasks = [task(0, Shared), task(0, Exclusive), task(1, Shared)];
    check("reader and writer, reader, nothing goes wrong", limits(&tasks, 0, 0), &[], &[]);
}

#[test]
fn writers_first() {
    let tasks = [task(0, Shared), task(1, Exclusive)];
    check("writers first: a loss", Limits { writers_first: true, ..limits(&tasks, 1, 0) }, &[], &[]);
    check("writers first: a copy", Limits { writers_first: true, ..limits(&tasks, 0, 1) }, &[], &[]);
}

#[test]
fn three_machines() {
    let tasks = [task(0, Exclusive), task(1, Exclusive), task(2, Exclusive)];
    check("three writers, nothing goes wrong", limits(&tasks, 0, 0), &[], &[]);
}
