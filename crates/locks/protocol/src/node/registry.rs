//! What the registry does with its own node, whose agents are those of machines that have died.

use super::Node;
use crate::client::Phase;
use crate::packet::Waiter;
use crate::word::Machine;

impl Node {
    /// For the registry: takes over the agent of a lock whose machine died; see
    /// [`AgentPool::adopt`](crate::pool::AgentPool::adopt).
    pub fn adopt(&mut self, lock: u64, incarnation: u32, token: u64) {
        self.pool.adopt(lock, incarnation, token);
    }

    /// For the registry: all machines have said what they hold of an adopted lock.
    pub fn release_adopted(&mut self, now: u64, lock: u64) {
        self.pool.release_adopted(now, lock);
        self.settle(now);
    }

    /// For the registry: takes a lock out of its hands that a request of its own holds, for good; see [`crate::racks`].
    /// The largest token so far, and who waits. Nothing, and the request holds on, while its agent has something to do.
    pub fn take(&mut self, request: u64) -> Option<(u64, Vec<Waiter>)> {
        let lock = self.client.get(request).filter(|known| known.phase == Phase::Held)?.lock;
        let taken = self.pool.take(lock, request)?;
        self.client.let_go(0, request, true);
        Some(taken)
    }

    /// For the registry: a machine has died; see [`Kind::Died`](crate::packet::Kind::Died).
    pub fn purge(&mut self, now: u64, machine: Machine, session: u32) {
        self.pool.purge(now, machine, session);
        self.settle(now);
    }
}
