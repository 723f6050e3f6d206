//! The registry: who takes part, for how long, and what becomes of the locks of those who are gone.
//!
//! Not in FissLock, whose section 4.3 leaves failures to an external service. It is a state machine like the others:
//! packets and the time go in, packets and [`Change`]s come out; the daemon carries the changes into the decider's
//! table.
//!
//! ```text
//! process            registry                                 other machines
//!  JOIN(nonce)  ->    number, session, lease
//!               <-    WELCOME(settings)
//!  RENEW        ->    the lease runs anew from now
//!               <-    RENEWED                                 (the machine counts from when it sent RENEW)
//!  LEAVE, or silence
//!               <-    LEFT
//!                     1. its session is no longer known: deciders refuse its packets, and packets for it
//!                     2. after a grace, a scan: its words are freed or adopted        -> Change::Adopted
//!                     3. DIED                                 ->   forget it; enrol what its agents granted
//!                                                             <-   SWEPT
//!                     4. when all have answered               -> Change::Settled: the registry's agents may decide
//!                     5. quarantine, then the number is given out again
//! ```
//!
//! *Invariant*: a machine stops using its guards before its locks are given away. It counts its lease from when it sent
//! the renewal, less a margin for clocks that run at different speeds; the registry counts from when that arrived,
//! which is later.
//!
//! *Trade-off*: who leaves in good order is treated as one that died. It costs a packet for every machine and a scan,
//! and nothing depends on whether its last packets arrived.

mod adoption;
mod broadcast;
mod joining;
mod machines;
mod recovery;
mod sessions;
mod status;
#[cfg(test)]
mod tests;

use crate::beyond::{MAX_LOCKS, Manager, Managers};
use crate::control::{ALL_LOCKS, Participant, Service, Summary};
use crate::decider::{Sessions, Store};
use crate::packet::{GRANTED, Kind, Packet, Problem};
use crate::word::{Machine, Word};
pub use adoption::Adopted;
use adoption::Scan;
use broadcast::{Broadcasts, Subject, addressed};
use machines::Machines;
pub use recovery::Member;
use recovery::Recovery;
use status::StatusQuery;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;

/// Times of a registry, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// For how long a session lives after its last renewal.
    pub lease_ns: u64,
    /// From a machine's end until its words are looked at: longer than any decision takes.
    pub grace_ns: u64,
    /// From a complete sweep until the number is given out again: longer than any packet is under way.
    pub quarantine_ns: u64,
    /// After which an unanswered question is asked again for the first time.
    pub again_ns: u64,
    /// Who takes part is written down first: see [`Change::Record`].
    pub recorded: bool,
    /// Tokens of locks that managers keep begin above this, and above what the time adds:
    /// [`TOKENS_A_MS`](crate::beyond::TOKENS_A_MS).
    pub first_token: u64,
    /// Where the numbering of sessions begins, in the bits below the era. Take it at random, so that a restarted
    /// registry knows no session of the former one.
    pub first_session: u32,
    /// The order in which sessions are given out. Take it at random, so that no client can compute the session of
    /// another from its own.
    pub session_key: u128,
}

impl Config {
    /// The usual times with a lease of so many milliseconds.
    #[must_use]
    pub const fn new(lease_ms: u32, first_session: u32) -> Self {
        let lease_ns = lease_ms as u64 * 1_000_000;
        Self {
            lease_ns,
            grace_ns: 10_000_000,
            // For one lease nobody takes grants that name the machine.
            quarantine_ns: if lease_ns > 5_000_000_000 { 2 * lease_ns } else { 10_000_000_000 },
            again_ns: 50_000_000,
            recorded: false,
            first_token: 0,
            first_session,
            session_key: 0,
        }
    }
}

/// What happened to who takes part, for the decider's table and the registry's agents; in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<A> {
    /// Write it down; then call [`Registry::recorded`]. Only where [`Config::recorded`] says so.
    Record(Member<A>),
    /// Strike it out: nobody has to know of this machine any more.
    Forget {
        /// Its number.
        machine: Machine,
        /// The session that has ended.
        session: u32,
    },
    /// Enter it, before the packets that were polled after this.
    Joined {
        /// Its number.
        machine: Machine,
        /// Its session.
        session: u32,
        /// Where it is.
        address: A,
    },
    /// Take it out.
    Gone {
        /// Its number.
        machine: Machine,
        /// The session that ended.
        session: u32,
    },
    /// The registry's pool has an agent for this lock from now on. Others may hold it, so it must not let go.
    Adopted(Adopted),
    /// Whoever holds this lock is enrolled with the registry's agent, which goes on as any agent.
    Settled(Adopted),
    /// The answer to [`Registry::sweep_own`], for the registry's agent.
    Swept(Packet),
    /// The registry's agents no longer manage the part of this lock: another machine does, in this generation.
    Relieved {
        /// A lock of the part.
        lock: u64,
        /// Whose requests are not the registry's any more.
        generation: u32,
        /// Who manages it now.
        to: Machine,
    },
}

/// What a registry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Sessions begun.
    pub joined: u64,
    /// Sessions ended by their machines.
    pub left: u64,
    /// Sessions ended because nothing was heard of them.
    pub expired: u64,
    /// Processes turned away because no number was free.
    pub full: u64,
    /// Packets of sessions that are not there.
    pub strangers: u64,
    /// LEAVE packets that were ignored: they came from another address than the one that their session joined from.
    pub foreign_leaves: u64,
    /// Locks freed because their holder was gone.
    pub freed: u64,
    /// Locks adopted because their agent was gone.
    pub adopted: u64,
    /// Sweeps asked for by agents.
    pub sweeps: u64,
    /// Words that came back from what machines reported.
    pub restored: u64,
}

/// The daemon's counters, for a client that asks about the whole service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets decided on or sent on.
    pub decisions: u64,
    /// Locks granted.
    pub grants: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// For how many milliseconds nobody can be written down.
    pub away_ms: u64,
    /// Names on their way to where they are kept.
    pub names_under_way: u64,
}

/// A machine that is gone and whose words have not been looked at.
#[derive(Clone, Copy, Debug)]
struct Dead {
    machine: Machine,
    session: u32,
    scan_from: u64,
}

/// Leases that end in one call.
const MAX_ENDED: usize = 256;
/// Deaths that all machines are told of at one time.
const MAX_DEATHS: usize = 4;
/// Questions to all machines at one time. Agents ask again.
const MAX_QUESTIONS: usize = 1024;

/// The registry. `A` is the address of a machine.
#[derive(Debug)]
pub struct Registry<A> {
    config: Config,
    service: Service,
    machines: Machines<A>,
    dead: Vec<Dead>,
    scan: Option<(Scan, Vec<Dead>)>,
    /// Machines that have died, whose words are freed or adopted, in order.
    untold: VecDeque<Subject>,
    broadcasts: Broadcasts,
    /// Who keeps locks that the decider has no words for.
    managers: Managers,
    /// While a decider that was lost is restored, and until its agents decide.
    recovery: Option<Recovery>,
    curious: BTreeMap<u64, StatusQuery<A>>,
    next_curious: u64,
    outgoing: VecDeque<(A, Packet, Vec<u8>)>,
    changes: VecDeque<Change<A>>,
    counters: Counters,
    tally: Tally,
    /// Who joins can be written down.
    records_answer: bool,
}

impl<A> Sessions for Registry<A>
where
    A: Copy + Eq + Hash,
{
    fn session(&self, machine: Machine) -> Option<u32> {
        self.machines.session(machine)
    }

    fn manager(&self, lock: u64) -> Option<Manager> {
        self.is_beyond(lock).then(|| self.managers.of(lock))
    }
}

impl<A: Copy + Eq + Hash> Registry<A> {
    /// A registry without machines for a service.
    #[must_use]
    pub fn new(config: Config, service: Service) -> Self {
        Self {
            config,
            service,
            machines: Machines::new(service.profile.last_machine(), config.first_session, config.session_key),
            dead: Vec::new(),
            scan: None,
            untold: VecDeque::new(),
            broadcasts: Broadcasts::new(config.again_ns),
            managers: Managers::new(service.profile),
            recovery: None,
            curious: BTreeMap::new(),
            next_curious: 0,
            outgoing: VecDeque::new(),
            changes: VecDeque::new(),
            counters: Counters::default(),
            tally: Tally::default(),
            records_answer: true,
        }
    }

    /// A control packet that came from `from`. Others, and answers to nobody's question, are ignored.
    pub fn receive(&mut self, now: u64, store: &impl Store, from: A, packet: &Packet, body: &[u8]) {
        match packet.kind {
            Kind::Join => return self.join(now, from, packet),
            // Asked by people's tools, which have no session.
            Kind::Status if !packet.has(GRANTED) => return self.status(now, store, from, packet),
            _ => {}
        }
        let Some(live) = self.machines.in_session(packet.sender, packet.session) else {
            if self.is_former(packet.sender, packet.session) {
                return self.resume(packet.sender);
            }
            return self.stranger(from, packet);
        };
        // Answers go where the machine said it is, wherever the packet came from.
        let address = live.address;
        match packet.kind {
            Kind::Renew => {
                self.machines.renew(packet.sender, now.saturating_add(self.config.lease_ns));
                self.answer(address, packet, Kind::Renewed);
            }
            // Whoever guesses a session must not be able to end it.
            Kind::Leave if address != from => self.counters.foreign_leaves += 1,
            Kind::Leave => {
                self.counters.left += 1;
                self.answer(address, packet, Kind::Left);
                self.end(now, packet.sender);
            }
            Kind::Sweep if packet.lock >= self.service.locks && !self.is_beyond(packet.lock) => {
                self.problem(address, packet, Problem::NoSuchLock);
            }
            Kind::Sweep => self.sweep(now, packet),
            Kind::Report => self.report(now, store, packet, body),
            Kind::Swept => {
                self.broadcasts.answered(packet.request, packet.sender);
                self.complete(now);
            }
            Kind::Status => {
                if let Some(curious) = self.curious.get(&packet.request) {
                    let (request, target) = (curious.request, Machine(0));
                    let packet = Packet { request, target, session: 0, requester_session: 0, ..*packet };
                    let mut body = body.to_vec();
                    if packet.lock != ALL_LOCKS {
                        Participant::hide_sessions(&mut body);
                    }
                    self.outgoing.push_back((curious.address, packet, body));
                }
            }
            _ => {}
        }
    }

    /// What is due: leases that ended, a part of a scan (at most `most_locks` words), questions to ask again. Whether a
    /// scan goes on, so that it should be called again soon.
    pub fn tick(&mut self, now: u64, store: &impl Store, most_locks: u64) -> bool {
        // Some at a time, so that those that live are served in between.
        for _ in 0..MAX_ENDED {
            let Some((_, machine)) = self.machines.first_to_expire().filter(|(expires, _)| *expires <= now) else {
                break;
            };
            self.counters.expired += 1;
            self.end(now, machine);
        }
        if self.machines.first_to_expire().is_some_and(|(expires, _)| expires <= now) {
            // Who is told of deaths now may be the next to go.
            return true;
        }
        self.curious.retain(|_, curious| curious.until > now);
        self.scan(now, store, most_locks);
        self.resume_silent(now);
        self.advance_recovery(now, store);
        self.tell(now);
        self.complete(now);
        let Self { broadcasts, machines, outgoing, .. } = self;
        broadcasts.due(now, |machine, packet| {
            if let Some(live) = machines.get(machine) {
                outgoing.push_back((live.address, addressed(packet, machine, live.session), Vec::new()));
            }
        });
        self.scan.is_some()
    }

    /// Ends a machine's session: the data plane cannot reach it.
    pub fn dismiss(&mut self, now: u64, machine: Machine) {
        self.end(now, machine);
    }

    /// SWEEP from one of the registry's own agents; answered by [`Change::Swept`].
    pub fn sweep_own(&mut self, now: u64, packet: &Packet) {
        self.sweep(now, &Packet { sender: Machine::REGISTRY, session: 0, ..*packet });
    }

    /// When [`Registry::tick`] has something to do, if nothing comes before.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        if self.scan.is_some() {
            return Some(0);
        }
        let lease = self.machines.first_to_expire().map(|(expires, _)| expires);
        let scan = self.dead.iter().map(|dead| dead.scan_from).min();
        // Each death that is known to all makes room for the next.
        let untold = (!self.untold.is_empty() && self.broadcasts.deaths() < MAX_DEATHS).then_some(0);
        let silent = self.recovery.as_ref().and_then(Recovery::next_due);
        [lease, scan, untold, silent, self.broadcasts.next_due()].into_iter().flatten().min()
    }

    /// The next packet to send, where to, and its body.
    pub fn poll_packet(&mut self) -> Option<(A, Packet, Vec<u8>)> {
        self.outgoing.pop_front()
    }

    /// The next change. Poll changes before packets.
    pub fn poll_change(&mut self) -> Option<Change<A>> {
        self.changes.pop_front()
    }

    /// Where a machine is, if it lives.
    #[must_use]
    pub fn address(&self, machine: Machine) -> Option<A> {
        self.machines.get(machine).map(|live| live.address)
    }

    /// All machines that live, with session and address.
    pub fn machines(&self) -> impl Iterator<Item = (Machine, u32, A)> {
        self.machines.live().map(|(machine, live)| (machine, live.session, live.address))
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Tells whether who joins can be written down now.
    pub fn set_records(&mut self, answer: bool) {
        self.records_answer = answer;
    }

    /// Tells what the daemon has counted, for questions to come.
    pub fn set_tally(&mut self, tally: Tally) {
        self.tally = tally;
    }

    /// The service as a whole.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let scanned = self.scan.as_ref().map_or(0, |(_, dead)| dead.len());
        Summary {
            locks: self.service.locks - self.service.names,
            machines: self.machines.count() as u64,
            gone: (self.dead.len() + scanned + self.untold.len() + self.broadcasts.deaths()) as u64,
            decisions: self.tally.decisions,
            grants: self.tally.grants,
            dropped: self.tally.dropped,
            expired: self.counters.expired,
            recovering: self.recovering().unwrap_or(0) as u64,
            records: self.config.recorded.then_some(self.records_answer),
            away_ms: self.tally.away_ms,
            joining: self.machines.joining_now(),
            names_under_way: self.tally.names_under_way,
        }
    }

    /// Whether a manager keeps this lock.
    const fn is_beyond(&self, lock: u64) -> bool {
        self.service.beyond && self.service.locks <= lock && lock < MAX_LOCKS
    }

    fn stranger(&mut self, from: A, packet: &Packet) {
        self.counters.strangers += 1;
        match packet.kind {
            // It has left before, and the answer was lost.
            Kind::Leave => self.answer(from, packet, Kind::Left),
            Kind::Renew | Kind::Sweep | Kind::Swept => self.problem(from, packet, Problem::NoSuchSession),
            _ => {}
        }
    }

    fn answer(&mut self, address: A, packet: &Packet, kind: Kind) {
        let answer = Packet {
            request: packet.request,
            requester: packet.sender,
            requester_session: packet.session,
            target: packet.sender,
            ..Packet::new(kind, packet.lock)
        };
        self.outgoing.push_back((address, answer, Vec::new()));
    }

    fn problem(&mut self, address: A, packet: &Packet, problem: Problem) {
        let mut answer = Packet { kind: Kind::Error, target: packet.sender, ..*packet };
        answer.stamp(Word::NEW, problem as u64);
        self.outgoing.push_back((address, answer, Vec::new()));
    }

    /// The session ends, whatever the reason.
    fn end(&mut self, now: u64, machine: Machine) {
        let Some(live) = self.machines.remove(machine) else { return };
        self.broadcasts.forget(machine);
        if let Some(recovery) = &mut self.recovery {
            recovery.forget(machine);
        }
        self.managers.leave(machine);
        if live.recorded {
            self.changes.push_back(Change::Gone { machine, session: live.session });
        }
        let scan_from = now.saturating_add(self.config.grace_ns);
        self.dead.push(Dead { machine, session: live.session, scan_from });
    }

    fn scan(&mut self, now: u64, store: &impl Store, most_locks: u64) {
        if self.scan.is_none() {
            let due: Vec<Dead> = self.dead.extract_if(.., |dead| dead.scan_from <= now).collect();
            if due.is_empty() {
                return;
            }
            let machines: Vec<Machine> = due.iter().map(|dead| dead.machine).collect();
            self.scan = Some((Scan::new(&machines), due));
        }
        if !self.scan.as_mut().is_some_and(|(scan, _)| scan.step(store, most_locks)) {
            return;
        }
        let Some((scan, dead)) = self.scan.take() else { return };
        self.counters.freed += scan.freed;
        self.counters.adopted += scan.adopted.len() as u64;
        self.changes.extend(scan.adopted.iter().map(|(_, adopted)| Change::Adopted(*adopted)));
        let mut of_machines: BTreeMap<Machine, Vec<Adopted>> = BTreeMap::new();
        scan.adopted.into_iter().for_each(|(of, adopted)| of_machines.entry(of).or_default().push(adopted));
        self.untold.extend(dead.into_iter().map(|Dead { machine, session, .. }| {
            let adopted = of_machines.remove(&machine).unwrap_or_default();
            Subject::Died { machine, session, adopted }
        }));
    }

    /// Tells all of the next machines that have died. Where thousands die together most who would have to answer are
    /// among them, so the rest waits until those before are known to all.
    fn tell(&mut self, now: u64) {
        while self.broadcasts.deaths() < MAX_DEATHS {
            let Some(died) = self.untold.pop_front() else { return };
            let all = self.machines.live().map(|(machine, _)| machine).collect();
            self.broadcasts.ask(now, died, all);
        }
    }

    fn sweep(&mut self, now: u64, packet: &Packet) {
        let (asker, session, request) = (packet.sender, packet.session, packet.request);
        let beyond = self.is_beyond(packet.lock);
        let manager = Manager { machine: asker, generation: packet.incarnation };
        if beyond && self.managers.of(packet.lock) != manager {
            // It has been relieved, and is told by its successor.
            return;
        }
        if self.broadcasts.is_sweeping(asker, session, request) || self.broadcasts.len() >= MAX_QUESTIONS {
            return;
        }
        // An agent has one question at a time.
        self.broadcasts.forget_sweep(asker, packet.lock);
        self.counters.sweeps += 1;
        let others: BTreeSet<_> =
            self.machines.live().map(|(machine, _)| machine).filter(|one| beyond || *one != asker).collect();
        let (lock, incarnation) = (packet.lock, packet.incarnation);
        self.broadcasts.ask(now, Subject::Sweep { asker, session, request, lock, incarnation }, others);
        // The first copies go out at once.
        let Self { broadcasts, machines, outgoing, .. } = self;
        broadcasts.due(now, |machine, packet| {
            let live = machines.get(machine);
            outgoing.extend(live.map(|live| (live.address, addressed(packet, machine, live.session), Vec::new())));
        });
        self.complete(now);
    }

    fn complete(&mut self, now: u64) {
        for subject in self.broadcasts.complete() {
            match subject {
                Subject::Died { machine, session, adopted } => {
                    if self.config.recorded {
                        self.changes.push_back(Change::Forget { machine, session });
                    }
                    self.machines.quarantine(machine, now.saturating_add(self.config.quarantine_ns));
                    self.changes.extend(adopted.into_iter().map(Change::Settled));
                }
                Subject::Sweep { asker, request, lock, incarnation, .. } => {
                    let token = match self.is_beyond(lock) {
                        true => self.managers.begin_tokens(lock, self.config.first_token, now),
                        false => 0,
                    };
                    let swept = Packet { request, target: asker, incarnation, token, ..Packet::new(Kind::Swept, lock) };
                    if asker == Machine::REGISTRY {
                        self.changes.push_back(Change::Swept(swept));
                    } else if let Some(live) = self.machines.get(asker) {
                        self.outgoing.push_back((live.address, swept, Vec::new()));
                    }
                }
                Subject::Settle { last: false } => self.settled(now),
                Subject::Settle { last: true } => {}
            }
        }
    }
}
