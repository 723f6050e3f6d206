//! What agents of machines that have died have said, and what still arrives.

use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_lock_protocol::word::Machine;
use lockwork_locking::LockMode;

const ME: Identity = Identity { machine: Machine(2), session: 22 };
const AGENT: Identity = Identity { machine: Machine(1), session: 11 };

/// A node that waits for lock 0, its request, and the agent's late grant of it.
fn waiting() -> (Node, u64, Packet) {
    let mut node = Node::new(Config::new(1), ME, 0);
    let request = node.acquire(0, 0, LockMode::Shared, Ask::default()).expect("there is such a lock");
    let mut grant = Packet::new(Kind::Grant, 0);
    grant.flags = LockMode::Shared as u8;
    (grant.request, grant.requester, grant.requester_session) = (request, ME.machine, ME.session);
    (grant.sender, grant.session, grant.target) = (AGENT.machine, AGENT.session, ME.machine);
    (node, request, grant)
}

fn is_granted(node: &mut Node) -> bool {
    std::iter::from_fn(|| node.poll_event()).any(|event| matches!(event, Event::Granted { .. }))
}

fn died(session: u32) -> Packet {
    let mut died = Packet::new(Kind::Died, 0);
    (died.request, died.requester, died.requester_session, died.target) = (5, AGENT.machine, session, ME.machine);
    died
}

#[test]
fn what_an_agent_granted_before_it_died_is_void_afterwards() {
    let (mut node, _, grant) = waiting();
    node.receive(1000, &grant, &[]);
    assert!(is_granted(&mut node), "an agent that lives grants");

    let (mut node, _, grant) = waiting();
    node.receive(1000, &died(AGENT.session), &[]);
    // By now the registry may have given the lock to a writer.
    node.receive(2000, &grant, &[]);
    assert!(!is_granted(&mut node), "the grant of a dead agent");
}

#[test]
fn an_agent_with_the_number_of_a_dead_one_grants() {
    let (mut node, _, grant) = waiting();
    node.receive(1000, &died(AGENT.session - 1), &[]);
    node.receive(2000, &grant, &[]);
    assert!(is_granted(&mut node));
}
