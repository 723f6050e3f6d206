//! The agent pool: the agents of one machine, what packets do to them, and what they ask of the decider.
//!
//! An agent is made by a grant from the decider, arrives from another machine, is taken over (`Op::Retake`) when
//! packets for it come and it is not there, and ends when it is given back or has moved. In between,
//! `AgentPool::advance` is the only place that grants: it is called after every change, and does what the state asks
//! for.
//!
//! **Packets that come too early.** A grant and a packet sent after it may change places, so a machine can get packets
//! for an agent that is still on its way. They are sent back to the decider, which routes them anew (section 4.2 of the
//! paper). After [`MAX_HOPS`] times the grant must be taken for lost: the machine takes the agent over by moving it to
//! itself, which the decider allows only if the word still has the incarnation that it had. The paper's client gives
//! the lock up by a RELEASE instead, which frees what a second reader holds.
//!
//! **Readers that nobody knows.** When both packets of a join are lost, the decider has counted a reader that the agent
//! will never hear of. The agent closes the lock, so that no more are added, and has the registry ask all machines what
//! they hold (a *sweep*). The same makes a lost agent whole.
//!
//! *Trade-off*: waiters are only hints. A queue that is lost or comes twice costs order, never exclusion: whoever is
//! granted without waiting gives back, and whoever waits asks again.

mod advance;
mod managed;
mod packets;
mod parts;
mod resume;
mod snapshot;

use crate::agent::{Agent, Holder, Op, Running};
use crate::branches::{Branch, Branches};
use crate::config::{Config, Identity};
use crate::numbers::Numbers;
use crate::pace::Pace;
use crate::packet::{Kind, Packet, Waiter};
use crate::timers::Timers;
use crate::word::Machine;
use lockwork_locking::LockMode;
use std::collections::{BTreeMap, VecDeque};

/// How often a packet is sent back before its agent is taken for lost.
pub const MAX_HOPS: u8 = 4;

/// What a pool has to tell.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    Packet(Packet, Vec<u8>),
    /// A request of this machine holds.
    Granted {
        lock: u64,
        request: u64,
        token: u64,
    },
    /// A request of this machine would have to wait, and does not want to.
    Busy {
        request: u64,
    },
    /// A request of this machine waited here and has to ask the decider.
    AskAgain {
        request: u64,
    },
    /// Grants of this lock that are older than this are void.
    Void {
        lock: u64,
        incarnation: u32,
    },
    /// The agent of this lock was taken over: requests of this machine for it belong into its queue.
    TakenOver {
        lock: u64,
        incarnation: u32,
    },
}

/// What came of a request that asked the agent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// There is no agent here.
    Elsewhere,
    /// It is taken care of: granted, queued or refused, as the outputs say.
    Here,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug)]
enum Watch {
    /// An operation without answer.
    Operation(u64),
    /// Readers that are not known, or that pass writers.
    WaitPolicy(u32),
    /// A holder that is not confirmed.
    Holder(Machine, u64, u8),
}

/// The agents of one machine.
#[derive(Clone, Debug)]
pub struct AgentPool {
    config: Config,
    pub(crate) pace: Pace,
    me: Identity,
    agents: Numbers<Agent>,
    operations: u64,
    timers: Timers<(u64, Watch)>,
    /// Parts of the locks beyond the decider's, as far as this machine has to do with them.
    managed: BTreeMap<u64, managed::Part>,
    /// Parts of agents that have not all come.
    arriving: VecDeque<parts::Arriving>,
    pub(crate) branches: Branches,
    pub(crate) out: VecDeque<Output>,
}

/// What an agent looks like from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// The lock.
    pub lock: u64,
    /// Mode of the holders, if there are any.
    pub mode: Option<LockMode>,
    /// Who holds: machine and request.
    pub holders: Vec<(Machine, u64)>,
    /// Who waits, the first first.
    pub waiters: Vec<Waiter>,
    /// The newest token.
    pub token: u64,
}

impl AgentPool {
    /// Without agents.
    #[must_use]
    pub fn new(config: Config, me: Identity) -> Self {
        Self {
            pace: Pace::new(&config),
            config,
            me,
            agents: Numbers::default(),
            operations: 0,
            timers: Timers::new(),
            managed: BTreeMap::new(),
            arriving: VecDeque::new(),
            branches: Branches::default(),
            out: VecDeque::new(),
        }
    }

    /// How many agents there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// The agent of a lock, if it is here.
    #[must_use]
    pub fn view(&self, lock: u64) -> Option<AgentView> {
        let agent = self.agents.get(&lock)?;
        Some(AgentView {
            lock,
            mode: agent.mode(),
            holders: agent.holders.iter().map(|holder| (holder.machine, holder.request)).collect(),
            waiters: agent.queue.iter().copied().collect(),
            token: agent.token,
        })
    }

    /// All that is known of a lock here, for people who look for an error.
    #[must_use]
    pub fn describe(&self, lock: u64) -> String {
        self.agents.get(&lock).map_or_else(String::new, |agent| format!("{agent:?}"))
    }

    /// Locks whose agents are here.
    pub fn locks(&self) -> impl Iterator<Item = u64> + '_ {
        self.agents.keys().copied()
    }

    /// Whether the agent of a lock is here and may grant, for all that it knows; and if so, whether the decider may add
    /// readers.
    #[must_use]
    pub fn decides(&self, lock: u64) -> Option<bool> {
        self.agents.get(&lock).filter(|agent| !agent.is_leaving()).map(|agent| agent.open)
    }

    /// (4) and (5): a task of this machine asks the agent here.
    pub(crate) fn acquire(&mut self, now: u64, lock: u64, waiter: Waiter, try_only: bool) -> Local {
        let Some(agent) = self.agents.get(&lock) else { return Local::Elsewhere };
        if try_only && agent.is_leaving() && agent.holders.is_empty() && agent.queue.is_empty() {
            // Nobody is known to hold it: the decider hears of this after it has heard that the agent leaves.
            return Local::Elsewhere;
        }
        self.admit(now, lock, waiter, try_only);
        Local::Here
    }

    /// Locks whose agents only stay in case that somebody asks.
    pub(crate) fn idle(&self) -> Vec<u64> {
        self.agents.iter().filter(|(_, agent)| agent.is_idle()).map(|(lock, _)| *lock).collect()
    }

    /// Such an agent stays no longer.
    pub(crate) fn give_back(&mut self, now: u64, lock: u64) {
        if let Some(agent) = self.agents.get_mut(&lock).filter(|agent| agent.is_idle()) {
            agent.used = false;
            self.stop_staying(now, lock);
        }
    }

    /// The machines that hold a lock that a request waits for in the agent's queue here.
    pub(crate) fn holders_before(&self, lock: u64, machine: Machine, request: u64) -> BTreeMap<Machine, u32> {
        let agent = self.agents.get(&lock).filter(|agent| agent.waits(machine, request));
        let holders = agent.into_iter().flat_map(|agent| &agent.holders);
        holders.map(|holder| (holder.machine, holder.session)).collect()
    }

    /// (6), (7), (8): a task of this machine gives back, or no longer waits. False if it is not known here.
    pub(crate) fn release(&mut self, now: u64, lock: u64, request: u64) -> bool {
        let me = self.me.machine;
        let known = self.agents.get_mut(&lock).is_some_and(|agent| agent.remove(me, request));
        if known {
            self.advance(now, lock);
        }
        known
    }

    /// A writer of this machine becomes a reader. False if it does not hold exclusively here.
    pub(crate) fn downgrade(&mut self, now: u64, lock: u64, request: u64) -> bool {
        let me = self.me.machine;
        let Some(agent) = self.agents.get_mut(&lock) else { return false };
        if agent.mode() != Some(LockMode::Exclusive) || agent.holder(me, request).is_none() {
            return false;
        }
        agent.exclusive = false;
        self.advance(now, lock);
        true
    }

    /// Takes over the lock of a machine that died, for the registry: nothing is granted or given away until
    /// [`AgentPool::release_adopted`].
    pub fn adopt(&mut self, lock: u64, incarnation: u32, token: u64) {
        // Its former agent may have handed it on within its machine.
        let mut agent = Agent::new(incarnation, token | (crate::decider::TOKEN_STEP - 1), false);
        agent.adopted = true;
        self.agents.insert(lock, agent);
    }

    /// All machines have said what they hold of an adopted lock.
    pub fn release_adopted(&mut self, now: u64, lock: u64) {
        if let Some(agent) = self.agents.get_mut(&lock) {
            agent.adopted = false;
            self.advance(now, lock);
        }
    }

    /// Takes an agent out that has nothing to do because `request` of this machine holds, exclusively: its token, and
    /// who waits with it.
    pub(crate) fn take(&mut self, lock: u64, request: u64) -> Option<(u64, Vec<Waiter>)> {
        let agent = self.agents.get(&lock)?;
        let holds = matches!(agent.holders[..], [one] if (one.machine, one.request) == (self.me.machine, request));
        let rests = agent.running.is_none() && !agent.open && !agent.adopted;
        if !holds || !rests || agent.mode() != Some(LockMode::Exclusive) {
            return None;
        }
        let agent = self.agents.remove(&lock)?;
        Some((agent.token, agent.queue.into()))
    }

    /// A machine has died: it holds and waits no longer.
    pub(crate) fn purge(&mut self, now: u64, machine: Machine, session: u32) {
        let concerned = |(lock, agent): (&u64, &mut Agent)| agent.purge(machine, session).then_some(*lock);
        let mut locks: Vec<_> = self.agents.iter_mut().filter_map(concerned).collect();
        locks.sort_unstable();
        if !locks.is_empty() {
            self.branches.take(Branch::Purged);
        }
        locks.into_iter().for_each(|lock| self.advance(now, lock));
    }

    /// Puts a request into the agent's hands: it joins the holders, is queued, or refused.
    fn admit(&mut self, now: u64, lock: u64, waiter: Waiter, try_only: bool) {
        let me = self.me.machine;
        let writers_first = self.config.writers_first;
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        if agent.holder(waiter.machine, waiter.request).is_some() {
            // It asks again because it has not heard.
            self.tell(lock, waiter.machine, waiter.request);
            return;
        }
        let elsewhere = waiter.machine != me;
        if self.config.is_beyond(lock) && self.admit_managed(now, lock, waiter, try_only) {
            return;
        }
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        if waiter.mode == LockMode::Shared && agent.admits_reader(writers_first) && !(elsewhere && agent.alone) {
            self.hold(now, lock, waiter);
            // Somebody elsewhere reads: let the decider add the next ones, unless a writer waits.
            if elsewhere && self.agents[&lock].queue.is_empty() {
                self.open(now, lock);
            }
            return;
        }
        if try_only && !agent.is_idle() {
            match waiter.machine == me {
                true => self.out.push_back(Output::Busy { request: waiter.request }),
                false => self.acknowledge(lock, Kind::Acquire, &waiter, crate::packet::BUSY),
            }
            return;
        }
        agent.enqueue(waiter);
        if elsewhere {
            self.acknowledge(lock, Kind::Acquire, &waiter, 0);
        }
        self.advance(now, lock);
    }

    /// `waiter` holds from now on.
    fn hold(&mut self, now: u64, lock: u64, waiter: Waiter) {
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        assert!(
            agent.holders.is_empty() || (!agent.exclusive && waiter.mode == LockMode::Shared),
            "one writer, or readers"
        );
        let (machine, session, request) = (waiter.machine, waiter.session, waiter.request);
        agent.holders.push(Holder { machine, session, request, confirmed: false });
        agent.exclusive = waiter.mode == LockMode::Exclusive;
        self.tell(lock, machine, request);
        self.remind_after(now, self.pace.backoff(0), lock, machine, request, 1);
    }

    /// The agent is certainly here again: requests of this machine that have joined meanwhile are told.
    fn tell_unconfirmed(&mut self, lock: u64) {
        let me = self.me.machine;
        let Some(agent) = self.agents.get(&lock) else { return };
        let mine = agent.holders.iter().filter(|holder| holder.machine == me && !holder.confirmed);
        let requests: Vec<_> = mine.map(|holder| holder.request).collect();
        requests.into_iter().for_each(|request| self.tell(lock, me, request));
    }

    /// Tells a holder that it is one.
    fn tell(&mut self, lock: u64, machine: Machine, request: u64) {
        let me = self.me.machine;
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        let token = if self.config.profile.has_tokens() { agent.token } else { 0 };
        let (exclusive, base) = (agent.exclusive, agent.base);
        // While an agent may have left, it grants nothing.
        let leaving = agent.is_leaving();
        let Some(holder) = agent.holder(machine, request).filter(|_| !leaving) else { return };
        if machine == me {
            holder.confirmed = true;
            self.out.push_back(Output::Granted { lock, request, token });
            return;
        }
        let session = holder.session;
        let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
        let mut packet = Packet::new(Kind::Grant, lock);
        packet.flags = mode as u8;
        packet.request = request;
        packet.requester = machine;
        packet.requester_session = session;
        packet.target = machine;
        packet.incarnation = base;
        packet.token = token;
        self.send(packet, Vec::new());
    }

    /// Tells a holder that it is one until it confirms; and then seldom, as long as somebody waits, because what it
    /// confirmed may have been a packet of before it gave back. Who does not hold answers by giving back.
    fn remind(&mut self, now: u64, lock: u64, machine: Machine, request: u64, tries: u8) {
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        let (waited_for, misses) = (!agent.queue.is_empty(), agent.misses());
        let Some(confirmed) = agent.holder(machine, request).map(|holder| holder.confirmed) else { return };
        // What is not known may be that another has been granted it.
        if (!confirmed || waited_for) && !misses {
            self.branches.take(if confirmed { Branch::ConfirmAgain } else { Branch::Confirm });
            self.tell(lock, machine, request);
        }
        let delay = if confirmed { self.config.reask } else { self.pace.backoff(tries) };
        self.remind_after(now, delay, lock, machine, request, tries.saturating_add(1));
    }

    fn remind_after(&mut self, now: u64, delay: u64, lock: u64, machine: Machine, request: u64, tries: u8) {
        if machine != self.me.machine {
            self.timers.set(now, delay, (lock, Watch::Holder(machine, request, tries)));
        }
    }

    fn acknowledge(&mut self, lock: u64, of: Kind, waiter: &Waiter, flags: u8) {
        let mut packet = Packet::new(Kind::Ack, lock);
        packet.flags = waiter.mode as u8 | flags;
        packet.request = waiter.request;
        packet.requester = waiter.machine;
        packet.requester_session = waiter.session;
        packet.target = waiter.machine;
        packet.part = of as u8;
        self.send(packet, Vec::new());
    }

    fn acknowledge_enrolment(&mut self, lock: u64, waiter: &Waiter, enrolment: u8) {
        self.acknowledge(lock, Kind::Enrol, waiter, 0);
        if let Some(Output::Packet(packet, _)) = self.out.back_mut() {
            packet.parts = enrolment;
        }
    }

    fn send(&mut self, mut packet: Packet, body: Vec<u8>) {
        packet.sender = self.me.machine;
        packet.session = self.me.session;
        self.out.push_back(Output::Packet(packet, body));
    }

    /// Repeats what has had no answer, and loses patience.
    pub(crate) fn tick(&mut self, now: u64) {
        while let Some((lock, watch)) = self.timers.due(now) {
            if let Watch::Operation(number) = watch
                && self.asks_about(lock, number)
            {
                self.ask_part(now, lock);
                continue;
            }
            let Some(agent) = self.agents.get_mut(&lock) else { continue };
            match watch {
                Watch::Operation(number) => {
                    if let Some(running) = agent.running.as_deref_mut().filter(|running| running.number == number) {
                        running.tries = running.tries.saturating_add(1);
                        self.send_operation(now, lock);
                    }
                }
                Watch::WaitPolicy(serial) => {
                    if serial == agent.serial
                        && let Some(wait) = agent.watched
                    {
                        self.lose_patience(now, lock, wait);
                    }
                }
                Watch::Holder(machine, request, tries) => {
                    self.remind(now, lock, machine, request, tries);
                }
            }
        }
    }

    /// When [`AgentPool::tick`] has something to do.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Lets the decider add readers, if it is not so, and nothing else is under way.
    fn open(&mut self, now: u64, lock: u64) {
        let agent = &self.agents[&lock];
        let may = !self.config.is_beyond(lock);
        if may && !agent.open && agent.running.is_none() && !agent.adopted && !agent.misses() {
            self.start(now, lock, Op::Open);
        }
    }

    fn start(&mut self, now: u64, lock: u64, op: Op) {
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        assert!(agent.running.is_none(), "one operation at a time");
        let incarnation = if op == Op::Sweep { agent.known } else { agent.base };
        if op == Op::Open {
            self.branches.take(Branch::Open);
            // The decider hands out the end of the range from now on.
            agent.open = true;
            agent.token |= crate::decider::TOKEN_STEP - 1;
        }
        self.operations += 1;
        let number = u64::from(u32::MAX) << 32 | (self.operations & u64::from(u32::MAX));
        agent.running = Some(Box::new(Running { op, number, incarnation, tries: 0 }));
        self.send_operation(now, lock);
    }

    fn send_operation(&mut self, now: u64, lock: u64) {
        let me = self.me;
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        let Some(running) = agent.running.as_deref() else { return };
        let (number, tries) = (running.number, running.tries);
        let kind = match running.op {
            Op::Free => Kind::Free,
            Op::Move { .. } | Op::Retake(_) => Kind::Move,
            Op::Open => Kind::Open,
            Op::Close => Kind::Close,
            Op::Sweep => Kind::Sweep,
        };
        let mut packet = Packet::new(kind, lock);
        packet.flags = LockMode::Exclusive as u8;
        packet.request = number;
        packet.requester = me.machine;
        packet.requester_session = me.session;
        packet.target = if kind == Kind::Sweep { Machine::REGISTRY } else { me.machine };
        packet.incarnation = running.incarnation;
        // An agent of its own that is under way, without a queue: what says zero is a new one.
        packet.parts = u8::from(kind == Kind::Move);
        match running.op {
            Op::Move { to, queued } => {
                packet.flags = to.mode as u8;
                packet.request = to.request;
                packet.requester = to.machine;
                packet.requester_session = to.session;
                packet.target = to.machine;
                let waiters: Vec<_> = agent.queue.iter().take(queued).copied().collect();
                self.send_agent(packet, &waiters);
            }
            _ => self.send(packet, Vec::new()),
        }
        self.timers.set(now, self.pace.backoff(tries), (lock, Watch::Operation(number)));
    }
}
