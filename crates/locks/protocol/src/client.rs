//! The client: what the tasks of one machine have asked for, hold, and give back.
//!
//! A request is one task's wish for one lock, with a number that is never used again in its session. Whatever arrives
//! for a number that asks for nothing (a grant that was late, a second grant for a copy of a packet) is given back at
//! once and until somebody has taken note: "unknown grants are released". That one rule heals every duplicate, on the
//! decider too.
//!
//! ```text
//! Asking --- ACK queued ---> Queued
//!   |                          |
//!   +------- GRANT ------------+---> Held ---> Releasing --- ACK ---> (forgotten)
//!   +------- timeout ----------+------------------^
//! ```
//!
//! *Invariant*: an event for a request is emitted once: granted, busy, timed out or failed; and once more, lost, after
//! granted.

mod managed;
mod racks;
pub(crate) mod resume;
mod search;
mod snapshot;
mod sweep;
#[cfg(test)]
mod tests;
mod view;
mod vocabulary;

use crate::branches::{Branch, Branches};
use crate::config::{Config, Identity};
use crate::numbers::Numbers;
use crate::pace::Pace;
use crate::packet::{BUSY, GRANTED, Kind, Packet, Problem, TRY};
use crate::timers::Timers;
use crate::word::Machine;
use lockwork_locking::LockMode;
use std::collections::{BTreeSet, VecDeque};
use sweep::Dead;
pub use vocabulary::{Ask, Event, NotHeld, task_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Asking,
    Queued,
    Held,
    Releasing,
}
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) lock: u64,
    pub(crate) mode: LockMode,
    pub(crate) phase: Phase,
    try_only: bool,
    detect_deadlock: bool,
    tries: u8,
    /// When it was first asked for.
    asked: u64,
    /// Number of the current timer; older timers are ignored.
    serial: u32,
    deadline: Option<u64>,
    /// Grants older than this are void.
    floor: Option<u32>,
    /// Of the grant, if the decider gave it.
    incarnation: Option<u32>,
    /// Who keeps it as a holder or waiter, as far as is known.
    agent: Option<Machine>,
    /// The agent knows, or is here.
    enrolled: bool,
    /// Counts how often it has to enrol: only the answer to the last of these says that the agent knows.
    enrolment: u8,
    /// The newest question that it was enrolled for: whatever was asked earlier is answered with it.
    sweep: u64,
    token: u64,
}

/// What a client has to do next.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    Packet(Packet),
    Event(Event),
    /// This request waits with an agent that was here when it was last asked: ask again, wherever the agent is now.
    AskAgain(u64),
}

/// So many leases later no packet of a dead machine is on the way.
const REMEMBERED: u64 = 16;
/// The requests of one machine.
#[derive(Clone, Debug)]
pub struct Client {
    config: Config,
    pub(crate) pace: Pace,
    me: Identity,
    requests: Numbers<Request>,
    counter: u32,
    timers: Timers<(u64, u32)>,
    deadlines: BTreeSet<(u64, u64)>,
    /// Machines that have died lately. What they granted may still be on the way, and is void.
    dead: Vec<Dead>,
    pub(crate) branches: Branches,
    pub(crate) out: VecDeque<Output>,
}

impl Client {
    /// Nothing asked for.
    #[must_use]
    pub fn new(config: Config, me: Identity) -> Self {
        Self {
            pace: Pace::new(&config),
            config,
            me,
            requests: Numbers::default(),
            counter: 0,
            timers: Timers::new(),
            deadlines: BTreeSet::new(),
            dead: Vec::new(),
            branches: Branches::default(),
            out: VecDeque::new(),
        }
    }

    /// A new request that nobody has been asked for yet. Task u32::MAX is reserved for the operations of agents.
    pub(crate) fn begin(&mut self, now: u64, lock: u64, mode: LockMode, ask: Ask) -> u64 {
        let task = u64::from(ask.task.min(u32::MAX - 1)) << 32;
        // Counters begin again while requests of before may still hold.
        let number = loop {
            self.counter = self.counter.wrapping_add(1);
            let number = task | u64::from(self.counter);
            if !self.requests.contains_key(&number) {
                break number;
            }
        };
        let limit = ask.try_only.then_some(self.config.answer);
        let deadline = ask.timeout.into_iter().chain(limit).min().map(|timeout| now.saturating_add(timeout));
        self.requests.insert(
            number,
            Request {
                lock,
                mode,
                phase: Phase::Asking,
                try_only: ask.try_only,
                detect_deadlock: ask.detect_deadlock,
                tries: 0,
                asked: now,
                serial: 0,
                deadline,
                floor: None,
                incarnation: None,
                agent: None,
                enrolled: false,
                enrolment: 0,
                sweep: 0,
                token: 0,
            },
        );
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Request> {
        self.requests.get(&number)
    }

    /// Whether a grant of this incarnation would be taken.
    pub(crate) fn awaits(&self, number: u64, incarnation: u32) -> bool {
        self.requests.get(&number).is_some_and(|request| request.awaits(&self.config, incarnation))
    }

    /// Requests that wait for `lock`, or ask for it and would wait.
    pub(crate) fn waiting_for(&self, lock: u64) -> Vec<u64> {
        let waits = |r: &Request| r.lock == lock && !r.try_only && matches!(r.phase, Phase::Asking | Phase::Queued);
        let mut found: Vec<_> = self.requests.iter().filter(|(_, r)| waits(r)).map(|(n, _)| *n).collect();
        found.sort_unstable();
        found
    }

    /// Grants of `lock` that are older than `incarnation` are void from now on.
    pub(crate) fn void_before(&mut self, lock: u64, incarnation: u32) {
        let profile = self.config.profile;
        // What makes grants void may itself come late.
        let concerned = |request: &&mut Request| {
            let older = request.floor.is_none_or(|floor| profile.distance(floor, incarnation) > 0);
            request.lock == lock && request.waits() && older
        };
        self.requests.values_mut().filter(concerned).for_each(|request| request.floor = Some(incarnation));
    }

    /// Asks the decider, now and until there is an answer.
    pub(crate) fn ask(&mut self, now: u64, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        request.phase = Phase::Asking;
        request.tries = 0;
        self.say(now, number);
    }

    /// Sends what the phase asks for, and sets the timer for the next time.
    fn say(&mut self, now: u64, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let (kind, delay) = match request.phase {
            Phase::Asking => (Kind::Acquire, self.pace.backoff(request.tries)),
            Phase::Queued => (Kind::Acquire, self.config.reask),
            Phase::Held => (Kind::Enrol, self.pace.backoff(request.tries)),
            Phase::Releasing => (Kind::Release, self.pace.backoff(request.tries)),
        };
        match (request.phase, request.tries) {
            (Phase::Asking, 0) => request.asked = now,
            (Phase::Asking | Phase::Releasing, tries @ 1..) => self.pace.unanswered(tries),
            _ => {}
        }
        request.tries = request.tries.saturating_add(1);
        request.serial = request.serial.wrapping_add(1);
        self.timers.set(now, delay, (number, request.serial));
        let mut packet = Packet::new(kind, request.lock);
        packet.flags = request.mode as u8;
        if request.try_only && kind == Kind::Acquire {
            packet.flags |= TRY;
        }
        if let (Kind::Enrol | Kind::Release, Some(incarnation)) = (kind, request.incarnation) {
            packet.flags |= GRANTED;
            packet.incarnation = incarnation;
        }
        if kind == Kind::Enrol {
            (packet.token, packet.parts) = (request.token, request.enrolment);
        }
        self.send(packet, number);
    }

    fn send(&mut self, mut packet: Packet, number: u64) {
        packet.request = number;
        packet.requester = self.me.machine;
        packet.requester_session = self.me.session;
        packet.sender = self.me.machine;
        packet.session = self.me.session;
        packet.part = packet.kind as u8;
        self.out.push_back(Output::Packet(packet));
    }

    fn quiet(&mut self, number: u64) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.serial = request.serial.wrapping_add(1);
            request.tries = 0;
            if let Some(deadline) = request.deadline.take() {
                self.deadlines.remove(&(deadline, number));
            }
        }
    }

    fn forget(&mut self, number: u64) -> Option<Request> {
        self.quiet(number);
        self.requests.remove(&number)
    }

    /// The decider or an agent has answered. What was asked once tells how long answers take.
    pub(crate) fn heard(&mut self, now: u64, number: u64) {
        if let Some(Request { phase: Phase::Asking, tries: 1, asked, .. }) = self.requests.get(&number) {
            self.pace.answered(now.saturating_sub(*asked));
        }
    }

    /// The agent is here and knows that `number` holds.
    pub(crate) fn hold_here(&mut self, number: u64, token: u64) {
        self.hold(number, token, None, None);
    }

    /// The agent is here and has queued it. The queue may travel on, and be lost: so it asks again too, slowly.
    pub(crate) fn queued_here(&mut self, now: u64, number: u64) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.phase = Phase::Queued;
            request.serial = request.serial.wrapping_add(1);
            request.agent = Some(self.me.machine);
            self.timers.set(now, self.config.reask, (number, request.serial));
        }
    }

    fn hold(&mut self, number: u64, token: u64, incarnation: Option<u32>, agent: Option<Machine>) {
        self.quiet(number);
        let me = self.me.machine;
        let Some(request) = self.requests.get_mut(&number) else { return };
        request.phase = Phase::Held;
        request.incarnation = incarnation;
        request.agent = Some(agent.unwrap_or(me));
        request.enrolled = incarnation.is_none();
        request.token = token;
        let event = Event::Granted { request: number, lock: request.lock, mode: request.mode, token };
        self.out.push_back(Output::Event(event));
    }

    /// A grant without agent.
    pub(crate) fn granted(&mut self, now: u64, packet: &Packet) {
        if packet.requester_session != self.me.session {
            if packet.session != 0 {
                self.confirm(packet, BUSY);
            }
            return;
        }
        let number = packet.request;
        let by_decider = packet.session == 0;
        let incarnation = by_decider.then_some(packet.incarnation);
        // The decider does not tell the session of an agent; its number is not given to another machine so soon.
        let is_from = |dead: &Dead| dead.session == packet.session || (by_decider && now < dead.until);
        let from_dead = self.dead.iter().any(|dead| dead.machine == packet.sender && is_from(dead));
        let Some(request) = self.requests.get(&number) else {
            self.branches.take(Branch::UnknownGrant);
            self.give_back(now, packet, incarnation);
            return;
        };
        if !by_decider && request.is_relieved(&self.config, packet.incarnation) {
            self.branches.take(Branch::GrantOfRelieved);
            return;
        }
        match request.phase {
            Phase::Asking | Phase::Queued => {
                if from_dead || (by_decider && !request.awaits(&self.config, packet.incarnation)) {
                    self.branches.take(if from_dead { Branch::GrantOfDead } else { Branch::VoidGrant });
                    return;
                }
                if by_decider && packet.sender == self.me.machine {
                    // With the agent here, only the pool says who holds.
                    return;
                }
                self.hold(number, packet.token, incarnation, Some(packet.sender));
                match by_decider {
                    true => self.enrol_later(now, number),
                    false => self.confirm(packet, 0),
                }
            }
            Phase::Held if by_decider => {
                if request.incarnation != incarnation {
                    self.branches.take(Branch::SecondGrant);
                    // Granted twice, for two copies of one packet. Enough that the agent learns of both.
                    self.tell_once(Kind::Enrol, packet, request.enrolment.wrapping_sub(1));
                }
            }
            Phase::Held if from_dead => {}
            // The manager does not know yet that its writer is a reader now.
            Phase::Held if self.config.is_beyond(packet.lock) && packet.mode() != Some(request.mode) => {
                self.say(now, number);
            }
            Phase::Held => {
                let request = self.requests.get_mut(&number).expect("it was there");
                request.agent = Some(packet.sender);
                // Once it had to enrol anew, it may be a grant of before.
                request.enrolled |= request.sweep == 0;
                request.enrolled.then(|| self.quiet(number));
                self.confirm(packet, 0);
            }
            Phase::Releasing => {
                if by_decider && request.incarnation.is_some_and(|i| i != packet.incarnation) {
                    self.tell_once(Kind::Release, packet, 0);
                    return;
                }
                let request = self.requests.get_mut(&number).expect("it was there");
                request.incarnation = request.incarnation.or(incarnation);
                self.say(now, number);
            }
        }
    }

    /// A grant that nobody waits for.
    fn give_back(&mut self, now: u64, packet: &Packet, incarnation: Option<u32>) {
        let request = Request {
            lock: packet.lock,
            mode: packet.mode().unwrap_or(LockMode::Shared),
            phase: Phase::Releasing,
            try_only: false,
            detect_deadlock: false,
            tries: 0,
            asked: now,
            serial: 0,
            deadline: None,
            floor: None,
            incarnation,
            agent: None,
            enrolled: false,
            enrolment: 0,
            sweep: 0,
            token: 0,
        };
        self.requests.insert(packet.request, request);
        self.say(now, packet.request);
    }

    fn enrol_later(&mut self, now: u64, number: u64) {
        let request = self.requests.get_mut(&number).expect("it holds");
        request.serial = request.serial.wrapping_add(1);
        self.timers.set(now, self.config.enrol, (number, request.serial));
    }

    fn tell_once(&mut self, kind: Kind, grant: &Packet, enrolment: u8) {
        let mut packet = Packet::new(kind, grant.lock);
        packet.parts = enrolment;
        packet.flags = (grant.flags & 3) | GRANTED;
        packet.incarnation = grant.incarnation;
        self.send(packet, grant.request);
    }

    /// Tells an agent that its grant is known; with [`BUSY`]: and that it is for a session that has ended.
    fn confirm(&mut self, grant: &Packet, flags: u8) {
        let mut packet = Packet::new(Kind::Ack, grant.lock);
        packet.flags = (grant.flags & 3) | flags;
        packet.target = grant.sender;
        self.send(packet, grant.request);
        if let Some(Output::Packet(packet)) = self.out.back_mut() {
            packet.part = Kind::Grant as u8;
            packet.requester_session = grant.requester_session;
        }
    }

    /// An acknowledgement of what this client has sent.
    pub(crate) fn acknowledged(&mut self, now: u64, packet: &Packet) {
        let number = packet.request;
        if packet.requester_session != self.me.session {
            return;
        }
        let Some(request) = self.requests.get_mut(&number) else { return };
        let of = |kind: Kind| packet.part == kind as u8;
        match request.phase {
            Phase::Asking | Phase::Queued if of(Kind::Acquire) && packet.has(BUSY) => {
                self.forget(number);
                self.out.push_back(Output::Event(Event::Busy { request: number }));
            }
            Phase::Asking | Phase::Queued if of(Kind::Acquire) => {
                request.phase = Phase::Queued;
                request.agent = Some(packet.sender);
                request.tries = 0;
                request.serial = request.serial.wrapping_add(1);
                self.timers.set(now, self.config.reask, (number, request.serial));
            }
            Phase::Held if of(Kind::Enrol) && packet.parts == request.enrolment => {
                request.enrolled = true;
                self.quiet(number);
            }
            Phase::Releasing if of(Kind::Release) => {
                self.forget(number);
            }
            _ => {}
        }
    }

    /// The decider could not do what a packet of this client asked.
    pub(crate) fn failed(&mut self, packet: &Packet, problem: Problem) {
        let number = packet.request;
        let Some(request) = self.requests.get(&number) else { return };
        let (lock, phase) = (request.lock, request.phase);
        match (phase, problem) {
            (Phase::Asking | Phase::Queued, Problem::NoSuchLock) => {
                self.forget(number);
                self.out.push_back(Output::Event(Event::Failed { request: number, problem }));
            }
            // Only an answer to what the holder itself has said. A late copy of how its first grant was told to the
            // agent finds the lock free, too, between that grant, which was void, and the one that counts.
            (Phase::Held, Problem::NotHeld) if packet.part == Kind::Enrol as u8 => {
                self.forget(number);
                self.out.push_back(Output::Event(Event::Lost { request: number, lock }));
            }
            _ => {}
        }
    }

    /// The task gives it back or no longer waits. An agent that is here has been told already.
    pub(crate) fn let_go(&mut self, now: u64, number: u64, agent_is_here: bool) {
        self.quiet(number);
        if agent_is_here {
            self.requests.remove(&number);
            return;
        }
        let Some(request) = self.requests.get_mut(&number) else { return };
        request.phase = Phase::Releasing;
        self.say(now, number);
    }

    /// The agent, which was here, is gone: who waited with it asks the decider.
    pub(crate) fn ask_again(&mut self, now: u64, number: u64) {
        if self.requests.get(&number).is_some_and(|r| matches!(r.phase, Phase::Asking | Phase::Queued)) {
            self.ask(now, number);
        }
    }

    pub(crate) fn set_mode(&mut self, number: u64, mode: LockMode) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.mode = mode;
        }
    }

    /// Gives up on a request that waits.
    pub(crate) fn give_up(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// Requests whose time is over. They still have to be let go.
    pub(crate) fn expired(&mut self, now: u64) -> Option<u64> {
        let (deadline, number) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.deadlines.remove(&(deadline, number));
        if let Some(request) = self.requests.get_mut(&number) {
            request.deadline = None;
        }
        Some(number)
    }

    /// Repeats what has had no answer.
    pub(crate) fn tick(&mut self, now: u64) {
        while let Some((number, serial)) = self.timers.due(now) {
            let Some(request) = self.requests.get_mut(&number).filter(|request| request.serial == serial) else {
                continue;
            };
            if request.phase == Phase::Queued && request.agent == Some(self.me.machine) {
                self.out.push_back(Output::AskAgain(number));
            } else if request.phase != Phase::Held || !request.enrolled {
                self.say(now, number);
            }
        }
        self.dead.retain(|dead| now < dead.until.saturating_add(REMEMBERED * self.config.lease));
    }

    /// When [`Client::tick`] or [`Client::expired`] has something to do.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        self.timers.next().into_iter().chain(deadline).min()
    }

    /// Everything is lost: the session has ended.
    pub(crate) fn lose_all(&mut self) {
        let mut requests: Vec<_> = std::mem::take(&mut self.requests).into_iter().collect();
        requests.sort_unstable_by_key(|(number, _)| *number);
        self.deadlines.clear();
        for (number, request) in requests {
            let event = match request.phase {
                Phase::Held => Event::Lost { request: number, lock: request.lock },
                Phase::Asking | Phase::Queued => Event::Failed { request: number, problem: Problem::NoSuchSession },
                Phase::Releasing => continue,
            };
            self.out.push_back(Output::Event(event));
        }
    }
}

impl Request {
    /// What to tell when its time is over.
    pub(crate) const fn over(&self, request: u64) -> Event {
        if self.try_only { Event::Busy { request } } else { Event::TimedOut { request } }
    }

    pub(crate) const fn waits(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Queued)
    }

    /// An agent of another machine has granted it.
    pub(crate) fn holds_elsewhere(&self, me: Machine) -> bool {
        self.phase == Phase::Held && self.agent != Some(me)
    }

    fn awaits(&self, config: &Config, incarnation: u32) -> bool {
        self.waits() && self.floor.is_none_or(|floor| config.profile.distance(floor, incarnation) >= 0)
    }
}
