//! What cannot be reached from outside in reasonable time.

use super::{Ask, Client, Output};
use crate::config::{Config, Identity};
use crate::packet::{Kind, Packet};
use crate::word::Machine;
use lockwork_locking::LockMode;

#[test]
fn numbers_begin_again_without_those_that_are_in_use() {
    let mut client = Client::new(Config::new(4), Identity { machine: Machine(1), session: 1 });
    let ask = Ask { task: 7, ..Ask::default() };
    let first = client.begin(0, 0, LockMode::Exclusive, ask);
    client.counter = u32::MAX;
    let next = [1, 2].map(|lock| client.begin(0, lock, LockMode::Exclusive, ask));
    assert_eq!((first, next), (7 << 32 | 1, [7 << 32, 7 << 32 | 2]));
    assert_eq!(client.get(first).map(|request| request.lock), Some(0));
    let largest = client.begin(0, 3, LockMode::Shared, Ask { task: u32::MAX, ..ask });
    assert_eq!(largest >> 32, u64::from(u32::MAX) - 1, "that of operations");
}

/// A client that holds lock 0 from an agent on machine 2, and the grant.
fn holder() -> (Client, Packet) {
    let mut client = Client::new(Config::new(4), Identity { machine: Machine(1), session: 1 });
    let number = client.begin(0, 0, LockMode::Exclusive, Ask::default());
    let grant = Packet {
        flags: LockMode::Exclusive as u8,
        request: number,
        requester: Machine(1),
        requester_session: 1,
        sender: Machine(2),
        session: 1,
        ..Packet::new(Kind::Grant, 0)
    };
    client.granted(0, &grant);
    client.out.clear();
    (client, grant)
}

/// The answer to the last ENROL that was sent.
fn enrolled(client: &mut Client) -> Packet {
    let sent = client.out.iter().rev().find_map(|output| match output {
        Output::Packet(packet) if packet.kind == Kind::Enrol => Some(*packet),
        _ => None,
    });
    let enrol = sent.expect("it enrols");
    client.out.clear();
    Packet { kind: Kind::Ack, part: Kind::Enrol as u8, sender: Machine(2), ..enrol }
}

#[test]
fn two_questions_that_come_in_turn_are_both_answered() {
    let (mut client, _) = holder();
    assert!(!client.settle(0, 3));
    let first = enrolled(&mut client);
    assert!(!client.sweep(0, 0, 0, 6));
    let second = enrolled(&mut client);
    client.acknowledged(0, &first);
    assert!(!client.sweep(0, 0, 0, 6), "what was told before the question does not count");
    client.acknowledged(0, &second);
    assert!(client.settle(0, 3), "who enrols for the newer question does for the older, too");
    assert!(client.sweep(0, 0, 0, 6) && client.settle(0, 3));
    assert!(client.out.is_empty(), "nothing is told again");
}

#[test]
fn a_grant_of_before_a_question_is_no_enrolment() {
    let (mut client, grant) = holder();
    client.granted(0, &grant);
    assert!(!client.settle(0, 1));
    client.granted(0, &grant);
    assert!(!client.settle(0, 1));
    let answer = enrolled(&mut client);
    client.acknowledged(0, &answer);
    assert!(client.settle(0, 1));
}
