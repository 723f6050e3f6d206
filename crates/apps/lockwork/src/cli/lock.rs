//! `lockwork lock NAME -- COMMAND`: a command under a lock, as `flock` and `etcdctl lock` do it.
//!
//! The command runs while the lock is held and is ended when it is lost. It finds its fencing token in LOCKWORK_TOKEN.
//!
//! If this process is stopped, a [`watchdog`] ends the command before the lease is over. If this process is killed, the
//! kernel kills the command.
//!
//! *Trade-off*: if both this process and the watchdog are stopped, nobody ends the command in time; then only the token
//! protects what it writes.

mod child;
mod watchdog;

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use clap::Args;
use lockwork_locks::client::{ConnectError, Guard, LockError, LockName, Locks};

use super::service::{Lock, Service, lock};
use super::{Failure, duration};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: that of the command; 128 + N if signal N ended it, or came before it was started; 126 or 127
if it cannot be started; 1 if the lock is busy (--try) or was not granted in time (--timeout); 2 usage; 3 cannot
connect; 4 the lock was lost; 6 the watchdog of the command cannot be started.
The command finds its fencing token in LOCKWORK_TOKEN and the lock in LOCKWORK_LOCK.
While it waits for the lock it connects again when lockd was started anew; --timeout counts from the start.
When the lock is lost, or this process is killed, or stopped until its lease is nearly over, only the command itself is
ended, not what it has started: let a script exec its last command.

  lockwork lock backups --timeout 5s -- sh -c 'exec ./backup --token $LOCKWORK_TOKEN'"
)]
pub(super) struct Arguments {
    /// The lock: a name of 1 to 255 bytes, or a number from 0
    #[arg(value_name = "NAME", value_parser = lock, allow_negative_numbers = true)]
    id: Lock,
    #[command(flatten)]
    service: Service,
    /// Share the lock with other readers
    #[arg(long)]
    shared: bool,
    /// Wait no longer than this: 500ms, 5s, 2m [default: wait]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_negative_numbers = true, conflicts_with = "try_only")]
    timeout: Option<Duration>,
    /// Do not wait for somebody else who holds it: exit code 1 then
    #[arg(long = "try")]
    try_only: bool,
    /// When the lock is lost, the command gets SIGTERM, and after this time SIGKILL; at most an eighth of the lease, so
    /// that it ends before anybody else can get the lock [default: a 16th of the lease]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_negative_numbers = true)]
    kill_after: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.timeout == Some(Duration::ZERO) {
        return Err(Failure::usage("--timeout 0s: give more than 0, or --try, which does not wait"));
    }
    let start = Instant::now();
    let locks = arguments.service.connect(arguments.timeout)?;
    let longest = locks.lease() / 8;
    let kill_after = arguments.kill_after.unwrap_or(locks.lease() / 16);
    if kill_after > longest {
        return Err(Failure::usage(format!(
            "--kill-after {kill_after:?}: the command would outlive the lease of {:?}; give at most {longest:?}, or start \
             lockd with a longer --lease",
            locks.lease()
        )));
    }
    child::note_signals();
    let until = arguments.timeout.and_then(|timeout| start.checked_add(timeout));
    let guard = match acquire(&locks, arguments, until) {
        Ok(guard) => guard,
        Err(Ended::Signal(signal)) => return Ok(ExitCode::from(128 + signal)),
        Err(Ended::Failure(failure)) => {
            return child::noted_signal().map_or(Err(failure), |signal| Ok(ExitCode::from(128 + signal)));
        }
    };
    if let Some(signal) = child::noted_signal() {
        return Ok(ExitCode::from(128 + signal));
    }
    let code = child::run(&arguments.command, &guard, kill_after);
    drop(guard);
    code
}

/// Why there is no guard.
enum Ended {
    Signal(u8),
    Failure(Failure),
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// How soon a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits for the lock, or for a signal, which withdraws the request. `until` is when --timeout is over.
///
/// When the session ends meanwhile, it begins a new one and asks again: this process holds no other lock that could be
/// lost with the session.
fn acquire(locks: &Locks, arguments: &Arguments, until: Option<Instant>) -> Result<Guard, Ended> {
    let mut told = false;
    loop {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let error = match request(locks, arguments, timeout)? {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let is_gone = matches!(error, LockError::Disconnected(_) | LockError::Connect(ConnectError::NoAnswer { .. }));
        let is_over = until.is_some_and(|until| until <= Instant::now());
        if !is_gone || is_over || arguments.try_only {
            return Err(failure(&arguments.id.name(), error));
        }
        if !told {
            let (name, address) = (arguments.id.name(), locks.address());
            eprintln!(
                "lockwork: the session with lockd at {address} ended while lock {name} was waited for; connecting again"
            );
        }
        told = true;
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Asks for the lock once.
fn request(locks: &Locks, arguments: &Arguments, timeout: Option<Duration>) -> Result<Result<Guard, LockError>, Ended> {
    let request = match (&arguments.id, arguments.shared) {
        (Lock::Number(number), false) => locks.exclusive(*number),
        (Lock::Number(number), true) => locks.shared(*number),
        (Lock::Name(name), false) => locks.exclusive_named(name),
        (Lock::Name(name), true) => locks.shared_named(name),
    };
    let request = timeout.map_or(request, |timeout| request.timeout(timeout));
    if arguments.try_only {
        return Ok(request.try_acquire());
    }
    let mut waits = std::pin::pin!(request.acquire_async());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(answer) = waits.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(answer);
        }
        if let Some(signal) = child::noted_signal() {
            return Err(Ended::Signal(signal));
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

fn failure(name: &LockName, error: LockError) -> Ended {
    Ended::Failure(match error {
        LockError::NoSuchLock { .. } | LockError::BadName(_) => Failure::usage(error),
        LockError::NoNames => Failure::usage(format!("lock {name}: {error}")),
        LockError::NamesFull(_) => Failure::Check(format!("lock {name}: {error}")),
        LockError::Connect(_) => Failure::connect(format!("lock {name}: {error}")),
        LockError::Disconnected(_) => Failure::connect(error),
        _ => Failure::Check(error.to_string()),
    })
}
