//! The service when it crashes and comes back: words, sessions and its own agents are lost, and who took part is read
//! from where it was written down, which takes a while.

use super::{MS, Then, World};
use crate::decider::{Store, TOKEN_STEP};
use crate::node::Node;
use crate::registry::{Member, Registry};
use crate::report::in_era;
use crate::simulator::trace::{Actor, EVERY_LOCK, TraceEvent};
use crate::word::Machine;

/// How long it takes to write down who takes part.
const WRITING: u64 = MS;
/// How long the service is away at most: longer than leases, at times.
const LONGEST_AWAY: u64 = 150 * MS;

impl<S: Store> World<S> {
    /// The service is lost, and begins anew after a while.
    pub(super) fn crash_service(&mut self) {
        self.counters.restarts += 1;
        self.counters.expired += self.registry.counters().expired;
        self.counters.branches.add(&self.own.branches());
        self.trace.add(self.now, EVERY_LOCK, Actor::Service, TraceEvent::Place("crashes", Machine::REGISTRY));
        self.era += 1;
        let most = self.random.scaled(LONGEST_AWAY) + 1;
        let away = self.random.scaled(most);
        self.service_back = self.now + away;
        // Until then nothing arrives, and nothing is done.
        self.store = (self.fresh)(self.settings.locks, u64::from(self.era) << 40);
        self.own = Node::registry(self.config);
        self.registry = Registry::new(self.of_registry, self.service);
        self.registry_tick = u64::MAX;
        let era = self.era;
        self.after(away, Then::Restart { era });
    }

    pub(super) fn restart_service(&mut self) {
        self.trace.add(self.now, EVERY_LOCK, Actor::Service, TraceEvent::Place("is back", Machine::REGISTRY));
        let in_this = |member: &Member<u32>| Member { session: in_era(member.session, self.era), ..*member };
        let members: Vec<_> = self.members.values().map(in_this).collect();
        let mut config = self.of_registry;
        config.first_session = in_era(config.first_session + self.era * 10_000, self.era);
        config.first_token = u64::from(self.era) << 40;
        self.registry = Registry::restore(self.now, config, self.service, members);
        debug_assert!((u64::from(self.era) << 40).is_multiple_of(TOKEN_STEP));
        self.drain_registry();
        self.wake_registry(self.now);
    }

    /// Who joins is written down a little later, and who is gone is struck out; in that order.
    pub(super) fn record(&mut self, member: Member<u32>, joins: bool) {
        let (era, number) = (self.era, self.noted.len());
        self.noted.push(member);
        self.after(WRITING, Then::Recorded { era, member: number, joins });
    }

    /// It is: also if the service has crashed meanwhile.
    pub(super) fn recorded(&mut self, of_era: u32, member: usize, joins: bool) {
        let member = self.noted[member];
        if !joins {
            self.members.remove(&member.machine);
            return;
        }
        self.members.insert(member.machine, member);
        if of_era == self.era && self.now >= self.service_back {
            self.registry.recorded(&member);
            self.drain_registry();
        }
    }
}
