//! A database at a server.
//!
//! One thread in the background keeps the connection; any number of threads may ask over it, one behind the other
//! without waiting for each other's answers.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use lockwork_client::{Address, Security};
use lockwork_database::sql::Value;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Statement};

use crate::columns::Data;
use crate::connection::{Answered, Called, Many, Signature};
use crate::failure::Failure;
use crate::values::to_value;
use crate::wait;
use crate::wire::{Got, GotColumn, Sent, shape_of};

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
}

impl Place {
    fn address(&self) -> Result<Address, Failure> {
        let asked = |error: lockwork_client::Error| Failure::value("22023", error.to_string()).hint(error.hint());
        let is_url = self.address.contains("://");
        let parsed = Address::parse(&self.address).filter(|_| is_url).transpose().map_err(asked)?;
        let mut address = match parsed {
            Some(address) => address,
            None => {
                let (host, port) = host_and_port(&self.address)?;
                Address::new(host.into(), port)
            }
        };
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
    client: Mutex<Option<Arc<Client>>>,
    runtime: Mutex<Option<Runtime>>,
    gone: Arc<AtomicBool>,
    address: String,
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
fn host_and_port(address: &str) -> Result<(&str, u16), Failure> {
    let wrong = |what: &str| Failure::value("22023", format!("'{address}' is no address: {what}; write HOST:PORT"));
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (address, None),
    };
    let port = port.map_or(Ok(5433), |port| port.parse().map_err(|_| wrong(&format!("'{port}' is no port"))))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() { Err(wrong("there is no host")) } else { Ok((host, port)) }
}

impl Remote {
    pub(crate) fn connect(py: Python<'_>, place: &Place) -> PyResult<Self> {
        let address = place.address()?;
        let name = address.to_string();
        let system = |error: std::io::Error| Failure::new("ConnectError", "08001", format!("cannot connect: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("lockwork-client").enable_all().build();
        let runtime = runtime.map_err(system)?;
        let task = runtime.spawn(async move { lockwork_client::connect(&address).await });
        let (client, connection) = match wait::finish(py, task)? {
            Ok(connected) => connected.map_err(|error| refused(&error, &name))?,
            Err(error) => return Err(Failure::new("ConnectError", "08001", format!("cannot connect: {error}")).into()),
        };
        let gone = Arc::new(AtomicBool::new(false));
        let ended = gone.clone();
        runtime.spawn(async move {
            // Those who wait are told by the client.
            drop(connection.await);
            ended.store(true, Ordering::Release);
        });
        Ok(Self {
            client: Mutex::new(Some(Arc::new(client))),
            runtime: Mutex::new(Some(runtime)),
            gone,
            address: name,
            statements: Mutex::default(),
            signatures: Mutex::default(),
        })
    }

    fn client(&self) -> Result<Arc<Client>, Failure> {
        lock(&self.client).clone().ok_or_else(|| Failure::closed("the connection is closed"))
    }

    fn failure(&self, error: &tokio_postgres::Error) -> Failure {
        if let Some(said) = error.as_db_error() {
            let position = match said.position() {
                Some(tokio_postgres::error::ErrorPosition::Original(at)) => Some(*at as usize),
                _ => None,
            };
            return Failure::of_server(said.code().code(), said.message(), said.hint(), position);
        }
        if error.is_closed() || self.gone.load(Ordering::Acquire) {
            let message = format!(
                "the connection to {} has ended ({}); whether what was asked and not answered has happened is not known",
                self.address,
                chain(error)
            );
            return Failure::closed(message);
        }
        Failure::new("Error", "08P01", chain(error))
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
    ) -> PyResult<T> {
        Ok(wait::finish(py, asked)?.map_err(|error| self.failure(&error))?)
    }

    /// The statement, prepared.
    fn prepared(&self, py: Python<'_>, text: &str) -> PyResult<Statement> {
        if let Some(statement) = lock(&self.statements).get(text) {
            return Ok(statement.clone());
        }
        let client = self.client()?;
        let statement = self.ask(py, client.prepare(text))?;
        let mut statements = lock(&self.statements);
        if statements.len() >= MOST_KEPT {
            statements.clear();
        }
        statements.insert(text.to_string(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement: its rows, and how many rows it says that it wrote.
    fn query(&self, py: Python<'_>, text: &str, values: &[Sent]) -> PyResult<(Vec<Row>, u64)> {
        match self.try_query(py, text, values)? {
            // A definition has changed what it takes or answers, and nothing has run.
            Err(error) if is_stale(&error) => {
                lock(&self.statements).remove(text);
                self.try_query(py, text, values)?.map_err(|error| self.failure(&error).into())
            }
            ran => ran.map_err(|error| self.failure(&error).into()),
        }
    }

    fn try_query(
        &self,
        py: Python<'_>,
        text: &str,
        values: &[Sent],
    ) -> PyResult<Result<(Vec<Row>, u64), tokio_postgres::Error>> {
        let statement = self.prepared(py, text)?;
        let client = self.client()?;
        let rows = async {
            let stream = client.query_raw(&statement, values).await?;
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
        ran.map(|(rows, _)| rows).map_err(|error| self.failure(&error).into())
    }

    pub(crate) fn execute(&self, py: Python<'_>, text: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Answered> {
        let statement = self.prepared(py, text)?;
        let types = statement.params();
        if types.len() != values.len() {
            let (needed, given) = (types.len(), values.len());
            let message = format!("the statement has {needed} parameters, and {given} are given");
            return Err(Failure::value("08P01", message).into());
        }
        let one = |(at, (ty, value)): (usize, (_, &Bound<'_, PyAny>))| {
            let shape = shape_of(&format!("${}", at + 1), ty, -1).ok_or_else(|| unknown(ty))?;
            to_value(value, &shape).map(Sent::Value)
        };
        let values = types.iter().zip(values).enumerate().map(one).collect::<PyResult<Vec<_>>>()?;
        let columns: Vec<_> = statement.columns().iter().map(|column| column.name().to_string()).collect();
        let (rows, written) = self.query(py, text, &values)?;
        let count = if columns.is_empty() { written as i64 } else { rows.len() as i64 };
        Ok(Answered { columns, rows: self.rows(&rows)?, count })
    }

    fn rows(&self, rows: &[Row]) -> Result<Vec<Vec<Option<Value>>>, Failure> {
        let cell = |row: &Row, at| row.try_get::<_, Got>(at).map(|got| got.0).map_err(|error| self.failure(&error));
        rows.iter().map(|row| (0..row.len()).map(|at| cell(row, at)).collect()).collect()
    }

    pub(crate) fn define(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let client = self.client()?;
        lock(&self.signatures).clear();
        self.ask(py, client.batch_execute(text))
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
        let explained = self.query(py, &format!("EXPLAIN PROCEDURE {quoted}"), &[])?.0;
        let lines = self.rows(&explained)?;
        let names: Vec<String> = lines
            .iter()
            .filter_map(|line| match line.as_slice() {
                [Some(Value::Text(line))] => Some(line.strip_prefix("param ")?.split_once(": ")?.0.to_string()),
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
        let parameters = parameters.map(|(name, ty)| shape_of(name, ty, -1).ok_or_else(|| unknown(ty)));
        let results = statement.columns().iter().map(|column| {
            let shape = shape_of(column.name(), column.type_(), column.type_modifier());
            shape.ok_or_else(|| unknown(column.type_()))
        });
        let (parameters, results) = (parameters.collect::<Result<_, _>>()?, results.collect::<Result<_, _>>()?);
        let signature = Signature { name: name.to_string(), parameters, results };
        let known = Arc::new(Known { signature, call, once, many });
        lock(&self.signatures).insert(name.to_string(), known.clone());
        Ok(known)
    }

    pub(crate) fn signature(&self, py: Python<'_>, name: &str) -> PyResult<Signature> {
        Ok(self.known_now(py, name)?.signature.clone())
    }

    pub(crate) fn call(
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
            None => self.query_known(py, caller, |known| &known.call, &values)?,
            Some(Ok(id)) => {
                values.push(Sent::Value(Value::Integer(id)));
                self.query_known(py, caller, |known| &known.once, &values)?
            }
            Some(Err(_)) => {
                return Err(Failure::value("22023", "at a server a request id is a number from 1 to 2**63 - 1").into());
            }
        };
        Ok(self.rows(&rows)?.into_iter().next().unwrap_or_default())
    }

    pub(crate) fn call_many(&self, py: Python<'_>, caller: &Signature, mut data: Vec<Data>) -> PyResult<Many> {
        let calls = data.first().map_or(0, Data::len);
        let results = &caller.results;
        let mut many = Many { columns: Vec::new(), aborts: Vec::new(), calls };
        let mut made = 0;
        loop {
            let rest: Vec<_> = data.iter_mut().map(|data| data.split_off(CALLS)).collect();
            let here = data.first().map_or(0, Data::len);
            let values: Vec<_> = data.into_iter().map(Sent::Column).collect();
            let answered = self.query_known(py, caller, |known| &known.many, &values);
            let answered = answered.and_then(|rows| {
                let row = rows.first().ok_or_else(|| Failure::new("Error", "08P01", "CALL MANY answered no row"))?;
                let get = |at| row.try_get::<_, GotColumn>(at).map(|got| got.0).map_err(|error| self.failure(&error));
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

    /// Ends the connection; a second time does nothing.
    pub(crate) fn close(&self) {
        drop(lock(&self.client).take());
        if let Some(runtime) = lock(&self.runtime).take() {
            // The farewell goes out, unless the network does not take it.
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
    }
}

/// Why there is no connection.
fn refused(error: &lockwork_client::Error, address: &str) -> Failure {
    use lockwork_client::Error;
    let new = |sqlstate: &str, message| Failure::new("ConnectError", sqlstate, message);
    match error {
        Error::Asked { .. } => Failure::value("22023", error.to_string()).hint(error.hint()),
        Error::Unsafe { .. } => new("08001", format!("{address}: {error}")).hint(error.hint()),
        Error::Refused(error) if let Some(said) = error.as_db_error() => {
            let retryable = *said.code() == SqlState::TOO_MANY_CONNECTIONS;
            new(said.code().code(), format!("{address}: {}", said.message())).retryable(retryable)
        }
        other => {
            let why = match other {
                Error::Refused(error) => chain(error),
                other => other.to_string(),
            };
            new("08001", format!("no connection to {address}: {why}; is 'lockwork serve' there?")).retryable(true)
        }
    }
}

/// Whether a prepared statement has become another one; nothing has run then.
fn is_stale(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED)
}

fn unknown(ty: &postgres_types::Type) -> Failure {
    Failure::new("SqlError", "0A000", format!("values of type {ty} are not known here"))
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
