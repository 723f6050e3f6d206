//! What durability needs of an operating system, as two traits, so that a test can fail, tear, delay or lose any call.
//!
//! [`Disk`] is the real one; [`NullIo`] is for a database that is in memory only; [`simulated::SimulatedDisk`] is a
//! file system in memory that knows what is durable.
//!
//! Contract of every implementation:
//! - What was written to a file before a [`File::sync`] that succeeded is there after a crash. Of what was written
//!   since, any part may be there, in any order.
//! - A file's name is there after a crash once a [`Io::sync_directory`] of its directory has succeeded; a rename is
//!   seen after a crash either whole or not at all.
//! - After a sync that failed nothing is known of what was written since the last one that succeeded, and a later
//!   success says nothing about it.

use std::io;
use std::path::Path;
use std::sync::Arc;

mod disk;
mod null;
pub mod simulated;

pub use disk::Disk;
pub use null::NullIo;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To read; it must exist.
    Read,
    /// To read and write; it must exist.
    Write,
    /// To read and write; whatever had this name is emptied.
    Create,
}

/// What becomes of an attempt to lock a directory.
pub enum Locking {
    /// The lock is held until this value is dropped.
    Held(Box<dyn Send + Sync>),
    /// Somebody else holds it; the text says who, as far as that is known.
    Taken(String),
}

/// A file system.
pub trait Io: Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>>;

    /// Makes a directory, and those above it; one that exists is fine. Names are made durable as far as they are new.
    ///
    /// # Errors
    /// The system's.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// The names of the files in a directory, sorted, and of directories with a slash behind them; those that are no
    /// Unicode are shown as well as can be.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::NotFound`] when there is no such directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Gives a file another name in the same directory, in place of whatever had it.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Takes a lock that goes with the process, on a file that is made if need be.
    ///
    /// # Errors
    /// The system's; that it is taken is no error.
    fn lock(&self, path: &Path) -> io::Result<Locking>;

    /// How writes become durable, in words.
    fn describe(&self) -> String;
}

/// An open file. Calls on different parts of it may come from several threads.
pub trait File: Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn length(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on and says how many there were before the end of the file.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The system's; then any part of them may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was written, and the length.
    ///
    /// # Errors
    /// The system's; see the module for what that means.
    fn sync(&self) -> io::Result<()>;

    /// [`Self::write_at`], then [`Self::sync`].
    ///
    /// # Errors
    /// Those of either.
    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)?;
        self.sync()
    }

    /// Makes the file at least `length` bytes long, with room on the disk for all of them: writing there does not
    /// fail for want of space. New bytes are zero.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] when there is no room, and the system's others.
    fn allocate(&self, length: u64) -> io::Result<()>;

    /// Cuts the file to `length` bytes.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&self, length: u64) -> io::Result<()>;
}

/// Reads a whole file.
///
/// # Errors
/// The system's.
pub(crate) fn read_all(file: &dyn File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    bytes.resize(length, 0);
    let mut at = 0;
    while at < length {
        match file.read_at(at as u64, &mut bytes[at..])? {
            0 => break,
            read => at += read,
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
