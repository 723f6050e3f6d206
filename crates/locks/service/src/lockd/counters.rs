//! What the daemon counts, and how Prometheus reads it.
//!
//! One thread counts and another reads, so a counter is written with a plain store: no locked instruction on the path
//! of a packet, and a reader sees a value that was true a moment ago.

use lockwork_lock_protocol::packet::{Kind, Malformed, Problem};
use lockwork_lock_protocol::registry::Counters as RegistryCounters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelValue, EncodeMetric, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
}

/// Returns the text that Prometheus reads.
pub(super) fn text(counters: &Arc<Counters>) -> String {
    let mut registry = Registry::with_prefix("lockwork_lockd");
    registry.register_collector(Box::new(counters.clone()));
    let mut text = String::new();
    // Writing to a String does not fail.
    _ = prometheus_text::encode(&mut text, &registry);
    text
}

impl Collector for Counters {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let mut build = writer.0.encode_descriptor("build", "The version of the program.", None, MetricType::Info)?;
        build.encode_info(&version)?;
        let kinds = Kind::ALL.map(|kind| (format!("{kind:?}").to_lowercase(), self.received[kind as usize].get()));
        writer.counters("packets", "Packets received by the daemon, by kind.", "kind", kinds)?;
        let named = |names: &'static [&'static str], counters: &[Counter]| -> Vec<(&'static str, u64)> {
            names.iter().copied().zip(counters.iter().map(Counter::get)).collect()
        };
        let grants = named(&["shared", "exclusive"], &self.granted);
        writer.counters("grants", "Locks granted by the decider of this process.", "mode", grants)?;
        let dropped = named(&DROPS, &self.dropped);
        writer.counters("packets_dropped", "Packets that changed nothing, by cause.", "cause", dropped)?;
        let problems = named(&PROBLEMS, &self.problems);
        writer.counters("packets_refused", "Packets answered with an error.", "problem", problems)?;
        writer.counter("decisions", "Packets decided on or sent on.", self.decisions.get())?;
        self.encode_state(&mut writer)?;
        let slow = self.slow.lock().map(|slow| slow.clone()).unwrap_or_default();
        encode_registry(&slow.registry, &mut writer)?;
        if slow.plane.is_empty() {
            return Ok(());
        }
        writer.counters("data_plane_events", "What the data plane in the kernel has counted.", "cause", slow.plane)
    }
}

impl Counters {
    /// Writes how the daemon stands.
    fn encode_state(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let gauges = [
            ("locks", "Locks there are.", &self.locks),
            ("machines", "Machines that live.", &self.machines),
            ("machines_gone", "Machines that are gone and not yet swept.", &self.gone),
            ("locks_in_custody", "Locks whose agents are in the daemon.", &self.adopted),
            ("machines_recovering", "Machines that have not reported what they hold.", &self.recovering),
            ("records_up", "1 if who takes part is written down, and can be now.", &self.records),
            ("joins_waiting", "Machines that join and are not written down yet.", &self.joining),
            ("names", "Names that mean a lock.", &self.names),
            ("names_under_way", "Names that are on their way into etcd or out of it.", &self.names_under_way),
            ("etcd_up", "1 if etcd answers, or is not used.", &self.etcd),
        ];
        gauges.into_iter().try_for_each(|(name, help, counter)| writer.gauge(name, help, counter.get()))
    }
}

fn encode_registry(counters: &RegistryCounters, writer: &mut Writer<'_>) -> fmt::Result {
    let RegistryCounters { joined, left, expired, full, strangers, foreign_leaves, .. } = *counters;
    let RegistryCounters { freed, adopted, sweeps, restored, .. } = *counters;
    let all = [
        ("sessions_joined", "Sessions begun.", joined),
        ("sessions_left", "Sessions ended by their machines.", left),
        ("sessions_expired", "Sessions ended because nothing was heard of them.", expired),
        ("joins_refused", "Processes turned away because no machine number was free.", full),
        ("strangers", "Control packets of sessions that are not there.", strangers),
        ("foreign_leaves", "Packets that would have ended the session of another address.", foreign_leaves),
        ("locks_freed", "Locks freed because their holder was gone.", freed),
        ("locks_adopted", "Locks adopted because their agent was gone.", adopted),
        ("words_restored", "Words that came back from machines' reports.", restored),
        ("sweeps", "Sweeps of a lock that agents asked for.", sweeps),
    ];
    all.into_iter().try_for_each(|(name, help, value)| writer.counter(name, help, value))
}

/// Writes metrics one by one.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// Writes a counter, `name` without its `_total`.
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    /// Writes a counter with a value for each value of a label.
    fn counters<L: EncodeLabelValue>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        all: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        let mut all = all.into_iter();
        all.try_for_each(|(of, value)| ConstCounter::new(value).encode(encoder.encode_family(&[(label, of)])?))
    }
}
