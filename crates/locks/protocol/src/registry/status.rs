//! What people ask the registry: about a lock, or about all.

use super::Registry;
use crate::beyond::Manager;
use crate::control::ALL_LOCKS;
use crate::decider::{Sessions, Store};
use crate::packet::{BUSY, GRANTED, Kind, Packet, Problem};
use crate::word::{State, Word};
use std::hash::Hash;

/// Who has asked a machine about its locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusQuery<A> {
    pub(super) address: A,
    pub(super) request: u64,
    pub(super) until: u64,
}

/// How many questions about locks may be open; more are not sent on.
const MAX_CURIOUS: usize = 1024;
/// How long an answer to one may take.
const CURIOUS_NS: u64 = 1_000_000_000;

impl<A: Copy + Eq + Hash> Registry<A> {
    pub(super) fn status(&mut self, now: u64, store: &impl Store, from: A, packet: &Packet) {
        let mut answer = Packet { flags: GRANTED, request: packet.request, ..Packet::new(Kind::Status, packet.lock) };
        if packet.lock == ALL_LOCKS {
            self.outgoing.push_back((from, answer, self.summary().to_body()));
            let all: Vec<A> = self.machines.live().map(|(_, live)| live.address).collect();
            return self.ask_machines(now, from, packet, all);
        }
        let (word, token) = match self.manager(packet.lock) {
            Some(Manager { machine, generation }) => (Word { state: State::Led, machine, incarnation: generation }, 0),
            None if packet.lock < store.locks() => (store.load(packet.lock), store.token(packet.lock)),
            None => return self.problem(from, packet, Problem::NoSuchLock),
        };
        answer.stamp(word, token);
        if !self.has_word(store, packet.lock) {
            answer.flags |= BUSY;
        }
        self.outgoing.push_back((from, answer, Vec::new()));
        let agent = if word.state == State::Free { None } else { self.address(word.machine) };
        self.ask_machines(now, from, packet, agent);
    }

    /// Sends a question about locks on to machines; their answers go to who asked.
    fn ask_machines(&mut self, now: u64, from: A, packet: &Packet, machines: impl IntoIterator<Item = A>) {
        if self.curious.len() >= MAX_CURIOUS {
            return;
        }
        self.next_curious += 1;
        let question = Packet { request: self.next_curious, ..Packet::new(Kind::Status, packet.lock) };
        let until = now.saturating_add(CURIOUS_NS);
        self.curious.insert(self.next_curious, StatusQuery { address: from, request: packet.request, until });
        self.outgoing.extend(machines.into_iter().map(|address| (address, question, Vec::new())));
    }
}
