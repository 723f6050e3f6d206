//! Agents that are larger than a packet: cut into parts, and put together again.

use super::AgentPool;
use crate::branches::Branch;
use crate::packet::{AGENT, Kind, Packet, Waiter, waiters_to_body};

/// Most agents of which some parts have come and others not. An older one is dropped for a newer, and sent again.
const MAX_ARRIVING: usize = 64;

/// An agent of which not all parts have come.
#[derive(Clone, Debug, Hash)]
pub(super) struct Arriving {
    lock: u64,
    request: u64,
    /// The incarnation that it was sent with: the same request may be moved to twice.
    incarnation: u32,
    head: Option<Packet>,
    parts: Vec<Option<Vec<Waiter>>>,
}

impl AgentPool {
    /// Sends an agent on its way, in as many packets as it needs.
    pub(super) fn send_agent(&mut self, mut packet: Packet, waiters: &[Waiter]) {
        let parts = waiters.len().div_ceil(Waiter::A_PACKET).clamp(1, u8::MAX as usize);
        packet.parts = parts as u8;
        for part in 0..parts {
            let from = part * Waiter::A_PACKET;
            let until = waiters.len().min(from + Waiter::A_PACKET);
            packet.part = part as u8;
            if part > 0 {
                // Only the first part is decided on.
                packet.kind = Kind::Grant;
                packet.flags |= AGENT;
            }
            self.send(packet, waiters_to_body(&waiters[from..until]));
        }
    }

    pub(super) fn assemble(&mut self, packet: &Packet, waiters: Vec<Waiter>) -> Option<(Packet, Vec<Waiter>)> {
        if packet.parts <= 1 {
            return Some((*packet, waiters));
        }
        let (lock, request, count) = (packet.lock, packet.request, usize::from(packet.parts));
        // The decider has stamped the first with the next one.
        let incarnation = match packet.part {
            0 => self.config.profile.add(packet.incarnation, u32::MAX),
            _ => packet.incarnation,
        };
        let of =
            |a: &Arriving| (a.lock, a.request, a.incarnation, a.parts.len()) == (lock, request, incarnation, count);
        let at = self.arriving.iter().position(of).unwrap_or_else(|| {
            if self.arriving.len() == MAX_ARRIVING {
                self.arriving.pop_front();
            }
            self.arriving.push_back(Arriving { lock, request, incarnation, head: None, parts: vec![None; count] });
            self.arriving.len() - 1
        });
        let arriving = &mut self.arriving[at];
        let part = arriving.parts.get_mut(packet.part as usize)?;
        *part = Some(waiters);
        if packet.part == 0 {
            arriving.head = Some(*packet);
        }
        let head = arriving.head.filter(|_| arriving.parts.iter().all(Option::is_some))?;
        let arriving = self.arriving.remove(at).expect("it is there");
        self.branches.take(Branch::ManyParts);
        Some((head, arriving.parts.into_iter().flatten().flatten().collect()))
    }
}
