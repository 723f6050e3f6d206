//! Decision bits: which claims have nobody to conflict with.
//!
//! Before any queue is built, every worker notes of each of its claims, in a byte chosen by the record's name, whether
//! records there are read, written, or written more than once. Then the workers add their bytes up, each for its share
//! of them. A claim whose byte says that nobody writes, or that there is one writer and nobody else, has no conflict
//! in the part, and the planner never sees it. Most claims of most workloads are of this kind. These are the two bits
//! a record of the batch lock manager of HOBBES (section 3.3.3), kept for a batch only, without its limit of one
//! operation a transaction and without its order.
//!
//! Invariant: claims that conflict have the same name, so the same byte, and are both kept. Trade-off: claims that
//! only share a byte are kept in vain; there are several bytes for each claim.

use std::cell::UnsafeCell;
use std::ops::Range;

use super::read_write_set::Hold;

const READ: u8 = 1;
const WRITTEN: u8 = 2;
const WRITTEN_TWICE: u8 = 4;

/// Bytes for each claim.
const BYTES_A_CLAIM: usize = 4;
/// The least and the most bytes.
const BYTES: Range<usize> = 1 << 8..1 << 20;

/// The bytes of one worker.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Part(UnsafeCell<Vec<u8>>);

// SAFETY: written by its own worker while claims are found, read by all while they are added up, and written in
// disjoint shares then; barriers lie between.
unsafe impl Sync for Part {}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Filter {
    parts: Vec<Part>,
    mask: usize,
}

impl Filter {
    /// Makes room for about `claims` claims of `workers` workers.
    pub(super) fn prepare(&mut self, workers: usize, claims: usize) {
        let bytes = (BYTES_A_CLAIM * claims).next_power_of_two().clamp(BYTES.start, BYTES.end);
        self.mask = bytes - 1;
        self.parts.resize_with(self.parts.len().max(workers), Part::default);
    }

    #[inline(always)]
    fn place(&self, record: u64) -> usize {
        // The top bits choose the partition of the planners, the low ones a place there.
        (record >> 20) as usize & self.mask
    }

    /// Empties the bytes of worker `number`.
    ///
    /// # Safety
    /// It is called by that worker while claims are found.
    #[expect(clippy::mut_from_ref, reason = "each worker has its own")]
    pub(super) unsafe fn begin(&self, number: usize) -> &mut [u8] {
        // SAFETY: as the caller's.
        let bytes = unsafe { &mut *self.parts[number].0.get() };
        bytes.clear();
        bytes.resize(self.mask + 1, 0);
        bytes
    }

    /// Notes a claim in the bytes that [`Self::begin`] gave.
    #[inline(always)]
    pub(super) fn note(&self, bytes: &mut [u8], record: u64, hold: Hold) {
        let byte = &mut bytes[self.place(record)];
        *byte |= match hold {
            Hold::ReadWithin | Hold::Read => READ,
            Hold::WriteWithin | Hold::Write => WRITTEN | (*byte & WRITTEN) << 1,
        };
    }

    /// Adds up share `number` of the bytes of `workers` workers, into those of the first.
    ///
    /// # Safety
    /// All claims were noted, and nobody asks yet.
    pub(super) unsafe fn add_up(&self, number: usize, workers: usize) {
        let share = crate::team::share(&(0..self.mask + 1), number, workers);
        // SAFETY: shares are disjoint; the vectors are of the same length and do not move.
        unsafe {
            let of = |part: usize| (*self.parts[part].0.get()).as_mut_ptr();
            let sum = std::slice::from_raw_parts_mut(of(0).add(share.start), share.len());
            for part in 1..workers {
                let other = std::slice::from_raw_parts(of(part).add(share.start), share.len());
                for (sum, other) in sum.iter_mut().zip(other) {
                    *sum = *sum | other | (*sum & other & WRITTEN) << 1;
                }
            }
        }
    }

    /// Whether the claims of a record may conflict.
    ///
    /// # Safety
    /// All bytes were added up.
    #[inline(always)]
    pub(super) unsafe fn may_conflict(&self, record: u64) -> bool {
        // SAFETY: as the caller's; nobody writes any more.
        let byte = unsafe { (&*self.parts[0].0.get())[self.place(record)] };
        byte & WRITTEN_TWICE != 0 || byte & (READ | WRITTEN) == READ | WRITTEN
    }
}
