//! The class that Python has: what is asked of either kind of database.

use std::path::PathBuf;

use lockwork::RequestId;
use lockwork::sequencer::HOW_TO_MAKE;
use lockwork_client::Address;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::columns::{Data, of_data, to_data};
use crate::embedded::Embedded;
use crate::failure::Failure;
use crate::remote::{Place, Remote};
use crate::values::{Cell, Shape, of_row};

/// What a statement answered.
pub(crate) struct Answered {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Rows that were written or answered.
    pub(crate) count: i64,
}

/// The results of a call.
pub(crate) type Called = Vec<Cell>;

/// What many calls answered.
pub(crate) struct Many {
    pub(crate) columns: Vec<(Shape, Data)>,
    /// Which calls were taken back, and why.
    pub(crate) aborts: Vec<(usize, String)>,
    pub(crate) calls: usize,
}

/// The parameters and results of a procedure, as whoever calls it knows them.
#[pyclass(frozen, eq, module = "lockwork._lockwork")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Shape>,
    pub(crate) results: Vec<Shape>,
}

impl Signature {
    /// Refuses a call by somebody who knows another version.
    pub(crate) fn is_that_of(&self, caller: &Self) -> Result<(), Failure> {
        if self == caller {
            return Ok(());
        }
        let message = format!("procedure '{}' was replaced, and takes or answers something else now", self.name);
        Err(Failure::new("SqlError", "0A000", message).hint("get it anew from its connection"))
    }

    /// Refuses another number of values than of parameters.
    pub(crate) fn takes(&self, given: usize) -> Result<(), Failure> {
        let needed = self.parameters.len();
        if given == needed {
            return Ok(());
        }
        let message = format!("procedure '{}' takes {needed} arguments, and {given} are given", self.name);
        Err(Failure::value("08P01", message))
    }
}

#[pymethods]
impl Signature {
    /// Names of the parameters.
    #[getter]
    fn parameters(&self) -> Vec<&str> {
        self.parameters.iter().map(|shape| shape.name.as_str()).collect()
    }

    /// Names of the results.
    #[getter]
    fn results(&self) -> Vec<&str> {
        self.results.iter().map(|shape| shape.name.as_str()).collect()
    }
}

enum Database {
    Embedded(Box<Embedded>),
    Remote(Box<Remote>),
}

/// A database in this process or at a server. Everything may be done from any thread.
#[pyclass(frozen, module = "lockwork._lockwork")]
pub(crate) struct Connection {
    /// `None` only when it is dropped.
    database: Option<Database>,
    /// The process that made it: its threads are not in those that it forks.
    process: u32,
}

impl Connection {
    fn new(database: Database) -> Self {
        Self { database: Some(database), process: std::process::id() }
    }

    fn database(&self) -> PyResult<&Database> {
        if self.process != std::process::id() {
            let failure =
                Failure::closed("this process was forked after the database was opened, which stays its parent's");
            return Err(failure.hint("open or connect in the child; use multiprocessing's 'spawn'").into());
        }
        self.database.as_ref().ok_or_else(|| Failure::closed("the database is closed").into())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(database) = self.database.take() else { return };
        if self.process != std::process::id() {
            // Its threads are not here, and nobody would end a wait for them.
            return std::mem::forget(database);
        }
        Python::attach(|py| {
            py.detach(|| match database {
                Database::Embedded(embedded) => drop(embedded.close()),
                Database::Remote(remote) => remote.close(),
            });
        });
    }
}

#[pymethods]
impl Connection {
    /// Opens a database in a folder, or in memory without one.
    #[staticmethod]
    #[pyo3(signature = (path, engine, durability, workers, requests))]
    fn open(
        py: Python<'_>,
        path: Option<PathBuf>,
        engine: &str,
        durability: &str,
        workers: Option<usize>,
        requests: (f64, u64),
    ) -> PyResult<Self> {
        if let Some(address) = path.as_ref().filter(|path| !path.exists()).and_then(|path| path.to_str())
            && Address::is_meant(address)
        {
            let message = format!("'{address}' is no folder that is there, and looks like the address of a server");
            let hint =
                format!("lockwork.connect(\"{address}\") opens a server; a new folder of this name is \"./{address}\"");
            return Err(Failure::value("22023", message).hint(hint).into());
        }
        let embedded = Embedded::open(py, path.as_deref(), engine, durability, workers, requests)?;
        Ok(Self::new(Database::Embedded(Box::new(embedded))))
    }

    /// Connects to a server; what is said of it is a dictionary.
    #[staticmethod]
    fn connect(py: Python<'_>, place: Place) -> PyResult<Self> {
        Ok(Self::new(Database::Remote(Box::new(Remote::connect(py, &place)?))))
    }

    /// Runs one statement: names of columns, rows, and a count.
    fn execute<'py>(
        &self,
        py: Python<'py>,
        sql: &str,
        parameters: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<(Vec<String>, Bound<'py, PyList>, i64)> {
        let Answered { columns, rows, count } = match self.database()? {
            Database::Embedded(embedded) => embedded.execute(py, sql, &parameters)?,
            Database::Remote(remote) => remote.execute(py, sql, &parameters)?,
        };
        let list = PyList::empty(py);
        rows.iter().try_for_each(|row| list.append(of_row(py, row)?))?;
        Ok((columns, list, count))
    }

    /// Runs a script.
    fn define(&self, py: Python<'_>, sql: &str) -> PyResult<()> {
        match self.database()? {
            Database::Embedded(embedded) => embedded.define(py, sql),
            Database::Remote(remote) => remote.define(py, sql),
        }
    }

    /// A procedure, as it is now.
    fn procedure(&self, py: Python<'_>, name: &str) -> PyResult<Signature> {
        match self.database()? {
            Database::Embedded(embedded) => embedded.signature(py, name),
            Database::Remote(remote) => remote.signature(py, name),
        }
    }

    /// Calls a procedure with a value for each parameter.
    #[pyo3(signature = (procedure, arguments, request_id=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        procedure: &Signature,
        arguments: Vec<Bound<'py, PyAny>>,
        request_id: Option<&str>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let request = request_id.map(request_of).transpose()?;
        let row = match self.database()? {
            Database::Embedded(embedded) => embedded.call(py, procedure, &arguments, request)?,
            Database::Remote(remote) => remote.call(py, procedure, &arguments, request)?,
        };
        of_row(py, &row)
    }

    /// Makes many calls of a procedure: columns in the forms of `_columns.py`, which calls were taken back and why, and
    /// how many calls there were.
    #[pyo3(signature = (procedure, columns, scaled, request_ids=None))]
    #[expect(clippy::type_complexity, reason = "it is what Python takes apart at once")]
    fn call_many<'py>(
        &self,
        py: Python<'py>,
        procedure: &Signature,
        columns: Vec<Bound<'py, PyAny>>,
        scaled: bool,
        request_ids: Option<Vec<String>>,
    ) -> PyResult<(Vec<(String, Bound<'py, PyAny>)>, Vec<(usize, String)>, usize)> {
        let database = self.database()?;
        let Signature { parameters, results, name } = procedure;
        if let Some(shape) = parameters.iter().chain(results).find(|shape| shape.is_array) {
            let message =
                format!("'{}' is an array or rows, and each call of many takes and gives single values", shape.name);
            return Err(Failure::value("0A000", message).hint("call it one by one").into());
        }
        if columns.len() != parameters.len() || parameters.is_empty() {
            let (needed, given) = (parameters.len(), columns.len());
            let message = format!("procedure '{name}' takes {needed} columns, and {given} are given; one is needed");
            return Err(Failure::value("08P01", message).into());
        }
        let data = columns.iter().zip(parameters).map(|(column, shape)| to_data(column, shape));
        let data = data.collect::<PyResult<Vec<_>>>()?;
        let calls = data[0].len();
        if let Some(at) = data.iter().position(|column| column.len() != calls) {
            let (name, other) = (&parameters[at].name, data[at].len());
            let message = format!("the column of '{name}' has {other} values, and the first one {calls}");
            return Err(Failure::value("22023", message).into());
        }
        let requests = request_ids.unwrap_or_default();
        let requests = requests.iter().map(|id| request_of(id)).collect::<Result<Vec<_>, _>>()?;
        if !requests.is_empty() && requests.len() != calls {
            let message = format!("there are {} request ids for {calls} calls", requests.len());
            return Err(Failure::value("22023", message).into());
        }
        let many = match database {
            Database::Embedded(embedded) => embedded.call_many(py, procedure, data, &requests)?,
            Database::Remote(_) if !requests.is_empty() => return Err(no_requests()),
            Database::Remote(remote) => remote.call_many(py, procedure, data)?,
        };
        let one = |(shape, data): (Shape, Data)| Ok((shape.name, of_data(py, &data, shape.kind, scaled)?));
        Ok((many.columns.into_iter().map(one).collect::<PyResult<_>>()?, many.aborts, many.calls))
    }

    /// Writes all tables to the folder, so that opening it is fast.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        match self.database()? {
            Database::Embedded(embedded) => embedded.checkpoint(py),
            Database::Remote(_) => {
                let message = "the server takes checkpoints itself";
                Err(Failure::new("SqlError", "0A000", message).into())
            }
        }
    }

    /// Connects anew if the connection to a server has ended.
    fn reconnect(&self, py: Python<'_>) -> PyResult<()> {
        match self.database()? {
            Database::Embedded(_) => Ok(()),
            Database::Remote(remote) => remote.reconnect(py),
        }
    }

    /// Waits until everything is durable, and closes the database or the connection.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.database()? {
            Database::Embedded(embedded) => py.detach(|| embedded.close()).map_err(PyErr::from),
            Database::Remote(remote) => {
                py.detach(|| remote.close());
                Ok(())
            }
        }
    }
}

fn request_of(text: &str) -> Result<RequestId, Failure> {
    text.parse().map_err(|error: lockwork::RequestIdError| Failure::value("22023", error.to_string()).hint(HOW_TO_MAKE))
}

/// Makes a request id of now.
#[pyfunction]
pub(crate) fn request_id() -> PyResult<String> {
    let id = lockwork::request_id();
    let failed =
        |error: std::io::Error| Failure::new("Error", "58030", format!("the system has no random bytes: {error}"));
    Ok(id.map_err(failed)?.to_string())
}

fn no_requests() -> PyErr {
    let failure = Failure::new("SqlError", "0A000", "many calls at once have no request ids at a server");
    failure.hint("call one by one, with an id each").into()
}
