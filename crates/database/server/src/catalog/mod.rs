//! The system catalog: what clients ask to learn which tables, columns, indexes and procedures there are.
//!
//! The catalog is a database of SQLite in memory with PostgreSQL's tables, filled from the definitions and filled anew
//! when they have changed. A query is rewritten for SQLite; no query of a user's tables comes here, and the database is
//! held only while its definitions are copied.
//!
//! Queries run side by side, each in a database of its own and in a thread that may wait: [`MAX_AT_ONCE`] of them, of
//! which one user has [`MAX_OF_USER`]. No lock is held while one runs.
//!
//! | module | idea |
//! |---|---|
//! | `fill` | the rows: what PostgreSQL always has (`relations.txt`, `types.txt`, `always.sql`), and what was defined |
//! | `from` | FROM clauses, and functions that answer rows |
//! | `rewrite` | expressions in the words of SQLite |
//! | `render`, `calls` | the rewritten query as a statement |
//! | `allowed` | what a statement may read and call |
//! | `operators` | operators and casts |
//! | `infer` | the types of columns and parameters |
//! | `functions`, `arithmetic` | the functions |
//! | `privileges` | what the client may do |
//! | `types` | names and numbers of types |
//! | `array` | arrays as texts |
//! | `cells` | parameters and cells in text and binary |
//! | `fuzz` | what holds for any bytes |

mod allowed;
mod arithmetic;
mod array;
mod calls;
mod cells;
mod fill;
mod from;
mod functions;
pub(crate) mod fuzz;
mod infer;
mod operators;
mod privileges;
mod render;
mod rewrite;
pub(crate) mod types;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::FieldFormat;
use pgwire::messages::data::DataRow;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use sqlparser::ast::{Query, SelectItem, SetExpr, Statement, TableFactor, VisitMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use allowed::ALLOWED;
pub(crate) use fill::{Definitions, identifier};
use from::Sources;
use functions::REGISTERED;
use infer::Types;
use privileges::Privileges;
use render::Renderer;
use rewrite::Rewriter;

use crate::cancel::Cancel;
use crate::error::{Refusal, refuse};
use crate::limits::{self, Answer, Limits, Room, size_of_row};
use crate::quoting::literal;
use crate::rights::Right;
use crate::session_settings::SessionNames;
use crate::sqlite::{self, MAX_VALUE};
use crate::syntax::{position, read};
use crate::users::Users;
use crate::values::format_of;

/// How long a query may run.
const LIMIT: Duration = Duration::from_secs(5);
/// The most bytes of an answer.
const MAX_BYTES: usize = 32 << 20;
/// The most bytes of a query.
const MAX_TEXT: usize = 256 << 10;
/// The most bytes of a statement of SQLite, and of one for each byte of its query: prepared statements are kept.
const MAX_SQL: usize = 64 << 10;
const MAX_GROWTH: usize = 32;
/// Queries that run at a time, and those of one user among them.
const MAX_AT_ONCE: usize = 8;
const MAX_OF_USER: usize = 4;
/// What a query is called in messages.
const WHAT: &str = "the query of the catalog";

/// How the refusal begins of what is a query of the catalog for all that is known, and is none for SQLite.
pub(crate) const UNCLEAR: &str = "the catalog does not understand this query";

/// A query of the catalog that was understood.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    sql: String,
    /// Names and types of the columns.
    pub(crate) columns: Vec<(String, Type)>,
    /// Types of `$1` and so on.
    pub(crate) parameters: Vec<Type>,
    text: String,
}

/// Whether a text may be a query of the catalog: those that are not cost no more than this look.
pub(crate) fn may_ask(text: &str) -> bool {
    let has = |word: &str| text.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
    let first: String = text.trim_start_matches(|c: char| c.is_whitespace() || c == '(').chars().take(6).collect();
    let first = first.to_ascii_lowercase();
    let is_query = ["select", "with", "values"].iter().any(|word| first.starts_with(word));
    let is_asked = ["pg_", "information_schema", "generate_series", "unnest"].into_iter().any(has) || !has("from");
    is_query && is_asked && text.len() <= MAX_TEXT
}

/// A parameter as a client sent it.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) bytes: Option<Bytes>,
    pub(crate) format: FieldFormat,
    pub(crate) ty: Type,
}

/// A query in the words of SQLite.
struct Rewritten {
    query: Query,
    sql: String,
    types: Types,
    parameters: BTreeMap<usize, Option<String>>,
}

/// Rewrites a query if it asks the catalog, or nothing but functions.
fn rewrite(text: &str) -> Option<Result<Rewritten, Refusal>> {
    if !may_ask(text) {
        return None;
    }
    let mut statements = read(text)?;
    let Some(Statement::Query(mut query)) = statements.pop().filter(|_| statements.is_empty()) else { return None };
    let mut sources = Sources::new(text);
    let looked = query.visit(&mut sources);
    match (&sources.other, sources.catalog) {
        (Some((table, place)), true) => {
            let message = format!("'{table}' is no table of the catalog, and a query asks either those or your own");
            let refusal = refuse("0A000", message).hint("ask them one after the other");
            return Some(Err(Refusal { position: position(text, *place), ..refusal }));
        }
        (Some(_), false) => return None,
        (None, false) if sources.columns && !has_own_tables(&query) => return None,
        _ => {}
    }
    if let ControlFlow::Break(refusal) = looked {
        return Some(Err(refusal));
    }
    let (places, is_alone) = (sources.places, !sources.catalog);
    let mut rewriter =
        Rewriter { text, places, types: Types::default(), parameters: BTreeMap::new(), made: 0, is_alone };
    if let ControlFlow::Break(refusal) = query.visit(&mut rewriter) {
        return Some(Err(refusal));
    }
    let mut query = *query;
    show_names(&mut query.body, &rewriter.types);
    let Rewriter { types, parameters, .. } = rewriter;
    let sql = match Renderer(text).query(&query) {
        Ok(sql) => sql,
        Err(refusal) => return Some(Err(refusal)),
    };
    if sql.len() > MAX_SQL + MAX_GROWTH * text.len() {
        return Some(Err(refuse("54001", "the query is too complex").hint("ask for less at once")));
    }
    Some(Ok(Rewritten { query, sql, types, parameters }))
}

/// Whether there is a FROM clause at all.
fn has_own_tables(query: &Query) -> bool {
    match &*query.body {
        SetExpr::Select(select) => !select.from.is_empty(),
        SetExpr::Query(query) => has_own_tables(query),
        SetExpr::SetOperation { .. } => true,
        _ => false,
    }
}

/// Where a query ends, things that are numbered and named are shown by name.
fn show_names(body: &mut SetExpr, types: &Types) {
    match body {
        SetExpr::Select(select) => {
            for item in &mut select.projection {
                let SelectItem::ExprWithAlias { expr, .. } = item else { continue };
                let kind = types.of(expr).filter(|ty| REGISTERED.contains(&ty.as_str()));
                if let Some(kind) = kind {
                    let shown = std::mem::replace(expr, render::raw(String::new()));
                    *expr = rewrite::call(&format!("pg_{kind}_text"), vec![shown]);
                }
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            show_names(left, types);
            show_names(right, types);
        }
        _ => {}
    }
}

/// The database of SQLite.
struct Built {
    connection: Connection,
    /// The count of definitions that it was filled for.
    version: u64,
    who: Arc<Mutex<SessionNames>>,
    privileges: Arc<Mutex<Privileges>>,
}

/// Whose query it is, and what bounds it.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) who: &'a SessionNames,
    pub(crate) right: Right,
    /// The users of the server, with what they were granted.
    pub(crate) users: Option<&'a Users>,
    pub(crate) cancel: &'a Arc<Cancel>,
    /// The memory of all queries.
    pub(crate) room: &'a Arc<Room>,
}

/// The catalog of a server.
pub(crate) struct Catalog {
    turns: Turns,
    /// Databases that no query runs in.
    idle: Arc<Mutex<Vec<Built>>>,
}

impl Default for Catalog {
    fn default() -> Self {
        Self { turns: Turns::new(MAX_AT_ONCE, MAX_OF_USER), idle: Arc::default() }
    }
}

/// Who may run a query: so many at a time, and of one user not all of them.
struct Turns {
    all: Arc<Semaphore>,
    of_user: usize,
    by_user: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A turn, which ends when it is dropped.
struct Turn {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Turns {
    fn new(all: usize, of_user: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), of_user, by_user: Mutex::default() }
    }

    /// Waits for a turn.
    async fn take(&self, user: &str) -> Result<Turn, Refusal> {
        let own = {
            let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
            // No query of these users runs or waits.
            by_user.retain(|known, turns| known == user || Arc::strong_count(turns) > 1);
            by_user.entry(user.into()).or_insert_with(|| Arc::new(Semaphore::new(self.of_user))).clone()
        };
        let ended = |_| refuse("57P01", "the server is ending");
        let _of_user = own.acquire_owned().await.map_err(ended)?;
        let _of_all = self.all.clone().acquire_owned().await.map_err(ended)?;
        Ok(Turn { _of_user, _of_all })
    }
}

/// An error of SQLite in the words of clients.
fn explained(error: &rusqlite::Error, text: &str) -> Refusal {
    let limits = limits::current();
    if let Some(refusal) = limits.as_ref().and_then(|limits| sqlite::beyond(error, limits)) {
        return refusal;
    }
    let message = sqlite::message(error);
    if let Some(refusal) = sqlite::stated(&message) {
        return refusal;
    }
    // A name in double quotes is never a text here.
    let message = message.replace(" - should this be a string literal in single-quotes?", "").replace('"', "");
    let name = message.rsplit_once(": ").map(|(_, name)| name.to_string());
    let place = |name: &str| {
        let at = text.to_ascii_lowercase().find(&name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase());
        at.map_or(0, |at| text[..at].chars().count() + 1)
    };
    for (begins, sqlstate) in [
        ("no such column", "42703"),
        ("no such table", "42P01"),
        ("ambiguous column name", "42702"),
        ("no such function", "42883"),
    ] {
        if let (true, Some(name)) = (message.starts_with(begins), &name) {
            return Refusal { position: place(name), ..refuse(sqlstate, message) };
        }
    }
    if message.starts_with("wrong number of arguments") {
        return refuse("42883", message);
    }
    if matches!(error, rusqlite::Error::SqliteFailure(..) | rusqlite::Error::UserFunctionError(_)) {
        return refuse("22023", message);
    }
    let message = format!("{UNCLEAR} ({message})");
    refuse("0A000", message).hint("queries of psql's \\d, and of SQLAlchemy, JDBC and psycopg are understood")
}

impl Built {
    fn new(definitions: &Definitions, version: u64) -> rusqlite::Result<Self> {
        let mut connection = sqlite::open()?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE as i32)?;
        // A name is never taken for a text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        let who = Arc::new(Mutex::new(SessionNames { user: String::new(), database: String::new() }));
        functions::register(&connection, &who)?;
        let (catalogue, procedures) = definitions;
        let names = Arc::new(fill::fill(&connection, catalogue, procedures)?);
        functions::register_names(&connection, &names, &who)?;
        let privileges = Arc::default();
        privileges::register(&connection, &names, &who, &privileges)?;
        sqlite::seal(&mut connection, ALLOWED)?;
        Ok(Self { connection, version, who, privileges })
    }

    /// Has names of the session stand where there are such.
    fn be(&mut self, who: &SessionNames) -> Result<(), Refusal> {
        let broken = |error: rusqlite::Error| explained(&error, "");
        let mut known = self.who.lock().unwrap_or_else(PoisonError::into_inner);
        if known.user != who.user || known.database != who.database {
            known.clone_from(who);
            drop(known);
            let (user, database) = (literal(&who.user)?, literal(&who.database)?);
            sqlite::unseal(&mut self.connection).map_err(broken)?;
            let named = format!(
                "PRAGMA query_only = OFF; UPDATE pg_authid SET rolname = {user}; UPDATE pg_roles SET rolname = {user};
                 UPDATE pg_user SET usename = {user}; UPDATE pg_database SET datname = {database};
                 UPDATE pg_tables SET tableowner = {user};
                 UPDATE information_schema.schemata SET catalog_name = {database}, schema_owner = {user};
                 UPDATE information_schema.tables SET table_catalog = {database};
                 UPDATE information_schema.columns SET table_catalog = {database}, udt_catalog = {database};
                 UPDATE information_schema.table_constraints
                     SET table_catalog = {database}, constraint_catalog = {database};
                 UPDATE information_schema.key_column_usage
                     SET table_catalog = {database}, constraint_catalog = {database};
                 UPDATE information_schema.routines SET specific_catalog = {database}, routine_catalog = {database};
                 UPDATE information_schema.parameters SET specific_catalog = {database};
                 PRAGMA query_only = ON"
            );
            self.connection.execute_batch(&named).map_err(broken)?;
            sqlite::seal(&mut self.connection, ALLOWED).map_err(broken)?;
        }
        Ok(())
    }

    fn understand(&self, rewritten: &Rewritten, text: &str) -> Result<Asked, Refusal> {
        let Rewritten { query, sql, types, parameters } = rewritten;
        let explained = |error: rusqlite::Error| explained(&error, text);
        let statement = self.connection.prepare(sql).map_err(explained)?;
        if !statement.readonly() {
            return Err(refuse("0A000", "a query of the catalog changes nothing"));
        }
        let listed = listed(&query.body);
        let columns: Vec<_> = statement.columns().collect();
        let column = |(at, column): (usize, &rusqlite::Column<'_>)| {
            let declared = column.decl_type().and_then(|ty| ty.split(' ').next()).map(str::to_string);
            let inferred = || match listed.get(at) {
                Some(SelectItem::ExprWithAlias { expr, .. }) if listed.len() == columns.len() => types.of(expr),
                _ => None,
            };
            let ty = declared.or_else(inferred).map_or(Type::TEXT, |name| types::of_name(&name));
            // What has a number and a name is shown by name.
            let ty = if REGISTERED.contains(&ty.name()) { Type::TEXT } else { ty };
            (column.name().to_string(), ty)
        };
        let columns = columns.iter().enumerate().map(column).collect();
        let most = parameters.keys().max().copied().unwrap_or(0);
        let parameter = |number: usize| {
            let ty = parameters.get(&number).and_then(Option::as_deref);
            ty.map_or(Type::TEXT, |name| match types::of_name(name) {
                ty if REGISTERED.contains(&ty.name()) => Type::TEXT,
                ty => ty,
            })
        };
        let parameters = (1..=most).map(parameter).collect();
        Ok(Asked { sql: sql.clone(), columns, parameters, text: text.to_string() })
    }

    fn run(&self, asked: &Asked, values: &[Given], format: &Format) -> Result<Vec<DataRow>, Refusal> {
        let explained = |error: rusqlite::Error| explained(&error, &asked.text);
        let mut statement = self.connection.prepare(&asked.sql).map_err(explained)?;
        for (at, given) in values.iter().take(statement.parameter_count()).enumerate() {
            // SQLite copies it.
            let value = cells::decode(given.bytes.as_deref(), given.format, &given.ty, at + 1)?;
            statement.raw_bind_parameter(at + 1, &*value).map_err(explained)?;
        }
        let mut rows = statement.raw_query();
        let (mut answer, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(explained)? {
            let mut data = BytesMut::new();
            for (at, (_, ty)) in asked.columns.iter().enumerate() {
                cells::encode(row.get_ref(at).map_err(explained)?, ty, format_of(format, at), &mut data)?;
            }
            let row = DataRow::new(data, asked.columns.len() as i16);
            bytes += row.data.len() + size_of::<DataRow>();
            if bytes > MAX_BYTES {
                let message = format!("the answer is of more than {MAX_BYTES} bytes");
                return Err(refuse("54000", message).hint("ask for less"));
            }
            limits::keep(size_of_row(&row))?;
            answer.push(row);
        }
        Ok(answer)
    }
}

/// The list of the first SELECT, or of the one that it takes all columns of.
fn listed(body: &SetExpr) -> &[SelectItem] {
    match body {
        SetExpr::Select(select) if matches!(select.projection[..], [SelectItem::Wildcard(_)]) => {
            match select.from.first().map(|from| (&from.relation, from.joins.len(), select.from.len())) {
                Some((TableFactor::Derived { subquery, .. }, 0, 1)) => listed(&subquery.body),
                _ => &select.projection,
            }
        }
        SetExpr::Select(select) => &select.projection,
        SetExpr::SetOperation { left, .. } => listed(left),
        SetExpr::Query(query) => listed(&query.body),
        _ => &[],
    }
}

impl Catalog {
    /// Understands a query if it is one of the catalog; else nothing. `definitions` gives the count of definitions and,
    /// when asked, what they are.
    pub(crate) async fn understand(
        &self,
        text: &str,
        asker: Asker<'_>,
        version: u64,
        definitions: impl FnOnce() -> Result<Definitions, Refusal>,
    ) -> Option<Result<Asked, Refusal>> {
        match rewrite(text)? {
            Ok(rewritten) => {
                let text = text.to_string();
                let understand = move |built: &Built| built.understand(&rewritten, &text);
                let understood = self.with(asker, version, definitions, move |built, _| understand(built)).await;
                Some(understood)
            }
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// The rows that a query answers.
    pub(crate) async fn run(
        &self,
        asked: &Arc<Asked>,
        values: Vec<Given>,
        format: &Format,
        asker: Asker<'_>,
        version: u64,
        definitions: impl FnOnce() -> Result<Definitions, Refusal>,
    ) -> Result<Answer, Refusal> {
        let (asked, format) = (asked.clone(), format.clone());
        let run = move |built: &Built, limits: &Limits| limits.hand_over(built.run(&asked, &values, &format)?);
        self.with(asker, version, definitions, run).await
    }

    fn idle(idle: &Mutex<Vec<Built>>) -> MutexGuard<'_, Vec<Built>> {
        idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a database of its own, in a thread that may wait.
    async fn with<T: Send + 'static>(
        &self,
        asker: Asker<'_>,
        version: u64,
        definitions: impl FnOnce() -> Result<Definitions, Refusal>,
        run: impl FnOnce(&Built, &Limits) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Asker { who, right, users, cancel, room } = asker;
        let privileges = Privileges { right, grants: users.map(|users| users.grants(&who.user)).unwrap_or_default() };
        let turn = cancel.unless_gone(self.turns.take(&who.user)).await??;
        let found = {
            let mut idle = Self::idle(&self.idle);
            // Those that were filled before a definition are of no use any more.
            idle.retain(|built| built.version >= version);
            let at = idle.iter().position(|built| built.version == version);
            at.map(|at| idle.swap_remove(at))
        };
        let filled_with = if found.is_none() { Some(definitions()?) } else { None };
        let (who, idle) = (who.clone(), self.idle.clone());
        let (room, cancel_of_run) = (room.clone(), cancel.clone());
        let ran = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let broken = |error: rusqlite::Error| refuse("XX000", format!("the catalog cannot be made: {error}"));
            let mut built = match (found, filled_with) {
                (Some(built), _) => built,
                (None, Some(definitions)) => Built::new(&definitions, version).map_err(broken)?,
                (None, None) => return Err(refuse("XX000", "the catalog has no definitions")),
            };
            *built.privileges.lock().unwrap_or_else(PoisonError::into_inner) = privileges;
            let limits = Limits::new(WHAT, LIMIT, &who.user, &room, &cancel_of_run);
            let (is_whole, ran) = limits.enter(|| match built.be(&who) {
                Ok(()) => (true, run(&built, &limits)),
                // The names may stand in some of the tables only.
                Err(refusal) => (false, Err(refusal)),
            });
            if is_whole {
                Self::idle(&idle).push(built);
            }
            ran
        });
        let ran = cancel.watched(ran).await.map_err(|_| refuse("XX000", "a query ended without an answer"))?;
        ran.map_err(|refusal| cancel.explain(refusal))
    }
}
