//! The point index: from key to row number, one cache line a look-up.
//!
//! A bucket is a line; what does not fit goes to an overflow line behind it:
//!
//! ```text
//! bytes  0..8    version: bit 0 is the writers' lock, the rest counts changes of the bucket and its overflow
//! bytes  8..40   four tags
//! bytes 40..56   four row numbers plus one; zero: the place is free
//! bytes 56..60   overflow line plus one; zero: none
//! ```
//!
//! The tag is the key itself where every key of the table is one word, else the key's hash, and then the row's key
//! decides. So for short keys a look-up touches the bucket and nothing else.
//!
//! **A look-up is cut in two**, `prefetch` and `find`, so that a caller overlaps the misses of many.
//!
//! **Readers write nothing.** They read the version, the line, and the version again, and repeat if a writer was there.
//! All words are atomics, so a reader that meets a writer reads a wrong word, never undefined behaviour.
//!
//! **Growth** is linear hashing (Litwin 1980): when there are more than two entries a bucket on average, an insert
//! splits one bucket, the next in turn, whatever bucket it was that it inserted into. Nothing ever stops for a rehash.
//! A reader that went to the old bucket for an entry that has moved sees either a changed version or, after finding
//! nothing, that the key belongs elsewhere now.
//!
//! Invariant: an entry is in the chain of exactly the bucket that [`HashIndex::bucket`] gives, whenever that bucket is
//! unlocked. Trade-off: buckets that wait for their split hold twice as many entries as those that had it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockwork_memory::{OutOfMemory, Pages, prefetch};
use lockwork_procedure::key::mix;

use crate::segments::Segments;
use crate::stripe::Padded;

/// Entries of a line.
const ENTRIES: usize = 4;
/// Entries a bucket may have on average before the index grows.
const LOAD: u64 = 2;
const LOCKED: u64 = 1;
/// Times to look at a locked bucket before giving the processor to somebody else, perhaps to who holds the lock.
const SPINS: u32 = 1_000;

/// A line, as atomics.
#[repr(C, align(64))]
struct Line {
    version: AtomicU64,
    tags: [AtomicU64; ENTRIES],
    rows: [AtomicU32; ENTRIES],
    overflow: AtomicU32,
    _unused: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

/// Where an entry is.
struct Place<'a> {
    line: &'a Line,
    entry: usize,
}

impl Place<'_> {
    /// Writes an entry; the bucket is locked or not visible yet. The tag goes first: a row number that a reader sees
    /// brings the row's memory with it.
    #[inline]
    fn fill(&self, tag: u64, row: u32) {
        self.line.tags[self.entry].store(tag, Ordering::Relaxed);
        self.line.rows[self.entry].store(row + 1, Ordering::Release);
    }
}

/// Waits a little for a lock.
#[cold]
fn pause(turns: &mut u32) {
    *turns = turns.saturating_add(1);
    if *turns > SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct HashIndex {
    buckets: Segments,
    overflow: Segments,
    /// Number of buckets.
    count: AtomicU64,
    /// Away from the count, which every look-up reads and only a split writes.
    entries: Padded<AtomicU64>,
    /// Whether tags are whole keys.
    exact: bool,
    /// Overflow lines that are free, and how many were ever taken. Held while a bucket is split.
    spare: Mutex<Spare>,
    splitting: Mutex<()>,
}

#[derive(Debug, Default)]
struct Spare {
    free: Vec<u32>,
    taken: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HashIndex {
    /// An index that `hint` entries do not make grow.
    pub(crate) fn new(hint: usize, exact: bool, pages: Pages) -> Result<Self, OutOfMemory> {
        let buckets = (hint as u64).div_ceil(LOAD).max(2).next_power_of_two();
        Ok(Self {
            buckets: Segments::new(buckets.ilog2(), pages, "the buckets of a hash index")?,
            overflow: Segments::new((buckets / 16).max(2).ilog2(), pages, "the overflow of a hash index")?,
            count: AtomicU64::new(buckets),
            entries: Padded::default(),
            exact,
            spare: Mutex::default(),
            splitting: Mutex::new(()),
        })
    }

    /// Entries in the index; exact when nobody is changing it.
    pub(crate) fn len(&self) -> u64 {
        self.entries.0.load(Ordering::Relaxed)
    }

    /// Bytes of buckets and overflow.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.bytes() + self.overflow.bytes()
    }

    /// The bucket of a hash when there are `count` buckets: `count` is a power of two plus the splits since.
    #[inline(always)]
    fn bucket(hash: u64, count: u64) -> u64 {
        let bits = count.ilog2();
        let wide = hash & ((2 << bits) - 1);
        if wide < count { wide } else { hash & ((1 << bits) - 1) }
    }

    #[inline(always)]
    fn line(&self, bucket: u64) -> &Line {
        // SAFETY: buckets below the count have memory, which lives as long as the index; lines are all atomics.
        unsafe { &*self.buckets.line(bucket).cast::<Line>() }
    }

    #[inline(always)]
    fn overflow_of(&self, line: &Line) -> Option<&Line> {
        let link = line.overflow.load(Ordering::Relaxed);
        // SAFETY: a link that was ever stored names a line that has memory; it is not taken back before the index is
        // dropped.
        (link != 0).then(|| unsafe { &*self.overflow.line(u64::from(link - 1)).cast::<Line>() })
    }

    /// The address of the bucket of `hash`, as things are now.
    #[inline(always)]
    pub(crate) fn bucket_line(&self, hash: u64) -> *const u8 {
        self.buckets.line(Self::bucket(hash, self.count.load(Ordering::Relaxed)))
    }

    /// Brings the bucket of `hash` into cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.bucket_line(hash));
    }

    /// As [`Self::find`], in a bucket that is known already.
    ///
    /// # Safety
    /// `bucket` is the [`Self::bucket_line`] of the tag's hash, and the index has not been changed since.
    #[inline(always)]
    pub(crate) unsafe fn find_in(&self, bucket: *const u8, tag: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        // SAFETY: the address is of a bucket of this index; lines are all atomics.
        let head = unsafe { &*bucket.cast::<Line>() };
        self.search(head, tag, &same, || false).map(|(_, row)| row)
    }

    /// The row number under `tag`. `same` decides, where a tag is not a whole key, whether a row has the key.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, tag: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mut turns = 0;
        loop {
            let count = self.count.load(Ordering::Acquire);
            let bucket = Self::bucket(hash, count);
            let head = self.line(bucket);
            let version = head.version.load(Ordering::Acquire);
            if version & LOCKED != 0 {
                pause(&mut turns);
                continue;
            }
            let found = self.search(head, tag, &same, || head.version.load(Ordering::Relaxed) != version);
            fence(Ordering::Acquire);
            if head.version.load(Ordering::Relaxed) != version {
                continue;
            }
            let now = self.count.load(Ordering::Acquire);
            if found.is_some() || now == count || Self::bucket(hash, now) == bucket {
                return found.map(|(_, row)| row);
            }
        }
    }

    /// Looks through a bucket. Without its lock the answer means something only if the version has not changed;
    /// `stale` says whether it has, and is asked at every link, because links that change could lead in circles.
    #[inline(always)]
    fn search<'a>(
        &'a self,
        head: &'a Line,
        tag: u64,
        same: &impl Fn(u32) -> bool,
        stale: impl Fn() -> bool,
    ) -> Option<(Place<'a>, u32)> {
        let mut line = head;
        loop {
            // All four are compared before any branch: which entry it is cannot be predicted.
            let mut hits = 0_u32;
            for entry in 0..ENTRIES {
                hits |= u32::from(line.tags[entry].load(Ordering::Relaxed) == tag) << entry;
            }
            while hits != 0 {
                let entry = hits.trailing_zeros() as usize % ENTRIES;
                // Acquire, because `same` goes to the row before the version is checked: it must find the row's
                // memory in the slab's directory.
                let row = line.rows[entry].load(Ordering::Acquire);
                if row != 0 && (self.exact || same(row - 1)) {
                    return Some((Place { line, entry }, row - 1));
                }
                hits &= hits - 1;
            }
            line = self.overflow_of(line)?;
            if stale() {
                return None;
            }
        }
    }

    /// Locks the bucket of `hash`.
    fn lock(&self, hash: u64) -> &Line {
        loop {
            let bucket = Self::bucket(hash, self.count.load(Ordering::Acquire));
            let head = self.line(bucket);
            self.lock_line(head);
            // A split changes the count while it holds the bucket's lock, so the bucket stays the right one now.
            if Self::bucket(hash, self.count.load(Ordering::Acquire)) == bucket {
                return head;
            }
            Self::unlock(head, false);
        }
    }

    fn lock_line(&self, head: &Line) {
        let mut turns = 0;
        loop {
            let version = head.version.load(Ordering::Relaxed);
            if version & LOCKED == 0
                && head
                    .version
                    .compare_exchange_weak(version, version | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // Readers that see any of the stores to come must see the lock before.
                fence(Ordering::Release);
                return;
            }
            pause(&mut turns);
        }
    }

    fn unlock(head: &Line, changed: bool) {
        let version = head.version.load(Ordering::Relaxed) & !LOCKED;
        head.version.store(version.wrapping_add(if changed { 2 } else { 0 }), Ordering::Release);
    }

    /// Puts a row under `tag`, which `make` allocates while the bucket is locked; `Err(row)` when there is one already.
    ///
    /// The entry's place is made sure of before `make` is called, so what was made is never left over, and what
    /// `make` does is done before any reader finds the row.
    pub(crate) fn insert<E>(
        &self,
        hash: u64,
        tag: u64,
        same: impl Fn(u32) -> bool,
        make: impl FnOnce() -> Result<u32, E>,
    ) -> Result<Result<u32, u32>, E>
    where
        E: From<OutOfMemory>,
    {
        let head = self.lock(hash);
        if let Some((_, row)) = self.search(head, tag, &same, || false) {
            Self::unlock(head, false);
            return Ok(Err(row));
        }
        let made = self.free_place(head).map_err(E::from).and_then(|place| {
            let row = make()?;
            place.fill(tag, row);
            Ok(row)
        });
        Self::unlock(head, true);
        let row = made?;
        let entries = self.entries.0.fetch_add(1, Ordering::Relaxed) + 1;
        if entries > LOAD * self.count.load(Ordering::Relaxed) {
            // An index that cannot grow is slower, not wrong.
            let _ = self.split();
        }
        Ok(Ok(row))
    }

    /// A place for an entry in a bucket that is locked, or not visible yet.
    fn free_place<'a>(&'a self, head: &'a Line) -> Result<Place<'a>, OutOfMemory> {
        let mut line = head;
        loop {
            for entry in 0..ENTRIES {
                if line.rows[entry].load(Ordering::Relaxed) == 0 {
                    return Ok(Place { line, entry });
                }
            }
            line = match self.overflow_of(line) {
                Some(next) => next,
                None => {
                    let link = self.take_overflow()?;
                    line.overflow.store(link, Ordering::Relaxed);
                    self.overflow_of(line).expect("it was linked just now")
                }
            };
        }
    }

    fn take_overflow(&self) -> Result<u32, OutOfMemory> {
        let mut spare = lock(&self.spare);
        if let Some(link) = spare.free.pop() {
            return Ok(link);
        }
        self.overflow.reserve(u64::from(spare.taken))?;
        spare.taken += 1;
        Ok(spare.taken)
    }

    /// Takes the entry under `tag` out and returns its row number.
    pub(crate) fn remove(&self, hash: u64, tag: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let head = self.lock(hash);
        let Some((place, row)) = self.search(head, tag, &same, || false) else {
            Self::unlock(head, false);
            return None;
        };
        place.line.rows[place.entry].store(0, Ordering::Relaxed);
        self.give_back_empty(head);
        Self::unlock(head, true);
        self.entries.0.fetch_sub(1, Ordering::Relaxed);
        Some(row)
    }

    /// Unlinks the overflow lines of a locked bucket that hold nothing.
    fn give_back_empty(&self, head: &Line) {
        let mut line = head;
        while let Some(next) = self.overflow_of(line) {
            let empty = next.rows.iter().all(|row| row.load(Ordering::Relaxed) == 0);
            if empty {
                let link = line.overflow.load(Ordering::Relaxed);
                line.overflow.store(next.overflow.load(Ordering::Relaxed), Ordering::Relaxed);
                next.overflow.store(0, Ordering::Relaxed);
                lock(&self.spare).free.push(link);
            } else {
                line = next;
            }
        }
    }

    /// The hash of the key that a tag stands for.
    #[inline]
    fn hash_of(&self, tag: u64) -> u64 {
        if self.exact { mix(tag) } else { tag }
    }

    /// Splits the bucket whose turn it is. Does nothing if another thread is splitting one.
    #[cold]
    fn split(&self) -> Result<(), OutOfMemory> {
        let Ok(_splitting) = self.splitting.try_lock() else { return Ok(()) };
        let count = self.count.load(Ordering::Relaxed);
        let bits = count.ilog2();
        self.buckets.reserve(count)?;
        let old = self.line(count - (1 << bits));
        let new = self.line(count);
        self.lock_line(old);
        let moves = |tag: u64| Self::bucket(self.hash_of(tag), count + 1) == count;
        let moved = self.copy_moving(old, new, &moves);
        if moved.is_ok() {
            self.count.store(count + 1, Ordering::Release);
            self.clear(old, &moves);
        } else {
            // What was copied was never visible.
            self.clear(new, &|_| true);
        }
        Self::unlock(old, true);
        moved
    }

    fn copy_moving(&self, old: &Line, new: &Line, moves: &impl Fn(u64) -> bool) -> Result<(), OutOfMemory> {
        let mut line = Some(old);
        while let Some(from) = line {
            for entry in 0..ENTRIES {
                let (tag, row) = (from.tags[entry].load(Ordering::Relaxed), from.rows[entry].load(Ordering::Relaxed));
                if row != 0 && moves(tag) {
                    self.free_place(new)?.fill(tag, row - 1);
                }
            }
            line = self.overflow_of(from);
        }
        Ok(())
    }

    fn clear(&self, head: &Line, which: &impl Fn(u64) -> bool) {
        let mut line = Some(head);
        while let Some(from) = line {
            for entry in 0..ENTRIES {
                if from.rows[entry].load(Ordering::Relaxed) != 0 && which(from.tags[entry].load(Ordering::Relaxed)) {
                    from.rows[entry].store(0, Ordering::Relaxed);
                }
            }
            line = self.overflow_of(from);
        }
        self.give_back_empty(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn insert(index: &HashIndex, key: u64, row: u32) -> Result<u32, u32> {
        index.insert::<OutOfMemory>(mix(key), key, |_| true, || Ok(row)).unwrap()
    }

    #[test]
    fn entries_survive_growth_from_the_smallest_index() {
        let index = HashIndex::new(1, true, Pages::Plain).unwrap();
        for key in 0..20_000_u64 {
            assert_eq!(insert(&index, key, key as u32), Ok(key as u32));
            assert_eq!(insert(&index, key, 7), Err(key as u32));
        }
        for key in (0..20_000_u64).step_by(3) {
            assert_eq!(index.remove(mix(key), key, |_| true), Some(key as u32));
        }
        for key in 0..20_000_u64 {
            let expected = (!key.is_multiple_of(3)).then_some(key as u32);
            assert_eq!(index.find(mix(key), key, |_| true), expected);
        }
        assert_eq!(index.len(), 13_333);
    }

    #[test]
    fn equal_tags_of_different_keys_are_told_apart_by_the_row() {
        let index = HashIndex::new(4, false, Pages::Plain).unwrap();
        for row in 0..20 {
            index.insert::<OutOfMemory>(5, 5, |found| found == row, || Ok(row)).unwrap().unwrap();
        }
        for row in 0..20 {
            assert_eq!(index.find(5, 5, |found| found == row), Some(row));
        }
        assert_eq!(index.find(5, 5, |_| false), None);
    }

    #[test]
    fn an_insert_that_fails_leaves_nothing_and_the_bucket_free() {
        let index = HashIndex::new(4, false, Pages::Plain).unwrap();
        for row in 0..20 {
            let refused = || Err(OutOfMemory { what: "a test", bytes: 1 });
            let failed = index.insert(5, 5, |found| found == row, refused).map(drop);
            assert_eq!(failed, Err(OutOfMemory { what: "a test", bytes: 1 }));
            assert_eq!((index.find(5, 5, |found| found == row), index.len()), (None, u64::from(row)));
            assert_eq!(index.insert::<OutOfMemory>(5, 5, |found| found == row, || Ok(row)).unwrap(), Ok(row));
        }
        (0..20).for_each(|row| assert_eq!(index.find(5, 5, |found| found == row), Some(row)));
    }

    #[test]
    fn readers_find_what_was_there_while_the_index_grows() {
        let index = HashIndex::new(16, true, Pages::Plain).unwrap();
        (0..1_000).for_each(|key| assert!(insert(&index, key, key as u32).is_ok()));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) || rounds == 0 {
                    for key in 0..1_000 {
                        assert_eq!(index.find(mix(key), key, |_| true), Some(key as u32));
                    }
                    rounds += 1;
                }
            });
            let writers: Vec<_> = (0..2_u64)
                .map(|writer| {
                    let index = &index;
                    scope.spawn(move || {
                        for key in 1_000 + writer * 50_000..1_000 + (writer + 1) * 50_000 {
                            insert(index, key, key as u32).unwrap();
                            if key % 2 == 0 {
                                assert_eq!(index.remove(mix(key), key, |_| true), Some(key as u32));
                            }
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(index.len(), 51_000);
    }

    #[test]
    fn of_many_inserts_of_one_key_one_succeeds() {
        for key in 0..200 {
            let index = HashIndex::new(16, true, Pages::Plain).unwrap();
            let wins: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|row| {
                        scope.spawn({
                            let index = &index;
                            move || insert(index, key, row).is_ok()
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
            });
            assert_eq!(wins, 1);
        }
    }
}
