//! The oracle: for each thing that the module did for a session, the locking crate does the same thing on memory that
//! answers as it answered the module. Both must have made the same accesses of lines, in the same order, with the same
//! values, and come to the same end, with the same list.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use lockwork_locking::shared::memory::Memory;
use lockwork_locking::shared::{Session, SessionNumber, Step, Table, TableError, Wake};

use crate::card::{Access, Activity, Answer, Both, Op, list_word};

/// Memory that answers lines, and the ages of others, from what the module saw, and the rest from itself.
struct Replay {
    own: Vec<Cell<u64>>,
    /// Lines begin here.
    lines: usize,
    /// Records of sessions begin here, each 16 words.
    records: usize,
    lists: usize,
    session: SessionNumber,
    seen: RefCell<VecDeque<Access>>,
}

impl Replay {
    fn is_seen(&self, word: usize) -> bool {
        let is_age = (self.records..self.lists).contains(&word) && (word - self.records) % 16 == 1;
        let is_own = is_age && (word - self.records) / 16 + 1 == usize::from(self.session.get());
        word >= self.lines || (is_age && !is_own)
    }
}

impl Memory for Replay {
    fn words(&self) -> usize {
        self.own.len()
    }

    fn load(&self, word: usize) -> u64 {
        if !self.is_seen(word) {
            return self.own[word].get();
        }
        let mut seen = self.seen.borrow_mut();
        // Loads that went out together are answered in any order.
        let loads = seen.iter().take_while(|access| matches!(access, Access::Load { .. }));
        let at =
            loads.into_iter().position(|access| matches!(access, Access::Load { word: other, .. } if *other == word));
        match at.and_then(|at| seen.remove(at)) {
            Some(Access::Load { value, .. }) => value,
            _ => panic!("the crate loads word {word}, the module does {seen:x?}"),
        }
    }

    fn store(&self, word: usize, value: u64) {
        assert!(!self.is_seen(word), "nobody stores into lines");
        self.own[word].set(value);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        match self.seen.borrow_mut().pop_front() {
            Some(Access::Swap { word: other, old: expected, new: data, found })
                if (other, expected, data) == (word, old, new) =>
            {
                if found == old {
                    Ok(())
                } else {
                    Err(found)
                }
            }
            other => panic!("the crate swaps word {word}, {old:#x} to {new:#x}, the module does {other:x?}"),
        }
    }

    fn fence(&self) {}
}

/// The session of an element as the locking crate would have it.
pub(crate) struct Twin {
    table: Table<Replay>,
    session: Session,
    element: usize,
    pub(crate) waits: Vec<u32>,
    pub(crate) wakes: Vec<Wake>,
}

impl Twin {
    /// Of a session that was just opened.
    pub(crate) fn new(table: &Table<Both>, session: SessionNumber, element: usize) -> Self {
        let own = table.memory().words.iter().map(|word| Cell::new(word.get())).collect();
        let records = table.event_word(SessionNumber::new(1).unwrap()) - 2;
        let lists = records + 16 * usize::from(table.layout().sessions);
        let replay = Replay { own, lines: table.line_word(0), records, lists, session, seen: RefCell::default() };
        let replay = Table::attach(replay).unwrap();
        let session = replay.open(session, 0, &mut |_| ()).unwrap();
        Self { table: replay, session, element, waits: Vec::new(), wakes: Vec::new() }
    }

    /// How often the session holds a line.
    pub(crate) fn holds(&self, line: u32) -> u32 {
        self.table.holds(&self.session, line)
    }

    /// Does what the module did for a request, or to look.
    pub(crate) fn follow(&mut self, table: &Table<Both>, request: Option<(Op, u64)>, activity: &Activity) {
        let (table_i, wakes) = (&self.table, &mut self.wakes);
        let is_seen = |access: &Access| match *access {
            Access::Load { word, .. } | Access::Swap { word, .. } => table_i.memory().is_seen(word),
            Access::Store { word, .. } => word >= table_i.memory().lines,
        };
        *table_i.memory().seen.borrow_mut() = activity.accesses.iter().copied().filter(is_seen).collect();
        let mut wake = |woken| wakes.push(woken);
        let session = &mut self.session;
        if let Some((op, key)) = request {
            let (answer, told) = activity.answer.expect("a request is answered");
            assert_eq!(activity.notes, [], "with nothing else");
            let line = if matches!(op, Op::ReleaseAll | Op::Age) { 0 } else { table_i.layout().place(key) };
            assert_eq!(told, if matches!(op, Op::ReleaseAll) { told } else { line }, "{op:?}");
            let waits = self.waits.contains(&line);
            let done = |done: Result<(), TableError>| match done {
                Ok(()) => Answer::Done,
                Err(TableError::NotHeld(_)) => Answer::NotHeld,
                Err(TableError::InUse(_)) => Answer::InUse,
                Err(TableError::Damage(_)) => Answer::Damage,
                Err(other) => panic!("{other}"),
            };
            let expected = match op {
                // What the module does not look for.
                Op::Acquire(..) if waits => Answer::Waits,
                Op::Acquire(_, policy)
                    if !self.waits.is_empty()
                        && policy != lockwork_locking::shared::WaitPolicy::Queue
                        && table_i.holds(session, line) == 0 =>
                {
                    Answer::Refused
                }
                Op::Acquire(mode, policy) => match table_i.request(session, line, mode, policy, &mut wake) {
                    Ok(Step::Granted) => Answer::Granted,
                    Ok(Step::Waiting) => Answer::Waiting,
                    Ok(Step::Full) => Answer::Full,
                    Ok(Step::Refused) => Answer::Refused,
                    Err(TableError::TooMany(_)) => Answer::TooMany,
                    Err(TableError::Damage(_)) => Answer::Damage,
                    Err(other) => panic!("{other}"),
                },
                Op::Release => done(table_i.release(session, line, &mut wake)),
                Op::Withdraw => done(table_i.withdraw(session, line, &mut wake)),
                Op::ReleaseAll => done(table_i.release_all(session, &mut wake)),
                Op::Age => done(table_i.set_age(session, key)),
            };
            assert_eq!(answer, expected, "{op:?} of {line}");
            match (op, answer) {
                (Op::Acquire(..), Answer::Waiting | Answer::Damage) if table_i.holds(session, line) == 0 => {
                    self.waits.push(line);
                }
                (Op::Withdraw, Answer::Done) => self.waits.retain(|other| *other != line),
                (Op::ReleaseAll, _) => self.waits.clear(),
                _ => {}
            }
        } else {
            assert_eq!(activity.answer, None);
            let mut granted = Vec::new();
            let lines: Vec<_> = (0..table_i.touched(session.number()) as usize)
                .map(|at| (table_i.memory().own[list_word(table, session.number()) + at].get() >> 32) as u32)
                .filter(|line| self.waits.contains(line))
                .collect();
            for line in lines {
                match table_i.poll(session, line) {
                    Ok(true) => granted.push((Answer::Granted, line)),
                    Ok(false) => {}
                    Err(TableError::Damage(_)) => granted.push((Answer::Damage, line)),
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(activity.notes, granted, "who was waiting has been granted this");
            self.waits.retain(|line| !granted.contains(&(Answer::Granted, *line)));
        }
        let left = self.table.memory().seen.borrow();
        assert!(left.is_empty(), "the module did more for {request:?}: {left:x?} of {activity:x?}");
        // Unless it has gone on since.
        if table.memory().card.borrow().is_quiet(self.element) {
            self.compare_lists(table, &format!("{request:?} {activity:x?}"));
        }
    }

    /// The list in memory, which whoever cleans up after a death would go by.
    fn compare_lists(&self, table: &Table<Both>, context: &str) {
        let number = self.session.number();
        let (own, words) = (&self.table.memory().own, &table.memory().words);
        let touched = self.table.touched(number) as usize;
        let list = list_word(table, number);
        for word in (list..list + touched).chain([table.event_word(number) + 1, table.event_word(number) - 1]) {
            assert_eq!(words[word].get(), own[word].get(), "word {word} of session {number:?}: {context}");
        }
    }
}
