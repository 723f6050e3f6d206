//! Extended queries: statements are prepared, bound to values, described and executed, each by a message of its own.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use lockwork::Prepared;
use lockwork::sql::Control;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, send_ready_for_query};
use pgwire::api::results::{FieldInfo, QueryResponse, Response};
use pgwire::api::stmt::{QueryParser, StoredStatement};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::data::{DataRow, NoData, ParameterDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Flush, Parse, ParseComplete, PortalSuspended,
    Sync as PgSync, TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, TransactionStatus};

use tokio::sync::OwnedSemaphorePermit;

use super::{End, Session, who};
use crate::error::{Refusal, refuse, response};
use crate::prepared::{Answered, Stored, Values, row_description};
use crate::query;
use crate::session_settings::SessionNames;
use crate::shared::MAX_WAITING;
use crate::transaction;
use crate::values::format_of;
use crate::verb::Verb;

/// What pgwire asks about statements; they are understood in [`Session::on_parse`].
pub(crate) struct Parser;

#[async_trait]
impl QueryParser for Parser {
    type Statement = Stored;

    async fn parse_sql<C>(&self, _: &C, _: &str, _: &[Option<Type>]) -> PgWireResult<Option<Stored>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        Err(refuse("XX000", "statements are understood elsewhere").into())
    }

    fn get_parameter_types(&self, stored: &Stored) -> PgWireResult<Vec<Type>> {
        Ok(stored.parameters())
    }

    fn get_result_schema(&self, stored: &Stored, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        let format = format.unwrap_or(&Format::UnifiedText);
        let columns = stored.columns().into_iter().enumerate();
        Ok(columns.map(|(at, (name, ty, _))| FieldInfo::new(name, None, None, ty, format_of(format, at))).collect())
    }
}

impl Session {
    /// The statement as it is understood now, if a definition has come since then.
    fn renewed(&self, stored: &Stored) -> Result<Option<Stored>, Refusal> {
        let Stored::Plan(plan) = stored else { return Ok(None) };
        Ok(self.database.fresh(plan)?.map(Stored::Plan))
    }

    /// A SELECT by lists of keys as a query of whole tables, if its procedures have no room for so many keys.
    fn as_query(&self, stored: &Stored, values: &Values, who: &SessionNames) -> Result<Option<Stored>, Refusal> {
        let (Stored::Plan(plan), Values::Plan(values)) = (stored, values) else { return Ok(None) };
        let is_too_long = |prepared: &Prepared| plan.verb == Verb::Select && !prepared.has_room(values);
        if !plan.prepared.as_ref().is_some_and(is_too_long) {
            return Ok(None);
        }
        let declared: Vec<_> = plan.parameter_types().into_iter().map(Some).collect();
        let asker = query::Asker { who, declared: &declared, scales: &[] };
        let other = || {
            let message = "the arrays have more elements than a SELECT by key takes, and as a query it has other types";
            refuse("22003", message).hint("pass fewer keys at a time")
        };
        let query = Stored::Query(Arc::new(self.database.query(plan.text(), asker).ok_or_else(other)??));
        let types = |stored: &Stored| stored.columns().into_iter().map(|(_, ty, _)| ty).collect::<Vec<_>>();
        if types(&query) != types(stored) || query.parameters() != stored.parameters() {
            return Err(other());
        }
        Ok(Some(query))
    }

    /// Room for an answer of which rows will wait in their portal.
    fn room_for(&self, rows: &[DataRow]) -> Result<OwnedSemaphorePermit, Refusal> {
        let bytes: usize = rows.iter().map(|row| row.data.len() + size_of::<DataRow>()).sum();
        let room = self.database.waiting.clone().try_acquire_many_owned((bytes >> 10) as u32 + 1);
        room.map_err(|_| {
            let most = MAX_WAITING >> 20;
            refuse(
                "53200",
                format!("answers that wait in portals of all connections fill the {most} MiB that they have"),
            )
            .hint("fetch or close them, or fetch all rows at once")
        })
    }
}

/// Whether formats of so many values are none, one for all, or one for each, and formats that there are.
fn check_formats(codes: &[i16], values: usize, of: &str) -> Result<(), Refusal> {
    if codes.len() > 1 && codes.len() != values {
        let message = format!("{} formats of {of} are given, and there are {values} {of}", codes.len());
        return Err(refuse("08P01", message).hint("give none, one for all, or one for each"));
    }
    match codes.iter().find(|code| values > 0 && !matches!(code, 0 | 1)) {
        Some(code) => Err(refuse("22023", format!("there is no format {code}")).hint("0 is text, 1 is binary")),
        None => Ok(()),
    }
}

fn no_portal(name: &str) -> PgWireError {
    refuse("34000", format!("there is no portal '{name}'")).hint("portals end with their transaction").into()
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
        let types: Vec<_> = message.type_oids.iter().map(|&oid| Type::from_oid(oid)).collect();
        let understood = self.understand(&message.query, &types, &who(client)).await?;
        let name = message.name.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        if name != DEFAULT_NAME && !self.names().there.insert(name.clone()) {
            let message = format!("there is a prepared statement called '{name}' already");
            return Err(refuse("42P05", message).hint("close it first, or take another name").into());
        }
        match understood {
            Some(stored) => {
                client.portal_store().put_statement(Arc::new(StoredStatement::new(name, stored, types)));
            }
            None => client.portal_store().put_empty_statement(&name),
        }
        self.reply(client, Message::ParseComplete(ParseComplete::new())).await
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
        let statement = client.portal_store().get_statement(name);
        if portal != DEFAULT_NAME && client.portal_store().get_portal(portal).is_some() {
            let message = format!("there is a portal called '{portal}' already");
            return Err(refuse("42P03", message).hint("close it first, or take another name").into());
        }
        match statement {
            Some(Entry::Value(statement)) => {
                let needed = statement.statement.parameters().len();
                if given != needed {
                    return Err(wrong(needed).into());
                }
                check_formats(&message.parameter_format_codes, given, "parameters")?;
                // Formats of what answers no columns say nothing.
                let columns = statement.statement.columns().len();
                if columns > 0 {
                    check_formats(&message.result_column_format_codes, columns, "columns")?;
                }
                let portal = Portal::try_new(&message, statement)?;
                client.portal_store().put_portal(Arc::new(portal));
            }
            Some(Entry::Empty) if given == 0 => client.portal_store().put_empty_portal(portal),
            Some(Entry::Empty) => return Err(wrong(0).into()),
            None => return Err(PgWireError::StatementNotFound(name.to_owned())),
        }
        if let Some(open) = &mut *self.open.lock().await {
            open.open_portal(portal);
        }
        self.reply(client, Message::BindComplete(BindComplete::new())).await
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
                self.reply(client, Message::ParameterDescription(description)).await?;
                (stored, Format::UnifiedText)
            }
            TARGET_TYPE_BYTE_PORTAL => match client.portal_store().get_portal(name) {
                Some(Entry::Value(portal)) => {
                    (Some(portal.statement.statement.clone()), portal.result_column_format.clone())
                }
                Some(Entry::Empty) => (None, Format::UnifiedText),
                None => return Err(no_portal(name)),
            },
            other => return Err(PgWireError::InvalidTargetType(other)),
        };
        let columns = stored.map(|stored| stored.columns()).unwrap_or_default();
        let described = match row_description(&columns, &format) {
            Some(description) => Message::RowDescription(description),
            None => Message::NoData(NoData::new()),
        };
        self.reply(client, described).await
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
                return self.reply(client, Message::EmptyQueryResponse(EmptyQueryResponse::new())).await;
            }
            None => return Err(no_portal(name)),
        };
        if let Stored::Copy(copy) = &portal.statement.statement {
            self.busy.send_replace(true);
            self.settle(client, End::Flush).await?;
            return self.copy(client, copy, true).await;
        }
        let most = usize::try_from(message.max_rows).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
        let (stored, state) = (&portal.statement.statement, portal.state());
        let mut state = state.lock().await;
        let mut tag = None;
        if matches!(*state, State::Initial) {
            self.busy.send_replace(true);
            let renewed = self.renewed(stored)?;
            let stored = renewed.as_ref().unwrap_or(stored);
            let values = stored.values(&portal)?;
            let query = self.as_query(stored, &values, &who(client))?;
            let stored = query.as_ref().unwrap_or(stored);
            if let (Stored::Plan(plan), usize::MAX, true) = (stored, most, self.can_wait(stored)) {
                *state = State::Finished;
                return self.wait(client, plan, values, &portal.result_column_format).await;
            }
            if matches!(stored, Stored::Control(Control::Commit)) {
                self.settle(client, End::Commit).await?;
            } else {
                self.settle(client, End::Flush).await?;
            }
            if matches!(stored, Stored::Query(_)) || self.can_wait(stored) {
                self.begin_implicit().await;
            }
            let answered = self.carry_out(client, stored, &values, &portal.result_column_format).await?;
            // What waits to be fetched has its room until it is fetched, or its portal ends.
            let Answered { rows, tag: done, held } = answered;
            let is_small = rows.len() > most && held.is_none();
            let room = if is_small { Some(self.room_for(&rows)?) } else { None };
            let rows = futures::stream::iter(rows.into_iter().map(move |row| {
                let _held = (&room, &held);
                Ok(row)
            }));
            *state = State::Suspended(QueryResponse::new(Arc::new(Vec::new()), rows));
            tag = Some(done);
        } else if client.transaction_status() == TransactionStatus::Error {
            return Err(transaction::failed().into());
        } else if stored.columns().is_empty() {
            // What has been done is not done again.
            return Err(refuse("55000", "this portal has been executed").hint("bind the statement again").into());
        }
        self.settle(client, End::Flush).await?;
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
        // What comes up here ends at this Sync, and is no error of what follows it.
        let settled = self.settle(client, End::Sync).await;
        let has_committed = settled.is_ok();
        match settled {
            Err(PgWireError::UserError(error)) => {
                self.abandon().await;
                client.feed(Message::ErrorResponse(response(*error))).await?;
                client.set_transaction_status(client.transaction_status().to_error_state());
            }
            settled => settled?,
        }
        let status = client.transaction_status();
        if status == TransactionStatus::Idle {
            // A transaction ends here, and with it portals and what SET LOCAL has set.
            self.settings.end(has_committed);
            client.portal_store().clear_portals();
        }
        let sent = send_ready_for_query(client, status).await;
        self.busy.send_replace(false);
        sent
    }

    async fn on_flush<C>(&self, client: &mut C, _: Flush) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        self.settle(client, End::Flush).await?;
        Ok(client.flush().await?)
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
            TARGET_TYPE_BYTE_STATEMENT => {
                self.names().there.remove(name);
                client.portal_store().rm_statement(name);
            }
            TARGET_TYPE_BYTE_PORTAL => {
                if let Some(open) = &mut *self.open.lock().await {
                    open.close_portal(name);
                }
                client.portal_store().rm_portal(name);
            }
            other => return Err(PgWireError::InvalidTargetType(other)),
        }
        self.reply(client, Message::CloseComplete(CloseComplete::new())).await
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
