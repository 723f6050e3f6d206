//! Which table a row handle belongs to, as far as a reader can tell; the disassembler names columns by it.
//!
//! Nothing rests on this: an offset that is named after the wrong table would still assemble to the same offset. But it
//! would mislead, so a register has a table only where one can be seen: the answer last put there since the last label,
//! or, where control may come from elsewhere, the only table whose handles the register ever holds.

use crate::isa::{Instruction, Opcode};

/// What a register holds handles of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// No row has been seen.
    Unseen,
    /// Rows of the table in this slot.
    Of(u8),
    /// Rows of different tables.
    Mixed,
}

impl Rows {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unseen, rows) | (rows, Self::Unseen) => rows,
            (a, b) if a == b => a,
            _ => Self::Mixed,
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Registers {
    gp: [Rows; 256],
    cp: [Rows; 256],
}

/// Follows the handles through the code, instruction by instruction.
pub(super) struct Handles {
    /// What holds everywhere.
    always: Registers,
    now: Registers,
}

impl Handles {
    pub(super) fn of(code: &[Instruction]) -> Self {
        let none = Registers { gp: [Rows::Unseen; 256], cp: [Rows::Unseen; 256] };
        let mut always = none.clone();
        // A register changes at most twice, so this ends; more than one round is needed only for chains of moves.
        loop {
            let before = always.clone();
            for i in code {
                let target = match i.opcode {
                    Opcode::Search | Opcode::Update | Opcode::Insert => {
                        (&mut always.cp[usize::from(i.a)], Rows::Of(i.d))
                    }
                    Opcode::Ret => (&mut always.gp[usize::from(i.a)], before.cp[usize::from(i.b)]),
                    Opcode::Mov => (&mut always.gp[usize::from(i.a)], before.gp[usize::from(i.b)]),
                    _ => continue,
                };
                *target.0 = target.0.join(target.1);
            }
            if always == before {
                return Self { now: always.clone(), always };
            }
        }
    }

    /// Control may come here from elsewhere.
    pub(super) fn label(&mut self) {
        self.now = self.always.clone();
    }

    /// Goes past an instruction.
    pub(super) fn step(&mut self, i: &Instruction) {
        match i.opcode {
            Opcode::Search | Opcode::Update | Opcode::Insert => self.now.cp[usize::from(i.a)] = Rows::Of(i.d),
            Opcode::Ret => self.now.gp[usize::from(i.a)] = self.now.cp[usize::from(i.b)],
            Opcode::Mov => self.now.gp[usize::from(i.a)] = self.now.gp[usize::from(i.b)],
            _ => {}
        }
    }

    /// The slot of the table whose row `register` holds.
    pub(super) fn table(&self, register: u8) -> Option<u8> {
        match self.now.gp[usize::from(register)] {
            Rows::Of(slot) => Some(slot),
            Rows::Unseen | Rows::Mixed => None,
        }
    }
}
