//! Checkpoints while calls go on: what is copied in slices is what was there at one moment, and nothing is lost with
//! the log that it replaces.

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::io::{File, Io, Locking, Mode};
use lockwork_sequencer::{Durability, Options, Sequencer, inspect};
use lockwork_storage::Digest;

/// So many accounts that a copy takes many slices.
const MANY: u64 = 40_000;

/// As a transfer, but where the money goes is read from the database: nobody knows before.
const PASS_ON: &str = "\
procedure pass_on
table accounts
param from: i64
scratch next: i64
    search  c0, accounts, [from]
    ret     r1, c0
    loadr   r2, r1[accounts.balance]
    store   r2, [next]
    update  c1, accounts, [next]
    ret     r3, c1
    loadr   r4, r3[accounts.balance]
    add     r4, r4, 0
    storer  r4, r3[accounts.balance]
    commit
";

fn sliced() -> Options {
    Options { checkpoint_slice: Duration::from_nanos(1), segment_bytes: 64 << 10, ..options() }
}

fn open(disk: &SimulatedDisk, options: Options, kind: EngineKind) -> Sequencer {
    open_with(Arc::new(disk.clone()), Path::new("/db"), options, kind).unwrap_or_else(|error| panic!("{error}")).0
}

/// Calls all over the accounts, that also come and go.
fn calls(random: &mut Random, count: usize) -> Vec<Call> {
    let mut call = || {
        let (a, b) = (random.below(MANY) as i64, random.below(MANY) as i64);
        match random.below(4) {
            0 => (2, 0, vec![MANY as i64 + a]),
            1 => (3, 0, vec![a, b]),
            _ => (0, random.below(2) * random.below(1 << 40), vec![a, b, 1]),
        }
    };
    (0..count).map(|_| call()).collect()
}

/// Makes checkpoints while batches run, and sees that each is one of the states in between, and that opening the
/// directory afterwards, from checkpoint and log, gives the last one.
fn while_calls_go_on(kind: EngineKind, durability: Durability, dependent: bool) {
    let disk = SimulatedDisk::new(kind.name().len() as u64);
    let options = Options { durability, ..sliced() };
    let sequencer = open(&disk, options.clone(), kind);
    furnish(&sequencer).unwrap();
    sequencer.define(definition(PASS_ON)).unwrap();
    sequencer.load("accounts", (ACCOUNTS..MANY).flat_map(image).collect()).unwrap();
    let mut random = Random(kind.name().len() as u64);
    let mut between = 0;
    for round in 0..4 {
        let handle = sequencer.handle();
        let mut states: Vec<Digest> = vec![sequencer.digest().unwrap()];
        let checkpoint = std::thread::spawn(move || handle.checkpoint().unwrap());
        while !checkpoint.is_finished() {
            let mut batch_calls = calls(&mut random, 20);
            if dependent && states.len() == 5 {
                batch_calls.push((4, 0, vec![1]));
            }
            // Each call of a transaction lets the copy go on, so it is a short one.
            if states.len() == 3 {
                together(&sequencer, &batch_calls[..1]).unwrap();
            } else {
                sequencer.call_batch(batch(&batch_calls)).unwrap();
            }
            states.push(sequencer.digest().unwrap());
        }
        let made = checkpoint.join().unwrap();
        let at = states.iter().position(|state| *state == made.digest);
        let at = at.unwrap_or_else(|| panic!("{kind}, round {round}: the checkpoint is no state that there was"));
        between += states.len() - 1 - at;
        let mut end = None;
        let summary = inspect::checkpoint(&disk, Path::new("/db"), &mut |entry| end = Some(entry)).unwrap().unwrap();
        assert_eq!(summary.number, made.number);
        assert_eq!(end.unwrap().contents, inspect::Contents::End(made.rows, made.digest));
    }
    assert!(between > if dependent { 8 } else { 20 }, "{between} batches ran while checkpoints were copied");
    let digest = sequencer.digest().unwrap();
    let statistics = sequencer.statistics();
    assert_eq!(statistics.checkpoints, 4);
    sequencer.close().unwrap();
    disk.crash();
    let sequencer = open(&disk, options, EngineKind::SERIAL);
    assert_eq!(sequencer.digest().unwrap(), digest, "{kind}");
}

#[test]
fn a_checkpoint_is_the_state_of_one_moment() {
    for &kind in EngineKind::CPU {
        while_calls_go_on(kind, Durability::Fsync, false);
    }
    while_calls_go_on(EngineKind::DETERMINISTIC, Durability::None, false);
    while_calls_go_on(EngineKind::DETERMINISTIC, Durability::Async, false);
}

#[test]
fn calls_whose_keys_nobody_knows_wait_for_the_copy() {
    while_calls_go_on(EngineKind::DETERMINISTIC, Durability::Fsync, true);
}

#[test]
fn checkpoints_come_by_themselves_and_the_log_stays_short() {
    let disk = SimulatedDisk::new(5);
    let small = Options { checkpoint_bytes: 20 << 10, segment_bytes: 4096, ..options() };
    let sequencer = open(&disk, small.clone(), EngineKind::DETERMINISTIC);
    furnish(&sequencer).unwrap();
    let mut random = Random(5);
    let mut most = 0;
    for _ in 0..1500 {
        sequencer.call_batch(batch(&random.calls(40))).unwrap();
        most = most.max(disk.files().iter().map(|(_, bytes)| bytes).sum::<u64>());
    }
    let statistics = sequencer.statistics();
    assert!(statistics.checkpoints >= 5, "{statistics:?}");
    assert!(statistics.log_bytes > 900_000 && most < 450_000, "{most} bytes at most, {statistics:?}");
    let digest = sequencer.digest().unwrap();
    drop(sequencer);
    assert_eq!(open(&disk, small, EngineKind::SERIAL).digest().unwrap(), digest);
}

#[test]
fn checkpoints_come_by_themselves_when_calls_take_long_and_the_log_is_short() {
    let disk = SimulatedDisk::new(9);
    let quick = Options { checkpoint_bytes: 1 << 30, checkpoint_time: Duration::from_nanos(1), ..options() };
    let sequencer = open(&disk, quick, EngineKind::DETERMINISTIC);
    furnish(&sequencer).unwrap();
    let mut random = Random(9);
    let call = |random: &mut Random| drop(sequencer.call_batch(batch(&random.calls(40))).unwrap());
    while sequencer.statistics().checkpoints < 2 {
        call(&mut random);
    }
    drop(sequencer);
    // With the usual time none comes for a few calls, and recovery counts as their time.
    let sequencer = open(&disk, Options { checkpoint_bytes: 1 << 30, ..options() }, EngineKind::DETERMINISTIC);
    for _ in 0..20 {
        sequencer.call_batch(batch(&random.calls(40))).unwrap();
    }
    assert_eq!(sequencer.statistics().checkpoints, 0);
}

/// A disk that notes which directories are synced, and what is removed.
struct Noting(SimulatedDisk, Mutex<Vec<(&'static str, PathBuf)>>);

impl Noting {
    fn note(&self, what: &'static str, path: &Path) {
        self.1.lock().unwrap().push((what, path.to_path_buf()));
    }
}

impl Io for Noting {
    fn open(&self, path: &Path, mode: Mode) -> std::io::Result<Arc<dyn File>> {
        self.note("open", path);
        self.0.open(path, mode)
    }

    fn create_directory(&self, path: &Path) -> std::io::Result<()> {
        self.0.create_directory(path)
    }

    fn list(&self, directory: &Path) -> std::io::Result<Vec<String>> {
        self.note("list", directory);
        self.0.list(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.note("rename", from);
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        self.note("remove", path);
        self.0.remove(path)
    }

    fn sync_directory(&self, path: &Path) -> std::io::Result<()> {
        self.note("sync", path);
        self.0.sync_directory(path)
    }

    fn lock(&self, path: &Path) -> std::io::Result<Locking> {
        self.0.lock(path)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[test]
fn opening_makes_names_durable_before_it_looks_at_them() {
    let disk = SimulatedDisk::new(1);
    for (path, above) in [("/a/db", "/a"), ("db", ".")] {
        for _ in 0..2 {
            let noting = Arc::new(Noting(disk.clone(), Mutex::default()));
            let opened = open_with(noting.clone(), Path::new(path), options(), EngineKind::SERIAL).unwrap();
            let noted = noting.1.lock().unwrap().clone();
            let root = Path::new(path);
            let all = [Path::new(above), root, &root.join("log"), &root.join("checkpoint")];
            // Whether the folder is somebody else's is seen first, and decides nothing else.
            let mut rest = noted.iter().skip_while(|(what, path)| *what == "list" && path == root);
            let synced: Vec<_> = rest.by_ref().take_while(|(what, _)| *what == "sync").map(|(_, path)| path).collect();
            assert_eq!(synced, all, "{noted:?}");
            drop(opened);
        }
    }
}
