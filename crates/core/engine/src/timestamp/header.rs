//! The header of a row under timestamp ordering, and the visibility check (BionicDB, section 4.7).
//!
//! ```text
//! word    bits 0..12   pins: transactions that read the row and have not ended
//!         bits 12..64  read time: the latest transaction that read the row, or holds it for writing
//! state   bits 0..8    liveness (storage's)
//!         bit  8       dirty: a transaction holds the row for writing; the read time is its time
//!         bit  9       the holder inserts the row
//!         bit  10      the holder removes it
//!         bits 12..64  write time: the transaction that wrote the row last
//! ```
//!
//! A transaction reads a row whose write time is below its own time, and writes one whose read time is, too. What is
//! granted stays granted: rows are read and written where they lie, so a row is *pinned* while its readers run, and
//! *dirty* while its writer does. The paper rejects whatever meets a dirty row, and lets a row change under its reader,
//! who has to ask again; here the younger one waits. It waits for older ones only (a holder's time is never above the
//! row's read time, and who is not above that is rejected), so there is no circle of waiting.
//!
//! Invariant: read time ≥ write time, and only the owner of the row's partition changes header words, between two
//! transactions' steps or in one of its own. That is why plain loads and stores do.

use std::sync::atomic::Ordering;

use lockwork_storage::{ABSENT, LIVE, RowPtr, STATE_MASK};

/// The largest time; a row cannot be stamped with more.
pub(super) const MAX_TIME: u64 = (1 << 52) - 1;

const TIME_SHIFT: u32 = 12;
const MAX_PINS: u64 = (1 << TIME_SHIFT) - 1;
const DIRTY: u64 = 1 << 8;
const INSERTED: u64 = 1 << 9;
const REMOVED: u64 = 1 << 10;

/// Time and pins in one word, as they stand in a row.
#[inline(always)]
pub(super) const fn stamp(time: u64, pins: u64) -> u64 {
    time << TIME_SHIFT | if pins < MAX_PINS { pins } else { MAX_PINS }
}

/// The time and the pins of a [`stamp`].
#[inline(always)]
pub(super) const fn split(stamp: u64) -> (u64, u64) {
    (stamp >> TIME_SHIFT, stamp & MAX_PINS)
}

/// The answer of the visibility check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may.
    Granted,
    /// An older transaction is at it; ask again.
    Wait,
    /// It came too late; with a time above this one it would not have.
    Conflict(u64),
}

/// How a row is let go that was held for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// What was done to it counts.
    Commit,
    /// Its bytes are as they were before.
    Abort,
}

/// A row's header, taken out to be looked at and changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    word: u64,
    state: u64,
}

impl Header {
    #[inline(always)]
    pub(super) fn load(row: RowPtr) -> Self {
        Self { word: row.word().load(Ordering::Relaxed), state: row.state().load(Ordering::Relaxed) }
    }

    #[inline(always)]
    pub(super) fn store(self, row: RowPtr) {
        row.word().store(self.word, Ordering::Relaxed);
        row.state().store(self.state, Ordering::Relaxed);
    }

    #[inline(always)]
    fn read_time(self) -> u64 {
        self.word >> TIME_SHIFT
    }

    #[inline(always)]
    fn write_time(self) -> u64 {
        self.state >> TIME_SHIFT
    }

    #[inline(always)]
    fn pins(self) -> u64 {
        self.word & MAX_PINS
    }

    /// Whether a reader has not ended.
    #[inline(always)]
    pub(super) fn is_pinned(self) -> bool {
        self.pins() > 0
    }

    /// Whether the row has as many pins as it can have.
    #[inline(always)]
    pub(super) fn is_full(self) -> bool {
        self.pins() == MAX_PINS
    }

    #[inline(always)]
    fn is_dirty(self) -> bool {
        self.state & DIRTY != 0
    }

    /// Whether the row exists, for whoever may look.
    #[inline(always)]
    pub(super) fn is_live(self) -> bool {
        self.state & STATE_MASK == u64::from(LIVE) || self.state & INSERTED != 0
    }

    /// Whether the transaction of this time holds the row for writing.
    #[inline(always)]
    pub(super) fn is_held_by(self, time: u64) -> bool {
        self.is_dirty() && self.read_time() == time
    }

    /// Whether a transaction of this time may look at the row.
    #[inline(always)]
    pub(super) fn may_read(self, time: u64) -> Verdict {
        if self.is_dirty() {
            return match self.read_time() {
                holder if holder == time => Verdict::Granted,
                holder if holder < time => Verdict::Wait,
                holder => Verdict::Conflict(holder),
            };
        }
        if self.write_time() > time { Verdict::Conflict(self.write_time()) } else { Verdict::Granted }
    }

    /// Whether a transaction of this time, which has pinned the row `own_pins` times, may write it.
    #[inline(always)]
    pub(super) fn may_write(self, time: u64, own_pins: u64) -> Verdict {
        if self.is_held_by(time) {
            return Verdict::Granted;
        }
        if self.read_time() > time {
            return Verdict::Conflict(self.read_time());
        }
        if self.is_dirty() || self.pins() > own_pins { Verdict::Wait } else { Verdict::Granted }
    }

    /// The time that a transaction must be above to read the row, or to write it; `None` while another one is at it.
    #[inline(always)]
    pub(super) fn above(self, write: bool) -> Option<u64> {
        let taken = self.is_dirty() || write && self.pins() > 0;
        (!taken).then_some(if write { self.read_time() } else { self.write_time() })
    }

    /// Notes that a transaction of this time has looked at the row.
    #[inline(always)]
    pub(super) fn saw(&mut self, time: u64) {
        if self.read_time() < time {
            self.word = stamp(time, self.pins());
        }
    }

    /// Pins the row, or says that it has as many pins as it can have.
    #[inline(always)]
    pub(super) fn pin(&mut self) -> bool {
        let free = !self.is_full();
        self.word += u64::from(free);
        free
    }

    #[inline(always)]
    pub(super) fn unpin(&mut self) {
        debug_assert!(self.pins() > 0, "a pin is taken out that was not put in");
        self.word -= 1;
    }

    /// Gives the row to a transaction of this time, which may write it.
    #[inline(always)]
    pub(super) fn hold(&mut self, time: u64) {
        self.saw(time);
        self.state |= DIRTY;
    }

    /// Marks a row that is [held](Self::hold) as one that the holder inserts.
    #[inline(always)]
    pub(super) fn insert(&mut self) {
        self.state |= INSERTED;
    }

    /// Marks a row that is [held](Self::hold) as one that the holder removes.
    #[inline(always)]
    pub(super) fn remove(&mut self) {
        self.state |= REMOVED;
    }

    /// Ends a hold. A row that a transaction got twice is settled twice; the second time changes nothing.
    #[inline(always)]
    pub(super) fn settle(&mut self, time: u64, ending: Ending) {
        if !self.is_held_by(time) {
            return;
        }
        let mut liveness = self.state & STATE_MASK;
        let mut written = self.write_time();
        if ending == Ending::Commit {
            liveness = match self.state & (INSERTED | REMOVED) {
                0 => liveness,
                INSERTED => u64::from(LIVE),
                _ => u64::from(ABSENT),
            };
            written = time;
        }
        self.state = written << TIME_SHIFT | liveness;
    }

    /// Notes that a transaction of this time has written the row, in one step with being let to.
    #[inline(always)]
    pub(super) fn wrote(&mut self, time: u64) {
        self.saw(time);
        self.state = time << TIME_SHIFT | self.state & STATE_MASK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Conflict, Granted, Wait};

    const FRESH: Header = Header { word: 0, state: LIVE as u64 };

    #[test]
    fn who_comes_too_late_is_told_what_to_be_above() {
        let mut row = FRESH;
        row.hold(10);
        row.settle(10, Ending::Commit);
        assert_eq!((row.may_read(9), row.may_read(11), row.may_write(9, 0)), (Conflict(10), Granted, Conflict(10)));
        row.saw(20);
        assert_eq!((row.may_read(15), row.may_write(15, 0), row.may_write(21, 0)), (Granted, Conflict(20), Granted));
        assert_eq!((row.above(false), row.above(true)), (Some(10), Some(20)));
    }

    #[test]
    fn the_younger_waits_for_the_older_and_never_the_other_way() {
        let mut row = FRESH;
        row.hold(10);
        assert_eq!((row.may_read(11), row.may_write(11, 0)), (Wait, Wait));
        assert_eq!((row.may_read(9), row.may_write(9, 0)), (Conflict(10), Conflict(10)));
        assert_eq!((row.may_read(10), row.may_write(10, 0), row.above(false)), (Granted, Granted, None));
        row.settle(10, Ending::Abort);
        assert_eq!((row.may_read(5), row.may_write(11, 0)), (Granted, Granted), "nothing was written");
        row.saw(12);
        assert!(row.pin());
        assert_eq!((row.may_write(13, 0), row.may_write(12, 1), row.above(true)), (Wait, Granted, None));
        row.unpin();
        assert_eq!(row.may_write(13, 0), Granted);
    }

    #[test]
    fn liveness_changes_with_the_commit() {
        let absent = Header { word: 0, state: u64::from(ABSENT) };
        for (removed, ending, live) in
            [(false, Ending::Commit, true), (false, Ending::Abort, false), (true, Ending::Commit, false)]
        {
            let mut row = absent;
            row.hold(3);
            row.insert();
            assert!(row.is_live(), "its own insert is seen");
            if removed {
                row.remove();
            }
            row.settle(3, ending);
            row.settle(3, Ending::Commit);
            assert_eq!((row.is_live(), row.is_dirty()), (live, false));
        }
        let mut row = FRESH;
        row.hold(3);
        row.remove();
        assert!(row.is_live(), "it is there until the commit");
        row.settle(3, Ending::Commit);
        assert!(!row.is_live());
    }

    #[test]
    fn pins_end_where_their_bits_do() {
        let mut row = FRESH;
        row.saw(MAX_TIME);
        let pins = (0..5_000).take_while(|_| row.pin()).count();
        assert_eq!((pins as u64, row.read_time()), (MAX_PINS, MAX_TIME));
    }
}
