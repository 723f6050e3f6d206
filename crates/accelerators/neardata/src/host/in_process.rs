//! A lock table inside one process: a map from lock to holders, a condition variable, wait-die.
//!
//! For tests, and for a host whose storage runs in the same process. It is the plainest thing that keeps the contract:
//! whoever meets only younger holders waits, whoever meets an older one is refused. So waiting always goes from old to
//! young, and no circle can close. Trade-off: no queue; of several waiters whoever wakes first goes first.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lockwork_locking::{LockMode, compatible};

use super::locks::{HostLocks, LockKey, LockTable, Refusal};
use super::vid_map::VidMap;
use crate::device::{LockRefusal, LockSource, RowLocks, TableId, TransactionId};
use crate::record::Vid;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Session(u64),
    Transaction(TransactionId),
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    owner: Owner,
    age: u64,
    mode: LockMode,
}

#[derive(Debug, Default)]
struct State {
    holders: HashMap<LockKey, Vec<Holder>>,
    held: HashMap<Owner, Vec<LockKey>>,
    sessions: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    released: Condvar,
    maps: RwLock<HashMap<TableId, VidMap>>,
}

/// See the module. A clone is the same lock table.
#[derive(Clone, Debug, Default)]
pub struct InProcessLocks {
    shared: Arc<Shared>,
    /// How long the storage waits for a lock.
    timeout: Duration,
}

impl InProcessLocks {
    /// An empty table. Bulk updates wait for at most `timeout` for each lock.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self { shared: Arc::default(), timeout }
    }

    /// Names the VID map of a table, in which bulk updates look after they have locked.
    pub fn add_map(&self, table: TableId, map: VidMap) {
        self.shared.maps.write().unwrap_or_else(PoisonError::into_inner).insert(table, map);
    }

    /// How many locks are held, by anybody.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state().holders.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, owner: Owner, age: u64, key: LockKey, mode: LockMode, timeout: Duration) -> Result<(), Refusal> {
        let until = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            let State { holders, held, .. } = &mut *state;
            let holders = holders.entry(key).or_default();
            let own = holders.iter().position(|holder| holder.owner == owner);
            let wanted = own.map_or(mode, |own| holders[own].mode.join(mode));
            let mut in_the_way = holders.iter().filter(|other| other.owner != owner && !compatible(other.mode, wanted));
            match in_the_way.clone().next() {
                None => {
                    match own {
                        Some(own) => holders[own].mode = wanted,
                        None => {
                            holders.push(Holder { owner, age, mode });
                            held.entry(owner).or_default().push(key);
                        }
                    }
                    return Ok(());
                }
                Some(_) if in_the_way.any(|other| other.age <= age) => return Err(Refusal::Busy),
                Some(_) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Refusal::TimedOut);
            }
            state = self.shared.released.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn release(&self, owner: Owner) {
        let mut state = self.state();
        let keys = state.held.remove(&owner).unwrap_or_default();
        for key in &keys {
            if let Some(holders) = state.holders.get_mut(key) {
                holders.retain(|holder| holder.owner != owner);
                if holders.is_empty() {
                    state.holders.remove(key);
                }
            }
        }
        drop(state);
        if !keys.is_empty() {
            self.shared.released.notify_all();
        }
    }
}

impl LockTable for InProcessLocks {
    fn session(&self) -> Result<Box<dyn HostLocks>, Refusal> {
        let mut state = self.state();
        state.sessions += 1;
        Ok(Box::new(Session { locks: self.clone(), owner: Owner::Session(state.sessions), age: 0 }))
    }

    fn release_transaction(&self, transaction: TransactionId) {
        self.release(Owner::Transaction(transaction));
    }
}

struct Session {
    locks: InProcessLocks,
    owner: Owner,
    age: u64,
}

impl HostLocks for Session {
    fn begin(&mut self, age: u64) {
        self.age = age;
    }

    fn lock(&mut self, key: LockKey, mode: LockMode, timeout: Duration) -> Result<(), Refusal> {
        self.locks.lock(self.owner, self.age, key, mode, timeout)
    }

    fn release_all(&mut self) {
        self.locks.release(self.owner);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.release_all();
    }
}

impl LockSource for InProcessLocks {
    fn open(&self, transaction: TransactionId, _: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        Ok(Box::new(Element { locks: self.clone(), transaction }))
    }
}

/// A processing element, as a user of the table.
struct Element {
    locks: InProcessLocks,
    transaction: TransactionId,
}

impl RowLocks for Element {
    fn lock(&mut self, table: TableId, vid: Vid, number: u32) -> Result<(), LockRefusal> {
        let (owner, key) = (Owner::Transaction(self.transaction), LockKey::Tuple { table, vid });
        match self.locks.lock(owner, self.transaction.0, key, LockMode::Exclusive, self.locks.timeout) {
            Ok(()) => {}
            Err(Refusal::Busy | Refusal::TimedOut) => return Err(LockRefusal::Busy),
            Err(Refusal::Failed(why)) => return Err(LockRefusal::Failed(why)),
        }
        let maps = self.locks.shared.maps.read().unwrap_or_else(PoisonError::into_inner);
        let map = maps.get(&table).ok_or_else(|| LockRefusal::Failed(format!("table {table} has no VID map")))?;
        if map.get(vid).is_version(number) { Ok(()) } else { Err(LockRefusal::Superseded) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUPLE: LockKey = LockKey::Tuple { table: 0, vid: Vid(3) };

    fn session(locks: &InProcessLocks, age: u64) -> Box<dyn HostLocks> {
        let mut session = locks.session().unwrap();
        session.begin(age);
        session
    }

    #[test]
    fn the_older_waits_and_the_younger_is_refused() {
        let locks = InProcessLocks::default();
        let (mut old, mut young) = (session(&locks, 1), session(&locks, 2));
        young.lock(TUPLE, LockMode::Shared, Duration::ZERO).unwrap();
        old.lock(TUPLE, LockMode::Shared, Duration::ZERO).unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(young.lock(TUPLE, LockMode::Exclusive, second), Err(Refusal::Busy));
        assert_eq!(old.lock(TUPLE, LockMode::Exclusive, Duration::from_millis(5)), Err(Refusal::TimedOut));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                young.release_all();
            });
            old.lock(TUPLE, LockMode::Exclusive, Duration::from_secs(60)).unwrap();
        });
        drop(old);
        assert_eq!(locks.held(), 0);
    }

    #[test]
    fn a_bulk_update_looks_at_the_version_after_it_has_the_lock() {
        let locks = InProcessLocks::default();
        let map = VidMap::in_process(8);
        map.set(Vid(3), crate::record::VidEntry::new(2, crate::record::RecordId::HOST));
        locks.add_map(0, map);
        let mut rows = locks.open(TransactionId(7), 0).unwrap();
        assert_eq!(rows.lock(0, Vid(3), 1), Err(LockRefusal::Superseded));
        assert_eq!(rows.lock(0, Vid(3), 2), Ok(()));
        assert!(matches!(rows.lock(1, Vid(3), 2), Err(LockRefusal::Failed(_))));
        let mut host = session(&locks, 9);
        assert_eq!(host.lock(TUPLE, LockMode::Shared, Duration::ZERO), Err(Refusal::Busy));
        locks.release_transaction(TransactionId(7));
        assert_eq!(host.lock(TUPLE, LockMode::Shared, Duration::ZERO), Ok(()));
    }
}
