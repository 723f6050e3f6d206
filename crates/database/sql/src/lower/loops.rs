//! Loops of the machine: a counter that grows by a constant up to a constant.

use super::state::Changes;
use super::{Loop, Lower};
use crate::ir::{End, Op, Operand, Val};
use crate::tree::{Stmt, StmtKind, Target, VarId};

impl Lower<'_> {
    /// Writes a loop: `counter` begins at `start`, `body` is written once, and the loop goes on while the counter,
    /// after `step` was added, is below `limit`. `lo` and `hi` are what the counter can be in the body.
    pub(super) fn counted(
        &mut self,
        changes: &Changes,
        start: Operand,
        (step, limit): (i64, i64),
        (lo, hi): (i64, i64),
        body: impl FnOnce(&mut Self, Val),
    ) {
        if !self.b.is_open() {
            return;
        }
        // A block of its own in front, so that what is moved out of the loop stands behind everything it needs.
        let preheader = self.b.block();
        self.link(self.b.current, preheader);
        self.b.start(preheader);
        let before = self.state.variables.clone();
        self.b.open_loop();
        let counter = self.b.value(lo, hi);
        self.b.enter();
        let heads = self.forget(changes);
        for &(var, value) in &heads {
            self.b.push(Op::Move(before[var]), Some(value));
            self.state.variables[var] = Operand::Val(value);
        }
        self.b.push(Op::Move(start), Some(counter));
        let known = (self.state.held.clone(), self.state.areas.clone());
        let head = self.b.block();
        self.link(preheader, head);
        self.b.start(head);
        self.loops.push(Loop::new(self.state.variables.len()));
        self.b.enter();
        body(self, counter);
        self.b.leave();
        let Some(Loop { mut exits, mut again, .. }) = self.loops.pop() else { return };
        again.extend(self.way());
        if !again.is_empty() {
            self.meet(again);
            self.b.enter();
            self.pass_on(&heads);
            self.b.leave();
            let exit = self.b.block();
            self.b.end(End::Back { counter, step, limit, head, exit });
            for &(var, value) in &heads {
                self.state.variables[var] = Operand::Val(value);
            }
            // What was learnt in the round may be about values that have changed now.
            self.state.held.retain(|key, held| known.0.get(key) == Some(held));
            self.state.areas.retain(|area| known.1.contains(area));
            self.b.start(exit);
            exits.extend(self.way());
        }
        self.b.leave();
        self.b.close_loop();
        self.meet(exits);
    }

    /// The values of the next round, all at once: where one is another's old value, it is kept first.
    fn pass_on(&mut self, heads: &[(VarId, Val)]) {
        let old: Vec<Val> = heads.iter().map(|&(_, value)| value).collect();
        let mut moves = Vec::new();
        for &(var, value) in heads {
            let next = self.state.variables[var];
            if next == Operand::Val(value) {
                continue;
            }
            let next = match next {
                Operand::Val(other) if old.contains(&other) => {
                    let (lo, hi) = self.b.range(next);
                    let kept = self.b.value(lo, hi);
                    self.b.push(Op::Move(next), Some(kept));
                    Operand::Val(kept)
                }
                other => other,
            };
            moves.push((value, next));
        }
        for (value, next) in moves {
            self.b.push(Op::Move(next), Some(value));
        }
    }

    /// Leaves a loop of the machine, or goes on with its next round, from here.
    pub(super) fn leave(&mut self, position: usize, again: bool) {
        let Some(way) = self.way() else { return };
        self.loops[position].add(way, again);
        // The way goes on where the loop ends; nothing follows here.
        let dead = self.b.block();
        self.b.start(dead);
        self.b.end(End::Commit);
    }

    /// What statements may change.
    pub(super) fn changes(&self, statements: &[Stmt], changes: &mut Changes) {
        for stmt in statements {
            if stmt.observed {
                changes.variables.insert(self.found);
            }
            match &stmt.kind {
                StmtKind::Assign(target, _) => self.target_change(target, changes),
                StmtKind::If(_, yes, no) => {
                    self.changes(yes, changes);
                    self.changes(no, changes);
                }
                StmtKind::ForCount { body, .. } | StmtKind::ForRows { body, .. } => self.changes(body, changes),
                StmtKind::Fill { var, .. } => changes.fields.extend(self.fields[*var]),
                StmtKind::AssignAll(sets) | StmtKind::Fetch { sets, .. } => {
                    sets.iter().for_each(|(target, _)| self.target_change(target, changes))
                }
                StmtKind::Insert { table, .. } | StmtKind::Update { table, .. } | StmtKind::Delete { table, .. } => {
                    let indexes = self.table(*table).indexes().iter().map(|index| self.index_table(&index.name));
                    let all: Vec<usize> = indexes.chain([*table]).collect();
                    changes.tables.extend(all.iter().copied());
                    if matches!(stmt.kind, StmtKind::Delete { .. } | StmtKind::Update { .. }) {
                        changes.removed.extend(all);
                    }
                }
                StmtKind::SetFound(_) => {
                    changes.variables.insert(self.found);
                }
                StmtKind::Leave { .. } | StmtKind::Return | StmtKind::Raise(_) => {}
            }
        }
    }

    fn target_change(&self, target: &Target, changes: &mut Changes) {
        let var = target.var();
        if self.routine.variables[var].in_register() {
            changes.variables.insert(var);
        } else {
            changes.fields.extend(self.fields[var]);
        }
    }
}
