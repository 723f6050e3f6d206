//! Separable procedures that only copy: their whole effect as a table of constants.
//!
//! Most procedures of key-value workloads take rows and copy bytes between them and the block. For those no
//! program has to run: an engine looks the row up and makes the moves of its access, in their order.
//!
//! **Guarantee.** When every row exists and every [`super::ArgumentCheck`] passes, making the moves of all accesses
//! has the effect of running the procedure, with the freedom of order that [`super::Fragment`]s have.

use super::straight::{ArgumentIndex, Execution, Value};
use crate::isa::{Instruction, Opcode};

/// A copy between a row and the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Bytes from the start of the row (header included) for an index of zero.
    pub row_offset: u32,
    /// What is added to `row_offset`.
    pub index: Option<ArgumentIndex>,
    /// Bytes from the start of the block.
    pub block_offset: u32,
    /// Bytes.
    pub length: u32,
    /// From the block into the row; otherwise from the row into the block.
    pub write: bool,
}

/// What an instruction does beyond its registers.
pub(super) enum Effect {
    None,
    /// A move of this access.
    Move(usize, Move),
    /// Something else.
    Other,
}

impl Execution<'_> {
    /// What an instruction of the prefix does, as far as moves can say it.
    pub(super) fn effect(&self, i: &Instruction) -> Effect {
        let (handle, row, block, write) = match i.opcode {
            Opcode::CopyBr => (i.c, (i.y, i.e), (i.x, i.d), false),
            Opcode::CopyRb => (i.b, (i.x, i.d), (i.y, i.e), true),
            Opcode::CopyRr | Opcode::CopyBb | Opcode::Store | Opcode::Loadr | Opcode::Storer => return Effect::Other,
            Opcode::Insert | Opcode::Remove | Opcode::Scan => return Effect::Other,
            _ => return Effect::None,
        };
        let (Value::Row(access), Some((row_offset, index)), Some((block_offset, None))) =
            (self.of(handle), self.place(row.0, row.1), self.place(block.0, block.1))
        else {
            return Effect::Other;
        };
        Effect::Move(access, Move { row_offset, index, block_offset, length: u32::from(i.w), write })
    }
}
