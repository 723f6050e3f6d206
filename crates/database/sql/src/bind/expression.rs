//! Expressions: names, types, scales.

use super::coerce::{arithmetic, node, number, rescale};
use super::{Binder, Meaning, string, strings};
use crate::error::{Result, SqlError, state, unsupported, unsupported_in};
use crate::syntax::{BinaryOp, Comparison, Expr as Written, ExprKind as W, Name, Place};
use crate::tree::{Arithmetic, Expr, ExprKind, SourceId, Ty, VarId, VarType};
use crate::types::SqlType;
use lockwork_procedure::schema::ColumnType;

/// What to do where an aggregate or a CASE of texts is not possible, outside of procedures.
const AGGREGATES: &str = "SELECT the aggregate first, and write its value here; or CREATE PROCEDURE";
const CASES: &str = "write a statement for each case, or CREATE PROCEDURE";

/// A comparison or connective over parts.
pub(super) fn truth(kind: ExprKind, place: Place, parts: u32) -> Result<Expr> {
    node(kind, Ty::Boolean, place, parts)
}

pub(super) fn compare(op: Comparison, a: Expr, b: Expr) -> Result<Expr> {
    let (place, parts) = (a.place, a.size + b.size);
    let (a, b) = match (a.ty, b.ty) {
        (Ty::Number(x), Ty::Number(y)) => (rescale(a, x, x.max(y))?, rescale(b, y, x.max(y))?),
        (Ty::Timestamp, Ty::String(_)) => (a, timestamp_of(b)?),
        (Ty::String(_), Ty::Timestamp) => (timestamp_of(a)?, b),
        (Ty::Boolean, Ty::Boolean) | (Ty::Timestamp, Ty::Timestamp) | (Ty::String(_), Ty::String(_)) => (a, b),
        (x, y) => {
            let message = format!("{} cannot be compared with {}", x.name(), y.name());
            return Err(SqlError::new(state::DATATYPE, place, message));
        }
    };
    if let (ExprKind::Const(x), ExprKind::Const(y)) = (&a.kind, &b.kind) {
        let kind = ExprKind::Const(i64::from(op.holds(x.cmp(y))));
        return Ok(Expr { kind, ty: Ty::Boolean, place, size: 1 });
    }
    truth(ExprKind::Compare(op, Box::new(a), Box::new(b)), place, parts)
}

fn timestamp_of(expr: Expr) -> Result<Expr> {
    match &expr.kind {
        ExprKind::String(bytes) | ExprKind::Text(bytes) => {
            let value = strings::timestamp(&String::from_utf8_lossy(bytes), expr.place)?;
            Ok(Expr { kind: ExprKind::Const(value), ty: Ty::Timestamp, ..expr })
        }
        _ => Err(SqlError::new(state::DATATYPE, expr.place, "a text cannot be compared with a timestamp")),
    }
}

impl Binder<'_> {
    pub(super) fn expression(&mut self, written: &Written) -> Result<Expr> {
        let place = written.place;
        match &written.kind {
            W::Number(text) => {
                let (value, scale) = strings::number(text, place)?;
                Ok(number(value, scale, place))
            }
            W::Text(text) => {
                let ty = Ty::String(text.len() as u32);
                Ok(Expr { kind: ExprKind::Text(text.as_bytes().to_vec()), ty, place, size: 1 })
            }
            W::Null => {
                let hint = "use a value of your own for 'none', such as 0 or ''";
                unsupported(place, "there are no NULLs", hint)
            }
            W::Default => {
                let hint = "it is a whole value of INSERT or UPDATE: VALUES (1, DEFAULT)";
                unsupported(place, "DEFAULT stands for no value here", hint)
            }
            W::Bytes(bytes) => Ok(string(bytes.clone(), place)),
            W::Bool(value) => Ok(Expr { kind: ExprKind::Const(i64::from(*value)), ty: Ty::Boolean, place, size: 1 }),
            W::Timestamp(text) => {
                let value = strings::timestamp(text, place)?;
                Ok(Expr { kind: ExprKind::Const(value), ty: Ty::Timestamp, place, size: 1 })
            }
            W::Placeholder(number) => self.placeholder(*number, place),
            W::TextPlaceholder(number) => {
                let expr = self.placeholder(*number, place)?;
                if let ExprKind::Var(var) = expr.kind {
                    self.texts.push((var, place));
                }
                Ok(expr)
            }
            W::Name(qualifier, name) => self.name(qualifier.as_ref(), name),
            W::Element(array, index) => {
                let var = self.variable(array)?;
                self.check_array(var, place)?;
                let index = self.integer(index)?;
                let VarType::Sql(sql) = self.routine.variables[var].var_type else { return Err(self.unknown(array)) };
                let size = index.size;
                node(ExprKind::Element(var, Box::new(index)), Ty::of(sql), place, size)
            }
            W::Negate(inner) => {
                let inner = self.expression(inner)?;
                let Ty::Number(scale) = inner.ty else { return wrong(inner.ty, "a number", place) };
                arithmetic(Arithmetic::Sub, number(0, scale, place), inner, Ty::Number(scale))
            }
            W::Not(inner) => {
                let inner = self.condition(inner)?;
                let size = inner.size;
                truth(ExprKind::Not(Box::new(inner)), place, size)
            }
            W::Binary(op, a, b) => self.binary(*op, a, b),
            W::Between(value, low, high) => {
                let value = self.expression(value)?;
                let (low, high) = (self.expression(low)?, self.expression(high)?);
                let (value, low) = self.comparable(value, low)?;
                let (value, high) = self.comparable(value, high)?;
                let (low, high) = (compare(Comparison::Ge, value.clone(), low)?, compare(Comparison::Le, value, high)?);
                let parts = low.size + high.size;
                truth(ExprKind::And(Box::new(low), Box::new(high)), place, parts)
            }
            W::In(value, list) => {
                let value = self.expression(value)?;
                let mut any: Option<Expr> = None;
                for one in list {
                    let one = self.expression(one)?;
                    let (value, one) = self.comparable(value.clone(), one)?;
                    let one = compare(Comparison::Eq, value, one)?;
                    any = Some(match any {
                        None => one,
                        Some(before) => {
                            let parts = before.size + one.size;
                            truth(ExprKind::Or(Box::new(before), Box::new(one)), place, parts)?
                        }
                    });
                }
                Ok(any.unwrap_or(Expr { ty: Ty::Boolean, ..number(0, 0, place) }))
            }
            W::AnyOf(..) => {
                let hint = "write IN (...) with its values";
                unsupported(place, "an array parameter lists values of a column of the primary key only", hint)
            }
            W::Case { operand, arms, otherwise } => self.case(operand.as_deref(), arms, otherwise.as_deref(), place),
            W::Call(name, arguments) => self.call(name, arguments, place),
            W::CountAll => {
                let hints = ("SELECT COUNT(*) INTO a variable", AGGREGATES);
                unsupported_in(place, "COUNT(*) stands only in a select list", hints)
            }
            W::Cast(inner, sql) => {
                let inner = self.expression(inner)?;
                let inner = if let SqlType::Text(_) = sql { self.text_of(inner)? } else { inner };
                let lifted = self.lifted.take();
                let value = self.coerce(inner, *sql);
                self.lifted = lifted;
                let value = value?;
                Ok(self.fitted(value, *sql))
            }
            W::Substring(text, from, length) => {
                let text = self.expression(text)?;
                let Ty::String(all) = text.ty else { return wrong(text.ty, "a text", place) };
                let (from, length) = (self.constant(from)?, self.constant(length)?);
                let inside = from >= 1 && length >= 1 && from.saturating_add(length) - 1 <= i64::from(all);
                if !inside {
                    let message = format!("bytes {from} to {} are not in {all} bytes", from.saturating_add(length) - 1);
                    return Err(SqlError::new("22011", place, message));
                }
                let size = text.size;
                node(ExprKind::Piece(Box::new(text), from as u32 - 1), Ty::String(length as u32), place, size)
            }
        }
    }

    /// An expression that is a constant number without decimals.
    pub(super) fn constant(&mut self, written: &Written) -> Result<i64> {
        let expr = self.integer(written)?;
        match expr.kind {
            ExprKind::Const(value) => Ok(value),
            _ => unsupported(expr.place, "a constant is needed here", "write the number itself"),
        }
    }

    pub(super) fn integer(&mut self, written: &Written) -> Result<Expr> {
        let expr = self.expression(written)?;
        match expr.ty {
            Ty::Number(0) => Ok(expr),
            other => wrong(other, "an integer", expr.place),
        }
    }

    pub(super) fn condition(&mut self, written: &Written) -> Result<Expr> {
        let expr = self.expression(written)?;
        if expr.ty == Ty::Boolean { Ok(expr) } else { wrong(expr.ty, "a condition", expr.place) }
    }

    pub(super) fn column(&mut self, source: SourceId, column: usize, place: Place) -> Expr {
        let ty = Ty::of(self.table(self.routine.sources[source].table).types[column]);
        self.routine.sources[source].used.insert(column);
        Expr { kind: ExprKind::Column(source, column), ty, place, size: 1 }
    }

    fn var(&self, var: VarId, place: Place) -> Result<Expr> {
        let variable = &self.routine.variables[var];
        let (kind, ty) = match (variable.var_type, variable.count) {
            (VarType::Sql(sql), None) if !sql.is_string() => (ExprKind::Var(var), Ty::of(sql)),
            (VarType::Sql(sql), None) => (ExprKind::Whole(var), Ty::of(sql)),
            (VarType::Sql(SqlType::Integer(ColumnType::U8)), Some(n)) => (ExprKind::Whole(var), Ty::String(n)),
            _ => {
                let hint = "name an element: array[index]; BYTES(array) is the array as bytes";
                return unsupported(place, format!("'{}' as a whole is no value", variable.name), hint);
            }
        };
        Ok(Expr { kind, ty, place, size: 1 })
    }

    fn name(&mut self, qualifier: Option<&Name>, name: &Name) -> Result<Expr> {
        let place = name.place;
        let row = self.row.clone();
        let column = |this: &Self, source: SourceId| {
            this.table(this.routine.sources[source].table).schema.column(&name.text).map(|(column, _)| column)
        };
        match (qualifier, row) {
            (None, Some((source, _))) if column(self, source).is_some() => {
                let column = column(self, source).ok_or_else(|| self.unknown(name))?;
                Ok(self.column(source, column, place))
            }
            (None, _) if name.text == "found" && self.meaning("found").is_none() => {
                if !self.found {
                    let hint = "FOUND is known right after SELECT INTO, UPDATE, DELETE, INSERT ... ON CONFLICT DO NOTHING \
                                and FOR over a SELECT";
                    let alone = "no column is called so, and FOUND is of procedures";
                    return unsupported_in(place, "FOUND says nothing here", (hint, alone));
                }
                Ok(Expr { kind: ExprKind::Found, ty: Ty::Boolean, place, size: 1 })
            }
            (None, _) => self.var(self.variable(name)?, place),
            (Some(q), _) if q.text == ":" => self.var(self.variable(name)?, place),
            (Some(q), Some((source, alias))) if q.text == alias => match column(self, source) {
                Some(column) => Ok(self.column(source, column, place)),
                None => Err(self.unknown(name)),
            },
            (Some(q), _) => match self.meaning(&q.text).cloned() {
                Some(Meaning::Row(source, columns)) => match columns.iter().find(|(known, _)| *known == name.text) {
                    Some((_, column)) => Ok(self.column(source, *column, place)),
                    None => {
                        let known: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                        let message = format!("'{}' has no column '{}'", q.text, name.text);
                        let error = SqlError::new(state::UNDEFINED_COLUMN, place, message);
                        Err(error.hint(format!("the SELECT has: {}", known.join(", "))))
                    }
                },
                Some(Meaning::Record(_)) => self.var(self.column_of_record(q, name)?, place),
                _ if q.text == self.routine.name => self.var(self.variable(name)?, place),
                _ => Err(self.unknown(q)),
            },
        }
    }

    fn binary(&mut self, op: BinaryOp, a: &Written, b: &Written) -> Result<Expr> {
        let place = a.place;
        if let BinaryOp::And | BinaryOp::Or = op {
            let (a, b) = (self.condition(a)?, self.condition(b)?);
            let parts = a.size + b.size;
            let (a, b) = (Box::new(a), Box::new(b));
            return truth(if op == BinaryOp::And { ExprKind::And(a, b) } else { ExprKind::Or(a, b) }, place, parts);
        }
        let (a, b) = (self.expression(a)?, self.expression(b)?);
        let (a, b) = match op {
            BinaryOp::Concat => return self.concat(a, b),
            BinaryOp::Compare(op) => {
                let (a, b) = self.comparable(a, b)?;
                return compare(op, a, b);
            }
            _ => self.alike(a, b)?,
        };
        let op = match op {
            BinaryOp::Add => Arithmetic::Add,
            BinaryOp::Sub => Arithmetic::Sub,
            BinaryOp::Mul => Arithmetic::Mul,
            BinaryOp::Div => Arithmetic::Div,
            _ => return self.remainder(a, b),
        };
        match (op, a.ty, b.ty) {
            (Arithmetic::Sub, Ty::Timestamp, Ty::Timestamp) => arithmetic(op, a, b, Ty::Number(0)),
            (Arithmetic::Add | Arithmetic::Sub, Ty::Timestamp, Ty::Number(0)) => arithmetic(op, a, b, Ty::Timestamp),
            (Arithmetic::Add | Arithmetic::Sub, Ty::Number(x), Ty::Number(y)) => {
                let scale = x.max(y);
                arithmetic(op, rescale(a, x, scale)?, rescale(b, y, scale)?, Ty::Number(scale))
            }
            (Arithmetic::Mul, Ty::Number(x), Ty::Number(y)) if x + y <= 18 => arithmetic(op, a, b, Ty::Number(x + y)),
            (Arithmetic::Div, Ty::Number(0), Ty::Number(0)) => arithmetic(op, a, b, Ty::Number(0)),
            (Arithmetic::Div, Ty::Number(_), Ty::Number(_)) if self.as_query => {
                let message = "a quotient of decimals in a condition beside the key would be rounded to their decimals";
                unsupported(place, message, "multiply the other side: n > 3 * x instead of n / 3 > x")
            }
            (Arithmetic::Div, Ty::Number(x), Ty::Number(y)) if x.max(y) + y - x <= 18 => {
                let scale = x.max(y);
                let a = rescale(a, x, scale + y)?;
                let parts = a.size + b.size;
                node(ExprKind::Round(Box::new(a), Box::new(b)), Ty::Number(scale), place, parts)
            }
            (_, Ty::Number(x), Ty::Number(y)) => {
                let message = format!("the result of {x} and {y} decimals would have more than 18");
                unsupported(place, message, "CAST to a DECIMAL with fewer decimals first")
            }
            (_, Ty::Number(_), other) | (_, other, _) => wrong(other, "a number", place),
        }
    }

    fn remainder(&mut self, a: Expr, b: Expr) -> Result<Expr> {
        let (Ty::Number(0), Ty::Number(0)) = (a.ty, b.ty) else {
            return unsupported(a.place, "a remainder is of integers", "CAST both sides to BIGINT");
        };
        let quotient = arithmetic(Arithmetic::Div, a.clone(), b.clone(), Ty::Number(0))?;
        arithmetic(Arithmetic::Sub, a, arithmetic(Arithmetic::Mul, quotient, b, Ty::Number(0))?, Ty::Number(0))
    }

    fn call(&mut self, name: &Name, arguments: &[Written], place: Place) -> Result<Expr> {
        match (name.text.as_str(), arguments) {
            ("abs", [value]) => {
                let value = self.expression(value)?;
                let Ty::Number(scale) = value.ty else { return wrong(value.ty, "a number", place) };
                let negative = arithmetic(Arithmetic::Sub, number(0, scale, place), value.clone(), value.ty)?;
                let (ty, parts) = (value.ty, 2 * value.size);
                node(ExprKind::Greatest(Box::new(value), Box::new(negative)), ty, place, parts)
            }
            ("mod", [a, b]) => {
                let (a, b) = (self.expression(a)?, self.expression(b)?);
                self.remainder(a, b)
            }
            ("least" | "greatest", [first, rest @ ..]) => {
                let mut value = self.expression(first)?;
                for other in rest {
                    let other = self.expression(other)?;
                    let (Ty::Number(x), Ty::Number(y)) = (value.ty, other.ty) else {
                        return unsupported(
                            place,
                            "LEAST and GREATEST take numbers",
                            "use CASE WHEN a < b THEN a ELSE b END",
                        );
                    };
                    let (a, b) = (rescale(value, x, x.max(y))?, rescale(other, y, x.max(y))?);
                    let (ty, parts) = (a.ty, a.size + b.size);
                    let (a, b) = (Box::new(a), Box::new(b));
                    let least = name.text == "least";
                    value =
                        node(if least { ExprKind::Least(a, b) } else { ExprKind::Greatest(a, b) }, ty, place, parts)?;
                }
                Ok(value)
            }
            ("round", [value, digits]) => {
                let value = self.expression(value)?;
                let digits = self.constant(digits)?;
                match (value.ty, u8::try_from(digits)) {
                    (Ty::Number(scale), Ok(digits)) if digits <= scale => rescale(value, scale, digits),
                    (Ty::Number(_), _) => unsupported(place, "ROUND takes decimals away", "use CAST to add some"),
                    (other, _) => wrong(other, "a number", place),
                }
            }
            ("substring" | "substr", [text, from, length]) => {
                let [text, from, length] = [text, from, length].map(|part| Box::new(part.clone()));
                self.expression(&Written { kind: W::Substring(text, from, length), place })
            }
            (name, []) if crate::single::is_clock(name) => self.now(place),
            ("bytes", [Written { kind: W::Name(None, array), .. }]) => {
                let var = self.variable(array)?;
                let (column_type, count) = self.routine.variables[var].field();
                if self.routine.variables[var].in_register() {
                    return unsupported(place, "BYTES takes an array or a text", "declare an array of one element");
                }
                let bytes = column_type.width().next_multiple_of(column_type.align()).saturating_mul(count);
                Ok(Expr { kind: ExprKind::Whole(var), ty: Ty::String(bytes), place, size: 1 })
            }
            ("bytes", [Written { kind: W::Name(None, first), .. }, Written { kind: W::Name(None, last), .. }]) => {
                let Some((source, _)) = self.row.clone() else {
                    return unsupported(place, "there is no row here", "BYTES(first, last) names columns of a table");
                };
                let table = self.routine.sources[source].table;
                let schema = &self.table(table).schema;
                let (Some((from, a)), Some((to, b))) = (schema.column(&first.text), schema.column(&last.text)) else {
                    let unknown = if schema.column(&first.text).is_some() { last } else { first };
                    return Err(self.unknown(unknown));
                };
                if from > to {
                    let message = format!("'{}' lies in front of '{}' in a row", last.text, first.text);
                    return Err(SqlError::new(state::DATATYPE, place, message));
                }
                let length = b.offset + b.column_type.width() - a.offset;
                let used = &mut self.routine.sources[source];
                used.used.extend(from..=to);
                used.whole = true;
                Ok(Expr { kind: ExprKind::Span(source, from), ty: Ty::String(length), place, size: 1 })
            }
            ("count" | "sum" | "min" | "max" | "avg", _) => {
                let hints = ("SELECT SUM(x) INTO v FROM (SELECT x FROM t WHERE ... LIMIT n) AS q", AGGREGATES);
                let message = format!("{} stands only in a select list", name.text.to_uppercase());
                unsupported_in(place, message, hints)
            }
            (other, arguments) => {
                let hint = "there are ABS, MOD, LEAST, GREATEST, ROUND(x, n), SUBSTRING, BYTES, CAST and CASE";
                unsupported(
                    place,
                    format!("the function {other} of {} arguments is not supported", arguments.len()),
                    hint,
                )
            }
        }
    }

    fn case(
        &mut self,
        operand: Option<&Written>,
        arms: &[(Written, Written)],
        otherwise: Option<&Written>,
        place: Place,
    ) -> Result<Expr> {
        let operand = operand.map(|operand| self.expression(operand)).transpose()?;
        let mut bound = Vec::new();
        let mut numbers = Vec::new();
        for (when, then) in arms {
            let condition = match &operand {
                None => self.condition(when)?,
                Some(operand) => {
                    let when = self.expression(when)?;
                    numbers.push(if let ExprKind::Const(value) = when.kind { Some(value) } else { None });
                    compare(Comparison::Eq, operand.clone(), when)?
                }
            };
            bound.push((condition, self.expression(then)?));
        }
        let otherwise = otherwise.map(|otherwise| self.expression(otherwise)).transpose()?;
        if let (Some(operand), None) = (&operand, &otherwise)
            && let Some(choice) = self.choice(operand, &numbers, &bound)
        {
            return Ok(choice);
        }
        let results = bound.iter().map(|(_, result)| result.ty).chain(otherwise.as_ref().map(|other| other.ty));
        let mut ty: Option<Ty> = None;
        for result in results {
            ty = Some(match (ty, result) {
                (None, result) => result,
                (Some(Ty::Number(a)), Ty::Number(b)) => Ty::Number(a.max(b)),
                (Some(a), b) if a == b => a,
                (Some(Ty::String(_)), Ty::String(_)) => {
                    let hints = ("use IF, and assign in each arm", CASES);
                    return unsupported_in(place, "the texts of a CASE have different lengths", hints);
                }
                (Some(_), other) => return wrong(other, "a value of the first arm's type", place),
            });
        }
        let ty = ty.ok_or_else(|| SqlError::new(state::SYNTAX, place, "CASE needs at least one WHEN"))?;
        if let Ty::String(_) = ty {
            let hint = "use IF, and assign in each arm; CASE x WHEN 1 THEN column ... works where the columns follow each \
                        other and are of one length";
            return unsupported_in(place, "CASE makes no texts", (hint, CASES));
        }
        let same = |expr: Expr| match (expr.ty, ty) {
            (Ty::Number(from), Ty::Number(to)) => rescale(expr, from, to),
            _ => Ok(expr),
        };
        let mut parts: u32 = 0;
        let mut scaled = Vec::new();
        for (condition, result) in bound {
            let result = same(result)?;
            parts = parts.saturating_add(condition.size).saturating_add(result.size);
            scaled.push((condition, result));
        }
        let otherwise = otherwise.map(same).transpose()?;
        parts = parts.saturating_add(otherwise.as_ref().map_or(0, |other| other.size));
        node(ExprKind::Case(scaled, otherwise.map(Box::new)), ty, place, parts)
    }

    /// A CASE over consecutive numbers whose results are texts of one row that follow each other: an address.
    fn choice(&self, operand: &Expr, numbers: &[Option<i64>], arms: &[(Expr, Expr)]) -> Option<Expr> {
        let first = (*numbers.first()?)?;
        let (ExprKind::Column(source, column), Ty::String(width)) = (&arms.first()?.1.kind, arms.first()?.1.ty) else {
            return None;
        };
        if operand.ty != Ty::Number(0) {
            return None;
        }
        let columns = self.table(self.routine.sources[*source].table).schema.columns();
        for (at, (number, (_, result))) in numbers.iter().zip(arms).enumerate() {
            let ExprKind::Column(same, this) = result.kind else { return None };
            let apart = columns[this].offset.checked_sub(columns[*column].offset)?;
            let here = same == *source && apart == at as u32 * width && result.ty == Ty::String(width);
            if !here || *number != first.checked_add(at as i64) {
                return None;
            }
        }
        let kind = ExprKind::Choose {
            operand: Box::new(operand.clone()),
            first,
            source: *source,
            column: *column,
            count: arms.len() as u32,
        };
        Some(Expr { kind, ty: Ty::String(width), place: operand.place, size: operand.size + 1 })
    }
}

pub(super) fn wrong<T>(found: Ty, wanted: &str, place: Place) -> Result<T> {
    Err(SqlError::new(state::DATATYPE, place, format!("{} stands where {wanted} is needed", found.name())))
}
