//! Row programs: which rows a bulk operation takes, and what becomes of them.
//!
//! A row program is a verified procedure with one table and one DB instruction, which is answered with the row at hand,
//! whatever key it names ([`Operation`]). Host and storage check it by the same rules, and both evaluate it: the
//! storage on its processing elements; the host where a bulk update runs on the host, and to keep its own transactions
//! off the rows that one in the storage is going to change.
//!
//! A row is not copied to be read. A row to be changed is a copy of the evaluator's own, which becomes the new version
//! or is dropped; so nothing needs to be taken back.
//!
//! Invariant: every row is evaluated with results and scratch zero, so no row sees another.

use lockwork_procedure::assembly::{FormatError, decode};
use lockwork_procedure::block::{BlockMut, Status, abort};
use lockwork_procedure::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode};
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::{ColumnType, ROW_HEADER_BYTES, TableSchema};
use lockwork_procedure::verify::{VerifyError, verify};

use crate::device::{DeviceError, Fold, Operation, Purpose};

const HEADER: usize = ROW_HEADER_BYTES as usize;

/// Why an operation has no row program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowProgramError {
    /// Its bytes are no procedure.
    #[error("the row program: {0}")]
    NoProcedure(#[from] FormatError),
    /// Its procedure is not sound.
    #[error("the row program: {0}")]
    Unsound(#[from] VerifyError),
    /// Its procedure is sound, and of another kind.
    #[error("row program '{procedure}': {problem}")]
    Unfit {
        /// The procedure.
        procedure: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
}

impl From<RowProgramError> for DeviceError {
    fn from(error: RowProgramError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// A result field and what is done with it.
#[derive(Clone, Copy, Debug)]
struct FoldField {
    fold: Fold,
    column_type: ColumnType,
    offset: usize,
}

/// A row program that was checked, with its arguments.
#[derive(Debug)]
pub struct RowProgram {
    program: Program,
    /// Header and arguments as given, the rest zero.
    block: Vec<u8>,
    results_start: usize,
    /// Bytes of a row in memory, header included.
    row_bytes: usize,
    folds: Vec<FoldField>,
}

impl RowProgram {
    /// Checks the program of an operation against these tables, by number.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    ///
    /// # Panics
    /// When there is no table of the operation's number.
    pub fn new(operation: &Operation, schemas: &[TableSchema]) -> Result<Self, RowProgramError> {
        let schema = &schemas[usize::from(operation.table)];
        let verified = verify(decode(&operation.program)?, schemas)?;
        let procedure = verified.procedure();
        let unfit = |problem| Err(RowProgramError::Unfit { procedure: procedure.name.clone(), problem });
        if !matches!(verified.tables(), [table] if table.id == operation.table) {
            return unfit(format!("it must use table '{}' and no other", schema.name()));
        }
        let wanted = match operation.purpose {
            Purpose::Update(_) => Opcode::Update,
            Purpose::Filter | Purpose::Aggregate(_) => Opcode::Search,
        };
        let mut found = procedure.code.iter().map(|instruction| instruction.opcode).filter(|opcode| opcode.is_db());
        if (found.next(), found.next()) != (Some(wanted), None) {
            return unfit(format!("its one DB instruction must be {}, once", wanted.mnemonic()));
        }
        let mut folds = Vec::new();
        if let Purpose::Aggregate(wanted) = &operation.purpose {
            for (field, fold) in wanted {
                match procedure.result(field) {
                    Some(found) if found.column_type.is_integer() && found.count == 1 => {
                        let (column_type, offset) = (found.column_type, found.offset as usize);
                        folds.push(FoldField { fold: *fold, column_type, offset });
                    }
                    _ => return unfit(format!("'{field}' is not a result of one integer")),
                }
            }
        }
        let layout = procedure.layout();
        let (given, needed) = (operation.block.len(), layout.block_bytes as usize);
        if given < needed {
            return unfit(format!("its block has {given} bytes, {needed} are needed"));
        }
        let mut block = operation.block[..needed].to_vec();
        block[layout.arguments_end as usize..].fill(0);
        BlockMut::new(&mut block).set_outcome(Status::Pending, 0);
        let (results_start, row_bytes) = (layout.results_start as usize, schema.row_bytes() as usize);
        Ok(Self { program: Program::new(&verified), block, results_start, row_bytes, folds })
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
}

/// Registers, block and row of one thread that evaluates a program.
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
    /// Evaluates `program` on rows of its table.
    #[must_use]
    pub fn new(program: &'p RowProgram) -> Self {
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

    /// Whether a program that only reads takes a row, without a copy of it. `row` begins with the row's header, the
    /// image follows; what the header holds does not matter, because no procedure can reach it.
    ///
    /// # Errors
    /// The code of an abort that the program did not ask for.
    ///
    /// # Panics
    /// When the row is shorter than those of the table.
    #[inline(always)]
    pub fn takes(&mut self, row: &[u8]) -> Result<bool, u16> {
        assert!(row.len() >= self.program.row_bytes, "a whole row");
        // SAFETY: a row as long as its schema says; SEARCH gives a handle that the verifier lets nobody write through.
        unsafe { self.run(row.as_ptr().cast_mut()) }
    }

    /// The image of a row after the program took it, or `None` if it did not.
    ///
    /// # Errors
    /// The code of an abort that the program did not ask for.
    ///
    /// # Panics
    /// When the image is not as long as those of the table.
    #[inline(always)]
    pub fn change(&mut self, image: &[u8]) -> Result<Option<&[u8]>, u16> {
        let end = self.program.row_bytes;
        self.row[HEADER..end].copy_from_slice(image);
        let row = self.row.as_mut_ptr();
        // SAFETY: the row is this evaluator's own and at least as long as its schema says.
        let taken = unsafe { self.run(row) }?;
        Ok(taken.then(|| &self.row[HEADER..end]))
    }

    /// What the program has written into a result field.
    #[inline(always)]
    fn result(&self, field: &FoldField) -> i64 {
        let bytes = &self.block[field.offset..field.offset + field.column_type.width() as usize];
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        if field.column_type.is_signed() && bytes[bytes.len() - 1] & 0x80 != 0 {
            wide[bytes.len()..].fill(0xFF);
        }
        i64::from_le_bytes(wide)
    }
}

/// Results of an aggregate's program, folded over the rows that it took. 2^64 rows cannot overflow a sum.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    values: Option<Vec<i128>>,
}

impl Folded {
    /// Adds the results of the row that was taken last.
    #[inline(always)]
    pub fn add(&mut self, evaluator: &Evaluator<'_>) {
        let folds = &evaluator.program.folds;
        let new = |field| i128::from(evaluator.result(field));
        match &mut self.values {
            Some(values) => folds.iter().zip(values).for_each(|(field, value)| combine(field.fold, value, new(field))),
            none => *none = Some(folds.iter().map(new).collect()),
        }
    }

    /// Adds what was folded elsewhere with the same program.
    pub fn merge(&mut self, program: &RowProgram, other: Self) {
        match (&mut self.values, other.values) {
            (Some(values), Some(others)) => {
                let fields = program.folds.iter().zip(values).zip(others);
                fields.for_each(|((field, value), other)| combine(field.fold, value, other));
            }
            (none @ None, others) => *none = others,
            (Some(_), None) => {}
        }
    }

    /// One value for each of the program's folds, as the operation names them, in order; `None` if no row was taken.
    ///
    /// # Errors
    /// [`DeviceError::Refused`]: a sum does not fit 64 bits with a sign.
    pub fn values(&self, folds: &[(String, Fold)]) -> Result<Option<Vec<i64>>, DeviceError> {
        let narrow = |(&value, (name, _)): (&i128, &(String, Fold))| {
            let text = || format!("the sum of '{name}' is {value}, which does not fit 64 bits with a sign");
            i64::try_from(value).map_err(|_| DeviceError::Refused(text()))
        };
        self.values.as_ref().map(|values| values.iter().zip(folds).map(narrow).collect()).transpose()
    }
}

fn combine(fold: Fold, value: &mut i128, new: i128) {
    match fold {
        Fold::Sum => *value += new,
        Fold::Min => *value = new.min(*value),
        Fold::Max => *value = new.max(*value),
    }
}
