//! Lines to prefetch together; see [`Lines`].

use lockwork_memory::prefetch;
use lockwork_procedure::block_access::{BlockAccess, block_accesses};
use lockwork_procedure::isa::Instruction;

/// Lines to prefetch, collected first and prefetched together.
///
/// A prefetch leaves the processor's reorder window only when its address is translated, and a walk of the page
/// table takes about as long as a hundred instructions. So prefetches overlap only if they stand close together.
///
/// Long rows are the exception: hundreds of lines at once would only stand in line for memory while the processor
/// waits. They are [left](Self::fetch_short) to be fetched little by little between the copies of the transactions
/// before.
#[derive(Debug, Default)]
pub struct Lines {
    lines: Vec<u64>,
    /// How many were fetched already.
    done: usize,
}

impl Lines {
    /// More lines than this are fetched little by little.
    const SHORT: usize = 64;

    /// Adds a line.
    #[inline(always)]
    pub fn push(&mut self, line: u64) {
        self.lines.push(line);
    }

    /// Prefetches all lines that were added.
    #[inline(always)]
    pub fn fetch(&mut self) {
        self.lines[self.done..].iter().for_each(|&line| prefetch(line as *const u8));
        self.forget();
    }

    /// Drops all lines that were added.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.lines.clear();
        self.done = 0;
    }

    /// Prefetches all lines, if they are few.
    #[inline(always)]
    pub fn fetch_short(&mut self) {
        if self.lines.len() <= Self::SHORT {
            self.fetch();
        }
    }

    /// Prefetches as many of the lines as `bytes` fill.
    #[inline(always)]
    pub(crate) fn fetch_some(&mut self, bytes: u32) {
        let end = self.lines.len().min(self.done + bytes as usize / 64);
        self.lines[self.done..end].iter().for_each(|&line| prefetch(line as *const u8));
        self.done = end;
    }
}

/// The lines of the block that code reads or writes at constant offsets, as offsets.
pub(crate) fn block_lines(code: &[Instruction]) -> Vec<u32> {
    let mut lines = Vec::new();
    for BlockAccess { offset, length, .. } in
        code.iter().flat_map(|i| block_accesses(i, None)).filter(|access| access.index == 0)
    {
        lines.extend((offset / 64..=(offset + length - 1) / 64).map(|line| line * 64));
    }
    lines.sort_unstable();
    lines.dedup();
    lines
}
