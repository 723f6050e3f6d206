//! The engine: a leader that hands the calls of one batch after the other to the workers, and takes them back.
//!
//! The coordinator keeps a mirror of the tables: rows are loaded into it, go to their owners before the first batch,
//! and come back when somebody wants to read. While a batch runs the caller fills the next.
//!
//! A worker that is gone takes its rows with it: what was in flight comes back failed ([`abort::DEVICE_LOST`]), and the
//! engine refuses further work, saying why.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use lockwork_engine::conflicts::{Cause, Conflicts};
use lockwork_engine::registry::{Registered, Registry};
use lockwork_engine::{
    BatchReport, Completed, Engine, EngineError, EngineKind, Interleave, Options, Refused, SerialOrder, Tally, contract,
};
use lockwork_memory::Pages;
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::assembly::encode;
use lockwork_procedure::block::{Batch, HEADER_BYTES, Status, abort};
use lockwork_procedure::key::Key;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, ROW_HEADER_BYTES, TableSchema};
use lockwork_storage::Database;

use crate::layout::{Spread, cuts};
use crate::message::{CALLS, EXPORT, EXPORTED, PIECE, PROCEDURE, READY, RESULTS, ROWS, SETUP, START, TABLE};
use crate::processes::Processes;
use crate::service::Service;
use crate::transaction::known_accesses;
use crate::wire::{Malformed, Put, Reader};

/// Transactions that a worker has in flight for each row access of [`Options::window`]: a round trip to the lock
/// service takes longer than one to memory.
const FOR_EACH_ACCESS: usize = 8;

/// Why the workers cannot be trusted any more, if so.
type Lost = Arc<OnceLock<String>>;

struct Core {
    // Before the service, so that workers take their leave of it.
    running: Option<Processes>,
    service: Service,
    database: Database,
    registry: Registry,
    hints: Vec<usize>,
    program: PathBuf,
    options: Options,
    /// The workers have run batches that the mirror does not show.
    ahead: bool,
    first_sequence: u64,
    lost: Lost,
}

fn refuse_if_lost(lost: &Lost) -> Result<(), EngineError> {
    match lost.get() {
        Some(why) => Err(EngineError::BackEnd(format!("the engine takes no more work: {why}"))),
        None => Ok(()),
    }
}

fn malformed(error: Malformed) -> EngineError {
    EngineError::BackEnd(error.to_string())
}

impl Core {
    /// Notes the first failure: it says why.
    fn note<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        if let Err(error) = &result {
            _ = self.lost.set(error.to_string());
        }
        result
    }

    /// Brings the mirror up to date.
    fn refresh(&mut self) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if self.ahead {
            let downloaded = self.download();
            self.note(downloaded)?;
            // SAFETY: no transaction is running on the mirror, ever.
            unsafe { self.database.reclaim() };
            self.ahead = false;
        }
        Ok(())
    }

    /// Brings the mirror up to date and ends the workers: tables, procedures or rows are going to change.
    fn change(&mut self) -> Result<(), EngineError> {
        self.refresh()?;
        self.running = None;
        Ok(())
    }

    fn download(&mut self) -> Result<(), EngineError> {
        let Self { running, database, registry, .. } = self;
        let Some(running) = running else { return Ok(()) };
        let workers = self.options.threads;
        (0..workers).for_each(|worker| running.stream(worker).send(|frame| frame.u8(EXPORT)));
        let mut seen: Vec<HashSet<Key>> = vec![HashSet::new(); database.len()];
        let mut left = workers;
        running.listen(|_, frame| {
            let mut reader = Reader::new(frame);
            match reader.u8().map_err(malformed)? {
                ROWS => {
                    let id = reader.u16().and_then(|id| crate::partition::known(database, id)).map_err(malformed)?;
                    let table = database.table(id);
                    let width = (table.schema().row_bytes() - ROW_HEADER_BYTES) as usize;
                    for image in frame[3..].chunks_exact(width) {
                        let key = table.key_format().encode(image);
                        crate::partition::put(database, id, &key, Some(image))?;
                        seen[usize::from(id)].insert(key);
                    }
                }
                EXPORTED => left -= 1,
                other => return Err(malformed(Malformed::new(format_args!("a row of kind {other}")))),
            }
            Ok(left == 0)
        })?;
        for id in (0..database.len() as u16).filter(|&id| registry.is_written(id)) {
            let (table, seen) = (database.table(id), &seen[usize::from(id)]);
            if table.len() as usize == seen.len() {
                continue;
            }
            let mut gone = Vec::new();
            table.for_each(|row| {
                // SAFETY: nobody else touches the mirror.
                let key = table.key_format().encode(unsafe { table.row_image(row) });
                if !seen.contains(&key) {
                    gone.push(key);
                }
            });
            // SAFETY: as above.
            gone.iter().for_each(|key| _ = unsafe { table.remove(key.hash(), key) });
        }
        Ok(())
    }

    /// Starts the workers if there are none, and gives them tables, procedures and rows.
    fn start(&mut self) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if self.running.is_some() {
            return Ok(());
        }
        let Self { database, registry, hints, options, .. } = self;
        let mut running = Processes::start(&self.program, options.threads)?;
        let in_flight = match options.interleave {
            Interleave::None => 1,
            Interleave::Batch | Interleave::Dynamic => options.window * FOR_EACH_ACCESS,
        };
        let cuts: Vec<Vec<Key>> = (0..database.len() as u16)
            .map(|id| if registry.is_scanned(id) { cuts(database.table(id)) } else { Vec::new() })
            .collect();
        for worker in 0..options.threads {
            let stream = running.stream(worker);
            stream.send(|frame| {
                frame.u8(SETUP);
                frame.u16(options.threads as u16);
                frame.u32(in_flight as u32);
                frame.u32(options.max_retries);
                frame.u8(u8::from(options.pages == Pages::Huge));
                frame.counted(self.service.address().to_string().as_bytes());
            });
            for (id, cuts) in cuts.iter().enumerate() {
                stream.send(|frame| {
                    frame.u8(TABLE);
                    frame.schema(database.table(id as u16).schema());
                    frame.u64(hints[id].div_ceil(options.threads) as u64);
                    frame.u32(cuts.len() as u32);
                    cuts.iter().for_each(|cut| frame.key(cut));
                });
            }
            for registered in registry.all() {
                stream.send(|frame| {
                    frame.u8(PROCEDURE);
                    frame.bytes(&encode(registered.verified.procedure()));
                });
            }
        }
        (0..database.len() as u16).try_for_each(|id| upload(database, id, &mut running, options.threads))?;
        (0..options.threads).for_each(|worker| running.stream(worker).send(|frame| frame.u8(START)));
        let mut left = options.threads;
        running.listen(|_, frame| match frame {
            [READY] => {
                left -= 1;
                Ok(left == 0)
            }
            _ => Err(malformed(Malformed::new("something else than that it is ready"))),
        })?;
        self.running = Some(running);
        Ok(())
    }

    fn run(&mut self, mut batch: Batch) -> Completed {
        let start = Instant::now();
        let first = self.first_sequence;
        self.first_sequence += batch.len() as u64;
        let mut conflicts = 0;
        let ran = self.start().and_then(|()| {
            self.ahead = true;
            self.give_and_take(&mut batch, first, &mut conflicts)
        });
        let mut report = BatchReport::default();
        if self.note(ran).is_err() {
            // Whatever has come back has no meaning without the rows that are lost.
            for index in 0..batch.len() {
                batch.block_mut(index).set_outcome(Status::Failed, abort::DEVICE_LOST);
            }
        }
        for index in 0..batch.len() {
            batch.block_mut(index).set_sequence(first + index as u64);
        }
        let mut counted = Conflicts::default();
        counted.count(Cause::Replanned, conflicts);
        report.tally.conflicts = counted;
        report.tally.add(&Tally::of(&batch));
        report.total_ns = start.elapsed().as_nanos() as u64;
        Completed { batch, report }
    }

    fn give_and_take(&mut self, batch: &mut Batch, first: u64, conflicts: &mut u64) -> Result<(), EngineError> {
        let Self { running, registry, database, options, .. } = self;
        let running = running.as_mut().expect("the workers were started");
        let spreads: Vec<Spread> =
            (0..database.len()).map(|id| Spread::of(database.table(id as u16).schema())).collect();
        let mut homes = Homes { spreads, rows: vec![0; options.threads], known: Vec::new(), next: 0 };
        let mut calls: Vec<Vec<u8>> = vec![Vec::new(); options.threads];
        let mut left = 0;
        for index in 0..batch.len() {
            let (procedure, stride) = (batch.block(index).procedure(), batch.stride());
            let refusal = match registry.get(procedure) {
                Some(registered) if registered.block_bytes <= stride => None,
                Some(_) => Some(abort::BLOCK_TOO_SHORT),
                None => Some(abort::UNKNOWN_PROCEDURE),
            };
            let mut block = batch.block_mut(index);
            if let Some(code) = refusal {
                block.set_outcome(Status::Failed, code);
                block.set_serial(0);
                continue;
            }
            let registered = registry.get(procedure).expect("it is not refused");
            let worker = homes.of(registered, block.bytes());
            let end = registered.verified.procedure().layout().arguments_end as usize;
            let call = &mut calls[worker];
            call.u32(index as u32);
            call.u64(first + index as u64);
            call.u32(procedure);
            call.counted(&block.bytes()[HEADER_BYTES as usize..end]);
            left += 1;
            if call.len() > PIECE {
                send_calls(running, worker, call);
            }
        }
        calls.iter_mut().enumerate().for_each(|(worker, calls)| send_calls(running, worker, calls));
        if left == 0 {
            return Ok(());
        }
        running.listen(|_, frame| {
            let mut reader = Reader::new(frame);
            if reader.u8().map_err(malformed)? != RESULTS {
                return Err(malformed(Malformed::new("something else than results")));
            }
            while !reader.is_empty() {
                take_result(&mut reader, batch, registry, conflicts).map_err(malformed)?;
                left -= 1;
            }
            Ok(left == 0)
        })
    }
}

/// Sends the rows of a table to those who are to have them.
fn upload(database: &Database, id: u16, running: &mut Processes, workers: usize) -> Result<(), EngineError> {
    let table = database.table(id);
    let spread = Spread::of(table.schema());
    let mut rows: Vec<Vec<u8>> = vec![Vec::new(); workers];
    let mut send = |worker: usize, rows: &mut Vec<u8>| {
        running.stream(worker).send(|frame| {
            frame.u8(ROWS);
            frame.u16(id);
            frame.bytes(rows);
        });
        rows.clear();
        running.drain(worker)
    };
    let mut sent = Ok(());
    table.for_each(|row| {
        // SAFETY: nobody else touches the mirror.
        let image = unsafe { table.row_image(row) };
        let owner = spread.owner(&table.key_format().encode(image), workers);
        for worker in owner.map_or(0..workers, |owner| owner..owner + 1) {
            rows[worker].extend_from_slice(image);
            if rows[worker].len() > PIECE && sent.is_ok() {
                sent = send(worker, &mut rows[worker]);
            }
        }
    });
    sent?;
    rows.iter_mut().enumerate().filter(|(_, rows)| !rows.is_empty()).try_for_each(|(worker, rows)| send(worker, rows))
}

fn send_calls(running: &mut Processes, worker: usize, calls: &mut Vec<u8>) {
    if !calls.is_empty() {
        running.stream(worker).send(|frame| {
            frame.u8(CALLS);
            frame.bytes(calls);
        });
        calls.clear();
    }
}

fn take_result(
    reader: &mut Reader<'_>,
    batch: &mut Batch,
    registry: &Registry,
    conflicts: &mut u64,
) -> Result<(), Malformed> {
    let index = reader.u32()? as usize;
    let (status, code, serial) = (reader.u8()?, reader.u16()?, reader.u64()?);
    *conflicts += u64::from(reader.u32()?);
    let results = reader.counted()?;
    let registered = (index < batch.len()).then(|| registry.get(batch.block(index).procedure())).flatten();
    let (Some(registered), Some(status)) = (registered, Status::from_byte(status)) else {
        return Err(Malformed::new(format_args!("the result of call {index} of {}", batch.len())));
    };
    let (start, length) = registered.results;
    if results.len() != length {
        return Err(Malformed::new(format_args!("{} bytes of results, not {length}", results.len())));
    }
    let mut block = batch.block_mut(index);
    block.bytes()[start..start + length].copy_from_slice(results);
    block.set_outcome(status, code);
    block.set_serial(serial);
    Ok(())
}

/// Chooses the worker of a call: the one that has most of its rows; they take turns where that is not known.
struct Homes {
    spreads: Vec<Spread>,
    rows: Vec<usize>,
    known: Vec<KeyAccess>,
    next: usize,
}

impl Homes {
    fn of(&mut self, registered: &Registered, block: &[u8]) -> usize {
        let workers = self.rows.len();
        self.known.clear();
        self.rows.fill(0);
        known_accesses(registered, block, &mut self.known);
        for access in &self.known {
            let spread = self.spreads[usize::from(registered.table_id(access.slot))];
            if let Some(owner) = spread.owner(&access.key, workers) {
                self.rows[owner] += 1;
            }
        }
        let most = self.rows.iter().copied().max().unwrap_or(0);
        self.next = (self.next + 1) % workers;
        // Of several that have as many, not always the first.
        let from = |offset: usize| (self.next + offset) % workers;
        (0..workers).map(from).find(|&worker| self.rows[worker] == most).unwrap_or(0)
    }
}

/// See the module.
pub struct NetworkEngine {
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

impl NetworkEngine {
    /// An engine over an empty database, whose workers run `program`, which calls
    /// [`worker_if_asked`](crate::worker_if_asked).
    ///
    /// # Errors
    /// [`EngineError::Threads`] and [`EngineError::Window`] as for every engine; [`EngineError::BackEnd`] when it is to
    /// have a lock service of its own, and that does not start.
    pub fn new(options: Options, program: PathBuf) -> Result<Self, EngineError> {
        contract::check(&options)?;
        let lost = Lost::default();
        let core = Arc::new(Mutex::new(Core {
            running: None,
            service: Service::new(options.lockd)?,
            database: Database::new(options.pages),
            registry: Registry::default(),
            hints: Vec::new(),
            program,
            options,
            ahead: false,
            first_sequence: 0,
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
        let leader = std::thread::Builder::new().name("lockwork-network".into()).spawn(lead);
        let leader = leader.map_err(|error| EngineError::Worker(format!("could not be started: {error}")))?;
        Ok(Self { core, lost, to_leader: Some(to_leader), from_leader, leader: Some(leader), in_flight: 0 })
    }

    /// The numbers of the worker processes that run now, when no batch does any more.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        lock(&self.core).running.as_ref().map_or_else(Vec::new, Processes::ids)
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
        EngineKind::NetworkTwoPhase.name()
    }

    fn serial_order(&self) -> SerialOrder {
        SerialOrder::Stamp
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

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog) -> Result<(), EngineError> {
        lock(&self.core).registry.accepts(procedure, tables)
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
        // While batches are in flight the leader has the core, and the workers were started for them.
        let started = match self.in_flight {
            0 => lock(&self.core).start(),
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
