//! Packets, byte by byte.
//!
//! Every packet is one UDP datagram: a header of 64 bytes and, where a kind says so, a payload. All numbers are
//! little-endian.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0..2 | magic | `4c 4b`, "LK" |
//! | 2 | version | 1 |
//! | 3 | zero | |
//! | 4..6 | rack | 0: the rack of the lock's decider, for clusters of several |
//! | 6..8 | requester | machine of the client that a request or grant is about |
//! | 8..16 | lock | number of the lock, from 0 |
//! | 16..24 | request | number of the request or operation: unique in its session, task in the upper half |
//! | 24..28 | requester session | session of the requester |
//! | 28..30 | length | bytes of payload behind the header, a multiple of 8 |
//! | 30 | part | part of an agent, from 0 |
//! | 31 | parts | how many parts the agent has; 0 if there is none. With ENROL, and the ACK of it: which enrolment |
//! | 32..40 | token | fencing token of a grant |
//! | 40..42 | sender | who sent it; in what a decider sends, the machine of the lock's agent |
//! | 42..44 | target | where it goes |
//! | 44..48 | incarnation | of the grant or operation it is about; in answers, of the decision word |
//! | 48..52 | session | session of the sender; 0 from a decider |
//! | 52 | kind | see [`Kind`] |
//! | 53 | flags | bits 0, 1 mode (1 shared, 3 exclusive); bit 2 [`AGENT`]; 3 [`GRANTED`]; 4 [`TRY`]; 5 [`BUSY`] |
//! | 54 | state | bits 0, 1 state of the decision word; bits 2 to 7 how often an early packet was sent back |
//! | 55 | zero | |
//! | 56..64 | tag | SipHash-1-3 with the cluster's key over bytes 0 to 54; 0 without a key |
//!
//! What a decider changes lies behind byte 32, so the hash of the first half serves packet and answer. Byte 55 is the
//! length that SipHash puts into its last word anyway, so the 55 bytes take seven words. A payload ends with 8 bytes of
//! its own: SipHash-1-3 over bytes 0 to 31 and the rest of the payload, 0 without a key. Deciders never look at
//! payloads.
//!
//! The payload of [`Kind::Move`] is the agent's queue: for each waiter, 16 bytes: machine (2), mode (1), 0 (1), session
//! (4), request (8).
//!
//! Table 2 of the paper has four kinds; the others are what its sections 4.2 and 6 need but do not name.

use crate::word::{Machine, State, Word};
use lockwork_locking::LockMode;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Bytes of a header.
pub const HEADER: usize = 64;
/// Most bytes of a packet: what an Ethernet frame carries in UDP over IPv6, with room for one tunnel.
pub const MAX_BYTES: usize = 1400;
/// Bytes 0 and 1.
pub const MAGIC: u16 = 0x4b4c;
/// Byte 2.
pub const VERSION: u8 = 1;

/// Flag: the grant comes with the agent.
pub const AGENT: u8 = 1 << 2;
/// Flag: the decider has granted this request; the agent has only to enter it.
pub const GRANTED: u8 = 1 << 3;
/// Flag: do not wait. The answer to what would have to is [`BUSY`].
pub const TRY: u8 = 1 << 4;
/// Flag of an acknowledgement: not granted, and not queued either.
pub const BUSY: u8 = 1 << 5;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// A client asks for a lock; sent on to the agent if there is one. With [`GRANTED`]: the decider has granted it.
    Acquire = 0,
    /// A client gives back what it holds, or withdraws what it waits for; sent on to the agent.
    Release = 1,
    /// An agent without participants gives the lock back to the decider.
    Free = 2,
    /// An agent hands itself over, or takes over anew if target and sender are one. As [`Kind::Grant`] with [`AGENT`]
    /// it reaches the target.
    Move = 3,
    /// An agent lets the decider add readers.
    Open = 4,
    /// An agent takes that back.
    Close = 5,
    /// A reader tells the agent what the decider granted, if the agent has not confirmed it.
    Enrol = 6,
    /// Is there a cycle of waiters? To the agent of the lock that a holder waits for.
    Seek = 7,
    /// The lock is yours: from a decider, or from an agent to one who waited.
    Grant = 8,
    /// The decider has done what an agent asked, or the agent no longer has the lock.
    Done = 9,
    /// The decider has not done it: incarnations differ, and `incarnation` has the decider's.
    Refused = 10,
    /// The target has taken care of it: of a request (queued, entered, released), a grant or an agent.
    Ack = 11,
    /// The decider could not: see [`Problem`], in the field `token`.
    Error = 12,
    /// Is there a cycle of waiters? From an agent to the machines of the holders.
    Probe = 13,
    /// A process wants to take part; answered by [`Kind::Welcome`].
    Join = 16,
    /// Number, session and settings for who joins.
    Welcome = 17,
    /// A session's sign of life; answered by [`Kind::Renewed`].
    Renew = 18,
    /// The lease runs from the sending of the renewal that is answered.
    Renewed = 19,
    /// A session ends; answered by [`Kind::Left`].
    Leave = 20,
    /// The session has ended.
    Left = 21,
    /// The registry to all: the machine `requester` is gone; enrol what its agents granted you. Answered by
    /// [`Kind::Swept`].
    Died = 22,
    /// The registry to all: enrol what you hold of `lock`. Answered by [`Kind::Swept`]. From an agent to the registry:
    /// ask all.
    Sweep = 23,
    /// Done: nothing granted until `incarnation` is unknown to the lock's agent.
    Swept = 24,
    /// Tell about a lock, or all of them; answered by [`Kind::Status`] with [`GRANTED`].
    Status = 25,
    /// The registry of a restored decider to a machine that took part: your session is `requester_session` from now on,
    /// tokens begin above `token`. Answered by [`Kind::Report`]s.
    Resume = 26,
    /// What a machine has of locks, in order and without gaps: see [`crate::report`]; answered by [`Kind::Reported`].
    Report = 27,
    /// The report with this number has arrived.
    Reported = 28,
    /// The registry to all: enrol what you hold from agents elsewhere; with [`GRANTED`]: everybody has, your agents
    /// decide. Answered by [`Kind::Swept`].
    Settle = 29,
    /// Which lock does a name mean? From a client that keeps the answer, or with [`TRY`] from anybody who does not. The
    /// answer has [`GRANTED`], and the lock.
    Name = 30,
    /// A client no longer keeps what a name means. The answer has [`GRANTED`].
    Unname = 31,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 30] = [
        Self::Acquire,
        Self::Release,
        Self::Free,
        Self::Move,
        Self::Open,
        Self::Close,
        Self::Enrol,
        Self::Seek,
        Self::Grant,
        Self::Done,
        Self::Refused,
        Self::Ack,
        Self::Error,
        Self::Probe,
        Self::Join,
        Self::Welcome,
        Self::Renew,
        Self::Renewed,
        Self::Leave,
        Self::Left,
        Self::Died,
        Self::Sweep,
        Self::Swept,
        Self::Status,
        Self::Resume,
        Self::Report,
        Self::Reported,
        Self::Settle,
        Self::Name,
        Self::Unname,
    ];

    /// The kinds below this number are decided on; those from 8 to 15 only sent on; the rest belongs to the registry.
    pub const DECIDED: u8 = 8;

    fn of_bits(bits: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == bits)
    }

    /// Whether a decider looks the lock up.
    #[must_use]
    pub const fn is_decided(self) -> bool {
        (self as u8) < Self::DECIDED
    }

    /// Whether it is for the registry or from it.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 >= 16
    }
}

/// What a [`Kind::Error`] says, in the field `token`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum Problem {
    /// There are fewer locks.
    NoSuchLock = 1,
    /// The sender's session has ended, or never was.
    NoSuchSession = 2,
    /// The target or the requester is not there.
    NoSuchMachine = 3,
    /// No machine number is free.
    Full = 4,
    /// The lock is free, so the sender does not hold it.
    NotHeld = 5,
    /// All locks that are for names have one.
    NamesFull = 6,
    /// The service has no locks for names.
    NoNames = 7,
    /// No lock has this name.
    NoSuchName = 8,
    /// Who joins has to wait until it can be written down who takes part.
    Waits = 9,
    /// Another decider decides on this lock: the payload says where. See [`crate::racks`].
    Moved = 10,
}

impl Problem {
    /// All problems.
    pub const ALL: [Self; 9] = [
        Self::NoSuchLock,
        Self::NoSuchSession,
        Self::NoSuchMachine,
        Self::Full,
        Self::NotHeld,
        Self::NamesFull,
        Self::NoNames,
        Self::NoSuchName,
        Self::Moved,
    ];

    /// The problem of a number.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|problem| *problem as u64 == number)
    }
}

/// The cluster's key for tags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(..)")
    }
}

/// A header. The payload travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// What it is.
    pub kind: Kind,
    /// Mode bits and flags.
    pub flags: u8,
    /// State of the decision word, for packets that a decider stamped.
    pub state: State,
    /// How often it was sent back, at most 63.
    pub hops: u8,
    /// The lock.
    pub lock: u64,
    /// Request or operation.
    pub request: u64,
    /// Whose request.
    pub requester: Machine,
    /// In which session.
    pub requester_session: u32,
    /// Who sent it; from a decider, where the agent is.
    pub sender: Machine,
    /// The sender's session; 0 from a decider.
    pub session: u32,
    /// Where it goes.
    pub target: Machine,
    /// See the table.
    pub incarnation: u32,
    /// Fencing token.
    pub token: u64,
    /// Part of an agent.
    pub part: u8,
    /// Parts of the agent.
    pub parts: u8,
}

impl Packet {
    /// A packet of `kind` about `lock`, everything else zero.
    #[must_use]
    pub const fn new(kind: Kind, lock: u64) -> Self {
        Self {
            kind,
            flags: 0,
            state: State::Free,
            hops: 0,
            lock,
            request: 0,
            requester: Machine(0),
            requester_session: 0,
            sender: Machine(0),
            session: 0,
            target: Machine(0),
            incarnation: 0,
            token: 0,
            part: 0,
            parts: 0,
        }
    }

    /// The mode, if one is given and the service knows it.
    #[must_use]
    pub const fn mode(&self) -> Option<LockMode> {
        match self.flags & 3 {
            1 => Some(LockMode::Shared),
            3 => Some(LockMode::Exclusive),
            _ => None,
        }
    }

    /// Whether `flag` is set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Stamps the decision word and the token.
    pub const fn stamp(&mut self, word: Word, token: u64) {
        self.state = word.state;
        self.sender = word.machine;
        self.session = 0;
        self.incarnation = word.incarnation;
        self.token = token;
    }

    /// Writes the header, with a tag if there is a key.
    #[must_use]
    pub fn header(&self, payload_bytes: usize, key: Option<&Key>) -> [u8; HEADER] {
        assert!(payload_bytes <= MAX_BYTES - HEADER && payload_bytes.is_multiple_of(8));
        let mut bytes = [0; HEADER];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = VERSION;
        bytes[6..8].copy_from_slice(&self.requester.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lock.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.requester_session.to_le_bytes());
        bytes[28..30].copy_from_slice(&(payload_bytes as u16).to_le_bytes());
        bytes[30] = self.part;
        bytes[31] = self.parts;
        bytes[32..40].copy_from_slice(&self.token.to_le_bytes());
        bytes[40..42].copy_from_slice(&self.sender.0.to_le_bytes());
        bytes[42..44].copy_from_slice(&self.target.0.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.session.to_le_bytes());
        bytes[52] = self.kind as u8;
        bytes[53] = self.flags;
        bytes[54] = self.state as u8 | self.hops << 2;
        let tag = tag(&bytes, key);
        bytes[56..64].copy_from_slice(&tag.to_le_bytes());
        bytes
    }
}

fn tag(bytes: &[u8; HEADER], key: Option<&Key>) -> u64 {
    key.map_or(0, |key| {
        let mut hasher = SipHasher13::new_with_key(&key.0);
        hasher.write(&bytes[..55]);
        hasher.finish()
    })
}

/// Why bytes are no packet. Nothing is changed by such; receivers count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than a header, or not as many as the header says.
    #[error("the length is wrong")]
    Length,
    /// Not "LK".
    #[error("not a packet of the lock service")]
    Magic,
    /// Another version.
    #[error("another version of the protocol: {0} instead of {VERSION}")]
    Version(u8),
    /// The tag is not that of the cluster's key.
    #[error("the key is another one")]
    Tag,
    /// An unknown kind, a bit that must be zero, or a mode that there is not.
    #[error("a field has a value that it cannot have")]
    Field,
}

/// Reads a packet: header and payload.
///
/// # Errors
/// [`Malformed`], checked in the order length, magic, version, tag, fields.
pub fn parse<'a>(bytes: &'a [u8], key: Option<&Key>) -> Result<(Packet, &'a [u8]), Malformed> {
    let (header, payload) = bytes.split_first_chunk::<HEADER>().ok_or(Malformed::Length)?;
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    if u16_at(28) as usize != payload.len() || !payload.len().is_multiple_of(8) || bytes.len() > MAX_BYTES {
        return Err(Malformed::Length);
    }
    if u16_at(0) != MAGIC {
        return Err(Malformed::Magic);
    }
    if header[2] != VERSION {
        return Err(Malformed::Version(header[2]));
    }
    if u64_at(56) != tag(header, key) {
        return Err(Malformed::Tag);
    }
    let kind = Kind::of_bits(header[52]).ok_or(Malformed::Field)?;
    let flags = header[53];
    let needs_mode = matches!(kind, Kind::Acquire | Kind::Move | Kind::Enrol);
    let mode = flags & 3;
    let modes_right = mode == 1 || mode == 3 || (mode == 0 && !needs_mode);
    if header[3] != 0 || header[55] != 0 || u16_at(4) != 0 || flags >> 6 != 0 || !modes_right {
        return Err(Malformed::Field);
    }
    let packet = Packet {
        kind,
        flags,
        state: State::of_bits(header[54]),
        hops: header[54] >> 2,
        lock: u64_at(8),
        request: u64_at(16),
        requester: Machine(u16_at(6)),
        requester_session: u32_at(24),
        sender: Machine(u16_at(40)),
        session: u32_at(48),
        target: Machine(u16_at(42)),
        incarnation: u32_at(44),
        token: u64_at(32),
        part: header[30],
        parts: header[31],
    };
    Ok((packet, payload))
}

/// One who waits, as an agent keeps it and as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// Whose machine.
    pub machine: Machine,
    /// In which session.
    pub session: u32,
    /// Which request.
    pub request: u64,
    /// For what.
    pub mode: LockMode,
}

impl Waiter {
    /// Bytes in a payload.
    pub const BYTES: usize = 16;
    /// How many fit into one packet.
    pub const A_PACKET: usize = (MAX_BYTES - HEADER - 8) / Self::BYTES;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.machine.0.to_le_bytes());
        bytes.extend_from_slice(&[self.mode as u8, 0]);
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&self.request.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mode = match bytes[2..4] {
            [1, 0] => LockMode::Shared,
            [3, 0] => LockMode::Exclusive,
            _ => return None,
        };
        Some(Self {
            machine: Machine(u16::from_le_bytes([bytes[0], bytes[1]])),
            session: u32::from_le_bytes(bytes[4..8].try_into().ok()?),
            request: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
            mode,
        })
    }
}

fn payload_tag(header: &[u8], body: &[u8], key: Option<&Key>) -> u64 {
    key.map_or(0, |key| {
        let mut hasher = SipHasher13::new_with_key(&key.0);
        hasher.write(&header[..32]);
        hasher.write(body);
        hasher.finish()
    })
}

/// A whole datagram: header, `body` and the body's tag. Without a body there is no payload.
///
/// # Panics
/// If the body is not a multiple of 8 bytes, or the datagram would be longer than [`MAX_BYTES`].
#[must_use]
pub fn datagram(packet: &Packet, body: &[u8], key: Option<&Key>) -> Vec<u8> {
    if body.is_empty() {
        return packet.header(0, key).to_vec();
    }
    let payload_bytes = body.len() + 8;
    assert!(body.len().is_multiple_of(8) && HEADER + payload_bytes <= MAX_BYTES, "a body of {} bytes", body.len());
    let mut bytes = Vec::with_capacity(HEADER + payload_bytes);
    bytes.extend_from_slice(&packet.header(payload_bytes, key));
    bytes.extend_from_slice(body);
    let tag = payload_tag(&bytes, body, key);
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes
}

/// The body of a payload, without its tag. `header` is the datagram's.
///
/// # Errors
/// [`Malformed::Length`] if there is no room for a tag, [`Malformed::Tag`] if it is not right.
pub fn body<'a>(datagram: &'a [u8], key: Option<&Key>) -> Result<&'a [u8], Malformed> {
    let payload = &datagram[HEADER.min(datagram.len())..];
    if payload.is_empty() {
        return Ok(payload);
    }
    let (body, tag) = payload.split_last_chunk::<8>().ok_or(Malformed::Length)?;
    if u64::from_le_bytes(*tag) != payload_tag(datagram, body, key) {
        return Err(Malformed::Tag);
    }
    Ok(body)
}

/// Reads a packet that has arrived where it was to: header and body. Deciders, which never look at payloads, only
/// [`parse`].
///
/// # Errors
/// As for [`parse`], and then for [`body`].
pub fn parse_whole<'a>(bytes: &'a [u8], key: Option<&Key>) -> Result<(Packet, &'a [u8]), Malformed> {
    let (packet, _) = parse(bytes, key)?;
    Ok((packet, body(bytes, key)?))
}

/// Waiters as a body.
#[must_use]
pub fn waiters_to_body(waiters: &[Waiter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(waiters.len() * Waiter::BYTES);
    waiters.iter().for_each(|waiter| waiter.write(&mut bytes));
    bytes
}

/// Waiters of a body.
///
/// # Errors
/// [`Malformed::Length`] if it is not a number of waiters, [`Malformed::Field`] if one has no mode that there is.
pub fn waiters_of_body(body: &[u8]) -> Result<Vec<Waiter>, Malformed> {
    if !body.len().is_multiple_of(Waiter::BYTES) {
        return Err(Malformed::Length);
    }
    body.chunks_exact(Waiter::BYTES).map(|bytes| Waiter::read(bytes).ok_or(Malformed::Field)).collect()
}
