//! Reconnaissance: which rows a dependent transaction will touch, found by running it against the database as it is
//! before the plan, without effect.
//!
//! The program runs on a copy of its block. Rows that it only reads it sees where they are; of those that it would
//! write it gets private copies; what it would insert or remove is only written down. Nobody writes while workers
//! explore, so nothing is locked. A run ends at the first RET after which no DB instruction can follow: a transaction
//! that finds one row by another is explored with one look-up. Many are explored in turns, each turning to the next
//! where it waits for memory.
//!
//! What was found holds only as long as nobody changes what the run has read. So every access whose answer it waited
//! for *minds* changes ([`super::read_write_set::Claim::invalidated_by`]), and the planner, who sees all claims before
//! it in batch order, knows before anything runs whether the transaction will touch what was found. If somebody before
//! it may write what it has read, it is explored again when they have run (`graph.rs`). Calvin lets such a transaction
//! run, finds out, and puts it behind the others; here nothing has to be taken back and batch order stays.
//!
//! Trade-off: a row that is written counts as changed, whichever of its columns was meant, unless the run only asked
//! whether it is there.

use std::collections::VecDeque;

use lockwork_memory::prefetch;
use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Context, Host, Request, Stop, run};
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_storage::{RowPtr, Table};

use super::read_write_set::{Granules, ReadWriteSet, change};
use crate::exclusive::ScanWriter;
use crate::registry::Registered;

/// The most accesses of a transaction on reconnaissance. One that makes more is executed in order, without a plan:
/// each access is compared with those before it, and a plan of so many gains nothing.
const MAX_ACCESSES: usize = 1024;
/// Bytes of a row that are fetched before it is read.
const NEAR: usize = 128;

/// How far a DB instruction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody has waited for it.
    Issued,
    /// It is waited for; its bucket is on its way.
    Awaited,
    /// Its row, on its way.
    Found(RowPtr),
    /// A scan that has read so many rows.
    Scanned(u64),
}

/// An access that the run has made.
#[derive(Clone, Debug)]
struct Seen {
    operation: Operation,
    table: u16,
    slot: u8,
    key: Key,
    hash: u64,
    stage: Stage,
    /// Only whether there is a row was asked, not what is in it.
    only_whether: bool,
    request: Request,
}

/// What a run has found.
#[derive(Debug, Default)]
struct Sketch {
    seen: Vec<Seen>,
    /// Reconnaissance cannot find its accesses: it meets its own effects.
    unpredictable: bool,
}

/// A transaction on reconnaissance.
#[derive(Debug)]
struct Run<'a> {
    registered: &'a Registered,
    sketch: usize,
    place: usize,
    context: Context,
}

/// Memory for one transaction on reconnaissance.
#[derive(Debug, Default)]
struct Workspace {
    registers: Vec<i64>,
    cps: Vec<u32>,
    block: Vec<u64>,
    /// Private rows; the first `rows_used` are the transaction's.
    rows: Vec<Vec<u64>>,
    rows_used: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reconnaissance {
    rooms: Vec<Workspace>,
    sketches: Vec<Sketch>,
}

impl Reconnaissance {
    /// Explores these calls, many in turns, and keeps what it finds for [`Self::claim`], by their position.
    ///
    /// # Safety
    /// Each block is a block of its procedure, and nobody changes it, or any row, meanwhile.
    pub(super) unsafe fn explore(&mut self, calls: &[(&Registered, *const u8)], window: usize) {
        self.sketches.resize_with(self.sketches.len().max(calls.len()), Sketch::default);
        self.rooms.resize_with(self.rooms.len().max(window.max(1)), Workspace::default);
        let mut free: Vec<usize> = (0..self.rooms.len()).collect();
        let mut runs = VecDeque::with_capacity(free.len());
        let mut next = 0;
        loop {
            if next < calls.len()
                && let Some(place) = free.pop()
            {
                let (registered, block) = calls[next];
                // SAFETY: as the caller's.
                unsafe { self.rooms[place].enter(registered, block) };
                let sketch = &mut self.sketches[next];
                sketch.seen.clear();
                sketch.unpredictable = false;
                runs.push_back(Run { registered, sketch: next, place, context: Context::at(0) });
                next += 1;
            }
            let Some(mut run) = runs.pop_front() else { return };
            // SAFETY: as the caller's.
            if unsafe { self.rooms[run.place].go_on(&mut run, &mut self.sketches) } {
                free.push(run.place);
            } else {
                runs.push_back(run);
            }
        }
    }

    /// Claims what call number `call` was found to touch. Returns whether that is known, and its ranges not too wide.
    pub(super) fn claim(
        &self,
        call: usize,
        granules: &Granules,
        registered: &Registered,
        claims: &mut ReadWriteSet,
    ) -> bool {
        let sketch = &self.sketches[call];
        !sketch.unpredictable
            && sketch.seen.iter().all(|seen| {
                let awaited = seen.stage != Stage::Issued;
                if seen.operation == Operation::Scan {
                    let table = &registered.tables[usize::from(seen.slot)];
                    let limit = seen.request.limit as usize;
                    if limit == 0 {
                        return true;
                    }
                    let last = table.nth_key(&seen.key, limit);
                    let invalidated_by = if awaited { change::WRITES | change::WRITES_WITHIN } else { 0 };
                    return claims.scan(granules, seen.table, &seen.key, &last.unwrap_or(Key::MAX), invalidated_by);
                }
                let invalidated_by = match (awaited, seen.only_whether) {
                    (true, true) => change::KEYS,
                    (true, false) => change::WRITES,
                    (false, _) => 0,
                };
                claims.point(granules, seen.table, seen.operation, &seen.key, seen.hash, invalidated_by);
                true
            })
    }
}

impl Workspace {
    /// # Safety
    /// `block` is a block of the procedure.
    unsafe fn enter(&mut self, registered: &Registered, block: *const u8) {
        let program = &registered.program;
        self.registers.resize(program.gp_registers().max(self.registers.len()).max(1), 0);
        self.registers[0] = 0;
        self.cps.resize(program.cp_registers().max(self.cps.len()), 0);
        self.rows_used = 0;
        let words = registered.block_bytes.div_ceil(8);
        self.block.resize(words.max(self.block.len()), 0);
        // SAFETY: as the caller's; there is room.
        unsafe { self.block.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(block, registered.block_bytes) }
    }

    /// Runs until it waits for memory or is done; says whether it is done.
    ///
    /// # Safety
    /// As [`Reconnaissance::explore`].
    unsafe fn go_on(&mut self, run_: &mut Run<'_>, sketches: &mut [Sketch]) -> bool {
        let Workspace { registers, cps, block, rows, rows_used } = self;
        let sketch = &mut sketches[run_.sketch];
        let registered = run_.registered;
        let mut host = ReconnaissanceHost { registered, sketch, asked: 0, rows, rows_used };
        // SAFETY: windows and block are large enough and this transaction's own; the host answers with rows that
        // nobody writes, or with private ones where the program may write.
        let stop = unsafe {
            run(&registered.program, &mut run_.context, registers, cps, block.as_mut_ptr().cast(), &mut host)
        };
        let asked = host.asked;
        match stop {
            Stop::Waiting if registered.live[run_.context.pc as usize] => {
                let ret = &registered.verified.procedure().code[run_.context.pc as usize];
                sketch.seen[asked].only_whether = ret.a == 0;
                false
            }
            Stop::Waiting => {
                // Whatever the answer, nothing further is touched.
                sketch.seen[asked].stage = Stage::Issued;
                true
            }
            Stop::Committed | Stop::Aborted(_) => true,
            Stop::Conflict | Stop::Failed(_) => {
                sketch.unpredictable = true;
                true
            }
        }
    }
}

struct ReconnaissanceHost<'a> {
    registered: &'a Registered,
    sketch: &'a mut Sketch,
    /// The access that was asked for last.
    asked: usize,
    rows: &'a mut Vec<Vec<u64>>,
    rows_used: &'a mut usize,
}

impl Host for ReconnaissanceHost<'_> {
    type Cp = u32;

    fn issue(&mut self, cp: &mut u32, request: Request) {
        let table = &self.registered.tables[usize::from(request.slot)];
        // SAFETY: the interpreter passes a key image inside the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, table.key_format().image_bytes()) };
        let key = table.key_format().encode(image);
        let (hash, operation) = (key.hash(), request.operation);
        let id = self.registered.table_id(request.slot);
        let mut seen = Seen {
            operation,
            table: id,
            slot: request.slot,
            key,
            hash,
            stage: Stage::Issued,
            only_whether: false,
            request,
        };
        if operation == Operation::Scan {
            // What it read may be looked at before it is waited for.
            seen.stage = Stage::Scanned(self.scan(table, &seen));
        } else {
            table.prefetch(hash);
            let same = |other: &Seen| (other.table, other.key) == (id, key) && other.operation != Operation::Scan;
            let meets = |other: &Seen| same(other) && (operation.writes() || other.operation.writes());
            self.sketch.unpredictable |= self.sketch.seen.len() >= MAX_ACCESSES || self.sketch.seen.iter().any(meets);
        }
        *cp = self.sketch.seen.len() as u32;
        self.sketch.seen.push(seen);
    }

    fn answer(&mut self, cps: &mut [u32], cp: usize) -> Answer {
        self.asked = cps[cp] as usize;
        if self.sketch.unpredictable {
            return Answer::Conflict;
        }
        let registered = self.registered;
        let seen = &mut self.sketch.seen[self.asked];
        let table = &registered.tables[usize::from(seen.slot)];
        match seen.stage {
            Stage::Issued => {
                seen.stage = Stage::Awaited;
                Answer::Pending
            }
            Stage::Scanned(rows) => Answer::Ready(rows),
            Stage::Awaited => match (table.find(seen.hash, &seen.key), seen.operation) {
                (None, Operation::Insert) => self.private(None),
                (None, _) => Answer::Missing(abort::NOT_FOUND),
                (Some(_), Operation::Insert) => Answer::Missing(abort::DUPLICATE_KEY),
                (Some(_), Operation::Remove) => Answer::Ready(0),
                (Some(row), _) => {
                    (0..NEAR).step_by(64).for_each(|line| prefetch(row.as_ptr().wrapping_add(line)));
                    seen.stage = Stage::Found(row);
                    Answer::Pending
                }
            },
            Stage::Found(row) if seen.operation == Operation::Update => self.private(Some(row)),
            Stage::Found(row) => Answer::Ready(row.as_ptr() as u64),
        }
    }

    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {}
}

impl ReconnaissanceHost<'_> {
    /// A private copy of a row of the table asked for, or a new row with the key asked for.
    fn private(&mut self, row: Option<RowPtr>) -> Answer {
        let seen = &self.sketch.seen[self.asked];
        let table: &Table = &self.registered.tables[usize::from(seen.slot)];
        if *self.rows_used == self.rows.len() {
            self.rows.push(Vec::new());
        }
        let copy = &mut self.rows[*self.rows_used];
        *self.rows_used += 1;
        let stride = table.schema().stride();
        copy.clear();
        copy.resize(stride.div_ceil(8), 0);
        let start = copy.as_mut_ptr().cast::<u8>();
        // SAFETY: rows are as long as their table's stride and hold their key behind the header; nobody writes the row,
        // and the key image is inside the copy of the block.
        unsafe {
            match row {
                Some(row) => start.copy_from_nonoverlapping(row.as_ptr(), stride),
                None => {
                    let image = std::slice::from_raw_parts(seen.request.key, table.key_format().image_bytes());
                    if table.key_format().encode(image) != seen.key {
                        // Overwritten since the INSERT.
                        return Answer::Conflict;
                    }
                    start.add(ROW_HEADER_BYTES as usize).copy_from_nonoverlapping(image.as_ptr(), image.len());
                }
            }
        }
        Answer::Ready(start as u64)
    }

    /// Makes a scan into the copy of the block, unless the transaction itself has changed what it would read.
    fn scan(&mut self, table: &Table, seen: &Seen) -> u64 {
        let own = |other: &Seen| {
            other.table == seen.table && matches!(other.operation, Operation::Insert | Operation::Update)
        };
        if self.sketch.seen.iter().any(own) {
            self.sketch.unpredictable = true;
            return 0;
        }
        let mut writer = ScanWriter::new(table, &seen.request);
        table.scan(&seen.key, seen.request.limit as usize, writer.touched(), |row| {
            // SAFETY: nobody writes rows; there are no more than the limit.
            unsafe { writer.write(row) }
        });
        writer.rows
    }
}

#[cfg(test)]
mod tests {
    use lockwork_memory::Pages;
    use lockwork_procedure::assembly::assemble;
    use lockwork_procedure::block::Batch;
    use lockwork_storage::Database;

    use super::*;
    use crate::conformance::accounts;

    /// Searches `rows` rows, one after the other, and updates the next one.
    const SWEEP: &str = "procedure sweep
        table accounts
        param rows: i64
        scratch key: i64
            load    r1, [rows]
            mov     r2, 0
        again:
            cmp     r2, r1
            bge     done
            store   r2, [key]
            search  c0, accounts, [key]
            ret     r3, c0, skip
        skip:
            add     r2, r2, 1
            cmp     r2, 5000
            bl      again
        done:
            store   r2, [key]
            update  c1, accounts, [key]
            ret     r4, c1, none
            storer  r2, r4[accounts.balance]
        none:
            commit";

    #[test]
    fn a_transaction_of_very_many_accesses_is_not_explored_to_its_end() {
        let mut database = Database::new(Pages::Plain);
        database.create_table(accounts(false), 16).unwrap();
        let tables = [accounts(false)];
        let registered = Registered::of(assemble(SWEEP, tables.as_slice()).unwrap().procedure, &database).unwrap();
        let mut batch = Batch::new(registered.block_bytes as u32, 3).unwrap();
        for rows in [20_i64, 5000, 3000] {
            batch.push(0).unwrap().bytes()[32..40].copy_from_slice(&rows.to_le_bytes());
        }
        let calls: Vec<_> = (0..3).map(|at| (&registered, batch.block(at).bytes().as_ptr())).collect();
        let mut reconnaissance = Reconnaissance::default();
        // SAFETY: they are blocks of the procedure, and nothing else runs.
        unsafe { reconnaissance.explore(&calls, 16) };
        let made = |at: usize| (reconnaissance.sketches[at].unpredictable, reconnaissance.sketches[at].seen.len());
        assert!(!made(0).0 && made(0).1 <= 21, "{:?}", made(0));
        for at in [1, 2] {
            assert_eq!(made(at), (true, MAX_ACCESSES + 1));
        }
    }
}
