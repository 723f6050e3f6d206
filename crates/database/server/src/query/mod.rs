//! Queries of the tables that no key finds the rows of: `SELECT count(*) FROM t`, sums, groups, joins.
//!
//! What cannot be a procedure is answered by SQLite, from images of the tables' rows as they were at one moment. The
//! query is understood here, with types: names are resolved, exact numbers stay exact, what is not known is refused.
//!
//! | module | idea |
//! |---|---|
//! | `select`, `from` | queries, and what they ask |
//! | `clauses` | what stands around a query |
//! | `bind` | names and expressions |
//! | `operators` | arithmetic, comparisons, IN, LIKE, CASE |
//! | `calls` | aggregates and functions |
//! | `bound` | how an expression of one kind becomes one of another |
//! | `kinds` | kinds of values, inside and outside |
//! | `functions` | what SQLite lacks |
//! | `images` | rows, as SQLite sees them |

mod bind;
mod bound;
mod calls;
mod clauses;
mod from;
mod functions;
mod images;
mod kinds;
mod operators;
mod select;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use lockwork::sequencer::Transaction;
use lockwork::sql::{Catalogue, Field, SqlType, Value};
use lockwork::{Caller, Error, Rows};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::messages::data::DataRow;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::Value as Given;
use sqlparser::ast::Statement as Read;
use tokio::sync::Semaphore;

use crate::catalog;
use crate::error::{Refusal, refuse};
use crate::limits::{self, Limits, size_of_row};
use crate::session_settings::SessionNames;
use crate::sqlite::{self, Allowed, MAX_VALUE};
use crate::syntax::{Unread, attempt};
use crate::transaction;
use crate::values::format_of;
use bind::Binder;
use calls::NO_FUNCTION;
use images::{Image, Place};
use kinds::{Kind, given, put};

/// How long a query may run, and wait for others.
const LIMIT: Duration = Duration::from_secs(30);
/// The most bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// The most bytes of the rows of all tables of a query.
const MAX_ROWS: u64 = 256 << 20;
/// The most bytes of the rows of a query that does not wait for large ones.
const FEW_ROWS: u64 = 8 << 20;
/// Queries of few rows that run at a time; of many, one does.
const SMALL_AT_ONCE: usize = 8;
/// The most elements of a parameter that is an array.
pub(crate) const MAX_ELEMENTS: u32 = 100_000;
/// The most bytes of the text of a query.
const MAX_TEXT: usize = 256 << 10;
/// The most bytes of a statement of SQLite, and of one for each byte of its query: prepared statements are kept.
const MAX_SQL: usize = 64 << 10;
const MAX_GROWTH: usize = 32;
/// What a query is called in messages.
const WHAT: &str = "the query";
/// The SQLSTATE of queries that nest too deep.
const TOO_DEEP: &str = "54001";
const DEEP_HINT: &str = "docs/operations.md, Looking at tables, has the limits; a WITH, or a procedure, parts it";
const HINT: &str = "COPY table TO STDOUT takes a table out; a procedure, or a SELECT by a key, reads some rows of it";

/// A query that was understood.
#[derive(Debug)]
pub(crate) struct Query {
    sql: String,
    columns: Vec<(String, Kind, Type, i32)>,
    pub(crate) parameters: Vec<Field>,
    tables: Vec<Asked>,
    /// Whether there is nothing in FROM, so that it tells nothing and takes no time.
    pub(crate) is_computed: bool,
    /// What it was understood from, to understand it for values with more decimals.
    text: String,
    declared: Vec<Option<Type>>,
    /// The same query for values with more decimals, by these: the last one.
    scaled: Mutex<Option<(Vec<u8>, Arc<Query>)>>,
}

/// A table of a query, as it was when the query was understood.
#[derive(Debug)]
struct Asked {
    name: String,
    types: Vec<SqlType>,
    keys: usize,
}

impl Query {
    /// The tables that it reads.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|table| table.name.as_str())
    }

    /// Names, types and modifiers of the columns.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (String, Type, i32)> + '_ {
        self.columns.iter().map(|(name, _, ty, modifier)| (name.clone(), ty.clone(), *modifier))
    }

    /// The query for these values, if one of them has more decimals than this one was understood for.
    pub(crate) fn for_values(
        &self,
        values: &[Value],
        who: &SessionNames,
        understand: impl FnOnce(&str, Asker<'_>) -> Option<Result<Query, Refusal>>,
    ) -> Result<Option<Arc<Query>>, Refusal> {
        let is_within = |(value, field): (&Value, &Field)| match (value, field.sql_type) {
            (Value::Decimal(_, scale), Some(SqlType::Decimal(_, has))) => *scale <= has,
            (Value::Decimal(..), Some(SqlType::Integer(_))) => false,
            _ => true,
        };
        if values.iter().zip(&self.parameters).all(is_within) {
            return Ok(None);
        }
        let scale = |value: &Value| if let Value::Decimal(_, scale) = value { *scale } else { 0 };
        let scales: Vec<u8> = values.iter().map(scale).collect();
        let mut scaled = self.scaled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = scaled.as_ref().filter(|(known, _)| *known == scales) {
            return Ok(Some(known.clone()));
        }
        let asker = Asker { who, declared: &self.declared, scales: &scales };
        let hint = "prepare the query again";
        let changed = || refuse("0A000", "the query is another one now").hint(hint);
        let query = Arc::new(understand(&self.text, asker).ok_or_else(changed)??);
        if query.columns().map(|(_, ty, _)| ty).ne(self.columns().map(|(_, ty, _)| ty)) {
            return Err(changed());
        }
        *scaled = Some((scales, query.clone()));
        Ok(Some(query))
    }
}

/// Whether what the compiler of single statements refuses for this reason may be a query, of any length.
pub(crate) fn may_be_one(refusal: &Refusal, text: &str) -> bool {
    let is_of_statement = ["0A", "42", "54"].iter().any(|class| refusal.sqlstate.starts_with(class));
    let start = text.trim_start_matches(|c: char| c.is_whitespace() || c == '(' || c == ';');
    // A comment before it is no reason either.
    let begins = |word: &str| start.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let is_query = ["select", "with", "values", "table", "--", "/*"].into_iter().any(begins);
    is_of_statement && refusal.sqlstate != "42501" && is_query
}

/// Understands a query without tables; nothing if the text is none.
pub(crate) fn alone(text: &str, asker: Asker<'_>) -> Option<Result<Query, Refusal>> {
    match understand(text, &Catalogue::new(), asker)? {
        // The compiler of single statements may know it.
        Err(refusal) if refusal.sqlstate == TOO_DEEP => None,
        understood => Some(understood),
    }
}

/// Whether a query without tables that is refused may be one of the catalog, which has schemas, tables, functions and
/// types of its own.
pub(crate) fn may_be_of_catalog(refusal: &Refusal) -> bool {
    match &*refusal.sqlstate {
        "0A000" | "3F000" | "42P01" | "42703" | "42704" => true,
        state => state == "42883" && refusal.message.starts_with(NO_FUNCTION),
    }
}

/// Who asks, and the types that the client says `$1` and so on have.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) who: &'a SessionNames,
    pub(crate) declared: &'a [Option<Type>],
    /// The decimals that `$1` and so on have at least.
    pub(crate) scales: &'a [u8],
}

/// Understands a query; nothing if the text is none that can be read.
pub(crate) fn understand(text: &str, catalogue: &Catalogue, asker: Asker<'_>) -> Option<Result<Query, Refusal>> {
    const TABLE: &str = "TABLE";
    const ALL: &str = "SELECT * FROM";
    let table = text.split_at_checked(TABLE.len()).filter(|(first, rest)| {
        first.eq_ignore_ascii_case(TABLE) && rest.starts_with(|c: char| c.is_whitespace() || c == '"')
    });
    let longer = table.map(|(_, rest)| format!("{ALL}{rest}"));
    let text = longer.as_deref().unwrap_or(text);
    if text.len() > MAX_TEXT {
        let message = format!("a query is of at most {} KiB", MAX_TEXT >> 10);
        return Some(Err(refuse("54000", message).hint("load rows with COPY, or with several INSERTs")));
    }
    let mut statements = match attempt(text) {
        Ok(statements) => statements,
        Err(Unread::Unknown) => return None,
        Err(Unread::TooDeep) => return Some(Err(refuse(TOO_DEEP, "the query is too deep to be read").hint(DEEP_HINT))),
    };
    let Read::Query(query) = statements.pop().filter(|_| statements.is_empty())? else { return None };
    let moved =
        |refusal: Refusal| Refusal { position: refusal.position.saturating_sub(ALL.len() - TABLE.len()), ..refusal };
    let understood = bound(text, &query, catalogue, asker);
    Some(if longer.is_some() { understood.map_err(moved) } else { understood })
}

fn bound(text: &str, query: &sqlparser::ast::Query, catalogue: &Catalogue, asker: Asker<'_>) -> Result<Query, Refusal> {
    let mut binder = Binder::new(text, catalogue, asker);
    let made = binder.query(query)?;
    if made.sql.len() > MAX_SQL + MAX_GROWTH * text.len() {
        return Err(refuse(TOO_DEEP, "the query is too complex").hint(DEEP_HINT));
    }
    let parameters = binder.parameters()?.into_iter().enumerate();
    let lists = std::mem::take(&mut binder.lists);
    let parameter = |(at, sql)| {
        let count = lists.contains(&(at + 1)).then_some(MAX_ELEMENTS);
        Field { name: format!("${}", at + 1), sql_type: Some(sql), count }
    };
    let column = |output: select::Output| {
        let (ty, modifier) = output.kind.outside(output.own);
        (output.name, output.kind, ty, modifier)
    };
    let table = |name: String| {
        let found = catalogue.find(&name);
        let types = found.map_or_else(Vec::new, |table| table.types().to_vec());
        Asked { keys: found.map_or(0, |table| table.schema().key().len()), name, types }
    };
    Ok(Query {
        is_computed: binder.names_nothing(),
        sql: made.sql,
        columns: made.columns.into_iter().map(column).collect(),
        parameters: parameters.map(parameter).collect(),
        tables: binder.tables.into_iter().map(table).collect(),
        text: text.into(),
        declared: asker.declared.to_vec(),
        scaled: Mutex::default(),
    })
}

/// The queries of a server.
pub(crate) struct Queries {
    caller: Caller,
    /// Those without tables do not wait for those that have some.
    alone: Lane,
    small: Lane,
    large: Lane,
}

/// Queries of at most so many bytes of rows, and how many of them may run.
struct Lane {
    most: u64,
    places: Arc<Semaphore>,
}

impl Queries {
    pub(crate) fn new(caller: Caller) -> Self {
        let lane = |most, at_once| Lane { most, places: Arc::new(Semaphore::new(at_once)) };
        let (alone, small) = (lane(0, SMALL_AT_ONCE), lane(FEW_ROWS, SMALL_AT_ONCE));
        Self { caller, alone, small, large: lane(MAX_ROWS, 1) }
    }

    /// What a query answers, alone or in a transaction, which is `None` when an error has ended it.
    pub(crate) async fn run(
        &self,
        query: &Arc<Query>,
        values: &[Value],
        format: &Format,
        mut transaction: Option<&mut Option<Transaction>>,
        asker: catalog::Asker<'_>,
    ) -> Result<Answer, Refusal> {
        let values: Vec<Given> =
            values.iter().zip(&query.parameters).map(|(value, field)| given(value, field)).collect::<Result<_, _>>()?;
        let values = Arc::new(values);
        let first = if query.is_computed { &self.alone } else { &self.small };
        match self.attempt(first, query, &values, format, transaction.as_deref_mut(), asker).await {
            Err(Failed::TooLarge) => {}
            Err(Failed::Refused(refusal)) => return Err(refusal),
            Ok(rows) => return Ok(rows),
        }
        match self.attempt(&self.large, query, &values, format, transaction, asker).await {
            Err(Failed::TooLarge) => {
                let message = format!("the tables of this query have more than {} MiB of rows", MAX_ROWS >> 20);
                Err(refuse("53400", message).hint(HINT))
            }
            Err(Failed::Refused(refusal)) => Err(refusal),
            Ok(rows) => Ok(rows),
        }
    }

    async fn attempt(
        &self,
        lane: &Lane,
        query: &Arc<Query>,
        values: &Arc<Vec<Given>>,
        format: &Format,
        mut transaction: Option<&mut Option<Transaction>>,
        asker: catalog::Asker<'_>,
    ) -> Result<Answer, Failed> {
        let catalog::Asker { who, cancel, room, .. } = asker;
        let permit = tokio::time::timeout(LIMIT, lane.places.clone().acquire_owned());
        let permit = cancel.unless_gone(permit).await?;
        let busy = || refuse("55P03", format!("other queries have run for {} s", LIMIT.as_secs())).hint("ask again");
        let permit = permit.map_err(|_| busy())?.map_err(|_| refuse("57P01", "the server is ending"))?;
        let (caller, query, values, format) = (self.caller.clone(), query.clone(), values.clone(), format.clone());
        let (most, looked, room, user) = (lane.most, cancel.clone(), room.clone(), who.user.clone());
        let steps = match transaction.as_deref_mut() {
            Some(steps) => Some(steps.take().ok_or_else(transaction::ended)?),
            None => None,
        };
        let ran = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let names: Vec<&str> = query.tables.iter().map(|table| table.name.as_str()).collect();
            let (steps, rows) = match (steps, &names[..]) {
                (steps, []) => (steps, Ok((None, Vec::new()))),
                (None, names) => (None, caller.rows_at(names, most).map(|(record, rows)| (Some(record), rows))),
                (Some(steps), names) => {
                    let (steps, rows) = caller.rows_in(steps, names, most).map_err(transaction::error)?;
                    (Some(steps), rows.map(|rows| (None, rows)))
                }
            };
            let answer = match rows {
                Err(Error::TooLarge { .. }) => Err(Failed::TooLarge),
                Err(error) => Err(Refusal::of(error, "").into()),
                Ok((record, rows)) => {
                    let limits = Limits::new(WHAT, LIMIT, &user, &room, &looked);
                    let answer = query.answer(rows, &values, &format, &limits);
                    let answer = answer.and_then(|rows| limits.hand_over(rows));
                    answer.map(|answer| (record, answer)).map_err(|refusal| looked.explain(refusal).into())
                }
            };
            Ok((steps, answer))
        });
        let ran: Result<_, Refusal> =
            cancel.watched(ran).await.map_err(|_| refuse("XX000", "a query ended without an answer"))?;
        let (steps, answer) = ran?;
        if let Some(transaction) = transaction {
            *transaction = steps;
        }
        answer
    }
}

/// The rows that a query answers, and the record of the log that it is of, if it is alone and has tables.
type Answer = (Option<u64>, limits::Answer);

/// Why a query has no answer.
enum Failed {
    /// It has more rows than the attempt allows.
    TooLarge,
    Refused(Refusal),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The functions of SQLite that [`bind`] and what belongs to it write, beside our own.
const OF_SQLITE: &[&str] = &["abs", "avg", "coalesce", "count", "group_concat", "max", "min", "sign", "sum"];

/// What a query may come to read and call: images of its tables and the elements of arrays, and those functions.
const ALLOWED: Allowed = Allowed {
    table: |name| {
        let number = name.strip_prefix('t').filter(|number| !number.is_empty());
        name == "json_each" || number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    },
    function: |name| name.starts_with("lw_") || OF_SQLITE.contains(&name),
};

/// An error of SQLite in the words of clients.
fn explained(error: &rusqlite::Error, limits: &Limits) -> Refusal {
    if let Some(refusal) = sqlite::beyond(error, limits) {
        return refusal.hint(HINT);
    }
    let message = sqlite::message(error);
    if message == "integer overflow" {
        return refuse("22003", "a number is out of range");
    }
    sqlite::stated(&message).unwrap_or_else(|| {
        refuse("0A000", format!("the query cannot be carried out: {message}")).hint("ask for less at once")
    })
}

impl Query {
    fn answer(
        &self,
        tables: Vec<Rows>,
        values: &[Given],
        format: &Format,
        limits: &Arc<Limits>,
    ) -> Result<Vec<DataRow>, Refusal> {
        limits.enter(|| self.answer_within(tables, values, format, limits))
    }

    fn answer_within(
        &self,
        tables: Vec<Rows>,
        values: &[Given],
        format: &Format,
        limits: &Arc<Limits>,
    ) -> Result<Vec<DataRow>, Refusal> {
        let explained = |error: rusqlite::Error| explained(&error, limits);
        let given = |value: &Given| match value {
            Given::Text(text) => text.len(),
            Given::Blob(bytes) => bytes.len(),
            _ => size_of::<Given>(),
        };
        // As the client sent them, as they were read, and as they are here; SQLite has one more.
        let _values = limits.reserve(3 * values.iter().map(given).sum::<usize>())?;
        let mut connection = sqlite::open().map_err(explained)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE as i32).map_err(explained)?;
        // A name is never taken for a text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false).map_err(explained)?;
        functions::register(&connection).map_err(explained)?;
        for (number, (asked, rows)) in self.tables.iter().zip(tables).enumerate() {
            if rows.schema.columns().len() != asked.types.len() {
                let hint = "prepare the query again";
                return Err(refuse("0A000", format!("table '{}' is another one now", asked.name)).hint(hint));
            }
            let place = |(column, sql): (usize, &SqlType)| {
                let range = rows.range(column);
                Place { offset: range.start, width: range.len(), sql: *sql, is_key: column < asked.keys }
            };
            let places = asked.types.iter().enumerate().map(place).collect();
            let image = Image::new(places, rows.row_bytes(), rows.images, limits.clone());
            images::register(&connection, &format!("t{number}"), Arc::new(image)).map_err(explained)?;
        }
        sqlite::seal(&mut connection, ALLOWED).map_err(explained)?;
        let mut statement = connection.prepare(&self.sql).map_err(explained)?;
        // A parameter whose value does not matter has left the statement.
        let values = values.iter().take(statement.parameter_count());
        let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(explained)?;
        let (mut answer, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(explained)? {
            let mut data = BytesMut::new();
            for (at, (_, kind, ty, _)) in self.columns.iter().enumerate() {
                put(row.get_ref(at).map_err(explained)?, *kind, ty, format_of(format, at), &mut data)?;
            }
            let row = DataRow::new(data, self.columns.len() as i16);
            bytes += row.data.len() + size_of::<DataRow>();
            if bytes > MAX_ANSWER {
                let message = format!("the answer is of more than {} MiB", MAX_ANSWER >> 20);
                return Err(refuse("54000", message).hint(HINT));
            }
            limits::keep(size_of_row(&row))?;
            answer.push(row);
        }
        Ok(answer)
    }
}
