//! The golden lock scripts on sessions of the module, alone and beside sessions of software on the same table.

use std::collections::BTreeMap;

use lockwork_conformance::locks::{Capability, Event, Manager, NotHeld, Session, golden, run_all};
use lockwork_locking::shared::{self, Layout, Placement, SessionNumber, Step, Table, WaitPolicy};
use lockwork_locking::{LockId, LockMode, Outcome, Request};
use lockwork_verilated::Model;

use crate::card::{self, Answer, Both, Op, Pace, build, hand_over, world};
use crate::replay::Twin;

/// What a session waits for, and until when.
type Waits = Vec<(LockId, Option<u64>)>;

/// A session of a script: of the module, with the oracle, or of software.
enum Member {
    Module(usize, Box<Twin>),
    Software(shared::Session),
}

struct Scripted {
    table: Table<Both>,
    policy: WaitPolicy,
    mixed: bool,
    ages: BTreeMap<Session, u64>,
    members: BTreeMap<Session, (Member, Waits)>,
    now_ms: u64,
}

impl Scripted {
    fn new(model: &Model, policy: WaitPolicy, mixed: bool, port: Pace) -> Self {
        let layout = Layout { placement: Placement::Direct, held: 16, ..Layout::new(64, 64) };
        let table = world(layout, port, 0, model, 1);
        let (ages, members) = (BTreeMap::new(), BTreeMap::new());
        Self { table, policy, mixed, ages, members, now_ms: 0 }
    }

    /// A session comes to be by its first step. Those of the module take its elements in turn.
    fn member(&mut self, session: Session) {
        if self.members.contains_key(&session) {
            return;
        }
        let number = SessionNumber::new(session.0 as u16 + 30).unwrap();
        let of_table = self.table.open(number, 0, &mut |_| ()).unwrap();
        let age = self.ages.get(&session).copied().unwrap_or(u64::from(session.0));
        let member = if self.mixed && session.0.is_multiple_of(2) {
            self.table.set_age(&of_table, age).unwrap();
            Member::Software(of_table)
        } else {
            let element = session.0 as usize % card::ELEMENTS;
            hand_over(&self.table, element, number);
            Member::Module(element, Box::new(Twin::new(&self.table, number, element)))
        };
        self.members.insert(session, (member, Vec::new()));
        if let (Member::Module(..), _) = &self.members[&session] {
            assert_eq!(self.ask(session, Op::Age, age), Answer::Done);
        }
    }

    /// One request, and its answer.
    fn ask(&mut self, session: Session, op: Op, key: u64) -> Answer {
        let Some((Member::Module(element, _), _)) = self.members.get(&session) else { panic!("of software") };
        let element = *element;
        self.table.memory().card.borrow_mut().send(element, op, key);
        for _ in 0..100_000 {
            self.table.memory().card.borrow_mut().tick();
            if let Some(answer) = self.follow(Some((element, op, key))) {
                return answer;
            }
        }
        panic!("no answer to {op:?}");
    }

    /// The oracle follows what is over. The answer to the request of this element, if it is there.
    fn follow(&mut self, request: Option<(usize, Op, u64)>) -> Option<Answer> {
        let mut answered = None;
        loop {
            let over = self.table.memory().card.borrow_mut().over.pop_front();
            let Some((of, activity)) = over else { return answered };
            for (member, _) in self.members.values_mut() {
                if let Member::Module(element, twin) = member
                    && *element == of
                {
                    let request = request.filter(|_| activity.answer.is_some()).map(|(_, op, key)| (op, key));
                    twin.follow(&self.table, request, &activity);
                    answered = answered.or(activity.answer.map(|(answer, _)| answer));
                }
            }
        }
    }

    /// Everybody who waits looks. Those who were granted what they wait for.
    fn granted(&mut self) -> Vec<Event> {
        for _ in 0..2000 {
            self.table.memory().card.borrow_mut().tick();
            self.follow(None);
        }
        let mut events = Vec::new();
        for (&session, (member, waits)) in &mut self.members {
            waits.retain(|&(lock, _)| {
                let line = lock.0 as u32;
                let granted = match member {
                    Member::Module(_, twin) => twin.holds(line) > 0,
                    Member::Software(of_table) => self.table.poll(of_table, line).unwrap(),
                };
                if granted {
                    events.push(Event { session, lock, granted });
                }
                !granted
            });
        }
        events
    }

    fn request(&mut self, session: Session, lock: u64, mode: LockMode) -> Outcome {
        let policy = self.policy;
        let held;
        let step = match &mut self.members.get_mut(&session).unwrap().0 {
            Member::Software(of_table) => {
                held = self.table.holds(of_table, lock as u32) > 0;
                match self.table.request(of_table, lock as u32, mode, policy, &mut |_| ()).unwrap() {
                    Step::Granted => Answer::Granted,
                    Step::Waiting => Answer::Waiting,
                    Step::Refused => Answer::Refused,
                    Step::Full => Answer::Full,
                }
            }
            Member::Module(_, twin) => {
                held = twin.holds(lock as u32) > 0;
                self.ask(session, Op::Acquire(mode, policy), lock)
            }
        };
        match step {
            // A script gives back once however often it asked.
            Answer::Granted if held => {
                self.give_back(session, lock, Op::Release).expect("it was granted twice");
                Outcome::Granted
            }
            Answer::Granted => Outcome::Granted,
            Answer::Waiting => Outcome::Waiting,
            Answer::Refused => Outcome::Conflict,
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, session: Session, lock: u64, op: Op) -> Result<(), NotHeld> {
        match &mut self.members.get_mut(&session).unwrap().0 {
            Member::Software(of_table) => {
                let line = lock as u32;
                let done = match op {
                    Op::Withdraw => self.table.withdraw(of_table, line, &mut |_| ()),
                    _ => self.table.release(of_table, line, &mut |_| ()),
                };
                done.map_err(|_| NotHeld)
            }
            Member::Module(..) => match self.ask(session, op, lock) {
                Answer::Done => Ok(()),
                Answer::NotHeld => Err(NotHeld),
                other => panic!("{other:?}"),
            },
        }
    }
}

impl Manager for Scripted {
    fn name(&self) -> String {
        format!("tuple lock module ({:?}{})", self.policy, if self.mixed { ", beside software" } else { "" })
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{
            Crash, Fifo, Groups, Intent, NoWait, Queues, Reentrant, Timeout, Upgrade, WaitDie, Waits, Withdraw,
        };
        let own = match self.policy {
            WaitPolicy::Try => vec![NoWait, Crash],
            WaitPolicy::WaitDie => vec![WaitDie, Queues, Crash],
            WaitPolicy::Queue => vec![Waits, Fifo, Groups, Withdraw, Timeout, Crash],
            WaitPolicy::Safe => vec![Waits, Fifo, Groups, Withdraw, Timeout],
        };
        own.into_iter().chain([Upgrade, Reentrant, Intent]).collect()
    }

    fn set_age(&mut self, session: Session, age: u64) {
        self.ages.insert(session, age);
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        let [request] = requests else { panic!("the table takes one lock at a time") };
        self.member(session);
        let outcome = self.request(session, request.id.0, request.mode);
        if outcome == Outcome::Waiting {
            let until = timeout_ms.map(|timeout| self.now_ms + timeout);
            self.members.get_mut(&session).unwrap().1.push((request.id, until));
        }
        outcome
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let [lock] = locks else { panic!("the table takes one lock at a time") };
        self.member(session);
        let waits = &mut self.members.get_mut(&session).unwrap().1;
        let waited = waits.iter().position(|(waited, _)| waited == lock);
        waited.map(|at| waits.remove(at));
        self.give_back(session, lock.0, if waited.is_some() { Op::Withdraw } else { Op::Release })?;
        Ok(self.granted())
    }

    fn crash(&mut self, session: Session) -> Vec<Event> {
        self.member(session);
        let number = SessionNumber::new(session.0 as u16 + 30).unwrap();
        if let Some((Member::Module(element, _), _)) = self.members.remove(&session) {
            self.table.memory().card.borrow_mut().close(element);
        }
        self.table.clean_up(number, &mut |_| ()).unwrap();
        self.granted()
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.now_ms += time_ms;
        let now = self.now_ms;
        let over = |(session, (_, waits)): (&Session, &(Member, Waits))| {
            let late = waits.iter().filter(|(_, until)| until.is_some_and(|until| until <= now));
            late.map(|(lock, _)| (*session, *lock)).collect::<Vec<_>>()
        };
        let over: Vec<_> = self.members.iter().flat_map(over).collect();
        let mut events = Vec::new();
        for (session, lock) in over {
            self.members.get_mut(&session).unwrap().1.retain(|(waited, _)| *waited != lock);
            self.give_back(session, lock.0, Op::Withdraw).expect("it waits");
            events.push(Event { session, lock, granted: false });
        }
        events.extend(self.granted());
        events.sort();
        events
    }
}

#[test]
fn the_module_conforms_under_every_patience_alone_and_beside_software() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build();
    let late = Pace { latency: (1, 30), ready: 70, errors: false };
    // As many scripts as the table itself runs under that patience.
    for (policy, scripts) in
        [(WaitPolicy::Try, 9), (WaitPolicy::WaitDie, 9), (WaitPolicy::Queue, 15), (WaitPolicy::Safe, 14)]
    {
        for (mixed, port) in [(false, Pace::QUICK), (true, Pace::QUICK), (true, late)] {
            let report = run_all(&golden(), || Scripted::new(&model, policy, mixed, port));
            println!("{report}");
            assert!(report.is_clean(), "{report}");
            assert_eq!(report.passed(), scripts, "{report}");
        }
    }
}
