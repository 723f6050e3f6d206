//! A transaction in flight at its worker, and where it stands.
//!
//! ```text
//! keys known from the arguments:       Locking -> Fetch -> Fetching -> Run -> Applying
//! else: Fetch -> Fetching -> Run ...-> Locking   (without locks, until nothing is lacking: reconnaissance)
//! ```
//!
//! Locks are taken in ascending order, so nobody waits in a circle. If the attempt under locks touches what they do not
//! cover, because rows have changed since reconnaissance, what is lacking is locked too. That is out of order, so it is
//! waited for only for a while: then all locks are released, and taken in order again, those that were lacking too.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockwork_engine::registry::Registered;
use lockwork_locking::LockMode;
use lockwork_locking::service::LockService;
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation};
use lockwork_procedure::block::HEADER_BYTES;

use crate::access::Access;
use crate::layout::{Layout, Wanted, in_order};

/// How long a lock is waited for that comes out of order: some round trips to a busy service.
const PATIENCE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Locking,
    Fetch,
    Fetching,
    Run,
    Applying,
}

/// See the module.
pub(crate) struct Transaction<S: LockService> {
    /// Its place in the batch, and its sequence number.
    pub(crate) index: u32,
    pub(crate) sequence: u64,
    pub(crate) registered: Arc<Registered>,
    block: Vec<u64>,
    pub(crate) accesses: Vec<Access>,
    /// The locks that it holds or is going to, those granted so far, and how many of them are in ascending order.
    locks: Vec<Wanted>,
    guards: Vec<S::Guard>,
    ascending: usize,
    request: Option<S::Request>,
    pub(crate) locked: bool,
    pub(crate) stage: Stage,
    /// Answers of other workers that are still to come.
    pub(crate) outstanding: usize,
    pub(crate) conflicts: u32,
}

/// Appends the accesses that a call makes by its arguments; `false`: the database has to be asked too.
pub(crate) fn known_accesses(registered: &Registered, block: &[u8], out: &mut Vec<KeyAccess>) -> bool {
    match &registered.access {
        AccessSet::Straight(straight) => straight.collect(&registered.verified, block, out),
        AccessSet::Sliced(slice) => slice.collect(block, out),
        AccessSet::Dependent(_) => return false,
    }
    out.iter().all(|access| access.operation != Operation::Scan)
}

impl<S: LockService> Transaction<S> {
    /// A call with these arguments.
    pub(crate) fn new(index: u32, sequence: u64, registered: Arc<Registered>, arguments: &[u8]) -> Self {
        let mut transaction = Self {
            block: vec![0; registered.block_bytes.max(HEADER_BYTES as usize).div_ceil(8)],
            registered,
            index,
            sequence,
            accesses: Vec::new(),
            locks: Vec::new(),
            guards: Vec::new(),
            ascending: 0,
            request: None,
            locked: false,
            stage: Stage::Fetch,
            outstanding: 0,
            conflicts: 0,
        };
        transaction.bytes_mut()[HEADER_BYTES as usize..][..arguments.len()].copy_from_slice(arguments);
        transaction
    }

    pub(crate) fn block(&mut self) -> *mut u8 {
        self.block.as_mut_ptr().cast()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: initialised words are eight initialised bytes each.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr().cast(), self.block.len() * 8) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and all bytes are good in words.
        unsafe { std::slice::from_raw_parts_mut(self.block.as_mut_ptr().cast(), self.block.len() * 8) }
    }

    /// Begins: with locks if all accesses are known, else by looking.
    pub(crate) fn begin(&mut self, layout: &Layout) {
        let mut known = Vec::new();
        let all = known_accesses(&self.registered, self.bytes(), &mut known);
        for access in known.iter().filter(|access| access.operation != Operation::Scan) {
            let table = self.registered.table_id(access.slot);
            let write = access.operation.writes();
            match self.accesses.iter_mut().find(|a| a.table == table && a.key == access.key) {
                Some(same) => same.write |= write,
                None => self.accesses.push(Access::row(table, access.key, write)),
            }
        }
        if all {
            self.lock(layout);
        }
    }

    /// Wants all locks that its accesses need, and what they cover anew.
    pub(crate) fn lock(&mut self, layout: &Layout) {
        self.unlock();
        self.locks = self.needed(layout);
        self.ascending = self.locks.len();
        self.accesses.iter_mut().for_each(|access| access.fetched = false);
        self.locked = true;
        self.stage = Stage::Locking;
    }

    /// Wants the locks that are lacking beside those that it holds: `false`, and nothing has changed, if that is not
    /// possible, because a shared one would have to become exclusive, or nobody knows yet how far a range goes.
    pub(crate) fn extend(&mut self, layout: &Layout) -> bool {
        if self.accesses.iter().any(|access| access.scan.is_some() && !access.fetched) {
            return false;
        }
        let needed = self.needed(layout);
        let (more, weak): (Vec<_>, Vec<_>) =
            needed.into_iter().filter(|lock| !self.covers(*lock)).partition(|lock| self.held(lock.0).is_none());
        if !weak.is_empty() {
            return false;
        }
        self.locks.extend(more);
        self.stage = Stage::Locking;
        true
    }

    /// Whether a lock is held, and exclusively.
    fn held(&self, lock: u64) -> Option<bool> {
        let (ascending, more) = self.locks.split_at(self.ascending);
        let at = ascending.binary_search_by_key(&lock, |held| held.0);
        at.map(|at| ascending[at].1).ok().or_else(|| more.iter().find(|held| held.0 == lock).map(|held| held.1))
    }

    fn covers(&self, (lock, exclusive): Wanted) -> bool {
        self.held(lock).is_some_and(|held| held || !exclusive)
    }

    /// Whether the locks that it holds are all that its accesses need.
    pub(crate) fn is_covered(&self, layout: &Layout) -> bool {
        self.needed(layout).into_iter().all(|lock| self.covers(lock))
    }

    /// The locks that its accesses need, in order.
    fn needed(&self, layout: &Layout) -> Vec<Wanted> {
        let mut needed = Vec::new();
        self.accesses.iter().for_each(|access| access.locks(layout, &mut needed));
        in_order(&mut needed);
        needed
    }

    /// Releases everything.
    pub(crate) fn unlock(&mut self) {
        self.request = None;
        self.guards.clear();
        self.locked = false;
    }

    /// Takes the next locks; `true`: all are held.
    ///
    /// # Errors
    /// What the service says.
    pub(crate) fn take_locks(&mut self, service: &S, waker: &Waker) -> Result<bool, S::Error> {
        let mut context = Context::from_waker(waker);
        while let Some(&(lock, exclusive)) = self.locks.get(self.guards.len()) {
            let request = self.request.get_or_insert_with(|| {
                let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
                let timeout = (self.guards.len() >= self.ascending).then_some(PATIENCE);
                service.request(lock, mode, timeout)
            });
            match Pin::new(request).poll(&mut context) {
                Poll::Pending => return Ok(false),
                Poll::Ready(granted) => {
                    self.request = None;
                    self.guards.push(granted?);
                }
            }
        }
        Ok(true)
    }

    /// Whether a lock was lost: the process was stopped for longer than a lease, or the service not reached.
    pub(crate) fn has_lost(&self) -> bool {
        self.guards.iter().any(S::is_lost)
    }
}
