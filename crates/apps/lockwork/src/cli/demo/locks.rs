//! A lock whose holder is killed: it is free when the holder's lease has ended, and its fencing token grows.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockwork_locks::client::Locks;
use lockwork_locks::lockd::{Lockd, Options};
use lockwork_locks::plane::InProcess;

use super::start;
use crate::cli::{Failure, print};

/// The lease of sessions: the locks of a holder that died are free so long after its last renewal.
const LEASE: Duration = Duration::from_secs(1);
/// How long the demonstration waits for a lock.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Kills the holder of a lock and waits for the lock; returns what failed.
pub(super) fn show() -> Result<Option<String>, Failure> {
    print(&format!(
        "\nA process that holds lock 'leader' is killed; sessions have a lease of {} s\n",
        LEASE.as_secs()
    ))?;
    let failed = |error: &dyn std::fmt::Display| Failure::BackEnd(format!("the lock service: {error}"));
    let address = "127.0.0.1:0".parse().expect("a constant address");
    let options = Options { fresh: true, names: 500, lease_ms: LEASE.as_millis() as u32, ..Options::new(address) };
    let mut lockd =
        Lockd::bind(&options, InProcess::new(1000).map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    let address = lockd.address().map_err(|error| failed(&error))?.to_string();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| lockd.run(&stop));
        let shown = take_over(&address);
        stop.store(true, Ordering::Relaxed);
        match daemon.join() {
            Ok(Err(error)) => Err(failed(&error)),
            _ => shown,
        }
    })
}

fn take_over(address: &str) -> Result<Option<String>, Failure> {
    let script = "echo $LOCKWORK_TOKEN; exec sleep 60";
    let mut holder = start(&["lock", "leader", "--server", address, "--", "sh", "-c", script])?;
    let mut line = String::new();
    let read = BufReader::new(holder.0.stdout.take().expect("a pipe")).read_line(&mut line);
    let token: u64 = match (read, line.trim().parse()) {
        (Ok(_), Ok(token)) => token,
        _ => return Ok(Some("the first holder did not get its lock".to_string())),
    };
    let locks = Locks::connect(address).map_err(Failure::connect)?;
    let killed = Instant::now();
    drop(holder);
    let guard = match locks.exclusive_named("leader").timeout(TIMEOUT).acquire() {
        Ok(guard) => guard,
        Err(error) => return Ok(Some(format!("the lock of a dead holder: {error}"))),
    };
    let waited = killed.elapsed();
    print(&format!(
        "the next holder has it after {} ms; its token is {}, that of the dead one was {token}\n",
        waited.as_millis(),
        guard.token()
    ))?;
    Ok((guard.token() <= token).then(|| "the fencing token did not grow".to_string()))
}
