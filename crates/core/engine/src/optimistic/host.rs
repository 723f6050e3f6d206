//! The database as one optimistic transaction sees it.
//!
//! ```text
//! issued  --(bucket in cache)-->  found  --(row in cache)-->  read and answered
//! ```
//!
//! All DB instructions that a transaction has in flight move on together and are answered in program order. Nothing is
//! held meanwhile: a transaction reads its rows in the last step before it goes on, so that between its first read and
//! its commit, unless it issues more, it is not set aside.
//!
//! Handles are addresses of private copies (`copies.rs`); what the interpreter writes, it writes there, so nothing has
//! to be kept for an abort. A scan is made when it is issued, after all that was issued before it: its rows go to the
//! block as they are then, not as the procedure changes them before it asks.

use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Host, Request};
use lockwork_procedure::key::Key;
use lockwork_storage::{ABSENT, Inserted, RowPtr, Table};

use super::copies::Layout;
use super::transaction::{Transaction, Unread};
use crate::exclusive::ScanWriter;
use crate::interleaved::Turn;
use crate::key_images::KeyImages;
use crate::recipe::Recipe;
use crate::registry::Registered;
use crate::tombstones::Tombstones;

/// A DB instruction in flight.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    operation: Operation,
    slot: u8,
    cp: u8,
    /// Where the key image is, in the block or in [`InFlight::images`].
    key: *const u8,
    hash: u64,
    /// Its row, when it is found.
    row: Option<RowPtr>,
    answered: bool,
    layout: Layout,
    /// Its number among the transaction's DB instructions.
    number: usize,
    /// Parts of the row that the procedure will touch, and those that it will write.
    parts: (u64, u64),
}

/// The DB instructions of one transaction.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    instructions: Vec<Instruction>,
    images: KeyImages,
    /// How many were issued since the transaction began.
    issued: usize,
    answers: Vec<Option<Answer>>,
    /// The transaction cannot commit, whatever it does.
    doomed: bool,
}

// SAFETY: addresses in the transaction's block and of rows, which mean the same on every thread.
unsafe impl Send for InFlight {}

impl InFlight {
    /// Makes room for this many CP registers.
    pub(super) fn widen(&mut self, cps: usize) {
        self.answers.resize(cps.max(self.answers.len()), None);
    }

    /// Forgets everything.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.instructions.clear();
        self.images.clear();
        (self.issued, self.doomed) = (0, false);
    }

    /// Whether the transaction has met a conflict that it was not told of.
    #[inline(always)]
    pub(super) fn is_doomed(&self) -> bool {
        self.doomed
    }
}

pub(super) struct OptimisticHost<'a> {
    pub(super) registered: &'a Registered,
    pub(super) block: *mut u8,
    pub(super) turn: Turn,
    pub(super) transaction: &'a mut Transaction,
    pub(super) in_flight: &'a mut InFlight,
    pub(super) tombstones: &'a mut Tombstones,
}

impl Host for OptimisticHost<'_> {
    type Cp = ();

    #[inline(always)]
    fn issue(&mut self, (): &mut (), request: Request) {
        let table = &self.registered.tables[usize::from(request.slot)];
        if request.operation == Operation::Scan {
            let answer = self.scan(table, &request);
            self.in_flight.issued += 1;
            self.in_flight.answers[usize::from(request.cp)] = Some(answer);
            return;
        }
        let mut instruction = Instruction {
            operation: request.operation,
            slot: request.slot,
            cp: request.cp,
            key: request.key,
            hash: 0,
            row: None,
            answered: false,
            layout: Layout::of(table.schema()),
            number: self.in_flight.issued,
            parts: (0, 0),
        };
        if self.registered.recipe.is_none() {
            // A key that is no argument may be overwritten before the look-up.
            instruction.key = self.in_flight.images.keep(instruction.key(table).1);
        }
        instruction.hash = instruction.key(table).0.hash();
        if self.turn.prefetch {
            table.prefetch(instruction.hash);
        }
        self.in_flight.issued += 1;
        self.in_flight.instructions.push(instruction);
        self.in_flight.answers[usize::from(request.cp)] = None;
    }

    #[inline(always)]
    fn answer(&mut self, _: &mut [()], cp: usize) -> Answer {
        if self.in_flight.answers[cp].is_none() {
            let moved = self.move_on(self.turn.pause);
            if moved != Answer::Ready(0) {
                return moved;
            }
        }
        self.in_flight.answers[cp].take().expect("all that was issued is answered")
    }

    #[inline(always)]
    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {}
}

impl Instruction {
    /// Its key, and the key's image.
    #[inline(always)]
    fn key<'a>(&self, table: &Table) -> (Key, &'a [u8]) {
        let format = table.key_format();
        // SAFETY: the interpreter passed a key image; arguments are never written, and what is none was kept.
        let image = unsafe { std::slice::from_raw_parts(self.key, format.image_bytes()) };
        (format.encode(image), image)
    }
}

impl OptimisticHost<'_> {
    /// Moves all instructions in flight on, and answers `Ready(0)` when all are answered. `pause`: come back when what
    /// was found is in cache.
    #[inline(always)]
    fn move_on(&mut self, pause: bool) -> Answer {
        let mut found = false;
        for at in 0..self.in_flight.instructions.len() {
            if self.in_flight.instructions[at].row.is_none() {
                if let Err(code) = self.find(at) {
                    return Answer::Failed(code);
                }
                found = true;
            }
        }
        if found && pause {
            return Answer::Pending;
        }
        for at in 0..self.in_flight.instructions.len() {
            if self.in_flight.instructions[at].answered {
                // Before one that was busy.
                continue;
            }
            match self.apply(at) {
                Ok(answer) => {
                    let instruction = &mut self.in_flight.instructions[at];
                    instruction.answered = true;
                    self.in_flight.answers[usize::from(instruction.cp)] = Some(answer);
                }
                Err(Unread::Busy) => {
                    std::thread::yield_now();
                    return Answer::Pending;
                }
                Err(Unread::Changed) => return Answer::Conflict,
                Err(Unread::Memory) => return Answer::Failed(abort::OUT_OF_MEMORY),
            }
        }
        self.in_flight.instructions.clear();
        self.in_flight.images.clear();
        Answer::Ready(0)
    }

    /// Finds the row of a key, or the tombstone that stands for it.
    #[inline(always)]
    fn find(&mut self, at: usize) -> Result<(), u16> {
        let instruction = &mut self.in_flight.instructions[at];
        let table = &self.registered.tables[usize::from(instruction.slot)];
        let (key, image) = instruction.key(table);
        let row = match table.find(instruction.hash, &key) {
            Some(row) => row,
            None => match table.insert(instruction.hash, &key, image, ABSENT) {
                Ok(Inserted::New(row)) => {
                    self.tombstones.note(table, instruction.hash, key, row);
                    row
                }
                Ok(Inserted::Exists(row)) => row,
                Err(_) => return Err(abort::OUT_OF_MEMORY),
            },
        };
        let (layout, number) = (instruction.layout, instruction.number);
        instruction.row = Some(row);
        instruction.parts = match &self.registered.recipe {
            // SAFETY: the block is one of the procedure's, whose DB instructions are issued in the recipe's order.
            Some(recipe) => unsafe { parts(recipe, number, self.block, layout) },
            None if matches!(instruction.operation, Operation::Search | Operation::Update) => {
                (layout.all(), layout.all())
            }
            None => (0, 0),
        };
        if self.turn.prefetch {
            layout.prefetch(row.as_ptr(), instruction.parts.0 | 1);
        }
        Ok(())
    }

    /// Reads the row of an instruction and lets it take effect.
    #[inline(always)]
    fn apply(&mut self, at: usize) -> Result<Answer, Unread> {
        let instruction = &self.in_flight.instructions[at];
        let table = &self.registered.tables[usize::from(instruction.slot)];
        let row = instruction.row.expect("it was found");
        let (parts, written) = instruction.parts;
        let transaction = &mut *self.transaction;
        let number = transaction.read(row, instruction.layout, parts)?;
        let exists = transaction.entry(number).exists();
        Ok(match instruction.operation {
            Operation::Search if exists => Answer::Ready(transaction.open(number, 0)),
            Operation::Update if exists => Answer::Ready(transaction.open(number, written)),
            Operation::Remove if exists => {
                let (key, _) = instruction.key(table);
                transaction.remove(number, table, instruction.hash, key);
                Answer::Ready(0)
            }
            Operation::Insert if exists => Answer::Missing(abort::DUPLICATE_KEY),
            Operation::Insert => Answer::Ready(transaction.insert(number)?),
            _ => Answer::Missing(abort::NOT_FOUND),
        })
    }

    /// Makes a scan, after all that was issued before it.
    fn scan(&mut self, table: &Table, request: &Request) -> Answer {
        let answer = match self.move_on(false) {
            Answer::Ready(_) => self.scan_now(table, request),
            other => other,
        };
        // The scan's answer is asked for only after those before it, which would not come now.
        self.in_flight.doomed |= matches!(answer, Answer::Pending | Answer::Conflict);
        if answer == Answer::Pending { Answer::Conflict } else { answer }
    }

    fn scan_now(&mut self, table: &Table, request: &Request) -> Answer {
        let format = table.key_format();
        // SAFETY: the interpreter passes a key image inside the block.
        let from = format.encode(unsafe { std::slice::from_raw_parts(request.key, format.image_bytes()) });
        let mut writer = ScanWriter::new(table, request);
        let (source, limit) = (writer.source(), request.limit as usize);
        // SAFETY: the bytes are good, and there are at most as many rows as the limit says.
        let write = |row: *const u8| unsafe { writer.write_image(row) };
        match self.transaction.scan((table, request.slot), from, limit, source, write) {
            Ok(()) => Answer::Ready(writer.rows),
            Err(Unread::Busy | Unread::Changed) => {
                std::thread::yield_now();
                Answer::Conflict
            }
            Err(Unread::Memory) => Answer::Failed(abort::OUT_OF_MEMORY),
        }
    }
}

/// The parts of its row that access `number` of a recipe touches, and those that it writes.
///
/// # Safety
/// `block` is a block of the recipe's procedure.
#[inline(always)]
unsafe fn parts(recipe: &Recipe, number: usize, block: *const u8, layout: Layout) -> (u64, u64) {
    let (mut touched, mut written) = (0, 0);
    let note = |start, length, write| {
        let parts = layout.parts(start, length);
        touched |= parts;
        written |= if write { parts } else { 0 };
    };
    // SAFETY: as the caller's.
    unsafe { recipe.touches(number, block, note) };
    (touched, written)
}
