//! What tasks ask for, and what becomes of it.

use super::{MS, Then, US, World};
use crate::client::{Ask, Event, task_of};
use crate::config::Identity;
use crate::decider::Store;
use crate::node::Node;
use crate::simulator::checker::Hold;
use crate::simulator::faults::Faults;
use crate::simulator::place::{Doing, Place, Task};
use crate::simulator::trace::{Actor, TraceEvent};
use lockwork_locking::LockMode;

impl<S: Store> World<S> {
    pub(super) fn task(&mut self, place: u32, task: u32) -> &mut Task {
        &mut self.places[place as usize].tasks[task as usize]
    }

    pub(super) fn set_alarm(&mut self, place: u32, task: u32, delay: u64) {
        let life = self.places[place as usize].life;
        let one = self.task(place, task);
        one.alarm += 1;
        let alarm = one.alarm;
        self.after(delay, Then::Alarm { place, life, task, alarm });
    }

    /// Nothing for a while.
    pub(super) fn think(&mut self, place: u32, task: u32) {
        self.task(place, task).doing = Doing::Nothing;
        let delay = match self.random.scaled(8) {
            0 => 0,
            1 => self.random.scaled(MS),
            _ => self.random.scaled(60 * US),
        };
        self.set_alarm(place, task, delay);
    }

    pub(super) fn alarm(&mut self, place: u32, task: u32, alarm: u32) {
        if self.task(place, task).alarm != alarm {
            return;
        }
        let clock = self.places[place as usize].clock(self.now);
        match self.task(place, task).doing {
            Doing::Nothing => self.ask(place, task),
            Doing::Waiting { lock, request, .. } => {
                self.counters.withdrawn += 1;
                self.trace.add(self.now, lock, Actor::Place(place), TraceEvent::Task { request, does: "withdraws" });
                let node = self.places[place as usize].node_mut().expect("its task waits");
                // The lease may have run out meanwhile; then an event says so.
                if node.release(clock, request).is_ok() {
                    self.think(place, task);
                }
                self.after_task(place, lock);
            }
            Doing::Holding { lock, request, mode } => {
                let node = self.places[place as usize].node_mut().expect("its task holds");
                let Identity { machine, session } = node.identity();
                let downgrades = mode == LockMode::Exclusive && self.random.scaled(8) == 0;
                if downgrades && node.downgrade(clock, request).is_ok() {
                    self.counters.downgraded += 1;
                    self.trace.add(
                        self.now,
                        lock,
                        Actor::Place(place),
                        TraceEvent::Task { request, does: "downgrades" },
                    );
                    self.checker.downgraded(lock, machine, session, request);
                    self.task(place, task).doing = Doing::Holding { lock, request, mode: LockMode::Shared };
                    self.after_task(place, lock);
                    let delay = self.random.scaled(50 * US);
                    return self.set_alarm(place, task, delay);
                }
                self.trace.add(self.now, lock, Actor::Place(place), TraceEvent::Task { request, does: "releases" });
                let node = self.places[place as usize].node_mut().expect("its task holds");
                self.checker.let_go(lock, machine, session, request);
                if node.release(clock, request).is_ok() {
                    self.think(place, task);
                } else if !self.places[place as usize].node().is_some_and(Node::is_over) {
                    self.fail(Some(lock), format!("a task holds request {request:x}, but its node does not know it"));
                }
                self.after_task(place, lock);
            }
        }
    }

    pub(super) fn after_task(&mut self, place: u32, lock: u64) {
        self.drain(place);
        self.check_agents(lock);
    }

    pub(super) fn ask(&mut self, place: u32, task: u32) {
        if self.counters.operations >= self.settings.operations {
            if self.calm_since.is_none() {
                self.calm_since = Some(self.now);
                self.faults = Faults::NONE;
            }
            return;
        }
        let clock = self.places[place as usize].clock(self.now);
        // The smaller of two random numbers: the first locks are hot.
        let locks = self.settings.locks + self.settings.beyond;
        let lock = self.random.scaled(locks).min(self.random.scaled(locks));
        let mode = if self.random.scaled(10) < 6 { LockMode::Shared } else { LockMode::Exclusive };
        let ask = Ask {
            task,
            timeout: (self.random.scaled(8) == 0).then(|| self.random.scaled(2 * MS)),
            try_only: self.random.scaled(10) == 0,
            // A task holds one lock at a time, so whoever finds a cycle is wrong.
            detect_deadlock: task.is_multiple_of(2),
        };
        let withdraws = self.random.scaled(12) == 0;
        let Some(node) = self.places[place as usize].node_mut() else { return };
        match node.acquire(clock, lock, mode, ask) {
            Ok(request) => {
                self.counters.operations += 1;
                self.trace.add(self.now, lock, Actor::Place(place), TraceEvent::Task { request, does: asks(mode) });
                self.task(place, task).doing = Doing::Waiting { lock, request, mode, since: self.now };
                if withdraws {
                    let delay = self.random.scaled(2 * MS);
                    self.set_alarm(place, task, delay);
                }
            }
            Err(_) => debug_assert!(node.is_over()),
        }
        self.after_task(place, lock);
    }

    /// A task that has nothing to do asks for this lock, exclusively.
    pub(super) fn probe(&mut self, lock: u64) {
        let idle = |place: &Place| place.tasks.iter().position(|task| task.doing == Doing::Nothing);
        let first = lock as usize % self.places.len();
        let order = (first..self.places.len()).chain(0..first);
        let Some((place, task)) = order.into_iter().find_map(|at| Some((at as u32, idle(&self.places[at])? as u32)))
        else {
            return self.fail(Some(lock), "there is no idle task".to_owned());
        };
        let clock = self.places[place as usize].clock(self.now);
        let node = self.places[place as usize].node_mut().expect("an idle place has a node");
        let mode = LockMode::Exclusive;
        if let Ok(request) = node.acquire(clock, lock, mode, Ask { task, ..Ask::default() }) {
            self.trace.add(self.now, lock, Actor::Place(place), TraceEvent::Task { request, does: asks(mode) });
            self.task(place, task).doing = Doing::Waiting { lock, request, mode, since: self.now };
        }
        self.after_task(place, lock);
    }

    pub(super) fn event(&mut self, place: u32, event: Event) {
        let (Event::Granted { request, .. }
        | Event::Busy { request }
        | Event::TimedOut { request }
        | Event::Failed { request, .. }
        | Event::Moved { request, .. }
        | Event::Deadlock { request }
        | Event::Lost { request, .. }) = event;
        let task = task_of(request);
        let (waits, holds, lock) = match self.task(place, task).doing {
            Doing::Waiting { lock, request: of, since, .. } if of == request => (Some(since), false, lock),
            Doing::Holding { lock, request: of, .. } if of == request => (None, true, lock),
            other => return self.fail(None, format!("{event:x?} at place {place}, whose task is {other:x?}")),
        };
        self.trace.add(self.now, lock, Actor::Place(place), TraceEvent::Event(event));
        let node = self.places[place as usize].node().expect("it told an event");
        let Identity { machine, session } = node.identity();
        if let Some(since) = waits {
            self.counters.longest_wait = self.counters.longest_wait.max(self.now - since);
        }
        match event {
            Event::Granted { lock, mode, token, .. } if waits.is_some() => {
                let hold = Hold { machine, session, request, mode, until: None };
                let ended: Vec<_> = self.checker.holds(lock).iter().map(|hold| self.has_ended(hold)).collect();
                if let Err(what) = self.checker.granted(lock, hold, token, &ended) {
                    self.fail(Some(lock), what);
                }
                match mode {
                    LockMode::Shared => self.counters.readers += 1,
                    _ => self.counters.writers += 1,
                }
                self.task(place, task).doing = Doing::Holding { lock, request, mode };
                // Some hold for longer than the service is away.
                let outlasts = self.settings.faults.restarts > 0 && self.random.scaled(100) == 0;
                let delay = match self.random.scaled(16) {
                    _ if outlasts => self.random.scaled(200 * MS),
                    0 => 0,
                    1 => self.random.scaled(2 * MS),
                    _ => self.random.scaled(40 * US),
                };
                return self.set_alarm(place, task, delay);
            }
            Event::Lost { .. } if holds => {
                self.counters.lost += 1;
                self.checker.let_go(lock, machine, session, request);
            }
            Event::Busy { .. } if waits.is_some() => self.counters.busy += 1,
            Event::TimedOut { .. } if waits.is_some() => self.counters.timed_out += 1,
            Event::Failed { .. } if waits.is_some() => self.counters.ended += 1,
            _ => self.fail(Some(lock), format!("{event:x?} at place {place}, whose task holds: {holds}")),
        }
        self.think(place, task);
    }

    /// Whether the lease of who holds has ended, by its own clock.
    pub(super) fn has_ended(&self, hold: &Hold) -> bool {
        let who = Identity { machine: hold.machine, session: hold.session };
        let of = |place: &&Place| place.node().is_some_and(|node| node.identity() == who);
        match hold.until {
            Some(until) => until <= self.now,
            None => self
                .places
                .iter()
                .find(of)
                .is_some_and(|place| place.node().is_some_and(|node| node.lease_until() <= place.clock(self.now))),
        }
    }
}

const fn asks(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "asks shared",
        _ => "asks exclusive",
    }
}
