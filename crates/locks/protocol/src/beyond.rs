//! Locks beyond those that the decider has words for: lock managers keep them, each a part.
//!
//! Section 6 of the paper: what exceeds the switch's capacity is handled by lock managers on servers, as in ParLock,
//! and the switch sends requests on to them. A decider does the same with a lock of the kind as with one that is
//! [led](crate::word::State::Led): the packet goes to the agent. Only, where the agent is does not stand in a word of
//! the lock's own, but in one for each of [`PARTS`] parts of all these locks: the *manager* of the part, and a
//! *generation* in the place of the incarnation. No packet ever changes it; the registry does, when a manager comes or
//! is gone. Where no machine offers to manage, the registry's own agents do.
//!
//! ```text
//! B --ACQUIRE-----------> D --> M*     the first packet of generation 8: M manages this part from now on
//!                    M* --SWEEP [8]--> registry, and on to all
//!        A (holds) <--SWEEP [8]-- D    what M's predecessor granted is void if it comes yet
//!        A --ENROL------> D --> M*     A holds
//!        all --SWEPT--> registry --> M*   M grants, with tokens larger than any before
//! ```
//!
//! So a manager that dies, one that is relieved and a decider that is lost are one case, and no packet is needed that
//! there was not. An agent of a manager never moves, and is forgotten when nobody holds or waits.
//!
//! *Trade-off*: a lock costs what one of a lock server does: its holders are served by the processor of another
//! machine.

use crate::word::{Machine, Profile};
use std::collections::BTreeSet;

/// Locks have numbers below this.
pub const MAX_LOCKS: u64 = 1 << 62;

/// Into how many parts the locks are divided: those whose numbers have the same remainder.
pub const PARTS: u64 = 64;

/// The part of a lock.
#[must_use]
pub const fn part(lock: u64) -> u64 {
    lock % PARTS
}

/// The lock that stands for all of its part.
#[must_use]
pub const fn representative(lock: u64) -> u64 {
    MAX_LOCKS - PARTS + part(lock)
}

/// Who manages a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manager {
    /// The machine; [`Machine::REGISTRY`] where nobody else does.
    pub machine: Machine,
    /// Larger with every manager, in the ring of incarnations.
    pub generation: u32,
}

/// A new manager's tokens begin so much higher for each millisecond that has passed, and at least this much above where
/// its predecessor began: above all of the predecessor's, because nobody is granted as many locks in a millisecond.
pub const TOKENS_A_MS: u64 = 1 << 23;

/// Who manages what.
#[derive(Debug)]
pub(crate) struct Managers {
    profile: Profile,
    machines: BTreeSet<Machine>,
    parts: [Manager; PARTS as usize],
    /// Where the tokens of the present managers began.
    tokens: [u64; PARTS as usize],
}

impl Managers {
    pub(crate) fn new(profile: Profile) -> Self {
        let nobody = Manager { machine: Machine::REGISTRY, generation: 0 };
        Self { profile, machines: BTreeSet::new(), parts: [nobody; PARTS as usize], tokens: [0; PARTS as usize] }
    }

    pub(crate) const fn of(&self, lock: u64) -> Manager {
        self.parts[part(lock) as usize]
    }

    /// Whoever holds a lock of this part is enrolled with its manager: where its tokens begin, `now` nanoseconds after
    /// tokens began above `first`.
    pub(crate) fn begin_tokens(&mut self, lock: u64, first: u64, now: u64) -> u64 {
        let of_part = &mut self.tokens[part(lock) as usize];
        let of_time = first.saturating_add((now / 1_000_000).saturating_mul(TOKENS_A_MS));
        *of_part = of_time.max(of_part.saturating_add(TOKENS_A_MS));
        *of_part
    }

    /// A machine offers to manage. What the registry no longer manages: a lock of each part, and its generation.
    pub(crate) fn join(&mut self, machine: Machine) -> Vec<(u64, u32)> {
        self.machines.insert(machine);
        self.divide()
    }

    /// A machine is gone.
    pub(crate) fn leave(&mut self, machine: Machine) {
        if self.machines.remove(&machine) {
            self.divide();
        }
    }

    /// Every part belongs to the machine that goes with it best, so that few change hands.
    fn divide(&mut self) -> Vec<(u64, u32)> {
        let mut relieved = Vec::new();
        for (part, manager) in (0..).zip(&mut self.parts) {
            let best = self.machines.iter().copied().max_by_key(|machine| affinity(part, *machine));
            let machine = best.unwrap_or(Machine::REGISTRY);
            if machine == manager.machine {
                continue;
            }
            let was_own = manager.machine == Machine::REGISTRY;
            *manager = Manager { machine, generation: self.profile.add(manager.generation, 1) };
            if was_own {
                relieved.push((representative(part), manager.generation));
            }
        }
        relieved
    }
}

/// How well a machine goes with a part: any number, and another one for every pair.
const fn affinity(part: u64, machine: Machine) -> u64 {
    let mixed = (part << 16 | machine.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_that_stands_for_a_part_is_of_that_part() {
        for lock in [0, 1, 63, 64, 1 << 40 | 17, MAX_LOCKS - 1] {
            assert_eq!(part(representative(lock)), part(lock));
            assert!(representative(lock) < MAX_LOCKS && representative(representative(lock)) == representative(lock));
        }
    }

    #[test]
    fn parts_change_hands_only_with_those_who_come_and_go_and_all_get_some() {
        let mut managers = Managers::new(Profile::Wide);
        let owners = |managers: &Managers| managers.parts.map(|manager| manager.machine);
        assert_eq!(managers.join(Machine(1)).len(), PARTS as usize, "the registry keeps none");
        for machine in 2..=4 {
            let before = owners(&managers);
            assert!(managers.join(Machine(machine)).is_empty());
            let changed = |(a, b): (&Machine, &Machine)| a == b || *b == Machine(machine);
            assert!(before.iter().zip(&owners(&managers)).all(changed));
        }
        let before = managers.parts;
        for machine in 1..=4 {
            let parts = before.iter().filter(|manager| manager.machine == Machine(machine)).count();
            assert!((4..=32).contains(&parts), "machine {machine} has {parts}");
        }
        managers.leave(Machine(2));
        for (was, is) in before.iter().zip(&managers.parts) {
            let lost = was.machine == Machine(2);
            assert_eq!(is.generation, was.generation + u32::from(lost));
            assert!(is.machine != Machine(2) && (lost || is == was));
        }
        managers.leave(Machine(2));
        [1, 3, 4].into_iter().for_each(|machine| managers.leave(Machine(machine)));
        assert!(owners(&managers).iter().all(|machine| *machine == Machine::REGISTRY));
        assert_eq!(managers.join(Machine(9)).len(), PARTS as usize);
    }
}
