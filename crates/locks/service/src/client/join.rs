//! How a session begins: JOIN again and again, until WELCOME.
//!
//! The first session begins in the call that connects. Later ones begin when a lock is asked for and the last session
//! has ended: then requests are parked, whoever drives the session asks to join beside what else is due, and nobody who
//! has a limit of his own waits longer than that.
//!
//! *Invariant*: a parked request is answered: it moves into the new session, or its time is over, or the service has
//! refused; and somebody asks to join as long as one is parked.

use super::wait::Wait;
use super::{ConnectError, LockName, Options};
use crate::clock::{Clock, nanos};
use crate::udp::{Endpoint, REFUSED};
use lockwork_lock_protocol::client::Ask;
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{AGENT, Key, Kind, Packet, Problem, parse_whole};
use lockwork_locking::LockMode;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A process asks again to join after this.
const AGAIN_NS: u64 = 20_000_000;
/// And with another nonce after this, so that its lease begins anew.
const NEW_NONCE_NS: u64 = 400_000_000;
/// What is known of a service that does not let anybody in.
const WAITS: &str = " but that it cannot reach etcd, where it writes down who takes part";
/// Longest that a request which is not to wait does wait for a session: a round trip, wherever the service is.
const TRY_NS: u64 = 100_000_000;

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinError {
    /// Nobody has answered; perhaps the system knows that nobody listens.
    NoAnswer { refused: bool },
    /// The service cannot write down who takes part.
    Waits,
    /// All machine numbers are taken.
    Full,
}

/// What a process takes part as, in every session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Role {
    /// It offers to keep locks beyond those that the decider has words for.
    manages: bool,
    /// How long locks stay that it has given back.
    stay_ns: u64,
    /// And how many.
    most_stay: usize,
}

impl Role {
    pub(super) fn new(options: &Options) -> Self {
        Self { manages: options.manages, stay_ns: nanos(options.stay), most_stay: options.most_stay }
    }

    fn config(self, service: Service) -> Config {
        let lease = u64::from(service.lease_ms) * 1_000_000;
        Config {
            profile: service.profile,
            writers_first: service.writers_first,
            lease,
            beyond: service.beyond,
            near: if self.stay_ns > 0 { [0, service.locks] } else { [0; 2] },
            // Longer than a lease would be of no use: whoever has used none for so long is probably gone.
            stay: self.stay_ns.min(lease),
            most_stay: self.most_stay,
            ..Config::new(service.locks)
        }
    }
}

/// A session that wants to join.
#[derive(Debug)]
struct Joining {
    nonce: u64,
    /// When it was first asked for with this nonce: the lease runs from then.
    since: u64,
    again: u64,
    /// The service has said that it cannot write down who takes part.
    waits: bool,
    role: Role,
}

impl Joining {
    fn new(now: u64, role: Role) -> Self {
        Self { nonce: 0, since: now, again: now, waits: false, role }
    }

    fn ask(&mut self, now: u64, endpoint: &mut Endpoint, server: SocketAddr, key: Option<&Key>) {
        if now < self.again {
            return;
        }
        if self.nonce == 0 || now - self.since > NEW_NONCE_NS {
            self.nonce = RandomState::new().build_hasher().finish() | 1;
            self.since = now;
        }
        let flags = if self.role.manages { AGENT } else { 0 };
        let join = Packet { request: self.nonce, flags, ..Packet::new(Kind::Join, 0) };
        endpoint.push(server, [&join.header(0, key), &[]]);
        endpoint.flush();
        self.again = now.saturating_add(AGAIN_NS);
    }

    /// What a packet says, if it is an answer.
    fn answer(&mut self, packet: &Packet, body: &[u8]) -> Option<Result<(Node, Service), JoinError>> {
        match packet.kind {
            _ if packet.request != self.nonce => None,
            Kind::Welcome => {
                let service = Service::of_body(body).ok()?;
                let me = Identity { machine: packet.requester, session: packet.requester_session };
                Some(Ok((Node::new(self.role.config(service), me, self.since), service)))
            }
            Kind::Error if packet.token == Problem::Full as u64 => Some(Err(JoinError::Full)),
            Kind::Error if packet.token == Problem::Waits as u64 => {
                self.waits = true;
                None
            }
            _ => None,
        }
    }
}

/// A request that waits for a session.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) wait: Arc<Wait>,
    pub(super) name: LockName,
    pub(super) mode: LockMode,
    pub(super) ask: Ask,
    /// When it was made.
    pub(super) made: u64,
    until: u64,
}

/// A session that is about to begin after the last one has ended.
#[derive(Debug)]
pub(super) struct Rejoin {
    joining: Joining,
    pub(super) parked: Vec<Parked>,
    pub(super) refused: bool,
    until: u64,
    /// When something has to be done.
    pub(super) due: u64,
}

impl Rejoin {
    pub(super) fn new(now: u64, role: Role) -> Self {
        Self { joining: Joining::new(now, role), parked: Vec::new(), refused: false, until: now, due: now }
    }

    /// Parks a request, and asks for a session for `time` at least.
    pub(super) fn park(&mut self, now: u64, time: u64, name: LockName, mode: LockMode, ask: Ask) -> Arc<Wait> {
        let wait = Arc::new(Wait::default());
        let limit = if ask.try_only { TRY_NS } else { u64::MAX };
        let until = now.saturating_add(time.min(ask.timeout.unwrap_or(u64::MAX)).min(limit));
        self.parked.push(Parked { wait: Arc::clone(&wait), name, mode, ask, made: now, until });
        self.until = self.until.max(now.saturating_add(time));
        self.due = self.due.min(until);
        wait
    }

    /// Asks if that is due: requests whose time is over, and whether to go on.
    pub(super) fn tick(
        &mut self,
        now: u64,
        endpoint: &mut Endpoint,
        server: SocketAddr,
        key: Option<&Key>,
    ) -> (Vec<Parked>, bool) {
        if now < self.due {
            return (Vec::new(), true);
        }
        let late = self.parked.extract_if(.., |parked| parked.until <= now).collect();
        if now >= self.until {
            return (late, false);
        }
        self.joining.ask(now, endpoint, server, key);
        let ends = self.parked.iter().map(|parked| parked.until);
        self.due = ends.chain([self.joining.again, self.until]).min().unwrap_or(now);
        (late, true)
    }

    /// Why there is no session so far.
    pub(super) const fn silence(&self) -> JoinError {
        if self.joining.waits { JoinError::Waits } else { JoinError::NoAnswer { refused: self.refused } }
    }

    pub(super) fn answer(&mut self, packet: &Packet, body: &[u8]) -> Option<Result<(Node, Service), JoinError>> {
        self.joining.answer(packet, body)
    }
}

/// What a session is made of.
pub(super) struct Joined {
    pub(super) endpoint: Endpoint,
    pub(super) server: SocketAddr,
    pub(super) node: Node,
    pub(super) service: Service,
}

/// Joins one of the addresses, the first that answers in their order. Each gets its share of the time, or less if it
/// refuses at once; then all are tried again.
pub(super) fn connect(
    addresses: &[SocketAddr],
    key: Option<&Key>,
    clock: Clock,
    time: Duration,
    role: Role,
) -> Result<Joined, ConnectError> {
    let (began, time) = (clock.now(), nanos(time));
    let end = began.saturating_add(time);
    let turn = time / (addresses.len() as u64).max(1);
    loop {
        let (mut closed, mut silent, mut waits, mut found) = (0, 0, false, None);
        for &address in addresses {
            let until = clock.now().saturating_add(turn).min(end);
            match attempt(address, key, clock, until, role) {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(JoinError::NoAnswer { refused: true })) => closed += 1,
                Ok(Err(JoinError::NoAnswer { refused: false })) => silent += 1,
                Ok(Err(JoinError::Waits)) => (silent, waits) = (silent + 1, true),
                Ok(Err(JoinError::Full)) => found = Some(ConnectError::Full { address }),
                Err(error) => found = found.or(Some(ConnectError::System { address, error })),
            }
        }
        let found = match found {
            Some(error) if closed + silent == 0 => return Err(error),
            found => found,
        };
        let is_last = |now: u64| now.saturating_add(AGAIN_NS) >= end;
        if !is_last(clock.now()) {
            std::thread::sleep(Duration::from_nanos(AGAIN_NS));
        }
        // A busy machine sleeps longer; a round without time would find nothing but silence.
        let now = clock.now();
        if is_last(now) {
            let none = match waits {
                true => JoinError::Waits,
                false => JoinError::NoAnswer { refused: closed > 0 && silent == 0 },
            };
            let full = found.filter(|found| matches!(found, ConnectError::Full { .. }));
            return Err(full.unwrap_or_else(|| none.after((now - began) / 1_000_000, addresses)));
        }
    }
}

impl JoinError {
    /// As people see it.
    pub(super) fn after(self, waited_ms: u64, addresses: &[SocketAddr]) -> ConnectError {
        match self {
            Self::Waits => ConnectError::NoAnswer { addresses: addresses.to_vec(), waited_ms, hint: WAITS },
            Self::NoAnswer { refused } => {
                let hint = if refused { REFUSED } else { "" };
                ConnectError::NoAnswer { addresses: addresses.to_vec(), waited_ms, hint }
            }
            Self::Full => ConnectError::Full { address: addresses[0] },
        }
    }
}

/// Asks at one address until there is an answer.
fn attempt(
    server: SocketAddr,
    key: Option<&Key>,
    clock: Clock,
    until: u64,
    role: Role,
) -> io::Result<Result<Joined, JoinError>> {
    let mut endpoint = Endpoint::connect(server)?;
    let mut joining = Joining::new(clock.now(), role);
    loop {
        let now = clock.now();
        if now >= until {
            return Ok(Err(if joining.waits { JoinError::Waits } else { JoinError::NoAnswer { refused: false } }));
        }
        joining.ask(now, &mut endpoint, server, key);
        endpoint.wait(Duration::from_nanos(joining.again.min(until).saturating_sub(now)));
        let count = match endpoint.receive() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(Err(JoinError::NoAnswer { refused: true }));
            }
            count => count?,
        };
        for at in 0..count {
            let Some((bytes, _)) = endpoint.datagram(at) else { continue };
            let answer = parse_whole(bytes, key).ok().and_then(|(packet, body)| joining.answer(&packet, body));
            match answer {
                Some(Ok((node, service))) => return Ok(Ok(Joined { endpoint, server, node, service })),
                Some(Err(error)) => return Ok(Err(error)),
                None => {}
            }
        }
    }
}
