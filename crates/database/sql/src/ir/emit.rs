//! Instructions: blocks in their order, branches resolved, one ABORT a code at the end, and the fields of the block.

use std::collections::BTreeMap;

use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode};
use lockwork_procedure::program::{Field as BlockField, Procedure};

use super::allocate::Allocation;
use super::{At, BlockId, Database, End, FieldKind, Memory, Op, Operand, Program, Val};
use crate::syntax::Comparison;
use crate::tree::Arithmetic;

/// Where a branch goes before addresses are known.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    Block(BlockId),
    Abort(u16),
}

struct Emitter<'a> {
    program: &'a Program,
    allocation: &'a Allocation,
    /// Offset of each field in the block.
    offsets: Vec<u32>,
    code: Vec<Instruction>,
    lines: Vec<u32>,
    goals: Vec<(usize, Goal)>,
    /// Where control really goes that goes to each block.
    through: Vec<BlockId>,
    line: u32,
}

/// The procedure, and the line of each instruction; `None` if a jump goes to a block that is not in the layout.
pub(crate) fn emit(
    name: &str,
    names: Vec<String>,
    program: &Program,
    allocation: &Allocation,
) -> Option<(Procedure, Vec<u32>)> {
    let kinds = [FieldKind::Parameter, FieldKind::Result, FieldKind::Scratch];
    let groups = kinds.map(|kind| {
        let of = program.fields.iter().enumerate().filter(|(_, field)| field.kind == kind);
        of.map(|(number, _)| number).collect::<Vec<_>>()
    });
    let shapes = groups.clone().map(|group| {
        group.iter().map(|&at| (program.fields[at].column_type, program.fields[at].count)).collect::<Vec<_>>()
    });
    let (_, places) = Procedure::lay_out([&shapes[0], &shapes[1], &shapes[2]]);
    let mut offsets = vec![0; program.fields.len()];
    let all = groups.iter().flatten();
    all.zip(places).for_each(|(&field, offset)| offsets[field] = u32::try_from(offset).unwrap_or(u32::MAX));
    let fields = groups.map(|group| {
        let field = |&at: &usize| {
            let super::Field { name, column_type, count, .. } = program.fields[at].clone();
            BlockField { name, column_type, count, offset: offsets[at] }
        };
        group.iter().map(field).collect::<Vec<_>>()
    });
    let (code, lines, goals) = (Vec::new(), Vec::new(), Vec::new());
    let mut emitter = Emitter { program, allocation, offsets, code, lines, goals, through: Vec::new(), line: 0 };
    emitter.through = emitter.goals_of_blocks();
    let (code, lines, handlers) = emitter.run()?;
    let [parameters, results, scratch] = fields;
    let procedure = Procedure {
        name: name.to_string(),
        tables: names,
        parameters,
        results,
        scratch,
        code,
        commit_handler: handlers,
        abort_handler: handlers + 1,
    };
    Some((procedure, lines))
}

impl Emitter<'_> {
    fn run(&mut self) -> Option<(Vec<Instruction>, Vec<u32>, u32)> {
        // Blocks that only jump on are gone through; nobody comes to them.
        let all = self.program.layout.iter().enumerate();
        let layout = all.filter(|&(position, &block)| position == 0 || self.through(block) == block);
        let layout: Vec<BlockId> = layout.map(|(_, &block)| block).collect();
        let mut starts: BTreeMap<BlockId, u32> = BTreeMap::new();
        for (position, &block) in layout.iter().enumerate() {
            starts.insert(block, self.code.len() as u32);
            let next = layout.get(position + 1).copied();
            for ins in &self.program.blocks[block].code {
                self.line = ins.line;
                self.instruction(&ins.op, ins.to);
            }
            self.line = self.program.blocks[block].end_line;
            self.finish(&self.program.blocks[block].end, next);
        }
        let mut aborts: BTreeMap<u16, u32> = BTreeMap::new();
        for at in 0..self.goals.len() {
            if let (_, Goal::Abort(code)) = self.goals[at]
                && !aborts.contains_key(&code)
            {
                aborts.insert(code, self.code.len() as u32);
                self.push(Instruction { w: code, ..Instruction::new(Opcode::Abort) });
            }
        }
        for &(at, goal) in &self.goals {
            self.code[at].x = match goal {
                Goal::Block(block) => *starts.get(&self.through(block))?,
                Goal::Abort(code) => *aborts.get(&code)?,
            };
        }
        let handlers = self.code.len() as u32;
        self.line = 0;
        self.push(Instruction::new(Opcode::Commit));
        self.push(Instruction::new(Opcode::Commit));
        Some((std::mem::take(&mut self.code), std::mem::take(&mut self.lines), handlers))
    }

    /// Where control really goes that goes to this block: through blocks that only jump on.
    fn through(&self, block: BlockId) -> BlockId {
        self.through[block]
    }

    /// For each block where control really goes. The way back of a loop is no jump, so every chain has an end.
    fn goals_of_blocks(&self) -> Vec<BlockId> {
        let on = |block: BlockId| {
            let block = &self.program.blocks[block];
            let nothing = || block.code.iter().all(|ins| self.is_nothing(&ins.op, ins.to));
            match block.end {
                End::Jump(next) if nothing() => Some(next),
                _ => None,
            }
        };
        let mut goals: Vec<Option<BlockId>> = vec![None; self.program.blocks.len()];
        let mut chain = Vec::new();
        for first in 0..goals.len() {
            let mut block = first;
            let goal = loop {
                chain.push(block);
                match (goals[block], on(block)) {
                    (Some(goal), _) => break goal,
                    (None, Some(next)) => block = next,
                    (None, None) => break block,
                }
            };
            chain.drain(..).for_each(|block| goals[block] = Some(goal));
        }
        goals.into_iter().enumerate().map(|(block, goal)| goal.unwrap_or(block)).collect()
    }

    /// A MOV from a register to itself.
    fn is_nothing(&self, op: &Op, to: Option<Val>) -> bool {
        matches!((op, to), (Op::Move(Operand::Val(from)), Some(to)) if self.register(*from) == self.register(to))
    }

    fn push(&mut self, instruction: Instruction) {
        self.code.push(instruction);
        self.lines.push(self.line);
    }

    fn register(&self, value: Val) -> u8 {
        self.allocation.registers[value as usize]
    }

    fn index(&self, index: Option<Val>) -> u8 {
        index.map_or(0, |index| self.register(index))
    }

    fn cp(&self, cp: u32) -> u8 {
        self.allocation.cps.get(&cp).copied().unwrap_or(0)
    }

    fn offset(&self, at: At) -> u32 {
        self.offsets[at.field].wrapping_add_signed(at.offset)
    }

    fn jump(&mut self, opcode: Opcode, goal: Goal) {
        self.goals.push((self.code.len(), goal));
        self.push(Instruction::new(opcode));
    }

    fn compare(&mut self, left: Val, right: Operand) {
        let b = self.register(left);
        let instruction = match right {
            Operand::Const(value) => Instruction { b, ..Instruction::new(Opcode::Cmpi) }.with_immediate(value),
            Operand::Val(right) => Instruction { b, c: self.register(right), ..Instruction::new(Opcode::Cmp) },
        };
        self.push(instruction);
    }

    fn instruction(&mut self, op: &Op, to: Option<Val>) {
        let a = to.map_or(0, |to| self.register(to));
        let new = Instruction::new;
        match *op {
            Op::Const(value) => self.push(Instruction { a, ..new(Opcode::Movi) }.with_immediate(value)),
            Op::Move(Operand::Const(value)) => self.push(Instruction { a, ..new(Opcode::Movi) }.with_immediate(value)),
            Op::Move(Operand::Val(from)) => {
                if !self.is_nothing(op, to) {
                    self.push(Instruction { a, b: self.register(from), ..new(Opcode::Mov) });
                }
            }
            Op::Arithmetic(op, left, right) => {
                let b = self.register(left);
                let (plain, constant) = match op {
                    Arithmetic::Add => (Opcode::Add, Opcode::Addi),
                    Arithmetic::Sub => (Opcode::Sub, Opcode::Subi),
                    Arithmetic::Mul => (Opcode::Mul, Opcode::Muli),
                    Arithmetic::Div => (Opcode::Div, Opcode::Divi),
                };
                self.push(match right {
                    Operand::Const(value) => Instruction { a, b, ..new(constant) }.with_immediate(value),
                    Operand::Val(right) => Instruction { a, b, c: self.register(right), ..new(plain) },
                });
            }
            Op::Check(value, limit) => {
                let from = self.register(value);
                if from != a && a != 0 {
                    self.push(Instruction { a, b: from, ..new(Opcode::Mov) });
                }
                let b = if a == 0 { from } else { a };
                self.push(Instruction { b, ..new(Opcode::Check) }.with_immediate(limit));
            }
            Op::Load(at, w) => {
                self.push(Instruction { a, c: self.index(at.index), w, x: self.offset(at), ..new(Opcode::Load) });
            }
            Op::Store(at, w, value) => {
                let a = self.register(value);
                self.push(Instruction { a, c: self.index(at.index), w, x: self.offset(at), ..new(Opcode::Store) });
            }
            Op::LoadRow { row, offset, w, .. } => {
                self.push(Instruction { a, b: self.register(row), w, x: offset, ..new(Opcode::Loadr) });
            }
            Op::StoreRow { row, offset, w, value, .. } => {
                let (a, b) = (self.register(value), self.register(row));
                self.push(Instruction { a, b, w, x: offset, ..new(Opcode::Storer) });
            }
            Op::Copy { to, from, length } => self.copy(&to, &from, length),
            Op::Issue { operation, slot, key, cp, into } => {
                let opcode = match operation {
                    Database::Search => Opcode::Search,
                    Database::Update => Opcode::Update,
                    Database::Insert => Opcode::Insert,
                    Database::Remove => Opcode::Remove,
                    Database::Scan => Opcode::Scan,
                };
                let mut i = Instruction {
                    a: self.cp(cp),
                    c: self.index(key.index),
                    d: slot,
                    x: self.offset(key),
                    ..new(opcode)
                };
                if let Some(into) = into {
                    (i.b, i.w, i.y) = (self.index(into.limit), into.max, self.offsets[into.field]);
                }
                self.push(i);
            }
            Op::Await { cp, raise } => {
                let i = Instruction { a, b: self.cp(cp), x: NO_LABEL, ..new(Opcode::Ret) };
                if let Some(code) = raise {
                    self.goals.push((self.code.len(), Goal::Abort(code)));
                }
                self.push(i);
            }
            Op::Trap { op, left, right, code } => {
                self.compare(left, right);
                self.jump(branch(op), Goal::Abort(code));
            }
        }
    }

    fn copy(&mut self, to: &Memory, from: &Memory, w: u16) {
        let mut i = Instruction { w, ..Instruction::new(Opcode::CopyBb) };
        i.opcode = match (to, from) {
            (Memory::Block(_), Memory::Block(_)) => Opcode::CopyBb,
            (Memory::Block(_), Memory::Row { .. }) => Opcode::CopyBr,
            (Memory::Row { .. }, Memory::Block(_)) => Opcode::CopyRb,
            (Memory::Row { .. }, Memory::Row { .. }) => Opcode::CopyRr,
        };
        match *to {
            Memory::Block(at) => (i.d, i.x) = (self.index(at.index), self.offset(at)),
            Memory::Row { row, offset, index, .. } => {
                (i.b, i.d, i.x) = (self.register(row), self.index(index), offset);
            }
        }
        match *from {
            Memory::Block(at) => (i.e, i.y) = (self.index(at.index), self.offset(at)),
            Memory::Row { row, offset, index, .. } => {
                (i.c, i.e, i.y) = (self.register(row), self.index(index), offset);
            }
        }
        self.push(i);
    }

    fn finish(&mut self, end: &End, next: Option<BlockId>) {
        let next = next.map(|next| self.through(next));
        match *end {
            End::Open | End::Commit => self.push(Instruction::new(Opcode::Commit)),
            End::Abort(code) => self.push(Instruction { w: code, ..Instruction::new(Opcode::Abort) }),
            End::Jump(to) => self.jump_unless_next(to, next),
            End::Branch { op, left, right, yes, no } => {
                self.compare(left, right);
                if Some(self.through(yes)) == next {
                    self.jump(branch(op.negate()), Goal::Block(no));
                } else {
                    self.jump(branch(op), Goal::Block(yes));
                    self.jump_unless_next(no, next);
                }
            }
            End::AwaitOr { cp, to, hit, miss } => {
                let a = to.map_or(0, |to| self.register(to));
                self.goals.push((self.code.len(), Goal::Block(miss)));
                self.push(Instruction { a, b: self.cp(cp), ..Instruction::new(Opcode::Ret) });
                self.jump_unless_next(hit, next);
            }
            End::Back { counter, step, limit, head, exit } => {
                let register = self.register(counter);
                let add = Instruction { a: register, b: register, ..Instruction::new(Opcode::Addi) };
                self.push(add.with_immediate(step));
                self.compare(counter, Operand::Const(limit));
                self.goals.push((self.code.len(), Goal::Block(head)));
                self.push(Instruction::new(Opcode::Bl));
                self.jump_unless_next(exit, next);
            }
        }
    }

    fn jump_unless_next(&mut self, to: BlockId, next: Option<BlockId>) {
        if Some(self.through(to)) != next {
            self.jump(Opcode::Jmp, Goal::Block(to));
        }
    }
}

fn branch(op: Comparison) -> Opcode {
    match op {
        Comparison::Eq => Opcode::Be,
        Comparison::Ne => Opcode::Bne,
        Comparison::Lt => Opcode::Bl,
        Comparison::Le => Opcode::Ble,
        Comparison::Gt => Opcode::Bg,
        Comparison::Ge => Opcode::Bge,
    }
}
