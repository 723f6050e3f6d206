//! All schedules of the lock service in small configurations, on the code that runs: `decide` and `Node`.
//!
//! *Modelled*: the decider with one lock; machines, each with its client and agents; tasks that ask, hold and give
//! back, once each; packets on their way as a multiset, so that any may arrive next, one may be lost, one may arrive
//! twice; the clock of each machine.
//!
//! *Checked*, in every state: nobody holds what another's hold excludes, as the tasks see it; tokens grow; no request
//! is lost or resolved twice; no assertion fails; an agent that may grant is the one that the decider knows. In every
//! state in which nothing happens any more: every request is resolved, and if anything is left of the lock (a grant
//! of a late copy was lost), one more writer, of any machine, gets it and gives it back, and then nothing is left.
//! Sometimes: the ways of figure 5, and the seldom ones.
//!
//! *Abstracted*
//! - Time: a timer goes off when nothing else is under way and nobody holds ("quiet"), in the order of the delays, or
//!   before that as often as `MODEL_EARLY` says. A run with too many quiet steps is a violation. Leases do not end.
//! - The registry answers sweeps, and its questions are repeated when the agent repeats its own. Crashes, leases and
//!   adoption are the simulator's.
//! - What a decider only sends on is with its target at once: that commutes with all else.
//! - Runs end at `MODEL_DECISIONS` decisions on the lock. Without a bound there is no end: a grant that each time is
//!   slower than the answer to what an earlier grant caused leads to the next round. What is said of ends holds up to
//!   this bound.
//! - Two states of one 64-bit hash count as one.
//!
//! *Trade-off*: the standard runs take half a minute on two free cores. For more, set any of `MODEL_DECISIONS` (3,
//! for two configurations 2), `MODEL_LOSSES`, `MODEL_COPIES`, `MODEL_EARLY`, `MODEL_WITHDRAWALS`, `MODEL_TIMES` (1:
//! how often each task asks), and name a test: `MODEL_DECISIONS=8 cargo test --release --test model -- --nocapture
//! reader_and_reader`. Some of these take hours. Without optimisation the bound is 1, and nothing is expected of the
//! ways.

#[path = "model/memory.rs"]
mod memory;
#[path = "model/service.rs"]
mod service;

use lockwork_lock_protocol::branches::Branch;
use lockwork_locking::LockMode::{self, Exclusive, Shared};
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
    if cfg!(debug_assertions) {
        return;
    }
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
        decisions: variable("MODEL_DECISIONS", if cfg!(debug_assertions) { 1 } else { 3 }),
    }
}

/// Where three decisions take too long.
fn few(limits: Limits) -> Limits {
    Limits { decisions: variable("MODEL_DECISIONS", limits.decisions.min(2)), ..limits }
}

#[test]
fn reader_and_reader() {
    let tasks = [task(0, Shared), task(1, Shared)];
    check(
        "reader, reader, nothing goes wrong",
        limits(&tasks, 0, 0),
        &[1, 2, 7, 9],
        &[Branch::RefusedFree, Branch::Open],
    );
    check(
        "reader, reader, a loss",
        limits(&tasks, 1, 0),
        &[1, 2, 3, 6, 7, 8, 9],
        &[Branch::RetakeUnknown, Branch::SweepOfTakenOver, Branch::RefusedRetake],
    );
    check("reader, reader, a copy", few(limits(&tasks, 0, 1)), &[1, 2, 3, 7, 9], &[Branch::RefusedFree]);
    check("reader, reader, a loss and a copy", few(limits(&tasks, 1, 1)), &[1, 2, 3, 7, 9], &[Branch::RefusedFree]);
}

#[test]
fn reader_and_writer() {
    let tasks = [task(0, Shared), task(1, Exclusive)];
    check("reader, writer, nothing goes wrong", limits(&tasks, 0, 0), &[1, 3, 7, 8], &[Branch::Retake]);
    check(
        "reader, writer, a loss",
        limits(&tasks, 1, 0),
        &[1, 2, 3, 7, 8],
        &[Branch::Retake, Branch::RefusedFree, Branch::RefusedRetake],
    );
    check(
        "reader, writer, a copy",
        limits(&tasks, 0, 1),
        &[1, 2, 3, 7, 8],
        &[Branch::Retake, Branch::RefusedFree, Branch::RefusedMove],
    );
    check(
        "reader, writer, a loss and a copy",
        few(limits(&tasks, 1, 1)),
        &[1, 2, 3, 7, 8],
        &[Branch::Retake, Branch::RetakeOfArrived, Branch::RefusedMove],
    );
    let withdrawn = Limits { withdrawals: 1, ..limits(&tasks, 0, 0) };
    check("reader, writer, a withdrawal", withdrawn, &[1, 3, 6, 7, 8, 9], &[Branch::Retake, Branch::RefusedFree]);
}

#[test]
fn writer_and_writer() {
    let tasks = [task(0, Exclusive), task(1, Exclusive)];
    check("writer, writer, a loss", limits(&tasks, 1, 0), &[1, 3, 7, 8], &[Branch::Retake, Branch::RefusedRetake]);
    check("writer, writer, a copy", limits(&tasks, 0, 1), &[1, 3, 7, 8], &[Branch::Retake, Branch::Parked]);
    let withdrawn = Limits { withdrawals: 1, ..limits(&tasks, 0, 0) };
    check("writer, writer, a withdrawal", withdrawn, &[1, 3, 7, 8, 9], &[Branch::Retake]);
    check(
        "writer, writer, a loss and a copy",
        limits(&tasks, 1, 1),
        &[1, 3, 7, 8],
        &[Branch::Retake, Branch::RefusedFree],
    );
}

#[test]
fn two_of_one_machine_and_one_of_another() {
    let tasks = [task(0, Exclusive), task(0, Exclusive), task(1, Exclusive)];
    check("two writers, writer, nothing goes wrong", limits(&tasks, 0, 0), &[1, 3, 5, 6, 7, 8], &[Branch::HandedOn]);
    let tasks = [task(0, Shared), task(0, Exclusive), task(1, Shared)];
    check(
        "reader and writer, reader, nothing goes wrong",
        few(limits(&tasks, 0, 0)),
        &[1, 2, 3, 5, 7, 8],
        &[Branch::Joined],
    );
    let tasks = [task(0, Shared), task(0, Shared), task(1, Exclusive)];
    check(
        "two readers, writer, nothing goes wrong",
        limits(&tasks, 0, 0),
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[Branch::JoinHere, Branch::RefusedMove],
    );
}

#[test]
fn writers_first() {
    let tasks = [task(0, Shared), task(1, Exclusive)];
    check(
        "writers first, a loss",
        Limits { writers_first: true, ..limits(&tasks, 1, 0) },
        &[1, 2, 3, 7, 8],
        &[Branch::ClosedByWriter],
    );
    check(
        "writers first, a copy",
        Limits { writers_first: true, ..limits(&tasks, 0, 1) },
        &[1, 2, 3, 7, 8],
        &[Branch::ClosedByWriter],
    );
}

#[test]
fn three_machines() {
    let tasks = [task(0, Exclusive), task(1, Exclusive), task(2, Exclusive)];
    check("three writers, nothing goes wrong", limits(&tasks, 0, 0), &[1, 3, 7, 8], &[Branch::SentAfter]);
}
