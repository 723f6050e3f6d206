//! Who leads, by a lease in the journal.
//!
//! The lease is a text with a revision, which its holder writes again and again. A node that has seen one revision for
//! the whole time of a lease writes its own, on the condition that the revision is still that one. Then it reads what
//! the journal has, appends the first record of an epoch, and leads. A leader that could not write for nine tenths of
//! the time answers no reads: others count from when they saw the revision, which is later than when it was written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use lockwork_storage::Digest;

use super::{Journal, Key, LogRange};
use crate::error::Error;
use crate::order::Request;
use crate::shared::lock;
use crate::threads::Threads;

/// How long servers may take to say what they have, or for some of it to be appended.
const COMPLETING: Duration = Duration::from_secs(5);

/// How a node takes part.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// What others are told when this node leads: where its clients call it. One line, not empty.
    pub address: String,
    /// How long a lease holds.
    pub lease: Duration,
    /// Whether this node may lead; one that may not only replays.
    pub may_lead: bool,
    /// The least time between two digests of the whole database that it appends when it leads, or has the parts make;
    /// zero for none. At most a hundredth of the time is spent on them.
    pub digest_interval: Duration,
    /// Whether what it computes is compared with what leaders have computed.
    pub compares: bool,
    /// Its clock and its threads: the system's, unless it is simulated.
    pub threads: Threads,
}

impl NodeOptions {
    /// A node that may lead.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            lease: Duration::from_millis(1500),
            may_lead: true,
            digest_interval: Duration::from_secs(10),
            compares: true,
            threads: Threads::default(),
        }
    }

    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn validate(&self) -> Result<(), Error> {
        let refuse =
            |option, value: String, expected: &str| Err(Error::Option { option, value, expected: expected.into() });
        if self.address.is_empty() || self.address.len() > 255 || self.address.chars().any(char::is_control) {
            return refuse("address", format!("'{}'", self.address), "1 to 255 bytes of text are possible");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.lease) {
            return refuse("lease", format!("{:?}", self.lease), "0.1 to 60 s are possible");
        }
        Ok(())
    }
}

/// What a node does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It replays, and answers reads as of what it has replayed.
    #[default]
    Following,
    /// It runs calls.
    Leading,
    /// It takes calls for a stream of its own, which the node that leads merges into the order of all.
    Sequencing,
    /// It did lead, or cannot go on; opening it again shows the state of the log.
    Ended,
}

/// How far a node is in the stream of a further sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    /// The part whose nodes take calls for it, from 0.
    pub part: u16,
    /// The last message that is merged.
    pub merged: u64,
    /// How many more are known: read, or named by the order.
    pub lag: u64,
}

/// How a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// What it does.
    pub role: Role,
    /// The address of who leads, as far as is known.
    pub leader: Option<String>,
    /// The epoch of the last record that it has.
    pub epoch: u64,
    /// The number of the next record that it wants.
    pub next: u64,
    /// The number of the next record of the journal, when it was last asked.
    pub journal_next: u64,
    /// What is wrong: why the journal cannot be reached, or why the role has ended.
    pub trouble: Option<String>,
    /// The last record of a digest of all that it has (the whole database, or its part) which it gave to others, or had
    /// the same, and that.
    pub compared: Option<(u64, Digest)>,
    /// The first record that this node differs at from the leader, or another node of its part; its role has ended.
    pub differs: Option<u64>,
    /// The streams of further sequencers, if there are any.
    pub streams: Vec<StreamStatus>,
}

#[derive(Debug, Default)]
struct State {
    role: Role,
    leader: Option<String>,
    epoch: u64,
    /// Until when nobody else can have begun to lead.
    until: Option<Instant>,
    /// Until when the lease is kept though nobody leads yet.
    kept: Option<Instant>,
    trouble: Option<String>,
    compared: Option<(u64, Digest)>,
    differs: Option<u64>,
    /// Counts what whoever waits is woken for.
    changes: u64,
}

/// What the threads of a node know of its part.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    state: Mutex<State>,
    changed: Condvar,
    /// Nothing is wanted any more.
    closed: AtomicBool,
    journal_next: AtomicU64,
    threads: Threads,
}

impl Membership {
    pub(crate) fn new(threads: Threads) -> Self {
        Self { threads, ..Self::default() }
    }

    pub(crate) fn role(&self) -> Role {
        lock(&self.state).role
    }

    pub(crate) fn status(&self, next: u64) -> NodeStatus {
        let journal_next = self.journal_next().max(next);
        let State { role, epoch, compared, differs, ref leader, ref trouble, .. } = *lock(&self.state);
        let (leader, trouble) = (leader.clone(), trouble.clone());
        NodeStatus { role, leader, epoch, next, journal_next, trouble, compared, differs, streams: Vec::new() }
    }

    /// The address of who leads, for people.
    pub(crate) fn leader(&self) -> String {
        lock(&self.state).leader.clone().unwrap_or_else(|| "nobody".into())
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        lock(&self.state).epoch = epoch;
    }

    /// The journal's next record when it was last asked, or later.
    pub(crate) fn journal_next(&self) -> u64 {
        self.journal_next.load(Ordering::Relaxed)
    }

    /// A digest of the whole database has been appended, or was the same here.
    pub(crate) fn compared(&self, record: u64, digest: Digest) {
        lock(&self.state).compared = Some((record, digest));
    }

    /// This node has something else than the leader had.
    pub(crate) fn differs(&self, record: u64) {
        lock(&self.state).differs.get_or_insert(record);
    }

    pub(crate) fn saw(&self, log_range: LogRange) {
        self.journal_next.fetch_max(log_range.next, Ordering::Relaxed);
    }

    /// What the journal says, or that it says nothing.
    pub(crate) fn reached(&self, trouble: Option<String>) {
        let mut state = lock(&self.state);
        if state.role != Role::Ended {
            state.trouble = trouble;
        }
    }

    /// It leads, or sequences.
    pub(crate) fn take(&self, role: Role) {
        lock(&self.state).role = role;
        self.wake();
    }

    /// The role is over, for this reason; the first one stands.
    pub(crate) fn end(&self, why: String) {
        let mut state = lock(&self.state);
        if state.role != Role::Ended {
            (state.role, state.trouble, state.until) = (Role::Ended, Some(why), None);
        }
        drop(state);
        self.wake();
    }

    /// Whether nobody else can have begun to lead.
    ///
    /// # Errors
    /// [`Error::Lapsed`] when that is not certain.
    pub(crate) fn may_answer(&self) -> Result<(), Error> {
        let until = lock(&self.state).until;
        if until.is_some_and(|until| self.threads.now() < until) { Ok(()) } else { Err(Error::Lapsed) }
    }

    /// It is asked for messages that one server alone has, or some of them were appended: the lease is kept meanwhile.
    pub(crate) fn completes(&self) {
        lock(&self.state).kept = Some(self.threads.now() + COMPLETING);
    }

    fn is_completing(&self) -> bool {
        lock(&self.state).kept.is_some_and(|kept| self.threads.now() < kept)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        lock(&self.state).changes += 1;
        self.changed.notify_all();
    }

    /// Waits so long, or until its part has changed.
    fn wait(&self, time: Duration) {
        let before = lock(&self.state).changes;
        let waits = |state: &mut State| state.changes == before && !self.is_closed();
        drop(self.threads.wait_while((&self.state, &self.changed), Some(time), waits));
    }
}

/// See the module.
pub(crate) struct Election {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) options: NodeOptions,
    pub(crate) membership: Arc<Membership>,
    pub(crate) requests: SyncSender<Request>,
    /// What it writes: its address, and a number that no other node has, nor this one after it was opened again.
    pub(crate) holder: String,
}

/// What a holder of this address writes.
pub(crate) fn holder(address: &str, node: u64) -> String {
    format!("{address} {node:016x}")
}

/// The address of a holder.
fn address_of(holder: &str) -> &str {
    holder.rsplit_once(' ').map_or(holder, |(address, _)| address)
}

impl Election {
    /// Looks after the lease until nothing is wanted any more.
    pub(crate) fn run(self) {
        let tick = self.tick();
        // The revision that was seen last, and since when.
        let mut seen: Option<(u64, Instant)> = None;
        let mut mine: Option<u64> = None;
        while !self.membership.is_closed() && self.membership.role() != Role::Ended {
            let outcome = match mine {
                Some(revision) => self.renew(revision).map(|renewed| {
                    if renewed.is_none() {
                        self.membership.end("the lease is another node's".into());
                    }
                    mine = renewed;
                }),
                None => self.look(&mut seen).map(|taken| mine = taken),
            };
            self.membership.reached(outcome.err());
            // Until it leads, it asks again and again to.
            if mine.is_some() && self.membership.role() == Role::Following {
                match self.lead(&mut mine) {
                    Some(trouble) => self.membership.reached(Some(trouble)),
                    None => continue,
                }
            }
            self.membership.wait(tick);
        }
        // Who gives it back need not be waited for. That it cannot be given back is no harm.
        if let Some(revision) = mine {
            drop(self.journal.write(Key::Leader, revision, ""));
        }
    }

    /// Asks that an epoch be begun, and waits for that; why it was not, if it is said. What other servers lack is
    /// appended before, which may take longer than a lease: so the lease is renewed as long as that goes on. If
    /// anything else takes so long, it runs out, and it is another node's turn; no epoch begins without it.
    fn lead(&self, mine: &mut Option<u64>) -> Option<String> {
        let (reply, answer) = sync_channel(1);
        let threads = &self.membership.threads;
        // Who takes no requests any more never answers.
        threads.send(&self.requests, Request::Lead(reply)).ok()?;
        loop {
            match threads.receive(&answer, Some(self.tick())) {
                Ok(begun) => return begun.err().map(|error| error.to_string()),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    // If it is another node's by now, no epoch begins, and it is found then.
                    if self.membership.is_completing()
                        && let Some(renewed) = mine.and_then(|revision| self.renew(revision).ok()?)
                    {
                        *mine = Some(renewed);
                    }
                }
            }
        }
    }

    /// How often the lease is looked after.
    fn tick(&self) -> Duration {
        self.options.lease / 8
    }

    fn hold(&self, sent: Instant) {
        let mut state = lock(&self.membership.state);
        (state.until, state.leader) = (Some(sent + self.options.lease / 10 * 9), Some(self.options.address.clone()));
    }

    /// Writes the lease again; nothing if it is another node's.
    fn renew(&self, revision: u64) -> Result<Option<u64>, String> {
        let sent = self.membership.threads.now();
        let failed = |error: super::Unreachable| error.to_string();
        if let Some(revision) = self.journal.write(Key::Leader, revision, &self.holder).map_err(failed)? {
            self.hold(sent);
            return Ok(Some(revision));
        }
        // It was written all the same if an answer was lost.
        let lease = self.journal.entry(Key::Leader).map_err(failed)?.filter(|lease| lease.text == self.holder);
        Ok(lease.map(|lease| lease.revision))
    }

    /// Looks who leads, and takes the lease if nobody does.
    fn look(&self, seen: &mut Option<(u64, Instant)>) -> Result<Option<u64>, String> {
        let failed = |error: super::Unreachable| error.to_string();
        let lease = self.journal.entry(Key::Leader).map_err(failed)?;
        self.membership.saw(self.journal.log_range().map_err(failed)?);
        let revision = lease.as_ref().map_or(0, |lease| lease.revision);
        let holder = lease.map(|lease| lease.text).filter(|holder| !holder.is_empty());
        if holder.as_ref() == Some(&self.holder) {
            return Ok(Some(revision));
        }
        let now = self.membership.threads.now();
        let since = match *seen {
            Some((known, since)) if known == revision => since,
            _ => {
                *seen = Some((revision, now));
                now
            }
        };
        let vacant = holder.is_none() || now.saturating_duration_since(since) >= self.options.lease;
        let leader = holder.filter(|_| !vacant).map(|holder| address_of(&holder).to_string());
        lock(&self.membership.state).leader = leader;
        if !vacant || !self.options.may_lead {
            return Ok(None);
        }
        let sent = self.membership.threads.now();
        let taken = self.journal.write(Key::Leader, revision, &self.holder).map_err(failed)?;
        if taken.is_some() {
            self.hold(sent);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;
    use crate::journal::simulated::SimulatedJournal;

    /// Looks after a lease; what it asks for, and the end.
    fn elect(journal: &SimulatedJournal, membership: &Arc<Membership>) -> (Receiver<Request>, Receiver<()>) {
        let (requests, taken) = sync_channel(1);
        let options = NodeOptions { lease: Duration::from_millis(200), ..NodeOptions::new("a") };
        let (journal, membership, holder) = (Arc::new(journal.another()), membership.clone(), holder("a", 1));
        let election = Election { journal, options, membership, requests, holder };
        let (ended, end) = sync_channel(1);
        std::thread::spawn(move || {
            election.run();
            ended.send(()).ok();
        });
        (taken, end)
    }

    #[test]
    fn who_gets_the_lease_when_nobody_takes_requests_any_more_ends_all_the_same() {
        let journal = SimulatedJournal::new(1);
        let membership = Arc::new(Membership::new(Threads::default()));
        let (taken, end) = elect(&journal, &membership);
        drop(taken);
        while journal.entry(Key::Leader).unwrap().is_none() {
            std::thread::yield_now();
        }
        membership.close();
        assert!(end.recv_timeout(Duration::from_secs(30)).is_ok());
    }

    #[test]
    fn the_lease_is_kept_while_what_one_server_has_is_appended_and_not_otherwise() {
        let journal = SimulatedJournal::new(2);
        let membership = Arc::new(Membership::new(Threads::default()));
        let (taken, end) = elect(&journal, &membership);
        let revision = || journal.entry(Key::Leader).unwrap().unwrap().revision;
        let asked = || match taken.recv_timeout(Duration::from_secs(30)) {
            Ok(Request::Lead(reply)) => reply,
            other => panic!("{:?}", other.map(drop)),
        };
        // Nothing is heard of who is to begin: it may be another's turn.
        let reply = asked();
        let before = revision();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(revision(), before);
        reply.send(Err(Error::Unreachable("not yet".into()))).unwrap();
        // It says what it does.
        let reply = asked();
        let before = revision();
        membership.completes();
        let until = |holds: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !holds() {
                assert!(start.elapsed() < Duration::from_secs(30));
                std::thread::yield_now();
            }
        };
        until(&|| revision() >= before + 5);
        assert!(membership.may_answer().is_ok());
        // Another one takes it all the same.
        until(&|| journal.write(Key::Leader, revision(), "b 2").unwrap().is_some());
        until(&|| membership.may_answer().is_err());
        let message = vec![1];
        let refused = super::super::append_first(&journal, &membership, 1, message).unwrap_err();
        assert!(matches!(refused, Error::Unreachable(_)) && journal.log_range().unwrap().next == 1, "{refused}");
        reply.send(Err(refused)).unwrap();
        assert!(end.recv_timeout(Duration::from_secs(30)).is_ok());
        assert_eq!(membership.role(), Role::Ended);
    }
}
