//! A lock manager: requests go in, answers come out. It does no I/O.
//!
//! Same packets as the lock service: ACQUIRE, GRANT, RELEASE, ACK. SrvLock is one with all locks, NetLock one with the
//! hot ones and one with the rest, ParLock one on each client machine.
//!
//! *Invariant*: duplicates change nothing. The newest release of each task is remembered, so a copy that comes after it
//! is as good as released.

use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_lock_protocol::word::{Machine, State, Word};
use lockwork_locking::LockMode;
use lockwork_memory::prefetch;

use super::netlock::Hot;
use super::parlock::Share;
use super::table::Locks;

/// Which locks a manager has, and where in its table.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// So many, from 0.
    All(u64),
    /// Those of a machine.
    Share(Share),
    /// Those of a switch.
    Hot(Hot),
}

impl Place {
    fn locks(&self) -> u64 {
        match self {
            Self::All(locks) => *locks,
            Self::Share(share) => share.locks(),
            Self::Hot(hot) => hot.locks(),
        }
    }

    /// The lock's place in the table.
    fn of(&self, lock: u64) -> Option<usize> {
        match self {
            Self::All(locks) => (lock < *locks).then_some(lock as usize),
            Self::Share(share) => share.place(lock),
            Self::Hot(hot) => hot.place(lock),
        }
    }
}

/// The manager of some locks.
#[derive(Debug)]
pub(super) struct Manager {
    locks: Locks,
    place: Place,
    /// Of each machine, of each of its tasks, the counter of its newest released request.
    released: Vec<Vec<u32>>,
}

impl Manager {
    /// A manager with free locks, for `machines` from 1 with so many `tasks` each.
    pub(super) fn new(place: Place, machines: u16, tasks: u32) -> Self {
        let released = vec![vec![0; tasks as usize]; usize::from(machines) + 1];
        Self { locks: Locks::new(place.locks()), place, released }
    }

    /// Fetches what a request for a lock will need.
    pub(super) fn prefetch(&self, lock: u64) {
        if let Some(at) = self.place.of(lock) {
            prefetch(self.locks.line(at).cast());
        }
    }

    /// How many locks are not free.
    pub(super) fn held(&self) -> u64 {
        self.locks.held()
    }

    /// Does what a request wants, and gives the answers, each for its target. `false`: it is none, or not for this
    /// manager.
    pub(super) fn serve(&mut self, packet: &Packet, mut answer: impl FnMut(Packet)) -> bool {
        let (task, counter) = ((packet.request >> 32) as usize, packet.request as u32);
        let (machine, at) = (packet.requester.0, self.place.of(packet.lock));
        let released = self.released.get_mut(usize::from(machine)).and_then(|tasks| tasks.get_mut(task));
        let (Some(released), Some(at)) = (released, at) else { return false };
        match (packet.kind, packet.mode()) {
            (Kind::Acquire, Some(_)) if counter <= *released => {}
            (Kind::Acquire, Some(mode)) => {
                let exclusive = mode == LockMode::Exclusive;
                if let Some(token) = self.locks.acquire(at, machine, packet.request, exclusive) {
                    answer(answered(packet, Kind::Grant, token));
                }
            }
            (Kind::Release, _) => {
                *released = counter.max(*released);
                answer(answered(packet, Kind::Ack, 0));
                self.locks.release(at, machine, packet.request, |entry, token| {
                    let mut grant = *packet;
                    grant.request = entry.request;
                    grant.requester = Machine(entry.machine);
                    grant.flags = if entry.exclusive { 3 } else { 1 };
                    answer(answered(&grant, Kind::Grant, token));
                });
            }
            _ => return false,
        }
        true
    }
}

fn answered(packet: &Packet, kind: Kind, token: u64) -> Packet {
    let mut answer = *packet;
    answer.kind = kind;
    answer.target = packet.requester;
    answer.stamp(Word { state: State::Free, machine: Machine::REGISTRY, incarnation: 0 }, token);
    answer
}

#[cfg(test)]
mod tests {
    use lockwork_conformance::locks::{self as conformance, Capability, Event, NotHeld, Session, golden, run_all};
    use lockwork_locking::{LockId, Outcome, Request};

    use super::*;

    fn packet(kind: Kind, lock: u64, machine: u16, request: u64, mode: LockMode) -> Packet {
        let mut packet = Packet::new(kind, lock);
        packet.request = request;
        packet.requester = Machine(machine);
        packet.flags = mode as u8;
        packet
    }

    fn answers(manager: &mut Manager, packet: &Packet) -> Vec<(Kind, u16, u64)> {
        let mut answers = Vec::new();
        assert!(manager.serve(packet, |answer| answers.push((answer.kind, answer.target.0, answer.request))));
        answers
    }

    #[test]
    fn copies_of_a_request_that_was_released_are_not_entered() {
        let mut manager = Manager::new(Place::All(4), 2, 1);
        let acquire = packet(Kind::Acquire, 3, 1, 7, LockMode::Exclusive);
        let release = Packet { kind: Kind::Release, ..acquire };
        assert_eq!(answers(&mut manager, &acquire), [(Kind::Grant, 1, 7)]);
        let other = packet(Kind::Acquire, 3, 2, 7, LockMode::Shared);
        assert_eq!(answers(&mut manager, &other), []);
        assert_eq!(answers(&mut manager, &release), [(Kind::Ack, 1, 7), (Kind::Grant, 2, 7)]);
        assert_eq!((answers(&mut manager, &acquire), manager.held()), (vec![], 1));
        assert_eq!(answers(&mut manager, &release), [(Kind::Ack, 1, 7)]);
    }

    #[test]
    fn what_it_does_not_know_changes_nothing() {
        let mut manager = Manager::new(Place::All(4), 2, 1);
        let good = packet(Kind::Acquire, 3, 1, 7, LockMode::Exclusive);
        for bad in [
            Packet { lock: 4, ..good },
            Packet { requester: Machine(3), ..good },
            Packet { request: 1 << 32, ..good },
            Packet { flags: 0, ..good },
            Packet { kind: Kind::Free, ..good },
        ] {
            assert!(!manager.serve(&bad, |_| panic!("{bad:?} is answered")));
        }
        assert_eq!(manager.held(), 0);
    }

    /// A manager as scripts see it: every session is a machine, every request a task of it.
    struct Scripted {
        manager: Manager,
        tasks: Vec<(Session, LockId, bool)>,
    }

    impl Scripted {
        fn ask(&mut self, kind: Kind, task: usize, mode: LockMode) -> Vec<Event> {
            let (session, lock, _) = self.tasks[task];
            let request = (task as u64) << 32 | 1;
            let packet = packet(kind, lock.0, session.0 as u16, request, mode);
            let mut granted = Vec::new();
            self.manager.serve(&packet, |answer| {
                if answer.kind == Kind::Grant {
                    granted.push((answer.request >> 32) as usize);
                }
            });
            let event = |task: usize| Event { session: self.tasks[task].0, lock: self.tasks[task].1, granted: true };
            granted.into_iter().map(event).collect()
        }
    }

    impl conformance::Manager for Scripted {
        fn name(&self) -> String {
            "lock server".into()
        }

        fn capabilities(&self) -> Vec<Capability> {
            use Capability::{Fifo, Groups, Waits, Withdraw};
            vec![Waits, Fifo, Groups, Withdraw]
        }

        fn acquire(&mut self, session: Session, requests: &[Request], _: Option<u64>) -> Outcome {
            self.tasks.push((session, requests[0].id, true));
            match self.ask(Kind::Acquire, self.tasks.len() - 1, requests[0].mode)[..] {
                [] => Outcome::Waiting,
                _ => Outcome::Granted,
            }
        }

        fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
            let task = self.tasks.iter().position(|task| *task == (session, locks[0], true)).ok_or(NotHeld)?;
            let events = self.ask(Kind::Release, task, LockMode::Shared);
            self.tasks[task].2 = false;
            Ok(events)
        }
    }

    #[test]
    fn the_golden_scripts_pass_whichever_locks_it_has() {
        let hot = Hot::new(&(0..64).rev().collect::<Vec<_>>());
        for place in [Place::All(64), Place::Share(Share::of(64, 1, 1, [0; 2])), Place::Hot(hot)] {
            let fresh = || Scripted { manager: Manager::new(place.clone(), 16, 64), tasks: Vec::new() };
            let report = run_all(&golden(), fresh);
            assert!(report.is_clean() && report.passed() >= 8, "{report}");
        }
    }
}
