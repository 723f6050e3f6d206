//! Bodies of control packets, byte by byte: what [`Kind::Welcome`](crate::packet::Kind::Welcome),
//! [`Kind::Status`](crate::packet::Kind::Status) and [`Kind::Name`](crate::packet::Kind::Name) carry, and an ERROR that
//! says where to ask.
//!
//! All numbers are little-endian, all lengths multiples of eight. A body that is longer than what is known here is read
//! as far as it is known, so a later version may add fields at the end without a new version of the packet.
//!
//! *Status of one lock.* The answer of the registry has no body: its header holds the decision word and the token. If a
//! machine has the agent, the registry sends the question on to it, and its answer ([`Participant`]s) comes as a second
//! one. *Status of all* ([`ALL_LOCKS`]): the registry answers with a [`Summary`], and every machine with its
//! [`Busiest`] locks.

use crate::names::LONGEST;
use crate::packet::{HEADER, MAX_BYTES, Malformed, Waiter};
use crate::word::{Machine, Profile};
use lockwork_locking::LockMode;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The number in the field `lock` of a status packet that is about no lock in particular.
pub const ALL_LOCKS: u64 = u64::MAX;

/// Most bytes of a body.
const MAX_BODY: usize = MAX_BYTES - HEADER - 8;

/// What a service is like, for who joins.
///
/// | bytes | field |
/// |---|---|
/// | 0..8 | locks |
/// | 8..12 | lease in ms |
/// | 12 | profile: 0 lean, 1 wide |
/// | 13 | writers first: 0 or 1 |
/// | 14 | 1 if there are locks beyond these, which managers keep ([`crate::beyond`]); otherwise 0 |
/// | 15 | zero |
/// | 16..24 | how many locks, the last ones, are for names; a service without names may leave this out |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// How many locks there are.
    pub locks: u64,
    /// For how long a session lives after its last renewal.
    pub lease_ms: u32,
    /// How wide its words are.
    pub profile: Profile,
    /// Readers do not pass a writer that waits.
    pub writers_first: bool,
    /// How many locks, the last ones, are for names.
    pub names: u64,
    /// There are locks beyond these, which managers keep; see [`crate::beyond`].
    pub beyond: bool,
}

impl Service {
    /// As a body.
    #[must_use]
    pub fn to_body(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.locks.to_le_bytes());
        bytes.extend_from_slice(&self.lease_ms.to_le_bytes());
        bytes.extend_from_slice(&[
            (self.profile == Profile::Wide).into(),
            self.writers_first.into(),
            self.beyond.into(),
            0,
        ]);
        bytes.extend_from_slice(&self.names.to_le_bytes());
        bytes
    }

    /// From a body.
    ///
    /// # Errors
    /// [`Malformed::Length`] if it is too short, [`Malformed::Field`] if a field has a value that is not in the table.
    pub fn of_body(body: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; 16] = body.first_chunk().ok_or(Malformed::Length)?;
        let profile = match bytes[12] {
            0 => Profile::Lean,
            1 => Profile::Wide,
            _ => return Err(Malformed::Field),
        };
        if bytes[13] > 1 || bytes[14] > 1 {
            return Err(Malformed::Field);
        }
        let (locks, lease_ms) = (number(&bytes[..8]), number(&bytes[8..12]) as u32);
        let names = body.get(16..24).map_or(0, number);
        if names > locks {
            return Err(Malformed::Field);
        }
        Ok(Self { locks, lease_ms, profile, writers_first: bytes[13] == 1, names, beyond: bytes[14] == 1 })
    }
}

/// A name as a body: its length in one byte, its bytes, and zeros up to a multiple of eight. An empty one is no name.
///
/// # Panics
/// If it is longer than [`LONGEST`].
#[must_use]
pub fn name_to_body(name: &str) -> Vec<u8> {
    assert!(name.len() <= LONGEST, "a name of {} bytes", name.len());
    let mut bytes = Vec::with_capacity((1 + name.len()).next_multiple_of(8));
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// The name of a body.
///
/// # Errors
/// [`Malformed::Length`] if the body has not the length of its name, [`Malformed::Field`] if the name is no UTF-8, or
/// what follows it is not zero.
pub fn name_of_body(body: &[u8]) -> Result<&str, Malformed> {
    let (length, rest) = body.split_first().ok_or(Malformed::Length)?;
    let length = usize::from(*length);
    if body.len() != (1 + length).next_multiple_of(8) {
        return Err(Malformed::Length);
    }
    let (name, zeros) = rest.split_at(length);
    if zeros.iter().any(|byte| *byte != 0) {
        return Err(Malformed::Field);
    }
    std::str::from_utf8(name).map_err(|_| Malformed::Field)
}

/// Where a decider is, as a body: 16 bytes of an IPv6 address, or one of IPv4 mapped into it, the port, and zeros.
#[must_use]
pub fn address_to_body(address: SocketAddr) -> Vec<u8> {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = ip.octets().to_vec();
    bytes.extend_from_slice(&u64::from(address.port()).to_le_bytes());
    bytes
}

/// The address of a body.
///
/// # Errors
/// [`Malformed::Length`] if it has not 24 bytes, [`Malformed::Field`] if what follows the port is not zero.
pub fn address_of_body(body: &[u8]) -> Result<SocketAddr, Malformed> {
    let (ip, port) = body.split_first_chunk::<16>().ok_or(Malformed::Length)?;
    if port.len() != 8 {
        return Err(Malformed::Length);
    }
    let port = u16::try_from(number(port)).map_err(|_| Malformed::Field)?;
    Ok(SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), port))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// One who holds a lock or waits for it, as an agent tells people: the 16 bytes of a [`Waiter`], with 1 in byte 3 if it
/// holds. The registry sends it on without the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Who.
    pub who: Waiter,
    /// It holds the lock; otherwise it waits.
    pub holds: bool,
}

impl Participant {
    /// As a body: as many as fit, holders and waiters in the order given.
    #[must_use]
    pub fn to_body(all: &[Self]) -> Vec<u8> {
        let all = &all[..all.len().min(MAX_BODY / Waiter::BYTES)];
        let mut bytes = Vec::with_capacity(all.len() * Waiter::BYTES);
        for Self { who, holds } in all {
            bytes.extend_from_slice(&who.machine.0.to_le_bytes());
            bytes.extend_from_slice(&[who.mode as u8, u8::from(*holds)]);
            bytes.extend_from_slice(&who.session.to_le_bytes());
            bytes.extend_from_slice(&who.request.to_le_bytes());
        }
        bytes
    }

    /// Overwrites the sessions in a body with zeros. Whoever asks about a lock needs no session, and the registry
    /// answers everybody: with the session of a holder, another client could send packets in its name.
    pub(crate) fn hide_sessions(body: &mut [u8]) {
        body.chunks_exact_mut(Waiter::BYTES).for_each(|one| one[4..8].fill(0));
    }

    /// From a body.
    ///
    /// # Errors
    /// [`Malformed::Length`] if it is not a number of participants, [`Malformed::Field`] if one has an unknown mode.
    pub fn of_body(body: &[u8]) -> Result<Vec<Self>, Malformed> {
        if !body.len().is_multiple_of(Waiter::BYTES) {
            return Err(Malformed::Length);
        }
        let one = |bytes: &[u8]| {
            let mode = match bytes[2] {
                1 => LockMode::Shared,
                3 => LockMode::Exclusive,
                _ => return Err(Malformed::Field),
            };
            let (machine, session) = (Machine(number(&bytes[..2]) as u16), number(&bytes[4..8]) as u32);
            let who = Waiter { machine, session, request: number(&bytes[8..16]), mode };
            Ok(Self { who, holds: bytes[3] == 1 })
        };
        body.chunks_exact(Waiter::BYTES).map(one).collect()
    }
}

/// A lock with an agent, as its machine tells people: lock (8 bytes), holders (4), waiters (4), token (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busiest {
    /// The lock.
    pub lock: u64,
    /// How many hold it.
    pub holders: u32,
    /// How many wait.
    pub waiters: u32,
    /// The newest token: how fast it grows says how fast the lock goes from writer to writer.
    pub token: u64,
}

impl Busiest {
    const BYTES: usize = 24;

    /// As a body: those with most waiters, then most holders, then the largest token; as many as fit.
    #[must_use]
    pub fn to_body(mut all: Vec<Self>) -> Vec<u8> {
        all.sort_by_key(|one| std::cmp::Reverse((one.waiters, one.holders, one.token)));
        all.truncate(MAX_BODY / Self::BYTES);
        let mut bytes = Vec::with_capacity(all.len() * Self::BYTES);
        for one in all {
            bytes.extend_from_slice(&one.lock.to_le_bytes());
            bytes.extend_from_slice(&one.holders.to_le_bytes());
            bytes.extend_from_slice(&one.waiters.to_le_bytes());
            bytes.extend_from_slice(&one.token.to_le_bytes());
        }
        bytes
    }

    /// From a body.
    ///
    /// # Errors
    /// [`Malformed::Length`] if it is not a number of locks.
    pub fn of_body(body: &[u8]) -> Result<Vec<Self>, Malformed> {
        if !body.len().is_multiple_of(Self::BYTES) {
            return Err(Malformed::Length);
        }
        let one = |bytes: &[u8]| Self {
            lock: number(&bytes[..8]),
            holders: number(&bytes[8..12]) as u32,
            waiters: number(&bytes[12..16]) as u32,
            token: number(&bytes[16..24]),
        };
        Ok(body.chunks_exact(Self::BYTES).map(one).collect())
    }
}

/// What the registry knows of the service as a whole: eight bytes each, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// How many locks there are.
    pub locks: u64,
    /// Machines that live.
    pub machines: u64,
    /// Machines that are gone and not yet swept.
    pub gone: u64,
    /// Packets decided on or sent on.
    pub decisions: u64,
    /// Locks granted by the decider.
    pub grants: u64,
    /// Packets that were dropped, whatever the cause.
    pub dropped: u64,
    /// Sessions ended because nothing was heard of them.
    pub expired: u64,
    /// Machines that have not reported to a decider that was restored.
    pub recovering: u64,
    /// Whether who takes part can be written down now; `None` if it is not. In bytes 2, 1 and 0.
    pub records: Option<bool>,
    /// For how many milliseconds it cannot.
    pub away_ms: u64,
    /// Machines that join and are not written down yet; they are among those that live.
    pub joining: u64,
    /// Names that are not written down, or struck out, yet.
    pub names_under_way: u64,
}

impl Summary {
    /// As a body.
    #[must_use]
    pub fn to_body(self) -> Vec<u8> {
        let Self { locks, machines, gone, decisions, grants, dropped, expired, recovering, records, .. } = self;
        let Self { away_ms, joining, names_under_way, .. } = self;
        let records = records.map_or(0, |answer| 1 + u64::from(answer));
        let first = [locks, machines, gone, decisions, grants, dropped];
        let then = [expired, recovering, records, away_ms, joining, names_under_way];
        first.iter().chain(&then).flat_map(|field| field.to_le_bytes()).collect()
    }

    /// From a body.
    ///
    /// # Errors
    /// [`Malformed::Length`] if it is too short.
    pub fn of_body(body: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; 96] = body.first_chunk().ok_or(Malformed::Length)?;
        let field = |at: usize| number(&bytes[8 * at..8 * at + 8]);
        Ok(Self {
            locks: field(0),
            machines: field(1),
            gone: field(2),
            decisions: field(3),
            grants: field(4),
            dropped: field(5),
            expired: field(6),
            recovering: field(7),
            records: field(8).checked_sub(1).map(|answer| answer > 0),
            away_ms: field(9),
            joining: field(10),
            names_under_way: field(11),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_survive_their_bytes_and_too_short_ones_are_refused() {
        let (locks, lease_ms, profile) = (1 << 40, 2000, Profile::Wide);
        let service = Service { locks, lease_ms, profile, writers_first: true, names: 7, beyond: true };
        assert_eq!(Service::of_body(&service.to_body()), Ok(service));
        assert_eq!(Service::of_body(&service.to_body()[..16]), Ok(Service { names: 0, ..service }));
        assert_eq!(Service::of_body(&service.to_body()[..8]), Err(Malformed::Length));
        let mut wrong = service.to_body();
        wrong[13] = 2;
        assert_eq!(Service::of_body(&wrong), Err(Malformed::Field));

        let who = Waiter { machine: Machine(0x1234), session: 77, request: 1 << 50 | 3, mode: LockMode::Exclusive };
        let all = [Participant { who, holds: true }, Participant { who, holds: false }];
        assert_eq!(Participant::of_body(&Participant::to_body(&all)).unwrap(), all);
        assert_eq!(Participant::of_body(&[0; 8]), Err(Malformed::Length));
        assert_eq!(Participant::of_body(&[0; 16]), Err(Malformed::Field));

        let (decisions, grants, dropped, expired) = (4, 5, 6, 7);
        let summary = Summary {
            locks: 1,
            machines: 2,
            gone: 3,
            decisions,
            grants,
            dropped,
            expired,
            recovering: 8,
            records: Some(false),
            away_ms: 9,
            joining: 10,
            names_under_way: 11,
        };
        assert_eq!(Summary::of_body(&summary.to_body()), Ok(summary));
    }

    #[test]
    fn names_survive_their_bytes_and_others_are_refused() {
        for name in ["", "a", "orders", "orders/1", "größe", &"x".repeat(LONGEST)] {
            let body = name_to_body(name);
            assert!(body.len().is_multiple_of(8) && body.len() > name.len() && body.len() <= name.len() + 8);
            assert_eq!(name_of_body(&body), Ok(name));
        }
        assert_eq!(name_of_body(&[]), Err(Malformed::Length));
        assert_eq!(name_of_body(&[8, 0, 0, 0, 0, 0, 0, 0]), Err(Malformed::Length));
        assert_eq!(name_of_body(&[&name_to_body("a")[..], &[0; 8]].concat()), Err(Malformed::Length));
        assert_eq!(name_of_body(&[1, 0xff, 0, 0, 0, 0, 0, 0]), Err(Malformed::Field));
        assert_eq!(name_of_body(&[1, b'a', 0, 0, 1, 0, 0, 0]), Err(Malformed::Field));
    }

    #[test]
    fn the_busiest_locks_come_first_and_fill_one_packet() {
        let lock = |lock: u64| Busiest { lock, holders: 1, waiters: (lock % 7) as u32, token: lock };
        let body = Busiest::to_body((0..1000).map(lock).collect());
        let back = Busiest::of_body(&body).unwrap();
        assert!(body.len() <= MAX_BODY && back.len() == MAX_BODY / Busiest::BYTES);
        assert_eq!(back[0], lock(999 - 999 % 7 - 1));
    }
}
