//! TID words: the decision word of a record under optimistic concurrency control (Tu et al., *Speedy Transactions in
//! Multicore In-Memory Databases*, SOSP 2013, section 4.2).
//!
//! ```text
//! bit  0        a writer is installing the record
//! bits 1..64    TID: the number of the transaction that wrote the record last
//! ```
//!
//! **Readers write nothing.** [`read`] looks at the word, lets its caller copy the record, and looks again: the copy is
//! a version that existed, and the TID names it. [`is_current`] asks later whether it still is the version.
//!
//! **TIDs are stamps.** Silo's TIDs say who overwrote whom, but not that a reader came before the one that overwrote
//! what it had read; within an epoch they are no serial order. Here they are one. [`Tids::take`] hands them out, and a
//! writer takes its TID *between* locking all that it writes and validating all that it read. A transaction that writes
//! has stamp [`writer_stamp`]; one that only reads has the [`reader_stamp`] of the largest TID that it met, and takes
//! nothing from the counter.
//!
//! *Ascending stamp is a serial order that the execution is equivalent to; transactions with equal stamps only read.*
//! Say W wrote a version of record x with TID w, and T is another transaction that committed.
//!
//! - T read that version. If T writes, it took its TID after it had read, so after W had taken w: a larger one. If it
//!   only reads, w is among the TIDs it met. Its stamp is larger than W's either way.
//! - T wrote the next version. It locked x after W had unlocked it, and took its TID after that.
//! - T read the version before. W had not locked x when T looked at the word to validate. If T writes, it had taken
//!   TID t before it looked. Were w < t, then W's lock would have been before w, w before t, and t before T looked: T
//!   would have seen the lock, or what came after. So t < w. If T only reads, let m be the largest TID that it met, by
//!   reading what M wrote, before it looked. Were w < m, then W's lock would have been before w, w before m, m before M
//!   wrote, and so before T looked. So m < w, and 2m + 1 < 2w. (If T read x alone it need not look again: m is the TID
//!   of the version before, and W took w after that version was there.)
//!
//! The steps "before" are *happens-before*: the counter is only ever changed by read-modify-write operations that
//! acquire and release, so who takes a larger TID has seen all that was done before a smaller one was taken.
//!
//! Trade-off: one counter that all writers share; Silo has none, and tells no order within an epoch. Readers, by far
//! the most where optimism pays, do not touch it. Whoever waits decides how: nothing here blocks.

use crate::sync::{AtomicU64, Ordering, fence};

/// Another transaction holds the record, or has changed it.
pub use crate::word::Conflict;

const LOCKED: u64 = 1;

/// The largest TID: stamps of writers and readers are one bit longer and must fit 64 bits.
pub const MAX_TID: u64 = (1 << 62) - 1;

/// The serial stamp of a transaction that wrote under this TID.
#[must_use]
#[inline]
pub const fn writer_stamp(tid: u64) -> u64 {
    tid << 1
}

/// The serial stamp of a transaction that wrote nothing and met no TID larger than this one.
#[must_use]
#[inline]
pub const fn reader_stamp(tid: u64) -> u64 {
    (tid << 1) | 1
}

/// Hands out TIDs, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Tids(AtomicU64);

impl Default for Tids {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Tids {
    /// The next TID, at least 1. Take it when all that is to be written is locked, and before the first read is
    /// validated.
    #[inline]
    #[must_use]
    pub fn take(&self) -> u64 {
        let tid = self.0.fetch_add(1, Ordering::AcqRel) + 1;
        debug_assert!(tid <= MAX_TID, "TIDs have 62 bits");
        tid
    }
}

/// Lets `copy` copy the record and returns its TID with what `copy` says.
///
/// `copy` reads by relaxed atomic loads and may read a mixture of versions, in which case it is called again, or its
/// result is dropped. It is called at most `tries` times.
///
/// # Errors
/// [`Conflict`] when a writer was there at every try.
#[inline(always)]
pub fn read<T>(word: &AtomicU64, tries: u32, mut copy: impl FnMut() -> T) -> Result<(u64, T), Conflict> {
    for _ in 0..tries {
        let before = word.load(Ordering::Acquire);
        if before & LOCKED == 0 {
            let copied = copy();
            // The loads of the copy come before the second look.
            fence(Ordering::Acquire);
            if word.load(Ordering::Relaxed) == before {
                return Ok((before >> 1, copied));
            }
        }
        std::hint::spin_loop();
    }
    Err(Conflict)
}

/// Whether the record still is the version of this TID and nobody is about to change it.
#[inline(always)]
#[must_use]
pub fn is_current(word: &AtomicU64, tid: u64) -> bool {
    word.load(Ordering::Acquire) == tid << 1
}

/// As [`is_current`], for who holds the record locked.
#[inline]
#[must_use]
pub fn is_current_locked(word: &AtomicU64, tid: u64) -> bool {
    word.load(Ordering::Relaxed) == (tid << 1) | LOCKED
}

/// Locks the record if it still is the version of this TID; `Ok(false)` when somebody else holds it now. The holder
/// writes by relaxed atomic stores.
///
/// # Errors
/// [`Conflict`] when it is another version: waiting is in vain.
#[inline]
pub fn try_lock(word: &AtomicU64, tid: u64) -> Result<bool, Conflict> {
    let unlocked = tid << 1;
    match word.compare_exchange(unlocked, unlocked | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => {
            // Readers that see any of the stores to come must see the lock.
            fence(Ordering::Release);
            Ok(true)
        }
        Err(now) if now == unlocked | LOCKED => Ok(false),
        Err(_) => Err(Conflict),
    }
}

/// Gives the record back as the version of `tid`: the holder's own, or the one before if nothing was written.
///
/// # Panics
/// When it is not locked.
#[inline]
pub fn unlock(word: &AtomicU64, tid: u64) {
    assert!(word.load(Ordering::Relaxed) & LOCKED != 0, "a record is unlocked that nobody holds");
    word.store(tid << 1, Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_of_one_version_and_its_holder_makes_the_next() {
        let (word, tids) = (AtomicU64::new(0), Tids::default());
        assert_eq!(try_lock(&word, 0), Ok(true));
        assert_eq!(try_lock(&word, 0), Ok(false));
        assert!(!is_current(&word, 0) && is_current_locked(&word, 0));
        assert_eq!(read(&word, 3, || panic!("a writer is there")), Err::<(u64, ()), _>(Conflict));
        unlock(&word, tids.take());
        assert_eq!(try_lock(&word, 0), Err(Conflict));
        assert!(is_current(&word, 1) && !is_current(&word, 0));
        assert_eq!(read(&word, 1, || 7), Ok((1, 7)));
    }

    #[test]
    fn a_copy_that_met_a_writer_is_made_again() {
        let word = AtomicU64::new(0);
        let mut copies = 0;
        let copied = read(&word, 5, || {
            copies += 1;
            if copies == 1 {
                assert_eq!(try_lock(&word, 0), Ok(true));
                unlock(&word, 9);
            }
            copies
        });
        assert_eq!(copied, Ok((9, 2)));
    }

    #[test]
    fn readers_stand_between_the_writer_that_they_met_and_the_next() {
        assert!(writer_stamp(4) < reader_stamp(4) && reader_stamp(4) < writer_stamp(5));
        assert!(reader_stamp(MAX_TID) > writer_stamp(MAX_TID));
    }

    #[test]
    #[should_panic(expected = "nobody holds")]
    fn an_unlock_without_a_lock_is_an_error() {
        unlock(&AtomicU64::new(0), 1);
    }
}
