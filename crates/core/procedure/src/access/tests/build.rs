//! A procedure with arguments, results and scratch of 32 integers each, over two tables of one schema.

use std::sync::Arc;

use crate::isa::{Instruction, NO_LABEL, Opcode};
use crate::key::KeyFormat;
use crate::program::{Field, Procedure};
use crate::schema::{ColumnType, TableSchema};
use crate::verified::{Facts, TableUse, Verified};

pub(super) const ARGUMENTS: u32 = 32;
pub(super) const RESULTS: u32 = ARGUMENTS + 256;
pub(super) const SCRATCH: u32 = RESULTS + 256;
pub(super) const BLOCK: usize = SCRATCH as usize + 256;
/// Offsets of the columns of a row: two integers, and a line of bytes.
pub(super) const A: u32 = 24;
pub(super) const B: u32 = 32;
pub(super) const DATA: u32 = 64;

pub(super) fn argument(index: u32) -> u32 {
    ARGUMENTS + 8 * index
}

pub(super) fn result(index: u32) -> u32 {
    RESULTS + 8 * index
}

pub(super) fn scratch(index: u32) -> u32 {
    SCRATCH + 8 * index
}

pub(super) fn schema(name: &str) -> TableSchema {
    let columns =
        [("key", ColumnType::I64), ("a", ColumnType::I64), ("b", ColumnType::I64), ("data", ColumnType::Bytes(64))];
    TableSchema::new(name, &columns, 1, true).unwrap()
}

/// The logic, as verified: with trivial handlers, and what may abort said as the verifier says it (`sure` names
/// instructions beside loads and copies that it could prove not to).
pub(super) fn verified_with(logic: &[Instruction], sure: &[usize]) -> Verified {
    let mut code = logic.to_vec();
    let commit_handler = code.len() as u32;
    code.extend([Instruction::new(Opcode::Commit); 2]);
    let field = |name: &str, offset| Field { name: name.into(), column_type: ColumnType::I64, count: 32, offset };
    let tables = ["alpha", "beta"];
    let facts = code.iter().enumerate().map(|(pc, i)| {
        let byte = i.opcode as u8;
        let fallible = (0x10..=0x17).contains(&byte)
            || matches!(i.opcode, Opcode::Check)
            || matches!(i.opcode, Opcode::Store | Opcode::Storer) && i.w != 8
            || i.opcode == Opcode::Ret && i.x == NO_LABEL;
        Facts { reachable: true, may_abort: fallible && !sure.contains(&pc), needs_undo: false }
    });
    Verified {
        facts: facts.collect(),
        tables: (0..2)
            .map(|slot| {
                let schema = schema(tables[slot]);
                TableUse { id: slot as u16, key: KeyFormat::of(&schema), schema: Arc::new(schema) }
            })
            .collect(),
        gp_registers: 32,
        cp_registers: 16,
        loops: Vec::new(),
        step_bound: 100_000,
        procedure: Procedure {
            name: "example".into(),
            tables: tables.map(String::from).to_vec(),
            parameters: vec![field("argument", ARGUMENTS)],
            results: vec![field("result", RESULTS)],
            scratch: vec![field("scratch", SCRATCH)],
            commit_handler,
            abort_handler: commit_handler + 1,
            code,
        },
    }
}

pub(super) fn verified(logic: &[Instruction]) -> Verified {
    verified_with(logic, &[])
}

pub(super) fn commit() -> Instruction {
    Instruction::new(Opcode::Commit)
}

pub(super) fn abort(code: u16) -> Instruction {
    Instruction { w: code, ..Instruction::new(Opcode::Abort) }
}

pub(super) fn mov(a: u8, b: u8) -> Instruction {
    Instruction { a, b, ..Instruction::new(Opcode::Mov) }
}

pub(super) fn movi(a: u8, value: i64) -> Instruction {
    Instruction { a, ..Instruction::new(Opcode::Movi) }.with_immediate(value)
}

/// Arithmetic of two registers.
pub(super) fn binary(opcode: Opcode, a: u8, b: u8, c: u8) -> Instruction {
    Instruction { a, b, c, ..Instruction::new(opcode) }
}

/// Arithmetic, comparison or CHECK with a constant.
pub(super) fn constant(opcode: Opcode, a: u8, b: u8, value: i64) -> Instruction {
    Instruction { a, b, ..Instruction::new(opcode) }.with_immediate(value)
}

pub(super) fn cmp(b: u8, c: u8) -> Instruction {
    Instruction { b, c, ..Instruction::new(Opcode::Cmp) }
}

pub(super) fn load(a: u8, x: u32, index: u8, w: u16) -> Instruction {
    Instruction { a, x, c: index, w, ..Instruction::new(Opcode::Load) }
}

pub(super) fn store(a: u8, x: u32, index: u8) -> Instruction {
    Instruction { a, x, c: index, w: 8, ..Instruction::new(Opcode::Store) }
}

pub(super) fn loadr(a: u8, row: u8, x: u32) -> Instruction {
    Instruction { a, b: row, x, w: 8, ..Instruction::new(Opcode::Loadr) }
}

pub(super) fn storer(a: u8, row: u8, x: u32) -> Instruction {
    Instruction { a, b: row, x, w: 8, ..Instruction::new(Opcode::Storer) }
}

/// Copies from a row, at `y` plus a register, into the block.
pub(super) fn copy_out(x: u32, row: u8, y: u32, index: u8, w: u16) -> Instruction {
    Instruction { x, c: row, y, e: index, w, ..Instruction::new(Opcode::CopyBr) }
}

/// Copies from the block into a row, at `x` plus a register.
pub(super) fn copy_in(row: u8, x: u32, index: u8, y: u32, w: u16) -> Instruction {
    Instruction { x, b: row, d: index, y, w, ..Instruction::new(Opcode::CopyRb) }
}

pub(super) fn db(opcode: Opcode, cp: u8, slot: u8, key: u32) -> Instruction {
    Instruction { a: cp, d: slot, x: key, ..Instruction::new(opcode) }
}

pub(super) fn ret(a: u8, cp: u8) -> Instruction {
    Instruction { a, b: cp, x: NO_LABEL, ..Instruction::new(Opcode::Ret) }
}

pub(super) fn ret_else(a: u8, cp: u8, x: usize) -> Instruction {
    Instruction { a, b: cp, x: x as u32, ..Instruction::new(Opcode::Ret) }
}

pub(super) fn to(opcode: Opcode, x: usize) -> Instruction {
    Instruction { x: x as u32, ..Instruction::new(opcode) }
}

/// A block whose first arguments are these.
pub(super) fn block(arguments: &[i64]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for (index, value) in arguments.iter().enumerate() {
        let at = argument(index as u32) as usize;
        block[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    block
}
