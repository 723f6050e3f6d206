//! The shared lock table, as the host and as processing elements use it.
//!
//! ```text
//! lines 0 .. 15/16      tuples: (VID + an offset for each table) modulo their number
//! the last sixteenth    gates of tables, and keys that no tuple has: by hash
//! ```
//!
//! The paper's key is (VID, version). Here a line stands for the VID, and the version is checked under the lock, in the
//! VID map that both sides see: whoever comes with an older version than the newest is refused there, at once and for
//! good, instead of holding a lock that nobody else wants. Neighbouring tuples have neighbouring lines, and no two of a
//! table share one that has fewer tuples than there are lines.
//!
//! **Who owns what.** A worker of the host is a session, and so is each processing element that works for a bulk
//! update; its age is the number of the transaction, by which the host finds the sessions of an update and releases
//! what they hold, after the storage has said that they are at rest. If the storage has died, they are cleaned up
//! after.
//!
//! Invariant: a processing element's session is not used for another transaction before it is empty.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockwork_locking::LockMode;
use lockwork_locking::shared::TableError;
use lockwork_sharedlocks::{Error, Mapped, Session, SessionNumber, SharedLocks, WaitPolicy, Waiting};

use super::maps::Maps;
use crate::device::{LockRefusal, LockSource, RowLocks, TableId, TransactionId};
use crate::host::locks::{HostLocks, LockKey, LockTable, Refusal};
use crate::host::vid_map::VidMap;
use crate::link::Link;
use crate::linked::{Linked, READ_BYTES};
use crate::record::Vid;

/// How long a processing element waits for a lock.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Where locks are.
#[derive(Clone, Copy, Debug)]
struct Lines {
    tuples: u64,
    others: u64,
}

impl Lines {
    fn of(lines: u32) -> Self {
        let others = (lines / 16).max(1);
        Self { tuples: u64::from((lines - others).max(1)), others: others.into() }
    }

    fn tuple(self, table: TableId, vid: Vid) -> u32 {
        // Tables begin far from each other, so that their first tuples do not share lines.
        let offset = u64::from(table).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((u64::from(vid.0) + offset) % self.tuples) as u32
    }

    fn other(self, hash: u64) -> u32 {
        (self.tuples + (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % self.others) as u32
    }

    fn of_key(self, key: LockKey) -> u32 {
        match key {
            LockKey::Tuple { table, vid } => self.tuple(table, vid),
            LockKey::Gate { table } => self.other(u64::from(table) << 1 | 1),
            LockKey::Absent { table, hash } => self.other((hash ^ u64::from(table)) << 1),
        }
    }
}

/// The lock table of a host.
#[derive(Clone, Debug)]
pub struct SharedLockTable {
    locks: SharedLocks,
    lines: Lines,
}

impl SharedLockTable {
    /// Over this table, of at least two lines.
    #[must_use]
    pub fn new(locks: SharedLocks) -> Self {
        let lines = Lines::of(locks.table().layout().lines);
        Self { locks, lines }
    }
}

impl LockTable for SharedLockTable {
    fn session(&self) -> Result<Box<dyn HostLocks>, Refusal> {
        let session = self.locks.session().map_err(|error| Refusal::Failed(error.to_string()))?;
        Ok(Box::new(HostSession { session, lines: self.lines, aged: Ok(()) }))
    }

    fn release_transaction(&self, transaction: TransactionId) {
        let own = std::process::id();
        for status in self.locks.sessions().filter(|status| status.process != own) {
            // Looked at in this order: whoever holds anything keeps its age until this releases it, and the epoch was
            // looked at before both.
            let table = self.locks.table();
            if table.touched(status.number) == 0 || table.age(status.number) != transaction.0 {
                continue;
            }
            // Dead ones have been anywhere in the protocol, live ones are at rest. A line that is damaged tells whoever
            // comes to it next.
            match self.locks.is_alive(status.number) {
                Ok(true) => drop(self.locks.release_all_of(status.number, status.epoch)),
                Ok(false) | Err(_) => drop(self.locks.clean_up_after(status.number)),
            }
        }
    }
}

struct HostSession {
    session: Session<Mapped>,
    lines: Lines,
    /// Whether the session has the age of its transaction. Without it, waiting could be waiting in a circle.
    aged: Result<(), Refusal>,
}

impl HostLocks for HostSession {
    fn begin(&mut self, age: u64) {
        self.aged = self.session.set_age(age).map_err(|error| Refusal::Failed(error.to_string()));
    }

    fn lock(&mut self, key: LockKey, mode: LockMode, timeout: Duration) -> Result<(), Refusal> {
        self.aged.clone()?;
        let line = self.lines.of_key(key);
        self.session.lock_line(line, mode, WaitPolicy::WaitDie, Some(timeout)).map_err(|error| match error {
            Error::Busy | Error::WouldDeadlock => Refusal::Busy,
            Error::TimedOut => Refusal::TimedOut,
            error => Refusal::Failed(error.to_string()),
        })
    }

    fn release_all(&mut self) {
        // A line that is damaged tells whoever comes to it next.
        drop(self.session.unlock_all());
    }
}

/// The lock table of a storage process.
#[derive(Clone, Debug)]
pub struct StorageLocks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    locks: SharedLocks<Linked<Mapped>>,
    lines: Lines,
    maps: Maps,
    link: Link,
    /// Sessions of processing elements that are at rest. Some still hold what the host has not released yet.
    resting: Mutex<Vec<Session<Linked<Mapped>>>>,
    /// Bytes of VID maps that were read across the link.
    map_bytes: AtomicU64,
}

impl StorageLocks {
    /// Over the table and the maps that the host has handed over.
    #[must_use]
    pub fn new(locks: SharedLocks, maps: Maps, link: Link) -> Self {
        let lines = Lines::of(locks.table().layout().lines);
        let locks = locks.through(|mapped| Linked::new(mapped, link));
        let (resting, map_bytes) = (Mutex::default(), AtomicU64::new(0));
        Self(Arc::new(Shared { locks, lines, maps, link, resting, map_bytes }))
    }

    /// Bytes of lock table and VID maps that have crossed the link on behalf of the storage.
    fn bytes(&self) -> u64 {
        self.0.locks.table().memory().bytes() + self.0.map_bytes.load(Ordering::Relaxed)
    }
}

/// How another element of the same transaction stands in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sibling {
    Holds,
    Waits,
}

impl Shared {
    /// The sibling of a session that is in a line: sessions of one age are elements of one transaction.
    fn sibling(&self, session: SessionNumber, line: u32) -> Result<Option<Sibling>, LockRefusal> {
        let failed = |error: TableError| LockRefusal::Failed(error.to_string());
        let table = self.locks.table();
        let (age, mut siblings) = (table.age(session), Vec::new());
        table
            .everybody(line, |other| {
                if other != session && table.age(other) == age {
                    siblings.push(other);
                }
            })
            .map_err(failed)?;
        let mut found = None;
        for sibling in siblings {
            match table.standing(sibling, line).map_err(failed)? {
                Some(Some(LockMode::Exclusive)) => return Ok(Some(Sibling::Holds)),
                Some(_) => found = Some(Sibling::Waits),
                None => {}
            }
        }
        Ok(found)
    }
}

impl LockSource for StorageLocks {
    fn open(&self, transaction: TransactionId, _: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        let mut resting = self.0.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let table = self.0.locks.table();
        let empty = resting.iter().position(|session| table.touched(session.number()) == 0);
        let mut session = match empty {
            Some(at) => resting.swap_remove(at),
            None => self.0.locks.session().map_err(|error| LockRefusal::Failed(error.to_string()))?,
        };
        drop(resting);
        session.set_waiting(Waiting::Poll);
        session.set_age(transaction.0).map_err(|error| LockRefusal::Failed(error.to_string()))?;
        Ok(Box::new(Element { locks: self.clone(), session: Some(session), map: None }))
    }
}

/// The locks of one processing element, for one transaction.
struct Element {
    locks: StorageLocks,
    /// There until the element is dropped.
    session: Option<Session<Linked<Mapped>>>,
    /// The map of the table that was locked in last.
    map: Option<(TableId, VidMap)>,
}

impl Element {
    fn map(&mut self, table: TableId) -> Result<&VidMap, LockRefusal> {
        if self.map.as_ref().is_none_or(|(mapped, _)| *mapped != table) {
            let map = self.locks.0.maps.table(table);
            let map = map.ok_or_else(|| LockRefusal::Failed(format!("there is no VID map of table {table}")))?;
            self.map = Some((table, map));
        }
        Ok(&self.map.as_ref().expect("it was just put there").1)
    }
}

impl RowLocks for Element {
    fn lock(&mut self, table: TableId, vid: Vid, number: u32) -> Result<(), LockRefusal> {
        let line = self.locks.0.lines.tuple(table, vid);
        let session = self.session.as_mut().expect("it is there until the element is dropped");
        let mut deadline = None;
        loop {
            match session.lock_line(line, LockMode::Exclusive, WaitPolicy::WaitDie, Some(TIMEOUT)) {
                Ok(()) => break,
                Err(Error::Busy | Error::TimedOut | Error::WouldDeadlock) => {}
                Err(error) => return Err(LockRefusal::Failed(error.to_string())),
            }
            // Another element of the same transaction has the line, for another tuple: it stays locked as long as this
            // one needs it. Or it is about to have it.
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + TIMEOUT);
            match self.locks.0.sibling(session.number(), line)? {
                Some(Sibling::Holds) => break,
                Some(Sibling::Waits) if Instant::now() < deadline => std::hint::spin_loop(),
                _ => return Err(LockRefusal::Busy),
            }
        }
        self.locks.0.link.atomic();
        self.locks.0.map_bytes.fetch_add(READ_BYTES, Ordering::Relaxed);
        if self.map(table)?.get(vid).is_version(number) { Ok(()) } else { Err(LockRefusal::Superseded) }
    }
}

impl Drop for Element {
    fn drop(&mut self) {
        // Not closed: what it holds is the transaction's until the host releases it.
        let mut resting = self.locks.0.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.extend(self.session.take());
        self.locks.0.maps.tell_storage_bytes(self.locks.bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lockwork_sharedlocks::{Layout, Options, Placement};

    use super::*;
    use crate::record::{RecordId, VidEntry};

    /// A table of sixteen lines, fifteen of them for tuples, as both sides see it; all tuples have version 1.
    fn both_sides() -> (SharedLockTable, StorageLocks) {
        let layout = Layout { placement: Placement::Direct, ..Layout::new(16, 16) };
        let (host, descriptor) = SharedLocks::anonymous(&Options { layout, reserve: true }).unwrap();
        let (maps, maps_descriptor) = Maps::create(1, 100).unwrap();
        let map = maps.table(0).unwrap();
        (0..100).for_each(|vid| map.set(Vid(vid), VidEntry::new(1, RecordId::new(1, 0))));
        let storage = SharedLocks::of_descriptor(descriptor.as_fd()).unwrap();
        let maps = Maps::attach(maps_descriptor.as_fd()).unwrap();
        (SharedLockTable::new(host), StorageLocks::new(storage, maps, Link::None))
    }

    #[test]
    fn elements_of_one_update_share_a_line_and_others_do_not_get_it() {
        let (host, storage) = both_sides();
        let mut elements: Vec<_> = (0..2).map(|at| storage.open(TransactionId(7), at).unwrap()).collect();
        // Tuples 1 and 16 have one line.
        elements[0].lock(0, Vid(1), 1).unwrap();
        elements[1].lock(0, Vid(16), 1).unwrap();
        assert_eq!(elements[1].lock(0, Vid(31), 2), Err(LockRefusal::Superseded));
        let mut other = storage.open(TransactionId(8), 0).unwrap();
        assert_eq!(other.lock(0, Vid(16), 1), Err(LockRefusal::Busy), "it is younger");
        let mut session = host.session().unwrap();
        session.begin(9);
        let tuple = LockKey::Tuple { table: 0, vid: Vid(1) };
        assert_eq!(session.lock(tuple, LockMode::Exclusive, Duration::ZERO), Err(Refusal::Busy));
    }

    #[test]
    fn a_session_that_holds_something_does_not_begin_anew() {
        let (host, storage) = both_sides();
        let [tuple, other] = [1, 2].map(|vid| LockKey::Tuple { table: 0, vid: Vid(vid) });
        let mut session = host.session().unwrap();
        session.begin(9);
        session.lock(tuple, LockMode::Exclusive, Duration::ZERO).unwrap();
        session.begin(3);
        let refused = session.lock(other, LockMode::Exclusive, Duration::ZERO);
        assert!(matches!(&refused, Err(Refusal::Failed(why)) if why.contains("release them all first")), "{refused:?}");
        session.release_all();
        session.begin(3);
        session.lock(other, LockMode::Exclusive, Duration::ZERO).unwrap();
        let mut element = storage.open(TransactionId(4), 0).unwrap();
        assert_eq!(element.lock(0, Vid(2), 1), Err(LockRefusal::Busy), "it is younger than the age that counts");
    }

    /// A session of another process, which has died with a line.
    fn dead(host: &SharedLockTable, age: u64, line: u32) -> SessionNumber {
        let table = host.locks.table();
        let held = [1, 2, 3, 4].into_iter().filter_map(SessionNumber::new).find(|number| table.process(*number) == 0);
        let mut dead = table.open(held.unwrap(), 4_000_000, &mut |_| ()).unwrap();
        table.set_age(&dead, age).unwrap();
        table.request(&mut dead, line, LockMode::Exclusive, WaitPolicy::Try, &mut |_| ()).unwrap();
        dead.number()
    }

    #[test]
    fn releasing_a_dead_transaction_leaves_other_sessions_alone() {
        let (host, _storage) = both_sides();
        let [own, other] = [(7, 3), (8, 4)].map(|(age, line)| dead(&host, age, line));
        host.release_transaction(TransactionId(7));
        let touched = |number| host.locks.table().touched(number);
        assert_eq!((touched(own), touched(other)), (0, 1));
        host.release_transaction(TransactionId(8));
        assert_eq!(touched(other), 0);
    }
}
