//! An AF_XDP socket that carries the datagrams of one UDP port to one peer: frames go past the network stack, between
//! memory of this process and the driver.
//!
//! Ethernet, IP and UDP headers are written here. The kernel still copies frames (every driver can do that), but no
//! routes, no filters and no socket queues are in the way, and what has come is seen without a system call.
//!
//! *Invariant*: each frame of the shared memory is in one place: with the kernel for receiving, with it for sending, or
//! on the list of those that are free.
//!
//! *Trade-off*: one queue, one peer, whose hardware address has to be known, and privileges. What is not for the port
//! goes to the network stack as before.

mod program;
mod ring;

use crate::socket;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use program::Program;
use ring::{Mapping, Ring};

/// Bytes of a frame in memory.
const FRAME: usize = 2048;
/// Frames for each direction.
const FRAMES: u32 = 2048;
/// Entries of each ring. The kernel looks how many there are, takes all of these, and only then says that it has taken
/// them; so as many again may have come back by then.
const ENTRIES: u32 = 2 * FRAMES;
/// Ethernet, IPv4 without options, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Where an AF_XDP socket is, and whom it talks to.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The interface, by number, in the namespace of the thread that opens the socket.
    pub interface: u32,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Its address, and the port.
    pub address: SocketAddrV4,
    /// The hardware address of the peer, or of the router before it.
    pub peer_mac: [u8; 6],
    /// The peer's address.
    pub peer: SocketAddrV4,
}

/// An AF_XDP socket.
#[derive(Debug)]
pub struct Xsk {
    memory: Mapping,
    fill: Ring<u64>,
    completion: Ring<u64>,
    incoming: Ring<libc::xdp_desc>,
    outgoing: Ring<libc::xdp_desc>,
    /// Frames to send with.
    free: Vec<u64>,
    headers: [u8; HEADERS],
    route: Route,
    /// Datagrams come from the route's peer only.
    one_peer: bool,
    // Taken off before the socket is closed.
    _program: Program,
    socket: OwnedFd,
}

impl Xsk {
    /// Opens a socket in the namespace of the thread that calls.
    ///
    /// # Errors
    /// The kernel's: no permission (CAP_NET_RAW, CAP_BPF, CAP_NET_ADMIN), no AF_XDP, or another program on the
    /// interface.
    pub fn open(route: Route) -> io::Result<Self> {
        let socket = socket::open(libc::AF_XDP, libc::SOCK_RAW, 0)?;
        let memory = Mapping::new(2 * FRAMES as usize * FRAME, None)?;
        // SAFETY: all zero is a registration without anything.
        let mut registration: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        registration.addr = memory.at(0) as u64;
        registration.len = 2 * u64::from(FRAMES) * FRAME as u64;
        registration.chunk_size = FRAME as u32;
        set_option(&socket, libc::XDP_UMEM_REG, &registration)?;
        let rings = [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
        rings.into_iter().try_for_each(|ring| set_option(&socket, ring, &ENTRIES))?;
        let offsets = ring_offsets(&socket)?;
        let (fill_at, completion_at) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        let mut xsk = Self {
            fill: Ring::new(&socket, fill_at as libc::off_t, offsets.fr, ENTRIES)?,
            completion: Ring::new(&socket, completion_at as libc::off_t, offsets.cr, ENTRIES)?,
            incoming: Ring::new(&socket, libc::XDP_PGOFF_RX_RING, offsets.rx, ENTRIES)?,
            outgoing: Ring::new(&socket, libc::XDP_PGOFF_TX_RING, offsets.tx, ENTRIES)?,
            free: (FRAMES..2 * FRAMES).map(|frame| u64::from(frame) * FRAME as u64).collect(),
            headers: headers(&route),
            route,
            one_peer: true,
            _program: {
                bind(&socket, route.interface)?;
                Program::into_socket(route.interface, &socket, route.address.port())?
            },
            memory,
            socket,
        };
        for frame in 0..FRAMES {
            assert!(xsk.fill.produce(u64::from(frame) * FRAME as u64), "the ring is empty");
        }
        xsk.fill.publish();
        Ok(xsk)
    }

    /// Takes a datagram; it leaves at the next [`Xsk::flush`]. `false`: there is no room, and it is lost.
    ///
    /// # Panics
    /// If it does not fit into a frame.
    pub fn send(&mut self, datagram: &[u8]) -> bool {
        self.send_to(datagram, self.route.peer)
    }

    /// Where [`Xsk::send`] sends.
    #[must_use]
    pub fn peer(&self) -> SocketAddrV4 {
        self.route.peer
    }

    /// From now on datagrams of others than the peer are given too, from wherever its router brings them.
    pub fn take_from_all(&mut self) {
        self.one_peer = false;
    }

    /// As [`Xsk::send`], by the peer's hardware address to somebody behind it.
    ///
    /// # Panics
    /// As [`Xsk::send`].
    pub fn send_to(&mut self, datagram: &[u8], to: SocketAddrV4) -> bool {
        assert!(HEADERS + datagram.len() <= FRAME, "a datagram of {} bytes", datagram.len());
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(frame) = self.free.pop() else { return false };
        let mut headers = self.headers;
        let udp = 8 + datagram.len() as u16;
        headers[30..34].copy_from_slice(&to.ip().octets());
        headers[36..38].copy_from_slice(&to.port().to_be_bytes());
        headers[16..18].copy_from_slice(&(20 + udp).to_be_bytes());
        headers[38..40].copy_from_slice(&udp.to_be_bytes());
        let sum = checksum(&headers[14..34]);
        headers[24..26].copy_from_slice(&sum.to_be_bytes());
        let at = self.memory.at(frame as usize);
        // SAFETY: the frame is ours, and both parts fit, as was looked at above.
        unsafe {
            std::ptr::copy_nonoverlapping(headers.as_ptr(), at, HEADERS);
            std::ptr::copy_nonoverlapping(datagram.as_ptr(), at.add(HEADERS), datagram.len());
        }
        let entry = libc::xdp_desc { addr: frame, len: (HEADERS + datagram.len()) as u32, options: 0 };
        assert!(self.outgoing.produce(entry), "there are more entries than frames");
        true
    }

    /// Sends what was taken.
    ///
    /// # Errors
    /// The system's. That the driver is busy is none: the rest leaves with the next call.
    pub fn flush(&mut self) -> io::Result<()> {
        self.outgoing.publish();
        let mut left = self.outgoing.untaken();
        while left > 0 {
            let (null, fd) = (std::ptr::null(), self.socket.as_raw_fd());
            // SAFETY: nothing is passed.
            let result = unsafe { libc::sendto(fd, null, 0, libc::MSG_DONTWAIT, null.cast(), 0) };
            let error = if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 };
            let now = self.outgoing.untaken();
            match error {
                // One call takes a batch, and says EAGAIN if there is more.
                0 | libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR if now == left => break,
                0 | libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR => left = now,
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
        self.reclaim();
        Ok(())
    }

    fn reclaim(&mut self) {
        let before = self.free.len();
        while let Some(frame) = self.completion.consume() {
            self.free.push(frame);
        }
        if self.free.len() > before {
            self.completion.give_back();
        }
    }

    /// Gives the datagrams that have come from the peer, and returns how many that were. Does not wait.
    pub fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        let (mut frames, mut datagrams) = (0, 0);
        while let Some(entry) = self.incoming.consume() {
            frames += 1;
            // SAFETY: the kernel has put so many bytes there, and the frame is ours until it is given back below.
            let frame = unsafe { std::slice::from_raw_parts(self.memory.at(entry.addr as usize), entry.len as usize) };
            if let Some(datagram) = self.datagram_of(frame) {
                datagrams += 1;
                each(datagram);
            }
            let start = entry.addr - entry.addr % FRAME as u64;
            assert!(self.fill.produce(start), "there are more entries than frames");
            // A batch: others may come while these are worked on, and have to wait for their turn.
            if frames == 64 {
                break;
            }
        }
        if frames > 0 {
            self.incoming.give_back();
            self.fill.publish();
            if self.fill.wants_call() {
                let fd = self.socket.as_raw_fd();
                // SAFETY: nothing is passed. The kernel takes the frames; it answers that nothing has come.
                unsafe {
                    libc::recvfrom(
                        fd,
                        std::ptr::null_mut(),
                        0,
                        libc::MSG_DONTWAIT,
                        std::ptr::null_mut(),
                        std::ptr::null_mut(),
                    )
                };
            }
        }
        datagrams
    }

    /// What a frame carries, if it is whole and from the peer. The program has looked at kind and port.
    fn datagram_of<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let (headers, rest) = frame.split_first_chunk::<HEADERS>()?;
        let u16_at = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
        let fragment = u16_at(20) & 0x3fff != 0;
        let peer = headers[26..30] == self.route.peer.ip().octets() && u16_at(34) == self.route.peer.port();
        let own = headers[30..34] == self.route.address.ip().octets();
        if fragment || (self.one_peer && !peer) || !own {
            return None;
        }
        rest.get(..usize::from(u16_at(38)).checked_sub(8)?)
    }
}

/// Headers of a datagram, without lengths, checksum, and where it goes.
fn headers(route: &Route) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    headers[0..6].copy_from_slice(&route.peer_mac);
    headers[6..12].copy_from_slice(&route.mac);
    headers[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
    headers[14] = 0x45;
    // Not to be fragmented; 64 hops; UDP, whose checksum may be zero.
    headers[20] = 0x40;
    headers[22] = 64;
    headers[23] = 17;
    headers[26..30].copy_from_slice(&route.address.ip().octets());
    headers[34..36].copy_from_slice(&route.address.port().to_be_bytes());
    headers
}

/// The checksum of an IP header whose own is zero.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

fn set_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, length) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value has the option's layout, and outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ring_offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all zero is a value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), (&raw mut offsets).cast());
    // SAFETY: there is room for as many bytes as the length says.
    match unsafe { libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, value, &raw mut length) } {
        0 if length as usize == size_of::<libc::xdp_mmap_offsets>() => Ok(offsets),
        // Before Linux 5.4 rings had no flags.
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// For how long a queue may still be somebody else's: on a busy machine the kernel takes its time.
const IN_USE: Duration = Duration::from_secs(10);

fn bind(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let (value, length) = (std::ptr::from_ref(&address).cast(), size_of_val(&address) as libc::socklen_t);
    let start = Instant::now();
    loop {
        // SAFETY: the address is one of this family, and outlives the call.
        if unsafe { libc::bind(socket.as_raw_fd(), value, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // The kernel gives a queue free some time after the socket that had it was closed.
        if error.raw_os_error() != Some(libc::EBUSY) || start.elapsed() > IN_USE {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Network, NetworkError};
    use lockwork_testkit::or_skip;
    use std::net::UdpSocket;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // The example of RFC 1071, section 3.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn privileged_datagrams_go_to_a_socket_of_the_system_and_come_back() {
        let Some(network) = or_skip(Network::new(1), NetworkError::is_unavailable) else { return };
        let machine = &network.machines[0];
        let peer = SocketAddrV4::new(Network::DECIDER, 7600);
        let address = SocketAddrV4::new(machine.near.address, 7601);
        let (near, far) = (machine.near, machine.far);
        let route = Route { interface: near.index, mac: near.mac, address, peer_mac: far.mac, peer };
        let server =
            network.switch.within(|| UdpSocket::bind(peer).expect("the address is there")).expect("it is there");
        server.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("it is a socket");
        let mut client = machine.namespace.within(|| Xsk::open(route)).expect("it is there").expect("AF_XDP is there");
        // More than there are frames, so that frames are used again.
        for number in 0..3 * FRAMES {
            let length = (number % 1400) as usize;
            assert!(client.send(&vec![number as u8; length]));
            client.flush().expect("it goes");
            let mut buffer = [0; 2048];
            let (bytes, from) = server.recv_from(&mut buffer).expect("it arrives");
            assert_eq!((&buffer[..bytes], from), (&vec![number as u8; length][..], address.into()));
            server.send_to(&buffer[..bytes], from).expect("there is a way back");
            let mut back = Vec::new();
            while client.receive(&mut |datagram| back.push(datagram.to_vec())) == 0 {}
            assert_eq!(back, [vec![number as u8; length]]);
        }
        // The queue can be had again, and by one at a time.
        let open = || machine.namespace.within(|| Xsk::open(route)).expect("it is there");
        assert_eq!(open().expect_err("it is taken").raw_os_error(), Some(libc::EBUSY));
        drop(client);
        let _client = open().expect("it is free");
        // Another port is the network stack's.
        let other = machine.namespace.within(|| UdpSocket::bind((near.address, 7602)).expect("it is free"));
        let other = other.expect("it is there");
        server.send_to(b"past the filter", (near.address, 7602)).expect("it goes");
        other.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("it is a socket");
        assert_eq!(other.recv_from(&mut [0; 64]).expect("it arrives").0, 15);
    }
}
