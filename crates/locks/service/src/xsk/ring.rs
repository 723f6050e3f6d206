//! One of the four rings that an AF_XDP socket shares with the kernel.
//!
//! *Invariant*: one side writes entries and then the producer's number, the other reads entries and then writes the
//! consumer's; numbers only grow (and wrap), and entry `n` is at `n` modulo the length.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that is shared with the kernel.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is memory that any thread may use and unmap.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Of a file at an offset, or of nothing.
    pub(super) fn new(bytes: usize, file: Option<(&OwnedFd, libc::off_t)>) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, offset, flags) = match file {
            Some((fd, offset)) => (fd.as_raw_fd(), offset, libc::MAP_SHARED | libc::MAP_POPULATE),
            None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE),
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that is in use.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, bytes })
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        // SAFETY: it is inside, or one behind.
        unsafe { self.at.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; who uses it owns this.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A ring of `T`, which has C layout and is valid for all bits.
#[derive(Debug)]
pub(super) struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    length: u32,
    /// The next entry of ours.
    next: u32,
    entries: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    pub(super) fn new(
        socket: &OwnedFd,
        page_offset: libc::off_t,
        offsets: libc::xdp_ring_offset,
        length: u32,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + length as usize * size_of::<T>();
        let mapping = Mapping::new(bytes, Some((socket, page_offset)))?;
        Ok(Self { mapping, offsets, length, next: 0, entries: std::marker::PhantomData })
    }

    fn number(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel says that there is a number, which both sides only change atomically.
        unsafe { &*self.mapping.at(offset as usize).cast::<AtomicU32>() }
    }

    fn entry(&self, number: u32) -> *mut T {
        let at = (number & (self.length - 1)) as usize;
        self.mapping.at(self.offsets.desc as usize + at * size_of::<T>()).cast()
    }

    /// Whether the kernel sleeps until it is called.
    pub(super) fn wants_call(&self) -> bool {
        self.number(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As producer: writes an entry, if there is room. The kernel sees it after [`Ring::publish`].
    pub(super) fn produce(&mut self, entry: T) -> bool {
        let consumed = self.number(self.offsets.consumer).load(Ordering::Acquire);
        if self.next.wrapping_sub(consumed) == self.length {
            return false;
        }
        // SAFETY: the kernel does not read this entry before it is published.
        unsafe { self.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// As producer: shows all entries to the kernel.
    pub(super) fn publish(&self) {
        self.number(self.offsets.producer).store(self.next, Ordering::Release);
    }

    /// As producer: how many entries the kernel has not taken.
    pub(super) fn untaken(&self) -> u32 {
        self.next.wrapping_sub(self.number(self.offsets.consumer).load(Ordering::Acquire))
    }

    /// As consumer: the next entry. The kernel may write there again after [`Ring::give_back`].
    pub(super) fn consume(&mut self) -> Option<T> {
        if self.number(self.offsets.producer).load(Ordering::Acquire) == self.next {
            return None;
        }
        // SAFETY: the kernel has written it, and does not touch it before it is given back.
        let entry = unsafe { self.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// As consumer: gives all entries that were read back to the kernel.
    pub(super) fn give_back(&self) {
        self.number(self.offsets.consumer).store(self.next, Ordering::Release);
    }
}
