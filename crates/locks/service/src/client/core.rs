//! A session: the node, the socket to the decider, and who waits for which answer. Whoever holds its lock drives it.
//!
//! *Invariant*: tasks that were told something are in `sleepers` until nothing is locked; see
//! [`super::driver::Locked`].

use super::directory::{Directory, Waiting};
use super::join::{JoinError, Joined, Parked, Rejoin, Role};
use super::wait::{Answer, Sleepers, Wait};
use super::{LockName, Options};
use crate::status;
use crate::udp::{BATCH, Endpoint};
use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::Identity;
use lockwork_lock_protocol::control::{Service, name_of_body};
use lockwork_lock_protocol::node::{AcquireError, Node};
use lockwork_lock_protocol::packet::{GRANTED, HEADER, Key, Kind, Packet, Problem, datagram, parse_whole};
use lockwork_locking::LockMode;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) node: Node,
    pub(super) service: Service,
    pub(super) endpoint: Endpoint,
    server: SocketAddr,
    key: Option<Key>,
    role: Role,
    waits: HashMap<u64, Arc<Wait>>,
    /// Once a lock is asked for after the last session has ended.
    rejoin: Option<Rejoin>,
    /// Whom to wake when the core is unlocked.
    pub(super) sleepers: Sleepers,
    /// Datagrams that were no packets.
    pub(super) malformed: u64,
    /// The registry has said that the session has ended, after this side asked for it.
    pub(super) left: bool,
    pub(super) directory: Directory,
}

impl Core {
    pub(super) fn new(joined: Joined, options: &Options) -> Self {
        let Joined { endpoint, server, node, service } = joined;
        Self {
            node,
            service,
            endpoint,
            server,
            key: options.key,
            role: Role::new(options),
            waits: HashMap::new(),
            rejoin: None,
            sleepers: Sleepers::default(),
            malformed: 0,
            left: false,
            directory: Directory::new(options.most_names.max(1)),
        }
    }

    /// Asks for a lock: in a new session if the last one has ended, which may take `join_time` to begin.
    pub(super) fn begin(
        &mut self,
        now: u64,
        name: LockName,
        mode: LockMode,
        ask: Ask,
        join_time: u64,
    ) -> Result<Arc<Wait>, AcquireError> {
        if !self.node.is_over() && now < self.node.lease_until() {
            let wait = Arc::new(Wait::default());
            match self.ask(now, &name, Waiting { wait: Arc::clone(&wait), mode, ask, made: now }) {
                Err(AcquireError::Ended) => {}
                done => return done.map(|()| wait),
            }
        }
        let role = self.role;
        let rejoin = self.rejoin.get_or_insert_with(|| Rejoin::new(now, role));
        let wait = rejoin.park(now, join_time, name, mode, ask);
        self.join(now);
        Ok(wait)
    }

    /// Asks for a lock, or first for what its name means.
    fn ask(&mut self, now: u64, name: &LockName, waiting: Waiting) -> Result<(), AcquireError> {
        let lock = match name {
            LockName::Number(lock) => *lock,
            LockName::Name(name) => {
                let Some((name, lock)) = self.directory.look_up(name) else {
                    self.directory.ask(now, name, waiting);
                    return Ok(());
                };
                waiting.wait.set_meaning(name, lock);
                lock
            }
        };
        let request = self.node.acquire(now, lock, waiting.mode, waiting.ask)?;
        self.begun(request, waiting.wait);
        Ok(())
    }

    /// What was found out about a name goes to who waits for it.
    fn named(&mut self, now: u64, name: &str, waiting: Waiting, answer: Result<u64, Problem>) {
        let Waiting { wait, mode, ask, made } = waiting;
        let problem = match answer {
            Ok(_) => {
                // It is known by now.
                let ask = shorter(ask, now, made);
                let again = Waiting { wait: Arc::clone(&wait), mode, ask, made };
                match self.ask(now, &LockName::Name(name.into()), again) {
                    Ok(()) => return,
                    Err(AcquireError::NoSuchLock { .. }) => Problem::NoSuchLock,
                    Err(_) => Problem::NoSuchSession,
                }
            }
            Err(problem) => problem,
        };
        self.sleepers.add(wait.set_answer(Answer::Failed(problem)));
    }

    fn begun(&mut self, request: u64, wait: Arc<Wait>) {
        wait.set_number(request, self.node.joined());
        self.waits.insert(request, wait);
    }

    /// Number of a request in the present session, if it is of that.
    pub(super) fn number(&self, wait: &Wait) -> Option<u64> {
        let (request, session) = wait.number()?;
        (session == self.node.joined()).then_some(request)
    }

    /// Releases or withdraws a request, unless its session has ended.
    pub(super) fn give_back(&mut self, now: u64, wait: &Arc<Wait>) {
        if let Some(rejoin) = &mut self.rejoin {
            rejoin.parked.retain(|parked| !Arc::ptr_eq(&parked.wait, wait));
        }
        self.directory.withdraw(wait);
        if let Some(request) = self.number(wait) {
            self.waits.remove(&request);
            // It may have been lost just now, which is as good.
            _ = self.node.release(now, request);
        }
    }

    /// Takes what has arrived, and does what is due.
    pub(super) fn drive(&mut self, now: u64) {
        loop {
            let count = match self.endpoint.receive() {
                Ok(count) => count,
                // Nobody listens at the other end. If that stays so, the lease runs out.
                Err(error) => {
                    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    self.rejoin.iter_mut().for_each(|rejoin| rejoin.refused |= refused);
                    break;
                }
            };
            for at in 0..count {
                self.datagram(now, at);
            }
            if count < BATCH {
                break;
            }
        }
        if self.node.next_tick().is_some_and(|tick| tick <= now) {
            self.node.tick(now);
        }
        for late in self.directory.tick(now) {
            let answer = if late.ask.try_only { Answer::Busy } else { Answer::TimedOut };
            self.sleepers.add(late.wait.set_answer(answer));
        }
        if self.node.is_over() {
            self.forget_names();
        }
        self.join(now);
    }

    /// What the session was told ends with it.
    fn forget_names(&mut self) {
        for waiting in self.directory.clear() {
            self.sleepers.add(waiting.wait.set_answer(Answer::Failed(Problem::NoSuchSession)));
        }
    }

    /// When [`Core::drive`] has something to do, whatever arrives.
    pub(super) fn next_tick(&self) -> Option<u64> {
        let join = self.rejoin.as_ref().map(|rejoin| rejoin.due);
        self.node.next_tick().into_iter().chain(join).chain(self.directory.next_tick()).min()
    }

    /// Does what is due to have a session again.
    fn join(&mut self, now: u64) {
        let Self { rejoin: Some(rejoin), endpoint, server, key, .. } = self else { return };
        let error = rejoin.silence();
        let (late, goes_on) = rejoin.tick(now, endpoint, *server, key.as_ref());
        if !goes_on {
            self.rejoin = None;
        }
        self.refuse(now, late, error);
    }

    /// The service has answered who asked to join: what is parked moves into the new session.
    fn joined(&mut self, now: u64, answer: Result<(Node, Service), JoinError>) {
        let parked = self.rejoin.take().map_or_else(Vec::new, |rejoin| rejoin.parked);
        match answer {
            Ok((node, service)) => {
                // What the last session still has to say is about numbers that are used again.
                self.flush();
                self.forget_names();
                self.node = node;
                self.service = service;
            }
            Err(error) => return self.refuse(now, parked, error),
        }
        for Parked { wait, name, mode, ask, made, .. } in parked {
            let waiting = Waiting { wait: Arc::clone(&wait), mode, ask: shorter(ask, now, made), made: now };
            let problem = match self.ask(now, &name, waiting) {
                Ok(()) => continue,
                Err(AcquireError::NoSuchLock { .. }) => Problem::NoSuchLock,
                Err(_) => Problem::NoSuchSession,
            };
            self.sleepers.add(wait.set_answer(Answer::Failed(problem)));
        }
    }

    fn refuse(&mut self, now: u64, parked: Vec<Parked>, error: JoinError) {
        for Parked { wait, made, .. } in parked {
            let waited_ms = now.saturating_sub(made) / 1_000_000;
            self.sleepers.add(wait.set_answer(Answer::NotJoined { error, waited_ms }));
        }
    }

    /// Sends what is to be sent, and tells who waits.
    pub(super) fn flush(&mut self) {
        self.collect();
        self.endpoint.flush();
    }

    /// Puts what is to be sent into the batch that goes out with the next [`Core::flush`], and tells who waits.
    pub(super) fn collect(&mut self) {
        while let Some((packet, body)) = self.node.poll_packet() {
            self.send(&packet, &body);
        }
        let Identity { machine, session } = self.node.identity();
        while let Some((packet, body)) = self.directory.poll_packet() {
            let (sender, requester) = (machine, machine);
            self.send(&Packet { sender, session, requester, requester_session: session, ..packet }, &body);
        }
        while let Some(event) = self.node.poll_event() {
            self.tell(event);
        }
    }

    pub(super) fn send(&mut self, packet: &Packet, body: &[u8]) {
        if body.is_empty() {
            self.endpoint.push(self.server, [&packet.header(0, self.key.as_ref()), &[]]);
        } else {
            let bytes = datagram(packet, body, self.key.as_ref());
            self.endpoint.push(self.server, bytes.split_at(HEADER).into());
        }
    }

    fn datagram(&mut self, now: u64, at: usize) {
        let Some((bytes, _)) = self.endpoint.datagram(at) else { return };
        let Ok((packet, body)) = parse_whole(bytes, self.key.as_ref()) else {
            self.malformed += 1;
            return;
        };
        if let Some(answer) = self.rejoin.as_mut().and_then(|rejoin| rejoin.answer(&packet, body)) {
            return self.joined(now, answer);
        }
        match packet.kind {
            Kind::Status if !packet.has(GRANTED) => {
                let (packet, body) = status::answer(&self.node, &packet);
                self.send(&packet, &body);
            }
            _ if is_about_names(&packet) && packet.requester_session == self.node.identity().session => {
                let body = body.to_vec();
                for (waiting, answer) in self.directory.answered(now, &packet, &body) {
                    let name = name_of_body(&body).unwrap_or_default();
                    self.named(now, name, waiting, answer);
                }
            }
            Kind::Left if packet.requester_session == self.node.identity().session => self.left = true,
            _ => {
                let before = self.node.identity().session;
                self.node.receive(now, &packet, body);
                if self.node.identity().session != before {
                    self.directory.tell_again(now);
                }
            }
        }
    }

    fn tell(&mut self, event: Event) {
        let (request, answer) = match event {
            Event::Granted { request, token, .. } => (request, Answer::Granted { token }),
            Event::Busy { request } => (request, Answer::Busy),
            Event::TimedOut { request } => (request, Answer::TimedOut),
            Event::Failed { request, problem } => (request, Answer::Failed(problem)),
            Event::Deadlock { request } => (request, Answer::Deadlock),
            Event::Moved { request, to } => (request, Answer::Moved { to }),
            Event::Lost { request, .. } => {
                if let Some(wait) = self.waits.remove(&request) {
                    self.sleepers.add(wait.set_lost());
                }
                return;
            }
            _ => return,
        };
        // Who was granted may still lose it; for all others this is the end.
        let wait = match answer {
            Answer::Granted { .. } => self.waits.get(&request).cloned(),
            _ => self.waits.remove(&request),
        };
        if let Some(wait) = wait {
            self.sleepers.add(wait.set_answer(answer));
        }
    }

    /// Requests that wait or hold.
    pub(super) fn requests(&self) -> usize {
        self.waits.len()
    }

    /// Whether nothing is held or under way. An agent that stays, because others hold its lock, is no reason to wait.
    pub(super) fn is_idle(&self) -> bool {
        let pool = self.node.pool();
        self.node.client().requests() == 0 && pool.locks().all(|lock| pool.decides(lock).is_some())
    }

    /// Says that the session ends.
    pub(super) fn leave(&mut self) {
        let Identity { machine, session } = self.node.identity();
        let leave = Packet {
            sender: machine,
            session,
            requester: machine,
            requester_session: session,
            ..Packet::new(Kind::Leave, 0)
        };
        self.send(&leave, &[]);
        self.endpoint.flush();
    }
}

/// What is left of a request's time.
fn shorter(mut ask: Ask, now: u64, made: u64) -> Ask {
    ask.timeout = ask.timeout.map(|timeout| timeout.saturating_sub(now.saturating_sub(made)));
    ask
}

/// Whether a packet answers a question of the directory. That the session has ended is for the node to know.
fn is_about_names(packet: &Packet) -> bool {
    let about = packet.part == Kind::Name as u8 || packet.part == Kind::Unname as u8;
    match packet.kind {
        Kind::Name | Kind::Unname => packet.has(GRANTED),
        Kind::Error => about && packet.token != Problem::NoSuchSession as u64,
        _ => false,
    }
}
