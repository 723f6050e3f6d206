//! The smart storage of the near-data engine, as a process of its own. Its host starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockwork_neardata::coherent::storage_process()
}
