//! Golden lock scripts: what every lock manager must answer, whatever it is made of.
//!
//! A script is a text file of sessions and steps, with the expected answer beside each step. It states what it needs
//! from a manager; one that has not got it skips the script, visibly. The same files run on adapters of the managers of
//! `lockwork-locking` ([`managers`]), on a naive oracle ([`reference`](mod@reference)), and on managers of other
//! crates, which implement [`Manager`].
//!
//! ```text
//! # A reader behind a waiting writer does not overtake it.
//! needs waits fifo
//!
//! s1 acquire a shared      -> granted
//! s2 acquire a exclusive   -> waiting
//! s3 acquire a shared      -> waiting
//! s1 release a             -> released; s2 granted a
//! s2 release a             -> released; s3 granted a
//! ```
//!
//! | line | meaning |
//! |---|---|
//! | `needs CAPABILITY ...` | see [`Capability`] |
//! | `age s1 10` | the age of a session for wait-die: smaller is older; its number if not given |
//! | `s1 acquire a shared [b exclusive ...] [within 10] -> granted\|waiting\|conflict` | one step for all locks named; a timeout in ms |
//! | `s1 release a [b ...] -> released` | gives back, or withdraws a request that waits; `error` if there is neither |
//! | `s1 crash -> crashed` | the session is gone, without a word |
//! | `pass 10 -> passed` | ten ms go by |
//! | `step NAME: ...` and `permutation NAME NAME ... -> answer \| answer \| ...` | named steps in several orders |
//!
//! Behind the answer stand the events that the step caused, `; s2 granted a` or `; s2 conflict a` (a waiter that has to
//! give up), by session, then by the first lock of the request. Modes are `shared`, `exclusive` and `intent`. Every
//! permutation runs on a fresh manager.

pub mod managers;
pub mod reference;
mod script;
pub mod shared;

use lockwork_locking::{LockId, Outcome, Request};
use std::fmt;

pub use script::{Script, ScriptError, parse};

/// A session of a script, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u32);

/// What a script needs and a manager has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// A request that cannot be granted waits and is granted later.
    Waits,
    /// Waiting requests are granted in the order in which they came.
    Fifo,
    /// Compatible neighbours that wait are granted together.
    Groups,
    /// A waiting request can be withdrawn.
    Withdraw,
    /// A request that cannot be granted is refused.
    NoWait,
    /// An older session waits for a younger one, and the younger is refused.
    WaitDie,
    /// With wait-die: nobody overtakes who waits; who would wait for a waiter too is judged by its age.
    Queues,
    /// With wait-die: who waits has no place; whoever is compatible with the holders goes past it.
    Overtakes,
    /// A request waits only if its lock lies behind all locks that the session holds.
    Ordered,
    /// A shared holder can ask for more.
    Upgrade,
    /// A holder can ask again for what it holds.
    Reentrant,
    /// The mode `intent`.
    Intent,
    /// Several locks in one step, granted all together.
    Sets,
    /// Requests with a timeout.
    Timeout,
    /// Sessions that crash lose their locks.
    Crash,
}

impl Capability {
    /// All of them, with the names that scripts use.
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Waits, "waits"),
        (Self::Fifo, "fifo"),
        (Self::Groups, "groups"),
        (Self::Withdraw, "withdraw"),
        (Self::NoWait, "no-wait"),
        (Self::WaitDie, "wait-die"),
        (Self::Queues, "queues"),
        (Self::Overtakes, "overtakes"),
        (Self::Ordered, "ordered"),
        (Self::Upgrade, "upgrade"),
        (Self::Reentrant, "reentrant"),
        (Self::Intent, "intent"),
        (Self::Sets, "sets"),
        (Self::Timeout, "timeout"),
        (Self::Crash, "crash"),
    ];

    /// The name that scripts use.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(capability, _)| *capability == self).map_or("?", |(_, name)| name)
    }
}

/// A waiting request got an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// Whose request.
    pub session: Session,
    /// The first lock that the request named.
    pub lock: LockId,
    /// Whether it was granted. If not, it has to give up.
    pub granted: bool,
}

/// A session released a lock that it neither holds nor waits for. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld;

/// A lock manager as scripts see it. Lock names are small numbers from zero.
pub trait Manager {
    /// What it is, for reports.
    fn name(&self) -> String;

    /// What it can do. Scripts that need more are skipped.
    fn capabilities(&self) -> Vec<Capability>;

    /// Tells the age of a session before its first step; for managers with [`Capability::WaitDie`].
    fn set_age(&mut self, _session: Session, _age: u64) {}

    /// Asks for all `requests` (at least one) in one step; at most for `timeout_ms`, which is given only to managers
    /// with [`Capability::Timeout`].
    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome;

    /// Gives back, or withdraws, what one `acquire` asked for; `locks` are the same locks. Answers who is
    /// affected by it.
    ///
    /// # Errors
    /// [`NotHeld`] if there is no such request.
    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld>;

    /// The session is gone; for managers with [`Capability::Crash`].
    fn crash(&mut self, _session: Session) -> Vec<Event> {
        panic!("{} claims to handle crashes but does not", self.name())
    }

    /// Time goes by; for managers with [`Capability::Timeout`].
    fn pass(&mut self, _time_ms: u64) -> Vec<Event> {
        panic!("{} claims to know timeouts but does not", self.name())
    }
}

/// Whether `requests` name exactly the locks of `locks`.
fn names(requests: &[Request], locks: &[LockId]) -> bool {
    locks.iter().all(|lock| requests.iter().any(|request| request.id == *lock))
        && requests.iter().all(|request| locks.contains(&request.id))
}

/// What became of a script on a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every step answered as expected.
    Passed,
    /// The manager lacks these.
    Skipped(Vec<Capability>),
    /// The first step that did not.
    Failed {
        /// Line of the step, or of the permutation, in the script.
        line: usize,
        /// The step.
        step: String,
        /// What the script says.
        expected: String,
        /// What the manager said.
        answered: String,
    },
}

/// What became of all scripts on a manager.
#[derive(Clone, Debug)]
pub struct Report {
    /// The manager.
    pub manager: String,
    /// Script name and verdict.
    pub results: Vec<(String, Verdict)>,
}

impl Report {
    /// Whether no script failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.results.iter().any(|(_, verdict)| matches!(verdict, Verdict::Failed { .. }))
    }

    /// How many scripts ran through.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.results.iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}: {} of {} passed", self.manager, self.passed(), self.results.len())?;
        for (name, verdict) in &self.results {
            match verdict {
                Verdict::Passed => writeln!(out, "  passed   {name}")?,
                Verdict::Skipped(missing) => {
                    let missing: Vec<_> = missing.iter().map(|capability| capability.name()).collect();
                    writeln!(out, "  skipped  {name}: needs {}", missing.join(", "))?;
                }
                Verdict::Failed { line, step, expected, answered } => {
                    writeln!(out, "  FAILED   {name}, line {line}: {step}")?;
                    writeln!(out, "           expected {expected}")?;
                    writeln!(out, "           answered {answered}")?;
                }
            }
        }
        Ok(())
    }
}

/// Runs one script; `fresh` makes a manager without any lock held.
pub fn run<M: Manager>(script: &Script, fresh: &mut impl FnMut() -> M) -> Verdict {
    let capabilities = fresh().capabilities();
    let missing: Vec<_> = script.needs.iter().copied().filter(|need| !capabilities.contains(need)).collect();
    if !missing.is_empty() {
        return Verdict::Skipped(missing);
    }
    for run in &script.runs {
        let mut manager = fresh();
        for (session, age) in script.ages() {
            manager.set_age(session, age);
        }
        for (step, expected) in run.steps.iter().zip(&run.expected) {
            let answered = script.perform(step, &mut manager);
            if answered != *expected {
                let (line, step) = (run.line.unwrap_or(step.line), step.text.clone());
                return Verdict::Failed { line, step, expected: expected.clone(), answered };
            }
        }
    }
    Verdict::Passed
}

/// Runs all `scripts`.
pub fn run_all<M: Manager>(scripts: &[Script], mut fresh: impl FnMut() -> M) -> Report {
    let manager = fresh().name();
    let results = scripts.iter().map(|script| (script.name.clone(), run(script, &mut fresh))).collect();
    Report { manager, results }
}

macro_rules! golden {
    ($($name:literal)*) => {
        /// The files of the suite: name without ending, and text.
        pub const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../golden/", $name, ".lock")))),*];
    };
}

golden! {
    "crash" "fifo" "group_between_writers" "independent" "intent" "intent_no_wait" "intent_waits" "no_wait" "ordered" "permutations" "reacquire"
    "release_not_held" "set_merges" "sets" "shared_readers" "timeout" "upgrade_sole" "upgrade_with_others"
    "wait_die" "wait_die_queues" "wait_die_readers" "withdraw" "writer_excludes"
}

/// The scripts of the suite.
///
/// # Panics
/// If one does not parse, which a test of this crate rules out.
#[must_use]
pub fn golden() -> Vec<Script> {
    FILES.iter().map(|(name, text)| parse(name, text).unwrap_or_else(|error| panic!("{error}"))).collect()
}
