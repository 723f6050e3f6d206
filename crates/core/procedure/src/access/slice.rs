//! The slice of a procedure that computes its keys, and the evaluator that runs it.
//!
//! Of everything that the taint analysis found clean, only what a key needs is kept (Weiser, "Program Slicing", 1981):
//! the registers and block bytes that keys come from, what those come from, and the decisions around them. What is left
//! is renumbered densely and ends where no DB instruction can follow. The bytes that the slice writes are a
//! private copy, so that collecting leaves the block as the client and the log have it.
//!
//! Invariant: collecting ends, reads no row, and names every access of every execution. When it stops early (a CHECK
//! fails, a number overflows, an address leaves the block, the verifier's step bound is used up), no execution goes
//! on either: each was proved not to, or aborts at the same place.

use std::collections::HashSet;

use super::Operation;
use super::flow;
use super::ranges::{BlockUse, Span};
use super::straight::load;
use super::taint::Analysis;
use crate::isa::{Instruction, Opcode, SIGNED};
use crate::key::{Key, KeyFormat};
use crate::verified::Verified;

/// One access of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyAccess {
    /// What is done to the row.
    pub operation: Operation,
    /// Which of the procedure's tables.
    pub slot: u8,
    /// The row's key; for a scan the first one.
    pub key: Key,
    /// How many leading bytes of the key are known: [`Key::BYTES`], except in the cover of a dependent procedure
    /// ([`super::cover`]), where the others may be anything.
    pub known: u8,
    /// The most rows of a scan; zero for the others.
    pub limit: u16,
}

/// The part of a procedure that computes which rows it will touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Renumbered; COMMIT where no access can follow any more.
    code: Vec<Instruction>,
    registers: usize,
    keys: Vec<KeyFormat>,
    /// The bytes that are copied, because the slice writes there.
    private: Span,
    block_bytes: u32,
    step_bound: u64,
}

/// Registers and private bytes up to these live on the stack.
const FEW_REGISTERS: usize = 32;
const FEW_BYTES: usize = 512;
/// Steps spent on leaving decisions out; when they are used up the rest is kept, which is only slower.
const MAX_STEPS: usize = 5_000_000;

/// Cuts the slice out of a procedure that is not dependent.
pub(super) fn build(verified: &Verified, ranges: &[BlockUse], analysis: &Analysis) -> Slice {
    let layout = verified.procedure.layout();
    let mut relevance = Relevance {
        ranges,
        analysis,
        kept: vec![false; ranges.len()],
        registers: [false; 256],
        flag: false,
        bytes: vec![false; layout.block_bytes as usize],
        budget: MAX_STEPS,
    };
    relevance.iterate();
    let kept = relevance.kept;
    let private = private_bytes(verified, ranges, &kept);
    let (code, registers) = emit(analysis, &kept);
    Slice {
        code,
        registers,
        keys: verified.tables.iter().map(|table| table.key.clone()).collect(),
        private,
        block_bytes: layout.block_bytes,
        step_bound: verified.step_bound,
    }
}

/// Which instructions the keys need.
struct Relevance<'a> {
    ranges: &'a [BlockUse],
    analysis: &'a Analysis<'a>,
    kept: Vec<bool>,
    registers: [bool; 256],
    flag: bool,
    bytes: Vec<bool>,
    budget: usize,
}

impl Relevance<'_> {
    /// Until nothing is added. Backwards, because needs come before what is needed.
    fn iterate(&mut self) {
        let mut grown = true;
        while grown {
            grown = false;
            for pc in (0..self.kept.len()).rev() {
                if !self.kept[pc] && self.is_needed(pc) {
                    self.keep(pc);
                    grown = true;
                }
            }
        }
    }

    fn is_needed(&mut self, pc: usize) -> bool {
        let graph = &self.analysis.graph;
        if !graph.live[pc] || !self.analysis.clean[pc] && !graph.code[pc].opcode.is_db() {
            return false;
        }
        let i = &graph.code[pc];
        match i.opcode {
            Opcode::Check => self.registers[usize::from(i.b)],
            Opcode::Cmp | Opcode::Cmpi => self.flag,
            _ if i.opcode.is_db() => true,
            _ if i.opcode.is_branch() => self.decides_something(pc as u32),
            _ => {
                let register = flow::defined(i).is_some_and(|register| self.registers[usize::from(register)]);
                let write = self.ranges[pc].write.as_ref();
                register || write.is_some_and(|write| self.bytes[as_range(write)].contains(&true))
            }
        }
    }

    /// Whether something is kept between a branch and the place where its ways come together.
    fn decides_something(&mut self, pc: u32) -> bool {
        let graph = &self.analysis.graph;
        let join = self.analysis.joins[pc as usize];
        if join.is_none() || graph.live_successors(pc).count() < 2 {
            return true;
        }
        let mut seen = HashSet::new();
        let mut work = vec![pc];
        while let Some(at) = work.pop() {
            for next in graph.live_successors(at).filter(|&next| Some(next) != join) {
                if self.kept[next as usize] || self.budget == 0 {
                    return true;
                }
                self.budget -= 1;
                if seen.insert(next) {
                    work.push(next);
                }
            }
        }
        false
    }

    fn keep(&mut self, pc: usize) {
        self.kept[pc] = true;
        let i = &self.analysis.graph.code[pc];
        let used = if i.opcode.is_db() { [i.c, 0, 0, 0] } else { flow::used(i) };
        used.into_iter().filter(|&register| register != 0).for_each(|register| {
            self.registers[usize::from(register)] = true;
        });
        self.flag |= i.opcode.is_branch();
        if let Some(read) = &self.ranges[pc].read {
            self.bytes[as_range(read)].fill(true);
        }
    }
}

fn as_range(span: &Span) -> std::ops::Range<usize> {
    span.start as usize..span.end as usize
}

/// All that the kept instructions write, and every read that could lie partly in it.
fn private_bytes(verified: &Verified, ranges: &[BlockUse], kept: &[bool]) -> Span {
    let code = &verified.procedure.code;
    let kept: Vec<_> = (0..code.len()).filter(|&pc| kept[pc]).collect();
    // A SCAN writes rows, but not in the slice: its buffer is tainted and nothing kept reads it.
    let stores = kept.iter().filter(|&&pc| !code[pc].opcode.is_db()).filter_map(|&pc| ranges[pc].write.clone());
    let Some(mut hull) = stores.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { return 0..0 };
    loop {
        let before = hull.clone();
        for read in kept.iter().filter_map(|&pc| ranges[pc].read.as_ref()) {
            if read.start < hull.end && hull.start < read.end {
                hull = hull.start.min(read.start)..hull.end.max(read.end);
            }
        }
        if hull == before {
            return hull;
        }
    }
}

/// The kept instructions as a program of their own, and how many registers it has.
fn emit(analysis: &Analysis, kept: &[bool]) -> (Vec<Instruction>, usize) {
    let graph = &analysis.graph;
    let count = graph.code.len();
    // What each instruction becomes: itself, a jump (target still in the old numbering), an end, or nothing.
    let mut pieces: Vec<Option<Instruction>> = vec![None; count];
    let mut following = count;
    for pc in (0..count).rev() {
        let i = &graph.code[pc];
        let jump = |to: u32| Instruction { x: to, ..Instruction::new(Opcode::Jmp) };
        let piece = if !graph.live[pc] {
            let after_live = pc > 0 && graph.live[pc - 1];
            after_live.then_some(Instruction::new(Opcode::Commit))
        } else if kept[pc] {
            let known = if i.opcode.is_db() { analysis.known[pc] } else { i.e };
            Some(Instruction { e: known, ..*i })
        } else if let Some(detour) = analysis.detours[pc] {
            Some(jump(detour))
        } else if i.opcode == Opcode::Jmp {
            Some(*i)
        } else if i.opcode.is_branch() {
            analysis.joins[pc].map(jump)
        } else {
            None
        };
        let is_idle = |piece: &Instruction| {
            let ahead = piece.x as usize;
            piece.opcode == Opcode::Jmp && graph.live[ahead.min(count - 1)] && ahead > pc && following >= ahead
        };
        pieces[pc] = piece.filter(|piece| !is_idle(piece));
        if pieces[pc].is_some() {
            following = pc;
        }
    }
    renumber(graph.live.as_slice(), &pieces)
}

/// Gives instructions and registers new numbers without gaps. Ways out of the live code lead to the last COMMIT.
fn renumber(live: &[bool], pieces: &[Option<Instruction>]) -> (Vec<Instruction>, usize) {
    let mut places = Vec::with_capacity(pieces.len());
    let mut length = 0_u32;
    for piece in pieces {
        places.push(length);
        length += u32::from(piece.is_some());
    }
    let ended = pieces.iter().flatten().last().is_some_and(|piece| piece.opcode == Opcode::Commit);
    let last = length - u32::from(ended);
    let mut numbers = [0_u8; 256];
    let mut registers = 1;
    let mut number = |register: u8| {
        if register != 0 && numbers[usize::from(register)] == 0 {
            numbers[usize::from(register)] = registers as u8;
            registers += 1;
        }
        numbers[usize::from(register)]
    };
    let mut code: Vec<Instruction> = Vec::with_capacity(length as usize + 1);
    for piece in pieces.iter().flatten() {
        let mut i = *piece;
        let opcode = i.opcode;
        if opcode == Opcode::Jmp || opcode.is_branch() {
            i.x = if live[i.x as usize] { places[i.x as usize] } else { last };
        } else if opcode.is_db() {
            // The column of a scan is of no interest here; its place says how much of the key is known.
            let limit = if opcode == Opcode::Scan { i.w } else { 0 };
            i = Instruction { c: number(i.c), d: i.d, e: i.e, w: limit, x: i.x, ..Instruction::new(opcode) };
        } else {
            let [a, b, c, d, e, ..] = opcode.fields();
            for (used, register) in [(a, &mut i.a), (b, &mut i.b), (c, &mut i.c), (d, &mut i.d), (e, &mut i.e)] {
                if used {
                    *register = number(*register);
                }
            }
        }
        code.push(i);
    }
    if !ended {
        code.push(Instruction::new(Opcode::Commit));
    }
    (code, registers)
}

/// The block as the slice sees it.
struct Memory<'a> {
    block: &'a [u8],
    private: &'a mut [u8],
    start: usize,
}

impl Memory<'_> {
    fn place(offset: u32, index: i64, length: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(i64::from(offset).checked_add(index)?).ok()?;
        Some(start..start.checked_add(length)?)
    }

    /// These bytes in the private copy, if they lie there.
    fn in_private(&self, place: &std::ops::Range<usize>) -> Option<std::ops::Range<usize>> {
        let inside = place.start >= self.start && place.end <= self.start + self.private.len();
        inside.then(|| place.start - self.start..place.end - self.start)
    }

    fn read(&self, offset: u32, index: i64, length: usize) -> Option<&[u8]> {
        let place = Self::place(offset, index, length)?;
        match self.in_private(&place) {
            Some(place) => self.private.get(place),
            None => self.block.get(place),
        }
    }

    fn write(&mut self, offset: u32, index: i64, bytes: &[u8]) -> Option<()> {
        let place = self.in_private(&Self::place(offset, index, bytes.len())?)?;
        self.private.get_mut(place)?.copy_from_slice(bytes);
        Some(())
    }

    fn copy(&mut self, to: (u32, i64), from: (u32, i64), length: usize) -> Option<()> {
        let to = self.in_private(&Self::place(to.0, to.1, length)?)?;
        let from = Self::place(from.0, from.1, length)?;
        match self.in_private(&from) {
            Some(from) => self.private.copy_within(from, to.start),
            None => self.private.get_mut(to)?.copy_from_slice(self.block.get(from)?),
        }
        Some(())
    }
}

impl Slice {
    /// Appends to `out` the accesses that a call with the arguments in `block` will make, in program order: a superset
    /// of those of any execution. The block is not changed, and nothing but `out` and large scratch is allocated.
    ///
    /// # Panics
    /// When `block` is shorter than the procedure's block.
    pub fn collect(&self, block: &[u8], out: &mut Vec<KeyAccess>) {
        assert!(block.len() >= self.block_bytes as usize, "a block of this procedure has {} bytes", self.block_bytes);
        let source = &block[as_range(&self.private)];
        let mut few = [0; FEW_BYTES];
        let mut many;
        let private = if source.len() <= FEW_BYTES {
            &mut few[..source.len()]
        } else {
            many = vec![0; source.len()];
            &mut many[..]
        };
        private.copy_from_slice(source);
        let mut memory = Memory { block, private, start: self.private.start as usize };
        if self.registers <= FEW_REGISTERS {
            self.evaluate(&mut [0; FEW_REGISTERS], &mut memory, out);
        } else {
            self.evaluate(&mut [0; 256], &mut memory, out);
        }
    }

    /// Runs to the end; `None` when it stops early.
    fn evaluate(&self, r: &mut [i64], memory: &mut Memory, out: &mut Vec<KeyAccess>) -> Option<()> {
        let mut flag = std::cmp::Ordering::Equal;
        let mut pc = 0;
        let mut steps = 0_u64;
        loop {
            steps += 1;
            if steps > self.step_bound.saturating_add(1) {
                return None;
            }
            let i = &self.code[pc];
            let (a, b, c) = (usize::from(i.a), r[usize::from(i.b)], r[usize::from(i.c)]);
            let width = usize::from(i.w & !SIGNED);
            let mut taken = false;
            match i.opcode {
                Opcode::Mov => r[a] = b,
                Opcode::Movi => r[a] = i.immediate(),
                Opcode::Add => r[a] = b.checked_add(c)?,
                Opcode::Sub => r[a] = b.checked_sub(c)?,
                Opcode::Mul => r[a] = b.checked_mul(c)?,
                Opcode::Div => r[a] = b.checked_div(c)?,
                Opcode::Addi => r[a] = b.checked_add(i.immediate())?,
                Opcode::Subi => r[a] = b.checked_sub(i.immediate())?,
                Opcode::Muli => r[a] = b.checked_mul(i.immediate())?,
                Opcode::Divi => r[a] = b.checked_div(i.immediate())?,
                Opcode::Cmp => flag = b.cmp(&c),
                Opcode::Cmpi => flag = b.cmp(&i.immediate()),
                Opcode::Check => (0..i.immediate()).contains(&b).then_some(())?,
                Opcode::Load => r[a] = load(memory.read(i.x, c, width)?, i.w),
                Opcode::Store => {
                    let bytes = r[a].to_le_bytes();
                    // A value that does not fit would abort.
                    (load(&bytes, i.w) == r[a]).then_some(())?;
                    memory.write(i.x, c, &bytes[..width])?;
                }
                Opcode::CopyBb => {
                    let (to, from) = (r[usize::from(i.d)], r[usize::from(i.e)]);
                    memory.copy((i.x, to), (i.y, from), usize::from(i.w))?;
                }
                Opcode::Jmp => taken = true,
                Opcode::Be => taken = flag.is_eq(),
                Opcode::Bne => taken = flag.is_ne(),
                Opcode::Bl => taken = flag.is_lt(),
                Opcode::Ble => taken = flag.is_le(),
                Opcode::Bg => taken = flag.is_gt(),
                Opcode::Bge => taken = flag.is_ge(),
                Opcode::Search | Opcode::Update | Opcode::Insert | Opcode::Remove | Opcode::Scan => {
                    let format = &self.keys[usize::from(i.d)];
                    let key = format.encode(memory.read(i.x, c, format.image_bytes())?);
                    out.push(KeyAccess { operation: Operation::of(i.opcode), slot: i.d, key, known: i.e, limit: i.w });
                }
                // Whatever touches rows or waits is not in a slice; COMMIT and ABORT end it.
                _ => return Some(()),
            }
            pc = if taken { i.x as usize } else { pc + 1 };
        }
    }

    /// How many instructions it has: what a call costs, at most, if nothing loops.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.code.len()
    }

    /// The table slots of accesses of whose keys it knows but the leading columns.
    pub fn spans(&self) -> impl Iterator<Item = u8> + '_ {
        self.code.iter().filter(|i| i.opcode.is_db() && i.e < Key::BYTES).map(|i| i.d)
    }

    /// The accesses as they stand in it: operation and table slot, in program order.
    pub fn accesses(&self) -> impl Iterator<Item = (Operation, u8)> + '_ {
        self.code.iter().filter(|i| i.opcode.is_db()).map(|i| (Operation::of(i.opcode), i.d))
    }
}
