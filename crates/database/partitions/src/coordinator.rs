//! The coordinator keeps a mirror of the tables, and moves rows to and from their owners.
//!
//! Rows are loaded into the mirror, sent to their owners before the first batch, and fetched when a caller reads.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use lockwork_engine::conflicts::{Cause, Conflicts};
use lockwork_engine::registry::Registry;
use lockwork_engine::{BatchReport, Completed, EngineError, Interleave, Options, Tally};
use lockwork_memory::Pages;
use lockwork_procedure::assembly::encode;
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_storage::Database;

use crate::layout::{Spread, cuts};
use crate::message::{EXPORT, EXPORTED, PIECE, PROCEDURE, READY, ROWS, SETUP, START, TABLE};
use crate::processes::Processes;
use crate::program::{DETERMINISTIC, TWO_PHASE};
use crate::service::Service;
use crate::wire::{Malformed, Put, Reader};

/// Transactions that a worker has in flight for each row access of [`Options::window`]: a round trip to the lock
/// service takes longer than one to memory.
const FOR_EACH_ACCESS: usize = 8;

/// Why the workers cannot be trusted any more, if so.
pub(crate) type Lost = Arc<OnceLock<String>>;

/// Which workers an engine has.
pub(crate) enum Scheme {
    /// They take locks from this service.
    TwoPhase(Service),
    /// They are told an order; the last stamp in it.
    Deterministic(u64),
}

/// See the module.
pub(crate) struct Core {
    // Before the service, so that workers take their leave of it.
    pub(crate) running: Option<Processes>,
    pub(crate) scheme: Scheme,
    pub(crate) database: Database,
    pub(crate) registry: Registry,
    pub(crate) hints: Vec<usize>,
    pub(crate) program: PathBuf,
    pub(crate) options: Options,
    /// The workers have run batches that the mirror does not show.
    pub(crate) ahead: bool,
    pub(crate) first_sequence: u64,
    pub(crate) lost: Lost,
}

/// # Errors
/// Why there will be no more batches, if so.
pub(crate) fn refuse_if_lost(lost: &Lost) -> Result<(), EngineError> {
    match lost.get() {
        Some(why) => Err(EngineError::BackEnd(format!("the engine takes no more work: {why}"))),
        None => Ok(()),
    }
}

/// As the engine says it.
pub(crate) fn malformed(error: Malformed) -> EngineError {
    EngineError::BackEnd(error.to_string())
}

impl Scheme {
    /// What worker processes are told that they are.
    fn argument(&self) -> &'static str {
        match self {
            Self::TwoPhase(_) => TWO_PHASE,
            Self::Deterministic(_) => DETERMINISTIC,
        }
    }
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
    pub(crate) fn refresh(&mut self) -> Result<(), EngineError> {
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
    pub(crate) fn change(&mut self) -> Result<(), EngineError> {
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
    pub(crate) fn start(&mut self) -> Result<(), EngineError> {
        refuse_if_lost(&self.lost)?;
        if self.running.is_some() {
            return Ok(());
        }
        let Self { database, registry, hints, options, .. } = self;
        let mut running = Processes::start(&self.program, self.scheme.argument(), options.threads)?;
        let in_flight = match options.interleave {
            Interleave::None => 1,
            Interleave::Batch | Interleave::Dynamic => options.window * FOR_EACH_ACCESS,
        };
        let cuts: Vec<Vec<Key>> = (0..database.len() as u16)
            .map(|id| if registry.is_scanned(id) { cuts(database.table(id)) } else { Vec::new() })
            .collect();
        let service = match &self.scheme {
            Scheme::TwoPhase(service) => service.address().to_string(),
            Scheme::Deterministic(_) => String::new(),
        };
        for worker in 0..options.threads {
            let stream = running.stream(worker);
            stream.send(|frame| {
                frame.u8(SETUP);
                frame.u16(options.threads as u16);
                frame.u32(in_flight as u32);
                frame.u32(options.max_retries);
                frame.u8(u8::from(options.pages == Pages::Huge));
                frame.counted(service.as_bytes());
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

    /// Runs a batch, in the order of its blocks if that is wanted.
    pub(crate) fn run(&mut self, mut batch: Batch, in_order: bool) -> Completed {
        let start = Instant::now();
        let first = self.first_sequence;
        self.first_sequence += batch.len() as u64;
        let mut conflicts = 0;
        let ran = self.start().and_then(|()| {
            self.ahead = true;
            match self.scheme {
                Scheme::TwoPhase(_) => self.give_and_take(&mut batch, first, &mut conflicts),
                Scheme::Deterministic(_) => self.order(&mut batch, in_order, &mut conflicts),
            }
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
