//! The lock service as its users meet it: its commands, each in a process of its own.
//!
//! Tests whose names begin with `privileged` need root. Elsewhere they say that they are skipped.

mod bench;
mod beyond;
mod capacity;
#[path = "../common/command.rs"]
mod command;
mod daemon;
mod kernel;
mod kernel_recovery;
mod names;
mod peers;
mod protocol;
mod racks;
mod reconnect;
mod recovery;
mod sections;
mod sim;
mod watchdog;
