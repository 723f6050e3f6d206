//! A connection to a server, and what its client asks over it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::TryStreamExt;
use lockwork::RequestId;
use lockwork::sql::Value;
use lockwork_client::{Effect, Host, Limit, SessionState, Timeouts, Unanswered, answered, divide, is_lost};
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Statement};

use crate::columns::Data;
use crate::connection::{Answered, Called, Many, Signature};
use crate::failure::Failure;
use crate::values::{Cell, to_value};
use crate::wait;
use crate::wire::{GotColumn, Received, Sent, is_known, shape_of};

/// The most statements that are kept prepared.
const MAX_KEPT: usize = 256;
/// Calls that are made at once; a server takes 262,144.
const CALLS: usize = 65_536;
/// The column that says why calls were taken back.
const SQLSTATE: &str = "sqlstate";

/// A connection, and what is known by it.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) host: Host,
    /// The runtime that drives the connection.
    pub(crate) runtime: Handle,
    pub(crate) timeouts: Timeouts,
    /// How many servers there are to go on at.
    pub(crate) hosts: usize,
    /// What a new connection would lack.
    pub(crate) state: Mutex<SessionState>,
    /// Whether it has ended, or its server has said that it takes no more.
    pub(crate) gone: Arc<AtomicBool>,
    pub(crate) statements: Mutex<HashMap<String, Statement>>,
    pub(crate) signatures: Mutex<HashMap<String, Arc<Known>>>,
}

/// A procedure, as a server describes it.
pub(crate) struct Known {
    pub(crate) signature: Signature,
    call: String,
    /// With the id of a request behind the parameters.
    once: String,
    many: String,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of an error after which it is not known whether a call was made: the log has not answered its leader.
pub(crate) const UNKNOWN: &str = "08007";

/// Why there is no answer.
enum Trouble {
    /// The server, or the connection, says so.
    Error(tokio_postgres::Error),
    /// The server has said nothing.
    Unanswered(Unanswered),
}

impl Link {
    fn failure(&self, trouble: &Trouble, effect: Effect) -> Failure {
        const NOT_LEADING: &str = "57P01";
        let error = match trouble {
            Trouble::Error(error) => error,
            Trouble::Unanswered(why) => return self.lost(&why.to_string(), effect),
        };
        if let Some(said) = error.as_db_error() {
            let position = match said.position() {
                Some(tokio_postgres::error::ErrorPosition::Original(at)) => Some(*at as usize),
                _ => None,
            };
            let failure = Failure::of_server(said.code().code(), said.message(), said.hint(), position);
            return match said.code().code() {
                NOT_LEADING | UNKNOWN => {
                    // It takes no more, or not for long.
                    self.gone.store(true, Ordering::Release);
                    failure.retryable(effect.is_repeatable())
                }
                _ => failure,
            };
        }
        if self.gone.load(Ordering::Acquire) || is_lost(error) {
            return self.lost(&chain(error), effect);
        }
        Failure::new("Error", "08P01", chain(error))
    }

    /// The connection is of no use any more.
    fn lost(&self, why: &str, effect: Effect) -> Failure {
        self.gone.store(true, Ordering::Release);
        let message = format!(
            "the connection to {} has ended ({why}); whether what was asked and not answered has happened is not known",
            self.host,
        );
        Failure::closed(message).retryable(effect.is_repeatable()).hint(match effect {
            Effect::Read => "reconnect(), and ask again: what was sent changes nothing",
            Effect::CallOnce => "reconnect(), and ask the same again, with the same request_id: it happens once",
            _ => "reconnect(), and look; a call with a request_id could simply be made again",
        })
    }

    /// Waits for an answer, as long as the server may take for a statement with this effect.
    fn finish<T: Send>(
        &self,
        py: Python<'_>,
        effect: Effect,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
    ) -> PyResult<Result<T, Trouble>> {
        let limit = Limit::of(&self.timeouts, self.hosts, effect);
        let answer = wait::finish_in(py, &self.runtime, answered(&self.host, limit, asked))?;
        Ok(match answer {
            Ok(answer) => answer.map_err(Trouble::Error),
            Err(unanswered) => Err(Trouble::Unanswered(unanswered)),
        })
    }

    /// The statement, prepared.
    fn prepared(&self, py: Python<'_>, text: &str) -> PyResult<Statement> {
        if let Some(statement) = lock(&self.statements).get(text) {
            return Ok(statement.clone());
        }
        // Nothing is carried out, so this only reads, whatever the statement does.
        let prepared = self.finish(py, Effect::Read, self.client.prepare(text))?;
        let effect = Some(Effect::of(text)).filter(|effect| effect.is_repeatable()).unwrap_or(Effect::Read);
        let statement = prepared.map_err(|trouble| self.failure(&trouble, effect))?;
        let mut statements = lock(&self.statements);
        if statements.len() >= MAX_KEPT {
            statements.clear();
        }
        statements.insert(text.to_string(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement: its rows, and how many rows it says that it wrote.
    fn query(&self, py: Python<'_>, text: &str, values: &[Sent], effect: Effect) -> PyResult<(Vec<Row>, u64)> {
        match self.try_query(py, text, values, effect)? {
            // A definition has changed what it takes or answers, and nothing has run.
            Err(trouble) if is_stale(&trouble) => {
                lock(&self.statements).remove(text);
                self.try_query(py, text, values, effect)?.map_err(|trouble| self.failure(&trouble, effect).into())
            }
            ran => ran.map_err(|trouble| self.failure(&trouble, effect).into()),
        }
    }

    fn try_query(
        &self,
        py: Python<'_>,
        text: &str,
        values: &[Sent],
        effect: Effect,
    ) -> PyResult<Result<(Vec<Row>, u64), Trouble>> {
        let statement = self.prepared(py, text)?;
        lock(&self.state).sends(effect);
        let rows = async {
            let stream = self.client.query_raw(&statement, values).await?;
            let mut stream = std::pin::pin!(stream);
            let mut rows = Vec::new();
            while let Some(row) = stream.try_next().await? {
                rows.push(row);
            }
            Ok((rows, stream.rows_affected().unwrap_or(0)))
        };
        let ran = self.finish(py, effect, rows)?;
        if ran.is_ok() {
            lock(&self.state).done(effect);
        }
        Ok(ran)
    }

    /// Calls a procedure by one of the texts of what is known of it.
    fn query_known(
        &self,
        py: Python<'_>,
        caller: &Signature,
        text: impl Fn(&Known) -> &str,
        values: &[Sent],
        effect: Effect,
    ) -> PyResult<Vec<Row>> {
        let known = self.known(py, &caller.name)?;
        known.signature.is_that_of(caller)?;
        let ran = self.try_query(py, text(&known), values, effect)?;
        let ran = match ran {
            Err(trouble) if is_stale(&trouble) => {
                let known = self.known_now(py, &caller.name)?;
                known.signature.is_that_of(caller)?;
                self.try_query(py, text(&known), values, effect)?
            }
            ran => ran,
        };
        ran.map(|(rows, _)| rows).map_err(|trouble| self.failure(&trouble, effect).into())
    }

    pub(crate) fn execute(&self, py: Python<'_>, text: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Answered> {
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
        let (rows, written) = self.query(py, text, &values, Effect::of(text))?;
        let count = if columns.is_empty() { written as i64 } else { rows.len() as i64 };
        Ok(Answered { columns, rows: cells(&rows)?, count })
    }

    pub(crate) fn define(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        without_copy(text)?;
        lock(&self.signatures).clear();
        let effects: Vec<_> = divide(text).statements.into_iter().map(|place| Effect::of(&text[place])).collect();
        effects.iter().for_each(|effect| lock(&self.state).sends(*effect));
        let ran = self.finish(py, Effect::Other, self.client.batch_execute(text))?;
        ran.map_err(|trouble| self.failure(&trouble, Effect::Other))?;
        // A transaction that the script ended may be followed by one that it left open.
        let mut state = lock(&self.state);
        for effect in effects {
            state.sends(effect);
            state.done(effect);
        }
        Ok(())
    }

    fn known(&self, py: Python<'_>, name: &str) -> PyResult<Arc<Known>> {
        if let Some(known) = lock(&self.signatures).get(name) {
            return Ok(known.clone());
        }
        self.known_now(py, name)
    }

    pub(crate) fn known_now(&self, py: Python<'_>, name: &str) -> PyResult<Arc<Known>> {
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        // It says the names of parameters, and the prepared CALL their types, or that there is no such procedure.
        let literal = format!("'{}'", name.replace('\'', "''"));
        let columns = "proargnames, array_to_string(proargmodes, '')";
        let catalog = format!("SELECT {columns} FROM pg_catalog.pg_proc WHERE proname = {literal}");
        let rows = self.query(py, &catalog, &[], Effect::Read)?.0;
        let names = match cells(&rows)?.first().map(Vec::as_slice) {
            Some([Cell::Value(Value::Array(names)), modes]) => inputs(names, modes),
            _ => Vec::new(),
        };
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

    pub(crate) fn call(
        &self,
        py: Python<'_>,
        caller: &Signature,
        values: &[Bound<'_, PyAny>],
        request: Option<RequestId>,
    ) -> PyResult<Called> {
        caller.takes(values.len())?;
        let shapes = &caller.parameters;
        let one = |(shape, value): (_, &Bound<'_, PyAny>)| to_value(value, shape).map(Sent::Value);
        let mut values = shapes.iter().zip(values).map(one).collect::<PyResult<Vec<_>>>()?;
        let rows = match request {
            None => self.query_known(py, caller, |known| &known.call, &values, Effect::Call)?,
            Some(id) => {
                values.push(Sent::Value(Value::Bytes(id.to_bytes().into())));
                self.query_known(py, caller, |known| &known.once, &values, Effect::CallOnce)?
            }
        };
        Ok(cells(&rows)?.into_iter().next().unwrap_or_default())
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
            let answered = self.query_known(py, caller, |known| &known.many, &values, Effect::Other);
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

/// Whether a prepared statement has become another one; nothing has run then.
fn is_stale(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Error(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED))
}

/// Refuses a text with a COPY in it, whose data would be taken for answers.
fn without_copy(text: &str) -> Result<(), Failure> {
    let Some(at) = lockwork_client::find_copy(text) else { return Ok(()) };
    let failure = Failure::new("SqlError", "0A000", "this client has no COPY, and nothing was sent");
    let failure = failure.at(text[..at].chars().count() + 1);
    Err(failure.hint("psql has COPY and \\copy; here rows are written by call_many, or by INSERT"))
}

/// The names of the parameters that go in, by the mode of each: a letter. Without modes all of them do.
fn inputs(names: &[Value], modes: &Cell) -> Vec<String> {
    let modes = if let Cell::Value(Value::Text(modes)) = modes { modes.as_str() } else { "" };
    let modes = modes.chars().chain(std::iter::repeat('i'));
    names.iter().zip(modes).filter(|(_, mode)| *mode != 'o').map(|(name, _)| name.to_string()).collect()
}

/// What a server answered.
fn cells(rows: &[Row]) -> Result<Vec<Vec<Cell>>, Failure> {
    let cell = |row: &Row, at: usize| {
        row.try_get::<_, Received>(at).map(|got| got.0).map_err(|error| unread(&row.columns()[at], &error))
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
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
