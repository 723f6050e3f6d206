//! The simulator: a whole lock service in one thread, with a clock and a network of its own, where everything goes
//! wrong.
//!
//! One seed gives everything: which packets are lost, doubled, late; who is cut off, stands still, crashes and comes
//! back; what the tasks ask for. The decider, the registry and the nodes are the ones that the transports drive, and
//! packets travel as bytes. After every step it is checked, from the events of the tasks alone, that writers exclude
//! everybody, that tokens grow, and that at most one agent of a lock decides; at the end, that nobody waits and every
//! lock is free.
//!
//! *Trade-off*: it finds what random schedules find.

mod checker;
mod faults;
mod place;
mod trace;
mod world;

use crate::branches::Branches;
use crate::word::Profile;
pub use faults::Faults;
pub use trace::line;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Gives everything that is random.
    pub seed: u64,
    /// So many requests are made, then everybody stops.
    pub operations: u64,
    /// Processes.
    pub machines: u32,
    /// Tasks of each.
    pub tasks: u32,
    /// Locks; the first ones are asked for most.
    pub locks: u64,
    /// Locks beyond those, which managers keep.
    pub beyond: u64,
    /// How many of the machines offer to manage.
    pub managers: u32,
    /// The decider's words.
    pub profile: Profile,
    /// Readers do not pass a writer that waits.
    pub writers_first: bool,
    /// Agents of the first so many locks stay for a while where somebody has asked for them.
    pub near: u64,
    /// What goes wrong.
    pub faults: Faults,
}

impl Settings {
    /// The usual run: eight machines of six tasks, a dozen locks, all faults.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            operations: 100_000,
            machines: 8,
            tasks: 6,
            locks: 12,
            beyond: 0,
            managers: 0,
            profile: Profile::Wide,
            writers_first: false,
            near: 0,
            faults: Faults::ALL,
        }
    }

    /// Runs of `operations` each that together take every way of [`Branch`](crate::branches::Branch): all faults,
    /// writers first, lean, crowds whose agents need several packets, machines that die often, a network that loses a
    /// fifth, a decider that is lost again and again, also together with machines, and locks that managers keep which
    /// come and go.
    #[must_use]
    pub const fn standard(seed: u64, operations: u64) -> [Self; 12] {
        let usual = Self { operations, ..Self::new(seed) };
        let all = Faults::ALL;
        [
            usual,
            Self { seed: seed + 1, writers_first: true, ..usual },
            Self { seed: seed + 2, ..usual.lean() },
            Self { seed: seed + 3, writers_first: true, ..usual.lean() },
            Self { seed: seed + 4, machines: 12, tasks: 24, locks: 2, ..usual },
            Self {
                seed: seed + 5,
                faults: Faults { lost: 200_000, late: 300_000, cuts: 5, pauses: 5, crashes: 20, ..all },
                ..usual
            },
            Self { seed: seed + 6, machines: 4, faults: Faults { lost: 200_000, doubled: 100_000, ..all }, ..usual },
            Self { seed: seed + 7, faults: Faults { restarts: 4, ..all }, ..usual },
            Self { seed: seed + 8, locks: 2000, faults: Faults { restarts: 6, crashes: 5, ..all }, ..usual },
            Self { seed: seed + 9, locks: 2, beyond: 6, managers: 3, faults: Faults { crashes: 8, ..all }, ..usual },
            Self { seed: seed + 10, locks: 1, beyond: 5, writers_first: true, ..usual },
            Self {
                seed: seed + 11,
                locks: 2,
                beyond: 6,
                managers: 2,
                faults: Faults { restarts: 4, crashes: 5, ..all },
                ..usual
            },
        ]
    }

    /// The command that gives this run again.
    #[must_use]
    pub fn command(&self) -> String {
        let Self { seed, operations, machines, tasks, locks, beyond, managers, profile, writers_first, near, faults } =
            *self;
        let lean = profile == Profile::Lean;
        let mut command = format!("lockwork-bench sim locks --seed {seed} --operations {operations}");
        command += &format!(" --machines {machines} --tasks {tasks} --locks {locks}");
        command +=
            &if beyond > 0 { format!(" --overflow-locks {beyond} --managers {managers}") } else { String::new() };
        command += if lean { " --lean" } else { "" };
        command += if writers_first { " --writers-first" } else { "" };
        command += &if near > 0 { format!(" --near {near}") } else { String::new() };
        let usual = if lean { Faults::ALL.mild() } else { Faults::ALL };
        for ((name, value), (_, usual)) in faults.named().into_iter().zip(usual.named()) {
            if value != usual {
                command += &format!(" --{name} {value}");
            }
        }
        command
    }

    /// The same with the lean profile, and delays that its short incarnations allow.
    #[must_use]
    pub const fn lean(self) -> Self {
        Self { profile: Profile::Lean, faults: self.faults.mild(), ..self }
    }
}

/// What has been seen in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests.
    pub operations: u64,
    /// Exclusive grants.
    pub writers: u64,
    /// Shared grants.
    pub readers: u64,
    /// Requests that would have had to wait and did not.
    pub busy: u64,
    /// Requests that waited as long as they could.
    pub timed_out: u64,
    /// Requests that were taken back.
    pub withdrawn: u64,
    /// Writers that became readers.
    pub downgraded: u64,
    /// Holders that were told that they hold no longer.
    pub lost: u64,
    /// Waiters whose session ended.
    pub ended: u64,
    /// Packets sent by machines and by the decider.
    pub packets: u64,
    /// Of these, lost.
    pub packets_lost: u64,
    /// Of these, doubled.
    pub packets_doubled: u64,
    /// Of these, much later than others.
    pub packets_late: u64,
    /// Of these, damaged.
    pub packets_damaged: u64,
    /// Times a machine was cut off.
    pub cuts: u64,
    /// Times a machine stood still.
    pub pauses: u64,
    /// Times the service crashed.
    pub restarts: u64,
    /// Locks that a restored service took over, because their agents were gone.
    pub restored: u64,
    /// Machines that crashed or left.
    pub crashes: u64,
    /// Sessions that ended because of their lease.
    pub expired: u64,
    /// Simulated nanoseconds.
    pub time: u64,
    /// The longest that a request waited.
    pub longest_wait: u64,
    /// What the nodes did that they seldom do.
    pub branches: Branches,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What.
    pub what: String,
    /// The lock that it is about.
    pub lock: Option<u64>,
    /// What happened to that lock lately, a line each.
    pub trace: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was simulated.
    pub settings: Settings,
    /// What was seen.
    pub counters: Counters,
    /// The first thing that went wrong.
    pub failure: Option<Failure>,
}

impl Report {
    /// Nothing, or why not, with the command and the trace.
    ///
    /// # Errors
    /// The text of a failure.
    pub fn verdict(&self) -> Result<(), String> {
        match &self.failure {
            None => Ok(()),
            Some(Failure { what, trace, .. }) => Err(format!("{trace}{what}\nreplay: {}\n", self.settings.command())),
        }
    }
}

/// Simulates.
#[must_use]
pub fn run(settings: Settings) -> Report {
    let _told = ToldWhenPanicking(settings);
    world::run(settings)
}

/// An assertion of the service itself must be replayable too.
struct ToldWhenPanicking(Settings);

impl Drop for ToldWhenPanicking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: {}", self.0.command());
        }
    }
}
