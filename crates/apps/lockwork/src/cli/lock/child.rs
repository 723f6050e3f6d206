//! The command that runs under a lock.
//!
//! Signals that this process gets are passed on, except those that the terminal has sent to the command as well, and
//! those that it was started to ignore, as by `nohup`: the command ignores them too. If this process dies without a
//! word, the kernel kills the command: nobody would renew its lock. If this process is stopped, its [`watchdog`] ends
//! the command. Only the process that was started is ended, not what it has started in turn: a process group of its own
//! would take the terminal from it.
//!
//! *Invariant*: a signal either ends this process before the command begins, or reaches the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockwork_locks::client::Guard;

use super::watchdog::{self, Deadline, Process, Watchdog};
use crate::cli::Failure;

/// Signals that are passed on.
const PASSED: [libc::c_int; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCONT];

/// Signals that have come, a bit each; and those of them that came from a process rather than from the terminal.
static NOTED: AtomicU32 = AtomicU32::new(0);
static SENT: AtomicU32 = AtomicU32::new(0);

/// From now on signals are noted instead of ending this process, if they would; and the command's end can be waited
/// for, which the kernel denies to who ignores SIGCHLD.
pub(super) fn note_signals() {
    extern "C" fn note(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        let bit = 1 << signal;
        // SAFETY: the kernel gives a valid description of the signal.
        if unsafe { (*info).si_code } <= 0 {
            SENT.fetch_or(bit, Ordering::Relaxed);
        }
        NOTED.fetch_or(bit, Ordering::Relaxed);
    }
    for signal in PASSED {
        // SAFETY: a plain C structure for which all bytes zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        // Not SA_RESTART: waiting ends when a signal has come.
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler only changes atomics; what was there before is written to a structure of ours.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut before);
            if before.sa_sigaction != libc::SIG_IGN {
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// A signal that should end this process, if one has come.
pub(super) fn noted_signal() -> Option<u8> {
    let noted = NOTED.load(Ordering::Relaxed);
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]
        .into_iter()
        .find(|signal| noted >> signal & 1 == 1)
        .map(|signal| signal as u8)
}

/// How often the deadline of the watchdog is moved, and at most how late a loss or a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the command to its end, or to that of the lock.
pub(super) fn run(command: &[OsString], guard: &Guard, kill_after: Duration) -> Result<ExitCode, Failure> {
    let name = guard.asked_for();
    let no_watchdog = |error: io::Error| {
        Failure::BackEnd(format!(
            "lock {name}: cannot start the watchdog of its command: {error}; it needs Linux 5.3, and one more process"
        ))
    };
    let deadline = Deadline::new(guard.held_until(), kill_after).map_err(no_watchdog)?;
    let first = Watchdog::start(deadline).map_err(no_watchdog)?;
    let mut child = match start(command, guard, first.socket(), deadline) {
        Ok(child) => child,
        Err(_) if guard.is_lost() || deadline.has_passed() => {
            eprintln!("lockwork: lock {name} was lost before the command began; run it again");
            return Ok(ExitCode::from(4));
        }
        Err(error) if error.raw_os_error() == Some(libc::EPIPE) => return Err(no_watchdog(error)),
        Err(error) => {
            eprintln!("lockwork: cannot run '{}': {error}", command[0].display());
            return Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }));
        }
    };
    let failed = |error: io::Error| Failure::BackEnd(format!("lock {name}: cannot wait for its command: {error}"));
    let process = Process::open(child.id() as libc::pid_t).map_err(failed)?;
    let mut watchdog = Some(first);
    // What has come since the last look came too early for the terminal to have sent it to the command as well.
    pass_signals(&process, true);
    let (mut told, mut warned) = (false, false);
    loop {
        let ended = child.try_wait().map_err(failed)?;
        let held_until = guard.held_until();
        if ended.is_none() {
            if held_until.is_zero() {
                deadline.expire()
            } else {
                deadline.extend(held_until)
            }
            deadline.enforce(&process);
        }
        if deadline.has_passed() && !told {
            watchdog.iter().for_each(Watchdog::wake);
            eprintln!("lockwork: lock {name} is lost: {}; ending the command", cause(held_until));
            told = true;
        }
        match ended {
            Some(status) if !told => return Ok(code(status)),
            Some(status) => {
                if status.signal() == Some(libc::SIGKILL) {
                    eprintln!("lockwork: lock {name}: the command did not end after SIGTERM, and was killed");
                }
                return Ok(ExitCode::from(4));
            }
            None => {}
        }
        if watchdog.is_none() {
            watchdog = match Watchdog::watching(deadline, child.id() as libc::pid_t) {
                Ok(watchdog) => Some(watchdog),
                Err(error) => {
                    if !warned {
                        eprintln!(
                            "lockwork: lock {name}: the watchdog has ended, and another cannot start: {error}; \
                             do not stop this process"
                        );
                    }
                    warned = true;
                    None
                }
            };
        }
        pass_signals(&process, false);
        if wait(&process, watchdog.as_ref()) {
            watchdog = None;
        }
    }
}

/// Why a lock was lost whose lease lasts until then, or has ended.
fn cause(held_until: Duration) -> &'static str {
    if held_until.is_zero() {
        "its session ended, because lockd stopped, or was not reached in time, or this process was stopped"
    } else {
        "this process was stopped until its lease was nearly over"
    }
}

fn start(command: &[OsString], guard: &Guard, watchdog: RawFd, deadline: &'static Deadline) -> io::Result<Child> {
    let parent = std::process::id();
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]);
    child
        .env("LOCKWORK_TOKEN", guard.token().to_string())
        .env("LOCKWORK_LOCK", guard.name().map_or_else(|| guard.lock().to_string(), str::to_string));
    let with_parent = move || {
        // SAFETY: plain system calls, which are allowed between fork and exec.
        let adopted = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::getppid() as u32 != parent
        };
        // The parent has died before the kernel knew that it matters.
        if adopted { Err(io::ErrorKind::BrokenPipe.into()) } else { watchdog::enter(watchdog, deadline) }
    };
    // SAFETY: what runs between fork and exec makes system calls only, and allocates nothing.
    unsafe { child.pre_exec(with_parent) }.spawn()
}

/// Waits until the command has ended, a signal has come, or [`POLL_INTERVAL`] is over. Returns whether the watchdog has
/// ended.
fn wait(process: &Process, watchdog: Option<&Watchdog>) -> bool {
    let mut polls = [process.as_raw_fd(), watchdog.map_or(-1, Watchdog::socket)].map(watchdog::readable);
    // SAFETY: two pollfds that live during the call.
    unsafe { libc::poll(polls.as_mut_ptr(), 2, POLL_INTERVAL.as_millis() as libc::c_int) };
    polls[1].revents != 0
}

/// Passes on what was noted, `all` or only what the terminal has not sent to the command as well.
fn pass_signals(process: &Process, all: bool) {
    let noted = NOTED.swap(0, Ordering::Relaxed);
    let sent = SENT.swap(0, Ordering::Relaxed);
    for number in PASSED.into_iter().filter(|number| noted >> number & 1 == 1) {
        let from_terminal = matches!(number, libc::SIGINT | libc::SIGQUIT | libc::SIGHUP) && sent >> number & 1 == 0;
        if all || !from_terminal {
            process.signal(number);
        }
    }
}

/// The exit code as shells have it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(code as u8)
}
