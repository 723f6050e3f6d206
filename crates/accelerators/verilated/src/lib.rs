//! A SystemVerilog module as a Rust value.
//!
//! [`Build`] has Verilator translate a module to C++, adds a shim with a C interface that is the same for every module
//! (ports by number, each with its name, width and address), and compiles both: to a shared object that
//! [`Build::load`] opens, for tests, or to objects that a build script links. A [`Model`] is one instance; its ports
//! are read and written where the model keeps them, so driving one costs a load or a store.
//!
//! Objects are kept by the digest of all sources and options, so what has not changed is not built again.
//!
//! Simulation is of two states and of one clock: registers begin with random values, set by a seed, because a design
//! must not depend on them.

mod build;
mod model;
mod port;
mod tool;

pub use build::{Build, BuildError, tell_builds};
pub use model::{Model, Note};
pub use port::{Direction, Port, PortError};
pub use tool::{Verilator, tools};
