//! The watcher of critical sections: who is in, lock by lock, in memory that all client machines of the benchmark
//! share.
//!
//! *Invariant checked*: nobody is in with a writer, and tokens grow: each writer's is larger than all before, each
//! reader's at least the last writer's. A lock service that breaks it fails the run, however fast it was.

use std::sync::atomic::{AtomicU64, Ordering};

use lockwork_locking::LockMode;

/// A writer is in; below it readers are counted.
const WRITER: u64 = 1 << 32;

#[derive(Debug, Default)]
struct Section {
    inside: AtomicU64,
    /// Of the last writer.
    token: AtomicU64,
}

/// Critical sections of all locks.
#[derive(Debug)]
pub struct Checker(Vec<Section>);

impl Checker {
    /// Of locks 0 to `locks` - 1, all empty.
    #[must_use]
    pub fn new(locks: u64) -> Self {
        Self(std::iter::repeat_with(Section::default).take(locks as usize).collect())
    }

    /// Somebody was granted a lock.
    ///
    /// # Errors
    /// What was broken, in words: somebody is in who conflicts, or the token is no larger than one before.
    pub fn enter(&self, lock: u64, mode: LockMode, token: u64) -> Result<(), String> {
        let section = &self.0[lock as usize];
        let step = if mode == LockMode::Exclusive { WRITER } else { 1 };
        let before = section.inside.fetch_add(step, Ordering::SeqCst);
        if before >= WRITER || (mode == LockMode::Exclusive && before > 0) {
            let (writers, readers) = (before / WRITER, before % WRITER);
            return Err(format!(
                "lock {lock} was granted {mode:?} while {writers} writers and {readers} readers were in"
            ));
        }
        if mode == LockMode::Exclusive {
            let last = section.token.swap(token, Ordering::SeqCst);
            if token <= last {
                return Err(format!("lock {lock}: the token of a writer is {token}, of one before it {last}"));
            }
        } else {
            let last = section.token.load(Ordering::SeqCst);
            if token < last {
                return Err(format!("lock {lock}: the token of a reader is {token}, of a writer before it {last}"));
            }
        }
        Ok(())
    }

    /// Whoever is in is about to release.
    pub fn leave(&self, lock: u64, mode: LockMode) {
        let step = if mode == LockMode::Exclusive { WRITER } else { 1 };
        self.0[lock as usize].inside.fetch_sub(step, Ordering::SeqCst);
    }

    /// How many critical sections are not empty.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.0.iter().filter(|section| section.inside.load(Ordering::SeqCst) != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockMode::{Exclusive, Shared};

    #[test]
    fn readers_together_and_writers_alone_with_growing_tokens() {
        let checker = Checker::new(2);
        checker.enter(1, Shared, 9).expect("it is empty");
        checker.enter(1, Shared, 9).expect("readers may be several");
        assert_eq!(checker.occupied(), 1);
        checker.leave(1, Shared);
        checker.leave(1, Shared);
        checker.enter(1, Exclusive, 10).expect("it is empty");
        checker.leave(1, Exclusive);
        checker.enter(1, Shared, 10).expect("readers may have the writer's token");
        checker.leave(1, Shared);
        assert_eq!(checker.occupied(), 0);
    }

    #[test]
    fn every_violation_is_told() {
        for (first, second) in [(Exclusive, Exclusive), (Exclusive, Shared), (Shared, Exclusive)] {
            let checker = Checker::new(1);
            checker.enter(0, first, 1).expect("it is empty");
            let error = checker.enter(0, second, 2).expect_err("somebody is in");
            assert!(error.contains("lock 0") && error.contains("were in"), "{error}");
        }
        let checker = Checker::new(1);
        checker.enter(0, Exclusive, 7).expect("it is empty");
        checker.leave(0, Exclusive);
        let error = checker.enter(0, Shared, 6).expect_err("the token is old");
        assert!(error.contains("the token of a reader is 6"), "{error}");
        checker.leave(0, Shared);
        let error = checker.enter(0, Exclusive, 7).expect_err("the token is not new");
        assert!(error.contains("the token of a writer is 7"), "{error}");
    }
}
