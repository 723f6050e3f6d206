//! Types and values of SQL as PostgreSQL's protocol has them, in text and in binary.

use bytes::{BufMut, BytesMut};
use lockwork::sql::{Field, SqlType, Value, array_elements};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::FieldFormat;

use crate::error::{Refusal, refuse};

/// Microseconds from 1970 to 2000, where PostgreSQL's timestamps begin.
pub(crate) const EPOCH: i64 = 946_684_800_000_000;
/// The timestamps of the years 1 to 9999.
pub(crate) const YEARS: std::ops::Range<i64> = -62_135_596_800_000_000..253_402_300_800_000_000;
/// Microseconds of a day.
pub(crate) const DAY: i64 = 86_400_000_000;
/// The length of an element of a binary array that is NULL.
const NULL_LENGTH: [u8; 4] = (-1_i32).to_be_bytes();
/// Bytes that the width of a char or numeric is larger by in a type modifier.
const MODIFIER: i32 = 4;

/// The type of a parameter or column, and its modifier.
pub(crate) fn type_of(field: &Field) -> (Type, i32) {
    let is_array = field.count.is_some();
    let (one, many) = match field.sql_type {
        None => return (Type::BYTEA, -1),
        Some(SqlType::Boolean) => (Type::BOOL, Type::BOOL_ARRAY),
        Some(SqlType::Decimal(..)) => (Type::NUMERIC, Type::NUMERIC_ARRAY),
        Some(SqlType::Timestamp) => (Type::TIMESTAMP, Type::TIMESTAMP_ARRAY),
        Some(SqlType::Text(_)) => (Type::VARCHAR, Type::VARCHAR_ARRAY),
        Some(SqlType::Bytes(_)) => (Type::BYTEA, Type::BYTEA_ARRAY),
        Some(integer) => match (integer.range(), integer.storage().width()) {
            (_, 1) | (Some((i64::MIN..0, _)), 2) => (Type::INT2, Type::INT2_ARRAY),
            (_, 2) | (Some((i64::MIN..0, _)), 4) => (Type::INT4, Type::INT4_ARRAY),
            _ => (Type::INT8, Type::INT8_ARRAY),
        },
    };
    let modifier = match field.sql_type {
        Some(SqlType::Decimal(precision, scale)) => (i32::from(precision) << 16 | i32::from(scale)) + MODIFIER,
        Some(SqlType::Text(n)) => i32::try_from(n).map_or(-1, |n| n.saturating_add(MODIFIER)),
        _ => -1,
    };
    (if is_array { many } else { one }, modifier)
}

/// The bytes of a type, as `pg_type.typlen` has them.
pub(crate) fn size(ty: &Type) -> i16 {
    match *ty {
        Type::BOOL => 1,
        Type::CHAR => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::OID | Type::FLOAT4 => 4,
        Type::NAME => 64,
        Type::INT8 | Type::FLOAT8 | Type::TIMESTAMP => 8,
        _ => -1,
    }
}

/// The format of a column; a client that names fewer than there are gets text.
pub(crate) fn format_of(format: &Format, at: usize) -> FieldFormat {
    match format {
        Format::Individual(codes) if at >= codes.len() => FieldFormat::Text,
        format => format.format_for(at),
    }
}

/// What becomes of a number that a client sends, and of NULL among the elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decimals {
    /// The number is rounded to the scale of the parameter of a CALL, which it is assigned to. NULL is refused.
    Rounded,
    /// The number keeps them all: what the statement does with it decides. An array lists values that rows are compared
    /// with, so NULL may be among them.
    Kept,
}

/// Returns a parameter as a client sent it: `declared` is the type that the client gave, if it gave one.
pub(crate) fn decode(
    bytes: Option<&[u8]>,
    format: FieldFormat,
    declared: Option<&Type>,
    field: &Field,
    decimals: Decimals,
) -> Result<Value, Refusal> {
    let named =
        |refusal: Refusal| Refusal { message: format!("parameter {}: {}", field.name, refusal.message), ..refusal };
    let Some(bytes) = bytes else {
        return Err(refuse("22004", format!("parameter {} is NULL, and there are no NULLs", field.name)));
    };
    let Some(sql) = field.sql_type else {
        return Err(refuse("0A000", format!("parameter {}: rows are no values of this protocol", field.name)));
    };
    let expected = type_of(field).0;
    let declared = declared.unwrap_or(&expected);
    let value = match format {
        FieldFormat::Text => {
            let text = std::str::from_utf8(bytes).map_err(|_| named(refuse("22021", "this is no UTF-8")))?;
            let of = if field.count.is_some() { element_type(declared) } else { declared.clone() };
            each(text, field.count, |text| from_text(text, &of, sql, decimals))
        }
        FieldFormat::Binary => binary(bytes, declared, sql, field.count, decimals),
    };
    match value.map_err(named)? {
        Value::Array(values) if decimals == Decimals::Rounded && values.contains(&Value::Null) => {
            Err(refuse("22004", format!("an element of parameter {} is NULL, and there are no NULLs", field.name)))
        }
        value => Ok(value),
    }
}

fn short(bytes: &[u8], declared: &Type) -> Refusal {
    refuse("22P03", format!("{} bytes are no binary {declared}", bytes.len()))
}

/// The text of a binary number that may have decimals; nothing for another type.
fn number_text(bytes: &[u8], declared: &Type) -> Result<Option<String>, Refusal> {
    let short = || short(bytes, declared);
    Ok(match *declared {
        Type::NUMERIC => Some(numeric(bytes)?),
        // The shortest text that is this number, and not the number itself.
        Type::FLOAT4 => Some(f32::from_be_bytes(bytes.try_into().map_err(|_| short())?).to_string()),
        Type::FLOAT8 => Some(f64::from_be_bytes(bytes.try_into().map_err(|_| short())?).to_string()),
        _ => None,
    })
}

/// A value from its text; an array as `{1,2,3}`. A number is rounded.
pub(crate) fn parse(text: &str, sql: SqlType, count: Option<u32>) -> Result<Value, Refusal> {
    each(text, count, |text| from_text(text, &Type::UNKNOWN, sql, Decimals::Rounded))
}

/// A value, or the elements of an array, from a text, where `one` makes a value of a text.
fn each(text: &str, count: Option<u32>, one: impl Fn(&str) -> Result<Value, Refusal>) -> Result<Value, Refusal> {
    let Some(count) = count else { return one(text) };
    let elements = array_elements(text).ok_or_else(|| refuse("22P02", "this is no array: write {1,2,3}"))?;
    fits(elements.len(), count)?;
    let element = |element: &Option<String>| element.as_deref().map_or(Ok(Value::Null), &one);
    elements.iter().map(element).collect::<Result<_, _>>().map(Value::Array)
}

/// A value that is no array from its text; `declared` is the type that the client gave.
fn from_text(text: &str, declared: &Type, sql: SqlType, decimals: Decimals) -> Result<Value, Refusal> {
    if text.contains('\0') {
        return Err(refuse("22021", "a text has no zero bytes"));
    }
    let is_fraction = match sql {
        SqlType::Decimal(..) => true,
        SqlType::Integer(_) => matches!(*declared, Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8),
        _ => false,
    };
    let value = match is_fraction && decimals == Decimals::Kept {
        true => Value::numeric(text),
        false => Value::parse(text, sql),
    };
    value.map_err(|error| refuse(error.sqlstate, error.message))
}

fn fits(given: usize, count: u32) -> Result<(), Refusal> {
    if given > count as usize {
        return Err(refuse("22003", format!("the array has {count} elements, and {given} are given")));
    }
    Ok(())
}

fn binary(
    bytes: &[u8],
    declared: &Type,
    sql: SqlType,
    count: Option<u32>,
    decimals: Decimals,
) -> Result<Value, Refusal> {
    let Some(count) = count else { return element(bytes, declared, sql, decimals) };
    let Some((of, length)) = array_head(bytes)? else { return Ok(Value::Array(Vec::new())) };
    fits(length, count)?;
    let mut rest = bytes.get(20..).unwrap_or_default();
    let mut values = Vec::new();
    for _ in 0..length {
        if let Some(behind) = rest.strip_prefix(&NULL_LENGTH) {
            rest = behind;
            values.push(Value::Null);
            continue;
        }
        values.push(element(array_element(&mut rest).ok_or_else(no_array)?, &of, sql, decimals)?);
    }
    if rest.is_empty() { Ok(Value::Array(values)) } else { Err(no_array()) }
}

/// Takes the next element off the rest of a binary array; nothing if it is cut short, or NULL.
pub(crate) fn array_element<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (width, behind) = rest.split_first_chunk()?;
    let (element, behind) = behind.split_at_checked(usize::try_from(i32::from_be_bytes(*width)).ok()?)?;
    *rest = behind;
    Some(element)
}

fn no_array() -> Refusal {
    refuse("22P03", "this is no binary array of one dimension")
}

/// What the first 20 bytes of a binary array say: the type of its elements and their number; nothing for an empty one.
pub(crate) fn array_head(bytes: &[u8]) -> Result<Option<(Type, usize)>, Refusal> {
    let number = |at: usize| {
        let number = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
        number.ok_or_else(no_array)
    };
    let (dimensions, oid) = (number(0)?, number(8)?);
    if dimensions == 0 {
        return Ok(None);
    }
    let length = usize::try_from(number(12)?).ok().filter(|_| dimensions == 1).ok_or_else(no_array)?;
    Ok(Some((Type::from_oid(oid as u32).ok_or_else(no_array)?, length)))
}

/// Appends what an array of one dimension begins with.
pub(crate) fn put_array_head(of: &Type, length: usize, row: &mut BytesMut) {
    row.put_i32(i32::from(length > 0));
    row.put_i32(0);
    row.put_u32(of.oid());
    if length > 0 {
        row.put_i32(length as i32);
        row.put_i32(1);
    }
}

fn element(bytes: &[u8], declared: &Type, sql: SqlType, decimals: Decimals) -> Result<Value, Refusal> {
    let short = || short(bytes, declared);
    let parsed = |text: &str| from_text(text, declared, sql, decimals);
    let value = match *declared {
        Type::INT2 => Value::Integer(i16::from_be_bytes(bytes.try_into().map_err(|_| short())?).into()),
        Type::INT4 => Value::Integer(i32::from_be_bytes(bytes.try_into().map_err(|_| short())?).into()),
        Type::INT8 => Value::Integer(i64::from_be_bytes(bytes.try_into().map_err(|_| short())?)),
        Type::OID => Value::Integer(u32::from_be_bytes(bytes.try_into().map_err(|_| short())?).into()),
        Type::BOOL => Value::Boolean(*bytes.first().filter(|_| bytes.len() == 1).ok_or_else(short)? != 0),
        Type::TIMESTAMP | Type::TIMESTAMPTZ => {
            let micros = i64::from_be_bytes(bytes.try_into().map_err(|_| short())?);
            let outside = || refuse("22008", "a timestamp is of the years 1 to 9999");
            Value::Timestamp(micros.checked_add(EPOCH).filter(|at| YEARS.contains(at)).ok_or_else(outside)?)
        }
        // Days, at midnight.
        Type::DATE => {
            let days: i64 = i32::from_be_bytes(bytes.try_into().map_err(|_| short())?).into();
            let outside = || refuse("22008", "a date is of the years 1 to 9999");
            Value::Timestamp(Some(days * DAY + EPOCH).filter(|at| YEARS.contains(at)).ok_or_else(outside)?)
        }
        Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8 => {
            return parsed(&number_text(bytes, declared)?.unwrap_or_default());
        }
        Type::BYTEA => Value::Bytes(bytes.to_vec()),
        Type::UUID => return parsed(&uuid(u128::from_be_bytes(bytes.try_into().map_err(|_| short())?))),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
            return parsed(std::str::from_utf8(bytes).map_err(|_| refuse("22021", "this is no UTF-8"))?);
        }
        ref other => {
            let message = format!("a binary {other} cannot be a {sql}");
            return Err(refuse("42846", message).hint("send it as text, or as the type that is described"));
        }
    };
    Ok(value)
}

/// The text of a UUID.
fn uuid(bits: u128) -> String {
    let digits = format!("{bits:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// The text of a binary numeric.
fn numeric(bytes: &[u8]) -> Result<String, Refusal> {
    let wrong = || refuse("22P03", format!("{} bytes are no binary numeric", bytes.len()));
    let (parts, rest) = bytes.as_chunks();
    let part = |at: usize| parts.get(at).copied().map(u16::from_be_bytes).ok_or_else(wrong);
    let (count, weight, sign) = (usize::from(part(0)?), part(1)? as i16, part(2)?);
    let groups = parts.get(4..).filter(|groups| groups.len() == count && rest.is_empty()).ok_or_else(wrong)?;
    if groups.iter().any(|group| u16::from_be_bytes(*group) > 9999) {
        return Err(wrong());
    }
    let mut text = String::from(match sign {
        0 => "",
        0x4000 => "-",
        0xc000 | 0xd000 | 0xf000 => return Err(refuse("22003", "NaN and infinity are out of range")),
        _ => return Err(wrong()),
    });
    if count == 0 {
        return Ok("0".into());
    }
    // Far from what a DECIMAL holds.
    if count > 32 || !(-8..=4).contains(&weight) {
        return Err(refuse("22003", "the number is out of range").hint("a DECIMAL has up to 18 digits"));
    }
    // Groups of four digits, the first worth 10000^weight.
    let group = |place: i16| {
        let group = usize::try_from(weight - place).ok().and_then(|at| groups.get(at));
        format!("{:04}", group.map_or(0, |group| u16::from_be_bytes(*group)))
    };
    text.extend((0..=weight.max(0)).rev().map(group));
    text.push('.');
    text.extend((1..count as i16 - weight).map(|place| group(-place)));
    // Without decimals it may be an integer.
    Ok(text.trim_end_matches('0').trim_end_matches('.').into())
}

/// Appends a value and its length, as a DataRow has it.
pub(crate) fn encode(value: &Value, ty: &Type, format: FieldFormat, row: &mut BytesMut) {
    with_length(row, |row| match format {
        FieldFormat::Text => row.put_slice(text(value).as_bytes()),
        FieldFormat::Binary => put_binary(value, ty, row),
    });
}

/// Appends what `put` does, behind its length.
pub(crate) fn with_length(row: &mut BytesMut, put: impl FnOnce(&mut BytesMut)) {
    let at = row.len();
    row.put_i32(0);
    put(row);
    let length = (row.len() - at - 4) as i32;
    row[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// A value as text, as PostgreSQL writes it.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Boolean(truth) => if *truth { "t" } else { "f" }.into(),
        Value::Array(values) => {
            let one = |value: &Value| match value {
                Value::Text(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
                Value::Bytes(_) => format!("\"\\{}\"", value),
                other => text(other),
            };
            format!("{{{}}}", values.iter().map(one).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

fn put_binary(value: &Value, ty: &Type, row: &mut BytesMut) {
    match (value, ty) {
        (Value::Integer(number), &Type::INT2) => row.put_i16(*number as i16),
        (Value::Integer(number), &Type::INT4) => row.put_i32(*number as i32),
        (Value::Integer(number), _) => row.put_i64(*number),
        (Value::Boolean(truth), _) => row.put_u8(u8::from(*truth)),
        (Value::Timestamp(micros), _) => row.put_i64(micros.saturating_sub(EPOCH)),
        (Value::Decimal(number, scale), _) => put_numeric((*number).into(), *scale, row),
        (Value::Text(text), _) => row.put_slice(text.as_bytes()),
        (Value::Bytes(bytes), _) => row.put_slice(bytes),
        (Value::Array(values), _) => {
            let of = element_type(ty);
            put_array_head(&of, values.len(), row);
            values.iter().for_each(|value| encode(value, &of, FieldFormat::Binary, row));
        }
        // A value of a kind that this version does not know, as text.
        (other, _) => row.put_slice(other.to_string().as_bytes()),
    }
}

pub(crate) fn element_type(ty: &Type) -> Type {
    match *ty {
        Type::BOOL_ARRAY => Type::BOOL,
        Type::INT2_ARRAY => Type::INT2,
        Type::INT4_ARRAY => Type::INT4,
        Type::INT8_ARRAY => Type::INT8,
        Type::NUMERIC_ARRAY => Type::NUMERIC,
        Type::FLOAT4_ARRAY => Type::FLOAT4,
        Type::FLOAT8_ARRAY => Type::FLOAT8,
        Type::TIMESTAMP_ARRAY => Type::TIMESTAMP,
        Type::VARCHAR_ARRAY => Type::VARCHAR,
        _ => Type::BYTEA,
    }
}

/// Appends a number times 10^scale, of up to 35 digits, as a binary numeric.
pub(crate) fn put_numeric(number: i128, scale: u8, row: &mut BytesMut) {
    let scale = u32::from(scale);
    // As many decimals as fill groups of four digits.
    let padding = (4 - scale % 4) % 4;
    let mut rest = number.unsigned_abs() * 10_u128.pow(padding);
    let (mut groups, mut count) = ([0_u16; 10], 0);
    while rest > 0 {
        groups[count] = (rest % 10_000) as u16;
        rest /= 10_000;
        count += 1;
    }
    let weight = count as i16 - 1 - ((scale + padding) / 4) as i16;
    let zeros = groups[..count].iter().take_while(|&&group| group == 0).count();
    let digits = &groups[zeros..count];
    row.put_u16(digits.len() as u16);
    row.put_i16(if digits.is_empty() { 0 } else { weight });
    row.put_u16(if number < 0 { 0x4000 } else { 0 });
    row.put_u16(scale as u16);
    digits.iter().rev().for_each(|&digit| row.put_u16(digit));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(sql: SqlType, count: Option<u32>) -> Field {
        Field { name: "$1".into(), sql_type: Some(sql), count }
    }

    #[test]
    fn binary_values_that_are_none_are_refused() {
        let numeric = |count: u16, groups: &[u16]| {
            let head = [count, 0, 0, 0];
            head.iter().chain(groups).flat_map(|part| part.to_be_bytes()).collect::<Vec<_>>()
        };
        for sql in [SqlType::Text(9), SqlType::Timestamp] {
            assert_eq!(element(b"a\0b", &Type::TEXT, sql, Decimals::Rounded).unwrap_err().sqlstate, "22021");
        }
        let date = |days: i32| element(&days.to_be_bytes(), &Type::DATE, SqlType::Timestamp, Decimals::Rounded);
        assert_eq!(date(-10_957), Ok(Value::Timestamp(0)));
        assert_eq!(date(i32::MAX).unwrap_err().sqlstate, "22008");
        let decimal = SqlType::Decimal(18, 2);
        assert_eq!(
            element(&numeric(2, &[7, 5000]), &Type::NUMERIC, decimal, Decimals::Rounded),
            Ok(Value::Decimal(7_50, 2))
        );
        for bytes in [numeric(1, &[10_000]), numeric(1, &[65_535]), numeric(2, &[7]), numeric(1, &[7, 7]), Vec::new()] {
            let refused = element(&bytes, &Type::NUMERIC, decimal, Decimals::Rounded).unwrap_err();
            assert_eq!(refused.sqlstate, "22P03", "{refused}");
        }
        let special = |sign: u16| [0, 0, sign, 0].iter().flat_map(|part| part.to_be_bytes()).collect();
        let of_weight =
            |weight: i16| [1, weight as u16, 0, 0, 9999].iter().flat_map(|part| part.to_be_bytes()).collect();
        let outside: [Vec<u8>; 9] = [
            numeric(40_000, &[7; 40_000]),
            special(0xc000),
            special(0xd000),
            special(0xf000),
            of_weight(-9),
            of_weight(4),
            of_weight(5),
            of_weight(i16::MAX),
            of_weight(i16::MIN),
        ];
        for bytes in outside {
            for sql in [decimal, SqlType::Integer(SqlType::Timestamp.storage())] {
                let refused = element(&bytes, &Type::NUMERIC, sql, Decimals::Rounded).unwrap_err();
                assert_eq!(refused.sqlstate, "22003", "{refused}");
            }
        }
        assert_eq!(
            element(&special(0x8000), &Type::NUMERIC, decimal, Decimals::Rounded).unwrap_err().sqlstate,
            "22P03"
        );
        let bigint = |bytes: Vec<u8>| {
            element(&bytes, &Type::NUMERIC, SqlType::Integer(SqlType::Timestamp.storage()), Decimals::Rounded)
        };
        assert_eq!(bigint(of_weight(1)), Ok(Value::Integer(99_990_000)));
        assert_eq!(bigint(numeric(2, &[7, 5000])).unwrap_err().sqlstate, "22P02");
        for micros in [i64::MIN, i64::MAX, i64::MAX - EPOCH, YEARS.end - EPOCH, YEARS.start - EPOCH - 1] {
            let refused =
                element(&micros.to_be_bytes(), &Type::TIMESTAMP, SqlType::Timestamp, Decimals::Rounded).unwrap_err();
            assert_eq!(refused.sqlstate, "22008", "{refused}");
        }
    }

    #[test]
    fn values_come_back_as_they_went_in_both_formats() {
        let decimal = SqlType::Decimal(18, 4);
        let numbers = [0, 1, -1, 9_999, 10_000, 12_345, -99_990_000, 999_999_999_999_999_999, 1_0000_0000, 50];
        let mut cases: Vec<(Value, Field)> = numbers
            .iter()
            .flat_map(|&number| {
                [0, 1, 3, 4, 7].map(|scale| (Value::Decimal(number, scale), SqlType::Decimal(18, scale)))
            })
            .map(|(value, sql)| (value, field(sql, None)))
            .collect();
        let texts = ["", "a", "it's {\"x\", \\y}", "null"].map(|text| Value::Text(text.into()));
        cases.extend([
            (Value::Boolean(true), field(SqlType::Boolean, None)),
            (Value::Timestamp(-1), field(SqlType::Timestamp, None)),
            (Value::Timestamp(1_706_704_200_123_456), field(SqlType::Timestamp, None)),
            (Value::Bytes(vec![0, 255, 7]), field(SqlType::Bytes(3), None)),
            (Value::Array(texts.to_vec()), field(SqlType::Text(30), Some(4))),
            (Value::Array(vec![Value::Decimal(125, 4); 3]), field(decimal, Some(3))),
            (Value::Array(vec![Value::Bytes(vec![1, 2]); 2]), field(SqlType::Bytes(2), Some(2))),
            (Value::Array(Vec::new()), field(SqlType::Boolean, Some(2))),
        ]);
        for (value, field) in cases {
            let (ty, _) = type_of(&field);
            for format in [FieldFormat::Text, FieldFormat::Binary] {
                let mut row = BytesMut::new();
                encode(&value, &ty, format, &mut row);
                let length = i32::from_be_bytes(row[..4].try_into().unwrap());
                assert_eq!(length as usize, row.len() - 4);
                let back = decode(Some(&row[4..]), format, None, &field, Decimals::Rounded)
                    .unwrap_or_else(|error| panic!("{value}: {error}"));
                assert_eq!(back, value, "{format:?}");
            }
        }
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let integer = field(SqlType::Integer(lockwork::sql::SqlType::Timestamp.storage()), None);
        let array = field(SqlType::Boolean, Some(2));
        let refused = |bytes: Option<&[u8]>, format, declared: Option<&Type>, field: &Field| {
            decode(bytes, format, declared, field, Decimals::Rounded).unwrap_err().to_string()
        };
        for (bytes, format, declared, field, expected) in [
            (None, FieldFormat::Text, None, &integer, "NULL"),
            (Some(&b"x"[..]), FieldFormat::Text, None, &integer, "'x' is no BIGINT"),
            (Some(b"\xff"), FieldFormat::Text, None, &integer, "UTF-8"),
            (Some(b"123"), FieldFormat::Binary, None, &integer, "3 bytes are no binary int8"),
            (Some(b"12345678"), FieldFormat::Binary, Some(&Type::POINT), &integer, "a binary point"),
            (Some(b"{t,f,t}"), FieldFormat::Text, None, &array, "2 elements, and 3"),
            (Some(b"{t,,f}"), FieldFormat::Text, None, &array, "no array"),
            (Some(b"{t,f"), FieldFormat::Text, None, &array, "no array"),
            (Some(b"{t,NULL}"), FieldFormat::Text, None, &array, "an element of parameter $1 is NULL"),
            (Some(&[0, 0, 0, 1]), FieldFormat::Binary, None, &array, "no binary array"),
            (Some(&[0xff; 40]), FieldFormat::Binary, None, &array, "no binary array"),
            (Some(&[0xff; 9]), FieldFormat::Binary, Some(&Type::NUMERIC), &integer, "no binary numeric"),
        ] {
            let message = refused(bytes, format, declared, field);
            assert!(message.contains(expected), "{message}");
        }
        // Any bytes are a value or refused.
        let mut random = lockwork_random::Random(1);
        for _ in 0..20_000 {
            let mut next = || random.next_u64() as u8;
            let bytes: Vec<u8> = (0..next() % 40).map(|_| if next() % 2 == 0 { 0 } else { next() % 4 }).collect();
            for declared in [Type::NUMERIC, Type::INT8, Type::BOOL_ARRAY, Type::TEXT, Type::FLOAT8] {
                for field in [&integer, &array] {
                    for decimals in [Decimals::Rounded, Decimals::Kept] {
                        drop(decode(Some(&bytes), FieldFormat::Binary, Some(&declared), field, decimals));
                    }
                }
            }
        }
    }
}
