//! The decision word: all that the data plane knows of a lock.
//!
//! ```text
//! wide, 64 bits   | 63 .. 32 incarnation | 31 .. 16 machine | 15 .. 2 zero | 1 .. 0 state |
//! lean, 18 bits   |  8 bits incarnation  |  8 bits machine  |              | 2 bits state |
//! ```
//!
//! FissLock (section 5.2) keeps two bits of mode and counts shared grants in an incarnation that starts again with each
//! holder. Here the fourth value of the two bits is used, [`State::Led`], and the incarnation never starts again: each
//! decision that gives something away (a grant, a move, an opening) makes it one larger. So a word is never the same
//! twice (until the incarnation wraps), every operation of an agent is a compare-and-swap on (machine, incarnation),
//! and one that arrives late or twice finds another word and changes nothing. No sequence numbers are needed to tell
//! duplicates.
//!
//! *Invariant*: who may join is decided in one place at a time. In [`State::Shared`] the decider may add readers; in
//! the other two held states only the agent may.

/// Who decides about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Nobody holds it: the decider grants it to whoever comes.
    Free = 0,
    /// Readers hold it, and the decider adds readers by itself.
    Shared = 1,
    /// The agent alone decides: its lock was handed over, or closed to new readers while a writer waits.
    Led = 2,
    /// The decider granted it exclusively; the agent alone decides about the rest.
    Exclusive = 3,
}

impl State {
    /// All states, in the order of their bits.
    pub const ALL: [Self; 4] = [Self::Free, Self::Shared, Self::Led, Self::Exclusive];

    /// The state of two bits; higher bits are ignored.
    #[must_use]
    pub const fn of_bits(bits: u8) -> Self {
        Self::ALL[(bits & 3) as usize]
    }
}

/// A machine: a process that takes part. 0 is the registry, which also stands for "nobody" in a free word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Machine(pub u16);

impl Machine {
    /// The registry: sessions, leases, and agents of machines that have died.
    pub const REGISTRY: Self = Self(0);
    /// The registry's session. Packets of session 0 come from deciders.
    pub const REGISTRY_SESSION: u32 = 1;
}

/// How many bits a machine and an incarnation have, and whether there are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// 18 bits a lock, for switches: 8-bit machine and incarnation, no token. Safe as long as fewer than 256 decisions
    /// on a lock are under way and no packet is late by 256 decisions on its lock.
    Lean,
    /// 16 bytes a lock: 16-bit machine, 32-bit incarnation, 64-bit token.
    Wide,
}

impl Profile {
    /// The largest machine number.
    #[must_use]
    pub const fn last_machine(self) -> u16 {
        match self {
            Self::Lean => u8::MAX as u16,
            Self::Wide => u16::MAX,
        }
    }

    /// Whether grants have tokens.
    #[must_use]
    pub const fn has_tokens(self) -> bool {
        matches!(self, Self::Wide)
    }

    /// The bits of an incarnation.
    #[must_use]
    pub const fn incarnation_mask(self) -> u32 {
        match self {
            Self::Lean => u8::MAX as u32,
            Self::Wide => u32::MAX,
        }
    }

    /// `a` plus `n`, in the ring of incarnations.
    #[must_use]
    pub const fn add(self, a: u32, n: u32) -> u32 {
        a.wrapping_add(n) & self.incarnation_mask()
    }

    /// How far `b` lies behind `a` in the ring: positive if `b` is the newer, negative if it is the older.
    #[must_use]
    pub const fn distance(self, a: u32, b: u32) -> i32 {
        let distance = b.wrapping_sub(a) & self.incarnation_mask();
        match self {
            Self::Lean => distance as u8 as i8 as i32,
            Self::Wide => distance as i32,
        }
    }
}

/// As people read it.
impl std::fmt::Display for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Free => "free",
            Self::Shared => "shared",
            Self::Led => "led",
            Self::Exclusive => "exclusive",
        })
    }
}

/// A decision word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// Who decides.
    pub state: State,
    /// Where the agent is; the registry's number if the lock is free.
    pub machine: Machine,
    /// Decisions so far.
    pub incarnation: u32,
}

impl Word {
    /// Never locked.
    pub const NEW: Self = Self { state: State::Free, machine: Machine::REGISTRY, incarnation: 0 };

    /// The wide layout.
    #[must_use]
    pub const fn bits(self) -> u64 {
        (self.incarnation as u64) << 32 | (self.machine.0 as u64) << 16 | self.state as u64
    }

    /// From the wide layout; bits 2 to 15 are ignored.
    #[must_use]
    pub const fn of_bits(bits: u64) -> Self {
        Self {
            state: State::of_bits(bits as u8),
            machine: Machine((bits >> 16) as u16),
            incarnation: (bits >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_bits() {
        for state in State::ALL {
            let word = Word { state, machine: Machine(0xabcd), incarnation: 0x1234_5678 };
            assert_eq!(word.bits(), 0x1234_5678_abcd_0000 | state as u64);
            assert_eq!(Word::of_bits(word.bits()), word);
        }
    }

    #[test]
    fn newer_and_older_hold_across_the_wrap() {
        for profile in [Profile::Lean, Profile::Wide] {
            let last = profile.incarnation_mask();
            assert_eq!(profile.add(last, 1), 0);
            assert_eq!(profile.distance(last, 0), 1);
            assert_eq!(profile.distance(0, last), -1);
            assert_eq!(profile.distance(7, 107), 100);
        }
    }
}
