//! The agent: who holds one lock, and who waits for it.
//!
//! *Invariants*
//! - Holders are one writer or any number of readers.
//! - At most one operation with the decider is under way. Nothing is granted while the agent may already have lost the
//!   lock (a [`Op::Free`], [`Op::Move`] or [`Op::Retake`] is under way), and there is no holder then.
//! - `base`: every decision of the decider up to it is known here. `seen` has those known beyond it. A lock is given
//!   back or handed over with `base` as its incarnation, so the decider refuses if it has added a reader that is not
//!   known here.
//! - While `alone`, whoever holds is of the agent's machine.
//! - Only while `open` may the decider add readers.

use crate::decider::TOKEN_STEP;
use crate::packet::Waiter;
use crate::word::{Machine, Profile};
use lockwork_locking::LockMode;
use std::collections::VecDeque;

/// One who holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) machine: Machine,
    pub(crate) session: u32,
    pub(crate) request: u64,
    /// Its machine knows that this agent counts it as a holder. Until then the agent repeats the grant.
    pub(crate) confirmed: bool,
}

/// What is under way with the decider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// Giving the lock back.
    Free,
    /// Handing it to the first in the queue; of the queue this many went along.
    Move { to: Waiter, queued: usize },
    /// Moving to where it is: to get a token, or to take over an agent whose grant was lost.
    Retake(MoveReason),
    /// Letting the decider add readers.
    Open,
    /// Taking that back.
    Close,
    /// Having all machines asked what they hold.
    Sweep,
}

/// Why an agent moves to where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MoveReason {
    /// The decider must add no more readers, or the token has no room.
    Token,
    /// It came for a request that no longer waits, and may be an old copy.
    Arrived,
    /// Its grant was lost. Nobody but who was granted can hold the lock.
    Lost,
    /// Its grant was lost, and nothing is known of holders.
    LostUnknown,
}

/// What an agent waits for with limited patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    /// Readers pass a writer.
    Writer,
    /// The decider has added readers that are not known here.
    Readers,
    /// Nobody holds or waits, and the agent stays in case that somebody here asks.
    User,
}

/// An operation with its number, and how often it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) op: Op,
    pub(crate) number: u64,
    /// The incarnation that it was sent with.
    pub(crate) incarnation: u32,
    pub(crate) tries: u8,
}

/// The agent of one lock: 128 bytes at most, plus 16 a holder and 16 a waiter.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) base: u32,
    pub(crate) known: u32,
    pub(crate) token: u64,
    pub(crate) holders: Vec<Holder>,
    pub(crate) queue: VecDeque<Waiter>,
    pub(crate) running: Option<Box<Running>>,
    /// Decisions known beyond `base`; hardly ever any.
    pub(crate) seen: Vec<u32>,
    /// Of the timer that counts for readers that are not known, or readers that pass writers.
    pub(crate) serial: u32,
    pub(crate) exclusive: bool,
    pub(crate) open: bool,
    /// The decider granted it exclusively and has heard nothing since: only this machine's tasks may hold, because
    /// the registry treats the lock as free when this machine dies.
    pub(crate) alone: bool,
    /// The registry keeps it for a machine that died, and waits for all machines' answers.
    pub(crate) adopted: bool,
    /// Readers have passed a writer for long enough.
    pub(crate) starved: bool,
    /// Somebody has held it since the timer for [`Wait::User`] was set.
    pub(crate) used: bool,
    /// What a timer is set for.
    pub(crate) watched: Option<Wait>,
}

const _: () = assert!(size_of::<Agent>() <= 128, "docs/lock-service.md promises this");

impl Agent {
    pub(crate) fn new(incarnation: u32, token: u64, open: bool) -> Self {
        Self {
            base: incarnation,
            known: incarnation,
            token,
            holders: Vec::new(),
            queue: VecDeque::new(),
            running: None,
            seen: Vec::new(),
            serial: 0,
            exclusive: false,
            open,
            alone: false,
            adopted: false,
            starved: false,
            used: false,
            watched: None,
        }
    }

    pub(crate) fn holder(&mut self, machine: Machine, request: u64) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.request == request && holder.machine == machine)
    }

    pub(crate) fn waits(&self, machine: Machine, request: u64) -> bool {
        self.queue.iter().any(|waiter| waiter.request == request && waiter.machine == machine)
    }

    /// Puts it into the queue, if it is not there.
    pub(crate) fn enqueue(&mut self, waiter: Waiter) {
        if !self.waits(waiter.machine, waiter.request) && self.holder(waiter.machine, waiter.request).is_none() {
            self.queue.push_back(waiter);
        }
    }

    /// Takes it from the holders and the queue.
    pub(crate) fn remove(&mut self, machine: Machine, request: u64) -> bool {
        let before = self.holders.len() + self.queue.len();
        self.holders.retain(|holder| holder.request != request || holder.machine != machine);
        if let Some(at) = self.queue.iter().position(|w| w.request == request && w.machine == machine) {
            self.unqueue(at);
        }
        before != self.holders.len() + self.queue.len()
    }

    fn unqueue(&mut self, at: usize) {
        self.queue.remove(at);
        if let Some(Running { op: Op::Move { queued, .. }, .. }) = self.running.as_deref_mut()
            && at < *queued
        {
            *queued -= 1;
        }
    }

    /// Takes everybody of a session of `machine` out.
    pub(crate) fn purge(&mut self, machine: Machine, session: u32) -> bool {
        let before = self.holders.len() + self.queue.len();
        self.holders.retain(|holder| (holder.machine, holder.session) != (machine, session));
        while let Some(at) = self.queue.iter().position(|waiter| (waiter.machine, waiter.session) == (machine, session))
        {
            self.unqueue(at);
        }
        before != self.holders.len() + self.queue.len()
    }

    pub(crate) fn op(&self) -> Option<Op> {
        self.running.as_deref().map(|running| running.op)
    }

    /// Whether the lock may already be somebody else's, or is not known to be here.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.op(), Some(Op::Free | Op::Move { .. } | Op::Retake(_)))
    }

    /// A decision is known here now. False if it was before.
    pub(crate) fn see(&mut self, incarnation: u32, profile: Profile) -> bool {
        if profile.distance(self.base, incarnation) <= 0 {
            return false;
        }
        if profile.distance(self.known, incarnation) > 0 {
            self.known = incarnation;
        }
        if incarnation != profile.add(self.base, 1) {
            let new = !self.seen.contains(&incarnation);
            if new {
                self.seen.push(incarnation);
            }
            return new;
        }
        self.base = incarnation;
        while let Some(at) = self.seen.iter().position(|next| *next == profile.add(self.base, 1)) {
            self.base = self.seen.swap_remove(at);
        }
        true
    }

    /// Whatever the decider decided until `incarnation` need not be waited for.
    pub(crate) fn see_all(&mut self, incarnation: u32, profile: Profile) {
        if profile.distance(self.base, incarnation) > 0 {
            self.base = incarnation;
            // Readers may have been among it, and they got the end of the token's range.
            self.token |= TOKEN_STEP - 1;
        }
        if profile.distance(self.known, self.base) > 0 {
            self.known = self.base;
        }
        for later in std::mem::take(&mut self.seen) {
            self.see(later, profile);
        }
    }

    /// The decider has told its incarnation.
    pub(crate) fn hear(&mut self, incarnation: u32, profile: Profile) {
        if profile.distance(self.known, incarnation) > 0 {
            self.known = incarnation;
        }
    }

    /// The decider has decided something that is not known here.
    pub(crate) fn misses(&self) -> bool {
        self.known != self.base
    }

    /// Whether it only stays in case that somebody asks.
    pub(crate) fn is_idle(&self) -> bool {
        let busy = self.running.is_some() || self.adopted || self.misses();
        self.watched == Some(Wait::User) && self.holders.is_empty() && self.queue.is_empty() && !busy
    }

    pub(crate) fn mode(&self) -> Option<LockMode> {
        match (self.holders.is_empty(), self.exclusive) {
            (true, _) => None,
            (false, true) => Some(LockMode::Exclusive),
            (false, false) => Some(LockMode::Shared),
        }
    }

    /// Whether a reader may join the holders now, in front of whoever waits.
    pub(crate) fn admits_reader(&self, writers_first: bool) -> bool {
        let passes = self.queue.is_empty() || (!writers_first && !self.starved);
        !self.is_leaving() && !self.misses() && self.mode() == Some(LockMode::Shared) && passes
    }
}
