//! Recipes: straight procedures laid out for the inner loops of engines.
//!
//! The access set of a straight procedure is a table of constants ([`Straight`]). An engine that overlaps the misses of
//! many transactions walks it several times a transaction, so here it lies in flat arrays, and what can be decided at
//! registration is decided. Where the procedure only copies ([`Straight::moves`]), the recipe is *complete*: making its
//! moves is executing the transaction, and no interpreter runs.
//!
//! Invariant: offsets lie inside block and row, as the verifier proved; nothing is checked again here.

use std::ops::Range;
use std::sync::Arc;

use lockwork_memory::prefetch;
use lockwork_procedure::access::{ArgumentCheck, ArgumentIndex, Operation, Straight};
use lockwork_procedure::isa::SIGNED;
use lockwork_procedure::key::{Key, mix};
use lockwork_storage::Table;

pub use crate::lines::Lines;
use crate::lines::block_lines;

/// One access.
#[derive(Debug)]
struct Step {
    table: Arc<Table>,
    operation: Operation,
    /// Its table's, in the procedure.
    slot: u8,
    key_offset: u32,
    /// The CP register of its DB instruction.
    cp: u8,
    /// The key is one signed 64-bit integer.
    word_key: bool,
    /// It looks a row up that is there already.
    looks_up: bool,
    scans: bool,
    touches: Range<u32>,
    moves: Range<u32>,
    lines: Range<u32>,
}

/// A piece of a row, and for a move its place in the block.
#[derive(Clone, Copy, Debug)]
struct Piece {
    row_offset: u32,
    block_offset: u32,
    length: u32,
    /// Number of the access.
    access: u16,
    write: bool,
    index: Index,
}

/// An argument times a constant, or zero, read without a branch.
#[derive(Clone, Copy, Debug)]
struct Index {
    /// Where eight bytes of the block are read, and what is done to them to get the argument.
    offset: u32,
    shift: u32,
    mask: u64,
    /// The sign bit of a narrow signed argument.
    sign: u64,
    scale: i64,
}

impl Index {
    const ZERO: Self = Self { offset: 0, shift: 0, mask: 0, sign: 0, scale: 0 };

    /// The index in blocks of `block_bytes`, a multiple of 64.
    fn new(argument: &ArgumentIndex, block_bytes: usize) -> Self {
        let width = u32::from(argument.width & !SIGNED);
        let bits = 8 * width.min(8);
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let sign = if argument.width & SIGNED != 0 { (mask >> 1) + 1 } else { 0 };
        // Eight bytes from an argument at the very end of a block would leave it.
        let offset = argument.offset.min(block_bytes as u32 - 8);
        Self { offset, shift: 8 * (argument.offset - offset), mask, sign, scale: argument.scale }
    }

    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn value(&self, block: *const u8) -> i64 {
        // SAFETY: `new` made sure that the eight bytes lie in the block.
        let word = u64::from_le(unsafe { block.add(self.offset as usize).cast::<u64>().read_unaligned() });
        let argument = (((word >> self.shift) & self.mask) ^ self.sign).wrapping_sub(self.sign) as i64;
        argument.wrapping_mul(self.scale)
    }
}

impl Piece {
    /// Where in the row it begins, for these arguments. What fails a check later may give anything.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn start(&self, block: *const u8) -> i64 {
        // SAFETY: as the caller's.
        i64::from(self.row_offset).wrapping_add(unsafe { self.index.value(block) })
    }

    /// Prefetches its lines.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn prefetch(&self, block: *const u8, row: u64) {
        // SAFETY: as the caller's.
        let start = row.wrapping_add_signed(unsafe { self.start(block) });
        let end = start.wrapping_add(u64::from(self.length));
        let mut line = start & !63;
        while line < end {
            prefetch(line as *const u8);
            line = line.wrapping_add(64);
        }
    }

    /// Adds its lines to `lines`.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn collect(&self, block: *const u8, row: u64, lines: &mut Lines) {
        // SAFETY: as the caller's.
        let start = row.wrapping_add_signed(unsafe { self.start(block) });
        let end = start.wrapping_add(u64::from(self.length));
        let mut line = start & !63;
        while line < end {
            lines.push(line);
            line = line.wrapping_add(64);
        }
    }

    /// # Safety
    /// As for [`Recipe::make`].
    #[inline(always)]
    unsafe fn make(&self, block: *mut u8, row: u64) {
        // SAFETY: the verifier proved that both places lie in block and row.
        unsafe {
            let in_row = (row as *mut u8).offset(self.start(block) as isize);
            let in_block = block.add(self.block_offset as usize);
            let (from, to) = if self.write { (in_block, in_row) } else { (in_row, in_block) };
            if self.length == 64 {
                to.cast::<[u8; 64]>().write_unaligned(from.cast::<[u8; 64]>().read_unaligned());
            } else {
                from.copy_to_nonoverlapping(to, self.length as usize);
            }
        }
    }
}

/// A condition on the arguments.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// An argument is not negative and below a limit.
    Below(Index, u64),
    /// Any other.
    Other(ArgumentCheck),
}

impl Check {
    fn new(check: ArgumentCheck, block_bytes: usize) -> Self {
        match (check.argument.scale, check.base, u64::try_from(check.limit)) {
            // A negative argument is a large one without its sign.
            (1, 0, Ok(limit)) => Self::Below(Index::new(&check.argument, block_bytes), limit),
            _ => Self::Other(check),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Recipe {
    steps: Vec<Step>,
    touches: Vec<Piece>,
    moves: Vec<Piece>,
    lines: Vec<u32>,
    checks: Vec<Check>,
    complete: bool,
}

impl Step {
    /// The key.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn key(&self, block: *const u8) -> Key {
        // SAFETY: the key image lies in the block.
        unsafe {
            let image = block.add(self.key_offset as usize);
            if self.word_key {
                Key([u64::from_le(image.cast::<u64>().read_unaligned()) ^ 1 << 63, 0, 0, 0])
            } else {
                let format = self.table.key_format();
                format.encode(std::slice::from_raw_parts(image, format.image_bytes()))
            }
        }
    }

    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn hash(&self, block: *const u8) -> u64 {
        // SAFETY: as the caller's.
        let key = unsafe { self.key(block) };
        if self.word_key { mix(key.0[0]) } else { key.hash() }
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> u64 {
        self.table.bucket(hash) as u64
    }

    /// # Safety
    /// As for [`Recipe::look_up`]; `word` is what [`Recipe::start`] left.
    #[inline(always)]
    unsafe fn find(&self, block: *const u8, word: u64, stable: bool) -> u64 {
        if !self.looks_up {
            if self.scans {
                // SAFETY: as the caller's.
                self.table.prefetch_scan(&unsafe { self.key(block) });
            }
            return 0;
        }
        // SAFETY: as the caller's.
        let row = unsafe {
            match (stable, self.word_key) {
                (true, true) => self.table.find_word_in(word as *const u8, self.key(block).0[0]),
                (true, false) => self.table.find_in(word as *const u8, &self.key(block)),
                (false, _) => self.table.find(word, &self.key(block)),
            }
        };
        row.map_or(0, |row| row.as_ptr() as u64)
    }
}

/// A part of one of a recipe's arrays.
///
/// # Safety
/// The range is that of a step of the same recipe.
#[inline(always)]
unsafe fn part<'a, T>(all: &'a [T], range: &Range<u32>) -> std::slice::Iter<'a, T> {
    // SAFETY: steps are made together with their parts of the arrays, which never shrink.
    unsafe { all.get_unchecked(range.start as usize..range.end as usize).iter() }
}

impl Recipe {
    /// The recipe of a procedure over these tables whose blocks are `block_bytes` long, a multiple of 64.
    /// `moves_allowed`: none of its writes ever has to be taken back.
    #[must_use]
    pub fn new(straight: &Straight, tables: &[Arc<Table>], block_bytes: usize, moves_allowed: bool) -> Self {
        let index_of =
            |index: Option<ArgumentIndex>| index.map_or(Index::ZERO, |index| Index::new(&index, block_bytes));
        let all_moves = straight.moves.as_ref().filter(|_| moves_allowed);
        let mut recipe = Self { complete: all_moves.is_some(), ..Self::default() };
        recipe.checks.extend(straight.checks.iter().map(|&check| Check::new(check, block_bytes)));
        for (number, access) in straight.accesses.iter().enumerate() {
            let table = tables[usize::from(access.slot)].clone();
            let starts = (recipe.touches.len() as u32, recipe.moves.len() as u32, recipe.lines.len() as u32);
            recipe.touches.extend(access.touches.iter().map(|touch| Piece {
                row_offset: touch.offset,
                block_offset: 0,
                length: touch.length,
                access: number as u16,
                write: touch.write,
                index: index_of(touch.index),
            }));
            recipe.moves.extend(all_moves.iter().flat_map(|moves| &moves[number]).map(|piece| Piece {
                row_offset: piece.row_offset,
                block_offset: piece.block_offset,
                length: piece.length,
                access: number as u16,
                write: piece.write,
                index: index_of(piece.index),
            }));
            if let Some(fragments) = &straight.fragments {
                recipe.lines.extend(block_lines(&fragments[number].code));
            }
            recipe.steps.push(Step {
                word_key: table.key_format().is_one_integer(),
                table,
                operation: access.operation,
                slot: access.slot,
                key_offset: access.key_offset,
                cp: access.cp,
                looks_up: matches!(access.operation, Operation::Search | Operation::Update),
                scans: access.operation == Operation::Scan,
                touches: starts.0..recipe.touches.len() as u32,
                moves: starts.1..recipe.moves.len() as u32,
                lines: starts.2..recipe.lines.len() as u32,
            });
        }
        recipe
    }

    /// Accesses.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is no access.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The table of access `number`.
    #[inline(always)]
    #[must_use]
    pub fn table(&self, number: usize) -> &Table {
        &self.steps[number].table
    }

    /// Whether its moves are all that the procedure does, once every row exists and [`Self::passes`] is true.
    #[inline(always)]
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The hash of the key of access `number`.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn hash(&self, number: usize, block: *const u8) -> u64 {
        // SAFETY: as the caller's.
        unsafe { self.steps[number].hash(block) }
    }

    /// The key of access `number`.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn key(&self, number: usize, block: *const u8) -> Key {
        // SAFETY: as the caller's.
        unsafe { self.steps[number].key(block) }
    }

    /// Tells `take` of every access: its operation, its table's slot and the hash of its key.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn accesses(&self, block: *const u8, mut take: impl FnMut(Operation, u8, u64)) {
        for step in &self.steps {
            // SAFETY: as the caller's.
            take(step.operation, step.slot, unsafe { step.hash(block) });
        }
    }

    /// Starts the look-up of one access whose key's hash is known: adds the bucket to `lines` and returns the word that
    /// [`Self::find`] wants.
    #[inline(always)]
    pub fn start_one(&self, number: usize, hash: u64, stable: bool, lines: &mut Lines) -> u64 {
        let bucket = self.steps[number].bucket(hash);
        lines.push(bucket);
        if stable { bucket } else { hash }
    }

    /// First stage of looking ahead: adds to `lines` the buckets of all accesses that `words` has room for, and leaves
    /// in `words` what [`Self::look_up`] wants. `stable`: no key comes or goes until then.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn start(&self, block: *const u8, words: &mut [u64], stable: bool, lines: &mut Lines) {
        for (step, word) in self.steps.iter().zip(words) {
            if step.scans {
                continue;
            }
            // SAFETY: as the caller's.
            let hash = unsafe { step.hash(block) };
            let bucket = step.bucket(hash);
            lines.push(bucket);
            *word = if stable { bucket } else { hash };
        }
    }

    /// As [`Self::start`] for a stable part, keeping the hashes too.
    ///
    /// # Safety
    /// As for [`Self::start`].
    #[inline(always)]
    pub unsafe fn start_with_hashes(&self, block: *const u8, words: &mut [u64], hashes: &mut [u64], lines: &mut Lines) {
        for ((step, word), hash) in self.steps.iter().zip(words).zip(hashes) {
            // SAFETY: as the caller's.
            *hash = unsafe { step.hash(block) };
            *word = step.bucket(*hash);
            lines.push(*word);
        }
    }

    /// Second stage: turns `words` into the addresses of the rows that the accesses find, zero for none, and adds what
    /// they will touch to `lines`, if there are any.
    ///
    /// # Safety
    /// `block` is a block of the procedure, and `words` are as [`Self::start`] left them with the same `stable`. If
    /// `stable`, no table of the procedure has had an insert or removal since.
    #[inline(always)]
    pub unsafe fn look_up(&self, block: *const u8, words: &mut [u64], stable: bool, mut lines: Option<&mut Lines>) {
        for (step, word) in self.steps.iter().zip(words) {
            // SAFETY: as the caller's.
            unsafe {
                *word = step.find(block, *word, stable);
                if *word != 0
                    && let Some(lines) = &mut lines
                {
                    for touch in part(&self.touches, &step.touches) {
                        touch.collect(block, *word, lines);
                    }
                }
            }
        }
    }

    /// Second stage of one access.
    ///
    /// # Safety
    /// As for [`Self::look_up`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn find(&self, number: usize, block: *const u8, word: u64, stable: bool) -> u64 {
        // SAFETY: as the caller's.
        unsafe { self.steps[number].find(block, word, stable) }
    }

    /// Adds to `lines` those of its row that access `number` will touch.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn collect_row(&self, number: usize, block: *const u8, row: u64, lines: &mut Lines) {
        // SAFETY: as the caller's.
        unsafe {
            for touch in part(&self.touches, &self.steps[number].touches) {
                touch.collect(block, row, lines);
            }
        }
    }

    /// Prefetches the row's lines for the access that CP register `cp` waits for, whose key image is at `key`.
    ///
    /// # Safety
    /// The key image is that of this access, in a block of the procedure.
    #[inline(always)]
    pub unsafe fn prefetch_row_of(&self, cp: u8, key: *const u8, row: u64) {
        if let Some(number) = self.steps.iter().position(|step| step.cp == cp) {
            let block = key.wrapping_sub(self.steps[number].key_offset as usize);
            // SAFETY: as the caller's.
            unsafe {
                for touch in part(&self.touches, &self.steps[number].touches) {
                    touch.prefetch(block, row);
                }
            }
        }
    }

    /// Calls `f` with each piece of its row that access `number` touches: where it begins, its length, and whether it
    /// is written. Where the arguments fail a check before the piece is touched, it may begin anywhere.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn touches(&self, number: usize, block: *const u8, mut f: impl FnMut(i64, u32, bool)) {
        // SAFETY: step and touches are of one recipe; block as the caller's.
        unsafe {
            for touch in part(&self.touches, &self.steps[number].touches) {
                f(touch.start(block), touch.length, touch.write);
            }
        }
    }

    /// Adds to `lines` those of the block that the fragment of access `number` touches.
    #[inline(always)]
    pub fn collect_block(&self, number: usize, block: *const u8, lines: &mut Lines) {
        // SAFETY: step and lines are of one recipe.
        for &offset in unsafe { part(&self.lines, &self.steps[number].lines) } {
            lines.push(block as u64 + u64::from(offset));
        }
    }

    /// Whether the arguments pass all checks.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    #[must_use]
    pub unsafe fn passes(&self, block: *const u8) -> bool {
        for check in &self.checks {
            let passes = match check {
                // SAFETY: as the caller's.
                Check::Below(index, limit) => (unsafe { index.value(block) } as u64) < *limit,
                Check::Other(check) => {
                    let end = check.argument.offset as usize + 8;
                    // SAFETY: arguments are in the block, which is whole lines, and at most eight bytes long.
                    check.passes(unsafe { std::slice::from_raw_parts(block, end.next_multiple_of(64)) })
                }
            };
            if !passes {
                return false;
            }
        }
        true
    }

    /// Calls `f` with the moves of access `number`: where the piece of the row begins, where that of the block, and its
    /// length.
    ///
    /// # Safety
    /// The recipe is [complete](Self::is_complete), and the block [passes](Self::passes).
    #[inline(always)]
    pub unsafe fn moves(&self, number: usize, block: *const u8, mut f: impl FnMut(usize, usize, usize)) {
        // SAFETY: step and moves are of one recipe; what passes moves inside row and block.
        unsafe {
            for piece in part(&self.moves, &self.steps[number].moves) {
                f(piece.start(block) as usize, piece.block_offset as usize, piece.length as usize);
            }
        }
    }

    /// Makes the moves of access `number`.
    ///
    /// # Safety
    /// The recipe is [complete](Self::is_complete), the block [passes](Self::passes), `row` is the row that the access
    /// finds, and nobody else touches the bytes of either that the access touches.
    #[inline(always)]
    pub unsafe fn make(&self, number: usize, block: *mut u8, row: u64) {
        // SAFETY: as the caller's.
        unsafe {
            for piece in part(&self.moves, &self.steps[number].moves) {
                piece.make(block, row);
            }
        }
    }

    /// Makes all moves; `rows` are the rows of the accesses. Between long moves it fetches from `lines`.
    ///
    /// # Safety
    /// As [`Self::make`], for each of them.
    #[inline(always)]
    pub unsafe fn make_all(&self, block: *mut u8, rows: &[u64], lines: &mut Lines) {
        for piece in &self.moves {
            // SAFETY: as the caller's.
            unsafe { piece.make(block, rows[usize::from(piece.access)]) }
            if piece.length > 64 {
                lines.fetch_some(piece.length);
            }
        }
    }
}
