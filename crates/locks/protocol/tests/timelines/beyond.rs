//! Locks that managers keep (`lockwork_lock_protocol::beyond`): what would go wrong without each of its rules.

use crate::script::{EXCLUSIVE, MS, SERVICE, SHARED, Script};
use lockwork_lock_protocol::decider::Sessions;
use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_lock_protocol::word::Machine;
use lockwork_locking::LockMode;

/// A lock that machine 1 manages, and that others do when it is gone.
fn lock_of_first(script: &Script) -> u64 {
    let is_its = |lock: &u64| script.registry.manager(*lock).is_some_and(|manager| manager.machine == Machine(1));
    (16..80).find(is_its).expect("it has some")
}

/// A late copy of an ENROL of machine `from`, whose request is over.
fn late_enrol(script: &mut Script, from: u16, lock: u64, mode: LockMode) {
    let (machine, session) = (Machine(from), script.session(from));
    let packet = Packet {
        flags: mode as u8,
        request: 77 << 32 | 1,
        requester: machine,
        requester_session: session,
        sender: machine,
        session,
        part: Kind::Enrol as u8,
        ..Packet::new(Kind::Enrol, lock)
    };
    script.old(from, SERVICE, packet);
}

/// Machine 3 holds; machine 1, its manager, is gone, and another one has begun to ask, because somebody waits.
fn a_new_manager(mode: LockMode, waits: LockMode) -> (Script, u64, u64, u64) {
    let mut script = Script::managed(5, 2);
    let lock = lock_of_first(&script);
    let held = script.acquire(3, lock, mode);
    script.settle();
    assert!(script.holds(3, held));
    script.leave(1);
    let waiter = script.acquire(5, lock, waits);
    script.deliver_kind(Kind::Acquire, SERVICE);
    let manager = script.registry.manager(lock).expect("there is one").machine;
    assert_eq!(manager, Machine(2));
    script.deliver_kind(Kind::Acquire, 2);
    (script, lock, held, waiter)
}

#[test]
fn a_lock_beyond_is_granted_queued_and_handed_on_by_its_manager() {
    let mut script = Script::managed(4, 1);
    let lock = lock_of_first(&script);
    let [first, second] = [2, 3].map(|machine| script.acquire(machine, lock, EXCLUSIVE));
    script.settle();
    assert!(script.holds(2, first) && !script.holds(3, second));
    let readers = [2, 4].map(|machine| (machine, script.acquire(machine, lock, SHARED)));
    script.settle();
    script.release(2, first);
    script.settle();
    assert!(script.holds(3, second));
    script.downgrade(3, second);
    script.settle();
    assert!(readers.iter().all(|(machine, request)| script.holds(*machine, *request)), "they read with who wrote");
    assert!(script.node(1).pool().view(lock).is_some());
    script.finish().unwrap();
    assert!(script.node(1).pool().is_empty(), "nothing stays of a lock that nobody holds");
}

#[test]
fn a_new_manager_grants_when_all_have_told_what_they_hold() {
    let (mut script, _, held, waiter) = a_new_manager(EXCLUSIVE, EXCLUSIVE);
    script.run(100 * MS);
    assert!(script.holds(3, held) && !script.holds(5, waiter));
    script.release(3, held);
    script.run(100 * MS);
    assert!(script.holds(5, waiter));
    script.finish().unwrap();
}

/// Who has enrolled may have released before, and another be the writer: both are entered, and asked.
#[test]
fn one_who_released_before_it_enrolled_does_not_hide_the_writer() {
    let (mut script, lock, held, waiter) = a_new_manager(EXCLUSIVE, EXCLUSIVE);
    late_enrol(&mut script, 4, lock, EXCLUSIVE);
    script.deliver_kind(Kind::Enrol, 2);
    script.run(100 * MS);
    assert!(script.holds(3, held) && !script.holds(5, waiter));
    script.release(3, held);
    script.run(1000 * MS);
    assert!(script.holds(5, waiter));
    script.finish().unwrap();
}

/// The same with a reader who comes behind the writer, and again: nobody reads beside the writer.
#[test]
fn a_reader_who_enrols_late_does_not_make_a_reader_of_the_writer() {
    for copies in [1, 2] {
        let (mut script, lock, held, waiter) = a_new_manager(EXCLUSIVE, SHARED);
        // The writer enrols.
        while !script.flying.iter().any(|one| one.packet.kind == Kind::Enrol && one.to == 2) {
            let one = script.take(|_| true);
            script.deliver(one);
        }
        script.deliver_kind(Kind::Enrol, 2);
        for _ in 0..copies {
            late_enrol(&mut script, 4, lock, SHARED);
            script.deliver_kind(Kind::Enrol, 2);
        }
        // What the manager asks machine 4 is lost for a while.
        script.flying.retain(|one| one.to != 4 || one.packet.kind != Kind::Grant);
        script.settle();
        assert!(script.holds(3, held) && !script.holds(5, waiter), "{copies}");
        script.run(1000 * MS);
        assert!(script.holds(3, held) && !script.holds(5, waiter), "{copies}");
        script.release(3, held);
        script.run(1000 * MS);
        assert!(script.holds(5, waiter));
        script.finish().unwrap();
    }
}

/// What the former manager granted is void if it comes when all have been asked.
#[test]
fn a_grant_of_a_manager_that_was_relieved_is_void() {
    let mut script = Script::managed(4, 2);
    let lock = lock_of_first(&script);
    let late = script.acquire(3, lock, EXCLUSIVE);
    script.deliver_kind(Kind::Acquire, SERVICE);
    script.deliver_kind(Kind::Acquire, 1);
    // Machine 1 knows that nobody holds, and grants.
    while !script.flying.iter().any(|one| one.packet.kind == Kind::Grant && one.to == 3) {
        let one = script.take(|_| true);
        script.deliver(one);
    }
    let grant = script.take_kind(Kind::Grant, 3);
    script.leave(1);
    let other = script.acquire(4, lock, EXCLUSIVE);
    script.run(100 * MS);
    let first = if script.holds(4, other) { (4, other) } else { (3, late) };
    script.deliver(grant);
    script.settle();
    assert!(script.holds(3, late) != script.holds(4, other));
    script.release(first.0, first.1);
    script.run(100 * MS);
    assert!(script.holds(3, late) != script.holds(4, other));
    script.finish().unwrap();
}
