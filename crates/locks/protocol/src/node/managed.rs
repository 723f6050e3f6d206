//! A machine and the locks that managers keep; see [`crate::beyond`].

use super::Node;
use crate::packet::Packet;
use crate::word::Machine;
use lockwork_locking::LockMode;

impl Node {
    /// For the registry: another machine manages the part of this lock; see [`crate::beyond`].
    pub fn relieve(&mut self, lock: u64, generation: u32, to: Machine) {
        self.pool.hand_over(lock, generation, to);
    }

    /// SWEEP, about all locks of a part: it has another manager, perhaps this machine.
    pub(super) fn sweep_part(&mut self, now: u64, packet: &Packet) {
        self.pool.hand_over(packet.lock, packet.incarnation, packet.requester);
        let done = self.client.sweep_part(now, packet.lock, packet.incarnation, packet.request);
        self.answer_sweep(packet, done);
    }

    /// A writer whose lock a manager on another machine keeps becomes a reader. False if it is none.
    pub(super) fn downgrade_elsewhere(&mut self, now: u64, request: u64) -> bool {
        let known = self.client.get(request);
        let is_one = known.is_some_and(|it| it.mode == LockMode::Exclusive && self.config.is_beyond(it.lock));
        if is_one {
            self.client.downgrade(now, request);
        }
        is_one
    }
}
