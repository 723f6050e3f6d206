//! What the load generator asks of a client machine, and the two kinds: SrvLock's, and the lock service's.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Kind, Packet, Problem, parse_whole};
use lockwork_lock_protocol::word::Machine;
use lockwork_locking::LockMode;

use super::link::Link;
use super::{BenchError, interrupted, now};

/// A lock was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The request.
    pub request: u64,
    /// Its fencing token.
    pub token: u64,
}

/// A client machine: packets and the time go in, packets and grants come out. It does no I/O. The upper half of a
/// request is its task.
pub trait ClientMachine: Send {
    /// Asks for a lock.
    ///
    /// # Errors
    /// Why it cannot be asked for.
    fn acquire(&mut self, now: u64, lock: u64, mode: LockMode, task: u32) -> Result<u64, String>;

    /// Gives a granted lock back.
    ///
    /// # Errors
    /// If it was not granted, or is lost.
    fn release(&mut self, now: u64, request: u64) -> Result<(), String>;

    /// A packet has come.
    fn receive(&mut self, now: u64, packet: &Packet, body: &[u8]);

    /// Time has passed: some microseconds, or many.
    fn tick(&mut self, now: u64);

    /// The next packet to send, and its body.
    fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)>;

    /// The next grant.
    ///
    /// # Errors
    /// Whatever else has happened to a request; nothing else may.
    fn poll_event(&mut self) -> Result<Option<Granted>, String>;

    /// Whether everything it has sent was answered, and it has no lock to look after.
    fn is_idle(&self) -> bool;

    /// Nobody will ask any more: a few of the locks that it only looks after in case are given back. Called until it is
    /// idle.
    fn wind_up(&mut self, _now: u64) {}
}

/// After how long at least a packet without an answer is sent again.
const AGAIN_NS: u64 = 20_000_000;

/// How long agents stay with the machine that their locks are near to: to the end of a round.
const STAY_NS: u64 = 600_000_000_000;

/// What a task does.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    counter: u32,
    /// The request that waits or is granted; none before the first.
    asked: Option<Packet>,
    granted: bool,
    began: u64,
    sent: u64,
}

/// A client machine of SrvLock.
pub(super) struct ServerClient {
    machine: Machine,
    tasks: Vec<Task>,
    /// Releases without an answer, oldest first, and when they were sent.
    released: VecDeque<(Packet, u64)>,
    outgoing: VecDeque<Packet>,
    granted: VecDeque<Granted>,
    look_again: u64,
    /// How long grants take, averaged. Where that is long, copies of what waits would only make it longer.
    usual: u64,
}

impl ServerClient {
    pub(super) fn new(machine: u16) -> Self {
        Self {
            machine: Machine(machine),
            tasks: Vec::new(),
            released: VecDeque::new(),
            outgoing: VecDeque::new(),
            granted: VecDeque::new(),
            look_again: 0,
            usual: 0,
        }
    }

    fn task_of(&mut self, request: u64) -> Option<&mut Task> {
        let task = self.tasks.get_mut((request >> 32) as usize)?;
        task.asked.filter(|packet| packet.request == request)?;
        Some(task)
    }
}

impl ClientMachine for ServerClient {
    fn acquire(&mut self, now: u64, lock: u64, mode: LockMode, task: u32) -> Result<u64, String> {
        let number = task;
        // Those that never ask are never looked at.
        let known = self.tasks.len().max(number as usize + 1);
        self.tasks.resize(known, Task::default());
        let task = &mut self.tasks[number as usize];
        if task.asked.is_some() {
            return Err(format!("task {number} has asked already"));
        }
        task.counter += 1;
        let mut packet = Packet::new(Kind::Acquire, lock);
        packet.request = u64::from(number) << 32 | u64::from(task.counter);
        packet.flags = mode as u8;
        packet.requester = self.machine;
        packet.sender = self.machine;
        *task = Task { counter: task.counter, asked: Some(packet), granted: false, began: now, sent: now };
        self.outgoing.push_back(packet);
        Ok(packet.request)
    }

    fn release(&mut self, now: u64, request: u64) -> Result<(), String> {
        let task = self.task_of(request).filter(|task| task.granted);
        let Some(mut packet) = task.and_then(|task| task.asked.take()) else {
            return Err(format!("request {request:x} is not granted"));
        };
        packet.kind = Kind::Release;
        self.released.push_back((packet, now));
        self.outgoing.push_back(packet);
        Ok(())
    }

    fn receive(&mut self, now: u64, packet: &Packet, _body: &[u8]) {
        match packet.kind {
            Kind::Grant => {
                let Some(task) = self.task_of(packet.request).filter(|task| !task.granted) else { return };
                task.granted = true;
                let took = now.saturating_sub(task.began);
                self.usual = (7 * self.usual + took) / 8;
                self.granted.push_back(Granted { request: packet.request, token: packet.token });
            }
            Kind::Ack => {
                let at = self.released.iter().position(|(released, _)| released.request == packet.request);
                at.map(|at| self.released.remove(at));
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: u64) {
        if now < self.look_again {
            return;
        }
        self.look_again = now + AGAIN_NS / 4;
        let timeout = AGAIN_NS.max(4 * self.usual);
        let waiting =
            self.tasks.iter_mut().filter(|task| !task.granted).filter_map(|task| Some((task.asked?, &mut task.sent)));
        let released = self.released.iter_mut().map(|(packet, sent)| (*packet, sent));
        for (packet, sent) in waiting.chain(released) {
            if now >= *sent + timeout {
                *sent = now;
                self.outgoing.push_back(packet);
            }
        }
    }

    fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        self.outgoing.pop_front().map(|packet| (packet, Vec::new()))
    }

    fn poll_event(&mut self) -> Result<Option<Granted>, String> {
        Ok(self.granted.pop_front())
    }

    fn is_idle(&self) -> bool {
        self.released.is_empty() && self.tasks.iter().all(|task| task.asked.is_none())
    }
}

/// A machine of the lock service.
pub(super) struct NodeClient {
    node: Node,
    /// Locks to give back at the end, and when the next ones go.
    kept: Vec<u64>,
    go_on: u64,
}

/// Locks that a machine gives back at once at the end, and how much later the next ones: all together would not find
/// room in the decider's socket.
const GIVEN_BACK: usize = 16;
const PAUSE_NS: u64 = 200_000;

impl NodeClient {
    /// Takes part in the service at the other end of `link`, as the machine that the locks from `near[0]` to before
    /// `near[1]` are near to.
    ///
    /// # Errors
    /// [`BenchError::Check`] if nobody answers for some seconds.
    pub(super) fn join(link: &mut dyn Link, near: [u64; 2]) -> Result<Self, BenchError> {
        let failed = |error| BenchError::Check(format!("the socket of a client machine: {error}"));
        let start = Instant::now();
        let mut packet = Packet::new(Kind::Join, 0);
        // Its address tells it from other machines.
        packet.request = 1;
        while start.elapsed() < Duration::from_secs(5) && !interrupted() {
            let asked = now();
            link.send(&packet.header(0, None)).map_err(failed)?;
            link.flush().map_err(failed)?;
            let again = Instant::now() + Duration::from_millis(50);
            let mut node = None;
            while node.is_none() && Instant::now() < again {
                let mut take = |bytes: &[u8]| {
                    let Ok((welcome, body)) = parse_whole(bytes, None) else { return };
                    if let (Kind::Welcome, Ok(service)) = (welcome.kind, Service::of_body(body)) {
                        let me = Identity { machine: welcome.requester, session: welcome.requester_session };
                        let mut config = Config::new(service.locks);
                        config.profile = service.profile;
                        config.writers_first = service.writers_first;
                        // As the lock server's clients do it: threads that share a core keep others waiting for
                        // milliseconds.
                        config.retry = AGAIN_NS;
                        config.near = near;
                        config.stay = STAY_NS;
                        config.lease = u64::from(service.lease_ms) * 1_000_000;
                        node = Some(Node::new(config, me, asked));
                    }
                };
                link.receive(&mut take).map_err(failed)?;
            }
            if let Some(node) = node {
                return Ok(Self { node, kept: Vec::new(), go_on: 0 });
            }
        }
        Err(BenchError::Check("the daemon has not answered a machine that wants to join".into()))
    }
}

impl ClientMachine for NodeClient {
    fn acquire(&mut self, now: u64, lock: u64, mode: LockMode, task: u32) -> Result<u64, String> {
        self.node.acquire(now, lock, mode, Ask { task, ..Ask::default() }).map_err(|error| error.to_string())
    }

    fn release(&mut self, now: u64, request: u64) -> Result<(), String> {
        self.node.release(now, request).map_err(|error| error.to_string())
    }

    fn receive(&mut self, now: u64, packet: &Packet, body: &[u8]) {
        self.node.receive(now, packet, body);
    }

    fn tick(&mut self, now: u64) {
        if self.node.next_tick().is_some_and(|due| due <= now) {
            self.node.tick(now);
        }
    }

    fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        self.node.poll_packet()
    }

    fn poll_event(&mut self) -> Result<Option<Granted>, String> {
        match self.node.poll_event() {
            None => Ok(None),
            Some(Event::Granted { request, token, .. }) => Ok(Some(Granted { request, token })),
            // Renewals are lost where more packets are under way than fit into the sockets' buffers.
            Some(Event::Failed { problem: Problem::NoSuchSession, .. } | Event::Lost { .. }) => {
                Err("its session has ended, as its renewals were not answered in time: take fewer clients".into())
            }
            Some(other) => Err(format!("instead of a grant: {other:?}")),
        }
    }

    fn is_idle(&self) -> bool {
        self.node.is_idle()
    }

    fn wind_up(&mut self, now: u64) {
        if now < self.go_on {
            return;
        }
        self.go_on = now + PAUSE_NS;
        if self.kept.is_empty() {
            self.kept = self.node.idle_agents();
        }
        let from = self.kept.len().saturating_sub(GIVEN_BACK);
        self.kept.drain(from..).for_each(|lock| self.node.give_back(now, lock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_answered_is_sent_again_and_answers_count_once() {
        let mut client = ServerClient::new(3);
        let request = client.acquire(0, 9, LockMode::Shared, 1).expect("it is free to ask");
        let again = client.acquire(0, 9, LockMode::Shared, 1);
        assert_eq!(again, Err("task 1 has asked already".into()));
        assert_eq!(client.release(0, request), Err(format!("request {request:x} is not granted")));
        let (mut packet, _) = client.poll_packet().expect("it asks");
        assert_eq!((packet.kind, packet.lock, packet.requester), (Kind::Acquire, 9, Machine(3)));
        client.tick(AGAIN_NS);
        assert_eq!(client.poll_packet().map(|(again, _)| again), Some(packet));
        packet.kind = Kind::Grant;
        packet.token = 5;
        client.receive(0, &packet, &[]);
        client.receive(0, &packet, &[]);
        assert_eq!(client.poll_event(), Ok(Some(Granted { request, token: 5 })));
        assert_eq!(client.poll_event(), Ok(None));
        client.tick(2 * AGAIN_NS);
        assert_eq!(client.poll_packet(), None);
        client.release(2 * AGAIN_NS, request).expect("it is granted");
        client.tick(3 * AGAIN_NS);
        assert_eq!([(); 2].map(|()| client.poll_packet().expect("twice").0.kind), [Kind::Release; 2]);
        assert!(!client.is_idle());
        packet.kind = Kind::Ack;
        client.receive(0, &packet, &[]);
        assert!(client.is_idle());
    }

    #[test]
    fn who_is_answered_late_repeats_later() {
        let mut client = ServerClient::new(3);
        let mut now = 0;
        for _ in 0..20 {
            let request = client.acquire(now, 9, LockMode::Shared, 0).expect("it is free to ask");
            let (mut packet, _) = client.poll_packet().expect("it asks");
            now += 2 * AGAIN_NS;
            packet.kind = Kind::Grant;
            client.receive(now, &packet, &[]);
            client.release(now, request).expect("it is granted");
            packet.kind = Kind::Ack;
            client.receive(now, &packet, &[]);
            assert!(client.poll_packet().is_some_and(|(packet, _)| packet.kind == Kind::Release));
        }
        client.acquire(now, 9, LockMode::Shared, 0).expect("it is free to ask");
        assert!(client.poll_packet().is_some());
        client.tick(now + 3 * AGAIN_NS);
        assert_eq!(client.poll_packet(), None);
        client.tick(now + 9 * AGAIN_NS);
        assert!(client.poll_packet().is_some());
    }
}
