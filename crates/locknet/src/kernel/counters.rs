//! What the programs count: each decision by its kind, and whatever else became of a packet by its cause.
//!
//! A packet is counted once, except that the two copies of a broadcast are counted where they are dropped.

/// Names, in the order of hardware/xdp/maps.h.
pub const NAMES: [&str; 23] = [
    "acquire",
    "release",
    "free",
    "move",
    "open",
    "close",
    "enrol",
    "seek",
    "sent_on",
    "control",
    "left_unreached",
    "left_contended",
    "no_such_lock",
    "no_such_session",
    "no_such_machine",
    "dropped_length",
    "dropped_magic",
    "dropped_version",
    "dropped_tag",
    "dropped_field",
    "dropped_kind",
    "dropped_failed",
    "dropped_copy",
];

/// Counters, summed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters(pub [u64; NAMES.len()]);

impl Counters {
    /// All of them, with names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }

    /// One of [`NAMES`].
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find_map(|(is, value)| (is == name).then_some(value))
    }

    /// How many packets were decided on.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.0[..lockwork_lockservice::packet::Kind::DECIDED as usize].iter().sum()
    }
}
