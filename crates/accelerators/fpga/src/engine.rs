//! The engine: a leader that hands batches to the card one after the other, and takes them back.
//!
//! The host keeps a mirror of the tables: rows are loaded into it, go to the card before the first batch, and come back
//! when somebody wants to read. While a batch runs the caller fills the next.
//!
//! A card that is lost takes everything with it that was in flight: those batches come back with every block failed
//! ([`abort::DEVICE_LOST`]), and the engine refuses further work, because nobody knows what the card's memory holds.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use lockwork_engine::conflicts::{Cause, Conflicts};
use lockwork_engine::registry::{Registered, Registry};
use lockwork_engine::{
    BatchReport, Completed, DeviceTimes, Engine, EngineError, Interleave, Options, Refused, SerialOrder, Tally,
    contract,
};
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::isa::Opcode;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_procedure::verified::Verified;
use lockwork_procedure::verify::verify;
use lockwork_storage::Database;

use crate::card::Card;
use crate::catalogue::Catalogue;
use crate::create::FPGA;
use crate::driver::{Driver, MAX_RETRIES, Settings};
use crate::layout::Shape;
use crate::registers::{MODE_BATCH, MODE_DYNAMIC, MODE_SERIAL};
use crate::running::{Running, appetite};

/// Nanoseconds of a cycle at 125 MHz, the clock of the paper's machine: what cycles are told as time by.
pub const CYCLE_NS: u64 = 8;

/// Why the card cannot be trusted any more, if so.
type Lost = Arc<OnceLock<String>>;

struct Core {
    database: Database,
    registry: Registry,
    catalogue: Catalogue,
    hints: Vec<usize>,
    driver: Driver,
    running: Option<Running>,
    /// The card has run batches that the mirror does not show.
    ahead: bool,
    first_sequence: u64,
    /// How often a block may come back with too many conflicts.
    tries: u32,
    lost: Lost,
}

fn refuse_if_lost(lost: &Lost) -> Result<(), EngineError> {
    match lost.get() {
        Some(why) => Err(EngineError::BackEnd(format!("the engine takes no more work: {why}"))),
        None => Ok(()),
    }
}

impl Core {
    /// Brings the mirror up to date.
    fn refresh(&mut self) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if let Some(running) = self.running.as_ref().filter(|_| self.ahead) {
            if let Err(error) = running.download(&mut self.driver, &self.database) {
                // Only the first failure says why.
                let _ = self.lost.set(error.to_string());
                return Err(error);
            }
            // SAFETY: no transaction is running on the mirror, ever.
            unsafe { self.database.reclaim() };
            self.ahead = false;
        }
        Ok(())
    }

    /// Brings the mirror up to date and forgets what is on the card: it is going to change.
    fn change(&mut self) -> Result<(), EngineError> {
        self.refresh()?;
        self.running = None;
        Ok(())
    }

    /// Puts tables and procedures on the card if they are not there.
    fn start(&mut self, extra: &[u64]) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if self.running.is_none() {
            let Self { database, registry, catalogue, hints, driver, .. } = self;
            self.running = Some(Running::new(driver, database, registry, catalogue, hints, extra)?);
        }
        Ok(())
    }

    /// Makes sure, if the card's memory allows, that the batch finds room for the rows that it may insert.
    fn make_room(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let procedures = batch.blocks().map(|block| block.procedure());
        let most = appetite(&self.catalogue.demands, self.database.len(), procedures);
        self.start(&most)?;
        if let Some(running) = &mut self.running
            && running.is_full(&mut self.driver, &most)
        {
            // Moving tables anew leaves removed rows and unused places behind.
            self.refresh()?;
            self.running = None;
            if self.start(&most).is_err() {
                self.start(&[])?;
            }
        }
        Ok(())
    }

    fn run(&mut self, mut batch: Batch) -> Completed {
        let start = Instant::now();
        let first = self.first_sequence;
        self.first_sequence += batch.len() as u64;
        let taken = refuse_if_lost(&self.lost).and_then(|()| self.make_room(&batch)).and_then(|()| {
            let Self { registry, catalogue, driver, running, tries, .. } = self;
            self.ahead = true;
            let running = running.as_mut().expect("the card was started");
            running.run(driver, registry, catalogue, &mut batch, *tries)
        });
        let mut report = BatchReport::default();
        match taken {
            Ok(taken) => {
                let mut conflicts = Conflicts::default();
                conflicts.count(Cause::LateWrite, taken.conflicts);
                report.tally.conflicts = conflicts;
                report.device = Some(DeviceTimes {
                    execution_ns: taken.cycles * CYCLE_NS,
                    cycles: taken.cycles,
                    ..DeviceTimes::default()
                });
            }
            Err(error) => {
                // Only the first failure says why.
                let _ = self.lost.set(error.to_string());
                for index in 0..batch.len() {
                    batch.block_mut(index).set_outcome(Status::Failed, abort::DEVICE_LOST);
                }
            }
        }
        for index in 0..batch.len() {
            batch.block_mut(index).set_sequence(first + index as u64);
        }
        report.tally.add(&Tally::of(&batch));
        report.total_ns = start.elapsed().as_nanos() as u64;
        Completed { batch, report }
    }

    /// Whether the card takes the tables of a procedure, and its code.
    fn fits(&self, verified: &Verified) -> Result<(), EngineError> {
        let card = self.driver.capabilities();
        let code = &verified.procedure().code;
        for (slot, table) in verified.tables().iter().enumerate() {
            let is_of = |slot: u8| verified.tables()[usize::from(slot)].id == table.id;
            let scans = code.iter().any(|i| i.opcode == Opcode::Scan && is_of(i.d));
            let schema = &table.schema;
            if schema.partitioning().is_none() && card.workers > 1 {
                let keys: Vec<&str> = schema.key().iter().map(|column| column.name.as_str()).collect();
                let procedure = verified.procedure().name.clone();
                let table = verified.procedure().tables[slot].clone();
                return Err(EngineError::NotPartitioned { procedure, table, keys: keys.join(", ") });
            }
            let scanned = scans || self.registry.is_scanned(table.id);
            Shape::new(usize::from(table.id), schema, 1, scanned, true, card)?;
        }
        self.catalogue.clone().add(verified, card)
    }
}

/// An engine on a transaction processor.
pub struct FpgaEngine {
    core: Arc<Mutex<Core>>,
    lost: Lost,
    to_leader: Option<Sender<Batch>>,
    from_leader: Receiver<Completed>,
    leader: Option<JoinHandle<()>>,
    in_flight: usize,
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a card is to work for an engine with these options.
#[must_use]
pub fn settings(options: &Options) -> Settings {
    let mode = match options.interleave {
        Interleave::None => MODE_SERIAL,
        Interleave::Batch => MODE_BATCH,
        Interleave::Dynamic => MODE_DYNAMIC,
    };
    Settings { mode, retries: options.max_retries.min(MAX_RETRIES), ..Settings::default() }
}

impl FpgaEngine {
    /// An engine over an empty database on this card.
    ///
    /// # Errors
    /// [`EngineError::Threads`] and [`EngineError::Window`] as for every engine; [`EngineError::BackEnd`] when the card
    /// is no transaction processor, does not answer, or has not as many workers as `options.threads` says.
    pub fn new(card: Box<dyn Card>, options: Options, settings: Settings) -> Result<Self, EngineError> {
        contract::check(&options)?;
        let driver = Driver::new(card, settings)?;
        let workers = driver.capabilities().workers;
        if workers != options.threads {
            return Err(EngineError::BackEnd(format!(
                "the card has {workers} workers, not {}: ask for {workers} threads",
                options.threads
            )));
        }
        let lost = Lost::default();
        let core = Arc::new(Mutex::new(Core {
            database: Database::new(options.pages),
            registry: Registry::default(),
            catalogue: Catalogue::default(),
            hints: Vec::new(),
            driver,
            running: None,
            ahead: false,
            first_sequence: 0,
            tries: 1 + options.max_retries / (MAX_RETRIES + 1),
            lost: lost.clone(),
        }));
        let (to_leader, batches) = channel::<Batch>();
        let (finished, from_leader) = channel();
        let shared = core.clone();
        let lead = move || {
            for batch in batches {
                if finished.send(lock(&shared).run(batch)).is_err() {
                    return;
                }
            }
        };
        let leader = std::thread::Builder::new().name("lockwork-fpga".into()).spawn(lead);
        let leader = leader.map_err(|error| EngineError::Worker(format!("could not be started: {error}")))?;
        Ok(Self { core, lost, to_leader: Some(to_leader), from_leader, leader: Some(leader), in_flight: 0 })
    }

    /// What the card is, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        lock(&self.core).driver.card().describe()
    }

    /// The core, while nothing is in flight.
    fn idle(&self) -> Result<MutexGuard<'_, Core>, EngineError> {
        match self.in_flight {
            0 => Ok(lock(&self.core)),
            busy => Err(EngineError::Busy(busy)),
        }
    }
}

impl Engine for FpgaEngine {
    fn name(&self) -> &'static str {
        FPGA.name()
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
        let mut core = self.idle()?;
        core.change()?;
        let core = &mut *core;
        let registered = Registered::of(procedure, &core.database)?;
        core.fits(&registered.verified)?;
        let mut catalogue = core.catalogue.clone();
        catalogue.add(&registered.verified, core.driver.capabilities())?;
        let id = core.registry.add(registered)?;
        core.catalogue = catalogue;
        Ok(id)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        let mut core = self.idle()?;
        core.change()?;
        let core = &mut *core;
        let registered = Registered::of(procedure, &core.database)?;
        core.fits(&registered.verified)?;
        let mut catalogue = Catalogue::default();
        for (old, other) in (0_u32..).zip(core.registry.all()) {
            let verified = if old == id { &registered.verified } else { &other.verified };
            catalogue.add(verified, core.driver.capabilities())?;
        }
        core.registry.replace(id, registered)?;
        core.catalogue = catalogue;
        Ok(())
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        let core = lock(&self.core);
        core.registry.accepts(procedure, tables, old)?;
        core.fits(&verify(procedure.clone(), tables)?)
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
        self.idle()?.start(&[])
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        // While batches are in flight the leader has the core, and the card was started for them.
        let started = match self.in_flight {
            0 => lock(&self.core).start(&[]),
            _ => refuse_if_lost(&self.lost),
        };
        if let Err(error) = started {
            return Err(Box::new(Refused { batch, error }));
        }
        let refused = match &self.to_leader {
            Some(to_leader) => to_leader.send(batch).err().map(|refused| refused.0),
            None => Some(batch),
        };
        if let Some(batch) = refused {
            return Err(Box::new(Refused { batch, error: EngineError::Worker("died".into()) }));
        }
        self.in_flight += 1;
        Ok(())
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
}

impl Drop for FpgaEngine {
    fn drop(&mut self) {
        self.to_leader = None;
        if let Some(leader) = self.leader.take() {
            // A leader that panicked has closed its channel, which its user has seen.
            drop(leader.join());
        }
    }
}
