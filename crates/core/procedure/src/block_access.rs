//! Which bytes of the block an instruction names.

use crate::isa::{Instruction, Opcode, SIGNED, scan_stride};
use crate::schema::TableSchema;

/// Bytes of the block that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAccess {
    /// Where they begin, from the start of the block, less what [`index`](Self::index) holds.
    pub offset: u32,
    /// The register that holds the rest of the place; `r0`, which holds zero, for a constant one.
    pub index: u8,
    /// How many they are.
    pub length: u32,
    /// They are written, and otherwise read.
    pub writes: bool,
}

/// The bytes of the block that `instruction` reads, then those it writes. `schema` is that of its table, if it is a DB
/// instruction.
pub fn block_accesses(instruction: &Instruction, schema: Option<&TableSchema>) -> impl Iterator<Item = BlockAccess> {
    let i = instruction;
    let read = |offset, index, length| Some(BlockAccess { offset, index, length, writes: false });
    let write = |offset, index, length| Some(BlockAccess { offset, index, length, writes: true });
    let (width, count) = (u32::from(i.w & !SIGNED), u32::from(i.w));
    let pair = match (i.opcode, schema) {
        (Opcode::Load, _) => [read(i.x, i.c, width), None],
        (Opcode::Store, _) => [None, write(i.x, i.c, width)],
        (Opcode::CopyBb, _) => [read(i.y, i.e, count), write(i.x, i.d, count)],
        (Opcode::CopyBr, _) => [None, write(i.x, i.d, count)],
        (Opcode::CopyRb, _) => [read(i.y, i.e, count), None],
        (Opcode::Scan, Some(schema)) => {
            let rows = scan_stride(schema, usize::from(i.e).checked_sub(1)).saturating_mul(count);
            [read(i.x, i.c, schema.key_bytes()), write(i.y, 0, rows)]
        }
        (_, Some(schema)) => [read(i.x, i.c, schema.key_bytes()), None],
        _ => [None, None],
    };
    pair.into_iter().flatten()
}
