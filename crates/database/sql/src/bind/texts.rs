//! Texts: what `||` joins, the texts of numbers, and parameters that are compared with texts and numbers.

use super::{Binder, Lifted};
use crate::error::{Result, SqlError, state, unsupported};
use crate::single::Purpose;
use crate::syntax::Place;
use crate::tree::{Expr, ExprKind, Ty, VarId};
use crate::types::{SqlType, described};
use crate::value::Value;

/// Bytes of a `$n` that is joined to a text where no column says how long the whole may be.
const MIN_ROOM: u32 = 64;

/// Bytes, or a text, that are constant.
pub(super) fn string(bytes: Vec<u8>, place: Place) -> Expr {
    let ty = Ty::String(bytes.len() as u32);
    Expr { kind: ExprKind::String(bytes), ty, place, size: 1 }
}

/// Whether the length of a text is known when the procedure runs only.
fn is_made(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Digits(..) | ExprKind::Sized(..) => true,
        ExprKind::Concat(parts) => parts.iter().any(is_made),
        _ => false,
    }
}

impl Binder<'_> {
    /// A number or a truth value as its text; anything else as it is.
    pub(super) fn text_of(&self, expr: Expr) -> Result<Expr> {
        let place = expr.place;
        let (digits, width) = match (&expr.kind, expr.ty) {
            (ExprKind::Const(value), Ty::Number(scale)) => {
                return Ok(string(Value::Decimal(*value, scale).to_string().into_bytes(), place));
            }
            (ExprKind::Const(value), Ty::Boolean) => {
                return Ok(string(Value::Boolean(*value != 0).to_string().into_bytes(), place));
            }
            (_, Ty::Number(scale)) => {
                let (lowest, highest) = self.range(&expr);
                let digits = |value: i64| value.unsigned_abs().checked_ilog10().unwrap_or(0) + 1;
                let digits = digits(lowest).max(digits(highest)).max(u32::from(scale) + 1);
                (digits, digits + u32::from(scale > 0) + u32::from(lowest < 0))
            }
            (_, Ty::Boolean) => (0, 5),
            _ => return Ok(expr),
        };
        let size = expr.size;
        super::coerce::node(ExprKind::Digits(Box::new(expr), digits as u8), Ty::String(width), place, size)
    }

    /// `a || b`. A number or a truth value that is joined to a text is its text.
    pub(super) fn concat(&mut self, a: Expr, b: Expr) -> Result<Expr> {
        let place = a.place;
        let is_text = |ty: Ty| matches!(ty, Ty::String(_) | Ty::Unknown);
        let (a, b) = if is_text(a.ty) || is_text(b.ty) { (self.text_of(a)?, self.text_of(b)?) } else { (a, b) };
        let a = self.part(a, &b)?;
        let b = self.part(b, &a)?;
        // A text in quotes is no number because it is joined to one.
        let (a, b) = if is_text(a.ty) && is_text(b.ty) { self.alike(a, b)? } else { (a, b) };
        let (Ty::String(x), Ty::String(y)) = (a.ty, b.ty) else {
            let other = if matches!(a.ty, Ty::String(_)) { &b } else { &a };
            let message = format!("{} stands where || needs a text", other.ty.name());
            let hint = match other.ty {
                Ty::Timestamp => "timestamps are made texts by clients, and by a server's queries only",
                _ => "one side of || has to be a text: '' || a || b",
            };
            return Err(SqlError::new(state::DATATYPE, other.place, message).hint(hint));
        };
        if self.as_query {
            let message = "|| in a condition beside the key would join texts with the bytes that fill them";
            return unsupported(place, message, "compare the texts one by one");
        }
        let parts = a.size + b.size;
        super::coerce::node(ExprKind::Concat(vec![a, b]), Ty::String(x.saturating_add(y)), place, parts)
    }

    /// A `$n` that is joined to a text may be as long as the text that both make, and is followed by the other where
    /// it ends.
    fn part(&mut self, expr: Expr, beside: &Expr) -> Result<Expr> {
        let (Ty::Unknown, ExprKind::Var(var), Ty::String(width)) = (expr.ty, &expr.kind, beside.ty) else {
            return Ok(expr);
        };
        if let (Some(SqlType::Bytes(_)), false) = (self.type_of(beside), matches!(beside.kind, ExprKind::Text(_))) {
            return Ok(expr);
        }
        let Some(Lifted::Placeholder(number)) = self.argument_of(*var).map(|(lifted, _)| lifted.clone()) else {
            return Ok(expr);
        };
        let (place, size) = (expr.place, expr.size + 1);
        let room = self.room.unwrap_or_else(|| width.max(MIN_ROOM));
        let text = self.operand(expr, SqlType::Text(room));
        let length = self.argue(Lifted::LengthOf(number), Purpose::Any, SqlType::BIGINT, place);
        super::coerce::node(ExprKind::Sized(Box::new(text), Box::new(length)), Ty::String(room), place, size)
    }

    /// A text that is too long for its place unless it turns out to be shorter when it is made; with a longer one the
    /// procedure aborts.
    pub(super) fn fitting(&mut self, expr: Expr, to: SqlType, most: u32) -> Result<Option<Expr>> {
        if !is_made(&expr) {
            return Ok(None);
        }
        let message = match &self.purpose {
            Purpose::Column(_, column) => format!("column '{column}': the text does not fit {}", described(to)),
            _ => format!("the text does not fit {}", described(to)),
        };
        let (place, size) = (expr.place, expr.size);
        let code = self.abort(state::TOO_LONG, &message, place)?;
        super::coerce::node(ExprKind::Fitting(Box::new(expr), code), Ty::String(most), place, size).map(Some)
    }

    /// Two sides of a comparison. A `$n` may be a longer text or a larger number than the other side can be: that
    /// decides the comparison, and is no error.
    pub(super) fn comparable(&mut self, a: Expr, b: Expr) -> Result<(Expr, Expr)> {
        let a = self.compared(a, &b);
        let b = self.compared(b, &a);
        self.alike(a, b)
    }

    fn compared(&mut self, expr: Expr, beside: &Expr) -> Expr {
        let (Ty::Unknown, ExprKind::Var(var)) = (expr.ty, &expr.kind) else { return expr };
        let Some(sql) = self.type_of(beside) else { return expr };
        // One byte more says that a text goes on.
        let wide = match sql {
            SqlType::Text(n) => SqlType::Text(n.saturating_add(1)),
            SqlType::Bytes(n) => SqlType::Bytes(n.saturating_add(1)),
            SqlType::Integer(_) => SqlType::BIGINT,
            _ => return expr,
        };
        let scales = self.scales;
        let Some((lifted, purpose)) = self.argument_of(*var) else { return expr };
        let Lifted::Placeholder(number) = *lifted else { return expr };
        let has_decimals = scales.get(usize::from(number) - 1).is_some_and(|scale| *scale > 0);
        if has_decimals && !sql.is_string() {
            return expr;
        }
        *lifted = Lifted::Compared(number, sql);
        *purpose = purpose.clone().operand();
        self.known(expr, wide)
    }

    /// The argument of a single statement that a variable is, and what it is for.
    pub(super) fn argument_of(&mut self, var: VarId) -> Option<&mut (Lifted, Purpose)> {
        let number = self.routine.variables[var].name.get(1..)?.parse::<usize>().ok()?;
        number.checked_sub(1).zip(self.lifted.as_mut()).and_then(|(at, all)| all.get_mut(at))
    }
}
