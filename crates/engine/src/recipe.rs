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
use lockwork_procedure::isa::{Instruction, Opcode};
use lockwork_procedure::key::{Key, mix};
use lockwork_storage::Table;

/// One access.
#[derive(Debug)]
struct Step {
    table: Arc<Table>,
    key_offset: u32,
    /// The CP register of its DB instruction.
    cp: u8,
    /// The key is one signed 64-bit integer.
    word_key: bool,
    /// It looks a row up that is there already.
    looks_up: bool,
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
    write: bool,
    index: Option<ArgumentIndex>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Recipe {
    steps: Vec<Step>,
    touches: Vec<Piece>,
    moves: Vec<Piece>,
    lines: Vec<u32>,
    checks: Vec<ArgumentCheck>,
    complete: bool,
}

/// An argument times a constant.
///
/// # Safety
/// The argument lies in the block.
#[inline(always)]
unsafe fn value(index: &ArgumentIndex, block: *const u8) -> i64 {
    // SAFETY: the argument is as wide as its width says, and all bit patterns are integers.
    let argument = unsafe {
        let at = block.add(index.offset as usize);
        match index.width {
            1 => i64::from(at.read()),
            2 => i64::from(u16::from_le(at.cast::<u16>().read_unaligned())),
            4 => i64::from(u32::from_le(at.cast::<u32>().read_unaligned())),
            // No argument is wider than eight bytes, and a block is whole lines.
            _ => {
                other_width(index, std::slice::from_raw_parts(block, (index.offset as usize + 8).next_multiple_of(64)))
            }
        }
    };
    argument.wrapping_mul(index.scale)
}

#[inline(never)]
fn other_width(index: &ArgumentIndex, block: &[u8]) -> i64 {
    index.argument(block)
}

impl Recipe {
    /// The recipe of a procedure over these tables. `moves_allowed`: none of its writes ever has to be taken back.
    #[must_use]
    pub fn new(straight: &Straight, tables: &[Arc<Table>], moves_allowed: bool) -> Self {
        let all_moves = straight.moves.as_ref().filter(|_| moves_allowed);
        let mut recipe = Self { checks: straight.checks.clone(), complete: all_moves.is_some(), ..Self::default() };
        for (number, access) in straight.accesses.iter().enumerate() {
            let table = tables[usize::from(access.slot)].clone();
            let starts = (recipe.touches.len() as u32, recipe.moves.len() as u32, recipe.lines.len() as u32);
            recipe.touches.extend(access.touches.iter().map(|touch| Piece {
                row_offset: touch.offset,
                block_offset: 0,
                length: touch.length,
                write: touch.write,
                index: touch.index,
            }));
            recipe.moves.extend(all_moves.iter().flat_map(|moves| &moves[number]).map(|piece| Piece {
                row_offset: piece.row_offset,
                block_offset: piece.block_offset,
                length: piece.length,
                write: piece.write,
                index: piece.index,
            }));
            if let Some(fragments) = &straight.fragments {
                recipe.lines.extend(block_lines(&fragments[number].code));
            }
            recipe.steps.push(Step {
                word_key: table.key_format().is_one_integer(),
                table,
                key_offset: access.key_offset,
                cp: access.cp,
                looks_up: matches!(access.operation, Operation::Search | Operation::Update),
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

    /// Whether its moves are all that the procedure does, once every row exists and [`Self::passes`] is true.
    #[inline(always)]
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The key of an access.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    unsafe fn key(step: &Step, block: *const u8) -> Key {
        // SAFETY: the key image lies in the block.
        unsafe {
            let image = block.add(step.key_offset as usize);
            if step.word_key {
                Key([u64::from_le(image.cast::<u64>().read_unaligned()) ^ 1 << 63, 0, 0, 0])
            } else {
                let format = step.table.key_format();
                format.encode(std::slice::from_raw_parts(image, format.image_bytes()))
            }
        }
    }

    /// The hash of the key of access `number`.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn hash(&self, number: usize, block: *const u8) -> u64 {
        let step = &self.steps[number];
        // SAFETY: as the caller's.
        let key = unsafe { Self::key(step, block) };
        if step.word_key { mix(key.0[0]) } else { key.hash() }
    }

    /// Brings the index bucket of access `number` into cache.
    #[inline(always)]
    pub fn prefetch_bucket(&self, number: usize, hash: u64) {
        self.steps[number].table.prefetch(hash);
    }

    /// The address of the row of access `number`, whose key's hash is `hash`; zero if there is none, or if the access
    /// looks none up.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    #[must_use]
    pub unsafe fn find(&self, number: usize, block: *const u8, hash: u64) -> u64 {
        let step = &self.steps[number];
        if !step.looks_up {
            return 0;
        }
        // SAFETY: as the caller's.
        let key = unsafe { Self::key(step, block) };
        step.table.find(hash, &key).map_or(0, |row| row.as_ptr() as u64)
    }

    /// Prefetches the lines of its row that access `number` will touch.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn prefetch_row(&self, number: usize, block: *const u8, row: u64) {
        let Range { start, end } = self.steps[number].touches;
        for touch in &self.touches[start as usize..end as usize] {
            // SAFETY: as the caller's.
            let index = touch.index.as_ref().map_or(0, |index| unsafe { value(index, block) });
            // Arguments that fail a check later may give anything.
            let start = row.wrapping_add_signed(i64::from(touch.row_offset).wrapping_add(index));
            let end = start.wrapping_add(u64::from(touch.length));
            let mut line = start & !63;
            while line < end {
                prefetch(line as *const u8);
                line = line.wrapping_add(64);
            }
        }
    }

    /// As [`Self::prefetch_row`] for the access that CP register `cp` waits for, whose key image is at `key`.
    ///
    /// # Safety
    /// The key image is that of this access, in a block of the procedure.
    #[inline(always)]
    pub unsafe fn prefetch_row_of(&self, cp: u8, key: *const u8, row: u64) {
        if let Some(number) = self.steps.iter().position(|step| step.cp == cp) {
            let block = key.wrapping_sub(self.steps[number].key_offset as usize);
            // SAFETY: as the caller's.
            unsafe { self.prefetch_row(number, block, row) }
        }
    }

    /// Prefetches the lines of the block that the fragment of access `number` touches.
    #[inline(always)]
    pub fn prefetch_block_lines(&self, number: usize, block: *const u8) {
        let Range { start, end } = self.steps[number].lines;
        for &line in &self.lines[start as usize..end as usize] {
            prefetch(block.wrapping_add(line as usize));
        }
    }

    /// Whether the arguments pass all checks.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    #[must_use]
    pub unsafe fn passes(&self, block: *const u8) -> bool {
        self.checks.iter().all(|check| {
            if check.argument.scale == 1 && check.base == 0 {
                // SAFETY: as the caller's.
                return (0..check.limit).contains(&unsafe { value(&check.argument, block) });
            }
            let end = check.argument.offset as usize + 8;
            // SAFETY: arguments are in the block, which is whole lines, and at most eight bytes long.
            check.passes(unsafe { std::slice::from_raw_parts(block, end.next_multiple_of(64)) })
        })
    }

    /// Makes the moves of access `number`.
    ///
    /// # Safety
    /// The recipe is [complete](Self::is_complete), the block [passes](Self::passes), `row` is the row that the access finds, and
    /// nobody else touches the bytes of either that the access touches.
    #[inline(always)]
    pub unsafe fn make(&self, number: usize, block: *mut u8, row: u64) {
        let Range { start, end } = self.steps[number].moves;
        for piece in &self.moves[start as usize..end as usize] {
            // SAFETY: the verifier proved that both places lie in block and row.
            unsafe {
                let index = piece.index.as_ref().map_or(0, |index| value(index, block));
                let in_row = (row as *mut u8).offset(piece.row_offset as isize + index as isize);
                let in_block = block.add(piece.block_offset as usize);
                let (from, to) = if piece.write { (in_block, in_row) } else { (in_row, in_block) };
                if piece.length == 64 {
                    to.cast::<[u8; 64]>().write_unaligned(from.cast::<[u8; 64]>().read_unaligned());
                } else {
                    from.copy_to_nonoverlapping(to, piece.length as usize);
                }
            }
        }
    }
}

/// The lines of the block that code reads or writes at constant offsets, as offsets.
fn block_lines(code: &[Instruction]) -> Vec<u32> {
    let mut lines = Vec::new();
    for i in code {
        let pieces = match i.opcode {
            Opcode::Load | Opcode::Store => [Some((i.x, 8)), None],
            Opcode::CopyBr => [Some((i.x, u32::from(i.w))), None],
            Opcode::CopyRb => [Some((i.y, u32::from(i.w))), None],
            Opcode::CopyBb => [Some((i.x, u32::from(i.w))), Some((i.y, u32::from(i.w)))],
            _ => [None, None],
        };
        for (offset, length) in pieces.into_iter().flatten() {
            lines.extend((offset / 64..=(offset + length - 1) / 64).map(|line| line * 64));
        }
    }
    lines.sort_unstable();
    lines.dedup();
    lines
}
