//! Questions to all machines that live, until each has answered.
//!
//! A question is asked again, less and less often, of those that have not answered; one that is gone no longer counts.
//! An answer is known by the number of the question, which is never used twice, so late and second answers change
//! nothing.

use super::adoption::Adopted;
use crate::packet::{GRANTED, Kind, Packet};
use crate::word::Machine;
use std::collections::{BTreeMap, BTreeSet};

/// What is asked, and who has to know when all have answered.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A machine is gone, and these were its locks.
    Died { machine: Machine, session: u32, adopted: Vec<Adopted> },
    /// An agent wants to know all holders of a lock.
    Sweep { asker: Machine, session: u32, request: u64, lock: u64, incarnation: u32 },
    /// A decider was restored: all enrol; and at last, agents decide.
    Settle { last: bool },
}

#[derive(Debug)]
struct Question {
    subject: Subject,
    missing: BTreeSet<Machine>,
    again: u64,
    interval_ns: u64,
}

#[derive(Debug)]
pub(super) struct Broadcasts {
    open: BTreeMap<u64, Question>,
    next: u64,
    interval_ns: u64,
}

/// An interval grows to this many times the first one.
const SLOWEST: u64 = 16;

impl Broadcasts {
    pub(super) fn new(interval_ns: u64) -> Self {
        Self { open: BTreeMap::new(), next: 1, interval_ns }
    }

    /// Asks all of `machines`. With none there, it is complete at the next [`Broadcasts::complete`].
    pub(super) fn ask(&mut self, now: u64, subject: Subject, machines: BTreeSet<Machine>) {
        let question = Question { subject, missing: machines, again: now, interval_ns: self.interval_ns };
        self.open.insert(self.next, question);
        self.next += 1;
    }

    /// Whether this sweep is being asked about.
    pub(super) fn is_sweeping(&self, machine: Machine, of: u32, number: u64) -> bool {
        self.open.values().any(|question| {
            matches!(question.subject, Subject::Sweep { asker, session, request, .. }
                if asker == machine && session == of && request == number)
        })
    }

    /// Asks no more what `machine` wanted to know of a lock.
    pub(super) fn forget_sweep(&mut self, machine: Machine, of: u64) {
        let about = |s: &Subject| matches!(*s, Subject::Sweep { asker, lock, .. } if (asker, lock) == (machine, of));
        self.open.retain(|_, question| !about(&question.subject));
    }

    /// Enters an answer, if `machine` owed one.
    pub(super) fn answered(&mut self, question: u64, machine: Machine) {
        if let Some(question) = self.open.get_mut(&question) {
            question.missing.remove(&machine);
        }
    }

    /// A machine is gone: nobody waits for its answers, and nobody answers it.
    pub(super) fn forget(&mut self, machine: Machine) {
        self.open.retain(|_, question| !matches!(question.subject, Subject::Sweep { asker, .. } if asker == machine));
        for question in self.open.values_mut() {
            question.missing.remove(&machine);
        }
    }

    /// What all have answered, taken out.
    pub(super) fn complete(&mut self) -> Vec<Subject> {
        self.open
            .extract_if(.., |_, question| question.missing.is_empty())
            .map(|(_, question)| question.subject)
            .collect()
    }

    /// Packets that are due, to the machines that have not answered.
    pub(super) fn due(&mut self, now: u64, mut send: impl FnMut(Machine, Packet)) {
        for (number, question) in self.open.iter_mut().filter(|(_, question)| question.again <= now) {
            let packet = packet(*number, &question.subject);
            question.missing.iter().for_each(|machine| send(*machine, Packet { target: *machine, ..packet }));
            question.again = now.saturating_add(question.interval_ns);
            question.interval_ns = (question.interval_ns * 2).min(self.interval_ns * SLOWEST);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Machines that are gone and not known to be by all.
    pub(super) fn deaths(&self) -> usize {
        self.open.values().filter(|question| matches!(question.subject, Subject::Died { .. })).count()
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.open.values().map(|question| question.again).min()
    }
}

/// Names who is asked, unless the question is about another machine: by a session it is known to be of this era.
pub(super) fn addressed(question: Packet, machine: Machine, session: u32) -> Packet {
    match question.requester {
        Machine::REGISTRY => Packet { requester: machine, requester_session: session, ..question },
        _ => question,
    }
}

fn packet(number: u64, subject: &Subject) -> Packet {
    match *subject {
        Subject::Died { machine, session, .. } => {
            Packet { request: number, requester: machine, requester_session: session, ..Packet::new(Kind::Died, 0) }
        }
        Subject::Sweep { asker, session, lock, incarnation, .. } => {
            let packet = Packet::new(Kind::Sweep, lock);
            Packet { request: number, requester: asker, requester_session: session, incarnation, ..packet }
        }
        Subject::Settle { last } => {
            Packet { request: number, flags: if last { GRANTED } else { 0 }, ..Packet::new(Kind::Settle, 0) }
        }
    }
}
