//! The shared lock table as scripts see it: sessions of one table, which need not be of one process.
//!
//! Locks are lines. Scripts give back a lock once however often it was asked for; the table wants every grant back, so
//! the adapter gives back what is asked for twice.

use super::{Capability, Event, Manager, NotHeld, Session};
use lockwork_locking::shared::memory::{Memory, Private};
use lockwork_locking::shared::{self, Layout, SessionNumber, Step, Table, WaitPolicy, Wake};
use lockwork_locking::{LockId, Outcome, Request};

/// A session of a script, with the locks that it waits for and until when.
struct Member {
    session: Session,
    of_table: shared::Session,
    waits: Vec<(LockId, Option<u64>)>,
}

/// The shared lock table under one [`WaitPolicy`].
pub struct SharedTable<M = Private> {
    tables: Vec<Table<M>>,
    policy: WaitPolicy,
    ages: Vec<(Session, u64)>,
    members: Vec<Member>,
    now_ms: u64,
}

/// What nobody has to be woken for: the adapter polls.
fn nobody(_: Wake) {}

/// The view that a session uses, for who changes its member meanwhile.
fn view<M>(tables: &[Table<M>], session: Session) -> &Table<M> {
    &tables[session.0 as usize % tables.len()]
}

impl SharedTable {
    /// In memory of this process.
    ///
    /// # Panics
    /// Never: the dimensions are good.
    #[must_use]
    pub fn new(policy: WaitPolicy) -> Self {
        let layout = Layout::new(super::managers::LOCKS, 64);
        let table = Table::create(Private::new(layout.words()), layout).expect("good dimensions");
        Self::over(vec![table], policy)
    }
}

impl<M: Memory> SharedTable<M> {
    /// Over views of one table, of which the sessions take turns: their memory may be mapped by several processes.
    #[must_use]
    pub fn over(tables: Vec<Table<M>>, policy: WaitPolicy) -> Self {
        Self { tables, policy, ages: Vec::new(), members: Vec::new(), now_ms: 0 }
    }

    /// The view that a session uses.
    fn table(&self, session: Session) -> &Table<M> {
        view(&self.tables, session)
    }

    /// The place of a session among the members, which it becomes by its first step.
    fn member(&mut self, session: Session) -> usize {
        if let Some(at) = self.members.iter().position(|member| member.session == session) {
            return at;
        }
        let number = SessionNumber::new(session.0 as u16 + 1).expect("scripts have few sessions");
        let of_table = self.table(session).open(number, 0, &mut nobody).expect("a fresh table is sound");
        let given = self.ages.iter().find(|(named, _)| *named == session);
        let age = given.map_or(u64::from(session.0), |(_, age)| *age);
        self.table(session).set_age(&of_table, age).expect("it holds nothing yet");
        self.members.push(Member { session, of_table, waits: Vec::new() });
        self.members.len() - 1
    }

    /// Those who wait and have been granted what they wait for.
    fn granted(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for member in &mut self.members {
            let table = view(&self.tables, member.session);
            let of_table = &mut member.of_table;
            member.waits.retain(|(lock, _)| {
                let granted = table.poll(of_table, lock.0 as u32).expect("it waits");
                if granted {
                    events.push(Event { session: member.session, lock: *lock, granted });
                }
                !granted
            });
        }
        events.sort();
        events
    }
}

impl<M: Memory> Manager for SharedTable<M> {
    fn name(&self) -> String {
        format!("shared lock table ({:?}, {} views)", self.policy, self.tables.len())
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{
            Crash, Fifo, Groups, Intent, NoWait, Queues, Reentrant, Timeout, Upgrade, WaitDie, Waits, Withdraw,
        };
        let own = match self.policy {
            WaitPolicy::Try => vec![NoWait, Crash],
            WaitPolicy::WaitDie => vec![WaitDie, Queues, Crash],
            WaitPolicy::Queue => vec![Waits, Fifo, Groups, Withdraw, Timeout, Crash],
            // The scripts of crashes take a lock while they wait for an older session, which no circle may close over.
            WaitPolicy::Safe => vec![Waits, Fifo, Groups, Withdraw, Timeout],
        };
        let all = [Upgrade, Reentrant, Intent];
        own.into_iter().chain(all).collect()
    }

    fn set_age(&mut self, session: Session, age: u64) {
        self.ages.push((session, age));
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        let [request] = requests else { panic!("the table takes one lock at a time") };
        let at = self.member(session);
        let line = request.id.0 as u32;
        let member = &mut self.members[at];
        let table = view(&self.tables, session);
        let held = table.holds(&member.of_table, line) > 0;
        match table.request(&mut member.of_table, line, request.mode, self.policy, &mut nobody).expect("sound") {
            Step::Granted => {
                if held {
                    table.release(&mut member.of_table, line, &mut nobody).expect("it was granted twice");
                }
                Outcome::Granted
            }
            Step::Waiting => {
                member.waits.push((request.id, timeout_ms.map(|timeout| self.now_ms + timeout)));
                Outcome::Waiting
            }
            Step::Full => panic!("a script has fewer sessions than a line has places"),
            Step::Refused => Outcome::Conflict,
        }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let [lock] = locks else { panic!("the table takes one lock at a time") };
        let at = self.member(session);
        let member = &mut self.members[at];
        let table = view(&self.tables, session);
        if let Some(waited) = member.waits.iter().position(|(waited, _)| waited == lock) {
            member.waits.remove(waited);
            table.withdraw(&mut member.of_table, lock.0 as u32, &mut nobody).expect("it waits");
        } else {
            table.release(&mut member.of_table, lock.0 as u32, &mut nobody).map_err(|_| NotHeld)?;
        }
        Ok(self.granted())
    }

    fn crash(&mut self, session: Session) -> Vec<Event> {
        let at = self.member(session);
        let number = self.members.remove(at).of_table.number();
        self.table(Session(session.0 + 1)).clean_up(number, &mut nobody).expect("sound");
        self.granted()
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.now_ms += time_ms;
        let mut events = Vec::new();
        for member in &mut self.members {
            let table = view(&self.tables, member.session);
            let of_table = &mut member.of_table;
            member.waits.retain(|(lock, until)| {
                let over = until.is_some_and(|until| until <= self.now_ms);
                if over {
                    table.withdraw(of_table, lock.0 as u32, &mut nobody).expect("it waits");
                    events.push(Event { session: member.session, lock: *lock, granted: false });
                }
                !over
            });
        }
        events.extend(self.granted());
        events.sort();
        events
    }
}
