//! The simulator: servers of a log, nodes and clients in one process, with a clock of its own, where everything goes
//! wrong.
//!
//! ```text
//! clients -> nodes: election, follower, order, publisher, engine, as in production -> way -> servers: a model
//!            each thread has its turn when the world gives it      requests and answers, with faults
//! ```
//!
//! One seed gives everything: when who runs, which requests are lost, late or doubled, who is killed, stands still, is
//! slow or cut off, when the servers are away or full, and what clients ask for. The nodes are
//! [`crate::Sequencer::join`], with the clock and the threads of `threads`. The same seed gives the same run,
//! byte for byte.
//!
//! | module | idea |
//! |---|---|
//! | `world` | the clock, the events, and whose turn it is |
//! | `servers` | the log as a model, and the way there |
//! | `way` | a node's journal: what it asks the servers |
//! | `nodes` | a process: it joins, and begins again when its part has ended |
//! | `clients` | what is called and read |
//! | `director` | who is killed when, and how a run ends |
//! | `damage` | what no log should do, and that every reader finds it |
//! | `checker` | what is right, read from the log alone |
//! | `counters` | what has been seen |
//!
//! After each message, answer and read it is checked: the chain of hashes holds; one process appends in an epoch; no
//! request is made twice; no money comes or goes; what is acknowledged is in the log, with that answer; a read is what
//! the log makes up to its record, which is no earlier one than the reader wants, or, at the leader, than anybody
//! knows. At the end, without faults, somebody leads, every call is answered, and all nodes have the same.
//!
//! *Trade-off*: threads hold the stacks, so the code of a node is not turned inside out for it, and every wait of a
//! node is a place where anything else may happen; a hand-over costs some microseconds.

mod checker;
mod clients;
mod counters;
mod damage;
mod director;
mod nodes;
mod servers;
mod way;
mod world;

use std::fmt;
use std::str::FromStr;

pub use counters::{Counters, Seen};

/// What a log does that none should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A message is gone, and those behind it have other numbers.
    Loss,
    /// Two messages are in the wrong order.
    Reordering,
    /// Another message, sound by itself, stands in place of one.
    Fork,
    /// A bit of a message is another.
    Alteration,
}

/// A rule that a run breaks, to show that the simulator finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The servers take messages whatever the last one is.
    Fencing,
    /// Calls are acknowledged when they are sent to the servers.
    Acknowledgement,
    /// Clients make another request id for each attempt.
    Requests,
}

macro_rules! named {
    ($type:ident, $what:literal: $($name:ident $text:literal),*) => {
        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text),* })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let known = Self::ALL.iter().copied().find(|known| known.to_string() == text);
                known.ok_or_else(|| {
                    let all: Vec<_> = Self::ALL.iter().map(ToString::to_string).collect();
                    format!("'{text}' is no {}; there are: {}", $what, all.join(", "))
                })
            }
        }
    };
}

named!(Damage, "damage": Loss "loss", Reordering "reordering", Fork "fork", Alteration "alteration");
named!(Broken, "rule": Fencing "fencing", Acknowledgement "acknowledgement", Requests "requests");

/// Of a thousand requests, how many fare so.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    lost: u64,
    late: u64,
    doubled: u64,
    stale: u64,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Gives everything that is random.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// What clients do: so many calls, reads and definitions.
    pub steps: u64,
    /// Whether anything goes wrong.
    pub faults: bool,
    /// What the log does that none should.
    pub damage: Option<Damage>,
    /// A rule that is broken.
    pub broken: Option<Broken>,
}

impl Settings {
    /// Three nodes, and all faults.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, nodes: 3, steps: 300, faults: true, damage: None, broken: None }
    }

    /// The command that gives this run again.
    #[must_use]
    pub fn command(&self) -> String {
        let &Self { seed, nodes, steps, faults, damage, broken } = self;
        let mut command = format!("lockwork-bench sim cluster --seed {seed} --nodes {nodes} --steps {steps}");
        if !faults {
            command += " --no-faults";
        }
        if let Some(damage) = damage {
            command += &format!(" --damage {damage}");
        }
        if let Some(broken) = broken {
            command += &format!(" --break {broken}");
        }
        command
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was simulated.
    pub settings: Settings,
    /// What was seen.
    pub counters: Counters,
    /// How long it took, by the clock of the run, in nanoseconds.
    pub simulated_ns: u64,
    /// Records of the log.
    pub records: u64,
    /// Epochs of the log.
    pub epochs: u64,
    /// What the nodes said that stopped for good.
    pub stopped: Vec<String>,
    /// What happened, line by line, each with its time in seconds.
    pub trace: String,
    /// The first thing that went wrong.
    pub failure: Option<String>,
}

impl Report {
    /// Nothing, or what went wrong, with the end of the trace and the command.
    ///
    /// # Errors
    /// That text.
    pub fn verdict(&self) -> Result<(), String> {
        const LINES: usize = 60;
        let Some(what) = &self.failure else { return Ok(()) };
        let lines: Vec<_> = self.trace.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
        Err(format!("{last}\n{what}\nreplay: {}\n", self.settings.command()))
    }
}

/// Simulates.
///
/// # Panics
/// When there are no nodes, or more than 16.
#[must_use]
pub fn run(settings: Settings) -> Report {
    assert!((1..=16).contains(&settings.nodes), "1 to 16 nodes are possible");
    director::run(settings)
}
