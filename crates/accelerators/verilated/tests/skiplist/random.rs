//! Random numbers of every type, which a seed repeats.

use std::ops::{Bound, RangeBounds};

#[derive(Clone, Debug)]
pub(crate) struct Random(lockwork_random::Random);

pub(crate) trait Number: Copy {
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Number for $number {
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }

            fn bits(self) -> u64 {
                self as u64
            }
        })*
    };
}

numbers!(u8 i32 u32 u64 usize);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(lockwork_random::Random(seed))
    }

    pub(crate) fn any<T: Number>(&mut self) -> T {
        T::from_bits(self.0.next_u64())
    }

    /// One of a range, which is not empty and has an end.
    pub(crate) fn of<T: Number>(&mut self, range: impl RangeBounds<T>) -> T {
        let start = match range.start_bound() {
            Bound::Included(start) => start.bits(),
            _ => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.bits() + 1,
            Bound::Excluded(end) => end.bits(),
            Bound::Unbounded => u64::MAX,
        };
        T::from_bits(start + self.any::<u64>() % (end - start))
    }
}
