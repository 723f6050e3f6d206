//! The numbers of sessions: none is given out twice before all have been, and none tells the next.
//!
//! A counter runs through a permutation of the bits below the era, a Feistel network whose rounds are SipHash-1-3 with
//! a key of the registry's own. So a client cannot compute the session of another client from its own.
//!
//! *Trade-off*: [`ERA_SHIFT`] bits are few enough to be tried one after the other. A session keeps machines apart; what
//! keeps strangers out is the cluster's key.

use crate::report::{ERA_SHIFT, era, in_era};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Bits of each half.
const HALF: u32 = ERA_SHIFT / 2;
const MASK: u32 = (1 << HALF) - 1;
const _: () = assert!(ERA_SHIFT.is_multiple_of(2), "both halves are equally wide");
/// Four would do for halves that are wide; these are not.
const ROUNDS: u8 = 8;

/// Gives out sessions.
#[derive(Debug)]
pub(super) struct SessionNumbers {
    key: [u8; 16],
    era: u32,
    /// The last one that was given out is the image of this.
    counted: u32,
}

impl SessionNumbers {
    /// `first` has the era in its upper bits; below them is where counting begins.
    pub(super) const fn new(first: u32, key: u128) -> Self {
        Self { key: key.to_le_bytes(), era: era(first), counted: in_era(first, 0) }
    }

    /// The next session, which `is_taken` does not know.
    pub(super) fn next(&mut self, is_taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            self.counted = in_era(self.counted.wrapping_add(1), 0);
            let session = permute(&self.key, self.counted);
            // 0 and 1 are the sessions of deciders and of the registry.
            if session > 1 && !is_taken(in_era(session, self.era)) {
                return in_era(session, self.era);
            }
        }
    }
}

fn permute(key: &[u8; 16], number: u32) -> u32 {
    let (mut left, mut right) = (number >> HALF & MASK, number & MASK);
    for round in 0..ROUNDS {
        let mut hasher = SipHasher13::new_with_key(key);
        hasher.write(&[round]);
        hasher.write(&right.to_le_bytes());
        (left, right) = (right, left ^ (hasher.finish() as u32 & MASK));
    }
    left << HALF | right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_is_given_out_once_before_one_is_again() {
        let mut numbers = SessionNumbers::new(in_era(77, 5), 0x0123_4567_89ab_cdef);
        let mut seen = vec![false; 1 << ERA_SHIFT];
        for _ in 2..1 << ERA_SHIFT {
            let session = numbers.next(|_| false);
            assert_eq!(era(session), 5);
            assert!(session > in_era(1, 5));
            assert!(!std::mem::replace(&mut seen[in_era(session, 0) as usize], true), "{session} twice");
        }
        let first = numbers.next(|_| false);
        assert!(seen[in_era(first, 0) as usize], "all have been given out");
    }

    #[test]
    fn a_session_tells_neither_the_next_nor_that_of_another_registry() {
        let sessions = |key| {
            let mut numbers = SessionNumbers::new(100, key);
            std::array::from_fn::<_, 1000, _>(|_| numbers.next(|_| false))
        };
        let one = sessions(1);
        let close = one.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 1000).count();
        // Of random pairs, one in 500 is as close.
        assert!(close < 20, "{close} of 999 are within 1,000 of the one before");
        let mut steps: Vec<_> = one.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 950, "{} different steps", steps.len());
        let same = one.iter().zip(sessions(2)).filter(|(one, other)| *one == other).count();
        assert!(same < 5, "{same}");
    }

    #[test]
    fn a_session_that_lives_is_passed_over() {
        let mut numbers = SessionNumbers::new(0, 9);
        let first = SessionNumbers::new(0, 9).next(|_| false);
        assert_ne!(numbers.next(|session| session == first), first);
    }
}
