//! Sockets of families that the standard library does not know.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A socket that a process which is started does not inherit.
pub(crate) fn open(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: it has no preconditions.
    let socket = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}
