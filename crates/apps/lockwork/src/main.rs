//! The `lockwork` command.
//!
//! Exit codes: 0 ok; 1 a check failed; 2 usage or bad input; 3 cannot connect or bind; 4 a lock was lost; 5 data on
//! disk are damaged; 6 a back end is absent, or failed; 7 standard output takes no more; 130 interrupted. `lockwork
//! lock` ends as its command does, also with 126, 127 and 128 + N.

mod cli;

fn main() -> std::process::ExitCode {
    // Engines of several processes start this program once more.
    lockwork_partitions::worker_if_asked::<lockwork_locks::client::Locks>().unwrap_or_else(cli::main)
}
