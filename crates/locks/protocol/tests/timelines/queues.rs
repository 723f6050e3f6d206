//! Agents that travel with a long queue: in parts, some of which are lost or come twice.

use crate::network::{MS, Network, letter};
use lockwork_lock_protocol::client::{Ask, Event, task_of};
use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_locking::LockMode;

const WAITERS: u32 = 260;

/// Machine 1 holds, and writers of the other machines wait, in turn. Gives the holder's request.
fn crowd(net: &mut Network, waiters: u32) -> u64 {
    let holder = net.write(1, 'a');
    for task in 0..waiters {
        let ask = Ask { task, ..Ask::default() };
        net.at(2 + (task % 3) as u16, |node, now| node.acquire(now, 7, LockMode::Exclusive, ask)).expect("it waits");
    }
    holder
}

/// Everybody holds once, and gives back; the tasks in order.
fn drain(net: &mut Network) -> Vec<u32> {
    let mut order = Vec::new();
    let mut silent = 0;
    while silent < 3 {
        let events = net.events();
        silent += 1;
        for (machine, event) in events {
            let Event::Granted { request, .. } = event else { panic!("{event:?}") };
            order.push(task_of(request));
            net.release(machine, request);
            silent = 0;
        }
        if silent > 0 {
            net.pass(400 * MS);
        }
    }
    order
}

fn parts(lines: &[String]) -> Vec<&str> {
    lines.iter().filter(|line| line.contains("part ")).map(String::as_str).collect()
}

#[test]
fn an_agent_with_a_long_queue_travels_in_parts_and_keeps_its_order() {
    let mut net = Network::new(4, false);
    let holder = crowd(&mut net, WAITERS);
    net.lines();
    assert_eq!(net.granted(), "a");
    net.release(1, holder);
    let lines = net.lines();
    let first: Vec<&str> = parts(&lines).into_iter().take(8).collect();
    // Only the first part is decided on; the others are sent on to where it goes.
    let expected = "1 -> D: move at 1 part 1 of 4 with 83
        D -> 2: grant agent at 2 part 1 of 4 with 83
        1 -> D: grant agent at 1 part 2 of 4 with 83
        D -> 2: grant agent at 1 part 2 of 4 with 83
        1 -> D: grant agent at 1 part 3 of 4 with 83
        D -> 2: grant agent at 1 part 3 of 4 with 83
        1 -> D: grant agent at 1 part 4 of 4 with 10
        D -> 2: grant agent at 1 part 4 of 4 with 10";
    assert_eq!(first, expected.lines().map(str::trim).collect::<Vec<_>>(), "{first:#?}");
    assert_eq!(drain(&mut net), (0..WAITERS).collect::<Vec<_>>());
    net.is_idle();
}

/// `fault` says how often a part arrives, given how many parts were sent before.
fn survives(fault: impl Fn(&Packet, u32) -> usize + 'static) {
    let mut net = Network::new(4, false);
    let holder = crowd(&mut net, WAITERS);
    net.events();
    let mut sent = 0;
    net.copies = Box::new(move |packet| {
        if packet.parts < 2 {
            return 1;
        }
        sent += 1;
        fault(packet, sent - 1)
    });
    net.release(1, holder);
    assert_eq!(drain(&mut net), (0..WAITERS).collect::<Vec<_>>());
    net.is_idle();
}

#[test]
fn parts_that_come_twice_change_nothing() {
    survives(|_, _| 2);
}

#[test]
fn a_lost_part_is_sent_again_with_the_whole_agent() {
    survives(|_, sent| usize::from(sent != 2));
}

#[test]
fn a_lost_first_part_is_sent_again_and_only_then_decided_on() {
    survives(|packet, sent| usize::from(packet.kind != Kind::Move || sent > 4));
}

#[test]
fn the_first_part_may_be_lost_and_the_others_come_twice() {
    survives(|packet, sent| if sent == 0 { 0 } else { 1 + usize::from(packet.part > 0) });
}

#[test]
fn a_timeout_withdraws_a_waiter_and_who_waits_behind_moves_up() {
    let mut net = Network::new(4, true);
    net.read(1, 'a');
    let ask = Ask { timeout: Some(10 * MS), ..Ask::default() };
    let writer = net.ask_as(2, 'b', LockMode::Exclusive, ask);
    net.read(3, 'c');
    assert_eq!(net.granted(), "a");
    net.pass(10 * MS - 1);
    assert_eq!(net.events(), []);
    net.lines();
    net.pass(1);
    net.expect(
        "2 -> D: release exclusive b
         D -> 1: release exclusive b
         1 -> D: ack exclusive b of release
         D -> 2: ack exclusive b of release
         1 -> D: grant shared c
         D -> 3: grant shared c
         3 -> D: ack shared c of grant
         D -> 1: ack shared c of grant",
    );
    let events = net.events();
    assert_eq!(events[0], (2, Event::TimedOut { request: writer }));
    assert!(matches!(events[1], (3, Event::Granted { request, .. }) if letter(request) == 'c'), "{events:?}");
}

#[test]
fn who_only_tries_is_told_that_the_lock_is_busy_and_leaves_nothing() {
    let mut net = Network::new(2, false);
    let ask = Ask { try_only: true, ..Ask::default() };
    let holder = net.write(1, 'a');
    net.events();
    net.lines();
    for mode in [LockMode::Shared, LockMode::Exclusive] {
        let here = net.ask_as(1, 'b', mode, ask);
        net.expect("");
        let elsewhere = net.ask_as(2, 'c', mode, ask);
        let busy = [(1, Event::Busy { request: here }), (2, Event::Busy { request: elsewhere })];
        assert_eq!(net.events(), busy);
        assert!(net.node(2).is_idle());
        assert!(net.node(1).pool().view(7).expect("the agent is here").waiters.is_empty());
        net.lines();
    }
    net.ask_as(2, 'c', LockMode::Exclusive, ask);
    net.expect(
        "2 -> D: acquire exclusive try c
         D -> 1: acquire exclusive try c
         1 -> D: ack exclusive busy c of acquire
         D -> 2: ack exclusive busy c of acquire",
    );
    net.events();
    net.release(1, holder);
    net.is_idle();
    net.ask_as(2, 'd', LockMode::Exclusive, ask);
    assert_eq!(net.granted(), "d");
}
