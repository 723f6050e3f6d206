//! `lockwork demo`: the point of Lockwork in half a minute, without privileges or devices.
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

/// A generator whose numbers are good enough to choose accounts: SplitMix64 (Steele et al., 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}
