//! Constants that are written as text.

use crate::error::{Result, SqlError, state};
use crate::syntax::Place;
use crate::types::{MAX_PRECISION, days_of};

/// The error of a number that 64 bits do not hold.
pub(super) fn too_long(text: &str, place: Place) -> SqlError {
    SqlError::new(state::OUT_OF_RANGE, place, format!("the number {text:.60} is not possible"))
        .hint("use at most 18 digits, or a 64-bit integer; no exponent")
}

/// A number as digits and where its point is. Of one with more decimals than 64 bits hold, those stay that do, if they
/// are more than a DECIMAL of this size has; the last of them then says on which side of a shorter number it lies, so
/// that it is rounded and compared as the whole number is.
pub(super) fn number(text: &str, place: Place) -> Result<(i64, u8)> {
    let wrong = || too_long(text, place);
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let whole = if whole.is_empty() { "0" } else { whole };
    let parsed = |decimals: &str| format!("{whole}{decimals}").parse::<i64>().ok();
    if decimals.len() <= MAX_PRECISION.into()
        && let Some(number) = parsed(decimals)
    {
        return Ok((number, decimals.len() as u8));
    }
    let length =
        (0..=decimals.len().min(MAX_PRECISION.into())).rev().find(|&length| parsed(&decimals[..length]).is_some());
    let length = length.ok_or_else(wrong)?;
    let (kept, dropped) = decimals.split_at(length);
    let number = parsed(kept).ok_or_else(wrong)?;
    if dropped.bytes().all(|digit| digit == b'0') {
        return Ok((number, length as u8));
    }
    let digits = whole.trim_start_matches(['-', '0']).len();
    if digits + length <= MAX_PRECISION.into() && length < MAX_PRECISION.into() {
        return Err(wrong());
    }
    let away = if text.starts_with('-') { -1 } else { 1 };
    Ok((if number % 5 == 0 { number + away } else { number }, length as u8))
}

/// Microseconds since 1970 in UTC of `2024-01-31`, `2024-01-31 12:30:00`, `2024-01-31T12:30:00.123456Z` or
/// `2024-01-31 13:30:00+01`.
pub(super) fn timestamp(text: &str, place: Place) -> Result<i64> {
    parse_timestamp(text).ok_or_else(|| {
        let error = SqlError::new("22007", place, format!("'{text}' is no timestamp"));
        error.hint("write 'YYYY-MM-DD' or 'YYYY-MM-DD hh:mm:ss.ffffff', in UTC, or with +hh:mm behind it")
    })
}

/// Minutes that a zone is off UTC at most.
const MAX_AHEAD: i64 = 15 * 60 + 59;

fn parse_timestamp(text: &str) -> Option<i64> {
    let text = text.trim();
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
    let (time, zone) = time.split_at(time.find(['Z', '+', '-']).unwrap_or(time.len()));
    let digits = |text: &str, count: usize| -> Option<i64> {
        let good = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
        if good { text.parse().ok() } else { None }
    };
    let mut parts = date.split('-');
    let (year, month, day) = (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut hands = clock.split(':');
    let (hour, minute) = (digits(hands.next()?, 2)?, digits(hands.next()?, 2)?);
    let second = hands.next().map_or(Some(0), |second| digits(second, 2))?;
    if parts.next().is_some() || hands.next().is_some() || fraction.len() > 6 {
        return None;
    }
    let micros = if fraction.is_empty() { 0 } else { digits(&format!("{fraction:0<6}"), 6)? };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let last = *length.get(usize::try_from(month - 1).ok()?)?;
    if !(1..=last).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days_of(year, month, day);
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    // East of UTC clocks are ahead of it.
    let ahead = match zone.split_at_checked(1) {
        None | Some(("Z", "")) => 0,
        Some((sign, zone)) => {
            let (hours, minutes) = zone.split_once(':').unwrap_or(zone.split_at_checked(2)?);
            let minutes = if minutes.is_empty() { 0 } else { digits(minutes, 2)? };
            let ahead = digits(hours, 2)? * 60 + minutes;
            if sign == "Z" || minutes > 59 || ahead > MAX_AHEAD {
                return None;
            }
            if sign == "-" { -ahead } else { ahead }
        }
    };
    Some((seconds - ahead * 60) * 1_000_000 + micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::timestamp_text;

    #[test]
    fn timestamps_are_microseconds_since_1970() {
        let read = |text: &str| timestamp(text, Place::START);
        assert_eq!(read("1970-01-01"), Ok(0));
        assert_eq!(read("1970-01-02 00:00:01.5"), Ok(86_401_500_000));
        assert_eq!(read("2000-02-29T12:00:00Z"), Ok(951_825_600_000_000));
        assert_eq!(read("1969-12-31 23:59:59.999999"), Ok(-1));
        for text in ["13:30:00+01", "13:30+01:00", "12:30:00.0+00", "07:00:00-0530", "12:30:00Z"] {
            assert_eq!(read(&format!("2024-01-31 {text}")), Ok(1_706_704_200_000_000), "{text}");
        }
        assert_eq!(read("2024-02-01 00:30:00.5+12"), Ok(1_706_704_200_500_000));
        for wrong in ["", "2001-02-29", "2024-13-01", "2024-01-01 24:00:00", "2024-1-1", "2024-01-01 00:00:00.1234567"]
            .into_iter()
            .chain([
                "2024-01-31+01",
                "2024-01-31 12:30+",
                "2024-01-31 12:30+1",
                "2024-01-31 12:30+16",
                "2024-01-31 12:30ZZ",
            ])
            .chain([
                "2024-01-31 12:30+01:60",
                "2024-01-31 12:30+01:00:00",
                "2024-01-31 12:30+01Z",
                "2024-01-31 12:30+\u{e9}",
            ])
        {
            assert_eq!(read(wrong).map_err(|error| error.sqlstate), Err("22007"), "{wrong}");
        }
    }

    #[test]
    fn timestamps_are_written_as_they_are_read() {
        let texts =
            ["0000-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2000-02-29 12:00:00.5", "2023-12-31 07:08:09"];
        for text in texts.into_iter().chain(["1900-03-01 00:00:00", "9999-12-31 23:59:59.000001"]) {
            assert_eq!(timestamp_text(parse_timestamp(text).unwrap()), text);
        }
        for day in 0..400 * 366 {
            let micros = (day - 200 * 366) * 86_400_000_000;
            assert_eq!(parse_timestamp(&timestamp_text(micros)), Some(micros));
        }
        let behind = parse_timestamp("9999-12-31 23:59:59.999999").unwrap() + 1;
        assert_eq!(timestamp_text(behind), behind.to_string());
        assert_eq!(timestamp_text(i64::MIN), i64::MIN.to_string());
    }

    #[test]
    fn numbers_have_digits_and_decimals() {
        assert_eq!(number("12.50", Place::START), Ok((1250, 2)));
        assert_eq!(number("-9223372036854775808", Place::START), Ok((i64::MIN, 0)));
        for text in ["9223372036854775808", "1e5"] {
            assert_eq!(number(text, Place::START).map_err(|error| error.sqlstate), Err(state::OUT_OF_RANGE), "{text}");
        }
    }
}
