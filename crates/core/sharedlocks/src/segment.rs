//! The segment: memory that processes share, by name or by descriptor.
//!
//! A name without a slash is a file `lockwork-NAME` in `/dev/shm`: letters a to z and A to Z, digits, `.`, `_` and `-`,
//! up to 200, not `.` first, so that names in lists cannot be taken for each other or for something else. One with a
//! slash is a path without control characters, which may be on any file system that can be mapped, such as a tmpfs on
//! the NUMA node of a CXL memory expander, or an fsdax mount. A segment without a name is a memfd, whose descriptor is
//! handed on.
//!
//! A segment is made without a name and given its own when it is complete, so nobody attaches to half of one, and
//! nothing is left behind by a process that dies over it. Its memory is reserved when it is made, unless the caller
//! wants otherwise: a full file system is an error then, and no bus error later.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use lockwork_locking::shared::memory::Memory;
use lockwork_locking::shared::{Layout, LayoutError, Table};
use lockwork_memory::shared::anonymous_file;
use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::Error;

/// Memory that other processes can see, with words to sleep on.
pub trait SharedMemory: Memory + Send + Sync {
    /// The lower half of a word, for a futex.
    fn half(&self, word: usize) -> &AtomicU32;
}

/// A mapped segment.
#[derive(Debug)]
pub struct Mapped {
    map: MmapRaw,
    words: usize,
}

impl Mapped {
    fn new(file: &File, layout: &Layout, place: &Path) -> Result<Self, Error> {
        let fail = |source| Error::io("map", place, source);
        let words = layout.words();
        let map = MmapOptions::new().len(words * 8).map_raw(file).map_err(fail)?;
        // A child that only forks must not speak for its parent's sessions.
        map.advise(Advice::DontFork).map_err(fail)?;
        Ok(Self { map, words })
    }

    #[inline(always)]
    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.words, "word {word} of a segment of {}", self.words);
        // SAFETY: inside the mapping, which lives as long as `self` and begins at a page; all access is atomic.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(word)) }
    }
}

impl Memory for Mapped {
    #[inline(always)]
    fn words(&self) -> usize {
        self.words
    }

    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    #[inline(always)]
    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.word(word).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl SharedMemory for Mapped {
    fn half(&self, word: usize) -> &AtomicU32 {
        let halves: *mut u32 = self.word(word).as_ptr().cast();
        // SAFETY: half of a word of the mapping, of which the table uses no other part.
        unsafe { AtomicU32::from_ptr(halves.add(usize::from(cfg!(target_endian = "big")))) }
    }
}

/// The longest name without a slash.
pub(crate) const NAME_BYTES: usize = 200;
const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "lockwork-";

/// Where a segment of this name is, whether or not it can have it.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    if name.contains('/') { PathBuf::from(name) } else { Path::new(FOLDER).join(format!("{PREFIX}{name}")) }
}

/// Where a segment of this name is, if it can be a name.
fn place_of(name: &str) -> Result<PathBuf, Error> {
    let good = match name.rsplit_once('/') {
        Some((_, last)) => !["", ".", ".."].contains(&last) && !name.contains(char::is_control),
        None => is_plain(name),
    };
    if good { Ok(path_of(name)) } else { Err(Error::Name(name.to_string())) }
}

fn is_plain(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_allowed)
}

/// The first word of what is there, by which a table is known, of whichever format and however damaged behind it. Zero
/// if it is no file, or shorter.
fn first_word(place: &Path) -> io::Result<u64> {
    if !std::fs::metadata(place)?.is_file() {
        return Ok(0);
    }
    let mut first = [0; 8];
    match File::open(place)?.read_exact_at(&mut first, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => read.map(|()| u64::from_ne_bytes(first)),
    }
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) table: Table<Mapped>,
    /// Holds the liveness locks of this process.
    pub(crate) alive: File,
    /// Asks for those of others.
    pub(crate) others: File,
    pub(crate) place: PathBuf,
}

impl Segment {
    /// Makes a segment of this name, which must not be there yet.
    pub(crate) fn create(name: &str, layout: Layout, reserve: bool) -> Result<Self, Error> {
        layout.check()?;
        let place = place_of(name)?;
        if place.symlink_metadata().is_ok() {
            return Err(Self::in_the_way(place));
        }
        let fail = |source| Error::io("create", &place, source);
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(folder).map_err(fail)?;
        fill(&file, layout, &place, reserve)?;
        // Opened before it has a name: whatever fails leaves nothing behind.
        let segment = Self::of_descriptor(file.as_fd())?;
        link(&file, &place).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Self::in_the_way(place.clone()),
            _ => fail(source),
        })?;
        Ok(Self { place, ..segment })
    }

    /// Why no segment can be made at a place where something is.
    fn in_the_way(place: PathBuf) -> Error {
        match first_word(&place) {
            Ok(first) if Layout::is_magic(first) => Error::Exists(place),
            // It has just gone, as tables do; a link to nowhere has not.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !place.is_symlink() => Error::Exists(place),
            Err(source) if source.kind() != io::ErrorKind::NotFound => Error::io("open", &place, source),
            _ => Error::Taken(place),
        }
    }

    /// Opens the segment of this name.
    pub(crate) fn attach(name: &str) -> Result<Self, Error> {
        let place = place_of(name)?;
        match Self::open(place.clone()) {
            // A link to nowhere is no table, but it is there.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && !place.is_symlink() => {
                Err(Error::Missing(place))
            }
            opened => opened,
        }
    }

    /// Makes a segment without a name, and gives its descriptor, which does not survive an `exec`.
    pub(crate) fn anonymous(layout: Layout, reserve: bool) -> Result<(Self, File), Error> {
        layout.check()?;
        let place = PathBuf::from("memfd:lockwork-locks");
        let file = anonymous_file(c"lockwork-locks").map_err(|source| Error::io("create", &place, source))?;
        fill(&file, layout, &place, reserve)?;
        let segment = Self::of_descriptor(file.as_fd())?;
        Ok((segment, file))
    }

    /// Opens the segment of a descriptor. Opened anew, so that liveness locks are this process's own.
    pub(crate) fn of_descriptor(descriptor: BorrowedFd<'_>) -> Result<Self, Error> {
        Self::open(descriptor_path(descriptor))
    }

    fn open(place: PathBuf) -> Result<Self, Error> {
        let open = |path: &Path| {
            OpenOptions::new().read(true).write(true).open(path).map_err(|source| Error::io("open", &place, source))
        };
        let alive = open(&place)?;
        // Not by its name, which another segment may have by now.
        let others = open(&descriptor_path(alive.as_fd())).map_err(|error| match error {
            // Not that there is no table.
            Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Error::io("open", &descriptor_path(alive.as_fd()), io::Error::other("there is no /proc here"))
            }
            error => error,
        })?;
        let mut bytes = [0; 64];
        let length = alive.metadata().map_err(|source| Error::io("examine", &place, source))?.len();
        if length < bytes.len() as u64 {
            let found = first_word(&descriptor_path(alive.as_fd())).unwrap_or(0);
            if length >= 8 && !Layout::is_magic(found) {
                return Err(Error::segment(&place, LayoutError::Foreign { found }));
            }
            let expected = bytes.len() as u64;
            return Err(Error::segment(&place, LayoutError::Size { found: length, expected }));
        }
        alive.read_exact_at(&mut bytes, 0).map_err(|source| Error::io("read", &place, source))?;
        let mut header = [0; 8];
        for (word, bytes) in header.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        let layout = Layout::of_header(header).map_err(|error| Error::segment(&place, error))?;
        let expected = layout.words() as u64 * 8;
        if length != expected {
            return Err(Error::segment(&place, LayoutError::Size { found: length, expected }));
        }
        let mapped = Mapped::new(&alive, &layout, &place)?;
        let table = Table::attach(mapped).map_err(|error| Error::segment(&place, error))?;
        Ok(Self { table, alive, others, place })
    }
}

/// By which path this process can open what a descriptor stands for once more.
fn descriptor_path(descriptor: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// Gives a file without a name its name, if nobody has that.
fn link(file: &File, place: &Path) -> io::Result<()> {
    let from = CString::new(descriptor_path(file.as_fd()).as_os_str().as_bytes())?;
    let to = CString::new(place.as_os_str().as_bytes())?;
    let here = libc::AT_FDCWD;
    // SAFETY: a system call with strings that live through it.
    let code = unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a new file its size and its table.
fn fill(file: &File, layout: Layout, place: &Path, reserve: bool) -> Result<(), Error> {
    let bytes = layout.words() as u64 * 8;
    file.set_len(bytes).map_err(|source| Error::io("size", place, source))?;
    if reserve {
        // SAFETY: a system call on an open file.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
        if code != 0 {
            let source = io::Error::from_raw_os_error(code);
            return Err(Error::io(&format!("reserve {bytes} bytes for"), place, source));
        }
    }
    let mapped = Mapped::new(file, &layout, place)?;
    Table::create(mapped, layout).map_err(|error| Error::segment(place, error))?;
    Ok(())
}

/// Removes a segment's name. Who is attached stays so, and the memory goes with the last of them. A table that is
/// damaged behind its first word, or of another format, can be removed; a file that is none cannot.
///
/// # Errors
/// There is none, it is none, or it cannot be removed.
pub fn remove(name: &str) -> Result<(), Error> {
    let place = place_of(name)?;
    // What is not there at all the removal tells.
    if let Ok(what) = std::fs::symlink_metadata(&place) {
        let found = if what.is_file() { first_word(&place) } else { Ok(0) };
        let found = found.map_err(|source| Error::io("open", &place, source))?;
        if !Layout::is_magic(found) {
            return Err(Error::segment(&place, LayoutError::Foreign { found }));
        }
    }
    match std::fs::remove_file(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Missing(place)),
        other => other.map_err(|source| Error::io("remove", &place, source)),
    }
}

/// The names of the files in `/dev/shm` that are called as segments are, sorted. Not all need be segments.
///
/// # Errors
/// The folder cannot be read.
pub fn names() -> io::Result<Vec<String>> {
    Ok(called()?.into_iter().filter_map(Result::ok).collect())
}

/// The files in `/dev/shm` that are called as a segment without a good name would be, sorted.
///
/// # Errors
/// The folder cannot be read.
pub fn misnamed() -> io::Result<Vec<PathBuf>> {
    Ok(called()?.into_iter().filter_map(Result::err).collect())
}

fn called() -> io::Result<Vec<Result<String, PathBuf>>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(FOLDER)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().as_bytes().strip_prefix(PREFIX.as_bytes()) {
            let plain = std::str::from_utf8(name).ok().filter(|name| is_plain(name));
            all.push(plain.map(str::to_string).ok_or_else(|| entry.path()));
        }
    }
    all.sort();
    Ok(all)
}
