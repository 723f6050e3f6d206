//! What a process does that is killed at every step, and what stands around it meanwhile.

use std::time::Duration;

use lockwork_sharedlocks::LockMode::{self, Exclusive, IntentExclusive, Shared};
use lockwork_sharedlocks::{Error, Session, SharedLocks};

use crate::book::Book;
use crate::child::Deadly;

/// How long others hold their locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    UntilItQueues,
    UntilItEnds,
}

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What others hold when it begins, each in a session of its own.
    pub(crate) held: &'static [(u64, LockMode)],
    pub(crate) until: Held,
    /// Whether a process with this many sessions died before, holding key 1 and 2 in the last of them.
    pub(crate) dead_before: usize,
    play: fn(&mut Player<'_>) -> Result<(), Error>,
}

/// The scenarios. Every one ends by itself, whoever contends.
pub(crate) const ALL: &[Scenario] = &[
    Scenario { play: take_free, ..quiet("take-free") },
    Scenario { held: &[(1, Exclusive)], play: take_free, ..quiet("queue-as-writer") },
    Scenario { held: &[(1, Exclusive)], play: read, ..quiet("queue-as-reader") },
    Scenario { held: &[(1, Shared), (1, Shared)], until: Held::UntilItEnds, play: read, ..quiet("join-and-leave") },
    Scenario { held: &[(1, Shared), (1, IntentExclusive)], play: read, ..quiet("behind-intent") },
    Scenario { play: upgrade, ..quiet("upgrade-owner") },
    Scenario { held: &[(1, Shared)], play: upgrade, ..quiet("upgrade-member") },
    Scenario { held: &[(1, Exclusive)], until: Held::UntilItEnds, play: withdraw, ..quiet("withdraw") },
    Scenario { play: release_to_waiters, ..quiet("release-to-waiters") },
    Scenario { play: many_lines, ..quiet("many-lines") },
    Scenario { play: again_and_again, ..quiet("re-entrant") },
    Scenario { play: release_all, ..quiet("release-all") },
    Scenario { play: drop_and_open, ..quiet("drop-and-open") },
    Scenario { dead_before: 1, play: take_free, ..quiet("open-after-a-death") },
    Scenario { dead_before: 3, play: take_free, ..quiet("wait-behind-a-death") },
    Scenario { dead_before: 3, play: clean_up, ..quiet("clean-up") },
];

const fn quiet(name: &'static str) -> Scenario {
    Scenario { name, held: &[], until: Held::UntilItQueues, dead_before: 0, play: take_free }
}

/// Who plays a scenario.
struct Player<'l> {
    locks: &'l SharedLocks<Deadly>,
    session: Session<Deadly>,
    book: Book,
}

impl Player<'_> {
    fn take(&mut self, key: u64, mode: LockMode) -> Result<(), Error> {
        self.session.lock_within(key, mode, crate::support::LONG)?;
        self.book.visit(key, mode, std::process::id().into(), |who| panic!("{who} is in it"));
        Ok(())
    }
}

/// Plays a scenario to its end.
pub(crate) fn play(name: &str, table: &str, locks: &SharedLocks<Deadly>) {
    let scenario = ALL.iter().find(|scenario| scenario.name == name).unwrap();
    let mut player = Player { locks, session: locks.session().unwrap(), book: Book::open(table) };
    (scenario.play)(&mut player).unwrap();
}

fn take_free(player: &mut Player<'_>) -> Result<(), Error> {
    player.take(1, Exclusive)?;
    player.session.unlock(1)
}

fn read(player: &mut Player<'_>) -> Result<(), Error> {
    player.take(1, Shared)?;
    player.session.unlock(1)
}

fn upgrade(player: &mut Player<'_>) -> Result<(), Error> {
    player.take(1, Shared)?;
    // Two who both want this would wait for each other for ever.
    for _ in 0..50 {
        match player.session.lock(1, Exclusive) {
            Err(Error::WouldDeadlock) => std::thread::sleep(Duration::from_micros(100)),
            Err(error) => return Err(error),
            Ok(()) => {
                player.take(1, Exclusive)?;
                break;
            }
        }
    }
    player.session.unlock_all()
}

fn withdraw(player: &mut Player<'_>) -> Result<(), Error> {
    for mode in [Exclusive, Shared, IntentExclusive] {
        match player.session.lock_within(1, mode, Duration::from_micros(300)) {
            Err(Error::TimedOut) => {}
            Ok(()) => player.session.unlock(1)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn release_to_waiters(player: &mut Player<'_>) -> Result<(), Error> {
    player.take(1, Exclusive)?;
    player.take(2, Shared)?;
    for _ in 0..40 {
        let mut there = 0;
        player.locks.table().everybody(1, |_| there += 1)?;
        if there > 2 {
            break;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    player.session.unlock(1)?;
    player.session.unlock(2)
}

fn many_lines(player: &mut Player<'_>) -> Result<(), Error> {
    let mode = |key| if key % 3 == 0 { Shared } else { Exclusive };
    (1..=16).try_for_each(|key| player.take(key, mode(key)))?;
    (1..=16).map(|key| key * 5 % 17).try_for_each(|key| player.session.unlock(key))
}

fn again_and_again(player: &mut Player<'_>) -> Result<(), Error> {
    [Exclusive, Exclusive, Shared].into_iter().try_for_each(|mode| player.take(1, mode))?;
    (0..3).try_for_each(|_| player.session.unlock(1))
}

fn release_all(player: &mut Player<'_>) -> Result<(), Error> {
    for (key, mode) in [(3, Exclusive), (1, Shared), (1, Shared), (5, IntentExclusive), (2, Exclusive)] {
        player.take(key, mode)?;
    }
    player.session.unlock_all()
}

fn drop_and_open(player: &mut Player<'_>) -> Result<(), Error> {
    for key in [1, 2] {
        player.take(key, Exclusive)?;
        player.session = player.locks.session()?;
    }
    player.take(1, Shared)
}

fn clean_up(player: &mut Player<'_>) -> Result<(), Error> {
    player.locks.clean_up()?;
    take_free(player)
}
