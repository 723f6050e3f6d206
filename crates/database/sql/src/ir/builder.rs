//! Writes the intermediate form: folds constants, reuses what was computed on every way here, and moves what cannot
//! abort and does not change out of loops.

use std::collections::HashMap;

use lockwork_procedure::schema::TableSchema;

use super::{
    At, Block, BlockId, End, Field, Info, Ins, Memory, Op, Operand, Program, Val, ZERO, fits, moved, range_of,
};
use crate::syntax::Comparison;
use crate::tree::Arithmetic;

/// The most bytes of a copy: what an instruction can say, and whole words.
const LONGEST_COPY: u16 = 65_528;

/// What is remembered of an operation: itself, and the version of the memory that it reads.
type Known = HashMap<(Op, u64), Val>;

/// A loop that is being written.
struct Open {
    preheader: BlockId,
    /// How many scopes there were in front of it.
    scopes: usize,
}

#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) program: Program,
    pub(crate) current: BlockId,
    pub(crate) line: u32,
    scopes: Vec<Known>,
    loops: Vec<Open>,
    next_cp: u32,
    next_version: u64,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let mut builder = Self { scopes: vec![Known::new()], ..Self::default() };
        builder.program.values.push(Info { lo: 0, hi: 0, depth: 0 });
        let entry = builder.block();
        builder.start(entry);
        builder
    }

    pub(crate) fn block(&mut self) -> BlockId {
        self.program.blocks.push(Block { code: Vec::new(), end: End::Open, end_line: 0 });
        self.program.blocks.len() - 1
    }

    /// Goes on in this block, which comes next in the order of writing.
    pub(crate) fn start(&mut self, block: BlockId) {
        self.program.layout.push(block);
        self.current = block;
    }

    pub(crate) fn end(&mut self, end: End) {
        let block = &mut self.program.blocks[self.current];
        if block.end == End::Open {
            (block.end, block.end_line) = (end, self.line);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.program.blocks[self.current].end == End::Open
    }

    pub(crate) fn enter(&mut self) {
        self.scopes.push(Known::new());
    }

    pub(crate) fn leave(&mut self) {
        self.scopes.pop();
    }

    /// A loop begins: the current block is in front of it.
    pub(crate) fn open_loop(&mut self) {
        self.loops.push(Open { preheader: self.current, scopes: self.scopes.len() });
    }

    pub(crate) fn close_loop(&mut self) {
        self.loops.pop();
    }

    pub(crate) fn cp(&mut self) -> u32 {
        self.next_cp += 1;
        self.next_cp - 1
    }

    /// A number for a state of memory that there was not before.
    pub(crate) fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    pub(crate) fn value(&mut self, lo: i64, hi: i64) -> Val {
        self.value_at(lo, hi, self.loops.len())
    }

    fn value_at(&mut self, lo: i64, hi: i64, depth: usize) -> Val {
        self.program.values.push(Info { lo, hi, depth });
        self.program.values.len() as Val - 1
    }

    pub(crate) fn range(&self, operand: Operand) -> (i64, i64) {
        match operand {
            Operand::Const(value) => (value, value),
            Operand::Val(value) => {
                let Info { lo, hi, .. } = self.program.values[value as usize];
                (lo, hi)
            }
        }
    }

    pub(crate) fn push(&mut self, op: Op, to: Option<Val>) {
        let line = self.line;
        self.program.blocks[self.current].code.push(Ins { op, to, line });
    }

    fn recall(&self, op: &Op, version: u64) -> Option<Val> {
        self.scopes.iter().rev().find_map(|scope| scope.get(&(*op, version)).copied())
    }

    /// Remembers that an operation has this value from here on.
    pub(crate) fn remember(&mut self, op: Op, version: u64, value: Val) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert((op, version), value);
        }
    }

    /// The value of an operation, which was computed before or is now.
    pub(crate) fn compute(&mut self, op: Op, version: u64, (lo, hi): (i64, i64), hoist: bool) -> Val {
        if let Some(value) = self.recall(&op, version) {
            return value;
        }
        let mut depth = 0;
        op.reads(|value| depth = depth.max(self.program.values[value as usize].depth));
        let target = match self.loops.get(depth) {
            Some(open) if hoist => Some((open.preheader, open.scopes)),
            _ => None,
        };
        let line = self.line;
        match target {
            Some((block, scopes)) => {
                let value = self.value_at(lo, hi, depth);
                self.program.blocks[block].code.push(Ins { op, to: Some(value), line });
                self.scopes[scopes - 1].insert((op, version), value);
                value
            }
            None => {
                let value = self.value(lo, hi);
                self.push(op, Some(value));
                self.remember(op, version, value);
                value
            }
        }
    }

    /// A value of an operand: a constant is put into one.
    pub(crate) fn in_value(&mut self, operand: Operand) -> Val {
        match operand {
            Operand::Val(value) => value,
            Operand::Const(0) => ZERO,
            Operand::Const(value) => match self.recall(&Op::Const(value), 0) {
                Some(known) => known,
                None => {
                    let to = self.value(value, value);
                    self.push(Op::Const(value), Some(to));
                    self.remember(Op::Const(value), 0, to);
                    to
                }
            },
        }
    }

    pub(crate) fn arithmetic(&mut self, op: Arithmetic, left: Operand, right: Operand) -> Operand {
        use Arithmetic as A;
        let (left, right) = match (op, left, right) {
            (A::Add | A::Mul, Operand::Const(_), Operand::Val(_)) => (right, left),
            _ => (left, right),
        };
        let folded = match (left, right) {
            (Operand::Const(a), Operand::Const(b)) => match op {
                A::Add => a.checked_add(b),
                A::Sub => a.checked_sub(b),
                A::Mul => a.checked_mul(b),
                A::Div => a.checked_div(b),
            },
            _ => None,
        };
        if let Some(value) = folded {
            return Operand::Const(value);
        }
        match (op, right) {
            (A::Add | A::Sub, Operand::Const(0)) | (A::Mul | A::Div, Operand::Const(1)) => return left,
            (A::Mul, Operand::Const(0)) => return Operand::Const(0),
            _ => {}
        }
        let (a, b) = (self.range(left), self.range(right));
        let (range, aborts) = result_range(op, a, b);
        let left = self.in_value(left);
        // r0 holds a constant zero as well as a constant does.
        Operand::Val(self.compute(Op::Arithmetic(op, left, right), 0, range, !aborts))
    }

    /// The operand, which is at least zero and below the limit, or the procedure aborts.
    pub(crate) fn check(&mut self, operand: Operand, limit: i64) -> Operand {
        let (lo, hi) = self.range(operand);
        if lo >= 0 && hi < limit {
            return operand;
        }
        let value = self.in_value(operand);
        let range = (lo.clamp(0, limit - 1), hi.clamp(0, limit - 1));
        Operand::Val(self.compute(Op::Check(value, limit), 0, range, false))
    }

    pub(crate) fn load(&mut self, at: At, w: u16, version: u64, constant: bool) -> Operand {
        Operand::Val(self.compute(Op::Load(at, w), version, range_of(w), constant))
    }

    pub(crate) fn store(&mut self, at: At, w: u16, operand: Operand) {
        let value = self.in_value(operand);
        self.push(Op::Store(at, w, value), None);
    }

    pub(crate) fn field(&mut self, field: Field) -> usize {
        self.program.fields.push(field);
        self.program.fields.len() - 1
    }

    pub(crate) fn slot(&mut self, table: usize, schema: &TableSchema) -> u8 {
        let known = self.program.tables.iter().position(|(known, _)| *known == table);
        let slot = known.unwrap_or_else(|| {
            self.program.tables.push((table, schema.clone()));
            self.program.tables.len() - 1
        });
        // More tables than slots are refused when the procedure is put together.
        slot.min(255) as u8
    }

    /// Ends the block with a comparison; goes on in neither.
    pub(crate) fn branch(&mut self, op: Comparison, left: Operand, right: Operand, yes: BlockId, no: BlockId) {
        let (op, left, right) = match (left, right) {
            (Operand::Const(a), Operand::Const(b)) => {
                let to = if op.holds(a.cmp(&b)) { yes } else { no };
                return self.end(End::Jump(to));
            }
            (Operand::Const(_), Operand::Val(value)) => (op.flip(), value, left),
            (Operand::Val(value), _) => (op, value, right),
        };
        match self.decided(op, left, right) {
            Some(true) => self.end(End::Jump(yes)),
            Some(false) => self.end(End::Jump(no)),
            None => self.end(End::Branch { op, left, right, yes, no }),
        }
    }

    /// What a comparison always is.
    pub(crate) fn decided(&self, op: Comparison, left: Val, right: Operand) -> Option<bool> {
        let ((a, b), (c, d)) = (self.range(Operand::Val(left)), self.range(right));
        let (below, above) = (b < c, a > d);
        match op {
            Comparison::Lt if below || a >= d => (below || a >= d).then_some(below),
            Comparison::Le if b <= c || above => Some(b <= c),
            Comparison::Gt if above || b <= c => Some(above),
            Comparison::Ge if a >= d || below => Some(a >= d),
            Comparison::Eq if below || above => Some(false),
            Comparison::Ne if below || above => Some(true),
            _ => None,
        }
    }

    /// Copies bytes between places that are apart or the same: an instruction for each [`LONGEST_COPY`] of them.
    pub(crate) fn copy(&mut self, to: Memory, from: Memory, length: u32) {
        if to == from {
            return;
        }
        for done in (0..length).step_by(usize::from(LONGEST_COPY)) {
            let length = (length - done).min(u32::from(LONGEST_COPY)) as u16;
            self.push(Op::Copy { to: moved(to, done), from: moved(from, done), length }, None);
        }
    }

    /// Whether an instruction may abort by itself.
    pub(crate) fn may_abort(values: &[Info], op: &Op) -> bool {
        let range = |operand: Operand| match operand {
            Operand::Const(value) => (value, value),
            Operand::Val(value) => (values[value as usize].lo, values[value as usize].hi),
        };
        match op {
            Op::Arithmetic(op, left, right) => result_range(*op, range(Operand::Val(*left)), range(*right)).1,
            Op::Check(..) | Op::Await { .. } | Op::Trap { .. } => true,
            Op::Store(_, w, value) | Op::StoreRow { w, value, .. } => !fits(range(Operand::Val(*value)), *w),
            _ => false,
        }
    }
}

/// The values of a result, and whether some abort.
fn result_range(op: Arithmetic, a: (i64, i64), b: (i64, i64)) -> ((i64, i64), bool) {
    let (a, b) = ((i128::from(a.0), i128::from(a.1)), (i128::from(b.0), i128::from(b.1)));
    let corners = |of: &dyn Fn(i128, i128) -> i128| {
        let all = [of(a.0, b.0), of(a.0, b.1), of(a.1, b.0), of(a.1, b.1)];
        all.iter().fold((all[0], all[0]), |(lo, hi), &one| (lo.min(one), hi.max(one)))
    };
    let (lo, hi) = match op {
        Arithmetic::Add => (a.0 + b.0, a.1 + b.1),
        Arithmetic::Sub => (a.0 - b.1, a.1 - b.0),
        Arithmetic::Mul => corners(&|x, y| x * y),
        Arithmetic::Div if b.0 > 0 || b.1 < 0 => corners(&|x, y| x / y),
        Arithmetic::Div => return ((i64::MIN, i64::MAX), true),
    };
    let (min, max) = (i128::from(i64::MIN), i128::from(i64::MAX));
    ((lo.clamp(min, max) as i64, hi.clamp(min, max) as i64), lo < min || hi > max)
}
