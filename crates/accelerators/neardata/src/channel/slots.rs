//! Which calls and slots are free: the host's book, because the host hands them out.
//!
//! A call takes all its slots when it begins and keeps them until it ends, so calls never wait for each other's slots
//! half-way. Bulk calls leave a quarter of the slots, and at least one, to short ones.
//!
//! Limit: a call that is made while the pieces of another one are looked at needs a number and a slot of its own; as
//! many threads as there are calls, all doing that, would wait for ever.

use std::sync::{Condvar, Mutex, PoisonError};

use super::entry::{Slots, WINDOW};
use super::segment::ChannelSize;

#[derive(Debug)]
struct Free {
    calls: Vec<u16>,
    slots: Vec<u16>,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Free>,
    returned: Condvar,
    /// Slots that bulk calls leave to others.
    reserve: usize,
}

impl Pool {
    pub(crate) fn new(size: ChannelSize) -> Self {
        let free = Free { calls: (0..size.calls).collect(), slots: (0..size.slots).collect(), closed: false };
        Self { free: Mutex::new(free), returned: Condvar::new(), reserve: usize::from(size.slots / 4).max(1) }
    }

    /// A call with one slot, or, if it is `bulk`, up to [`WINDOW`]; nothing once it is closed.
    pub(crate) fn acquire(&self, bulk: bool) -> Option<(u16, Slots)> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let none = |free: &mut Free| !free.closed && (free.calls.is_empty() || free.slots.is_empty());
        let mut free = self.returned.wait_while(free, none).unwrap_or_else(PoisonError::into_inner);
        if free.closed {
            return None;
        }
        let most = if bulk { free.slots.len().saturating_sub(self.reserve).clamp(1, WINDOW) } else { 1 };
        let call = free.calls.pop()?;
        let kept = free.slots.len() - most;
        let slots = Slots::new(&free.slots[kept..]);
        free.slots.truncate(kept);
        Some((call, slots))
    }

    pub(crate) fn release(&self, call: u16, slots: &Slots) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.calls.push(call);
        free.slots.extend_from_slice(slots.all());
        drop(free);
        // A bulk call gives back more than one.
        self.returned.notify_all();
    }

    /// Whoever waits, and whoever comes, gets nothing.
    pub(crate) fn close(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_calls_leave_slots_to_short_ones() {
        let pool = Pool::new(ChannelSize { calls: 4, slots: 8 });
        let (first, slots) = pool.acquire(true).expect("all are free");
        assert_eq!(slots.all().len(), 4);
        let (second, more) = pool.acquire(true).expect("half are free");
        assert_eq!(more.all().len(), 2);
        let (third, one) = pool.acquire(true).expect("the reserve, but for one slot");
        assert_eq!(one.all().len(), 1);
        let (fourth, last) = pool.acquire(false).expect("the last");
        assert_eq!(last.all().len(), 1);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.acquire(false));
            pool.release(first, &slots);
            let (call, _) = waiter.join().expect("no panic").expect("one came back");
            assert_eq!(call, first);
            for (call, slots) in [(second, more), (third, one)] {
                pool.release(call, &slots);
            }
            assert_ne!(pool.acquire(false).expect("two are free").0, fourth);
            assert!(pool.acquire(false).is_some());
            let waiter = scope.spawn(|| pool.acquire(false));
            pool.close();
            assert!(waiter.join().expect("no panic").is_none() && pool.acquire(true).is_none());
        });
    }
}
