//! A session: one thread's way to locks.
//!
//! Whoever has to wait looks at its line for some microseconds, as the lock is mostly given back within them, then
//! sleeps on its session's event word. Whoever changes the line so that it is its turn wakes it. Sleep is never longer
//! than [`BACKOFF`]: then the waiter looks whether those in front of it still live, and cleans up after those who do
//! not. So a death delays those behind it by one nap and by nothing else.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lockwork_locking::LockMode;
use lockwork_locking::shared::{self, SessionNumber, Step, TableError, WaitPolicy};
use lockwork_memory::shared::sleep;

use crate::segment::SharedMemory;
use crate::{Attachment, Error};

/// An event word: its session does not sleep.
pub(crate) const AWAKE: u64 = 0;
/// An event word: its session sleeps, or is about to.
pub(crate) const ASLEEP: u64 = 1;

/// The longest sleep without a look at those in front.
pub const BACKOFF: Duration = Duration::from_millis(10);

/// How a session waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Waiting {
    /// Looks for a while, then sleeps: for processes on cores that others want too.
    #[default]
    Sleep,
    /// Looks at its cached copy of the line all the time, as a device does, which nobody could wake.
    Poll,
}

/// Looks at the line before a session falls asleep: about five microseconds.
const LOOKS: u32 = 200;
/// Looks between two glances at the clock.
const LOOKS_A_GLANCE: u32 = 64;

/// A session. Locks that it still holds when it is dropped are given back.
#[derive(Debug)]
pub struct Session<M: SharedMemory = crate::Mapped> {
    attachment: Arc<Attachment<M>>,
    of_table: shared::Session,
    waiting: Waiting,
}

impl<M: SharedMemory> Session<M> {
    pub(crate) fn open(attachment: &Arc<Attachment<M>>) -> Result<Self, Error> {
        let sessions = attachment.table.layout().sessions;
        let (mut next, mut damaged, mut first) = (1, 0, None);
        loop {
            let free = attachment.liveness.take_free(next..=sessions).map_err(attachment.io("lock a session of"))?;
            let Some(number) = free else { break };
            let _alone = attachment.giving_back.lock().unwrap_or_else(PoisonError::into_inner);
            match attachment.table.open(number, std::process::id(), &mut |wake| attachment.wake(wake)) {
                Ok(of_table) => {
                    return Ok(Self { attachment: attachment.clone(), of_table, waiting: Waiting::default() });
                }
                // Whoever died in it has left what cannot be cleaned up. That is no reason to refuse the others.
                Err(damage) => {
                    attachment.liveness.give_back(number).map_err(attachment.io("unlock a session of"))?;
                    first.get_or_insert_with(|| Box::new(damage));
                    (next, damaged) = (number.get() + 1, damaged + 1);
                }
            }
        }
        Err(first.map_or(Error::Sessions(sessions), |first| Error::Damaged { sessions, damaged, first }))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> SessionNumber {
        self.of_table.number()
    }

    /// How it waits from now on.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// Its age for wait-die, such as the time when its transaction first began: smaller is older. A transaction that is
    /// begun again keeps its age, and so gets through in the end. A session that was told none counts as the youngest.
    ///
    /// # Errors
    /// [`TableError::InUse`] while it holds or waits for anything: others have decided by its age whether to wait.
    pub fn set_age(&mut self, age: u64) -> Result<(), Error> {
        Ok(self.attachment.table.set_age(&self.of_table, age)?)
    }

    /// Takes the lock of a key, waiting as long as it takes.
    ///
    /// A session that holds nothing waits for anybody; one that does, only for younger ones, so no circle can close.
    /// Keys that are taken twice are given back twice. A reader that asks for [`LockMode::Exclusive`] becomes the
    /// writer if it is the only reader.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`]: release all, and begin again. [`Error::Table`].
    #[inline]
    pub fn lock(&mut self, key: u64, mode: LockMode) -> Result<(), Error> {
        self.lock_line(self.line_of(key), mode, WaitPolicy::Safe, None)
    }

    /// Acquires the lock of a key if that needs no waiting.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Table`].
    #[inline]
    pub fn try_lock(&mut self, key: u64, mode: LockMode) -> Result<(), Error> {
        self.lock_line(self.line_of(key), mode, WaitPolicy::Try, None)
    }

    /// Takes the lock of a key, waiting up to `limit`, for anybody: a circle ends when the time is over.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Table`].
    pub fn lock_within(&mut self, key: u64, mode: LockMode, limit: Duration) -> Result<(), Error> {
        self.lock_line(self.line_of(key), mode, WaitPolicy::Queue, Some(limit))
    }

    /// Takes the lock of a key, and gives it back when the guard goes.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn guard(&mut self, key: u64, mode: LockMode) -> Result<Guard<'_, M>, Error> {
        self.lock(key, mode)?;
        Ok(Guard { session: self, key })
    }

    /// Gives back one grant of a key.
    ///
    /// # Errors
    /// The session does not hold its line, or damage.
    #[inline]
    pub fn unlock(&mut self, key: u64) -> Result<(), Error> {
        self.unlock_line(self.line_of(key))
    }

    /// Gives back everything.
    ///
    /// # Errors
    /// Damage; all other lines were given back nevertheless.
    pub fn unlock_all(&mut self) -> Result<(), Error> {
        let attachment = &self.attachment;
        Ok(attachment.table.release_all(&mut self.of_table, &mut |wake| attachment.wake(wake))?)
    }

    /// Whether the session holds the line of a key.
    #[must_use]
    pub fn holds(&self, key: u64) -> bool {
        self.attachment.table.holds(&self.of_table, self.line_of(key)) > 0
    }

    /// The line of a key.
    #[must_use]
    #[inline(always)]
    pub fn line_of(&self, key: u64) -> u32 {
        self.attachment.table.layout().place(key)
    }

    /// Takes a line, for callers that place keys themselves; at most for `limit` if there is one.
    ///
    /// # Errors
    /// [`Error::Busy`] with [`WaitPolicy::Try`], else [`Error::WouldDeadlock`] or [`Error::TimedOut`];
    /// [`Error::Table`].
    #[inline]
    pub fn lock_line(
        &mut self,
        line: u32,
        mode: LockMode,
        timeout: WaitPolicy,
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        match self.ask(line, mode, timeout) {
            Ok(Step::Granted) => Ok(()),
            Ok(step) => self.wait(step, (line, mode, timeout), limit).inspect_err(|_| self.forget(line)),
            Err(error) => {
                if matches!(error, TableError::Damage(_)) {
                    self.forget(line);
                }
                Err(error.into())
            }
        }
    }

    /// Withdraws a request that failed, as far as that can be done: one that nobody knows of any more must not become
    /// an owner. After most errors there is none.
    #[cold]
    fn forget(&mut self, line: u32) {
        let attachment = &self.attachment;
        drop(attachment.table.withdraw(&mut self.of_table, line, &mut |wake| attachment.wake(wake)));
    }

    /// Gives back one grant of a line.
    ///
    /// # Errors
    /// As [`Self::unlock`].
    #[inline]
    pub fn unlock_line(&mut self, line: u32) -> Result<(), Error> {
        let attachment = &self.attachment;
        Ok(attachment.table.release(&mut self.of_table, line, &mut |wake| attachment.wake(wake))?)
    }

    #[cold]
    fn wait(
        &mut self,
        mut step: Step,
        (line, mode, timeout): (u32, LockMode, WaitPolicy),
        limit: Option<Duration>,
    ) -> Result<(), Error> {
        let attachment = self.attachment.clone();
        let table = &attachment.table;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut next_check = Instant::now() + BACKOFF;
        loop {
            match step {
                Step::Granted => return Ok(()),
                Step::Refused => {
                    let error = if timeout == WaitPolicy::Try { Error::Busy } else { Error::WouldDeadlock };
                    // Who is in the way may be dead, and then nobody is.
                    if !self.clean_up_line(line)? {
                        return Err(error);
                    }
                    step = self.ask(line, mode, timeout)?;
                }
                Step::Waiting => {
                    if self.look(line)? {
                        return Ok(());
                    }
                    let now = Instant::now();
                    if deadline.is_some_and(|deadline| now >= deadline) {
                        return Err(Error::TimedOut);
                    }
                    if self.waiting == Waiting::Sleep && self.sleep(line, deadline)? {
                        return Ok(());
                    }
                    if Instant::now() >= next_check {
                        self.clean_up_line(line)?;
                        next_check = Instant::now() + BACKOFF;
                    }
                }
                Step::Full => {
                    let crowd = table.crowd_word();
                    let before = table.memory().load(crowd);
                    let limit =
                        deadline.map_or(BACKOFF, |end| end.saturating_duration_since(Instant::now()).min(BACKOFF));
                    if limit.is_zero() {
                        return Err(Error::TimedOut);
                    }
                    if table.crowd(line)? {
                        match self.waiting {
                            Waiting::Sleep => sleep(table.memory().half(crowd), before as u32, Some(limit)),
                            Waiting::Poll => std::hint::spin_loop(),
                        }
                    }
                    if Instant::now() >= next_check {
                        self.clean_up_line(line)?;
                        next_check = Instant::now() + BACKOFF;
                    }
                    step = self.ask(line, mode, timeout)?;
                }
            }
        }
    }

    #[inline(always)]
    fn ask(&mut self, line: u32, mode: LockMode, timeout: WaitPolicy) -> Result<Step, TableError> {
        let attachment = &self.attachment;
        attachment.table.request(&mut self.of_table, line, mode, timeout, &mut |wake| attachment.wake(wake))
    }

    /// Looks at the line for a while.
    fn look(&mut self, line: u32) -> Result<bool, TableError> {
        let looks = if self.waiting == Waiting::Sleep { LOOKS } else { LOOKS_A_GLANCE };
        for _ in 0..looks {
            if self.attachment.table.poll(&mut self.of_table, line)? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Sleeps until somebody wakes the session, or a nap is over, or the time is.
    fn sleep(&mut self, line: u32, deadline: Option<Instant>) -> Result<bool, TableError> {
        let attachment = self.attachment.clone();
        let (table, memory) = (&attachment.table, attachment.table.memory());
        let event = table.event_word(self.number());
        memory.store(event, ASLEEP);
        // Whoever grants changes the line first and looks at the word then.
        memory.fence();
        let granted = table.poll(&mut self.of_table, line)?;
        if !granted {
            let limit = deadline.map_or(BACKOFF, |end| end.saturating_duration_since(Instant::now()).min(BACKOFF));
            sleep(memory.half(event), ASLEEP as u32, Some(limit));
        }
        memory.store(event, AWAKE);
        Ok(granted)
    }

    /// Cleans up after those in a line whose processes have died; whether there were any.
    fn clean_up_line(&self, line: u32) -> Result<bool, Error> {
        let mut there = Vec::new();
        self.attachment.table.everybody(line, |number| there.push(number))?;
        let mut any = false;
        for number in there.into_iter().filter(|number| *number != self.number()) {
            any |= match self.attachment.clean_up_if_dead(number, Some(line)) {
                // What is damaged is elsewhere: this line has been left.
                Err(Error::Table(_)) if self.attachment.table.standing(number, line)?.is_none() => true,
                cleaned => cleaned?,
            };
        }
        Ok(any)
    }
}

impl<M: SharedMemory> Drop for Session<M> {
    fn drop(&mut self) {
        // A damaged line cannot be given back; whoever uses it next is told. The liveness lock goes in any case, and
        // with it whatever is left becomes a matter of cleaning up.
        drop(self.unlock_all());
        drop(self.attachment.liveness.give_back(self.number()));
    }
}

/// A lock that is given back when this goes.
#[derive(Debug)]
pub struct Guard<'s, M: SharedMemory = crate::Mapped> {
    session: &'s mut Session<M>,
    key: u64,
}

impl<M: SharedMemory> Guard<'_, M> {
    /// The session, for further locks.
    pub fn session(&mut self) -> &mut Session<M> {
        self.session
    }
}

impl<M: SharedMemory> Drop for Guard<'_, M> {
    fn drop(&mut self) {
        // Not held any more if the session was told to give everything back; damage is told to whoever comes next.
        drop(self.session.unlock(self.key));
    }
}
