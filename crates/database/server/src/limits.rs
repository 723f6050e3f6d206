//! What bounds a query: its time, its client's request to cancel it, and its memory.
//!
//! A query runs on one thread. [`Limits::enter`] makes its limits known to all that runs there: SQLite's progress
//! handler and allocator ([`crate::sqlite`]), and functions. A function calls [`spend`] before work that grows with its
//! input, and [`reserve`] before it allocates for it. Without limits, as when the catalog is filled, both do nothing.
//!
//! Memory comes from a [`Room`] that all queries share. A little is each query's own, so that a query that takes much
//! refuses no small one; one query gets a part of the room only, and so does one user.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pgwire::messages::data::DataRow;
use rusqlite::Error;

use crate::cancel::Cancel;
use crate::error::{Refusal, refuse};

/// Bytes of all queries together, beside [`OWN`] of each and the rows of their tables.
pub(crate) const ALL: usize = 384 << 20;
/// Bytes of one query.
pub(crate) const ONE: usize = 256 << 20;
/// Bytes of a query that no other one can take.
const OWN: usize = 4 << 20;
/// Bytes of a room that one user cannot take.
const OF_OTHERS: usize = 64 << 20;
/// Bytes of an answer that waits for its client which come from no room.
const OWN_ANSWER: usize = 256 << 10;
/// Bytes that are taken from a room at once.
const STEP: usize = 1 << 20;
/// Work between two looks at the clock: bytes that are read or written, about.
const CLOCK_CHECK_BYTES: usize = 256 << 10;

/// Bytes that many share.
pub(crate) struct Room {
    bytes: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    all: usize,
    by_user: HashMap<String, usize>,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, used: Mutex::default() })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a room, which has them back when this is dropped.
pub(crate) struct Taken {
    room: Arc<Room>,
    user: String,
    bytes: usize,
}

impl Taken {
    /// Takes more, unless there is not so much.
    fn grow(&mut self, bytes: usize) -> bool {
        let mut used = self.room.used();
        let of_user = used.by_user.get(&self.user).copied().unwrap_or(0);
        let most_of_user = self.room.bytes.saturating_sub(OF_OTHERS);
        if used.all.saturating_add(bytes) > self.room.bytes || of_user.saturating_add(bytes) > most_of_user {
            return false;
        }
        used.all += bytes;
        *used.by_user.entry(self.user.clone()).or_default() += bytes;
        self.bytes += bytes;
        true
    }
}

impl Taken {
    /// Gives back what is more than so many bytes.
    fn shrink(&mut self, bytes: usize) {
        let more = self.bytes.saturating_sub(bytes);
        self.bytes -= more;
        let mut used = self.room.used();
        used.all -= more;
        let left = used.by_user.get_mut(&self.user).map_or(0, |of_user| {
            *of_user -= more;
            *of_user
        });
        if left == 0 {
            used.by_user.remove(&self.user);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// The memory of a row of an answer.
pub(crate) fn size_of_row(row: &DataRow) -> usize {
    row.data.capacity() + size_of::<DataRow>()
}

/// The rows of an answer, and the memory that they have until the client has taken them.
pub(crate) struct Answer {
    pub(crate) rows: Vec<DataRow>,
    pub(crate) held: Option<Taken>,
}

/// The limits of one query.
pub(crate) struct Limits {
    /// What it is called in messages.
    what: &'static str,
    time: Duration,
    until: Instant,
    cancel: Arc<Cancel>,
    bytes: AtomicUsize,
    taken: Mutex<Taken>,
    /// Bytes of `taken`, to be read without its lock.
    room: AtomicUsize,
    work: AtomicUsize,
    /// Whether memory has been refused: because this query has its part, or because all others have theirs.
    is_full: AtomicBool,
    is_room_full: AtomicBool,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Limits>>> = const { RefCell::new(None) };
}

/// Puts back what was there before, also when the query panics.
struct Entered(Option<Arc<Limits>>);

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.0.take();
        CURRENT.with(|current| *current.borrow_mut() = before);
    }
}

impl Limits {
    /// The limits of a query that begins now.
    pub(crate) fn new(
        what: &'static str,
        time: Duration,
        user: &str,
        room: &Arc<Room>,
        cancel: &Arc<Cancel>,
    ) -> Arc<Self> {
        Arc::new(Self {
            what,
            time,
            until: Instant::now() + time,
            cancel: cancel.clone(),
            bytes: AtomicUsize::new(0),
            taken: Mutex::new(Taken { room: room.clone(), user: user.into(), bytes: 0 }),
            room: AtomicUsize::new(0),
            work: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            is_room_full: AtomicBool::new(false),
        })
    }

    /// Runs a part of the query, in this thread.
    pub(crate) fn enter<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        let _entered = Entered(CURRENT.with(|current| current.borrow_mut().replace(self.clone())));
        run()
    }

    /// Leaves of the memory of a query what its answer needs. A small answer needs none of the room.
    ///
    /// # Errors
    /// The room has not so much left.
    pub(crate) fn hand_over(&self, rows: Vec<DataRow>) -> Result<Answer, Refusal> {
        let bytes: usize = rows.iter().map(size_of_row).sum();
        if bytes <= OWN_ANSWER {
            return Ok(Answer { rows, held: None });
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = bytes.saturating_sub(taken.bytes);
        if !taken.grow(missing) {
            self.is_room_full.store(true, Relaxed);
            return Err(self.too_large());
        }
        let mut held = Taken { room: taken.room.clone(), user: taken.user.clone(), bytes: 0 };
        std::mem::swap(&mut *taken, &mut held);
        held.shrink(bytes);
        self.room.store(0, Relaxed);
        Ok(Answer { rows, held: Some(held) })
    }

    fn is_over(&self) -> bool {
        self.cancel.is_asked() || Instant::now() > self.until
    }

    /// Counts bytes; they are not, and false is returned, when they are too many.
    fn charge(&self, bytes: usize) -> bool {
        let now = self.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let needed = now.saturating_sub(OWN);
        if needed <= self.room.load(Relaxed) {
            return true;
        }
        let is_within = now <= ONE && {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let missing = needed.saturating_sub(taken.bytes).next_multiple_of(STEP);
            let is_taken = taken.grow(missing);
            self.room.store(taken.bytes, Relaxed);
            self.is_room_full.fetch_or(!is_taken, Relaxed);
            is_taken
        };
        if !is_within {
            self.free(bytes);
            self.is_full.store(true, Relaxed);
        }
        is_within
    }

    /// Bytes are there again. SQLite may free what it had allocated before the query, which was not counted.
    fn free(&self, bytes: usize) {
        _ = self.bytes.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(bytes)));
    }

    /// The refusal of a query that ran for too long.
    pub(crate) fn too_long(&self) -> Refusal {
        let message = format!("{} ran for more than {} s", self.what, self.time.as_secs());
        self.cancel.explain(refuse("57014", message).hint("ask for less"))
    }

    /// The refusal of a query that needs too much memory.
    pub(crate) fn too_large(&self) -> Refusal {
        let message = if self.is_room_full.load(Relaxed) {
            format!("the queries of all clients fill the {} MiB of memory that they have", ALL >> 20)
        } else {
            format!("{} needs more than the {} MiB of memory that it may have", self.what, ONE >> 20)
        };
        refuse("53200", message).hint("ask for less")
    }

    /// The refusal of a query that ended because of its limits; nothing if it ended for another reason.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        if self.is_full.load(Relaxed) {
            return Some(self.too_large());
        }
        self.is_over().then(|| self.too_long())
    }

    /// Counts memory that the query can do without; nothing if there is none.
    pub(crate) fn reserve_spare(self: &Arc<Self>, bytes: usize) -> Option<Reserved> {
        let before = (self.is_full.load(Relaxed), self.is_room_full.load(Relaxed));
        let reserved = self.reserve(bytes).ok();
        if reserved.is_none() {
            self.is_full.store(before.0, Relaxed);
            self.is_room_full.store(before.1, Relaxed);
        }
        reserved
    }

    /// # Errors
    /// There is no memory for so many bytes.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reserved, Refusal> {
        match self.charge(bytes) {
            true => Ok(Reserved { limits: Some(self.clone()), bytes }),
            false => Err(self.too_large()),
        }
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    limits: Option<Arc<Limits>>,
    bytes: usize,
}

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limits").field("what", &self.what).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(limits) = &self.limits {
            limits.free(self.bytes);
        }
    }
}

/// The limits of the query that runs in this thread.
pub(crate) fn current() -> Option<Arc<Limits>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// An error as functions of SQLite return it: with its SQLSTATE in front.
fn raised(refusal: &Refusal) -> Error {
    Error::UserFunctionError(format!("{}: {}", refusal.sqlstate, refusal.message).into())
}

/// Whether the query that runs in this thread is to end.
pub(crate) fn is_over() -> bool {
    CURRENT.try_with(|current| current.borrow().as_ref().is_some_and(|limits| limits.is_over())).unwrap_or(false)
}

/// Announces work that is about to be done: bytes that are read or written, or as much.
///
/// # Errors
/// The query has run for too long, or was cancelled.
pub(crate) fn spend(work: usize) -> Result<(), Error> {
    let Some(limits) = current() else { return Ok(()) };
    if limits.work.fetch_add(work, Relaxed).saturating_add(work) < CLOCK_CHECK_BYTES {
        return Ok(());
    }
    limits.work.store(0, Relaxed);
    if limits.is_over() { Err(raised(&limits.too_long())) } else { Ok(()) }
}

/// Counts memory that is about to be allocated, until the result is dropped.
///
/// # Errors
/// There is none for so many bytes.
pub(crate) fn reserve(bytes: usize) -> Result<Reserved, Error> {
    match current() {
        Some(limits) => limits.reserve(bytes).map_err(|refusal| raised(&refusal)),
        None => Ok(Reserved { limits: None, bytes: 0 }),
    }
}

/// Counts memory of an answer, until the query ends.
///
/// # Errors
/// There is none for so many bytes.
pub(crate) fn keep(bytes: usize) -> Result<(), Refusal> {
    let Some(limits) = current() else { return Ok(()) };
    if limits.charge(bytes) { Ok(()) } else { Err(limits.too_large()) }
}

/// Counts an allocation of SQLite; false if it cannot be made. A large one is also a look at the clock, because
/// operators that make large values run for long.
pub(crate) fn allocate(bytes: usize) -> bool {
    let allocate = |limits: &Arc<Limits>| (bytes < CLOCK_CHECK_BYTES || !limits.is_over()) && limits.charge(bytes);
    CURRENT.try_with(|current| current.borrow().as_ref().is_none_or(allocate)).unwrap_or(true)
}

/// Counts no longer what SQLite frees.
pub(crate) fn free(bytes: usize) {
    _ = CURRENT.try_with(|current| current.borrow().as_ref().map(|limits| limits.free(bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(room: &Arc<Room>, user: &str) -> Arc<Limits> {
        Limits::new("the query", Duration::from_secs(600), user, room, &Arc::default())
    }

    #[test]
    fn a_query_and_a_user_get_a_part_of_the_room() {
        let room = Room::new(ALL);
        let one = limits(&room, "ann");
        let held = one.reserve(ONE).unwrap();
        let refusal = one.reserve(1).map(drop).unwrap_err();
        assert_eq!(
            (&*refusal.sqlstate, &*refusal.message),
            ("53200", "the query needs more than the 256 MiB of memory that it may have")
        );
        // Another query of the same user gets what is left of the user's part, and what is its own.
        let two = limits(&room, "ann");
        let left = ALL - OF_OTHERS - (ONE - OWN);
        let more = two.reserve(left + OWN).unwrap();
        let refusal = two.reserve(1).map(drop).unwrap_err();
        assert!(refusal.message.contains("384 MiB"), "{refusal}");
        let other = limits(&room, "bob");
        let of_other = other.reserve(OF_OTHERS + OWN).unwrap();
        let refusal = other.reserve(1).map(drop).unwrap_err();
        assert!(refusal.sqlstate == "53200" && refusal.message.contains("384 MiB"), "{refusal}");
        drop(limits(&room, "eve").reserve(OWN).unwrap());
        drop((held, more, of_other, one, two, other));
        assert!(room.used().all == 0 && room.used().by_user.is_empty());
    }

    #[test]
    fn what_is_over_ends_at_its_next_work() {
        let room = Room::new(ALL);
        let limits = Limits::new("the query", Duration::ZERO, "ann", &room, &Arc::default());
        limits.enter(|| {
            while !is_over() {
                std::thread::yield_now();
            }
            assert!(spend(1).is_ok());
            let error = spend(CLOCK_CHECK_BYTES).unwrap_err().to_string();
            assert!(error.contains("57014: the query ran for more than 0 s"), "{error}");
            assert!(!allocate(CLOCK_CHECK_BYTES) && allocate(1));
        });
        assert!(!is_over() && spend(CLOCK_CHECK_BYTES).is_ok());
    }
}
