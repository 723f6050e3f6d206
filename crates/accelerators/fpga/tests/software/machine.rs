//! One transaction, by the code in the catalogue.

use std::cmp::Ordering;

use lockwork_fpga::card::CardMemory;
use lockwork_procedure::block::abort;
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode, SIGNED};

use super::SoftwareCard;

#[derive(Clone, Copy, Debug)]
enum Answer {
    Ready(i64),
    Missing(u16),
    Failed(u16),
}

struct State {
    worker: usize,
    block: u64,
    gp: Vec<i64>,
    cp: Vec<Answer>,
    flag: Ordering,
    undo: Vec<(u64, Vec<u8>)>,
    inserted: Vec<u64>,
    removed: Vec<u64>,
}

enum End {
    Commit,
    Abort(u16),
    Fail(u16),
}

const COMMITTED: u8 = 1;
const ABORTED: u8 = 2;
const FAILED: u8 = 3;

impl SoftwareCard {
    /// Runs a block to its end; gives its status and code.
    pub(crate) fn transaction(&mut self, worker: usize, block: u64, stamp: u32, forced: Option<u16>) -> (u8, u16) {
        let procedure = self.memory.read_word(block).unwrap() as u32 as usize;
        let words: [u64; 4] = std::array::from_fn(|at| self.config[0x8000 + 8 * procedure + at]);
        if words[3] & 1 == 0 {
            return self.close(block, FAILED, abort::UNKNOWN_PROCEDURE, 0);
        }
        let [start, commit, abort] = [0, 16, 32].map(|low| (words[0] >> low & 0xFFFF) as usize);
        let (gp, cp) = ((words[1] & 0x1FF) as usize, (words[1] >> 16 & 0x1FF) as usize);
        let mut state = State {
            worker,
            block,
            gp: vec![0; gp.max(1)],
            cp: vec![Answer::Failed(1); cp],
            flag: Ordering::Equal,
            undo: Vec::new(),
            inserted: Vec::new(),
            removed: Vec::new(),
        };
        let end = match forced {
            Some(code) => End::Fail(code),
            None => self.execute(&mut state, start),
        };
        if let End::Commit = end {
            for row in std::mem::take(&mut state.removed) {
                self.set_live(row, false);
            }
            if words[0] >> 48 & 1 == 1 {
                self.execute(&mut state, commit);
            }
            return self.close(block, COMMITTED, 0, stamp);
        }
        while let Some((address, bytes)) = state.undo.pop() {
            self.memory.write(address, &bytes).unwrap();
        }
        for row in std::mem::take(&mut state.inserted) {
            self.set_live(row, false);
        }
        let (from, to) = (words[2] & 0xFFFFF, words[2] >> 20 & 0xFFFFF);
        self.memory.zero(block + from, to - from).unwrap();
        match end {
            End::Abort(code) => {
                if words[0] >> 49 & 1 == 1 {
                    self.execute(&mut state, abort);
                }
                self.close(block, ABORTED, code, stamp)
            }
            End::Fail(code) => self.close(block, FAILED, code, 0),
            End::Commit => unreachable!(),
        }
    }

    fn close(&mut self, block: u64, status: u8, code: u16, stamp: u32) -> (u8, u16) {
        let code_bytes = code.to_le_bytes();
        self.memory.write(block + 4, &[status, 0, code_bytes[0], code_bytes[1]]).unwrap();
        self.memory.write(block + 24, &u64::from(stamp).to_le_bytes()).unwrap();
        (status, code)
    }

    fn load(&mut self, address: u64, w: u16) -> i64 {
        let bytes = usize::from(w & !SIGNED);
        let mut value = [0; 8];
        self.memory.read(address, &mut value[..bytes]).unwrap();
        let shift = 64 - 8 * bytes as u32;
        let value = u64::from_le_bytes(value) << shift;
        if w & SIGNED != 0 { value as i64 >> shift } else { (value >> shift) as i64 }
    }

    fn copy(&mut self, from: u64, to: u64, bytes: u16) {
        let mut buffer = vec![0; usize::from(bytes)];
        self.memory.read(from, &mut buffer).unwrap();
        self.memory.write(to, &buffer).unwrap();
    }

    fn execute(&mut self, s: &mut State, start: usize) -> End {
        let mut pc = start;
        loop {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&self.config[2 * pc].to_le_bytes());
            bytes[8..].copy_from_slice(&self.config[2 * pc + 1].to_le_bytes());
            let undo = bytes[0] & 0x80 != 0;
            bytes[0] &= 0x7F;
            let i = Instruction::decode(&bytes).unwrap_or_else(|error| panic!("instruction {pc}: {error}"));
            let r = |register: u8| s.gp[usize::from(register)];
            let at =
                |base: u64, offset: u32, index: u8| base.wrapping_add(u64::from(offset)).wrapping_add(r(index) as u64);
            let block = s.block;
            let right = if i.opcode.has_immediate() { i.immediate() } else { r(i.c) };
            let result = match i.opcode {
                Opcode::Add | Opcode::Addi => r(i.b).checked_add(right),
                Opcode::Sub | Opcode::Subi => r(i.b).checked_sub(right),
                Opcode::Mul | Opcode::Muli => r(i.b).checked_mul(right),
                Opcode::Div | Opcode::Divi if right == 0 => return End::Abort(abort::DIVISION_BY_ZERO),
                Opcode::Div | Opcode::Divi => r(i.b).checked_div(right),
                Opcode::Mov => Some(r(i.b)),
                Opcode::Movi => Some(right),
                Opcode::Load => Some(self.load(at(block, i.x, i.c), i.w)),
                Opcode::Loadr => Some(self.load(at(r(i.b) as u64, i.x, i.c), i.w)),
                _ => Some(0),
            };
            let Some(result) = result else { return End::Abort(abort::OVERFLOW) };
            let row_write = match i.opcode {
                Opcode::Storer => Some((at(r(i.b) as u64, i.x, i.c), i.w & !SIGNED)),
                Opcode::CopyRb | Opcode::CopyRr => Some((at(r(i.b) as u64, i.x, i.d), i.w)),
                _ => None,
            };
            let too_wide = matches!(i.opcode, Opcode::Store | Opcode::Storer) && !fits(i.w, r(i.a));
            if let Some((address, bytes)) = row_write.filter(|_| undo && !too_wide) {
                let mut old = vec![0; usize::from(bytes)];
                self.memory.read(address, &mut old).unwrap();
                s.undo.push((address, old));
            }
            match i.opcode {
                Opcode::Cmp | Opcode::Cmpi => s.flag = r(i.b).cmp(&right),
                Opcode::Check if !(0..right).contains(&r(i.b)) => return End::Abort(abort::OUT_OF_RANGE),
                Opcode::Store | Opcode::Storer => {
                    if too_wide {
                        return End::Abort(abort::VALUE_TOO_WIDE);
                    }
                    let address = row_write.map_or_else(|| at(block, i.x, i.c), |(address, _)| address);
                    self.memory.write(address, &r(i.a).to_le_bytes()[..usize::from(i.w & !SIGNED)]).unwrap();
                }
                Opcode::CopyBb => self.copy(at(block, i.y, i.e), at(block, i.x, i.d), i.w),
                Opcode::CopyBr => self.copy(at(r(i.c) as u64, i.y, i.e), at(block, i.x, i.d), i.w),
                Opcode::CopyRb => self.copy(at(block, i.y, i.e), at(r(i.b) as u64, i.x, i.d), i.w),
                Opcode::CopyRr => self.copy(at(r(i.c) as u64, i.y, i.e), at(r(i.b) as u64, i.x, i.d), i.w),
                Opcode::Ret => match s.cp[usize::from(i.b)] {
                    Answer::Ready(value) if i.a != 0 => s.gp[usize::from(i.a)] = value,
                    Answer::Ready(_) => {}
                    Answer::Missing(_) if i.x != NO_LABEL => {
                        pc = i.x as usize;
                        continue;
                    }
                    Answer::Missing(code) => return End::Abort(code),
                    Answer::Failed(code) => return End::Fail(code),
                },
                Opcode::Commit => return self.pending(s).map_or(End::Commit, End::Fail),
                Opcode::Abort => return End::Abort(i.w),
                opcode if opcode.is_db() => {
                    let key = at(block, i.x, i.c);
                    let limit = if i.b == 0 { i64::from(i.w) } else { r(i.b) };
                    s.cp[usize::from(i.a)] = self.db(s, &i, key, limit);
                }
                opcode if opcode == Opcode::Jmp || taken(opcode, s.flag) => {
                    pc = i.x as usize;
                    continue;
                }
                Opcode::Check => {}
                opcode if opcode.is_branch() => {}
                _ => {
                    if i.a != 0 {
                        s.gp[usize::from(i.a)] = result;
                    }
                }
            }
            pc += 1;
        }
    }

    /// The code of an answer that failed although nobody asked for it.
    fn pending(&self, s: &State) -> Option<u16> {
        s.cp.iter().find_map(|answer| match answer {
            Answer::Failed(code) if *code > 1 => Some(*code),
            _ => None,
        })
    }

    fn db(&mut self, s: &mut State, i: &Instruction, key_address: u64, limit: i64) -> Answer {
        let table = self.table(usize::from(i.d));
        let (key, image) = self.key(&table, key_address);
        let hash = lockwork_fpga::key_words::crc32c(&key);
        let owner = self.owner(&table, &image, hash, s.worker);
        self.log.lock().unwrap().remote += u32::from(owner != s.worker);
        if i.opcode == Opcode::Scan {
            let source = self.config[0xD000 + usize::from(i.e)];
            let [offset, bytes, stride] = [0, 16, 32].map(|low| source >> low & 0xFFFF);
            let rows = self.scan(&table, &key, limit.max(0) as usize);
            for (number, row) in rows.iter().enumerate() {
                let to = s.block + u64::from(i.y) + number as u64 * stride;
                self.copy(row + offset, to, bytes as u16);
            }
            return Answer::Ready(rows.len() as i64);
        }
        let found = self.find(&table, owner, &key).0;
        // A removal takes effect at commit.
        let live = found.filter(|row| self.is_live(*row));
        match (i.opcode, live) {
            (Opcode::Insert, Some(_)) => Answer::Missing(abort::DUPLICATE_KEY),
            (Opcode::Insert, None) => {
                let row = match found {
                    Some(row) => {
                        let values = table.row_bytes - table.values_start;
                        self.memory.zero(row + table.values_start, values).unwrap();
                        self.set_live(row, true);
                        s.inserted.push(row);
                        row
                    }
                    None => match self.insert(&table, owner, &key, &image) {
                        Some(row) => {
                            s.inserted.push(row);
                            row
                        }
                        None => return Answer::Failed(abort::OUT_OF_MEMORY),
                    },
                };
                Answer::Ready(row as i64)
            }
            (_, None) => Answer::Missing(abort::NOT_FOUND),
            (Opcode::Remove, Some(row)) => {
                s.removed.push(row);
                Answer::Ready(0)
            }
            (_, Some(row)) => Answer::Ready(row as i64),
        }
    }
}

fn taken(opcode: Opcode, flag: Ordering) -> bool {
    match opcode {
        Opcode::Be => flag.is_eq(),
        Opcode::Bne => flag.is_ne(),
        Opcode::Bl => flag.is_lt(),
        Opcode::Ble => flag.is_le(),
        Opcode::Bg => flag.is_gt(),
        Opcode::Bge => flag.is_ge(),
        _ => false,
    }
}

fn fits(w: u16, value: i64) -> bool {
    let bits = 8 * u32::from(w & !SIGNED);
    match (w & SIGNED != 0, bits) {
        (_, 64) => true,
        (true, _) => (-(1_i64 << (bits - 1))..1 << (bits - 1)).contains(&value),
        (false, _) => (0..1_i64 << bits).contains(&value),
    }
}
