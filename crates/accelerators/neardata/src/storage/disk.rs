//! What the store needs of a disk: pages in, pages out, and an order between them.
//!
//! Every access of the store goes through [`Disk`], so that a test can fail, shorten, tear or lose any of them
//! ([`MemoryDisk`]). [`DirectDisk`] is a file. Bulk reads go through a [`ReadQueue`], which owns its buffers: a read
//! that the kernel has not finished never points into memory that somebody else frees.
//!
//! Contract: what was written before a [`Disk::sync`] that succeeded is there after a crash; of anything else, any
//! part may be there.

use std::io;

pub use super::page::{PAGE_BYTES, Page};

mod direct;
mod memory;
mod ring;

pub use direct::DirectDisk;
pub use memory::{Fault, MemoryDisk};

/// Pages of one read of a [`ReadQueue`], at most.
pub const RUN_PAGES: usize = 32;

/// A disk, by pages.
pub trait Disk: Send + Sync {
    /// Fills `pages` from page `first` on.
    ///
    /// # Errors
    /// The disk's; [`io::ErrorKind::UnexpectedEof`] beyond its end.
    fn read(&self, first: u32, pages: &mut [Page]) -> io::Result<()>;

    /// Writes `pages` from page `first` on. After an error any part of them may have been written.
    ///
    /// # Errors
    /// The disk's; [`io::ErrorKind::StorageFull`] when there is no room.
    fn write(&self, first: u32, pages: &[Page]) -> io::Result<()>;

    /// Makes durable whatever has been written.
    ///
    /// # Errors
    /// The disk's. Nothing is known then of what was written since the last one.
    fn sync(&self) -> io::Result<()>;

    /// Its length in bytes.
    ///
    /// # Errors
    /// The disk's.
    fn bytes(&self) -> io::Result<u64>;

    /// Makes it at least `pages` pages long; new ones are zero, and writing them does not fail for want of room.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], and nothing is changed.
    fn grow(&self, pages: u32) -> io::Result<()>;

    /// A queue for `depth` reads at a time.
    fn queue(&self, depth: usize) -> Box<dyn ReadQueue + '_>;

    /// How it is reached, in words.
    fn describe(&self) -> String;
}

/// Reads under way at the same time, each into a slot of its own.
pub trait ReadQueue: Send {
    /// How many slots there are.
    fn depth(&self) -> usize;

    /// Whether the queue reads through io_uring.
    fn uses_io_uring(&self) -> bool {
        false
    }

    /// Begins to read `count` pages, at most [`RUN_PAGES`], from `first` on into a slot that is not in use.
    fn submit(&mut self, slot: usize, first: u32, count: usize);

    /// Waits until a read has ended and says which; `None` when none is under way.
    fn wait(&mut self) -> Option<(usize, io::Result<()>)>;

    /// What was read into a slot.
    fn pages(&self, slot: usize) -> &[Page];
}

/// A queue that reads when it is asked to: for disks that know no better.
pub(super) struct PlainQueue<'d> {
    disk: &'d dyn Disk,
    buffers: Vec<Vec<Page>>,
    done: std::collections::VecDeque<(usize, io::Result<()>)>,
}

impl<'d> PlainQueue<'d> {
    pub(super) fn new(disk: &'d dyn Disk, depth: usize) -> Self {
        Self { disk, buffers: vec![Vec::new(); depth.max(1)], done: std::collections::VecDeque::new() }
    }
}

impl ReadQueue for PlainQueue<'_> {
    fn depth(&self) -> usize {
        self.buffers.len()
    }

    fn submit(&mut self, slot: usize, first: u32, count: usize) {
        assert!(count <= RUN_PAGES, "a read of a queue is at most {RUN_PAGES} pages long");
        let buffer = &mut self.buffers[slot];
        if buffer.len() < count {
            buffer.resize(RUN_PAGES, Page::ZERO);
        }
        self.done.push_back((slot, self.disk.read(first, &mut buffer[..count])));
    }

    fn wait(&mut self) -> Option<(usize, io::Result<()>)> {
        self.done.pop_front()
    }

    fn pages(&self, slot: usize) -> &[Page] {
        &self.buffers[slot]
    }
}
