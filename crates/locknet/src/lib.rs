//! The lock service on real networks: what gives the state machines of `lockwork-lockservice` packets and the time.
//!
//! The protocol knows no I/O and lives in a crate of its own, so that simulator and model run the very code that runs here.

pub mod kernel;
