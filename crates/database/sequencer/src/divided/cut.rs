//! Checkpoints of all parts at one record.
//!
//! A record says where: every node writes the rows that it has then, and calls wait meanwhile. A checkpoint counts when
//! those of all parts are kept. A node that begins again begins with the newest that counts, and needs nothing that
//! others said before it; so what was said before the one that counts is forgotten then.

use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::{PLACE_BITS, PartitionedOrder};
use crate::checkpoint::snapshot::{Snapshot, Step};
use crate::checkpoint::write::{CheckpointReport, Piece, Task};
use crate::error::Error;
use crate::io::Mode;
use crate::journal::Unreachable;
use crate::journal::message::Chain;
use crate::order::ROWS_BYTES;

/// Megabytes that may wait to be written, about.
const PIECES: usize = 16;

impl PartitionedOrder {
    /// Makes the checkpoint of this part at a record that was just met.
    pub(super) fn cut(&mut self, number: u64) -> Result<CheckpointReport, Error> {
        let start = self.shared.threads.now();
        self.shared.since_checkpoint.store(0, Ordering::Relaxed);
        self.cut_at = number;
        self.streams.cut(number);
        let begun = self.engine.begin((number + 1) << PLACE_BITS).map_err(Error::from);
        let made = begun.and_then(|()| self.write(number));
        let made = made.and_then(|report| self.keep(number).map(|()| report));
        self.shared.set_checkpoint_trouble(made.as_ref().err().cloned());
        let took = (self.shared.threads.now() - start).as_nanos() as u64;
        self.shared.count(|statistics| {
            statistics.checkpoint_pause_ns += took;
            statistics.checkpoint_longest_ns = statistics.checkpoint_longest_ns.max(took);
        });
        made
    }

    fn write(&mut self, number: u64) -> Result<CheckpointReport, Error> {
        let (journal, path) = (self.node.journal.clone(), self.node.path.clone());
        let chain = move || {
            let read = journal.read(number, 1, Duration::ZERO);
            let read = read.map_err(|error| Error::Unreachable(error.to_string()))?;
            match &read.messages[..] {
                [message, ..] if read.first == number => Chain::behind(&path, number, message),
                _ => Err(Error::damaged(&path, number, "the record is missing")),
            }
        };
        let task = Task {
            io: self.io.clone(),
            directory: self.directory.clone(),
            database: self.node.chain.database,
            number,
            logged: true,
            active: u64::MAX,
            shared: self.shared.clone(),
            chain: Some(Box::new(chain)),
            streams: self.streams.positions(),
        };
        let threads = self.shared.threads.clone();
        let ((pieces, taken), (reply, answer)) = (sync_channel(PIECES), sync_channel(1));
        let thread = threads.start("lockwork-checkpoint", move || {
            let outcome = task.run(&taken);
            drop(taken);
            drop(reply.send(outcome));
        })?;
        let mut snapshot = None;
        self.engine.with_database(&mut |database| {
            let tables = (0..database.len()).map(|id| database.table(id as u16));
            let sizes = tables.map(|table| (table.schema().name().to_string(), table.len()));
            drop(threads.send(&pieces, Piece::Sizes(sizes.collect())));
            for definition in self.definitions.all() {
                drop(threads.send(&pieces, Piece::Definition(definition.clone())));
            }
            let copy = snapshot.insert(Snapshot::new(pieces.clone(), threads.clone()));
            while matches!(copy.step(database, None), Step::More | Step::Full) {}
        })?;
        drop(snapshot);
        for (bytes, count) in self.dedup.encode(ROWS_BYTES) {
            drop(threads.send(&pieces, Piece::Requests(bytes, count)));
        }
        drop(threads.send(&pieces, Piece::End));
        let outcome = threads.receive(&answer, None).unwrap_or(Err(Error::Closed));
        thread.join();
        outcome
    }

    /// Gives the checkpoint of this part to the journal, and drops what is not needed when all parts have theirs.
    fn keep(&mut self, number: u64) -> Result<(), Error> {
        let failed = |error: Unreachable| Error::Unreachable(error.to_string());
        let path = self.directory.checkpoint(number);
        let file = self.io.open(&path, Mode::Read).map_err(|error| Error::io("read", &path, error))?;
        let journal = self.node.journal.clone();
        journal.keep_checkpoint(number, &*file).map_err(failed)?;
        // Those that count, of which the one before the newest is kept for who just began with it.
        let whole = journal.checkpoints().map_err(failed)?;
        let Some((&newest, before)) = whole.split_last() else { return Ok(()) };
        let Some(&last) = before.last() else { return Ok(()) };
        self.engine.forget((last + 1) << PLACE_BITS)?;
        debug_assert!(last < newest);
        self.streams.truncate(last, self.leads()).map_err(failed)?;
        if self.leads() {
            journal.truncate(last + 1).map_err(failed)?;
            journal.drop_checkpoints(last).map_err(failed)?;
        }
        Ok(())
    }
}
