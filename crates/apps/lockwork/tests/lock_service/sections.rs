//! Critical sections that are watched from inside, while something is done to the lock service.

use super::daemon::LONG;
use lockwork_locks::client::Locks;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Who is in the critical section of one lock: readers count up, a writer is -1; and the tokens that were seen.
#[derive(Default)]
struct Section {
    inside: AtomicI64,
    writer: AtomicU64,
}

impl Section {
    fn write(&self, token: u64) {
        assert_eq!(self.inside.swap(-1, Ordering::SeqCst), 0, "a writer is alone");
        assert!(self.writer.swap(token, Ordering::SeqCst) < token, "tokens grow");
        std::hint::spin_loop();
        assert_eq!(self.inside.swap(0, Ordering::SeqCst), -1, "a writer is alone");
    }

    fn read(&self, token: u64) {
        assert!(self.inside.fetch_add(1, Ordering::SeqCst) >= 0, "no reader beside a writer");
        assert!(token >= self.writer.load(Ordering::SeqCst), "tokens of readers are not smaller");
        assert!(self.inside.fetch_sub(1, Ordering::SeqCst) > 0, "no reader beside a writer");
    }
}

/// Two threads of each machine write and read under `locks` until `disturb` returns. What it is given waits until some
/// hundred more sections have been passed. Every request is granted in the end, and no guard is lost.
pub(super) fn under_load(machines: &[Locks], locks: &[u64], disturb: impl FnOnce(&dyn Fn())) {
    let sections: Vec<Section> = locks.iter().map(|_| Section::default()).collect();
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let visit = |machine: &Locks, mut at: usize| {
        while !over.load(Ordering::Relaxed) {
            at = (at * 5 + 3) % 64;
            let (section, lock, writes) = (&sections[at % locks.len()], locks[at % locks.len()], at.is_multiple_of(3));
            let acquire = if writes { machine.exclusive(lock) } else { machine.shared(lock) };
            let guard = acquire.timeout(LONG).acquire().expect("it is granted, if late");
            match writes {
                true => section.write(guard.token()),
                false => section.read(guard.token()),
            }
            assert!(!guard.is_lost());
            drop(guard);
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    };
    let go_on = || {
        let (before, begin) = (rounds.load(Ordering::Relaxed), Instant::now());
        while rounds.load(Ordering::Relaxed) < before + 200 {
            assert!(begin.elapsed() < LONG, "locks are not granted any more");
            sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        // Also if something here panics, because the threads are waited for.
        let _over = Over(&over);
        for (number, machine) in machines.iter().chain(machines).enumerate() {
            let visit = &visit;
            scope.spawn(move || visit(machine, number));
        }
        disturb(&go_on);
    });
}

/// Dropped, it says that something is over.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
