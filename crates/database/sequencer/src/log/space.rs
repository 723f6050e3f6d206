//! Room in the log, reserved before a batch runs.
//!
//! A segment is allocated whole when it is made, so what was reserved in it can be written, however full the disk is by
//! then. When there is no room for a new segment, nothing has happened yet.
//!
//! The one that opening makes has a header and no room: its name says that all before it is durable, and a directory
//! that is only read takes no space. The next ones are small and then larger, up to the length that is wanted.
//!
//! Invariant: `used` + `reserved` never exceeds `capacity`; beside the bytes of every unit `used` counts one mark,
//! which the writer may put behind it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, Failure};
use crate::format::file::{self, FileHeader, FileKind};
use crate::format::frame;
use crate::io::{File, Io, Mode, is_full};

/// Room in the first segment that is made for records, and how many times as much each has as the one before.
const FIRST_BYTES: u64 = 1 << 20;
const GROWTH: u64 = 4;

/// A segment that is written.
pub(crate) struct Segment {
    /// Its first record.
    pub(crate) first: u64,
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: PathBuf,
    pub(crate) salt: u32,
}

/// See the module.
pub(crate) struct Space {
    io: Arc<dyn Io>,
    directory: Directory,
    database: u64,
    segment_bytes: u64,
    /// Room that the next segment gets, if it need not have more.
    next_bytes: u64,
    pub(crate) segment: Arc<Segment>,
    capacity: u64,
    used: u64,
    reserved: u64,
}

/// Makes the segment that begins with record `first`, durably, with room for `bytes` bytes behind its header, in place
/// of one without records that has its name. `durable` returns when all records before `first` are: only then does the
/// segment get its name, which says so.
pub(crate) fn make(
    io: &dyn Io,
    directory: &Directory,
    database: u64,
    first: u64,
    bytes: u64,
    durable: impl FnOnce() -> Result<(), Error>,
) -> Result<Arc<Segment>, Error> {
    let path = directory.segment(first);
    let header = FileHeader { kind: FileKind::Segment, database, number: first };
    let length = file::BYTES as u64 + bytes;
    let unfinished = path.with_extension("log.tmp");
    let failed = |action| {
        let path = path.clone();
        move |error| {
            let failure = Failure::new(action, &path, None, error);
            if is_full(&failure.error) { Error::Full(failure) } else { Error::Io(failure) }
        }
    };
    let made = io.open(&unfinished, Mode::Create).map_err(failed("create")).and_then(|file| {
        file.allocate(length).map_err(failed("allocate room for"))?;
        file.write_at(0, &header.encode()).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        durable()?;
        io.rename(&unfinished, &path).map_err(|error| match failed("rename")(error) {
            // It may have its name: then no record of that number may go into the segment before.
            Error::Io(failure) => Error::Poisoned(failure),
            full => full,
        })?;
        Ok(file)
    });
    // What room it took is wanted. If it stays, the next opening removes it.
    let file = made.inspect_err(|_| drop(io.remove(&unfinished)))?;
    // What is not synced now cannot be saved by syncing it again.
    let named = io.sync_directory(&directory.log);
    named.map_err(|error| Error::Poisoned(Failure::new("sync", &directory.log, None, error)))?;
    Ok(Arc::new(Segment { first, file, path, salt: header.salt() }))
}

impl Space {
    /// Begins a segment with record `first`, without room: it is made again, with room, when some is wanted.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Io`] and [`Error::Poisoned`].
    pub(crate) fn begin(
        io: Arc<dyn Io>,
        directory: Directory,
        database: u64,
        first: u64,
        segment_bytes: u64,
    ) -> Result<Self, Error> {
        let segment = make(&*io, &directory, database, first, 0, || Ok(()))?;
        let next_bytes = FIRST_BYTES.min(segment_bytes);
        Ok(Self { io, directory, database, segment_bytes, next_bytes, segment, capacity: 0, used: 0, reserved: 0 })
    }

    /// Reserves room for a unit of `bytes` bytes, if the segment has it.
    pub(crate) fn reserve(&mut self, bytes: u64) -> bool {
        let wanted = bytes + frame::BYTES as u64;
        let fits = self.used + self.reserved + wanted <= self.capacity;
        if fits {
            self.reserved += wanted;
        }
        fits
    }

    /// Begins another segment, with record `first`, that has room for a unit of `bytes` bytes. Nothing is reserved any
    /// more: every unit before was handed to the writer. `durable` as for [`make`].
    ///
    /// # Errors
    /// As [`Self::begin`], and those of `durable`; then the segment before goes on.
    pub(crate) fn advance(
        &mut self,
        first: u64,
        bytes: u64,
        durable: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        assert_eq!(self.reserved, 0, "a segment is left only when nothing is on the way into it");
        if self.used == 0 && bytes + frame::BYTES as u64 <= self.capacity {
            return Ok(());
        }
        let capacity = self.next_bytes.max(bytes + frame::BYTES as u64);
        self.segment = make(&*self.io, &self.directory, self.database, first, capacity, durable)?;
        (self.capacity, self.used) = (capacity, 0);
        self.next_bytes = self.next_bytes.saturating_mul(GROWTH).min(self.segment_bytes);
        Ok(())
    }

    /// Makes an empty segment behind the last record, if there are records: its name, `first`, says that all of these
    /// are durable, so what is cut off a closed log is missed. `durable` as for [`make`].
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub(crate) fn close(&mut self, first: u64, durable: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.used > 0 {
            make(&*self.io, &self.directory, self.database, first, 0, durable)?;
        }
        Ok(())
    }

    /// Uses `used` of the bytes that were reserved for a unit, and gives the others back.
    pub(crate) fn settle(&mut self, bytes: u64, used: u64) {
        assert!(used <= bytes, "a unit of {used} bytes was expected to have {bytes} at most");
        self.reserved -= bytes + frame::BYTES as u64;
        if used > 0 {
            self.used += used + frame::BYTES as u64;
        }
    }
}
