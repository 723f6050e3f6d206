//! A ring of entries with one writing and one reading process.
//!
//! The writer stores the entry and then the tail (Release); the reader loads the tail (Acquire), copies the entry, and
//! then stores the head. Each keeps its own counter in private memory and takes the other's for a claim that is checked.
//!
//! The doorbell is a count and a flag. A reader that finds nothing looks again for a short time, sets the flag, looks
//! once more, and sleeps on the count; a writer looks at the flag after it has stored the tail. Full fences on both
//! sides make one of them see the other, so no entry is slept through, and no system call is made while the reader is
//! awake.
//!
//! Invariant: positions only grow, and every entry carries its own, so an entry that was not written for this place in
//! this round is noticed.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::futex;
use super::segment::{Direction, ENTRY_WORDS, Segment};

/// An entry as it lies in the ring.
pub(crate) type Words = [u64; ENTRY_WORDS];

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    segment: Arc<Segment>,
    direction: Direction,
    tail: u64,
}

impl Writer {
    pub(crate) fn new(segment: Arc<Segment>, direction: Direction) -> Self {
        Self { segment, direction, tail: 0 }
    }

    /// Where the next entry goes.
    pub(crate) fn position(&self) -> u64 {
        self.tail
    }

    /// Writes an entry, and wakes the reader if it sleeps; says whether it did.
    pub(crate) fn push(&mut self, words: &Words) -> Result<bool, String> {
        let (segment, direction) = (&self.segment, self.direction);
        let head = segment.head(direction).load(Ordering::Acquire);
        let capacity = segment.size().entries() as u64;
        if self.tail.wrapping_sub(head) >= capacity {
            let tail = self.tail;
            return Err(format!("{direction:?} ring of {capacity} entries: {tail} were written, and {head} read"));
        }
        for (word, value) in segment.entry(direction, self.tail).iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.tail += 1;
        segment.tail(direction).store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let asleep = segment.bell(direction)[1].load(Ordering::Relaxed) != 0;
        if asleep {
            ring(segment, direction);
        }
        Ok(asleep)
    }
}

/// Wakes the reader of a ring, whether there is an entry or not.
pub(crate) fn ring(segment: &Segment, direction: Direction) {
    let [count, _] = segment.bell(direction);
    count.fetch_add(1, Ordering::SeqCst);
    futex::wake(count);
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    segment: Arc<Segment>,
    direction: Direction,
    head: u64,
}

impl Reader {
    pub(crate) fn new(segment: Arc<Segment>, direction: Direction) -> Self {
        Self { segment, direction, head: 0 }
    }

    /// Where the next entry is.
    pub(crate) fn position(&self) -> u64 {
        self.head
    }

    /// How many entries there are to read.
    fn there(&self) -> Result<u64, String> {
        let tail = self.segment.tail(self.direction).load(Ordering::Acquire);
        let (there, capacity) = (tail.wrapping_sub(self.head), self.segment.size().entries() as u64);
        if there <= capacity {
            return Ok(there);
        }
        let (direction, head) = (self.direction, self.head);
        Err(format!("{direction:?} ring of {capacity} entries: {tail} were written, and {head} read"))
    }

    /// Takes the next entry, if there is one.
    pub(crate) fn take(&mut self) -> Result<Option<Words>, String> {
        if self.there()? == 0 {
            return Ok(None);
        }
        let entry = self.segment.entry(self.direction, self.head);
        let words = std::array::from_fn(|word| entry[word].load(Ordering::Relaxed));
        self.head += 1;
        self.segment.head(self.direction).store(self.head, Ordering::Release);
        Ok(Some(words))
    }

    /// Waits until there is an entry or `stop` says so or it is rung for: first awake for `spin`, then asleep.
    pub(crate) fn wait(&self, spin: Duration, stop: impl Fn() -> bool) -> Result<(), String> {
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                if self.there()? > 0 {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if stop() {
                return Ok(());
            }
            if start.elapsed() >= spin {
                break;
            }
        }
        let [count, asleep] = self.segment.bell(self.direction);
        let before = count.load(Ordering::SeqCst);
        asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.there()? == 0 && !stop() {
            futex::wait(count, before, None);
        }
        asleep.store(0, Ordering::SeqCst);
        Ok(())
    }
}
