//! What a client's messages do. Answers are fed and go out together, when the client waits for them.
//!
//! | module | idea |
//! |---|---|
//! | `mod` | one connection, and what it carries out |
//! | `rights` | what it may do |
//! | `reading` | texts, statement by statement: which room each belongs to |
//! | `simple`, `extended` | the two kinds of queries that the protocol has |
//! | `pipeline` | what an extended query sends up to its Sync, which is one transaction |

mod extended;
mod pipeline;
mod reading;
mod rights;
mod simple;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use bytes::BytesMut;
use lockwork::sql::{Control, Value};
use pgwire::api::portal::Format;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, METADATA_DATABASE, METADATA_USER, Type};
use pgwire::error::ErrorInfo;
use pgwire::messages::data::DataRow;
use pgwire::messages::response::TransactionStatus;
use tokio::sync::{Mutex, watch};

use crate::audit::{Audit, Event, Of};
use crate::cancel::{Cancel, Entered};
use crate::catalog::Asker;
use crate::copy;
use crate::error::{Refusal, refuse};
use crate::limits::Answer;
use crate::prepared::{Answered, Stored, Values};
use crate::quota::Kind as HeldKind;
use crate::reads::{LEVEL, Reader};
use crate::rights::Right;
use crate::session_settings::{
    DEFAULT_READ_ONLY, Effect, Frees, IN_STANDBY, ISOLATION, READ_AFTER, READ_ONLY, RECORD, SessionNames,
};
use crate::settings::Settings;
use crate::shared::{Database, Plan};
use crate::transaction::{self, Open, Turn};
use crate::users::Users;
use crate::values::{encode, format_of};
use crate::verb::Verb;
pub(crate) use pipeline::End;
use pipeline::Pipeline;

/// The messages of one connection.
pub(crate) struct Session {
    pub(crate) database: Database,
    /// Whether the client waits for an answer.
    busy: watch::Sender<bool>,
    /// What the client may do, and who it is, from its login on.
    identity: OnceLock<Identity>,
    audit: Option<Audit>,
    /// The users of the server, with what they were granted.
    users: Option<Arc<Users>>,
    /// What ends what it is at, and the key for that.
    pub(crate) cancel: Arc<Cancel>,
    pub(crate) key: (i32, i32),
    /// What it loads.
    pub(crate) copying: copy::Slot,
    /// The names of its prepared statements.
    names: std::sync::Mutex<Names>,
    /// Its transaction of several statements.
    open: Mutex<Option<Open>>,
    /// Statements that wait for the Sync.
    pipeline: Mutex<Pipeline>,
    /// Whether a Sync is known to follow the message that is carried out.
    pub(crate) is_last: AtomicBool,
    /// What it has said of its reads, and what they have seen.
    pub(crate) reader: Reader,
    pub(crate) settings: Settings,
}

struct Identity {
    right: Right,
    user: String,
    /// Whether it has proved who it is: the server has users.
    is_authenticated: bool,
    address: SocketAddr,
    tls: bool,
    /// The number of the session in the audit log.
    number: u64,
}

/// Prepared statements by name, as far as they have one.
#[derive(Default)]
struct Names {
    there: BTreeSet<String>,
    /// Those that are gone by other ways than a message that closes them, and portals.
    freed: Vec<(HeldKind, String)>,
}

pub(crate) fn who<C: ClientInfo>(client: &C) -> SessionNames {
    let word = |name: &str| client.metadata().get(name).cloned();
    let user = word(METADATA_USER).unwrap_or_default();
    SessionNames { database: word(METADATA_DATABASE).unwrap_or_else(|| user.clone()), user }
}

impl Session {
    pub(crate) fn new(
        database: Database,
        busy: watch::Sender<bool>,
        entered: &Entered,
        audit: Option<Audit>,
        users: Option<Arc<Users>>,
    ) -> Self {
        Self {
            database,
            busy,
            identity: OnceLock::new(),
            audit,
            users,
            cancel: entered.cancel.clone(),
            key: entered.key(),
            copying: copy::Slot::default(),
            names: std::sync::Mutex::default(),
            open: Mutex::default(),
            pipeline: Mutex::default(),
            is_last: AtomicBool::new(false),
            reader: Reader::default(),
            settings: Settings::default(),
        }
    }

    /// Lets the client do this from now on, as the user `of.user` if it `is_authenticated`.
    pub(crate) fn permit(&self, right: Right, of: Of<'_>, number: u64, is_authenticated: bool) {
        let Of { user, address, tls } = of;
        // A client logs in once.
        _ = self.identity.set(Identity { right, user: user.into(), is_authenticated, address, tls, number });
    }

    /// The user that the client's request ids belong to; `None` at a server without users.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.identity.get().filter(|identity| identity.is_authenticated).map(|identity| identity.user.as_str())
    }

    /// Returns the name of the user; empty at a server without users.
    fn user(&self) -> &str {
        self.owner().unwrap_or_default()
    }

    /// The client has its answer.
    pub(crate) fn rest(&self) {
        self.busy.send_replace(false);
    }

    pub(crate) fn count_wrong_login(&self) {
        self.database.watch.wrong_logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Carries out BEGIN, COMMIT and what belongs to them.
    async fn control<C>(&self, client: &mut C, control: &Control) -> Result<Answered, Refusal>
    where
        C: ClientInfo + ClientPortalStore,
        C::PortalStore: PortalStore,
    {
        let is_of_block = matches!(control, Control::Savepoint(_) | Control::Release(_) | Control::RollBackTo(_));
        if is_of_block && self.is_implicit().await {
            return Err(refuse("25P01", "there are savepoints in transactions only").hint("BEGIN"));
        }
        if matches!(control, Control::Begin { .. }) && !self.database.runs_compounds {
            let message = "this engine runs no transactions of several statements";
            let hint = match self.database.caller.is_divided() {
                true => "make a procedure of them: the nodes of all parts run it together",
                false => "make a procedure of them, or take an engine of the CPU",
            };
            return Err(refuse("0A000", message).hint(hint));
        }
        if matches!(control, Control::Begin { read_only: Some(false) }) && self.database.follows() {
            return Err(self.database.writes_elsewhere("a transaction that is READ WRITE"));
        }
        let status = client.transaction_status();
        let mut tag = transaction::tag(control);
        let is_read_only = self.is_read_only();
        let now = match transaction::turn(&mut *self.open.lock().await, control, status, is_read_only)? {
            Turn::Commit(steps) => {
                client.set_transaction_status(TransactionStatus::Idle);
                client.portal_store().clear_portals();
                // Reads at a node that follows are no part of it.
                if !self.database.follows() {
                    self.database.commit(steps, &self.cancel).await.inspect_err(|_| self.settings.end(false))?;
                }
                TransactionStatus::Idle
            }
            Turn::Back(portals) => {
                portals.iter().for_each(|name| client.portal_store().rm_portal(name));
                self.names().freed.extend(portals.into_iter().map(|name| (HeldKind::Portal, name)));
                TransactionStatus::Transaction
            }
            Turn::Now(now) => {
                if status == TransactionStatus::Error && *control == Control::Commit {
                    tag = "ROLLBACK";
                }
                now
            }
        };
        if now == TransactionStatus::Idle {
            // Portals end with their transaction.
            client.portal_store().clear_portals();
            self.settings.end(tag == "COMMIT");
        }
        client.set_transaction_status(now);
        Ok(Answered { rows: Vec::new(), tag: tag.into(), held: None })
    }

    /// Carries out a statement, which ends when it takes longer than it may.
    pub(crate) async fn timed<T>(&self, work: impl Future<Output = T>) -> T {
        match self.settings.statement_timeout() {
            Some(timeout) => self.cancel.within(timeout, work).await,
            None => work.await,
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The prepared statements and portals that are gone since it was asked for the last time.
    pub(crate) fn freed(&self) -> Vec<(HeldKind, String)> {
        std::mem::take(&mut self.names().freed)
    }

    fn is_read_only(&self) -> bool {
        self.reader.is_read_only() || self.database.follows()
    }

    /// Refuses what writes outside of transactions of several statements, if they are READ ONLY.
    pub(crate) fn admit_write(&self, verb: Verb) -> Result<(), Refusal> {
        if self.is_read_only() { Err(transaction::is_read_only(verb)) } else { Ok(()) }
    }

    /// As [`Open::admit`], of a statement that may be a transaction of its own.
    fn admit(&self, open: Option<&Open>, plan: &Plan) -> Result<(), Refusal> {
        match open {
            Some(open) => open.admit(plan),
            None if self.is_read_only() => transaction::reads(plan),
            None => Ok(()),
        }
    }

    /// Does what a setting or its like asks for.
    async fn take_effect<C>(&self, client: &C, effect: &Effect) -> Result<(), Refusal>
    where
        C: ClientInfo + ClientPortalStore,
        C::PortalStore: PortalStore,
    {
        match effect {
            Effect::Frees(frees) => {
                self.free(client, frees)?;
                if *frees == Frees::All(true) {
                    self.reader.reset();
                    self.settings.reset();
                }
            }
            Effect::Default(false) | Effect::Transaction(false) if self.database.follows() => {
                return Err(self.database.writes_elsewhere("a session that is READ WRITE"));
            }
            Effect::Default(is_read_only) => self.reader.set_read_only(*is_read_only),
            Effect::DefaultAsBegun => self.reader.set_read_only(self.reader.began_read_only()),
            Effect::AsBegun => {
                self.reader.reset();
                self.settings.reset();
            }
            Effect::Set(setting, is_local) => self.settings.set(setting, *is_local),
            Effect::ReadAfter(record) => self.reader.set_after(*record),
            // Outside of a transaction there is none, as in PostgreSQL.
            Effect::Transaction(is_read_only) => {
                if let Some(open) = &mut *self.open.lock().await {
                    open.set_read_only(*is_read_only)?;
                }
            }
        }
        Ok(())
    }

    /// What SHOW answers: a setting of the session, or what is always the same.
    async fn shown(&self, name: &str, always: &str) -> String {
        let on = |is_on: bool| if is_on { "on" } else { "off" }.to_string();
        if let Some(shown) = self.settings.shown(name) {
            return shown;
        }
        match name {
            DEFAULT_READ_ONLY => on(self.is_read_only()),
            IN_STANDBY => on(self.database.follows()),
            name if ISOLATION.contains(&name) && self.database.follows() => LEVEL.into(),
            READ_AFTER => self.reader.after().to_string(),
            // At the leader all that was answered is in the log by then; else what the last read was of counts.
            RECORD => match self.reader.seen.load(Ordering::Relaxed) {
                seen if seen > 0 && self.database.follows() => seen.to_string(),
                _ => self.database.caller.record().to_string(),
            },
            READ_ONLY => on(self.open.lock().await.as_ref().map_or(self.is_read_only(), |open| open.read_only)),
            _ => always.into(),
        }
    }

    /// Forgets prepared statements.
    fn free<C>(&self, client: &C, frees: &Frees) -> Result<(), Refusal>
    where
        C: ClientInfo + ClientPortalStore,
        C::PortalStore: PortalStore,
    {
        let mut names = self.names();
        let Names { there, freed } = &mut *names;
        let gone = match frees {
            Frees::All(true) if client.transaction_status() != TransactionStatus::Idle => {
                let message = "DISCARD ALL cannot be part of a transaction";
                return Err(refuse("25001", message).hint("COMMIT before it"));
            }
            Frees::All(_) => std::mem::take(there),
            Frees::One(name) => {
                let message = || format!("there is no prepared statement called '{name}'");
                BTreeSet::from([there.take(name).ok_or_else(|| refuse("26000", message()))?])
            }
        };
        gone.iter().for_each(|name| client.portal_store().rm_statement(name));
        freed.extend(gone.into_iter().map(|name| (HeldKind::Statement, name)));
        Ok(())
    }

    /// Carries out a statement in the state that the session is in.
    async fn carry_out<C>(
        &self,
        client: &mut C,
        stored: &Stored,
        values: &Values,
        format: &Format,
    ) -> Result<Answered, Refusal>
    where
        C: ClientInfo + ClientPortalStore,
        C::PortalStore: PortalStore,
    {
        if let Stored::Control(control) = stored {
            return self.control(client, control).await;
        }
        if client.transaction_status() == TransactionStatus::Error {
            return Err(transaction::failed());
        }
        match stored {
            Stored::Known(known) => {
                if let Some(effect) = &known.effect {
                    self.take_effect(client, effect).await?;
                }
            }
            _ => self.database.reach(self.reader.after(), &self.cancel).await?,
        }
        self.answer(stored, values, format, &who(client)).await
    }

    /// Whose queries they are, and what bounds them.
    fn asker<'a>(&'a self, who: &'a SessionNames) -> Asker<'a> {
        let right = self.right().unwrap_or(Right::Nothing);
        Asker { who, right, users: self.users.as_deref(), cancel: &self.cancel, room: &self.database.query_room }
    }

    pub(crate) async fn answer(
        &self,
        stored: &Stored,
        values: &Values,
        format: &Format,
        who: &SessionNames,
    ) -> Result<Answered, Refusal> {
        self.allow_stored(stored)?;
        let (plan, values) = match (stored, values) {
            (Stored::Grant(change), _) => return self.carry_out_grant(change).await,
            (Stored::Known(known), _) => {
                let mut data = BytesMut::new();
                for (at, (name, ty, text)) in known.row.iter().enumerate() {
                    let wrong = || refuse("0A000", format!("column '{name}' is text only"));
                    let value = match *ty {
                        Type::INT4 => Value::Integer(text.parse().map_err(|_| wrong())?),
                        Type::BOOL => Value::Boolean(text == "t"),
                        _ if known.tag == "SHOW" => Value::Text(self.shown(name, text).await),
                        _ => Value::Text(text.clone()),
                    };
                    encode(&value, ty, format_of(format, at), &mut data);
                }
                let row = (!known.row.is_empty()).then(|| DataRow::new(data, known.row.len() as i16));
                return Ok(Answered { rows: row.into_iter().collect(), tag: known.tag.clone(), held: None });
            }
            (Stored::Catalog(asked), Values::Catalog(values)) => {
                let asker = self.asker(who);
                let Answer { rows, held } =
                    self.database.ask(asked, values.clone(), format, asker, self.may_define()).await?;
                let tag = Verb::Select.tag(rows.len() as i64);
                return Ok(Answered { rows, tag, held });
            }
            (Stored::Plan(plan), Values::Many(columns)) => {
                self.database.admit_write(plan.verb)?;
                self.admit(self.open.lock().await.as_ref(), plan)?;
                let row = self.database.call_many(plan, columns, format, &self.cancel).await?;
                return Ok(Answered { rows: vec![row], tag: plan.verb.tag(1), held: None });
            }
            (Stored::Query(query), Values::Plan(values)) => {
                let scaled = query.for_values(values, who, |text, asker| self.database.query(text, asker))?;
                let query = scaled.as_ref().unwrap_or(query);
                let mut open = self.open.lock().await;
                let (open, reader) = (open.as_mut(), &self.reader);
                let ran = self.database.run_query(query, values, format, open, reader, self.asker(who)).await?;
                let Answer { rows, held } = ran;
                let tag = Verb::Select.tag(rows.len() as i64);
                return Ok(Answered { rows, tag, held });
            }
            (Stored::Plan(plan), Values::Plan(values)) => (plan, values),
            _ => return Err(refuse("XX000", "the values are those of another statement")),
        };
        let mut open = self.open.lock().await;
        if open.is_none() {
            self.admit(None, plan)?;
        }
        let answer = self.database.run(plan, values, self.owner(), open.as_mut(), &self.reader, &self.cancel).await;
        if plan.is_definition() {
            self.note(Event::Definition, plan.text(), answer.as_ref().err());
        }
        let answer = answer?;
        Ok(plan.answered(&answer, format))
    }
}

/// An error without a place for what never should be.
pub(crate) fn fatal(sqlstate: &str, message: &str) -> ErrorInfo {
    ErrorInfo::new("FATAL".into(), sqlstate.into(), message.into())
}
