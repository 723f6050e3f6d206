//! Flow: abstract execution of one section to a fixed point.
//!
//! Before every instruction stands a [`State`] that holds on every way there. States are joined where ways meet; at
//! the head of a loop registers that still grow are widened at once, and the counter, whose course is known, is set
//! to what it can be. When nothing changes any more, every reachable instruction is checked once more against its
//! final state, and its facts are written down. So errors are reported, and facts taken, only from states that hold.

use std::collections::BTreeSet;
use std::ops::Range;

use super::loops::Shape;
use super::structure::{Writes, bounds, within_block};
use super::value::{Cp, Flag, Interval, Right, State, Value, fits};
use super::{Check, refuse};
use crate::access::Operation;
use crate::block_access::{BlockAccess, block_accesses};
use crate::isa::{Instruction, Opcode};
use crate::program::{Layout, Procedure};
#[cfg(test)]
use crate::schema::ColumnType;
use crate::schema::{ROW_HEADER_BYTES, TableSchema};
use crate::verified::{Facts, Loop, TableUse};

/// How often one instruction may be looked at before the procedure is refused as too complex.
const MAX_VISITS: u32 = 2_000;

pub(super) struct Flow<'a> {
    procedure: &'a Procedure,
    tables: &'a [TableUse],
    shapes: &'a [Shape],
    section: Range<usize>,
    layout: Layout,
    is_logic: bool,
    /// What holds before each instruction of the section, once control has been seen to reach it.
    states: Vec<Option<State>>,
    /// What holds at the head of each loop when control comes in from outside.
    entries: Vec<Option<State>>,
}

/// What an instruction does to control.
struct Effect {
    /// Where control goes, and what holds there.
    next: Vec<(usize, State)>,
    /// It can abort the transaction by itself.
    may_abort: bool,
}

impl<'a> Flow<'a> {
    pub(super) fn new(
        procedure: &'a Procedure,
        tables: &'a [TableUse],
        shapes: &'a [Shape],
        section: Range<usize>,
    ) -> Self {
        Self {
            procedure,
            tables,
            shapes,
            layout: procedure.layout(),
            is_logic: section.start == 0,
            states: vec![None; section.len()],
            entries: vec![None; shapes.len()],
            section,
        }
    }

    /// Runs to the fixed point, then writes down facts and loops.
    pub(super) fn run(mut self, facts: &mut [Facts], loops: &mut Vec<Loop>) -> Check<()> {
        let mut work = BTreeSet::from([self.section.start]);
        let mut visits = vec![0_u32; self.section.len()];
        self.arrive(None, self.section.start, State::entry())?;
        while let Some(at) = work.pop_first() {
            visits[at - self.section.start] += 1;
            if visits[at - self.section.start] > MAX_VISITS {
                return refuse(
                    at,
                    "the procedure is too complex to verify; use fewer nested loops or CHECK more values",
                );
            }
            let state = self.state(at).clone();
            for (next, state) in self.step(at, state)?.next {
                if self.arrive(Some(at), next, state)? {
                    work.insert(next);
                }
            }
        }
        for at in self.section.clone() {
            if self.states[at - self.section.start].is_some() {
                let state = self.state(at).clone();
                facts[at] = Facts { reachable: true, may_abort: self.step(at, state)?.may_abort, needs_undo: false };
            }
        }
        for (shape, entry) in self.shapes.iter().zip(&self.entries) {
            if let Some(Value::Integer(counter)) = entry.as_ref().map(|e| e.registers[usize::from(shape.counter)]) {
                let (head, back) = (shape.head as u32, shape.back as u32);
                loops.push(Loop { head, back, bound: shape.bound(counter.lo) });
            }
        }
        Ok(())
    }

    fn state(&self, at: usize) -> &State {
        self.states[at - self.section.start].as_ref().expect("control reaches it")
    }

    /// Control reaches `at` from `from` in `state`. Returns whether that tells anything new.
    fn arrive(&mut self, from: Option<usize>, at: usize, mut state: State) -> Check<bool> {
        let differ = |cp: u8| {
            let problem = format!(
                "c{cp} waits for different answers on the ways that meet here; await every DB instruction exactly once on \
                 every way"
            );
            super::Refusal { at: Some(at), problem }
        };
        // One instruction can be the head of several loops that lie in each other.
        let heads: Vec<usize> = (0..self.shapes.len()).filter(|&n| self.shapes[n].head == at).collect();
        for &number in &heads {
            if from != Some(self.shapes[number].back) {
                let entry = match self.entries[number].take() {
                    Some(entry) => entry.join(&state).map_err(differ)?,
                    None => state.clone(),
                };
                self.entries[number] = Some(entry);
            }
        }
        let before = self.states[at - self.section.start].take();
        if let Some(before) = &before {
            let joined = before.join(&state).map_err(differ)?;
            state = if heads.is_empty() { joined } else { before.widen(&joined) };
        }
        for &number in &heads {
            self.set_counter(number, &mut state)?;
        }
        let news = before.as_ref() != Some(&state);
        self.states[at - self.section.start] = Some(state);
        Ok(news)
    }

    /// Sets the counter of a loop, at its head, to what it can be in any round.
    fn set_counter(&self, number: usize, state: &mut State) -> Check<()> {
        let shape = &self.shapes[number];
        let entry = self.entries[number].as_ref().map(|entry| entry.registers[usize::from(shape.counter)]);
        match entry {
            Some(Value::Integer(entry)) => {
                let last = (shape.limit - 1).clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
                let rounds = Interval { lo: entry.lo, hi: entry.hi.max(last) };
                state.registers[usize::from(shape.counter)] = Value::Integer(rounds);
                Ok(())
            }
            Some(_) => {
                let counter = shape.counter;
                refuse(shape.head, format!("r{counter} counts this loop but holds no integer when control comes in"))
            }
            None => refuse(shape.back, "control comes to this loop from its end only; enter at its head"),
        }
    }

    /// Executes one instruction on what is known.
    fn step(&self, at: usize, mut state: State) -> Check<Effect> {
        let i = &self.procedure.code[at];
        let schema = i.opcode.is_db().then(|| &*self.tables[usize::from(i.d)].schema);
        self.in_block(at, &state, schema)?;
        let mut may_abort = false;
        match i.opcode {
            Opcode::Mov => {
                let value = self.defined(at, &state, i.b)?;
                state.set(i.a, value);
            }
            Opcode::Movi => state.set(i.a, Value::Integer(Interval::exactly(i.immediate()))),
            Opcode::Add | Opcode::Sub | Opcode::Mul | Opcode::Div => {
                let right = self.integer(at, &state, i.c)?;
                may_abort = self.arithmetic(at, &mut state, right)?;
            }
            Opcode::Addi | Opcode::Subi | Opcode::Muli | Opcode::Divi => {
                may_abort = self.arithmetic(at, &mut state, Interval::exactly(i.immediate()))?;
            }
            Opcode::Cmp => {
                self.integer(at, &state, i.b)?;
                self.integer(at, &state, i.c)?;
                state.flag = Flag::Compares { left: i.b, right: Right::Register(i.c) };
            }
            Opcode::Cmpi => {
                self.integer(at, &state, i.b)?;
                state.flag = Flag::Compares { left: i.b, right: Right::Constant(i.immediate()) };
            }
            Opcode::Check => return self.check(at, i, state),
            Opcode::Load | Opcode::Store | Opcode::Loadr | Opcode::Storer => {
                may_abort = self.load_or_store(at, i, &mut state)?;
            }
            Opcode::CopyBb | Opcode::CopyBr | Opcode::CopyRb | Opcode::CopyRr => self.copy(at, i, &state)?,
            Opcode::Jmp => return Ok(Effect { next: vec![(i.x as usize, state)], may_abort }),
            opcode if opcode.is_branch() => return self.branch(at, i, state),
            Opcode::Search | Opcode::Update | Opcode::Insert | Opcode::Remove | Opcode::Scan => {
                self.issue(at, i, &mut state)?;
            }
            Opcode::Ret => return self.ret(at, i, state),
            Opcode::Commit => {
                if let Some(cp) = state.cps.iter().position(|cp| *cp != Cp::Free) {
                    return refuse(at, format!("c{cp} is still in flight; await it with 'ret' before commit"));
                }
                return Ok(Effect { next: Vec::new(), may_abort });
            }
            _ => return Ok(Effect { next: Vec::new(), may_abort }),
        }
        if may_abort && !self.is_logic {
            return refuse(at, "it could abort, and a handler must not; bound its values so that it cannot");
        }
        Ok(Effect { next: vec![(at + 1, state)], may_abort })
    }

    fn defined(&self, at: usize, state: &State, register: u8) -> Check<Value> {
        match state.registers[usize::from(register)] {
            Value::Undefined => {
                refuse(at, format!("r{register} has no value on every way here; give it one before it is used"))
            }
            value => Ok(value),
        }
    }

    fn integer(&self, at: usize, state: &State, register: u8) -> Check<Interval> {
        match self.defined(at, state, register)? {
            Value::Integer(interval) => Ok(interval),
            _ => refuse(at, format!("r{register} holds the handle of a row, and an integer is needed")),
        }
    }

    fn row(&self, at: usize, state: &State, register: u8) -> Check<(&'a TableSchema, bool)> {
        match self.defined(at, state, register)? {
            Value::Row { slot, write } => Ok((&self.tables[usize::from(slot)].schema, write)),
            _ => refuse(at, format!("r{register} holds an integer, and the handle of a row is needed (from 'ret')")),
        }
    }

    fn arithmetic(&self, at: usize, state: &mut State, right: Interval) -> Check<bool> {
        let i = &self.procedure.code[at];
        let left = self.integer(at, state, i.b)?;
        let (result, may_abort) = match i.opcode {
            Opcode::Add | Opcode::Addi => left.add(right),
            Opcode::Sub | Opcode::Subi => left.sub(right),
            Opcode::Mul | Opcode::Muli => left.mul(right),
            _ => left.div(right),
        };
        state.set(i.a, Value::Integer(result));
        Ok(may_abort)
    }

    fn check(&self, at: usize, i: &Instruction, mut state: State) -> Check<Effect> {
        let value = self.integer(at, &state, i.b)?;
        let wanted = Interval { lo: 0, hi: i.immediate() - 1 };
        let may_abort = !value.within(wanted);
        let Some(inside) = value.meet(wanted) else { return Ok(Effect { next: Vec::new(), may_abort }) };
        // The register keeps its value, so what the flag tells of it stays true.
        state.registers[usize::from(i.b)] = Value::Integer(inside);
        Ok(Effect { next: vec![(at + 1, state)], may_abort })
    }

    /// Proves that what the instruction names of the block lies in it.
    fn in_block(&self, at: usize, state: &State, schema: Option<&TableSchema>) -> Check<()> {
        for BlockAccess { offset, index, length, writes } in block_accesses(&self.procedure.code[at], schema) {
            let index = self.integer(at, state, index)?;
            within_block(at, &self.layout, (offset, index, length), writes)?;
        }
        Ok(())
    }

    fn row_read(&self, at: usize, state: &State, register: u8, access: Access) -> Check<()> {
        let index = self.integer(at, state, access.index)?;
        let (schema, _) = self.row(at, state, register)?;
        let what = format!("a row of table '{}'", schema.name());
        bounds(at, (access.offset, index, access.length), ROW_HEADER_BYTES..schema.row_bytes(), &what)
    }

    fn row_write(&self, at: usize, state: &State, register: u8, access: Access) -> Check<()> {
        let (schema, write) = self.row(at, state, register)?;
        if !write {
            return refuse(
                at,
                format!("the row in r{register} is held for reading; look it up with 'update' to write it"),
            );
        }
        let what = format!("a row of table '{}' (to write: all but its key)", schema.name());
        let index = self.integer(at, state, access.index)?;
        bounds(at, (access.offset, index, access.length), schema.values_start()..schema.row_bytes(), &what)
    }

    fn load_or_store(&self, at: usize, i: &Instruction, state: &mut State) -> Check<bool> {
        let w = Writes(i.w);
        let access = Access { offset: i.x, index: i.c, length: w.bytes() };
        match i.opcode {
            Opcode::Load | Opcode::Loadr => {
                if i.opcode == Opcode::Loadr {
                    self.row_read(at, state, i.b, access)?;
                }
                state.set(i.a, Value::Integer(w.range()));
                Ok(false)
            }
            _ => {
                let value = self.integer(at, state, i.a)?;
                if i.opcode == Opcode::Storer {
                    self.row_write(at, state, i.b, access)?;
                }
                Ok(!fits(value, w))
            }
        }
    }

    fn copy(&self, at: usize, i: &Instruction, state: &State) -> Check<()> {
        let target = Access { offset: i.x, index: i.d, length: u32::from(i.w) };
        let source = Access { offset: i.y, index: i.e, length: u32::from(i.w) };
        if matches!(i.opcode, Opcode::CopyRb | Opcode::CopyRr) {
            self.row_write(at, state, i.b, target)?;
        }
        if matches!(i.opcode, Opcode::CopyBr | Opcode::CopyRr) {
            self.row_read(at, state, i.c, source)?;
        }
        Ok(())
    }

    fn issue(&self, at: usize, i: &Instruction, state: &mut State) -> Check<()> {
        if state.cps[usize::from(i.a)] != Cp::Free {
            return refuse(at, format!("c{} is in flight; await it with 'ret' before it is used again", i.a));
        }
        let slot = i.d;
        let row = |write| Cp::InFlight { answer: Value::Row { slot, write }, may_miss: true };
        state.cps[usize::from(i.a)] = match Operation::of(i.opcode) {
            Operation::Search => row(false),
            Operation::Update | Operation::Insert => row(true),
            Operation::Remove => Cp::InFlight { answer: Value::Integer(Interval::exactly(0)), may_miss: true },
            Operation::Scan => self.scan(at, i, state)?,
        };
        Ok(())
    }

    fn scan(&self, at: usize, i: &Instruction, state: &State) -> Check<Cp> {
        let limit = Interval { lo: 0, hi: i64::from(i.w) };
        if i.b != 0 && !self.integer(at, state, i.b)?.within(limit) {
            return refuse(at, format!("r{} can be more than the limit of {} rows; bound it with 'check'", i.b, i.w));
        }
        Ok(Cp::InFlight { answer: Value::Integer(limit), may_miss: false })
    }

    fn ret(&self, at: usize, i: &Instruction, mut state: State) -> Check<Effect> {
        let Cp::InFlight { answer, may_miss } = state.cps[usize::from(i.b)] else {
            return refuse(at, format!("nothing is in flight in c{}; a 'ret' follows its DB instruction, once", i.b));
        };
        let label = super::structure::target(i);
        if label.is_some() && !may_miss {
            return refuse(at, "a scan always answers with a number of rows; its 'ret' takes no label");
        }
        state.cps[usize::from(i.b)] = Cp::Free;
        let mut next = Vec::new();
        if let Some(label) = label {
            let mut missing = state.clone();
            if i.a != 0 {
                missing.set(i.a, Value::Undefined);
            }
            next.push((label, missing));
        }
        if i.a != 0 {
            state.set(i.a, answer);
        }
        next.push((at + 1, state));
        Ok(Effect { next, may_abort: may_miss && label.is_none() })
    }

    fn branch(&self, at: usize, i: &Instruction, state: State) -> Check<Effect> {
        if state.flag == Flag::Undefined {
            return refuse(at, "no comparison was made on every way here; compare before branching");
        }
        let opposite = match i.opcode {
            Opcode::Be => Opcode::Bne,
            Opcode::Bne => Opcode::Be,
            Opcode::Bl => Opcode::Bge,
            Opcode::Ble => Opcode::Bg,
            Opcode::Bg => Opcode::Ble,
            _ => Opcode::Bl,
        };
        let ways = [(i.x as usize, i.opcode), (at + 1, opposite)];
        let next = ways.into_iter().filter_map(|(to, holds)| Some((to, refine(&state, holds)?))).collect();
        Ok(Effect { next, may_abort: false })
    }
}

/// A piece of a row: `length` bytes at `offset` plus register `index`.
#[derive(Clone, Copy)]
struct Access {
    offset: u32,
    index: u8,
    length: u32,
}

/// What is known when the comparison turned out as `holds` says; `None` when it cannot.
fn refine(state: &State, holds: Opcode) -> Option<State> {
    let Flag::Compares { left, right } = state.flag else { return Some(state.clone()) };
    let interval = |register: u8| match state.registers[usize::from(register)] {
        Value::Integer(interval) => interval,
        _ => Interval::ALL,
    };
    let a = interval(left);
    let b = match right {
        Right::Register(register) => interval(register),
        Right::Constant(value) => Interval::exactly(value),
    };
    let below = |hi: i64| Interval { lo: i64::MIN, hi };
    let above = |lo: i64| Interval { lo, hi: i64::MAX };
    let (a, b) = match holds {
        Opcode::Be => (a.meet(b)?, a.meet(b)?),
        Opcode::Bne => (without(a, b)?, without(b, a)?),
        Opcode::Bl => (a.meet(below(b.hi.checked_sub(1)?))?, b.meet(above(a.lo.checked_add(1)?))?),
        Opcode::Ble => (a.meet(below(b.hi))?, b.meet(above(a.lo))?),
        Opcode::Bg => (a.meet(above(b.lo.checked_add(1)?))?, b.meet(below(a.hi.checked_sub(1)?))?),
        _ => (a.meet(above(b.lo))?, b.meet(below(a.hi))?),
    };
    let mut state = state.clone();
    // r0 is zero whatever is learnt of it; both sides may be one register, whose interval then is the meet of both.
    if left != 0 {
        state.registers[usize::from(left)] = Value::Integer(a);
    }
    if let Right::Register(register) = right
        && register != 0
    {
        let value = if register == left { a.meet(b)? } else { b };
        state.registers[usize::from(register)] = Value::Integer(value);
    }
    Some(state)
}

/// `a` without the one value that `b` is, where that is an end of `a`.
fn without(a: Interval, b: Interval) -> Option<Interval> {
    if b.lo != b.hi {
        return Some(a);
    }
    if a.lo == b.lo {
        return Interval::new(a.lo.checked_add(1)?, a.hi);
    }
    if a.hi == b.lo {
        return Interval::new(a.lo, a.hi - 1);
    }
    Some(a)
}

/// The types whose values a load of this width can deliver are those of the column types; kept here so that the two
/// cannot drift apart unseen.
#[cfg(test)]
mod widths {
    use super::*;
    use crate::isa::SIGNED;

    #[test]
    fn load_ranges_are_those_of_the_column_types() {
        let types = [
            (ColumnType::U8, 1),
            (ColumnType::U16, 2),
            (ColumnType::U32, 4),
            (ColumnType::I64, 8),
            (ColumnType::I8, 1 | SIGNED),
            (ColumnType::I16, 2 | SIGNED),
            (ColumnType::I32, 4 | SIGNED),
        ];
        for (column_type, w) in types {
            let (lo, hi) = column_type.range().unwrap();
            assert_eq!(Writes(w).range(), Interval { lo, hi }, "{column_type}");
        }
    }
}
