//! Timers for many things that wait equally long.
//!
//! Whoever waits for an answer waits for one of a few delays, so timers of one delay fall due in the order in which
//! they were set: a queue for each delay, and setting one costs a push. Nothing is ever removed early. Who no longer
//! waits ignores the key that comes out; keys carry a serial number for that.

use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(crate) struct Timers<K> {
    queues: Vec<(u64, VecDeque<(u64, K)>)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Timers<K> {
    pub(crate) const fn new() -> Self {
        Self { queues: Vec::new() }
    }

    /// Gives `key` back `delay` after `now`. The time must not go backwards.
    pub(crate) fn set(&mut self, now: u64, delay: u64, key: K) {
        let at = self.queues.iter().position(|(of, _)| *of == delay).unwrap_or_else(|| {
            self.queues.push((delay, VecDeque::new()));
            self.queues.len() - 1
        });
        self.queues[at].1.push_back((now.saturating_add(delay), key));
    }

    /// One that is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<K> {
        let queue = self.queues.iter_mut().find(|(_, queue)| queue.front().is_some_and(|(due, _)| *due <= now))?;
        queue.1.pop_front().map(|(_, key)| key)
    }

    /// Drops those that nobody waits for any more.
    pub(crate) fn retain(&mut self, counts: impl Fn(&K) -> bool) {
        self.queues.iter_mut().for_each(|(_, queue)| queue.retain(|(_, key)| counts(key)));
    }

    /// All of them in the order in which they come back at one time: how long each was set for, when it is due, and its
    /// key.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u64, &K)> {
        self.queues.iter().flat_map(|(delay, queue)| queue.iter().map(move |(due, key)| (*delay, *due, key)))
    }

    /// When the next is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.queues.iter().filter_map(|(_, queue)| queue.front().map(|(due, _)| *due)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::Timers;

    #[test]
    fn keys_come_back_when_they_are_due() {
        let mut timers = Timers::new();
        timers.set(0, 10, 'a');
        timers.set(1, 2, 'b');
        timers.set(2, 10, 'c');
        assert_eq!((timers.next(), timers.due(2)), (Some(3), None));
        assert_eq!((timers.due(11), timers.due(11), timers.due(11)), (Some('a'), Some('b'), None));
        assert_eq!((timers.next(), timers.due(12), timers.next()), (Some(12), Some('c'), None));
    }
}
