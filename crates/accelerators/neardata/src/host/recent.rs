//! The shared state of a table: versions that are committed and that the storage does not have yet.
//!
//! By tuple, oldest first, in shards of one lock each. A version enters when its transaction commits and leaves when a
//! flush has stored it; those that were superseded and that no snapshot sees leave without ever being stored.
//!
//! Invariant: of a tuple that is here, all newer versions are here too. So the newest one here is the newest there is,
//! and a snapshot that is older than everything here finds what it sees in the storage. A tuple that is not here has
//! its newest version in the storage.
//!
//! Source: neoDBMS, section 2.3 (shared state; the delta buffer of an invocation).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockwork_procedure::key::mix;

use super::sessions::Views;
use crate::device::Version;
use crate::record::{Timestamp, Vid};

/// Shards of a table, a power of two.
const SHARDS: usize = 64;
/// Versions of one tuple that are looked through at every commit of it, at most.
const SHORT: usize = 8;
/// What a version takes beside its image, about, in bytes.
const OVERHEAD: usize = 64;

/// A version in the host's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its number among the tuple's versions.
    pub(super) number: u32,
    /// When it was committed.
    pub(super) created: Timestamp,
    /// `None`: the tuple was removed.
    pub(super) image: Option<Arc<[u8]>>,
    /// A bulk update made it: that it was written does not say that it will be wanted soon.
    pub(super) bulk: bool,
}

impl Row {
    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        OVERHEAD + self.image.as_ref().map_or(0, |image| image.len())
    }
}

/// What the shared state knows of a tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// This is what the snapshot sees.
    Row(Row),
    /// The snapshot sees an older version than those here, if any: `false` when the first version is here.
    Older(bool),
    /// Nothing.
    Unknown,
}

/// Spreads VIDs over hash tables.
#[derive(Default)]
pub(super) struct VidHasher(u64);

impl Hasher for VidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.0 = mix(self.0 ^ u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u32(u32::from(word));
    }
}

/// A hash table by tuple.
pub(super) type ByVid<K, V> = HashMap<K, V, BuildHasherDefault<VidHasher>>;

type Shard = ByVid<Vid, Vec<Row>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Recent {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of all tables of the host.
    bytes: Arc<AtomicUsize>,
}

impl Recent {
    /// An empty one, whose bytes are counted in `bytes`.
    pub(super) fn new(bytes: Arc<AtomicUsize>) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), bytes }
    }

    fn shard(&self, vid: Vid) -> MutexGuard<'_, Shard> {
        self.shards[vid.shard(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a snapshot sees of a tuple.
    #[inline]
    pub(super) fn read(&self, vid: Vid, snapshot: Timestamp) -> Seen {
        let shard = self.shard(vid);
        let Some(versions) = shard.get(&vid) else { return Seen::Unknown };
        match versions.iter().rev().find(|row| row.created <= snapshot) {
            Some(row) => Seen::Row(row.clone()),
            None => Seen::Older(versions[0].number > 1),
        }
    }

    /// When a version was created, if it is here.
    pub(super) fn created(&self, vid: Vid, number: u32) -> Option<Timestamp> {
        let shard = self.shard(vid);
        shard.get(&vid)?.iter().find(|row| row.number == number).map(|row| row.created)
    }

    /// Adds the newest version of a tuple, and drops older ones that nobody sees.
    pub(super) fn install(&self, vid: Vid, row: Row, views: &Views) {
        self.bytes.fetch_add(row.bytes(), Ordering::Relaxed);
        let mut shard = self.shard(vid);
        let versions = shard.entry(vid).or_default();
        versions.push(row);
        // Views may be old, and a snapshot may be: a long list is looked through each time that it has doubled.
        if (2..=SHORT).contains(&versions.len()) || versions.len() == versions.capacity() {
            self.bytes.fetch_sub(prune(versions, views), Ordering::Relaxed);
        }
    }

    /// Copies what is to be stored: of each tuple, oldest first, the versions up to `until` that are seen. Tuples are
    /// in order, and so they lie in the storage, where windows of neighbours are read together.
    pub(super) fn collect(&self, until: Timestamp, views: &Views) -> Vec<Version> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (&vid, versions) in shard.iter_mut() {
                let less = prune(versions, views);
                self.bytes.fetch_sub(less, Ordering::Relaxed);
                found.extend(versions.iter().take_while(|row| row.created <= until).map(|row| Version {
                    vid,
                    number: row.number,
                    created: row.created,
                    image: row.image.as_deref().map(Into::into),
                }));
            }
        }
        found.sort_unstable_by_key(|version| (version.vid, version.number));
        found
    }

    /// Lets go of the versions of a tuple up to number `number`, which the storage has now, and gives back the last of
    /// them. `stored` is called first, while nobody reads the tuple here.
    pub(super) fn stored(&self, vid: Vid, number: u32, stored: impl FnOnce()) -> Option<Row> {
        let mut shard = self.shard(vid);
        stored();
        let versions = shard.get_mut(&vid)?;
        let gone = versions.partition_point(|row| row.number <= number);
        let mut last = None;
        for row in versions.drain(..gone) {
            self.bytes.fetch_sub(row.bytes(), Ordering::Relaxed);
            last = Some(row);
        }
        if versions.is_empty() {
            shard.remove(&vid);
        }
        last
    }
}

/// Drops versions that nobody sees, never the newest, and says how many bytes they took.
fn prune(versions: &mut Vec<Row>, views: &Views) -> usize {
    let (mut kept, mut bytes) = (0, 0);
    for at in 0..versions.len() {
        let created = versions[at].created;
        if versions.get(at + 1).is_none_or(|next| views.sees(created, next.created)) {
            versions.swap(kept, at);
            kept += 1;
        } else {
            bytes += versions[at].bytes();
        }
    }
    versions.truncate(kept);
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::super::sessions::Sessions;
    use super::*;

    fn recent(created: &[Timestamp]) -> (Recent, Arc<AtomicUsize>) {
        let bytes = Arc::new(AtomicUsize::new(0));
        let recent = Recent::new(bytes.clone());
        for (number, &created) in (2..).zip(created) {
            let row = Row { number, created, image: Some(vec![0; 10].into()), bulk: false };
            recent.install(Vid(5), row, &Views::default());
        }
        (recent, bytes)
    }

    /// Seen from `bound` on.
    fn views(bound: Timestamp) -> Views {
        let mut views = Views::default();
        Sessions::default().views(&Clock::new(bound), &mut views);
        views
    }

    fn number(seen: Seen) -> Option<u32> {
        if let Seen::Row(row) = seen { Some(row.number) } else { None }
    }

    #[test]
    fn a_snapshot_sees_the_newest_version_that_is_not_newer_than_itself() {
        let (recent, _) = recent(&[10, 20, 30]);
        assert_eq!(recent.read(Vid(5), 9), Seen::Older(true));
        assert_eq!([10, 19, 20, 99].map(|snapshot| number(recent.read(Vid(5), snapshot)).unwrap()), [2, 2, 3, 4]);
        assert_eq!(recent.read(Vid(6), 99), Seen::Unknown);
    }

    #[test]
    fn what_is_stored_leaves_and_what_came_later_stays() {
        let (recent, bytes) = recent(&[10, 20, 30]);
        let numbers = |versions: Vec<Version>| versions.iter().map(|version| version.number).collect::<Vec<_>>();
        assert_eq!(numbers(recent.collect(20, &views(10))), [2, 3]);
        assert_eq!(numbers(recent.collect(20, &views(20))), [3]);
        assert_eq!(recent.stored(Vid(5), 3, || {}).unwrap().number, 3);
        assert_eq!((recent.read(Vid(5), 20), number(recent.read(Vid(5), 30))), (Seen::Older(true), Some(4)));
        assert_eq!(bytes.load(Ordering::Relaxed), 74);
        recent.stored(Vid(5), 4, || {});
        assert_eq!((recent.read(Vid(5), 30), bytes.load(Ordering::Relaxed)), (Seen::Unknown, 0));
    }

    #[test]
    fn tuples_are_stored_in_order() {
        let (recent, _) = recent(&[]);
        for vid in (0..500).rev() {
            recent.install(Vid(vid), Row { number: 1, created: 1, image: None, bulk: false }, &Views::default());
        }
        let vids: Vec<u32> = recent.collect(1, &views(1)).iter().map(|version| version.vid.0).collect();
        assert!(vids.iter().copied().eq(0..500));
    }

    #[test]
    fn a_hot_tuple_keeps_only_what_somebody_sees() {
        let (recent, bytes) = recent(&[]);
        for number in 1..1_000 {
            let row = Row { number, created: u64::from(number), image: None, bulk: false };
            recent.install(Vid(1), row, &views(u64::from(number) - 1).with(500));
        }
        assert_eq!(bytes.load(Ordering::Relaxed), 3 * OVERHEAD);
        assert_eq!((recent.read(Vid(1), 499), number(recent.read(Vid(1), 500))), (Seen::Older(true), Some(500)));
        assert_eq!(number(recent.read(Vid(1), 998)), Some(998));
    }
}
