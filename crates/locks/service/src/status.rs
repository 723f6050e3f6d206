//! What a machine answers when people ask about locks.
//!
//! The registry knows decision words; who holds and who waits is known by agents only. So it sends the question on to
//! the machine in the word, or to all machines, and their answers back to who asked
//! ([`lockwork_lock_protocol::control`]).

use lockwork_lock_protocol::config::Identity;
use lockwork_lock_protocol::control::{ALL_LOCKS, Busiest, Participant};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{GRANTED, Kind, Packet, Waiter};
use lockwork_locking::LockMode;

/// What this machine's agents know about one lock or all.
pub(crate) fn answer(node: &Node, asked: &Packet) -> (Packet, Vec<u8>) {
    let Identity { machine, session } = node.identity();
    let packet = Packet {
        flags: GRANTED,
        request: asked.request,
        sender: machine,
        session,
        requester: machine,
        requester_session: session,
        ..Packet::new(Kind::Status, asked.lock)
    };
    let pool = node.pool();
    if asked.lock == ALL_LOCKS {
        let busiest = pool.locks().filter_map(|lock| pool.view(lock)).map(|view| Busiest {
            lock: view.lock,
            holders: view.holders.len() as u32,
            waiters: view.waiters.len() as u32,
            token: view.token,
        });
        // An agent that only stays in case that somebody asks says nothing of who is busy.
        let busiest = busiest.filter(|one| one.holders + one.waiters > 0);
        return (packet, Busiest::to_body(busiest.collect()));
    }
    let Some(view) = pool.view(asked.lock) else { return (packet, Vec::new()) };
    let mode = view.mode.unwrap_or(LockMode::Shared);
    let holds =
        |&(machine, request): &_| Participant { who: Waiter { machine, session: 0, request, mode }, holds: true };
    let mut all: Vec<_> = view.holders.iter().map(holds).collect();
    // A client without a session may ask, so the answer has no session numbers.
    let waits = |who: &Waiter| Participant { who: Waiter { session: 0, ..*who }, holds: false };
    all.extend(view.waiters.iter().map(waits));
    (packet, Participant::to_body(&all))
}
