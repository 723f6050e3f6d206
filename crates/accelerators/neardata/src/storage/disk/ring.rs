//! Reads through io_uring: many under way at once, one system call for several.
//!
//! Invariant: a buffer that the kernel may still write to is neither moved, nor lent, nor freed: slots in use are
//! known, and the queue waits for the kernel before it goes away.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::{PAGE_BYTES, Page, RUN_PAGES, ReadQueue};

struct Slot {
    pages: Vec<Page>,
    /// Where the rest of the read lies in the file, where it goes, and how long it is. Nothing left: not in use.
    offset: u64,
    done: usize,
    left: usize,
}

/// A queue of reads of one file.
pub(super) struct Ring<'f> {
    ring: IoUring,
    file: &'f File,
    slots: Vec<Slot>,
    in_flight: usize,
    /// Reads that could not be handed to the kernel.
    refused: Vec<(usize, io::Error)>,
}

impl<'f> Ring<'f> {
    /// Whether the kernel grants a queue at all; containers and hardened kernels may not.
    pub(super) fn is_granted() -> bool {
        IoUring::new(2).is_ok()
    }

    pub(super) fn new(file: &'f File, depth: usize) -> io::Result<Self> {
        let depth = depth.max(1);
        let ring = IoUring::new(depth.next_power_of_two() as u32)?;
        let slot = || Slot { pages: Page::zeros(RUN_PAGES), offset: 0, done: 0, left: 0 };
        Ok(Self { ring, file, slots: (0..depth).map(|_| slot()).collect(), in_flight: 0, refused: Vec::new() })
    }

    /// Hands the rest of a slot's read to the kernel.
    fn push(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let bytes = &mut Page::bytes_mut(&mut slot.pages)[slot.done..slot.done + slot.left];
        let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), bytes.as_mut_ptr(), bytes.len() as u32)
            .offset(slot.offset)
            .build()
            .user_data(number as u64);
        // SAFETY: the buffer stays where it is, and nobody else touches it, until the completion has come.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            slot.left = 0;
            self.refused.push((number, io::Error::other("the submission queue has no room for a slot of its own")));
            return;
        }
        self.in_flight += 1;
        // What is not taken now goes along with the next wait.
        let _ = self.ring.submit();
    }
}

impl ReadQueue for Ring<'_> {
    fn uses_io_uring(&self) -> bool {
        true
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn submit(&mut self, slot: usize, first: u32, count: usize) {
        assert!(count <= RUN_PAGES, "a read of a queue is at most {RUN_PAGES} pages long");
        let state = &mut self.slots[slot];
        assert!(state.left == 0, "slot {slot} is in use");
        (state.offset, state.done, state.left) = (u64::from(first) * PAGE_BYTES as u64, 0, count * PAGE_BYTES);
        self.push(slot);
    }

    fn wait(&mut self) -> Option<(usize, io::Result<()>)> {
        loop {
            if let Some((slot, error)) = self.refused.pop() {
                return Some((slot, Err(error)));
            }
            if self.in_flight == 0 {
                return None;
            }
            let Some(completion) = self.ring.completion().next() else {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => continue,
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                        continue;
                    }
                    // The kernel cannot be waited for, so the buffers could never be freed.
                    Err(error) => panic!("io_uring_enter: {error}"),
                }
            };
            self.in_flight -= 1;
            let number = completion.user_data() as usize;
            let slot = &mut self.slots[number];
            match completion.result() {
                result if result == -libc::EINTR || result == -libc::EAGAIN => self.push(number),
                result if result < 0 => {
                    slot.left = 0;
                    return Some((number, Err(io::Error::from_raw_os_error(-result))));
                }
                0 => {
                    slot.left = 0;
                    return Some((number, Err(io::ErrorKind::UnexpectedEof.into())));
                }
                read => {
                    let read = (read as usize).min(slot.left);
                    slot.offset += read as u64;
                    slot.done += read;
                    slot.left -= read;
                    if slot.left == 0 {
                        return Some((number, Ok(())));
                    }
                    self.push(number);
                }
            }
        }
    }

    fn pages(&self, slot: usize) -> &[Page] {
        assert!(self.slots[slot].left == 0, "slot {slot} is being read into");
        &self.slots[slot].pages
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        while self.wait().is_some() {}
    }
}
