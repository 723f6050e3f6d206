//! Statements as a session keeps them, and their answers as rows.

use std::sync::Arc;

use bytes::BytesMut;
use lockwork::sql::{Control, Field, SqlType, Value};
use lockwork::{Column, SqlAnswer};
use pgwire::api::Type;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::results::FieldFormat;
use pgwire::messages::data::{DataRow, FieldDescription, RowDescription};

use crate::batch_call;
use crate::catalog::{self, Asked};
use crate::copy::Copy;
use crate::error::Refusal;
use crate::grants::Change;
use crate::limits::Taken;
use crate::query::{MAX_ELEMENTS, Query};
use crate::session_settings::Known;
use crate::shared::Plan;
use crate::values::{Decimals, decode, encode, format_of, size, type_of};
use crate::verb::Verb;

/// A statement of a session.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// A statement that the session answers without the database.
    Known(Arc<Known>),
    /// One of the system catalog.
    Catalog(Arc<Asked>),
    /// One that is answered from a copy of its tables.
    Query(Arc<Query>),
    Plan(Arc<Plan>),
    /// BEGIN, COMMIT and what belongs to them.
    Control(Control),
    Copy(Arc<Copy>),
    Grant(Arc<Change>),
}

/// Values for `$1` and so on.
pub(crate) enum Values {
    /// Of a CALL MANY.
    Many(Vec<Column>),
    Plan(Vec<Value>),
    Catalog(Vec<catalog::Given>),
}

/// Rows of an answer and what it is called.
pub(crate) struct Answered {
    pub(crate) rows: Vec<DataRow>,
    pub(crate) tag: String,
    /// The memory of the rows, until the client has taken them.
    pub(crate) held: Option<Taken>,
}

impl Stored {
    pub(crate) fn columns(&self) -> Vec<(String, Type, i32)> {
        match self {
            Self::Control(_) | Self::Copy(_) | Self::Grant(_) => Vec::new(),
            Self::Known(known) => known.row.iter().map(|(name, ty, _)| (name.clone(), ty.clone(), -1)).collect(),
            Self::Catalog(asked) => asked.columns.iter().map(|(name, ty)| (name.clone(), ty.clone(), -1)).collect(),
            Self::Query(query) => query.columns().collect(),
            Self::Plan(plan) => plan.columns().iter().map(described).collect(),
        }
    }

    /// The types of `$1` and so on.
    pub(crate) fn parameters(&self) -> Vec<Type> {
        match self {
            Self::Known(_) | Self::Control(_) | Self::Copy(_) | Self::Grant(_) => Vec::new(),
            Self::Catalog(asked) => asked.parameters.clone(),
            Self::Query(query) => query.parameters.iter().map(|field| type_of(field).0).collect(),
            Self::Plan(plan) => plan.parameter_types(),
        }
    }

    /// The values of a statement without parameters.
    pub(crate) fn no_values(&self) -> Values {
        match self {
            Self::Catalog(_) => Values::Catalog(Vec::new()),
            _ => Values::Plan(Vec::new()),
        }
    }

    /// Whether it answers rows and changes nothing.
    pub(crate) fn is_query(&self) -> bool {
        match self {
            Self::Known(_) | Self::Catalog(_) | Self::Query(_) => !self.columns().is_empty(),
            Self::Plan(plan) => plan.verb == Verb::Select,
            Self::Control(_) | Self::Copy(_) | Self::Grant(_) => false,
        }
    }

    /// Parameters as a client sent them.
    pub(crate) fn values(&self, portal: &Portal<Stored>) -> Result<Values, Refusal> {
        let declared = |at: usize| portal.statement.parameter_types.get(at).and_then(Option::as_ref);
        let given = portal
            .parameters
            .iter()
            .enumerate()
            .map(|(at, bytes)| (at, bytes.as_deref(), format_of(&portal.parameter_format, at)));
        match self {
            Self::Known(_) | Self::Control(_) | Self::Copy(_) | Self::Grant(_) => Ok(Values::Plan(Vec::new())),
            Self::Catalog(asked) => {
                let one = |((at, _, format), ty): ((usize, Option<&[u8]>, FieldFormat), &Type)| {
                    let ty = declared(at).filter(|ty| **ty != Type::UNKNOWN).unwrap_or(ty).clone();
                    // Read where the memory of the query is counted.
                    catalog::Given { bytes: portal.parameters[at].clone(), format, ty }
                };
                Ok(Values::Catalog(given.zip(&asked.parameters).map(one).collect()))
            }
            Self::Plan(plan) if plan.is_many() => {
                let fields = plan.parameters();
                let one = |((at, bytes, format), field): ((usize, Option<&[u8]>, FieldFormat), &Field)| {
                    batch_call::decode(bytes, format, declared(at), field)
                };
                given.zip(&fields).map(one).collect::<Result<_, _>>().map(Values::Many)
            }
            Self::Query(_) | Self::Plan(_) => {
                let is_call = matches!(self, Self::Plan(plan) if plan.verb == Verb::Call);
                let fields = match self {
                    Self::Query(query) => query.parameters.clone(),
                    Self::Plan(plan) => plan.parameters(),
                    _ => Vec::new(),
                };
                let decimals = if is_call { Decimals::Rounded } else { Decimals::Kept };
                // As the client was told.
                let told = portal.statement.statement.parameters();
                let fields: Vec<Field> = match self {
                    // What a value is compared with, or goes into, says whether it fits.
                    Self::Plan(plan) if !is_call => {
                        // Of a SELECT by longer lists of keys a query is made.
                        let count = |field: &Field| match plan.verb {
                            Verb::Select => field.count.map(|_| MAX_ELEMENTS),
                            _ => field.count,
                        };
                        fields.into_iter().map(|field| Field { count: count(&field), ..widest(field) }).collect()
                    }
                    _ => fields,
                };
                let one = |((at, bytes, format), field): ((usize, Option<&[u8]>, FieldFormat), &Field)| match bytes {
                    None if !is_call => Ok(Value::Null),
                    bytes => decode(bytes, format, declared(at).or(told.get(at)), field, decimals),
                };
                given.zip(&fields).map(one).collect::<Result<_, _>>().map(Values::Plan)
            }
        }
    }
}

impl Plan {
    /// What clients get for an answer.
    pub(crate) fn answered(&self, answer: &SqlAnswer, format: &Format) -> Answered {
        let types: Vec<Type> = self.columns().iter().map(|field| type_of(field).0).collect();
        let (rows, count) = match answer {
            SqlAnswer::Written(count) => (Vec::new(), *count),
            SqlAnswer::Rows(_, rows) => {
                let count = rows.len() as i64;
                (rows.iter().map(|row| data_row(row.iter().zip(&types), format)).collect(), count)
            }
            SqlAnswer::Called(results) if results.is_empty() => (Vec::new(), 0),
            SqlAnswer::Called(results) => {
                (vec![data_row(results.iter().map(|(_, value)| value).zip(&types), format)], 1)
            }
            SqlAnswer::Text(text) => {
                let line = |line: &str| Value::Text(line.into());
                let rows = text.lines().map(|text| data_row([(&line(text), &Type::TEXT)].into_iter(), format));
                (rows.collect(), 0)
            }
            _ => (Vec::new(), 0),
        };
        Answered { rows, tag: self.verb.tag(count), held: None }
    }
}

/// A field for any integer, text or bytes, if it is one for some of them.
fn widest(field: Field) -> Field {
    let sql_type = field.sql_type.map(|sql| match sql {
        SqlType::Integer(_) => SqlType::BIGINT,
        SqlType::Text(_) => SqlType::Text(u32::MAX),
        SqlType::Bytes(_) => SqlType::Bytes(u32::MAX),
        sql => sql,
    });
    Field { sql_type, ..field }
}

fn described(field: &Field) -> (String, Type, i32) {
    let (ty, modifier) = type_of(field);
    (field.name.clone(), ty, modifier)
}

/// The description of columns; nothing for a statement that answers none.
pub(crate) fn row_description(columns: &[(String, Type, i32)], format: &Format) -> Option<RowDescription> {
    let one = |(at, (name, ty, modifier)): (usize, &(String, Type, i32))| {
        FieldDescription::new(name.clone(), 0, 0, ty.oid(), size(ty), *modifier, format_of(format, at).value())
    };
    (!columns.is_empty()).then(|| RowDescription::new(columns.iter().enumerate().map(one).collect()))
}

pub(crate) fn data_row<'a>(values: impl Iterator<Item = (&'a Value, &'a Type)>, format: &Format) -> DataRow {
    let (mut data, mut count) = (BytesMut::new(), 0);
    for (value, ty) in values {
        encode(value, ty, format_of(format, count), &mut data);
        count += 1;
    }
    DataRow::new(data, count as i16)
}
