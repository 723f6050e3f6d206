//! The lean profile: 18 bits a lock, as a switch keeps them, and how many of them a switch holds.
//!
//! The layout is that of FissLock's figure 12, one array for each field: two bits of state, a byte of machine, a byte
//! of incarnation. A decision writes to three arrays, and a host has no instruction that writes to three places at
//! once; a switch needs none, because its pipeline takes one packet after the other through each array. So [`Lean`] is
//! for one thread, and the compiler sees to it: the cells make it `!Sync`. Who wants threads takes
//! [`Wide`](crate::decider::Wide).
//!
//! *Invariant*: [`Lean`] does what `Wide` does with its words cut to 8-bit machines and incarnations, as long as
//! machines are below 256, incarnations in packets are cut alike, and no packet is late by 256 decisions on its lock.
//! Tokens do not exist here: they are 0.

use crate::decider::Store;
use crate::word::{Machine, Profile, State, Word};
use std::cell::Cell;

/// Locks of 18 bits. `states` has four locks a byte, the first in the lowest bits.
#[derive(Debug)]
pub struct Lean {
    states: Vec<Cell<u8>>,
    machines: Vec<Cell<u8>>,
    incarnations: Vec<Cell<u8>>,
}

impl Lean {
    /// `locks` free locks.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        let zeros = |count: usize| vec![Cell::new(0); count];
        Self { states: zeros(locks.div_ceil(4)), machines: zeros(locks), incarnations: zeros(locks) }
    }

    /// Bytes of the three arrays.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.states.len() + self.machines.len() + self.incarnations.len()
    }

    /// Replaces a word, whatever it is. Of the machine and the incarnation the low 8 bits are kept.
    pub fn store(&self, lock: u64, word: Word) {
        let (lock, shift) = (lock as usize, lock % 4 * 2);
        let states = &self.states[lock / 4];
        states.set(states.get() & !(3 << shift) | (word.state as u8) << shift);
        self.machines[lock].set(word.machine.0 as u8);
        self.incarnations[lock].set(word.incarnation as u8);
    }
}

impl Store for Lean {
    fn locks(&self) -> u64 {
        self.machines.len() as u64
    }

    fn profile(&self) -> Profile {
        Profile::Lean
    }

    fn load(&self, lock: u64) -> Word {
        let (lock, shift) = (lock as usize, lock % 4 * 2);
        Word {
            state: State::of_bits(self.states[lock / 4].get() >> shift),
            machine: Machine(self.machines[lock].get().into()),
            incarnation: self.incarnations[lock].get().into(),
        }
    }

    fn swap(&self, lock: u64, old: Word, new: Word) -> bool {
        let same = self.load(lock) == old;
        if same {
            self.store(lock, new);
        }
        same
    }

    fn token(&self, _: u64) -> u64 {
        0
    }

    fn next_token(&self, _: u64) -> u64 {
        0
    }
}

/// A programmable switch: what counts for the number of locks it holds (section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Match-action units of the ingress pipeline, one after the other.
    pub stages: u64,
    /// Bits of registers in each.
    pub stage_bits: u64,
    /// Stages that hold no locks: control and computing.
    pub control_stages: u64,
}

/// How the stages of a switch are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The most locks.
    pub locks: u64,
    /// Stages for the state, which is two arrays of one bit.
    pub state_stages: u64,
    /// Stages for machines.
    pub machine_stages: u64,
    /// Stages for incarnations.
    pub incarnation_stages: u64,
    /// Stages that are left over, too few to make each array one larger.
    pub unused_stages: u64,
}

impl Switch {
    /// That of the paper: an Intel Tofino with 12 stages, "about 560 KB" each (1 KB = 1000 bytes, from its 1.68
    /// million).
    pub const TOFINO: Self = Self { stages: 12, stage_bits: 560_000 * 8, control_stages: 4 };

    /// Stages that one array of `bits` bits a lock takes. A stage serves one array only, since registers are accessed
    /// once for each packet.
    const fn array(self, locks: u64, bits: u64) -> u64 {
        (locks as u128 * bits as u128).div_ceil(self.stage_bits as u128) as u64
    }

    /// The paper's M: stages that `locks` locks take.
    #[must_use]
    pub const fn stages_for(self, locks: u64) -> u64 {
        self.array(locks, 1) * 2 + self.array(locks, 8) * 2 + self.control_stages
    }

    /// The most locks that fit, and where. Each of the four arrays needs a stage of its own, so with fewer there is no
    /// lock.
    #[must_use]
    pub const fn capacity(self) -> Capacity {
        let for_locks = self.stages.saturating_sub(self.control_stages);
        // Neither fits the machines alone, so neither fits the whole; below lies what is sought.
        let most = (for_locks as u128 * self.stage_bits as u128 / 8) as u64;
        let (mut fits, mut too_many) = (0, most + 1);
        while self.stage_bits > 0 && too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.stages_for(middle) <= self.stages {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        let (state, byte) = if fits == 0 { (0, 0) } else { (self.array(fits, 1) * 2, self.array(fits, 8)) };
        Capacity {
            locks: fits,
            state_stages: state,
            machine_stages: byte,
            incarnation_stages: byte,
            unused_stages: for_locks - state - 2 * byte,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decider::{Sessions, Settings, Wide, WideLock, decide};
    use crate::packet::{GRANTED, Kind, Packet};
    use proptest::prelude::*;

    struct Everybody;

    impl Sessions for Everybody {
        fn session(&self, _: Machine) -> Option<u32> {
            Some(0)
        }
    }

    fn cut(word: Word) -> Word {
        Word { machine: Machine(word.machine.0 & 0xff), incarnation: word.incarnation & 0xff, ..word }
    }

    #[test]
    fn a_lock_takes_18_bits() {
        assert_eq!(Lean::new(4_000_000).bytes() * 8, 4_000_000 * 18);
    }

    #[test]
    fn neighbours_keep_their_words() {
        let lean = Lean::new(9);
        for lock in 0..9 {
            let word = |n: u64| Word {
                state: State::of_bits(n as u8),
                machine: Machine(n as u16 + 1),
                incarnation: 100 + n as u32,
            };
            assert!(lean.swap(lock, Word::NEW, word(lock)));
            assert!(!lean.swap(lock, Word::NEW, Word::NEW), "it is another word by now");
            (0..=lock).for_each(|lock| assert_eq!(lean.load(lock), word(lock)));
            (lock + 1..9).for_each(|lock| assert_eq!(lean.load(lock), Word::NEW));
        }
    }

    proptest! {
        /// Whatever comes, the words are those of the wide profile, cut. Machines and incarnations of packets are near
        /// those of the words, so that all rows are met, and incarnations begin near the wrap.
        #[test]
        fn it_behaves_as_the_wide_profile_cut(
            packets in prop::collection::vec(
                (0_usize..8, 0_u8..2, 0_u64..3, 0_u16..3, 0_u16..3, 0_u32..4, any::<bool>()),
                1500,
            ),
            writers_first in any::<bool>(),
        ) {
            let near_the_wrap = Word { incarnation: 250, ..Word::NEW };
            let wide = Wide([(); 3].map(|()| WideLock::of(near_the_wrap, 0)));
            let lean = Lean::new(3);
            (0..3).for_each(|lock| lean.store(lock, near_the_wrap));
            let settings = Settings { writers_first };
            for (kind, shared, lock, sender, target, behind, granted) in packets {
                let mut packet = Packet::new(Kind::ALL[kind], lock);
                packet.flags = if shared == 1 { 1 } else { 3 } | if granted && behind == 0 { GRANTED } else { 0 };
                (packet.sender, packet.requester, packet.target) = (Machine(sender), Machine(sender), Machine(target));
                packet.incarnation = wide.load(lock).incarnation.saturating_sub(behind / 2);
                let ours = Packet { incarnation: packet.incarnation & 0xff, ..packet };
                let outputs = decide(&wide, &Everybody, settings, &packet);
                let lean_outputs = decide(&lean, &Everybody, settings, &ours);
                prop_assert_eq!(lean.load(lock), cut(wide.load(lock)));
                for (of_lean, of_wide) in lean_outputs.packets.into_iter().zip(outputs.packets) {
                    let of_wide = of_wide.map(|(to, out)| (to, out.kind, out.target, out.incarnation & 0xff));
                    let of_lean = of_lean.map(|(to, out)| (to, out.kind, out.target, out.incarnation));
                    prop_assert_eq!(of_lean, of_wide);
                }
            }
        }
    }

    #[test]
    fn the_papers_switch_holds_what_the_paper_says() {
        let capacity = Switch::TOFINO.capacity();
        assert_eq!(capacity.locks, 1_680_000);
        assert_eq!((capacity.state_stages, capacity.machine_stages, capacity.incarnation_stages), (2, 3, 3));
        assert_eq!(capacity.unused_stages, 0);
        assert_eq!(Switch::TOFINO.stages_for(1_680_000), 12);
        assert_eq!(Switch::TOFINO.stages_for(1_680_001), 14);
    }

    #[test]
    fn the_capacity_is_the_most_that_fits() {
        for stages in 0..40 {
            for stage_bits in [0, 1, 7, 8, 64, 1000, 4_480_000] {
                for control_stages in [0, 4] {
                    let switch = Switch { stages, stage_bits, control_stages };
                    let Capacity { locks, .. } = switch.capacity();
                    if stage_bits == 0 || stages < control_stages + 4 {
                        assert_eq!(locks, 0, "{switch:?}");
                        continue;
                    }
                    assert!(locks == 0 || switch.stages_for(locks) <= stages, "{switch:?}");
                    assert!(switch.stages_for(locks + 1) > stages, "{switch:?}");
                }
            }
        }
        // Sizes that no switch has do not overflow.
        let huge = Switch { stages: 64, stage_bits: 1 << 56, control_stages: 4 };
        assert_eq!(huge.stages_for(huge.capacity().locks), 64);
    }
}
