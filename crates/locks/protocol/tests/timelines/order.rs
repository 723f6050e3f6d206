//! Who goes first: readers or writers, whoever came first, and nobody never.

use crate::network::{LOCK, MS, Network, letter};
use lockwork_lock_protocol::client::{Ask, Event, NotHeld};
use lockwork_lock_protocol::node::AcquireError;
use lockwork_locking::LockMode;

#[test]
fn writers_get_the_lock_in_the_order_in_which_they_came() {
    let mut net = Network::new(4, false);
    let mut holder = (1, net.write(1, 'a'));
    for (task, machine) in ('b'..='j').zip([2, 1, 3, 4, 4, 1, 2, 3, 2]) {
        net.write(machine, task);
    }
    assert_eq!(net.granted(), "a");
    for task in 'b'..='j' {
        net.release(holder.0, holder.1);
        let events = net.events();
        let [(machine, Event::Granted { request, .. })] = events[..] else { panic!("{events:?}") };
        assert_eq!(letter(request), task);
        holder = (machine, request);
    }
    net.release(holder.0, holder.1);
    net.is_idle();
}

#[test]
fn readers_pass_a_waiting_writer_unless_writers_are_first() {
    for writers_first in [false, true] {
        let mut net = Network::new(4, writers_first);
        let a = net.read(1, 'a');
        net.write(2, 'b');
        // Beside the agent, and elsewhere.
        net.read(1, 'c');
        net.read(3, 'd');
        assert_eq!(net.granted(), if writers_first { "a" } else { "acd" });
        net.release(1, a);
        assert_eq!(net.granted(), if writers_first { "b" } else { "" });
    }
}

/// Readers come all the time, from everywhere, and each holds for some time.
#[test]
fn a_writer_waits_no_longer_than_readers_may_pass_it_and_hold() {
    const STEP: u64 = MS / 10;
    const HOLDING: u64 = 3 * STEP;
    /// Who was granted holds until a time; and when the writer was.
    fn note(net: &mut Network, held: &mut Vec<(u64, u16, u64)>, granted_at: &mut Option<u64>) {
        for (machine, event) in net.events() {
            let Event::Granted { request, mode, .. } = event else { panic!("{event:?}") };
            if mode == LockMode::Exclusive {
                assert!(held.is_empty(), "alone");
                *granted_at = Some(net.now);
            }
            held.push((net.now + HOLDING, machine, request));
        }
    }
    for writer_at in [1, 4] {
        let mut net = Network::new(4, false);
        let mut held: Vec<(u64, u16, u64)> = Vec::new();
        let (mut asked, mut granted_at) = (None, None);
        for step in 0..200 {
            if step == 20 {
                asked = Some((net.now, net.write(writer_at, 'w')));
            }
            let reader = if granted_at.is_none() { 1 + (step % 3) as u16 } else { 0 };
            if reader > 0 {
                net.read(reader, 'r');
            }
            note(&mut net, &mut held, &mut granted_at);
            while let Some(at) = held.iter().position(|(until, ..)| *until <= net.now) {
                let (_, machine, request) = held.swap_remove(at);
                net.release(machine, request);
            }
            note(&mut net, &mut held, &mut granted_at);
            net.pass(STEP);
        }
        let waited = granted_at.expect("it was granted") - asked.expect("it has asked").0;
        assert!(waited >= net.config.starve, "readers pass it for some time: {waited}");
        assert!(waited <= net.config.starve + HOLDING + STEP, "machine {writer_at} waited {waited} ns");
        // The readers behind it were not forgotten.
        net.pass(MS);
        held.into_iter().for_each(|(_, machine, request)| net.release(machine, request));
        while let [(machine, Event::Granted { request, .. }), ..] = net.events()[..] {
            net.release(machine, request);
        }
    }
}

#[test]
fn a_downgrade_lets_readers_in_and_keeps_writers_out() {
    let mut net = Network::new(3, false);
    let a = net.write(1, 'a');
    net.read(1, 'b');
    net.write(2, 'c');
    net.read(3, 'd');
    assert_eq!(net.granted(), "a");
    net.at(1, |node, now| node.downgrade(now, a)).expect("it writes");
    assert_eq!(net.granted(), "bd");
    assert_eq!(net.at(1, |node, now| node.downgrade(now, a)), Err(NotHeld(a)), "it reads already");
    let holders = net.node(1).pool().view(LOCK).expect("the agent is here").holders.len();
    assert_eq!(holders, 3);
    net.release(1, a);
    assert_eq!(net.granted(), "", "two readers are left");
}

#[test]
fn with_writers_first_a_downgrade_lets_only_those_readers_in_who_came_before_a_writer() {
    let mut net = Network::new(3, true);
    let a = net.write(1, 'a');
    net.read(2, 'b');
    net.write(2, 'c');
    net.read(3, 'd');
    net.at(1, |node, now| node.downgrade(now, a)).expect("it writes");
    assert_eq!(net.granted(), "ab");
}

#[test]
fn there_is_no_upgrade_and_a_reader_that_wants_to_write_waits_for_itself_until_its_time_is_over() {
    let mut net = Network::new(2, false);
    let a = net.read(1, 'a');
    let ask = Ask { timeout: Some(5 * MS), ..Ask::default() };
    let writer = net.ask_as(1, 'a', LockMode::Exclusive, ask);
    assert_eq!(net.granted(), "a");
    net.pass(5 * MS);
    assert_eq!(net.events(), [(1, Event::TimedOut { request: writer })]);
    net.release(1, a);
    net.is_idle();
}

#[test]
fn what_cannot_be_asked_for_is_refused_and_leaves_nothing() {
    let mut net = Network::new(1, false);
    let intent = net.at(1, |node, now| node.acquire(now, LOCK, LockMode::IntentExclusive, Ask::default()));
    assert_eq!(intent, Err(AcquireError::NoSuchMode));
    let unknown = net.at(1, |node, now| node.acquire(now, 64, LockMode::Shared, Ask::default()));
    assert_eq!(unknown, Err(AcquireError::NoSuchLock { lock: 64, locks: 64 }));
    assert_eq!(net.at(1, |node, now| node.release(now, 5)), Err(NotHeld(5)));
    net.expect("");
    net.is_idle();
}

/// The holder's machine stands still: whether the lock is free by now is known when its lease has ended.
#[test]
fn a_try_that_nobody_answers_ends() {
    let mut net = Network::new(2, false);
    net.write(1, 'a');
    net.granted();
    net.crash(1);
    let tried = net.ask_as(2, 'b', LockMode::Exclusive, Ask { try_only: true, ..Ask::default() });
    net.pass(199 * MS);
    assert_eq!(net.events(), []);
    net.pass(MS);
    assert_eq!(net.events(), [(2, Event::Busy { request: tried })]);
    net.pass(5000 * MS);
    net.is_idle();
}
