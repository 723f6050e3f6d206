//! Ways through the protocol that are seldom taken, counted.
//!
//! A test that never takes a way says nothing about it. The simulator fails when its standard runs have missed one.

macro_rules! branches {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// A way that is seldom taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Branch { $($(#[$meta])* $name,)* }

        impl Branch {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

branches! {
    /// A packet for an agent that is not here was sent back.
    SentBack,
    /// An agent was taken over whose grant seems lost, when it was known to have no other holders.
    Retake,
    /// The same, with holders that are not known.
    RetakeUnknown,
    /// An agent moved to where it is, because the decider must add no readers or the token had no room.
    RetakeForToken,
    /// An agent came for a request that no longer waits, and asked whether it still is one.
    RetakeOfArrived,
    /// All machines were asked, because an agent was taken over.
    SweepOfTakenOver,
    /// All machines were asked, because the decider had added a reader that nobody told of.
    SweepOfGhost,
    /// An agent was not given back: the decider had added a reader.
    RefusedFree,
    /// An agent did not move: the decider had added a reader.
    RefusedMove,
    /// An agent was not taken over: the word had changed.
    RefusedRetake,
    /// An agent of several packets was complete.
    ManyParts,
    /// The decider was told to add readers.
    Open,
    /// The decider closed a lock for a writer.
    ClosedByWriter,
    /// An agent closed its lock, because readers had passed a writer for long enough.
    CloseOfStarved,
    /// An agent closed its lock, to look for readers.
    CloseOfGhost,
    /// An agent came a second time.
    ArrivedAgain,
    /// A reader joined with an agent on its own machine, by one packet.
    JoinHere,
    /// A reader joined with an agent elsewhere.
    Joined,
    /// A grant came that nobody waits for.
    UnknownGrant,
    /// A grant came that is older than what is known.
    VoidGrant,
    /// A second grant came for one request.
    SecondGrant,
    /// A grant came of a machine that has died.
    GrantOfDead,
    /// A reader told the agent what the decider had granted, before the agent confirmed.
    Enrolled,
    /// An agent asked whether a reader that the decider added is real.
    Confirm,
    /// An agent asked whether a holder that has confirmed still is one.
    ConfirmAgain,
    /// A holder enrolled with the successor of its agent.
    EnrolledAnew,
    /// Who came while an agent was leaving was sent after it.
    SentAfter,
    /// An agent was gone before it knew, and sent its waiters to the decider.
    Dispersed,
    /// A new agent took over the waiters of one that was leaving.
    Parked,
    /// A machine that an agent was to move to is not there.
    Undeliverable,
    /// A decider was restored while this machine held or waited.
    Resumed,
    /// An agent that was leaving was dropped then.
    ResumedLeaving,
    /// A lock was held then from an agent elsewhere.
    ResumedElsewhere,
    /// A machine that held or waited has died.
    Purged,
    /// A holder was granted to whose session had ended.
    HolderOfDead,
    /// The lock went from task to task of one machine.
    HandedOn,
    /// A machine began to manage a part of the locks beyond the decider's.
    PartBegun,
    /// A machine no longer manages a part, and had agents of it.
    PartLeft,
    /// A manager granted what its successor is to grant.
    GrantOfRelieved,
    /// A writer that a manager serves became a reader.
    DowngradedElsewhere,
}

/// How often each was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branches([u64; Branch::ALL.len()]);

impl Default for Branches {
    fn default() -> Self {
        Self([0; Branch::ALL.len()])
    }
}

impl Branches {
    pub(crate) const fn take(&mut self, branch: Branch) {
        self.0[branch as usize] += 1;
    }

    /// How often this one was.
    #[must_use]
    pub const fn count(&self, branch: Branch) -> u64 {
        self.0[branch as usize]
    }

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Those that were not taken.
    pub fn missed(&self) -> impl Iterator<Item = Branch> + '_ {
        Branch::ALL.iter().copied().filter(|branch| self.count(*branch) == 0)
    }
}
