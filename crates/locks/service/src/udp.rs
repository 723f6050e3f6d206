//! A UDP socket that receives and sends many datagrams with one system call, in buffers that are allocated once.
//!
//! *Invariant*: no call blocks except [`Endpoint::wait`], and [`Endpoint::flush`], which waits at most 2 ms in all for
//! room in a full send buffer. What cannot be sent is dropped and counted, as a network would: hosts repeat what has
//! no answer.
//!
//! *Trade-off*: `recvmmsg` and `sendmmsg` through libc instead of portable calls: under load a system call costs more
//! than a decision, so it has to serve many packets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Most datagrams of one system call.
pub const BATCH: usize = 64;
/// What people are told when an address refuses datagrams.
pub(crate) const REFUSED: &str = " (the port is closed, or a firewall on the way refuses)";
/// Bytes of a buffer: a little more than the longest packet, so that one that is too long is seen to be.
const SLOT: usize = 1536;
/// Bytes that the kernel is asked to keep for us in either direction.
static KERNEL_BUFFER: libc::c_int = 4 << 20;
/// For how long a batch waits for room in the send buffer.
const ROOM: Duration = Duration::from_millis(2);

type Slot = [u8; SLOT];

/// Buffers of one direction with the headers that point to them.
struct Batch {
    slots: Box<[Slot]>,
    addresses: Box<[libc::sockaddr_storage]>,
    // Read by the kernel, through `headers`.
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    used: usize,
}

// SAFETY: the pointers in headers and vectors point into boxes of the same batch, which move with it and are not
// shared.
unsafe impl Send for Batch {}

const ADDRESS_BYTES: libc::socklen_t = size_of::<libc::sockaddr_storage>() as libc::socklen_t;

impl Batch {
    fn new() -> Self {
        // SAFETY: addresses, vectors and headers are plain C structures for which all bytes zero is a value.
        let (address, vector, header) = unsafe {
            (
                std::mem::zeroed::<libc::sockaddr_storage>(),
                std::mem::zeroed::<libc::iovec>(),
                std::mem::zeroed::<libc::mmsghdr>(),
            )
        };
        let mut batch = Self {
            slots: vec![[0; SLOT]; BATCH].into_boxed_slice(),
            addresses: vec![address; BATCH].into_boxed_slice(),
            vectors: vec![vector; BATCH].into_boxed_slice(),
            headers: vec![header; BATCH].into_boxed_slice(),
            used: 0,
        };
        for at in 0..BATCH {
            batch.vectors[at] = libc::iovec { iov_base: batch.slots[at].as_mut_ptr().cast(), iov_len: SLOT };
            let header = &mut batch.headers[at].msg_hdr;
            header.msg_iov = &raw mut batch.vectors[at];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut batch.addresses[at]).cast();
            header.msg_namelen = ADDRESS_BYTES;
        }
        batch
    }
}

/// A bound UDP socket with its buffers.
pub struct Endpoint {
    socket: UdpSocket,
    incoming: Batch,
    outgoing: Batch,
    connected: bool,
    unsent: u64,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Endpoint").field("socket", &self.socket).field("unsent", &self.unsent).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Binds `address`; port 0 takes any free one.
    ///
    /// # Errors
    /// What the system says: the port is taken, the address is not of this machine, or no permission.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            let bytes = (&raw const KERNEL_BUFFER).cast();
            let length = size_of::<libc::c_int>() as libc::socklen_t;
            // SAFETY: the option's value is a number that outlives the call. A refusal leaves the usual buffer.
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, bytes, length) };
        }
        Ok(Self { socket, incoming: Batch::new(), outgoing: Batch::new(), connected: false, unsent: 0 })
    }

    /// Binds any port and talks to `address` only. Then [`Endpoint::receive`] tells if nobody listens there.
    ///
    /// # Errors
    /// What the system says, such as that there is no way to that address.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let mut endpoint = Self::bind(any)?;
        endpoint.socket.connect(address)?;
        endpoint.connected = true;
        Ok(endpoint)
    }

    /// The socket, for addresses and options.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Datagrams that could not be sent.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Takes what has arrived, at most [`BATCH`] datagrams: how many. Those of the last call are gone.
    ///
    /// # Errors
    /// What the system says, except that nothing has arrived. On a connected socket this may be that nobody listens at
    /// the other end; the socket works on.
    pub fn receive(&mut self) -> io::Result<usize> {
        let used = std::mem::take(&mut self.incoming.used);
        for header in &mut self.incoming.headers[..used] {
            header.msg_hdr.msg_namelen = ADDRESS_BYTES;
        }
        let headers = self.incoming.headers.as_mut_ptr();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: BATCH headers, each with an address and a buffer of the lengths it says, all owned by
        // `self.incoming`.
        let count =
            unsafe { libc::recvmmsg(self.socket.as_raw_fd(), headers, BATCH as _, flags as _, std::ptr::null_mut()) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        self.incoming.used = count as usize;
        Ok(count as usize)
    }

    /// Datagram `at` of the last [`Endpoint::receive`], and where it came from; `None` if that is no internet address.
    #[must_use]
    pub fn datagram(&self, at: usize) -> Option<(&[u8], SocketAddr)> {
        let header = &self.incoming.headers[..self.incoming.used][at];
        let bytes = &self.incoming.slots[at][..(header.msg_len as usize).min(SLOT)];
        Some((bytes, of_system(&self.incoming.addresses[at])?))
    }

    /// Puts a datagram into the batch that goes out with the next [`Endpoint::flush`]: `parts` one behind the other. A
    /// connected socket sends it where it is connected to.
    ///
    /// # Panics
    /// If it is longer than any packet.
    pub fn push(&mut self, to: SocketAddr, parts: [&[u8]; 2]) {
        if self.outgoing.used == BATCH {
            self.flush();
        }
        let at = self.outgoing.used;
        let (head, tail) = self.outgoing.slots[at].split_at_mut(parts[0].len());
        head.copy_from_slice(parts[0]);
        tail[..parts[1].len()].copy_from_slice(parts[1]);
        self.outgoing.vectors[at].iov_len = parts[0].len() + parts[1].len();
        // A connected socket needs no address, and is faster without.
        let address_bytes = if self.connected { 0 } else { to_system(to, &mut self.outgoing.addresses[at]) };
        self.outgoing.headers[at].msg_hdr.msg_namelen = address_bytes;
        self.outgoing.used += 1;
    }

    /// As [`Endpoint::push`], to the address that the socket is connected to.
    ///
    /// # Panics
    /// If it is longer than any packet.
    pub fn push_to_peer(&mut self, datagram: &[u8]) {
        if self.outgoing.used == BATCH {
            self.flush();
        }
        let at = self.outgoing.used;
        self.outgoing.slots[at][..datagram.len()].copy_from_slice(datagram);
        self.outgoing.vectors[at].iov_len = datagram.len();
        self.outgoing.headers[at].msg_hdr.msg_namelen = 0;
        self.outgoing.used += 1;
    }

    /// Sends what was pushed. If the send buffer is full and stays so, the rest of the batch is dropped.
    pub fn flush(&mut self) {
        let used = std::mem::take(&mut self.outgoing.used);
        let mut at = 0;
        let mut full_since: Option<Instant> = None;
        while at < used {
            let headers = self.outgoing.headers[at..used].as_mut_ptr();
            let flags = libc::MSG_DONTWAIT;
            // SAFETY: the headers from `at` to `used` point to addresses and buffers that `push` has filled.
            let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), headers, (used - at) as _, flags as _) };
            if sent >= 0 {
                at += sent as usize;
                continue;
            }
            match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => {
                    let waited = full_since.get_or_insert_with(Instant::now).elapsed();
                    if waited >= ROOM || !self.poll(libc::POLLOUT, ROOM - waited) {
                        self.unsent += (used - at) as u64;
                        return;
                    }
                }
                // The first of them: nobody there, or the network refuses it. The others may be luckier.
                _ => {
                    self.unsent += 1;
                    at += 1;
                }
            }
        }
    }

    /// Waits until a datagram has arrived or the time is over. A signal ends it too.
    pub fn wait(&self, time: Duration) {
        self.poll(libc::POLLIN, time);
    }

    fn poll(&self, events: libc::c_short, time: Duration) -> bool {
        let time = libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() };
        wait_for(self.socket.as_raw_fd(), events, &time)
    }
}

/// Waits until one of `events` holds for the file.
pub(crate) fn wait_for(file: std::os::fd::RawFd, events: libc::c_short, time: &libc::timespec) -> bool {
    let mut poll = libc::pollfd { fd: file, events, revents: 0 };
    // SAFETY: one pollfd and a time, both alive during the call; no signal mask.
    unsafe { libc::ppoll(&raw mut poll, 1, time, std::ptr::null()) > 0 }
}

fn to_system(address: SocketAddr, to: &mut libc::sockaddr_storage) -> libc::socklen_t {
    let to: *mut libc::sockaddr_storage = to;
    match address {
        SocketAddr::V4(address) => {
            let system = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage is large enough and aligned for every kind of address.
            unsafe { to.cast::<libc::sockaddr_in>().write(system) };
            size_of::<libc::sockaddr_in>() as _
        }
        SocketAddr::V6(address) => {
            let system = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(system) };
            size_of::<libc::sockaddr_in6>() as _
        }
    }
}

fn of_system(address: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from: *const libc::sockaddr_storage = address;
    match libc::c_int::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let system = unsafe { from.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(system.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(system.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let system = unsafe { from.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(system.sin6_addr.s6_addr);
            let port = u16::from_be(system.sin6_port);
            // The flow information is left out: it may differ from packet to packet, and addresses are compared.
            Some(SocketAddrV6::new(ip, port, 0, system.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Network, NetworkError};
    use lockwork_testkit::or_skip;

    fn arrive(endpoint: &mut Endpoint) -> Vec<(Vec<u8>, SocketAddr)> {
        endpoint.wait(Duration::from_secs(5));
        let count = endpoint.receive().unwrap();
        (0..count).filter_map(|at| endpoint.datagram(at)).map(|(bytes, from)| (bytes.to_vec(), from)).collect()
    }

    #[test]
    fn datagrams_arrive_whole_with_their_sender() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(mut one) = Endpoint::bind(loopback.parse().unwrap()) else {
                assert!(loopback.starts_with('['), "no IPv4 here");
                continue;
            };
            let mut other = Endpoint::bind(loopback.parse().unwrap()).unwrap();
            let [from, to] = [&one, &other].map(|endpoint| endpoint.socket().local_addr().unwrap());
            for number in 0..200_u8 {
                one.push(to, [&[number; 64], &vec![7; usize::from(number)]]);
            }
            one.flush();
            let mut all = Vec::new();
            while all.len() < 200 {
                let some = arrive(&mut other);
                assert!(!some.is_empty() && some.len() <= BATCH);
                all.extend(some);
            }
            for (number, (bytes, sender)) in all.into_iter().enumerate() {
                assert_eq!(sender, from);
                assert_eq!(bytes.len(), 64 + number);
                assert!(bytes[0] == number as u8 && bytes[64..].iter().all(|byte| *byte == 7));
            }
            assert_eq!(other.receive().unwrap(), 0);
            assert_eq!(one.unsent(), 0);
        }
    }

    #[test]
    fn what_cannot_be_sent_is_counted_and_the_rest_goes_out() {
        let mut one = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut other = Endpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = other.socket().local_addr().unwrap();
        one.push("127.0.0.1:0".parse().unwrap(), [b"to nobody", b""]);
        one.push(to, [b"to ", b"somebody"]);
        one.flush();
        assert_eq!(arrive(&mut other)[0].0, b"to somebody");
        assert_eq!(one.unsent(), 1);
    }

    #[test]
    fn privileged_a_full_send_buffer_holds_a_batch_up_once() {
        let Some(network) = or_skip(Network::new(1), NetworkError::is_unavailable) else { return };
        let switch = network.switch.name();
        // Whoever has this address does not answer, so datagrams to it stay in the buffer.
        let route = ["-n", switch, "route", "add", "10.99.0.1", "dev", "port1"];
        assert!(std::process::Command::new("ip").args(route).status().expect("ip is installed").success());
        let bind = || Endpoint::bind((Network::DECIDER, 0).into()).expect("the address is there");
        let mut one = network.switch.within(bind).expect("it is there");
        let bytes: libc::c_int = 1;
        let (value, length) = ((&raw const bytes).cast(), size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the option's value is a number that outlives the call.
        unsafe { libc::setsockopt(one.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, length) };
        for _ in 0..BATCH {
            one.push("10.99.0.1:7600".parse().unwrap(), [&[0; 1000], &[]]);
        }
        let start = Instant::now();
        one.flush();
        let time = start.elapsed();
        assert!(one.unsent() > BATCH as u64 / 2, "{} of {BATCH} are dropped", one.unsent());
        assert!(time < BATCH as u32 * ROOM / 2, "{time:?}");
    }
}
