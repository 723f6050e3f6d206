//! A machine that takes part: its client and its agents, and which packet is for whom.
//!
//! [`Node`] is what a transport drives: packets and the time in, packets and events out. It takes the short ways of the
//! protocol, from a task to an agent on the same machine (workflows 4 to 8 of the paper's figure 5), by plain calls.
//!
//! All packets go to the decider's address; the registry answers from there too.

mod managed;
mod registry;
mod resume;

use crate::branches::Branches;
use crate::client::{Ask, Client, Event, NotHeld, Phase};
use crate::config::{Config, Identity};
use crate::control::address_of_body;
use crate::deadlock::{self, DeadlockSearch};
use crate::packet::{AGENT, Kind, Packet, Problem, Waiter};
use crate::pool::{AgentPool, Local, Output};
use crate::report::Reporting;
use crate::timers::Timers;
use crate::word::Machine;
use lockwork_locking::LockMode;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Why a lock cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// There are fewer locks.
    #[error("there is no lock {lock}: the service has {locks}, numbered from 0")]
    NoSuchLock {
        /// The one that was asked for.
        lock: u64,
        /// How many there are.
        locks: u64,
    },
    /// The service has locks for readers and for writers.
    #[error("the lock service knows shared and exclusive locks, not intents")]
    NoSuchMode,
    /// The lease has run out. A new session is needed.
    #[error("the session has ended: its lease ran out before it could be renewed")]
    Ended,
}

/// What has happened, for people and their graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests of this machine's tasks.
    pub acquires: u64,
    /// Grants to them.
    pub grants: u64,
    /// Requests that went to an agent on this machine without a packet.
    pub local: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets for agents that were not here, sent back.
    pub sent_back: u64,
    /// Agents taken over because their grant was lost.
    pub taken_over: u64,
    /// Sweeps that this machine's agents asked for.
    pub sweeps: u64,
    /// Requests that gave up because they waited in a cycle.
    pub deadlocks: u64,
}

/// A machine that takes part.
#[derive(Clone, Debug)]
pub struct Node {
    config: Config,
    me: Identity,
    /// The session that it began with.
    joined: u32,
    client: Client,
    pool: AgentPool,
    deadlock: DeadlockSearch,
    counters: Counters,
    packets: VecDeque<(Packet, Vec<u8>)>,
    events: VecDeque<Event>,
    /// The session is over at this time, unless a renewal is answered before.
    lease_until: u64,
    ended: bool,
    renewals: Timers<()>,
    /// What is told a decider that was restored.
    reporting: Option<Reporting>,
}

impl Node {
    /// A machine that has just joined; its lease runs from `now`, the time at which it asked to join.
    #[must_use]
    pub fn new(config: Config, me: Identity, now: u64) -> Self {
        let mut renewals = Timers::new();
        renewals.set(now, config.lease / 4, ());
        Self {
            config,
            me,
            joined: me.session,
            client: Client::new(config, me),
            pool: AgentPool::new(config, me),
            deadlock: DeadlockSearch::new(&config, me),
            counters: Counters::default(),
            packets: VecDeque::new(),
            events: VecDeque::new(),
            lease_until: now.saturating_add(config.own_lease()),
            ended: false,
            renewals,
            reporting: None,
        }
    }

    /// The registry's own: agents of machines that have died, no tasks, no lease.
    #[must_use]
    pub fn registry(config: Config) -> Self {
        let me = Identity { machine: Machine::REGISTRY, session: Machine::REGISTRY_SESSION };
        let config = Config { near: [0; 2], ..config };
        Self { lease_until: u64::MAX, renewals: Timers::new(), ..Self::new(config, me, 0) }
    }

    /// Who this is.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.me
    }

    /// The session that it joined with: its own, also when it goes on in another after the decider was restored.
    #[must_use]
    pub const fn joined(&self) -> u32 {
        self.joined
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Asks for a lock. The answer comes as an event, often at once.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing has been asked then.
    pub fn acquire(&mut self, now: u64, lock: u64, mode: LockMode, ask: Ask) -> Result<u64, AcquireError> {
        if !self.config.has(lock) {
            return Err(AcquireError::NoSuchLock { lock, locks: self.config.locks });
        }
        if mode == LockMode::IntentExclusive {
            return Err(AcquireError::NoSuchMode);
        }
        if self.has_ended(now) {
            return Err(AcquireError::Ended);
        }
        self.counters.acquires += 1;
        let request = self.client.begin(now, lock, mode, ask);
        if ask.detect_deadlock {
            self.deadlock.watch(now, request);
        }
        self.counters.local += u64::from(self.ask(now, lock, request, mode, ask.try_only));
        self.settle(now);
        Ok(request)
    }

    /// Asks the agent, if it is here, or the decider.
    fn ask(&mut self, now: u64, lock: u64, request: u64, mode: LockMode, try_only: bool) -> bool {
        let waiter = Waiter { machine: self.me.machine, session: self.me.session, request, mode };
        let here = self.pool.acquire(now, lock, waiter, try_only) == Local::Here;
        match here {
            true => self.client.queued_here(now, request),
            false => self.client.ask(now, request),
        }
        here
    }

    /// Gives back what a request holds, or no longer waits for it. No event follows.
    ///
    /// # Errors
    /// [`NotHeld`]; nothing is changed then. If the lease has just run out, an event has said so.
    pub fn release(&mut self, now: u64, request: u64) -> Result<(), NotHeld> {
        if self.has_ended(now) {
            return Err(NotHeld(request));
        }
        let known = self.client.get(request).filter(|known| known.phase != Phase::Releasing);
        let lock = known.ok_or(NotHeld(request))?.lock;
        self.let_go(now, lock, request);
        self.settle(now);
        Ok(())
    }

    /// Takes a request out here, and has the agent do so if it is elsewhere. An agent here that may be leaving says
    /// nothing: the request may wait or hold with its successor.
    fn let_go(&mut self, now: u64, lock: u64, request: u64) {
        let elsewhere = self.client.get(request).is_some_and(|known| known.holds_elsewhere(self.me.machine));
        let decides = self.pool.decides(lock).is_some();
        let here = self.pool.release(now, lock, request) && decides && !elsewhere;
        self.client.let_go(now, request, here);
    }

    /// Near locks that nobody holds, and whose agents only stay in case that somebody here asks; see
    /// [`Config::near`]. Takes time linear in the agents.
    #[must_use]
    pub fn idle_agents(&self) -> Vec<u64> {
        self.pool.idle()
    }

    /// Gives such a lock back, if it still is one.
    pub fn give_back(&mut self, now: u64, lock: u64) {
        self.pool.give_back(now, lock);
        self.settle(now);
    }

    /// Makes a writer a reader, without letting go.
    ///
    /// # Errors
    /// [`NotHeld`] if the request does not hold exclusively; nothing is changed then.
    pub fn downgrade(&mut self, now: u64, request: u64) -> Result<(), NotHeld> {
        if self.has_ended(now) {
            return Err(NotHeld(request));
        }
        let holds = |phase: Phase| phase == Phase::Held;
        let lock = self.client.get(request).filter(|known| holds(known.phase)).ok_or(NotHeld(request))?.lock;
        if self.pool.downgrade(now, lock, request) {
            self.client.set_mode(request, LockMode::Shared);
        } else if !self.downgrade_elsewhere(now, request) {
            return Err(NotHeld(request));
        }
        self.settle(now);
        Ok(())
    }

    /// Takes a packet for this machine. What is not for it, or for an earlier session, or about no lock, changes
    /// nothing.
    pub fn receive(&mut self, now: u64, packet: &Packet, body: &[u8]) {
        // Deciders send on what machines say to each other without a look at the lock.
        let about_nothing = !self.config.has(packet.lock) && packet.kind != Kind::Error;
        if packet.target != self.me.machine || about_nothing || self.is_of_before(packet) || self.has_ended(now) {
            return;
        }
        self.counters.received += 1;
        if packet.kind == Kind::Ack || (packet.kind == Kind::Grant && packet.session == 0) {
            self.client.heard(now, packet.request);
            self.pool.pace = self.client.pace;
        }
        match packet.kind {
            Kind::Acquire | Kind::Enrol | Kind::Release => {
                let awaited = packet.requester == self.me.machine
                    && packet.requester_session == self.me.session
                    && self.client.awaits(packet.request, packet.incarnation);
                self.pool.requested(now, packet, awaited);
            }
            Kind::Grant if packet.has(AGENT) => self.receive_agent(now, packet, body),
            Kind::Grant => self.client.granted(now, packet),
            Kind::Seek => {
                let probes = deadlock::sought(packet, &self.pool);
                probes.into_iter().for_each(|probe| self.send(probe, Vec::new()));
            }
            Kind::Probe => self.receive_probe(now, packet),
            // What a search meets that changes meanwhile is found by the next one.
            Kind::Done | Kind::Error if packet.part == Kind::Seek as u8 || packet.part == Kind::Probe as u8 => {}
            Kind::Done | Kind::Refused => self.pool.answered(now, packet),
            Kind::Ack if packet.part == Kind::Grant as u8 => self.pool.confirmed(now, packet),
            Kind::Ack => self.client.acknowledged(now, packet),
            Kind::Error => self.receive_problem(now, packet, body),
            Kind::Renewed if packet.requester_session == self.me.session => self.renewed(now, packet),
            Kind::Died => {
                self.pool.purge(now, packet.requester, packet.requester_session);
                let (machine, session) = (packet.requester, packet.requester_session);
                let done = self.client.died(now, machine, session, packet.request);
                self.answer_sweep(packet, done);
            }
            Kind::Sweep if self.config.is_beyond(packet.lock) => self.sweep_part(now, packet),
            Kind::Sweep => {
                let done = self.client.sweep(now, packet.lock, packet.incarnation, packet.request);
                self.answer_sweep(packet, done);
            }
            Kind::Swept => self.pool.swept(now, packet),
            Kind::Resume => self.resume(now, packet, body),
            Kind::Reported => self.reported(now, packet),
            Kind::Settle => self.settle_down(now, packet),
            _ => {}
        }
        self.settle(now);
    }

    fn receive_agent(&mut self, now: u64, packet: &Packet, body: &[u8]) {
        if packet.parts == 0 {
            let awaited =
                packet.requester_session == self.me.session && self.client.awaits(packet.request, packet.incarnation);
            self.pool.granted(now, packet, awaited);
        } else {
            let client = &self.client;
            self.pool.arrived(now, packet, body, |request, incarnation| client.awaits(request, incarnation));
        }
    }

    fn receive_problem(&mut self, now: u64, packet: &Packet, body: &[u8]) {
        let Some(problem) = Problem::of_number(packet.token) else { return };
        match problem {
            Problem::NoSuchSession if packet.session == 0 && packet.requester_session == self.me.session => self.end(),
            Problem::NoSuchMachine => self.pool.undeliverable(now, packet),
            Problem::Moved => {
                let to = address_of_body(body).ok().filter(|_| packet.requester_session == self.me.session);
                to.into_iter().for_each(|to| self.client.moved(packet.request, to));
            }
            _ => self.client.failed(packet, problem),
        }
    }

    fn receive_probe(&mut self, now: u64, packet: &Packet) {
        let (seeks, cycle) = self.deadlock.probed(now, packet, &self.client);
        seeks.into_iter().for_each(|seek| self.send(seek, Vec::new()));
        if let Some(request) = cycle {
            self.counters.deadlocks += 1;
            self.give_up(now, request, Event::Deadlock { request });
        }
    }

    /// A request waits no longer.
    fn give_up(&mut self, now: u64, request: u64, event: Event) {
        self.client.give_up(event);
        let lock = self.client.get(request).expect("it waits").lock;
        self.let_go(now, lock, request);
    }

    fn answer_sweep(&mut self, packet: &Packet, done: bool) {
        if done {
            let mut answer = Packet::new(Kind::Swept, packet.lock);
            answer.request = packet.request;
            answer.incarnation = packet.incarnation;
            answer.requester = packet.requester;
            answer.requester_session = packet.requester_session;
            self.send(answer, Vec::new());
        }
    }

    fn send(&mut self, mut packet: Packet, body: Vec<u8>) {
        packet.sender = self.me.machine;
        packet.session = self.me.session;
        self.counters.sent += 1;
        self.packets.push_back((packet, body));
    }

    /// Passes on what client and pool have to say to each other, until they have nothing more.
    fn settle(&mut self, now: u64) {
        loop {
            while let Some(output) = self.pool.out.pop_front() {
                match output {
                    Output::Packet(packet, body) => {
                        self.counters.sent_back += u64::from(packet.hops > 0);
                        self.counters.sweeps += u64::from(packet.kind == Kind::Sweep);
                        self.counters.sent += 1;
                        self.packets.push_back((packet, body));
                    }
                    Output::Granted { lock, request, token } => self.hold_here(now, lock, request, token),
                    Output::Busy { request } => {
                        // A second copy of what it asked may be answered after it was told.
                        if self.client.get(request).is_some_and(|known| known.waits()) {
                            self.client.let_go(now, request, true);
                            self.client.give_up(Event::Busy { request });
                        }
                    }
                    Output::AskAgain { request } => self.client.ask_again(now, request),
                    Output::Void { lock, incarnation } => self.client.void_before(lock, incarnation),
                    Output::TakenOver { lock, incarnation } => {
                        self.counters.taken_over += 1;
                        self.queue_here(now, lock, incarnation);
                    }
                }
            }
            while let Some(output) = self.client.out.pop_front() {
                match output {
                    crate::client::Output::Packet(packet) => {
                        self.counters.sent += 1;
                        self.packets.push_back((packet, Vec::new()));
                    }
                    crate::client::Output::AskAgain(request) => {
                        if let Some(known) = self.client.get(request).filter(|known| known.waits()) {
                            let (lock, mode) = (known.lock, known.mode);
                            self.ask(now, lock, request, mode, false);
                        }
                    }
                    crate::client::Output::Event(event) => {
                        self.counters.grants += u64::from(matches!(event, Event::Granted { .. }));
                        self.events.push_back(event);
                    }
                }
            }
            if self.pool.out.is_empty() {
                return;
            }
        }
    }

    /// The agent here says that a request holds. If nobody waits for that any more, the agent is told so.
    fn hold_here(&mut self, now: u64, lock: u64, request: u64, token: u64) {
        match self.client.get(request).map(|known| known.phase) {
            Some(Phase::Asking | Phase::Queued) => self.client.hold_here(request, token),
            Some(Phase::Held) => {}
            Some(Phase::Releasing) | None => {
                self.pool.release(now, lock, request);
                self.client.let_go(now, request, true);
            }
        }
    }

    /// The agent was taken over: whoever of this machine waits for the lock waits here, and grants of before are void.
    fn queue_here(&mut self, now: u64, lock: u64, incarnation: u32) {
        self.client.void_before(lock, incarnation);
        for request in self.client.waiting_for(lock) {
            let mode = self.client.get(request).expect("just listed").mode;
            self.ask(now, lock, request, mode, false);
        }
    }

    /// Does what is due: repeats packets, ends requests whose time is over, renews the lease or ends the session.
    pub fn tick(&mut self, now: u64) {
        if self.has_ended(now) {
            return;
        }
        // First, so that it is sent even when many packets have to be repeated.
        if self.renewals.due(now).is_some() {
            self.renewals.set(now, self.config.lease / 8, ());
            self.renew(now);
        }
        while let Some(request) = self.client.expired(now) {
            if let Some(over) = self.client.get(request).filter(|known| known.waits()).map(|known| known.over(request))
            {
                self.give_up(now, request, over);
            }
        }
        self.report_again(now);
        self.client.tick(now);
        self.pool.pace = self.client.pace;
        self.pool.tick(now);
        while let Some(seek) = self.deadlock.due(now, &self.client) {
            self.send(seek, Vec::new());
        }
        self.settle(now);
    }

    /// When [`Node::tick`] has something to do.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        if self.ended {
            return None;
        }
        let (client, pool, deadlock) = (self.client.next_tick(), self.pool.next_tick(), self.deadlock.next_tick());
        let reports = self.reporting.as_ref().and_then(Reporting::next_tick);
        let ticks = [client, pool, deadlock, reports, self.renewals.next(), Some(self.lease_until)];
        ticks.into_iter().flatten().min()
    }

    /// Whether the session is over. If the lease has just run out, everything that was held is lost.
    fn has_ended(&mut self, now: u64) -> bool {
        if !self.ended && now >= self.lease_until {
            self.end();
        }
        self.ended
    }

    fn end(&mut self) {
        self.ended = true;
        self.client.lose_all();
        self.reporting = None;
        let branches = self.pool.branches;
        self.pool = AgentPool::new(self.config, self.me);
        self.pool.branches = branches;
        self.packets.clear();
        while let Some(output) = self.client.out.pop_front() {
            if let crate::client::Output::Event(event) = output {
                self.events.push_back(event);
            }
        }
    }

    /// Whether the session is over, as far as is known.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.ended
    }

    /// Until when what is held is certainly held, without further renewals.
    #[must_use]
    pub const fn lease_until(&self) -> u64 {
        self.lease_until
    }

    /// A packet to send to the decider's address, with its body.
    pub fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        self.packets.pop_front()
    }

    /// Something that happened to a request.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What has happened.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Which ways were taken that seldom are.
    #[must_use]
    pub fn branches(&self) -> Branches {
        let mut branches = self.pool.branches;
        branches.add(&self.client.branches);
        branches
    }

    /// The client, to look at.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The agents, to look at.
    #[must_use]
    pub const fn pool(&self) -> &AgentPool {
        &self.pool
    }

    /// Drops timers that nobody waits for any more, so that [`Node::next_tick`] is the next time at which something
    /// happens.
    pub fn prune(&mut self) {
        self.client.prune();
        self.pool.prune();
        self.deadlock.prune(&self.client);
    }

    /// Feeds `into` all that this machine's future depends on, after [`Node::prune`]: times as they lie ahead of `now`,
    /// and no counts of what has happened. What is still to be polled and the lease do not take part. For model
    /// checkers.
    pub fn snapshot(&self, now: u64, into: &mut impl Hasher) {
        self.me.machine.hash(into);
        self.me.session.hash(into);
        self.ended.hash(into);
        self.client.snapshot(now, into);
        self.pool.snapshot(now, into);
        self.deadlock.snapshot(now, into);
    }

    /// Whether nothing is held, asked for or under way: the machine may leave.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let reports = self.reporting.as_ref().is_some_and(|reporting| !reporting.is_over());
        self.client.requests() == 0 && self.pool.is_empty() && !reports
    }
}
