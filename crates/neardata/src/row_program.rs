//! Row programs: verified procedures that are asked about one row at a time.
//!
//! The one DB instruction of a row program is answered with the current row, whatever key it names. A row is not copied
//! to be read: its image is looked at in the buffer that the disk has filled. A row to be changed is a copy of the
//! processing element's own, which becomes the new version or is dropped; so nothing needs to be taken back.
//!
//! Invariant: the 16 bytes before a row image are readable, because a record's header is longer than a row's
//! and no procedure can reach them.

use lockwork_procedure::assembly::decode;
use lockwork_procedure::block::{BlockMut, abort};
use lockwork_procedure::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use lockwork_procedure::isa::Opcode;
use lockwork_procedure::schema::{ColumnType, ROW_HEADER_BYTES, TableSchema};
use lockwork_procedure::verify::verify;

use super::page::RECORD_BYTES;
use crate::device::{DeviceError, Fold, Operation, Purpose};

const _: () = assert!(RECORD_BYTES >= ROW_HEADER_BYTES as usize);

/// A result field and what is done with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldField {
    pub(super) fold: Fold,
    column_type: ColumnType,
    offset: usize,
}

/// A row program, checked.
#[derive(Debug)]
pub(super) struct RowProgram {
    program: Program,
    /// Header and arguments as given, the rest zero.
    block: Vec<u8>,
    results_start: usize,
    /// Bytes of a row in memory.
    row_bytes: usize,
    pub(super) folds: Vec<FoldField>,
}

fn refuse<T>(text: String) -> Result<T, DeviceError> {
    Err(DeviceError::Refused(text))
}

impl RowProgram {
    /// Checks the program of an operation on one of these tables.
    pub(super) fn new(operation: &Operation, schemas: &[TableSchema]) -> Result<Self, DeviceError> {
        let schema = &schemas[usize::from(operation.table)];
        let procedure = decode(&operation.program).or_else(|error| refuse(format!("the row program: {error}")))?;
        let verified = verify(procedure, schemas).or_else(|error| refuse(format!("the row program: {error}")))?;
        let procedure = verified.procedure();
        let (wanted, verb) = match operation.purpose {
            Purpose::Update(_) => (Opcode::Update, "UPDATE"),
            _ => (Opcode::Search, "SEARCH"),
        };
        let name = &procedure.name;
        match verified.tables() {
            [table] if table.id == operation.table => {}
            _ => {
                let table = schema.name();
                return refuse(format!("row program '{name}': it must use table '{table}' and no other"));
            }
        }
        let mut found = procedure.code.iter().map(|instruction| instruction.opcode).filter(|opcode| opcode.is_db());
        if (found.next(), found.next()) != (Some(wanted), None) {
            return refuse(format!("row program '{name}': its one DB instruction must be {verb}, once"));
        }
        let layout = procedure.layout();
        let mut folds = Vec::new();
        if let Purpose::Aggregate(wanted) = &operation.purpose {
            for (field, fold) in wanted {
                match procedure.result(field) {
                    Some(found) if found.column_type.is_integer() && found.count == 1 => {
                        let (column_type, offset) = (found.column_type, found.offset as usize);
                        folds.push(FoldField { fold: *fold, column_type, offset });
                    }
                    _ => return refuse(format!("row program '{name}': '{field}' is not a result of one integer")),
                }
            }
        }
        let (given, needed) = (operation.block.len(), layout.block_bytes as usize);
        if given < needed {
            return refuse(format!("row program '{name}': its block has {given} bytes, {needed} are needed"));
        }
        let mut block = operation.block[..needed].to_vec();
        block[layout.arguments_end as usize..].fill(0);
        BlockMut::new(&mut block).set_outcome(lockwork_procedure::block::Status::Pending, 0);
        let (results_start, row_bytes) = (layout.results_start as usize, schema.row_bytes() as usize);
        Ok(Self { program: Program::new(&verified), block, results_start, row_bytes, folds })
    }
}

/// One processing element's registers, block and row for a program.
pub(super) struct Evaluator<'p> {
    program: &'p RowProgram,
    block: Vec<u8>,
    registers: Vec<i64>,
    cps: Vec<()>,
    row: Vec<u8>,
}

/// Answers with the one row.
struct OneRow(*mut u8);

impl Host for OneRow {
    type Cp = ();

    #[inline(always)]
    fn issue(&mut self, (): &mut (), _: Request) {}

    #[inline(always)]
    fn answer(&mut self, _: &mut [()], _: usize) -> Answer {
        Answer::Ready(self.0 as u64)
    }

    #[inline(always)]
    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {}
}

impl<'p> Evaluator<'p> {
    pub(super) fn new(program: &'p RowProgram) -> Self {
        Self {
            block: program.block.clone(),
            registers: vec![0; program.program.gp_registers().max(1)],
            cps: vec![(); program.program.cp_registers()],
            row: vec![0; program.row_bytes.next_multiple_of(64)],
            program,
        }
    }

    /// # Safety
    /// `row` is the address of a row of the program's table, header included. An updating program may write it.
    #[inline(always)]
    unsafe fn run(&mut self, row: *mut u8) -> Result<bool, u16> {
        self.block[self.program.results_start..].fill(0);
        let program = &self.program.program;
        let block = self.block.as_mut_ptr();
        // SAFETY: the windows are as wide as the program asks, register 0 is never written, the block is whole and
        // ours, the row is the caller's promise.
        unsafe {
            let (registers, cps) = (&mut self.registers, &mut self.cps);
            match run(program, &mut Context::default(), registers, cps, block, &mut OneRow(row)) {
                Stop::Committed => {
                    program.run_commit_handler(&mut self.registers, block);
                    Ok(true)
                }
                Stop::Aborted(code) if code < abort::FIRST_RESERVED => Ok(false),
                Stop::Aborted(code) | Stop::Failed(code) => Err(code),
                Stop::Waiting | Stop::Conflict => unreachable!("the row is always there"),
            }
        }
    }

    /// Whether a program that only reads takes the row of this record, or the code with which it failed.
    #[inline(always)]
    pub(super) fn takes(&mut self, record: &[u8]) -> Result<bool, u16> {
        let row = &record[RECORD_BYTES - ROW_HEADER_BYTES as usize..];
        assert!(row.len() >= self.program.row_bytes, "a record holds a whole row");
        // SAFETY: a row as long as its schema says; SEARCH gives a handle that the verifier lets nobody write through.
        unsafe { self.run(row.as_ptr().cast_mut()) }
    }

    /// The changed image of a row, if the program takes it, or the code with which it failed.
    #[inline(always)]
    pub(super) fn change(&mut self, image: &[u8]) -> Result<Option<&[u8]>, u16> {
        self.row[ROW_HEADER_BYTES as usize..][..image.len()].copy_from_slice(image);
        let row = self.row.as_mut_ptr();
        // SAFETY: the row is this element's own and at least as long as its schema says.
        let taken = unsafe { self.run(row) }?;
        Ok(taken.then(|| &self.row[ROW_HEADER_BYTES as usize..][..image.len()]))
    }

    /// What the program has written into a result field.
    #[inline(always)]
    pub(super) fn result(&self, field: &FoldField) -> i64 {
        let bytes = &self.block[field.offset..field.offset + field.column_type.width() as usize];
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        if field.column_type.is_signed() && bytes[bytes.len() - 1] & 0x80 != 0 {
            wide[bytes.len()..].fill(0xFF);
        }
        i64::from_le_bytes(wide)
    }
}
