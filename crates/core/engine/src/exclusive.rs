//! Execution of a transaction that has every row it touches for itself.
//!
//! The serial engine has the whole database for itself, the deterministic engines have made sure of it by planning.
//! Here a DB instruction takes effect at once, and an abort puts the old bytes back. A planner that has looked
//! rows up already passes them as hints.
//!
//! Invariant: effects of DB instructions and writes are taken back in reverse order; removals take effect at commit.

use std::ops::Range;
use std::sync::Arc;

use lockwork_procedure::access::Operation;
use lockwork_procedure::block::{BlockMut, HEADER_BYTES, Status, abort};
use lockwork_procedure::interpreter::{Answer, Context, Host, Request, Stop, run};
use lockwork_procedure::isa::scan_source;
use lockwork_procedure::key::Key;
use lockwork_storage::{Inserted, LIVE, RowPtr, Table};

use crate::recipe::Lines;
use crate::registry::{Registered, Registry};
use crate::tally::Tally;

/// The bytes that writes replaced, newest last.
#[derive(Debug, Default)]
pub struct Undo {
    entries: Vec<(*mut u8, u32, u32)>,
    bytes: Vec<u8>,
}

// SAFETY: the addresses are of rows that the transaction holds; they mean the same on every thread.
unsafe impl Send for Undo {}

impl Undo {
    /// Keeps `length` bytes of `row` from `offset` on.
    ///
    /// # Safety
    /// They are readable, and writable until [`Self::roll_back`] or [`Self::clear`].
    pub unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        // SAFETY: as the caller's.
        let bytes = unsafe { std::slice::from_raw_parts(row.add(offset as usize), length as usize) };
        self.entries.push((row, offset, length));
        self.bytes.extend_from_slice(bytes);
    }

    /// Puts all bytes back.
    ///
    /// # Safety
    /// The rows are still held for writing.
    pub unsafe fn roll_back(&mut self) {
        // SAFETY: as the caller's.
        unsafe { self.roll_back_to(0) }
    }

    /// How many times something was kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Puts back what was kept since there were `len` of it.
    ///
    /// # Safety
    /// The rows are still held for writing.
    pub(crate) unsafe fn roll_back_to(&mut self, len: usize) {
        while self.entries.len() > len
            && let Some((row, offset, length)) = self.entries.pop()
        {
            let start = self.bytes.len() - length as usize;
            // SAFETY: the bytes were readable and writable when they were kept, and still are.
            unsafe { row.add(offset as usize).copy_from(self.bytes.as_ptr().add(start), length as usize) };
            self.bytes.truncate(start);
        }
    }

    /// Forgets them.
    #[inline]
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }
}

/// A key that a transaction inserted or is going to remove.
#[derive(Debug)]
struct Touched {
    table: Arc<Table>,
    hash: u64,
    key: Key,
}

/// What one worker needs to execute transactions: register windows, undo, tally.
#[derive(Debug, Default)]
pub struct Executor {
    registers: Vec<i64>,
    cps: Vec<Option<Answer>>,
    undo: Undo,
    inserted: Vec<Touched>,
    removed: Vec<Touched>,
    /// Rows of the transaction whose moves are being made.
    rows: Vec<u64>,
    /// What became of the transactions executed.
    pub tally: Tally,
}

struct ExclusiveHost<'a> {
    registered: &'a Registered,
    hints: &'a [u64],
    issued: usize,
    undo: &'a mut Undo,
    inserted: &'a mut Vec<Touched>,
    removed: &'a mut Vec<Touched>,
}

impl Host for ExclusiveHost<'_> {
    type Cp = Option<Answer>;

    #[inline(always)]
    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        let hint = self.hints.get(self.issued).copied().unwrap_or(0);
        self.issued += 1;
        *cp = Some(if hint != 0 { Answer::Ready(hint) } else { self.look_up(request) });
    }

    #[inline(always)]
    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        cps[cp].expect("the verifier proved that a DB instruction precedes its RET")
    }

    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        // SAFETY: as the caller's.
        unsafe { self.undo.keep(row, offset, length) }
    }
}

impl ExclusiveHost<'_> {
    fn look_up(&mut self, request: Request) -> Answer {
        let table = &self.registered.tables[usize::from(request.slot)];
        // SAFETY: the interpreter passes a key image inside the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, table.key_format().image_bytes()) };
        let key = table.key_format().encode(image);
        let hash = key.hash();
        match request.operation {
            Operation::Search | Operation::Update => match table.find(hash, &key) {
                Some(row) => Answer::Ready(row.as_ptr() as u64),
                None => Answer::Missing(abort::NOT_FOUND),
            },
            Operation::Insert => match table.insert(hash, &key, image, LIVE) {
                Ok(Inserted::New(row)) => {
                    self.inserted.push(Touched { table: table.clone(), hash, key });
                    Answer::Ready(row.as_ptr() as u64)
                }
                Ok(Inserted::Exists(_)) => Answer::Missing(abort::DUPLICATE_KEY),
                Err(_) => Answer::Failed(abort::OUT_OF_MEMORY),
            },
            Operation::Remove => match table.find(hash, &key) {
                Some(_) => {
                    self.removed.push(Touched { table: table.clone(), hash, key });
                    Answer::Ready(0)
                }
                None => Answer::Missing(abort::NOT_FOUND),
            },
            Operation::Scan => Answer::Ready(scan(table, &key, &request)),
        }
    }
}

/// Copies the rows of a scan into the block and returns how many there were. The transaction has them for itself.
pub(crate) fn scan(table: &Table, from: &Key, request: &Request) -> u64 {
    let mut writer = ScanWriter::new(table, request);
    table.scan(from, request.limit as usize, writer.touched(), |row| {
        // SAFETY: the transaction has the table's rows for itself.
        unsafe { writer.write(row) }
    });
    writer.rows
}

/// Writes the rows of a scan one after the other.
#[derive(Debug)]
pub struct ScanWriter {
    at: *mut u8,
    stride: usize,
    offset: usize,
    length: usize,
    /// Rows written.
    pub rows: u64,
}

impl ScanWriter {
    /// A writer into the buffer of `request`, a scan of `table`.
    #[must_use]
    pub fn new(table: &Table, request: &Request) -> Self {
        let column = usize::from(request.column).checked_sub(1);
        let (offset, length) = scan_source(table.schema(), column);
        let stride = length.next_multiple_of(8) as usize;
        Self { at: request.buffer, stride, offset: offset as usize, length: length as usize, rows: 0 }
    }

    /// Which bytes of a row it reads, for [`Table::scan`].
    #[must_use]
    pub fn touched(&self) -> Range<usize> {
        self.offset..self.offset + self.length
    }

    /// Appends one row.
    ///
    /// # Safety
    /// The row is a row of the table and held for reading; fewer rows than the request's limit have been written.
    #[inline]
    pub unsafe fn write(&mut self, row: RowPtr) {
        // SAFETY: as the caller's.
        unsafe { self.write_image(row.as_ptr()) }
    }

    /// Which bytes of each row it takes, as (offset, length).
    #[inline]
    #[must_use]
    pub fn source(&self) -> (usize, usize) {
        (self.offset, self.length)
    }

    /// Appends one row that lies at `row`, in the table or elsewhere.
    ///
    /// # Safety
    /// The bytes that [`Self::source`] names are readable there and nobody writes them; fewer rows than the request's
    /// limit have been written.
    #[inline]
    pub unsafe fn write_image(&mut self, row: *const u8) {
        // SAFETY: the verifier proved that the buffer holds as many rows as the limit says.
        unsafe {
            self.at.copy_from_nonoverlapping(row.add(self.offset), self.length);
            self.at = self.at.add(self.stride);
        }
        self.rows += 1;
    }
}

impl Executor {
    /// Makes the windows wide enough for every procedure.
    pub fn prepare(&mut self, registry: &Registry) {
        let (gp, cp) = registry.widest_windows();
        self.registers.resize(gp.max(self.registers.len()), 0);
        self.cps.resize(cp.max(self.cps.len()), None);
        self.tally = Tally::default();
    }

    /// Executes one block the shortest way: by the moves of its recipe where they are all of it, else by its program.
    /// Between long moves it fetches from `lines`.
    ///
    /// # Safety
    /// As [`Self::execute`].
    #[inline(always)]
    pub unsafe fn call(
        &mut self,
        registered: &Registered,
        block: *mut u8,
        sequence: u64,
        hints: &[u64],
        lines: &mut Lines,
    ) {
        // SAFETY: as the caller's; the recipe is the procedure's.
        unsafe {
            if let Some(recipe) = registered.recipe.as_ref().filter(|recipe| recipe.is_complete())
                && recipe.passes(block)
            {
                let count = recipe.len();
                let rows = if hints.len() < count {
                    self.rows.clear();
                    let find = |number| recipe.find(number, block, recipe.hash(number, block), false);
                    self.rows.extend((0..count).map(find));
                    &self.rows
                } else {
                    &hints[..count]
                };
                if rows.iter().all(|&row| row != 0) {
                    recipe.make_all(block, rows, lines);
                    self.tally.committed += 1;
                    return close(block, Status::Committed, 0, sequence, 0);
                }
            }
            self.execute(registered, block, sequence, hints);
        }
    }

    /// Executes one block from its first instruction to its outcome. `hints` are addresses of the rows of its DB
    /// instructions in the order of their issue; zero, or the end of the list, means "look it up".
    ///
    /// # Safety
    /// Nobody else touches the block, nor any row in the transaction's access set but to read what it only reads; a
    /// hint is the row that a look-up would find. The executor was [prepared](Self::prepare) for the registry.
    #[inline]
    pub unsafe fn execute(&mut self, registered: &Registered, block: *mut u8, sequence: u64, hints: &[u64]) {
        let mut host = ExclusiveHost {
            registered,
            hints,
            issued: 0,
            undo: &mut self.undo,
            inserted: &mut self.inserted,
            removed: &mut self.removed,
        };
        let mut context = Context::at(0);
        // SAFETY: the windows are wide enough; block and rows are the caller's promise.
        let stop =
            unsafe { run(&registered.program, &mut context, &mut self.registers, &mut self.cps, block, &mut host) };
        match stop {
            Stop::Committed => {
                // SAFETY: as above.
                unsafe { registered.program.run_commit_handler(&mut self.registers, block) };
                self.commit();
                self.tally.committed += 1;
                // SAFETY: the block is ours.
                unsafe { close(block, Status::Committed, 0, sequence, 0) };
            }
            Stop::Aborted(code) => {
                // SAFETY: as above.
                unsafe { self.abort(registered, block, Status::Aborted, code, sequence) }
            }
            Stop::Failed(code) => {
                // SAFETY: as above.
                unsafe { self.abort(registered, block, Status::Failed, code, sequence) }
            }
            Stop::Waiting | Stop::Conflict => unreachable!("an exclusive host neither waits nor conflicts"),
        }
    }

    /// Executes one fragment of a separable procedure, whose block is closed already.
    ///
    /// # Safety
    /// As [`Self::execute`]; `row` is the fragment's row, and the arguments pass the recipe's checks.
    #[inline(always)]
    pub unsafe fn call_fragment(&mut self, registered: &Registered, fragment: usize, block: *mut u8, row: u64) {
        let recipe = registered.known();
        // SAFETY: as the caller's.
        unsafe {
            if recipe.is_complete() {
                recipe.make(fragment, block, row);
            } else {
                self.execute_fragment(registered, fragment, block, row);
            }
        }
    }

    unsafe fn execute_fragment(&mut self, registered: &Registered, fragment: usize, block: *mut u8, row: u64) {
        let program = &registered.fragments[fragment];
        let hints = [row];
        let mut host = ExclusiveHost {
            registered,
            hints: &hints,
            issued: 0,
            undo: &mut self.undo,
            inserted: &mut self.inserted,
            removed: &mut self.removed,
        };
        let mut context = Context::at(0);
        // SAFETY: as the caller's.
        let stop = unsafe { run(program, &mut context, &mut self.registers, &mut self.cps, block, &mut host) };
        assert_eq!(stop, Stop::Committed, "a fragment cannot abort");
    }

    #[inline]
    fn commit(&mut self) {
        self.undo.clear();
        self.inserted.clear();
        for touched in self.removed.drain(..) {
            // SAFETY: the transaction has the row for itself. A second removal of the key finds nothing.
            unsafe { touched.table.remove(touched.hash, &touched.key) };
        }
    }

    #[cold]
    unsafe fn abort(&mut self, registered: &Registered, block: *mut u8, status: Status, code: u16, sequence: u64) {
        self.removed.clear();
        // SAFETY: the rows are still the transaction's; block as the caller's.
        unsafe {
            self.undo.roll_back();
            for touched in self.inserted.drain(..).rev() {
                touched.table.remove(touched.hash, &touched.key);
            }
            give_up(registered, &mut self.registers, block, (status, code), (sequence, 0), &mut self.tally);
        }
    }
}

/// Ends a call that did not commit: zeroes its results and lets its abort handler write them, closes its block with
/// `outcome` (status and abort code) and `place` (sequence number and serial stamp), and counts it.
///
/// # Safety
/// `block` is a block of the procedure and this thread's alone; `registers` is its window.
#[cold]
pub unsafe fn give_up(
    registered: &Registered,
    registers: &mut [i64],
    block: *mut u8,
    outcome: (Status, u16),
    place: (u64, u64),
    tally: &mut Tally,
) {
    let (start, length) = registered.results;
    // SAFETY: the results lie in the block; the rest as the caller's.
    unsafe {
        block.add(start).write_bytes(0, length);
        registered.program.run_abort_handler(registers, block);
        close(block, outcome.0, outcome.1, place.0, place.1);
    }
    tally.count(outcome.0, outcome.1);
}

/// Writes outcome, sequence number and serial stamp into a block's header.
///
/// # Safety
/// `block` is a block and this thread's alone.
#[inline(always)]
pub unsafe fn close(block: *mut u8, status: Status, code: u16, sequence: u64, serial: u64) {
    // SAFETY: the header belongs to the block.
    let mut block = BlockMut::new(unsafe { std::slice::from_raw_parts_mut(block, HEADER_BYTES as usize) });
    block.set_outcome(status, code);
    block.set_sequence(sequence);
    block.set_serial(serial);
}
