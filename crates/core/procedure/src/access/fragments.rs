//! Separable procedures: one independent piece an access.
//!
//! An engine that gives every range of keys to one worker would like to run each row's part of a transaction where the
//! row is, without waiting for the other parts. That is possible when the parts do not meet. Every instruction gets an
//! *owner*: the row whose value it uses, or nobody when it depends on arguments alone (then every piece that needs it
//! repeats it). An instruction with two owners, a byte of the block written by one and used by another, or a way to
//! abort that the planner cannot see from the arguments, ends the attempt.
//!
//! **Guarantee.** When every row exists and every [`ArgumentCheck`] passes, running all fragments, each once, has the
//! effect of running the procedure: on different rows in any order or at the same time, on one row in the order of the
//! accesses. Fragments of one call write disjoint bytes of the block and read none that another writes.
//!
//! The trade-off: what is refused here is merely run whole. Conservative is cheap.

use std::collections::HashMap;
use std::ops::Range;

use super::Operation;
use super::flow;
use super::ranges::{BlockUse, Span};
use super::straight::{Access, ArgumentCheck};
use crate::isa::{Instruction, NO_LABEL, Opcode};
use crate::verified::Verified;

/// Procedures with more accesses are run whole.
const MAX_FRAGMENTS: usize = 256;
/// Procedures with more instructions are run whole.
const MAX_INSTRUCTIONS: usize = 4096;

/// The part of a separable procedure that belongs to one access: a program of its own, with the block of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The DB instruction (into CP register 0), its RET, what depends on the row, and what that needs of the
    /// arguments, ending in COMMIT. GP registers are numbered as in the procedure. Nothing but the RET can abort.
    pub code: Vec<Instruction>,
}

/// Whose value: of nobody (arguments and constants alone), or of the row of an access.
type Owner = Option<usize>;

/// The owner of what is made from both; `Err` if it would have two.
fn meet(a: Owner, b: Owner) -> Result<Owner, Mixed> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(Mixed),
        _ => Ok(a.or(b)),
    }
}

/// The procedure is not separable.
struct Mixed;

/// What has happened to a byte of the block so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Untouched,
    ReadBy(usize),
    Shared,
    WrittenBy(usize),
}

/// The walk over the straight code that gives every instruction its owner.
struct Walk<'a> {
    verified: &'a Verified,
    ranges: &'a [BlockUse],
    checks: &'a [ArgumentCheck],
    registers: Vec<Owner>,
    /// The access last issued into each CP register.
    issued: Vec<usize>,
    bytes: Vec<Byte>,
    /// First and last instruction that touches each access's row.
    touched: Vec<Option<Range<usize>>>,
    next_access: usize,
}

/// The fragments of a procedure whose logic is the straight code up to `end`; `None` if it is not separable.
pub(super) fn separate(
    verified: &Verified,
    ranges: &[BlockUse],
    accesses: &[Access],
    checks: &[ArgumentCheck],
    end: usize,
) -> Option<Vec<Fragment>> {
    let procedure = &verified.procedure;
    let handler = procedure.code[procedure.commit_handler as usize].opcode;
    let simple = accesses.iter().all(|access| matches!(access.operation, Operation::Search | Operation::Update));
    let small = (1..=MAX_FRAGMENTS).contains(&accesses.len()) && end < MAX_INSTRUCTIONS;
    if procedure.code[end].opcode != Opcode::Commit || handler != Opcode::Commit || !simple || !small {
        return None;
    }
    let layout = procedure.layout();
    let mut walk = Walk {
        verified,
        ranges,
        checks,
        registers: vec![None; 256],
        issued: vec![0; 256],
        bytes: vec![Byte::Untouched; layout.block_bytes as usize],
        touched: vec![None; accesses.len()],
        next_access: 0,
    };
    let mut owners = Vec::with_capacity(end);
    for pc in 0..end {
        owners.push(walk.step(pc).ok()?);
    }
    if !in_access_order(verified, accesses, &walk.touched) {
        return None;
    }
    let code = &procedure.code[..end];
    Some((0..accesses.len()).map(|own| cut(code, &owners, &accesses[own], own)).collect())
}

/// Whether two accesses of one table, one of which writes, touch their rows one after the other: should they be the
/// same row, running their fragments in order then gives the procedure's result.
fn in_access_order(verified: &Verified, accesses: &[Access], touched: &[Option<Range<usize>>]) -> bool {
    // For each table: where the last touch of any access so far was, and of any that writes.
    let mut last: HashMap<u16, (usize, usize)> = HashMap::new();
    for (access, touched) in accesses.iter().zip(touched) {
        let Some(touched) = touched else { continue };
        let (any, write) = last.entry(verified.tables[usize::from(access.slot)].id).or_default();
        let writes = access.operation.writes();
        if touched.start < if writes { *any } else { *write } {
            return false;
        }
        *any = touched.end.max(*any);
        if writes {
            *write = touched.end.max(*write);
        }
    }
    true
}

impl Walk<'_> {
    /// The owner of an instruction. `Ok(None)` also for one that no fragment needs (comparisons, checks).
    fn step(&mut self, pc: usize) -> Result<Owner, Mixed> {
        let i = &self.verified.procedure.code[pc];
        let may_abort = self.verified.facts[pc].may_abort;
        match i.opcode {
            Opcode::Cmp | Opcode::Cmpi => return Ok(None),
            Opcode::Check => {
                let planned = !may_abort || self.checks.iter().any(|check| check.pc as usize == pc);
                return if planned { Ok(None) } else { Err(Mixed) };
            }
            Opcode::Ret if i.x == NO_LABEL => {
                let owner = Some(self.issued[usize::from(i.b)]);
                if i.a != 0 {
                    self.registers[usize::from(i.a)] = owner;
                }
                return Ok(owner);
            }
            _ if i.opcode.is_db() => {
                let owner = self.next_access;
                self.next_access += 1;
                self.issued[usize::from(i.a)] = owner;
                return Ok(Some(owner));
            }
            _ if may_abort => return Err(Mixed),
            _ => {}
        }
        let mut owner = None;
        for register in flow::used(i) {
            owner = meet(owner, self.registers[usize::from(register)])?;
        }
        owner = self.use_block(&self.ranges[pc], owner)?;
        if let Some(register) = flow::defined(i) {
            self.registers[usize::from(register)] = owner;
        }
        if let (true, Some(owner)) = (flow::row_pieces(i)[0].is_some(), owner) {
            let first = self.touched[owner].as_ref().map_or(pc, |touched| touched.start);
            self.touched[owner] = Some(first..pc + 1);
        }
        Ok(owner)
    }

    /// Follows an instruction's reads and writes of the block. What nobody owns but is written belongs to the
    /// first access from then on, so that it is written once.
    fn use_block(&mut self, block: &BlockUse, mut owner: Owner) -> Result<Owner, Mixed> {
        let arguments_end = self.verified.procedure.layout().arguments_end;
        // Arguments are written by no one.
        let read = block.read.clone().map(|span| bytes(span.start.max(arguments_end)..span.end));
        let write = block.write.clone().map(bytes);
        for byte in &self.bytes[read.clone().unwrap_or_default()] {
            if let Byte::WrittenBy(writer) = byte {
                owner = meet(owner, Some(*writer))?;
            }
        }
        if write.is_some() {
            owner = owner.or(Some(0));
        }
        for byte in &mut self.bytes[read.unwrap_or_default()] {
            *byte = match (*byte, owner) {
                (Byte::WrittenBy(writer), _) => Byte::WrittenBy(writer),
                (Byte::Untouched, Some(owner)) => Byte::ReadBy(owner),
                (Byte::ReadBy(reader), Some(owner)) if reader == owner => Byte::ReadBy(reader),
                _ => Byte::Shared,
            };
        }
        for byte in &mut self.bytes[write.unwrap_or_default()] {
            let Some(owner) = owner else { break };
            *byte = match *byte {
                Byte::Untouched => Byte::WrittenBy(owner),
                Byte::ReadBy(other) | Byte::WrittenBy(other) if other == owner => Byte::WrittenBy(owner),
                _ => return Err(Mixed),
            };
        }
        Ok(owner)
    }
}

fn bytes(span: Span) -> Range<usize> {
    let start = span.start as usize;
    start..(span.end as usize).max(start)
}

/// The program of one access: its own instructions and, walking back, what they need of the arguments.
fn cut(code: &[Instruction], owners: &[Owner], access: &Access, own: usize) -> Fragment {
    let mut needed = [false; 256];
    let mut back = vec![Instruction::new(Opcode::Commit)];
    for (i, owner) in code.iter().zip(owners).rev() {
        let defined = flow::defined(i);
        let wanted = owner.is_none() && defined.is_some_and(|register| needed[usize::from(register)]);
        if *owner != Some(own) && !wanted {
            continue;
        }
        if let Some(register) = defined {
            needed[usize::from(register)] = false;
        }
        let piece = match i.opcode {
            Opcode::Ret => Instruction { b: 0, ..*i },
            // The key is at a constant place, so no register is needed for it.
            _ if i.opcode.is_db() => Instruction { a: 0, c: 0, x: access.key_offset, ..*i },
            _ => {
                flow::used(i).into_iter().for_each(|register| needed[usize::from(register)] = register != 0);
                *i
            }
        };
        back.push(piece);
    }
    back.reverse();
    Fragment { code: back }
}
