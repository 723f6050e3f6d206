//! Which transactions of one worker wait for which: a queue for each lock that one of them has which has not ended.
//!
//! Locks are names, not messages: a transaction that holds all of its own here may go on, whatever it waits for
//! elsewhere. Transactions enter in the order that everybody was told, each with all its locks at once, so who is first
//! in one queue is first in every other: nobody waits in a circle, at one worker or between several.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), section 3.2.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use lockwork_procedure::key::mix;

use crate::layout::Wanted;

/// For keys of one word that nobody chooses to do harm: stamps, and locks.
pub(super) type Spreading = BuildHasherDefault<Mixed>;

/// See [`Spreading`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(word);
    }
}

/// Those who have a lock, and behind them those who wait for it.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<(u32, bool)>,
    granted: usize,
    exclusive: usize,
}

impl Queue {
    fn enter(&mut self, slot: u32, exclusive: bool) -> bool {
        let free = self.entries.is_empty() || self.exclusive == 0 && !exclusive;
        self.entries.push_back((slot, exclusive));
        self.exclusive += usize::from(exclusive);
        self.granted += usize::from(free);
        free
    }

    /// Tells `granted` who has the lock now that did not before.
    fn leave(&mut self, slot: u32, mut granted: impl FnMut(u32)) {
        if self.entries.len() == 1 {
            // As a rule nobody waits.
            self.entries.clear();
            (self.granted, self.exclusive) = (0, 0);
            return;
        }
        let at = self.entries.iter().take(self.granted).position(|entry| entry.0 == slot);
        let Some((_, exclusive)) = at.and_then(|at| self.entries.remove(at)) else { return };
        self.exclusive -= usize::from(exclusive);
        self.granted -= 1;
        if self.granted > 0 {
            return;
        }
        while let Some(&(next, exclusive)) = self.entries.get(self.granted)
            && (self.granted == 0 || !exclusive)
        {
            self.granted += 1;
            granted(next);
            if exclusive {
                break;
            }
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: HashMap<u64, Queue, Spreading>,
    /// Those of before, for their memory.
    spare: Vec<Queue>,
    /// Bits of locks that somebody has or had since the queues were empty: most locks are nobody's, and that is seen
    /// here.
    marks: Marks,
}

#[derive(Debug)]
struct Marks([u64; 64]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Marks {
    fn place(lock: u64) -> (usize, u64) {
        ((lock >> 6) as usize % 64, 1 << (lock % 64))
    }

    fn set(&mut self, lock: u64) {
        let (word, bit) = Self::place(lock);
        self.0[word] |= bit;
    }

    fn has(&self, lock: u64) -> bool {
        let (word, bit) = Self::place(lock);
        self.0[word] & bit != 0
    }
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether somebody who wants this lock now would wait.
    pub(super) fn is_taken(&self, (lock, exclusive): Wanted) -> bool {
        self.marks.has(lock) && self.queues.get(&lock).is_some_and(|queue| exclusive || queue.exclusive > 0)
    }

    /// Enters with all locks of a transaction, none of them twice; returns how many of them it has to wait for.
    pub(super) fn enter(&mut self, slot: u32, locks: &[Wanted]) -> usize {
        let mut waits = 0;
        for &(lock, exclusive) in locks {
            self.marks.set(lock);
            let queue = self.queues.entry(lock).or_insert_with(|| self.spare.pop().unwrap_or_default());
            waits += usize::from(!queue.enter(slot, exclusive));
        }
        waits
    }

    /// A transaction that had all its locks has ended: tells `granted`, for each lock that somebody has now, who.
    pub(super) fn leave(&mut self, slot: u32, locks: &[Wanted], mut granted: impl FnMut(u32)) {
        for (lock, _) in locks {
            let Entry::Occupied(mut queue) = self.queues.entry(*lock) else { continue };
            queue.get_mut().leave(slot, &mut granted);
            if queue.get().entries.is_empty() {
                self.spare.push(queue.remove());
            }
        }
        if self.queues.is_empty() {
            self.marks = Marks::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_granted_in_order_and_readers_together() {
        let mut queues = Queues::default();
        assert_eq!(queues.enter(1, &[(7, false)]), 0);
        assert_eq!(queues.enter(2, &[(7, false), (8, true)]), 0);
        assert_eq!(queues.enter(3, &[(7, true), (9, true)]), 1);
        assert_eq!(queues.enter(4, &[(7, false)]), 1, "readers do not overtake writers");
        assert_eq!(queues.enter(5, &[(7, false), (9, false)]), 2);
        assert!(queues.is_taken((8, false)) && queues.is_taken((7, false)) && !queues.is_taken((6, true)));
        let mut granted = Vec::new();
        queues.leave(1, &[(7, false)], |slot| granted.push(slot));
        assert_eq!(granted, []);
        queues.leave(2, &[(7, false), (8, true)], |slot| granted.push(slot));
        assert_eq!(granted, [3]);
        granted.clear();
        queues.leave(3, &[(7, true), (9, true)], |slot| granted.push(slot));
        assert_eq!(granted, [4, 5, 5]);
        queues.leave(4, &[(7, false)], |_| panic!("nobody waits"));
        assert!(!queues.is_taken((7, false)) && queues.is_taken((7, true)));
        queues.leave(5, &[(7, false), (9, false)], |_| panic!("nobody waits"));
        assert!(queues.is_empty());
    }
}
