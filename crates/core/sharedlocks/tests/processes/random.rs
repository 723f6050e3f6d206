//! Processes that are killed or stopped from outside at any time.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lockwork_sharedlocks::{Error, LockMode, SharedLocks};

use crate::book::Book;
use crate::support::{Chance, LONG, Player, table, until};

/// Words of the book: of each worker, by its number, whether it may be dead, and how far it is.
const CONDEMNED: u64 = 0;
const STEPS: u64 = 512;
/// And when all have to end, and the age that the next transaction has.
const STOP: u64 = 1022;
const AGE: u64 = 1023;

const WORKERS: usize = 4;
const KILLS: u64 = 240;
const KEYS: u64 = 6;

/// A worker, until it is killed or told to stop: transactions of two locks, under wait-die.
pub(crate) fn work(table: &str, number: u64, seed: u64) {
    let (locks, book) = (SharedLocks::attach(table).unwrap(), Book::open(table));
    let mut chance = Chance::new(seed);
    let mut session = locks.session().unwrap();
    while book.other(STOP).load(Relaxed) == 0 {
        if chance.below(50) == 0 {
            session = locks.session().unwrap();
        }
        session.set_age(book.other(AGE).fetch_add(1, Relaxed)).unwrap();
        let first = chance.below(KEYS);
        let second = (first + 1 + chance.below(KEYS - 1)) % KEYS;
        let mut mode = || if chance.below(3) == 0 { LockMode::Shared } else { LockMode::Exclusive };
        let wanted = [(first, mode()), (second, mode())];
        while let Some(error) = wanted.iter().find_map(|(key, mode)| session.lock(*key, *mode).err()) {
            assert!(matches!(error, Error::WouldDeadlock), "{error}");
            session.unlock_all().unwrap();
        }
        for (key, mode) in wanted {
            book.visit(key, mode, number, |who| {
                assert_eq!(book.other(CONDEMNED + who).load(Relaxed), 1, "{who} lives, and is in key {key}");
            });
        }
        session.unlock_all().unwrap();
        book.other(STEPS + number).fetch_add(1, Relaxed);
    }
}

#[test]
fn processes_killed_at_any_time_cost_nobody_else_anything() {
    let seed = match std::env::var("LOCKWORK_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()),
    };
    println!("LOCKWORK_SEED={seed}");
    let mut chance = Chance::new(seed);
    let (name, locks) = table(64, 8);
    let book = Book::create(&name.0);
    let mut number = 0;
    let mut start = |chance: &mut Chance| {
        number += 1;
        (number, Player::silent(&format!("worker {} {number} {}", name.0, chance.below(u64::MAX))))
    };
    let mut workers: Vec<_> = (0..WORKERS).map(|_| start(&mut chance)).collect();
    for _ in 0..KILLS {
        let one = chance.below(WORKERS as u64) as usize;
        let (number, worker) = &mut workers[one];
        let steps = || book.other(STEPS + *number).load(Relaxed);
        until("the first transaction", || steps() > 0);
        let delay = Duration::from_micros(chance.below(3000));
        let begin = Instant::now();
        while begin.elapsed() < delay {
            std::hint::spin_loop();
        }
        book.other(CONDEMNED + *number).store(1, Relaxed);
        worker.kill();
        workers[one] = start(&mut chance);
    }
    let done = |number: u64| book.other(STEPS + number).load(Relaxed);
    for (number, _) in &workers {
        until("progress of all who are left", || done(*number) > 10);
    }
    book.other(STOP).store(1, Relaxed);
    for (number, worker) in &mut workers {
        let status = worker.wait();
        assert!(status.success(), "worker {number}: {status}, signal {:?}", status.signal());
    }
    locks.clean_up().unwrap();
    assert!(locks.sessions().all(|status| status.touched == 0));
    for key in 0..KEYS {
        locks.table().everybody(key as u32, |who| panic!("{who:?} is in line {key}")).unwrap();
        // Who was killed inside is told of only to the next.
        let mut session = locks.session().unwrap();
        session.try_lock(key, LockMode::Exclusive).unwrap();
        book.visit(key, LockMode::Exclusive, 1, |who| assert_eq!(book.other(CONDEMNED + who).load(Relaxed), 1));
    }
    assert!(book.lost() <= KILLS, "{} changes are lost", book.lost());
    println!("{KILLS} kills, {} transactions", (1..=number).map(done).sum::<u64>());
}

#[test]
fn a_stopped_process_keeps_its_locks() {
    let (name, locks) = table(64, 8);
    let mut holder = Player::talking(&format!("hold {} 1", name.0));
    assert_eq!(holder.hear(), "holds");
    holder.signal(libc::SIGSTOP);
    let mut session = locks.session().unwrap();
    let refused = session.lock_within(1, LockMode::Exclusive, Duration::from_millis(60));
    assert!(matches!(refused, Err(Error::TimedOut)), "{refused:?}");
    assert!(matches!(session.try_lock(2, LockMode::Exclusive), Err(Error::Busy)));
    assert_eq!(locks.clean_up().unwrap(), 0);
    let status = locks.sessions().find(|status| status.process == holder.pid()).unwrap();
    assert!(locks.is_alive(status.number).unwrap());
    assert_eq!(status.touched, 2);
    holder.tell("release");
    holder.signal(libc::SIGCONT);
    session.lock_within(1, LockMode::Exclusive, LONG).unwrap();
    assert_eq!(holder.hear(), "released");
}
