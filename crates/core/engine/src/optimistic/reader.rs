//! The short way of transactions that only look rows up and copy from them into their blocks.
//!
//! Where a procedure is no more than that, its recipe says which bytes go where ([`crate::recipe`]). They are copied
//! straight into the block, which nobody else sees: a mixture of versions there is overwritten by the next try. No
//! interpreter runs and nothing is copied twice. Whatever is not as usual (a missing row, arguments that fail a check)
//! goes the long way from its beginning.
//!
//! Invariant: the same rows are read and validated as on the long way.

use lockwork_storage::RowPtr;

use super::copies::Layout;
use super::transaction::{Transaction, Unread};
use crate::interleaved::Stage;
use crate::recipe::{Lines, Recipe};
use crate::registry::Registered;

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Come back later.
    Waiting,
    /// Everything is read.
    Done,
    /// It has to go the long way.
    Left,
}

/// A transaction on the short way.
#[derive(Debug, Default)]
pub(super) struct Reader {
    stage: Stage,
    /// Hashes, then addresses of rows.
    words: Vec<u64>,
}

/// The recipe of a procedure whose calls can go the short way.
#[inline(always)]
pub(super) fn recipe(registered: &Registered) -> Option<&Recipe> {
    registered.recipe.as_ref().filter(|recipe| recipe.is_complete() && !registered.traits.writes)
}

impl Reader {
    /// Whether the transaction goes the long way.
    #[inline(always)]
    pub(super) fn has_left(&self) -> bool {
        self.stage == Stage::Left
    }

    /// Lets the transaction begin again.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.stage = Stage::New;
    }

    /// Goes on. `pause`: come back where memory would be waited for.
    ///
    /// # Safety
    /// `block` is a block of the recipe's procedure and this thread's alone.
    #[inline(always)]
    pub(super) unsafe fn step(
        &mut self,
        recipe: &Recipe,
        block: *mut u8,
        pause: bool,
        transaction: &mut Transaction,
        lines: &mut Lines,
    ) -> Step {
        // SAFETY: the block is as the caller says; words go from one stage to the next unchanged.
        unsafe {
            if self.stage == Stage::New {
                if !recipe.passes(block) {
                    return self.leave();
                }
                self.words.resize(recipe.len(), 0);
                recipe.start(block, &mut self.words, false, lines);
                lines.fetch();
                self.stage = Stage::Started;
                if pause {
                    return Step::Waiting;
                }
            }
            if self.stage == Stage::Started {
                recipe.look_up(block, &mut self.words, false, Some(lines));
                if self.words.contains(&0) {
                    return self.leave();
                }
                // Their words.
                self.words.iter().for_each(|&row| lines.push(row));
                lines.fetch();
                self.stage = Stage::Found;
                if pause {
                    return Step::Waiting;
                }
            }
            for (number, &address) in self.words.iter().enumerate() {
                let (row, layout) = (RowPtr::from_address(address), Layout::of(recipe.table(number).schema()));
                let copy = |from, to, length| layout.copy_piece(row.as_ptr(), from, length, block.add(to));
                match transaction.look(row, || recipe.moves(number, block, copy)) {
                    Ok(true) => {}
                    Ok(false) => {
                        transaction.clear();
                        return self.leave();
                    }
                    Err(Unread::Busy | Unread::Changed | Unread::Memory) => {
                        transaction.clear();
                        std::thread::yield_now();
                        return Step::Waiting;
                    }
                }
            }
        }
        Step::Done
    }

    #[cold]
    fn leave(&mut self) -> Step {
        self.stage = Stage::Left;
        Step::Left
    }
}
