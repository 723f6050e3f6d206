//! The protocol of one line: every way in which its eight words change.
//!
//! **The rule that everything rests on: a slot says who is where, the control word says what counts.** An entry counts
//! when the control word has been changed *after* the entry was written, and its ticket was in the ring then. Whoever
//! decides something from slots has read the control word before them and replaces exactly that word, so it decides
//! from slots that still count, or its swap fails.
//!
//! | step | words changed, in order |
//! |---|---|
//! | take a free lock, give an uncontended one back | control |
//! | queue up | slot at the tail (vacant to entry), control (tail moves over it; anybody may do this step), control (if the lock was given back before the tail moved: the entry's writer is made owner) |
//! | join the group at the end of the ring | slot (a bit), control (version); taken back if another entry was queued behind the group in between |
//! | leave a group as one of several | slot (a bit) |
//! | leave a group as the last one, withdraw | slot (vacated), control (version, and whatever follows): a decision from an old look at the slot is now impossible |
//! | hand over | control: the first writer in the ring becomes owner, its entry falls off the ring |
//!
//! **Who holds the lock** is read off: the owner; and, unless the owner is a writer, the groups at the front of the
//! ring that have the owner's mode, or, if there is no owner, that of the first of them. So readers behind a writer
//! need no hand-over: they hold the lock as soon as nothing is in front of them. If what was in front has only died,
//! they change the control word before they believe it: a holder that saw it live may be about to become the writer.
//!
//! A process can die between any two steps. What it leaves is an entry, a claim on the tail, or an owner with its
//! number, and [`remove`] takes away all three. Or an entry that is vacated, and nobody who lets those behind it go on:
//! so whoever waits does that step as well.

use super::memory::Memory;
use super::word::{Control, LINE_WORDS, SLOTS, Slot, Ticket};
use super::{Damage, SessionNumber, Wake};
use crate::LockMode;

/// The entries of a ring, first to last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    slots: [Slot; SLOTS as usize],
    length: usize,
}

impl Ring {
    fn entries(&self) -> &[Slot] {
        &self.slots[..self.length]
    }

    /// The entry of a session, and its mode.
    fn find(&self, session: SessionNumber) -> Option<(usize, LockMode)> {
        let at = self.entries().iter().position(|slot| slot.has(session))?;
        self.entries()[at].mode().map(|mode| (at, mode))
    }

    fn place(&self, owner: Option<(SessionNumber, LockMode)>, session: SessionNumber) -> Place {
        match owner {
            Some((owner, mode)) if owner == session => Place::Holds(mode),
            _ => match self.find(session) {
                Some((at, mode)) if at < self.granted(owner) => Place::Holds(mode),
                Some(_) => Place::Waits,
                None => Place::Absent,
            },
        }
    }

    /// Whether a dead entry is in front of that of the session.
    fn is_behind_vacated(&self, session: SessionNumber) -> bool {
        self.find(session).is_some_and(|(at, _)| self.entries()[..at].iter().any(|slot| !slot.is_live()))
    }

    /// How many dead entries are in front.
    fn dead_in_front(&self) -> usize {
        self.entries().iter().take_while(|slot| !slot.is_live()).count()
    }

    /// Whether who comes now, in `mode`, would hold the lock at once: everybody who is there holds it, in that mode.
    fn would_admit(&self, owner: Option<(SessionNumber, LockMode)>, mode: LockMode) -> bool {
        let live = self.entries().iter().filter(|slot| slot.is_live());
        let modes = owner.map(|(_, mode)| mode).into_iter().chain(live.filter_map(|slot| slot.mode()));
        mode != LockMode::Exclusive && modes.into_iter().all(|held| held == mode)
    }

    /// How many entries from the front hold the lock beside this owner, dead ones between them included.
    fn granted(&self, owner: Option<(SessionNumber, LockMode)>) -> usize {
        let mut mode = owner.map(|(_, mode)| mode);
        let mut granted = 0;
        for (at, slot) in self.entries().iter().enumerate().filter(|(_, slot)| slot.is_live()) {
            let own = slot.mode();
            if own == Some(LockMode::Exclusive) || mode.is_some_and(|mode| Some(mode) != own) {
                break;
            }
            (mode, granted) = (own, at + 1);
        }
        granted
    }
}

/// Where a session stands in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere.
    Absent,
    /// It holds the lock in this mode.
    Holds(LockMode),
    /// It waits.
    Waits,
}

/// What an attempt to enter came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The session holds the lock.
    Granted,
    /// The session is in the ring, and waits.
    Queued,
    /// The session would have to wait, and was not to. Nothing was changed.
    NotAtOnce,
    /// The ring is full. Nothing was changed.
    Full,
}

const UNSOUND: &str =
    "an owner without mode, a mode without owner, a session that there is not, or a tail that is no ticket";

/// A line of a table.
pub(super) struct Line<'m, M> {
    pub(super) memory: &'m M,
    /// Its first word.
    pub(super) base: usize,
    /// Its number, for errors.
    pub(super) number: u32,
    /// The sessions of its table.
    pub(super) sessions: u16,
}

impl<M: Memory> Line<'_, M> {
    #[inline(always)]
    fn control(&self) -> Control {
        Control(self.memory.load(self.base))
    }

    #[inline(always)]
    fn replace(&self, old: Control, new: Control) -> bool {
        self.memory.swap(self.base, old.0, new.next().0).is_ok()
    }

    fn slot(&self, ticket: Ticket) -> Slot {
        Slot(self.memory.load(self.base + ticket.word()))
    }

    fn replace_slot(&self, ticket: Ticket, old: Slot, new: Slot) -> bool {
        self.memory.swap(self.base + ticket.word(), old.0, new.0).is_ok()
    }

    fn damage(&self, what: &'static str) -> Damage {
        let mut words = [0; LINE_WORDS];
        words.iter_mut().enumerate().for_each(|(at, word)| *word = self.memory.load(self.base + at));
        Damage { line: self.number, what, words }
    }

    /// Control word and ring as they are together.
    fn view(&self) -> Result<(Control, Ring), Damage> {
        let mut control = self.control();
        loop {
            if !control.is_sound(self.sessions) {
                return Err(self.damage(UNSOUND));
            }
            let mut ring = Ring { slots: [Slot(0); SLOTS as usize], length: control.length() as usize };
            let mut torn = false;
            for at in 0..control.length() {
                let ticket = control.head().plus(at);
                let slot = self.slot(ticket);
                torn |= !slot.is_entry(ticket) || !slot.is_sound(self.sessions);
                ring.slots[at as usize] = slot;
            }
            let now = if control.length() == 0 { control } else { self.control() };
            if now == control {
                return if torn {
                    Err(self.damage("an entry with another ticket than its place, or of a session that there is not"))
                } else {
                    Ok((control, ring))
                };
            }
            control = now;
        }
    }

    /// The control word that follows when what is dead in front falls off and a writer whose turn it is becomes the
    /// owner.
    fn settled(control: Control, ring: &Ring) -> Control {
        let mut fallen = ring.dead_in_front();
        let mut next = control;
        if let (None, Some(first)) = (control.owner(), ring.entries().get(fallen))
            && first.mode() == Some(LockMode::Exclusive)
        {
            next = next.with_owner(first.sessions().next().map(|session| (session, LockMode::Exclusive)));
            fallen += 1;
        }
        next.shrunk(fallen as u32)
    }

    /// Wakes whoever holds the lock after a change, and, if it made room, who waits for a place.
    fn wake_holders(before: Control, after: Control, ring: &Ring, wake: &mut impl FnMut(Wake)) {
        if let Some((owner, LockMode::Exclusive)) = after.owner() {
            wake(Wake::Session(owner));
        } else {
            let entries = ring.entries()[..ring.granted(after.owner())].iter();
            entries.flat_map(|slot| slot.sessions()).for_each(|session| wake(Wake::Session(session)));
        }
        Self::wake_crowd(before, after, wake);
    }

    fn wake_crowd(before: Control, after: Control, wake: &mut impl FnMut(Wake)) {
        if before.is_crowded() && !after.is_crowded() {
            wake(Wake::Crowd);
        }
    }

    /// Takes the lock for a session if it is free.
    #[inline(always)]
    pub(super) fn take_free(&self, session: SessionNumber, mode: LockMode) -> bool {
        let control = self.control();
        control.is_free() && self.replace(control, control.with_owner(Some((session, mode))))
    }

    /// Gives back a lock that the session has as its owner, if nobody waits for it or for a place.
    #[inline(always)]
    pub(super) fn give_back_alone(&self, session: SessionNumber) -> bool {
        let control = self.control();
        let alone = control.length() == 0 && !control.is_crowded();
        let alone = alone && control.owner().is_some_and(|(owner, _)| owner == session);
        alone && self.replace(control, control.with_owner(None))
    }

    /// Enters a session that is nowhere in the line. Unless it may `queue`, only what looks as if it were granted at
    /// once is tried; it can still come to wait.
    pub(super) fn enter(
        &self,
        session: SessionNumber,
        mode: LockMode,
        queue: bool,
        wake: &mut impl FnMut(Wake),
    ) -> Result<Entered, Damage> {
        loop {
            let (control, ring) = self.view()?;
            let settled = Self::settled(control, &ring);
            if settled.is_free() {
                let taken = settled.with_owner(Some((session, mode))).roomy();
                if self.replace(control, taken) {
                    Self::wake_crowd(control, taken, wake);
                    return Ok(Entered::Granted);
                }
                continue;
            }
            if !queue && !ring.would_admit(control.owner(), mode) {
                return Ok(Entered::NotAtOnce);
            }
            if let Some(slot) = ring.entries().last()
                && let Some(joined) = slot.joined(session, mode)
            {
                let ticket = slot.ticket();
                if !self.replace_slot(ticket, *slot, joined) {
                    continue;
                }
                match self.confirm(ticket, session)? {
                    None => {}
                    Some(control) if control.tail() == ticket.plus(1) => return self.entered(session),
                    // Who is behind the group now did not see this session when it decided to wait.
                    Some(_) => drop(self.leave(session, wake)?),
                }
                continue;
            }
            if control.length() == SLOTS {
                if settled.length() == SLOTS {
                    return Ok(Entered::Full);
                }
                // What is dead in front falls off when somebody needs the place.
                let next = settled.roomy();
                if self.replace(control, next) {
                    Self::wake_holders(control, next, &ring, wake);
                }
                continue;
            }
            let tail = control.tail();
            let slot = self.slot(tail);
            if slot.is_entry(tail) {
                // Somebody has claimed the place and not moved the tail yet, or has died over it.
                self.replace(control, control.grown());
            } else if slot.is_vacant_for(tail) {
                if self.replace_slot(tail, slot, Slot::new(tail, session, mode))
                    && self.confirm(tail, session)?.is_some()
                {
                    return self.entered(session);
                }
            } else if self.control() == control {
                return Err(self.damage("a slot behind the ring with a ticket that it cannot have"));
            }
        }
    }

    /// How a session stands that has an entry which counts.
    fn entered(&self, session: SessionNumber) -> Result<Entered, Damage> {
        Ok(if matches!(self.stand(session)?, Place::Holds(_)) { Entered::Granted } else { Entered::Queued })
    }

    /// Makes the entry count that the session has just written at `ticket`, and gives back the control word since which
    /// it does. `None`: the ring has gone past it; it never counted.
    fn confirm(&self, ticket: Ticket, session: SessionNumber) -> Result<Option<Control>, Damage> {
        loop {
            let control = self.control();
            if !control.is_sound(self.sessions) {
                return Err(self.damage(UNSOUND));
            }
            let next = if control.contains(ticket) {
                control
            } else if control.tail() == ticket && control.length() < SLOTS {
                control.grown()
            } else {
                // Somebody has moved the tail over it, and somebody has handed over to it.
                let owns = control.owner().is_some_and(|(owner, _)| owner == session);
                return Ok(owns.then_some(control));
            };
            if self.replace(control, next) {
                return Ok(Some(next));
            }
        }
    }

    /// Where a session seems to stand, for those who only look.
    pub(super) fn place(&self, session: SessionNumber) -> Result<Place, Damage> {
        let (control, ring) = self.view()?;
        Ok(ring.place(control.owner(), session))
    }

    /// Where a session stands, for itself: what it holds it can rely on. Brings the line into its settled form if
    /// somebody has vacated an entry and not done so yet, or died before it could; or if the lock was given back before
    /// the session's own entry counted, when nobody else knows whose turn it is.
    pub(super) fn stand(&self, session: SessionNumber) -> Result<Place, Damage> {
        loop {
            let (control, ring) = self.view()?;
            let next = Self::settled(control, &ring);
            let place = ring.place(control.owner(), session);
            let relies_on_vacated = matches!(place, Place::Holds(_)) && ring.is_behind_vacated(session);
            if next == control && !relies_on_vacated {
                return Ok(place);
            }
            if self.replace(control, next) && relies_on_vacated {
                return Ok(place);
            }
        }
    }

    /// Whether `all` is true of everybody whom a waiting session waits for. A session that does not wait waits for
    /// nobody.
    pub(super) fn waits_for(
        &self,
        session: SessionNumber,
        mut all: impl FnMut(SessionNumber) -> bool,
    ) -> Result<bool, Damage> {
        let (control, ring) = self.view()?;
        let Some((at, _)) = ring.find(session) else { return Ok(true) };
        let owner = control.owner().map(|(owner, _)| owner);
        let mut ahead = owner.into_iter().chain(ring.entries()[..at].iter().flat_map(|slot| slot.sessions()));
        Ok(at < ring.granted(control.owner()) || ahead.all(&mut all))
    }

    /// Whether who comes now, in `mode`, would hold the lock at once.
    pub(super) fn admits(&self, mode: LockMode) -> Result<bool, Damage> {
        let (control, ring) = self.view()?;
        Ok(Self::settled(control, &ring).is_free() || ring.would_admit(control.owner(), mode))
    }

    /// Calls `each` with everybody who is in the line.
    pub(super) fn everybody(&self, mut each: impl FnMut(SessionNumber)) -> Result<(), Damage> {
        let (control, ring) = self.view()?;
        control.owner().into_iter().for_each(|(owner, _)| each(owner));
        ring.entries().iter().flat_map(|slot| slot.sessions()).for_each(each);
        Ok(())
    }

    /// Says that somebody waits for a place. `false`: there is one now, and nothing was said.
    pub(super) fn crowd(&self) -> Result<bool, Damage> {
        loop {
            let (control, ring) = self.view()?;
            if Self::settled(control, &ring).length() < SLOTS {
                return Ok(false);
            }
            if control.is_crowded() {
                return Ok(true);
            }
            self.replace(control, control.with_crowded(true));
        }
    }

    /// Makes a holder the writer. `false`: others hold the lock too; nothing was changed.
    pub(super) fn upgrade(&self, session: SessionNumber, wake: &mut impl FnMut(Wake)) -> Result<bool, Damage> {
        loop {
            let (control, ring) = self.view()?;
            let granted = ring.granted(control.owner());
            let alone = match control.owner() {
                Some((owner, _)) => owner == session && granted == 0,
                None => ring.entries()[..granted].iter().all(|slot| !slot.is_live() || slot.has_only(session)),
            };
            if !alone || (control.owner().is_none() && granted == 0) {
                return Ok(false);
            }
            let next = control.with_owner(Some((session, LockMode::Exclusive))).shrunk(granted as u32).roomy();
            if self.replace(control, next) {
                Self::wake_crowd(control, next, wake);
                return Ok(true);
            }
        }
    }

    /// Takes a session out of the line, whether it holds the lock or waits for it. `false`: it was not there.
    ///
    /// Somebody who looked at its entry before it was vacated may have made it owner, or may wait for it to leave. The
    /// second step rules that out, or finds it done and mends it.
    pub(super) fn leave(&self, session: SessionNumber, wake: &mut impl FnMut(Wake)) -> Result<bool, Damage> {
        loop {
            let (control, ring) = self.view()?;
            if control.owner().is_some_and(|(owner, _)| owner == session) {
                if self.hand_over(control, &ring, wake) {
                    return Ok(true);
                }
                continue;
            }
            let Some((at, _)) = ring.find(session) else { return Ok(false) };
            let slot = ring.entries()[at];
            let vacated = slot.without(session);
            if !self.replace_slot(slot.ticket(), slot, vacated) {
                continue;
            }
            if !vacated.is_live() {
                self.depart(session, wake)?;
            }
            return Ok(true);
        }
    }

    /// Takes a session out of the line that died somewhere in it, and lets the others go on. May be done twice, or by
    /// somebody who dies over it and somebody else again.
    pub(super) fn remove(&self, session: SessionNumber, wake: &mut impl FnMut(Wake)) -> Result<(), Damage> {
        for word in self.base + 1..self.base + LINE_WORDS {
            let mut slot = Slot(self.memory.load(word));
            // In the ring, claimed, or long past: an entry that does not count does no harm without its session.
            while slot.has(session) {
                match self.memory.swap(word, slot.0, slot.without(session).0) {
                    Ok(()) => break,
                    Err(now) => slot = Slot(now),
                }
            }
        }
        self.depart(session, wake)?;
        // It may have made room and died before it told.
        wake(Wake::Crowd);
        Ok(())
    }

    /// The second step of who has vacated its entry: changes the control word in any case, so that nobody can decide
    /// any more from a look at the entry as it was, gives the lock back if the session has been made owner, and lets go
    /// on whoever waited for it.
    fn depart(&self, session: SessionNumber, wake: &mut impl FnMut(Wake)) -> Result<(), Damage> {
        loop {
            let (control, ring) = self.view()?;
            if control.owner().is_none_or(|(owner, _)| owner != session) {
                let next = Self::settled(control, &ring).roomy();
                if self.replace(control, next) {
                    Self::wake_holders(control, next, &ring, wake);
                    return Ok(());
                }
            } else if self.hand_over(control, &ring, wake) {
                return Ok(());
            }
        }
    }

    /// The owner goes. `false`: the control word has changed.
    fn hand_over(&self, control: Control, ring: &Ring, wake: &mut impl FnMut(Wake)) -> bool {
        let next = Self::settled(control.with_owner(None), ring).roomy();
        let done = self.replace(control, next);
        // Those who held it beside the owner are awake.
        if done && (ring.granted(control.owner()) == 0 || control.is_crowded()) {
            Self::wake_holders(control, next, ring, wake);
        }
        done
    }
}
