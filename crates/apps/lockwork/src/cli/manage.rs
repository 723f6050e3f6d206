//! `lockwork locks manage`: a process that keeps locks beyond those that the decider has words for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use lockwork_locks::client::Locks;

use super::lockd::{STOP, stop_on_signals};
use super::service::Service;
use super::{Failure, Outcome, print};

/// How soon it is seen that the session has ended, or that the process has to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(
    after_help = "When it has joined, it prints one line that begins with 'locks manage: ready'. SIGTERM and SIGINT end it: what
it kept, others keep then, or lockd itself, and nobody loses a lock. The same when it is killed, after one lease.
Exit codes: 0 ended so; 2 usage, or a service without --overflow-locks; 3 cannot connect.

  lockwork lockd --locks 1000000 --overflow-locks &
  lockwork locks manage &
  lockwork locks manage &
  lockwork lock 12345678901 -- COMMAND"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    service: Service,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    stop_on_signals();
    let mut locks = arguments.service.connect_as_manager()?;
    let said = (locks.address(), locks.machine());
    print(&format!("locks manage: ready, machine {} of {}\n", said.1, said.0))?;
    while !STOP.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
        if locks.is_connected() {
            continue;
        }
        tracing::warn!("the session has ended; joining anew");
        locks = match arguments.service.connect_as_manager() {
            Ok(locks) => locks,
            Err(Failure::Connect(why)) => {
                tracing::warn!("{why}");
                continue;
            }
            Err(failure) => return Err(failure),
        };
        tracing::info!("machine {} of {}", locks.machine(), locks.address());
    }
    drop::<Locks>(locks);
    tracing::info!("stopped; others keep what this process kept");
    Ok(())
}
