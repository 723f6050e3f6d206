//! What a client's messages do. Answers are fed and go out together, when the client waits for them.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::BytesMut;
use futures::{Sink, SinkExt};
use lockwork_database::SqlAnswer;
use lockwork_database::sql::{Control, Kind, Statement, Value, statements};
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{QueryResponse, Response};
use pgwire::api::stmt::StoredStatement;
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{
    ClientInfo, ClientPortalStore, DEFAULT_NAME, METADATA_DATABASE, METADATA_USER, PgWireConnectionState, Type,
};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::data::{DataRow, NoData, ParameterDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended, Sync as PgSync,
    TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, ErrorResponse, TransactionStatus};
use pgwire::messages::simplequery::Query;

use tokio::sync::{Mutex, watch};

use crate::copy;
use crate::error::{Refusal, refuse};
use crate::known::{Who, known};
use crate::many;
use crate::shared::{Database, Plan};
use crate::stored::{Answered, Parser, Stored, Values, data_row, row_description};
use crate::transaction::{self, Open, Turn};
use crate::users::Right;
use crate::values::{encode, format_of, type_of};
use crate::verb::Verb;

/// The messages of one connection.
pub(crate) struct Session {
    pub(crate) database: Database,
    /// Whether the client waits for an answer.
    pub(crate) busy: watch::Sender<bool>,
    /// What the client may do, from its login on.
    right: OnceLock<Right>,
    /// What it loads.
    pub(crate) copying: copy::Slot,
    /// Its transaction of several statements.
    open: Mutex<Option<Open>>,
}

fn who<C: ClientInfo>(client: &C) -> Who {
    let word = |name: &str| client.metadata().get(name).cloned();
    let user = word(METADATA_USER).unwrap_or_default();
    Who { database: word(METADATA_DATABASE).unwrap_or_else(|| user.clone()), user }
}

impl Session {
    pub(crate) fn new(database: Database, busy: watch::Sender<bool>) -> Self {
        Self { database, busy, right: OnceLock::new(), copying: copy::Slot::default(), open: Mutex::default() }
    }

    /// Lets the client do this from now on.
    pub(crate) fn permit(&self, right: Right) {
        // A client logs in once.
        _ = self.right.set(right);
    }

    pub(crate) fn count_wrong_login(&self) {
        self.database.watch.wrong_logins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn allow(&self, kind: Kind) -> Result<(), Refusal> {
        Right::check(self.right.get().copied(), kind)
    }

    /// Understands a statement that the client may carry out.
    fn plan(&self, statement: &Statement<'_>) -> Result<Plan, Refusal> {
        let planned = self.allow(statement.kind()).and_then(|()| self.database.plan(statement));
        if let Err(refusal) = &planned {
            let verb = Verb::of(statement.kind()).name().into();
            self.database.watch.failed((verb, refusal.sqlstate.clone(), refusal.cause()), 1);
        }
        planned
    }

    /// Understands the only statement of a text; there is none in a comment.
    async fn understand(&self, text: &str, who: &Who) -> Result<Option<Stored>, Refusal> {
        let several = || refuse("42601", "several statements cannot be prepared as one");
        if let Some((known, rest)) = known(text, who) {
            let is_alone = rest.trim().is_empty();
            return if is_alone { Ok(Some(Stored::Known(Arc::new(known?)))) } else { Err(several()) };
        }
        if let Some(asked) = self.database.asked(text, who).await {
            return Ok(Some(Stored::Catalog(Arc::new(asked?))));
        }
        if copy::is_copy(text) {
            return Ok(Some(self.copy_of(text)?));
        }
        if let Some(call) = many::call_of(text) {
            let statement = many::statement(&call)?;
            self.allow(statement.kind())?;
            return Ok(Some(Stored::Plan(Arc::new(self.database.plan_many(&statement)?))));
        }
        let mut all = statements(text);
        let Some(first) = all.next() else { return Ok(None) };
        let statement = first.map_err(|error| Refusal::of(error.into(), text))?;
        if all.next().is_some() {
            return Err(several());
        }
        Ok(Some(self.stored(&statement)?))
    }

    fn stored(&self, statement: &Statement<'_>) -> Result<Stored, Refusal> {
        match statement.control() {
            Some(control) => Ok(Stored::Control(control.clone())),
            None => Ok(Stored::Plan(Arc::new(self.plan(statement)?))),
        }
    }

    /// Carries out BEGIN, COMMIT and what belongs to them.
    async fn control<C: ClientInfo>(&self, client: &mut C, control: &Control) -> Result<Answered, Refusal> {
        if matches!(control, Control::Begin { .. }) && !self.database.together {
            let message = "this engine runs no transactions of several statements";
            return Err(refuse("0A000", message).hint("make a procedure of them, or take an engine of the CPU"));
        }
        let status = client.transaction_status();
        let mut tag = transaction::tag(control);
        let now = match transaction::turn(&mut *self.open.lock().await, control, status)? {
            Turn::Commit(steps) => {
                client.set_transaction_status(TransactionStatus::Idle);
                self.database.commit(steps).await?;
                TransactionStatus::Idle
            }
            Turn::Now(now) => {
                if status == TransactionStatus::Error && *control == Control::Commit {
                    tag = "ROLLBACK";
                }
                now
            }
        };
        client.set_transaction_status(now);
        Ok(Answered { rows: Vec::new(), tag: tag.into() })
    }

    /// Carries out a statement in the state that the session is in.
    async fn carry_out<C: ClientInfo>(
        &self,
        client: &mut C,
        stored: &Stored,
        values: &Values,
        format: &Format,
    ) -> Result<Answered, Refusal> {
        if let Stored::Control(control) = stored {
            return self.control(client, control).await;
        }
        if client.transaction_status() == TransactionStatus::Error {
            return Err(transaction::failed());
        }
        self.answer(stored, values, format, &who(client)).await
    }

    async fn answer(&self, stored: &Stored, values: &Values, format: &Format, who: &Who) -> Result<Answered, Refusal> {
        let (plan, values) = match (stored, values) {
            (Stored::Known(known), _) => {
                let mut data = BytesMut::new();
                for (at, (name, ty, text)) in known.row.iter().enumerate() {
                    let wrong = || refuse("0A000", format!("column '{name}' is text only"));
                    let value = match *ty {
                        Type::INT4 => Value::Integer(text.parse().map_err(|_| wrong())?),
                        Type::BOOL => Value::Boolean(text == "t"),
                        _ => Value::Text(text.clone()),
                    };
                    encode(&value, ty, format_of(format, at), &mut data);
                }
                let row = (!known.row.is_empty()).then(|| DataRow::new(data, known.row.len() as i16));
                return Ok(Answered { rows: row.into_iter().collect(), tag: known.tag.clone() });
            }
            (Stored::Catalog(asked), Values::Catalog(values)) => {
                let rows = self.database.ask(asked, values, format, who).await?;
                let tag = Verb::Select.tag(rows.len() as i64);
                return Ok(Answered { rows, tag });
            }
            (Stored::Plan(plan), Values::Many(columns)) => {
                if let Some(open) = &*self.open.lock().await {
                    open.admit(plan)?;
                }
                let row = self.database.call_many(plan, columns, format).await?;
                return Ok(Answered { rows: vec![row], tag: plan.verb.tag(1) });
            }
            (Stored::Plan(plan), Values::Plan(values)) => (plan, values),
            _ => return Err(refuse("XX000", "the values are those of another statement")),
        };
        let types: Vec<Type> = plan.columns().iter().map(|field| type_of(field).0).collect();
        let mut open = self.open.lock().await;
        let (rows, count) = match self.database.run(plan, values, open.as_mut()).await? {
            SqlAnswer::Written(count) => (Vec::new(), count),
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
        Ok(Answered { rows, tag: plan.verb.tag(count) })
    }

    /// Carries out one statement of a simple query.
    async fn simple<C>(&self, client: &mut C, stored: &Stored) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        if !stored.parameters().is_empty() {
            let message = "there is no value for parameter $1";
            return Err(refuse("42P02", message).hint("prepare the statement, or write the value itself").into());
        }
        if let Stored::Copy(copy) = stored {
            return self.copy(client, copy, false).await;
        }
        let none = match stored {
            Stored::Catalog(_) => Values::Catalog(Vec::new()),
            _ => Values::Plan(Vec::new()),
        };
        let answered = self.carry_out(client, stored, &none, &Format::UnifiedText).await?;
        if let Some(description) = row_description(&stored.columns(), &Format::UnifiedText) {
            client.feed(Message::RowDescription(description)).await?;
        }
        send(client, answered).await
    }
}

/// Feeds rows and the tag.
async fn send<C>(client: &mut C, answered: Answered) -> PgWireResult<()>
where
    C: Sink<Message> + Unpin,
    PgWireError: From<<C as Sink<Message>>::Error>,
{
    for row in answered.rows {
        client.feed(Message::DataRow(row)).await?;
    }
    Ok(client.feed(Message::CommandComplete(CommandComplete::new(answered.tag))).await?)
}

#[async_trait]
impl SimpleQueryHandler for Session {
    async fn on_query<C>(&self, client: &mut C, query: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        self.busy.send_replace(true);
        let who = who(client);
        let text = query.query;
        let mut outcome = Ok(());
        let mut none = true;
        let mut rest = text.as_str();
        while let (Ok(()), Some((known, behind))) = (&outcome, known(rest, &who)) {
            none = false;
            rest = behind;
            outcome = match known {
                Ok(known) => self.simple(client, &Stored::Known(Arc::new(known))).await,
                Err(refusal) => Err(refusal.into()),
            };
        }
        // The catalog reads a statement as a whole; what ends with one is the usual case.
        let alone = outcome.is_ok().then(|| rest.trim_end().trim_end_matches(';'));
        let asked = match alone {
            Some(alone) => self.database.asked(alone, &who).await,
            None => None,
        };
        if outcome.is_err() {
            // The rest is not carried out.
        } else if let Some(asked) = asked {
            none = false;
            outcome = match asked {
                Ok(asked) => self.simple(client, &Stored::Catalog(Arc::new(asked))).await,
                Err(refusal) => Err(refusal.behind(text[..text.len() - rest.len()].chars().count()).into()),
            };
        } else if copy::is_copy(rest) {
            none = false;
            outcome = match self.copy_of(rest) {
                Ok(copy) => self.simple(client, &copy).await,
                Err(refusal) => Err(refusal.into()),
            };
            if self.copying.is_on() {
                return Ok(());
            }
        } else if many::call_of(rest).is_some() {
            none = false;
            let refusal = refuse("42P02", "CALL MANY takes arrays as values of its parameters");
            outcome = Err(refusal.hint("prepare it").into());
        } else {
            // All are read first, and each is understood when its turn comes, because it may need those before it.
            let before = text[..text.len() - rest.len()].chars().count();
            let read: Vec<_> = statements(rest).collect();
            for statement in read {
                none = false;
                let planned = statement
                    .map_err(|error| Refusal::of(error.into(), rest))
                    .and_then(|statement| self.stored(&statement));
                outcome = match planned {
                    Ok(stored) => self.simple(client, &stored).await,
                    Err(refusal) => Err(refusal.behind(before).into()),
                };
                if outcome.is_err() {
                    break;
                }
            }
        }
        match outcome {
            // What stood before an error has been done, so its answers go out before the error.
            Err(PgWireError::UserError(error)) => {
                client.feed(Message::ErrorResponse(ErrorResponse::from(*error))).await?;
                client.set_transaction_status(client.transaction_status().to_error_state());
            }
            Err(other) => return Err(other),
            Ok(()) if none => client.feed(Message::EmptyQueryResponse(EmptyQueryResponse::new())).await?,
            Ok(()) => {}
        }
        client.set_state(PgWireConnectionState::ReadyForQuery);
        let status = client.transaction_status();
        let sent = send_ready_for_query(client, status).await;
        self.busy.send_replace(false);
        sent
    }

    async fn do_query<C>(&self, _: &mut C, _: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        Err(refuse("XX000", "queries are answered one statement at a time").into())
    }
}

#[async_trait]
impl ExtendedQueryHandler for Session {
    type Statement = Stored;
    type QueryParser = Parser;

    fn query_parser(&self) -> Arc<Parser> {
        Arc::new(Parser)
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        self.busy.send_replace(true);
        let name = message.name.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        match self.understand(&message.query, &who(client)).await? {
            Some(stored) => {
                let types = message.type_oids.iter().map(|&oid| Type::from_oid(oid)).collect();
                client.portal_store().put_statement(Arc::new(StoredStatement::new(name, stored, types)));
            }
            None => client.portal_store().put_empty_statement(&name),
        }
        Ok(client.feed(Message::ParseComplete(ParseComplete::new())).await?)
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        self.busy.send_replace(true);
        let name = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
        let given = message.parameters.len();
        let wrong =
            |needed: usize| refuse("08P01", format!("the statement has {needed} parameters, and {given} are given"));
        match client.portal_store().get_statement(name) {
            Some(Entry::Value(statement)) => {
                let needed = statement.statement.parameters().len();
                let codes = message.parameter_format_codes.len();
                if given != needed || codes > 1 && codes != given {
                    return Err(wrong(needed).into());
                }
                let portal = Portal::try_new(&message, statement)?;
                client.portal_store().put_portal(Arc::new(portal));
            }
            Some(Entry::Empty) if given == 0 => client.portal_store().put_empty_portal(portal),
            Some(Entry::Empty) => return Err(wrong(0).into()),
            None => return Err(PgWireError::StatementNotFound(name.to_owned())),
        }
        Ok(client.feed(Message::BindComplete(BindComplete::new())).await?)
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let (stored, format) = match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                let (stored, declared) = match client.portal_store().get_statement(name) {
                    Some(Entry::Value(statement)) => {
                        (Some(statement.statement.clone()), statement.parameter_types.clone())
                    }
                    Some(Entry::Empty) => (None, Vec::new()),
                    None => return Err(PgWireError::StatementNotFound(name.to_owned())),
                };
                let own = stored.as_ref().map(Stored::parameters).unwrap_or_default();
                let oids = own.iter().enumerate().map(|(at, own)| match declared.get(at).cloned().flatten() {
                    Some(ty) if ty != Type::UNKNOWN => ty.oid(),
                    _ => own.oid(),
                });
                let description = ParameterDescription::new(oids.collect());
                client.feed(Message::ParameterDescription(description)).await?;
                (stored, Format::UnifiedText)
            }
            TARGET_TYPE_BYTE_PORTAL => match client.portal_store().get_portal(name) {
                Some(Entry::Value(portal)) => {
                    (Some(portal.statement.statement.clone()), portal.result_column_format.clone())
                }
                Some(Entry::Empty) => (None, Format::UnifiedText),
                None => return Err(PgWireError::PortalNotFound(name.to_owned())),
            },
            other => return Err(PgWireError::InvalidTargetType(other)),
        };
        let columns = stored.map(|stored| stored.columns()).unwrap_or_default();
        let described = match row_description(&columns, &format) {
            Some(description) => Message::RowDescription(description),
            None => Message::NoData(NoData::new()),
        };
        Ok(client.feed(described).await?)
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        use pgwire::api::portal::PortalExecutionState as State;
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = match client.portal_store().get_portal(name) {
            Some(Entry::Value(portal)) => portal,
            Some(Entry::Empty) => {
                return Ok(client.feed(Message::EmptyQueryResponse(EmptyQueryResponse::new())).await?);
            }
            None => return Err(PgWireError::PortalNotFound(name.to_owned())),
        };
        if let Stored::Copy(copy) = &portal.statement.statement {
            self.busy.send_replace(true);
            return self.copy(client, copy, true).await;
        }
        let most = usize::try_from(message.max_rows).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
        let (stored, state) = (&portal.statement.statement, portal.state());
        let mut state = state.lock().await;
        let mut tag = None;
        if matches!(*state, State::Initial) {
            self.busy.send_replace(true);
            let values = stored.values(&portal)?;
            let answered = self.carry_out(client, stored, &values, &portal.result_column_format).await?;
            let rows = futures::stream::iter(answered.rows.into_iter().map(Ok));
            *state = State::Suspended(QueryResponse::new(Arc::new(Vec::new()), rows));
            tag = Some(answered.tag);
        } else if stored.columns().is_empty() {
            // What has been done is not done again.
            return Err(refuse("55000", "this portal has been executed").hint("bind the statement again").into());
        }
        let mut count = 0;
        if let State::Suspended(response) = &mut *state {
            while count < most {
                let Some(row) = futures::StreamExt::next(response.data_rows()).await else {
                    *state = State::Finished;
                    break;
                };
                client.feed(Message::DataRow(row?)).await?;
                count += 1;
            }
        }
        let last = match *state {
            State::Finished => {
                let tag = tag.unwrap_or_else(|| Verb::Select.tag(count as i64));
                Message::CommandComplete(CommandComplete::new(tag))
            }
            _ => Message::PortalSuspended(PortalSuspended::new()),
        };
        Ok(client.feed(last).await?)
    }

    async fn on_sync<C>(&self, client: &mut C, _: PgSync) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let status = client.transaction_status();
        if status == TransactionStatus::Idle {
            // A transaction ends here, and portals with it.
            client.portal_store().clear_portals();
        }
        let sent = send_ready_for_query(client, status).await;
        self.busy.send_replace(false);
        sent
    }

    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => client.portal_store().rm_statement(name),
            TARGET_TYPE_BYTE_PORTAL => client.portal_store().rm_portal(name),
            other => return Err(PgWireError::InvalidTargetType(other)),
        }
        Ok(client.feed(Message::CloseComplete(CloseComplete::new())).await?)
    }

    async fn do_query<C>(&self, _: &mut C, _: &Portal<Stored>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Stored>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        Err(refuse("XX000", "portals are answered in on_execute").into())
    }
}

/// An error without a place for what never should be.
pub(crate) fn fatal(sqlstate: &str, message: &str) -> ErrorInfo {
    ErrorInfo::new("FATAL".into(), sqlstate.into(), message.into())
}
