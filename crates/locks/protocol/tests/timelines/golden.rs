//! The golden lock scripts, with a machine for every session, and with all sessions on one.

use crate::network::{MS, Network};
use lockwork_conformance::locks::{Capability, Event, Manager, NotHeld, Session, golden, run_all};
use lockwork_lock_protocol::client::{self, Ask};
use lockwork_locking::{LockId, Outcome, Request};
use std::collections::BTreeMap;

/// The lock service as scripts see it.
struct Perfect {
    network: Network,
    /// All sessions are tasks of one machine.
    one_machine: bool,
    /// The machine of each session.
    machines: BTreeMap<u32, u16>,
    requests: Vec<(Session, LockId, u64)>,
}

impl Perfect {
    fn new(one_machine: bool) -> Self {
        let network = Network::new(u16::from(one_machine), true);
        Self { network, one_machine, machines: BTreeMap::new(), requests: Vec::new() }
    }

    fn machine(&mut self, session: Session) -> u16 {
        if self.one_machine {
            return 1;
        }
        *self.machines.entry(session.0).or_insert_with(|| self.network.join())
    }

    fn of(&self, session: Session, lock: LockId) -> Option<u64> {
        let is_it = |(of, about, _): &&(Session, LockId, u64)| (*of, *about) == (session, lock);
        self.requests.iter().find(is_it).map(|(_, _, request)| *request)
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for (machine, event) in self.network.events() {
            let (number, granted) = match event {
                client::Event::Granted { request, .. } => (request, true),
                client::Event::TimedOut { request } => (request, false),
                event => panic!("machine {machine}: {event:?}"),
            };
            let here = |session: Session| self.one_machine || self.machines[&session.0] == machine;
            let is_it = |(session, _, request): &(Session, LockId, u64)| *request == number && here(*session);
            let at = self.requests.iter().position(is_it).expect("it was asked for");
            let (session, lock, _) = self.requests[at];
            if !granted {
                self.requests.remove(at);
            }
            events.push(Event { session, lock, granted });
        }
        events
    }
}

impl Manager for Perfect {
    fn name(&self) -> String {
        let machines = if self.one_machine { "one machine" } else { "a machine for each session" };
        format!("lock service in memory ({machines})")
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Crash, Fifo, Groups, Timeout, Waits, Withdraw};
        vec![Waits, Fifo, Groups, Withdraw, Timeout, Crash]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        let Request { id: lock, mode } = requests[0];
        let machine = self.machine(session);
        let timeout = timeout_ms.map(|time| time * MS);
        let ask = Ask { task: session.0, timeout, ..Ask::default() };
        let asked = self.network.at(machine, |node, now| node.acquire(now, lock.0, mode, ask));
        self.requests.push((session, lock, asked.expect("the lock is there")));
        match self.events()[..] {
            [] => Outcome::Waiting,
            [Event { session: of, lock: about, granted: true }] if of == session && about == lock => Outcome::Granted,
            ref events => panic!("an acquire of s{} caused {events:?}", session.0),
        }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let request = self.of(session, locks[0]).ok_or(NotHeld)?;
        let machine = self.machine(session);
        self.requests.retain(|(of, lock, _)| (*of, *lock) != (session, locks[0]));
        self.network.release(machine, request);
        Ok(self.events())
    }

    fn crash(&mut self, session: Session) -> Vec<Event> {
        let gone: Vec<u64> = self.requests.extract_if(.., |(of, ..)| *of == session).map(|(_, _, n)| n).collect();
        if self.one_machine {
            // A task is gone, and the process lives: what the task had goes out of scope.
            gone.into_iter().for_each(|request| self.network.release(1, request));
        } else {
            let machine = self.machine(session);
            self.network.crash(machine);
            self.network.pass(self.network.config.lease + 100 * MS);
            self.machines.remove(&session.0);
        }
        self.events()
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.network.pass(time_ms * MS);
        self.events()
    }
}

fn passes(one_machine: bool) {
    let report = run_all(&golden(), || Perfect::new(one_machine));
    assert!(report.is_clean(), "{report}");
    assert!(report.passed() >= 10, "{report}");
}

#[test]
fn scripts_pass_with_a_machine_for_every_session() {
    passes(false);
}

#[test]
fn scripts_pass_with_all_sessions_on_one_machine() {
    passes(true);
}
