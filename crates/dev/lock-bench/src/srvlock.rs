//! SrvLock, the baseline: a lock server, which has the whole state of every lock and one thread.
//!
//! Datagrams come and go 64 a system call, and the lines of the table that a batch needs are fetched before the first
//! is worked on.
//!
//! It is the server of FissLock's comparison (section 7.1, there that of NetLock). The trade-off against lock fission:
//! it needs no protocol among clients, and every packet passes through its thread.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use lockwork_lock_protocol::packet::{Kind, parse};

use super::manager::{Manager, Place};
use super::systems::Size;
use lockwork_locks::udp::Endpoint;

/// The lock server.
pub(super) struct Server {
    manager: Manager,
    /// Where machines are that have asked for a lock.
    addresses: Vec<Option<SocketAddr>>,
    endpoint: Endpoint,
    /// Datagrams that were no packets, or none that a lock server knows.
    dropped: u64,
}

impl Server {
    /// A server with these locks, all free.
    pub(super) fn new(place: Place, size: &Size<'_>, endpoint: Endpoint) -> Self {
        let manager = Manager::new(place, size.machines, size.tasks);
        Self { manager, addresses: vec![None; usize::from(size.machines) + 1], endpoint, dropped: 0 }
    }

    /// Serves what has come, a batch. Whether there was anything.
    fn round(&mut self) -> io::Result<bool> {
        let count = self.endpoint.receive()?;
        for at in 0..count {
            // Bytes 8 to 15 are the lock; what is no packet is told apart later.
            if let Some(bytes) = self.endpoint.datagram(at).and_then(|(bytes, _)| bytes.get(8..16)) {
                self.manager.prefetch(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            }
        }
        (0..count).for_each(|at| self.serve(at));
        self.endpoint.flush();
        Ok(count > 0)
    }

    /// How many locks are not free.
    pub(super) fn held(&self) -> u64 {
        self.manager.held()
    }

    /// How many datagrams it could not read.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Answers datagram `at` of those that have come.
    fn serve(&mut self, at: usize) {
        let Self { manager, addresses, endpoint, dropped } = self;
        let datagram = endpoint.datagram(at);
        let Some((packet, from)) = datagram.and_then(|(bytes, from)| Some((parse(bytes, None).ok()?.0, from))) else {
            *dropped += 1;
            return;
        };
        if packet.kind == Kind::Acquire
            && let Some(address) = addresses.get_mut(usize::from(packet.requester.0))
        {
            *address = Some(from);
        }
        let known = manager.serve(&packet, |answer| {
            // Who is granted a lock has asked; who releases one that it never asked for is told all the same.
            let to = addresses[usize::from(answer.target.0)].unwrap_or(from);
            endpoint.push(to, [&answer.header(0, None), &[]]);
        });
        *dropped += u64::from(!known);
    }
}

/// Lets servers serve, one after the other in one thread, until they are told to stop.
///
/// # Errors
/// The system's, from the sockets.
pub(super) fn run(servers: &mut [Server], stop: &AtomicBool) -> io::Result<()> {
    let mut idle = super::Idle::default();
    while !stop.load(Ordering::Relaxed) {
        let mut anything = false;
        for server in &mut *servers {
            anything |= server.round()?;
        }
        idle.round(anything);
    }
    Ok(())
}
