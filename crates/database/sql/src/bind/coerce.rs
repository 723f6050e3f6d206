//! Values of one type made values of another.

use super::{Binder, Lifted};
use crate::catalogue::Constant;
use crate::error::{Result, SqlError, state, unsupported, unsupported_in};
use crate::single::Purpose;
use crate::syntax::{Comparison, Expr as Written, Place};
use crate::text::bytes_of;
use crate::tree::{Arithmetic, Expr, ExprKind, Role, Ty, VarType, Variable};
use crate::types::{MAX_PRECISION, SqlType, described, power_of_ten, round};
use crate::value::Value;

/// The largest expression, in nodes.
const MAX_SIZE: u32 = 20_000;

/// A node over its parts.
pub(super) fn node(kind: ExprKind, ty: Ty, place: Place, parts: u32) -> Result<Expr> {
    if parts >= MAX_SIZE {
        let message = "the expression is too large";
        let error = SqlError::new(state::TOO_COMPLEX, place, message);
        return Err(error.hints("assign parts of it to variables first", "write a shorter one, or a procedure"));
    }
    Ok(Expr { kind, ty, place, size: parts + 1 })
}

pub(super) fn number(value: i64, scale: u8, place: Place) -> Expr {
    Expr { kind: ExprKind::Const(value), ty: Ty::Number(scale), place, size: 1 }
}

/// `a op b`, folded if both are constants; an overflow is left to run time, where it aborts.
pub(super) fn arithmetic(op: Arithmetic, a: Expr, b: Expr, ty: Ty) -> Result<Expr> {
    let place = a.place;
    if let (ExprKind::Const(x), ExprKind::Const(y)) = (&a.kind, &b.kind) {
        let folded = match op {
            Arithmetic::Add => x.checked_add(*y),
            Arithmetic::Sub => x.checked_sub(*y),
            Arithmetic::Mul => x.checked_mul(*y),
            Arithmetic::Div => x.checked_div(*y),
        };
        if let Some(value) = folded {
            return Ok(Expr { kind: ExprKind::Const(value), ty, place, size: 1 });
        }
    }
    let parts = a.size + b.size;
    node(ExprKind::Arithmetic(op, Box::new(a), Box::new(b)), ty, place, parts)
}

/// The number with another number of decimals, rounded half away from zero.
pub(super) fn rescale(expr: Expr, from: u8, to: u8) -> Result<Expr> {
    let place = expr.place;
    let ty = Ty::Number(to);
    if from == to {
        return Ok(Expr { ty, ..expr });
    }
    let power = power_of_ten(from.abs_diff(to).min(18));
    if to > from {
        return arithmetic(Arithmetic::Mul, expr, number(power, 0, place), ty);
    }
    if let ExprKind::Const(value) = expr.kind {
        return Ok(number(round(value, power), to, place));
    }
    let parts = expr.size + 1;
    node(ExprKind::Round(Box::new(expr), Box::new(number(power, 0, place))), ty, place, parts)
}

/// The value, checked to be one of the type.
fn checked(expr: Expr, sql: SqlType) -> Expr {
    match (sql.range(), &expr.kind) {
        (Some((lo, hi)), ExprKind::Const(value)) if (lo..=hi).contains(value) => expr,
        (Some((lo, hi)), _) if (lo, hi) != (i64::MIN, i64::MAX) && sql != SqlType::Boolean => {
            let (ty, place, size) = (expr.ty, expr.place, expr.size + 1);
            Expr { kind: ExprKind::Fit(Box::new(expr), lo, hi), ty, place, size }
        }
        _ => expr,
    }
}

/// A text in quotes as the bytes, the number or the truth that it means, where one is needed. A number keeps its
/// digits, as far as 64 bits hold them; one that is `assigned` is rounded when it has more.
pub(super) fn meant(expr: Expr, to: SqlType, assigned: bool) -> Result<Expr> {
    let ExprKind::Text(text) = &expr.kind else { return Ok(expr) };
    let (text, place) = (String::from_utf8_lossy(text), expr.place);
    let placed = |error: SqlError| SqlError { line: place.line, column: place.column, ..error };
    let constant = |value: i64, ty| Expr { kind: ExprKind::Const(value), ty, place, size: 1 };
    match to {
        SqlType::Bytes(_) => {
            let wrong = |why| SqlError::new(state::INVALID_TEXT, place, format!("'{text:.40}' is no BYTEA: {why}"));
            Ok(super::string(bytes_of(&text).map_err(wrong)?, place))
        }
        SqlType::Integer(_) | SqlType::Decimal(..) | SqlType::Boolean => {
            let value = match to {
                SqlType::Decimal(..) => match Value::numeric(&text) {
                    // It is rounded, or no number of this type.
                    Ok(Value::Numeric(_)) | Err(_) if assigned => Value::parse(&text, to).map_err(placed)?,
                    Err(error) => return Err(placed(error)),
                    Ok(Value::Numeric(_)) => return Err(super::strings::too_long(&text, place)),
                    Ok(value) => value,
                },
                _ => Value::parse(&text, to).map_err(placed)?,
            };
            Ok(match value {
                Value::Integer(value) => number(value, 0, place),
                Value::Decimal(value, scale) => number(value, scale, place),
                Value::Boolean(truth) => constant(truth.into(), Ty::Boolean),
                _ => expr,
            })
        }
        SqlType::Timestamp | SqlType::Text(_) => Ok(expr),
    }
}

/// Returns a constant as a value that rows of a type are sought by; `None` if it is none of the kind of the type.
pub(super) fn sought_constant(value: &Expr, sql: SqlType) -> Option<Constant> {
    match (&value.kind, value.ty, Ty::of(sql)) {
        (ExprKind::Const(number), Ty::Number(from), Ty::Number(to)) if from <= to => {
            Some(Constant::Number(number.saturating_mul(power_of_ten(to - from))))
        }
        (ExprKind::Const(number), ty, to) if ty == to => Some(Constant::Number(*number)),
        (ExprKind::String(bytes) | ExprKind::Text(bytes), ..) if sql.is_string() => {
            Some(Constant::String(bytes.clone()))
        }
        _ => None,
    }
}

/// Whether a number with `from` decimals has more than `to` that are not zero.
pub(super) fn has_more(number: i64, from: u8, to: u8) -> bool {
    from > to && number % power_of_ten((from - to).min(18)) != 0
}

impl Binder<'_> {
    /// The value, checked to be one of the type unless it always is.
    pub(super) fn fitted(&self, expr: Expr, sql: SqlType) -> Expr {
        let (lo, hi) = self.range(&expr);
        match sql.range() {
            Some((first, last)) if lo >= first && hi <= last => expr,
            _ => checked(expr, sql),
        }
    }

    /// The value as a value of the type. Integers are checked where they are stored, DECIMALs here.
    pub(super) fn coerce(&mut self, expr: Expr, to: SqlType) -> Result<Expr> {
        let expr = meant(expr, to, true)?;
        let place = expr.place;
        if expr.ty == Ty::Unknown {
            return Ok(self.known(expr, to));
        }
        let constant = matches!(expr.kind, ExprKind::Const(_));
        let wrong = |from: Ty| {
            let message = format!("{} stands where {} is needed", from.name(), described(to));
            SqlError::new(state::DATATYPE, place, message).hint("CAST(value AS type) changes between numbers")
        };
        let value = match (expr.ty, to) {
            (Ty::Number(from), SqlType::Integer(_)) => rescale(expr, from, 0)?,
            (Ty::Number(from), SqlType::Decimal(_, scale)) => {
                let value = rescale(expr, from, scale)?;
                if constant { value } else { self.fitted(value, to) }
            }
            (Ty::Boolean, SqlType::Boolean) | (Ty::Timestamp, SqlType::Timestamp) => expr,
            (Ty::String(_), SqlType::Timestamp) => match expr.kind {
                ExprKind::String(bytes) | ExprKind::Text(bytes) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let value = super::strings::timestamp(&text, place)?;
                    Expr { kind: ExprKind::Const(value), ty: Ty::Timestamp, place, size: 1 }
                }
                _ => return Err(wrong(expr.ty)),
            },
            (Ty::String(length), SqlType::Text(n) | SqlType::Bytes(n)) => {
                if length > n {
                    if let Some(fitting) = self.fitting(expr, to, n)? {
                        return Ok(fitting);
                    }
                    let message = format!("{length} bytes do not fit {}", described(to));
                    let hint = format!("SUBSTRING(text FROM 1 FOR {n}) makes them fit");
                    return Err(SqlError::new(state::TOO_LONG, place, message).hint(hint));
                }
                expr
            }
            (from, _) => return Err(wrong(from)),
        };
        let inside = match (&value.kind, to.range()) {
            (ExprKind::Const(value), Some((lo, hi))) => (lo..=hi).contains(value),
            // A constant that is none any more left 64 bits.
            _ => !constant,
        };
        if !inside {
            let message = format!("the constant is out of the range of {to}");
            return Err(SqlError::new(state::OUT_OF_RANGE, place, message));
        }
        Ok(self.lift(value, to))
    }

    /// A constant of a type.
    pub(crate) fn constant_of(&mut self, written: &Written, sql: SqlType) -> Result<Constant> {
        let value = self.expression(written)?;
        self.constant_from(value, sql)
    }

    pub(super) fn constant_from(&mut self, value: Expr, sql: SqlType) -> Result<Constant> {
        let place = value.place;
        let value = self.coerce(value, sql)?;
        match value.kind {
            ExprKind::Const(number) => Ok(Constant::Number(number)),
            ExprKind::String(bytes) | ExprKind::Text(bytes) => Ok(Constant::String(bytes)),
            _ => unsupported(place, "a constant is needed here", "write the value itself"),
        }
    }

    /// In a single statement a constant becomes a parameter, so that statements that differ in constants only are one
    /// procedure.
    pub(super) fn lift(&mut self, value: Expr, to: SqlType) -> Expr {
        let Some(arguments) = &mut self.lifted else { return value };
        let constant = match &value.kind {
            ExprKind::Const(number) => Constant::Number(*number),
            ExprKind::String(bytes) | ExprKind::Text(bytes) => Constant::String(bytes.clone()),
            _ => return value,
        };
        arguments.push((Lifted::Constant(constant), self.purpose.clone()));
        self.argument(to, value.place)
    }

    /// A value that rows are sought by, with a comparison that is no `<>`. In a single statement a value that no row
    /// can have is no error: whether there are rows is found out when it runs, and the bound that comes of `<` or `>`
    /// is one that is included. What is no value by itself stays what it is: nothing.
    pub(super) fn sought(
        &mut self,
        value: Option<&Expr>,
        op: Comparison,
        sql: SqlType,
        place: Place,
    ) -> Result<Option<Expr>> {
        let Some(arguments) = &mut self.lifted else { return Ok(None) };
        let value = value.map(|value| meant(value.clone(), sql, false)).transpose()?;
        let mut op = op;
        let lifted = match value.as_ref().map(|value| (&value.kind, value.ty, Ty::of(sql))) {
            None => Lifted::Null,
            Some((ExprKind::Const(number), Ty::Number(from), Ty::Number(to))) if has_more(*number, from, to) => {
                // No row has this value, and the bound is the next value on its side that a row can have.
                let floor = number.div_euclid(power_of_ten((from - to).min(18)));
                match op {
                    Comparison::Lt | Comparison::Le => op = Comparison::Le,
                    Comparison::Gt | Comparison::Ge => op = Comparison::Gt,
                    _ => {}
                }
                match op {
                    Comparison::Le | Comparison::Gt => Lifted::Constant(Constant::Number(floor)),
                    _ => Lifted::Null,
                }
            }
            Some((ExprKind::Var(var), Ty::Unknown, _)) => {
                // It is an argument already.
                let number = self.routine.variables[*var].name[1..].parse::<usize>().unwrap_or(0);
                if let Some((_, purpose)) = number.checked_sub(1).and_then(|at| arguments.get_mut(at)) {
                    *purpose = Purpose::Sought(op);
                }
                return Ok(value.map(|value| self.known(value, sql)));
            }
            _ => match value.as_ref().and_then(|value| sought_constant(value, sql)) {
                Some(constant) => Lifted::Constant(constant),
                None => return Ok(None),
            },
        };
        Ok(Some(self.argue(lifted, Purpose::Sought(op), sql, place)))
    }

    /// Adds an argument. Returns the variable that it is.
    pub(super) fn argue(&mut self, lifted: Lifted, purpose: Purpose, sql: SqlType, place: Place) -> Expr {
        self.lifted.get_or_insert_default().push((lifted, purpose));
        self.argument(sql, place)
    }

    /// A `$n` without a type as a number of this type that takes part in an expression: with as many digits as numbers
    /// have, and at least as many decimals as the statement is compiled for. As any other value of the type otherwise.
    pub(super) fn operand(&mut self, expr: Expr, sql: SqlType) -> Expr {
        let (Ty::Unknown, ExprKind::Var(var)) = (expr.ty, &expr.kind) else { return expr };
        let scales = self.scales;
        let Some((lifted, purpose)) = self.argument_of(*var) else { return self.known(expr, sql) };
        let scale = match lifted {
            Lifted::Placeholder(number) => scales.get(usize::from(*number) - 1).copied().unwrap_or(0),
            _ => 0,
        };
        *purpose = purpose.clone().operand();
        let sql = match sql {
            SqlType::Decimal(_, has) => SqlType::Decimal(MAX_PRECISION, has.max(scale)),
            SqlType::Integer(_) if scale > 0 => SqlType::Decimal(MAX_PRECISION, scale),
            sql => sql,
        };
        self.known(expr, sql)
    }

    /// The variable of the argument that was added last.
    fn argument(&mut self, sql: SqlType, place: Place) -> Expr {
        let name = format!("p{}", self.lifted.as_ref().map_or(0, Vec::len));
        let var = self.fresh(&name, sql, Role::In);
        let kind = if sql.is_string() { ExprKind::Whole(var) } else { ExprKind::Var(var) };
        Expr { kind, ty: Ty::of(sql), place, size: 1 }
    }

    /// `$n`. Each occurrence is an argument of its own, whose type is what stands beside it.
    pub(super) fn placeholder(&mut self, number: u16, place: Place) -> Result<Expr> {
        let Some(arguments) = &mut self.lifted else {
            let hints = (
                "declare a parameter, and name it",
                "in CALL it is a whole argument; write the value itself elsewhere",
            );
            let message = format!("${number} stands only in a single statement, as a value");
            return unsupported_in(place, message, hints);
        };
        arguments.push((Lifted::Placeholder(number), self.purpose.clone()));
        Ok(Expr { ty: Ty::Unknown, ..self.argument(SqlType::BIGINT, place) })
    }

    /// The time when the statement runs.
    pub(super) fn now(&mut self, place: Place) -> Result<Expr> {
        if let Some((what, hint)) = self.constant {
            return unsupported(place, format!("{what} is a constant, and the time is none"), hint);
        }
        let Some(arguments) = &mut self.lifted else {
            let hint = "pass the time as a parameter: CALL p(CURRENT_TIMESTAMP)";
            return unsupported(place, "a procedure has no clock", hint);
        };
        arguments.push((Lifted::Now, self.purpose.clone()));
        Ok(self.argument(SqlType::Timestamp, place))
    }

    /// The expression, of this type if it is a `$n` that has none yet.
    pub(super) fn known(&mut self, expr: Expr, sql: SqlType) -> Expr {
        let (Ty::Unknown, ExprKind::Var(var)) = (expr.ty, &expr.kind) else { return expr };
        self.routine.variables[*var].var_type = VarType::Sql(sql);
        let kind = if sql.is_string() { ExprKind::Whole(*var) } else { ExprKind::Var(*var) };
        Expr { kind, ty: Ty::of(sql), ..expr }
    }

    /// Two sides of an operator: a `$n` is of the other side's type, and a text in quotes is what it means beside
    /// bytes, numbers and truths.
    pub(super) fn alike(&mut self, a: Expr, b: Expr) -> Result<(Expr, Expr)> {
        let beside = |this: &Self, one: &Expr, other: Expr| match this.type_of(one) {
            Some(sql) => meant(other, sql, false),
            None => Ok(other),
        };
        let (a, b) = (beside(self, &b, a.clone())?, beside(self, &a, b)?);
        Ok(match (a.ty, b.ty) {
            (Ty::Unknown, _) => (self.type_of(&b).map_or(a.clone(), |sql| self.operand(a, sql)), b),
            (_, Ty::Unknown) => (a.clone(), self.type_of(&a).map_or(b.clone(), |sql| self.operand(b, sql))),
            _ => (a, b),
        })
    }

    pub(super) fn type_of(&self, expr: &Expr) -> Option<SqlType> {
        match (&expr.kind, expr.ty) {
            (ExprKind::Column(source, column), _) => {
                Some(self.table(self.routine.sources[*source].table).types[*column])
            }
            (ExprKind::Whole(var), _) => match self.routine.variables[*var] {
                Variable { var_type: VarType::Sql(sql), count: None, .. } => Some(sql),
                _ => None,
            },
            (_, Ty::Number(0)) => Some(SqlType::BIGINT),
            (_, Ty::Number(scale)) => Some(SqlType::Decimal(MAX_PRECISION, scale)),
            (_, Ty::Boolean) => Some(SqlType::Boolean),
            (_, Ty::Timestamp) => Some(SqlType::Timestamp),
            (_, Ty::String(length)) => Some(SqlType::Text(length.max(1))),
            (_, Ty::Unknown) => None,
        }
    }
}
