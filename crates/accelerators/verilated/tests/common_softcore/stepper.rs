//! A second reading of the instruction set, an instruction at a time, that tells every register write. It changes a
//! copy of the world; rows are named by their addresses there, as in hardware.

use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode as O, SIGNED};
use lockwork_procedure::verified::Verified;

use super::world::{Found, World};

struct Stepper {
    world: World,
    block: i64,
    registers: Vec<i64>,
    answers: Vec<Option<i64>>,
    writes: Vec<(u8, u64)>,
}

enum Next {
    To(usize),
    Commit,
    Abort,
}

/// All register writes of an execution, handler included, in order.
pub(crate) fn register_writes(world: &World, verified: &Verified, block: usize) -> Vec<(u8, u64)> {
    let procedure = verified.procedure();
    let (registers, answers) = (vec![0; 256], vec![None; 256]);
    let mut stepper = Stepper { world: world.clone(), block: block as i64, registers, answers, writes: Vec::new() };
    let handler = if stepper.section(&procedure.code, 0) {
        procedure.commit_handler
    } else {
        let layout = procedure.layout();
        let end = layout.block_bytes.next_multiple_of(8) as usize;
        stepper.world.bytes[block + layout.results_start as usize..block + end].fill(0);
        procedure.abort_handler
    };
    stepper.section(&procedure.code, handler as usize);
    stepper.writes
}

impl Stepper {
    /// Executes from `pc` to a COMMIT (`true`) or an abort.
    fn section(&mut self, code: &[Instruction], mut pc: usize) -> bool {
        let mut flag = std::cmp::Ordering::Equal;
        loop {
            match self.step(&code[pc], pc, &mut flag) {
                Next::To(next) => pc = next,
                Next::Commit => return true,
                Next::Abort => return false,
            }
        }
    }

    fn get(&self, register: u8) -> i64 {
        self.registers[usize::from(register)]
    }

    fn put(&mut self, register: u8, value: i64) {
        self.registers[usize::from(register)] = value;
        self.writes.push((register, value as u64));
    }

    fn step(&mut self, i: &Instruction, pc: usize, flag: &mut std::cmp::Ordering) -> Next {
        let immediate = matches!(i.opcode, O::Movi) || i.opcode.has_immediate();
        let (b, right) = (self.get(i.b), if immediate { i.immediate() } else { self.get(i.c) });
        let (block, x, y) = (self.block, i64::from(i.x), i64::from(i.y));
        let value = match i.opcode {
            O::Mov => Some(b),
            O::Movi => Some(right),
            O::Add | O::Addi => b.checked_add(right),
            O::Sub | O::Subi => b.checked_sub(right),
            O::Mul | O::Muli => b.checked_mul(right),
            O::Div | O::Divi => b.checked_div(right),
            O::Cmp | O::Cmpi => {
                *flag = b.cmp(&right);
                return Next::To(pc + 1);
            }
            O::Check => return if (0..right).contains(&b) { Next::To(pc + 1) } else { Next::Abort },
            O::Load => Some(self.load(block + x + self.get(i.c), i.w)),
            O::Loadr => Some(self.load(b + x + self.get(i.c), i.w)),
            O::Store => return self.store(block + x + self.get(i.c), i, pc),
            O::Storer => return self.store(b + x + self.get(i.c), i, pc),
            O::CopyBb | O::CopyBr | O::CopyRb | O::CopyRr => {
                let from = if matches!(i.opcode, O::CopyBr | O::CopyRr) { self.get(i.c) } else { block };
                let to = if matches!(i.opcode, O::CopyRb | O::CopyRr) { b } else { block };
                let (from, to) = (from + y + self.get(i.e), to + x + self.get(i.d));
                self.world.bytes.copy_within(from as usize..from as usize + usize::from(i.w), to as usize);
                return Next::To(pc + 1);
            }
            O::Jmp => return Next::To(i.x as usize),
            O::Be | O::Bne | O::Bl | O::Ble | O::Bg | O::Bge => {
                let taken = match i.opcode {
                    O::Be => flag.is_eq(),
                    O::Bne => flag.is_ne(),
                    O::Bl => flag.is_lt(),
                    O::Ble => flag.is_le(),
                    O::Bg => flag.is_gt(),
                    _ => flag.is_ge(),
                };
                return Next::To(if taken { i.x as usize } else { pc + 1 });
            }
            O::Ret => match self.answers[usize::from(i.b)] {
                Some(_) if i.a == 0 => return Next::To(pc + 1),
                None if i.x != NO_LABEL => return Next::To(i.x as usize),
                answer => answer,
            },
            O::Commit => return Next::Commit,
            O::Abort => return Next::Abort,
            _ => {
                self.answers[usize::from(i.a)] = self.database(i);
                return Next::To(pc + 1);
            }
        };
        let Some(value) = value else { return Next::Abort };
        self.put(i.a, value);
        Next::To(pc + 1)
    }

    fn database(&mut self, i: &Instruction) -> Option<i64> {
        let key = self.block + i64::from(i.x) + self.get(i.c);
        let table = usize::from(i.d);
        let image = self.world.image(table, key as usize);
        let found = match i.opcode {
            O::Insert => self.world.insert(table, &image),
            O::Scan => {
                let limit = if i.b == 0 { usize::from(i.w) } else { self.get(i.b) as usize };
                let buffer = self.block as usize + i.y as usize;
                return Some(self.world.scan(table, &image, limit, usize::from(i.e), buffer) as i64);
            }
            _ => self.world.find(table, &image),
        };
        match found {
            Found::Ready(_) if i.opcode == O::Remove => Some(0),
            Found::Ready(row) => Some(row as i64),
            Found::Missing => None,
        }
    }

    fn load(&self, at: i64, w: u16) -> i64 {
        let width = usize::from(w & !SIGNED);
        let mut word = [0; 8];
        word[..width].copy_from_slice(&self.world.bytes[at as usize..at as usize + width]);
        let unused = 64 - 8 * width as u32;
        let value = i64::from_le_bytes(word) << unused;
        if w & SIGNED != 0 { value >> unused } else { (value as u64 >> unused) as i64 }
    }

    fn store(&mut self, at: i64, i: &Instruction, pc: usize) -> Next {
        let (width, value) = (usize::from(i.w & !SIGNED), self.get(i.a));
        self.world.bytes[at as usize..at as usize + width].copy_from_slice(&value.to_le_bytes()[..width]);
        if self.load(at, i.w) == value { Next::To(pc + 1) } else { Next::Abort }
    }
}
