//! The agents when the decider was restored; see [`crate::report`].

use super::AgentPool;
use crate::agent::Agent;
use crate::branches::Branch;
use crate::config::Identity;
use crate::report::{era, in_era};
use lockwork_locking::LockMode;

impl AgentPool {
    /// Goes on in another session. An agent that was leaving may have left: it has no holders, and is dropped. The
    /// others are certainly here. Readers may hold that they do not know of, so that they grant nothing that excludes
    /// readers, and do not leave, before [`AgentPool::settle`].
    pub(crate) fn resume(&mut self, me: Identity, token: u64) {
        self.me = me;
        self.out.clear();
        self.arriving.clear();
        // Others may manage these now, or this machine in another generation.
        self.managed.clear();
        let config = self.config;
        self.agents.retain(|lock, _| !config.is_beyond(*lock));
        let before = self.agents.len();
        self.agents.retain(|_, agent| !agent.is_leaving());
        if before > self.agents.len() {
            self.branches.take(Branch::ResumedLeaving);
        }
        for agent in self.agents.values_mut() {
            // The words begin anew, each led by its agent.
            (agent.base, agent.known, agent.running) = (0, 0, None);
            agent.seen.clear();
            (agent.open, agent.alone, agent.starved, agent.watched) = (false, false, false, None);
            agent.serial = agent.serial.wrapping_add(1);
            agent.token = agent.token.max(token);
            agent.adopted = agent.mode() != Some(LockMode::Exclusive);
            let era = era(me.session);
            agent.holders.iter_mut().for_each(|holder| holder.session = in_era(holder.session, era));
            agent.queue.iter_mut().for_each(|waiter| waiter.session = in_era(waiter.session, era));
        }
    }

    /// Whether the agent here has this request of this machine as a holder.
    pub(crate) fn has_holder(&self, lock: u64, request: u64) -> bool {
        let is_it = |agent: &crate::agent::Agent| {
            agent.holders.iter().any(|holder| holder.request == request && holder.machine == self.me.machine)
        };
        self.agents.get(&lock).is_some_and(is_it)
    }

    /// An agent that was kept does what it may: requests of this machine that joined meanwhile are told so.
    pub(crate) fn go_on(&mut self, now: u64, lock: u64) {
        self.tell_unconfirmed(lock);
        self.advance(now, lock);
    }

    /// All machines have enrolled what they hold: the agents decide.
    pub(crate) fn settle(&mut self, now: u64) {
        // A manager has asked for itself.
        let waits = |(lock, agent): &(&u64, &Agent)| agent.adopted && !self.config.is_beyond(**lock);
        let mut waiting: Vec<_> = self.agents.iter().filter(waits).map(|(lock, _)| *lock).collect();
        waiting.sort_unstable();
        waiting.into_iter().for_each(|lock| self.release_adopted(now, lock));
    }
}
