//! One transaction on the host: what it sees, what it locks, what it changes, and how that is committed.
//!
//! Whatever it looks up it gets as a private copy; commit makes new versions of the copies that were written.
//!
//! | isolation | a read sees | a read locks |
//! |---|---|---|
//! | snapshot | the version that the snapshot sees | nothing |
//! | serializable | the newest version | the tuple or the absent key, shared; the table's gate for a scan |
//!
//! A write locks the tuple exclusively, and if serializable the gate with intent; then the version seen must still
//! be the newest, so the first updater wins.
//!
//! A serializable transaction is equivalent to its place in the order of commit timestamps, because all its locks are
//! held when the timestamp is issued, and until its versions are visible. One that wrote nothing comes right after
//! the last timestamp that was visible at its end.
//!
//! Invariant: nothing is changed before [`Session::commit`], and nothing fails after a timestamp was issued.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockwork_locking::LockMode;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::ROW_HEADER_BYTES;

use super::copies::Copies;
use super::error::{Conflict, HostError};
use super::locks::{HostLocks, LockKey, Refusal};
use super::recent::Row;
use super::sessions::{Line, Views};
use super::table::HostTable;
use super::{Host, Isolation};
use crate::device::TableId;
use crate::record::{Timestamp, Vid, VidEntry};

const HEADER: usize = ROW_HEADER_BYTES as usize;
/// Commits of a session from one computation of the views to the next.
const VIEWS_EVERY: u32 = 32;

/// A tuple that the transaction has looked up.
#[derive(Debug)]
struct Access<'h> {
    table: &'h HostTable,
    vid: Vid,
    /// Number of the version it saw; zero: there was none.
    number: u32,
    /// When that was committed.
    created: Timestamp,
    /// Its copy, header included; null while there is none.
    row: *mut u8,
    /// Whether the row exists for the transaction: it did, or was inserted since.
    exists: bool,
    /// It is locked exclusively, and the version seen is the newest.
    claimed: bool,
    updated: bool,
    inserted: bool,
    removed: bool,
}

/// The worker's half of a transaction, see the module.
pub(super) struct Session<'h> {
    pub(super) host: &'h Host,
    pub(super) line: Arc<Line>,
    locks: Box<dyn HostLocks>,
    copies: Copies,
    accesses: Vec<Access<'h>>,
    gates: Vec<(TableId, LockMode)>,
    installs: Vec<(&'h HostTable, Vid, Row)>,
    snapshot: Timestamp,
    /// As they were some commits ago.
    views: Views,
    commits: u32,
}

// SAFETY: the addresses in it are of memory that it owns.
unsafe impl Send for Session<'_> {}

/// The serial stamp of a transaction that committed at `timestamp`.
fn writer_stamp(timestamp: Timestamp) -> u64 {
    timestamp * 2
}

/// The serial stamp of a transaction that wrote nothing and saw everything up to `timestamp`.
fn reader_stamp(timestamp: Timestamp) -> u64 {
    timestamp * 2 + 1
}

impl<'h> Session<'h> {
    /// A session that runs nothing yet.
    ///
    /// # Errors
    /// The lock table gives none.
    pub(super) fn new(host: &'h Host) -> Result<Self, HostError> {
        let locks = host.locks.session()?;
        let line = host.sessions.join(false);
        let (copies, accesses, gates, installs, views) = Default::default();
        Ok(Self { host, line, locks, copies, accesses, gates, installs, snapshot: 0, views, commits: 0 })
    }

    /// Begins a transaction of this age; see [`HostLocks::begin`].
    #[inline]
    pub(super) fn begin(&mut self, age: u64) -> Timestamp {
        self.locks.begin(age);
        self.snapshot = self.line.begin(&self.host.clock, self.is_serializable());
        self.snapshot
    }

    /// Moves the snapshot on to what is visible now, for a bulk operation, which reads nothing else.
    pub(super) fn renew(&mut self) -> Timestamp {
        self.snapshot = self.line.begin(&self.host.clock, false);
        self.snapshot
    }

    /// Ends the transaction: forgets what it read and wrote and releases its locks. Without effect if there is none.
    #[inline]
    pub(super) fn end(&mut self) {
        self.accesses.clear();
        self.installs.clear();
        self.gates.clear();
        self.copies.clear();
        self.locks.release_all();
        self.line.end();
    }

    /// What the transaction sees if its isolation is snapshot.
    pub(super) fn snapshot(&self) -> Timestamp {
        self.snapshot
    }

    fn is_serializable(&self) -> bool {
        self.host.config.isolation == Isolation::Serializable
    }

    /// What a read sees that is done now.
    fn reads_at(&self) -> Timestamp {
        if self.is_serializable() { self.host.clock.visible() } else { self.snapshot }
    }

    /// Locks.
    ///
    /// # Errors
    /// [`HostError::Conflict`] and [`HostError::Locks`].
    pub(super) fn lock(&mut self, key: LockKey, mode: LockMode) -> Result<(), HostError> {
        self.locks.lock(key, mode, self.host.config.timeout).map_err(|refusal| match refusal {
            Refusal::Busy => HostError::Conflict(Conflict::Busy),
            Refusal::TimedOut => HostError::Conflict(Conflict::TimedOut),
            Refusal::Failed(_) => HostError::Locks(refusal),
        })
    }

    /// Locks the table as a whole, if the isolation asks for it.
    ///
    /// # Errors
    /// As [`Self::lock`].
    #[inline]
    pub(super) fn gate(&mut self, table: TableId, mode: LockMode) -> Result<(), HostError> {
        if !self.is_serializable() {
            return Ok(());
        }
        let held = self.gates.iter().position(|gate| gate.0 == table);
        let wanted = held.map_or(mode, |held| self.gates[held].1.join(mode));
        match held {
            Some(held) if self.gates[held].1 == wanted => return Ok(()),
            _ => self.lock(LockKey::Gate { table }, wanted)?,
        }
        match held {
            Some(held) => self.gates[held].1 = wanted,
            None => self.gates.push((table, wanted)),
        }
        Ok(())
    }

    fn find(&self, table: TableId, vid: Vid) -> Option<usize> {
        self.accesses.iter().position(|access| access.vid == vid && access.table.id == table)
    }

    /// The tuple of a key; `None` if it has none, which stays so if the isolation asks for it.
    fn tuple(&mut self, table: &HostTable, key: &Key, mode: LockMode) -> Result<Option<Vid>, HostError> {
        let found = table.index.find(key);
        if found.is_some() || !self.is_serializable() {
            return Ok(found);
        }
        self.lock(LockKey::Absent { table: table.id, hash: key.hash() }, mode)?;
        Ok(table.index.find(key))
    }

    /// The access of a tuple, the same for the same tuple.
    fn open(&mut self, table: &'h HostTable, vid: Vid, write: bool) -> Result<usize, HostError> {
        if let Some(at) = self.find(table.id, vid) {
            if write && self.accesses[at].exists {
                self.claim(at)?;
            }
            return Ok(at);
        }
        if self.is_serializable() {
            let mode = if write { LockMode::Exclusive } else { LockMode::Shared };
            self.lock(LockKey::Tuple { table: table.id, vid }, mode)?;
        }
        let seen = table.read(vid, self.reads_at(), self.host, &self.line)?;
        let mut access = Access {
            table,
            vid,
            number: 0,
            created: 0,
            row: std::ptr::null_mut(),
            exists: false,
            claimed: false,
            updated: false,
            inserted: false,
            removed: false,
        };
        if let Some(row) = seen {
            (access.number, access.created) = (row.number, row.created);
            if let Some(image) = row.image {
                access.row = self.copy(table, &image)?;
                access.exists = true;
            }
        }
        self.accesses.push(access);
        let at = self.accesses.len() - 1;
        if write && self.accesses[at].exists {
            self.claim(at)?;
        }
        Ok(at)
    }

    fn copy(&mut self, table: &HostTable, image: &[u8]) -> Result<*mut u8, HostError> {
        assert_eq!(image.len(), table.image_bytes(), "an image of the table");
        let row = self.copies.take(HEADER + image.len()).map_err(|error| HostError::Full(error.to_string()))?;
        // SAFETY: the copy was taken for it just now, header included.
        unsafe { row.add(HEADER).copy_from_nonoverlapping(image.as_ptr(), image.len()) };
        Ok(row)
    }

    /// Locks a tuple exclusively and makes sure that the version seen is the newest.
    fn claim(&mut self, at: usize) -> Result<(), HostError> {
        let &Access { table, vid, number, claimed, .. } = &self.accesses[at];
        if claimed {
            return Ok(());
        }
        self.lock(LockKey::Tuple { table: table.id, vid }, LockMode::Exclusive)?;
        let entry = table.vids.get(vid);
        if number != 0 || entry == VidEntry::default() {
            if number != 0 && !entry.is_version(number) {
                return Err(HostError::Conflict(Conflict::Superseded));
            }
        } else {
            // Either it was created after the snapshot, or all that is left of it is its removal, and not even that.
            if table.read(vid, self.host.clock.visible(), self.host, &self.line)?.is_some() {
                return Err(HostError::Conflict(Conflict::Superseded));
            }
            self.accesses[at].number = table.number_of(entry);
        }
        let access = &self.accesses[at];
        // SAFETY: a row that exists has a copy, and nobody writes it now; it was not written before it was claimed.
        if access.exists && table.guards.forbid(access.created, unsafe { image(access) }) {
            return Err(HostError::Conflict(Conflict::Busy));
        }
        self.accesses[at].claimed = true;
        Ok(())
    }

    /// The row of a key to read, or null.
    ///
    /// # Errors
    /// Conflicts, a failing storage, no memory; so do all that follow.
    pub(super) fn search(&mut self, table: &'h HostTable, image: &[u8]) -> Result<*mut u8, HostError> {
        let key = table.index.key(image);
        let Some(vid) = self.tuple(table, &key, LockMode::Shared)? else { return Ok(std::ptr::null_mut()) };
        let at = self.open(table, vid, false)?;
        Ok(self.accesses[at].row)
    }

    fn look_to_write(&mut self, table: &'h HostTable, image: &[u8]) -> Result<Option<usize>, HostError> {
        self.gate(table.id, LockMode::IntentExclusive)?;
        let key = table.index.key(image);
        let Some(vid) = self.tuple(table, &key, LockMode::Shared)? else { return Ok(None) };
        let at = self.open(table, vid, true)?;
        Ok(self.accesses[at].exists.then_some(at))
    }

    /// The row of a key to write, or null.
    pub(super) fn update(&mut self, table: &'h HostTable, image: &[u8]) -> Result<*mut u8, HostError> {
        let Some(at) = self.look_to_write(table, image)? else { return Ok(std::ptr::null_mut()) };
        self.accesses[at].updated = true;
        Ok(self.accesses[at].row)
    }

    /// Lets the row of a key be removed at commit; whether there is one.
    pub(super) fn remove(&mut self, table: &'h HostTable, image: &[u8]) -> Result<bool, HostError> {
        let Some(at) = self.look_to_write(table, image)? else { return Ok(false) };
        self.accesses[at].removed = true;
        Ok(true)
    }

    /// A new row with this key, all zeros behind it; null if there is one already.
    pub(super) fn insert(&mut self, table: &'h HostTable, image: &[u8]) -> Result<*mut u8, HostError> {
        self.gate(table.id, LockMode::IntentExclusive)?;
        let key = table.index.key(image);
        let vid = match self.tuple(table, &key, LockMode::Exclusive)? {
            Some(vid) => vid,
            None => self.new_tuple(table, &key, image)?,
        };
        let at = self.open(table, vid, false)?;
        if self.accesses[at].exists {
            return Ok(std::ptr::null_mut());
        }
        self.claim(at)?;
        let mut fresh = vec![0; table.image_bytes()];
        fresh[..image.len()].copy_from_slice(image);
        table.clear_gaps(&mut fresh);
        let row = self.copy(table, &fresh)?;
        let access = &mut self.accesses[at];
        (access.row, access.exists, access.inserted) = (row, true, true);
        Ok(row)
    }

    /// A VID for a key that has none. It is locked before anybody can find it.
    fn new_tuple(&mut self, table: &HostTable, key: &Key, image: &[u8]) -> Result<Vid, HostError> {
        let full = || {
            let (name, capacity) = (table.schema.name(), table.vids.capacity());
            HostError::Full(format!("table '{name}' has {capacity} tuples, as many as its VID map has entries"))
        };
        let vid = table.take_vid().ok_or_else(full)?;
        let locked = self.lock(LockKey::Tuple { table: table.id, vid }, LockMode::Exclusive);
        let placed = locked.and_then(|()| Ok(table.index.insert(key, image, vid)?));
        match placed {
            Ok(None) => Ok(vid),
            Ok(Some(other)) => {
                table.give_back_vid(vid);
                Ok(other)
            }
            Err(error) => {
                table.give_back_vid(vid);
                Err(error)
            }
        }
    }

    /// Calls `f` with the images of the first `limit` rows from a key on, in the order of their keys, and says how many
    /// there were.
    pub(super) fn scan(
        &mut self,
        table: &'h HostTable,
        from: &[u8],
        limit: usize,
        mut f: impl FnMut(&[u8]),
    ) -> Result<u64, HostError> {
        self.gate(table.id, LockMode::Shared)?;
        let (reads_at, mut rows, mut failure) = (self.reads_at(), 0, None);
        if limit == 0 {
            return Ok(0);
        }
        let mut give = |image: &[u8]| {
            f(image);
            rows += 1;
            rows < limit as u64
        };
        table.index.scan(&table.index.key(from), limit, |vid| {
            if let Some(at) = self.find(table.id, vid) {
                let access = &self.accesses[at];
                // SAFETY: a row that exists has a copy.
                return !access.exists || give(unsafe { image(access) });
            }
            match table.read(vid, reads_at, self.host, &self.line) {
                Ok(row) => row.and_then(|row| row.image).is_none_or(|image| give(&image)),
                Err(error) => {
                    failure = Some(error);
                    false
                }
            }
        });
        failure.map_or(Ok(rows), |error| Err(error.into()))
    }

    /// Commits, ends the transaction and answers its serial stamp.
    ///
    /// # Errors
    /// [`HostError::Full`] and [`HostError::InDoubt`]; then the transaction still has to be ended.
    pub(super) fn commit(&mut self) -> Result<u64, HostError> {
        let changes = |access: &&Access<'_>| match (access.inserted, access.removed) {
            (true, true) => false,
            (inserted, removed) => inserted || removed || access.updated,
        };
        if !self.accesses.iter().any(|access| changes(&access)) {
            return Ok(self.forgo());
        }
        if self.host.in_doubt.load(Ordering::SeqCst) {
            return Err(self.host.refuse_in_doubt());
        }
        self.host.make_room()?;
        self.installs.clear();
        for access in self.accesses.iter().filter(changes) {
            let full = || HostError::Full(format!("tuple {} has had 2^32 versions", access.vid.0));
            let number = access.number.checked_add(1).ok_or_else(full)?;
            // SAFETY: what was changed exists, and has a copy.
            let image = (!access.removed).then(|| Arc::from(unsafe { image(access) }));
            self.installs.push((access.table, access.vid, Row { number, created: 0, image, bulk: false }));
        }
        let timestamp = self.host.clock.issue();
        for (table, vid, row) in self.installs.drain(..) {
            table.install(vid, Row { created: timestamp, ..row }, &self.views, &self.host.cache);
        }
        self.host.clock.publish(timestamp);
        self.end();
        self.commits = self.commits.wrapping_add(1);
        if self.commits.is_multiple_of(VIEWS_EVERY) {
            self.host.sessions.views(&self.host.clock, &mut self.views);
        }
        Ok(writer_stamp(timestamp))
    }

    /// Ends a transaction whose changes do not count, and answers its serial stamp.
    pub(super) fn forgo(&mut self) -> u64 {
        let stamp = reader_stamp(self.reads_at());
        self.end();
        stamp
    }
}

/// The image in an access's copy.
///
/// # Safety
/// The row exists for the transaction, and nobody writes it meanwhile.
unsafe fn image<'a>(access: &Access<'a>) -> &'a [u8] {
    // SAFETY: as the caller's; a copy is as long as a row.
    unsafe { std::slice::from_raw_parts(access.row.add(HEADER), access.table.image_bytes()) }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.end();
        self.host.sessions.leave(&self.line);
    }
}
