//! The types of SQL, and how each lies in a row or a block.

use std::fmt;

use lockwork_procedure::schema::ColumnType;

/// A type of SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SqlType {
    /// TINYINT, SMALLINT, INTEGER, BIGINT and their UNSIGNED forms; there is no unsigned BIGINT.
    Integer(ColumnType),
    /// BOOLEAN: one byte, 0 or 1.
    Boolean,
    /// DECIMAL(precision, scale): the value times 10^scale, in 64 bits.
    Decimal(u8, u8),
    /// TIMESTAMP: microseconds since 1970-01-01 00:00:00 UTC, in 64 bits.
    Timestamp,
    /// CHAR(n) and VARCHAR(n): n bytes of UTF-8, padded with zero bytes.
    Text(u32),
    /// BYTEA(n): n bytes.
    Bytes(u32),
}

/// The most digits of a DECIMAL.
pub(crate) const MAX_PRECISION: u8 = 18;

/// 10^n for n up to 18.
pub(crate) const fn power_of_ten(n: u8) -> i64 {
    10_i64.pow(n as u32)
}

/// Division by a positive number, rounded half away from zero.
pub(crate) fn round(value: i64, divisor: i64) -> i64 {
    let (quotient, rest) = (value / divisor, value % divisor);
    if rest.unsigned_abs() * 2 >= divisor.unsigned_abs() { quotient + value.signum() } else { quotient }
}

impl SqlType {
    /// SMALLINT.
    pub const SMALLINT: Self = Self::Integer(ColumnType::I16);
    /// INTEGER.
    pub const INTEGER: Self = Self::Integer(ColumnType::I32);
    /// BIGINT.
    pub const BIGINT: Self = Self::Integer(ColumnType::I64);

    /// How its values are stored.
    #[must_use]
    pub const fn storage(self) -> ColumnType {
        match self {
            Self::Integer(storage) => storage,
            Self::Boolean => ColumnType::U8,
            Self::Decimal(..) | Self::Timestamp => ColumnType::I64,
            Self::Text(n) => ColumnType::Char(n),
            Self::Bytes(n) => ColumnType::Bytes(n),
        }
    }

    /// The type of a column of which only the storage is known.
    #[must_use]
    pub const fn of_storage(storage: ColumnType) -> Self {
        match storage {
            ColumnType::Char(n) => Self::Text(n),
            ColumnType::Bytes(n) => Self::Bytes(n),
            integer => Self::Integer(integer),
        }
    }

    /// Whether it is text or bytes.
    #[must_use]
    pub const fn is_string(self) -> bool {
        matches!(self, Self::Text(_) | Self::Bytes(_))
    }

    /// The smallest and the largest value as stored; `None` for text and bytes.
    #[must_use]
    pub const fn range(self) -> Option<(i64, i64)> {
        match self {
            Self::Boolean => Some((0, 1)),
            Self::Decimal(precision, _) => {
                let end = power_of_ten(precision) - 1;
                Some((-end, end))
            }
            Self::Integer(storage) => storage.range(),
            Self::Timestamp => Some((i64::MIN, i64::MAX)),
            Self::Text(_) | Self::Bytes(_) => None,
        }
    }
}

/// Days since 1970-01-01 of a day of the Gregorian calendar, months from 1.
pub(crate) const fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years counted from March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 + day - 719_469
}

/// A TIMESTAMP as it is written: `2024-01-31 12:30:00`, with as many decimals as it has. One outside of the years 0000
/// to 9999 is its microseconds.
pub(crate) fn timestamp_text(micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    if !(days_of(0, 1, 1) * DAY..days_of(10_000, 1, 1) * DAY).contains(&micros) {
        return micros.to_string();
    }
    let (days, rest) = (micros.div_euclid(DAY), micros.rem_euclid(DAY));
    // No year is longer than 366 days, so this is the year or one before it.
    let mut year = (days - days_of(0, 1, 1)).div_euclid(366);
    while days_of(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (2..=12).rev().find(|&month| days_of(year, month, 1) <= days).unwrap_or(1);
    let day = days - days_of(year, month, 1) + 1;
    let seconds = rest / 1_000_000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = format!(".{:06}", rest % 1_000_000);
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction}")
}

/// What values of a type are, for messages: CHAR and VARCHAR are one type.
pub(crate) fn described(sql: SqlType) -> String {
    match sql {
        SqlType::Text(n) => format!("a text of {n} bytes"),
        other => other.to_string(),
    }
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ColumnType as T;
        match self {
            Self::Integer(T::I8) => f.write_str("TINYINT"),
            Self::Integer(T::I16) => f.write_str("SMALLINT"),
            Self::Integer(T::I32) => f.write_str("INTEGER"),
            Self::Integer(T::U8) => f.write_str("TINYINT UNSIGNED"),
            Self::Integer(T::U16) => f.write_str("SMALLINT UNSIGNED"),
            Self::Integer(T::U32) => f.write_str("INTEGER UNSIGNED"),
            Self::Integer(_) => f.write_str("BIGINT"),
            Self::Boolean => f.write_str("BOOLEAN"),
            Self::Decimal(precision, scale) => write!(f, "DECIMAL({precision}, {scale})"),
            Self::Timestamp => f.write_str("TIMESTAMP"),
            // Of any length.
            Self::Text(u32::MAX) => f.write_str("TEXT"),
            Self::Bytes(u32::MAX) => f.write_str("BYTEA"),
            Self::Text(n) => write!(f, "CHAR({n})"),
            Self::Bytes(n) => write!(f, "BYTEA({n})"),
        }
    }
}
