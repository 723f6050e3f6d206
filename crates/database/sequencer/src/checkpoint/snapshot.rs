//! The database as it was between two batches, copied while later batches run.
//!
//! A cursor walks all tables, a slice at a time, between batches. Before a batch runs, every key that it may write is
//! *touched*: if the cursor has not come by its row yet, the row is copied now, and its place marked; a key that may
//! come or go is noted. The cursor passes by places that are marked and keys that are noted. So each row is copied
//! once, as it was at the moment of the snapshot, whether it is changed, removed, or its memory given to another one
//! meanwhile, and no row that came later is copied.
//!
//! Touching costs about as much as the batch's own look-ups, whose misses it takes, so slices should be long enough
//! that few batches run during a copy.
//!
//! A batch with a call whose keys are not known before it runs, and rows that are loaded, wait for the whole rest.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Instant;

use lockwork_engine::registry::Registered;
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation};
use lockwork_procedure::block::Batch;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_storage::{Database, RowPtr, Table};

use super::write::Piece;
use crate::threads::Threads;

/// Bytes of a piece.
const PIECE_BYTES: usize = 1 << 20;
/// Places looked at between two looks at the clock.
const STEP: u64 = 2048;
/// Keys noted, and bytes of rows copied out of turn, at most; then the rest is copied at once, so that memory stays
/// bounded.
const MAX_NOTED: usize = 1 << 20;
const MAX_KEPT_BYTES: usize = 256 << 20;

/// See the module.
pub(crate) struct Snapshot {
    pieces: SyncSender<Piece>,
    threads: Threads,
    /// A piece that there was no room for.
    waiting: Option<Piece>,
    table: u16,
    place: u64,
    images: Vec<u8>,
    /// Keys that came or went since, or may have.
    noted: HashSet<(u16, Key)>,
    /// Bits of places whose rows were copied out of turn, by table.
    marked: Vec<Vec<u64>>,
    /// Those rows, by table, and pieces of them that are long enough, with their tables.
    kept: Vec<Vec<u8>>,
    cut: Vec<(u16, Vec<u8>)>,
    kept_bytes: usize,
    most_kept_bytes: usize,
    keys: Vec<KeyAccess>,
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to copy.
    More,
    /// Whoever writes the pieces has enough for now.
    Full,
    /// All rows are on their way.
    Done,
    /// Nobody writes the pieces any more.
    Gone,
}

fn image_bytes(table: &Table) -> usize {
    (table.schema().row_bytes() - ROW_HEADER_BYTES) as usize
}

impl Snapshot {
    pub(crate) fn new(pieces: SyncSender<Piece>, threads: Threads) -> Self {
        Self {
            pieces,
            threads,
            waiting: None,
            table: 0,
            place: 0,
            images: Vec::new(),
            noted: HashSet::new(),
            marked: Vec::new(),
            kept: Vec::new(),
            cut: Vec::new(),
            kept_bytes: 0,
            most_kept_bytes: MAX_KEPT_BYTES,
            keys: Vec::new(),
        }
    }

    /// The other end of the pieces, for what comes behind the rows.
    pub(crate) fn into_pieces(self) -> SyncSender<Piece> {
        self.pieces
    }

    fn send(&mut self, piece: Piece, wait: bool) -> Result<(), Step> {
        if wait {
            return self.threads.send(&self.pieces, piece).map_err(|_| Step::Gone);
        }
        self.pieces.try_send(piece).map_err(|error| match error {
            TrySendError::Full(piece) => {
                self.waiting = Some(piece);
                Step::Full
            }
            TrySendError::Disconnected(_) => Step::Gone,
        })
    }

    /// Copies rows until `until`, or all that are left if there is no such moment. The engine is idle.
    pub(crate) fn step(&mut self, database: &Database, until: Option<Instant>) -> Step {
        match self.copy(database, until) {
            Ok(()) => Step::Done,
            Err(step) => step,
        }
    }

    fn copy(&mut self, database: &Database, until: Option<Instant>) -> Result<(), Step> {
        let wait = until.is_none();
        if let Some(piece) = self.waiting.take() {
            self.send(piece, wait)?;
        }
        while usize::from(self.table) < database.len() {
            let table = database.table(self.table).clone();
            let next = self.slice(&table);
            let ended = next.is_none();
            (self.table, self.place) = next.map_or((self.table + 1, 0), |place| (self.table, place));
            if self.images.len() >= PIECE_BYTES || ended && !self.images.is_empty() {
                let piece = rows(&table, std::mem::take(&mut self.images));
                self.send(piece, wait)?;
            }
            if until.is_some_and(|until| self.threads.now() >= until) {
                return Err(Step::More);
            }
        }
        for (number, images) in std::mem::take(&mut self.kept).into_iter().enumerate() {
            if !images.is_empty() {
                self.cut.push((number as u16, images));
            }
        }
        while let Some((number, images)) = self.cut.pop() {
            self.send(rows(database.table(number), images), wait)?;
        }
        Ok(())
    }

    fn slice(&mut self, table: &Table) -> Option<u64> {
        let (number, noted, images) = (self.table, &self.noted, &mut self.images);
        let marked = self.marked.get(usize::from(number)).map_or(&[][..], Vec::as_slice);
        table.for_some(self.place, STEP, |place, row| {
            if marked.get((place / 64) as usize).is_some_and(|bits| bits >> (place % 64) & 1 == 1) {
                return;
            }
            // SAFETY: the engine is idle, so nobody writes.
            let image = unsafe { table.row_image(row) };
            let key = || table.key_format().encode(&image[..table.key_format().image_bytes()]);
            if noted.is_empty() || !noted.contains(&(number, key())) {
                images.extend_from_slice(image);
            }
        })
    }

    /// Copies what a batch, which will run next, may write. The engine is idle. Returns how far that has brought the
    /// copy: it is done when keys were not known.
    pub(crate) fn before(
        &mut self,
        database: &Database,
        batch: &Batch,
        procedures: &[Arc<Registered>],
    ) -> Option<Step> {
        let mut keys = std::mem::take(&mut self.keys);
        for block in batch.blocks() {
            if self.noted.len() >= MAX_NOTED || self.kept_bytes >= self.most_kept_bytes {
                return Some(self.step(database, None));
            }
            let Some(registered) = procedures.get(block.procedure() as usize) else { continue };
            if !registered.traits.writes || registered.block_bytes > batch.stride() {
                continue;
            }
            keys.clear();
            match &registered.access {
                AccessSet::Straight(straight) => straight.collect(&registered.verified, block.bytes(), &mut keys),
                AccessSet::Sliced(slice) => slice.collect(&block.bytes()[..registered.block_bytes], &mut keys),
                AccessSet::Dependent(_) => return Some(self.step(database, None)),
            }
            for access in keys.iter().filter(|access| access.operation.writes()) {
                self.touch(database, registered.table_id(access.slot), access);
            }
        }
        self.keys = keys;
        None
    }

    fn touch(&mut self, database: &Database, number: u16, access: &KeyAccess) {
        if number < self.table {
            return;
        }
        let (table, key) = (database.table(number), &access.key);
        if access.operation != Operation::Update && self.noted.contains(&(number, *key)) {
            return;
        }
        if let Some(row) = table.find(key.hash(), key).filter(RowPtr::is_live)
            && let Some(place) = table.place(row)
            && (number > self.table || place >= self.place)
            && !self.noted.contains(&(number, *key))
            && self.mark(usize::from(number), place)
        {
            // SAFETY: the engine is idle, so nobody writes.
            let image = unsafe { table.row_image(row) };
            self.kept.resize_with(database.len().max(self.kept.len()), Vec::new);
            let kept = &mut self.kept[usize::from(number)];
            kept.extend_from_slice(image);
            if kept.len() >= PIECE_BYTES {
                self.cut.push((number, std::mem::take(kept)));
            }
            self.kept_bytes += image.len();
        }
        if access.operation != Operation::Update {
            self.noted.insert((number, *key));
        }
    }

    /// Marks a place, and says whether it was not marked before.
    fn mark(&mut self, table: usize, place: u64) -> bool {
        if self.marked.len() <= table {
            self.marked.resize_with(table + 1, Vec::new);
        }
        let (marks, word, bit) = (&mut self.marked[table], (place / 64) as usize, 1_u64 << (place % 64));
        if marks.len() <= word {
            marks.resize((word + 1).next_power_of_two(), 0);
        }
        let fresh = marks[word] & bit == 0;
        marks[word] |= bit;
        fresh
    }
}

fn rows(table: &Table, images: Vec<u8>) -> Piece {
    Piece::Rows { table: table.schema().name().to_string(), image_bytes: image_bytes(table), images }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use lockwork_engine::{Engine, EngineKind, Options, create};
    use lockwork_procedure::assembly::{assemble, assemble_tables};
    use lockwork_storage::Digest;

    use super::*;

    const ROWS: i64 = 300;

    /// Rows of about ten thousand bytes, a batch that changes all of them, and the bytes of a row.
    fn wide() -> (Box<dyn Engine>, Vec<Arc<Registered>>, Batch, usize) {
        let mut engine = create(EngineKind::SERIAL, Options::default()).unwrap();
        let table = "table wide (id: i64 key, count: i64, rest: bytes(10016))";
        let touch = "procedure touch\ntable wide\nparam id: i64\nupdate c0, wide, [id]\nret r1, c0\n\
                     load r2, [id]\nadd r2, r2, 1\nstorer r2, r1[wide.count]\ncommit";
        let tables = assemble_tables(table, [].as_slice()).unwrap();
        engine.create_table(tables[0].clone(), ROWS as usize).unwrap();
        engine.register(assemble(touch, tables.as_slice()).unwrap().procedure).unwrap();
        let width = (tables[0].row_bytes() - ROW_HEADER_BYTES) as usize;
        let mut batch = Batch::new(64, ROWS as usize).unwrap();
        for id in 0..ROWS {
            let mut image = id.to_le_bytes().to_vec();
            image.resize(width, 0);
            engine.load("wide", &image).unwrap();
            batch.push(0).unwrap().bytes()[32..40].copy_from_slice(&id.to_le_bytes());
        }
        let procedures = vec![engine.procedure(0).unwrap()];
        (engine, procedures, batch, width)
    }

    /// Bytes of the pieces, and the digest of their rows.
    fn taken(pieces: &Receiver<Piece>) -> (Vec<usize>, Digest) {
        let (mut bytes, mut digest) = (Vec::new(), Digest::default());
        while let Ok(Piece::Rows { table, image_bytes, images }) = pieces.try_recv() {
            digest = digest.combine(Digest::of_rows(&table, image_bytes, &images));
            bytes.push(images.len());
        }
        (bytes, digest)
    }

    /// What became of the copy before the batch, and how many rows were kept.
    fn copied(most_kept_bytes: usize) -> (Option<Step>, usize) {
        let (mut engine, procedures, batch, width) = wide();
        let digest = engine.digest().unwrap();
        let (pieces, out) = sync_channel(100);
        let mut snapshot = Snapshot::new(pieces, Threads::default());
        snapshot.most_kept_bytes = most_kept_bytes;
        let mut step = None;
        engine.with_database(&mut |database| step = snapshot.before(database, &batch, &procedures)).unwrap();
        let kept = snapshot.kept_bytes / width;
        if step.is_none() {
            engine.submit(batch).unwrap();
            engine.complete().unwrap();
            assert_ne!(engine.digest().unwrap(), digest);
            let copy = &mut |database: &Database| assert_eq!(snapshot.step(database, None), Step::Done);
            engine.with_database(copy).unwrap();
        }
        let (bytes, copied) = taken(&out);
        assert_eq!((copied, bytes.iter().sum::<usize>()), (digest, ROWS as usize * width));
        assert!(bytes.iter().all(|&bytes| bytes < 4 * PIECE_BYTES), "{bytes:?}");
        if step.is_none() {
            assert!(bytes.len() >= 3 && bytes.iter().all(|&bytes| bytes < PIECE_BYTES + width), "{bytes:?}");
        }
        (step, kept)
    }

    #[test]
    fn rows_kept_out_of_turn_come_in_pieces() {
        assert_eq!(copied(MAX_KEPT_BYTES), (None, ROWS as usize));
    }

    #[test]
    fn one_batch_keeps_no_more_than_may_be_kept() {
        assert_eq!(copied(100_000), (Some(Step::Done), 10));
    }
}
