//! A process is killed before each of its writes to the segment, in every scenario, alone and beside others who
//! contend. Whoever is left goes on.

use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockwork_sharedlocks::{Error, LockMode, Session, SessionNumber, SharedLocks};

use crate::book::Book;
use crate::scenarios::{self, Held, Scenario};
use crate::support::{Chance, LONG, Name, Player, table, until};

/// Kills of a run, at least.
const KILLS: u32 = 2000;
/// Rounds that run side by side. They mostly sleep.
const SIDE_BY_SIDE: usize = 8;
/// All keys of the scenarios.
const KEYS: std::ops::Range<u64> = 1..17;
/// Within this time all locks of a dead process can be acquired. It is a few backoffs; the rest is for a busy machine.
const SOON: Duration = Duration::from_secs(2);

/// For so long locks are held that a process is not to get.
const HOLD: Duration = Duration::from_millis(30);

/// A table with data, and who else is at it.
struct Arena {
    name: Name,
    locks: SharedLocks,
    book: Book,
}

impl Arena {
    fn new() -> Self {
        let (name, locks) = table(64, 24);
        let book = Book::create(&name.0);
        Self { name, locks, book }
    }

    /// Takes and gives back single locks until it is told to stop.
    fn contend(&self, mut session: Session, stop: &AtomicBool) {
        let mut chance = Chance::new(session.number().get().into());
        while !stop.load(Relaxed) {
            let key = [1, 1, 1, 2, 3][chance.below(5) as usize];
            let mode = if chance.below(3) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            session.lock_within(key, mode, LONG).unwrap();
            self.book.visit(key, mode, session.number().get().into(), |who| panic!("{who} is in it"));
            session.unlock(key).unwrap();
            std::thread::sleep(Duration::from_micros(chance.below(300)));
        }
    }

    /// One process. Whether it was killed.
    fn round(&self, scenario: &Scenario, writes: u32, busy: bool) -> bool {
        let mut holders: Vec<_> = scenario.held.iter().map(|_| self.locks.session().unwrap()).collect();
        for (holder, (key, mode)) in holders.iter_mut().zip(scenario.held) {
            // Others may be in between, so it may have to do without one.
            match holder.lock_within(*key, *mode, Duration::from_millis(2)) {
                Ok(()) | Err(Error::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let number = self.locks.session().unwrap().number();
        if scenario.dead_before > 0 {
            let mut dead = Player::talking(&format!("hold {} {}", self.name.0, scenario.dead_before));
            assert_eq!(dead.hear(), "holds");
            dead.kill();
        }
        let mut victim = Player::silent(&format!("scenario {} {} {writes}", self.name.0, scenario.name));
        let begin = Instant::now();
        until("the end of the process", || {
            let is_queued = scenario.until == Held::UntilItQueues && self.is_in_line(number);
            // It may wait behind others who wait for the holders.
            if is_queued || begin.elapsed() > HOLD {
                holders.clear();
            }
            victim.process.try_wait().unwrap().is_some()
        });
        drop(holders);
        let status = victim.process.wait().unwrap();
        let killed = status.signal() == Some(libc::SIGKILL);
        assert!(killed || status.success(), "{}, before write {writes}: {status}", scenario.name);
        self.check(scenario, writes, number, busy);
        killed
    }

    /// Opens the session of a number that is free, except for moments when somebody cleans up after it.
    fn open(&self, number: SessionNumber) -> Session {
        let mut found = None;
        until("a session of the dead one's number", || {
            let mut sessions = Vec::new();
            while sessions.last().is_none_or(|last: &Session| last.number() < number) {
                sessions.push(self.locks.session().unwrap());
            }
            found = sessions.pop().filter(|session| session.number() == number);
            found.is_some()
        });
        found.unwrap()
    }

    fn is_in_line(&self, number: SessionNumber) -> bool {
        let mut is_there = false;
        self.locks.table().everybody(1, |other| is_there |= other == number).unwrap();
        is_there
    }

    /// All locks can be acquired soon, and nothing is left of the dead.
    fn check(&self, scenario: &Scenario, writes: u32, number: SessionNumber, busy: bool) {
        let what = || format!("{}, killed before write {writes}", scenario.name);
        let begin = Instant::now();
        let mut session = self.open(number);
        for key in KEYS {
            let got = session.lock_within(key, LockMode::Exclusive, SOON);
            assert!(
                got.is_ok(),
                "{}: key {key} is not free: {:?}",
                what(),
                self.locks.table().everybody(key as u32, |number| {
                    println!("key {key}: session {number:?} of process {}", self.locks.table().process(number));
                })
            );
            self.book.visit(key, LockMode::Exclusive, number.get().into(), |who| panic!("{}: {who} is in it", what()));
        }
        let took = begin.elapsed();
        assert!(took < SOON, "{}: all locks together took {took:?}", what());
        session.unlock_all().unwrap();
        self.locks.clean_up().unwrap();
        for status in self.locks.sessions().filter(|status| status.touched > 0) {
            assert!(self.locks.is_alive(status.number).unwrap(), "{}: {status:?} is left", what());
        }
        if !busy {
            for line in 0..self.locks.table().layout().lines {
                self.locks.table().everybody(line, |who| panic!("{}: {who:?} is in line {line}", what())).unwrap();
            }
        }
    }

    /// Kills at every write, until there is none left. How many kills it took.
    fn sweep(&self, scenario: &Scenario, busy: bool) -> u32 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..if busy { 2 } else { 0 } {
                let (session, stop) = (self.locks.session().unwrap(), &stop);
                scope.spawn(move || self.contend(session, stop));
            }
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (1..).take_while(|writes| self.round(scenario, *writes, busy)).last().unwrap_or(0)
            }));
            stop.store(true, Relaxed);
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

#[test]
fn thousands_of_deaths_at_every_step_cost_nobody_else_anything() {
    let jobs: Vec<_> = scenarios::ALL.iter().flat_map(|scenario| [(scenario, false), (scenario, true)]).collect();
    let (next, kills, longest) = (AtomicU32::new(0), AtomicU32::new(0), Mutex::new(Duration::ZERO));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let job = next.fetch_add(1, Relaxed) as usize
                    && (job < jobs.len() || kills.load(Relaxed) < KILLS)
                {
                    let (scenario, busy) = jobs[job % jobs.len()];
                    let (arena, begin) = (Arena::new(), Instant::now());
                    let killed = arena.sweep(scenario, busy);
                    assert!(killed >= 6, "{}: died only {killed} times", scenario.name);
                    assert_eq!(arena.book.lost(), 0, "{}", scenario.name);
                    kills.fetch_add(killed, Relaxed);
                    let one = begin.elapsed() / killed;
                    let mut longest = longest.lock().unwrap();
                    *longest = one.max(*longest);
                    if job < jobs.len() {
                        println!(
                            "{:<22} {:<9} {killed:>3} kills, {one:?} each",
                            scenario.name,
                            if busy { "contended" } else { "alone" }
                        );
                    }
                }
            });
        }
    });
    println!("{} kills, at most {:?} each on average", kills.load(Relaxed), longest.lock().unwrap());
}
