//! How much private memory a procedure needs on a device: nothing can be allocated there once it runs.

use lockwork_engine::registry::Registered;
use lockwork_procedure::isa::{Instruction, Opcode, SIGNED};
use lockwork_procedure::verified::Verified;

/// The most private bytes of one call: devices keep them for every work-item in flight.
pub(crate) const MAX_PRIVATE_BYTES: u64 = 16 << 10;
/// The most private bytes of all procedures together. A compiler may give each its own, and a CPU device has them on a
/// thread's stack once for each work-item of a group.
pub(crate) const MAX_PRIVATE_BYTES_TOGETHER: u64 = 1 << 20;

/// How often an instruction can run in one call: as often as the loops around it together.
pub(crate) fn times(verified: &Verified, at: usize) -> u64 {
    let around = verified.loops().iter().filter(|found| (found.head..=found.back).contains(&(at as u32)));
    around.fold(1_u64, |times, found| times.saturating_mul(found.bound))
}

/// How many bytes of a row an instruction writes.
pub(super) fn written(instruction: &Instruction) -> u16 {
    match instruction.opcode {
        Opcode::Storer => instruction.w & !SIGNED,
        Opcode::CopyRb | Opcode::CopyRr => instruction.w,
        _ => 0,
    }
}

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
    /// The bounds of a procedure.
    pub(crate) fn of(registered: &Registered) -> Self {
        let verified = &registered.verified;
        let mut bounds = Self::default();
        for (at, instruction) in verified.procedure().code.iter().enumerate() {
            let facts = verified.facts()[at];
            if !facts.reachable {
                continue;
            }
            let add = |to: &mut u64, words: u64| *to = to.saturating_add(times(verified, at).saturating_mul(words));
            if facts.needs_undo {
                add(&mut bounds.undo_words, u64::from(written(instruction)).div_ceil(8) + 1);
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
        // Rows inserted are remembered twice: to be taken back, and as spare numbers for another attempt.
        [self.undo_words, self.inserts, self.inserts, self.removes, self.locks]
            .into_iter()
            .fold(0_u64, u64::saturating_add)
            * 8
    }
}
