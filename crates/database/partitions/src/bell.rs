//! How grants of locks reach a worker's loop: the client's thread notes the transaction and rings.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// A file that is readable while transactions were woken and not yet taken.
#[derive(Debug)]
pub(crate) struct Bell {
    file: File,
    woken: Mutex<Vec<usize>>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: a plain system call; its result is checked.
        let file = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        Ok(Arc::new(Self { file: unsafe { File::from_raw_fd(file) }, woken: Mutex::default() }))
    }

    /// What wakes transaction number `slot`.
    pub(crate) fn waker(self: &Arc<Self>, slot: usize) -> Waker {
        Waker::from(Arc::new(Sleeper { bell: self.clone(), slot }))
    }

    /// Those that were woken; the bell is silent then.
    pub(crate) fn take(&self, into: &mut Vec<usize>) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        if !woken.is_empty() {
            into.append(&mut woken);
            // It may be silent already, which is as good.
            _ = (&self.file).read(&mut [0; 8]);
        }
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

struct Sleeper {
    bell: Arc<Bell>,
    slot: usize,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut woken = self.bell.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.push(self.slot);
        if woken.len() == 1 {
            // It fails only if the bell has rung already.
            _ = (&self.bell.file).write(&1_u64.to_ne_bytes());
        }
    }
}
