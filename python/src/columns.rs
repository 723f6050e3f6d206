//! Columns of values: in from bytes of arrays or from lists, out into bytes or lists.
//!
//! `package/lockwork/_columns.py` knows numpy and Arrow. It hands over a list, or what it is and the bytes of 64-bit
//! numbers: `("i", bytes)` integers, `("b", bytes)` truth values, `("t", bytes)` microseconds since 1970,
//! `("f", bytes)` floats, `("d", bytes, scale)` decimals times ten to the scale.

use lockwork::Column;
use lockwork::sql::Value;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyTuple};

use crate::failure::Failure;
use crate::values::{Kind, Shape, of_decimal, of_value, rescaled, to_decimal, to_number, to_value};

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Integers, truth values and timestamps as they are stored.
    Numbers(Vec<i64>),
    /// Decimals times ten to the scale.
    Decimals(Vec<i64>, u8),
    Values(Vec<Value>),
}

impl Data {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) | Self::Decimals(numbers, _) => numbers.len(),
            Self::Values(values) => values.len(),
        }
    }

    /// Leaves the first values here and gives the rest.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let at = at.min(self.len());
        match self {
            Self::Numbers(numbers) => Self::Numbers(numbers.split_off(at)),
            Self::Decimals(numbers, scale) => Self::Decimals(numbers.split_off(at), *scale),
            Self::Values(values) => Self::Values(values.split_off(at)),
        }
    }

    /// Adds values of the same kind.
    pub(crate) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Numbers(all), Self::Numbers(more)) | (Self::Decimals(all, _), Self::Decimals(more, _)) => {
                all.extend(more);
            }
            (Self::Values(all), Self::Values(more)) => all.extend(more),
            // Columns of one result are of one kind.
            _ => {}
        }
    }

    /// For a database in this process, whose decimals have the scale of their type.
    pub(crate) fn into_column(self) -> Column {
        match self {
            Self::Numbers(numbers) | Self::Decimals(numbers, _) => Column::Numbers(numbers),
            Self::Values(values) => Column::Values(values),
        }
    }

    pub(crate) fn of_column(column: Column, shape: &Shape) -> Self {
        match (column, shape.kind) {
            (Column::Values(values), _) => Self::Values(values),
            (Column::Numbers(numbers), Kind::Decimal(Some((_, scale)))) => Self::Decimals(numbers, scale),
            (Column::Numbers(numbers), _) => Self::Numbers(numbers),
        }
    }
}

fn refused(what: &str, at: usize, shape: &Shape) -> PyErr {
    let message =
        format!("{what}, value {at} of the column, does not fit '{}', which is {}", shape.name, shape.kind.wanted());
    Failure::value("22003", message).into()
}

/// A column as `_columns.py` hands it over.
pub(crate) fn to_data(object: &Bound<'_, PyAny>, shape: &Shape) -> PyResult<Data> {
    if let Ok(list) = object.cast::<PyList>() {
        return of_list(list, shape);
    }
    let parts = object.cast::<PyTuple>()?;
    let tag: String = parts.get_item(0)?.extract()?;
    let bytes = parts.get_item(1)?;
    let words = bytes.cast::<PyBytes>()?.as_bytes().chunks_exact(8).map(|word| word.try_into().unwrap_or_default());
    let numbers = || words.clone().map(i64::from_le_bytes).collect::<Vec<_>>();
    let decimals = |scale: u8| {
        let numbers = numbers();
        let Kind::Decimal(Some((_, to))) = shape.kind else {
            let wrong = |number: &&i64| rescaled(**number, scale, shape).is_none();
            return match numbers.iter().find(wrong) {
                Some(number) => Err(refused(&Value::Decimal(*number, scale).to_string(), 0, shape)),
                None => Ok(Data::Decimals(numbers, scale)),
            };
        };
        let one = |(at, number): (usize, &i64)| {
            let fitting = rescaled(*number, scale, shape);
            let fitting = fitting.ok_or_else(|| refused(&Value::Decimal(*number, scale).to_string(), at, shape))?;
            Ok(fitting.0)
        };
        Ok(Data::Decimals(numbers.iter().enumerate().map(one).collect::<PyResult<_>>()?, to))
    };
    match (tag.as_str(), shape.kind) {
        ("i", Kind::Integer(lo, hi)) => {
            let numbers = numbers();
            match numbers.iter().position(|number| !(lo..=hi).contains(number)) {
                Some(at) => Err(refused(&numbers[at].to_string(), at, shape)),
                None => Ok(Data::Numbers(numbers)),
            }
        }
        ("b", Kind::Boolean) | ("t", Kind::Timestamp) => Ok(Data::Numbers(numbers())),
        ("i", Kind::Decimal(_)) => decimals(0),
        ("d", Kind::Decimal(_)) => decimals(parts.get_item(2)?.extract()?),
        ("f", Kind::Decimal(_)) => of_floats(&words.map(f64::from_le_bytes).collect::<Vec<_>>(), shape),
        _ => {
            let kind = match tag.as_str() {
                "i" => "integers",
                "b" => "truth values",
                "t" => "timestamps",
                "f" => "floats",
                _ => "decimals",
            };
            let wanted = shape.kind.wanted();
            Err(Failure::value("42804", format!("a column of {kind} does not fit '{}', which is {wanted}", shape.name))
                .into())
        }
    }
}

/// Each float is the decimal of which it is the nearest float, or refused.
fn of_floats(floats: &[f64], shape: &Shape) -> PyResult<Data> {
    let exact = |float: f64, scale: u8| {
        let power = 10_f64.powi(i32::from(scale));
        let number = (float * power).round();
        (number.abs() < 9_007_199_254_740_992.0 && number / power == float).then_some(number as i64)
    };
    let all = |scale: u8| floats.iter().map(|&float| exact(float, scale)).collect::<Option<Vec<_>>>();
    let fitting = match shape.kind {
        Kind::Decimal(Some((_, scale))) => all(scale).map(|numbers| (numbers, scale)),
        _ => (0..=15).find_map(|scale| Some((all(scale)?, scale))),
    };
    let Some((numbers, scale)) = fitting else {
        let scale = if let Kind::Decimal(Some((_, scale))) = shape.kind { scale } else { 15 };
        let at = floats.iter().position(|&float| exact(float, scale).is_none()).unwrap_or(0);
        return Err(refused(&floats.get(at).copied().unwrap_or_default().to_string(), at, shape));
    };
    match numbers.iter().position(|&number| rescaled(number, scale, shape).is_none()) {
        Some(at) => Err(refused(&floats[at].to_string(), at, shape)),
        None => Ok(Data::Decimals(numbers, scale)),
    }
}

fn of_list(list: &Bound<'_, PyList>, shape: &Shape) -> PyResult<Data> {
    match shape.kind {
        Kind::Decimal(Some((_, scale))) => {
            let one = |object: Bound<'_, PyAny>| to_decimal(&object, shape).map(|(number, _)| number);
            Ok(Data::Decimals(list.iter().map(one).collect::<PyResult<_>>()?, scale))
        }
        Kind::Decimal(None) | Kind::Text | Kind::Bytes => {
            list.iter().map(|object| to_value(&object, shape)).collect::<PyResult<_>>().map(Data::Values)
        }
        _ => list.iter().map(|object| to_number(&object, shape)).collect::<PyResult<_>>().map(Data::Numbers),
    }
}

fn bytes<'py>(py: Python<'py>, numbers: &[i64]) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, numbers.len() * 8, |room| {
        for (place, number) in room.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    })
}

/// A column for `_columns.py`, in the forms in which it hands them over.
pub(crate) fn of_data<'py>(py: Python<'py>, data: &Data, kind: Kind, scaled: bool) -> PyResult<Bound<'py, PyAny>> {
    let list = PyList::empty(py);
    match data {
        Data::Numbers(numbers) => {
            let tag = match kind {
                Kind::Boolean => "b",
                Kind::Timestamp => "t",
                _ => "i",
            };
            return Ok((tag, bytes(py, numbers)?).into_pyobject(py)?.into_any());
        }
        Data::Decimals(numbers, scale) if scaled => {
            return Ok(("d", bytes(py, numbers)?, *scale).into_pyobject(py)?.into_any());
        }
        Data::Decimals(numbers, scale) => {
            numbers.iter().try_for_each(|number| list.append(of_decimal(py, *number, *scale)?))?;
        }
        Data::Values(values) => values.iter().try_for_each(|value| list.append(of_value(py, value)?))?,
    }
    Ok(list.into_any())
}
