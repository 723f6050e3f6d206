//! Values as text: what clients send, and what files hold.

use std::num::{IntErrorKind, ParseIntError};

use crate::bind::timestamp;
use crate::error::{Result, SqlError, state};
use crate::syntax::Place;
use crate::types::{SqlType, power_of_ten};
use crate::value::Value;

impl Value {
    /// The value of a type that a text says: `12`, `t` or `false`, `12.50`, `2024-01-31 12:30:00`, any text, `\x00ff`.
    ///
    /// # Errors
    /// It is none of the type (SQLSTATE 22P02, 22007), or does not fit it (22003, 22001).
    pub fn parse(text: &str, sql: SqlType) -> Result<Self> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(40).collect();
            SqlError::new(state::INVALID_TEXT, Place::START, format!("'{shown}' is no {sql}: {why}"))
        };
        let outside = |shown: &str| {
            SqlError::new(state::OUT_OF_RANGE, Place::START, format!("{shown:.40} is out of the range of {sql}"))
        };
        let value = match sql {
            SqlType::Integer(_) => {
                Self::Integer(text.trim().parse().map_err(|error: ParseIntError| match error.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => outside(text.trim()),
                    _ => wrong("write digits"),
                })?)
            }
            SqlType::Boolean => match text.trim().to_ascii_lowercase().as_str() {
                "t" | "true" | "yes" | "y" | "on" | "1" => Self::Boolean(true),
                "f" | "false" | "no" | "n" | "off" | "0" => Self::Boolean(false),
                _ => return Err(wrong("write true or false")),
            },
            SqlType::Decimal(_, scale) => {
                let (digits, decimals) = decimal(text.trim()).ok_or_else(|| wrong("write digits and a point"))?;
                let scaled = digits.and_then(|digits| rescaled(digits, decimals, scale.into()));
                let refused = || match decimals > scale.into() {
                    true => wrong(&format!("it has more than {scale} decimals")),
                    false => outside(text.trim()),
                };
                Self::Decimal(scaled.ok_or_else(refused)?, scale)
            }
            SqlType::Timestamp => Self::Timestamp(timestamp(text)?),
            SqlType::Text(_) => Self::Text(text.into()),
            SqlType::Bytes(_) => Self::Bytes(bytes_of(text).map_err(wrong)?),
        };
        if value.fits(sql) {
            return Ok(value);
        }
        value.misfit(sql)?;
        Err(outside(&value.to_string()))
    }
}

/// The elements of the text of an array of one dimension, `{1,"a b",NULL}`; `None` for NULL. Returns `None` if the text
/// is no such array.
#[must_use]
pub fn array_elements(text: &str) -> Option<Vec<Option<String>>> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    let mut chars = inside.trim().chars().peekable();
    while chars.peek().is_some() {
        while chars.next_if(|blank| blank.is_whitespace()).is_some() {}
        let mut element = String::new();
        if chars.next_if_eq(&'"').is_some() {
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => element.push(chars.next()?),
                    other => element.push(other),
                }
            }
            while chars.next_if(|blank| blank.is_whitespace()).is_some() {}
            elements.push(Some(element));
        } else {
            while let Some(other) = chars.next_if(|&other| other != ',') {
                if matches!(other, '{' | '}' | '"') {
                    return None;
                }
                element.push(if other == '\\' { chars.next()? } else { other });
            }
            match element.trim_end() {
                "" => return None,
                null if null.eq_ignore_ascii_case("null") => elements.push(None),
                element => elements.push(Some(element.into())),
            }
        }
        match chars.next() {
            None => break,
            Some(',') if chars.peek().is_some() => {}
            Some(_) => return None,
        }
    }
    Some(elements)
}

/// The bytes that a text means: `\x00ff`, or what it is itself, with `\\` for a backslash and `\377` for any byte.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn bytes_of(text: &str) -> std::result::Result<Vec<u8>, &'static str> {
    if let Some(digits) = text.strip_prefix("\\x") {
        return crate::parse::hex(digits).ok_or("write \\x and two digits a byte");
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, behind @ ..] = rest {
        (rest, _) = match (first, behind) {
            (b'\\', [b'\\', behind @ ..]) => (behind, bytes.push(b'\\')),
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..]) => {
                (behind, bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')))
            }
            (b'\\', _) => return Err("write \\\\ for a backslash"),
            (other, behind) => (behind, bytes.push(*other)),
        };
    }
    Ok(bytes)
}

/// The digits of a decimal as a number, if 64 bits hold it, and how many of them are decimals, which is negative for
/// `1e3`.
fn decimal(text: &str) -> Option<(Option<i64>, i32)> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i16>().ok()?),
        None => (text, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    // Zeros at the end say nothing, and could be more than a number holds.
    let part = part.trim_end_matches('0');
    let unsigned = whole.strip_prefix(['-', '+']).unwrap_or(whole);
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(unsigned) || !digits(part) || unsigned.is_empty() && part.is_empty() && !number.contains('0') {
        return None;
    }
    let sign = if whole.starts_with('-') { "-" } else { "" };
    let value = format!("{sign}0{unsigned}{part}").parse().ok();
    Some((value, i32::try_from(part.len()).ok()? - i32::from(exponent)))
}

/// A number with `from` decimals as one with `to`, if that needs no rounding.
fn rescaled(value: i64, from: i32, to: i32) -> Option<i64> {
    if value == 0 {
        return Some(0);
    }
    let power = |n: u32| (n <= 18).then(|| power_of_ten(n as u8));
    if to >= from {
        return value.checked_mul(power(to.abs_diff(from))?);
    }
    let power = power(from.abs_diff(to))?;
    (value % power == 0).then_some(value / power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::schema::ColumnType;

    #[test]
    fn texts_are_values_of_their_type_or_refused() {
        let small = SqlType::Integer(ColumnType::I16);
        let money = SqlType::Decimal(6, 2);
        for (text, sql, expected) in [
            ("12", small, Value::Integer(12)),
            (" -32768 ", small, Value::Integer(-32768)),
            ("T", SqlType::Boolean, Value::Boolean(true)),
            ("off", SqlType::Boolean, Value::Boolean(false)),
            ("12.5", money, Value::Decimal(1250, 2)),
            ("-0.01", money, Value::Decimal(-1, 2)),
            (".5", money, Value::Decimal(50, 2)),
            ("7.", money, Value::Decimal(700, 2)),
            ("1e3", money, Value::Decimal(100_000, 2)),
            ("1.25E+1", money, Value::Decimal(1250, 2)),
            ("2500e-2", money, Value::Decimal(2500, 2)),
            ("0.00000000000000000000000000", money, Value::Decimal(0, 2)),
            ("2024-01-31 12:30:00", SqlType::Timestamp, Value::Timestamp(1_706_704_200_000_000)),
            ("it's", SqlType::Text(4), Value::Text("it's".into())),
            ("\\x00fF", SqlType::Bytes(2), Value::Bytes(vec![0, 255])),
            ("ab", SqlType::Bytes(2), Value::Bytes(b"ab".to_vec())),
            ("\\\\a\\377", SqlType::Bytes(3), Value::Bytes(vec![b'\\', b'a', 255])),
        ] {
            assert_eq!(Value::parse(text, sql), Ok(expected), "{text}");
        }
        for (text, sql, expected) in [
            ("", small, "22P02"),
            ("1.0", small, "22P02"),
            ("40000", small, "22003"),
            ("maybe", SqlType::Boolean, "22P02"),
            ("", money, "22P02"),
            (".", money, "22P02"),
            ("-", money, "22P02"),
            ("1.2.3", money, "22P02"),
            ("0.005", money, "22P02"),
            ("10000", money, "22003"),
            ("1e99", money, "22003"),
            ("0.1234567890123456789012345", money, "22P02"),
            ("NaN", money, "22P02"),
            ("99999999999999999999", money, "22003"),
            ("-9223372036854775808.5e3", money, "22003"),
            ("99999999999999999999", small, "22003"),
            ("-99999999999999999999", small, "22003"),
            ("tomorrow", SqlType::Timestamp, "22007"),
            ("12345", SqlType::Text(4), "22001"),
            ("\\x0", SqlType::Bytes(2), "22P02"),
            ("a\\", SqlType::Bytes(2), "22P02"),
            ("\\400", SqlType::Bytes(9), "22P02"),
            ("\\x000000", SqlType::Bytes(2), "22001"),
        ] {
            let error = Value::parse(text, sql).unwrap_err();
            assert_eq!(error.sqlstate, expected, "{text}: {error}");
        }
    }
}
