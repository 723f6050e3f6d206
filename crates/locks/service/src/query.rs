//! Questions about locks, for people's tools: without a session, so that looking changes nothing.

use crate::udp::{Endpoint, REFUSED};
use lockwork_lock_protocol::control::{
    ALL_LOCKS, Busiest, Participant, Summary, address_of_body, name_of_body, name_to_body,
};
use lockwork_lock_protocol::packet::{BUSY, GRANTED, HEADER, Key, Kind, Packet, Problem, TRY, datagram, parse_whole};
use lockwork_lock_protocol::word::{Machine, State};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A question has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// There are fewer locks.
    #[error("there is no lock {0} at {1}")]
    NoSuchLock(u64, SocketAddr),
    /// No lock has this name.
    #[error("no lock at {1} is called '{0}': nobody has asked for it lately")]
    NoSuchName(String, SocketAddr),
    /// The service has no names.
    #[error("the service at {0} has no locks for names")]
    NoNames(SocketAddr),
    /// Nobody answers.
    #[error("no answer from {0}{1}; is 'lockwork lockd' running there, with the same key?")]
    NoAnswer(SocketAddr, &'static str),
    /// The system refuses.
    #[error("cannot talk to {0}: {1}")]
    System(SocketAddr, io::Error),
}

/// What is known of one lock.
#[derive(Clone, Debug)]
pub struct LockStatus {
    /// The service knows it; if not, it is being restored, and its machines have not said yet who holds what.
    pub is_back: bool,
    /// Who decides about it.
    pub state: State,
    /// The machine of its agent: 0 if that is the daemon, which also stands for nobody if it is free.
    pub machine: u16,
    /// Decisions so far.
    pub incarnation: u32,
    /// The newest token of the decider.
    pub token: u64,
    /// Who holds and who waits, the first first, as far as it fits into one packet; `None` if its agent has not
    /// answered.
    pub participants: Option<Vec<Participant>>,
}

/// What is known of a service.
#[derive(Clone, Debug)]
pub struct ServiceStatus {
    /// As a whole.
    pub summary: Summary,
    /// Locks with agents: machine and lock, those with most waiters first; at most about fifty of each machine.
    pub busiest: Vec<(u16, Busiest)>,
    /// Machines that have not answered.
    pub silent: u64,
}

impl ServiceStatus {
    /// Locks granted by the decider; `None` if it does not count them, as the one in the kernel.
    #[must_use]
    pub fn grants(&self) -> Option<u64> {
        Some(self.summary.grants).filter(|grants| *grants != UNCOUNTED)
    }
}

/// What a summary has in the place of grants that are not counted.
pub(crate) const UNCOUNTED: u64 = u64::MAX;

/// How long machines may take, after the daemon has answered.
const MACHINES: Duration = Duration::from_millis(200);
/// A question is asked again after this.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A packet with its body.
type Answer = (Packet, Vec<u8>);

struct Asker {
    endpoint: Endpoint,
    server: SocketAddr,
    key: Option<Key>,
    lock: u64,
    request: u64,
    /// A name to ask about; of a lock that has only a number it is empty.
    name: Option<String>,
}

impl Asker {
    fn new(server: SocketAddr, key: Option<Key>, lock: u64) -> Result<Self, QueryError> {
        let endpoint = Endpoint::connect(server).map_err(|error| QueryError::System(server, error))?;
        let request = RandomState::new().build_hasher().finish();
        Ok(Self { endpoint, server, key, lock, request, name: None })
    }

    /// Asks until the daemon has answered: its answer, and those that came with it.
    fn first(&mut self, time: Duration) -> Result<(Answer, Vec<Answer>), QueryError> {
        let began = Instant::now();
        let mut hint = "";
        while began.elapsed() < time {
            let mut asked = Packet { request: self.request, ..Packet::new(Kind::Status, self.lock) };
            let mut body = Vec::new();
            if let Some(name) = &self.name {
                (asked.kind, asked.flags, body) = (Kind::Name, TRY, name_to_body(name));
            }
            let bytes = datagram(&asked, &body, self.key.as_ref());
            self.endpoint.push(self.server, bytes.split_at(HEADER).into());
            self.endpoint.flush();
            let mut answers = match self.answers(RETRY_DELAY) {
                Ok(answers) => answers,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    hint = REFUSED;
                    std::thread::sleep(RETRY_DELAY);
                    continue;
                }
                Err(error) => return Err(QueryError::System(self.server, error)),
            };
            // The daemon's answer has no requester; a machine's has the machine.
            if let Some(at) = answers.iter().position(|(packet, _)| packet.requester == Machine::REGISTRY) {
                let (packet, body) = answers.swap_remove(at);
                let problem = Problem::of_number(packet.token).filter(|_| packet.kind == Kind::Error);
                match (problem, address_of_body(&body)) {
                    (Some(Problem::NoSuchLock), _) => return Err(QueryError::NoSuchLock(self.lock, self.server)),
                    (Some(Problem::Moved), Ok(at)) => {
                        *self = Self::new(at, self.key, self.lock)?;
                        continue;
                    }
                    _ => {}
                }
                return Ok(((packet, body), answers));
            }
        }
        Err(QueryError::NoAnswer(self.server, hint))
    }

    /// Answers that are there, at the latest after `time`; none if none came.
    fn answers(&mut self, time: Duration) -> io::Result<Vec<Answer>> {
        self.endpoint.wait(time);
        let mut answers = Vec::new();
        for at in 0..self.endpoint.receive()? {
            let Some((bytes, _)) = self.endpoint.datagram(at) else { continue };
            let Ok((packet, body)) = parse_whole(bytes, self.key.as_ref()) else { continue };
            let told =
                packet.kind == Kind::Error || (matches!(packet.kind, Kind::Status | Kind::Name) && packet.has(GRANTED));
            if told && packet.request == self.request {
                answers.push((packet, body.to_vec()));
            }
        }
        Ok(answers)
    }

    /// Collects machines' answers until `enough` or no time is left.
    fn rest(&mut self, all: &mut Vec<Answer>, enough: usize) {
        let began = Instant::now();
        while all.len() < enough {
            let Some(left) = MACHINES.checked_sub(began.elapsed()) else { return };
            all.extend(self.answers(left).unwrap_or_default());
        }
    }
}

/// Asks for the incarnations of locks: how many decisions there have been on each, modulo 2^32. `None` for a lock whose
/// answer has not come after `time`.
///
/// # Errors
/// [`QueryError::System`].
pub fn incarnations(
    server: SocketAddr,
    key: Option<Key>,
    locks: &[u64],
    time: Duration,
) -> Result<Vec<Option<u32>>, QueryError> {
    let mut asker = Asker::new(server, key, 0)?;
    let mut found = vec![None; locks.len()];
    let began = Instant::now();
    while found.contains(&None) && began.elapsed() < time {
        for (lock, _) in locks.iter().zip(&found).filter(|(_, found)| found.is_none()) {
            let asked = Packet { request: asker.request, ..Packet::new(Kind::Status, *lock) };
            asker.endpoint.push(server, [&asked.header(0, key.as_ref()), &[]]);
        }
        asker.endpoint.flush();
        let asked = Instant::now();
        while let Some(left) = RETRY_DELAY.checked_sub(asked.elapsed()).filter(|_| found.contains(&None)) {
            let answers = asker.answers(left).map_err(|error| QueryError::System(server, error))?;
            // Agents answer too, after the daemon, with what they know of holders.
            for (word, _) in answers.iter().filter(|(packet, _)| packet.requester == Machine::REGISTRY) {
                if let Some(at) = locks.iter().position(|lock| *lock == word.lock) {
                    found[at].get_or_insert(word.incarnation);
                }
            }
        }
    }
    Ok(found)
}

/// Asks about one lock; waits at most `time` for the daemon.
///
/// # Errors
/// [`QueryError`] if there is no such lock, or nobody answers.
pub fn lock(server: SocketAddr, key: Option<Key>, lock: u64, time: Duration) -> Result<LockStatus, QueryError> {
    let mut asker = Asker::new(server, key, lock)?;
    let ((word, _), mut others) = asker.first(time)?;
    if word.state != State::Free {
        asker.rest(&mut others, 1);
    }
    let participants = others.first().and_then(|(_, body)| Participant::of_body(body).ok());
    let (state, machine) = (word.state, word.sender.0);
    let (incarnation, token, is_back) = (word.incarnation, word.token, !word.has(BUSY));
    Ok(LockStatus { is_back, state, machine, incarnation, token, participants })
}

/// Asks which lock a name means; nobody becomes interested in it by that.
///
/// # Errors
/// [`QueryError`] if none has this name, or nobody answers.
pub fn number_of(server: SocketAddr, key: Option<Key>, name: &str, time: Duration) -> Result<u64, QueryError> {
    let mut asker = Asker { name: Some(name.to_string()), ..Asker::new(server, key, 0)? };
    let ((packet, _), _) = asker.first(time)?;
    match Problem::of_number(packet.token).filter(|_| packet.kind == Kind::Error) {
        None => Ok(packet.lock),
        Some(Problem::NoNames) => Err(QueryError::NoNames(server)),
        Some(_) => Err(QueryError::NoSuchName(name.to_string(), server)),
    }
}

/// Asks for the name of a lock, if it has one.
///
/// # Errors
/// [`QueryError`] if nobody answers.
pub fn name_of(server: SocketAddr, key: Option<Key>, lock: u64, time: Duration) -> Result<Option<String>, QueryError> {
    let mut asker = Asker { name: Some(String::new()), ..Asker::new(server, key, lock)? };
    let ((packet, body), _) = asker.first(time)?;
    Ok(name_of_body(&body).ok().filter(|_| packet.kind == Kind::Name).map(str::to_string))
}

/// Asks about all locks; waits at most `time` for the daemon.
///
/// # Errors
/// [`QueryError`] if nobody answers.
pub fn all(server: SocketAddr, key: Option<Key>, time: Duration) -> Result<ServiceStatus, QueryError> {
    let mut asker = Asker::new(server, key, ALL_LOCKS)?;
    let ((_, body), mut others) = asker.first(time)?;
    let summary = Summary::of_body(&body).map_err(|_| QueryError::NoAnswer(server, " that makes sense"))?;
    // Who joins does not take part yet, and is not asked.
    let machines = summary.machines.saturating_sub(summary.joining);
    asker.rest(&mut others, machines as usize);
    let mut busiest = Vec::new();
    for (packet, body) in &others {
        busiest.extend(Busiest::of_body(body).unwrap_or_default().into_iter().map(|one| (packet.sender.0, one)));
    }
    busiest.sort_by_key(|(machine, one)| (std::cmp::Reverse((one.waiters, one.holders)), one.lock, *machine));
    Ok(ServiceStatus { summary, busiest, silent: machines.saturating_sub(others.len() as u64) })
}
