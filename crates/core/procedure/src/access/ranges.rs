//! Which bytes of the block, or of a row, an instruction can mean.
//!
//! An address is a constant plus an index register. A procedure that fills `result[i]` from rows in a loop and keeps
//! its keys in scratch beside it is dependent only if the two could overlap, so the index needs a bound: an interval
//! for every register, by forward iteration over the flow graph, narrowed by CHECK and by comparisons
//! before branches, widened to the constants of the program so that it ends soon.
//!
//! Invariant: every address of every execution lies in the span given. Where the analysis gives up (a very
//! large procedure) the span is all that the verifier allows: it is never too small.

use super::flow::{self, RowPiece};
use crate::block::HEADER_BYTES;
use crate::block_access::{BlockAccess, block_accesses};
use crate::isa::{Instruction, Opcode, SIGNED};
use crate::schema::ROW_HEADER_BYTES;
use crate::verified::Verified;

/// Bytes of the block, from the first to the one after the last.
pub(super) type Span = std::ops::Range<u32>;

/// The bytes of the block that one instruction can read and write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockUse {
    pub(super) read: Option<Span>,
    pub(super) write: Option<Span>,
}

type Interval = (i64, i64);
const ANY: Interval = (i64::MIN, i64::MAX);
/// Above this many registers times block heads the analysis is not attempted.
const MAX_CELLS: usize = 1 << 20;
/// How often a head's state may grow before its bounds are widened.
const MAX_GROWTHS: u32 = 2;

/// What is known at one place: an interval for every register, and what the flag compares.
#[derive(Clone, PartialEq, Eq)]
struct State {
    registers: Vec<Interval>,
    compared: Option<(u8, Right)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    Register(u8),
    Constant(i64),
}

/// The block bytes that each instruction can read and write.
pub(super) fn block_uses(verified: &Verified) -> Vec<BlockUse> {
    let code = &verified.procedure.code;
    let mut uses = vec![BlockUse::default(); code.len()];
    visit(verified, |pc, of| uses[pc] = block_use(verified, &code[pc], of));
    uses
}

/// The bytes of rows that each instruction can touch: handle register, bytes, whether it writes.
pub(super) fn row_spans(verified: &Verified) -> Vec<[Option<(u8, Span, bool)>; 2]> {
    let code = &verified.procedure.code;
    let mut spans = vec![[None, None]; code.len()];
    visit(verified, |pc, of| {
        spans[pc] = flow::row_pieces(&code[pc]).map(|piece| {
            let RowPiece { handle, offset, index, length, write } = piece?;
            let span = span((ROW_HEADER_BYTES, u32::MAX), offset, of(index), length)?;
            Some((handle, span, write))
        });
    });
    spans
}

/// Shows every instruction that control can reach, with what its registers can hold: first anything, then, if the
/// analysis does not give up, less.
fn visit(verified: &Verified, mut see: impl FnMut(usize, &dyn Fn(u8) -> Interval)) {
    let code = &verified.procedure.code;
    let reachable = flow::Graph::new(code).reachable;
    for pc in (0..code.len()).filter(|&pc| reachable[pc]) {
        see(pc, &|register| if register == 0 { (0, 0) } else { ANY });
    }
    let heads = heads(code, &reachable);
    let cells = heads.iter().filter(|&&head| head).count() * verified.gp_registers.max(1);
    if cells > MAX_CELLS {
        return;
    }
    if let Some(states) = iterate(verified, &heads) {
        for (head, state) in states.into_iter().enumerate() {
            let Some(mut state) = state else { continue };
            for pc in head.. {
                see(pc, &|register| state.registers[usize::from(register)]);
                let Some(next) = step(&code[pc], state) else { break };
                if pc + 1 == code.len() || heads[pc + 1] {
                    break;
                }
                state = next;
            }
        }
    }
}

/// Where straight pieces of code begin: the entry, branch targets, and what follows a branch.
fn heads(code: &[Instruction], reachable: &[bool]) -> Vec<bool> {
    let mut heads = vec![false; code.len()];
    heads[0] = true;
    for (pc, i) in code.iter().enumerate().filter(|&(pc, _)| reachable[pc]) {
        let [next, target] = flow::successors(pc as u32, i);
        if let Some(target) = target {
            heads[target as usize] = true;
            if let Some(next) = next {
                heads[next as usize] = true;
            }
        }
    }
    heads
}

/// The constants to which a growing bound is widened.
fn thresholds(code: &[Instruction]) -> Vec<i64> {
    let mut constants = vec![i64::MIN, 0, 1, i64::MAX];
    for i in code.iter().filter(|i| i.opcode.has_immediate()) {
        let value = i.immediate();
        constants.extend([value.saturating_sub(1), value, value.saturating_add(1)]);
    }
    constants.sort_unstable();
    constants.dedup();
    constants
}

fn iterate(verified: &Verified, heads: &[bool]) -> Option<Vec<Option<State>>> {
    let code = &verified.procedure.code;
    let thresholds = thresholds(code);
    let mut states: Vec<Option<State>> = vec![None; code.len()];
    let mut visits = vec![0_u32; code.len()];
    // The registers of a fresh window hold anything until they are written, except r0.
    let mut entry = State { registers: vec![ANY; verified.gp_registers.max(1)], compared: None };
    entry.registers[0] = (0, 0);
    states[0] = Some(entry);
    let mut work = std::collections::BTreeSet::from([0_usize]);
    let mut budget = 1000 + 64 * code.len();
    while let Some(head) = work.pop_first() {
        let mut state = states[head].clone()?;
        let mut pc = head;
        loop {
            budget = budget.checked_sub(1)?;
            let i = &code[pc];
            let [next, target] = flow::successors(pc as u32, i);
            let Some(after) = step(i, state) else { break };
            for (to, taken) in [(next, false), (target, true)] {
                let Some(to) = to.map(|to| to as usize).filter(|&to| heads[to]) else { continue };
                let Some(arriving) = refine(i, taken, after.clone()) else { continue };
                if merge(&mut states[to], arriving, &mut visits[to], &thresholds) {
                    work.insert(to);
                }
            }
            match next {
                Some(next) if !heads[next as usize] => (pc, state) = (next as usize, after),
                _ => break,
            }
        }
    }
    Some(states)
}

/// Takes what arrives into the state of a head; whether that changed.
fn merge(state: &mut Option<State>, arriving: State, visits: &mut u32, thresholds: &[i64]) -> bool {
    let Some(known) = state else {
        *state = Some(arriving);
        return true;
    };
    let before = known.clone();
    let widen = *visits > MAX_GROWTHS;
    for (known, new) in known.registers.iter_mut().zip(&arriving.registers) {
        if new.0 < known.0 {
            let below = thresholds.partition_point(|&constant| constant <= new.0);
            known.0 = if widen { thresholds[below - 1] } else { new.0 };
        }
        if new.1 > known.1 {
            let above = thresholds.partition_point(|&constant| constant < new.1);
            known.1 = if widen { thresholds[above] } else { new.1 };
        }
    }
    if known.compared != arriving.compared {
        known.compared = None;
    }
    let changed = *known != before;
    *visits += u32::from(changed);
    changed
}

/// What holds after an instruction that did not abort; `None` if it always does.
fn step(i: &Instruction, mut state: State) -> Option<State> {
    let of = |register: u8| state.registers[usize::from(register)];
    let constant = (i.immediate(), i.immediate());
    let value = match i.opcode {
        Opcode::Mov => of(i.b),
        Opcode::Movi => constant,
        Opcode::Add => add(of(i.b), of(i.c)),
        Opcode::Addi => add(of(i.b), constant),
        Opcode::Sub => subtract(of(i.b), of(i.c)),
        Opcode::Subi => subtract(of(i.b), constant),
        Opcode::Mul => multiply(of(i.b), of(i.c)),
        Opcode::Muli => multiply(of(i.b), constant),
        Opcode::Div => divide(of(i.b), of(i.c)),
        Opcode::Divi => divide(of(i.b), constant),
        Opcode::Load | Opcode::Loadr => loaded(i.w),
        Opcode::Check => {
            if i.b == 0 {
                return Some(state);
            }
            let narrowed = intersection(of(i.b), (0, i.immediate().saturating_sub(1)))?;
            state.registers[usize::from(i.b)] = narrowed;
            return Some(state);
        }
        Opcode::Cmp => {
            state.compared = Some((i.b, Right::Register(i.c)));
            return Some(state);
        }
        Opcode::Cmpi => {
            state.compared = Some((i.b, Right::Constant(i.immediate())));
            return Some(state);
        }
        _ => ANY,
    };
    if let Some(register) = flow::defined(i) {
        state.registers[usize::from(register)] = value;
        if let Some((left, right)) = state.compared
            && (left == register || right == Right::Register(register))
        {
            state.compared = None;
        }
    }
    Some(state)
}

/// What a conditional branch says about the registers compared; `None` if control cannot go this way.
fn refine(i: &Instruction, taken: bool, mut state: State) -> Option<State> {
    let (Some((left, right)), true) = (state.compared, i.opcode.is_branch()) else { return Some(state) };
    let a = state.registers[usize::from(left)];
    let b = match right {
        Right::Register(register) => state.registers[usize::from(register)],
        Right::Constant(value) => (value, value),
    };
    let below = |(_, high): Interval| (i64::MIN, high.saturating_sub(1));
    let above = |(low, _): Interval| (low.saturating_add(1), i64::MAX);
    let up_to = |(_, high): Interval| (i64::MIN, high);
    let from = |(low, _): Interval| (low, i64::MAX);
    let (a, b) = match (i.opcode, taken) {
        (Opcode::Be, true) | (Opcode::Bne, false) => (intersection(a, b)?, intersection(b, a)?),
        (Opcode::Bl, true) | (Opcode::Bge, false) => (intersection(a, below(b))?, intersection(b, above(a))?),
        (Opcode::Ble, true) | (Opcode::Bg, false) => (intersection(a, up_to(b))?, intersection(b, from(a))?),
        (Opcode::Bg, true) | (Opcode::Ble, false) => (intersection(a, above(b))?, intersection(b, below(a))?),
        (Opcode::Bge, true) | (Opcode::Bl, false) => (intersection(a, from(b))?, intersection(b, up_to(a))?),
        _ => (a, b),
    };
    if left != 0 {
        state.registers[usize::from(left)] = a;
    }
    if let Right::Register(register) = right
        && register != 0
    {
        state.registers[usize::from(register)] = b;
    }
    Some(state)
}

fn intersection(a: Interval, b: Interval) -> Option<Interval> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 <= both.1).then_some(both)
}

/// A result outside 64 bits aborts, so the interval of what goes on ends there.
fn clamp(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

fn add(a: Interval, b: Interval) -> Interval {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

fn subtract(a: Interval, b: Interval) -> Interval {
    (a.0.saturating_sub(b.1), a.1.saturating_sub(b.0))
}

fn multiply(a: Interval, b: Interval) -> Interval {
    corners(a, b, |x, y| x * y)
}

fn divide(a: Interval, b: Interval) -> Interval {
    if b.0 <= 0 && b.1 >= 0 { ANY } else { corners(a, b, |x, y| x / y) }
}

fn corners(a: Interval, b: Interval, apply: impl Fn(i128, i128) -> i128) -> Interval {
    let values = [(a.0, b.0), (a.0, b.1), (a.1, b.0), (a.1, b.1)].map(|(x, y)| clamp(apply(x.into(), y.into())));
    (values.into_iter().min().unwrap_or(i64::MIN), values.into_iter().max().unwrap_or(i64::MAX))
}

fn loaded(w: u16) -> Interval {
    match w {
        1 => (0, 0xFF),
        2 => (0, 0xFFFF),
        4 => (0, 0xFFFF_FFFF),
        _ => match w & !SIGNED {
            1 => (i8::MIN.into(), i8::MAX.into()),
            2 => (i16::MIN.into(), i16::MAX.into()),
            4 => (i32::MIN.into(), i32::MAX.into()),
            _ => ANY,
        },
    }
}

/// The block bytes of one instruction, when its index registers lie in these intervals.
fn block_use(verified: &Verified, i: &Instruction, of: impl Fn(u8) -> Interval) -> BlockUse {
    let layout = verified.procedure.layout();
    let schema = i.opcode.is_db().then(|| &*verified.tables[usize::from(i.d)].schema);
    let mut found = BlockUse::default();
    for BlockAccess { offset, index, length, writes } in block_accesses(i, schema) {
        let start = if writes { layout.results_start } else { HEADER_BYTES.min(offset) };
        let span = span((start, layout.block_bytes), offset, of(index), length);
        *(if writes { &mut found.write } else { &mut found.read }) = span;
    }
    found
}

/// The span of `length` bytes at `offset` plus an index, inside `bounds`, where the verifier has proved it to be.
fn span(bounds: (u32, u32), offset: u32, index: Interval, length: u32) -> Option<Span> {
    let at = |index: i64| i128::from(offset) + i128::from(index);
    let start = at(index.0).clamp(bounds.0.into(), bounds.1.into()) as u32;
    let end = (at(index.1) + i128::from(length)).clamp(bounds.0.into(), bounds.1.into()) as u32;
    (start < end).then_some(start..end)
}
