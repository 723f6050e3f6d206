//! The shared lock table: a hash table of 64-byte lines in memory that processes share, and that the locks of host and
//! smart storage lie in (neoDBMS, section 3).
//!
//! A line is one lock, with its decision word in front and its participants behind it: whoever holds it, and up to
//! seven entries that wait, in order. Every step is a compare-and-swap of one word of that line, so a lock that is free
//! costs one, and a line that two sides fight for goes to and fro as a whole and nothing else does.
//!
//! | module | idea |
//! |---|---|
//! | [`memory`] | words, by index: mapped, explored by loom or shuttle, delayed, or deadly |
//! | `word` | how the words of a line are laid out |
//! | `line` | the protocol of one line |
//! | `layout` | header, sessions, lines in one segment |
//! | `request` | what is asked, and what is answered |
//! | [`table`] | requests and waiting |
//! | `others` | what is done for a session: the clean-up after a death |
//!
//! **A worked timeline**, one line, sessions 1 (host) and 2 (storage):
//!
//! ```text
//! 1 takes it       control: owner 1 exclusive
//! 2 asks           slot 0: 2 exclusive, ticket 0       control: length 1, tail 1
//! 1 lets go        control: owner 2 exclusive, length 0; session 2 is woken, or sees it in its cached copy
//! 2 dies           control: owner 2 exclusive; its held list names this line
//! 3 cleans up      control: owner none
//! ```
//!
//! **What differs from the paper, and why**:
//! - The paper shifts eight slots when the holder goes, which is not atomic against one who queues up. Here a ring is
//!   read under the version of the control word; nothing is ever shifted.
//! - The paper's slots hold the time stamps of transactions. Here they hold sessions, so that a session that asks for
//!   two records of one line finds itself there instead of waiting for itself, and a dead one can be found.
//! - Shared and intent modes: readers are bits of a slot, 32 to a slot, so a line has room for a crowd of them.
//! - Wait-die by the ages of sessions, so no circle closes; a session that holds nothing may always wait, since nobody
//!   can wait for it.
//! - A session writes down which lines it touches before it touches them. When it has died, that list, and no search of
//!   the table, says what to clean up.
//!
//! **Limits.** 4095 sessions. Two keys of one line exclude each other although they need not; more lines make that
//! rare. Who finds the ring full waits for a place, and places are not given out in order.

mod layout;
mod line;
pub mod memory;
mod others;
mod request;
pub mod table;
mod word;

#[cfg(all(test, not(loom)))]
mod tests;

pub use layout::{Layout, LayoutError, MAX_LINES, Placement};
pub use request::{Step, TableError, WaitPolicy};
pub use table::{Session, Table};
pub use word::LINE_WORDS;

/// A session of a table, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(u16);

impl SessionNumber {
    /// The largest.
    pub const MAX: u16 = 4095;

    /// The session of this number, from 1 to [`Self::MAX`].
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number)) }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits as u16))
    }

    #[inline(always)]
    const fn bits(self) -> u64 {
        self.0 as u64
    }

    fn index(self) -> usize {
        usize::from(self.0) - 1
    }
}

/// Somebody has a reason to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// This session may have been granted what it waits for.
    Session(SessionNumber),
    /// Whoever waits for a place in this line may find one.
    Crowd,
}

/// A line that contains what nobody wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line} of the lock table is damaged: {what} (words {words:x?}); another program has written into the segment; \
     stop all that use it and create it anew"
)]
pub struct Damage {
    /// Which line.
    pub line: u32,
    /// What cannot be.
    pub what: &'static str,
    /// What stands there.
    pub words: [u64; LINE_WORDS],
}
