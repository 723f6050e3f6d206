//! A node takes any packet that parses: whatever it says, in whatever order, nothing panics, and the node still works.
//!
//! Fields are drawn from few values, so that packets often fit what the node has under way; that is where harm could be
//! done.

use lockwork_lock_protocol::client::Ask;
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Kind, Packet, Waiter, body, datagram, parse, waiters_to_body};
use lockwork_lock_protocol::word::{Machine, Profile, State};
use lockwork_locking::LockMode;
use proptest::prelude::*;

const LOCKS: u64 = 2;

/// What happens to a node.
#[derive(Clone, Debug)]
enum Step {
    Packet(Box<Packet>, usize),
    /// What the node has sent comes back as if it came from somewhere.
    Echo(usize, Kind, u32),
    Acquire(u64, bool, bool),
    Release(usize),
    Downgrade(usize),
    Pass(u64),
}

fn kind() -> impl Strategy<Value = Kind> {
    proptest::sample::select(&Kind::ALL[..])
}

fn request() -> impl Strategy<Value = u64> {
    prop_oneof![1..4_u64, (0xffff_ffff_0000_0001..0xffff_ffff_0000_0008_u64), Just(u64::MAX), any::<u64>()]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..6_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn packet() -> impl Strategy<Value = Packet> {
    let who = || (0..4_u16, prop_oneof![4 => Just(7_u32), 1 => 0..9_u32]);
    let what = (kind(), 0..64_u8, 0..4_u8, 0..64_u8, 0..LOCKS + 1);
    let rest = (small(), prop_oneof![3 => 0..8_u64, 1 => any::<u64>()], 0..9_u8, 0..4_u8);
    (what, request(), who(), who(), rest).prop_map(|(what, request, requester, sender, rest)| {
        let (kind, flags, state, hops, lock) = what;
        let (incarnation, token, part, parts) = rest;
        Packet {
            flags,
            state: State::of_bits(state),
            hops: if hops < 32 { 4 } else { hops },
            request,
            requester: Machine(requester.0),
            requester_session: requester.1,
            sender: Machine(sender.0),
            session: sender.1,
            target: Machine(1),
            incarnation,
            token,
            part,
            parts,
            ..Packet::new(kind, lock)
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (packet(), 0..4_usize).prop_map(|(packet, waiters)| Step::Packet(Box::new(packet), waiters)),
        6 => (0..8_usize, kind(), small()).prop_map(|(at, kind, incarnation)| Step::Echo(at, kind, incarnation)),
        3 => (0..LOCKS, any::<bool>(), any::<bool>())
            .prop_map(|(lock, shared, once)| Step::Acquire(lock, shared, once)),
        2 => (0..4_usize).prop_map(Step::Release),
        1 => (0..4_usize).prop_map(Step::Downgrade),
        2 => prop_oneof![0..3_000_000_u64, Just(60_000_000), Just(300_000_000)].prop_map(Step::Pass),
    ]
}

/// Comes to `node` if it parses: others never get that far.
fn arrive(node: &mut Node, now: u64, packet: &Packet, payload: &[u8]) {
    let bytes = datagram(packet, payload, None);
    if let Ok((packet, _)) = parse(&bytes, None) {
        node.receive(now, &packet, body(&bytes, None).expect("it has no tag"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 300 } else { 3000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_node_takes_any_packet(
        steps in proptest::collection::vec(step(), 1..120),
        lean in any::<bool>(),
        writers_first in any::<bool>(),
    ) {
        let profile = if lean { Profile::Lean } else { Profile::Wide };
        let config = Config { profile, writers_first, ..Config::new(LOCKS) };
        let mut node = Node::new(config, Identity { machine: Machine(1), session: 7 }, 0);
        let (mut now, mut requests, mut sent) = (0, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Packet(packet, waiters) => {
                    let waiter = Waiter { machine: Machine(2), session: 7, request: 9, mode: LockMode::Shared };
                    arrive(&mut node, now, &packet, &waiters_to_body(&vec![waiter; waiters]));
                }
                Step::Echo(at, kind, incarnation) => {
                    if let Some(packet) = sent.iter().rev().nth(at) {
                        let packet: Packet = *packet;
                        arrive(&mut node, now, &Packet { kind, incarnation, target: Machine(1), ..packet }, &[]);
                    }
                }
                Step::Acquire(lock, shared, try_only) => {
                    let mode = if shared { LockMode::Shared } else { LockMode::Exclusive };
                    requests.extend(node.acquire(now, lock, mode, Ask { try_only, ..Ask::default() }).ok());
                }
                Step::Release(at) => {
                    if let Some(request) = requests.get(at) {
                        let _ = node.release(now, *request);
                    }
                }
                Step::Downgrade(at) => {
                    if let Some(request) = requests.get(at) {
                        let _ = node.downgrade(now, *request);
                    }
                }
                Step::Pass(ns) => {
                    now += ns;
                    node.tick(now);
                }
            }
            while let Some((packet, payload)) = node.poll_packet() {
                let bytes = datagram(&packet, &payload, None);
                prop_assert!(packet.kind.is_control() || parse(&bytes, None).is_ok(), "it sent {packet:?}");
                sent.push(packet);
            }
            while node.poll_event().is_some() {}
            prop_assert!(sent.len() < 100_000);
        }
    }
}
