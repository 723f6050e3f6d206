//! What the daemon counts, and how Prometheus reads it.
//!
//! One thread counts and another reads, so a counter is written with a plain store: no locked instruction on the path
//! of a packet, and a reader sees a value that was true a moment ago.

use lockwork_lock_protocol::packet::{Kind, Malformed, Problem};
use lockwork_lock_protocol::registry::Counters as RegistryCounters;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a datagram was dropped, in the order of the counters.
const DROPS: [&str; 11] = [
    "length",
    "magic",
    "version",
    "tag",
    "field",
    "address",
    "machine_gone",
    "unsent",
    "not_registry",
    "too_early",
    "not_back",
];

/// A packet for a machine that is not there any more.
pub(super) const MACHINE_GONE: usize = 6;
/// Not from an internet address.
pub(super) const NO_ADDRESS: usize = 5;
const UNSENT: usize = 7;
/// Says that it is from the registry, and is not.
pub(super) const NOT_REGISTRY: usize = 8;

/// Wants to join a service that waits for leases of before.
pub(super) const TOO_EARLY: usize = 9;
/// About a lock whose word is not back, or from a machine that has not gone on yet.
pub(super) const NOT_BACK: usize = 10;

/// Which problems were answered, in the order of their numbers from 1.
const PROBLEMS: [&str; 10] = [
    "no_such_lock",
    "no_such_session",
    "no_such_machine",
    "full",
    "not_held",
    "names_full",
    "no_names",
    "no_such_name",
    "waits",
    "moved",
];

/// All counters of a daemon.
#[derive(Debug, Default)]
pub(super) struct Counters {
    received: [Counter; 32],
    dropped: [Counter; DROPS.len()],
    problems: [Counter; PROBLEMS.len()],
    pub(super) granted: [Counter; 2],
    pub(super) decisions: Counter,
    pub(super) locks: Counter,
    pub(super) machines: Counter,
    pub(super) gone: Counter,
    /// Machines that have not reported to a decider that was restored.
    pub(super) recovering: Counter,
    /// 1 if who takes part can be written down.
    pub(super) records: Counter,
    /// Machines that join and are not written down yet.
    pub(super) joining: Counter,
    pub(super) adopted: Counter,
    pub(super) names: Counter,
    pub(super) names_under_way: Counter,
    /// 1 if etcd answers or there is none to be asked.
    pub(super) etcd: Counter,
    /// Refreshed now and then.
    pub(super) slow: Mutex<Slow>,
}

/// What is copied from elsewhere now and then.
#[derive(Clone, Debug, Default)]
pub(super) struct Slow {
    pub(super) registry: RegistryCounters,
    pub(super) plane: Vec<(String, u64)>,
}

impl Counters {
    pub(super) fn received(&self, kind: Kind) {
        self.received[kind as usize].add(1);
    }

    pub(super) fn malformed(&self, how: Malformed) {
        let at = match how {
            Malformed::Length => 0,
            Malformed::Magic => 1,
            Malformed::Version(_) => 2,
            Malformed::Tag => 3,
            Malformed::Field => 4,
        };
        self.dropped[at].add(1);
    }

    pub(super) fn dropped(&self, why: usize) {
        self.dropped[why].add(1);
    }

    pub(super) fn set_unsent(&self, unsent: u64) {
        self.dropped[UNSENT].set(unsent);
    }

    pub(super) fn all_dropped(&self) -> u64 {
        self.dropped.iter().map(Counter::get).sum()
    }

    pub(super) fn problem(&self, problem: Problem) {
        if let Some(counter) = self.problems.get((problem as usize).wrapping_sub(1)) {
            counter.add(1);
        }
    }

    /// The text that Prometheus reads.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
            _ = writeln!(text, "# HELP lockwork_lockd_{name} {help}\n# TYPE lockwork_lockd_{name} {kind}");
            for (labels, value) in samples {
                _ = writeln!(text, "lockwork_lockd_{name}{labels} {value}");
            }
        };
        let labelled = |label: &str, names: &[&str], counters: &[Counter]| -> Vec<(String, u64)> {
            let line = |(name, counter): (&&str, &Counter)| (format!("{{{label}=\"{name}\"}}"), counter.get());
            names.iter().zip(counters).map(line).collect()
        };
        let plain = |value: u64| vec![(String::new(), value)];
        let kinds = Kind::ALL.map(|kind| {
            let name = format!("{kind:?}").to_lowercase();
            (format!("{{kind=\"{name}\"}}"), self.received[kind as usize].get())
        });
        family("packets_total", "counter", "Packets received by the daemon, by kind.", &kinds);
        let grants = labelled("mode", &["shared", "exclusive"], &self.granted);
        family("grants_total", "counter", "Locks granted by the decider of this process.", &grants);
        let dropped = labelled("cause", &DROPS, &self.dropped);
        family("dropped_total", "counter", "Packets that changed nothing, by cause.", &dropped);
        let problems = labelled("problem", &PROBLEMS, &self.problems);
        family("errors_total", "counter", "Packets answered with an error.", &problems);
        family("decisions_total", "counter", "Packets decided on or sent on.", &plain(self.decisions.get()));
        family("locks", "gauge", "Locks there are.", &plain(self.locks.get()));
        family("machines", "gauge", "Machines that live.", &plain(self.machines.get()));
        family("machines_gone", "gauge", "Machines that are gone and not yet swept.", &plain(self.gone.get()));
        family("locks_in_custody", "gauge", "Locks whose agents are in the daemon.", &plain(self.adopted.get()));
        let recovering = self.recovering.get();
        family("machines_recovering", "gauge", "Machines that have not reported what they hold.", &plain(recovering));
        let records = self.records.get();
        family("records_up", "gauge", "1 if who takes part is written down, and can be now.", &plain(records));
        let joining = self.joining.get();
        family("joins_waiting", "gauge", "Machines that join and are not written down yet.", &plain(joining));
        family("names", "gauge", "Names that mean a lock.", &plain(self.names.get()));
        let help = "Names that are on their way into etcd or out of it.";
        family("names_under_way", "gauge", help, &plain(self.names_under_way.get()));
        family("etcd_up", "gauge", "1 if etcd answers, or is not used.", &plain(self.etcd.get()));
        let slow = self.slow.lock().map(|slow| slow.clone()).unwrap_or_default();
        let RegistryCounters { joined, left, expired, full, strangers, foreign_leaves, .. } = slow.registry;
        let RegistryCounters { freed, adopted, sweeps, restored, .. } = slow.registry;
        let registry = [
            ("sessions_joined_total", "Sessions begun.", joined),
            ("sessions_left_total", "Sessions ended by their machines.", left),
            ("sessions_expired_total", "Sessions ended because nothing was heard of them.", expired),
            ("joins_refused_total", "Processes turned away because no machine number was free.", full),
            ("strangers_total", "Control packets of sessions that are not there.", strangers),
            ("foreign_leaves_total", "Packets that would have ended the session of another address.", foreign_leaves),
            ("locks_freed_total", "Locks freed because their holder was gone.", freed),
            ("locks_adopted_total", "Locks adopted because their agent was gone.", adopted),
            ("words_restored_total", "Words that came back from machines' reports.", restored),
            ("sweeps_total", "Sweeps of a lock that agents asked for.", sweeps),
        ];
        for (name, help, value) in registry {
            family(name, "counter", help, &plain(value));
        }
        if !slow.plane.is_empty() {
            let samples: Vec<_> =
                slow.plane.iter().map(|(cause, value)| (format!("{{cause=\"{cause}\"}}"), *value)).collect();
            family("plane_total", "counter", "What the data plane in the kernel has counted.", &samples);
        }
        text
    }
}
