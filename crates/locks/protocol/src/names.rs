//! Names of locks: which lock a name means, and when it may mean another one.
//!
//! A range of locks at the end of the table is for names. A name gets a lock when it is first asked for, and the pair
//! is *stored* before anybody is told. Who is told keeps it, so a session is *interested* in a name until it says that
//! it has forgotten it, or ends. A name that nobody is interested in, and whose lock is free, is removed from the store
//! after a while, and its lock goes to the next name.
//!
//! ```text
//! (nothing) -- asked for --> Storing -- stored --> Known -- idle, its lock free --> Freeing -- stored --> (nothing)
//! ```
//!
//! *Invariants*: two names never have one lock, and a session that was told a pair finds it so until it has forgotten
//! it. Tokens of a name grow over all locks that it has had: no token of a lock that was freed is larger than `floor`,
//! and a lock that is handed out begins there.
//!
//! *Copies*: a packet may come late and twice. Every question of a session has a number, and forgetting counts only if
//! its number is larger than that of the last question about the name.
//!
//! *Trade-off*: interest is kept by session and not by guard, so a name costs memory here while anybody keeps it in a
//! cache: some 130 bytes and its text, and 20 for each who is interested.

use crate::decider::Store;
use crate::word::{Machine, State};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Longest name, in bytes.
pub const LONGEST: usize = 255;
/// For how long a name stays that nobody is interested in.
const LINGER_NS: u64 = 10_000_000_000;
/// For how long, when all locks of names are taken.
const PRESSED_NS: u64 = 1_000_000;
/// Changes on their way to the store.
const MAX_UNDER_WAY: usize = 1024;

/// A client that asks: its session, and the number of the question in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Where.
    pub machine: Machine,
    /// Whose.
    pub session: u32,
    /// Larger than that of every question before.
    pub number: u64,
}

/// What comes of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The name means this lock.
    Lock(u64),
    /// It will be told, or has to be asked again.
    Later,
    /// All locks of names are taken.
    Full,
}

/// What has to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Store that the name means the lock; then [`Names::stored`].
    Put(Arc<str>, u64),
    /// Remove the name from the store; then [`Names::stored`].
    Delete(Arc<str>, u64),
    /// Tell who asked.
    Tell(Asker, Arc<str>, u64),
}

/// Names that were stored do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A lock that is not for names.
    #[error(
        "name '{name}' is stored for lock {lock}, and locks {range:?} are for names; give --locks and --names as before, \
             or another --etcd-prefix"
    )]
    Range {
        /// Which name.
        name: String,
        /// Its lock.
        lock: u64,
        /// What is for names.
        range: Range<u64>,
    },
    /// Two names have one lock.
    #[error("names '{0}' and '{1}' are both stored for lock {2}; delete one of them in etcd while no lockd runs")]
    Twice(String, String, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Storing,
    Known,
    Freeing,
}

/// Who is interested: most names have one.
#[derive(Debug, Default)]
enum Interest {
    #[default]
    Nobody,
    One(Asker),
    Many(Vec<Asker>),
}

impl Interest {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    fn all(&self) -> &[Asker] {
        match self {
            Self::Nobody => &[],
            Self::One(asker) => std::slice::from_ref(asker),
            Self::Many(askers) => askers,
        }
    }

    /// Whether the session is new.
    fn add(&mut self, asker: Asker) -> bool {
        let known = match self {
            Self::Nobody => None,
            Self::One(one) => Some(&mut *one).filter(|one| one.session == asker.session),
            Self::Many(askers) => askers.iter_mut().find(|one| one.session == asker.session),
        };
        if let Some(one) = known {
            one.number = one.number.max(asker.number);
            return false;
        }
        *self = match std::mem::take(self) {
            Self::Nobody => Self::One(asker),
            Self::One(one) => Self::Many(vec![one, asker]),
            Self::Many(mut askers) => {
                askers.push(asker);
                Self::Many(askers)
            }
        };
        true
    }

    /// Whether the session was there, and its last question is older than `number`.
    fn remove(&mut self, session: u32, number: u64) -> bool {
        let goes = |one: &Asker| one.session == session && one.number < number;
        match self {
            Self::One(one) if goes(one) => *self = Self::Nobody,
            Self::Many(askers) => {
                let Some(at) = askers.iter().position(goes) else { return false };
                askers.swap_remove(at);
                if let [one] = askers[..] {
                    *self = Self::One(one);
                }
            }
            _ => return false,
        }
        true
    }
}

#[derive(Debug)]
struct Slot {
    name: Arc<str>,
    phase: Phase,
    /// It is in `idle`, though it may not be idle any more.
    queued: bool,
    interest: Interest,
}

/// All names of a service.
#[derive(Debug)]
pub struct Names {
    range: Range<u64>,
    by_name: HashMap<Arc<str>, u32>,
    /// By lock, from the first of the range; `None` is free.
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// No token of a lock that was freed is larger, but for hand-overs within a machine.
    floor: u64,
    /// Who waits until a name is stored.
    waiting: HashMap<u32, Vec<Asker>>,
    /// Names whose last session has forgotten them, and when.
    idle: VecDeque<(u64, u32)>,
    sessions: HashMap<u32, HashSet<u32>>,
    /// Sessions that have ended, and what they were interested in.
    leaving: Vec<(u32, Vec<u32>)>,
    /// Sessions that may know names that they have not told yet. Nothing is freed before.
    silent: HashSet<u32>,
    under_way: usize,
    effects: VecDeque<Effect>,
}

impl Names {
    /// Names for the locks of `range`, at most 2^32.
    #[must_use]
    pub fn new(range: Range<u64>) -> Self {
        Self {
            range: range.start..range.end.min(range.start + u64::from(u32::MAX)),
            by_name: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            floor: 0,
            waiting: HashMap::new(),
            idle: VecDeque::new(),
            sessions: HashMap::new(),
            leaving: Vec::new(),
            silent: HashSet::new(),
            under_way: 0,
            effects: VecDeque::new(),
        }
    }

    /// With names that were stored by a service before. Nobody is interested in them yet.
    ///
    /// # Errors
    /// [`RestoreError`] if they cannot all be kept.
    pub fn restore(range: Range<u64>, stored: impl IntoIterator<Item = (String, u64)>) -> Result<Self, RestoreError> {
        let mut names = Self::new(range);
        for (name, lock) in stored {
            if !names.range.contains(&lock) {
                return Err(RestoreError::Range { name, lock, range: names.range });
            }
            let at = (lock - names.range.start) as usize;
            if names.slots.len() <= at {
                names.slots.resize_with(at + 1, || None);
            }
            if let Some(other) = &names.slots[at] {
                return Err(RestoreError::Twice(other.name.to_string(), name, lock));
            }
            let name: Arc<str> = name.into();
            names.by_name.insert(Arc::clone(&name), at as u32);
            names.slots[at] = Some(Slot { name, phase: Phase::Known, queued: true, interest: Interest::Nobody });
            names.idle.push_back((0, at as u32));
        }
        names.free = (0..names.slots.len() as u32).rev().filter(|at| names.slots[*at as usize].is_none()).collect();
        Ok(names)
    }

    /// `sessions` of the service before go on in this one, so they may know names: nothing is freed before each of them
    /// has told all that it keeps, or has ended.
    pub fn survived(&mut self, sessions: impl IntoIterator<Item = u32>) {
        self.silent.extend(sessions);
    }

    /// A session that has survived asked again for every name that it keeps.
    pub fn told_all(&mut self, session: u32) {
        self.silent.remove(&session);
    }

    /// A session asks which lock a name means, and keeps the answer. The name has 1 to [`LONGEST`] bytes.
    pub fn ask(&mut self, store: &impl Store, name: &str, asker: Asker) -> Reply {
        if let Some(&at) = self.by_name.get(name) {
            let slot = self.slots[at as usize].as_mut().expect("a name has its slot");
            if slot.phase == Phase::Freeing {
                return Reply::Later;
            }
            if slot.interest.add(asker) {
                self.sessions.entry(asker.session).or_default().insert(at);
            }
            if slot.phase == Phase::Known {
                return Reply::Lock(self.range.start + u64::from(at));
            }
            let waiting = self.waiting.entry(at).or_default();
            match waiting.iter_mut().find(|one| one.session == asker.session) {
                Some(one) => *one = asker,
                None => waiting.push(asker),
            }
            return Reply::Later;
        }
        if self.under_way >= MAX_UNDER_WAY {
            return Reply::Later;
        }
        let Some(at) = self.free.pop().or_else(|| self.grow()) else {
            let may_come = self.under_way > 0 || !self.idle.is_empty() || !self.leaving.is_empty();
            return if may_come { Reply::Later } else { Reply::Full };
        };
        let (name, lock): (Arc<str>, u64) = (name.into(), self.range.start + u64::from(at));
        store.raise_token(lock, self.floor);
        self.by_name.insert(Arc::clone(&name), at);
        let (phase, interest) = (Phase::Storing, Interest::One(asker));
        self.slots[at as usize] = Some(Slot { name: Arc::clone(&name), phase, queued: false, interest });
        self.sessions.entry(asker.session).or_default().insert(at);
        self.waiting.insert(at, vec![asker]);
        self.under_way += 1;
        self.effects.push_back(Effect::Put(name, lock));
        Reply::Later
    }

    fn grow(&mut self) -> Option<u32> {
        let at = self.slots.len() as u64;
        (self.range.start + at < self.range.end).then(|| {
            self.slots.push(None);
            at as u32
        })
    }

    /// Which lock a name means, if any. Nobody becomes interested.
    #[must_use]
    pub fn look_up(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).map(|at| self.range.start + u64::from(*at))
    }

    /// Which name means a lock, if any.
    #[must_use]
    pub fn name_of(&self, lock: u64) -> Option<&Arc<str>> {
        let at = lock.checked_sub(self.range.start)? as usize;
        self.slots.get(at)?.as_ref().map(|slot| &slot.name)
    }

    /// A session has forgotten a name.
    pub fn forget(&mut self, now: u64, name: &str, asker: Asker) {
        let Some(&at) = self.by_name.get(name) else { return };
        self.lose_interest(now, at, asker.session, asker.number);
        let is_over = self.sessions.get_mut(&asker.session).is_some_and(|names| {
            let slot = self.slots[at as usize].as_ref();
            if slot.is_none_or(|slot| slot.interest.all().iter().all(|one| one.session != asker.session)) {
                names.remove(&at);
            }
            names.is_empty()
        });
        if is_over {
            self.sessions.remove(&asker.session);
        }
    }

    /// A session has ended.
    pub fn gone(&mut self, session: u32) {
        self.silent.remove(&session);
        if let Some(names) = self.sessions.remove(&session) {
            self.leaving.push((session, names.into_iter().collect()));
        }
    }

    fn lose_interest(&mut self, now: u64, at: u32, session: u32, number: u64) {
        let Some(slot) = self.slots[at as usize].as_mut() else { return };
        if slot.interest.remove(session, number) && slot.interest.is_empty() && !slot.queued {
            slot.queued = true;
            self.idle.push_back((now, at));
        }
    }

    /// What was to be done for `lock` is durable: a name that it got, or that it no longer has.
    pub fn stored(&mut self, store: &impl Store, lock: u64) {
        let Some(at) = lock.checked_sub(self.range.start).filter(|at| *at < self.slots.len() as u64) else { return };
        let Some(slot) = self.slots[at as usize].as_mut() else { return };
        match slot.phase {
            Phase::Storing => {
                slot.phase = Phase::Known;
                let name = Arc::clone(&slot.name);
                let asked = self.waiting.remove(&(at as u32)).unwrap_or_default();
                let tell = asked.into_iter().map(|asker| Effect::Tell(asker, Arc::clone(&name), lock));
                self.effects.extend(tell);
            }
            Phase::Freeing => {
                self.floor = self.floor.max(store.token(lock));
                self.by_name.remove(&slot.name);
                self.slots[at as usize] = None;
                self.free.push(at as u32);
            }
            Phase::Known => return,
        }
        self.under_way -= 1;
    }

    /// Frees what is due, looking at no more than `most` names.
    pub fn tick(&mut self, now: u64, store: &impl Store, most: usize) {
        for _ in 0..most {
            let Some((session, names)) = self.leaving.last_mut() else { break };
            let session = *session;
            match names.pop() {
                // Whatever its number.
                Some(at) => self.lose_interest(now, at, session, u64::MAX),
                None => drop(self.leaving.pop()),
            }
        }
        for _ in 0..most {
            if self.next_tick().is_none_or(|due| due > now) || self.under_way >= MAX_UNDER_WAY {
                return;
            }
            let Some((_, at)) = self.idle.pop_front() else { return };
            let Some(slot) = self.slots[at as usize].as_mut() else { continue };
            slot.queued = false;
            if !slot.interest.is_empty() || slot.phase == Phase::Freeing {
                continue;
            }
            let lock = self.range.start + u64::from(at);
            if slot.phase == Phase::Storing || store.load(lock).state != State::Free {
                // Its last holder is dead, or its agent has yet to give it back.
                slot.queued = true;
                self.idle.push_back((now, at));
                continue;
            }
            slot.phase = Phase::Freeing;
            self.floor = self.floor.max(store.token(lock));
            self.effects.push_back(Effect::Delete(Arc::clone(&slot.name), lock));
            self.under_way += 1;
        }
    }

    /// When [`Names::tick`] has something to do.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        if !self.leaving.is_empty() {
            return Some(0);
        }
        let (since, _) = self.idle.front().filter(|_| self.silent.is_empty())?;
        let is_full = self.free.is_empty() && self.range.start + self.slots.len() as u64 >= self.range.end;
        Some(since.saturating_add(if is_full { PRESSED_NS } else { LINGER_NS }))
    }

    /// What has to be done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Names that there are, those on their way in and out included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Changes on their way to the store.
    #[must_use]
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Locks for names.
    #[must_use]
    pub const fn range(&self) -> &Range<u64> {
        &self.range
    }
}
