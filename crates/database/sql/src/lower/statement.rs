//! Statements one after the other, and what a statement does whose row is not there.

use std::collections::BTreeSet;

use lockwork_procedure::schema::ColumnType;

use super::Lower;
use super::keys::Part;
use super::state::{Changes, Held, Row};
use super::strings::Piece;
use crate::ir::{At, Database, End, Memory, Op, Operand, Val, width_of};
use crate::syntax::Comparison;
use crate::tree::{Access, Arithmetic, Expr, ExprKind, Stmt, StmtKind, Target, VarId};

/// What happens when a row is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Miss {
    /// The procedure aborts: with the system's code, or with one of its own.
    Abort(Option<u16>),
    /// It goes another way, which is left in `missed`.
    Branch,
}

impl Lower<'_> {
    pub(super) fn statements(&mut self, statements: &[Stmt]) {
        let mut at = 0;
        while let Some(stmt) = statements.get(at) {
            if !self.b.is_open() {
                return;
            }
            self.b.line = stmt.place.line;
            at += 1;
            let is_row = matches!(
                stmt.kind,
                StmtKind::Fetch { .. } | StmtKind::Insert { .. } | StmtKind::Update { .. } | StmtKind::Delete { .. }
            );
            if !is_row || !stmt.observed {
                self.statement(stmt, Miss::Abort(None));
                continue;
            }
            // IF [NOT] FOUND right behind is where the two ways go.
            if let Some(Stmt { kind: StmtKind::If(condition, then, otherwise), place, .. }) = statements.get(at) {
                let (found, missing) = match &condition.kind {
                    ExprKind::Found => (then, otherwise),
                    ExprKind::Not(inner) if inner.kind == ExprKind::Found => (otherwise, then),
                    _ => {
                        self.observed(stmt);
                        continue;
                    }
                };
                at += 1;
                self.two_outcomes(stmt, found, missing, place.line);
                continue;
            }
            self.observed(stmt);
        }
    }

    /// A statement, and what is done when its row was there and when it was not.
    fn two_outcomes(&mut self, stmt: &Stmt, found: &[Stmt], missing: &[Stmt], line: u32) {
        if let [Stmt { kind: StmtKind::Raise(code), .. }] = missing {
            self.statement(stmt, Miss::Abort(Some(*code)));
            self.state.variables[self.found] = Operand::Const(1);
            self.statements(found);
            return;
        }
        self.missed = None;
        // What is learnt of the row is not known where it is missing.
        self.b.enter();
        self.statement(stmt, Miss::Branch);
        let missed = self.missed.take();
        // The arms may begin with a condition that asks again: ELSIF FOUND.
        self.state.variables[self.found] = Operand::Const(1);
        self.statements(found);
        self.b.leave();
        let mut ways: Vec<_> = self.way().into_iter().collect();
        if let Some((block, state)) = missed {
            self.state = state;
            self.state.variables[self.found] = Operand::Const(0);
            self.b.line = line;
            self.arm(block, |this| {
                this.statements(missing);
                ways.extend(this.way());
            });
        }
        self.meet(ways);
    }

    /// A statement after which FOUND is asked for in some other way.
    fn observed(&mut self, stmt: &Stmt) {
        let found = self.found;
        self.missed = None;
        self.b.enter();
        self.statement(stmt, Miss::Branch);
        self.b.leave();
        self.state.variables[found] = Operand::Const(1);
        let mut ways: Vec<_> = self.way().into_iter().collect();
        if let Some((block, state)) = self.missed.take() {
            self.state = state;
            self.arm(block, |this| {
                this.state.variables[found] = Operand::Const(0);
                ways.extend(this.way());
            });
        }
        self.meet(ways);
    }

    fn statement(&mut self, stmt: &Stmt, miss: Miss) {
        match &stmt.kind {
            StmtKind::Assign(target, value) => self.assign(target, value),
            StmtKind::AssignAll(sets) => self.assign_all(sets),
            StmtKind::If(condition, yes, no) => self.if_else(condition, yes, no),
            StmtKind::ForCount { var, from, to, lo, hi, step, body } => {
                self.for_count(*var, (from, to), (*lo, *hi), *step, body);
            }
            StmtKind::ForRows { scan, source, body } => self.for_rows(scan, *source, body),
            StmtKind::Fill { scan, var } => self.fill(scan, *var),
            StmtKind::Fetch { table, access, source, write, sets } => {
                let (key, parts) = self.key_of(*table, access);
                let Some(handle) = self.find_or(*table, key, parts, *write, miss) else { return };
                self.sources[*source] = Some(Row::Held { table: *table, handle });
                self.assign_all(sets);
            }
            StmtKind::Insert { table, values } => self.insert(*table, values, miss),
            StmtKind::Update { table, access, source, sets } => {
                let (key, parts) = self.key_of(*table, access);
                let Some(handle) = self.find_or(*table, key, parts, true, miss) else { return };
                self.sources[*source] = Some(Row::Held { table: *table, handle });
                self.update(*table, handle, *source, sets);
            }
            StmtKind::Delete { table, access, .. } => self.delete(*table, access, miss),
            StmtKind::Leave { again, up } => {
                let at = self.named.len().checked_sub(1 + up);
                if let Some(named) = at.and_then(|at| self.named.get(at).copied()) {
                    self.leave(if *again { named.again } else { named.exit }, *again);
                }
            }
            StmtKind::SetFound(value) => {
                let value = self.number(value);
                let found = self.found;
                self.state.variables[found] = value;
            }
            StmtKind::Return => {
                self.finish();
                self.stop(End::Commit);
            }
            StmtKind::Raise(code) => self.stop(End::Abort(*code)),
        }
    }

    fn if_else(&mut self, condition: &Expr, yes: &[Stmt], no: &[Stmt]) {
        if let ([Stmt { kind: StmtKind::Raise(code), .. }], []) = (yes, no) {
            return self.trap(condition, true, *code);
        }
        let (then, otherwise) = (self.b.block(), self.b.block());
        self.branch(condition, then, otherwise);
        let before = self.state.clone();
        let mut ways = Vec::new();
        let reached =
            |this: &Self, block| this.b.program.blocks.iter().any(|from| from.end.successors().any(|to| to == block));
        for (block, body) in [(then, yes), (otherwise, no)] {
            self.state = before.clone();
            if reached(self, block) {
                self.arm(block, |this| {
                    this.statements(body);
                    ways.extend(this.way());
                });
            }
        }
        self.meet(ways);
    }

    fn assign(&mut self, target: &Target, value: &Expr) {
        let part = self.part(value);
        match (target, part) {
            (Target::Var(var), Part::Number(value)) => self.state.variables[*var] = value,
            (_, part) => {
                let place = self.place(target);
                self.write(place, &part);
            }
        }
    }

    /// Several assignments whose values are all read before the first is made.
    fn assign_all(&mut self, sets: &[(Target, Expr)]) {
        let written: BTreeSet<usize> = sets.iter().filter_map(|(target, _)| self.fields[target.var()]).collect();
        let mut parts = Vec::new();
        for (_, value) in sets {
            let part = match self.part(value) {
                Part::String(pieces) if sets.len() > 1 && reads_fields(&pieces, &written) => {
                    Part::String(self.kept(&pieces))
                }
                part => part,
            };
            parts.push(part);
        }
        // Indexes of arrays are read before variables change too; those in the block change behind them.
        let (mut registers, mut places) = (Vec::new(), Vec::new());
        for ((target, _), part) in sets.iter().zip(parts) {
            match (target, part) {
                (Target::Var(var), Part::Number(value)) => registers.push((*var, value)),
                (_, part) => places.push((self.place(target), part)),
            }
        }
        for (place, part) in places {
            self.write(place, &part);
        }
        for (var, value) in registers {
            self.state.variables[var] = value;
        }
    }

    fn write(&mut self, (at, column_type, width): (At, ColumnType, u32), part: &Part) {
        match part {
            Part::Number(value) => self.b.store(at, width_of(column_type), *value),
            Part::String(pieces) => self.write_pieces(Memory::Block(at), pieces, width, false),
        }
        self.wrote_field(at.field);
    }

    /// Where a target lies that lives in the block, the type of an element, and how long it is.
    fn place(&mut self, target: &Target) -> (At, ColumnType, u32) {
        let (column_type, count) = self.routine.variables[target.var()].field();
        match target {
            Target::Var(var) => {
                let at = At { field: self.fields[*var].unwrap_or(0), offset: 0, index: None };
                (at, column_type, super::field_bytes(column_type, count))
            }
            Target::Element(var, index) => {
                let index = self.number(index);
                (self.element(*var, index).0, column_type, column_type.width())
            }
        }
    }

    fn for_count(&mut self, var: VarId, (from, to): (&Expr, &Expr), (lo, hi): (i64, i64), step: i64, body: &[Stmt]) {
        let (from, to) = (self.number(from), self.number(to));
        if hi < lo {
            return;
        }
        // A start beyond the highest end is no error: there is no round.
        let mut ways = Vec::new();
        let may_begin_beyond = self.b.range(from).1 > hi;
        if may_begin_beyond {
            let (beyond, on) = (self.b.block(), self.b.block());
            self.b.branch(Comparison::Gt, from, Operand::Const(hi), beyond, on);
            self.b.start(beyond);
            ways.extend(self.way());
            self.b.start(on);
            self.b.enter();
        }
        let start = match from {
            Operand::Const(_) => from,
            Operand::Val(_) if self.trusting => self.fit(from, lo, hi.max(lo)),
            Operand::Val(value) => {
                let from_zero = self.b.arithmetic(Arithmetic::Sub, Operand::Val(value), Operand::Const(lo));
                let from_zero = self.b.in_value(from_zero);
                let limit = hi.saturating_sub(lo).saturating_add(1);
                let checked = self.b.compute(Op::Check(from_zero, limit), 0, (0, limit - 1), false);
                self.b.arithmetic(Arithmetic::Add, Operand::Val(checked), Operand::Const(lo))
            }
        };
        let mut changes = Changes::default();
        self.changes(body, &mut changes);
        let position = self.loops.len();
        self.counted(&changes, start, (step, hi.saturating_add(1)), (lo, hi), |this, counter| {
            let counter = Operand::Val(counter);
            if to != Operand::Const(hi) || start != Operand::Const(lo) {
                let (out, on) = (this.b.block(), this.b.block());
                this.b.branch(Comparison::Gt, counter, to, out, on);
                this.b.start(out);
                if let Some(way) = this.way() {
                    this.loops[position].add(way, false);
                }
                this.b.start(on);
            }
            this.state.variables[var] = counter;
            this.named.push(super::Named { exit: position, again: position });
            this.statements(body);
            this.named.pop();
        });
        if may_begin_beyond {
            self.b.leave();
            ways.extend(self.way());
            self.meet(ways);
        }
    }

    /// The key that a statement names, and its values.
    pub(super) fn key_of(&mut self, table: usize, access: &Access) -> (At, Vec<Part>) {
        match access {
            Access::Point(exprs) => {
                let parts = self.parts(exprs);
                (self.key(self.schema(table), &parts), parts)
            }
            Access::Current(source) => self.key_of_source(*source, table),
        }
    }

    /// The row of a key; without it the procedure aborts.
    pub(super) fn find(&mut self, table: usize, key: At, parts: Vec<Part>, write: bool, raise: Option<u16>) -> Val {
        self.find_or(table, key, parts, write, Miss::Abort(raise)).unwrap_or(crate::ir::ZERO)
    }

    /// The row of a key, which may have been looked up before.
    pub(super) fn find_or(&mut self, table: usize, key: At, parts: Vec<Part>, write: bool, miss: Miss) -> Option<Val> {
        let name = (table, parts);
        if let Some(held) = self.state.held.get(&name).copied() {
            if write && !held.write {
                self.upgrade(held);
                if let Some(held) = self.state.held.get_mut(&name) {
                    held.write = true;
                }
            }
            return Some(held.handle);
        }
        let slot = self.slot(table);
        let cp = self.b.cp();
        let operation = if write { Database::Update } else { Database::Search };
        let issue = (self.b.current, cp);
        self.b.push(Op::Issue { operation, slot, key, cp, into: None }, None);
        let handle = match miss {
            Miss::Abort(raise) => self.await_row(cp, raise),
            Miss::Branch => {
                let handle = self.b.value(i64::MIN, i64::MAX);
                self.branch_on(cp, Some(handle));
                handle
            }
        };
        self.state.held.insert(name, Held { handle, write, issue });
        Some(handle)
    }

    /// Awaits an answer; where there is none control goes another way, which is left in `missed`.
    pub(super) fn branch_on(&mut self, cp: u32, to: Option<Val>) {
        let (hit, miss) = (self.b.block(), self.b.block());
        self.missed = Some((miss, self.state.clone()));
        self.b.end(End::AwaitOr { cp, to, hit, miss });
        self.b.start(hit);
    }

    /// A row that was looked up to read is looked up to write instead.
    fn upgrade(&mut self, held: Held) {
        let (block, wanted) = held.issue;
        for ins in &mut self.b.program.blocks[block].code {
            if let Op::Issue { operation: operation @ Database::Search, cp, .. } = &mut ins.op
                && *cp == wanted
            {
                *operation = Database::Update;
            }
        }
        for known in self.state.held.values_mut() {
            if known.issue == held.issue {
                known.write = true;
            }
        }
    }
}

/// Whether pieces lie in one of these fields.
fn reads_fields(pieces: &[Piece], fields: &BTreeSet<usize>) -> bool {
    let inside =
        |piece: &Piece| matches!(piece, Piece::Memory { memory: Memory::Block(at), .. } if fields.contains(&at.field));
    pieces.iter().any(inside)
}
