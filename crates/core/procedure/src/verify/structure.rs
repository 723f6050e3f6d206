//! Structure: names, layout, sections, and the fields of every instruction.

use std::collections::HashSet;
use std::ops::Range;

use super::value::Interval;
use super::{Check, refuse, refuse_whole};
use crate::block::{HEADER_BYTES, MAX_BLOCK_BYTES, abort};
use crate::block_access::{BlockAccess, block_accesses};
use crate::isa::{Instruction, MAX_INSTRUCTIONS, NO_LABEL, Opcode, SIGNED};
use crate::partitioning::Partitioning;
use crate::program::{Field, Layout, Procedure};
use crate::schema::is_name;
use crate::verified::TableUse;

/// Width and sign of a load or store, as the instruction has them.
#[derive(Clone, Copy)]
pub(super) struct Writes(pub(super) u16);

impl Writes {
    pub(super) fn bytes(self) -> u32 {
        u32::from(self.0 & !SIGNED)
    }

    /// The values that fit.
    pub(super) fn range(self) -> Interval {
        let bits = self.bytes() * 8;
        match (bits, self.0 & SIGNED != 0) {
            (64, _) => Interval::ALL,
            (_, true) => Interval { lo: -(1 << (bits - 1)), hi: (1 << (bits - 1)) - 1 },
            (_, false) => Interval { lo: 0, hi: (1 << bits) - 1 },
        }
    }
}

pub(super) fn check_declarations(procedure: &Procedure) -> Check<()> {
    if !is_name(&procedure.name) {
        return refuse_whole("its name is no name: use letters, digits and '_', not beginning with a digit");
    }
    if procedure.tables.len() > 256 {
        return refuse_whole(format!("it uses {} tables; at most 256 are possible", procedure.tables.len()));
    }
    if procedure.code.len() > MAX_INSTRUCTIONS {
        let length = procedure.code.len();
        return refuse_whole(format!("it has {length} instructions; at most {MAX_INSTRUCTIONS} are possible"));
    }
    let mut names = HashSet::new();
    let groups = [&procedure.parameters, &procedure.results, &procedure.scratch];
    for field in groups.into_iter().flatten() {
        if !is_name(&field.name) {
            return refuse_whole(format!("'{}' is no name for a parameter, result or scratch", field.name));
        }
        if !names.insert(&field.name) {
            return refuse_whole(format!("'{}' is declared twice", field.name));
        }
        if field.count == 0 || field.column_type.width() == 0 {
            return refuse_whole(format!("'{}' has no bytes; declare at least one element", field.name));
        }
    }
    let shape = |fields: &[Field]| fields.iter().map(|field| (field.column_type, field.count)).collect::<Vec<_>>();
    let [parameters, results, scratch] = groups.map(|fields| shape(fields));
    let (ends, offsets) = Procedure::lay_out([&parameters, &results, &scratch]);
    if ends[3] > u64::from(MAX_BLOCK_BYTES) {
        return refuse_whole(format!("its block has {} bytes; at most {MAX_BLOCK_BYTES} are possible", ends[3]));
    }
    for (field, offset) in groups.into_iter().flatten().zip(offsets) {
        if u64::from(field.offset) != offset {
            let (name, found) = (&field.name, field.offset);
            return refuse_whole(format!("'{name}' lies at offset {found} of the block; its place is {offset}"));
        }
    }
    Ok(())
}

/// Logic, commit handler, abort handler.
pub(super) fn sections(procedure: &Procedure) -> Check<[Range<usize>; 3]> {
    let (commit, abort) = (procedure.commit_handler as usize, procedure.abort_handler as usize);
    let end = procedure.code.len();
    if commit == 0 || commit >= abort || abort >= end {
        return refuse_whole(format!(
            "its code has {end} instructions with handlers at {commit} and {abort}; logic, commit handler and abort \
             handler must follow each other and have at least one instruction each"
        ));
    }
    Ok([0..commit, commit..abort, abort..end])
}

pub(super) fn check_fields(procedure: &Procedure, tables: &[TableUse], sections: &[Range<usize>; 3]) -> Check<()> {
    let layout = procedure.layout();
    for (number, section) in sections.iter().enumerate() {
        for at in section.clone() {
            let instruction = &procedure.code[at];
            check_unused(at, instruction)?;
            check_one(at, instruction, tables, section)?;
            check_places(at, instruction, tables, &layout)?;
            if number > 0 && !belongs_in_handler(instruction.opcode) {
                return refuse(at, "a handler may only use CPU instructions on the block, and ends with commit");
            }
        }
        let last = section.end - 1;
        if successors(&procedure.code, last).into_iter().flatten().any(|next| next == section.end) {
            return refuse(last, "control runs past the end of its section; end with commit, abort or jmp");
        }
    }
    Ok(())
}

fn belongs_in_handler(opcode: Opcode) -> bool {
    use Opcode as O;
    let elsewhere = matches!(opcode, O::Loadr | O::Storer | O::CopyBr | O::CopyRb | O::CopyRr | O::Ret | O::Abort);
    !(elsewhere || opcode.is_db() || opcode == O::Check)
}

fn check_unused(at: usize, instruction: &Instruction) -> Check<()> {
    match Instruction::decode(&instruction.encode()) {
        Ok(_) => Ok(()),
        Err(error) => refuse(at, error.to_string()),
    }
}

fn check_one(at: usize, i: &Instruction, tables: &[TableUse], section: &Range<usize>) -> Check<()> {
    if destination(i) == Some(0) {
        return refuse(at, "r0 always reads zero and cannot be written; choose another register");
    }
    if let Some(target) = target(i)
        && !section.contains(&target)
    {
        let (start, end) = (section.start, section.end - 1);
        return refuse(at, format!("it goes to instruction {target}, outside its section ({start} to {end})"));
    }
    match i.opcode {
        Opcode::Load | Opcode::Store | Opcode::Loadr | Opcode::Storer
            if !matches!(i.w, 1 | 2 | 4 | 8) && !matches!(i.w ^ SIGNED, 1 | 2 | 4) =>
        {
            return refuse(at, format!("a width of {:#x} is not possible; use 1, 2, 4 (signed or not) or 8", i.w));
        }
        Opcode::CopyBb | Opcode::CopyBr | Opcode::CopyRb | Opcode::CopyRr if i.w == 0 => {
            return refuse(at, "it copies no byte; copy at least one");
        }
        Opcode::Check if i.immediate() < 1 => {
            return refuse(at, format!("no value is below {}; the limit must be at least 1", i.immediate()));
        }
        Opcode::Abort if i.w >= abort::FIRST_RESERVED => {
            let last = abort::FIRST_RESERVED - 1;
            return refuse(at, format!("abort code {} belongs to the system; use 0 to {last}", i.w));
        }
        opcode if opcode.is_db() => check_table(at, i, tables)?,
        _ => {}
    }
    Ok(())
}

/// What has no index lies in the block, reachable or not, so that nobody need ask again who looks at code.
fn check_places(at: usize, i: &Instruction, tables: &[TableUse], layout: &Layout) -> Check<()> {
    let schema = i.opcode.is_db().then(|| &*tables[usize::from(i.d)].schema);
    for BlockAccess { offset, length, writes, .. } in block_accesses(i, schema).filter(|access| access.index == 0) {
        within_block(at, layout, (offset, Interval::exactly(0), length), writes)?;
    }
    Ok(())
}

/// Proves that a place (offset, index, length) lies where the block may be read, or written.
pub(super) fn within_block(at: usize, layout: &Layout, place: (u32, Interval, u32), writes: bool) -> Check<()> {
    if writes {
        bounds(at, place, layout.results_start..layout.block_bytes, "the block (to write: results and scratch)")
    } else {
        bounds(at, place, HEADER_BYTES..layout.block_bytes, "the block (to read)")
    }
}

/// Proves that a place (offset, index, length) lies within `allowed` bytes of `what`.
pub(super) fn bounds(at: usize, place: (u32, Interval, u32), allowed: Range<u32>, what: &str) -> Check<()> {
    let (offset, index, length) = place;
    let first = i128::from(offset) + i128::from(index.lo);
    let last = i128::from(offset) + i128::from(index.hi) + i128::from(length);
    let Range { start, end } = allowed;
    if first < i128::from(start) || last > i128::from(end) {
        return refuse(
            at,
            format!(
                "it touches bytes {first} to {last} of {what}, and bytes {start} to {end} are allowed; bound the index \
                 with 'check' if it has one"
            ),
        );
    }
    Ok(())
}

fn check_table(at: usize, i: &Instruction, tables: &[TableUse]) -> Check<()> {
    let Some(table) = tables.get(usize::from(i.d)) else {
        return refuse(at, format!("it names table slot {}; the procedure declares {}", i.d, tables.len()));
    };
    let name = table.schema.name();
    let writes = matches!(i.opcode, Opcode::Update | Opcode::Insert | Opcode::Remove);
    if writes && table.schema.partitioning() == Some(Partitioning::Replicated) {
        return refuse(at, format!("table '{name}' is replicated, so it is not written; use 'search' or 'scan'"));
    }
    if i.opcode != Opcode::Scan {
        return Ok(());
    }
    if !table.schema.is_ordered() {
        return refuse(at, format!("table '{name}' is not ordered; only ordered tables can be scanned"));
    }
    if i.w == 0 {
        return refuse(at, "it scans at most 0 rows; the limit must be at least 1");
    }
    if usize::from(i.e) > table.schema.columns().len() {
        let columns = table.schema.columns().len();
        return refuse(at, format!("it scans column {} of table '{name}', which has {columns}", i.e));
    }
    Ok(())
}

/// The register that an instruction writes; `None` for none, or for a RET that discards.
pub(super) fn destination(i: &Instruction) -> Option<u8> {
    use Opcode as O;
    match i.opcode {
        O::Mov | O::Movi | O::Add | O::Sub | O::Mul | O::Div | O::Addi | O::Subi | O::Muli | O::Divi => Some(i.a),
        O::Load | O::Loadr => Some(i.a),
        O::Ret if i.a != 0 => Some(i.a),
        _ => None,
    }
}

/// Where an instruction may jump to.
pub(super) fn target(i: &Instruction) -> Option<usize> {
    let jumps = i.opcode == Opcode::Jmp || i.opcode.is_branch() || (i.opcode == Opcode::Ret && i.x != NO_LABEL);
    jumps.then_some(i.x as usize)
}

/// Where control can go from `at`: on (past the end of its section only before [`check_fields`]), and to the target.
pub(super) fn successors(code: &[Instruction], at: usize) -> [Option<usize>; 2] {
    let i = &code[at];
    let on = !matches!(i.opcode, Opcode::Jmp | Opcode::Commit | Opcode::Abort);
    [on.then_some(at + 1), target(i)]
}

/// The register windows that a procedure needs.
pub(super) fn windows(code: &[Instruction]) -> (usize, usize) {
    let (mut gp, mut cp) = (1, 0);
    for i in code {
        let used = i.opcode.fields();
        let mut registers = vec![(used[1], i.b), (used[2], i.c)];
        match i.opcode {
            Opcode::Ret => {
                registers = vec![(true, i.a)];
                cp = cp.max(usize::from(i.b) + 1);
            }
            opcode if opcode.is_db() => cp = cp.max(usize::from(i.a) + 1),
            _ => registers.extend([(used[0], i.a), (used[3], i.d), (used[4], i.e)]),
        }
        for (_, register) in registers.into_iter().filter(|(used, _)| *used) {
            gp = gp.max(usize::from(register) + 1);
        }
    }
    (gp, cp)
}
