//! Who works on the host: the snapshots in use, and what became of the work.
//!
//! Every worker has a line of its own, where it says which snapshot it reads, so that beginning a transaction writes
//! nothing shared. The [`Views`] are all snapshots in use; versions that none of them sees, nor a later one, may go,
//! also those between an old snapshot and the others: a bulk operation that takes long does not make tuples grow.
//!
//! Invariant: a snapshot is one of the views that were computed before, or not below their bound. A worker writes the
//! visible timestamp to its line as the least that its snapshot can be, reads its snapshot, and writes that; a
//! computation of views reads the visible timestamp, which is the bound, and then the lines, and does not go above
//! what may still become a snapshot. Whichever came first in the one order of these, the bound is not above.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use crate::record::Timestamp;

const IDLE: u64 = u64::MAX;
/// In a line: the snapshot may be any from this one on. No timestamp has this bit.
const FROM: u64 = 1 << 63;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Committed,
    Aborted,
    Failed,
    Superseded,
    Busy,
    TimedOut,
    CacheHit,
    DeviceRead,
    BulkCommitted,
    BulkAborted,
    Flush,
    FlushedVersion,
}

const EVENTS: usize = Event::FlushedVersion as usize + 1;

/// What became of the work on a host, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Host transactions that committed.
    pub committed: u64,
    /// Those that their procedure aborted.
    pub aborted: u64,
    /// Those that were given up.
    pub failed: u64,
    /// Conflicts because another one had updated a tuple first.
    pub superseded: u64,
    /// Conflicts because waiting for a lock could have been waiting in a circle.
    pub busy: u64,
    /// Conflicts because a lock was waited for too long.
    pub timed_out: u64,
    /// Rows read from the cache of cold rows.
    pub cache_hits: u64,
    /// Rows read from the storage one by one.
    pub device_reads: u64,
    /// Bulk updates that committed.
    pub bulk_committed: u64,
    /// Bulk updates that did not.
    pub bulk_aborted: u64,
    /// Flushes of a table that had something to flush.
    pub flushes: u64,
    /// Versions that these stored.
    pub flushed_versions: u64,
}

/// The line of one worker.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Line {
    snapshot: AtomicU64,
    /// Of a flush, which changes nothing.
    flushes: bool,
    /// Transactions that have ended.
    ended: AtomicU64,
    events: [AtomicU64; EVENTS],
}

impl Line {
    /// Begins to read a snapshot; `and_later`: and what becomes visible after it.
    #[inline]
    pub(super) fn begin(&self, clock: &Clock, and_later: bool) -> Timestamp {
        self.snapshot.store(clock.visible() | FROM, Ordering::SeqCst);
        let snapshot = clock.visible();
        if !and_later {
            self.snapshot.store(snapshot, Ordering::Release);
        }
        snapshot
    }

    /// Reads no snapshot any more.
    #[inline]
    pub(super) fn end(&self) {
        self.ended.store(self.ended.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.snapshot.store(IDLE, Ordering::Release);
    }

    /// Counts. Only this line's worker does, so there is nothing to lose between load and store.
    #[inline]
    pub(super) fn count(&self, event: Event, more: u64) {
        let counter = &self.events[event as usize];
        counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

/// What is seen: by the snapshots in use, and by all that may begin. Once computed it stays right, and gets too wide.
#[derive(Clone, Debug, Default)]
pub(super) struct Views {
    /// Sorted; those below the bound.
    snapshots: Vec<Timestamp>,
    /// Anything from here on may be seen.
    bound: Timestamp,
}

impl Views {
    /// With one more snapshot.
    #[cfg(test)]
    pub(super) fn with(mut self, snapshot: Timestamp) -> Self {
        if let Err(at) = self.snapshots.binary_search(&snapshot) {
            self.snapshots.insert(at, snapshot);
        }
        self
    }

    /// The oldest of them: the watermark below which nothing is seen but what is seen there.
    pub(super) fn oldest(&self) -> Timestamp {
        self.snapshots.first().copied().unwrap_or(self.bound).min(self.bound)
    }

    /// Whether anybody may see a version that was `created` then and superseded at `next`.
    #[inline]
    pub(super) fn sees(&self, created: Timestamp, next: Timestamp) -> bool {
        let first = || self.snapshots.iter().find(|&&snapshot| snapshot >= created);
        next > self.bound || first().is_some_and(|&snapshot| snapshot < next)
    }
}

#[derive(Debug, Default)]
struct All {
    lines: Vec<Arc<Line>>,
    /// Counts of workers that are gone.
    gone: [u64; EVENTS],
}

/// The lines of all workers.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<All>);

impl Sessions {
    /// A line for a new worker, or for a flush.
    pub(super) fn join(&self, flushes: bool) -> Arc<Line> {
        let (snapshot, ended, events) = (AtomicU64::new(IDLE), AtomicU64::new(0), Default::default());
        let line = Arc::new(Line { snapshot, flushes, ended, events });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lines.push(line.clone());
        line
    }

    /// Takes a worker's line back.
    pub(super) fn leave(&self, line: &Arc<Line>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.lines.retain(|other| !Arc::ptr_eq(other, line));
        for (total, count) in all.gone.iter_mut().zip(&line.events) {
            *total += count.load(Ordering::Relaxed);
        }
    }

    /// Computes anew what is seen.
    pub(super) fn views(&self, clock: &Clock, views: &mut Views) {
        views.bound = clock.visible();
        views.snapshots.clear();
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for line in &all.lines {
            match line.snapshot.load(Ordering::SeqCst) {
                IDLE => {}
                from if from & FROM != 0 => views.bound = views.bound.min(from & !FROM),
                snapshot => views.snapshots.push(snapshot),
            }
        }
        drop(all);
        views.snapshots.sort_unstable();
    }

    /// Waits until every transaction has ended that runs now, but for that of `own`; no longer than `timeout`. Flushes
    /// are none.
    pub(super) fn wait_for_others(&self, own: &Arc<Line>, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut running: Vec<(Arc<Line>, u64)> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let others = all.lines.iter().filter(|line| !line.flushes && !Arc::ptr_eq(line, own));
            others.map(|line| (line.clone(), line.ended.load(Ordering::Acquire))).collect()
        };
        loop {
            running.retain(|(line, ended)| {
                line.snapshot.load(Ordering::SeqCst) != IDLE && line.ended.load(Ordering::Acquire) == *ended
            });
            if running.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// What was counted so far.
    pub(super) fn counters(&self) -> Counters {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |event: Event| {
            let of = |line: &Arc<Line>| line.events[event as usize].load(Ordering::Relaxed);
            all.gone[event as usize] + all.lines.iter().map(of).sum::<u64>()
        };
        Counters {
            committed: count(Event::Committed),
            aborted: count(Event::Aborted),
            failed: count(Event::Failed),
            superseded: count(Event::Superseded),
            busy: count(Event::Busy),
            timed_out: count(Event::TimedOut),
            cache_hits: count(Event::CacheHit),
            device_reads: count(Event::DeviceRead),
            bulk_committed: count(Event::BulkCommitted),
            bulk_aborted: count(Event::BulkAborted),
            flushes: count(Event::Flush),
            flushed_versions: count(Event::FlushedVersion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_is_the_oldest_snapshot_in_use() {
        let (clock, sessions) = (Clock::new(3), Sessions::default());
        let (old, young) = (sessions.join(false), sessions.join(false));
        let oldest = || {
            let mut views = Views::default();
            sessions.views(&clock, &mut views);
            views.oldest()
        };
        assert_eq!(old.begin(&clock, false), 3);
        clock.publish(clock.issue());
        assert_eq!((young.begin(&clock, true), oldest()), (4, 3));
        old.end();
        clock.publish(clock.issue());
        assert_eq!(oldest(), 4);
        sessions.leave(&young);
        assert_eq!(oldest(), 5);
    }

    #[test]
    fn what_lies_between_the_snapshots_in_use_is_not_seen() {
        let (clock, sessions) = (Clock::new(10), Sessions::default());
        let (old, open) = (sessions.join(false), sessions.join(false));
        let publish = |to| (clock.visible()..to).for_each(|_| clock.publish(clock.issue()));
        old.begin(&clock, false);
        publish(20);
        let mut views = Views::default();
        sessions.views(&clock, &mut views);
        let seen =
            |views: &Views| [(5, 10), (5, 11), (10, 20), (11, 20), (11, 21), (30, 31)].map(|(a, b)| views.sees(a, b));
        assert_eq!(seen(&views), [false, true, true, false, true, true]);
        assert!(views.clone().with(15).sees(11, 20));
        publish(30);
        open.begin(&clock, true);
        publish(40);
        sessions.views(&clock, &mut views);
        assert_eq!((views.sees(11, 30), views.sees(11, 31), views.oldest()), (false, true, 10));
        open.end();
        sessions.views(&clock, &mut views);
        assert_eq!((views.sees(11, 31), views.sees(5, 11)), (false, true));
    }

    #[test]
    fn counts_outlive_their_worker() {
        let sessions = Sessions::default();
        let (one, other) = (sessions.join(false), sessions.join(false));
        one.count(Event::Busy, 2);
        other.count(Event::Busy, 3);
        sessions.leave(&one);
        assert_eq!((sessions.counters().busy, sessions.counters().committed), (5, 0));
    }
}
