//! A session: the node, the socket to the decider, and who waits for which answer. Whoever holds its lock drives it.
//!
//! *Invariant*: tasks that were told something are in `sleepers` until nothing is locked; see [`super::driver::Locked`].

use super::wait::{Answer, Sleepers, Wait};
use crate::clock::Clock;
use crate::status;
use crate::udp::{BATCH, Endpoint};
use lockwork_lockservice::client::Event;
use lockwork_lockservice::config::{Config, Identity};
use lockwork_lockservice::control::Service;
use lockwork_lockservice::node::Node;
use lockwork_lockservice::packet::{GRANTED, HEADER, Key, Kind, Packet, Problem, body, datagram, parse};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why there is no session.
#[derive(Debug)]
pub(super) enum JoinError {
    /// Nobody has answered; perhaps the system knows that nobody listens.
    NoAnswer {
        refused: bool,
    },
    /// All machine numbers are taken.
    Full,
    Socket(io::Error),
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) node: Node,
    pub(super) service: Service,
    pub(super) endpoint: Endpoint,
    server: SocketAddr,
    key: Option<Key>,
    pub(super) waits: HashMap<u64, Arc<Wait>>,
    /// Whom to wake when the core is unlocked.
    pub(super) sleepers: Sleepers,
    /// Datagrams that were no packets.
    pub(super) malformed: u64,
    /// The registry has said that the session has ended, after this side asked for it.
    pub(super) left: bool,
}

/// A process asks again to join after this.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// And with another nonce after this, so that its lease begins anew.
const NEW_NONCE_NS: u64 = 400_000_000;

impl Core {
    /// Joins, within `time`.
    pub(super) fn join(server: SocketAddr, key: Option<Key>, clock: Clock, time: Duration) -> Result<Self, JoinError> {
        let mut endpoint = Endpoint::connect(server).map_err(JoinError::Socket)?;
        let (node, service) = handshake(&mut endpoint, server, key.as_ref(), clock, time)?;
        let (waits, sleepers) = (HashMap::new(), Sleepers::default());
        Ok(Self { node, service, endpoint, server, key, waits, sleepers, malformed: 0, left: false })
    }

    /// Begins a new session after the last one has ended.
    pub(super) fn rejoin(&mut self, clock: Clock, time: Duration) -> Result<(), JoinError> {
        self.flush();
        let (node, service) = handshake(&mut self.endpoint, self.server, self.key.as_ref(), clock, time)?;
        self.node = node;
        self.service = service;
        Ok(())
    }

    /// Takes what has arrived, and does what is due.
    pub(super) fn drive(&mut self, now: u64) {
        // An error says that nobody listens at the other end. If that stays so, the lease runs out.
        while let Ok(count) = self.endpoint.receive() {
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
    }

    /// Sends what is to be sent, and tells who waits.
    pub(super) fn flush(&mut self) {
        while let Some((packet, body)) = self.node.poll_packet() {
            self.send(&packet, &body);
        }
        self.endpoint.flush();
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
        let key = self.key.as_ref();
        let parsed = parse(bytes, key).and_then(|(packet, _)| Ok((packet, body(bytes, key)?)));
        let Ok((packet, body)) = parsed else {
            self.malformed += 1;
            return;
        };
        match packet.kind {
            Kind::Status if !packet.has(GRANTED) => {
                let (packet, body) = status::answer(&self.node, &packet);
                self.send(&packet, &body);
            }
            Kind::Left if packet.requester_session == self.node.identity().session => self.left = true,
            _ => self.node.receive(now, &packet, body),
        }
    }

    fn tell(&mut self, event: Event) {
        let (request, answer) = match event {
            Event::Granted { request, token, .. } => (request, Answer::Granted { token }),
            Event::Busy { request } => (request, Answer::Busy),
            Event::TimedOut { request } => (request, Answer::TimedOut),
            Event::Failed { request, problem } => (request, Answer::Failed(problem)),
            Event::Deadlock { request } => (request, Answer::Deadlock),
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

/// Asks to join until there is an answer.
fn handshake(
    endpoint: &mut Endpoint,
    server: SocketAddr,
    key: Option<&Key>,
    clock: Clock,
    time: Duration,
) -> Result<(Node, Service), JoinError> {
    let began = Instant::now();
    let (mut nonce, mut since, mut refused) = (0, clock.now(), false);
    while began.elapsed() < time {
        if nonce == 0 || clock.now() - since > NEW_NONCE_NS {
            nonce = RandomState::new().build_hasher().finish() | 1;
            since = clock.now();
        }
        let join = Packet { request: nonce, ..Packet::new(Kind::Join, 0) };
        endpoint.push(server, [&join.header(0, key), &[]]);
        endpoint.flush();
        let again = Instant::now() + ASK_AGAIN;
        while let Some(left) = again.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            endpoint.wait(left);
            let count = match endpoint.receive() {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    refused = true;
                    std::thread::sleep(left);
                    break;
                }
                Err(error) => return Err(JoinError::Socket(error)),
            };
            for at in 0..count {
                match answer(endpoint, at, key, nonce) {
                    Some(Ok((me, service))) => {
                        // The lease runs from when this was asked for.
                        return Ok((Node::new(config(service), me, since), service));
                    }
                    Some(Err(Problem::Full)) => return Err(JoinError::Full),
                    _ => {}
                }
            }
        }
    }
    Err(JoinError::NoAnswer { refused })
}

fn config(service: Service) -> Config {
    Config {
        profile: service.profile,
        writers_first: service.writers_first,
        lease: u64::from(service.lease_ms) * 1_000_000,
        ..Config::new(service.locks)
    }
}

/// Datagram `at` as the answer to JOIN.
fn answer(
    endpoint: &Endpoint,
    at: usize,
    key: Option<&Key>,
    nonce: u64,
) -> Option<Result<(Identity, Service), Problem>> {
    let (bytes, _) = endpoint.datagram(at)?;
    let (packet, _) = parse(bytes, key).ok().filter(|(packet, _)| packet.request == nonce)?;
    match packet.kind {
        Kind::Welcome => {
            let service = Service::of_body(body(bytes, key).ok()?).ok()?;
            let me = Identity { machine: packet.requester, session: packet.requester_session };
            Some(Ok((me, service)))
        }
        Kind::Error => Problem::of_number(packet.token).map(Err),
        _ => None,
    }
}
