//! The words of a line.
//!
//! ```text
//! word 0, control      bits  0..2    mode of the owner, 0 none
//!                      bits  2..14   owner, a session number, 0 none
//!                      bits 14..17   length of the ring
//!                      bit  17       crowded: somebody waits for a place in the ring
//!                      bits 18..41   tail: the ticket of the next entry, modulo 7 * 2^20
//!                      bits 41..64   version: grows with every change of this word
//!
//! words 1 to 7, slots  bits  0..2    mode, 0 vacated
//!                      bits  2..25   ticket
//!   one writer         bits 25..37   session
//!   a group            bits 25..32   block
//!                      bits 32..64   members: bit i is session 32 * block + i
//! ```
//!
//! The entry with ticket *t* lies in slot 1 + *t* mod 7. The ring is the *length* entries before the tail. A slot
//! outside the ring means nothing, except that one with the tail's ticket is about to become the next entry. A slot
//! that is zero was never used. Each ticket is written once; after that a writer's entry can only be vacated, and a
//! group gets members only while it has some. So what is vacated stays so, and a slot that looks as before has been so
//! all the time.
//!
//! A swap could be deceived by a word that has come back to an old value: the control word after exactly a multiple of
//! 2^23 changes that leave the ring where it was, a slot after exactly a multiple of 7 * 2^20 entries and the same
//! session in it, all between two neighbouring instructions of one thread.

use super::SessionNumber;
use crate::LockMode;

/// Slots of a line.
pub(super) const SLOTS: u32 = 7;
/// Words of a line: 64 bytes.
pub const LINE_WORDS: usize = 8;
/// Tickets are counted modulo this, a multiple of the number of slots.
const TICKETS: u32 = SLOTS << 20;
/// Sessions of a block.
const BLOCK: u64 = 32;

const MODE_MASK: u64 = 3;
const OWNER_SHIFT: u32 = 2;
const SESSION_MASK: u64 = SessionNumber::MAX as u64;
const LENGTH_SHIFT: u32 = 14;
const LENGTH_MASK: u64 = 7;
const CROWDED: u64 = 1 << 17;
const TAIL_SHIFT: u32 = 18;
const TICKET_MASK: u64 = (1 << 23) - 1;
const VERSION_SHIFT: u32 = 41;

const TICKET_SHIFT: u32 = 2;
const WHO_SHIFT: u32 = 25;
const BLOCK_MASK: u64 = (1 << 7) - 1;
const MEMBERS_SHIFT: u32 = 32;

fn mode_of(bits: u64) -> Option<LockMode> {
    match bits & MODE_MASK {
        1 => Some(LockMode::Shared),
        2 => Some(LockMode::IntentExclusive),
        3 => Some(LockMode::Exclusive),
        _ => None,
    }
}

/// A ticket, modulo [`TICKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u32);

impl Ticket {
    /// The ticket `by` behind this one.
    pub(super) fn plus(self, by: u32) -> Self {
        Self((self.0 + by) % TICKETS)
    }

    fn minus(self, by: u32) -> Self {
        Self((self.0 + TICKETS - by) % TICKETS)
    }

    /// The word of its slot, in the line.
    pub(super) fn word(self) -> usize {
        1 + (self.0 % SLOTS) as usize
    }
}

/// The control word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Control(pub(super) u64);

impl Control {
    /// Who holds the lock outside the ring.
    #[inline(always)]
    pub(super) fn owner(self) -> Option<(SessionNumber, LockMode)> {
        let session = SessionNumber::from_bits(self.0 >> OWNER_SHIFT & SESSION_MASK)?;
        mode_of(self.0).map(|mode| (session, mode))
    }

    /// Whether owner and mode are both there or both not, and the owner is one of that many sessions.
    pub(super) fn is_sound(self, sessions: u16) -> bool {
        let owner = self.0 >> OWNER_SHIFT & SESSION_MASK;
        (owner == 0) == (self.0 & MODE_MASK == 0)
            && owner <= u64::from(sessions)
            && self.0 >> TAIL_SHIFT & TICKET_MASK < u64::from(TICKETS)
    }

    /// Whether nobody holds the lock and nobody waits.
    #[inline(always)]
    pub(super) fn is_free(self) -> bool {
        self.0 & (CROWDED - 1) == 0
    }

    /// Entries of the ring.
    #[inline(always)]
    pub(super) fn length(self) -> u32 {
        (self.0 >> LENGTH_SHIFT & LENGTH_MASK) as u32
    }

    /// The ticket of the next entry.
    pub(super) fn tail(self) -> Ticket {
        Ticket((self.0 >> TAIL_SHIFT & TICKET_MASK) as u32)
    }

    /// The ticket of the first entry.
    pub(super) fn head(self) -> Ticket {
        self.tail().minus(self.length())
    }

    /// Whether a ticket is in the ring.
    pub(super) fn contains(self, ticket: Ticket) -> bool {
        let behind = (self.tail().0 + TICKETS - ticket.0) % TICKETS;
        (1..=self.length()).contains(&behind)
    }

    /// Whether somebody waits for a place.
    pub(super) fn is_crowded(self) -> bool {
        self.0 & CROWDED != 0
    }

    /// The next version.
    #[inline(always)]
    pub(super) fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << VERSION_SHIFT))
    }

    #[inline(always)]
    pub(super) fn with_owner(self, owner: Option<(SessionNumber, LockMode)>) -> Self {
        let bits = owner.map_or(0, |(session, mode)| session.bits() << OWNER_SHIFT | mode as u64);
        Self(self.0 & !(SESSION_MASK << OWNER_SHIFT | MODE_MASK) | bits)
    }

    pub(super) fn with_crowded(self, crowded: bool) -> Self {
        Self(if crowded { self.0 | CROWDED } else { self.0 & !CROWDED })
    }

    fn with_ring(self, length: u32, tail: Ticket) -> Self {
        let rest = self.0 & !(LENGTH_MASK << LENGTH_SHIFT | TICKET_MASK << TAIL_SHIFT);
        Self(rest | u64::from(length) << LENGTH_SHIFT | u64::from(tail.0) << TAIL_SHIFT)
    }

    /// One entry more, behind all others.
    pub(super) fn grown(self) -> Self {
        assert!(self.length() < SLOTS, "a full ring does not grow");
        self.with_ring(self.length() + 1, self.tail().plus(1))
    }

    /// The first `entries` less.
    pub(super) fn shrunk(self, entries: u32) -> Self {
        self.with_ring(self.length() - entries, self.tail())
    }

    /// Not crowded if there is room. Whoever writes this wakes those who wait for a place.
    pub(super) fn roomy(self) -> Self {
        self.with_crowded(self.is_crowded() && self.length() == SLOTS)
    }
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

impl Slot {
    /// The entry of one session, alone.
    pub(super) fn new(ticket: Ticket, session: SessionNumber, mode: LockMode) -> Self {
        let who = if mode == LockMode::Exclusive {
            session.bits() << WHO_SHIFT
        } else {
            ((session.bits() / BLOCK) << WHO_SHIFT) | 1 << (u64::from(MEMBERS_SHIFT) + session.bits() % BLOCK)
        };
        Self(who | u64::from(ticket.0) << TICKET_SHIFT | mode as u64)
    }

    pub(super) fn ticket(self) -> Ticket {
        Ticket((self.0 >> TICKET_SHIFT & TICKET_MASK) as u32)
    }

    /// The mode, unless it is vacated.
    pub(super) fn mode(self) -> Option<LockMode> {
        mode_of(self.0)
    }

    /// Whether anybody is in it.
    pub(super) fn is_live(self) -> bool {
        match self.mode() {
            None => false,
            Some(LockMode::Exclusive) => true,
            Some(_) => self.0 >> MEMBERS_SHIFT != 0,
        }
    }

    /// Whether all who are in it are of that many sessions.
    pub(super) fn is_sound(self, sessions: u16) -> bool {
        let (first, last) = match self.mode() {
            None => return true,
            Some(LockMode::Exclusive) => (self.0 >> WHO_SHIFT & SESSION_MASK, self.0 >> WHO_SHIFT & SESSION_MASK),
            Some(_) => {
                let block = (self.0 >> WHO_SHIFT & BLOCK_MASK) * BLOCK;
                let members = (self.0 >> MEMBERS_SHIFT) as u32;
                if members == 0 {
                    return true;
                }
                (block + u64::from(members.trailing_zeros()), block + 31 - u64::from(members.leading_zeros()))
            }
        };
        first > 0 && last <= u64::from(sessions)
    }

    /// Whether an entry with this ticket has been written here, vacated or not.
    pub(super) fn is_entry(self, ticket: Ticket) -> bool {
        self.0 != 0 && self.ticket() == ticket
    }

    /// Whether an entry with this ticket can be written over it: it is what the round before left, or nothing yet.
    pub(super) fn is_vacant_for(self, ticket: Ticket) -> bool {
        if self.0 == 0 { ticket.0 < SLOTS } else { self.ticket() == ticket.minus(SLOTS) }
    }

    /// The bit of a session, if it can be a member of this group.
    fn bit(self, session: SessionNumber) -> Option<u64> {
        let is_group = matches!(self.mode(), Some(LockMode::Shared | LockMode::IntentExclusive));
        let same_block = self.0 >> WHO_SHIFT & BLOCK_MASK == session.bits() / BLOCK;
        (is_group && same_block).then(|| 1 << (u64::from(MEMBERS_SHIFT) + session.bits() % BLOCK))
    }

    /// Whether the session is in it.
    pub(super) fn has(self, session: SessionNumber) -> bool {
        match self.mode() {
            Some(LockMode::Exclusive) => self.0 >> WHO_SHIFT & SESSION_MASK == session.bits(),
            _ => self.bit(session).is_some_and(|bit| self.0 & bit != 0),
        }
    }

    /// Whether the session, and nobody else, is in it.
    pub(super) fn has_only(self, session: SessionNumber) -> bool {
        self.has(session) && !self.without(session).is_live()
    }

    /// With the session in it too, if it is a group of that mode which has a place for it, and not vacated: those
    /// behind a vacated one may hold the lock already.
    pub(super) fn joined(self, session: SessionNumber, mode: LockMode) -> Option<Self> {
        let bit = self.bit(session)?;
        (self.mode() == Some(mode) && self.is_live()).then_some(Self(self.0 | bit))
    }

    /// Without the session, which is in it.
    pub(super) fn without(self, session: SessionNumber) -> Self {
        match self.bit(session) {
            Some(bit) => Self(self.0 & !bit),
            None => Self(self.0 & !MODE_MASK),
        }
    }

    /// All sessions in it.
    pub(super) fn sessions(self) -> impl Iterator<Item = SessionNumber> {
        let (members, writer) = match self.mode() {
            None => (0, None),
            Some(LockMode::Exclusive) => (0, Some(self.0 >> WHO_SHIFT & SESSION_MASK)),
            Some(_) => (self.0 >> MEMBERS_SHIFT, None),
        };
        let first = (self.0 >> WHO_SHIFT & BLOCK_MASK) * BLOCK;
        let grouped = (0..BLOCK).filter(move |bit| members >> bit & 1 != 0).map(move |bit| first + bit);
        writer.into_iter().chain(grouped).filter_map(SessionNumber::from_bits)
    }
}
