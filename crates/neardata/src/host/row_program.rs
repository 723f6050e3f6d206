//! Row programs, evaluated on the host: which rows a bulk operation takes, and what becomes of them.
//!
//! A row program is a verified procedure with one table and one DB instruction, which is answered with the row at hand
//! ([`Operation`]). The host checks a program before it sends it, and evaluates it itself where a bulk update runs on
//! the host.
//!
//! Invariant: every row is evaluated on a copy and with results and scratch zero, so no row sees another.

use lockwork_procedure::assembly::decode;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode};
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::{Catalog, ColumnType, ROW_HEADER_BYTES, TableSchema};
use lockwork_procedure::verify::verify;

use super::error::HostError;
use crate::device::{Fold, Operation, Purpose};

const HEADER: usize = ROW_HEADER_BYTES as usize;

/// A row program that was checked, with its arguments.
#[derive(Debug)]
pub struct RowProgram {
    program: Program,
    /// Arguments as given; results and scratch zero.
    block: Vec<u8>,
    results_start: usize,
    folds: Vec<(Fold, ColumnType, usize)>,
}

impl RowProgram {
    /// Checks the program of an operation against these tables, by number.
    ///
    /// # Errors
    /// [`HostError::NoRowProgram`] and [`HostError::Unsound`] say what is wrong and what would be right.
    pub fn new(operation: &Operation, schemas: &[TableSchema]) -> Result<Self, HostError> {
        let refuse = |procedure: &str, problem: String| {
            Err(HostError::NoRowProgram { procedure: procedure.to_string(), problem })
        };
        let procedure = match decode(&operation.program) {
            Ok(procedure) => procedure,
            Err(error) => return refuse("?", error.to_string()),
        };
        let verified = verify(procedure, schemas)?;
        let (procedure, layout) = (verified.procedure(), verified.procedure().layout());
        let name = procedure.name.as_str();
        if !matches!(verified.tables(), [table] if table.id == operation.table) {
            let names = schemas.table_names();
            let table = names.get(usize::from(operation.table)).map_or("?", String::as_str);
            return refuse(name, format!("it must use one table, '{table}'"));
        }
        let wanted = match operation.purpose {
            Purpose::Update(_) => Opcode::Update,
            Purpose::Filter | Purpose::Aggregate(_) => Opcode::Search,
        };
        let mut found = procedure.code.iter().map(|instruction| instruction.opcode).filter(|opcode| opcode.is_db());
        if (found.next(), found.next()) != (Some(wanted), None) {
            return refuse(name, format!("it must have one DB instruction, {}", wanted.mnemonic()));
        }
        let mut folds = Vec::new();
        if let Purpose::Aggregate(wanted) = &operation.purpose {
            for (field, fold) in wanted {
                match procedure.result(field) {
                    Some(found) if found.column_type.is_integer() && found.count == 1 => {
                        folds.push((*fold, found.column_type, found.offset as usize));
                    }
                    _ => return refuse(name, format!("'{field}' is not one of its results, or not one integer")),
                }
            }
        }
        let (given, needed) = (operation.block.len(), layout.block_bytes as usize);
        if given < needed {
            return refuse(name, format!("its block has {needed} bytes, and {given} were given"));
        }
        let mut block = operation.block[..needed].to_vec();
        block[layout.results_start as usize..].fill(0);
        let program = Program::new(&verified);
        Ok(Self { program, block, results_start: layout.results_start as usize, folds })
    }

    /// A row program that takes every row of a table, and a block for it.
    #[must_use]
    pub fn everything(schema: &TableSchema) -> (Procedure, Vec<u8>) {
        let key = ColumnType::Bytes(schema.key_bytes());
        let ([.., end], offsets) = Procedure::lay_out([&[(key, 1)], &[], &[]]);
        let offset = offsets[0] as u32;
        let code = vec![
            Instruction { x: offset, ..Instruction::new(Opcode::Search) },
            Instruction { x: NO_LABEL, ..Instruction::new(Opcode::Ret) },
            Instruction::new(Opcode::Commit),
            Instruction::new(Opcode::Commit),
            Instruction::new(Opcode::Commit),
        ];
        let procedure = Procedure {
            name: "everything".into(),
            tables: vec![schema.name().into()],
            parameters: vec![Field { name: "row".into(), column_type: key, count: 1, offset }],
            code,
            commit_handler: 3,
            abort_handler: 4,
            ..Procedure::default()
        };
        (procedure, vec![0; end as usize])
    }

    /// What is folded, in order.
    pub fn folds(&self) -> impl Iterator<Item = Fold> {
        self.folds.iter().map(|fold| fold.0)
    }
}

/// Evaluates a row program on one row after the other.
#[derive(Debug)]
pub struct Evaluator<'p> {
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
    /// Evaluates `program` on rows of a table of this schema, its own.
    #[must_use]
    pub fn new(program: &'p RowProgram, schema: &TableSchema) -> Self {
        Self {
            block: program.block.clone(),
            registers: vec![0; program.program.gp_registers().max(1)],
            cps: vec![(); program.program.cp_registers()],
            row: vec![0; schema.row_bytes() as usize],
            program,
        }
    }

    /// The row's image after the program took it, or `None` if it did not.
    ///
    /// # Errors
    /// The code of an abort that the program did not ask for.
    ///
    /// # Panics
    /// When the image is not as long as one of the table.
    pub fn take(&mut self, image: &[u8]) -> Result<Option<&[u8]>, u16> {
        self.row[HEADER..].copy_from_slice(image);
        self.block[self.program.results_start..].fill(0);
        let (program, mut context) = (&self.program.program, Context::default());
        let (block, mut row) = (self.block.as_mut_ptr(), OneRow(self.row.as_mut_ptr()));
        // SAFETY: the windows are as wide as the program asks, register 0 is zero, the block is whole and ours, and so
        // is the row, which is as long as its schema says.
        let stop = unsafe { run(program, &mut context, &mut self.registers, &mut self.cps, block, &mut row) };
        match stop {
            Stop::Committed => {
                // SAFETY: as above.
                unsafe { program.run_commit_handler(&mut self.registers, block) };
                Ok(Some(&self.row[HEADER..]))
            }
            Stop::Aborted(code) if code < abort::FIRST_RESERVED => Ok(None),
            Stop::Aborted(code) | Stop::Failed(code) => Err(code),
            Stop::Waiting | Stop::Conflict => unreachable!("the row is always there"),
        }
    }

    /// Folds the results of the row that was taken last into `values`; `first`: there are none yet.
    ///
    /// # Errors
    /// [`abort::OVERFLOW`].
    pub fn fold(&self, values: &mut [i64], first: bool) -> Result<(), u16> {
        for (value, &(fold, column_type, offset)) in values.iter_mut().zip(&self.program.folds) {
            let new = integer(&self.block[offset..offset + column_type.width() as usize], column_type.is_signed());
            *value = match fold {
                _ if first => new,
                Fold::Sum => value.checked_add(new).ok_or(abort::OVERFLOW)?,
                Fold::Min => new.min(*value),
                Fold::Max => new.max(*value),
            };
        }
        Ok(())
    }
}

/// A little-endian integer of up to eight bytes.
fn integer(bytes: &[u8], signed: bool) -> i64 {
    let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xFF } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(wide)
}
