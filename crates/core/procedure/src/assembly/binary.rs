//! Procedures as bytes.
//!
//! All integers little-endian; a *string* is a u16 length and that many bytes of UTF-8.
//!
//! ```text
//! 4 bytes   "LWP1"
//! string    name
//! u16       number of tables, then a string for each
//! 3 times   parameters, results, scratch:
//!             u16      number of fields, then for each
//!             string   name
//!             u8       type: 0 i8, 1 i16, 2 i32, 3 i64, 4 u8, 5 u16, 6 u32, 7 char(n), 8 bytes(n)
//!             u32      n, or zero
//!             u32      elements
//! u32       first instruction of the commit handler
//! u32       first instruction of the abort handler
//! u32       number of instructions, then 16 bytes for each (see [`crate::isa`])
//! ```
//!
//! Where fields lie follows from the declarations and is not stored. Whatever follows the last instruction is an error.
//!
//! The decoder holds bytes to what a source can say: valid and distinct names, limits of block and code, three sections
//! of at least one instruction each, abort codes of the procedure's own. So whatever it lets through can be
//! disassembled and assembled again. It trusts no count: memory is taken only as bytes are really there.

use std::collections::HashSet;

use super::parser::MAX_TABLES;
use crate::block::{MAX_BLOCK_BYTES, abort};
use crate::isa::{INSTRUCTION_BYTES, Instruction, MAX_INSTRUCTIONS, Opcode};
use crate::program::{Field, Procedure};
use crate::schema::{ColumnType, is_name};

const MAGIC: &[u8; 4] = b"LWP1";

/// Bytes that are no procedure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct FormatError {
    /// Where, in bytes from the start.
    pub offset: usize,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// The bytes of a procedure.
///
/// # Panics
/// When a name is longer than 65,535 bytes or there are more than 65,535 tables or fields of a kind:
/// [`super::assemble`] and [`decode`] make no such procedure.
#[must_use]
pub fn encode(procedure: &Procedure) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let count = |count: usize| u16::try_from(count).expect("at most 65,535").to_le_bytes();
    let string = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend(count(text.len()));
        bytes.extend(text.as_bytes());
    };
    string(&mut bytes, &procedure.name);
    bytes.extend(count(procedure.tables.len()));
    procedure.tables.iter().for_each(|table| string(&mut bytes, table));
    for fields in [&procedure.parameters, &procedure.results, &procedure.scratch] {
        bytes.extend(count(fields.len()));
        for field in fields {
            string(&mut bytes, &field.name);
            let (code, n) = type_code(field.column_type);
            bytes.push(code);
            bytes.extend(n.to_le_bytes());
            bytes.extend(field.count.to_le_bytes());
        }
    }
    bytes.extend(procedure.commit_handler.to_le_bytes());
    bytes.extend(procedure.abort_handler.to_le_bytes());
    bytes.extend((procedure.code.len() as u32).to_le_bytes());
    procedure.code.iter().for_each(|instruction| bytes.extend(instruction.encode()));
    bytes
}

fn type_code(column_type: ColumnType) -> (u8, u32) {
    match column_type {
        ColumnType::I8 => (0, 0),
        ColumnType::I16 => (1, 0),
        ColumnType::I32 => (2, 0),
        ColumnType::I64 => (3, 0),
        ColumnType::U8 => (4, 0),
        ColumnType::U16 => (5, 0),
        ColumnType::U32 => (6, 0),
        ColumnType::Char(n) => (7, n),
        ColumnType::Bytes(n) => (8, n),
    }
}

/// The procedure of these bytes. Its form is right; whether it is sound, the verifier tells.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn decode(bytes: &[u8]) -> Result<Procedure, FormatError> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.take(4)? != MAGIC {
        return Err(FormatError { offset: 0, problem: "a procedure begins with the bytes 'LWP1'".into() });
    }
    let name = reader.name()?;
    let tables = reader.tables()?;
    let mut names = HashSet::new();
    let fields_at = reader.at;
    let mut groups = [reader.fields(&mut names)?, reader.fields(&mut names)?, reader.fields(&mut names)?];
    lay_out(&mut groups).map_err(|problem| FormatError { offset: fields_at, problem })?;
    let [parameters, results, scratch] = groups;
    let handlers_at = reader.at;
    let (commit_handler, abort_handler) = (reader.u32()?, reader.u32()?);
    let code = reader.code()?;
    if reader.at != bytes.len() {
        return reader.fail("nothing follows the last instruction");
    }
    let ordered = 0 < commit_handler && commit_handler < abort_handler && (abort_handler as usize) < code.len();
    if !ordered {
        let problem = format!(
            "handlers at {commit_handler} and {abort_handler} of {} instructions; logic, commit handler and abort handler \
             follow each other and have at least one instruction each",
            code.len()
        );
        return Err(FormatError { offset: handlers_at, problem });
    }
    Ok(Procedure { name, tables, parameters, results, scratch, code, commit_handler, abort_handler })
}

fn lay_out(groups: &mut [Vec<Field>; 3]) -> Result<(), String> {
    let shapes = groups.each_ref().map(|fields| fields.iter().map(|f| (f.column_type, f.count)).collect::<Vec<_>>());
    let (ends, offsets) = Procedure::lay_out([&shapes[0], &shapes[1], &shapes[2]]);
    if ends[3] > u64::from(MAX_BLOCK_BYTES) {
        return Err(format!("the block would have {} bytes; at most {MAX_BLOCK_BYTES} are possible", ends[3]));
    }
    for (field, offset) in groups.iter_mut().flatten().zip(offsets) {
        field.offset = offset as u32;
    }
    Ok(())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, problem: impl Into<String>) -> Result<T, FormatError> {
        Err(FormatError { offset: self.at, problem: problem.into() })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let left = self.bytes.len() - self.at;
        if left < length {
            return self.fail(format!("{length} bytes are wanted and {left} are left"));
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().expect("two bytes")))
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn name(&mut self) -> Result<String, FormatError> {
        let offset = self.at;
        let length = self.u16()?;
        let text = std::str::from_utf8(self.take(usize::from(length))?).ok().filter(|text| is_name(text));
        text.map(str::to_string).ok_or_else(|| FormatError {
            offset,
            problem: "a name has 1 to 63 letters, digits and '_', and does not begin with a digit".into(),
        })
    }

    fn tables(&mut self) -> Result<Vec<String>, FormatError> {
        let count = usize::from(self.u16()?);
        if count > MAX_TABLES {
            return self.fail(format!("{count} tables are too many; at most {MAX_TABLES} are possible"));
        }
        let mut tables: Vec<String> = Vec::new();
        for _ in 0..count {
            let offset = self.at;
            let name = self.name()?;
            if tables.contains(&name) {
                return Err(FormatError { offset, problem: format!("table '{name}' stands twice") });
            }
            tables.push(name);
        }
        Ok(tables)
    }

    fn fields(&mut self, names: &mut HashSet<String>) -> Result<Vec<Field>, FormatError> {
        let count = self.u16()?;
        let mut fields = Vec::new();
        for _ in 0..count {
            let offset = self.at;
            let field = self.field()?;
            if field.count == 0 {
                return Err(FormatError { offset, problem: format!("'{}' has no element", field.name) });
            }
            if !names.insert(field.name.clone()) {
                return Err(FormatError { offset, problem: format!("'{}' is declared twice", field.name) });
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn code(&mut self) -> Result<Vec<Instruction>, FormatError> {
        let length = self.u32()? as usize;
        if length > MAX_INSTRUCTIONS {
            return self.fail(format!("{length} instructions are too many; at most {MAX_INSTRUCTIONS} are possible"));
        }
        let mut code = Vec::with_capacity(length.min(self.bytes.len() / INSTRUCTION_BYTES));
        for _ in 0..length {
            let offset = self.at;
            let word = self.take(INSTRUCTION_BYTES)?.try_into().expect("sixteen bytes");
            let instruction =
                Instruction::decode(word).map_err(|error| FormatError { offset, problem: error.to_string() })?;
            if instruction.opcode == Opcode::Abort && instruction.w >= abort::FIRST_RESERVED {
                let last = abort::FIRST_RESERVED - 1;
                let problem = format!("abort code {} is the system's; a procedure's are 0 to {last}", instruction.w);
                return Err(FormatError { offset, problem });
            }
            code.push(instruction);
        }
        Ok(code)
    }

    fn field(&mut self) -> Result<Field, FormatError> {
        let name = self.name()?;
        let code = self.take(1)?[0];
        let (n, count) = (self.u32()?, self.u32()?);
        let column_type = match (code, n) {
            (0, 0) => ColumnType::I8,
            (1, 0) => ColumnType::I16,
            (2, 0) => ColumnType::I32,
            (3, 0) => ColumnType::I64,
            (4, 0) => ColumnType::U8,
            (5, 0) => ColumnType::U16,
            (6, 0) => ColumnType::U32,
            (7, 1..) => ColumnType::Char(n),
            (8, 1..) => ColumnType::Bytes(n),
            _ => return self.fail(format!("type {code} with width {n} is none; types are 0 to 8, see the format")),
        };
        Ok(Field { name, column_type, count, offset: 0 })
    }
}
