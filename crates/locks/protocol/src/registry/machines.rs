//! Who takes part: numbers, sessions, addresses and leases.
//!
//! A number is in one of three places: with a machine that lives, with one that is gone (the registry's business until
//! its sweep is complete), or in quarantine, from which the one that has been there longest is given out again first.
//! Packets of a former owner that are still under way are then refused by their session, which is never the same twice.

use super::recovery::Member;
use super::sessions::SessionNumbers;
use crate::decider::Sessions;
use crate::word::Machine;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// A machine that lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live<A> {
    pub(super) session: u32,
    pub(super) address: A,
    pub(super) nonce: u64,
    expires: u64,
    /// Who joins does not take part before it is written down.
    pub(super) recorded: bool,
    /// It offers to keep locks that the decider has no words for.
    pub(super) manages: bool,
}

#[derive(Debug)]
pub(super) struct Machines<A> {
    /// By number; 0 is the registry and never lives here.
    slots: Vec<Option<Live<A>>>,
    by_nonce: HashMap<(A, u64), Machine>,
    /// Who joins and is not written down yet: one of each address.
    joining: HashMap<A, Machine>,
    /// When leases end.
    leases: BTreeSet<(u64, Machine)>,
    /// Numbers that were used, and from when on they may be again; sorted by that.
    quarantine: VecDeque<(u64, Machine)>,
    last: u16,
    sessions: SessionNumbers,
    /// Those of machines that live.
    in_use: HashSet<u32>,
}

impl<A: Copy + Eq + Hash> Machines<A> {
    pub(super) fn new(last: u16, first_session: u32, session_key: u128) -> Self {
        Self {
            slots: vec![None],
            by_nonce: HashMap::new(),
            joining: HashMap::new(),
            leases: BTreeSet::new(),
            quarantine: VecDeque::new(),
            last,
            sessions: SessionNumbers::new(first_session, session_key),
            in_use: HashSet::new(),
        }
    }

    pub(super) fn get(&self, machine: Machine) -> Option<&Live<A>> {
        self.slots.get(machine.0 as usize)?.as_ref()
    }

    /// As it has to be written down.
    pub(super) fn member(&self, machine: Machine) -> Option<Member<A>> {
        let Live { session, nonce, address, manages, .. } = *self.get(machine)?;
        Some(Member { machine, session, nonce, address, manages })
    }

    /// A machine that joins is written down, and takes part.
    pub(super) fn record(&mut self, machine: Machine) {
        if let Some(Some(live)) = self.slots.get_mut(machine.0 as usize) {
            live.recorded = true;
            if self.joining.get(&live.address) == Some(&machine) {
                self.joining.remove(&live.address);
            }
        }
    }

    /// The machine, if it lives in this session.
    pub(super) fn in_session(&self, machine: Machine, session: u32) -> Option<&Live<A>> {
        self.get(machine).filter(|live| live.session == session)
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (Machine, &Live<A>)> {
        let all = self.slots.iter().enumerate();
        let all = all.filter_map(|(number, slot)| Some((Machine(number as u16), slot.as_ref()?)));
        all.filter(|(_, live)| live.recorded)
    }

    pub(super) fn count(&self) -> usize {
        self.leases.len()
    }

    /// The machine that joined with this nonce.
    pub(super) fn joined(&self, address: A, nonce: u64) -> Option<Machine> {
        self.by_nonce.get(&(address, nonce)).copied()
    }

    /// Who joins from there, and is not written down yet.
    pub(super) fn joining(&self, address: A) -> Option<Machine> {
        self.joining.get(&address).copied()
    }

    /// How many join and are not written down yet.
    pub(super) fn joining_now(&self) -> u64 {
        self.joining.len() as u64
    }

    /// A number for who comes, if there is one.
    pub(super) fn join(&mut self, now: u64, address: A, nonce: u64, expires: u64, manages: bool) -> Option<Machine> {
        let machine = match self.quarantine.front() {
            Some((free, machine)) if *free <= now => *machine,
            _ if self.slots.len() <= self.last as usize => Machine(self.slots.len() as u16),
            _ => return None,
        };
        if machine.0 as usize == self.slots.len() {
            self.slots.push(None);
        } else {
            self.quarantine.pop_front();
        }
        let session = self.sessions.next(|session| self.in_use.contains(&session));
        self.in_use.insert(session);
        let live = Live { session, address, nonce, expires, recorded: false, manages };
        self.slots[machine.0 as usize] = Some(live);
        self.joining.insert(address, machine);
        self.by_nonce.insert((address, nonce), machine);
        self.leases.insert((expires, machine));
        Some(machine)
    }

    /// Takes in who took part before. False if it cannot have.
    pub(super) fn restore(&mut self, member: &Member<A>, expires: u64) -> bool {
        let Member { machine, session, nonce, address, manages } = *member;
        let at = machine.0 as usize;
        if at == 0 || machine.0 > self.last || self.get(machine).is_some() {
            return false;
        }
        while self.slots.len() <= at {
            // Those in between are free.
            if self.slots.len() < at {
                self.quarantine.push_back((0, Machine(self.slots.len() as u16)));
            }
            self.slots.push(None);
        }
        self.quarantine.retain(|(_, free)| *free != machine);
        self.slots[at] = Some(Live { session, address, nonce, expires, recorded: true, manages });
        self.in_use.insert(session);
        self.by_nonce.insert((address, nonce), machine);
        self.leases.insert((expires, machine));
        true
    }

    pub(super) fn renew(&mut self, machine: Machine, expires: u64) {
        if let Some(live) = &mut self.slots[machine.0 as usize] {
            self.leases.remove(&(live.expires, machine));
            live.expires = expires;
            self.leases.insert((expires, machine));
        }
    }

    /// The machine whose lease ends first.
    pub(super) fn first_to_expire(&self) -> Option<(u64, Machine)> {
        self.leases.first().copied()
    }

    /// Takes a machine out; its number is nobody's until [`Machines::quarantine`].
    pub(super) fn remove(&mut self, machine: Machine) -> Option<Live<A>> {
        let live = self.slots.get_mut(machine.0 as usize)?.take()?;
        self.by_nonce.remove(&(live.address, live.nonce));
        if self.joining.get(&live.address) == Some(&machine) {
            self.joining.remove(&live.address);
        }
        self.leases.remove(&(live.expires, machine));
        self.in_use.remove(&live.session);
        Some(live)
    }

    pub(super) fn quarantine(&mut self, machine: Machine, until: u64) {
        self.quarantine.push_back((until, machine));
    }
}

impl<A: Copy + Eq + Hash> Sessions for Machines<A> {
    fn session(&self, machine: Machine) -> Option<u32> {
        if machine == Machine::REGISTRY { Some(Machine::REGISTRY_SESSION) } else { Some(self.get(machine)?.session) }
    }
}
