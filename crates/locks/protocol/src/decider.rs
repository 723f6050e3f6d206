//! The decider: a packet in, at most two packets out, one compare-and-swap between.
//!
//! It keeps no participants, no timers and no history; it cannot fail, wait or allocate. Any number of threads may
//! decide at the same time, on one lock too. The eBPF program (hardware/xdp) does the same, word for word, and is
//! tested against this.
//!
//! Control packets are forwarded unchecked. Order of the other checks: sender's session, kind, lock, requester's
//! session, and the target's session of a MOVE. The decider answers the first that fails, and changes nothing.

use crate::beyond::Manager;
use crate::packet::{AGENT, GRANTED, Kind, Packet, Problem};
use crate::table::{Action, Case, Send, rule};
use crate::word::{Machine, Profile, State, Word};
use lockwork_locking::LockMode;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a grant by the decider adds to a token. What lies below is for the agent, which may hand the lock on among
/// tasks of one machine without the decider.
pub const TOKEN_STEP: u64 = 1 << 16;

/// Where decision words are.
pub trait Store {
    /// How many locks there are.
    fn locks(&self) -> u64;
    /// Which profile they have.
    fn profile(&self) -> Profile;
    /// The word of a lock below [`Store::locks`].
    fn load(&self, lock: u64) -> Word;
    /// Replaces `old`, if it is still there.
    fn swap(&self, lock: u64, old: Word, new: Word) -> bool;
    /// The token of the newest exclusive grant; 0 in the lean profile.
    fn token(&self, lock: u64) -> u64;
    /// Makes the token larger by [`TOKEN_STEP`] and gives the new one.
    fn next_token(&self, lock: u64) -> u64;
    /// Makes the token `least`, if it is smaller. Nothing in the lean profile.
    fn raise_token(&self, _lock: u64, _least: u64) {}
}

/// A lock of the wide profile: 16 bytes, decision word and token.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct WideLock {
    word: AtomicU64,
    token: AtomicU64,
}

impl WideLock {
    /// A lock with this word and token.
    #[must_use]
    pub const fn of(word: Word, token: u64) -> Self {
        Self { word: AtomicU64::new(word.bits()), token: AtomicU64::new(token) }
    }
}

/// The wide profile over memory of the caller's: a vector, or the map of an eBPF program.
#[derive(Debug)]
pub struct Wide<T>(pub T);

impl<T: AsRef<[WideLock]>> Store for Wide<T> {
    fn locks(&self) -> u64 {
        self.0.as_ref().len() as u64
    }

    fn profile(&self) -> Profile {
        Profile::Wide
    }

    fn load(&self, lock: u64) -> Word {
        Word::of_bits(self.0.as_ref()[lock as usize].word.load(Ordering::Acquire))
    }

    fn swap(&self, lock: u64, old: Word, new: Word) -> bool {
        let word = &self.0.as_ref()[lock as usize].word;
        word.compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn token(&self, lock: u64) -> u64 {
        self.0.as_ref()[lock as usize].token.load(Ordering::Acquire)
    }

    fn next_token(&self, lock: u64) -> u64 {
        self.0.as_ref()[lock as usize].token.fetch_add(TOKEN_STEP, Ordering::AcqRel).wrapping_add(TOKEN_STEP)
    }

    fn raise_token(&self, lock: u64, least: u64) {
        self.0.as_ref()[lock as usize].token.fetch_max(least, Ordering::AcqRel);
    }
}

impl<S: AsRef<[WideLock]>> Wide<S> {
    /// Makes all tokens larger than `after`, which is a multiple of [`TOKEN_STEP`], before anything is granted.
    pub fn begin_tokens(&self, after: u64) {
        self.0.as_ref().iter().for_each(|lock| lock.token.store(after, Ordering::Relaxed));
    }
}

impl Wide<Vec<WideLock>> {
    /// `locks` free locks.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        Self(std::iter::repeat_with(WideLock::default).take(locks).collect())
    }
}

/// Who takes part.
pub trait Sessions {
    /// The session of a machine, if it is there; never 0. The registry's is [`Machine::REGISTRY_SESSION`].
    fn session(&self, machine: Machine) -> Option<u32>;

    /// Whether a packet may come from `machine` in this session. Over a network nobody speaks for the registry, whose
    /// own agents are where the decider's tables are kept.
    fn speaks(&self, machine: Machine, session: u32) -> bool {
        self.session(machine) == Some(session)
    }

    /// Who manages a lock that the decider has no word for, if there is such a lock; see [`crate::beyond`].
    fn manager(&self, _lock: u64) -> Option<Manager> {
        None
    }
}

/// Settings of a decider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Readers do not pass a writer that waits.
    pub writers_first: bool,
}

/// Where an output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Back where the packet came from.
    Source,
    /// To this machine, which is there. 0 is the registry.
    Machine(Machine),
}

/// At most two packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// Where to, and what.
    pub packets: [Option<(To, Packet)>; 2],
    /// Whether the payload goes along: with an agent that moves, and with what is not decided on but only sent on.
    pub payload: bool,
}

impl Outputs {
    const NONE: Self = Self { packets: [None; 2], payload: false };

    const fn one(to: To, packet: Packet) -> Self {
        Self { packets: [Some((to, packet)), None], payload: false }
    }

    const fn forwarded(to: Machine, packet: Packet) -> Self {
        Self { packets: [Some((To::Machine(to), packet)), None], payload: true }
    }
}

/// Decides on `packet`.
pub fn decide<S: Store>(store: &S, sessions: &impl Sessions, settings: Settings, packet: &Packet) -> Outputs {
    let there = |machine: Machine, session: u32| sessions.session(machine) == Some(session);
    if packet.kind.is_control() {
        // The registry checks sessions itself: who joins has none.
        return Outputs::forwarded(Machine::REGISTRY, *packet);
    }
    if !sessions.speaks(packet.sender, packet.session) {
        return problem(packet, Problem::NoSuchSession, None);
    }
    if !packet.kind.is_decided() {
        return match packet.kind {
            Kind::Grant | Kind::Ack | Kind::Probe => send_on(sessions, packet),
            // Only deciders say these.
            _ => Outputs::NONE,
        };
    }
    if packet.lock >= store.locks() {
        return match sessions.manager(packet.lock) {
            Some(manager) => decide_beyond(store.profile(), sessions, settings, packet, manager),
            None => problem(packet, Problem::NoSuchLock, None),
        };
    }
    if !there(packet.requester, packet.requester_session) {
        return problem(packet, Problem::NoSuchMachine, Some(store.load(packet.lock)));
    }
    loop {
        let old = store.load(packet.lock);
        let case = Case::of(packet, old, store.profile(), settings.writers_first);
        let action = rule(case);
        let new = action.apply(old, packet, store.profile());
        if action.send == Send::Target && sessions.session(packet.target).is_none() {
            return problem(packet, Problem::NoSuchMachine, Some(old));
        }
        // The token comes before the word that says that it is taken: whoever finds the word as another decider has
        // made it finds that one's token too. One that a lost swap has wasted is missed by nobody.
        let token = if action.token { store.next_token(packet.lock) } else { store.token(packet.lock) };
        if action.state.is_some() && !store.swap(packet.lock, old, new) {
            continue;
        }
        return outputs(sessions, packet, action, old, new, token);
    }
}

/// Decides about a lock without a word: as if it had one that is led by its manager, which nothing changes.
fn decide_beyond(
    profile: Profile,
    sessions: &impl Sessions,
    settings: Settings,
    packet: &Packet,
    manager: Manager,
) -> Outputs {
    let word = Word { state: State::Led, machine: manager.machine, incarnation: manager.generation };
    if sessions.session(packet.requester) != Some(packet.requester_session) {
        return problem(packet, Problem::NoSuchMachine, Some(word));
    }
    let case = Case::of(packet, word, profile, settings.writers_first);
    let case = Case { from_agent: false, matches: false, applied: false, ..case };
    let mut outputs = outputs(sessions, packet, rule(case), word, word, 0);
    for (_, one) in outputs.packets.iter_mut().flatten() {
        // A search has something else in this field.
        if one.kind != Kind::Seek && !one.has(GRANTED) {
            one.incarnation = manager.generation;
        }
    }
    outputs
}

fn problem(packet: &Packet, problem: Problem, word: Option<Word>) -> Outputs {
    let mut answer = *packet;
    answer.kind = Kind::Error;
    answer.target = packet.sender;
    answer.stamp(word.unwrap_or(Word::NEW), problem as u64);
    Outputs::one(To::Source, answer)
}

fn send_on(sessions: &impl Sessions, packet: &Packet) -> Outputs {
    if sessions.session(packet.target).is_none() {
        return problem(packet, Problem::NoSuchMachine, None);
    }
    Outputs::forwarded(packet.target, *packet)
}

fn outputs(sessions: &impl Sessions, packet: &Packet, action: Action, old: Word, new: Word, token: u64) -> Outputs {
    // Readers may come after every hand-over within the machine of the last writer, so they get the end of its range.
    let token = match packet.mode() {
        Some(LockMode::Shared) if matches!(action.send, Send::Grant | Send::Join) => token | (TOKEN_STEP - 1),
        _ => token,
    };
    // The agent of a machine that is gone: the registry will know what to do.
    let agent = if sessions.session(old.machine).is_some() { old.machine } else { Machine::REGISTRY };
    let mut one = *packet;
    match action.send {
        Send::Grant => {
            one.kind = Kind::Grant;
            one.flags |= AGENT;
            one.target = packet.requester;
            one.stamp(new, token);
            Outputs::one(To::Machine(packet.requester), one)
        }
        Send::Join => {
            one.target = packet.requester;
            one.stamp(new, token);
            let mut other = one;
            one.kind = Kind::Grant;
            other.flags |= GRANTED;
            other.target = agent;
            let other = Some((To::Machine(agent), other));
            let one = (agent != packet.requester).then_some((To::Machine(packet.requester), one));
            Outputs { packets: if one.is_some() { [one, other] } else { [other, None] }, payload: false }
        }
        Send::Agent => {
            one.target = agent;
            one.state = new.state;
            if one.kind == Kind::Acquire && !one.has(GRANTED) {
                one.incarnation = new.incarnation;
            }
            Outputs::one(To::Machine(agent), one)
        }
        Send::Target => {
            one.kind = Kind::Grant;
            one.flags |= AGENT;
            one.state = new.state;
            one.incarnation = new.incarnation;
            one.token = token;
            Outputs::forwarded(packet.target, one)
        }
        Send::Done | Send::Refused => {
            one.kind = if action.send == Send::Done { Kind::Done } else { Kind::Refused };
            one.target = packet.sender;
            one.stamp(new, token);
            Outputs::one(To::Source, one)
        }
        Send::Ack => {
            one.kind = Kind::Ack;
            one.target = packet.requester;
            one.stamp(new, token);
            Outputs::one(To::Machine(packet.requester), one)
        }
        Send::Gone => {
            one.kind = Kind::Error;
            one.target = packet.requester;
            one.stamp(new, Problem::NotHeld as u64);
            Outputs::one(To::Machine(packet.requester), one)
        }
    }
}
