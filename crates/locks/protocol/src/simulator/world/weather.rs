//! What goes wrong, what must not, and when a run is over.

use super::{LEASE_MS, MAX_PACKETS, MS, SERVICE, TIMEOUT, Then, WEATHER, World};
use crate::config::Identity;
use crate::decider::Store;
use crate::node::Node;
use crate::packet::{Kind, Packet};
use crate::simulator::checker::Hold;
use crate::simulator::place::{Doing, Place};
use crate::simulator::trace::{Actor, EVERY_LOCK, TraceEvent};
use crate::word::State;

impl<S: Store> World<S> {
    pub(super) fn weather(&mut self) {
        self.after(WEATHER, Then::Weather);
        let packets = self.counters.packets - self.packets_before;
        if packets > MAX_PACKETS * u64::from(self.settings.machines * self.settings.tasks) {
            let lock = self.trace.busiest();
            self.fail(Some(lock), format!("a storm: {packets} packets in a millisecond"));
        }
        self.packets_before = self.counters.packets;
        let per_tick = |times: u32| times * 1000;
        if self.now >= self.service_back && self.random.in_a_million(u64::from(per_tick(self.faults.restarts))) {
            self.crash_service();
        }
        for place in 0..self.settings.machines {
            let lease = u64::from(LEASE_MS) * MS;
            let here = &self.places[place as usize];
            if let Some(lock) = here.tasks.iter().find_map(|task| match task.doing {
                Doing::Waiting { lock, since, .. } if self.now - since > TIMEOUT => Some(lock),
                _ => None,
            }) {
                self.fail(Some(lock), format!("finite wait: a task of place {place} waits for lock {lock}"));
            }
            if self.random.in_a_million(u64::from(per_tick(self.faults.cuts))) {
                self.counters.cuts += 1;
                let until = self.now + self.random.scaled(2 * lease);
                // Sometimes a group is cut off together.
                for other in place..(place + 1 + self.random.scaled(3) as u32).min(self.settings.machines) {
                    self.places[other as usize].cut_until = until;
                }
            }
            if self.random.in_a_million(u64::from(per_tick(self.faults.pauses))) {
                self.counters.pauses += 1;
                let until = self.now + self.random.scaled(2 * lease);
                self.places[place as usize].paused_until = until;
            }
            if self.random.in_a_million(u64::from(per_tick(self.faults.crashes))) {
                self.crash(place);
            }
        }
    }

    pub(super) fn crash(&mut self, place: u32) {
        self.counters.crashes += 1;
        let here = &self.places[place as usize];
        if let Some(node) = here.node() {
            let Identity { machine, session } = node.identity();
            let (until, branches) = (here.when(node.lease_until()), node.branches());
            self.counters.branches.add(&branches);
            if self.random.scaled(2) == 0 {
                // In good order: nothing is held any more.
                self.checker.gone(machine, session, self.now);
                self.trace.add(self.now, EVERY_LOCK, Actor::Place(place), TraceEvent::Place("leaves", machine));
                let leave = Packet { sender: machine, session, ..Packet::new(Kind::Leave, 0) };
                self.send(place, SERVICE, &leave, &[]);
            } else {
                self.checker.gone(machine, session, until);
                self.trace.add(self.now, EVERY_LOCK, Actor::Place(place), TraceEvent::Place("crashes", machine));
            }
        }
        self.places[place as usize].paused_until = 0;
        let delay = self.random.scaled(300 * MS);
        self.start_process(place, delay);
    }

    pub(super) fn check_agents(&mut self, lock: u64) {
        if lock >= self.settings.locks || self.now < self.service_back || !self.registry.has_word(&self.store, lock) {
            return;
        }
        let word = self.store.load(lock);
        let places = self.places.iter().filter_map(|place| {
            let node = place.node().filter(|node| !node.is_over() && place.clock(self.now) < node.lease_until())?;
            Some(node)
        });
        let mut wrong = None;
        for node in places.chain([&self.own]) {
            let Some(open) = node.pool().decides(lock) else { continue };
            let machine = node.identity().machine;
            if word.state == State::Free || word.machine != machine {
                wrong = Some(format!("agents: machine {} decides about lock {lock}, which is {word:?}", machine.0));
            } else if word.state == State::Shared && !open {
                wrong = Some(format!("agents: machine {} is closed for lock {lock}, the decider is not", machine.0));
            }
        }
        let others = |hold: &&Hold| hold.machine != word.machine && !self.has_ended(hold);
        if word.state == State::Exclusive
            && let Some(other) = self.checker.holds(lock).iter().find(others)
        {
            wrong = Some(format!("alone: lock {lock} is {word:?}, but {other:?} holds it"));
        }
        if let Some(what) = wrong {
            self.fail(Some(lock), what);
        }
    }

    /// Whether the run has come to its end, or to an end that is none.
    pub(super) fn is_over(&mut self) -> bool {
        let Some(since) = self.calm_since else { return false };
        let rests = |place: &Place| {
            place.tasks.iter().all(|task| task.doing == Doing::Nothing) && place.node().is_some_and(Node::is_idle)
        };
        let held = (0..self.settings.locks).find(|lock| self.store.load(*lock).state != State::Free);
        let busy = self.places.iter().position(|place| !rests(place));
        // A late copy of a packet may have been granted a lock to nobody: whoever asks for that lock next heals it.
        let locks = self.settings.locks + self.settings.beyond;
        if busy.is_none() && self.probed < locks && self.now > since + 2 * self.settings.faults.latest {
            let until = locks.min(self.probed + u64::from(self.settings.machines * self.settings.tasks));
            (self.probed..until).for_each(|lock| self.probe(lock));
            self.probed = until;
            return false;
        }
        if self.probed == locks && held.is_none() && busy.is_none() && self.own.is_idle() {
            return true;
        }
        if self.now > since + TIMEOUT {
            let of_node = |node: &Node| node.pool().locks().next();
            let agent = self.places.iter().filter_map(Place::node).find_map(of_node).or_else(|| of_node(&self.own));
            let request = self.places.iter().filter_map(Place::node).find_map(|node| node.client().any_lock());
            let lock = held.or(agent).or(request);
            self.fail(
                lock,
                format!("no rest: held lock {held:?}, agent of {agent:?}, request for {request:?}, place {busy:?}"),
            );
            return true;
        }
        false
    }
}
