//! The client when the decider was restored; see [`crate::report`].

use super::{Client, Phase};
use crate::branches::Branch;
use crate::config::Identity;

/// A request that has to be asked for again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) lock: u64,
    pub(crate) request: u64,
    pub(crate) mode: lockwork_locking::LockMode,
    pub(crate) try_only: bool,
    pub(crate) detect_deadlock: bool,
}

impl Client {
    /// Goes on in another session. Nothing that was granted is given up; who holds from an agent that is not here
    /// (`here` tells by lock and request) has to enrol. Gives the requests that wait, in the order of their numbers,
    /// and the locks that are held from elsewhere.
    pub(crate) fn resume(&mut self, now: u64, me: Identity, here: impl Fn(u64, u64) -> bool) -> (Vec<Again>, Vec<u64>) {
        self.me = me;
        self.dead.clear();
        self.out.retain(|output| matches!(output, super::Output::Event(_)));
        let (mut waiting, mut elsewhere, mut releasing) = (Vec::new(), Vec::new(), Vec::new());
        for (number, request) in &mut self.requests {
            (request.floor, request.incarnation, request.sweep) = (None, None, 0);
            request.serial = request.serial.wrapping_add(1);
            match request.phase {
                Phase::Asking | Phase::Queued => {
                    request.agent = None;
                    let (lock, mode) = (request.lock, request.mode);
                    let (try_only, detect_deadlock) = (request.try_only, request.detect_deadlock);
                    waiting.push(Again { lock, request: *number, mode, try_only, detect_deadlock });
                }
                Phase::Held => {
                    request.enrolled = here(request.lock, *number);
                    request.agent = request.enrolled.then_some(me.machine);
                    if !request.enrolled {
                        elsewhere.push(request.lock);
                    }
                }
                Phase::Releasing => {
                    request.tries = 0;
                    releasing.push(*number);
                }
            }
        }
        if !self.requests.is_empty() {
            self.branches.take(Branch::Resumed);
        }
        if !elsewhere.is_empty() {
            self.branches.take(Branch::ResumedElsewhere);
        }
        waiting.sort_unstable_by_key(|again| again.request);
        releasing.sort_unstable();
        releasing.into_iter().for_each(|number| self.say(now, number));
        (waiting, elsewhere)
    }

    /// The decider is restored: whatever is held from elsewhere is enrolled with its agent. True when everything is.
    pub(crate) fn settle(&mut self, now: u64, sweep: u64) -> bool {
        self.enrol_all(now, sweep, |request| request.phase == Phase::Held)
    }
}
