//! Which bytes of its row each DB instruction is used for.
//!
//! A handle begins at a RET, and moves from register to register; the bytes that loads, stores and copies can mean
//! through it are what its DB instruction is used for. Two instructions whose bytes do not meet, where one writes, do
//! not conflict though their rows are the same: TPC-C's Payment adds to a district's `ytd`, NewOrder to its `next_o`.
//!
//! Invariant: every byte of a row that an execution reads or writes is among those of the DB instruction that it had
//! the row from. Where the analysis gives up (a very large procedure) that is the whole row, read and written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Operation, flow, ranges};
use crate::isa::{Instruction, Opcode};
use crate::schema::ROW_HEADER_BYTES;
use crate::verified::Verified;

/// A DB instruction, and the bytes of its row that are touched through its handle, from the row's beginning, header
/// included. A SCAN, and what INSERT and REMOVE do by themselves, is not told in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowUse {
    /// Where it stands.
    pub pc: u32,
    /// What it does.
    pub operation: Operation,
    /// Slot of its table.
    pub slot: u8,
    /// Bytes that can be read; may overlap.
    pub read: Vec<Range<u32>>,
    /// Bytes that can be written; may overlap.
    pub write: Vec<Range<u32>>,
}

/// The DB instructions whose answer or row a register may hold.
type Origins = BTreeSet<u32>;

/// Before one instruction: origins by CP register and by GP register.
#[derive(Clone, Default, PartialEq, Eq)]
struct State {
    answers: BTreeMap<u8, Origins>,
    handles: BTreeMap<u8, Origins>,
}

impl State {
    /// Takes what another way brings; whether that is news.
    fn join(&mut self, other: &Self) -> bool {
        let mut news = false;
        let pairs = [(&mut self.answers, &other.answers), (&mut self.handles, &other.handles)];
        for (known, arriving) in pairs {
            for (register, origins) in arriving {
                let known = known.entry(*register).or_default();
                let before = known.len();
                known.extend(origins);
                news |= known.len() > before;
            }
        }
        news
    }
}

/// What every DB instruction that control can reach is used for, in the order of the code.
#[must_use]
pub fn row_uses(verified: &Verified) -> Vec<RowUse> {
    let code = &verified.procedure.code;
    let reachable = flow::Graph::new(code).reachable;
    let mut uses: BTreeMap<u32, RowUse> = (0_u32..)
        .zip(code)
        .filter(|&(pc, i)| i.opcode.is_db() && reachable[pc as usize])
        .map(|(pc, i)| {
            let operation = Operation::of(i.opcode);
            (pc, RowUse { pc, operation, slot: i.d, read: Vec::new(), write: Vec::new() })
        })
        .collect();
    let end = |slot: u8| verified.tables[usize::from(slot)].schema.row_bytes();
    let Some(states) = states(verified) else {
        for row in uses.values_mut() {
            let whole = ROW_HEADER_BYTES..end(row.slot);
            (row.read, row.write) = (vec![whole.clone()], vec![whole]);
        }
        return uses.into_values().collect();
    };
    for (pc, spans) in ranges::row_spans(verified).into_iter().enumerate() {
        for (handle, span, write) in spans.into_iter().flatten() {
            let origins = states[pc].as_ref().and_then(|state| state.handles.get(&handle));
            for origin in origins.into_iter().flatten() {
                let row = uses.get_mut(origin).expect("a DB instruction that control reaches");
                let span = span.start..span.end.min(end(row.slot));
                (if write { &mut row.write } else { &mut row.read }).push(span);
            }
        }
    }
    uses.into_values().collect()
}

/// For each instruction, whether the bytes of rows that it writes over must be kept: an abort may follow, and not all
/// of the rows are new ones, which an abort takes away with what is in them.
#[must_use]
pub fn overwrites(verified: &Verified) -> Vec<bool> {
    let new = writes_new_rows(verified);
    verified.facts().iter().zip(new).map(|(facts, new)| facts.needs_undo && !new).collect()
}

/// For each instruction, whether every row that it writes is one that its transaction has inserted.
fn writes_new_rows(verified: &Verified) -> Vec<bool> {
    let code = &verified.procedure.code;
    let Some(states) = states(verified) else { return vec![false; code.len()] };
    let is_new = |state: &State, handle| {
        let origins = state.handles.get(&handle);
        origins.is_some_and(|origins| origins.iter().all(|&pc| code[pc as usize].opcode == Opcode::Insert))
    };
    let writes_new = |(i, state): (&Instruction, &Option<State>)| {
        let mut written = flow::row_pieces(i).into_iter().flatten().filter(|piece| piece.write).peekable();
        let state = state.as_ref().filter(|_| written.peek().is_some());
        state.is_some_and(|state| written.all(|piece| is_new(state, piece.handle)))
    };
    code.iter().zip(&states).map(writes_new).collect()
}

/// What registers may hold before each instruction that control can reach, by forward iteration; `None` when that
/// takes too long.
fn states(verified: &Verified) -> Option<Vec<Option<State>>> {
    let code = &verified.procedure.code;
    let mut states: Vec<Option<State>> = vec![None; code.len()];
    states[0] = Some(State::default());
    let mut work = BTreeSet::from([0_usize]);
    let mut budget = 1000 + 64 * code.len();
    while let Some(pc) = work.pop_first() {
        budget = budget.checked_sub(1)?;
        let mut state = states[pc].clone()?;
        let i = &code[pc];
        match i.opcode {
            opcode if opcode.is_db() => drop(state.answers.insert(i.a, Origins::from([pc as u32]))),
            Opcode::Ret | Opcode::Mov => {
                let source = if i.opcode == Opcode::Ret { &state.answers } else { &state.handles };
                let origins = source.get(&i.b).cloned().unwrap_or_default();
                state.handles.insert(i.a, origins);
            }
            _ => {
                if let Some(register) = flow::defined(i) {
                    state.handles.remove(&register);
                }
            }
        }
        for next in flow::successors(pc as u32, i).into_iter().flatten() {
            let next = next as usize;
            let news = match &mut states[next] {
                Some(known) => known.join(&state),
                none => {
                    *none = Some(state.clone());
                    true
                }
            };
            if news {
                work.insert(next);
            }
        }
    }
    Some(states)
}
