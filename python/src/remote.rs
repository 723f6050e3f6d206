//! A database at a server.
//!
//! One thread in the background keeps the connection; any number of threads may ask over it, one behind the other
//! without waiting for each other's answers.
//!
//! A server that does not answer in time is given up. Of several servers the next one is asked then what does no more
//! when it is asked twice: reads, and calls with a request id. But a session that has set something, or is in a
//! transaction, stays ended until it is asked for anew (`reconnect`): what it had went with the connection, and its
//! program must not go on outside of it unknowingly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockwork::RequestId;
use lockwork_client::{Address, Connected, Host, Security, connect, connect_next};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::SqlState;

use crate::columns::Data;
use crate::connection::{Answered, Called, Many, Signature};
use crate::failure::Failure;
use crate::link::{Link, UNKNOWN, chain, lock};
use crate::wait;

/// The address of a server and the user. Fields override what the URL says.
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
    call_timeout: Option<f64>,
    tcp_user_timeout: Option<u32>,
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
            address.timeouts.connect = Some(Duration::try_from_secs_f64(timeout).map_err(|_| {
                Failure::value("22023", format!("timeout is {timeout}, and has to be seconds from 0 on"))
            })?);
        }
        if let Some(timeout) = self.call_timeout {
            address.timeouts.set_call(timeout).map_err(asked)?;
        }
        if let Some(timeout) = self.tcp_user_timeout {
            address.timeouts.tcp_user = timeout;
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

impl Remote {
    pub(crate) fn connect(py: Python<'_>, place: &Place) -> PyResult<Self> {
        let address = place.address()?;
        let system = |error: std::io::Error| Failure::new("ConnectError", "08001", format!("cannot connect: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("lockwork-client").enable_all().build();
        let runtime = runtime.map_err(system)?;
        let (link, runtime, connecting) = (Mutex::default(), Mutex::new(Some(runtime)), tokio::sync::Mutex::default());
        let remote = Self { link, runtime, address, connecting };
        let link = remote.link_anew(py, None)?;
        *lock(&remote.link) = Some(Arc::new(link));
        Ok(remote)
    }

    /// A new connection, to the first server that will do; behind a server that was lost tried again until some moment.
    fn link_anew(&self, py: Python<'_>, next: Option<(Host, Instant)>) -> PyResult<Link> {
        let Some(runtime) = lock(&self.runtime).as_ref().map(|runtime| runtime.handle().clone()) else {
            return Err(Failure::closed("the connection is closed").into());
        };
        let address = self.address.clone();
        let task = runtime.spawn(async move {
            match next {
                Some((lost, deadline)) => connect_next(&address, &lost, deadline.into()).await,
                None => connect(&address).await,
            }
        });
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
        let (timeouts, hosts) = (self.address.timeouts, self.address.hosts.len());
        let (state, statements, signatures) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Link { client, host, runtime, timeouts, hosts, state, gone, statements, signatures })
    }

    /// Asks over the connection. Of several servers the next one is asked when this one is lost, if that can be done
    /// without asking twice for what may happen twice, and without losing what the session had.
    fn asked<T>(&self, py: Python<'_>, mut ask: impl FnMut(&Link) -> PyResult<T>) -> PyResult<T> {
        let goes_on = self.address.hosts.len() > 1;
        let deadline = self.address.timeouts.call.filter(|_| goes_on).map(|call| Instant::now() + call);
        loop {
            let link = lock(&self.link).clone().ok_or_else(|| Failure::closed("the connection is closed"))?;
            let answer = if link.gone.load(Ordering::Acquire) {
                let message = format!("the connection to {} has ended, and nothing was asked", link.host);
                Err(Failure::closed(message).hint("reconnect()").retryable(true).into())
            } else {
                ask(&link)
            };
            let error = match answer {
                Err(error) => error,
                answer => return answer,
            };
            let is_fresh = lock(&link.state).is_fresh();
            match deadline.filter(|deadline| is_fresh && Instant::now() < *deadline && may_go_on(py, &error)) {
                Some(deadline) => {
                    if let Err(why) = self.reconnect_by(py, Some((link.host.clone(), deadline))) {
                        if !why.is_instance_of::<PyException>(py) {
                            // Ctrl-C.
                            return Err(why);
                        }
                        let note = format!("no other server has taken the session: {why}");
                        error.value(py).call_method1("add_note", (note,)).ok();
                        return Err(error);
                    }
                }
                None => return Err(error),
            }
        }
    }

    /// Connects anew if the connection has ended; else there is nothing to do.
    pub(crate) fn reconnect(&self, py: Python<'_>) -> PyResult<()> {
        self.reconnect_by(py, None)
    }

    fn reconnect_by(&self, py: Python<'_>, next: Option<(Host, Instant)>) -> PyResult<()> {
        // Of several threads that find it ended one connects, and the others wait for that.
        let _connecting = wait::finish(py, self.connecting.lock())?;
        let is_gone = lock(&self.link).as_ref().is_none_or(|link| link.gone.load(Ordering::Acquire));
        if !is_gone {
            return Ok(());
        }
        let link = Arc::new(self.link_anew(py, next)?);
        let mut now = lock(&self.link);
        // Somebody may have closed it meanwhile.
        if now.is_none() {
            return Err(Failure::closed("the connection is closed").into());
        }
        *now = Some(link);
        Ok(())
    }

    pub(crate) fn execute(&self, py: Python<'_>, text: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Answered> {
        self.asked(py, |link| link.execute(py, text, values))
    }

    pub(crate) fn define(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        self.asked(py, |link| link.define(py, text))
    }

    pub(crate) fn signature(&self, py: Python<'_>, name: &str) -> PyResult<Signature> {
        self.asked(py, |link| Ok(link.known_now(py, name)?.signature.clone()))
    }

    pub(crate) fn call(
        &self,
        py: Python<'_>,
        caller: &Signature,
        values: &[Bound<'_, PyAny>],
        request: Option<RequestId>,
    ) -> PyResult<Called> {
        self.asked(py, |link| link.call(py, caller, values, request))
    }

    pub(crate) fn call_many(&self, py: Python<'_>, caller: &Signature, data: Vec<Data>) -> PyResult<Many> {
        let (goes_on, mut data) = (self.address.hosts.len() > 1, Some(data));
        self.asked(py, |link| {
            // Nothing is asked again of a single server.
            let data = if goes_on { data.clone() } else { data.take() };
            link.call_many(py, caller, data.unwrap_or_default())
        })
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

/// Whether an error says that the connection is of no use, and that the same may be asked again.
fn may_go_on(py: Python<'_>, error: &PyErr) -> bool {
    let value = error.value(py);
    let is_retryable = value.getattr("is_retryable").and_then(|is| is.extract::<bool>()).unwrap_or(false);
    let is_unknown =
        || value.getattr("sqlstate").and_then(|state| state.extract::<String>()).is_ok_and(|s| s == UNKNOWN);
    is_retryable && (value.get_type().name().is_ok_and(|name| name == "Closed") || is_unknown())
}
