//! Who is killed, stopped and cut off when, what clients do meanwhile, and how a run ends.

use std::sync::Arc;

use lockwork_random::Random;

use super::checker::Checker;
use super::clients::{ACCOUNTS, Client, FURNITURE, Said, Task, pause};
use super::counters::Seen;
use super::nodes::{LEASE, Plan, start};
use super::servers::Servers;
use super::world::{MICROSECOND, MILLISECOND, SECOND, State, World};
use super::{Broken, Rates, Report, Settings};
use crate::journal::election::Role;
use crate::sequencer::Handle;
use crate::shared::lock;

const CLIENTS: usize = 4;
/// How long things go wrong at most: where nearly all the time something does, nothing is done.
const STORM: u64 = 90 * SECOND;
/// How long everybody has to come together when nothing goes wrong any more.
const TIMEOUT: u64 = 120 * SECOND;

/// What the director is told.
pub(super) enum Told {
    /// A process follows.
    Joined(usize, Handle),
    /// Its part has ended.
    Left(usize),
    /// It has ended, as it was asked to.
    Ended(usize),
    /// It goes on with nothing.
    Stopped(usize, String),
    /// A client, of its attempt of that number.
    Said(usize, u64, Said),
}

/// Where a node stands.
pub(super) struct Place {
    pub(super) life: usize,
    pub(super) handle: Option<Handle>,
    /// When it begins again, after it was killed or has ended.
    pub(super) restart: Option<u64>,
    pub(super) stopped: Option<String>,
    gains: i64,
}

/// See the module.
pub(super) struct Director {
    pub(super) world: Arc<World>,
    pub(super) settings: Settings,
    plan: Plan,
    pub(super) places: Vec<Place>,
    clients: Vec<Client>,
    steps: u64,
    /// When something goes wrong next; never, when nothing does any more.
    fault_at: Option<u64>,
    /// Until when the stream is full.
    full_until: Option<u64>,
    /// Requests that have not happened, as clients were told.
    abandoned: Vec<u64>,
    /// Clients begin with nothing.
    pub(super) is_quiet: bool,
}

/// Simulates, and ends everything.
pub(super) fn run(settings: Settings) -> Report {
    // What is the same for a whole run has numbers of its own.
    let mut chance = Random(settings.seed ^ 0x5EED);
    let plan = Plan::new(&settings, &mut chance);
    let mut one = |of: [u64; 4]| if settings.faults { of[chance.index(4)] } else { 0 };
    let rates = Rates {
        lost: one([0, 5, 15, 80]),
        late: one([0, 10, 30, 150]),
        doubled: one([0, 10, 30, 100]),
        stale: one([0, 20, 60, 200]),
    };
    let gains: Vec<i64> = (0..settings.nodes).map(|_| chance.index(80_000) as i64 - 40_000).collect();
    let servers = Servers::new(settings.nodes, rates, settings.broken);
    let world = World::new(settings.seed, servers, Checker::new());
    let mut director = Director {
        world: world.clone(),
        settings,
        plan,
        places: Vec::new(),
        clients: (0..CLIENTS).map(|number| Client::new(number, settings.broken == Some(Broken::Requests))).collect(),
        steps: settings.steps,
        fault_at: (settings.faults && settings.damage.is_none()).then_some(SECOND),
        full_until: None,
        abandoned: Vec::new(),
        is_quiet: false,
    };
    for (node, gains) in gains.into_iter().enumerate() {
        let gains = if settings.faults { gains } else { 0 };
        director.places.push(Place { life: 0, handle: None, restart: Some(0), stopped: None, gains });
        director.begin(node);
    }
    director.work();
    if let Some(damage) = settings.damage {
        director.damage(damage);
    } else {
        director.conclude();
    }
    let stopped = director.places.iter().filter_map(|place| place.stopped.clone()).collect();
    drop(director);
    world.end();
    lock(&world.inbox).clear();
    let mut state = world.state();
    Report {
        settings,
        counters: std::mem::take(&mut state.counters),
        simulated_ns: state.now,
        records: state.checker.last(),
        epochs: state.checker.epochs() as u64,
        stopped,
        trace: std::mem::take(&mut state.trace),
        failure: state.failure.take(),
    }
}

impl Director {
    pub(super) fn begin(&mut self, node: usize) {
        let place = &mut self.places[node];
        let life = self.world.state().begin(node, place.gains);
        (place.life, place.handle, place.restart, place.stopped) = (life, None, None, None);
        start(self.world.seat(life), node, self.plan);
        let mut state = self.world.state();
        let name = state.name(life);
        state.tell(format_args!("{name} begins"));
    }

    pub(super) fn now(&self) -> u64 {
        self.world.state().now
    }

    pub(super) fn has_failed(&self) -> bool {
        self.world.state().failure.is_some()
    }

    /// Until clients have done all.
    fn work(&mut self) {
        let is_done = |all: &Self| all.steps == 0 && all.clients.iter().all(|client| client.task.is_none());
        while !self.has_failed() && !is_done(self) {
            self.turn();
            if self.now() > (600 + 2 * self.settings.steps) * SECOND {
                self.world.state().fail("clients are not served".into());
            }
        }
    }

    /// A little of everything.
    pub(super) fn turn(&mut self) {
        self.hear();
        for client in 0..self.clients.len() {
            self.step(client);
        }
        let now = self.now();
        for node in 0..self.places.len() {
            if self.places[node].restart.is_some_and(|at| now >= at) {
                self.begin(node);
            }
        }
        if self.full_until.is_some_and(|until| now >= until) {
            self.full_until = None;
            self.world.state().servers.capacity = usize::MAX;
        }
        if self.fault_at.is_some() && now > STORM {
            self.heal();
        }
        if self.fault_at.is_some_and(|at| now >= at) {
            self.fault();
            let after = self.world.state().below(self.plan.calm);
            self.fault_at = Some(now + after);
        }
        let most = self.next().clamp(now + 50 * MICROSECOND, now + 50 * MILLISECOND);
        self.world.direct(most - now);
    }

    /// When there is something to do, if nobody tells before.
    fn next(&self) -> u64 {
        let soon = self.now() + 3 * MILLISECOND;
        let clients = self.clients.iter().map(|client| if client.is_defining() { soon } else { client.at });
        let restarts = self.places.iter().filter_map(|place| place.restart);
        let others = [self.fault_at, self.full_until].into_iter().flatten();
        clients.chain(restarts).chain(others).min().unwrap_or_default()
    }

    fn hear(&mut self) {
        loop {
            let told = lock(&self.world.inbox).pop_front();
            let Some(told) = told else { return };
            match told {
                Told::Joined(life, handle) => {
                    self.clients.iter_mut().for_each(|client| client.is_parted_from(life));
                    self.of(life, |place| place.handle = Some(handle));
                }
                Told::Left(life) => self.of(life, |place| place.handle = None),
                Told::Ended(life) => {
                    let restart = self.now() + 100 * MILLISECOND;
                    self.of(life, |place| (place.handle, place.restart) = (None, Some(restart)));
                }
                Told::Stopped(life, why) => {
                    if self.settings.damage.is_none() {
                        self.world.state().fail(format!("a node has stopped: {why}"));
                    }
                    self.of(life, |place| (place.handle, place.stopped) = (None, Some(why)));
                }
                Told::Said(client, attempt, said) => {
                    let client = &self.clients[client];
                    let is_expected = client.waits.is_some() && client.attempt == attempt;
                    let number = client.number;
                    if is_expected && self.world.state().happens(if self.settings.faults { 20 } else { 0 }) {
                        self.world.state().saw(Seen::AnswerLost);
                    } else if is_expected {
                        self.said(number, &said);
                    }
                }
            }
        }
    }

    fn of(&mut self, life: usize, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.places.iter_mut().find(|place| place.life == life) {
            change(place);
        }
    }

    /// A client has its answer.
    fn said(&mut self, number: usize, said: &Said) {
        let mut state = self.world.state();
        let client = &mut self.clients[number];
        let life = client.waits.take().unwrap_or_default();
        // What it waits for no longer is not the answer to what it asks next.
        client.definition = None;
        let think = (20 + state.below(250)) * MILLISECOND;
        let name = state.name(life);
        state.tell(format_args!("client {number} hears of {name}: {said:?} to {:?}", client.task));
        match (said, &client.task) {
            (Said::Read(record), _) => {
                client.has_read(life, *record);
                (client.task, client.at) = (None, state.now + think);
            }
            (Said::Done, task) => {
                if let Some(Task::Define { name, .. }) = task {
                    state.saw(Seen::Defined);
                    if !state.checker.defines(name) {
                        state.fail(format!("'{name}' was acknowledged, and the log does not have it"));
                    }
                }
                let known = state.checker.known();
                client.has_called(known);
                (client.task, client.at) = (None, state.now + think);
            }
            (Said::Not(seen), Some(Task::Transfer { request, .. })) if client.tries == 1 && state.happens(600) => {
                if matches!(seen, Seen::Superseded | Seen::Full) {
                    state.saw(Seen::GivenUp);
                    self.abandoned.push(*request);
                    client.task = None;
                }
                client.at = state.now + think;
            }
            // The log says whether it has happened; a call that waits anywhere is refused too. So it may be made anew.
            (Said::TooOld, Some(_)) => (client.task, client.at) = (None, state.now + think),
            // Its outcome is not known, and a second one might be another.
            (Said::Unknown, Some(Task::Define { .. })) => (client.task, client.at) = (None, state.now + think),
            (Said::Elsewhere(Some(node)), Some(_)) if *node != client.node => {
                (client.at, client.node) = (state.now + MILLISECOND, *node);
            }
            _ => {
                let pause = pause(&mut state);
                (client.at, client.node) = (state.now + pause, client.node + 1);
            }
        }
    }

    /// A client does the next thing, if it is time.
    fn step(&mut self, number: usize) {
        if let Some(said) = self.clients[number].defined() {
            self.said(number, &said);
        }
        let now = self.now();
        if let Some(life) = self.clients[number].waits {
            let is_gone = self.world.state().lives[life].is_killed;
            if now >= self.clients[number].at || is_gone {
                self.world.state().saw(Seen::Unanswered);
                self.said(number, &Said::Unknown);
            }
            return;
        }
        if now < self.clients[number].at {
            return;
        }
        if !self.has_task(number) {
            self.clients[number].at = now + 20 * MILLISECOND;
            return;
        }
        let nodes = self.places.len();
        let client = &mut self.clients[number];
        let place = match &client.task {
            Some(Task::Read { until, .. }) if now >= *until => {
                self.world.state().saw(Seen::ReadGaveUp);
                client.task = None;
                return;
            }
            Some(Task::Read { node, .. }) => &self.places[*node],
            _ => &self.places[client.node % nodes],
        };
        let asked = match &place.handle {
            Some(handle) if !self.world.state().lives[place.life].is_killed => {
                client.tries += 1;
                client.ask(&self.world, place.life, handle, self.plan.timeout)
            }
            _ => false,
        };
        if !asked {
            let mut state = self.world.state();
            (client.at, client.node) = (now + pause(&mut state), client.node + 1);
        }
    }

    /// Sees that a client has something to do.
    fn has_task(&mut self, number: usize) -> bool {
        let nodes = self.places.len();
        if self.clients[number].task.is_some() {
            return true;
        }
        let mut state = self.world.state();
        let opened = |id: i64| state.checker.has(id as u64 + 1);
        let missing = FURNITURE.iter().find(|(name, _)| !state.checker.defines(name));
        let client = &mut self.clients[number];
        (client.tries, client.began) = (0, state.now / MILLISECOND);
        // The first one furnishes the database, thing by thing.
        if let Some((name, assembly)) = missing {
            let (name, assembly) = (name.to_string(), assembly.to_string());
            client.task = (number == 0).then_some(Task::Define { name, assembly });
        } else if let Some(id) = (0..ACCOUNTS).find(|&id| !opened(id)) {
            client.task = (number == 0).then_some(Task::Open { request: id as u64 + 1, id });
        } else if self.steps > 0 && !self.is_quiet {
            self.steps -= 1;
            client.choose(&mut state, nodes, &self.plan);
        }
        client.task.is_some()
    }

    /// Something goes wrong.
    fn fault(&mut self) {
        let mut state = self.world.state();
        let leader = state.checker.leader().map(|life| state.lives[life].node);
        let any = state.below(self.places.len() as u64) as usize;
        let node = if state.happens(500) { leader.unwrap_or(any) } else { any };
        let (now, draw, length) = (state.now, state.below(100), state.below(1000));
        let Place { life, handle, restart, .. } = &self.places[node];
        let (life, leads) = (*life, handle.as_ref().is_some_and(|handle| handle.role() == Some(Role::Leading)));
        let what = match draw {
            0..16 if restart.is_none() => {
                state.saw(Seen::Killed);
                if leads {
                    state.saw(Seen::LeaderKilled);
                } else if handle.is_none() {
                    state.saw(Seen::KilledBeginning);
                }
                state.kill(life);
                let place = &mut self.places[node];
                (place.handle, place.restart) = (None, Some(now + 50 * MILLISECOND + length * 2 * MILLISECOND));
                "is killed"
            }
            16..32 => {
                let until = now + 50 * MILLISECOND + length * 4 * MILLISECOND;
                if until - now > LEASE.as_nanos() as u64 {
                    state.saw(if leads { Seen::LeaderStoodStill } else { Seen::StoodStill });
                }
                state.lives[life].stopped_until = until;
                "stands still"
            }
            32..48 => {
                state.servers.cut_until[node] = now + 100 * MILLISECOND + length * 5 * MILLISECOND;
                "is cut off"
            }
            48..58 => {
                state.saw(Seen::Slow);
                state.lives[life].slow_until = now + length * 4 * MILLISECOND;
                "is slow"
            }
            58..64 => {
                state.servers.away_until = now + length * 6 * MILLISECOND;
                let most = if state.happens(200) { 40 } else { state.below(4) as usize };
                let lost = state.servers.strand(most, now);
                if lost > 0 {
                    state.saw(Seen::Stranded);
                    state.tell(format_args!("of the last {lost} messages one server has a copy"));
                }
                "and all others lose the servers"
            }
            64..74 => {
                let room = length as usize * 2;
                state.servers.capacity = state.servers.used() + room;
                self.full_until = Some(now + 200 * MILLISECOND + length * 3 * MILLISECOND);
                "and all others have a stream that is full"
            }
            74..90 => {
                if let Some(handle) = handle {
                    let (reply, _) = std::sync::mpsc::sync_channel(1);
                    drop(state);
                    drop(handle.give(crate::order::Request::Checkpoint(reply)));
                    state = self.world.state();
                    state.touch(life);
                }
                "makes a checkpoint"
            }
            _ if restart.is_none() => {
                state.saw(Seen::Asked);
                state.lives[life].is_asked = true;
                "is asked to end"
            }
            _ => return,
        };
        let name = state.name(life);
        state.tell(format_args!("{name} {what} ({length})"));
    }

    /// Nothing goes wrong from now on.
    pub(super) fn heal(&mut self) {
        (self.fault_at, self.full_until) = (None, None);
        let mut state = self.world.state();
        state.tell(format_args!("nothing goes wrong any more"));
        state.heal();
    }

    /// Whether one node leads, and all have all of the log.
    pub(super) fn is_together(&self) -> bool {
        let last = self.world.state().checker.last();
        let role = |place: &Place| place.handle.as_ref().and_then(Handle::role);
        let leaders = self.places.iter().filter(|place| role(place) == Some(Role::Leading)).count();
        leaders == 1 && self.places.iter().all(|place| place.handle.as_ref().is_some_and(|has| has.record() == last))
    }

    /// Clients do so much more.
    pub(super) fn more(&mut self, steps: u64) {
        self.steps = steps;
        self.work();
    }

    /// Waits until something holds.
    pub(super) fn until(&mut self, what: &str, most: u64, holds: impl Fn(&Self) -> bool) {
        let end = self.now() + most;
        while !self.has_failed() && !holds(self) {
            if self.now() > end {
                let status = |place: &Place| format!("{:?}", place.handle.as_ref().map(Handle::node));
                let status: Vec<_> = self.places.iter().map(status).collect();
                let mut state = self.world.state();
                let threads = state.threads();
                state.fail(format!("{what} is not so after {} s: {status:?}; {threads}", most / SECOND));
            }
            self.turn();
        }
    }

    /// Everybody comes together, and has the same.
    fn conclude(&mut self) {
        self.heal();
        // What was sent before may arrive yet.
        let arrived = self.now() + 12 * SECOND;
        self.until("all that was sent has arrived", TIMEOUT, |all| all.now() >= arrived);
        self.until("one leads, and all have the log", TIMEOUT, Self::is_together);
        if self.has_failed() {
            return;
        }
        for number in 0..self.places.len() {
            let after = self.world.state().checker.last();
            let until = self.now() + 10 * SECOND;
            let client = &mut self.clients[0];
            (client.task, client.at) = (Some(Task::Read { node: number, after, until }), 0);
            self.until("a read is answered", 20 * SECOND, |director| director.clients[0].task.is_none());
        }
        let mut state = self.world.state();
        if let Some(request) = self.abandoned.iter().find(|&&request| state.checker.has(request)) {
            let what = format!("request {request:x} has happened, and its client was told that it had not");
            state.fail(what);
        }
    }
}

impl State {
    fn heal(&mut self) {
        self.servers.capacity = usize::MAX;
        self.servers.away_until = 0;
        self.servers.cut_until.fill(0);
        self.servers.rates = Rates::default();
        for life in &mut self.lives {
            (life.stopped_until, life.slow_until) = (0, 0);
        }
    }
}
