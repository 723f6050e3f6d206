//! Rows by their whole primary key: one, or one for each of a list of keys, that further conditions may hold of.

use super::access::{MAX_ROWS, Path, in_order};
use super::coerce::{has_more, meant, number, sought_constant};
use super::expression::compare;
use super::terms::{Condition, Elements, Term};
use super::{Binder, Lifted, plain};
use crate::error::{Result, SqlError, state};
use crate::single::Purpose;
use crate::syntax::{Comparison, Expr as Written, ExprKind as W, Name, Place};
use crate::tree::{Access, Arithmetic, Expr, ExprKind, Role, SourceId, Stmt, StmtKind, Target, Ty, VarId};
use crate::types::SqlType;

/// The most rows that lists of keys find together.
const MAX_LISTED: u64 = MAX_ROWS as u64;

/// A list of values of a column of the key: an array, which a loop goes through.
pub(super) struct List {
    /// The number of the element that the loop is at, from 1 on.
    counter: VarId,
    /// How many elements there are, and can be.
    length: Expr,
    capacity: u32,
}

/// The rows of a whole key.
pub(super) struct Point {
    /// The values of the columns of the key; of a list, the element that its loop is at.
    pub(super) key: Vec<Expr>,
    pub(super) lists: Vec<List>,
    /// What else has to hold of a row.
    pub(super) rest: Option<Expr>,
}

/// Terms of a WHERE, and which of them say what the columns of the key are.
type Whole<'w> = (Vec<Term<'w>>, Vec<usize>);

impl Binder<'_> {
    /// Returns for each column of the primary key which term says what it is; `None` unless all columns have one.
    pub(super) fn whole_key(&self, table: usize, terms: &[Term<'_>]) -> Option<Vec<usize>> {
        let pinned = |column: usize| {
            let equal = |term: &Term<'_>| term.pins() == Some(column) && matches!(term, Term::Condition(_));
            terms.iter().position(equal).or_else(|| terms.iter().position(|term| term.pins() == Some(column)))
        };
        (0..self.table(table).schema.key().len()).map(pinned).collect()
    }

    /// Returns how many rows a WHERE finds at most, if it names the whole key.
    ///
    /// # Errors
    /// Lists of keys that name too many together.
    pub(super) fn rows_by_key(&self, table: usize, filter: Option<&Written>, place: Place) -> Result<Option<u32>> {
        let terms = self.terms(table, filter);
        let Some(whole) = self.whole_key(table, &terms) else { return Ok(None) };
        let capacities = whole.iter().map(|&at| match &terms[at] {
            Term::Listed(listed) => u64::from(self.capacity_of(&listed.elements)),
            _ => 1,
        });
        let rows = capacities.fold(1, u64::saturating_mul);
        match u32::try_from(rows) {
            Ok(rows) if u64::from(rows) <= MAX_LISTED => Ok(Some(rows)),
            _ => {
                let message = format!("the lists of this WHERE name more than {MAX_LISTED} keys together");
                let error = SqlError::new(state::TOO_COMPLEX, place, message);
                Err(error.hint("ask for fewer keys in a statement"))
            }
        }
    }

    /// Elements that there is room for: one procedure serves lists of about one length.
    fn capacity_of(&self, elements: &Elements<'_>) -> u32 {
        match elements {
            Elements::Written(values) => (values.len() as u32).max(1).next_power_of_two(),
            Elements::Parameter(_) => self.capacity,
        }
    }

    /// Binds a WHERE that names the whole key.
    pub(super) fn point(
        &mut self,
        table: usize,
        source: SourceId,
        (terms, whole): Whole<'_>,
        order: &[Name],
        place: Place,
    ) -> Result<Point> {
        let info = self.table(table);
        let is_one = whole.iter().all(|&at| matches!(terms[at], Term::Condition(_)));
        let is_fixed = |column: usize| match whole.get(column) {
            Some(&at) => matches!(terms[at], Term::Condition(_)),
            None => false,
        };
        let keys: Vec<usize> = (0..whole.len()).collect();
        if is_one {
            for name in order {
                self.named(table, name)?;
            }
        } else if !in_order(info, &keys, is_fixed, order) {
            return Err(self.no_way(table, order, place));
        }
        let (mut key, mut lists) = (Vec::new(), Vec::new());
        let mut terms: Vec<Option<Term<'_>>> = terms.into_iter().map(Some).collect();
        for (column, at) in whole.into_iter().enumerate() {
            let sql = info.types[column];
            match terms[at].take() {
                Some(Term::Condition(condition)) => key.push(self.equal_to(&condition, sql)?),
                Some(Term::Listed(listed)) => {
                    let (element, list) = self.list(&listed.elements, sql, place)?;
                    key.push(element);
                    lists.push(list);
                }
                _ => return Err(self.no_way(table, order, place)),
            }
        }
        let mut rest: Option<Expr> = None;
        self.as_query = self.lifted.is_some();
        for term in terms.into_iter().flatten() {
            let condition = match term {
                Term::Condition(condition) if self.is_sought(&condition, info.types[condition.column]) => {
                    self.sought_condition(source, &condition, info.types[condition.column])?
                }
                term => self.truth_of(&term.written(), true)?,
            };
            rest = Some(match rest {
                None => condition,
                Some(before) => {
                    let (place, parts) = (before.place, before.size + condition.size);
                    super::expression::truth(ExprKind::And(Box::new(before), Box::new(condition)), place, parts)?
                }
            });
        }
        self.as_query = false;
        debug_assert!(self.row.as_ref().is_some_and(|(row, _)| *row == source), "conditions read this row");
        Ok(Point { key, lists, rest })
    }

    /// Whether a condition compares a column with a parameter so that values which the column cannot have are compared
    /// before the statement runs.
    fn is_sought(&self, condition: &Condition<'_>, sql: SqlType) -> bool {
        let is_parameter = matches!(condition.value.kind, W::Placeholder(_) | W::TextPlaceholder(_));
        let is_ordered = !sql.is_string() && sql != SqlType::Boolean;
        let is_possible = match condition.op {
            Comparison::Eq => true,
            Comparison::Ne => false,
            _ => is_ordered,
        };
        is_parameter && is_possible && self.lifted.is_some()
    }

    /// Binds such a condition.
    fn sought_condition(&mut self, source: SourceId, condition: &Condition<'_>, sql: SqlType) -> Result<Expr> {
        let (op, value) = match condition.op {
            Comparison::Eq => (Comparison::Eq, self.equal_to(condition, sql)?),
            _ => match self.bound(condition, sql)? {
                Some((true, value)) => (Comparison::Ge, value),
                Some((false, value)) => (Comparison::Le, value),
                None => return Ok(Expr { ty: Ty::Boolean, ..number(0, 0, condition.place) }),
            },
        };
        let column = self.column(source, condition.column, condition.place);
        compare(op, column, value)
    }

    /// Adds a list of keys to the arguments. Returns the element that its loop is at, and the list.
    fn list(&mut self, elements: &Elements<'_>, sql: SqlType, place: Place) -> Result<(Expr, List)> {
        let capacity = self.capacity_of(elements);
        let lifted = match elements {
            Elements::Parameter(number) => Lifted::Placeholder(*number),
            Elements::Written(values) => {
                Lifted::List(values.iter().map(|value| self.element(value, sql)).collect::<Result<_>>()?)
            }
        };
        let array = self.argue(lifted, Purpose::Sought(Comparison::Eq), sql, place);
        let (ExprKind::Var(array) | ExprKind::Whole(array)) = array.kind else { return Err(self.no_list(place)) };
        self.routine.variables[array].count = Some(capacity);
        let length = self.argue(Lifted::Length, Purpose::Any, SqlType::BIGINT, place);
        let counter = self.fresh("element", SqlType::BIGINT, Role::Local);
        let number = Expr { kind: ExprKind::Var(counter), ty: Ty::Number(0), place, size: 1 };
        let element = ExprKind::Element(array, Box::new(number));
        Ok((Expr { kind: element, ty: Ty::of(sql), place, size: 2 }, List { counter, length, capacity }))
    }

    fn no_list(&self, place: Place) -> SqlError {
        SqlError::new(state::INTERNAL, place, "a list of keys is no argument").hint("this is a bug of the compiler")
    }

    /// Returns an element of a list of values of a column.
    fn element(&mut self, written: &Written, sql: SqlType) -> Result<Lifted> {
        match &written.kind {
            W::Placeholder(number) | W::TextPlaceholder(number) => Ok(Lifted::Placeholder(*number)),
            W::Null => Ok(Lifted::Null),
            W::Call(..) if sql == SqlType::Timestamp => Ok(Lifted::Now),
            _ => {
                // It is a part of the list, and no argument of its own.
                let lifted = self.lifted.take();
                let constant = self.expression(written).and_then(|value| {
                    let value = meant(value, sql, false)?;
                    if let (ExprKind::Const(number), Ty::Number(from), Ty::Number(to)) =
                        (&value.kind, value.ty, Ty::of(sql))
                        && has_more(*number, from, to)
                    {
                        // No row has this value.
                        return Ok(Lifted::Null);
                    }
                    let value = self.exact(value, sql)?;
                    match sought_constant(&value, sql) {
                        Some(constant) => Ok(constant),
                        None => self.constant_from(value, sql),
                    }
                    .map(Lifted::Constant)
                });
                self.lifted = lifted;
                constant
            }
        }
    }

    /// Wraps statements into the loops over the lists of a key. Where `stop` holds before a key, it ends them.
    pub(super) fn for_each_key(
        &self,
        lists: Vec<List>,
        stop: Option<Expr>,
        body: Vec<Stmt>,
        place: Place,
    ) -> Vec<Stmt> {
        let mut body = body;
        if let Some(stop) = stop {
            body = match lists.len().checked_sub(1) {
                Some(up) => {
                    let leave = vec![plain(StmtKind::Leave { again: false, up }, place)];
                    let test = plain(StmtKind::If(stop, leave, Vec::new()), place);
                    std::iter::once(test).chain(body).collect()
                }
                None => vec![plain(StmtKind::If(stop, Vec::new(), body), place)],
            };
        }
        for List { counter, length, capacity } in lists.into_iter().rev() {
            let from = number(1, 0, place);
            let (lo, hi) = (1, i64::from(capacity));
            body = vec![plain(StmtKind::ForCount { var: counter, from, to: length, lo, hi, step: 1, body }, place)];
        }
        body
    }

    /// Returns a statement that looks a row up, and one that does `body` if it is there and satisfies `rest`.
    pub(super) fn if_row(
        &self,
        (table, source): (usize, SourceId),
        key: Vec<Expr>,
        rest: Option<Expr>,
        write: bool,
        body: Vec<Stmt>,
        place: Place,
    ) -> Vec<Stmt> {
        let body = match rest {
            Some(rest) => vec![plain(StmtKind::If(rest, body, Vec::new()), place)],
            None => body,
        };
        let fetch = StmtKind::Fetch { table, access: Access::Point(key), source, write, sets: Vec::new() };
        let found = Expr { kind: ExprKind::Found, ty: Ty::Boolean, place, size: 1 };
        vec![Stmt { kind: fetch, place, observed: true }, plain(StmtKind::If(found, body, Vec::new()), place)]
    }

    /// Appends statements that do `body` for each row of a way, at most as many as LIMIT says: a SELECT of them, whose
    /// body writes nothing. The row of a key needs no LIMIT.
    pub(super) fn each_row(
        &mut self,
        (table, source): (usize, SourceId),
        path: Path,
        limit: Option<&Written>,
        body: Vec<Stmt>,
        place: Place,
        all: &mut Vec<Stmt>,
    ) -> Result<()> {
        let Path::Point(Point { key, lists, rest }) = path else {
            let scan = self.scan(table, path, limit, place, all)?;
            all.push(plain(StmtKind::ForRows { scan, source, body }, place));
            return Ok(());
        };
        let (mut body, mut stop) = (body, None);
        if let Some(limit) = limit {
            let (limit, _) = self.limit(limit, all)?;
            let (taken, one_more) = self.counter("taken", place, all);
            stop = Some(compare(Comparison::Ge, taken, limit)?);
            body.push(one_more);
        }
        let body = self.if_row((table, source), key, rest, false, body, place);
        all.extend(self.for_each_key(lists, stop, body, place));
        Ok(())
    }

    /// Appends an UPDATE or DELETE of the row of a key in a procedure that does not ask whether there was one: where
    /// there is none, or it does not satisfy the conditions, the procedure aborts.
    pub(super) fn change_or_abort(
        &mut self,
        (table, source): (usize, SourceId),
        Point { key, rest, .. }: Point,
        kind: &dyn Fn(Access) -> StmtKind,
        place: Place,
        all: &mut Vec<Stmt>,
    ) -> Result<()> {
        let access = Access::Point(key.clone());
        all.push(plain(StmtKind::Fetch { table, access, source, write: true, sets: Vec::new() }, place));
        if let Some(rest) = rest {
            let size = rest.size + 1;
            let fails = Expr { kind: ExprKind::Not(Box::new(rest)), ty: Ty::Boolean, place, size };
            let code = self.abort("P0002", "no row was found", place)?;
            all.push(plain(StmtKind::If(fails, vec![plain(StmtKind::Raise(code), place)], Vec::new()), place));
        }
        all.push(plain(kind(Access::Point(key)), place));
        Ok(())
    }

    /// Returns statements that UPDATE or DELETE the rows of keys, at most as many as LIMIT says, and do `done` for
    /// each.
    pub(super) fn change_each(
        &mut self,
        (table, source): (usize, SourceId),
        (point, limit): (Point, Option<(Expr, u32)>),
        kind: &dyn Fn(Access) -> StmtKind,
        done: Vec<Stmt>,
        place: Place,
    ) -> Result<Vec<Stmt>> {
        let Point { key, lists, rest } = point;
        let write = kind(Access::Point(key.clone()));
        let changed = match rest {
            None => {
                let found = Expr { kind: ExprKind::Found, ty: Ty::Boolean, place, size: 1 };
                let counted = plain(StmtKind::If(found, done, Vec::new()), place);
                vec![Stmt { kind: write, place, observed: true }, counted]
            }
            rest => {
                let body = std::iter::once(plain(write, place)).chain(done).collect();
                self.if_row((table, source), key, rest, true, body, place)
            }
        };
        // Without a list there is one row, and none before it.
        let taken = match self.rows {
            Some(rows) => Expr { kind: ExprKind::Var(rows), ty: Ty::Number(0), place, size: 1 },
            None => number(0, 0, place),
        };
        let stop = limit.map(|(limit, _)| compare(Comparison::Ge, taken, limit)).transpose()?;
        Ok(self.for_each_key(lists, stop, changed, place))
    }

    /// Appends a statement that makes a new variable zero. Returns the variable, and a statement that adds one to it.
    pub(super) fn counter(&mut self, name: &str, place: Place, all: &mut Vec<Stmt>) -> (Expr, Stmt) {
        let var = self.fresh(name, SqlType::BIGINT, Role::Local);
        all.push(plain(StmtKind::Assign(Target::Var(var), number(0, 0, place)), place));
        (Expr { kind: ExprKind::Var(var), ty: Ty::Number(0), place, size: 1 }, one_more(var, place))
    }
}

/// A statement that adds one to a variable.
pub(super) fn one_more(var: VarId, place: Place) -> Stmt {
    let before = Expr { kind: ExprKind::Var(var), ty: Ty::Number(0), place, size: 1 };
    let kind = ExprKind::Arithmetic(Arithmetic::Add, Box::new(before), Box::new(number(1, 0, place)));
    plain(StmtKind::Assign(Target::Var(var), Expr { kind, ty: Ty::Number(0), place, size: 3 }), place)
}
