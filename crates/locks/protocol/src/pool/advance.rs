//! What an agent does next: the one place that grants, hands over, gives back, opens and closes.

use super::{AgentPool, Watch};
use crate::agent::{MoveReason, Op, Wait};
use crate::branches::Branch;
use crate::decider::TOKEN_STEP;
use lockwork_locking::LockMode;

impl AgentPool {
    /// Does what the state of the agent asks for. Called after every change of it.
    pub(super) fn advance(&mut self, now: u64, lock: u64) {
        let Some(agent) = self.agents.get(&lock) else { return };
        // A manager grants nothing before it knows all holders, who may have enrolled before they released.
        if agent.is_leaving() || (agent.adopted && self.config.is_beyond(lock)) {
            return;
        }
        match agent.mode() {
            Some(LockMode::Exclusive | LockMode::IntentExclusive) => {}
            Some(LockMode::Shared) => self.advance_shared(now, lock),
            None => self.advance_empty(now, lock),
        }
    }

    /// Readers hold.
    fn advance_shared(&mut self, now: u64, lock: u64) {
        while let Some(agent) = self.agents.get_mut(&lock)
            && let Some(at) = agent.queue.iter().position(|waiter| waiter.mode == LockMode::Shared)
            && !agent.misses()
            && (at == 0 || (!self.config.writers_first && !agent.starved))
        {
            if agent.alone && agent.queue[at].machine != self.me.machine {
                // First the decider has to know that others hold.
                return self.open(now, lock);
            }
            let waiter = agent.queue.remove(at).expect("just found");
            self.hold(now, lock, waiter);
        }
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        if agent.queue.is_empty() {
            return;
        }
        // A writer is first.
        if !self.config.writers_first && !agent.starved {
            self.watch(now, lock, Wait::Writer, self.config.starve);
        } else if agent.open && agent.running.is_none() {
            self.branches.take(Branch::CloseOfStarved);
            self.start(now, lock, Op::Close);
        }
    }

    /// Nobody holds.
    fn advance_empty(&mut self, now: u64, lock: u64) {
        let me = self.me.machine;
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        if agent.running.is_some() || agent.adopted {
            return;
        }
        if self.config.is_beyond(lock) {
            return self.advance_managed(now, lock);
        }
        if agent.misses() {
            // The decider would refuse: there are readers that are not known here yet.
            self.watch(now, lock, Wait::Readers, self.config.ghost);
            return;
        }
        let Some(next) = agent.queue.front().copied() else {
            return self.stay_or_free(now, lock);
        };
        agent.watched = agent.watched.filter(|wait| *wait == Wait::User);
        // Within this machine the lock goes from task to task without the decider, if the decider adds no readers and
        // the token has room.
        let room = agent.token % TOKEN_STEP < TOKEN_STEP - 2 || !self.config.profile.has_tokens();
        if next.machine != me {
            agent.queue.pop_front();
            let queued = agent.queue.len();
            self.start(now, lock, Op::Move { to: next, queued });
        } else if agent.open || !room {
            self.branches.take(Branch::RetakeForToken);
            self.start(now, lock, Op::Retake(MoveReason::Token));
        } else {
            agent.queue.pop_front();
            agent.starved = false;
            self.branches.take(Branch::HandedOn);
            agent.token += u64::from(next.mode == LockMode::Exclusive);
            self.hold(now, lock, next);
            self.advance(now, lock);
        }
    }

    /// Nobody holds or waits.
    fn stay_or_free(&mut self, now: u64, lock: u64) {
        let stays = self.config.keeps(lock) && self.agents.len() <= self.config.most_stay;
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        if stays {
            agent.used = true;
            self.watch(now, lock, Wait::User, self.config.stay);
        } else {
            agent.watched = None;
            self.start(now, lock, Op::Free);
        }
    }

    /// The agent has stayed for long enough, if it has not been used meanwhile.
    pub(super) fn stop_staying(&mut self, now: u64, lock: u64) {
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        let idle = agent.is_idle();
        agent.watched = None;
        // Whoever holds or waits calls `advance` when that is over.
        if idle && std::mem::take(&mut agent.used) {
            self.watch(now, lock, Wait::User, self.config.stay);
        } else if idle {
            self.start(now, lock, Op::Free);
        }
    }

    /// Sets the timer for [`AgentPool::lose_patience`], unless it is set.
    fn watch(&mut self, now: u64, lock: u64, wait: Wait, delay: u64) {
        let agent = self.agents.get_mut(&lock).expect("the agent is here");
        if agent.watched != Some(wait) {
            agent.watched = Some(wait);
            agent.serial = agent.serial.wrapping_add(1);
            let serial = agent.serial;
            self.timers.set(now, delay, (lock, Watch::WaitPolicy(serial)));
        }
    }

    /// Readers have passed a writer for long enough, or the decider has added readers that nobody has told of, or
    /// nobody has asked for long enough.
    pub(super) fn lose_patience(&mut self, now: u64, lock: u64, wait: Wait) {
        if wait == Wait::User {
            return self.stop_staying(now, lock);
        }
        let Some(agent) = self.agents.get_mut(&lock) else { return };
        agent.watched = None;
        if agent.running.is_some() {
            self.watch(now, lock, Wait::Readers, self.config.retry);
            return;
        }
        if !agent.holders.is_empty() {
            agent.starved = agent.starved || !agent.queue.is_empty();
            self.advance(now, lock);
        } else if agent.misses() && !agent.adopted {
            // First no more readers, then ask for those that there are.
            let op = if agent.open { Op::Close } else { Op::Sweep };
            self.branches.take(if agent.open { Branch::CloseOfGhost } else { Branch::SweepOfGhost });
            self.start(now, lock, op);
        } else {
            self.advance(now, lock);
        }
    }
}
