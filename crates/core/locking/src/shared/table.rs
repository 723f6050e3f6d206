//! A table in one segment of memory: requests and waiting.
//!
//! Invariant: a line that a session is in, or is about to enter, or has not quite left, stands in its list. So the list
//! of a dead session is all that there is to clean up. Only the session itself writes its record and list, or, when it
//! is dead or at rest, whoever has taken over its liveness lock.
//!
//! Nothing here blocks: [`Table::request`] answers [`Step::Waiting`], and the caller polls. Who wants to sleep does so
//! on the session's event word and is told by the `wake` that every step takes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use lockwork_random::mix;

use super::layout::{HEADER_WORDS, Layout, LayoutError, SESSION_WORDS};
use super::line::{Entered, Line, Place};
use super::memory::Memory;
use super::request::{Step, TableError, WaitPolicy};
use super::word::LINE_WORDS;
use super::{Damage, SessionNumber, Wake};
use crate::LockMode;

const CROWD: usize = 8;
pub(super) const EPOCH: usize = 0;
pub(super) const AGE: usize = 1;
const EVENT: usize = 2;
pub(super) const TOUCHED: usize = 3;
const PROCESS: usize = 4;

/// What stands in a session's list about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) line: u32,
    mode: LockMode,
    /// How many times it was acquired; zero while it is waited for.
    count: u32,
}

impl Touched {
    /// The most that a line can be held.
    const MOST: u32 = (1 << 30) - 1;

    fn bits(self) -> u64 {
        u64::from(self.line) << 32 | (self.mode as u64) << 30 | u64::from(self.count)
    }

    fn of(bits: u64) -> Self {
        let mode = match bits >> 30 & 3 {
            1 => LockMode::Shared,
            2 => LockMode::IntentExclusive,
            _ => LockMode::Exclusive,
        };
        Self { line: (bits >> 32) as u32, mode, count: bits as u32 & Self::MOST }
    }
}

#[derive(Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are line numbers");
    }

    fn write_u32(&mut self, line: u32) {
        self.0 = mix(line.into());
    }
}

/// Lists up to this long are searched from the end.
const SEARCHED: usize = 12;

/// A session, for the one thread that speaks for it at a time.
#[derive(Debug)]
pub struct Session {
    number: SessionNumber,
    /// At least as many as it waits for.
    waits: u32,
    /// Where in the list a line stands, while the list is longer than [`SEARCHED`]. May be out of date.
    positions: HashMap<u32, u32, BuildHasherDefault<LineHasher>>,
}

impl Session {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> SessionNumber {
        self.number
    }
}

/// A lock table.
#[derive(Debug)]
pub struct Table<M> {
    memory: M,
    layout: Layout,
}

impl<M: Memory> Table<M> {
    /// Makes a table of zeroed memory. The check word is written last: a table that was not finished is refused.
    ///
    /// # Errors
    /// Dimensions that cannot be, or memory of another size.
    pub fn create(memory: M, layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        let table = Self { memory, layout };
        table.check_size()?;
        for session in 0..layout.sessions {
            table.memory.store(HEADER_WORDS + usize::from(session) * SESSION_WORDS + AGE, u64::MAX);
        }
        layout.header().into_iter().enumerate().for_each(|(word, value)| table.memory.store(word, value));
        Ok(table)
    }

    /// The table that is in this memory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn attach(memory: M) -> Result<Self, LayoutError> {
        if memory.words() < HEADER_WORDS {
            let (found, expected) = (memory.words() as u64 * 8, HEADER_WORDS as u64 * 8);
            return Err(LayoutError::Size { found, expected });
        }
        let mut header = [0; 8];
        header.iter_mut().enumerate().for_each(|(word, value)| *value = memory.load(word));
        let table = Self { layout: Layout::of_header(header)?, memory };
        table.check_size()?;
        Ok(table)
    }

    fn check_size(&self) -> Result<(), LayoutError> {
        let (found, expected) = (self.memory.words() as u64 * 8, self.layout.words() as u64 * 8);
        if found == expected { Ok(()) } else { Err(LayoutError::Size { found, expected }) }
    }

    /// Its dimensions.
    #[must_use]
    #[inline(always)]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory that it lies in.
    #[must_use]
    #[inline(always)]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub(super) fn record(&self, session: SessionNumber) -> usize {
        assert!(session.get() <= self.layout.sessions, "session {} of {}", session.get(), self.layout.sessions);
        HEADER_WORDS + session.index() * SESSION_WORDS
    }

    /// The memory that it lies in, without the table.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// The word that those who wait for a place in any line may sleep on. The table never touches it.
    #[must_use]
    pub fn crowd_word(&self) -> usize {
        CROWD
    }

    /// The word that a session's waiter may sleep on. The table never touches it.
    #[must_use]
    pub fn event_word(&self, session: SessionNumber) -> usize {
        self.record(session) + EVENT
    }

    /// How often this session was opened or cleaned up after. With the number it names one life of a session.
    #[must_use]
    pub fn epoch(&self, session: SessionNumber) -> u64 {
        self.memory.load(self.record(session) + EPOCH)
    }

    /// The process that opened it last, as it said.
    #[must_use]
    pub fn process(&self, session: SessionNumber) -> u32 {
        self.memory.load(self.record(session) + PROCESS) as u32
    }

    /// Its age: smaller is older. [`u64::MAX`] unless it was told.
    #[must_use]
    pub fn age(&self, session: SessionNumber) -> u64 {
        self.memory.load(self.record(session) + AGE)
    }

    /// How many lines it holds, waits for, or is about to.
    #[must_use]
    pub fn touched(&self, session: SessionNumber) -> u32 {
        (self.memory.load(self.record(session) + TOUCHED) as u32).min(self.layout.held)
    }

    /// Begins a life of a session, for a process that has its liveness lock. What an earlier life left is cleaned up.
    ///
    /// # Errors
    /// Damage to a line that the earlier life touched.
    pub fn open(&self, number: SessionNumber, process: u32, wake: &mut impl FnMut(Wake)) -> Result<Session, Damage> {
        self.clean_up(number, wake)?;
        self.memory.store(self.record(number) + PROCESS, process.into());
        Ok(Session { number, waits: 0, positions: HashMap::default() })
    }

    /// Tells a session's age for wait-die. Others have decided by it whether to wait, so while the session holds or
    /// waits for anything it stays: a circle could close otherwise.
    ///
    /// # Errors
    /// [`TableError::InUse`]; the age is as before.
    pub fn set_age(&self, session: &Session, age: u64) -> Result<(), TableError> {
        match self.touched(session.number) {
            0 => self.memory.store(self.record(session.number) + AGE, age),
            lines => return Err(TableError::InUse(lines)),
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn line(&self, number: u32) -> Line<'_, M> {
        assert!(number < self.layout.lines, "line {number} of {}", self.layout.lines);
        let base = self.layout.first_line() + number as usize * LINE_WORDS;
        Line { memory: &self.memory, base, number, sessions: self.layout.sessions }
    }

    /// A line that stands in a session's list.
    pub(super) fn listed(&self, line: u32) -> Result<Line<'_, M>, Damage> {
        let what = "a session's list names a line that there is not";
        let damage = Damage { line, what, words: [0; LINE_WORDS] };
        if line < self.layout.lines { Ok(self.line(line)) } else { Err(damage) }
    }

    #[inline(always)]
    pub(super) fn entry(&self, session: SessionNumber, at: usize) -> Touched {
        Touched::of(self.memory.load(self.layout.list(session) + at))
    }

    #[inline(always)]
    fn write_entry(&self, session: SessionNumber, at: usize, entry: Touched) {
        self.memory.store(self.layout.list(session) + at, entry.bits());
    }

    /// Where a line stands in the session's list.
    #[inline(always)]
    fn find(&self, session: &Session, line: u32) -> Option<usize> {
        let length = self.touched(session.number) as usize;
        if length <= SEARCHED {
            return (0..length).rev().find(|at| self.entry(session.number, *at).line == line);
        }
        let at = *session.positions.get(&line)? as usize;
        (at < length && self.entry(session.number, at).line == line).then_some(at)
    }

    #[inline(always)]
    fn push(&self, session: &mut Session, entry: Touched) -> Result<(), TableError> {
        let length = self.touched(session.number) as usize;
        if length == self.layout.held as usize {
            return Err(TableError::TooMany(self.layout.held));
        }
        self.write_entry(session.number, length, entry);
        self.memory.store(self.record(session.number) + TOUCHED, length as u64 + 1);
        if length >= SEARCHED {
            self.note_position(session, length, entry.line);
        }
        Ok(())
    }

    #[cold]
    fn note_position(&self, session: &mut Session, at: usize, line: u32) {
        if at == SEARCHED {
            session.positions.clear();
            let before = (0..at).map(|at| (self.entry(session.number, at).line, at as u32));
            session.positions.extend(before);
        }
        session.positions.insert(line, at as u32);
    }

    /// Takes an entry off the list. The last one takes its place, and stands there before the list gets shorter.
    #[inline(always)]
    fn drop_entry(&self, session: &mut Session, at: usize) {
        let last = self.touched(session.number) as usize - 1;
        if last >= SEARCHED {
            session.positions.remove(&self.entry(session.number, at).line);
        }
        if at != last {
            let moved = self.entry(session.number, last);
            self.write_entry(session.number, at, moved);
            if last >= SEARCHED {
                session.positions.insert(moved.line, at as u32);
            }
        }
        self.memory.store(self.record(session.number) + TOUCHED, last as u64);
    }

    /// Asks for a line.
    ///
    /// A session that holds the line already, for whichever of its keys, is granted it once more; each grant is
    /// released by itself. A holder that asks for a stronger mode becomes the writer if it is alone, and is refused
    /// otherwise, under every patience.
    ///
    /// # Errors
    /// [`TableError`]; nothing was changed.
    #[inline]
    pub fn request(
        &self,
        session: &mut Session,
        line: u32,
        mode: LockMode,
        timeout: WaitPolicy,
        wake: &mut impl FnMut(Wake),
    ) -> Result<Step, TableError> {
        if let Some(at) = self.find(session, line) {
            return self.again(session, at, mode, wake);
        }
        if session.waits > 0 && timeout != WaitPolicy::Queue && !self.waits_for_younger(session) {
            return Ok(Step::Refused);
        }
        let of_line = self.line(line);
        self.push(session, Touched { line, mode, count: 1 })?;
        if of_line.take_free(session.number, mode) {
            return Ok(Step::Granted);
        }
        self.request_taken(session, line, mode, timeout, wake)
    }

    /// Whether a session waits for nobody older anywhere. Else whoever comes to wait for it could close a circle.
    #[cold]
    fn waits_for_younger(&self, session: &mut Session) -> bool {
        let age = self.age(session.number);
        let mut waits = 0;
        for at in 0..self.touched(session.number) as usize {
            let entry = self.entry(session.number, at);
            let younger = |other| age < self.age(other);
            waits += u32::from(entry.count == 0);
            let waits_for = |line: Line<'_, M>| line.waits_for(session.number, younger);
            // In a damaged line nobody waits for long: whoever looks is told.
            if entry.count == 0 && matches!(self.listed(entry.line).and_then(waits_for), Ok(false)) {
                return false;
            }
        }
        session.waits = waits;
        true
    }

    /// As [`Self::request`] of a line that the session holds.
    fn again(
        &self,
        session: &Session,
        at: usize,
        mode: LockMode,
        wake: &mut impl FnMut(Wake),
    ) -> Result<Step, TableError> {
        let mut entry = self.entry(session.number, at);
        if entry.count == 0 {
            // Of a damaged line that is told each time.
            self.line(entry.line).everybody(|_| ())?;
            return Err(TableError::WaitsAlready(entry.line));
        }
        if entry.count == Touched::MOST {
            return Err(TableError::TooOften(entry.line));
        }
        let wanted = entry.mode.join(mode);
        if wanted != entry.mode && !self.line(entry.line).upgrade(session.number, wake)? {
            return Ok(Step::Refused);
        }
        entry.mode = wanted;
        entry.count += 1;
        self.write_entry(session.number, at, entry);
        Ok(Step::Granted)
    }

    #[cold]
    fn request_taken(
        &self,
        session: &mut Session,
        line: u32,
        mode: LockMode,
        timeout: WaitPolicy,
        wake: &mut impl FnMut(Wake),
    ) -> Result<Step, TableError> {
        let at = self.touched(session.number) as usize - 1;
        let by_age = timeout == WaitPolicy::WaitDie || (timeout == WaitPolicy::Safe && at > 0);
        let step = self.enter(session.number, line, mode, (timeout != WaitPolicy::Try, by_age), wake);
        match step {
            Ok(Step::Granted) => {}
            // After damage the session may or may not be in the line, and has to keep it in its list; it holds nothing.
            Ok(Step::Waiting) | Err(_) => {
                session.waits += 1;
                self.write_entry(session.number, at, Touched { line, mode, count: 0 });
            }
            Ok(Step::Full | Step::Refused) => self.drop_entry(session, at),
        }
        step
    }

    fn enter(
        &self,
        session: SessionNumber,
        line: u32,
        mode: LockMode,
        (queue, by_age): (bool, bool),
        wake: &mut impl FnMut(Wake),
    ) -> Result<Step, TableError> {
        let line = self.line(line);
        let age = self.age(session);
        let younger = |other: SessionNumber| age < self.age(other);
        let all_younger = || {
            let mut all = true;
            line.everybody(|other| all &= younger(other)).map(|()| all)
        };
        // Who will be refused had better not queue up first: the place would be used up until those in front have gone.
        if by_age && !line.admits(mode)? && !all_younger()? {
            return Ok(Step::Refused);
        }
        match line.enter(session, mode, queue, wake)? {
            Entered::Granted => return Ok(Step::Granted),
            Entered::NotAtOnce => return Ok(Step::Refused),
            Entered::Full if !queue => return Ok(Step::Refused),
            Entered::Full if !by_age => return Ok(Step::Full),
            Entered::Full => return Ok(if all_younger()? { Step::Full } else { Step::Refused }),
            Entered::Queued => {}
        }
        if !queue || (by_age && !line.waits_for(session, younger)?) {
            line.leave(session, wake)?;
            return Ok(Step::Refused);
        }
        Ok(Step::Waiting)
    }

    /// Whether the session has been granted a line that it has asked for.
    ///
    /// # Errors
    /// [`TableError::NotHeld`] if it has not asked for it, or damage.
    pub fn poll(&self, session: &mut Session, line: u32) -> Result<bool, TableError> {
        let at = self.find(session, line).ok_or(TableError::NotHeld(line))?;
        let entry = self.entry(session.number, at);
        if entry.count == 0 && matches!(self.line(line).stand(session.number)?, Place::Holds(_)) {
            self.write_entry(session.number, at, Touched { count: 1, ..entry });
            session.waits -= 1;
            return Ok(true);
        }
        Ok(entry.count > 0)
    }

    /// Takes back a request that waits, granted meanwhile or not.
    ///
    /// # Errors
    /// [`TableError::NotHeld`] if the session does not wait for the line; damage, after which it still stands there.
    pub fn withdraw(&self, session: &mut Session, line: u32, wake: &mut impl FnMut(Wake)) -> Result<(), TableError> {
        let at = self.find(session, line).ok_or(TableError::NotHeld(line))?;
        if self.entry(session.number, at).count != 0 {
            return Err(TableError::NotHeld(line));
        }
        self.line(line).leave(session.number, wake)?;
        session.waits -= 1;
        self.drop_entry(session, at);
        Ok(())
    }

    /// How often the session holds a line: once for each grant that was not released.
    #[must_use]
    pub fn holds(&self, session: &Session, line: u32) -> u32 {
        self.find(session, line).map_or(0, |at| self.entry(session.number, at).count)
    }

    /// Gives back one grant of a line.
    ///
    /// # Errors
    /// [`TableError::NotHeld`], or damage.
    #[inline]
    pub fn release(&self, session: &mut Session, line: u32, wake: &mut impl FnMut(Wake)) -> Result<(), TableError> {
        let at = self.find(session, line).ok_or(TableError::NotHeld(line))?;
        let mut entry = self.entry(session.number, at);
        match entry.count {
            0 => return Err(TableError::NotHeld(line)),
            1 => {}
            _ => {
                entry.count -= 1;
                self.write_entry(session.number, at, entry);
                return Ok(());
            }
        }
        let of_line = self.line(line);
        if !of_line.give_back_alone(session.number) && !of_line.leave(session.number, wake)? {
            return Err(TableError::NotHeld(line));
        }
        self.drop_entry(session, at);
        Ok(())
    }

    /// Gives back everything that the session holds or waits for.
    ///
    /// # Errors
    /// The first damage; all other lines were left nevertheless.
    pub fn release_all(&self, session: &mut Session, wake: &mut impl FnMut(Wake)) -> Result<(), TableError> {
        session.waits = 0;
        Ok(self.release_list(session.number, self.epoch(session.number), wake)?)
    }

    /// Calls `each` with everybody in a line: who holds it, and who waits.
    ///
    /// # Errors
    /// Damage.
    pub fn everybody(&self, line: u32, each: impl FnMut(SessionNumber)) -> Result<(), TableError> {
        Ok(self.line(line).everybody(each)?)
    }

    /// Where a session stands in a line: the mode that it holds, or `None` if it waits, or nothing if it is not there.
    ///
    /// # Errors
    /// Damage.
    pub fn standing(&self, session: SessionNumber, line: u32) -> Result<Option<Option<LockMode>>, TableError> {
        Ok(match self.line(line).place(session)? {
            Place::Absent => None,
            Place::Holds(mode) => Some(Some(mode)),
            Place::Waits => Some(None),
        })
    }

    /// Says that somebody waits for a place in a full line. `false`: there is one now, and nothing was said.
    ///
    /// # Errors
    /// Damage.
    pub fn crowd(&self, line: u32) -> Result<bool, TableError> {
        Ok(self.line(line).crowd()?)
    }

    /// The index of a line's first word, which changes with every change that counts.
    #[must_use]
    pub fn line_word(&self, line: u32) -> usize {
        self.line(line).base
    }
}
