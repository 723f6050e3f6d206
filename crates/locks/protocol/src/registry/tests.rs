//! The registry with a clock of the test's own, packets that are lost and doubled, and deaths during sweeps.

use super::*;
use crate::control::{ALL_LOCKS, Participant};
use crate::decider::{Wide, WideLock};
use crate::packet::Waiter;
use crate::word::Profile;
use crate::word::State;
use lockwork_locking::LockMode;
use lockwork_random::Random;
use std::collections::{BTreeSet, HashSet};

const MS: u64 = 1_000_000;
const LOCKS: u64 = 1000;

struct World {
    now: u64,
    registry: Registry<u32>,
    store: Wide<Vec<WideLock>>,
    sent: Vec<(u32, Packet, Vec<u8>)>,
    changes: Vec<Change<u32>>,
}

impl World {
    fn new(profile: Profile) -> Self {
        let service = Service { locks: LOCKS, lease_ms: 1000, profile, writers_first: false, names: 0, beyond: false };
        let registry = Registry::new(Config::new(1000, 7), service);
        Self { now: 0, registry, store: Wide::new(LOCKS as usize), sent: Vec::new(), changes: Vec::new() }
    }

    fn take(&mut self) {
        while let Some(change) = self.registry.poll_change() {
            self.changes.push(change);
        }
        while let Some(packet) = self.registry.poll_packet() {
            self.sent.push(packet);
        }
    }

    fn receive(&mut self, from: u32, packet: Packet) {
        self.registry.receive(self.now, &self.store, from, &packet, &[]);
        self.take();
    }

    fn pass(&mut self, time_ms: u64) {
        for _ in 0..time_ms {
            self.now += MS;
            self.registry.tick(self.now, &self.store, 100);
            self.take();
        }
    }

    /// The packets of a kind that were sent to an address since it was asked last.
    fn to(&mut self, address: u32, kind: Kind) -> Vec<Packet> {
        self.sent.extract_if(.., |(to, packet, _)| *to == address && packet.kind == kind).map(|sent| sent.1).collect()
    }

    fn join(&mut self, address: u32) -> (Machine, u32) {
        let nonce = u64::from(address) << 32 | self.now;
        self.receive(address, Packet { request: nonce, ..Packet::new(Kind::Join, 0) });
        let welcome = self.to(address, Kind::Welcome).pop().expect("a welcome");
        (welcome.requester, welcome.requester_session)
    }

    /// A packet of a machine to the registry.
    fn say(&mut self, address: u32, me: (Machine, u32), kind: Kind, request: u64) {
        self.receive(address, Packet { sender: me.0, session: me.1, request, ..Packet::new(kind, 5) });
    }

    fn hold(&self, lock: u64, state: State, machine: Machine) {
        let old = self.store.load(lock);
        assert!(self.store.swap(lock, old, Word { state, machine, incarnation: old.incarnation + 1 }));
    }

    fn settled(&self) -> Vec<u64> {
        let settled = |change: &Change<u32>| match change {
            Change::Settled(adopted) => Some(adopted.lock),
            _ => None,
        };
        self.changes.iter().filter_map(settled).collect()
    }
}

#[test]
fn a_process_that_asks_twice_joins_once() {
    let mut world = World::new(Profile::Wide);
    let one = world.join(100);
    assert_eq!(world.join(100), one);
    let other = world.join(101);
    assert!(other.0 != one.0 && other.1 != one.1);
    world.receive(100, Packet { request: 12345, ..Packet::new(Kind::Join, 0) });
    let (_, _, body) = world.sent.last().expect("a welcome");
    assert_eq!(Service::of_body(body).unwrap().locks, LOCKS);
    assert_ne!(world.to(100, Kind::Welcome)[0].requester, one.0, "another process at this address");
    assert_eq!(world.changes.len(), 3);
    assert_eq!(world.registry.session(one.0), Some(one.1));
    assert_eq!(world.registry.session(Machine(4)), None);
    assert_eq!(world.registry.session(Machine::REGISTRY), Some(Machine::REGISTRY_SESSION));
}

#[test]
fn a_session_lives_as_long_as_it_is_renewed() {
    let mut world = World::new(Profile::Wide);
    let one = world.join(100);
    for request in 0..5 {
        world.pass(900);
        world.say(100, one, Kind::Renew, request);
        let renewed = world.to(100, Kind::Renewed);
        assert!(renewed.len() == 1 && renewed[0].request == request);
    }
    world.pass(999);
    assert_eq!(world.registry.session(one.0), Some(one.1));
    world.pass(1);
    assert_eq!(world.registry.session(one.0), None);
    world.say(100, one, Kind::Renew, 9);
    assert_eq!(world.to(100, Kind::Error)[0].token, Problem::NoSuchSession as u64);
    assert!(world.to(100, Kind::Renewed).is_empty());
    assert_eq!(world.registry.counters().expired, 1);
}

#[test]
fn locks_of_the_dead_are_freed_or_adopted_and_settled_when_all_have_answered() {
    let mut world = World::new(Profile::Wide);
    let (dead, one, two, three) = (world.join(1), world.join(2), world.join(3), world.join(4));
    world.hold(10, State::Exclusive, dead.0);
    world.hold(20, State::Shared, dead.0);
    world.hold(999, State::Led, dead.0);
    world.hold(30, State::Exclusive, one.0);
    world.say(1, dead, Kind::Leave, 1);
    assert_eq!(world.to(1, Kind::Left).len(), 1);
    world.say(1, dead, Kind::Leave, 1);
    assert_eq!(world.to(1, Kind::Left).len(), 1, "the first answer may have been lost");
    world.pass(9);
    assert_eq!(world.store.load(10).state, State::Exclusive, "a decision may be under way");
    world.pass(20);
    let word = |lock| world.store.load(lock);
    assert_eq!(word(10), Word { state: State::Free, machine: Machine(0), incarnation: 2 });
    assert_eq!(word(20), Word { state: State::Led, machine: Machine(0), incarnation: 2 });
    assert_eq!(word(999), Word { state: State::Led, machine: Machine(0), incarnation: 2 });
    assert_eq!(word(30), Word { state: State::Exclusive, machine: one.0, incarnation: 1 });

    for (address, me) in [(2, one), (3, two)] {
        let died = world.to(address, Kind::Died)[0];
        assert!(died.requester == dead.0 && died.requester_session == dead.1 && died.target == me.0);
        world.say(address, me, Kind::Swept, died.request);
        world.say(address, me, Kind::Swept, died.request);
    }
    world.pass(300);
    assert_eq!(world.settled(), Vec::<u64>::new(), "one has not answered");
    assert!(world.to(2, Kind::Died).is_empty());
    let again = world.to(4, Kind::Died);
    assert!(again.len() > 2 && again.iter().all(|died| died.request == again[0].request));
    world.say(4, three, Kind::Swept, again[0].request + 1);
    assert_eq!(world.settled(), Vec::<u64>::new(), "an answer to another question");
    world.say(4, three, Kind::Swept, again[0].request);
    assert_eq!(world.settled(), [20, 999]);
    assert_eq!((world.registry.counters().freed, world.registry.counters().adopted), (1, 2));
}

#[test]
fn who_dies_during_a_sweep_no_longer_counts() {
    let mut world = World::new(Profile::Wide);
    let (dead, one, two) = (world.join(1), world.join(2), world.join(3));
    world.hold(20, State::Led, dead.0);
    world.say(1, dead, Kind::Leave, 1);
    world.pass(30);
    let died = world.to(2, Kind::Died)[0];
    world.say(2, one, Kind::Swept, died.request);
    assert!(world.settled().is_empty());
    world.hold(21, State::Shared, two.0);
    world.say(3, two, Kind::Leave, 1);
    world.pass(1);
    assert_eq!(world.settled(), [20]);
    world.pass(30);
    let died = world.to(2, Kind::Died).pop().unwrap();
    assert_eq!(died.requester, two.0);
    world.say(2, one, Kind::Swept, died.request);
    assert_eq!(world.settled(), [20, 21]);
}

#[test]
fn a_number_is_used_again_after_its_sweep_and_a_quarantine() {
    let mut world = World::new(Profile::Lean);
    let mut all: Vec<_> = (0..255).map(|at| (at, world.join(at))).collect();
    world.receive(999, Packet { request: 1, ..Packet::new(Kind::Join, 0) });
    assert_eq!(world.to(999, Kind::Error)[0].token, Problem::Full as u64);
    let (address, gone) = all.remove(17);
    world.say(address, gone, Kind::Leave, 1);
    let live = |world: &mut World, time_ms: u64, answers: bool| {
        for _ in 0..time_ms / 100 {
            world.pass(100);
            for (address, me) in &all {
                world.say(*address, *me, Kind::Renew, 1);
                for died in world.to(*address, Kind::Died) {
                    if answers || *address != 3 {
                        world.say(*address, *me, Kind::Swept, died.request);
                    }
                }
            }
            world.sent.clear();
            world.receive(999, Packet { request: 1, ..Packet::new(Kind::Join, 0) });
        }
    };
    live(&mut world, 20_000, false);
    assert!(world.to(999, Kind::Welcome).is_empty(), "one has not answered");
    live(&mut world, 9_900, true);
    assert!(world.to(999, Kind::Welcome).is_empty(), "quarantine");
    live(&mut world, 1_000, true);
    let welcome = world.to(999, Kind::Welcome).pop().expect("the quarantine is over");
    assert!(welcome.requester == gone.0 && welcome.requester_session != gone.1);
}

#[test]
fn a_sweep_of_a_lock_asks_all_others_and_is_asked_once() {
    let mut world = World::new(Profile::Wide);
    let (asker, one, two) = (world.join(1), world.join(2), world.join(3));
    for _ in 0..2 {
        world.say(1, asker, Kind::Sweep, 77);
    }
    assert!(world.to(1, Kind::Sweep).is_empty());
    let first = world.to(2, Kind::Sweep);
    assert!(first.len() == 1 && first[0].lock == 5 && first[0].requester == asker.0);
    world.say(2, one, Kind::Swept, first[0].request);
    assert!(world.to(1, Kind::Swept).is_empty());
    world.pass(60);
    assert_eq!(world.to(3, Kind::Sweep).len(), 2, "the first was lost");
    world.say(3, two, Kind::Swept, first[0].request);
    let swept = world.to(1, Kind::Swept);
    assert!(swept.len() == 1 && swept[0].request == 77 && swept[0].lock == 5);
    // The answer was lost, so it asks again; nothing remembers the first sweep.
    world.say(1, asker, Kind::Sweep, 77);
    assert_eq!(world.to(2, Kind::Sweep).len(), 1);
    world.say(2, one, Kind::Leave, 1);
    world.say(3, two, Kind::Leave, 1);
    world.pass(1);
    assert_eq!(world.to(1, Kind::Swept).len(), 1, "nobody is left to ask");
    world.receive(1, Packet { sender: asker.0, session: asker.1, ..Packet::new(Kind::Sweep, LOCKS) });
    assert_eq!(world.to(1, Kind::Error)[0].token, Problem::NoSuchLock as u64);
}

#[test]
fn the_registrys_own_agents_can_have_a_lock_swept() {
    let mut world = World::new(Profile::Wide);
    let one = world.join(1);
    world.registry.sweep_own(world.now, &Packet { request: 8, incarnation: 4, ..Packet::new(Kind::Sweep, 5) });
    world.take();
    let asked = world.to(1, Kind::Sweep)[0];
    assert!(asked.lock == 5 && asked.incarnation == 4);
    assert_eq!((asked.requester, asked.requester_session), one, "or a copy would be asked in the next era");
    world.say(1, one, Kind::Swept, asked.request);
    let Some(Change::Swept(swept)) = world.changes.pop() else { panic!("no answer") };
    assert!(swept.lock == 5 && swept.request == 8 && swept.incarnation == 4);
}

#[test]
fn strangers_change_nothing_and_are_told_so() {
    let mut world = World::new(Profile::Wide);
    let one = world.join(1);
    let counters = world.registry.counters();
    for kind in Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Join | Kind::Status)) {
        for (machine, session) in [(one.0, one.1 + 1), (Machine(9), one.1), (Machine(0), 0), (Machine(u16::MAX), 1)] {
            world.say(8, (machine, session), kind, 1);
            for (address, packet, _) in world.sent.drain(..) {
                assert!(address == 8 && matches!(packet.kind, Kind::Left | Kind::Error), "{packet:?}");
            }
        }
    }
    assert_eq!(world.changes.len(), 1);
    assert_eq!(Counters { strangers: 0, ..world.registry.counters() }, counters);
}

#[test]
fn nobody_ends_the_session_of_another_address() {
    let mut world = World::new(Profile::Wide);
    let one = world.join(1);
    for _ in 0..3 {
        world.say(8, one, Kind::Leave, 1);
        assert!(world.sent.is_empty(), "{:?}", world.sent);
    }
    world.pass(20);
    assert_eq!(world.registry.session(one.0), Some(one.1));
    assert_eq!((world.registry.counters().foreign_leaves, world.registry.counters().left), (3, 0));
    world.say(1, one, Kind::Leave, 2);
    assert_eq!(world.to(1, Kind::Left).len(), 1);
    assert_eq!(world.registry.session(one.0), None);
    // The answer was lost: it is given again, to whoever asks.
    world.say(1, one, Kind::Leave, 2);
    assert_eq!(world.to(1, Kind::Left).len(), 1);
    assert_eq!((world.registry.counters().foreign_leaves, world.registry.counters().left), (3, 1));
}

#[test]
fn a_session_does_not_tell_the_next() {
    let mut world = World::new(Profile::Wide);
    let sessions: Vec<u32> = (1..=200).map(|address| world.join(address).1).collect();
    let close = sessions.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 100).count();
    assert!(close < 5, "{close} of 199 sessions are within 100 of the one before");
}

#[test]
fn questions_about_a_lock_reach_its_agent_and_come_back() {
    let mut world = World::new(Profile::Wide);
    let one = world.join(1);
    world.hold(5, State::Exclusive, one.0);
    world.receive(50, Packet { request: 4711, ..Packet::new(Kind::Status, 5) });
    let answer = world.to(50, Kind::Status)[0];
    assert!(answer.has(GRANTED) && answer.state == State::Exclusive && answer.sender == one.0);
    let question = world.to(1, Kind::Status)[0];
    let who = Waiter { machine: one.0, session: one.1, request: 3, mode: LockMode::Exclusive };
    let body = Participant::to_body(&[Participant { who, holds: true }]);
    let answer = Packet {
        flags: GRANTED,
        sender: one.0,
        session: one.1,
        requester: one.0,
        requester_session: one.1,
        request: question.request,
        ..Packet::new(Kind::Status, 5)
    };
    world.registry.receive(world.now, &world.store, 1, &answer, &body);
    world.take();
    let (to, answer, sent) = world.sent.pop().unwrap();
    assert!(to == 50 && answer.request == 4711 && answer.sender == one.0 && answer.requester == one.0);
    assert_eq!((answer.session, answer.requester_session), (0, 0));
    // Whoever asks has no session, and is not told those of others.
    let hidden = Participant { who: Waiter { session: 0, ..who }, holds: true };
    assert_eq!(Participant::of_body(&sent).unwrap(), [hidden]);
    world.receive(50, Packet { request: 1, ..Packet::new(Kind::Status, LOCKS) });
    assert_eq!(world.to(50, Kind::Error)[0].token, Problem::NoSuchLock as u64);
    world.receive(50, Packet { request: 1, ..Packet::new(Kind::Status, ALL_LOCKS) });
    let (_, _, body) = world.sent.iter().find(|(to, ..)| *to == 50).unwrap();
    assert_eq!(Summary::of_body(body).unwrap().machines, 1);
}

/// A process of the random test.
#[derive(Clone, Copy)]
struct Process {
    address: u32,
    joined: Option<(Machine, u32)>,
    mute: bool,
}

#[test]
fn under_loss_and_duplication_every_death_is_settled_and_no_number_has_two_owners() {
    for seed in 1..=20_u64 {
        let mut random = Random(seed);
        let mut chance = |percent| random.percent(percent);
        let mut world = World::new(Profile::Wide);
        let mut processes: Vec<Process> = Vec::new();
        let mut sessions = HashSet::new();
        for step in 0..4000_u32 {
            let calm = step >= 3000;
            if !calm && processes.len() < 30 && chance(10) {
                processes.push(Process { address: step, joined: None, mute: false });
            }
            for process in &mut processes {
                match process.joined {
                    None => {
                        let nonce = u64::from(process.address);
                        world.receive(process.address, Packet { request: nonce, ..Packet::new(Kind::Join, 0) });
                    }
                    Some(me) if !process.mute => {
                        if chance(5) {
                            world.say(process.address, me, Kind::Renew, 1);
                        }
                        let lock = u64::from(step * 31 + process.address) % LOCKS;
                        if !calm && world.registry.session(me.0) == Some(me.1) && world.store.load(lock) == Word::NEW {
                            world.hold(lock, [State::Shared, State::Led, State::Exclusive][step as usize % 3], me.0);
                        }
                        process.mute = !calm && chance(1);
                    }
                    Some(_) => {}
                }
            }
            world.pass(20);
            for (to, packet, _) in std::mem::take(&mut world.sent) {
                let Some(process) = processes.iter_mut().find(|process| process.address == to) else { continue };
                if process.mute || chance(20) {
                    continue;
                }
                match packet.kind {
                    Kind::Welcome => {
                        let me = (packet.requester, packet.requester_session);
                        assert!(process.joined.is_none_or(|joined| joined == me));
                        assert!(process.joined.is_some() || sessions.insert(me.1), "a session of two processes");
                        process.joined = Some(me);
                    }
                    Kind::Died => {
                        let Some(me) = process.joined else { continue };
                        for _ in 0..1 + u32::from(chance(20)) {
                            world.say(to, me, Kind::Swept, packet.request);
                        }
                    }
                    _ => {}
                }
            }
            let live = |process: &Process| match process.joined {
                Some((machine, session)) => world.registry.session(machine) == Some(session),
                None => true,
            };
            processes.retain(live);
        }
        let summary = world.registry.summary();
        assert!(summary.expired > 20 && summary.gone == 0, "seed {seed}: {summary:?}");
        let adopted = world.changes.iter().filter(|change| matches!(change, Change::Adopted(_))).count();
        assert!(adopted > 20);
        assert_eq!(world.settled().len(), adopted);
        for lock in 0..LOCKS {
            let word = world.store.load(lock);
            assert!(world.registry.session(word.machine).is_some(), "seed {seed}: {word:?}");
        }
    }
}

/// Who asks about a lock again has forgotten the question before; numbers cost nothing.
#[test]
fn an_agent_has_one_question_about_a_lock() {
    let mut world = World::new(Profile::Wide);
    let (asker, other) = (world.join(100), world.join(101));
    for number in 1..=1000 {
        world.say(100, asker, Kind::Sweep, number);
    }
    world.to(101, Kind::Sweep);
    world.pass(1);
    world.pass(60);
    let again = world.to(101, Kind::Sweep);
    assert_eq!(again.len(), 1, "of a thousand questions one is open");
    world.say(101, other, Kind::Swept, again[0].request);
    assert_eq!(world.to(100, Kind::Swept).iter().map(|swept| swept.request).collect::<Vec<_>>(), [1000]);
}

#[test]
fn thousands_that_die_together_are_told_of_a_few_at_a_time() {
    let mut world = World::new(Profile::Wide);
    let lives = world.join(1);
    for address in 2..5000 {
        let (machine, _) = world.join(address);
        if u64::from(machine.0) < LOCKS {
            world.hold(machine.0.into(), State::Shared, machine);
        }
    }
    let (mut told, mut most) = (BTreeSet::new(), 0);
    for _ in 0..4000 {
        world.pass(1);
        world.say(1, lives, Kind::Renew, 0);
        let died = world.to(1, Kind::Died);
        most = most.max(died.len());
        for packet in died {
            told.insert(packet.requester);
            world.say(1, lives, Kind::Swept, packet.request);
        }
        if world.registry.summary().gone == 0 && world.now > 1100 * MS {
            break;
        }
    }
    assert!(told.len() == 4998 && most <= 4, "{} {most}", told.len());
    assert_eq!(world.settled().len() as u64, LOCKS.min(5000) - 2, "locks 0 and 1 were nobody's");
}
