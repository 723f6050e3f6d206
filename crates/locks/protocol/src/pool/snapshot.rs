//! The agents as a model checker sees them: all that their future depends on.
//!
//! Delays no longer grow after [`MAX_DOUBLINGS`] tries. Serial numbers only tell timers that count from those that do
//! not. Once the latter are dropped, they tell nothing.

use super::{AgentPool, Watch};
use crate::pace::MAX_DOUBLINGS;
use std::hash::{Hash, Hasher};

impl AgentPool {
    pub(crate) fn prune(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        let agents = &self.agents;
        timers.retain(|(lock, watch)| match watch {
            Watch::Operation(number) if self.asks_about(*lock, *number) => true,
            _ => agents.get(lock).is_some_and(|agent| match watch {
                Watch::Operation(number) => agent.running.as_deref().is_some_and(|running| running.number == *number),
                Watch::WaitPolicy(serial) => agent.serial == *serial && agent.watched.is_some(),
                Watch::Holder(machine, request, _) => {
                    agent.holders.iter().any(|holder| (holder.machine, holder.request) == (*machine, *request))
                }
            }),
        });
        self.timers = timers;
    }

    pub(crate) fn snapshot(&self, now: u64, into: &mut impl Hasher) {
        self.operations.hash(into);
        let mut agents: Vec<_> = self.agents.iter().collect();
        agents.sort_unstable_by_key(|(lock, _)| **lock);
        agents.len().hash(into);
        for (lock, a) in agents {
            (lock, a.base, a.known, a.token, &a.holders, &a.queue, &a.seen).hash(into);
            let running = a.running.as_deref();
            running.map(|r| (r.op, r.number, r.incarnation, r.tries.min(MAX_DOUBLINGS))).hash(into);
            (a.exclusive, a.open, a.alone, a.adopted, a.starved, a.watched).hash(into);
        }
        for (delay, due, (lock, watch)) in self.timers.all() {
            (delay, due.saturating_sub(now), lock).hash(into);
            match watch {
                Watch::Operation(number) => (0u8, number).hash(into),
                Watch::WaitPolicy(_) => 1u8.hash(into),
                Watch::Holder(machine, request, tries) => (2u8, machine, request, tries.min(&MAX_DOUBLINGS)).hash(into),
            }
        }
        self.managed.hash(into);
        self.arriving.hash(into);
    }
}
