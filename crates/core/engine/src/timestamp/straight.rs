//! The short way of transactions that look rows up by their arguments, and neither insert, remove nor scan.
//!
//! All look-ups start at once, here by prefetching and elsewhere by messages. When all rows are known and near, the
//! transaction runs from beginning to end in one step of its worker, by the moves of its recipe where those are all
//! that it does ([`crate::exclusive`]). Rows that are here are judged in that same step: nobody comes in between, so
//! they are stamped, but neither pinned nor marked dirty. A transaction that is here altogether takes its time in that
//! step too, above all that it meets: it never comes too late, and only waits for rows that others have.
//!
//! Whatever is not as usual (a missing row, arguments that fail a check) goes the long way from its beginning
//! (`host.rs`). Invariant: the same rows are judged by the same rules as on the long way.

use lockwork_procedure::access::{AccessSet, Operation};
use lockwork_procedure::block::{BlockMut, HEADER_BYTES};
use lockwork_procedure::interpreter::Answer;
use lockwork_storage::RowPtr;

use super::bundle::{Bundle, Bundles, Wanted};
use super::clock::Clock;
use super::header::{Ending, Header, Verdict};
use super::message::{Mail, Message};
use super::placement::Placement;
use super::transaction::{Place, Transaction, key_word};
use crate::conflicts::Cause;
use crate::exclusive::Executor;
use crate::interleaved::{Stage, Turn};
use crate::recipe::{Lines, Recipe};
use crate::registry::Registered;

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Come back later.
    Waiting,
    /// It has ended, and its block is closed.
    Done,
    /// It came too late.
    Conflict,
    /// It has to go the long way.
    Left,
}

/// A transaction on the short way.
#[derive(Debug, Default)]
pub(super) struct Straight {
    stage: Stage,
    /// By access: what finds the row, then its address.
    words: Vec<u64>,
    places: Vec<Place>,
    /// What is wanted of other partitions.
    bundles: Vec<Bundle>,
    /// What another worker answered that is no grant, or that a row is missing here.
    refused: Option<Answer>,
}

/// What a step works on.
pub(super) struct Work<'a> {
    pub(super) placement: &'a Placement,
    pub(super) registered: &'a Registered,
    pub(super) block: *mut u8,
    pub(super) sequence: u64,
    pub(super) me: usize,
    pub(super) slot: u16,
    pub(super) turn: Turn,
    pub(super) transaction: &'a mut Transaction,
    pub(super) mail: &'a mut Mail,
    pub(super) clock: &'a mut Clock,
    pub(super) executor: &'a mut Executor,
    pub(super) lines: &'a mut Lines,
    pub(super) bundles: &'a mut Bundles,
}

impl Work<'_> {
    /// Fetches the lines that were collected, if it is the turn to. Returns whether to come back when they are near.
    #[inline(always)]
    fn fetches_and_pauses(&mut self) -> bool {
        self.turn.fetch(self.lines);
        self.turn.pause
    }
}

impl Straight {
    /// Whether the transaction goes the long way.
    #[inline(always)]
    pub(super) fn has_left(&self) -> bool {
        self.stage == Stage::Left
    }

    /// Whether nothing is left to do before other workers answer.
    #[inline(always)]
    pub(super) fn is_found(&self) -> bool {
        self.stage == Stage::Found
    }

    /// Lets the transaction begin again.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        (self.stage, self.refused) = (Stage::New, None);
    }

    /// Takes in that worker `from` grants all that it was asked for, and collects what the transaction will touch.
    ///
    /// # Safety
    /// `block` is the transaction's, a block of the procedure.
    #[inline(always)]
    pub(super) unsafe fn fetched(
        &mut self,
        from: usize,
        recipe: &Recipe,
        block: *const u8,
        lines: &mut Lines,
        pool: &mut Bundles,
    ) {
        let bundle = self.bundles.iter().find(|bundle| bundle.owner == from).expect("what is answered was sent");
        pool.answered(bundle);
        let mut wanted = bundle.wanted.iter();
        for (number, _) in self.places.iter().enumerate().filter(|(_, place)| **place == Place::There(from)) {
            let row = wanted.next().expect("each is in its bundle").row;
            self.words[number] = row;
            // SAFETY: as the caller's.
            unsafe { recipe.collect_row(number, block, row, lines) }
        }
    }

    /// Takes in that worker `from` does not grant what it was asked for.
    #[cold]
    pub(super) fn refused(&mut self, from: usize, answer: Answer, pool: &mut Bundles) {
        let at = self.bundles.iter().position(|bundle| bundle.owner == from).expect("what is answered was sent");
        let bundle = self.bundles.swap_remove(at);
        pool.answered(&bundle);
        pool.refused(bundle);
        if self.refused != Some(Answer::Conflict) {
            // A conflict weighs more than a missing row, which may not be missing for the next time.
            self.refused = Some(answer);
        }
    }

    /// Lets everything go that was granted. Nothing is outstanding.
    #[inline(always)]
    fn let_go(&mut self, work: &mut Work<'_>, ending: Ending) {
        let time = work.transaction.time;
        for bundle in self.bundles.drain(..) {
            let (count, wanted) = (bundle.wanted.len() as u16, bundle.wanted.as_ptr());
            work.mail.send(bundle.owner, Message::Release { count, time, wanted, ending });
            work.bundles.released(bundle);
        }
    }

    /// Goes on.
    ///
    /// # Safety
    /// `work.block` is a block of the procedure, which is straight, and this thread's alone; the executor is prepared
    /// for the registry.
    #[inline(always)]
    pub(super) unsafe fn step(&mut self, work: &mut Work<'_>) -> Step {
        let recipe = work.registered.known();
        let AccessSet::Straight(straight) = &work.registered.access else { unreachable!("it is straight") };
        // SAFETY: block as the caller's; words go from one stage to the next unchanged.
        unsafe {
            if self.stage == Stage::New {
                if !recipe.passes(work.block) {
                    self.stage = Stage::Left;
                    return Step::Left;
                }
                self.start(work);
                self.stage = Stage::Started;
                if work.fetches_and_pauses() {
                    return Step::Waiting;
                }
            }
            if self.stage == Stage::Started {
                for (number, place) in self.places.iter().enumerate() {
                    if matches!(place, Place::There(_)) {
                        continue;
                    }
                    let row = recipe.find(number, work.block, self.words[number], false);
                    self.words[number] = row;
                    if row == 0 {
                        self.refused = Some(Answer::Missing(0));
                        continue;
                    }
                    work.lines.push(row);
                    recipe.collect_row(number, work.block, row, work.lines);
                }
                self.stage = Stage::Found;
                if work.fetches_and_pauses() {
                    return Step::Waiting;
                }
            }
            if work.transaction.outstanding > 0 {
                return Step::Waiting;
            }
            match self.refused {
                None => {}
                Some(Answer::Conflict) => return self.leave(work, Step::Conflict),
                Some(_) => return self.leave(work, Step::Left),
            }
            let writes = straight.accesses.iter().map(|access| access.operation == Operation::Update);
            match self.judge(work, writes.clone()) {
                Ok(()) => {}
                Err(Step::Waiting) => return Step::Waiting,
                Err(step) => return self.leave(work, step),
            }
            self.execute(work, writes);
        }
        Step::Done
    }

    /// Ends the short way without having run.
    #[cold]
    fn leave(&mut self, work: &mut Work<'_>, step: Step) -> Step {
        self.let_go(work, Ending::Abort);
        if step == Step::Left {
            self.stage = Stage::Left;
        }
        step
    }

    /// Starts all look-ups.
    ///
    /// # Safety
    /// As for [`Self::step`].
    #[inline(always)]
    unsafe fn start(&mut self, work: &mut Work<'_>) {
        let (registered, block) = (work.registered, work.block);
        let recipe = registered.known();
        let AccessSet::Straight(straight) = &registered.access else { unreachable!("it is straight") };
        self.words.clear();
        self.places.clear();
        for (number, access) in straight.accesses.iter().enumerate() {
            let use_of = &registered.verified.tables()[usize::from(access.slot)];
            let key = block.wrapping_add(access.key_offset as usize).cast_const();
            // SAFETY: the key image lies in the block, which is the procedure's.
            let (image, hash) = unsafe {
                let image = std::slice::from_raw_parts(key, use_of.key.image_bytes());
                (image, recipe.hash(number, block))
            };
            let place = work.placement.place(use_of.id, image, work.me);
            self.places.push(place);
            let Place::There(owner) = place else {
                self.words.push(recipe.start_one(number, hash, false, work.lines));
                continue;
            };
            self.words.push(0);
            let at = self.bundles.iter().position(|bundle| bundle.owner == owner).unwrap_or_else(|| {
                self.bundles.push(work.bundles.take(owner));
                self.bundles.len() - 1
            });
            let word = key_word(recipe.table(number), &use_of.key.encode(image), hash);
            let (key_offset, table, write) = (access.key_offset, use_of.id, access.operation == Operation::Update);
            self.bundles[at].wanted.push(Wanted { word, row: 0, key_offset, table, write, has: false });
        }
        if !self.bundles.is_empty() {
            let time = work.transaction.time(work.clock, 0);
            for Bundle { owner, wanted, .. } in &mut self.bundles {
                let (slot, count, wanted) = (work.slot, wanted.len() as u16, wanted.as_mut_ptr());
                work.mail.send(*owner, Message::Fetch { slot, count, time, block, wanted });
                work.transaction.outstanding += 1;
            }
        }
    }

    /// Judges the rows that are here, and takes a time above them if there is none yet.
    ///
    /// # Errors
    /// What the step ends with.
    #[inline(always)]
    fn judge(&mut self, work: &mut Work<'_>, writes: impl Iterator<Item = bool>) -> Result<(), Step> {
        let mut above = 0;
        for ((&word, place), write) in self.words.iter().zip(&self.places).zip(writes) {
            if matches!(place, Place::There(_)) {
                continue;
            }
            // SAFETY: words are rows by now.
            let header = Header::load(unsafe { RowPtr::from_address(word) });
            if *place == Place::Here {
                let verdict = match work.transaction.time {
                    0 => match header.above(write) {
                        Some(time) => {
                            above = above.max(time);
                            Verdict::Granted
                        }
                        None => Verdict::Wait,
                    },
                    time if write => header.may_write(time, 0),
                    time => header.may_read(time),
                };
                match verdict {
                    Verdict::Granted => {}
                    Verdict::Wait => return Err(Step::Waiting),
                    Verdict::Conflict(above) => {
                        work.transaction.too_late(above, if write { Cause::LateWrite } else { Cause::LateRead });
                        return Err(Step::Conflict);
                    }
                }
            }
            if !header.is_live() {
                return Err(Step::Left);
            }
        }
        work.transaction.time(work.clock, above);
        Ok(())
    }

    /// Runs the transaction, stamps its rows and lets go what it holds.
    ///
    /// # Safety
    /// As for [`Self::step`]; the rows are judged.
    #[inline(always)]
    unsafe fn execute(&mut self, work: &mut Work<'_>, writes: impl Iterator<Item = bool>) {
        let time = work.transaction.time;
        let before = work.executor.tally.committed;
        // SAFETY: the rows are there, and granted until this step is over.
        unsafe {
            work.executor.call(work.registered, work.block, work.sequence, &self.words, work.lines);
            let header = std::slice::from_raw_parts_mut(work.block, HEADER_BYTES as usize);
            BlockMut::new(header).set_serial(time);
        }
        let committed = work.executor.tally.committed != before;
        for ((&word, &place), write) in self.words.iter().zip(&self.places).zip(writes) {
            if place != Place::Here {
                continue;
            }
            // SAFETY: words are rows.
            let row = unsafe { RowPtr::from_address(word) };
            let mut header = Header::load(row);
            if write && committed {
                header.wrote(time);
            } else {
                header.saw(time);
            }
            header.store(row);
        }
        let ending = if committed { Ending::Commit } else { Ending::Abort };
        self.let_go(work, ending);
    }
}
