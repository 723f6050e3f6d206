//! The golden scripts: two attachments whose sessions take turns, and a process for every session, of which a crash is
//! its death.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::AsFd;

use lockwork_conformance::locks::shared::SharedTable;
use lockwork_conformance::locks::{Capability, Event, Manager, NotHeld, Session, golden, run_all};
use lockwork_locking::shared::{Step, Table, TableError};
use lockwork_locking::{LockId, Outcome, Request};
use lockwork_sharedlocks::{LockMode, Mapped, SharedLocks, WaitPolicy};

use crate::child::{lines, say};
use crate::support::{Name, Player, options, table};

/// Scripts of the suite that a manager which waits can run, as in the suite's own test.
const SCRIPTS: usize = 15;
const MODES: [LockMode; 3] = [LockMode::Shared, LockMode::IntentExclusive, LockMode::Exclusive];

/// A session of its own process: does what it is told, line by line.
pub(crate) fn serve(table: &str, age: u64) {
    let locks = SharedLocks::attach(table).unwrap();
    // It keeps the session alive; the steps are the table's own, which do not block.
    let alive = locks.session().unwrap();
    let table: &Table<Mapped> = locks.table();
    let mut session = table.open(alive.number(), std::process::id(), &mut |_| ()).unwrap();
    table.set_age(&session, age).unwrap();
    say("ready");
    for line in lines() {
        let (verb, rest) = line.split_once(' ').unwrap();
        let numbers: Vec<u32> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
        let answer = |done: Result<(), TableError>| if done.is_ok() { "done" } else { "not held" };
        say(match (verb, numbers[0]) {
            ("ask", line) => {
                let held = table.holds(&session, line) > 0;
                let mode = MODES[numbers[1] as usize];
                match table.request(&mut session, line, mode, WaitPolicy::Queue, &mut |_| ()).unwrap() {
                    Step::Granted if held => answer(table.release(&mut session, line, &mut |_| ())),
                    Step::Granted => "done",
                    Step::Waiting => "waiting",
                    Step::Refused => "refused",
                    Step::Full => "full",
                }
            }
            ("poll", line) => match table.poll(&mut session, line) {
                Ok(true) => "done",
                _ => "waiting",
            },
            ("withdraw", line) => answer(table.withdraw(&mut session, line, &mut |_| ())),
            ("release", line) => answer(table.release(&mut session, line, &mut |_| ())),
            _ => panic!("{line}"),
        });
    }
}

/// What a session waits for, and until when.
type Waits = Vec<(LockId, Option<u64>)>;

/// A table whose sessions are processes.
struct Processes {
    name: Name,
    locks: SharedLocks,
    members: BTreeMap<Session, (Player, Waits)>,
    now_ms: u64,
}

impl Processes {
    fn new() -> Self {
        let (name, locks) = table(64, 16);
        Self { name, locks, members: BTreeMap::new(), now_ms: 0 }
    }

    fn member(&mut self, session: Session) -> &mut (Player, Waits) {
        let name = &self.name.0;
        self.members.entry(session).or_insert_with(|| {
            let mut player = Player::talking(&format!("session {name} {}", session.0));
            assert_eq!(player.hear(), "ready");
            (player, Vec::new())
        })
    }

    fn granted(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for (&session, (player, waits)) in &mut self.members {
            waits.retain(|&(lock, _)| {
                let granted = player.ask(&format!("poll {}", lock.0)) == "done";
                if granted {
                    events.push(Event { session, lock, granted });
                }
                !granted
            });
        }
        events
    }
}

impl Manager for Processes {
    fn name(&self) -> String {
        "shared lock table, a process for every session".to_string()
    }

    fn capabilities(&self) -> Vec<Capability> {
        use Capability::{Crash, Fifo, Groups, Intent, Reentrant, Timeout, Upgrade, Waits, Withdraw};
        vec![Waits, Fifo, Groups, Withdraw, Timeout, Upgrade, Reentrant, Intent, Crash]
    }

    fn acquire(&mut self, session: Session, requests: &[Request], timeout_ms: Option<u64>) -> Outcome {
        let [Request { id, mode }] = *requests else { panic!("the table takes one lock at a time") };
        let until = timeout_ms.map(|timeout| self.now_ms + timeout);
        let mode = MODES.iter().position(|one| *one == mode).unwrap();
        let (player, waits) = self.member(session);
        match &*player.ask(&format!("ask {} {mode}", id.0)) {
            "done" => Outcome::Granted,
            "refused" => Outcome::Conflict,
            "waiting" => {
                waits.push((id, until));
                Outcome::Waiting
            }
            other => panic!("{other}"),
        }
    }

    fn release(&mut self, session: Session, locks: &[LockId]) -> Result<Vec<Event>, NotHeld> {
        let [lock] = *locks else { panic!("the table takes one lock at a time") };
        let (player, waits) = self.member(session);
        let waited = waits.iter().position(|(waited, _)| *waited == lock);
        let verb = if waited.is_some() { "withdraw" } else { "release" };
        waited.map(|at| waits.remove(at));
        if player.ask(&format!("{verb} {}", lock.0)) != "done" {
            return Err(NotHeld);
        }
        Ok(self.granted())
    }

    fn crash(&mut self, session: Session) -> Vec<Event> {
        self.member(session).0.kill();
        self.members.remove(&session);
        self.locks.clean_up().unwrap();
        self.granted()
    }

    fn pass(&mut self, time_ms: u64) -> Vec<Event> {
        self.now_ms += time_ms;
        let (now, mut events) = (self.now_ms, Vec::new());
        for (&session, (player, waits)) in &mut self.members {
            waits.retain(|&(lock, until)| {
                let over = until.is_some_and(|until| until <= now);
                if over {
                    assert_eq!(player.ask(&format!("withdraw {}", lock.0)), "done");
                    events.push(Event { session, lock, granted: false });
                }
                !over
            });
        }
        events.extend(self.granted());
        events.sort();
        events
    }
}

#[test]
fn sessions_that_are_processes_conform() {
    let report = run_all(&golden(), Processes::new);
    println!("{report}");
    assert!(report.is_clean() && report.passed() == SCRIPTS, "{report}");
}

/// The memory of an attachment.
struct View(SharedLocks);

impl Deref for View {
    type Target = Mapped;

    fn deref(&self) -> &Mapped {
        self.0.table().memory()
    }
}

#[test]
fn two_attachments_that_take_turns_conform() {
    let report = run_all(&golden(), || {
        let (locks, descriptor) = SharedLocks::anonymous(&options(64, 64)).unwrap();
        let other = SharedLocks::of_descriptor(descriptor.as_fd()).unwrap();
        let views = [locks, other].map(|locks| Table::attach(View(locks)).unwrap());
        SharedTable::over(Vec::from(views), WaitPolicy::Queue)
    });
    println!("{report}");
    assert!(report.is_clean() && report.passed() == SCRIPTS, "{report}");
}
