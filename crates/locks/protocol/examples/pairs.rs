//! What an uncontended acquire and release cost without a network: client, codec and decider in one thread.
//!
//! Prints nanoseconds a pair (four packets, each written and parsed), for hot and for random locks, with and without a
//! key.

use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::decider::{Sessions, Settings, Wide, decide};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Key, body, datagram, parse};
use lockwork_lock_protocol::word::Machine;
use lockwork_locking::LockMode;
use std::time::Instant;

struct One;

impl Sessions for One {
    fn session(&self, machine: Machine) -> Option<u32> {
        (machine.0 <= 1).then_some(7)
    }
}

fn main() {
    const LOCKS: u64 = 1 << 20;
    const PAIRS: u64 = 1_000_000;
    let store = Wide::new(LOCKS as usize);
    for (name, spread) in [("one lock", 0), ("random locks", 0x9e37_79b9_7f4a_7c15)] {
        for key in [None, Some(Key(*b"0123456789abcdef"))] {
            let me = Identity { machine: Machine(1), session: 7 };
            let mut node = Node::new(Config::new(LOCKS), me, 0);
            let start = Instant::now();
            let mut lock: u64 = 1;
            for _ in 0..PAIRS {
                lock = lock.wrapping_add(spread);
                let now = start.elapsed().as_nanos() as u64;
                node.acquire(now, lock >> 44, LockMode::Exclusive, Ask::default()).expect("there is such a lock");
                exchange(&store, &mut node, key.as_ref(), now);
                let Some(Event::Granted { request, .. }) = node.poll_event() else { panic!("an idle lock is granted") };
                node.release(now, request).expect("it holds");
                exchange(&store, &mut node, key.as_ref(), now);
                node.tick(now);
            }
            let ns = start.elapsed().as_nanos() as f64 / PAIRS as f64;
            println!("{name:<12}  {}  {ns:.0} ns a pair", if key.is_some() { "with key   " } else { "without key" });
            assert!(node.is_idle());
        }
    }
}

/// Everything that the node has to say, decided on, and the answers.
fn exchange(
    store: &Wide<Vec<lockwork_lock_protocol::decider::WideLock>>,
    node: &mut Node,
    key: Option<&Key>,
    now: u64,
) {
    while let Some((packet, payload)) = node.poll_packet() {
        let bytes = datagram(&packet, &payload, key);
        let (packet, _) = parse(&bytes, key).expect("what was just written");
        for (_, answer) in decide(store, &One, Settings { writers_first: false }, &packet).packets.into_iter().flatten()
        {
            let bytes = datagram(&answer, &[], key);
            let (answer, _) = parse(&bytes, key).expect("what was just written");
            node.receive(now, &answer, body(&bytes, key).expect("what was just written"));
        }
    }
}
