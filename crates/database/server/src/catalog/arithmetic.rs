//! Arithmetic of queries of the catalog: exact, or refused.

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Error, Result};

use super::functions::number;

pub(super) fn refused(message: &str) -> Error {
    Error::UserFunctionError(message.into())
}

/// Arithmetic, which SQLite would go on with in double precision where integers do not suffice.
pub(super) fn computed(
    context: &Context<'_>,
    whole: fn(i64, i64) -> Option<i64>,
    real: fn(f64, f64) -> f64,
) -> Result<Value> {
    match (context.get_raw(0), context.get_raw(1)) {
        (ValueRef::Null, _) | (_, ValueRef::Null) => Ok(Value::Null),
        (ValueRef::Integer(a), ValueRef::Integer(b)) => {
            whole(a, b).map(Value::Integer).ok_or_else(|| refused("22003: a number is out of range"))
        }
        (ValueRef::Integer(_) | ValueRef::Real(_), ValueRef::Integer(_) | ValueRef::Real(_)) => {
            Ok(Value::Real(real(context.get(0)?, context.get(1)?)))
        }
        _ => Err(refused("42883: arithmetic takes numbers")),
    }
}

/// A division, which SQLite would answer NULL where it is one by zero.
pub(super) fn divided(
    context: &Context<'_>,
    whole: fn(i64, i64) -> Option<i64>,
    real: fn(f64, f64) -> f64,
) -> Result<Value> {
    match (context.get_raw(0), context.get_raw(1)) {
        (ValueRef::Integer(_) | ValueRef::Real(_), ValueRef::Integer(0) | ValueRef::Real(0.0)) => {
            Err(refused("22012: division by zero"))
        }
        _ => computed(context, whole, real),
    }
}

/// `pg_whole(value, lowest, highest)`: an integer of what is one, or says one.
pub(super) fn whole(context: &Context<'_>) -> Result<Value> {
    let value = match context.get_raw(0) {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Integer(value) => Some(value),
        // Half to even; the bounds are exact in double precision.
        ValueRef::Real(value) => {
            let value = value.round_ties_even();
            (value >= i64::MIN as f64 && value < i64::MAX as f64).then_some(value as i64)
        }
        ValueRef::Text(_) => match number(context, 0) {
            None => return Err(refused("22P02: this is no integer")),
            value => value,
        },
        ValueRef::Blob(_) => None,
    };
    let value = value.filter(|value| (context.get(1).unwrap_or(0)..=context.get(2).unwrap_or(0)).contains(value));
    value.map(Value::Integer).ok_or_else(|| refused("22003: a number is out of range"))
}
