//! Several calls as one transaction, while nothing else runs.
//!
//! Each call sees what those before it did, and one that aborts takes back what it did itself. What was done since some
//! moment can be taken back, and in the end all of it stays, or none. Nothing is locked: whoever wants to think between
//! two calls lets everything be taken back, and makes all of them again when it has thought.
//!
//! Rows that are removed stay as tombstones until the end, and so do rows that were inserted and taken back: a row
//! never moves, so old bytes are put back where they were.

use std::sync::Arc;

use lockwork_procedure::access::Operation;
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::interpreter::{Answer, Context, Host, Request, Stop, run};
use lockwork_procedure::key::Key;
use lockwork_storage::{ABSENT, Database, Inserted, LIVE, RowPtr, Table};

use crate::blocks::Blocks;
use crate::exclusive::{Undo, close, give_up, scan};
use crate::host_engine::Core;
use crate::registry::Registered;
use crate::tally::Tally;
use crate::tombstones::{Tombstones, set_state};

/// What is kept from one transaction to the next, and what one has done.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    registers: Vec<i64>,
    cps: Vec<Option<Answer>>,
    undo: Undo,
    /// Rows and what state they had, newest last.
    states: Vec<(RowPtr, u8)>,
    /// Rows that the call removes if it commits.
    removed: Vec<RowPtr>,
    tombstones: Tombstones,
    tally: Tally,
}

/// A transaction under way. What was not kept is taken back when it is dropped.
pub struct Compound<'a> {
    core: &'a Core,
    effects: &'a mut Effects,
    kept: bool,
}

/// A moment of a transaction, to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint {
    states: usize,
    undo: usize,
}

impl<'a> Compound<'a> {
    /// Runs a transaction, and keeps what it did if `transaction` says so. Returns what it says.
    pub(crate) fn run(
        core: &'a Core,
        effects: &'a mut Effects,
        transaction: &mut dyn FnMut(&mut Compound<'_>) -> bool,
    ) -> bool {
        let (gp, cp) = core.registry.widest_windows();
        effects.registers.resize(gp.max(effects.registers.len()), 0);
        effects.cps.resize(cp.max(effects.cps.len()), None);
        let mut compound = Self { core, effects, kept: false };
        compound.kept = transaction(&mut compound);
        compound.kept
    }

    /// The database as the transaction has made it; to look at only.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.core.database
    }

    /// Now.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint { states: self.effects.states.len(), undo: self.effects.undo.len() }
    }

    /// Takes back what was done since a moment. Of a moment that was taken back itself, nothing is left to take back.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        // SAFETY: nothing else runs, so all rows are this transaction's.
        unsafe { self.effects.undo.roll_back_to(savepoint.undo) }
        while self.effects.states.len() > savepoint.states
            && let Some((row, state)) = self.effects.states.pop()
        {
            set_state(row, state);
        }
    }

    /// Runs the calls of a batch, one after the other. Blocks get status and results as if each were a transaction.
    pub fn call(&mut self, batch: &mut Batch) {
        let blocks = Blocks::of(self.core, batch);
        for index in 0..blocks.len {
            // SAFETY: the batch is borrowed.
            let registered = unsafe { blocks.admit(self.core, index, &mut self.effects.tally) };
            if let Some(registered) = registered {
                // SAFETY: the block is long enough, and nothing else runs.
                unsafe { self.execute(registered, blocks.at(index), blocks.sequence(index)) }
            }
        }
    }

    /// # Safety
    /// `block` is a block of the procedure and this thread's alone.
    unsafe fn execute(&mut self, registered: &Registered, block: *mut u8, sequence: u64) {
        let before = self.savepoint();
        let Effects { registers, cps, undo, states, removed, tombstones, .. } = &mut *self.effects;
        let mut host = CompoundHost { registered, undo, states, removed, tombstones };
        let mut context = Context::at(0);
        // SAFETY: the windows are wide enough; the block is the caller's promise, and nothing else runs.
        let stop = unsafe { run(&registered.program, &mut context, registers, cps, block, &mut host) };
        let outcome = match stop {
            Stop::Committed => {
                // SAFETY: as above.
                unsafe { registered.program.run_commit_handler(registers, block) };
                for row in removed.drain(..) {
                    change(states, row, ABSENT);
                }
                // SAFETY: as above.
                return unsafe { close(block, Status::Committed, 0, sequence, 0) };
            }
            Stop::Aborted(code) => (Status::Aborted, code),
            Stop::Failed(code) => (Status::Failed, code),
            Stop::Waiting | Stop::Conflict => unreachable!("nothing else runs, so there is nothing to wait for"),
        };
        removed.clear();
        self.roll_back_to(before);
        let Effects { registers, tally, .. } = &mut *self.effects;
        // SAFETY: as above.
        unsafe { give_up(registered, registers, block, outcome, (sequence, 0), tally) }
    }
}

impl Drop for Compound<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.roll_back_to(Savepoint { states: 0, undo: 0 });
        }
        self.effects.undo.clear();
        self.effects.states.clear();
        self.effects.removed.clear();
        // SAFETY: nothing else runs.
        unsafe { self.effects.tombstones.unlink() }
    }
}

/// Gives a row another state, and keeps the one that it had.
fn change(states: &mut Vec<(RowPtr, u8)>, row: RowPtr, state: u8) {
    states.push((row, if row.is_live() { LIVE } else { ABSENT }));
    set_state(row, state);
}

/// The database as a call sees it: DB instructions take effect at once.
struct CompoundHost<'a> {
    registered: &'a Registered,
    undo: &'a mut Undo,
    states: &'a mut Vec<(RowPtr, u8)>,
    removed: &'a mut Vec<RowPtr>,
    tombstones: &'a mut Tombstones,
}

impl Host for CompoundHost<'_> {
    type Cp = Option<Answer>;

    const KEEPS_ALL: bool = true;

    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        *cp = Some(self.look_up(request));
    }

    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        cps[cp].expect("the verifier proved that a DB instruction precedes its RET")
    }

    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        // SAFETY: as the caller's.
        unsafe { self.undo.keep(row, offset, length) }
    }
}

impl CompoundHost<'_> {
    fn look_up(&mut self, request: Request) -> Answer {
        let table = &self.registered.tables[usize::from(request.slot)];
        // SAFETY: the interpreter passes a key image inside the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, table.key_format().image_bytes()) };
        let key = table.key_format().encode(image);
        if request.operation == Operation::Scan {
            return Answer::Ready(scan(table, &key, &request));
        }
        let hash = key.hash();
        let row = table.find(hash, &key);
        let live = row.filter(RowPtr::is_live);
        match (request.operation, live) {
            (Operation::Insert, Some(_)) => Answer::Missing(abort::DUPLICATE_KEY),
            (Operation::Insert, None) => match row {
                Some(row) => self.insert_again(table, row),
                None => self.insert(table, hash, key, image),
            },
            (Operation::Remove, Some(row)) => {
                self.tombstones.note(table, hash, key, row);
                self.removed.push(row);
                Answer::Ready(0)
            }
            (_, Some(row)) => Answer::Ready(row.as_ptr() as u64),
            (_, None) => Answer::Missing(abort::NOT_FOUND),
        }
    }

    fn insert(&mut self, table: &Arc<Table>, hash: u64, key: Key, image: &[u8]) -> Answer {
        match table.insert(hash, &key, image, ABSENT) {
            Ok(Inserted::New(row) | Inserted::Exists(row)) => {
                self.tombstones.note(table, hash, key, row);
                change(self.states, row, LIVE);
                Answer::Ready(row.as_ptr() as u64)
            }
            Err(_) => Answer::Failed(abort::OUT_OF_MEMORY),
        }
    }

    /// Makes a row of a tombstone.
    fn insert_again(&mut self, table: &Table, row: RowPtr) -> Answer {
        let schema = table.schema();
        let (start, length) = (schema.values_start(), schema.row_bytes() - schema.values_start());
        // SAFETY: the values lie in the row, and nothing else runs. They may be those of a row that was removed before
        // in this transaction, so they are kept.
        unsafe {
            self.undo.keep(row.as_ptr(), start, length);
            row.as_ptr().add(start as usize).write_bytes(0, length as usize);
        }
        change(self.states, row, LIVE);
        Answer::Ready(row.as_ptr() as u64)
    }
}
