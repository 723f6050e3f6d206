//! The words that every lock manager speaks: modes, names, owners, requests, outcomes.
//!
//! The encoding of [`LockMode`] is chosen so that the weakest mode that covers two others is their bitwise *or*
//! (shared 1, intent 2, exclusive 3). Decision words store modes in two bits and join them without a table; zero
//! means "no mode".

/// What an owner may do with what it locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LockMode {
    /// Read. Many owners at once.
    Shared = 1,
    /// Will take exclusive locks *below* this one (rows of a table, say). Many owners at once; excludes readers and
    /// writers of the whole.
    IntentExclusive = 2,
    /// Read and write. One owner.
    Exclusive = 3,
}

/// Whether two different owners may hold one lock in modes `a` and `b` at the same time.
#[must_use]
#[inline]
pub const fn compatible(a: LockMode, b: LockMode) -> bool {
    a as u8 == b as u8 && !matches!(a, LockMode::Exclusive)
}

impl LockMode {
    /// The weakest mode that allows whatever `self` or `other` allows. Shared with intent gives exclusive: there is no
    /// weaker mode that covers both.
    #[must_use]
    #[inline]
    pub const fn join(self, other: Self) -> Self {
        match self as u8 | other as u8 {
            1 => Self::Shared,
            2 => Self::IntentExclusive,
            _ => Self::Exclusive,
        }
    }

    /// The mode as the two bits that decision words store: 1, 2 or 3.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u32 {
        self as u8 as u32
    }
}

/// The name of a lock. A dense record number or a hash of a key: the manager says which it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u64);

/// Who asks: the index of a transaction among those in flight. Small, and free for reuse after its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u32);

/// One wish of an access set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which lock.
    pub id: LockId,
    /// In which mode.
    pub mode: LockMode,
}

/// What a manager answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The owner holds the lock now.
    Granted,
    /// Not now. The request stands (or, for managers that are polled, may be repeated while the owner keeps what it
    /// has).
    Waiting,
    /// Refused. The owner must release everything that it holds and start again.
    Conflict,
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockMode::{Exclusive, IntentExclusive, Shared};

    #[test]
    fn only_equal_modes_that_are_not_exclusive_go_together() {
        for a in [Shared, Exclusive, IntentExclusive] {
            for b in [Shared, Exclusive, IntentExclusive] {
                let expected = (a, b) == (Shared, Shared) || (a, b) == (IntentExclusive, IntentExclusive);
                assert_eq!(compatible(a, b), expected, "{a:?} with {b:?}");
            }
        }
    }

    #[test]
    fn a_join_excludes_whatever_either_part_excludes() {
        for a in [Shared, Exclusive, IntentExclusive] {
            for b in [Shared, Exclusive, IntentExclusive] {
                assert_eq!(a.join(b), b.join(a));
                for other in [Shared, Exclusive, IntentExclusive] {
                    let either = !compatible(a, other) || !compatible(b, other);
                    assert!(!either || !compatible(a.join(b), other), "{a:?} join {b:?} against {other:?}");
                }
            }
        }
    }
}
