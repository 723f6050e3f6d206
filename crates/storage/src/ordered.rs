//! The ordered index: a skiplist from key to row, for scans.
//!
//! One writer at a time, behind a lock; readers go along without one. A writer links a node from the bottom up with
//! release stores, so a reader that sees a node sees all of it; an unlinked node stays readable until the owner says
//! that nobody reads any more ([`OrderedIndex::reclaim`]). The height of a node follows from its key, so the structure
//! depends on the contents alone, not on timing; it is also the model of the hardware skiplist (BionicDB, section
//! 4.4.2).
//!
//! Trade-off: inserts into one table are serialised. Deterministic engines insert little at a time; where it
//! matters, a node is linked in a few hundred nanoseconds.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockwork_memory::{OutOfMemory, prefetch};
use lockwork_procedure::key::{Key, mix};

/// The most levels; with one node in four going up, enough for a million million keys.
const LEVELS: usize = 20;

/// A node; `height` links follow it in memory.
#[repr(C)]
struct Node {
    key: Key,
    row: u32,
    height: u32,
    links: [AtomicPtr<Node>; 0],
}

impl Node {
    fn layout(height: usize) -> Layout {
        let links = Layout::array::<AtomicPtr<Node>>(height).expect("at most twenty links");
        Layout::new::<Node>().extend(links).expect("a small node").0.pad_to_align()
    }

    fn new(key: Key, row: u32, height: usize) -> Result<NonNull<Node>, OutOfMemory> {
        let layout = Self::layout(height);
        // SAFETY: the layout is not empty; every field is written before the node is used.
        unsafe {
            let node = alloc(layout).cast::<Node>();
            let refused = OutOfMemory { what: "a node of an ordered index", bytes: layout.size() };
            let found = NonNull::new(node).ok_or(refused)?;
            (&raw mut (*node).key).write(key);
            (&raw mut (*node).row).write(row);
            (&raw mut (*node).height).write(height as u32);
            let links = (&raw mut (*node).links).cast::<AtomicPtr<Node>>();
            (0..height).for_each(|level| links.add(level).write(AtomicPtr::new(null_mut())));
            Ok(found)
        }
    }

    /// # Safety
    /// `node` is alive and has more than `level` links.
    #[inline(always)]
    unsafe fn link<'a>(node: *const Node, level: usize) -> &'a AtomicPtr<Node> {
        // SAFETY: as the caller's.
        unsafe {
            debug_assert!(level < (*node).height as usize);
            &*(&raw const (*node).links).cast::<AtomicPtr<Node>>().add(level)
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct OrderedIndex {
    head: NonNull<Node>,
    /// Nodes that are unlinked but may still be read.
    retired: Mutex<Vec<NonNull<Node>>>,
    bytes: AtomicUsize,
}

// SAFETY: nodes are shared through atomics as the module says; a node's key and row never change.
unsafe impl Send for OrderedIndex {}
// SAFETY: as above.
unsafe impl Sync for OrderedIndex {}

/// How high the node of a key is: one in four goes up a level.
fn height(key: &Key) -> usize {
    let bits = mix(key.hash() ^ 0x5EED_0F5C_1A11_5EED);
    (1 + bits.trailing_zeros() as usize / 2).min(LEVELS)
}

impl OrderedIndex {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        Ok(Self { head: Node::new(Key([0; 4]), 0, LEVELS)?, retired: Mutex::default(), bytes: AtomicUsize::new(0) })
    }

    /// Bytes of all nodes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn write(&self) -> MutexGuard<'_, Vec<NonNull<Node>>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On every level the last node before `key`, and the first node from `key` on at the bottom.
    #[inline]
    fn seek(&self, key: &Key, path: &mut [*const Node; LEVELS]) -> *mut Node {
        let mut node: *const Node = self.head.as_ptr();
        let mut next = null_mut();
        for level in (0..LEVELS).rev() {
            loop {
                // SAFETY: a node on the way was linked on this level, so it has the link, and it is not freed while
                // anybody reads.
                unsafe {
                    next = Node::link(node, level).load(Ordering::Acquire);
                    if next.is_null() || (*next).key >= *key {
                        break;
                    }
                }
                node = next;
            }
            path[level] = node;
        }
        next
    }

    /// Links `row` under `key`, which must not be there.
    ///
    /// # Errors
    /// No memory; then nothing has changed.
    pub(crate) fn insert(&self, key: &Key, row: u32) -> Result<(), OutOfMemory> {
        let _writer = self.write();
        let mut path = [std::ptr::null::<Node>(); LEVELS];
        let after = self.seek(key, &mut path);
        // SAFETY: nodes are alive; only this writer changes links.
        unsafe {
            assert!(after.is_null() || (*after).key != *key, "an ordered index holds a key once");
            let height = height(key);
            let node = Node::new(*key, row, height)?;
            for (level, before) in path.iter().enumerate().take(height) {
                let before = Node::link(*before, level);
                Node::link(node.as_ptr(), level).store(before.load(Ordering::Relaxed), Ordering::Relaxed);
                before.store(node.as_ptr(), Ordering::Release);
            }
            self.bytes.fetch_add(Node::layout(height).size(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Unlinks `key`; whether it was there.
    pub(crate) fn remove(&self, key: &Key) -> bool {
        let mut writer = self.write();
        let mut path = [std::ptr::null::<Node>(); LEVELS];
        let node = self.seek(key, &mut path);
        // SAFETY: nodes are alive; only this writer changes links.
        unsafe {
            let Some(found) = NonNull::new(node).filter(|node| node.as_ref().key == *key) else { return false };
            let height = found.as_ref().height as usize;
            for level in (0..height).rev() {
                let next = Node::link(node, level).load(Ordering::Relaxed);
                Node::link(path[level], level).store(next, Ordering::Release);
            }
            writer.push(found);
        }
        true
    }

    /// Calls `f` with every row from key `from` on, in order, until it says no.
    #[inline]
    pub(crate) fn scan(&self, from: &Key, mut f: impl FnMut(u32) -> bool) {
        let mut path = [std::ptr::null::<Node>(); LEVELS];
        let mut node = self.seek(from, &mut path);
        while !node.is_null() {
            // SAFETY: a node that was reached is not freed while anybody reads.
            unsafe {
                let next = Node::link(node, 0).load(Ordering::Acquire);
                prefetch(next.cast());
                if !f((*node).row) {
                    return;
                }
                node = next;
            }
        }
    }

    /// Frees the nodes that were unlinked.
    ///
    /// # Safety
    /// Nobody is reading the index.
    pub(crate) unsafe fn reclaim(&self) {
        for node in self.write().drain(..) {
            // SAFETY: unlinked, and by the caller's promise nobody is on it any more.
            unsafe { self.free(node.as_ptr()) }
        }
    }

    unsafe fn free(&self, node: *mut Node) {
        // SAFETY: the caller's node was allocated with this layout and is not used again.
        unsafe {
            let layout = Node::layout((*node).height as usize);
            self.bytes.fetch_sub(layout.size().min(self.bytes.load(Ordering::Relaxed)), Ordering::Relaxed);
            dealloc(node.cast(), layout);
        }
    }
}

impl Drop for OrderedIndex {
    fn drop(&mut self) {
        // SAFETY: the owner is the only one left; every node is in the bottom list or retired, never both.
        unsafe {
            self.reclaim();
            let mut node = self.head.as_ptr();
            while !node.is_null() {
                let next = Node::link(node, 0).load(Ordering::Relaxed);
                self.free(node);
                node = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(value: u64) -> Key {
        Key([value, 0, 0, 0])
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map(steps in prop::collection::vec((0_u64..200, any::<bool>()), 0..300), from in 0_u64..220) {
            let (index, mut model) = (OrderedIndex::new().unwrap(), BTreeMap::new());
            for (number, (value, insert)) in steps.into_iter().enumerate() {
                if insert && !model.contains_key(&value) {
                    index.insert(&key(value), number as u32).unwrap();
                    model.insert(value, number as u32);
                } else if !insert {
                    prop_assert_eq!(index.remove(&key(value)), model.remove(&value).is_some());
                }
            }
            let mut found = Vec::new();
            index.scan(&key(from), |row| { found.push(row); found.len() < 20 });
            let expected: Vec<u32> = model.range(from..).map(|(_, row)| *row).take(20).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn readers_see_whole_nodes_while_a_writer_works() {
        let index = OrderedIndex::new().unwrap();
        let insert = |value: u64| index.insert(&key(value), value as u32).unwrap();
        (0..1_000).for_each(|value| insert(value * 2));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..20 {
                    (0..1_000).for_each(|value| insert(value * 2 + 1));
                    (0..1_000).for_each(|value| assert!(index.remove(&key(value * 2 + 1))));
                }
            });
            while !writer.is_finished() {
                let mut last = None;
                let mut even = 0;
                index.scan(&key(0), |row| {
                    assert!(last < Some(row), "out of order");
                    last = Some(row);
                    even += u32::from(row % 2 == 0);
                    true
                });
                assert_eq!(even, 1_000, "a scan missed a row that was always there");
            }
        });
    }
}
