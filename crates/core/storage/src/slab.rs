//! Where rows lie: extents of equal rows, and row numbers.
//!
//! A row has a 32-bit number, which an index holds instead of an address. The upper ten bits choose an entry of a
//! fixed directory, the lower 22 count rows from there:
//!
//! ```text
//! number = entry:10 | row:22          address = directory[entry] + row * stride
//! ```
//!
//! Memory comes in *extents*, each a [`Buffer`] that begins at an entry of its own and fills as many entries as it
//! needs, the last one partly. The first extent holds the rows that the table was announced with, so they are one
//! piece of huge pages with at most 2 % of slack; later ones double a small table and add an eighth to a large one.
//! Pages that no row has reached yet cost nothing.
//!
//! Allocation: each thread's stripe holds a few row numbers under its own lock and fetches or returns them in
//! batches under the common one.
//!
//! With [`Pages::Guarded`] each row ends where a page begins that nobody may touch, so `stride` is that of such a row,
//! and the directory has the address of the first row, which is not where its extent begins.
//!
//! Invariant: a number that was handed out is backed by memory until the slab is dropped; rows never move.
//! Trade-off: an entry that is partly filled wastes numbers, not memory: tens of extents of 4 Mi numbers at most.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use lockwork_memory::{Buffer, GUARD, HUGE_PAGE, OutOfMemory, Pages};

use crate::row::RowPtr;
use crate::stripe::{Padded, STRIPES, stripe};

const ENTRY_BITS: u32 = 22;
const ENTRIES: usize = 1 << (32 - ENTRY_BITS);
/// The most rows a slab can hold. The last number is never used: indexes store numbers plus one.
pub(crate) const MAX_ROWS: u64 = u32::MAX as u64;
/// Row numbers that move between a stripe and the common list at a time.
const BATCH: usize = 64;
/// The least bytes that a slab grows by.
const SMALL_EXTENT: usize = 16 << 10;

/// Why there is no further row.
#[derive(Debug)]
pub(crate) enum NoRow {
    /// All row numbers are in use.
    Full,
    /// The system gave no memory.
    Memory(OutOfMemory),
}

impl From<OutOfMemory> for NoRow {
    fn from(error: OutOfMemory) -> Self {
        Self::Memory(error)
    }
}

/// A row number, and whether its memory is still as the system gave it: all zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    pub(crate) number: u32,
    pub(crate) zeroed: bool,
}

#[derive(Debug)]
struct Block {
    numbers: Range<u32>,
    buffer: Buffer,
}

/// What all stripes share.
#[derive(Debug)]
struct Common {
    extents: Vec<Block>,
    /// The extent that fresh numbers are taken from next, and how far they were taken from it.
    current: usize,
    next: u32,
    entries: usize,
    limit: u64,
    freed: Vec<u32>,
}

/// Row numbers that one stripe holds.
#[derive(Debug, Default)]
struct Reserve {
    fresh: Range<u32>,
    freed: Vec<u32>,
}

/// Rows of one stride.
#[derive(Debug)]
pub(crate) struct Slab {
    stride: usize,
    /// Bytes of a row that nobody may touch, behind it.
    guard: usize,
    /// Where the first row of an extent is.
    first: usize,
    pages: Pages,
    directory: Box<[AtomicPtr<u8>]>,
    reserves: [Padded<Mutex<Reserve>>; STRIPES],
    common: Mutex<Common>,
}

impl Slab {
    /// A slab with memory for `hint` rows (at least one) of `stride` bytes.
    pub(crate) fn new(stride: usize, hint: usize, pages: Pages) -> Result<Self, NoRow> {
        Self::with_limit(stride, hint, pages, MAX_ROWS)
    }

    /// As [`Self::new`], but never more than `limit` rows.
    fn with_limit(stride: usize, hint: usize, pages: Pages, limit: u64) -> Result<Self, NoRow> {
        assert!(stride > 0 && stride.is_multiple_of(64), "a row is whole cache lines");
        let common = Common { extents: Vec::new(), current: 0, next: 0, entries: 0, limit, freed: Vec::new() };
        let (stride, guard, first) = match pages {
            Pages::Guarded => {
                let room = stride.next_multiple_of(GUARD);
                (room + GUARD, GUARD, room - stride)
            }
            Pages::Huge | Pages::Plain => (stride, 0, 0),
        };
        let slab = Self {
            stride,
            guard,
            first,
            pages,
            directory: (0..ENTRIES).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            reserves: Default::default(),
            common: Mutex::new(common),
        };
        {
            let hint = hint.max(1);
            if hint as u64 > limit {
                return Err(NoRow::Full);
            }
            let refused = OutOfMemory { what: "rows", bytes: usize::MAX };
            let bytes = hint.checked_mul(stride).ok_or(NoRow::Memory(refused))?;
            let mut common = slab.common.lock().unwrap_or_else(PoisonError::into_inner);
            // Whole huge pages first; what is left over comes from the heap unless rounding it up is nearly free.
            let whole = bytes / HUGE_PAGE * HUGE_PAGE;
            if whole == 0 || (bytes - whole) == 0 || bytes.next_multiple_of(HUGE_PAGE) - bytes <= bytes / 64 {
                slab.add_extent(&mut common, bytes)?;
            } else {
                slab.add_extent(&mut common, whole)?;
                let rest = bytes - whole / stride * stride;
                slab.add_extent(&mut common, rest)?;
            }
            common.next = common.extents[0].numbers.start;
        }
        Ok(slab)
    }

    /// The address of row `number`.
    ///
    /// # Safety
    /// `number` was handed out by [`Self::allocate`] of this slab.
    #[inline(always)]
    pub(crate) unsafe fn row(&self, number: u32) -> RowPtr {
        // SAFETY: ten bits never exceed the directory. The number reached the caller after the entry was written,
        // through a lock or a release store, so a relaxed read sees it.
        unsafe {
            let base = self.directory.get_unchecked((number >> ENTRY_BITS) as usize).load(Ordering::Relaxed);
            RowPtr::new(base.add((number & ((1 << ENTRY_BITS) - 1)) as usize * self.stride))
        }
    }

    /// Takes a row that nobody else has.
    pub(crate) fn allocate(&self) -> Result<Allocated, NoRow> {
        let mut reserve = self.reserves[stripe()].0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(number) = reserve.freed.pop() {
                return Ok(Allocated { number, zeroed: false });
            }
            if let Some(number) = reserve.fresh.next() {
                return Ok(Allocated { number, zeroed: true });
            }
            self.refill(&mut reserve)?;
        }
    }

    /// Gives a row back.
    ///
    /// # Safety
    /// `number` came from [`Self::allocate`], was not freed since, and nobody uses the row.
    pub(crate) unsafe fn free(&self, number: u32) {
        let mut reserve = self.reserves[stripe()].0.lock().unwrap_or_else(PoisonError::into_inner);
        reserve.freed.push(number);
        if reserve.freed.len() >= 2 * BATCH {
            let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
            common.freed.extend(reserve.freed.drain(..BATCH));
        }
    }

    /// Calls `f` with every row that was ever allocated; a free one has state [`crate::row::FREE`].
    pub(crate) fn for_each(&self, mut f: impl FnMut(RowPtr)) {
        self.for_some(0, u64::MAX, |_, row| f(row));
    }

    /// As [`Self::for_each`], with the places of up to `count` rows from place `start` on. Rows keep their places, new
    /// ones come behind. Returns the next place; `None` when there is nothing behind.
    pub(crate) fn for_some(&self, start: u64, count: u64, mut f: impl FnMut(u64, RowPtr)) -> Option<u64> {
        let ranges: Vec<Range<u32>> = {
            let common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = common.extents.iter().take(common.current + 1).enumerate();
            let end = |index, extent: &Block| if index == common.current { common.next } else { extent.numbers.end };
            taken.map(|(index, extent)| extent.numbers.start..end(index, extent)).collect()
        };
        let end = start.saturating_add(count);
        let mut place = 0;
        for range in ranges {
            let length = u64::from(range.end - range.start);
            let (from, to) = (start.clamp(place, place + length), end.clamp(place, place + length));
            for at in from..to {
                // SAFETY: numbers up to `next` are backed by memory, handed out or not.
                f(at, unsafe { self.row(range.start + (at - place) as u32) });
            }
            place += length;
        }
        (end < place).then_some(end)
    }

    /// Where [`Self::for_some`] comes by a row.
    pub(crate) fn place(&self, row: RowPtr) -> Option<u64> {
        let common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = 0;
        for extent in &common.extents {
            let length = u64::from(extent.numbers.end - extent.numbers.start);
            let distance = (row.as_ptr() as usize).wrapping_sub(extent.buffer.as_ptr() as usize) / self.stride;
            if (distance as u64) < length {
                return Some(place + distance as u64);
            }
            place += length;
        }
        None
    }

    /// Bytes of all extents, whether rows have reached them or not.
    pub(crate) fn bytes(&self) -> usize {
        let common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        common.extents.iter().map(|extent| extent.buffer.capacity()).sum()
    }

    #[cold]
    fn refill(&self, reserve: &mut Reserve) -> Result<(), NoRow> {
        let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        if !common.freed.is_empty() {
            let keep = common.freed.len().saturating_sub(BATCH);
            reserve.freed.extend(common.freed.drain(keep..));
            return Ok(());
        }
        if common.next == common.extents[common.current].numbers.end {
            if common.current + 1 == common.extents.len() {
                let total: usize = common.extents.iter().map(|extent| extent.buffer.capacity()).sum();
                let growth =
                    if total < HUGE_PAGE { total.max(SMALL_EXTENT) } else { (total / 8).next_multiple_of(HUGE_PAGE) };
                self.add_extent(&mut common, growth.max(self.stride))?;
            }
            common.current += 1;
            common.next = common.extents[common.current].numbers.start;
        }
        // Near the end of an extent take less, so that no stripe sits on rows that another one needs.
        let left = common.extents[common.current].numbers.end - common.next;
        let take = (left / (4 * STRIPES as u32)).clamp(1, BATCH as u32);
        reserve.fresh = common.next..common.next + take;
        common.next += take;
        Ok(())
    }

    /// Adds memory for `bytes / stride` rows, or for as many as the limit and the directory leave.
    fn add_extent(&self, common: &mut Common, bytes: usize) -> Result<(), NoRow> {
        let total: u64 = common.extents.iter().map(|extent| u64::from(extent.numbers.end - extent.numbers.start)).sum();
        let numbers_left = ((ENTRIES - common.entries) as u64) << ENTRY_BITS;
        let room = common.limit.saturating_sub(total).min(numbers_left.saturating_sub(1));
        if room == 0 {
            return Err(NoRow::Full);
        }
        let wanted = (bytes / self.stride) as u64;
        // Not more than `room` rows, and so not more bytes than `wanted` rows have: the product cannot overflow.
        let bytes = if wanted <= room { bytes } else { room as usize * self.stride };
        let buffer = Buffer::zeroed(bytes, self.pages, "rows").map_err(NoRow::Memory)?;
        let rows = ((buffer.capacity() / self.stride) as u64).min(room);
        if self.guard > 0 {
            (1..=rows as usize).for_each(|row| buffer.forbid(row * self.stride - self.guard, self.guard));
        }
        let start = (common.entries as u64) << ENTRY_BITS;
        let entries = rows.div_ceil(1 << ENTRY_BITS) as usize;
        for entry in 0..entries {
            let address = buffer.as_ptr().wrapping_add((entry << ENTRY_BITS) * self.stride + self.first);
            self.directory[common.entries + entry].store(address, Ordering::Release);
        }
        common.entries += entries;
        common.extents.push(Block { numbers: start as u32..(start + rows) as u32, buffer });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rows_are_distinct_aligned_and_found_again_across_extents() {
        let slab = Slab::new(192, 3, Pages::Plain).unwrap();
        let mut addresses = HashSet::new();
        for _ in 0..100_000 {
            let allocated = slab.allocate().unwrap();
            assert!(allocated.zeroed);
            // SAFETY: just allocated.
            let row = unsafe { slab.row(allocated.number) };
            assert!(addresses.insert(row.as_ptr() as usize));
            // SAFETY: this thread alone has the row, which is 192 bytes long.
            unsafe { std::ptr::write_bytes(row.as_ptr(), 0xEE, 192) };
        }
        let mut sorted: Vec<_> = addresses.into_iter().collect();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 192));
    }

    #[test]
    fn guarded_rows_end_where_nobody_may_touch_anything() {
        let slab = Slab::new(192, 3, Pages::Guarded).unwrap();
        let mut places = HashSet::new();
        for _ in 0..40 {
            // SAFETY: just allocated.
            let row = unsafe { slab.row(slab.allocate().unwrap().number) };
            // SAFETY: this thread alone has the row, which is 192 bytes long.
            unsafe { std::ptr::write_bytes(row.as_ptr(), 0xEE, 192) };
            let end = row.as_ptr() as usize + 192;
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let behind = maps.lines().find(|line| line.starts_with(&format!("{end:x}-"))).expect("a page of its own");
            assert!(behind.contains(" ---p "), "{behind}");
            assert!(places.insert(slab.place(row).expect("its place")));
        }
        let mut rows = 0;
        slab.for_each(|_| rows += 1);
        assert!(rows >= 40);
    }

    #[test]
    fn announced_rows_cost_at_most_two_percent_more_than_their_bytes() {
        for stride in [64, 192, 576, 1088, 4160, 65_536] {
            for hint in [1, 10, 1000, 32_769, 100_000] {
                let slab = Slab::new(stride, hint, Pages::Plain).unwrap();
                let bytes = slab.bytes();
                assert!(bytes >= hint * stride && bytes as f64 <= 1.02 * (hint * stride) as f64, "{stride} {hint}");
            }
        }
    }

    #[test]
    fn freed_rows_come_back_before_new_memory_is_taken() {
        let slab = Slab::new(64, 1000, Pages::Plain).unwrap();
        let before = slab.bytes();
        for _ in 0..20 {
            let rows: Vec<_> = (0..1000).map(|_| slab.allocate().unwrap().number).collect();
            assert_eq!(rows.iter().collect::<HashSet<_>>().len(), 1000);
            for number in rows {
                // SAFETY: allocated above and used by nobody.
                unsafe { slab.free(number) };
            }
        }
        assert_eq!(slab.bytes(), before);
    }

    #[test]
    fn the_limit_is_an_error_and_nothing_else_changes() {
        let slab = Slab::with_limit(64, 10, Pages::Plain, 300).unwrap();
        let numbers: Vec<_> = (0..300).map(|_| slab.allocate().unwrap().number).collect();
        assert!(matches!(slab.allocate(), Err(NoRow::Full)));
        // SAFETY: allocated above and used by nobody.
        unsafe { slab.free(numbers[17]) };
        assert_eq!(slab.allocate().unwrap().number, numbers[17]);
        assert!(matches!(Slab::new(64, usize::MAX, Pages::Plain), Err(NoRow::Full)));
    }

    #[test]
    fn threads_never_share_a_row() {
        let slab = Slab::new(64, 100, Pages::Plain).unwrap();
        let all: Vec<u32> = std::thread::scope(|scope| {
            let work = || {
                let mut held = Vec::new();
                for round in 0..20_000_u32 {
                    held.push(slab.allocate().unwrap().number);
                    if round % 3 == 0 {
                        let number = held.swap_remove(round as usize % held.len());
                        // SAFETY: held by this thread alone.
                        unsafe { slab.free(number) };
                    }
                }
                held
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
