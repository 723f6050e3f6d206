//! What is needed: instructions whose result nobody reads are taken out, and blocks that control does not reach.

use super::{BlockId, End, Op, Program, Val};
use crate::ir::builder::Builder;

/// Takes out what does nothing.
pub(crate) fn prune(program: &mut Program) {
    let reached = reached(program);
    program.layout.retain(|&block| reached[block]);
    let mut needed = vec![false; program.values.len()];
    let mut work: Vec<Val> = Vec::new();
    // Where each value is defined; a mutable one in several places.
    let mut definitions: Vec<Vec<(BlockId, usize)>> = vec![Vec::new(); program.values.len()];
    for &block in &program.layout {
        for (at, ins) in program.blocks[block].code.iter().enumerate() {
            if let Some(to) = ins.to {
                definitions[to as usize].push((block, at));
            }
            if has_effect(program, &ins.op) {
                ins.op.reads(|value| work.push(value));
            }
        }
        program.blocks[block].end.reads(|value| work.push(value));
    }
    while let Some(value) = work.pop() {
        if std::mem::replace(&mut needed[value as usize], true) {
            continue;
        }
        for &(block, at) in &definitions[value as usize] {
            program.blocks[block].code[at].op.reads(|value| work.push(value));
        }
    }
    for &block in &program.layout.clone() {
        let keep: Vec<bool> = program.blocks[block]
            .code
            .iter()
            .map(|ins| has_effect(program, &ins.op) || ins.to.is_some_and(|to| needed[to as usize]))
            .collect();
        let mut keep = keep.into_iter();
        let code = &mut program.blocks[block].code;
        code.retain(|_| keep.next().unwrap_or(true));
        for ins in code {
            if matches!(ins.op, Op::Await { .. }) && ins.to.is_some_and(|to| !needed[to as usize]) {
                ins.to = None;
            }
        }
        if let End::AwaitOr { to: to @ Some(_), .. } = &mut program.blocks[block].end
            && to.is_some_and(|value| !needed[value as usize])
        {
            *to = None;
        }
    }
}

fn has_effect(program: &Program, op: &Op) -> bool {
    match op {
        Op::Const(_) | Op::Move(_) | Op::Load(..) | Op::LoadRow { .. } => false,
        Op::Arithmetic(..) => Builder::may_abort(&program.values, op),
        _ => true,
    }
}

fn reached(program: &Program) -> Vec<bool> {
    let mut reached = vec![false; program.blocks.len()];
    let mut work: Vec<BlockId> = program.layout.first().copied().into_iter().collect();
    while let Some(block) = work.pop() {
        if !std::mem::replace(&mut reached[block], true) {
            work.extend(program.blocks[block].end.successors());
        }
    }
    reached
}
