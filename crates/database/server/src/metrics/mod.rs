//! What those who run a server want to know: counts, times, causes of failures, hot keys, and how far recovery is.
//!
//! Counting costs a call a few additions to numbers that threads share; of one in [`SAMPLED`] calls the keys are
//! looked at. `families` writes it for Prometheus, and `http` serves it to
//! Prometheus and to people.

mod families;
mod hot;
pub(crate) mod http;
mod parts;
mod token;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use lockwork::divided::Others;
use lockwork::{Caller, sequencer};
use serde_json::{Value, json};

use crate::verb::Verb;
use families::{counts, times};
use hot::Hot;
pub use http::Page;
use parts::Parts;
pub use token::{Token, TokenError};

/// The upper bounds of the buckets of times, in microseconds; one more is without bound.
const BOUNDS_US: [u64; 18] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];
/// Of one in so many calls the keys are counted.
pub(crate) const SAMPLED: u64 = 64;
/// Causes of failures that are told apart, and hot keys that are shown.
const MAX_CAUSES: usize = 100;
const HOT_SHOWN: usize = 10;

/// What a server does before it answers statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// It opens its data, or takes part in a cluster, and has not read anything yet.
    Opening,
    /// It connects to the NATS servers that keep its log.
    Connecting,
    /// It loads a checkpoint and replays the log.
    Recovering(sequencer::Progress),
    /// It runs the statements that a new database begins with.
    Initializing,
}

impl Stage {
    /// How far it has come, in a sentence without its full stop.
    fn progress(self) -> String {
        let percent = |done: u64, total: u64| (100 * u128::from(done)).checked_div(u128::from(total)).unwrap_or(0);
        match self {
            Self::Opening => "opening the database; nothing has been recovered yet".into(),
            Self::Connecting => "connecting to the NATS servers of the log".into(),
            Self::Recovering(sequencer::Progress { records, total_records, .. }) if total_records > 0 => {
                format!("replayed {records} of {total_records} records ({} %)", percent(records, total_records))
            }
            Self::Recovering(sequencer::Progress { done_bytes, total_bytes, calls, .. }) => format!(
                "recovered {done_bytes} of {total_bytes} bytes ({} %) of checkpoint and log, replayed {calls} calls",
                percent(done_bytes, total_bytes)
            ),
            Self::Initializing => "running the statements of a new database (--init)".into(),
        }
    }
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting(Stage),
    /// A node of a cluster that answers reads only, because another one leads.
    Following,
    /// A node of a cluster that has computed something else than its leader, and goes on with nothing.
    Stopped,
    Ready,
    ShutdownHandle,
}

/// A batch takes some ten milliseconds: a server that is at one thing for so long is not ready.
const STUCK: Duration = Duration::from_secs(5);

/// Why a statement failed: the procedure or kind of statement, SQLSTATE, and what `Refusal::cause` says, which has no
/// values in it.
type Cause = (String, String, String);

pub(crate) struct Watch {
    started: Instant,
    state: Mutex<State>,
    caller: RwLock<Option<Caller>>,
    /// Of a cluster.
    node: RwLock<Option<sequencer::Handle>>,
    /// Of a cluster whose nodes have parts.
    parts: Mutex<Option<Parts>>,
    /// Why it has stopped, if it has.
    stopped: Mutex<String>,
    pub(crate) connections: AtomicU64,
    pub(crate) connected: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) displaced: AtomicU64,
    pub(crate) wrong_logins: AtomicU64,
    statements: [AtomicU64; Verb::ALL.len()],
    calls: AtomicU64,
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    times_ns: AtomicU64,
    failures: Mutex<BTreeMap<Cause, u64>>,
    hot: Mutex<Hot>,
}

/// Watches a server from before it is there until it has ended.
#[derive(Clone)]
pub struct Watcher(pub(crate) Arc<Watch>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("state", &*lock(&self.state)).finish_non_exhaustive()
    }
}

impl Default for Watcher {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self(Arc::new(Watch {
            started: Instant::now(),
            state: Mutex::new(State::Starting(Stage::Opening)),
            caller: RwLock::default(),
            node: RwLock::default(),
            parts: Mutex::default(),
            stopped: Mutex::default(),
            connections: AtomicU64::new(0),
            connected: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            wrong_logins: AtomicU64::new(0),
            statements: std::array::from_fn(|_| AtomicU64::new(0)),
            calls: AtomicU64::new(0),
            buckets: zeros(),
            times_ns: AtomicU64::new(0),
            failures: Mutex::default(),
            hot: Mutex::default(),
        }))
    }
}

impl Watcher {
    /// Notes what the server does before it answers statements.
    pub fn starting(&self, stage: Stage) {
        self.0.set(State::Starting(stage));
    }

    /// This node of a cluster follows; it is shown how it stands, from now on.
    pub fn following(&self, node: sequencer::Handle) {
        *self.0.node.write().unwrap_or_else(PoisonError::into_inner) = Some(node);
        self.0.set(State::Following);
    }

    /// It has a part of every table, from 0, and these nodes have the others.
    pub fn divided(&self, part: u16, others: Others) {
        *lock(&self.0.parts) = Some(Parts { part, others });
    }

    /// This node of a cluster has stopped for good, for this reason: whoever runs it has to look.
    pub fn stopped(&self, why: &str) {
        *lock(&self.0.stopped) = why.into();
        self.0.set(State::Stopped);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Counts that a panic left are as good as any.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    fn set(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// There is a database now.
    pub(crate) fn watches(&self, caller: Caller) {
        *self.caller.write().unwrap_or_else(PoisonError::into_inner) = Some(caller);
    }

    /// Statements of everybody are answered from now on.
    pub(crate) fn ready(&self) {
        self.set(State::Ready);
    }

    fn caller(&self) -> RwLockReadGuard<'_, Option<Caller>> {
        self.caller.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How this node of a cluster stands.
    fn node(&self) -> Option<sequencer::NodeStatus> {
        self.node.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.node()
    }

    pub(crate) fn ending(&self) {
        self.set(State::ShutdownHandle);
    }

    /// How far the start has come, for clients that come too early.
    pub(crate) fn progress(&self) -> String {
        match *lock(&self.state) {
            State::Starting(stage) => stage.progress(),
            _ => Stage::Opening.progress(),
        }
    }

    fn is_ready(&self) -> bool {
        *lock(&self.state) == State::Ready
    }

    /// Whether it is ready, and why not; behind it which other parts are not there, for which calls wait.
    fn readiness(&self) -> (bool, String) {
        let state = &self.status(false)["state"];
        let why = state["why"].as_str().map_or(String::new(), |why| format!(": {why}"));
        let missing = lock(&self.parts).as_ref().map(Parts::missing).unwrap_or_default();
        let name = state["name"].as_str().unwrap_or_default();
        (name == "ready", format!("{name}{why}\n{missing}"))
    }

    /// A statement was answered, or failed for a cause.
    pub(crate) fn statement(&self, verb: Verb, took: Duration, failed: Option<Cause>) {
        if let Some(cause) = failed {
            self.failed(cause, 1);
        } else {
            self.statements[verb as usize].fetch_add(1, Relaxed);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)].fetch_add(1, Relaxed);
        self.times_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// As many failed for a cause.
    pub(crate) fn failed(&self, cause: Cause, count: u64) {
        let mut failures = lock(&self.failures);
        let is_new = failures.len() >= MAX_CAUSES && !failures.contains_key(&cause);
        let cause = if is_new { ("other".into(), cause.1, String::new()) } else { cause };
        // There are fewer SQLSTATEs than could hurt.
        *failures.entry(cause).or_default() += count;
    }

    /// Counts the keys of some of these calls.
    pub(crate) fn calls<'a>(&self, blocks: impl ExactSizeIterator<Item = &'a [u8]>) {
        let count = blocks.len() as u64;
        let before = self.calls.fetch_add(count, Relaxed);
        let first = (SAMPLED - before % SAMPLED) % SAMPLED;
        if first >= count {
            return;
        }
        let caller = self.caller();
        let Some(caller) = &*caller else { return };
        for block in blocks.skip(first as usize).step_by(SAMPLED as usize) {
            let keys = caller.keys(block);
            let mut hot = lock(&self.hot);
            keys.into_iter().for_each(|key| hot.count(key));
        }
    }

    /// For how long all calls have waited for one thing.
    fn busy_for(&self) -> Duration {
        self.caller().as_ref().map(Caller::busy_for).unwrap_or_default()
    }

    fn statistics(&self) -> sequencer::Statistics {
        self.caller().as_ref().map(Caller::statistics).unwrap_or_default()
    }

    /// What the page shows; the values of hot keys only with `shows_keys`.
    fn status(&self, shows_keys: bool) -> Value {
        let state = match *lock(&self.state) {
            State::Starting(stage @ Stage::Recovering(progress)) => {
                let by_records = progress.total_records > 0;
                let (done, total) = if by_records {
                    (progress.records, progress.total_records)
                } else {
                    (progress.done_bytes, progress.total_bytes)
                };
                json!({ "name": "recovering", "done": done, "total": total, "why": stage.progress() })
            }
            State::Starting(stage) => json!({ "name": "starting", "why": stage.progress() }),
            State::Following => json!({ "name": "following" }),
            State::Stopped => json!({ "name": "stopped", "why": *lock(&self.stopped) }),
            State::Ready => ready(self.busy_for()),
            State::ShutdownHandle => json!({ "name": "ending" }),
        };
        let count = |count: &AtomicU64| count.load(Relaxed);
        let statements = Verb::ALL.iter().zip(&self.statements);
        let statements: serde_json::Map<_, _> =
            statements.map(|(verb, of)| (verb.name().to_string(), count(of).into())).collect();
        let mut failures: Vec<_> = lock(&self.failures).iter().map(|(cause, count)| (cause.clone(), *count)).collect();
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let failures: Vec<_> = failures
            .into_iter()
            .map(|((what, sqlstate, message), count)| json!([what, sqlstate, message, count]))
            .collect();
        let hot = lock(&self.hot);
        let hot = hot.top(HOT_SHOWN).into_iter();
        let hot: Vec<_> = hot.map(|((t, key), share)| json!([t, shows_keys.then_some(key), share])).collect();
        let statistics = self.statistics();
        let counts = counts(&statistics).map(|(name, _, count)| (name.to_string(), Value::from(count)));
        let times = times(&statistics).map(|(name, _, seconds)| (name.to_string(), Value::from(seconds)));
        let log: serde_json::Map<_, _> = counts.into_iter().chain(times).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"), "state": state, "uptime": self.started.elapsed().as_secs_f64(),
            "resident": resident_bytes(), "connections": count(&self.connections), "statements": statements,
            "calls": count(&self.calls), "bounds_us": BOUNDS_US,
            "buckets": self.buckets.iter().map(count).collect::<Vec<_>>(),
            "failures": failures, "hot": hot, "log": log, "node": self.node().as_ref().map(node_json),
            "parts": lock(&self.parts).as_ref().map(Parts::status),
        })
    }
}

/// How a node of a cluster stands.
fn node_json(node: &sequencer::NodeStatus) -> Value {
    let role = match node.role {
        sequencer::Role::Following => "following",
        sequencer::Role::Leading => "leading",
        sequencer::Role::Sequencing => "sequencing",
        sequencer::Role::Ended => "ended",
    };
    json!({
        "role": role, "leader": node.leader, "epoch": node.epoch, "record": node.next - 1,
        "lag": node.journal_next - node.next, "trouble": node.trouble, "differs": node.differs,
        "streams": node.streams.iter().map(|of| json!([of.part + 1, of.merged, of.lag])).collect::<Vec<_>>(),
        "compared": node.compared.map(|(record, digest)| json!([record, digest.to_string()])),
    })
}

/// The state of a server that is ready unless it has been at one thing for too long.
fn ready(busy: Duration) -> Value {
    if busy < STUCK {
        return json!({ "name": "ready" });
    }
    let why = format!("all calls wait for one thing that has been under way for {} s", busy.as_secs());
    json!({ "name": "busy", "why": why })
}

/// Memory of this process that is in RAM; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages: Option<u64> = pages.as_deref().and_then(|text| text.split(' ').nth(1)?.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_been_at_one_thing_for_long_is_not_ready() {
        assert_eq!(ready(Duration::from_millis(4_999)), json!({ "name": "ready" }));
        assert_eq!(ready(Duration::from_secs(7))["name"], "busy");
    }

    #[test]
    fn it_is_told_how_far_recovery_is() {
        let watcher = Watcher::default();
        assert_eq!(watcher.0.status(false)["state"]["name"], "starting");
        let bytes = sequencer::Progress { done_bytes: 5, total_bytes: 10, calls: 7, ..Default::default() };
        watcher.starting(Stage::Recovering(bytes));
        let why = "recovered 5 of 10 bytes (50 %) of checkpoint and log, replayed 7 calls";
        let state = json!({ "name": "recovering", "done": 5, "total": 10, "why": why });
        assert_eq!(watcher.0.status(false)["state"], state);
        assert_eq!(
            (watcher.0.progress(), watcher.0.readiness()),
            (why.into(), (false, format!("recovering: {why}\n")))
        );
        assert!(families::text(&watcher.0).contains("\nlockwork_recovery_expected_bytes 10\n"));
        assert!(!watcher.0.is_ready());
        watcher.starting(Stage::Recovering(sequencer::Progress { records: 3, total_records: 4, ..bytes }));
        assert_eq!(watcher.0.readiness(), (false, "recovering: replayed 3 of 4 records (75 %)\n".into()));
        assert!(families::text(&watcher.0).contains("\nlockwork_recovery_done_records 3\n"));
        watcher.starting(Stage::Connecting);
        assert_eq!(watcher.0.status(false)["state"]["name"], "starting");
        watcher.0.ending();
        assert_eq!(watcher.0.status(false)["state"]["name"], "ending");
        assert_eq!(watcher.0.readiness(), (false, "ending\n".into()));
        watcher.stopped("record 7: it differs");
        assert_eq!(watcher.0.readiness(), (false, "stopped: record 7: it differs\n".into()));
        assert!(!watcher.0.is_ready());
    }

    #[test]
    fn times_fall_into_their_buckets_and_causes_are_bounded() {
        let watch = Watcher::default().0;
        for us in [0, 10, 11, 10_000_000, 10_000_001, u64::MAX / 1000] {
            watch.statement(Verb::Call, Duration::from_micros(us), None);
        }
        let buckets: Vec<u64> = watch.buckets.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!((buckets[0], buckets[1], buckets[17], buckets[18]), (2, 1, 1, 2));
        for number in 0..1000 {
            watch.failed(("p".into(), "P0001".into(), number.to_string()), 1);
        }
        let failures = lock(&watch.failures);
        assert_eq!((failures.len(), failures.values().sum::<u64>()), (MAX_CAUSES + 1, 1000));
    }
}
