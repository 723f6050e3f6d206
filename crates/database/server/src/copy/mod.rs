//! COPY: rows of a table in and out, and those of a query out, as lines of text or CSV.
//!
//! | module | idea |
//! |---|---|
//! | `statement` | COPY as it is written |
//! | `reader` | lines and fields |
//! | `load` | FROM STDIN: pieces of rows |
//! | `export` | TO STDOUT: a copy of the rows, or the answer of a query, line by line |
//!
//! A session has at most one that loads. What it has put into the table stays, whatever becomes of the rest.

mod export;
mod load;
mod reader;
mod statement;

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use lockwork::sql::{SqlType, Subject};
use pgwire::api::copy::CopyHandler;
use pgwire::api::portal::Format;
use pgwire::api::{ClientInfo, PgWireConnectionState as State};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::copy::{CopyData, CopyDone, CopyFail, CopyInResponse};
use pgwire::messages::response::{CommandComplete, TransactionStatus};

pub(crate) use export::AT_ONCE;
use load::Loading;
pub(crate) use statement::is_copy;
use statement::{Form, Source, Written};

use crate::error::{Refusal, refuse};
use crate::prepared::{Answered, Stored};
use crate::session::{Session, who};
use crate::session_settings::SessionNames;
use crate::shared::{Shared, closed};
use crate::transaction;
use crate::verb::Verb;

/// A COPY that was understood.
#[derive(Clone, Debug)]
pub(crate) enum Copy {
    Load(Arc<Table>),
    Export(Arc<Table>),
    Query(Stored, Form),
}

/// A table as it is copied.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    name: String,
    /// As lines have them.
    columns: Vec<Column>,
    key: Vec<Column>,
    form: Form,
    /// A row of which only the columns are known that lines do not have.
    blank: Vec<u8>,
}

impl Table {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// A column in the image of a row.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    sql: SqlType,
    at: usize,
    width: usize,
}

/// The COPY FROM of a session.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Loading>>);

impl Slot {
    fn take(&self) -> Option<Loading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn put(&self, loading: Loading) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(loading);
    }
}

impl Shared {
    /// Understands a COPY of a table, or of the columns that are named.
    fn plan_copy(&self, name: String, named: &[String], is_export: bool, form: Form) -> Result<Copy, Refusal> {
        tokio::task::block_in_place(|| {
            let guard = self.database();
            let catalogue = guard.as_ref().ok_or_else(closed)?.sql_catalogue();
            let table =
                catalogue.find(&name).ok_or_else(|| refuse("42P01", format!("table '{name}' does not exist")))?;
            if let Some(of) = table.index_of() {
                return Err(refuse("42809", format!("'{name}' is an index")).hint(format!("copy its table, '{of}'")));
            }
            let head = lockwork::ROW_HEADER_BYTES;
            let column = |at: usize| {
                let column = &table.schema().columns()[at];
                let (begin, width) = ((column.offset - head) as usize, column.column_type.width() as usize);
                Column { name: column.name.clone(), sql: table.types()[at], at: begin, width }
            };
            let mut places = if named.is_empty() { table.declared().to_vec() } else { Vec::new() };
            for name in named {
                let found = table.schema().column(name).map(|(at, _)| at);
                let at = found.ok_or_else(|| {
                    refuse("42703", format!("table '{}' has no column '{name}'", table.schema().name()))
                })?;
                if places.contains(&at) {
                    return Err(refuse("42701", format!("column '{name}' stands there twice")));
                }
                places.push(at);
            }
            let mut blank = vec![0; (table.schema().row_bytes() - head) as usize];
            for at in table.declared().iter().filter(|at| !is_export && !places.contains(at)) {
                let Column { name, sql, at: begin, width } = column(*at);
                let write = |value: lockwork::sql::Value| value.write(sql, &mut blank[begin..begin + width]);
                table.default_of(*at).and_then(write).ok_or_else(|| {
                    let message = format!("column '{name}' is left out, and has no DEFAULT");
                    let subject = Subject { table: table.schema().name().into(), column: name, ..Subject::default() };
                    let refusal = refuse("23502", message).about(Some(Box::new(subject)));
                    refusal.hint("name it among the columns: there are no NULLs")
                })?;
            }
            let columns = places.into_iter().map(column).collect();
            // The columns of the key come first.
            let key = (0..table.schema().key().len()).map(column).collect();
            let table = Arc::new(Table { name, columns, key, form, blank });
            Ok(if is_export { Copy::Export(table) } else { Copy::Load(table) })
        })
    }

    /// Counts a COPY that is over.
    fn count_copy(&self, begun: Instant, refusal: Option<&Refusal>) {
        let cause = |refusal: &Refusal| (Verb::Copy.name().into(), refusal.sqlstate.clone(), refusal.cause());
        self.watch.statement(Verb::Copy, begun.elapsed(), refusal.map(cause));
    }
}

fn tag(rows: u64) -> Message {
    Message::CommandComplete(CommandComplete::new(Verb::Copy.tag(rows as i64)))
}

impl Session {
    /// Understands a text that [`is_copy`] if the client may carry it out, and counts it if not.
    pub(crate) async fn copy_of(&self, text: &str, who: &SessionNames) -> Result<Stored, Refusal> {
        let begun = Instant::now();
        let planned = match statement::read(text) {
            Ok(Written { source: Source::Table(name, columns), is_export, form }) => self
                .allow_copy(&name, is_export)
                .and_then(|()| self.database.plan_copy(name, &columns, is_export, form)),
            Ok(Written { source: Source::Query(query), form, .. }) => self.plan_export(text, query, form, who).await,
            Err(refusal) => Err(refusal),
        };
        planned.map(|copy| Stored::Copy(Arc::new(copy))).inspect_err(|refusal| {
            self.database.count_copy(begun, Some(refusal));
        })
    }

    /// Understands a query, which is a part of `text`, whose rows are copied.
    async fn plan_export(&self, text: &str, query: &str, form: Form, who: &SessionNames) -> Result<Copy, Refusal> {
        let before = text[..query.as_ptr().addr() - text.as_ptr().addr()].chars().count();
        // One that is a COPY itself would have no answer, and is refused below.
        let stored = Box::pin(self.understand(query, &[], who)).await.map_err(|refusal| refusal.behind(before))?;
        match stored.filter(|stored| stored.is_query()) {
            Some(stored) if stored.parameters().is_empty() => Ok(Copy::Query(stored, form)),
            Some(_) => Err(refuse("42P02", "COPY takes no parameters").hint("write the values themselves")),
            None => Err(refuse("0A000", "COPY takes the rows of a SELECT").hint("write COPY (SELECT ..) TO STDOUT")),
        }
    }

    /// An error of any kind ends a COPY that is under way, also one of a message that does not belong there.
    pub(crate) fn end_copy(&self, error: PgWireError) -> PgWireError {
        let Some(loading) = self.copying.take() else { return error };
        let ErrorInfo { code, message, .. } = error.into();
        let refusal = loading.stayed(refuse(&code, message));
        self.database.count_copy(loading.begun, Some(&refusal));
        refusal.into()
    }

    /// Carries out a COPY TO; begins a COPY FROM, which goes on with [`CopyHandler`].
    pub(crate) async fn copy<C>(&self, client: &mut C, copy: &Arc<Copy>, is_extended: bool) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        self.allow_stored(&Stored::Copy(copy.clone()))?;
        self.database.reach(self.reader.after(), &self.cancel).await?;
        let status = match client.transaction_status() {
            TransactionStatus::Idle if self.is_implicit().await => TransactionStatus::Transaction,
            status => status,
        };
        match status {
            TransactionStatus::Idle => {}
            TransactionStatus::Error => return Err(transaction::failed().into()),
            TransactionStatus::Transaction if matches!(**copy, Copy::Query(..)) => {}
            TransactionStatus::Transaction => {
                let hint = "COMMIT before it; clients that BEGIN by themselves have an autocommit mode; \
                            COPY (SELECT ..) TO can";
                return Err(refuse("25001", "COPY of a table cannot be part of a transaction").hint(hint).into());
            }
        }
        let table = match &**copy {
            Copy::Load(table) => table,
            Copy::Export(table) => {
                return export::table(&self.database, client, table, &self.reader, &self.cancel).await;
            }
            Copy::Query(stored, form) => {
                let none = stored.no_values();
                let answered = self.answer(stored, &none, &Format::UnifiedText, &who(client)).await?;
                let Answered { rows, held: _held, .. } = answered;
                return self.cancel.unless(export::answer(client, stored, rows, form)).await?;
            }
        };
        self.database.admit_write(Verb::Copy)?;
        self.admit_write(Verb::Copy)?;
        let columns = table.columns.len();
        client.set_state(State::CopyInProgress(is_extended));
        self.copying.put(Loading::new(table.clone()));
        let begun = CopyInResponse::new(0, columns as i16, vec![0; columns]);
        Ok(client.send(Message::CopyInResponse(begun)).await?)
    }
}

#[async_trait]
impl CopyHandler for Session {
    async fn on_copy_data<C>(&self, _: &mut C, message: CopyData) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let mut loading = self.copying.take().ok_or_else(none)?;
        let taken = loading.take_in(&self.database, &message.data, &self.cancel).await;
        if let Err(refusal) = &taken {
            self.database.count_copy(loading.begun, Some(refusal));
        } else {
            self.copying.put(loading);
        }
        Ok(taken?)
    }

    async fn on_copy_done<C>(&self, client: &mut C, _: CopyDone) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let mut loading = self.copying.take().ok_or_else(none)?;
        let finished = loading.finish(&self.database, &self.cancel).await;
        self.database.count_copy(loading.begun, finished.as_ref().err());
        Ok(client.feed(tag(finished?)).await?)
    }

    async fn on_copy_fail<C>(&self, _: &mut C, message: CopyFail) -> PgWireError
    where
        C: ClientInfo + Sink<Message> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let Some(loading) = self.copying.take() else { return none().into() };
        let refusal = loading.stayed(refuse("57014", format!("COPY from stdin failed: {}", message.message)));
        self.database.count_copy(loading.begun, Some(&refusal));
        refusal.into()
    }
}

fn none() -> Refusal {
    refuse("08P01", "there is no COPY under way")
}
