//! Which program a worker process runs, and what it does as one.
//!
//! Workers are the same program once more, told by its first argument that it is one, so that both sides are of one
//! build. A program that is to be one calls [`worker_if_asked`] before anything else, as the command `lockwork` does;
//! every other one needs that command beside it, or its path in [`PROGRAM`].

use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use lockwork_engine::EngineError;
use lockwork_locking::service::LockService;

use crate::stamps::Stamps;
use crate::stream::Stream;
use crate::worker::Inherited;
use crate::{member, worker};

/// Environment variable with the path of a program that calls [`worker_if_asked`].
pub const PROGRAM: &str = "LOCKWORK_WORKER";
/// The first argument of a worker process. Scheme, coordinator, counter and other workers follow, these as numbers of
/// open files.
pub(crate) const ARGUMENT: &str = "network-worker";
/// The schemes, which have the names of their engines.
pub(crate) const TWO_PHASE: &str = "network-two-phase";
pub(crate) const DETERMINISTIC: &str = "network-deterministic";

/// This program has called [`worker_if_asked`].
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Lets this program serve as the worker processes of its own engines. If the program was started as a worker, works
/// until the coordinator ends, and returns the exit code of the program. To be called before anything else. Workers of
/// `network-two-phase` are clients of the lock service `S`.
#[must_use]
pub fn worker_if_asked<S: LockService>() -> Option<ExitCode> {
    IS_WORKER.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| match work::<S>(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("lockwork worker: {text}");
            ExitCode::FAILURE
        }
    })
}

/// The program to start.
///
/// # Errors
/// [`EngineError::BackEndAbsent`] if there is none.
pub fn find() -> Result<PathBuf, EngineError> {
    if let Some(path) = std::env::var_os(PROGRAM) {
        return Ok(path.into());
    }
    let current = std::env::current_exe().map_err(|error| {
        EngineError::BackEndAbsent(format!("the path of this program is unknown ({error}); set {PROGRAM}"))
    })?;
    if IS_WORKER.load(Ordering::Relaxed) {
        return Ok(current);
    }
    // Tests and examples lie one folder below the command.
    let beside = current.ancestors().skip(1).take(2).map(|folder| folder.join("lockwork")).find(|path| path.is_file());
    beside.ok_or_else(|| {
        EngineError::BackEndAbsent(format!(
            "engines of several processes run in worker processes of the command 'lockwork', which is not beside '{}'; set \
             {PROGRAM} to its path, or call lockwork_partitions::worker_if_asked first in main",
            current.display()
        ))
    })
}

fn work<S: LockService>(mut arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let scheme = arguments.next();
    let inherited = inherited(arguments)?;
    match scheme.as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(TWO_PHASE) => worker::serve::<S>(inherited),
        Some(DETERMINISTIC) => member::serve(inherited),
        _ => Err(format!("'{ARGUMENT}' is for processes that an engine starts")),
    }
}

/// What the coordinator has handed over.
fn inherited(mut arguments: impl Iterator<Item = OsString>) -> Result<Inherited, String> {
    let mut next = || arguments.next().and_then(|text| text.into_string().ok());
    let usage = || format!("'{ARGUMENT}' is for processes that an engine starts");
    let coordinator = Stream::of(file(&next().ok_or_else(usage)?)?).map_err(|error| error.to_string())?;
    let stamps = Stamps::attach(file(&next().ok_or_else(usage)?)?).map_err(|error| error.to_string())?;
    let mut peers = Vec::new();
    while let Some(text) = next() {
        let stream = |text| Stream::of(file(text)?).map_err(|error| error.to_string());
        peers.push(if text == "-" { None } else { Some(stream(&text)?) });
    }
    Ok(Inherited { coordinator, peers, stamps })
}

/// Takes a file that was inherited.
fn file(number: &str) -> Result<OwnedFd, String> {
    let wrong = || format!("'{number}' is not the number of a file above 2");
    let file = number.parse::<RawFd>().ok().filter(|file| *file > 2).ok_or_else(wrong)?;
    // SAFETY: a plain system call, which fails if there is no such file.
    if unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(format!("file {file} was not inherited: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: it is open, and the coordinator has put each number here once, for this program to own.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}
