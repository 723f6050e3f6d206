//! A process by a file: unlike its number, it never becomes another process, and it can be waited for beside others.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A file that is readable once the process has ended.
#[derive(Debug)]
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// The process of this number, which must not have been waited for.
    pub(crate) fn open(process: u32) -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0) } as libc::c_int;
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call gave a file that nobody else knows of.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(file) }))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Ends the process by force, and waits until it has ended and does nothing any more.
    pub(crate) fn kill(&self) {
        self.signal(libc::SIGKILL);
        while poll([self.as_fd()], None) == [false] {}
    }

    /// Sends a signal, if the process is still there.
    pub(crate) fn signal(&self, number: libc::c_int) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a plain system call on an open file. If the process has ended, there is nothing to do.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), number, none, 0) };
    }
}

impl From<PidFd> for OwnedFd {
    fn from(process: PidFd) -> Self {
        process.0
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the files can be read or is at its end, and says which.
pub(crate) fn poll<const N: usize>(files: [BorrowedFd<'_>; N], time: Option<Duration>) -> [bool; N] {
    let mut polls = files.map(|file| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let time = time.map_or(-1, |time| time.as_millis().try_into().unwrap_or(libc::c_int::MAX));
    // SAFETY: the array lives during the call. If it is interrupted, nothing is said to be readable.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, time) };
    polls.map(|poll| ready > 0 && poll.revents != 0)
}
