//! Connections between members on several machines: made, made again, and proved to be between those who share a
//! secret.
//!
//! ```text
//! both:  "LWKPART1"  from (2)  to (2)  members (2)  zero (2)  first call wanted (8)  first call run (8)  nonce (32)
//!        cluster (16)
//! both:  BLAKE3 keyed by the secret, of the other's 80 bytes and one's own
//! ```
//!
//! then frames ([`message`](crate::message)). Of two members the one with the greater number connects. Who connects
//! again says from which call on it wants to hear what was said. A member that began behind that call cannot say it:
//! it began with a checkpoint that is newer than that of the other, which has to begin again, with the newer one.
//!
//! What follows is neither encrypted nor authenticated any more: the network between members is to be one's own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::member::{Arrival, Arrivals};
use crate::stream::{Stream, poll, poll_of};

const MAGIC: &[u8; 8] = b"LWKPART1";
const HELLO: usize = 80;
/// How long the other side may take for its part of a handshake.
const PATIENCE: Duration = Duration::from_secs(2);
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
        while !self.is_ended() {
            if poll(&mut [poll_of(listener.as_raw_fd(), libc::POLLIN)], TICK_MS).is_err() {
                std::thread::sleep(PAUSE);
            }
            // One after the other: there are few, and each has a limit.
            while let Ok((stream, _)) = listener.accept() {
                if let Ok((number, arrival)) = self.greet(stream, None) {
                    debug_assert_ne!(number, usize::from(self.members.me));
                    self.arrivals.come(arrival);
                }
            }
        }
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

    /// The handshake; `expected` is who should be at the other end, if that is known.
    fn greet(&self, mut stream: TcpStream, expected: Option<usize>) -> io::Result<(usize, Arrival)> {
        let refuse = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let members = &*self.members;
        let count = members.addresses.len() as u16;
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(MAGIC);
        hello[8..10].copy_from_slice(&members.me.to_le_bytes());
        // Who accepts learns who connects, and does not say whom it expects.
        hello[10..12].copy_from_slice(&expected.map_or(u16::MAX, |number| number as u16).to_le_bytes());
        hello[12..14].copy_from_slice(&count.to_le_bytes());
        hello[16..24].copy_from_slice(&self.wanted.load(Ordering::Acquire).to_le_bytes());
        hello[24..32].copy_from_slice(&members.begun.to_le_bytes());
        getrandom::fill(&mut hello[32..64]).map_err(|error| io::Error::other(error.to_string()))?;
        hello[64..80].copy_from_slice(&members.cluster);
        stream.write_all(&hello)?;
        let mut theirs = [0; HELLO];
        stream.read_exact(&mut theirs)?;
        let short = |at: usize| u16::from_le_bytes([theirs[at], theirs[at + 1]]);
        if &theirs[..8] != MAGIC {
            return Err(refuse("what answers there is no member of a divided cluster, or of another version".into()));
        }
        if theirs[64..80] != members.cluster {
            return Err(refuse("it is a member of another cluster".into()));
        }
        let (from, to, their_count) = (short(8), short(10), short(12));
        if their_count != count {
            return Err(refuse(format!("it says that there are {their_count} partitions, and here {count} are named")));
        }
        let is_expected = match expected {
            Some(number) => usize::from(from) == number,
            None => from > members.me && from < count && to == members.me,
        };
        if !is_expected {
            return Err(refuse(format!("it has partition {}, which is not its place", u32::from(from) + 1)));
        }
        stream.write_all(proof(&members.key, &theirs, &hello).as_bytes())?;
        let mut proved = [0; 32];
        stream.read_exact(&mut proved)?;
        if proof(&members.key, &hello, &theirs) != proved {
            return Err(refuse("it has another secret".into()));
        }
        let long = |at: usize| u64::from_le_bytes(theirs[at..at + 8].try_into().expect("eight bytes"));
        let (wanted, begun) = (long(16), long(24));
        if begun > u64::from_le_bytes(hello[16..24].try_into().expect("eight bytes")) {
            let why = format!("part {} has begun with a newer checkpoint; begin again", u32::from(from) + 1);
            self.arrivals.end(why.clone());
            return Err(refuse(why));
        }
        notice_silence(&stream)?;
        let stream = Stream::of(OwnedFd::from(stream))?;
        Ok((usize::from(from), Arrival { number: from.into(), stream, from: wanted }))
    }
}

/// What who said `mine` says to who said `theirs`.
fn proof(key: &[u8; 32], theirs: &[u8; HELLO], mine: &[u8; HELLO]) -> blake3::Hash {
    blake3::Hasher::new_keyed(key).update(theirs).update(mine).finalize()
}

/// The key of a secret.
pub(crate) fn key(secret: &[u8]) -> [u8; 32] {
    blake3::derive_key("lockwork members of a divided cluster 1", secret)
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
mod tests {
    use super::*;

    fn members(me: u16, addresses: &[String], cluster: u8, secret: &[u8]) -> Members {
        Members { me, addresses: addresses.to_vec(), cluster: [cluster; 16], key: key(secret), begun: 0 }
    }

    /// Whether members 0 and 1, so described, find each other, and else what 1 says of it.
    fn meet(cluster: [u8; 2], secrets: [&[u8]; 2]) -> Result<(), String> {
        let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        let mut all = Vec::new();
        for (me, listener) in listeners.iter().enumerate() {
            let (arrivals, rings) = Arrivals::new(2).unwrap();
            let arrivals = Arc::new(arrivals);
            let members = members(me as u16, &addresses, cluster[me], secrets[me]);
            let links = Links::start(members, listener, arrivals.clone(), Arc::default()).unwrap();
            all.push((arrivals, rings, links));
        }
        loop {
            if all[0].0.is_connected(1) && all[1].0.is_connected(0) {
                return Ok(());
            }
            if let Some(trouble) = all[1].0.trouble(0) {
                return Err(trouble);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn members_of_one_cluster_with_one_secret_meet() {
        assert_eq!(meet([7, 7], [b"s", b"s"]), Ok(()));
    }

    #[test]
    fn others_are_refused_and_told_why() {
        assert!(meet([7, 8], [b"s", b"s"]).unwrap_err().contains("another cluster"));
        // Which of the two ends the handshake first is not certain.
        let other = meet([7, 7], [b"s", b"t"]).unwrap_err();
        assert!(other.contains("another secret") || other.contains("reset") || other.contains("fill"), "{other}");
    }

    #[test]
    fn what_is_no_member_is_sent_away() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (arrivals, _rings) = Arrivals::new(2).unwrap();
        let members = members(0, &[address.to_string(), String::new()], 7, b"s");
        let links = Links::start(members, &listener, Arc::new(arrivals), Arc::default()).unwrap();
        for bytes in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0; 200], &[]] {
            let mut stream = TcpStream::connect(address).unwrap();
            drop(stream.write_all(bytes));
            // Who was not understood may be sent away before it has said all.
            drop(stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer));
            assert!(answer.len() <= HELLO, "{answer:?}");
        }
        drop(links);
    }
}
