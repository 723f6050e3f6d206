//! The database, as all connections have it.
//!
//! Definitions and the understanding of statements go through one lock; calls do not: they go to the database's own
//! queue, where those of all connections share batches and writes of the log.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lockwork_database::sql::{Field, Kind, SqlType, Statement, Value, statements};
use lockwork_database::{Caller, Error, Lockwork, Outcomes, Prepared, SqlAnswer};
use pgwire::api::portal::Format;
use pgwire::messages::data::DataRow;
use tokio::sync::{Semaphore, oneshot};

use crate::catalog::{Asked, Catalog, Definitions, Given};
use crate::error::{Refusal, refuse};
use crate::known::Who;
use crate::query::{self, Queries, Query};
use crate::watch::Watch;

/// What is open to connections.
pub(crate) struct Shared {
    /// `None` when it has been closed.
    database: Mutex<Option<Lockwork>>,
    caller: Caller,
    /// Counts definitions: what was understood before one is looked at again.
    definitions: AtomicU64,
    /// Calls that may wait for the database.
    queue: Semaphore,
    /// KiB of the CALL MANYs that are under way.
    room: Semaphore,
    pub(crate) watch: Arc<Watch>,
    catalog: Catalog,
    queries: Queries,
}

/// A statement that was understood.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    text: String,
    pub(crate) verb: Verb,
    /// The procedure of a CALL, the kind of statement of others.
    what: String,
    /// For all but definitions and EXPLAIN.
    prepared: Option<Prepared>,
    /// Whether it is CALL MANY: every parameter is a column of values, and every result one.
    many: bool,
    definitions: u64,
    /// What came of it after later definitions, to be used instead.
    renewed: Arc<Mutex<Option<Arc<Plan>>>>,
}

/// The most calls of a CALL MANY, and the most bytes of their blocks.
pub(crate) const MOST_CALLS: u32 = 1 << 18;
const MOST_BYTES: usize = 256 << 20;
/// Of all of them that are under way.
const MOST_BYTES_AT_ONCE: usize = 512 << 20;
/// The column of a CALL MANY that says why a call was taken back; it is empty for one that was not.
const SQLSTATE: &str = "sqlstate";

/// What a statement is called when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    CreateTable,
    CreateIndex,
    CreateProcedure,
    Explain,
    Call,
    Select,
    Insert,
    Update,
    Delete,
}

impl Verb {
    pub(crate) const ALL: [Self; 9] = [
        Self::CreateTable,
        Self::CreateIndex,
        Self::CreateProcedure,
        Self::Explain,
        Self::Call,
        Self::Select,
        Self::Insert,
        Self::Update,
        Self::Delete,
    ];

    /// What counts call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CreateTable => "create_table",
            Self::CreateIndex => "create_index",
            Self::CreateProcedure => "create_procedure",
            Self::Explain => "explain",
            Self::Call => "call",
            Self::Select => "select",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    pub(crate) fn of(statement: &Statement<'_>) -> Self {
        let first = statement.text().split_whitespace().next().unwrap_or_default();
        match statement.kind() {
            Kind::CreateTable => Self::CreateTable,
            Kind::CreateIndex => Self::CreateIndex,
            Kind::CreateProcedure => Self::CreateProcedure,
            Kind::Explain => Self::Explain,
            Kind::Call => Self::Call,
            Kind::Select => Self::Select,
            _ if first.eq_ignore_ascii_case("insert") => Self::Insert,
            _ if first.eq_ignore_ascii_case("update") => Self::Update,
            _ => Self::Delete,
        }
    }

    /// The tag of a statement that wrote or answered so many rows.
    pub(crate) fn tag(self, rows: i64) -> String {
        match self {
            Self::CreateTable => "CREATE TABLE".into(),
            Self::CreateIndex => "CREATE INDEX".into(),
            Self::CreateProcedure => "CREATE PROCEDURE".into(),
            Self::Explain => "EXPLAIN".into(),
            Self::Call => "CALL".into(),
            Self::Select => format!("SELECT {rows}"),
            Self::Insert => format!("INSERT 0 {rows}"),
            Self::Update => format!("UPDATE {rows}"),
            Self::Delete => format!("DELETE {rows}"),
        }
    }
}

impl Plan {
    pub(crate) fn parameters(&self) -> Vec<Field> {
        let parameters = self.prepared.as_ref().map_or(&[][..], Prepared::parameters).iter();
        parameters
            .map(|field| Field { count: if self.many { Some(MOST_CALLS) } else { field.count }, ..field.clone() })
            .collect()
    }

    /// The columns that it answers; none for what only has a tag.
    pub(crate) fn columns(&self) -> Vec<Field> {
        match &self.prepared {
            Some(prepared) if self.many => {
                let sqlstate = Field { name: SQLSTATE.into(), sql_type: Some(SqlType::Text(5)), count: None };
                let columns = prepared.columns().into_iter().chain([sqlstate]);
                columns.map(|field| Field { count: Some(MOST_CALLS), ..field }).collect()
            }
            Some(prepared) if matches!(self.verb, Verb::Call | Verb::Select) => prepared.columns(),
            Some(_) => Vec::new(),
            None if self.verb == Verb::Explain => {
                vec![Field { name: "QUERY PLAN".into(), sql_type: Some(SqlType::Text(1)), count: None }]
            }
            None => Vec::new(),
        }
    }
}

fn closed() -> Refusal {
    refuse("57P01", "the server is ending")
}

impl Shared {
    /// # Errors
    /// The database is not in a folder.
    pub(crate) fn new(database: Lockwork, queue: usize, watch: Arc<Watch>) -> Result<Self, Error> {
        let caller = database.caller()?;
        let queries = Queries::new(caller.clone());
        Ok(Self {
            database: Mutex::new(Some(database)),
            caller,
            definitions: AtomicU64::new(0),
            queue: Semaphore::new(queue),
            room: Semaphore::new(MOST_BYTES_AT_ONCE >> 10),
            watch,
            catalog: Catalog::default(),
            queries,
        })
    }

    /// To be waited for by a thread that may wait: in `block_in_place`.
    fn database(&self) -> MutexGuard<'_, Option<Lockwork>> {
        // The library leaves nothing in half when it panics, and it never should.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the database, for good; what is under way has been answered.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let database = self.database().take();
        database.map_or(Ok(()), Lockwork::close)
    }

    /// Understands a statement of the text `source`. It may wait for the disk, when the statement is of a new shape.
    pub(crate) fn plan(&self, statement: &Statement<'_>) -> Result<Plan, Refusal> {
        let definitions = self.definitions.load(Ordering::Acquire);
        let prepared = match statement.kind() {
            Kind::Call | Kind::Select | Kind::Write => Some(tokio::task::block_in_place(|| {
                let mut guard = self.database();
                let database = guard.as_mut().ok_or_else(closed)?;
                database.prepare(statement).map_err(|error| Refusal::of(error, statement.source()))
            })?),
            _ => None,
        };
        let (text, verb) = (statement.text().to_string(), Verb::of(statement));
        let called = statement.name().filter(|_| verb == Verb::Call);
        let what = called.unwrap_or(verb.name()).to_string();
        Ok(Plan { text, verb, what, prepared, many: false, definitions, renewed: Arc::default() })
    }

    /// Understands a CALL of which many are to be made at once.
    pub(crate) fn plan_many(&self, statement: &Statement<'_>) -> Result<Plan, Refusal> {
        let plan = Plan { many: true, ..self.plan(statement)? };
        let prepared = plan.prepared.as_ref().filter(|_| plan.verb == Verb::Call);
        let prepared = prepared.ok_or_else(|| refuse("42601", "a CALL is expected behind CALL MANY"))?;
        let columns = prepared.columns();
        let mut all = prepared.parameters().iter().chain(&columns);
        if let Some(field) = all.find(|field| field.count.is_some() || field.sql_type.is_none()) {
            let message = format!("'{}' is an array or rows, and CALL MANY takes and gives a value a call", field.name);
            return Err(refuse("0A000", message).hint("call it one by one"));
        }
        if prepared.parameters().is_empty() {
            let hint = "CALL MANY transfer($1, $2, 0.01): an array for each";
            return Err(refuse("42601", "CALL MANY needs parameters, to know how many calls there are").hint(hint));
        }
        Ok(plan)
    }

    /// The plan as it would be now.
    fn fresh(&self, plan: &Plan) -> Result<Option<Arc<Plan>>, Refusal> {
        let now = self.definitions.load(Ordering::Acquire);
        if plan.prepared.is_none() || plan.definitions == now {
            return Ok(None);
        }
        let renewed = || plan.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(renewed) = renewed().as_ref().filter(|renewed| renewed.definitions == now) {
            return Ok(Some(renewed.clone()));
        }
        let statement =
            statements(&plan.text).next().ok_or_else(closed)?.map_err(|error| Refusal::of(error.into(), &plan.text))?;
        let fresh = if plan.many { self.plan_many(&statement)? } else { self.plan(&statement)? };
        if fresh.columns() != plan.columns() || fresh.parameters() != plan.parameters() {
            let hint = "prepare the statement again";
            return Err(
                refuse("0A000", "a definition has changed what this prepared statement takes or answers").hint(hint)
            );
        }
        let fresh = Arc::new(fresh);
        *renewed() = Some(fresh.clone());
        Ok(Some(fresh))
    }

    /// Runs a statement with values for `$1` and so on, and counts it.
    pub(crate) async fn run(&self, plan: &Plan, values: &[Value]) -> Result<SqlAnswer, Refusal> {
        let begun = Instant::now();
        let ran = self.run_plan(plan, values).await;
        let cause = |refusal: &Refusal| (plan.what.clone(), refusal.sqlstate.clone(), refusal.cause());
        self.watch.statement(plan.verb, begun.elapsed(), ran.as_ref().err().map(cause));
        ran
    }

    async fn run_plan(&self, plan: &Plan, values: &[Value]) -> Result<SqlAnswer, Refusal> {
        let fresh = self.fresh(plan)?;
        let plan = fresh.as_deref().unwrap_or(plan);
        let Some(prepared) = &plan.prepared else { return self.define(plan) };
        let refused = |error| Refusal::of(error, "");
        if plan.many {
            return self.run_many(&plan.what, prepared, values).await;
        }
        let block = prepared.block(values).map_err(refused)?;
        self.watch.calls(std::iter::once(block.as_slice()));
        let permit = self.queue.acquire().await.map_err(|_| closed())?;
        let (sender, answer) = oneshot::channel();
        match self.caller.run_then(block, move |ran| drop(sender.send(ran))) {
            Err(Error::Outdated) => {
                // Who waits with a place of the queue for another one may wait for ever.
                drop(permit);
                return self.run_again(plan, values).await;
            }
            handed_over => handed_over.map_err(refused)?,
        }
        let block = answer.await.map_err(|_| closed())?.map_err(refused)?;
        prepared.answer(&block).map_err(refused)
    }

    /// Runs a statement that an index overtook: when the index is there, it is understood once more.
    async fn run_again(&self, plan: &Plan, values: &[Value]) -> Result<SqlAnswer, Refusal> {
        tokio::task::block_in_place(|| drop(self.database()));
        match self.fresh(plan)? {
            Some(fresh) => Box::pin(self.run_plan(&fresh, values)).await,
            None => Err(Refusal::of(Error::Outdated, "")),
        }
    }

    /// Makes a call for each value of the columns, as one batch.
    async fn run_many(&self, what: &str, prepared: &Prepared, values: &[Value]) -> Result<SqlAnswer, Refusal> {
        let refused = |error| Refusal::of(error, "");
        let column = |value: &Value| match value {
            Value::Array(values) => Ok(values.clone()),
            other => Err(refuse("42804", format!("{other} is no array: CALL MANY takes an array for each parameter"))),
        };
        let columns = values.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let calls = columns.first().map_or(0, Vec::len);
        let bytes = prepared.block_bytes().saturating_mul(calls);
        if bytes > MOST_BYTES {
            let message = format!("{calls} calls take {bytes} bytes, and {MOST_BYTES} are possible at once");
            return Err(refuse("54000", message).hint("make several of it"));
        }
        let _room = self.room.acquire_many((bytes >> 10) as u32 + 1).await.map_err(|_| closed())?;
        let batch = tokio::task::block_in_place(|| prepared.batch(&columns)).map_err(refused)?;
        drop(columns);
        self.watch.calls((0..batch.len()).map(|at| batch.block(at).bytes()));
        let _permit = self.queue.acquire().await.map_err(|_| closed())?;
        let (sender, answer) = oneshot::channel();
        self.caller.submit_then(batch, move |ran| drop(sender.send(ran))).map_err(refused)?;
        let batch = answer.await.map_err(|_| closed())?.map_err(refused)?;
        let outcomes = tokio::task::block_in_place(|| prepared.batch_answer(&batch)).map_err(refused)?;
        self.count_aborts(what, &outcomes);
        let names = prepared.columns().into_iter().map(|field| field.name);
        let mut results: Vec<_> = names.zip(outcomes.results.into_iter().map(Value::Array)).collect();
        let sqlstate =
            |abort: Option<(String, String)>| Value::Text(abort.map(|(sqlstate, _)| sqlstate).unwrap_or_default());
        results.push((SQLSTATE.into(), Value::Array(outcomes.aborts.into_iter().map(sqlstate).collect())));
        Ok(SqlAnswer::Called(results))
    }

    /// Counts the calls of a batch that were taken back.
    fn count_aborts(&self, what: &str, outcomes: &Outcomes) {
        let mut causes = HashMap::new();
        for (sqlstate, message) in outcomes.aborts.iter().flatten() {
            *causes.entry((sqlstate, message)).or_insert(0) += 1;
        }
        for ((sqlstate, message), count) in causes {
            self.watch.failed((what.into(), sqlstate.clone(), message.clone()), count);
        }
    }

    /// A copy of the definitions.
    fn copied(&self) -> Result<Definitions, Refusal> {
        tokio::task::block_in_place(|| {
            let guard = self.database();
            let database = guard.as_ref().ok_or_else(closed)?;
            Ok((database.sql_catalogue().clone(), database.procedure_definitions()))
        })
    }

    /// Understands a query if it is one of the catalog; else nothing.
    pub(crate) async fn asked(&self, text: &str, who: &Who) -> Option<Result<Asked, Refusal>> {
        let version = self.definitions.load(Ordering::Acquire);
        self.catalog.understand(text, who, version, || self.copied()).await
    }

    /// Runs a query of the catalog.
    pub(crate) async fn ask(
        &self,
        asked: &Asked,
        values: &[Given],
        format: &Format,
        who: &Who,
    ) -> Result<Vec<DataRow>, Refusal> {
        let version = self.definitions.load(Ordering::Acquire);
        self.catalog.run(asked, values, format, who, version, || self.copied()).await
    }

    /// Understands a query that no key finds the rows of; nothing if the text is none.
    pub(crate) fn query(&self, text: &str) -> Option<Result<Query, Refusal>> {
        let catalogue = tokio::task::block_in_place(|| {
            let guard = self.database();
            guard.as_ref().map(|database| database.sql_catalogue().clone()).ok_or_else(closed)
        });
        match catalogue {
            Ok(catalogue) => query::understand(text, &catalogue),
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Runs such a query, and counts it.
    pub(crate) async fn run_query(
        &self,
        query: &Arc<Query>,
        values: &[Value],
        format: &Format,
    ) -> Result<Vec<DataRow>, Refusal> {
        let begun = Instant::now();
        let ran = self.queries.run(query, values, format).await;
        let cause = |refusal: &Refusal| (Verb::Select.name().into(), refusal.sqlstate.clone(), refusal.cause());
        self.watch.statement(Verb::Select, begun.elapsed(), ran.as_ref().err().map(cause));
        ran
    }

    /// Carries out a definition or EXPLAIN.
    fn define(&self, plan: &Plan) -> Result<SqlAnswer, Refusal> {
        let answers = tokio::task::block_in_place(|| {
            let mut guard = self.database();
            let answers = guard.as_mut().ok_or_else(closed)?.sql(&plan.text);
            if plan.verb != Verb::Explain {
                // Also of one that failed: an index may be there, and lack rows.
                self.definitions.fetch_add(1, Ordering::Release);
            }
            answers.map_err(|error| Refusal::of(error, &plan.text))
        })?;
        answers.into_iter().next().ok_or_else(|| refuse("42601", "there is no statement"))
    }
}

/// For handlers.
pub(crate) type Database = Arc<Shared>;
