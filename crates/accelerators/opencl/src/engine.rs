//! The two engines: a leader that plans, hands batches to the device, and takes them back.
//!
//! ```text
//!             batch n-1          batch n            batch n+1
//! leader                         plan n+1 ...       plan n+2 ...
//! lane in     blocks, plan n     blocks n+1
//! lane execute  kernels n-1      kernels n          kernels n+1
//! lane out                       blocks n-1         blocks n
//! ```
//!
//! Planning needs nothing of the device, so batch n + 1 is planned while batch n runs. Each of [`DEPTH`] slots has its
//! own block and plan buffers; a batch waits for its slot, for nothing else. Batches execute in the order of their
//! submission, because their kernels stand in one queue.
//!
//! Invariant: the device holds the truth between the first batch and the next reader; the mirror is brought up to date
//! only when somebody wants to read ([`Core::refresh`]), and the device anew when the mirror has changed
//! ([`Core::start`]).
//!
//! A device that fails takes everything with it that was in flight: those batches come back with every block failed
//! ([`abort::DEVICE_LOST`]), nothing of them is acknowledged, and the engine refuses further work, because nobody knows
//! what the device's memory holds.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use lockwork_engine::registry::{Registered, Registry};
use lockwork_engine::{
    BatchReport, Completed, Constructor, Engine, EngineError, EngineKind, Options, Refused, SerialOrder, Settings,
    Tally, contract,
};
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

use crate::appetite::RowDemand;
use crate::device::find;
use crate::heap::Heap;
use crate::running::{Built, DEPTH, Flight, Running, Unfinished};
use crate::session::Session;
use crate::translate::{Bounds, MAX_PRIVATE_BYTES, MAX_PRIVATE_BYTES_TOGETHER, private_bytes, program};

/// What both sides of an engine share.
pub(crate) struct Core {
    pub(crate) database: Database,
    pub(crate) registry: Registry,
    pub(crate) two_phase: bool,
    hints: Vec<usize>,
    session: Session,
    running: Option<Running>,
    /// The kernels built last, with their source.
    built: Option<Built>,
    /// The device has executed batches that the mirror does not show.
    ahead: bool,
    first_sequence: u64,
    room: Room,
    lost: Lost,
}

/// How much room for rows is made in advance; forgotten when tables change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// For all rows that a batch could insert.
    Ample,
    /// The device has no memory for that: for what batches insert if their loops run once, or a quarter of the rows.
    Tight,
    /// Nor for that: inserts that find no room fail alone.
    Full,
}

/// Why the device cannot be trusted any more, if so.
type Lost = Arc<OnceLock<String>>;

fn refuse_if_lost(lost: &Lost) -> Result<(), EngineError> {
    match lost.get() {
        Some(why) => Err(EngineError::BackEnd(format!("the engine takes no more work: {why}"))),
        None => Ok(()),
    }
}

impl Core {
    /// Remembers that the device cannot be trusted any more, and waits until it does nothing more.
    fn note(&self, error: &EngineError) {
        // Only the first failure says why.
        let _ = self.lost.set(error.to_string());
        self.session.drain();
    }

    /// Brings the mirror up to date.
    fn refresh(&mut self) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if let Some(running) = self.running.as_ref().filter(|_| self.ahead) {
            let downloaded = running.heap.download(&self.session, &self.database);
            downloaded.inspect_err(|error| self.note(error))?;
            // SAFETY: no transaction is running on the mirror, ever.
            unsafe { self.database.reclaim() };
            self.ahead = false;
        }
        Ok(())
    }

    /// Brings the mirror up to date and forgets the device's tables and kernels: they are going to change.
    fn change(&mut self) -> Result<(), EngineError> {
        self.refresh()?;
        self.running = None;
        self.room = Room::Ample;
        Ok(())
    }

    /// Verifies a procedure, and sees that a work-item's memory suffices for it and for all others but the one that it
    /// replaces.
    fn bounded(&self, procedure: Procedure, replaced: Option<u32>) -> Result<Registered, EngineError> {
        let registered = Registered::of(procedure, &self.database)?;
        let name = &registered.verified.procedure().name;
        let bytes = Bounds::of(&registered).bytes();
        if bytes > MAX_PRIVATE_BYTES {
            return Err(EngineError::BackEnd(format!(
                "procedure '{name}' may need {bytes} bytes to keep old values, inserted rows and locks, and an OpenCL \
                 device gives {MAX_PRIVATE_BYTES}: shorten its loops, or abort before writing"
            )));
        }
        let old = replaced.and_then(|id| self.registry.get(id)).map_or(0, |old| Bounds::of(old).bytes());
        let together = private_bytes(&self.registry).saturating_sub(old).saturating_add(bytes);
        if together > MAX_PRIVATE_BYTES_TOGETHER {
            return Err(EngineError::BackEnd(format!(
                "with procedure '{name}' all procedures together may need {together} bytes to keep old values, inserted \
                 rows and locks, and an OpenCL engine gives {MAX_PRIVATE_BYTES_TOGETHER}: register fewer of them, or \
                 shorten their loops"
            )));
        }
        Ok(registered)
    }

    /// Puts tables and kernels on the device if they are not there, with room for `extra` more rows of each table.
    fn start(&mut self, extra: &[u64]) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if self.running.is_none() {
            let source = program(&self.database, &self.registry, self.two_phase);
            if self.built.as_ref().is_none_or(|built| built.source != source) {
                let private = private_bytes(&self.registry);
                self.built = Some(Built::new(&self.session, source, private, self.two_phase)?);
            }
            let heap = Heap::new(&self.session, &self.database, &self.hints, extra, self.two_phase)?;
            self.running = Some(Running::new(heap, &self.registry));
        }
        Ok(())
    }

    /// Makes sure that the batch finds room for the rows that it may insert. Nothing may be in flight when rows are
    /// moved; `drained` says whether that is so. Returns false if the caller must wait for that first.
    fn make_room(&mut self, batch: &Batch, drained: bool) -> Result<bool, EngineError> {
        let appetite = self.running.as_ref().expect("the device was started").appetite(batch);
        while !self.has_room(&appetite) {
            if !drained {
                return Ok(false);
            }
            self.grow(&appetite)?;
        }
        self.running.as_mut().expect("the device was started").reserve(appetite);
        Ok(true)
    }

    /// Whether every table has as many free rows as is asked for, given how much memory there is.
    fn has_room(&self, appetite: &RowDemand) -> bool {
        let heap = &self.running.as_ref().expect("the device was started").heap;
        let wanted = |at: usize| match self.room {
            Room::Ample => appetite.most[at],
            Room::Tight => appetite.most[at].min(appetite.likely[at].max(heap.capacities()[at] as u64 / 4)),
            Room::Full => 0,
        };
        heap.free.iter().enumerate().all(|(at, free)| wanted(at) <= *free)
    }

    /// Builds the tables again with more room.
    fn grow(&mut self, appetite: &RowDemand) -> Result<(), EngineError> {
        self.refresh()?;
        self.running = None;
        let (extra, worse): (Vec<u64>, _) = match self.room {
            // Twice what was asked for, so that it is not asked for again at once.
            Room::Ample => (appetite.most.iter().map(|most| most.saturating_mul(2)).collect(), Room::Tight),
            _ => {
                let rows = |at: usize| self.database.table(at as u16).len();
                (appetite.likely.iter().enumerate().map(|(at, likely)| likely.max(&rows(at)) * 2).collect(), Room::Full)
            }
        };
        if self.start(&extra).is_err() {
            self.room = worse;
            self.start(&[])?;
        }
        Ok(())
    }

    /// Starts a batch on the device.
    fn launch(&mut self, batch: Batch) -> Result<Flight, Box<Unfinished>> {
        let first = self.first_sequence;
        self.first_sequence += batch.len() as u64;
        let Self { session, registry, running, built, .. } = self;
        let running = running.as_mut().expect("the device was started");
        let built = built.as_ref().expect("kernels are built before tables are put on the device");
        let launched = running.launch(session, built, registry, batch, first);
        self.ahead = true;
        launched.inspect_err(|unfinished| self.note(&unfinished.error))
    }

    /// Waits for a batch.
    fn land(&mut self, flight: Flight) -> Completed {
        if self.lost.get().is_some() {
            // What came before is not known to have happened, so this has not happened either.
            self.session.drain();
            return lose(flight.into_batch());
        }
        let Self { session, running, .. } = self;
        let running = running.as_mut().expect("a batch is in flight");
        match running.land(session, flight) {
            Ok((batch, mut report)) => {
                report.tally.add(&Tally::of(&batch));
                Completed { batch, report }
            }
            Err(unfinished) => {
                self.note(&unfinished.error);
                lose(unfinished.batch)
            }
        }
    }
}

/// A batch of which nothing is acknowledged.
fn lose(mut batch: Batch) -> Completed {
    for index in 0..batch.len() {
        batch.block_mut(index).set_outcome(Status::Failed, abort::DEVICE_LOST);
    }
    let report = BatchReport { tally: Tally::of(&batch), ..BatchReport::default() };
    Completed { batch, report }
}

/// An engine on an OpenCL device.
struct OpenclEngine {
    core: Arc<Mutex<Core>>,
    kind: EngineKind,
    lost: Lost,
    to_leader: Option<Sender<Batch>>,
    from_leader: Receiver<Completed>,
    leader: Option<JoinHandle<()>>,
    in_flight: usize,
}

/// The setting that chooses a device, and what it means.
const DEVICE: (&str, &str) = (
    "device",
    "an OpenCL device: its number in `lockwork doctor`, or a part of its name [default: a GPU, if there is one]",
);

/// Planned batches on an OpenCL device. Creating it returns [`EngineError::BackEndAbsent`] if there is no such device.
pub const OPENCL_DETERMINISTIC: EngineKind = EngineKind::new(&Constructor {
    name: "opencl-deterministic",
    on_device: true,
    settings: &[DEVICE],
    create: |options| create_failing(OPENCL_DETERMINISTIC, options, 0),
});
/// Two-phase locking by the work-items of an OpenCL device. As [`OPENCL_DETERMINISTIC`].
pub const OPENCL_TWO_PHASE: EngineKind = EngineKind::new(&Constructor {
    name: "opencl-two-phase",
    on_device: true,
    settings: &[DEVICE],
    create: |options| create_failing(OPENCL_TWO_PHASE, options, 0),
});
/// The engines of this crate.
pub const ENGINES: &[EngineKind] = &[OPENCL_DETERMINISTIC, OPENCL_TWO_PHASE];

/// Returns the number of the device that the setting `device` names; `None` if there is no such setting.
///
/// # Errors
/// [`EngineError::BackEndAbsent`] when there is no such device.
pub fn device(settings: &Settings) -> Result<Option<u16>, EngineError> {
    let wanted: Option<String> = settings.get(DEVICE.0, "any text")?;
    Ok(wanted.map(|wanted| find(&wanted)).transpose()?.map(|found| found.number))
}

/// Creates one of [`ENGINES`] with a device that is lost at the `fail_at`th call to it, counted from 1.
///
/// # Errors
/// As for the engine, or the call that fails.
pub fn create_failing(kind: EngineKind, options: Options, fail_at: u64) -> Result<Box<dyn Engine>, EngineError> {
    let device = device(&options.settings)?;
    let two_phase = kind == OPENCL_TWO_PHASE;
    contract::check(&options)?;
    let core = Core {
        database: Database::new(options.pages),
        registry: Registry::default(),
        two_phase,
        hints: Vec::new(),
        session: Session::new(device, fail_at)?,
        running: None,
        built: None,
        ahead: false,
        first_sequence: 0,
        room: Room::Ample,
        lost: Lost::default(),
    };
    let lost = core.lost.clone();
    let core = Arc::new(Mutex::new(core));
    let (to_leader, batches) = channel();
    let (finished, from_leader) = channel();
    let shared = core.clone();
    let lead = move || {
        let mut flying = Flying { flights: VecDeque::new(), core: &shared };
        lead(&shared, &batches, &finished, &mut flying.flights);
    };
    let leader = std::thread::Builder::new().name("lockwork-opencl".into()).spawn(lead);
    let leader = leader.map_err(|error| EngineError::Worker(format!("could not be started: {error}")))?;
    Ok(Box::new(OpenclEngine {
        core,
        kind,
        lost,
        to_leader: Some(to_leader),
        from_leader,
        leader: Some(leader),
        in_flight: 0,
    }))
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in flight. The device writes into its batches, so it is waited for before they go, whatever the reason.
struct Flying<'a> {
    flights: VecDeque<Flight>,
    core: &'a Mutex<Core>,
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            lock(self.core).session.drain();
        }
    }
}

/// The leader's life: takes batches while there is a free slot, waits for the oldest one else.
fn lead(core: &Mutex<Core>, batches: &Receiver<Batch>, finished: &Sender<Completed>, flying: &mut VecDeque<Flight>) {
    let mut waiting: Option<Batch> = None;
    loop {
        if waiting.is_none() && flying.len() < DEPTH {
            waiting = match (flying.is_empty(), batches.try_recv()) {
                (_, Ok(batch)) => Some(batch),
                (true, Err(TryRecvError::Empty)) => match batches.recv() {
                    Ok(batch) => Some(batch),
                    Err(_) => return,
                },
                (true, Err(TryRecvError::Disconnected)) => return,
                (false, Err(_)) => None,
            };
        }
        let mut core = lock(core);
        let answer = match waiting.take() {
            Some(batch) => match take_on(&mut core, batch, flying.is_empty()) {
                Taken::Flying(flight) => {
                    flying.push_back(flight);
                    None
                }
                Taken::Later(batch) => {
                    waiting = Some(batch);
                    flying.pop_front().map(|flight| core.land(flight))
                }
                // What is in flight was submitted before, and comes back before.
                Taken::Lost(batch) => {
                    let before: Vec<Completed> = flying.drain(..).map(|flight| core.land(flight)).collect();
                    if before.into_iter().any(|completed| finished.send(completed).is_err()) {
                        return;
                    }
                    Some(lose(batch))
                }
            },
            None => flying.pop_front().map(|flight| core.land(flight)),
        };
        drop(core);
        if answer.is_some_and(|completed| finished.send(completed).is_err()) {
            return;
        }
    }
}

enum Taken {
    Flying(Flight),
    /// It needs a device with nothing in flight.
    Later(Batch),
    Lost(Batch),
}

fn take_on(core: &mut Core, batch: Batch, drained: bool) -> Taken {
    let room = core.start(&[]).and_then(|()| core.make_room(&batch, drained));
    match room {
        Ok(false) => Taken::Later(batch),
        Ok(true) => match core.launch(batch) {
            Ok(flight) => Taken::Flying(flight),
            Err(unfinished) => Taken::Lost(unfinished.batch),
        },
        Err(error) => {
            core.note(&error);
            Taken::Lost(batch)
        }
    }
}

impl OpenclEngine {
    /// The core, while nothing is in flight.
    fn idle(&self) -> Result<MutexGuard<'_, Core>, EngineError> {
        match self.in_flight {
            0 => Ok(lock(&self.core)),
            busy => Err(EngineError::Busy(busy)),
        }
    }
}

impl Engine for OpenclEngine {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn serial_order(&self) -> SerialOrder {
        if self.kind == OPENCL_TWO_PHASE { SerialOrder::Stamp } else { SerialOrder::Batch }
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
        let registered = core.bounded(procedure, None)?;
        core.registry.add(registered)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        let mut core = self.idle()?;
        core.change()?;
        let registered = core.bounded(procedure, Some(id))?;
        core.registry.replace(id, registered)
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
        let mut core = self.idle()?;
        core.start(&[])?;
        let Core { session, running, built, .. } = &mut *core;
        let (running, built) = (running.as_mut(), built.as_ref());
        let (running, built) = running.zip(built).expect("the device was started");
        running.warm(session, built)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        // While batches are in flight the leader has the core, and the device was started for them.
        let started = match self.in_flight {
            0 => lock(&self.core).start(&[]),
            _ => refuse_if_lost(&self.lost),
        };
        if let Err(error) = started {
            return Err(Box::new(Refused { batch, error }));
        }
        let to_leader = self.to_leader.as_ref().expect("open until the engine is dropped");
        if let Err(refused) = to_leader.send(batch) {
            return Err(Box::new(Refused { batch: refused.0, error: EngineError::Worker("died".into()) }));
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

impl Drop for OpenclEngine {
    fn drop(&mut self) {
        self.to_leader = None;
        if let Some(leader) = self.leader.take() {
            // A leader that panicked has closed its channel, which its user has seen.
            drop(leader.join());
        }
    }
}
