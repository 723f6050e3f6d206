//! Connections between members on several machines: made, made again, and proved to be between those who share a
//! secret.
//!
//! ```text
//! connects: "LWKPART2"  from (2)  to (2)  members (2)  zero (18)  nonce (32)  cluster (16)
//! accepts:  the same, once it has read that
//! connects: first call wanted (8)  first call run (8)  proof (32)
//! accepts:  the same, once it has verified that
//! ```
//!
//! then frames ([`message`](crate::message)). A proof is BLAKE3, keyed by the secret, of the role of who proves and of
//! everything before it, in both directions. So it holds for two members, two nonces and one direction: sent back, or
//! sent on to another member, it proves nothing. Who accepts proves nothing to anybody that has not proved itself
//! first. Who connects does, because one of both has to be first; what it sends serves for this connection only.
//!
//! Of two members the one with the greater number connects. Who connects again says from which call on it wants to hear
//! what was said. A member that began behind that call cannot say it: it began with a checkpoint that is newer than
//! that of the other, which has to begin again, with the newer one.
//!
//! What follows is neither encrypted nor authenticated any more: the network between members is to be one's own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::member::{Arrival, Arrivals};
use crate::stream::{Stream, poll, poll_of};

/// Followed by one digit: the version of this protocol.
const MAGIC: &[u8; 7] = b"LWKPART";
const VERSION: u8 = b'2';
/// As long as in version 1, so that a node of that version understands that this one is of another.
const HELLO: usize = 80;
const PROOF: usize = 32;
/// First call wanted, first call run, proof.
const PROVED: usize = 16 + PROOF;
/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a handshake may take, whatever the other side sends and however slowly.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Handshakes with who connects, at a time. More connections are closed: members try again.
const MAX_HANDSHAKES: usize = 64;
/// How long before the next try to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// How long it takes to notice that links are to end.
const TICK_MS: i32 = 50;
/// After how long a connection counts as lost whose other end acknowledges nothing.
const SILENCE_MS: libc::c_int = 5000;

/// Who the members are.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) me: u16,
    /// Where each listens.
    pub(crate) addresses: Vec<String>,
    /// Of which cluster: members of another one are not talked to.
    pub(crate) cluster: [u8; 16],
    pub(crate) key: [u8; 32],
    /// The first call that this member runs.
    pub(crate) begun: u64,
}

/// The threads that make connections; dropping it ends them.
#[derive(Debug)]
pub(crate) struct Links {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What every one of these threads has.
#[derive(Clone, Debug)]
struct Making {
    members: Arc<Members>,
    arrivals: Arc<Arrivals>,
    /// The first call that may still have to be said to this member.
    wanted: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Links {
    /// Begins to connect. `wanted` is the first call of which this member may still have to hear something.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn start(
        members: Members,
        listener: &TcpListener,
        arrivals: Arc<Arrivals>,
        wanted: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let making = Making { members: Arc::new(members), arrivals, wanted, ended: ended.clone() };
        let mut links = Self { ended, threads: Vec::new() };
        let listener = listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let accepting = making.clone();
        let spawn =
            |name: &str, work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(work);
        links.threads.push(spawn("lockwork-accept", Box::new(move || accepting.accept(&listener)))?);
        for number in 0..usize::from(making.members.me) {
            let making = making.clone();
            links.threads.push(spawn("lockwork-connect", Box::new(move || making.connect(number)))?);
        }
        Ok(links)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Making {
    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn accept(&self, listener: &TcpListener) {
        let mut greeting = Vec::new();
        while !self.is_ended() {
            if poll(&mut [poll_of(listener.as_raw_fd(), libc::POLLIN)], TICK_MS).is_err() {
                std::thread::sleep(PAUSE);
            }
            greeting.retain(|thread: &JoinHandle<()>| !thread.is_finished());
            while let Ok((stream, _)) = listener.accept() {
                if greeting.len() >= MAX_HANDSHAKES {
                    continue;
                }
                // Whoever connects and says nothing must not keep members waiting.
                let making = self.clone();
                let greet = move || {
                    if let Ok((number, arrival)) = making.greet(stream, None) {
                        debug_assert_ne!(number, usize::from(making.members.me));
                        making.arrivals.come(arrival);
                    }
                };
                // Where the system has no thread to spare, it is as if the connection had not been made.
                greeting.extend(std::thread::Builder::new().name("lockwork-greet".into()).spawn(greet));
            }
        }
        greeting.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Connects to member `number` whenever there is no connection.
    fn connect(&self, number: usize) {
        while !self.is_ended() {
            if !self.arrivals.is_connected(number) {
                match self.try_connect(number) {
                    Ok(arrival) => self.arrivals.come(arrival),
                    Err(error) => {
                        let address = &self.members.addresses[number];
                        self.arrivals.note(number, Some(format!("{address}: {error}")));
                    }
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn try_connect(&self, number: usize) -> io::Result<Arrival> {
        let addresses: Vec<SocketAddr> = self.members.addresses[number].to_socket_addrs()?.collect();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return self.greet(stream, Some(number)).map(|(_, arrival)| arrival),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The handshake; `expected` is who should be at the other end, if this member connects.
    fn greet(&self, stream: TcpStream, expected: Option<usize>) -> io::Result<(usize, Arrival)> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut link = Handshake { stream, deadline: Instant::now() + HANDSHAKE_LIMIT, ended: &self.ended };
        let wanted = self.wanted.load(Ordering::Acquire);
        let mine = [wanted.to_le_bytes(), self.members.begun.to_le_bytes()].concat();
        let key = &self.members.key;
        let mut transcript = Vec::with_capacity(2 * HELLO + PROVED);
        let (from, theirs) = match expected {
            Some(number) => {
                let hello = self.hello(number as u16)?;
                link.send(&hello)?;
                let theirs = link.receive::<HELLO>()?;
                transcript.extend(hello);
                transcript.extend(theirs);
                let from = self.check_hello(&theirs, expected)?;
                link.send(&prove(key, CONNECTS, &mut transcript, &mine))?;
                let theirs = link.receive::<PROVED>().map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => refuse(
                        "it closes the connection instead of proving itself: perhaps it has another secret".into(),
                    ),
                    _ => error,
                })?;
                verify(key, ACCEPTS, &mut transcript, &theirs)?;
                (from, theirs)
            }
            None => {
                let theirs = link.receive::<HELLO>()?;
                if theirs[..MAGIC.len()] != *MAGIC {
                    return Err(refuse(NO_MEMBER.into()));
                }
                // Also to one of another version or cluster, so that it can say why it is refused.
                let hello = self.hello(u16::from_le_bytes([theirs[8], theirs[9]]))?;
                link.send(&hello)?;
                transcript.extend(theirs);
                transcript.extend(hello);
                let from = self.check_hello(&theirs, None)?;
                let theirs = link.receive::<PROVED>()?;
                verify(key, CONNECTS, &mut transcript, &theirs)?;
                link.send(&prove(key, ACCEPTS, &mut transcript, &mine))?;
                (from, theirs)
            }
        };
        let long = |at: usize| u64::from_le_bytes(theirs[at..at + 8].try_into().expect("eight bytes"));
        let (their_wanted, their_begun) = (long(0), long(8));
        if their_begun > wanted {
            let why = format!("part {} has begun with a newer checkpoint; begin again", from + 1);
            self.arrivals.end(why.clone());
            return Err(refuse(why));
        }
        notice_silence(&link.stream)?;
        let stream = Stream::of(OwnedFd::from(link.stream))?;
        Ok((from, Arrival { number: from, stream, from: their_wanted }))
    }

    /// What this member says first to member `to`.
    fn hello(&self, to: u16) -> io::Result<[u8; HELLO]> {
        let members = &*self.members;
        let mut hello = [0; HELLO];
        hello[..7].copy_from_slice(MAGIC);
        hello[7] = VERSION;
        hello[8..10].copy_from_slice(&members.me.to_le_bytes());
        hello[10..12].copy_from_slice(&to.to_le_bytes());
        hello[12..14].copy_from_slice(&(members.addresses.len() as u16).to_le_bytes());
        getrandom::fill(&mut hello[32..64]).map_err(|error| io::Error::other(error.to_string()))?;
        hello[64..80].copy_from_slice(&members.cluster);
        Ok(hello)
    }

    /// Who says so, if it may be at the other end.
    fn check_hello(&self, theirs: &[u8; HELLO], expected: Option<usize>) -> io::Result<usize> {
        let members = &*self.members;
        let count = members.addresses.len() as u16;
        let short = |at: usize| u16::from_le_bytes([theirs[at], theirs[at + 1]]);
        if theirs[..MAGIC.len()] != *MAGIC {
            return Err(refuse(NO_MEMBER.into()));
        }
        if theirs[7] != VERSION {
            return Err(refuse(format!(
                "it speaks version '{}' of the protocol between members, and this node version '{}': upgrade all nodes \
                 together",
                theirs[7].escape_ascii(),
                char::from(VERSION)
            )));
        }
        if theirs[64..80] != members.cluster {
            return Err(refuse("it is a member of another cluster".into()));
        }
        let (from, to, their_count) = (short(8), short(10), short(12));
        if their_count != count {
            return Err(refuse(format!("it says that there are {their_count} partitions, and here {count} are named")));
        }
        let in_place = match expected {
            Some(number) => usize::from(from) == number,
            None => from > members.me && from < count,
        };
        if !in_place {
            return Err(refuse(format!("it has partition {}, which is not its place", u32::from(from) + 1)));
        }
        if to != members.me {
            return Err(refuse(format!("it looks for partition {}, and this is another", u32::from(to) + 1)));
        }
        Ok(from.into())
    }
}

const NO_MEMBER: &str = "what answers there is no member of a divided cluster";
/// The roles, which make proofs of both directions different.
const CONNECTS: &[u8; 8] = b"connects";
const ACCEPTS: &[u8; 8] = b"accepts ";

fn refuse(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Appends what this member says of itself to the transcript, and returns it with the proof.
fn prove(key: &[u8; 32], role: &[u8; 8], transcript: &mut Vec<u8>, says: &[u8]) -> Vec<u8> {
    transcript.extend(says);
    let proof = proof(key, role, transcript);
    transcript.extend(proof.as_bytes());
    [says, proof.as_bytes()].concat()
}

/// Appends what the other side says of itself to the transcript.
///
/// # Errors
/// If it does not prove that it knows the secret.
fn verify(key: &[u8; 32], role: &[u8; 8], transcript: &mut Vec<u8>, theirs: &[u8; PROVED]) -> io::Result<()> {
    let (says, proved) = theirs.split_at(PROVED - PROOF);
    transcript.extend(says);
    let proof = proof(key, role, transcript);
    transcript.extend(proved);
    // Such a comparison takes equally long wherever they differ.
    if proof == <[u8; PROOF]>::try_from(proved).expect("32 bytes") {
        return Ok(());
    }
    Err(refuse("it has another secret".into()))
}

fn proof(key: &[u8; 32], role: &[u8; 8], transcript: &[u8]) -> blake3::Hash {
    blake3::Hasher::new_keyed(key).update(role).update(transcript).finalize()
}

/// A connection of which nothing is known yet.
struct Handshake<'a> {
    stream: TcpStream,
    deadline: Instant,
    ended: &'a AtomicBool,
}

impl Handshake<'_> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// So many bytes, if they come before the deadline.
    fn receive<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (mut bytes, mut at) = ([0; N], 0);
        self.stream.set_read_timeout(Some(Duration::from_millis(TICK_MS as u64)))?;
        while at < N {
            if self.ended.load(Ordering::Acquire) || Instant::now() >= self.deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not finish its handshake"));
            }
            match self.stream.read(&mut bytes[at..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => at += read,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(bytes)
    }
}

/// The key of a secret.
pub(crate) fn key(secret: &[u8]) -> [u8; 32] {
    blake3::derive_key("lockwork members of a divided cluster 2", secret)
}

/// Has the system find out about others that are gone without a word.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    let set = |level, option, value: libc::c_int| {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value lives during the call and is as long as is said.
        match unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const value).cast(), length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 2)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, SILENCE_MS)
}

#[cfg(test)]
mod tests;
