//! The run: events in the order of their times, and what follows from each.

mod service;
mod tasks;
mod weather;

use super::checker::Checker;
use super::faults::Faults;
use super::place::{Doing, Place, Process};
use super::trace::{Actor, EVERY_LOCK, Trace, TraceEvent};
use super::{Counters, Failure, Report, Settings};
use crate::config::{Config, Identity};
use crate::control::Service;
use crate::decider::{self, Sessions, Store, To, Wide, decide};
use crate::lean::Lean;
use crate::node::Node;
use crate::pace::Pace;
use crate::packet::{AGENT, HEADER, Key, Kind, Packet, body, datagram, parse, parse_whole};
use crate::registry::{self, Change, Member, Registry};
use crate::word::{Machine, Profile};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use lockwork_random::Random;

const US: u64 = 1000;
const MS: u64 = 1000 * US;
/// How long a session lives without renewal.
const LEASE_MS: u32 = 100;
/// Longer than any packet is under way.
const QUARANTINE: u64 = 200 * MS;
/// How long a request may wait while everything goes wrong, and how long everything may take when nothing does any
/// more.
const TIMEOUT: u64 = 5_000 * MS;
/// More events at one time than these lead nowhere.
const MAX_AT_ONCE: u64 = 100_000;
/// More packets of one task in a millisecond than these are a storm.
const MAX_PACKETS: u64 = 400;
/// How often faults are thrown and waiting times looked at.
const WEATHER: u64 = MS;
/// Requests of one process are numbered with 32 bits.
const SERVICE: u32 = u32::MAX;

/// Something that will happen.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Then {
    Arrive { to: u32, from: u32, bytes: Vec<u8> },
    Tick { place: u32, life: u32 },
    Alarm { place: u32, life: u32, task: u32, alarm: u32 },
    Join { place: u32, life: u32, tries: u8 },
    Registry,
    Recorded { era: u32, member: usize, joins: bool },
    Restart { era: u32 },
    Weather,
}

struct World<S> {
    settings: Settings,
    faults: Faults,
    config: Config,
    key: Option<Key>,
    random: Random,
    now: u64,
    serial: u64,
    events: BinaryHeap<Reverse<(u64, u64, Then)>>,
    store: S,
    /// A store without locked locks, whose tokens are above this one.
    fresh: fn(u64, u64) -> S,
    service: Service,
    of_registry: registry::Config,
    registry: Registry<u32>,
    registry_tick: u64,
    /// How often the service has begun, and when it is there (again).
    era: u32,
    service_back: u64,
    /// Who takes part, as it is written down; and all that was ever to be.
    members: BTreeMap<Machine, Member<u32>>,
    noted: Vec<Member<u32>>,
    /// The registry's own agents.
    own: Node,
    places: Vec<Place>,
    checker: Checker,
    trace: Trace,
    counters: Counters,
    /// How many locks have been asked for once more.
    probed: u64,
    events_at_once: u64,
    packets_before: u64,
    failure: Option<(String, Option<u64>)>,
    /// Since when nothing new is asked for and nothing goes wrong.
    calm_since: Option<u64>,
}

pub(super) fn run(settings: Settings) -> Report {
    match settings.profile {
        Profile::Wide => World::new(settings, wide).run(),
        Profile::Lean => World::new(settings, |locks, _| Lean::new(locks as usize)).run(),
    }
}

fn wide(locks: u64, token: u64) -> Wide<Vec<decider::WideLock>> {
    let store = Wide::new(locks as usize);
    store.begin_tokens(token);
    store
}

impl<S: Store> World<S> {
    fn new(settings: Settings, fresh: fn(u64, u64) -> S) -> Self {
        let config = Config {
            profile: settings.profile,
            writers_first: settings.writers_first,
            retry: 300 * US,
            retry_most: 5 * MS,
            reask: 20 * MS,
            search: 2 * MS,
            enrol: 500 * US,
            confirm: 2 * MS,
            ghost: 5 * MS,
            starve: 200 * US,
            lease: u64::from(LEASE_MS) * MS,
            near: [0, settings.near],
            stay: MS,
            beyond: settings.beyond > 0,
            ..Config::new(settings.locks)
        };
        let service = Service {
            locks: settings.locks,
            lease_ms: LEASE_MS,
            profile: settings.profile,
            writers_first: settings.writers_first,
            names: 0,
            beyond: settings.beyond > 0,
        };
        let of_registry = registry::Config {
            grace_ns: MS,
            quarantine_ns: QUARANTINE,
            again_ns: 2 * MS,
            recorded: settings.faults.restarts > 0,
            ..registry::Config::new(LEASE_MS, 100)
        };
        let mut random = Random(settings.seed);
        let places = (0..settings.machines)
            .map(|_| Place::new(settings.tasks, random.scaled(1000 * MS), random.scaled(10)))
            .collect();
        // Without a key nothing tells damaged packets from others.
        let key = (settings.faults.damaged > 0 || settings.seed & 1 == 1).then_some(Key([7; 16]));
        let mut world = Self {
            settings,
            faults: settings.faults,
            config,
            key,
            random,
            now: 0,
            serial: 0,
            events: BinaryHeap::new(),
            store: fresh(settings.locks, 0),
            fresh,
            service,
            of_registry,
            registry: Registry::new(of_registry, service),
            registry_tick: u64::MAX,
            era: 0,
            service_back: 0,
            members: BTreeMap::new(),
            noted: Vec::new(),
            own: Node::registry(config),
            places,
            checker: Checker::new(settings.locks + settings.beyond, settings.profile == Profile::Wide),
            trace: Trace::new(),
            counters: Counters::default(),
            probed: 0,
            events_at_once: 0,
            packets_before: 0,
            failure: None,
            calm_since: None,
        };
        for place in 0..settings.machines {
            world.start_process(place, 0);
        }
        world.after(WEATHER, Then::Weather);
        world
    }

    fn run(mut self) -> Report {
        while self.failure.is_none()
            && let Some(Reverse((at, _, then))) = self.events.pop()
        {
            self.events_at_once = if at > self.now { 0 } else { self.events_at_once + 1 };
            if self.events_at_once > MAX_AT_ONCE {
                let at = (self.registry.next_tick(), self.own.next_tick());
                self.fail(None, format!("time stands still at {then:?}, registry and its agents wait for {at:?}"));
            }
            self.now = at;
            self.counters.time = at;
            match then {
                Then::Weather if self.is_over() => break,
                then => self.happen(then),
            }
        }
        for place in &self.places {
            self.counters.branches.add(&place.node().map(Node::branches).unwrap_or_default());
        }
        self.counters.branches.add(&self.own.branches());
        self.counters.expired += self.registry.counters().expired;
        let failure = self.failure.take().map(|(what, lock)| Failure {
            what,
            lock,
            trace: self.trace.about(lock.unwrap_or(EVERY_LOCK))
                + &lock.map(|lock| self.describe(lock)).unwrap_or_default(),
        });
        Report { settings: self.settings, counters: self.counters, failure }
    }

    fn describe(&self, lock: u64) -> String {
        let mut text = match lock < self.settings.locks {
            true => format!("the decider has {:?}\n", self.store.load(lock)),
            false => format!("its manager is {:?}\n", self.registry.manager(lock)),
        };
        for (name, node) in self.places.iter().enumerate().filter_map(|(at, place)| Some((at as u32, place.node()?))) {
            let machine = node.identity().machine.0;
            let (agent, requests) = (node.pool().describe(lock), node.client().describe(lock));
            text += &format!("place {name}, machine {machine}: {agent}\n{requests}");
        }
        text + "registry: " + &self.own.pool().describe(lock) + "\n"
    }

    fn after(&mut self, delay: u64, then: Then) {
        self.serial += 1;
        self.events.push(Reverse((self.now + delay, self.serial, then)));
    }

    fn fail(&mut self, lock: Option<u64>, what: String) {
        if self.failure.is_none() {
            self.failure = Some((format!("after {} us: {what}", self.now / US), lock));
        }
    }

    fn happen(&mut self, then: Then) {
        let (place, life) = match &then {
            Then::Arrive { to, .. } if *to != SERVICE => (*to, None),
            Then::Tick { place, life } | Then::Alarm { place, life, .. } | Then::Join { place, life, .. } => {
                (*place, Some(*life))
            }
            _ => (SERVICE, None),
        };
        if place != SERVICE {
            let here = &self.places[place as usize];
            if life.is_some_and(|life| life != here.life) {
                return;
            }
            if self.now < here.paused_until {
                let pause = here.paused_until - self.now;
                return self.after(pause, then);
            }
        }
        match then {
            Then::Arrive { to: SERVICE, from, bytes } => self.arrive_at_service(from, &bytes),
            Then::Arrive { to, bytes, .. } => self.arrive(to, &bytes),
            Then::Tick { place, .. } => self.tick(place),
            Then::Alarm { place, task, alarm, .. } => self.alarm(place, task, alarm),
            Then::Join { place, tries, .. } => self.join(place, tries),
            Then::Registry => self.tick_registry(),
            Then::Recorded { era, member, joins } => self.recorded(era, member, joins),
            Then::Restart { era } if era == self.era => self.restart_service(),
            Then::Restart { .. } => {}
            Then::Weather => self.weather(),
        }
    }

    // The network.

    fn send(&mut self, from: u32, to: u32, packet: &Packet, body: &[u8]) {
        self.send_datagram(from, to, packet, &datagram(packet, body, self.key.as_ref()));
    }

    fn send_datagram(&mut self, from: u32, to: u32, packet: &Packet, datagram: &[u8]) {
        self.counters.packets += 1;
        let place = if from == SERVICE { to } else { from };
        let cut = self.now < self.places[place as usize].cut_until;
        let copies = match () {
            () if cut || self.random.in_a_million(u64::from(self.faults.lost)) => 0,
            () if self.random.in_a_million(u64::from(self.faults.doubled)) => 2,
            () => 1,
        };
        self.counters.packets_lost += u64::from(copies == 0);
        self.counters.packets_doubled += u64::from(copies == 2);
        let mut first = 0;
        for copy in 0..copies {
            let mut bytes = datagram.to_vec();
            if self.random.in_a_million(u64::from(self.faults.damaged)) {
                let at = self.random.scaled(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.scaled(8);
                self.counters.packets_damaged += 1;
            }
            let (delay, late) = self.faults.delay(&mut self.random);
            self.counters.packets_late += u64::from(late);
            first = if copy == 0 { delay } else { first.min(delay) };
            self.after(delay, Then::Arrive { to, from, bytes });
        }
        let what = TraceEvent::Sent { to: who(to), packet: *packet, copies, after: first };
        self.trace.add(self.now, lock_of(packet), who(from), what);
    }

    // The service.

    fn arrive_at_service(&mut self, from: u32, bytes: &[u8]) {
        if self.now < self.places[from as usize].cut_until || self.now < self.service_back {
            return;
        }
        let Ok((packet, payload)) = parse(bytes, self.key.as_ref()) else { return };
        self.decide(from, packet, payload);
        self.drain_own();
    }

    /// As a daemon does it: the decider looks at headers only, and payloads are checked by who reads them.
    fn decide(&mut self, from: u32, packet: Packet, payload: &[u8]) {
        self.trace.add(self.now, lock_of(&packet), Actor::Service, TraceEvent::Received(packet));
        let settings = decider::Settings { writers_first: self.settings.writers_first };
        let of = packet.lock.min(self.settings.locks - 1);
        if !self.registry.admits(&self.store, &packet) {
            return;
        }
        let before = self.store.load(of);
        let outputs = decide(&self.store, &self.registry, settings, &packet);
        let after = self.store.load(of);
        if before != after {
            self.trace.add(self.now, of, Actor::Service, TraceEvent::Word(after));
        }
        for (to, packet) in outputs.packets.into_iter().flatten() {
            let payload = if outputs.payload { payload } else { &[] };
            let mut bytes = packet.header(payload.len(), self.key.as_ref()).to_vec();
            bytes.extend_from_slice(payload);
            let to = match to {
                To::Source => from,
                To::Machine(Machine::REGISTRY) => SERVICE,
                To::Machine(machine) => self.registry.address(machine).expect("the decider looked it up"),
            };
            if to != SERVICE {
                self.send_datagram(SERVICE, to, &packet, &bytes);
                continue;
            }
            let Ok(body) = body(&bytes, self.key.as_ref()) else { continue };
            if packet.kind.is_control() {
                match from {
                    SERVICE => self.registry.sweep_own(self.now, &packet),
                    _ => self.registry.receive(self.now, &self.store, from, &packet, body),
                }
                self.drain_registry();
            } else {
                self.own.receive(self.now, &packet, body);
            }
        }
        if packet.kind.is_decided() && packet.lock < self.settings.locks {
            self.check_agents(packet.lock);
        }
    }

    /// What the registry's agents have to say is decided on at once.
    fn drain_own(&mut self) {
        while let Some((packet, body)) = self.own.poll_packet() {
            let bytes = datagram(&packet, &body, self.key.as_ref());
            self.decide(SERVICE, packet, &bytes[HEADER..]);
        }
        if let Some(next) = self.own.next_tick() {
            self.wake_registry(next);
        }
    }

    fn drain_registry(&mut self) {
        while let Some(change) = self.registry.poll_change() {
            match change {
                Change::Joined { .. } => {}
                Change::Record(member) => self.record(member, true),
                Change::Forget { machine, session } => {
                    self.record(Member { machine, session, nonce: 0, address: 0, manages: false }, false);
                }
                Change::Gone { machine, session } => {
                    self.trace.add(self.now, EVERY_LOCK, Actor::Service, TraceEvent::Place("session ended", machine));
                    self.own.purge(self.now, machine, session);
                }
                Change::Adopted(adopted) => {
                    let word = self.store.load(adopted.lock);
                    self.trace.add(self.now, adopted.lock, Actor::Service, TraceEvent::Word(word));
                    self.counters.restored += u64::from(self.registry.recovering().is_some());
                    self.own.adopt(adopted.lock, adopted.incarnation, adopted.token);
                }
                Change::Swept(packet) => self.own.receive(self.now, &packet, &[]),
                Change::Relieved { lock, generation, to } => self.own.relieve(lock, generation, to),
                Change::Settled(adopted) => self.own.release_adopted(self.now, adopted.lock),
            }
        }
        while let Some((to, packet, body)) = self.registry.poll_packet() {
            self.send(SERVICE, to, &packet, &body);
        }
        if let Some(next) = self.registry.next_tick() {
            self.wake_registry(next);
        }
    }

    fn wake_registry(&mut self, at: u64) {
        if at < self.registry_tick {
            self.registry_tick = at.max(self.now);
            self.after(self.registry_tick - self.now, Then::Registry);
        }
    }

    fn tick_registry(&mut self) {
        if self.registry_tick > self.now || self.now < self.service_back {
            return;
        }
        self.registry_tick = u64::MAX;
        self.registry.tick(self.now, &self.store, 5);
        self.drain_registry();
        self.own.tick(self.now);
        self.drain_own();
    }

    // Machines.

    fn start_process(&mut self, place: u32, delay: u64) {
        let here = &mut self.places[place as usize];
        here.life += 1;
        here.tick = u64::MAX;
        here.process = Process::Down;
        for task in &mut here.tasks {
            task.doing = Doing::Nothing;
            task.alarm += 1;
        }
        let life = here.life;
        self.after(delay, Then::Join { place, life, tries: 0 });
    }

    fn join(&mut self, place: u32, tries: u8) {
        let clock = self.places[place as usize].clock(self.now);
        let life = self.places[place as usize].life;
        let fresh = u64::from(place) << 32 | u64::from(life);
        let nonce = match self.places[place as usize].process {
            Process::Running(_) => return,
            Process::Joining { nonce, .. } => nonce,
            Process::Down => {
                self.places[place as usize].process = Process::Joining { nonce: fresh, since: clock };
                fresh
            }
        };
        let flags = if place < self.settings.managers { AGENT } else { 0 };
        self.send(place, SERVICE, &Packet { request: nonce, flags, ..Packet::new(Kind::Join, 0) }, &[]);
        self.after(Pace::new(&self.config).backoff(tries), Then::Join { place, life, tries: tries.saturating_add(1) });
    }

    fn arrive(&mut self, place: u32, bytes: &[u8]) {
        let here = &mut self.places[place as usize];
        if self.now < here.cut_until {
            return;
        }
        let Ok((packet, body)) = parse_whole(bytes, self.key.as_ref()) else { return };
        self.trace.add(self.now, lock_of(&packet), Actor::Place(place), TraceEvent::Received(packet));
        let clock = here.clock(self.now);
        match &mut here.process {
            Process::Down => return,
            Process::Running(node) => {
                let before = node.identity();
                node.receive(clock, &packet, body);
                let Identity { machine, session } = node.identity();
                if session != before.session {
                    self.checker.goes_on(machine, before.session, session);
                }
            }
            Process::Joining { nonce, since } => {
                if packet.kind == Kind::Welcome && packet.request == *nonce {
                    let who = Identity { machine: packet.requester, session: packet.requester_session };
                    here.process = Process::Running(Box::new(Node::new(self.config, who, *since)));
                    self.trace.add(
                        self.now,
                        EVERY_LOCK,
                        Actor::Place(place),
                        TraceEvent::Place("has joined", who.machine),
                    );
                    for task in 0..self.settings.tasks {
                        self.think(place, task);
                    }
                }
            }
        }
        self.drain(place);
        if packet.lock < self.settings.locks && !packet.kind.is_control() {
            self.check_agents(packet.lock);
        }
    }

    fn tick(&mut self, place: u32) {
        let here = &mut self.places[place as usize];
        if here.tick > self.now {
            return;
        }
        here.tick = u64::MAX;
        let clock = here.clock(self.now);
        if let Process::Running(node) = &mut here.process {
            node.tick(clock);
        }
        self.drain(place);
        (0..self.settings.locks).for_each(|lock| self.check_agents(lock));
    }

    /// What a node has to say.
    fn drain(&mut self, place: u32) {
        while let Some(event) = self.places[place as usize].node_mut().and_then(Node::poll_event) {
            self.event(place, event);
        }
        while let Some((packet, body)) = self.places[place as usize].node_mut().and_then(Node::poll_packet) {
            self.send(place, SERVICE, &packet, &body);
        }
        let here = &mut self.places[place as usize];
        let Some(node) = here.node() else { return };
        if node.is_over() {
            // The process notices, and joins anew.
            let Identity { machine, session } = node.identity();
            let (until, branches) = (here.when(node.lease_until()), node.branches());
            self.counters.branches.add(&branches);
            self.checker.gone(machine, session, until);
            self.trace.add(self.now, EVERY_LOCK, Actor::Place(place), TraceEvent::Place("session over", machine));
            let delay = self.random.scaled(5 * MS);
            return self.start_process(place, delay);
        }
        let Some(next) = node.next_tick() else { return };
        let next = here.when(next).max(self.now);
        if next < here.tick {
            here.tick = next;
            let (life, delay) = (here.life, next - self.now);
            self.after(delay, Then::Tick { place, life });
        }
    }
}

const fn who(place: u32) -> Actor {
    if place == SERVICE { Actor::Service } else { Actor::Place(place) }
}

const fn lock_of(packet: &Packet) -> u64 {
    match packet.kind {
        Kind::Join | Kind::Welcome | Kind::Renew | Kind::Renewed | Kind::Leave | Kind::Left | Kind::Died => EVERY_LOCK,
        Kind::Swept if packet.lock == 0 => EVERY_LOCK,
        _ => packet.lock,
    }
}
