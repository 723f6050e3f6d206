//! Machines, tasks, the network and the time.

use super::rack::{LEASE_MS, LOCKS, MS, Rack, Records, Sent, address, config, rack_at};
use lockwork_lock_protocol::beyond::{PARTS, part};
use lockwork_lock_protocol::client::{Ask, Event, task_of};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_locking::LockMode;
use lockwork_random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const RACKS: usize = 3;
const MACHINES: usize = 4;
const TASKS: usize = 3;
/// Time goes on in steps of this.
const STEP: u64 = 50_000;
const TROUBLE: u64 = 400 * MS;
const TIMEOUT: u64 = 6_000 * MS;

/// How often things go wrong: of a million packets, or of a million milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    pub(crate) crashes: u64,
    pub(crate) deaths: u64,
    /// How long agents stay with machines that do not need them; no fault, but as good as one.
    pub(crate) stay: u64,
}

/// What is wrong, and with which lock.
type Wrong = (String, u64);

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) moves: u64,
    pub(crate) grants: u64,
    pub(crate) told: u64,
}

/// A session, or an attempt to have one.
#[derive(Debug)]
enum Session {
    None,
    Joining { nonce: u64, asked: u64 },
    In(Box<Node>),
}

#[derive(Clone, Copy, Debug)]
enum Task {
    Idle { until: u64 },
    Waits { lock: u64, mode: LockMode, since: u64, at: Option<(usize, u64)> },
    Holds { lock: u64, mode: LockMode, at: (usize, u64), until: u64 },
}

#[derive(Debug)]
struct Place {
    sessions: Vec<Session>,
    tasks: Vec<Task>,
    /// Which rack is asked for a part.
    routes: Vec<usize>,
    life: u64,
}

impl Place {
    fn new(life: u64) -> Self {
        let sessions = (0..RACKS).map(|_| Session::None).collect();
        Self { sessions, tasks: vec![Task::Idle { until: 0 }; TASKS], routes: vec![0; PARTS as usize], life }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    readers: u64,
    writers: u64,
    token: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at: u64,
    serial: u64,
    rack: usize,
    place: usize,
    life: u64,
    up: bool,
    bytes: Vec<u8>,
}

pub(crate) struct World {
    faults: Faults,
    random: Random,
    now: u64,
    serial: u64,
    records: Records,
    racks: Vec<Option<Rack>>,
    /// When a rack that has crashed is back, and in which era.
    back: Vec<(u64, u32)>,
    places: Vec<Place>,
    network: BinaryHeap<Reverse<Arrival>>,
    held: Vec<Held>,
    nonces: u64,
    report: Report,
    /// What was sent about which lock, for who looks for an error.
    trace: Vec<(u64, String)>,
}

/// How much of it is shown.
const SHOWN: usize = 60;

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let records = Records::new(RACKS);
        let racks = (0..RACKS).map(|name| Rack::start(0, name, 1, &records)).collect();
        Self {
            faults,
            random: Random(seed),
            now: 0,
            serial: 0,
            records,
            racks,
            back: vec![(0, 1); RACKS],
            places: (0..MACHINES).map(|_| Place::new(0)).collect(),
            network: BinaryHeap::new(),
            held: vec![Held::default(); LOCKS as usize],
            nonces: 0,
            report: Report::default(),
            trace: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Result<Report, String> {
        match self.go_on() {
            Ok(()) => Ok(self.report),
            Err((what, lock)) => {
                let about: Vec<_> = self.trace.iter().filter(|(of, _)| *of == lock).map(|(_, text)| &**text).collect();
                Err(format!("{what}\n{}", about[about.len().saturating_sub(SHOWN)..].join("\n")))
            }
        }
    }

    fn go_on(&mut self) -> Result<(), Wrong> {
        while self.now < TROUBLE {
            self.step(true)?;
        }
        let calm = self.now;
        while !self.is_quiet() {
            if self.now > calm + TIMEOUT {
                return Err(self.stuck());
            }
            self.step(false)?;
        }
        // Each lock once more, wherever it is now.
        for lock in 0..LOCKS {
            let since = self.now;
            self.places[0].tasks[0] = Task::Waits { lock, mode: LockMode::Exclusive, since, at: None };
            while !self.is_quiet() {
                if self.now > since + TIMEOUT {
                    return Err(self.stuck());
                }
                self.step(false)?;
            }
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        let idle = |task: &Task| matches!(task, Task::Idle { .. });
        self.records.parts.iter().all(|part| part.to.is_none())
            && self.places.iter().all(|place| place.tasks.iter().all(idle))
    }

    fn stuck(&self) -> Wrong {
        let moving: Vec<_> = (0..PARTS).filter(|at| self.records.parts[*at as usize].to.is_some()).collect();
        let mut text = format!("not served in time; parts {moving:?} still move\n");
        let mut locks: Vec<_> = (0..LOCKS).filter(|lock| moving.contains(&part(*lock))).collect();
        for (at, place) in self.places.iter().enumerate() {
            for task in &place.tasks {
                if let Task::Waits { lock, .. } | Task::Holds { lock, .. } = task {
                    text += &format!("place {at} {task:?}\n");
                    locks.push(*lock);
                }
            }
        }
        locks.truncate(3);
        let first = locks.first().copied().unwrap_or_default();
        for lock in locks {
            text += &format!("lock {lock}:\n");
            self.racks.iter().flatten().for_each(|rack| text += &rack.describe(lock));
            for (at, place) in self.places.iter().enumerate() {
                for (rack, session) in place.sessions.iter().enumerate() {
                    if let Session::In(node) = session {
                        let machine = node.identity().machine.0;
                        let (agent, requests) = (node.pool().describe(lock), node.client().describe(lock));
                        text += &format!("place {at} at rack {rack}, machine {machine}: {agent} {requests}\n");
                    }
                }
            }
        }
        (text, first)
    }

    fn step(&mut self, trouble: bool) -> Result<(), Wrong> {
        self.now += STEP;
        while self.network.peek().is_some_and(|Reverse(next)| next.at <= self.now) {
            let Reverse(arrival) = self.network.pop().expect("just seen");
            self.arrive(arrival)?;
        }
        for name in 0..RACKS {
            self.tick_rack(name);
        }
        for place in 0..MACHINES {
            for rack in 0..RACKS {
                self.tick_session(place, rack)?;
            }
            for task in 0..TASKS {
                self.act(place, task, trouble)?;
            }
        }
        if trouble && self.now.is_multiple_of(MS) {
            self.weather();
        }
        Ok(())
    }

    fn weather(&mut self) {
        if self.random.in_a_million(150_000) {
            let (at, to) = (self.random.scaled(PARTS) as usize, self.random.scaled(RACKS as u64) as usize);
            let part = &mut self.records.parts[at];
            if part.to.is_none() && part.owner != to {
                part.to = Some(to);
                part.generation += 1;
            }
        }
        let name = self.random.scaled(RACKS as u64) as usize;
        if self.random.in_a_million(self.faults.crashes)
            && let Some(rack) = self.racks[name].take()
        {
            self.back[name] = (self.now + self.random.scaled(40 * MS), rack.era() + 1);
        }
        if self.random.in_a_million(self.faults.deaths) {
            let at = self.random.scaled(MACHINES as u64) as usize;
            for task in self.places[at].tasks.clone() {
                if let Task::Holds { lock, mode, .. } = task {
                    self.let_go(lock, mode);
                }
            }
            self.places[at] = Place::new(self.places[at].life + 1);
        }
    }

    fn tick_rack(&mut self, name: usize) {
        let (back, era) = self.back[name];
        if self.racks[name].is_none() && back <= self.now {
            self.racks[name] = Rack::start(self.now, name, era, &self.records);
        }
        let Some(rack) = &mut self.racks[name] else { return };
        let sent = rack.tick(self.now, &mut self.records);
        if self.now % (5 * MS) == name as u64 * MS {
            // For some time a rack may not be able to read what is written down.
            let reads = !(self.now / (50 * MS) + name as u64).is_multiple_of(3);
            self.report.moves += rack.look(self.now, &mut self.records, reads);
        }
        self.send_down(name, sent);
    }

    fn tick_session(&mut self, place: usize, rack: usize) -> Result<(), Wrong> {
        let wanted = |task: &Task| matches!(task, Task::Waits { at: None, .. });
        let here = &mut self.places[place];
        let is_wanted = here.tasks.iter().any(wanted);
        match &mut here.sessions[rack] {
            Session::None if is_wanted => {
                self.nonces += 1;
                here.sessions[rack] = Session::Joining { nonce: self.nonces, asked: 0 };
            }
            Session::Joining { nonce, asked } if *asked + 5 * MS <= self.now || *asked == 0 => {
                *asked = self.now;
                let join = Packet { request: *nonce, ..Packet::new(Kind::Join, 0) };
                self.send(rack, place, true, &join, &[]);
            }
            Session::In(node) => {
                node.tick(self.now);
                self.drain(place, rack)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn act(&mut self, place: usize, task: usize, trouble: bool) -> Result<(), Wrong> {
        let now = self.now;
        match self.places[place].tasks[task] {
            Task::Idle { until } if until <= now && trouble => {
                // Some locks are hot.
                let lock = if self.random.scaled(2) == 0 { self.random.scaled(4) } else { self.random.scaled(LOCKS) };
                let mode = if self.random.scaled(3) == 0 { LockMode::Exclusive } else { LockMode::Shared };
                self.places[place].tasks[task] = Task::Waits { lock, mode, since: now, at: None };
            }
            Task::Waits { lock, mode, since, at: None } => {
                let here = &mut self.places[place];
                let rack = here.routes[part(lock) as usize];
                if let Session::In(node) = &mut here.sessions[rack] {
                    let ask = Ask { task: task as u32, ..Ask::default() };
                    if let Ok(request) = node.acquire(now, lock, mode, ask) {
                        here.tasks[task] = Task::Waits { lock, mode, since, at: Some((rack, request)) };
                    }
                    self.drain(place, rack)?;
                }
            }
            Task::Holds { lock, mode, at: (rack, request), until } if until <= now => {
                self.let_go(lock, mode);
                let pause = now + self.random.scaled(MS);
                self.places[place].tasks[task] = Task::Idle { until: pause };
                if let Session::In(node) = &mut self.places[place].sessions[rack] {
                    _ = node.release(now, request);
                }
                self.drain(place, rack)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn let_go(&mut self, lock: u64, mode: LockMode) {
        let held = &mut self.held[lock as usize];
        match mode {
            LockMode::Exclusive => held.writers -= 1,
            _ => held.readers -= 1,
        }
    }

    /// What a session has to say.
    fn drain(&mut self, place: usize, rack: usize) -> Result<(), Wrong> {
        loop {
            let Session::In(node) = &mut self.places[place].sessions[rack] else { return Ok(()) };
            if let Some(event) = node.poll_event() {
                self.happened(place, rack, event)?;
            } else if let Some((packet, body)) = node.poll_packet() {
                self.send(rack, place, true, &packet, &body);
            } else {
                if node.is_over() {
                    self.places[place].sessions[rack] = Session::None;
                }
                return Ok(());
            }
        }
    }

    fn happened(&mut self, place: usize, rack: usize, event: Event) -> Result<(), Wrong> {
        let (Event::Granted { request, .. }
        | Event::Busy { request }
        | Event::TimedOut { request }
        | Event::Failed { request, .. }
        | Event::Moved { request, .. }
        | Event::Deadlock { request }
        | Event::Lost { request, .. }) = event
        else {
            return Ok(());
        };
        let at = task_of(request) as usize;
        let task = self.places[place].tasks[at];
        match (task, event) {
            (Task::Waits { lock, mode, at: Some(asked), .. }, Event::Granted { token, .. })
                if asked == (rack, request) =>
            {
                self.report.grants += 1;
                let held = &mut self.held[lock as usize];
                let (excludes, old) = match mode {
                    LockMode::Exclusive => (held.readers + held.writers > 0, token <= held.token),
                    _ => (held.writers > 0, token < held.token),
                };
                if excludes || old {
                    let now = self.now / 1000;
                    let what =
                        format!("{now} us: place {place} is granted {lock} {mode:?} with {token} by rack {rack}");
                    return Err((format!("{what}, but {held:?}"), lock));
                }
                match mode {
                    LockMode::Exclusive => (held.writers, held.token) = (held.writers + 1, token),
                    _ => held.readers += 1,
                }
                let until = self.now + self.random.scaled(2 * MS);
                self.places[place].tasks[at] = Task::Holds { lock, mode, at: (rack, request), until };
            }
            (Task::Waits { lock, mode, since, at: Some(asked) }, _) if asked == (rack, request) => {
                if let Event::Moved { to, .. } = event {
                    self.report.told += 1;
                    self.places[place].routes[part(lock) as usize] = rack_at(to);
                    assert_eq!(address(rack_at(to)), to);
                }
                self.places[place].tasks[at] = Task::Waits { lock, mode, since, at: None };
            }
            (Task::Holds { lock, mode, at: held, .. }, Event::Lost { .. }) if held == (rack, request) => {
                self.let_go(lock, mode);
                self.places[place].tasks[at] = Task::Idle { until: self.now };
            }
            _ => {}
        }
        Ok(())
    }

    fn send_down(&mut self, rack: usize, sent: Vec<Sent>) {
        for (to, packet, body) in sent {
            let (place, life) = (to as usize % MACHINES, u64::from(to) / MACHINES as u64);
            // A process that is started anew has another port.
            if life == self.places[place].life {
                self.send(rack, place, false, &packet, &body);
            }
        }
    }

    fn send(&mut self, rack: usize, place: usize, up: bool, packet: &Packet, body: &[u8]) {
        let bytes = lockwork_lock_protocol::packet::datagram(packet, body, None);
        let copies = match () {
            () if self.random.in_a_million(self.faults.lost) => 0,
            () if self.random.in_a_million(self.faults.doubled) => 2,
            () => 1,
        };
        let (now, to) = (self.now / 1000, if up { "to" } else { "from" });
        self.trace.push((packet.lock, format!("{now} us: {copies} of place {place} {to} rack {rack}: {packet:?}")));
        for _ in 0..copies {
            let late = self.random.in_a_million(self.faults.late);
            let delay = if late { self.random.scaled(20 * MS) } else { 20_000 + self.random.scaled(200_000) };
            self.serial += 1;
            let (at, serial, life) = (self.now + delay, self.serial, self.places[place].life);
            let bytes = bytes.clone();
            self.network.push(Reverse(Arrival { at, serial, rack, place, life, up, bytes }));
        }
    }

    fn arrive(&mut self, arrival: Arrival) -> Result<(), Wrong> {
        let Arrival { rack, place, life, up, bytes, .. } = arrival;
        let (packet, body) =
            lockwork_lock_protocol::packet::parse_whole(&bytes, None).map_err(|wrong| (wrong.to_string(), 0))?;
        if up {
            let Some(at) = &mut self.racks[rack] else { return Ok(()) };
            let from = (life as u32) * MACHINES as u32 + place as u32;
            let sent = at.receive(self.now, from, &packet, body, &mut self.records);
            self.send_down(rack, sent);
            return Ok(());
        }
        let here = &mut self.places[place];
        if here.life != life {
            return Ok(());
        }
        match &mut here.sessions[rack] {
            Session::Joining { nonce, asked } if packet.kind == Kind::Welcome && packet.request == *nonce => {
                let me = Identity { machine: packet.requester, session: packet.requester_session };
                let stay = self.faults.stay;
                let near = if stay > 0 { [0, LOCKS] } else { [0; 2] };
                let config = Config { near, stay, ..config() };
                let node = Node::new(config, me, *asked);
                if self.now < *asked + u64::from(LEASE_MS) * MS / 2 {
                    here.sessions[rack] = Session::In(Box::new(node));
                }
            }
            Session::In(node) => {
                node.receive(self.now, &packet, body);
                self.drain(place, rack)?;
            }
            _ => {}
        }
        Ok(())
    }
}
