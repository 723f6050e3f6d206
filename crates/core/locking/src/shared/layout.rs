//! Where things lie in the segment of a table, and the header that says so.
//!
//! ```text
//! word 0       header: magic, format, lines, sessions, held lines of a session, placement, words in all, check word;
//!              crowd
//! word 64      a record of 16 words for each session: epoch, age, event, number of lines touched, process, ...
//! then         for each session the list of the lines that it touches: line + 1, mode, count
//! then         the lines, 8 words each, from a multiple of 4096 bytes on
//! ```
//!
//! All dimensions follow from four numbers, so a header is those numbers and a check word over them. The check word is
//! written last: a segment that was not finished, or is another's, is refused before anything in it is believed.

use lockwork_random::mix;

use super::SessionNumber;
use super::word::LINE_WORDS;

const MAGIC: u64 = u64::from_le_bytes(*b"LWLOCKS1");
const FORMAT: u64 = 1;
pub(super) const HEADER_WORDS: usize = 64;
pub(super) const SESSION_WORDS: usize = 16;
/// Lines begin at a multiple of this, a page.
const LINES_ALIGN_WORDS: usize = 512;
/// Keys that follow each other and this many at a time have neighbouring lines.
const NEIGHBOURS: u32 = 6;

/// How keys find their lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Placement {
    /// Any keys: hashed, but so that 64 keys that follow each other lie side by side and sequential locking runs
    /// through memory.
    #[default]
    Spread = 1,
    /// Keys that are small numbers: the key modulo the number of lines. No two of fewer keys than lines share one.
    Direct = 2,
}

/// The dimensions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lines, a power of two. Each takes 64 bytes.
    pub lines: u32,
    /// The most sessions at a time, from 1 to [`SessionNumber::MAX`].
    pub sessions: u16,
    /// The most lines that one session can hold or wait for. Each takes 8 bytes a session, where used.
    pub held: u32,
    /// How keys find their lines.
    pub placement: Placement,
}

/// A segment that is no table, or dimensions that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Dimensions that cannot be.
    #[error("{lines} lines are not possible; a power of two from 1 to {MAX_LINES} is")]
    Lines {
        /// Those asked for.
        lines: u32,
    },
    /// Dimensions that cannot be.
    #[error("{sessions} sessions are not possible; 1 to {max} are", max = SessionNumber::MAX)]
    Sessions {
        /// Those asked for.
        sessions: u16,
    },
    /// Dimensions that cannot be.
    #[error("a session cannot hold {held} of {lines} lines; 1 to {lines} are possible")]
    Held {
        /// Those asked for.
        held: u32,
        /// All lines.
        lines: u32,
    },
    /// Too little memory, or too much.
    #[error("the segment has {found} bytes; a table of these dimensions has {expected}")]
    Size {
        /// What there is.
        found: u64,
        /// What there should be.
        expected: u64,
    },
    /// Not a table.
    #[error("the segment is no lock table: it begins with {found:#018x}, a table with {MAGIC:#018x}")]
    Foreign {
        /// The first word.
        found: u64,
    },
    /// Another format.
    #[error(
        "the lock table has format {found}; this program knows format {FORMAT} only; use programs of one version, or create it anew"
    )]
    Format {
        /// Its format.
        found: u64,
    },
    /// The header is not what its check word says.
    #[error("the header of the lock table is damaged, or it was never finished; create it anew")]
    Header,
}

/// The most lines of a table: 128 GiB.
pub const MAX_LINES: u32 = 1 << 31;

impl Layout {
    /// A table with this many lines for any keys, of which one session may hold all.
    #[must_use]
    pub fn new(lines: u32, sessions: u16) -> Self {
        Self { lines, sessions, held: lines, placement: Placement::Spread }
    }

    /// Whether these dimensions can be.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn check(&self) -> Result<(), LayoutError> {
        if !self.lines.is_power_of_two() || self.lines > MAX_LINES {
            return Err(LayoutError::Lines { lines: self.lines });
        }
        if SessionNumber::new(self.sessions).is_none() {
            return Err(LayoutError::Sessions { sessions: self.sessions });
        }
        if self.held == 0 || self.held > self.lines {
            return Err(LayoutError::Held { held: self.held, lines: self.lines });
        }
        Ok(())
    }

    pub(super) fn list(&self, session: SessionNumber) -> usize {
        let lists = HEADER_WORDS + usize::from(self.sessions) * SESSION_WORDS;
        lists + session.index() * self.held as usize
    }

    pub(super) fn first_line(&self) -> usize {
        let lists = HEADER_WORDS + usize::from(self.sessions) * SESSION_WORDS;
        (lists + usize::from(self.sessions) * self.held as usize).next_multiple_of(LINES_ALIGN_WORDS)
    }

    /// Words of the segment.
    #[must_use]
    pub fn words(&self) -> usize {
        self.first_line() + self.lines as usize * LINE_WORDS
    }

    pub(super) fn header(&self) -> [u64; 8] {
        let words = self.words() as u64;
        let held = u64::from(self.held);
        let placement = self.placement as u64;
        let mut header = [MAGIC, FORMAT, self.lines.into(), self.sessions.into(), held, placement, words, 0];
        header[7] = header[..7].iter().fold(0, |sum: u64, word| mix(sum ^ word));
        header
    }

    /// Whether a segment that begins with this word is a table, of whichever format.
    #[must_use]
    pub fn is_magic(word: u64) -> bool {
        word == MAGIC
    }

    /// The dimensions that a header states, which need not be all of the segment yet.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_header(header: [u64; 8]) -> Result<Self, LayoutError> {
        if header[0] != MAGIC {
            return Err(LayoutError::Foreign { found: header[0] });
        }
        if header[1] != FORMAT {
            return Err(LayoutError::Format { found: header[1] });
        }
        let number = |word: usize| u32::try_from(header[word]).map_err(|_| LayoutError::Header);
        let layout = Self {
            lines: number(2)?,
            sessions: u16::try_from(header[3]).map_err(|_| LayoutError::Header)?,
            held: number(4)?,
            placement: if header[5] == Placement::Direct as u64 { Placement::Direct } else { Placement::Spread },
        };
        layout.check()?;
        if layout.header() == header { Ok(layout) } else { Err(LayoutError::Header) }
    }

    /// The line of a key.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, key: u64) -> u32 {
        let mask = self.lines - 1;
        if self.placement == Placement::Direct {
            return key as u32 & mask;
        }
        let groups_bits = self.lines.trailing_zeros().saturating_sub(NEIGHBOURS);
        let group = if groups_bits == 0 { 0 } else { (mix(key >> NEIGHBOURS) >> (64 - groups_bits)) as u32 };
        (group << NEIGHBOURS | key as u32 & ((1 << NEIGHBOURS) - 1)) & mask
    }
}
