//! A ring of entries with one writing and one reading process.
//!
//! The writer stores the entry and then the tail (Release); the reader loads the tail (Acquire), copies the entry, and
//! then stores the head. Each keeps its own counter in private memory and takes the other's for a claim that is
//! checked.
//!
//! A doorbell is a count to sleep on, and a word says whether to ring. A reader that finds nothing looks again for a
//! short time, says that it sleeps, looks once more, and sleeps; a writer looks at that word after it has stored the
//! tail. Full fences on both sides make one of them see the other, so no entry is slept through, and no system call is
//! made while the reader is awake. A reader that turns to other work leaves the second doorbell to a stand-in
//! ([`Reader::leave`]), who need not be woken as long as nothing comes.
//!
//! Invariant: positions only grow, and every entry carries its own, so an entry that was not written for this place in
//! this round is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use lockwork_memory::shared::{sleep, wake};

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
        let [who, reader, stand_in] = segment.bell(direction);
        match who.load(Ordering::Relaxed) {
            NOBODY => return Ok(false),
            READER => ring(reader),
            _ => ring(stand_in),
        }
        Ok(true)
    }
}

/// Whom to ring for: the reader is awake.
const NOBODY: u32 = 0;
/// Whom to ring for: the reader sleeps.
const READER: u32 = 1;
/// Whom to ring for: the reader is at other work.
const STAND_IN: u32 = 2;

fn ring(count: &AtomicU32) {
    count.fetch_add(1, Ordering::SeqCst);
    wake(count, u32::MAX);
}

/// Wakes reader and stand-in of a ring, whether there is an entry or not.
pub(crate) fn ring_all(segment: &Segment, direction: Direction) {
    let [_, reader, stand_in] = segment.bell(direction);
    ring(reader);
    ring(stand_in);
}

/// Sleeps until the stand-in is rung for: from when `look` has been called, which it is first.
pub(crate) fn stand_in(segment: &Segment, direction: Direction, look: impl FnOnce()) {
    let [_, _, count] = segment.bell(direction);
    let before = count.load(Ordering::SeqCst);
    look();
    sleep(count, before, None);
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
            // The other process may be waiting for this very processor.
            std::thread::yield_now();
        }
        let [_, count, _] = self.segment.bell(self.direction);
        let before = count.load(Ordering::SeqCst);
        if self.announce(READER)? && !stop() {
            sleep(count, before, None);
        }
        self.awake();
        Ok(())
    }

    /// Says for whom to ring, and then whether there is still nothing to read.
    fn announce(&self, who: u32) -> Result<bool, String> {
        self.segment.bell(self.direction)[0].store(who, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Ok(self.there()? == 0)
    }

    /// Nobody needs to ring: the reader looks.
    pub(crate) fn awake(&self) {
        self.segment.bell(self.direction)[0].store(NOBODY, Ordering::SeqCst);
    }

    /// The reader turns to other work, and the stand-in is to be rung for. False: there is something to read already.
    pub(crate) fn leave(&self) -> Result<bool, String> {
        self.announce(STAND_IN)
    }
}
