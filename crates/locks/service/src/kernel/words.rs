//! The locks of the eBPF programs, mapped into this process.
//!
//! The map is an array with `BPF_F_MMAPABLE`, so its memory is shared, and a lock is a [`WideLock`] here as there:
//! two words that are only changed by atomic operations on either side.

use aya::maps::MapData;
use lockwork_lock_protocol::decider::WideLock;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

#[derive(Debug)]
struct Mapping {
    at: NonNull<WideLock>,
    locks: usize,
}

// SAFETY: a mapping is memory that any thread may use and unmap, and locks are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `Words::map` with this length, and nobody borrows it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.locks * size_of::<WideLock>()) };
    }
}

/// Locks that a process shares with eBPF programs. Clones are the same locks.
#[derive(Clone, Debug)]
pub struct Words(Arc<Mapping>);

impl Words {
    /// Maps the `locks` locks of a map.
    pub(super) fn map(map: &MapData, locks: u32) -> io::Result<Self> {
        let locks = locks as usize;
        let bytes = locks.checked_mul(size_of::<WideLock>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = map.fd().as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that is in use.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Mapping { at, locks })))
    }
}

impl AsRef<[WideLock]> for Words {
    fn as_ref(&self) -> &[WideLock] {
        // SAFETY: as many locks are mapped, aligned to a page, as long as `self.0` lives; any bits are a lock.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr(), self.0.locks) }
    }
}
