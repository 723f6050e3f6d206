//! The batch lock manager: one decision word per record, no participants.
//!
//! HOBBES (section 3.3.3, Algorithm 1) saw that a batch which runs in isolation needs no lists of holders and waiters:
//! whoever is in the batch holds its locks, and the end of the batch releases all of them. Two bits per record decide.
//! What that algorithm leaves open is mended here:
//!
//! | hole in Algorithm 1 | here |
//! |---|---|
//! | one key per transaction | access sets; all or nothing |
//! | what conflicts goes to the *back* of the queue: order is lost, a writer on a popular key starves | what conflicts is **deferred**: it stays in front of the next batch and *reserves* its records, so that nobody overtakes it where it matters |
//! | the loop never ends when all that is left conflicts | a batch closes when its deferred queue is full or the stream ends; the first transaction of a batch is always granted |
//! | bitmaps are cleared for every batch | words carry the epoch of their batch; the next epoch is one addition |
//! | one writer of a popular key per batch | operations of one record form a **chain**: they are in one batch, and one worker runs them in input order |
//!
//! # What a batch is
//!
//! Every granted transaction belongs to exactly one chain, named by the position of its first member. A transaction
//! that conflicts with nothing starts a chain. One that conflicts with members of one chain only is appended to that
//! chain, whatever else it touches. One that conflicts with two chains, with several independent readers, or with the
//! reservation of a deferred transaction, is deferred.
//!
//! ```text
//! input    1: w a     2: r b    3: r b    4: w a,c    5: w b     6: r c    7: r b
//! batch 1  chain of 1: 1 -> 4 -> 6       chain of 2: 2          chain of 3: 3
//!          5 conflicts with two readers of b: deferred, reserves b, makes b hot.  7 reads b after 5: deferred
//! batch 2  chain of 5: 5 -> 7
//! ```
//!
//! # Invariants
//!
//! 1. For every record, conflicting transactions take effect in input order: the earlier is in an earlier batch, or in
//!    front in the same chain. Proof: let i < j conflict on a record, and look at the batch in which j is granted. If i
//!    was not granted before, it stood in front of j in this batch's input and was deferred, so it had reserved the
//!    record and j is deferred, a contradiction. If i was granted in this batch, the word showed j a conflict, and j
//!    was granted only because all its conflicts lie in one chain, that of i, to whose end it was appended.
//! 2. Two transactions of one batch in different chains never conflict, so chains run in any order or in parallel.
//! 3. Progress: the first transaction of a batch meets only words of older epochs and is granted. The deferred queue is
//!    first in, first out, so a transaction with n others in front of it is granted after at most n + 1 batches.
//!
//! # Hot records
//!
//! Independent readers run in parallel, but a writer behind them must wait for a batch of its own. If that happens, the
//! record gets hot: in the next batches its readers are chained together with its writers, and nobody is deferred.
//! Three batches without a writer make it cold again.
//!
//! # Trade-offs
//!
//! A chain is serial, also where its members do not conflict pairwise (readers of a hot record between two writers;
//! transactions with many keys that chain through different records). A batch of long transactions over few hot records
//! can turn into one chain and many deferrals; a planner with per-record links does better there. The manager is
//! single-threaded: the caller owns it, and partitions records if one core's rate is not enough.

mod word;

use crate::LockMode;
use lockwork_memory::{Buffer, OutOfMemory, Pages, prefetch};
use std::ops::Range;
use word::State;

pub use word::CHAIN_LIMIT;

/// "No position": the end of a chain.
pub const NO_POSITION: u32 = u32::MAX;

/// One record that a transaction touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Access {
    /// Dense number of the record, below the manager's number of records.
    pub record: u32,
    /// How it is touched.
    pub mode: LockMode,
}

/// The access sets of a stream of transactions, by transaction number.
///
/// Numbers mean what the caller wants them to mean (an index into a batch of blocks, a position modulo a ring), as long
/// as the set of a transaction stays the same until it is granted. A record may be named more than once in a set.
pub trait AccessSets {
    /// What transaction `transaction` touches.
    fn accesses(&self, transaction: u32) -> &[Access];
}

/// Access sets in flat form: the set of transaction `t` is `accesses[offsets[t]..offsets[t + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct FlatSets<'a> {
    offsets: &'a [u32],
    accesses: &'a [Access],
}

impl<'a> FlatSets<'a> {
    /// Views `offsets` (one more than there are transactions, ascending, the last at most `accesses.len()`).
    ///
    /// # Errors
    /// [`BatchError::Offsets`] at the first offset that breaks this.
    pub fn new(offsets: &'a [u32], accesses: &'a [Access]) -> Result<Self, BatchError> {
        let length = accesses.len();
        let mut least = 0;
        for (index, &offset) in offsets.iter().enumerate() {
            if offset < least || offset as usize > length {
                return Err(BatchError::Offsets { index, offset, least, length });
            }
            least = offset;
        }
        Ok(Self { offsets, accesses })
    }

    /// Number of transactions.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.offsets.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Whether there is no transaction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AccessSets for FlatSets<'_> {
    #[inline(always)]
    fn accesses(&self, transaction: u32) -> &[Access] {
        let at = transaction as usize;
        &self.accesses[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}

/// Access sets of one record each: the fast path of key-value workloads.
#[derive(Clone, Copy, Debug)]
pub struct SingleSets<'a>(pub &'a [Access]);

impl AccessSets for SingleSets<'_> {
    #[inline(always)]
    fn accesses(&self, transaction: u32) -> &[Access] {
        std::array::from_ref(&self.0[transaction as usize])
    }
}

/// The sizes of a [`BatchLocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// Records that can be locked: numbers `0..records`. Each costs 8 bytes.
    pub records: u32,
    /// Most transactions in one batch, `1..=CHAIN_LIMIT`.
    pub capacity: u32,
    /// Most transactions that may be deferred, at least 1; more than [`CHAIN_LIMIT`] counts as that. When so many are,
    /// the batch closes.
    pub deferred_limit: u32,
}

impl BatchConfig {
    /// `records` records, batches of `capacity`, a deferred queue of an eighth of a batch.
    #[must_use]
    pub const fn new(records: u32, capacity: u32) -> Self {
        Self { records, capacity, deferred_limit: if capacity < 8 { 1 } else { capacity / 8 } }
    }
}

/// Why a batch manager could not be made or could not go on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchError {
    /// A batch must hold between one and [`CHAIN_LIMIT`] transactions.
    #[error("a batch of {capacity} transactions is not possible: give a capacity from 1 to {CHAIN_LIMIT}")]
    Capacity {
        /// What was asked for.
        capacity: u32,
    },
    /// Without room for one deferred transaction no batch could take a conflict.
    #[error("the deferred queue needs room for at least one transaction: give deferred_limit 1 or more")]
    NoDeferredQueue,
    /// No memory for the decision words.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A transaction names a record that does not exist. It was not taken from the stream.
    #[error("transaction {transaction} names record {record}, but there are {records} records (0 to {records} - 1)")]
    UnknownRecord {
        /// The transaction's number.
        transaction: u32,
        /// The record that it names.
        record: u32,
        /// How many records there are.
        records: u32,
    },
    /// The offsets of flat access sets do not ascend within the accesses.
    #[error("offset {index} of the access sets is {offset}: it must be between {least} and the {length} accesses")]
    Offsets {
        /// Which offset.
        index: usize,
        /// Its value.
        offset: u32,
        /// The offset in front of it.
        least: u32,
        /// How many accesses there are.
        length: usize,
    },
}

/// One granted transaction of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Grant {
    /// The transaction's number in the stream.
    pub transaction: u32,
    /// Position of the first member of its chain; its own position if it is the first.
    pub chain: u32,
    /// Position of the next member of its chain, or [`NO_POSITION`].
    pub next: u32,
    /// Position of the last member of the chain, kept at the first member only.
    tail: u32,
}

/// How a granted transaction stands to the others of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It conflicts with no other transaction of the batch.
    Free,
    /// It is a member of the chain with this name, which one worker runs in order.
    Chained(u32),
}

/// A batch: who is granted, and which of them one worker must run in order. Positions count grants from zero.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The granted transactions in the order in which they were granted.
    pub grants: &'a [Grant],
}

impl<'a> Plan<'a> {
    /// Whether the grant at `position` is free or chained. A chain of one is free.
    ///
    /// # Panics
    /// If `position` is not below the number of grants.
    #[must_use]
    #[inline]
    pub fn placement(&self, position: u32) -> Placement {
        let grant = self.grants[position as usize];
        if grant.chain == position && grant.next == NO_POSITION {
            Placement::Free
        } else {
            Placement::Chained(grant.chain)
        }
    }

    /// The first positions of all chains: the units of work, free transactions among them, in any order or in parallel.
    pub fn heads(&self) -> impl Iterator<Item = u32> + use<'a> {
        let grants = self.grants;
        (0..grants.len() as u32).filter(move |&position| grants[position as usize].chain == position)
    }

    /// The transactions of the chain that begins at position `head`, in the order in which they must run.
    pub fn chain(&self, head: u32) -> impl Iterator<Item = u32> + use<'a> {
        let grants = self.grants;
        let mut position = head;
        std::iter::from_fn(move || {
            let grant = grants.get(position as usize)?;
            position = grant.next;
            Some(grant.transaction)
        })
    }
}

/// Decision words of `records` records, the batch being filled, and the deferred queue.
#[derive(Debug)]
pub struct BatchLocks {
    words: Buffer,
    config: BatchConfig,
    epoch: u32,
    grants: Vec<Grant>,
    deferred: Vec<u32>,
}

/// What the words say about an access set.
struct Verdict {
    /// The chain to append to, or [`NO_POSITION`] for a chain of its own.
    chain: u32,
    /// It must be deferred.
    deferred: bool,
    /// A record of the set that does not exist.
    unknown: Option<u32>,
}

impl BatchLocks {
    /// A manager with all its memory: words, grants and deferred queue. Nothing is allocated later.
    ///
    /// # Errors
    /// [`BatchError::Capacity`], [`BatchError::NoDeferredQueue`] or [`BatchError::OutOfMemory`].
    pub fn new(config: BatchConfig) -> Result<Self, BatchError> {
        if config.capacity == 0 || config.capacity > CHAIN_LIMIT {
            return Err(BatchError::Capacity { capacity: config.capacity });
        }
        if config.deferred_limit == 0 {
            return Err(BatchError::NoDeferredQueue);
        }
        let bytes = (config.records as usize).saturating_mul(size_of::<u64>());
        let words = Buffer::zeroed(bytes, Pages::Huge, "the decision words of the batch lock manager")?;
        let grants = Vec::with_capacity(config.capacity as usize);
        let config = BatchConfig { deferred_limit: config.deferred_limit.min(CHAIN_LIMIT), ..config };
        // Never grows: a full queue closes the batch.
        let deferred = Vec::with_capacity(config.deferred_limit as usize);
        Ok(Self { words, config, epoch: 0, grants, deferred })
    }

    /// The sizes in effect.
    #[must_use]
    pub const fn config(&self) -> BatchConfig {
        self.config
    }

    /// The transactions that were taken from the stream and not granted yet, in input order.
    #[must_use]
    pub fn deferred(&self) -> &[u32] {
        &self.deferred
    }

    /// The batch as it stands.
    #[must_use]
    pub fn plan(&self) -> Plan<'_> {
        Plan { grants: &self.grants }
    }

    /// Begins the next batch (which releases all locks of the one before), retries the deferred transactions, then
    /// takes transactions from the front of `stream` until the batch is full, the deferred queue is full or the stream
    /// ends. The stream is done when `stream` is empty and a batch comes out empty.
    ///
    /// The caller must have run, or at least ordered, the batch before: effects of this one come after all of its.
    ///
    /// # Errors
    /// [`BatchError::UnknownRecord`] if the stream begins with a transaction that names a record which does not exist
    /// and nothing could be granted in front of it. The transaction stays in the stream; the caller takes it out.
    pub fn fill(&mut self, sets: &impl AccessSets, stream: &mut Range<u32>) -> Result<Plan<'_>, BatchError> {
        self.begin(sets);
        self.extend(sets, stream)
    }

    /// Begins the next batch with the deferred transactions alone.
    ///
    /// # Panics
    /// If the access set of a deferred transaction has changed and names a record that does not exist.
    pub fn begin(&mut self, sets: &impl AccessSets) {
        self.advance_epoch();
        self.grants.clear();
        let waiting = self.deferred.len();
        let mut kept = 0;
        for at in 0..waiting {
            if self.grants.len() == self.config.capacity as usize {
                self.deferred.copy_within(at..waiting, kept);
                kept += waiting - at;
                break;
            }
            if let Some(&ahead) = self.deferred.get(at + 8) {
                self.prefetch_words(sets.accesses(ahead));
            }
            let transaction = self.deferred[at];
            let granted = self.admit(transaction, sets.accesses(transaction));
            let granted = granted.expect("the access set of a deferred transaction must not change");
            self.deferred[kept] = transaction;
            kept += usize::from(!granted);
        }
        self.deferred.truncate(kept);
    }

    /// Takes more transactions into the batch, as [`fill`](Self::fill) does after the deferred ones.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn extend(&mut self, sets: &impl AccessSets, stream: &mut Range<u32>) -> Result<Plan<'_>, BatchError> {
        if self.epoch == 0 {
            self.advance_epoch();
        }
        let distance = match stream.start >= stream.end {
            true => 0,
            false => (32 / sets.accesses(stream.start).len().max(1)).clamp(2, 24) as u32,
        };
        while stream.start < stream.end && !self.is_closed() {
            let transaction = stream.start;
            if stream.end - transaction > distance {
                self.prefetch_words(sets.accesses(transaction + distance));
            }
            match self.admit(transaction, sets.accesses(transaction)) {
                Ok(true) => {}
                Ok(false) => self.deferred.push(transaction),
                Err(error) if self.grants.is_empty() && self.deferred.is_empty() => return Err(error),
                Err(_) => break,
            }
            stream.start += 1;
        }
        Ok(self.plan())
    }

    /// Whether the batch takes no more transactions.
    #[must_use]
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.grants.len() >= self.config.capacity as usize || self.deferred.len() >= self.config.deferred_limit as usize
    }

    /// Grants or reserves; `Ok(false)` means that the caller must keep the transaction.
    #[inline(always)]
    fn admit(&mut self, transaction: u32, accesses: &[Access]) -> Result<bool, BatchError> {
        let verdict = self.judge(accesses);
        if let Some(record) = verdict.unknown {
            return Err(BatchError::UnknownRecord { transaction, record, records: self.config.records });
        }
        if verdict.deferred {
            self.reserve(accesses);
            return Ok(false);
        }
        let position = self.grants.len() as u32;
        let chain = if verdict.chain == NO_POSITION { position } else { verdict.chain };
        if chain != position {
            let tail = std::mem::replace(&mut self.grants[chain as usize].tail, position);
            self.grants[tail as usize].next = position;
        }
        self.grants.push(Grant { transaction, chain, next: NO_POSITION, tail: position });
        let epoch = self.epoch;
        let words = self.words_mut();
        for access in accesses {
            let word = &mut words[access.record as usize];
            *word = State::read(*word, epoch).granted(chain, access.mode).write(epoch);
        }
        Ok(true)
    }

    /// Reads the words of an access set; changes nothing.
    #[inline(always)]
    fn judge(&self, accesses: &[Access]) -> Verdict {
        let words = self.words();
        let mut verdict = Verdict { chain: NO_POSITION, deferred: false, unknown: None };
        for access in accesses {
            let Some(&word) = words.get(access.record as usize) else {
                verdict.unknown = Some(access.record);
                continue;
            };
            let state = State::read(word, self.epoch);
            verdict.deferred |= state.is_reserved_against(access.mode);
            if state.is_held_against(access.mode) {
                let other = verdict.chain != NO_POSITION && verdict.chain != state.chain();
                verdict.deferred |= state.is_held_by_many() | other;
                verdict.chain = state.chain();
            }
        }
        verdict
    }

    /// Keeps later transactions from overtaking a deferred one.
    #[inline(never)]
    fn reserve(&mut self, accesses: &[Access]) {
        let epoch = self.epoch;
        let words = self.words_mut();
        for access in accesses {
            let word = &mut words[access.record as usize];
            *word = State::read(*word, epoch).reserved(access.mode).write(epoch);
        }
    }

    /// After 2^32 - 1 batches the words are cleared once, so that no word of the distant past looks current.
    fn advance_epoch(&mut self) {
        if self.epoch == u32::MAX {
            self.words_mut().fill(0);
            self.epoch = 0;
        }
        self.epoch += 1;
    }

    #[inline(always)]
    fn prefetch_words(&self, accesses: &[Access]) {
        let words = self.words.as_ptr().cast::<u64>();
        for access in accesses {
            prefetch(words.wrapping_add(access.record as usize).cast());
        }
    }

    #[inline(always)]
    fn words(&self) -> &[u64] {
        // SAFETY: the buffer holds at least `records` zeroed or written u64 at 64-byte alignment, and only this manager
        // reaches it.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.config.records as usize) }
    }

    #[inline(always)]
    fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`; the borrow of self is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_ptr().cast(), self.config.records as usize) }
    }
}

#[cfg(test)]
mod tests;
