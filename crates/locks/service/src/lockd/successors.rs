//! The registry's own agents: those of locks whose machine died.
//!
//! They are agents as on any machine, of machine 0, which has no tasks and no lease. Once all machines have said what
//! they hold, an agent hands its lock on or gives it back, and is gone.
//!
//! *Invariant*: packets about a lock are for an agent here only if its word says so. Those that name a machine which is
//! gone reach the registry too, before its words have been looked at; they are dropped, and their senders repeat them.

use crate::status;
use lockwork_lock_protocol::config::Config;
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::decider::Store;
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_lock_protocol::registry::Adopted;
use lockwork_lock_protocol::word::Machine;

#[derive(Debug)]
pub(super) struct Successors(Node);

impl Successors {
    pub(super) fn new(service: Service) -> Self {
        let config = Config {
            profile: service.profile,
            writers_first: service.writers_first,
            beyond: service.beyond,
            ..Config::new(service.locks)
        };
        Self(Node::registry(config))
    }

    pub(super) fn adopt(&mut self, adopted: Adopted) {
        self.0.adopt(adopted.lock, adopted.incarnation, adopted.token);
    }

    pub(super) fn settle(&mut self, now: u64, adopted: Adopted) {
        self.0.release_adopted(now, adopted.lock);
    }

    /// A machine is gone: it neither holds nor waits any more.
    pub(super) fn gone(&mut self, now: u64, machine: Machine, session: u32) {
        self.0.purge(now, machine, session);
    }

    pub(super) const fn node_mut(&mut self) -> &mut Node {
        &mut self.0
    }

    /// A packet that the decider has sent to the registry, with the queue that an agent brings, if it brings one.
    pub(super) fn routed(&mut self, now: u64, store: &impl Store, packet: &Packet, body: &[u8]) {
        let about_an_agent = matches!(packet.kind, Kind::Acquire | Kind::Release | Kind::Enrol | Kind::Seek);
        if about_an_agent && packet.lock < store.locks() && store.load(packet.lock).machine != Machine::REGISTRY {
            return;
        }
        self.0.receive(now, packet, body);
    }

    /// Another machine manages the part of this lock.
    pub(super) fn relieve(&mut self, lock: u64, generation: u32, to: Machine) {
        self.0.relieve(lock, generation, to);
    }

    pub(super) fn receive(&mut self, now: u64, packet: &Packet) {
        self.0.receive(now, packet, &[]);
    }

    pub(super) fn tick(&mut self, now: u64) {
        self.0.tick(now);
    }

    pub(super) fn next_tick(&self) -> Option<u64> {
        self.0.next_tick()
    }

    pub(super) fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        self.0.poll_packet()
    }

    pub(super) fn has(&self, lock: u64) -> bool {
        self.0.pool().view(lock).is_some()
    }

    pub(super) fn count(&self) -> u64 {
        self.0.pool().len() as u64
    }

    /// What is known about a lock here, for people.
    pub(super) fn status(&self, asked: &Packet) -> (Packet, Vec<u8>) {
        status::answer(&self.0, asked)
    }
}
