//! From bytecode to OpenCL C: one program for all tables and procedures of an engine.
//!
//! The fixed parts are files under `hardware/opencl`, which say what devices like and why; generated between them are
//! the functions of each table ([`table`]), those of each procedure ([`procedure`], [`prelude`]), and the switches over
//! procedure ids. Both engines compile the same text; `LW_TWO_PHASE` puts the locks in.
//!
//! Invariant: a translated procedure does what the interpreter does with the same block and the same rows, instruction
//! by instruction; random verified procedures on both are the test.

mod bounds;
mod prelude;
mod procedure;
mod table;

use std::fmt::Write;

use lockwork_engine::registry::{Registered, Registry};
use lockwork_locking::LockMode;
use lockwork_procedure::access::{AccessSet, Operation};
use lockwork_storage::Database;

pub(crate) use bounds::{Bounds, MAX_PRIVATE_BYTES, MAX_PRIVATE_BYTES_TOGETHER, times};

const COMMON: &str = include_str!("../../../../../hardware/opencl/common.cl");
const DETERMINISTIC: &str = include_str!("../../../../../hardware/opencl/deterministic.cl");
const TWO_PHASE: &str = include_str!("../../../../../hardware/opencl/two_phase.cl");
const KERNELS: &str = include_str!("../../../../../hardware/opencl/kernels.cl");

/// How a procedure locks tables as wholes, by table number, ascending: shared if it scans one, exclusively if it
/// inserts or removes in one with ordered keys, with intent if it updates rows of one that some procedure scans.
pub(crate) fn table_modes(registered: &Registered, registry: &Registry) -> Vec<(u16, LockMode)> {
    let verified = &registered.verified;
    let mut modes: Vec<(u16, LockMode)> = Vec::new();
    for instruction in verified.procedure().code.iter().filter(|i| i.opcode.is_db()) {
        let table = &verified.tables()[usize::from(instruction.d)];
        let mode = match Operation::of(instruction.opcode) {
            Operation::Scan => LockMode::Shared,
            Operation::Insert | Operation::Remove if table.schema.is_ordered() => LockMode::Exclusive,
            Operation::Update if registry.is_scanned(table.id) => LockMode::IntentExclusive,
            _ => continue,
        };
        match modes.iter_mut().find(|(id, _)| *id == table.id) {
            Some((_, known)) => *known = known.join(mode),
            None => modes.push((table.id, mode)),
        }
    }
    modes.sort_by_key(|&(id, _)| id);
    modes
}

/// How many rows of one transaction are looked up ahead, at most; at least 1, so that there is an array.
pub(crate) fn hints(registry: &Registry) -> usize {
    let straight = |registered: &Registered| match &registered.access {
        AccessSet::Straight(straight) => straight.accesses.len(),
        _ => 0,
    };
    registry.all().map(straight).max().unwrap_or(0).clamp(1, prelude::MAX_HINTS)
}

/// Private bytes of all procedures together.
pub(crate) fn private_bytes(registry: &Registry) -> u64 {
    registry.all().map(|registered| Bounds::of(registered).bytes()).fold(0_u64, u64::saturating_add)
}

/// Whether procedures are so few and simple that a compiler may inline all of them: without branches, and with no more
/// than 32 accesses together.
fn is_few(registry: &Registry) -> bool {
    let accesses = |registered: &Registered| match &registered.access {
        AccessSet::Straight(straight) if !straight.branches_after => Some(straight.accesses.len()),
        _ => None,
    };
    registry.all().map(accesses).sum::<Option<usize>>().is_some_and(|sum| sum <= 32)
}

/// The program.
pub(crate) fn program(database: &Database, registry: &Registry, two_phase: bool) -> String {
    let spare = if two_phase { registry.all().map(|registered| Bounds::of(registered).inserts).max() } else { None };
    let few = if is_few(registry) { "#define LW_FEW\n" } else { "" };
    let mut out = format!("{few}#define LW_SPARE {}\n{COMMON}", spare.unwrap_or(0).max(1));
    let _ = write!(out, "\n#define LW_HINTS {}\n", hints(registry));
    if two_phase {
        out.push_str("#define LW_TWO_PHASE\n");
    }
    out.push_str(if two_phase { TWO_PHASE } else { DETERMINISTIC });
    for id in 0..database.len() as u16 {
        table::emit(&mut out, id, database.table(id).schema());
    }
    remove(&mut out, database);
    let mut ahead = Vec::new();
    for (id, registered) in (0_u32..).zip(registry.all()) {
        let modes = table_modes(registered, registry);
        procedure::Translator::new(id, registered, prelude::MAX_HINTS, &modes).emit(&mut out);
        if prelude::emit(&mut out, id, registered) {
            ahead.push((id, registered.block_bytes));
        }
    }
    switches(&mut out, registry, &ahead);
    out.push('\n');
    out.push_str(KERNELS);
    out
}

/// `lw_remove`: takes a row, given as handle << 16 | table, out of its table.
fn remove(out: &mut String, database: &Database) {
    out.push_str("static inline void lw_remove(LW_HEAP, ulong piece, struct lw_spare *spare)\n{\n    switch (piece & 0xFFFF) {\n");
    for id in 0..database.len() {
        let _ = writeln!(out, "    case {id}: lw_remove_{id}(heap, tables, piece >> 16, spare); break;");
    }
    out.push_str("    default: break;\n    }\n}\n");
}

fn switches(out: &mut String, registry: &Registry, ahead: &[(u32, usize)]) {
    let _ = write!(
        out,
        "\nstatic LW_CALLED uint lw_call(\n    LW_HEAP, lw_address block, uint stride, const ulong *hints, uint *stamp, struct lw_spare *spare)\n{{\n    \
         switch (*(const __global lw_uint *)block) {{\n"
    );
    for (id, registered) in registry.all().enumerate() {
        let bytes = registered.block_bytes;
        let _ = write!(
            out,
            "    case {id}:\n        if (stride < {bytes})\n            \
             return LW_OUTCOME(LW_FAILED, LW_BLOCK_TOO_SHORT);\n        \
             return lw_procedure_{id}(heap, tables, block, hints, stamp, spare);\n"
        );
    }
    out.push_str("    default: return LW_OUTCOME(LW_FAILED, LW_UNKNOWN_PROCEDURE);\n    }\n}\n");
    for (name, extra, argument) in [("aim", "", ""), ("reach", ", ulong *hints", ", hints")] {
        let _ = write!(
            out,
            "\nstatic LW_CALLED void lw_{name}(LW_HEAP, const __global uchar *block, uint stride{extra})\n{{\n    \
             switch (*(const __global lw_uint *)block) {{\n"
        );
        for (id, bytes) in ahead {
            let _ = write!(
                out,
                "    case {id}:\n        if (stride >= {bytes})\n            \
                 lw_{name}_{id}(heap, tables, block{argument});\n        break;\n"
            );
        }
        out.push_str("    default: break;\n    }\n}\n");
    }
}
