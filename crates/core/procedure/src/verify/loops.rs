//! Loops: every way back must be a counting loop.
//!
//! ```text
//! head:  ...                      ; r has a known lower bound when control comes in
//!        addi  r, r, step         ; step > 0; r is written nowhere else between head and here
//!        cmpi  r, limit
//!        bl    head               ; or ble
//! ```
//!
//! Control enters at the head only, and loops nest. So r grows by `step` in every round and the loop ends; nothing
//! else needs to be known of the body. Continuing early means jumping to the `addi`.

use std::ops::Range;

use super::structure::{destination, target};
use super::{Check, refuse};
use crate::isa::{Instruction, Opcode};
use crate::verified::Loop;

/// A loop, before its bound is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) head: usize,
    pub(super) back: usize,
    pub(super) counter: u8,
    pub(super) step: i64,
    /// The loop goes on while the counter is below this.
    pub(super) limit: i128,
}

impl Shape {
    /// The most rounds, if the counter is at least `lo` when control comes in.
    pub(super) fn bound(&self, lo: i64) -> u64 {
        let distance = (self.limit - i128::from(lo)).max(0);
        let rounds = (distance + i128::from(self.step) - 1) / i128::from(self.step);
        u64::try_from(rounds).unwrap_or(u64::MAX).max(1)
    }
}

const WANTED: &str = "the only way back is a counting loop: 'add r, r, step' (step > 0), 'cmp r, limit', 'bl' or 'ble' \
                      to its head";

pub(super) fn find(code: &[Instruction], sections: &[Range<usize>; 3]) -> Check<Vec<Shape>> {
    let mut shapes: Vec<Shape> = Vec::new();
    for section in sections {
        for at in section.clone() {
            let Some(head) = target(&code[at]).filter(|&target| target <= at) else { continue };
            let shape = shape(code, head, at)?;
            check_entries(code, section, &shape)?;
            for other in &shapes {
                let apart = other.back < shape.head;
                let inside = shape.head < other.head && other.back < shape.back;
                if !apart && !inside {
                    return refuse(
                        at,
                        "it crosses another loop; loops must lie one in the other or one after the other",
                    );
                }
            }
            shapes.push(shape);
        }
    }
    Ok(shapes)
}

fn shape(code: &[Instruction], head: usize, back: usize) -> Check<Shape> {
    let branch = &code[back];
    if !matches!(branch.opcode, Opcode::Bl | Opcode::Ble) || back < head + 2 {
        return refuse(back, WANTED);
    }
    let (add, compare) = (&code[back - 2], &code[back - 1]);
    let counts = add.opcode == Opcode::Addi && add.a == add.b && add.immediate() > 0;
    if !counts || compare.opcode != Opcode::Cmpi || compare.b != add.a {
        return refuse(back, WANTED);
    }
    let counter = add.a;
    for at in (head..=back).filter(|&at| at != back - 2) {
        if destination(&code[at]) == Some(counter) {
            return refuse(at, format!("it writes r{counter}, which counts the loop from {head} to {back}"));
        }
    }
    let limit = i128::from(compare.immediate()) + i128::from(branch.opcode == Opcode::Ble);
    Ok(Shape { head, back, counter, step: add.immediate(), limit })
}

fn check_entries(code: &[Instruction], section: &Range<usize>, shape: &Shape) -> Check<()> {
    for at in section.clone().filter(|&at| at != shape.back) {
        let Some(target) = target(&code[at]) else { continue };
        let inside = (shape.head..=shape.back).contains(&at);
        if !inside && target > shape.head && target <= shape.back {
            return refuse(
                at,
                format!("it jumps into the loop from {} to {}; enter at its head", shape.head, shape.back),
            );
        }
        if target == shape.back || target == shape.back - 1 {
            return refuse(at, "it jumps over the step of a loop; continue at the 'add'");
        }
    }
    Ok(())
}

/// The most steps of an execution: every instruction, as often as the loops around it can run together.
pub(super) fn step_bound(instructions: usize, loops: &[Loop]) -> u64 {
    let times = |at: usize| {
        let around = loops.iter().filter(|found| (found.head..=found.back).contains(&(at as u32)));
        around.fold(1_u64, |times, found| times.saturating_mul(found.bound))
    };
    (0..instructions).fold(0_u64, |sum, at| sum.saturating_add(times(at)))
}
