//! The ordered index: a B-link tree from key to row, for scans (Lehman and Yao, 1981).
//!
//! Every node knows the first key that is no longer its own (`high`) and its right neighbour, so a reader that comes to
//! a node which has been split meanwhile goes on to the right. Leaves hold up to 40 keys of one word (or 27 wide ones)
//! behind each other: a scan of fifty rows reads two or three nodes instead of following fifty links.
//!
//! ```text
//! version   odd while a writer is in the node
//! right     node number plus one; 0: the last of its level
//! count     entries
//! high      keys from here on belong to the right (meaningless without a right neighbour)
//! slots     of a leaf row numbers, of an inner node the numbers of its children
//! keys      of an inner node the smallest key that each child may hold; the first counts as the smallest of all
//! ```
//!
//! One writer at a time, behind a lock. **Readers write nothing and wait for nobody but a writer in the middle of a
//! node**: they read the version, the node, and the version again, and repeat if it changed. All words are atomics, so
//! a reader that meets a writer reads wrong words, never undefined behaviour.
//!
//! Invariant: at any moment each key is in exactly one node that is reachable from its left neighbours; splits and
//! merges change one node at a time, so that a reader sees all of a change or nothing. A node that was merged into its
//! left neighbour keeps what it held, for readers that are on their way to it, until the owner says that nobody reads
//! any more ([`OrderedIndex::reclaim`]).
//!
//! Trade-off: inserts into one table are serialised. The hardware has a skiplist instead (BionicDB, section 4.4.2):
//! pointer chasing that a pipeline hides costs a processor a miss for each row.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockwork_memory::{LINE, OutOfMemory, Pages, prefetch};
use lockwork_procedure::key::Key;

use crate::segments::Segments;

/// The most levels: half-full nodes of 27 hold more keys than there are rows.
const LEVELS: usize = 12;

/// A node of keys of `W` words, see the module.
#[repr(C, align(64))]
struct Node<const W: usize, const N: usize> {
    version: AtomicU64,
    right: AtomicU32,
    count: AtomicU32,
    high: [AtomicU64; W],
    slots: [AtomicU32; N],
    keys: [[AtomicU64; W]; N],
}

const _: () = assert!(size_of::<Node<1, 40>>() == 8 * LINE && size_of::<Node<4, 27>>() == 16 * LINE);

type Words<const W: usize> = [u64; W];

fn load<const W: usize>(words: &[AtomicU64; W]) -> Words<W> {
    std::array::from_fn(|at| words[at].load(Ordering::Relaxed))
}

fn store<const W: usize>(words: &[AtomicU64; W], value: &Words<W>) {
    words.iter().zip(value).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
}

impl<const W: usize, const N: usize> Node<W, N> {
    fn count(&self) -> usize {
        (self.count.load(Ordering::Relaxed) as usize).min(N)
    }

    /// How many keys are below `key`, or, with `or_equal`, not above it.
    #[inline(always)]
    fn rank(&self, key: &Words<W>, or_equal: bool) -> usize {
        let (mut low, mut length) = (0, self.count());
        while length > 0 {
            let half = length / 2;
            let found = load(&self.keys[low + half]);
            let before = if or_equal { found <= *key } else { found < *key };
            low = if before { low + half + 1 } else { low };
            length = if before { length - half - 1 } else { half };
        }
        low
    }

    /// Which child holds `key`.
    #[inline(always)]
    fn child(&self, key: &Words<W>) -> usize {
        self.rank(key, true).saturating_sub(1)
    }

    /// What `look` sees when no writer is in the node.
    #[inline(always)]
    fn read<T>(&self, look: impl Fn(&Self) -> T) -> T {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let seen = look(self);
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return seen;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Changes the node; the caller is the one writer.
    fn write(&self, change: impl FnOnce(&Self)) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        self.version.store(version + 2, Ordering::Release);
    }

    fn set(&self, at: usize, key: &Words<W>, slot: u32) {
        store(&self.keys[at], key);
        self.slots[at].store(slot, Ordering::Relaxed);
    }

    fn get(&self, at: usize) -> (Words<W>, u32) {
        (load(&self.keys[at]), self.slots[at].load(Ordering::Relaxed))
    }

    fn insert_at(&self, at: usize, key: &Words<W>, slot: u32) {
        self.write(|node| {
            let count = node.count();
            for entry in (at..count).rev() {
                let (key, slot) = node.get(entry);
                node.set(entry + 1, &key, slot);
            }
            node.set(at, key, slot);
            node.count.store(count as u32 + 1, Ordering::Relaxed);
        });
    }

    fn remove_at(&self, at: usize) {
        self.write(|node| {
            let count = node.count();
            for entry in at + 1..count {
                let (key, slot) = node.get(entry);
                node.set(entry - 1, &key, slot);
            }
            node.count.store(count as u32 - 1, Ordering::Relaxed);
        });
    }
}

/// What the writer keeps: node numbers.
#[derive(Debug, Default)]
struct Numbers {
    /// Numbers from here on were never used.
    next: u32,
    free: Vec<u32>,
    /// Merged into their left neighbours, but perhaps still read.
    retired: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct Tree<const W: usize, const N: usize> {
    nodes: Segments,
    /// Number of the root, and, above, the levels of the tree.
    root: AtomicU64,
    /// Keys ever linked.
    linked: AtomicU64,
    numbers: Mutex<Numbers>,
}

/// What a scan takes from a leaf at once.
struct Leaf<const W: usize, const N: usize> {
    rows: [u32; N],
    count: usize,
    right: u32,
    /// Where the scan goes on in the right neighbour.
    next: Words<W>,
}

impl<const W: usize, const N: usize> Leaf<W, N> {
    /// The rows from `from` on; none if a split has moved that key to the right.
    #[inline(always)]
    fn of(node: &Node<W, N>, from: &Words<W>) -> Self {
        let (right, high) = (node.right.load(Ordering::Relaxed), load(&node.high));
        let mut leaf = Self { rows: [0; N], count: 0, right, next: high };
        if right != 0 && high <= *from {
            leaf.next = *from;
            return leaf;
        }
        let start = node.rank(from, false);
        leaf.count = node.count().saturating_sub(start);
        for (row, slot) in leaf.rows.iter_mut().zip(&node.slots[start..start + leaf.count]) {
            *row = slot.load(Ordering::Relaxed);
        }
        leaf
    }
}

/// The way from the root to a leaf, by level: 0 is the leaf.
type Path = [u32; LEVELS];

impl<const W: usize, const N: usize> Tree<W, N> {
    const LINES: u64 = (size_of::<Node<W, N>>() / LINE) as u64;
    /// A node with fewer entries is merged with a neighbour, if it is empty or both fit into three quarters of a node.
    const FEW: usize = N / 4;

    fn new(pages: Pages) -> Result<Self, OutOfMemory> {
        let nodes = Segments::new(10, pages, "an ordered index")?;
        let numbers = Mutex::new(Numbers { next: 1, ..Numbers::default() });
        Ok(Self { nodes, root: AtomicU64::new(1 << 32), linked: AtomicU64::new(0), numbers })
    }

    #[inline(always)]
    fn node(&self, number: u32) -> &Node<W, N> {
        // SAFETY: numbers in the tree have memory, which is zeroed, aligned and never moves; a node of zeros is an
        // empty leaf; all its fields are atomics.
        unsafe { &*self.nodes.line(u64::from(number) * Self::LINES).cast() }
    }

    #[inline(always)]
    fn prefetch(&self, number: u32) {
        let start = self.nodes.line(u64::from(number) * Self::LINES);
        (0..Self::LINES as usize).for_each(|line| prefetch(start.wrapping_add(line * LINE)));
    }

    fn words(key: &Key) -> Words<W> {
        std::array::from_fn(|at| key.0[at])
    }

    /// Root and levels.
    fn top(&self) -> (u32, usize) {
        let root = self.root.load(Ordering::Acquire);
        (root as u32, (root >> 32) as usize)
    }

    fn write(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to the leaf of a key, for the writer.
    fn path(&self, key: &Words<W>) -> (Path, usize) {
        let (mut number, levels) = self.top();
        let mut path = [0; LEVELS];
        for level in (0..levels).rev() {
            path[level] = number;
            if level > 0 {
                let node = self.node(number);
                number = node.get(node.child(key)).1;
            }
        }
        (path, levels)
    }

    fn insert(&self, key: &Words<W>, row: u32) -> Result<(), OutOfMemory> {
        let mut numbers = self.write();
        let (path, levels) = self.path(key);
        // Enough for a split of every level and a new root, before anything changes.
        while numbers.free.len() <= levels {
            let number = numbers.next;
            self.nodes.reserve(u64::from(number) * Self::LINES)?;
            numbers.next += 1;
            numbers.free.push(number);
        }
        let leaf = self.node(path[0]);
        let at = leaf.rank(key, false);
        assert!(at == leaf.count() || leaf.get(at).0 != *key, "an ordered index holds a key once");
        let (mut key, mut slot) = (*key, row);
        for (level, &number) in path.iter().enumerate().take(levels) {
            let node = self.node(number);
            let at = node.rank(&key, false);
            if node.count() < N {
                node.insert_at(at, &key, slot);
                break;
            }
            let new = numbers.free.pop().expect("set aside above");
            let separator = self.split(number, new, at, &key, slot);
            (key, slot) = (separator, new);
            if level + 1 == levels {
                let root = numbers.free.pop().expect("set aside above");
                let node = self.node(root);
                node.write(|node| {
                    node.set(0, &[0; W], number);
                    node.set(1, &key, slot);
                    node.count.store(2, Ordering::Relaxed);
                    node.right.store(0, Ordering::Relaxed);
                });
                assert!(levels < LEVELS, "an ordered index of {LEVELS} levels holds all rows there can be");
                self.root.store(u64::from(root) | (levels as u64 + 1) << 32, Ordering::Release);
            }
        }
        self.linked.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Moves the upper part of a full node to node `new` on its right and puts the entry, whose place is `at`, where it
    /// belongs. Returns the smallest key of the new node. Keys that only grow leave full nodes behind.
    fn split(&self, number: u32, new: u32, at: usize, key: &Words<W>, slot: u32) -> Words<W> {
        let (node, right) = (self.node(number), self.node(new));
        let grows = at == N && node.right.load(Ordering::Relaxed) == 0;
        let keep = if grows { N } else { N / 2 };
        let mut separator = *key;
        right.write(|right| {
            for entry in keep..N {
                let (key, slot) = node.get(entry);
                right.set(entry - keep, &key, slot);
            }
            right.count.store((N - keep) as u32, Ordering::Relaxed);
            right.right.store(node.right.load(Ordering::Relaxed), Ordering::Relaxed);
            store(&right.high, &load(&node.high));
        });
        if grows {
            right.insert_at(0, key, slot);
        } else {
            separator = right.get(0).0;
            if at > keep {
                right.insert_at(at - keep, key, slot);
            }
        }
        node.write(|node| {
            node.count.store(keep as u32, Ordering::Relaxed);
            store(&node.high, &separator);
            node.right.store(new + 1, Ordering::Relaxed);
        });
        if !grows && at <= keep {
            node.insert_at(at, key, slot);
        }
        separator
    }

    fn remove(&self, key: &Words<W>) -> bool {
        let mut numbers = self.write();
        let (path, levels) = self.path(key);
        let leaf = self.node(path[0]);
        let at = leaf.rank(key, false);
        if at == leaf.count() || leaf.get(at).0 != *key {
            return false;
        }
        leaf.remove_at(at);
        for level in 0..levels - 1 {
            let few = self.node(path[level]).count() < Self::FEW;
            if !few || !self.merge(path[level], path[level + 1], level > 0, &mut numbers) {
                break;
            }
        }
        // A root with one child is one level too many.
        let (mut root, mut levels) = self.top();
        while levels > 1 && self.node(root).count() == 1 {
            numbers.retired.push(root);
            (root, levels) = (self.node(root).get(0).1, levels - 1);
            self.root.store(u64::from(root) | (levels as u64) << 32, Ordering::Release);
        }
        true
    }

    /// Merges a node that has few entries with a neighbour under the same parent, if it is empty or both fit into one
    /// with room left.
    fn merge(&self, number: u32, parent: u32, inner: bool, numbers: &mut Numbers) -> bool {
        let above = self.node(parent);
        let at = (0..above.count()).find(|&at| above.get(at).1 == number).expect("a node is a child of its parent");
        let left_at = if at + 1 < above.count() { at } else { at.saturating_sub(1) };
        if left_at + 1 >= above.count() {
            return false;
        }
        let (separator, gone) = above.get(left_at + 1);
        let left = self.node(above.get(left_at).1);
        let right = self.node(gone);
        let empty = left.count() == 0 || right.count() == 0;
        if !empty && left.count() + right.count() > N * 3 / 4 {
            return false;
        }
        left.write(|left| {
            let count = left.count();
            for entry in 0..right.count() {
                let (key, slot) = right.get(entry);
                // The first key of an inner node counts as the smallest of all there, but not here.
                let key = if inner && entry == 0 { separator } else { key };
                left.set(count + entry, &key, slot);
            }
            left.count.store((count + right.count()) as u32, Ordering::Relaxed);
            store(&left.high, &load(&right.high));
            left.right.store(right.right.load(Ordering::Relaxed), Ordering::Relaxed);
        });
        above.remove_at(left_at + 1);
        numbers.retired.push(gone);
        true
    }

    /// Down to the leaf of a key, to the right where a node was split since its parent was read.
    #[inline(always)]
    fn leaf(&self, key: &Words<W>) -> u32 {
        let (mut number, mut level) = self.top();
        while level > 1 {
            let (next, down) = self.node(number).read(|node| match node.right.load(Ordering::Relaxed) {
                right if right != 0 && load(&node.high) <= *key => (right - 1, false),
                _ => (node.get(node.child(key)).1, true),
            });
            self.prefetch(next);
            level -= usize::from(down);
            number = next;
        }
        number
    }

    /// Calls `f` with rows from `from` on until it says no, and `near` with the first `expected` of them some rows
    /// before.
    #[inline]
    fn scan(&self, from: &Words<W>, expected: usize, near: impl Fn(u32), mut f: impl FnMut(u32) -> bool) {
        let mut number = self.leaf(from);
        let (mut from, mut expected) = (*from, expected);
        loop {
            let leaf = self.node(number).read(|node| Leaf::of(node, &from));
            let rows = &leaf.rows[..leaf.count];
            let soon = expected.min(leaf.count);
            expected -= soon;
            if leaf.right != 0 && expected > 0 {
                self.prefetch(leaf.right - 1);
            }
            rows[..soon].iter().for_each(|&row| near(row));
            for &row in rows {
                if !f(row) {
                    return;
                }
            }
            if leaf.right == 0 {
                return;
            }
            (number, from) = (leaf.right - 1, leaf.next);
        }
    }

    /// # Safety
    /// Nobody is reading the index.
    unsafe fn reclaim(&self) {
        let numbers = &mut *self.write();
        for number in numbers.retired.drain(..) {
            self.node(number).write(|node| {
                node.count.store(0, Ordering::Relaxed);
                node.right.store(0, Ordering::Relaxed);
            });
            numbers.free.push(number);
        }
    }
}

/// See the module: a tree of one-word keys, or of wide ones.
#[derive(Debug)]
pub(crate) enum OrderedIndex {
    Word(Tree<1, 40>),
    Wide(Tree<4, 27>),
}

macro_rules! either {
    ($self:ident, $tree:ident => $body:expr) => {
        match $self {
            Self::Word($tree) => $body,
            Self::Wide($tree) => $body,
        }
    };
}

impl OrderedIndex {
    /// An empty index; `exact` says that every key is one word.
    pub(crate) fn new(exact: bool, pages: Pages) -> Result<Self, OutOfMemory> {
        Ok(if exact { Self::Word(Tree::new(pages)?) } else { Self::Wide(Tree::new(pages)?) })
    }

    /// Bytes reserved for nodes.
    pub(crate) fn bytes(&self) -> usize {
        either!(self, tree => tree.nodes.bytes())
    }

    /// How many keys were ever linked. Who reads the same number before and after a scan has missed none in between; a
    /// key counts before its [`Self::insert`] returns.
    #[inline]
    pub(crate) fn linked(&self) -> u64 {
        either!(self, tree => tree.linked.load(Ordering::Acquire))
    }

    /// Links `row` under `key`, which must not be there.
    ///
    /// # Errors
    /// No memory; then nothing has changed.
    pub(crate) fn insert(&self, key: &Key, row: u32) -> Result<(), OutOfMemory> {
        match self {
            Self::Word(tree) => tree.insert(&Tree::<1, 40>::words(key), row),
            Self::Wide(tree) => tree.insert(&Tree::<4, 27>::words(key), row),
        }
    }

    /// Unlinks `key`; whether it was there.
    pub(crate) fn remove(&self, key: &Key) -> bool {
        match self {
            Self::Word(tree) => tree.remove(&Tree::<1, 40>::words(key)),
            Self::Wide(tree) => tree.remove(&Tree::<4, 27>::words(key)),
        }
    }

    /// Calls `f` with the rows from key `from` on, in order, until it says no; `near` is called with each of the first
    /// `expected` ones some rows before.
    #[inline]
    pub(crate) fn scan(&self, from: &Key, expected: usize, near: impl Fn(u32), f: impl FnMut(u32) -> bool) {
        match self {
            Self::Word(tree) => tree.scan(&Tree::<1, 40>::words(from), expected, near, f),
            Self::Wide(tree) => tree.scan(&Tree::<4, 27>::words(from), expected, near, f),
        }
    }

    /// Frees the nodes that were merged away.
    ///
    /// # Safety
    /// Nobody is reading the index.
    pub(crate) unsafe fn reclaim(&self) {
        // SAFETY: as the caller's.
        either!(self, tree => unsafe { tree.reclaim() })
    }
}

mod keys;
#[cfg(test)]
mod tests;
