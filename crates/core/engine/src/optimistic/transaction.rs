//! What one optimistic transaction has read, wants to write, and how that becomes a commit.
//!
//! | phase | what | why there |
//! |---|---|---|
//! | 1 | rows to write are locked, by ascending address | whoever waits waits for a higher address: no circle |
//! | 2 | a TID is taken; everything read is looked at again | the TID is then the place in the serial order ([`tid`]) |
//! | 3 | copies are installed, words unlocked with the TID | readers from now on see the new version |
//!
//! A transaction that writes nothing has phase 2 only, without a TID of its own, and not even that if it looked at one
//! row once. What aborts by its own decision counts as one that writes nothing: it read what made it abort.
//!
//! Invariant: no lock is held between two steps of a worker, so a transaction that is set aside stops nobody.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockwork_locking::tid::{self, Conflict, Tids};
use lockwork_memory::OutOfMemory;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_storage::{ABSENT, LIVE, RowPtr, STATE_MASK, Table};

use super::copies::{Arena, Layout};
use crate::conflicts::Cause;
use crate::tombstones::Tombstones;

/// How often a version is looked for before the one who is installing another gets the processor.
const TRIES: u32 = 100;

/// A row that the transaction has looked up, as it sees it.
#[derive(Debug)]
pub(super) struct Entry {
    row: RowPtr,
    layout: Layout,
    /// The version that was read.
    tid: u64,
    /// Null while there is none.
    copy: *mut u8,
    /// Parts that the copy has, and those to install.
    present: u64,
    written: u64,
    /// Whether the row exists for the transaction: it did when it was read, or was inserted since.
    exists: bool,
    inserted: bool,
    removed: bool,
}

impl Entry {
    /// Whether the row exists for the transaction.
    #[inline(always)]
    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    #[inline(always)]
    fn writes(&self) -> bool {
        self.written != 0 || self.removed || self.inserted
    }
}

/// The rows of a scan: a part of `Transaction::scanned`, and what says that there are no others.
#[derive(Debug)]
struct ScannedRange {
    /// Which of the procedure's tables.
    slot: u8,
    from: Key,
    /// [`Table::keys_ordered`] before the scan.
    keys: u64,
    start: usize,
    end: usize,
    /// Whether the table ended before the limit was reached.
    to_the_end: bool,
}

/// Why a row could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Another transaction is installing it.
    Busy,
    /// It has changed since it was read first.
    Changed,
    /// No memory for a copy.
    Memory,
}

impl From<OutOfMemory> for Unread {
    fn from(_: OutOfMemory) -> Self {
        Self::Memory
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    arena: Arena,
    entries: Vec<Entry>,
    /// Rows that were read without a copy, and those that scans went over, in whatever state, with their versions.
    scanned: Vec<(RowPtr, u64)>,
    ranges: Vec<ScannedRange>,
    /// Keys that become tombstones if it commits.
    removed: Tombstones,
    /// Entries to write, by address.
    order: Vec<u32>,
    /// What had changed when it last conflicted, if not a row that it looked up.
    pub(super) changed: Option<Cause>,
}

// SAFETY: addresses of rows, which mean the same on every thread, and of memory that the transaction owns.
unsafe impl Send for Transaction {}

fn is_live(row: RowPtr) -> bool {
    // Relaxed, because the TID word says whether it goes with the version.
    row.state().load(Ordering::Relaxed) & STATE_MASK == u64::from(LIVE)
}

impl Transaction {
    /// Forgets everything.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.arena.clear();
        self.scanned.clear();
        self.ranges.clear();
        self.removed.clear();
    }

    /// The entry of a row that was looked up before.
    #[inline(always)]
    pub(super) fn find(&self, row: RowPtr) -> Option<usize> {
        self.entries.iter().position(|entry| entry.row == row)
    }

    /// An entry.
    #[inline(always)]
    pub(super) fn entry(&self, number: usize) -> &Entry {
        &self.entries[number]
    }

    /// Reads `parts` of a row of a table of this layout and returns the number of its entry, the same for the same row.
    ///
    /// # Errors
    /// [`Unread`]; then nothing has changed.
    #[inline(always)]
    pub(super) fn read(&mut self, row: RowPtr, layout: Layout, parts: u64) -> Result<usize, Unread> {
        if let Some(number) = self.find(row) {
            self.read_further(number, parts)?;
            return Ok(number);
        }
        let copy = self.arena.take(layout.stride())?;
        let load = || {
            let live = is_live(row);
            if live {
                // SAFETY: the row is of the table; the copy was taken for it just now.
                unsafe { layout.copy_in(row.as_ptr(), copy, parts) }
            }
            live
        };
        let Ok((tid, exists)) = tid::read(row.word(), TRIES, load) else {
            self.arena.give_back(layout.stride());
            return Err(Unread::Busy);
        };
        let (copy, present) = if exists {
            (copy, parts)
        } else {
            self.arena.give_back(layout.stride());
            (std::ptr::null_mut(), 0)
        };
        let (written, inserted, removed) = (0, false, false);
        self.entries.push(Entry { row, layout, tid, copy, present, written, exists, inserted, removed });
        Ok(self.entries.len() - 1)
    }

    /// Reads those of the parts that the entry's copy does not have.
    fn read_further(&mut self, number: usize, parts: u64) -> Result<(), Unread> {
        let entry = &mut self.entries[number];
        let parts = parts & !entry.present;
        if parts == 0 || !entry.exists {
            return Ok(());
        }
        let (row, layout, copy) = (entry.row, entry.layout, entry.copy);
        // SAFETY: a row that exists has a copy, and the parts that were written are not among these.
        let load = || unsafe { layout.copy_in(row.as_ptr(), copy, parts) };
        match tid::read(row.word(), TRIES, load) {
            Ok((tid, ())) if tid == entry.tid => {
                entry.present |= parts;
                Ok(())
            }
            Ok(_) => Err(Unread::Changed),
            Err(Conflict) => Err(Unread::Busy),
        }
    }

    /// The copy of a row that exists; `parts` of it will be written.
    #[inline(always)]
    pub(super) fn open(&mut self, number: usize, parts: u64) -> u64 {
        let entry = &mut self.entries[number];
        debug_assert!(entry.exists && parts & !entry.present == 0);
        entry.written |= parts;
        entry.copy as u64
    }

    /// Makes a row of an entry that has none, all zeros behind its key, and returns its copy.
    ///
    /// # Errors
    /// The system gave no memory.
    pub(super) fn insert(&mut self, number: usize) -> Result<u64, OutOfMemory> {
        let entry = &mut self.entries[number];
        let (stride, header, values) = (entry.layout.stride(), ROW_HEADER_BYTES as usize, entry.layout.values());
        entry.copy = self.arena.take(stride)?;
        // SAFETY: the copy is as long as a row and was taken for it just now. A tombstone has its key.
        unsafe {
            entry.layout.copy_bytes_in(entry.row.as_ptr(), entry.copy, header, values - header);
            entry.copy.add(values).write_bytes(0, stride - values);
        }
        (entry.present, entry.written) = (entry.layout.all(), entry.layout.all());
        (entry.exists, entry.inserted) = (true, true);
        Ok(entry.copy as u64)
    }

    /// Lets the row of an entry be removed at commit.
    pub(super) fn remove(&mut self, number: usize, table: &Arc<Table>, hash: u64, key: Key) {
        self.entries[number].removed = true;
        self.removed.note(table, hash, key, self.entries[number].row);
    }

    /// Reads a row by `load`, which makes no copy that could be written. Returns whether the row exists.
    ///
    /// # Errors
    /// [`Unread::Busy`].
    #[inline(always)]
    pub(super) fn look(&mut self, row: RowPtr, mut load: impl FnMut()) -> Result<bool, Unread> {
        let load = || {
            load();
            is_live(row)
        };
        let (tid, live) = tid::read(row.word(), TRIES, load).map_err(|Conflict| Unread::Busy)?;
        self.scanned.push((row, tid));
        Ok(live)
    }

    /// Goes over the rows from key `from` on as the transaction sees them and calls `f` with each of the first `limit`
    /// that exist: bytes `source` (offset, length) of it are good.
    ///
    /// # Errors
    /// [`Unread`].
    pub(super) fn scan(
        &mut self,
        (table, slot): (&Table, u8),
        from: Key,
        limit: usize,
        source: (usize, usize),
        mut f: impl FnMut(*const u8),
    ) -> Result<(), Unread> {
        let layout = Layout::of(table.schema());
        let parts = layout.parts(source.0 as i64, source.1 as u32);
        let copy = self.arena.take(layout.stride())?;
        let (keys, start) = (table.keys_ordered(), self.scanned.len());
        let (mut left, mut unread) = (limit, None);
        if left > 0 {
            table.scan_all(&from, limit, source.0..source.0 + source.1, |row| {
                match self.scan_row(row, layout, parts, copy, source) {
                    Ok(None) => {}
                    Ok(Some(row)) => {
                        f(row);
                        left -= 1;
                    }
                    Err(error) => unread = Some(error),
                }
                left > 0 && unread.is_none()
            });
        }
        if let Some(unread) = unread {
            self.changed = Some(Cause::RangeChanged);
            return Err(unread);
        }
        if limit > 0 {
            let (end, to_the_end) = (self.scanned.len(), left > 0);
            self.ranges.push(ScannedRange { slot, from, keys, start, end, to_the_end });
        }
        self.arena.give_back(layout.stride());
        Ok(())
    }

    /// A row of a scan: where it can be read, if it exists.
    #[inline(always)]
    fn scan_row(
        &mut self,
        row: RowPtr,
        layout: Layout,
        parts: u64,
        copy: *mut u8,
        source: (usize, usize),
    ) -> Result<Option<*const u8>, Unread> {
        if let Some(number) = self.find(row) {
            self.read_further(number, parts)?;
            let entry = &self.entries[number];
            self.scanned.push((row, entry.tid));
            return Ok(entry.exists.then_some(entry.copy.cast_const()));
        }
        let load = || {
            let live = is_live(row);
            if live {
                // SAFETY: the row is of the table, the copy as long and the transaction's own.
                unsafe { layout.copy_bytes_in(row.as_ptr(), copy, source.0, source.1) }
            }
            live
        };
        let (tid, live) = tid::read(row.word(), TRIES, load).map_err(|Conflict| Unread::Busy)?;
        self.scanned.push((row, tid));
        Ok(live.then_some(copy.cast_const()))
    }

    /// Whether a commit would write.
    #[inline(always)]
    pub(super) fn writes(&self) -> bool {
        self.entries.iter().any(Entry::writes)
    }

    /// Gives a transaction that wrote nothing, or whose writes do not count, its place in the serial order: its stamp.
    ///
    /// # Errors
    /// What it read is no state that the database was in.
    #[inline(always)]
    pub(super) fn place(&mut self, tables: &[Arc<Table>]) -> Result<u64, Conflict> {
        let looked_at = self.entries.len() + self.scanned.len();
        if (looked_at > 1 || !self.ranges.is_empty()) && !self.validate(tables, false) {
            self.note_change(false);
            return Err(Conflict);
        }
        let met = self.entries.iter().map(|entry| entry.tid).max().unwrap_or(0);
        let scanned = self.scanned.iter().map(|(_, tid)| *tid).max().unwrap_or(0);
        Ok(tid::reader_stamp(met.max(scanned)))
    }

    /// Commits a transaction that [writes](Self::writes) in a procedure's `tables`, and returns its stamp.
    ///
    /// # Errors
    /// What it read has changed; then nothing was written.
    #[inline(always)]
    pub(super) fn commit(
        &mut self,
        tables: &[Arc<Table>],
        tids: &Tids,
        tombstones: &mut Tombstones,
    ) -> Result<u64, Conflict> {
        self.lock_all()?;
        let tid = tids.take();
        if !self.validate(tables, true) {
            self.note_change(true);
            self.unlock(self.order.len());
            return Err(Conflict);
        }
        for &number in &self.order {
            let entry = &self.entries[number as usize];
            let state = u64::from(if entry.removed { ABSENT } else { LIVE });
            if !entry.removed {
                // SAFETY: the row is locked, and its copy has all parts that are written.
                unsafe { entry.layout.install(entry.row.as_ptr(), entry.copy, entry.written) }
            }
            if entry.removed || entry.inserted {
                entry.row.state().store(state, Ordering::Relaxed);
            }
            tid::unlock(entry.row.word(), tid);
        }
        tombstones.append(&mut self.removed);
        Ok(tid::writer_stamp(tid))
    }

    /// Locks every row that is to be written, by ascending address.
    #[inline(always)]
    fn lock_all(&mut self) -> Result<(), Conflict> {
        self.order.clear();
        let writes = self.entries.iter().enumerate().filter(|(_, entry)| entry.writes());
        self.order.extend(writes.map(|(number, _)| number as u32));
        if self.order.len() > 1 {
            self.order.sort_unstable_by_key(|&number| self.entries[number as usize].row.as_ptr() as usize);
        }
        for locked in 0..self.order.len() {
            let entry = &self.entries[self.order[locked] as usize];
            let mut tries = 0;
            let conflict = loop {
                match tid::try_lock(entry.row.word(), entry.tid) {
                    Ok(true) => break false,
                    Ok(false) if tries < TRIES => std::hint::spin_loop(),
                    Ok(false) => std::thread::yield_now(),
                    Err(Conflict) => break true,
                }
                tries += 1;
            };
            if conflict {
                self.unlock(locked);
                return Err(Conflict);
            }
        }
        Ok(())
    }

    /// Unlocks the first `locked` rows of the order, unchanged.
    fn unlock(&self, locked: usize) {
        for &number in &self.order[..locked] {
            let entry = &self.entries[number as usize];
            tid::unlock(entry.row.word(), entry.tid);
        }
    }

    /// Whether everything that was read still is as it was. `locked`: the rows to write are locked, each as the version
    /// that was read.
    #[inline(always)]
    fn validate(&self, tables: &[Arc<Table>], locked: bool) -> bool {
        self.validate_entries(locked)
            && (self.scanned.is_empty() && self.ranges.is_empty() || self.validate_scans(tables, locked))
    }

    #[inline(always)]
    fn validate_entries(&self, locked: bool) -> bool {
        self.entries.iter().all(|entry| (locked && entry.writes()) || tid::is_current(entry.row.word(), entry.tid))
    }

    /// Notes why validation failed.
    #[cold]
    fn note_change(&mut self, locked: bool) {
        let range = !self.ranges.is_empty() && self.validate_entries(locked);
        self.changed = range.then_some(Cause::RangeChanged);
    }

    #[inline(never)]
    fn validate_scans(&self, tables: &[Arc<Table>], locked: bool) -> bool {
        let row = |&(row, tid): &(RowPtr, u64)| {
            tid::is_current(row.word(), tid)
                || (locked && tid::is_current_locked(row.word(), tid) && self.find_written(row).is_some())
        };
        let range = |range: &ScannedRange| {
            let table = &tables[usize::from(range.slot)];
            table.keys_ordered() == range.keys || self.scan_again(range, table)
        };
        self.scanned.iter().all(row) && self.ranges.iter().all(range)
    }

    /// The entry of a row that the transaction is about to write.
    fn find_written(&self, row: RowPtr) -> Option<&Entry> {
        self.find(row).map(|number| &self.entries[number]).filter(|entry| entry.writes())
    }

    /// Whether a scan that found keys added to its table would go over the same rows again, the transaction's own
    /// and those that never existed left out.
    #[cold]
    fn scan_again(&self, range: &ScannedRange, table: &Table) -> bool {
        let mut before = self.scanned[range.start..range.end].iter().map(|(row, _)| *row).peekable();
        let mut same = true;
        table.scan_all(&range.from, range.end - range.start, 0..0, |row| {
            if before.next_if_eq(&row).is_none() {
                same = match self.find(row) {
                    // Looked up after the scan, and absent then too; that it still is has been validated.
                    Some(number) => !self.entries[number].exists || self.entries[number].inserted,
                    // Not locked and never written: the key was absent all the time.
                    None => row.word().load(Ordering::Acquire) == 0 && !is_live(row),
                };
            }
            same && (range.to_the_end || before.peek().is_some())
        });
        same && before.peek().is_none()
    }
}
