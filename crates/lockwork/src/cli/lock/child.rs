//! The command that runs under a lock.
//!
//! Signals that this process gets are passed on, except those that the terminal has sent to the command as well, and
//! those that it was started to ignore, as by `nohup`: the command ignores them too. If this process dies without a
//! word, the kernel kills the command: nobody would renew its lock. Only the process that was started is ended, not
//! what it has started in turn: a process group of its own would take the terminal from it.
//!
//! *Invariant*: a signal either ends this process before the command begins, or reaches the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockwork_locknet::client::Guard;

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

/// How soon a loss is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the command to its end, or to that of the lock.
pub(super) fn run(command: &[OsString], guard: &Guard, kill_after: Duration) -> Result<ExitCode, Failure> {
    let mut child = match start(command, guard) {
        Ok(child) => child,
        Err(error) => {
            eprintln!("lockwork: cannot run '{}': {error}", command[0].display());
            return Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }));
        }
    };
    // What has come since the last look came too early for the terminal to have sent it to the command as well.
    pass_signals(&child, true);
    let mut lost: Option<Instant> = None;
    let mut killed = false;
    loop {
        if let Some(status) = child.try_wait().map_err(Failure::usage)? {
            return Ok(if lost.is_some() { ExitCode::from(4) } else { code(status) });
        }
        pass_signals(&child, false);
        match lost {
            None if guard.is_lost() => {
                eprintln!(
                    "lockwork: lock {} is lost: its session has ended, as lockd stopped or was not reached in time; ending the command",
                    guard.lock()
                );
                signal(&child, libc::SIGTERM);
                lost = Some(Instant::now());
            }
            Some(since) if !killed && since.elapsed() >= kill_after => {
                eprintln!("lockwork: the command goes on; killing it");
                signal(&child, libc::SIGKILL);
                killed = true;
            }
            _ => {}
        }
        wait(&child, LOOK);
    }
}

fn start(command: &[OsString], guard: &Guard) -> io::Result<Child> {
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
        if adopted { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    };
    // SAFETY: what runs between fork and exec makes system calls only, and allocates nothing.
    unsafe { child.pre_exec(with_parent) }.spawn()
}

/// Waits until the child has ended, a signal has come, or the time is over.
fn wait(child: &Child, time: Duration) {
    // SAFETY: a plain system call; the result is checked.
    let file = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) } as libc::c_int;
    if file < 0 {
        return std::thread::sleep(time.min(Duration::from_millis(1)));
    }
    let mut poll = libc::pollfd { fd: file, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that lives during the call; the file was opened above and is not used afterwards.
    unsafe {
        libc::poll(&raw mut poll, 1, time.as_millis() as libc::c_int);
        libc::close(file);
    }
}

/// Passes on what was noted, `all` or only what the terminal has not sent to the command as well.
fn pass_signals(child: &Child, all: bool) {
    let noted = NOTED.swap(0, Ordering::Relaxed);
    let sent = SENT.swap(0, Ordering::Relaxed);
    for number in PASSED.into_iter().filter(|number| noted >> number & 1 == 1) {
        let from_terminal = matches!(number, libc::SIGINT | libc::SIGQUIT | libc::SIGHUP) && sent >> number & 1 == 0;
        if all || !from_terminal {
            signal(child, number);
        }
    }
}

fn signal(child: &Child, number: libc::c_int) {
    // SAFETY: it has not been waited for, so its number is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, number) };
}

/// The exit code as shells have it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(code as u8)
}
