//! Holes of the paper's protocol, each as a timeline that ends well here and badly under the paper's rule.
//!
//! A timeline is played twice: with the decider of this crate, and with one in which a single rule is the paper's.
//! Packets that are late or lost are taken out of the network by name. What "badly" means is found by the same checker:
//! somebody is granted what another holds, or at the end somebody waits for ever.

use crate::script::{EXCLUSIVE, Flying, Locks, MS, Numbers, Rule, SHARED, Script, US, name, ours};
use lockwork_lock_protocol::client::Ask;
use lockwork_lock_protocol::decider::{Outputs, Store, To};
use lockwork_lock_protocol::packet::{HEADER, Key, Kind, MAX_BYTES, Malformed, Packet, Waiter, parse};
use lockwork_lock_protocol::word::{Machine, State, Word};
use std::collections::BTreeMap;

/// The rule of this crate, but for packets about which `paper` has something else to say.
fn but(paper: impl Fn(&Locks, &Packet, Word) -> Option<Outputs> + 'static) -> Rule {
    let mut ours = ours(false);
    Box::new(move |store, sessions, packet| {
        paper(store, packet, store.load(packet.lock)).unwrap_or_else(|| ours(store, sessions, packet))
    })
}

fn write(store: &Locks, lock: u64, word: Word) {
    assert!(store.swap(lock, store.load(lock), word));
}

/// An answer to the sender.
fn answer(kind: Kind, packet: &Packet, word: Word) -> Option<Outputs> {
    let mut one = Packet { kind, target: packet.sender, ..*packet };
    one.stamp(word, 0);
    Some(Outputs { packets: [Some((To::Source, one)), None], payload: false })
}

const fn free(word: Word) -> Word {
    Word { state: State::Free, machine: Machine(0), ..word }
}

#[track_caller]
fn ends_well_here_and_badly_there(timeline: impl Fn(Script) -> Result<(), String>, paper: Rule, badly: &str) {
    timeline(Script::new(4)).expect("ends well");
    let why = timeline(Script::with(4, false, paper)).expect_err("the paper's rule has a hole");
    assert!(why.contains(badly), "{why}");
}

const TWO_HOLD: &str = "mutual exclusion";
const FOR_EVER: &str = "no rest";

/// Whoever holds gives back after a while, and so on, until nobody holds or waits.
fn all_are_served(mut script: Script) -> Result<(), String> {
    script.finish()
}

/// Section 4.2: the switch remembers the highest number of each server and takes lower ones for duplicates. A FREE that
/// another packet overtook is one of them: it is acknowledged, and the lock is never free again.
#[test]
fn a_packet_that_was_overtaken_is_no_duplicate() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, EXCLUSIVE);
        script.settle();
        script.release(1, first);
        let free = script.take_kind(Kind::Free, 0);
        script.acquire(1, 1, EXCLUSIVE);
        script.settle();
        script.deliver(free);
        script.acquire(2, 0, EXCLUSIVE);
        all_are_served(script)
    };
    timeline(Script::new(4)).expect("ends well");

    let mut ours = ours(false);
    let numbers = Numbers::default();
    let known = numbers.clone();
    let mut highest = BTreeMap::new();
    let paper: Rule = Box::new(move |store, sessions, packet| {
        let number = known.borrow().get(&(packet.sender.0, name(packet))).copied().unwrap_or(u64::MAX);
        let seen = highest.entry(packet.sender).or_insert(0);
        if packet.kind == Kind::Free && number < *seen {
            return answer(Kind::Done, packet, store.load(packet.lock)).expect("an answer");
        }
        *seen = number.max(*seen);
        ours(store, sessions, packet)
    });
    let mut script = Script::with(4, false, paper);
    script.numbers = numbers;
    let why = timeline(script).expect_err("the paper's rule has a hole");
    assert!(why.contains(FOR_EVER), "{why}");
}

/// Section 4.2: a client that misses its grant sends RELEASE, and the switch frees the lock if that comes from the
/// agent's server. If the lost grant was shared, another reader may hold the lock by then.
#[test]
fn a_release_after_a_lost_grant_frees_nobody_elses_lock() {
    let timeline = |mut script: Script| {
        let first = script.ask(1, 0, SHARED, Ask { timeout: Some(MS), ..Ask::default() });
        script.deliver_kind(Kind::Acquire, 0);
        let lost = script.take_kind(Kind::Grant, 1);
        assert_eq!(lost.packet.request, first);
        let second = script.acquire(2, 0, SHARED);
        script.deliver_kind(Kind::Acquire, 0);
        script.deliver_kind(Kind::Grant, 2);
        assert!(script.holds(2, second));
        script.take_kind(Kind::Acquire, 1);
        script.pass(MS);
        script.deliver_kind(Kind::Release, 0);
        script.acquire(3, 0, EXCLUSIVE);
        script.run(200 * MS);
        if script.violation.is_none() {
            assert!(script.holds(2, second));
        }
        all_are_served(script)
    };
    let paper = but(|store, packet, word| {
        let frees = packet.kind == Kind::Release && word.state != State::Free && packet.sender == word.machine;
        frees.then(|| write(store, packet.lock, free(word)))?;
        answer(Kind::Ack, packet, free(word))
    });
    ends_well_here_and_badly_there(timeline, paper, TWO_HOLD);
}

/// A RELEASE that reaches a free lock must not write. A decider that treats it as one of the agent's leaves the lock
/// held by nobody.
#[test]
fn a_release_that_reaches_a_free_lock_changes_nothing() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, EXCLUSIVE);
        script.settle();
        script.ask(2, 0, EXCLUSIVE, Ask { timeout: Some(MS), ..Ask::default() });
        script.settle();
        script.pass(MS);
        let late = script.take_kind(Kind::Release, 0);
        script.release(1, first);
        script.settle();
        assert_eq!(script.word(0).state, State::Free);
        script.deliver(late);
        script.acquire(3, 0, EXCLUSIVE);
        all_are_served(script)
    };
    let paper = but(|store, packet, word| {
        if packet.kind == Kind::Release && word.state == State::Free {
            write(store, packet.lock, Word { state: State::Led, ..word });
            return answer(Kind::Ack, packet, word);
        }
        None
    });
    ends_well_here_and_badly_there(timeline, paper, FOR_EVER);
}

/// Figure 8, lines 14 and 15: a FREE frees, whoever sent it, and only in shared mode its incarnation is looked at. A
/// late copy frees what another machine holds by then.
#[test]
fn a_late_free_of_another_machine_frees_nothing() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, EXCLUSIVE);
        script.settle();
        script.release(1, first);
        let late = script.take_kind(Kind::Free, 0);
        script.deliver(late.clone());
        script.settle();
        let second = script.acquire(2, 0, EXCLUSIVE);
        script.settle();
        assert!(script.holds(2, second));
        script.deliver(late);
        script.acquire(3, 0, EXCLUSIVE);
        script.settle();
        all_are_served(script)
    };
    let paper = but(|store, packet, word| {
        let frees = packet.kind == Kind::Free && matches!(word.state, State::Exclusive | State::Led);
        frees.then(|| write(store, packet.lock, free(word)))?;
        answer(Kind::Done, packet, free(word))
    });
    ends_well_here_and_badly_there(timeline, paper, TWO_HOLD);
}

/// Figure 8, lines 16 to 19: a GRANT with agent makes its target the agent's server; again only shared locks are
/// compared. A late copy takes the lock away from who holds it.
#[test]
fn a_late_copy_of_a_move_moves_nothing() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, EXCLUSIVE);
        script.settle();
        let second = script.acquire(2, 0, EXCLUSIVE);
        script.settle();
        script.release(1, first);
        let late = script.take_kind(Kind::Move, 0);
        script.deliver(late.clone());
        script.settle();
        script.release(2, second);
        script.settle();
        let third = script.acquire(3, 0, EXCLUSIVE);
        script.settle();
        assert!(script.holds(3, third));
        script.deliver(late);
        script.acquire(4, 0, EXCLUSIVE);
        script.run(20 * MS);
        all_are_served(script)
    };
    let paper = but(|store, packet, word| {
        let moves = packet.kind == Kind::Move && matches!(word.state, State::Exclusive | State::Led);
        let mut one = Packet { kind: Kind::Grant, ..*packet };
        moves.then_some(())?;
        let new = Word { state: State::Led, machine: packet.target, incarnation: word.incarnation + 1 };
        write(store, packet.lock, new);
        one.flags |= lockwork_lock_protocol::packet::AGENT;
        (one.state, one.incarnation, one.token) = (new.state, new.incarnation, store.next_token(packet.lock));
        Some(Outputs { packets: [Some((To::Machine(packet.target), one)), None], payload: true })
    });
    ends_well_here_and_badly_there(timeline, paper, TWO_HOLD);
}

/// A second copy of an ACQUIRE finds the lock free again, and it is granted to a client that no longer waits. Requests
/// have numbers here, and unknown grants are given back; the paper's client takes no note.
#[test]
fn a_lock_granted_to_who_no_longer_waits_is_given_back() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, EXCLUSIVE);
        let late = script.flying[0].clone();
        script.settle();
        script.release(1, first);
        script.settle();
        script.deliver(late);
        assert_eq!(script.word(0).machine, Machine(1));
        script.settle();
        script.acquire(2, 0, EXCLUSIVE);
        script.run(MS);
        all_are_served(script)
    };
    timeline(Script::new(4)).expect("ends well");
    // The paper's client has nothing to take an agent over with either.
    let paper = but(|_, packet, _| {
        let itself = packet.kind == Kind::Move && packet.sender == packet.target;
        itself.then_some(Outputs { packets: [None; 2], payload: false })
    });
    let mut script = Script::with(4, false, paper);
    script.ignores_unknown_grants = true;
    let why = timeline(script).expect_err("the paper's rule has a hole");
    assert!(why.contains(FOR_EVER), "{why}");
}

/// The paper's incarnation has 8 bits. After 256 readers that the agent has not heard of it is the same again.
#[test]
fn readers_that_were_not_heard_of_are_counted_beyond_256() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, SHARED);
        script.settle();
        let readers: Vec<_> = (0..256).map(|_| script.acquire(2, 0, SHARED)).collect();
        for _ in &readers {
            script.deliver_kind(Kind::Acquire, 0);
        }
        // They know, and the agent does not.
        for _ in &readers {
            script.take_kind(Kind::Acquire, 1);
            script.deliver_kind(Kind::Grant, 2);
        }
        assert!(readers.iter().all(|reader| script.holds(2, *reader)));
        script.release(1, first);
        script.deliver_kind(Kind::Free, 0);
        let writer = script.acquire(3, 0, EXCLUSIVE);
        script.settle();
        if script.violation.is_none() {
            script.run(MS);
            assert!(!script.holds(3, writer));
        }
        all_are_served(script)
    };
    let paper = but(|store, packet, word| {
        let matches = packet.incarnation as u8 == word.incarnation as u8;
        let frees = packet.kind == Kind::Free && packet.sender == word.machine && matches;
        frees.then(|| write(store, packet.lock, free(word)))?;
        answer(Kind::Done, packet, free(word))
    });
    ends_well_here_and_badly_there(timeline, paper, TWO_HOLD);
}

/// Section 4.2: the decider resets the incarnation when it gives the lock away anew. So the word is the same again, and
/// a late FREE of the last time fits.
#[test]
fn an_incarnation_never_begins_again() {
    let timeline = |mut script: Script| {
        let first = script.acquire(1, 0, SHARED);
        script.settle();
        script.release(1, first);
        let late = script.take_kind(Kind::Free, 0);
        script.deliver(late.clone());
        script.settle();
        let again = script.acquire(1, 0, SHARED);
        script.settle();
        assert!(script.holds(1, again));
        script.deliver(late);
        script.acquire(3, 0, EXCLUSIVE);
        script.settle();
        all_are_served(script)
    };
    let mut ours = ours(false);
    let paper: Rule = Box::new(move |store, sessions, packet| {
        let before = store.load(packet.lock);
        let mut outputs = ours(store, sessions, packet);
        let after = store.load(packet.lock);
        if before.state == State::Free && after.state != State::Free {
            write(store, packet.lock, Word { incarnation: 1, ..after });
            outputs.packets.iter_mut().flatten().for_each(|(_, packet)| packet.incarnation = 1);
        }
        outputs
    });
    ends_well_here_and_badly_there(timeline, paper, TWO_HOLD);
}

/// An agent travels in one packet in the paper. With 250 waiters it does not fit; here it takes three
/// (`an_agent_larger_than_a_packet_travels_in_several`).
#[test]
fn an_agent_with_many_waiters_fits_into_no_packet() {
    let paper = |waiters: usize| HEADER + waiters * Waiter::BYTES + 8;
    assert!(paper(250) > 2 * MAX_BYTES && paper(Waiter::A_PACKET) <= MAX_BYTES);
    let mut script = Script::new(3);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    (0..251).for_each(|_| _ = script.acquire(2, 0, EXCLUSIVE));
    script.settle();
    script.release(1, first);
    let parts: Vec<Flying> = script.flying.drain(..).collect();
    assert_eq!(parts.iter().map(|part| part.packet.part).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(parts.iter().map(|part| part.body.len() / Waiter::BYTES).sum::<usize>(), 250);
}

/// A machine that stood still writes with a lock that it has lost. The token tells; a grant of the paper has none.
#[test]
fn who_lost_the_lock_without_knowing_is_refused_by_its_token() {
    let mut script = Script::new(2);
    let paused = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    let old = script.hold(1, paused).expect("it holds").token;
    // It stands still, its lease runs out, and the lock is given to another.
    script.leave(1);
    script.run(50 * MS);
    let next = script.acquire(2, 0, EXCLUSIVE);
    script.run(50 * MS);
    let new = script.hold(2, next).expect("it holds now").token;

    let writes = [(new, "new"), (old, "old")];
    let stored = |fenced: bool| {
        let (mut newest, mut value) = (0, "");
        for (token, written) in writes {
            if !fenced || token >= newest {
                (newest, value) = (token, written);
            }
        }
        value
    };
    assert_eq!((stored(true), stored(false)), ("new", "old"));
}

/// Nothing authenticates a packet in the paper. Here one without the cluster's key is none.
#[test]
fn a_packet_without_the_key_frees_nothing() {
    let mut script = Script::new(2);
    let holder = script.acquire(1, 0, EXCLUSIVE);
    script.settle();
    // Somebody makes a FREE up, in the name of the agent's machine.
    let (word, session) = (script.word(0), script.session(1));
    let made_up = Packet {
        sender: Machine(1),
        session,
        requester: Machine(1),
        requester_session: session,
        ..Packet::new(Kind::Free, 0)
    };
    let made_up = Packet { incarnation: word.incarnation, ..made_up };
    for (key, refused) in [(Some(Key([3; 16])), true), (None, false)] {
        let bytes = made_up.header(0, None);
        match parse(&bytes, key.as_ref()) {
            Err(why) => assert!(refused && why == Malformed::Tag),
            Ok((packet, _)) => {
                assert!(!refused, "a packet without tag was taken");
                script.deliver(Flying { from: 1, to: 0, packet, body: Vec::new() });
            }
        }
        assert_eq!(script.word(0).state == State::Free, !refused);
    }
    assert!(script.holds(1, holder), "and its task believes that it holds");
}

/// Not the paper's, but one that this crate had: a decider that knows an agent's move to where it is by the word that
/// it would have made takes a reader who joined and a lock that was closed for it. Then that reader is forgotten.
#[test]
fn a_join_and_a_close_are_no_move() {
    let timeline = |mut script: Script| {
        // Readers pass a writer for too long, and the agent closes the lock. A copy of that packet will be late.
        let first = script.acquire(1, 0, SHARED);
        let writer = script.acquire(2, 0, EXCLUSIVE);
        script.settle();
        script.pass(2 * MS);
        let close = script.take_kind(Kind::Close, 0);
        script.deliver(close.clone());
        script.settle();
        script.release(1, first);
        script.settle();
        script.release(2, writer);
        script.settle();
        // The lock is open again, and the agent wants it for a writer of its machine.
        let first = script.acquire(1, 0, SHARED);
        script.settle();
        let here = script.acquire(1, 0, EXCLUSIVE);
        script.release(1, first);
        let moves = script.take_kind(Kind::Move, 0);
        // Before that arrives a reader joins, and the lock is closed.
        let reader = script.acquire(2, 0, SHARED);
        script.deliver_kind(Kind::Acquire, 0);
        script.deliver_kind(Kind::Grant, 2);
        let _late = script.take_kind(Kind::Acquire, 1);
        script.deliver(close);
        assert_eq!(script.word(0).state, State::Led);
        script.deliver(moves);
        script.settle();
        if script.violation.is_none() {
            script.run(MS);
            assert!(script.holds(2, reader) && !script.holds(1, here));
        }
        all_are_served(script)
    };
    timeline(Script::new(4)).expect("ends well");
    let mut ours = ours(false);
    let former: Rule = Box::new(move |store, sessions, packet| {
        let word = store.load(packet.lock);
        let applied = packet.target == word.machine && packet.incarnation + 1 == word.incarnation;
        if packet.kind == Kind::Move && word.state == State::Led && applied {
            let mut one = Packet { kind: Kind::Grant, state: word.state, incarnation: word.incarnation, ..*packet };
            one.flags |= lockwork_lock_protocol::packet::AGENT;
            one.token = store.token(packet.lock);
            return Outputs { packets: [Some((To::Machine(packet.target), one)), None], payload: true };
        }
        ours(store, sessions, packet)
    });
    let why = timeline(Script::with(4, false, former)).expect_err("that was the hole");
    assert!(why.contains(TWO_HOLD), "{why}");
}

/// Figure 9: a packet that comes before its agent is sent back, and finds it later.
#[test]
fn a_packet_that_comes_before_its_agent_is_sent_back() {
    let mut script = Script::new(2);
    let first = script.acquire(1, 0, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, 0);
    let grant = script.take_kind(Kind::Grant, 1);
    let second = script.acquire(2, 0, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver_kind(Kind::Acquire, 1);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver(grant);
    script.settle();
    assert!(script.holds(1, first));
    script.release(1, first);
    script.settle();
    assert!(script.holds(2, second));
    script.run(10 * US);
    script.finish().unwrap();
}
