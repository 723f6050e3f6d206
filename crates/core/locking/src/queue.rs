//! The queue lock manager: an ordered list of requests per record, as in Calvin and HOBBES (section 3.2.1).
//!
//! The scheduler locks whole transactions in input order. [`QueueLocks::lock`] appends every request of an access set
//! to the queue of its record in one step, so all queues agree on the order of any two transactions, which makes the
//! outcome deterministic and deadlock impossible. The front of a queue and its compatible neighbours are granted
//! together; a transaction runs when all its requests are granted. [`QueueLocks::release`] takes its requests out and
//! tells who became ready.
//!
//! ```text
//! record 7:  [s1 granted] [s2 granted] | [x3 waits] [s4 waits] [s5 waits]
//!            release 1, release 2  ->  3 is ready;  release 3  ->  4 and 5 are ready together
//! ```
//!
//! # Invariants
//!
//! - The granted requests of a queue are a prefix of it, all of one mode, and of length one if that is exclusive.
//! - The first waiting request is incompatible with the granted ones (a queue with requests has granted ones).
//! - An owner has at most one request per record: a set that names a record twice gets the join of the modes.
//! - `waiting` of an owner counts its requests that are not granted; it is ready when that is zero.
//!
//! # Cost, and what it is for
//!
//! Requests are nodes of one slab, linked by 32-bit indices to their neighbours in the queue and to their owner's next
//! request. Nothing is allocated for a request once the slab has reached the largest number of requests in flight.
//! Everything a request needs is constant work, but spread over three places (record, node, owner), each a cache miss
//! when many transactions are in flight. HOBBES found half of its run time here and replaced it by [`crate::batch`]; it
//! is kept because it grants a lock the moment it is free and takes transactions one at a time. Single-threaded: the
//! scheduler owns it.

mod table;

use crate::{LockMode, Owner, Request, compatible};
use lockwork_memory::OutOfMemory;
use table::{HashTable, Record, Table};

/// Node index "none", and owner state "holds nothing".
const NONE: u32 = 0;
/// End of an owner's list of requests; an owner with an empty set begins with it.
const END: u32 = u32::MAX;

/// Why a call was refused. Nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// A dense manager has no such record.
    #[error("lock {id} does not exist: there are {records} records (0 to {records} - 1)")]
    UnknownLock {
        /// The name that was asked for.
        id: u64,
        /// How many records there are.
        records: u64,
    },
    /// Two access sets for one owner.
    #[error("owner {owner} already has requests: release them before it locks again, or use another owner number")]
    OwnerBusy {
        /// Which owner.
        owner: u32,
    },
    /// A release without a lock.
    #[error("owner {owner} has no requests to release: it never locked, or it was released before")]
    NothingHeld {
        /// Which owner.
        owner: u32,
    },
    /// More than 2^32 - 2 requests at once.
    #[error("{requests} more requests do not fit: at most {} can be in flight", u32::MAX - 1)]
    TooManyRequests {
        /// How many were asked for.
        requests: usize,
    },
    /// No memory for the record table.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// A request in the queue of its record and in the list of its owner.
#[derive(Clone, Copy, Debug)]
struct Node {
    id: u64,
    /// Towards the tail; also links free nodes.
    next: u32,
    /// Towards the head.
    previous: u32,
    /// The owner's next request, or [`END`].
    sibling: u32,
    owner: u32,
    mode: LockMode,
    granted: bool,
}

/// What is known about an owner.
#[derive(Clone, Copy, Debug)]
struct OwnerState {
    /// Its first request, [`END`] if its set is empty, [`NONE`] if it has no set.
    first: u32,
    /// Its requests that are not granted.
    waiting: u32,
}

const IDLE: OwnerState = OwnerState { first: NONE, waiting: 0 };

/// Queues of all records, requests in flight and their owners.
#[derive(Debug)]
pub struct QueueLocks {
    table: Table,
    nodes: Vec<Node>,
    free: u32,
    owners: Vec<OwnerState>,
}

impl QueueLocks {
    /// Locks named `0..records`, found without hashing, 16 bytes each.
    ///
    /// # Errors
    /// [`QueueError::OutOfMemory`].
    pub fn dense(records: u32) -> Result<Self, QueueError> {
        Ok(Self::over(Table::dense(records)?))
    }

    /// Locks with any names. Memory is for `capacity` locks that somebody holds or waits for; it grows if there are
    /// more.
    #[must_use]
    pub fn hashed(capacity: u32) -> Self {
        Self::over(Table::Hashed(HashTable::new(capacity)))
    }

    fn over(table: Table) -> Self {
        // Node 0 is never used: its index means "none".
        let nobody =
            Node { id: 0, next: NONE, previous: NONE, sibling: END, owner: 0, mode: LockMode::Shared, granted: false };
        Self { table, nodes: vec![nobody], free: NONE, owners: Vec::new() }
    }

    /// Appends all `requests` of `owner` to their queues in one step; whether all were granted. If not, a later
    /// [`release`](Self::release) of others names the owner when the last one is.
    ///
    /// Owner numbers index a table that grows to the largest one, so they should be small.
    ///
    /// # Errors
    /// [`QueueError::OwnerBusy`], [`QueueError::UnknownLock`] (dense only), [`QueueError::TooManyRequests`].
    pub fn lock(&mut self, owner: Owner, requests: &[Request]) -> Result<bool, QueueError> {
        self.check(owner, requests)?;
        if self.owners.len() <= owner.0 as usize {
            self.owners.resize(owner.0 as usize + 1, IDLE);
        }
        let mut state = OwnerState { first: END, waiting: 0 };
        for request in requests {
            self.append(owner.0, *request, &mut state);
        }
        self.owners[owner.0 as usize] = state;
        Ok(state.waiting == 0)
    }

    /// Takes all requests of `owner` out of their queues, granted or not, and calls `ready` for every other owner whose
    /// last missing request was granted by that: the last record of the set first, and within a record in queue order.
    ///
    /// # Errors
    /// [`QueueError::NothingHeld`].
    pub fn release(&mut self, owner: Owner, mut ready: impl FnMut(Owner)) -> Result<(), QueueError> {
        let state = self.owners.get(owner.0 as usize).copied().unwrap_or(IDLE);
        if state.first == NONE {
            return Err(QueueError::NothingHeld { owner: owner.0 });
        }
        self.owners[owner.0 as usize] = IDLE;
        let mut at = state.first;
        while at != END {
            let sibling = self.nodes[at as usize].sibling;
            self.withdraw(at, &mut ready);
            at = sibling;
        }
        Ok(())
    }

    /// Whether all requests of `owner` are granted; `None` if it has no access set.
    #[must_use]
    pub fn is_ready(&self, owner: Owner) -> Option<bool> {
        let state = self.owners.get(owner.0 as usize)?;
        (state.first != NONE).then_some(state.waiting == 0)
    }

    /// Brings the records of an access set into the caches, for a scheduler that knows what it will lock soon.
    #[inline]
    pub fn prefetch(&self, requests: &[Request]) {
        for request in requests {
            self.table.prefetch(request.id.0);
        }
    }

    fn check(&self, owner: Owner, requests: &[Request]) -> Result<(), QueueError> {
        if self.is_ready(owner).is_some() {
            return Err(QueueError::OwnerBusy { owner: owner.0 });
        }
        if let Some(records) = self.table.limit()
            && let Some(request) = requests.iter().find(|request| request.id.0 >= records)
        {
            return Err(QueueError::UnknownLock { id: request.id.0, records });
        }
        if requests.len() >= END as usize - self.nodes.len() {
            return Err(QueueError::TooManyRequests { requests: requests.len() });
        }
        Ok(())
    }

    #[inline]
    fn append(&mut self, owner: u32, request: Request, state: &mut OwnerState) {
        let Self { table, nodes, free, .. } = self;
        let record = table.enter(request.id.0);
        let tail = record.tail;
        if tail != NONE && nodes[tail as usize].owner == owner {
            strengthen(record, &mut nodes[tail as usize], request.mode, state);
            return;
        }
        let granted =
            record.head == NONE || record.waiting == NONE && compatible(nodes[record.head as usize].mode, request.mode);
        let at = allocate(
            nodes,
            free,
            Node {
                id: request.id.0,
                next: NONE,
                previous: tail,
                sibling: state.first,
                owner,
                mode: request.mode,
                granted,
            },
        );
        match tail {
            NONE => record.head = at,
            tail => nodes[tail as usize].next = at,
        }
        record.tail = at;
        record.granted += u32::from(granted);
        if !granted && record.waiting == NONE {
            record.waiting = at;
        }
        state.first = at;
        state.waiting += u32::from(!granted);
    }

    /// Unlinks one node, frees it and grants what it was in the way of.
    #[inline]
    fn withdraw(&mut self, at: u32, ready: &mut impl FnMut(Owner)) {
        let node = self.nodes[at as usize];
        let record = self.table.get(node.id);
        match node.previous {
            NONE => record.head = node.next,
            previous => self.nodes[previous as usize].next = node.next,
        }
        match node.next {
            NONE => record.tail = node.previous,
            next => self.nodes[next as usize].previous = node.previous,
        }
        record.granted -= u32::from(node.granted);
        if record.waiting == at {
            record.waiting = node.next;
        }
        self.nodes[at as usize].next = self.free;
        self.free = at;
        if record.head == NONE {
            self.table.leave(node.id);
            return;
        }
        // Grant from the first waiting request on, as long as it goes with the head.
        let mode = self.nodes[record.head as usize].mode;
        while record.waiting != NONE {
            let waiting = &mut self.nodes[record.waiting as usize];
            if record.granted > 0 && !compatible(mode, waiting.mode) {
                break;
            }
            waiting.granted = true;
            record.granted += 1;
            record.waiting = waiting.next;
            let owner = &mut self.owners[waiting.owner as usize];
            owner.waiting -= 1;
            if owner.waiting == 0 {
                ready(Owner(waiting.owner));
            }
        }
    }
}

/// A second request of one set for one record. Its node is the tail, because a set is appended in one step.
fn strengthen(record: &mut Record, node: &mut Node, mode: LockMode, state: &mut OwnerState) {
    let stronger = node.mode.join(mode);
    if node.granted && record.granted > 1 && stronger != node.mode {
        // It was granted beside others, who exclude the stronger mode: it waits for them.
        node.granted = false;
        record.granted -= 1;
        record.waiting = record.tail;
        state.waiting += 1;
    }
    node.mode = stronger;
}

/// Puts `node` into the slab; its index.
#[inline]
fn allocate(nodes: &mut Vec<Node>, free: &mut u32, node: Node) -> u32 {
    if *free == NONE {
        nodes.push(node);
        return (nodes.len() - 1) as u32;
    }
    let at = *free;
    *free = nodes[at as usize].next;
    nodes[at as usize] = node;
    at
}

#[cfg(test)]
mod tests;
