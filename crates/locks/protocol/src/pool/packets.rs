//! What packets do to agents.

use super::{AgentPool, MAX_HOPS, Output};
use crate::agent::{Agent, Holder, MoveReason, Op, Running};
use crate::branches::Branch;
use crate::decider::TOKEN_STEP;
use crate::packet::{AGENT, BUSY, GRANTED, Kind, Packet, TRY, Waiter, waiters_of_body};
use crate::word::{Machine, State};
use lockwork_locking::LockMode;
use std::collections::VecDeque;

/// What a grant with agent has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// Nothing: it is known, or has been overtaken.
    Not,
    /// The agent is here now.
    Anew,
    /// The agent was here, as the decider has said; this decision was not known to it.
    Certain,
}

impl AgentPool {
    /// ACQUIRE, ENROL or RELEASE, sent on by the decider to the agent.
    /// `awaited`: it is a request of this machine that would take a grant.
    pub(crate) fn requested(&mut self, now: u64, packet: &Packet, awaited: bool) {
        if self.config.is_beyond(packet.lock) && !self.manages(now, packet) {
            return;
        }
        let Some(agent) = self.agents.get_mut(&packet.lock) else {
            self.too_early(now, packet);
            return;
        };
        if matches!(agent.op(), Some(Op::Retake(MoveReason::LostUnknown))) {
            // Not known yet whether the agent is here. Waiters can wait for that here; all others ask again.
            if let (Kind::Acquire, Some(waiter)) = (packet.kind, waiter(packet))
                && !packet.has(GRANTED)
                && !packet.has(TRY)
            {
                agent.enqueue(waiter);
            }
            return;
        }
        let profile = self.config.profile;
        match packet.kind {
            Kind::Acquire if !packet.has(GRANTED) => {
                let newest = profile.distance(agent.known, packet.incarnation) >= 0;
                if agent.open && packet.state == State::Led && agent.running.is_none() && newest {
                    // The decider has closed the lock for this writer, and adds no reader any more.
                    self.branches.take(Branch::ClosedByWriter);
                    agent.open = false;
                    agent.hear(packet.incarnation, profile);
                }
                if let Some(waiter) = waiter(packet) {
                    self.admit(now, packet.lock, waiter, packet.has(TRY));
                }
            }
            Kind::Acquire | Kind::Enrol => self.enrol(now, packet, awaited),
            _ => self.released(now, packet),
        }
    }

    /// A packet for an agent that is not here.
    fn too_early(&mut self, now: u64, packet: &Packet) {
        if self.me.machine == Machine::REGISTRY {
            // The registry's agents are never on their way. This one is of a machine that has died and whose locks have
            // not been looked at yet; who sent this sends it again.
            return;
        }
        if packet.hops < MAX_HOPS {
            self.branches.take(Branch::SentBack);
            let mut back = *packet;
            back.hops += 1;
            back.target = Machine::REGISTRY;
            self.send(back, Vec::new());
            return;
        }
        let mut agent = Agent::new(packet.incarnation, 0, false);
        let asks = packet.kind == Kind::Acquire && !packet.has(GRANTED);
        if let (true, Some(waiter)) = (asks && !packet.has(TRY), waiter(packet)) {
            agent.enqueue(waiter);
        }
        self.agents.insert(packet.lock, agent);
        // Only the word of a lock that was granted exclusively, and is as it was then, says that there is no other
        // holder.
        let unknown = !(asks && packet.state == State::Exclusive);
        self.branches.take(if unknown { Branch::RetakeUnknown } else { Branch::Retake });
        self.take_over(now, packet.lock, packet.incarnation, unknown);
    }

    fn take_over(&mut self, now: u64, lock: u64, incarnation: u32, unknown: bool) {
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        agent.base = incarnation;
        agent.known = incarnation;
        agent.seen.clear();
        agent.running = None;
        self.start(now, lock, Op::Retake(if unknown { MoveReason::LostUnknown } else { MoveReason::Lost }));
    }

    /// A reader whom the decider has granted; or, while machines are asked, any holder.
    fn enrol(&mut self, now: u64, packet: &Packet, awaited: bool) {
        let (lock, machine, request) = (packet.lock, packet.requester, packet.request);
        let (me, profile, beyond) = (self.me.machine, self.config.profile, self.config.is_beyond(lock));
        let Some(waiter) = waiter(packet) else { return };
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        let new = packet.has(GRANTED) && agent.see(packet.incarnation, profile);
        let asked = agent.adopted || agent.op() == Some(Op::Sweep);
        let told = packet.kind == Kind::Enrol;
        // Of this machine's own requests only those hold for which the grant has not become void.
        let real = machine != me || awaited || told;
        if new {
            agent.token = agent.token.max(packet.token);
        }
        if let Some(holder) = agent.holder(machine, request) {
            holder.confirmed |= told;
            if beyond && waiter.mode == LockMode::Shared && agent.holders.len() == 1 {
                // A writer elsewhere has become a reader.
                agent.exclusive = false;
            }
        } else if real && (new || (asked && told)) && (beyond || agent.mode() != Some(LockMode::Exclusive)) {
            // If an operation is under way, the decider will refuse it: it has granted this reader since.
            // One who enrols may have released before, and the release may have come first: let it confirm.
            agent.holders.push(Holder { machine, session: waiter.session, request, confirmed: false });
            // With a manager one of several may have released since, and another be the writer.
            agent.exclusive = waiter.mode == LockMode::Exclusive || beyond && agent.exclusive;
            self.branches.take(match (told, new, machine == me) {
                (true, true, _) => Branch::Enrolled,
                (true, false, _) => Branch::EnrolledAnew,
                (false, _, true) => Branch::JoinHere,
                _ => Branch::Joined,
            });
            if told || machine == me {
                self.tell(lock, machine, request);
            }
            let delay = if told { self.pace.backoff(0) } else { self.config.confirm };
            self.remind_after(now, delay, lock, machine, request, 0);
        }
        if told {
            self.acknowledge_enrolment(lock, &waiter, packet.parts);
        }
        self.advance(now, lock);
    }

    /// A holder gives back, or a waiter no longer waits.
    fn released(&mut self, now: u64, packet: &Packet) {
        let profile = self.config.profile;
        let agent = self.agents.get_mut(&packet.lock).expect("the agent is here");
        if packet.has(GRANTED) {
            agent.see(packet.incarnation, profile);
        }
        agent.remove(packet.requester, packet.request);
        let mode = packet.mode().unwrap_or(LockMode::Shared);
        let (machine, session, request) = (packet.requester, packet.requester_session, packet.request);
        self.acknowledge(packet.lock, Kind::Release, &Waiter { machine, session, request, mode }, 0);
        self.advance(now, packet.lock);
    }

    /// GRANT with a new agent, from the decider. `awaited`: the request still waits for it, and holds now.
    pub(crate) fn granted(&mut self, now: u64, packet: &Packet, awaited: bool) {
        let Some(waiter) = waiter(packet) else { return };
        match self.begin(packet, packet.state) {
            Begun::Not => {}
            Begun::Anew if !awaited => self.verify(now, packet.lock),
            _ => {
                if awaited {
                    self.hold_first(now, packet.lock, waiter);
                }
                self.tell_unconfirmed(packet.lock);
                self.advance(now, packet.lock);
            }
        }
    }

    /// Nobody waits for what an agent has come for, so nothing says how old the packet is. Before somebody else is
    /// granted the lock, the decider has to say whether the agent is here.
    fn verify(&mut self, now: u64, lock: u64) {
        let agent = self.agents.get(&lock).expect("it has begun");
        if agent.holders.is_empty() && agent.queue.is_empty() && !agent.misses() {
            self.start(now, lock, Op::Free);
        } else {
            self.branches.take(Branch::RetakeOfArrived);
            self.start(now, lock, Op::Retake(MoveReason::Arrived));
        }
    }

    /// By the decision that `packet` tells of, the agent is here, and nobody else held the lock then.
    fn begin(&mut self, packet: &Packet, state: State) -> Begun {
        let (open, alone) = (state == State::Shared, state == State::Exclusive);
        let (lock, profile, incarnation) = (packet.lock, self.config.profile, packet.incarnation);
        let Some(agent) = self.agents.get_mut(&lock) else {
            self.agents.insert(lock, Agent { alone, ..Agent::new(incarnation, packet.token, open) });
            return Begun::Anew;
        };
        let since = match agent.running.as_deref() {
            // What is taken over is taken over in the incarnation that it then has.
            Some(Running { op: Op::Retake(_), incarnation, .. }) => *incarnation,
            _ => agent.base,
        };
        if profile.distance(since, incarnation) <= 0 || agent.seen.contains(&incarnation) {
            return Begun::Not;
        }
        self.branches.take(Branch::Parked);
        let leaving = agent.is_leaving();
        if leaving {
            // It had left, and is back.
            if let Some(Op::Move { queued, .. }) = agent.op() {
                agent.queue.drain(..queued.min(agent.queue.len()));
            }
            agent.running = None;
            agent.open = open;
            agent.alone = alone;
        }
        if (leaving || incarnation == agent.known) && !open {
            // No reader can have joined since. Who seems to hold is from an earlier time; if not, it is not known here.
            agent.holders.clear();
            agent.seen.clear();
        }
        agent.see_all(incarnation, profile);
        agent.token = agent.token.max(packet.token);
        if leaving { Begun::Anew } else { Begun::Certain }
    }

    /// The request that an agent has come for holds, if nobody else does.
    fn hold_first(&mut self, now: u64, lock: u64, waiter: Waiter) {
        let agent = self.agents.get_mut(&lock).expect("it has begun");
        agent.remove(waiter.machine, waiter.request);
        if agent.mode().is_none_or(|mode| mode == LockMode::Shared && mode == waiter.mode) {
            self.hold(now, lock, waiter);
        } else {
            agent.queue.push_front(waiter);
        }
    }

    /// Takes an agent out that has ended, and gives who came too late to go along.
    fn remove(&mut self, lock: u64) -> VecDeque<Waiter> {
        let Some(mut agent) = self.agents.remove(&lock) else { return VecDeque::new() };
        if let Some(Op::Move { queued, .. }) = agent.op() {
            agent.queue.drain(..queued.min(agent.queue.len()));
        }
        agent.queue
    }

    /// Takes an agent out, and sends who waited with it to the decider. Those who went along too: who should have
    /// received them has not said so, and may have taken the lock over without them.
    fn disperse(&mut self, lock: u64) {
        self.branches.take(Branch::Dispersed);
        let waiters = self.agents.remove(&lock).map(|agent| agent.queue).unwrap_or_default();
        self.send_away(lock, waiters);
    }

    fn send_away(&mut self, lock: u64, waiters: VecDeque<Waiter>) {
        for waiter in waiters {
            if waiter.machine == self.me.machine {
                self.out.push_back(Output::AskAgain { request: waiter.request });
                continue;
            }
            let mut packet = Packet::new(Kind::Acquire, lock);
            packet.flags = waiter.mode as u8;
            packet.request = waiter.request;
            packet.requester = waiter.machine;
            packet.requester_session = waiter.session;
            self.send(packet, Vec::new());
        }
    }

    /// An agent, or a part of one, from another machine or this one. `awaits` says whether a request of this machine
    /// would take a grant of an incarnation.
    pub(crate) fn arrived(&mut self, now: u64, packet: &Packet, body: &[u8], awaits: impl Fn(u64, u32) -> bool) {
        let Ok(waiters) = waiters_of_body(body) else { return };
        let own = packet.sender == self.me.machine && packet.requester == self.me.machine;
        let is_ours = |agent: &Agent| {
            agent.running.as_deref().is_some_and(|r| matches!(r.op, Op::Retake(_)) && r.number == packet.request)
        };
        if own && packet.parts <= 1 && packet.request >> 32 == u64::from(u32::MAX) {
            if self.agents.get(&packet.lock).is_some_and(is_ours) {
                self.retaken(now, packet);
            }
            return;
        }
        if let Some((head, queue)) = self.assemble(packet, waiters) {
            self.moved_here(now, &head, queue, awaits(head.request, head.incarnation));
        }
    }

    /// (8): another machine's agent has come with the lock for a request of this machine.
    fn moved_here(&mut self, now: u64, packet: &Packet, queue: Vec<Waiter>, awaited: bool) {
        let lock = packet.lock;
        let Some(waiter) = waiter(packet) else { return };
        self.confirm_agent(packet);
        let taking_over =
            self.agents.get(&lock).is_some_and(|agent| agent.op() == Some(Op::Retake(MoveReason::LostUnknown)));
        let begun = self.begin(packet, State::Led);
        if begun == Begun::Not {
            self.branches.take(Branch::ArrivedAgain);
            if !taking_over {
                return;
            }
        }
        // If its agent was taken over, who waited with it may still do.
        let agent = self.agents.get_mut(&lock).expect("it is here");
        let parked = std::mem::replace(&mut agent.queue, queue.into());
        parked.into_iter().for_each(|waiter| agent.enqueue(waiter));
        match begun {
            Begun::Not => {}
            Begun::Anew if !awaited => self.verify(now, lock),
            _ => {
                if awaited {
                    self.hold_first(now, lock, waiter);
                }
                self.advance(now, lock);
            }
        }
    }

    fn confirm_agent(&mut self, grant: &Packet) {
        let mut packet = *grant;
        packet.kind = Kind::Ack;
        packet.flags = (grant.flags & 3) | AGENT;
        packet.target = grant.sender;
        packet.part = Kind::Grant as u8;
        packet.parts = 0;
        self.send(packet, Vec::new());
    }

    /// The agent is here, in a new incarnation and with a new token.
    fn retaken(&mut self, now: u64, packet: &Packet) {
        let lock = packet.lock;
        let agent = self.agents.get_mut(&lock).expect("it was found");
        let unknown = matches!(agent.op(), Some(Op::Retake(MoveReason::LostUnknown)));
        agent.running = None;
        agent.open = false;
        agent.alone = false;
        agent.token = agent.token.max(packet.token);
        agent.base = packet.incarnation;
        agent.known = packet.incarnation;
        agent.seen.clear();
        self.tell_unconfirmed(lock);
        self.out.push_back(Output::TakenOver { lock, incarnation: packet.incarnation });
        if unknown {
            self.branches.take(Branch::SweepOfTakenOver);
            self.start(now, lock, Op::Sweep);
        } else {
            self.advance(now, lock);
        }
    }

    /// DONE or REFUSED: the decider's answer to what an agent asked.
    pub(crate) fn answered(&mut self, now: u64, packet: &Packet) {
        let (lock, profile, me) = (packet.lock, self.config.profile, self.me.machine);
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        let Some(running) = agent.running.as_deref().copied() else { return };
        let number = match running.op {
            Op::Move { to, .. } => to.request,
            _ => running.number,
        };
        let gone = packet.state == State::Free || packet.sender != me;
        let newer = profile.distance(running.incarnation, packet.incarnation);
        // The number of a move is that of a request, so the answer may be for an earlier attempt.
        let of_earlier = matches!(running.op, Op::Move { .. }) && packet.kind == Kind::Refused && newer <= 0;
        if packet.request != number || of_earlier {
            return;
        }
        match (running.op, packet.kind) {
            (Op::Sweep, _) => {}
            (_, Kind::Done) if gone => self.disperse(lock),
            (Op::Free | Op::Move { .. } | Op::Retake(_), Kind::Done) => {}
            (Op::Free, _) => {
                self.branches.take(Branch::RefusedFree);
                self.refused(now, packet);
            }
            (Op::Move { to, .. }, _) => {
                self.branches.take(Branch::RefusedMove);
                agent.queue.push_front(to);
                self.refused(now, packet);
            }
            (Op::Retake(why), _) => {
                self.branches.take(Branch::RefusedRetake);
                // Nobody else can have made this word, unless readers could join, or it was never said to be the
                // present one.
                let done = packet.state == State::Led && newer == 1 && !agent.open && why != MoveReason::Arrived;
                if done {
                    // An earlier copy was done, and the answer was lost.
                    self.retaken(now, &Packet { token: packet.token | (TOKEN_STEP - 1), ..*packet });
                } else {
                    self.refused(now, packet);
                }
            }
            (Op::Open, _) => {
                // Opening makes the incarnation larger, and is known here. A refusal says that it was done, and that
                // the lock was closed again.
                agent.running = None;
                agent.open = packet.state == State::Shared;
                agent.alone = false;
                agent.see(profile.add(running.incarnation, 1), profile);
                self.advance(now, lock);
            }
            (Op::Close, _) => {
                agent.running = None;
                agent.open = false;
                agent.hear(packet.incarnation, profile);
                self.advance(now, lock);
            }
        }
    }

    /// The agent remains, because the decider has another incarnation than the agent had.
    fn refused(&mut self, now: u64, packet: &Packet) {
        let (lock, profile) = (packet.lock, self.config.profile);
        let agent = self.agents.get_mut(&lock).expect("it was to leave");
        if !agent.open || packet.state == State::Exclusive {
            // Nobody can have joined. An earlier copy was done, and the lock was granted to this machine since.
            return self.take_over(now, lock, packet.incarnation, packet.state != State::Exclusive);
        }
        // A reader has joined. Or it is as above; then the grant is on its way, and is one more decision that is not
        // known here.
        agent.running = None;
        agent.open = packet.state == State::Shared;
        agent.hear(packet.incarnation, profile);
        agent.token = agent.token.max(packet.token | (TOKEN_STEP - 1));
        self.tell_unconfirmed(lock);
        self.advance(now, lock);
    }

    /// A machine has taken note: of a grant, or of an agent.
    pub(crate) fn confirmed(&mut self, now: u64, packet: &Packet) {
        let lock = packet.lock;
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        if packet.has(BUSY) {
            return self.forget(now, packet);
        }
        if !packet.has(AGENT) {
            if let Some(holder) = agent.holder(packet.requester, packet.request) {
                holder.confirmed = true;
            }
            return;
        }
        // The target stamps the incarnation that the move has made.
        if let Some(Running { op: Op::Move { to, .. }, incarnation, .. }) = agent.running.as_deref()
            && to.request == packet.request
            && to.machine == packet.requester
            && self.config.profile.add(*incarnation, 1) == packet.incarnation
        {
            let late = self.remove(lock);
            if !late.is_empty() {
                self.branches.take(Branch::SentAfter);
            }
            self.send_away(lock, late);
        }
    }

    /// The session of a holder has ended. It may have been granted to after all had been told so, because it still
    /// waited in a queue that was under way.
    fn forget(&mut self, now: u64, packet: &Packet) {
        let (machine, session, request) = (packet.requester, packet.requester_session, packet.request);
        let Some(agent) = self.agents.get_mut(&packet.lock) else { return };
        if agent.holder(machine, request).is_some_and(|holder| holder.session == session) {
            self.branches.take(Branch::HolderOfDead);
            agent.remove(machine, request);
            self.advance(now, packet.lock);
        }
    }

    /// All machines have enrolled what they hold.
    pub(crate) fn swept(&mut self, now: u64, packet: &Packet) {
        if self.config.is_beyond(packet.lock) {
            return self.part_swept(now, packet);
        }
        let profile = self.config.profile;
        let Some(agent) = self.agents.get_mut(&packet.lock) else { return };
        let Some(running) = agent.running.as_deref().copied() else { return };
        if running.op == Op::Sweep && running.number == packet.request {
            agent.running = None;
            agent.see_all(running.incarnation, profile);
            // A grant that was lost and comes yet is none.
            let incarnation = profile.add(running.incarnation, 1);
            self.out.push_back(Output::Void { lock: packet.lock, incarnation });
            self.advance(now, packet.lock);
        }
    }

    /// The machine that a packet was for is not there.
    pub(crate) fn undeliverable(&mut self, now: u64, packet: &Packet) {
        let (lock, me) = (packet.lock, self.me.machine);
        // About a request of this machine it is an acknowledgement that did not arrive.
        if packet.requester != me {
            self.forget(now, packet);
        }
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        let Some(Running { op: Op::Move { to, .. }, incarnation, .. }) = agent.running.as_deref().copied() else {
            return;
        };
        // Only the first part is decided on.
        if (to.machine, to.request) != (packet.requester, packet.request) || packet.part > 0 {
            return;
        }
        self.branches.take(Branch::Undeliverable);
        if packet.sender != me || packet.state == State::Free {
            self.disperse(lock);
        } else if packet.incarnation == incarnation {
            agent.running = None;
            self.advance(now, lock);
        } else {
            self.refused(now, packet);
        }
    }
}

/// Whose request a packet is about.
fn waiter(packet: &Packet) -> Option<Waiter> {
    let (machine, session, request) = (packet.requester, packet.requester_session, packet.request);
    packet.mode().map(|mode| Waiter { machine, session, request, mode })
}
