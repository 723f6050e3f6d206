//! Commands, and what they have in common.

mod alone;
mod bench;
mod capacity;
mod chart;
mod check;
mod cluster;
mod demo;
mod doctor;
mod durability;
mod engines;
mod figures;
mod fisslock;
mod inspect;
mod lock;
mod lock_peers;
mod lock_service;
mod lock_transactions;
mod lockd;
mod locks;
mod manage;
mod memory;
mod near_data;
mod opencl;
mod options;
mod partitions;
mod parts;
mod procedure;
mod progress;
mod prompt;
mod racks;
mod report;
mod requests;
mod run;
mod serve;
mod service;
mod shared_locks;
mod show;
mod sim;
mod sim_cluster;
mod spread;
mod sql;
mod up;
mod user;
mod workloads;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lockwork_engine::EngineError;

/// Why a command ends badly.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A check failed: exit code 1.
    #[error("{0}")]
    Check(String),
    /// The input is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Nobody answers, or an address is taken: exit code 3.
    #[error("{0}")]
    Connect(String),
    /// Data on disk are damaged: exit code 5.
    #[error("{0}")]
    Damaged(String),
    /// Standard output takes no more: exit code 7.
    #[error("standard output: {0}")]
    Output(std::io::Error),
    /// A back end is not on this machine, or failed, or the disk is full: exit code 6.
    #[error("{0}")]
    BackEnd(String),
    /// Somebody wanted it to end, and it has cleaned up: exit code 130, as shells have it.
    #[error("interrupted")]
    Interrupted,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::BackEndAbsent(_) | EngineError::BackEnd(_) => Self::BackEnd(error.to_string()),
            _ => Self::Usage(error.to_string()),
        }
    }
}

impl Failure {
    pub(crate) fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    pub(crate) fn connect(error: impl std::fmt::Display) -> Self {
        Self::Connect(error.to_string())
    }

    /// There is no room for what a command cannot begin without.
    pub(crate) fn no_room(error: impl std::fmt::Display) -> Self {
        Self::BackEnd(format!("the disk is full: {error}; make room and start again"))
    }

    /// What could not be done to a file of the database before it was open.
    pub(crate) fn of_file(file: &std::path::Path, error: &std::io::Error) -> Self {
        let text = format!("{}: {error}", file.display());
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::no_room(text),
            _ => Self::Usage(text),
        }
    }

    /// That of another process of this command, by what it has ended with.
    fn of_exit_code(code: i32, text: String) -> Self {
        match code {
            2 => Self::Usage(text),
            3 => Self::Connect(text),
            5 => Self::Damaged(text),
            _ => Self::BackEnd(text),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Check(_) => 1,
            Self::Usage(_) => 2,
            Self::Connect(_) => 3,
            Self::Damaged(_) => 5,
            Self::Output(_) => 7,
            Self::BackEnd(_) => 6,
            Self::Interrupted => 130,
        }
    }
}

impl Failure {
    /// The same kind of failure in other words.
    pub(crate) fn reworded(self, words: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Check(text) => Self::Check(words(text)),
            Self::Usage(text) => Self::Usage(words(text)),
            Self::Connect(text) => Self::Connect(words(text)),
            Self::Damaged(text) => Self::Damaged(words(text)),
            Self::BackEnd(text) => Self::BackEnd(words(text)),
            other @ (Self::Output(_) | Self::Interrupted) => other,
        }
    }
}

pub(crate) type Outcome = Result<(), Failure>;

/// Serializable stored-procedure transactions at hardware speed.
#[derive(Debug, Parser)]
#[command(name = "lockwork", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check what works on this machine, and how to enable the rest
    Doctor,
    /// Run every engine on one input, and check and compare the results, in half a minute
    Demo(demo::Arguments),
    /// Measure engines on workloads, lock managers, durability, clusters, devices: `lockwork help bench` lists them
    Bench(Box<bench::Arguments>),
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
    /// The other side of `bench near-data`
    #[command(hide = true)]
    NearDataPeer(near_data::peer::Arguments),
    /// The smart storage of the near-data engine, which its host starts
    #[command(hide = true)]
    SmartStorage {
        /// What the host says
        #[arg(last = true)]
        rest: Vec<std::ffi::OsString>,
    },
    /// Create, show, measure or remove lock tables in shared memory
    #[command(subcommand)]
    SharedLocks(shared_locks::Command),
    /// Simulate a protocol under faults, in simulated time, by seed
    #[command(subcommand)]
    Sim(Sim),
}

#[derive(Debug, Subcommand)]
enum Cluster {
    /// Start NATS servers and nodes on this machine, and keep them running until it is interrupted
    Up(up::Arguments),
    /// Check that every NATS server has all records
    Check(check::Arguments),
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Simulate the lock service: decider, registry, agents and clients, checked at every step
    Locks(sim::Arguments),
    /// Simulate a cluster: nodes, NATS servers and clients, checked at every message, answer and read
    Cluster(sim_cluster::Arguments),
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
    let matches = Arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match arguments.command {
        Command::Doctor => doctor::run(),
        Command::Demo(arguments) => demo::run_demo(&arguments),
        Command::Bench(arguments) => {
            let given = matches.subcommand_matches("bench").expect("that is how it came here");
            options::check(&arguments.workload, given).and_then(|()| bench::command(&arguments))
        }
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
        // It reads them itself.
        Command::SmartStorage { rest: _ } => return lockwork_neardata::coherent::storage_process(),
        Command::NearDataPeer(arguments) => near_data::peer::run(&arguments),
        Command::SharedLocks(command) => shared_locks::run(&command),
        Command::Cluster(Cluster::Up(arguments)) => up::run(&arguments),
        Command::Cluster(Cluster::Check(arguments)) => check::run(&arguments),
        Command::Sim(Sim::Locks(arguments)) => sim::run(&arguments),
        Command::Sim(Sim::Cluster(arguments)) => sim_cluster::run(&arguments),
        Command::Locks(Locks::Top(arguments)) => show::top(&arguments),
        Command::Locks(Locks::Show(arguments)) => show::show(&arguments),
        Command::Locks(Locks::Manage(arguments)) => manage::run(&arguments),
        Command::Locks(Locks::Racks(arguments)) => spread::run(&arguments),
        Command::Locks(Locks::Capacity(arguments)) => capacity::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lockwork: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Has this process, and those that it starts, make files and folders that other users of the machine cannot read.
pub(crate) fn create_for_owner_only() {
    // SAFETY: it sets a number of the process, and touches no memory.
    unsafe { libc::umask(0o077) };
}

/// Writes to standard output; that a reader has gone away is no error.
pub(crate) fn print(text: &str) -> Outcome {
    use std::io::Write;
    let mut output = std::io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}
