//! What lies where in a directory.
//!
//! ```text
//! LOCK                     locked by the process that has the directory open; holds its id
//! FORMAT                   the header of a file: which database this is; written once
//! INIT                     empty, while somebody fills the new database; not ours
//! log/N.log                segments, N is the number of the first record, 20 digits
//! log/N.log.tmp            a segment that is being made
//! checkpoint/N.ckpt        checkpoints, N is the number of the last record that it covers, 20 digits
//! checkpoint/N.ckpt.tmp    a checkpoint that is being written
//! ```
//!
//! Anything else is left alone and reported; a directory that has nothing but it is refused.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::format::file::{self, FileHeader, FileKind};
use crate::io::{Io, Mode, read_all};

/// Names in one directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) root: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) checkpoint: PathBuf,
}

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// First record of each segment, ascending.
    pub(crate) segments: Vec<u64>,
    /// Last record of each checkpoint, ascending.
    pub(crate) checkpoints: Vec<u64>,
    /// Files that nobody will finish.
    pub(crate) unfinished: Vec<PathBuf>,
    /// Files that are not ours.
    pub(crate) unknown: Vec<PathBuf>,
}

const FORMAT: &str = "FORMAT";
const FORMAT_UNFINISHED: &str = "FORMAT.tmp";
const LOCK: &str = "LOCK";
/// Whoever fills a new database may put it there, and takes it away when all is in it.
const INIT: &str = "INIT";

fn number(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_suffix(ending)?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

impl Directory {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), log: root.join("log"), checkpoint: root.join("checkpoint") }
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join(LOCK)
    }

    pub(crate) fn format(&self) -> PathBuf {
        self.root.join(FORMAT)
    }

    pub(crate) fn segment(&self, first: u64) -> PathBuf {
        self.log.join(format!("{first:020}.log"))
    }

    pub(crate) fn checkpoint(&self, last: u64) -> PathBuf {
        self.checkpoint.join(format!("{last:020}.ckpt"))
    }

    /// Refuses a directory that has something, and nothing of a database.
    pub(crate) fn refuse_foreign(&self, io: &dyn Io) -> Result<(), Error> {
        let names = match io.list(&self.root) {
            // Whoever makes the directory says what is wrong with a file.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            names => names.map_err(|error| Error::io("list", &self.root, error))?,
        };
        let is_ours = |name: &String| matches!(name.as_str(), FORMAT | FORMAT_UNFINISHED | LOCK);
        // Whoever made these may have been killed before it had the lock.
        let is_begun = |name: &&String| matches!(name.as_str(), "log/" | "checkpoint/");
        match names.iter().find(|name| !is_begun(name)) {
            Some(found) if !names.iter().any(is_ours) => {
                Err(Error::Foreign { path: self.root.clone(), found: found.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Sorts the files by what they are.
    pub(crate) fn list(&self, io: &dyn Io) -> Result<Listing, Error> {
        let failed = |path: &Path, error| Error::io("list", path, error);
        // A folder that is missing has no files; what should be in it is missed by `identify`.
        let names = |path: &Path| match io.list(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(|error| failed(path, error)),
        };
        let mut listing = Listing::default();
        let is_file = |name: &String| !name.ends_with('/');
        for name in io.list(&self.root).map_err(|error| failed(&self.root, error))?.into_iter().filter(is_file) {
            match name.as_str() {
                FORMAT | LOCK | INIT => {}
                FORMAT_UNFINISHED => listing.unfinished.push(self.root.join(name)),
                _ => listing.unknown.push(self.root.join(name)),
            }
        }
        for name in names(&self.log)?.into_iter().filter(is_file) {
            match number(&name, ".log").filter(|&first| first > 0) {
                Some(first) => listing.segments.push(first),
                None if number(&name, ".log.tmp").is_some() => listing.unfinished.push(self.log.join(name)),
                None => listing.unknown.push(self.log.join(name)),
            }
        }
        for name in names(&self.checkpoint)?.into_iter().filter(is_file) {
            if let Some(last) = number(&name, ".ckpt") {
                listing.checkpoints.push(last);
            } else if number(&name, ".ckpt.tmp").is_some() {
                listing.unfinished.push(self.checkpoint.join(name));
            } else {
                listing.unknown.push(self.checkpoint.join(name));
            }
        }
        listing.segments.sort_unstable();
        listing.checkpoints.sort_unstable();
        Ok(listing)
    }

    /// Which database this is; `None` when the file that says so was never finished.
    fn read_format(&self, io: &dyn Io) -> Result<Option<u64>, Error> {
        let path = self.format();
        let bytes = match io.open(&path, Mode::Read).and_then(|file| read_all(&*file)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        let header = FileHeader::decode(&path, &bytes, FileKind::Format)?;
        if header.number != 0 || bytes.len() != file::BYTES {
            return Err(Error::damaged(&path, 24, "the file has more in it than version 1 has"));
        }
        Ok(Some(header.database))
    }

    /// Whether there is a database.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub(crate) fn is_database(&self, io: &dyn Io) -> Result<bool, Error> {
        Ok(self.read_format(io)?.is_some())
    }

    /// Which database this is; `None` when it was never finished, and then nothing is in it.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the file that says it is missing, or the log, and as [`Self::read_format`].
    pub(crate) fn identify(&self, io: &dyn Io, listing: &Listing) -> Result<Option<u64>, Error> {
        if let Some(database) = self.read_format(io)? {
            if listing.segments.is_empty() {
                return Err(Error::damaged(&self.log, 0, "there is no segment of the log, and there always is one"));
            }
            return Ok(Some(database));
        }
        // A header is all that is made of the log before the file that is missing.
        let begun = match listing.segments[..] {
            [] => true,
            [1] => {
                let path = self.segment(1);
                let length = io.open(&path, Mode::Read).and_then(|file| file.length());
                length.map_err(|error| Error::io("read", &path, error))? <= file::BYTES as u64
            }
            _ => false,
        };
        if !begun || !listing.checkpoints.is_empty() {
            let problem = "the file is missing, and there are a log or checkpoints that it belongs to";
            return Err(Error::damaged(&self.format(), 0, problem));
        }
        Ok(None)
    }

    /// Writes down which database this is, durably and whole.
    pub(crate) fn write_format(&self, io: &dyn Io, database: u64) -> Result<(), Error> {
        let path = self.format();
        let unfinished = self.root.join("FORMAT.tmp");
        let header = FileHeader { kind: FileKind::Format, database, number: 0 };
        let written = io.open(&unfinished, Mode::Create).and_then(|file| file.write_and_sync(0, &header.encode()));
        let renamed = written.and_then(|()| io.rename(&unfinished, &path));
        renamed.and_then(|()| io.sync_directory(&self.root)).map_err(|error| Error::io("write", &path, error))
    }
}
