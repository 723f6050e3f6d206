//! The network: one queue of packets, which are decided on and delivered one after the other; a line for each.

use lockwork_lock_protocol::client::{Ask, Event, task_of};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::decider::{Settings, Store, To, Wide, WideLock, decide};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{AGENT, BUSY, GRANTED, Kind, Packet, TRY, waiters_of_body};
use lockwork_lock_protocol::registry::{self, Change, Registry};
use lockwork_lock_protocol::word::{Machine, Profile};
use lockwork_locking::LockMode;
use std::collections::VecDeque;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const LOCKS: u64 = 64;
/// The lock of tests that need only one.
pub(crate) const LOCK: u64 = 7;
const LEASE_MS: u32 = 2000;

/// How often a packet to the decider arrives.
type Copies = Box<dyn FnMut(&Packet) -> usize>;

pub(crate) struct Network {
    pub(crate) now: u64,
    pub(crate) config: Config,
    /// Machine 1 is at 0; `None` after a crash.
    machines: Vec<Option<Node>>,
    store: Wide<Vec<WideLock>>,
    registry: Registry<u16>,
    /// The registry's own agents.
    heirs: Node,
    /// Where from, and what.
    wire: VecDeque<(Option<u16>, Packet, Vec<u8>)>,
    pub(crate) copies: Copies,
    /// What the decider sends of this kind does not arrive.
    pub(crate) lose: Option<Kind>,
    lines: Vec<String>,
    events: Vec<(u16, Event)>,
}

impl Network {
    /// So many machines, which have joined.
    pub(crate) fn new(machines: u16, writers_first: bool) -> Self {
        let config = Config { writers_first, ..Config::new(LOCKS) };
        let service = Service {
            locks: LOCKS,
            lease_ms: LEASE_MS,
            profile: Profile::Wide,
            writers_first,
            names: 0,
            beyond: false,
        };
        let mut network = Self {
            now: 0,
            config,
            machines: Vec::new(),
            store: Wide::<Vec<WideLock>>::new(LOCKS as usize),
            registry: Registry::new(registry::Config::new(LEASE_MS, 100), service),
            heirs: Node::registry(config),
            wire: VecDeque::new(),
            copies: Box::new(|_| 1),
            lose: None,
            lines: Vec::new(),
            events: Vec::new(),
        };
        (0..machines).for_each(|_| _ = network.join());
        network
    }

    /// One more machine joins. Gives its number.
    pub(crate) fn join(&mut self) -> u16 {
        let place = self.machines.len() as u16 + 1;
        let join = Packet { request: u64::from(place), ..Packet::new(Kind::Join, 0) };
        self.registry.receive(self.now, &self.store, place, &join, &[]);
        let welcome =
            std::iter::from_fn(|| self.registry.poll_packet()).find(|(_, packet, _)| packet.kind == Kind::Welcome);
        let (_, welcome, _) = welcome.expect("there is room");
        let me = Identity { machine: welcome.requester, session: welcome.requester_session };
        assert_eq!(me.machine, Machine(place), "numbers are given in order");
        self.machines.push(Some(Node::new(self.config, me, self.now)));
        self.run();
        place
    }

    pub(crate) fn node(&self, machine: u16) -> &Node {
        self.machines[usize::from(machine) - 1].as_ref().expect("it is alive")
    }

    /// Lets a machine do something, and everything follow from it that takes no time.
    pub(crate) fn at<T>(&mut self, machine: u16, work: impl FnOnce(&mut Node, u64) -> T) -> T {
        let node = self.machines[usize::from(machine) - 1].as_mut().expect("it is alive");
        let result = work(node, self.now);
        self.run();
        result
    }

    /// A task, named by a letter, asks for [`LOCK`]. Gives the request.
    pub(crate) fn ask(&mut self, machine: u16, task: char, mode: LockMode) -> u64 {
        self.ask_as(machine, task, mode, Ask::default())
    }

    pub(crate) fn ask_as(&mut self, machine: u16, task: char, mode: LockMode, ask: Ask) -> u64 {
        let ask = Ask { task: task as u32, ..ask };
        self.at(machine, |node, now| node.acquire(now, LOCK, mode, ask).expect("the lock is there"))
    }

    pub(crate) fn read(&mut self, machine: u16, task: char) -> u64 {
        self.ask(machine, task, LockMode::Shared)
    }

    pub(crate) fn write(&mut self, machine: u16, task: char) -> u64 {
        self.ask(machine, task, LockMode::Exclusive)
    }

    pub(crate) fn release(&mut self, machine: u16, request: u64) {
        self.at(machine, |node, now| node.release(now, request)).expect("it holds or waits");
    }

    /// A process is gone, without a word.
    pub(crate) fn crash(&mut self, machine: u16) {
        self.machines[usize::from(machine) - 1] = None;
    }

    /// Time goes by, and what is due is done.
    pub(crate) fn pass(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            let nodes = self.machines.iter().flatten().filter_map(Node::next_tick);
            let next = nodes.chain(self.registry.next_tick()).chain(self.heirs.next_tick()).min();
            self.now = next.unwrap_or(u64::MAX).clamp(self.now, end);
            self.machines.iter_mut().flatten().for_each(|node| node.tick(self.now));
            self.heirs.tick(self.now);
            self.registry.tick(self.now, &self.store, u64::MAX);
            self.run();
            if self.now == end && next.is_none_or(|next| next > end) {
                return;
            }
        }
    }

    /// The packets since the last call, without those of sessions.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Compares the packets since the last call with lines of a text.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) {
        let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let lines = self.lines();
        assert_eq!(lines, expected, "\n{}", lines.join("\n"));
    }

    /// What machines have told their tasks since the last call.
    pub(crate) fn events(&mut self) -> Vec<(u16, Event)> {
        std::mem::take(&mut self.events)
    }

    /// The tasks that were granted [`LOCK`] since the last call, in order. There must be no other events.
    #[track_caller]
    pub(crate) fn granted(&mut self) -> String {
        let task = |(_, event)| match event {
            Event::Granted { request, .. } => letter(request),
            event => panic!("{event:?}"),
        };
        self.events().into_iter().map(task).collect()
    }

    /// The token of the last grant. Forgets all events.
    #[track_caller]
    pub(crate) fn token(&mut self) -> u64 {
        match self.events().last() {
            Some((_, Event::Granted { token, .. })) => *token,
            other => panic!("{other:?}"),
        }
    }

    /// The decider's view of [`LOCK`].
    pub(crate) fn word(&self) -> String {
        let word = self.store.load(LOCK);
        format!("{} {} at {}", word.state, word.incarnation, word.machine.0)
    }

    /// Nothing is held, asked for or under way anywhere.
    #[track_caller]
    pub(crate) fn is_idle(&self) {
        for node in self.machines.iter().flatten() {
            assert!(node.is_idle(), "machine {}: {}", node.identity().machine.0, node.pool().describe(LOCK));
        }
        assert!(self.word().starts_with("free"), "{}", self.word());
    }

    fn run(&mut self) {
        loop {
            self.collect();
            let Some((from, packet, body)) = self.wire.pop_front() else { return };
            if let Some(from) = from {
                self.note(&format!("{from} -> D"), &packet, &body);
            }
            if from.is_none() && packet.kind == Kind::Sweep {
                self.registry.sweep_own(self.now, &packet);
            } else if packet.kind.is_control() {
                let from = from.unwrap_or(0);
                self.registry.receive(self.now, &self.store, from, &packet, &body);
            } else {
                self.decide(from, &packet, &body);
            }
        }
    }

    fn decide(&mut self, from: Option<u16>, packet: &Packet, body: &[u8]) {
        let settings = Settings { writers_first: self.config.writers_first };
        let outputs = decide(&self.store, &self.registry, settings, packet);
        let body = if outputs.payload { body } else { &[] };
        for (to, packet) in outputs.packets.into_iter().flatten() {
            let to = match to {
                To::Source => from.unwrap_or(0),
                To::Machine(machine) => machine.0,
            };
            if self.lose == Some(packet.kind) {
                continue;
            }
            self.note(&format!("D -> {to}"), &packet, body);
            self.deliver(to, &packet, body);
        }
    }

    fn deliver(&mut self, to: u16, packet: &Packet, body: &[u8]) {
        if to == 0 {
            self.heirs.receive(self.now, packet, body);
        } else if let Some(node) = &mut self.machines[usize::from(to) - 1] {
            node.receive(self.now, packet, body);
        }
    }

    /// Puts on the wire what nodes and registry have to say.
    fn collect(&mut self) {
        while let Some(change) = self.registry.poll_change() {
            match change {
                Change::Joined { .. } | Change::Record(_) | Change::Forget { .. } => {}
                Change::Gone { machine, session } => self.heirs.purge(self.now, machine, session),
                Change::Adopted(of) => self.heirs.adopt(of.lock, of.incarnation, of.token),
                Change::Settled(of) => self.heirs.release_adopted(self.now, of.lock),
                Change::Swept(packet) => self.heirs.receive(self.now, &packet, &[]),
                Change::Relieved { lock, generation, to } => self.heirs.relieve(lock, generation, to),
            }
        }
        while let Some((to, packet, body)) = self.registry.poll_packet() {
            self.deliver(to, &packet, &body);
        }
        while let Some((packet, body)) = self.heirs.poll_packet() {
            self.wire.push_back((None, packet, body));
        }
        for (number, node) in (1..).zip(&mut self.machines) {
            let Some(node) = node else { continue };
            while let Some((packet, body)) = node.poll_packet() {
                for _ in 0..(self.copies)(&packet) {
                    self.wire.push_back((Some(number), packet, body.clone()));
                }
            }
            while let Some(event) = node.poll_event() {
                self.events.push((number, event));
            }
        }
    }

    fn note(&mut self, way: &str, packet: &Packet, body: &[u8]) {
        if !packet.kind.is_control() {
            self.lines.push(format!("{way}: {}", describe(packet, body)));
        }
    }
}

/// The task of a request.
pub(crate) fn letter(request: u64) -> char {
    char::from_u32(task_of(request)).filter(char::is_ascii_graphic).unwrap_or('-')
}

fn short(mode: Option<LockMode>) -> &'static str {
    match mode {
        Some(LockMode::Shared) => " shared",
        Some(_) => " exclusive",
        None => "",
    }
}

/// Kind, mode, flags, task; the decision word as the decider stamped it, or the incarnation that the sender believes
/// in; and the queue.
fn describe(packet: &Packet, body: &[u8]) -> String {
    let mut text = format!("{:?}", packet.kind).to_lowercase();
    let task = letter(packet.request);
    if task != '-' {
        text += short(packet.mode());
    }
    for (flag, name) in [(TRY, "try"), (BUSY, "busy"), (GRANTED, "granted"), (AGENT, "agent")] {
        if packet.has(flag) {
            text += &format!(" {name}");
        }
    }
    if task != '-' {
        text += &format!(" {task}");
    }
    if packet.kind == Kind::Ack {
        let of = Kind::ALL.into_iter().find(|kind| *kind as u8 == packet.part).expect("a kind");
        text += &format!(" of {of:?}").to_lowercase();
    } else if packet.session == 0 {
        text += &format!(" ({} {})", packet.state, packet.incarnation);
    } else if packet.has(AGENT) || matches!(packet.kind, Kind::Free | Kind::Move | Kind::Open | Kind::Close) {
        text += &format!(" at {}", packet.incarnation);
    }
    if packet.parts > 1 {
        text += &format!(" part {} of {}", packet.part + 1, packet.parts);
    }
    let queue = waiters_of_body(body).expect("waiters");
    if !queue.is_empty() && packet.parts == 1 {
        let one = |waiter: &lockwork_lock_protocol::packet::Waiter| {
            format!("{}{}", letter(waiter.request), short(Some(waiter.mode)))
        };
        text += &format!(" with {}", queue.iter().map(one).collect::<Vec<_>>().join(", "));
    } else if !queue.is_empty() {
        text += &format!(" with {}", queue.len());
    }
    text
}
