//! Packets that come so late that what they tell of is over: the shortest forms of what the model has found.
//!
//! Each test plays one machine, and decider and network by hand, so a failure names the packet.

use lockwork_locking::LockMode;
use lockwork_lockservice::client::{Ask, Event};
use lockwork_lockservice::config::{Config, Identity};
use lockwork_lockservice::node::Node;
use lockwork_lockservice::packet::{AGENT, GRANTED, Kind, Packet, Problem};
use lockwork_lockservice::word::{Machine, State};

const LOCK: u64 = 0;
const ME: Identity = Identity { machine: Machine(2), session: 102 };

fn node() -> Node {
    Node::new(Config::new(1), ME, 0)
}

/// What a decider says about a shared request of machine `of` when the agent is at [`ME`].
fn from_decider(kind: Kind, flag: u8, of: u16, request: u64, incarnation: u32) -> Packet {
    Packet {
        flags: LockMode::Shared as u8 | flag,
        state: State::Shared,
        request,
        requester: Machine(of),
        requester_session: 100 + u32::from(of),
        sender: ME.machine,
        target: ME.machine,
        incarnation,
        token: u64::from(incarnation) << 16 | 0xffff,
        ..Packet::new(kind, LOCK)
    }
}

fn sent(node: &mut Node) -> Vec<Kind> {
    std::iter::from_fn(|| node.poll_packet()).map(|(packet, _)| packet.kind).collect()
}

#[test]
fn only_what_a_holder_itself_has_said_can_cost_it_the_lock() {
    for (said, lost) in [(Kind::Acquire, false), (Kind::Enrol, true)] {
        let mut node = node();
        let request = node.acquire(0, LOCK, LockMode::Shared, Ask::default()).unwrap();
        node.receive(0, &from_decider(Kind::Grant, AGENT, 2, request, 4), &[]);
        assert!(matches!(node.poll_event(), Some(Event::Granted { .. })));
        let mut gone = from_decider(Kind::Error, GRANTED, 2, request, 3);
        (gone.state, gone.sender, gone.part) = (State::Free, Machine::REGISTRY, said as u8);
        gone.token = Problem::NotHeld as u64;
        node.receive(0, &gone, &[]);
        assert_eq!(node.poll_event().is_some(), lost, "{said:?}");
    }
}

#[test]
fn a_late_grant_that_stops_an_agent_from_leaving_makes_it_ask_whether_it_is_one() {
    let mut node = node();
    // Incarnation 8 has been given back. All grants of before come late, for a request that is over.
    node.receive(0, &from_decider(Kind::Grant, AGENT, 2, 1, 4), &[]);
    assert_eq!(sent(&mut node), [Kind::Free]);
    node.receive(0, &from_decider(Kind::Acquire, GRANTED, 1, 1, 5), &[]);
    node.receive(0, &from_decider(Kind::Grant, AGENT, 2, 1, 7), &[]);
    assert_eq!(node.pool().decides(LOCK), None, "{}", node.pool().describe(LOCK));
    assert_eq!(sent(&mut node), [Kind::Move]);
    let request = node.acquire(0, LOCK, LockMode::Shared, Ask::default()).unwrap();
    assert_eq!(node.poll_event(), None, "{request:x} was granted by an agent that is none");
}
