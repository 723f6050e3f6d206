//! A violation as people read it: what happened, packet by packet, and what every machine knows at the end.
//!
//! The checker looks for the shortest schedule first, so what is printed is about as short as it can be.

use super::{Action, LOCK, State};
use lockwork_lock_protocol::packet::Packet;

impl State {
    /// What a violation has to say.
    pub(crate) fn describe(&self) -> String {
        let hosts = self.hosts.iter().map(|host| {
            let node = &host.node;
            format!("{:?} {}\n  {}", node.identity(), node.pool().describe(LOCK), node.client().describe(LOCK))
        });
        let network = self.network.iter().map(|datagram| format!("  to {:?}: {:?}", datagram.to, datagram.packet));
        let lines: Vec<_> = hosts.chain(network).collect();
        format!("{:?} {:?} {:?} quiet {}\n{}", self.wrong, self.word, self.tasks, self.quiet, lines.join("\n"))
    }

    /// The packet that an action is about.
    pub(crate) fn subject(&self, action: Action) -> String {
        let (Action::Deliver(at) | Action::Copy(at) | Action::Lose(at)) = action else { return format!("{action:?}") };
        let (to, packet) = (self.network[at].to, self.network[at].packet);
        let Packet { kind, flags, state, hops, request, requester, sender, incarnation, token, .. } = packet;
        format!(
            "{action:?} to {to:?}: {kind:?} flags {flags:x} {state:?} hops {hops} request {request:x} of {} \
             from {} session {} target {} incarnation {incarnation} token {token:x} part {}",
            requester.0, sender.0, packet.session, packet.target.0, packet.part
        )
    }
}
