//! What engines share whose workers keep several transactions in flight and begin again after a conflict.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::blocks::Blocks;
use crate::contract::{BatchReport, Interleave, Options, Tally};
use crate::ghosts::Ghosts;
use crate::host_engine::Core;
use crate::registry::{Registered, Registry};

/// Transactions that a worker takes from the batch at a time.
const PIECE: usize = 32;

/// How many transactions a worker keeps in flight, so that about a window of row accesses is.
pub(crate) fn in_flight(options: &Options, registry: &Registry) -> usize {
    match options.interleave {
        Interleave::None => 1,
        Interleave::Dynamic => (options.window / registry.most_accesses()).max(2),
    }
}

/// Turns that a transaction sits out after its conflict number `retries`: longer each time, 64 at the most.
pub(crate) const fn turns_after(retries: u32) -> u32 {
    1 << if retries < 6 { retries } else { 6 }
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
pub(crate) struct Supply {
    pub(crate) blocks: Blocks,
    /// First block that no worker has taken.
    next: AtomicUsize,
}

impl Supply {
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

    /// Whether there will be no more.
    #[inline(always)]
    pub(crate) fn is_over(&self, piece: &Range<usize>) -> bool {
        piece.is_empty() && self.next.load(Ordering::Relaxed) >= self.blocks.len
    }
}

/// Ends a batch: unlinks the ghosts of all workers and reports what they counted.
///
/// # Safety
/// No transaction runs.
pub(crate) unsafe fn settle<'a>(workers: impl Iterator<Item = (&'a mut Ghosts, &'a mut Tally)>) -> BatchReport {
    let mut report = BatchReport::default();
    for (ghosts, tally) in workers {
        // SAFETY: as the caller's.
        unsafe { ghosts.unlink() };
        // Taken, not copied: a worker that the next batch does not involve must not report this one again.
        report.tally.add(&std::mem::take(tally));
    }
    report
}
