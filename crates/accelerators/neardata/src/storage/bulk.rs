//! Bulk operations: processing elements share out the VID map and evaluate a row program on what the snapshot sees.
//!
//! An element is a thread with buffers, registers and, for an update, pages and locks of its own. It takes the next
//! window of the VID map, so a slow one does less, and nothing is shared between elements but that counter and
//! the lock table. What they find goes through a channel to the caller's thread, in pieces.
//!
//! Updating, per row that the program takes: the newest stored version must be the visible one, the lock is taken,
//! which also checks that the host has no newer one, and only then is the new version made (neoDBMS, section 3).
//!
//! Invariant: an error of any element ends all of them, and the pages of all are forgotten.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use lockwork_procedure::block::abort;
use lockwork_procedure::schema::ROW_HEADER_BYTES;

use super::core::Core;
use super::page::{RECORD_BYTES, RecordHeader, Shape};
use super::space::lock;
use super::unit::{Target, UnitWriter, forget};
use super::walk::{Found, WINDOW, Walker};
use crate::device::{DeviceError, LockRefusal, LockSource, Modified, Operation, Piece, Purpose, Ran, RowLocks};
use crate::device::{TableId, TransactionId};
use crate::record::{RecordId, Vid};
use crate::row_program::{Evaluator, Folded, RowProgram};

/// A record's header is longer than a row's, so a row can be looked at in the buffer that the disk has filled.
const ROW_AT: usize = RECORD_BYTES - ROW_HEADER_BYTES as usize;

/// Bytes of images in a piece, about.
const PIECE_BYTES: usize = 256 * 1024;
/// Tuples in a piece, at most.
const PIECE_TUPLES: usize = 8192;

/// A tuple that a transaction has given a new version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) modified: Modified,
    /// The version that it replaces.
    pub(super) base: RecordId,
}

/// What a bulk update leaves: pages without a seal, and what they change.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) targets: Vec<Target>,
    pub(super) tuples: Vec<Change>,
}

/// A piece on its way to the caller's thread.
enum Parcel {
    Rows(Vec<Vid>, Vec<u8>),
    Modified(Vec<Modified>),
}

/// What one element has done.
#[derive(Default)]
struct Done {
    ran: Ran,
    folded: Folded,
    changes: Changes,
}

/// What all elements of an operation share.
struct Shared<'a> {
    core: &'a Core,
    program: RowProgram,
    operation: &'a Operation,
    locks: &'a dyn LockSource,
    shape: Shape,
    key_bytes: usize,
    tuples: u32,
    next: AtomicU32,
    /// What went wrong first, and whether anything did.
    failure: Mutex<Option<DeviceError>>,
    stop: AtomicBool,
}

impl Shared<'_> {
    /// Ends all elements. The first reason is the one that the caller hears.
    fn fail(&self, error: DeviceError) {
        lock(&self.failure).get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs a bulk operation with `elements` threads.
pub(super) fn run(
    core: &Core,
    locks: &dyn LockSource,
    elements: usize,
    operation: &Operation,
    piece: &mut dyn FnMut(Piece<'_>),
) -> Result<(Ran, Changes), DeviceError> {
    let _watch = core.watch(operation.snapshot);
    let (schemas, shape, tuples) = {
        let state = core.state();
        let table = state.table(operation.table)?;
        let schemas: Vec<_> = state.tables.iter().map(|table| table.schema.clone()).collect();
        (schemas, table.shape, table.vids.len() as u32)
    };
    let program = RowProgram::new(operation, &schemas)?;
    let key_bytes = schemas[usize::from(operation.table)].key_bytes() as usize;
    let (next, failure, stop) = (AtomicU32::new(0), Mutex::new(None), AtomicBool::new(false));
    let shared = Shared { core, program, operation, locks, shape, key_bytes, tuples, next, failure, stop };
    // Small tables are shared out as well.
    let window = (tuples / (4 * elements as u32)).clamp(1024, WINDOW);
    let outcomes: Vec<Done> = std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(2 * elements);
        let start = |number: usize| {
            let (shared, sender) = (&shared, sender.clone());
            let name = format!("element-{number}");
            let work = move || Element::work(shared, number, window, sender).map_err(|error| shared.fail(error)).ok();
            std::thread::Builder::new().name(name).spawn_scoped(scope, work).map_err(|error| {
                shared.fail(DeviceError::Io(format!("starting processing element {number}: {error}")));
            })
        };
        let threads: Vec<_> = (0..elements).filter_map(|number| start(number).ok()).collect();
        drop(sender);
        for parcel in receiver {
            match &parcel {
                Parcel::Rows(vids, images) => piece(Piece::Rows { vids, images }),
                Parcel::Modified(tuples) => piece(Piece::Modified(tuples)),
            }
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().filter_map(join).collect()
    });
    let mut all = Done::default();
    for mut done in outcomes {
        all.ran.rows += done.ran.rows;
        all.ran.taken += done.ran.taken;
        all.folded.merge(&shared.program, done.folded);
        all.changes.targets.append(&mut done.changes.targets);
        all.changes.tuples.append(&mut done.changes.tuples);
    }
    let result = lock(&shared.failure).take().map_or(Ok(()), Err);
    if let Err(error) = result.and_then(|()| hand_over(&shared, &all, piece)) {
        forget(core, all.changes.targets);
        return Err(error);
    }
    Ok((all.ran, all.changes))
}

/// Gives the folded results to the caller.
fn hand_over(shared: &Shared<'_>, all: &Done, piece: &mut dyn FnMut(Piece<'_>)) -> Result<(), DeviceError> {
    if let Purpose::Aggregate(folds) = &shared.operation.purpose {
        let values = all.folded.values(folds)?;
        piece(Piece::Folded { rows: all.ran.taken, values: values.as_deref() });
    }
    Ok(())
}

/// What an update needs.
struct Updating<'c> {
    locks: Box<dyn RowLocks>,
    writer: UnitWriter<'c>,
    tuples: Vec<Change>,
    modified: Vec<Modified>,
}

struct Element<'s> {
    shared: &'s Shared<'s>,
    evaluator: Evaluator<'s>,
    ran: Ran,
    folded: Folded,
    sender: SyncSender<Parcel>,
    vids: Vec<Vid>,
    images: Vec<u8>,
    updating: Option<Updating<'s>>,
}

/// What a refused lock means for the operation.
fn refused(refusal: LockRefusal, table: TableId, vid: Vid) -> DeviceError {
    match refusal {
        LockRefusal::Superseded => DeviceError::Conflict { table, vid },
        LockRefusal::Busy => DeviceError::Busy { table, vid },
        LockRefusal::Failed(text) => DeviceError::Refused(format!("the lock table is not usable: {text}")),
    }
}

impl<'s> Element<'s> {
    fn work(
        shared: &'s Shared<'s>,
        number: usize,
        window: u32,
        sender: SyncSender<Parcel>,
    ) -> Result<Done, DeviceError> {
        Self::new(shared, number, sender)?.run(window)
    }

    fn new(shared: &'s Shared<'s>, number: usize, sender: SyncSender<Parcel>) -> Result<Self, DeviceError> {
        let table = shared.operation.table;
        let updating = match shared.operation.purpose {
            Purpose::Update(transaction) => Some(Updating {
                locks: open_locks(shared, transaction, number)?,
                writer: UnitWriter::new(shared.core, table, shared.shape),
                tuples: Vec::new(),
                modified: Vec::new(),
            }),
            _ => None,
        };
        let evaluator = Evaluator::new(&shared.program);
        let (ran, folded, vids, images) = Default::default();
        Ok(Self { shared, evaluator, ran, folded, sender, vids, images, updating })
    }

    fn run(mut self, window: u32) -> Result<Done, DeviceError> {
        let Shared { core, operation, next, tuples, .. } = self.shared;
        let mut walker = Walker::new(core);
        loop {
            // The counter cannot wrap: it passes the end of the table by at most a window for each element.
            let first = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
                (first < *tuples).then(|| first.saturating_add(window))
            });
            let Ok(first) = first else { break };
            let end = first.saturating_add(window).min(*tuples);
            walker
                .window(operation.table, first..end, operation.snapshot, |found, shape| self.look_at(found, shape))?;
        }
        self.send_rows();
        let mut done = Done { ran: self.ran, folded: self.folded, changes: Changes::default() };
        if let Some(mut updating) = self.updating.take() {
            send_modified(&self.sender, &mut updating.modified);
            done.changes = Changes { targets: updating.writer.finish()?, tuples: updating.tuples };
        }
        Ok(done)
    }

    #[inline]
    fn look_at(&mut self, found: &Found<'_>, shape: &Shape) -> Result<(), DeviceError> {
        if found.removed {
            return Ok(());
        }
        if self.shared.stop.load(Ordering::Relaxed) {
            return Err(DeviceError::Refused("another processing element has failed".into()));
        }
        self.ran.rows += 1;
        if self.updating.is_some() {
            return self.update(found, shape);
        }
        match self.evaluator.takes(&found.bytes[ROW_AT..]) {
            Ok(false) => return Ok(()),
            Ok(true) => self.ran.taken += 1,
            Err(code) => return Err(self.failed(found, code)),
        }
        if matches!(self.shared.operation.purpose, Purpose::Filter) {
            self.vids.push(found.vid);
            self.images.extend_from_slice(found.image(shape));
            if self.images.len() >= PIECE_BYTES || self.vids.len() >= PIECE_TUPLES {
                self.send_rows();
            }
            return Ok(());
        }
        self.folded.add(&self.evaluator);
        Ok(())
    }

    fn update(&mut self, found: &Found<'_>, shape: &Shape) -> Result<(), DeviceError> {
        let table = self.shared.operation.table;
        let image = found.image(shape);
        let changed = match self.evaluator.change(image) {
            Ok(Some(changed)) => changed,
            Ok(None) => return Ok(()),
            Err(code) => return Err(self.failed(found, code)),
        };
        let vid = found.vid;
        let key = ..self.shared.key_bytes;
        if changed[key] != image[key] {
            return Err(DeviceError::Refused(format!("the row program changes the key of tuple {}", vid.0)));
        }
        if !found.newest {
            return Err(DeviceError::Conflict { table, vid });
        }
        let Updating { locks, writer, tuples, modified } = self.updating.as_mut().expect("it is an update");
        locks.lock(table, vid, found.number).map_err(|refusal| refused(refusal, table, vid))?;
        let number = next_number(found.number, vid)?;
        let record = RecordHeader { vid, number, created: 0, previous: found.record, removed: false };
        let record = writer.push(&record, Some(changed))?;
        let new = Modified { vid, number, record };
        tuples.push(Change { modified: new, base: found.record });
        modified.push(new);
        self.ran.taken += 1;
        if modified.len() == PIECE_TUPLES {
            send_modified(&self.sender, modified);
        }
        Ok(())
    }

    #[cold]
    fn failed(&self, found: &Found<'_>, code: u16) -> DeviceError {
        debug_assert!(code >= abort::FIRST_RESERVED, "other codes mean that the row is not taken");
        DeviceError::RowFailed { table: self.shared.operation.table, vid: found.vid, code }
    }

    fn send_rows(&mut self) {
        if !self.vids.is_empty() {
            // The receiver outlives the elements.
            let _ = self.sender.send(Parcel::Rows(std::mem::take(&mut self.vids), std::mem::take(&mut self.images)));
        }
    }
}

fn open_locks(
    shared: &Shared<'_>,
    transaction: TransactionId,
    number: usize,
) -> Result<Box<dyn RowLocks>, DeviceError> {
    shared.locks.open(transaction, number).map_err(|refusal| refused(refusal, shared.operation.table, Vid(0)))
}

fn send_modified(sender: &SyncSender<Parcel>, modified: &mut Vec<Modified>) {
    if !modified.is_empty() {
        // The receiver outlives the elements.
        let _ = sender.send(Parcel::Modified(std::mem::take(modified)));
    }
}

/// The number of the version after this one.
pub(super) fn next_number(number: u32, vid: Vid) -> Result<u32, DeviceError> {
    let text = || DeviceError::Refused(format!("tuple {} has had all versions that can be numbered", vid.0));
    number.checked_add(1).ok_or_else(text)
}
