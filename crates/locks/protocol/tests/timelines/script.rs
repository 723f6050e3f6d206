//! Machines, a decider and a registry, between which a test carries every packet by hand.
//!
//! A test reads as a timeline: what a task does, which packets are then under way, which of them arrive and which do
//! not. Whoever is granted a lock that another holds is found at once. The decider's rule can be replaced, to show what
//! it is good for.

use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::decider::{self, Outputs, Store, To, Wide, WideLock};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{AGENT, Kind, MAX_BYTES, Packet, body, datagram, parse};
use lockwork_lock_protocol::registry::{self, Change, Member, Registry};
use lockwork_lock_protocol::report::in_era;
use lockwork_lock_protocol::word::{Machine, Profile, Word};
use lockwork_locking::LockMode;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SHARED: LockMode = LockMode::Shared;
pub(crate) const EXCLUSIVE: LockMode = LockMode::Exclusive;
/// The address of the decider and the registry.
pub(crate) const SERVICE: u16 = 0;
/// Longer than any test: nobody has to renew.
const LEASE_MS: u32 = 1_000_000;

pub(crate) type Locks = Wide<Vec<WideLock>>;
/// What a decider does with a packet.
pub(crate) type Rule = Box<dyn FnMut(&Locks, &Registry<u16>, &Packet) -> Outputs>;

/// A packet under way.
#[derive(Clone, Debug)]
pub(crate) struct Flying {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) packet: Packet,
    pub(crate) body: Vec<u8>,
}

/// One who holds, as its task knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) machine: u16,
    pub(crate) request: u64,
    pub(crate) mode: LockMode,
    pub(crate) token: u64,
}

pub(crate) struct Script {
    pub(crate) now: u64,
    pub(crate) store: Locks,
    config: Config,
    service: Service,
    times: registry::Config,
    pub(crate) registry: Registry<u16>,
    own: Node,
    rule: Rule,
    /// How often the service was lost.
    era: u32,
    /// Machines that nothing reaches, and of which nothing comes.
    pub(crate) cut: BTreeSet<u16>,
    nodes: BTreeMap<u16, Node>,
    pub(crate) flying: Vec<Flying>,
    /// Every packet that was sent, in order.
    pub(crate) sent: Vec<Flying>,
    holds: BTreeMap<u64, Vec<Hold>>,
    /// The newest token of a writer of each lock, and of anybody.
    tokens: BTreeMap<u64, (u64, u64)>,
    pub(crate) events: Vec<(u16, Event)>,
    /// The first time that somebody was granted what another held.
    pub(crate) violation: Option<String>,
    /// Requests that are not given back yet.
    asked: BTreeSet<(u16, u64)>,
    /// As in the paper, a client ignores a grant that it does not wait for.
    pub(crate) ignores_unknown_grants: bool,
    /// In which order each machine first sent its packets.
    pub(crate) numbers: Numbers,
}

/// Packets of machines in the order in which they were first sent; a copy has the number of the first.
pub(crate) type Numbers = Rc<RefCell<BTreeMap<(u16, String), u64>>>;

/// What tells a packet from others of its sender.
pub(crate) fn name(packet: &Packet) -> String {
    format!("{:?} {} {:x} {}", packet.kind, packet.lock, packet.request, packet.incarnation)
}

/// The rule of this crate.
pub(crate) fn ours(writers_first: bool) -> Rule {
    Box::new(move |store, sessions, packet| {
        decider::decide(store, sessions, decider::Settings { writers_first }, packet)
    })
}

impl Script {
    /// So many machines, numbered from 1, and 16 locks.
    pub(crate) fn new(machines: u16) -> Self {
        Self::with(machines, false, ours(false))
    }

    /// With another rule in the decider.
    pub(crate) fn with(machines: u16, writers_first: bool, rule: Rule) -> Self {
        Self::of(machines, 0, writers_first, rule)
    }

    /// With locks beyond the 16, of which the first so many machines offer to manage some.
    pub(crate) fn managed(machines: u16, managers: u16) -> Self {
        Self::of(machines, managers, false, ours(false))
    }

    fn of(machines: u16, managers: u16, writers_first: bool, rule: Rule) -> Self {
        let beyond = managers > 0;
        let service =
            Service { locks: 16, lease_ms: LEASE_MS, profile: Profile::Wide, writers_first, names: 0, beyond };
        let config = Config { lease: u64::from(LEASE_MS) * MS, writers_first, beyond, ..Config::new(16) };
        let times = registry::Config { grace_ns: MS, again_ns: MS, ..registry::Config::new(LEASE_MS, 1000) };
        let mut script = Self {
            now: 0,
            store: Wide::new(16),
            config,
            service,
            times,
            registry: Registry::new(times, service),
            own: Node::registry(config),
            rule,
            era: 0,
            cut: BTreeSet::new(),
            nodes: BTreeMap::new(),
            flying: Vec::new(),
            sent: Vec::new(),
            holds: BTreeMap::new(),
            tokens: BTreeMap::new(),
            events: Vec::new(),
            violation: None,
            asked: BTreeSet::new(),
            ignores_unknown_grants: false,
            numbers: Numbers::default(),
        };
        for machine in 1..=machines {
            let flags = if machine <= managers { AGENT } else { 0 };
            let join = Packet { request: u64::from(machine), flags, ..Packet::new(Kind::Join, 0) };
            script.registry.receive(0, &script.store, machine, &join, &[]);
            let (_, welcome, _) = script.registry.poll_packet().expect("a welcome");
            assert_eq!(welcome.requester, Machine(machine));
            let who = Identity { machine: Machine(machine), session: welcome.requester_session };
            script.nodes.insert(machine, Node::new(config, who, 0));
        }
        while script.registry.poll_change().is_some() {}
        script
    }

    pub(crate) fn node(&self, machine: u16) -> &Node {
        &self.nodes[&machine]
    }

    pub(crate) fn word(&self, lock: u64) -> Word {
        self.store.load(lock)
    }

    fn node_mut(&mut self, machine: u16) -> &mut Node {
        self.nodes.get_mut(&machine).expect("a machine of the script")
    }

    pub(crate) fn session(&self, machine: u16) -> u32 {
        self.nodes[&machine].identity().session
    }

    // What tasks do.

    pub(crate) fn acquire(&mut self, machine: u16, lock: u64, mode: LockMode) -> u64 {
        self.ask(machine, lock, mode, Ask::default())
    }

    pub(crate) fn ask(&mut self, machine: u16, lock: u64, mode: LockMode, ask: Ask) -> u64 {
        let now = self.now;
        let request = self.node_mut(machine).acquire(now, lock, mode, ask).expect("a lock that there is");
        self.asked.insert((machine, request));
        self.drain(machine);
        request
    }

    pub(crate) fn release(&mut self, machine: u16, request: u64) {
        let now = self.now;
        self.forget(machine, request);
        self.node_mut(machine).release(now, request).expect("it holds or waits");
        self.drain(machine);
    }

    pub(crate) fn downgrade(&mut self, machine: u16, request: u64) {
        let now = self.now;
        self.node_mut(machine).downgrade(now, request).expect("it holds exclusively");
        for hold in self.holds.values_mut().flatten() {
            if (hold.machine, hold.request) == (machine, request) {
                hold.mode = SHARED;
            }
        }
        self.drain(machine);
    }

    fn forget(&mut self, machine: u16, request: u64) {
        self.asked.remove(&(machine, request));
        self.holds.values_mut().for_each(|all| all.retain(|hold| (hold.machine, hold.request) != (machine, request)));
    }

    pub(crate) fn holds(&self, machine: u16, request: u64) -> bool {
        self.hold(machine, request).is_some()
    }

    pub(crate) fn hold(&self, machine: u16, request: u64) -> Option<Hold> {
        self.holds.values().flatten().find(|hold| (hold.machine, hold.request) == (machine, request)).copied()
    }

    // What the network does.

    /// The packets under way, a line each: kind, from, to.
    pub(crate) fn under_way(&self) -> Vec<String> {
        let place = |at: u16| if at == SERVICE { "decider".to_owned() } else { format!("{at}") };
        let line = |one: &Flying| format!("{:?} {} to {}", one.packet.kind, place(one.from), place(one.to));
        self.flying.iter().map(line).collect()
    }

    /// Takes the first packet that fits out of the network: it is lost, or late.
    pub(crate) fn take(&mut self, fits: impl Fn(&Flying) -> bool) -> Flying {
        let at = self.flying.iter().position(fits);
        self.flying.remove(at.unwrap_or_else(|| panic!("no such packet among {:#?}", self.under_way())))
    }

    /// The first packet of a kind to a machine, 0 for the decider, out of the network.
    pub(crate) fn take_kind(&mut self, kind: Kind, to: u16) -> Flying {
        self.take(|one| one.packet.kind == kind && one.to == to)
    }

    /// The first packet of a kind to a machine arrives.
    pub(crate) fn deliver_kind(&mut self, kind: Kind, to: u16) {
        let one = self.take_kind(kind, to);
        self.deliver(one);
    }

    /// A packet arrives.
    pub(crate) fn deliver(&mut self, one: Flying) {
        let Flying { from, to, packet, body: of } = one;
        // Through bytes, as on a wire.
        let bytes = datagram(&packet, &of, None);
        assert!(bytes.len() <= MAX_BYTES);
        let packet = parse(&bytes, None).expect("a packet").0;
        let of = body(&bytes, None).expect("a body");
        if to == SERVICE {
            self.decide(from, packet, of);
            self.drain_own();
        } else {
            let unknown = packet.kind == Kind::Grant && !self.asked.contains(&(to, packet.request));
            if unknown && self.ignores_unknown_grants {
                return;
            }
            let now = self.now;
            self.node_mut(to).receive(now, &packet, of);
            self.drain(to);
        }
    }

    /// All packets arrive, in the order in which they were sent, until none is under way.
    pub(crate) fn settle(&mut self) {
        let mut count = 0;
        while !self.flying.is_empty() {
            let one = self.flying.remove(0);
            self.deliver(one);
            count += 1;
            assert!(count < 100_000, "packets without end: {:#?}", self.under_way());
        }
    }

    /// Time passes on a perfect network.
    pub(crate) fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        self.settle();
        while let Some(next) = self.next_tick().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.tick();
            self.settle();
        }
        self.now = until;
    }

    /// Time passes, and nothing arrives; what is due is sent.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.tick();
    }

    fn next_tick(&self) -> Option<u64> {
        let nodes = self.nodes.values().chain([&self.own]).filter_map(Node::next_tick);
        nodes.chain(self.registry.next_tick()).min()
    }

    fn tick(&mut self) {
        let (now, machines) = (self.now, self.nodes.keys().copied().collect::<Vec<_>>());
        for machine in machines {
            self.node_mut(machine).tick(now);
            self.drain(machine);
        }
        self.registry.tick(now, &self.store, 1000);
        self.own.tick(now);
        self.drain_own();
        self.drain_registry();
    }

    /// A machine is gone, and the registry knows.
    pub(crate) fn leave(&mut self, machine: u16) {
        let node = self.nodes.remove(&machine).expect("a machine of the script");
        self.holds.values_mut().for_each(|all| all.retain(|hold| hold.machine != machine));
        self.flying.retain(|one| one.to != machine);
        self.registry.dismiss(self.now, node.identity().machine);
        self.drain_registry();
    }

    /// The service is lost with its words, sessions and agents, and begins anew: its first packets are under way.
    pub(crate) fn restart(&mut self) {
        self.era += 1;
        let token = u64::from(self.era) << 40;
        self.store = Wide::new(16);
        self.store.begin_tokens(token);
        self.own = Node::registry(self.config);
        let members = self.nodes.iter().map(|(machine, node)| Member {
            machine: Machine(*machine),
            session: in_era(node.joined(), self.era),
            nonce: u64::from(*machine),
            address: *machine,
            manages: false,
        });
        let times = registry::Config { first_token: token, ..self.times };
        self.registry = Registry::restore(self.now, times, self.service, members);
        self.pass(0);
    }

    fn send(&mut self, from: u16, to: u16, packet: Packet, body: Vec<u8>) {
        if self.cut.contains(&from) || self.cut.contains(&to) {
            return;
        }
        if from != SERVICE {
            let mut numbers = self.numbers.borrow_mut();
            let next = numbers.len() as u64;
            numbers.entry((from, name(&packet))).or_insert(next);
        }
        let one = Flying { from, to, packet, body };
        self.sent.push(one.clone());
        self.flying.push(one);
    }

    fn decide(&mut self, from: u16, packet: Packet, body: &[u8]) {
        if from != SERVICE && !self.registry.admits(&self.store, &packet) {
            return;
        }
        let outputs = (self.rule)(&self.store, &self.registry, &packet);
        for (to, packet) in outputs.packets.into_iter().flatten() {
            let body = if outputs.payload { body.to_vec() } else { Vec::new() };
            let to = match to {
                To::Source => from,
                To::Machine(machine) => machine.0,
            };
            match (to, packet.kind.is_control()) {
                (SERVICE, true) if from == SERVICE => self.registry.sweep_own(self.now, &packet),
                (SERVICE, true) => self.registry.receive(self.now, &self.store, from, &packet, &body),
                (SERVICE, false) => self.own.receive(self.now, &packet, &body),
                _ if self.nodes.contains_key(&to) => self.send(SERVICE, to, packet, body),
                _ => {}
            }
        }
        self.drain_registry();
    }

    fn drain_own(&mut self) {
        while let Some((packet, body)) = self.own.poll_packet() {
            self.decide(SERVICE, packet, &body);
        }
    }

    fn drain_registry(&mut self) {
        while let Some(change) = self.registry.poll_change() {
            match change {
                Change::Joined { .. } | Change::Record(_) | Change::Forget { .. } => {}
                Change::Gone { machine, session } => self.own.purge(self.now, machine, session),
                Change::Adopted(adopted) => self.own.adopt(adopted.lock, adopted.incarnation, adopted.token),
                Change::Settled(adopted) => self.own.release_adopted(self.now, adopted.lock),
                Change::Swept(packet) => self.own.receive(self.now, &packet, &[]),
                Change::Relieved { lock, generation, to } => self.own.relieve(lock, generation, to),
            }
        }
        while let Some((to, packet, body)) = self.registry.poll_packet() {
            self.send(SERVICE, to, packet, body);
        }
    }

    fn drain(&mut self, machine: u16) {
        while let Some(event) = self.node_mut(machine).poll_event() {
            self.events.push((machine, event));
            match event {
                Event::Granted { request, lock, mode, token } => {
                    let all = self.holds.entry(lock).or_default();
                    let hold = Hold { machine, request, mode, token };
                    if let Some(other) = all.iter().find(|other| (other.mode, mode) != (SHARED, SHARED)) {
                        self.violation.get_or_insert(format!("{hold:x?} while {other:x?}"));
                    }
                    let (writer, anybody) = self.tokens.entry(lock).or_default();
                    let old = if mode == EXCLUSIVE { token <= *anybody } else { token < *writer };
                    if old {
                        self.violation.get_or_insert(format!("{hold:x?}, but tokens were {writer:x} and {anybody:x}"));
                    }
                    *anybody = token.max(*anybody);
                    *writer = if mode == EXCLUSIVE { token } else { *writer };
                    all.push(hold);
                }
                Event::Lost { request, .. }
                | Event::Busy { request }
                | Event::TimedOut { request }
                | Event::Failed { request, .. } => self.forget(machine, request),
                _ => {}
            }
        }
        while let Some((packet, body)) = self.node_mut(machine).poll_packet() {
            self.send(machine, SERVICE, packet, body);
        }
    }

    // What a test asks at the end.

    /// A packet that nobody has sent lately: an old copy.
    pub(crate) fn old(&mut self, from: u16, to: u16, packet: Packet) {
        self.deliver(Flying { from, to, packet: Packet { target: Machine(to), ..packet }, body: Vec::new() });
    }

    /// Everybody who holds gives back, a second passes, and then nobody waits, every lock is free and every machine
    /// idle.
    ///
    /// # Errors
    /// What is not so.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        for _ in 0..1000 {
            self.run(10 * MS);
            for hold in self.holds.values().flatten().copied().collect::<Vec<_>>() {
                self.release(hold.machine, hold.request);
            }
        }
        if let Some(violation) = &self.violation {
            return Err(format!("mutual exclusion: {violation}"));
        }
        let busy: Vec<_> = self.nodes.iter().filter(|(_, node)| !node.is_idle()).map(|(machine, _)| machine).collect();
        let held: Vec<_> = (0..16).filter(|lock| self.word(*lock).machine != Machine(0)).collect();
        if busy.is_empty() && held.is_empty() && (0..16).all(|lock| self.word(lock).state == Word::NEW.state) {
            return Ok(());
        }
        Err(format!("no rest: machines {busy:?} are not idle, locks {held:?} are not free: {:?}", self.word(0)))
    }
}
