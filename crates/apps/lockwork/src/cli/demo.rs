//! `lockwork demo`: the point of Lockwork in a quarter of a minute, without privileges or devices.
//!
//! | scene | what it shows |
//! |---|---|
//! | [`transfers`] | contended transfers on every engine, each compared with serial replay |
//! | [`recovery`] | a database that is killed while it commits, and what is there afterwards |
//! | [`locks`] | a lock whose holder is killed, and when the next one gets it |

mod locks;
mod recovery;
mod transfers;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;
use lockwork_random::Random;

use super::{Environment, Failure, Outcome, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Determines everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A folder for the charts
    #[arg(long, default_value = "out/demo")]
    out: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let start = Instant::now();
    let Environment { cpu, cores, huge_pages, commit, .. } = Environment::read();
    print(&format!("{cpu}, {cores} cores, huge pages {huge_pages}, commit {commit}, seed {}\n", arguments.seed))?;
    let mut failed = transfers::show(arguments)?;
    failed.extend(recovery::show()?);
    failed.extend(locks::show()?);
    print(&format!(
        "\nChart: {}. {:.0} s.\n\nNext:\n  make serve                          a server with a bank, for psql\n  \
         lockwork sql bank                   a database in the folder bank\n  \
         lockwork lockd                      the lock service\n  \
         lockwork-bench run ycsb-a           measure engines (cargo build --release --bin lockwork-bench)\n",
        arguments.out.join("transfers.svg").display(),
        start.elapsed().as_secs_f64()
    ))?;
    if failed.is_empty() { Ok(()) } else { Err(Failure::Check(failed.join("; "))) }
}

/// Starts this program with other arguments; what it prints is read, and its errors are dropped.
fn start(arguments: &[&str]) -> Result<Process, Failure> {
    let failed = |error| Failure::BackEnd(format!("this program cannot be started once more: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map(Process).map_err(failed)
}

/// A process of the demonstration, which ends with it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and has to be waited for all the same.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
