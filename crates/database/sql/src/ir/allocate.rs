//! Registers: liveness, values that may share one, and a colour for each.
//!
//! Values that MOV and CHECK connect get one register where neither is needed while the other changes; the rest get the
//! lowest register that is free, so windows stay small. CP registers are only used within a block.

use std::collections::HashMap;

use super::{End, Op, Operand, Program, Val, ZERO};
use crate::error::{Result, SqlError, state};
use crate::syntax::Place;

/// The most values of a procedure.
const MAX_VALUES: usize = 12_000;

/// A set of values.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(values: usize) -> Self {
        Self(vec![0; values.div_ceil(64)])
    }

    fn insert(&mut self, value: Val) {
        self.0[value as usize / 64] |= 1 << (value % 64);
    }

    fn remove(&mut self, value: Val) {
        self.0[value as usize / 64] &= !(1 << (value % 64));
    }

    fn has(&self, value: Val) -> bool {
        self.0[value as usize / 64] >> (value % 64) & 1 == 1
    }

    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }

    fn iter(&self) -> impl Iterator<Item = Val> + '_ {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as Val * 64 + bit)
        })
    }
}

/// The register of every value, and the CP register of every DB instruction.
pub(crate) struct Allocation {
    pub(crate) registers: Vec<u8>,
    pub(crate) cps: HashMap<u32, u8>,
}

/// Gives every value a register.
pub(crate) fn allocate(program: &Program, place: Place) -> Result<Allocation> {
    let values = program.values.len();
    let too_large = |what: String| {
        let error = SqlError::new(state::TOO_COMPLEX, place, what);
        error.hint("divide the procedure, or declare arrays instead of many variables")
    };
    if values > MAX_VALUES {
        return Err(too_large(format!("the procedure has {values} values; at most {MAX_VALUES} are possible")));
    }
    let live = live_out(program);
    let mut meets = vec![Set::new(values); values];
    let mut pairs: Vec<(Val, Val)> = Vec::new();
    for &block in &program.layout {
        let Some(mut now) = live.get(&block).cloned() else { continue };
        let code = &program.blocks[block];
        let mut define = |to: Val, from: Option<Val>, now: &mut Set| {
            now.remove(to);
            for other in now.iter().filter(|&other| Some(other) != from && other != ZERO) {
                meets[to as usize].insert(other);
                meets[other as usize].insert(to);
            }
        };
        if let End::Back { counter, .. } = code.end {
            now.insert(counter);
        }
        if let Some(to) = code.end.writes() {
            define(to, None, &mut now);
        }
        code.end.reads(|value| now.insert(value));
        for ins in code.code.iter().rev() {
            if let Some(to) = ins.to {
                let from = match ins.op {
                    Op::Move(Operand::Val(from)) | Op::Check(from, _) => Some(from),
                    _ => None,
                };
                if let Some(from) = from.filter(|&from| from != ZERO) {
                    pairs.push((to, from));
                }
                define(to, from, &mut now);
            }
            ins.op.reads(|value| now.insert(value));
        }
    }
    for (counter, written) in counters(program) {
        for value in written.into_iter().filter(|&value| value != counter) {
            meets[counter as usize].insert(value);
            meets[value as usize].insert(counter);
        }
    }
    let mut class: Vec<Val> = (0..values as Val).collect();
    for (a, b) in pairs {
        let (a, b) = (find(&mut class, a), find(&mut class, b));
        if a != b && !meets[a as usize].has(b) {
            let theirs = meets[b as usize].clone();
            for other in theirs.iter() {
                meets[other as usize].insert(a);
            }
            meets[a as usize].join(&theirs);
            class[b as usize] = a;
        }
    }
    let mut registers = vec![0_u8; values];
    let mut given: Vec<Option<u8>> = vec![None; values];
    for value in order(program) {
        let root = find(&mut class, value);
        if value == ZERO || given[root as usize].is_some() {
            continue;
        }
        let mut taken = [false; 256];
        taken[0] = true;
        for other in meets[root as usize].iter() {
            let other = find(&mut class, other);
            if let Some(register) = given[other as usize] {
                taken[usize::from(register)] = true;
            }
        }
        let Some(free) = taken.iter().position(|taken| !taken) else {
            return Err(too_large("the procedure needs more than 255 registers at once".into()));
        };
        given[root as usize] = Some(free as u8);
    }
    for value in 0..values as Val {
        let root = find(&mut class, value);
        registers[value as usize] = given[root as usize].unwrap_or(0);
    }
    Ok(Allocation { registers, cps: answers(program).ok_or_else(|| too_large("too many look-ups at once".into()))? })
}

/// The counter of each loop, and what is written between its head and its end: the verifier wants nothing there to
/// share the counter's register, not even where the loop is left.
fn counters(program: &Program) -> Vec<(Val, Vec<Val>)> {
    let mut all = Vec::new();
    for (last, &block) in program.layout.iter().enumerate() {
        let End::Back { counter, head, .. } = program.blocks[block].end else { continue };
        let first = program.layout.iter().position(|&block| block == head).unwrap_or(last);
        let inside = program.layout[first..=last].iter().map(|&block| &program.blocks[block]);
        let written = inside.flat_map(|block| block.code.iter().filter_map(|ins| ins.to).chain(block.end.writes()));
        all.push((counter, written.collect()));
    }
    all
}

fn find(class: &mut [Val], value: Val) -> Val {
    let mut root = value;
    while class[root as usize] != root {
        root = class[root as usize];
    }
    class[value as usize] = root;
    root
}

/// The values in the order in which they are defined in the text.
fn order(program: &Program) -> Vec<Val> {
    let mut all = Vec::new();
    for &block in &program.layout {
        all.extend(program.blocks[block].code.iter().filter_map(|ins| ins.to));
        all.extend(program.blocks[block].end.writes());
    }
    all
}

fn live_out(program: &Program) -> HashMap<usize, Set> {
    let values = program.values.len();
    let mut inside: HashMap<usize, Set> = HashMap::new();
    let mut out: HashMap<usize, Set> = HashMap::new();
    let mut changed = true;
    while changed {
        changed = false;
        for &block in program.layout.iter().rev() {
            let code = &program.blocks[block];
            let mut now = Set::new(values);
            for next in code.end.successors() {
                if let Some(set) = inside.get(&next) {
                    now.join(set);
                }
            }
            let at_end = now.clone();
            if let Some(to) = code.end.writes() {
                now.remove(to);
            }
            code.end.reads(|value| now.insert(value));
            for ins in code.code.iter().rev() {
                if let Some(to) = ins.to {
                    now.remove(to);
                }
                ins.op.reads(|value| now.insert(value));
            }
            if inside.get(&block) != Some(&now) {
                inside.insert(block, now);
                changed = true;
            }
            out.insert(block, at_end);
        }
    }
    out
}

/// CP registers; `None` when there are not enough.
fn answers(program: &Program) -> Option<HashMap<u32, u8>> {
    let mut cps = HashMap::new();
    for &block in &program.layout {
        let mut free: std::collections::BTreeSet<u8> = (0..=255).collect();
        for ins in &program.blocks[block].code {
            match ins.op {
                Op::Issue { cp, .. } => {
                    cps.insert(cp, free.pop_first()?);
                }
                Op::Await { cp, .. } => {
                    free.extend(cps.get(&cp));
                }
                _ => {}
            }
        }
    }
    Some(cps)
}
