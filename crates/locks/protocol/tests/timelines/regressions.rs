//! What the simulator and review have found in this crate, each as the shortest timeline that shows it.
//! docs/correctness.md lists them.

use crate::script::{EXCLUSIVE, MS, SHARED, Script};
use lockwork_lock_protocol::client::{Ask, Event};
use lockwork_lock_protocol::config::{Config, Identity};
use lockwork_lock_protocol::decider::{Sessions, Settings, Wide, decide};
use lockwork_lock_protocol::node::Node;
use lockwork_lock_protocol::packet::{AGENT, GRANTED, Kind, Packet, Problem, Waiter, waiters_to_body};
use lockwork_lock_protocol::pool::MAX_HOPS;
use lockwork_lock_protocol::word::{Machine, State};
use lockwork_locking::LockMode;

/// An agent that has given its lock back and has not heard so gets the lock anew, and a reader joins, before it hears.
#[test]
fn an_agent_that_left_and_is_back_knows_who_joined_since() {
    let mut script = Script::new(3);
    let holder = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let second = script.acquire(1, 0, SHARED);
    let late = script.take_kind(Kind::Acquire, 0);
    script.release(2, holder);
    script.settle();
    script.release(1, first);
    script.deliver_kind(Kind::Free, 0);
    script.take_kind(Kind::Done, 1);
    // The lock is free, and the agent does not know.
    script.deliver(late);
    let grant = script.take_kind(Kind::Grant, 1);
    let joined = script.acquire(2, 0, SHARED);
    script.settle();
    assert!(script.holds(2, joined) && !script.holds(1, second));
    script.deliver(grant);
    assert!(script.holds(1, second));
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.run(20 * MS);
    assert!(script.holds(2, joined) && script.holds(1, second) && !script.holds(3, writer));
    script.finish().unwrap();
}

/// The same, but the new grant is exclusive, and a note of an old reader comes in between.
#[test]
fn a_note_of_an_old_reader_does_not_stand_against_a_writer() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    let grant = script.flying[0].clone();
    script.settle();
    let joined = script.acquire(2, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    let note = script.flying.iter().find(|one| one.packet.kind == Kind::Acquire).expect("a note").clone();
    script.settle();
    script.release(2, joined);
    script.settle();
    script.release(1, first);
    script.settle();
    assert_eq!(script.word(0).state, State::Free);
    let writer = script.acquire(1, 0, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, 0);
    let new = script.take_kind(Kind::Grant, 1);
    script.deliver(grant);
    let _free = script.take_kind(Kind::Free, 0);
    script.deliver(note);
    script.deliver(new);
    assert!(script.holds(1, writer));
    script.finish().unwrap();
}

/// An agent that an old grant has made hands nothing on, neither with its old token nor at all.
#[test]
fn an_old_grant_makes_no_agent_that_grants() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, 0);
    let old = script.flying[0].clone();
    script.settle();
    script.release(1, first);
    script.settle();
    let other = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    // A packet that was sent back too often makes machine 1 believe that it has lost an agent.
    let lost = Packet {
        requester: Machine(2),
        requester_session: script.session(2),
        hops: MAX_HOPS,
        ..Packet::new(Kind::Release, 0)
    };
    script.old(0, 1, lost);
    let _moves = script.take_kind(Kind::Move, 0);
    let waits = script.acquire(1, 0, EXCLUSIVE);
    script.deliver(old);
    assert!(script.holds(2, other) && !script.holds(1, waits));
    script.finish().unwrap();
}

/// A reader that joins while its agent is giving the lock back holds when the decider has refused that, and not before.
#[test]
fn a_reader_that_joins_while_its_agent_is_leaving_is_told_when_that_is_settled() {
    let mut script = Script::new(2);
    let holder = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let second = script.acquire(1, 0, SHARED);
    let late = script.take_kind(Kind::Acquire, 0);
    script.release(2, holder);
    script.settle();
    // Opened by a reader elsewhere, so the decider adds readers.
    let reader = script.acquire(2, 0, SHARED);
    script.settle();
    script.release(2, reader);
    script.settle();
    assert_eq!(script.word(0).state, State::Shared);
    script.release(1, first);
    let free = script.take_kind(Kind::Free, 0);
    script.deliver(late);
    script.deliver_kind(Kind::Acquire, 1);
    assert!(!script.holds(1, second));
    script.deliver(free);
    script.deliver_kind(Kind::Refused, 1);
    assert!(script.holds(1, second));
    script.finish().unwrap();
}

/// Two copies of a request that does not want to wait reach an agent on its own machine.
#[test]
fn who_does_not_want_to_wait_is_told_once() {
    let mut script = Script::new(2);
    let holder = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    let next = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let once = script.ask(1, 0, EXCLUSIVE, Ask { try_only: true, ..Ask::default() });
    let late = script.take_kind(Kind::Acquire, 0);
    script.release(2, holder);
    script.settle();
    assert!(script.holds(1, next));
    script.deliver(late.clone());
    script.deliver(late);
    script.settle();
    let told = script.events.iter().filter(|event| **event == (1, Event::Busy { request: once })).count();
    assert_eq!(told, 1);
    script.finish().unwrap();
}

/// A move was done, the lock came back, and the machine that it first went to has died: the copy of the move finds
/// nobody.
#[test]
fn a_move_to_who_has_died_is_not_undone_after_it_was_done() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let second = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    let third = script.acquire(1, 0, EXCLUSIVE);
    let fourth = script.acquire(1, 0, EXCLUSIVE);
    script.release(1, first);
    script.deliver_kind(Kind::Move, 0);
    script.deliver_kind(Kind::Grant, 2);
    script.take_kind(Kind::Ack, 0);
    script.release(2, second);
    script.deliver_kind(Kind::Move, 0);
    let back = script.take_kind(Kind::Grant, 1);
    script.leave(2);
    script.pass(3 * MS);
    let copy = script.take(|one| one.packet.kind == Kind::Move && one.from == 1);
    script.deliver(copy);
    script.deliver_kind(Kind::Error, 1);
    script.deliver(back);
    script.run(20 * MS);
    assert!(script.holds(1, third) != script.holds(1, fourth));
    script.finish().unwrap();
}

/// Who waits with an agent of its own machine goes along with it when it moves, and is lost with it.
#[test]
fn who_waited_here_asks_again_when_its_agent_is_lost_elsewhere() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let second = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    let third = script.acquire(1, 0, EXCLUSIVE);
    script.release(1, first);
    script.settle();
    assert!(script.holds(2, second));
    script.leave(2);
    script.run(600 * MS);
    assert!(script.holds(1, third));
    script.finish().unwrap();
}

/// An agent believes in a holder that has given back: what confirmed it came late. Who waits does so for a while only.
#[test]
fn a_holder_that_is_none_is_found_out_while_somebody_waits() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let reader = script.acquire(2, 0, SHARED);
    script.settle();
    script.run(30 * MS);
    script.release(2, reader);
    let release = script.take_kind(Kind::Release, 0).packet;
    let done = Packet {
        kind: Kind::Ack,
        part: Kind::Release as u8,
        sender: Machine(1),
        session: script.session(1),
        ..release
    };
    script.old(1, 2, done);
    script.release(1, first);
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.run(MS);
    assert!(!script.holds(3, writer));
    script.run(600 * MS);
    assert!(script.holds(3, writer));
    script.finish().unwrap();
}

/// Grants of before an agent was taken over are void, whatever arrives afterwards.
#[test]
fn a_late_sweep_makes_no_void_grant_valid() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, 0);
    let grant = script.take_kind(Kind::Grant, 1);
    let second = script.acquire(2, 0, EXCLUSIVE);
    // It is sent back until machine 1 takes the agent over; then machine 2 is first.
    script.settle();
    assert!(script.holds(2, second) && !script.holds(1, first));
    script.old(0, 1, Packet { request: 77, requester: Machine(2), ..Packet::new(Kind::Sweep, 0) });
    script.deliver(grant);
    assert!(!script.holds(1, first));
    script.finish().unwrap();
}

/// A request was granted by the agent's successor, and is still in the queue of the agent here, which does not know
/// that it has moved.
#[test]
fn what_another_agent_granted_is_given_back_there() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let second = script.acquire(2, 0, SHARED);
    script.settle();
    let third = script.acquire(1, 0, SHARED);
    script.release(1, first);
    script.deliver_kind(Kind::Move, 0);
    script.deliver_kind(Kind::Grant, 2);
    // The acknowledgement of the agent is late.
    let ack = script.take_kind(Kind::Ack, 0);
    script.settle();
    assert!(script.holds(2, second) && script.holds(1, third));
    script.release(1, third);
    assert!(script.flying.iter().any(|one| one.packet.kind == Kind::Release), "{:?}", script.under_way());
    script.settle();
    script.deliver(ack);
    script.finish().unwrap();
}

/// A machine that was granted a lock exclusively lets readers of other machines in, and dies: the lock is not free.
#[test]
fn an_exclusive_word_means_that_only_its_machine_holds() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let reader = script.acquire(2, 0, SHARED);
    script.settle();
    script.downgrade(1, first);
    assert!(!script.holds(2, reader), "the decider has to know first");
    script.settle();
    assert!(script.holds(2, reader));
    assert_ne!(script.word(0).state, State::Exclusive);
    script.leave(1);
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.run(300 * MS);
    assert!(script.holds(2, reader) && !script.holds(3, writer));
    script.release(2, reader);
    script.run(300 * MS);
    assert!(script.holds(3, writer));
    script.finish().unwrap();
}

/// The acknowledgement of an agent that has come cannot be delivered, because who sent the agent has died.
#[test]
fn an_acknowledgement_that_does_not_arrive_takes_nobody_out() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let second = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    script.release(1, first);
    script.deliver_kind(Kind::Move, 0);
    script.deliver_kind(Kind::Grant, 2);
    script.leave(1);
    script.deliver_kind(Kind::Ack, 0);
    script.deliver_kind(Kind::Error, 2);
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.run(10 * MS);
    assert!(script.holds(2, second) && !script.holds(3, writer));
    script.finish().unwrap();
}

/// A grant by an agent whose machine has died since is late; somebody else may hold the lock by then.
#[test]
fn a_grant_of_a_dead_agent_is_void() {
    let mut script = Script::new(4);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let reader = script.acquire(2, 0, SHARED);
    script.settle();
    let other = script.acquire(3, 0, SHARED);
    script.settle();
    script.release(1, first);
    script.settle();
    assert!(script.holds(2, reader) && script.holds(3, other));
    script.release(3, other);
    script.settle();
    // The next reader is granted by the agent of machine 2, and does not hear of it.
    let last = script.acquire(3, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver_kind(Kind::Acquire, 2);
    script.deliver_kind(Kind::Grant, 0);
    let grant = script.take_kind(Kind::Grant, 3);
    assert_eq!(grant.packet.request, last);
    script.leave(2);
    script.settle();
    let writer = script.acquire(4, 0, EXCLUSIVE);
    script.run(20 * MS);
    let waits = !script.holds(3, last);
    script.deliver(grant);
    assert!(!(waits && script.holds(3, last)), "it is held by a grant of before");
    script.run(MS);
    assert!(script.holds(3, last) != script.holds(4, writer));
    script.finish().unwrap();
}

/// A waiter whose machine has died comes into a queue after everybody was told of the death.
#[test]
fn a_holder_whose_session_has_ended_is_forgotten() {
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    script.acquire(2, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    let late = script.take_kind(Kind::Acquire, 1);
    script.leave(2);
    script.run(20 * MS);
    script.deliver(late);
    script.downgrade(1, first);
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.run(20 * MS);
    script.release(1, first);
    script.run(20 * MS);
    assert!(script.holds(3, writer));
    script.finish().unwrap();
}

/// An agent's grant reaches a machine that has the number of one that died.
#[test]
fn a_grant_for_an_earlier_session_is_refused() {
    let mut script = Script::new(2);
    let grant = Packet {
        flags: 1,
        request: 5,
        requester: Machine(2),
        requester_session: script.session(2) - 500,
        sender: Machine(1),
        session: script.session(1),
        ..Packet::new(Kind::Grant, 0)
    };
    script.old(1, 2, grant);
    let answer = script.take_kind(Kind::Ack, 0).packet;
    assert!(answer.has(lockwork_lock_protocol::packet::BUSY) && answer.requester_session == grant.requester_session);
    assert!(script.node(2).is_idle());
}

struct Alone;

impl Sessions for Alone {
    fn session(&self, machine: Machine) -> Option<u32> {
        (machine == Machine(1)).then_some(7)
    }
}

/// A machine stands still beyond its lease. The first that runs again is a task that gives back.
#[test]
fn nothing_is_handed_on_after_the_lease() {
    let config = Config::new(1);
    let mut node = Node::new(config, Identity { machine: Machine(1), session: 7 }, 0);
    let store = Wide::new(1);
    let first = node.acquire(0, 0, EXCLUSIVE, Ask::default()).expect("a lock");
    let (packet, _) = node.poll_packet().expect("an ACQUIRE");
    let outputs = decide(&store, &Alone, Settings { writers_first: false }, &packet);
    let (_, grant) = outputs.packets[0].expect("a GRANT");
    assert!(grant.has(AGENT));
    node.receive(1, &grant, &[]);
    let second = node.acquire(2, 0, EXCLUSIVE, Ask::default()).expect("a lock");
    assert!(matches!(node.poll_event(), Some(Event::Granted { request, .. }) if request == first));
    assert_eq!(node.release(config.lease, first).map_err(|error| error.0), Err(first));
    assert_eq!(node.poll_event(), Some(Event::Lost { request: first, lock: 0 }));
    assert!(matches!(node.poll_event(), Some(Event::Failed { request, .. }) if request == second));
    assert_eq!((node.poll_event(), node.poll_packet()), (None, None));
}

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

/// The agent has given the lock back and has not heard that the decider took it.
#[test]
fn a_try_after_a_release_of_the_same_machine_finds_the_lock_free() {
    let mut script = Script::new(2);
    for mode in [EXCLUSIVE, SHARED] {
        let held = script.acquire(1, 0, mode);
        script.settle();
        script.release(1, held);
        let tried = script.ask(1, 0, EXCLUSIVE, Ask { try_only: true, ..Ask::default() });
        script.settle();
        assert!(script.holds(1, tried));
        script.release(1, tried);
        script.settle();
    }
    // Not so when somebody else holds.
    let held = script.acquire(1, 0, SHARED);
    script.settle();
    let joined = script.acquire(2, 0, SHARED);
    script.settle();
    script.release(1, held);
    let tried = script.ask(1, 0, EXCLUSIVE, Ask { try_only: true, ..Ask::default() });
    script.settle();
    assert!(!script.holds(1, tried) && script.holds(2, joined));
    script.release(2, joined);
    script.settle();
    script.finish().unwrap();
}

#[test]
fn a_packet_about_a_lock_that_does_not_exist_makes_no_agent() {
    let mut node = node();
    for kind in [Kind::Grant, Kind::Acquire, Kind::Release, Kind::Enrol] {
        for flag in [0, AGENT, GRANTED] {
            node.receive(0, &Packet { lock: 1, ..from_decider(kind, flag, 1, 1, 1) }, &[]);
        }
    }
    assert!(node.is_idle() && node.poll_packet().is_none());
}

#[test]
fn a_renewal_that_was_not_asked_for_yet_prolongs_nothing() {
    let mut node = node();
    let until = node.lease_until();
    let renewed = |at: u64| Packet {
        request: at,
        requester_session: ME.session,
        target: ME.machine,
        ..Packet::new(Kind::Renewed, LOCK)
    };
    node.receive(10, &renewed(u64::MAX), &[]);
    assert_eq!(node.lease_until(), until);
    node.receive(10, &renewed(9), &[]);
    assert_eq!(node.lease_until(), until + 9);
}

/// An agent sets out to the same request twice, with a queue that is shorter the second time.
#[test]
fn parts_of_two_journeys_are_not_put_together() {
    let mut node = node();
    let request = node.acquire(0, LOCK, LockMode::Exclusive, Ask::default()).unwrap();
    let waiter = |request| Waiter { machine: Machine(1), session: 101, request, mode: LockMode::Exclusive };
    let part = |incarnation: u32, part: u8, parts: u8| Packet {
        flags: LockMode::Exclusive as u8 | AGENT,
        state: State::Led,
        session: 101,
        sender: Machine(1),
        // The decider stamps the first part with the incarnation that it makes.
        incarnation: incarnation + u32::from(part == 0),
        part,
        parts,
        ..from_decider(Kind::Grant, AGENT, 2, request, 0)
    };
    node.receive(0, &part(4, 1, 3), &waiters_to_body(&[waiter(1)]));
    node.receive(0, &part(4, 2, 3), &waiters_to_body(&[waiter(2)]));
    node.receive(0, &part(7, 1, 2), &waiters_to_body(&[waiter(4)]));
    assert!(node.pool().is_empty());
    node.receive(0, &part(7, 0, 2), &waiters_to_body(&[waiter(3)]));
    let queue: Vec<_> = node.pool().view(LOCK).expect("it has come").waiters.iter().map(|one| one.request).collect();
    assert_eq!(queue, [3, 4]);
}
