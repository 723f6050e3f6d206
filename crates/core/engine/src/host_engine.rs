//! What all CPU engines share: database, registry, worker team, and the thread that leads batches through them.
//!
//! An engine differs from another only in its [`Scheme`]: how one batch is run on a team. Batches run one after the
//! other; while one runs, the caller fills the next. A small batch that finds the engine idle runs on the caller's own
//! thread: a single call then costs no hand-over.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

use crate::compound::{Compound, Effects};
use crate::contract::{BatchReport, Completed, Engine, EngineError, Options, Refused, SerialOrder};
use crate::deterministic::Deterministic;
use crate::registry::{Registered, Registry};
use crate::team::Team;

/// The longest batch that runs on the caller's own thread.
const INLINE_BLOCKS: usize = 64;

/// What a scheme works on.
#[derive(Debug)]
pub(crate) struct Core {
    /// All tables.
    pub database: Database,
    /// All procedures.
    pub registry: Registry,
    /// Sequence number of the first block of the batch that runs.
    pub first_sequence: u64,
}

/// How one batch is run.
pub(crate) trait Scheme: Send + 'static {
    /// The engine's name.
    const NAME: &'static str;
    /// The order that it is equivalent to.
    const ORDER: SerialOrder;

    /// Whether calls of a procedure can run on this engine, as far as the scheme has a say.
    ///
    /// # Errors
    /// What stands in the way, and what would be right.
    fn accepts(_procedure: &Procedure, _tables: &dyn Catalog) -> Result<(), EngineError> {
        Ok(())
    }

    /// Runs every block of `batch` on `team` and fills in the report, except `total_ns`.
    fn run(&mut self, core: &Core, team: &Team, batch: &mut Batch) -> BatchReport;
}

struct State<S> {
    core: Core,
    scheme: S,
    /// Runs batches in the order of their blocks where the scheme does not. No scheme leaves data in a row between
    /// batches that another one would misread: header words are times and versions that only the scheme reads.
    in_order: Option<Deterministic>,
    compound: Effects,
    options: Options,
}

/// An engine made of a scheme.
pub(crate) struct HostEngine<S: Scheme> {
    state: Arc<Mutex<State<S>>>,
    options: Options,
    to_leader: Option<Sender<(Batch, bool)>>,
    from_leader: Receiver<Completed>,
    leader: Option<JoinHandle<()>>,
    in_flight: usize,
    finished: VecDeque<Completed>,
}

impl<S: Scheme> HostEngine<S> {
    /// Starts the threads of an engine over an empty database.
    pub(crate) fn new(scheme: S, options: Options) -> Result<Self, EngineError> {
        let core = Core { database: Database::new(options.pages), registry: Registry::default(), first_sequence: 0 };
        let state = State { core, scheme, in_order: None, compound: Effects::default(), options: options.clone() };
        let state = Arc::new(Mutex::new(state));
        let failed = |error: std::io::Error| EngineError::Worker(format!("could not be started: {error}"));
        let team = Team::new(options.threads).map_err(failed)?;
        let (to_leader, batches) = channel();
        let (finished, from_leader) = channel();
        let shared = state.clone();
        let lead = move || {
            for (batch, in_order) in batches {
                if finished.send(run(&mut lock(&shared), &team, batch, in_order)).is_err() {
                    return;
                }
            }
        };
        let leader = std::thread::Builder::new().name("lockwork-0".into()).spawn(lead).map_err(failed)?;
        Ok(Self {
            state,
            options,
            to_leader: Some(to_leader),
            from_leader,
            leader: Some(leader),
            in_flight: 0,
            finished: VecDeque::new(),
        })
    }

    /// The state, while nothing is in flight.
    fn idle(&self) -> Result<MutexGuard<'_, State<S>>, EngineError> {
        match self.in_flight - self.finished.len() {
            0 => Ok(lock(&self.state)),
            busy => Err(EngineError::Busy(busy)),
        }
    }

    fn hand_over(&mut self, batch: Batch, in_order: bool) -> Result<(), Box<Refused>> {
        let idle = self.in_flight == self.finished.len();
        if idle && (batch.len() <= INLINE_BLOCKS || self.options.threads == 0) {
            let completed = run(&mut lock(&self.state), &Team::solo(), batch, in_order);
            self.finished.push_back(completed);
        } else if let Some(to_leader) = &self.to_leader
            && let Err(refused) = to_leader.send((batch, in_order))
        {
            let error = EngineError::Worker("died".into());
            return Err(Box::new(Refused { batch: refused.0.0, error }));
        }
        self.in_flight += 1;
        Ok(())
    }
}

/// A scheme that panicked has told its caller; what it left behind is still memory-safe to look at.
fn lock<S>(state: &Mutex<State<S>>) -> MutexGuard<'_, State<S>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run<S: Scheme>(state: &mut State<S>, team: &Team, mut batch: Batch, in_order: bool) -> Completed {
    let start = Instant::now();
    let mut report = if in_order && S::ORDER == SerialOrder::Stamp {
        let scheme = state.in_order.get_or_insert_with(|| Deterministic::new(state.options.clone()));
        scheme.run(&state.core, team, &mut batch)
    } else {
        state.scheme.run(&state.core, team, &mut batch)
    };
    state.core.first_sequence += batch.len() as u64;
    // SAFETY: batches run one after the other, so no transaction is running.
    unsafe { state.core.database.reclaim() };
    report.total_ns = start.elapsed().as_nanos() as u64;
    Completed { batch, report }
}

impl<S: Scheme> Engine for HostEngine<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn serial_order(&self) -> SerialOrder {
        S::ORDER
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        Ok(self.idle()?.core.database.create_table(schema, rows)?)
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        let state = &mut *self.idle()?;
        S::accepts(&procedure, &state.core.database)?;
        state.core.registry.register(procedure, &state.core.database)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        let state = &mut *self.idle()?;
        S::accepts(&procedure, &state.core.database)?;
        state.core.registry.replace(id, Registered::of(procedure, &state.core.database)?)
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        S::accepts(procedure, tables)?;
        lock(&self.state).core.registry.accepts(procedure, tables, old)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        lock(&self.state).core.registry.get(id).cloned()
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        lock(&self.state).core.registry.id(name)
    }

    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        read(&self.idle()?.core.database);
        Ok(())
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        self.hand_over(batch, false)
    }

    fn runs_compounds(&self) -> bool {
        true
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn submit_in_order(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        self.hand_over(batch, true)
    }

    fn compound(&mut self, transaction: &mut dyn FnMut(&mut Compound<'_>) -> bool) -> Result<bool, EngineError> {
        let state = &mut *self.idle()?;
        let kept = Compound::run(&state.core, &mut state.compound, transaction);
        // SAFETY: no batch is in flight, so no transaction is running.
        unsafe { state.core.database.reclaim() };
        Ok(kept)
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        if self.in_flight == 0 {
            return Ok(None);
        }
        let completed = match self.finished.pop_front() {
            Some(completed) => completed,
            None => self.from_leader.recv().map_err(|_| EngineError::Worker("died".into()))?,
        };
        self.in_flight -= 1;
        Ok(Some(completed))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        Ok(self.idle()?.core.database.load(table, image)?)
    }

    fn load_rows(&mut self, table: &str, width: usize, images: &[u8]) -> Result<(), EngineError> {
        let database = &self.idle()?.core.database;
        let Some(id) = database.table_id(table) else { return Ok(database.load(table, images)?) };
        let table = database.table(id);
        images.chunks(width).try_for_each(|image| table.load(image).map(drop)).map_err(EngineError::from)
    }
}

impl<S: Scheme> Drop for HostEngine<S> {
    fn drop(&mut self) {
        self.to_leader = None;
        if let Some(leader) = self.leader.take() {
            // A leader that panicked has closed its channel, which its user has seen.
            drop(leader.join());
        }
    }
}
