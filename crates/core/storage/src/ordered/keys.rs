//! Keys of the ordered index by their place: what a planner asks before a scan runs.
//!
//! Only nodes are read, no row: skipping forty keys costs one look at a leaf. Invariant and trade-off are those of a
//! scan ([`super`]): each node is read whole, and what others change meanwhile is seen or not.

use super::*;

/// The key of these words; those that are left out are zero.
fn key_of<const W: usize>(words: Words<W>) -> Key {
    Key(std::array::from_fn(|at| words.get(at).copied().unwrap_or(0)))
}

impl<const W: usize, const N: usize> Tree<W, N> {
    fn nth(&self, from: &Words<W>, limit: usize) -> Option<Words<W>> {
        let mut number = self.leaf(from);
        let (mut from, mut left) = (*from, limit);
        loop {
            let (found, count, right, next) = self.node(number).read(|node| {
                let (right, high) = (node.right.load(Ordering::Relaxed), load(&node.high));
                if right != 0 && high <= from {
                    return (None, 0, right, from);
                }
                let start = node.rank(&from, false);
                let count = node.count().saturating_sub(start);
                let found = (left <= count).then(|| load(&node.keys[(start + left - 1).min(N - 1)]));
                (found, count, right, high)
            });
            if found.is_some() || right == 0 {
                return found;
            }
            left -= count;
            (number, from) = (right - 1, next);
        }
    }

    fn last(&self) -> Option<Words<W>> {
        let mut number = self.leaf(&[u64::MAX; W]);
        let mut last = None;
        loop {
            let (key, right) = self.node(number).read(|node| {
                let key = node.count().checked_sub(1).map(|at| node.get(at).0);
                (key, node.right.load(Ordering::Relaxed))
            });
            last = key.or(last);
            if right == 0 {
                return last;
            }
            number = right - 1;
        }
    }
}

impl OrderedIndex {
    /// The `limit`-th key from `from` on, `limit` at least 1; `None` if there are fewer.
    pub(crate) fn nth(&self, from: &Key, limit: usize) -> Option<Key> {
        match self {
            Self::Word(tree) => tree.nth(&Tree::<1, 40>::words(from), limit).map(key_of),
            Self::Wide(tree) => tree.nth(&Tree::<4, 27>::words(from), limit).map(key_of),
        }
    }

    /// Goes to the node where a scan from `from` begins and brings it into cache.
    pub(crate) fn prefetch_from(&self, from: &Key) {
        match self {
            Self::Word(tree) => _ = tree.leaf(&Tree::<1, 40>::words(from)),
            Self::Wide(tree) => _ = tree.leaf(&Tree::<4, 27>::words(from)),
        }
    }

    /// The last key; `None` if the index, or its last node, is empty.
    pub(crate) fn last(&self) -> Option<Key> {
        match self {
            Self::Word(tree) => tree.last().map(key_of),
            Self::Wide(tree) => tree.last().map(key_of),
        }
    }
}
