//! Definitions and checkpoints: what happens while nothing is in flight.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lockwork_engine::EngineError;
use lockwork_procedure::block::Batch;

use super::{Checkpointing, Order, Reply};
use crate::checkpoint::snapshot::{Snapshot, Step};
use crate::checkpoint::write::{Piece, Task};
use crate::error::Error;
use crate::format::frame::{self, RecordKind};
use crate::format::items::Definition;
use crate::log::room::Room;

/// Rows that a table is given room for when it is created; it grows beyond that.
pub(crate) const EXPECTED_ROWS: usize = 1024;
/// The most bytes of rows of one record.
pub(crate) const ROWS_BYTES: usize = 4 << 20;
/// The most bytes of a definition.
pub(crate) const MAX_DEFINITION_BYTES: usize = 16 << 20;
/// Pieces of a checkpoint that may wait to be written: megabytes, about.
const PIECES: usize = 16;

impl Order {
    /// Sees that a record of `bytes` bytes of payload can be written now.
    pub(super) fn room_for_record(&mut self, bytes: usize) -> Result<(), Error> {
        self.drain();
        if let Some(error) = self.shared.trouble() {
            return Err(error);
        }
        let next = self.next;
        let Some(space) = &mut self.space else { return Ok(()) };
        let bytes = frame::whole(bytes) as u64;
        if !space.reserve(bytes) {
            space.advance(next, bytes, || self.shared.wait_durable(next)).inspect_err(|error| {
                if matches!(error, Error::Poisoned(_)) {
                    self.shared.stop(error.clone());
                }
            })?;
            assert!(space.reserve(bytes), "a fresh segment has room for what it was made for");
        }
        Ok(())
    }

    /// Writes a record into the room for `room` bytes of payload.
    pub(super) fn record(
        &mut self,
        kind: RecordKind,
        room: usize,
        payload: impl FnOnce(&mut Vec<u8>),
        done: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) {
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        if let Some(space) = &mut self.space {
            frame::put(&mut bytes, space.salt(), kind, self.next, 0, payload);
            space.settle(frame::whole(room) as u64, bytes.len() as u64);
            frames.push(0);
        }
        self.next += 1;
        self.send(bytes, frames, true, Box::new(done));
    }

    pub(super) fn define(&mut self, definition: Definition, reply: Reply<()>) {
        let room = definition.bytes();
        match self.try_define(&definition) {
            Ok(()) => {
                let kept = definition.clone();
                self.definitions.push(definition);
                self.record(
                    RecordKind::Definition,
                    room,
                    |out| kept.encode(out),
                    move |outcome| drop(reply.send(outcome)),
                );
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn try_define(&mut self, definition: &Definition) -> Result<(), Error> {
        let most = self.space.as_ref().map_or(usize::MAX, Room::record_bytes).min(MAX_DEFINITION_BYTES);
        if definition.bytes() > most {
            let expected = format!("at most {most} bytes of text are possible");
            return Err(Error::Option { option: "definition", value: definition.bytes().to_string(), expected });
        }
        let addition = self.catalogue.understand(definition)?;
        if let Some(procedure) = &addition.procedure {
            self.engine.accepts(procedure, &Tables(self.catalogue.future(&addition)), addition.replaces)?;
        }
        self.room_for_record(definition.bytes())?;
        self.copy_rest();
        let applied = apply(&mut *self.engine, &addition, &HashMap::new());
        if let Err(error) = applied {
            // Memory ran out in the middle: the engine may have what the log has not.
            let error = Error::Stopped(error.to_string());
            self.shared.stop(error.clone());
            return Err(error);
        }
        let replaced = addition.replaces;
        self.catalogue.add(addition);
        self.learn_procedures(replaced.as_slice());
        Ok(())
    }

    /// Takes over the procedures that are new to the engine, and those with these ids.
    pub(super) fn learn_procedures(&mut self, replaced: &[u32]) {
        let known = self.procedures.len() as u32;
        for &id in replaced.iter().filter(|id| **id < known) {
            if let Some(registered) = self.engine.procedure(id) {
                self.procedures[id as usize] = registered;
            }
        }
        self.procedures.extend((known..).map_while(|id| self.engine.procedure(id)));
    }

    /// Begins a checkpoint if one is wanted, or the log has grown enough, and none is under way.
    pub(super) fn checkpoint_if_due(&mut self) {
        if let Some(checkpointing) = &self.work.checkpointing {
            if !checkpointing.thread.is_finished() {
                return;
            }
            self.finish_checkpoint();
        }
        let grown = self.shared.since_checkpoint.load(Ordering::Relaxed);
        let enough = self.options.checkpoint_bytes.max(2 * self.shared.statistics_checkpoint_bytes());
        // Those of the leader are enough for all.
        let long = self.options.checkpoint_time.max(8 * self.work.checkpoint_took);
        let is_much = grown >= enough || (grown > 0 && self.work.uncovered >= long);
        let due = self.options.checkpoint_bytes > 0 && is_much && !self.follows();
        if (due || !self.work.wanted.is_empty()) && self.shared.trouble().is_none() {
            self.begin_checkpoint();
        } else if let Some(error) = self.shared.trouble() {
            self.refuse_checkpoints(&error);
        }
    }

    fn refuse_checkpoints(&mut self, error: &Error) {
        for reply in std::mem::take(&mut self.work.wanted) {
            drop(reply.send(Err(error.clone())));
        }
    }

    fn begin_checkpoint(&mut self) {
        self.drain();
        if let Some(error) = self.shared.trouble() {
            // The engine may have what the log has not.
            return self.refuse_checkpoints(&error);
        }
        // Others look at theirs before a checkpoint replaces what it came from.
        self.digest_before_checkpoint();
        let start = self.shared.threads.now();
        self.shared.since_checkpoint.store(0, Ordering::Relaxed);
        self.work.uncovered = Duration::ZERO;
        let (pieces, taken) = sync_channel(PIECES);
        let task = Task {
            io: self.io.clone(),
            directory: self.directory.clone(),
            database: self.database,
            number: self.next - 1,
            logged: self.space.is_some() || self.node.is_some(),
            active: self.space.as_ref().and_then(Room::segment).map_or(u64::MAX, |segment| segment.first),
            shared: self.shared.clone(),
            chain: self.chain_at(self.next - 1),
            streams: Vec::new(),
        };
        let keep = self.keeper(self.next - 1);
        let waiting = std::mem::take(&mut self.work.wanted);
        let shared = self.shared.clone();
        let run = move || {
            let kept = |report| keep.map_or(Ok(()), |keep| keep()).map(|()| report);
            let outcome = task.run(&taken).and_then(kept);
            drop(taken);
            shared.set_checkpoint_trouble(outcome.as_ref().err().cloned());
            waiting.into_iter().for_each(|reply| drop(reply.send(outcome.clone())));
        };
        let threads = self.shared.threads.clone();
        let thread = match threads.start("lockwork-checkpoint", run) {
            Ok(thread) => thread,
            Err(error) => return self.shared.set_checkpoint_trouble(Some(error)),
        };
        drop(self.engine.with_database(&mut |database| {
            let tables = (0..database.len()).map(|id| database.table(id as u16));
            let sizes = tables.map(|table| (table.schema().name().to_string(), table.len()));
            drop(threads.send(&pieces, Piece::Sizes(sizes.collect())));
        }));
        for definition in self.definitions.all() {
            drop(threads.send(&pieces, Piece::Definition(definition.clone())));
        }
        let requests = self.dedup.encode(ROWS_BYTES);
        self.work.checkpointing =
            Some(Checkpointing { begun: start, snapshot: Some(Snapshot::new(pieces, threads)), requests, thread });
        let on_device = self.engine.runs_on_device();
        self.copy(if on_device { None } else { Some(start + self.options.checkpoint_slice) });
        self.count_pause(start);
    }

    fn count_pause(&self, start: Instant) {
        let took = (self.shared.threads.now() - start).as_nanos() as u64;
        self.shared.count(|statistics| {
            statistics.checkpoint_pause_ns += took;
            statistics.checkpoint_longest_ns = statistics.checkpoint_longest_ns.max(took);
        });
    }

    /// Copies for as long as a checkpoint may stop the calls at a time.
    pub(super) fn copy_slice(&mut self) {
        if self.work.checkpointing.as_ref().is_some_and(|checkpoint| checkpoint.snapshot.is_some()) {
            let start = self.shared.threads.now();
            self.copy(Some(start + self.options.checkpoint_slice));
            self.count_pause(start);
        }
    }

    /// Copies all that is left to copy.
    pub(super) fn copy_rest(&mut self) {
        self.drain();
        if self.work.checkpointing.as_ref().is_some_and(|checkpoint| checkpoint.snapshot.is_some()) {
            let start = self.shared.threads.now();
            self.copy(None);
            self.count_pause(start);
        }
    }

    /// Copies what a batch may write.
    pub(super) fn copy_before(&mut self, batch: &Batch) {
        let start = self.shared.threads.now();
        self.with_snapshot(|snapshot, engine, procedures| {
            let mut step = None;
            let read = engine.with_database(&mut |database| step = snapshot.before(database, batch, procedures));
            read.map(|()| step.unwrap_or(Step::More))
        });
        self.count_pause(start);
    }

    fn copy(&mut self, until: Option<Instant>) {
        self.with_snapshot(|snapshot, engine, _| {
            let mut step = Step::More;
            engine.with_database(&mut |database| step = snapshot.step(database, until)).map(|()| step)
        });
    }

    fn with_snapshot(
        &mut self,
        work: impl FnOnce(
            &mut Snapshot,
            &dyn lockwork_engine::Engine,
            &[std::sync::Arc<lockwork_engine::registry::Registered>],
        ) -> Result<Step, EngineError>,
    ) {
        let Some(checkpointing) = &mut self.work.checkpointing else { return };
        let Some(mut snapshot) = checkpointing.snapshot.take() else { return };
        match work(&mut snapshot, &*self.engine, &self.procedures) {
            Ok(Step::More | Step::Full) => checkpointing.snapshot = Some(snapshot),
            Ok(Step::Done) => {
                let pieces: SyncSender<Piece> = snapshot.into_pieces();
                for (outcomes, count) in std::mem::take(&mut checkpointing.requests) {
                    drop(self.shared.threads.send(&pieces, Piece::Requests(outcomes, count)));
                }
                drop(self.shared.threads.send(&pieces, Piece::End));
            }
            // Whoever writes has told why; without an end there is no checkpoint.
            Ok(Step::Gone) | Err(_) => {}
        }
    }

    /// Makes the checkpoint that is all that stays when no log is written.
    pub(super) fn last_checkpoint(&mut self) -> Result<(), Error> {
        let (reply, answer) = sync_channel(1);
        self.work.wanted.push(reply);
        self.begin_checkpoint();
        self.finish_checkpoint();
        self.shared.threads.receive(&answer, None).unwrap_or(Err(Error::Closed)).map(drop)
    }

    /// Waits for a checkpoint under way to end.
    pub(super) fn finish_checkpoint(&mut self) {
        self.copy_rest();
        if let Some(checkpointing) = self.work.checkpointing.take() {
            drop(checkpointing.snapshot);
            checkpointing.thread.join();
            self.work.checkpoint_took = self.shared.threads.now() - checkpointing.begun;
        }
    }
}

/// Schemas as a catalogue.
pub(crate) struct Tables(pub(crate) Vec<lockwork_procedure::schema::TableSchema>);

impl lockwork_procedure::schema::Catalog for Tables {
    fn table(&self, name: &str) -> Option<(u16, &lockwork_procedure::schema::TableSchema)> {
        self.0.as_slice().table(name)
    }

    fn table_names(&self) -> Vec<String> {
        self.0.as_slice().table_names()
    }
}

/// Gives an engine what a definition adds; `sizes` says of some tables how many rows they will have.
pub(crate) fn apply(
    engine: &mut dyn lockwork_engine::Engine,
    addition: &crate::catalogue::Addition,
    sizes: &HashMap<String, u64>,
) -> Result<(), EngineError> {
    for schema in &addition.tables {
        let rows = sizes.get(schema.name()).map_or(EXPECTED_ROWS, |&rows| EXPECTED_ROWS.max(rows as usize));
        engine.create_table(schema.clone(), rows)?;
    }
    match (&addition.procedure, addition.replaces) {
        (Some(procedure), Some(id)) => engine.replace(id, procedure.clone())?,
        (Some(procedure), None) => drop(engine.register(procedure.clone())?),
        (None, _) => {}
    }
    Ok(())
}
