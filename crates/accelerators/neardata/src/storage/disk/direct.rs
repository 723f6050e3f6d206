//! A file, past the page cache.
//!
//! The store knows better than the kernel what it will read next, and the host keeps what it uses often, so pages
//! are read with `O_DIRECT`. Where the file system refuses that, when opening or when reading, ordinary reads and
//! writes serve; [`Disk::describe`] tells which. Queues use io_uring when the kernel grants one, else pread.
//!
//! Invariant: one opener at a time. The file is locked (flock), and the kernel releases it when the process ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::ring::Ring;
use super::{Disk, PAGE_BYTES, Page, PlainQueue, ReadQueue};

/// A file, reached directly where that is possible.
#[derive(Debug)]
pub struct DirectDisk {
    file: File,
    direct: bool,
    ring: bool,
}

impl DirectDisk {
    /// Opens a file, creating it if need be, and locks it.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] when somebody else has it open, or the file system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
        let refused = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP));
        let try_out = |file: File| file.read_at(Page::bytes_mut(&mut [Page::ZERO]), 0).map(|_| file);
        let (file, direct) = match direct.and_then(try_out) {
            Ok(file) => (file, true),
            Err(error) if refused(&error) => (options.open(path)?, false),
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = "another process has it open; one at a time may";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if file.metadata()?.len() == 0 {
            sync_folder(path)?;
        }
        Ok(Self { file, direct, ring: Ring::is_granted() })
    }

    /// The same, but with plain reads instead of io_uring.
    #[must_use]
    pub fn without_ring(self) -> Self {
        Self { ring: false, ..self }
    }
}

/// Makes durable that a new file is there, not only what is in it.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder that knows no sync, or may not be read: a file without a name is opened by one in /proc.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EACCES)) => Ok(()),
        done => done,
    }
}

fn place(first: u32) -> u64 {
    u64::from(first) * PAGE_BYTES as u64
}

impl Disk for DirectDisk {
    fn read(&self, first: u32, pages: &mut [Page]) -> io::Result<()> {
        self.file.read_exact_at(Page::bytes_mut(pages), place(first))
    }

    fn write(&self, first: u32, pages: &[Page]) -> io::Result<()> {
        self.file.write_all_at(Page::bytes(pages), place(first))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn grow(&self, pages: u32) -> io::Result<()> {
        let old = self.bytes()?;
        let Some(more) = place(pages).checked_sub(old).filter(|&more| more > 0) else { return Ok(()) };
        // SAFETY: a plain system call on a file that is ours.
        let result = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, old as i64, more as i64) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            return self.file.set_len(place(pages));
        }
        // What was allocated before the room ended is given back.
        self.file.set_len(old)?;
        Err(error)
    }

    fn queue(&self, depth: usize) -> Box<dyn ReadQueue + '_> {
        match self.ring.then(|| Ring::new(&self.file, depth)) {
            Some(Ok(ring)) => Box::new(ring),
            _ => Box::new(PlainQueue::new(self, depth)),
        }
    }

    fn describe(&self) -> String {
        let way = if self.direct { "direct I/O" } else { "ordinary I/O (the file system refuses O_DIRECT)" };
        let queue = if self.ring { "io_uring" } else { "pread (no io_uring)" };
        format!("{way}, {queue}")
    }
}
