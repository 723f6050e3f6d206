//! The `lockwork-bench` command: measures engines, locks, durability and devices, simulates protocols under faults, and
//! repeats the figures of papers.
//!
//! Exit codes are those of `lockwork`: 0 ok; 1 a check failed; 2 usage or bad input; 3 cannot connect or bind; 6 a back
//! end is absent, or failed; 7 standard output cannot be written; 130 interrupted.

mod durability;
mod figures;
mod fisslock;
mod lock_peers;
mod lock_service;
mod lock_transactions;
mod locks;
mod measure;
mod memory;
mod near_data;
mod opencl;
mod options;
mod partitions;
mod report;
mod run;
mod server;
mod shared_locks;
mod sim_cluster;
mod sim_locks;
mod workloads;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lockwork_console::engines::{self, EngineOptions};
use lockwork_console::{Environment, Failure, Outcome, Output, chart, print, progress};

/// Measures Lockwork on this machine, and everything beside its baseline.
#[derive(Debug, Parser)]
#[command(name = "lockwork-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a workload on engines, one after the other, on identical input
    #[command(subcommand)]
    Run(Box<run::Workload>),
    /// Measure engines beside each other over skew, size and workload
    Engines(figures::EnginesArguments),
    /// Measure lock managers without transactions
    Locks(locks::Arguments),
    /// Measure the random reads that this machine's memory allows
    Memory(memory::Arguments),
    /// Measure copies of transaction blocks to an OpenCL device and back
    Copy(opencl::CopyArguments),
    /// Measure durable transfers, beside SQLite and PostgreSQL
    Durability(durability::Arguments),
    /// Measure transfers on nodes that replicate a database over NATS
    Cluster(durability::TransferArguments),
    /// Measure calls of clients of a server, durable and in memory
    Server(server::Arguments),
    /// Measure what a transaction costs on tables that are divided over nodes
    Partitions(partitions::Arguments),
    /// Measure lock services and a lock server, between network namespaces of this host
    LockService(lock_service::Arguments),
    /// Measure the lock service beside Redis, RedLock and etcd
    LockPeers(lock_peers::Arguments),
    /// Measure transactions by lock manager, between network namespaces of this host
    #[command(subcommand)]
    LockTransactions(lock_transactions::Benchmark),
    /// Measure how long locks are unavailable after the decider dies
    LockRecovery(lock_peers::RecoveryArguments),
    /// Measure the lock tables of shared memory
    SharedLocks(shared_locks::Arguments),
    /// Measure host and smart storage that share a lock table
    NearData(near_data::Arguments),
    /// Measure the engines of an OpenCL device
    Opencl(opencl::Arguments),
    /// Measure the simulated transaction processor, in cycles
    Fpga(figures::FpgaArguments),
    /// Simulate a protocol under faults, in simulated time, by seed
    #[command(subcommand)]
    Sim(Sim),
    /// Repeat the figures of a paper
    #[command(subcommand)]
    Paper(Paper),
    /// The other side of `near-data`
    #[command(hide = true)]
    NearDataPeer(near_data::peer::Arguments),
    /// The smart storage of the near-data engine, which its host starts
    #[command(hide = true)]
    SmartStorage {
        /// The arguments from the host
        #[arg(last = true)]
        rest: Vec<std::ffi::OsString>,
    },
    /// A process of `shared-locks`
    #[command(hide = true)]
    SharedLocksProcess(shared_locks::Process),
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Simulate the lock service: decider, registry, agents and clients, checked at every step
    Locks(sim_locks::Arguments),
    /// Simulate a cluster: nodes, NATS servers and clients, checked at every message, answer and read
    Cluster(sim_cluster::Arguments),
}

#[derive(Debug, Subcommand)]
enum Paper {
    /// HOBBES: batches, planning and kernels on an OpenCL device
    Hobbes(opencl::Arguments),
    /// BionicDB: interleaving and scans on the CPU (figures 10 to 13); `fpga` has the transaction processor
    Bionicdb(figures::Arguments),
    /// FissLock: grants, hotspots, numbers of locks and granularity (figures 13, 14, 16 and 17)
    Fisslock(fisslock::Arguments),
    /// neoDBMS: the lock table that host and smart storage share (figures 4 to 6)
    Neodbms(near_data::Arguments),
}

fn main() -> ExitCode {
    // Engines of several processes start this program once more.
    lockwork_partitions::worker_if_asked::<lockwork_locks::client::Locks>().unwrap_or_else(command)
}

fn command() -> ExitCode {
    lockwork_fpga::tell_builds(progress::tell);
    let outcome = match Arguments::parse().command {
        Command::Run(workload) => run::command(&workload),
        Command::Engines(arguments) => figures::engines(&arguments),
        Command::Locks(arguments) => locks::command(&arguments),
        Command::Memory(arguments) => memory::command(&arguments),
        Command::Copy(arguments) => opencl::copy(&arguments),
        Command::Durability(arguments) => durability::command(&arguments),
        Command::Cluster(arguments) => durability::cluster(&arguments),
        Command::Server(arguments) => server::command(&arguments),
        Command::Partitions(arguments) => partitions::command(&arguments),
        Command::LockService(arguments) => lock_service::command(&arguments),
        Command::LockPeers(arguments) => lock_peers::command(&arguments),
        Command::LockTransactions(benchmark) => lock_transactions::command(&benchmark),
        Command::LockRecovery(arguments) => lock_peers::recovery(&arguments),
        Command::SharedLocks(arguments) => shared_locks::command(&arguments),
        Command::NearData(arguments) | Command::Paper(Paper::Neodbms(arguments)) => near_data::command(&arguments),
        Command::Opencl(arguments) | Command::Paper(Paper::Hobbes(arguments)) => opencl::command(&arguments),
        Command::Fpga(arguments) => figures::fpga(&arguments),
        Command::Sim(Sim::Locks(arguments)) => sim_locks::command(&arguments),
        Command::Sim(Sim::Cluster(arguments)) => sim_cluster::command(&arguments),
        Command::Paper(Paper::Bionicdb(arguments)) => figures::bionicdb(&arguments),
        Command::Paper(Paper::Fisslock(arguments)) => fisslock::command(&arguments),
        Command::NearDataPeer(arguments) => near_data::peer::command(&arguments),
        // It reads its arguments itself.
        Command::SmartStorage { rest: _ } => return lockwork_neardata::coherent::storage_process(),
        Command::SharedLocksProcess(arguments) => shared_locks::process(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit("lockwork-bench"),
    }
}
