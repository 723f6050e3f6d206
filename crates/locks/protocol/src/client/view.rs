//! The requests of a machine as people and tools look at them.

use super::{Client, Phase, Request};
use lockwork_locking::LockMode;

impl Client {
    /// How many requests hold, wait, or are being given back.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// All requests for a lock, for people who look for an error.
    #[must_use]
    pub fn describe(&self, lock: u64) -> String {
        let mut all: Vec<_> = self.requests.iter().filter(|(_, request)| request.lock == lock).collect();
        all.sort_unstable_by_key(|(number, _)| **number);
        all.iter().map(|(number, request)| format!("{number:x}: {request:?}\n")).collect()
    }

    /// A lock of some request, if there is any.
    #[must_use]
    pub fn any_lock(&self) -> Option<u64> {
        self.requests.iter().min_by_key(|(number, _)| **number).map(|(_, request)| request.lock)
    }

    /// Requests that hold: number, lock, mode, token.
    pub fn held(&self) -> impl Iterator<Item = (u64, u64, LockMode, u64)> + '_ {
        let holds = |(_, request): &(&u64, &Request)| request.phase == Phase::Held;
        self.requests.iter().filter(holds).map(|(number, r)| (*number, r.lock, r.mode, r.token))
    }
}
