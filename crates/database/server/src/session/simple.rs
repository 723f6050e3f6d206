//! Simple queries: texts of any number of statements, answered one after the other.

use std::fmt::Debug;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::api::portal::Format;
use pgwire::api::query::{SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::Response;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, PgWireConnectionState};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, TransactionStatus};
use pgwire::messages::simplequery::Query;

use super::reading::Reading;
use super::{End, Session, who};
use crate::copy::Copy;
use crate::error::{refuse, response};
use crate::prepared::{Answered, Stored, row_description};
use crate::session_settings::SessionNames;

impl Session {
    /// Carries out one statement of a simple query.
    async fn simple<C>(&self, client: &mut C, stored: &Stored) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send,
        C::PortalStore: PortalStore,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        if !stored.parameters().is_empty() {
            let message = "there is no value for parameter $1";
            return Err(refuse("42P02", message)
                .hint("prepare the statement (in psql: \\bind), or write the value itself")
                .into());
        }
        if let Stored::Copy(copy) = stored {
            return self.copy(client, copy, false).await;
        }
        let answered = self.carry_out(client, stored, &stored.no_values(), &Format::UnifiedText).await?;
        if let Some(description) = row_description(&stored.columns(), &Format::UnifiedText) {
            client.feed(Message::RowDescription(description)).await?;
        }
        send(client, answered).await
    }
}

impl Session {
    /// Understands and carries out the next statement of a simple query.
    async fn next_of_simple<C>(&self, client: &mut C, reading: &mut Reading<'_>, who: &SessionNames) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<Message> + Unpin + Send,
        C::PortalStore: PortalStore,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        self.cancel.check()?;
        let stored = self.next(reading, who).await?;
        match &stored {
            Stored::Copy(copy) if matches!(**copy, Copy::Load(_)) && !reading.is_at_end() => {
                let message = "a COPY that loads is the last statement of its message";
                Err(refuse("0A000", message).hint("send what stands behind it by itself").into())
            }
            stored => {
                let outcome = self.simple(client, stored).await;
                // Outside of BEGIN and COMMIT each statement of a text is a transaction.
                if client.transaction_status() == TransactionStatus::Idle {
                    self.settings.end(outcome.is_ok());
                }
                outcome
            }
        }
    }
}

/// Feeds rows and the tag.
async fn send<C>(client: &mut C, answered: Answered) -> PgWireResult<()>
where
    C: Sink<Message> + Unpin,
    PgWireError: From<<C as Sink<Message>>::Error>,
{
    let Answered { rows, tag, held } = answered;
    for row in rows {
        client.feed(Message::DataRow(row)).await?;
    }
    // The client has taken them, but for what is on its way.
    drop(held);
    Ok(client.feed(Message::CommandComplete(CommandComplete::new(tag))).await?)
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
        let mut reading = Reading::new(&query.query);
        let none = reading.is_at_end();
        // As a Sync does, it ends the pipeline before it.
        let mut outcome = self.settle(client, End::Sync).await;
        if outcome.is_err() {
            self.abandon().await;
        }
        // Each statement is understood when its turn comes, because it may need those before it.
        while outcome.is_ok() && !reading.is_at_end() {
            outcome = self.timed(self.next_of_simple(client, &mut reading, &who)).await;
        }
        if self.copying.is_on() {
            return Ok(());
        }
        match outcome {
            // What stood before an error has been done, so its answers go out before the error.
            Err(PgWireError::UserError(error)) => {
                client.feed(Message::ErrorResponse(response(*error))).await?;
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
