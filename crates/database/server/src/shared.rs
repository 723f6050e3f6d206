//! The database, as all connections have it.
//!
//! Definitions and the understanding of statements go through one lock; calls do not: they go to the database's own
//! queue, where those of all connections share batches and writes of the log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lockwork::sequencer::Transaction;
use lockwork::sql::{Field, Kind, SqlType, Statement, Value, statements};
use lockwork::{Caller, Error, Lockwork, Prepared, ProcedureDefinition, SqlAnswer, own_request};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use tokio::sync::{Semaphore, oneshot};

use crate::batch_call::{MAX_BYTES_AT_ONCE, MAX_CALLS, PIECES, SQLSTATE};
use crate::cancel::{Cancel, Cancels};
use crate::catalog::{Asked, Asker, Catalog, Definitions, Given};
use crate::copy;
use crate::error::{Refusal, refuse};
use crate::limits::{self, Answer, Room};
use crate::metrics::Watch;
use crate::query::{self, Queries, Query};
use crate::reads::Reader;
use crate::transaction::{self, Open};
use crate::values::type_of;
use crate::verb::Verb;

/// Bytes of answers that wait in portals, of all connections.
pub(crate) const MAX_WAITING: usize = 256 << 20;

/// What users without the right `define` see instead of a procedure's source.
const HIDDEN: &str = "-- the source of a procedure is shown to users that may define";

/// What is open to connections.
pub(crate) struct Shared {
    /// `None` when it has been closed.
    database: Mutex<Option<Lockwork>>,
    pub(crate) caller: Caller,
    /// Counts definitions: what was understood before one is looked at again.
    definitions: AtomicU64,
    /// Calls that may wait for the database.
    pub(crate) queue: Semaphore,
    /// KiB of the CALL MANYs that are under way.
    pub(crate) room: Semaphore,
    /// Their pieces that are on their way.
    pub(crate) pieces: Semaphore,
    /// KiB of answers that wait in portals to be fetched.
    pub(crate) waiting: Arc<Semaphore>,
    /// COPYs to clients.
    pub(crate) exports: Semaphore,
    pub(crate) watch: Arc<Watch>,
    pub(crate) cancels: Arc<Cancels>,
    /// For clients that may define, and for those that may not: these see no source of procedures.
    catalogs: [Catalog; 2],
    /// The memory of all queries.
    pub(crate) query_room: Arc<Room>,
    /// Whether the engine runs transactions of several statements.
    pub(crate) runs_compounds: bool,
    queries: Queries,
    /// Whether it takes writes; a node of a cluster does not before it leads.
    pub(crate) leads: AtomicBool,
    /// Definitions of the log that a node which follows has learnt of.
    pub(crate) learnt: AtomicU64,
}

/// A statement that was understood.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    text: String,
    /// Who has it prepared; empty where nobody logs in.
    user: Arc<str>,
    pub(crate) verb: Verb,
    kind: Kind,
    /// The procedure of a CALL, the kind of statement of others.
    what: String,
    /// The table of a SELECT that locks nothing.
    reads: Option<String>,
    /// For all but definitions and EXPLAIN.
    pub(crate) prepared: Option<Prepared>,
    /// Whether it is CALL MANY: every parameter is a column of values, and every result one.
    many: bool,
    definitions: u64,
    /// The plan that was compiled after a change of the schema, to be used instead.
    renewed: Arc<Mutex<Option<Arc<Plan>>>>,
    /// The same statement compiled for values with more decimals, by these ([`Prepared::scales`]).
    scaled: Arc<Mutex<BTreeMap<Vec<u8>, Arc<Plan>>>>,
}

/// Combinations of decimals that a statement is kept compiled for.
const MAX_SCALED: usize = 64;

impl Plan {
    pub(crate) fn parameters(&self) -> Vec<Field> {
        let parameters = self.prepared.as_ref().map_or(&[][..], Prepared::parameters).iter();
        parameters
            .map(|field| Field { count: if self.many { Some(MAX_CALLS) } else { field.count }, ..field.clone() })
            .collect()
    }

    /// The types of `$1` and so on.
    pub(crate) fn parameter_types(&self) -> Vec<Type> {
        let request = self.prepared.as_ref().and_then(Prepared::request_parameter);
        let one = |(at, field): (usize, &Field)| if Some(at) == request { Type::UUID } else { type_of(field).0 };
        self.parameters().iter().enumerate().map(one).collect()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The procedure of a CALL, the kind of statement of others.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The table of a SELECT that locks nothing.
    pub(crate) fn reads(&self) -> Option<&str> {
        self.reads.as_deref()
    }

    /// As a CALL MANY.
    pub(crate) fn into_many(self) -> Self {
        Self { many: true, ..self }
    }

    /// Whether it is a CALL MANY.
    pub(crate) fn is_many(&self) -> bool {
        self.many
    }

    /// Whether it is a CREATE.
    pub(crate) fn is_definition(&self) -> bool {
        self.prepared.is_none() && self.verb != Verb::Explain
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.text.len() + self.prepared.as_ref().map_or(0, Prepared::memory_bytes)
    }

    /// Whether it may write rows.
    pub(crate) fn writes(&self) -> bool {
        self.prepared.as_ref().is_some_and(Prepared::writes)
    }

    /// The columns that it answers; none for what only has a tag.
    pub(crate) fn columns(&self) -> Vec<Field> {
        match &self.prepared {
            Some(prepared) if self.many => {
                let sqlstate = Field { name: SQLSTATE.into(), sql_type: Some(SqlType::Text(5)), count: None };
                let columns = prepared.columns().into_iter().chain([sqlstate]);
                columns.map(|field| Field { count: Some(MAX_CALLS), ..field }).collect()
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

pub(crate) fn closed() -> Refusal {
    refuse("57P01", "the server is ending")
}

/// What was handed over to the log has no answer. A client may repeat what 57P01 refuses, because it has not happened.
pub(crate) fn unanswered() -> Refusal {
    refuse("08007", "the server ended before it knew what became of this")
}

impl Shared {
    /// # Errors
    /// The database is not in a folder.
    pub(crate) fn new(database: Lockwork, queue: usize, watch: Arc<Watch>) -> Result<Self, Error> {
        let caller = database.caller();
        let runs_compounds = database.read(|engine| engine.runs_compounds())?;
        let queries = Queries::new(caller.clone());
        // A node leads when it is told to: what the log has may have to be learnt before.
        let leads = AtomicBool::new(caller.role().is_none());
        Ok(Self {
            leads,
            learnt: AtomicU64::new(0),
            runs_compounds,
            database: Mutex::new(Some(database)),
            caller,
            definitions: AtomicU64::new(0),
            queue: Semaphore::new(queue),
            room: Semaphore::new(MAX_BYTES_AT_ONCE >> 10),
            pieces: Semaphore::new(PIECES),
            waiting: Arc::new(Semaphore::new(MAX_WAITING >> 10)),
            exports: Semaphore::new(copy::AT_ONCE),
            watch,
            cancels: Arc::default(),
            catalogs: Default::default(),
            query_room: Room::new(limits::ALL),
            queries,
        })
    }

    /// To be waited for by a thread that may wait: in `block_in_place`.
    pub(crate) fn database(&self) -> MutexGuard<'_, Option<Lockwork>> {
        // The library leaves nothing in half when it panics, and it never should.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the database, for good; what is under way has been answered.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let database = self.database().take();
        database.map_or(Ok(()), Lockwork::close)
    }

    /// Understands a statement of the text `source`. It may wait for the disk, when the statement is of a new shape.
    pub(crate) fn plan(&self, statement: &Statement<'_>, user: &str) -> Result<Plan, Refusal> {
        self.plan_for(statement, user, &[])
    }

    /// As [`Self::plan`], for values with so many decimals.
    fn plan_for(&self, statement: &Statement<'_>, user: &str, scales: &[u8]) -> Result<Plan, Refusal> {
        let definitions = self.definitions.load(Ordering::Acquire);
        let prepared = match statement.kind() {
            kind if kind == Kind::Call || kind.is_single() => Some(tokio::task::block_in_place(|| {
                let mut guard = self.database();
                let database = guard.as_mut().ok_or_else(closed)?;
                if self.follows() {
                    self.admit_kind(statement.kind())?;
                    let prepared = database.prepare_read(statement, scales);
                    let prepared = prepared.map_err(|error| self.of_read(error, statement.source()))?;
                    return match prepared.has_request() {
                        true => Err(self.writes_elsewhere("a CALL with the id of a request")),
                        false => Ok(prepared),
                    };
                }
                database.prepare_as(user, statement, scales).map_err(|error| Refusal::of(error, statement.source()))
            })?),
            _ => None,
        };
        let (text, verb) = (statement.text().to_string(), Verb::of(statement.kind()));
        let called = statement.name().filter(|_| verb == Verb::Call);
        let what = called.unwrap_or(verb.name()).to_string();
        let (kind, reads) = (statement.kind(), statement.reads().map(str::to_string));
        let (renewed, scaled) = (Arc::default(), Arc::default());
        let user = user.into();
        Ok(Plan { text, user, verb, kind, what, reads, prepared, many: false, definitions, renewed, scaled })
    }

    /// The plan as it would be now, compiled for these values.
    pub(crate) fn current(&self, plan: &Plan, values: &[Value]) -> Result<Option<Arc<Plan>>, Refusal> {
        let fresh = self.fresh(plan)?;
        let plan = fresh.as_deref().unwrap_or(plan);
        let Some(scales) = plan.prepared.as_ref().and_then(|prepared| prepared.scales(values)) else {
            return Ok(fresh);
        };
        let scaled = || plan.scaled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = scaled().get(&scales).filter(|known| self.is_current(known)) {
            return Ok(Some(known.clone()));
        }
        let statement =
            statements(&plan.text).next().ok_or_else(closed)?.map_err(|error| Refusal::of(error.into(), &plan.text))?;
        let made = Arc::new(self.plan_for(&statement, &plan.user, &scales)?);
        let mut scaled = scaled();
        if scaled.len() >= MAX_SCALED {
            scaled.clear();
        }
        scaled.insert(scales, made.clone());
        Ok(Some(made))
    }

    /// Whether another statement has not taken its place among those that are kept compiled.
    fn is_current(&self, plan: &Plan) -> bool {
        plan.prepared.as_ref().is_none_or(|prepared| self.caller.is_current(prepared))
    }

    /// The plan as it would be now.
    pub(crate) fn fresh(&self, plan: &Plan) -> Result<Option<Arc<Plan>>, Refusal> {
        let now = self.definitions.load(Ordering::Acquire);
        if plan.prepared.is_none() || (plan.definitions == now && self.is_current(plan)) {
            return Ok(None);
        }
        let renewed = || plan.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(renewed) =
            renewed().as_ref().filter(|renewed| renewed.definitions == now && self.is_current(renewed))
        {
            return Ok(Some(renewed.clone()));
        }
        let statement =
            statements(&plan.text).next().ok_or_else(closed)?.map_err(|error| Refusal::of(error.into(), &plan.text))?;
        let fresh = match plan.many {
            true => self.plan_many(&statement, &plan.user)?,
            false => self.plan(&statement, &plan.user)?,
        };
        if fresh.columns() != plan.columns() {
            let hint = "a definition has changed its columns; prepare the statement again";
            return Err(refuse("0A000", "cached plan must not change result type").hint(hint));
        }
        // Columns of a CALL MANY are numbers of the types that its parameters had; any other value has its own type.
        if plan.many && fresh.parameters() != plan.parameters() {
            let message = "a definition has changed the parameters of this prepared CALL MANY";
            return Err(refuse("0A000", message).hint("prepare the statement again"));
        }
        let fresh = Arc::new(fresh);
        *renewed() = Some(fresh.clone());
        Ok(Some(fresh))
    }

    /// Runs a statement with values for `$1` and so on, alone or in a transaction, and counts it. The request id of a
    /// call is one of the owner's.
    pub(crate) async fn run(
        &self,
        plan: &Plan,
        values: &[Value],
        owner: Option<&str>,
        open: Option<&mut Open>,
        reader: &Reader,
        cancel: &Cancel,
    ) -> Result<SqlAnswer, Refusal> {
        let begun = Instant::now();
        let ran = match open {
            // Of a node that led since it was understood, it is understood anew.
            _ if self.follows() && plan.prepared.as_ref().is_some_and(Prepared::is_beside_the_log) => {
                self.run_fresh_read(plan, values, reader, cancel).await
            }
            None => self.run_plan(plan, values, owner, cancel).await,
            Some(open) => self.run_in(open, plan, values, cancel).await,
        };
        self.count(plan, begun, ran.as_ref().err());
        ran
    }

    async fn run_fresh_read(
        &self,
        plan: &Plan,
        values: &[Value],
        reader: &Reader,
        cancel: &Cancel,
    ) -> Result<SqlAnswer, Refusal> {
        let fresh = self.current(plan, values)?;
        self.run_read(fresh.as_deref().unwrap_or(plan), values, reader, cancel).await
    }

    /// What was understood before is looked at again.
    pub(crate) fn define_anew(&self) {
        self.definitions.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn count(&self, plan: &Plan, begun: Instant, refusal: Option<&Refusal>) {
        let cause = |refusal: &Refusal| (plan.what.clone(), refusal.sqlstate.clone(), refusal.cause());
        self.watch.statement(plan.verb, begun.elapsed(), refusal.map(cause));
    }

    async fn run_plan(
        &self,
        plan: &Plan,
        values: &[Value],
        owner: Option<&str>,
        cancel: &Cancel,
    ) -> Result<SqlAnswer, Refusal> {
        let current = self.current(plan, values)?;
        let prepared = match current.as_deref().unwrap_or(plan) {
            Plan { prepared: Some(prepared), .. } => prepared,
            definition => return self.define(definition),
        };
        let block = prepared.block(values).map_err(|error| Refusal::of(error, ""))?;
        let Some(mut block) = block else { return Ok(prepared.nothing()) };
        let request = owner.and_then(|owner| own_request(&mut block, owner));
        let refused = |error: Error| match request {
            Some(request) => Refusal::of(error.of_request(request), ""),
            None => Refusal::of(error, ""),
        };
        self.watch.calls(std::iter::once(block.as_slice()));
        let permit = cancel.unless(self.queue.acquire()).await?.map_err(|_| closed())?;
        let (sender, answer) = oneshot::channel();
        match self.caller.run_then(block, move |ran| drop(sender.send(ran))) {
            Err(Error::Outdated) => {
                // Who waits with a place of the queue for another one may wait for ever.
                drop(permit);
                return self.run_again(plan, values, owner, cancel).await;
            }
            handed_over => handed_over.map_err(refused)?,
        }
        let block = answer.await.map_err(|_| unanswered())?.map_err(refused)?;
        prepared.answer(&block).map_err(refused)
    }

    /// Runs a statement as a part of a transaction.
    async fn run_in(
        &self,
        open: &mut Open,
        plan: &Plan,
        values: &[Value],
        cancel: &Cancel,
    ) -> Result<SqlAnswer, Refusal> {
        open.admit(plan)?;
        let fresh = self.current(plan, values)?;
        let plan = fresh.as_deref().unwrap_or(plan);
        let Some(prepared) = &plan.prepared else { return self.define(plan) };
        let refused = |error| Refusal::of(error, "");
        let Some(block) = prepared.block(values).map_err(refused)? else { return Ok(prepared.nothing()) };
        self.watch.calls(std::iter::once(block.as_slice()));
        let _permit = cancel.unless(self.queue.acquire()).await?.map_err(|_| closed())?;
        let steps = open.steps.take().ok_or_else(transaction::ended)?;
        let (sender, answer) = oneshot::channel();
        let handed_over = self.caller.step_then(steps, block, move |ran| drop(sender.send(ran)));
        handed_over.map_err(transaction::error)?;
        let (steps, block) = answer.await.map_err(|_| unanswered())?.map_err(transaction::error)?;
        open.steps = Some(steps);
        prepared.answer(&block).map_err(refused)
    }

    /// Makes a transaction durable, and counts it.
    pub(crate) async fn commit(&self, steps: Transaction, cancel: &Cancel) -> Result<(), Refusal> {
        let begun = Instant::now();
        let committed = self.try_commit(steps, cancel).await;
        let cause = |refusal: &Refusal| (Verb::Commit.name().into(), refusal.sqlstate.clone(), refusal.cause());
        self.watch.statement(Verb::Commit, begun.elapsed(), committed.as_ref().err().map(cause));
        committed
    }

    async fn try_commit(&self, steps: Transaction, cancel: &Cancel) -> Result<(), Refusal> {
        let _permit = cancel.unless(self.queue.acquire()).await?.map_err(|_| closed())?;
        let (sender, answer) = oneshot::channel();
        self.caller.commit_then(steps, move |done| drop(sender.send(done))).map_err(transaction::error)?;
        answer.await.map_err(|_| unanswered())?.map_err(transaction::error)
    }

    /// Runs a statement that an index or another statement overtook: it is understood once more.
    async fn run_again(
        &self,
        plan: &Plan,
        values: &[Value],
        owner: Option<&str>,
        cancel: &Cancel,
    ) -> Result<SqlAnswer, Refusal> {
        tokio::task::block_in_place(|| drop(self.database()));
        match self.fresh(plan)? {
            Some(fresh) => Box::pin(self.run_plan(&fresh, values, owner, cancel)).await,
            None => Err(Refusal::of(Error::Outdated, "")),
        }
    }

    /// A copy of the definitions, with or without the source of procedures.
    fn copied(&self, has_sources: bool) -> Result<Definitions, Refusal> {
        let hide = |mut definition: ProcedureDefinition| {
            // One in assembly has none.
            if !has_sources && !definition.text.is_empty() {
                definition.text = HIDDEN.into();
            }
            definition
        };
        tokio::task::block_in_place(|| {
            let guard = self.database();
            let database = guard.as_ref().ok_or_else(closed)?;
            let procedures = database.procedure_definitions().into_iter().map(hide).collect();
            Ok((database.sql_catalogue().clone(), procedures))
        })
    }

    fn catalog(&self, may_define: bool) -> &Catalog {
        &self.catalogs[usize::from(!may_define)]
    }

    /// Understands a query if it is one of the catalog, of a client that may define or not; else nothing.
    pub(crate) async fn asked(&self, text: &str, asker: Asker<'_>, may_define: bool) -> Option<Result<Asked, Refusal>> {
        let version = self.definitions.load(Ordering::Acquire);
        self.catalog(may_define).understand(text, asker, version, || self.copied(may_define)).await
    }

    /// Runs a query of the catalog, of a client that may define or not.
    pub(crate) async fn ask(
        &self,
        asked: &Arc<Asked>,
        values: Vec<Given>,
        format: &Format,
        asker: Asker<'_>,
        may_define: bool,
    ) -> Result<Answer, Refusal> {
        let version = self.definitions.load(Ordering::Acquire);
        self.catalog(may_define).run(asked, values, format, asker, version, || self.copied(may_define)).await
    }

    /// Understands a query that no key finds the rows of; nothing if the text is none.
    pub(crate) fn query(&self, text: &str, asker: query::Asker<'_>) -> Option<Result<Query, Refusal>> {
        let catalogue = tokio::task::block_in_place(|| {
            let guard = self.database();
            guard.as_ref().map(|database| database.sql_catalogue().clone()).ok_or_else(closed)
        });
        match catalogue {
            Ok(catalogue) => query::understand(text, &catalogue, asker),
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Runs such a query, and counts it.
    pub(crate) async fn run_query(
        &self,
        query: &Arc<Query>,
        values: &[Value],
        format: &Format,
        open: Option<&mut Open>,
        reader: &Reader,
        asker: Asker<'_>,
    ) -> Result<Answer, Refusal> {
        let begun = Instant::now();
        // At a node that follows each statement sees a record of its own.
        let steps = open.filter(|_| !self.follows()).map(|open| &mut open.steps);
        let ran = self.queries.run(query, values, format, steps, asker).await.map(|(record, rows)| {
            record.into_iter().for_each(|record| reader.saw(record));
            rows
        });
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
                self.define_anew();
            }
            answers.map_err(|error| Refusal::of(error, &plan.text))
        })?;
        answers.into_iter().next().ok_or_else(|| refuse("42601", "there is no statement"))
    }
}

/// For handlers.
pub(crate) type Database = Arc<Shared>;
