//! A reference interpreter over a map: slow, checked, and written without looking at the analyses.

use std::collections::BTreeMap;

use crate::access::{KeyAccess, Operation};
use crate::isa::{Instruction, NO_LABEL, Opcode, SIGNED};
use crate::key::Key;
use crate::verified::Verified;

/// Rows by table slot and key.
pub(super) type Database = BTreeMap<(u8, Key), Vec<u8>>;

pub(super) fn key(verified: &Verified, slot: u8, value: i64) -> Key {
    verified.tables[usize::from(slot)].key.encode(&value.to_le_bytes())
}

/// A row of the test tables.
pub(super) fn row(verified: &Verified, slot: u8, a: i64, b: i64) -> Vec<u8> {
    let mut row = vec![0; verified.tables[usize::from(slot)].schema.row_bytes() as usize];
    row[24..32].copy_from_slice(&a.to_le_bytes());
    row[32..40].copy_from_slice(&b.to_le_bytes());
    let filler = (a * 3 + b + 1) as u8;
    row[64..].fill(filler);
    row
}

/// What an execution did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) committed: bool,
    pub(super) accesses: Vec<KeyAccess>,
    /// By access: where its instruction stands.
    pub(super) pcs: Vec<u32>,
    /// Access, offset, length, whether it wrote.
    pub(super) touches: Vec<(usize, u32, u32, bool)>,
    /// An instruction that wrote to a row, and the row's access.
    pub(super) writers: Vec<(u32, usize)>,
}

struct Machine<'a> {
    verified: &'a Verified,
    registers: [i64; 256],
    /// By CP register: the access, and its answer.
    answers: [(usize, Option<i64>); 256],
    database: &'a mut Database,
    block: &'a mut [u8],
    pc: u32,
    run: Run,
}

/// Runs `code` from its beginning. Row handles are numbers of accesses, plus one thousand.
pub(super) fn execute(verified: &Verified, code: &[Instruction], database: &mut Database, block: &mut [u8]) -> Run {
    let answers = [(0, None); 256];
    let mut machine = Machine { verified, registers: [0; 256], answers, database, block, pc: 0, run: Run::default() };
    machine.run.committed = machine.go(code).is_some();
    machine.run
}

fn sign_extended(bytes: &[u8], w: u16) -> i64 {
    let negative = w & SIGNED != 0 && bytes[bytes.len() - 1] & 0x80 != 0;
    let mut word = [if negative { 0xFF } else { 0 }; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(word)
}

impl Machine<'_> {
    fn of(&self, register: u8) -> i64 {
        self.registers[usize::from(register)]
    }

    fn at(&self, offset: u32, index: u8, length: u16) -> std::ops::Range<usize> {
        let start = usize::try_from(i64::from(offset) + self.of(index)).expect("a verified address");
        start..start + usize::from(length)
    }

    fn row(&mut self, handle: u8, place: &std::ops::Range<usize>, write: bool) -> &mut [u8] {
        let access = usize::try_from(self.of(handle) - 1000).expect("a handle");
        self.run.touches.push((access, place.start as u32, place.len() as u32, write));
        if write {
            self.run.writers.push((self.pc, access));
        }
        let KeyAccess { slot, key, .. } = self.run.accesses[access];
        &mut self.database.get_mut(&(slot, key)).expect("a row")[place.clone()]
    }

    /// `None` when it aborts.
    fn go(&mut self, code: &[Instruction]) -> Option<()> {
        let mut flag = std::cmp::Ordering::Equal;
        let mut pc = 0;
        for _ in 0..100_000 {
            let i = &code[pc];
            self.pc = pc as u32;
            let (b, c, immediate) = (self.of(i.b), self.of(i.c), i.immediate());
            pc += 1;
            let mut value = None;
            let taken = match i.opcode {
                Opcode::Jmp => true,
                Opcode::Be => flag.is_eq(),
                Opcode::Bne => flag.is_ne(),
                Opcode::Bl => flag.is_lt(),
                Opcode::Ble => flag.is_le(),
                Opcode::Bg => flag.is_gt(),
                Opcode::Bge => flag.is_ge(),
                _ => false,
            };
            if taken {
                pc = i.x as usize;
            }
            match i.opcode {
                Opcode::Mov => value = Some(b),
                Opcode::Movi => value = Some(immediate),
                Opcode::Add => value = Some(b.checked_add(c)?),
                Opcode::Sub => value = Some(b.checked_sub(c)?),
                Opcode::Mul => value = Some(b.checked_mul(c)?),
                Opcode::Div => value = Some(b.checked_div(c)?),
                Opcode::Addi => value = Some(b.checked_add(immediate)?),
                Opcode::Subi => value = Some(b.checked_sub(immediate)?),
                Opcode::Muli => value = Some(b.checked_mul(immediate)?),
                Opcode::Divi => value = Some(b.checked_div(immediate)?),
                Opcode::Cmp => flag = b.cmp(&c),
                Opcode::Cmpi => flag = b.cmp(&immediate),
                Opcode::Check if b < 0 || b >= immediate => return None,
                Opcode::Ret => match self.answers[usize::from(i.b)].1 {
                    Some(answer) => value = Some(answer),
                    None if i.x == NO_LABEL => return None,
                    None => pc = i.x as usize,
                },
                Opcode::Commit => return Some(()),
                Opcode::Abort => return None,
                _ if i.opcode.is_db() => {
                    self.run.pcs.push(pc as u32 - 1);
                    self.issue(i);
                }
                _ => value = self.memory(i),
            }
            if let Some(value) = value.filter(|_| i.a != 0) {
                self.registers[usize::from(i.a)] = value;
            }
        }
        panic!("a verified procedure ends");
    }

    fn memory(&mut self, i: &Instruction) -> Option<i64> {
        let (width, count) = (i.w & !SIGNED, i.w);
        let bytes = self.of(i.a).to_le_bytes()[..usize::from(width.min(8))].to_vec();
        match i.opcode {
            Opcode::Load => return Some(sign_extended(&self.block[self.at(i.x, i.c, width)], i.w)),
            Opcode::Loadr => {
                let place = self.at(i.x, i.c, width);
                return Some(sign_extended(self.row(i.b, &place, false), i.w));
            }
            Opcode::Store => {
                let place = self.at(i.x, i.c, width);
                self.block[place].copy_from_slice(&bytes);
            }
            Opcode::Storer => {
                let place = self.at(i.x, i.c, width);
                self.row(i.b, &place, true).copy_from_slice(&bytes);
            }
            Opcode::CopyBb => {
                let (to, from) = (self.at(i.x, i.d, count), self.at(i.y, i.e, count));
                self.block.copy_within(from, to.start);
            }
            Opcode::CopyBr => {
                let (to, from) = (self.at(i.x, i.d, count), self.at(i.y, i.e, count));
                let bytes = self.row(i.c, &from, false).to_vec();
                self.block[to].copy_from_slice(&bytes);
            }
            Opcode::CopyRb => {
                let (to, from) = (self.at(i.x, i.d, count), self.at(i.y, i.e, count));
                let bytes = self.block[from].to_vec();
                self.row(i.b, &to, true).copy_from_slice(&bytes);
            }
            Opcode::CopyRr => {
                let (to, from) = (self.at(i.x, i.d, count), self.at(i.y, i.e, count));
                let bytes = self.row(i.c, &from, false).to_vec();
                self.row(i.b, &to, true).copy_from_slice(&bytes);
            }
            _ => {}
        }
        None
    }

    fn issue(&mut self, i: &Instruction) {
        let format = &self.verified.tables[usize::from(i.d)].key;
        let place = self.at(i.x, i.c, format.image_bytes() as u16);
        let key = format.encode(&self.block[place]);
        let operation = Operation::of(i.opcode);
        let access = self.run.accesses.len();
        let limit = if operation == Operation::Scan { i.w } else { 0 };
        self.run.accesses.push(KeyAccess { operation, slot: i.d, key, known: Key::BYTES, limit });
        let there = self.database.contains_key(&(i.d, key));
        let handle = 1000 + access as i64;
        let answer = match operation {
            Operation::Search | Operation::Update => there.then_some(handle),
            Operation::Insert if there => None,
            Operation::Insert => {
                self.database.insert((i.d, key), row(self.verified, i.d, 0, 0));
                Some(handle)
            }
            Operation::Remove => there.then_some(0),
            Operation::Scan => Some(self.scan(i, key)),
        };
        self.answers[usize::from(i.a)] = (access, answer);
    }

    /// Scans column 1, eight bytes wide.
    fn scan(&mut self, i: &Instruction, first: Key) -> i64 {
        assert_eq!(i.e, 2, "the tests scan one column");
        let found = self.database.range((i.d, first)..=(i.d, Key([u64::MAX; 4]))).take(usize::from(i.w));
        let mut count = 0;
        for (_, row) in found {
            let at = i.y as usize + 8 * count;
            self.block[at..at + 8].copy_from_slice(&row[24..32]);
            count += 1;
        }
        count as i64
    }
}
