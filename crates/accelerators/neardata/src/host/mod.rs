//! The host: transactions over the newest versions, beside bulk operations that the storage runs.
//!
//! | module | idea |
//! |---|---|
//! | [`vid_map`] | number and place of each tuple's newest version, in memory shared with the storage |
//! | `recent`, `cache`, `index`, `table` | versions that the storage does not have, cold rows, keys; a look-up |
//! | `clock`, `sessions` | commit timestamps, snapshots, what they see; counters |
//! | [`locks`], [`in_process`] | the lock table as the host sees it, and a plain one |
//! | `session` | one transaction: isolation, private copies, commit |
//! | `procedure`, `worker`, [`interactive`] | transactions as verified procedures, and step by step |
//! | `flush`, `reattach` | versions go to the storage; another storage after the first one died |
//! | [`bulk`], `on_host` | bulk operations: in the storage, and the same update on the host |
//! | `guard` | host transactions keep off rows that a bulk update is going to change |
//! | [`memory_device`] | a storage in memory: the oracle of tests, which can fail at any step |
//!
//! **Isolation** is chosen for a host as a whole ([`Isolation`]). *Snapshot*: a transaction reads the state as of its
//! begin and commits only if nobody else has updated what it updates since then (first updater wins); write skew is
//! possible. *Serializable*: strict two-phase locking of what is read and written, with whole-table gates against
//! phantoms; equivalent to the order of serial stamps.
//!
//! **Durability.** A commit on the host is durable when its tables have been flushed; a flush stores the versions of
//! one table, all or none. A bulk update is durable when its commit returns. Order and durability of calls are the
//! sequencer's business.

pub mod bulk;
mod cache;
mod clock;
mod copies;
mod error;
mod flush;
mod guard;
pub mod in_process;
mod index;
pub mod interactive;
pub mod locks;
pub mod memory_device;
mod on_host;
mod procedure;
mod reattach;
mod recent;
mod session;
mod sessions;
mod table;
pub mod vid_map;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_procedure::verify::verify;

use crate::device::{Device, TableId};
use crate::record::Timestamp;
use cache::Cache;
use clock::Clock;
pub use error::{Conflict, HostError};
use locks::LockTable;
use procedure::Registered;
use reattach::Doubt;
pub use sessions::Counters;
use sessions::{Sessions, Views};
use table::HostTable;
use vid_map::VidMap;
pub use worker::Worker;

/// The most tables of a host.
pub const MAX_TABLES: usize = 1_024;

/// What transactions on a host may see of each other; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Snapshot isolation, first updater wins.
    Snapshot,
    /// Serializable.
    Serializable,
}

/// How a host works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What transactions may see of each other.
    pub isolation: Isolation,
    /// How often a call that met a conflict is tried again before it fails.
    pub max_retries: u32,
    /// How long a host transaction waits for one lock, if it may wait at all.
    pub timeout: Duration,
    /// The most bytes of cold rows that are kept.
    pub cache_bytes: usize,
    /// Bytes of committed versions from which on a worker flushes after a commit.
    pub flush_bytes: usize,
    /// Bytes of committed versions from which on commits fail, if flushing does.
    pub shared_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            isolation: Isolation::Snapshot,
            max_retries: 100,
            timeout: Duration::from_millis(100),
            cache_bytes: 256 << 20,
            flush_bytes: 64 << 20,
            shared_bytes: 512 << 20,
        }
    }
}

/// Gives the VID map of a table, in memory that the storage finds by the table's number; the text of an error says
/// why there is none.
pub type VidMaps = Box<dyn Fn(TableId, &TableSchema) -> Result<VidMap, String> + Send + Sync>;

/// See the module. Many threads use one host, each with a [`Worker`] of its own.
pub struct Host {
    config: Config,
    device: RwLock<Arc<dyn Device>>,
    locks: Arc<dyn LockTable>,
    maps: VidMaps,
    tables: Box<[OnceLock<HostTable>]>,
    creating: Mutex<()>,
    procedures: RwLock<Vec<Arc<Registered>>>,
    clock: Clock,
    sessions: Sessions,
    cache: Cache,
    /// Bytes of versions that the storage does not have.
    shared_bytes: Arc<AtomicUsize>,
    /// Bytes from which on the next flush is due.
    flush_at: AtomicUsize,
    flushing_all: Mutex<()>,
    /// A bulk update whose end is not known; held by whoever commits one, because only one timestamp can be reserved.
    doubt: Mutex<Option<Doubt>>,
    /// Whether there is one.
    in_doubt: AtomicBool,
    /// The last commit that the storage is known to have.
    stored: AtomicU64,
    ages: AtomicU64,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.all_tables().count();
        f.debug_struct("Host").field("config", &self.config).field("tables", &tables).finish_non_exhaustive()
    }
}

impl Host {
    /// Opens a host over what the storage has.
    ///
    /// # Errors
    /// A failing storage, a VID map that is missing or too small, or no memory.
    pub fn open(
        config: Config,
        device: Arc<dyn Device>,
        locks: Arc<dyn LockTable>,
        maps: VidMaps,
    ) -> Result<Self, HostError> {
        let tables: Box<[OnceLock<HostTable>]> = (0..MAX_TABLES).map(|_| OnceLock::new()).collect();
        let shared_bytes = Arc::new(AtomicUsize::new(0));
        let mut newest = device.status()?.newest;
        for (id, schema) in device.tables()?.into_iter().enumerate() {
            let (table, seen) = open_table(id, schema, &maps, &shared_bytes, &*device)?;
            newest = newest.max(seen);
            assert!(tables[id].set(table).is_ok(), "tables are opened once");
        }
        Ok(Self {
            device: RwLock::new(device),
            locks,
            maps,
            tables,
            creating: Mutex::default(),
            procedures: RwLock::default(),
            clock: Clock::new(newest),
            sessions: Sessions::default(),
            cache: Cache::new(config.cache_bytes),
            shared_bytes,
            flush_at: AtomicUsize::new(config.flush_bytes),
            flushing_all: Mutex::default(),
            doubt: Mutex::default(),
            in_doubt: AtomicBool::new(false),
            // Bulk updates are named by their age; so no name comes again after a commit of one, which moves the clock.
            ages: AtomicU64::new(newest),
            stored: AtomicU64::new(newest),
            config,
        })
    }

    /// Creates an empty table, in the storage too.
    ///
    /// # Errors
    /// What the storage refuses, or no VID map.
    pub fn create_table(&self, schema: &TableSchema) -> Result<TableId, HostError> {
        let _alone = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device();
        let next = self.all_tables().count();
        if next == MAX_TABLES {
            return Err(HostError::TooManyTables(MAX_TABLES));
        }
        // The map first: if there is none, the storage has no table that the host cannot open.
        (self.maps)(next as TableId, schema).map_err(|problem| HostError::NoVidMap { table: next as u16, problem })?;
        let id = device.create_table(schema)?;
        let (table, _) = open_table(usize::from(id), schema.clone(), &self.maps, &self.shared_bytes, &*device)?;
        if self.tables.get(usize::from(id)).is_none_or(|place| place.set(table).is_err()) {
            let text = format!("the storage gave number {id} to a new table, which is taken or above {MAX_TABLES}");
            return Err(HostError::Device(crate::device::DeviceError::Corrupt(text)));
        }
        Ok(id)
    }

    /// Verifies a procedure against the tables there are, and answers its id for [`Worker::call`].
    ///
    /// # Errors
    /// What the verifier refuses, or a name that is taken.
    pub fn register(&self, procedure: Procedure) -> Result<u32, HostError> {
        let registered = Registered::new(&verify(procedure, &HostTables(self))?);
        let mut procedures = self.procedures.write().unwrap_or_else(PoisonError::into_inner);
        if procedures.iter().any(|other| other.name == registered.name) {
            return Err(HostError::DuplicateProcedure(registered.name));
        }
        procedures.push(Arc::new(registered));
        Ok(procedures.len() as u32 - 1)
    }

    /// A worker for one thread.
    ///
    /// # Errors
    /// The lock table gives no session.
    pub fn worker(&self) -> Result<Worker<'_>, HostError> {
        Worker::new(self)
    }

    /// The tables, by number.
    #[must_use]
    pub fn tables(&self) -> Vec<TableSchema> {
        self.all_tables().map(|table| table.schema.clone()).collect()
    }

    /// The number of the table of this name.
    #[must_use]
    pub fn table_id(&self, name: &str) -> Option<TableId> {
        self.all_tables().find(|table| table.schema.name() == name).map(|table| table.id)
    }

    /// What became of the work so far. Bytes that move to and from the storage are counted by the device.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.sessions.counters()
    }

    /// Bytes of committed versions that the storage does not have yet, about.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes.load(Ordering::Relaxed)
    }

    /// The last timestamp that new snapshots see.
    #[must_use]
    pub fn newest(&self) -> Timestamp {
        self.clock.visible()
    }

    /// Lets the storage free versions that no snapshot sees any more, and answers how many it freed.
    ///
    /// # Errors
    /// A failing storage.
    pub fn collect(&self) -> Result<u64, HostError> {
        let mut views = Views::default();
        self.sessions.views(&self.clock, &mut views);
        Ok(self.device().collect(views.oldest())?)
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn table(&self, id: TableId) -> Result<&HostTable, HostError> {
        self.tables.get(usize::from(id)).and_then(OnceLock::get).ok_or(HostError::NoTable(id))
    }

    fn all_tables(&self) -> impl Iterator<Item = &HostTable> {
        self.tables.iter().map_while(OnceLock::get)
    }

    fn procedures(&self) -> Vec<Arc<Registered>> {
        self.procedures.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The age of a new transaction, and the name of a bulk update.
    fn next_age(&self) -> u64 {
        self.ages.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn open_table(
    id: usize,
    schema: TableSchema,
    maps: &VidMaps,
    bytes: &Arc<AtomicUsize>,
    device: &dyn Device,
) -> Result<(HostTable, Timestamp), HostError> {
    let number = TableId::try_from(id).ok().filter(|_| id < MAX_TABLES).ok_or(HostError::TooManyTables(MAX_TABLES))?;
    let map = maps(number, &schema).map_err(|problem| HostError::NoVidMap { table: number, problem })?;
    HostTable::open(number, schema, map, bytes.clone(), device)
}

/// The tables of a host as the verifier looks them up.
struct HostTables<'a>(&'a Host);

impl Catalog for HostTables<'_> {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        self.0.all_tables().find(|table| table.schema.name() == name).map(|table| (table.id, &table.schema))
    }

    fn table_names(&self) -> Vec<String> {
        self.0.all_tables().map(|table| table.schema.name().to_string()).collect()
    }
}
