//! What a client tells when all machines are asked what they hold: of a lock, or of those whose agents have died.

use super::{Client, Phase, Request};
use crate::word::Machine;

/// A machine that has died.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Dead {
    pub(super) machine: Machine,
    pub(super) session: u32,
    /// For so long the decider's grants that name its agent are void too.
    pub(super) until: u64,
}

impl Client {
    /// `machine` has died: what it had granted is enrolled with its successor, who waited with it asks again. True when
    /// everything is enrolled.
    pub(crate) fn died(&mut self, now: u64, machine: Machine, session: u32, sweep: u64) -> bool {
        if !self.dead.iter().any(|dead| (dead.machine, dead.session) == (machine, session)) {
            let until = now.saturating_add(self.config.lease);
            self.dead.push(Dead { machine, session, until });
        }
        let of_it = |request: &Request| {
            // Whose agent is not known, it may be one of the dead.
            request.agent == Some(machine) || request.agent.is_none() || request.phase == Phase::Asking
        };
        self.enrol_all(now, sweep, of_it)
    }

    /// Whatever is held of `lock` is enrolled, and grants up to `incarnation` are void. True when everything is
    /// enrolled.
    pub(crate) fn sweep(&mut self, now: u64, lock: u64, incarnation: u32, sweep: u64) -> bool {
        self.void_before(lock, self.config.profile.add(incarnation, 1));
        self.enrol_all(now, sweep, |request| request.lock == lock)
    }

    pub(super) fn enrol_all(&mut self, now: u64, sweep: u64, of: impl Fn(&Request) -> bool) -> bool {
        let me = self.me.machine;
        // Questions have growing numbers, and who enrols after a newer one was asked does so after the older, too. If
        // each question were answered for itself, two that are asked in turn would never be.
        let concerned = |r: &Request| of(r) && r.agent != Some(me) && r.phase != Phase::Releasing && r.sweep < sweep;
        let numbers: Vec<_> = self.requests.iter().filter(|(_, r)| concerned(r)).map(|(n, _)| *n).collect();
        for number in numbers {
            let request = self.requests.get_mut(&number).expect("just listed");
            request.sweep = sweep;
            request.enrol_anew();
            if request.phase == Phase::Queued {
                request.phase = Phase::Asking;
            }
            self.say(now, number);
        }
        !self.requests.values().any(|r| r.sweep >= sweep && r.phase == Phase::Held && !r.enrolled)
    }
}

impl Request {
    /// Whatever it had told its agent counts no more.
    pub(super) const fn enrol_anew(&mut self) {
        self.enrolled = false;
        self.enrolment = self.enrolment.wrapping_add(1);
        self.tries = 0;
    }
}
