//! A machine whose decider was restored: it goes on in a new session, reports, and enrols; see [`crate::report`].

use super::Node;
use crate::config::Identity;
use crate::control::Service;
use crate::deadlock::DeadlockSearch;
use crate::packet::{GRANTED, Kind, Packet};
use crate::report::{Reported, Reporting, continues, era};
use crate::word::Machine;

impl Node {
    /// Whether a packet was sent before the decider was restored. Sessions tell, except of the registry, which has one
    /// for ever.
    pub(super) const fn is_of_before(&self, packet: &Packet) -> bool {
        let is_known = packet.requester.0 == Machine::REGISTRY.0 || self.me.machine.0 == Machine::REGISTRY.0;
        let tells = !matches!(packet.kind, Kind::Resume);
        tells && !is_known && era(packet.requester_session) != era(self.me.session)
    }

    /// RESUME.
    pub(super) fn resume(&mut self, now: u64, packet: &Packet, body: &[u8]) {
        let session = packet.requester_session;
        if session == self.me.session {
            if self.reporting.is_none() {
                // It has joined, and the decider was lost before this machine knew: it has nothing of before.
                self.report(now, Vec::new());
            }
            return;
        }
        if packet.requester != self.me.machine || !continues(self.me.session, session) {
            return;
        }
        let of_mine = |service: Service| {
            let config = &self.config;
            let mine = (config.locks, config.beyond, config.profile, config.writers_first, config.lease);
            let lease = u64::from(service.lease_ms) * 1_000_000;
            mine == (service.locks, service.beyond, service.profile, service.writers_first, lease)
        };
        match Service::of_body(body) {
            Ok(service) if of_mine(service) => {}
            Ok(_) => return self.end(),
            Err(_) => return,
        }
        self.me = Identity { session, ..self.me };
        self.packets.clear();
        self.deadlock = DeadlockSearch::new(&self.config, self.me);
        self.pool.resume(self.me, packet.token);
        let pool = &self.pool;
        let (waiting, mut elsewhere) = self.client.resume(now, self.me, |lock, request| pool.has_holder(lock, request));
        // Of locks that managers keep there are no words to bring back.
        elsewhere.retain(|lock| *lock < self.config.locks && self.pool.decides(*lock).is_none());
        let agents = self.pool.locks().map(|lock| Reported { lock, agent: true });
        let held = elsewhere.into_iter().map(|lock| Reported { lock, agent: false });
        let all: Vec<_> = agents.chain(held).collect();
        let mut here: Vec<_> = all.iter().filter(|one| one.agent).map(|one| one.lock).collect();
        here.sort_unstable();
        self.report(now, all);
        // At once: the lease may be nearly over.
        self.renew(now);
        for again in waiting {
            if again.detect_deadlock {
                self.deadlock.watch(now, again.request);
            }
            self.ask(now, again.lock, again.request, again.mode, again.try_only);
        }
        here.into_iter().for_each(|lock| self.pool.go_on(now, lock));
    }

    fn report(&mut self, now: u64, all: Vec<Reported>) {
        let mut reporting = Reporting::new(all, self.config.locks, self.config.retry_most);
        let first = reporting.begin(now);
        self.reporting = Some(reporting);
        first.into_iter().for_each(|(packet, body)| self.send_report(packet, body));
    }

    /// REPORTED.
    pub(super) fn reported(&mut self, now: u64, packet: &Packet) {
        if packet.requester_session != self.me.session {
            return;
        }
        let next = self.reporting.as_mut().map(|reporting| reporting.arrived(now, packet.request)).unwrap_or_default();
        next.into_iter().for_each(|(packet, body)| self.send_report(packet, body));
    }

    /// Sends reports again that were not answered.
    pub(super) fn report_again(&mut self, now: u64) {
        while let Some((packet, body)) = self.reporting.as_mut().and_then(|reporting| reporting.due(now)) {
            self.send_report(packet, body);
        }
    }

    fn send_report(&mut self, mut packet: Packet, body: Vec<u8>) {
        packet.requester = self.me.machine;
        packet.requester_session = self.me.session;
        self.send(packet, body);
    }

    /// RENEW, whenever it is due, and once more when the decider was restored.
    pub(super) fn renew(&mut self, now: u64) {
        let mut packet = Packet::new(Kind::Renew, 0);
        // The answer says when the renewal that it answers was sent: the lease runs from then.
        packet.request = now;
        packet.requester = self.me.machine;
        packet.requester_session = self.me.session;
        self.send(packet, Vec::new());
    }

    /// RENEWED.
    pub(super) fn renewed(&mut self, now: u64, packet: &Packet) {
        if packet.request > now {
            // It answers nothing that was asked.
            return;
        }
        let until = packet.request.saturating_add(self.config.own_lease());
        self.lease_until = self.lease_until.max(until);
    }

    /// SETTLE.
    pub(super) fn settle_down(&mut self, now: u64, packet: &Packet) {
        let done = packet.has(GRANTED) || self.client.settle(now, packet.request);
        if packet.has(GRANTED) {
            self.pool.settle(now);
        }
        self.answer_sweep(packet, done);
    }
}
