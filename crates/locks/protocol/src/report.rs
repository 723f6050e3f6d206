//! What a machine tells a decider that was restored: where agents are, and what is held without one.
//!
//! A decider keeps no copy of its words. When it is lost, they are made anew from what machines know, as in section 5.3
//! of the paper: servers report agents and granted locks (S1), what is inconsistent is repaired (S2), and the switch
//! gets its words back (S3). Here nobody pauses, and each lock goes on by itself:
//!
//! ```text
//! machine                                       registry of the restored decider
//!          <-- RESUME, a new session             to all machines that took part
//! agents that were leaving are dropped, the others wait for SETTLE unless a writer holds
//!          REPORT 0, locks 0 to 711 -->          words of its agents are back; their locks go on
//!          <-- REPORTED 0                        a lock that all have reported past is back too: nobody holds it,
//!          ...                                   or the registry adopts it
//!          <-- SETTLE                            all have reported: enrol what is held from agents elsewhere
//!          SWEPT -->
//!          <-- SETTLE, granted                   all have enrolled: agents decide
//! ```
//!
//! *Invariant*: nothing of before reaches anybody after. All machines change their sessions by the same difference, the
//! *era* in their upper bits, so a packet tells by its sessions whether it was sent before.
//!
//! A report is the field `lock`, where it begins, the field `token`, where the next one does, and a body of 8 bytes for
//! each lock in between that this machine has something of: twice its number, plus 1 if the agent is here.

use crate::packet::{HEADER, Kind, MAX_BYTES, Malformed, Packet};
use crate::timers::Timers;

/// Upper bits of a session from this one on are the era: how often the decider has begun.
pub const ERA_SHIFT: u32 = 20;
/// Eras are counted in so many bits.
const ERA_BITS: u32 = u32::BITS - ERA_SHIFT;

/// The era of a session.
#[must_use]
pub const fn era(session: u32) -> u32 {
    session >> ERA_SHIFT
}

/// The same machine's session in another era.
#[must_use]
pub const fn in_era(session: u32, era: u32) -> u32 {
    session & ((1 << ERA_SHIFT) - 1) | era << ERA_SHIFT
}

/// Whether `later` is the session of the same machine in a later era.
#[must_use]
pub const fn continues(session: u32, later: u32) -> bool {
    let passed = era(later).wrapping_sub(era(session)) & ((1 << ERA_BITS) - 1);
    in_era(session, era(later)) == later && passed > 0 && passed < 1 << (ERA_BITS - 1)
}

/// Locks of a report.
const A_PACKET: usize = (MAX_BYTES - HEADER - 8) / 8;
/// Reports under way at a time.
const WINDOW: usize = 16;

/// Something of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reported {
    /// The lock.
    pub lock: u64,
    /// Its agent is here. If not, it is held from one elsewhere.
    pub agent: bool,
}

impl Reported {
    fn to_body(all: &[Self]) -> Vec<u8> {
        all.iter().flat_map(|one| (one.lock << 1 | u64::from(one.agent)).to_le_bytes()).collect()
    }

    /// From a body.
    ///
    /// # Errors
    /// [`Malformed::Length`] if it is not a number of locks.
    pub fn of_body(body: &[u8]) -> Result<Vec<Self>, Malformed> {
        let (locks, rest) = body.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Malformed::Length);
        }
        let one = |number: u64| Self { lock: number >> 1, agent: number & 1 == 1 };
        Ok(locks.iter().map(|bytes| one(u64::from_le_bytes(*bytes))).collect())
    }
}

/// A machine's reports, until all have arrived.
#[derive(Clone, Debug)]
pub(crate) struct Reporting {
    /// In order of their locks, each once.
    all: Vec<Reported>,
    locks: u64,
    /// Reports below this number have arrived.
    arrived: usize,
    again: Timers<usize>,
    every: u64,
}

impl Reporting {
    /// Of a service with so many locks; an unanswered report is sent again after `every` nanoseconds.
    pub(crate) fn new(mut all: Vec<Reported>, locks: u64, every: u64) -> Self {
        // Of two for one lock the agent counts.
        all.sort_unstable_by_key(|one| (one.lock, !one.agent));
        all.dedup_by_key(|one| one.lock);
        Self { all, locks, arrived: 0, again: Timers::new(), every }
    }

    const fn reports(&self) -> usize {
        let full = self.all.len().div_ceil(A_PACKET);
        if full == 0 { 1 } else { full }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.arrived == self.reports()
    }

    fn report(&self, number: usize) -> (Packet, Vec<u8>) {
        let from = |number: usize| match self.all.get(number * A_PACKET) {
            _ if number == 0 => 0,
            Some(first) => first.lock,
            None => self.locks,
        };
        let mut packet = Packet::new(Kind::Report, from(number));
        packet.request = number as u64;
        packet.token = from(number + 1);
        let end = self.all.len().min((number + 1) * A_PACKET);
        (packet, Reported::to_body(&self.all[number * A_PACKET..end]))
    }

    /// The first reports to send.
    pub(crate) fn begin(&mut self, now: u64) -> Vec<(Packet, Vec<u8>)> {
        (0..self.reports().min(WINDOW)).map(|number| self.sent(now, number)).collect()
    }

    fn sent(&mut self, now: u64, number: usize) -> (Packet, Vec<u8>) {
        self.again.set(now, self.every, number);
        self.report(number)
    }

    /// One has arrived, and so all before it have. The reports that follow.
    pub(crate) fn arrived(&mut self, now: u64, number: u64) -> Vec<(Packet, Vec<u8>)> {
        let number = usize::try_from(number).unwrap_or(usize::MAX).min(self.reports() - 1);
        if number < self.arrived {
            return Vec::new();
        }
        let sent = self.reports().min(self.arrived + WINDOW);
        self.arrived = number + 1;
        (sent..self.reports().min(self.arrived + WINDOW)).map(|number| self.sent(now, number)).collect()
    }

    /// A report to send again.
    pub(crate) fn due(&mut self, now: u64) -> Option<(Packet, Vec<u8>)> {
        while let Some(number) = self.again.due(now) {
            if number >= self.arrived {
                return Some(self.sent(now, number));
            }
        }
        None
    }

    pub(crate) fn next_tick(&self) -> Option<u64> {
        if self.is_over() { None } else { self.again.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_continue_in_later_eras_only() {
        assert!(continues(7, in_era(7, 1)) && continues(in_era(7, 4095), 7));
        assert!(!continues(7, 7) && !continues(7, in_era(8, 1)) && !continues(in_era(7, 1), 7));
        assert_eq!((era(in_era(7, 5)), in_era(in_era(7, 5), 6)), (5, 6 << ERA_SHIFT | 7));
    }

    #[test]
    fn reports_have_no_gaps_whatever_is_lost() {
        for count in [0, 1, A_PACKET, A_PACKET + 1, 40 * A_PACKET + 3] {
            let all: Vec<_> = (0..count as u64).map(|lock| Reported { lock: 3 * lock, agent: lock % 2 == 0 }).collect();
            let mut reporting = Reporting::new(all.clone(), 1 << 20, 10);
            let (mut next, mut seen, mut now) = (0, Vec::new(), 0);
            let mut random = lockwork_random::Random(1);
            let mut under_way = reporting.begin(0);
            while !reporting.is_over() {
                // A third of the packets is lost, and the others come in the wrong order.
                let mut back = Vec::new();
                for (packet, body) in under_way.drain(..).rev() {
                    if random.one_in(3) || packet.lock > next {
                        continue;
                    }
                    if packet.lock == next && packet.token > next {
                        next = packet.token;
                        seen.extend(Reported::of_body(&body).unwrap());
                        back.push(packet.request);
                    }
                }
                back.into_iter().for_each(|number| under_way.extend(reporting.arrived(now, number)));
                now += 10;
                assert!(now < 100_000, "{next} after {now}");
                under_way.extend(std::iter::from_fn(|| reporting.due(now)).take(WINDOW));
            }
            assert_eq!((next, seen), (1 << 20, all));
            assert_eq!(reporting.next_tick(), None);
        }
    }
}
