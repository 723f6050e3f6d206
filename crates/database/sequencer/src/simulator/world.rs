//! One run's clock, threads and events. One thread has its turn at a time, and hands it on itself.
//!
//! Everything that happens has a time: a thread that waits goes on at the end of its wait, or a little after something
//! was done that it may wait for; a request arrives at the servers, and its answer at the node. Whatever is next by
//! time is done next, and the clock is set to that. So who is faster is drawn, with the delays, from the seed.
//!
//! The threads are those that a node has, each with a stack of the system's. A node that is killed loses them: a thread
//! unwinds where it waits. Invariant: whoever has the turn is the only one that runs, so a run is a function of the
//! seed.

use std::any::Any;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use lockwork_random::Random;

use super::checker::Checker;
use super::counters::{Counters, Seen};
use super::director::Told;
use super::servers::{Event, Servers};
use crate::shared::lock;
use crate::threads::{Scheduler, Threads, Waits};

pub(super) const MICROSECOND: u64 = 1000;
pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;
/// For how long at most a thread that could go on does not, on a node that is not slow.
const JITTER: u64 = 30 * MICROSECOND;

thread_local! {
    /// The number of this thread in its run.
    static SELF: Cell<usize> = const { Cell::new(0) };
}

/// What a thread of a node that was killed unwinds with.
struct Killed;

/// Where a thread waits for its turn.
#[derive(Default)]
struct Turn {
    given: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Turn {
    fn give(&self) {
        self.given.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // One that is not there yet looks before it waits.
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn take(&self) {
        self.thread.get_or_init(std::thread::current);
        fence(Ordering::SeqCst);
        while !self.given.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

/// The time of day when a simulation begins, in milliseconds since 1970.
pub(super) const BEGIN_MS: u64 = 1 << 40;
/// So much are clocks of some nodes behind those of clients, and those of others twice as much.
const BEHIND_MS: u64 = 20_000;

/// A thread.
struct Slot {
    name: String,
    life: usize,
    turn: Arc<Turn>,
    /// When it goes on; `None` when it waits for others, or has its turn.
    at: Option<u64>,
    waits: Waits,
    has_ended: bool,
}

/// A process, from its start until it ends or is killed; the first one is the simulation's own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    pub(super) node: usize,
    pub(super) is_killed: bool,
    /// It was asked to end.
    pub(super) is_asked: bool,
    /// It stands still until then.
    pub(super) stopped_until: u64,
    /// Until then it is slow.
    pub(super) slow_until: u64,
    /// Its clock gains so many millionths.
    gains: i64,
}

impl Life {
    /// Its clock, and back.
    fn clock(&self, now: u64) -> u64 {
        (i128::from(now) * i128::from(1_000_000 + self.gains) / 1_000_000) as u64
    }

    fn at(&self, clock: u64) -> u64 {
        (i128::from(clock) * 1_000_000 / i128::from(1_000_000 + self.gains)) as u64 + 1
    }
}

/// See the module.
pub(super) struct World {
    origin: Instant,
    state: Mutex<State>,
    /// What the director is told.
    pub(super) inbox: Mutex<VecDeque<Told>>,
}

/// What there is in a run.
pub(super) struct State {
    pub(super) now: u64,
    pub(super) chance: Random,
    pub(super) counters: Counters,
    pub(super) failure: Option<String>,
    pub(super) servers: Servers,
    pub(super) checker: Checker,
    pub(super) lives: Vec<Life>,
    pub(super) trace: String,
    slots: Vec<Slot>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// What happens at the events, by their numbers.
    happens: std::collections::BTreeMap<u64, Event>,
    drawn: u64,
}

impl State {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.chance.next_u64() % limit.max(1)
    }

    /// Whether something of so many in a thousand happens.
    pub(super) fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(super) fn saw(&mut self, seen: Seen) {
        self.counters.add(seen);
    }

    pub(super) fn tell(&mut self, text: std::fmt::Arguments<'_>) {
        use std::fmt::Write;
        let (seconds, rest) = (self.now / SECOND, self.now % SECOND);
        writeln!(self.trace, "{seconds:>4}.{rest:09} {text}").expect("a string takes it");
    }

    /// The first thing that is wrong is kept.
    pub(super) fn fail(&mut self, what: String) {
        self.tell(format_args!("FAILED: {what}"));
        self.failure.get_or_insert(what);
        self.slots[0].at = self.slots[0].at.map(|_| 0);
    }

    pub(super) fn check(&mut self, outcome: Result<(), String>) {
        if let Err(what) = outcome {
            self.fail(what);
        }
    }

    /// Has something happen after so long.
    pub(super) fn later(&mut self, after: u64, event: Event) {
        self.drawn += 1;
        self.events.push(Reverse((self.now + after, self.drawn)));
        self.happens.insert(self.drawn, event);
    }

    /// Something has happened that a thread may wait for.
    pub(super) fn wake(&mut self, slot: usize) {
        let slow = if self.now < self.lives[self.slots[slot].life].slow_until { 200 } else { 1 };
        let at = self.now + self.below(JITTER * slow);
        let slot = &mut self.slots[slot];
        slot.at = Some(slot.at.map_or(at, |before| before.min(at)));
    }

    fn wake_life(&mut self, life: usize, but: usize) {
        for slot in 0..self.slots.len() {
            let Slot { life: of, waits, has_ended, .. } = self.slots[slot];
            if slot != but && of == life && waits == Waits::Threads && !has_ended {
                self.wake(slot);
            }
        }
    }

    /// The director has done something to a process.
    pub(super) fn touch(&mut self, life: usize) {
        self.wake_life(life, 0);
    }

    pub(super) fn wake_director(&mut self) {
        self.wake(0);
    }

    /// Threads that have not ended, for people.
    pub(super) fn threads(&self) -> String {
        let live = self.slots[1..].iter().filter(|slot| !slot.has_ended);
        let all = live.map(|slot| format!("{} of {} waits for {:?}", slot.name, self.name(slot.life), slot.waits));
        all.collect::<Vec<_>>().join(", ")
    }

    /// Whether all threads of processes have ended.
    pub(super) fn is_over(&self) -> bool {
        self.slots[1..].iter().all(|slot| slot.has_ended)
    }

    pub(super) fn kill(&mut self, life: usize) {
        self.lives[life].is_killed = true;
        for slot in self.slots.iter_mut().filter(|slot| slot.life == life && !slot.has_ended) {
            slot.at = Some(0);
        }
    }

    /// A new process of a node.
    pub(super) fn begin(&mut self, node: usize, gains: i64) -> usize {
        self.lives.push(Life { node, gains, ..Life::default() });
        self.lives.len() - 1
    }

    /// Does what comes before any thread's turn, and says whose turn it is.
    fn next(&mut self) -> usize {
        loop {
            let at = |slot: &Slot| {
                let life = &self.lives[slot.life];
                slot.at
                    .filter(|_| !slot.has_ended)
                    .map(|at| if life.is_killed { 0 } else { at.max(life.stopped_until) })
            };
            let first = self.slots.iter().enumerate().filter_map(|(number, slot)| Some((at(slot)?, number))).min();
            let event = self.events.peek().map(|Reverse(event)| *event);
            match (first, event) {
                (thread, Some((at, number))) if thread.is_none_or(|(first, _)| at <= first) => {
                    self.events.pop();
                    self.now = self.now.max(at);
                    if let Some(event) = self.happens.remove(&number) {
                        self.happen(event);
                    }
                }
                (Some((at, number)), _) => {
                    self.now = self.now.max(at);
                    self.slots[number].at = None;
                    return number;
                }
                // Nothing will ever happen: whoever directs says so.
                (None, _) => {
                    self.fail("everything waits for something else".into());
                    self.slots[0].at = Some(0);
                }
            }
        }
    }
}

impl World {
    /// A run; the calling thread is its director.
    pub(super) fn new(seed: u64, servers: Servers, checker: Checker) -> Arc<Self> {
        SELF.set(0);
        let director = Slot {
            name: "director".into(),
            life: 0,
            turn: Arc::default(),
            at: None,
            waits: Waits::Time,
            has_ended: false,
        };
        let state = State {
            now: 0,
            chance: Random(seed),
            counters: Counters::default(),
            failure: None,
            servers,
            checker,
            lives: vec![Life::default()],
            trace: String::new(),
            slots: vec![director],
            events: BinaryHeap::new(),
            happens: std::collections::BTreeMap::new(),
            drawn: 0,
        };
        Arc::new(Self { origin: Instant::now(), state: state.into(), inbox: Mutex::default() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The number of the thread that has its turn.
    pub(super) fn current() -> usize {
        SELF.get()
    }

    /// The director is told something.
    pub(super) fn tell(&self, told: Told) {
        lock(&self.inbox).push_back(told);
        self.state().wake_director();
    }

    /// The director waits, for so long at most.
    pub(super) fn direct(self: &Arc<Self>, most: u64) {
        let until = self.origin + Duration::from_nanos(self.state().now + most);
        self.seat(0).wait(Some(until), false, Waits::Time);
    }

    pub(super) fn seat(self: &Arc<Self>, life: usize) -> Seat {
        Seat { world: self.clone(), life }
    }

    /// Ends all processes.
    pub(super) fn end(self: &Arc<Self>) {
        let lives = self.state().lives.len();
        (1..lives).for_each(|life| self.state().kill(life));
        while !self.state().is_over() {
            self.direct(1);
        }
    }
}

/// A process's place in a run, as its threads see it.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) world: Arc<World>,
    pub(super) life: usize,
}

impl Seat {
    pub(super) fn threads(&self) -> Threads {
        Threads::of(Arc::new(self.clone()))
    }

    /// Gives the turn to whoever is next, and waits for it to come back.
    fn hand_over(&self, mut state: MutexGuard<'_, State>) {
        let (current, next) = (SELF.get(), state.next());
        if next == current {
            return;
        }
        let (own, other) = (state.slots[current].turn.clone(), state.slots[next].turn.clone());
        drop(state);
        other.give();
        own.take();
    }

    fn is_killed(&self) -> bool {
        self.world.state().lives[self.life].is_killed
    }

    /// All of a thread, from its first turn to its last.
    fn live(&self, number: usize, turn: &Turn, run: Box<dyn FnOnce() + Send>) {
        SELF.set(number);
        turn.take();
        let ran = catch_unwind(AssertUnwindSafe(|| if self.is_killed() { drop(run) } else { run() }));
        let mut state = self.world.state();
        if let Err(panic) = ran
            && !panic.is::<Killed>()
        {
            let what =
                format!("{} of node {} panicked: {}", state.slots[number].name, self.node(&state), words(&*panic));
            state.fail(what);
        }
        state.slots[number].has_ended = true;
        state.slots[number].at = None;
        state.wake_life(self.life, number);
        let next = state.next();
        let turn = state.slots[next].turn.clone();
        drop(state);
        turn.give();
    }

    fn node(&self, state: &State) -> usize {
        state.lives[self.life].node
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl Scheduler for Seat {
    fn unix_ms(&self) -> u64 {
        let state = self.world.state();
        let life = &state.lives[self.life];
        BEGIN_MS + life.clock(state.now) / MILLISECOND - life.node as u64 % 3 * BEHIND_MS
    }

    fn now(&self) -> Instant {
        let mut state = self.world.state();
        // Whoever looks at a clock again and again sees it move.
        state.now += MICROSECOND;
        self.world.origin + Duration::from_nanos(state.lives[self.life].clock(state.now))
    }

    fn wait(&self, until: Option<Instant>, has_acted: bool, what: Waits) -> bool {
        if std::thread::panicking() {
            return false;
        }
        let mut state = self.world.state();
        let current = SELF.get();
        if has_acted {
            state.wake_life(self.life, current);
        }
        let clock = until.map(|until| until.saturating_duration_since(self.world.origin).as_nanos() as u64);
        let at = clock.map(|clock| state.lives[self.life].at(clock));
        (state.slots[current].at, state.slots[current].waits) = (at, what);
        let life = state.slots[current].life;
        self.hand_over(state);
        // The director waits for nodes too, and is none.
        if self.world.state().lives[life].is_killed {
            resume_unwind(Box::new(Killed));
        }
        true
    }

    fn pass(&self) {
        if std::thread::panicking() {
            return;
        }
        let mut state = self.world.state();
        if SELF.get() > 0 && state.happens(100) {
            let after = state.below(JITTER);
            let clock = state.lives[self.life].clock(state.now + after);
            drop(state);
            self.wait(Some(self.world.origin + Duration::from_nanos(clock)), true, Waits::Time);
        }
    }

    fn acted(&self) {
        self.world.state().wake_life(self.life, SELF.get());
    }

    fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>> {
        let turn: Arc<Turn> = Arc::default();
        let mut state = self.world.state();
        let number = state.slots.len();
        state.slots.push(Slot {
            name: name.into(),
            life: self.life,
            turn: turn.clone(),
            at: None,
            waits: Waits::Threads,
            has_ended: false,
        });
        state.wake(number);
        drop(state);
        let seat = self.clone();
        let started = std::thread::Builder::new().name(name.into()).spawn(move || seat.live(number, &turn, run));
        if started.is_err() {
            self.world.state().slots[number].has_ended = true;
        }
        started
    }

    fn fresh(&self) -> u64 {
        self.world.state().chance.next_u64()
    }
}
