//! Bundles: what a transaction on the short way wants of another partition, all of it in one message.
//!
//! A bundle is memory that two workers hand to and fro; messages carry its address. The worker of the transaction says
//! what it wants and sends it; that of the partition notes the rows, and answers when it has granted all of them; and
//! in the end the transaction sends it once more, to let the rows go. Nothing answers that. It is over when anything is
//! answered that was sent to the same worker afterwards, because messages arrive in order, or when the batch is; only
//! then the bundle is used again.
//!
//! Invariant: a bundle is looked at by the worker alone that it was sent to, until that has answered, or is known to
//! have let the rows go.

use std::collections::VecDeque;

/// A row that is wanted of another partition, and what is had of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The key, if it is one word, else its hash.
    pub(super) word: u64,
    /// The row's address, from when it is found.
    pub(super) row: u64,
    /// Where the key image lies in the transaction's block.
    pub(super) key_offset: u32,
    /// Table number.
    pub(super) table: u16,
    /// Whether it is wanted for writing.
    pub(super) write: bool,
    /// Whether it is held or pinned on behalf of this entry.
    pub(super) has: bool,
}

/// A bundle that was sent.
#[derive(Debug)]
pub(super) struct Bundle {
    /// The worker it was sent to.
    pub(super) owner: usize,
    /// Which one it was of those sent to that worker.
    number: u64,
    pub(super) wanted: Vec<Wanted>,
}

/// The bundles of one worker that no transaction has.
#[derive(Debug, Default)]
pub(super) struct Bundles {
    free: Vec<Vec<Wanted>>,
    /// By worker, how many were sent to it.
    sent: Vec<u64>,
    /// By worker, those whose rows it is letting go, with how many had been sent before.
    released: Vec<VecDeque<(u64, Vec<Wanted>)>>,
}

impl Bundles {
    /// Prepares for a batch by so many workers. Nothing of the last one is under way.
    pub(super) fn begin(&mut self, workers: usize) {
        let Self { free, sent, released } = self;
        released.iter_mut().for_each(|of| free.extend(of.drain(..).map(|(_, wanted)| wanted)));
        sent.resize(workers, 0);
        released.resize_with(workers, VecDeque::new);
    }

    /// An empty bundle for worker `owner`.
    #[inline(always)]
    pub(super) fn take(&mut self, owner: usize) -> Bundle {
        let mut wanted = self.free.pop().unwrap_or_default();
        wanted.clear();
        self.sent[owner] += 1;
        Bundle { owner, number: self.sent[owner], wanted }
    }

    /// Notes that a bundle was answered: what was sent before it has arrived.
    #[inline(always)]
    pub(super) fn answered(&mut self, bundle: &Bundle) {
        let released = &mut self.released[bundle.owner];
        while released.front().is_some_and(|(before, _)| *before < bundle.number) {
            self.free.extend(released.pop_front().map(|(_, wanted)| wanted));
        }
    }

    /// Takes back a bundle that was sent to let its rows go.
    #[inline(always)]
    pub(super) fn released(&mut self, bundle: Bundle) {
        self.released[bundle.owner].push_back((self.sent[bundle.owner], bundle.wanted));
    }

    /// Takes back a bundle that was refused.
    #[cold]
    pub(super) fn refused(&mut self, bundle: Bundle) {
        self.free.push(bundle.wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_is_used_again_only_when_something_sent_later_is_answered() {
        let mut bundles = Bundles::default();
        bundles.begin(2);
        let (mut first, second) = (bundles.take(1), bundles.take(1));
        first.wanted.reserve(8);
        let address = first.wanted.as_ptr();
        bundles.released(first);
        bundles.answered(&second);
        assert_ne!(bundles.take(1).wanted.as_ptr(), address, "the answer may have been given before");
        let (elsewhere, third) = (bundles.take(0), bundles.take(1));
        bundles.answered(&elsewhere);
        assert_ne!(bundles.take(1).wanted.as_ptr(), address, "that was another worker");
        bundles.answered(&third);
        assert_eq!(bundles.take(1).wanted.as_ptr(), address);
        bundles.released(second);
        bundles.begin(3);
        assert_eq!(bundles.free.len(), 1);
    }
}
