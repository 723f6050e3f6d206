//! The managers of this crate as scripts see them.
//!
//! - [`Queue`]: every `acquire` is an owner.
//! - [`Batch`]: every `acquire` is a transaction that arrives in the current batch. Free means granted; chained waits
//!   for the member in front; deferred waits for the next batch, which begins when all of this one have released.
//!   Members of a chain run one by one, so readers behind a writer are not granted together.
//! - [`Words`]: two-phase words under one of three policies. Who waits is polled after every release.
//! - [`GroupWords`]: the group locks of whole tables; they refuse instead of waiting.

use super::{Capability, Event, Manager, NotHeld, Session, names};
use lockwork_locking::batch::{Access, AccessSets, BatchConfig, BatchLocks};
use lockwork_locking::queue::QueueLocks;
use lockwork_locking::word::{self, Age, group};
use lockwork_locking::{LockId, LockMode, Outcome, Owner, Request};
use std::sync::atomic::AtomicU64;

/// Locks that the adapters provide: names `0..LOCKS`.
pub const LOCKS: u32 = 64;

/// The queue lock manager.
#[derive(Debug)]
pub struct Queue {
    locks: QueueLocks,
    hashed: bool,
    /// Session and requests of every owner; `None` after its release.
    owners: Vec<Option<(Session, Vec<Request>)>>,
}

impl Queue {
    /// Over a dense or a hashed record table.
    ///
    /// # Panics
    /// If there is no memory for 64 records.
    #[must_use]
    pub fn new(hashed: bool) -> Self {
        let locks = if hashed { QueueLocks::hashed(1) } else { QueueLocks::dense(LOCKS).expect("a kilobyte") };
        Self { locks, hashed, owners: Vec::new() }
    }
}

impl Manager for Queue {
    fn name(&self) -> String {
        if self.hashed { "queue (hashed)" } else { "queue (dense)" }.to_string()
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Fifo, Groups, Intent, Sets, Waits, Withdraw};
        vec![Waits, Fifo, Groups, Withdraw, Intent, Sets]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], _: Option<u64>) -> Outcome {
        let owner = Owner(self.owners.len() as u32);
        self.owners.push(Some((session, requests.to_vec())));
        match self.locks.lock(owner, requests) {
            Ok(true) => Outcome::Granted,
            Ok(false) => Outcome::Waiting,
            Err(error) => panic!("{error}"),
        }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let is_it = |owner: &Option<(Session, Vec<Request>)>| {
            owner.as_ref().is_some_and(|(of, requests)| *of == session && names(requests, locks))
        };
        let at = self.owners.iter().position(is_it).ok_or(NotHeld)?;
        let Self { locks, owners, .. } = self;
        owners[at] = None;
        let mut events = Vec::new();
        let ready = |owner: Owner| {
            let (session, requests) = owners[owner.0 as usize].as_ref().expect("who gets ready was not released");
            events.push(Event { session: *session, lock: requests[0].id, granted: true });
        };
        locks.release(Owner(at as u32), ready).expect("it has locked");
        Ok(events)
    }
}

/// One transaction of a [`Batch`].
#[derive(Debug)]
struct Arrival {
    session: Session,
    requests: Vec<Request>,
    accesses: Vec<Access>,
    finished: bool,
}

#[derive(Debug, Default)]
struct Arrivals(Vec<Arrival>);

impl AccessSets for Arrivals {
    fn accesses(&self, transaction: u32) -> &[Access] {
        &self.0[transaction as usize].accesses
    }
}

/// The batch lock manager.
#[derive(Debug)]
pub struct Batch {
    locks: BatchLocks,
    arrivals: Arrivals,
}

impl Batch {
    /// With room for more transactions than a script has.
    ///
    /// # Panics
    /// If there is no memory for 64 records.
    #[must_use]
    pub fn new() -> Self {
        let config = BatchConfig { records: LOCKS, capacity: 4096, deferred_limit: 4096 };
        Self { locks: BatchLocks::new(config).expect("some kilobytes"), arrivals: Arrivals::default() }
    }

    /// Transactions that run now: in the batch, not finished, nobody unfinished in front of them in their chain.
    fn running(&self) -> Vec<u32> {
        let plan = self.locks.plan();
        let finished = |transaction: &u32| self.arrivals.0[*transaction as usize].finished;
        plan.heads().filter_map(|head| plan.chain(head).find(|transaction| !finished(transaction))).collect()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Manager for Batch {
    fn name(&self) -> String {
        "batch".to_string()
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Fifo, Intent, Sets, Waits};
        vec![Waits, Fifo, Intent, Sets]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], _: Option<u64>) -> Outcome {
        let number = self.arrivals.0.len() as u32;
        let access = |request: &Request| Access { record: request.id.0 as u32, mode: request.mode };
        let accesses = requests.iter().map(access).collect();
        self.arrivals.0.push(Arrival { session, requests: requests.to_vec(), accesses, finished: false });
        let mut stream = number..number + 1;
        if let Err(error) = self.locks.extend(&self.arrivals, &mut stream) {
            panic!("{error}");
        }
        assert!(stream.is_empty(), "a script has fewer transactions than a batch");
        if self.running().contains(&number) { Outcome::Granted } else { Outcome::Waiting }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let before = self.running();
        let arrivals = &self.arrivals.0;
        let is_it = |transaction: &&u32| {
            let arrival = &arrivals[**transaction as usize];
            arrival.session == session && names(&arrival.requests, locks)
        };
        let transaction = *before.iter().find(is_it).ok_or(NotHeld)?;
        self.arrivals.0[transaction as usize].finished = true;
        if self.running().is_empty() {
            self.locks.begin(&self.arrivals);
        }
        let event = |transaction: u32| {
            let arrival = &self.arrivals.0[transaction as usize];
            Event { session: arrival.session, lock: arrival.requests[0].id, granted: true }
        };
        Ok(self.running().into_iter().filter(|now| !before.contains(now)).map(event).collect())
    }
}

/// What a transaction does when a two-phase lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Gives up.
    NoWait,
    /// Waits if it is older than all holders, else gives up.
    WaitDie,
    /// Waits if the lock lies behind all that it holds, else gives up.
    Ordered,
}

/// A lock that a session has or wants.
#[derive(Clone, Copy, Debug)]
struct Claim {
    session: Session,
    lock: LockId,
    mode: LockMode,
}

fn find(claims: &[Claim], session: Session, lock: LockId) -> Option<usize> {
    claims.iter().position(|claim| claim.session == session && claim.lock == lock)
}

/// Two-phase lock words under a policy.
#[derive(Debug)]
pub struct Words {
    policy: Policy,
    words: Vec<(AtomicU64, AtomicU64)>,
    ages: Vec<(Session, u64)>,
    held: Vec<Claim>,
    waiting: Vec<Claim>,
    /// The largest stamp that any lock showed.
    stamp: u64,
}

impl Words {
    /// All locks free.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let words = (0..LOCKS).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
        Self { policy, words, ages: Vec::new(), held: Vec::new(), waiting: Vec::new(), stamp: 0 }
    }

    /// Asks for the lock of a claim once.
    fn attempt(&mut self, claim: Claim) -> Outcome {
        let (lock, age_word) = &self.words[claim.lock.0 as usize];
        let given = self.ages.iter().find(|(session, _)| *session == claim.session);
        let age = given.map_or(u64::from(claim.session.0), |(_, age)| *age);
        let exclusive = claim.mode == LockMode::Exclusive;
        let answer = if exclusive { word::try_exclusive(lock) } else { word::try_shared(lock) };
        if let Ok(stamp) = answer {
            if self.policy == Policy::WaitDie {
                Age::publish(age_word, age, exclusive);
            }
            self.stamp = self.stamp.max(stamp);
            self.held.push(claim);
            return Outcome::Granted;
        }
        let waits = match self.policy {
            Policy::NoWait => false,
            Policy::WaitDie => Age::may_wait(age_word, age),
            Policy::Ordered => self.held.iter().all(|held| held.session != claim.session || held.lock < claim.lock),
        };
        if waits { Outcome::Waiting } else { Outcome::Conflict }
    }

    fn give_back(&mut self, claim: Claim) {
        let (lock, age_word) = &self.words[claim.lock.0 as usize];
        if claim.mode == LockMode::Exclusive {
            Age::clear(age_word);
            word::release_exclusive(lock, self.stamp + 1);
        } else {
            word::release_shared(lock, self.stamp + 1);
        }
    }

    /// Every waiter asks again, in the order in which they came.
    fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for claim in std::mem::take(&mut self.waiting) {
            match self.attempt(claim) {
                Outcome::Waiting => self.waiting.push(claim),
                outcome => {
                    let granted = outcome == Outcome::Granted;
                    events.push(Event { session: claim.session, lock: claim.lock, granted });
                }
            }
        }
        events
    }
}

impl Manager for Words {
    fn name(&self) -> String {
        let policy = match self.policy {
            Policy::NoWait => "no-wait",
            Policy::WaitDie => "wait-die",
            Policy::Ordered => "ordered",
        };
        format!("two-phase words ({policy})")
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Groups, NoWait, Ordered, Overtakes, Reentrant, Upgrade, WaitDie, Waits, Withdraw};
        match self.policy {
            Policy::NoWait => vec![Upgrade, Reentrant, NoWait],
            Policy::WaitDie => vec![Upgrade, Reentrant, WaitDie, Overtakes],
            Policy::Ordered => vec![Upgrade, Reentrant, Waits, Groups, Withdraw, Ordered],
        }
    }

    fn set_age(&mut self, session: Session, age: u64) {
        self.ages.push((session, age));
    }

    fn acquire(&mut self, session: Session, requests: &[Request], _: Option<u64>) -> Outcome {
        let [request] = requests else { panic!("words take one lock at a time") };
        let claim = Claim { session, lock: request.id, mode: request.mode };
        if let Some(at) = find(&self.held, session, request.id) {
            let wanted = self.held[at].mode.join(request.mode);
            if wanted != self.held[at].mode {
                match word::try_upgrade(&self.words[request.id.0 as usize].0) {
                    Ok(stamp) => self.stamp = self.stamp.max(stamp),
                    Err(word::Conflict) => return Outcome::Conflict,
                }
            }
            self.held[at].mode = wanted;
            return Outcome::Granted;
        }
        let outcome = self.attempt(claim);
        if outcome == Outcome::Waiting {
            self.waiting.push(claim);
        }
        outcome
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let [lock] = locks else { panic!("words take one lock at a time") };
        if let Some(at) = find(&self.waiting, session, *lock) {
            self.waiting.remove(at);
        } else {
            let at = find(&self.held, session, *lock).ok_or(NotHeld)?;
            let claim = self.held.remove(at);
            self.give_back(claim);
        }
        Ok(self.poll())
    }
}

/// The group locks of whole tables.
#[derive(Debug)]
pub struct GroupWords {
    words: Vec<AtomicU64>,
    held: Vec<Claim>,
}

impl GroupWords {
    /// All locks free.
    #[must_use]
    pub fn new() -> Self {
        Self { words: (0..LOCKS).map(|_| AtomicU64::new(0)).collect(), held: Vec::new() }
    }
}

impl Default for GroupWords {
    fn default() -> Self {
        Self::new()
    }
}

impl Manager for GroupWords {
    fn name(&self) -> String {
        "group words".to_string()
    }

    fn capabilities(&self) -> Vec<Capability> {
        vec![Capability::NoWait, Capability::Intent]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], _: Option<u64>) -> Outcome {
        let [request] = requests else { panic!("words take one lock at a time") };
        if group::try_enter(&self.words[request.id.0 as usize], request.mode).is_err() {
            return Outcome::Conflict;
        }
        self.held.push(Claim { session, lock: request.id, mode: request.mode });
        Outcome::Granted
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let [lock] = locks else { panic!("words take one lock at a time") };
        let at = find(&self.held, session, *lock).ok_or(NotHeld)?;
        let claim = self.held.remove(at);
        group::leave(&self.words[lock.0 as usize], claim.mode, 0);
        Ok(Vec::new())
    }
}
