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

use crate::isa::{INSTRUCTION_BYTES, Instruction, MAX_INSTRUCTIONS};
use crate::program::{Field, Procedure};
use crate::schema::ColumnType;

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
/// When a name is longer than 65,535 bytes or there are more than 65,535 tables or fields of a kind: no verified procedure is
/// like that.
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

/// The procedure of these bytes. It is as it was written down, sound or not; the verifier tells.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn decode(bytes: &[u8]) -> Result<Procedure, FormatError> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.take(4)? != MAGIC {
        return Err(FormatError { offset: 0, problem: "a procedure begins with the bytes 'LWP1'".into() });
    }
    let name = reader.string()?;
    let tables = (0..reader.u16()?).map(|_| reader.string()).collect::<Result<_, _>>()?;
    let [mut parameters, mut results, mut scratch] = [reader.fields()?, reader.fields()?, reader.fields()?];
    lay_out([&mut parameters, &mut results, &mut scratch])
        .map_err(|problem| FormatError { offset: reader.at, problem })?;
    let (commit_handler, abort_handler) = (reader.u32()?, reader.u32()?);
    let length = reader.u32()? as usize;
    if length > MAX_INSTRUCTIONS {
        return reader.fail(format!("{length} instructions are too many; at most {MAX_INSTRUCTIONS} are possible"));
    }
    let mut code = Vec::with_capacity(length.min(bytes.len() / INSTRUCTION_BYTES));
    for _ in 0..length {
        let offset = reader.at;
        let word = reader.take(INSTRUCTION_BYTES)?.try_into().expect("sixteen bytes");
        code.push(Instruction::decode(word).map_err(|error| FormatError { offset, problem: error.to_string() })?);
    }
    if reader.at != bytes.len() {
        return reader.fail("nothing follows the last instruction");
    }
    Ok(Procedure { name, tables, parameters, results, scratch, code, commit_handler, abort_handler })
}

fn lay_out(groups: [&mut Vec<Field>; 3]) -> Result<(), String> {
    let shapes = groups.each_ref().map(|fields| fields.iter().map(|f| (f.column_type, f.count)).collect::<Vec<_>>());
    let (_, offsets) = Procedure::lay_out([&shapes[0], &shapes[1], &shapes[2]]);
    for (field, offset) in groups.into_iter().flatten().zip(offsets) {
        field.offset = u32::try_from(offset).map_err(|_| format!("'{}' lies beyond any block", field.name))?;
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

    fn string(&mut self) -> Result<String, FormatError> {
        let length = self.u16()?;
        let offset = self.at;
        let text = std::str::from_utf8(self.take(usize::from(length))?);
        text.map(str::to_string).map_err(|_| FormatError { offset, problem: "a name is UTF-8".into() })
    }

    fn fields(&mut self) -> Result<Vec<Field>, FormatError> {
        (0..self.u16()?).map(|_| self.field()).collect()
    }

    fn field(&mut self) -> Result<Field, FormatError> {
        let name = self.string()?;
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
