//! How datagrams travel between a client machine and the decider, or whoever else decides. Nothing here waits.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};

use lockwork_locks::udp::Endpoint;
use lockwork_locks::xsk::Xsk;

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

    /// Gives what has come, and returns how many that were.
    ///
    /// # Errors
    /// The system's.
    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<usize>;
}

/// A UDP socket that is connected to the decider.
pub(super) struct Udp(Endpoint);

impl Udp {
    /// From `address` to `peer`, in the namespace of the thread that calls.
    pub(super) fn connect(address: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let endpoint = Endpoint::bind(address)?;
        endpoint.socket().connect(peer)?;
        Ok(Self(endpoint))
    }
}

impl Link for Udp {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.0.push_to_peer(datagram);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush();
        Ok(())
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let count = match self.0.receive() {
            // Of something sent before: whoever is there now may not have been then.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => 0,
            count => count?,
        };
        (0..count).filter_map(|at| self.0.datagram(at)).for_each(|(datagram, _)| each(datagram));
        Ok(count)
    }
}

/// A socket that reaches several others.
pub(super) trait Open: Send {
    /// As [`Link::send`], to an address.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn send_to(&mut self, datagram: &[u8], to: SocketAddrV4) -> io::Result<()>;
}

impl Udp {
    /// From `address` to anybody, in the namespace of the thread that calls.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        Endpoint::bind(address).map(Self)
    }
}

impl Open for Udp {
    fn send_to(&mut self, datagram: &[u8], to: SocketAddrV4) -> io::Result<()> {
        self.0.push(to.into(), [datagram, &[]]);
        Ok(())
    }
}

impl Open for Xsk {
    fn send_to(&mut self, datagram: &[u8], to: SocketAddrV4) -> io::Result<()> {
        if !Self::send_to(self, datagram, to) {
            Self::flush(self)?;
            // Still without room it is lost, as on any network.
            Self::send_to(self, datagram, to);
        }
        Ok(())
    }
}

/// A socket whose datagrams go where `way` says.
pub(super) struct Steered<S, W> {
    pub(super) socket: S,
    pub(super) way: W,
}

impl<S: Open + Link, W: Fn(&[u8]) -> SocketAddrV4 + Send> Link for Steered<S, W> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let to = (self.way)(datagram);
        self.socket.send_to(datagram, to)
    }

    fn flush(&mut self) -> io::Result<()> {
        Link::flush(&mut self.socket)
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        Link::receive(&mut self.socket, each)
    }
}

impl Link for Xsk {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let peer = self.peer();
        Open::send_to(self, datagram, peer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        Ok(Self::receive(self, each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_several_batches_arrive_in_order_and_come_back() {
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let mut server = Endpoint::bind(any).expect("there is a port");
        let client = Udp::connect(any, server.socket().local_addr().expect("it is bound"));
        let mut client = client.expect("there is a port");
        let many = 2 * lockwork_locks::udp::BATCH + 3;
        (0..many).for_each(|n| client.send(&vec![n as u8; n * 8]).expect("it goes"));
        client.flush().expect("it goes");
        let (mut seen, mut from) = (0, None);
        while seen < many {
            let count = server.receive().expect("it is a socket");
            for at in 0..count {
                let (datagram, sender) = server.datagram(at).expect("it has an address");
                assert_eq!(datagram, vec![(seen + at) as u8; (seen + at) * 8]);
                from = Some(sender);
            }
            seen += count;
        }
        server.push(from.expect("somebody sent"), [b"ba", b"ck"]);
        server.flush();
        let mut got = Vec::new();
        while client.receive(&mut |datagram| got.push(datagram.to_vec())).expect("it is a socket") == 0 {}
        assert_eq!(got, [b"back"]);
    }
}
