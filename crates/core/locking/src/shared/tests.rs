//! Tests of the shared lock table.
//!
//! | module | what is tried |
//! |---|---|
//! | `lines` | words and lines one by one: the ring's wrap, a full line, groups, upgrades, patiences |
//! | `layouts` | headers that are refused; what a damaged line may do |
//! | `between` | at every access of one step, whole steps of others |
//! | `deaths` | death at every access, and of the cleaner at every access |
//! | `oracle` | long random scripts against a list |
//! | `schedules` | random schedules of threads, with deaths |
//!
//! All but the last play in a [`World`]: sessions of one table in one thread, that look again only when they are woken.

mod between;
mod deaths;
mod layouts;
mod lines;
mod oracle;
mod schedules;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use super::memory::{Memory, Private};
use super::word::{Control, LINE_WORDS, Slot};
use super::*;
use crate::{LockMode, compatible};

const S: LockMode = LockMode::Shared;
const IX: LockMode = LockMode::IntentExclusive;
const X: LockMode = LockMode::Exclusive;

type Event = Box<dyn FnOnce()>;

/// Memory at whose Nth access something happens first.
struct Stepped {
    words: Private,
    accesses: Cell<u64>,
    /// What happens, and before which access; ascending.
    plan: RefCell<VecDeque<(u64, Event)>>,
    busy: Cell<bool>,
}

/// What a session dies of.
struct Died;

impl Stepped {
    fn new(words: usize) -> Self {
        let plan = RefCell::default();
        Self { words: Private::new(words), accesses: Cell::new(0), plan, busy: Cell::new(false) }
    }

    /// Begins to count accesses, for a plan.
    fn begin(&self, plan: impl IntoIterator<Item = (u64, Event)>) {
        self.accesses.set(0);
        *self.plan.borrow_mut() = plan.into_iter().collect();
    }

    /// Whether all that was planned has happened.
    fn is_over(&self) -> bool {
        self.plan.borrow().is_empty()
    }

    fn step(&self) {
        if self.busy.get() {
            return;
        }
        let now = self.accesses.replace(self.accesses.get() + 1);
        let is_due = |(at, _): &(u64, Event)| *at <= now;
        while self.plan.borrow().front().is_some_and(is_due) {
            let (_, event) = self.plan.borrow_mut().pop_front().unwrap();
            self.busy.set(true);
            let happened = catch_unwind(AssertUnwindSafe(event));
            self.busy.set(false);
            happened.unwrap_or_else(|payload| resume_unwind(payload));
        }
    }
}

impl Memory for Stepped {
    fn words(&self) -> usize {
        self.words.words()
    }

    fn load(&self, word: usize) -> u64 {
        self.step();
        self.words.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.step();
        self.words.store(word, value);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.step();
        self.words.swap(word, old, new)
    }

    fn fence(&self) {
        self.words.fence();
    }
}

/// How a session stands with a line, as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Holds,
    Waits,
    /// For a place.
    Outside(LockMode),
}

/// A step of a session, named by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    /// Of line 0.
    Take(u16, LockMode),
    TakeLine(u16, u32, LockMode),
    /// Gives back or takes back line 0, whichever it is.
    Leave(u16),
    LeaveAll(u16),
}
use Do::{Leave, LeaveAll, Take, TakeLine};

impl Do {
    fn is_of(self, session: u16) -> bool {
        let (Take(number, _) | TakeLine(number, _, _) | Leave(number) | LeaveAll(number)) = self;
        number == session
    }
}

/// Sessions of one table, in one thread.
struct World {
    table: Table<Rc<Stepped>>,
    sessions: Vec<RefCell<Session>>,
    timeout: WaitPolicy,
    stands: RefCell<BTreeMap<(u16, u32), Stand>>,
    woken: RefCell<BTreeSet<u16>>,
}

impl World {
    /// With sessions `1..=sessions`, whose ages are their numbers.
    fn new(lines: u32, sessions: u16, timeout: WaitPolicy) -> Rc<Self> {
        let layout = Layout::new(lines, sessions);
        let table = Table::create(Rc::new(Stepped::new(layout.words())), layout).unwrap();
        let open = |number| {
            let session = table.open(number, 7, &mut |_| {}).unwrap();
            table.set_age(&session, number.get().into()).unwrap();
            RefCell::new(session)
        };
        let sessions = (1..=sessions).map(|number| open(number_of(number))).collect();
        let (stands, woken) = Default::default();
        Rc::new(Self { table, sessions, timeout, stands, woken })
    }

    fn played(lines: u32, sessions: u16, steps: &[Do]) -> Rc<Self> {
        let world = Self::new(lines, sessions, WaitPolicy::Queue);
        for step in steps {
            world.play(*step);
            world.look();
        }
        world
    }

    fn wake(&self, wake: Wake) {
        // One can die between a change and telling of it.
        self.table.memory().step();
        match wake {
            Wake::Session(number) => _ = self.woken.borrow_mut().insert(number.get()),
            Wake::Crowd => {
                let outside =
                    |(&(number, _), &stand): (_, &Stand)| matches!(stand, Stand::Outside(_)).then_some(number);
                let outside: Vec<u16> = self.stands.borrow().iter().filter_map(outside).collect();
                self.woken.borrow_mut().extend(outside);
            }
        }
    }

    fn session(&self, number: u16) -> std::cell::RefMut<'_, Session> {
        self.sessions[usize::from(number) - 1].borrow_mut()
    }

    fn stand(&self, number: u16) -> Option<Stand> {
        self.stands.borrow().get(&(number, 0)).copied()
    }

    fn ask(&self, number: u16, line: u32, mode: LockMode) -> Step {
        let stood = self.stands.borrow().get(&(number, line)).copied();
        if stood.is_none() {
            self.woken.borrow_mut().remove(&number);
        }
        // From here on it may be told of a place, as one who looks before it falls asleep.
        self.stands.borrow_mut().entry((number, line)).or_insert(Stand::Outside(mode));
        let mut session = self.session(number);
        let step = self.table.request(&mut session, line, mode, self.timeout, &mut |wake| self.wake(wake)).unwrap();
        let stand = match step {
            Step::Granted => Some(Stand::Holds),
            Step::Waiting => Some(Stand::Waits),
            Step::Full if !self.table.crowd(line).unwrap() => {
                drop(session);
                return self.ask(number, line, mode);
            }
            Step::Full => Some(Stand::Outside(mode)),
            Step::Refused => stood,
        };
        match stand {
            Some(stand) => _ = self.stands.borrow_mut().insert((number, line), stand),
            None => _ = self.stands.borrow_mut().remove(&(number, line)),
        }
        step
    }

    /// Plays a step; what came of a request.
    fn play(&self, step: Do) -> Option<Step> {
        match step {
            Take(number, mode) => return Some(self.ask(number, 0, mode)),
            TakeLine(number, line, mode) => return Some(self.ask(number, line, mode)),
            Leave(number) => self.leave(number, 0),
            LeaveAll(number) => {
                self.stands.borrow_mut().retain(|(held, _), _| *held != number);
                self.table.release_all(&mut self.session(number), &mut |wake| self.wake(wake)).unwrap();
            }
        }
        None
    }

    fn leave(&self, number: u16, line: u32) {
        let stood = self.stands.borrow_mut().remove(&(number, line));
        let mut session = self.session(number);
        let wake = &mut |wake| self.wake(wake);
        match stood {
            Some(Stand::Waits) => self.table.withdraw(&mut session, line, wake).unwrap(),
            Some(Stand::Holds) => {
                for _ in 0..self.table.holds(&session, line) {
                    self.table.release(&mut session, line, wake).unwrap();
                }
            }
            Some(Stand::Outside(_)) | None => {}
        }
    }

    /// Those who have been woken look. Whether anything came of it.
    fn look(&self) -> bool {
        let woken = std::mem::take(&mut *self.woken.borrow_mut());
        let mut any = false;
        let stands: Vec<_> = self.stands.borrow().iter().map(|(place, stand)| (*place, *stand)).collect();
        for ((number, line), stand) in stands.into_iter().filter(|((number, _), _)| woken.contains(number)) {
            match stand {
                Stand::Waits => {
                    if self.table.poll(&mut self.session(number), line).unwrap() {
                        self.stands.borrow_mut().insert((number, line), Stand::Holds);
                        any = true;
                    }
                }
                Stand::Outside(mode) => any |= self.ask(number, line, mode) != Step::Full,
                Stand::Holds => {}
            }
        }
        self.check();
        any
    }

    /// Nobody holds a lock who must not, and nobody takes himself for a holder who is none.
    fn check(&self) {
        for line in 0..self.table.layout().lines {
            let all = 1..=self.sessions.len() as u16;
            let standing = |number| self.table.standing(number_of(number), line).unwrap().map(|mode| (number, mode));
            let holders: Vec<_> = all.filter_map(standing).filter_map(|(who, mode)| Some((who, mode?))).collect();
            for (at, (_, mode)) in holders.iter().enumerate() {
                assert!(holders[..at].iter().all(|(_, other)| compatible(*mode, *other)), "{holders:?} hold {line}");
            }
            for (&(number, of), stand) in self.stands.borrow().iter() {
                let holds = holders.iter().any(|(holder, _)| *holder == number);
                assert!(of != line || *stand != Stand::Holds || holds, "{number} holds {line}, but {holders:?} do");
            }
        }
    }

    /// Everybody gets its turn, or somebody waits for ever. Whoever had a turn gives back. In the end nothing is left.
    fn finish(&self, context: &dyn std::fmt::Debug) {
        let standing = self.stands.borrow().len();
        for _ in 0..=4 * standing {
            while self.look() {}
            let holder =
                self.stands.borrow().iter().find(|(_, stand)| **stand == Stand::Holds).map(|(place, _)| *place);
            let Some((number, line)) = holder else { break };
            self.leave(number, line);
        }
        assert!(self.stands.borrow().is_empty(), "{:?} wait for ever: {context:?}", self.stands);
        for line in 0..self.table.layout().lines {
            let control = Control(self.table.memory().load(self.table.line_word(line)));
            assert!(control.is_free(), "{control:x?} is left: {context:?}");
        }
        for number in 1..=self.sessions.len() as u16 {
            assert_eq!(self.table.touched(number_of(number)), 0, "{context:?}");
        }
    }

    fn words(&self, line: u32) -> [u64; LINE_WORDS] {
        let base = self.table.line_word(line);
        std::array::from_fn(|at| self.table.memory().load(base + at))
    }

    /// Whether a session is in a line, or has claimed a place in one.
    fn is_anywhere(&self, number: u16) -> bool {
        (0..self.table.layout().lines).any(|line| {
            let mut there = false;
            self.table.everybody(line, |other| there |= other.get() == number).unwrap();
            let words = self.words(line);
            let tail = Control(words[0]).tail();
            let claim = Slot(words[tail.word()]);
            there || (claim.ticket() == tail && claim.has(number_of(number)))
        })
    }
}

fn number_of(number: u16) -> SessionNumber {
    SessionNumber::new(number).unwrap()
}

/// Whether `act` ends before the session that it belongs to dies.
fn survives(act: impl FnOnce()) -> bool {
    let died =
        |payload: Box<dyn Any + Send>| payload.downcast::<Died>().map_or_else(|other| resume_unwind(other), drop);
    catch_unwind(AssertUnwindSafe(act)).map_err(died).is_ok()
}

/// Death, to be planned.
fn death() -> Event {
    Box::new(|| resume_unwind(Box::new(Died)))
}
