//! The database as one transaction sees it that runs instruction by instruction.
//!
//! ```text
//! issued --(bucket in cache)--> found --(row in cache)--> visited and answered      here
//! sent   --(the other worker)-----------------------------> answered                 in another partition
//! ```
//!
//! What is here moves on together and is visited in program order. What is elsewhere was sent when it was issued; of
//! one worker's instructions for one partition the order is kept, and between partitions it means nothing. A scan is
//! the exception, because it reads many partitions: it is made when all before it is answered, and nothing behind it is
//! sent before that.
//!
//! Rows are read and written where they lie ([`super::header`]); old bytes are kept for an abort.

use std::sync::Arc;

use lockwork_memory::{LINE, prefetch};
use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Host, Request};
use lockwork_procedure::key::Key;
use lockwork_storage::{RowPtr, Table};

use super::clock::Clock;
use super::header::{Header, stamp};
use super::message::{Mail, Message, Return};
use super::partition::{Access, Outcome, Partition};
use super::placement::Placement;
use super::scan::{Progress, Scan, Step};
use super::transaction::{Held, Place, Transaction, key_word};
use crate::conflicts::Cause;
use crate::exclusive::Undo;
use crate::interleaved::Turn;
use crate::key_images::KeyImages;
use crate::registry::Registered;

/// Lines of a row that are fetched when nothing says which ones will be touched.
const MAX_LINES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not looked up; in another partition, not sent.
    Issued,
    Found,
    Sent,
    Answered,
}

/// A DB instruction in flight.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    request: Request,
    table: u16,
    place: Place,
    stage: Stage,
    key: Key,
    hash: u64,
    /// The key image: an argument, or one of [`Flight::images`].
    image: *const u8,
    row: Option<RowPtr>,
}

impl Instruction {
    #[inline(always)]
    fn is_scan(&self) -> bool {
        self.request.operation == Operation::Scan
    }
}

/// The DB instructions of one transaction.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// Those that are not answered, and such as were answered since they were moved on last: a loop beside a slow
    /// access must not look at all that it did before, each time round.
    instructions: Vec<Instruction>,
    images: KeyImages,
    answers: Vec<Option<Answer>>,
    pub(super) scan: Scan,
    pub(super) undo: Undo,
    /// What the transaction ends with, whatever it does: a scan could not be made.
    doomed: Option<Answer>,
}

// SAFETY: addresses in the transaction's block and of rows, which mean the same on every thread.
unsafe impl Send for Flight {}

impl Flight {
    /// Makes room for this many CP registers.
    pub(super) fn widen(&mut self, cps: usize) {
        self.answers.resize(cps.max(self.answers.len()), None);
    }

    /// Forgets everything; nothing is outstanding.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.instructions.clear();
        self.images.clear();
        self.doomed = None;
        self.undo.clear();
    }

    /// Forgets what is answered.
    #[inline(always)]
    fn forget_answered(&mut self) {
        self.instructions.retain(|i| i.stage != Stage::Answered);
        if self.instructions.is_empty() {
            self.images.clear();
        }
    }

    /// What the transaction has to end with, whatever it thinks.
    #[inline(always)]
    pub(super) fn doom(&self) -> Option<Answer> {
        self.doomed
    }

    /// Takes in what another worker answers, and notes what the transaction has now.
    pub(super) fn answered(&mut self, from: usize, cp: u8, answer: Answer, held: &mut Vec<Held>) {
        if self.scan.answered(from, cp, answer) {
            if !matches!(answer, Answer::Ready(_)) {
                self.doomed = Some(answer);
            }
            return;
        }
        let sent = |i: &&mut Instruction| i.request.cp == cp && i.stage == Stage::Sent;
        let instruction = self.instructions.iter_mut().find(sent).expect("what is answered was sent");
        instruction.stage = Stage::Answered;
        let mut told = answer;
        if let Answer::Ready(row) = answer {
            // SAFETY: a row in a message is a row.
            let row = unsafe { RowPtr::from_address(row) };
            fetch(row);
            held.push(Held { row, owner: from, write: instruction.request.operation != Operation::Search });
            if instruction.request.operation == Operation::Remove {
                told = Answer::Ready(0);
            }
        }
        self.answers[usize::from(cp)] = Some(told);
    }
}

/// Brings the beginning of a row into cache.
#[inline(always)]
fn fetch(row: RowPtr) {
    (0..MAX_LINES).for_each(|line| prefetch(row.as_ptr().wrapping_add(line * LINE)));
}

/// See the module.
pub(super) struct TimestampHost<'a> {
    pub(super) placement: &'a Placement,
    pub(super) registered: &'a Registered,
    /// The worker's number, and that of the transaction's slot.
    pub(super) me: usize,
    pub(super) slot: u16,
    pub(super) turn: Turn,
    pub(super) transaction: &'a mut Transaction,
    pub(super) flight: &'a mut Flight,
    pub(super) partition: &'a mut Partition,
    pub(super) mail: &'a mut Mail,
    pub(super) clock: &'a mut Clock,
}

impl Host for TimestampHost<'_> {
    type Cp = ();

    #[inline(always)]
    fn issue(&mut self, (): &mut (), request: Request) {
        let registered = self.registered;
        let table = &registered.tables[usize::from(request.slot)];
        let number = registered.table_id(request.slot);
        let format = table.key_format();
        // SAFETY: the interpreter passes a key image inside the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, format.image_bytes()) };
        let key = format.encode(image);
        let hash = key.hash();
        let place = match request.operation {
            Operation::Scan => Place::Here,
            _ => self.placement.place(number, image, self.me),
        };
        self.flight.answers[usize::from(request.cp)] = None;
        let (mut stage, mut row) = (Stage::Issued, None);
        if let Place::There(_) = place {
            if !self.flight.scans() {
                stage = Stage::Sent;
            }
        } else if request.operation != Operation::Scan {
            if self.turn.prefetch {
                table.prefetch(hash);
            } else if self.flight.is_in_order() {
                let answer = match self.find(table, place, hash, &key, request.key) {
                    Ok(found) => {
                        (stage, row) = (Stage::Found, found);
                        self.visit(table, number, place, request.operation, &key, found)
                    }
                    Err(code) => Answer::Failed(code),
                };
                if answer != Answer::Pending {
                    self.flight.answers[usize::from(request.cp)] = Some(answer);
                    return;
                }
            }
        }
        let mut image_at = request.key;
        if self.registered.recipe.is_none() {
            // A key that is no argument may be overwritten before the look-up.
            image_at = self.flight.images.keep(image);
        }
        let instruction = Instruction { request, table: number, place, stage, key, hash, image: image_at, row };
        if stage == Stage::Sent {
            self.send(&instruction);
        }
        self.flight.instructions.push(instruction);
    }

    #[inline(always)]
    fn try_issue(&mut self, cp: &mut (), request: Request) -> bool {
        if request.operation != Operation::Scan || !self.registered.at_once {
            self.issue(cp, request);
            return true;
        }
        // What follows may change what the scan reads, so it is made before anything follows.
        let begun = |i: &Instruction| i.is_scan() && i.request.cp == request.cp && i.stage != Stage::Answered;
        if !self.flight.instructions.iter().any(begun) {
            self.issue(cp, request);
        }
        match self.move_on() {
            Answer::Pending => return false,
            Answer::Ready(_) => {}
            // It is told when it asks for the answer; what it does until then does not count.
            doom => self.flight.doomed = Some(doom),
        }
        self.flight.doomed.is_some() || self.flight.answers[usize::from(request.cp)].is_some()
    }

    #[inline(always)]
    fn answer(&mut self, _: &mut [()], cp: usize) -> Answer {
        if let Some(doom) = self.flight.doomed {
            return doom;
        }
        if self.flight.answers[cp].is_none() {
            match self.move_on() {
                Answer::Ready(_) => {}
                other => return other,
            }
        }
        self.flight.answers[cp].take().unwrap_or(Answer::Pending)
    }

    #[inline(always)]
    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        // SAFETY: as the caller's.
        unsafe { self.flight.undo.keep(row, offset, length) }
    }
}

impl Flight {
    /// Whether nothing that is here waits to be visited, so that what is issued next may be visited at once.
    #[inline(always)]
    pub(super) fn is_in_order(&self) -> bool {
        self.instructions.iter().all(|i| matches!(i.stage, Stage::Sent | Stage::Answered))
    }

    /// Whether a scan is in flight.
    #[inline(always)]
    fn scans(&self) -> bool {
        self.instructions.iter().any(|i| i.is_scan() && i.stage != Stage::Answered)
    }
}

impl TimestampHost<'_> {
    /// Sends an instruction to the worker whose partition its row is in.
    fn send(&mut self, instruction: &Instruction) {
        let Place::There(owner) = instruction.place else { unreachable!("it is sent elsewhere") };
        let &Instruction { request, table, key, hash, image, .. } = instruction;
        let operation = request.operation;
        let time = self.transaction.time(self.clock, 0);
        let stamp = stamp(time, self.transaction.pins_there(table, &key, operation == Operation::Search));
        let word = key_word(&self.registered.tables[usize::from(request.slot)], &key, hash);
        let to = Return { slot: self.slot, cp: request.cp };
        self.transaction.outstanding += 1;
        self.mail.send(owner, Message::Access { to, operation, table, stamp, word, image });
    }

    /// Moves all instructions in flight on. `Ready(0)`: as far as they go without the other workers' answers.
    #[inline(always)]
    fn move_on(&mut self) -> Answer {
        let mut found = false;
        for at in 0..self.flight.instructions.len() {
            let &Instruction { request, place, stage, key, hash, image, .. } = &self.flight.instructions[at];
            if matches!(place, Place::There(_)) || stage != Stage::Issued || request.operation == Operation::Scan {
                continue;
            }
            let registered = self.registered;
            let row = match self.find(&registered.tables[usize::from(request.slot)], place, hash, &key, image) {
                Ok(row) => row,
                Err(code) => return Answer::Failed(code),
            };
            (self.flight.instructions[at].stage, self.flight.instructions[at].row) = (Stage::Found, row);
            found = true;
            if self.turn.prefetch
                && let Some(row) = row
            {
                match &registered.recipe {
                    Some(recipe) => {
                        prefetch(row.as_ptr());
                        // SAFETY: keys of straight procedures are arguments in their blocks.
                        unsafe { recipe.prefetch_row_of(request.cp, image, row.as_ptr() as u64) }
                    }
                    None => fetch(row),
                }
            }
        }
        if found && self.pauses() {
            return Answer::Pending;
        }
        for at in 0..self.flight.instructions.len() {
            let instruction = self.flight.instructions[at];
            let answer = match (instruction.stage, instruction.request.operation) {
                (Stage::Answered | Stage::Sent, _) => continue,
                (Stage::Issued, Operation::Scan) => match self.scan(at) {
                    Answer::Pending => return Answer::Pending,
                    answer => answer,
                },
                (Stage::Issued, _) => {
                    // It was held back behind a scan.
                    self.flight.instructions[at].stage = Stage::Sent;
                    self.send(&instruction);
                    continue;
                }
                (Stage::Found, operation) => {
                    let registered = self.registered;
                    let table = &registered.tables[usize::from(instruction.request.slot)];
                    let Instruction { table: number, place, ref key, row, .. } = instruction;
                    match self.visit(table, number, place, operation, key, row) {
                        Answer::Pending => return Answer::Pending,
                        answer => answer,
                    }
                }
            };
            if matches!(answer, Answer::Conflict | Answer::Failed(_)) {
                return answer;
            }
            self.flight.instructions[at].stage = Stage::Answered;
            self.flight.answers[usize::from(instruction.request.cp)] = Some(answer);
        }
        self.flight.forget_answered();
        Answer::Ready(0)
    }

    /// Whether to let others have their turn where memory would be waited for. Not while a row is held for writing:
    /// others wait for it, which costs more.
    #[inline(always)]
    fn pauses(&self) -> bool {
        self.turn.pause && !self.transaction.holds_for_writing()
    }

    /// Finds the row of a key that is here, or makes a tombstone, or finds one that is everywhere, if there is any.
    ///
    /// # Errors
    /// Why the transaction fails.
    #[inline(always)]
    fn find(
        &mut self,
        table: &Arc<Table>,
        place: Place,
        hash: u64,
        key: &Key,
        image: *const u8,
    ) -> Result<Option<RowPtr>, u16> {
        match place {
            Place::Everywhere => Ok(table.find(hash, key)),
            _ => self.partition.find(table, hash, key, image).map(Some),
        }
    }

    /// Visits a row that is here, or everywhere. `Pending`: it has to wait.
    #[inline(always)]
    fn visit(
        &mut self,
        table: &Arc<Table>,
        number: u16,
        place: Place,
        operation: Operation,
        key: &Key,
        row: Option<RowPtr>,
    ) -> Answer {
        let Some(row) = row else { return Answer::Missing(abort::NOT_FOUND) };
        let ready = Answer::Ready(if operation == Operation::Remove { 0 } else { row.as_ptr() as u64 });
        if place == Place::Everywhere {
            return if row.is_live() { ready } else { Answer::Missing(abort::NOT_FOUND) };
        }
        let write = operation != Operation::Search;
        let header = Header::load(row);
        let mut above = 0;
        if self.transaction.time == 0 {
            // Who waits for the first row holds nothing and need not be in front of anybody.
            match header.above(write) {
                Some(time) => above = time,
                None => return Answer::Pending,
            }
        }
        let time = self.transaction.time(self.clock, above);
        let own_pins =
            if write && header.is_pinned() || header.is_full() { self.transaction.pins_here(row) } else { 0 };
        let access = Access { operation, table: number, time, own_pins, key: *key, row };
        match self.partition.visit(table, &access) {
            Outcome::Granted => {
                self.transaction.held.push(Held { row, owner: self.me, write });
                ready
            }
            Outcome::Seen => ready,
            Outcome::Missing(code) => Answer::Missing(code),
            Outcome::Wait => Answer::Pending,
            Outcome::Conflict(above, cause) => {
                self.transaction.too_late(above, cause);
                Answer::Conflict
            }
        }
    }

    /// Makes a scan, or goes on with it.
    fn scan(&mut self, at: usize) -> Answer {
        if let Some(doom) = self.flight.doomed {
            return doom;
        }
        if self.transaction.outstanding > 0 {
            // What was issued before it, or its own jobs.
            return Answer::Pending;
        }
        let Instruction { request, table: number, key, image, .. } = self.flight.instructions[at];
        let table = &self.registered.tables[usize::from(request.slot)];
        let to = Return { slot: self.slot, cp: request.cp };
        let time = self.transaction.time(self.clock, 0);
        let mut step = Step {
            table,
            number,
            time,
            from: key,
            image,
            request: &request,
            to,
            me: self.me,
            placement: self.placement,
            partition: self.partition,
            mail: self.mail,
        };
        match self.flight.scan.step(&mut step) {
            Progress::Done(rows) => Answer::Ready(rows),
            Progress::Sent(jobs) => {
                self.transaction.outstanding += jobs;
                Answer::Pending
            }
            Progress::Wait => Answer::Pending,
            Progress::Conflict(above) => {
                self.transaction.too_late(above, Cause::LateRead);
                Answer::Conflict
            }
        }
    }
}
