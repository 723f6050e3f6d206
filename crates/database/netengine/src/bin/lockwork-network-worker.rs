//! A worker of the `network-two-phase` engine, for programs that are none themselves. Its coordinator starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockwork_netengine::worker_if_asked().unwrap_or_else(|| {
        eprintln!("this program is started by engines of Lockwork that run in several processes");
        ExitCode::from(2)
    })
}
