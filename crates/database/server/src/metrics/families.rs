//! What a server counts, as Prometheus reads it: names with the unit in them, seconds and bytes, `_total` for counters.

use std::fmt::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockwork::sequencer;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{BOUNDS_US, Stage, State, Watch, lock, resident_bytes};
use crate::verb::Verb;

/// The text that Prometheus reads.
pub(super) fn text(watch: &Arc<Watch>) -> String {
    let mut registry = Registry::with_prefix("lockwork");
    registry.register_collector(Box::new(Counts(watch.clone())));
    let mut text = String::new();
    // Writing to a String does not fail.
    _ = prometheus_text::encode(&mut text, &registry);
    text
}

/// Writes metrics one by one.
pub(super) struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    /// Writes a gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    /// Writes a gauge with a value for each set of labels.
    pub(super) fn gauges<L, V>(&mut self, name: &str, help: &str, all: impl IntoIterator<Item = (L, V)>) -> Result
    where
        L: EncodeLabelSet,
        V: EncodeGaugeValue,
    {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let mut all = all.into_iter();
        all.try_for_each(|(labels, value)| ConstGauge::new(value).encode(encoder.encode_family(&labels)?))
    }

    /// Writes a counter without labels, `name` without its `_total`.
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Writes a counter with a value for each set of labels.
    fn counters<L, V>(&mut self, name: &str, help: &str, all: impl IntoIterator<Item = (L, V)>) -> Result
    where
        L: EncodeLabelSet,
        V: EncodeCounterValue,
    {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        let mut all = all.into_iter();
        all.try_for_each(|(labels, value)| ConstCounter::new(value).encode(encoder.encode_family(&labels)?))
    }
}

/// The counts of a server, read when they are written.
#[derive(Debug)]
struct Counts(Arc<Watch>);

impl Collector for Counts {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let (watch, mut writer) = (&*self.0, Writer(encoder));
        watch.encode_process(&mut writer)?;
        watch.encode_clients(&mut writer)?;
        watch.encode_statements(&mut writer)?;
        watch.encode_log(&mut writer)?;
        if let Some(node) = watch.node() {
            encode_node(&node, &mut writer)?;
        }
        watch.encode_differs(&mut writer)?;
        match &*lock(&watch.parts) {
            Some(parts) => parts.encode(&mut writer),
            None => Ok(()),
        }
    }
}

impl Watch {
    fn encode_process(&self, writer: &mut Writer<'_>) -> Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let mut build = writer.0.encode_descriptor("build", "The version of the program.", None, MetricType::Info)?;
        build.encode_info(&version)?;
        writer.gauge("ready", "Whether statements are answered.", u64::from(self.is_ready()))?;
        writer.gauge("uptime_seconds", "Since it started.", self.started.elapsed().as_secs_f64())?;
        let progress = match *lock(&self.state) {
            State::Starting(Stage::Recovering(progress)) => progress,
            _ => sequencer::Progress::default(),
        };
        let help = "Bytes of log and checkpoint that are recovered, while it recovers.";
        writer.gauge("recovery_done_bytes", help, progress.done_bytes)?;
        let help = "Bytes of log and checkpoint that there are to recover, while it recovers.";
        writer.gauge("recovery_expected_bytes", help, progress.total_bytes)?;
        let help = "Records of a cluster's log that are replayed, while it replays them.";
        writer.gauge("recovery_done_records", help, progress.records)?;
        let help = "Records of a cluster's log that there are to replay, while it replays them.";
        writer.gauge("recovery_expected_records", help, progress.total_records)?;
        let help = "For how long all calls have waited for one batch, transaction, definition or read.";
        writer.gauge("busy_seconds", help, self.busy_for().as_secs_f64())?;
        writer.gauge("resident_memory_bytes", "Memory of the process that is in RAM.", resident_bytes())
    }

    fn encode_clients(&self, writer: &mut Writer<'_>) -> Result {
        let count = |count: &AtomicU64| count.load(Relaxed);
        writer.gauge("connections", "Clients.", count(&self.connections))?;
        writer.counter("connections_accepted", "Clients that came.", count(&self.connected))?;
        writer.counter("connections_refused", "Clients too many.", count(&self.refused))?;
        let help = "Unfinished logins that gave way to new connections.";
        writer.counter("logins_displaced", help, count(&self.displaced))?;
        writer.counter("logins_refused", "Wrong passwords.", count(&self.wrong_logins))
    }

    fn encode_statements(&self, writer: &mut Writer<'_>) -> Result {
        let kinds = Verb::ALL.iter().zip(&self.statements);
        let kinds = kinds.map(|(verb, count)| ([("kind", verb.name())], count.load(Relaxed)));
        writer.counters("statements", "Statements that were answered; CALL MANY is one.", kinds)?;
        let failures = lock(&self.failures).clone();
        let failures = failures.iter().map(|((what, sqlstate, message), count)| {
            ([("what", what.as_str()), ("sqlstate", sqlstate), ("message", message)], *count)
        });
        writer.counters("failures", "Statements and calls that failed, by cause.", failures)?;
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(|count| count.load(Relaxed))).collect();
        let (sum, count) = (self.times_ns.load(Relaxed) as f64 / 1e9, buckets.iter().map(|(_, count)| count).sum());
        let help = "From a statement's last message to its answer.";
        let mut encoder =
            writer.0.encode_descriptor("statement_duration_seconds", help, None, MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn encode_log(&self, writer: &mut Writer<'_>) -> Result {
        let statistics = self.statistics();
        for (name, help, count) in counts(&statistics) {
            writer.counter(name, help, count)?;
        }
        times(&statistics).iter().try_for_each(|(name, help, seconds)| writer.counter(name, help, *seconds))
    }

    fn encode_differs(&self, writer: &mut Writer<'_>) -> Result {
        let (node, has_stopped) = (self.node(), *lock(&self.state) == State::Stopped);
        if node.is_none() && !has_stopped {
            return Ok(());
        }
        let differs = has_stopped || node.is_some_and(|node| node.differs.is_some());
        let help = "Whether this node has stopped because it differs from a leader.";
        writer.gauge("node_differs", help, u64::from(differs))
    }
}

/// Writes how a node of a cluster stands.
fn encode_node(node: &sequencer::NodeStatus, writer: &mut Writer<'_>) -> Result {
    let is = |role| u64::from(node.role == role);
    writer.gauge("node_leads", "Whether this node of a cluster leads.", is(sequencer::Role::Leading))?;
    let help = "Whether this node takes calls for a stream of its own, which the one that leads merges.";
    writer.gauge("node_sequences", help, is(sequencer::Role::Sequencing))?;
    writer.gauge("node_epoch", "Epoch of the last record that it has.", node.epoch)?;
    writer.gauge("node_record", "Number of the last record that it has.", node.next - 1)?;
    writer.gauge("node_lag_records", "Records of the journal that it has not.", node.journal_next - node.next)?;
    if !node.streams.is_empty() {
        let of_streams = |value: fn(&sequencer::StreamStatus) -> u64| {
            node.streams.iter().map(move |stream| ([("part", stream.part + 1)], value(stream)))
        };
        let help = "Number of the last message that it has, of the stream that a part's node sequences.";
        writer.gauges("stream_record", help, of_streams(|stream| stream.merged))?;
        let help = "Messages of that stream which it knows to be there, and has not.";
        writer.gauges("stream_lag_records", help, of_streams(|stream| stream.lag))?;
    }
    let Some((record, digest)) = node.compared else { return Ok(()) };
    let help = "Record of the last digest of all it has that it gave to others, or had the same.";
    writer.gauge("node_compared_record", help, record)?;
    // As much of it as a number of Prometheus has: who has the same record has the same here.
    let low = (digest.0 & ((1 << 52) - 1)) as u64;
    writer.gauge("node_compared_digest", "The low 52 bits of that digest.", low)
}

/// What the sequencer counts: name without `_total`, what it is, and how many.
pub(super) fn counts(s: &sequencer::Statistics) -> [(&'static str, &'static str, u64); 11] {
    [
        ("batches", "Batches that ran.", s.batches),
        ("calls", "Calls in them, single statements too.", s.calls),
        ("logged_calls", "Calls written to the log.", s.logged_calls),
        ("log_argument_bytes", "Argument bytes of the calls written to the log.", s.argument_bytes),
        ("log_written_bytes", "Bytes written to the log.", s.log_bytes),
        ("log_writes", "Writes to the log.", s.writes),
        ("log_syncs", "Syncs of the log.", s.syncs),
        ("repeated_calls", "Retries that were answered from the window of request ids.", s.repeats),
        ("checkpoints", "Checkpoints that are durable.", s.checkpoints),
        ("digests", "Digests of everything, appended to a journal or compared with it.", s.digests),
        ("recovered_messages", "Messages had from one server that the journal had lost.", s.recovered),
    ]
}

/// The times that the sequencer adds up, in seconds, in the same form.
pub(super) fn times(s: &sequencer::Statistics) -> [(&'static str, &'static str, f64); 3] {
    let seconds = |ns: u64| ns as f64 / 1e9;
    [
        ("log_wait_seconds", "Waited for writes and syncs.", seconds(s.sync_ns)),
        ("checkpoint_pause_seconds", "Calls stood still for checkpoints.", seconds(s.checkpoint_pause_ns)),
        ("digest_pause_seconds", "Calls stood still for digests.", seconds(s.digest_ns)),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Watcher;
    use super::*;

    #[test]
    fn names_have_the_prefix_and_the_suffix_of_their_type() {
        let watch = Watcher::default().0;
        let cause = ("insert".to_string(), "23505".to_string(), "a \"key\"\nof \\".to_string());
        watch.statement(Verb::Insert, Duration::from_micros(30), Some(cause));
        let text = text(&watch);
        let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        assert!(types.len() > 20, "{text}");
        for (name, kind) in types {
            assert!(name.starts_with("lockwork_") && text.contains(&format!("# HELP {name} ")), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        }
        let failed =
            "lockwork_failures_total{what=\"insert\",sqlstate=\"23505\",message=\"a \\\"key\\\"\\nof \\\\\"} 1\n";
        assert!(text.contains(failed), "{text}");
        for line in [
            "duration_seconds_bucket{le=\"2.5e-05\"} 0\n",
            "duration_seconds_bucket{le=\"5e-05\"} 1\n",
            "duration_seconds_bucket{le=\"+Inf\"} 1\n",
            "duration_seconds_sum 0.00003\n",
            "duration_seconds_count 1\n",
        ] {
            assert!(text.contains(&format!("\nlockwork_statement_{line}")), "{line}: {text}");
        }
    }
}
