//! How much private memory a procedure needs on a device: nothing can be allocated there once it runs.

use lockwork_engine::registry::Registered;
use lockwork_procedure::isa::{Opcode, SIGNED};

/// The most private bytes of one call: devices keep them for every work-item in flight.
pub(crate) const MOST_PRIVATE_BYTES: u64 = 16 << 10;

/// What one call may need, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Words of old bytes.
    pub(crate) undo_words: u64,
    /// Rows inserted.
    pub(crate) inserts: u64,
    /// Rows removed.
    pub(crate) removes: u64,
    /// Locks of records.
    pub(crate) locks: u64,
}

impl Bounds {
    /// The bounds of a procedure: every instruction as often as the loops around it can run together.
    pub(crate) fn of(registered: &Registered) -> Self {
        let verified = &registered.verified;
        let times = |at: usize| {
            let around = verified.loops().iter().filter(|found| (found.head..=found.back).contains(&(at as u32)));
            around.fold(1_u64, |times, found| times.saturating_mul(found.bound))
        };
        let mut bounds = Self::default();
        for (at, instruction) in verified.procedure().code.iter().enumerate() {
            let facts = verified.facts()[at];
            if !facts.reachable {
                continue;
            }
            let add = |to: &mut u64, words: u64| *to = to.saturating_add(times(at).saturating_mul(words));
            if facts.needs_undo {
                add(&mut bounds.undo_words, u64::from(instruction.w & !SIGNED).div_ceil(8) + 1);
            }
            match instruction.opcode {
                Opcode::Insert => add(&mut bounds.inserts, 1),
                Opcode::Remove => add(&mut bounds.removes, 1),
                _ => {}
            }
            if instruction.opcode.is_db() && instruction.opcode != Opcode::Scan {
                add(&mut bounds.locks, 1);
            }
        }
        bounds
    }

    /// Private bytes of one call.
    pub(crate) fn bytes(&self) -> u64 {
        [self.undo_words, self.inserts, self.removes, self.locks].into_iter().fold(0_u64, u64::saturating_add) * 8
    }
}
