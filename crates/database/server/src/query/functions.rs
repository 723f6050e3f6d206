//! Functions that queries are rewritten with: arithmetic that is exact or fails, and texts as PostgreSQL has them.
//!
//! Their errors are texts of a SQLSTATE and a message, because SQLite hands over nothing else.

use std::cmp::Ordering;
use std::time::SystemTime;

use lockwork::sql::Value as Outside;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{FromSql, Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::kinds::{Kind, real_text, time_text};
use crate::sqlite;
use crate::texts::made;
use crate::values::DAY;

/// Integers of so many bytes.
pub(super) fn range(bytes: u8) -> (i64, i64) {
    match bytes {
        2 => (i16::MIN.into(), i16::MAX.into()),
        4 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    }
}

fn wrong(sqlstate: &str, message: &str) -> Error {
    Error::UserFunctionError(format!("{sqlstate}: {message}").into())
}

fn outside() -> Error {
    wrong("22003", "a number is out of range")
}

fn zero() -> Error {
    wrong("22012", "division by zero")
}

/// Argument `at` of a call without NULLs.
fn one<T: FromSql>(context: &Context<'_>, at: usize) -> Result<T> {
    context.get(at)
}

type Function = fn(&Context<'_>) -> Result<Value>;

/// `a op b`, as an integer of `c` bytes.
fn exact(context: &Context<'_>, compute: fn(i64, i64) -> Option<i64>) -> Result<Value> {
    let (lowest, highest) = range(one(context, 2)?);
    let made = compute(one(context, 0)?, one(context, 1)?);
    made.filter(|made| (lowest..=highest).contains(made)).map(Value::Integer).ok_or_else(outside)
}

fn real(context: &Context<'_>, compute: fn(f64, f64) -> f64) -> Result<Value> {
    let made = compute(one(context, 0)?, one(context, 1)?);
    if made.is_finite() { Ok(Value::Real(made)) } else { Err(outside()) }
}

/// How digits that do not fit are rounded.
fn divided(number: i64, power: i64, how: &str) -> i64 {
    let (whole, rest) = (number / power, number % power);
    let away = match how {
        "floor" => rest < 0,
        "ceil" => rest > 0,
        "trunc" => false,
        _ => rest.unsigned_abs() >= power.unsigned_abs().div_ceil(2),
    };
    whole + if away { rest.signum() } else { 0 }
}

fn power(context: &Context<'_>, at: usize) -> Result<i64> {
    10_i64.checked_pow(one(context, at)?).ok_or_else(outside)
}

/// Numbers with different scales.
fn compared(a: i64, a_scale: u32, b: i64, b_scale: u32) -> Ordering {
    let up = |number: i64, scale: u32| i128::from(number) * 10_i128.pow(scale);
    let most = a_scale.max(b_scale);
    up(a, most - a_scale).cmp(&up(b, most - b_scale))
}

/// Some characters of a text, from 1; what stands before it counts.
fn part(text: &str, from: i64, count: Option<i64>) -> Result<String> {
    if count.is_some_and(|count| count < 0) {
        return Err(wrong("22011", "the length of a part of a text is negative"));
    }
    let end = count.map_or(i64::MAX, |count| from.saturating_add(count));
    let skipped = usize::try_from(from.saturating_sub(1)).unwrap_or(0);
    let taken = usize::try_from(end.saturating_sub(from.max(1))).unwrap_or(0);
    Ok(text.chars().skip(skipped).take(taken).collect())
}

/// The largest or smallest of the values that there are.
fn extreme(context: &Context<'_>, wanted: Ordering) -> Result<Value> {
    let compare = |a: &ValueRef<'_>, b: &ValueRef<'_>| match (a, b) {
        (ValueRef::Integer(a), ValueRef::Integer(b)) => a.cmp(b),
        (ValueRef::Real(a), ValueRef::Real(b)) => a.total_cmp(b),
        (ValueRef::Text(a) | ValueRef::Blob(a), ValueRef::Text(b) | ValueRef::Blob(b)) => a.cmp(b),
        _ => Ordering::Equal,
    };
    let values = (0..context.len()).map(|at| context.get_raw(at)).filter(|value| *value != ValueRef::Null);
    let best = values.reduce(|best, value| if compare(&value, &best) == wanted { value } else { best });
    Ok(Value::try_from(best.unwrap_or(ValueRef::Null))?)
}

/// A number of a series, if it does not lie behind the last one.
fn within(number: Option<i64>, last: i64, step: i64) -> Value {
    let is_inside = |number: &i64| if step > 0 { *number <= last } else { *number >= last };
    number.filter(is_inside).map_or(Value::Null, Value::Integer)
}

/// Name, number of arguments (-1 for any) and what it does. All but the last two answer NULL for a NULL.
const FUNCTIONS: &[(&str, i32, Function)] = &[
    ("lw_add", 3, |context| exact(context, i64::checked_add)),
    ("lw_subtract", 3, |context| exact(context, i64::checked_sub)),
    ("lw_multiply", 3, |context| exact(context, i64::checked_mul)),
    ("lw_divide", 3, |context| match one::<i64>(context, 1)? {
        0 => Err(zero()),
        _ => exact(context, i64::checked_div),
    }),
    ("lw_modulo", 3, |context| match one::<i64>(context, 1)? {
        0 => Err(zero()),
        _ => exact(context, |a, b| Some(a.wrapping_rem(b))),
    }),
    ("lw_add_real", 2, |context| real(context, |a, b| a + b)),
    ("lw_subtract_real", 2, |context| real(context, |a, b| a - b)),
    ("lw_multiply_real", 2, |context| real(context, |a, b| a * b)),
    ("lw_divide_real", 2, |context| match one::<f64>(context, 1)? {
        0.0 => Err(zero()),
        _ => real(context, |a, b| a / b),
    }),
    ("lw_power", 2, |context| {
        let (base, exponent): (f64, f64) = (one(context, 0)?, one(context, 1)?);
        if base == 0.0 && exponent < 0.0 {
            return Err(wrong("2201F", "zero raised to a negative power is undefined"));
        }
        if base < 0.0 && exponent.fract() != 0.0 {
            let message = "a negative number raised to a non-integer power yields a complex result";
            return Err(wrong("2201F", message));
        }
        real(context, f64::powf)
    }),
    ("lw_up", 2, |context| {
        let made = one::<i64>(context, 0)?.checked_mul(power(context, 1)?);
        made.map(Value::Integer).ok_or_else(outside)
    }),
    ("lw_down", 3, |context| {
        let how: String = one(context, 2)?;
        Ok(Value::Integer(divided(one(context, 0)?, power(context, 1)?, &how)))
    }),
    ("lw_fit", 3, |context| {
        let number: i64 = one(context, 0)?;
        let is_inside = (one::<i64>(context, 1)?..=one(context, 2)?).contains(&number);
        if is_inside { Ok(Value::Integer(number)) } else { Err(outside()) }
    }),
    ("lw_compare", 4, |context| {
        let order = compared(one(context, 0)?, one(context, 1)?, one(context, 2)?, one(context, 3)?);
        Ok(Value::Integer(order as i64))
    }),
    // A number in double precision times 10^b, as an integer.
    ("lw_whole", 3, |context| {
        let number = one::<f64>(context, 0)? * power(context, 1)? as f64;
        let number = match one::<String>(context, 2)?.as_str() {
            "floor" => number.floor(),
            "ceil" => number.ceil(),
            "trunc" => number.trunc(),
            // As PostgreSQL rounds what is in double precision; a `numeric` it rounds away from zero.
            "even" => number.round_ties_even(),
            _ => number.round(),
        };
        // Both bounds are exact in double precision; the upper one is no i64 any more.
        let is_inside = number >= i64::MIN as f64 && number < i64::MAX as f64;
        if is_inside { Ok(Value::Integer(number as i64)) } else { Err(outside()) }
    }),
    ("lw_text", 2, |context| Ok(Value::Text(Outside::Decimal(one(context, 0)?, one(context, 1)?).to_string()))),
    ("lw_time_text", 2, |context| {
        let kind = [Kind::Timestamp, Kind::Moment, Kind::Date][one::<u8>(context, 1)?.min(2) as usize];
        Ok(Value::Text(time_text(one(context, 0)?, kind)))
    }),
    // The midnight before a time.
    ("lw_day", 1, |context| {
        let micros: i64 = one(context, 0)?;
        Ok(Value::Integer(micros - micros.rem_euclid(DAY)))
    }),
    // Bytes with zeros behind them, and without those that are too many.
    ("lw_filled", 2, |context| {
        let (mut bytes, width) = (one::<Vec<u8>>(context, 0)?, one::<u32>(context, 1)? as usize);
        let _filled = made(width)?;
        let filled = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.resize(filled.max(width), 0);
        Ok(Value::Blob(bytes))
    }),
    // The numbers from a to b by c: the first, and the one behind d.
    ("lw_first", 3, |context| {
        let (first, step): (i64, i64) = (one(context, 0)?, one(context, 2)?);
        if step == 0 {
            return Err(wrong("22023", "step size cannot equal zero"));
        }
        Ok(within(Some(first), one(context, 1)?, step))
    }),
    ("lw_next", 3, |context| {
        let (last, step): (i64, i64) = (one(context, 0)?, one(context, 2)?);
        Ok(within(last.checked_add(step), one(context, 1)?, step))
    }),
    ("lw_real_text", 2, |context| {
        let text = real_text(one(context, 0)?, one::<i64>(context, 1)? != 0);
        text.map(Value::Text).ok_or_else(outside)
    }),
    ("lw_part", 2, |context| part(&one::<String>(context, 0)?, one(context, 1)?, None).map(Value::Text)),
    ("lw_part", 3, |context| {
        part(&one::<String>(context, 0)?, one(context, 1)?, Some(one(context, 2)?)).map(Value::Text)
    }),
    ("lw_bytes", 1, |context| {
        let length = context.get_raw(0).as_bytes_or_null()?.map_or(0, <[u8]>::len);
        Ok(Value::Integer(length as i64))
    }),
    ("lw_limit", 1, |context| match one(context, 0)? {
        count @ 0.. => Ok(Value::Integer(count)),
        _ => Err(wrong("2201W", "LIMIT is negative")),
    }),
    ("lw_offset", 1, |context| match one(context, 0)? {
        count @ 0.. => Ok(Value::Integer(count)),
        _ => Err(wrong("2201X", "OFFSET is negative")),
    }),
    ("lw_greatest", -1, |context| extreme(context, Ordering::Greater)),
    ("lw_least", -1, |context| extreme(context, Ordering::Less)),
];

/// The only value of a subquery that stands for one.
struct Only;

impl Aggregate<Option<Value>, Value> for Only {
    fn init(&self, _: &mut Context<'_>) -> Result<Option<Value>> {
        Ok(None)
    }

    fn step(&self, context: &mut Context<'_>, only: &mut Option<Value>) -> Result<()> {
        match only.replace(context.get(0)?) {
            None => Ok(()),
            Some(_) => Err(wrong("21000", "a subquery that stands for a value answers several rows")),
        }
    }

    fn finalize(&self, _: &mut Context<'_>, only: Option<Option<Value>>) -> Result<Value> {
        Ok(only.flatten().unwrap_or(Value::Null))
    }
}

/// Makes them known to a database, in which it is now for ever.
pub(super) fn register(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    for &(name, arguments, function) in FUNCTIONS {
        let is_strict = arguments >= 0;
        sqlite::function(connection, name, arguments, flags, move |context| {
            let has_null = (0..context.len()).any(|at| context.get_raw(at) == ValueRef::Null);
            if is_strict && has_null { Ok(Value::Null) } else { function(context) }
        })?;
    }
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    connection.create_scalar_function("lw_now", 0, flags, move |_| Ok(now))?;
    // Another one for each row.
    let flags_of_volatile = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("lw_uuidv7", 0, flags_of_volatile, |_| {
        let id = lockwork::request_id();
        id.map(|id| id.to_string()).map_err(|error| wrong("58030", &format!("the system has no random bytes: {error}")))
    })?;
    connection.create_aggregate_function("lw_only", 1, flags, Only)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(sql: &str) -> String {
        let connection = crate::sqlite::open().unwrap();
        register(&connection).unwrap();
        match connection.query_row(sql, [], |row| row.get::<_, Value>(0)) {
            Ok(value) => format!("{value:?}"),
            Err(error) => crate::sqlite::message(&error),
        }
    }

    #[test]
    fn arithmetic_is_exact_or_fails() {
        for (sql, expected) in [
            ("SELECT lw_add(9223372036854775806, 1, 8)", "Integer(9223372036854775807)"),
            ("SELECT lw_add(9223372036854775807, 1, 8)", "22003: a number is out of range"),
            ("SELECT lw_multiply(46341, 46341, 4)", "22003: a number is out of range"),
            ("SELECT lw_divide(-7, 2, 8)", "Integer(-3)"),
            ("SELECT lw_divide(-7, 0, 8)", "22012: division by zero"),
            ("SELECT lw_modulo(-7, 2, 8)", "Integer(-1)"),
            ("SELECT lw_modulo(-9223372036854775807 - 1, -1, 8)", "Integer(0)"),
            ("SELECT lw_divide(-9223372036854775807 - 1, -1, 8)", "22003: a number is out of range"),
            ("SELECT lw_add(NULL, 1, 8)", "Null"),
            ("SELECT lw_divide_real(1.0, 0.0)", "22012: division by zero"),
            ("SELECT lw_multiply_real(1e300, 1e300)", "22003: a number is out of range"),
            ("SELECT lw_up(922337203685477581, 1)", "22003: a number is out of range"),
            ("SELECT lw_down(-25, 1, 'round')", "Integer(-3)"),
            ("SELECT lw_down(-24, 1, 'round')", "Integer(-2)"),
            ("SELECT lw_down(-21, 1, 'floor')", "Integer(-3)"),
            ("SELECT lw_down(21, 1, 'ceil')", "Integer(3)"),
            ("SELECT lw_down(29, 1, 'trunc')", "Integer(2)"),
            ("SELECT lw_down(9223372036854775807, 18, 'round')", "Integer(9)"),
            ("SELECT lw_compare(9223372036854775807, 0, 1, 18)", "Integer(1)"),
            ("SELECT lw_compare(10, 1, 100, 2)", "Integer(0)"),
            ("SELECT lw_whole(2.5, 0, 'round')", "Integer(3)"),
            ("SELECT lw_whole(2.5, 0, 'even')", "Integer(2)"),
            ("SELECT lw_whole(9.3e18, 0, 'round')", "22003: a number is out of range"),
            (
                "SELECT lw_only(a) FROM (SELECT 1 AS a UNION ALL SELECT 2)",
                "21000: a subquery that stands for a value \
             answers several rows",
            ),
            ("SELECT lw_only(a) FROM (SELECT 1 AS a WHERE 0)", "Null"),
            ("SELECT lw_only(a) FROM (SELECT NULL AS a)", "Null"),
            ("SELECT lw_greatest(1, NULL, 3, 2)", "Integer(3)"),
            ("SELECT lw_replace('x', '', NULL)", "Null"),
            ("SELECT lw_replace('x', '', 'y')", "Text(\"x\")"),
            ("SELECT lw_replace('xx', 'x', 'yz')", "Text(\"yzyz\")"),
            ("SELECT lw_limit(-1)", "2201W: LIMIT is negative"),
            ("SELECT lw_offset(-1)", "2201X: OFFSET is negative"),
            ("SELECT lw_part('äbc', 2, 1)", "Text(\"b\")"),
            ("SELECT lw_part('abc', -1, 3)", "Text(\"a\")"),
            ("SELECT lw_part('abc', -9223372036854775807 - 1)", "Text(\"abc\")"),
        ] {
            assert_eq!(ask(sql), expected, "{sql}");
        }
    }
}
