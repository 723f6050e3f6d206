//! Data in memory that processes share, changed only under locks, without atomic additions: two at a time are found
//! out.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockwork_sharedlocks::LockMode;
use memmap2::{MmapOptions, MmapRaw};

/// Keys of a book.
pub(crate) const KEYS: u64 = 64;
/// Words of a key: who is in it, number of changes begun, and of those ended, and changes counted atomically.
const KEY_WORDS: u64 = 8;
/// Words for anything else.
pub(crate) const OTHERS: u64 = 1024;

pub(crate) struct Book {
    map: MmapRaw,
    place: Option<PathBuf>,
}

fn place_of(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/book-{name}"))
}

impl Book {
    pub(crate) fn create(name: &str) -> Self {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(place_of(name)).unwrap();
        file.set_len((KEYS * KEY_WORDS + OTHERS) * 8).unwrap();
        let mut book = Self::open(name);
        book.place = Some(place_of(name));
        book
    }

    pub(crate) fn open(name: &str) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(place_of(name)).unwrap();
        Self { map: MmapOptions::new().map_raw(&file).unwrap(), place: None }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at < KEYS * KEY_WORDS + OTHERS);
        // SAFETY: inside the mapping, which lives as long as `self`; all access is atomic.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(at as usize)) }
    }

    /// A word for anything.
    pub(crate) fn other(&self, at: u64) -> &AtomicU64 {
        assert!(at < OTHERS);
        self.word(KEYS * KEY_WORDS + at)
    }

    fn key(&self, key: u64) -> [&AtomicU64; 4] {
        assert!(key < KEYS);
        [0, 1, 2, 3].map(|word| self.word(key * KEY_WORDS + word))
    }

    /// What is done with the lock of a key, by somebody who is not zero. An exclusive holder that was killed in here
    /// is told of to `died`, which fails unless it was.
    pub(crate) fn visit(&self, key: u64, mode: LockMode, who: u64, died: impl FnOnce(u64)) {
        let [owner, begun, ended, counted] = self.key(key);
        let before = owner.load(Relaxed);
        if before != 0 {
            died(before);
        }
        let changes = begun.load(Relaxed);
        if mode == LockMode::Exclusive {
            assert!(changes - ended.load(Relaxed) <= u64::from(before != 0), "key {key}: a change was not finished");
            owner.store(who, Relaxed);
            begun.store(changes + 1, Relaxed);
        }
        for _ in 0..20 {
            std::hint::spin_loop();
        }
        if mode == LockMode::Exclusive {
            assert_eq!(owner.load(Relaxed), who, "key {key}: two hold it exclusively");
            ended.store(changes + 1, Relaxed);
            counted.fetch_add(1, Relaxed);
            owner.store(0, Relaxed);
        } else {
            assert_eq!(owner.load(Relaxed), before, "key {key}: a writer beside a reader");
            assert_eq!(begun.load(Relaxed), changes, "key {key}: a change beside a reader");
        }
    }

    /// How many changes of all keys were lost, which is none, or at most one for each writer that was killed inside.
    pub(crate) fn lost(&self) -> u64 {
        let of_key = |key| {
            let [owner, begun, _, counted] = self.key(key);
            assert_eq!(owner.load(Relaxed), 0, "key {key}");
            begun.load(Relaxed).abs_diff(counted.load(Relaxed))
        };
        (0..KEYS).map(of_key).sum()
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            drop(std::fs::remove_file(place));
        }
    }
}
