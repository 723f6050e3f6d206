//! Golden vectors: what a decider answers, packet by packet, in files that people read and every decider plays.
//!
//! A file in `crates/locks/protocol/vectors` is one [`Scenario`]: settings, sessions and words to begin with, then
//! packets, each with the packets that must follow and the words that it changes. The Rust decider wrote them (`cargo
//! run -p lockwork-lock-protocol --example vectors`); a test checks that it still writes the same. Another decider
//! implements [`VectorDecider`] and calls [`play`] with each file.
//!
//! *Invariant*: after each step the words of all locks are compared, so a packet that changes more than it should is
//! found even if its answer is right. *Trade-off*: answers are compared byte by byte, tags included, so a change of the
//! packet layout rewrites every file; that is what they are for.

mod text;

use crate::decider::{Outputs, Sessions, Settings, Store, To, Wide, WideLock, decide};
use crate::lean::Lean;
use crate::packet::{HEADER, Key, Malformed, parse};
use crate::table::{Case, Place, rule};
use crate::word::{Machine, Profile, Word};

pub use text::{ParseError, describe};

/// Where the files are.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors");

/// A lock's word and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Which lock.
    pub lock: u64,
    /// Its decision word.
    pub word: Word,
    /// Its token.
    pub token: u64,
}

/// How a decider is at the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Profile of the locks.
    pub profile: Profile,
    /// How many.
    pub locks: u64,
    /// Readers do not pass a writer that waits.
    pub writers_first: bool,
    /// The cluster's key.
    pub key: Option<Key>,
    /// Who takes part, beside the registry.
    pub sessions: Vec<(Machine, u32)>,
    /// Locks that are not new.
    pub words: Vec<Lock>,
}

impl Setup {
    /// Wide locks without key, sessions or anything locked; readers go first.
    #[must_use]
    pub fn new(locks: u64) -> Self {
        let (sessions, words) = (Vec::new(), Vec::new());
        Self { profile: Profile::Wide, locks, writers_first: false, key: None, sessions, words }
    }

    /// Word and token of a lock at the beginning.
    #[must_use]
    pub fn word(&self, lock: u64) -> (Word, u64) {
        self.words.iter().find(|of| of.lock == lock).map_or((Word::NEW, 0), |of| (of.word, of.token))
    }

    /// The locks as the wide profile keeps them.
    #[must_use]
    pub fn wide(&self) -> Vec<WideLock> {
        (0..self.locks).map(|lock| self.word(lock)).map(|(word, token)| WideLock::of(word, token)).collect()
    }

    /// The locks as the lean profile keeps them.
    #[must_use]
    pub fn lean(&self) -> Lean {
        let lean = Lean::new(self.locks as usize);
        self.words.iter().for_each(|of| lean.store(of.lock, of.word));
        lean
    }
}

impl Sessions for Setup {
    fn session(&self, machine: Machine) -> Option<u32> {
        let of = |(_, session): &(Machine, u32)| *session;
        if machine == Machine::REGISTRY {
            return Some(Machine::REGISTRY_SESSION);
        }
        self.sessions.iter().find(|(there, _)| *there == machine).map(of)
    }

    fn speaks(&self, machine: Machine, session: u32) -> bool {
        machine != Machine::REGISTRY && self.session(machine) == Some(session)
    }
}

/// Why a packet is dropped, which deciders count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// [`Malformed::Length`].
    Length,
    /// [`Malformed::Magic`].
    Magic,
    /// [`Malformed::Version`].
    Version,
    /// [`Malformed::Tag`].
    Tag,
    /// [`Malformed::Field`].
    Field,
    /// A packet that only deciders send.
    Kind,
}

impl From<Malformed> for Dropped {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Length => Self::Length,
            Malformed::Magic => Self::Magic,
            Malformed::Version(_) => Self::Version,
            Malformed::Tag => Self::Tag,
            Malformed::Field => Self::Field,
        }
    }
}

/// One packet and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What a reader should know; may be empty.
    pub comment: String,
    /// The datagram that comes in.
    pub input: Vec<u8>,
    /// Why nothing comes out, if nothing does.
    pub dropped: Option<Dropped>,
    /// The datagrams that go out, in any order.
    pub outputs: Vec<(To, Vec<u8>)>,
    /// The locks that are changed.
    pub changed: Vec<Lock>,
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it shows.
    pub title: String,
    /// How it begins.
    pub setup: Setup,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

impl Scenario {
    /// What the Rust decider makes of `inputs`, each with its comment.
    #[must_use]
    pub fn record(title: String, setup: Setup, inputs: Vec<(String, Vec<u8>)>) -> Self {
        let mut model = Model::new(&setup);
        let step = |(comment, input): (String, Vec<u8>)| {
            let before: Vec<(Word, u64)> = (0..setup.locks).map(|lock| model.at(lock)).collect();
            let outputs = model.process(&input);
            let after = (0..setup.locks).map(|lock| (lock, model.at(lock)));
            let changed = after.filter(|&(lock, now)| before[lock as usize] != now);
            let changed = changed.map(|(lock, (word, token))| Lock { lock, word, token }).collect();
            let dropped = outputs.is_empty().then(|| match parse(&input, setup.key.as_ref()) {
                Err(malformed) => malformed.into(),
                Ok(_) => Dropped::Kind,
            });
            Step { comment, input, dropped, outputs, changed }
        };
        let steps = inputs.into_iter().map(step).collect();
        Self { title, setup, steps }
    }
}

/// A decider that vectors are played with.
pub trait VectorDecider {
    /// Begins anew: locks, sessions, settings and key are those of `setup`.
    fn reset(&mut self, setup: &Setup);
    /// A datagram arrives; these go out.
    fn process(&mut self, datagram: &[u8]) -> Vec<(To, Vec<u8>)>;
    /// Word and token of a lock; `None` where they cannot be looked at, and then only answers are compared.
    fn word(&mut self, lock: u64) -> Option<(Word, u64)>;
}

/// Plays a scenario.
///
/// # Errors
/// The first step that differs, with what came and what should have come.
pub fn play(scenario: &Scenario, decider: &mut impl VectorDecider) -> Result<(), String> {
    let Scenario { title, setup, steps } = scenario;
    decider.reset(setup);
    let mut words: Vec<(Word, u64)> = (0..setup.locks).map(|lock| setup.word(lock)).collect();
    let key = setup.key.as_ref();
    for (number, step) in steps.iter().enumerate() {
        let shown = || format!("{title}\nstep {} {}\nin {}", number + 1, step.comment, describe(&step.input, key));
        let mut given = decider.process(&step.input);
        for wanted in &step.outputs {
            let Some(at) = given.iter().position(|output| output == wanted) else {
                let given: String = given.iter().map(|output| text::output(output, key) + "\n").collect();
                return Err(format!("{}\nmissing {}\namong\n{given}", shown(), text::output(wanted, key)));
            };
            given.remove(at);
        }
        if let Some(more) = given.first() {
            return Err(format!("{}\ntoo much: {}", shown(), text::output(more, key)));
        }
        step.changed.iter().for_each(|of| words[of.lock as usize] = (of.word, of.token));
        for (lock, &(word, token)) in (0..).zip(&words) {
            if let Some((has, has_token)) = decider.word(lock)
                && (has, has_token) != (word, token)
            {
                let [has, wanted] =
                    [(has, has_token), (word, token)].map(|(word, token)| text::lock(&Lock { lock, word, token }));
                return Err(format!("{}\n   has {has}\nwanted {wanted}", shown()));
            }
        }
    }
    Ok(())
}

/// The datagrams that a decider sends: `outputs` of [`decide`] for the packet in `datagram`.
#[must_use]
pub fn datagrams(outputs: &Outputs, datagram: &[u8], key: Option<&Key>) -> Vec<(To, Vec<u8>)> {
    let payload = if outputs.payload { &datagram[HEADER..] } else { &[] };
    let whole = |(to, packet): &(To, crate::packet::Packet)| {
        let mut bytes = packet.header(payload.len(), key).to_vec();
        bytes.extend_from_slice(payload);
        (*to, bytes)
    };
    outputs.packets.iter().flatten().map(whole).collect()
}

/// The Rust decider.
#[derive(Debug)]
pub struct Model {
    setup: Setup,
    store: Profiled,
}

#[derive(Debug)]
enum Profiled {
    Wide(Wide<Vec<WideLock>>),
    Lean(Lean),
}

impl Model {
    /// As `setup` says.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let store = match setup.profile {
            Profile::Wide => Profiled::Wide(Wide(setup.wide())),
            Profile::Lean => Profiled::Lean(setup.lean()),
        };
        Self { setup: setup.clone(), store }
    }

    fn at(&self, lock: u64) -> (Word, u64) {
        match &self.store {
            Profiled::Wide(wide) => (wide.load(lock), wide.token(lock)),
            Profiled::Lean(lean) => (lean.load(lock), lean.token(lock)),
        }
    }

    /// The row of the table that a datagram would be decided by, if it gets so far.
    #[must_use]
    pub fn row(&self, datagram: &[u8]) -> Option<Case> {
        let Setup { profile, locks, writers_first, ref key, .. } = self.setup;
        let (packet, _) = parse(datagram, key.as_ref()).ok()?;
        let there = |machine, session| self.setup.session(machine) == Some(session);
        let speaks = self.setup.speaks(packet.sender, packet.session);
        let known = speaks && there(packet.requester, packet.requester_session);
        if !packet.kind.is_decided() || packet.lock >= locks || !known {
            return None;
        }
        let case = Case::of(&packet, self.at(packet.lock).0, profile, writers_first);
        let carried_out = rule(case).place != Place::Target || self.setup.session(packet.target).is_some();
        carried_out.then_some(case)
    }
}

impl VectorDecider for Model {
    fn reset(&mut self, setup: &Setup) {
        *self = Self::new(setup);
    }

    fn process(&mut self, datagram: &[u8]) -> Vec<(To, Vec<u8>)> {
        let Self { setup, store } = self;
        let key = setup.key.as_ref();
        let Ok((packet, _)) = parse(datagram, key) else { return Vec::new() };
        let settings = Settings { writers_first: setup.writers_first };
        let outputs = match store {
            Profiled::Wide(wide) => decide(wide, setup, settings, &packet),
            Profiled::Lean(lean) => decide(lean, setup, settings, &packet),
        };
        datagrams(&outputs, datagram, key)
    }

    fn word(&mut self, lock: u64) -> Option<(Word, u64)> {
        Some(self.at(lock))
    }
}
