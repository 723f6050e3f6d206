//! The real file system: positioned reads and writes, `fdatasync`, `fallocate`, `flock`, and an io_uring ring on which
//! a write and its sync are one submission.
//!
//! What is made is for its owner only: folders have the mode 0700 and files 0600, whatever the umask lets through. A
//! file that is a symbolic link is not opened: somebody who may write in the folder could have others' files
//! overwritten. A folder may be one, so that the log can lie on a disk of its own.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use super::{File, Io, Locking, Mode};

/// Entries of the ring: a write and a sync.
const ENTRIES: u32 = 2;
/// The most bytes of one submitted write; the kernel takes no more than this at once.
const MAX_BYTES: usize = 1 << 30;

/// See the module.
pub struct Disk {
    ring: Option<Arc<Mutex<IoUring>>>,
    why_not: String,
}

impl Disk {
    /// With io_uring if the kernel lets this process have it.
    #[must_use]
    pub fn new() -> Self {
        match ring() {
            Ok(ring) => Self { ring: Some(Arc::new(Mutex::new(ring))), why_not: String::new() },
            Err(error) => Self { ring: None, why_not: format!("no io_uring: {error}") },
        }
    }

    /// With `pwrite` and `fdatasync` only.
    #[must_use]
    pub fn plain() -> Self {
        Self { ring: None, why_not: "as asked for".into() }
    }

    /// Whether writes go through io_uring.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

/// The modes of folders and files.
const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;
const NO_LINK: i32 = OFlags::NOFOLLOW.bits() as i32;

/// Says what the system means by a loop.
fn told(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => io::Error::new(error.kind(), "it is a symbolic link, and a file is needed"),
        _ => error,
    }
}

fn ring() -> io::Result<IoUring> {
    let ring = IoUring::new(ENTRIES)?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let known = [opcode::Write::CODE, opcode::Fsync::CODE].into_iter().all(|code| probe.is_supported(code));
    if known { Ok(ring) } else { Err(io::Error::from(io::ErrorKind::Unsupported)) }
}

impl Io for Disk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(mode != Mode::Read).mode(FILE).custom_flags(NO_LINK);
        if mode == Mode::Create {
            options.create(true).truncate(true);
        }
        Ok(Arc::new(DiskFile { file: options.open(path).map_err(told)?, ring: self.ring.clone() }))
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            self.create_directory(above)?;
        }
        match fs::DirBuilder::new().mode(FOLDER).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Somebody else may have made it meanwhile.
                let needed = || io::Error::new(io::ErrorKind::NotADirectory, "it is a file, and a folder is needed");
                if path.is_dir() { Ok(()) } else { Err(needed()) }
            }
            Err(error) => Err(error),
            Ok(()) => match path.parent().filter(|above| !above.as_os_str().is_empty()) {
                Some(above) => self.sync_directory(above),
                None => self.sync_directory(Path::new(".")),
            },
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE).custom_flags(NO_LINK);
        let mut file = options.open(path).map_err(told)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let known = file.read_to_string(&mut owner).is_ok() && owner.trim().parse::<u32>().is_ok();
                let owner = if known { format!("process {}", owner.trim()) } else { "another process".into() };
                return Ok(Locking::Taken(owner));
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // Who holds it, for the message that the second one gets; the lock itself is the kernel's.
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Locking::Held(Box::new(Held(file))))
    }

    fn describe(&self) -> String {
        match self.ring {
            Some(_) => "io_uring, a write and its fdatasync linked".into(),
            None => format!("pwrite and fdatasync ({})", self.why_not),
        }
    }
}

/// A locked file. It is unlocked by name, not by closing it: a child that was forked and has not executed its program
/// yet has the same file open.
struct Held(fs::File);

impl Drop for Held {
    fn drop(&mut self) {
        // If it fails, closing does it, a little later.
        drop(self.0.unlock());
    }
}

struct DiskFile {
    file: fs::File,
    ring: Option<Arc<Mutex<IoUring>>>,
}

impl DiskFile {
    /// A write and the sync behind it in one submission. Returns how many bytes were written; all of them means that
    /// the sync has succeeded too.
    fn linked(&self, ring: &mut IoUring, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let file = types::Fd(self.file.as_raw_fd());
        let length = bytes.len().min(MAX_BYTES) as u32;
        let write = opcode::Write::new(file, bytes.as_ptr(), length).offset(offset).build().user_data(0);
        let sync = opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build().user_data(1);
        let entries = [write.flags(squeue::Flags::IO_LINK), sync];
        // SAFETY: `bytes` outlives both entries: the loop below does not end before the kernel has answered both.
        unsafe { ring.submission().push_multiple(&entries) }.map_err(io::Error::other)?;
        let mut results = [None; 2];
        while results.contains(&None) {
            let missing = results.iter().filter(|result| result.is_none()).count();
            if ring.submit_and_wait(missing).is_err() {
                // Interrupted, or the kernel is short of memory for a moment: its other errors are about arguments that
                // are constants here. The entries stand, and `bytes` may be in use, so there is nothing but to go on.
                std::thread::yield_now();
            }
            for entry in ring.completion() {
                results[usize::from(entry.user_data() != 0)] = Some(entry.result());
            }
        }
        let [written, synced] = results.map(|result| result.expect("both were answered"));
        if written < 0 {
            return Err(io::Error::from_raw_os_error(-written));
        }
        // A short write breaks the link: the sync was cancelled, not tried.
        if written as usize == bytes.len() && synced < 0 {
            return Err(io::Error::from_raw_os_error(-synced));
        }
        Ok(written as usize)
    }
}

impl File for DiskFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read_at(bytes, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write_and_sync(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(ring) = &self.ring else {
            self.write_at(offset, bytes)?;
            return self.sync();
        };
        let written = self.linked(&mut ring.lock().unwrap_or_else(PoisonError::into_inner), offset, bytes)?;
        if written == bytes.len() {
            return Ok(());
        }
        self.write_at(offset + written as u64, &bytes[written..])?;
        self.sync()
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(()),
            // A file system without it: zeros take the room just as well.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let mut at = self.length()?;
                let zeros = vec![0; 1 << 20];
                while at < length {
                    let piece = zeros.len().min((length - at) as usize);
                    self.file.write_all_at(&zeros[..piece], at)?;
                    at += piece as u64;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_is_made_is_for_its_owner_only_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, below) = (Disk::plain(), folder.path().join("above/below"));
        disk.create_directory(&below).unwrap();
        let [file, lock, victim] = ["file", "lock", "victim"].map(|name| below.join(name));
        disk.open(&file, Mode::Create).unwrap();
        assert!(matches!(disk.lock(&lock).unwrap(), Locking::Held(_)));
        for (path, mode) in [(below.parent().unwrap(), 0o700), (&below, 0o700), (&file, 0o600), (&lock, 0o600)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
        fs::write(&victim, "kept").unwrap();
        for path in [&file, &lock] {
            fs::remove_file(path).unwrap();
            symlink(&victim, path).unwrap();
            for mode in [Mode::Read, Mode::Write, Mode::Create] {
                let refused = disk.open(path, mode).map(drop).unwrap_err().to_string();
                assert!(refused.contains("symbolic link"), "{refused}");
            }
            let refused = disk.lock(path).map(drop).unwrap_err().to_string();
            assert!(refused.contains("symbolic link"), "{refused}");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        // A folder may be one.
        symlink(&below, folder.path().join("elsewhere")).unwrap();
        disk.open(&folder.path().join("elsewhere/new"), Mode::Create).unwrap();
    }
}
