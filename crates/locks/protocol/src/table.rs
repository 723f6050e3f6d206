//! The decision table: what a decider does with a packet, for every state of a lock.
//!
//! There is one table. The Rust decider looks its rows up; the C of the eBPF program, the entries of the P4 program,
//! the page in docs/lock-service.md and the golden vectors are written from it ([`export`](crate::export)), and tests
//! compare them with it.
//!
//! A row is found by ten bits ([`Case::index`]). The rules below are read from the top, the first that fits wins, so
//! they must be read like the arms of a `match`. What FissLock (figure 8 and section 5.2) does differently:
//!
//! - RELEASE never writes. In the paper the decider frees the lock if the release comes from the agent's server, which
//!   frees a lock that a second reader holds when the first grant was lost. Here the agent is taken over
//!   and asked.
//! - FREE and GRANT with agent are compared with machine *and* incarnation in every mode, so duplicates and late
//!   packets change nothing, and a FREE must come from the agent's machine.
//! - A grant with agent leaves the lock [`State::Led`] whatever its mode: no reader is added before the agent has
//!   arrived, so a retransmitted grant is recognised by the word alone. The agent opens the lock when it is ready.
//!
//! Section 6's one bit for waiting writers is `Led` too: closing needs no room of its own.

use crate::packet::{GRANTED, Kind, Packet};
use crate::word::{Machine, Profile, State, Word};
use lockwork_locking::LockMode;

/// What a row depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// A kind that is decided on.
    pub kind: Kind,
    /// State of the lock.
    pub state: State,
    /// The packet asks for a shared lock.
    pub shared: bool,
    /// The packet comes from the machine of the agent.
    pub from_agent: bool,
    /// Packet and word have the same incarnation.
    pub matches: bool,
    /// The word is what this packet would have made of it: target and next incarnation.
    pub applied: bool,
    /// Setting: readers do not pass a writer that waits.
    pub writers_first: bool,
}

/// How many rows there are.
pub const ROWS: usize = 1024;

impl Case {
    /// The case of a packet that is decided on.
    #[must_use]
    pub fn of(packet: &Packet, word: Word, profile: Profile, writers_first: bool) -> Self {
        // A reader that the decider has granted asks nothing: it enrols.
        let kind = if packet.kind == Kind::Acquire && packet.has(GRANTED) { Kind::Enrol } else { packet.kind };
        Self {
            kind,
            state: word.state,
            shared: packet.mode() == Some(LockMode::Shared),
            from_agent: packet.sender == word.machine,
            matches: packet.incarnation == word.incarnation,
            applied: packet.target == word.machine && profile.add(packet.incarnation, 1) == word.incarnation,
            writers_first,
        }
    }

    /// Bits 0 to 2 kind, 3 and 4 state, then one bit each: shared, from agent, matches, applied, writers first.
    #[must_use]
    pub const fn index(self) -> usize {
        self.kind as usize
            | (self.state as usize) << 3
            | (self.shared as usize) << 5
            | (self.from_agent as usize) << 6
            | (self.matches as usize) << 7
            | (self.applied as usize) << 8
            | (self.writers_first as usize) << 9
    }

    /// The case of an index below [`ROWS`].
    #[must_use]
    pub fn of_index(index: usize) -> Self {
        let bit = |at: usize| index >> at & 1 == 1;
        Self {
            kind: Kind::ALL[index & 7],
            state: State::of_bits((index >> 3) as u8),
            shared: bit(5),
            from_agent: bit(6),
            matches: bit(7),
            applied: bit(8),
            writers_first: bit(9),
        }
    }
}

/// Where the agent is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Place {
    /// Where it was.
    Keep = 0,
    /// With the requester.
    Requester = 1,
    /// With the target.
    Target = 2,
    /// Nowhere.
    Nobody = 3,
}

/// What is sent. "The agent" is the machine in the word before the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Send {
    /// GRANT with a new agent, to the requester.
    Grant = 0,
    /// GRANT to the requester and ACQUIRE with [`GRANTED`] to the agent; the latter alone if both are one machine.
    Join = 1,
    /// The packet, to the agent.
    Agent = 2,
    /// GRANT with the agent, to the target.
    Target = 3,
    /// DONE, to the sender.
    Done = 4,
    /// REFUSED, to the sender.
    Refused = 5,
    /// ACK, to the requester: there is nothing to release.
    Ack = 6,
    /// ERROR to the requester: what it believes to hold it does not hold.
    Gone = 7,
}

/// A row: what a decider does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// The new state; `None` leaves the word as it is.
    pub state: Option<State>,
    /// Where the agent is afterwards.
    pub place: Place,
    /// The incarnation grows by one.
    pub next: bool,
    /// The token grows.
    pub token: bool,
    /// What is sent.
    pub send: Send,
}

impl Action {
    const fn only(send: Send) -> Self {
        Self { state: None, place: Place::Keep, next: false, token: false, send }
    }

    const fn to(state: State, place: Place, send: Send) -> Self {
        Self { state: Some(state), place, next: true, token: false, send }
    }

    const fn with_token(self) -> Self {
        Self { token: true, ..self }
    }

    const fn same_incarnation(self) -> Self {
        Self { next: false, ..self }
    }

    /// Bits 0 to 2 what is sent, 3 and 4 the state, 5 whether the word is written, 6 and 7 the place, 8 incarnation, 9
    /// token.
    #[must_use]
    pub const fn bits(self) -> u16 {
        let state = match self.state {
            Some(state) => (state as u16) << 3 | 1 << 5,
            None => 0,
        };
        self.send as u16 | state | (self.place as u16) << 6 | (self.next as u16) << 8 | (self.token as u16) << 9
    }

    /// The word afterwards.
    #[must_use]
    pub const fn apply(self, word: Word, packet: &Packet, profile: Profile) -> Word {
        let Some(state) = self.state else { return word };
        let machine = match self.place {
            Place::Keep => word.machine,
            Place::Requester => packet.requester,
            Place::Target => packet.target,
            Place::Nobody => Machine(0),
        };
        let incarnation = if self.next { profile.add(word.incarnation, 1) } else { word.incarnation };
        Word { state, machine, incarnation }
    }
}

/// The rules.
#[must_use]
pub const fn rule(case: Case) -> Action {
    use State::{Exclusive, Free, Led, Shared};
    let Case { kind, state, shared, from_agent, matches, applied, writers_first } = case;
    match (kind, state) {
        // (1) A free lock goes to whoever comes, with a new agent.
        (Kind::Acquire, Free) if shared => Action::to(Shared, Place::Requester, Send::Grant),
        (Kind::Acquire, Free) => Action::to(Exclusive, Place::Requester, Send::Grant).with_token(),
        // (2) A reader joins readers.
        (Kind::Acquire, Shared) if shared => Action::to(Shared, Place::Keep, Send::Join),
        // (3) A writer waits with the agent, and the lock is closed to further readers if writers go first.
        (Kind::Acquire, Shared) if writers_first => Action::to(Led, Place::Keep, Send::Agent).same_incarnation(),
        // (3) The agent decides.
        (Kind::Acquire, _) => Action::only(Send::Agent),
        // (9) Releases go to the agent. A free lock has none: everything about it is settled, and nothing is written.
        (Kind::Release, Free) => Action::only(Send::Ack),
        (Kind::Seek, Free) => Action::only(Send::Done),
        (Kind::Seek, _) => Action::only(Send::Agent),
        (Kind::Release, _) => Action::only(Send::Agent),
        (Kind::Enrol, Free) => Action::only(Send::Gone),
        (Kind::Enrol, _) => Action::only(Send::Agent),
        // (7) The agent gives the lock back, unless the decider has added readers that the agent has not seen.
        (Kind::Free, Free) => Action::only(Send::Done),
        (Kind::Free, _) if from_agent && matches => Action::to(Free, Place::Nobody, Send::Done).same_incarnation(),
        (Kind::Free, _) if from_agent => Action::only(Send::Refused),
        (Kind::Free, _) => Action::only(Send::Done),
        // (8) The agent moves. A second copy finds what the first one made, and is sent on in case that one was lost.
        // An agent that moves to where it is is told the incarnation instead: a reader who joined and a writer who
        // closed the lock would make the same word.
        (Kind::Move, Free) => Action::only(Send::Done),
        (Kind::Move, _) if from_agent && matches => Action::to(Led, Place::Target, Send::Target).with_token(),
        (Kind::Move, _) if from_agent => Action::only(Send::Refused),
        (Kind::Move, Led) if applied => Action::only(Send::Target),
        (Kind::Move, _) => Action::only(Send::Done),
        // The agent lets the decider add readers. That makes the incarnation larger, so a second copy is recognised.
        (Kind::Open, Led | Exclusive) if from_agent && matches => Action::to(Shared, Place::Keep, Send::Done),
        (Kind::Open, Led | Exclusive) if from_agent => Action::only(Send::Refused),
        (Kind::Open, _) => Action::only(Send::Done),
        // The agent takes that back, whatever it has seen: the answer tells it what it has to see.
        (Kind::Close, Shared) if from_agent => Action::to(Led, Place::Keep, Send::Done).same_incarnation(),
        _ => Action::only(Send::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_and_cases_are_one_to_one() {
        for index in 0..ROWS {
            assert_eq!(Case::of_index(index).index(), index);
        }
    }

    #[test]
    fn what_changes_a_held_lock_comes_from_its_agent_or_adds_a_reader() {
        for index in 0..ROWS {
            let case = Case::of_index(index);
            let action = rule(case);
            let Some(state) = action.state else { continue };
            let joins =
                case.kind == Kind::Acquire && case.state == State::Shared && (case.shared || state == State::Led);
            assert!(case.state == State::Free || joins || case.from_agent, "{case:?} {action:?}");
            // Only closing gives nothing away; it is the same however often it is done.
            assert!(action.next || state == State::Free || state == State::Led, "{case:?} {action:?}");
            assert!(action.place != Place::Nobody || state == State::Free);
        }
    }

    #[test]
    fn a_release_never_writes() {
        for index in 0..ROWS {
            let case = Case::of_index(index);
            assert!(case.kind != Kind::Release || rule(case).state.is_none());
        }
    }
}
