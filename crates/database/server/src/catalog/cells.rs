//! Values on their way in and out: parameters for SQLite, cells for the client, in text and in binary.

use std::ops::Deref;

use bytes::{BufMut, BytesMut};
use pgwire::api::Type;
use pgwire::api::results::FieldFormat;
use rusqlite::types::{Value, ValueRef};
use serde_json::Value as Json;

use super::array::{elements, memory, text, written};
use super::infer::element_of;
use super::types;
use crate::error::{Refusal, refuse};
use crate::limits::{self, Reserved};
use crate::sqlite;
use crate::values::with_length;

/// Whether SQLite should have its values as integers.
fn is_integer(ty: &Type) -> bool {
    matches!(*ty, Type::INT2 | Type::INT4 | Type::INT8 | Type::OID | Type::XID | Type::CID)
}

/// The type of the elements, for an array or vector.
fn element_type(ty: &Type) -> Option<Type> {
    element_of(ty.name()).map(|name| types::of_name(&name))
}

/// A value and the memory that it has.
#[derive(Debug)]
pub(super) struct Decoded {
    value: Value,
    _memory: Reserved,
}

impl Deref for Decoded {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

/// Counts memory, in a function that refuses.
fn counted(bytes: usize) -> Result<Reserved, Refusal> {
    limits::reserve(bytes).map_err(|error| {
        let message = sqlite::message(&error);
        sqlite::stated(&message).unwrap_or_else(|| refuse("53200", message))
    })
}

/// A parameter as a client sent it.
pub(super) fn decode(bytes: Option<&[u8]>, format: FieldFormat, ty: &Type, number: usize) -> Result<Decoded, Refusal> {
    let named = |refusal: Refusal| Refusal { message: format!("parameter ${number}: {}", refusal.message), ..refusal };
    let length = bytes.map_or(0, <[u8]>::len);
    let _elements = match (bytes, format, element_type(ty)) {
        (Some(_), FieldFormat::Binary, Some(_)) => counted(length * (size_of::<Json>() / 4 + 16))?,
        (Some(bytes), FieldFormat::Text, Some(_)) => counted(std::str::from_utf8(bytes).map_or(0, memory))?,
        _ => counted(0)?,
    };
    let _memory = counted(2 * length)?;
    let value = match (bytes, format) {
        (None, _) => Value::Null,
        (Some(bytes), FieldFormat::Text) => {
            let text = std::str::from_utf8(bytes).map_err(|_| named(refuse("22021", "this is no UTF-8")))?;
            parse(text, ty).map_err(named)?
        }
        (Some(bytes), FieldFormat::Binary) => binary(bytes, ty).map_err(named)?,
    };
    Ok(Decoded { value, _memory })
}

fn parse(text: &str, ty: &Type) -> Result<Value, Refusal> {
    let wrong = || refuse("22P02", format!("'{text}' is no {ty}"));
    if is_integer(ty) {
        return text.trim().parse().map(Value::Integer).map_err(|_| wrong());
    }
    Ok(match *ty {
        Type::BOOL => match text.trim().to_ascii_lowercase().as_str() {
            "t" | "true" | "1" | "on" | "yes" => Value::Integer(1),
            "f" | "false" | "0" | "off" | "no" => Value::Integer(0),
            _ => return Err(wrong()),
        },
        Type::FLOAT4 | Type::FLOAT8 => text.trim().parse().map(Value::Real).map_err(|_| wrong())?,
        _ if element_type(ty).is_some() => Value::Text(Json::Array(elements(text).ok_or_else(wrong)?).to_string()),
        _ => Value::Text(text.into()),
    })
}

fn binary(bytes: &[u8], ty: &Type) -> Result<Value, Refusal> {
    let short = || refuse("22P03", format!("{} bytes are no binary {ty}", bytes.len()));
    Ok(match *ty {
        Type::BOOL => Value::Integer((*bytes.first().filter(|_| bytes.len() == 1).ok_or_else(short)? != 0).into()),
        Type::INT2 => Value::Integer(i16::from_be_bytes(bytes.try_into().map_err(|_| short())?).into()),
        Type::INT4 => Value::Integer(i32::from_be_bytes(bytes.try_into().map_err(|_| short())?).into()),
        Type::INT8 => Value::Integer(i64::from_be_bytes(bytes.try_into().map_err(|_| short())?)),
        Type::OID | Type::XID | Type::CID => {
            Value::Integer(u32::from_be_bytes(bytes.try_into().map_err(|_| short())?).into())
        }
        Type::FLOAT4 => Value::Real(f32::from_be_bytes(bytes.try_into().map_err(|_| short())?).into()),
        Type::FLOAT8 => Value::Real(f64::from_be_bytes(bytes.try_into().map_err(|_| short())?)),
        Type::TEXT | Type::VARCHAR | Type::NAME | Type::BPCHAR | Type::CHAR | Type::UNKNOWN | Type::JSON => {
            let text = std::str::from_utf8(bytes).map_err(|_| refuse("22021", "this is no UTF-8"))?;
            Value::Text(text.into())
        }
        _ => {
            let of = element_type(ty).ok_or_else(|| {
                let message = format!("a binary {ty} is no parameter of a query of the catalog");
                refuse("42846", message).hint("send it as text")
            })?;
            Value::Text(Json::Array(binary_array(bytes, &of)?.ok_or_else(short)?).to_string())
        }
    })
}

/// The elements of an array of one dimension; nothing if it is none.
fn binary_array(bytes: &[u8], of: &Type) -> Result<Option<Vec<Json>>, Refusal> {
    let number = |at: usize| Some(i32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let mut made = Vec::new();
    let (Some(dimensions), Some(_), Some(_)) = (number(0), number(4), number(8)) else { return Ok(None) };
    if dimensions == 0 {
        return Ok(Some(made));
    }
    let (1, Some(length), Some(_)) = (dimensions, number(12), number(16)) else { return Ok(None) };
    let mut at = 20;
    for _ in 0..length {
        let Some(width) = number(at) else { return Ok(None) };
        at += 4;
        if width < 0 {
            made.push(Json::Null);
            continue;
        }
        let Some(element) = bytes.get(at..at + width as usize) else { return Ok(None) };
        made.push(match binary(element, of)? {
            Value::Integer(number) => Json::from(number),
            Value::Real(number) => Json::from(number),
            Value::Text(text) => Json::from(text),
            _ => Json::Null,
        });
        at += width as usize;
    }
    Ok((at == bytes.len()).then_some(made))
}

/// Appends a cell and its length, as a DataRow has it.
///
/// # Errors
/// There is no memory for it.
pub(super) fn encode(value: ValueRef<'_>, ty: &Type, format: FieldFormat, row: &mut BytesMut) -> Result<(), Refusal> {
    let _copies = match (value, element_type(ty)) {
        (ValueRef::Text(text), Some(_)) => counted(2 * std::str::from_utf8(text).map_or(0, memory))?,
        // The copy, and the row that grows.
        (ValueRef::Text(bytes) | ValueRef::Blob(bytes), _) => counted(4 * bytes.len())?,
        _ => counted(0)?,
    };
    append(value, ty, format, row);
    Ok(())
}

fn append(value: ValueRef<'_>, ty: &Type, format: FieldFormat, row: &mut BytesMut) {
    if value == ValueRef::Null {
        return row.put_i32(-1);
    }
    with_length(row, |row| match format {
        FieldFormat::Text => put_text(value, ty, row),
        FieldFormat::Binary => put_binary(value, ty, row),
    });
}

fn plain(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => String::new(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn truth(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Integer(number) => number != 0,
        other => matches!(plain(other).as_str(), "t" | "true" | "1"),
    }
}

fn whole(value: ValueRef<'_>) -> i64 {
    match value {
        ValueRef::Integer(number) => number,
        ValueRef::Real(number) => number as i64,
        other => plain(other).trim().parse().unwrap_or(0),
    }
}

fn put_text(value: ValueRef<'_>, ty: &Type, row: &mut BytesMut) {
    let words = match (ty, element_type(ty)) {
        (&Type::BOOL, _) => if truth(value) { "t" } else { "f" }.into(),
        (_, Some(of)) => {
            let list = elements(&plain(value)).unwrap_or_default();
            if ty.name().ends_with("vector") {
                list.iter().filter_map(text).collect::<Vec<_>>().join(" ")
            } else {
                written(&list, of == Type::BOOL)
            }
        }
        _ => plain(value),
    };
    row.put_slice(words.as_bytes());
}

fn put_binary(value: ValueRef<'_>, ty: &Type, row: &mut BytesMut) {
    match *ty {
        Type::BOOL => row.put_u8(truth(value).into()),
        Type::INT2 => row.put_i16(whole(value) as i16),
        Type::INT4 => row.put_i32(whole(value) as i32),
        Type::OID | Type::XID | Type::CID => row.put_u32(whole(value) as u32),
        Type::INT8 => row.put_i64(whole(value)),
        Type::FLOAT4 => row.put_f32(plain(value).parse().unwrap_or(0.0)),
        Type::FLOAT8 => row.put_f64(plain(value).parse().unwrap_or(0.0)),
        _ => match element_type(ty) {
            Some(of) => {
                let list = elements(&plain(value)).unwrap_or_default();
                // The elements of a vector have numbers from 0.
                let first = i32::from(!ty.name().ends_with("vector"));
                row.put_i32(i32::from(!list.is_empty()));
                row.put_i32(list.contains(&Json::Null).into());
                row.put_u32(of.oid());
                if !list.is_empty() {
                    row.put_i32(list.len() as i32);
                    row.put_i32(first);
                }
                for element in &list {
                    let word = text(element);
                    let value = match (&word, element.as_i64()) {
                        (None, _) => ValueRef::Null,
                        (_, Some(number)) => ValueRef::Integer(number),
                        (Some(word), None) => ValueRef::Text(word.as_bytes()),
                    };
                    append(value, &of, FieldFormat::Binary, row);
                }
            }
            None => row.put_slice(plain(value).as_bytes()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(value: &Value, ty: &Type, format: FieldFormat) -> Value {
        let mut row = BytesMut::new();
        encode(ValueRef::from(value), ty, format, &mut row).unwrap();
        let length = i32::from_be_bytes(row[..4].try_into().unwrap());
        let bytes = (length >= 0).then(|| &row[4..]);
        assert_eq!(bytes.map_or(0, <[u8]>::len) as i32, length.max(0));
        decode(bytes, format, ty, 1).unwrap().value
    }

    #[test]
    fn values_come_back_as_they_went_in_both_formats() {
        for format in [FieldFormat::Text, FieldFormat::Binary] {
            for (value, ty) in [
                (Value::Null, Type::OID),
                (Value::Integer(4_000_000_000), Type::OID),
                (Value::Integer(-7), Type::INT2),
                (Value::Integer(1), Type::BOOL),
                (Value::Text("it's".into()), Type::NAME),
                (Value::Text("[1,2]".into()), Type::INT2_VECTOR),
                (Value::Text(r#"["a b",null,""]"#.into()), Type::TEXT_ARRAY),
                (Value::Text("[]".into()), Type::OID_ARRAY),
                (Value::Real(0.5), Type::FLOAT8),
            ] {
                assert_eq!(back(&value, &ty, format), value, "{ty} {format:?}");
            }
        }
    }

    #[test]
    fn any_bytes_are_a_value_or_refused() {
        let mut random = lockwork_random::Random(7);
        for _ in 0..20_000 {
            let mut next = || random.next_u64() as u8;
            let bytes: Vec<u8> = (0..next() % 40).map(|_| if next() % 2 == 0 { 0 } else { next() % 4 }).collect();
            for ty in [Type::OID, Type::BOOL, Type::TEXT_ARRAY, Type::INT2_VECTOR, Type::FLOAT8, Type::POINT] {
                for format in [FieldFormat::Text, FieldFormat::Binary] {
                    drop(decode(Some(&bytes), format, &ty, 1));
                }
            }
        }
        assert_eq!(decode(Some(b"x"), FieldFormat::Text, &Type::OID, 3).unwrap_err().sqlstate, "22P02");
        assert_eq!(decode(Some(&[0; 3]), FieldFormat::Binary, &Type::OID, 3).unwrap_err().sqlstate, "22P03");
    }
}
