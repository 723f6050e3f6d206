//! Random numbers that a seed repeats (splitmix64).

use std::ops::{Bound, RangeBounds};

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

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
        Self(seed)
    }

    pub(crate) fn any<T: Number>(&mut self) -> T {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        T::from_bits(z ^ z >> 31)
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
