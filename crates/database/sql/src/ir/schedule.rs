//! The order of the instructions of a block: look-ups as early as their keys are known, what can abort before what is
//! written to rows, and writes of rows last.
//!
//! DB instructions are asynchronous, so every look-up that is started before the first is awaited overlaps with it. And
//! a write of a row after which nothing can abort needs no copy of the old bytes.
//!
//! What keeps its order: everything that meets in memory; DB instructions of one table unless all of them only read, or
//! all update; and RAISE with everything that can abort before and behind it, so that the first RAISE of the source is
//! the one that is seen. Aborts of the system (no row, overflow, a value too wide) may change places with each other
//! between two RAISEs.

use std::collections::BTreeSet;

use super::builder::Builder;
use super::{Database, Ins, Memory, Op, Program, fits};

/// Longer blocks keep the order of the source.
const MAX_LENGTH: usize = 1_500;

/// Puts the instructions of every block in order.
pub(crate) fn schedule(program: &mut Program) {
    for block in program.layout.clone() {
        if (2..=MAX_LENGTH).contains(&program.blocks[block].code.len()) {
            let code = std::mem::take(&mut program.blocks[block].code);
            program.blocks[block].code = in_order(program, code);
        }
    }
}

fn in_order(program: &Program, code: Vec<Ins>) -> Vec<Ins> {
    let before = dependencies(program, &code);
    let mut first = vec![false; code.len()];
    for at in (0..code.len()).rev() {
        if matches!(code[at].op, Op::Issue { .. }) || first[at] {
            first[at] = true;
            before[at].iter().for_each(|&dependency| first[dependency] = true);
        }
    }
    let class = |at: usize| match code[at].op {
        _ if first[at] => 0,
        Op::Await { .. } => 2,
        Op::StoreRow { w, value, .. } => {
            let info = program.values[value as usize];
            if fits((info.lo, info.hi), w) { 3 } else { 2 }
        }
        Op::Copy { to: Memory::Row { .. }, .. } => 3,
        Op::Move(_) => 4,
        _ => 1,
    };
    let mut waits: Vec<usize> = before.iter().map(BTreeSet::len).collect();
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); code.len()];
    for (at, dependencies) in before.iter().enumerate() {
        dependencies.iter().for_each(|&dependency| behind[dependency].push(at));
    }
    let mut ready: BTreeSet<(u8, usize)> =
        (0..code.len()).filter(|&at| waits[at] == 0).map(|at| (class(at), at)).collect();
    let mut order = Vec::with_capacity(code.len());
    while let Some((_, at)) = ready.pop_first() {
        order.push(at);
        for &next in &behind[at] {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.insert((class(next), next));
            }
        }
    }
    let mut code: Vec<Option<Ins>> = code.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| code[at].take()).collect()
}

/// The memory that an instruction reads or writes.
#[derive(Clone, Copy)]
struct Touch {
    /// A field of the block, or a table.
    place: Result<usize, u8>,
    /// Bytes, where they are known.
    bytes: Option<(i64, i64)>,
    writes: bool,
}

fn touches(op: &Op) -> Vec<Touch> {
    let memory = |memory: &Memory, length: u32, writes: bool| match memory {
        Memory::Block(at) => Touch {
            place: Ok(at.field),
            bytes: at.index.is_none().then(|| (i64::from(at.offset), i64::from(at.offset) + i64::from(length))),
            writes,
        },
        Memory::Row { slot, offset, index, .. } => Touch {
            place: Err(*slot),
            bytes: index.is_none().then(|| (i64::from(*offset), i64::from(*offset) + i64::from(length))),
            writes,
        },
    };
    let bytes = |w: u16| u32::from(w & !lockwork_procedure::isa::SIGNED);
    match op {
        Op::Load(at, w) => vec![memory(&Memory::Block(*at), bytes(*w), false)],
        Op::Store(at, w, _) => vec![memory(&Memory::Block(*at), bytes(*w), true)],
        Op::LoadRow { row, slot, offset, w } => {
            vec![memory(&Memory::Row { row: *row, slot: *slot, offset: *offset, index: None }, bytes(*w), false)]
        }
        Op::StoreRow { row, slot, offset, w, .. } => {
            vec![memory(&Memory::Row { row: *row, slot: *slot, offset: *offset, index: None }, bytes(*w), true)]
        }
        Op::Copy { to, from, length } => {
            vec![memory(to, u32::from(*length), true), memory(from, u32::from(*length), false)]
        }
        Op::Issue { operation, slot, key, into, .. } => {
            let mut all = vec![Touch { place: Ok(key.field), bytes: None, writes: false }];
            if let Some(into) = into {
                all.push(Touch { place: Ok(into.field), bytes: None, writes: true });
            }
            if *operation == Database::Scan {
                all.push(Touch { place: Err(*slot), bytes: None, writes: false });
            }
            all
        }
        _ => Vec::new(),
    }
}

fn meet(a: &Touch, b: &Touch) -> bool {
    let apart = matches!((a.bytes, b.bytes), (Some(a), Some(b)) if a.1 <= b.0 || b.1 <= a.0);
    a.place == b.place && (a.writes || b.writes) && !apart
}

/// For each instruction those that come before it.
fn dependencies(program: &Program, code: &[Ins]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(code.len());
    // What a DB instruction touches it touches until it is awaited.
    let mut issued: std::collections::HashMap<u32, usize> = std::collections::HashMap::new();
    let touched: Vec<Vec<Touch>> = code
        .iter()
        .enumerate()
        .map(|(at, ins)| match ins.op {
            Op::Issue { cp, .. } => {
                issued.insert(cp, at);
                touches(&ins.op)
            }
            Op::Await { cp, .. } => issued.get(&cp).map_or_else(Vec::new, |&at| touches(&code[at].op)),
            _ => touches(&ins.op),
        })
        .collect();
    for (at, ins) in code.iter().enumerate() {
        let mut before = BTreeSet::new();
        let mut reads = Vec::new();
        ins.op.reads(|value| reads.push(value));
        let aborts = Builder::may_abort(&program.values, &ins.op);
        let raises = |op: &Op| matches!(op, Op::Trap { .. } | Op::Await { raise: Some(_), .. });
        for (earlier, other) in code[..at].iter().enumerate() {
            let data = other.to.is_some_and(|to| reads.contains(&to) || ins.to == Some(to));
            // A mutable value is written when its readers are done.
            let mut anti = false;
            if let Some(to) = ins.to {
                other.op.reads(|value| anti |= value == to);
            }
            let abort =
                aborts && Builder::may_abort(&program.values, &other.op) && (raises(&ins.op) || raises(&other.op));
            let own = match (&other.op, &ins.op) {
                (Op::Issue { cp: a, .. }, Op::Await { cp: b, .. }) => a == b,
                (Op::Issue { operation: a, slot: x, .. }, Op::Issue { operation: b, slot: y, .. }) => {
                    let alike = matches!(
                        (a, b),
                        (Database::Search | Database::Scan, Database::Search | Database::Scan)
                            | (Database::Update, Database::Update)
                    );
                    x == y && !alike
                }
                _ => false,
            };
            let same_request = matches!((&other.op, &ins.op), (Op::Issue { .. }, Op::Issue { .. }));
            let memory = !own
                && !same_request
                && touched[at].iter().any(|mine| touched[earlier].iter().any(|theirs| meet(mine, theirs)));
            let buffers =
                same_request && touched[at].iter().any(|mine| touched[earlier].iter().any(|theirs| meet(mine, theirs)));
            if data || anti || abort || own || memory || buffers {
                before.insert(earlier);
            }
        }
        all.push(before);
    }
    all
}
