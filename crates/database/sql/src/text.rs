//! Values as text: what clients send, and what files hold.

use std::num::{IntErrorKind, ParseIntError};

use crate::bind::timestamp;
use crate::error::{Result, SqlError, state};
use crate::syntax::Place;
use crate::types::{MAX_PRECISION, SqlType};
use crate::value::Value;

impl Value {
    /// The value of a type that a text says: `12`, `t` or `false`, `12.50`, `2024-01-31 12:30:00`, any text, `\x00ff`.
    /// A DECIMAL is rounded half away from zero to its scale.
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
                let number = Digits::of(text).ok_or_else(|| wrong("write digits and a point"))?;
                let value = i64::try_from(number.rounded(scale)).map_err(|_| outside(text.trim()))?;
                Self::Decimal(value, scale)
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

    /// The exact number that a text says: an integer, a decimal with as few decimals as possible, or its digits if
    /// neither holds them.
    ///
    /// # Errors
    /// SQLSTATE 22P02: the text is no number.
    pub fn numeric(text: &str) -> Result<Self> {
        let number = Digits::of(text).ok_or_else(|| {
            let message = format!("'{:.40}' is no number: write digits and a point", text.trim());
            SqlError::new(state::INVALID_TEXT, Place::START, message)
        })?;
        let scale = number.decimals.clamp(0, MAX_PRECISION.into()) as u8;
        let (value, rest) = number.truncated(scale);
        Ok(match (i64::try_from(value), scale) {
            (Ok(value), 0) if rest.is_exact => Self::Integer(value),
            (Ok(value), _) if rest.is_exact => Self::Decimal(value, scale),
            _ => Self::Numeric(text.trim().into()),
        })
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

/// A number as its text has it.
pub(crate) struct Digits {
    is_negative: bool,
    /// Without zeros in front and at the end.
    digits: String,
    /// How many of the digits stand behind the point; negative for `1000`.
    decimals: i32,
}

/// What a number loses when decimals are cut off.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    pub(crate) is_exact: bool,
    /// Whether it is at least half of the last decimal that stays.
    is_half: bool,
}

impl Digits {
    /// The number of a text such as `-12.50` or `1.25e+1`; none if the text is no number.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let text = text.trim();
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i16>().ok()?),
            None => (text, 0),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let unsigned = whole.strip_prefix(['-', '+']).unwrap_or(whole);
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(unsigned) || !is_digits(part) || unsigned.is_empty() && part.is_empty() {
            return None;
        }
        let all = format!("{unsigned}{part}");
        let digits = all.trim_end_matches('0');
        let decimals = part.len() as i64 - (all.len() - digits.len()) as i64 - i64::from(exponent);
        let digits = digits.trim_start_matches('0').to_string();
        let decimals = if digits.is_empty() { 0 } else { i32::try_from(decimals).ok()? };
        Some(Self { is_negative: whole.starts_with('-'), digits, decimals })
    }

    /// The number times 10^scale without what is behind the point, and what that loses. A number far beyond every type
    /// is one that is beyond every type.
    pub(crate) fn truncated(&self, scale: u8) -> (i128, Rest) {
        const BEYOND: usize = 36;
        let kept = self.digits.len() as i64 + i64::from(scale) - i64::from(self.decimals);
        let (whole, dropped) = self.digits.split_at(kept.clamp(0, self.digits.len() as i64) as usize);
        let is_half = kept >= 0 && dropped.bytes().next().is_some_and(|first| first >= b'5');
        let rest = Rest { is_exact: dropped.bytes().all(|byte| byte == b'0'), is_half };
        let zeros = usize::try_from(kept).unwrap_or(0).saturating_sub(self.digits.len());
        let value = match whole.len() + zeros {
            0 => 0,
            BEYOND.. if !whole.is_empty() => 10_i128.pow(BEYOND as u32),
            _ => whole.parse().unwrap_or(0) * 10_i128.pow(zeros.min(BEYOND) as u32),
        };
        (if self.is_negative { -value } else { value }, rest)
    }

    /// The number times 10^scale, rounded half away from zero.
    pub(crate) fn rounded(&self, scale: u8) -> i128 {
        let (value, rest) = self.truncated(scale);
        match (rest.is_half, self.is_negative) {
            (false, _) => value,
            (true, true) => value - 1,
            (true, false) => value + 1,
        }
    }

    /// The greatest number of so many decimals that is not above this one, times 10^scale, and whether it is this one.
    pub(crate) fn floor(&self, scale: u8) -> (i128, bool) {
        let (value, rest) = self.truncated(scale);
        (if self.is_negative && !rest.is_exact { value - 1 } else { value }, rest.is_exact)
    }
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
            ("0.005", money, Value::Decimal(1, 2)),
            ("-1.005", money, Value::Decimal(-101, 2)),
            ("1.0049999999999999999999999999", money, Value::Decimal(100, 2)),
            ("0.1234567890123456789012345", money, Value::Decimal(12, 2)),
            ("1e-3000", money, Value::Decimal(0, 2)),
            ("9999.994", money, Value::Decimal(999_999, 2)),
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
            ("10000", money, "22003"),
            ("9999.995", money, "22003"),
            ("1e99", money, "22003"),
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

    #[test]
    fn numbers_keep_their_digits() {
        let digits = |text: &str| Value::Numeric(text.into());
        for (text, expected) in [
            ("1.0825", Value::Decimal(10_825, 4)),
            (" -1.50 ", Value::Decimal(-15, 1)),
            ("2.00", Value::Integer(2)),
            ("-12e2", Value::Integer(-1200)),
            ("1250e-2", Value::Decimal(125, 1)),
            ("0.0", Value::Integer(0)),
            ("123e-18", Value::Decimal(123, 18)),
            ("0.3333333333333333333333333333", digits("0.3333333333333333333333333333")),
            ("99999999999999999999", digits("99999999999999999999")),
            ("1e3000", digits("1e3000")),
        ] {
            assert_eq!(Value::numeric(text), Ok(expected), "{text}");
        }
        for text in ["", ".", "-", "1.2.3", "NaN", "1e", "x"] {
            assert_eq!(Value::numeric(text).unwrap_err().sqlstate, "22P02", "{text}");
        }
    }
}
