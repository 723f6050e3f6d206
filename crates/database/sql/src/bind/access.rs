//! Which way to the rows of a WHERE: by the whole primary key, or a range of the primary key or of an index.

use lockwork_procedure::schema::ColumnType;

use super::expression::{compare, wrong};
use super::point::Point;
use super::terms::{Condition, Term};
use super::{Binder, coerce, plain};
use crate::error::{Result, SqlError, state, unsupported};
use crate::syntax::{Comparison, Expr as Written, ExprKind as W, Name, Place};
use crate::tree::{Arithmetic, Expr, ExprKind, PIECE, Scan, SourceId, Stmt, StmtKind, Ty};
use crate::types::SqlType;

/// The most rows of a scan.
pub(super) const MAX_ROWS: i64 = 10_000;

/// The most rows of a single statement whose LIMIT is this constant: a few such bounds are shared by all, and the LIMIT
/// is an argument.
pub(super) fn shared_bound(limit: u32) -> u32 {
    limit.next_power_of_two().min(MAX_ROWS as u32)
}

/// SQLSTATE and message of a LIMIT below zero.
const NEGATIVE_LIMIT: (&str, &str) = ("2201W", "LIMIT is negative");

pub(super) fn negative_limit(place: Place) -> SqlError {
    SqlError::new(NEGATIVE_LIMIT.0, place, NEGATIVE_LIMIT.1).hint("a LIMIT is 0 or more")
}

/// A way to rows.
pub(super) enum Path {
    Point(Point),
    Range { index: Option<usize>, prefix: Vec<Expr>, low: Option<Expr>, high: Option<Expr> },
}

impl Binder<'_> {
    /// Returns the LIMIT of a statement, and what it is at most. Where it may be negative, a statement in `all` tests
    /// it.
    pub(super) fn limit(&mut self, limit: &Written, all: &mut Vec<Stmt>) -> Result<(Expr, u32)> {
        let row = self.row.take();
        let limit = self.integer(limit);
        self.row = row;
        let limit = limit?;
        let (least, bound) = self.range(&limit);
        if bound < 0 {
            return Err(negative_limit(limit.place));
        }
        if bound > MAX_ROWS {
            let hint = match self.lifted {
                Some(_) => format!("write a number of at most {MAX_ROWS}"),
                None => format!("use a constant or LEAST(variable, constant), at most {MAX_ROWS}"),
            };
            return unsupported(limit.place, "this LIMIT is not bounded", hint);
        }
        let (limit, bound) = match limit.kind {
            ExprKind::Const(number) if self.shares => {
                let most = shared_bound(number as u32);
                let (place, ty) = (limit.place, limit.ty);
                let number = self.lift(limit, SqlType::Integer(ColumnType::U16));
                let most_number = coerce::number(most.into(), 0, place);
                let kind = ExprKind::Least(Box::new(number), Box::new(most_number));
                (Expr { kind, ty, place, size: 3 }, most.into())
            }
            _ => (limit, bound),
        };
        if least < 0 {
            let code = self.abort(NEGATIVE_LIMIT.0, NEGATIVE_LIMIT.1, limit.place)?;
            let negative = compare(Comparison::Lt, limit.clone(), coerce::number(0, 0, limit.place))?;
            let raise = vec![plain(StmtKind::Raise(code), limit.place)];
            all.push(plain(StmtKind::If(negative, raise, Vec::new()), limit.place));
        }
        Ok((limit, (bound as u32).max(1)))
    }

    /// Returns the rows of a range, at most as many as the limit says ([`Self::limit`]).
    pub(super) fn scan(
        &mut self,
        table: usize,
        path: Path,
        limit: Option<&Written>,
        place: Place,
        all: &mut Vec<Stmt>,
    ) -> Result<Scan> {
        let Some(limit) = limit else {
            let hint = match self.lifted {
                Some(_) => "add LIMIT n, or name the whole key",
                None => "add LIMIT n: every loop has a constant bound; LIMIT LEAST(variable, n) is possible too",
            };
            return unsupported(place, "a range of rows needs a LIMIT", hint);
        };
        let (limit, max) = self.limit(limit, all)?;
        let (index, prefix, low, high) = match path {
            Path::Range { index, prefix, low, high } => (index, prefix, low, high),
            Path::Point(Point { key, rest: None, .. }) if self.table(table).schema.is_ordered() => {
                (None, key, None, None)
            }
            Path::Point(_) => {
                let hint = "SELECT ... INTO variables takes the row of a key, and FOUND says whether there was one";
                return unsupported(place, "this WHERE names one row, and a range is needed", hint);
            }
        };
        Ok(Scan { table, index, prefix, low, high, limit, max })
    }

    /// Refuses a range of an index whose rows move in it while they are gone through: a scan of several pieces would
    /// meet them again.
    pub(super) fn check_moves(&self, scan: &Scan, body: &[Stmt]) -> Result<()> {
        let Some(index) = scan.index.filter(|_| scan.max > PIECE) else { return Ok(()) };
        let info = self.table(scan.table);
        let index = &info.indexes[index];
        for stmt in body {
            match &stmt.kind {
                StmtKind::Update { table, sets, .. } if *table == scan.table => {
                    let Some((column, _)) = sets.iter().find(|(column, _)| index.columns.contains(column)) else {
                        continue;
                    };
                    let (column, name) = (&info.schema.columns()[*column].name, &index.name);
                    let message =
                        format!("'{column}' is set while index '{name}', which it belongs to, is gone through");
                    let hint = format!("find the rows by the primary key, or at most {PIECE} at a time: LIMIT {PIECE}");
                    return unsupported(stmt.place, message, hint);
                }
                StmtKind::If(_, yes, no) => {
                    self.check_moves(scan, yes)?;
                    self.check_moves(scan, no)?;
                }
                StmtKind::ForCount { body, .. } | StmtKind::ForRows { body, .. } => self.check_moves(scan, body)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The highest value that an integer can have.
    pub(super) fn highest(&self, expr: &Expr) -> i64 {
        self.range(expr).1
    }

    /// The values that an integer can have, as far as types and constants tell.
    pub(super) fn range(&self, expr: &Expr) -> (i64, i64) {
        let all = (i64::MIN, i64::MAX);
        let clip = |lo: i128, hi: i128| (lo.max(i128::from(i64::MIN)) as i64, hi.min(i128::from(i64::MAX)) as i64);
        match &expr.kind {
            ExprKind::Const(value) => (*value, *value),
            ExprKind::Var(var) | ExprKind::Element(var, _) => match self.routine.variables[*var].var_type {
                crate::tree::VarType::Sql(sql) => sql.range().unwrap_or(all),
                crate::tree::VarType::Rows { .. } => all,
            },
            ExprKind::Column(source, column) => {
                self.table(self.routine.sources[*source].table).types[*column].range().unwrap_or(all)
            }
            ExprKind::Least(a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                (a.0.min(b.0), a.1.min(b.1))
            }
            ExprKind::Greatest(a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                (a.0.max(b.0), a.1.max(b.1))
            }
            ExprKind::Fit(inner, lo, hi) => {
                let inner = self.range(inner);
                (inner.0.max(*lo), inner.1.min(*hi))
            }
            ExprKind::Arithmetic(op, a, b) => {
                let (a, b) = (self.range(a), self.range(b));
                let (a, b) = ((i128::from(a.0), i128::from(a.1)), (i128::from(b.0), i128::from(b.1)));
                match op {
                    Arithmetic::Add => clip(a.0 + b.0, a.1 + b.1),
                    Arithmetic::Sub => clip(a.0 - b.1, a.1 - b.0),
                    _ => all,
                }
            }
            _ => all,
        }
    }

    /// Returns the way to the rows of a WHERE in the order of ORDER BY.
    pub(super) fn path(
        &mut self,
        table: usize,
        source: SourceId,
        filter: Option<&Written>,
        order: &[Name],
        place: Place,
    ) -> Result<Path> {
        let mut terms = self.terms(table, filter);
        if let Some(whole) = self.whole_key(table, &terms) {
            return self.point(table, source, (terms, whole), order, place).map(Path::Point);
        }
        let mut conditions: Vec<Condition<'_>> = Vec::new();
        for term in std::mem::take(&mut terms) {
            let place = term.place();
            let Term::Condition(condition) = term else {
                return Err(self.no_key(table, place));
            };
            let is_twice = conditions.iter().any(|other| other.column == condition.column && other.op == condition.op);
            if condition.op == Comparison::Ne || is_twice {
                return Err(self.no_key(table, place));
            }
            conditions.push(condition);
        }
        let info = self.table(table);
        let keys: Vec<usize> = (0..info.schema.key().len()).collect();
        let equal = |column: usize| conditions.iter().any(|c| c.column == column && c.op == Comparison::Eq);
        let ways = std::iter::once((None, keys))
            .chain(info.indexes.iter().enumerate().map(|(number, index)| (Some(number), index.columns.clone())));
        let mut best: Option<(usize, Option<usize>, Vec<usize>)> = None;
        for (index, columns) in ways {
            let prefix = columns.iter().take_while(|&&column| equal(column)).count();
            let next = columns.get(prefix);
            let consumed = |c: &Condition<'_>| {
                columns[..prefix].contains(&c.column) && c.op == Comparison::Eq
                    || Some(&c.column) == next && c.op != Comparison::Eq
            };
            let possible = index.is_some() || info.schema.is_ordered();
            let is_fixed = |column: usize| columns[..prefix].contains(&column);
            if !possible || !conditions.iter().all(consumed) || !in_order(info, &columns, is_fixed, order) {
                continue;
            }
            if best.as_ref().is_none_or(|(longest, ..)| prefix > *longest) {
                best = Some((prefix, index, columns));
            }
        }
        let Some((prefix, index, columns)) = best else { return Err(self.no_way(table, order, place)) };
        let mut values = Vec::new();
        for &column in &columns[..prefix] {
            let at = conditions.iter().position(|c| c.column == column && c.op == Comparison::Eq);
            let Some(condition) = at.map(|at| conditions.swap_remove(at)) else { continue };
            values.push(self.equal_to(&condition, info.types[column])?);
        }
        let (mut low, mut high) = (None, None);
        let mut nothing = None;
        for condition in conditions {
            let (sql, place) = (info.types[condition.column], condition.place);
            let bound = self.bound(&condition, sql)?;
            match bound {
                None => nothing = sql.range().map(|range| (range, Ty::of(sql), place)),
                Some((true, value)) if low.is_none() => low = Some(value),
                Some((false, value)) if high.is_none() => high = Some(value),
                Some((_, value)) => {
                    return unsupported(
                        value.place,
                        "the column is bounded twice on one side",
                        "keep one of the bounds",
                    );
                }
            }
        }
        if let Some(((first, last), ty, place)) = nothing {
            // The highest value as the lowest: the empty range.
            let constant = |value| Some(Expr { kind: ExprKind::Const(value), ty, place, size: 1 });
            (low, high) = (constant(last), constant(first));
        }
        Ok(Path::Range { index, prefix: values, low, high })
    }

    /// Returns the value that a column is compared with; `None` for NULL.
    fn compared_with(&mut self, condition: &Condition<'_>, sql: SqlType) -> Result<Option<Expr>> {
        if self.lifted.is_some() && condition.value.kind == W::Null {
            return Ok(None);
        }
        let value = self.expression(condition.value)?;
        self.exact(value, sql).map(Some)
    }

    /// Returns the value of a column of a key from the condition `column = value`.
    pub(super) fn equal_to(&mut self, condition: &Condition<'_>, sql: SqlType) -> Result<Expr> {
        let value = self.compared_with(condition, sql)?;
        match self.sought(value.as_ref(), Comparison::Eq, sql, condition.place)? {
            Some(value) => Ok(value),
            None => self.coerce(known(value, condition.place)?, sql),
        }
    }

    /// Whether it is a lower bound, and the bound, included; `None` if no value of the type lies behind it.
    pub(super) fn bound(&mut self, condition: &Condition<'_>, sql: SqlType) -> Result<Option<(bool, Expr)>> {
        let (op, place) = (condition.op, condition.place);
        if sql.is_string() {
            return unsupported(place, "ranges of texts are not supported", "use a column of numbers as key");
        }
        let value = self.compared_with(condition, sql)?;
        if let Some(value) = self.sought(value.as_ref(), op, sql, place)? {
            return Ok(Some((matches!(op, Comparison::Ge | Comparison::Gt), value)));
        }
        let value = known(value, place)?;
        if let (ExprKind::Const(constant), Some((first, last))) = (&value.kind, sql.range())
            && value.ty == Ty::of(sql)
            && (op == Comparison::Gt && *constant == last || op == Comparison::Lt && *constant == first)
        {
            return Ok(None);
        }
        let value = self.coerce(value, sql)?;
        let ty = value.ty;
        if !matches!(ty, Ty::Number(_) | Ty::Timestamp) {
            return wrong(ty, "a number or timestamp", place);
        }
        let one = coerce::number(1, 0, place);
        Ok(Some(match op {
            Comparison::Ge => (true, value),
            Comparison::Gt => (true, coerce::arithmetic(Arithmetic::Add, value, one, ty)?),
            Comparison::Le => (false, value),
            _ => (false, coerce::arithmetic(Arithmetic::Sub, value, one, ty)?),
        }))
    }

    /// Refuses a condition that stands beside no whole key and bounds no range of one.
    fn no_key(&self, table: usize, place: Place) -> SqlError {
        let message = format!("this condition finds no rows of table '{}' by key", self.table(table).schema.name());
        SqlError::new(state::NOT_SUPPORTED, place, message).hint(self.keys_of(table))
    }

    pub(super) fn no_way(&self, table: usize, order: &[Name], place: Place) -> SqlError {
        let what = if order.is_empty() { "WHERE" } else { "WHERE and ORDER BY" };
        let message = format!("no key of table '{}' finds the rows of this {what}", self.table(table).schema.name());
        SqlError::new(state::NOT_SUPPORTED, place, message).hint(self.keys_of(table))
    }

    /// The value with no more decimals than the column has. Rounding would find other rows, so what it would change is
    /// refused, but for constants of a single statement, which [`Self::sought`] knows to seek by.
    pub(super) fn exact(&self, value: Expr, sql: SqlType) -> Result<Expr> {
        let (Ty::Number(from), Ty::Number(to)) = (value.ty, Ty::of(sql)) else { return Ok(value) };
        match value.kind {
            _ if from <= to => Ok(value),
            ExprKind::Const(constant) if !coerce::has_more(constant, from, to) => coerce::rescale(value, from, to),
            ExprKind::Const(_) if self.lifted.is_some() => Ok(value),
            _ => {
                let message = format!("the value has {from} decimals, and the column, {sql}, has {to}");
                unsupported(value.place, message, format!("CAST(value AS {sql}) rounds it"))
            }
        }
    }

    /// Returns the hint that says which keys a table has, and what a WHERE may say of them.
    fn keys_of(&self, table: usize) -> String {
        let info = self.table(table);
        let columns = |columns: &[usize]| {
            let names: Vec<&str> = columns.iter().map(|&column| info.schema.columns()[column].name.as_str()).collect();
            format!("({})", names.join(", "))
        };
        let keys: Vec<usize> = (0..info.schema.key().len()).collect();
        let indexes = info.indexes.iter();
        let indexes: Vec<_> = indexes.map(|index| format!("{} {}", index.name, columns(&index.columns))).collect();
        let ranges = match (info.schema.is_ordered(), indexes.is_empty()) {
            (true, true) => "or its first columns, a range of the next, and nothing else".to_string(),
            (true, false) => format!(
                "or the first columns of it or of an index, a range of the next, and nothing else: {}",
                indexes.join(", ")
            ),
            (false, true) => "ranges need CREATE TABLE ... WITH (ordered = true) or CREATE INDEX".to_string(),
            (false, false) => format!(
                "or the first columns of an index, a range of the next, and nothing else: {}",
                indexes.join(", ")
            ),
        };
        format!("name all columns of the primary key {}, and any other condition beside it; {ranges}", columns(&keys))
    }
}

/// Whether rows in the order of these key columns are in the order of ORDER BY, some columns being constant.
pub(super) fn in_order(
    info: &crate::catalogue::Table,
    columns: &[usize],
    is_fixed: impl Fn(usize) -> bool,
    order: &[Name],
) -> bool {
    let mut rest = columns.iter().copied().filter(|&column| !is_fixed(column));
    for name in order {
        let Some((column, _)) = info.schema.column(&name.text) else { return false };
        if !is_fixed(column) && rest.next() != Some(column) {
            return false;
        }
    }
    true
}

/// The value, if it is no NULL.
fn known(value: Option<Expr>, place: Place) -> Result<Expr> {
    value.ok_or_else(|| SqlError::new(state::NOT_SUPPORTED, place, "there are no NULLs"))
}
