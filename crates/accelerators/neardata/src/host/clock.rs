//! Commit timestamps and what snapshots see.
//!
//! A transaction that commits is issued a timestamp, installs its versions, and publishes the timestamp; timestamps are
//! published in order. A snapshot is the last published one, so it never sees half of a commit.
//!
//! Publishing in order means waiting for whoever was issued an earlier timestamp. That is nanoseconds for a host
//! transaction, but a bulk update commits by a durable write of the storage. So it *reserves* a timestamp far ahead,
//! commits with it, and then lets the clock jump there: host transactions go on meanwhile, with earlier timestamps,
//! which is right because they have not seen the bulk update and touch none of its tuples, which are locked.
//!
//! Invariant: published timestamps rise; whoever has published one has all its versions in place. Trade-off: a jump
//! spends 2^36 timestamps; 64 bits last for 2^28 jumps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::record::Timestamp;

/// How far ahead a reserved timestamp lies: more than are issued while the storage commits.
const AHEAD: u64 = 1 << 36;
/// How often a waiter looks again before it lets others run, and before it sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 1_000;

#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

/// See the module.
#[derive(Debug)]
pub(super) struct Clock {
    issued: Line,
    visible: Line,
}

impl Clock {
    /// A clock whose last timestamp was `newest`.
    pub(super) fn new(newest: Timestamp) -> Self {
        Self { issued: Line(AtomicU64::new(newest)), visible: Line(AtomicU64::new(newest)) }
    }

    /// What a snapshot taken now sees.
    #[inline]
    pub(super) fn visible(&self) -> Timestamp {
        self.visible.0.load(Ordering::SeqCst)
    }

    /// A commit timestamp, to be [published](Self::publish) soon and without waiting for anybody else.
    #[inline]
    pub(super) fn issue(&self) -> Timestamp {
        self.issued.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Makes an issued timestamp visible, after all that were issued before it.
    #[inline]
    pub(super) fn publish(&self, timestamp: Timestamp) {
        self.follow(timestamp - 1, timestamp);
    }

    /// A timestamp that no issued one reaches before [`Self::jump`]. One at a time.
    pub(super) fn reserve(&self) -> Timestamp {
        self.issued.0.load(Ordering::SeqCst) + AHEAD
    }

    /// Issues and publishes a reserved timestamp.
    pub(super) fn jump(&self, reserved: Timestamp) {
        let before = self.issued.0.fetch_max(reserved, Ordering::SeqCst);
        assert!(before < reserved, "more than {AHEAD} commits during one of the storage's");
        self.follow(before, reserved);
    }

    fn follow(&self, before: Timestamp, timestamp: Timestamp) {
        let mut looks = 0;
        while self.visible.0.load(Ordering::SeqCst) != before {
            looks += 1;
            match looks {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        self.visible.0.store(timestamp, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_timestamp_stops_nobody_and_comes_after_all_that_were_issued_meanwhile() {
        let clock = Clock::new(5);
        let reserved = clock.reserve();
        for expected in 6..9 {
            assert_eq!(clock.issue(), expected);
            clock.publish(expected);
        }
        assert_eq!(clock.visible(), 8);
        clock.jump(reserved);
        assert_eq!((clock.visible(), clock.issue()), (reserved, reserved + 1));
    }

    #[test]
    fn timestamps_become_visible_in_order() {
        let clock = Clock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let timestamp = clock.issue();
                        assert!(clock.visible() < timestamp);
                        clock.publish(timestamp);
                        assert!(clock.visible() >= timestamp);
                    }
                });
            }
        });
        assert_eq!(clock.visible(), 4_000);
    }
}
