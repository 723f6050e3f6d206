//! What has happened in runs, counted. What never happens says nothing, so tests ask that everything has.

macro_rules! seen {
    ($($(#[doc = $words:literal])* $name:ident,)*) => {
        /// Something that happens in some runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Seen { $($(#[doc = $words])* $name,)* }

        impl Seen {
            /// All of it.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

seen! {
    /// A call was acknowledged, and had committed.
    Committed,
    /// A call was acknowledged, and had aborted.
    Aborted,
    /// A call that the log had already was acknowledged once more.
    Repeated,
    /// A call without effect was answered by the leader.
    Audited,
    /// A definition was acknowledged.
    Defined,
    /// A node that followed answered a read.
    ReadAtFollower,
    /// The leader answered a read.
    ReadAtLeader,
    /// A read waited for the record that it wants.
    ReadWaited,
    /// A read gave up waiting for the record that it wants.
    ReadGaveUp,
    /// A node that followed refused a call.
    RefusedByFollower,
    /// A call was told that it has not happened, because the node does not lead any more.
    Superseded,
    /// A call was told that it has not happened, because the stream is full.
    Full,
    /// A call was told that nobody knows whether it has happened.
    Unknown,
    /// A call was refused because its request id is too old.
    TooOld,
    /// A leader that could not be sure that it leads did not answer.
    Lapsed,
    /// A client heard nothing, and called again.
    Unanswered,
    /// A client lost an answer, and called again.
    AnswerLost,
    /// A client gave up a call that had not happened.
    GivenUp,
    /// An epoch began.
    Epoch,
    /// The leader changed while the one before lived.
    Deposed,
    /// A message was refused, because another one stands where it was to stand.
    RefusedStale,
    /// The same, of a leader that another one has followed since.
    RefusedDeposed,
    /// A message that nobody waited for any more was appended.
    AppendedLate,
    /// A second copy of a message came.
    Duplicate,
    /// A message was found in the stream whose answer was lost.
    Found,
    /// A request or its answer was lost.
    Lost,
    /// The same, because the node was cut off.
    CutOff,
    /// The same, because the servers were away.
    Away,
    /// Servers that came back had lost the last messages, but one of them.
    Stranded,
    /// What one server had was appended again.
    Completed,
    /// A message was refused, because the stream is full.
    RefusedFull,
    /// Whoever asked for the lease got an older one.
    StaleLease,
    /// The lease was taken from another holder.
    LeaseTaken,
    /// The lease was given back.
    LeaseGivenBack,
    /// A checkpoint was kept.
    Checkpoint,
    /// Records were removed behind one.
    Purged,
    /// A node began with a checkpoint.
    BeganWithCheckpoint,
    /// A node began with the first record.
    BeganWithLog,
    /// A node could not begin, because no answer came.
    CouldNotBegin,
    /// A node's part ended, and it began again.
    BeganAgain,
    /// A node was killed.
    Killed,
    /// A leader was killed.
    LeaderKilled,
    /// A node was killed while it made or fetched a checkpoint, or began.
    KilledBeginning,
    /// A node stood still for longer than a lease.
    StoodStill,
    /// A leader stood still for longer than its lease.
    LeaderStoodStill,
    /// A node was slow for a while.
    Slow,
    /// A node was asked to end.
    Asked,
    /// The leader appended a digest.
    Digest,
    /// A node stopped, and said what is wrong with the log.
    Stopped,
}

/// How often each was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(std::collections::BTreeMap<Seen, u64>);

impl Counters {
    pub(super) fn add(&mut self, seen: Seen) {
        *self.0.entry(seen).or_default() += 1;
    }

    /// How often.
    #[must_use]
    pub fn count(&self, seen: Seen) -> u64 {
        self.0.get(&seen).copied().unwrap_or(0)
    }

    /// Those of both.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(&seen, count)| *self.0.entry(seen).or_default() += count);
    }

    /// What was never seen.
    pub fn missed(&self) -> impl Iterator<Item = Seen> + '_ {
        Seen::ALL.iter().copied().filter(|&seen| self.count(seen) == 0)
    }
}
