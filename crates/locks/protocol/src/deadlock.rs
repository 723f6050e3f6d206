//! Deadlocks: tasks that wait for each other in a cycle, found along the edges of who waits for whom.
//!
//! Edge chasing (Chandy, Misra and Haas, 1983) from agent to agent. A request that has waited for
//! [`Config::search`](crate::config::Config::search) asks the lock's agent, by way of the decider, who holds it (SEEK).
//! Whoever waits in an agent's queue waits for all holders, if only because a writer before it does; so the agent asks
//! the machines of all holders (PROBE), and each task there that holds the lock and waits itself asks on. A search that
//! comes back to its own task has found a cycle.
//!
//! *Invariant*: only the request that began a search gives up, and only while it waits. A task passes on searches of
//! larger tasks, by session and number, and no others: of a cycle exactly one task gives up, the largest.
//!
//! *Trade-off*: nobody is asked before somebody has waited for long, and packets of searches are not acknowledged: the
//! next search makes up for one that was lost. Each comes after twice the time, and asks a machine once for all its
//! holders, so that crowds that wait without a cycle cost little. A cycle that a timeout broke while it was searched
//! may be found all the same; then a request gives up that need not have. Requests take part that ask to, because the
//! number of a task must be right: it does one thing after the other.

use crate::client::{Client, task_of};
use crate::config::{Config, Identity};
use crate::packet::{Kind, Packet};
use crate::pool::AgentPool;
use crate::timers::Timers;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Most edges that a search follows in a row.
const MAX_STEPS: u8 = 32;
/// Searches of one request are at last this many times doubled apart.
const MAX_DOUBLINGS: u8 = 6;
/// Most searches that are known to have come by.
const MAX_PASSED: usize = 1024;

/// The request that began a search. Sessions are never the same twice, so they stand for their machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin {
    session: u32,
    request: u64,
}

/// A search that this machine's task has passed on, and need not again before a time.
#[derive(Clone, Copy, Debug, Hash)]
struct Passed {
    origin: Origin,
    task: u32,
    until: u64,
}

/// The searches of one machine.
#[derive(Clone, Debug)]
pub(crate) struct DeadlockSearch {
    every: u64,
    me: Identity,
    /// Requests that search when they have waited, and how often their time was doubled.
    timers: Timers<(u64, u8)>,
    passed: VecDeque<Passed>,
}

impl DeadlockSearch {
    pub(crate) fn new(config: &Config, me: Identity) -> Self {
        Self { every: config.search, me, timers: Timers::new(), passed: VecDeque::new() }
    }

    /// `request` begins to wait.
    pub(crate) fn watch(&mut self, now: u64, request: u64) {
        self.timers.set(now, self.every, (request, 0));
    }

    /// A search for a request that has waited for long enough.
    pub(crate) fn due(&mut self, now: u64, client: &Client) -> Option<Packet> {
        while let Some((request, searches)) = self.timers.due(now) {
            if let Some(lock) = client.searching(request) {
                let searches = MAX_DOUBLINGS.min(searches + 1);
                self.timers.set(now, self.every << searches, (request, searches));
                let origin = Origin { session: self.me.session, request };
                return Some(search(Kind::Seek, lock, (self.me, request), origin, 0));
            }
        }
        None
    }

    /// PROBE, at the machine of a holder: on to the locks that its tasks wait for which hold this one. The second is
    /// the request that has to give up, if it is one of theirs that began.
    pub(crate) fn probed(&mut self, now: u64, packet: &Packet, client: &Client) -> (Vec<Packet>, Option<u64>) {
        let (origin, mut seeks) = (origin(packet), Vec::new());
        if packet.requester_session != self.me.session {
            return (seeks, None);
        }
        self.passed.retain(|passed| now < passed.until);
        for task in client.holding(packet.lock) {
            let (largest, this) = ((origin.session, task_of(origin.request)), (self.me.session, task));
            if this == largest && client.searching(origin.request).is_some() {
                return (Vec::new(), Some(origin.request));
            }
            let known = self.passed.iter().any(|passed| (passed.origin, passed.task) == (origin, task));
            if this >= largest || known || packet.hops >= MAX_STEPS {
                continue;
            }
            if self.passed.len() == MAX_PASSED {
                self.passed.pop_front();
            }
            self.passed.push_back(Passed { origin, task, until: now.saturating_add(self.every / 2) });
            let on = |(request, lock)| search(Kind::Seek, lock, (self.me, request), origin, packet.hops + 1);
            seeks.extend(client.searching_of(task).map(on));
        }
        (seeks, None)
    }

    /// When [`DeadlockSearch::due`] has something to do.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.timers.next()
    }

    pub(crate) fn prune(&mut self, client: &Client) {
        self.timers.retain(|(request, _)| client.searching(*request).is_some());
    }

    pub(crate) fn snapshot(&self, now: u64, into: &mut impl Hasher) {
        for (_, due, request) in self.timers.all() {
            (due.saturating_sub(now), request).hash(into);
        }
        for Passed { origin, task, until } in &self.passed {
            (origin, task, until.saturating_sub(now)).hash(into);
        }
    }
}

/// SEEK, at the agent: on to all who hold the lock, if the request waits here.
pub(crate) fn sought(packet: &Packet, pool: &AgentPool) -> Vec<Packet> {
    let holders = pool.holders_before(packet.lock, packet.requester, packet.request);
    let holders = holders.into_iter().map(|(machine, session)| Identity { machine, session });
    holders.map(|holder| search(Kind::Probe, packet.lock, (holder, 0), origin(packet), packet.hops)).collect()
}

/// A packet about a request in a search. By `part`, answers of the decider are known for what they are.
fn search(kind: Kind, lock: u64, (of, request): (Identity, u64), origin: Origin, hops: u8) -> Packet {
    Packet {
        requester: of.machine,
        requester_session: of.session,
        request,
        target: of.machine,
        part: kind as u8,
        incarnation: origin.session,
        token: origin.request,
        hops,
        ..Packet::new(kind, lock)
    }
}

const fn origin(packet: &Packet) -> Origin {
    Origin { session: packet.incarnation, request: packet.token }
}
