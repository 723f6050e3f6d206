//! Two-phase words under every schedule that loom can find.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p lockwork-locking --test loom`
#![cfg(loom)]

use lockwork_locking::LockMode;
use lockwork_locking::word::{self, Age, group};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

fn explore(preemptions: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(test);
}

/// A row: lock word, age word, and data that loom watches for unsynchronized access.
struct Row {
    word: AtomicU64,
    age: AtomicU64,
    data: UnsafeCell<u64>,
}

impl Row {
    fn new() -> Self {
        Self { word: AtomicU64::new(0), age: AtomicU64::new(0xA5), data: UnsafeCell::new(0) }
    }

    /// Adds one to the data. The caller holds the lock exclusively, else loom complains.
    fn add(&self) -> u64 {
        self.data.with_mut(|data| {
            // SAFETY: the caller holds the lock exclusively.
            unsafe {
                *data += 1;
                *data
            }
        })
    }

    /// Reads the data. The caller holds the lock.
    fn read(&self) -> u64 {
        // SAFETY: the caller holds the lock.
        self.data.with(|data| unsafe { *data })
    }
}

// SAFETY: the data is reached under the lock only, which is what these tests check.
unsafe impl Sync for Row {}
// SAFETY: as above.
unsafe impl Send for Row {}

#[test]
fn writers_and_readers_exclude_each_other() {
    explore(None, || {
        let row = Arc::new(Row::new());
        let writer = |row: Arc<Row>| {
            move || {
                if let Ok(met) = word::try_exclusive(&row.word) {
                    row.add();
                    word::release_exclusive(&row.word, met + 1);
                }
            }
        };
        let first = thread::spawn(writer(row.clone()));
        let second = thread::spawn(writer(row.clone()));
        if let Ok(met) = word::try_shared(&row.word) {
            row.read();
            word::release_shared(&row.word, met + 1);
        }
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(word::holders(row.word.load(Ordering::Relaxed)), 0);
    });
}

/// Conflicting transactions that commit have stamps in the order of their effects: the value that a transaction saw
/// grows with its stamp.
#[test]
fn ascending_stamps_are_a_serial_order() {
    explore(None, || {
        let row = Arc::new(Row::new());
        let writer = |row: Arc<Row>| {
            move || {
                let met = word::try_exclusive(&row.word).ok()?;
                let seen = row.add();
                word::release_exclusive(&row.word, met + 1);
                Some((met + 1, seen))
            }
        };
        let first = thread::spawn(writer(row.clone()));
        let second = thread::spawn(writer(row.clone()));
        let reader = word::try_shared(&row.word).ok().map(|met| {
            let seen = row.read();
            word::release_shared(&row.word, met + 1);
            (met + 1, seen)
        });
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        if let (Some(first), Some(second)) = (first, second) {
            assert_eq!(first.0 < second.0, first.1 < second.1);
            assert_ne!(first.0, second.0);
        }
        for writer in [first, second].into_iter().flatten() {
            if let Some(reader) = reader {
                assert_ne!(reader.0, writer.0, "they conflict");
                // A reader that saw as much as the writer wrote, or more, came after it.
                assert_eq!(reader.0 > writer.0, reader.1 >= writer.1);
            }
        }
    });
}

#[test]
fn of_two_readers_that_upgrade_at_most_one_writes_at_a_time() {
    explore(None, || {
        let row = Arc::new(Row::new());
        let upgrade = |row: Arc<Row>| {
            move || {
                let Ok(_) = word::try_shared(&row.word) else { return false };
                let seen = row.read();
                if let Ok(met) = word::try_upgrade(&row.word) {
                    assert_eq!(row.add(), seen + 1, "nobody wrote between the read and the upgrade");
                    word::release_exclusive(&row.word, met + 1);
                    return true;
                }
                word::release_shared(&row.word, 0);
                false
            }
        };
        let other = thread::spawn(upgrade(row.clone()));
        let mine = upgrade(row.clone())();
        let written = u64::from(other.join().unwrap()) + u64::from(mine);
        assert_eq!(row.read(), written);
        assert_eq!(word::holders(row.word.load(Ordering::Relaxed)), 0);
        assert_eq!(word::stamp(row.word.load(Ordering::Relaxed)), written, "who aborted left no stamp");
    });
}

/// One transaction under wait-die: takes both rows exclusively or in the mode given, or dies.
fn wait_die(rows: &[&Row], modes: &[LockMode], age: u64) -> bool {
    let mut held = Vec::new();
    let mut alive = true;
    for (row, mode) in rows.iter().zip(modes) {
        let exclusive = *mode == LockMode::Exclusive;
        loop {
            let answer = if exclusive { word::try_exclusive(&row.word) } else { word::try_shared(&row.word) };
            if answer.is_ok() {
                Age::publish(&row.age, age, exclusive);
                held.push((row, exclusive));
                break;
            }
            alive = Age::may_wait(&row.age, age);
            if !alive {
                break;
            }
            thread::yield_now();
        }
        if !alive {
            break;
        }
    }
    for (row, exclusive) in held {
        if exclusive {
            row.add();
            Age::clear(&row.age);
            word::release_exclusive(&row.word, 0);
        } else {
            row.read();
            word::release_shared(&row.word, 0);
        }
    }
    alive
}

/// Loom gives up on a schedule that never ends, so a deadlock fails this test.
#[test]
fn wait_die_ends_when_two_take_two_locks_in_opposite_orders() {
    use LockMode::{Exclusive, Shared};
    for modes in [[Exclusive, Exclusive], [Shared, Exclusive]] {
        explore(Some(3), move || {
            let rows = Arc::new([Row::new(), Row::new()]);
            let theirs = rows.clone();
            let young = thread::spawn(move || wait_die(&[&theirs[1], &theirs[0]], &modes, 2));
            wait_die(&[&rows[0], &rows[1]], &modes, 1);
            young.join().unwrap();
            for row in rows.iter() {
                assert_eq!(word::holders(row.word.load(Ordering::Relaxed)), 0);
                assert_eq!(row.age.load(Ordering::Relaxed) & 0xFF, 0xA5, "the low bits are somebody else's");
            }
        });
    }
}

#[test]
fn wait_die_ends_when_three_meet_on_one_lock() {
    use LockMode::{Exclusive, Shared};
    explore(Some(2), || {
        let row = Arc::new(Row::new());
        let (one, two) = (row.clone(), row.clone());
        let first = thread::spawn(move || wait_die(&[&one], &[Shared], 3));
        let second = thread::spawn(move || wait_die(&[&two], &[Shared], 1));
        wait_die(&[&row], &[Exclusive], 2);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(word::holders(row.word.load(Ordering::Relaxed)), 0);
    });
}

#[test]
fn groups_exclude_each_other_under_every_schedule() {
    explore(None, || {
        let row = Arc::new(Row::new());
        let theirs = row.clone();
        let writer = thread::spawn(move || {
            if group::try_enter(&theirs.word, LockMode::IntentExclusive).is_ok() {
                theirs.add();
                group::leave(&theirs.word, LockMode::IntentExclusive, 1);
            }
        });
        if group::try_enter(&row.word, LockMode::Shared).is_ok() {
            row.read();
            group::leave(&row.word, LockMode::Shared, 1);
        }
        writer.join().unwrap();
    });
}
