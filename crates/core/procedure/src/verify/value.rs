//! What is known of a register.

use super::structure::Writes;

/// An interval of integers, both ends included, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) lo: i64,
    pub(super) hi: i64,
}

impl Interval {
    pub(super) const ALL: Self = Self { lo: i64::MIN, hi: i64::MAX };

    pub(super) const fn exactly(value: i64) -> Self {
        Self { lo: value, hi: value }
    }

    /// The interval from `lo` to `hi`, unless it is empty.
    pub(super) fn new(lo: i64, hi: i64) -> Option<Self> {
        (lo <= hi).then_some(Self { lo, hi })
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    pub(super) fn meet(self, other: Self) -> Option<Self> {
        Self::new(self.lo.max(other.lo), self.hi.min(other.hi))
    }

    pub(super) fn within(self, outer: Self) -> bool {
        self.lo >= outer.lo && self.hi <= outer.hi
    }

    /// Jumps to the end of the range wherever `next` is wider, so that loops settle quickly.
    fn widen(self, next: Self) -> Self {
        Self {
            lo: if next.lo < self.lo { i64::MIN } else { self.lo },
            hi: if next.hi > self.hi { i64::MAX } else { self.hi },
        }
    }

    /// The values that `lo..=hi` leaves after values outside the 64-bit range have aborted, and whether some abort.
    fn clipped(lo: i128, hi: i128) -> (Self, bool) {
        let (min, max) = (i128::from(i64::MIN), i128::from(i64::MAX));
        let aborts = lo < min || hi > max;
        (Self { lo: lo.clamp(min, max) as i64, hi: hi.clamp(min, max) as i64 }, aborts)
    }

    pub(super) fn add(self, other: Self) -> (Self, bool) {
        Self::clipped(i128::from(self.lo) + i128::from(other.lo), i128::from(self.hi) + i128::from(other.hi))
    }

    pub(super) fn sub(self, other: Self) -> (Self, bool) {
        Self::clipped(i128::from(self.lo) - i128::from(other.hi), i128::from(self.hi) - i128::from(other.lo))
    }

    pub(super) fn mul(self, other: Self) -> (Self, bool) {
        let corner = |a: i64, b: i64| i128::from(a) * i128::from(b);
        Self::around([
            corner(self.lo, other.lo),
            corner(self.lo, other.hi),
            corner(self.hi, other.lo),
            corner(self.hi, other.hi),
        ])
    }

    fn around(corners: [i128; 4]) -> (Self, bool) {
        let lo = corners.iter().copied().fold(i128::MAX, i128::min);
        let hi = corners.iter().copied().fold(i128::MIN, i128::max);
        Self::clipped(lo, hi)
    }

    /// Truncated division; a divisor of zero aborts.
    pub(super) fn div(self, other: Self) -> (Self, bool) {
        let by = |divisor: Self| {
            let corner = |a: i64, b: i64| i128::from(a) / i128::from(b);
            Self::around([
                corner(self.lo, divisor.lo),
                corner(self.lo, divisor.hi),
                corner(self.hi, divisor.lo),
                corner(self.hi, divisor.hi),
            ])
        };
        let negative = other.meet(Self { lo: i64::MIN, hi: -1 }).map(by);
        let positive = other.meet(Self { lo: 1, hi: i64::MAX }).map(by);
        let zero = other.lo <= 0 && other.hi >= 0;
        match (negative, positive) {
            (Some((a, x)), Some((b, y))) => (a.join(b), x || y || zero),
            (Some((a, x)), None) | (None, Some((a, x))) => (a, x || zero),
            (None, None) => (Self::exactly(0), true),
        }
    }
}

/// What a general-purpose register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing that may be used.
    Undefined,
    /// An integer.
    Integer(Interval),
    /// The handle of a row of the table in `slot`.
    Row {
        /// Slot of the table.
        slot: u8,
        /// Whether the row may be written.
        write: bool,
    },
}

impl Value {
    pub(super) fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Self::Integer(a.join(b)),
            (Self::Row { slot: a, write: x }, Self::Row { slot: b, write: y }) if a == b => {
                Self::Row { slot: a, write: x && y }
            }
            _ => Self::Undefined,
        }
    }

    fn widen(self, next: Self) -> Self {
        match (self, next) {
            (Self::Integer(a), Self::Integer(b)) => Self::Integer(a.widen(b)),
            _ => next,
        }
    }
}

/// A CP register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cp {
    /// No DB instruction is in flight.
    Free,
    /// The DB instruction whose answer it will hold.
    InFlight {
        /// What a RET delivers.
        answer: Value,
        /// Whether a RET may find nothing.
        may_miss: bool,
    },
}

/// What the comparison flag tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    /// No comparison was made.
    Undefined,
    /// One was made, of values that are gone.
    Opaque,
    /// The flag compares what register `left` holds now with `right`.
    Compares {
        /// A register.
        left: u8,
        /// A register or a constant.
        right: Right,
    },
}

/// The right side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Register(u8),
    Constant(i64),
}

/// Everything known before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) registers: Box<[Value; 256]>,
    pub(super) cps: Box<[Cp; 256]>,
    pub(super) flag: Flag,
}

impl State {
    pub(super) fn entry() -> Self {
        let mut registers = Box::new([Value::Undefined; 256]);
        registers[0] = Value::Integer(Interval::exactly(0));
        Self { registers, cps: Box::new([Cp::Free; 256]), flag: Flag::Undefined }
    }

    /// Gives a register a value; a comparison with the old one is worth nothing now.
    pub(super) fn set(&mut self, register: u8, value: Value) {
        self.registers[usize::from(register)] = value;
        if let Flag::Compares { left, right } = self.flag
            && (left == register || right == Right::Register(register))
        {
            self.flag = Flag::Opaque;
        }
    }

    /// What holds on either of two ways here; the first CP register that differs, if any does.
    pub(super) fn join(&self, other: &Self) -> Result<Self, u8> {
        let mut joined = self.clone();
        for (mine, theirs) in joined.registers.iter_mut().zip(other.registers.iter()) {
            *mine = mine.join(*theirs);
        }
        for (number, (mine, theirs)) in joined.cps.iter_mut().zip(other.cps.iter()).enumerate() {
            *mine = match (*mine, *theirs) {
                (a, b) if a == b => a,
                // Scans with different limits, say: the same kind of answer.
                (Cp::InFlight { answer: a, may_miss: x }, Cp::InFlight { answer: b, may_miss: y })
                    if x == y && a.join(b) != Value::Undefined && matches!(a, Value::Integer(_)) =>
                {
                    Cp::InFlight { answer: a.join(b), may_miss: x }
                }
                _ => return Err(number as u8),
            };
        }
        joined.flag = match (self.flag, other.flag) {
            (a, b) if a == b => a,
            (Flag::Undefined, _) | (_, Flag::Undefined) => Flag::Undefined,
            _ => Flag::Opaque,
        };
        Ok(joined)
    }

    pub(super) fn widen(&self, next: &Self) -> Self {
        let mut widened = next.clone();
        for (slot, before) in widened.registers.iter_mut().zip(self.registers.iter()) {
            *slot = before.widen(*slot);
        }
        widened
    }
}

/// Whether `value` fits a field of this width and sign.
pub(super) fn fits(value: Interval, w: Writes) -> bool {
    value.within(w.range())
}
