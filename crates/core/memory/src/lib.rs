//! Memory for data that is read at random: aligned, zeroed, huge pages where the system gives them.
//!
//! A random read that misses the translation cache costs about twice as much as one that does not, so every
//! large arena of Lockwork (rows, index buckets, batches) is a [`Buffer`] of this crate. A buffer is 2 MiB
//! aligned when it is large enough for a huge page to pay, and 64-byte aligned otherwise.
//!
//! Invariant: the bytes of a [`Buffer`] never move and live exactly as long as the buffer.
//! Trade-off: huge pages are *advised*, not reserved; what was really given is told by [`huge_bytes_resident`].

pub mod shared;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Bytes of a cache line, the unit of every layout in Lockwork.
pub const LINE: usize = 64;
/// Bytes of a huge page on the supported systems.
pub const HUGE_PAGE: usize = 2 << 20;

/// Which pages a [`Buffer`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pages {
    /// Huge pages where the system gives them (the default).
    #[default]
    Huge,
    /// Plain pages only; for measuring what huge pages are worth.
    Plain,
    /// Plain pages between two that nobody may touch: one access behind the buffer ends the process. For tests and fuzz
    /// targets, as every buffer takes three pages at least.
    #[doc(hidden)]
    Guarded,
}

/// Bytes of a page that can be guarded: of the largest that the supported systems have.
#[doc(hidden)]
pub const GUARD: usize = 64 << 10;

/// A buffer could not be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot allocate {bytes} bytes for {what}: the system refused; ask for less or free memory first")]
pub struct OutOfMemory {
    /// What the memory was for.
    pub what: &'static str,
    /// How many bytes were asked for.
    pub bytes: usize,
}

/// A zeroed, aligned, fixed piece of memory that its owner hands out by raw pointer.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    source: Source,
}

/// Where a buffer came from and must go back to.
#[derive(Debug)]
enum Source {
    /// The allocator, with this layout.
    Heap(Layout),
    /// A mapping of its own: base and length, wider than the buffer so that its start can be aligned.
    Mapping(NonNull<u8>, usize),
}

// SAFETY: a Buffer is plain memory; who may touch which byte when is the business of its owner, which reaches the
// bytes only through raw pointers.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared borrow gives out only a raw pointer.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes` zeroed bytes for `what` (named in the error).
    ///
    /// From [`HUGE_PAGE`] on the memory is a mapping of its own, advised before its first byte is touched; pages that
    /// nobody touches cost nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the system refuses.
    pub fn zeroed(bytes: usize, pages: Pages, what: &'static str) -> Result<Self, OutOfMemory> {
        let refused = || OutOfMemory { what, bytes };
        if pages == Pages::Guarded {
            return Self::guarded(bytes).ok_or_else(refused);
        }
        if bytes >= HUGE_PAGE {
            return Self::mapped(bytes, pages).ok_or_else(refused);
        }
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(LINE), LINE).map_err(|_| refused())?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { start, bytes: layout.size(), source: Source::Heap(layout) })
    }

    fn mapped(bytes: usize, pages: Pages) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE)?;
        let length = bytes.checked_add(HUGE_PAGE)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let start = base.wrapping_add(base.align_offset(HUGE_PAGE));
        let advice = if pages == Pages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: the range lies in the mapping made above; advice changes no byte, and a refusal leaves plain pages.
        unsafe { libc::madvise(start.cast(), bytes, advice) };
        Some(Self { start: NonNull::new(start)?, bytes, source: Source::Mapping(NonNull::new(base)?, length) })
    }

    /// A buffer that ends where a page begins which nobody may touch.
    fn guarded(bytes: usize) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(LINE)?;
        let inner = bytes.checked_next_multiple_of(GUARD)?;
        let length = inner.checked_add(2 * GUARD)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let source = Source::Mapping(NonNull::new(base.cast())?, length);
        let first = base.cast::<u8>().wrapping_add(GUARD);
        let buffer = Self { start: NonNull::new(first.wrapping_add(inner - bytes))?, bytes, source };
        // SAFETY: the range lies in the mapping made above, whose other pages stay as they are.
        let opened = unsafe { libc::mprotect(first.cast(), inner, libc::PROT_READ | libc::PROT_WRITE) };
        (opened == 0).then_some(buffer)
    }

    /// Takes `bytes` bytes from `offset` on away from everybody, where they are whole pages.
    ///
    /// # Panics
    /// When they lie outside, or the system refuses, as it does where they are no whole pages.
    #[doc(hidden)]
    pub fn forbid(&self, offset: usize, bytes: usize) {
        let start = self.as_ptr().wrapping_add(offset);
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset}");
        // SAFETY: the pages are this buffer's alone; that nobody uses them any more is what the caller wants to know.
        let forbidden = unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_NONE) };
        assert_eq!(forbidden, 0, "{}", std::io::Error::last_os_error());
    }

    /// The first byte. It stays where it is until the buffer is dropped.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes that may be used: at least what was asked for.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: allocated in `zeroed` with this layout, freed once.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            // SAFETY: mapped in `mapped` with this base and length, unmapped once; a failure would only leak it.
            Source::Mapping(base, length) => unsafe {
                libc::munmap(base.as_ptr().cast(), length);
            },
        }
    }
}

/// Asks the processor to bring the line at `address` into its caches. Any address is allowed: a bad one is ignored.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
}

/// Whether the system gives huge pages on request (`always` or `madvise`), as its setting reads; `None` where it has
/// none.
#[must_use]
pub fn huge_page_setting() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_whitespace().find(|word| word.starts_with('['))?;
    Some(chosen.trim_matches(['[', ']']).to_string())
}

/// Bytes of this process that lie in huge pages now, as the kernel counts them; `None` where it does not tell.
#[must_use]
pub fn huge_bytes_resident() -> Option<u64> {
    smaps_field("AnonHugePages:")
}

/// Resident bytes of this process, as the kernel counts them; `None` where it does not tell.
#[must_use]
pub fn bytes_resident() -> Option<u64> {
    smaps_field("Rss:")
}

fn smaps_field(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_as_long_as_asked() {
        for bytes in [1, 64, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1] {
            let buffer = Buffer::zeroed(bytes, Pages::Huge, "test").unwrap();
            assert!(buffer.capacity() >= bytes);
            let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { LINE };
            assert_eq!(buffer.as_ptr() as usize % align, 0);
            // SAFETY: the buffer is at least `bytes` long.
            let slice = unsafe { std::slice::from_raw_parts(buffer.as_ptr(), bytes) };
            assert!(slice.iter().all(|&byte| byte == 0));
        }
    }

    /// What may be done at an address: as `rw-p` in the system's list.
    fn rights(address: *const u8) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let bound = |text| usize::from_str_radix(text, 16).unwrap();
            (bound(from)..bound(to)).contains(&(address as usize))
        };
        maps.lines().find(holds).map_or("not mapped".into(), |line| line.split(' ').nth(1).unwrap().into())
    }

    #[test]
    fn a_guarded_buffer_lies_between_pages_that_nobody_may_touch() {
        for bytes in [1, 64, 4096, GUARD, GUARD + 64, HUGE_PAGE] {
            let buffer = Buffer::zeroed(bytes, Pages::Guarded, "test").unwrap();
            assert_eq!(buffer.capacity(), bytes.next_multiple_of(LINE));
            let (first, end) = (buffer.as_ptr(), buffer.as_ptr().wrapping_add(buffer.capacity()));
            assert_eq!(
                (first as usize % LINE, rights(first), rights(end.wrapping_sub(1))),
                (0, "rw-p".into(), "rw-p".into())
            );
            assert_eq!(rights(end), "---p");
            assert_eq!(rights(first.wrapping_sub(GUARD)), "---p");
            // SAFETY: the buffer is so long.
            unsafe { std::ptr::write_bytes(first, 0xEE, buffer.capacity()) };
        }
        let buffer = Buffer::zeroed(3 * GUARD, Pages::Guarded, "test").unwrap();
        buffer.forbid(GUARD, GUARD);
        let at = |offset| rights(buffer.as_ptr().wrapping_add(offset));
        assert_eq!([at(GUARD - 1), at(GUARD), at(2 * GUARD - 1), at(2 * GUARD)], ["rw-p", "---p", "---p", "rw-p"]);
    }

    #[test]
    fn an_impossible_size_is_refused_by_name() {
        for pages in [Pages::Huge, Pages::Guarded] {
            let error = Buffer::zeroed(usize::MAX - 4096, pages, "rows").unwrap_err();
            assert!(error.to_string().contains("rows"));
        }
    }
}
