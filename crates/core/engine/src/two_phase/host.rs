//! The database as one two-phase transaction sees it: every DB instruction goes through three stages.
//!
//! ```text
//! issued  --(bucket in cache)-->  found  --(row in cache)-->  locked and answered
//! ```
//!
//! All DB instructions that a transaction has in flight move on together, so a transaction of sixteen accesses
//! waits twice, not thirty-two times. They are answered in program order, whatever order their locks came in.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockwork_locking::LockMode;
use lockwork_locking::word::{self, Age, group};
use lockwork_memory::prefetch;
use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Host, Request};
use lockwork_procedure::key::Key;
use lockwork_storage::{ABSENT, Inserted, LIVE, RowPtr, STATE_MASK, Table};

use super::TableLock;
use crate::conflicts::Cause;
use crate::contract::LockPolicy;
use crate::exclusive::{ScanWriter, Undo};
use crate::interleaved::Turn;
use crate::registry::Registered;
use crate::tombstones::{Tombstones, set_state};

/// How far a DB instruction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Free,
    Issued,
    Found,
    Answered,
}

/// A CP register of a two-phase transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cp {
    stage: Stage,
    request: Option<Request>,
    hash: u64,
    row: Option<RowPtr>,
    answer: Option<Answer>,
}

/// A lock that a transaction holds.
#[derive(Clone, Copy, Debug)]
enum Held {
    Row { row: RowPtr, exclusive: bool },
    Table { id: u16, mode: LockMode },
}

/// What a transaction has done to the database and holds of it.
#[derive(Debug, Default)]
pub(super) struct Effects {
    held: Vec<Held>,
    /// The largest stamp met.
    stamp: u64,
    undo: Undo,
    inserted: Vec<RowPtr>,
    removed: Vec<RowPtr>,
    /// Why a lock was refused last.
    pub(super) refused: Option<Cause>,
    /// CP registers in flight, in program order.
    issued: Vec<u8>,
    /// Positions in `issued`, in the order of locking.
    order: Vec<u8>,
}

/// The outcome of asking for a lock.
enum Grant {
    Held,
    Wait,
    Conflict,
}

pub(super) struct LockingHost<'a> {
    pub(super) registered: &'a Registered,
    pub(super) tables: &'a [TableLock],
    pub(super) policy: LockPolicy,
    pub(super) turn: Turn,
    /// Smaller is older; at least 1.
    pub(super) age: u64,
    pub(super) effects: &'a mut Effects,
    pub(super) tombstones: &'a mut Tombstones,
}

impl Host for LockingHost<'_> {
    type Cp = Cp;

    #[inline(always)]
    fn issue(&mut self, cp: &mut Cp, request: Request) {
        let table = &self.registered.tables[usize::from(request.slot)];
        let hash = key_of(table, &request).0.hash();
        if self.turn.prefetch && request.operation != Operation::Scan {
            table.prefetch(hash);
        }
        *cp = Cp { stage: Stage::Issued, request: Some(request), hash, row: None, answer: None };
        if self.registered.at_once {
            cp.answer = Some(self.answer_at_once(cp));
            cp.stage = Stage::Answered;
            return;
        }
        self.effects.issued.push(request.cp);
    }

    #[inline(always)]
    fn answer(&mut self, cps: &mut [Cp], cp: usize) -> Answer {
        if cps[cp].stage != Stage::Answered {
            let moved = self.move_on(cps);
            if moved != Answer::Ready(0) {
                return moved;
            }
        }
        cps[cp].stage = Stage::Free;
        cps[cp].answer.expect("it is answered")
    }

    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        // SAFETY: as the caller's.
        unsafe { self.effects.undo.keep(row, offset, length) }
    }
}

/// The key of a request, and its image.
#[inline(always)]
fn key_of<'a>(table: &Table, request: &Request) -> (Key, &'a [u8]) {
    let format = table.key_format();
    // SAFETY: the interpreter passes a key image inside the block, which outlives the transaction.
    let image = unsafe { std::slice::from_raw_parts(request.key, format.image_bytes()) };
    (format.encode(image), image)
}

impl LockingHost<'_> {
    /// The answer of an instruction that takes effect when it is issued. There is no waiting here: a lock that is not
    /// available is a conflict.
    #[cold]
    fn answer_at_once(&mut self, cp: &mut Cp) -> Answer {
        if let Err(code) = self.find(cp) {
            return Answer::Failed(code);
        }
        match self.lock(cp) {
            Grant::Held => self.apply(cp).unwrap_or(Answer::Conflict),
            Grant::Wait | Grant::Conflict => Answer::Conflict,
        }
    }

    /// Moves all instructions in flight on, and answers `Ready(0)` when all are answered.
    fn move_on(&mut self, cps: &mut [Cp]) -> Answer {
        let mut found = false;
        for at in 0..self.effects.issued.len() {
            let cp = &mut cps[usize::from(self.effects.issued[at])];
            if cp.stage == Stage::Issued {
                if let Err(code) = self.find(cp) {
                    return Answer::Failed(code);
                }
                found = true;
            }
        }
        if found && self.turn.pause {
            return Answer::Pending;
        }
        self.choose_order(cps);
        for at in 0..self.effects.order.len() {
            let cp = self.effects.issued[usize::from(self.effects.order[at])];
            match self.lock(&cps[usize::from(cp)]) {
                Grant::Held => {}
                Grant::Wait => return Answer::Pending,
                Grant::Conflict => return Answer::Conflict,
            }
        }
        for at in 0..self.effects.issued.len() {
            let number = usize::from(self.effects.issued[at]);
            if cps[number].stage == Stage::Found {
                let Some(answer) = self.apply(&cps[number]) else { return Answer::Conflict };
                cps[number].answer = Some(answer);
                cps[number].stage = Stage::Answered;
            }
        }
        self.effects.issued.clear();
        Answer::Ready(0)
    }

    /// Finds the row of a key, or the tombstone that stands for it.
    #[inline(always)]
    fn find(&mut self, cp: &mut Cp) -> Result<(), u16> {
        cp.stage = Stage::Found;
        let request = cp.request.expect("it was issued");
        if request.operation == Operation::Scan {
            return Ok(());
        }
        let table = &self.registered.tables[usize::from(request.slot)];
        let (key, image) = key_of(table, &request);
        let row = match table.find(cp.hash, &key) {
            Some(row) => row,
            None => match table.insert(cp.hash, &key, image, ABSENT) {
                Ok(Inserted::New(row)) => {
                    self.tombstones.note(table, cp.hash, key, row);
                    row
                }
                Ok(Inserted::Exists(row)) => row,
                Err(_) => return Err(abort::OUT_OF_MEMORY),
            },
        };
        if self.turn.prefetch {
            prefetch(row.as_ptr());
            if let Some(recipe) = &self.registered.recipe {
                // SAFETY: the interpreter passes the key image of the access, in the block.
                unsafe { recipe.prefetch_row_of(request.cp, request.key, row.as_ptr() as u64) }
            }
        }
        cp.row = Some(row);
        Ok(())
    }

    /// In which order the instructions in flight take their locks.
    #[inline(always)]
    fn choose_order(&mut self, cps: &[Cp]) {
        let effects = &mut *self.effects;
        effects.order.clear();
        effects.order.extend(0..effects.issued.len() as u8);
        if self.policy == LockPolicy::Ordered && effects.order.len() > 1 {
            let row = |at: &u8| {
                let cp = &cps[usize::from(effects.issued[usize::from(*at)])];
                (cp.row.map_or(0, |row| row.as_ptr() as usize), *at)
            };
            effects.order.sort_unstable_by_key(row);
        }
    }

    /// Takes the locks of one instruction.
    #[inline(always)]
    fn lock(&mut self, cp: &Cp) -> Grant {
        let request = cp.request.expect("it was issued");
        let slot = usize::from(request.slot);
        if let Some(mode) = self.registered.table_modes[slot]
            && !matches!(request.operation, Operation::Search | Operation::Update)
            && !self.lock_table(self.registered.verified.tables()[slot].id, mode)
        {
            self.effects.refused = Some(Cause::TableLock);
            return Grant::Conflict;
        }
        match cp.row {
            Some(row) => self.lock_row(row, request.operation.writes()),
            None => Grant::Held,
        }
    }

    fn lock_table(&mut self, id: u16, mode: LockMode) -> bool {
        if self.effects.held.iter().any(|held| matches!(held, Held::Table { id: known, .. } if *known == id)) {
            return true;
        }
        let Ok(stamp) = group::try_enter(&self.tables[usize::from(id)].0, mode) else { return false };
        self.effects.stamp = self.effects.stamp.max(stamp);
        self.effects.held.push(Held::Table { id, mode });
        true
    }

    #[inline(always)]
    fn lock_row(&mut self, row: RowPtr, exclusive: bool) -> Grant {
        for held in &mut self.effects.held {
            if let Held::Row { row: known, exclusive: mode } = held
                && *known == row
            {
                if exclusive && !*mode {
                    let Ok(stamp) = word::try_upgrade(row.word()) else {
                        self.effects.refused = Some(Cause::Upgrade);
                        return Grant::Conflict;
                    };
                    if self.policy == LockPolicy::WaitDie {
                        Age::publish(row.state(), self.age, true);
                    }
                    self.effects.stamp = self.effects.stamp.max(stamp);
                    *mode = true;
                }
                return Grant::Held;
            }
        }
        let locked = if exclusive { word::try_exclusive(row.word()) } else { word::try_shared(row.word()) };
        match locked {
            Ok(stamp) => {
                if self.policy == LockPolicy::WaitDie {
                    Age::publish(row.state(), self.age, exclusive);
                }
                self.effects.stamp = self.effects.stamp.max(stamp);
                self.effects.held.push(Held::Row { row, exclusive });
                Grant::Held
            }
            Err(_) if self.may_wait(row) => Grant::Wait,
            Err(_) => {
                self.effects.refused = Some(Cause::RowLock);
                Grant::Conflict
            }
        }
    }

    /// Whether waiting for this row cannot close a circle.
    fn may_wait(&self, row: RowPtr) -> bool {
        match self.policy {
            LockPolicy::NoWait => false,
            LockPolicy::WaitDie => Age::may_wait(row.state(), self.age),
            LockPolicy::Ordered => self.effects.held.iter().all(|held| match held {
                Held::Row { row: held, .. } => (held.as_ptr() as usize) < row.as_ptr() as usize,
                // Whoever wants a table does not wait for it.
                Held::Table { .. } => true,
            }),
        }
    }

    /// Lets an instruction that has its locks take effect. `None`: a conflict.
    #[inline(always)]
    fn apply(&mut self, cp: &Cp) -> Option<Answer> {
        let request = cp.request.expect("it was issued");
        let table = &self.registered.tables[usize::from(request.slot)];
        let Some(row) = cp.row else { return self.scan(table, &request) };
        let exists = row.is_live();
        Some(match request.operation {
            Operation::Search | Operation::Update if exists => Answer::Ready(row.as_ptr() as u64),
            Operation::Remove if exists => {
                // If it commits, the row becomes a tombstone; until then it only looks like one to be.
                let (key, _) = key_of(table, &request);
                self.tombstones.note(table, cp.hash, key, row);
                self.effects.removed.push(row);
                Answer::Ready(0)
            }
            Operation::Insert if exists => Answer::Missing(abort::DUPLICATE_KEY),
            Operation::Insert => {
                let schema = table.schema();
                let (start, end) = (schema.values_start() as usize, schema.row_bytes() as usize);
                // SAFETY: the row is this transaction's alone; a removed row's values may still stand there.
                unsafe { row.as_ptr().add(start).write_bytes(0, end - start) };
                set_state(row, LIVE);
                self.effects.inserted.push(row);
                Answer::Ready(row.as_ptr() as u64)
            }
            _ => Answer::Missing(abort::NOT_FOUND),
        })
    }

    fn scan(&mut self, table: &Arc<Table>, request: &Request) -> Option<Answer> {
        let (from, _) = key_of(table, request);
        let mut writer = ScanWriter::new(table, request);
        let mut conflict = false;
        table.scan(&from, request.limit as usize, writer.touched(), |row| {
            conflict = conflict || !matches!(self.lock_row(row, false), Grant::Held);
            if !conflict {
                // SAFETY: the row is locked, and the scan delivers at most as many as the limit says.
                unsafe { writer.write(row) }
            }
        });
        (!conflict).then_some(Answer::Ready(writer.rows))
    }
}

impl Effects {
    /// Makes everything that was done permanent and returns the transaction's stamp.
    #[inline(always)]
    pub(super) fn commit(&mut self, tables: &[TableLock]) -> u64 {
        for row in self.removed.drain(..) {
            set_state(row, ABSENT);
        }
        self.undo.clear();
        self.inserted.clear();
        self.release(tables, self.stamp + 1)
    }

    /// Takes everything back. `placed`: the transaction has a place in the serial order all the same, because what it
    /// read made it abort.
    pub(super) fn roll_back(&mut self, tables: &[TableLock], placed: bool) -> u64 {
        // SAFETY: every row that was written is still locked.
        unsafe { self.undo.roll_back() };
        for row in self.inserted.drain(..) {
            set_state(row, ABSENT);
        }
        self.removed.clear();
        let stamp = if placed { self.stamp + 1 } else { 0 };
        self.release(tables, stamp)
    }

    #[inline(always)]
    fn release(&mut self, tables: &[TableLock], stamp: u64) -> u64 {
        for held in self.held.drain(..) {
            match held {
                Held::Row { row, exclusive: true } => {
                    if row.state().load(Ordering::Relaxed) & !STATE_MASK != 0 {
                        Age::clear(row.state());
                    }
                    word::release_exclusive(row.word(), stamp);
                }
                Held::Row { row, exclusive: false } => word::release_shared(row.word(), stamp),
                Held::Table { id, mode } => group::leave(&tables[usize::from(id)].0, mode, stamp),
            }
        }
        self.issued.clear();
        self.stamp = 0;
        stamp
    }
}
