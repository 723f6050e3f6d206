//! What a client does about locks that managers keep; see [`crate::beyond`].

use super::{Client, Request};
use crate::beyond::part;
use crate::branches::Branch;
use crate::config::Config;
use lockwork_locking::LockMode;

impl Client {
    /// Whatever is held of the part of `lock` is enrolled with its manager, and grants before `generation` are void.
    /// True when everything is enrolled.
    pub(crate) fn sweep_part(&mut self, now: u64, lock: u64, generation: u32, sweep: u64) -> bool {
        let config = self.config;
        let of_it = |request: &Request| config.is_beyond(request.lock) && part(request.lock) == part(lock);
        for request in self.requests.values_mut().filter(|request| of_it(request)) {
            if request.floor.is_none_or(|floor| config.profile.distance(floor, generation) > 0) {
                request.floor = Some(generation);
            }
            if request.sweep < sweep {
                // Who had it from an agent here has it no longer.
                request.agent = None;
            }
        }
        self.enrol_all(now, sweep, of_it)
    }

    /// Tells the manager of a lock that its writer is a reader now, until it has taken note.
    pub(crate) fn downgrade(&mut self, now: u64, number: u64) {
        self.branches.take(Branch::DowngradedElsewhere);
        self.set_mode(number, LockMode::Shared);
        self.quiet(number);
        if let Some(request) = self.requests.get_mut(&number) {
            request.enrol_anew();
            self.say(now, number);
        }
    }
}

impl Request {
    /// A manager of an earlier generation than is known says that it has granted this.
    pub(super) fn is_relieved(&self, config: &Config, generation: u32) -> bool {
        let older = |floor| config.profile.distance(floor, generation) < 0;
        config.is_beyond(self.lock) && self.floor.is_some_and(older)
    }
}
