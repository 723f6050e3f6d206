//! Values of arguments and results, and their way into and out of a block.

use std::cmp::Ordering;
use std::fmt;

use lockwork_procedure::program::{Field as BlockField, Procedure};

use crate::STATEMENT;
use crate::catalogue::Constant;
use crate::compile::{Compiled, Field};
use crate::error::{SqlError, state};
use crate::syntax::{Comparison, Place};
use crate::types::{MAX_PRECISION, SqlType, described, power_of_ten, round, timestamp_text};

/// A value of SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// An integer.
    Integer(i64),
    /// A truth value.
    Boolean(bool),
    /// A decimal: the number times 10^scale, and the scale.
    Decimal(i64, u8),
    /// Microseconds since 1970-01-01 00:00:00 UTC.
    Timestamp(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// The elements of an array.
    Array(Vec<Value>),
    /// A number with more digits than the variants above hold, as its text. It is rounded where it is assigned, and
    /// compares exactly where rows are sought by it.
    Numeric(String),
    /// None, which finds no rows and goes nowhere else.
    Null,
}

impl Value {
    pub(crate) fn of_constant(constant: Constant, sql: Option<SqlType>) -> Self {
        match (constant, sql) {
            (Constant::Number(value), Some(sql)) => Self::of_number(value, sql),
            (Constant::Number(value), None) => Self::Integer(value),
            (Constant::String(bytes), Some(SqlType::Bytes(_)) | None) => Self::Bytes(bytes),
            (Constant::String(bytes), Some(_)) => Self::Text(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// The value that variables of a type begin with.
    pub(crate) fn zero(sql: SqlType) -> Self {
        match sql {
            SqlType::Text(_) => Self::Text(String::new()),
            SqlType::Bytes(_) => Self::Bytes(Vec::new()),
            _ => Self::of_number(0, sql),
        }
    }

    /// The order of values of one type, as keys have it.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let number = |value: &Self| match value {
            Self::Integer(number) | Self::Timestamp(number) | Self::Decimal(number, _) => Some(*number),
            Self::Boolean(truth) => Some(i64::from(*truth)),
            _ => None,
        };
        // Zero bytes at the end do not count.
        let bytes = |value: &Self| -> Vec<u8> {
            let bytes = match value {
                Self::Text(text) => text.as_bytes(),
                Self::Bytes(bytes) => bytes,
                _ => &[],
            };
            shortened(bytes, bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u32 + 1))
                .unwrap_or_default()
                .to_vec()
        };
        match (number(self), number(other)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => bytes(self).cmp(&bytes(other)),
        }
    }

    fn of_number(value: i64, sql: SqlType) -> Self {
        match sql {
            SqlType::Boolean => Self::Boolean(value != 0),
            SqlType::Decimal(_, scale) => Self::Decimal(value, scale),
            SqlType::Timestamp => Self::Timestamp(value),
            _ => Self::Integer(value),
        }
    }

    /// The number that is stored for it in a type; none if it does not fit, or the type is of texts or bytes.
    #[must_use]
    pub fn stored(&self, sql: SqlType) -> Option<i64> {
        let value = match (self, sql) {
            (Self::Integer(value), SqlType::Integer(_) | SqlType::Timestamp) => *value,
            (Self::Integer(value), SqlType::Decimal(_, scale)) => value.checked_mul(power_of_ten(scale))?,
            (Self::Decimal(value, from), SqlType::Decimal(_, to)) if *from <= to && to - from <= 18 => {
                value.checked_mul(power_of_ten(to - from))?
            }
            (Self::Boolean(value), SqlType::Boolean) => i64::from(*value),
            (Self::Timestamp(value), SqlType::Timestamp) => *value,
            _ => return None,
        };
        let (lo, hi) = sql.range()?;
        (lo..=hi).contains(&value).then_some(value)
    }

    /// Whether it is a value of the type.
    pub(crate) fn fits(&self, sql: SqlType) -> bool {
        match (self, sql) {
            (Self::Text(text), SqlType::Text(n)) => text.len() <= n as usize,
            (Self::Bytes(bytes), SqlType::Bytes(n)) => bytes.len() <= n as usize,
            _ => self.stored(sql).is_some(),
        }
    }

    /// What is wrong with it as a value of a type.
    pub(crate) fn misfit(&self, sql: SqlType) -> Result<(), SqlError> {
        let length = self.bytes();
        let is_number = |value: &Self| {
            matches!(value, Self::Integer(_) | Self::Decimal(..) | Self::Timestamp(_) | Self::Numeric(_))
        };
        let (sqlstate, message) = match sql {
            SqlType::Text(n) | SqlType::Bytes(n) if length > n as usize => {
                (state::TOO_LONG, format!("{length} bytes do not fit {}", described(sql)))
            }
            SqlType::Integer(_) | SqlType::Decimal(..) if is_number(self) && self.stored(sql).is_none() => {
                (state::OUT_OF_RANGE, format!("{self} is out of the range of {sql}"))
            }
            _ => return Ok(()),
        };
        Err(SqlError::new(sqlstate, Place::START, message))
    }

    /// The value as one of a type that it is assigned to: a number is rounded half away from zero to its scale.
    ///
    /// # Errors
    /// It does not fit (SQLSTATE 22003, 22001).
    pub(crate) fn assigned(&self, sql: SqlType) -> Result<Self, SqlError> {
        let scale = match sql {
            SqlType::Decimal(_, scale) => scale,
            _ => 0,
        };
        let is_of_numbers = matches!(sql, SqlType::Integer(_) | SqlType::Decimal(..));
        let number = match self {
            Self::Decimal(value, from) if is_of_numbers && *from > scale => {
                Some(i128::from(round(*value, power_of_ten((from - scale).min(18)))))
            }
            Self::Numeric(text) if is_of_numbers => crate::text::Digits::of(text).map(|digits| digits.rounded(scale)),
            Self::Array(values) => {
                let values = values.iter().map(|value| value.assigned(sql)).collect::<Result<_, _>>()?;
                return Ok(Self::Array(values));
            }
            _ => None,
        };
        let Some(number) = number else { return self.misfit(sql).map(|()| self.clone()) };
        let is_inside = |value: &i64| sql.range().is_some_and(|(first, last)| (first..=last).contains(value));
        match i64::try_from(number).ok().filter(is_inside) {
            Some(number) => Ok(Self::of_number(number, sql)),
            None => {
                let message = format!("{self:.40} is out of the range of {sql}");
                Err(SqlError::new(state::OUT_OF_RANGE, Place::START, message))
            }
        }
    }

    /// Whether it takes part in expressions as a value of a type, which keeps all of its digits.
    ///
    /// # Errors
    /// It does not (SQLSTATE 22003, 22001).
    pub(crate) fn operand(&self, sql: SqlType) -> Result<(), SqlError> {
        let has = if let SqlType::Decimal(_, scale) = sql { scale } else { 0 };
        let outside = |message| SqlError::new(state::OUT_OF_RANGE, Place::START, message);
        match (self, sql) {
            (Self::Numeric(text), SqlType::Integer(_) | SqlType::Decimal(..)) => {
                let message =
                    format!("{text:.40} has more than {MAX_PRECISION} digits, and an expression computes with these");
                Err(outside(message).hint("round it, or write CAST($n AS DECIMAL(p, s))"))
            }
            (Self::Decimal(_, from), SqlType::Integer(_) | SqlType::Decimal(..)) if *from > has => {
                let message = format!("{self} has {from} decimals, and the statement is compiled for {has}");
                Err(outside(message).hint("prepare the statement for values with more decimals"))
            }
            _ => self.misfit(sql),
        }
    }

    /// The value as one that compares with those of a type as it does itself. The type is wider than what it is
    /// compared with: of a longer text the last byte that there is room for says that it goes on.
    ///
    /// # Errors
    /// It is a number that 64 bits do not hold, or has decimals (SQLSTATE 22003).
    pub(crate) fn compared(&self, sql: SqlType) -> Result<Self, SqlError> {
        let (bytes, most) = match (self, sql) {
            (Self::Text(text), SqlType::Text(n)) => (text.as_bytes(), n as usize),
            (Self::Bytes(bytes), SqlType::Bytes(n)) => (bytes.as_slice(), n as usize),
            _ => return self.operand(sql).map(|()| self.clone()),
        };
        if bytes.len() <= most {
            return Ok(self.clone());
        }
        let mut kept = bytes[..most].to_vec();
        if let Some(last) = kept.last_mut().filter(|last| **last == 0) {
            *last = u8::from(bytes[most..].iter().any(|&byte| byte != 0));
        }
        Ok(Self::Bytes(kept))
    }

    /// How many bytes it has as a text.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// How many decimals it has.
    pub(crate) fn decimals(&self) -> u8 {
        match self {
            Self::Decimal(_, scale) => *scale,
            _ => 0,
        }
    }

    /// The value of a column's type that finds the rows which compare with this one like `op`, where `<` and `>` find
    /// the value itself too; none if there are no such rows.
    pub(crate) fn sought(&self, op: Comparison, sql: SqlType) -> Option<Self> {
        let number = match (self, sql) {
            (Self::Null, _) => return None,
            (Self::Text(text), SqlType::Text(n)) => return shortened(text.as_bytes(), n).map(|_| self.clone()),
            (Self::Bytes(bytes), SqlType::Bytes(n)) => {
                return shortened(bytes, n).map(|bytes| Self::Bytes(bytes.into()));
            }
            (Self::Boolean(truth), SqlType::Boolean) => i64::from(*truth).into(),
            (Self::Timestamp(micros), SqlType::Timestamp) => i128::from(*micros),
            (Self::Integer(number), SqlType::Integer(_) | SqlType::Timestamp) => i128::from(*number),
            (Self::Integer(number), SqlType::Decimal(_, scale)) => {
                i128::from(*number) * i128::from(power_of_ten(scale))
            }
            (Self::Decimal(number, from), SqlType::Decimal(_, to)) if from <= &to => {
                i128::from(*number) * i128::from(power_of_ten((to - from).min(18)))
            }
            (Self::Decimal(..) | Self::Numeric(_), SqlType::Integer(_) | SqlType::Decimal(..)) => {
                let scale = if let SqlType::Decimal(_, scale) = sql { scale } else { 0 };
                let (floor, is_exact) = self.floor(scale)?;
                match op {
                    _ if is_exact => floor,
                    // The bound that is not included is the one on the other side of the value.
                    Comparison::Lt => floor + 1,
                    Comparison::Gt => floor,
                    Comparison::Le => floor,
                    Comparison::Ge => floor + 1,
                    _ => return None,
                }
            }
            // It is refused when it is written.
            _ => return Some(self.clone()),
        };
        let (first, last) = sql.range().map(|(first, last)| (i128::from(first), i128::from(last)))?;
        let number = match op {
            Comparison::Lt => number - 1,
            Comparison::Gt => number + 1,
            _ => number,
        };
        let found = match op {
            Comparison::Lt | Comparison::Le => number.min(last),
            Comparison::Gt | Comparison::Ge => number.max(first),
            _ => number,
        };
        (first..=last).contains(&found).then(|| Self::of_number(found as i64, sql))
    }

    /// The greatest number with so many decimals that is not above this one, times 10^scale, and whether it is this
    /// one.
    fn floor(&self, scale: u8) -> Option<(i128, bool)> {
        match self {
            Self::Decimal(number, from) if *from > scale => {
                let power = power_of_ten((from - scale).min(18));
                Some((i128::from(number.div_euclid(power)), number.rem_euclid(power) == 0))
            }
            Self::Numeric(text) => crate::text::Digits::of(text).map(|digits| digits.floor(scale)),
            _ => self.stored(SqlType::Decimal(MAX_PRECISION, scale)).map(|number| (number.into(), true)),
        }
    }

    /// Writes it into the bytes of an element of a type; none if it does not fit, or there are fewer bytes.
    #[must_use]
    pub fn write(&self, sql: SqlType, bytes: &mut [u8]) -> Option<()> {
        bytes.fill(0);
        match (self, sql) {
            (Self::Text(text), SqlType::Text(_) | SqlType::Bytes(_)) => {
                bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
            }
            (Self::Bytes(text), SqlType::Text(_) | SqlType::Bytes(_)) => {
                bytes.get_mut(..text.len())?.copy_from_slice(text);
            }
            _ => {
                let width = bytes.len().min(8);
                bytes.copy_from_slice(&self.stored(sql)?.to_le_bytes()[..width]);
            }
        }
        Some(())
    }

    /// Reads it from the bytes of an element.
    #[must_use]
    pub fn read(sql: SqlType, bytes: &[u8]) -> Self {
        let text = || {
            let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            &bytes[..end]
        };
        match sql {
            SqlType::Text(_) => Self::Text(String::from_utf8_lossy(text()).into_owned()),
            SqlType::Bytes(_) => Self::Bytes(bytes.to_vec()),
            _ => {
                let mut word = [0; 8];
                let width = bytes.len().min(8);
                word[..width].copy_from_slice(&bytes[..width]);
                let unused = 64 - 8 * width as u32;
                let value = i64::from_le_bytes(word);
                let value = match sql.storage().is_signed() {
                    true => (value << unused) >> unused,
                    false => value,
                };
                Self::of_number(value, sql)
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Timestamp(micros) => f.write_str(&timestamp_text(*micros)),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Decimal(value, 0) => write!(f, "{value}"),
            Self::Decimal(value, scale) => {
                let power = power_of_ten((*scale).min(18)).unsigned_abs();
                let (whole, part) = (value.unsigned_abs() / power, value.unsigned_abs() % power);
                let sign = if *value < 0 { "-" } else { "" };
                write!(f, "{sign}{whole}.{part:0width$}", width = usize::from(*scale))
            }
            Self::Null => f.write_str("NULL"),
            Self::Text(text) | Self::Numeric(text) => f.pad(text),
            Self::Bytes(bytes) => {
                f.write_str("\\x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Array(values) => {
                f.write_str("{")?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { "," })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Bytes without zeros at their end that are too many; none if there are others.
fn shortened(bytes: &[u8], most: u32) -> Option<&[u8]> {
    let (kept, more) = bytes.split_at(bytes.len().min(most as usize));
    more.iter().all(|byte| *byte == 0).then_some(kept)
}

fn refused(procedure: &Procedure, message: String) -> SqlError {
    let message = match procedure.name.starts_with(STATEMENT) {
        true => message,
        false => format!("procedure '{}': {message}", procedure.name),
    };
    SqlError::new(state::DATATYPE, Place::START, message)
}

impl Compiled {
    /// Writes arguments into a block.
    ///
    /// # Errors
    /// Their number is another, one is not of its parameter's type, or the block is too short.
    pub fn write_arguments(&self, arguments: &[Value], block: &mut [u8]) -> Result<(), SqlError> {
        if arguments.len() != self.parameters.len() {
            let (given, needed) = (arguments.len(), self.parameters.len());
            return Err(refused(&self.procedure, format!("{given} arguments are given, {needed} are needed")));
        }
        let fields = self.parameters.iter().zip(&self.procedure.parameters);
        for ((field, place), value) in fields.zip(arguments) {
            let wrong = || {
                let ty = field.sql_type.map_or_else(|| "rows".to_string(), described);
                let what = match self.procedure.name.starts_with(STATEMENT) {
                    true => "a value".into(),
                    false => format!("argument '{}'", field.name),
                };
                refused(&self.procedure, format!("{what} is {value}, and {ty} is needed"))
            };
            let sql = field.sql_type.ok_or_else(wrong)?;
            let one = std::slice::from_ref(value);
            let values = match (value, field.count) {
                (Value::Array(values), Some(count)) if values.len() <= count as usize => values.as_slice(),
                (Value::Array(_), _) | (_, Some(_)) => return Err(wrong()),
                (_, None) => one,
            };
            for (at, value) in values.iter().enumerate() {
                let bytes = element(place, at).and_then(|range| block.get_mut(range)).ok_or_else(wrong)?;
                value.write(sql, bytes).ok_or_else(wrong)?;
            }
        }
        Ok(())
    }

    /// An argument in a block, by its number.
    pub(crate) fn argument(&self, at: usize, block: &[u8]) -> Option<Value> {
        let (field, place) = (self.parameters.get(at)?, self.procedure.parameters.get(at)?);
        Some(Value::read(field.sql_type?, block.get(element(place, 0)?)?))
    }

    /// Reads the results of a block, in the order of [`Self::results`]; whole rows are bytes.
    ///
    /// # Errors
    /// The block is too short.
    pub fn read_results(&self, block: &[u8]) -> Result<Vec<Value>, SqlError> {
        let short = || refused(&self.procedure, "the block is too short".into());
        let read = |(field, place): (&Field, &BlockField)| {
            let sql = field.sql_type.unwrap_or(SqlType::of_storage(place.column_type));
            let one = |at: usize| {
                let bytes = element(place, at).and_then(|range| block.get(range)).ok_or_else(short)?;
                Ok(Value::read(sql, bytes))
            };
            match field.count {
                None => one(0),
                Some(_) => (0..place.count as usize).map(one).collect::<Result<_, _>>().map(Value::Array),
            }
        };
        self.results.iter().zip(&self.procedure.results).map(read).collect()
    }
}

fn element(place: &BlockField, at: usize) -> Option<std::ops::Range<usize>> {
    let start = place.offset as usize + at * place.element_stride() as usize;
    start.checked_add(place.column_type.width() as usize).map(|end| start..end)
}
