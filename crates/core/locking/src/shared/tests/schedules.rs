//! The whole table under random schedules of threads (shuttle): three to five sessions with random scripts, that sleep
//! until they are woken and die at random accesses. Shuttle tells of a lost wake-up as a deadlock. Memory is
//! sequentially consistent here; weaker memory is loom's part (`tests/loom_shared.rs`).

use std::sync::{Arc, Mutex as Plain};

use shuttle::Runner;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Condvar, Mutex};

use super::*;

/// Lines in shuttle's atomics. What lies before them is written by one session each, and needs no schedules.
struct Scheduled {
    before: Private,
    lines: Vec<shuttle::sync::atomic::AtomicU64>,
}

/// The memory as one session sees it, that dies before its Nth access.
struct View {
    memory: Arc<Scheduled>,
    left: Cell<Option<u64>>,
}

impl View {
    fn step(&self) {
        match self.left.get() {
            Some(0) => {
                self.left.set(None);
                resume_unwind(Box::new(Died));
            }
            left => self.left.set(left.map(|left| left - 1)),
        }
    }
}

impl Memory for View {
    fn words(&self) -> usize {
        self.memory.before.words() + self.memory.lines.len()
    }

    fn load(&self, word: usize) -> u64 {
        self.step();
        match word.checked_sub(self.memory.before.words()) {
            None => self.memory.before.load(word),
            Some(word) => self.memory.lines[word].load(shuttle::sync::atomic::Ordering::SeqCst),
        }
    }

    fn store(&self, word: usize, value: u64) {
        self.step();
        self.memory.before.store(word, value);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        use shuttle::sync::atomic::Ordering::SeqCst;
        self.step();
        let word = word - self.memory.before.words();
        self.memory.lines[word].compare_exchange(old, new, SeqCst, SeqCst).map(drop)
    }

    fn fence(&self) {}
}

/// What a session sleeps on.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    /// Sleeps until the bell has been rung since it was last waited for.
    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !*rung {
            rung = self.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// What happened, in the order in which it did. Requests are told by session and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    Asks,
    Waits,
    Holds,
}

/// What happened, to which session, at its request of this number, for which line and mode.
type Noted = (Note, u16, u64, u32, LockMode);

/// What all sessions of a run share.
struct Shared {
    memory: Arc<Scheduled>,
    bells: Vec<Bell>,
    holders: Plain<Vec<(u32, u16, LockMode)>>,
    notes: Plain<Vec<Noted>>,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    lines: u32,
    sessions: u16,
    timeout: WaitPolicy,
    /// Lines that a session takes together.
    together: u32,
    withdraws: bool,
    deaths: bool,
}

struct Actor {
    shared: Arc<Shared>,
    plan: Plan,
    table: Table<View>,
    session: Session,
    requests: u64,
    held: Vec<u32>,
}

impl Shared {
    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Session(number) => self.bells[number.index()].ring(),
            Wake::Crowd => self.bells.iter().for_each(Bell::ring),
        }
    }

    fn note(&self, note: Note, actor: &Actor, line: u32, mode: LockMode) {
        self.notes.lock().unwrap().push((note, actor.session.number().get(), actor.requests, line, mode));
    }
}

impl Actor {
    fn number(&self) -> u16 {
        self.session.number().get()
    }

    fn hold(&mut self, line: u32, mode: LockMode) {
        self.shared.note(Note::Holds, self, line, mode);
        let mut holders = self.shared.holders.lock().unwrap();
        let own = holders.iter().position(|(of, holder, _)| *of == line && *holder == self.number());
        let mode = own.map_or(mode, |at| holders.remove(at).2.join(mode));
        let alone = holders.iter().all(|(of, _, other)| *of != line || compatible(mode, *other));
        assert!(alone, "{} takes {line} in {mode:?} beside {holders:?}", self.number());
        holders.push((line, self.number(), mode));
        drop(holders);
        self.held.push(line);
    }

    /// Whether the session holds the line now.
    fn take(&mut self, line: u32, mode: LockMode) -> bool {
        let shared = self.shared.clone();
        let mut wake = |wake| shared.wake(wake);
        self.requests += 1;
        if !self.held.contains(&line) {
            shared.note(Note::Asks, self, line, mode);
        }
        let mut step = self.table.request(&mut self.session, line, mode, self.plan.timeout, &mut wake).unwrap();
        while step == Step::Full {
            if self.plan.withdraws && thread_rng().gen_bool(0.3) {
                return false;
            }
            if self.table.crowd(line).unwrap() {
                shared.bells[self.session.number().index()].wait();
            }
            step = self.table.request(&mut self.session, line, mode, self.plan.timeout, &mut wake).unwrap();
        }
        if step == Step::Waiting {
            shared.note(Note::Waits, self, line, mode);
            while !self.table.poll(&mut self.session, line).unwrap() {
                if self.plan.withdraws && thread_rng().gen_bool(0.3) {
                    self.table.withdraw(&mut self.session, line, &mut wake).unwrap();
                    return false;
                }
                shared.bells[self.session.number().index()].wait();
            }
            step = Step::Granted;
        }
        if step == Step::Granted {
            self.hold(line, mode);
        }
        step == Step::Granted
    }

    fn let_go(&mut self) {
        let shared = self.shared.clone();
        let mut wake = |wake| shared.wake(wake);
        let number = self.number();
        if thread_rng().gen_bool(0.3) {
            shared.holders.lock().unwrap().retain(|(_, holder, _)| *holder != number);
            self.held.clear();
            self.table.release_all(&mut self.session, &mut wake).unwrap();
            return;
        }
        while let Some(line) = self.held.pop() {
            if !self.held.contains(&line) {
                shared.holders.lock().unwrap().retain(|(of, holder, _)| *of != line || *holder != number);
            }
            self.table.release(&mut self.session, line, &mut wake).unwrap();
        }
    }

    fn mode(&self) -> LockMode {
        [X, X, S, S, IX][thread_rng().gen_range(0..5)]
    }

    fn transaction(&mut self) {
        let plan = self.plan;
        let first = thread_rng().gen_range(0..plan.lines);
        // Who waits for anybody takes its lines in order; else a circle would close.
        let first = if plan.timeout == WaitPolicy::Queue && plan.together > 1 { 0 } else { first };
        for at in 0..plan.together {
            let line = (first + at) % plan.lines;
            let mode = self.mode();
            if !self.take(line, mode) {
                break;
            }
            if thread_rng().gen_bool(0.2) {
                let mode = self.mode();
                self.take(line, mode);
            }
        }
        shuttle::thread::yield_now();
        self.let_go();
    }

    fn live(&mut self) {
        for _ in 0..thread_rng().gen_range(1..4) {
            self.transaction();
        }
    }
}

fn actor(shared: &Arc<Shared>, plan: Plan, number: u16) -> Actor {
    let view = View { memory: shared.memory.clone(), left: Cell::new(None) };
    let table = Table::attach(view).unwrap();
    let session = table.open(number_of(number), 1, &mut |wake| shared.wake(wake)).unwrap();
    table.set_age(&session, (u64::from(number) * 7) % 5).unwrap();
    Actor { shared: shared.clone(), plan, table, session, requests: 0, held: Vec::new() }
}

fn run(plan: Plan) {
    let layout = Layout::new(plan.lines, plan.sessions);
    let lines = plan.lines as usize * LINE_WORDS;
    let memory = Arc::new(Scheduled {
        before: Private::new(layout.words() - lines),
        lines: (0..lines).map(|_| shuttle::sync::atomic::AtomicU64::new(0)).collect(),
    });
    let bells = (0..plan.sessions).map(|_| Bell::default()).collect();
    let shared = Arc::new(Shared { memory, bells, holders: Plain::default(), notes: Plain::default() });
    let view = View { memory: shared.memory.clone(), left: Cell::new(None) };
    let table = Table::create(view, layout).unwrap();
    let spawn = |number| {
        let shared = shared.clone();
        shuttle::thread::spawn(move || {
            let mut actor = actor(&shared, plan, number);
            if plan.deaths && thread_rng().gen_bool(0.5) {
                actor.table.memory().left.set(Some(thread_rng().gen_range(0..120)));
            }
            if survives(|| actor.live()) {
                return;
            }
            // From here on it is somebody else, who has got the dead one's liveness lock, and may die over it too.
            shared.holders.lock().unwrap().retain(|(_, holder, _)| *holder != number);
            let wake = &mut |wake| shared.wake(wake);
            if thread_rng().gen_bool(0.3) {
                actor.table.memory().left.set(Some(thread_rng().gen_range(0..40)));
            }
            if !survives(|| actor.table.clean_up(number_of(number), wake).unwrap()) {
                actor.table.clean_up(number_of(number), wake).unwrap();
            }
            actor.table.memory().left.set(None);
            self::actor(&shared, plan, number).live();
        })
    };
    let threads: Vec<_> = (1..=plan.sessions).map(spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for line in 0..plan.lines {
        let control = Control(table.memory().load(table.line_word(line)));
        assert!(control.is_free(), "{control:x?} is left");
    }
    assert!((1..=plan.sessions).all(|number| table.touched(number_of(number)) == 0));
    if !plan.withdraws && !plan.deaths && plan.together == 1 {
        in_order(&shared.notes.lock().unwrap());
    }
}

/// Who was told to wait before somebody else asked in a mode that excludes his, held the line before him.
fn in_order(notes: &[Noted]) {
    let when = |wanted: Note, session: u16, request: u64| {
        notes.iter().position(|(note, of, number, ..)| (*note, *of, *number) == (wanted, session, request))
    };
    let asked = notes.iter().enumerate().filter(|(_, (note, ..))| *note == Note::Asks);
    for (at, (_, session, request, line, mode)) in asked {
        let waited = notes[..at].iter().filter(|(note, other, _, of, modes)| {
            *note == Note::Waits && other != session && of == line && !compatible(*mode, *modes)
        });
        for (_, other, number, ..) in waited {
            if let (Some(mine), Some(theirs)) =
                (when(Note::Holds, *session, *request), when(Note::Holds, *other, *number))
            {
                assert!(theirs < mine, "{session} ({request}) overtook {other} ({number}): {notes:?}");
            }
        }
    }
}

/// Explores random schedules, the same every time; `SCHEDULES=n` explores n times as many, others for each n.
fn explore(plan: Plan) {
    let times = std::env::var("SCHEDULES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let (seed, schedules) = (times as u64, 1500 * times);
    let config = || {
        let mut config = shuttle::Config::new();
        config.failure_persistence = shuttle::FailurePersistence::Print;
        config.silence_warnings = true;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config()).run(move || run(plan));
    for depth in [2, 4] {
        Runner::new(PctScheduler::new_from_seed(seed, depth, schedules / 2), config()).run(move || run(plan));
    }
}

const PLAN: Plan =
    Plan { lines: 2, sessions: 4, timeout: WaitPolicy::Queue, together: 1, withdraws: false, deaths: false };

#[test]
fn queues_are_in_order_and_lose_nobody() {
    explore(PLAN);
    explore(Plan { lines: 1, ..PLAN });
}

#[test]
fn lines_in_order_under_every_step() {
    explore(Plan { together: 2, withdraws: true, ..PLAN });
    explore(Plan { together: 2, deaths: true, ..PLAN });
}

#[test]
fn requests_are_taken_back_and_sessions_die() {
    explore(Plan { lines: 1, withdraws: true, deaths: true, ..PLAN });
    explore(Plan { sessions: 5, withdraws: true, deaths: true, ..PLAN });
}

#[test]
fn no_circle_closes_where_age_decides() {
    for timeout in [WaitPolicy::Safe, WaitPolicy::WaitDie] {
        let plan = Plan { lines: 4, together: 3, timeout, ..PLAN };
        explore(plan);
        explore(Plan { lines: 2, together: 2, deaths: true, withdraws: true, ..plan });
    }
}

#[test]
fn nobody_waits_who_only_tries() {
    explore(Plan { lines: 2, together: 2, timeout: WaitPolicy::Try, deaths: true, ..PLAN });
}

#[test]
fn a_crowd_outside_a_full_line_gets_in() {
    explore(Plan { lines: 1, sessions: 10, ..PLAN });
    explore(Plan { lines: 1, sessions: 10, withdraws: true, deaths: true, ..PLAN });
}
