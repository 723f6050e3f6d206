//! Request ids: what became of the last calls that had one, so that a retry gets the first outcome.
//!
//! The window holds the last ids in serial order, up to a number that is fixed when the directory is opened. It is a
//! function of the log alone: replay makes the same window, and a checkpoint holds it.
//!
//! Invariant: every id in `order` is a key of `outcomes`, which says where in `order` it stands, and there are no
//! others.

use std::collections::{BTreeMap, HashMap};

use lockwork_procedure::block::{Block, BlockMut, Status};

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) procedure: u32,
    pub(crate) status: Status,
    pub(crate) code: u16,
    pub(crate) results: Box<[u8]>,
}

impl Outcome {
    /// Of a block that was run. `None` when it failed: such a call did not happen, and its retry runs.
    pub(crate) fn of(block: Block<'_>, (start, length): (usize, usize)) -> Option<Self> {
        let status = block.status().filter(|status| matches!(status, Status::Committed | Status::Aborted))?;
        let results = block.bytes()[start..start + length].into();
        Some(Self { procedure: block.procedure(), status, code: block.abort_code(), results })
    }

    /// Writes the outcome into the block of a retry.
    pub(crate) fn answer(&self, block: &mut BlockMut<'_>, (start, length): (usize, usize)) {
        block.set_outcome(self.status, self.code);
        if self.results.len() == length {
            block.bytes()[start..start + length].copy_from_slice(&self.results);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    most: usize,
    /// Ids by place; later ones have higher places.
    order: BTreeMap<u64, u64>,
    outcomes: HashMap<u64, (u64, Outcome)>,
    /// The place of the next one.
    next: u64,
}

impl Window {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, order: BTreeMap::new(), outcomes: HashMap::new(), next: 0 }
    }

    pub(crate) fn get(&self, request: u64) -> Option<&Outcome> {
        self.outcomes.get(&request).map(|(_, outcome)| outcome)
    }

    /// Remembers an outcome, and forgets the oldest if there are too many. An id that is there already becomes the
    /// newest: replay meets one that had been forgotten in a smaller window, and ran again.
    pub(crate) fn put(&mut self, request: u64, outcome: Outcome) {
        if let Some((place, _)) = self.outcomes.insert(request, (self.next, outcome)) {
            self.order.remove(&place);
        }
        self.order.insert(self.next, request);
        self.next += 1;
        while self.order.len() > self.most {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.outcomes.remove(&oldest);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// All of them, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Outcome)> {
        self.order.values().map(|&request| (request, &self.outcomes[&request].1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let outcome = |code| Outcome { procedure: 0, status: Status::Aborted, code, results: [].into() };
        let mut window = Window::new(3);
        (1..=5).for_each(|request| window.put(request, outcome(request as u16)));
        assert_eq!(window.iter().map(|(request, _)| request).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!((window.get(2), window.get(4).unwrap().code, window.len()), (None, 4, 3));
        window.put(3, outcome(9));
        assert_eq!((window.get(3).unwrap().code, window.len()), (9, 3));
        // What ran again is the newest.
        window.put(6, outcome(6));
        let order = window.iter().map(|(request, outcome)| (request, outcome.code)).collect::<Vec<_>>();
        assert_eq!(order, [(5, 5), (3, 9), (6, 6)]);
        assert_eq!((window.get(4), window.len()), (None, 3));
    }
}
