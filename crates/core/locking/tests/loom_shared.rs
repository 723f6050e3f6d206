//! The shared lock table under every schedule and every order of memory that loom can find, for one line and two or
//! three sessions. Who waits sleeps until it is woken, so a lost wake-up is a deadlock that loom reports.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p lockwork-locking --test loom_shared`
#![cfg(loom)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64 as Plain, Ordering as PlainOrdering};

use lockwork_locking::LockMode::{self, Exclusive as X, Shared as S};
use lockwork_locking::shared::memory::Memory;
use lockwork_locking::shared::{LINE_WORDS, Layout, Session, SessionNumber, Step, Table, WaitPolicy, Wake};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

/// One line in loom's atomics. Records and lists, that only their own session writes, are left out of the exploration.
struct Words {
    before: Vec<Plain>,
    line: Vec<AtomicU64>,
}

/// The memory as one session sees it, which stops before its Nth access of the line.
struct View {
    words: Arc<Words>,
    left: Cell<Option<u32>>,
}

/// What a session dies of.
struct Died;

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
        self.words.before.len() + LINE_WORDS
    }

    fn load(&self, word: usize) -> u64 {
        match word.checked_sub(self.words.before.len()) {
            None => self.words.before[word].load(PlainOrdering::Acquire),
            Some(word) => {
                self.step();
                self.words.line[word].load(Ordering::Acquire)
            }
        }
    }

    fn store(&self, word: usize, value: u64) {
        self.words.before[word].store(value, PlainOrdering::Release);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.step();
        let word = &self.words.line[word - self.words.before.len()];
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn fence(&self) {}
}

/// What all sessions share: the line, what it guards, and what they sleep on.
struct World {
    words: Arc<Words>,
    data: UnsafeCell<u64>,
    bells: Vec<Notify>,
}

// SAFETY: the data is reached under the lock only, which is what these tests check.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

/// One session.
struct Actor {
    world: Arc<World>,
    table: Table<View>,
    session: Session,
}

impl World {
    fn new(sessions: u16) -> Arc<Self> {
        let layout = Layout::new(1, sessions);
        let before = (0..layout.words() - LINE_WORDS).map(|_| Plain::new(0)).collect();
        let line = (0..LINE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let words = Arc::new(Words { before, line });
        Table::create(View { words: words.clone(), left: Cell::new(None) }, layout).unwrap();
        let bells = (0..sessions).map(|_| Notify::new()).collect();
        Arc::new(Self { words, data: UnsafeCell::new(0), bells })
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Session(number) => self.bells[usize::from(number.get()) - 1].notify(),
            Wake::Crowd => {}
        }
    }

    fn is_free(&self) -> bool {
        // Owner, mode, ring.
        self.words.line[0].load(Ordering::Acquire) & 0x1_ffff == 0
    }
}

impl Actor {
    fn new(world: &Arc<World>, number: u16) -> Self {
        let table = Table::attach(View { words: world.words.clone(), left: Cell::new(None) }).unwrap();
        let session = table.open(SessionNumber::new(number).unwrap(), 0, &mut |_| {}).unwrap();
        Self { world: world.clone(), table, session }
    }

    fn ask(&mut self, mode: LockMode) -> Step {
        let world = self.world.clone();
        self.table.request(&mut self.session, 0, mode, WaitPolicy::Queue, &mut |wake| world.wake(wake)).unwrap()
    }

    /// Sleeps until the lock is granted.
    fn wait(&mut self) {
        let bell = usize::from(self.session.number().get()) - 1;
        while !self.table.poll(&mut self.session, 0).unwrap() {
            self.world.bells[bell].wait();
        }
    }

    fn take(&mut self, mode: LockMode) {
        if self.ask(mode) == Step::Waiting {
            self.wait();
        }
        self.touch(mode);
    }

    /// Reaches for the data, which loom watches.
    fn touch(&self, mode: LockMode) {
        if mode == X {
            // SAFETY: the lock is held exclusively.
            self.world.data.with_mut(|data| unsafe { *data += 1 });
        } else {
            // SAFETY: the lock is held.
            self.world.data.with(|data| unsafe { *data });
        }
    }

    fn release(&mut self) {
        let world = self.world.clone();
        self.table.release(&mut self.session, 0, &mut |wake| world.wake(wake)).unwrap();
    }

    fn withdraw(&mut self) {
        let world = self.world.clone();
        self.table.withdraw(&mut self.session, 0, &mut |wake| world.wake(wake)).unwrap();
    }
}

fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(test);
}

/// Runs these, each with its session, at the same time; in the end the line is free.
fn together<const N: usize>(world: &Arc<World>, scripts: [Box<dyn FnOnce() + Send>; N]) {
    let mut scripts = Vec::from(scripts).into_iter();
    let own = scripts.next().unwrap();
    let threads: Vec<_> = scripts.map(thread::spawn).collect();
    own();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(world.is_free());
}

/// Takes the lock and gives it back.
fn visit(mut actor: Actor, mode: LockMode) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        actor.take(mode);
        actor.release();
    })
}

#[test]
fn writers_exclude_each_other_and_no_wake_up_is_lost() {
    explore(6, || {
        let world = World::new(2);
        together(&world, [visit(Actor::new(&world, 1), X), visit(Actor::new(&world, 2), X)]);
    });
}

#[test]
fn three_claim_the_tail() {
    explore(2, || {
        let world = World::new(3);
        together(
            &world,
            [visit(Actor::new(&world, 1), X), visit(Actor::new(&world, 2), X), visit(Actor::new(&world, 3), S)],
        );
    });
}

#[test]
fn two_claim_the_tail_behind_a_holder_that_leaves() {
    explore(2, || {
        let world = World::new(3);
        let mut holder = Actor::new(&world, 1);
        holder.take(X);
        let leave = Box::new(move || holder.release());
        together(&world, [leave, visit(Actor::new(&world, 2), X), visit(Actor::new(&world, 3), X)]);
    });
}

/// A group of one that holds the lock by itself, without an owner.
fn group(world: &Arc<World>) -> Actor {
    let (mut first, mut reader) = (Actor::new(world, 1), Actor::new(world, 2));
    first.take(X);
    assert_eq!(reader.ask(S), Step::Waiting);
    first.release();
    reader.wait();
    reader
}

#[test]
fn a_reader_joins_while_the_last_one_leaves() {
    explore(6, || {
        let world = World::new(3);
        let mut reader = group(&world);
        together(&world, [Box::new(move || reader.release()), visit(Actor::new(&world, 3), S)]);
    });
}

#[test]
fn the_last_reader_leaves_beside_a_writer_and_a_reader() {
    explore(1, || {
        let world = World::new(4);
        let mut reader = group(&world);
        let leave = Box::new(move || reader.release());
        together(&world, [leave, visit(Actor::new(&world, 3), S), visit(Actor::new(&world, 4), X)]);
    });
}

#[test]
fn a_request_is_taken_back_while_the_lock_is_handed_over() {
    explore(2, || {
        let world = World::new(3);
        let (mut holder, mut second, mut third) = (Actor::new(&world, 1), Actor::new(&world, 2), Actor::new(&world, 3));
        holder.take(X);
        assert_eq!((second.ask(X), third.ask(X)), (Step::Waiting, Step::Waiting));
        let last = Box::new(move || {
            third.wait();
            third.touch(X);
            third.release();
        });
        together(&world, [Box::new(move || holder.release()), Box::new(move || second.withdraw()), last]);
    });
}

/// The one who takes his request back is a reader between a writer and a writer; its group is dead before its turn
/// comes.
#[test]
fn a_group_dies_out_while_its_turn_comes() {
    explore(6, || {
        let world = World::new(4);
        let (mut first, mut second) = (Actor::new(&world, 1), Actor::new(&world, 2));
        let (mut reader, mut last) = (Actor::new(&world, 3), Actor::new(&world, 4));
        first.take(X);
        assert_eq!((second.ask(X), reader.ask(S), last.ask(X)), (Step::Waiting, Step::Waiting, Step::Waiting));
        let hand_on = thread::spawn(move || {
            first.release();
            second.wait();
            second.release();
        });
        reader.withdraw();
        hand_on.join().unwrap();
        last.wait();
        last.touch(X);
        last.release();
        assert!(world.is_free());
    });
}

#[test]
fn a_holder_becomes_the_writer_while_a_reader_comes() {
    for grouped in [false, true] {
        explore(5, move || {
            let world = World::new(3);
            let mut holder = if grouped { group(&world) } else { Actor::new(&world, 1) };
            if !grouped {
                holder.take(S);
            }
            let upgrade = Box::new(move || {
                if holder.ask(X) == Step::Granted {
                    holder.touch(X);
                    holder.release();
                }
                holder.release();
            });
            together(&world, [upgrade, visit(Actor::new(&world, 3), S)]);
        });
    }
}

/// Who is dead from its Nth access on, for each N, is cleaned up after while another one goes on.
fn dies_beside(
    preemptions: usize,
    script: fn(&mut Actor),
    before: fn(&Arc<World>) -> Vec<Actor>,
    other: fn(Vec<Actor>, Actor),
) {
    let mut at = 0;
    let died = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    while died.swap(false, PlainOrdering::Relaxed) {
        let died = died.clone();
        explore(preemptions, move || {
            let world = World::new(4);
            let (there, mut mortal, living) = (before(&world), Actor::new(&world, 1), Actor::new(&world, 4));
            let died = died.clone();
            let dies = move || {
                mortal.table.memory().left.set(Some(at));
                let end = catch_unwind(AssertUnwindSafe(|| script(&mut mortal)));
                mortal.table.memory().left.set(None);
                if let Err(payload) = end {
                    payload.downcast::<Died>().map_err(|other| resume_unwind(other)).ok();
                    died.store(true, PlainOrdering::Relaxed);
                }
                let world = mortal.world.clone();
                mortal.table.clean_up(mortal.session.number(), &mut |wake| world.wake(wake)).unwrap();
            };
            together(&world, [Box::new(dies), Box::new(move || other(there, living))]);
        });
        at += 1;
    }
    assert!(at > 4, "{at}");
}

#[test]
fn a_writer_dies_beside_another() {
    let script = |mortal: &mut Actor| {
        if mortal.ask(X) == Step::Granted {
            mortal.touch(X);
            mortal.release();
        } else {
            mortal.withdraw();
        }
    };
    dies_beside(
        4,
        script,
        |_| Vec::new(),
        |_, mut other| {
            other.take(X);
            other.release();
        },
    );
}

#[test]
fn a_reader_dies_beside_a_writer_that_waits() {
    let script = |mortal: &mut Actor| {
        if mortal.ask(S) == Step::Granted {
            mortal.touch(S);
            mortal.release();
        } else {
            mortal.withdraw();
        }
    };
    dies_beside(
        1,
        script,
        |world| vec![group(world)],
        |mut there, mut other| {
            there[0].release();
            other.take(X);
            other.release();
        },
    );
}
