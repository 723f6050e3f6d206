//! Statements that decide and repeat.

use super::access::Path;
use super::{Binder, Meaning, plain};
use crate::error::{Result, SqlError, state, unsupported};
use crate::syntax::{self, Expr as Written, ExprKind as W, Name, Place, StmtKind as S};
use crate::tree::{Expr, ExprKind, Role, Stmt, StmtKind, Target, Ty};
use crate::types::SqlType;

/// The most rounds of a loop.
const MAX_ROUNDS: i64 = 1_000_000;

/// Whether a statement asks what FOUND is.
fn asks(stmt: Option<&syntax::Stmt>) -> bool {
    fn names(expr: &Written) -> bool {
        matches!(&expr.kind, W::Name(None, name) if name.text == "found") || expr.parts().into_iter().any(names)
    }
    match stmt.map(|stmt| &stmt.kind) {
        Some(S::If { arms, .. }) => arms.iter().any(|(condition, _)| names(condition)),
        Some(S::Assign(_, value)) => names(value),
        Some(S::Leave { when: Some(when), .. }) => names(when),
        _ => false,
    }
}

impl Binder<'_> {
    pub(super) fn statements(&mut self, written: &[syntax::Stmt]) -> Result<Vec<Stmt>> {
        let mut all = Vec::new();
        let mut found = false;
        let free = self.meaning("found").is_none();
        for (at, stmt) in written.iter().enumerate() {
            let observed = free && asks(written.get(at + 1));
            self.found = found;
            let first = all.len();
            self.statement(stmt, observed, &mut all)?;
            found = observed && all.len() > first;
            self.found = false;
        }
        Ok(all)
    }

    fn statement(&mut self, stmt: &syntax::Stmt, observed: bool, all: &mut Vec<Stmt>) -> Result<()> {
        let place = stmt.place;
        match &stmt.kind {
            S::Nothing => {}
            S::Assign(target, value) => {
                let name = target.name.place;
                let target = self.target(target)?;
                let value = self.value_for(value, &target, name)?;
                all.push(plain(StmtKind::Assign(target, value), place));
            }
            S::If { arms, otherwise } => {
                let kind = self.branch(arms, otherwise, place)?;
                all.push(plain(kind, place));
            }
            S::ForCount { label, variable, from, to, step, body } => {
                let kind = self.count(label.as_ref(), variable, (from, to, step.as_ref()), body)?;
                all.push(plain(kind, place));
            }
            S::ForRows { label, variable, select, body } => {
                self.rows(label.as_ref(), variable, select, body, observed, all)?
            }
            S::Leave { again, label, when } => {
                let condition = when.as_ref().map(|when| self.condition(when)).transpose()?;
                let up = self.loop_of(label.as_ref(), place)?;
                let leave = plain(StmtKind::Leave { again: *again, up }, place);
                all.push(match condition {
                    None => leave,
                    Some(condition) => plain(StmtKind::If(condition, vec![leave], Vec::new()), place),
                });
            }
            S::Return => all.push(plain(StmtKind::Return, place)),
            S::Raise { message, state } => {
                let (sqlstate, at) = state.as_ref().map_or(("P0001", place), |(state, place)| (state.as_str(), *place));
                let code = self.abort(sqlstate, message, at)?;
                all.push(plain(StmtKind::Raise(code), place));
            }
            S::Select(select) => self.select(select, observed, all)?,
            S::Insert { table, columns, rows, ignore } => {
                self.insert(table, columns.as_deref(), rows, *ignore, observed, place, all)?;
            }
            S::Update { table, sets, filter, order, limit } => {
                let which = (filter.as_ref(), order.as_slice(), limit.as_ref());
                self.change(table, Some(sets), which, observed, place, all)?;
            }
            S::Delete { table, filter, order, limit } => {
                let which = (filter.as_ref(), order.as_slice(), limit.as_ref());
                self.change(table, None, which, observed, place, all)?;
            }
        }
        Ok(())
    }

    fn branch(
        &mut self,
        arms: &[(Written, Vec<syntax::Stmt>)],
        otherwise: &[syntax::Stmt],
        place: Place,
    ) -> Result<StmtKind> {
        // All conditions first: FOUND is known to every one of them.
        let found = self.found;
        let mut bound = Vec::new();
        for (condition, body) in arms {
            self.found = found;
            let condition = self.condition(condition)?;
            bound.push((condition, self.statements(body)?));
        }
        let mut rest = self.statements(otherwise)?;
        let mut last = None;
        for (condition, body) in bound.into_iter().rev() {
            if let Some(kind) = last.take() {
                rest = vec![plain(kind, place)];
            }
            last = Some(StmtKind::If(condition, body, std::mem::take(&mut rest)));
        }
        last.ok_or_else(|| SqlError::new(state::SYNTAX, place, "IF needs a condition"))
    }

    fn loop_of(&self, label: Option<&Name>, place: Place) -> Result<usize> {
        let position = match label {
            None => self.loops.len().checked_sub(1),
            Some(label) => self.loops.iter().rposition(|known| known.as_deref() == Some(label.text.as_str())),
        };
        match (position, label) {
            (Some(position), _) => Ok(self.loops.len() - 1 - position),
            (None, Some(label)) => {
                Err(SqlError::new(state::SYNTAX, label.place, format!("no loop around has the label '{}'", label.text)))
            }
            (None, None) => Err(SqlError::new(state::SYNTAX, place, "there is no loop around")),
        }
    }

    /// Binds the body of a loop in which `name` means something.
    pub(super) fn body(
        &mut self,
        label: Option<&Name>,
        name: &Name,
        meaning: Meaning,
        body: &[syntax::Stmt],
    ) -> Result<Vec<Stmt>> {
        self.scope.push((name.text.clone(), meaning));
        self.loops.push(label.map(|label| label.text.clone()));
        let row = self.row.take();
        let body = self.statements(body);
        self.row = row;
        self.loops.pop();
        self.scope.pop();
        body
    }

    fn count(
        &mut self,
        label: Option<&Name>,
        variable: &Name,
        (from, to, step): (&Written, &Written, Option<&Written>),
        body: &[syntax::Stmt],
    ) -> Result<StmtKind> {
        let place = from.place;
        let (from, to) = (self.integer(from)?, self.integer(to)?);
        let step = step.map_or(Ok(1), |step| self.constant(step))?;
        if step < 1 {
            return unsupported(place, "a loop counts up", "use a positive BY, and compute the index from the counter");
        }
        let (lo, hi) = (self.range(&from).0, self.highest(&to));
        if i128::from(hi) - i128::from(lo) >= i128::from(MAX_ROUNDS) {
            let hint = format!(
                "every loop has a constant bound of at most {MAX_ROUNDS} rounds: write FOR i IN 1..LEAST(n, 100), or give \
                 the bound a small type, such as TINYINT UNSIGNED"
            );
            return unsupported(to.place, "the bounds of this loop are not constant", hint);
        }
        let var = self.fresh(&variable.text, SqlType::BIGINT, Role::Local);
        self.constants.insert(var);
        let body = self.body(label, variable, Meaning::Variable(var), body)?;
        Ok(StmtKind::ForCount { var, from, to, lo, hi, step, body })
    }

    fn rows(
        &mut self,
        label: Option<&Name>,
        variable: &Name,
        select: &syntax::Select,
        body: &[syntax::Stmt],
        observed: bool,
        all: &mut Vec<Stmt>,
    ) -> Result<()> {
        let place = select.place;
        let (table, alias) = self.from(select)?;
        let source = self.source(table);
        self.row = Some((source, alias));
        let path = self.path(table, source, select.filter.as_ref(), &select.order, place)?;
        let used = self.routine.sources[source].used.clone();
        let columns = self.columns_of(select, source)?;
        self.row = None;
        self.routine.sources[source].used = used;
        if let (Some(_), Path::Point(_)) = (&self.lifted, &path) {
            // Its body writes no rows, and does not leave the loop.
            let inner = self.body(label, variable, Meaning::Row(source, columns), body)?;
            return self.each_row((table, source), path, select.limit.as_ref(), inner, place, all);
        }
        let scan = self.scan(table, path, select.limit.as_ref(), place, all)?;
        let any = if observed {
            let any = self.fresh("any", SqlType::Boolean, Role::Local);
            all.push(plain(StmtKind::Assign(Target::Var(any), flag(false, place)), place));
            Some(any)
        } else {
            None
        };
        let mut inner = Vec::new();
        if let Some(any) = any {
            inner.push(plain(StmtKind::Assign(Target::Var(any), flag(true, place)), place));
        }
        inner.extend(self.body(label, variable, Meaning::Row(source, columns), body)?);
        self.check_moves(&scan, &inner)?;
        all.push(plain(StmtKind::ForRows { scan, source, body: inner }, place));
        if let Some(any) = any {
            let found = Expr { kind: ExprKind::Var(any), ty: Ty::Boolean, place, size: 1 };
            all.push(plain(StmtKind::SetFound(found), place));
        }
        Ok(())
    }

    /// The columns that a select list names, with their names.
    fn columns_of(&mut self, select: &syntax::Select, source: usize) -> Result<Vec<(String, usize)>> {
        let mut columns = Vec::new();
        for item in &select.items {
            match item {
                syntax::Item::All(_) => {
                    let table = self.table(self.routine.sources[source].table);
                    let name = |&column: &usize| (table.schema.columns()[column].name.clone(), column);
                    columns.extend(table.declared.iter().map(name));
                }
                syntax::Item::Expr(written, alias) => {
                    let expr = self.expression(written)?;
                    let ExprKind::Column(of, column) = expr.kind else {
                        let hint = "select the columns, and compute in the loop";
                        return unsupported(expr.place, "the SELECT of a FOR names columns only", hint);
                    };
                    if of != source {
                        return unsupported(
                            expr.place,
                            "this is no column of the table",
                            "use the variable in the loop",
                        );
                    }
                    let own = self.table(self.routine.sources[source].table).schema.columns()[column].name.clone();
                    columns.push((alias.as_ref().map_or(own, |alias| alias.text.clone()), column));
                }
            }
        }
        Ok(columns)
    }
}

pub(super) fn flag(value: bool, place: Place) -> Expr {
    Expr { kind: ExprKind::Const(i64::from(value)), ty: Ty::Boolean, place, size: 1 }
}
