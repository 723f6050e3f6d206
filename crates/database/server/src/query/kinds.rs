//! Kinds of values: how SQLite holds them, and what clients see.
//!
//! A DECIMAL is an integer for SQLite, the value times 10^scale. Scales are known when a query is understood, so
//! nothing is rounded unless the query asks for it: what does not fit 64 bits is refused when it comes up.

use bytes::{BufMut, BytesMut};
use lockwork::sql::{Field, SqlType, Value};
use pgwire::api::Type;
use pgwire::api::results::FieldFormat;
use rusqlite::types::{Value as Given, ValueRef};

use crate::error::{Refusal, refuse};
use crate::values::{DAY, EPOCH, encode, put_numeric, type_of, with_length};

/// The most digits behind the point.
pub(super) const MAX_DECIMALS: u8 = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An integer of so many bytes: 2, 4 or 8.
    Integer(u8),
    /// A number times 10^scale.
    Decimal(u8),
    /// Double precision: what divisions of exact numbers make, which clients see as `numeric`.
    Quotient,
    /// Double precision.
    Double,
    Boolean,
    /// Microseconds since 1970.
    Timestamp,
    /// The same, with the zone of the server, which is UTC.
    Moment,
    /// A day: the microseconds of its midnight.
    Date,
    Text,
    Bytes,
    /// A text in the standard form of a UUID.
    Uuid,
}

fn field(name: &str, sql: SqlType) -> Field {
    Field { name: name.into(), sql_type: Some(sql), count: None }
}

impl Kind {
    pub(super) fn of(sql: SqlType) -> Self {
        match sql {
            SqlType::Boolean => Self::Boolean,
            SqlType::Decimal(_, scale) => Self::Decimal(scale),
            SqlType::Timestamp => Self::Timestamp,
            SqlType::Text(_) => Self::Text,
            SqlType::Bytes(_) => Self::Bytes,
            integer => match type_of(&field("", integer)).0 {
                Type::INT2 => Self::Integer(2),
                Type::INT4 => Self::Integer(4),
                _ => Self::Integer(8),
            },
        }
    }

    /// The type of a parameter that stands beside one of this kind.
    pub(super) fn parameter(self) -> SqlType {
        match self {
            Self::Integer(2) => SqlType::SMALLINT,
            Self::Integer(4) => SqlType::INTEGER,
            Self::Integer(_) => SqlType::BIGINT,
            Self::Decimal(scale) => SqlType::Decimal(18, scale),
            Self::Quotient | Self::Double => SqlType::Decimal(18, 6),
            Self::Boolean => SqlType::Boolean,
            Self::Timestamp | Self::Moment | Self::Date => SqlType::Timestamp,
            Self::Text | Self::Uuid => SqlType::Text(u32::MAX),
            Self::Bytes => SqlType::Bytes(u32::MAX),
        }
    }

    /// The decimals of an exact number.
    pub(super) fn scale(self) -> Option<u8> {
        match self {
            Self::Integer(_) => Some(0),
            Self::Decimal(scale) => Some(scale),
            _ => None,
        }
    }

    pub(super) fn is_number(self) -> bool {
        self.scale().is_some() || matches!(self, Self::Quotient | Self::Double)
    }

    /// Whether it is microseconds since 1970.
    pub(super) fn is_time(self) -> bool {
        matches!(self, Self::Timestamp | Self::Moment | Self::Date)
    }

    /// The kind of a parameter that a client says the type of; nothing for types that only what stands beside it can
    /// say the decimals of.
    pub(super) fn declared(ty: &Type) -> Option<Self> {
        Some(match *ty {
            Type::INT2 => Self::Integer(2),
            Type::INT4 => Self::Integer(4),
            Type::INT8 => Self::Integer(8),
            Type::BOOL => Self::Boolean,
            Type::TIMESTAMP => Self::Timestamp,
            Type::TIMESTAMPTZ => Self::Moment,
            Type::DATE => Self::Date,
            Type::BYTEA => Self::Bytes,
            _ => return None,
        })
    }

    /// The kind that values of two kinds can have without losing anything; of an exact number and one in double
    /// precision, the latter.
    pub(super) fn common(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(Self::Integer(a.max(b))),
            (Self::Double, other) | (other, Self::Double) if other.is_number() => Some(Self::Double),
            (Self::Quotient, other) | (other, Self::Quotient) if other.is_number() => Some(Self::Quotient),
            _ if self == other => Some(self),
            (a, b) if a.is_time() && b.is_time() => {
                Some(if a == Self::Moment || b == Self::Moment { Self::Moment } else { Self::Timestamp })
            }
            _ => Some(Self::Decimal(self.scale()?.max(other.scale()?))),
        }
    }

    /// Whether values of two kinds are held in the same way, so that they can be compared as they are.
    pub(super) fn is_alike(self, other: Self) -> bool {
        self == other
            || matches!((self, other), (Self::Integer(_), Self::Integer(_)))
            || self.is_time() && other.is_time()
    }

    /// What it is called in messages.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Integer(2) => "smallint",
            Self::Integer(4) => "integer",
            Self::Integer(_) => "bigint",
            Self::Decimal(_) | Self::Quotient => "numeric",
            Self::Double => "double precision",
            Self::Boolean => "boolean",
            Self::Timestamp => "timestamp",
            Self::Moment => "timestamp with time zone",
            Self::Date => "date",
            Self::Text => "text",
            Self::Bytes => "bytea",
            Self::Uuid => "uuid",
        }
    }

    /// The type and modifier that clients see; `own` is that of a column.
    pub(super) fn outside(self, own: Option<SqlType>) -> (Type, i32) {
        if let Some(own) = own {
            return type_of(&field("", own));
        }
        let ty = match self {
            Self::Integer(2) => Type::INT2,
            Self::Integer(4) => Type::INT4,
            Self::Integer(_) => Type::INT8,
            Self::Decimal(_) | Self::Quotient => Type::NUMERIC,
            Self::Double => Type::FLOAT8,
            Self::Boolean => Type::BOOL,
            Self::Timestamp => Type::TIMESTAMP,
            Self::Moment => Type::TIMESTAMPTZ,
            Self::Date => Type::DATE,
            Self::Text => Type::TEXT,
            Self::Bytes => Type::BYTEA,
            Self::Uuid => Type::UUID,
        };
        (ty, -1)
    }
}

/// A parameter's value as SQLite has it.
pub(super) fn given(value: &Value, field: &Field) -> Result<Given, Refusal> {
    let wrong = || {
        let ty = field.sql_type.map_or("?", |sql| Kind::of(sql).word());
        refuse("22003", format!("parameter {}: {value} is no value of type {ty} here", field.name))
    };
    let sql = field.sql_type.ok_or_else(wrong)?;
    if let Value::Array(elements) = value {
        let is_number = matches!(sql, SqlType::Integer(_) | SqlType::Decimal(..));
        // Nothing is equal to a number with more digits than the type has.
        let has_equals = |element: &&Value| match element {
            Value::Integer(_) | Value::Decimal(..) | Value::Numeric(_) => !is_number || element.stored(sql).is_some(),
            _ => true,
        };
        let element = |element| given(element, field).map(|element| in_json(&element));
        let elements = elements.iter().filter(has_equals).map(element).collect::<Result<Vec<_>, _>>()?;
        return Ok(Given::Text(format!("[{}]", elements.join(","))));
    }
    let number = match (value, sql) {
        (Value::Null, _) => return Ok(Given::Null),
        (Value::Text(text), SqlType::Text(_)) => return Ok(Given::Text(text.clone())),
        (Value::Bytes(bytes), SqlType::Bytes(_)) => return Ok(Given::Blob(bytes.clone())),
        (Value::Text(text), SqlType::Bytes(_)) => return Ok(Given::Blob(text.as_bytes().to_vec())),
        (Value::Integer(number), SqlType::Integer(_)) | (Value::Timestamp(number), SqlType::Timestamp) => *number,
        (Value::Boolean(truth), SqlType::Boolean) => i64::from(*truth),
        (Value::Integer(number), SqlType::Decimal(_, scale)) => {
            number.checked_mul(10_i64.pow(scale.into())).ok_or_else(wrong)?
        }
        (Value::Decimal(number, from), SqlType::Decimal(_, to)) if *from <= to => {
            number.checked_mul(10_i64.pow((to - from).into())).ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    let is_inside = sql.range().is_some_and(|(lowest, highest)| (lowest..=highest).contains(&number));
    if is_inside { Ok(Given::Integer(number)) } else { Err(wrong()) }
}

/// A value as JSON, which is how SQLite gets an array.
fn in_json(value: &Given) -> String {
    let Given::Text(text) = value else {
        return if let Given::Integer(number) = value { number.to_string() } else { "null".into() };
    };
    let mut json = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\0'..='\x1f' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// A number and its decimals from the text of one, without zeros behind the last possible decimal; nothing if it is
/// none or does not fit.
pub(super) fn decimal(text: &str) -> Option<(i64, u8)> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let mut digits: i64 = format!("{whole}{part}").parse().ok()?;
    let mut scale = i32::try_from(part.len()).ok()?.checked_sub(exponent)?;
    while scale > MAX_DECIMALS.into() && digits % 10 == 0 {
        (digits, scale) = (digits / 10, scale - 1);
    }
    if scale < 0 {
        digits = digits.checked_mul(10_i64.checked_pow(scale.unsigned_abs())?)?;
    }
    let scale = u8::try_from(scale.max(0)).ok()?;
    (scale <= MAX_DECIMALS).then_some((digits, scale))
}

/// A number in double precision with 15 digits, as PostgreSQL makes a `numeric` of one.
fn shortened(number: f64) -> Option<(i128, u8)> {
    if !number.is_finite() {
        return None;
    }
    let text = format!("{number:.14e}");
    let (digits, exponent) = text.split_once('e')?;
    let mut digits: i128 = digits.replace('.', "").parse().ok()?;
    let mut exponent = exponent.parse::<i32>().ok()? - 14;
    while exponent < 0 && (digits % 10 == 0 || exponent < -30) {
        (digits, exponent) = (digits / 10, exponent + 1);
        if digits == 0 {
            return Some((0, 0));
        }
    }
    if exponent > 20 {
        return None;
    }
    let digits = if exponent > 0 { digits * 10_i128.pow(exponent.unsigned_abs()) } else { digits };
    Some((digits, (-exponent.min(0)) as u8))
}

fn plain(digits: i128, scale: u8) -> String {
    let scale = usize::from(scale);
    let text = format!("{:0>width$}", digits.unsigned_abs(), width = scale + 1);
    let (whole, part) = text.split_at(text.len() - scale);
    let (sign, point) = (if digits < 0 { "-" } else { "" }, if part.is_empty() { "" } else { "." });
    format!("{sign}{whole}{point}{part}")
}

/// A time as text.
pub(super) fn time_text(micros: i64, kind: Kind) -> String {
    let text = Value::Timestamp(micros).to_string();
    match kind {
        Kind::Moment => text + "+00",
        Kind::Date => text.split(' ').next().unwrap_or_default().into(),
        _ => text,
    }
}

/// A number in double precision as text.
pub(super) fn real_text(number: f64, is_quotient: bool) -> Option<String> {
    if is_quotient {
        return shortened(number).map(|(digits, scale)| plain(digits, scale));
    }
    number.is_finite().then(|| number.to_string())
}

/// Appends a cell and its length, as a DataRow has it.
pub(super) fn put(
    value: ValueRef<'_>,
    kind: Kind,
    ty: &Type,
    format: FieldFormat,
    row: &mut BytesMut,
) -> Result<(), Refusal> {
    let number = match (value, kind) {
        (ValueRef::Null, _) => {
            row.put_i32(-1);
            return Ok(());
        }
        (ValueRef::Text(bytes) | ValueRef::Blob(bytes), Kind::Text) => {
            with_length(row, |row| row.put_slice(bytes));
            return Ok(());
        }
        (ValueRef::Text(text), Kind::Uuid) => {
            let bits =
                std::str::from_utf8(text).ok().and_then(|text| u128::from_str_radix(&text.replace('-', ""), 16).ok());
            with_length(row, |row| match bits.filter(|_| format == FieldFormat::Binary) {
                Some(bits) => row.put_u128(bits),
                None => row.put_slice(text),
            });
            return Ok(());
        }
        (ValueRef::Blob(bytes), Kind::Bytes) => {
            encode(&Value::Bytes(bytes.to_vec()), ty, format, row);
            return Ok(());
        }
        (ValueRef::Real(number), Kind::Quotient | Kind::Double) => return put_real(number, kind, format, row),
        (ValueRef::Integer(number), _) => number,
        _ => return Err(refuse("XX000", format!("a {} is none", kind.word()))),
    };
    let value = match kind {
        Kind::Integer(_) => Value::Integer(number),
        Kind::Decimal(scale) => Value::Decimal(number, scale),
        Kind::Boolean => Value::Boolean(number != 0),
        Kind::Timestamp | Kind::Moment | Kind::Date if format == FieldFormat::Text => {
            with_length(row, |row| row.put_slice(time_text(number, kind).as_bytes()));
            return Ok(());
        }
        Kind::Date => {
            with_length(row, |row| row.put_i32((number - EPOCH).div_euclid(DAY) as i32));
            return Ok(());
        }
        Kind::Timestamp | Kind::Moment => Value::Timestamp(number),
        _ => return Err(refuse("XX000", format!("a {} is no integer", kind.word()))),
    };
    encode(&value, ty, format, row);
    Ok(())
}

fn put_real(number: f64, kind: Kind, format: FieldFormat, row: &mut BytesMut) -> Result<(), Refusal> {
    let outside = || refuse("22003", "a number in double precision is out of range");
    match (format, kind) {
        (FieldFormat::Text, _) => {
            let text = real_text(number, kind == Kind::Quotient).ok_or_else(outside)?;
            with_length(row, |row| row.put_slice(text.as_bytes()));
        }
        (FieldFormat::Binary, Kind::Quotient) => {
            let (digits, scale) = shortened(number).ok_or_else(outside)?;
            with_length(row, |row| put_numeric(digits, scale, row));
        }
        (FieldFormat::Binary, _) => with_length(row, |row| row.put_f64(number)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_their_decimals() {
        for (text, expected) in [
            ("12", Some((12, 0))),
            ("12.50", Some((1250, 2))),
            (".5", Some((5, 1))),
            ("7.", Some((7, 0))),
            ("1e3", Some((1000, 0))),
            ("1.25e1", Some((125, 1))),
            ("25e-4", Some((25, 4))),
            ("9223372036854775807", Some((i64::MAX, 0))),
            ("9223372036854775808", None),
            ("1e19", None),
            ("1e-19", None),
            ("1e-99999999999", None),
            ("0.0000000000000000000", Some((0, 18))),
            ("x", None),
        ] {
            assert_eq!(decimal(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_in_double_precision_are_shown_with_fifteen_digits() {
        for (number, expected) in [
            (0.0, Some("0")),
            (1.5, Some("1.5")),
            (-0.1 - 0.2, Some("-0.3")),
            (1e15, Some("1000000000000000")),
            (2.0 / 3.0, Some("0.666666666666667")),
            (1.25e20, Some("125000000000000000000")),
            (-1e-20, Some("-0.00000000000000000001")),
            (1e-50, Some("0")),
            (1e60, None),
            (f64::NAN, None),
        ] {
            assert_eq!(real_text(number, true).as_deref(), expected, "{number}");
        }
    }
}
