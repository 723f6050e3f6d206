//! What searches for deadlocks ask a client; see [`deadlock`](crate::cycles).

use super::{Client, Phase, Request, task_of};
use std::collections::BTreeSet;

impl Client {
    /// Tasks that hold `lock`, with requests that take part in searches. What an agent takes for a holder may have
    /// given back, or not know yet; this is what the tasks know.
    pub(crate) fn holding(&self, lock: u64) -> BTreeSet<u32> {
        let holds = |r: &Request| r.lock == lock && r.detect_deadlock && r.phase == Phase::Held;
        self.requests.iter().filter(|(_, r)| holds(r)).map(|(number, _)| task_of(*number)).collect()
    }

    /// The lock that the request waits for, if it takes part in searches.
    pub(crate) fn searching(&self, number: u64) -> Option<u64> {
        self.requests.get(&number).filter(|r| r.detect_deadlock && r.waits()).map(|r| r.lock)
    }

    /// What a task waits for and takes part in searches with: requests and their locks.
    pub(crate) fn searching_of(&self, task: u32) -> impl Iterator<Item = (u64, u64)> + '_ {
        let of_task = self.requests.keys().copied().filter(move |number| task_of(*number) == task);
        of_task.filter_map(|number| self.searching(number).map(|lock| (number, lock)))
    }
}
