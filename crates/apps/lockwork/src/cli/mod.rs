//! Commands, and what they have in common.

mod capacity;
mod check;
mod cluster;
mod demo;
mod doctor;
mod inspect;
mod lock;
mod lockd;
mod logging;
mod manage;
mod parts;
mod procedure;
mod prompt;
mod racks;
mod requests;
mod serve;
mod service;
mod shared_locks;
mod show;
mod spread;
mod sql;
mod up;
mod user;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lockwork_console::{Environment, Failure, Outcome, Output, chart, duration, engines, print, progress};

/// Serializable stored-procedure transactions at hardware speed.
#[derive(Debug, Parser)]
#[command(name = "lockwork", version)]
struct Arguments {
    #[command(flatten)]
    logging: logging::Logging,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check what works on this machine, and how to enable the rest
    Doctor,
    /// Show contended transfers, a kill -9 with recovery, and a lock whose holder dies, in a quarter of a minute
    Demo(demo::Arguments),
    /// Check, assemble or disassemble a procedure
    Procedure(procedure::Arguments),
    /// Run SQL statements on a database in a folder or at a server
    Sql(sql::Arguments),
    /// Serve a database in memory or in a folder to PostgreSQL's clients
    Serve(Box<serve::Arguments>),
    /// Add, change, remove or list the users of a server
    User(user::Arguments),
    /// Print a request id for CALL .. REQUEST, which runs once however often it is repeated
    RequestId,
    /// Show and verify the files of a database
    #[command(subcommand)]
    Inspect(inspect::Command),
    /// Run the daemon of the lock service
    Lockd(lockd::Arguments),
    /// Run a command while holding a lock
    Lock(lock::Arguments),
    /// Run and check nodes that replicate a database
    #[command(subcommand)]
    Cluster(Cluster),
    /// Show and manage locks of the lock service
    #[command(subcommand)]
    Locks(Locks),
    /// Create, show or remove lock tables in shared memory
    #[command(subcommand)]
    SharedLocks(shared_locks::Command),
}

#[derive(Debug, Subcommand)]
enum Cluster {
    /// Start NATS servers and nodes on this machine, and keep them running until it is interrupted
    Up(up::Arguments),
    /// Check that every NATS server has all records
    Check(check::Arguments),
}

#[derive(Debug, Subcommand)]
enum Locks {
    /// Show the locks with most waiters, and rates
    Top(show::Top),
    /// Show who holds a lock, and who waits for it
    Show(show::Show),
    /// Keep locks beyond those that the service's decider has words for, as one of several processes
    Manage(manage::Arguments),
    /// Show which of several lockds decides on how many locks, or move locks between them
    Racks(spread::Arguments),
    /// Compute how many locks of 18 bits a programmable switch holds
    Capacity(capacity::Arguments),
}

pub(crate) fn main() -> ExitCode {
    lockwork_fpga::tell_builds(progress::tell);
    let arguments = Arguments::parse();
    if let Err(failure) = arguments.logging.start() {
        return failure.exit("lockwork");
    }
    let format = arguments.logging.format;
    let outcome = match arguments.command {
        Command::Doctor => doctor::run(),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Procedure(arguments) => procedure::run(&arguments),
        Command::Sql(arguments) => sql::run(&arguments),
        Command::Serve(arguments) => match serve::run(&arguments) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::User(arguments) => user::run(&arguments),
        Command::RequestId => requests::run(),
        Command::Inspect(command) => inspect::run(&command),
        Command::Lockd(arguments) => lockd::run(&arguments),
        Command::Lock(arguments) => match lock::run(&arguments) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::SharedLocks(command) => shared_locks::run(&command),
        Command::Cluster(Cluster::Up(arguments)) => up::run(&arguments, format),
        Command::Cluster(Cluster::Check(arguments)) => check::run(&arguments),
        Command::Locks(Locks::Top(arguments)) => show::top(&arguments),
        Command::Locks(Locks::Show(arguments)) => show::show(&arguments),
        Command::Locks(Locks::Manage(arguments)) => manage::run(&arguments),
        Command::Locks(Locks::Racks(arguments)) => spread::run(&arguments),
        Command::Locks(Locks::Capacity(arguments)) => capacity::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit("lockwork"),
    }
}

/// Has this process, and those that it starts, make files and folders that other users of the machine cannot read.
pub(crate) fn create_for_owner_only() {
    // SAFETY: it sets a number of the process, and touches no memory.
    unsafe { libc::umask(0o077) };
}
