//! Statements on tables: SELECT INTO, aggregates, INSERT, UPDATE and DELETE.

use lockwork_procedure::partitioning::Partitioning;

use super::access::Path;
use super::coerce::number;
use super::expression::compare;
use super::flow::flag;
use super::point::{Point, one_more};
use super::{Binder, plain, string};
use crate::catalogue::Constant;
use crate::error::{Result, SqlError, state, unsupported, unsupported_in};
use crate::single::{Inserted, Purpose};
use crate::syntax::{self, Comparison, Expr as Written, ExprKind as W, From, Item, Name, Place, Select};
use crate::tree::{Access, Arithmetic, Expr, ExprKind, Role, SourceId, Stmt, StmtKind, Target, Ty, VarType};
use crate::types::SqlType;

/// The rows of UPDATE and DELETE: WHERE, ORDER BY, LIMIT.
type Which<'a> = (Option<&'a Written>, &'a [Name], Option<&'a Written>);

fn is_aggregate(item: &Item) -> bool {
    match item {
        Item::Expr(Written { kind: W::CountAll, .. }, _) => true,
        Item::Expr(Written { kind: W::Call(name, _), .. }, _) => {
            matches!(name.text.as_str(), "count" | "sum" | "min" | "max" | "avg")
        }
        _ => false,
    }
}

impl Binder<'_> {
    /// The table of a SELECT, and the name that it has there.
    pub(super) fn from(&self, select: &Select) -> Result<(usize, String)> {
        match &select.from {
            From::Table(name, alias) => {
                let table = self.catalogue.resolve(&name.text, name.place)?;
                Ok((table, alias.as_ref().unwrap_or(name).text.clone()))
            }
            From::Select(..) => {
                let hint = "only aggregates read an inner SELECT: SELECT SUM(x) INTO v FROM (SELECT x FROM t ... LIMIT n) AS q";
                let alone =
                    "'lockwork serve' answers such a SELECT: docs/operations.md, 'Looking at tables', has what it can";
                unsupported_in(select.place, "a SELECT from a SELECT is not supported here", (hint, alone))
            }
        }
    }

    pub(super) fn select(&mut self, select: &Select, observed: bool, all: &mut Vec<Stmt>) -> Result<()> {
        let place = select.place;
        if select.into.is_empty() {
            let hint = "write SELECT ... INTO variable FROM ...; a procedure answers in its OUT parameters";
            return unsupported(place, "this SELECT goes nowhere", hint);
        }
        if select.items.iter().any(is_aggregate) {
            return self.aggregate(select, observed, all);
        }
        let (table, alias) = self.from(select)?;
        if let [Item::All(_)] = select.items[..]
            && let [syntax::Target { name, field: None, index: None }] = &select.into[..]
            && let Ok(var) = self.variable(name)
            && let VarType::Rows { table: of, .. } = self.routine.variables[var].var_type
        {
            return self.fill(select, (table, of, var), observed, all);
        }
        if let Some(limit) = &select.limit
            && !matches!(&limit.kind, W::Number(digits) if digits == "1")
        {
            let hint = "write LIMIT 1 or none; FOR r IN SELECT ... LIMIT n LOOP goes through several rows";
            return unsupported(limit.place, "SELECT INTO takes one row, the first", hint);
        }
        let source = self.source(table);
        self.row = Some((source, alias));
        let path = self.path(table, source, select.filter.as_ref(), &select.order, place)?;
        let mut values = Vec::new();
        for item in &select.items {
            match item {
                Item::All(at) => {
                    for column in self.table(table).declared.clone() {
                        values.push(self.column(source, column, *at));
                    }
                }
                Item::Expr(written, _) => values.push(self.expression(written)?),
            }
        }
        self.row = None;
        let into = self.columns_of_targets(&select.into);
        if values.len() != into.len() {
            let message = format!("{} columns are selected into {} variables", values.len(), into.len());
            return Err(SqlError::new(state::SYNTAX, place, message));
        }
        let mut sets = Vec::new();
        for (value, target) in values.into_iter().zip(&into) {
            let at = target.name.place;
            let target = self.target(target)?;
            let value = self.fit_target(value, &target, at)?;
            sets.push((target, value));
        }
        let write = select.for_update && !self.is_read_only(table);
        let fetch = |access, sets| StmtKind::Fetch { table, access, source, write, sets };
        let path = match path {
            Path::Point(Point { key, lists, rest: None }) if lists.is_empty() => {
                all.push(Stmt { kind: fetch(Access::Point(key), sets), place, observed });
                return Ok(());
            }
            path => path,
        };
        let any = self.fresh("any", SqlType::Boolean, Role::Local);
        let set = |value| plain(StmtKind::Assign(Target::Var(any), flag(value, place)), place);
        all.push(set(false));
        match path {
            Path::Point(Point { key, lists, rest }) => {
                let body = vec![set(true), plain(StmtKind::AssignAll(sets), place)];
                let row = self.if_row((table, source), key, rest, write, body, place);
                all.extend(self.for_each_key(lists, None, row, place));
            }
            range @ Path::Range { .. } => {
                // The first row of the range. A single statement answers all rows, so it says how many.
                let one = Written { kind: W::Number("1".into()), place };
                let scan = self.scan(table, range, Some(&one).filter(|_| self.lifted.is_none()), place, all)?;
                let kind = if write { fetch(Access::Current(source), sets) } else { StmtKind::AssignAll(sets) };
                let body = vec![set(true), plain(kind, place)];
                all.push(plain(StmtKind::ForRows { scan, source, body }, place));
            }
        }
        self.after_rows(any, observed, place, all)
    }

    /// What a statement over a range does when there was no row: FOUND is false, or the procedure aborts.
    fn after_rows(&mut self, any: usize, observed: bool, place: Place, all: &mut Vec<Stmt>) -> Result<()> {
        let found = Expr { kind: ExprKind::Var(any), ty: Ty::Boolean, place, size: 1 };
        if observed {
            all.push(plain(StmtKind::SetFound(found), place));
            return Ok(());
        }
        let code = self.abort("P0002", "no row was found", place)?;
        let none = Expr { kind: ExprKind::Not(Box::new(found)), ty: Ty::Boolean, place, size: 2 };
        all.push(plain(StmtKind::If(none, vec![plain(StmtKind::Raise(code), place)], Vec::new()), place));
        Ok(())
    }

    /// Whole rows into a variable of rows.
    fn fill(
        &mut self,
        select: &Select,
        (table, of, var): (usize, usize, usize),
        observed: bool,
        all: &mut Vec<Stmt>,
    ) -> Result<()> {
        let place = select.place;
        let variable = &self.routine.variables[var];
        let (count, name) = (variable.count.unwrap_or(1), variable.name.clone());
        if table != of {
            let message = format!("'{name}' holds rows of table '{}'", self.table(of).schema.name());
            return Err(SqlError::new(state::DATATYPE, place, message));
        }
        if variable.role == Role::In || observed {
            return unsupported(
                place,
                "rows go into a variable or OUT parameter, and set no FOUND",
                "count them with COUNT(*)",
            );
        }
        let source = self.source(table);
        self.row = Some((source, self.table(table).schema.name().to_string()));
        let path = self.path(table, source, select.filter.as_ref(), &select.order, place)?;
        let scan = self.scan(table, path, select.limit.as_ref(), place, all)?;
        self.row = None;
        if scan.index.is_some() || scan.low.is_some() || scan.high.is_some() {
            let hint = "use FOR r IN SELECT ... LOOP";
            return unsupported(place, "whole rows are selected by leading columns of the primary key", hint);
        }
        if scan.max > count {
            let message = format!("up to {} rows do not fit the {count} of '{name}'", scan.max);
            return Err(SqlError::new(state::OUT_OF_RANGE, place, message));
        }
        all.push(plain(StmtKind::Fill { scan, var }, place));
        Ok(())
    }

    fn aggregate(&mut self, select: &Select, observed: bool, all: &mut Vec<Stmt>) -> Result<()> {
        let place = select.place;
        let (inner, outer_alias) = match &select.from {
            From::Select(inner, alias) => {
                if select.filter.is_some() || select.limit.is_some() || !select.order.is_empty() {
                    let hint = "put WHERE, ORDER BY and LIMIT into the inner SELECT";
                    return unsupported(place, "these clauses belong to the inner SELECT", hint);
                }
                (inner.as_ref(), alias.clone())
            }
            From::Table(..) => (select, None),
        };
        let (table, alias) = self.from(inner)?;
        let source = self.source(table);
        self.row = Some((source, outer_alias.map_or(alias, |alias| alias.text)));
        let path = self.path(table, source, inner.filter.as_ref(), &inner.order, place)?;
        let limit = match (&inner.limit, &path) {
            (Some(limit), _) if !std::ptr::eq(inner, select) => Some(limit.clone()),
            (Some(limit), _) => {
                let hint = "SELECT SUM(x) INTO v FROM (SELECT x FROM t WHERE ... LIMIT n) AS q";
                return unsupported(limit.place, "this LIMIT would be one of the sums, not of the rows", hint);
            }
            (None, path) => self.width(table, path).map(|width| Written { kind: W::Number(width.to_string()), place }),
        };
        if select.items.len() != select.into.len() {
            let message = format!("{} values are selected into {} variables", select.items.len(), select.into.len());
            return Err(SqlError::new(state::SYNTAX, place, message));
        }
        let rows = self.fresh("rows", SqlType::BIGINT, Role::Local);
        let variable = |var: usize, ty: Ty| Expr { kind: ExprKind::Var(var), ty, place, size: 1 };
        let set = |var: usize, value: Expr| plain(StmtKind::Assign(Target::Var(var), value), place);
        let mut body = Vec::new();
        let (mut results, mut needs_row) = (Vec::new(), false);
        all.push(set(rows, number(0, 0, place)));
        for item in &select.items {
            let Item::Expr(written, _) = item else {
                return unsupported(place, "aggregates stand alone in a select list", "use a SELECT of its own");
            };
            let (name, argument) = match &written.kind {
                W::CountAll => ("count", None),
                W::Call(name, arguments) if arguments.len() == 1 => (name.text.as_str(), Some(&arguments[0])),
                _ => {
                    return unsupported(
                        written.place,
                        "aggregates stand alone in a select list",
                        "use a SELECT of its own",
                    );
                }
            };
            if name == "count" {
                argument.map(|argument| self.expression(argument)).transpose()?;
                results.push(variable(rows, Ty::Number(0)));
                continue;
            }
            let (Some(argument), "sum" | "min" | "max") = (argument, name) else {
                let hint = "divide SUM by COUNT";
                return unsupported(written.place, format!("{} is not supported", name.to_uppercase()), hint);
            };
            let value = self.expression(argument)?;
            let ty = value.ty;
            if matches!(ty, Ty::String(_) | Ty::Boolean) || (name == "sum" && ty == Ty::Timestamp) {
                return super::expression::wrong(ty, "a number", value.place);
            }
            let total = self.fresh(name, SqlType::BIGINT, Role::Local);
            all.push(set(total, number(0, 0, place)));
            if name == "sum" {
                let parts = value.size + 1;
                let kind = ExprKind::Arithmetic(Arithmetic::Add, Box::new(variable(total, ty)), Box::new(value));
                body.push(set(total, super::coerce::node(kind, ty, place, parts)?));
            } else {
                needs_row = true;
                let op = if name == "min" { Comparison::Lt } else { Comparison::Gt };
                let better = compare(op, value.clone(), variable(total, ty))?;
                let first = compare(Comparison::Eq, variable(rows, Ty::Number(0)), number(0, 0, place))?;
                let parts = better.size + first.size;
                let either = super::expression::truth(ExprKind::Or(Box::new(first), Box::new(better)), place, parts)?;
                body.push(plain(StmtKind::If(either, vec![set(total, value)], Vec::new()), place));
            }
            results.push(variable(total, ty));
        }
        self.row = None;
        body.push(one_more(rows, place));
        self.each_row((table, source), path, limit.as_ref(), body, place, all)?;
        let some = compare(Comparison::Gt, variable(rows, Ty::Number(0)), number(0, 0, place))?;
        let mut sets = Vec::new();
        for (result, target) in results.into_iter().zip(&select.into) {
            let at = target.name.place;
            let target = self.target(target)?;
            let value = self.fit_target(result, &target, at)?;
            sets.push(plain(StmtKind::Assign(target, value), place));
        }
        if needs_row {
            let none = if observed {
                Vec::new()
            } else {
                vec![plain(StmtKind::Raise(self.abort("P0002", "no row was found", place)?), place)]
            };
            all.push(plain(StmtKind::If(some.clone(), sets, none), place));
            if observed {
                all.push(plain(StmtKind::SetFound(some), place));
            }
        } else {
            all.append(&mut sets);
            if observed {
                all.push(plain(StmtKind::SetFound(flag(true, place)), place));
            }
        }
        Ok(())
    }

    /// How many rows a range of the last key column between two constants can have at most.
    fn width(&self, table: usize, path: &Path) -> Option<i64> {
        let Path::Range { index: None, prefix, low: Some(low), high: Some(high) } = path else { return None };
        let (ExprKind::Const(low), ExprKind::Const(high)) = (&low.kind, &high.kind) else { return None };
        let last = prefix.len() + 1 == self.table(table).schema.key().len();
        high.checked_sub(*low).and_then(|width| width.checked_add(1)).filter(|_| last).map(|width| width.max(0))
    }

    pub(super) fn is_read_only(&self, table: usize) -> bool {
        self.table(table).schema.partitioning() == Some(Partitioning::Replicated)
    }

    fn check_writable(&self, name: &Name, table: usize) -> Result<()> {
        let info = self.table(table);
        let (message, hint) = if let Some(base) = &info.index_of {
            (format!("'{}' is an index of table '{base}'", name.text), "write the table; its indexes follow")
        } else if self.is_read_only(table) {
            (
                format!("table '{}' is replicated, so it is not written", name.text),
                "make it without REPLICATED to write it",
            )
        } else {
            return Ok(());
        };
        Err(SqlError::new(state::READ_ONLY, name.place, message).hint(hint))
    }

    pub(super) fn named(&self, table: usize, name: &Name) -> Result<usize> {
        let schema = &self.table(table).schema;
        schema.column(&name.text).map(|(column, _)| column).ok_or_else(|| {
            let known: Vec<&str> = schema.columns().iter().map(|column| column.name.as_str()).collect();
            let message = format!("table '{}' has no column '{}'", schema.name(), name.text);
            SqlError::new(state::UNDEFINED_COLUMN, name.place, message).hint(format!("it has: {}", known.join(", ")))
        })
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn insert(
        &mut self,
        name: &Name,
        columns: Option<&[Name]>,
        rows: &[Vec<Written>],
        ignore: bool,
        observed: bool,
        place: Place,
        all: &mut Vec<Stmt>,
    ) -> Result<()> {
        let table = self.catalogue.resolve(&name.text, name.place)?;
        self.check_writable(name, table)?;
        let info = self.table(table);
        let order: Vec<usize> = match columns {
            None => info.declared.clone(),
            Some(names) => names.iter().map(|name| self.named(table, name)).collect::<Result<_>>()?,
        };
        if ignore && rows.len() > 1 {
            return unsupported(place, "ON CONFLICT DO NOTHING inserts one row", "write one INSERT a row");
        }
        if observed && !ignore {
            let hint = "add ON CONFLICT DO NOTHING; without it a key that exists aborts";
            return unsupported(place, "INSERT sets no FOUND", hint);
        }
        for row in rows {
            // Without a list of columns the last ones may have no value, and get their defaults.
            if row.len() > order.len() || columns.is_some() && row.len() < order.len() {
                let message = format!("{} values are given for {} columns", row.len(), order.len());
                return Err(SqlError::new(state::SYNTAX, place, message));
            }
            let mut values: Vec<Option<Expr>> = vec![None; info.types.len()];
            for (written, &column) in row.iter().zip(&order) {
                let value = self.value_of(written, table, column)?;
                if values[column].replace(value).is_some() {
                    let message = format!("column '{}' is named twice", info.schema.columns()[column].name);
                    return Err(SqlError::new(state::DUPLICATE_COLUMN, place, message));
                }
            }
            let mut complete = Vec::new();
            for (column, value) in values.into_iter().enumerate() {
                complete.push(match value {
                    Some(value) => value,
                    None => self.default_of(table, column, place)?,
                });
            }
            if self.lifted.is_some() {
                let row = &complete[..if rows.len() == 1 { info.schema.key().len() } else { 0 }];
                self.inserted = Some(Inserted::new(&info.schema, row.iter().map(|value| self.number_of(value))));
            }
            all.push(Stmt { kind: StmtKind::Insert { table, values: complete }, place, observed: ignore });
        }
        Ok(())
    }

    /// The value of a column that gets none.
    fn default_of(&self, table: usize, column: usize, place: Place) -> Result<Expr> {
        let info = self.table(table);
        match &info.defaults[column] {
            Some(Constant::Number(value)) => {
                Ok(Expr { kind: ExprKind::Const(*value), ty: Ty::of(info.types[column]), place, size: 1 })
            }
            Some(Constant::String(bytes)) => Ok(string(bytes.clone(), place)),
            None => {
                let (table, column) = (info.schema.name(), &info.schema.columns()[column].name);
                let message = format!("column '{column}' of table '{table}' gets no value and has no default");
                let hint = "there are no NULLs: give it a value, or a DEFAULT in CREATE TABLE";
                Err(SqlError::new(state::NOT_NULL, place, message).hint(hint).about(table, column))
            }
        }
    }

    /// A value for a column.
    fn value_of(&mut self, written: &Written, table: usize, column: usize) -> Result<Expr> {
        if written.kind == W::Default {
            return self.default_of(table, column, written.place);
        }
        let info = self.table(table);
        let (table, name) = (info.schema.name(), &info.schema.columns()[column].name);
        if let W::Null = written.kind {
            return Err(SqlError::null(table, name, written.place));
        }
        self.purpose = Purpose::Column(table.into(), name.clone());
        self.room = if let SqlType::Text(n) = info.types[column] { Some(n) } else { None };
        let value = self.expression(written).and_then(|value| self.coerce(value, info.types[column]));
        (self.purpose, self.room) = (Purpose::Any, None);
        value.map_err(|error| error.of_column(table, name))
    }

    /// The number of the argument that an expression is.
    fn number_of(&self, expr: &Expr) -> Option<usize> {
        let (ExprKind::Var(var) | ExprKind::Whole(var)) = expr.kind else { return None };
        let variable = &self.routine.variables[var];
        let number = variable.name.strip_prefix('p').filter(|_| variable.role == Role::In)?;
        number.parse::<usize>().ok()?.checked_sub(1)
    }

    /// UPDATE, or, without `sets`, DELETE.
    pub(super) fn change(
        &mut self,
        name: &Name,
        sets: Option<&[(Name, Written)]>,
        (filter, order, limit): Which<'_>,
        observed: bool,
        place: Place,
        all: &mut Vec<Stmt>,
    ) -> Result<()> {
        let table = self.catalogue.resolve(&name.text, name.place)?;
        self.check_writable(name, table)?;
        let source: SourceId = self.source(table);
        self.row = Some((source, name.text.clone()));
        let path = self.path(table, source, filter, order, place)?;
        let scan = match path {
            Path::Point(point) => Err((point, limit.map(|limit| self.limit(limit, all)).transpose()?)),
            path => Ok(self.scan(table, path, limit, place, all)?),
        };
        let own = if scan.is_ok() { self.source(table) } else { source };
        self.row = Some((own, name.text.clone()));
        let mut bound: Vec<(usize, Expr)> = Vec::new();
        for (column_name, written) in sets.unwrap_or_default() {
            let column = self.named(table, column_name)?;
            if column < self.table(table).schema.key().len() {
                let message = format!("'{}' belongs to the primary key, which is not changed", column_name.text);
                return unsupported(column_name.place, message, "DELETE the row and INSERT it again");
            }
            if bound.iter().any(|(known, _)| *known == column) {
                let message = format!("column '{}' is set twice", column_name.text);
                return Err(SqlError::new(state::DUPLICATE_COLUMN, column_name.place, message));
            }
            bound.push((column, self.value_of(written, table, column)?));
        }
        self.row = None;
        let kind: &dyn Fn(Access) -> StmtKind = &|access| match sets {
            Some(_) => StmtKind::Update { table, access, source: own, sets: bound.clone() },
            None => StmtKind::Delete { table, access, source: own },
        };
        let scan = match scan {
            // FOUND, or the abort without it, is what the statement itself says.
            Err((Point { key, lists, rest: None }, None)) if lists.is_empty() && self.rows.is_none() => {
                all.push(Stmt { kind: kind(Access::Point(key)), place, observed });
                return Ok(());
            }
            Err((point, None)) if point.rest.is_some() && self.rows.is_none() && !observed => {
                return self.change_or_abort((table, source), point, kind, place, all);
            }
            scan => scan,
        };
        // A single statement counts its rows; in a procedure FOUND may be asked for.
        let mut done: Vec<Stmt> = self.rows.map(|rows| one_more(rows, place)).into_iter().collect();
        let any = observed.then(|| self.fresh("any", SqlType::Boolean, Role::Local));
        if let Some(any) = any {
            let set = |value| plain(StmtKind::Assign(Target::Var(any), flag(value, place)), place);
            all.push(set(false));
            done.push(set(true));
        }
        match scan {
            Err((point, limit)) => {
                let changed = self.change_each((table, source), (point, limit), kind, done, place)?;
                all.extend(changed);
            }
            Ok(scan) => {
                let body = done.into_iter().chain([plain(kind(Access::Current(source)), place)]).collect::<Vec<_>>();
                self.check_moves(&scan, &body)?;
                all.push(plain(StmtKind::ForRows { scan, source, body }, place));
            }
        }
        if let Some(any) = any {
            let found = Expr { kind: ExprKind::Var(any), ty: Ty::Boolean, place, size: 1 };
            all.push(plain(StmtKind::SetFound(found), place));
        }
        Ok(())
    }
}
