//! A row in memory, by its address.
//!
//! ```text
//! 0          8          16                                       stride, a multiple of 64
//! +----------+----------+----------------------+----------------+---------+
//! | word     | state    | key columns          | value columns  | padding |
//! | (engine) | liveness |                      |                |         |
//! +----------+----------+----------------------+----------------+---------+
//! ```
//!
//! `word` is the engine's decision word (a lock, a timestamp, a queue head). The low eight bits of `state` say
//! whether the row exists ([`LIVE`], [`ABSENT`], ...); its upper 56 bits belong to the engine.
//!
//! Invariant: a row never moves and its memory is given back only with its table, so an address found once stays
//! readable. Trade-off: [`RowPtr`] carries no lifetime, because engines keep rows in lists, blocks and lock queues
//! that no borrow could describe; that a `RowPtr` is not used after its table is gone is the duty of its holder,
//! who keeps the `Arc<Table>`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use lockwork_procedure::schema::{MAX_KEY_BYTES, ROW_HEADER_BYTES, TableSchema};

/// State: the memory is no row.
pub const FREE: u8 = 0;
/// State: the row exists.
pub const LIVE: u8 = 1;
/// State: a tombstone; the key can be locked, but there is no row.
pub const ABSENT: u8 = 2;
/// State: the row was removed and waits to be unlinked.
pub const REMOVED: u8 = 4;
/// The bits of the state word that say whether the row exists; the others are the engine's.
pub const STATE_MASK: u64 = 0xFF;

/// The address of a row: 64-byte aligned, good as long as its table lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowPtr(NonNull<u8>);

// SAFETY: an address; header words are atomic and all other bytes are reached only by unsafe code, whose author
// promises to hold the lock that it takes.
unsafe impl Send for RowPtr {}
// SAFETY: as above.
unsafe impl Sync for RowPtr {}

impl RowPtr {
    /// # Safety
    /// `start` is the first byte of a row of a slab, which outlives every use of the result.
    #[inline(always)]
    pub(crate) unsafe fn new(start: *mut u8) -> Self {
        debug_assert!(!start.is_null() && (start as usize).is_multiple_of(64));
        // SAFETY: a row's address is never null.
        Self(unsafe { NonNull::new_unchecked(start) })
    }

    /// The row at this address.
    ///
    /// # Safety
    /// [`Self::as_ptr`] of a row gave it, and that row's table outlives every use of the result.
    #[inline(always)]
    #[must_use]
    pub unsafe fn from_address(address: u64) -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::new(address as usize as *mut u8) }
    }

    /// The first byte of the row, header included: column offsets count from here.
    #[inline(always)]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// The engine's decision word (bytes 0 to 8); 0 in a new row.
    #[inline(always)]
    #[must_use]
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: a row begins with two aligned words, which are only ever used as atomics; its table outlives it.
        unsafe { self.0.cast::<AtomicU64>().as_ref() }
    }

    /// The state word (bytes 8 to 16): liveness in the low eight bits, the engine's in the others.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> &AtomicU64 {
        // SAFETY: as for `word`; a row is at least 64 bytes long.
        unsafe { self.0.cast::<AtomicU64>().add(1).as_ref() }
    }

    /// Whether the row exists now: the low eight bits of its state are [`LIVE`].
    #[inline(always)]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state().load(Ordering::Acquire) & STATE_MASK == u64::from(LIVE)
    }

    /// The row's bytes, header included and trailing padding not, as a raw slice: column offsets index it.
    ///
    /// Who reads through it holds the row against writers. Who writes through it holds the row alone, stays behind
    /// [`TableSchema::values_start`] (the key is never written again), and does not run beside
    /// [`crate::Table::digest`], [`crate::Table::load`] of the same row or [`crate::Database::export`].
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self, schema: &TableSchema) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.as_ptr(), schema.row_bytes() as usize)
    }

    /// The row's image as a raw slice: [`Self::bytes`] without the header. The same duties hold.
    #[inline(always)]
    #[must_use]
    pub fn image(&self, schema: &TableSchema) -> *mut [u8] {
        let header = ROW_HEADER_BYTES as usize;
        let length = schema.row_bytes() as usize - header;
        std::ptr::slice_from_raw_parts_mut(self.as_ptr().wrapping_add(header), length)
    }

    /// Copies the key image out with atomic reads, so that a stale row that is being reused at this moment gives
    /// a wrong key instead of a data race. Whole words first, then the tail bytewise: the bytes behind the key are
    /// the engine's and must not be touched.
    #[inline]
    pub(crate) fn read_key(&self, key_bytes: usize) -> [u8; MAX_KEY_BYTES as usize] {
        let mut image = [0; MAX_KEY_BYTES as usize];
        let (words, tail) = (key_bytes / 8, key_bytes % 8);
        for (index, target) in image.chunks_exact_mut(8).take(words).enumerate() {
            target.copy_from_slice(&self.key_word(index).load(Ordering::Relaxed).to_ne_bytes());
        }
        for (index, target) in image[words * 8..words * 8 + tail].iter_mut().enumerate() {
            *target = self.key_byte(words * 8 + index).load(Ordering::Relaxed);
        }
        image
    }

    /// Writes the key image, in the same pieces as [`Self::read_key`] reads it.
    #[inline]
    pub(crate) fn write_key(&self, image: &[u8]) {
        let chunks = image.chunks_exact(8);
        let tail = chunks.remainder();
        let words = image.len() / 8;
        for (index, chunk) in chunks.enumerate() {
            let word = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
            self.key_word(index).store(word, Ordering::Relaxed);
        }
        for (index, &byte) in tail.iter().enumerate() {
            self.key_byte(words * 8 + index).store(byte, Ordering::Relaxed);
        }
    }

    fn key_word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < MAX_KEY_BYTES as usize / 8);
        // SAFETY: the key begins at offset 16 of a 64-byte aligned row of at least 64 bytes and is at most 32 bytes
        // long; within the key, these bytes are written by `write_key` only.
        unsafe { self.0.cast::<AtomicU64>().add(2 + index).as_ref() }
    }

    fn key_byte(&self, index: usize) -> &AtomicU8 {
        debug_assert!(index < MAX_KEY_BYTES as usize);
        // SAFETY: as for `key_word`.
        unsafe { self.0.cast::<AtomicU8>().add(ROW_HEADER_BYTES as usize + index).as_ref() }
    }
}
