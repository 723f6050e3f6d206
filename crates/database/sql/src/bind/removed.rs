//! Rows that a procedure has removed stay where they are until it commits. An UPDATE of such a row that moves it in an
//! index would leave the index a row that the table lacks, so it is refused where it could happen.

use super::Binder;
use crate::error::{Result, unsupported};
use crate::tree::{Access, Expr, ExprKind, SourceId, Stmt, StmtKind};

/// What is known of the key of a row.
#[derive(Clone, Debug, PartialEq)]
enum Key {
    /// The row that a loop stands at.
    Row(SourceId),
    /// A row that the loop stood at in an earlier round.
    Earlier(SourceId),
    /// The columns that are constant.
    Values(Vec<Option<i64>>),
}

impl Key {
    const ANY: Self = Self::Values(Vec::new());

    fn of(access: &Access) -> Self {
        match access {
            Access::Current(source) => Self::Row(*source),
            Access::Point(exprs) => match exprs.first().map(|expr| &expr.kind) {
                Some(ExprKind::Column(source, 0)) if names_row(*source, exprs) => Self::Row(*source),
                _ => Self::Values(exprs.iter().map(constant).collect()),
            },
        }
    }

    /// Whether a row that was removed may be one that is written.
    fn may_be(&self, written: &Self) -> bool {
        match (self, written) {
            (Self::Earlier(removed), Self::Row(written)) => removed != written,
            (Self::Values(removed), Self::Values(written)) => {
                !removed.iter().zip(written).any(|(a, b)| matches!((a, b), (Some(a), Some(b)) if a != b))
            }
            _ => true,
        }
    }
}

fn names_row(source: SourceId, key: &[Expr]) -> bool {
    key.iter().enumerate().all(|(column, expr)| expr.kind == ExprKind::Column(source, column))
}

fn constant(expr: &Expr) -> Option<i64> {
    match expr.kind {
        ExprKind::Const(value) => Some(value),
        _ => None,
    }
}

/// Table and key of a row that may have been removed.
type Removed = (usize, Key);

/// What statements may remove, as it is known when they are done again, or are over.
fn removals(statements: &[Stmt], all: &mut Vec<Removed>) {
    // Straight to the end of the procedure: nothing is done again.
    let plain = |stmt: &Stmt| {
        !matches!(
            stmt.kind,
            StmtKind::If(..) | StmtKind::ForCount { .. } | StmtKind::ForRows { .. } | StmtKind::Leave { .. }
        )
    };
    if let [before @ .., last] = statements
        && matches!(last.kind, StmtKind::Return | StmtKind::Raise(_))
        && before.iter().all(plain)
    {
        return;
    }
    for stmt in statements {
        match &stmt.kind {
            StmtKind::Delete { table, access, .. } => all.push((*table, Key::of(access))),
            StmtKind::If(_, yes, no) => {
                removals(yes, all);
                removals(no, all);
            }
            StmtKind::ForCount { body, .. } => removals(body, all),
            StmtKind::ForRows { source, body, .. } => {
                let first = all.len();
                removals(body, all);
                forget(*source, &mut all[first..]);
            }
            _ => {}
        }
    }
}

/// The loop of a source is over: it may come to the same rows when it begins anew.
fn forget(source: SourceId, removed: &mut [Removed]) {
    for (_, key) in removed {
        if matches!(key, Key::Row(of) | Key::Earlier(of) if *of == source) {
            *key = Key::ANY;
        }
    }
}

impl Binder<'_> {
    /// Refuses an UPDATE of columns of an index whose row these statements may have removed before.
    pub(super) fn check_removed(&self, statements: &[Stmt]) -> Result<()> {
        self.after(statements, Vec::new()).map(|_| ())
    }

    /// What may be removed behind these statements, in front of which this was; `None` if nothing comes behind them.
    fn after(&self, statements: &[Stmt], mut removed: Vec<Removed>) -> Result<Option<Vec<Removed>>> {
        for stmt in statements {
            match &stmt.kind {
                StmtKind::Delete { table, access, .. } => removed.push((*table, Key::of(access))),
                StmtKind::Update { table, access, sets, .. } => {
                    let info = self.table(*table);
                    let of_index = |column: usize| info.indexes.iter().any(|index| index.columns.contains(&column));
                    let moving = sets.iter().find(|(column, _)| of_index(*column));
                    let key = Key::of(access);
                    if let Some((column, _)) = moving
                        && removed.iter().any(|(of, gone)| of == table && gone.may_be(&key))
                    {
                        let (table, column) = (info.schema.name(), &info.schema.columns()[*column].name);
                        let message = format!(
                            "a row of '{table}' that may be deleted above gets another '{column}', which an index has"
                        );
                        let hint = "deleted rows go at commit; put the UPDATE first, or into a procedure of its own";
                        return unsupported(stmt.place, message, hint);
                    }
                }
                StmtKind::If(_, yes, no) => {
                    let ways = [self.after(yes, removed.clone())?, self.after(no, removed)?];
                    match ways.into_iter().flatten().reduce(joined) {
                        Some(both) => removed = both,
                        None => return Ok(None),
                    }
                }
                StmtKind::ForCount { body, .. } => {
                    removals(body, &mut removed);
                    self.after(body, removed.clone())?;
                }
                StmtKind::ForRows { source, body, .. } => {
                    let first = removed.len();
                    removals(body, &mut removed);
                    for (_, key) in &mut removed[first..] {
                        if *key == Key::Row(*source) {
                            *key = Key::Earlier(*source);
                        }
                    }
                    self.after(body, removed.clone())?;
                    forget(*source, &mut removed);
                }
                StmtKind::Leave { .. } | StmtKind::Return | StmtKind::Raise(_) => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(removed))
    }
}

fn joined(mut a: Vec<Removed>, b: Vec<Removed>) -> Vec<Removed> {
    let new: Vec<Removed> = b.into_iter().filter(|one| !a.contains(one)).collect();
    a.extend(new);
    a
}
