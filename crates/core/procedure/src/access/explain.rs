//! What an access set says, in words, for `lockwork procedure check`.

use std::fmt::Write;

use super::{Access, AccessSet, ArgumentIndex, Operation, Slice, Straight, Touch};
use crate::isa::SIGNED;
use crate::verified::Verified;

/// A readable listing of an access set: table, key, mode, what of the row is touched, or why it is not known.
#[must_use]
pub fn explain(verified: &Verified, set: &AccessSet) -> String {
    let mut text = String::new();
    let name = &verified.procedure.name;
    // Writing to a string cannot fail.
    let _ = match set {
        AccessSet::Straight(straight) => straight_set(&mut text, verified, straight),
        AccessSet::Sliced(slice) => sliced_set(&mut text, verified, slice),
        AccessSet::Dependent(dependence) => {
            let pc = dependence.pc;
            let mnemonic = verified.procedure.code[pc as usize].opcode.mnemonic();
            let reason = dependence.reason;
            writeln!(text, "{name}: dependent, because of '{mnemonic}' at instruction {pc}: {reason}")
        }
    };
    text
}

fn table(verified: &Verified, slot: u8) -> &str {
    verified.tables[usize::from(slot)].schema.name()
}

fn mode(operation: Operation) -> &'static str {
    match operation {
        Operation::Search => "search (shared)",
        Operation::Update => "update (exclusive)",
        Operation::Insert => "insert (exclusive)",
        Operation::Remove => "remove (exclusive)",
        Operation::Scan => "scan (whole table, shared)",
    }
}

fn straight_set(text: &mut String, verified: &Verified, set: &Straight) -> std::fmt::Result {
    let name = &verified.procedure.name;
    let after = if set.branches_after { "; branches follow, without accesses" } else { "" };
    let separable = if set.fragments.is_some() { "separable" } else { "not separable" };
    writeln!(text, "{name}: straight, {} accesses, {separable}{after}", set.accesses.len())?;
    for access in &set.accesses {
        let Access { pc, slot, operation, key_offset, .. } = *access;
        let key = argument(verified, key_offset);
        write!(text, "  {pc:4}  {:<20} {} key {key}", mode(operation), table(verified, slot))?;
        if operation == Operation::Scan {
            write!(text, " at most {} rows", access.limit)?;
        }
        for &Touch { offset, index, length, write } in &access.touches {
            let verb = if write { "writes" } else { "reads" };
            let index = index.map_or(String::new(), |index| format!(" + {}", factor(verified, index)));
            write!(text, "; {verb} {length} bytes at {offset}{index}")?;
        }
        writeln!(text)?;
    }
    for check in &set.checks {
        let value = factor(verified, check.argument);
        let base = if check.base == 0 { String::new() } else { format!("{} + ", check.base) };
        writeln!(text, "  {:4}  check 0 <= {base}{value} < {}", check.pc, check.limit)?;
    }
    Ok(())
}

fn sliced_set(text: &mut String, verified: &Verified, slice: &Slice) -> std::fmt::Result {
    let name = &verified.procedure.name;
    writeln!(text, "{name}: sliced, keys computed by {} instructions, not separable", slice.instructions())?;
    for (operation, slot) in slice.accesses() {
        writeln!(text, "        {:<20} {} key computed from the arguments", mode(operation), table(verified, slot))?;
    }
    Ok(())
}

fn factor(verified: &Verified, index: ArgumentIndex) -> String {
    let sign = if index.width & SIGNED != 0 || index.width == 8 { "i" } else { "u" };
    let bits = (index.width & !SIGNED) * 8;
    let name = argument(verified, index.offset);
    if index.scale == 1 { format!("{sign}{bits} {name}") } else { format!("{} * {sign}{bits} {name}", index.scale) }
}

/// The parameter that begins at, or spans, this place of the block.
fn argument(verified: &Verified, offset: u32) -> String {
    let spans = |field: &&crate::program::Field| field.offset <= offset && u64::from(offset) < field.end();
    match verified.procedure.parameters.iter().find(spans) {
        None => format!("block[{offset}]"),
        Some(field) if field.count == 1 && field.offset == offset => field.name.clone(),
        Some(field) if (offset - field.offset).is_multiple_of(field.element_stride()) => {
            format!("{}[{}]", field.name, (offset - field.offset) / field.element_stride())
        }
        Some(field) => format!("{} + {} bytes", field.name, offset - field.offset),
    }
}
