//! A lock manager too simple to be wrong: the oracle of the suite and of the property tests.
//!
//! It keeps all requests in the order in which they came and decides by looking at all of them: a request holds its
//! lock if it is compatible with every earlier request of others for that lock. That is the first-in, first-out queue
//! with groups, said in one sentence.

use super::{Capability, Event, Manager, NotHeld, Session};
use lockwork_locking::{LockId, LockMode, Outcome, Request, compatible};

/// What one `acquire` asked for.
#[derive(Clone, Debug)]
struct Ticket {
    number: u64,
    session: Session,
    requests: Vec<Request>,
    deadline_ms: Option<u64>,
}

impl Ticket {
    fn mode_on(&self, lock: LockId) -> Option<LockMode> {
        let modes = self.requests.iter().filter(|request| request.id == lock).map(|request| request.mode);
        modes.reduce(LockMode::join)
    }

    fn is_for(&self, session: Session, locks: &[LockId]) -> bool {
        self.session == session && super::names(&self.requests, locks)
    }

    fn event(&self, granted: bool) -> Event {
        Event { session: self.session, lock: self.requests[0].id, granted }
    }
}

/// All requests, oldest first, and the time.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    tickets: Vec<Ticket>,
    issued: u64,
    now_ms: u64,
}

impl Reference {
    fn is_granted(&self, at: usize) -> bool {
        let ticket = &self.tickets[at];
        ticket.requests.iter().all(|request| {
            let mode = ticket.mode_on(request.id).unwrap_or(request.mode);
            let mut earlier = self.tickets[..at].iter().filter_map(|other| other.mode_on(request.id));
            earlier.all(|other| compatible(other, mode))
        })
    }

    /// Takes out the tickets that `gone` says; who is granted by that.
    fn remove(&mut self, gone: impl Fn(&Ticket) -> bool) -> Vec<Event> {
        let waiting = (0..self.tickets.len()).filter(|&at| !self.is_granted(at));
        let waited: Vec<u64> = waiting.map(|at| self.tickets[at].number).collect();
        self.tickets.retain(|ticket| !gone(ticket));
        let all = 0..self.tickets.len();
        let granted = all.filter(|&at| waited.contains(&self.tickets[at].number) && self.is_granted(at));
        granted.map(|at| self.tickets[at].event(true)).collect()
    }

    /// A session asks again for one lock that it holds: at once, or not at all.
    fn ask_again(&mut self, at: usize, request: Request) -> Outcome {
        let held = self.tickets[at].mode_on(request.id).unwrap_or(request.mode);
        let wanted = held.join(request.mode);
        let shares = |other: &usize| self.tickets[*other].mode_on(request.id).is_some() && self.is_granted(*other);
        let alone = !(0..self.tickets.len()).any(|other| other != at && shares(&other));
        if wanted != held && !alone {
            return Outcome::Conflict;
        }
        for asked in &mut self.tickets[at].requests {
            asked.mode = wanted;
        }
        Outcome::Granted
    }
}

impl Manager for Reference {
    fn name(&self) -> String {
        "reference".to_string()
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Crash, Fifo, Groups, Intent, Reentrant, Sets, Timeout, Upgrade, Waits, Withdraw};
        vec![Waits, Fifo, Groups, Withdraw, Upgrade, Reentrant, Intent, Sets, Timeout, Crash]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        if let [request] = requests
            && let Some(at) = self.tickets.iter().position(|ticket| ticket.is_for(session, &[request.id]))
            && self.is_granted(at)
        {
            return self.ask_again(at, *request);
        }
        let deadline_ms = timeout_ms.map(|timeout| self.now_ms.saturating_add(timeout));
        self.tickets.push(Ticket { number: self.issued, session, requests: requests.to_vec(), deadline_ms });
        self.issued += 1;
        if self.is_granted(self.tickets.len() - 1) { Outcome::Granted } else { Outcome::Waiting }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let found = self.tickets.iter().find(|ticket| ticket.is_for(session, locks)).ok_or(NotHeld)?;
        let number = found.number;
        Ok(self.remove(|ticket| ticket.number == number))
    }

    fn crash(&mut self, session: Session) -> Vec<Event> {
        self.remove(|ticket| ticket.session == session)
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.now_ms = self.now_ms.saturating_add(time_ms);
        let now_ms = self.now_ms;
        let late = |ticket: &Ticket| ticket.deadline_ms.is_some_and(|deadline| deadline <= now_ms);
        let mut events = Vec::new();
        // One at a time, oldest first: whom one makes room for is not late any more.
        while let Some(at) = (0..self.tickets.len()).find(|&at| late(&self.tickets[at]) && !self.is_granted(at)) {
            let number = self.tickets[at].number;
            events.push(self.tickets[at].event(false));
            events.extend(self.remove(|ticket| ticket.number == number));
        }
        events
    }
}
