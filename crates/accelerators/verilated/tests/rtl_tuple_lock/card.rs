//! The module with memory around it: a table of the locking crate in words that both sides use, and a port to it that
//! answers late and out of order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use lockwork_locking::LockMode;
use lockwork_locking::shared::memory::Memory;
use lockwork_locking::shared::{Layout, SessionNumber, Table, WaitPolicy};
pub(crate) use lockwork_random::Random;
use lockwork_verilated::{Build, Model, Port};

pub(crate) const ELEMENTS: usize = 8;
/// Lines that the module has room for in a session's list.
pub(crate) const HELD: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Acquire(LockMode, WaitPolicy),
    Release,
    Withdraw,
    ReleaseAll,
    Age,
}

/// Answers of the module, in the order of their codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Granted,
    Waiting,
    Full,
    Refused,
    Done,
    NotHeld,
    TooMany,
    TooOften,
    Waits,
    InUse,
    Damage,
    Stale,
    MemError,
}

const ANSWERS: [Answer; 13] = [
    Answer::Granted,
    Answer::Waiting,
    Answer::Full,
    Answer::Refused,
    Answer::Done,
    Answer::NotHeld,
    Answer::TooMany,
    Answer::TooOften,
    Answer::Waits,
    Answer::InUse,
    Answer::Damage,
    Answer::Stale,
    Answer::MemError,
];

/// One access of memory, as it took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load { word: usize, value: u64 },
    Store { word: usize, value: u64 },
    Swap { word: usize, old: u64, new: u64, found: u64 },
}

/// What an element did from the time when it began to be busy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity {
    pub(crate) accesses: VecDeque<Access>,
    /// Lines that were waited for and are granted now.
    pub(crate) notes: Vec<(Answer, u32)>,
    /// The answer to a request, unless it only looked.
    pub(crate) answer: Option<(Answer, u32)>,
}

/// How the memory port behaves: cycles to the access, and from there to the answer, at least and at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) latency: (u64, u64),
    pub(crate) ready: u64,
    pub(crate) errors: bool,
}

impl Pace {
    pub(crate) const QUICK: Self = Self { latency: (1, 1), ready: 100, errors: false };
}

/// A request under way: when it takes place, then when it is answered.
struct Flight {
    due: u64,
    answer: Option<(u64, bool, u64)>,
    op: u64,
    word: usize,
    old: u64,
    new: u64,
    tag: u64,
}

pub(crate) struct Card {
    model: Model,
    ports: BTreeMap<&'static str, Port>,
    words: Rc<[Cell<u64>]>,
    random: Random,
    port: Pace,
    flights: Vec<Flight>,
    /// Memory answers no more, and nothing takes place any more.
    pub(crate) dead: bool,
    busy: u64,
    under_way: [Activity; ELEMENTS],
    /// Activities that are over, in the order in which they ended.
    pub(crate) over: VecDeque<(usize, Activity)>,
    pub(crate) wakes: Vec<Option<u16>>,
    /// Accesses of memory.
    pub(crate) accesses: u64,
}

const PORTS: [&str; 19] = [
    "rst_ni",
    "config_valid_i",
    "config_addr_i",
    "config_data_i",
    "req_valid_i",
    "req_ready_o",
    "req_i",
    "rsp_valid_o",
    "rsp_o",
    "rsp_direct_o",
    "busy_o",
    "wake_valid_o",
    "wake_ready_i",
    "wake_crowd_o",
    "wake_session_o",
    "mem_valid_o",
    "mem_ready_i",
    "mem_req_o",
    "mem_rsp_valid_i",
];

pub(crate) fn build() -> Model {
    // Two threads that build the same module would be in each other's way.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    let build = Build::new("lw_tuple_lock").parameter("Elements", ELEMENTS).parameter("Held", HELD);
    build.load().expect("the module builds")
}

impl Card {
    pub(crate) fn new(mut model: Model, words: Rc<[Cell<u64>]>, port: Pace, seed: u64) -> Self {
        let mut ports: BTreeMap<_, _> = PORTS.iter().map(|name| (*name, model.port(name).unwrap())).collect();
        ports.insert("mem_rsp_i", model.port("mem_rsp_i").unwrap());
        model.set(ports["rst_ni"], 0);
        model.tick();
        model.set(ports["rst_ni"], 1);
        model.eval();
        Self {
            model,
            ports,
            words,
            random: Random(seed),
            port,
            flights: Vec::new(),
            dead: false,
            busy: 0,
            under_way: Default::default(),
            over: VecDeque::new(),
            wakes: Vec::new(),
            accesses: 0,
        }
    }

    fn set(&mut self, name: &str, value: u64) {
        self.model.set(self.ports[name], value);
    }

    fn get(&self, name: &str) -> u64 {
        self.model.get(self.ports[name])
    }

    pub(crate) fn cycles(&self) -> u64 {
        self.model.cycles()
    }

    pub(crate) fn configure(&mut self, addr: u64, data: u64) {
        self.set("config_valid_i", 1);
        self.set("config_addr_i", addr);
        self.set("config_data_i", data);
        self.tick();
        self.set("config_valid_i", 0);
    }

    /// Tells the module of the table, whose words are addressed from 0.
    pub(crate) fn attach<M: Memory>(&mut self, table: &Table<M>, poll: u64) {
        let layout = table.layout();
        let first = SessionNumber::new(1).unwrap();
        let direct = u64::from(layout.placement == lockwork_locking::shared::Placement::Direct);
        let bits = u64::from(layout.lines.trailing_zeros());
        self.configure(0, table.line_word(0) as u64);
        self.configure(1, table.event_word(first) as u64 - 2);
        self.configure(2, u64::from(layout.held) << 32 | u64::from(layout.sessions) << 6 | direct << 5 | bits);
        self.configure(3, poll);
    }

    /// Takes it back, when the element is at rest.
    pub(crate) fn close(&mut self, element: usize) {
        self.configure(64 + 4 * element as u64, 0);
        while self.get("busy_o") >> element & 1 != 0 {
            self.tick();
        }
    }

    /// Puts a request to the module. The element must have no other.
    pub(crate) fn send(&mut self, element: usize, op: Op, key: u64) {
        let (code, mode, policy) = match op {
            Op::Acquire(mode, policy) => {
                let policy = match policy {
                    WaitPolicy::Try => 0,
                    WaitPolicy::WaitDie => 1,
                    WaitPolicy::Queue => 2,
                    WaitPolicy::Safe => 3,
                };
                (0, mode as u64, policy)
            }
            Op::Release => (1, 0, 0),
            Op::Withdraw => (2, 0, 0),
            Op::ReleaseAll => (3, 0, 0),
            Op::Age => (4, 0, 0),
        };
        let (req, low) = (self.ports["req_i"], 71 * element as u32);
        self.model.set_bits(req, low, 64, key);
        self.model.set_bits(req, low + 64, 7, code << 4 | mode << 2 | policy);
        let valid = self.get("req_valid_i");
        self.set("req_valid_i", valid | 1 << element);
    }

    fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.random.below(most - least + 1)
    }

    /// What takes place in this cycle, in random order, and an answer.
    fn memory(&mut self) {
        let now = self.model.cycles();
        for at in 0..self.flights.len() {
            if self.flights[at].answer.is_some() || self.flights[at].due > now || self.dead {
                continue;
            }
            let delay = self.between(self.port.latency) / 2;
            let error = self.port.errors && self.random.below(400) == 0;
            let Flight { op, word, old, new, tag, .. } = self.flights[at];
            let found = self.words[word].get();
            let access = match op {
                0 => Access::Load { word, value: found },
                1 => Access::Store { word, value: new },
                _ => Access::Swap { word, old, new, found },
            };
            // Whether what memory refuses took place is open.
            let done = !error || self.random.percent(50);
            if done && (op == 1 || (op == 2 && found == old)) {
                self.words[word].set(new);
            }
            self.accesses += 1;
            self.under_way[(tag >> 3) as usize].accesses.push_back(access);
            self.flights[at].answer = Some((found, error, now + delay));
        }
        let due = |flight: &Flight| flight.answer.is_some_and(|(_, _, due)| due <= now);
        let answered: Vec<_> = (0..self.flights.len()).filter(|at| due(&self.flights[*at])).collect();
        let rsp = self.ports["mem_rsp_i"];
        self.set("mem_rsp_valid_i", u64::from(!answered.is_empty() && !self.dead));
        if !answered.is_empty() && !self.dead {
            let at = answered[self.random.below(answered.len() as u64) as usize];
            let flight = self.flights.swap_remove(at);
            let (found, error, _) = flight.answer.unwrap();
            self.model.set_bits(rsp, 0, 10, flight.tag);
            self.model.set_bits(rsp, 10, 64, found);
            self.model.set_bits(rsp, 74, 1, u64::from(flight.op == 2 && found == flight.old));
            self.model.set_bits(rsp, 75, 1, u64::from(error));
        }
    }

    pub(crate) fn tick(&mut self) {
        self.memory();
        let (ready, wake_ready) = (self.random.percent(self.port.ready), self.random.percent(self.port.ready));
        self.set("mem_ready_i", u64::from(ready && !self.dead));
        self.set("wake_ready_i", u64::from(wake_ready));
        self.model.eval();
        if self.get("mem_valid_o") & self.get("mem_ready_i") == 1 {
            let req = self.ports["mem_req_o"];
            let get = |low, width| self.model.get_bits(req, low, width);
            let (tag, new, old) = (get(0, 10), get(10, 64), get(74, 64));
            let (word, op) = (get(138, 37) as usize, get(175, 2));
            let due = self.model.cycles() + self.between(self.port.latency).div_ceil(2);
            self.flights.push(Flight { due, answer: None, op, word, old, new, tag });
        }
        if self.get("wake_valid_o") == 1 && wake_ready {
            let session = self.get("wake_session_o") as u16;
            self.wakes.push((self.get("wake_crowd_o") == 0).then_some(session));
        }
        let valid = self.get("req_valid_i") & !self.get("req_ready_o");
        self.model.tick();
        self.set("req_valid_i", valid);
        let answered = self.get("rsp_valid_o");
        if answered != 0 {
            let rsp = self.ports["rsp_o"];
            let line = self.model.get_bits(rsp, 0, 31) as u32;
            let answer = ANSWERS[self.model.get_bits(rsp, 31, 4) as usize];
            let activity = &mut self.under_way[answered.trailing_zeros() as usize];
            if self.model.get(self.ports["rsp_direct_o"]) == 1 {
                assert_eq!(activity.answer.replace((answer, line)), None);
            } else {
                activity.notes.push((answer, line));
            }
        }
        let busy = self.get("busy_o");
        for element in (0..ELEMENTS).filter(|at| (self.busy & !busy) >> at & 1 != 0) {
            self.over.push_back((element, std::mem::take(&mut self.under_way[element])));
        }
        self.busy = busy;
    }

    /// Whether an element is at rest and all that it did was taken from `over`.
    pub(crate) fn is_quiet(&self, element: usize) -> bool {
        self.busy >> element & 1 == 0 && self.over.iter().all(|(other, _)| *other != element)
    }
}

pub(crate) fn list_word<M: Memory>(table: &Table<M>, session: SessionNumber) -> usize {
    let layout = table.layout();
    let first = table.event_word(SessionNumber::new(1).unwrap()) - 2;
    first + usize::from(layout.sessions) * 16 + usize::from(session.get() - 1) * layout.held as usize
}

/// Hands a session over to an element.
pub(crate) fn hand_over(table: &Table<Both>, element: usize, session: SessionNumber) {
    let (epoch, list, age) = (table.epoch(session), list_word(table, session) as u64, table.age(session));
    let mut card = table.memory().card.borrow_mut();
    let at = 64 + 4 * element as u64;
    card.configure(at + 1, epoch);
    card.configure(at + 2, list);
    card.configure(at + 3, age);
    card.configure(at, 1 << 12 | u64::from(session.get()));
}

/// The words of both sides. At each access of software, the module goes on for some cycles.
#[derive(Clone)]
pub(crate) struct Both {
    pub(crate) words: Rc<[Cell<u64>]>,
    pub(crate) card: Rc<RefCell<Card>>,
    /// The most cycles at an access.
    pub(crate) cycles: u64,
}

impl Both {
    fn go_on(&self) {
        if self.cycles > 0 {
            let mut card = self.card.borrow_mut();
            let cycles = card.random.below(self.cycles + 1);
            (0..cycles).for_each(|_| card.tick());
        }
    }
}

impl Memory for Both {
    fn words(&self) -> usize {
        self.words.len()
    }

    fn load(&self, word: usize) -> u64 {
        self.go_on();
        self.words[word].get()
    }

    fn store(&self, word: usize, value: u64) {
        self.go_on();
        self.words[word].set(value);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.go_on();
        let found = self.words[word].get();
        if found != old {
            return Err(found);
        }
        self.words[word].set(new);
        Ok(())
    }

    fn fence(&self) {}
}

/// A module and a table.
pub(crate) fn world(layout: Layout, port: Pace, cycles: u64, model: &Model, seed: u64) -> Table<Both> {
    let words: Rc<[Cell<u64>]> = (0..layout.words()).map(|_| Cell::new(0)).collect();
    let card = Rc::new(RefCell::new(Card::new(model.again(seed), words.clone(), port, seed ^ 0xCA4D)));
    let table = Table::create(Both { words, card: card.clone(), cycles: 0 }, layout).unwrap();
    card.borrow_mut().attach(&table, 40);
    let Both { words, card, .. } = table.into_memory();
    Table::attach(Both { words, card, cycles }).unwrap()
}
