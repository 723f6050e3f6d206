//! From a procedure to text that assembles to it.
//!
//! Fields of the block are named, and columns of a row where the row's table is plain ([`super::handles`]). What has no
//! name is a number: the language has one for everything that an instruction can hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::handles::Handles;
use super::widths::{copy_length, natural_width, suffix};
use crate::isa::{Instruction, NO_LABEL, Opcode};
use crate::program::{Field, Procedure};
use crate::schema::{Catalog, Column, ColumnType, TableSchema};

/// The text of a procedure. A table that `catalog` does not know is declared `opaque`, and its columns are numbers.
///
/// [`super::assemble`], with the same catalogue, gives the same procedure back if [`super::assemble`] or
/// [`super::decode`] made it. Of another, with names that are none, fields that lie elsewhere, or handlers that are not
/// in order, this is a text to read.
#[must_use]
pub fn disassemble(procedure: &Procedure, catalog: &(impl Catalog + ?Sized)) -> String {
    let schemas: Vec<_> = procedure.tables.iter().map(|name| catalog.table(name).map(|(_, schema)| schema)).collect();
    let mut text = declarations(procedure, &schemas);
    let targets: BTreeSet<u32> = procedure.code.iter().filter_map(target).collect();
    let generated = |handler: u32, next: u32| {
        let code = usize::try_from(handler).ok().and_then(|handler| procedure.code.get(handler));
        handler.checked_add(1) == Some(next)
            && code.is_some_and(|instruction| instruction.opcode == Opcode::Commit)
            && !targets.contains(&handler)
    };
    let end = procedure.code.len() as u32;
    let (commit, abort) = (procedure.commit_handler, procedure.abort_handler);
    let (commit_generated, abort_generated) = (generated(commit, abort), generated(abort, end));
    let mut writer = Writer::new(procedure, schemas);
    for (at, instruction) in (0..end).zip(&procedure.code) {
        if (at == commit && commit_generated) || (at == abort && abort_generated) {
            continue;
        }
        if at == commit {
            text.push_str("on commit:\n");
        }
        if at == abort {
            text.push_str("on abort:\n");
        }
        if targets.contains(&at) {
            let _ = writeln!(text, "L{at}:");
            writer.handles.label();
        }
        let _ = writeln!(text, "    {}", writer.line(instruction));
        writer.handles.step(instruction);
    }
    text
}

fn declarations(procedure: &Procedure, schemas: &[Option<&TableSchema>]) -> String {
    let mut text = format!("procedure {}\n", procedure.name);
    for (table, schema) in procedure.tables.iter().zip(schemas) {
        let _ = writeln!(text, "table {table}{}", if schema.is_some() { "" } else { " opaque" });
    }
    let groups = [("param", &procedure.parameters), ("result", &procedure.results), ("scratch", &procedure.scratch)];
    for (word, fields) in groups {
        for field in fields {
            let count = if field.count == 1 { String::new() } else { format!("[{}]", field.count) };
            let _ = writeln!(text, "{word} {}: {}{count}", field.name, field.column_type);
        }
    }
    text
}

fn target(i: &Instruction) -> Option<u32> {
    let jumps = i.opcode == Opcode::Jmp || i.opcode.is_branch() || (i.opcode == Opcode::Ret && i.x != NO_LABEL);
    jumps.then_some(i.x)
}

/// A place in memory as text, and the type of what it names if it is the first byte of that.
struct Operand {
    text: String,
    named: Option<ColumnType>,
}

/// Writes instructions.
struct Writer<'a> {
    procedure: &'a Procedure,
    schemas: Vec<Option<&'a TableSchema>>,
    /// Fields by where they begin.
    fields: BTreeMap<u32, &'a Field>,
    handles: Handles,
}

impl<'a> Writer<'a> {
    fn new(procedure: &'a Procedure, schemas: Vec<Option<&'a TableSchema>>) -> Self {
        let fields = [&procedure.parameters, &procedure.results, &procedure.scratch].into_iter().flatten();
        let fields = fields.map(|field| (field.offset, field)).collect();
        Self { procedure, schemas, fields, handles: Handles::of(&procedure.code) }
    }

    fn line(&self, i: &Instruction) -> String {
        use Opcode as O;
        let (a, b, c) = (i.a, i.b, i.c);
        let word = i.opcode.mnemonic();
        match i.opcode {
            O::Mov => format!("mov     r{a}, r{b}"),
            O::Movi => format!("mov     r{a}, {}", i.immediate()),
            O::Add | O::Sub | O::Mul | O::Div => format!("{word:7} r{a}, r{b}, r{c}"),
            O::Addi | O::Subi | O::Muli | O::Divi => format!("{:7} r{a}, r{b}, {}", &word[..3], i.immediate()),
            O::Cmp => format!("cmp     r{b}, r{c}"),
            O::Cmpi => format!("cmp     r{b}, {}", i.immediate()),
            O::Check => format!("check   r{b}, {}", i.immediate()),
            O::Load | O::Store => transfer(word, i, &self.block(i.x, c)),
            O::Loadr | O::Storer => transfer(word, i, &self.row(b, i.x, c)),
            O::CopyBb => copy(i, &self.block(i.x, i.d), &self.block(i.y, i.e)),
            O::CopyBr => copy(i, &self.block(i.x, i.d), &self.row(c, i.y, i.e)),
            O::CopyRb => copy(i, &self.row(b, i.x, i.d), &self.block(i.y, i.e)),
            O::CopyRr => copy(i, &self.row(b, i.x, i.d), &self.row(c, i.y, i.e)),
            O::Jmp | O::Be | O::Bne | O::Bl | O::Ble | O::Bg | O::Bge => format!("{word:7} {}", self.label(i.x)),
            O::Search | O::Update | O::Insert | O::Remove => {
                format!("{word:7} c{a}, {}, {}", self.table(i.d), self.block(i.x, c).text)
            }
            O::Scan => self.scan(i),
            O::Ret => {
                let to = if a == 0 { String::new() } else { format!("r{a}, ") };
                let label = if i.x == NO_LABEL { String::new() } else { format!(", {}", self.label(i.x)) };
                format!("ret     {to}c{b}{label}")
            }
            O::Commit => "commit".into(),
            O::Abort => format!("abort   {}", i.w),
        }
    }

    fn scan(&self, i: &Instruction) -> String {
        let column = match (i.e.checked_sub(1), self.schema(i.d)) {
            (None, _) => String::new(),
            (Some(position), schema) => {
                let column = schema.and_then(|schema| schema.columns().get(usize::from(position)));
                column.map_or_else(|| format!("#{position}"), |column| format!(".{}", column.name))
            }
        };
        let (table, key, buffer) = (self.table(i.d), self.block(i.x, i.c).text, self.block(i.y, 0).text);
        let limit = if i.b == 0 { String::new() } else { format!(", r{}", i.b) };
        format!("scan    c{}, {table}{column}, {key}, {buffer}, {}{limit}", i.a, i.w)
    }

    /// A label, or the number of an instruction that is not there.
    fn label(&self, target: u32) -> String {
        let inside = (target as usize) < self.procedure.code.len();
        if inside { format!("L{target}") } else { format!("@{target}") }
    }

    fn table(&self, slot: u8) -> String {
        self.procedure.tables.get(usize::from(slot)).cloned().unwrap_or_else(|| format!("#{slot}"))
    }

    fn schema(&self, slot: u8) -> Option<&'a TableSchema> {
        self.schemas.get(usize::from(slot)).copied().flatten()
    }

    /// A place in the block: the field or element that begins there, else the offset.
    fn block(&self, offset: u32, index: u8) -> Operand {
        let named = self.fields.range(..=offset).next_back().and_then(|(_, field)| {
            let inside = offset - field.offset;
            let stride = Some(field.element_stride()).filter(|&stride| stride > 0)?;
            let element = inside / stride;
            if !inside.is_multiple_of(stride) || element >= field.count {
                return None;
            }
            let name = &field.name;
            Some((if element == 0 { name.clone() } else { format!("{name}#{element}") }, field.column_type))
        });
        operand("", named, offset, index)
    }

    /// A place in the row whose handle is in `register`: the column that begins there, else the offset.
    fn row(&self, register: u8, offset: u32, index: u8) -> Operand {
        let named = self.handles.table(register).and_then(|slot| {
            let columns = self.schema(slot)?.columns();
            let position = columns.binary_search_by_key(&offset, |column| column.offset).ok()?;
            let Column { name, column_type, .. } = &columns[position];
            Some((format!("{}.{name}", self.table(slot)), *column_type))
        });
        operand(&format!("r{register}"), named, offset, index)
    }
}

fn operand(base: &str, named: Option<(String, ColumnType)>, offset: u32, index: u8) -> Operand {
    let (place, named) = match named {
        Some((place, column_type)) => (place, Some(column_type)),
        None => (offset.to_string(), None),
    };
    let index = if index == 0 { String::new() } else { format!(" + r{index}") };
    Operand { text: format!("{base}[{place}{index}]"), named }
}

/// A load or store; its width is left out where the assembler finds it in what is named.
fn transfer(word: &str, i: &Instruction, memory: &Operand) -> String {
    let known = memory.named.and_then(natural_width) == Some(i.w);
    let word = if known { word.to_string() } else { format!("{word}.{}", suffix(i.w)) };
    format!("{word:7} r{}, {}", i.a, memory.text)
}

/// A copy; its length is left out where the assembler finds it in what is named.
fn copy(i: &Instruction, to: &Operand, from: &Operand) -> String {
    let known = copy_length(to.named, from.named) == Some(u32::from(i.w));
    let length = if known { String::new() } else { format!(", {}", i.w) };
    format!("copy    {}, {}{length}", to.text, from.text)
}
