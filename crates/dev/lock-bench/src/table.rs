//! The table of a lock manager that has the whole state of every lock: SrvLock's, NetLock's and ParLock's.
//!
//! Readers share, whoever conflicts waits in order of arrival. A lock is one cache line: token, and the first three of
//! its queue, of which those at the front hold it; more than three are rare and lie in a queue elsewhere.
//!
//! *Invariant*: those who hold a lock are in front of its queue, and all who hold it are readers, or it is one writer.
//! Who is in the queue is not entered again.

use std::collections::VecDeque;

use lockwork_lock_protocol::decider::TOKEN_STEP;

/// One who holds a lock, or waits for it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Entry {
    pub(super) request: u64,
    pub(super) machine: u16,
    pub(super) exclusive: bool,
    granted: bool,
}

/// How many of a queue are in the lock's line.
const INLINE: usize = 3;
/// No queue elsewhere.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Lock {
    token: u64,
    first: [Entry; INLINE],
    /// Of all, here and elsewhere.
    length: u32,
    /// Which of [`Locks::queues`] goes on with the queue.
    rest: u32,
}

const _: () = assert!(size_of::<Lock>() == 64);

/// All locks, and nothing about packets.
#[derive(Debug)]
pub(super) struct Locks {
    locks: Vec<Lock>,
    queues: Vec<VecDeque<Entry>>,
    unused: Vec<u32>,
}

impl Locks {
    pub(super) fn new(count: u64) -> Self {
        let free = Lock { token: 0, first: [Entry::default(); INLINE], length: 0, rest: NOWHERE };
        Self { locks: vec![free; count as usize], queues: Vec::new(), unused: Vec::new() }
    }

    /// Where a lock is in memory.
    pub(super) fn line(&self, lock: usize) -> *const u8 {
        self.locks.as_ptr().wrapping_add(lock).cast()
    }

    /// How many locks are not free.
    pub(super) fn held(&self) -> u64 {
        self.locks.iter().filter(|lock| lock.length > 0).count() as u64
    }

    fn entry(&mut self, lock: usize, at: usize) -> &mut Entry {
        let lock = &mut self.locks[lock];
        if at < INLINE { &mut lock.first[at] } else { &mut self.queues[lock.rest as usize][at - INLINE] }
    }

    fn find(&mut self, lock: usize, machine: u16, request: u64) -> Option<usize> {
        let length = self.locks[lock].length as usize;
        (0..length).find(|&at| {
            let entry = self.entry(lock, at);
            (entry.request, entry.machine) == (request, machine)
        })
    }

    fn push(&mut self, lock: usize, entry: Entry) {
        let state = &mut self.locks[lock];
        let at = state.length as usize;
        state.length += 1;
        if at < INLINE {
            state.first[at] = entry;
            return;
        }
        if state.rest == NOWHERE {
            state.rest = self.unused.pop().unwrap_or_else(|| {
                self.queues.push(VecDeque::new());
                self.queues.len() as u32 - 1
            });
        }
        self.queues[state.rest as usize].push_back(entry);
    }

    fn remove(&mut self, lock: usize, at: usize) {
        let state = &mut self.locks[lock];
        state.length -= 1;
        if at < INLINE {
            state.first.copy_within(at + 1.., at);
        }
        if state.rest == NOWHERE {
            return;
        }
        let queue = &mut self.queues[state.rest as usize];
        if at >= INLINE {
            queue.remove(at - INLINE);
        } else if let Some(next) = queue.pop_front() {
            state.first[INLINE - 1] = next;
        }
        if queue.is_empty() {
            self.unused.push(state.rest);
            state.rest = NOWHERE;
        }
    }

    /// The token of a new grant: a larger one for each writer, and for readers the end of the last writer's range.
    fn token(&mut self, lock: usize, exclusive: bool) -> u64 {
        let token = &mut self.locks[lock].token;
        if exclusive {
            *token += TOKEN_STEP;
            *token
        } else {
            *token | (TOKEN_STEP - 1)
        }
    }

    /// Enters a request; returns the token if the lock is granted.
    pub(super) fn acquire(&mut self, lock: usize, machine: u16, request: u64, exclusive: bool) -> Option<u64> {
        let length = self.locks[lock].length as usize;
        if let Some(at) = self.find(lock, machine, request) {
            // The grant was lost, or is on its way.
            let again = self.entry(lock, at).granted;
            let token = self.locks[lock].token;
            return again.then_some(if exclusive { token } else { token | (TOKEN_STEP - 1) });
        }
        let granted = length == 0 || {
            let last = *self.entry(lock, length - 1);
            last.granted && !last.exclusive && !exclusive
        };
        self.push(lock, Entry { request, machine, exclusive, granted });
        granted.then(|| self.token(lock, exclusive))
    }

    /// Removes whoever released or gave up, and grants to those whose turn it is then.
    pub(super) fn release(&mut self, lock: usize, machine: u16, request: u64, mut grant: impl FnMut(Entry, u64)) {
        let Some(at) = self.find(lock, machine, request) else { return };
        self.remove(lock, at);
        let mut at = 0;
        while at < self.locks[lock].length as usize {
            let next = *self.entry(lock, at);
            if next.exclusive && at > 0 {
                return;
            }
            if !next.granted {
                self.entry(lock, at).granted = true;
                grant(next, self.token(lock, next.exclusive));
            }
            if next.exclusive {
                return;
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody in the queue, and who of them holds.
    fn queue(locks: &mut Locks) -> Vec<(u64, bool)> {
        let entries = (0..locks.locks[0].length as usize).map(|at| *locks.entry(0, at));
        entries.map(|entry| (entry.request, entry.granted)).collect()
    }

    fn release(locks: &mut Locks, request: u64) -> Vec<u64> {
        let mut granted = Vec::new();
        locks.release(0, 1, request, |entry, _| granted.push(entry.request));
        granted
    }

    #[test]
    fn readers_share_writers_do_not_and_all_wait_in_order() {
        let mut locks = Locks::new(1);
        assert_eq!(locks.acquire(0, 1, 1, false), Some(TOKEN_STEP - 1));
        assert!(locks.acquire(0, 1, 2, false).is_some());
        assert_eq!(locks.acquire(0, 1, 3, true), None);
        // Behind a writer, also a reader waits.
        for reader in 4..8 {
            assert_eq!(locks.acquire(0, 1, reader, false), None);
        }
        assert_eq!(locks.acquire(0, 1, 8, true), None);
        assert_eq!((release(&mut locks, 2), release(&mut locks, 1)), (vec![], vec![3]));
        // One gives up in the middle.
        assert!(release(&mut locks, 6).is_empty());
        assert_eq!(queue(&mut locks), [(3, true), (4, false), (5, false), (7, false), (8, false)]);
        assert_eq!(release(&mut locks, 3), [4, 5, 7]);
        assert_eq!((release(&mut locks, 7), release(&mut locks, 5), release(&mut locks, 4)), (vec![], vec![], vec![8]));
        assert!(release(&mut locks, 8).is_empty());
        assert_eq!((locks.locks[0].length, locks.locks[0].rest, locks.unused.len()), (0, NOWHERE, 1));
    }

    #[test]
    fn who_withdraws_lets_those_behind_it_through() {
        let mut locks = Locks::new(1);
        let granted = [(1, false), (2, true), (3, false)].map(|(request, x)| locks.acquire(0, 1, request, x).is_some());
        assert_eq!(granted, [true, false, false]);
        assert_eq!(release(&mut locks, 2), [3]);
    }

    #[test]
    fn copies_are_granted_again_and_not_entered_again() {
        let mut locks = Locks::new(1);
        let token = locks.acquire(0, 1, 1, true);
        assert_eq!((token, locks.acquire(0, 1, 1, true)), (Some(TOKEN_STEP), token));
        assert_eq!((locks.acquire(0, 1, 2, false), locks.acquire(0, 1, 2, false)), (None, None));
        assert_eq!(queue(&mut locks), [(1, true), (2, false)]);
        // The same number of another machine is another request.
        assert_eq!(locks.acquire(0, 2, 1, true), None);
        assert_eq!((release(&mut locks, 9), locks.locks[0].length), (vec![], 3));
    }
}
