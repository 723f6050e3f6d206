//! Statements outside of procedures: their constants become parameters, and what they answer becomes results.

use std::time::SystemTime;

use lockwork_procedure::request::{HOW_TO_MAKE, RequestId};
use lockwork_procedure::schema::TableSchema;

use crate::bind::{Binder, Lifted};
use crate::compile::{Compiled, Field};
use crate::error::{Result, SqlError, Subject, state, unsupported};
use crate::syntax::{self, Comparison, Expr as Written, ExprKind as W, Name, Place, StmtKind as S};
use crate::tree::Routine;
use crate::types::SqlType;
use crate::value::Value;

/// A routine, the arguments of its call, the names of the columns that it answers, and the row that it inserts.
pub(crate) type Bound = (Routine, Vec<(Lifted, Purpose)>, Vec<String>, Option<Inserted>);

/// What a value is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Any,
    /// It goes into the column of a table.
    Column(String, String),
    /// It takes part in an expression or a comparison, with all of its digits; the expression may go into a column.
    Operand(Option<(String, String)>),
    /// Rows are sought whose column compares with it like this.
    Sought(Comparison),
    /// A row has to satisfy a condition with it, which does not hold for NULL: [`Lifted::IsKnown`] says whether it is.
    /// There a number takes part as an operand, or is rounded because CAST assigns it to a type.
    Condition {
        /// Whether it takes part as [`Self::Operand`] does.
        is_operand: bool,
    },
}

impl Purpose {
    /// What it is for in an expression that is for this.
    pub(crate) fn operand(self) -> Self {
        Self::Operand(if let Self::Column(table, column) = self { Some((table, column)) } else { None })
    }
}

/// The table that a single INSERT writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// What it is called.
    table: String,
    /// The columns of its key, and which argument the value of each is; none of several rows.
    key: Option<Vec<(String, usize)>>,
}

impl Inserted {
    pub(crate) fn new(schema: &TableSchema, arguments: impl Iterator<Item = Option<usize>>) -> Self {
        let columns = schema.columns().iter().map(|column| column.name.clone());
        let key: Vec<_> = columns.zip(arguments).filter_map(|(name, at)| Some((name, at?))).collect();
        let is_whole = key.len() == schema.key().len();
        Self { table: schema.name().into(), key: is_whole.then_some(key) }
    }

    /// What the error of a key that exists is about, when this block has run.
    #[must_use]
    pub fn duplicate(&self, compiled: &Compiled, block: &[u8]) -> Subject {
        let value = |(name, at): &(String, usize)| Some((name.clone(), compiled.argument(*at, block)?));
        let key = self.key.as_ref().and_then(|key| key.iter().map(value).collect::<Option<Vec<_>>>());
        Subject::duplicate(&self.table, key.as_deref().unwrap_or_default())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Argument {
    Value(Value),
    /// `$n`, counted from 0, and the field that it goes into.
    Placeholder(usize, Field),
    /// The time when it runs.
    Now,
    Null,
    /// An array of these.
    List(Vec<Argument>),
    /// How many elements the argument before has.
    Length,
    /// Whether `$n`, counted from 0, is no NULL.
    IsKnown(usize),
    /// `$n`, counted from 0, as it compares with values of the field's type.
    Compared(usize, Field),
    /// How many bytes `$n`, counted from 0, has.
    LengthOf(usize),
}

impl Argument {
    fn of(lifted: Lifted, field: &Field) -> Self {
        match lifted {
            Lifted::Constant(constant) => Self::Value(Value::of_constant(constant, field.sql_type)),
            Lifted::Placeholder(number) => Self::Placeholder(usize::from(number) - 1, field.clone()),
            Lifted::Now => Self::Now,
            Lifted::Null => Self::Null,
            Lifted::List(elements) => {
                let field = Field { count: None, ..field.clone() };
                Self::List(elements.into_iter().map(|element| Self::of(element, &field)).collect())
            }
            Lifted::Length => Self::Length,
            Lifted::IsKnown(number) => Self::IsKnown(usize::from(number) - 1),
            Lifted::Compared(number, sql) => {
                Self::Compared(usize::from(number) - 1, Field { sql_type: Some(sql), ..field.clone() })
            }
            Lifted::LengthOf(number) => Self::LengthOf(usize::from(number) - 1),
        }
    }

    /// The parameters `$n`, counted from 0, that it takes, and the fields that they go into.
    fn placeholders(&self) -> Vec<(usize, &Field)> {
        match self {
            Self::Placeholder(number, field) | Self::Compared(number, field) => vec![(*number, field)],
            Self::List(elements) => elements.iter().flat_map(Self::placeholders).collect(),
            Self::Value(_) | Self::Now | Self::Null | Self::Length | Self::IsKnown(_) | Self::LengthOf(_) => Vec::new(),
        }
    }

    /// Its value when `$1` and so on have the values `given`, and the time is `now`. That of [`Self::Length`] is not
    /// known yet.
    fn value(&self, given: &[Value], now: &Value) -> Value {
        match self {
            Self::Value(constant) => constant.clone(),
            Self::Placeholder(number, _) | Self::Compared(number, _) => given[*number].clone(),
            Self::Now => now.clone(),
            Self::Null | Self::Length => Value::Null,
            Self::List(elements) => Value::Array(elements.iter().map(|element| element.value(given, now)).collect()),
            Self::IsKnown(number) => Value::Boolean(given[*number] != Value::Null),
            Self::LengthOf(number) => Value::Integer(given[*number].bytes() as i64),
        }
    }
}

/// The time now, as a value.
fn now() -> Value {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Value::Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Whether a function without arguments asks for the time.
pub(crate) fn is_clock(function: &str) -> bool {
    let names = ["current_timestamp", "localtimestamp", "now", "statement_timestamp", "clock_timestamp"];
    names.contains(&function)
}

/// The arguments of a statement, some of which may be values that come when it runs: `$1` and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    list: Vec<Argument>,
    /// What each is for, and its type.
    purposes: Vec<(Purpose, Option<SqlType>)>,
    /// The id of the request, of a CALL that has one.
    request: Option<Argument>,
    parameters: Vec<Field>,
}

/// The values of a column's type among these that rows can have, in ascending order and once each.
fn sought_of(elements: &[Value], sql: SqlType) -> Vec<Value> {
    let mut found: Vec<Value> = elements.iter().filter_map(|element| element.sought(Comparison::Eq, sql)).collect();
    found.sort_by(Value::order);
    found.dedup_by(|a, b| a.order(b).is_eq());
    found
}

/// The request id that a value is: a text, or the bytes of a UUID.
fn id_of(value: &Value, place: Place) -> Result<RequestId> {
    let id = match value {
        Value::Text(text) => text.parse().ok(),
        Value::Bytes(bytes) => bytes.as_slice().try_into().ok().and_then(RequestId::from_bytes),
        _ => None,
    };
    id.filter(|id| id.user().is_none()).ok_or_else(|| no_id(value, place))
}

fn no_id(what: impl std::fmt::Display, place: Place) -> SqlError {
    let shown: String = what.to_string().chars().take(64).collect();
    let message = format!("{shown} is no request id, which is a UUID of version 7 in quotes");
    SqlError::new(state::INVALID_VALUE, place, message).hint(HOW_TO_MAKE)
}

impl Arguments {
    fn new(list: Vec<Argument>, request: Option<Argument>, place: Place) -> Result<Self> {
        let mut parameters: Vec<Option<Field>> = Vec::new();
        for (number, field) in list.iter().chain(&request).flat_map(Argument::placeholders) {
            if parameters.len() <= number {
                parameters.resize(number + 1, None);
            }
            // The first occurrence says the type; the value is checked against those of the others.
            parameters[number].get_or_insert_with(|| Field { name: format!("${}", number + 1), ..field.clone() });
        }
        if let Some(unused) = parameters.iter().position(Option::is_none) {
            let message = format!("nothing says the type of ${}, which is not used", unused + 1);
            return Err(SqlError::new("42P18", place, message).hint("number parameters from $1 on without a gap"));
        }
        Ok(Self { list, purposes: Vec::new(), request, parameters: parameters.into_iter().flatten().collect() })
    }

    pub(crate) fn of_lifted(lifted: Vec<(Lifted, Purpose)>, compiled: &Compiled, place: Place) -> Result<Self> {
        let (mut list, mut purposes) = (Vec::new(), Vec::new());
        for ((lifted, purpose), field) in lifted.into_iter().zip(&compiled.parameters) {
            list.push(Argument::of(lifted, field));
            purposes.push((purpose, field.sql_type));
        }
        Ok(Self { purposes, ..Self::new(list, None, place)? })
    }

    /// What `$1` and so on are, in this order.
    #[must_use]
    pub fn parameters(&self) -> &[Field] {
        &self.parameters
    }

    /// The arguments of the procedure, when `$1` and so on have these values, and the time is now. `None` if no row can
    /// be what the statement looks for: its procedure need not run, and has no way to say it.
    ///
    /// # Errors
    /// Another number of them, and values that their columns cannot have.
    pub fn values(&self, given: &[Value]) -> Result<Option<Vec<Value>>> {
        if given.len() != self.parameters.len() {
            let message =
                format!("the statement has {} parameters, and {} are given", self.parameters.len(), given.len());
            return Err(SqlError::new("08P01", Place::START, message));
        }
        self.check_room(given)?;
        let now = now();
        let mut values: Vec<_> = self.list.iter().map(|argument| argument.value(given, &now)).collect();
        let mut length = 0;
        for ((value, argument), (purpose, sql)) in values.iter_mut().zip(&self.list).zip(&self.purposes) {
            let named = |error: SqlError| match argument {
                Argument::Placeholder(number, _) | Argument::Compared(number, _) => {
                    SqlError { message: format!("parameter ${}: {}", number + 1, error.message), ..error }
                }
                _ => error,
            };
            let is_compared = matches!(argument, Argument::Compared(..));
            let taken = |value: &Value, sql| match is_compared {
                true => value.compared(sql),
                false => value.operand(sql).map(|()| value.clone()),
            };
            match (purpose, sql) {
                _ if *argument == Argument::Length => *value = Value::Integer(length),
                (Purpose::Sought(_), Some(sql)) if matches!(value, Value::Array(_)) => {
                    let Value::Array(elements) = value else { continue };
                    *elements = sought_of(elements, *sql);
                    length = elements.len() as i64;
                    if elements.is_empty() {
                        return Ok(None);
                    }
                }
                (Purpose::Condition { .. }, Some(sql)) if *value == Value::Null => *value = Value::zero(*sql),
                (Purpose::Condition { is_operand: true }, Some(sql)) => *value = taken(value, *sql).map_err(named)?,
                (Purpose::Condition { is_operand: false }, Some(sql)) => {
                    *value = value.assigned(*sql).map_err(named)?
                }
                (Purpose::Sought(op), Some(sql)) => match value.sought(*op, *sql) {
                    Some(sought) => *value = sought,
                    None => return Ok(None),
                },
                (Purpose::Column(table, column) | Purpose::Operand(Some((table, column))), _)
                    if *value == Value::Null =>
                {
                    return Err(SqlError::null(table, column, Place::START));
                }
                (Purpose::Column(table, column), Some(sql)) => {
                    *value = value.assigned(*sql).map_err(|error| named(error.of_column(table, column)))?;
                }
                (Purpose::Operand(column), Some(sql)) => {
                    *value = taken(value, *sql).map_err(|error| match column {
                        Some((table, column)) => named(error.of_column(table, column)),
                        None => named(error),
                    })?;
                }
                (Purpose::Any, Some(sql)) if matches!(argument, Argument::Placeholder(..)) => {
                    *value = value.assigned(*sql).map_err(named)?;
                }
                _ => {}
            }
        }
        Ok(Some(values))
    }

    /// How many decimals `$1` and so on need to have in expressions for these values, if one has more than the
    /// statement was compiled for. There are few answers for a statement: each is a procedure of its own.
    #[must_use]
    pub fn scales(&self, given: &[Value]) -> Option<Vec<u8>> {
        let mut scales = vec![0; given.len()];
        for (argument, (purpose, sql)) in self.list.iter().zip(&self.purposes) {
            let (Argument::Placeholder(number, _) | Argument::Compared(number, _)) = argument else { continue };
            if !matches!(purpose, Purpose::Operand(_) | Purpose::Condition { is_operand: true }) {
                continue;
            }
            let needed = given.get(*number).map_or(0, Value::decimals);
            let has = if let Some(SqlType::Decimal(_, scale)) = sql { *scale } else { 0 };
            if needed > has && matches!(sql, Some(SqlType::Integer(_) | SqlType::Decimal(..))) {
                scales[*number] = needed;
            }
        }
        let common = scales.iter().copied().max().filter(|needed| *needed > 0)?;
        scales.iter_mut().filter(|scale| **scale > 0).for_each(|scale| *scale = common);
        Some(scales)
    }

    /// Whether it is a CALL with the id of a request.
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.request.is_some()
    }

    /// The id of the request when `$1` and so on have these values, as many as there are parameters.
    ///
    /// # Errors
    /// The value is none.
    pub fn request(&self, given: &[Value]) -> Result<Option<RequestId>> {
        let value = match &self.request {
            Some(Argument::Value(value)) => value,
            Some(Argument::Placeholder(number, _)) => &given[*number],
            Some(_) | None => return Ok(None),
        };
        id_of(value, Place::START).map(Some)
    }

    /// The parameter, counted from 0, that is the id of the request and nothing else: its values are UUIDs or texts.
    #[must_use]
    pub fn request_parameter(&self) -> Option<usize> {
        let Some(Argument::Placeholder(request, _)) = &self.request else { return None };
        let is_request =
            |argument: &Argument| matches!(argument, Argument::Placeholder(number, _) if number == request);
        (!self.list.iter().any(is_request)).then_some(*request)
    }

    /// Something for each argument of a CALL: of a value, of the time now, or of `$n`, which is counted from 0.
    pub fn each<T>(&self, value: impl Fn(&Value) -> T, placeholder: impl Fn(usize) -> T) -> Vec<T> {
        let now = now();
        let one = |argument: &Argument| match argument {
            Argument::Placeholder(number, _) => placeholder(*number),
            other => value(&other.value(&[], &now)),
        };
        self.list.iter().map(one).collect()
    }

    /// Whether a parameter is an array that lists keys (`id = ANY($1)`), so that a procedure for more of them may be
    /// needed.
    #[must_use]
    pub fn takes_lists(&self) -> bool {
        self.list.iter().zip(&self.purposes).any(|(argument, (purpose, _))| {
            matches!((argument, purpose), (Argument::Placeholder(_, Field { count: Some(_), .. }), Purpose::Sought(_)))
        })
    }

    fn check_room(&self, given: &[Value]) -> Result<()> {
        for (number, field) in self.list.iter().flat_map(Argument::placeholders) {
            let (Value::Array(elements), Some(most)) = (&given[number], field.count) else { continue };
            if elements.len() > most as usize {
                let message =
                    format!("parameter ${} has {} elements, and there is room for {most}", number + 1, elements.len());
                return Err(SqlError::new(state::OUT_OF_RANGE, Place::START, message).hint("pass fewer at a time"));
            }
        }
        Ok(())
    }

    /// Whether the arrays among these values for `$1` and so on have no more elements than there is room for.
    #[must_use]
    pub fn has_room(&self, given: &[Value]) -> bool {
        self.list.iter().flat_map(Argument::placeholders).all(|(number, field)| {
            match (given.get(number), field.count) {
                (Some(Value::Array(elements)), Some(most)) => elements.len() <= most as usize,
                _ => true,
            }
        })
    }
}

/// The arguments of a CALL.
pub(crate) fn arguments(
    name: &Name,
    written: &[Written],
    request: Option<&Written>,
    compiled: &Compiled,
) -> Result<Arguments> {
    if written.len() != compiled.parameters.len() {
        let (given, needed) = (written.len(), compiled.parameters.len());
        let names: Vec<&str> = compiled.parameters.iter().map(|field| field.name.as_str()).collect();
        let message = format!("procedure '{}' takes {needed} arguments, and {given} are given", name.text);
        let error = SqlError::new(state::UNDEFINED_PROCEDURE, name.place, message);
        return Err(error.hint(format!("its parameters are: {}", names.join(", "))));
    }
    let one = |written: &Written, sql: SqlType| {
        let catalogue = crate::catalogue::Catalogue::new();
        let hint = "write the value itself, or CURRENT_TIMESTAMP as the whole argument";
        let constant = Binder::of_constant(&catalogue, "an argument", hint).constant_of(written, sql)?;
        Ok(Value::of_constant(constant, Some(sql)))
    };
    let argument = |(written, field): (&Written, &Field)| {
        if let W::Placeholder(number) = written.kind {
            return Ok(Argument::Placeholder(usize::from(number) - 1, field.clone()));
        }
        if let (W::TextPlaceholder(number), Some(SqlType::Text(_))) = (&written.kind, field.sql_type) {
            return Ok(Argument::Placeholder(usize::from(*number) - 1, field.clone()));
        }
        let Some(sql) = field.sql_type else {
            return unsupported(written.place, "rows cannot be given as constants", "call it from a program");
        };
        match (&written.kind, field.count) {
            (W::Call(function, none), None) if none.is_empty() && is_clock(&function.text) => match sql {
                SqlType::Timestamp => Ok(Argument::Now),
                other => {
                    let message = format!("'{}' is {other}, and this is a timestamp", field.name);
                    Err(SqlError::new(state::DATATYPE, written.place, message))
                }
            },
            (_, None) => one(written, sql).map(Argument::Value),
            (W::Call(function, elements), Some(count)) if function.text == "array" => {
                if elements.len() > count as usize {
                    let message = format!("'{}' has {count} elements, and {} are given", field.name, elements.len());
                    return Err(SqlError::new(state::OUT_OF_RANGE, written.place, message));
                }
                let elements = elements.iter().map(|element| one(element, sql)).collect::<Result<_>>()?;
                Ok(Argument::Value(Value::Array(elements)))
            }
            (_, Some(_)) => unsupported(written.place, format!("'{}' is an array", field.name), "write ARRAY(1, 2, 3)"),
        }
    };
    let id = |written: &Written| {
        if let W::Placeholder(number) = written.kind {
            let field = Field { name: "request".into(), sql_type: Some(SqlType::Text(u32::MAX)), count: None };
            return Ok(Argument::Placeholder(usize::from(number) - 1, field));
        }
        match &written.kind {
            W::Text(text) => {
                let value = Value::Text(text.clone());
                id_of(&value, written.place).map(|_| Argument::Value(value))
            }
            W::Number(text) => Err(no_id(text, written.place)),
            _ => Err(no_id("this", written.place)),
        }
    };
    let list = written.iter().zip(&compiled.parameters).map(argument).collect::<Result<_>>()?;
    let purposes = compiled.parameters.iter().map(|field| (Purpose::Any, field.sql_type)).collect();
    Ok(Arguments { purposes, ..Arguments::new(list, request.map(id).transpose()?, name.place)? })
}

/// A statement with what makes it one that answers: `rows` counts.
pub(crate) fn counted(stmt: &syntax::Stmt) -> Result<Vec<syntax::Stmt>> {
    let place = stmt.place;
    let make = |kind| syntax::Stmt { kind, place };
    let name = |text: &str| Name { text: text.into(), place };
    let number = |text: &str| Written { kind: W::Number(text.into()), place };
    let set = |value: Written| make(S::Assign(syntax::Target { name: name("rows"), field: None, index: None }, value));
    let found = Written { kind: W::Name(None, name("found")), place };
    let when_found =
        |value: Written| make(S::If { arms: vec![(found.clone(), vec![set(value)])], otherwise: Vec::new() });
    match &stmt.kind {
        S::Insert { rows, ignore: false, .. } => Ok(vec![stmt.clone(), set(number(&rows.len().to_string()))]),
        S::Insert { .. } => Ok(vec![stmt.clone(), when_found(number("1"))]),
        // Their rows are counted one by one.
        S::Update { .. } | S::Delete { .. } => Ok(vec![stmt.clone()]),
        _ => unsupported(place, "this statement stands in procedures only", "write it in CREATE PROCEDURE"),
    }
}
