//! What engines share whose workers keep several transactions in flight and begin again after a conflict.
//!
//! A worker has slots for transactions and gives each its [`Turn`] again and again. What a transaction may do in its
//! turn is all that the ways of [interleaving](Interleave) differ in.
//!
//! BionicDB (section 4.5) runs a group of transactions to the ends of their logic and then commits them in order. It
//! gains nothing where a transaction needs a value before it can ask for the next: from there on it runs alone.
//! [`Interleave::Batch`] is that scheme, to compare with; [`Interleave::Dynamic`] has no such point.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::blocks::Blocks;
use crate::contract::{BatchReport, Interleave, Options};
use crate::host_engine::Core;
use crate::recipe::Lines;
use crate::registry::{Registered, Registry};
use crate::tally::Tally;
use crate::tombstones::Tombstones;

/// Transactions that a worker takes from the batch at a time.
const PIECE: usize = 32;

/// How many transactions a worker keeps in flight, so that about a window of row accesses is.
pub(crate) fn in_flight(options: &Options, registry: &Registry) -> usize {
    match options.interleave {
        Interleave::None => 1,
        Interleave::Batch | Interleave::Dynamic => (options.window / registry.most_accesses()).max(2),
    }
}

/// What a worker may do with a slot now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Put a new transaction into it, if it is free.
    pub(crate) take: bool,
    /// Prefetch what its transaction is going to touch.
    pub(crate) prefetch: bool,
    /// Leave its transaction where that would wait for memory, until the next turn.
    pub(crate) pause: bool,
}

impl Turn {
    /// The first turn of all slots.
    pub(crate) fn first(interleave: Interleave) -> Self {
        let many = interleave != Interleave::None;
        Self { take: true, prefetch: many, pause: many }
    }

    /// Fetches the lines that were collected, or forgets them if nothing is prefetched.
    #[inline(always)]
    pub(crate) fn fetch(self, lines: &mut Lines) {
        if self.prefetch {
            lines.fetch();
        } else {
            lines.forget();
        }
    }

    /// The turn after this one, unless all is done. `busy`: some slot had a transaction in this one.
    ///
    /// A group ([`Interleave::Batch`]) takes as many turns to end as it needs: a transaction that waits for a lock, or
    /// begins again, lets the others go first.
    #[inline(always)]
    pub(crate) fn next(self, interleave: Interleave, busy: bool) -> Option<Self> {
        match interleave {
            _ if self.take && !busy => None,
            Interleave::Batch if self.take || !busy => Some(Self { take: !self.take, pause: !self.pause, ..self }),
            _ => Some(self),
        }
    }
}

/// How far a transaction has come on the short way of its engine, which takes it by its recipe, not by the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    #[default]
    New,
    /// All look-ups have begun.
    Started,
    /// Rows are known, but for those that other workers look up.
    Found,
    /// It goes the long way.
    Left,
}

/// Turns that a transaction sits out after its conflict number `retries`: longer each time, 64 at the most.
pub(crate) const fn turns_after(retries: u32) -> u32 {
    1 << if retries < 6 { retries } else { 6 }
}

/// How many transactions a worker has in flight: fewer after conflicts, and down to one. Where all want the same rows,
/// each that begins again comes in the way of those that are nearly done, and its siblings are the nearest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Concurrency {
    /// How many there may be now, and at the most.
    now: usize,
    most: usize,
    /// Transactions that ended since there was a conflict, or since one more was let in.
    ended: usize,
}

impl Concurrency {
    /// Transactions that end without a conflict, for each in flight, before one more is let in.
    const CALM: usize = 4;

    /// Prepares for a batch with up to `most` in flight. What the last one taught stays.
    pub(crate) fn begin(&mut self, most: usize) {
        self.most = most;
        if self.now == 0 || self.now > most {
            self.now = most;
        }
    }

    /// Whether one more may begin beside `running` others.
    #[inline(always)]
    pub(crate) fn has_room(&self, running: usize) -> bool {
        running < self.now
    }

    /// Notes that one ended without a conflict.
    #[inline(always)]
    pub(crate) fn ended(&mut self) {
        if self.now < self.most {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.ended += 1;
        if self.ended > Self::CALM * self.now {
            self.ended = 0;
            self.now += 1;
        }
    }

    /// Notes that one met a conflict.
    #[cold]
    pub(crate) fn conflicted(&mut self) {
        self.ended = 0;
        self.now = (self.now / 2).max(1);
    }
}

/// Takes back what an attempt left in results and scratch: it must not shine through the next one.
///
/// # Safety
/// `block` is a block of the procedure and this thread's alone.
#[cold]
pub(crate) unsafe fn wipe(registered: &Registered, block: *mut u8) {
    let start = registered.results.0;
    // SAFETY: the block is at least as long as its procedure's layout.
    unsafe { block.add(start).write_bytes(0, registered.block_bytes - start) };
}

/// Hands the blocks of a batch out to workers.
pub(crate) struct BlockSupply {
    pub(crate) blocks: Blocks,
    /// First block that no worker has taken.
    next: AtomicUsize,
}

impl BlockSupply {
    pub(crate) fn new(blocks: Blocks) -> Self {
        Self { blocks, next: AtomicUsize::new(0) }
    }

    /// The next block that can be executed, from `piece`, what the worker has taken, or from what is left. Blocks that
    /// cannot are closed as failed.
    #[inline(always)]
    pub(crate) fn take(&self, core: &Core, piece: &mut Range<usize>, tally: &mut Tally) -> Option<usize> {
        loop {
            let Some(index) = piece.next() else {
                if self.next.load(Ordering::Relaxed) >= self.blocks.len {
                    return None;
                }
                let start = self.next.fetch_add(PIECE, Ordering::Relaxed).min(self.blocks.len);
                *piece = start..(start + PIECE).min(self.blocks.len);
                continue;
            };
            // SAFETY: this worker has taken the block.
            if unsafe { self.blocks.admit(core, index, tally) }.is_some() {
                return Some(index);
            }
        }
    }
}

/// Ends a batch: unlinks the tombstones of all workers and reports what they counted.
///
/// # Safety
/// No transaction runs.
pub(crate) unsafe fn settle<'a>(workers: impl Iterator<Item = (&'a mut Tombstones, &'a mut Tally)>) -> BatchReport {
    let mut report = BatchReport::default();
    for (tombstones, tally) in workers {
        // SAFETY: as the caller's.
        unsafe { tombstones.unlink() };
        // Taken, not copied: a worker that the next batch does not involve must not report this one again.
        report.tally.add(&std::mem::take(tally));
    }
    report
}
