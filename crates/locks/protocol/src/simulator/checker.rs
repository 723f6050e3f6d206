//! What must hold, seen from the tasks: from their events alone, as the data that a lock guards would see it.
//!
//! A task holds from the event that grants until it gives back, is told that it lost, or its machine's own lease has
//! run out, whatever the machine knows of that. A machine that crashed holds until its lease ends, because nobody else
//! can know earlier.

use crate::word::Machine;
use lockwork_locking::LockMode;

/// One who holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) machine: Machine,
    pub(super) session: u32,
    pub(super) request: u64,
    pub(super) mode: LockMode,
    /// When it ends by itself, once nothing can make it longer any more.
    pub(super) until: Option<u64>,
}

/// What has been seen of one lock.
#[derive(Clone, Debug, Default)]
struct Seen {
    holds: Vec<Hold>,
    /// The largest token of a writer, and of anybody.
    writer: u64,
    anybody: u64,
}

#[derive(Debug)]
pub(super) struct Checker {
    locks: Vec<Seen>,
    tokens: bool,
}

impl Checker {
    pub(super) fn new(locks: u64, tokens: bool) -> Self {
        Self { locks: vec![Seen::default(); locks as usize], tokens }
    }

    /// Who holds a lock, as far as its tasks know.
    pub(super) fn holds(&self, lock: u64) -> &[Hold] {
        &self.locks[lock as usize].holds
    }

    /// A task has been told that it holds. `ended` says of each of [`Checker::holds`] whether its lease is over.
    pub(super) fn granted(&mut self, lock: u64, hold: Hold, token: u64, ended: &[bool]) -> Result<(), String> {
        let seen = &mut self.locks[lock as usize];
        let mut ended = ended.iter();
        seen.holds.retain(|_| !ended.next().is_some_and(|ended| *ended));
        if let Some(other) = seen.holds.iter().find(|other| excludes(other.mode, hold.mode)) {
            return Err(format!("mutual exclusion: {hold:x?} was granted lock {lock} while {other:x?} holds it"));
        }
        if self.tokens {
            let writes = hold.mode == LockMode::Exclusive;
            if writes && token <= seen.anybody {
                return Err(format!("tokens: {hold:x?} has {token:x}, but {:x} was granted before", seen.anybody));
            }
            if token < seen.writer {
                return Err(format!("tokens: {hold:x?} has {token:x}, a writer before had {:x}", seen.writer));
            }
            if writes {
                seen.writer = token;
            }
            seen.anybody = seen.anybody.max(token);
        }
        seen.holds.push(hold);
        Ok(())
    }

    pub(super) fn let_go(&mut self, lock: u64, machine: Machine, session: u32, request: u64) {
        self.locks[lock as usize]
            .holds
            .retain(|hold| (hold.machine, hold.session, hold.request) != (machine, session, request));
    }

    pub(super) fn downgraded(&mut self, lock: u64, machine: Machine, session: u32, request: u64) {
        for hold in &mut self.locks[lock as usize].holds {
            if (hold.machine, hold.session, hold.request) == (machine, session, request) {
                hold.mode = LockMode::Shared;
            }
        }
    }

    /// The same process goes on in another session.
    pub(super) fn goes_on(&mut self, machine: Machine, before: u32, session: u32) {
        for hold in self.locks.iter_mut().flat_map(|seen| &mut seen.holds) {
            if (hold.machine, hold.session) == (machine, before) {
                hold.session = session;
            }
        }
    }

    /// Nothing more is heard of this machine: it holds until its lease ends.
    pub(super) fn gone(&mut self, machine: Machine, session: u32, until: u64) {
        for hold in self.locks.iter_mut().flat_map(|seen| &mut seen.holds) {
            if (hold.machine, hold.session) == (machine, session) {
                hold.until = Some(until);
            }
        }
    }
}

const fn excludes(one: LockMode, other: LockMode) -> bool {
    !matches!((one, other), (LockMode::Shared, LockMode::Shared))
}
