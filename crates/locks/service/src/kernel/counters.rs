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
        self.0[..lockwork_lock_protocol::packet::Kind::DECIDED as usize].iter().sum()
    }

    /// How many packets were decided on, sent on, or answered with an error.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.decided() + self.sum(|name| name == "sent_on" || name.starts_with("no_such_"))
    }

    /// How many packets were dropped. Copies of a broadcast where they are not wanted are none.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.sum(|name| name.starts_with("dropped_") && name != "dropped_copy")
    }

    fn sum(&self, wanted: impl Fn(&str) -> bool) -> u64 {
        self.iter().filter(|(name, _)| wanted(name)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_a_decision_a_drop_or_left_to_user_space() {
        // Counter n is 2^n.
        let counters = Counters(std::array::from_fn(|at| 1 << at));
        let rest = ["control", "left_unreached", "left_contended", "dropped_copy"];
        let rest: u64 = rest.iter().map(|name| counters.get(name).expect(name)).sum();
        assert_eq!(counters.handled() + counters.dropped() + rest, (1 << NAMES.len()) - 1);
        assert_eq!(counters.decided(), 0b1111_1111);
    }
}
