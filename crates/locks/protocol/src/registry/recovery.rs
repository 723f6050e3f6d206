//! A decider that was lost is restored from what its machines report; see [`crate::report`].
//!
//! The registry knows from a store of its own who took part ([`Change::Record`](super::Change::Record)), and gives
//! each of them a session of the new era. A word is back as soon as its agent is reported, or all have reported past
//! it; before that the decider must not look at packets about it ([`Registry::admits`](super::Registry::admits)).
//! Machines that do not answer die with their leases, as always, and are waited for no longer.

use super::adoption::Adopted;
use super::broadcast::Subject;
use super::{Change, Config, Registry};
use crate::control::Service;
use crate::decider::Store;
use crate::packet::{Kind, Packet};
use crate::report::{Reported, continues};
use crate::word::{Machine, State, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

/// A machine that takes part, as it has to be known to a registry that comes after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<A> {
    /// Its number.
    pub machine: Machine,
    /// Its session. In a later era it has [`in_era`](crate::report::in_era) of it.
    pub session: u32,
    /// What it has joined with.
    pub nonce: u64,
    /// Where it is.
    pub address: A,
    /// It offers to keep locks that the decider has no words for; see [`crate::beyond`].
    pub manages: bool,
}

/// How far a machine has come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The next report that is taken.
    next: u64,
    /// It has reported on all locks below.
    covered: u64,
}

#[derive(Debug)]
pub(super) struct Recovery {
    /// Tokens begin above.
    pub(super) token: u64,
    /// Machines that have not reported on everything.
    missing: BTreeMap<Machine, Progress>,
    /// Locks below are back.
    covered: u64,
    /// Held, with an agent that was not reported so far.
    held: BTreeSet<u64>,
    /// What the registry has for agents that are gone.
    pub(super) adopted: Vec<Adopted>,
    /// Words that are back because of an agent or a holder.
    pub(super) restored: u64,
    /// All have been asked to enrol.
    pub(super) settles: bool,
    again: u64,
}

impl Recovery {
    pub(super) fn new(now: u64, token: u64, machines: impl Iterator<Item = Machine>) -> Self {
        let missing = machines.map(|machine| (machine, Progress::default())).collect();
        let (held, adopted) = (BTreeSet::new(), Vec::new());
        Self { token, missing, covered: 0, held, adopted, restored: 0, settles: false, again: now }
    }

    /// How many machines are waited for.
    pub(super) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Whether a machine has not answered yet.
    pub(super) fn is_silent(&self, machine: Machine) -> bool {
        self.missing.get(&machine).is_some_and(|progress| progress.next == 0)
    }

    /// Whether the word of a lock is back.
    pub(super) fn has(&self, store: &impl Store, lock: u64) -> bool {
        // Locks that managers keep have none.
        lock < self.covered || lock >= store.locks() || store.load(lock).state != State::Free
    }

    /// A report on the locks from `from` to `to`. Whether it has arrived, now or before. Changes nothing if one before
    /// it is missing.
    pub(super) fn report(
        &mut self,
        store: &impl Store,
        machine: Machine,
        number: u64,
        (from, to): (u64, u64),
        all: &[Reported],
    ) -> bool {
        let Some(progress) = self.missing.get_mut(&machine) else { return true };
        if number != progress.next {
            return number < progress.next;
        }
        let to = to.min(store.locks());
        if from != progress.covered || to < from || all.iter().any(|one| !(from..to).contains(&one.lock)) {
            return false;
        }
        (progress.next, progress.covered) = (number + 1, to);
        for Reported { lock, agent } in all {
            if !agent {
                self.held.insert(*lock);
            } else {
                let word = Word { state: State::Led, machine, incarnation: 0 };
                self.restored += u64::from(store.swap(*lock, Word::NEW, word));
            }
        }
        if to == store.locks() {
            self.missing.remove(&machine);
        }
        true
    }

    /// A machine is gone.
    pub(super) fn forget(&mut self, machine: Machine) {
        self.missing.remove(&machine);
    }

    /// Brings back what all have reported past. Locks that are adopted now.
    pub(super) fn advance(&mut self, store: &impl Store) -> Vec<Adopted> {
        let covered = self.missing.values().map(|progress| progress.covered).min().unwrap_or(store.locks());
        if covered <= self.covered {
            return Vec::new();
        }
        let later = self.held.split_off(&covered);
        let word = Word { state: State::Led, machine: Machine::REGISTRY, incarnation: 0 };
        let adopts = |lock: &u64| store.swap(*lock, Word::NEW, word);
        let adopted: Vec<_> = std::mem::replace(&mut self.held, later)
            .into_iter()
            .filter(adopts)
            .map(|lock| Adopted { lock, incarnation: 0, token: store.token(lock) })
            .collect();
        self.covered = covered;
        self.restored += adopted.len() as u64;
        self.adopted.extend(&adopted);
        adopted
    }

    /// Whether all words are back.
    pub(super) fn is_restored(&self) -> bool {
        self.missing.is_empty()
    }

    /// Machines to ask (again) whether they go on.
    pub(super) fn due(&mut self, now: u64, every: u64) -> Vec<Machine> {
        if self.again > now {
            return Vec::new();
        }
        self.again = now.saturating_add(every);
        self.missing.iter().filter(|(_, progress)| progress.next == 0).map(|(machine, _)| *machine).collect()
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.missing.values().any(|progress| progress.next == 0).then_some(self.again)
    }
}

impl<A: Copy + Eq + Hash> Registry<A> {
    /// A registry that goes on where another ended: `members` took part, with their sessions in the present era. All
    /// tokens are above [`Config::first_token`] now.
    #[must_use]
    pub fn restore(now: u64, config: Config, service: Service, members: impl IntoIterator<Item = Member<A>>) -> Self {
        let mut registry = Self::new(config, service);
        let expires = now.saturating_add(config.lease_ns);
        for member in members {
            if registry.machines.restore(&member, expires) {
                let Member { machine, session, address, manages, .. } = member;
                registry.changes.push_back(Change::Joined { machine, session, address });
                if manages {
                    registry.manage(machine);
                }
            }
        }
        let all: Vec<_> = registry.machines.live().map(|(machine, _)| machine).collect();
        registry.recovery = (!all.is_empty()).then(|| Recovery::new(now, config.first_token, all.into_iter()));
        registry
    }

    /// Whether a decider may look at a packet: its lock's word is back, and its sender has gone on in this era. What it
    /// may not look at is dropped; whoever sent it sends it again.
    #[must_use]
    pub fn admits(&self, store: &impl Store, packet: &Packet) -> bool {
        let Some(recovery) = &self.recovery else { return true };
        if packet.kind.is_control() {
            return true;
        }
        // Who has not gone on speaks in its former session, and an answer that there is no such session would end it.
        // What is for it or about it does no harm: it does not take a packet of this era, which is as good as lost.
        let speaks = !recovery.is_silent(packet.sender);
        let decided = packet.kind.is_decided() && packet.lock < store.locks();
        speaks && (!decided || recovery.has(store, packet.lock))
    }

    /// Whether the word of a lock says how things are.
    #[must_use]
    pub fn has_word(&self, store: &impl Store, lock: u64) -> bool {
        self.recovery.as_ref().is_none_or(|recovery| recovery.has(store, lock))
    }

    /// Whether words are not back yet, so that every packet has to be [admitted](Self::admits); and how many machines
    /// have not reported on everything.
    #[must_use]
    pub fn recovering(&self) -> Option<usize> {
        self.recovery.as_ref().filter(|recovery| !recovery.is_restored()).map(Recovery::missing)
    }

    /// Whether a decider is being restored, and its agents do not all decide yet.
    #[must_use]
    pub fn settles(&self) -> bool {
        self.recovery.is_some()
    }

    /// Whether `session` is one that a machine which lives had in an earlier era.
    pub(super) fn is_former(&self, machine: Machine, session: u32) -> bool {
        self.machines.get(machine).is_some_and(|live| continues(session, live.session))
    }

    pub(super) fn report(&mut self, now: u64, store: &impl Store, packet: &Packet, body: &[u8]) {
        let Ok(all) = Reported::of_body(body) else { return };
        let (machine, number) = (packet.sender, packet.request);
        if let Some(recovery) = &mut self.recovery {
            if recovery.is_silent(machine) {
                self.machines.renew(machine, now.saturating_add(self.config.lease_ns));
            }
            if !recovery.report(store, machine, number, (packet.lock, packet.token), &all) {
                return;
            }
        }
        if let Some(live) = self.machines.get(machine) {
            self.answer(live.address, packet, Kind::Reported);
        }
        self.advance_recovery(now, store);
    }

    /// Brings words back, and asks all to enrol when all are.
    pub(super) fn advance_recovery(&mut self, now: u64, store: &impl Store) {
        let Some(recovery) = &mut self.recovery else { return };
        self.changes.extend(recovery.advance(store).into_iter().map(Change::Adopted));
        if recovery.is_restored() && !recovery.settles {
            recovery.settles = true;
            self.counters.restored += recovery.restored;
            let all = self.machines.live().map(|(machine, _)| machine).collect();
            self.broadcasts.ask(now, Subject::Settle { last: false }, all);
        }
    }

    /// All have enrolled: agents decide.
    pub(super) fn settled(&mut self, now: u64) {
        let Some(recovery) = self.recovery.take() else { return };
        self.changes.extend(recovery.adopted.into_iter().map(Change::Settled));
        let all = self.machines.live().map(|(machine, _)| machine).collect();
        self.broadcasts.ask(now, Subject::Settle { last: true }, all);
    }

    /// RESUME to all that have not answered.
    pub(super) fn resume_silent(&mut self, now: u64) {
        let again = self.config.again_ns;
        let silent = self.recovery.as_mut().map(|recovery| recovery.due(now, again)).unwrap_or_default();
        silent.into_iter().for_each(|machine| self.resume(machine));
    }

    pub(super) fn resume(&mut self, machine: Machine) {
        let (Some(live), Some(recovery)) = (self.machines.get(machine), &self.recovery) else { return };
        let resume = Packet {
            requester: machine,
            requester_session: live.session,
            target: machine,
            token: recovery.token,
            ..Packet::new(Kind::Resume, 0)
        };
        self.outgoing.push_back((live.address, resume, self.service.to_body()));
    }
}
