//! What others do for a session: give back what one at rest holds, clean up after a dead one, look whether that can be
//! done.
//!
//! Whoever cleans up has the session's liveness lock, so nobody opens the session meanwhile. Whoever gives back for one
//! at rest has not: the session may die, be cleaned up after and be opened anew between any two steps, and then what is
//! in its list is another life's. Its epoch tells.

use super::memory::Memory;
use super::request::TableError;
use super::table::{AGE, EPOCH, TOUCHED, Table};
use super::{Damage, SessionNumber, Wake};

impl<M: Memory> Table<M> {
    /// Gives back everything that a session holds in the life of this [`Self::epoch`], for somebody who was told by it,
    /// by way of memory that both see, that it is at rest. What another life holds stays held, unless the session dies,
    /// is cleaned up after and is opened anew between two neighbouring steps of this: whoever calls it keeps those of
    /// its own process from doing so.
    ///
    /// # Errors
    /// The first damage; all other lines were left nevertheless.
    pub fn release_all_of(
        &self,
        session: SessionNumber,
        epoch: u64,
        wake: &mut impl FnMut(Wake),
    ) -> Result<(), TableError> {
        Ok(self.release_list(session, epoch, wake)?)
    }

    pub(super) fn release_list(
        &self,
        session: SessionNumber,
        epoch: u64,
        wake: &mut impl FnMut(Wake),
    ) -> Result<(), Damage> {
        let mut first = Ok(());
        for at in (0..self.touched(session) as usize).rev() {
            let entry = self.entry(session, at);
            // Looked at after the entry: so the entry is of that life, or the life is over.
            if self.epoch(session) != epoch {
                break;
            }
            let left = self.listed(entry.line).and_then(|line| {
                let _ = line.give_back_alone(session) || line.leave(session, wake)?;
                Ok(())
            });
            first = first.and(left);
            if self.epoch(session) == epoch {
                self.memory().store(self.record(session) + TOUCHED, at as u64);
            }
        }
        first
    }

    /// Whether what a session touches is sound, as far as one can see who only reads: every line of its list is there,
    /// and contains nothing that cannot be. A dead session of which this is not so cannot be cleaned up after.
    ///
    /// # Errors
    /// The first damage.
    pub fn check(&self, session: SessionNumber) -> Result<(), Damage> {
        (0..self.touched(session) as usize)
            .try_for_each(|at| self.listed(self.entry(session, at).line)?.everybody(|_| ()))
    }

    /// Takes a dead session out of a line that it is in, whatever its list says; as [`Self::clean_up`], which goes by
    /// the list, and does not find a line whose entry there somebody has written over.
    ///
    /// # Errors
    /// Damage.
    pub fn remove(&self, session: SessionNumber, line: u32, wake: &mut impl FnMut(Wake)) -> Result<(), Damage> {
        self.line(line).remove(session, wake)
    }

    /// Cleans up after a session that has died anywhere in the protocol, for somebody who has taken over its liveness
    /// lock: takes it out of every line that it touched, and lets those behind it go on.
    ///
    /// # Errors
    /// The first damage; all other lines were cleaned nevertheless, and the session must not be used again.
    pub fn clean_up(&self, session: SessionNumber, wake: &mut impl FnMut(Wake)) -> Result<(), Damage> {
        let mut first = Ok(());
        for at in 0..self.touched(session) as usize {
            let line = self.listed(self.entry(session, at).line);
            first = first.and(line.and_then(|line| line.remove(session, wake)));
        }
        first?;
        let record = self.record(session);
        self.memory().store(record + TOUCHED, 0);
        self.memory().store(record + AGE, u64::MAX);
        self.memory().store(record + EPOCH, self.epoch(session) + 1);
        Ok(())
    }
}
