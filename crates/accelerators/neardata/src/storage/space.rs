//! Which pages of the file are free, and which logical pages are.
//!
//! A physical page that no seal names is free, but a reader that looked up its place a moment ago may still be on its
//! way there. Readers therefore hold a [`Pin`] from before the look-up until after the read, and a page that is
//! given up waits until the pins taken before that are gone.
//!
//! Invariant: a page handed out by [`Space::take`] is named by no durable seal, and no pinned reader can look for
//! anything in it. Pages are handed out in ascending order, going round, so that what is written together lies
//! together and is read together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data are sound between any two statements of its users.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Free places, physical and logical.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// One bit for each page of the file: set if free.
    free: Vec<u64>,
    pages: u32,
    free_pages: u32,
    cursor: u32,
    epoch: u64,
    pins: BTreeMap<u64, u32>,
    /// Pages given up, with the newest epoch whose readers may want them.
    waiting: VecDeque<(u64, Vec<u32>)>,
    free_logical: Vec<u32>,
    next_logical: u32,
}

impl Space {
    /// The space of a file of `pages` pages, none of them free yet; logical pages below `next_logical` are in use.
    pub(super) fn new(pages: u32, next_logical: u32) -> Self {
        let mut space = Self { next_logical, ..Self::default() };
        space.lengthen(pages);
        (space.free_pages, space.cursor) = (0, 0);
        space.free.fill(0);
        space
    }

    /// Pages of the file.
    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    /// Pages that can be taken.
    pub(super) fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Pages that can be taken now or when readers have gone on.
    pub(super) fn unused_pages(&self) -> u32 {
        self.free_pages + self.waiting.iter().map(|(_, pages)| pages.len() as u32).sum::<u32>()
    }

    /// The file has grown; the new pages are free.
    pub(super) fn lengthen(&mut self, pages: u32) {
        self.free.resize((pages as usize).div_ceil(64), 0);
        let old = self.pages;
        self.pages = pages;
        (old..pages).for_each(|page| self.give(page));
        self.cursor = old;
    }

    /// Makes a page free that no reader can want.
    pub(super) fn give(&mut self, page: u32) {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        assert!(page < self.pages && self.free[word] & bit == 0, "page {page} is given up twice");
        self.free[word] |= bit;
        self.free_pages += 1;
    }

    /// Makes pages free that readers may still want.
    pub(super) fn retire(&mut self, pages: Vec<u32>) {
        self.epoch += 1;
        if !pages.is_empty() {
            self.waiting.push_back((self.epoch, pages));
        }
        self.drain();
    }

    fn drain(&mut self) {
        let oldest = self.pins.keys().next().copied().unwrap_or(u64::MAX);
        while self.waiting.front().is_some_and(|&(epoch, _)| epoch <= oldest) {
            let (_, pages) = self.waiting.pop_front().expect("there is one");
            pages.into_iter().for_each(|page| self.give(page));
        }
    }

    /// Takes `count` pages, or none if there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if (self.free_pages as usize) < count {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let word = self.cursor as usize / 64;
            let rest = self.free.get(word).map_or(0, |bits| bits & (u64::MAX << (self.cursor % 64)));
            if rest == 0 {
                let next = (word as u32 + 1) * 64;
                self.cursor = if next >= self.pages { 0 } else { next };
                continue;
            }
            let page = word as u32 * 64 + rest.trailing_zeros();
            self.free[word] &= !(1 << (page % 64));
            self.cursor = page + 1;
            taken.push(page);
        }
        self.free_pages -= count as u32;
        Some(taken)
    }

    /// A logical page that has no content.
    pub(super) fn take_logical(&mut self) -> Option<u32> {
        self.free_logical.pop().or_else(|| {
            let logical = self.next_logical;
            // The last one could collide with RecordId::HOST.
            (logical < u32::MAX).then(|| {
                self.next_logical += 1;
                logical
            })
        })
    }

    /// Takes back a logical page that no seal gives content to.
    pub(super) fn give_logical(&mut self, logical: u32) {
        self.free_logical.push(logical);
    }
}

/// Holds pages that were in use when it was made.
pub(super) struct Pin<'s> {
    space: &'s Mutex<Space>,
    epoch: u64,
}

impl<'s> Pin<'s> {
    pub(super) fn new(space: &'s Mutex<Space>) -> Self {
        let mut guard = lock(space);
        let epoch = guard.epoch;
        *guard.pins.entry(epoch).or_default() += 1;
        Self { space, epoch }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut space = lock(self.space);
        let pins = space.pins.get_mut(&self.epoch).expect("the pin is counted");
        *pins -= 1;
        if *pins == 0 {
            space.pins.remove(&self.epoch);
            space.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_ascending_order_and_go_round() {
        let mut space = Space::new(4, 1);
        assert_eq!((space.take(1), space.free_pages()), (None, 0));
        space.lengthen(134);
        assert_eq!(space.take(3), Some(vec![4, 5, 6]));
        space.give(2);
        space.give(5);
        assert_eq!(space.take(127), Some((7..134).collect()));
        assert_eq!((space.take(3), space.take(2)), (None, Some(vec![2, 5])));
    }

    #[test]
    fn a_page_waits_for_those_who_may_be_reading_it() {
        let space = Mutex::new(Space::new(8, 1));
        let before = Pin::new(&space);
        lock(&space).retire(vec![3]);
        let after = Pin::new(&space);
        lock(&space).retire(vec![4]);
        assert_eq!(lock(&space).free_pages(), 0);
        assert_eq!(lock(&space).unused_pages(), 2);
        drop(before);
        assert_eq!(lock(&space).take(1), Some(vec![3]));
        drop(after);
        assert_eq!(lock(&space).take(1), Some(vec![4]));
    }
}
