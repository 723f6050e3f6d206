//! Python's values and ours: Decimal, datetime, bytes, bool, int, str, and lists of them.

use lockwork::sql::{Field, SqlType, Value};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDelta, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::failure::Failure;

/// What kind of values a parameter or a result has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the smallest to the largest.
    Integer(i64, i64),
    Boolean,
    /// Digits and decimals, if they are known.
    Decimal(Option<(u8, u8)>),
    Timestamp,
    Text,
    Bytes,
}

/// A parameter or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) is_array: bool,
}

impl Shape {
    pub(crate) fn of(field: &Field) -> Self {
        let (kind, is_array) = match field.sql_type {
            Some(sql) => (Kind::of(sql), field.count.is_some()),
            // Whole rows are their bytes.
            None => (Kind::Bytes, true),
        };
        Self { name: field.name.clone(), kind, is_array }
    }

    /// Of a value that may take part in an expression, with all of its decimals.
    pub(crate) fn of_operand(field: &Field) -> Self {
        let shape = Self::of(field);
        match shape.kind {
            Kind::Decimal(_) => Self { kind: Kind::Decimal(None), ..shape },
            _ => shape,
        }
    }
}

impl Kind {
    fn of(sql: SqlType) -> Self {
        match sql {
            SqlType::Boolean => Self::Boolean,
            SqlType::Decimal(precision, scale) => Self::Decimal(Some((precision, scale))),
            SqlType::Timestamp => Self::Timestamp,
            SqlType::Text(_) => Self::Text,
            SqlType::Bytes(_) => Self::Bytes,
            integer => {
                let (lo, hi) = integer.range().unwrap_or((i64::MIN, i64::MAX));
                Self::Integer(lo, hi)
            }
        }
    }

    /// What it is called in Python.
    pub(crate) fn wanted(self) -> String {
        match self {
            Self::Integer(lo, hi) => format!("an int from {lo} to {hi}"),
            Self::Boolean => "a bool".into(),
            Self::Decimal(Some((precision, scale))) => {
                format!("a Decimal (or int) of {precision} digits, {scale} of them decimals")
            }
            Self::Decimal(None) => "a Decimal (or int) of at most 18 digits".into(),
            Self::Timestamp => "a datetime without a zone".into(),
            Self::Text => "a str".into(),
            Self::Bytes => "bytes".into(),
        }
    }
}

/// Classes and values of Python's own library.
struct Library {
    decimal: Py<PyAny>,
    datetime: Py<PyAny>,
    /// 1970.
    epoch: Py<PyAny>,
}

fn library(py: Python<'_>) -> PyResult<&Library> {
    static LIBRARY: PyOnceLock<Library> = PyOnceLock::new();
    LIBRARY.get_or_try_init(py, || {
        let datetime = py.import("datetime")?.getattr("datetime")?;
        Ok(Library {
            decimal: py.import("decimal")?.getattr("Decimal")?.unbind(),
            epoch: datetime.call1((1970, 1, 1))?.unbind(),
            datetime: datetime.unbind(),
        })
    })
}

/// A value that is not of its type.
pub(crate) fn misfit(object: &Bound<'_, PyAny>, shape: &Shape) -> PyErr {
    let shown = object.repr().map_or_else(|_| "a value".into(), |repr| repr.to_string());
    let shown = if shown.chars().count() > 60 { shown.chars().take(57).chain("...".chars()).collect() } else { shown };
    let wanted = shape.kind.wanted();
    Failure::value("42804", format!("{shown} does not fit '{}', which is {wanted}", shape.name)).into()
}

fn null(shape: &Shape) -> PyErr {
    let failure = Failure::value("22004", format!("'{}' is None, and there are no NULLs", shape.name));
    failure.hint("use a value of your own for 'none'").into()
}

/// A value of Python as one of ours.
pub(crate) fn to_value(object: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<Value> {
    if !shape.is_array {
        return to_one(object, shape);
    }
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Err(misfit(object, shape));
    }
    let elements = object.try_iter().map_err(|_| misfit(object, shape))?;
    elements.map(|element| to_one(&element?, shape)).collect::<PyResult<_>>().map(Value::Array)
}

fn to_one(object: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<Value> {
    if object.is_none() {
        return Err(null(shape));
    }
    match shape.kind {
        Kind::Text => Ok(Value::Text(object.extract().map_err(|_| misfit(object, shape))?)),
        Kind::Bytes => {
            if let Ok(bytes) = object.cast::<PyBytes>() {
                return Ok(Value::Bytes(bytes.as_bytes().to_vec()));
            }
            if let Ok(bytes) = object.cast::<PyByteArray>() {
                return Ok(Value::Bytes(bytes.to_vec()));
            }
            let is_view = object.get_type().name()? == "memoryview";
            let bytes = if is_view { object.call_method0("tobytes")? } else { return Err(misfit(object, shape)) };
            Ok(Value::Bytes(bytes.extract()?))
        }
        Kind::Decimal(None) => match long_decimal(object)? {
            Some(text) => Ok(Value::Numeric(text)),
            None => to_decimal(object, shape).map(|(number, scale)| Value::Decimal(number, scale)),
        },
        Kind::Decimal(_) => to_decimal(object, shape).map(|(number, scale)| Value::Decimal(number, scale)),
        Kind::Integer(..) => to_number(object, shape).map(Value::Integer),
        Kind::Boolean => to_number(object, shape).map(|number| Value::Boolean(number != 0)),
        Kind::Timestamp => to_number(object, shape).map(Value::Timestamp),
    }
}

/// A number, truth value or timestamp as it is stored.
pub(crate) fn to_number(object: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<i64> {
    let wrong = || if object.is_none() { null(shape) } else { misfit(object, shape) };
    match shape.kind {
        Kind::Boolean => object.extract::<bool>().map(i64::from).map_err(|_| wrong()),
        Kind::Timestamp => to_micros(object).map_err(|_| wrong())?.ok_or_else(wrong),
        Kind::Integer(lo, hi) => {
            if object.is_instance_of::<PyBool>() {
                return Err(wrong());
            }
            let number = object.extract::<i64>().ok().filter(|number| (lo..=hi).contains(number));
            number.ok_or_else(|| if object.is_none() { null(shape) } else { out_of_range(object, shape) })
        }
        Kind::Decimal(_) | Kind::Text | Kind::Bytes => Err(wrong()),
    }
}

/// An integer that is too large is another error than something that is no integer.
fn out_of_range(object: &Bound<'_, PyAny>, shape: &Shape) -> PyErr {
    match object.is_instance_of::<PyInt>() {
        true => {
            let wanted = shape.kind.wanted();
            let shown = object.str().map_or_else(|_| "the number".into(), |text| text.to_string());
            let shown = if shown.len() > 40 { "the number".to_string() } else { shown };
            Failure::value("22003", format!("{shown} does not fit '{}', which is {wanted}", shape.name)).into()
        }
        false => misfit(object, shape),
    }
}

/// Microseconds since 1970 of a datetime without a zone.
fn to_micros(object: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let py = object.py();
    let library = library(py)?;
    if !object.is_instance(library.datetime.bind(py))? || !object.getattr(intern!(py, "tzinfo"))?.is_none() {
        return Ok(None);
    }
    let since = object.sub(library.epoch.bind(py))?;
    let part = |name| since.getattr(name)?.extract::<i64>();
    let seconds = part("days")? * 86_400 + part("seconds")?;
    Ok(Some(seconds * 1_000_000 + part("microseconds")?))
}

/// A Decimal, int or float as a number and its decimals; of the type's scale if that is known.
pub(crate) fn to_decimal(object: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<(i64, u8)> {
    let py = object.py();
    let wrong = || if object.is_none() { null(shape) } else { misfit(object, shape) };
    let (number, scale) = if object.is_instance_of::<PyBool>() {
        return Err(wrong());
    } else if object.is_instance_of::<PyFloat>() {
        // The shortest decimal that is this float and no other.
        let text: String = object.call_method0(intern!(py, "__repr__"))?.extract()?;
        let decimal =
            library(py)?.decimal.bind(py).call1((text.trim_start_matches("np.float64(").trim_end_matches(')'),))?;
        digits(&decimal)?.and_then(|text| parsed(&text, u8::MAX)).ok_or_else(wrong)?
    } else if object.is_instance(library(py)?.decimal.bind(py))? {
        // What rounds a number is the digit behind its last one.
        let most = if let Kind::Decimal(Some((_, scale))) = shape.kind { scale + 1 } else { u8::MAX };
        digits(object)?.and_then(|text| parsed(&text, most)).ok_or_else(wrong)?
    } else {
        (object.extract::<i64>().map_err(|_| wrong())?, 0)
    };
    // Of a float no digit is certain, so none is rounded away.
    let is_inexact = object.is_instance_of::<PyFloat>()
        && matches!(shape.kind, Kind::Decimal(Some((_, to))) if scale > to && needed_decimals(number, scale) > to);
    let fitting = if is_inexact { None } else { rescaled(number, scale, shape) };
    fitting.ok_or_else(|| {
        let wanted = shape.kind.wanted();
        let shown = object.str().map_or_else(|_| "the number".into(), |text| text.to_string());
        Failure::value("22003", format!("{shown} does not fit '{}', which is {wanted}", shape.name)).into()
    })
}

/// Returns the digits of a Decimal, with a point if it has decimals; `None` for NaN, infinities, and numbers of more
/// than 1,000 characters.
fn digits(decimal: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let text: String = decimal.call_method1(intern!(decimal.py(), "__format__"), ("f",))?.extract()?;
    let is_number = text.len() <= 1_000 && text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    Ok(is_number.then_some(text))
}

/// The digits of a Decimal that has more than a [`Value::Decimal`] holds, behind the point: it may be rounded to one.
fn long_decimal(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if !object.is_instance(library(object.py())?.decimal.bind(object.py()))? {
        return Ok(None);
    }
    Ok(digits(object)?.filter(|text| parsed(text, u8::MAX).is_none() && parsed(text, 0).is_some()))
}

/// A number times ten to its scale, which is at most `most`: further digits are cut off.
fn parsed(text: &str, most: u8) -> Option<(i64, u8)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    // Zeros at the end are no decimals that are needed.
    let needed = if part.len() > 18 { part.trim_end_matches('0') } else { part };
    let needed = &needed[..needed.len().min(most.into())];
    let number: i64 = format!("{whole}{needed}").parse().ok()?;
    let fits = needed.len() <= 18 && number.checked_abs()? < 10_i64.pow(18);
    fits.then_some((number, needed.len() as u8))
}

/// The decimals that a number needs: zeros at the end are none.
fn needed_decimals(mut number: i64, mut scale: u8) -> u8 {
    while scale > 0 && number % 10 == 0 {
        (number, scale) = (number / 10, scale - 1);
    }
    scale
}

/// Rounds a number half away from zero to the decimals of its type, as the server does with what is assigned. Returns
/// `None` if the result has too many digits.
pub(crate) fn rescaled(number: i64, scale: u8, shape: &Shape) -> Option<(i64, u8)> {
    let most = 10_i64.pow(18);
    let Kind::Decimal(Some((precision, to))) = shape.kind else {
        return (number.checked_abs()? < most && scale <= 18).then_some((number, scale));
    };
    let number = if scale <= to {
        number.checked_mul(10_i64.checked_pow(u32::from(to - scale))?)?
    } else {
        let power = 10_i128.checked_pow(u32::from(scale - to))?;
        let half = power / 2 * i128::from(number.signum());
        i64::try_from((i128::from(number) + half) / power).ok()?
    };
    (number.checked_abs()? < 10_i64.checked_pow(u32::from(precision))?).then_some((number, to))
}

/// Texts of decimals.
fn decimal_text(number: i64, scale: u8) -> String {
    Value::Decimal(number, scale).to_string()
}

/// A decimal for Python.
pub(crate) fn of_decimal<'py>(py: Python<'py>, number: i64, scale: u8) -> PyResult<Bound<'py, PyAny>> {
    library(py)?.decimal.bind(py).call1((decimal_text(number, scale),))
}

/// A timestamp for Python.
pub(crate) fn of_micros(py: Python<'_>, micros: i64) -> PyResult<Bound<'_, PyAny>> {
    let day = 86_400_000_000;
    let outside = || {
        let text = Value::Timestamp(micros);
        Failure::value("22008", format!("the timestamp {text} is outside of what a datetime holds"))
    };
    let days = i32::try_from(micros.div_euclid(day)).map_err(|_| outside())?;
    let rest = micros.rem_euclid(day);
    let since = PyDelta::new(py, days, (rest / 1_000_000) as i32, (rest % 1_000_000) as i32, false);
    let moment = since.and_then(|since| library(py)?.epoch.bind(py).add(since));
    moment.map_err(|_| outside().into())
}

/// One of our values for Python.
pub(crate) fn of_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Integer(number) => PyInt::new(py, *number).into_any(),
        Value::Boolean(truth) => PyBool::new(py, *truth).to_owned().into_any(),
        Value::Decimal(number, scale) => of_decimal(py, *number, *scale)?,
        Value::Timestamp(micros) => of_micros(py, *micros)?,
        Value::Text(text) => PyString::new(py, text).into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(of_value(py, value)?)?;
            }
            list.into_any()
        }
        other => return Err(Failure::new("Error", "XX000", format!("{other} is of an unknown kind")).into()),
    })
}

/// What stands in a row: a value of ours, or what only a server has.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Null,
    Value(Value),
    /// In double precision.
    Real(f64),
    /// Microseconds since 1970 at which a day begins.
    Date(i64),
}

/// A row for Python; what is nothing is None.
pub(crate) fn of_row<'py>(py: Python<'py>, row: &[Cell]) -> PyResult<Bound<'py, PyTuple>> {
    let one = |cell: &Cell| match cell {
        Cell::Null => Ok(py.None().into_bound(py)),
        Cell::Value(value) => of_value(py, value),
        Cell::Real(number) => Ok(PyFloat::new(py, *number).into_any()),
        Cell::Date(micros) => of_micros(py, *micros)?.call_method0(intern!(py, "date")),
    };
    PyTuple::new(py, row.iter().map(one).collect::<PyResult<Vec<_>>>()?)
}
