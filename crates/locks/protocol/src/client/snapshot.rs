//! The client as a model checker sees it: all that its future depends on, and nothing that grows without end.
//!
//! Delays no longer grow after [`MAX_DOUBLINGS`] tries. Serial numbers only tell timers that count from those that do
//! not. Once the latter are dropped, they tell nothing.

use super::Client;
use crate::pace::MAX_DOUBLINGS;
use std::hash::{Hash, Hasher};

impl Client {
    pub(crate) fn prune(&mut self) {
        let requests = &self.requests;
        self.timers.retain(|(number, serial)| requests.get(number).is_some_and(|request| request.serial == *serial));
    }

    pub(crate) fn snapshot(&self, now: u64, into: &mut impl Hasher) {
        (self.counter, self.pace).hash(into);
        let mut requests: Vec<_> = self.requests.iter().collect();
        requests.sort_unstable_by_key(|(number, _)| **number);
        requests.len().hash(into);
        for (number, r) in requests {
            (number, r.lock, r.mode, r.phase, r.try_only, r.detect_deadlock).hash(into);
            (r.tries.min(MAX_DOUBLINGS), r.floor).hash(into);
            (r.incarnation, r.agent, r.enrolled, r.enrolment, r.sweep, r.token).hash(into);
            (r.tries == 1).then(|| now.saturating_sub(r.asked)).hash(into);
            r.deadline.map(|deadline| deadline.saturating_sub(now)).hash(into);
        }
        for (delay, due, (number, _)) in self.timers.all() {
            (delay, due.saturating_sub(now), number).hash(into);
        }
        for dead in &self.dead {
            (dead.machine, dead.session, dead.until.saturating_sub(now)).hash(into);
        }
    }
}
