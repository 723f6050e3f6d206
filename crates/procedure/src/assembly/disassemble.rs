//! From a procedure to text that assembles to it.
//!
//! Fields of the block are named where an address begins one; everything else is an offset, which the assembler takes as well.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::parser::width_of;
use crate::isa::{Instruction, NO_LABEL, Opcode};
use crate::program::{Field, Procedure};
use crate::schema::{Catalog, ColumnType};

/// The text of a procedure. Columns of tables that `catalog` knows are named where an instruction cannot mean
/// another, that is, in scans.
///
/// [`super::assemble`] gives the same procedure back if its names are valid, its tables are in the catalogue, its fields lie where
/// [`Procedure::lay_out`] puts them, and every instruction has a form in the language (any that the verifier accepts has).
#[must_use]
pub fn disassemble(procedure: &Procedure, catalog: &(impl Catalog + ?Sized)) -> String {
    let mut text = format!("procedure {}\n", procedure.name);
    for table in &procedure.tables {
        let _ = writeln!(text, "table {table}");
    }
    for (word, fields) in
        [("param", &procedure.parameters), ("result", &procedure.results), ("scratch", &procedure.scratch)]
    {
        for field in fields {
            let count = if field.count == 1 { String::new() } else { format!("[{}]", field.count) };
            let _ = writeln!(text, "{word} {}: {}{count}", field.name, field.column_type);
        }
    }
    let targets: BTreeSet<u32> = procedure.code.iter().filter_map(target).collect();
    for (at, instruction) in procedure.code.iter().enumerate() {
        let at = at as u32;
        let plain = |handler: u32, end: u32| {
            end == handler + 1
                && procedure.code[handler as usize].opcode == Opcode::Commit
                && !targets.contains(&handler)
        };
        let end = procedure.code.len() as u32;
        let commit_is_plain = plain(procedure.commit_handler, procedure.abort_handler);
        let abort_is_plain = plain(procedure.abort_handler, end);
        if (at == procedure.commit_handler && commit_is_plain) || (at == procedure.abort_handler && abort_is_plain) {
            continue;
        }
        if at == procedure.commit_handler {
            text.push_str("on commit:\n");
        }
        if at == procedure.abort_handler {
            text.push_str("on abort:\n");
        }
        if targets.contains(&at) {
            let _ = writeln!(text, "L{at}:");
        }
        let _ = writeln!(text, "    {}", line(procedure, catalog, instruction));
    }
    text
}

fn target(i: &Instruction) -> Option<u32> {
    let jumps = i.opcode == Opcode::Jmp || i.opcode.is_branch() || (i.opcode == Opcode::Ret && i.x != NO_LABEL);
    jumps.then_some(i.x)
}

fn line(procedure: &Procedure, catalog: &(impl Catalog + ?Sized), i: &Instruction) -> String {
    use Opcode as O;
    let (a, b, c) = (i.a, i.b, i.c);
    let block = |offset: u32, index: u8| address(&place(procedure, offset), index);
    let row = |handle: u8, offset: u32, index: u8| format!("r{handle}{}", address(&offset.to_string(), index));
    let word = i.opcode.mnemonic();
    match i.opcode {
        O::Mov => format!("mov     r{a}, r{b}"),
        O::Movi => format!("mov     r{a}, {}", i.immediate()),
        O::Add | O::Sub | O::Mul | O::Div => format!("{word:7} r{a}, r{b}, r{c}"),
        O::Addi | O::Subi | O::Muli | O::Divi => format!("{:7} r{a}, r{b}, {}", &word[..3], i.immediate()),
        O::Cmp => format!("cmp     r{b}, r{c}"),
        O::Cmpi => format!("cmp     r{b}, {}", i.immediate()),
        O::Check => format!("check   r{b}, {}", i.immediate()),
        O::Load | O::Store => format!("{word}.{} r{a}, {}", width(i.w), block(i.x, c)),
        O::Loadr | O::Storer => format!("{word}.{} r{a}, {}", width(i.w), row(b, i.x, c)),
        O::CopyBb => format!("copy    {}, {}, {}", block(i.x, i.d), block(i.y, i.e), i.w),
        O::CopyBr => format!("copy    {}, {}, {}", block(i.x, i.d), row(c, i.y, i.e), i.w),
        O::CopyRb => format!("copy    {}, {}, {}", row(b, i.x, i.d), block(i.y, i.e), i.w),
        O::CopyRr => format!("copy    {}, {}, {}", row(b, i.x, i.d), row(c, i.y, i.e), i.w),
        O::Jmp | O::Be | O::Bne | O::Bl | O::Ble | O::Bg | O::Bge => format!("{word:7} L{}", i.x),
        O::Search | O::Update | O::Insert | O::Remove => {
            format!("{word:7} c{a}, {}, {}", table(procedure, i.d), block(i.x, c))
        }
        O::Scan => {
            let name = table(procedure, i.d);
            let schema = catalog.table(&name).map(|(_, schema)| schema);
            let column = usize::from(i.e).checked_sub(1).and_then(|e| schema?.columns().get(e));
            let column = column.map_or(String::new(), |column| format!(".{}", column.name));
            let limit = if b == 0 { String::new() } else { format!(", r{b}") };
            format!("scan    c{a}, {name}{column}, {}, {}, {}{limit}", block(i.x, c), block(i.y, 0), i.w)
        }
        O::Ret => {
            let to = if a == 0 { String::new() } else { format!("r{a}, ") };
            let label = if i.x == NO_LABEL { String::new() } else { format!(", L{}", i.x) };
            format!("ret     {to}c{b}{label}")
        }
        O::Commit => "commit".into(),
        O::Abort => format!("abort   {}", i.w),
    }
}

fn table(procedure: &Procedure, slot: u8) -> String {
    procedure.tables.get(usize::from(slot)).cloned().unwrap_or_else(|| format!("slot{slot}"))
}

/// A place in the block: the field, or element, that begins there, or the offset.
fn place(procedure: &Procedure, offset: u32) -> String {
    let fields: [&[Field]; 3] = [&procedure.parameters, &procedure.results, &procedure.scratch];
    for field in fields.into_iter().flatten() {
        let stride = field.element_stride();
        let Some(inside) = offset.checked_sub(field.offset).filter(|_| stride > 0) else { continue };
        let element = inside / stride;
        if inside % stride == 0 && element < field.count {
            return if element == 0 { field.name.clone() } else { format!("{}#{element}", field.name) };
        }
    }
    offset.to_string()
}

fn address(place: &str, index: u8) -> String {
    if index == 0 { format!("[{place}]") } else { format!("[{place} + r{index}]") }
}

fn width(w: u16) -> String {
    use ColumnType as T;
    let types = [T::U8, T::U16, T::U32, T::I64, T::I8, T::I16, T::I32];
    let found = types.into_iter().find(|column_type| width_of(*column_type) == Some(w));
    found.map_or_else(|| format!("w{w:#x}"), |column_type| column_type.to_string())
}
