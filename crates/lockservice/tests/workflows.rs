//! The nine workflows of FissLock's figure 5 on a perfect network: which packets, and how many; and what follows from
//! them for fairness, time limits and large queues.

mod common;

use common::{EXCLUSIVE, MS, SHARED, Script, US};
use lockwork_lockservice::client::{Ask, Event};
use lockwork_lockservice::packet::{Kind, Waiter};
use lockwork_lockservice::word::{Machine, State, Word};

/// What is done sends these packets, and no others; then it is quiet.
#[track_caller]
fn sends(script: &mut Script, does: impl FnOnce(&mut Script), kinds: &[Kind]) {
    let from = script.sent.len();
    does(script);
    script.settle();
    assert_eq!(script.kinds(from), kinds, "\n{}", script.tell(from));
}

#[test]
fn a_lock_that_nobody_wants_costs_four_packets() {
    let mut script = Script::new(1);
    let mut request = 0;
    // (1) The decider grants a free lock, with a new agent.
    sends(&mut script, |s| request = s.acquire(1, 0, EXCLUSIVE), &[Kind::Acquire, Kind::Grant]);
    assert_eq!(script.word(0), Word { state: State::Exclusive, machine: Machine(1), incarnation: 1 });
    assert!(script.holds(1, request));
    // (7) The agent gives it back.
    sends(&mut script, |s| s.release(1, request), &[Kind::Free, Kind::Done]);
    script.finish().unwrap();
}

#[test]
fn a_reader_joins_readers_by_the_decider_and_gives_back_to_the_agent() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let mut second = 0;
    // (2) Grant and note to the agent leave the decider at the same time.
    sends(&mut script, |s| second = s.acquire(2, 0, SHARED), &[Kind::Acquire, Kind::Grant, Kind::Acquire]);
    assert!(script.holds(1, first) && script.holds(2, second));
    // (9) The decider sends it on to the agent, which acknowledges.
    sends(&mut script, |s| s.release(2, second), &[Kind::Release, Kind::Release, Kind::Ack, Kind::Ack]);
    script.finish().unwrap();
}

#[test]
fn who_must_wait_waits_with_the_agent_and_the_agent_moves_to_it() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let mut second = 0;
    // (3) The decider sends it on; the agent says that it has queued it.
    sends(&mut script, |s| second = s.acquire(2, 0, EXCLUSIVE), &[Kind::Acquire, Kind::Acquire, Kind::Ack, Kind::Ack]);
    assert!(!script.holds(2, second));
    // (8) The lock moves with its agent.
    sends(&mut script, |s| s.release(1, first), &[Kind::Move, Kind::Grant, Kind::Ack, Kind::Ack]);
    assert!(script.holds(2, second));
    assert_eq!(script.word(0), Word { state: State::Led, machine: Machine(2), incarnation: 2 });
    assert!(script.hold(2, second).unwrap().token >> 16 == 2, "the decider has made the token larger");
    script.finish().unwrap();
}

#[test]
fn what_is_local_takes_no_packet() {
    let mut script = Script::new(1);
    let mut requests = vec![script.acquire(1, 0, SHARED)];
    script.settle();
    // (4) The agent here grants a second reader.
    sends(&mut script, |s| requests.push(s.acquire(1, 0, SHARED)), &[]);
    // (5) and lets a writer wait.
    sends(&mut script, |s| requests.push(s.acquire(1, 0, EXCLUSIVE)), &[]);
    assert!(script.holds(1, requests[1]) && !script.holds(1, requests[2]));
    // (6) A holder gives back; another still holds.
    sends(&mut script, |s| s.release(1, requests[0]), &[]);
    assert!(!script.holds(1, requests[2]));
    script.run(2 * MS);
    // The decider may add readers: it is told not to, before a writer is granted.
    sends(&mut script, |s| s.release(1, requests[1]), &[Kind::Move, Kind::Grant]);
    let writer = script.hold(1, requests[2]).expect("it is next");
    // From then on it goes from task to task, each with a larger token.
    let mut next = 0;
    sends(&mut script, |s| next = s.acquire(1, 0, EXCLUSIVE), &[]);
    sends(&mut script, |s| s.release(1, requests[2]), &[]);
    assert_eq!(script.hold(1, next).expect("it is next").token, writer.token + 1);
    script.finish().unwrap();
}

#[test]
fn a_reader_elsewhere_is_granted_by_the_agent_which_then_opens_the_lock() {
    let mut script = Script::new(3);
    let writer = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let reader = script.acquire(2, 0, SHARED);
    script.settle();
    script.release(1, writer);
    script.settle();
    assert!(script.holds(2, reader));
    // The lock is led: the first reader from elsewhere is granted by the agent, and the decider told to add the next
    // ones.
    let mut others = Vec::new();
    let first = [Kind::Acquire, Kind::Acquire, Kind::Grant, Kind::Open, Kind::Grant, Kind::Done, Kind::Ack, Kind::Ack];
    sends(&mut script, |s| others.push(s.acquire(3, 0, SHARED)), &first);
    assert_eq!(script.word(0).state, State::Shared);
    let next = [Kind::Acquire, Kind::Grant, Kind::Acquire];
    sends(&mut script, |s| others.push(s.acquire(1, 0, SHARED)), &next);
    assert!(script.holds(3, others[0]) && script.holds(1, others[1]));
    script.finish().unwrap();
}

#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let mut script = Script::new(4);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let waiting: Vec<_> = [3, 2, 4, 3, 1, 2]
        .map(|machine| {
            let request = script.acquire(machine, 0, EXCLUSIVE);
            script.settle();
            (machine, request)
        })
        .to_vec();
    let mut holder = (1, first);
    let mut token = script.hold(1, first).unwrap().token;
    for next in waiting {
        script.release(holder.0, holder.1);
        script.settle();
        let hold = script.hold(next.0, next.1).unwrap_or_else(|| panic!("{next:?} is next"));
        assert!(hold.token > token);
        (holder, token) = (next, hold.token);
    }
    script.finish().unwrap();
}

#[test]
fn readers_pass_a_writer_for_a_while_and_no_longer() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let writer = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    let passes = script.acquire(3, 0, SHARED);
    script.settle();
    assert!(script.holds(3, passes), "readers are preferred");
    // After a while the agent closes the lock.
    let from = script.sent.len();
    script.run(2 * MS);
    assert!(script.kinds(from).contains(&Kind::Close));
    let waits = script.acquire(3, 0, SHARED);
    script.settle();
    assert!(!script.holds(3, waits));
    script.release(1, first);
    script.release(3, passes);
    script.settle();
    assert!(script.holds(2, writer) && !script.holds(3, waits));
    script.release(2, writer);
    script.settle();
    assert!(script.holds(3, waits));
    script.finish().unwrap();
}

#[test]
fn with_writers_first_the_decider_closes_the_lock_at_once() {
    let mut script = Script::writers_first(3);
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let writer = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    assert_eq!(script.word(0), Word { state: State::Led, machine: Machine(1), incarnation: 1 });
    let reader = script.acquire(3, 0, SHARED);
    script.settle();
    assert!(!script.holds(3, reader));
    script.release(1, first);
    script.settle();
    assert!(script.holds(2, writer) && !script.holds(3, reader));
    script.finish().unwrap();
}

#[test]
fn a_writer_becomes_a_reader_without_letting_go() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let (here, there) = (script.acquire(1, 0, SHARED), script.acquire(2, 0, SHARED));
    let writer = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    script.downgrade(1, first);
    assert!(script.holds(1, here));
    assert!(!script.holds(2, there), "the decider does not know yet that others hold");
    script.settle();
    assert!(script.holds(2, there) && !script.holds(2, writer) && script.holds(1, first));
    script.finish().unwrap();
}

#[test]
fn a_time_limit_withdraws_the_waiter_here_and_elsewhere() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let limited = Ask { timeout: Some(500 * US), ..Ask::default() };
    let (here, there) = (script.ask(1, 0, EXCLUSIVE, limited), script.ask(2, 0, EXCLUSIVE, limited));
    let patient = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    script.run(MS);
    assert!(script.events.contains(&(1, Event::TimedOut { request: here })));
    assert!(script.events.contains(&(2, Event::TimedOut { request: there })));
    assert_eq!(script.node(1).pool().view(0).unwrap().waiters.len(), 1, "only the patient one waits");
    script.release(1, first);
    script.settle();
    assert!(script.holds(2, patient));
    script.finish().unwrap();
}

#[test]
fn who_does_not_want_to_wait_is_told_at_once_and_waits_nowhere() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let once = Ask { try_only: true, ..Ask::default() };
    let (here, there) = (script.ask(1, 0, SHARED, once), script.ask(2, 0, EXCLUSIVE, once));
    script.settle();
    assert!(script.events.contains(&(1, Event::Busy { request: here })));
    assert!(script.events.contains(&(2, Event::Busy { request: there })));
    assert!(script.node(1).pool().view(0).unwrap().waiters.is_empty());
    script.release(1, first);
    script.settle();
    let free = script.ask(2, 0, EXCLUSIVE, once);
    script.settle();
    assert!(script.holds(2, free));
    script.finish().unwrap();
}

#[test]
fn an_agent_larger_than_a_packet_travels_in_several() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let waiting: Vec<_> = (0..250).map(|at| (2 + at % 2, script.acquire(2 + at % 2, 0, EXCLUSIVE))).collect();
    script.settle();
    const { assert!(250 > 2 * Waiter::A_PACKET) };
    // The parts arrive in another order, one is lost, and one comes twice.
    script.release(1, first);
    let parts = [0, 1, 2].map(|part| script.take(|one| one.packet.part == part && one.packet.parts == 3));
    assert_eq!(parts[0].packet.kind, Kind::Move);
    script.deliver(parts[2].clone());
    script.deliver(parts[2].clone());
    script.deliver(parts[0].clone());
    script.settle();
    assert!(!script.holds(2, waiting[0].1), "a part is missing");
    script.run(5 * MS);
    assert!(script.holds(2, waiting[0].1), "all parts were sent again");
    assert_eq!(script.node(2).pool().view(0).unwrap().waiters.len(), 249);
    let mut holder = waiting[0];
    for next in &waiting[1..] {
        script.release(holder.0, holder.1);
        script.settle();
        assert!(script.holds(next.0, next.1), "{next:?}");
        holder = *next;
    }
    script.finish().unwrap();
}
