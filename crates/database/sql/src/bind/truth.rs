//! Conditions that a row has to satisfy beside its key: they hold only where they are true, and what is compared with
//! NULL is not.

use super::coerce::number;
use super::expression::{compare, truth};
use super::{Binder, Lifted};
use crate::catalogue::Constant;
use crate::error::Result;
use crate::single::Purpose;
use crate::syntax::{BinaryOp, Comparison, Expr as Written, ExprKind as W, Place};
use crate::tree::{Expr, ExprKind, Ty};
use crate::types::{MAX_PRECISION, SqlType};

fn constant(value: bool, place: Place) -> Expr {
    Expr { ty: Ty::Boolean, ..number(value.into(), 0, place) }
}

fn both(is_and: bool, a: Expr, b: Expr) -> Result<Expr> {
    let (place, parts) = (a.place, a.size + b.size);
    let (a, b) = (Box::new(a), Box::new(b));
    truth(if is_and { ExprKind::And(a, b) } else { ExprKind::Or(a, b) }, place, parts)
}

/// Whether an expression may be something else than NULL where a part of it is NULL.
fn may_ignore_null(written: &Written) -> bool {
    match &written.kind {
        W::Case { .. } => true,
        W::Call(name, _) if matches!(name.text.as_str(), "least" | "greatest") => true,
        _ => written.parts().into_iter().any(may_ignore_null),
    }
}

/// The type of an argument that holds a constant which is compared.
fn type_of_constant(value: &Expr) -> Option<(Constant, SqlType)> {
    match (&value.kind, value.ty) {
        (ExprKind::Const(value), Ty::Number(0)) => Some((Constant::Number(*value), SqlType::BIGINT)),
        (ExprKind::Const(value), Ty::Number(scale)) => {
            let sql = SqlType::Decimal(MAX_PRECISION, scale);
            let is_inside = sql.range().is_some_and(|(lowest, highest)| (lowest..=highest).contains(value));
            is_inside.then_some((Constant::Number(*value), sql))
        }
        (ExprKind::Const(value), Ty::Timestamp) => Some((Constant::Number(*value), SqlType::Timestamp)),
        (ExprKind::String(bytes) | ExprKind::Text(bytes), _) => {
            // Texts of about one length share a procedure.
            let width = (bytes.len() as u32).max(8).next_power_of_two();
            Some((Constant::String(bytes.clone()), SqlType::Bytes(width)))
        }
        _ => None,
    }
}

impl Binder<'_> {
    /// Binds a condition that has to be true, or, unless it `holds`, one that has to be false. In a single statement it
    /// is neither where it compares with NULL.
    pub(super) fn truth_of(&mut self, written: &Written, holds: bool) -> Result<Expr> {
        let place = written.place;
        match &written.kind {
            W::Not(inner) => self.truth_of(inner, !holds),
            W::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                let (a, b) = (self.truth_of(a, holds)?, self.truth_of(b, holds)?);
                both((*op == BinaryOp::And) == holds, a, b)
            }
            W::Between(value, low, high) => {
                let low = self.truth_of_comparison(Comparison::Ge, (value, low), holds)?;
                both(holds, low, self.truth_of_comparison(Comparison::Le, (value, high), holds)?)
            }
            W::In(value, list) => {
                let mut any: Option<Expr> = None;
                for one in list {
                    let one = self.truth_of_comparison(Comparison::Eq, (value, one), holds)?;
                    any = Some(match any {
                        None => one,
                        Some(before) => both(!holds, before, one)?,
                    });
                }
                Ok(any.unwrap_or_else(|| constant(!holds, place)))
            }
            W::Binary(BinaryOp::Compare(op), a, b) => self.truth_of_comparison(*op, (a, b), holds),
            W::Null if self.lifted.is_some() => Ok(constant(false, place)),
            _ => {
                let first = self.lifted.as_ref().map_or(0, Vec::len);
                let expr = self.expression(written)?;
                let expr = if expr.ty == Ty::Unknown { self.coerce(expr, SqlType::Boolean)? } else { expr };
                if expr.ty != Ty::Boolean {
                    return super::expression::wrong(expr.ty, "a condition", place);
                }
                let size = expr.size;
                let expr = if holds { expr } else { truth(ExprKind::Not(Box::new(expr)), place, size)? };
                self.if_known(expr, first, may_ignore_null(written))
            }
        }
    }

    fn truth_of_comparison(&mut self, op: Comparison, (a, b): (&Written, &Written), holds: bool) -> Result<Expr> {
        let place = a.place;
        let Some(first) = self.lifted.as_ref().map(Vec::len) else {
            let (a, b) = (self.expression(a)?, self.expression(b)?);
            let (a, b) = self.comparable(a, b)?;
            return compare(if holds { op } else { op.negate() }, a, b);
        };
        if a.kind == W::Null || b.kind == W::Null {
            return Ok(constant(false, place));
        }
        let ignores = may_ignore_null(a) || may_ignore_null(b);
        let (a, b) = (self.expression(a)?, self.expression(b)?);
        let (a, b) = self.comparable(a, b)?;
        let compared = compare(if holds { op } else { op.negate() }, a, b)?;
        let compared = self.without_constants(compared);
        self.if_known(compared, first, ignores)
    }

    /// Makes a constant that is compared an argument, so that statements that differ in it only are one procedure.
    fn without_constants(&mut self, compared: Expr) -> Expr {
        let Expr { kind: ExprKind::Compare(op, a, b), ty, place, size } = compared else { return compared };
        let mut lifted = |side: Box<Expr>| match type_of_constant(&side) {
            Some((constant, sql)) => Box::new(self.argue(Lifted::Constant(constant), Purpose::Any, sql, side.place)),
            None => side,
        };
        let (a, b) = (lifted(a), lifted(b));
        Expr { kind: ExprKind::Compare(op, a, b), ty, place, size }
    }

    /// The condition, if none of the parameters in it, which are arguments from the first one on, is NULL.
    fn if_known(&mut self, condition: Expr, first: usize, ignores_null: bool) -> Result<Expr> {
        let place = condition.place;
        let mut numbers = Vec::new();
        for (lifted, purpose) in self.lifted.iter_mut().flatten().skip(first) {
            let (Lifted::Placeholder(number) | Lifted::Compared(number, _)) = *lifted else { continue };
            if ignores_null {
                continue;
            }
            *purpose = Purpose::Condition { is_operand: matches!(purpose, Purpose::Operand(_)) };
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers.into_iter().try_fold(condition, |condition, number| {
            let is_known = self.argue(Lifted::IsKnown(number), Purpose::Any, SqlType::Boolean, place);
            both(true, is_known, condition)
        })
    }
}
