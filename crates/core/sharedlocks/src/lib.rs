//! Reader-writer locks for any programs of one host: the shared lock table of `lockwork-locking` in memory that
//! processes share.
//!
//! A lock is a 64-bit key. Taking a free one, and giving it back, is a compare-and-swap of one word in a 64-byte line,
//! without a system call. Who has to wait stands in the line, spins for some microseconds, and then sleeps until the
//! one in front wakes it. **A process that dies keeps no lock**: whoever waits for it finds out, cleans up after it,
//! and goes on.
//!
//! ```no_run
//! use lockwork_sharedlocks::{LockMode, Options, SharedLocks};
//!
//! fn main() -> Result<(), lockwork_sharedlocks::Error> {
//!     let locks = SharedLocks::create_or_attach("orders", &Options::default())?;
//!     let mut session = locks.session()?;
//!     session.lock(17, LockMode::Exclusive)?;
//!     // ... what no other process may do meanwhile ...
//!     session.unlock(17)?;
//!     Ok(())
//! }
//! ```
//!
//! | module | idea |
//! |---|---|
//! | [`segment`] | memory that processes share, by name or descriptor |
//! | `liveness` | a kernel-released lock for each session |
//! | [`session`] | lock, try, wait, time out, release |
//! | [`c`] | the same for C |
//!
//! The crate belongs to the core because two wings stand on it: programs of one host lock through it, and so do the
//! host and the smart storage of `lockwork-neardata`, which update the same tuples (neoDBMS, ccSLT). The protocol of
//! the table, which knows no system call, is `lockwork_locking::shared`.
//!
//! **Not guaranteed**: locks are advisory; keys are hashed to lines, so two keys can exclude each other (never
//! themselves: one session takes both); whoever can write the segment can destroy it, which is found and said, but not
//! mended.

pub mod c;
mod error;
mod liveness;
pub mod segment;
pub mod session;

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use error::Error;
pub use lockwork_locking::LockMode;
pub use lockwork_locking::shared::{Damage, Layout, Placement, SessionNumber, Table, WaitPolicy};
pub use segment::{Mapped, SharedMemory};
pub use session::{Guard, Session, Waiting};

use liveness::Liveness;
use lockwork_locking::shared::Wake;
use segment::Segment;

/// What a new table is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its dimensions.
    pub layout: Layout,
    /// Whether all of its memory is taken at once. Otherwise it comes with use, and a machine without memory ends the
    /// process that touches it.
    pub reserve: bool,
}

impl Default for Options {
    /// 65,536 lines (4 MiB) and 256 sessions, each of which can hold 4096 lines: 12 MiB.
    fn default() -> Self {
        Self { layout: Layout { held: 4096, ..Layout::new(1 << 16, 256) }, reserve: true }
    }
}

/// An attachment to a shared lock table. Clones are the same attachment.
#[derive(Debug)]
pub struct SharedLocks<M = Mapped>(Arc<Attachment<M>>);

impl<M> Clone for SharedLocks<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
pub(crate) struct Attachment<M> {
    pub(crate) table: Table<M>,
    pub(crate) liveness: Liveness,
    /// Held while locks of a session are given back by somebody else: so those of its next life are not, as long as
    /// whoever opens it is of this process.
    pub(crate) giving_back: Mutex<()>,
    place: PathBuf,
}

/// One session, as [`SharedLocks::sessions`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Its number.
    pub number: SessionNumber,
    /// How often it was opened or cleaned up after.
    pub epoch: u64,
    /// The process that opened it.
    pub process: u32,
    /// How many lines it holds or waits for.
    pub touched: u32,
}

impl SharedLocks {
    /// Makes a table of this name (see [`segment`]), which must not be there yet.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Exists`], [`Error::Taken`], and others; nothing is left behind.
    pub fn create(name: &str, options: &Options) -> Result<Self, Error> {
        Ok(Self::of(Segment::create(name, options.layout, options.reserve)?))
    }

    /// Attaches to the table of this name.
    ///
    /// # Errors
    /// There is none, or it is none of this version.
    pub fn attach(name: &str) -> Result<Self, Error> {
        Ok(Self::of(Segment::attach(name)?))
    }

    /// Attaches to the table of this name, or makes it if there is none.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::attach`].
    pub fn create_or_attach(name: &str, options: &Options) -> Result<Self, Error> {
        loop {
            match Self::attach(name) {
                Err(Error::Missing(_)) => {}
                other => return other,
            }
            match Self::create(name, options) {
                Err(Error::Exists(_)) => {}
                other => return other,
            }
        }
    }

    /// Makes a table without a name, and gives the descriptor by which another process can attach to it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn anonymous(options: &Options) -> Result<(Self, File), Error> {
        let (segment, descriptor) = Segment::anonymous(options.layout, options.reserve)?;
        Ok((Self::of(segment), descriptor))
    }

    /// Attaches to the table of a descriptor.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn of_descriptor(descriptor: BorrowedFd<'_>) -> Result<Self, Error> {
        Ok(Self::of(Segment::of_descriptor(descriptor)?))
    }

    fn of(segment: Segment) -> Self {
        let Segment { table, alive, others, place } = segment;
        Self(Arc::new(Attachment {
            table,
            liveness: Liveness::new(alive, others),
            giving_back: Mutex::default(),
            place,
        }))
    }

    /// The same attachment by way of other memory, which `wrap` puts around the mapped one: slower, counted, deadly.
    ///
    /// # Panics
    /// If the attachment has clones or sessions, or the wrapped memory shows another table.
    #[must_use]
    pub fn through<M: SharedMemory>(self, wrap: impl FnOnce(Mapped) -> M) -> SharedLocks<M> {
        let Attachment { table, liveness, giving_back, place } = Arc::into_inner(self.0).expect("a fresh attachment");
        let table = Table::attach(wrap(table.into_memory())).expect("the table that it was");
        SharedLocks(Arc::new(Attachment { table, liveness, giving_back, place }))
    }
}

impl<M: SharedMemory> SharedLocks<M> {
    /// Opens a session, for one thread at a time.
    ///
    /// # Errors
    /// [`Error::Sessions`], [`Error::Damaged`], or a system that refuses.
    pub fn session(&self) -> Result<Session<M>, Error> {
        Session::open(&self.0)
    }

    /// The table itself.
    #[must_use]
    pub fn table(&self) -> &Table<M> {
        &self.0.table
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.0.place
    }

    /// Every session that was ever opened.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> {
        let table = &self.0.table;
        let numbers = (1..=table.layout().sessions).filter_map(SessionNumber::new);
        let status = |number| SessionStatus {
            number,
            epoch: table.epoch(number),
            process: table.process(number),
            touched: table.touched(number),
        };
        numbers.map(status).filter(|status| status.process != 0)
    }

    /// Whether a session's process lives.
    ///
    /// # Errors
    /// The system refuses.
    pub fn is_alive(&self, number: SessionNumber) -> Result<bool, Error> {
        self.0.liveness.is_alive(number).map_err(self.0.io("examine"))
    }

    /// Cleans up after all sessions whose processes have died, and answers how many there were that left something.
    /// Waiters do it by themselves where they wait.
    ///
    /// # Errors
    /// Damage; all other sessions were cleaned up nevertheless.
    pub fn clean_up(&self) -> Result<usize, Error> {
        let mut cleaned = 0;
        let mut first = Ok(());
        for status in self.sessions().filter(|status| status.touched > 0) {
            match self.clean_up_after(status.number) {
                Ok(was_dead) => cleaned += usize::from(was_dead),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.map(|()| cleaned)
    }

    /// Cleans up after one session if its process has died; whether it had, and left something.
    ///
    /// # Errors
    /// Damage; what else the session held was given back nevertheless.
    pub fn clean_up_after(&self, number: SessionNumber) -> Result<bool, Error> {
        self.0.clean_up_if_dead(number, None)
    }

    /// Gives back everything that a session holds in the life of this epoch ([`SessionStatus::epoch`]), for somebody
    /// whom the session's thread has told that it is at rest.
    ///
    /// # Errors
    /// Damage; all other lines were given back nevertheless.
    pub fn release_all_of(&self, number: SessionNumber, epoch: u64) -> Result<(), Error> {
        let _alone = self.0.giving_back.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.0.table.release_all_of(number, epoch, &mut |wake| self.0.wake(wake))?)
    }
}

impl<M: SharedMemory> Attachment<M> {
    pub(crate) fn io(&self, what: &'static str) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::io(what, &self.place, source)
    }

    /// Whether the session was dead; then it has been cleaned up after. Also in `line`, where it was seen.
    pub(crate) fn clean_up_if_dead(&self, number: SessionNumber, line: Option<u32>) -> Result<bool, Error> {
        let clean_up = || {
            let left = self.table.touched(number) > 0 || line.is_some();
            let listed = self.table.clean_up(number, &mut |wake| self.wake(wake));
            let seen = line.map_or(Ok(()), |line| self.table.remove(number, line, &mut |wake| self.wake(wake)));
            listed.and(seen).map(|()| left)
        };
        // Most live, and theirs is the common way.
        if self.liveness.is_alive(number).map_err(self.io("examine"))? {
            return Ok(false);
        }
        let _alone = self.giving_back.lock().unwrap_or_else(PoisonError::into_inner);
        let cleaned = self.liveness.if_dead(number, clean_up).map_err(self.io("examine"))?;
        Ok(cleaned.transpose().map_err(|damage| Error::Table(damage.into()))?.unwrap_or(false))
    }

    /// Wakes who may have a reason to look again.
    pub(crate) fn wake(&self, wake: Wake) {
        let memory = self.table.memory();
        match wake {
            Wake::Session(number) => {
                let event = self.table.event_word(number);
                // Whoever falls asleep sets the word and then looks at the line; the line was changed before this.
                memory.fence();
                if memory.load(event) == session::ASLEEP && memory.swap(event, session::ASLEEP, session::AWAKE).is_ok()
                {
                    lockwork_memory::shared::wake(memory.half(event), 1);
                }
            }
            Wake::Crowd => {
                let crowd = self.table.crowd_word();
                memory.fence();
                while let count = memory.load(crowd)
                    && memory.swap(crowd, count, count.wrapping_add(1)).is_err()
                {}
                lockwork_memory::shared::wake(memory.half(crowd), u32::MAX);
            }
        }
    }
}
