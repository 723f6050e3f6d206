//! What runs ahead of execution where latency is hidden by prefetching: for each straight procedure, `lw_aim_N` brings
//! the index buckets of its keys near, `lw_reach_N` looks the rows up and brings the lines near that will be touched.

use std::fmt::Write;

use lockwork_engine::registry::Registered;
use lockwork_procedure::access::{Access, AccessSet, Operation, Touch};
use lockwork_procedure::isa::SIGNED;

use super::procedure::integer_type;

/// The most accesses of one transaction that are looked up ahead.
pub(super) const MAX_HINTS: usize = 32;
/// The most lines of one piece of a row that are prefetched; the hardware follows longer runs by itself.
const MAX_LINES: u32 = 20;

/// Appends the functions and returns whether there are any.
pub(super) fn emit(out: &mut String, id: u32, registered: &Registered) -> bool {
    let AccessSet::Straight(straight) = &registered.access else { return false };
    let tables = registered.verified.tables();
    let number = |access: &Access| tables[usize::from(access.slot)].id;
    let ahead = || straight.accesses.iter().enumerate().take(MAX_HINTS);
    let key = |access: &Access| {
        let (table, offset) = (number(access), access.key_offset);
        format!("lw_key_{table}(block + {offset}, {})", offset.is_multiple_of(8))
    };
    let _ = writeln!(out, "\nstatic inline void lw_aim_{id}(LW_HEAP, const __global uchar *block)\n{{");
    for (_, access) in ahead() {
        let _ = writeln!(out, "    LW_AIM({}, lw_hash({}))", number(access), key(access));
    }
    let _ = writeln!(
        out,
        "}}\n\nstatic inline void lw_reach_{id}(LW_HEAP, const __global uchar *block, ulong *hints)\n{{\n    \
         ulong row; ulong4 key;"
    );
    for (hint, access) in ahead() {
        if matches!(access.operation, Operation::Insert | Operation::Scan) {
            continue;
        }
        let table = number(access);
        let _ = writeln!(out, "    key = {};", key(access));
        let _ = writeln!(out, "    row = lw_find_{table}(heap, tables, lw_hash(key), key);\n    hints[{hint}] = row;");
        for touch in &access.touches {
            prefetch(out, touch);
        }
    }
    let _ = writeln!(out, "}}");
    true
}

fn prefetch(out: &mut String, touch: &Touch) {
    let (start, lines) = match touch.index {
        None => (format!("{}", touch.offset), (touch.offset % 64 + touch.length).div_ceil(64)),
        Some(index) => {
            let width = index.width & !SIGNED;
            let integer = integer_type(index.width);
            let argument = format!("(long)({integer})lw_load(block + {}, {width})", index.offset);
            let aligned = touch.offset.is_multiple_of(64) && index.scale % 64 == 0;
            let lines = touch.length.div_ceil(64) + u32::from(!aligned);
            (format!("{} + (ulong)({argument} * {}L)", touch.offset, index.scale), lines)
        }
    };
    let _ = writeln!(out, "    {{ const ulong from = row + {start};");
    for line in 0..lines.min(MAX_LINES) {
        let _ = writeln!(out, "      LW_PREFETCH(heap + from + {});", line * 64);
    }
    let _ = writeln!(out, "    }}");
}
