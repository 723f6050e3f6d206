//! A database at a server.
//!
//! One thread in the background keeps the connection; any number of threads may ask over it, one behind the other
//! without waiting for each other's answers.
//!
//! A connection that has ended stays so until it is asked for anew (`reconnect`): what a session has set, and a
//! transaction that was open, went with it, and nobody should go on outside of what he thinks he is in. Nothing is ever
//! repeated here.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use lockwork_client::{Address, Connected, Host, Security};
use lockwork_database::sql::Value;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Statement};

use crate::columns::Data;
use crate::connection::{Answered, Called, Many, Signature};
use crate::failure::Failure;
use crate::values::{Cell, to_value};
use crate::wait;
use crate::wire::{Got, GotColumn, Sent, is_known, shape_of};

/// The most statements that are kept prepared.
const MOST_KEPT: usize = 256;
/// Calls that are made at once; a server takes 262,144.
const CALLS: usize = 65_536;
/// The column that says why calls were taken back.
const SQLSTATE: &str = "sqlstate";

/// Where a server is, and who asks. What a URL says as well is said here.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Place {
    address: String,
    user: Option<String>,
    /// Who asks if nobody says it.
    whoami: String,
    database: Option<String>,
    password: Option<String>,
    timeout: Option<f64>,
    sslmode: Option<String>,
    sslrootcert: Option<String>,
    target_session_attrs: Option<String>,
}

impl Place {
    fn address(&self) -> Result<Address, Failure> {
        let asked = |error: lockwork_client::Error| Failure::value("22023", error.to_string()).hint(error.hint());
        let is_url = self.address.contains("://");
        let parsed = Address::parse(&self.address).filter(|_| is_url).transpose().map_err(asked)?;
        let mut address = match parsed {
            Some(address) => address,
            None => Address::new(self.address.split(',').map(host_of).collect::<Result<_, _>>()?),
        };
        if let Some(attrs) = &self.target_session_attrs {
            address.attrs = Some(attrs.parse().map_err(asked)?);
        }
        let mut said = Security::default();
        said.complete(self.sslmode.as_deref(), self.sslrootcert.as_deref()).map_err(asked)?;
        address.security =
            Security { mode: said.mode.or(address.security.mode), roots: said.roots.or(address.security.roots) };
        let config = &mut address.config;
        let user = self.user.as_deref().or(config.get_user()).unwrap_or(&self.whoami).to_string();
        let database = self.database.as_deref().or(config.get_dbname()).unwrap_or("lockwork").to_string();
        config.user(user).dbname(database).application_name("lockwork-python");
        if let Some(password) = &self.password {
            config.password(password);
        }
        if let Some(timeout) = self.timeout {
            address.patience = Duration::try_from_secs_f64(timeout).map_err(|_| {
                Failure::value("22023", format!("timeout is {timeout}, and has to be seconds from 0 on"))
            })?;
        }
        Ok(address)
    }
}

pub(crate) struct Remote {
    /// `None` when it has been closed.
    link: Mutex<Option<Arc<Link>>>,
    runtime: Mutex<Option<Runtime>>,
    address: Address,
    /// Held by who connects anew.
    connecting: tokio::sync::Mutex<()>,
}

/// A connection, and what is known by it.
struct Link {
    client: Client,
    host: Host,
    /// Whether it has ended, or its server has said that it takes no more.
    gone: Arc<AtomicBool>,
    statements: Mutex<HashMap<String, Statement>>,
    signatures: Mutex<HashMap<String, Arc<Known>>>,
}

/// A procedure, as a server describes it.
struct Known {
    signature: Signature,
    call: String,
    /// With the id of a request behind the parameters.
    once: String,
    many: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// HOST:PORT, HOST, or [HOST]:PORT.
fn host_of(text: &str) -> Result<Host, Failure> {
    let wrong = |what: &str| Failure::value("22023", format!("'{text}' is no address: {what}; write HOST:PORT"));
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = port.map_or(Ok(5433), |port| port.parse().map_err(|_| wrong(&format!("'{port}' is no port"))))?;
    let name = host.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() { Err(wrong("there is no host")) } else { Ok(Host { name: name.into(), port }) }
}

/// Whether a request may be made again when it is not known whether it has happened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It has an id, and happens once; or it changes nothing.
    Once,
    /// It might happen twice.
    Twice,
}

impl Link {
    fn failure(&self, error: &tokio_postgres::Error, again: Again) -> Failure {
        const NOT_LEADING: &str = "57P01";
        const UNKNOWN: &str = "08007";
        if let Some(said) = error.as_db_error() {
            let position = match said.position() {
                Some(tokio_postgres::error::ErrorPosition::Original(at)) => Some(*at as usize),
                _ => None,
            };
            let failure = Failure::of_server(said.code().code(), said.message(), said.hint(), position);
            return match said.code().code() {
                state @ (NOT_LEADING | UNKNOWN) => {
                    // It takes no more, or not for long.
                    self.gone.fetch_or(state == NOT_LEADING, Ordering::AcqRel);
                    failure.retryable(again == Again::Once)
                }
                _ => failure,
            };
        }
        if self.gone.fetch_or(error.is_closed(), Ordering::AcqRel) || error.is_closed() {
            let message = format!(
                "the connection to {} has ended ({}); whether what was asked and not answered has happened is not known",
                self.host,
                chain(error)
            );
            return Failure::closed(message).retryable(again == Again::Once).hint(match again {
                Again::Once => "reconnect(), and ask the same again, with the same request_id: it happens once",
                Again::Twice => "reconnect(), and look; a call with a request_id could simply be made again",
            });
        }
        Failure::new("Error", "08P01", chain(error))
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
        again: Again,
    ) -> PyResult<T> {
        Ok(wait::finish(py, asked)?.map_err(|error| self.failure(&error, again))?)
    }

    /// The statement, prepared.
    fn prepared(&self, py: Python<'_>, text: &str) -> PyResult<Statement> {
        if let Some(statement) = lock(&self.statements).get(text) {
            return Ok(statement.clone());
        }
        let statement = self.ask(py, self.client.prepare(text), Again::Once)?;
        let mut statements = lock(&self.statements);
        if statements.len() >= MOST_KEPT {
            statements.clear();
        }
        statements.insert(text.to_string(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement: its rows, and how many rows it says that it wrote.
    fn query(&self, py: Python<'_>, text: &str, values: &[Sent], again: Again) -> PyResult<(Vec<Row>, u64)> {
        match self.try_query(py, text, values)? {
            // A definition has changed what it takes or answers, and nothing has run.
            Err(error) if is_stale(&error) => {
                lock(&self.statements).remove(text);
                self.try_query(py, text, values)?.map_err(|error| self.failure(&error, again).into())
            }
            ran => ran.map_err(|error| self.failure(&error, again).into()),
        }
    }

    fn try_query(
        &self,
        py: Python<'_>,
        text: &str,
        values: &[Sent],
    ) -> PyResult<Result<(Vec<Row>, u64), tokio_postgres::Error>> {
        let statement = self.prepared(py, text)?;
        let rows = async {
            let stream = self.client.query_raw(&statement, values).await?;
            let mut stream = std::pin::pin!(stream);
            let mut rows = Vec::new();
            while let Some(row) = stream.try_next().await? {
                rows.push(row);
            }
            Ok((rows, stream.rows_affected().unwrap_or(0)))
        };
        wait::finish(py, rows)
    }

    /// Calls a procedure by one of the texts of what is known of it.
    fn query_known(
        &self,
        py: Python<'_>,
        caller: &Signature,
        text: impl Fn(&Known) -> &str,
        values: &[Sent],
        again: Again,
    ) -> PyResult<Vec<Row>> {
        let known = self.known(py, &caller.name)?;
        known.signature.is_that_of(caller)?;
        let ran = self.try_query(py, text(&known), values)?;
        let ran = match ran {
            Err(error) if is_stale(&error) => {
                let known = self.known_now(py, &caller.name)?;
                known.signature.is_that_of(caller)?;
                self.try_query(py, text(&known), values)?
            }
            ran => ran,
        };
        ran.map(|(rows, _)| rows).map_err(|error| self.failure(&error, again).into())
    }

    fn execute(&self, py: Python<'_>, text: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Answered> {
        without_copy(text)?;
        let statement = self.prepared(py, text)?;
        let types = statement.params();
        if types.len() != values.len() {
            let (needed, given) = (types.len(), values.len());
            let message = format!("the statement has {needed} parameters, and {given} are given");
            return Err(Failure::value("08P01", message).into());
        }
        let one = |(at, (ty, value)): (usize, (_, &Bound<'_, PyAny>))| {
            let name = format!("${}", at + 1);
            let shape = shape_of(&name, ty, -1).ok_or_else(|| unknown(&name, ty))?;
            to_value(value, &shape).map(Sent::Value)
        };
        let values = types.iter().zip(values).enumerate().map(one).collect::<PyResult<Vec<_>>>()?;
        if let Some(column) = statement.columns().iter().find(|column| !is_known(column.type_())) {
            return Err(unknown(column.name(), column.type_()).into());
        }
        let columns: Vec<_> = statement.columns().iter().map(|column| column.name().to_string()).collect();
        let (rows, written) = self.query(py, text, &values, Again::Twice)?;
        let count = if columns.is_empty() { written as i64 } else { rows.len() as i64 };
        Ok(Answered { columns, rows: cells(&rows)?, count })
    }

    fn define(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        without_copy(text)?;
        lock(&self.signatures).clear();
        self.ask(py, self.client.batch_execute(text), Again::Twice)
    }

    fn known(&self, py: Python<'_>, name: &str) -> PyResult<Arc<Known>> {
        if let Some(known) = lock(&self.signatures).get(name) {
            return Ok(known.clone());
        }
        self.known_now(py, name)
    }

    fn known_now(&self, py: Python<'_>, name: &str) -> PyResult<Arc<Known>> {
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        // It says the names of parameters, and the prepared CALL their types.
        let explained = self.query(py, &format!("EXPLAIN PROCEDURE {quoted}"), &[], Again::Once)?.0;
        let lines = cells(&explained)?;
        let names: Vec<String> = lines
            .iter()
            .filter_map(|line| match line.as_slice() {
                [Cell::Value(Value::Text(line))] => Some(line.strip_prefix("param ")?.split_once(": ")?.0.to_string()),
                _ => None,
            })
            .collect();
        let places: Vec<_> = (1..=names.len()).map(|number| format!("${number}")).collect();
        let call = format!("CALL {quoted}({})", places.join(", "));
        let once = format!("{call} REQUEST ${}", names.len() + 1);
        let many = call.replacen("CALL", "CALL MANY", 1);
        lock(&self.statements).retain(|text, _| ![&call, &once, &many].contains(&text));
        let statement = self.prepared(py, &call)?;
        let parameters = names.iter().zip(statement.params());
        let parameters = parameters.map(|(name, ty)| shape_of(name, ty, -1).ok_or_else(|| unknown(name, ty)));
        let results = statement.columns().iter().map(|column| {
            let shape = shape_of(column.name(), column.type_(), column.type_modifier());
            shape.ok_or_else(|| unknown(column.name(), column.type_()))
        });
        let (parameters, results) = (parameters.collect::<Result<_, _>>()?, results.collect::<Result<_, _>>()?);
        let signature = Signature { name: name.to_string(), parameters, results };
        let known = Arc::new(Known { signature, call, once, many });
        lock(&self.signatures).insert(name.to_string(), known.clone());
        Ok(known)
    }

    fn call(
        &self,
        py: Python<'_>,
        caller: &Signature,
        values: &[Bound<'_, PyAny>],
        request: Option<NonZeroU64>,
    ) -> PyResult<Called> {
        caller.takes(values.len())?;
        let shapes = &caller.parameters;
        let one = |(shape, value): (_, &Bound<'_, PyAny>)| to_value(value, shape).map(Sent::Value);
        let mut values = shapes.iter().zip(values).map(one).collect::<PyResult<Vec<_>>>()?;
        let rows = match request.map(|id| i64::try_from(id.get())) {
            None => self.query_known(py, caller, |known| &known.call, &values, Again::Twice)?,
            Some(Ok(id)) => {
                values.push(Sent::Value(Value::Integer(id)));
                self.query_known(py, caller, |known| &known.once, &values, Again::Once)?
            }
            Some(Err(_)) => {
                return Err(Failure::value("22023", "at a server a request id is a number from 1 to 2**63 - 1").into());
            }
        };
        Ok(cells(&rows)?.into_iter().next().unwrap_or_default())
    }

    fn call_many(&self, py: Python<'_>, caller: &Signature, mut data: Vec<Data>) -> PyResult<Many> {
        let calls = data.first().map_or(0, Data::len);
        let results = &caller.results;
        let mut many = Many { columns: Vec::new(), aborts: Vec::new(), calls };
        let mut made = 0;
        loop {
            let rest: Vec<_> = data.iter_mut().map(|data| data.split_off(CALLS)).collect();
            let here = data.first().map_or(0, Data::len);
            let values: Vec<_> = data.into_iter().map(Sent::Column).collect();
            let answered = self.query_known(py, caller, |known| &known.many, &values, Again::Twice);
            let answered = answered.and_then(|rows| {
                let row = rows.first().ok_or_else(|| Failure::new("Error", "08P01", "CALL MANY answered no row"))?;
                let get = |at: usize| row.try_get::<_, GotColumn>(at).map(|got| got.0);
                let get = |at: usize| get(at).map_err(|error| unread(&row.columns()[at], &error));
                py.detach(|| (0..row.len()).map(get).collect::<Result<Vec<_>, _>>()).map_err(PyErr::from)
            });
            let mut columns = match answered {
                Ok(columns) => columns,
                Err(error) if made == 0 => return Err(error),
                Err(error) => {
                    error
                        .value(py)
                        .call_method1("add_note", (format!("the first {made} of the {calls} calls were made"),))
                        .ok();
                    return Err(error);
                }
            };
            let Some(Data::Values(states)) = columns.pop().filter(|_| columns.len() == results.len()) else {
                return Err(Failure::new("Error", "08P01", format!("CALL MANY answered no column '{SQLSTATE}'")).into());
            };
            let why = states.iter().enumerate().filter_map(|(at, state)| match state {
                Value::Text(state) if !state.is_empty() => Some((made + at, state.clone())),
                _ => None,
            });
            many.aborts.extend(why);
            match many.columns.is_empty() {
                true => many.columns = results.iter().cloned().zip(columns).collect(),
                false => many.columns.iter_mut().zip(columns).for_each(|((_, all), more)| all.append(more)),
            }
            made += here;
            if made >= calls {
                return Ok(many);
            }
            data = rest;
        }
    }
}

impl Remote {
    pub(crate) fn connect(py: Python<'_>, place: &Place) -> PyResult<Self> {
        let address = place.address()?;
        let system = |error: std::io::Error| Failure::new("ConnectError", "08001", format!("cannot connect: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("lockwork-client").enable_all().build();
        let runtime = runtime.map_err(system)?;
        let (link, runtime, connecting) = (Mutex::default(), Mutex::new(Some(runtime)), tokio::sync::Mutex::default());
        let remote = Self { link, runtime, address, connecting };
        let link = remote.link_anew(py)?;
        *lock(&remote.link) = Some(Arc::new(link));
        Ok(remote)
    }

    /// A new connection, to the first server that will do.
    fn link_anew(&self, py: Python<'_>) -> PyResult<Link> {
        let Some(runtime) = lock(&self.runtime).as_ref().map(|runtime| runtime.handle().clone()) else {
            return Err(Failure::closed("the connection is closed").into());
        };
        let address = self.address.clone();
        let task = runtime.spawn(async move { lockwork_client::connect(&address).await });
        let Connected { client, wire, host } = match wait::finish(py, task)? {
            Ok(connected) => connected.map_err(|error| refused(&error, &self.address))?,
            Err(error) => return Err(Failure::new("ConnectError", "08001", format!("cannot connect: {error}")).into()),
        };
        let gone = Arc::new(AtomicBool::new(false));
        let ended = gone.clone();
        runtime.spawn(async move {
            // Those who wait are told by the client.
            drop(wire.await);
            ended.store(true, Ordering::Release);
        });
        Ok(Link { client, host, gone, statements: Mutex::default(), signatures: Mutex::default() })
    }

    /// The connection, unless it has ended.
    fn link(&self) -> Result<Arc<Link>, Failure> {
        let link = lock(&self.link).clone().ok_or_else(|| Failure::closed("the connection is closed"))?;
        if link.gone.load(Ordering::Acquire) {
            let message = format!("the connection to {} has ended, and nothing was asked", link.host);
            return Err(Failure::closed(message).hint("reconnect()").retryable(true));
        }
        Ok(link)
    }

    /// Connects anew if the connection has ended; else there is nothing to do.
    pub(crate) fn reconnect(&self, py: Python<'_>) -> PyResult<()> {
        // Of several threads that find it ended one connects, and the others wait for that.
        let _connecting = wait::finish(py, self.connecting.lock())?;
        let is_gone = lock(&self.link).as_ref().is_none_or(|link| link.gone.load(Ordering::Acquire));
        if !is_gone {
            return Ok(());
        }
        let link = Arc::new(self.link_anew(py)?);
        let mut now = lock(&self.link);
        // Somebody may have closed it meanwhile.
        if now.is_none() {
            return Err(Failure::closed("the connection is closed").into());
        }
        *now = Some(link);
        Ok(())
    }

    pub(crate) fn execute(&self, py: Python<'_>, text: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Answered> {
        self.link()?.execute(py, text, values)
    }

    pub(crate) fn define(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        self.link()?.define(py, text)
    }

    pub(crate) fn signature(&self, py: Python<'_>, name: &str) -> PyResult<Signature> {
        Ok(self.link()?.known_now(py, name)?.signature.clone())
    }

    pub(crate) fn call(
        &self,
        py: Python<'_>,
        caller: &Signature,
        values: &[Bound<'_, PyAny>],
        request: Option<NonZeroU64>,
    ) -> PyResult<Called> {
        self.link()?.call(py, caller, values, request)
    }

    pub(crate) fn call_many(&self, py: Python<'_>, caller: &Signature, data: Vec<Data>) -> PyResult<Many> {
        self.link()?.call_many(py, caller, data)
    }

    /// Ends the connection; a second time does nothing.
    pub(crate) fn close(&self) {
        drop(lock(&self.link).take());
        if let Some(runtime) = lock(&self.runtime).take() {
            // The farewell goes out, unless the network does not take it.
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
    }
}

/// Why there is no connection. What the decisive server says tells the kind.
fn refused(error: &lockwork_client::Error, address: &Address) -> Failure {
    use lockwork_client::Error;
    let is_list = matches!(error, Error::Nobody(_));
    let text = |what: &str| if is_list { error.to_string() } else { format!("{address}: {what}") };
    let new = |sqlstate: &str, message| Failure::new("ConnectError", sqlstate, message);
    match error.decisive() {
        Error::Asked { .. } => Failure::value("22023", error.to_string()).hint(error.hint()),
        Error::Unsafe { message, .. } => new("08001", text(message)).hint(error.hint()),
        Error::Refused(refused) if let Some(said) = refused.as_db_error() => {
            let retryable = error.is_of_this_server() || *said.code() == SqlState::TOO_MANY_CONNECTIONS;
            new(said.code().code(), text(said.message())).retryable(retryable)
        }
        _ if is_list => new("08001", error.to_string()).retryable(error.is_of_this_server()),
        other => {
            let why = match other {
                Error::Refused(error) => chain(error),
                other => other.to_string(),
            };
            let message = format!("no connection to {address}: {why}; is 'lockwork serve' there?");
            new("08001", message).retryable(error.is_of_this_server())
        }
    }
}

/// Whether a prepared statement has become another one; nothing has run then.
fn is_stale(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED)
}

/// Refuses a text with a COPY in it, whose data would be taken for answers.
fn without_copy(text: &str) -> Result<(), Failure> {
    let Some(at) = lockwork_client::find_copy(text) else { return Ok(()) };
    let failure = Failure::new("SqlError", "0A000", "this client has no COPY, and nothing was sent");
    let failure = failure.at(text[..at].chars().count() + 1);
    Err(failure.hint("psql has COPY and \\copy; here rows are written by call_many, or by INSERT"))
}

/// What a server answered.
fn cells(rows: &[Row]) -> Result<Vec<Vec<Cell>>, Failure> {
    let cell = |row: &Row, at: usize| {
        row.try_get::<_, Got>(at).map(|got| got.0).map_err(|error| unread(&row.columns()[at], &error))
    };
    rows.iter().map(|row| (0..row.len()).map(|at| cell(row, at)).collect()).collect()
}

/// A parameter or column of a type that this client does not know; nothing has run.
fn unknown(name: &str, ty: &postgres_types::Type) -> Failure {
    Failure::new("SqlError", "0A000", format!("'{name}' is of type {ty}, and this client has no values of it"))
}

/// A value that this client cannot hold.
fn unread(column: &tokio_postgres::Column, error: &tokio_postgres::Error) -> Failure {
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    Failure::value("22003", format!("a value of '{}', which is of type {}: {why}", column.name(), column.type_()))
}

/// An error and what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
