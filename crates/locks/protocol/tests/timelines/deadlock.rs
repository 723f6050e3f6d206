//! Deadlocks are found, by one task of each cycle, and nothing else is taken for one.

use crate::network::{LOCKS, MS, Network};
use lockwork_lock_protocol::client::{Ask, Event, task_of};
use lockwork_lock_protocol::packet::Kind;
use lockwork_locking::LockMode::{self, Exclusive, Shared};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A task takes part, unless it is named in lower case.
fn ask(network: &mut Network, machine: u16, task: char, lock: u64, mode: LockMode) -> u64 {
    let ask = Ask { task: task as u32, detect_deadlock: task.is_ascii_uppercase(), ..Ask::default() };
    network.at(machine, |node, now| node.acquire(now, lock, mode, ask).expect("the lock is there"))
}

/// Requests that gave up since the last call, and those that were granted.
fn outcome(network: &mut Network) -> (Vec<u64>, Vec<u64>) {
    let (mut deadlock, mut granted) = (Vec::new(), Vec::new());
    for (_, event) in network.events() {
        match event {
            Event::Granted { request, .. } => granted.push(request),
            Event::Deadlock { request } => deadlock.push(request),
            event => panic!("{event:?}"),
        }
    }
    (deadlock, granted)
}

/// Each of `machines` has a task that holds the lock of its number and asks for that of the next.
fn ring(machines: u16, modes: [LockMode; 2]) -> (Network, Vec<u64>) {
    let mut network = Network::new(machines, false);
    for machine in 1..=machines {
        ask(&mut network, machine, 'A', u64::from(machine), modes[0]);
    }
    assert_eq!(outcome(&mut network).1.len(), usize::from(machines));
    let next = |machine: u16| u64::from(machine % machines + 1);
    let waits = (1..=machines).map(|machine| ask(&mut network, machine, 'A', next(machine), modes[1])).collect();
    (network, waits)
}

/// The machine of `machines` that has the largest session, which gives up.
fn largest(network: &Network, machines: u16) -> u16 {
    (1..=machines).max_by_key(|machine| network.node(*machine).identity().session).expect("there are some")
}

#[test]
fn of_a_circle_one_task_gives_up_and_the_others_go_on() {
    for (machines, modes) in
        [(2, [Exclusive; 2]), (2, [Shared, Exclusive]), (5, [Exclusive, Shared]), (9, [Exclusive; 2])]
    {
        let (mut network, waits) = ring(machines, modes);
        network.pass(25 * MS);
        let (deadlock, granted) = outcome(&mut network);
        let largest = largest(&network, machines);
        assert_eq!((deadlock, granted), (vec![waits[usize::from(largest) - 1]], vec![]), "machine {largest}");
        network.pass(100 * MS);
        assert_eq!(outcome(&mut network), (vec![], vec![]), "one is enough");
        let held = network.node(largest).client().held().next().expect("it still holds").0;
        network.release(largest, held);
        network.pass(MS);
        let before = if largest == 1 { machines } else { largest - 1 };
        assert_eq!(outcome(&mut network).1, [waits[usize::from(before) - 1]], "machine {before} waited for it");
    }
}

#[test]
fn a_reader_that_wants_to_write_waits_for_itself() {
    let mut network = Network::new(2, false);
    for machine in 1..=2 {
        ask(&mut network, machine, 'A', 0, Shared);
    }
    outcome(&mut network);
    let writes = ask(&mut network, 1, 'A', 0, Exclusive);
    network.pass(25 * MS);
    assert_eq!(outcome(&mut network), (vec![writes], vec![]));
}

/// A reader waits for other readers when a writer is before it.
#[test]
fn who_waits_in_a_queue_waits_for_those_that_the_first_waits_for() {
    let mut network = Network::new(3, true);
    ask(&mut network, 1, 'A', 1, Exclusive);
    ask(&mut network, 2, 'A', 2, Shared);
    outcome(&mut network);
    ask(&mut network, 3, 'A', 2, Exclusive);
    let reads = ask(&mut network, 1, 'A', 2, Shared);
    let writes = ask(&mut network, 2, 'A', 1, Exclusive);
    network.pass(45 * MS);
    let (deadlock, granted) = outcome(&mut network);
    assert!(granted.is_empty() && deadlock == [writes], "{deadlock:x?} {granted:x?}, {reads:x}");
}

#[test]
fn a_chain_is_no_circle_and_who_takes_no_part_is_not_seen() {
    let mut network = Network::new(3, false);
    for machine in 1..=3 {
        ask(&mut network, machine, 'A', u64::from(machine), Exclusive);
    }
    ask(&mut network, 1, 'A', 2, Exclusive);
    ask(&mut network, 2, 'A', 3, Exclusive);
    // Another task of the machine that holds the last.
    ask(&mut network, 3, 'B', 1, Exclusive);
    // Two that wait for each other, of which one takes no part.
    ask(&mut network, 1, 'C', 8, Exclusive);
    ask(&mut network, 2, 'c', 9, Exclusive);
    ask(&mut network, 1, 'C', 9, Exclusive);
    ask(&mut network, 2, 'c', 8, Exclusive);
    network.pass(1000 * MS);
    assert_eq!(outcome(&mut network).0, [0; 0]);
    assert!(network.lines().iter().any(|line| line.contains("probe")));
}

#[test]
fn who_waits_for_long_searches_seldom() {
    let mut network = Network::new(2, false);
    ask(&mut network, 1, 'A', 0, Exclusive);
    ask(&mut network, 2, 'A', 0, Exclusive);
    network.lines();
    network.pass(600_000 * MS);
    let searches = network.lines().iter().filter(|line| line.starts_with("2 -> D: seek")).count();
    // Once in 1.28 s at last.
    assert!((465..=475).contains(&searches), "{searches}");
}

#[test]
fn a_search_that_is_lost_is_made_again() {
    for kind in [Kind::Seek, Kind::Probe] {
        let (mut network, waits) = ring(3, [Exclusive; 2]);
        network.lose = Some(kind);
        network.pass(50 * MS);
        assert_eq!(outcome(&mut network), (vec![], vec![]));
        network.lose = None;
        network.pass(20 * MS);
        let largest = usize::from(largest(&network, 3));
        assert_eq!(outcome(&mut network).0, [waits[largest - 1]], "{kind:?}");
    }
}

/// The agent has not heard of a release when the same task asks again and waits for another.
#[test]
fn what_is_being_given_back_is_held_no_longer() {
    let mut network = Network::new(3, false);
    ask(&mut network, 1, 'a', 0, Shared);
    let reads = ask(&mut network, 2, 'A', 0, Shared);
    ask(&mut network, 1, 'b', 0, Exclusive);
    network.copies = Box::new(|packet| usize::from(packet.kind != Kind::Release));
    network.release(2, reads);
    ask(&mut network, 2, 'A', 0, Exclusive);
    network.pass(100 * MS);
    assert!(network.lines().iter().any(|line| line.contains("probe")));
    assert_eq!(outcome(&mut network).0, [0; 0]);
}

/// What tasks do next: each asks for a lock, holding those that it has, until it has enough.
struct Tasks {
    network: Network,
    /// Of machine and task: what it holds, and what it waits for.
    holds: BTreeMap<(u16, u32), BTreeMap<u64, u64>>,
    waits: BTreeMap<(u16, u32), (u64, u64)>,
}

impl Tasks {
    /// Whether the task waits for itself. All locks are exclusive, so each waits for at most one other.
    fn is_in_a_circle(&self, of: (u16, u32)) -> bool {
        let mut at = of;
        let mut seen = BTreeSet::new();
        while seen.insert(at) {
            let Some((_, lock)) = self.waits.get(&at) else { return false };
            let Some((next, _)) = self.holds.iter().find(|(_, held)| held.contains_key(lock)) else { return false };
            at = *next;
        }
        at == of
    }

    /// Takes note of what has happened. A task that has found a cycle lets all go.
    fn note(&mut self) -> Result<(), TestCaseError> {
        for (machine, event) in self.network.events() {
            let (Event::Granted { request, .. } | Event::Deadlock { request }) = event else {
                return Err(TestCaseError::fail(format!("{event:?}")));
            };
            let task = (machine, task_of(request));
            prop_assert!(matches!(event, Event::Granted { .. }) || self.is_in_a_circle(task), "{task:?} {event:?}");
            let (_, lock) = self.waits.remove(&task).expect("it waits");
            match event {
                Event::Granted { .. } => _ = self.holds.entry(task).or_default().insert(lock, request),
                _ => self.let_go(task),
            }
        }
        Ok(())
    }

    fn let_go(&mut self, (machine, task): (u16, u32)) {
        for request in self.holds.remove(&(machine, task)).unwrap_or_default().into_values() {
            self.network.release(machine, request);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two tasks on each of three machines take some of five locks in any order. Nobody has a timeout; all get there,
    /// and whoever gives up is in a cycle.
    #[test]
    fn whoever_gives_up_is_in_a_circle_and_nobody_waits_for_ever(
        wishes in proptest::collection::vec((1..=3_u16, 0..2_u32, 0..5_u64, 0..8_u64), 1..80),
    ) {
        let network = Network::new(3, false);
        let mut tasks = Tasks { network, holds: BTreeMap::new(), waits: BTreeMap::new() };
        for (machine, task, lock, pause) in wishes {
            let who = (machine, task);
            if tasks.waits.contains_key(&who) {
                tasks.network.pass(pause * MS);
            } else if tasks.holds.get(&who).is_some_and(|held| held.len() == 3 || held.contains_key(&lock)) {
                tasks.let_go(who);
            } else {
                let ask = Ask { task, detect_deadlock: true, ..Ask::default() };
                let asks = tasks.network.at(machine, |node, now| node.acquire(now, lock % LOCKS, Exclusive, ask));
                let request = asks.expect("the lock is there");
                tasks.waits.insert(who, (request, lock));
            }
            tasks.note()?;
        }
        for _ in 0..20 {
            tasks.network.pass(25 * MS);
            tasks.note()?;
            let done: Vec<_> = tasks.holds.keys().filter(|who| !tasks.waits.contains_key(who)).copied().collect();
            done.into_iter().for_each(|who| tasks.let_go(who));
            tasks.note()?;
        }
        prop_assert!(tasks.waits.is_empty(), "{:?} {:?}", tasks.waits, tasks.holds);
    }
}
