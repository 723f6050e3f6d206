//! The service as a transition system: what a state is, what can happen in it, and what happens then.
//!
//! *Invariant*: a state holds no output that waits. Whatever a step makes a machine send is in the network, and
//! whatever it makes it tell has been told, before the state is seen.

#[path = "trace.rs"]
mod trace;

use crate::memory::{Members, Memory, machine, session};
use lockwork_lock_protocol::branches::Branches;
use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::decider::{Settings, To, decide};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{AGENT, GRANTED, Kind, Packet};
use lockwork_lock_protocol::word::{Machine, State as Held, Word};
use lockwork_locking::LockMode;
use stateright::{Model, Property};
use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const LOCK: u64 = 0;
/// Quiet steps that a run may take in all. Each serves a timer with nothing else under way, so a run that needs more
/// than these makes no progress.
const MAX_QUIET: u8 = 60;
/// A timer that lies further ahead than this is none of the protocol's: leases last for ever here.
const NEVER: u64 = 1 << 50;

/// The ways of the paper's figure 5.
pub(crate) const WORKFLOWS: [&str; 9] = [
    "(1) free lock granted",
    "(2) reader joins",
    "(3) waits with an agent elsewhere",
    "(4) granted by the agent here",
    "(5) waits with the agent here",
    "(6) given back to the agent here, which stays",
    "(7) agent gives the lock back",
    "(8) agent moves",
    "(9) given back to an agent elsewhere",
];

/// What a task does, again and again: waits for the lock, holds it, gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    /// Index of its machine.
    pub(crate) machine: usize,
    pub(crate) mode: LockMode,
    /// How often.
    pub(crate) times: u8,
}

/// A configuration: who wants the lock, and how much goes wrong.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) tasks: Vec<Task>,
    pub(crate) writers_first: bool,
    pub(crate) losses: u8,
    pub(crate) duplicates: u8,
    /// Timers that go off although packets are on their way.
    pub(crate) early: u8,
    /// Requests that are withdrawn while they wait.
    pub(crate) withdrawals: u8,
    /// Runs with more decisions on the lock than this are left there.
    pub(crate) decisions: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// So many requests are still to come.
    Idle(u8),
    Waits(u64, u8),
    Holds(u64, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Decider and registry.
    Service,
    Machine(usize),
}

/// A packet on its way, with a hash as its key.
#[derive(Debug)]
struct Datagram {
    key: u64,
    to: Place,
    packet: Packet,
    body: Vec<u8>,
}

/// A machine. Each has its own clock: only differences mean something.
#[derive(Clone, Debug)]
struct Host {
    node: Node,
    now: u64,
    key: u64,
}

/// A question of the registry to all machines.
#[derive(Clone, Debug, Hash)]
struct Question {
    number: u64,
    asker: Machine,
    request: u64,
    incarnation: u32,
    missing: Vec<usize>,
}

/// All there is.
#[derive(Clone, Debug)]
pub(crate) struct State {
    hosts: Vec<Arc<Host>>,
    tasks: Vec<Phase>,
    word: Word,
    token: u64,
    /// The largest token of a writer, and of anybody.
    tokens: (u64, u64),
    /// Ordered by key.
    network: Vec<Arc<Datagram>>,
    questions: Vec<Question>,
    asked: u64,
    losses: u8,
    duplicates: u8,
    early: u8,
    withdrawals: u8,
    quiet: u8,
    /// The last writer has asked.
    last: bool,
    wrong: Option<String>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, into: &mut H) {
        self.hosts.iter().for_each(|host| host.key.hash(into));
        self.network.iter().for_each(|datagram| datagram.key.hash(into));
        (&self.tasks, self.word, self.token, self.tokens, &self.questions, self.asked).hash(into);
        (self.losses, self.duplicates, self.early, self.withdrawals, self.quiet, self.last, self.wrong.is_some())
            .hash(into);
    }
}

/// States of one hash are one state, for the checker anyway.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        key_of(self) == key_of(other)
    }
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// This task asks, gives back, or withdraws.
    Ask(usize),
    GiveBack(usize),
    Withdraw(usize),
    /// All is over, but the lock is not free: faults end, and this task, one more writer, asks.
    Last(usize),
    /// This packet arrives; arrives and will again; never arrives.
    Deliver(usize),
    Copy(usize),
    Lose(usize),
    /// The next timer of this machine goes off, though packets are on their way or tasks hold.
    Early(usize),
    /// Nothing is under way and nobody holds: time passes on all machines until a timer goes off.
    Quiet,
}

/// The model, and what all its runs together have reached.
pub(crate) struct Service {
    /// With one more writer for each machine, behind all others, for [`Action::Last`].
    limits: Limits,
    machines: usize,
    config: Config,
    pub(crate) workflows: Arc<[AtomicU64; WORKFLOWS.len()]>,
    pub(crate) branches: Arc<Mutex<Branches>>,
}

fn key_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Service {
    pub(crate) fn new(mut limits: Limits) -> Self {
        let machines = limits.tasks.iter().map(|task| task.machine + 1).max().expect("there are tasks");
        let last = |machine| Task { machine, mode: LockMode::Exclusive, times: 0 };
        limits.tasks.extend((0..machines).map(last));
        let mut config = Config::new(1);
        config.writers_first = limits.writers_first;
        config.lease = 1 << 60;
        Self { limits, machines, config, workflows: Arc::default(), branches: Arc::default() }
    }

    fn reach(&self, workflow: usize) {
        self.workflows[workflow - 1].fetch_add(1, Relaxed);
    }

    /// Runs `step` on a machine, and takes over what it makes the machine send and tell.
    fn on<T>(&self, state: &mut State, at: usize, step: impl FnOnce(&mut Node, u64) -> T) -> T {
        let mut host = Host::clone(&state.hosts[at]);
        let now = host.now;
        let before = host.node.branches();
        let result = step(&mut host.node, now);
        if host.node.branches() != before {
            self.branches.lock().expect("no step panics while it is held").add(&host.node.branches());
        }
        while let Some((packet, body)) = host.node.poll_packet() {
            self.send(state, packet, body);
        }
        while let Some(event) = host.node.poll_event() {
            self.told(state, at, event);
        }
        host.node.prune();
        let mut hasher = DefaultHasher::new();
        host.node.snapshot(now, &mut hasher);
        host.key = hasher.finish();
        state.hosts[at] = Arc::new(host);
        result
    }

    /// Into the network. What the decider only sends on goes to its target at once: that commutes with everything.
    fn send(&self, state: &mut State, packet: Packet, body: Vec<u8>) {
        if packet.kind.is_control() || packet.kind.is_decided() {
            put(state, Place::Service, packet, body);
        } else {
            self.decide(state, &packet, body);
        }
    }

    fn decide(&self, state: &mut State, packet: &Packet, body: Vec<u8>) {
        let old = state.word;
        let memory = Memory { word: Cell::new(old), token: Cell::new(state.token) };
        let settings = Settings { writers_first: self.limits.writers_first };
        let outputs = decide(&memory, &Members(self.machines), settings, packet);
        (state.word, state.token) = (memory.word.get(), memory.token.get());
        let new = state.word;
        for (to, output) in outputs.packets.into_iter().flatten() {
            let to = match to {
                To::Source => packet.sender,
                To::Machine(to) => to,
            };
            match (packet.kind, output.kind) {
                (Kind::Acquire, Kind::Grant) if output.has(AGENT) => self.reach(1),
                (Kind::Acquire, Kind::Acquire) if output.has(GRANTED) && !packet.has(GRANTED) => self.reach(2),
                (Kind::Acquire, Kind::Acquire) if to != packet.requester => self.reach(3),
                (Kind::Free, Kind::Done) if old.state != Held::Free && new.state == Held::Free => self.reach(7),
                (Kind::Move, Kind::Grant) if old.machine != new.machine => self.reach(8),
                (Kind::Release, Kind::Release) if to != packet.requester => self.reach(9),
                _ => {}
            }
            let body = if outputs.payload { body.clone() } else { Vec::new() };
            match to {
                Machine::REGISTRY => state.wrong = Some(format!("for the registry, which has no agents: {output:?}")),
                Machine(number) => put(state, Place::Machine(usize::from(number) - 1), output, body),
            }
        }
    }

    /// The registry: asks all for an agent, as often as the agent asks, and tells it when all have answered.
    fn control(&self, state: &mut State, packet: &Packet) {
        match packet.kind {
            Kind::Sweep => {
                let open = |q: &Question| (q.asker, q.request) == (packet.sender, packet.request);
                if !state.questions.iter().any(open) {
                    state.asked += 1;
                    state.questions.push(Question {
                        number: state.asked,
                        asker: packet.sender,
                        request: packet.request,
                        incarnation: packet.incarnation,
                        missing: (0..self.machines).collect(),
                    });
                }
                let question = state.questions.iter().find(|q| open(q)).expect("just made").clone();
                for host in question.missing {
                    let mut ask = Packet::new(Kind::Sweep, LOCK);
                    (ask.request, ask.incarnation) = (question.number, question.incarnation);
                    (ask.requester, ask.requester_session) = (question.asker, session(question.asker));
                    ask.target = machine(host);
                    put(state, Place::Machine(host), ask, Vec::new());
                }
            }
            Kind::Swept => {
                let Some(at) = state.questions.iter().position(|q| q.number == packet.request) else { return };
                let question = &mut state.questions[at];
                question.missing.retain(|host| machine(*host) != packet.sender);
                if question.missing.is_empty() {
                    let question = state.questions.remove(at);
                    let mut swept = Packet::new(Kind::Swept, LOCK);
                    (swept.request, swept.incarnation) = (question.request, question.incarnation);
                    swept.target = question.asker;
                    put(state, Place::Machine(usize::from(question.asker.0) - 1), swept, Vec::new());
                }
            }
            _ => state.wrong = Some(format!("nobody should say this here: {packet:?}")),
        }
    }

    /// A task is told something. It must be what it waits for, and nobody may hold what it excludes.
    fn told(&self, state: &mut State, at: usize, event: Event) {
        let Event::Granted { request, mode, token, .. } = event else {
            return state.wrong = Some(format!("nobody crashed, and nobody tried: {event:?}"));
        };
        let tasks = &self.limits.tasks;
        let task = (request >> 32) as usize;
        let left = match state.tasks[task] {
            Phase::Waits(waits, left) if waits == request && tasks[task].machine == at => left,
            // The number is not known before `acquire` returns.
            Phase::Idle(left) if left > 0 => left - 1,
            _ => return state.wrong = Some(format!("nobody waits for it: {event:?}")),
        };
        let excludes = |(other, phase): (usize, &Phase)| {
            matches!(phase, Phase::Holds(..)) && (mode, tasks[other].mode) != (LockMode::Shared, LockMode::Shared)
        };
        let (writer, anybody) = state.tokens;
        let writes = mode == LockMode::Exclusive;
        if state.tasks.iter().enumerate().any(excludes) {
            state.wrong = Some(format!("mutual exclusion: {event:?}, and {:?}", state.tasks));
        } else if token < writer || (writes && token <= anybody) {
            state.wrong = Some(format!("tokens: {event:?} after {:x?}", state.tokens));
        }
        state.tokens = (if writes { writer.max(token) } else { writer }, anybody.max(token));
        state.tasks[task] = Phase::Holds(request, left);
    }

    fn ask(&self, state: &mut State, index: usize) {
        let task = self.limits.tasks[index];
        let Phase::Idle(left) = state.tasks[index] else { return };
        let here = state.hosts[task.machine].node.pool().decides(LOCK).is_some();
        let ask = Ask { task: index as u32, ..Ask::default() };
        let asked = self.on(state, task.machine, |node, now| node.acquire(now, LOCK, task.mode, ask));
        let request = asked.expect("there is such a lock and mode, and no lease ends");
        if let Phase::Idle(_) = state.tasks[index] {
            state.tasks[index] = Phase::Waits(request, left - 1);
        }
        if here {
            self.reach(if matches!(state.tasks[index], Phase::Holds(..)) { 4 } else { 5 });
        }
    }

    fn let_go(&self, state: &mut State, index: usize) {
        let (Phase::Waits(request, left) | Phase::Holds(request, left)) = state.tasks[index] else { return };
        state.tasks[index] = Phase::Idle(left);
        let at = self.limits.tasks[index].machine;
        let here = state.hosts[at].node.pool().decides(LOCK).is_some();
        let released = self.on(state, at, |node, now| node.release(now, request));
        if let Err(why) = released {
            state.wrong = Some(why.to_string());
        }
        if here && state.hosts[at].node.pool().decides(LOCK).is_some() {
            self.reach(6);
        }
    }

    /// Time passes on one machine, until its next timer or for as long as is said.
    fn wait(&self, state: &mut State, at: usize, time: u64) {
        let mut host = Host::clone(&state.hosts[at]);
        host.now += time;
        state.hosts[at] = Arc::new(host);
        self.on(state, at, |node, now| node.tick(now));
    }

    fn next_tick(host: &Host) -> Option<u64> {
        let next = host.node.next_tick()?.saturating_sub(host.now);
        (next < NEVER).then_some(next)
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask(task) => self.ask(state, task),
            Action::GiveBack(task) => self.let_go(state, task),
            Action::Withdraw(task) => {
                state.withdrawals -= 1;
                self.let_go(state, task);
            }
            Action::Last(task) => {
                (state.losses, state.duplicates, state.early, state.withdrawals) = (0, 0, 0, 0);
                (state.last, state.quiet) = (true, 0);
                state.tasks[task] = Phase::Idle(1);
                self.ask(state, task);
            }
            Action::Lose(at) => {
                state.losses -= 1;
                state.network.remove(at);
            }
            Action::Copy(at) => {
                state.duplicates -= 1;
                self.arrive(state, &state.network[at].clone());
            }
            Action::Deliver(at) => {
                let datagram = state.network.remove(at);
                self.arrive(state, &datagram);
            }
            Action::Early(at) => {
                state.early -= 1;
                let time = Self::next_tick(&state.hosts[at]).expect("offered only then");
                self.wait(state, at, time);
            }
            Action::Quiet => {
                state.quiet += 1;
                let times = state.hosts.iter().filter_map(|host| Self::next_tick(host));
                let time = times.min().expect("offered only then");
                (0..state.hosts.len()).for_each(|at| self.wait(state, at, time));
            }
        }
    }

    fn arrive(&self, state: &mut State, datagram: &Datagram) {
        match datagram.to {
            Place::Machine(at) => {
                self.on(state, at, |node, now| node.receive(now, &datagram.packet, &datagram.body));
            }
            Place::Service if datagram.packet.kind.is_control() => self.control(state, &datagram.packet),
            Place::Service => self.decide(state, &datagram.packet, datagram.body.clone()),
        }
    }

    /// All requests are resolved, and time passes without anything being said. An agent may then keep a holder that has
    /// given back: it asks whether it still holds only when somebody waits.
    fn is_over(&self, state: &State) -> bool {
        if !state.network.is_empty() || state.tasks.iter().any(|task| *task != Phase::Idle(0)) {
            return false;
        }
        let mut later = state.clone();
        if state.hosts.iter().any(|host| Self::next_tick(host).is_some()) {
            self.step(&mut later, Action::Quiet);
            later.quiet = state.quiet;
        }
        later == *state
    }

    /// Whether nothing of the lock is left anywhere.
    fn is_free(state: &State) -> bool {
        state.word.state == Held::Free && state.hosts.iter().all(|host| host.node.is_idle())
    }

    /// An agent that may grant is the one that the decider knows.
    fn leads_alone(&self, state: &State) -> bool {
        let known = |at: usize| state.word.state != Held::Free && state.word.machine == machine(at);
        let mut leads = (0..self.machines).filter(|at| state.hosts[*at].node.pool().decides(LOCK).is_some());
        leads.all(known)
    }
}

fn put(state: &mut State, to: Place, packet: Packet, body: Vec<u8>) {
    let key = key_of(&(to, packet, &body));
    let at = state.network.partition_point(|other| other.key < key);
    state.network.insert(at, Arc::new(Datagram { key, to, packet, body }));
}

impl Model for Service {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let host = |at: usize| {
            let me = Identity { machine: machine(at), session: session(machine(at)) };
            Arc::new(Host { node: Node::new(self.config, me, 0), now: 0, key: at as u64 })
        };
        vec![State {
            hosts: (0..self.machines).map(host).collect(),
            tasks: self.limits.tasks.iter().map(|task| Phase::Idle(task.times)).collect(),
            word: Word::NEW,
            token: 0,
            tokens: (0, 0),
            network: Vec::new(),
            questions: Vec::new(),
            asked: 0,
            losses: self.limits.losses,
            duplicates: self.limits.duplicates,
            early: self.limits.early,
            withdrawals: self.limits.withdrawals,
            quiet: 0,
            last: false,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() || state.quiet >= MAX_QUIET {
            return;
        }
        let holds = |task: &Phase| matches!(task, Phase::Holds(..));
        for (task, phase) in state.tasks.iter().enumerate() {
            match phase {
                Phase::Idle(0) => {}
                Phase::Idle(_) => actions.push(Action::Ask(task)),
                Phase::Waits(..) if state.withdrawals > 0 => actions.push(Action::Withdraw(task)),
                Phase::Waits(..) => {}
                Phase::Holds(..) => actions.push(Action::GiveBack(task)),
            }
        }
        for at in 0..state.network.len() {
            if at > 0 && state.network[at].key == state.network[at - 1].key {
                continue;
            }
            actions.push(Action::Deliver(at));
            if state.losses > 0 {
                actions.push(Action::Lose(at));
            }
            if state.duplicates > 0 {
                actions.push(Action::Copy(at));
            }
        }
        if self.is_over(state) {
            if !Self::is_free(state) && !state.last {
                actions.extend((self.limits.tasks.len() - self.machines..self.limits.tasks.len()).map(Action::Last));
            }
            return;
        }
        let waits = |host: &Arc<Host>| Self::next_tick(host).is_some();
        if state.network.is_empty() && !state.tasks.iter().any(holds) {
            if state.hosts.iter().any(waits) {
                actions.push(Action::Quiet);
            }
        } else if state.early > 0 {
            let late = state.hosts.iter().enumerate().filter(|(_, host)| waits(host));
            actions.extend(late.map(|(at, _)| Action::Early(at)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let stepped = catch_unwind(AssertUnwindSafe(|| self.step(&mut state, action)));
        if stepped.is_err() {
            state = State { wrong: Some("a panic".to_owned()), ..last.clone() };
        }
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.word.incarnation <= u32::from(self.limits.decisions)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let ended = |model: &Self, state: &State| {
            if !state.network.is_empty() {
                return state.quiet < MAX_QUIET;
            }
            let mut actions = Vec::new();
            model.actions(state, &mut actions);
            state.wrong.is_some() || !actions.is_empty() || model.is_over(state)
        };
        let free = |model: &Self, state: &State| !state.last || !model.is_over(state) || Self::is_free(state);
        vec![
            Property::always("mutual exclusion, growing tokens, no surprise", |_, state: &State| state.wrong.is_none()),
            Property::always("who may grant is known to the decider", Self::leads_alone),
            Property::always("nothing is left to do only when every request is resolved", ended),
            Property::always("in the end the lock is free and nobody keeps anything of it", free),
            Property::sometimes("a run ends", |model, state| model.is_over(state)),
        ]
    }
}
