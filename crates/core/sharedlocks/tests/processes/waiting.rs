//! How long waiters wait: for a release, for a place in a full line, for a death.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockwork_sharedlocks::session::BACKOFF;
use lockwork_sharedlocks::{Error, LockMode, SharedLocks, Waiting};

use crate::book::Book;
use crate::support::{LONG, Player, table, until};

fn waiters(locks: &SharedLocks, line: u32) -> usize {
    let mut there = 0_usize;
    locks.table().everybody(line, |_| there += 1).unwrap();
    there.saturating_sub(1)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The median time from a release to the return of a waiter who sleeps.
fn wake_up(mode: LockMode, other_reader: bool) -> Duration {
    let (name, locks) = table(64, 8);
    let clock = Instant::now();
    let mut held = locks.session().unwrap();
    let mut reader = locks.session().unwrap();
    let times = (0..40).map(|_| {
        held.lock(1, LockMode::Exclusive).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut session = SharedLocks::attach(&name.0).unwrap().session().unwrap();
                session.lock(1, mode).unwrap();
                let granted = clock.elapsed();
                session.unlock(1).unwrap();
                granted
            });
            until("somebody in the line", || waiters(&locks, 1) == 1);
            // Now it has looked for long enough, and sleeps.
            std::thread::sleep(Duration::from_millis(2));
            let released = clock.elapsed();
            held.unlock(1).unwrap();
            if other_reader && reader.try_lock(1, LockMode::Shared).is_ok() {
                reader.unlock(1).unwrap();
            }
            waiter.join().unwrap().saturating_sub(released)
        })
    });
    median(times.collect())
}

#[test]
fn a_release_wakes_who_sleeps() {
    for (mode, other_reader) in [(LockMode::Exclusive, false), (LockMode::Shared, false), (LockMode::Shared, true)] {
        let time = wake_up(mode, other_reader);
        println!("{mode:?}: awake after {time:?}");
        assert!(time < BACKOFF / 4, "{mode:?}: {time:?}: it was not woken, but had slept enough");
    }
}

#[test]
fn a_withdrawal_wakes_who_stood_behind_it() {
    let (_name, locks) = table(64, 8);
    let clock = Instant::now();
    let mut reader = locks.session().unwrap();
    let times = (0..20).map(|_| {
        reader.lock(1, LockMode::Shared).unwrap();
        let time = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut session = locks.session().unwrap();
                let refused = session.lock_within(1, LockMode::Exclusive, Duration::from_millis(20));
                assert!(matches!(refused, Err(Error::TimedOut)));
                clock.elapsed()
            });
            until("a writer in the line", || waiters(&locks, 1) == 1 || writer.is_finished());
            let behind = scope.spawn(|| {
                locks.session().unwrap().lock(1, LockMode::Shared).unwrap();
                clock.elapsed()
            });
            behind.join().unwrap().saturating_sub(writer.join().unwrap())
        });
        reader.unlock(1).unwrap();
        time
    });
    let time = median(times.collect());
    assert!(time < BACKOFF / 4, "{time:?}");
}

#[test]
fn a_crowd_on_one_line_gets_through() {
    const CROWD: u64 = 12;
    // Who polls takes a core from the others, and there may be two.
    for (waiting, times) in [(Waiting::Sleep, 20), (Waiting::Poll, 2)] {
        let (name, locks) = table(64, 16);
        let (book, longest) = (Book::create(&name.0), AtomicU64::new(0));
        let mut first = locks.session().unwrap();
        first.lock(1, LockMode::Exclusive).unwrap();
        std::thread::scope(|scope| {
            for who in 1..=CROWD {
                let (locks, book, longest) = (&locks, &book, &longest);
                scope.spawn(move || {
                    let mut session = locks.session().unwrap();
                    session.set_waiting(waiting);
                    for _ in 0..times {
                        let begin = Instant::now();
                        session.lock(1, LockMode::Exclusive).unwrap();
                        longest.fetch_max(begin.elapsed().as_micros() as u64, Relaxed);
                        book.visit(1, LockMode::Exclusive, who, |who| panic!("{who} is in it"));
                        // Long enough for all others to come.
                        std::thread::sleep(Duration::from_micros(100));
                        session.unlock(1).unwrap();
                    }
                });
            }
            until("a full line", || waiters(&locks, 1) == 7);
            std::thread::sleep(Duration::from_millis(5));
            first.unlock(1).unwrap();
        });
        println!("{waiting:?}: the longest of {} waits was {} us", CROWD * times, longest.load(Relaxed));
        assert_eq!(book.lost(), 0);
    }
}

#[test]
fn a_death_delays_those_behind_it_by_a_nap() {
    let (name, locks) = table(64, 16);
    let mut times = Vec::new();
    for _ in 0..10 {
        let mut holder = Player::talking(&format!("hold {} 1", name.0));
        assert_eq!(holder.hear(), "holds");
        let begin = std::thread::scope(|scope| {
            let waiters_of = [LockMode::Exclusive, LockMode::Shared, LockMode::Exclusive].map(|mode| {
                let locks = &locks;
                scope.spawn(move || {
                    let mut session = locks.session().unwrap();
                    session.lock_within(1, mode, LONG).unwrap();
                    session.unlock(1).unwrap();
                    Instant::now()
                })
            });
            until("all in the line", || waiters(&locks, 1) == 3);
            holder.kill();
            let died = Instant::now();
            waiters_of.map(|waiter| waiter.join().unwrap().saturating_duration_since(died)).into_iter().max().unwrap()
        });
        times.push(begin);
    }
    let time = median(times);
    println!("all three behind a dead holder were through after {time:?}");
    assert!(time < BACKOFF * 3, "{time:?}");
}

#[test]
fn a_transaction_that_keeps_its_age_gets_through() {
    // Four threads take pairs of two locks in both orders: without wait-die they would stand for ever.
    let (name, locks) = table(64, 8);
    let (book, age) = (Book::create(&name.0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for who in 1..=4 {
            let (locks, book, age) = (&locks, &book, &age);
            scope.spawn(move || {
                let mut session = locks.session().unwrap();
                for _ in 0..1000 {
                    session.set_age(age.fetch_add(1, Relaxed)).unwrap();
                    let (first, second) = if who % 2 == 0 { (1, 2) } else { (2, 1) };
                    while let Err(error) = session
                        .lock(first, LockMode::Exclusive)
                        .and_then(|()| session.lock(second, LockMode::Exclusive))
                    {
                        assert!(matches!(error, Error::WouldDeadlock), "{error}");
                        session.unlock_all().unwrap();
                    }
                    for key in [1, 2] {
                        book.visit(key, LockMode::Exclusive, who, |who| panic!("{who} is in it"));
                    }
                    session.unlock_all().unwrap();
                }
            });
        }
    });
    assert_eq!(book.lost(), 0);
}
