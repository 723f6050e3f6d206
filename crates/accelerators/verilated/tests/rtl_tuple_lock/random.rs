//! Random requests of the module's sessions and of software sessions on the same few lines. The module goes on at each
//! access of software; memory answers late and out of order.

use std::collections::BTreeMap;

use lockwork_locking::shared::{self, Layout, Placement, SessionNumber, Step, Table, TableError, WaitPolicy, Wake};
use lockwork_locking::{LockMode, compatible};

use crate::card::{Answer, Both, ELEMENTS, Op, Pace, Random, build, hand_over, world};
use crate::replay::Twin;

const SOFTWARE: usize = 4;
const MODES: [LockMode; 4] = [LockMode::Shared, LockMode::Exclusive, LockMode::IntentExclusive, LockMode::Shared];
const POLICIES: [WaitPolicy; 4] = [WaitPolicy::Try, WaitPolicy::WaitDie, WaitPolicy::Queue, WaitPolicy::Safe];

/// Who holds what, as far as those who hold it know.
#[derive(Default)]
struct Holders(BTreeMap<(u32, u16), LockMode>);

impl Holders {
    fn add(&mut self, line: u32, session: u16, mode: LockMode) {
        for ((_, other), held) in self.0.range((line, 0)..=(line, u16::MAX)).filter(|((_, other), _)| *other != session)
        {
            assert!(compatible(*held, mode), "{session} and {other} hold line {line} as {mode:?} and {held:?}");
        }
        let held = self.0.entry((line, session)).or_insert(mode);
        *held = held.join(mode);
    }

    fn remove(&mut self, line: u32, session: u16) {
        self.0.remove(&(line, session));
    }
}

struct Element {
    number: SessionNumber,
    twin: Twin,
    request: Option<(Op, u64)>,
    /// Memory has refused something; the session is closed.
    broken: bool,
    modes: BTreeMap<u32, LockMode>,
}

struct Software {
    session: shared::Session,
    waits: Vec<u32>,
    modes: BTreeMap<u32, LockMode>,
    holds: Vec<u32>,
}

#[derive(Default, Debug)]
struct Tally {
    answers: BTreeMap<Answer, u64>,
    later: u64,
    software: u64,
    accesses: u64,
}

struct Play {
    table: Table<Both>,
    elements: Vec<Element>,
    software: Vec<Software>,
    holders: Holders,
    random: Random,
    tally: Tally,
    wakes: Vec<Wake>,
}

impl Play {
    fn new(layout: Layout, port: Pace, cycles: u64, model: &lockwork_verilated::Model, seed: u64) -> Self {
        let table = world(layout, port, cycles, model, seed);
        let mut random = Random(seed);
        // Sessions of several blocks, some of both sides in one.
        let numbers: Vec<_> = (0..(ELEMENTS + SOFTWARE) as u16).map(|at| at * 5 + 3).collect();
        let number = |at: usize| SessionNumber::new(numbers[at]).unwrap();
        let software = (0..SOFTWARE).map(|at| {
            let session = table.open(number(2 * at), 0, &mut |_| ()).unwrap();
            table.set_age(&session, random.below(40)).unwrap();
            Software { session, waits: Vec::new(), modes: BTreeMap::new(), holds: Vec::new() }
        });
        let software = software.collect();
        let taken = |at: &usize| at % 2 == 1 || *at >= 2 * SOFTWARE;
        let elements = (0..ELEMENTS + SOFTWARE).filter(taken).enumerate().map(|(element, at)| {
            let number = number(at);
            table.open(number, 0, &mut |_| ()).unwrap();
            hand_over(&table, element, number);
            Element {
                number,
                twin: Twin::new(&table, number, element),
                request: None,
                broken: false,
                modes: BTreeMap::new(),
            }
        });
        let elements = elements.collect();
        let (holders, tally) = (Holders::default(), Tally::default());
        Self { table, elements, software, holders, random, tally, wakes: Vec::new() }
    }

    /// The oracle follows, and answers come.
    fn follow(&mut self) {
        loop {
            let over = self.table.memory().card.borrow_mut().over.pop_front();
            let Some((at, activity)) = over else { return };
            if self.table.memory().card.borrow().dead {
                continue;
            }
            let element = &mut self.elements[at];
            let answer = activity.answer.map(|(answer, _)| answer);
            if element.broken || answer.or(activity.notes.first().map(|note| note.0)) == Some(Answer::MemError) {
                if answer.is_some() {
                    element.request = None;
                }
                element.broken = element.request.is_some();
                if !element.broken {
                    self.mend(at);
                }
                continue;
            }
            let request = if activity.answer.is_some() { element.request.take() } else { None };
            element.twin.follow(&self.table, request, &activity);
            let session = element.number.get();
            for (answer, line) in &activity.notes {
                assert_eq!(*answer, Answer::Granted);
                // Unless it is about to be given back, which nobody sees begin.
                let given_back = match element.request {
                    Some((Op::Release, key)) => key == u64::from(*line),
                    Some((Op::ReleaseAll, _)) => true,
                    _ => false,
                };
                if !given_back {
                    self.holders.add(*line, session, element.modes[line]);
                }
                self.tally.later += 1;
            }
            if let (Some((op, _)), Some((answer, line))) = (request, activity.answer) {
                *self.tally.answers.entry(answer).or_default() += 1;
                if let (Op::Acquire(mode, _), Answer::Granted | Answer::Waiting) = (op, answer) {
                    if element.twin.holds(line) <= 1 {
                        element.modes.insert(line, mode);
                    }
                    if answer == Answer::Granted {
                        self.holders.add(line, session, mode);
                    }
                }
            }
        }
    }

    /// What a host does for a session of which the module does not know any more what it holds.
    fn mend(&mut self, at: usize) {
        *self.tally.answers.entry(Answer::MemError).or_default() += 1;
        let number = self.elements[at].number;
        self.table.memory().card.borrow_mut().close(at);
        self.clean_up(number);
        self.table.open(number, 0, &mut |_| ()).unwrap();
        hand_over(&self.table, at, number);
        let twin = Twin::new(&self.table, number, at);
        self.elements[at] = Element { number, twin, request: None, broken: false, modes: BTreeMap::new() };
    }

    fn clean_up(&mut self, number: SessionNumber) {
        self.holders.0.retain(|(_, holder), _| *holder != number.get());
        self.table.clean_up(number, &mut |_| ()).unwrap();
    }

    fn ticks(&mut self, cycles: u64) {
        for _ in 0..cycles {
            self.table.memory().card.borrow_mut().tick();
        }
        self.follow();
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize]
    }

    /// A request of an element which has none.
    fn ask(&mut self, at: usize, lines: u32, winding_down: bool) {
        let waits = self.elements[at].twin.waits.clone();
        let all = 0..self.table.layout().lines;
        let held: Vec<_> = all.filter(|line| self.elements[at].twin.holds(*line) > 0).collect();
        let (op, key) = match self.random.below(100) {
            _ if winding_down && held.is_empty() => return,
            0..10 if !winding_down && !waits.is_empty() => (Op::Withdraw, u64::from(self.pick(&waits))),
            10..14 => (Op::ReleaseAll, 0),
            14..18 if !winding_down => (Op::Age, self.random.below(40)),
            18..20 => (Op::Release, u64::from(self.random.below(lines.into()) as u32)),
            20..70 if !winding_down => {
                let (mode, policy) = (self.pick(&MODES), self.pick(&POLICIES));
                (Op::Acquire(mode, policy), self.random.below(lines.into()))
            }
            _ if held.is_empty() => return,
            _ => (Op::Release, u64::from(self.pick(&held))),
        };
        let (session, line) = (self.elements[at].number.get(), key as u32);
        match op {
            Op::Release if self.elements[at].twin.holds(line) == 1 => self.holders.remove(line, session),
            Op::ReleaseAll => held.iter().for_each(|line| self.holders.remove(*line, session)),
            _ => {}
        }
        self.elements[at].request = Some((op, key));
        self.table.memory().card.borrow_mut().send(at, op, key);
    }

    /// A step of a software session, with the module at work meanwhile.
    fn step(&mut self, at: usize, lines: u32, winding_down: bool) {
        let line = self.random.below(lines.into()) as u32;
        let (mode, policy) = (self.pick(&MODES), self.pick(&POLICIES));
        let choice = self.random.below(100);
        let wakes = &mut self.wakes;
        let mut wake = |woken| wakes.push(woken);
        let software = &mut self.software[at];
        let number = software.session.number().get();
        self.tally.software += 1;
        let waits = software.waits.clone();
        for line in waits {
            if self.table.poll(&mut software.session, line).unwrap() {
                software.waits.retain(|other| *other != line);
                software.holds.push(line);
                let mode = software.modes[&line];
                // The module's answers of before first.
                self.holders.add(line, number, mode);
            }
        }
        if choice < 10 && !software.waits.is_empty() && !winding_down {
            let line = software.waits.swap_remove(0);
            self.table.withdraw(&mut software.session, line, &mut wake).unwrap();
        } else if choice < 55 && !winding_down {
            match self.table.request(&mut software.session, line, mode, policy, &mut wake) {
                Ok(Step::Granted) => {
                    let held = software.modes.get(&line).filter(|_| software.holds.contains(&line));
                    let held = held.map_or(mode, |held| held.join(mode));
                    software.modes.insert(line, held);
                    software.holds.push(line);
                    self.holders.add(line, number, mode);
                }
                Ok(Step::Waiting) => {
                    software.modes.insert(line, mode);
                    software.waits.push(line);
                }
                Ok(Step::Full | Step::Refused) | Err(TableError::WaitsAlready(_) | TableError::TooMany(_)) => {}
                Err(error) => panic!("{error}"),
            }
        } else if !software.holds.is_empty() {
            let line = software.holds.swap_remove(choice as usize % software.holds.len());
            if !software.holds.contains(&line) {
                self.holders.remove(line, number);
            }
            self.table.release(&mut software.session, line, &mut wake).unwrap();
        }
        self.follow();
    }

    fn play(&mut self, steps: u64, lines: u32) {
        for _ in 0..steps {
            let at = self.random.below((ELEMENTS + SOFTWARE) as u64) as usize;
            if at >= ELEMENTS {
                self.step(at - ELEMENTS, lines, false);
            } else if self.elements[at].request.is_none() {
                self.ask(at, lines, false);
            }
            let cycles = self.random.below(60);
            self.ticks(cycles);
        }
    }

    /// Everybody gets its turn, and in the end nothing is left.
    fn finish(&mut self, lines: u32, context: &dyn std::fmt::Debug) {
        for _ in 0..3000 {
            for at in 0..ELEMENTS {
                if self.elements[at].request.is_none() {
                    self.ask(at, lines, true);
                }
            }
            (0..SOFTWARE).for_each(|at| self.step(at, lines, true));
            self.ticks(100);
            let rest = |element: &Element| {
                element.request.is_none() && element.twin.waits.is_empty() && self.holders.0.is_empty()
            };
            if self.elements.iter().all(rest) && self.software.iter().all(|software| software.waits.is_empty()) {
                break;
            }
        }
        self.ticks(500);
        for element in &self.elements {
            assert_eq!((element.request, &element.twin.waits[..]), (None, &[][..]), "waits for ever: {context:?}");
        }
        assert!(self.holders.0.is_empty(), "{context:?}");
        for line in 0..self.table.layout().lines {
            let control = self.table.memory().words[self.table.line_word(line)].get();
            assert_eq!(control & 0x1_FFFF, 0, "line {line} is left: {context:?}");
        }
        if !self.tally.answers.contains_key(&Answer::MemError) {
            self.compare_wakes();
        }
        self.tally.accesses = self.table.memory().card.borrow().accesses;
    }

    /// Host sessions were told as software would have told them.
    fn compare_wakes(&mut self) {
        let local = |number: u16| self.elements.iter().any(|element| element.number.get() == number);
        let mut expected = BTreeMap::new();
        for wake in self.elements.iter().flat_map(|element| &element.twin.wakes) {
            match wake {
                Wake::Session(number) if local(number.get()) => {}
                Wake::Session(number) => *expected.entry(Some(number.get())).or_insert(0_u64) += 1,
                Wake::Crowd => *expected.entry(None).or_insert(0) += 1,
            }
        }
        let mut told = BTreeMap::new();
        for wake in &self.table.memory().card.borrow().wakes {
            *told.entry(*wake).or_insert(0_u64) += 1;
        }
        assert_eq!(told, expected, "who was told that it is its turn");
    }
}

fn layout(lines: u32) -> Layout {
    Layout { placement: Placement::Direct, held: lines.min(16), ..Layout::new(lines, 64) }
}

#[test]
fn whatever_the_module_does_the_locking_crate_would_have_done_and_nothing_is_lost() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build();
    let mut all = Tally::default();
    for seed in 0..60 {
        let lines = [1, 2, 4, 16][seed as usize % 4];
        let port = [
            Pace::QUICK,
            Pace { latency: (1, 20), ready: 80, errors: false },
            Pace { latency: (2, 120), ready: 40, errors: false },
        ][seed as usize % 3];
        let mut play = Play::new(layout(lines), port, [3, 10, 40][seed as usize % 3], &model, seed);
        play.play(1200, lines);
        play.finish(lines, &("seed", seed, port));
        for (answer, count) in play.tally.answers {
            *all.answers.entry(answer).or_default() += count;
        }
        all.later += play.tally.later;
        all.software += play.tally.software;
        all.accesses += play.tally.accesses;
    }
    println!("{all:?}");
    for answer in [
        Answer::Granted,
        Answer::Waiting,
        Answer::Full,
        Answer::Refused,
        Answer::Done,
        Answer::NotHeld,
        Answer::Waits,
        Answer::InUse,
    ] {
        assert!(all.answers.get(&answer).is_some_and(|count| *count > 10), "{answer:?} is rare: {all:?}");
    }
    assert!(all.later > 500, "{all:?}");
}

#[test]
fn after_a_death_of_the_module_its_sessions_are_cleaned_up_by_their_lists() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build();
    let mut held = 0;
    for seed in 1000..1080 {
        let lines = [1, 2, 4, 8][seed as usize % 4];
        let port = Pace { latency: (1, 60), ready: 70, errors: false };
        let mut play = Play::new(layout(lines), port, 10, &model, seed);
        let steps = play.random.below(300);
        play.play(steps, lines);
        // Between any two cycles: what is under way takes place no more.
        let cycles = play.random.below(200);
        play.ticks(cycles);
        play.table.memory().card.borrow_mut().dead = true;
        for at in 0..ELEMENTS {
            let number = play.elements[at].number;
            held += u64::from(play.table.touched(number));
            play.clean_up(number);
        }
        for _ in 0..100 {
            (0..SOFTWARE).for_each(|at| play.step(at, lines, true));
        }
        assert!(play.holders.0.is_empty() && play.software.iter().all(|software| software.waits.is_empty()), "{seed}");
        for line in 0..lines {
            let control = play.table.memory().words[play.table.line_word(line)].get();
            assert_eq!(control & 0x1_FFFF, 0, "line {line} is left, seed {seed}");
        }
    }
    println!("{held} lines were held or waited for");
    assert!(held > 300, "{held}");
}

#[test]
fn when_memory_refuses_the_session_is_closed_and_everybody_else_goes_on() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build();
    let mut refused = 0;
    for seed in 2000..2020 {
        let lines = [1, 2, 4, 8][seed as usize % 4];
        let port = Pace { latency: (1, 20), ready: 70, errors: true };
        let mut play = Play::new(layout(lines), port, 10, &model, seed);
        play.play(600, lines);
        play.finish(lines, &("seed", seed));
        refused += play.tally.answers.get(&Answer::MemError).copied().unwrap_or(0);
    }
    println!("{refused} sessions were closed");
    assert!(refused > 100, "{refused}");
}
