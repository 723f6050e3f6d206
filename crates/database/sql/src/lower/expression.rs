//! Numbers, truth values and branches.

use super::Lower;
use super::state::Row;
use crate::ir::{At, BlockId, End, FieldKind, Op, Operand, range_of, width_of};
use crate::syntax::Comparison;
use crate::tree::{Arithmetic, Expr, ExprKind, Ty, VarId};

impl Lower<'_> {
    /// The value of a number, a timestamp or a truth value.
    pub(super) fn number(&mut self, expr: &Expr) -> Operand {
        match &expr.kind {
            ExprKind::Const(value) => Operand::Const(*value),
            ExprKind::Var(var) => self.state.variables[*var],
            ExprKind::Found => self.state.variables[self.found],
            ExprKind::Element(var, index) => {
                let index = self.number(index);
                let (at, field) = self.element(*var, index);
                let w = width_of(self.routine.variables[*var].field().0);
                let constant = self.b.program.fields[field].kind == FieldKind::Parameter;
                let version = self.field_version(field);
                self.b.load(at, w, version, constant)
            }
            ExprKind::Column(source, column) => {
                let row = self.row(*source);
                self.column(&row, *column)
            }
            ExprKind::Arithmetic(op, a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                self.b.arithmetic(*op, a, b)
            }
            ExprKind::Round(a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                self.round(a, b)
            }
            ExprKind::Fit(inner, lo, hi) => {
                let value = self.number(inner);
                self.fit(value, *lo, *hi)
            }
            ExprKind::Least(a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                self.select(Comparison::Le, a, b, |_| a, |_| b)
            }
            ExprKind::Greatest(a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                self.select(Comparison::Ge, a, b, |_| a, |_| b)
            }
            ExprKind::Case(arms, otherwise) => self.case(arms, otherwise.as_deref()),
            ExprKind::Compare(..) | ExprKind::And(..) | ExprKind::Or(..) | ExprKind::Not(_) => {
                let (yes, no) = (self.b.block(), self.b.block());
                self.branch(expr, yes, no);
                self.two_ways(yes, no, |_| Operand::Const(1), |_| Operand::Const(0))
            }
            // Texts are no numbers; the binder has seen to it.
            ExprKind::String(_)
            | ExprKind::Text(_)
            | ExprKind::Whole(_)
            | ExprKind::Choose { .. }
            | ExprKind::Concat(_)
            | ExprKind::Digits(..)
            | ExprKind::Sized(..)
            | ExprKind::Fitting(..)
            | ExprKind::Span(..)
            | ExprKind::Piece(..) => Operand::Const(0),
        }
    }

    /// A column that is a number.
    pub(super) fn column(&mut self, row: &Row, column: usize) -> Operand {
        match row {
            Row::Nowhere => Operand::Const(0),
            Row::Held { table, handle } => {
                let place = &self.schema(*table).columns()[column];
                let (offset, w) = (place.offset, width_of(place.column_type));
                let slot = self.slot(*table);
                let version = self.column_version(*table, column);
                let op = Op::LoadRow { row: *handle, slot, offset, w };
                Operand::Val(self.b.compute(op, version, range_of(w), false))
            }
            Row::Image { table, columns } => {
                let w = width_of(self.schema(*table).columns()[column].column_type);
                let Some(&at) = columns.get(&column) else { return Operand::Const(0) };
                let version = self.field_version(at.field);
                self.b.load(at, w, version, false)
            }
        }
    }

    /// Where an element of an array lies; elements are counted from 1.
    pub(super) fn element(&mut self, var: VarId, index: Operand) -> (At, usize) {
        let field = self.fields[var].unwrap_or(0);
        let (column_type, count) = self.routine.variables[var].field();
        let stride = i64::from(column_type.width().next_multiple_of(column_type.align()));
        let (lo, hi) = self.b.range(index);
        let inside = lo >= 1 && hi <= i64::from(count);
        if let Operand::Const(index) = index
            && inside
        {
            return (At { field, offset: ((index - 1) * stride) as i32, index: None }, field);
        }
        let (from, offset) = if inside && self.trusting {
            (index, -stride as i32)
        } else {
            let from_zero = self.b.arithmetic(Arithmetic::Sub, index, Operand::Const(1));
            let checked = match from_zero {
                Operand::Val(value) if !self.trusting => {
                    let range = (0, i64::from(count) - 1);
                    Operand::Val(self.b.compute(Op::Check(value, i64::from(count)), 0, range, false))
                }
                other => self.b.check(other, i64::from(count)),
            };
            (checked, 0)
        };
        let scaled = self.b.arithmetic(Arithmetic::Mul, from, Operand::Const(stride));
        let index = Some(self.b.in_value(scaled));
        (At { field, offset, index }, field)
    }

    /// The value, which lies between the two, or the procedure aborts.
    pub(super) fn fit(&mut self, value: Operand, lo: i64, hi: i64) -> Operand {
        let range = self.b.range(value);
        if range.0 >= lo && range.1 <= hi {
            return value;
        }
        let Some(limit) = hi.checked_sub(lo).and_then(|width| width.checked_add(1)) else { return value };
        let from_zero = self.b.arithmetic(Arithmetic::Sub, value, Operand::Const(lo));
        let checked = self.b.check(from_zero, limit);
        self.b.arithmetic(Arithmetic::Add, checked, Operand::Const(lo))
    }

    /// Division, rounded half away from zero.
    fn round(&mut self, a: Operand, b: Operand) -> Operand {
        if let Operand::Const(divisor @ 1..) = b {
            let (lo, hi) = self.b.range(a);
            if lo < i64::MIN + divisor / 2 || hi > i64::MAX - divisor / 2 {
                return self.round_large(a, divisor);
            }
            let half = Operand::Const(divisor / 2);
            let up = |this: &mut Self| {
                let sum = this.b.arithmetic(Arithmetic::Add, a, half);
                this.b.arithmetic(Arithmetic::Div, sum, b)
            };
            if lo >= 0 {
                return up(self);
            }
            return self.select(Comparison::Ge, a, Operand::Const(0), up, |this| {
                let sum = this.b.arithmetic(Arithmetic::Sub, a, half);
                this.b.arithmetic(Arithmetic::Div, sum, b)
            });
        }
        let quotient = self.b.arithmetic(Arithmetic::Div, a, b);
        let whole = self.b.arithmetic(Arithmetic::Mul, quotient, b);
        let rest = self.b.arithmetic(Arithmetic::Sub, a, whole);
        let (rest, divisor) = (self.magnitude(rest), self.magnitude(b));
        // Both are at most zero: twice the rest is the divisor or below when rest <= divisor - rest.
        let other = self.b.arithmetic(Arithmetic::Sub, divisor, rest);
        let sign = self.select(
            Comparison::Lt,
            a,
            Operand::Const(0),
            |this| this.select(Comparison::Lt, b, Operand::Const(0), |_| Operand::Const(1), |_| Operand::Const(-1)),
            |this| this.select(Comparison::Lt, b, Operand::Const(0), |_| Operand::Const(-1), |_| Operand::Const(1)),
        );
        let away = self.b.arithmetic(Arithmetic::Add, quotient, sign);
        self.select(Comparison::Le, rest, other, |_| away, |_| quotient)
    }

    /// Division by a positive constant, rounded, of what may have no room for half of the constant above or below.
    fn round_large(&mut self, a: Operand, divisor: i64) -> Operand {
        let quotient = self.b.arithmetic(Arithmetic::Div, a, Operand::Const(divisor));
        let whole = self.b.arithmetic(Arithmetic::Mul, quotient, Operand::Const(divisor));
        let rest = self.b.arithmetic(Arithmetic::Sub, a, whole);
        let half = divisor - divisor / 2;
        self.select(
            Comparison::Ge,
            rest,
            Operand::Const(half),
            |this| this.b.arithmetic(Arithmetic::Add, quotient, Operand::Const(1)),
            |this| {
                let less = |this: &mut Self| this.b.arithmetic(Arithmetic::Sub, quotient, Operand::Const(1));
                this.select(Comparison::Le, rest, Operand::Const(-half), less, |_| quotient)
            },
        )
    }

    /// Minus the magnitude, which always fits.
    pub(super) fn magnitude(&mut self, value: Operand) -> Operand {
        self.select(
            Comparison::Gt,
            value,
            Operand::Const(0),
            |this| this.b.arithmetic(Arithmetic::Sub, Operand::Const(0), value),
            |_| value,
        )
    }

    pub(super) fn select(
        &mut self,
        op: Comparison,
        a: Operand,
        b: Operand,
        yes: impl FnOnce(&mut Self) -> Operand,
        no: impl FnOnce(&mut Self) -> Operand,
    ) -> Operand {
        if let (Operand::Const(a), Operand::Const(b)) = (a, b) {
            return if op.holds(a.cmp(&b)) { yes(self) } else { no(self) };
        }
        let (then, otherwise) = (self.b.block(), self.b.block());
        self.b.branch(op, a, b, then, otherwise);
        self.two_ways(then, otherwise, yes, no)
    }

    /// A value that is made on one of two ways; control goes to both blocks already.
    fn two_ways(
        &mut self,
        then: BlockId,
        otherwise: BlockId,
        yes: impl FnOnce(&mut Self) -> Operand,
        no: impl FnOnce(&mut Self) -> Operand,
    ) -> Operand {
        let before = self.state.clone();
        let result = before.variables.len();
        let mut ways = Vec::new();
        self.arm(then, |this| {
            let value = yes(this);
            this.state.variables.push(value);
            ways.extend(this.way());
        });
        self.state = before;
        self.arm(otherwise, |this| {
            let value = no(this);
            this.state.variables.push(value);
            ways.extend(this.way());
        });
        self.meet(ways);
        let value = self.state.variables.get(result).copied().unwrap_or(Operand::Const(0));
        self.state.variables.truncate(result);
        value
    }

    /// Writes one of several ways, beginning in this block.
    pub(super) fn arm(&mut self, block: BlockId, write: impl FnOnce(&mut Self)) {
        self.b.start(block);
        self.b.enter();
        write(self);
        self.b.leave();
    }

    fn case(&mut self, arms: &[(Expr, Expr)], otherwise: Option<&Expr>) -> Operand {
        let Some(((condition, result), rest)) = arms.split_first() else {
            return match otherwise {
                Some(otherwise) => self.number(otherwise),
                None => {
                    // No arm: the value is out of range.
                    let value = self.b.in_value(Operand::Const(-1));
                    Operand::Val(self.b.compute(Op::Check(value, 1), 0, (0, 0), false))
                }
            };
        };
        let (yes, no) = (self.b.block(), self.b.block());
        self.branch(condition, yes, no);
        self.two_ways(yes, no, |this| this.number(result), |this| this.case(rest, otherwise))
    }

    /// Goes to `yes` if the condition holds, else to `no`.
    pub(super) fn branch(&mut self, condition: &Expr, yes: BlockId, no: BlockId) {
        match &condition.kind {
            ExprKind::Const(value) => self.b.end(End::Jump(if *value != 0 { yes } else { no })),
            ExprKind::Not(inner) => self.branch(inner, no, yes),
            ExprKind::And(a, b) => {
                let both = self.b.block();
                self.branch(a, both, no);
                self.arm(both, |this| this.branch(b, yes, no));
            }
            ExprKind::Or(a, b) => {
                let neither = self.b.block();
                self.branch(a, yes, neither);
                self.arm(neither, |this| this.branch(b, yes, no));
            }
            ExprKind::Compare(op, a, b) if matches!(a.ty, Ty::String(_)) => self.branch_strings(*op, a, b, yes, no),
            ExprKind::Compare(op, a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                self.b.branch(*op, a, b, yes, no);
            }
            _ => {
                let value = self.number(condition);
                self.b.branch(Comparison::Ne, value, Operand::Const(0), yes, no);
            }
        }
    }

    /// Aborts with this code if the condition is `when`.
    pub(super) fn trap(&mut self, condition: &Expr, when: bool, code: u16) {
        match (&condition.kind, when) {
            (ExprKind::Not(inner), _) => self.trap(inner, !when, code),
            (ExprKind::Or(a, b), true) | (ExprKind::And(a, b), false) => {
                self.trap(a, when, code);
                self.trap(b, when, code);
            }
            (ExprKind::Compare(op, a, b), _) if !matches!(a.ty, Ty::String(_)) => {
                let (a, b) = (self.number(a), self.number(b));
                let op = if when { *op } else { op.negate() };
                self.trap_if(op, a, b, code);
            }
            (ExprKind::And(..) | ExprKind::Or(..) | ExprKind::Compare(..) | ExprKind::Const(_), _) => {
                let (abort, on) = (self.b.block(), self.b.block());
                if when {
                    self.branch(condition, abort, on)
                } else {
                    self.branch(condition, on, abort)
                }
                self.b.start(abort);
                self.b.end(End::Abort(code));
                self.b.start(on);
            }
            _ => {
                let value = self.number(condition);
                let op = if when { Comparison::Ne } else { Comparison::Eq };
                self.trap_if(op, value, Operand::Const(0), code);
            }
        }
    }

    /// Ends the procedure here; what follows is written to a block that is thrown away.
    pub(super) fn stop(&mut self, end: End) {
        self.b.end(end);
        let dead = self.b.block();
        self.b.start(dead);
        self.b.end(End::Commit);
    }

    fn trap_if(&mut self, op: Comparison, a: Operand, b: Operand, code: u16) {
        let (op, left, right) = match (a, b) {
            (Operand::Const(x), Operand::Const(y)) => {
                if op.holds(x.cmp(&y)) {
                    self.stop(End::Abort(code));
                }
                return;
            }
            (Operand::Const(_), Operand::Val(value)) => (op.flip(), value, a),
            (Operand::Val(value), _) => (op, value, b),
        };
        match self.b.decided(op, left, right) {
            Some(false) => {}
            Some(true) => self.stop(End::Abort(code)),
            None => self.b.push(Op::Trap { op, left, right, code }, None),
        }
    }
}
