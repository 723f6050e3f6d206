//! CALL MANY: a procedure called with each element of arrays.
//!
//! Numbers go from the wire into columns and back without a value of their own for each. The calls are made in pieces,
//! so that those of others come between them, and the next piece is made while one runs.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use bytes::{BufMut, BytesMut};
use lockwork::sql::{Field, SqlType, Statement, Value, statements};
use lockwork::{Batch, Column, Columns, Error, Prepared, Procedure};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::FieldFormat;
use pgwire::messages::data::DataRow;
use tokio::sync::oneshot::{self, Receiver};

use crate::cancel::Cancel;
use crate::error::{Refusal, refuse};
use crate::shared::{Plan, Shared, closed, unanswered};
use crate::values::{
    self, Decimals, EPOCH, YEARS, array_element, array_head, element_type, encode, format_of, put_array_head,
    put_numeric, type_of,
};

/// The most calls of a CALL MANY, and the most bytes of their blocks.
pub(crate) const MAX_CALLS: u32 = 1 << 18;
const MAX_BYTES: usize = 256 << 20;
/// Of all of them that are under way.
pub(crate) const MAX_BYTES_AT_ONCE: usize = 512 << 20;
/// Calls, and steps of them, that others wait for at most: some ten milliseconds.
const PIECE: usize = 1 << 14;
const PIECE_STEPS: u64 = 1 << 23;
/// Pieces of all CALL MANYs that are on their way: one is written, one encoded, one run.
pub(crate) const PIECES: usize = 3;
/// The column that says why a call was taken back; it is empty for one that was not.
pub(crate) const SQLSTATE: &str = "sqlstate";

/// The CALL of a text that is a CALL MANY; it has blanks in place of MANY, so that places are those of the text.
pub(crate) fn call_of(text: &str) -> Option<String> {
    let mut rest = text.trim_start();
    for word in ["call", "many"] {
        let (first, behind) = rest.split_at_checked(word.len())?;
        if !first.eq_ignore_ascii_case(word) || !behind.starts_with(char::is_whitespace) {
            return None;
        }
        rest = behind.trim_start();
    }
    let call = &text[..text.len() - rest.len()];
    let blank = |c: char| if c.is_whitespace() { c } else { ' ' };
    let blanks: String = call.trim_start().chars().skip("call".len()).map(blank).collect();
    let before = &call[..call.len() - call.trim_start().len()];
    Some(format!("{before}CALL{blanks}{rest}"))
}

/// The statement of such a CALL. Places in it are not those of the text.
pub(crate) fn statement(call: &str) -> Result<Statement<'_>, Refusal> {
    let statement = statements(call).next();
    let statement = statement.ok_or_else(|| refuse("42601", "a CALL is expected behind CALL MANY"))?;
    statement.map_err(|error| Refusal::of(error.into(), ""))
}

/// A column as a client sent it: an array.
pub(crate) fn decode(
    bytes: Option<&[u8]>,
    format: FieldFormat,
    declared: Option<&Type>,
    field: &Field,
) -> Result<Column, Refusal> {
    if let (Some(bytes), FieldFormat::Binary, Some(sql)) = (bytes, format, field.sql_type)
        && let Some(numbers) = numbers(bytes, sql)
    {
        return Ok(Column::Numbers(numbers));
    }
    match values::decode(bytes, format, declared, field, Decimals::Rounded)? {
        Value::Array(values) => Ok(Column::Values(values)),
        other => Err(refuse("42804", format!("{other} is no array: CALL MANY takes an array for each parameter"))),
    }
}

/// A binary array of numbers as they are stored for a type; nothing for whatever is not that simple.
fn numbers(bytes: &[u8], sql: SqlType) -> Option<Vec<i64>> {
    let (of, length) = array_head(bytes).ok()??;
    if length > MAX_CALLS as usize {
        return None;
    }
    let power = match sql {
        SqlType::Decimal(_, scale) => 10_i64.checked_pow(scale.into())?,
        _ => 1,
    };
    let one = |element: &[u8]| -> Option<i64> {
        match (&of, sql) {
            (&Type::INT8, SqlType::Integer(_)) => Some(i64::from_be_bytes(element.try_into().ok()?)),
            (&Type::INT8, SqlType::Decimal(..)) => i64::from_be_bytes(element.try_into().ok()?).checked_mul(power),
            (&Type::INT4, SqlType::Integer(_) | SqlType::Decimal(..)) => {
                i64::from(i32::from_be_bytes(element.try_into().ok()?)).checked_mul(power)
            }
            (&Type::INT2, SqlType::Integer(_) | SqlType::Decimal(..)) => {
                i64::from(i16::from_be_bytes(element.try_into().ok()?)).checked_mul(power)
            }
            (&Type::BOOL, SqlType::Boolean) => match element {
                [truth] => Some(i64::from(*truth != 0)),
                _ => None,
            },
            (&Type::TIMESTAMP, SqlType::Timestamp) => {
                let micros = i64::from_be_bytes(element.try_into().ok()?).checked_add(EPOCH)?;
                YEARS.contains(&micros).then_some(micros)
            }
            (&Type::NUMERIC, SqlType::Decimal(_, scale)) => decimal(element, scale),
            _ => None,
        }
    };
    let mut numbers = Vec::with_capacity(length);
    let mut rest = bytes.get(20..)?;
    for _ in 0..length {
        numbers.push(one(array_element(&mut rest)?)?);
    }
    rest.is_empty().then_some(numbers)
}

/// A binary numeric times ten to `scale`, if that is a whole number of 64 bits.
fn decimal(bytes: &[u8], scale: u8) -> Option<i64> {
    let (head, digits) = bytes.split_first_chunk::<8>()?;
    let part = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let (count, weight, sign) = (usize::from(part(0)), i32::from(part(2) as i16), part(4));
    if digits.len() != 2 * count || count > 8 || !(-8..=5).contains(&weight) || !matches!(sign, 0 | 0x4000) {
        return None;
    }
    let mut number = 0_i128;
    for group in digits.chunks_exact(2) {
        let group = u16::from_be_bytes([group[0], group[1]]);
        number = number * 10_000 + i128::from(Some(group).filter(|group| *group < 10_000)?);
    }
    let exponent = 4 * (weight + 1 - count as i32) + i32::from(scale);
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let number = match exponent {
        0.. => number.checked_mul(power)?,
        _ if number % power == 0 => number / power,
        _ => return None,
    };
    i64::try_from(if sign == 0 { number } else { -number }).ok()
}

/// Appends a column of results as an array.
fn put_column(column: Column, field: &Field, format: FieldFormat, row: &mut BytesMut) {
    let ty = type_of(field).0;
    match (column, field.sql_type) {
        (Column::Numbers(numbers), Some(sql)) if format == FieldFormat::Binary => values::with_length(row, |row| {
            let of = element_type(&ty);
            put_array_head(&of, numbers.len(), row);
            numbers.into_iter().for_each(|number| put_number(number, sql, &of, row));
        }),
        (Column::Numbers(numbers), Some(sql)) => {
            let width = sql.storage().width() as usize;
            let value = |number: i64| Value::read(sql, &number.to_le_bytes()[..width]);
            encode(&Value::Array(numbers.into_iter().map(value).collect()), &ty, format, row);
        }
        (Column::Numbers(numbers), None) => {
            encode(&Value::Array(numbers.into_iter().map(Value::Integer).collect()), &ty, format, row);
        }
        (Column::Values(values), _) => encode(&Value::Array(values), &ty, format, row),
    }
}

/// Appends an element of a binary array.
fn put_number(number: i64, sql: SqlType, of: &Type, row: &mut BytesMut) {
    match (sql, of) {
        (SqlType::Decimal(_, scale), _) => values::with_length(row, |row| put_numeric(number.into(), scale, row)),
        (SqlType::Boolean, _) => {
            row.put_i32(1);
            row.put_u8(u8::from(number != 0));
        }
        (SqlType::Timestamp, _) => {
            row.put_i32(8);
            row.put_i64(number.saturating_sub(EPOCH));
        }
        (_, &Type::INT2) => {
            row.put_i32(2);
            row.put_i16(number as i16);
        }
        (_, &Type::INT4) => {
            row.put_i32(4);
            row.put_i32(number as i32);
        }
        _ => {
            row.put_i32(8);
            row.put_i64(number);
        }
    }
}

/// A piece that was handed over.
type Ran = Receiver<Result<Batch, Error>>;

impl Shared {
    /// Understands a CALL of which many are to be made at once.
    pub(crate) fn plan_many(&self, statement: &Statement<'_>, user: &str) -> Result<Plan, Refusal> {
        let plan = self.plan(statement, user)?.into_many();
        let procedure = plan.prepared.as_ref().and_then(|prepared| prepared.procedure().ok());
        let procedure = procedure.ok_or_else(|| refuse("42601", "a CALL is expected behind CALL MANY"))?;
        if plan.prepared.as_ref().is_some_and(Prepared::has_request) {
            let message = "the id of a request is for one call, and CALL MANY makes many";
            return Err(refuse("0A000", message).hint("call one by one, with an id each"));
        }
        let mut all = procedure.parameters().iter().chain(procedure.results());
        if let Some(field) = all.find(|field| field.count.is_some() || field.sql_type.is_none()) {
            let message = format!("'{}' is an array or rows, and CALL MANY takes and gives a value a call", field.name);
            return Err(refuse("0A000", message).hint("call it one by one"));
        }
        if plan.parameters().is_empty() {
            let name = statement.name().unwrap_or("p");
            let hint = match procedure.parameters().len() {
                0 => format!("'{name}' takes nothing that could differ: CALL {name}() as often as it is wanted"),
                all => {
                    let places = (1..=all).map(|at| format!("${at}")).collect::<Vec<_>>().join(", ");
                    format!("CALL MANY {name}({places}) with an array for each, from a driver or by psql's \\bind")
                }
            };
            return Err(refuse("42601", "CALL MANY needs parameters, to know how many calls there are").hint(hint));
        }
        Ok(plan)
    }

    /// Makes a call for each element of the columns, and counts it. Answers one row.
    pub(crate) async fn call_many(
        &self,
        plan: &Plan,
        given: &[Column],
        format: &Format,
        cancel: &Cancel,
    ) -> Result<DataRow, Refusal> {
        let begun = Instant::now();
        let ran = self.try_many(plan, given, format, cancel).await;
        self.count(plan, begun, ran.as_ref().err());
        ran
    }

    async fn try_many(
        &self,
        plan: &Plan,
        given: &[Column],
        format: &Format,
        cancel: &Cancel,
    ) -> Result<DataRow, Refusal> {
        let refused = |error| Refusal::of(error, "");
        let fresh = self.fresh(plan)?;
        let plan = fresh.as_deref().unwrap_or(plan);
        let prepared = plan.prepared.as_ref().ok_or_else(|| refuse("XX000", "there is nothing to call"))?;
        let procedure = prepared.procedure().map_err(refused)?;
        let columns = prepared.columns_of(given).map_err(refused)?;
        procedure.check(&columns).map_err(refused)?;
        let calls = columns.first().map_or(0, Column::len);
        let bytes = procedure.block_bytes().saturating_mul(calls);
        if bytes > MAX_BYTES {
            let message = format!("{calls} calls take {bytes} bytes, and {MAX_BYTES} are possible at once");
            return Err(refuse("54000", message).hint("make several of it"));
        }
        let _room = cancel.unless(self.room.acquire_many((bytes >> 10) as u32 + 1)).await?.map_err(|_| closed())?;
        let _permit = cancel.unless(self.queue.acquire()).await?.map_err(|_| closed())?;
        let piece = PIECE_STEPS.checked_div(self.caller.steps(&procedure)).unwrap_or(u64::MAX);
        let piece = usize::try_from(piece).unwrap_or(PIECE).clamp(1, PIECE);
        let mut answers = Columns::default();
        let mut under_way = VecDeque::new();
        let mut from = 0;
        let mut outcome = Ok(());
        // After an error, those under way are waited for: they are made, unless they are refused too.
        loop {
            if from < calls && outcome.is_ok() {
                // A statement with nothing under way waits in the queue of the semaphore, so each gets a turn.
                let place = match under_way.is_empty() {
                    true => cancel.unless(self.pieces.acquire()).await.map(|place| place.ok()),
                    false => cancel.check().map(|()| self.pieces.try_acquire().ok()),
                };
                match place {
                    Ok(Some(place)) => {
                        let to = calls.min(from + piece);
                        match self.hand_over(&procedure, &columns, from..to) {
                            Ok(answer) => under_way.push_back((answer, place)),
                            Err(refusal) => outcome = Err(refusal),
                        }
                        from = to;
                        continue;
                    }
                    // The places are taken: one is free when the oldest piece is answered.
                    Ok(None) if !under_way.is_empty() => {}
                    Ok(None) => outcome = Err(closed()),
                    Err(refusal) => outcome = Err(refusal),
                }
            }
            let Some((answer, _place)) = under_way.pop_front() else { break };
            match answer.await.map_err(|_| unanswered()).and_then(|ran| ran.map_err(refused)) {
                Ok(batch) => tokio::task::block_in_place(|| procedure.outcomes(&batch, &mut answers)),
                Err(refusal) => outcome = outcome.and(Err(refusal)),
            }
        }
        self.count_aborts(plan.what(), &answers);
        outcome.map_err(|refusal: Refusal| match answers.calls {
            0 => refusal,
            made => {
                Refusal { message: format!("{}; the first {made} calls have been made", refusal.message), ..refusal }
            }
        })?;
        Ok(tokio::task::block_in_place(|| row(&procedure, answers, format)))
    }

    fn hand_over(&self, procedure: &Procedure, columns: &[Column], calls: Range<usize>) -> Result<Ran, Refusal> {
        let refused = |error| Refusal::of(error, "");
        let batch = tokio::task::block_in_place(|| procedure.batch(columns, calls, &[])).map_err(refused)?;
        self.watch.calls((0..batch.len()).map(|at| batch.block(at).bytes()));
        let (sender, answer) = oneshot::channel();
        self.caller.submit_then(batch, move |ran| drop(sender.send(ran))).map_err(refused)?;
        Ok(answer)
    }

    /// Counts the calls that were taken back.
    fn count_aborts(&self, what: &str, answers: &Columns) {
        let mut causes = HashMap::new();
        for (_, sqlstate, message) in &answers.aborts {
            *causes.entry((sqlstate, message)).or_insert(0) += 1;
        }
        for ((sqlstate, message), count) in causes {
            self.watch.failed((what.into(), sqlstate.clone(), message.clone()), count);
        }
    }
}

/// The row that answers: an array for each result, and one of SQLSTATEs.
fn row(procedure: &Procedure, answers: Columns, format: &Format) -> DataRow {
    let mut data = BytesMut::new();
    let mut states = vec![Value::Text(String::new()); answers.calls];
    for (at, sqlstate, _) in answers.aborts {
        states[at] = Value::Text(sqlstate);
    }
    let count = procedure.results().len();
    // Without calls there are no columns either.
    let results = answers.results.into_iter().chain(std::iter::repeat(Column::Values(Vec::new())));
    for (at, (field, column)) in procedure.results().iter().zip(results).enumerate() {
        let array = Field { count: Some(MAX_CALLS), ..field.clone() };
        put_column(column, &array, format_of(format, at), &mut data);
    }
    encode(&Value::Array(states), &Type::VARCHAR_ARRAY, format_of(format, count), &mut data);
    DataRow::new(data, count as i16 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(sql: SqlType) -> Field {
        Field { name: "$1".into(), sql_type: Some(sql), count: Some(MAX_CALLS) }
    }

    fn array(values: &[Value], ty: &Type) -> Vec<u8> {
        let mut row = BytesMut::new();
        encode(&Value::Array(values.to_vec()), ty, FieldFormat::Binary, &mut row);
        row[4..].to_vec()
    }

    #[test]
    fn numbers_of_arrays_are_what_their_values_are() {
        let number = |value: &Value, sql| value.stored(sql).unwrap();
        let integer = SqlType::Integer(SqlType::Timestamp.storage());
        let decimal = SqlType::Decimal(18, 2);
        let decimals = [0, 1, -1, 99, 100, -12_345_678, i64::MAX / 1000, 1_000_000, 100_000_000]
            .map(|number| Value::Decimal(number, 2));
        let integers = [0, -1, i64::MAX, i64::MIN, 10_000].map(Value::Integer);
        let times = [0, -1, EPOCH, 1_706_704_200_123_456].map(Value::Timestamp);
        let truths = [true, false].map(Value::Boolean);
        for (values, ty, sql) in [
            (&decimals[..], Type::NUMERIC_ARRAY, decimal),
            (&integers[..], Type::INT8_ARRAY, integer),
            (&times[..], Type::TIMESTAMP_ARRAY, SqlType::Timestamp),
            (&truths[..], Type::BOOL_ARRAY, SqlType::Boolean),
        ] {
            let bytes = array(values, &ty);
            let expected: Vec<i64> = values.iter().map(|value| number(value, sql)).collect();
            let column = decode(Some(&bytes), FieldFormat::Binary, None, &field(sql)).unwrap();
            assert_eq!(column, Column::Numbers(expected), "{sql}");
            // And back, as values are written one by one.
            let mut row = BytesMut::new();
            put_column(column, &field(sql), FieldFormat::Binary, &mut row);
            assert_eq!(row[4..], bytes, "{sql}");
            let mut texts = [BytesMut::new(), BytesMut::new()];
            put_column(Column::Values(values.to_vec()), &field(sql), FieldFormat::Text, &mut texts[0]);
            let column = decode(Some(&bytes), FieldFormat::Binary, None, &field(sql)).unwrap();
            put_column(column, &field(sql), FieldFormat::Text, &mut texts[1]);
            assert_eq!(texts[0], texts[1], "{sql}");
            // What is cut is refused, whole or in its middle.
            for length in 0..bytes.len() {
                let cut = decode(Some(&bytes[..length]), FieldFormat::Binary, None, &field(sql));
                let sqlstate = cut.map_err(|refusal| refusal.sqlstate.to_string());
                assert_eq!(sqlstate, Err("22P03".to_string()), "{sql} cut to {length}");
            }
        }
        // Integers for a DECIMAL count whole units; what has too many decimals is rounded, one by one.
        let two = array(&[Value::Integer(2)], &Type::INT8_ARRAY);
        let column = decode(Some(&two), FieldFormat::Binary, None, &field(decimal)).unwrap();
        assert_eq!(column, Column::Numbers(vec![200]));
        let fine = array(&[Value::Decimal(12_345, 3)], &Type::NUMERIC_ARRAY);
        let rounded = decode(Some(&fine), FieldFormat::Binary, None, &field(decimal)).unwrap();
        assert_eq!(rounded, Column::Values(vec![Value::Decimal(1_235, 2)]));
        assert_eq!(decode(Some(b"{7,8}"), FieldFormat::Text, None, &field(integer)).unwrap().len(), 2);
        let refusal = decode(None, FieldFormat::Binary, None, &field(integer)).unwrap_err();
        assert_eq!(&*refusal.sqlstate, "22004", "{refusal}");
    }
}
