//! What has happened lately, so that a failure can be read as a timeline of one lock.
//!
//! A ring of small records, written always and formatted only for a failure: a run of millions of packets keeps a few
//! megabytes and loses no time with text.

use crate::client::Event;
use crate::packet::{AGENT, BUSY, GRANTED, Kind, Packet, TRY};
use crate::word::{Machine, Word};
use std::collections::VecDeque;
use std::fmt::Write;

/// How many records are kept.
const MOST: usize = 1 << 18;
/// How many lines of a lock are told.
const MAX_LINES: usize = 400;

/// Who did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// The decider or the registry.
    Service,
    /// The process at this place.
    Place(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TraceEvent {
    /// Sent; so many copies arrive, the first after so long.
    Sent {
        to: Actor,
        packet: Packet,
        copies: u8,
        after: u64,
    },
    Received(Packet),
    Word(Word),
    Event(Event),
    Task {
        request: u64,
        does: &'static str,
    },
    Place(&'static str, Machine),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    now: u64,
    lock: u64,
    who: Actor,
    what: TraceEvent,
}

/// For everything that is about no lock in particular.
pub(super) const EVERY_LOCK: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Trace {
    records: VecDeque<Record>,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { records: VecDeque::with_capacity(MOST) }
    }

    pub(super) fn add(&mut self, now: u64, lock: u64, who: Actor, what: TraceEvent) {
        if self.records.len() == MOST {
            self.records.pop_front();
        }
        self.records.push_back(Record { now, lock, who, what });
    }

    /// The lock that most of the last records are about.
    pub(super) fn busiest(&self) -> u64 {
        let mut count = std::collections::BTreeMap::<u64, u64>::new();
        self.records.iter().rev().take(10_000).for_each(|record| *count.entry(record.lock).or_default() += 1);
        count.into_iter().max_by_key(|(_, count)| *count).map_or(EVERY_LOCK, |(lock, _)| lock)
    }

    /// The last lines about a lock.
    pub(super) fn about(&self, lock: u64) -> String {
        let concerned = |record: &&Record| {
            let renewal = |packet: &Packet| matches!(packet.kind, Kind::Renew | Kind::Renewed);
            let control = matches!(&record.what, TraceEvent::Received(packet) if renewal(packet));
            record.lock == lock || (record.lock == EVERY_LOCK && !control)
        };
        let mut lines: Vec<_> = self.records.iter().rev().filter(concerned).take(MAX_LINES).collect();
        lines.reverse();
        let mut text = String::new();
        for Record { now, who, what, .. } in lines {
            let us = (now / 1000, now % 1000);
            write!(text, "{:>9}.{:03} us  {:>8}  ", us.0, us.1, name(*who)).expect("a string takes everything");
            let written = match what {
                TraceEvent::Sent { to, packet, copies, after } => match copies {
                    0 => write!(text, "-> {} {}  LOST", name(*to), line(packet)),
                    1 => write!(text, "-> {} {}  ({} ns)", name(*to), line(packet), after),
                    _ => write!(text, "-> {} {}  ({} ns) {copies} copies", name(*to), line(packet), after),
                },
                TraceEvent::Received(packet) => write!(text, "<- {}", line(packet)),
                TraceEvent::Word(word) => {
                    write!(text, "   word: {} machine {} incarnation {}", word.state, word.machine.0, word.incarnation)
                }
                TraceEvent::Event(event) => write!(text, "   {event:x?}"),
                TraceEvent::Task { request, does } => write!(text, "   task {} {does} {request:x}", request >> 32),
                TraceEvent::Place(does, machine) => write!(text, "   {does} (machine {})", machine.0),
            };
            written.expect("a string takes everything");
            text.push('\n');
        }
        text
    }
}

fn name(who: Actor) -> String {
    match who {
        Actor::Service => "service".to_owned(),
        Actor::Place(place) => format!("place {place}"),
    }
}

/// A packet in one line.
#[must_use]
pub fn line(packet: &Packet) -> String {
    let mut text = format!("{:?}", packet.kind).to_uppercase();
    match packet.flags & 3 {
        1 => text.push_str(" shared"),
        3 => text.push_str(" exclusive"),
        _ => {}
    }
    for (flag, name) in [(AGENT, " AGENT"), (GRANTED, " GRANTED"), (TRY, " TRY"), (BUSY, " BUSY")] {
        if packet.has(flag) {
            text.push_str(name);
        }
    }
    let Packet { request, requester, requester_session, sender, session, target, incarnation, token, .. } = packet;
    write!(
        text,
        " lock {} request {request:x} of {}/{requester_session} from {}/{session} to {} incarnation {incarnation} {} token {token:x} \
         part {}/{} hops {}",
        packet.lock as i64, requester.0, sender.0, target.0, packet.state, packet.part, packet.parts, packet.hops
    )
    .expect("a string takes everything");
    text
}
