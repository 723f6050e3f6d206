//! The lock client.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockwork_lock_protocol::packet::Key;
use lockwork_locking::LockMode;
use lockwork_locks::client::{ConnectError, Guard as Held, LockError, LockName, Locks, Options};
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::wait;

/// A session with a lock service.
#[pyclass(frozen, module = "lockwork._lockwork")]
pub(crate) struct Session {
    locks: Mutex<Option<Locks>>,
}

/// A lock that is held until it is released or lost.
#[pyclass(frozen, module = "lockwork._lockwork")]
pub(crate) struct Guard {
    held: Mutex<Option<Held>>,
    lock: u64,
    token: u64,
    name: Option<String>,
}

/// What is asked for.
#[derive(FromPyObject)]
enum Lock {
    Number(u64),
    Name(String),
}

fn seconds(name: &str, seconds: f64) -> Result<Duration, Failure> {
    let wrong = |_| Failure::value("22023", format!("{name} is {seconds}, and has to be seconds from 0 on"));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

fn not_connected(error: &ConnectError) -> Failure {
    let retryable = !matches!(error, ConnectError::Address { .. });
    Failure::new("ConnectError", "08001", error.to_string()).retryable(retryable)
}

fn not_granted(error: &LockError) -> Failure {
    let class = match error {
        LockError::Busy(_) => "LockBusy",
        LockError::TimedOut(_) | LockError::NotResolved(_) => "LockTimeout",
        LockError::Deadlock(_) => "Deadlock",
        LockError::Disconnected(_) => "LockLost",
        LockError::Connect(error) => return not_connected(error),
        LockError::Forked => "Closed",
        _ => "LockError",
    };
    let sqlstate = match error {
        LockError::Deadlock(_) => "40P01",
        LockError::Busy(_) | LockError::TimedOut(_) | LockError::NotResolved(_) => "55P03",
        LockError::NoSuchLock { .. } | LockError::NoNames => "42704",
        LockError::NamesFull(_) => "53000",
        LockError::BadName(_) => "22023",
        _ => "08003",
    };
    Failure::new(class, sqlstate, error.to_string()).retryable(error.is_retryable())
}

impl Session {
    fn locks(&self) -> PyResult<Locks> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(locks.ok_or_else(|| Failure::closed("the session with the lock service is closed"))?)
    }
}

#[pymethods]
impl Session {
    /// Joins the service at HOST:PORT.
    #[staticmethod]
    #[pyo3(signature = (address, key, timeout, stay))]
    fn connect(py: Python<'_>, address: &str, key: Option<[u8; 16]>, timeout: f64, stay: f64) -> PyResult<Self> {
        let (connect_timeout, stay) = (seconds("timeout", timeout)?, seconds("stay", stay)?);
        let options = Options { key: key.map(Key), connect_timeout, stay, ..Options::default() };
        let locks = py.detach(|| Locks::connect_with(address, options)).map_err(|error| not_connected(&error))?;
        Ok(Self { locks: Mutex::new(Some(locks)) })
    }

    /// Takes a lock, by number or by name. Without a timeout it waits; with one of 0 it does not.
    #[pyo3(signature = (lock, shared, timeout, detect_deadlock, task))]
    fn acquire(
        &self,
        py: Python<'_>,
        lock: Lock,
        shared: bool,
        timeout: Option<f64>,
        detect_deadlock: bool,
        task: Option<u32>,
    ) -> PyResult<Guard> {
        let locks = self.locks()?;
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let mut request = match (&lock, shared) {
            (Lock::Number(number), false) => locks.exclusive(*number),
            (Lock::Number(number), true) => locks.shared(*number),
            (Lock::Name(name), false) => locks.exclusive_named(name),
            (Lock::Name(name), true) => locks.shared_named(name),
        };
        if let Some(task) = task {
            request = request.task(task);
        }
        if detect_deadlock {
            request = request.detect_deadlock();
        }
        let held = match timeout {
            Some(Duration::ZERO) => py.detach(|| request.try_acquire()),
            Some(timeout) => wait::finish(py, request.timeout(timeout).acquire_async())?,
            None => wait::finish(py, request.acquire_async())?,
        };
        let held = held.map_err(|error| not_granted(&error))?;
        let (number, token, name) = (held.lock(), held.token(), held.name().map(str::to_string));
        Ok(Guard { held: Mutex::new(Some(held)), lock: number, token, name })
    }

    /// How many locks the service has for names.
    fn count_named(&self) -> PyResult<u64> {
        Ok(self.locks()?.count_named())
    }

    /// How many locks with numbers the service has.
    fn count(&self) -> PyResult<u64> {
        Ok(self.locks()?.count())
    }

    /// Seconds for which a session lives after its last renewal.
    fn lease(&self) -> PyResult<f64> {
        Ok(self.locks()?.lease().as_secs_f64())
    }

    /// Ends the session when the last lock is released.
    fn close(&self, py: Python<'_>) {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(locks));
    }
}

impl Guard {
    fn with<T>(&self, act: impl FnOnce(Option<&mut Held>) -> T) -> T {
        act(self.held.lock().unwrap_or_else(PoisonError::into_inner).as_mut())
    }
}

#[pymethods]
impl Guard {
    /// Number of the lock.
    #[getter]
    fn number(&self) -> u64 {
        self.lock
    }

    /// The name that it was asked for by.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The fencing token.
    #[getter]
    fn token(&self) -> u64 {
        self.token
    }

    /// Whether it is held shared.
    #[getter]
    fn shared(&self, py: Python<'_>) -> bool {
        py.detach(|| self.with(|held| held.is_some_and(|held| held.mode() == LockMode::Shared)))
    }

    /// Whether it is no longer held, as far as this process can know.
    fn is_lost(&self, py: Python<'_>) -> bool {
        py.detach(|| self.with(|held| held.is_none_or(|held| held.is_lost())))
    }

    /// Whether it was released here.
    fn is_released(&self, py: Python<'_>) -> bool {
        py.detach(|| self.with(|held| held.is_none()))
    }

    /// Makes an exclusive lock a shared one without letting go.
    fn downgrade(&self, py: Python<'_>) -> PyResult<()> {
        let released = || {
            let name = self.name.as_deref().map_or(LockName::Number(self.lock), |name| LockName::Name(name.into()));
            Err(LockError::NotExclusive(name))
        };
        let done = py.detach(|| self.with(|held| held.map_or_else(released, |held| held.downgrade())));
        done.map_err(|error| not_granted(&error).into())
    }

    /// Releases it; a second time does nothing.
    fn release(&self, py: Python<'_>) {
        py.detach(|| drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}
