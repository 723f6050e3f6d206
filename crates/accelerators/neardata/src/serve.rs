//! The storage's main loop: as many threads as calls are in flight carry them out, and this one watches the host.
//!
//! A thread that takes a call first sees to it that another one waits for the next, so short calls never wait for a
//! bulk operation. Threads are started when they are missed and kept until the end; there are at most one more than
//! calls in flight.
//!
//! Invariant: the loop ends when the host says so, when the host's process is gone however it went, when the host sends
//! what makes no sense, or when the device panics; and it commits nothing by itself. What a bulk update has written
//! and not committed is dropped with the process.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::channel::Job;
use crate::channel::StorageEnd;
use crate::channel::pidfd::poll;
use crate::channel::port::{End, Port};
use crate::device::Device;

/// How serving ended, if it ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The host needs it no more. All calls had been answered.
    ShutDown,
    /// The host's process is gone. Calls may still be running; end this process.
    HostGone,
}

/// Why serving ended otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The host sent what makes no sense.
    #[error("the host sent what makes no sense: {0}")]
    Broken(String),
    /// The device panicked, so nobody knows in what state it is.
    #[error("the storage panicked: {0}")]
    Panicked(String),
    /// The system refused something.
    #[error("serving the channel: {0}")]
    System(#[from] io::Error),
}

struct Shared {
    port: Port,
    device: Arc<dyn Device>,
    /// Threads that wait for a call.
    idle: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Written to when it is over.
    over: File,
}

/// Serves `device` to the host behind the channel until one of them ends. `host` is a pidfd of the host's process.
///
/// # Errors
/// [`ServeError`]. Calls may still be running then; end this process.
pub fn serve(channel: StorageEnd, host: OwnedFd, device: Arc<dyn Device>) -> Result<Served, ServeError> {
    // SAFETY: a plain system call; the result is checked.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if event < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the call gave a file that nobody else knows of.
    let over = File::from(unsafe { OwnedFd::from_raw_fd(event) });
    let (idle, threads) = Default::default();
    let shared = Arc::new(Shared { port: channel.port, device, idle, threads, over });
    start(&shared)?;
    let mine = shared.clone();
    let stand_in = thread::Builder::new().name("lockwork-doorbell".into()).spawn(move || mine.port.stand_in())?;
    shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(stand_in);
    // If that fails, the threads see it too.
    let _ = shared.port.ready();
    let [host_gone, _] = loop {
        let ready = poll([host.as_fd(), shared.over.as_fd()], None);
        if ready != [false, false] {
            break ready;
        }
    };
    if host_gone {
        shared.port.finish(End::Gone("the host is gone".into()));
    }
    match shared.port.ended() {
        Some(End::Gone(_)) | None => Ok(Served::HostGone),
        Some(End::Broken(problem)) => Err(ServeError::Broken(problem.clone())),
        Some(End::Panicked(text)) => Err(ServeError::Panicked(text.clone())),
        Some(End::Shutdown) => {
            loop {
                let thread = shared.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let Some(thread) = thread else { break };
                thread.join().expect("panics are caught in the thread");
            }
            Ok(Served::ShutDown)
        }
    }
}

fn start(shared: &Arc<Shared>) -> io::Result<()> {
    shared.idle.fetch_add(1, Ordering::SeqCst);
    let mine = shared.clone();
    let thread = thread::Builder::new().name("lockwork-call".into()).spawn(move || work(&mine))?;
    shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    Ok(())
}

fn work(shared: &Arc<Shared>) {
    let taken = || {
        // Without a thread the calls wait for this one, which is slower but not wrong.
        if shared.idle.fetch_sub(1, Ordering::SeqCst) == 1 && start(shared).is_err() {
            shared.idle.fetch_sub(1, Ordering::SeqCst);
        }
    };
    loop {
        let served = catch_unwind(AssertUnwindSafe(|| Job::serve(&shared.port, &*shared.device, taken)));
        match served {
            Ok(Ok(())) => shared.idle.fetch_add(1, Ordering::SeqCst),
            Ok(Err(_)) => break,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref().copied()).unwrap_or("without a text");
                shared.port.finish(End::Panicked(text.into()));
                break;
            }
        };
    }
    let _ = (&shared.over).write(&1_u64.to_ne_bytes());
}
