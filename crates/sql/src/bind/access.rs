//! Which way to the rows of a WHERE: one row by its key, or a range of the primary key or of an index.

use lockwork_procedure::schema::ColumnType;

use super::expression::{compare, wrong};
use super::{Binder, coerce, plain};
use crate::error::{Result, SqlError, state, unsupported};
use crate::syntax::{BinaryOp, Comparison, Expr as Written, ExprKind as W, Name, Place};
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

/// A condition `column op value`.
struct Condition {
    column: usize,
    op: Comparison,
    /// None for NULL, which nothing compares with.
    value: Option<Expr>,
    place: Place,
}

/// A way to rows.
pub(super) enum Path {
    Point(Vec<Expr>),
    Range { index: Option<usize>, prefix: Vec<Expr>, low: Option<Expr>, high: Option<Expr> },
}

impl Binder<'_> {
    /// The rows of a range, at most as many as the limit says. Where that may be negative a statement in `all` tests
    /// it.
    pub(super) fn scan(
        &mut self,
        table: usize,
        path: Path,
        limit: Option<&Written>,
        place: Place,
        all: &mut Vec<Stmt>,
    ) -> Result<Scan> {
        let Some(limit) = limit else {
            let hint = "add LIMIT n: every loop has a constant bound; LIMIT LEAST(variable, n) is possible too";
            return unsupported(place, "a range of rows needs a LIMIT", hint);
        };
        let row = self.row.take();
        let limit = self.integer(limit);
        self.row = row;
        let limit = limit?;
        let (least, bound) = self.range(&limit);
        if bound < 0 {
            return Err(negative_limit(limit.place));
        }
        if bound > MAX_ROWS {
            let hint = format!("use a constant or LEAST(variable, constant), at most {MAX_ROWS}");
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
        let (index, prefix, low, high) = match path {
            Path::Range { index, prefix, low, high } => (index, prefix, low, high),
            Path::Point(key) => {
                if !self.table(table).schema.is_ordered() {
                    let hint = "use SELECT INTO, UPDATE or DELETE without LIMIT for one row";
                    return unsupported(place, "the key names one row", hint);
                }
                (None, key, None, None)
            }
        };
        Ok(Scan { table, index, prefix, low, high, limit, max: (bound as u32).max(1) })
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

    fn conditions(&mut self, source: SourceId, written: &Written, all: &mut Vec<Condition>) -> Result<()> {
        match &written.kind {
            W::Binary(BinaryOp::And, a, b) => {
                self.conditions(source, a, all)?;
                self.conditions(source, b, all)
            }
            W::Between(value, low, high) => {
                for (op, bound) in [(Comparison::Ge, low), (Comparison::Le, high)] {
                    let kind = W::Binary(BinaryOp::Compare(op), value.clone(), bound.clone());
                    self.conditions(source, &Written { kind, place: written.place }, all)?;
                }
                Ok(())
            }
            W::Binary(BinaryOp::Compare(op), a, b) => {
                let mut side = |written: &Written| match written.kind {
                    W::Null if self.lifted.is_some() => Ok(None),
                    _ => self.expression(written).map(Some),
                };
                let (a, b) = (side(a)?, side(b)?);
                let own = |expr: &Option<Expr>| match expr.as_ref()?.kind {
                    ExprKind::Column(of, column) if of == source => Some(column),
                    _ => None,
                };
                let (column, op, value) = match (own(&a), own(&b)) {
                    (Some(column), None) => (column, *op, b),
                    (None, Some(column)) => (column, op.flip(), a),
                    (Some(_), Some(_)) => {
                        let hint = "write :name for the variable where a column has the same name";
                        return unsupported(written.place, "two columns are compared", hint);
                    }
                    (None, None) => {
                        let hint = "test it with IF before the statement";
                        return unsupported(written.place, "the condition names no column", hint);
                    }
                };
                if value.as_ref().is_some_and(|value| mentions(value, source)) {
                    let hint = "one side is a column, the other a value that is known before the row is read";
                    return unsupported(written.place, "the value depends on the row itself", hint);
                }
                all.push(Condition { column, op, value, place: written.place });
                Ok(())
            }
            _ => {
                let hint =
                    "write column = value, column BETWEEN a AND b and such, joined by AND; test the rest with IF";
                unsupported(written.place, "this condition finds no rows by key", hint)
            }
        }
    }

    /// The way to the rows of a WHERE in the order of ORDER BY.
    pub(super) fn path(
        &mut self,
        table: usize,
        source: SourceId,
        filter: Option<&Written>,
        order: &[Name],
        place: Place,
    ) -> Result<Path> {
        let mut conditions = Vec::new();
        if let Some(filter) = filter {
            // The columns of conditions are not read from the row.
            let used = self.routine.sources[source].used.clone();
            let bound = self.conditions(source, filter, &mut conditions);
            self.routine.sources[source].used = used;
            bound?;
        }
        let info = self.table(table);
        for (at, condition) in conditions.iter().enumerate() {
            let twice =
                conditions[..at].iter().any(|other| other.column == condition.column && other.op == condition.op);
            if condition.op == Comparison::Ne || twice {
                let hint = "each column has one =, or one lower and one upper bound; test the rest with IF";
                return unsupported(condition.place, "this condition finds no rows by key", hint);
            }
        }
        let keys: Vec<usize> = (0..info.schema.key().len()).collect();
        let equal = |column: usize| conditions.iter().any(|c| c.column == column && c.op == Comparison::Eq);
        let ways = std::iter::once((None, keys.clone()))
            .chain(info.indexes.iter().enumerate().map(|(number, index)| (Some(number), index.columns.clone())));
        let mut best: Option<(usize, Option<usize>, Vec<usize>, usize)> = None;
        for (index, columns) in ways {
            let prefix = columns.iter().take_while(|&&column| equal(column)).count();
            let next = columns.get(prefix);
            let consumed = |c: &Condition| {
                columns[..prefix].contains(&c.column) && c.op == Comparison::Eq
                    || Some(&c.column) == next && c.op != Comparison::Eq
            };
            let point = index.is_none() && prefix == keys.len();
            let possible = point || index.is_some() || info.schema.is_ordered();
            if !possible || !conditions.iter().all(consumed) || !in_order(info, &columns, prefix, order) {
                continue;
            }
            if best.as_ref().is_none_or(|(longest, ..)| prefix > *longest) {
                best = Some((prefix, index, columns, prefix));
            }
        }
        let Some((_, index, columns, prefix)) = best else { return Err(self.no_way(table, order, place)) };
        let mut values = Vec::new();
        for &column in &columns[..prefix] {
            let at = conditions.iter().position(|c| c.column == column && c.op == Comparison::Eq);
            let Some(condition) = at.map(|at| conditions.swap_remove(at)) else { continue };
            let sql = info.types[column];
            let value = condition.value.map(|value| exact(value, sql)).transpose()?;
            values.push(match self.sought(value.as_ref(), Comparison::Eq, sql, condition.place)? {
                Some(value) => value,
                None => self.coerce(known(value, condition.place)?, sql)?,
            });
        }
        if index.is_none() && prefix == keys.len() && order.is_empty() {
            return Ok(Path::Point(values));
        }
        let (mut low, mut high) = (None, None);
        let mut nothing = None;
        for condition in conditions {
            let (sql, place) = (info.types[condition.column], condition.place);
            let bound = self.bound(condition, sql)?;
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

    /// Whether it is a lower bound, and the bound, included; `None` if no value of the type lies behind it.
    fn bound(&mut self, condition: Condition, sql: SqlType) -> Result<Option<(bool, Expr)>> {
        let Condition { op, value, place, .. } = condition;
        if sql.is_string() {
            return unsupported(place, "ranges of texts are not supported", "use a column of numbers as key");
        }
        let value = value.map(|value| exact(value, sql)).transpose()?;
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

    fn no_way(&self, table: usize, order: &[Name], place: Place) -> SqlError {
        let info = self.table(table);
        let columns = |columns: &[usize]| {
            let names: Vec<&str> = columns.iter().map(|&column| info.schema.columns()[column].name.as_str()).collect();
            format!("({})", names.join(", "))
        };
        let keys: Vec<usize> = (0..info.schema.key().len()).collect();
        let mut ways = vec![format!("the primary key {}", columns(&keys))];
        ways.extend(info.indexes.iter().map(|index| format!("index {} {}", index.name, columns(&index.columns))));
        let name = info.schema.name();
        let ordered = if info.schema.is_ordered() {
            ""
        } else {
            "; the table is not ordered, so its key finds single rows only: CREATE TABLE ... WITH (ordered = true)"
        };
        let what = if order.is_empty() { "WHERE" } else { "WHERE and ORDER BY" };
        let message = format!("no key of table '{name}' finds the rows of this {what}");
        SqlError::new(state::NOT_SUPPORTED, place, message).hint(format!(
            "name all columns of a key, or the first ones and a range of the next, and nothing else: {}{ordered}; or CREATE \
             INDEX",
            ways.join(", ")
        ))
    }
}

/// Whether rows in the order of these key columns are in the order of ORDER BY, the first `prefix` being constant.
fn in_order(info: &crate::catalogue::Table, columns: &[usize], prefix: usize, order: &[Name]) -> bool {
    let mut rest = columns[prefix..].iter().copied().peekable();
    for name in order {
        let Some((column, _)) = info.schema.column(&name.text) else { return false };
        if columns[..prefix].contains(&column) {
            continue;
        }
        if rest.next() != Some(column) {
            return false;
        }
    }
    true
}

/// The value, if it is no NULL.
fn known(value: Option<Expr>, place: Place) -> Result<Expr> {
    value.ok_or_else(|| SqlError::new(state::NOT_SUPPORTED, place, "there are no NULLs"))
}

/// The value with no more decimals than the column has. Rounding would find other rows, so what it would change is
/// refused.
fn exact(value: Expr, sql: SqlType) -> Result<Expr> {
    let (Ty::Number(from), Ty::Number(to)) = (value.ty, Ty::of(sql)) else { return Ok(value) };
    if from <= to {
        return Ok(value);
    }
    match value.kind {
        ExprKind::Const(constant) if constant % crate::types::power_of_ten((from - to).min(18)) == 0 => {
            coerce::rescale(value, from, to)
        }
        _ => {
            let message = format!("the value has {from} decimals, and the column, {sql}, has {to}");
            let hint = format!("CAST(value AS {sql}) rounds it; or declare the variable as {sql}");
            unsupported(value.place, message, hint)
        }
    }
}

/// Whether an expression reads a column of a source.
fn mentions(expr: &Expr, source: SourceId) -> bool {
    let any = |parts: &[&Expr]| parts.iter().any(|part| mentions(part, source));
    match &expr.kind {
        ExprKind::Column(of, _) | ExprKind::Span(of, _) => *of == source,
        ExprKind::Choose { operand, source: of, .. } => *of == source || mentions(operand, source),
        ExprKind::Arithmetic(_, a, b) | ExprKind::Round(a, b) | ExprKind::Compare(_, a, b) => any(&[a, b]),
        ExprKind::And(a, b) | ExprKind::Or(a, b) | ExprKind::Least(a, b) | ExprKind::Greatest(a, b) => any(&[a, b]),
        ExprKind::Not(a) | ExprKind::Fit(a, ..) | ExprKind::Piece(a, _) | ExprKind::Element(_, a) => any(&[a]),
        ExprKind::Concat(parts) => parts.iter().any(|part| mentions(part, source)),
        ExprKind::Case(arms, otherwise) => {
            arms.iter().any(|(a, b)| any(&[a, b])) || otherwise.as_ref().is_some_and(|other| mentions(other, source))
        }
        ExprKind::Const(_) | ExprKind::String(_) | ExprKind::Text(_) | ExprKind::Var(_) | ExprKind::Whole(_) => false,
        ExprKind::Found => false,
    }
}
