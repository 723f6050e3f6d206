//! One decider with its registry, as a daemon drives them, and what is written down.

use lockwork_lock_protocol::beyond::PARTS;
use lockwork_lock_protocol::config::Config;
use lockwork_lock_protocol::control::{Service, address_to_body};
use lockwork_lock_protocol::decider::{Settings, To, Wide, WideLock, decide};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_lock_protocol::racks::{Diverted, Duty, Handed, Racks};
use lockwork_lock_protocol::registry::{self, Change, Member, Registry};
use lockwork_lock_protocol::report::in_era;
use lockwork_lock_protocol::word::{Machine, Profile};
use std::collections::BTreeMap;
use std::net::SocketAddr;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const LEASE_MS: u32 = 100;
/// Some parts have two locks, most have one.
pub(crate) const LOCKS: u64 = PARTS + 8;

/// Where a rack is.
pub(crate) fn address(rack: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + rack as u8], 7400))
}

/// What the tokens of a rack that begins now are above: their clocks differ.
fn clock(now: u64, rack: usize) -> u64 {
    (now / MS + 30 * rack as u64) << 23
}

pub(crate) fn rack_at(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { panic!("{address} is no rack") };
    usize::from(address.ip().octets()[3] - 1)
}

/// What is written down about a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) owner: usize,
    pub(crate) token: u64,
    pub(crate) to: Option<usize>,
    /// One larger with every change.
    pub(crate) generation: u64,
}

impl Part {
    fn duty(self, rack: usize) -> Duty {
        match (self.owner == rack, self.to) {
            (true, None) => Duty::Decides,
            (true, Some(to)) => Duty::Leaves { to: address(to) },
            (false, Some(to)) if to == rack => Duty::Comes,
            (false, _) => Duty::Elsewhere { at: address(self.owner) },
        }
    }
}

/// What is durable.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) parts: Vec<Part>,
    pub(crate) handed: Vec<Handed>,
    members: Vec<BTreeMap<Machine, Member<u32>>>,
}

impl Records {
    pub(crate) fn new(racks: usize) -> Self {
        let part = |at: u64| Part { owner: at as usize % racks, token: 0, to: None, generation: 0 };
        Self { parts: (0..PARTS).map(part).collect(), handed: Vec::new(), members: vec![BTreeMap::new(); racks] }
    }
}

pub(crate) type Sent = (u32, Packet, Vec<u8>);

#[derive(Debug)]
pub(crate) struct Rack {
    pub(crate) name: usize,
    store: Wide<Vec<WideLock>>,
    registry: Registry<u32>,
    own: Node,
    racks: Racks,
    era: u32,
    /// Of what it has heard about the parts.
    generations: Vec<u64>,
    /// Handed on, and not durable before.
    writing: Vec<(u64, Handed)>,
}

fn service() -> Service {
    Service { locks: LOCKS, lease_ms: LEASE_MS, profile: Profile::Wide, writers_first: false, names: 0, beyond: false }
}

pub(crate) fn config() -> Config {
    Config {
        retry: MS / 2,
        retry_most: 5 * MS,
        reask: 20 * MS,
        enrol: MS / 2,
        confirm: 2 * MS,
        ghost: 5 * MS,
        lease: u64::from(LEASE_MS) * MS,
        ..Config::new(LOCKS)
    }
}

impl Rack {
    /// Begins, or begins anew, with what is durable; not before its clock is past all tokens.
    pub(crate) fn start(now: u64, name: usize, era: u32, records: &Records) -> Option<Self> {
        let parts = std::array::from_fn(|at| (records.parts[at].duty(name), records.parts[at].token));
        let first_token = clock(now, name);
        if Racks::least_clock(&parts, &records.handed) > first_token {
            return None;
        }
        let store = Wide::new(LOCKS as usize);
        store.begin_tokens(first_token);
        let own = Node::registry(config());
        let racks = Racks::new(&store, parts, &records.handed);
        let of_registry = registry::Config {
            grace_ns: MS,
            quarantine_ns: 200 * MS,
            again_ns: 2 * MS,
            recorded: true,
            first_token,
            ..registry::Config::new(LEASE_MS, in_era(100 + era * 10_000, era))
        };
        let in_this = |member: &Member<u32>| Member { session: in_era(member.session, era), ..*member };
        let members: Vec<_> = records.members[name].values().map(in_this).collect();
        let registry = Registry::restore(now, of_registry, service(), members);
        let generations = records.parts.iter().map(|part| part.generation).collect();
        Some(Self { name, store, registry, own, racks, era, generations, writing: Vec::new() })
    }

    pub(crate) const fn era(&self) -> u32 {
        self.era
    }

    /// A packet from a machine; what is sent.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        from: u32,
        packet: &Packet,
        body: &[u8],
        records: &mut Records,
    ) -> Vec<Sent> {
        let mut sent = Vec::new();
        if packet.kind.is_control() {
            self.registry.receive(now, &self.store, from, packet, body);
        } else if self.registry.admits(&self.store, packet) {
            self.decide(now, Some(from), packet, body, &mut sent);
        }
        self.drain(now, records, &mut sent);
        sent
    }

    fn decide(&mut self, now: u64, from: Option<u32>, packet: &Packet, body: &[u8], sent: &mut Vec<Sent>) {
        let outputs = decide(&self.store, &self.registry, Settings { writers_first: false }, packet);
        let body = if outputs.payload { body } else { &[] };
        for (to, packet) in outputs.packets.into_iter().flatten() {
            let to = match (to, from) {
                (To::Machine(Machine::REGISTRY), _) => {
                    self.routed(now, &packet, body, sent);
                    continue;
                }
                (To::Source, None) => {
                    self.own.receive(now, &packet, body);
                    continue;
                }
                (To::Source, Some(from)) => Some(from),
                (To::Machine(machine), _) => self.registry.address(machine),
            };
            sent.extend(to.map(|to| (to, packet, body.to_vec())));
        }
    }

    fn routed(&mut self, now: u64, packet: &Packet, body: &[u8], sent: &mut Vec<Sent>) {
        let requester = self.registry.address(packet.requester);
        match self.racks.divert(&self.store, packet) {
            None => self.own.receive(now, packet, body),
            Some(Diverted::Dropped) => {}
            Some(Diverted::Answered(answer)) => sent.extend(requester.map(|to| (to, answer, Vec::new()))),
            Some(Diverted::Moved(answer, at)) => sent.extend(requester.map(|to| (to, answer, address_to_body(at)))),
        }
    }

    fn drain(&mut self, now: u64, records: &mut Records, sent: &mut Vec<Sent>) {
        loop {
            if let Some(change) = self.registry.poll_change() {
                match change {
                    Change::Record(member) => {
                        records.members[self.name].insert(member.machine, member);
                        self.registry.recorded(&member);
                    }
                    Change::Forget { machine, .. } => _ = records.members[self.name].remove(&machine),
                    Change::Gone { machine, session } => self.own.purge(now, machine, session),
                    Change::Adopted(adopted) => self.own.adopt(adopted.lock, adopted.incarnation, adopted.token),
                    Change::Settled(adopted) => self.own.release_adopted(now, adopted.lock),
                    Change::Swept(packet) => self.own.receive(now, &packet, &[]),
                    _ => {}
                }
            } else if let Some((packet, body)) = self.own.poll_packet() {
                match packet.kind {
                    Kind::Sweep => self.registry.sweep_own(now, &packet),
                    kind if kind.is_control() => {}
                    _ => self.decide(now, None, &packet, &body, sent),
                }
            } else if let Some((packet, at)) = self.racks.poll_moved() {
                let to = self.registry.address(packet.requester);
                sent.extend(to.map(|to| (to, packet, address_to_body(at))));
            } else if let Some((to, packet, body)) = self.registry.poll_packet() {
                sent.push((to, packet, body));
            } else {
                return;
            }
        }
    }

    pub(crate) fn tick(&mut self, now: u64, records: &mut Records) -> Vec<Sent> {
        let mut sent = Vec::new();
        // Few at a time, so that other things happen while a scan goes on.
        self.registry.tick(now, &self.store, 4);
        self.own.tick(now);
        self.drain(now, records, &mut sent);
        if self.registry.recovering().is_none() && !self.registry.settles() {
            let handed = self.racks.step(now, &self.store, &mut self.own, 1);
            self.writing.extend(handed.into_iter().map(|handed| (now + MS, handed)));
            self.drain(now, records, &mut sent);
        }
        for (_, handed) in self.writing.extract_if(.., |(at, _)| *at <= now) {
            records.handed.push(handed);
        }
        sent
    }

    /// Writes down which parts have left, and looks at what is written down, if it can be read.
    pub(crate) fn look(&mut self, now: u64, records: &mut Records, reads: bool) -> u64 {
        let (mut left, clock) = (0, clock(now, self.name));
        for at in 0..PARTS {
            let written = self.writing.iter().all(|(_, handed)| handed.part != at);
            if let Some(token) = self.racks.left(at, &self.store).filter(|_| written) {
                let part = &mut records.parts[at as usize];
                if part.owner == self.name && part.generation == self.generations[at as usize] {
                    let (owner, token) = (part.to.expect("it leaves"), token.max(part.token));
                    *part = Part { owner, token, to: None, generation: part.generation + 1 };
                    records.handed.retain(|handed| handed.part != at);
                    left += 1;
                }
            }
            let (part, known) = (records.parts[at as usize], &mut self.generations[at as usize]);
            let duty = (part.duty(self.name), part.token);
            if reads && self.racks.set(&self.store, at, duty, part.generation > *known, clock) {
                *known = part.generation;
            }
        }
        for handed in records.handed.iter().filter(|_| reads) {
            self.racks.receive(&self.store, handed, clock);
        }
        left
    }

    pub(crate) fn describe(&self, lock: u64) -> String {
        use lockwork_lock_protocol::decider::Store;
        let word = self.store.load(lock);
        format!("rack {}: {:?}, {word:?}, {}\n", self.name, self.racks.duty(lock), self.own.pool().describe(lock))
    }
}
