//! What a machine keeps as a lock manager; see [`crate::beyond`].
//!
//! Agents of these locks are here by the generation of their part, not by a word: they send the decider nothing, hand
//! on within the agent whoever is next, and are forgotten when nobody holds or waits.

use super::{AgentPool, Watch};
use crate::agent::Agent;
use crate::beyond::{part, representative};
use crate::branches::Branch;
use crate::packet::{GRANTED, Kind, Packet, Waiter};
use crate::word::Machine;
use lockwork_locking::LockMode;

/// A part, as this machine knows it.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Part {
    generation: u32,
    /// This machine manages it. If not, another one did in this generation.
    mine: bool,
    /// Whoever holds is enrolled.
    settled: bool,
    /// The largest token of agents that are forgotten.
    token: u64,
    /// Of the question who holds.
    number: u64,
    tries: u8,
}

impl AgentPool {
    /// Whether this machine manages the lock of a packet that the decider has sent on, in the generation that it says.
    /// The first packet of a generation begins it. An agent is there then.
    pub(super) fn manages(&mut self, now: u64, packet: &Packet) -> bool {
        // The decider grants none of these locks.
        if packet.has(GRANTED) {
            return false;
        }
        let newer = match self.managed.get(&part(packet.lock)) {
            Some(known) => self.config.profile.distance(known.generation, packet.incarnation),
            None => 1,
        };
        if newer > 0 {
            self.begin_part(now, packet.lock, packet.incarnation);
        }
        // Whatever was sent on in an earlier generation is asked for all the same.
        let Some(known) = self.managed.get(&part(packet.lock)).filter(|known| known.mine) else { return false };
        let fresh = Agent { adopted: !known.settled, ..Agent::new(known.generation, known.token, false) };
        self.agents.entry(packet.lock).or_insert(fresh);
        true
    }

    fn begin_part(&mut self, now: u64, lock: u64, generation: u32) {
        self.branches.take(Branch::PartBegun);
        self.forget_part(lock);
        self.operations += 1;
        let number = u64::from(u32::MAX) << 32 | (self.operations & u64::from(u32::MAX));
        let begun = Part { generation, mine: true, settled: false, token: 0, number, tries: 0 };
        self.managed.insert(part(lock), begun);
        self.ask_part(now, representative(lock));
    }

    fn forget_part(&mut self, lock: u64) {
        let before = self.agents.len();
        let config = self.config;
        self.agents.retain(|of, _| !config.is_beyond(*of) || part(*of) != part(lock));
        if self.agents.len() < before {
            self.branches.take(Branch::PartLeft);
        }
    }

    /// Whether a question with this number about a part is open.
    pub(super) fn asks_about(&self, lock: u64, number: u64) -> bool {
        let asked = |known: &Part| known.mine && !known.settled && known.number == number;
        self.config.is_beyond(lock) && self.managed.get(&part(lock)).is_some_and(asked)
    }

    /// Asks who holds locks of a part, until all have answered.
    pub(super) fn ask_part(&mut self, now: u64, lock: u64) {
        let me = self.me;
        let Some(asked) = self.managed.get_mut(&part(lock)).filter(|known| known.mine && !known.settled) else {
            return;
        };
        let Part { generation, number, tries, .. } = *asked;
        asked.tries = tries.saturating_add(1);
        let mut packet = Packet::new(Kind::Sweep, lock);
        packet.flags = LockMode::Exclusive as u8;
        packet.request = number;
        packet.requester = me.machine;
        packet.requester_session = me.session;
        packet.target = Machine::REGISTRY;
        packet.incarnation = generation;
        self.send(packet, Vec::new());
        self.timers.set(now, self.pace.backoff(tries), (lock, Watch::Operation(number)));
    }

    /// Another machine manages the part of this lock in `generation`.
    pub(crate) fn hand_over(&mut self, lock: u64, generation: u32, to: Machine) {
        let profile = self.config.profile;
        let newer = |known: &Part| profile.distance(known.generation, generation) > 0;
        if to != self.me.machine && self.managed.get(&part(lock)).is_none_or(newer) {
            self.forget_part(lock);
            let foreign = Part { generation, mine: false, settled: false, token: 0, number: 0, tries: 0 };
            self.managed.insert(part(lock), foreign);
        }
    }

    /// Whoever holds locks of this part is enrolled, and all tokens so far are smaller than that of the packet.
    pub(super) fn part_swept(&mut self, now: u64, packet: &Packet) {
        if !self.asks_about(packet.lock, packet.request) {
            return;
        }
        let known = self.managed.get_mut(&part(packet.lock)).expect("it asks");
        known.settled = true;
        known.token = packet.token;
        let config = self.config;
        let of_it = |(lock, _): &(&u64, &mut Agent)| config.is_beyond(**lock) && part(**lock) == part(packet.lock);
        let mut locks = Vec::new();
        for (lock, agent) in self.agents.iter_mut().filter(of_it) {
            agent.adopted = false;
            agent.token = agent.token.max(packet.token);
            locks.push(*lock);
        }
        locks.sort_unstable();
        locks.into_iter().for_each(|lock| self.advance(now, lock));
    }

    /// Admits a request for a lock without a holder, or whose holders are not known yet; returns whether it did.
    pub(super) fn admit_managed(&mut self, now: u64, lock: u64, waiter: Waiter, try_only: bool) -> bool {
        let Some(agent) = self.agents.get_mut(&lock) else { return false };
        if !agent.adopted {
            let is_free = agent.holders.is_empty() && agent.queue.is_empty();
            if is_free {
                agent.token += u64::from(waiter.mode == LockMode::Exclusive);
                self.hold(now, lock, waiter);
            }
            return is_free;
        }
        // Who does not wait asks again.
        if !try_only {
            agent.enqueue(waiter);
            if waiter.machine != self.me.machine {
                self.acknowledge(lock, Kind::Acquire, &waiter, 0);
            }
        }
        true
    }

    /// Nobody holds a lock that is managed here.
    pub(super) fn advance_managed(&mut self, now: u64, lock: u64) {
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        agent.watched = None;
        agent.starved = false;
        let Some(next) = agent.queue.pop_front() else {
            let token = agent.token;
            self.agents.remove(&lock);
            if let Some(known) = self.managed.get_mut(&part(lock)) {
                known.token = known.token.max(token);
            }
            return;
        };
        agent.token += u64::from(next.mode == LockMode::Exclusive);
        self.hold(now, lock, next);
        self.advance(now, lock);
    }

    /// How many parts this machine manages.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.managed.values().filter(|known| known.mine).count()
    }
}
