//! A decider that was restored (`lockwork_lock_protocol::report`): what would go wrong without each of its rules.

use crate::script::{EXCLUSIVE, Flying, MS, SHARED, Script};
use lockwork_lock_protocol::client::Event;
use lockwork_lock_protocol::packet::{GRANTED, Kind};
use lockwork_lock_protocol::word::{Machine, State};

/// All machines go on and report, and SETTLE is under way to each.
fn report(script: &mut Script) {
    while script.flying.iter().any(|one| one.packet.kind != Kind::Settle) {
        let one = script.take(|one| one.packet.kind != Kind::Settle);
        script.deliver(one);
    }
    script.pass(0);
    assert!(script.flying.iter().all(|one| one.packet.kind == Kind::Settle) && !script.flying.is_empty());
}

fn has_lost(script: &Script, machine: u16) -> bool {
    script.events.iter().any(|(of, event)| *of == machine && matches!(event, Event::Lost { .. }))
}

/// Machine 1 has the agent and does not know that machine 2 reads; the words, which counted it, are lost.
fn an_unknown_reader(script: &mut Script) -> (u64, u64) {
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let second = script.acquire(2, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver_kind(Kind::Grant, 2);
    script.take_kind(Kind::Acquire, 1);
    assert!(script.flying.is_empty() && script.holds(1, first) && script.holds(2, second));
    (first, second)
}

/// Agents give nothing away that readers hold before all have enrolled, because they may not know of all of them.
#[test]
fn agents_of_readers_wait_until_all_have_enrolled() {
    let mut script = Script::new(3);
    let (first, second) = an_unknown_reader(&mut script);
    script.restart();
    report(&mut script);
    assert_eq!(script.word(0).machine, Machine(1));
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver_kind(Kind::Acquire, 1);
    script.release(1, first);
    // Nothing of SETTLE arrives, whatever else does.
    script.flying.retain(|one| one.packet.kind != Kind::Settle);
    script.settle();
    assert!(script.holds(2, second) && !script.holds(3, writer));
    assert_eq!(script.word(0).machine, Machine(1));
    script.run(100 * MS);
    assert!(script.holds(2, second) && !script.holds(3, writer), "now machine 1 knows of the reader");
    script.release(2, second);
    script.run(100 * MS);
    assert!(script.holds(3, writer));
    script.finish().unwrap();
}

/// The incarnations begin anew, so what tells an agent of a decision before the crash would be taken for one after it:
/// here a copy of a RELEASE, for the reader who joins next.
#[test]
fn a_packet_of_before_is_not_taken_for_one_of_afterwards() {
    let mut script = Script::new(4);
    let first = script.acquire(1, 0, SHARED);
    script.settle();
    let joined = script.acquire(2, 0, SHARED);
    script.settle();
    assert_eq!(script.word(0).incarnation, 2);
    script.release(2, joined);
    script.deliver_kind(Kind::Release, 0);
    let old = script.flying.iter().find(|one| one.packet.kind == Kind::Release).expect("sent on").clone();
    script.settle();
    script.restart();
    script.run(100 * MS);
    // The agent opens the lock for a reader, which is one decision; the next reader is the second.
    let opens = script.acquire(3, 0, SHARED);
    script.settle();
    script.release(3, opens);
    script.settle();
    assert_eq!((script.word(0).state, script.word(0).incarnation), (State::Shared, 1));
    let reads = script.acquire(4, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver_kind(Kind::Grant, 4);
    script.take_kind(Kind::Acquire, 1);
    assert_eq!(script.word(0).incarnation, old.packet.incarnation);
    script.deliver(old);
    script.release(1, first);
    let writer = script.acquire(2, 0, EXCLUSIVE);
    script.settle();
    assert!(script.holds(4, reads) && !script.holds(2, writer));
    script.finish().unwrap();
}

/// That all have enrolled after one crash says nothing after the next.
#[test]
fn a_settle_of_an_earlier_era_is_none() {
    let mut script = Script::new(3);
    let (first, second) = an_unknown_reader(&mut script);
    script.restart();
    script.run(100 * MS);
    let settles = |one: &&Flying| one.packet.kind == Kind::Settle && one.packet.has(GRANTED) && one.to == 1;
    let old = script.sent.iter().find(settles).expect("it was restored").clone();
    // Machine 2 is enrolled now. Of another reader the agent hears nothing again.
    script.release(2, second);
    script.settle();
    let opens = script.acquire(3, 0, SHARED);
    script.settle();
    let reads = script.acquire(2, 0, SHARED);
    script.deliver_kind(Kind::Acquire, 0);
    script.deliver_kind(Kind::Grant, 2);
    script.take_kind(Kind::Acquire, 1);
    script.release(3, opens);
    script.settle();
    script.restart();
    report(&mut script);
    script.flying.clear();
    script.deliver(old);
    script.release(1, first);
    let writer = script.acquire(3, 0, EXCLUSIVE);
    script.settle();
    assert!(script.holds(2, reads) && !script.holds(3, writer));
    script.finish().unwrap();
}

/// A lock that nobody has reported may be held by who has not answered: nobody gets it before that machine has gone on,
/// or its lease is over.
#[test]
fn what_a_silent_machine_may_hold_waits_for_it_or_its_lease() {
    for answers in [true, false] {
        let mut script = Script::new(2);
        let held = script.acquire(2, 0, EXCLUSIVE);
        script.settle();
        script.cut.insert(2);
        script.restart();
        let wants = script.acquire(1, 0, EXCLUSIVE);
        script.run(100 * MS);
        assert!(script.holds(2, held) && !script.holds(1, wants));
        if answers {
            script.cut.clear();
            script.run(100 * MS);
            assert!(script.holds(2, held) && !script.holds(1, wants));
            assert_eq!(script.word(0).machine, Machine(2));
            script.release(2, held);
            script.run(1_000 * MS);
        } else {
            script.run(1_100_000 * MS);
            assert!(has_lost(&script, 2));
        }
        assert!(script.holds(1, wants));
        script.finish().unwrap();
    }
}

/// A machine that has not heard of the new start goes on speaking in its former session. An answer that this session is
/// not known would end it.
#[test]
fn a_machine_that_has_not_heard_of_the_restart_loses_nothing() {
    let mut script = Script::new(2);
    let (held, first) = (script.acquire(2, 0, EXCLUSIVE), script.acquire(1, 1, EXCLUSIVE));
    script.settle();
    script.restart();
    script.take_kind(Kind::Resume, 2);
    script.settle();
    assert_eq!(script.word(1).machine, Machine(1), "its word is back");
    let waits = script.acquire(2, 1, EXCLUSIVE);
    script.settle();
    assert!(script.holds(2, held) && !has_lost(&script, 2));
    script.run(100 * MS);
    script.release(1, first);
    script.run(1_000 * MS);
    assert!(script.holds(2, held) && script.holds(2, waits));
    script.finish().unwrap();
}
