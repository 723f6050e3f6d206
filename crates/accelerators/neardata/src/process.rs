//! The storage process, as the host sees it: started, watched, ended.
//!
//! Its files (the channel, this process by pidfd, and what the caller adds) are inherited by number; only between fork
//! and exec are they marked so, so no other child gets them. One thread watches: it passes on what the storage writes
//! to its standard error and keeps the end of that, and when the process has ended, every call in flight and every
//! later one fails with how it ended and with those last words.
//!
//! Invariant: nobody waits for a process that is gone. Trade-off: a process that is alive and does nothing is waited
//! for; only its start and its end have time limits.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockwork_procedure::schema::TableSchema;

use crate::channel::pidfd::{PidFd, poll};
use crate::channel::port::End;
use crate::channel::{ChannelError, ChannelSize, RemoteDevice};
use crate::device::{Device, DeviceError, DeviceStatus, Operation, Piece, Ran, TableId, TransactionId, Tuple, Version};
use crate::link::Link;
use crate::record::{RecordId, Timestamp, Vid};

/// How much of what the storage wrote last is kept.
const LAST_WORDS: usize = 4096;

/// How a storage process is to run.
#[derive(Debug)]
pub struct ProcessConfig {
    /// The file with its data.
    pub data: PathBuf,
    /// Its processing elements.
    pub elements: usize,
    /// The link between it and this process.
    pub link: Link,
    /// How much of the channel there is.
    pub size: ChannelSize,
    /// How long either side looks for an entry before it sleeps.
    pub spin: Duration,
    /// Further files for it, by name: the shared lock table, VID maps.
    pub files: Vec<(String, OwnedFd)>,
    /// How long it may take to open its data.
    pub start: Duration,
    /// How long it may take to end.
    pub stop: Duration,
}

impl ProcessConfig {
    /// Four processing elements, no link, the default channel, a minute to start and ten seconds to end.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            elements: 4,
            link: Link::None,
            size: ChannelSize::default(),
            spin: Duration::from_micros(20),
            files: Vec::new(),
            start: Duration::from_secs(60),
            stop: Duration::from_secs(10),
        }
    }
}

/// Why there is no storage process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// There is no channel to give it.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The program could not be started.
    #[error("the storage process '{program}' cannot be started: {source}")]
    Program {
        /// Its name.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended before it took calls; with its own words.
    #[error("the storage process did not start: {0}")]
    Ended(String),
    /// It took too long.
    #[error("the storage process was not ready after {0:?}, and was ended")]
    Slow(Duration),
    /// The system refused something.
    #[error("watching the storage process: {0}")]
    System(#[source] io::Error),
}

/// A storage process that takes calls. Dropping it ends it in good order.
#[derive(Debug)]
pub struct StorageProcess {
    device: Arc<RemoteDevice>,
    process: PidFd,
    id: u32,
    stop: Duration,
    watcher: Option<JoinHandle<()>>,
}

impl StorageProcess {
    /// Starts `command`, which is to call [`storage_main`](crate::program::storage_main), and waits until it takes
    /// calls. The arguments for that are added to the command, after `--`.
    ///
    /// # Errors
    /// [`SpawnError`]; then no process is left.
    pub fn spawn(mut command: Command, config: ProcessConfig) -> Result<Self, SpawnError> {
        let (device, channel) = RemoteDevice::create(config.size, config.link, config.spin)?;
        let device = Arc::new(device);
        let host = PidFd::open(std::process::id()).map_err(SpawnError::System)?;
        let mut inherited = vec![channel.as_raw_fd(), host.as_fd().as_raw_fd()];
        command.args(["--", "--channel", &inherited[0].to_string(), "--host", &inherited[1].to_string()]);
        command.arg("--data").arg(&config.data).args(["--elements", &config.elements.to_string()]);
        command.args(["--link", config.link.name(), "--spin", &config.spin.as_nanos().to_string()]);
        for (name, file) in &config.files {
            command.args(["--file", &format!("{name}={}", file.as_raw_fd())]);
            inherited.push(file.as_raw_fd());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let inherit = move || {
            for file in &inherited {
                // SAFETY: a plain system call, which is allowed between fork and exec.
                if unsafe { libc::fcntl(*file, libc::F_SETFD, 0) } < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: what runs between fork and exec makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(inherit) };
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|source| SpawnError::Program { program, source })?;
        let id = child.id();
        let prepared = PidFd::open(id).and_then(|process| Ok((process.try_clone()?, process.try_clone()?, process)));
        let (process, killer, watched) = prepared.inspect_err(|_| end(&mut child)).map_err(SpawnError::System)?;
        device.watch(killer);
        let errors = child.stderr.take().expect("it is piped");
        let start = Arc::new(AtomicU8::new(STARTING));
        let watch = Watch { child, process: watched, errors, device: device.clone(), start: start.clone() };
        let child = Arc::new(Mutex::new(Some(watch)));
        let (mine, limit) = (child.clone(), config.start);
        let take = |watch: &Mutex<Option<Watch>>| watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = std::thread::Builder::new().name("lockwork-storage".into());
        let thread = thread.spawn(move || take(&mine).into_iter().for_each(|watch| watch.run(limit)));
        let watcher = thread.inspect_err(|_| take(&child).into_iter().for_each(|mut watch| end(&mut watch.child)));
        let watcher = Some(watcher.map_err(SpawnError::System)?);
        let started = Self { device, process, id, stop: config.stop, watcher };
        match started.device.ready() {
            Ok(()) if over(&start, READY) => Ok(started),
            Ok(()) => Err(SpawnError::Slow(config.start)),
            Err(_) if start.load(Ordering::SeqCst) == SLOW => Err(SpawnError::Slow(config.start)),
            Err(DeviceError::Gone(text)) => Err(SpawnError::Ended(text)),
            Err(other) => Err(SpawnError::Ended(other.to_string())),
        }
    }

    /// The storage as a device that may be kept longer than this: then its calls fail.
    #[must_use]
    pub fn device(&self) -> Arc<RemoteDevice> {
        self.device.clone()
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for StorageProcess {
    fn drop(&mut self) {
        self.device.shut_down();
        let deadline = Instant::now() + self.stop;
        // Signals that interrupt the wait do not shorten it.
        while poll([self.process.as_fd()], Some(deadline.saturating_duration_since(Instant::now()))) == [false] {
            if Instant::now() >= deadline {
                self.process.signal(libc::SIGKILL);
                break;
            }
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.join().expect("the watcher does not panic");
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// How the start goes: what the starting thread and the watching one tell each other.
const STARTING: u8 = 0;
const READY: u8 = 1;
const SLOW: u8 = 2;

/// The start is over in this way, if it was not before.
fn over(start: &AtomicU8, how: u8) -> bool {
    start.compare_exchange(STARTING, how, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

#[derive(Debug)]
struct Watch {
    child: Child,
    process: PidFd,
    errors: ChildStderr,
    device: Arc<RemoteDevice>,
    start: Arc<AtomicU8>,
}

impl Watch {
    fn run(mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (mut words, mut open) = (Vec::new(), true);
        loop {
            let starting = self.start.load(Ordering::SeqCst) == STARTING;
            let time = starting.then(|| deadline.saturating_duration_since(Instant::now()));
            let [gone, wrote] = if open {
                poll([self.process.as_fd(), self.errors.as_fd()], time)
            } else {
                [poll([self.process.as_fd()], time)[0], false]
            };
            if wrote {
                open = self.listen(&mut words);
            } else if gone {
                break;
            } else if Instant::now() >= deadline && over(&self.start, SLOW) {
                self.process.signal(libc::SIGKILL);
            }
        }
        let how = self.child.wait().map_or_else(|error| format!("how it ended is unknown: {error}"), |s| s.to_string());
        let words = String::from_utf8_lossy(&words);
        let words = words.trim();
        let text = if words.is_empty() { how } else { format!("{how}; its last words: {words}") };
        self.device.finish(End::Gone(text));
    }

    /// Takes what the storage wrote, and says whether there may be more. While it starts, its words are for the error;
    /// once it runs, nobody else would show them.
    fn listen(&mut self, words: &mut Vec<u8>) -> bool {
        let mut buffer = [0; LAST_WORDS];
        match self.errors.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                words.extend_from_slice(&buffer[..count]);
                words.drain(..words.len().saturating_sub(LAST_WORDS));
                if self.start.load(Ordering::SeqCst) == READY {
                    let _ = io::stderr().write_all(&buffer[..count]);
                }
                true
            }
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }
}

impl Device for StorageProcess {
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError> {
        self.device.create_table(schema)
    }

    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        self.device.tables()
    }

    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        self.device.tuples(table, each)
    }

    fn flush(&self, table: TableId, versions: &[Version], watermark: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        self.device.flush(table, versions, watermark)
    }

    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError> {
        self.device.read(table, vid, snapshot)
    }

    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        self.device.run(operation, piece)
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError> {
        self.device.commit(transaction, timestamp)
    }

    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError> {
        self.device.abort(transaction)
    }

    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError> {
        self.device.collect(watermark)
    }

    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        self.device.status()
    }
}
