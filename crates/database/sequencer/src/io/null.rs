//! Files in memory that keep their beginnings only: for a database that lives in memory and ends with its process.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{File, Io, Locking, Mode};

/// Bytes of a file that are kept: a header, and not a checkpoint.
const KEPT: u64 = 4096;

/// A file system of its own that forgets what is written, but for the beginnings of files. It goes with
/// [`crate::Durability::None`], which writes no log.
#[derive(Debug, Default)]
pub struct NullIo(Mutex<BTreeMap<PathBuf, Arc<Beginning>>>);

#[derive(Debug, Default)]
struct Beginning {
    length: AtomicU64,
    bytes: Mutex<Vec<u8>>,
}

impl NullIo {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Beginning>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Io for NullIo {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let mut files = self.files();
        if mode == Mode::Create {
            files.insert(path.to_path_buf(), Arc::default());
        }
        Ok(files.get(path).ok_or_else(missing)?.clone())
    }

    fn create_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let files = self.files();
        let inside = files.keys().filter(|path| path.parent() == Some(directory));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or_else(missing)?;
        files.insert(to.to_path_buf(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files().remove(path).map(drop).ok_or_else(missing)
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Locking> {
        // Nobody else has this file system.
        Ok(Locking::Held(Box::new(())))
    }

    fn describe(&self) -> String {
        "nothing is written".into()
    }
}

impl Beginning {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for Beginning {
    fn length(&self) -> io::Result<u64> {
        Ok(self.length.load(Ordering::Relaxed))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let length = self.length()?.saturating_sub(offset).min(bytes.len() as u64);
        if offset + length > KEPT {
            return Err(io::Error::other("this was not kept"));
        }
        let (length, kept) = (length as usize, self.bytes());
        let there = kept.get(offset as usize..).unwrap_or_default();
        // What was allocated and not written is zero.
        bytes[..length].fill(0);
        let known = there.len().min(length);
        bytes[..known].copy_from_slice(&there[..known]);
        Ok(length)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.length.fetch_max(offset + bytes.len() as u64, Ordering::Relaxed);
        if offset < KEPT {
            let here = &bytes[..bytes.len().min((KEPT - offset) as usize)];
            let (start, mut kept) = (offset as usize, self.bytes());
            let end = kept.len().max(start + here.len());
            kept.resize(end, 0);
            kept[start..start + here.len()].copy_from_slice(here);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.length.fetch_max(length, Ordering::Relaxed);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.length.store(length, Ordering::Relaxed);
        self.bytes().truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }
}
