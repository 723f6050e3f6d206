//! The golden scripts on every lock manager of this crate, and on the oracle.
#![cfg(not(loom))]

use lockwork_conformance::locks::managers::{Batch, GroupWords, Policy, Queue, Words};
use lockwork_conformance::locks::reference::Reference;
use lockwork_conformance::locks::shared::SharedTable;
use lockwork_conformance::locks::{FILES, Manager, Verdict, golden, parse, run, run_all};
use lockwork_locking::shared::WaitPolicy;

/// At least `passed` scripts run through and none fails; the report is printed, with what was skipped and why.
fn check<M: Manager>(passed: usize, fresh: impl FnMut() -> M) {
    let report = run_all(&golden(), fresh);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.passed(), passed, "{report}");
}

#[test]
fn the_oracle_conforms() {
    check(17, Reference::default);
}

#[test]
fn queues_conform() {
    check(12, || Queue::new(false));
    check(12, || Queue::new(true));
}

#[test]
fn batches_conform() {
    check(10, Batch::new);
}

#[test]
fn words_conform_under_every_policy() {
    check(7, || Words::new(Policy::NoWait));
    check(8, || Words::new(Policy::WaitDie));
    check(8, || Words::new(Policy::Ordered));
}

#[test]
fn group_words_conform() {
    check(6, GroupWords::new);
}

#[test]
fn shared_tables_conform_under_every_patience() {
    check(9, || SharedTable::new(WaitPolicy::Try));
    check(9, || SharedTable::new(WaitPolicy::WaitDie));
    check(15, || SharedTable::new(WaitPolicy::Queue));
    check(14, || SharedTable::new(WaitPolicy::Safe));
}

#[test]
fn every_script_of_the_folder_is_in_the_suite_and_runs_on_some_manager() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/conformance/golden");
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort();
    assert_eq!(names, FILES.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>());
    for script in golden() {
        let verdicts = [
            run(&script, &mut Reference::default),
            run(&script, &mut || Words::new(Policy::NoWait)),
            run(&script, &mut || Words::new(Policy::WaitDie)),
            run(&script, &mut || Words::new(Policy::Ordered)),
            run(&script, &mut GroupWords::new),
            run(&script, &mut || SharedTable::new(WaitPolicy::WaitDie)),
        ];
        assert!(verdicts.contains(&Verdict::Passed), "{} runs nowhere", script.name);
    }
}

#[test]
fn a_wrong_answer_is_found_and_shown_with_its_line() {
    let script = parse("wrong", "s1 acquire a shared -> granted\n\ns2 acquire a exclusive -> granted\n").unwrap();
    let verdict = run(&script, &mut || Queue::new(false));
    let (expected, answered) = ("granted".to_string(), "waiting".to_string());
    assert_eq!(verdict, Verdict::Failed { line: 3, step: "s2 acquire a exclusive".into(), expected, answered });
}

#[test]
fn mistakes_in_scripts_are_named_with_their_line() {
    for (text, line, part) in [
        ("needs waits telepathy", 1, "there is no capability 'telepathy': there are waits, fifo"),
        ("\ns1 acquire a -> granted", 2, "acquire needs a lock and a mode"),
        ("s1 acquire a shard -> granted", 1, "'shard' is not a mode"),
        ("x acquire a shared -> granted", 1, "'x' is not a session"),
        ("s1 acquire a shared", 1, "no answer"),
        ("s1 dance -> granted", 1, "acquire, release, crash and pass"),
        ("pass soon -> passed", 1, "milliseconds"),
        ("age s1 0", 1, "a number from 1"),
        ("step x: s1 crash\npermutation y -> crashed", 2, "there is no step 'y': there are x"),
        ("step x: s1 crash\npermutation x -> crashed | crashed", 2, "1 steps need as many answers, there are 2"),
        ("# nothing", 1, "no step that runs"),
    ] {
        let error = parse("bad", text).unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}
