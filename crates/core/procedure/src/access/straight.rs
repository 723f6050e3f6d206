//! Straight procedures: every DB instruction runs unconditionally and finds its key in the arguments.
//!
//! The procedure is executed once, at registration, with symbols for values: a constant, or `base + scale × argument`,
//! or the handle of a row. What comes out is a table of constants: where each key stands in the block, which bytes
//! of each row will be touched (so that an engine can prefetch those lines and no others), and what the arguments must
//! satisfy. Only the *prefix*, up to the first branch, label target or end, is executed so; what follows it may be any
//! code without DB instructions (a transfer that compares balances and aborts, say).
//!
//! Invariant: a touch is never less than what the procedure touches of that row. What cannot be said exactly is the
//! whole row.

use super::flow::{self, Graph, RowPiece};
use super::fragments::{self, Fragment};
use super::moves::{Effect, Move};
use super::ranges::BlockUse;
use super::{KeyAccess, Operation};
use crate::block::HEADER_BYTES;
use crate::isa::{Instruction, Opcode, SIGNED};
use crate::key::Key;
use crate::verified::Verified;

/// The access set of a straight procedure: constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Straight {
    /// The DB instructions, in program order; each runs exactly once unless the procedure aborts first.
    pub accesses: Vec<Access>,
    /// Conditions on the arguments alone, in program order; where one fails the procedure aborts. Those that the
    /// verifier proved to hold always are left out. A missing row aborts earlier if its [`Access::ret`] stands before.
    pub checks: Vec<ArgumentCheck>,
    /// One independent piece an access, in the order of `accesses`, when the procedure is separable.
    pub fragments: Option<Vec<Fragment>>,
    /// The moves of each access, in the order of `accesses`, when the procedure is separable and only copies.
    pub moves: Option<Vec<Vec<Move>>>,
    /// Whether code with branches (and without DB instructions) follows.
    pub branches_after: bool,
}

impl Straight {
    /// Appends to `out` the accesses that a call with the arguments in `block` will make, in program order; `verified`
    /// is the procedure this set came from. Engines in a hurry read `key_offset` themselves.
    ///
    /// # Panics
    /// When `block` is shorter than the procedure's block.
    pub fn collect(&self, verified: &Verified, block: &[u8], out: &mut Vec<KeyAccess>) {
        out.extend(self.accesses.iter().map(|access| {
            let format = &verified.tables[usize::from(access.slot)].key;
            let key = format.encode(&block[access.key_offset as usize..]);
            let limit = access.limit as u16;
            KeyAccess { operation: access.operation, slot: access.slot, key, known: Key::BYTES, limit }
        }));
    }
}

/// One DB instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its place in the code.
    pub pc: u32,
    /// Its CP register.
    pub cp: u8,
    /// What it does.
    pub operation: Operation,
    /// Which of the procedure's tables.
    pub slot: u8,
    /// Where its key image begins, in bytes from the start of the block; it lies wholly in the arguments.
    pub key_offset: u32,
    /// The most rows of a scan; zero for the others.
    pub limit: u32,
    /// The RET that waits for it in the straight prefix; `None` if it is behind a branch, or has a label.
    pub ret: Option<u32>,
    /// Which bytes of the row are read or written, in program order, each kind once. Empty for a scan.
    pub touches: Vec<Touch>,
}

/// A piece of a row that a procedure reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Bytes from the start of the row (header included) for an index of zero.
    pub offset: u32,
    /// What is added to `offset`.
    pub index: Option<ArgumentIndex>,
    /// Bytes.
    pub length: u32,
    /// Whether it writes.
    pub write: bool,
}

impl Touch {
    /// Where in the row the piece begins, for these arguments. The result is inside the row whenever the
    /// procedure gets as far as touching it; arguments that fail a check before may give anything.
    ///
    /// # Panics
    /// When `block` is shorter than the procedure's block.
    #[must_use]
    #[inline]
    pub fn start(&self, block: &[u8]) -> i64 {
        let index = self.index.map_or(0, |index| index.value(block));
        i64::from(self.offset).wrapping_add(index)
    }
}

/// An integer argument times a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentIndex {
    /// Where the argument lies, in bytes from the start of the block.
    pub offset: u32,
    /// Its width in bytes, with [`SIGNED`] if it has a sign, as in LOAD.
    pub width: u16,
    /// The factor; not zero.
    pub scale: i64,
}

impl ArgumentIndex {
    /// The argument itself.
    ///
    /// # Panics
    /// When `block` is shorter than the procedure's block.
    #[must_use]
    #[inline]
    pub fn argument(&self, block: &[u8]) -> i64 {
        load(&block[self.offset as usize..], self.width)
    }

    /// The argument times the factor, modulo 2^64.
    ///
    /// # Panics
    /// When `block` is shorter than the procedure's block.
    #[must_use]
    #[inline]
    pub fn value(&self, block: &[u8]) -> i64 {
        self.argument(block).wrapping_mul(self.scale)
    }
}

/// The integer of width and sign `w` at the start of `bytes`.
#[inline]
pub(super) fn load(bytes: &[u8], w: u16) -> i64 {
    let mut word = [0; 8];
    let width = usize::from(w & !SIGNED).min(8);
    word[..width].copy_from_slice(&bytes[..width]);
    let value = i64::from_le_bytes(word);
    let unused = 64 - 8 * width as u32;
    if w & SIGNED == 0 || unused == 64 { value } else { value << unused >> unused }
}

/// A condition on the arguments: 0 ≤ base + scale × argument < limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentCheck {
    /// Argument and factor.
    pub argument: ArgumentIndex,
    /// What is added.
    pub base: i64,
    /// The first value that is too large.
    pub limit: i64,
    /// The CHECK in the code. Where it fails, the abort code is that of CHECK, unless computing the operand
    /// overflowed before (a separable procedure has proved that it does not).
    pub pc: u32,
}

impl ArgumentCheck {
    /// Whether the arguments satisfy it.
    ///
    /// # Panics
    /// When `block` is shorter than the procedure's block.
    #[must_use]
    #[inline]
    pub fn passes(&self, block: &[u8]) -> bool {
        let product = self.argument.argument(block).checked_mul(self.argument.scale);
        let value = product.and_then(|product| product.checked_add(self.base));
        value.is_some_and(|value| (0..self.limit).contains(&value))
    }
}

/// What a register holds, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Constant(i64),
    Affine { argument: ArgumentIndex, base: i64 },
    Row(usize),
    Other,
}

impl Value {
    fn affine(argument: ArgumentIndex, base: i64) -> Self {
        if argument.scale == 0 { Self::Constant(base) } else { Self::Affine { argument, base } }
    }

    fn add(self, other: Self) -> Option<Self> {
        Some(match (self, other) {
            (Self::Constant(a), Self::Constant(b)) => Self::Constant(a.checked_add(b)?),
            (Self::Affine { argument, base }, Self::Constant(b))
            | (Self::Constant(b), Self::Affine { argument, base }) => Self::affine(argument, base.checked_add(b)?),
            (Self::Affine { argument: a, base: x }, Self::Affine { argument: b, base: y })
                if (a.offset, a.width) == (b.offset, b.width) =>
            {
                let scale = a.scale.checked_add(b.scale)?;
                Self::affine(ArgumentIndex { scale, ..a }, x.checked_add(y)?)
            }
            _ => return None,
        })
    }

    fn times(self, factor: i64) -> Option<Self> {
        Some(match self {
            Self::Constant(a) => Self::Constant(a.checked_mul(factor)?),
            Self::Affine { argument, base } => {
                let scale = argument.scale.checked_mul(factor)?;
                Self::affine(ArgumentIndex { scale, ..argument }, base.checked_mul(factor)?)
            }
            _ => return None,
        })
    }

    fn constant(self) -> Option<i64> {
        if let Self::Constant(value) = self { Some(value) } else { None }
    }
}

/// The symbolic execution of the prefix.
pub(super) struct Execution<'a> {
    verified: &'a Verified,
    values: Vec<Value>,
    accesses: Vec<Access>,
    /// What each access does to its row; `None` once something is done that is no move.
    moves: Option<Vec<Vec<Move>>>,
    checks: Vec<ArgumentCheck>,
    /// The access last issued into each CP register.
    issued: Vec<usize>,
}

/// The table of constants of a straight procedure; `None` for any other.
pub(super) fn straight(verified: &Verified, ranges: &[BlockUse]) -> Option<Straight> {
    let code = &verified.procedure.code;
    let graph = Graph::new(code);
    let end = prefix_end(&graph);
    if (end..code.len()).any(|pc| graph.live[pc]) {
        return None;
    }
    let mut execution = Execution {
        verified,
        values: vec![Value::Other; 256],
        accesses: Vec::new(),
        moves: Some(Vec::new()),
        checks: Vec::new(),
        issued: vec![usize::MAX; 256],
    };
    execution.values[0] = Value::Constant(0);
    for (pc, i) in code[..end].iter().enumerate() {
        execution.step(pc as u32, i)?;
    }
    let branches_after = !matches!(code[end].opcode, Opcode::Commit | Opcode::Abort);
    if branches_after {
        execution.touch_rest(&graph, end);
    }
    let Execution { accesses, checks, moves, .. } = execution;
    let fragments = fragments::separate(verified, ranges, &accesses, &checks, end);
    let moves = moves.filter(|_| fragments.is_some());
    Some(Straight { accesses, checks, fragments, moves, branches_after })
}

/// Where the straight prefix ends: at the first instruction that ends or decides, or that a branch comes to.
fn prefix_end(graph: &Graph) -> usize {
    let mut targets = vec![false; graph.code.len()];
    for (pc, i) in graph.code.iter().enumerate().filter(|&(pc, _)| graph.reachable[pc]) {
        if let [_, Some(target)] = flow::successors(pc as u32, i) {
            targets[target as usize] = true;
        }
    }
    let ends = |pc: &usize| {
        let i = &graph.code[*pc];
        targets[*pc] || !matches!(flow::successors(*pc as u32, i), [Some(_), None])
    };
    (0..graph.code.len()).find(ends).unwrap_or(graph.code.len() - 1)
}

impl Execution<'_> {
    pub(super) fn of(&self, register: u8) -> Value {
        self.values[usize::from(register)]
    }

    /// Executes one instruction of the prefix; `None` when the procedure is not straight.
    fn step(&mut self, pc: u32, i: &Instruction) -> Option<()> {
        if i.opcode.is_db() {
            self.issue(pc, i)?;
        }
        if i.opcode == Opcode::Check
            && let Value::Affine { argument, base } = self.of(i.b)
            && self.verified.facts[pc as usize].may_abort
        {
            self.checks.push(ArgumentCheck { argument, base, limit: i.immediate(), pc });
        }
        if i.opcode == Opcode::Ret {
            let issued = self.issued[usize::from(i.b)];
            self.accesses.get_mut(issued)?.ret = Some(pc);
        }
        self.touch(i);
        match self.effect(i) {
            Effect::None => {}
            Effect::Move(access, piece) => {
                if let Some(moves) = &mut self.moves {
                    moves[access].push(piece);
                }
            }
            Effect::Other => self.moves = None,
        }
        if let Some(register) = flow::defined(i) {
            self.values[usize::from(register)] = self.result(i).unwrap_or(Value::Other);
        }
        Some(())
    }

    fn issue(&mut self, pc: u32, i: &Instruction) -> Option<()> {
        let key_bytes = self.verified.tables[usize::from(i.d)].schema.key_bytes();
        let key_offset = u32::try_from(i64::from(i.x).checked_add(self.of(i.c).constant()?)?).ok()?;
        let end = key_offset.checked_add(key_bytes)?;
        if key_offset < HEADER_BYTES || end > self.verified.procedure.layout().arguments_end {
            return None;
        }
        let limit = if i.opcode == Opcode::Scan { u32::from(i.w) } else { 0 };
        self.issued[usize::from(i.a)] = self.accesses.len();
        if let Some(moves) = &mut self.moves {
            moves.push(Vec::new());
        }
        self.accesses.push(Access {
            pc,
            cp: i.a,
            operation: Operation::of(i.opcode),
            slot: i.d,
            key_offset,
            limit,
            ret: None,
            touches: Vec::new(),
        });
        Some(())
    }

    /// The symbol of what an instruction computes.
    fn result(&self, i: &Instruction) -> Option<Value> {
        let (b, c) = (self.of(i.b), self.of(i.c));
        let constant = Value::Constant(i.immediate());
        match i.opcode {
            Opcode::Mov => Some(b),
            Opcode::Movi => Some(constant),
            Opcode::Add => b.add(c),
            Opcode::Addi => b.add(constant),
            Opcode::Sub => b.add(c.times(-1)?),
            Opcode::Subi => b.add(constant.times(-1)?),
            Opcode::Mul => match c.constant() {
                Some(factor) => b.times(factor),
                None => c.times(b.constant()?),
            },
            Opcode::Muli => b.times(i.immediate()),
            Opcode::Load => {
                let offset = u32::try_from(i64::from(i.x).checked_add(c.constant()?)?).ok()?;
                let end = offset.checked_add(u32::from(i.w & !SIGNED))?;
                let inside = offset >= HEADER_BYTES && end <= self.verified.procedure.layout().arguments_end;
                inside.then(|| Value::affine(ArgumentIndex { offset, width: i.w, scale: 1 }, 0))
            }
            Opcode::Ret => Some(self.answer(i)),
            _ => None,
        }
    }

    /// What a RET delivers: the row of an access, for those that have one.
    fn answer(&self, i: &Instruction) -> Value {
        let issued = self.issued[usize::from(i.b)];
        match self.accesses.get(issued).map(|access| access.operation) {
            Some(Operation::Search | Operation::Update | Operation::Insert) => Value::Row(issued),
            _ => Value::Other,
        }
    }

    /// Notes the pieces of rows that an instruction touches.
    fn touch(&mut self, i: &Instruction) {
        for RowPiece { handle, offset, index, length, write } in flow::row_pieces(i).into_iter().flatten() {
            let touch = self.place(offset, index).map(|(offset, index)| Touch { offset, index, length, write });
            match self.of(handle) {
                Value::Row(access) => self.note(access, touch, write),
                // Which row is not known: any.
                _ => (0..self.accesses.len()).for_each(|access| self.note(access, None, write)),
            }
        }
    }

    /// A row address as an offset and an argument; `None` when it is not of that form.
    pub(super) fn place(&self, offset: u32, index: u8) -> Option<(u32, Option<ArgumentIndex>)> {
        let (base, argument) = match self.of(index) {
            Value::Constant(base) => (base, None),
            Value::Affine { argument, base } => (base, Some(argument)),
            _ => return None,
        };
        Some((u32::try_from(i64::from(offset).checked_add(base)?).ok()?, argument))
    }

    /// Adds a touch to an access, once; the whole row for `None`.
    fn note(&mut self, access: usize, touch: Option<Touch>, write: bool) {
        let access = &mut self.accesses[access];
        if matches!(access.operation, Operation::Scan | Operation::Remove) {
            return;
        }
        let length = self.verified.tables[usize::from(access.slot)].schema.row_bytes();
        let touch = touch.unwrap_or(Touch { offset: 0, index: None, length, write });
        if !access.touches.contains(&touch) {
            access.touches.push(touch);
        }
    }

    /// Notes what the code after the prefix may touch. Without following its branches: a register is known if nothing
    /// after the prefix writes it, or if all that do write the same row's handle.
    fn touch_rest(&mut self, graph: &Graph, end: usize) {
        let rest = || (end..graph.code.len()).filter(|&pc| graph.reachable[pc]).map(|pc| &graph.code[pc]);
        let mut written: Vec<Option<Value>> = vec![None; 256];
        for i in rest() {
            let Some(register) = flow::defined(i) else { continue };
            let value = if i.opcode == Opcode::Ret { self.answer(i) } else { Value::Other };
            let known = &mut written[usize::from(register)];
            *known = Some(known.map_or(value, |known| if known == value { known } else { Value::Other }));
        }
        for (value, written) in self.values.iter_mut().zip(written) {
            match written {
                None => {}
                // The verifier lets a handle be used only where it was assigned on every way, and an index is not
                // affine any more, so what the register held before matters only if it was another row.
                Some(new) if !matches!(value, Value::Row(_)) || *value == new => *value = new,
                Some(_) => *value = Value::Other,
            }
        }
        rest().for_each(|i| self.touch(i));
    }
}
