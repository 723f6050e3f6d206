//! The engine as a whole: a host in this process and a storage process beside it, over one lock table and one set of
//! VID maps.
//!
//! ```text
//!  this process                      shared memory                    storage process
//!  Host: index, recent versions      lock table  <-- compare-and-swap -->  processing elements
//!  workers: transactions             VID maps    <-- read ---------------  versions in a file
//!                                    channel     <-- commands, pieces -->
//! ```
//!
//! [`NearData::restart_storage`] goes on after the storage process has died: nothing that was committed is lost, and
//! what it was at is as if it had never begun, or, if its commit was under way, found out.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockwork_sharedlocks::{Error, Layout, Options, Placement, SharedLocks};

use super::locks::{SharedLockTable, StorageLocks};
use super::maps::{Maps, MapsError};
use crate::channel::Traffic;
use crate::device::Device;
use crate::host::{Config, Host, HostError, VidMaps};
use crate::link::Link;
use crate::process::{ProcessConfig, SpawnError, StorageProcess};
use crate::program::{StorageArguments, storage_main};
use crate::record::Timestamp;
use crate::storage::{Store, StoreConfig};

const LOCKS_FILE: &str = "locks";
const MAPS_FILE: &str = "vids";

/// How the engine is made.
#[derive(Clone, Debug)]
pub struct NearDataConfig {
    /// The storage's file. Made if it is not there.
    pub data: PathBuf,
    /// Processing elements of the storage.
    pub elements: usize,
    /// What lies between the two.
    pub link: Link,
    /// Lines of the lock table, a power of two from 64. A table with fewer tuples than 15/16 of them has no two in one
    /// line.
    pub lock_lines: u32,
    /// The most tables.
    pub tables: u16,
    /// The most tuples of a table.
    pub tuples: u32,
    /// How the host works.
    pub host: Config,
}

impl NearDataConfig {
    /// Two processing elements, no link, a lock table of 64 MiB, 16 tables of 16 million tuples (memory comes with
    /// use).
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            elements: 2,
            link: Link::None,
            lock_lines: 1 << 20,
            tables: 16,
            tuples: 1 << 24,
            host: Config::default(),
        }
    }
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NearDataError {
    /// No lock table.
    #[error("lock table: {0}")]
    Locks(#[from] Error),
    /// No VID maps.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// No storage process.
    #[error(transparent)]
    Storage(#[from] SpawnError),
    /// The host refuses.
    #[error(transparent)]
    Host(#[from] HostError),
    /// No thread for flushing.
    #[error("the thread that flushes cannot be started: {0}")]
    Thread(std::io::Error),
    /// No descriptor for the storage.
    #[error("a file for the storage process: {0}")]
    Descriptor(std::io::Error),
}

/// The engine.
#[derive(Debug)]
pub struct NearData {
    host: Arc<Host>,
    flusher: Flusher,
    storage: Option<StorageProcess>,
    config: NearDataConfig,
    files: [(&'static str, OwnedFd); 2],
    maps: Maps,
}

impl NearData {
    /// Starts the storage process with `program`, which has to call [`storage_process`], and opens a host over what it
    /// has.
    ///
    /// # Errors
    /// [`NearDataError`]; no process is left.
    pub fn start(program: Command, config: NearDataConfig) -> Result<Self, NearDataError> {
        let layout = Layout { placement: Placement::Direct, ..Layout::new(config.lock_lines, 256) };
        // A bulk update can hold most lines, and hardly ever does: lists take memory as they are used.
        let (locks, locks_file) = SharedLocks::anonymous(&Options { layout, reserve: false })?;
        let (maps, maps_file) = Maps::create(config.tables, config.tuples)?;
        let files = [(LOCKS_FILE, locks_file.into()), (MAPS_FILE, maps_file)];
        let storage = spawn(program, &config, &files)?;
        let table = Arc::new(SharedLockTable::new(locks));
        let host = Arc::new(Host::open(config.host.clone(), storage.device(), table, vid_maps(maps.clone()))?);
        let flusher = Flusher::start(host.clone(), &config.host)?;
        Ok(Self { host, flusher, storage: Some(storage), config, files, maps })
    }

    /// The host, for workers of any threads.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The storage's process id.
    #[must_use]
    pub fn storage_id(&self) -> u32 {
        self.storage.as_ref().map_or(0, StorageProcess::id)
    }

    /// What has crossed the channel since the storage was started.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.storage.as_ref().map_or_else(Traffic::default, |storage| storage.device().traffic())
    }

    /// Bytes of lock table and VID maps that have crossed the link for bulk updates of the storage that have ended.
    /// Nothing crosses it for the host: both lie in its memory.
    #[must_use]
    pub fn coherent_bytes(&self) -> u64 {
        self.maps.storage_bytes()
    }

    /// What the storage says of itself.
    ///
    /// # Errors
    /// It is gone.
    pub fn status(&self) -> Result<crate::device::DeviceStatus, HostError> {
        match &self.storage {
            Some(storage) => Ok(storage.status()?),
            None => Err(HostError::Device(crate::device::DeviceError::Gone("it was not started again".into()))),
        }
    }

    /// Ends the storage process, if it still runs, and starts another one on the same file; see [`Host::reattach`].
    /// Workers must not be at work.
    ///
    /// # Errors
    /// [`NearDataError`]. Then there is no storage, and this can be tried again.
    pub fn restart_storage(&mut self, program: Command) -> Result<Option<Timestamp>, NearDataError> {
        // Nothing may be under way.
        self.flusher.end();
        self.storage = None;
        let storage = spawn(program, &self.config, &self.files)?;
        let found = self.host.reattach(storage.device())?;
        self.storage = Some(storage);
        self.flusher = Flusher::start(self.host.clone(), &self.config.host)?;
        Ok(found)
    }
}

/// The thread that lets the storage have committed versions, so that workers hardly ever have to wait for that.
#[derive(Debug)]
struct Flusher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Flushes whenever there is half of what a worker would flush itself.
    fn start(host: Arc<Host>, config: &Config) -> Result<Self, NearDataError> {
        let bytes = (config.flush_bytes / 2).max(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                // What fails here is tried again, and told to whoever needs the room or the data.
                let failed = host.shared_bytes() >= bytes && host.flush_all().is_err();
                std::thread::park_timeout(Duration::from_millis(if failed { 200 } else { 5 }));
            }
        };
        let thread =
            std::thread::Builder::new().name("lockwork-flush".into()).spawn(run).map_err(NearDataError::Thread)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If it panicked it has said so.
            drop(thread.join());
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(
    program: Command,
    config: &NearDataConfig,
    files: &[(&'static str, OwnedFd); 2],
) -> Result<StorageProcess, NearDataError> {
    let mut process = ProcessConfig::new(&config.data);
    (process.elements, process.link) = (config.elements, config.link);
    // Opening reads the whole file.
    process.start = Duration::from_secs(600);
    for (name, file) in files {
        process.files.push((name.to_string(), file.try_clone().map_err(NearDataError::Descriptor)?));
    }
    Ok(StorageProcess::spawn(program, process)?)
}

fn vid_maps(maps: Maps) -> VidMaps {
    Box::new(move |table, _| {
        maps.table(table).ok_or_else(|| format!("VID maps were made for {} tables; make more", maps.tables()))
    })
}

/// The storage process, as its program calls it: everything is in the arguments behind `--`.
#[must_use]
pub fn storage_process() -> ExitCode {
    storage_main(|arguments| open(arguments).map(|store| store as Arc<dyn Device>))
}

fn open(arguments: &StorageArguments) -> Result<Arc<Store>, String> {
    use std::os::fd::AsFd;
    let file = |name: &str| {
        let file = arguments.file(name).map(|file| file.as_fd());
        file.ok_or_else(|| format!("the host has handed over no file '{name}'"))
    };
    let locks = SharedLocks::of_descriptor(file(LOCKS_FILE)?).map_err(|error| format!("lock table: {error}"))?;
    let maps = Maps::attach(file(MAPS_FILE)?).map_err(|error| error.to_string())?;
    let tuples = maps.tuples();
    let locks = StorageLocks::new(locks, maps, arguments.link);
    let config = StoreConfig { tuples, ..StoreConfig::new(arguments.elements, Arc::new(locks)) };
    Store::open(&arguments.data, &config).map(Arc::new).map_err(|error| error.to_string())
}
