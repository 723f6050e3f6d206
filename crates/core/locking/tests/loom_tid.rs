//! TID words under every schedule that loom can find.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p lockwork-locking --test loom_tid`
#![cfg(loom)]

use lockwork_locking::tid::{self, Tids, reader_stamp, writer_stamp};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// A record of two halves, which every writer makes equal.
struct Record {
    word: AtomicU64,
    halves: [AtomicU64; 2],
}

impl Record {
    fn new() -> Self {
        Self { word: AtomicU64::new(0), halves: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// Its value and TID, if no writer is there.
    fn read(&self) -> Option<(u64, u64)> {
        let copy = || [0, 1].map(|half: usize| self.halves[half].load(Ordering::Relaxed));
        let (tid, [first, second]) = tid::read(&self.word, 1, copy).ok()?;
        assert_eq!(first, second, "a mixture of versions");
        Some((tid, first))
    }

    fn install(&self, value: u64, tid: u64) {
        self.halves.iter().for_each(|half| half.store(value, Ordering::Relaxed));
        tid::unlock(&self.word, tid);
    }
}

#[derive(Default)]
struct Database {
    tids: Tids,
    records: [Record; 2],
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads one record and writes another one, one more than what it read. Returns (stamp, value read) if it commits.
fn copy_over(database: &Database, from: usize, to: usize) -> Option<(u64, u64)> {
    let (source, target) = (&database.records[from], &database.records[to]);
    let (seen, value) = source.read()?;
    let old = if from == to { seen } else { target.read()?.0 };
    if tid::try_lock(&target.word, old) != Ok(true) {
        return None;
    }
    let tid = database.tids.take();
    if from != to && !tid::is_current(&source.word, seen) {
        tid::unlock(&target.word, old);
        return None;
    }
    target.install(value + 1, tid);
    Some((writer_stamp(tid), value))
}

/// Reads both records. Returns (stamp, values) if it commits.
fn look(database: &Database) -> Option<(u64, [u64; 2])> {
    let (first, second) = (database.records[0].read()?, database.records[1].read()?);
    let current = |number: usize, tid| tid::is_current(&database.records[number].word, tid);
    (current(0, first.0) && current(1, second.0)).then(|| (reader_stamp(first.0.max(second.0)), [first.1, second.1]))
}

/// The transactions that committed, by ascending stamp, must do the same again one after the other.
#[derive(Clone, Copy)]
enum Did {
    CopiedOver { from: usize, to: usize, value: u64 },
    Looked([u64; 2]),
}

fn replay(database: &Database, mut done: Vec<(u64, Did)>) {
    done.sort_by_key(|(stamp, _)| *stamp);
    let mut values = [0; 2];
    for (_, did) in done {
        match did {
            Did::CopiedOver { from, to, value } => {
                assert_eq!(values[from], value, "it read something else");
                values[to] = value + 1;
            }
            Did::Looked(seen) => assert_eq!(values, seen, "it read something else"),
        }
    }
    let found = [0, 1].map(|number: usize| database.records[number].halves[0].load(Ordering::Relaxed));
    assert_eq!(values, found);
}

fn copied(database: &Database, from: usize, to: usize) -> Option<(u64, Did)> {
    copy_over(database, from, to).map(|(stamp, value)| (stamp, Did::CopiedOver { from, to, value }))
}

fn looked(database: &Database) -> Option<(u64, Did)> {
    look(database).map(|(stamp, seen)| (stamp, Did::Looked(seen)))
}

fn explore(preemptions: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(test);
}

type Step = fn(&Database) -> Option<(u64, Did)>;

fn together(steps: [Step; 3], preemptions: Option<usize>) {
    explore(preemptions, move || {
        let database = Arc::new(Database::default());
        let spawn = |step: Step| {
            let database = database.clone();
            thread::spawn(move || step(&database))
        };
        let (first, second) = (spawn(steps[0]), spawn(steps[1]));
        let mine = steps[2](&database);
        let done = [first.join().unwrap(), second.join().unwrap(), mine].into_iter().flatten().collect();
        replay(&database, done);
    });
}

#[test]
fn two_that_read_what_the_other_writes_do_not_both_miss_each_other() {
    explore(None, || {
        let database = Arc::new(Database::default());
        let theirs = database.clone();
        let other = thread::spawn(move || copied(&theirs, 0, 1));
        let mine = copied(&database, 1, 0);
        replay(&database, [other.join().unwrap(), mine].into_iter().flatten().collect());
    });
}

#[test]
fn a_reader_sees_whole_versions_and_has_its_place_among_writers() {
    together([|d| copied(d, 0, 0), |d| copied(d, 1, 1), looked], Some(3));
}

#[test]
fn a_reader_of_what_two_dependent_writers_write_has_its_place() {
    together([|d| copied(d, 0, 1), |d| copied(d, 1, 0), looked], Some(3));
}

#[test]
fn writers_of_one_record_follow_each_other() {
    together([|d| copied(d, 0, 0), |d| copied(d, 0, 0), |d| copied(d, 0, 1)], Some(3));
}
