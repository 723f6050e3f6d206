//! Lockwork in Python.
//!
//! | module | idea |
//! |---|---|
//! | `connection` | the class that Python has: what is asked of either kind of database |
//! | `embedded` | a database in this process |
//! | `remote` | one at a server |
//! | `link` | a connection to it |
//! | `wire` | values as PostgreSQL's protocol has them |
//! | `values` | Python's values and ours |
//! | `columns` | columns of values |
//! | `locks` | the lock client |
//! | `wait` | waiting without the interpreter's lock |
//! | `failure` | errors |
//!
//! The classes and functions that people use are written in Python, above this (`package/lockwork/`), because
//! signatures, documentation and types are read there; what costs time is here.

#![deny(unsafe_code)]

mod columns;
mod connection;
mod embedded;
mod failure;
mod link;
mod locks;
mod remote;
mod values;
mod wait;
mod wire;

use pyo3::prelude::*;

/// The module that `lockwork` is built on.
#[pymodule]
fn _lockwork(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(connection::request_id, module)?)?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<connection::Signature>()?;
    module.add_class::<locks::Session>()?;
    module.add_class::<locks::Guard>()
}
