//! `lockwork shared-locks`, in processes of its own.

use std::path::PathBuf;
use std::process::{Command, Output};

use lockwork_locking::shared::memory::Memory;
use lockwork_sharedlocks::{Error, LockMode, SharedLocks, segment};
use serde_json::Value;

#[path = "common/command.rs"]
mod command;

use command::run;

/// A name that goes with the test, and its table with it.
struct Name(String);

impl Name {
    fn new(test: &str) -> Self {
        Self(format!("cli-{test}-{}", std::process::id()))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        drop(segment::remove(&self.0));
    }
}

#[track_caller]
fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn refused(line: &str, code: i32, parts: &[&str]) {
    let output = run(line);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}: {text}");
    for part in parts {
        assert!(text.contains(part), "{line}: no '{part}' in: {text}");
    }
}

#[track_caller]
fn json(line: &str) -> Value {
    serde_json::from_str(&good(&run(line))).unwrap()
}

#[test]
fn a_table_is_made_shown_and_removed() {
    let Name(name) = &Name::new("life");
    let made = good(&run(&format!("shared-locks create {name} --lines 64 --sessions 8 --placement direct")));
    assert!(made.contains("64 lines (direct), 8 sessions of up to 64 lines"), "{made}");
    refused(&format!("shared-locks create {name}"), 2, &["there is a lock table", name]);

    let locks = SharedLocks::attach(name).unwrap();
    let (mut holder, mut waiter) = (locks.session().unwrap(), locks.session().unwrap());
    holder.lock(7, LockMode::Exclusive).unwrap();
    holder.lock(9, LockMode::Shared).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| waiter.lock(7, LockMode::Shared).unwrap());
        let mut there = 0;
        while there < 2 {
            there = 0;
            locks.table().everybody(7, |_| there += 1).unwrap();
        }
        let status = json(&format!("shared-locks status {name} --output json"));
        assert_eq!(status["taken"], 2, "{status}");
        assert_eq!(status["lines"][0]["line"], 7, "the line with most waiters comes first: {status}");
        assert_eq!(status["lines"][0]["holders"][0]["mode"], "exclusive", "{status}");
        assert_eq!(status["lines"][0]["waiters"][0], 2, "{status}");
        assert_eq!(status["sessions"][0]["process"], std::process::id(), "{status}");
        assert_eq!(status["sessions"][0]["alive"], true, "{status}");
        assert_eq!(status["sessions"][0]["lines"], 2, "{status}");
        let text = good(&run(&format!("shared-locks status {name} --lines 1")));
        assert!(text.contains("2 lines taken; 1 of them:") && text.contains("line 7, 1 waiting"), "{text}");
        assert!(text.contains(&format!("holds  exclusive  session 1 of process {}", std::process::id())), "{text}");
        assert!(!text.contains("line 9"), "{text}");
        holder.unlock_all().unwrap();
    });
    // Others may have files there that are no tables.
    let all = run("shared-locks status");
    assert!(all.status.success(), "{all:?}");
    let all = String::from_utf8(all.stdout).unwrap();
    assert!(all.lines().any(|line| line.starts_with(name.as_str()) && line.contains("64")), "{all}");
    assert_eq!(good(&run(&format!("shared-locks remove {name}"))), "");
    refused(&format!("shared-locks remove {name}"), 2, &["there is no lock table"]);
    refused(&format!("shared-locks status {name}"), 2, &["create it first"]);
}

#[test]
fn clean_takes_what_the_dead_have_left() {
    let Name(name) = &Name::new("dead");
    good(&run(&format!("shared-locks create {name} --lines 64 --sessions 8 --placement direct")));
    // A session without its liveness lock is as one whose process has died.
    let locks = SharedLocks::attach(name).unwrap();
    let number = locks.session().unwrap().number();
    let mut dead = locks.table().open(number, 4_000_000, &mut |_| ()).unwrap();
    let timeout = lockwork_sharedlocks::WaitPolicy::Queue;
    locks.table().request(&mut dead, 3, LockMode::Exclusive, timeout, &mut |_| ()).unwrap();
    let status = json(&format!("shared-locks status {name} --output json"));
    assert_eq!(status["sessions"][0]["alive"], false, "{status}");
    assert_eq!((&status["taken"], &status["cleaned"]), (&1.into(), &Value::Null), "{status}");
    let status = json(&format!("shared-locks status {name} --clean --output json"));
    assert_eq!((&status["taken"], &status["cleaned"]), (&0.into(), &1.into()), "{status}");
    assert_eq!(status["sessions"].as_array().map(Vec::len), Some(0), "{status}");
}

#[test]
fn a_damaged_line_is_told_of_and_is_a_failure() {
    use std::os::unix::fs::FileExt;
    let Name(name) = &Name::new("damage");
    let made = json(&format!("shared-locks create {name} --lines 64 --sessions 8 --output json"));
    let file = std::fs::OpenOptions::new().write(true).open(segment::path_of(name)).unwrap();
    let last = made["bytes"].as_u64().unwrap() - 64;
    file.write_all_at(&[0xff; 8], last).unwrap();
    refused(&format!("shared-locks status {name}"), 1, &["line 63 of the lock table is damaged"]);
}

/// A file of `/dev/shm`, which goes with the test.
struct Stranger(PathBuf);

impl Stranger {
    fn new(name: String) -> Self {
        let place = PathBuf::from(format!("/dev/shm/lockwork-{name}"));
        std::fs::write(&place, "nothing of ours").unwrap();
        Self(place)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

#[test]
fn what_is_no_table_is_told_of_beside_the_tables() {
    let Name(name) = &Name::new("beside");
    let strange = Name::new("stranger").0.clone();
    let _strangers = [Stranger::new(strange.clone()), Stranger::new(format!("{strange} \u{1b}[2J\nx"))];
    good(&run(&format!("shared-locks create {name} --lines 64 --sessions 8")));
    for form in ["text", "json"] {
        let output = run(&format!("shared-locks status --output {form}"));
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{err}");
        assert!(out.contains(name) && !out.contains(&strange), "{out}");
        let about = |what: &str| err.lines().any(|line| line.contains(&strange) && line.contains(what));
        assert!(about("no lock table") && about("no name that a lock table can have"), "{err}");
        assert!(!err.contains('\u{1b}'), "{err:?}");
    }
    refused(&format!("shared-locks create {strange}"), 2, &["is there already and is no lock table", &strange]);
    refused(&format!("shared-locks remove {strange}"), 2, &["no lock table", &strange]);
    refused(&format!("shared-locks status {strange}"), 2, &["no lock table", &strange]);
}

#[test]
fn a_session_that_the_dead_left_damaged_is_shown_and_kept_shown() {
    let Name(name) = &Name::new("lost");
    good(&run(&format!("shared-locks create {name} --lines 64 --sessions 8 --placement direct")));
    let locks = SharedLocks::attach(name).unwrap();
    let number = locks.session().unwrap().number();
    let mut dead = locks.table().open(number, 4_000_000, &mut |_| ()).unwrap();
    for line in [3, 4] {
        let timeout = lockwork_sharedlocks::WaitPolicy::Try;
        locks.table().request(&mut dead, line, LockMode::Exclusive, timeout, &mut |_| ()).unwrap();
    }
    // The list has an entry for each line: its number is the upper half.
    let memory = locks.table().memory();
    let entry = 4 << 32 | (LockMode::Exclusive as u64) << 30 | 1;
    let at = (0..memory.words()).find(|word| memory.load(*word) == entry).unwrap();
    memory.store(at, 99 << 32 | 1);
    for clean in ["", "--clean"] {
        let line = format!("shared-locks status {name} {clean}");
        refused(&line, 1, &["session 1 is damaged, and nobody can use it", "line 99"]);
        let text = String::from_utf8(run(&line).stdout).unwrap();
        assert!(text.contains("1   4000000  dead, damaged"), "{text}");
    }
    let session = locks.session().unwrap();
    assert_eq!(session.number().get(), 2);
    let report = run(&format!("shared-locks status {name} --output json")).stdout;
    let report: Value = serde_json::from_slice(&report).unwrap();
    let damaged: Vec<_> = report["sessions"].as_array().unwrap().iter().map(|one| &one["damaged"]).collect();
    assert_eq!(damaged, [true, false], "{report}");
    assert!(report["damaged"][0].as_str().unwrap().contains("session 1"), "{report}");
}

#[test]
fn a_table_that_cannot_be_opened_is_not_made() {
    let Name(name) = &Name::new("no-room");
    for (refused, descriptors) in (3..40).enumerate() {
        let line = format!("ulimit -n {descriptors}; exec \"$0\" shared-locks create {name} --lines 64");
        let output = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_lockwork")]).output().unwrap();
        if output.status.success() {
            assert!(refused > 0, "three descriptors are not enough");
            return;
        }
        assert!(matches!(SharedLocks::attach(name), Err(Error::Missing(_))), "{descriptors} descriptors");
    }
    panic!("40 descriptors are enough");
}

#[test]
fn nonsense_is_refused_with_what_would_be_right() {
    let Name(name) = &Name::new("nonsense");
    refused(&format!("shared-locks create {name} --lines 63"), 2, &["63 lines", "a power of two"]);
    refused(&format!("shared-locks create {name} --lines 64 --held 65"), 2, &["65 of 64", "1 to 64"]);
    refused(&format!("shared-locks create {name} --sessions 4096"), 2, &["4095"]);
    refused("shared-locks create /nowhere/at/all", 2, &["/nowhere/at/all"]);
    refused("shared-locks status --clean", 2, &["NAME"]);
    refused("shared-locks status /dev/null", 2, &["/dev/null"]);
    for odd in ["..", ".hidden", "a,b", "\u{430}", "/dev/shm/", &"x".repeat(201)] {
        for verb in ["create", "status", "remove"] {
            refused(&format!("shared-locks {verb} {odd}"), 2, &["cannot be the name", "1 to 200 of the letters"]);
        }
    }
    for odd in ["", "a b", "a\nb"] {
        let output = command::lockwork(&[], &["shared-locks", "create", odd]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("{odd:?} cannot be the name")), "{text}");
    }
    assert!(!segment::path_of(name).exists());
}
