//! The shared lock table between real processes, which are killed, stopped and damaged at.
//!
//! Tests whose names begin with `privileged` need root. Elsewhere they say that they are skipped.

mod book;
mod child;
mod faults;
mod golden;
mod interface;
mod kill;
mod random;
mod scenarios;
mod support;
mod waiting;
