//! Settings of a machine that takes part, and who it is.

use crate::beyond::MAX_LOCKS;
use crate::word::{Machine, Profile};

/// Who a machine is, as the registry has told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub machine: Machine,
    /// Its session.
    pub session: u32,
}

/// Settings. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The decider's profile.
    pub profile: Profile,
    /// How many locks the decider has.
    pub locks: u64,
    /// There are locks beyond those, which managers keep; see [`crate::beyond`].
    pub beyond: bool,
    /// Readers do not pass a writer that waits.
    pub writers_first: bool,
    /// After this without an answer, a packet is sent again, each time after twice as long; later where answers take
    /// longer.
    pub retry: u64,
    /// Never later than this.
    pub retry_most: u64,
    /// Who is queued asks again after this, in case the agent that queued it is gone.
    pub reask: u64,
    /// A reader that the decider granted tells the agent after this, if it still holds.
    pub enrol: u64,
    /// An agent asks after this whether a reader that the decider granted is real.
    pub confirm: u64,
    /// How long an agent waits for readers that the decider has granted and nobody has told it of, before it has
    /// everybody asked.
    pub ghost: u64,
    /// How long readers may pass a writer that waits.
    pub starve: u64,
    /// `try_acquire` returns busy after this long without an answer.
    pub answer: u64,
    /// How long a request that detects deadlocks waits before its first search; the interval then doubles.
    pub search: u64,
    /// How long a session lives without a renewal.
    pub lease: u64,
    /// Locks that mostly this machine's tasks ask for: from the first to before the second.
    pub near: [u64; 2],
    /// How long at least the agent of such a lock stays here when nobody holds it and nobody waits. A task here gets
    /// the lock without a packet meanwhile, and another machine's takes two more.
    pub stay: u64,
    /// With so many agents here, no more of them stay.
    pub most_stay: usize,
}

impl Config {
    /// The settings for a local network: 2 ms until the first repetition, leases of 2 s.
    #[must_use]
    pub const fn new(locks: u64) -> Self {
        const MS: u64 = 1_000_000;
        Self {
            profile: Profile::Wide,
            locks,
            beyond: false,
            writers_first: false,
            retry: 2 * MS,
            retry_most: 128 * MS,
            reask: 250 * MS,
            enrol: 4 * MS,
            confirm: 20 * MS,
            ghost: 50 * MS,
            starve: MS,
            answer: 200 * MS,
            search: 20 * MS,
            lease: 2000 * MS,
            near: [0; 2],
            stay: 0,
            most_stay: usize::MAX,
        }
    }

    /// Whether there is such a lock.
    #[must_use]
    pub const fn has(&self, lock: u64) -> bool {
        lock < self.locks || self.is_beyond(lock)
    }

    /// Whether a manager keeps the lock.
    #[must_use]
    pub const fn is_beyond(&self, lock: u64) -> bool {
        self.beyond && self.locks <= lock && lock < MAX_LOCKS
    }

    /// Whether the agent of a lock stays for a while.
    #[must_use]
    pub const fn keeps(&self, lock: u64) -> bool {
        self.near[0] <= lock && lock < self.near[1]
    }

    /// How long a machine itself trusts its lease: less than the registry does, by more than clocks differ in their
    /// pace.
    #[must_use]
    pub const fn own_lease(&self) -> u64 {
        self.lease - self.lease / 8
    }
}
