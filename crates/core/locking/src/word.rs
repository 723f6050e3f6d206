//! Two-phase lock words: the decision word of a record, in the record's own header.
//!
//! ```text
//! bits  0..16   holders: 0 free, 0xFFFF one exclusive holder, else the number of shared holders
//! bits 16..64   serial stamp: a Lamport clock of the record
//! ```
//!
//! **The stamp.** A transaction that commits takes as its stamp one more than the largest stamp it met on any of its
//! locks, and leaves it on every lock that it releases (a lock never goes back). Two transactions that conflict on a
//! record hold its lock one after the other, so the later one meets the stamp of the earlier one and takes a larger
//! one. Ascending stamp is therefore a serial order that the execution is equivalent to, ties being transactions that
//! do not conflict; and no counter is shared by transactions that have nothing to do with each other. A transaction
//! that aborts has no place in that order and leaves the stamps as they are.
//!
//! **Waiting** is the caller's business: nothing here blocks. [`Age`] tells, for wait-die, whether a caller may ask
//! again or has to give up what it holds. Re-entrancy is the caller's business too: it knows what it holds.

use crate::sync::{AtomicU64, Ordering};
use crate::vocabulary::LockMode;

/// The lock is held in a mode that excludes the one asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

const HOLDERS: u64 = 0xFFFF;
const EXCLUSIVE: u64 = 0xFFFF;
const MAX_SHARED: u64 = 0xFFFE;
const STAMP_SHIFT: u32 = 16;

/// The largest stamp, about 281 million million: at a hundred million transactions a second, a month of them on one
/// record.
pub const MAX_STAMP: u64 = (1 << 48) - 1;

/// How many hold the lock of this word: 0xFFFF means one, exclusively.
#[must_use]
#[inline]
pub const fn holders(word: u64) -> u64 {
    word & HOLDERS
}

/// The stamp in this word.
#[must_use]
#[inline]
pub const fn stamp(word: u64) -> u64 {
    word >> STAMP_SHIFT
}

/// Takes the lock shared and returns the stamp on it.
///
/// # Errors
/// [`Conflict`] when it is held exclusively (or by 65,534 readers).
#[inline]
pub fn try_shared(word: &AtomicU64) -> Result<u64, Conflict> {
    let mut current = word.load(Ordering::Relaxed);
    while holders(current) < MAX_SHARED {
        match word.compare_exchange_weak(current, current + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(stamp(current)),
            Err(now) => current = now,
        }
    }
    Err(Conflict)
}

/// Takes the lock exclusively and returns the stamp on it.
///
/// # Errors
/// [`Conflict`] when anybody holds it.
#[inline]
pub fn try_exclusive(word: &AtomicU64) -> Result<u64, Conflict> {
    let mut current = word.load(Ordering::Relaxed);
    while holders(current) == 0 {
        match word.compare_exchange_weak(current, current | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(stamp(current)),
            Err(now) => current = now,
        }
    }
    Err(Conflict)
}

/// Makes the caller, a shared holder, the exclusive holder, and returns the stamp.
///
/// # Errors
/// [`Conflict`] when others hold it too; the caller then still holds it shared.
#[inline]
pub fn try_upgrade(word: &AtomicU64) -> Result<u64, Conflict> {
    let mut current = word.load(Ordering::Relaxed);
    assert!((1..EXCLUSIVE).contains(&holders(current)), "only a shared holder can upgrade");
    while holders(current) == 1 {
        match word.compare_exchange_weak(current, current | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(stamp(current)),
            Err(now) => current = now,
        }
    }
    Err(Conflict)
}

/// Gives a shared lock back, with the stamp of the transaction, or zero if it aborted.
///
/// # Panics
/// When nobody holds the lock shared.
#[inline]
pub fn release_shared(word: &AtomicU64, with: u64) {
    let mut current = word.load(Ordering::Relaxed);
    loop {
        assert!((1..EXCLUSIVE).contains(&holders(current)), "a shared lock is released that nobody holds");
        debug_assert!(with <= MAX_STAMP, "stamps have 48 bits");
        let next = (stamp(current).max(with) << STAMP_SHIFT) | (holders(current) - 1);
        match word.compare_exchange_weak(current, next, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => current = now,
        }
    }
}

/// Gives an exclusive lock back, with the stamp of the transaction, or zero if it aborted.
///
/// # Panics
/// When nobody holds the lock exclusively.
#[inline]
pub fn release_exclusive(word: &AtomicU64, with: u64) {
    let current = word.load(Ordering::Relaxed);
    assert!(holders(current) == EXCLUSIVE, "an exclusive lock is released that nobody holds");
    debug_assert!(with <= MAX_STAMP, "stamps have 48 bits");
    word.store(stamp(current).max(with) << STAMP_SHIFT, Ordering::Release);
}

/// A lock of a whole, say a table, for two groups that exclude each other but not their own: those who read all of
/// it ([`LockMode::Shared`]) and those who change parts of it ([`LockMode::IntentExclusive`]). Who does both takes it
/// exclusively.
///
/// The word is laid out as a record's, except that bit 15 says which group holds it and bits 0..15 count its members;
/// a count of 0x7FFF is one exclusive holder.
pub mod group {
    use super::{AtomicU64, Conflict, LockMode, Ordering, STAMP_SHIFT, stamp};

    const INTENT: u64 = 1 << 15;
    const COUNT: u64 = INTENT - 1;

    /// Takes the lock in `mode` and returns the stamp.
    ///
    /// # Errors
    /// [`Conflict`] when it is held in a mode that does not go with this one.
    #[inline]
    pub fn try_enter(word: &AtomicU64, mode: LockMode) -> Result<u64, Conflict> {
        let mut current = word.load(Ordering::Relaxed);
        loop {
            let (count, group) = (current & COUNT, current & INTENT);
            let holders = match mode {
                LockMode::Exclusive if count == 0 => COUNT,
                LockMode::Shared if count == 0 || (group == 0 && count < COUNT - 1) => count + 1,
                LockMode::IntentExclusive if count == 0 || (group != 0 && count < COUNT - 1) => INTENT | (count + 1),
                _ => return Err(Conflict),
            };
            let next = (stamp(current) << STAMP_SHIFT) | holders;
            match word.compare_exchange_weak(current, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(stamp(current)),
                Err(now) => current = now,
            }
        }
    }

    /// Gives the lock back, with the stamp of the transaction, or zero if it aborted.
    ///
    /// # Panics
    /// When it is not held in this mode.
    #[inline]
    pub fn leave(word: &AtomicU64, mode: LockMode, with: u64) {
        let mut current = word.load(Ordering::Relaxed);
        loop {
            let (count, group) = (current & COUNT, current & INTENT);
            let holders = match mode {
                LockMode::Exclusive if count == COUNT => 0,
                LockMode::Shared if group == 0 && (1..COUNT).contains(&count) => count - 1,
                LockMode::IntentExclusive if group != 0 && (1..COUNT).contains(&count) => INTENT | (count - 1),
                _ => panic!("a group lock is left by one who is not in it"),
            };
            let next = (stamp(current).max(with) << STAMP_SHIFT) | holders;
            match word.compare_exchange_weak(current, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => current = now,
            }
        }
    }
}

/// Ages of holders, for wait-die: who is older than every holder may wait, everybody else gives up and begins again.
/// Waiting then always goes from old to young, so no circle can close.
///
/// The age of the oldest holder lies in the upper 56 bits of a second word, whose low eight bits belong to somebody
/// else and stay as they are. Zero means unknown. Invariant: while the lock is held, a published age is that of the
/// oldest holder or *older*. So an asker that is older than what is published is older than all holders; where nothing
/// is published yet, or the oldest holder has gone and its age still stands, it may only be too careful.
#[derive(Clone, Copy, Debug)]
pub struct Age;

const AGE_SHIFT: u32 = 8;
const NOT_AGE: u64 = 0xFF;

impl Age {
    /// The largest age. Ages begin at 1; a smaller one is older.
    pub const MAX: u64 = (1 << 56) - 1;

    /// A holder tells its age, at once after it has taken the lock. `exclusive`: it holds the lock exclusively, so what
    /// stands there is of the past.
    #[inline]
    pub fn publish(word: &AtomicU64, age: u64, exclusive: bool) {
        debug_assert!((1..=Self::MAX).contains(&age));
        let mut current = word.load(Ordering::Relaxed);
        loop {
            let published = current >> AGE_SHIFT;
            // Another reader may have come and published between our lock and now: an older age stays, be it of
            // the past.
            let oldest = if published == 0 || exclusive { age } else { published.min(age) };
            let next = (oldest << AGE_SHIFT) | (current & NOT_AGE);
            match word.compare_exchange_weak(current, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => current = now,
            }
        }
    }

    /// Forgets the published age; called by an exclusive holder just before it releases.
    #[inline]
    pub fn clear(word: &AtomicU64) {
        word.fetch_and(NOT_AGE, Ordering::Relaxed);
    }

    /// Whether a transaction of this age may wait for the lock whose age word this is.
    #[inline]
    #[must_use]
    pub fn may_wait(word: &AtomicU64, age: u64) -> bool {
        let published = word.load(Ordering::Acquire) >> AGE_SHIFT;
        published != 0 && age < published
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let word = AtomicU64::new(0);
        assert_eq!((try_shared(&word), try_shared(&word)), (Ok(0), Ok(0)));
        assert_eq!((try_exclusive(&word), try_upgrade(&word)), (Err(Conflict), Err(Conflict)));
        release_shared(&word, 5);
        assert_eq!(try_upgrade(&word), Ok(5));
        assert_eq!(try_shared(&word), Err(Conflict));
        release_exclusive(&word, 3);
        assert_eq!(word.load(Ordering::Relaxed), 5 << 16, "a stamp never goes back");
        assert_eq!(try_exclusive(&word), Ok(5));
    }

    #[test]
    fn groups_exclude_each_other_only() {
        use LockMode::{Exclusive, IntentExclusive, Shared};
        let word = AtomicU64::new(0);
        assert_eq!(group::try_enter(&word, IntentExclusive), Ok(0));
        assert_eq!(group::try_enter(&word, IntentExclusive), Ok(0));
        assert_eq!(group::try_enter(&word, Shared), Err(Conflict));
        group::leave(&word, IntentExclusive, 9);
        group::leave(&word, IntentExclusive, 0);
        assert_eq!((group::try_enter(&word, Shared), group::try_enter(&word, Shared)), (Ok(9), Ok(9)));
        assert_eq!(group::try_enter(&word, IntentExclusive), Err(Conflict));
        assert_eq!(group::try_enter(&word, Exclusive), Err(Conflict));
        group::leave(&word, Shared, 0);
        group::leave(&word, Shared, 0);
        assert_eq!(group::try_enter(&word, Exclusive), Ok(9));
        assert_eq!(group::try_enter(&word, Shared), Err(Conflict));
        group::leave(&word, Exclusive, 10);
        assert_eq!(group::try_enter(&word, Shared), Ok(10));
    }

    #[test]
    fn only_the_older_waits_and_the_unknown_is_not_waited_for() {
        let word = AtomicU64::new(1);
        assert!(!Age::may_wait(&word, 1), "nothing is published");
        Age::publish(&word, 7, true);
        assert!(Age::may_wait(&word, 6) && !Age::may_wait(&word, 7) && !Age::may_wait(&word, 8));
        Age::publish(&word, 9, false);
        assert!(!Age::may_wait(&word, 8), "the oldest holder counts");
        Age::publish(&word, 9, true);
        assert!(Age::may_wait(&word, 8), "who holds it alone is the oldest holder");
        Age::clear(&word);
        assert_eq!(word.load(Ordering::Relaxed), 1, "the low bits are somebody else's");
    }

    #[test]
    #[should_panic(expected = "nobody holds")]
    fn a_release_without_a_lock_is_an_error() {
        release_shared(&AtomicU64::new(0), 0);
    }
}
