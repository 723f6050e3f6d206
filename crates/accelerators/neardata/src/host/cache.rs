//! Copies of cold rows: rows whose newest version the storage has.
//!
//! Bounded in bytes, in shards of one lock each; what has not been used since the hand of the clock came by last goes
//! first.
//!
//! Invariant: a copy counts only while the VID map says that its version is the newest, so a new version invalidates
//! it by one store to the map and nobody has to find it. It is dropped all the same ([`Cache::forget`]), because the
//! map keeps 24 bits of the number. Trade-off: an older snapshot whose version is not the newest any more reads it from
//! the storage.
//!
//! Source: neoDBMS, section 2.3 (one-point invalidation); the clock is Corbató's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::recent::{ByVid, Row};
use crate::device::TableId;
use crate::record::{Vid, VidEntry};

/// Shards, a power of two.
const SHARDS: usize = 16;

#[derive(Debug)]
struct Copy {
    key: (TableId, Vid),
    row: Row,
    used: bool,
}

#[derive(Debug, Default)]
struct Shard {
    places: ByVid<(TableId, Vid), usize>,
    copies: Vec<Copy>,
    hand: usize,
    bytes: usize,
}

impl Shard {
    fn drop_at(&mut self, place: usize) {
        let copy = self.copies.swap_remove(place);
        self.bytes -= copy.row.bytes();
        self.places.remove(&copy.key);
        if let Some(moved) = self.copies.get(place) {
            self.places.insert(moved.key, place);
        }
    }

    /// Makes room for `bytes`, if `limit` allows for so many.
    fn make_room(&mut self, bytes: usize, limit: usize) -> bool {
        if bytes > limit {
            return false;
        }
        while self.bytes + bytes > limit {
            self.hand = if self.hand < self.copies.len() { self.hand } else { 0 };
            if std::mem::take(&mut self.copies[self.hand].used) {
                self.hand += 1;
            } else {
                self.drop_at(self.hand);
            }
        }
        true
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes: usize,
}

impl Cache {
    /// An empty cache of at most `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), shard_bytes: bytes / SHARDS }
    }

    fn shard(&self, vid: Vid) -> MutexGuard<'_, Shard> {
        self.shards[vid.shard(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version of a tuple, if it is here; `entry` is what the VID map says.
    #[inline]
    pub(super) fn newest(&self, table: TableId, vid: Vid, entry: VidEntry) -> Option<Row> {
        let mut shard = self.shard(vid);
        let place = *shard.places.get(&(table, vid))?;
        let copy = &mut shard.copies[place];
        if !entry.is_version(copy.row.number) {
            shard.drop_at(place);
            return None;
        }
        copy.used = true;
        Some(copy.row.clone())
    }

    /// Keeps a copy of the newest version of a tuple.
    pub(super) fn keep(&self, table: TableId, vid: Vid, row: Row) {
        let mut shard = self.shard(vid);
        if let Some(&place) = shard.places.get(&(table, vid)) {
            shard.drop_at(place);
        }
        let bytes = row.bytes();
        if shard.make_room(bytes, self.shard_bytes) {
            let place = shard.copies.len();
            shard.places.insert((table, vid), place);
            shard.copies.push(Copy { key: (table, vid), row, used: false });
            shard.bytes += bytes;
        }
    }

    /// Drops the copy of a tuple, if there is one.
    #[inline]
    pub(super) fn forget(&self, table: TableId, vid: Vid) {
        let mut shard = self.shard(vid);
        if let Some(&place) = shard.places.get(&(table, vid)) {
            shard.drop_at(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordId;

    fn row(number: u32) -> Row {
        Row { number, created: u64::from(number), image: Some(vec![0; 36].into()), bulk: false }
    }

    #[test]
    fn a_copy_counts_while_the_map_says_that_it_is_the_newest_version() {
        let cache = Cache::new(1 << 20);
        let (old, new) = (VidEntry::new(4, RecordId::new(1, 1)), VidEntry::new(5, RecordId::HOST));
        cache.keep(0, Vid(9), row(4));
        assert_eq!(cache.newest(0, Vid(9), old), Some(row(4)));
        assert_eq!((cache.newest(1, Vid(9), old), cache.newest(0, Vid(9), new)), (None, None));
        assert_eq!(cache.newest(0, Vid(9), old), None, "a stale copy was dropped");
        cache.keep(0, Vid(9), row(4));
        cache.forget(0, Vid(9));
        assert_eq!(cache.newest(0, Vid(9), old), None);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let cache = Cache::new(SHARDS * 1_000);
        let entry = VidEntry::new(1, RecordId::new(1, 1));
        let vids: Vec<Vid> = (0..).map(Vid).filter(|vid| vid.shard(SHARDS) == 0).take(100).collect();
        let vid = |number: usize| vids[number];
        for number in 0..100 {
            cache.keep(0, vid(number), row(1));
            assert!(cache.newest(0, vid(0), entry).is_some(), "it was used a moment ago");
        }
        let kept = (0..100).filter(|&number| cache.newest(0, vid(number), entry).is_some()).count();
        assert_eq!(kept, 10);
        cache.keep(0, vid(0), Row { image: Some(vec![0; 2_000].into()), ..row(2) });
        assert_eq!(cache.newest(0, vid(0), VidEntry::new(2, RecordId::HOST)), None, "too large for the cache");
    }
}
