//! The `lockwork` command.
//!
//! Exit codes: 0 ok; 1 a check failed; 2 usage or bad input; 3 cannot connect or bind; 6 a back end is absent, or
//! failed; 130 interrupted.

mod cli;
mod engines;

fn main() -> std::process::ExitCode {
    cli::main()
}
