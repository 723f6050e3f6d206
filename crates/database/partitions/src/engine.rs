//! The engines: a leader that hands the calls of one batch after the other to the workers, and takes them back. While a
//! batch runs the caller fills the next.
//!
//! A worker that is gone takes its rows with it: what was in flight comes back failed ([`abort::DEVICE_LOST`]), and the
//! engine refuses further work, saying why.
//!
//! [`abort::DEVICE_LOST`]: lockwork_procedure::block::abort::DEVICE_LOST

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use lockwork_engine::registry::{Registered, Registry};
use lockwork_engine::{Completed, Engine, EngineError, Options, Refused, SerialOrder, contract};
use lockwork_locking::service::LockService;
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

use crate::LOCKD;
use crate::coordinator::{Core, Lost, Scheme, refuse_if_lost};
use crate::processes::Processes;
use crate::program::{DETERMINISTIC, TWO_PHASE};
use crate::service::Service;

/// The most workers of `network-deterministic`: sets of them are words.
const MAX_WORKERS: usize = 64;

/// See the module.
pub struct NetworkEngine {
    core: Arc<Mutex<Core>>,
    lost: Lost,
    name: &'static str,
    to_leader: Option<Sender<(Batch, bool)>>,
    from_leader: Receiver<Completed>,
    leader: Option<JoinHandle<()>>,
    in_flight: usize,
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of the lock service in the settings.
fn lockd(options: &Options) -> Result<Option<SocketAddr>, EngineError> {
    let Some(text): Option<String> = options.settings.get(LOCKD, "any text")? else { return Ok(None) };
    let address = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    let wrong = || EngineError::Setting(format!("{LOCKD}={text} is no address; write HOST:PORT"));
    address.map(Some).ok_or_else(wrong)
}

impl NetworkEngine {
    /// Returns `network-two-phase` over an empty database. Its workers run `program`, which calls
    /// [`worker_if_asked`](crate::worker_if_asked) for the same `S`. They take locks from the service that the setting
    /// `lockd` names, or else from one that the engine starts.
    ///
    /// # Errors
    /// [`EngineError::Threads`] and [`EngineError::Window`] as for every engine; [`EngineError::BackEnd`] when it is to
    /// have a lock service of its own, and that does not start.
    pub fn two_phase<S: LockService>(options: Options, program: PathBuf) -> Result<Self, EngineError> {
        contract::check(&options)?;
        let scheme = Scheme::TwoPhase(Service::new::<S>(lockd(&options)?)?);
        Self::new(options, program, TWO_PHASE, scheme)
    }

    /// `network-deterministic` over an empty database, whose workers run `program` as above.
    ///
    /// # Errors
    /// As above; [`EngineError::Setting`] for more than 64 workers.
    pub fn deterministic(options: Options, program: PathBuf) -> Result<Self, EngineError> {
        contract::check(&options)?;
        if options.threads > MAX_WORKERS {
            let asked = options.threads;
            let text = format!("'network-deterministic' has 1 to {MAX_WORKERS} workers; {asked} are not possible");
            return Err(EngineError::Setting(text));
        }
        Self::new(options, program, DETERMINISTIC, Scheme::Deterministic(0))
    }

    fn new(options: Options, program: PathBuf, name: &'static str, scheme: Scheme) -> Result<Self, EngineError> {
        let lost = Lost::default();
        let core = Arc::new(Mutex::new(Core {
            running: None,
            scheme,
            database: Database::new(options.pages),
            registry: Registry::default(),
            hints: Vec::new(),
            program,
            options,
            ahead: false,
            first_sequence: 0,
            lost: lost.clone(),
        }));
        let (to_leader, batches) = channel::<(Batch, bool)>();
        let (finished, from_leader) = channel();
        let shared = core.clone();
        let lead = move || {
            for (batch, in_order) in batches {
                if finished.send(lock(&shared).run(batch, in_order)).is_err() {
                    return;
                }
            }
        };
        let leader = std::thread::Builder::new().name("lockwork-network".into()).spawn(lead);
        let leader = leader.map_err(|error| EngineError::Worker(format!("could not be started: {error}")))?;
        Ok(Self { core, lost, name, to_leader: Some(to_leader), from_leader, leader: Some(leader), in_flight: 0 })
    }

    /// The numbers of the worker processes that run now, when no batch does any more.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        lock(&self.core).running.as_ref().map_or_else(Vec::new, Processes::ids)
    }

    fn hand_over(&mut self, batch: Batch, in_order: bool) -> Result<(), Box<Refused>> {
        // While batches are in flight the leader has the core, and the workers were started for them.
        let started = match self.in_flight {
            0 => lock(&self.core).start(),
            _ => refuse_if_lost(&self.lost),
        };
        if let Err(error) = started {
            return Err(Box::new(Refused { batch, error }));
        }
        let refused = match &self.to_leader {
            Some(to_leader) => to_leader.send((batch, in_order)).err().map(|refused| refused.0.0),
            None => Some(batch),
        };
        if let Some(batch) = refused {
            return Err(Box::new(Refused { batch, error: EngineError::Worker("died".into()) }));
        }
        self.in_flight += 1;
        Ok(())
    }

    /// The core, while nothing is in flight.
    fn idle(&self) -> Result<MutexGuard<'_, Core>, EngineError> {
        match self.in_flight {
            0 => Ok(lock(&self.core)),
            busy => Err(EngineError::Busy(busy)),
        }
    }
}

impl Engine for NetworkEngine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn serial_order(&self) -> SerialOrder {
        SerialOrder::Stamp
    }

    fn runs_on_device(&self) -> bool {
        true
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        let mut core = self.idle()?;
        core.change()?;
        let id = core.database.create_table(schema, rows)?;
        core.hints.push(rows);
        Ok(id)
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        let core = &mut *self.idle()?;
        core.change()?;
        core.registry.register(procedure, &core.database)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        let core = &mut *self.idle()?;
        core.change()?;
        core.registry.replace(id, Registered::of(procedure, &core.database)?)
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        lock(&self.core).registry.accepts(procedure, tables, old)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        lock(&self.core).registry.get(id).cloned()
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        lock(&self.core).registry.id(name)
    }

    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        let mut core = self.idle()?;
        core.refresh()?;
        read(&core.database);
        Ok(())
    }

    fn start(&mut self) -> Result<(), EngineError> {
        self.idle()?.start()
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        self.hand_over(batch, false)
    }

    fn runs_in_order(&self) -> bool {
        self.name == DETERMINISTIC
    }

    fn submit_in_order(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        self.hand_over(batch, true)
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        if self.in_flight == 0 {
            return Ok(None);
        }
        let completed = self.from_leader.recv().map_err(|_| EngineError::Worker("died".into()))?;
        self.in_flight -= 1;
        Ok(Some(completed))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        let mut core = self.idle()?;
        core.change()?;
        Ok(core.database.load(table, image)?)
    }

    fn load_rows(&mut self, table: &str, width: usize, images: &[u8]) -> Result<(), EngineError> {
        let mut core = self.idle()?;
        core.change()?;
        Ok(images.chunks(width).try_for_each(|image| core.database.load(table, image))?)
    }
}

impl Drop for NetworkEngine {
    fn drop(&mut self) {
        self.to_leader = None;
        if let Some(leader) = self.leader.take() {
            // A leader that panicked has closed its channel, which its user has seen.
            drop(leader.join());
        }
    }
}
