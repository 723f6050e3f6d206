//! Where the queue of a record is found: directly by its number, or by hashing its name.
//!
//! The hash table is open addressing with linear probing at a load of at most one half, and it deletes by moving later
//! entries back, so it holds only records that somebody holds or waits for and needs no tombstones. Entries move, so a
//! slot number is valid only until the next insertion or removal: the manager looks records up again instead of
//! keeping slots.

use lockwork_memory::{Buffer, OutOfMemory, Pages, prefetch};

/// Head and tail of one record's queue. Node index 0 means "none", so zeroed memory is a table of empty queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Record {
    /// The oldest request. If anything is granted, it is.
    pub(super) head: u32,
    /// The newest request.
    pub(super) tail: u32,
    /// The oldest request that is not granted.
    pub(super) waiting: u32,
    /// How many requests are granted: a prefix of the queue, all of one mode.
    pub(super) granted: u32,
}

/// Records by number or by name.
#[derive(Debug)]
pub(super) enum Table {
    /// One record per number below the second field.
    Dense(Buffer, u64),
    /// Records that have a request.
    Hashed(HashTable),
}

impl Table {
    pub(super) fn dense(records: u32) -> Result<Self, OutOfMemory> {
        let bytes = (records as usize).saturating_mul(size_of::<Record>());
        let buffer = Buffer::zeroed(bytes, Pages::Huge, "the record table of the queue lock manager")?;
        Ok(Self::Dense(buffer, u64::from(records)))
    }

    /// Number of records of a dense table, the limit of its names.
    #[inline]
    pub(super) fn limit(&self) -> Option<u64> {
        match self {
            Self::Dense(_, records) => Some(*records),
            Self::Hashed(_) => None,
        }
    }

    /// The record named `id`, made if it is not there. A dense table takes only names below its limit.
    #[inline]
    pub(super) fn enter(&mut self, id: u64) -> &mut Record {
        match self {
            Self::Dense(..) => self.get(id),
            Self::Hashed(table) => table.enter(id),
        }
    }

    /// The record named `id`, which must have a request.
    #[inline]
    pub(super) fn get(&mut self, id: u64) -> &mut Record {
        match self {
            Self::Dense(buffer, records) => {
                assert!(id < *records, "record {id} of {records}: checked when it was locked");
                // SAFETY: id is below the number of records for which the buffer was made (zeroed, 64-byte aligned),
                // and the borrow of self is exclusive.
                unsafe { &mut *buffer.as_ptr().cast::<Record>().add(id as usize) }
            }
            Self::Hashed(table) => table.get(id),
        }
    }

    /// Forgets a record whose queue got empty.
    #[inline]
    pub(super) fn leave(&mut self, id: u64) {
        if let Self::Hashed(table) = self {
            table.remove(id);
        }
    }

    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        match self {
            Self::Dense(buffer, _) => prefetch(buffer.as_ptr().cast::<Record>().wrapping_add(id as usize).cast()),
            Self::Hashed(table) => prefetch(table.entries.as_ptr().wrapping_add(table.home(id)).cast()),
        }
    }
}

/// A name and its queue; free if the queue is empty.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    id: u64,
    record: Record,
}

impl Entry {
    const fn is_free(&self) -> bool {
        self.record.head == 0
    }
}

/// The open-addressing table.
#[derive(Debug)]
pub(super) struct HashTable {
    entries: Vec<Entry>,
    /// Entries in use. One that was just entered counts although its queue is still empty.
    used: usize,
}

impl HashTable {
    /// Room for `capacity` records with requests before it grows.
    pub(super) fn new(capacity: u32) -> Self {
        let slots = (capacity.max(4) as usize * 2).next_power_of_two();
        Self { entries: vec![Entry::default(); slots], used: 0 }
    }

    #[inline]
    fn home(&self, id: u64) -> usize {
        // Fibonacci hashing: the upper bits of the product depend on all bits of the name.
        let mixed = (id ^ id >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    /// The slot of `id`, or the free one where it belongs.
    #[inline]
    fn find(&self, id: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut slot = self.home(id);
        while !self.entries[slot].is_free() && self.entries[slot].id != id {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// The caller puts a request into the queue of a new record before it calls anything else.
    fn enter(&mut self, id: u64) -> &mut Record {
        let mut slot = self.find(id);
        if self.entries[slot].is_free() {
            if (self.used + 1) * 2 > self.entries.len() {
                self.grow();
                slot = self.find(id);
            }
            self.used += 1;
            self.entries[slot].id = id;
        }
        &mut self.entries[slot].record
    }

    fn get(&mut self, id: u64) -> &mut Record {
        let slot = self.find(id);
        assert!(!self.entries[slot].is_free(), "lock {id} has no queue: the request list is broken");
        &mut self.entries[slot].record
    }

    fn grow(&mut self) {
        let larger = vec![Entry::default(); self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, larger);
        for entry in old.into_iter().filter(|entry| !entry.is_free()) {
            let slot = self.find(entry.id);
            self.entries[slot] = entry;
        }
    }

    /// Removes `id`, whose queue is empty by now, and moves back what had to probe past it.
    fn remove(&mut self, id: u64) {
        let mask = self.entries.len() - 1;
        let mut hole = self.home(id);
        while self.entries[hole].id != id || !self.entries[hole].is_free() {
            hole = (hole + 1) & mask;
        }
        let mut slot = hole;
        loop {
            slot = (slot + 1) & mask;
            let entry = self.entries[slot];
            if entry.is_free() {
                break;
            }
            // It may fill the hole unless its home lies behind the hole on the way to its slot.
            let distance = slot.wrapping_sub(self.home(entry.id)) & mask;
            if distance >= slot.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = slot;
            }
        }
        self.entries[hole] = Entry::default();
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_moves_back_what_probed_past_it_and_growth_keeps_everything() {
        let mut table = HashTable::new(4);
        let mut present = std::collections::BTreeSet::new();
        let mut random = 7u64;
        for _ in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let id = random % 97;
            if present.remove(&id) {
                table.get(id).head = 0;
                table.remove(id);
            } else {
                present.insert(id);
                table.enter(id).head = id as u32 + 1;
            }
            for &id in &present {
                assert_eq!(table.get(id).head, id as u32 + 1);
            }
            assert_eq!(table.used, present.len());
        }
        assert!(table.entries.len() >= 128);
    }
}
