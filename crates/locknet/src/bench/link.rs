//! How datagrams travel: a socket, many datagrams a system call.
//!
//! [`Link`] is what a client machine needs: datagrams to and from the decider. [`UdpBatch`] is UDP with recvmmsg and sendmmsg; it also
//! serves the lock server, which has many peers. Nothing here waits.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

use lockwork_lockservice::packet::MOST_BYTES;

/// Datagrams of one system call.
const BATCH: usize = 64;
/// What sockets may hold back.
const SOCKET_BYTES: libc::c_int = 8 << 20;

/// Datagrams to and from the decider.
pub trait Link: Send {
    /// Takes a datagram; it has left at the next [`Link::flush`].
    ///
    /// # Errors
    /// The system's. Datagrams that find no room are lost, which is no error.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;

    /// Sends what was taken.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn flush(&mut self) -> io::Result<()>;

    /// Gives what has come, and returns how many that were. Does not wait.
    ///
    /// # Errors
    /// The system's.
    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<usize>;
}

/// Buffers and headers of one direction. Headers point to what the vectors own on the heap, which neither grows nor shrinks
/// and is only touched through them.
struct Ring {
    headers: Vec<libc::mmsghdr>,
    _vectors: Vec<libc::iovec>,
    _addresses: Vec<libc::sockaddr_in>,
    _buffers: Vec<[u8; MOST_BYTES]>,
}

// SAFETY: the pointers lead to memory that the ring owns.
unsafe impl Send for Ring {}

impl Ring {
    fn new() -> Self {
        let mut buffers = vec![[0; MOST_BYTES]; BATCH];
        // SAFETY: all zero is an address.
        let mut addresses: Vec<libc::sockaddr_in> = vec![unsafe { std::mem::zeroed() }; BATCH];
        let base = buffers.as_mut_ptr();
        // SAFETY: there are so many buffers.
        let buffer = |n: usize| unsafe { base.add(n) };
        let vector = |n| libc::iovec { iov_base: buffer(n).cast(), iov_len: MOST_BYTES };
        let mut vectors: Vec<libc::iovec> = (0..BATCH).map(vector).collect();
        let (names, parts) = (addresses.as_mut_ptr(), vectors.as_mut_ptr());
        let header = |n: usize| {
            // SAFETY: all zero is a header without anything.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            // SAFETY: there are so many addresses and vectors.
            let (name, part) = unsafe { (names.add(n), parts.add(n)) };
            header.msg_hdr.msg_name = name.cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        let headers = (0..BATCH).map(header).collect();
        Self { headers, _vectors: vectors, _addresses: addresses, _buffers: buffers }
    }

    /// Datagram `at`, of which the system said that it has come.
    fn received(&self, at: usize) -> (&[u8], SocketAddrV4) {
        let header = &self.headers[at];
        let length = (header.msg_len as usize).min(MOST_BYTES);
        // SAFETY: the pointers are those of `new`, and the system has written so many bytes.
        let (bytes, name) = unsafe {
            let base = (*header.msg_hdr.msg_iov).iov_base.cast::<u8>();
            (std::slice::from_raw_parts(base, length), *header.msg_hdr.msg_name.cast::<libc::sockaddr_in>())
        };
        (bytes, SocketAddrV4::new(Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)), u16::from_be(name.sin_port)))
    }

    /// Writes datagram `at`.
    fn put(&mut self, at: usize, datagram: &[u8], to: Option<SocketAddrV4>) {
        assert!(datagram.len() <= MOST_BYTES);
        let header = &mut self.headers[at].msg_hdr;
        // SAFETY: the pointers are those of `new`, and the datagram fits.
        unsafe {
            let vector = &mut *header.msg_iov;
            vector.iov_len = datagram.len();
            std::ptr::copy_nonoverlapping(datagram.as_ptr(), vector.iov_base.cast::<u8>(), datagram.len());
        }
        header.msg_namelen = 0;
        if let Some(to) = to {
            header.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
            // SAFETY: as above.
            let name = unsafe { &mut *header.msg_name.cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as u16;
            name.sin_port = to.port().to_be();
            name.sin_addr.s_addr = u32::from(*to.ip()).to_be();
        }
    }
}

/// A UDP socket with many datagrams a system call.
pub struct UdpBatch {
    socket: UdpSocket,
    incoming: Ring,
    outgoing: Ring,
    waiting: usize,
}

impl UdpBatch {
    /// Binds to `address`, in the namespace of the thread that calls.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: SocketAddrV4) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            let value = std::ptr::from_ref(&SOCKET_BYTES).cast();
            // SAFETY: the value is an integer of that size, and outlives the call.
            // Without the privilege the socket stays as it is.
            unsafe {
                libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size_of::<libc::c_int>() as u32)
            };
        }
        Ok(Self { socket, incoming: Ring::new(), outgoing: Ring::new(), waiting: 0 })
    }

    /// Binds to `address` and talks to `peer` alone.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(address: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Self> {
        let link = Self::bind(address)?;
        link.socket.connect(peer)?;
        Ok(link)
    }

    /// How many datagrams have come; they can be read with [`UdpBatch::datagram`] until the next call.
    ///
    /// # Errors
    /// The system's; that nothing has come is none.
    pub fn poll(&mut self) -> io::Result<usize> {
        let headers = &mut self.incoming.headers;
        // SAFETY: every header points to buffers of its own that outlive the call.
        let count = unsafe {
            let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
            libc::recvmmsg(fd, headers.as_mut_ptr(), BATCH as u32, flags as _, std::ptr::null_mut())
        };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => passed(io::Error::last_os_error()).map(|()| 0),
        }
    }

    /// Datagram `at` of those that [`UdpBatch::poll`] counted, and where it came from.
    #[must_use]
    pub fn datagram(&self, at: usize) -> (&[u8], SocketAddrV4) {
        self.incoming.received(at)
    }

    /// Takes a datagram for `to`, or for the peer; it has left at the next [`UdpBatch::flush`].
    ///
    /// # Errors
    /// The system's.
    pub fn send_to(&mut self, datagram: &[u8], to: Option<SocketAddrV4>) -> io::Result<()> {
        self.outgoing.put(self.waiting, datagram, to);
        self.waiting += 1;
        if self.waiting == BATCH { self.flush() } else { Ok(()) }
    }

    /// Sends what was taken.
    ///
    /// # Errors
    /// The system's.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.waiting {
            let headers = &mut self.outgoing.headers[sent..self.waiting];
            // SAFETY: every header points to a datagram and an address that outlive the call.
            let count = unsafe {
                let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
                libc::sendmmsg(fd, headers.as_mut_ptr(), headers.len() as u32, flags as _)
            };
            match usize::try_from(count) {
                Ok(count) => sent += count,
                // The first of them is lost, as on any network.
                Err(_) => match passed(io::Error::last_os_error()) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        self.waiting = 0;
                        return Err(error);
                    }
                },
            }
        }
        self.waiting = 0;
        Ok(())
    }
}

/// What networks do: nothing has come, there is no room, or the peer is not there yet.
fn passed(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ECONNREFUSED) => Ok(()),
        _ => Err(error),
    }
}

impl Link for UdpBatch {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.send_to(datagram, None)
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let count = self.poll()?;
        (0..count).for_each(|at| each(self.datagram(at).0));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_several_batches_arrive_in_order_with_their_sender() {
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let address = |link: &UdpBatch| match link.socket.local_addr().expect("it is bound") {
            std::net::SocketAddr::V4(address) => address,
            other => panic!("{other}"),
        };
        let mut server = UdpBatch::bind(any).expect("there is a port");
        let mut client = UdpBatch::connect(any, address(&server)).expect("there is a port");
        let many = 2 * BATCH + 3;
        (0..many).for_each(|n| Link::send(&mut client, &vec![n as u8; n * 8]).expect("it goes"));
        Link::flush(&mut client).expect("it goes");
        let mut seen = 0;
        while seen < many {
            let count = server.poll().expect("it is a socket");
            for at in 0..count {
                let (datagram, from) = server.datagram(at);
                assert_eq!((datagram, from), (&vec![(seen + at) as u8; (seen + at) * 8][..], address(&client)));
            }
            seen += count;
        }
        server.send_to(b"back", Some(address(&client))).expect("it goes");
        server.flush().expect("it goes");
        let mut got = Vec::new();
        while client.receive(&mut |datagram| got.push(datagram.to_vec())).expect("it is a socket") == 0 {}
        assert_eq!(got, [b"back"]);
    }
}
