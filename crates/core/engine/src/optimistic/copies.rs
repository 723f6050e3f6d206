//! Private copies of rows: where they lie, and how bytes come and go while others do the same.
//!
//! A row that a transaction looked up lies in its [`Arena`] as it lies in its table, column offsets included, but only
//! the *parts* that the procedure touches were copied. A part is a cache line; in rows of more than 64 lines it is as
//! many lines as make 64 parts. So one word says which parts there are.
//!
//! Invariant: shared bytes are read and written by relaxed atomic operations only, each byte by operations of one
//! width: words, except for the word in which the key ends and the values begin, whose bytes are taken one by one. (The
//! index reads keys while values are written; keys never change.) A copy that met a writer is a mixture, which the TID
//! word tells.
//!
//! Trade-off: a byte that is read is copied twice, from the row and from the copy. What the transaction reads again,
//! or writes, costs nothing further, an abort costs nothing at all, and no reader ever waits for a transaction, only
//! for the installation of one row.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use lockwork_memory::{Buffer, LINE, OutOfMemory, Pages, prefetch};
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

/// Bytes of a piece of an arena, unless a row needs more.
const PIECE_BYTES: usize = 16 << 10;

/// How rows of a table are cut into parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bytes of a row in memory.
    stride: u32,
    /// Where values begin.
    values: u32,
    /// Bytes of a part, as a power of two.
    part_shift: u32,
}

impl Layout {
    #[inline(always)]
    pub(super) fn of(schema: &TableSchema) -> Self {
        let (stride, line_shift) = (schema.stride() as u32, LINE.trailing_zeros());
        // Rows are at most 64 KiB: 64 parts of 16 lines.
        let part_shift = line_shift + (stride >> line_shift).div_ceil(64).next_power_of_two().trailing_zeros();
        Self { stride, values: schema.values_start(), part_shift }
    }

    /// Bytes of a row.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.stride as usize
    }

    /// Where values begin.
    #[inline(always)]
    pub(super) fn values(&self) -> usize {
        self.values as usize
    }

    /// All parts.
    #[inline(always)]
    pub(super) fn all(&self) -> u64 {
        u64::MAX >> (63 - ((self.stride - 1) >> self.part_shift))
    }

    /// The parts in which `length` bytes from `start` on lie; none if those are not all in the row.
    #[inline(always)]
    pub(super) fn parts(&self, start: i64, length: u32) -> u64 {
        if start < 0 || length == 0 || start as u64 + u64::from(length) > u64::from(self.stride) {
            return 0;
        }
        let (first, last) =
            (start as u64 >> self.part_shift, (start as u64 + u64::from(length) - 1) >> self.part_shift);
        (u64::MAX >> (63 - (last - first))) << first
    }

    /// Brings parts of a row into cache.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: *const u8, parts: u64) {
        self.for_each(parts, |start, end| {
            (start..end).step_by(LINE).for_each(|offset| prefetch(row.wrapping_add(offset)));
        });
    }

    /// Calls `f` with the first byte of every part and the first behind it.
    #[inline(always)]
    fn for_each(&self, mut parts: u64, mut f: impl FnMut(usize, usize)) {
        while parts != 0 {
            let start = (parts.trailing_zeros() as usize) << self.part_shift;
            f(start, (start + (1 << self.part_shift)).min(self.stride()));
            parts &= parts - 1;
        }
    }

    /// Copies parts of a row that others may be writing; what is copied then means nothing.
    ///
    /// # Safety
    /// `row` is a row of the table; `copy` is as long and nobody else's.
    #[inline(always)]
    pub(super) unsafe fn copy_in(&self, row: *const u8, copy: *mut u8, parts: u64) {
        self.for_each(parts, |start, end| {
            // SAFETY: parts lie in the row; the header is left out.
            unsafe { self.load(row, copy, start.max(ROW_HEADER_BYTES as usize), end) }
        });
    }

    /// Copies the words that hold `length` bytes from `offset` on, which lie behind the header.
    ///
    /// # Safety
    /// As [`Self::copy_in`]; the bytes lie in the row.
    #[inline(always)]
    pub(super) unsafe fn copy_bytes_in(&self, row: *const u8, copy: *mut u8, offset: usize, length: usize) {
        let start = (offset & !7).max(ROW_HEADER_BYTES as usize);
        // SAFETY: as the caller's; rows are whole lines.
        unsafe { self.load(row, copy, start, (offset + length).next_multiple_of(8)) }
    }

    /// Copies a piece of a row to wherever it is wanted.
    ///
    /// # Safety
    /// As [`Self::copy_in`]; the piece lies in the row behind its header, and `target` has room for it.
    #[inline(always)]
    pub(super) unsafe fn copy_piece(&self, row: *const u8, offset: usize, length: usize, target: *mut u8) {
        let (mixed, end) = (self.mixed(), offset + length);
        let whole = offset.is_multiple_of(8) && length.is_multiple_of(8) && !(offset..end).contains(&mixed);
        let mut at = offset;
        // SAFETY: as the caller's; rows are whole lines.
        unsafe {
            while whole && at < end {
                let word = AtomicU64::from_ptr(row.add(at).cast_mut().cast()).load(Ordering::Relaxed);
                target.add(at - offset).cast::<u64>().write_unaligned(word);
                at += 8;
            }
            while at < end {
                let (word, skip) = (at & !7, at & 7);
                let mut bytes = [0_u64];
                self.load(row, bytes.as_mut_ptr().cast::<u8>().wrapping_sub(word), word, word + 8);
                let length = (8 - skip).min(end - at);
                let from = bytes.as_ptr().cast::<u8>().add(skip);
                target.add(at - offset).copy_from_nonoverlapping(from, length);
                at += length;
            }
        }
    }

    /// Writes the values among parts of a row from its copy.
    ///
    /// # Safety
    /// As [`Self::copy_in`], and this thread is the only one that writes the row.
    #[inline(always)]
    pub(super) unsafe fn install(&self, row: *mut u8, copy: *const u8, parts: u64) {
        self.for_each(parts, |start, end| {
            let start = start.max(self.values());
            let words = start.next_multiple_of(8);
            // SAFETY: parts lie in the row; only values are written.
            unsafe {
                for offset in start..words.min(end) {
                    let byte = copy.add(offset).read();
                    AtomicU8::from_ptr(row.add(offset)).store(byte, Ordering::Relaxed);
                }
                for offset in (words..end).step_by(8) {
                    let word = copy.add(offset).cast::<u64>().read();
                    AtomicU64::from_ptr(row.add(offset).cast()).store(word, Ordering::Relaxed);
                }
            }
        });
    }

    /// The word in which the key ends and the values begin, if they do so inside a word.
    #[inline(always)]
    fn mixed(&self) -> usize {
        if self.values.is_multiple_of(8) { usize::MAX } else { self.values() & !7 }
    }

    /// # Safety
    /// As [`Self::copy_in`]; `start` and `end` are multiples of eight in the row, behind its header.
    #[inline(always)]
    unsafe fn load(&self, row: *const u8, copy: *mut u8, start: usize, end: usize) {
        let mixed = self.mixed();
        // SAFETY: as the caller's.
        unsafe {
            if (start..end).contains(&mixed) {
                load_words(row, copy, start, mixed);
                for offset in mixed..mixed + 8 {
                    let byte = AtomicU8::from_ptr(row.add(offset).cast_mut()).load(Ordering::Relaxed);
                    copy.wrapping_add(offset).write(byte);
                }
                load_words(row, copy, mixed + 8, end);
            } else {
                load_words(row, copy, start, end);
            }
        }
    }
}

/// Copies the words from `start` to `end`.
///
/// # Safety
/// As [`Layout::load`].
#[inline(always)]
unsafe fn load_words(row: *const u8, copy: *mut u8, start: usize, end: usize) {
    let mut offset = start;
    while offset < end {
        // SAFETY: as the caller's.
        unsafe {
            let word = AtomicU64::from_ptr(row.add(offset).cast_mut().cast()).load(Ordering::Relaxed);
            copy.wrapping_add(offset).cast::<u64>().write(word);
        }
        offset += 8;
    }
}

/// Memory for the copies of one transaction, used again by the next.
///
/// Invariant: what was handed out stays where it is until [`Self::clear`]. Rows are whole lines, and so is everything
/// handed out.
#[derive(Debug, Default)]
pub(super) struct Arena {
    pieces: Vec<Buffer>,
    /// The piece that is handed out from, and how many of its bytes were.
    current: usize,
    used: usize,
}

impl Arena {
    /// `bytes` bytes, a multiple of 64, that hold anything.
    ///
    /// # Errors
    /// The system gave no memory.
    #[inline(always)]
    pub(super) fn take(&mut self, bytes: usize) -> Result<*mut u8, OutOfMemory> {
        if self.pieces.get(self.current).is_none_or(|piece| self.used + bytes > piece.capacity()) {
            self.next_piece(bytes)?;
        }
        let start = self.pieces[self.current].as_ptr().wrapping_add(self.used);
        self.used += bytes;
        Ok(start)
    }

    #[cold]
    fn next_piece(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        while self.current < self.pieces.len() {
            self.current += 1;
            self.used = 0;
            if self.pieces.get(self.current).is_some_and(|piece| bytes <= piece.capacity()) {
                return Ok(());
            }
        }
        self.used = 0;
        self.pieces.push(Buffer::zeroed(bytes.max(PIECE_BYTES), Pages::Plain, "copies of rows")?);
        Ok(())
    }

    /// Gives the last `bytes` back that were taken.
    #[inline(always)]
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.used -= bytes;
    }

    /// Takes everything back.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        (self.current, self.used) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::schema::ColumnType;

    fn layout(columns: &[ColumnType]) -> Layout {
        let names: Vec<String> = (0..columns.len()).map(|number| format!("c{number}")).collect();
        let columns: Vec<(&str, ColumnType)> = names.iter().map(String::as_str).zip(columns.iter().copied()).collect();
        Layout::of(&TableSchema::new("t", &columns, 1, false).unwrap())
    }

    #[test]
    fn parts_cover_rows_of_every_length() {
        for bytes in [1, 40, 41, 100, 4_000, 4_096, 10_000, 60_000] {
            let layout = layout(&[ColumnType::I64, ColumnType::Bytes(bytes)]);
            let mut end = 0;
            layout.for_each(layout.all(), |start, next| {
                assert_eq!(start, end);
                end = next;
            });
            assert_eq!(end, layout.stride());
            for start in (0..layout.stride()).step_by(17) {
                let parts = layout.parts(start as i64, 1);
                assert_eq!(parts.count_ones(), 1);
                layout.for_each(parts, |from, to| assert!((from..to).contains(&start)));
            }
            assert_eq!(layout.parts(0, layout.stride() as u32), layout.all());
            assert_eq!((layout.parts(-1, 4), layout.parts(layout.stride() as i64 - 3, 4)), (0, 0));
        }
    }

    #[test]
    fn values_come_and_go_and_keys_stay() {
        for key in [ColumnType::I64, ColumnType::I32, ColumnType::Char(11)] {
            let layout = layout(&[key, ColumnType::U8, ColumnType::Bytes(150)]);
            let row: Vec<u64> = (0..layout.stride() as u64 / 8).map(|word| word * 0x0101_0101_0101_0101).collect();
            let (mut target, mut copy) = (vec![u64::MAX; row.len()], vec![0; row.len()]);
            // SAFETY: all three are as long as a row, aligned to words, and this thread's own.
            unsafe {
                layout.copy_in(row.as_ptr().cast(), copy.as_mut_ptr().cast(), layout.all());
                layout.install(target.as_mut_ptr().cast(), copy.as_ptr().cast(), layout.all());
            }
            assert_eq!((&copy[2..], copy[0]), (&row[2..], 0));
            let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
            let (row, target) = (bytes(&row), bytes(&target));
            assert_eq!(target[layout.values()..], row[layout.values()..]);
            assert!(target[..layout.values()].iter().all(|&byte| byte == 0xFF), "keys are never written");
        }
    }

    #[test]
    fn an_arena_hands_out_the_same_memory_again() {
        let mut arena = Arena::default();
        let sizes = [64, 16_384, 64, 65_536, 128];
        let first: Vec<*mut u8> = sizes.iter().map(|&bytes| arena.take(bytes).unwrap()).collect();
        arena.clear();
        let second: Vec<*mut u8> = sizes.iter().map(|&bytes| arena.take(bytes).unwrap()).collect();
        assert_eq!(first, second);
        let mut places: Vec<(usize, usize)> = first.iter().map(|place| *place as usize).zip(sizes).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "they overlap");
    }
}
