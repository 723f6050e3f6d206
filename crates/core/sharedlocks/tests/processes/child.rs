//! What the processes do that tests start.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockwork_locking::shared::memory::Memory;
use lockwork_sharedlocks::{LockMode, Mapped, SharedLocks, SharedMemory};

use crate::{golden, random, scenarios, support};

/// Memory that kills its process before a write. What other processes can see changes by writes only, so to die before
/// a read is to die before the write that follows it.
pub(crate) struct Deadly {
    mapped: Mapped,
    writes_left: AtomicU64,
}

impl Deadly {
    fn count_down(&self) {
        let left = self.writes_left.load(Relaxed);
        self.writes_left.store(left - 1, Relaxed);
        if left == 1 {
            // SAFETY: a system call without pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

impl Memory for Deadly {
    fn words(&self) -> usize {
        self.mapped.words()
    }

    fn load(&self, word: usize) -> u64 {
        self.mapped.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.count_down();
        self.mapped.store(word, value);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.count_down();
        self.mapped.swap(word, old, new)
    }

    fn fence(&self) {
        self.mapped.fence();
    }
}

impl SharedMemory for Deadly {
    fn half(&self, word: usize) -> &std::sync::atomic::AtomicU32 {
        self.mapped.half(word)
    }
}

/// Says something to whoever started the process.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}{what}", support::SAYS).and_then(|()| out.flush()).unwrap();
}

/// What is said to the process.
pub(crate) fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lock().lines().map(Result::unwrap)
}

#[test]
#[ignore = "a process that other tests start"]
fn child() {
    let part = std::env::var(support::PART).expect("other tests start it, and say what it is to do");
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["scenario", table, scenario, writes] => {
            let writes_left = AtomicU64::new(writes.parse().unwrap());
            let locks = SharedLocks::attach(table).unwrap().through(|mapped| Deadly { mapped, writes_left });
            scenarios::play(scenario, table, &locks);
        }
        ["hold", table, sessions] => hold(table, sessions.parse().unwrap()),
        ["worker", table, number, seed] => random::work(table, number.parse().unwrap(), seed.parse().unwrap()),
        ["session", table, number] => golden::serve(table, number.parse().unwrap()),
        ["create", table] => {
            let lock = SharedLocks::create_or_attach(table, &support::options(64, 64));
            lock.unwrap().session().unwrap().lock(1, LockMode::Exclusive).unwrap();
        }
        _ => panic!("there is no part '{part}'"),
    }
    std::process::exit(0);
}

/// Holds key 1 exclusively and key 2 shared in the last of several sessions, until it is told not to.
fn hold(table: &str, sessions: usize) {
    let locks = SharedLocks::attach(table).unwrap();
    let mut all: Vec<_> = (0..sessions).map(|_| locks.session().unwrap()).collect();
    let last = all.last_mut().unwrap();
    last.lock_within(1, LockMode::Exclusive, support::LONG).unwrap();
    last.lock_within(2, LockMode::Shared, support::LONG).unwrap();
    say("holds");
    for _ in lines() {
        last.unlock_all().unwrap();
        say("released");
    }
}
