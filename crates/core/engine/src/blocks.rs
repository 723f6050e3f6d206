//! A batch in the hands of a team: where its blocks lie, and which of them can be executed.
//!
//! Several workers write different blocks of one batch at the same time, which no reference to the batch allows; so
//! here it is an address and a stride, of which every worker has a copy.
//!
//! Invariant: at any time a block is one worker's, by the plan of the engine; what needs that is unsafe.

use lockwork_procedure::block::{Batch, Status, abort};

use crate::exclusive::{Executor, close};
use crate::host_engine::Core;
use crate::lines::Lines;
use crate::recipe::Recipe;
use crate::registry::Registered;
use crate::tally::Tally;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    start: *mut u8,
    /// Bytes from one block to the next.
    pub(crate) stride: usize,
    /// How many blocks there are.
    pub(crate) len: usize,
    first_sequence: u64,
}

// SAFETY: addresses, good on every thread; the workers of a team agree on who touches which block.
unsafe impl Sync for Blocks {}
// SAFETY: as above.
unsafe impl Send for Blocks {}

impl Blocks {
    /// The blocks of `batch`, which stays borrowed in spirit as long as they are used.
    pub(crate) fn of(core: &Core, batch: &mut Batch) -> Self {
        let (start, stride, len) = (batch.block_ptr(0), batch.stride(), batch.len());
        Self { start, stride, len, first_sequence: core.first_sequence }
    }

    /// Where block `index` begins.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> *mut u8 {
        self.start.wrapping_add(index * self.stride)
    }

    /// The sequence number of block `index`.
    #[inline(always)]
    pub(crate) fn sequence(&self, index: usize) -> u64 {
        self.first_sequence + index as u64
    }

    /// The id of the procedure that a block calls.
    #[inline(always)]
    pub(crate) fn procedure(&self, index: usize) -> u32 {
        // SAFETY: a block begins with its procedure id.
        u32::from_le(unsafe { self.at(index).cast::<u32>().read() })
    }

    /// The procedure of a block, if the block can be executed.
    #[inline(always)]
    pub(crate) fn registered<'a>(&self, core: &'a Core, index: usize) -> Option<&'a Registered> {
        let registered = core.registry.get(self.procedure(index))?;
        (registered.block_bytes <= self.stride).then_some(registered)
    }

    /// The recipe of a block, if it can be executed and its procedure is straight.
    #[inline(always)]
    pub(crate) fn recipe<'a>(&self, core: &'a Core, index: usize) -> Option<&'a Recipe> {
        self.registered(core, index)?.recipe()
    }

    /// The procedure of a block, if the block can be executed; else closes it as failed and counts it.
    ///
    /// # Safety
    /// The block is this thread's alone.
    #[inline(always)]
    pub(crate) unsafe fn admit<'a>(&self, core: &'a Core, index: usize, tally: &mut Tally) -> Option<&'a Registered> {
        let registered = self.registered(core, index);
        if registered.is_none() {
            // SAFETY: as the caller's.
            unsafe { self.refuse(core, index, tally) }
        }
        registered
    }

    #[cold]
    unsafe fn refuse(&self, core: &Core, index: usize, tally: &mut Tally) {
        let code = match core.registry.get(self.procedure(index)) {
            Some(_) => abort::BLOCK_TOO_SHORT,
            None => abort::UNKNOWN_PROCEDURE,
        };
        // SAFETY: as the caller's.
        unsafe { close(self.at(index), Status::Failed, code, self.sequence(index), 0) };
        tally.count(Status::Failed, code);
    }

    /// Executes one block, or closes it as failed.
    ///
    /// # Safety
    /// The block, and everything that its transaction touches, is this thread's alone; `hints` are as for
    /// [`Executor::call`].
    #[inline(always)]
    pub(crate) unsafe fn execute(&self, core: &Core, executor: &mut Executor, index: usize, hints: &[u64]) {
        // SAFETY: as the caller's.
        unsafe {
            if let Some(registered) = self.admit(core, index, &mut executor.tally) {
                executor.call(registered, self.at(index), self.sequence(index), hints, &mut Lines::default());
            }
        }
    }
}
