//! How a machine comes to take part: a number, if need be written down first, and WELCOME.

use super::machines::Live;
use super::{Change, Registry};
use crate::packet::{AGENT, Kind, Packet, Problem};
use crate::registry::Member;
use crate::word::Machine;
use std::hash::Hash;

impl<A: Copy + Eq + Hash> Registry<A> {
    pub(super) fn join(&mut self, now: u64, from: A, packet: &Packet) {
        let known = self.machines.joined(from, packet.request);
        if known.is_none() && self.machines.joining(from).is_some() {
            // Once that one is written down, whoever is there asks again.
            return self.problem(from, packet, Problem::Waits);
        }
        let expires = now.saturating_add(self.config.lease_ns);
        let Some(machine) = known.or_else(|| self.machines.join(now, from, packet.request, expires, packet.has(AGENT)))
        else {
            self.counters.full += 1;
            return self.problem(from, packet, Problem::Full);
        };
        if known.is_none() {
            match self.config.recorded {
                true => self.changes.extend(self.machines.member(machine).map(Change::Record)),
                false => self.take_in(machine),
            }
        }
        let Some(live) = self.machines.get(machine) else { return };
        if live.recorded {
            return self.welcome(machine);
        }
        if known.is_some() {
            self.machines.renew(machine, expires);
            self.problem(from, packet, Problem::Waits);
        }
    }

    /// A machine that joins is written down: it takes part. Nothing happens if it has given up meanwhile.
    pub fn recorded(&mut self, member: &Member<A>) {
        if self.machines.member(member.machine) == Some(*member) {
            self.take_in(member.machine);
            self.welcome(member.machine);
        }
    }

    fn take_in(&mut self, machine: Machine) {
        self.machines.record(machine);
        let Some(live) = self.machines.get(machine) else { return };
        let Live { session, address, manages, .. } = *live;
        self.counters.joined += 1;
        self.changes.push_back(Change::Joined { machine, session, address });
        if manages {
            self.manage(machine);
        }
    }

    /// A machine offers to keep locks that the decider has no words for.
    pub(super) fn manage(&mut self, machine: Machine) {
        let relieved = self.managers.join(machine);
        let to = |lock| self.managers.of(lock).machine;
        let change = |(lock, generation)| Change::Relieved { lock, generation, to: to(lock) };
        self.changes.extend(relieved.into_iter().map(change));
    }

    fn welcome(&mut self, machine: Machine) {
        let Some(live) = self.machines.get(machine) else { return };
        // A second WELCOME does not renew: the process may count its lease from an earlier JOIN.
        let welcome = Packet {
            request: live.nonce,
            requester: machine,
            requester_session: live.session,
            target: machine,
            ..Packet::new(Kind::Welcome, 0)
        };
        self.outgoing.push_back((live.address, welcome, self.service.to_body()));
    }
}
