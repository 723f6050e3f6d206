//! Values as PostgreSQL's protocol has them in binary.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use lockwork::sql::Value;
use postgres_types::{FromSql, IsNull, ToSql, Type};

use crate::columns::Data;
use crate::values::{Cell, Kind, Shape};

/// Microseconds from 1970 to 2000, where PostgreSQL's timestamps begin.
const EPOCH: i64 = 946_684_800_000_000;
const DAY: i64 = 86_400_000_000;

type Outcome<T> = Result<T, Box<dyn Error + Sync + Send>>;

/// What kind of values a type of the protocol has, and whether it is an array of them.
pub(crate) fn shape_of(name: &str, ty: &Type, modifier: i32) -> Option<Shape> {
    let (one, is_array) = match ty.kind() {
        postgres_types::Kind::Array(element) => (element, true),
        _ => (ty, false),
    };
    let kind = match *one {
        Type::BOOL => Kind::Boolean,
        Type::INT2 => Kind::Integer(i16::MIN.into(), i16::MAX.into()),
        Type::INT4 => Kind::Integer(i32::MIN.into(), i32::MAX.into()),
        Type::INT8 => Kind::Integer(i64::MIN, i64::MAX),
        // Digits and decimals lie in the modifier, larger by the 4 bytes of a header that there once was.
        Type::OID | Type::XID | Type::CID => Kind::Integer(0, u32::MAX.into()),
        Type::NUMERIC if modifier >= 4 => Kind::Decimal(Some((((modifier - 4) >> 16) as u8, (modifier - 4) as u8))),
        Type::NUMERIC => Kind::Decimal(None),
        Type::TIMESTAMP => Kind::Timestamp,
        Type::BYTEA => Kind::Bytes,
        Type::UUID => Kind::Text,
        _ if is_text(one) => Kind::Text,
        _ => return None,
    };
    Some(Shape { name: name.to_string(), kind, is_array })
}

/// A value on its way to a server.
#[derive(Debug)]
pub(crate) enum Sent {
    Value(Value),
    /// As an array.
    Column(Data),
}

impl ToSql for Sent {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Outcome<IsNull> {
        match self {
            Self::Value(value) => put(value, ty, out)?,
            Self::Column(data) => {
                let of = element_of(ty)?;
                head(&of, data.len(), out);
                match data {
                    Data::Numbers(numbers) => {
                        numbers.iter().try_for_each(|number| sized(out, |out| put_number(*number, &of, out)))?;
                    }
                    Data::Decimals(numbers, scale) => {
                        numbers
                            .iter()
                            .try_for_each(|number| sized(out, |out| put_decimal(*number, *scale, &of, out)))?;
                    }
                    Data::Values(values) => {
                        values.iter().try_for_each(|value| sized(out, |out| put(value, &of, out)))?;
                    }
                }
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> Outcome<IsNull> {
        self.to_sql(ty, out)
    }
}

fn element_of(ty: &Type) -> Outcome<Type> {
    match ty.kind() {
        postgres_types::Kind::Array(element) => Ok(element.clone()),
        _ => Err(format!("{ty} is no array").into()),
    }
}

/// The head of an array of one dimension.
fn head(of: &Type, length: usize, out: &mut BytesMut) {
    out.put_i32(i32::from(length > 0));
    out.put_i32(0);
    out.put_u32(of.oid());
    if length > 0 {
        out.put_i32(length as i32);
        out.put_i32(1);
    }
}

/// Puts an element behind its length.
fn sized(out: &mut BytesMut, put: impl FnOnce(&mut BytesMut) -> Outcome<()>) -> Outcome<()> {
    let at = out.len();
    out.put_i32(0);
    put(out)?;
    let length = i32::try_from(out.len() - at - 4)?;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

fn put_number(number: i64, ty: &Type, out: &mut BytesMut) -> Outcome<()> {
    match *ty {
        Type::BOOL => out.put_u8(u8::from(number != 0)),
        Type::INT2 => out.put_i16(number.try_into()?),
        Type::INT4 => out.put_i32(number.try_into()?),
        Type::INT8 => out.put_i64(number),
        Type::OID | Type::XID | Type::CID => out.put_u32(number.try_into()?),
        Type::TIMESTAMP => out.put_i64(number.checked_sub(EPOCH).ok_or("the timestamp is too early")?),
        _ => return put_decimal(number, 0, ty, out),
    }
    Ok(())
}

/// A binary numeric: how many groups of four digits, the power of 10,000 of the first one, the sign, the decimals, and
/// the groups.
fn put_digits(digits: &str, out: &mut BytesMut) -> Outcome<()> {
    let (sign, digits) = digits.strip_prefix('-').map_or((0, digits), |digits| (0x4000, digits));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0');
    let zeros = |length: usize| "0".repeat(length.next_multiple_of(4) - length);
    let all = [&*zeros(whole.len()), whole, part, &*zeros(part.len())].concat();
    out.put_i16(i16::try_from(all.len() / 4)?);
    out.put_i16(i16::try_from(whole.len().div_ceil(4))? - 1);
    out.put_u16(sign);
    out.put_i16(i16::try_from(part.len())?);
    for group in all.as_bytes().chunks(4) {
        out.put_i16(group.iter().fold(0, |number, digit| 10 * number + i16::from(digit - b'0')));
    }
    Ok(())
}

fn put(value: &Value, ty: &Type, out: &mut BytesMut) -> Outcome<()> {
    match value {
        Value::Integer(number) | Value::Timestamp(number) => put_number(*number, ty, out)?,
        Value::Boolean(truth) => put_number(i64::from(*truth), ty, out)?,
        Value::Decimal(number, scale) => put_decimal(*number, *scale, ty, out)?,
        Value::Numeric(digits) if *ty == Type::NUMERIC => put_digits(digits, out)?,
        Value::Text(text) if *ty == Type::UUID => {
            let digits = Some(text.replace('-', "")).filter(|digits| digits.len() == 32);
            let bits = digits.and_then(|digits| u128::from_str_radix(&digits, 16).ok());
            out.put_u128(bits.ok_or_else(|| format!("'{text:.64}' is no UUID"))?);
        }
        Value::Text(text) => out.put_slice(text.as_bytes()),
        Value::Bytes(bytes) => out.put_slice(bytes),
        Value::Array(values) => {
            let of = element_of(ty)?;
            head(&of, values.len(), out);
            values.iter().try_for_each(|value| sized(out, |out| put(value, &of, out)))?;
        }
        other => return Err(format!("{other} is of an unknown kind").into()),
    }
    Ok(())
}

/// Groups of four digits, the first worth 10000^weight, and how many decimals are shown.
fn put_decimal(number: i64, scale: u8, ty: &Type, out: &mut BytesMut) -> Outcome<()> {
    if *ty != Type::NUMERIC {
        return Err(format!("a number cannot be a {ty}").into());
    }
    // As many decimals as fill groups; at most 22 digits.
    let padding = (4 - u32::from(scale) % 4) % 4;
    let mut rest = u128::from(number.unsigned_abs()) * 10_u128.pow(padding);
    let mut groups = [0_u16; 6];
    let mut count = 0;
    while rest > 0 {
        groups[count] = (rest % 10_000) as u16;
        rest /= 10_000;
        count += 1;
    }
    let below = ((u32::from(scale) + padding) / 4) as i16;
    let zeros = groups[..count].iter().take_while(|&&group| group == 0).count();
    out.put_u16((count - zeros) as u16);
    out.put_i16(if count == 0 { 0 } else { count as i16 - 1 - below });
    out.put_u16(if number < 0 { 0x4000 } else { 0 });
    out.put_u16(scale.into());
    groups[zeros..count].iter().rev().for_each(|&group| out.put_u16(group));
    Ok(())
}

/// Whether values of this type are text in binary too, at a server of ours: names of the catalog's things are.
fn is_text(ty: &Type) -> bool {
    matches!(
        *ty,
        Type::VARCHAR | Type::TEXT | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::CHAR | Type::JSON | Type::INET
    ) || matches!(*ty, Type::PG_NODE_TREE | Type::ACLITEM | Type::REGPROC | Type::REGPROCEDURE | Type::REGOPER)
        || matches!(*ty, Type::REGCLASS | Type::REGTYPE | Type::REGNAMESPACE | Type::REGROLE | Type::REGCOLLATION)
}

/// Whether [`Received`] understands values of this type.
pub(crate) fn is_known(ty: &Type) -> bool {
    let is_moment = matches!(*ty, Type::TIMESTAMPTZ | Type::DATE | Type::FLOAT4 | Type::FLOAT8);
    is_moment || shape_of("", ty, -1).is_some()
}

/// A value, or nothing, as a server sent it.
pub(crate) struct Received(pub(crate) Cell);

impl<'a> FromSql<'a> for Received {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Outcome<Self> {
        let postgres_types::Kind::Array(of) = ty.kind() else {
            return Ok(Self(match *ty {
                Type::FLOAT4 => Cell::Real(f32::from_be_bytes(raw.try_into()?).into()),
                Type::FLOAT8 => Cell::Real(f64::from_be_bytes(raw.try_into()?)),
                Type::DATE => Cell::Date(i64::from(i32::from_be_bytes(raw.try_into()?)) * DAY + EPOCH),
                _ => Cell::Value(get(ty, raw)?),
            }));
        };
        let mut values = Vec::new();
        elements(raw, |raw| {
            values.push(get(of, raw)?);
            Ok(())
        })?;
        Ok(Self(Cell::Value(Value::Array(values))))
    }

    fn from_sql_null(_: &Type) -> Outcome<Self> {
        Ok(Self(Cell::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// An array as a column.
pub(crate) struct GotColumn(pub(crate) Data);

impl<'a> FromSql<'a> for GotColumn {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Outcome<Self> {
        let of = element_of(ty)?;
        let (mut numbers, mut values, mut scale) = (Vec::new(), Vec::new(), 0);
        let is_number = matches!(of, Type::BOOL | Type::INT2 | Type::INT4 | Type::INT8 | Type::TIMESTAMP);
        elements(raw, |raw| {
            if is_number {
                numbers.push(get_number(&of, raw)?);
            } else if of == Type::NUMERIC {
                let (number, its_scale) = get_decimal(raw)?;
                if its_scale != scale && !numbers.is_empty() {
                    return Err("decimals of one column have different scales".into());
                }
                scale = its_scale;
                numbers.push(number);
            } else {
                values.push(get(&of, raw)?);
            }
            Ok(())
        })?;
        Ok(Self(match of {
            Type::NUMERIC => Data::Decimals(numbers, scale),
            _ if is_number => Data::Numbers(numbers),
            _ => Data::Values(values),
        }))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), postgres_types::Kind::Array(_))
    }
}

/// The first bytes of `raw`, which they are taken off.
fn take<const N: usize>(raw: &mut &[u8]) -> Outcome<[u8; N]> {
    let (first, rest) = raw.split_first_chunk::<N>().ok_or("a value is cut short")?;
    *raw = rest;
    Ok(*first)
}

fn elements<'a>(mut raw: &'a [u8], mut each: impl FnMut(&'a [u8]) -> Outcome<()>) -> Outcome<()> {
    let dimensions = i32::from_be_bytes(take(&mut raw)?);
    take::<8>(&mut raw)?;
    if dimensions == 0 {
        return Ok(());
    }
    let length = i32::from_be_bytes(take(&mut raw)?);
    take::<4>(&mut raw)?;
    if dimensions != 1 {
        return Err("an array of several dimensions".into());
    }
    for _ in 0..length {
        let width = usize::try_from(i32::from_be_bytes(take(&mut raw)?)).map_err(|_| "a NULL in an array")?;
        let (element, rest) = raw.split_at_checked(width).ok_or("an array is cut short")?;
        each(element)?;
        raw = rest;
    }
    Ok(())
}

fn get_number(ty: &Type, raw: &[u8]) -> Outcome<i64> {
    Ok(match *ty {
        Type::BOOL => i64::from(*raw.first().ok_or("a value is cut short")? != 0),
        Type::INT2 => i16::from_be_bytes(raw.try_into()?).into(),
        Type::INT4 => i32::from_be_bytes(raw.try_into()?).into(),
        Type::TIMESTAMP | Type::TIMESTAMPTZ => {
            i64::from_be_bytes(raw.try_into()?).checked_add(EPOCH).ok_or("the timestamp is too late")?
        }
        Type::OID | Type::XID | Type::CID => u32::from_be_bytes(raw.try_into()?).into(),
        _ => i64::from_be_bytes(raw.try_into()?),
    })
}

fn get_decimal(mut raw: &[u8]) -> Outcome<(i64, u8)> {
    let count = u16::from_be_bytes(take(&mut raw)?);
    let weight = i16::from_be_bytes(take(&mut raw)?);
    let sign = u16::from_be_bytes(take(&mut raw)?);
    let scale = u8::try_from(u16::from_be_bytes(take(&mut raw)?))?;
    let outside = || "a numeric is outside of what a DECIMAL holds";
    let (mut number, mut exponent) = (0_i128, i32::from(weight) * 4);
    for _ in 0..count.min(10) {
        number = number * 10_000 + i128::from(u16::from_be_bytes(take(&mut raw)?));
        exponent -= 4;
    }
    // The number times ten to `exponent` + 4 is the value.
    let by = if number == 0 { 0 } else { exponent + 4 + i32::from(scale) };
    let power = 10_i128.checked_pow(by.unsigned_abs()).ok_or_else(outside)?;
    let number = if by >= 0 { number.checked_mul(power) } else { Some(number / power) };
    let number = number.filter(|_| count <= 9 && matches!(sign, 0 | 0x4000) && scale <= 18).ok_or_else(outside)?;
    Ok((i64::try_from(if sign == 0 { number } else { -number })?, scale))
}

fn get(ty: &Type, raw: &[u8]) -> Outcome<Value> {
    Ok(match *ty {
        Type::BOOL => Value::Boolean(get_number(ty, raw)? != 0),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID | Type::XID | Type::CID => {
            Value::Integer(get_number(ty, raw)?)
        }
        Type::TIMESTAMP | Type::TIMESTAMPTZ => Value::Timestamp(get_number(ty, raw)?),
        Type::NUMERIC => {
            let (number, scale) = get_decimal(raw)?;
            Value::Decimal(number, scale)
        }
        Type::BYTEA => Value::Bytes(raw.to_vec()),
        Type::UUID => {
            let digits = format!("{:032x}", u128::from_be_bytes(raw.try_into()?));
            let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            Value::Text(parts.join("-"))
        }
        _ if is_text(ty) => Value::Text(std::str::from_utf8(raw)?.to_string()),
        _ => return Err(format!("values of type {ty} are not known here").into()),
    })
}
