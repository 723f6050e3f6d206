//! A journal as the node of one part sees it: checkpoints count when those of all parts are kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::io::File;
use crate::journal::{AppendError, Entry, Journal, Key, LogRange, Messages, Run, Unreachable};

/// Bits of a checkpoint's number in the journal for the part.
const PART_BITS: u32 = 6;

/// See the module.
pub(super) struct PartJournal {
    journal: Arc<dyn Journal>,
    part: u64,
    parts: u64,
}

impl PartJournal {
    pub(super) fn new(journal: Arc<dyn Journal>, part: u16, parts: u16) -> Self {
        assert!(part < parts && parts <= 1 << PART_BITS, "the engine has looked");
        Self { journal, part: part.into(), parts: parts.into() }
    }

    fn name(number: u64, part: u64) -> u64 {
        number << PART_BITS | part
    }

    /// Refuses a journal whose checkpoints are of another number of parts. Of more parts, those that are there to be
    /// would pass for all, without the rows of the others; and behind a checkpoint there may be no record that tells.
    ///
    /// # Errors
    /// [`Error::Option`], and [`Error::Unreachable`].
    pub(super) fn refuse_others(&self) -> Result<(), Error> {
        let failed = |error: Unreachable| Error::Unreachable(error.to_string());
        // First, so that checkpoints behind which it is cut are among those that are found.
        let is_cut = self.journal.log_range().map_err(failed)?.first > 1;
        let names = self.journal.checkpoints().map_err(failed)?;
        let theirs = names.iter().map(|name| (name & ((1 << PART_BITS) - 1)) + 1).max().unwrap_or(self.parts);
        // Fewer are also found while not all parts have handed in their first one.
        match theirs > self.parts || (theirs < self.parts && is_cut) {
            false => Ok(()),
            true => Err(Error::Option {
                option: "parts",
                value: self.parts.to_string(),
                expected: format!(
                    "the checkpoints of this journal are of {theirs} parts, or of nodes that have everything"
                ),
            }),
        }
    }
}

impl Journal for PartJournal {
    fn describe(&self) -> String {
        self.journal.describe()
    }

    fn most_bytes(&self) -> usize {
        self.journal.most_bytes()
    }

    fn append(&self, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), AppendError>) {
        self.journal.append(first, messages)
    }

    fn read(&self, first: u64, most_bytes: usize, wait: Duration) -> Result<Messages, Unreachable> {
        self.journal.read(first, most_bytes, wait)
    }

    fn log_range(&self) -> Result<LogRange, Unreachable> {
        self.journal.log_range()
    }

    fn stranded(&self, first: u64, most_bytes: usize) -> Result<Vec<Run>, Unreachable> {
        self.journal.stranded(first, most_bytes)
    }

    fn truncate(&self, first: u64) -> Result<(), Unreachable> {
        self.journal.truncate(first)
    }

    fn entry(&self, key: Key) -> Result<Option<Entry>, Unreachable> {
        self.journal.entry(key)
    }

    fn write(&self, key: Key, revision: u64, text: &str) -> Result<Option<u64>, Unreachable> {
        self.journal.write(key, revision, text)
    }

    /// Those that all parts have.
    fn checkpoints(&self) -> Result<Vec<u64>, Unreachable> {
        let mut parts: BTreeMap<u64, u64> = BTreeMap::new();
        for name in self.journal.checkpoints()? {
            *parts.entry(name >> PART_BITS).or_default() |= 1 << (name & ((1 << PART_BITS) - 1));
        }
        let all = u64::MAX >> (64 - self.parts);
        Ok(parts.into_iter().filter(|(_, parts)| parts & all == all).map(|(number, _)| number).collect())
    }

    fn keep_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        self.journal.keep_checkpoint(Self::name(number, self.part), file)
    }

    fn fetch_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        self.journal.fetch_checkpoint(Self::name(number, self.part), file)
    }

    fn drop_checkpoints(&self, number: u64) -> Result<(), Unreachable> {
        self.journal.drop_checkpoints(Self::name(number, 0))
    }
}
