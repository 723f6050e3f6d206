//! A database in this process.
//!
//! Definitions, and the understanding of statements, go through one lock. Calls do not: those of all threads share
//! batches and writes of the log.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockwork::sql::{Kind, Statement, Value, statements};
use lockwork::{
    Caller, Columns, EngineKind, Error, Lockwork, OpenOptions, Options, Prepared, Procedure, RequestId, SqlAnswer,
    sequencer,
};
use pyo3::prelude::*;
use tokio::sync::oneshot;

use crate::columns::Data;
use crate::connection::{Answered, Called, Many, Signature};
use crate::failure::Failure;
use crate::values::{Cell, Shape, to_value};
use crate::wait;

/// The most statements that are kept understood.
const MAX_KEPT: usize = 1024;
/// Calls of a batch, and batches on the way.
const CALLS: usize = 16_384;
const BATCHES: usize = 4;

pub(crate) struct Embedded {
    /// `None` when it has been closed.
    database: Mutex<Option<Lockwork>>,
    caller: Caller,
    /// Counts definitions: what was understood before one is looked at again.
    definitions: AtomicU64,
    statements: Kept<Prepared>,
    procedures: Kept<Arc<Known>>,
}

/// A procedure, and its parameters and results in the words of Python.
struct Known {
    procedure: Procedure,
    signature: Signature,
}

/// What was understood, with the number of definitions that there were.
type Kept<T> = Mutex<HashMap<String, (u64, T)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left in half by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> Failure {
    Failure::closed("the database is closed")
}

impl Embedded {
    pub(crate) fn open(
        py: Python<'_>,
        path: Option<&Path>,
        engine: &str,
        durability: &str,
        workers: Option<usize>,
        (request_window, request_memory): (f64, u64),
    ) -> PyResult<Self> {
        let option = |error: &dyn std::fmt::Display| Failure::value("22023", error.to_string());
        let engine = EngineKind::find(engine, EngineKind::CPU).map_err(|error| option(&error))?;
        let durability = durability.parse().map_err(|error| option(&error))?;
        let threads = workers.unwrap_or(Options::default().threads);
        let options = OpenOptions {
            engine,
            engine_options: Options { threads, ..Options::default() },
            sequencer: sequencer::Options {
                durability,
                request_window: Duration::try_from_secs_f64(request_window).map_err(|error| option(&error))?,
                request_memory,
                ..sequencer::Options::default()
            },
        };
        let opened = py.detach(|| {
            let database = match path {
                Some(path) => Lockwork::open_with(path, &options, |_| {})?.0,
                None => Lockwork::open_in_memory_with(&options)?,
            };
            let caller = database.caller();
            Ok((database, caller))
        });
        let (database, caller) = opened.map_err(|error: Error| Failure::of(error, ""))?;
        Ok(Self {
            database: Mutex::new(Some(database)),
            caller,
            definitions: AtomicU64::new(0),
            statements: Mutex::default(),
            procedures: Mutex::default(),
        })
    }

    /// Does something with the database, alone.
    fn with<T>(&self, source: &str, act: impl FnOnce(&mut Lockwork) -> Result<T, Error>) -> Result<T, Failure> {
        let mut database = lock(&self.database);
        act(database.as_mut().ok_or_else(closed)?).map_err(|error| Failure::of(error, source))
    }

    fn kept<T: Clone>(
        &self,
        kept: &Kept<T>,
        key: &str,
        understand: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let definitions = self.definitions.load(Ordering::Acquire);
        if let Some((_, known)) = lock(kept).get(key).filter(|(then, _)| *then == definitions) {
            return Ok(known.clone());
        }
        let understood = understand()?;
        let mut kept = lock(kept);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(key.to_string(), (definitions, understood.clone()));
        Ok(understood)
    }

    /// As [`Self::kept`], a statement whose place no other one has taken since.
    fn current(&self, key: &str, understand: impl Fn() -> Result<Prepared, Failure>) -> Result<Prepared, Failure> {
        let prepared = self.kept(&self.statements, key, &understand)?;
        if self.caller.is_current(&prepared) {
            return Ok(prepared);
        }
        lock(&self.statements).remove(key);
        self.kept(&self.statements, key, &understand)
    }

    fn run(&self, py: Python<'_>, block: Vec<u8>) -> PyResult<Vec<u8>> {
        let (sender, ran) = oneshot::channel();
        let then = move |block: Result<Vec<u8>, Error>| drop(sender.send(block));
        self.caller.run_then(block, then).map_err(|error| Failure::of(error, ""))?;
        let block = wait::finish(py, ran)?.map_err(|_| closed())?;
        Ok(block.map_err(|error| Failure::of(error, ""))?)
    }

    pub(crate) fn execute(&self, py: Python<'_>, text: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Answered> {
        let prepared = py.detach(|| self.current(text, || self.understand(text)));
        let mut prepared = match prepared {
            Ok(prepared) => prepared,
            // Definitions are no prepared statements.
            Err(failure) => return self.execute_definition(py, text, values.len(), failure),
        };
        let fields = prepared.parameters();
        if fields.len() != values.len() {
            let (needed, given) = (fields.len(), values.len());
            let message = format!("the statement has {needed} parameters, and {given} are given");
            return Err(Failure::value("08P01", message).into());
        }
        let is_call = prepared.kind() == Kind::Call;
        let shape = |field| if is_call { Shape::of(field) } else { Shape::of_operand(field) };
        let one = |(field, value): (_, &Bound<'_, PyAny>)| to_value(value, &shape(field));
        let values = fields.iter().zip(values).map(one).collect::<PyResult<Vec<_>>>()?;
        if let Some(scales) = prepared.scales(&values) {
            let scaled = || {
                let statement = only(text)?;
                self.with(text, |database| database.prepare_for(&statement, &scales))
            };
            prepared = py.detach(|| self.current(&format!("{scales:?} {text}"), scaled))?;
        }
        let Some(block) = prepared.block(&values).map_err(|error| Failure::of(error, ""))? else {
            return Ok(answered(prepared.nothing()));
        };
        let block = self.run(py, block)?;
        Ok(answered(prepared.answer(&block).map_err(|error| Failure::of(error, ""))?))
    }

    /// Understands a CALL or single statement.
    fn understand(&self, text: &str) -> Result<Prepared, Failure> {
        let statement = only(text)?;
        match statement.kind() {
            Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure | Kind::Explain => {
                Err(Failure::new("SqlError", DEFINITION, "a definition is not prepared"))
            }
            _ => self.with(text, |database| database.prepare(&statement)),
        }
    }

    fn execute_definition(&self, py: Python<'_>, text: &str, given: usize, why: Failure) -> PyResult<Answered> {
        let is_definition = only(text).is_ok_and(|statement| {
            matches!(statement.kind(), Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure | Kind::Explain)
        });
        if !is_definition {
            return Err(why.into());
        }
        if given > 0 {
            let message = format!("a definition has no parameters, and {given} are given");
            return Err(Failure::value("08P01", message).into());
        }
        let answers = py.detach(|| self.define_all(text))?;
        answers.into_iter().next().map(answered).ok_or_else(|| Failure::new("SqlError", "42601", EMPTY).into())
    }

    fn define_all(&self, text: &str) -> Result<Vec<SqlAnswer>, Failure> {
        let answers = self.with(text, |database| database.sql(text));
        self.definitions.fetch_add(1, Ordering::Release);
        answers
    }

    pub(crate) fn define(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        py.detach(|| self.define_all(text)).map(drop).map_err(PyErr::from)
    }

    fn known(&self, py: Python<'_>, name: &str) -> Result<Arc<Known>, Failure> {
        let understand = || {
            let procedure = self.with("", |database| database.procedure(name))?;
            let parameters = procedure.parameters().iter().map(Shape::of).collect();
            let results = procedure.results().iter().map(Shape::of).collect();
            Ok(Arc::new(Known { procedure, signature: Signature { name: name.to_string(), parameters, results } }))
        };
        py.detach(|| self.kept(&self.procedures, name, understand))
    }

    pub(crate) fn signature(&self, py: Python<'_>, name: &str) -> PyResult<Signature> {
        Ok(self.known(py, name)?.signature.clone())
    }

    pub(crate) fn call(
        &self,
        py: Python<'_>,
        caller: &Signature,
        values: &[Bound<'_, PyAny>],
        request: Option<RequestId>,
    ) -> PyResult<Called> {
        let known = self.known(py, &caller.name)?;
        let Known { procedure, signature } = &*known;
        signature.is_that_of(caller)?;
        signature.takes(values.len())?;
        let one = |(shape, value): (_, &Bound<'_, PyAny>)| to_value(value, shape);
        let values = signature.parameters.iter().zip(values).map(one).collect::<PyResult<Vec<_>>>()?;
        let block = procedure.block(&values, request).map_err(|error| Failure::of(error, ""))?;
        let block = self.run(py, block)?;
        let results = procedure.answer(&block).map_err(|error| Failure::of(error, ""))?;
        Ok(results.into_iter().map(Cell::Value).collect())
    }

    pub(crate) fn call_many(
        &self,
        py: Python<'_>,
        caller: &Signature,
        data: Vec<Data>,
        requests: &[RequestId],
    ) -> PyResult<Many> {
        let known = self.known(py, &caller.name)?;
        let Known { procedure, signature } = &*known;
        signature.is_that_of(caller)?;
        let calls = data.first().map_or(0, Data::len);
        let columns: Vec<_> = data.into_iter().map(Data::into_column).collect();
        let of = |error| Failure::of(error, "");
        py.detach(|| procedure.check(&columns)).map_err(of)?;
        let mut answer = Columns::default();
        let mut on_the_way = VecDeque::new();
        let mut begin = 0;
        let mut said = None;
        // While one batch runs, the next is made.
        while begin < calls || !on_the_way.is_empty() {
            while begin < calls && on_the_way.len() < BATCHES && said.is_none() {
                let end = calls.min(begin + CALLS);
                let handed = py.detach(|| {
                    let batch = procedure.batch(&columns, begin..end, requests)?;
                    let (sender, ran) = oneshot::channel();
                    self.caller.submit_then(batch, move |batch| drop(sender.send(batch)))?;
                    Ok(ran)
                });
                match handed {
                    Ok(ran) => on_the_way.push_back(ran),
                    Err(error) => said = Some(of(error)),
                }
                begin = end;
            }
            let Some(ran) = on_the_way.pop_front() else { break };
            match wait::finish(py, ran)?.map_err(|_| closed()).and_then(|batch| batch.map_err(of)) {
                Ok(batch) => py.detach(|| procedure.outcomes(&batch, &mut answer)),
                Err(failure) => said = said.or(Some(failure)),
            }
        }
        if let Some(failure) = said {
            return Err(failure.after(&format!(" (at least {} of the {calls} calls were made)", answer.calls)).into());
        }
        if calls == 0 {
            let empty = procedure.batch(&columns, 0..0, &[]).map_err(of)?;
            procedure.outcomes(&empty, &mut answer);
        }
        let columns = signature.results.iter().zip(answer.results).map(|(shape, column)| {
            let data = Data::of_column(column, shape);
            (shape.clone(), data)
        });
        let aborts = answer.aborts.into_iter().map(|(at, sqlstate, _)| (at, sqlstate)).collect();
        Ok(Many { columns: columns.collect(), aborts, calls })
    }

    pub(crate) fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with("", |database| database.checkpoint())).map(drop).map_err(PyErr::from)
    }

    /// Closes it; a second time does nothing.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let database = lock(&self.database).take();
        database.map_or(Ok(()), Lockwork::close).map_err(|error| Failure::of(error, ""))
    }
}

/// What tells a definition from a statement that is wrong.
const DEFINITION: &str = "0A000";
const EMPTY: &str = "there is no statement";

/// The only statement of a text.
fn only(text: &str) -> Result<Statement<'_>, Failure> {
    let mut all = statements(text);
    let first = all.next().ok_or_else(|| Failure::new("SqlError", "42601", EMPTY))?;
    let first = first.map_err(|error| Failure::of(error.into(), text))?;
    match all.next() {
        None => Ok(first),
        Some(_) => {
            let failure = Failure::new("SqlError", "42601", "several statements cannot be executed as one");
            Err(failure.hint("define() runs a script"))
        }
    }
}

fn answered(answer: SqlAnswer) -> Answered {
    let empty = || (Vec::new(), Vec::new());
    let ((columns, rows), count) = match answer {
        SqlAnswer::Rows(columns, rows) => {
            let count = rows.len() as i64;
            ((columns, rows), count)
        }
        SqlAnswer::Called(results) if results.is_empty() => (empty(), 0),
        SqlAnswer::Called(results) => {
            let (columns, row): (_, Vec<Value>) = results.into_iter().unzip();
            ((columns, vec![row]), 1)
        }
        SqlAnswer::Written(count) => (empty(), count),
        SqlAnswer::Text(text) => {
            let rows: Vec<_> = text.lines().map(|line| vec![Value::Text(line.into())]).collect();
            let count = rows.len() as i64;
            ((vec!["QUERY PLAN".into()], rows), count)
        }
        _ => (empty(), 0),
    };
    let rows = rows.into_iter().map(|row| row.into_iter().map(Cell::Value).collect()).collect();
    Answered { columns, rows, count }
}
