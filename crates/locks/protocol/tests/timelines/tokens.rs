//! Fencing tokens: every exclusive grant has a larger one, on whatever way it comes.

use crate::network::{LOCK, MS, Network};
use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::decider::TOKEN_STEP;
use lockwork_lock_protocol::packet::Kind;
use lockwork_locking::LockMode;

#[test]
fn tokens_grow_from_grant_to_grant_to_hand_over_to_migration() {
    let mut net = Network::new(3, false);
    let a = net.write(1, 'a');
    assert_eq!(net.token(), TOKEN_STEP);
    net.release(1, a);
    // By the decider again.
    let b = net.write(2, 'b');
    assert_eq!(net.token(), 2 * TOKEN_STEP);
    // Within the machine, twice.
    let c = net.write(2, 'c');
    let d = net.write(2, 'd');
    net.release(2, b);
    assert_eq!(net.token(), 2 * TOKEN_STEP + 1);
    net.release(2, c);
    assert_eq!(net.token(), 2 * TOKEN_STEP + 2);
    // To another machine.
    let e = net.write(3, 'e');
    net.release(2, d);
    assert_eq!(net.token(), 3 * TOKEN_STEP);
    net.release(3, e);
    // Readers get the end of the range, and who writes after them a new one.
    let f = net.read(1, 'f');
    assert_eq!(net.token(), 4 * TOKEN_STEP - 1);
    let g = net.read(2, 'g');
    assert_eq!(net.token(), 4 * TOKEN_STEP - 1);
    let h = net.write(1, 'h');
    net.release(2, g);
    net.release(1, f);
    assert_eq!(net.token(), 4 * TOKEN_STEP + 1);
    net.release(1, h);
    net.is_idle();
}

#[test]
fn a_token_is_larger_after_the_death_of_a_machine_that_has_handed_on_within() {
    let mut net = Network::new(2, false);
    let a = net.write(1, 'a');
    net.write(1, 'b');
    net.release(1, a);
    let before = net.token();
    net.write(2, 'c');
    net.crash(1);
    net.pass(net.config.lease + 500 * MS);
    assert!(net.token() > before);
}

#[test]
fn an_agent_that_is_taken_over_after_a_lost_grant_has_a_larger_token() {
    let mut net = Network::new(2, false);
    // The request is granted, and the grant does not arrive.
    net.lose = Some(Kind::Grant);
    net.write(1, 'a');
    net.lose = None;
    assert_eq!(net.events(), []);
    net.pass(100 * MS);
    let events = net.events();
    let [(1, Event::Granted { token, mode: LockMode::Exclusive, .. })] = events[..] else { panic!("{events:?}") };
    assert!(token > TOKEN_STEP, "{token}");
    assert_eq!(net.node(1).counters().taken_over, 1);
}

/// So many tasks of one machine get the lock one after the other that the tokens between two of the decider's are used
/// up.
#[test]
fn after_all_tokens_of_a_range_the_decider_gives_a_new_one() {
    const TASKS: u64 = TOKEN_STEP + 10;
    let mut net = Network::new(2, false);
    let ask = Ask::default();
    let mut holder = net.at(1, |node, now| node.acquire(now, LOCK, LockMode::Exclusive, ask)).expect("it is there");
    let mut token = net.token();
    let mut retaken = 0;
    net.lines();
    for _ in 0..TASKS {
        let next = net.at(1, |node, now| node.acquire(now, LOCK, LockMode::Exclusive, ask)).expect("it is there");
        net.release(1, holder);
        let grown = net.token();
        assert!(grown > token, "{grown:#x} after {token:#x}");
        (holder, token) = (next, grown);
        let lines = net.lines();
        if !lines.is_empty() {
            retaken += 1;
            assert_eq!(lines, ["1 -> D: move at 1", "D -> 1: grant agent at 2"], "the agent stays where it is");
        }
    }
    assert_eq!(retaken, 1);
    assert_eq!(token / TOKEN_STEP, 2);
    net.release(1, holder);
    net.is_idle();
}
