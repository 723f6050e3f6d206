//! Whether this process was forked off the one that connected.
//!
//! A forked child has a copy of guards and locks, and the same socket; but the session is its parent's, the background
//! thread is not there, and what was locked at that moment stays locked. So it must not touch any of it.
//!
//! *Trade-off*: a handler counts forks, because `getpid` is a system call, and guards are dropped every microsecond.
//! A child that was made by a bare `clone` runs no handlers and is not noticed; but nothing of the standard library
//! works there either.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the first one that connected.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made this.
#[derive(Debug)]
pub(super) struct Owner(u32);

impl Owner {
    /// This process.
    pub(super) fn new() -> io::Result<Self> {
        static HANDLER: OnceLock<libc::c_int> = OnceLock::new();
        // SAFETY: the handler adds to an atomic number, which is allowed between fork and exec.
        match HANDLER.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) }) {
            0 => Ok(Self(GENERATION.load(Ordering::Relaxed))),
            error => Err(io::Error::from_raw_os_error(*error)),
        }
    }

    pub(super) fn is_here(&self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}
