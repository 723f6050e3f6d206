//! A reading of the instruction set, an instruction at a time, that tells every register write. DB instructions are
//! answered as admission's order says; rows are named by their addresses in the hardware.

use std::cmp::Ordering;
use std::collections::HashMap;

use lockwork_fpga::trace::{Found, Op};
use lockwork_procedure::block::abort;
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode as O, SIGNED, scan_source};
use lockwork_procedure::verified::Verified;

use super::rows::Key;

/// A row that a transaction has a grant for, as the transaction sees it.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) table: usize,
    pub(crate) key: Key,
    pub(crate) bytes: Vec<u8>,
}

/// A DB instruction and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    pub(crate) op: Op,
    pub(crate) table: usize,
    /// Offset in the block.
    pub(crate) key_at: usize,
    pub(crate) limit: u32,
    /// CP register, in the transaction's window.
    pub(crate) cp: u8,
    /// The key with which it was admitted; none of a scan that found nothing else but its end.
    pub(crate) key: Option<Key>,
    pub(crate) found: Found,
    /// Of a scan: its rows, as they were when it was let read them.
    pub(crate) rows: Vec<(Key, Vec<u8>)>,
}

/// How a section ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Committed,
    Aborted(u16),
    Conflict,
    Failed(u16),
}

/// A transaction on its way.
pub(crate) struct Stepper<'a> {
    pub(crate) verified: &'a Verified,
    pub(crate) block: Vec<u8>,
    pub(crate) issues: &'a [Issue],
    /// By hardware address.
    pub(crate) copies: HashMap<u64, Copy>,
    pub(crate) registers: Vec<i64>,
    /// Register and value, in program order.
    pub(crate) writes: Vec<(u8, u64)>,
    pub(crate) issued: usize,
    answers: Vec<Option<Found>>,
    /// The first DB instruction ends it.
    only_first: bool,
}

enum Next {
    To(usize),
    End(Ending),
}

impl<'a> Stepper<'a> {
    pub(crate) fn new(verified: &'a Verified, block: Vec<u8>, issues: &'a [Issue], copies: HashMap<u64, Copy>) -> Self {
        let (registers, answers) = (vec![0; 256], vec![None; 256]);
        Self { verified, block, issues, copies, registers, writes: Vec::new(), issued: 0, answers, only_first: false }
    }

    /// The logic, up to COMMIT, an abort, or a RET that cannot go on.
    pub(crate) fn logic(&mut self) -> Ending {
        self.section(0)
    }

    /// The handler that belongs to an ending; before that of an abort results and scratch are zeroed.
    pub(crate) fn handler(&mut self, ending: Ending) {
        let procedure = self.verified.procedure();
        let at = if ending == Ending::Committed {
            procedure.commit_handler
        } else {
            let layout = procedure.layout();
            let end = layout.block_bytes.next_multiple_of(8) as usize;
            self.block[layout.results_start.next_multiple_of(8) as usize..end].fill(0);
            procedure.abort_handler
        };
        assert_eq!(self.section(at as usize), Ending::Committed, "a handler ends with COMMIT");
    }

    fn section(&mut self, mut pc: usize) -> Ending {
        let verified = self.verified;
        let code = &verified.procedure().code;
        let mut flag = Ordering::Equal;
        loop {
            match self.step(&code[pc], pc, &mut flag) {
                Next::To(next) => pc = next,
                Next::End(ending) => return ending,
            }
        }
    }

    fn get(&self, register: u8) -> i64 {
        self.registers[usize::from(register)]
    }

    fn row(&mut self, handle: u8) -> &mut Vec<u8> {
        let address = self.get(handle) as u64;
        &mut self.copies.get_mut(&address).unwrap_or_else(|| panic!("no row at {address:#x}")).bytes
    }

    fn step(&mut self, i: &Instruction, pc: usize, flag: &mut Ordering) -> Next {
        let immediate = matches!(i.opcode, O::Movi) || i.opcode.has_immediate();
        let (b, right) = (self.get(i.b), if immediate { i.immediate() } else { self.get(i.c) });
        let at = |offset: u32, index: i64| (i64::from(offset) + index) as usize;
        let (next, overflow) = (Next::To(pc + 1), Next::End(Ending::Aborted(abort::OVERFLOW)));
        let value = match i.opcode {
            O::Mov => b,
            O::Movi => right,
            O::Add | O::Addi | O::Sub | O::Subi | O::Mul | O::Muli | O::Div | O::Divi => {
                let result = match i.opcode {
                    O::Add | O::Addi => b.checked_add(right),
                    O::Sub | O::Subi => b.checked_sub(right),
                    O::Mul | O::Muli => b.checked_mul(right),
                    _ if right == 0 => return Next::End(Ending::Aborted(abort::DIVISION_BY_ZERO)),
                    _ => b.checked_div(right),
                };
                let Some(result) = result else { return overflow };
                result
            }
            O::Cmp | O::Cmpi => {
                *flag = b.cmp(&right);
                return next;
            }
            O::Check => {
                let inside = (0..right).contains(&b);
                return if inside { next } else { Next::End(Ending::Aborted(abort::OUT_OF_RANGE)) };
            }
            O::Load => load(&self.block, at(i.x, self.get(i.c)), i.w),
            O::Loadr => {
                let from = at(i.x, self.get(i.c));
                load(self.row(i.b), from, i.w)
            }
            O::Store | O::Storer => {
                let (to, value) = (at(i.x, self.get(i.c)), self.get(i.a));
                let target = if i.opcode == O::Store { &mut self.block } else { self.row(i.b) };
                let width = usize::from(i.w & !SIGNED);
                let before = target[to..to + width].to_vec();
                target[to..to + width].copy_from_slice(&value.to_le_bytes()[..width]);
                if load(target, to, i.w) == value {
                    return next;
                }
                target[to..to + width].copy_from_slice(&before);
                return Next::End(Ending::Aborted(abort::VALUE_TOO_WIDE));
            }
            O::CopyBb | O::CopyBr | O::CopyRb | O::CopyRr => {
                let (from, to) = (at(i.y, self.get(i.e)), at(i.x, self.get(i.d)));
                let from = from..from + usize::from(i.w);
                let of_row = matches!(i.opcode, O::CopyBr | O::CopyRr);
                let bytes = if of_row { self.row(i.c)[from].to_vec() } else { self.block[from].to_vec() };
                let to_row = matches!(i.opcode, O::CopyRb | O::CopyRr);
                let target = if to_row { self.row(i.b) } else { &mut self.block };
                target[to..to + bytes.len()].copy_from_slice(&bytes);
                return next;
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
                return if taken { Next::To(i.x as usize) } else { next };
            }
            O::Ret => match self.answers[usize::from(i.b)].expect("a DB instruction precedes its RET") {
                Found::Ready(_) if i.a == 0 => return next,
                Found::Ready(value) => value as i64,
                Found::Missing(_) if i.x != NO_LABEL => return Next::To(i.x as usize),
                Found::Missing(code) => return Next::End(Ending::Aborted(code)),
                Found::Conflict => return Next::End(Ending::Conflict),
                Found::Failed(code) => return Next::End(Ending::Failed(code)),
            },
            O::Commit => return Next::End(Ending::Committed),
            O::Abort => return Next::End(Ending::Aborted(i.w)),
            _ => {
                if self.only_first {
                    return Next::End(Ending::Failed(u16::from(i.a)));
                }
                if self.issued == self.issues.len() && self.issues.iter().any(is_end) {
                    // Who is told of a conflict issues no more.
                    return Next::End(Ending::Conflict);
                }
                self.database(i);
                return next;
            }
        };
        self.registers[usize::from(i.a)] = value;
        self.writes.push((i.a, value as u64));
        next
    }

    /// The DB instruction that the hardware issued must be this one; its answer is taken.
    fn database(&mut self, i: &Instruction) {
        let op = match i.opcode {
            O::Search => Op::Search,
            O::Update => Op::Update,
            O::Insert => Op::Insert,
            O::Remove => Op::Remove,
            _ => Op::Scan,
        };
        let Some(issue) = self.issues.get(self.issued) else { panic!("{op:?} was not issued: {:?}", self.issues) };
        let what = format!("DB instruction {}: {issue:?}", self.issued);
        self.issued += 1;
        let table = &self.verified.tables()[usize::from(i.d)];
        let key_at = (i64::from(i.x) + self.get(i.c)) as usize;
        assert_eq!((issue.op, issue.table, issue.key_at), (op, usize::from(table.id), key_at), "{what}");
        assert_eq!(issue.cp, i.a, "{what}");
        if let Some(admitted) = issue.key {
            let format = lockwork_procedure::key::KeyFormat::of(&table.schema);
            assert_eq!(admitted, format.encode(&self.block[key_at..key_at + format.image_bytes()]).0, "{what}");
        }
        self.answers[usize::from(i.a)] = Some(issue.found);
        if op == Op::Scan {
            let limit = if i.b == 0 { u32::from(i.w) } else { self.get(i.b) as u32 };
            assert_eq!(issue.limit, limit, "{what}");
            let (offset, length) = scan_source(&table.schema, usize::from(i.e).checked_sub(1));
            let (offset, length) = (offset as usize, length as usize);
            for (number, (key, then)) in issue.rows.iter().enumerate() {
                // Its own writes are there already.
                let own = self.copies.values().find(|copy| copy.table == issue.table && copy.key == *key);
                let row = own.map_or(then, |copy| &copy.bytes);
                let to = i.y as usize + number * length.next_multiple_of(8);
                self.block[to..to + length].copy_from_slice(&row[offset..offset + length]);
            }
        }
    }
}

/// Whether the answer ends its transaction, whether it is asked for or not.
fn is_end(issue: &Issue) -> bool {
    matches!(issue.found, Found::Conflict | Found::Failed(_))
}

/// The CP register of the DB instruction that is executed first.
pub(crate) fn first_cp(verified: &Verified, block: &[u8]) -> u8 {
    let mut stepper = Stepper::new(verified, block.to_vec(), &[], HashMap::new());
    stepper.only_first = true;
    match stepper.logic() {
        Ending::Failed(cp) => cp as u8,
        other => panic!("it issues no DB instruction: {other:?}"),
    }
}

fn load(bytes: &[u8], at: usize, w: u16) -> i64 {
    let width = usize::from(w & !SIGNED);
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    let unused = 64 - 8 * width as u32;
    let value = i64::from_le_bytes(word) << unused;
    if w & SIGNED != 0 { value >> unused } else { (value as u64 >> unused) as i64 }
}
