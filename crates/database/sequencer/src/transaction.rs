//! A transaction of several calls, as who makes it keeps it between two calls.
//!
//! Nothing is held in the database meanwhile. A further call makes those before it again, sees that each ends as it did
//! the first time, with the same results, runs, and has everything taken back. The commit makes all of them once more,
//! and what they did stays. So a transaction that commits is one that ran as a whole at that moment, and whoever made
//! it has been told nothing else: it is serializable, waits for nobody, and nobody for it. The price is that `n` calls
//! are made `n` times over.

use lockwork_storage::{Database, Digest};

use crate::error::Error;
use crate::order::Request;
use crate::sequencer::{Handle, is_block};

/// The most calls of a transaction: each is made again for every later one.
pub const MAX_CALLS: usize = 4096;
/// The most calls of a transaction that is made and committed at once.
pub const MAX_CALLS_AT_ONCE: usize = 65_536;
/// The most steps that the calls of a transaction may take together, by what the verifier has proved of each: a second
/// or a few, in which nobody else's calls run.
pub(crate) const MAX_STEPS_AT_ONCE: u64 = 1 << 30;
/// The most bytes of their arguments, which are one record of the log.
pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub struct Transaction {
    pub(crate) steps: Vec<Step>,
    calls: usize,
    bytes: usize,
}

/// A moment of a transaction, to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

#[derive(Debug)]
pub(crate) enum Step {
    Call(Made),
    /// Looks at all rows of some tables.
    Look(Looked),
    /// Takes back what was done from this step on.
    BackTo(usize),
}

/// A call that was made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) procedure: u32,
    /// The version of the procedure that its block named.
    pub(crate) version: u64,
    pub(crate) arguments: Vec<u8>,
    pub(crate) committed: bool,
    /// Digest of outcome and results.
    pub(crate) seen: u128,
    /// The same, as records have it.
    pub(crate) answered: u64,
}

/// Tables that were looked at, by number, and the digest of all their rows.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) tables: Vec<u16>,
    pub(crate) seen: Digest,
}

impl Transaction {
    /// Now.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.steps.len())
    }

    /// Takes back what was done since a mark. What the calls since then have answered still counts as seen. A mark that
    /// was taken back itself, or is another transaction's, takes back nothing.
    pub fn back_to(&mut self, mark: Mark) {
        let is_before = |step: &Step| matches!(step, Step::BackTo(to) if *to < mark.0);
        let since = self.steps.get(mark.0..).unwrap_or_default();
        // Nothing since the last way back is taken back once more.
        if since.iter().any(|step| matches!(step, Step::Call(_) | Step::Look(_))) && !since.iter().any(is_before) {
            self.steps.push(Step::BackTo(mark.0));
        }
    }

    /// How many calls and looks were made.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The ids of the procedures that were called, each with the version that its block named.
    pub fn procedures(&self) -> impl Iterator<Item = (u32, u64)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Call(made) => Some((made.procedure, made.version)),
            Step::Look(_) | Step::BackTo(_) => None,
        })
    }

    /// Sees that there is room for calls of so many argument bytes each. Of those that `commits` makes at once there
    /// may be more, as none is made again.
    pub(crate) fn room(&self, bytes: impl ExactSizeIterator<Item = usize>, commits: bool) -> Result<(), Error> {
        let most = if commits && self.steps.is_empty() { MAX_CALLS_AT_ONCE } else { MAX_CALLS };
        let is_within = self.calls + bytes.len() <= most && self.bytes + bytes.sum::<usize>() <= MAX_ARGUMENT_BYTES;
        if is_within { Ok(()) } else { Err(Error::TooLong) }
    }

    pub(crate) fn add(&mut self, made: Made) {
        self.calls += 1;
        self.bytes += made.arguments.len();
        self.steps.push(Step::Call(made));
    }

    pub(crate) fn add_look(&mut self, looked: Looked) {
        self.calls += 1;
        self.steps.push(Step::Look(looked));
    }

    /// Whether it is a single look or call, which is true of the moment when it ran.
    pub(crate) fn is_single(&self) -> bool {
        self.steps.len() <= 1
    }

    /// The calls whose effects there are: those that committed and were not taken back.
    pub(crate) fn lasting(&self) -> Vec<&Made> {
        let mut lasting: Vec<(usize, &Made)> = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            match step {
                Step::Call(made) if made.committed => lasting.push((at, made)),
                Step::Call(_) | Step::Look(_) => {}
                Step::BackTo(mark) => lasting.retain(|(at, _)| at < mark),
            }
        }
        lasting.into_iter().map(|(_, made)| made).collect()
    }
}

impl Handle {
    /// Makes a further call of a transaction, and `then` gets the transaction with it, and the block with its outcome:
    /// one that aborted is no error, and has taken back itself only. As for [`Self::call_then`].
    ///
    /// # Errors
    /// As there. `then` gets [`Error::Conflict`], [`Error::TooLong`], and [`Error::Engine`] on an engine that runs no
    /// transactions of several calls; nothing has happened, and the transaction is gone.
    pub fn step_then(
        &self,
        transaction: Transaction,
        block: Vec<u8>,
        then: impl FnOnce(Result<(Transaction, Vec<u8>), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let then = move |outcome: Result<(Transaction, Vec<Vec<u8>>), Error>| {
            then(outcome.map(|(transaction, mut ran)| (transaction, ran.pop().unwrap_or_default())));
        };
        self.steps_then(transaction, vec![block], false, then)
    }

    /// Makes further calls of a transaction by their blocks, one after the other, up to the first that does not commit.
    /// If `commits`, and all of them do, the whole transaction is made for good: it is durable when `then` is called,
    /// and no other transaction came between its calls. Otherwise all of it is taken back as after
    /// [`Self::step_then`]. `then` gets the transaction, which is empty when it was made for good, and the blocks of
    /// the calls that ran. As for [`Self::call_then`].
    ///
    /// # Errors
    /// As there, and those of [`Self::step_then`] and [`Self::commit_then`].
    pub fn steps_then(
        &self,
        transaction: Transaction,
        blocks: Vec<Vec<u8>>,
        commits: bool,
        then: impl FnOnce(Result<(Transaction, Vec<Vec<u8>>), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        blocks.iter().try_for_each(|block| is_block(block))?;
        self.give(Request::Steps { transaction, blocks, commits, reply: Box::new(then) })
    }

    /// Lets `look` see the database as a transaction has made it, on a thread of the sequencer: it must neither wait
    /// nor panic. If it says that it has seen anything, that is all rows of `tables`, and they must not change until
    /// the commit. `then` gets the transaction. As for [`Self::call_then`].
    ///
    /// # Errors
    /// As there, and those of [`Self::step_then`].
    pub fn look_then(
        &self,
        transaction: Transaction,
        tables: Vec<String>,
        look: impl FnOnce(&Database) -> bool + Send + 'static,
        then: impl FnOnce(Result<Transaction, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let (look, reply) = (Box::new(look), Box::new(then));
        self.give(Request::Look { transaction, tables, look, reply })
    }

    /// Makes the calls of a transaction for good, and calls `then` when they are durable. As for [`Self::call_then`].
    ///
    /// # Errors
    /// As there. `then` gets [`Error::Conflict`] and [`Error::Full`], and nothing has happened, or why it is not known
    /// whether it is durable.
    pub fn commit_then(
        &self,
        transaction: Transaction,
        then: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.steps_then(transaction, Vec::new(), true, move |outcome| then(outcome.map(drop)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_back_does_not_last() {
        let mut transaction = Transaction::default();
        let made = |procedure, committed| {
            let arguments = vec![0; 8];
            Made { procedure, version: 0, arguments, committed, seen: 0, answered: 0 }
        };
        transaction.add(made(1, true));
        let first = transaction.mark();
        transaction.add(made(2, true));
        let second = transaction.mark();
        transaction.add(made(3, true));
        transaction.back_to(second);
        transaction.add(made(4, false));
        transaction.add(made(5, true));
        let lasting =
            |transaction: &Transaction| transaction.lasting().iter().map(|made| made.procedure).collect::<Vec<_>>();
        assert_eq!(lasting(&transaction), [1, 2, 5]);
        transaction.back_to(first);
        transaction.add(made(6, true));
        assert_eq!(lasting(&transaction), [1, 6]);
        // A mark that is gone.
        transaction.back_to(second);
        transaction.back_to(Mark(1000));
        assert_eq!(lasting(&transaction), [1, 6]);
        assert_eq!(transaction.calls(), 6);
        let room = |bytes| transaction.room([bytes].into_iter(), false);
        assert!(room(MAX_ARGUMENT_BYTES - 48).is_ok());
        assert!(matches!(room(MAX_ARGUMENT_BYTES - 47), Err(Error::TooLong)));
        let at_once = |calls| Transaction::default().room(vec![0; calls].into_iter(), true);
        assert!(at_once(MAX_CALLS_AT_ONCE).is_ok());
        assert!(matches!(at_once(MAX_CALLS_AT_ONCE + 1), Err(Error::TooLong)));
    }
}
